// Tiles of matrix products, for the AVX-512 kernels alone.
// Layout: panels of 32 columns, two vectors from one position, or from the two or four that an instruction takes.
// Trick: 16 lines are transposed by dwords while still packed, so that a vector holds eight positions of each.
#ifndef DLFP4_SRC_PRODUCTS_AVX512_TILES_H_
#define DLFP4_SRC_PRODUCTS_AVX512_TILES_H_

#include <string.h>

#include <utility>

#include "avx512_block_dots.h"
#include "avx512_dots.h"
#include "avx512_sums.h"
#include "host/simd/floats.h"

namespace dlfp4 {
namespace {

// --- Transposing -----------------------------------------------------------------------------

struct Square {
  __m512i row[kLanes];
};

// Dword j of row i becomes dword i of row j.
DLFP4_INLINE inline void transpose(Square *square) {
  __m512i *const r = square->row;
  Square t;
  for (int i = 0; i < kLanes; i += 2) {
    t.row[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t.row[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < kLanes; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t.row[i], t.row[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t.row[i], t.row[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t.row[i + 1], t.row[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t.row[i + 1], t.row[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {  // 128 bits of four rows each: now of four times four
    const __m512i low0 = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88), low1 = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xDD);
    const __m512i high0 = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    const __m512i high1 = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xDD);
    t.row[i] = _mm512_shuffle_i32x4(low0, high0, 0x88);
    t.row[i + 4] = _mm512_shuffle_i32x4(low1, high1, 0x88);
    t.row[i + 8] = _mm512_shuffle_i32x4(low0, high0, 0xDD);
    t.row[i + 12] = _mm512_shuffle_i32x4(low1, high1, 0xDD);
  }
  *square = t;
}

// Dwords [first, first + count) of 16 lines, count <= 16, transposed; `line_at` gives a line's first, or null. What
// comes next is asked for: so many lines at a time are more than the processor follows by itself.
template <class LineAt>
DLFP4_INLINE inline Square load_square(LineAt line_at, int64_t first, int64_t count) {
  const __mmask16 kept = static_cast<__mmask16>(first_bytes(count));
  Square square;
  for (int i = 0; i < kLanes; ++i) {
    const uint8_t *const line = line_at(i);
    if (line) _mm_prefetch(reinterpret_cast<const char *>(line + 4 * (first + kLanes)), _MM_HINT_T0);
    square.row[i] = line ? _mm512_maskz_loadu_epi32(kept, line + 4 * first) : _mm512_setzero_si512();
  }
  transpose(&square);
  return square;
}

void pack_dwords(const uint8_t *rows, int64_t pitch, int64_t depth, uint8_t *panel) {
  for (int64_t k = 0; k < depth; k += kLanes) {
    const int64_t count = depth - k < kLanes ? depth - k : kLanes;
    for (int half = 0; half < kHalves; ++half) {
      const auto line_at = [=](int i) { return rows + 4 * pitch * (kLanes * half + i); };
      const Square square = load_square(line_at, k, count);
      for (int64_t j = 0; j < count; ++j) _mm512_store_si512(panel + 128 * (k + j) + 64 * half, square.row[j]);
    }
  }
}

void pack_float_tiles(const float *rows, int64_t pitch, int64_t depth, float *panel) {
  pack_dwords(reinterpret_cast<const uint8_t *>(rows), pitch, depth, reinterpret_cast<uint8_t *>(panel));
}

void pack_bfloat_tiles(const uint16_t *rows, int64_t pitch, int64_t depth, uint16_t *panel) {
  pack_dwords(reinterpret_cast<const uint8_t *>(rows), pitch / 2, depth / 2, reinterpret_cast<uint8_t *>(panel));
}

// Calls store(index, half, dword `index` of each of 16 lines) for `count` dwords of each line.
template <class Store>
DLFP4_INLINE inline void each_dword(const uint8_t *const *rows, int64_t lines, int64_t count, Store store) {
  for (int64_t k = 0; k < count; k += kLanes) {
    const int64_t some = count - k < kLanes ? count - k : kLanes;
    for (int half = 0; half < kHalves; ++half) {
      const auto line_at = [=](int i) { return kLanes * half + i < lines ? rows[kLanes * half + i] : nullptr; };
      const Square square = load_square(line_at, k, some);
      for (int64_t j = 0; j < some; ++j) store(k + j, half, square.row[j]);
    }
  }
}

// --- Scales ----------------------------------------------------------------------------------

// Four codes a dword to floats, of which only the highest two bytes can be other than zero.
template <int Scale>
struct ScaleDecoder;

constexpr bool has_scale_decoder(int scale) { return scale == DLFP4_float8_e4m3fn || scale == DLFP4_float8_e8m0fnu; }

template <>
struct ScaleDecoder<DLFP4_float8_e4m3fn> {
  const Bfloats<DLFP4_float8_e4m3fn> bfloats{};

  DLFP4_INLINE void operator()(__m512i codes, __m512 (&scales)[4]) const {
    const __m512i low = bfloats.low(codes);
    const __m512i high = _mm512_ternarylogic_epi64(bfloats.high(codes), codes, _mm512_set1_epi8(-128), 0xF8);
    const __m512i third = _mm512_set1_epi32(0xFF0000);
    for (int i = 0; i < 4; ++i) {
      const __m512i middle = i < 3 ? _mm512_slli_epi32(low, 16 - 8 * i) : _mm512_srli_epi32(low, 8);
      const __m512i highest = _mm512_slli_epi32(_mm512_srli_epi32(high, 8 * i), 24);
      scales[i] = _mm512_castsi512_ps(_mm512_ternarylogic_epi32(highest, middle, third, 0xF8));
    }
  }
};

template <>
struct ScaleDecoder<DLFP4_float8_e8m0fnu> {
  DLFP4_INLINE void operator()(__m512i codes, __m512 (&scales)[4]) const {
    for (int i = 0; i < 4; ++i) {
      const __m512i code = _mm512_and_si512(_mm512_srli_epi32(codes, 8 * i), _mm512_set1_epi32(0xFF));
      scales[i] = reinterpret_cast<__m512>(bits_of_powers(reinterpret_cast<Avx512::U32>(code)));
    }
  }
};

template <int Scale>
void pack_scale_tiles(const uint8_t *const *stored, int64_t lines, int64_t count, float *panel) {
  const ScaleDecoder<Scale> decode = {};
  const uint8_t *rows[kColumns];
  alignas(64) uint8_t last[kColumns][4] = {};
  const auto store = [&](int64_t dword, int half, __m512i codes, int64_t most) DLFP4_INLINE {
    __m512 scales[4];
    decode(codes, scales);
    for (int i = 0; i < most; ++i) _mm512_store_ps(panel + (4 * dword + i) * kColumns + kLanes * half, scales[i]);
  };
  each_dword(stored, lines, count / 4,
             [&](int64_t dword, int half, __m512i codes) DLFP4_INLINE { store(dword, half, codes, 4); });
  if (count % 4 == 0) return;
  for (int64_t c = 0; c < lines; ++c) {
    memcpy(last[c], stored[c] + count / 4 * 4, static_cast<size_t>(count % 4));
    rows[c] = last[c];
  }
  each_dword(rows, lines, 1,
             [&](int64_t, int half, __m512i codes) DLFP4_INLINE { store(count / 4, half, codes, count % 4); });
}

// --- Elements of a byte ----------------------------------------------------------------------

// Of each 128 bits, which are four codes of four lines, the first two of each line, then the last two.
__m512i order_of_pairs() {
  return _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
}

// The upper halves of floats, those of `first` in even words.
__m512i join_words(__m512 first, __m512 second) {
  return _mm512_mask_mov_epi16(_mm512_srli_epi32(_mm512_castps_si512(first), 16), 0xAAAAAAAA,
                               _mm512_castps_si512(second));
}

__m512i multiply_words(__m512i words, __m512 scale) {
  const __m512 first = _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
  const __m512 second = _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(-0x10000)));
  return join_words(_mm512_mul_ps(first, scale), _mm512_mul_ps(second, scale));
}

template <int Row>
void pack_element_tiles(const uint8_t *const *codes, int64_t lines, int64_t depth, const float *scales, int64_t block,
                        uint16_t *panel) {
  const Bfloats<Row> bfloats{};
  const __m512i order = order_of_pairs();
  const auto pack = [&](auto finish) DLFP4_INLINE {
    each_dword(codes, lines, depth / 4, [&](int64_t dword, int half, __m512i fours) DLFP4_INLINE {
      const BfloatPair pairs = bfloats(_mm512_shuffle_epi8(fours, order));
      uint16_t *const to = panel + 4 * kColumns * dword + 2 * kLanes * half;
      _mm512_store_si512(to, finish(reinterpret_cast<__m512i>(pairs.first), dword, half));
      _mm512_store_si512(to + 2 * kColumns, finish(reinterpret_cast<__m512i>(pairs.second), dword, half));
    });
  };
  if (!scales) return pack([](__m512i words, int64_t, int) DLFP4_INLINE { return words; });
  const int shift = __builtin_ctzll(static_cast<uint64_t>(block / 4));
  pack([&](__m512i words, int64_t dword, int half) DLFP4_INLINE {
    return multiply_words(words, _mm512_load_ps(scales + (dword >> shift) * kColumns + kLanes * half));
  });
}

// --- FP4 -------------------------------------------------------------------------------------

__m512 table_of_e2m1() { return _mm512_setr_ps(0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.f, -.5f, -1, -1.5f, -2, -3, -4, -6); }

template <int64_t kBlock>
void pack_e2m1_blocks(const uint8_t *const *codes, int64_t lines, int64_t depth, const float *scales, uint8_t *panel) {
  const __m512 table = table_of_e2m1();
  each_dword(codes, lines, depth / 8, [&](int64_t octet, int half, __m512i octets) DLFP4_INLINE {
    const __m512 scale = _mm512_load_ps(scales + octet * 8 / kBlock * kColumns + kLanes * half);
    uint8_t *const to = panel + 512 * octet + 64 * half;
    for (int pair = 0; pair < 4; ++pair) {
      const __m512i even = _mm512_srli_epi32(octets, 8 * pair), odd = _mm512_srli_epi32(octets, 8 * pair + 4);
      const __m512 first = _mm512_mul_ps(_mm512_permutexvar_ps(even, table), scale);
      const __m512 second = _mm512_mul_ps(_mm512_permutexvar_ps(odd, table), scale);
      _mm512_store_si512(to + 128 * pair, join_words(first, second));
    }
  });
}

void pack_e2m1_bfloats(const uint8_t *const *codes, int64_t lines, int64_t depth, const float *scales, int64_t block,
                       uint16_t *panel) {
  const auto pack = block == 16 ? pack_e2m1_blocks<16> : pack_e2m1_blocks<32>;
  pack(codes, lines, depth, scales, reinterpret_cast<uint8_t *>(panel));
}

constexpr Constant kOffsetValues = [] {
  Constant table = {};
  for (int i = 0; i < 64; ++i)
    table.byte[i] =
        static_cast<uint8_t>(kIntegerOffset + integer_of(DLFP4_float4_e2m1fn, static_cast<uint64_t>(i) & 15));
  return table;
}();

void pack_integer_tiles(const uint8_t *const *codes, int64_t lines, int64_t depth, uint8_t *panel) {
  const __m512i values = load(kOffsetValues);
  each_dword(codes, lines, depth / 8, [&](int64_t octet, int half, __m512i octets) DLFP4_INLINE {
    uint8_t *const to = panel + 256 * octet + 64 * half;
    _mm512_store_si512(to, _mm512_permutexvar_epi8(octets, values));
    _mm512_store_si512(to + 128, _mm512_permutexvar_epi8(_mm512_srli_epi16(octets, 4), values));
  });
}

void spread_integer_rows(const uint8_t *codes, int64_t count, int8_t *x) {
  static constexpr Constant kValues = make_values(DLFP4_float4_e2m1fn, 0, 0);
  const __m512i values = load(kValues), order = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
  for (int64_t i = 0; i < count; i += 128) {
    const int64_t left = count - i;
    const __m512i pairs = _mm512_maskz_loadu_epi8(first_bytes(left / 2), codes + i / 2);
    const __m512i even = _mm512_permutexvar_epi8(pairs, values);
    const __m512i odd = _mm512_permutexvar_epi8(_mm512_srli_epi16(pairs, 4), values);
    const __m512i low = _mm512_unpacklo_epi32(even, odd), high = _mm512_unpackhi_epi32(even, odd);
    _mm512_mask_storeu_epi8(x + i, first_bytes(left), _mm512_permutex2var_epi64(low, order, high));
    const __m512i last = _mm512_permutex2var_epi64(low, _mm512_add_epi64(order, _mm512_set1_epi64(4)), high);
    if (left > 64) _mm512_mask_storeu_epi8(x + i + 64, first_bytes(left - 64), last);
  }
}

// --- Multiplying -----------------------------------------------------------------------------

template <class Call, int... Row>
DLFP4_INLINE inline void each_row(Call call, std::integer_sequence<int, Row...>) {
  (call(Row), ...);
}

// Calls call(row) for all rows. What a loop indexes the compiler keeps in memory, unless it knows each index early.
template <int kRows, class Call>
DLFP4_INLINE inline void each_row(Call call) {
  each_row(call, std::make_integer_sequence<int, kRows>());
}

// Not by initializing the array as a whole, which is a loop through memory.
template <int kRows>
DLFP4_INLINE inline void clear(__m512 (*sums)[kRows][2]) {
  each_row<kRows>([&](int i) DLFP4_INLINE { (*sums)[i][0] = (*sums)[i][1] = _mm512_setzero_ps(); });
}

template <int kRows>
DLFP4_INLINE inline void add_rows(const __m512 (&sums)[kRows][kHalves], double *totals) {
  each_row<kRows>([&](int i) DLFP4_INLINE {
    add_to(totals + kColumns * i, sums[i][0]);
    add_to(totals + kColumns * i + kLanes, sums[i][1]);
  });
}

// The part of what lies ahead that some of the rows ask for, in so many steps.
class Asking {
 public:
  Asking(const Ahead &ahead, int64_t first, int64_t count, int64_t rows, int64_t steps)
      : at_(ahead.from + ahead.bytes * first / rows), step_((ahead.bytes * count / rows + steps - 1) / steps) {}

  DLFP4_INLINE void operator()() {
    _mm_prefetch(reinterpret_cast<const char *>(at_), _MM_HINT_T0);
    at_ += step_;
  }

 private:
  const uint8_t *at_;
  int64_t step_;
};

// table[n] is function<n>, for n from 1.
template <template <int> class Function, int... Index>
constexpr auto make_table(std::integer_sequence<int, Index...>) {
  using Pointer = std::decay_t<decltype(Function<1>::run)>;
  struct Table {
    Pointer at[sizeof...(Index) + 1];
  };
  return Table{{nullptr, Function<Index + 1>::run...}};
}

constexpr int kMostRows = 12, kMostIntegerRows = 6;

template <int kRows>
struct FloatTile {
  static void run(const float *panel, const float *x, int64_t pitch, int64_t depth, double *totals) {
    __m512 sums[kRows][kHalves];
    clear(&sums);
    for (int64_t k = 0; k < depth; ++k, panel += kColumns) {
      const __m512 first = _mm512_load_ps(panel), second = _mm512_load_ps(panel + kLanes);
      for (int i = 0; i < kRows; ++i) {
        const __m512 value = _mm512_set1_ps(x[i * pitch + k]);
        sums[i][0] = _mm512_fmadd_ps(first, value, sums[i][0]);
        sums[i][1] = _mm512_fmadd_ps(second, value, sums[i][1]);
      }
    }
    add_rows(sums, totals);
  }
};

int load_int(const void *src) {
  int value;
  memcpy(&value, src, sizeof(value));
  return value;
}

template <int kRows>
DLFP4_INLINE inline void sum_bfloats(const uint16_t *panel, const uint16_t *x, int64_t pitch, int64_t depth,
                                     Asking *ask, __m512 (&sums)[kRows][kHalves]) {
  for (int64_t k = 0; k < depth; k += 2, panel += 2 * kColumns) {
    (*ask)();
    const __m512bh first = reinterpret_cast<__m512bh>(_mm512_load_si512(panel));
    const __m512bh second = reinterpret_cast<__m512bh>(_mm512_load_si512(panel + kColumns));
    for (int i = 0; i < kRows; ++i) {
      const __m512bh pair = reinterpret_cast<__m512bh>(_mm512_set1_epi32(load_int(x + i * pitch + k)));
      sums[i][0] = _mm512_dpbf16_ps(sums[i][0], first, pair);
      sums[i][1] = _mm512_dpbf16_ps(sums[i][1], second, pair);
    }
  }
}

template <int kRows>
struct BfloatTile {
  static void run(const uint16_t *panel, const uint16_t *x, int64_t pitch, int64_t depth, Asking ask, double *totals) {
    __m512 sums[kRows][kHalves];
    clear(&sums);
    sum_bfloats<kRows>(panel, x, pitch, depth, &ask, sums);
    add_rows(sums, totals);
  }
};

// There are registers for the sums of a block; those of all blocks are in memory.
template <int kRows>
struct ScaledBfloatTile {
  static void run(const uint16_t *panel, const float *scales, const BfloatRows &x, int64_t block, int64_t depth,
                  Asking ask, double *totals) {
    __m512 of_all[kRows][kHalves];
    clear(&of_all);
    for (int64_t k = 0, b = 0; k < depth; k += block, ++b, scales += kColumns) {
      __m512 sums[kRows][kHalves];
      clear(&sums);
      sum_bfloats<kRows>(panel + k * kColumns, x.values + k, x.pitch, depth - k < block ? depth - k : block, &ask,
                         sums);
      const __m512 first = _mm512_load_ps(scales), second = _mm512_load_ps(scales + kLanes);
      for (int i = 0; i < kRows; ++i) {  // not scale by scale: that product may be none of float32's
        const __m512 scale = _mm512_set1_ps(x.scales[i * x.block_pitch + b]);
        of_all[i][0] = _mm512_fmadd_ps(_mm512_mul_ps(sums[i][0], first), scale, of_all[i][0]);
        of_all[i][1] = _mm512_fmadd_ps(_mm512_mul_ps(sums[i][1], second), scale, of_all[i][1]);
      }
    }
    add_rows(of_all, totals);
  }
};

template <int kQuads, int kRows>
DLFP4_INLINE inline void add_block(const uint8_t *panel, const int8_t *x, int64_t pitch, Asking *ask,
                                   __m512i (&sums)[kRows][kHalves]) {
  for (int quad = 0; quad < kQuads; ++quad) {
    (*ask)();
    const __m512i first = _mm512_load_si512(panel + 128 * quad), second = _mm512_load_si512(panel + 128 * quad + 64);
    for (int i = 0; i < kRows; ++i) {
      const __m512i values = _mm512_set1_epi32(load_int(x + i * pitch + 4 * quad));
      sums[i][0] = _mm512_dpbusd_epi32(sums[i][0], first, values);
      sums[i][1] = _mm512_dpbusd_epi32(sums[i][1], second, values);
    }
  }
}

template <int kBlock, int kRows>
void multiply_blocks(const uint8_t *panel, const float *scales, const IntegerRows &x, int64_t depth, Asking ask,
                     double *totals) {
  __m512 sums[kRows][kHalves];
  clear(&sums);
  for (int64_t b = 0; b < depth / kBlock; ++b, scales += kColumns) {
    __m512i products[kRows][kHalves];
    for (int i = 0; i < kRows; ++i)
      products[i][0] = products[i][1] = _mm512_set1_epi32(x.corrections[i * x.block_pitch + b]);
    add_block<kBlock / 4, kRows>(panel + b * kBlock * kColumns, x.values + b * kBlock, x.pitch, &ask, products);
    const __m512 first = _mm512_load_ps(scales), second = _mm512_load_ps(scales + kLanes);
    for (int i = 0; i < kRows; ++i) {
      const __m512 scale = _mm512_set1_ps(x.scales[i * x.block_pitch + b]);
      sums[i][0] = add_scaled(_mm512_cvtepi32_ps(products[i][0]), first, scale, sums[i][0]);
      sums[i][1] = add_scaled(_mm512_cvtepi32_ps(products[i][1]), second, scale, sums[i][1]);
    }
  }
  add_rows(sums, totals);
}

template <int kRows>
struct IntegerTile {
  static void run(const uint8_t *panel, const float *scales, const IntegerRows &x, int64_t block, int64_t depth,
                  Asking ask, double *totals) {
    if (block == 16) return multiply_blocks<16, kRows>(panel, scales, x, depth, ask, totals);
    multiply_blocks<32, kRows>(panel, scales, x, depth, ask, totals);
  }
};

void multiply_float_tiles(const float *panel, const float *x, int64_t pitch, int64_t depth, int64_t rows,
                          double *totals) {
  static constexpr auto kTable = make_table<FloatTile>(std::make_integer_sequence<int, kMostRows>());
  in_runs_of_rows<kMostRows>(rows, [&](int64_t first, int64_t count) {
    kTable.at[count](panel, x + first * pitch, pitch, depth, totals + first * kColumns);
  });
}

void multiply_bfloat_tiles(const uint16_t *panel, const uint16_t *x, int64_t pitch, int64_t depth, int64_t rows,
                           const Ahead &ahead, double *totals) {
  static constexpr auto kTable = make_table<BfloatTile>(std::make_integer_sequence<int, kMostRows>());
  in_runs_of_rows<kMostRows>(rows, [&](int64_t first, int64_t count) {
    const Asking ask(ahead, first, count, rows, depth / 2);
    kTable.at[count](panel, x + first * pitch, pitch, depth, ask, totals + first * kColumns);
  });
}

// Tiles whose sums of blocks are scaled; a step is of so many positions.
template <template <int> class Tile, int kMost, int kStep, class Value, class Rows>
void multiply_scaled_tiles(const Value *panel, const float *scales, const Rows &x, int64_t block, int64_t depth,
                           int64_t rows, const Ahead &ahead, double *totals) {
  static constexpr auto kTable = make_table<Tile>(std::make_integer_sequence<int, kMost>());
  in_runs_of_rows<kMost>(rows, [&](int64_t first, int64_t count) {
    const Asking ask(ahead, first, count, rows, depth / kStep);
    kTable.at[count](panel, scales, rows_from(x, first), block, depth, ask, totals + first * kColumns);
  });
}

// --- The table -------------------------------------------------------------------------------

constexpr bool has_element_tiles(int row) {
  return is_float(kTypes[row]) && kTypes[row].specials != DLFP4_E8M0 && kTypes[row].bits <= 8;
}

template <int Key>
void add_scale_packing(TileKernels *kernels) {
  constexpr int kScale = kBlockKeys[Key].scale;
  if constexpr (has_scale_decoder(kScale)) kernels->pack_scales[Key] = pack_scale_tiles<kScale>;
}

template <int... Row, int... Key>
void add_tiles(TileKernels *kernels, std::integer_sequence<int, Row...>, std::integer_sequence<int, Key...>) {
  const auto add = [&](auto row) {
    if constexpr (has_element_tiles(row())) kernels->pack_elements[row()] = pack_element_tiles<row()>;
  };
  (add(std::integral_constant<int, Row>()), ...);
  kernels->pack_floats = pack_float_tiles;
  kernels->multiply_floats = multiply_float_tiles;
  kernels->pack_bfloats = pack_bfloat_tiles;
  kernels->multiply_bfloats = multiply_bfloat_tiles;
  kernels->multiply_scaled_bfloats = multiply_scaled_tiles<ScaledBfloatTile, kMostRows, 2>;
  (add_scale_packing<Key>(kernels), ...);
  kernels->pack_scaled_bfloats = pack_e2m1_bfloats;
  kernels->pack_integers = pack_integer_tiles;
  kernels->spread_integers = spread_integer_rows;
  kernels->multiply_integers = multiply_scaled_tiles<IntegerTile, kMostIntegerRows, 4>;
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_AVX512_TILES_H_
