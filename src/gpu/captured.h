// Memory that is allocated while a stream is captured into a graph.
#ifndef DLFP4_SRC_GPU_CAPTURED_H_
#define DLFP4_SRC_GPU_CAPTURED_H_

#include <stddef.h>
#include <stdint.h>

#include <vector>

#include "context.h"

namespace dlfp4 {
namespace cuda {

// Each with a context of `device` current, and false where neither the stream is captured nor the memory is a
// capture's: it is the caller's then. What other streams of the capture use may not serve it again; memory is given
// back after the events of its readers outside of the capture, which end with it.
bool allocate_if_captured(int device, uintptr_t stream, size_t bytes, void **out, int *status);
bool free_if_captured(int device, uintptr_t stream, void *memory, bool serves_again, std::vector<CUevent> readers,
                      int *status);

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_GPU_CAPTURED_H_
