// Between float16, bfloat16, float32 and float64, for the NEON kernels alone.
// Layout: floats in order on both sides, 16 a step.
// Trick: everything is a float32 on the way, exactly; the processor's own treatment of NaNs is put right.
#ifndef DLFP4_SRC_CODECS_NEON_FLOATS_H_
#define DLFP4_SRC_CODECS_NEON_FLOATS_H_

#include "host/simd/floats.h"
#include "kernels.h"
#include "neon_encode.h"

namespace dlfp4 {
namespace {

template <int Src, int Dst>
uint16x4_t narrow(float32x4_t floats) {
  const uint32x4_t bits = vreinterpretq_u32_f32(floats);
  uint32x4_t words = round_to_bfloat16(bits);
  if constexpr (Dst == DLFP4_float16) words = vmovl_u16(vreinterpret_u16_f16(vcvt_f16_f32(floats)));
  return vmovn_u32(put_nans<Src, Dst>(words, bits));
}

template <int Src, int Dst>
void convert_step(const uint8_t *src, uint8_t *dst) {
  const Floats floats = load_floats<Src, Dst != DLFP4_float32>(src);
  for (int i = 0; i < 4; ++i) {
    const float32x4_t part = floats.part[i];
    uint8_t *const to = dst + kFormats[Dst].bits / 2 * i;
    if constexpr (kFormats[Dst].bits == 16) {
      vst1_u8(to, vreinterpret_u8_u16(narrow<Src, Dst>(part)));
    } else if constexpr (Dst == DLFP4_float64) {
      vst1q_u8(to, vreinterpretq_u8_f64(vcvt_f64_f32(vget_low_f32(part))));
      vst1q_u8(to + 16, vreinterpretq_u8_f64(vcvt_high_f64_f32(part)));
    } else {
      uint32x4_t bits = vreinterpretq_u32_f32(part);
      if constexpr (Src == DLFP4_float16) bits = restore_payloads(bits, vmovl_u16(load_words(src + 8 * i)));
      vst1q_u8(to, vreinterpretq_u8_u32(bits));
    }
  }
}

template <int Src, int Dst>
void convert_floats(const uint8_t *src, uint8_t *dst, int64_t count, const Mode &) {
  in_steps<kCodes, kFormats[Src].bits, kFormats[Dst].bits>(src, dst, count, convert_step<Src, Dst>);
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_CODECS_NEON_FLOATS_H_
