// The kernels of one image as hosts know them, in a namespace of its name: kKernel_<name>, and find_kernel by key.
// Layout: by number, the place in the image's list.
// Trick: included once an image, with DLFP4_CUDA_IMAGE_NAME and DLFP4_CUDA_IMAGE_LIST defined.
#include "gpu/kernel_rows.h"
#include "gpu/keys.h"

#define DLFP4_CUDA_JOIN(a, b) DLFP4_CUDA_JOINED(a, b)
#define DLFP4_CUDA_JOINED(a, b) a##b
#define DLFP4_CUDA_KERNELS_OF_IMAGE DLFP4_CUDA_JOIN(image_of_, DLFP4_CUDA_IMAGE_NAME)

namespace dlfp4 {
namespace cuda {
namespace DLFP4_CUDA_KERNELS_OF_IMAGE {
namespace {

constexpr Image kImage = DLFP4_CUDA_JOIN(kImage_, DLFP4_CUDA_IMAGE_NAME);

enum KernelNumber {
#define DLFP4_CUDA_KERNEL(name, key, parameters, body) kNumber_##name,
#include DLFP4_CUDA_IMAGE_LIST
#undef DLFP4_CUDA_KERNEL
  kNumKernels
};
static_assert(kNumKernels <= kMostKernels, "launch.cpp has room for so many kernels of an image");

#define DLFP4_CUDA_KERNEL(name, key, parameters, body) \
  constexpr DeviceKernel kKernel_##name = {kImage, kNumber_##name, (KernelKey key).operation};
#include DLFP4_CUDA_IMAGE_LIST
#undef DLFP4_CUDA_KERNEL

constexpr KernelKey kKeys[] = {
#define DLFP4_CUDA_KERNEL(name, key, parameters, body) KernelKey key,
#include DLFP4_CUDA_IMAGE_LIST
#undef DLFP4_CUDA_KERNEL
};

constexpr const char *kNames[] = {
#define DLFP4_CUDA_KERNEL(name, key, parameters, body) #name,
#include DLFP4_CUDA_IMAGE_LIST
#undef DLFP4_CUDA_KERNEL
};

constexpr DeviceKernel find_kernel(const KernelKey &wanted) { return find_in(kImage, kKeys, wanted); }

}  // namespace
}  // namespace DLFP4_CUDA_KERNELS_OF_IMAGE
}  // namespace cuda
}  // namespace dlfp4

#undef DLFP4_CUDA_KERNELS_OF_IMAGE
#undef DLFP4_CUDA_JOIN
#undef DLFP4_CUDA_JOINED
#undef DLFP4_CUDA_IMAGE_NAME
#undef DLFP4_CUDA_IMAGE_LIST
