// The largest magnitude of a run of a line, for scales of lines and of the whole tensor.
#ifndef DLFP4_SRC_BLOCKS_LARGEST_H_
#define DLFP4_SRC_BLOCKS_LARGEST_H_

#include "staging.h"

namespace dlfp4 {

// As float32 bits, of at most kMostStaged elements; infinities and NaNs do not count where `finite_only`.
uint32_t largest_of_run(const BlockKernels &kernels, const Lines &x, bool finite_only, int64_t line, int64_t first,
                        int64_t count);

// The same of sixteen rotated positions of some lines that are neighbours in memory.
uint32_t largest_of_rotated(const BlockKernels &kernels, const Lines &x, bool finite_only, int64_t line, int64_t lines,
                            int64_t first);

}  // namespace dlfp4

#endif  // DLFP4_SRC_BLOCKS_LARGEST_H_
