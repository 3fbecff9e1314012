// Floats to codes of at most 8 bits, with one rounding, for the AVX-512 kernels alone.
// Layout: floats in order, 64 a step; codes one a byte or packed.
// Trick: one addition rounds, to the constants of encode_rule.h; few rounding decisions fit in a table of bytes.
#ifndef DLFP4_SRC_CODECS_AVX512_ENCODE_H_
#define DLFP4_SRC_CODECS_AVX512_ENCODE_H_

#include "avx512_floats.h"
#include "host/simd/avx512.h"
#include "kernels.h"
#include "rules/encode_rule.h"
#include "rules/numerics.h"

namespace dlfp4 {
namespace {

constexpr int kSmallerMagnitude = 0x0A;  // of _mm512_range_ps: the smaller magnitude, without a sign
constexpr int kAnyInfinity = 0x18;       // of _mm512_fpclass_ps_mask

// --- Rules -----------------------------------------------------------------------------------

constexpr void make_rule(ElementType f, Round round, EncodeRule *rule) { *rule = make_encode_rule(f, round); }

// The quantum, as a power of two: half of the smallest subnormal. Every midpoint of two values is a multiple of it.
constexpr int quantum(ElementType f) { return smallest_normal_exponent(f) - f.mantissa - 1; }

// The largest finite value in halves of a quantum; larger than any table if values beyond are not all clamped to it.
constexpr int largest_sum(ElementType f) {
  const int exponent = largest_exponent(f) - quantum(f) + 1;
  if (f.specials != DLFP4_FINITE || exponent > 8) return 1 << 16;
  const int significand = static_cast<int>(largest_finite_code(f) & low_bits(f.mantissa)) | 1 << f.mantissa;
  return significand << (exponent - f.mantissa);
}

// A number of halves of a quantum as a float32.
constexpr uint32_t float_of_sum(ElementType f, uint32_t sum) {
  if (sum == 0) return 0;
  const int exponent = 31 - __builtin_clz(sum);
  return static_cast<uint32_t>(127 + quantum(f) - 1 + exponent) << 23 | (sum << (23 - exponent) & 0x7FFFFF);
}

// What the encoder needs of a format with few rounding decisions.
template <int Size>
struct GridRule {
  alignas(64) uint8_t code[Size];  // of a number of halves of a quantum
  uint32_t limit;                  // a float32: the largest finite value
  uint32_t magic;                  // a float32: its last place is worth a quantum
  Special nan;
};

// An odd number of halves stands for all that lies between two multiples of the quantum.
template <int Size>
constexpr void make_rule(ElementType f, Round round, GridRule<Size> *rule) {
  for (int sum = 0; sum < Size; ++sum)
    rule->code[sum] = code_of_float(f, float_of_sum(f, static_cast<uint32_t>(sum)), round);
  rule->limit = float_of_magnitude(f, largest_finite_code(f));
  rule->magic = static_cast<uint32_t>(127 + 23 + quantum(f)) << 23;
  rule->nan = make_special(f, kFloatNan, round);
}

template <class Rule>
struct Rules {
  Rule rule[kNumFixedModes];
};

template <class Rule>
constexpr Rules<Rule> make_rules(ElementType f) {
  Rules<Rule> rules = {};
  for (int mode = 0; mode < kNumFixedModes; ++mode)
    make_rule(f, {static_cast<dlfp4_rounding>(mode / 2), mode % 2 != 0}, &rules.rule[mode]);
  return rules;
}

template <class Rule, int Row>
constexpr Rules<Rule> kRules = make_rules<Rule>(kTypes[Row]);

// --- Bytes of 64 floats ----------------------------------------------------------------------

template <int Byte>
constexpr Constant kBytesOfDwords = make_constant([](int i) { return i % 32 * 4 + Byte; });

// One byte of each dword, in order.
template <int Byte>
__m512i gather_bytes(__m512i a, __m512i b, __m512i c, __m512i d) {
  const __m512i index = load(kBytesOfDwords<Byte>);
  return _mm512_mask_blend_epi64(0xF0, _mm512_permutex2var_epi8(a, index, b), _mm512_permutex2var_epi8(c, index, d));
}

template <int Byte>
__m512i gather_bytes(const Floats &floats) {
  return gather_bytes<Byte>(_mm512_castps_si512(floats.part[0]), _mm512_castps_si512(floats.part[1]),
                            _mm512_castps_si512(floats.part[2]), _mm512_castps_si512(floats.part[3]));
}

// The floats' signs as sign bits of codes.
template <int Bits>
__m512i sign_bits(const Floats &floats) {
  __m512i signs = gather_bytes<3>(floats);
  if constexpr (Bits < 8) signs = _mm512_srli_epi16(signs, 8 - Bits);
  return _mm512_and_si512(signs, _mm512_set1_epi8(static_cast<char>(1 << (Bits - 1))));
}

__mmask64 find_nans(const Floats &floats) { return test_floats(floats, nans_of); }

__mmask64 find_infinities(const Floats &floats) {
  return test_floats(floats, [](__m512 x) { return _mm512_fpclass_ps_mask(x, kAnyInfinity); });
}

__m512i put_special(__m512i codes, __mmask64 where, __m512i signs, Special special) {
  const __m512i base = _mm512_set1_epi8(static_cast<char>(special.base));
  const __m512i flip = _mm512_set1_epi8(static_cast<char>(special.flip));
  const __m512i code = _mm512_ternarylogic_epi64(base, signs, flip, 0x78);  // base ^ (signs & flip)
  return _mm512_mask_mov_epi8(codes, where, code);
}

__m512i put_nans(__m512i codes, const Floats &floats, __m512i signs, Special nan) {
  return __builtin_expect(has_nan(floats), 0) ? put_special(codes, find_nans(floats), signs, nan) : codes;
}

// --- Encoders --------------------------------------------------------------------------------

// Of magnitudes; zero stays.
inline __m512 next_smaller(__m512 floats) {
  const __m512i one = all(1);
  return _mm512_castsi512_ps(_mm512_sub_epi32(_mm512_max_epu32(_mm512_castps_si512(floats), one), one));
}

// Codes of any format but E8M0.
template <int Bits, bool kSignsZeros, dlfp4_rounding kRounding>
struct Encoder {
  const __m512 limit;
  const __m512i lowest, magic, shift;
  const Special nan, infinity;

