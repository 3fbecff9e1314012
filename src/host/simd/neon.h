// Vectors of codes, unpacking and packing, for the NEON kernels alone.
// Layout: runs of codes, packed or one a byte; 16 elements a step.
// Trick: every code's byte is brought to it by one table instruction, then lanes are shifted each by its own count.
#ifndef DLFP4_SRC_HOST_SIMD_NEON_H_
#define DLFP4_SRC_HOST_SIMD_NEON_H_

#include <arm_neon.h>
#include <string.h>

#include "decode_rules.h"
#include "lanes.h"

namespace dlfp4 {
namespace {

constexpr int kCodes = 16;  // elements a step, whose codes fill a vector

uint8x16_t load(const Constant &constant) { return vld1q_u8(constant.byte); }

// --- The instruction set ---------------------------------------------------------------------

struct Neon : PlainMemory {
  static constexpr int kCodes = dlfp4::kCodes;

  using U32 = uint32x4_t;
  using I32 = int32x4_t;
  using F32 = float32x4_t;
  using U16 = uint16x8_t;
  using HalfU16 = uint16x4_t;
  using Bytes = uint8x16_t;
  static Bytes zero() { return vdupq_n_u8(0); }
  static Bytes flip(Bytes bytes, Bytes bits) { return veorq_u8(bytes, bits); }
  static Bytes flip_equal(Bytes bytes, Bytes a, int b, int bits) {
    const Bytes equal = vceqq_u8(a, vdupq_n_u8(static_cast<uint8_t>(b)));
    return flip(bytes, vandq_u8(equal, vdupq_n_u8(static_cast<uint8_t>(bits))));
  }
  // An index above 15 finds a zero.
  static Bytes look_up(const Constant &table, Bytes index) { return vqtbl1q_u8(load(table), index); }
  static Bytes in_first(Bytes magnitudes) { return magnitudes; }
  static Bytes in_last(Bytes magnitudes, int largest) {
    return vsubq_u8(vdupq_n_u8(static_cast<uint8_t>(largest)), magnitudes);
  }
};

// A step's elements.
struct Floats {
  float32x4_t part[4];
};

// --- Unpacking -------------------------------------------------------------------------------

uint32x4_t load_4_bytes(const uint8_t *src) {
  uint32_t word;
  memcpy(&word, src, sizeof(word));
  return vdupq_n_u32(word);
}

// Words of two codes each, in their bits 0 to 11 and in their bits 4 to 15.
constexpr Constant kWordsOfSixes = make_constant([](int i) { return i % 16 / 4 * 3 + (i % 4 + 1) / 2; });
constexpr int16_t kShiftsOfEvenSixes[8] = {0, -4, 0, -4, 0, -4, 0, -4};
constexpr int16_t kShiftsOfOddSixes[8] = {2, -2, 2, -2, 2, -2, 2, -2};

uint8x16_t unpack_sixes(const uint8_t *src) {
  const uint8x8_t rest = vget_low_u8(vreinterpretq_u8_u32(load_4_bytes(src + 8)));
  const uint8x16_t bytes = vqtbl1q_u8(vcombine_u8(vld1_u8(src), rest), load(kWordsOfSixes));
  const uint16x8_t words = vreinterpretq_u16_u8(bytes);
  const uint16x8_t even = vshlq_u16(words, vld1q_s16(kShiftsOfEvenSixes));
  const uint16x8_t odd = vshlq_u16(words, vld1q_s16(kShiftsOfOddSixes));
  return vreinterpretq_u8_u16(vbslq_u16(vdupq_n_u16(0x00FF), even, odd));
}

uint8x16_t unpack_nibbles(const uint8_t *src) {
  const uint8x8_t bytes = vld1_u8(src), odd = vshr_n_u8(bytes, 4);
  return vcombine_u8(vzip1_u8(bytes, odd), vzip2_u8(bytes, odd));
}

constexpr Constant kBytesOfTwos = make_constant([](int i) { return i % 16 / 4; });
constexpr int8_t kShiftsOfTwos[16] = {0, -2, -4, -6, 0, -2, -4, -6, 0, -2, -4, -6, 0, -2, -4, -6};

uint8x16_t unpack_twos(const uint8_t *src) {
  const uint8x16_t bytes = vqtbl1q_u8(vreinterpretq_u8_u32(load_4_bytes(src)), load(kBytesOfTwos));
  return vshlq_u8(bytes, vld1q_s8(kShiftsOfTwos));
}

// A step's codes, with noise in the bits above the lowest `Bits`.
template <int Bits>
uint8x16_t load_codes(const uint8_t *src) {
  if constexpr (Bits == 8) return vld1q_u8(src);
  if constexpr (Bits == 6) return unpack_sixes(src);
  if constexpr (Bits == 4) return unpack_nibbles(src);
  if constexpr (Bits == 2) return unpack_twos(src);
}

template <int Bits>
uint8x16_t clear_noise(uint8x16_t codes) {
  return Bits == 8 ? codes : vandq_u8(codes, vdupq_n_u8((1 << Bits) - 1));
}

// --- Packing ---------------------------------------------------------------------------------

// Two clean codes a word, then four a dword: the upper half is inserted above the lower one.
template <int Bits>
uint32x4_t join_fours(uint8x16_t codes) {
  const uint16x8_t words = vreinterpretq_u16_u8(codes);
  const uint16x8_t upper_codes = vshrq_n_u16(words, 8);
  const uint32x4_t dwords = vreinterpretq_u32_u16(vsliq_n_u16(words, upper_codes, Bits));
  const uint32x4_t upper_pairs = vshrq_n_u32(dwords, 16);
  return vsliq_n_u32(dwords, upper_pairs, 2 * Bits);
}

// The first bytes of the dwords, next to each other.
template <int Bytes>
constexpr Constant kFirstOfDwords = make_constant([](int i) { return i % 16 / Bytes % 4 * 4 + i % 16 % Bytes; });

// Clean codes.
template <int Bits>
void store_codes(uint8_t *dst, uint8x16_t codes) {
  if constexpr (Bits == 8) {
    vst1q_u8(dst, codes);
  } else {
    const uint8x16_t fours = vreinterpretq_u8_u32(join_fours<Bits>(codes));
    const uint8x16_t packed = vqtbl1q_u8(fours, load(kFirstOfDwords<Bits / 2>));
    uint8_t bytes[16];
    vst1q_u8(bytes, packed);
    memcpy(dst, bytes, kCodes * Bits / 8);
  }
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_HOST_SIMD_NEON_H_
