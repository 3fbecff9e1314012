// Quantized x as operands of the tensor cores beside prepared weights: bfloat16, exact.
// Layout: 16 neighbours along K that share a scale, two words of eight FP4 codes, low bits first, to eight pairs.
// Trick: a byte permutation fills a half of a word with a code, from bit 4 on, and copies of its sign above: two bits
// further, sign and magnitude are those of the value times 2^-126, as in fragments.cuh.
#ifndef DLFP4_SRC_PRODUCTS_CUDA_CODED_X_CUH_
#define DLFP4_SRC_PRODUCTS_CUDA_CODED_X_CUH_

#include "fragments.cuh"
#include "gpu/codes.cuh"

namespace dlfp4 {
namespace cuda {

// Bytes of a row in a slice of K, in shared memory: 128 of codes, up to 16 of scales, and as many left out as bring
// every second row to other banks.
constexpr int kCodedRow = 192;

// Two neighbours, times 2^-126. Of odd places codes are in the upper halves of bytes; so are those of even places here.
template <int Byte>
__device__ inline uint32_t decode_pair(uint32_t even, uint32_t odd, const Shifts &by) {
  return permute<0xC480 + Byte * 0x1111>(even, odd) * by.by2 & field_mask(4);
}

__device__ inline void decode_eight(uint32_t odd, const Shifts &by, uint32_t *out) {
  const uint32_t even = odd * by.by4;
  out[0] = decode_pair<0>(even, odd, by);
  out[1] = decode_pair<1>(even, odd, by);
  out[2] = decode_pair<2>(even, odd, by);
  out[3] = decode_pair<3>(even, odd, by);
}

// A scale as a float, all of which is in its upper half, as decode_fast has it in more instructions; NVFP4's times
// 2^118. `byte` is signed.
template <int Kind>
__device__ inline uint32_t decode_coded_scale(uint32_t byte) {
  constexpr uint32_t kNan = 0x7FC00000;
  if constexpr (Kind == kNvfp4) {
    const float tiny = float_of((byte << 20) & 0x87F00000);  // times 2^-120, subnormals too
    return (byte & 0x7F) == 0x7F ? kNan : bits_of(tiny * 0x1p126f * 0x1p112f);
  }
  const uint32_t is_special = ((byte + 1) & 0xFF) <= 1;  // 2^-127 and NaN: a bit of the mantissa
  return ((byte << 23) & 0x7F800000) | is_special << 22;
}

// 16 neighbours. NVFP4's come times 2^-8, which is the host's to make good (coded_unit).
template <int Kind>
__device__ inline void decode_neighbours(const uint32_t (&codes)[2], uint32_t scale, const Shifts &by, uint32_t *out) {
  constexpr uint32_t kPower126 = 0x7E800000;  // for which MXFP4's scales leave no room
  const uint32_t factor = decode_coded_scale<Kind>(scale);
  decode_eight(codes[0], by, out);
  decode_eight(codes[1], by, out + 4);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if constexpr (Kind == kMxfp4) out[i] = scale_by_half<kBfloat16, true>(out[i], kPower126);
    out[i] = scale_by_half<kBfloat16, true>(out[i], factor);
  }
}

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_CUDA_CODED_X_CUH_