  explicit Encoder(const EncodeRule &rule)
      : limit(all_floats(rule.limit)),
        lowest(all(rule.lowest)),
        magic(all(rule.magic)),
        shift(all(rule.shift)),
        nan(rule.nan),
        infinity(rule.infinity) {}

  __m512i magnitudes(__m512 floats) const {
    constexpr int kDirection = kRounding == DLFP4_NEAREST_EVEN ? _MM_FROUND_TO_NEAREST_INT : _MM_FROUND_TO_ZERO;
    const __m512 limited = _mm512_range_ps(floats, limit, kSmallerMagnitude);
    const __m512 clamped = kRounding == DLFP4_NEAREST_ZERO ? next_smaller(limited) : limited;
    const __m512i power = _mm512_and_si512(_mm512_castps_si512(clamped), all(kFloatInfinity));
    const __m512i addend = _mm512_add_epi32(_mm512_max_epu32(power, lowest), magic);
    const __m512i sum =
        _mm512_castps_si512(_mm512_add_round_ps(clamped, _mm512_castsi512_ps(addend), kDirection | _MM_FROUND_NO_EXC));
    constexpr bool kHalves = kRounding == DLFP4_NEAREST_AWAY || kRounding == DLFP4_NEAREST_ZERO;
    const __m512i significand = kHalves ? _mm512_srli_epi32(sum, 1) : sum;
    return _mm512_add_epi32(significand, _mm512_srlv_epi32(sum, shift));
  }

