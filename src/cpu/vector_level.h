// The frame of a level whose kernels do a fixed number of elements a step: the walk over a run, the table of rows.
// Layout: runs as in kernels.h.
// Trick: the last elements are a step in memory of its own, so that kernels need no other code for them.
#ifndef DLFP4_SRC_CPU_VECTOR_LEVEL_H_
#define DLFP4_SRC_CPU_VECTOR_LEVEL_H_

#include <stdint.h>
#include <string.h>

#include <utility>

#include "kernel_rows.h"

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

constexpr int kMostRows = 16 * DLFP4_NUM_DTYPES;

template <class Kernels, int Low, bool kPacked, int Wide>
constexpr void add_codes(Rows<kMostRows> *rows) {
  constexpr Operand kLow = {Low, kPacked}, kWide = {Wide, false};
  if constexpr (holds_exactly(kFormats[Wide], kFormats[Low]))
    rows->add(kLow, kWide, kAnyMode, Kernels::template decode<Low, kPacked, Wide>);
  rows->add(kWide, kLow, kNearestEven, Kernels::template encode<Wide, Low, kPacked>);
}

template <class Kernels, int Row, int Wide>
constexpr void add_pair(Rows<kMostRows> *rows) {
  if constexpr (is_low(Row) && is_wide(Wide)) {
    add_codes<Kernels, Row, false, Wide>(rows);
    if constexpr (kFormats[Row].bits < 8) add_codes<Kernels, Row, true, Wide>(rows);
  }
  if constexpr (is_wide(Row) && is_wide(Wide) && converts_through_float32(Row, Wide))
    rows->add({Row, false}, {Wide, false}, wide_modes<Row, Wide>(), Kernels::template convert<Row, Wide>);
}

template <class Kernels, int Row, int... Wide>
constexpr void add_type(Rows<kMostRows> *rows, std::integer_sequence<int, Wide...>) {
  if constexpr (kFormats[Row].bits < 8) {
    rows->add({Row, false}, {Row, true}, kAnyMode, Kernels::template pack<kFormats[Row].bits>);
    rows->add({Row, true}, {Row, false}, kAnyMode, Kernels::template unpack<kFormats[Row].bits>);
  }
  (add_pair<Kernels, Row, Wide>(rows), ...);
}

template <class Kernels, int... Row>
constexpr Rows<kMostRows> make_rows(std::integer_sequence<int, Row...> all_rows) {
  Rows<kMostRows> rows = {};
  (add_type<Kernels, Row>(&rows, all_rows), ...);
  return rows;
}

// `Kernels` has the templates that are named here, functions in the sense of Kernel.
template <class Kernels>
constexpr Rows<kMostRows> make_rows() {
  return make_rows<Kernels>(std::make_integer_sequence<int, DLFP4_NUM_DTYPES>());
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_CPU_VECTOR_LEVEL_H_
