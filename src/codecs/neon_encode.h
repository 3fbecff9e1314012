// Floats to codes of at most 8 bits, for the NEON kernels alone.
// Layout: floats in order, 16 a step; codes packed or one a byte.
// Trick: adding a power of two rounds a float; the bytes that count are unzipped.
#ifndef DLFP4_SRC_CODECS_NEON_ENCODE_H_
#define DLFP4_SRC_CODECS_NEON_ENCODE_H_

#include "host/simd/floats.h"
#include "host/simd/neon.h"

namespace dlfp4 {
namespace {

uint16x4_t load_words(const uint8_t *src) { return vreinterpret_u16_u8(vld1_u8(src)); }

// Rounds a double to odd: of the two floats next to it, takes the one whose last bit is set. Rounding that to fewer
// bits gives the same as rounding the double.
float32x4_t round_to_odd(float64x2_t low, float64x2_t high) { return vcvtx_high_f32_f64(vcvtx_f32_f64(low), high); }

float32x4_t round_to_even(float64x2_t low, float64x2_t high) { return vcvt_high_f32_f64(vcvt_f32_f64(low), high); }

// bfloat16 and float16 widen exactly; float64 is rounded to nearest, or to odd.
template <int Src, bool kToOdd = true>
Floats load_floats(const uint8_t *src) {
  Floats floats;
  for (int i = 0; i < 4; ++i) {
    if constexpr (Src == DLFP4_float64) {
      const float64x2_t low = vreinterpretq_f64_u8(vld1q_u8(src + 32 * i));
      const float64x2_t high = vreinterpretq_f64_u8(vld1q_u8(src + 32 * i + 16));
      floats.part[i] = kToOdd ? round_to_odd(low, high) : round_to_even(low, high);
    } else if constexpr (Src == DLFP4_float32) {
      floats.part[i] = vreinterpretq_f32_u8(vld1q_u8(src + 16 * i));
    } else {
      const uint16x4_t words = load_words(src + 8 * i);
      floats.part[i] = Src == DLFP4_float16 ? vcvt_f32_f16(vreinterpret_f16_u16(words))
                                            : vreinterpretq_f32_u32(vshll_n_u16(words, 16));
    }
  }
  return floats;
}

struct Dwords {
  uint32x4_t part[4];
};

Dwords bits_of(const Floats &floats) {
  return {{vreinterpretq_u32_f32(floats.part[0]), vreinterpretq_u32_f32(floats.part[1]),
           vreinterpretq_u32_f32(floats.part[2]), vreinterpretq_u32_f32(floats.part[3])}};
}

template <class Function>
Dwords each(const Dwords &dwords, Function function) {
  return {{function(dwords.part[0]), function(dwords.part[1]), function(dwords.part[2]), function(dwords.part[3])}};
}

uint16x8_t words(uint32x4_t dwords) { return vreinterpretq_u16_u32(dwords); }
uint8x16_t bytes(uint16x8_t words) { return vreinterpretq_u8_u16(words); }

uint8x16_t lowest_bytes(const Dwords &dwords) {
  const uint16x8_t low = vuzp1q_u16(words(dwords.part[0]), words(dwords.part[1]));
  const uint16x8_t high = vuzp1q_u16(words(dwords.part[2]), words(dwords.part[3]));
  return vuzp1q_u8(bytes(low), bytes(high));
}

uint8x16_t highest_bytes(const Dwords &dwords) {
  const uint16x8_t low = vuzp2q_u16(words(dwords.part[0]), words(dwords.part[1]));
  const uint16x8_t high = vuzp2q_u16(words(dwords.part[2]), words(dwords.part[3]));
  return vuzp2q_u8(bytes(low), bytes(high));
}

uint32x4_t magnitude_of(uint32x4_t bits) { return vbicq_u32(bits, vdupq_n_u32(kFloatSign)); }

uint32x4_t is_nan(uint32x4_t bits) { return vcgtq_u32(magnitude_of(bits), vdupq_n_u32(kFloatInfinity)); }

// Codes of any format but E8M0.
template <int Dst, int Rounding>
struct Encoder {
  const EncodeRule &rule;

  uint8x16_t operator()(const Floats &floats) const {
    constexpr int kBits = kTypes[Dst].bits;
    const Dwords all_bits = bits_of(floats);
    const uint8x16_t magnitude = lowest_bytes(
        each(all_bits, [this](uint32x4_t bits) { return encode_magnitudes<Neon, Dst, Rounding>(bits, rule); }));
    uint8x16_t signs = vandq_u8(highest_bytes(all_bits), vdupq_n_u8(0x80));
    if constexpr (kBits < 8) signs = vshrq_n_u8(signs, 8 - kBits);
    uint8x16_t kept_signs = signs;
    if constexpr (kTypes[Dst].specials == DLFP4_FNUZ) kept_signs = vandq_u8(signs, vtstq_u8(magnitude, magnitude));
    const uint8x16_t flips = vandq_u8(signs, vdupq_n_u8(rule.nan.flip));
    const uint8x16_t nan = veorq_u8(vdupq_n_u8(rule.nan.base), flips);
    return vbslq_u8(lowest_bytes(each(all_bits, is_nan)), nan, vorrq_u8(magnitude, kept_signs));
  }
};

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_CODECS_NEON_ENCODE_H_