  __m512i operator()(const Floats &floats) const {
    const __m512i magnitude = gather_bytes<0>(magnitudes(floats.part[0]), magnitudes(floats.part[1]),
                                              magnitudes(floats.part[2]), magnitudes(floats.part[3]));
    __m512i signs = sign_bits<Bits>(floats);
    if constexpr (!kSignsZeros) signs = _mm512_maskz_mov_epi8(_mm512_test_epi8_mask(magnitude, magnitude), signs);
    const __m512i codes = _mm512_or_si512(magnitude, signs);
    if constexpr (kRounding == DLFP4_TOWARD_ZERO)  // infinities may differ from the clamped finite values
      return put_nans(put_special(codes, find_infinities(floats), signs, infinity), floats, signs, nan);
    return put_nans(codes, floats, signs, nan);
  }
};

// Codes of a format whose every rounding decision falls on a multiple of a quantum, as a table of the sum of the floor
// and the ceiling in quanta.
template <int Bits, int Size>
struct GridEncoder {
  const __m512 limit, magic;
  const Lookup<Size> look_up;
  const Special nan;

  explicit GridEncoder(const GridRule<Size> &rule)
      : limit(all_floats(rule.limit)), magic(all_floats(rule.magic)), look_up(rule.code), nan(rule.nan) {}

  __m512i sums(__m512 floats) const {
    const __m512 clamped = _mm512_range_ps(floats, limit, kSmallerMagnitude);
    const __m512 floors = _mm512_add_round_ps(clamped, magic, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    const __m512 ceilings = _mm512_add_round_ps(clamped, magic, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
    return _mm512_add_epi32(_mm512_castps_si512(floors), _mm512_castps_si512(ceilings));
  }

  __m512i operator()(const Floats &floats) const {
    const __m512i sum =
        gather_bytes<0>(sums(floats.part[0]), sums(floats.part[1]), sums(floats.part[2]), sums(floats.part[3]));
    const __m512i signs = sign_bits<Bits>(floats);
    return put_nans(_mm512_or_si512(look_up(sum), signs), floats, signs, nan);
  }
};

// Codes of int4, to nearest even; NaN is 0.
struct IntegerEncoder {
  static __m512i round(__m512 floats) {
    const __m512 clamped = _mm512_max_ps(_mm512_min_ps(floats, _mm512_set1_ps(7)), _mm512_set1_ps(-8));
    return _mm512_maskz_cvtps_epi32(_mm512_cmp_ps_mask(floats, floats, _CMP_ORD_Q), clamped);
  }

  __m512i operator()(const Floats &floats) const {
    const __m512i integers =
        gather_bytes<0>(round(floats.part[0]), round(floats.part[1]), round(floats.part[2]), round(floats.part[3]));
    return _mm512_and_si512(integers, _mm512_set1_epi8(0x0F));
  }
};

// --- The encoder of a format ---------------------------------------------------------------------

// The sums of a format's grid, or 0 where it has none.
template <int Dst>
constexpr int kGridSize = largest_sum(kTypes[Dst]) < 64    ? 64
                          : largest_sum(kTypes[Dst]) < 256 ? 256
                                                           : 0;

template <int Dst, int Rounding>
auto make_encoder(bool saturate) {
  constexpr ElementType kTo = kTypes[Dst];
  const int index = mode_index(static_cast<dlfp4_rounding>(Rounding), saturate);
  if constexpr (kGridSize<Dst> > 0)
    return GridEncoder<kTo.bits, kGridSize<Dst>>(kRules<GridRule<kGridSize<Dst>>, Dst>.rule[index]);
  else
    return Encoder<kTo.bits, kTo.specials != DLFP4_FNUZ, static_cast<dlfp4_rounding>(Rounding)>(
        kRules<EncodeRule, Dst>.rule[index]);
}

// Calls run(encoder).
template <int Dst, class Run>
void with_encoder(dlfp4_rounding rounding, bool saturate, Run run) {
  if (rounding == DLFP4_NEAREST_EVEN)
    run(make_encoder<Dst, DLFP4_NEAREST_EVEN>(saturate));
  else if (rounding == DLFP4_NEAREST_AWAY)
    run(make_encoder<Dst, DLFP4_NEAREST_AWAY>(saturate));
  else if (rounding == DLFP4_NEAREST_ZERO)
    run(make_encoder<Dst, DLFP4_NEAREST_ZERO>(saturate));
  else
    run(make_encoder<Dst, DLFP4_TOWARD_ZERO>(saturate));
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_CODECS_AVX512_ENCODE_H_
