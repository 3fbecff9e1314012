// What the compiler's vector types lack: loads and stores of any address and of parts, a value in all lanes, extremes.
// Layout: V is a vector in the sense of gcc and clang, whose operators work lane by lane.
// Trick: a comparison and a choice become one instruction wherever there is one.
#ifndef DLFP4_SRC_HOST_SIMD_LANES_H_
#define DLFP4_SRC_HOST_SIMD_LANES_H_

#include <stdint.h>
#include <string.h>

#include "rules/operand.h"

// For the steps: what is called once an iteration would load its constants each time.
#define DLFP4_ALWAYS_INLINE __attribute__((always_inline))

namespace dlfp4 {
namespace {

// Calls step(source, destination) for `Elements` of them at a time. The last ones are followed by zeros, which have
// code zero where codes are packed: so are a last byte's spare bits, whatever they are in the source.
template <int Elements, int SrcBits, int DstBits, class Step>
void in_steps(const uint8_t *src, uint8_t *dst, int64_t count, Step step) {
  constexpr int kSrcBytes = Elements * SrcBits / 8, kDstBytes = Elements * DstBits / 8;
  for (; count >= Elements; count -= Elements, src += kSrcBytes, dst += kDstBytes) step(src, dst);
  if (count <= 0) return;
  alignas(32) uint8_t from[kSrcBytes] = {}, to[kDstBytes];
  copy_codes(from, src, count * SrcBits);
  step(from, to);
  memcpy(dst, to, static_cast<size_t>((count * DstBits + 7) / 8));
}

template <class V>
V load_lanes(const void *src) {
  V vector;
  memcpy(&vector, src, sizeof(vector));
  return vector;
}

template <class V>
void store_lanes(void *dst, V vector) {
  memcpy(dst, &vector, sizeof(vector));
}

// The first `bytes` bytes, followed by zeros.
template <class V>
V load_part(const void *src, int64_t bytes) {
  constexpr int64_t kBytes = sizeof(V);
  if (bytes >= kBytes) return load_lanes<V>(src);
  V vector = {};
  memcpy(&vector, src, static_cast<size_t>(bytes));
  return vector;
}

template <class V>
void store_part(void *dst, V vector, int64_t bytes) {
  constexpr int64_t kBytes = sizeof(V);
  if (bytes >= kBytes) return store_lanes(dst, vector);
  memcpy(dst, &vector, static_cast<size_t>(bytes));
}

template <class V, class Lane>
V splat(Lane value) {
  return value - V{};  // keeps -0
}

template <class V>
V larger(V a, V b) {
  return a > b ? a : b;
}

template <class V>
V smaller(V a, V b) {
  return a < b ? a : b;
}

constexpr int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_HOST_SIMD_LANES_H_
