// The AVX-512 codecs: what vector.h needs to know of the instruction set.
// Layout: codes one a byte or packed, floats in order; 64 a step.
// Trick: a byte permutation looks up as many codes as a vector has; tables stay in registers during a call.
#ifndef DLFP4_SRC_CODECS_AVX512_H_
#define DLFP4_SRC_CODECS_AVX512_H_

#include "avx512_decode.h"
#include "avx512_encode.h"
#include "avx512_floats.h"
#include "host/simd/avx512.h"
#include "vector.h"

namespace dlfp4 {
namespace {

struct Avx512Codecs : Avx512 {
  // --- Codes ---

  template <int Size>
  using Table = Lookup<(Size < 64 ? 64 : Size)>;

  template <int Bits>
  static __m512i load_codes(const uint8_t *src) {
    return load_run<Bits, kInOrder>(src, Whole());
  }

  template <int Bits>
  static __m512i load_clean(const uint8_t *src) {
    return dlfp4::clear_noise<Bits>(load_codes<Bits>(src));
  }

  template <int Bits>
  static __m512i clear_noise(__m512i codes) {
    return dlfp4::clear_noise<Bits>(codes);
  }

  template <int Bits>
  static void store_codes(uint8_t *dst, __m512i codes, bool streams) {
    dlfp4::store_codes<Bits>(dst, codes, streams);
  }

  static __m512i lowest_bytes(U32 a, U32 b, U32 c, U32 d) {
    return gather_bytes<0>(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b), reinterpret_cast<__m512i>(c),
                           reinterpret_cast<__m512i>(d));
  }

  // --- Codes to floats ---

  static constexpr bool kRoundsDecoded = true;

  template <int Src, int SrcBits, int Dst, bool kStream>
  static void decode_steps(const uint8_t *src, uint8_t *dst, int64_t count) {
    dlfp4::decode_steps<SrcBits, kDecodeSize<Src, Dst>, kTypes[Dst].bits / 8, kStream>(kDecodeTable<Src, Dst>, src, dst,
                                                                                       count);
  }

  // --- Floats ---

  template <int Src, bool kToOdd = true>
  static Floats load_floats(const uint8_t *src) {
    return dlfp4::load_floats<Src, kToOdd>(src);
  }

  static bool has_nan(const Floats &floats) { return dlfp4::has_nan(floats); }

  template <int Dst>
  static constexpr Modes kRoundings = kFixedModes;

  template <int Dst, class Run>
  static void with_encoder(dlfp4_rounding rounding, bool saturate, Run run) {
    dlfp4::with_encoder<Dst>(rounding, saturate, run);
  }

  // Of two vectors of dwords.
  static U16 upper_halves(U32 low, U32 high) {
    return reinterpret_cast<U16>(upper_words(reinterpret_cast<__m512i>(low), reinterpret_cast<__m512i>(high)));
  }

  template <int Dst>
  static U16 round_to_words(F32 low, F32 high) {
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    if constexpr (Dst == DLFP4_bfloat16) return reinterpret_cast<U16>(round_to_bfloat16(low, high));
    return reinterpret_cast<U16>(join(_mm512_cvt_roundps_ph(low, kNearest), _mm512_cvt_roundps_ph(high, kNearest)));
  }

  template <bool kStream>
  static void store_words(uint8_t *dst, U16 words) {
    store_vector(dst, reinterpret_cast<__m512i>(words), kStream);
  }

  template <int Dst, bool kStream>
  static void store_floats(uint8_t *dst, F32 floats) {
    const __m512i bits = _mm512_castps_si512(floats);
    if constexpr (Dst == DLFP4_float32) return store_vector(dst, bits, kStream);
    const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(floats));
    const __m512d high = _mm512_cvtps_pd(_mm256_castsi256_ps(_mm512_extracti64x4_epi64(bits, 1)));
    store_vector(dst, _mm512_castpd_si512(low), kStream);
    store_vector(dst + 64, _mm512_castpd_si512(high), kStream);
  }
};

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_CODECS_AVX512_H_
