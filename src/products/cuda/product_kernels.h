// What hosts know of the kernels of products with prepared weights.
#ifndef DLFP4_SRC_PRODUCTS_CUDA_PRODUCT_KERNELS_H_
#define DLFP4_SRC_PRODUCTS_CUDA_PRODUCT_KERNELS_H_

#include "gpu/keys.h"
#include "many_rows.h"

namespace dlfp4 {
namespace cuda {

// What there are kernels for; 0 is kByName.
enum ProductOperation {
  kMultiply8 = 1,
  kMultiply16,
  kMultiply32,
  kMultiply64,
  kMultiply128,
  kMultiply256,
  kMultiplyWalking,
  kMultiplyWalk64x64,
  kMultiplyWalk64x112,
  kMultiplyWalk64x128,
  kMultiplyWalk64x192,
  kMultiplyWalk128x64,
  kMultiplyWalk128x112,
  kMultiplyWalk128x128,
  kMultiplyWalk128x144,
  kMultiplyWalk256x128
};

}  // namespace cuda
}  // namespace dlfp4

#define DLFP4_CUDA_IMAGE_NAME products
#define DLFP4_CUDA_IMAGE_LIST "products/cuda/products.def"
#include "gpu/kernels_of_image.h"

#endif  // DLFP4_SRC_PRODUCTS_CUDA_PRODUCT_KERNELS_H_
