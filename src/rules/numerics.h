// What each code of each floating-point format is worth, and which code a value rounds to; and of 4-bit integers, which
// are the elements of block-scaled formats.
// Layout: one element at a time, its code in the low bits of an integer; every row of dtypes.def.
// Trick: any code decodes to an exact 64-bit significand, and is encoded from it with one rounding.
#ifndef DLFP4_SRC_RULES_NUMERICS_H_
#define DLFP4_SRC_RULES_NUMERICS_H_

#include <stdint.h>

#include "dtypes.h"
#include "operations.h"

#ifdef __CUDACC__
#define DLFP4_RULE __host__ __device__ __forceinline__ constexpr
#else
#define DLFP4_RULE __attribute__((always_inline)) inline constexpr
#endif

namespace dlfp4 {

struct ElementType {
  int bits;
  int exponent;
  int mantissa;
  int bias;
  int specials;
};

struct Round {
  dlfp4_rounding rounding;
  bool saturate;
};

// Internal linkage, so that no file can be linked to a copy compiled for another instruction set.
namespace {

constexpr ElementType kTypes[DLFP4_NUM_DTYPES] = {
#define DLFP4_DTYPE(name, code, bits, exponent, mantissa, bias, specials) \
  {bits, exponent, mantissa, bias, DLFP4_##specials},
#include "dtypes.def"
#undef DLFP4_DTYPE
};

// For device code, which cannot read a table of the host.
template <int Row>
DLFP4_RULE ElementType type_of() {
  constexpr ElementType format = kTypes[Row];
  return format;
}

DLFP4_RULE uint64_t low_bits(int count) { return count < 64 ? (uint64_t{1} << count) - 1 : ~0ull; }

DLFP4_RULE int leading_zeros(uint64_t value) {
#ifdef __CUDA_ARCH__
  return __clzll(static_cast<long long>(value));
#else
  return __builtin_clzll(value);
#endif
}

// --- Formats ---------------------------------------------------------------------------------

DLFP4_RULE bool is_float(ElementType f) { return f.specials != DLFP4_NONE; }

// Whether codes are integers that block-scaled formats have for elements; those with a sign are two's complements.
DLFP4_RULE bool is_block_integer(ElementType f) { return f.specials == DLFP4_NONE && f.mantissa > 0; }
DLFP4_RULE bool has_sign(ElementType integer) { return integer.mantissa < integer.bits; }

// Whether a row has floats of at most 8 bits.
constexpr bool is_low(int row) { return is_float(kTypes[row]) && kTypes[row].bits <= 8; }

DLFP4_RULE int magnitude_bits(ElementType f) { return f.exponent + f.mantissa; }

DLFP4_RULE uint64_t sign_bit(ElementType f, bool negative) {
  return static_cast<uint64_t>(negative) << magnitude_bits(f);
}

DLFP4_RULE int smallest_normal_exponent(ElementType f) { return f.specials == DLFP4_E8M0 ? -f.bias : 1 - f.bias; }

DLFP4_RULE uint64_t infinity_code(ElementType f) { return low_bits(f.exponent) << f.mantissa; }

DLFP4_RULE uint64_t largest_finite_code(ElementType f) {
  const uint64_t all_ones = low_bits(magnitude_bits(f));
  if (f.specials == DLFP4_IEEE) return infinity_code(f) - 1;
  return f.specials == DLFP4_FN || f.specials == DLFP4_E8M0 ? all_ones - 1 : all_ones;
}

DLFP4_RULE int largest_exponent(ElementType f) {
  return static_cast<int>(largest_finite_code(f) >> f.mantissa) - f.bias;
}

// The bits of float32's first magnitude that is no number's, and of a NaN.
constexpr uint32_t kFloatInfinity = 0x7F800000, kFloatNan = 0x7FC00000;

// The value that a magnitude's code would have in float32 if it were neither infinite nor NaN.
DLFP4_RULE uint32_t float_of_magnitude(ElementType f, uint64_t magnitude) {
  const uint64_t exponent = (magnitude >> f.mantissa) + 127 - static_cast<uint64_t>(f.bias);
  return static_cast<uint32_t>(exponent << 23 | (magnitude & low_bits(f.mantissa)) << (23 - f.mantissa));
}

// Whether every value of `from` is a value of `to`, an IEEE format.
DLFP4_RULE bool holds_exactly(ElementType to, ElementType from) {
  return to.specials == DLFP4_IEEE && to.mantissa >= from.mantissa && largest_exponent(to) >= largest_exponent(from) &&
         smallest_normal_exponent(to) - to.mantissa <= smallest_normal_exponent(from) - from.mantissa;
}

// --- Decoding --------------------------------------------------------------------------------

enum Kind { kZero, kFinite, kInfinite, kNan };

// Finite: significand * 2^(exponent - 63), with bit 63 set. NaN: the payload from bit 63 downwards.
struct Value {
  uint64_t significand;
  int exponent;
  bool negative;
  Kind kind;
};

DLFP4_RULE Value decode_e8m0(ElementType f, uint64_t code) {
  const Kind kind = code == low_bits(f.exponent) ? kNan : kFinite;
  return {uint64_t{1} << 63, static_cast<int>(code) - f.bias, false, kind};
}

DLFP4_RULE Kind kind_of(ElementType f, bool negative, uint64_t magnitude) {
  if (magnitude == 0) return f.specials == DLFP4_FNUZ && negative ? kNan : kZero;
  if (f.specials == DLFP4_IEEE && magnitude >= infinity_code(f))
    return magnitude == infinity_code(f) ? kInfinite : kNan;
  return f.specials == DLFP4_FN && magnitude == low_bits(magnitude_bits(f)) ? kNan : kFinite;
}

DLFP4_RULE Value decode_integer(ElementType f, uint64_t code) {
  const bool negative = has_sign(f) && code >> (f.bits - 1) & 1;
  const uint64_t magnitude = negative ? low_bits(f.bits) + 1 - code : code;
  if (magnitude == 0) return {0, 0, false, kZero};
  const int shift = leading_zeros(magnitude);
  return {magnitude << shift, 63 - shift, negative, kFinite};
}

// Bits of `code` above the format's are ignored.
DLFP4_RULE Value decode(ElementType f, uint64_t code) {
  code &= low_bits(f.bits);
  if (is_block_integer(f)) return decode_integer(f, code);
  if (f.specials == DLFP4_E8M0) return decode_e8m0(f, code);
  const bool negative = code >> magnitude_bits(f) & 1;
  const uint64_t magnitude = code & low_bits(magnitude_bits(f));
  const uint64_t fraction = magnitude & low_bits(f.mantissa);
  const Kind kind = kind_of(f, negative, magnitude);
  const int exponent = static_cast<int>(magnitude >> f.mantissa);
  if (kind == kFinite && exponent == 0) {
    const int shift = leading_zeros(fraction);
    return {fraction << shift, 64 - f.bias - f.mantissa - shift, negative, kind};
  }
  const uint64_t leading_one = kind == kFinite ? uint64_t{1} << 63 : 0;
  const int shift = kind == kFinite ? 63 - f.mantissa : 64 - f.mantissa;
  return {leading_one | fraction << shift, exponent - f.bias, negative, kind};
}

// --- Random numbers --------------------------------------------------------------------------

struct RandomBlock {
  uint32_t word[4];
};

// Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3",
// SC 2011.
DLFP4_RULE RandomBlock philox(uint64_t seed, uint64_t block, uint32_t depth) {
  uint32_t c0 = static_cast<uint32_t>(block), c1 = static_cast<uint32_t>(block >> 32);
  uint32_t c2 = depth, c3 = 0;
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c0, p1 = uint64_t{0xCD9E8D57} * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return {{c0, c1, c2, c3}};
}

// The random fraction of element `index` is the infinite string of 32-bit words
// philox(seed, index / 4, depth).word[index % 4], depth = 0, 1, ...; `first` is the one of depth 0.
struct Draw {
  uint64_t seed;
  uint64_t index;
  uint32_t first;
};

DLFP4_RULE Draw draw_of(uint64_t seed, uint64_t index) {
  return {seed, index, philox(seed, index / 4, 0).word[index % 4]};
}

DLFP4_RULE uint32_t random_word(const Draw &draw, uint32_t depth) {
  return depth == 0 ? draw.first : philox(draw.seed, draw.index / 4, depth).word[draw.index % 4];
}

// --- Rounding --------------------------------------------------------------------------------

// Bits [32 * depth, 32 * depth + 32) of the binary fraction significand / 2^drop, integer part off; 32 * depth < drop.
DLFP4_RULE uint32_t fraction_word(uint64_t significand, int drop, int depth) {
  const int left = 32 * (depth + 1) - drop;
  if (left >= 0) return static_cast<uint32_t>(significand << left);
  return static_cast<uint32_t>(left > -64 ? significand >> -left : 0);
}

// True with a probability of exactly the fraction: words are drawn until one differs, so that 32
// random bits decide all but one element in 2^32.
DLFP4_RULE bool draws_below(uint64_t significand, int drop, const Draw &draw) {
  for (int depth = 0; 32 * depth < drop; ++depth) {
    const uint32_t wanted = fraction_word(significand, drop, depth);
    const uint32_t drawn = random_word(draw, static_cast<uint32_t>(depth));
    if (drawn != wanted) return drawn < wanted;
  }
  return false;
}

// Whether significand / 2^drop, whose integer part is `kept`, rounds away from zero; drop > 0.
DLFP4_RULE bool rounds_up(uint64_t significand, int drop, uint64_t kept, dlfp4_rounding rounding, const Draw &draw) {
  if (rounding == DLFP4_TOWARD_ZERO) return false;
  if (rounding == DLFP4_STOCHASTIC) return draws_below(significand, drop, draw);
  if (drop > 64) return rounding == DLFP4_UPWARD;
  const uint64_t half = uint64_t{1} << (drop - 1);
  const uint64_t rest = significand & (half | (half - 1));
  if (rounding == DLFP4_UPWARD) return rest > 0;
  if (rounding == DLFP4_NEAREST_AWAY) return rest >= half;
  if (rounding == DLFP4_NEAREST_ZERO) return rest > half;
  return rest + (kept & 1) > half;  // no overflow: where drop is 64, nothing is kept
}

// --- Encoding --------------------------------------------------------------------------------

// How a NaN travels between two formats: what numpy and ml_dtypes make of its payload.
enum NanRule { kCanonical, kKeepPayload, kKeepPayloadQuieted };

DLFP4_RULE NanRule nan_rule(ElementType from, ElementType to) {
  const bool from_bfloat16 = from.bits == 16 && from.mantissa < 10;
  const bool carries = from.bits >= 16 && to.mantissa >= 10 && !(from_bfloat16 && to.bits == 16);
  if (!carries) return kCanonical;
  // Between 8 and 11 exponent bits the processor converts, and quiets; numpy's float16 code
  // does not.
  const bool processor = from.exponent >= 8 && to.exponent >= 8 && from.exponent != to.exponent;
  return processor ? kKeepPayloadQuieted : kKeepPayload;
}

DLFP4_RULE uint64_t ieee_nan(ElementType f, const Value &value, NanRule rule) {
  const uint64_t quiet = uint64_t{1} << (f.mantissa - 1);
  const uint64_t payload = value.significand >> (64 - f.mantissa);
  const uint64_t kept = rule == kKeepPayloadQuieted ? payload | quiet : payload ? payload : 1;
  return infinity_code(f) | (rule == kCanonical ? quiet : kept);
}

DLFP4_RULE uint64_t nan_code(ElementType f, const Value &value, NanRule rule, bool saturate) {
  const uint64_t sign = sign_bit(f, value.negative);
  switch (f.specials) {
    case DLFP4_IEEE:
      return sign | ieee_nan(f, value, rule);
    case DLFP4_FN:
      return sign | low_bits(magnitude_bits(f));
    case DLFP4_FNUZ:
      return sign_bit(f, true);
    case DLFP4_E8M0:
      return low_bits(f.exponent);
    default:  // No NaN: the hardware's choice, or ml_dtypes' zero of the opposite sign.
      return saturate ? largest_finite_code(f) : sign_bit(f, !value.negative);
  }
}

// Saturation is for the types of at most 8 bits; wider ones overflow as IEEE 754 has it. A finite
// value rounded towards zero never overflows.
DLFP4_RULE bool clamps(ElementType f, Kind kind, Round round) {
  return (round.saturate && f.bits <= 8) || f.specials == DLFP4_FINITE ||
         (kind == kFinite && round.rounding == DLFP4_TOWARD_ZERO);
}

DLFP4_RULE uint64_t overflow_code(ElementType f, const Value &value, Round round) {
  const uint64_t sign = sign_bit(f, value.negative);
  if (clamps(f, value.kind, round)) return sign | largest_finite_code(f);
  if (f.specials == DLFP4_IEEE) return sign | infinity_code(f);
  return nan_code(f, value, kCanonical, round.saturate);
}

// FNUZ formats drop the sign of a zero, given or rounded to.
DLFP4_RULE uint64_t signed_code(ElementType f, bool negative, uint64_t magnitude) {
  const bool keeps = f.specials != DLFP4_FNUZ || magnitude != 0;
  return sign_bit(f, negative && keeps) | magnitude;
}

// Codes of one sign are in the order of their values, a subnormal's exponent field counting as the
// smallest normal one: a carry out of the mantissa walks into the exponent by itself.
DLFP4_RULE uint64_t encode_finite(ElementType f, const Value &value, Round round, const Draw &draw) {
  const int lowest = smallest_normal_exponent(f);
  const int exponent = value.exponent > lowest ? value.exponent : lowest;
  const int drop = 63 - f.mantissa + exponent - value.exponent;
  const uint64_t kept = drop < 64 ? value.significand >> drop : 0;
  const uint64_t up = rounds_up(value.significand, drop, kept, round.rounding, draw);
  const uint64_t magnitude = (static_cast<uint64_t>(exponent - lowest) << f.mantissa) + kept + up;
  if (magnitude > largest_finite_code(f)) return overflow_code(f, value, round);
  return signed_code(f, value.negative, magnitude);
}

// Whether a power of two times `significand` in [1, 2) goes to the next power: ties do. ml_dtypes
// takes everything between 2^-127 and 2^-126 up too, so saturate = false does.
DLFP4_RULE bool rounds_up_e8m0(const Value &value, bool lowest, Round round, const Draw &draw) {
  const bool inexact = value.significand << 1 != 0;
  if (round.rounding == DLFP4_NEAREST_EVEN && !round.saturate && lowest) return inexact;
  const bool nearest = round.rounding == DLFP4_NEAREST_EVEN;
  return rounds_up(value.significand, 63, 1, nearest ? DLFP4_NEAREST_AWAY : round.rounding, draw);
}

DLFP4_RULE uint64_t encode_e8m0(ElementType f, const Value &value, Round round, const Draw &draw) {
  const uint64_t nan = low_bits(f.exponent), largest = nan - 1;
  if (value.kind == kZero) return round.saturate ? 0 : nan;
  if (value.kind == kNan || value.negative) return nan;
  const uint64_t overflow = clamps(f, value.kind, round) ? largest : nan;
  if (value.kind == kInfinite) return overflow;
  const int code = value.exponent + f.bias;
  if (code < 0) return 0;
  const uint64_t up = rounds_up_e8m0(value, code == 0, round, draw);
  const uint64_t rounded = static_cast<uint64_t>(code) + up;
  return rounded > largest ? overflow : rounded;
}

// Rounded to an integer, clamped to the type's; NaN is 0.
DLFP4_RULE uint64_t encode_integer(ElementType f, const Value &value, Round round, const Draw &draw) {
  if (value.kind == kZero || value.kind == kNan) return 0;
  const uint64_t largest = !value.negative ? low_bits(f.mantissa) : has_sign(f) ? low_bits(f.mantissa) + 1 : 0;
  uint64_t magnitude = largest;
  if (value.kind == kFinite && value.exponent < f.bits) {
    const int drop = 63 - value.exponent;
    const uint64_t kept = drop < 64 ? value.significand >> drop : 0;
    const uint64_t rounded = kept + rounds_up(value.significand, drop, kept, round.rounding, draw);
    magnitude = rounded < largest ? rounded : largest;
  }
  return (value.negative ? low_bits(f.bits) + 1 - magnitude : magnitude) & low_bits(f.bits);
}

DLFP4_RULE uint64_t encode(ElementType f, const Value &value, NanRule rule, Round round, const Draw &draw) {
  if (is_block_integer(f)) return encode_integer(f, value, round, draw);
  if (f.specials == DLFP4_E8M0) return encode_e8m0(f, value, round, draw);
  switch (value.kind) {
    case kFinite:
      return encode_finite(f, value, round, draw);
    case kZero:
      return signed_code(f, value.negative, 0);
    case kInfinite:
      return overflow_code(f, value, round);
    default:
      return nan_code(f, value, rule, round.saturate);
  }
}

// One element from one format to another; `draw` is read by stochastic rounding alone.
DLFP4_RULE uint64_t convert(ElementType from, ElementType to, uint64_t code, Round round, const Draw &draw) {
  return encode(to, decode(from, code), nan_rule(from, to), round, draw);
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_RULES_NUMERICS_H_
