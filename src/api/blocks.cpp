// Casts and block scaling of DLTensors.
// Layout: see tensors.h.
// Trick: a call is described once, and runs where its tensors lie.
#include "calls.h"
#include "rules/dtypes.h"
#include "rules/scaling.h"

namespace dlfp4 {
namespace api {
namespace {

dlfp4_view view_of(const Elements &x, bool padded) {
  return {x.data, x.shape, x.strides, x.ndim, x.code, x.bits, static_cast<uint8_t>(padded && x.bits < 8), 0};
}

dlfp4_status read_floats(const DLTensor *tensor, dlfp4_matrix *result) {
  Matrix x;
  if (const dlfp4_status status = read_matrix(tensor, &x)) return status;
  *result = matrix_of(x);
  return DLFP4_OK;
}

dlfp4_matrix turned(const dlfp4_matrix &x) {
  return {x.data, x.columns, x.rows, {x.strides[1], x.strides[0]}, x.code, x.bits};
}

bool has_tensor_scale(int format) {
  return dlfp4_formats[format].kind == DLFP4_TWO_LEVEL || dlfp4_formats[format].lines == 0;
}

// The result along one axis, and what it says of the call.
dlfp4_status add_result(const dlfp4_scaled_tensor *q, Scaled *scaled, Quantization *call) {
  if (q->format != call->format) return DLFP4_E_OPTION;
  const bool rows = q->axis == -1;
  const int64_t lines = rows ? call->x.rows : call->x.columns, length = rows ? call->x.columns : call->x.rows;
  if (const dlfp4_status status = read_scaled(q, lines, length, call->recipe.zero_scale, scaled)) return status;
  if (is_decode_scale(call->given) && scaled->blocks.decodes) return DLFP4_E_OPTION;
  if (scaled->blocks.decode_lines != 1) return DLFP4_E_SHAPE;  // quantizing finds those of one line each
  if ((dlfp4_formats[q->format].element == DLFP4_uint4) != (q->zero_points != nullptr)) return DLFP4_E_OPTION;
  if (q->biases) return DLFP4_E_OPTION;
  scaled->blocks.finds_decodes = scaled->blocks.decodes != nullptr;
  if (call->along[!rows]) return DLFP4_E_OPTION;
  call->along[!rows] = &scaled->blocks;
  call->places[!rows] = scaled->global_scale;
  return DLFP4_OK;
}

// Scales of a layout: compact, of so many rows and columns before they are completed to tiles.
dlfp4_status check_tiles(const Elements &scales, int layout, int64_t rows, int64_t columns) {
  if (layout < 0 || layout >= DLFP4_NUM_LAYOUTS) return DLFP4_E_OPTION;
  if (!is_compact(scales) || scales.ndim != 2) return DLFP4_E_SHAPE;
  if (rows < 0 || columns < 0 || rows > kMostExtent || columns > kMostExtent) return DLFP4_E_SHAPE;
  const TiledShape shape = tiled_shape(dlfp4_layouts[layout], rows, columns);
  const bool fits = scales.shape[0] == shape.extents[0] && scales.shape[1] == shape.extents[1];
  return fits ? DLFP4_OK : DLFP4_E_SHAPE;
}

dlfp4_status quantize_on_host(const Quantization &call) {
  dlfp4_tensor_scale scale = {};
  const bool is_given = is_decode_scale(call.given), has_scale = is_given || call.places[0] || call.places[1];
  if (is_given) {
    scale = dlfp4_host_given_tensor_scale(call.given);
  } else if (has_scale) {
    const uint32_t rotation = (call.along[0] ? call.along[0] : call.along[1])->rotation;
    const dlfp4_matrix x = rotation && !call.along[0] ? turned(call.x) : call.x;
    if (const dlfp4_status status = dlfp4_host_find_tensor_scale(&x, call.format, &call.recipe, rotation, &scale))
      return status;
  }
  if (const dlfp4_status status = dlfp4_host_quantize(&call.x, call.format, &call.recipe, has_scale ? &scale : nullptr,
                                                      call.along[0], call.along[1]))
    return status;
  for (float *place : call.places)
    if (place) *place = scale.decode;
  return DLFP4_OK;
}

}  // namespace
}  // namespace api
}  // namespace dlfp4

