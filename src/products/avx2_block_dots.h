// Sums of products of FP4 in blocks with scales, for the AVX2 kernels alone.
// Layout: packed codes and stored scales in order; eight blocks a step.
// Trick: sums of blocks are collapsed in the order in which lanes leave them, and scales are put into that order.
// Scales that are plain, as nearly all are, cost less; others have loops of their own.
#ifndef DLFP4_SRC_PRODUCTS_AVX2_BLOCK_DOTS_H_
#define DLFP4_SRC_PRODUCTS_AVX2_BLOCK_DOTS_H_

#include "avx2_dots.h"
#include "host/simd/floats.h"

namespace dlfp4 {
namespace {

using Fp4 = Nibble<DLFP4_float4_e2m1fn>;

__m256i multiply_fp4(const uint8_t *a, const uint8_t *b) { return Fp4::nibbles(load_32_bytes(a), load_32_bytes(b)); }

// Eight codes of float8_e4m3fn in the low bytes of words, as floats.
__m256 decode_e4m3(__m128i codes) {
  const __m128i sign = _mm_slli_epi16(_mm_and_si128(codes, _mm_set1_epi16(0x80)), 8);
  const __m128i magnitude = _mm_and_si128(codes, _mm_set1_epi16(0x7F));
  const __m128i nan = _mm_and_si128(_mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7F)), _mm_set1_epi16(0x7C00));
  const __m128i half = _mm_or_si128(_mm_or_si128(sign, nan), _mm_slli_epi16(magnitude, 7));
  return _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256));
}

// Eight codes of float8_e8m0fnu.
__m256 decode_e8m0(__m256i codes) {
  return reinterpret_cast<__m256>(bits_of_powers(reinterpret_cast<Avx2::U32>(codes)));
}

// sum + blocks * a * b. Of scales that may be far the smaller one goes first: what powers make is exact then, or
// finite. The order of the operands keeps NaN of either.
template <bool kFar>
__m256 add_scaled(__m256 blocks, __m256 a, __m256 b, __m256 sum) {
  const __m256 first = kFar ? _mm256_min_ps(a, b) : a, second = kFar ? _mm256_max_ps(b, a) : b;
  return _mm256_fmadd_ps(_mm256_mul_ps(blocks, first), second, sum);
}

__m128i load_eight(const uint8_t *src) { return _mm_loadl_epi64(reinterpret_cast<const __m128i *>(src)); }

// The sum of sum_eight(a, b) * scale_of(a's scales, b's).
template <int64_t kBlock, class SumEight, class ScaleOf>
DLFP4_ALWAYS_INLINE inline double sum_scaled_eights(const uint8_t *a, const uint8_t *a_scales, const uint8_t *b,
                                                    const uint8_t *b_scales, int64_t count, SumEight sum_eight,
                                                    ScaleOf scale_of) {
  __m256 sums = _mm256_setzero_ps();
  each_eight<kBlock>(
      a, a_scales, b, b_scales, count,
      [&](const uint8_t *x, const uint8_t *x_scales, const uint8_t *y, const uint8_t *y_scales)
          DLFP4_ALWAYS_INLINE { sums = _mm256_fmadd_ps(sum_eight(x, y), scale_of(x_scales, y_scales), sums); });
  return add_lanes(sums);
}

// --- Eight blocks ----------------------------------------------------------------------------

// As floats in quarters. Of blocks of 16, after pairs are added, 128 bits l hold blocks 2 l, 2 l + 1 of the first
// vector, then of the second; of blocks of 32, block l of each of four vectors.
template <int64_t kBlock>
DLFP4_ALWAYS_INLINE inline __m256 sum_eight(const uint8_t *a, const uint8_t *b) {
  static_assert(kBlock == 16 || kBlock == 32, "vectors are collapsed for blocks of 16 or 32");
  if constexpr (kBlock == 16) {
    const __m256i first = add_pairs(multiply_fp4(a, b)), second = add_pairs(multiply_fp4(a + 32, b + 32));
    return _mm256_cvtepi32_ps(add_pairs(_mm256_packs_epi32(first, second)));
  } else {
    const __m256i p0 = multiply_fp4(a, b), p1 = multiply_fp4(a + 32, b + 32);
    const __m256i p2 = multiply_fp4(a + 64, b + 64), p3 = multiply_fp4(a + 96, b + 96);
    const __m256i words = _mm256_hadd_epi16(_mm256_hadd_epi16(p0, p1), _mm256_hadd_epi16(p2, p3));
    return _mm256_cvtepi32_ps(add_pairs(words));
  }
}

