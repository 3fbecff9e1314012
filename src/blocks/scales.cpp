// The rule of a format and a recipe, conversion of scale layouts, the shuffle of weights.
// Layout: scales in the layouts of layouts.h; weights as bytes.
#include "scales.h"

#include <string.h>

#include "dlfp4/dlfp4.h"
#include "host/threads.h"
#include "kernels.h"
#include "rules/hadamard.h"
#include "rules/numerics.h"
#include "rules/operand.h"

namespace dlfp4 {
namespace {

// Four over six is of FP4 in two levels; it has an order of its own, and chance would have to be tossed for twice.
bool can_choose(const dlfp4_recipe &recipe, const FormatInfo &format) {
  if (recipe.four_over_six == DLFP4_NOT_FOUR_OVER_SIX) return true;
  return format.row->kind == DLFP4_TWO_LEVEL && format.row->element == DLFP4_float4_e2m1fn &&
         format.block == kErrorBlock && recipe.rounding != DLFP4_STOCHASTIC && !recipe.divides &&
         recipe.scale_order == DLFP4_GLOBAL_FIRST;
}

// Whether a byte is zero or a positive number as a stored scale; of float32 scales it means nothing.
bool is_scale(uint8_t code, int row) {
  const Value value = decode(kTypes[row], code);
  return kTypes[row].bits > 8 || (!value.negative && (value.kind == kZero || value.kind == kFinite));
}

// PyTorch divides in the type that holds operands of both types: tensor scales of NVFP4 are float32, and so is what has
// a bfloat16 and a float16.
int element_mantissa(const ScaleRule &rule, const FormatInfo &format) {
  const bool one_type = rule.scale_mantissa == 23 || rule.scale_mantissa == rule.mantissa;
  return format.row->kind == DLFP4_LARGEST && one_type ? rule.mantissa : 23;
}

}  // namespace

int scale_mantissa(const dlfp4_recipe &recipe) {
  const int row = recipe.scale_bits == 16 ? dlfp4_find_dtype(recipe.scale_code, recipe.scale_bits) : DLFP4_float32;
  return row == DLFP4_bfloat16 || row == DLFP4_float16 ? kTypes[row].mantissa : kTypes[DLFP4_float32].mantissa;
}

ScaleRule make_rule(const FormatInfo &format, const dlfp4_recipe &recipe, Source source,
                    const dlfp4_tensor_scale *scale) {
  const ElementType element = kTypes[format.row->element];
  ScaleRule rule = {};
  rule.zero_scale = recipe.zero_scale;
  rule.least_code = recipe.least_scale;
  rule.least = bits_of(recipe.eps) & 0x7FFFFFFF;  // a recipe may have -0
  rule.pow2 = recipe.pow2;
  rule.divides = recipe.divides && !recipe.pow2;  // by powers of two both are the same
  rule.order = recipe.scale_order;
  rule.chooses = recipe.four_over_six;
  rule.mantissa = rule.order == DLFP4_INPUT_TYPE ? kTypes[kSourceRows[source]].mantissa : 23;
  rule.scale_mantissa = scale_mantissa(recipe);
  rule.element_mantissa = element_mantissa(rule, format);
  compute([&] {
    set_types(&rule, element, kTypes[format.row->scale], recipe.largest_scale);
    rule.divides |= rule.of_integers;
    set_scale(&rule, scale ? TensorScale{scale->encode, scale->decode, scale->largest} : TensorScale{1, 1, 0});
  });
  rule.carry = carry_of_power(recipe.scale_rule, rule.largest, element.mantissa);
  return rule;
}

// A largest scale that the scales' type holds; 0: its own.
bool is_largest_scale(float number, ElementType scale) {
  return number >= 0 && number <= float_of(float_of_magnitude(scale, largest_finite_code(scale)));
}

// A type to hold scales, or none.
bool holds_scales(const dlfp4_recipe &recipe) {
  const int row = dlfp4_find_dtype(recipe.scale_code, recipe.scale_bits);
  return recipe.scale_bits == 0 || row == DLFP4_float32 || row == DLFP4_bfloat16 || row == DLFP4_float16 ||
         row == DLFP4_float8_e8m0fnu;
}

bool is_recipe(const dlfp4_recipe &recipe, const FormatInfo &format) {
  const auto is_below = [](int number, int last) { return number >= 0 && number <= last; };
  return is_rounding(recipe.rounding) && recipe.rounding != DLFP4_UPWARD &&
         is_below(number_of(recipe.scale_rule), DLFP4_SCALE_EVEN) &&
         is_below(number_of(recipe.scale_order), DLFP4_INPUT_TYPE) &&
         is_below(number_of(recipe.four_over_six), DLFP4_MEAN_SQUARED) && recipe.eps >= 0 &&
         bits_of(recipe.eps) != kFloatInfinity && holds_scales(recipe) &&
         is_largest_scale(recipe.largest_scale, kTypes[format.row->scale]) &&
         is_scale(recipe.least_scale, format.row->scale) && is_scale(recipe.zero_scale, format.row->scale) &&
         can_choose(recipe, format);
}

bool is_rotation(uint32_t rotation, int64_t length) {
  return rotation == 0 || (rotation >> kRotatedLength == 1 && length % kRotatedLength == 0);
}

int64_t padded_bytes(int layout, int64_t rows, int64_t columns, int itemsize) {
  return round_up(rows, dlfp4_layouts[layout].rows) * round_up(columns, dlfp4_layouts[layout].columns) * itemsize;
}

}  // namespace dlfp4

