// The AVX2 codecs: what vector.h needs to know of the instruction set.
// Layout: codes one a byte or packed, floats in order; 32 a step.
// Trick: every sixteen codes of a table are looked up by the lowest four bits, the other bits choose among what is
// found.
#ifndef DLFP4_SRC_CODECS_AVX2_H_
#define DLFP4_SRC_CODECS_AVX2_H_

#include "avx2_decode.h"
#include "avx2_encode.h"
#include "host/simd/avx2.h"
#include "vector.h"

namespace dlfp4 {
namespace {

// What each of `Size` codes becomes; higher bits are ignored.
template <int Size>
struct Table {
  __m256i part[Size / 16];

  explicit Table(const uint8_t *codes) {
    for (int i = 0; i < Size / 16; ++i) part[i] = _mm256_broadcastsi128_si256(load_16_bytes(codes + 16 * i));
  }

  // Among kCount parts from kFirst on. vpblendvb looks at a byte's highest bit.
  template <int kFirst, int kCount>
  DLFP4_ALWAYS_INLINE __m256i find(__m256i codes, __m256i low) const {
    if constexpr (kCount == 1) {
      return _mm256_shuffle_epi8(part[kFirst], low);
    } else {
      constexpr int kToHighest = kCount == 2 ? 3 : kCount == 4 ? 2 : kCount == 8 ? 1 : 0;
      return _mm256_blendv_epi8(find<kFirst, kCount / 2>(codes, low), find<kFirst + kCount / 2, kCount / 2>(codes, low),
                                _mm256_slli_epi16(codes, kToHighest));
    }
  }

  DLFP4_ALWAYS_INLINE __m256i operator()(__m256i codes) const {
    return find<0, Size / 16>(codes, _mm256_and_si256(codes, all_bytes(15)));
  }
};

struct Avx2Codecs : Avx2 {
  // --- Codes ---

  template <int Size>
  using Table = dlfp4::Table<Size>;

  template <int Bits>
  static __m256i load_codes(const uint8_t *src) {
    return dlfp4::load_codes<Bits, 1>(src);
  }

  template <int Bits>
  static __m256i load_clean(const uint8_t *src) {
    return dlfp4::load_codes<Bits, 1>(src);  // unpacked ones are clean
  }

  template <int Bits>
  static __m256i clear_noise(__m256i codes) {
    return dlfp4::clear_noise<Bits>(codes);
  }

  template <int Bits>
  static void store_codes(uint8_t *dst, __m256i codes, bool) {
    dlfp4::store_codes<Bits>(dst, codes);
  }

  static __m256i lowest_bytes(U32 a, U32 b, U32 c, U32 d) {
    return in_order(narrow_lowest_bytes(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b),
                                        reinterpret_cast<__m256i>(c), reinterpret_cast<__m256i>(d)));
  }

  // --- Codes to floats ---

  static constexpr bool kRoundsDecoded = false;

  template <int Src, int SrcBits, int Dst, bool kStream>
  static void decode_steps(const uint8_t *src, uint8_t *dst, int64_t count) {
    constexpr int kBytes = kTypes[Dst].bits / 8;
    in_steps<Avx2, SrcBits, 8 * kBytes>(src, dst, count, [](const uint8_t *from, uint8_t *to) DLFP4_ALWAYS_INLINE {
      const Words words = decode_words<Src, SrcBits, Dst>(from);
      for (int i = 0; i < 2; ++i) dlfp4::store_words<kBytes, kStream>(to + 16 * kBytes * i, words.half[i]);
    });
  }

  // --- Floats ---

  template <int Src, bool kToOdd = true>
  static Floats load_floats(const uint8_t *src) {
    return dlfp4::load_floats<Src, kToOdd>(src);
  }

  static bool has_nan(const Floats &floats) { return dlfp4::has_nan(floats); }

  template <int Dst>
  static constexpr Modes kRoundings = Dst == DLFP4_float4_e2m1fn ? kNearestEven | kNearestZero : kNearestEven;

  template <int Dst, class Run>
  static void with_encoder(dlfp4_rounding rounding, bool saturate, Run run) {
    if constexpr (Dst == DLFP4_float4_e2m1fn)
      if (rounding == DLFP4_NEAREST_ZERO)
        return run(Encoder<Dst, DLFP4_NEAREST_ZERO>{kNearestRules<Dst, DLFP4_NEAREST_ZERO>[saturate]});
    run(Encoder<Dst, DLFP4_NEAREST_EVEN>{kNearestRules<Dst>[saturate]});
  }

  // Of two vectors of dwords.
  static U16 upper_halves(U32 low, U32 high) {
    const U32 words[] = {low >> 16, high >> 16};
    return reinterpret_cast<U16>(outer_quarters_first(
        _mm256_packus_epi32(reinterpret_cast<__m256i>(words[0]), reinterpret_cast<__m256i>(words[1]))));
  }

  template <int Dst>
  static U16 round_to_words(F32 low, F32 high) {
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    if constexpr (Dst == DLFP4_bfloat16)
      return upper_halves(round_to_bfloat16(reinterpret_cast<U32>(low)),
                          round_to_bfloat16(reinterpret_cast<U32>(high)));
    return reinterpret_cast<U16>(_mm256_set_m128i(_mm256_cvtps_ph(high, kNearest), _mm256_cvtps_ph(low, kNearest)));
  }

  template <bool kStream>
  static void store_words(uint8_t *dst, U16 words) {
    store_vector<kStream>(dst, reinterpret_cast<__m256i>(words));
  }

  template <int Dst, bool kStream>
  static void store_floats(uint8_t *dst, F32 floats) {
    if constexpr (Dst == DLFP4_float32) return store_vector<kStream>(dst, _mm256_castps_si256(floats));
    const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(floats));
    const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(floats, 1));
    store_vector<kStream>(dst, _mm256_castpd_si256(low));
    store_vector<kStream>(dst + 32, _mm256_castpd_si256(high));
  }
};

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_CODECS_AVX2_H_
