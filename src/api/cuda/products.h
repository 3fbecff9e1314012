// What products on CUDA devices share.
// Layout: results are matrices in rows whose elements lie side by side.
// Trick: both kinds of product have the same members for results, and experts are routed alike.
#ifndef DLFP4_SRC_API_CUDA_PRODUCTS_H_
#define DLFP4_SRC_API_CUDA_PRODUCTS_H_

#include "rules/dtypes.h"
#include "run.h"

namespace dlfp4 {
namespace api {

// Whether rows begin at multiples of so many bytes and do not overlap, their elements side by side.
inline bool has_rows_at(const dlfp4_matrix &x, int64_t bytes) {
  const int64_t row = x.strides[0] * x.bits / 8;
  if (x.strides[1] != 1 && x.columns > 1) return false;
  if (reinterpret_cast<uintptr_t>(x.data) % static_cast<uintptr_t>(bytes) != 0) return false;
  return x.rows <= 1 || (row % bytes == 0 && x.strides[0] >= x.columns);
}

// The step from row to row; that of a single row means nothing.
inline int64_t step_of(const dlfp4_matrix &x) { return x.rows > 1 ? x.strides[0] : x.columns; }

template <class Product>
dlfp4_status set_result(const dlfp4_matrix &out, Product *product) {
  const int dtype = dlfp4_find_dtype(out.code, out.bits);
  if (dtype != DLFP4_float32 && dtype != DLFP4_bfloat16 && dtype != DLFP4_float16) return DLFP4_E_DTYPE;
  if (!has_rows_at(out, out.bits / 8)) return DLFP4_E_SHAPE;
  product->y = out.data;
  product->y_stride = step_of(out);
  product->y_bytes = out.bits / 8;
  product->y_is_half = dtype == DLFP4_float16;
  product->columns = out.columns;
  return DLFP4_OK;
}

// For x of so many rows. Where its rows are gathered and added as well, both sides have as many tokens.
inline dlfp4_status route(const Experts &experts, int64_t lines, const dlfp4_matrix &out, void *workspace,
                          dlfp4_cuda_routing *routing) {
  const bool adds = experts.weights != nullptr;
  if (experts.gathers && adds && lines != out.rows) return DLFP4_E_SHAPE;
  *routing = {};
  routing->experts = experts.count;
  routing->ends = experts.ends.data;
  routing->end_bits = experts.ends.bits;
  routing->indices = experts.indices.data;
  routing->index_bits = experts.indices.bits;
  routing->gathers = experts.gathers;
  routing->adds = adds;
  routing->weights = experts.weights;
  routing->tokens = adds ? out.rows : lines;
  routing->workspace = workspace;
  return DLFP4_OK;
}

// Whether a workspace of so many bytes can be used, which kernels read 16 bytes at a time.
inline dlfp4_status check_workspace(const void *workspace, int64_t bytes) {
  if (bytes <= 0) return DLFP4_OK;  // none is needed, or the call is refused for its extents
  if (!workspace) return DLFP4_E_OPTION;
  return reinterpret_cast<uintptr_t>(workspace) % 16 == 0 ? DLFP4_OK : DLFP4_E_SHAPE;
}

}  // namespace api
}  // namespace dlfp4

#endif  // DLFP4_SRC_API_CUDA_PRODUCTS_H_
