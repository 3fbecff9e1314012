// A matrix as lines, a format with what follows from it, the place of each scale.
// Layout: scales in the layouts of layouts.h.
// Trick: scales that lie next to each other are copied at once.
#include "matrix.h"

#include <string.h>

#include "operand.h"

namespace dlfp4 {
namespace {

bool find_source(uint8_t code, uint8_t bits, Source *source) {
  const int place = source_of(dlfp4_find_dtype(code, bits));
  if (place >= 0) *source = static_cast<Source>(place);
  return place >= 0;
}

template <int kBytes>
void gather_fixed(const uint8_t *src, int64_t step, int64_t count, uint8_t *dst) {
  for (int64_t i = 0; i < count; ++i) memcpy(dst + i * kBytes, src + i * step * kBytes, kBytes);
}

template <int kBytes>
void scatter_fixed(const uint8_t *src, int64_t count, uint8_t *dst, int64_t step) {
  for (int64_t i = 0; i < count; ++i) memcpy(dst + i * step * kBytes, src + i * kBytes, kBytes);
}

int64_t offset_of(const Scales &scales, int64_t row, int64_t column) {
  if (scales.layout == DLFP4_LAYOUT_linear) return row * scales.stride + column * scales.step;
  return dlfp4_scale_offset(scales.layout, row, column, scales.pitch);
}

// Calls visit(place in memory, first of the run, scales in it) for the scales [first, first + count) of a row.
template <class Visit>
void visit_row(const Scales &scales, int64_t row, int64_t first, int64_t count, Visit visit) {
  const bool linear = scales.layout == DLFP4_LAYOUT_linear;
  const int64_t run = linear ? (scales.step == 1 ? first + count : 1) : dlfp4_layouts[scales.layout].run;
  for (int64_t column = first; column < first + count;) {
    const int64_t last = least(first + count, (column / run + 1) * run);
    visit(scales.data + offset_of(scales, row, column) * scales.bytes, column - first, last - column);
    column = last;
  }
}

// The same down a column; only linear scales may have neighbours there.
template <class Visit>
void visit_column(const Scales &scales, int64_t first, int64_t count, int64_t column, Visit visit) {
  const bool together = scales.layout == DLFP4_LAYOUT_linear && scales.stride == 1;
  for (int64_t row = first; row < first + count;) {
    const int64_t run = together ? count : 1;
    visit(scales.data + offset_of(scales, row, column) * scales.bytes, row - first, run);
    row += run;
  }
}

// A packed zero point of 4 bits.
float zero_at(const dlfp4_blocks &blocks, int64_t place) {
  const uint32_t code = static_cast<uint32_t>(static_cast<const uint8_t *>(blocks.offsets)[place >> 1]);
  return zero_point_of(code >> (place & 1) * 4, 4, blocks.offset_code == dlfp4_dtypes[DLFP4_int4].code);
}

// As vectors where they are neighbours.
template <class Number>
void copy_offsets(const dlfp4_blocks &blocks, int64_t place, int64_t step, int64_t count, float *offsets) {
  const Number *const numbers = static_cast<const Number *>(blocks.offsets) + place;
  if (step == 1)
    for (int64_t i = 0; i < count; ++i) offsets[i] = numbers[i];
  else
    for (int64_t i = 0; i < count; ++i) offsets[i] = numbers[i * step];
}

// Zero points of 8 bits are the usual ones.
bool load_run_of_offsets(const dlfp4_blocks &blocks, int64_t place, int64_t step, int64_t count, float *offsets) {
  bool not_finite = false;
  if (has_biases(blocks)) {
    copy_offsets<float>(blocks, place, step, count, offsets);
    for (int64_t i = 0; i < count; ++i) not_finite |= (bits_of(offsets[i]) & 0x7FFFFFFF) >= kFloatInfinity;
  } else if (blocks.offset_bits == 4) {
    for (int64_t i = 0; i < count; ++i) offsets[i] = zero_at(blocks, place + i * step);
  } else if (blocks.offset_code == dlfp4_dtypes[DLFP4_int8].code) {
    copy_offsets<int8_t>(blocks, place, step, count, offsets);
  } else {
    copy_offsets<uint8_t>(blocks, place, step, count, offsets);
  }
  return not_finite;
}

}  // namespace

bool make_lines(const dlfp4_matrix &matrix, Direction direction, Lines *lines) {
  const bool rows = direction == kAlongRows;
  lines->data = static_cast<uint8_t *>(matrix.data);
  lines->item = matrix.bits / 8;
  lines->lines = rows ? matrix.rows : matrix.columns;
  lines->length = rows ? matrix.columns : matrix.rows;
  lines->line_stride = matrix.strides[rows ? 0 : 1];
  lines->step = matrix.strides[rows ? 1 : 0];
  lines->rotation = 0;
  return find_source(matrix.code, matrix.bits, &lines->source);
}

bool find_format(int number, FormatInfo *format) {
  if (number < 0 || number >= DLFP4_NUM_FORMATS) return false;
  const dlfp4_format_row &row = dlfp4_formats[number];
  const bool whole = row.lines == 0, line = row.lines == 1 && row.length == 0;
  *format = {&row,
             element_of(row.element),
             place_of_key(key_of_row(row)),
             dlfp4_dtypes[row.element].bits,
             dlfp4_dtypes[row.scale].bits / 8,
             whole || line ? kWholeLine : row.length,
             whole ? 1 : row.lines,
             whole,
             line,
             is_block_integer(kTypes[row.element]),
             number};
  return true;
}

Scales make_scales(const dlfp4_blocks &blocks, const FormatInfo &format) {
  const int64_t columns = divide_up(blocks.length, format.block);
  return {static_cast<uint8_t *>(blocks.scales),
          blocks.layout,
          format.scale_bytes,
          blocks.scale_strides[0],
          blocks.scale_strides[1],
          dlfp4_layouts[blocks.layout].by_rows ? blocks.scale_strides[0]
                                               : round_up(columns, dlfp4_layouts[blocks.layout].columns),
          format.row->repeats ? 1 : format.group};
}

bool are_one_line(const dlfp4_blocks &blocks, const Scales &scales, const Lines &floats, const FormatInfo &format) {
  const int64_t length = floats.length;
  const bool codes = blocks.length == length && blocks.strides[0] == length && blocks.strides[1] == 1;
  const bool follow = scales.layout == DLFP4_LAYOUT_linear && scales.step == 1 && scales.lines_per_row == 1 &&
                      length % format.block == 0 && scales.stride == length / format.block;
  const bool offsets_follow =
      !blocks.offsets || (follow && blocks.offset_strides[1] == 1 && blocks.offset_strides[0] == length / format.block);
  return floats.step == 1 && floats.line_stride == length && codes && (follow || format.whole) && offsets_follow &&
         !blocks.decodes;
}

void store_scales(const Scales &scales, int64_t line, int64_t block, int64_t count, const uint8_t *stored) {
  visit_row(scales, line / scales.lines_per_row, block, count, [&](uint8_t *place, int64_t first, int64_t run) {
    memcpy(place, stored + first * scales.bytes, static_cast<size_t>(run * scales.bytes));
  });
}

void load_scales(const Scales &scales, int64_t line, int64_t block, int64_t count, uint8_t *stored) {
  visit_row(scales, line / scales.lines_per_row, block, count, [&](const uint8_t *place, int64_t first, int64_t run) {
    memcpy(stored + first * scales.bytes, place, static_cast<size_t>(run * scales.bytes));
  });
}

void store_scales_across(const Scales &scales, int64_t line, int64_t count, int64_t block, const uint8_t *stored) {
  const int64_t group = scales.lines_per_row, rows = divide_up(count, group);
  visit_column(scales, line / group, rows, block, [&](uint8_t *place, int64_t first, int64_t run) {
    if (group == 1) memcpy(place, stored + first * scales.bytes, static_cast<size_t>(run * scales.bytes));
    for (int64_t i = 0; group > 1 && i < run; ++i)
      memcpy(place + i * scales.bytes, stored + (first + i) * group * scales.bytes, static_cast<size_t>(scales.bytes));
  });
}

void load_scales_across(const Scales &scales, int64_t line, int64_t count, int64_t block, uint8_t *stored) {
  const int64_t group = scales.lines_per_row;
  if (group == 1)
    return visit_column(scales, line, count, block, [&](const uint8_t *place, int64_t first, int64_t run) {
      memcpy(stored + first * scales.bytes, place, static_cast<size_t>(run * scales.bytes));
    });
  for (int64_t i = 0; i < count; ++i)
    memcpy(stored + i * scales.bytes, scales.data + offset_of(scales, (line + i) / group, block) * scales.bytes,
           static_cast<size_t>(scales.bytes));
}

bool has_biases(const dlfp4_blocks &blocks) { return blocks.offset_bits == 32; }

bool load_offsets(const dlfp4_blocks &blocks, int64_t line, int64_t block, int64_t count, float *offsets) {
  return load_run_of_offsets(blocks, line * blocks.offset_strides[0] + block * blocks.offset_strides[1],
                             blocks.offset_strides[1], count, offsets);
}

bool load_offsets_across(const dlfp4_blocks &blocks, int64_t line, int64_t count, int64_t block, float *offsets) {
  return load_run_of_offsets(blocks, line * blocks.offset_strides[0] + block * blocks.offset_strides[1],
                             blocks.offset_strides[0], count, offsets);
}

bool has_known_offsets(const dlfp4_blocks &blocks, const FormatInfo &format) {
  if (!blocks.offsets) return true;
  const int row = dlfp4_find_dtype(blocks.offset_code, blocks.offset_bits);
  return format.integers &&
         (row == DLFP4_int4 || row == DLFP4_uint4 || row == DLFP4_int8 || row == DLFP4_uint8 || row == DLFP4_float32);
}

bool has_whole_blocks(const FormatInfo &format, int64_t length) {
  if (format.line && format.bits < 8) return length * format.bits % 8 == 0;
  return (format.row->kind == DLFP4_LARGEST && format.bits == 8) || length % format.block == 0;
}

bool can_set_offsets(const dlfp4_blocks &blocks, const FormatInfo &format) {
  if (!blocks.offsets) return true;
  return has_known_offsets(blocks, format) && format.row->element == DLFP4_uint4 &&
         dlfp4_find_dtype(blocks.offset_code, blocks.offset_bits) == DLFP4_uint8;
}

bool is_addressable(const dlfp4_blocks &blocks, const FormatInfo &format, int64_t lines) {
  const bool dense = blocks.length <= 1 || blocks.strides[1] == 1;
  const bool whole_bytes = lines <= 1 || blocks.strides[0] * format.bits % 8 == 0;
  return format.bits == 8 || blocks.length == 0 || (dense && whole_bytes);
}

void gather_items(const uint8_t *src, int64_t step, int64_t item, int64_t count, uint8_t *dst) {
  if (item == 1) return gather_fixed<1>(src, step, count, dst);
  if (item == 2) return gather_fixed<2>(src, step, count, dst);
  gather_fixed<4>(src, step, count, dst);
}

void scatter_items(const uint8_t *src, int64_t item, int64_t count, uint8_t *dst, int64_t step) {
  if (item == 1) return scatter_fixed<1>(src, count, dst, step);
  if (item == 2) return scatter_fixed<2>(src, count, dst, step);
  scatter_fixed<4>(src, count, dst, step);
}

}  // namespace dlfp4
