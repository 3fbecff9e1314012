// What hosts know of the kernels of products by experts.
#ifndef DLFP4_SRC_PRODUCTS_CUDA_GROUPED_KERNELS_H_
#define DLFP4_SRC_PRODUCTS_CUDA_GROUPED_KERNELS_H_

#include "gpu/keys.h"
#include "grouped.h"

namespace dlfp4 {
namespace cuda {

// What there are kernels for; 0 is kByName.
enum GroupedOperation { kGroupedStream = 1, kGroupedFew, kGroupedMany, kGroupedFewBytes, kGroupedManyBytes };

}  // namespace cuda
}  // namespace dlfp4

#define DLFP4_CUDA_IMAGE_NAME grouped
#define DLFP4_CUDA_IMAGE_LIST "products/cuda/grouped.def"
#include "gpu/kernels_of_image.h"

#endif  // DLFP4_SRC_PRODUCTS_CUDA_GROUPED_KERNELS_H_
