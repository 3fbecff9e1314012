// From float32 to 16 bits, back, and to codes: the part that is the same for every vector.
// Layout: V is a vector of dwords in the sense of gcc and clang; 16 bits lie in the lower half of one.
// Trick: the processors' conversions are exact or round well, but treat NaNs in ways of their own, which this corrects.
#ifndef DLFP4_SRC_HOST_SIMD_FLOATS_H_
#define DLFP4_SRC_HOST_SIMD_FLOATS_H_

#include <stdint.h>

#include "lanes.h"
#include "rules/encode_rule.h"
#include "rules/numerics.h"

namespace dlfp4 {
namespace {

constexpr uint32_t kFloatFraction = 0x7FFFFF, kHalfFraction = 0x3FF;

// --- To 16 bits ------------------------------------------------------------------------------

// Rounds to nearest even, in the upper halves. A NaN must have no payload in its lower half.
template <class V>
V round_to_bfloat16(V floats) {
  return floats + 0x7FFF + (floats >> 16 & 1);
}

template <class V>
V find_nans(V floats) {
  return reinterpret_cast<V>((floats & ~kFloatSign) > kFloatInfinity);
}

// What a NaN becomes: a NaN with the quiet bit alone, or with as much of its payload as fits.
template <int Src, int Dst, class V>
V words_of_nans(V floats) {
  constexpr ElementType kTo = kTypes[Dst];
  const V infinity = (floats >> 16 & 0x8000) | static_cast<uint32_t>(infinity_code(kTo));
  if constexpr (nan_rule(kTypes[Src], kTo) == kCanonical) return infinity | 1u << (kTo.mantissa - 1);
  const V payload = (floats & kFloatFraction) >> (23 - kTo.mantissa);
  return infinity | larger<V>(payload, splat<V>(1u));
}

// To the words that the floats are rounded to.
template <int Src, int Dst, class V>
V put_nans(V words, V floats) {
  return find_nans(floats) ? words_of_nans<Src, Dst>(floats) : words;
}

// For floats widened from float16s, whose words these are: processors set a NaN's quiet bit, this restores its own.
template <class V>
V restore_payloads(V floats, V words) {
  return find_nans(floats) ? (floats & ~kFloatFraction) | (words & kHalfFraction) << 13 : floats;
}

// --- Scales ----------------------------------------------------------------------------------

// Codes of float8_e8m0fnu, one a dword: the least is a subnormal, 255 is NaN.
template <class V>
V bits_of_powers(V codes) {
  const V powers = larger<V>(codes << 23, splat<V>(1u << 22));
  return codes == 255u ? splat<V>(kFloatNan) : powers;
}

// --- To codes ------------------------------------------------------------------------------------

// Codes of the magnitudes of floats, from their bits, in the lowest byte of each dword; see encode_rule.h. Infinity
// gives the code of the rule's limit, NaN any code. Isa's vectors F32 and U32 have as many floats as dwords.
template <class Isa, int Dst, int Rounding>
DLFP4_ALWAYS_INLINE inline typename Isa::U32 encode_magnitudes(typename Isa::U32 floats, const EncodeRule &rule) {
  using U32 = typename Isa::U32;
  using F32 = typename Isa::F32;
  constexpr bool kHalves = Rounding == DLFP4_NEAREST_AWAY || Rounding == DLFP4_NEAREST_ZERO;
  U32 clamped = smaller<U32>(floats & ~kFloatSign, splat<U32>(rule.limit));
  if constexpr (Rounding == DLFP4_NEAREST_ZERO) clamped = larger<U32>(clamped, splat<U32>(1u)) - 1u;
  const U32 magic = larger<U32>(clamped & kFloatInfinity, splat<U32>(rule.lowest)) + rule.magic;
  const F32 exact = reinterpret_cast<F32>(clamped), addend = reinterpret_cast<F32>(magic);
  const F32 rounded = exact + addend;
  U32 sum = reinterpret_cast<U32>(rounded);
  if constexpr (Rounding != DLFP4_NEAREST_EVEN) sum += reinterpret_cast<U32>(rounded - addend > exact);  // one less
  const U32 significand = kHalves ? sum >> 1 : sum;
  return significand + (sum >> (23 - kTypes[Dst].mantissa));
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_HOST_SIMD_FLOATS_H_
