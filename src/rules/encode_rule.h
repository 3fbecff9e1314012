// What a fast encoder needs to know of a format: to round a float to it by one addition.
// Layout: constants made of numerics.h; codes of at most 8 bits, all formats but E8M0.
// Trick: adding a power of two chosen by the exponent leaves the rounded significand in a float's lowest bits.
#ifndef DLFP4_SRC_RULES_ENCODE_RULE_H_
#define DLFP4_SRC_RULES_ENCODE_RULE_H_

#include <stdint.h>

#include "numerics.h"

namespace dlfp4 {
namespace {

constexpr uint32_t kFloatSign = 0x80000000;

constexpr uint8_t code_of_float(ElementType to, uint32_t bits, Round round) {
  return static_cast<uint8_t>(convert(kTypes[DLFP4_float32], to, bits, round, {0, 0, 0}));
}

// The code of a special value of each sign: base ^ (sign bit & flip).
struct Special {
  uint8_t base;
  uint8_t flip;
};

constexpr Special make_special(ElementType to, uint32_t bits, Round round) {
  const uint8_t positive = code_of_float(to, bits, round), negative = code_of_float(to, bits | kFloatSign, round);
  return {positive, static_cast<uint8_t>(positive ^ negative)};
}

struct EncodeRule {
  uint32_t limit;   // a float32: what is larger has the code of this one
  uint32_t lowest;  // a float32: the smallest normal value
  uint32_t magic;   // added to a power of two's bits
  uint32_t shift;   // from a float32's exponent to the code's
  Special nan;
  Special infinity;
};

// With e the exponent, m the mantissa's bits and l the smallest normal exponent, the code is the rounded significand,
// in units of 2^(e-m), plus (e-l) * 2^m. Adding 2^(e+23-m) to the float rounds it to these units and leaves the
// significand in the lowest bits, the exponent above; shifted right by 23-m and added, it adds e * 2^m and a constant,
// for which the magic makes up in advance. Ties away from zero take one unit more, halves, which is shifted out later;
// ties towards zero are the same of the next smaller float.
constexpr EncodeRule make_encode_rule(ElementType f, Round round) {
  const bool halves = round.rounding == DLFP4_NEAREST_AWAY || round.rounding == DLFP4_NEAREST_ZERO;
  const bool clamps_finite = clamps(f, kFinite, round);
  const uint32_t lift = static_cast<uint32_t>(23 - f.mantissa - halves);
  const uint32_t lowest = static_cast<uint32_t>(127 + smallest_normal_exponent(f));
  const uint32_t excess = (lowest + lift) << f.mantissa;
  const uint32_t amends = -excess & 0xFF;
  return {float_of_magnitude(f, largest_finite_code(f) + !clamps_finite),
          lowest << 23,
          (lift << 23) + (halves ? 2 * amends + 1 : amends),
          static_cast<uint32_t>(23 - f.mantissa),
          make_special(f, kFloatNan, round),
          make_special(f, kFloatInfinity, round)};
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_RULES_ENCODE_RULE_H_
