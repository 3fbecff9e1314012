// Sums of products of floats, as far as they are the same for every vector.
// Layout: codes one a byte or packed, floats in order; a step's products are four vectors.
// Trick: a bfloat16 is the upper half of a float32, so that the two of a dword widen by a shift and a mask; the order
// in which that leaves a step's floats is the same on both sides.
#ifndef DLFP4_SRC_PRODUCTS_VECTOR_DOTS_H_
#define DLFP4_SRC_PRODUCTS_VECTOR_DOTS_H_

#include <stdint.h>
#include <string.h>

#include "host/simd/lanes.h"
#include "kernels.h"
#include "rules/numerics.h"
#include "rules/operand.h"
#include "rules/sums.h"

namespace dlfp4 {
namespace {

// Calls step(a, b) for `Elements` of `Bits` each at a time. The last ones are followed by zeros, whatever a last
// byte's spare bits are.
template <int Elements, int Bits, class Step>
DLFP4_ALWAYS_INLINE inline void in_steps_of_both(const uint8_t *a, const uint8_t *b, int64_t count, Step step) {
  constexpr int kBytes = Elements * Bits / 8;
  for (; count >= Elements; count -= Elements, a += kBytes, b += kBytes) step(a, b);
  if (count == 0) return;
  uint8_t left[kBytes] = {}, right[kBytes] = {};
  copy_codes(left, a, count * Bits);
  copy_codes(right, b, count * Bits);
  step(left, right);
}

// Calls step(a, a's scales, b, b's scales) for eight blocks at a time, the last ones followed by zeros.
template <int64_t kBlock, class Step>
DLFP4_ALWAYS_INLINE inline void each_eight(const uint8_t *a, const uint8_t *a_scales, const uint8_t *b,
                                           const uint8_t *b_scales, int64_t count, Step step) {
  constexpr int64_t kStep = 8 * kBlock;
  for (; count >= kStep; count -= kStep, a += kStep / 2, b += kStep / 2, a_scales += 8, b_scales += 8)
    step(a, a_scales, b, b_scales);
  if (count == 0) return;
  uint8_t left[kStep / 2] = {}, right[kStep / 2] = {}, of_left[8] = {}, of_right[8] = {};
  const size_t bytes = static_cast<size_t>(count) / 2, blocks = static_cast<size_t>(count / kBlock);
  memcpy(left, a, bytes);
  memcpy(right, b, bytes);
  memcpy(of_left, a_scales, blocks);
  memcpy(of_right, b_scales, blocks);
  step(left, of_left, right, of_right);
}

// --- Elements as float32 ---------------------------------------------------------------------

// A step's elements, in an order that depends on their type alone. Isa has vectors F32 and U32, kCodes elements a step,
// load_wide<Row>(src) for elements of more than 8 bits, widen_bytes(src) for the upper bytes of float16s, and
// words_of<Row, Bits>(src): bfloat16s.
template <class Isa, int Row, int Bits>
DLFP4_ALWAYS_INLINE inline typename Isa::Factors load_factors(const uint8_t *src) {
  using U32 = typename Isa::U32;
  using F32 = typename Isa::F32;
  if constexpr (kTypes[Row].bits > 8) {
    return Isa::template load_wide<Row>(src);
  } else if constexpr (Row == DLFP4_float8_e5m2) {
    return Isa::widen_bytes(src);
  } else {
    const auto words = Isa::template words_of<Row, Bits>(src);
    const U32 low = reinterpret_cast<U32>(words.half[0]), high = reinterpret_cast<U32>(words.half[1]);
    return {{reinterpret_cast<F32>(low << 16), reinterpret_cast<F32>(low & 0xFFFF0000u),
             reinterpret_cast<F32>(high << 16), reinterpret_cast<F32>(high & 0xFFFF0000u)}};
  }
}

// --- Sums ------------------------------------------------------------------------------------

template <class F32>
double add_lanes(F32 sums) {
  double total = 0;
  for (size_t lane = 0; lane < sizeof(sums) / sizeof(float); ++lane) total += static_cast<double>(sums[lane]);
  return total;
}

template <class F32>
double add_up(const F32 (&sums)[4]) {
  return add_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

template <class Isa, int Row, int Bits>
double sum_products(const uint8_t *a, const uint8_t *b, int64_t count) {
  typename Isa::F32 sums[4] = {};
  in_steps_of_both<Isa::kCodes, Bits>(a, b, count, [&](const uint8_t *x, const uint8_t *y) DLFP4_ALWAYS_INLINE {
    const auto left = load_factors<Isa, Row, Bits>(x), right = load_factors<Isa, Row, Bits>(y);
    for (int i = 0; i < 4; ++i) sums[i] = Isa::multiply_add(left.part[i], right.part[i], sums[i]);
  });
  return add_up(sums);
}

template <class Isa, int Row>
double sum_floats(const uint8_t *a, const uint8_t *b, int64_t count) {
  return sum_products<Isa, Row, kTypes[Row].bits>(a, b, count);
}

// FP4 and FP6, exactly: float32 holds the sum of so many steps' products, each below 2^18 units, in every lane.
template <class Isa, int Row, int Bits>
int64_t sum_as_floats(const uint8_t *a, const uint8_t *b, int64_t count) {
  constexpr int64_t kMost = 16 * Isa::kCodes;  // four vectors are added up: 2^18 * 16 * 4
  constexpr int kUnit = unit_of(Row);
  static_assert(Isa::kCodes == 4 * sizeof(typename Isa::F32) / sizeof(float), "a product a lane and step");
  double total = 0;
  for (int64_t first = 0; first < count; first += kMost) {
    const int64_t at = first * Bits / 8;
    total += sum_products<Isa, Row, Bits>(a + at, b + at, least(kMost, count - first));
  }
  return static_cast<int64_t>(total * (kUnit * kUnit));
}

// Packed elements in blocks; a step lies in one.
template <class Isa, int Key>
double sum_scaled(const uint8_t *a, const uint8_t *b, int64_t count, const float *scales) {
  using F32 = typename Isa::F32;
  constexpr int kRow = kBlockKeys[Key].element, kBits = kTypes[kRow].bits;
  constexpr int64_t kBlock = kBlockKeys[Key].length;
  static_assert(kBlock % Isa::kCodes == 0, "whole steps");
  F32 sums[4] = {};
  int64_t first = 0;
  in_steps_of_both<Isa::kCodes, kBits>(a, b, count, [&](const uint8_t *x, const uint8_t *y) DLFP4_ALWAYS_INLINE {
    const auto left = load_factors<Isa, kRow, kBits>(x), right = load_factors<Isa, kRow, kBits>(y);
    const F32 scale = splat<F32>(scales[first / kBlock]);
    for (int i = 0; i < 4; ++i) sums[i] = Isa::multiply_add(left.part[i] * right.part[i], scale, sums[i]);
    first += Isa::kCodes;
  });
  return add_up(sums);
}

template <class Isa, int Key>
void add_scaled_sum(ProductKernels *kernels) {
  constexpr int64_t kBlock = kBlockKeys[Key].length;
  if constexpr (sums_elements(kBlockKeys[Key]) && kBlock % Isa::kCodes == 0)
    kernels->sum_scaled[Key] = sum_scaled<Isa, Key>;
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_VECTOR_DOTS_H_
