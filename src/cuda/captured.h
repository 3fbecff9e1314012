// Memory that is allocated while a stream is captured into a graph.
#ifndef DLFP4_SRC_CUDA_CAPTURED_H_
#define DLFP4_SRC_CUDA_CAPTURED_H_

#include <stddef.h>
#include <stdint.h>

namespace dlfp4 {
namespace cuda {

// Each with a context of `device` current, and false where neither the stream is captured nor the memory is a
// capture's: it is the caller's then. What other streams of the capture use may not serve it again.
bool allocate_if_captured(int device, uintptr_t stream, size_t bytes, void **out, int *status);
bool free_if_captured(int device, uintptr_t stream, void *memory, bool serves_again, int *status);

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_CUDA_CAPTURED_H_