extern "C" {

dlfp4_status dlfp4_cast(const DLTensor *x, const DLTensor *out, const dlfp4_convert_options *options, uint32_t flags,
                        void *stream) {
  using namespace dlfp4::api;
  Elements from, to;
  Place place;
  if (const dlfp4_status status = read_pair(read, x, out, stream, &from, &to, &place)) return status;
  if (flags & ~uint32_t{DLFP4_PADDED_X | DLFP4_PADDED_OUT}) return DLFP4_E_OPTION;
  const bool are_pairs[] = {x->dtype.lanes != 1, out->dtype.lanes != 1};  // which share a byte
  if ((flags & DLFP4_PADDED_X && are_pairs[0]) || (flags & DLFP4_PADDED_OUT && are_pairs[1])) return DLFP4_E_OPTION;
  const dlfp4_view source = view_of(from, flags & DLFP4_PADDED_X), result = view_of(to, flags & DLFP4_PADDED_OUT);
  return place.on_host ? dlfp4_host_convert(&source, &result, options)
                       : convert_on_cuda(place, source, result, options);
}

dlfp4_status dlfp4_quantize(const DLTensor *x, const dlfp4_recipe *recipe, float global_scale,
                            const dlfp4_scaled_tensor *q, const dlfp4_scaled_tensor *other, void *stream) {
  using namespace dlfp4::api;
  Quantization call = {};
  Scaled results[2];
  Place place;
  if (!q) return DLFP4_E_OPTION;
  call.format = q->format;
  if (const dlfp4_status status = dlfp4_default_recipe(call.format, &call.recipe)) return status;
  if (recipe) call.recipe = *recipe;
  const bool is_given = dlfp4::is_decode_scale(global_scale);
  const bool is_zero = (dlfp4::bits_of(global_scale) & 0x7FFFFFFF) == 0;
  if (is_given ? !has_tensor_scale(call.format) : !is_zero) return DLFP4_E_OPTION;
  call.given = is_given ? global_scale : 0;
  if (const dlfp4_status status = read_floats(x, &call.x)) return status;
  if (const dlfp4_status status = find_place_of(q, other, x, stream, &place)) return status;
  if (const dlfp4_status status = add_result(q, &results[0], &call)) return status;
  if (other)
    if (const dlfp4_status status = add_result(other, &results[1], &call)) return status;
  return place.on_host ? quantize_on_host(call) : quantize_on_cuda(place, call);
}

dlfp4_status dlfp4_dequantize(const dlfp4_scaled_tensor *q, const DLTensor *out, void *stream) {
  using namespace dlfp4::api;
  dlfp4_matrix values;
  Scaled scaled;
  Place place;
  if (!q) return DLFP4_E_OPTION;
  if (const dlfp4_status status = read_floats(out, &values)) return status;
  if (const dlfp4_status status = find_place_of(q, nullptr, out, stream, &place)) return status;
  if (q->axis == -2) values = turned(values);
  if (const dlfp4_status status = read_scaled(q, values.rows, values.columns, 0, &scaled)) return status;
  if (!place.on_host) return dequantize_on_cuda(place, scaled, q->format, values);
  const float decode = scaled.global_scale ? *scaled.global_scale : 1;  // of formats with one level nobody reads it
  return dlfp4_host_dequantize(&scaled.blocks, q->format, decode, &values);
}

dlfp4_status dlfp4_convert_scales(const DLTensor *x, int x_layout, const DLTensor *out, int out_layout, int64_t rows,
                                  int64_t columns, uint8_t fill, void *stream) {
  using namespace dlfp4::api;
  Elements from, to;
  Place place;
  if (const dlfp4_status status = read_pair(read, x, out, stream, &from, &to, &place)) return status;
  if (from.dtype != to.dtype || from.bits < 8 || from.bits > 32) return DLFP4_E_DTYPE;
  if (const dlfp4_status status = check_tiles(from, x_layout, rows, columns)) return status;
  if (const dlfp4_status status = check_tiles(to, out_layout, rows, columns)) return status;
  if (place.on_host)
    return dlfp4_host_convert_scales(from.data, x_layout, to.data, out_layout, rows, columns, from.bits / 8, fill);
  return convert_scales_on_cuda(place, from.data, x_layout, to.data, out_layout, rows, columns, from.bits / 8, fill);
}
}
