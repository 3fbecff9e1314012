// Codes of at most 8 bits to wider floats, for the NEON kernels alone.
// Layout: codes packed or one a byte, 16 a step; floats in order.
// Trick: tables of 16 bytes give the floats' highest bytes, which are zipped.
#ifndef DLFP4_SRC_CODECS_NEON_DECODE_H_
#define DLFP4_SRC_CODECS_NEON_DECODE_H_

#include "host/simd/decode_rules.h"
#include "host/simd/neon.h"

namespace dlfp4 {
namespace {

template <int Bits>
Nibbles<Neon> split(uint8x16_t noisy, int sign) {
  const uint8x16_t code = clear_noise<Bits>(noisy);
  const uint8x16_t magnitude = vandq_u8(noisy, vdupq_n_u8(static_cast<uint8_t>((1 << Bits) - 1 - sign)));
  return {code, magnitude, vshrq_n_u8(code, 4), vandq_u8(noisy, vdupq_n_u8(15))};
}

// The highest parts of consecutive floats of `Bytes` bytes, two bytes each; below them are zeros.
template <int Bytes>
void store_words(uint8_t *dst, uint8x16_t words) {
  if constexpr (Bytes == 2) {
    vst1q_u8(dst, words);
  } else {
    const uint16x8_t zero = vdupq_n_u16(0), low = vreinterpretq_u16_u8(words);
    const uint16x8_t dwords[2] = {vzip1q_u16(zero, low), vzip2q_u16(zero, low)};
    for (int i = 0; i < 2; ++i) {
      if constexpr (Bytes == 4) {
        vst1q_u8(dst + 16 * i, vreinterpretq_u8_u16(dwords[i]));
      } else {
        const uint32x4_t wide = vreinterpretq_u32_u16(dwords[i]), zeros = vdupq_n_u32(0);
        vst1q_u8(dst + 32 * i, vreinterpretq_u8_u32(vzip1q_u32(zeros, wide)));
        vst1q_u8(dst + 32 * i + 16, vreinterpretq_u8_u32(vzip2q_u32(zeros, wide)));
      }
    }
  }
}

struct Words {
  uint8x16_t half[2];
};

// The highest 16 bits of a step's floats.
template <int Src, int SrcBits, int Dst>
Words decode_words(const uint8_t *src) {
  constexpr const DecodeRule &kRule = kDecodeRule<Src, Dst>;
  const Nibbles<Neon> nibbles = split<kTypes[Src].bits>(load_codes<SrcBits>(src), kRule.sign);
  const uint8x16_t low = decode_byte<Neon, Src, Dst, 0>(nibbles), high = decode_byte<Neon, Src, Dst, 1>(nibbles);
  Words words = {{vzip1q_u8(low, high), vzip2q_u8(low, high)}};
  for (uint8x16_t &half : words.half)
    half = vreinterpretq_u8_u16(vaddq_u16(vreinterpretq_u16_u8(half), vdupq_n_u16(kRule.offset)));
  return words;
}

// A step's elements as float32, in order.
template <int Src, int SrcBits>
DLFP4_ALWAYS_INLINE inline Floats decode_floats(const uint8_t *src) {
  const Words words = decode_words<Src, SrcBits, DLFP4_float32>(src);
  const uint16x8_t zero = vdupq_n_u16(0);
  Floats floats;
  for (int i = 0; i < 2; ++i) {
    const uint16x8_t half = vreinterpretq_u16_u8(words.half[i]);
    floats.part[2 * i] = vreinterpretq_f32_u16(vzip1q_u16(zero, half));
    floats.part[2 * i + 1] = vreinterpretq_f32_u16(vzip2q_u16(zero, half));
  }
  return floats;
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_CODECS_NEON_DECODE_H_
