// Runs of a line as neighbours in memory: gathered, completed with zeros, rotated.
// Layout: any strides; see matrix.h.
// Trick: what lies as kernels take it is not copied.
#include "staging.h"

#include <string.h>

namespace dlfp4 {
namespace {

const uint8_t *gather(const Lines &x, int64_t line, int64_t first, int64_t count, uint8_t *buffer) {
  const int64_t there = least(count, x.length - first);
  if (x.step == 1 && there == count) return at(x, line, first);
  if (there > 0) gather_items(at(x, line, first), x.step, x.item, there, buffer);
  const int64_t copied = there > 0 ? there : 0;
  memset(buffer + copied * x.item, 0, static_cast<size_t>((count - copied) * x.item));
  return buffer;
}

}  // namespace

Run stage(const BlockKernels &kernels, const Lines &x, int64_t line, int64_t first, int64_t count,
          StagingMemory *memory) {
  const uint8_t *const src = gather(x, line, first, count, memory->gathered);
  if (x.rotation == 0) return {src, x.source};
  kernels.rotate[x.source](src, count, x.rotation, memory->rotated);
  return {reinterpret_cast<const uint8_t *>(memory->rotated), kFromFloat32};
}

int64_t rotated_length(const Lines &x) { return x.rotation == 0 ? x.length : round_up(x.length, kRotatedLength); }

void stage_across(const BlockKernels &kernels, const Lines &x, int64_t line, int64_t lines, int64_t first, float *rows,
                  int64_t pitch) {
  const auto rotate = kernels.rotate_across[x.source];
  const int64_t there = least(kRotatedLength, x.length - first), row_bytes = lines * x.item;
  if (there == kRotatedLength) return rotate(at(x, line, first), x.step * x.item, lines, x.rotation, rows, pitch);
  alignas(64) uint8_t completed[kMostStaged * kMostItem] = {};
  for (int64_t k = 0; k < there; ++k)
    memcpy(completed + k * row_bytes, at(x, line, first + k), static_cast<size_t>(row_bytes));
  rotate(completed, row_bytes, lines, x.rotation, rows, pitch);
}

}  // namespace dlfp4
