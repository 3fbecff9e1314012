// Single elements on the device: any format, any bit of memory.
// Layout: little-endian bits, as DLPack packs.
// Trick: numerics.h has all rules; this file only moves bits.
#ifndef DLFP4_SRC_GPU_ELEMENTS_CUH_
#define DLFP4_SRC_GPU_ELEMENTS_CUH_

#include "params.h"
#include "rules/scaling.h"

namespace dlfp4 {
namespace cuda {

__device__ inline int64_t global_thread() { return int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }

// The word at an address, or another for null. A branch would wait for the loads before it; without one this load is
// under way together with them.
__device__ inline uint32_t load_or(const void *from, uint32_t otherwise) {
  uint32_t word;
  asm volatile("{.reg .pred there; setp.ne.u64 there, %1, 0; mov.b32 %0, %2; @there ld.global.b32 %0, [%1];}"
               : "=r"(word)
               : "l"(from), "r"(otherwise));
  return word;
}

__device__ inline float load_or_one(const float *from) { return float_of(load_or(from, bits_of(1.0f))); }

// Kernels that store more than they read prefetch to the L2 cache what a later block of threads reads, so many blocks
// ahead: reads come late while all blocks store. One to three blocks a multiprocessor of an H200 do equally well.
constexpr uint32_t kBlocksAhead = 300;

__device__ inline void prefetch(const uint8_t *from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

// Of 1, 2, 4 or 8 bytes, aligned to as many or not.
__device__ inline uint64_t load_bytes(const uint8_t *from, int count) {
  uint64_t word = 0;
  for (int i = 0; i < count; ++i) word |= uint64_t{from[i]} << 8 * i;
  return word;
}

__device__ inline void store_bytes(uint8_t *to, uint64_t word, int count) {
  for (int i = 0; i < count; ++i) to[i] = static_cast<uint8_t>(word >> 8 * i);
}

// The code at `element` spacings of `bits` from `data`.
__device__ inline uint64_t load_code(const uint8_t *data, int64_t element, int bits, ElementType format) {
  if (bits >= 8) return load_bytes(data + element * (bits / 8), bits / 8) & low_bits(format.bits);
  const int64_t bit = element * bits;
  const int shift = static_cast<int>(bit & 7);
  return load_bytes(data + (bit >> 3), shift + bits > 8 ? 2 : 1) >> shift & low_bits(format.bits);
}

__device__ inline float to_float(uint64_t code, ElementType from) {
  return float_of(
      static_cast<uint32_t>(convert(from, type_of<DLFP4_float32>(), code, {DLFP4_NEAREST_EVEN, true}, {0, 0, 0})));
}

__device__ inline uint64_t from_float(float value, ElementType to, Round round, const Draw &draw) {
  return convert(type_of<DLFP4_float32>(), to, bits_of(value), round, draw);
}

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_GPU_ELEMENTS_CUH_
