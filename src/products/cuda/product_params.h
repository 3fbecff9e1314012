// What hosts tell kernels of prepared weights.
#ifndef DLFP4_SRC_PRODUCTS_CUDA_PRODUCT_PARAMS_H_
#define DLFP4_SRC_PRODUCTS_CUDA_PRODUCT_PARAMS_H_

#include "gpu/kernels.h"
#include "params.h"

namespace dlfp4 {
namespace cuda {

constexpr int kNoKind = -1;

// The WeightKind of a format that has a prepared form, or kNoKind.
int weight_kind(int format);

ProductParams product_params(const dlfp4_cuda_product &product);

// The ByteKind of a product.
int byte_kind(const dlfp4_cuda_bytes_product &product);

BytesParams bytes_params(const dlfp4_cuda_bytes_product &product);

enum BoxType { kByteBox = 0, kFloat16Box = 6, kBfloat16Box = 9 };  // the driver's numbers

inline BoxType box_type(bool is_half) { return is_half ? kFloat16Box : kBfloat16Box; }

// The driver's description of a matrix, its rows `stride` bytes apart, for boxes of `box_rows` by 128 bytes, or by
// `box_columns`. Rows of 128 bytes are swizzled.
int describe(const uint8_t *data, BoxType type, int rows, int columns, int64_t stride, int box_rows, TensorMap *map,
             int box_columns = 0);

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_CUDA_PRODUCT_PARAMS_H_
