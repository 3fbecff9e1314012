// What becomes of values that are stored in another format: changes of elements, errors of blocks.
// Layout: sixteens of a row; magnitudes are the bits of non-negative floats, so that they order as integers.
// Trick: squares are summed in sixteen sums, element i in sum i % 16, which are then added in halves: the same order
// for all levels and devices.
#ifndef DLFP4_SRC_RULES_CHANGES_H_
#define DLFP4_SRC_RULES_CHANGES_H_

#include <stdint.h>

#include "scaling.h"

namespace dlfp4 {

constexpr int kSums = 16;

namespace {

// Nothing where both are the same infinity, or NaN; an infinity where one of them is not finite or the difference is
// not.
DLFP4_FLOAT_RULE uint32_t change_of(float before, float after) {
  const uint32_t change = bits_of(before - after) & 0x7FFFFFFF, old = bits_of(before), fresh = bits_of(after);
  const bool both_nan = ((old & 0x7FFFFFFF) > kFloatInfinity) & ((fresh & 0x7FFFFFFF) > kFloatInfinity);
  const uint32_t unknown = ((old == fresh) | both_nan) ? 0 : kFloatInfinity;
  return change < kFloatInfinity ? change : unknown;
}

DLFP4_FLOAT_RULE uint32_t finite_magnitude(float value) {
  const uint32_t magnitude = bits_of(value) & 0x7FFFFFFF;
  return magnitude < kFloatInfinity ? magnitude : 0;
}

// NaN is no error.
DLFP4_FLOAT_RULE double square_of_error(float exact, float decoded) {
  const double error = static_cast<double>(exact - decoded), square = error * error;
  return square == square ? square : 0;
}

// Of a block with a change: the largest over the largest magnitude.
DLFP4_FLOAT_RULE double relative_change(float change, float size) {
  return static_cast<double>(change) / static_cast<double>(size);
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_RULES_CHANGES_H_
