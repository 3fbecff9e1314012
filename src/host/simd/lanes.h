// What the compiler's vector types lack, loads and stores of any address, a value in all lanes, extremes; and the walk
// of a kernel over a run.
// Layout: V is a vector in the sense of gcc and clang, whose operators work lane by lane; runs are contiguous.
// Trick: the last elements of a run are a step like the others, in memory of its own.
#ifndef DLFP4_SRC_HOST_SIMD_LANES_H_
#define DLFP4_SRC_HOST_SIMD_LANES_H_

#include <stdint.h>
#include <string.h>

// For the steps: what is called once an iteration would load its constants each time.
#define DLFP4_ALWAYS_INLINE __attribute__((always_inline))

namespace dlfp4 {
namespace {

// --- Lanes -----------------------------------------------------------------------------------

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

// --- Steps -----------------------------------------------------------------------------------

// What an instruction set has unless it says otherwise: no stores past the caches, no prefetches, parts by memcpy.
struct PlainMemory {
  template <int Bits>
  static constexpr bool kStreams = false;  // elements of so many bits are stored past the caches
  static void fence() {}

  static constexpr bool kEncodesIntegers = false;  // floats are rounded to integers by an encoder, to nearest even

  // Asks for the lines that a step of so many bytes reads kAhead bytes from here.
  template <int Bytes, int kAhead>
  static void prefetch(const uint8_t *) {}

  // The first `bytes` bytes of a vector.
  template <class V>
  static V load_part(const void *src, int64_t bytes) {
    return dlfp4::load_part<V>(src, bytes);
  }
  template <class V>
  static void store_part(void *dst, V vector, int64_t bytes) {
    dlfp4::store_part(dst, vector, bytes);
  }

  // Into and out of memory that a step has for itself, with room for whole vectors.
  static void read_part(uint8_t *dst, const uint8_t *src, int64_t bytes) {
    memcpy(dst, src, static_cast<size_t>(bytes));
  }
  static void write_part(uint8_t *dst, const uint8_t *src, int64_t bytes) {
    memcpy(dst, src, static_cast<size_t>(bytes));
  }
};

// So many elements in memory of their own, which ends in zeros.
template <int Elements, int Bits>
struct StepMemory {
  alignas(64) uint8_t byte[(Elements * Bits / 8 + 63) / 64 * 64];
};

// Calls step(source, destination) for Isa::kCodes elements at a time. The last ones are followed by zeros, which have
// code zero where codes are packed: so are a last byte's spare bits, whatever they are in the source.
template <class Isa, int SrcBits, int DstBits, class Step>
DLFP4_ALWAYS_INLINE inline void in_steps(const uint8_t *src, uint8_t *dst, int64_t count, Step step) {
  constexpr int kCodes = Isa::kCodes, kSrcBytes = kCodes * SrcBits / 8, kDstBytes = kCodes * DstBits / 8;
  for (; count >= kCodes; count -= kCodes, src += kSrcBytes, dst += kDstBytes) step(src, dst);
  if (count <= 0) return;
  StepMemory<kCodes, SrcBits> from = {};
  StepMemory<kCodes, DstBits> to;
  const int64_t bits = count * SrcBits;
  Isa::read_part(from.byte, src, (bits + 7) / 8);
  if (bits % 8) from.byte[bits / 8] &= static_cast<uint8_t>((1 << bits % 8) - 1);
  step(from.byte, to.byte);
  Isa::write_part(dst, to.byte, (count * DstBits + 7) / 8);
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_HOST_SIMD_LANES_H_
