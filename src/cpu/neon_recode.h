// Between types of at most 8 bits, for the NEON kernels alone.
// Layout: codes one a byte or packed, on both sides; 16 a step.
// Trick: an instruction looks up 64 codes, and leaves what it does not find to the next one.
#ifndef DLFP4_SRC_CPU_NEON_RECODE_H_
#define DLFP4_SRC_CPU_NEON_RECODE_H_

#include "neon_codes.h"
#include "recode_tables.h"

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

template <int SrcBits, int DstBits, int Size>
__attribute__((noinline)) void recode_steps(const uint8_t *codes, const uint8_t *src, uint8_t *dst, int64_t count) {
  const Table<Size> table(codes);
  in_steps<kCodes, SrcBits, DstBits>(src, dst, count, [&](const uint8_t *from, uint8_t *to) DLFP4_ALWAYS_INLINE {
    store_codes<DstBits>(to, table(load_codes<SrcBits>(from)));
  });
}

template <int Src, bool kSrcPacked, int Dst, bool kDstPacked>
void recode(const uint8_t *src, uint8_t *dst, int64_t count, const Mode &mode) {
  constexpr int kSrcBits = kSrcPacked ? kFormats[Src].bits : 8, kDstBits = kDstPacked ? kFormats[Dst].bits : 8;
  uint8_t own[256];
  recode_steps<kSrcBits, kDstBits, 1 << kFormats[Src].bits>(find_table<Src, Dst>(mode, own), src, dst, count);
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_CPU_NEON_RECODE_H_
