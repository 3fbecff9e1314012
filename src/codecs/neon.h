// The NEON codecs: what vector.h needs to know of the instruction set.
// Layout: codes one a byte or packed, floats in order; 16 a step.
// Trick: an instruction looks up 64 codes, and leaves what it does not find to the next one.
#ifndef DLFP4_SRC_CODECS_NEON_H_
#define DLFP4_SRC_CODECS_NEON_H_

#include "host/simd/neon.h"
#include "neon_decode.h"
#include "neon_encode.h"
#include "vector.h"

namespace dlfp4 {
namespace {

// What each of `Size` codes becomes; higher bits are ignored.
template <int Size>
struct Table {
  static constexpr int kParts = Size < 64 ? 1 : Size / 64;
  uint8x16x4_t part[kParts];

  explicit Table(const uint8_t *codes) {
    for (int i = 0; i < kParts; ++i) part[i] = vld1q_u8_x4(codes + 64 * i);
  }

  DLFP4_ALWAYS_INLINE uint8x16_t operator()(uint8x16_t codes) const {
    uint8x16_t found = vqtbl4q_u8(part[0], Size < 256 ? vandq_u8(codes, vdupq_n_u8(Size - 1)) : codes);
    for (int i = 1; i < kParts; ++i)
      found = vqtbx4q_u8(found, part[i], vsubq_u8(codes, vdupq_n_u8(static_cast<uint8_t>(64 * i))));
    return found;
  }
};

struct NeonCodecs : Neon {
  // --- Codes ---

  template <int Size>
  using Table = dlfp4::Table<Size>;

  template <int Bits>
  static uint8x16_t load_codes(const uint8_t *src) {
    return dlfp4::load_codes<Bits>(src);
  }

  template <int Bits>
  static uint8x16_t load_clean(const uint8_t *src) {
    return dlfp4::clear_noise<Bits>(dlfp4::load_codes<Bits>(src));
  }

  template <int Bits>
  static uint8x16_t clear_noise(uint8x16_t codes) {
    return dlfp4::clear_noise<Bits>(codes);
  }

  template <int Bits>
  static void store_codes(uint8_t *dst, uint8x16_t codes, bool) {
    dlfp4::store_codes<Bits>(dst, codes);
  }

  static uint8x16_t lowest_bytes(U32 a, U32 b, U32 c, U32 d) { return dlfp4::lowest_bytes({{a, b, c, d}}); }

  // --- Codes to floats ---

  static constexpr bool kRoundsDecoded = false;

  template <int Src, int SrcBits, int Dst, bool>
  static void decode_steps(const uint8_t *src, uint8_t *dst, int64_t count) {
    constexpr int kBytes = kTypes[Dst].bits / 8;
    in_steps<Neon, SrcBits, 8 * kBytes>(src, dst, count, [](const uint8_t *from, uint8_t *to) DLFP4_ALWAYS_INLINE {
      const Words words = decode_words<Src, SrcBits, Dst>(from);
      for (int i = 0; i < 2; ++i) dlfp4::store_words<kBytes>(to + 8 * kBytes * i, words.half[i]);
    });
  }

  // --- Floats ---

  template <int Src, bool kToOdd = true>
  static Floats load_floats(const uint8_t *src) {
    return dlfp4::load_floats<Src, kToOdd>(src);
  }

  static bool has_nan(const Floats &floats) {
    uint32x4_t numbers = vceqq_f32(floats.part[0], floats.part[0]);
    for (int i = 1; i < 4; ++i) numbers = vandq_u32(numbers, vceqq_f32(floats.part[i], floats.part[i]));
    return vminvq_u32(numbers) == 0;
  }

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
  static U16 upper_halves(U32 low, U32 high) { return vuzp2q_u16(words(low), words(high)); }

  template <int Dst>
  static U16 round_to_words(F32 low, F32 high) {
    if constexpr (Dst == DLFP4_bfloat16)
      return upper_halves(round_to_bfloat16(vreinterpretq_u32_f32(low)),
                          round_to_bfloat16(vreinterpretq_u32_f32(high)));
    return vreinterpretq_u16_f16(vcombine_f16(vcvt_f16_f32(low), vcvt_f16_f32(high)));
  }

  template <bool>
  static void store_words(uint8_t *dst, U16 words) {
    vst1q_u8(dst, bytes(words));
  }

  template <int Dst, bool>
  static void store_floats(uint8_t *dst, F32 floats) {
    if constexpr (Dst == DLFP4_float32) return vst1q_u8(dst, vreinterpretq_u8_f32(floats));
    vst1q_u8(dst, vreinterpretq_u8_f64(vcvt_f64_f32(vget_low_f32(floats))));
    vst1q_u8(dst + 16, vreinterpretq_u8_f64(vcvt_high_f64_f32(floats)));
  }
};

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_CODECS_NEON_H_
