// The largest magnitude of a run of a line, for scales of lines and of the whole tensor.
#ifndef DLFP4_SRC_BLOCKS_LARGEST_H_
#define DLFP4_SRC_BLOCKS_LARGEST_H_

#include "kernels.h"
#include "rules/matrix.h"

namespace dlfp4 {

constexpr int64_t kMostSearched = 2048;  // elements at a time

// As float32 bits, of at most kMostSearched elements; infinities and NaNs do not count where `finite_only`.
uint32_t largest_of_run(const BlockKernels &kernels, const Lines &x, bool finite_only, int64_t line, int64_t first,
                        int64_t count);

}  // namespace dlfp4

#endif  // DLFP4_SRC_BLOCKS_LARGEST_H_
