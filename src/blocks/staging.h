// Runs of a line as neighbours in memory, as the kernels take them: gathered, completed with zeros, rotated.
#ifndef DLFP4_SRC_BLOCKS_STAGING_H_
#define DLFP4_SRC_BLOCKS_STAGING_H_

#include "kernels.h"
#include "rules/hadamard.h"
#include "rules/matrix.h"

namespace dlfp4 {

constexpr int64_t kMostStaged = 2048;                                // elements of a run, a multiple of 16
constexpr int64_t kMostRotatedLines = kMostStaged / kRotatedLength;  // of sixteen positions
constexpr int kMostItem = 4;                                         // bytes of a float

// Floats that follow one another.
struct Run {
  const uint8_t *src;
  Source source;
};

struct StagingMemory {
  alignas(64) uint8_t gathered[kMostStaged * kMostItem];
  alignas(64) float rotated[kMostStaged];
};

// Elements [first, first + count) of a line, zeros beyond its end: where they lie, or in `memory`.
Run stage(const BlockKernels &kernels, const Lines &x, int64_t line, int64_t first, int64_t count,
          StagingMemory *memory);

// The elements of a line that can differ from zero: a rotation spreads the last ones over their sixteen.
int64_t rotated_length(const Lines &x);

// Sixteen positions of `lines` lines that are neighbours in memory, from `line` and `first` on, rotated to rows of
// floats that are `pitch` apart; at most kMostRotatedLines.
void stage_across(const BlockKernels &kernels, const Lines &x, int64_t line, int64_t lines, int64_t first, float *rows,
                  int64_t pitch);

}  // namespace dlfp4

#endif  // DLFP4_SRC_BLOCKS_STAGING_H_
