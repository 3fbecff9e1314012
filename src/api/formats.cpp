// Formats and layouts by name, and the parts of a quantized matrix. core/tensor/formats.pxi has the latter for Python,
// where extents may be symbols of a compiler; tests/project/test_c_api.py compares the two.
#include "rules/formats.h"

#include <string.h>

#include "rules/block_keys.h"
#include "tensors.h"

namespace dlfp4 {
namespace api {
namespace {

static_assert(int{DLFP4_SCALES_IN_TWO_LEVELS} == DLFP4_TWO_LEVEL && int{DLFP4_SCALES_POWERS_OF_TWO} == DLFP4_POWER &&
                  int{DLFP4_SCALES_FLOAT32} == DLFP4_LARGEST,
              "the kinds of formats.h");

constexpr bool is_format(int format) { return format >= 0 && format < DLFP4_NUM_FORMATS; }

DLDataType type_of(int dtype) { return {dlfp4_dtypes[dtype].code, dlfp4_dtypes[dtype].bits, 1}; }

bool is_one_line(const dlfp4_format_row &format) { return format.lines == 1 && format.length == 0; }

// A line, completed to whole blocks, or, where it has one scale, to whole bytes.
int64_t stored_length(const dlfp4_format_row &format, int64_t length) {
  if (format.lines == 0 || (format.kind == DLFP4_LARGEST && !is_integer_row(format))) return length;
  return round_up(length, format.length ? format.length : 8 / dlfp4_dtypes[format.element].bits);
}

bool takes_layout(const dlfp4_format_row &format, int layout) {
  if (layout == DLFP4_LAYOUT_linear) return true;
  if (layout < 0 || layout >= DLFP4_NUM_LAYOUTS || is_integer_row(format)) return false;
  const dlfp4_layout_row &row = dlfp4_layouts[layout];
  if (row.lines && (format.lines != row.lines || format.length != 128)) return false;
  return dlfp4_dtypes[format.scale].bits == 8 * row.bytes;
}

void size_scales(const dlfp4_format_row &format, int layout, int64_t lines, int64_t length, bool across,
                 dlfp4_sizes *sizes) {
  sizes->scale_ndim = format.lines == 0 ? 0 : 2;
  sizes->scales[0] = sizes->scales[1] = 1;
  if (format.lines == 0) return;
  const int64_t rows = format.repeats ? lines : divide_up(lines, format.lines);
  const int64_t block = format.length ? format.length : length ? length : 1;
  const TiledShape shape = tiled_shape(dlfp4_layouts[layout], rows, divide_up(length, block));
  const bool swapped = across && layout == DLFP4_LAYOUT_linear;
  sizes->scales[swapped] = shape.extents[0];
  sizes->scales[!swapped] = shape.extents[1];
}

}  // namespace
}  // namespace api
}  // namespace dlfp4

extern "C" {

int dlfp4_find_format(const char *name) {
  for (int number = 0; name && number < DLFP4_NUM_FORMATS; ++number)
    if (strcmp(dlfp4_formats[number].name, name) == 0) return number;
  return -1;
}

int dlfp4_find_layout(const char *name) {
  for (int number = 0; name && number < DLFP4_NUM_LAYOUTS; ++number)
    if (strcmp(dlfp4_layouts[number].name, name) == 0) return number;
  return -1;
}

dlfp4_status dlfp4_describe_format(int format, dlfp4_format_info *info) {
  if (!dlfp4::api::is_format(format) || !info) return DLFP4_E_OPTION;
  const dlfp4_format_row &row = dlfp4_formats[format];
  *info = {row.name,
           dlfp4::api::type_of(row.element),
           dlfp4::api::type_of(row.scale),
           row.lines,
           row.length,
           static_cast<dlfp4_scale_family>(row.kind),
           row.repeats};
  return DLFP4_OK;
}

dlfp4_status dlfp4_default_recipe(int format, dlfp4_recipe *recipe) {
  if (!dlfp4::api::is_format(format) || !recipe) return DLFP4_E_OPTION;
  const dlfp4_format_row &row = dlfp4_formats[format];
  *recipe = {};
  recipe->pow2 =
      row.kind == DLFP4_LARGEST && row.lines > 0 && !dlfp4::api::is_one_line(row) && !dlfp4::is_integer_row(row);
  return DLFP4_OK;
}

dlfp4_status dlfp4_size_buffers(int format, int axis, int layout, int64_t rows, int64_t columns, dlfp4_sizes *sizes) {
  using namespace dlfp4::api;
  if (!is_format(format) || (axis != -1 && axis != -2) || !sizes) return DLFP4_E_OPTION;
  const dlfp4_format_row &row = dlfp4_formats[format];
  if (!takes_layout(row, layout)) return DLFP4_E_OPTION;
  if (rows < 0 || columns < 0 || rows > kMostExtent || columns > kMostExtent) return DLFP4_E_SHAPE;
  int64_t elements;
  const int64_t lines = axis == -1 ? rows : columns;
  const int64_t length = stored_length(row, axis == -1 ? columns : rows);
  const int bits = dlfp4_dtypes[row.element].bits;
  const bool across = axis == -2 && bits == 8;
  dlfp4_sizes found;
  found.data[across] = lines;
  found.data[!across] = length;
  size_scales(row, layout, lines, length, across, &found);
  if (__builtin_mul_overflow(lines, length, &elements) || elements > INT64_MAX / 64) return DLFP4_E_SHAPE;
  found.data_bytes = (elements * bits + 7) / 8;
  // Scales are fewer than elements, up to what completes tiles: their product needs no question of its own.
  found.scale_bytes = found.scales[0] * found.scales[1] * (dlfp4_dtypes[row.scale].bits / 8);
  *sizes = found;
  return DLFP4_OK;
}
}