// Bytes of eight scales in that order, each the low one of a word.
template <int64_t kBlock>
DLFP4_ALWAYS_INLINE inline __m128i order_in_words(__m128i scales) {
  const __m128i order = kBlock == 16 ? _mm_setr_epi8(0, -1, 1, -1, 4, -1, 5, -1, 2, -1, 3, -1, 6, -1, 7, -1)
                                     : _mm_setr_epi8(0, -1, 2, -1, 4, -1, 6, -1, 1, -1, 3, -1, 5, -1, 7, -1);
  return _mm_shuffle_epi8(scales, order);
}

// The same, each the low one of a dword.
template <int64_t kBlock>
DLFP4_ALWAYS_INLINE inline __m256i order_in_dwords(__m128i scales) {
  const __m128i order = kBlock == 16 ? _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, -1, -1, -1, -1, -1, -1, -1, -1)
                                     : _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, -1, -1, -1, -1, -1, -1, -1, -1);
  return _mm256_cvtepu8_epi32(_mm_shuffle_epi8(scales, order));
}

// --- Scales of float8_e4m3fn -----------------------------------------------------------------

template <int64_t kBlock>
double sum_two_level_by_any(const uint8_t *a, const uint8_t *a_scales, const uint8_t *b, const uint8_t *b_scales,
                            int64_t count) {
  const auto scale_of = [](const uint8_t *x, const uint8_t *y) DLFP4_ALWAYS_INLINE {
    return _mm256_mul_ps(decode_e4m3(order_in_words<kBlock>(load_eight(x))),
                         decode_e4m3(order_in_words<kBlock>(load_eight(y))));
  };
  return sum_scaled_eights<kBlock>(a, a_scales, b, b_scales, count, sum_eight<kBlock>, scale_of) / 4;
}

// A finite scale that is not negative, shifted, is a float16 of 2^-8 of its value.
template <int64_t kBlock>
double sum_two_level(const uint8_t *a, const uint8_t *a_scales, const uint8_t *b, const uint8_t *b_scales,
                     int64_t count) {
  constexpr uint8_t kLargest = 0x7E;
  if (!are_between(0, kLargest, a_scales, count / kBlock) || !are_between(0, kLargest, b_scales, count / kBlock))
    return sum_two_level_by_any<kBlock>(a, a_scales, b, b_scales, count);
  const auto decode = [](const uint8_t *scales) DLFP4_ALWAYS_INLINE {
    return _mm256_cvtph_ps(_mm_slli_epi16(order_in_words<kBlock>(load_eight(scales)), 7));
  };
  const auto scale_of = [=](const uint8_t *x, const uint8_t *y)
                            DLFP4_ALWAYS_INLINE { return _mm256_mul_ps(decode(x), decode(y)); };
  return sum_scaled_eights<kBlock>(a, a_scales, b, b_scales, count, sum_eight<kBlock>, scale_of) * (256 * 256 / 4);
}

// --- Scales of float8_e8m0fnu ----------------------------------------------------------------

template <int64_t kBlock>
double sum_power_by_any(const uint8_t *a, const uint8_t *a_scales, const uint8_t *b, const uint8_t *b_scales,
                        int64_t count) {
  __m256 sums = _mm256_setzero_ps();
  each_eight<kBlock>(
      a, a_scales, b, b_scales, count,
      [&](const uint8_t *x, const uint8_t *x_scales, const uint8_t *y, const uint8_t *y_scales) DLFP4_ALWAYS_INLINE {
        const __m256 left = decode_e8m0(order_in_dwords<kBlock>(load_eight(x_scales)));
        const __m256 right = decode_e8m0(order_in_dwords<kBlock>(load_eight(y_scales)));
        sums = add_scaled<true>(sum_eight<kBlock>(x, y), left, _mm256_mul_ps(right, _mm256_set1_ps(0.25f)), sums);
      });
  return add_lanes(sums);
}

template <int64_t kBlock>
double sum_power(const uint8_t *a, const uint8_t *a_scales, const uint8_t *b, const uint8_t *b_scales, int64_t count) {
  if (!are_plain_powers(a_scales, count / kBlock) || !are_plain_powers(b_scales, count / kBlock))
    return sum_power_by_any<kBlock>(a, a_scales, b, b_scales, count);
  const __m128i bias = _mm_set1_epi8(static_cast<char>(kQuarterBias));
  const auto scale_of = [=](const uint8_t *x, const uint8_t *y) DLFP4_ALWAYS_INLINE {
    const __m128i exponents = _mm_sub_epi8(_mm_add_epi8(load_eight(x), load_eight(y)), bias);
    return _mm256_castsi256_ps(_mm256_slli_epi32(order_in_dwords<kBlock>(exponents), 23));
  };
  return sum_scaled_eights<kBlock>(a, a_scales, b, b_scales, count, sum_eight<kBlock>, scale_of);
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_AVX2_BLOCK_DOTS_H_
