// Between float32, bfloat16 and float16, for the AVX2 kernels alone.
// Layout: floats in order on both sides, 32 a step.
// Trick: everything is a float32 on the way, exactly; the processor's own treatment of NaNs is put right where it
// counts.
#ifndef DLFP4_SRC_CPU_AVX2_FLOATS_H_
#define DLFP4_SRC_CPU_AVX2_FLOATS_H_

#include "avx2_decode.h"
#include "avx2_encode.h"

namespace dlfp4 {
namespace {

// --- To 16 bits ------------------------------------------------------------------------------

// Sixteen dwords as words, in order; none is above 16 bits.
__m256i narrow_dwords(__m256i low, __m256i high) {
  constexpr int kOuterQuartersFirst = 0xD8;
  return _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), kOuterQuartersFirst);
}

__m256i round_to_bfloat16(__m256 floats) {
  const __m256i bits = _mm256_castps_si256(floats), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), all(1));
  return _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, all(0x7FFF)), odd), 16);
}

template <int Dst>
__m256i round_to_words(__m256 low, __m256 high) {
  if constexpr (Dst == DLFP4_float16)
    return _mm256_set_m128i(_mm256_cvtps_ph(high, _MM_FROUND_TO_NEAREST_INT),
                            _mm256_cvtps_ph(low, _MM_FROUND_TO_NEAREST_INT));
  return narrow_dwords(round_to_bfloat16(low), round_to_bfloat16(high));
}

// What a NaN becomes, in the low half of a dword: the one with the quiet bit alone, or what fits of its payload.
template <int Src, int Dst>
__m256i dwords_of_nans(__m256 floats) {
  constexpr Format kTo = kFormats[Dst];
  const __m256i bits = _mm256_castps_si256(floats);
  const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 16), all(0x8000));
  const __m256i infinity = _mm256_or_si256(sign, all(static_cast<uint32_t>(infinity_code(kTo))));
  if constexpr (nan_rule(kFormats[Src], kTo) == kCanonical)
    return _mm256_or_si256(infinity, all(1 << (kTo.mantissa - 1)));
  const __m256i payload = _mm256_srli_epi32(_mm256_and_si256(bits, all(0x7FFFFF)), 23 - kTo.mantissa);
  return _mm256_or_si256(infinity, _mm256_max_epu32(payload, all(1)));
}

template <int Src, int Dst>
__attribute__((noinline)) __m256i put_nans(__m256i words, __m256 low, __m256 high) {
  const __m256i nans = narrow_dwords(dwords_of_nans<Src, Dst>(low), dwords_of_nans<Src, Dst>(high));
  const __m256i word = all(0xFFFF);
  const __m256i where = narrow_dwords(_mm256_and_si256(find_nans(low), word), _mm256_and_si256(find_nans(high), word));
  return _mm256_blendv_epi8(words, nans, where);
}

// --- Kernels ---------------------------------------------------------------------------------

// Of a float16's NaN the processor sets the quiet bit; here it keeps its own.
__attribute__((noinline)) __m256 restore_payloads(__m256 floats, __m128i words) {
  const __m256i fraction = _mm256_and_si256(_mm256_cvtepu16_epi32(words), all(0x3FF));
  const __m256i bits = _mm256_castps_si256(floats);
  const __m256i payload = _mm256_or_si256(_mm256_andnot_si256(all(0x7FFFFF), bits), _mm256_slli_epi32(fraction, 13));
  return _mm256_castsi256_ps(_mm256_blendv_epi8(bits, payload, find_nans(floats)));
}

template <int Src, int Dst, bool kStream>
DLFP4_ALWAYS_INLINE inline void convert_step(const uint8_t *src, uint8_t *dst) {
  Floats floats = load_floats<Src>(src);
  const bool special = __builtin_expect(has_nan(floats), 0);
  if constexpr (Dst == DLFP4_float32) {
    for (int i = 0; i < 4; ++i) {
      if (Src == DLFP4_float16 && special)
        floats.part[i] = restore_payloads(floats.part[i], load_16_bytes(src + 16 * i));
      store_vector<kStream>(dst + 32 * i, _mm256_castps_si256(floats.part[i]));
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

#endif  // DLFP4_SRC_CPU_AVX2_FLOATS_H_
