// Which types are multiplied as integers, in which units, and which as floats.
// Layout: one code at a time.
// Trick: small floats without infinities are integers in units of their smallest value.
#ifndef DLFP4_SRC_RULES_SUMS_H_
#define DLFP4_SRC_RULES_SUMS_H_

#include "numerics.h"

namespace dlfp4 {
namespace {

constexpr bool is_signed_integer(int row) { return row == DLFP4_int2 || row == DLFP4_int4 || row == DLFP4_int8; }

constexpr bool is_unsigned_integer(int row) { return row == DLFP4_uint2 || row == DLFP4_uint4 || row == DLFP4_uint8; }

// What is summed as integers: those of at most 8 bits, FP4 and FP6.
constexpr bool is_integer(int row) {
  return is_signed_integer(row) || is_unsigned_integer(row) || kTypes[row].specials == DLFP4_FINITE;
}

// What is summed as floats: float8, bfloat16, float16, float32. Powers of two are scales.
constexpr bool is_summed_as_float(int row) {
  return is_float(kTypes[row]) && kTypes[row].bits >= 8 && kTypes[row].bits <= 32 && kTypes[row].specials != DLFP4_E8M0;
}

// How many units are 1: all values of FP4 and FP6 are multiples of the smallest.
constexpr int unit_of(int row) {
  return is_float(kTypes[row]) ? 1 << (kTypes[row].bias + kTypes[row].mantissa - 1) : 1;
}

// A code's value in units.
constexpr int integer_of(int row, uint64_t code) {
  const ElementType f = kTypes[row];
  if (!is_float(f)) {
    const bool negative = is_signed_integer(row) && code >> (f.bits - 1) & 1;
    return static_cast<int>(code) - (negative ? 1 << f.bits : 0);
  }
  const Value value = decode(f, code);
  const int magnitude = static_cast<int>(value.significand >> (64 - value.exponent - f.bias - f.mantissa));
  return value.negative ? -magnitude : magnitude;
}

// Stored powers of two any two of which multiply to a normal float32, counted in quarters as FP4 by FP4 is. Its
// exponent is a + b - kQuarterBias.
constexpr uint8_t kLeastPlainPower = 65, kMostPlainPower = 191;
constexpr int kQuarterBias = 127 + 2;

// Whether all of `count` bytes are in [least, most]: a loop that a compiler makes vectors of.
inline bool are_between(uint8_t least, uint8_t most, const uint8_t *bytes, int64_t count) {
  uint8_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint8_t above = static_cast<uint8_t>(bytes[i] - least);
    largest = above > largest ? above : largest;
  }
  return largest <= most - least;
}

// Whether one times the sum of a block could leave float32.
inline bool are_far(const float *scales, int64_t count) {
  unsigned far = 0;
  for (int64_t i = 0; i < count; ++i) far |= scales[i] > 0x1p100f;
  return far != 0;
}

inline bool are_plain_powers(const uint8_t *scales, int64_t count) {
  return are_between(kLeastPlainPower, kMostPlainPower, scales, count);
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_RULES_SUMS_H_
