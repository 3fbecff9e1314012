// Products of DLTensors.
// Layout: operands as lines of K elements.
// Trick: plain and quantized operands become the same struct.
#include "calls.h"

namespace dlfp4 {
namespace api {
namespace {

bool is_plain(const dlfp4_scaled_tensor &x) { return x.format == DLFP4_PLAIN; }

// Lines, and how long they are as stored: those of quantized ones may end in zeros.
dlfp4_status read_lines(const dlfp4_scaled_tensor *x, int64_t *lines, int64_t *length) {
  if (!x) return DLFP4_E_OPTION;
  if (!is_plain(*x)) return read_extents(x, lines, length);
  Matrix matrix;
  if (const dlfp4_status status = read_matrix(x->data, &matrix)) return status;
  *lines = matrix.shape[0];
  *length = matrix.shape[1];
  return DLFP4_OK;
}

dlfp4_status read_plain_factor(const dlfp4_scaled_tensor &x, int64_t length, Factor *factor) {
  Matrix matrix;
  if (const dlfp4_status status = read_matrix(x.data, &matrix)) return status;
  factor->count = matrix.shape[0];
  factor->lines.blocks.data = matrix.data;
  factor->lines.blocks.strides[0] = 1;
  factor->lines.blocks.strides[1] = matrix.strides[1];
  factor->lines.blocks.length = length;
  factor->lines.code = matrix.code;
  factor->lines.bits = matrix.bits;
  factor->lines.step = matrix.strides[0];
  return matrix.shape[1] == length ? DLFP4_OK : DLFP4_E_SHAPE;
}

dlfp4_status read_quantized_factor(const dlfp4_scaled_tensor &x, int64_t length, Factor *factor) {
  int64_t stored;
  Scaled scaled;
  if (const dlfp4_status status = read_extents(&x, &factor->count, &stored)) return status;
  if (const dlfp4_status status = read_scaled(&x, factor->count, length, 0, &scaled)) return status;
  factor->lines.blocks = scaled.blocks;
  factor->lines.step = 1;
  if (dlfp4_formats[x.format].kind == DLFP4_TWO_LEVEL) factor->decode = scaled.global_scale;
  return DLFP4_OK;
}

dlfp4_status read_factor(const dlfp4_scaled_tensor &x, int64_t length, Factor *factor) {
  *factor = {};
  factor->lines.format = x.format;
  factor->lines.decode = 1;
  return is_plain(x) ? read_plain_factor(x, length, factor) : read_quantized_factor(x, length, factor);
}

// The number of products in a sum: that of a plain operand, where there is one.
dlfp4_status find_length(const dlfp4_scaled_tensor *a, const dlfp4_scaled_tensor *b, int64_t *length) {
  int64_t lines, of_a, of_b;
  if (const dlfp4_status status = read_lines(a, &lines, &of_a)) return status;
  if (const dlfp4_status status = read_lines(b, &lines, &of_b)) return status;
  *length = is_plain(*a) || (!is_plain(*b) && of_a < of_b) ? of_a : of_b;
  return DLFP4_OK;
}

dlfp4_status read_factors(const dlfp4_scaled_tensor *a, const dlfp4_scaled_tensor *b, int64_t *length,
                          Factor factors[2]) {
  if (const dlfp4_status status = find_length(a, b, length)) return status;
  if (const dlfp4_status status = read_factor(*a, *length, &factors[0])) return status;
  if (const dlfp4_status status = read_factor(*b, *length, &factors[1])) return status;
  return a->rotation == b->rotation ? DLFP4_OK : DLFP4_E_OPTION;  // equal ones only have equal sums
}

void read_decodes(Factor factors[2]) {
  for (int k = 0; k < 2; ++k)
    if (factors[k].decode) factors[k].lines.decode = *factors[k].decode;
}

// All but whether the result's extents are those of the operands.
dlfp4_status read_product(const dlfp4_scaled_tensor *a, const dlfp4_scaled_tensor *b, const DLTensor *out,
                          const dlfp4_matmul_options *options, void *stream, Product *product) {
  Matrix matrix;
  if (const dlfp4_status status = read_factors(a, b, &product->length, product->factors)) return status;
  if (const dlfp4_status status = read_matrix(out, &matrix)) return status;
  if (const dlfp4_status status = find_place_of(a, b, out, stream, &product->place)) return status;
  product->out = matrix_of(matrix);
  product->options = {DLFP4_ACTIVATION_EXACT, 1};
  if (options) product->options = *options;
  if (product->options.activation != DLFP4_ACTIVATION_EXACT && !is_plain(*a)) return DLFP4_E_OPTION;
  if (product->place.on_host) read_decodes(product->factors);
  return DLFP4_OK;
}

dlfp4_status read_matmul(const dlfp4_scaled_tensor *a, const dlfp4_scaled_tensor *b, const DLTensor *out,
                         const dlfp4_matmul_options *options, void *stream, Product *product) {
  if (const dlfp4_status status = read_product(a, b, out, options, stream, product)) return status;
  const bool fits = product->out.rows == product->factors[0].count && product->out.columns == product->factors[1].count;
  return fits ? DLFP4_OK : DLFP4_E_SHAPE;
}

// --- Experts ---------------------------------------------------------------------------------

// Numbers next to one another: as many as `count`, or, where that is -1, any, which sets it.
dlfp4_status read_numbers(const DLTensor *tensor, const Place &place, bool are_integers, int64_t *count,
                          Numbers *numbers) {
  static const int64_t kNone = 0;  // where there are none, which NULL would not tell from no tensor
  Elements x;
  if (!tensor) return DLFP4_OK;
  if (const dlfp4_status status = read(tensor, &x)) return status;
  if (!lies_at(tensor, place)) return DLFP4_E_DEVICE;
  const bool is_short = x.dtype == DLFP4_int32 && !place.on_host;
  if (are_integers ? x.dtype != DLFP4_int64 && !is_short : x.dtype != DLFP4_float32) return DLFP4_E_DTYPE;
  if (x.ndim != 1 || !is_array(x) || (*count >= 0 && x.shape[0] != *count)) return DLFP4_E_SHAPE;
  *count = x.shape[0];
  *numbers = {*count ? static_cast<const void *>(x.data) : &kNone, x.bits};
  return DLFP4_OK;
}

// Whether numbers do not decrease, from 0 to `limit`.
bool lie_in_order(const int64_t *numbers, int64_t count, int64_t limit) {
  int64_t least = 0;
  for (int64_t k = 0; k < count; least = numbers[k++])
    if (numbers[k] < least || numbers[k] > limit) return false;
  return true;
}

bool lie_below(const int64_t *numbers, int64_t count, int64_t limit) {
  for (int64_t k = 0; k < count; ++k)
    if (numbers[k] < 0 || numbers[k] >= limit) return false;
  return true;
}

dlfp4_status read_grouped(const dlfp4_scaled_tensor *x, const dlfp4_scaled_tensor *w, const dlfp4_routing *routing,
                          const DLTensor *out, const dlfp4_matmul_options *options, void *stream, Product *product,
                          Experts *experts) {
  if (!has_ends(routing)) return DLFP4_E_OPTION;
  if (const dlfp4_status status = read_product(x, w, out, options, stream, product)) return status;
  return read_experts(routing, product->place, product->factors[0].count, product->factors[1].count, product->out,
                      experts);
}

// The host looks at the numbers.
dlfp4_status read_groups(const Product &product, const Experts &experts, dlfp4_groups *groups) {
  const int64_t *const indices = static_cast<const int64_t *>(experts.indices.data);
  *groups = {};
  groups->experts = experts.count;
  groups->rows = experts.rows;
  groups->ends = static_cast<const int64_t *>(experts.ends.data);
  groups->weights = experts.weights;
  if (__builtin_mul_overflow(product.out.columns, product.factors[1].lines.step, &groups->step)) return DLFP4_E_SHAPE;
  if (!lie_in_order(groups->ends, groups->experts, groups->rows)) return DLFP4_E_OPTION;
  if (experts.gathers) groups->gather = indices;
  if (experts.weights) groups->scatter = indices;
  if (groups->gather && !lie_below(indices, groups->rows, product.factors[0].count)) return DLFP4_E_OPTION;
  if (groups->scatter && !lie_below(indices, groups->rows, product.out.rows)) return DLFP4_E_OPTION;
  return DLFP4_OK;
}

}  // namespace

// The product's result and x say how many rows there are.
dlfp4_status read_experts(const dlfp4_routing *routing, const Place &place, int64_t lines, int64_t lines_of_weights,
                          const dlfp4_matrix &out, Experts *experts) {
  Numbers weights = {};
  *experts = {};
  experts->count = -1;
  if ((routing->weights || routing->gathers) != (routing->indices != nullptr)) return DLFP4_E_OPTION;
  experts->rows = routing->indices ? -1 : lines;
  experts->gathers = routing->gathers;
  if (const dlfp4_status status = read_numbers(routing->ends, place, true, &experts->count, &experts->ends))
    return status;
  if (const dlfp4_status status = read_numbers(routing->indices, place, true, &experts->rows, &experts->indices))
    return status;
  if (const dlfp4_status status = read_numbers(routing->weights, place, false, &experts->rows, &weights)) return status;
  experts->weights = static_cast<const float *>(weights.data);
  if (!experts->gathers && experts->rows != lines) return DLFP4_E_SHAPE;
  if (!routing->weights && experts->rows != out.rows) return DLFP4_E_SHAPE;
  int64_t expected;
  const bool fits = !__builtin_mul_overflow(experts->count, out.columns, &expected) && lines_of_weights == expected;
  return fits ? DLFP4_OK : DLFP4_E_SHAPE;
}

}  // namespace api
}  // namespace dlfp4

