// Sums of products of plain elements, for the AVX-512 kernels alone.
// Layout: codes one a byte or packed; floats in order; a vector of codes, and of the other side's, at a time.
// Trick: integers go through vpdpbusd as magnitudes of a, and values of b with the signs of a turned into them; float8
// becomes bfloat16 by tables of bytes and goes through vdpbf16ps.
#ifndef DLFP4_SRC_PRODUCTS_AVX512_DOTS_H_
#define DLFP4_SRC_PRODUCTS_AVX512_DOTS_H_

#include "host/simd/avx512.h"
#include "kernels.h"
#include "rules/sums.h"

namespace dlfp4 {
namespace {

// --- Adding up -------------------------------------------------------------------------------

int64_t add_lanes(__m512i sums) {
  const __m512i low = _mm512_cvtepi32_epi64(_mm512_castsi512_si256(sums));
  return _mm512_reduce_add_epi64(_mm512_add_epi64(low, _mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64(sums, 1))));
}

double add_lanes(__m512 sums) {
  const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(sums));
  return _mm512_reduce_add_pd(_mm512_add_pd(low, _mm512_cvtps_pd(_mm512_extractf32x8_ps(sums, 1))));
}

__m512i add(__m512i a, __m512i b) { return _mm512_add_epi32(a, b); }
__m512 add(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }

// Calls sum = step(sum, first, Whole or Part) for kStep elements at a time, with four sums in turn, and adds up.
template <class Vector, int64_t kStep, class Step>
DLFP4_INLINE inline auto sum_steps(int64_t count, Step step) {
  Vector sum0 = {}, sum1 = {}, sum2 = {}, sum3 = {};
  int64_t first = 0;
  for (; count - first >= 4 * kStep; first += 4 * kStep) {
    sum0 = step(sum0, first, Whole());
    sum1 = step(sum1, first + kStep, Whole());
    sum2 = step(sum2, first + 2 * kStep, Whole());
    sum3 = step(sum3, first + 3 * kStep, Whole());
  }
  for (; count - first >= kStep; first += kStep) sum0 = step(sum0, first, Whole());
  if (first < count) sum1 = step(sum1, first, Part{count - first});
  return add_lanes(add(add(sum0, sum1), add(sum2, sum3)));
}

// --- Integers: tables ------------------------------------------------------------------------

// Elements whose products are summed in 32 bits: at most 2^17 / 64 / 4 times 2 * 2 products a lane, of 448 * 448.
constexpr int64_t kMostInLanes = 1 << 17;

// Byte `byte` of code + offset, for each of 64 codes; those of fewer bits are repeated, so that noise does not matter.
constexpr Constant make_values(int row, int offset, int byte) {
  Constant table = {};
  for (int i = 0; i < 64; ++i) {
    const int value = integer_of(row, static_cast<uint64_t>(i) & low_bits(kTypes[row].bits));
    table.byte[i] = static_cast<uint8_t>((value + offset) >> 8 * byte);
  }
  return table;
}

constexpr Constant make_magnitudes(int row) {
  Constant table = {};
  for (int i = 0; i < 64; ++i) {
    const int value = integer_of(row, static_cast<uint64_t>(i) & low_bits(kTypes[row].bits));
    table.byte[i] = static_cast<uint8_t>(value < 0 ? -value : value);
  }
  return table;
}

// --- Integers: a vector of codes, a byte each ------------------------------------------------

// FP4, and FP6 of values that fit a byte. `both` is the sign of a byte's only code, or of both its codes.
template <int Row>
struct SignedMagnitudes {
  static constexpr Constant kMagnitudes = make_magnitudes(Row), kValues = make_values(Row, 0, 0);
  static constexpr int kSign = 1 << (kTypes[Row].bits - 1);
  const __m512i magnitudes = load(kMagnitudes), values = load(kValues);

  __m512i turn(__m512i a, __m512i b, int sign) const {  // b ^ (a & sign)
    return _mm512_ternarylogic_epi64(b, a, _mm512_set1_epi8(static_cast<char>(sign)), 0x78);
  }

  __m512i multiply(__m512i sum, __m512i a, __m512i turned) const {
    return _mm512_dpbusd_epi32(sum, _mm512_permutexvar_epi8(a, magnitudes), _mm512_permutexvar_epi8(turned, values));
  }

  __m512i bytes(__m512i sum, __m512i a, __m512i b) const { return multiply(sum, a, turn(a, b, kSign)); }

  __m512i nibbles(__m512i sum, __m512i a, __m512i b) const {
    const __m512i turned = turn(a, b, 0x88);
    sum = multiply(sum, a, turned);
    return multiply(sum, _mm512_srli_epi16(a, 4), _mm512_srli_epi16(turned, 4));
  }
};

