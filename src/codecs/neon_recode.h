// Between types of at most 8 bits, for the NEON kernels alone.
// Layout: codes one a byte or packed, on both sides; 16 a step.
// Trick: an instruction looks up 64 codes, and leaves what it does not find to the next one.
#ifndef DLFP4_SRC_CODECS_NEON_RECODE_H_
#define DLFP4_SRC_CODECS_NEON_RECODE_H_

#include "host/simd/neon.h"
#include "vector_recode.h"

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

struct NeonRecode {
  static constexpr int kCodes = dlfp4::kCodes;

  template <int Size>
  using Table = dlfp4::Table<Size>;

  template <int Bits>
  static uint8x16_t load(const uint8_t *src) {
    return load_codes<Bits>(src);
  }

  template <int Bits>
  static void store(uint8_t *dst, uint8x16_t codes) {
    store_codes<Bits>(dst, codes);
  }
};

template <int Bits>
void pack_codes(const uint8_t *src, uint8_t *dst, int64_t count, const Mode &) {
  in_steps<kCodes, 8, Bits>(src, dst, count, [](const uint8_t *from, uint8_t *to) {
    store_codes<Bits>(to, clear_noise<Bits>(load_codes<8>(from)));
  });
}

template <int Bits>
void unpack_codes(const uint8_t *src, uint8_t *dst, int64_t count, const Mode &) {
  in_steps<kCodes, Bits, 8>(src, dst, count, [](const uint8_t *from, uint8_t *to) {
    store_codes<8>(to, clear_noise<Bits>(load_codes<Bits>(from)));
  });
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_CODECS_NEON_RECODE_H_
