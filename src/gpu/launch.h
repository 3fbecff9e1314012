// Kernels of each device: found once, launched on the caller's stream.
// Layout: kernels.def's rows by number.
// Trick: an image is a library of the driver's, which serves every context; it is loaded before the first launch.
#ifndef DLFP4_SRC_GPU_LAUNCH_H_
#define DLFP4_SRC_GPU_LAUNCH_H_

#include <stdint.h>

namespace dlfp4 {
namespace cuda {

enum KernelNumber {
  kNoKernel = -1,
#define DLFP4_CUDA_KERNEL(name, key, parameters, body) kKernel_##name,
#include "products/cuda/kernels.def"
#undef DLFP4_CUDA_KERNEL
  kNumKernels
};

constexpr int64_t kMostBlocks = INT32_MAX;  // of a launch, along the first dimension

// Launches `blocks` blocks of kThreads threads in the current context; `params` is the kernel's struct. A CUresult, of
// CUDA_ERROR_NOT_INITIALIZED where the device has no kernels.
int launch(int kernel, int64_t blocks, void *params, uintptr_t stream);

// A launch of any shape, with shared memory beyond what the kernel declares.
struct Shape {
  int64_t blocks[2];
  int threads;
  int shared_bytes;
  int cluster;  // blocks of a cluster, along the first dimension; 1: none
};
int launch_shape(int kernel, const Shape &shape, void *params, uintptr_t stream);

// The architecture for which the current device's kernels were compiled: 80 if they serve all GPUs, 0 where there are
// none.
int ptx_version();

// Of the current device, once its kernels are loaded: how many, and the bytes that a block of threads may have if it
// asks for them.
int multiprocessors();
int most_shared_memory();

// Sets four bytes on the device, in the order of the stream. A CUresult.
int set_word(void *place, uint32_t value, uintptr_t stream);

// Copies four bytes on the device likewise.
int copy_word(void *dst, const void *src, uintptr_t stream);

// Sets `count` bytes likewise.
int set_bytes(void *place, uint8_t value, int64_t count, uintptr_t stream);

// Blocks that fill the current device, for kernels that walk.
int64_t blocks_for_device();

// The image in this library, which nvcc made; null where the build has none.
const void *built_image();

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_GPU_LAUNCH_H_
