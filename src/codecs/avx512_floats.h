// 64 floats of float16, bfloat16, float32 or float64 as float32, for the AVX-512 kernels alone.
// Layout: floats in order, 64 a step.
// Trick: bfloat16 is rounded to in words, whose lower halves decide whether to carry.
#ifndef DLFP4_SRC_CODECS_AVX512_FLOATS_H_
#define DLFP4_SRC_CODECS_AVX512_FLOATS_H_

#include "host/simd/avx512.h"
#include "rules/encode_rule.h"
#include "rules/numerics.h"

namespace dlfp4 {
namespace {

// --- 64 floats as float32 --------------------------------------------------------------------

__m512i all(uint32_t value) { return _mm512_set1_epi32(static_cast<int>(value)); }
__m512 all_floats(uint32_t bits) { return _mm512_castsi512_ps(all(bits)); }

struct Floats {
  __m512 part[4];
};

__m512 join(__m256 low, __m256 high) { return _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1); }
__m512i join(__m256i low, __m256i high) { return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1); }

// Rounds to odd: towards zero, and then sets the last bit unless that was exact. Rounding the result to fewer bits
// gives the same as rounding the double.
__m256 round_to_odd(__m512d value) {
  const __m256 rounded = _mm512_cvt_roundpd_ps(value, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
  const __mmask8 inexact = _mm512_cmp_pd_mask(_mm512_cvtps_pd(rounded), value, _CMP_NEQ_UQ);
  const __m256i bits = _mm256_castps_si256(rounded);
  return _mm256_castsi256_ps(_mm256_mask_or_epi32(bits, inexact, bits, _mm256_set1_epi32(1)));
}

__m256 round_to_even(__m512d value) {
  return _mm512_cvt_roundpd_ps(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

__m512 widen_bfloat16(__m256i words) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
}

// bfloat16 and float16 widen exactly; float64 is rounded to nearest, or to odd.
template <int Src, bool kToOdd = true>
Floats load_floats(const uint8_t *src) {
  Floats floats;
  for (int i = 0; i < 4; ++i) {
    if constexpr (Src == DLFP4_float64) {
      const __m512d low = _mm512_loadu_pd(src + 128 * i), high = _mm512_loadu_pd(src + 128 * i + 64);
      floats.part[i] =
          kToOdd ? join(round_to_odd(low), round_to_odd(high)) : join(round_to_even(low), round_to_even(high));
    } else if constexpr (Src == DLFP4_float32) {
      floats.part[i] = _mm512_loadu_ps(src + 64 * i);
    } else {
      const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(src + 32 * i));
      floats.part[i] = Src == DLFP4_float16 ? _mm512_cvtph_ps(words) : widen_bfloat16(words);
    }
  }
  return floats;
}

template <class Test>
__mmask64 test_floats(const Floats &floats, Test test) {
  __mmask64 result = 0;
  for (int i = 0; i < 4; ++i) result |= static_cast<__mmask64>(test(floats.part[i])) << 16 * i;
  return result;
}

bool has_nan(const Floats &floats) {
  return _mm512_cmp_ps_mask(floats.part[0], floats.part[1], _CMP_UNORD_Q) |
         _mm512_cmp_ps_mask(floats.part[2], floats.part[3], _CMP_UNORD_Q);
}

__mmask16 nans_of(__m512 floats) { return _mm512_cmp_ps_mask(floats, floats, _CMP_UNORD_Q); }

// --- To 16 bits ------------------------------------------------------------------------------

template <int First>
constexpr Constant kEveryOtherWord = make_constant([](int i) { return i % 2 ? 0 : i + First; });

__m512i upper_words(__m512i low, __m512i high) {
  return _mm512_permutex2var_epi16(low, load(kEveryOtherWord<1>), high);
}

// To nearest, ties to even; a NaN must have no payload in its lower half.
__m512i round_to_bfloat16(__m512 low, __m512 high) {
  const __m512i a = _mm512_castps_si512(low), b = _mm512_castps_si512(high), one = _mm512_set1_epi16(1);
  const __m512i upper = upper_words(a, b);
  const __m512i lower = _mm512_permutex2var_epi16(a, load(kEveryOtherWord<0>), b);
  const __m512i rest = _mm512_adds_epu16(lower, _mm512_and_si512(upper, one));
  return _mm512_mask_add_epi16(upper, _mm512_cmpgt_epu16_mask(rest, _mm512_set1_epi16(-0x8000)), upper, one);
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_CODECS_AVX512_FLOATS_H_
