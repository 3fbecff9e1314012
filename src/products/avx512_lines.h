// A line times few rows, without panels, for the AVX-512 kernels alone.
// Layout: codes and scales as they lie; rows of bfloat16 or of integers, prepared in the order that decoding gives.
// Trick: what is decoded stays in registers for up to eight rows; scales are applied to sums, not to elements.
#ifndef DLFP4_SRC_PRODUCTS_AVX512_LINES_H_
#define DLFP4_SRC_PRODUCTS_AVX512_LINES_H_

#include <utility>

#include "avx512_tiles.h"

namespace dlfp4 {
namespace {

constexpr int kMostSpreadRows = 8, kMostElementRows = 8, kMostRoundedRows = 4, kMostFloatRows = 8;

template <int kRows>
DLFP4_INLINE inline void add_to_totals(const __m512 (&sums)[kRows][2], double *totals) {
  each_row<kRows>([&](int r)
                      DLFP4_INLINE { totals[r * kColumns] += add_lanes(_mm512_add_ps(sums[r][0], sums[r][1])); });
}

// --- A line of FP4 times rows of bfloat16 ----------------------------------------------------

// Scales of 16 blocks.
template <int Scale>
__m512 decode_scales(__m128i stored) {
  const __m512i codes = _mm512_cvtepu8_epi32(stored);
  __m512 scales[4];
  const ScaleDecoder<Scale> decode = {};
  decode(codes, scales);
  return scales[0];
}

// Both nibbles of 64 bytes as bfloat16, in the order of spread_bfloat.
struct SpreadCodes {
  __m512bh part[4];
};

DLFP4_INLINE inline SpreadCodes spread(const Bfloats<DLFP4_float4_e2m1fn> &bfloats, __m512i pairs) {
  const BfloatPair even = bfloats(pairs), odd = bfloats(_mm512_srli_epi16(pairs, 4));
  return {{even.first, odd.first, even.second, odd.second}};
}

__m512bh load_bfloats(const uint16_t *src) { return reinterpret_cast<__m512bh>(_mm512_loadu_si512(src)); }

// 256 positions: two vectors of codes, and as many scales as a vector has, or half of them.
template <int Scale, int64_t kBlock, int kRows, class Share>
DLFP4_INLINE inline void add_spread(const Bfloats<DLFP4_float4_e2m1fn> &bfloats, const uint8_t *codes,
                                    const uint8_t *stored, const uint16_t *x, int64_t pitch, Share share,
                                    __m512 (&sums)[kRows][2]) {
  static_assert(kBlock == 16 || kBlock == 32, "each quarter of the products' vectors is of a block");
  const __m256i stored_scales = load_scales<kBlock>(stored, share);
  const __m512 scales = decode_scales<Scale>(_mm256_castsi256_si128(stored_scales));
  const __m512i lanes = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
  for (int i = 0; i < 2; ++i) {
    prefetch<64>(codes + 64 * i, Whole());
    const SpreadCodes c = spread(bfloats, load_part(codes, i, share));
    const __m512i first = _mm512_add_epi32(_mm512_slli_epi32(lanes, kBlock == 16), _mm512_set1_epi32(i * 128 / kBlock));
    const __m512 scale0 = _mm512_permutexvar_ps(first, scales);
    const __m512 scale1 =
        kBlock == 16 ? _mm512_permutexvar_ps(_mm512_add_epi32(first, _mm512_set1_epi32(1)), scales) : scale0;
    for (int r = 0; r < kRows; ++r) {
      const uint16_t *const row = x + r * pitch + kSpread * i;
      __m512 even = _mm512_dpbf16_ps(__m512{}, c.part[0], load_bfloats(row));
      even = _mm512_dpbf16_ps(even, c.part[1], load_bfloats(row + 32));
      __m512 odd = _mm512_dpbf16_ps(kBlock == 16 ? __m512{} : even, c.part[2], load_bfloats(row + 64));
      odd = _mm512_dpbf16_ps(odd, c.part[3], load_bfloats(row + 96));
      if (kBlock == 16) sums[r][0] = _mm512_fmadd_ps(even, scale0, sums[r][0]);
      sums[r][1] = _mm512_fmadd_ps(odd, scale1, sums[r][1]);
    }
  }
}

template <int Scale, int64_t kBlock, int kRows>
void multiply_rows(const uint8_t *codes, const uint8_t *scales, const uint16_t *x, int64_t pitch, int64_t count,
                   double *totals) {
  constexpr int64_t kStep = 256;
  const Bfloats<DLFP4_float4_e2m1fn> bfloats{};
  __m512 sums[kRows][2];
  clear(&sums);
  int64_t first = 0;
  for (; count - first >= kStep; first += kStep)
    add_spread<Scale, kBlock, kRows>(bfloats, codes + first / 2, scales + first / kBlock, x + first, pitch, Part{kStep},
                                     sums);
  if (first < count)
    add_spread<Scale, kBlock, kRows>(bfloats, codes + first / 2, scales + first / kBlock, x + first, pitch,
                                     Part{count - first}, sums);
  add_to_totals(sums, totals);
}

template <int Scale, int64_t kBlock>
struct SpreadRows {
  template <int kRows>
  struct Of {
    static constexpr auto run = multiply_rows<Scale, kBlock, kRows>;
  };

