// Steps of a conversion between memory and registers.
// Layout: vectors where the elements of a step are neighbours; else elements of whole bytes, one by one.
// Trick: neighbouring threads take steps that lie beside each other on the side that is read or written by elements, so
// that a warp's elements are neighbours: a transposed matrix goes through registers alone.
#ifndef DLFP4_SRC_CODECS_CUDA_STEPS_CUH_
#define DLFP4_SRC_CODECS_CUDA_STEPS_CUH_

#include "gpu/codes.cuh"
#include "params.h"

namespace dlfp4 {
namespace cuda {

struct StepPlace {
  const uint8_t *src;
  uint8_t *dst;
};

template <int Layout, int SrcBits, int DstBits>
__device__ inline StepPlace place_of(const Steps &steps, int64_t number) {
  if constexpr (Layout == kRun)
    return {steps.src + number * (kStep * SrcBits / 8), steps.dst + number * (kStep * DstBits / 8)};
  StepPlace place = {steps.src, steps.dst};
  for (int dim = steps.ndim - 1; dim > 0; --dim) {
    const int64_t index = number % steps.dims[dim].extent;
    number /= steps.dims[dim].extent;
    place.src += index * steps.dims[dim].src;
    place.dst += index * steps.dims[dim].dst;
  }
  return {place.src + number * steps.dims[0].src, place.dst + number * steps.dims[0].dst};
}

// An element of 8, 16 or 32 bits.
template <int Bits>
__device__ inline uint32_t load_element(const uint8_t *from) {
  if constexpr (Bits == 8) return *from;
  if constexpr (Bits == 16) return *reinterpret_cast<const uint16_t *>(from);
  return *reinterpret_cast<const uint32_t *>(from);
}

template <int Bits>
__device__ inline void store_element(uint8_t *to, uint32_t element) {
  if constexpr (Bits == 8)
    *to = static_cast<uint8_t>(element);
  else if constexpr (Bits == 16)
    *reinterpret_cast<uint16_t *>(to) = static_cast<uint16_t>(element);
  else
    *reinterpret_cast<uint32_t *>(to) = element;
}

// The words of a step, or zeros.
template <int Layout, int Bits>
__device__ inline void load_elements(const Steps &steps, const uint8_t *src, bool there, uint32_t *words) {
  constexpr int kWords = kCodeWords<Bits>;
#pragma unroll
  for (int i = 0; i < kWords; ++i) words[i] = 0;
  if (!there) return;
  if constexpr (Layout == kStrided && Bits >= 8) {
    if (!steps.from.together) {
#pragma unroll
      for (int i = 0; i < kStep; ++i, src += steps.from.of_element)
        words[i * Bits / 32] |= load_element<Bits>(src) << i * Bits % 32;
      return;
    }
  }
  if constexpr (Bits > 8)
    load_vectors<kWords>(src, words);
  else
    load_codes<Bits>(src, words);
}

// By a whole warp: `dst` is null in lanes that have nothing to store.
template <int Layout, int Bits>
__device__ inline void store_elements(const Steps &steps, uint8_t *dst, const uint32_t *words) {
  if constexpr (Layout == kStrided && Bits >= 8) {
    if (!steps.to.together) {
      if (dst == nullptr) return;
#pragma unroll
      for (int i = 0; i < kStep; ++i, dst += steps.to.of_element)
        store_element<Bits>(dst, words[i * Bits / 32] >> i * Bits % 32);
      return;
    }
  }
  if constexpr (Bits > 8)
    warp_store<kCodeWords<Bits>>().store(dst, words);
  else if (dst != nullptr)
    store_codes<Bits>(dst, words);
}

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_CODECS_CUDA_STEPS_CUH_
