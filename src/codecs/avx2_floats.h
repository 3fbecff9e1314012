// Between float16, bfloat16, float32 and float64, for the AVX2 kernels alone.
// Layout: floats in order on both sides, 32 a step.
// Trick: everything is a float32 on the way, exactly; the processor's own treatment of NaNs is put right where it
// counts.
#ifndef DLFP4_SRC_CODECS_AVX2_FLOATS_H_
#define DLFP4_SRC_CODECS_AVX2_FLOATS_H_

#include "avx2_decode.h"
#include "avx2_encode.h"
#include "host/simd/floats.h"
#include "kernels.h"

namespace dlfp4 {
namespace {

// --- To 16 bits ------------------------------------------------------------------------------

// Sixteen dwords as words, in order; none is above 16 bits.
__m256i narrow_dwords(__m256i low, __m256i high) { return outer_quarters_first(_mm256_packus_epi32(low, high)); }

Avx2::U32 dwords(__m256i vector) { return reinterpret_cast<Avx2::U32>(vector); }
Avx2::U32 bits_of(__m256 floats) { return reinterpret_cast<Avx2::U32>(floats); }

__m256i narrow_dwords(Avx2::U32 low, Avx2::U32 high) {
  return narrow_dwords(reinterpret_cast<__m256i>(low), reinterpret_cast<__m256i>(high));
}

template <int Dst>
__m256i round_to_words(__m256 low, __m256 high) {
  if constexpr (Dst == DLFP4_float16)
    return _mm256_set_m128i(_mm256_cvtps_ph(high, _MM_FROUND_TO_NEAREST_INT),
                            _mm256_cvtps_ph(low, _MM_FROUND_TO_NEAREST_INT));
  return narrow_dwords(round_to_bfloat16(bits_of(low)), round_to_bfloat16(bits_of(high)));
}

template <int Src, int Dst>
__attribute__((noinline)) __m256i put_nans(__m256i words, __m256 low, __m256 high) {
  const __m256i low_words = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(words));
  const __m256i high_words = _mm256_cvtepu16_epi32(upper(words));
  return narrow_dwords(put_nans<Src, Dst>(dwords(low_words), bits_of(low)),
                       put_nans<Src, Dst>(dwords(high_words), bits_of(high)));
}

// --- Kernels ---------------------------------------------------------------------------------

__attribute__((noinline)) __m256 restore_payloads(__m256 floats, __m128i words) {
  return reinterpret_cast<__m256>(restore_payloads(bits_of(floats), dwords(_mm256_cvtepu16_epi32(words))));
}

// Eight floats.
template <int Dst, bool kStream>
void store_floats(uint8_t *dst, __m256 floats) {
  if constexpr (Dst == DLFP4_float32) return store_vector<kStream>(dst, _mm256_castps_si256(floats));
  const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(floats));
  const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(floats, 1));
  store_vector<kStream>(dst, _mm256_castpd_si256(low));
  store_vector<kStream>(dst + 32, _mm256_castpd_si256(high));
}

template <int Src, int Dst, bool kStream>
DLFP4_ALWAYS_INLINE inline void convert_step(const uint8_t *src, uint8_t *dst) {
  Floats floats = load_floats<Src, Dst != DLFP4_float32>(src);
  const bool special = __builtin_expect(has_nan(floats), 0);
  if constexpr (kFormats[Dst].bits > 16) {
    for (int i = 0; i < 4; ++i) {
      if (Src == DLFP4_float16 && special)
        floats.part[i] = restore_payloads(floats.part[i], load_16_bytes(src + 16 * i));
      store_floats<Dst, kStream>(dst + kFormats[Dst].bits * i, floats.part[i]);
    }
  } else {
    for (int i = 0; i < 2; ++i) {
      const __m256 low = floats.part[2 * i], high = floats.part[2 * i + 1];
      const __m256i words = round_to_words<Dst>(low, high);
      store_vector<kStream>(dst + 32 * i, special ? put_nans<Src, Dst>(words, low, high) : words);
    }
  }
}

template <int Src, int Dst>
void convert_floats(const uint8_t *src, uint8_t *dst, int64_t count, const Mode &) {
  constexpr int kSrcBits = kFormats[Src].bits, kDstBits = kFormats[Dst].bits;
  in_stretches<kSrcBits, kDstBits / 8>(src, dst, count, [](auto from, auto to, int64_t elements, auto streams) {
    in_steps<kCodes, kSrcBits, kDstBits>(from, to, elements, [](const uint8_t *a, uint8_t *b) DLFP4_ALWAYS_INLINE {
      convert_step<Src, Dst, decltype(streams)::value>(a, b);
    });
  });
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_CODECS_AVX2_FLOATS_H_
