// What quantizing and dequantizing need of scales beside their places: the rule of a format and a recipe, padding, and
// what is transposed across lines.
#ifndef DLFP4_SRC_BLOCKS_SCALES_H_
#define DLFP4_SRC_BLOCKS_SCALES_H_

#include "rules/matrix.h"

namespace dlfp4 {

// The bits of the mantissa of what is to hold float32 scales.
int scale_mantissa(const dlfp4_recipe &recipe);

// Of floats of a type; `scale` is that of the whole tensor, null: not known.
ScaleRule make_rule(const FormatInfo &format, const dlfp4_recipe &recipe, Source source,
                    const dlfp4_tensor_scale *scale);

// Whether a recipe has what is known, and its four over six, if it has it, is for a format.
bool is_recipe(const dlfp4_recipe &recipe, const FormatInfo &format);

// Whether lines of so many elements can be rotated so.
bool is_rotation(uint32_t rotation, int64_t length);

// Bytes of a padded matrix of scales.
int64_t padded_bytes(int layout, int64_t rows, int64_t columns, int itemsize);

// From one row of tiles to the next, or one column, of a padded matrix of scales.
inline int64_t pitch_of(const dlfp4_layout_row &layout, int64_t rows, int64_t columns) {
  return layout.by_rows ? round_up(rows, layout.rows) : round_up(columns, layout.columns);
}

// Whether codes of one position lie next to each other, across lines: nothing needs to be transposed.
inline bool are_rows(const dlfp4_blocks &blocks, const FormatInfo &format) {
  return blocks.strides[0] == 1 && format.bits == 8;
}

// Whether scales are transposed between memory and kernels across lines: those of a byte each, of a line each, that are
// no neighbours across lines in memory.
inline bool are_turned(const Scales &scales) {
  return scales.bytes == 1 && scales.lines_per_row == 1 && (scales.layout != DLFP4_LAYOUT_linear || scales.stride != 1);
}

}  // namespace dlfp4

#endif  // DLFP4_SRC_BLOCKS_SCALES_H_