  static void multiply(const uint8_t *codes, const uint8_t *scales, const uint16_t *x, int64_t pitch, int64_t count,
                       int64_t rows, double *totals) {
    static constexpr auto kTable = make_table<Of>(std::make_integer_sequence<int, kMostSpreadRows>());
    in_runs_of_rows<kMostSpreadRows>(rows, [&](int64_t first, int64_t some) {
      kTable.at[some](codes, scales, x + first * pitch, pitch, count, totals + first * kColumns);
    });
  }
};

// --- A line of other elements times rows of bfloat16 -----------------------------------------

// 64 positions of a line as bfloat16, in order.
template <int Row>
struct LineElements {
  static constexpr int kBits = kTypes[Row].bits;
  const Bfloats<Row> bfloats{};

  template <class Share>
  DLFP4_INLINE BfloatPair operator()(const uint8_t *codes, int64_t first, Share share) const {
    return bfloats(load_run<kBits, kForWords>(codes + first * kBits / 8, share));
  }
};

template <>
struct LineElements<DLFP4_bfloat16> {
  DLFP4_INLINE BfloatPair operator()(const uint8_t *src, int64_t first, Whole whole) const {
    prefetch<128>(src + 2 * first, whole);
    return {reinterpret_cast<__m512bh>(load_floats<2>(src + 2 * first, whole)),
            reinterpret_cast<__m512bh>(load_floats<2>(src + 2 * first + 64, whole))};
  }

  DLFP4_INLINE BfloatPair operator()(const uint8_t *src, int64_t first, Part part) const {
    const Part rest = {part.count < 32 ? 0 : part.count - 32};
    return {reinterpret_cast<__m512bh>(load_floats<2>(src + 2 * first, part)),
            reinterpret_cast<__m512bh>(load_floats<2>(src + 2 * first + 64, rest))};
  }
};

// Blocks of 32 have a scale each half of a step, and sums of their own; longer ones have one a step.
template <bool kShort, int kRows>
DLFP4_INLINE inline void add_elements(const BfloatPair &line, const HalfScales &scale, int64_t first, const uint16_t *x,
                                      int64_t pitch, __m512 (&sums)[kRows][2]) {
  const __m512 scale0 = scale(first), scale1 = kShort ? scale(first + 32) : scale0;
  each_row<kRows>([&](int r) DLFP4_INLINE {
    const uint16_t *const row = x + r * pitch + first;
    const __m512 half = _mm512_dpbf16_ps(__m512{}, line.first, load_bfloats(row));
    const __m512 rest = _mm512_dpbf16_ps(kShort ? __m512{} : half, line.second, load_bfloats(row + 32));
    if (kShort) sums[r][0] = _mm512_fmadd_ps(half, scale0, sums[r][0]);
    sums[r][1] = _mm512_fmadd_ps(rest, scale1, sums[r][1]);
  });
}

template <int Row, bool kShort, int kRows>
DLFP4_INLINE inline void multiply_steps(const uint8_t *codes, const HalfScales &scale, const uint16_t *x, int64_t pitch,
                                        int64_t count, double *totals) {
  const LineElements<Row> elements;
  __m512 sums[kRows][2];
  clear(&sums);
  int64_t first = 0;
  for (; count - first >= kElementStep; first += kElementStep)
    add_elements<kShort, kRows>(elements(codes, first, Whole()), scale, first, x, pitch, sums);
  if (first < count)
    add_elements<kShort, kRows>(elements(codes, first, Part{count - first}), scale, first, x, pitch, sums);
  add_to_totals(sums, totals);
}

template <int Row>
struct ElementRows {
  template <int kRows>
  struct Of {
    static void run(const uint8_t *codes, const float *scales, int64_t block, const uint16_t *x, int64_t pitch,
                    int64_t count, double *totals) {
      const HalfScales scale(scales, count, block);
      if constexpr (has_blocks(Row, kLeastElementBlock))
        if (block == kLeastElementBlock) return multiply_steps<Row, true, kRows>(codes, scale, x, pitch, count, totals);
      multiply_steps<Row, false, kRows>(codes, scale, x, pitch, count, totals);
    }
  };

