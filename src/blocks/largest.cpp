// The largest magnitude of a run of a line, for scales of lines and of the whole tensor.
// Layout: elements in order, or gathered first.
// Trick: what is not finite wins; a run that has it is searched again, element by element where that is.
#include "largest.h"

namespace dlfp4 {
namespace {

constexpr int kMostItem = 4;

uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

uint32_t largest_finite(const BlockKernels &kernels, const Lines &x, const uint8_t *src, int64_t count) {
  constexpr int64_t kBlock = 16;
  uint32_t amax[kMostSearched / kBlock], largest = 0;
  const auto find = kernels.find_largest[x.source];
  find(src, count, kBlock, amax);
  for (int64_t first = 0; first < count; first += kBlock) {
    const uint32_t of_block = amax[first / kBlock];
    if (of_block < kFloatInfinity) largest = larger(largest, of_block);
    for (int64_t i = first; of_block >= kFloatInfinity && i < least(first + kBlock, count); ++i) {
      uint32_t magnitude;
      find(src + i * x.item, 1, kBlock, &magnitude);
      if (magnitude < kFloatInfinity) largest = larger(largest, magnitude);
    }
  }
  return largest;
}

}  // namespace

uint32_t largest_of_run(const BlockKernels &kernels, const Lines &x, bool finite_only, int64_t line, int64_t first,
                        int64_t count) {
  alignas(64) uint8_t buffer[kMostSearched * kMostItem];
  const uint8_t *src = at(x, line, first);
  if (x.step != 1) {
    gather_items(src, x.step, x.item, count, buffer);
    src = buffer;
  }
  uint32_t largest;
  kernels.find_largest[x.source](src, count, kMostSearched, &largest);
  return finite_only && largest >= kFloatInfinity ? largest_finite(kernels, x, src, count) : largest;
}

}  // namespace dlfp4
