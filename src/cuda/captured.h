// Memory that is allocated while a stream is captured into a graph.
#ifndef DLFP4_SRC_CUDA_CAPTURED_H_
#define DLFP4_SRC_CUDA_CAPTURED_H_

#include <stddef.h>
#include <stdint.h>

namespace dlfp4 {
namespace cuda {

// Each with a context of `device` current. What a capture has not allocated or freed is left to the caller:
// `*is_taken`.
int allocate_if_captured(int device, uintptr_t stream, size_t bytes, void **out, bool *is_taken);
int free_if_captured(int device, uintptr_t stream, void *memory, bool *is_taken);

// Memory from before, which the driver does not free while the stream is captured: as long as the graph. `status` where
// it is not captured.
int keep_if_captured(int device, uintptr_t stream, void *memory, int status);

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_CUDA_CAPTURED_H_
