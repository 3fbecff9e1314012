// How a block's scale comes from its largest magnitude, and what the elements are multiplied with: every recipe, once.
// Layout: one block at a time; magnitudes are the bits of non-negative float32 numbers, so that they order as integers.
// Trick: a magnitude from kFloatInfinity on says that the block holds a NaN or an infinity.
#ifndef DLFP4_SRC_RULES_SCALING_H_
#define DLFP4_SRC_RULES_SCALING_H_

#include <stdint.h>
#include <string.h>

#include "formats.h"
#include "numerics.h"

#ifdef __CUDACC__
#define DLFP4_FLOAT_RULE __host__ __device__ __forceinline__
#else
#define DLFP4_FLOAT_RULE __attribute__((always_inline)) inline
#endif

namespace dlfp4 {

// What a format and a recipe fix for all blocks of a tensor.
struct ScaleRule {
  uint32_t carry;       // of DLFP4_POWER formats: carry_of_power
  int exponent;         // of the element type's largest value
  uint32_t largest;     // the element type's largest value, as float32 bits
  uint32_t zero_scale;  // the code of a scale that would be zero
  uint32_t least_code;  // of the scale of a block that is not zero
  uint32_t least;       // float32 bits: smaller magnitudes count as this one
  bool pow2;            // round the encode scale down to a power of two
  bool divides;         // elements are divided by their factor, not multiplied
  bool of_integers;     // of DLFP4_LARGEST formats: integer_scale
  int scale_mantissa;   // of DLFP4_LARGEST formats: the bits of that of what holds the scales: 7, 10 or 23
  float inverse;        // 1 / largest
  float reach;          // of DLFP4_TWO_LEVEL formats: the largest value times the scale type's
  float whole;          // factor of the elements where the whole tensor has one scale
  dlfp4_scale_order order;
  // What quotients are rounded to, those of magnitudes and those that elements become: of DLFP4_INPUT_TYPE the bits of
  // the input's mantissa, else 23: all.
  int mantissa, element_mantissa;
  // Of DLFP4_TWO_LEVEL formats. A block's scale is its largest magnitude times (or over) `first`, times `second`. What
  // its elements are multiplied with is the reciprocal of the stored scale times (or over) `unit`.
  bool over_first, over_unit;
  float first, second, unit;
  // Four over six: how errors are counted, how much larger the scale of largest elements on 4 is than that on 6 (in the
  // rule of these, else 1), and the tensor's largest magnitude.
  dlfp4_four_over_six chooses;
  float expansion, amax;
};

namespace {

constexpr float kLargestFloat = 3.40282346638528859811704183484516925e+38f;
constexpr float kLargestHalf = 65504;
constexpr float kLeastDecode = 1 / kLargestFloat;  // of a whole tensor: what the largest encode scale, clamped, undoes

DLFP4_FLOAT_RULE float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

DLFP4_FLOAT_RULE uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// Whether a number can be the decode scale of a tensor: it is positive and finite. By its bits, since callers may have
// the processor take subnormals for zeros.
DLFP4_FLOAT_RULE bool is_decode_scale(float value) { return bits_of(value) - 1 < kFloatInfinity - 1; }

DLFP4_FLOAT_RULE float finite(float value) { return value < kLargestFloat ? value : kLargestFloat; }

// What is stored of a block's scale (a code, or a float32's bits), and what its elements are multiplied with, or
// divided by.
struct BlockScale {
  uint32_t stored;
  float multiplier;
};

// A non-negative float rounded to so many bits of a float16's (10) or a bfloat16's (7) mantissa, to nearest even.
DLFP4_FLOAT_RULE float narrowed(float value, int mantissa) {
  if (mantissa == 7) return float_of((bits_of(value) + 0x7FFF + (bits_of(value) >> 16 & 1)) & 0xFFFF0000);
  if (mantissa != 10) return value;
  if (value >= 65520) return float_of(kFloatInfinity);
  const uint32_t power = bits_of(value) & kFloatInfinity, lowest = 113u << 23;
  const float addend = float_of((power > lowest ? power : lowest) + (13u << 23));
  return (value + addend) - addend;
}

// --- The whole tensor ------------------------------------------------------------------------

struct TensorScale {
  float encode, decode;
  float largest;  // magnitude; 0: not known
};

// What is stored: where the encode scale is clamped, both must still agree.
DLFP4_FLOAT_RULE float stored_decode(float decode) { return decode > kLeastDecode ? decode : kLeastDecode; }

// NVFP4: `largest` is the largest finite magnitude.
DLFP4_FLOAT_RULE TensorScale two_level_scale(const ScaleRule &rule, float largest) {
  if (largest == 0) return {1, 1, 0};
  if (rule.order == DLFP4_INPUT_TYPE) {  // whose project takes 1 where this overflows, and divides as PyTorch does
    const float encode = narrowed(narrowed(1 / largest, rule.mantissa) * rule.reach, rule.mantissa);
    if (!(encode < float_of(kFloatInfinity))) return {1, 1, largest};
    return {encode, stored_decode(1 / encode), largest};
  }
  return {finite(rule.reach / largest), stored_decode(largest / rule.reach), largest};
}

// One unit in the last place of 1, as float32 bits.
DLFP4_RULE uint32_t unit_in_last_place(int mantissa) { return static_cast<uint32_t>(127 - mantissa) << 23; }

// What a quotient of zero becomes, as float32 bits: the least one maps the least magnitudes to themselves, and zeros
// have 1. compressed-tensors makes no difference between the two.
DLFP4_RULE uint32_t quotient_of_zero(const ScaleRule &rule, bool zeros) {
  if (rule.order == DLFP4_INPUT_TYPE) return unit_in_last_place(rule.mantissa);
  return zeros ? 127u << 23 : 1;
}

DLFP4_FLOAT_RULE float quotient_scale(const ScaleRule &rule, uint32_t magnitude) {
  const uint32_t bits = bits_of(narrowed(float_of(magnitude) / float_of(rule.largest), rule.mantissa));
  return float_of(bits > 0 ? bits : quotient_of_zero(rule, magnitude == 0));
}

// The unit in the last place of 1 of scales that the input's type and what holds them round.
DLFP4_RULE uint32_t unit_of_scales(const ScaleRule &rule) {
  return unit_in_last_place(rule.mantissa < rule.scale_mantissa ? rule.mantissa : rule.scale_mantissa);
}

// A positive scale as what holds it has it: never zero and never infinite.
DLFP4_FLOAT_RULE float held_scale(const ScaleRule &rule, float decode) {
  constexpr float kLeastBfloat = 0x1p-133f, kLeastHalf = 0x1p-24f;
  const float held = narrowed(decode, rule.scale_mantissa);
  if (rule.scale_mantissa == 7) return held < kLeastBfloat ? kLeastBfloat : held;
  if (rule.scale_mantissa != 10) return held;
  return held < kLeastHalf ? kLeastHalf : held < kLargestHalf ? held : kLargestHalf;
}

// Integers, as compressed-tensors scales them: a quotient, which the input's type and what holds it may round. A
// quotient of zero, such as a block of zeros has, becomes one unit in the last place of 1, and a block that is not
// finite decodes to NaN.
DLFP4_FLOAT_RULE float integer_scale(const ScaleRule &rule, uint32_t magnitude) {
  const uint32_t amax = magnitude < rule.least ? rule.least : magnitude;
  if (amax >= kFloatInfinity) return float_of(kFloatNan);
  const float quotient = narrowed(float_of(amax) / float_of(rule.largest), rule.mantissa);
  const float scale = narrowed(quotient, rule.scale_mantissa);
  if (scale == 0) return float_of(unit_of_scales(rule));
  return rule.scale_mantissa == 10 && scale > kLargestHalf ? kLargestHalf : scale;
}

// A float32 scale that maps the largest magnitude to the element type's largest value: current scaling.
DLFP4_FLOAT_RULE TensorScale largest_scale(const ScaleRule &rule, uint32_t magnitude) {
  const uint32_t amax = magnitude < rule.least ? rule.least : magnitude;
  if (amax >= kFloatInfinity) return {1, 1, 0};
  if (rule.divides) {
    const float decode = held_scale(rule, quotient_scale(rule, amax));
    return {finite(1 / decode), decode, 0};
  }
  if (amax == 0) return {1, 1, 0};
  float encode = finite(float_of(rule.largest) / float_of(amax));
  if (rule.pow2) encode = float_of(bits_of(encode) & kFloatInfinity);
  if (rule.scale_mantissa == 23) return {encode, 1 / encode, 0};
  const float decode = held_scale(rule, 1 / encode);
  return {finite(1 / decode), decode, 0};
}

DLFP4_FLOAT_RULE TensorScale scale_given(float decode) { return {finite(1 / decode), stored_decode(decode), 0}; }

// What follows from the element type and, for DLFP4_TWO_LEVEL formats, from the type of the scales.
// `largest_scale`: what the largest magnitude makes a scale, 0: the type's largest value.
DLFP4_FLOAT_RULE void set_types(ScaleRule *rule, ElementType element, ElementType scale, float largest_scale) {
  rule->exponent = largest_exponent(element);
  rule->of_integers = is_block_integer(element);
  rule->largest = rule->of_integers ? bits_of(0.5f * static_cast<float>(low_bits(element.bits)))
                                    : float_of_magnitude(element, largest_finite_code(element));
  rule->inverse = 1 / float_of(rule->largest);
  const float largest = float_of(float_of_magnitude(scale, largest_finite_code(scale)));
  rule->reach = float_of(rule->largest) * (largest_scale > 0 ? largest_scale : largest);
}

// What follows from the scale of the whole tensor.
DLFP4_FLOAT_RULE void set_scale(ScaleRule *rule, TensorScale scale) {
  const float largest = float_of(rule->largest);
  rule->whole = rule->divides ? scale.decode : scale.encode;
  rule->over_first = rule->divides || rule->order == DLFP4_INPUT_TYPE || rule->chooses;
  rule->over_unit = rule->order == DLFP4_INPUT_TYPE;
  rule->unit = rule->over_unit ? scale.encode : rule->divides ? scale.decode : 1 / scale.encode;
  rule->second = scale.encode;
  rule->expansion = 1;
  rule->amax = scale.largest > 0 ? scale.largest : scale.decode * rule->reach;
  if (rule->order != DLFP4_GLOBAL_FIRST || rule->chooses) {
    rule->first = rule->over_first ? largest : rule->inverse;
  } else {
    rule->first = rule->over_first ? largest * scale.decode : scale.encode * rule->inverse;
    rule->second = 1;
  }
}

// --- A block ---------------------------------------------------------------------------------

// The code of a float in the type of scales.
DLFP4_FLOAT_RULE uint32_t encode_scale(ElementType scale, uint32_t bits) {
  const Round round = {DLFP4_NEAREST_EVEN, true};
  return static_cast<uint32_t>(convert(type_of<DLFP4_float32>(), scale, bits, round, {0, 0, 0}));
}

// What a stored scale is worth.
DLFP4_FLOAT_RULE float decode_scale(ElementType scale, uint32_t stored) {
  if (scale.bits == 32) return float_of(stored);
  const Round round = {DLFP4_NEAREST_EVEN, true};
  return float_of(static_cast<uint32_t>(convert(scale, type_of<DLFP4_float32>(), stored, round, {0, 0, 0})));
}

// NVFP4: what a block's scale is before it is rounded. The order of the operations decides bytes.
DLFP4_FLOAT_RULE float wanted_scale(const ScaleRule &rule, float magnitude) {
  const float first = rule.over_first ? narrowed(magnitude / rule.first, rule.mantissa) : magnitude * rule.first;
  return finite(first * rule.second * rule.expansion);
}

// The rule of the other candidate of four over six.
DLFP4_FLOAT_RULE ScaleRule rule_of_four(ScaleRule rule) {
  rule.expansion = 1.5f;
  return rule;
}

// Four over six: what an element's error adds, of the value of its code and its block's stored scale.
DLFP4_FLOAT_RULE float error_of(const ScaleRule &rule, float element, float scale, float value) {
  const float error = element * scale * rule.amax / rule.reach - value;
  return rule.chooses == DLFP4_MEAN_SQUARED ? error * error : error < 0 ? -error : error;
}

// Whether no value of a code becomes subnormal or infinite on its way through `error_of`, whatever its scale: then what
// twice a value is worth is twice what it is worth, and those of 1 and 1.5 make all of a block's.
DLFP4_FLOAT_RULE bool has_usual_errors(const ScaleRule &rule) { return rule.amax > 1e-24f && rule.amax < 1e30f; }

// The code that is stored for one that a magnitude gave.
DLFP4_FLOAT_RULE uint32_t stored_code(const ScaleRule &rule, uint32_t magnitude, uint32_t code) {
  if (magnitude != 0 && code < rule.least_code) return rule.least_code;
  return code == 0 ? rule.zero_scale : code;
}

// What elements are multiplied with, or divided by, where the stored scale is worth `scale`.
DLFP4_FLOAT_RULE float two_level_factor(const ScaleRule &rule, float scale) {
  const float decode = rule.over_unit ? scale / rule.unit : scale * rule.unit;
  if (rule.divides) return scale == 0 ? kLargestFloat : decode;
  return scale == 0 && rule.order == DLFP4_BLOCK_FIRST ? 0 : finite(1 / decode);
}

DLFP4_FLOAT_RULE BlockScale two_level_block(const ScaleRule &rule, ElementType scale, uint32_t magnitude) {
  if (magnitude >= kFloatInfinity) return {encode_scale(scale, kFloatNan), 0};
  const uint32_t rounded = encode_scale(scale, bits_of(wanted_scale(rule, float_of(magnitude))));
  const uint32_t code = stored_code(rule, magnitude, rounded);
  return {code, two_level_factor(rule, decode_scale(scale, code))};
}

// What an MX scale's rule adds to a magnitude before all but its exponent is cut off. `largest` is the element type's
// largest value, as float32 bits, and `mantissa` the bits of its fraction.
DLFP4_RULE uint32_t carry_of_power(dlfp4_scale_rule rule, uint32_t largest, int mantissa) {
  constexpr uint32_t kFraction = 0x7FFFFF;
  switch (rule) {
    case DLFP4_SCALE_RCEIL:
      return kFraction - (largest & kFraction);
    case DLFP4_SCALE_CEIL:
      return kFraction;
    case DLFP4_SCALE_EVEN:
      return 1u << (22 - mantissa);
    default:
      return 0;
  }
}

// 2^-(code - 127), which is subnormal for the highest code.
DLFP4_FLOAT_RULE float power_multiplier(uint32_t code) { return float_of(code < 254 ? (254 - code) << 23 : 1u << 22); }

DLFP4_FLOAT_RULE BlockScale power_block(const ScaleRule &rule, uint32_t magnitude) {
  if (magnitude >= kFloatInfinity) return {0xFF, 0};
  const uint32_t amax = magnitude < rule.least ? rule.least : magnitude;
  if (amax == 0) return {rule.zero_scale, 1};
  // Below 2^-126 the scale is the lowest one whichever rule, so that an exponent of 0 may stand for all of those. The
  // highest is 254: rule.exponent is at least 1, as block_keys.h asks.
  const int power = static_cast<int>((amax + rule.carry) >> 23) - rule.exponent;
  const int least = static_cast<int>(rule.least_code);
  const uint32_t code = static_cast<uint32_t>(power < least ? least : power);
  return {code, power_multiplier(code)};
}

DLFP4_FLOAT_RULE BlockScale largest_block(const ScaleRule &rule, uint32_t magnitude) {
  if (rule.of_integers) {
    const float scale = integer_scale(rule, magnitude);
    return {bits_of(scale), scale};
  }
  const TensorScale scale = largest_scale(rule, magnitude);
  return {bits_of(scale.decode), rule.divides ? scale.decode : scale.encode};
}

// --- Elements --------------------------------------------------------------------------------

// `narrowed` with a sign; a NaN stays as it is.
DLFP4_FLOAT_RULE float narrowed_quotient(float value, int mantissa) {
  if (value != value) return value;
  const uint32_t sign = bits_of(value) & 0x80000000;
  return float_of(bits_of(narrowed(float_of(bits_of(value) ^ sign), mantissa)) | sign);
}

// What is rounded to the element type: a product, or a quotient that is rounded to a mantissa's bits. Adding +0 turns
// -0 into +0, adding -0 changes nothing.
DLFP4_FLOAT_RULE float scaled(float value, float factor, bool divides, int mantissa, float zero) {
  return (divides ? narrowed_quotient(value / factor, mantissa) : value * factor) + zero;
}

// An element's value times its scale. A NaN element stays itself; every other NaN has the one positive, quiet pattern.
DLFP4_FLOAT_RULE float decoded(float element, float scale) {
  if (element != element) return element;
  const float product = element * scale;
  return product == product ? product : float_of(kFloatNan);
}

// What a block of integers has beside its scale: values are (element - zero) * scale + bias, of which the difference is
// exact. Where there is no zero point it is 0, and where there is no bias it is -0, which change nothing.
struct BlockOffset {
  float zero, bias;
};

constexpr BlockOffset kNoOffset = {0.0f, -0.0f};

// A zero point of 4 or 8 bits.
DLFP4_FLOAT_RULE float zero_point_of(uint32_t code, int bits, bool is_signed) {
  const int value = static_cast<int>(code & low_bits(bits));
  return static_cast<float>(is_signed && value >> (bits - 1) ? value - (1 << bits) : value);
}

// Zero points of a symmetric tensor whose codes have no sign: 8 of 4 bits. So codes are those of int4 with their
// highest bit turned.
constexpr uint32_t kMiddle = 8;

DLFP4_FLOAT_RULE float decoded_with(float element, float scale, BlockOffset offset) {
  const float product = (element - offset.zero) * scale;
  const float value = product + offset.bias;
  return value == value ? value : float_of(kFloatNan);
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_RULES_SCALING_H_