extern "C" {

int64_t dlfp4_vecdot_workspace(int64_t lines, int64_t length) {
  using namespace dlfp4::api;
  int64_t bytes;
  if (lines < 0 || length < 0 || length > kMostExtent) return -1;
  return __builtin_mul_overflow(lines, vecdot_workspace_on_cuda(length), &bytes) ? -1 : bytes;
}

dlfp4_status dlfp4_vecdot(const dlfp4_scaled_tensor *a, const dlfp4_scaled_tensor *b, const DLTensor *out,
                          void *workspace, void *stream) {
  using namespace dlfp4::api;
  Factor factors[2];
  Elements sums;
  Place place;
  int64_t length;
  if (const dlfp4_status status = read_factors(a, b, &length, factors)) return status;
  if (const dlfp4_status status = read(out, &sums)) return status;
  if (const dlfp4_status status = find_place_of(a, b, out, stream, &place)) return status;
  if (sums.code != kDLFloat || sums.bits != 32) return DLFP4_E_DTYPE;
  if (sums.ndim != 1 || !is_array(sums)) return DLFP4_E_SHAPE;
  const int64_t lines = sums.shape[0];
  for (Factor &factor : factors) {
    if (factor.count != lines && factor.count != 1) return DLFP4_E_SHAPE;
    if (factor.count == 1) factor.lines.step = 0;
  }
  float *const result = reinterpret_cast<float *>(sums.data);
  if (!place.on_host) {
    const int64_t bytes = dlfp4_vecdot_workspace(lines, length);
    if (bytes < 0) return DLFP4_E_SHAPE;
    if (bytes > 0 && !workspace) return DLFP4_E_OPTION;
    if (reinterpret_cast<uintptr_t>(workspace) % sizeof(double) != 0) return DLFP4_E_SHAPE;
    return vecdot_on_cuda(place, factors[0], factors[1], lines, length, result, workspace);
  }
  read_decodes(factors);
  return dlfp4_host_vecdot(&factors[0].lines, &factors[1].lines, lines, length, result, 1);
}

int64_t dlfp4_matmul_workspace(const dlfp4_scaled_tensor *a, const dlfp4_scaled_tensor *b, const DLTensor *out,
                               const dlfp4_matmul_options *options) {
  dlfp4::api::Product p;
  if (dlfp4::api::read_matmul(a, b, out, options, nullptr, &p)) return -1;
  if (!p.place.on_host) return dlfp4::api::matmul_workspace_on_cuda(p);
  return dlfp4_host_matmul_workspace(&p.factors[0].lines, &p.factors[1].lines, p.length, &p.out, &p.options);
}

dlfp4_status dlfp4_matmul(const dlfp4_scaled_tensor *a, const dlfp4_scaled_tensor *b, const DLTensor *out,
                          const dlfp4_matmul_options *options, void *workspace, void *stream) {
  dlfp4::api::Product p;
  if (const dlfp4_status status = dlfp4::api::read_matmul(a, b, out, options, stream, &p)) return status;
  if (!p.place.on_host) return dlfp4::api::matmul_on_cuda(p);
  return dlfp4_host_matmul(&p.factors[0].lines, &p.factors[1].lines, p.length, &p.out, &p.options, workspace);
}

int64_t dlfp4_grouped_matmul_workspace(const dlfp4_scaled_tensor *x, const dlfp4_scaled_tensor *w,
                                       const dlfp4_routing *routing, const DLTensor *out,
                                       const dlfp4_matmul_options *options) {
  using namespace dlfp4::api;
  Product p;
  Experts experts;
  dlfp4_groups groups;
  if (read_grouped(x, w, routing, out, options, nullptr, &p, &experts)) return -1;
  if (!p.place.on_host) return grouped_matmul_workspace_on_cuda(p, experts);
  if (read_groups(p, experts, &groups)) return -1;
  return dlfp4_host_grouped_matmul_workspace(&p.factors[0].lines, &p.factors[1].lines, p.length, &groups, &p.out,
                                             &p.options);
}

dlfp4_status dlfp4_grouped_matmul(const dlfp4_scaled_tensor *x, const dlfp4_scaled_tensor *w,
                                  const dlfp4_routing *routing, const DLTensor *out,
                                  const dlfp4_matmul_options *options, void *workspace, void *stream) {
  using namespace dlfp4::api;
  Product p;
  Experts experts;
  dlfp4_groups groups;
  if (const dlfp4_status status = read_grouped(x, w, routing, out, options, stream, &p, &experts)) return status;
  if (!p.place.on_host) return grouped_matmul_on_cuda(p, experts, workspace);
  if (const dlfp4_status status = read_groups(p, experts, &groups)) return status;
  return dlfp4_host_grouped_matmul(&p.factors[0].lines, &p.factors[1].lines, p.length, &groups, &p.out, &p.options,
                                   workspace);
}
}