  static void multiply(const uint8_t *codes, const float *scales, int64_t block, const uint16_t *x, int64_t pitch,
                       int64_t count, int64_t rows, double *totals) {
    static constexpr auto kTable = make_table<Of>(std::make_integer_sequence<int, kMostElementRows>());
    in_runs_of_rows<kMostElementRows>(rows, [&](int64_t first, int64_t some) {
      kTable.at[some](codes, scales, block, x + first * pitch, pitch, count, totals + first * kColumns);
    });
  }
};

// --- A line of FP4 times rows of integers ----------------------------------------------------

// What 512 positions' scales are worth, in the order of spread_block.
template <int Scale, int64_t kBlock>
struct StepScales;

template <>
struct StepScales<DLFP4_float8_e4m3fn, 16> {
  static constexpr int kVectors = 2;
  const Bfloats<DLFP4_float8_e4m3fn> bfloats{};
  const __m512i order = load(kScalesOf16);

  template <class Share>
  DLFP4_INLINE void operator()(const uint8_t *stored, Share share, __m512 (&scales)[kVectors]) const {
    const __m512i codes = _mm512_castsi256_si512(load_scales<16>(stored, share));
    const __m512i words = reinterpret_cast<__m512i>(bfloats(_mm512_permutexvar_epi8(order, codes)).first);
    scales[0] = _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
    scales[1] = _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(-0x10000)));
  }
};

template <>
struct StepScales<DLFP4_float8_e8m0fnu, 32> {
  static constexpr int kVectors = 1;

  template <class Share>
  DLFP4_INLINE void operator()(const uint8_t *stored, Share share, __m512 (&scales)[kVectors]) const {
    const __m128i codes = _mm256_castsi256_si128(load_scales<32>(stored, share));
    scales[0] = decode_scales<DLFP4_float8_e8m0fnu>(_mm_shuffle_epi8(codes, order_of_32()));
  }
};

// Sums of 16 lanes a vector of products, to a lane a block.
DLFP4_INLINE inline void collapse(const Products &p, __m512i (&blocks)[2]) {
  blocks[0] = add_pairs(p.part[0], p.part[1]);
  blocks[1] = add_pairs(p.part[2], p.part[3]);
}

DLFP4_INLINE inline void collapse(const Products &p, __m512i (&blocks)[1]) {
  const __m512 low = _mm512_castsi512_ps(add_pairs(p.part[0], p.part[1]));
  const __m512 high = _mm512_castsi512_ps(add_pairs(p.part[2], p.part[3]));
  blocks[0] = _mm512_add_epi32(_mm512_castps_si512(_mm512_shuffle_ps(low, high, 0x88)),
                               _mm512_castps_si512(_mm512_shuffle_ps(low, high, 0xDD)));
}

// 512 positions: four vectors of codes. A lane of products sums eight of at most 24 * 127, which a word holds.
template <int Scale, int64_t kBlock, int kRows, class Share>
DLFP4_INLINE inline void add_rounded(__m512i values, const StepScales<Scale, kBlock> &scales_of, const uint8_t *codes,
                                     const uint8_t *stored, const IntegerRows &x, int64_t first, Share share,
                                     __m512 (&sums)[kRows]) {
  constexpr int kScales = StepScales<Scale, kBlock>::kVectors;
  __m512 scales[kScales];
  Products products[kRows];
  scales_of(stored + first / kBlock, share, scales);
  for (int i = 0; i < kVectors; ++i) {
    const __m512i pairs = load_part(codes + first / 2, i, share);
    const __m512i even = _mm512_permutexvar_epi8(pairs, values);
    const __m512i odd = _mm512_permutexvar_epi8(_mm512_srli_epi16(pairs, 4), values);
    for (int r = 0; r < kRows; ++r) {
      const int8_t *const row = x.values + r * x.pitch + first + kSpread * i;
      const __m512i half = _mm512_dpbusd_epi32(_mm512_setzero_si512(), even, _mm512_loadu_si512(row));
      products[r].part[i] = _mm512_dpbusd_epi32(half, odd, _mm512_loadu_si512(row + 64));
    }
  }
  for (int r = 0; r < kRows; ++r) {
    const int64_t at = r * x.block_pitch + first / kBlock;
    __m512i blocks[kScales];
    collapse(products[r], blocks);
    for (int i = 0; i < kScales; ++i) {
      const __m512i sum = _mm512_add_epi32(blocks[i], _mm512_loadu_si512(x.corrections + at + kLanes * i));
      const __m512 of_row = _mm512_loadu_ps(x.scales + at + kLanes * i);
      sums[r] = add_scaled(_mm512_cvtepi32_ps(sum), scales[i], of_row, sums[r]);
    }
  }
}

