// The frame of a level whose kernels do a fixed number of elements a step: the walk over a run, the table of rows.
// Layout: runs as in kernels.h.
// Trick: the last elements are a step in memory of its own, so that kernels need no other code for them.
#ifndef DLFP4_SRC_CPU_VECTOR_LEVEL_H_
#define DLFP4_SRC_CPU_VECTOR_LEVEL_H_

#include <stdint.h>
#include <string.h>

#include <utility>

#include "../numerics.h"
#include "kernels.h"

// For the steps: what is called once an iteration would load its constants each time.
#define DLFP4_ALWAYS_INLINE __attribute__((always_inline))

namespace dlfp4 {
namespace {

// Calls step(source, destination) for `Elements` of them at a time. The last ones are followed by zeros, which have
// code zero where codes are packed: so are a last byte's spare bits.
template <int Elements, int SrcBits, int DstBits, class Step>
void in_steps(const uint8_t *src, uint8_t *dst, int64_t count, Step step) {
  constexpr int kSrcBytes = Elements * SrcBits / 8, kDstBytes = Elements * DstBits / 8;
  for (; count >= Elements; count -= Elements, src += kSrcBytes, dst += kDstBytes) step(src, dst);
  if (count <= 0) return;
  alignas(32) uint8_t from[kSrcBytes] = {}, to[kDstBytes];
  memcpy(from, src, static_cast<size_t>((count * SrcBits + 7) / 8));
  step(from, to);
  memcpy(dst, to, static_cast<size_t>((count * DstBits + 7) / 8));
}

// --- The table -------------------------------------------------------------------------------

constexpr bool is_low(int row) { return is_float(kFormats[row]) && kFormats[row].bits <= 8; }
constexpr bool is_wide(int row) { return is_float(kFormats[row]) && kFormats[row].bits > 8; }

struct Rows {
  KernelRow row[16 * DLFP4_NUM_DTYPES];
  int size;
  constexpr void add(Operand src, Operand dst, Modes modes, Kernel kernel) { row[size++] = {src, dst, modes, kernel}; }
};

// Encoding float64 would take a rounding to odd first.
template <class Kernels, int Low, bool kPacked, int Wide>
constexpr void add_conversions(Rows *rows) {
  constexpr Operand kLow = {Low, kPacked}, kWide = {Wide, false};
  if constexpr (holds_exactly(kFormats[Wide], kFormats[Low]))
    rows->add(kLow, kWide, kAnyMode, Kernels::template decode<Low, kPacked, Wide>);
  if constexpr (Wide != DLFP4_float64)
    rows->add(kWide, kLow, kNearestEven, Kernels::template encode<Wide, Low, kPacked>);
}

template <class Kernels, int Low, int Wide>
constexpr void add_pair(Rows *rows) {
  if constexpr (is_low(Low) && is_wide(Wide)) {
    add_conversions<Kernels, Low, false, Wide>(rows);
    if constexpr (kFormats[Low].bits < 8) add_conversions<Kernels, Low, true, Wide>(rows);
  }
}

template <class Kernels, int Low, int... Wide>
constexpr void add_type(Rows *rows, std::integer_sequence<int, Wide...>) {
  if constexpr (kFormats[Low].bits < 8) {
    rows->add({Low, false}, {Low, true}, kAnyMode, Kernels::template pack<kFormats[Low].bits>);
    rows->add({Low, true}, {Low, false}, kAnyMode, Kernels::template unpack<kFormats[Low].bits>);
  }
  (add_pair<Kernels, Low, Wide>(rows), ...);
}

template <class Kernels, int... Low>
constexpr Rows make_rows(std::integer_sequence<int, Low...> all_rows) {
  Rows rows = {};
  (add_type<Kernels, Low>(&rows, all_rows), ...);
  return rows;
}

// `Kernels` has the templates that are named here, functions in the sense of Kernel.
template <class Kernels>
constexpr Rows make_rows() {
  return make_rows<Kernels>(std::make_integer_sequence<int, DLFP4_NUM_DTYPES>());
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_CPU_VECTOR_LEVEL_H_
