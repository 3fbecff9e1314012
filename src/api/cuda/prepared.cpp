// Weights that are prepared for CUDA's matrix kernels, and products by them.
// Layout: see products/cuda/prepared.h.
// Trick: what decides whether a weight can be prepared is found in the memory that it is to have.
#include "gpu/driver.h"
#include "gpu/kernels.h"
#include "run.h"

namespace dlfp4 {
namespace api {
namespace {

dlfp4_status inspect(const Place &place, const dlfp4_blocks &w, int format, int64_t rows, void *memory,
                     dlfp4_cuda_report *report) {
  const dlfp4_status status = run(place, DLFP4_CUDA_IMAGE_products, [&] {
    return dlfp4_cuda_inspect(place.device, place.stream, &w, format, rows, static_cast<dlfp4_cuda_report *>(memory));
  });
  if (status) return status;
  return status_of(dlfp4_cuda_copy(place.device, place.stream, DLFP4_DEVICE_TO_HOST, report, memory, sizeof(*report)));
}

bool starts_at(const Matrix &x, int64_t bytes) {
  const int64_t row = x.strides[0] * x.bits / 8;
  return reinterpret_cast<uintptr_t>(x.data) % static_cast<uintptr_t>(bytes) == 0 &&
         (x.shape[0] <= 1 || (row % bytes == 0 && x.strides[0] >= x.shape[1]));
}

bool has_dense_rows(const Matrix &x) { return x.strides[1] == 1 || x.shape[1] <= 1; }

// The step from row to row; that of a single row means nothing.
int64_t step_of(const Matrix &x) { return x.shape[0] > 1 ? x.strides[0] : x.shape[1]; }

}  // namespace
}  // namespace api
}  // namespace dlfp4

extern "C" {

int64_t dlfp4_prepared_bytes(int format, int64_t rows, int64_t columns) {
  using dlfp4::api::kMostExtent;
  if (format < 0 || format >= DLFP4_NUM_FORMATS || rows < 0 || columns < 0) return 0;
  if (rows > kMostExtent || columns > kMostExtent || (rows > 0 && columns > kMostExtent / rows)) return 0;
  const dlfp4_cuda_prepared_size size = dlfp4_cuda_size_prepared(format, rows, columns);
  return size.blocks * (size.code_bytes + size.scale_bytes);
}

dlfp4_status dlfp4_prepare(const dlfp4_scaled_tensor *w, void *memory, dlfp4_prepared *prepared, void *stream) {
  using namespace dlfp4::api;
  int64_t rows, columns;
  Scaled scaled;
  Place place;
  dlfp4_cuda_report report;
  if (!w || !memory || !prepared) return DLFP4_E_OPTION;
  if (const dlfp4_status status = read_extents(w, &rows, &columns)) return status;
  if (const dlfp4_status status = read_scaled(w, rows, columns, 0, &scaled)) return status;
  if (const dlfp4_status status = find_place_of(w, nullptr, nullptr, stream, &place)) return status;
  if (place.on_host) return DLFP4_E_DEVICE;
  const int format = w->format;
  if (w->axis != -1 || w->layout != 0 || w->rotation || scaled.blocks.decodes) return DLFP4_E_OPTION;
  if (dlfp4_prepared_bytes(format, rows, columns) == 0) return DLFP4_E_OPTION;
  if (const dlfp4_status status = inspect(place, scaled.blocks, format, rows, memory, &report)) return status;
  if (!dlfp4_cuda_can_prepare(format, &report)) return DLFP4_E_OPTION;
  const int largest = static_cast<int>(report.largest);
  const int code = dlfp4_cuda_prepare(place.device, place.stream, &scaled.blocks, format, rows, largest, memory, 0);
  // Products read weights before the kernel before them has ended, which must not be the one that prepares these.
  if (const dlfp4_status status = status_of(code ? code : dlfp4_cuda_wait(place.device, place.stream))) return status;
  *prepared = {
      memory, scaled.global_scale, place.device, format, largest, dlfp4_cuda_is_exact_in_half(format, &report), rows,
      columns};
  return DLFP4_OK;
}

dlfp4_status dlfp4_matmul_prepared(const DLTensor *x, const dlfp4_prepared *w, const DLTensor *out, float alpha,
                                   void *stream) {
  using namespace dlfp4::api;
  Matrix from, to;
  Place place;
  if (!w) return DLFP4_E_OPTION;
  if (const dlfp4_status status = read_pair(read_matrix, x, out, stream, &from, &to, &place)) return status;
  if (place.on_host || place.device != w->device) return DLFP4_E_DEVICE;
  const bool is_half = from.dtype == DLFP4_float16;
  if (!(from.dtype == DLFP4_bfloat16 || (is_half && w->exact_in_half))) return DLFP4_E_DTYPE;
  if (to.dtype != DLFP4_float32 && to.dtype != DLFP4_bfloat16 && to.dtype != DLFP4_float16) return DLFP4_E_DTYPE;
  if (from.shape[0] != to.shape[0] || to.shape[1] != w->rows || from.shape[1] > w->columns) return DLFP4_E_SHAPE;
  if (from.shape[1] == 0 || from.shape[1] % 8 != 0 || !has_dense_rows(from) || !starts_at(from, 16))
    return DLFP4_E_SHAPE;
  if (!has_dense_rows(to) || !starts_at(to, to.bits / 8)) return DLFP4_E_SHAPE;
  dlfp4_cuda_product product = {};
  product.weights = w->memory;
  product.format = w->format;
  product.largest = w->largest;
  product.x = from.data;
  product.x_stride = step_of(from);
  product.x_is_half = is_half;
  product.y = to.data;
  product.y_stride = step_of(to);
  product.y_bytes = to.bits / 8;
  product.y_is_half = to.dtype == DLFP4_float16;
  product.rows = from.shape[0];
  product.columns = w->rows;
  product.depth = from.shape[1];
  product.stored_depth = w->columns;
  product.alpha = alpha;
  product.factors[0] = w->factor;
  return run(place, DLFP4_CUDA_IMAGE_products, [&] {
    int tactic, count = 0;
    const int code = dlfp4_cuda_find_tactics(place.device, w->format, product.rows, product.columns, product.depth,
                                             &tactic, 1, &count);
    if (code != 0) return code;
    return count ? dlfp4_cuda_multiply(place.device, place.stream, &product, tactic)
                 : -(DLFP4_CUDA_REFUSED + DLFP4_E_SHAPE);
  });
}
}
