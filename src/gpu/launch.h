// Kernels of each device: found once, launched on the caller's stream.
// Layout: an image's kernels by number, the place in its list.
// Trick: an image is a library of the driver's, which serves every context; it is loaded before the first launch of one
// of its kernels.
#ifndef DLFP4_SRC_GPU_LAUNCH_H_
#define DLFP4_SRC_GPU_LAUNCH_H_

#include <stdint.h>

#include "kernels.h"

namespace dlfp4 {
namespace cuda {

// The status of a description that kernels do not take.
inline int refuse(dlfp4_status status) { return -(DLFP4_CUDA_REFUSED + status); }

enum Image {
#define DLFP4_CUDA_IMAGE(name) kImage_##name,
#include "images.def"
#undef DLFP4_CUDA_IMAGE
  kNumImages
};

// Each image's, where its kernels are launched from.
struct KernelNames {
  const char *const *names;
  int count;
};
#define DLFP4_CUDA_IMAGE(name) extern const KernelNames kernels_of_##name;
#include "images.def"
#undef DLFP4_CUDA_IMAGE
constexpr int kMostKernels = 512;  // of an image: tables of so many handles cost no memory before they are used

struct DeviceKernel {
  Image image;
  int number;
  int operation;  // of its key, see keys.h

  constexpr bool operator==(const DeviceKernel &other) const { return image == other.image && number == other.number; }
  constexpr bool operator!=(const DeviceKernel &other) const { return !(*this == other); }
};
constexpr DeviceKernel kNoKernel = {kNumImages, -1, 0};

constexpr int64_t kMostBlocks = INT32_MAX;  // of a launch, along the first dimension

// Launches `blocks` blocks of kThreads threads in the current context; `params` is the kernel's struct. A CUresult, of
// CUDA_ERROR_NOT_INITIALIZED where the device has no kernels; refused with DLFP4_E_SHAPE are more blocks than a launch
// has.
int launch(const DeviceKernel &kernel, int64_t blocks, void *params, uintptr_t stream);

// A launch of any shape, with shared memory beyond what the kernel declares.
struct Shape {
  int64_t blocks[2];
  int threads;
  int shared_bytes;
  int cluster;  // blocks of a cluster, along the first dimension; 1: none
};
int launch_shape(const DeviceKernel &kernel, const Shape &shape, void *params, uintptr_t stream);

// A CUresult, of CUDA_ERROR_NO_BINARY_FOR_GPU where the current device has no kernels of an image for sm_90a: elsewhere
// those that need it are empty.
int need_hopper_kernels(Image image);

// Of the current device, once it has kernels: how many, and the bytes that a block of threads may have if it
// asks for them.
int multiprocessors();
int most_shared_memory();

// Sets four bytes on the device, in the order of the stream. A CUresult.
int set_word(void *place, uint32_t value, uintptr_t stream);

// Copies `count` bytes on the device likewise.
int copy_bytes(void *dst, const void *src, int64_t count, uintptr_t stream);

// Sets `count` bytes likewise.
int set_bytes(void *place, uint8_t value, int64_t count, uintptr_t stream);

// Blocks that fill the current device, for kernels that walk.
int64_t blocks_for_device();

// An image in this library, which nvcc made; null where the build has none.
const void *built_image(Image image);

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_GPU_LAUNCH_H_