extern "C" {

uint32_t dlfp4_rotation(uint64_t seed) {
  constexpr uint32_t kSigns = dlfp4::kIsRotated - 1;
  return dlfp4::kIsRotated | (dlfp4::draw_of(seed, 0).first & kSigns);
}

dlfp4_status dlfp4_host_convert_scales(const void *src, int src_layout, void *dst, int dst_layout, int64_t rows,
                                       int64_t columns, int itemsize, uint8_t fill) {
  using namespace dlfp4;
  if (src_layout < 0 || src_layout >= DLFP4_NUM_LAYOUTS || dst_layout < 0 || dst_layout >= DLFP4_NUM_LAYOUTS)
    return DLFP4_E_OPTION;
  if (rows == 0 || columns == 0) return DLFP4_OK;  // perhaps without memory
  const auto make = [=](const void *data, int layout) {
    const int64_t pitch = pitch_of(dlfp4_layouts[layout], rows, columns);
    return Scales{static_cast<uint8_t *>(const_cast<void *>(data)), layout, itemsize, columns, 1, pitch, 1};
  };
  const Scales from = make(src, src_layout), to = make(dst, dst_layout);
  memset(dst, fill, static_cast<size_t>(padded_bytes(dst_layout, rows, columns, itemsize)));
  constexpr int64_t kAtOnce = 256, kLargestScale = 4;
  uint8_t scales[kAtOnce * kLargestScale];
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t first = 0; first < columns; first += kAtOnce) {
      const int64_t count = least(kAtOnce, columns - first);
      load_scales(from, row, first, count, scales);
      store_scales(to, row, first, count, scales);
    }
  }
  return DLFP4_OK;
}

dlfp4_status dlfp4_host_shuffle_weight(const void *src, void *dst, int64_t rows, int64_t columns, int back) {
  constexpr int64_t kTile = 16;  // bytes of a row that stay together
  if (rows % kTile != 0 || columns % (2 * kTile) != 0) return DLFP4_E_SHAPE;
  const uint8_t *const from = static_cast<const uint8_t *>(src);
  uint8_t *const to = static_cast<uint8_t *>(dst);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; j += kTile) {
      const int64_t plain = i * columns + j, shuffled = dlfp4_offset_aiter_weight(i, j, columns);
      memcpy(to + (back ? plain : shuffled), from + (back ? shuffled : plain), kTile);
    }
  }
  return DLFP4_OK;
}
}
