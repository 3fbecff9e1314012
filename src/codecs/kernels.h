// The types that the kernel files share: an operand, a kernel, a table of kernels, a level.
// Layout: a kernel walks one run, contiguous on both sides, that starts on a byte on both sides.
// Trick: a level names only what it does faster; everything else falls through to the next one.
#ifndef DLFP4_SRC_CODECS_KERNELS_H_
#define DLFP4_SRC_CODECS_KERNELS_H_

#include <stdint.h>
#include <string.h>

#include "dlfp4/dlfp4.h"
#include "rules/dtypes.h"

namespace dlfp4 {

// One side of a conversion: a row of dtypes.def, packed (sub-byte types only) or an element a byte
// and more.
struct Operand {
  uint8_t row;
  bool packed;
};

struct Mode {
  dlfp4_rounding rounding;
  bool saturate;
  uint64_t seed;
  uint64_t first;  // the logical index of the run's first element, for stochastic rounding
};

// Converts `count` >= 0 elements. No pointer need be aligned; not one byte past either run is read
// or written. High bits of padded elements and spare bits of a last packed byte are ignored in the
// source and zero in the destination. The runs may be the same memory where elements keep their
// bytes.
using Kernel = void (*)(const uint8_t *src, uint8_t *dst, int64_t count, const Mode &mode);

// A set of modes, a bit each.
using Modes = uint8_t;
constexpr int kNumModes = 8;
static constexpr int mode_index(dlfp4_rounding rounding, bool saturate) {
  return 2 * static_cast<int>(rounding) + (saturate ? 1 : 0);
}
constexpr Modes kNearestEven = 3 << mode_index(DLFP4_NEAREST_EVEN, false);
// Those whose result depends on the code alone, not on the element's index.
constexpr int kNumFixedModes = mode_index(DLFP4_STOCHASTIC, false);
constexpr Modes kFixedModes = (1 << kNumFixedModes) - 1;
constexpr Modes kAnyMode = 0xFF;  // also of what never rounds: copies, exact decodes

// Copies `bits` of codes, without a last byte's spare bits.
static inline void copy_codes(uint8_t *dst, const uint8_t *src, int64_t bits) {
  memcpy(dst, src, static_cast<size_t>((bits + 7) / 8));
  if (bits % 8) dst[bits / 8] &= static_cast<uint8_t>((1 << bits % 8) - 1);
}

struct KernelRow {
  Operand src;
  Operand dst;
  Modes modes;
  Kernel kernel;
};

struct BlockKernels;

// What one file of kernels exports, as `const Level level_<name>`.
struct Level {
  const char *name;
  const KernelRow *rows;
  int num_rows;
  const BlockKernels *blocks;  // null: none
};

// The scalar kernels for any run and any mode: what a kernel of another level calls for the
// elements that it does not do itself (with mode.first advanced to them).
void scalar_run(Operand src, Operand dst, const uint8_t *from, uint8_t *to, int64_t count, const Mode &mode);

}  // namespace dlfp4

#endif  // DLFP4_SRC_CODECS_KERNELS_H_
