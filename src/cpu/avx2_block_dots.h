// Sums of products of FP4 in blocks with scales, for the AVX2 kernels alone.
// Layout: packed codes and stored scales in order; eight blocks a step.
// Trick: sums of blocks are collapsed in the order in which lanes leave them, and scales are put into that order.
#ifndef DLFP4_SRC_CPU_AVX2_BLOCK_DOTS_H_
#define DLFP4_SRC_CPU_AVX2_BLOCK_DOTS_H_

#include "avx2_dots.h"

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
  const __m256i lowest =
      _mm256_and_si256(_mm256_cmpeq_epi32(codes, _mm256_setzero_si256()), _mm256_set1_epi32(1 << 22));
  const __m256i nan = _mm256_cmpeq_epi32(codes, _mm256_set1_epi32(255));
  const __m256i quiet = _mm256_and_si256(nan, _mm256_set1_epi32(1 << 22));
  return _mm256_castsi256_ps(_mm256_or_si256(_mm256_slli_epi32(codes, 23), _mm256_or_si256(lowest, quiet)));
}

__m128i load_eight(const uint8_t *src) { return _mm_loadl_epi64(reinterpret_cast<const __m128i *>(src)); }

// Calls step(a, a's scales, b, b's scales) for eight blocks at a time, the last ones followed by zeros.
template <int64_t kBlock, class Step>
DLFP4_ALWAYS_INLINE inline void each_eight(const uint8_t *a, const uint8_t *a_scales, const uint8_t *b,
                                           const uint8_t *b_scales, int64_t count, Step step) {
  constexpr int64_t kStep = 8 * kBlock;
  int64_t first = 0;
  for (; count - first >= kStep; first += kStep)
    step(a + first / 2, a_scales + first / kBlock, b + first / 2, b_scales + first / kBlock);
  if (first == count) return;
  uint8_t left[kStep / 2] = {}, right[kStep / 2] = {}, of_left[8] = {}, of_right[8] = {};
  const size_t bytes = static_cast<size_t>(count - first) / 2, blocks = static_cast<size_t>((count - first) / kBlock);
  memcpy(left, a + first / 2, bytes);
  memcpy(right, b + first / 2, bytes);
  memcpy(of_left, a_scales + first / kBlock, blocks);
  memcpy(of_right, b_scales + first / kBlock, blocks);
  step(left, of_left, right, of_right);
}

// After pairs are added, 128 bits l hold blocks 2 l, 2 l + 1 of the first vector, then of the second.
double sum_two_level(const uint8_t *a, const uint8_t *a_scales, const uint8_t *b, const uint8_t *b_scales,
                     int64_t count) {
  const __m128i order = _mm_setr_epi8(0, -1, 1, -1, 4, -1, 5, -1, 2, -1, 3, -1, 6, -1, 7, -1);
  __m256 sums = _mm256_setzero_ps();
  each_eight<16>(a, a_scales, b, b_scales, count,
                 [&](const uint8_t *x, const uint8_t *x_scales, const uint8_t *y, const uint8_t *y_scales)
                     DLFP4_ALWAYS_INLINE {
                       const __m256i first = add_pairs(multiply_fp4(x, y));
                       const __m256i second = add_pairs(multiply_fp4(x + 32, y + 32));
                       const __m256 blocks = _mm256_cvtepi32_ps(add_pairs(_mm256_packs_epi32(first, second)));
                       const __m256 scales = _mm256_mul_ps(decode_e4m3(_mm_shuffle_epi8(load_eight(x_scales), order)),
                                                           decode_e4m3(_mm_shuffle_epi8(load_eight(y_scales), order)));
                       sums = _mm256_fmadd_ps(blocks, scales, sums);
                     });
  return add_lanes(sums) / 4;
}

// 128 bits l hold block l of each of four vectors. The smaller scale goes first: what it makes is exact, or finite.
double sum_power(const uint8_t *a, const uint8_t *a_scales, const uint8_t *b, const uint8_t *b_scales, int64_t count) {
  const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, -1, -1, -1, -1, -1, -1, -1, -1);
  __m256 sums = _mm256_setzero_ps();
  each_eight<32>(a, a_scales, b, b_scales, count,
                 [&](const uint8_t *x, const uint8_t *x_scales, const uint8_t *y, const uint8_t *y_scales)
                     DLFP4_ALWAYS_INLINE {
                       const __m256i p0 = multiply_fp4(x, y), p1 = multiply_fp4(x + 32, y + 32);
                       const __m256i p2 = multiply_fp4(x + 64, y + 64), p3 = multiply_fp4(x + 96, y + 96);
                       const __m256i words = _mm256_hadd_epi16(_mm256_hadd_epi16(p0, p1), _mm256_hadd_epi16(p2, p3));
                       const __m256i left = _mm256_cvtepu8_epi32(_mm_shuffle_epi8(load_eight(x_scales), order));
                       const __m256i right = _mm256_cvtepu8_epi32(_mm_shuffle_epi8(load_eight(y_scales), order));
                       const __m256 whole = _mm256_mul_ps(_mm256_cvtepi32_ps(add_pairs(words)), _mm256_set1_ps(0.25f));
                       const __m256 blocks = _mm256_mul_ps(whole, decode_e8m0(_mm256_min_epu32(left, right)));
                       sums = _mm256_fmadd_ps(blocks, decode_e8m0(_mm256_max_epu32(left, right)), sums);
                     });
  return add_lanes(sums);
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_CPU_AVX2_BLOCK_DOTS_H_
