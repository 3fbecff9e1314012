// Weights that are prepared for CUDA's matrix kernels, and products by them.
// Layout: see products/cuda/prepared.h.
// Trick: what decides whether a weight can be prepared is found in the memory that it is to have.
#include "products.h"

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

// How many matrices with a scale of their own weights are; 0: their lines have scales, which products do not take.
int64_t count_matrices(const dlfp4_blocks &w, int64_t rows) {
  if (!w.decodes) return 1;
  return w.decode_lines == 1 && rows > 1 ? 0 : rows / w.decode_lines;
}

// All but the number of rows, where x's are routed.
dlfp4_status describe(const DLTensor *x, const dlfp4_prepared &w, const DLTensor *out, float alpha, void *stream,
                      Place *place, dlfp4_matrix *result, dlfp4_cuda_product *product) {
  Matrix from, to;
  if (const dlfp4_status status = read_pair(read_matrix, x, out, stream, &from, &to, place)) return status;
  if (place->on_host || place->device != w.device) return DLFP4_E_DEVICE;
  const bool is_half = from.dtype == DLFP4_float16;
  if (!(from.dtype == DLFP4_bfloat16 || (is_half && w.exact_in_half))) return DLFP4_E_DTYPE;
  const dlfp4_matrix rows = matrix_of(from);
  if (rows.columns == 0 || rows.columns > w.columns || rows.columns % 8 != 0 || !has_rows_at(rows, 16))
    return DLFP4_E_SHAPE;
  *product = {};
  product->weights = w.memory;
  product->format = w.format;
  product->largest = w.largest;
  product->x = rows.data;
  product->x_stride = step_of(rows);
  product->x_is_half = is_half;
  product->rows = rows.rows;
  product->depth = rows.columns;
  product->stored_depth = w.columns;
  product->alpha = alpha;
  product->factors[0] = w.factors;
  *result = matrix_of(to);
  return set_result(*result, product);
}

// The same by experts.
dlfp4_status describe_routed(const DLTensor *x, const dlfp4_prepared *w, const dlfp4_routing *routing,
                             const DLTensor *out, float alpha, void *workspace, void *stream, Place *place,
                             dlfp4_cuda_product *product, dlfp4_cuda_routing *routed) {
  dlfp4_matrix result;
  Experts experts;
  if (!w || !has_ends(routing)) return DLFP4_E_OPTION;
  if (const dlfp4_status status = describe(x, *w, out, alpha, stream, place, &result, product)) return status;
  const int64_t lines = product->rows;
  if (const dlfp4_status status = read_experts(routing, *place, lines, w->rows, result, &experts)) return status;
  if (w->matrices != 1 && w->matrices != experts.count) return DLFP4_E_OPTION;
  product->rows = experts.rows;
  return route(experts, lines, result, workspace, routed);
}

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
  const int64_t matrices = count_matrices(scaled.blocks, rows);
  if (w->axis != -1 || w->layout != 0 || w->rotation || matrices == 0) return DLFP4_E_OPTION;
  if (reinterpret_cast<uintptr_t>(memory) % 256 != 0) return DLFP4_E_SHAPE;
  if (dlfp4_prepared_bytes(format, rows, columns) == 0) return DLFP4_E_OPTION;
  if (const dlfp4_status status = inspect(place, scaled.blocks, format, rows, memory, &report)) return status;
  if (!dlfp4_cuda_can_prepare(format, &report)) return DLFP4_E_OPTION;
  const int largest = static_cast<int>(report.largest);
  const int code = dlfp4_cuda_prepare(place.device, place.stream, &scaled.blocks, format, rows, largest, memory, 0);
  // Products read weights before the kernel before them has ended, which must not be the one that prepares these.
  if (const dlfp4_status status = status_of(code ? code : dlfp4_cuda_wait(place.device, place.stream))) return status;
  const float *const factors = scaled.blocks.decodes ? scaled.blocks.decodes : scaled.global_scale;
  const int exact_in_half = dlfp4_cuda_is_exact_in_half(format, &report);
  *prepared = {memory, factors, place.device, format, largest, exact_in_half, rows, columns, matrices};
  return DLFP4_OK;
}

dlfp4_status dlfp4_matmul_prepared(const DLTensor *x, const dlfp4_prepared *w, const DLTensor *out, float alpha,
                                   void *stream) {
  using namespace dlfp4::api;
  Place place;
  dlfp4_matrix result;
  dlfp4_cuda_product product;
  if (!w) return DLFP4_E_OPTION;
  if (const dlfp4_status status = describe(x, *w, out, alpha, stream, &place, &result, &product)) return status;
  if (product.rows != result.rows || result.columns != w->rows) return DLFP4_E_SHAPE;
  if (w->matrices != 1) return DLFP4_E_OPTION;
  if (product.rows * product.columns == 0) return DLFP4_OK;
  return run(place, DLFP4_CUDA_IMAGE_products, [&] {
    int tactic;
    const int code =
        dlfp4_cuda_choose_tactic(place.device, product.format, product.rows, product.columns, product.depth, &tactic);
    return code ? code : dlfp4_cuda_multiply(place.device, place.stream, &product, tactic);
  });
}

int64_t dlfp4_grouped_matmul_prepared_workspace(const DLTensor *x, const dlfp4_prepared *w,
                                                const dlfp4_routing *routing, const DLTensor *out) {
  dlfp4::api::Place place;
  dlfp4_cuda_product product;
  dlfp4_cuda_routing routed;
  if (dlfp4::api::describe_routed(x, w, routing, out, 1, nullptr, nullptr, &place, &product, &routed)) return -1;
  return dlfp4_cuda_grouped_matmul_workspace(&product, &routed);
}

dlfp4_status dlfp4_grouped_matmul_prepared(const DLTensor *x, const dlfp4_prepared *w, const dlfp4_routing *routing,
                                           const DLTensor *out, float alpha, void *workspace, void *stream) {
  using namespace dlfp4::api;
  Place place;
  dlfp4_cuda_product product;
  dlfp4_cuda_routing routed;
  if (const dlfp4_status status =
          describe_routed(x, w, routing, out, alpha, workspace, stream, &place, &product, &routed))
    return status;
  const int64_t bytes = dlfp4_cuda_grouped_matmul_workspace(&product, &routed);
  if (const dlfp4_status status = check_workspace(workspace, bytes)) return status;
  return run(place, DLFP4_CUDA_IMAGE_grouped,
             [&] { return dlfp4_cuda_grouped_matmul(place.device, place.stream, &product, w->matrices > 1, &routed); });
}
}