void spread_codes(const uint8_t *codes, int64_t count, int8_t *x) {
  const __m512i values = load(SignedMagnitudes<DLFP4_float4_e2m1fn>::kValues);
  for (int64_t first = 0; first < count; first += kSpread) {
    const __m512i pairs = load_pairs(codes + first / 2, Part{count - first < kSpread ? count - first : kSpread});
    _mm512_storeu_si512(x + first, _mm512_permutexvar_epi8(pairs, values));
    _mm512_storeu_si512(x + first + kSpread / 2, _mm512_permutexvar_epi8(_mm512_srli_epi16(pairs, 4), values));
  }
}

template <int Scale, int64_t kBlock>
struct RoundedRows {
  template <int kRows>
  struct Of {
    static void run(const uint8_t *codes, const uint8_t *stored, const IntegerRows &x, int64_t count, double *totals) {
      const __m512i values = load(kOffsetValues);
      const StepScales<Scale, kBlock> scales;
      __m512 sums[kRows] = {};
      in_block_steps(count, [&](int64_t first, auto share) DLFP4_INLINE {
        add_rounded<Scale, kBlock, kRows>(values, scales, codes, stored, x, first, share, sums);
      });
      for (int r = 0; r < kRows; ++r) totals[r * kColumns] += add_lanes(sums[r]);
    }
  };

  static void multiply(const uint8_t *codes, const uint8_t *scales, const IntegerRows &x, int64_t count, int64_t rows,
                       double *totals) {
    static constexpr auto kTable = make_table<Of>(std::make_integer_sequence<int, kMostRoundedRows>());
    in_runs_of_rows<kMostRoundedRows>(rows, [&](int64_t first, int64_t some) {
      kTable.at[some](codes, scales, rows_from(x, first), count, totals + first * kColumns);
    });
  }
};

// --- A line of float32 -----------------------------------------------------------------------

template <int kRows>
struct FloatRows {
  static void run(const float *line, const float *x, int64_t pitch, int64_t count, double *totals) {
    __m512 sums[kRows][2];
    clear(&sums);
    for (int64_t k = 0; k < count; k += kFloatStep)
      for (int half = 0; half < 2; ++half) {
        const __m512 values = _mm512_loadu_ps(line + k + kLanes * half);
        each_row<kRows>([&](int r) DLFP4_INLINE {
          sums[r][half] = _mm512_fmadd_ps(values, _mm512_loadu_ps(x + r * pitch + k + kLanes * half), sums[r][half]);
        });
      }
    add_to_totals(sums, totals);
  }
};

void multiply_float_rows(const float *line, const float *x, int64_t pitch, int64_t count, int64_t rows,
                         double *totals) {
  static constexpr auto kTable = make_table<FloatRows>(std::make_integer_sequence<int, kMostFloatRows>());
  in_runs_of_rows<kMostFloatRows>(rows, [&](int64_t first, int64_t some) {
    kTable.at[some](line, x + first * pitch, pitch, count, totals + first * kColumns);
  });
}

// --- The table -------------------------------------------------------------------------------

constexpr bool has_line_elements(int row) { return has_element_tiles(row) || row == DLFP4_bfloat16; }

template <int Key, int Scale, int64_t kBlock>
void add_fp4_rows(LineKernels *kernels) {
  if constexpr (is_fp4(kBlockKeys[Key], Scale, kBlock))
    kernels->multiply_spread[Key] = SpreadRows<Scale, kBlock>::multiply;
}

template <int Key>
void add_key(LineKernels *kernels) {
  add_fp4_rows<Key, DLFP4_float8_e4m3fn, 16>(kernels);
  add_fp4_rows<Key, DLFP4_float8_e4m3fn, 32>(kernels);
  add_fp4_rows<Key, DLFP4_float8_e8m0fnu, 16>(kernels);
  add_fp4_rows<Key, DLFP4_float8_e8m0fnu, 32>(kernels);
  if constexpr (is_fp4(kBlockKeys[Key], DLFP4_float8_e4m3fn, 16))
    kernels->multiply_rounded[Key] = RoundedRows<DLFP4_float8_e4m3fn, 16>::multiply;
  if constexpr (is_fp4(kBlockKeys[Key], DLFP4_float8_e8m0fnu, 32))
    kernels->multiply_rounded[Key] = RoundedRows<DLFP4_float8_e8m0fnu, 32>::multiply;
}

template <int... Row, int... Key>
void add_lines(LineKernels *kernels, std::integer_sequence<int, Row...>, std::integer_sequence<int, Key...>) {
  const auto add = [&](auto row) {
    if constexpr (has_line_elements(row())) kernels->multiply_elements[row()] = ElementRows<row()>::multiply;
  };
  (add(std::integral_constant<int, Row>()), ...);
  (add_key<Key>(kernels), ...);
  kernels->spread_codes = spread_codes;
  kernels->most_bfloat_rows = 5;
  kernels->most_rounded_rows = 4;
  kernels->most_float_rows = 16;
  kernels->multiply_floats = multiply_float_rows;
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_AVX512_LINES_H_