// a + offset, which has no sign, times b; what that is too much is the offset times b.
template <int Row>
struct Offsets {
  static constexpr int kOffset = is_signed_integer(Row) ? 1 << (kTypes[Row].bits - 1) : 0;
  static constexpr Constant kShifted = make_values(Row, kOffset, 0), kValues = make_values(Row, 0, 0);
  const __m512i shifted = load(kShifted), values = load(kValues);

  __m512i multiply(__m512i sum, __m512i a, __m512i b) const {
    sum = _mm512_dpbusd_epi32(sum, a, b);
    if constexpr (kOffset == 0) return sum;
    const __m512i offset = _mm512_set1_epi8(static_cast<char>(kOffset));
    return _mm512_sub_epi32(sum, _mm512_dpbusd_epi32(_mm512_setzero_si512(), offset, b));
  }

  __m512i bytes(__m512i sum, __m512i a, __m512i b) const {
    if constexpr (Row == DLFP4_int8) return multiply(sum, _mm512_xor_si512(a, _mm512_set1_epi8(-128)), b);
    return multiply(sum, _mm512_permutexvar_epi8(a, shifted), _mm512_permutexvar_epi8(b, values));
  }

  __m512i nibbles(__m512i sum, __m512i a, __m512i b) const {
    return bytes(bytes(sum, a, b), _mm512_srli_epi16(a, 4), _mm512_srli_epi16(b, 4));
  }
};

// FP6 of values that need two bytes, in whatever order.
template <int Row>
struct WideValues {
  static constexpr Constant kLow = make_values(Row, 0, 0), kHigh = make_values(Row, 0, 1);
  const __m512i low = load(kLow), high = load(kHigh);

  __m512i bytes(__m512i sum, __m512i a, __m512i b) const {
    const __m512i a_low = _mm512_permutexvar_epi8(a, low), a_high = _mm512_permutexvar_epi8(a, high);
    const __m512i b_low = _mm512_permutexvar_epi8(b, low), b_high = _mm512_permutexvar_epi8(b, high);
    sum = _mm512_dpwssd_epi32(sum, _mm512_unpacklo_epi8(a_low, a_high), _mm512_unpacklo_epi8(b_low, b_high));
    return _mm512_dpwssd_epi32(sum, _mm512_unpackhi_epi8(a_low, a_high), _mm512_unpackhi_epi8(b_low, b_high));
  }
};

template <int Row>
using Integers = std::conditional_t<Row == DLFP4_float6_e3m2fn, WideValues<Row>,
                                    std::conditional_t<is_float(kTypes[Row]), SignedMagnitudes<Row>, Offsets<Row>>>;

// --- Integers: kernels -----------------------------------------------------------------------

// 64 codes to a byte each; those beyond a part are zero, which a product needs of one side.
template <int Bits>
__m512i load_clean(const uint8_t *src, Whole whole) {
  return load_codes<Bits, kInOrder>(src, whole);
}

template <int Bits>
__m512i load_clean(const uint8_t *src, Part part) {
  return _mm512_maskz_mov_epi8(first_bytes(part.count), load_codes<Bits, kInOrder>(src, part));
}

// 64 bytes of 4-bit codes, the same.
__m512i load_pairs(const uint8_t *src, Whole) { return _mm512_loadu_si512(src); }

__m512i load_pairs(const uint8_t *src, Part part) {
  const __mmask64 odd = first_bytes((part.count + 1) / 2) & ~first_bytes(part.count / 2);
  const __m512i pairs = _mm512_maskz_loadu_epi8(first_bytes((part.count + 1) / 2), src);
  return _mm512_mask_and_epi32(pairs, 0xFFFF, pairs,
                               _mm512_mask_mov_epi8(_mm512_set1_epi8(-1), odd, _mm512_set1_epi8(15)));
}

template <class Sum>
int64_t in_pieces(int64_t count, Sum sum) {
  int64_t total = 0;
  for (int64_t first = 0; first < count; first += kMostInLanes)
    total += sum(first, count - first < kMostInLanes ? count - first : kMostInLanes);
  return total;
}

template <int Row, int Bits>
int64_t sum_bytes(const uint8_t *a, const uint8_t *b, int64_t count) {
  const Integers<Row> integers;
  return in_pieces(count, [&](int64_t start, int64_t elements) {
    const uint8_t *const left = a + start * Bits / 8, *const right = b + start * Bits / 8;
    return sum_steps<__m512i, 64>(elements, [&](__m512i sum, int64_t first, auto share) DLFP4_INLINE {
      const int64_t at = first * Bits / 8;
      return integers.bytes(sum, load_codes<Bits, kInOrder>(left + at, share), load_clean<Bits>(right + at, share));
    });
  });
}

