// What all files of codecs share: a kernel, the modes that it serves, a level's table of kernels.
// Layout: a kernel walks one run, contiguous on both sides, that starts on a byte on both sides.
// Trick: a level names only what it does faster; everything else falls through to the next one.
#ifndef DLFP4_SRC_CODECS_KERNELS_H_
#define DLFP4_SRC_CODECS_KERNELS_H_

#include <stdint.h>

#include "rules/operand.h"
#include "rules/operations.h"

namespace dlfp4 {

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
using Modes = uint16_t;
constexpr int kNumModes = 2 * (DLFP4_STOCHASTIC + 1);
static constexpr int mode_index(dlfp4_rounding rounding, bool saturate) {
  return 2 * static_cast<int>(rounding) + (saturate ? 1 : 0);
}
constexpr Modes kNearestEven = 3 << mode_index(DLFP4_NEAREST_EVEN, false);
constexpr Modes kNearestZero = 3 << mode_index(DLFP4_NEAREST_ZERO, false);
// Modes whose result depends on the code alone, not on the element's index.
constexpr int kNumFixedModes = mode_index(DLFP4_STOCHASTIC, false);
constexpr Modes kFixedModes = (1 << kNumFixedModes) - 1;
constexpr Modes kAnyMode = (1 << kNumModes) - 1;  // also of what never rounds: copies, exact decodes

struct KernelRow {
  Operand src;
  Operand dst;
  Modes modes;
  Kernel kernel;
};

// The kernels that serve at a level, by source, destination and mode.
class CodecKernels {
 public:
  // Later rows replace earlier ones.
  void add(const KernelRow *rows, int count);
  Kernel find(Operand src, Operand dst, int mode) const { return kernels_[index_of(src)][index_of(dst)][mode]; }

 private:
  static int index_of(Operand operand) { return operand.row + (operand.packed ? DLFP4_NUM_DTYPES : 0); }

  Kernel kernels_[2 * DLFP4_NUM_DTYPES][2 * DLFP4_NUM_DTYPES][kNumModes];
};

// The kernels of a level, with those of slower levels where it has none.
const CodecKernels &codec_kernels(int level);

// The scalar kernels for any run and any mode: what a kernel of another level calls for the
// elements that it does not do itself (with mode.first advanced to them).
void scalar_run(Operand src, Operand dst, const uint8_t *from, uint8_t *to, int64_t count, const Mode &mode);

}  // namespace dlfp4

#endif  // DLFP4_SRC_CODECS_KERNELS_H_
