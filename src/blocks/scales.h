// What quantizing and dequantizing need of scales beside their places: the rule of a format and a recipe, padding.
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

}  // namespace dlfp4

#endif  // DLFP4_SRC_BLOCKS_SCALES_H_