template <int Row>
int64_t sum_nibbles(const uint8_t *a, const uint8_t *b, int64_t count) {
  const Integers<Row> integers;
  return in_pieces(count, [&](int64_t start, int64_t elements) {
    const uint8_t *const left = a + start / 2, *const right = b + start / 2;
    return sum_steps<__m512i, 128>(elements, [&](__m512i sum, int64_t first, auto share) DLFP4_INLINE {
      return integers.nibbles(sum, load_pairs(left + first / 2, share), load_pairs(right + first / 2, share));
    });
  });
}

// --- Floats ----------------------------------------------------------------------------------

// The bytes of the bfloat16 that each code is worth; by half the codes where the highest bit is the sign alone.
template <int Row>
struct BfloatTable {
  uint8_t low[256], high[256];
};

template <int Row>
constexpr BfloatTable<Row> make_bfloat_table() {
  BfloatTable<Row> table = {};
  for (uint64_t code = 0; code < 256; ++code) {
    const uint64_t value = convert(kTypes[Row], kTypes[DLFP4_bfloat16], code, {DLFP4_NEAREST_EVEN, false}, {0, 0, 0});
    table.low[code] = static_cast<uint8_t>(value);
    table.high[code] = static_cast<uint8_t>(value >> 8);
  }
  return table;
}

struct BfloatPair {
  __m512bh first, second;
};

// 64 codes of at most 8 bits to bfloat16. With codes in the order kForWords the results are in order.
template <int Row>
struct Bfloats {
  static constexpr BfloatTable<Row> kTable = make_bfloat_table<Row>();
  static constexpr int kSize = kTypes[Row].bits < 8 ? 64 : kTypes[Row].specials == DLFP4_FNUZ ? 256 : 128;
  const Lookup<kSize> low{kTable.low}, high{kTable.high};

  BfloatPair operator()(__m512i codes) const {
    __m512i highest = high(codes);
    if constexpr (kSize == 128)  // high | (codes & 0x80)
      highest = _mm512_ternarylogic_epi64(highest, codes, _mm512_set1_epi8(-128), 0xF8);
    const __m512i lowest = low(codes);
    return {reinterpret_cast<__m512bh>(_mm512_unpacklo_epi8(lowest, highest)),
            reinterpret_cast<__m512bh>(_mm512_unpackhi_epi8(lowest, highest))};
  }
};

template <int Row>
double sum_float8(const uint8_t *a, const uint8_t *b, int64_t count) {
  const Bfloats<Row> bfloats{};
  return sum_steps<__m512, 64>(count, [&](__m512 sum, int64_t first, auto share) DLFP4_INLINE {
    const BfloatPair left = bfloats(load_codes<8, kInOrder>(a + first, share));
    const BfloatPair right = bfloats(load_codes<8, kInOrder>(b + first, share));
    return _mm512_dpbf16_ps(_mm512_dpbf16_ps(sum, left.first, right.first), left.second, right.second);
  });
}

// A vector of floats of `Bytes` each; zeros beyond a part.
template <int Bytes>
__m512i load_floats(const uint8_t *src, Whole) {
  return _mm512_loadu_si512(src);
}

template <int Bytes>
__m512i load_floats(const uint8_t *src, Part part) {
  return _mm512_maskz_loadu_epi8(first_bytes(part.count * Bytes), src);
}

double sum_bfloat16(const uint8_t *a, const uint8_t *b, int64_t count) {
  return sum_steps<__m512, 32>(count, [=](__m512 sum, int64_t first, auto share) DLFP4_INLINE {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(load_floats<2>(a + 2 * first, share)),
                            reinterpret_cast<__m512bh>(load_floats<2>(b + 2 * first, share)));
  });
}

__m512 widen_half(__m512i halves) { return _mm512_cvtph_ps(_mm512_castsi512_si256(halves)); }

double sum_float16(const uint8_t *a, const uint8_t *b, int64_t count) {
  return sum_steps<__m512, 16>(count, [=](__m512 sum, int64_t first, auto share) DLFP4_INLINE {
    if constexpr (std::is_same_v<decltype(share), Whole>) {
      const __m256i left = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(a + 2 * first));
      const __m256i right = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(b + 2 * first));
      return _mm512_fmadd_ps(_mm512_cvtph_ps(left), _mm512_cvtph_ps(right), sum);
    } else {
      const __m512i left = load_floats<2>(a + 2 * first, share), right = load_floats<2>(b + 2 * first, share);
      return _mm512_fmadd_ps(widen_half(left), widen_half(right), sum);
    }
  });
}

double sum_float32(const uint8_t *a, const uint8_t *b, int64_t count) {
  return sum_steps<__m512, 16>(count, [=](__m512 sum, int64_t first, auto share) DLFP4_INLINE {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(load_floats<4>(a + 4 * first, share)),
                           _mm512_castsi512_ps(load_floats<4>(b + 4 * first, share)), sum);
  });
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_AVX512_DOTS_H_
