// Reads DLTensors.
#include "tensors.h"

#include <initializer_list>

#include "rules/dtypes.h"
#include "rules/layouts.h"
#include "rules/matrix.h"

namespace dlfp4 {
namespace api {
namespace {

// Those of extents of 1, like all of an empty tensor, mean nothing: they stay those of row-major order.
void take_strides(const DLTensor &tensor, Elements *x) {
  for (int k = 0; tensor.strides && k < x->ndim; ++k)
    if (x->shape[k] != 1) x->strides[k] = tensor.strides[k];
}

// An element of two, as PyTorch has FP4, becomes two along the last dimension.
dlfp4_status split_pairs(Elements *x) {
  const int last = x->ndim - 1;
  if (last < 0 || (x->strides[last] != 1 && x->shape[last] != 1)) return DLFP4_E_SHAPE;
  for (int k = 0; k < last; ++k) x->strides[k] *= 2;
  x->shape[last] *= 2;
  x->strides[last] = 1;
  return DLFP4_OK;
}

bool is_empty(const Elements &x) {
  for (int k = 0; k < x.ndim; ++k)
    if (x.shape[k] == 0) return true;
  return false;
}

// Whether the elements lie within what addresses can count, in bits.
bool can_be_reached(const Elements &x) {
  int64_t reach = 1;
  for (int k = 0; k < x.ndim; ++k) {
    int64_t span;
    if (__builtin_mul_overflow(x.shape[k] - 1, x.strides[k], &span) || span == INT64_MIN) return false;
    if (__builtin_add_overflow(reach, span < 0 ? -span : span, &reach)) return false;
  }
  return reach <= INT64_MAX / 128;
}

enum Kind { kHost, kCuda, kElsewhere };

Kind kind_of(DLDevice device) {
  const DLDeviceType type = device.device_type;
  if (type == kDLCPU || type == kDLCUDAHost || type == kDLROCMHost || type == kDLTPUHost) return kHost;
  return device.device_type == kDLCUDA || device.device_type == kDLCUDAManaged ? kCuda : kElsewhere;
}

// The dimensions of scales and the like are those of the scales' matrix, or none.
bool has_shape(const Elements &x, int ndim, const int64_t *shape) {
  if (x.ndim != ndim) return false;
  for (int k = 0; k < ndim; ++k)
    if (x.shape[k] != shape[k]) return false;
  return true;
}

// Whether lines lie across the data's rows: bytes along columns.
bool lies_across(const dlfp4_scaled_tensor &q) {
  return q.axis == -2 && dlfp4_dtypes[dlfp4_formats[q.format].element].bits == 8;
}

dlfp4_status read_scales(const dlfp4_scaled_tensor &q, const dlfp4_sizes &sizes, dlfp4_blocks *blocks) {
  Elements scales;
  if (const dlfp4_status status = read(q.scales, &scales)) return status;
  if (scales.dtype != dlfp4_formats[q.format].scale) return DLFP4_E_DTYPE;
  if (!has_shape(scales, sizes.scale_ndim, sizes.scales)) return DLFP4_E_SHAPE;
  if (q.layout != DLFP4_LAYOUT_linear && !is_compact(scales)) return DLFP4_E_SHAPE;
  if (scales.ndim == 0 && !is_array(scales)) return DLFP4_E_SHAPE;
  const bool across = lies_across(q);
  blocks->scales = scales.data;
  if (scales.ndim == 2) {
    blocks->scale_strides[0] = scales.strides[across];
    blocks->scale_strides[1] = scales.strides[!across];
  }
  const dlfp4_layout_row &layout = dlfp4_layouts[q.layout];
  if (layout.by_rows) blocks->scale_strides[0] = scales.shape[1] / layout.run;
  blocks->layout = q.layout;
  return DLFP4_OK;
}

dlfp4_status read_global_scale(const dlfp4_scaled_tensor &q, int64_t lines, Scaled *scaled) {
  const bool whole = dlfp4_formats[q.format].lines == 0;
  if (!q.global_scale && dlfp4_formats[q.format].kind == DLFP4_TWO_LEVEL) return DLFP4_E_OPTION;
  if (whole) scaled->global_scale = static_cast<float *>(scaled->blocks.scales);
  if (!q.global_scale) return DLFP4_OK;
  if (dlfp4_formats[q.format].kind != DLFP4_TWO_LEVEL) return DLFP4_E_OPTION;
  Elements scale;
  if (const dlfp4_status status = read(q.global_scale, &scale)) return status;
  if (scale.dtype != DLFP4_float32) return DLFP4_E_DTYPE;
  if (!is_array(scale) || scale.ndim > 1) return DLFP4_E_SHAPE;
  float *const numbers = reinterpret_cast<float *>(scale.data);
  const int64_t count = scale.ndim == 0 ? 1 : scale.shape[0];
  if (scale.ndim == 0 || (count == 1 && lines > 1)) {
    scaled->global_scale = numbers;
    return DLFP4_OK;
  }
  if (count != lines && (count == 0 || lines % count != 0)) return DLFP4_E_SHAPE;
  scaled->blocks.decodes = numbers;
  if (count > 0 && lines > 0) scaled->blocks.decode_lines = lines / count;
  return DLFP4_OK;
}

dlfp4_status read_offsets(const dlfp4_scaled_tensor &q, const dlfp4_sizes &sizes, const FormatInfo &format,
                          dlfp4_blocks *blocks) {
  if (q.zero_points && q.biases) return DLFP4_E_OPTION;
  const DLTensor *const given = q.biases ? q.biases : q.zero_points;
  if (!given) return DLFP4_OK;
  Elements offsets;
  if (const dlfp4_status status = read(given, &offsets)) return status;
  if (!has_shape(offsets, sizes.scale_ndim, sizes.scales)) return DLFP4_E_SHAPE;
  const bool across = lies_across(q);
  blocks->offsets = offsets.data;
  blocks->offset_strides[0] = offsets.strides[across];
  blocks->offset_strides[1] = offsets.strides[!across];
  blocks->offset_code = offsets.code;
  blocks->offset_bits = offsets.bits;
  const bool is_named = has_biases(*blocks) == (given == q.biases);
  return is_named && has_known_offsets(*blocks, format) ? DLFP4_OK : DLFP4_E_OPTION;
}

bool is_quantized(const dlfp4_scaled_tensor *q) {
  return q && q->format >= 0 && q->format < DLFP4_NUM_FORMATS && (q->axis == -1 || q->axis == -2);
}

}  // namespace

dlfp4_status read(const DLTensor *tensor, Elements *x) {
  if (!tensor || (tensor->ndim > 0 && !tensor->shape)) return DLFP4_E_OPTION;
  if (tensor->ndim < 0 || tensor->ndim > kMostDims) return DLFP4_E_SHAPE;
  const bool pairs = tensor->dtype.lanes == 2 && tensor->dtype.code == kDLFloat4_e2m1fn;
  x->dtype = dlfp4_find_dtype(tensor->dtype.code, tensor->dtype.bits);
  if (x->dtype < 0 || (tensor->dtype.lanes != 1 && !pairs)) return DLFP4_E_DTYPE;
  x->data = reinterpret_cast<char *>(reinterpret_cast<uintptr_t>(tensor->data) + tensor->byte_offset);  // may wrap
  x->ndim = tensor->ndim;
  x->code = tensor->dtype.code;
  x->bits = tensor->dtype.bits;
  int64_t stride = 1;
  for (int k = x->ndim - 1; k >= 0; --k) {
    if (tensor->shape[k] < 0) return DLFP4_E_SHAPE;
    x->shape[k] = tensor->shape[k];
    x->strides[k] = stride;
    if (__builtin_mul_overflow(stride, x->shape[k] ? x->shape[k] : 1, &stride)) return DLFP4_E_SHAPE;
  }
  if (stride > INT64_MAX / 64) return DLFP4_E_SHAPE;
  if (!is_empty(*x)) {
    take_strides(*tensor, x);
    if (!can_be_reached(*x)) return DLFP4_E_SHAPE;
    if (!tensor->data) return DLFP4_E_OPTION;
  }
  return pairs ? split_pairs(x) : DLFP4_OK;
}

bool is_array(const Elements &x) {
  return is_compact(x) && reinterpret_cast<uintptr_t>(x.data) % (x.bits < 8 ? 1 : x.bits / 8) == 0;
}

bool is_compact(const Elements &x) {
  if (is_empty(x)) return true;
  int64_t stride = 1;
  for (int k = x.ndim - 1; k >= 0; --k) {
    if (x.shape[k] != 1 && x.strides[k] != stride) return false;
    stride *= x.shape[k];
  }
  return true;
}

dlfp4_status read_matrix(const DLTensor *tensor, Matrix *matrix) {
  Elements x;
  if (const dlfp4_status status = read(tensor, &x)) return status;
  if (x.ndim == 0) return DLFP4_E_SHAPE;
  const int last = x.ndim - 1;
  int64_t rows = 1, stride = x.shape[last];
  for (int k = last - 1; k >= 0; --k) {
    if (x.shape[k] == 1) continue;
    if (rows == 1)
      stride = x.strides[k];
    else if (rows > 0 && x.strides[k] != rows * stride)
      return DLFP4_E_SHAPE;
    rows *= x.shape[k];
  }
  *matrix = {x.data, {rows, x.shape[last]}, {stride, x.strides[last]}, x.code, x.bits, x.dtype};
  return DLFP4_OK;
}

dlfp4_status find_place(const DLTensor *const *tensors, int count, void *stream, Place *place) {
  const DLTensor *first = nullptr;
  for (int k = 0; k < count; ++k) {
    if (!tensors[k]) continue;
    if (!first) first = tensors[k];
    const Kind kind = kind_of(tensors[k]->device);
    if (kind == kElsewhere || kind != kind_of(first->device)) return DLFP4_E_DEVICE;
    if (kind == kCuda && tensors[k]->device.device_id != first->device.device_id) return DLFP4_E_DEVICE;
  }
  if (!first) return DLFP4_E_OPTION;
  *place = {kind_of(first->device) == kHost, first->device.device_id, reinterpret_cast<uintptr_t>(stream)};
  return DLFP4_OK;
}

bool lies_at(const DLTensor *tensor, const Place &place) {
  Place own;
  if (find_place(&tensor, 1, nullptr, &own) != DLFP4_OK || own.on_host != place.on_host) return false;
  return own.on_host || own.device == place.device;
}

dlfp4_status find_place_of(const dlfp4_scaled_tensor *a, const dlfp4_scaled_tensor *b, const DLTensor *other,
                           void *stream, Place *place) {
  const DLTensor *tensors[11] = {other};
  int count = 1;
  for (const dlfp4_scaled_tensor *each : {a, b}) {
    if (!each) continue;
    tensors[count++] = each->data;
    if (each->format == DLFP4_PLAIN) continue;
    tensors[count++] = each->scales;
    tensors[count++] = each->global_scale;
    tensors[count++] = each->zero_points;
    tensors[count++] = each->biases;
  }
  return find_place(tensors, count, stream, place);
}

dlfp4_status read_extents(const dlfp4_scaled_tensor *q, int64_t *lines, int64_t *length) {
  if (!is_quantized(q)) return DLFP4_E_OPTION;
  Matrix data;
  if (const dlfp4_status status = read_matrix(q->data, &data)) return status;
  const bool across = lies_across(*q);
  *lines = data.shape[across];
  *length = data.shape[!across];
  return DLFP4_OK;
}

dlfp4_status read_scaled(const dlfp4_scaled_tensor *q, int64_t lines, int64_t length, uint8_t fill, Scaled *scaled) {
  if (!is_quantized(q)) return DLFP4_E_OPTION;
  dlfp4_sizes sizes;
  const int64_t rows = q->axis == -1 ? lines : length, columns = q->axis == -1 ? length : lines;
  if (const dlfp4_status status = dlfp4_size_buffers(q->format, q->axis, q->layout, rows, columns, &sizes))
    return status;
  Elements data;
  if (const dlfp4_status status = read(q->data, &data)) return status;
  if (data.dtype != dlfp4_formats[q->format].element) return DLFP4_E_DTYPE;
  if (!has_shape(data, 2, sizes.data)) return DLFP4_E_SHAPE;
  *scaled = {};
  const bool across = lies_across(*q);
  scaled->blocks.data = data.data;
  scaled->blocks.strides[0] = data.strides[across];
  scaled->blocks.strides[1] = data.strides[!across];
  scaled->blocks.length = sizes.data[!across];
  if (lines == 1) scaled->blocks.strides[0] = scaled->blocks.length;  // the stride of a single line means nothing
  if (const dlfp4_status status = read_scales(*q, sizes, &scaled->blocks)) return status;
  scaled->blocks.fill = q->layout == DLFP4_LAYOUT_aiter ? fill : 0;
  scaled->blocks.decode_lines = 1;
  scaled->blocks.rotation = q->rotation;
  if (const dlfp4_status status = read_global_scale(*q, lines, scaled)) return status;
  FormatInfo format;
  find_format(q->format, &format);
  if (!is_addressable(scaled->blocks, format, lines)) return DLFP4_E_SHAPE;
  return read_offsets(*q, sizes, format, &scaled->blocks);
}

}  // namespace api
}  // namespace dlfp4
