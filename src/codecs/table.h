// The table of a level's conversions, and which conversions between floats of more than 8 bits vector kernels do.
// Layout: rows as in kernels.h.
// All levels ask the same questions of a pair of formats.
#ifndef DLFP4_SRC_CODECS_TABLE_H_
#define DLFP4_SRC_CODECS_TABLE_H_

#include "kernels.h"
#include "rules/numerics.h"
#include "rules/operand.h"

namespace dlfp4 {
namespace {

constexpr bool is_wide(int row) { return is_float(kTypes[row]) && kTypes[row].bits > 8; }

template <int Size>
struct KernelRows {
  KernelRow row[Size];
  int size;
  constexpr void add(Operand src, Operand dst, Modes modes, Kernel kernel) { row[size++] = {src, dst, modes, kernel}; }
};

// An inexact conversion to more than 8 bits has a vector kernel for round-to-nearest alone.
template <int Src, int Dst>
constexpr Modes wide_modes() {
  return holds_exactly(kTypes[Dst], kTypes[Src]) ? kAnyMode : kNearestEven;
}

// Wide floats become float32 on the way. A NaN between float16 and float64 keeps a payload that float32 cannot carry.
constexpr bool converts_through_float32(int src, int dst) {
  const bool doubles = src == DLFP4_float64 || dst == DLFP4_float64;
  return src != dst && !(doubles && (src == DLFP4_float16 || dst == DLFP4_float16));
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_CODECS_TABLE_H_
