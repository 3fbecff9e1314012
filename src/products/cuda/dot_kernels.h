// What hosts know of the kernels of sums of products.
#ifndef DLFP4_SRC_PRODUCTS_CUDA_DOT_KERNELS_H_
#define DLFP4_SRC_PRODUCTS_CUDA_DOT_KERNELS_H_

#include "gpu/keys.h"

namespace dlfp4 {
namespace cuda {

// What there are kernels for; 0 is kByName.
enum DotOperation { kDotVectors = 1, kDotSteps, kDotBlocks };

}  // namespace cuda
}  // namespace dlfp4

#define DLFP4_CUDA_IMAGE_NAME dots
#define DLFP4_CUDA_IMAGE_LIST "products/cuda/dots.def"
#include "gpu/kernels_of_image.h"

#endif  // DLFP4_SRC_PRODUCTS_CUDA_DOT_KERNELS_H_
