// The random Hadamard transform of sixteen neighbours, x -> x diag(signs) H16 / 4, and its inverse.
// Layout: sixteen floats, H16 in Sylvester's order; signs are bits, set where an element is negated.
// Trick: a butterfly of four steps: one order of additions for all levels and devices. H16 / 4 is its own inverse, so
// that only the signs change their place. Quarters come first: what overflows then has no finite result.
#ifndef DLFP4_SRC_RULES_HADAMARD_H_
#define DLFP4_SRC_RULES_HADAMARD_H_

#include <stdint.h>

#include "operations.h"
#include "scaling.h"

namespace dlfp4 {

constexpr int kRotatedLength = 16;              // elements that are transformed together
constexpr uint32_t kIsRotated = DLFP4_ROTATED;  // beside the signs: there is a transform at all

static_assert(kIsRotated == uint32_t{1} << kRotatedLength, "signs are the bits below");

namespace {

// 1/4 with the sign of element i.
DLFP4_FLOAT_RULE float signed_quarter(uint32_t rotation, int i) {
  return float_of((rotation >> i & 1) << 31 | bits_of(0.25f));
}

// Sums and differences of so many items, floats or vectors of them, `Step` apart.
template <int Step, int Count = kRotatedLength, class Float>
DLFP4_FLOAT_RULE void butterfly(Float *values) {
  for (int i = 0; i < Count; ++i) {
    if (i & Step) continue;
    const Float low = values[i], high = values[i + Step];
    values[i] = low + high;
    values[i + Step] = low - high;
  }
}

template <class Float>
DLFP4_FLOAT_RULE void butterflies(Float *values) {
  butterfly<1>(values);
  butterfly<2>(values);
  butterfly<4>(values);
  butterfly<8>(values);
}

// Processors choose the pattern of a NaN differently: all have one.
DLFP4_FLOAT_RULE void clear_nans(float *values) {
  for (int i = 0; i < kRotatedLength; ++i)
    if (values[i] != values[i]) values[i] = float_of(kFloatNan);
}

// But for the pattern of NaNs, which does not matter where their block becomes zeros.
template <class Float>
DLFP4_FLOAT_RULE void rotate_but_nans(Float *values, uint32_t rotation) {
  for (int i = 0; i < kRotatedLength; ++i) values[i] = values[i] * signed_quarter(rotation, i);
  butterflies(values);
}

DLFP4_FLOAT_RULE void rotate(float *values, uint32_t rotation) {
  rotate_but_nans(values, rotation);
  clear_nans(values);
}

DLFP4_FLOAT_RULE void turn_signs(float *values, uint32_t rotation) {
  for (int i = 0; i < kRotatedLength; ++i) values[i] = float_of(bits_of(values[i]) ^ (rotation >> i & 1) << 31);
}

DLFP4_FLOAT_RULE void rotate_back(float *values, uint32_t rotation) {
  for (int i = 0; i < kRotatedLength; ++i) values[i] *= 0.25f;
  butterflies(values);
  turn_signs(values, rotation);
  clear_nans(values);
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_RULES_HADAMARD_H_
