// The largest magnitude of a run of a line, for scales of lines and of the whole tensor.
// Layout: runs as staging.h has them.
// Trick: what is not finite wins; a run that has it is searched again, element by element where that is. Rotated runs
// are made only then.
#include "largest.h"

namespace dlfp4 {
namespace {

uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

uint32_t largest_finite(const BlockKernels &kernels, const Run &run, int64_t count) {
  constexpr int64_t kBlock = 16;
  uint32_t amax[kMostStaged / kBlock], largest = 0;
  const auto find = kernels.find_largest[run.source];
  const int64_t item = kTypes[kSourceRows[run.source]].bits / 8;
  find(run.src, count, kBlock, amax);
  for (int64_t first = 0; first < count; first += kBlock) {
    const uint32_t of_block = amax[first / kBlock];
    if (of_block < kFloatInfinity) largest = larger(largest, of_block);
    for (int64_t i = first; of_block >= kFloatInfinity && i < least(first + kBlock, count); ++i) {
      uint32_t magnitude;
      find(run.src + i * item, 1, kBlock, &magnitude);
      if (magnitude < kFloatInfinity) largest = larger(largest, magnitude);
    }
  }
  return largest;
}

uint32_t largest_in(const BlockKernels &kernels, const Run &run, int64_t count, bool finite_only) {
  uint32_t largest;
  kernels.find_largest[run.source](run.src, count, kMostStaged, &largest);
  return finite_only && largest >= kFloatInfinity ? largest_finite(kernels, run, count) : largest;
}

}  // namespace

uint32_t largest_of_run(const BlockKernels &kernels, const Lines &x, bool finite_only, int64_t line, int64_t first,
                        int64_t count) {
  StagingMemory memory;
  if (x.rotation) {
    Lines plain = x;
    plain.rotation = 0;
    const Run run = stage(kernels, plain, line, first, count, &memory);
    const uint32_t largest = kernels.largest_rotated[run.source](run.src, count, x.rotation);
    if (largest < kFloatInfinity) return largest;
  }
  return largest_in(kernels, stage(kernels, x, line, first, count, &memory), count, finite_only);
}

uint32_t largest_of_rotated(const BlockKernels &kernels, const Lines &x, bool finite_only, int64_t line, int64_t lines,
                            int64_t first) {
  if (first + kRotatedLength <= x.length) {
    const uint32_t largest =
        kernels.largest_rotated_across[x.source](at(x, line, first), x.step * x.item, lines, x.rotation);
    if (largest < kFloatInfinity) return largest;
  }
  alignas(64) float rows[kMostStaged];
  stage_across(kernels, x, line, lines, first, rows, lines);
  return largest_in(kernels, {reinterpret_cast<const uint8_t *>(rows), kFromFloat32}, kRotatedLength * lines,
                    finite_only);
}

}  // namespace dlfp4
