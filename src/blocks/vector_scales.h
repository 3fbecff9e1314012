// Largest magnitudes, and the scales made of them, for all vectors.
// Layout: magnitudes as float32 bits, which order as integers; a scale and a multiplier for each block.
// Trick: 16-bit floats are compared as they are, two to a dword, and one of a block is widened; NaNs keep their
// payloads.
#ifndef DLFP4_SRC_BLOCKS_VECTOR_SCALES_H_
#define DLFP4_SRC_BLOCKS_VECTOR_SCALES_H_

#include <type_traits>

#include "host/simd/floats.h"
#include "host/simd/lanes.h"
#include "kernels.h"
#include "rules/encode_rule.h"
#include "rules/scaling.h"

namespace dlfp4 {
namespace {

// --- Magnitudes ------------------------------------------------------------------------------

// Isa::widen_halves(dwords) makes float32 of float16 in the lower halves of dwords, however the processor is set to
// treat subnormals. It may change a NaN's payload.
template <class Isa>
typename Isa::U32 widen_half_magnitudes(typename Isa::U32 halves) {
  using U32 = typename Isa::U32;
  constexpr uint32_t kHalfInfinity = 0x7C00;
  const U32 widened = reinterpret_cast<U32>(Isa::widen_halves(halves));
  return halves > kHalfInfinity ? halves << 13 | kFloatInfinity : widened;
}

// Magnitudes of floats of one type, from memory to float32.
template <class Isa, int Src>
struct Magnitudes {
  using U32 = typename Isa::U32;
  static constexpr int kBytes = kTypes[Src].bits / 8;
  using Items = std::conditional_t<kBytes == 4, U32, typename Isa::U16>;
  static constexpr int kItems = sizeof(Items) / kBytes;

  static Items without_signs(Items items) {
    if constexpr (kBytes == 4) return items & ~kFloatSign;
    return items & static_cast<uint16_t>(0x7FFF);
  }
  static Items load(const uint8_t *src) { return without_signs(load_lanes<Items>(src)); }

  // The largest of one or more whole vectors.
  static Items load_largest(const uint8_t *src, int64_t count) {
    Items largest = load(src);
    for (int64_t i = kItems; i < count; i += kItems) largest = larger(largest, load(src + i * kBytes));
    return largest;
  }

  // Two at a time: a maximum alone would wait for itself.
  static Items load_largest_of_any(const uint8_t *src, int64_t count) {
    Items largest[2] = {};
    int64_t i = 0;
    for (; count - i >= 2 * kItems; i += 2 * kItems)
      for (int j = 0; j < 2; ++j) largest[j] = larger(largest[j], load(src + (i + j * kItems) * kBytes));
    if (count - i >= kItems) {
      largest[0] = larger(largest[0], load(src + i * kBytes));
      i += kItems;
    }
    const Items rest = without_signs(Isa::template load_part<Items>(src + i * kBytes, (count - i) * kBytes));
    return larger(larger(largest[0], largest[1]), rest);
  }

  // The larger one of each dword's two, in its lower half.
  static U32 join_halves(Items items) {
    const U32 dwords = reinterpret_cast<U32>(items);
    if constexpr (kBytes == 4) return dwords;
    return larger<U32>(dwords & 0xFFFFu, dwords >> 16);
  }
  static U32 widen(U32 dwords) {
    if constexpr (Src == DLFP4_bfloat16) return dwords << 16;
    if constexpr (Src == DLFP4_float16) return widen_half_magnitudes<Isa>(dwords);
    return dwords;
  }

  // One or two vectors of dwords for a vector of items.
  static constexpr int kParts = 4 / kBytes;
  struct Widened {
    U32 part[kParts];
  };
  static Widened widen_all(Items items) {
    if constexpr (kBytes == 4) {
      return {{items}};
    } else {
      typename Isa::HalfU16 halves[2];
      memcpy(halves, &items, sizeof(items));
      return {{widen(__builtin_convertvector(halves[0], U32)), widen(__builtin_convertvector(halves[1], U32))}};
    }
  }
};

// --- Largest magnitudes ----------------------------------------------------------------------

// Isa::largest_of_each(vectors) has in lane i the largest lane of vector i.
template <class Isa, int Src>
struct Largest {
  using U32 = typename Isa::U32;
  using Of = Magnitudes<Isa, Src>;
  static constexpr int kLanes = sizeof(U32) / 4, kBytes = Of::kBytes;

  // Blocks of `Block` elements, or of any multiple of 16 if that is 0, as long as there are enough for a vector of
  // results; returns how many.
  template <int Block>
  static int64_t of_groups(const uint8_t *src, int64_t count, int64_t block, uint32_t *amax) {
    const int64_t length = Block ? Block : block, blocks = count / kLanes / length * kLanes;
    for (int64_t b = 0; b < blocks; b += kLanes) {
      U32 largest[kLanes];
      for (int i = 0; i < kLanes; ++i)
        largest[i] = Of::join_halves(Of::load_largest(src + (b + i) * length * kBytes, length));
      store_lanes(amax + b, Of::widen(Isa::largest_of_each(largest)));
    }
    return blocks;
  }

  static void find(const uint8_t *src, int64_t count, int64_t block, uint32_t *amax) {
    int64_t blocks = block == 16   ? of_groups<16>(src, count, block, amax)
                     : block == 32 ? of_groups<32>(src, count, block, amax)
                                   : of_groups<0>(src, count, block, amax);
    for (int64_t first = blocks * block; first < count; amax += kLanes) {
      U32 largest[kLanes] = {};
      int i = 0;
      for (; i < kLanes && first < count; ++i, first += block)
        largest[i] = Of::join_halves(Of::load_largest_of_any(src + first * kBytes, least(block, count - first)));
      Isa::store_part(amax + blocks, Of::widen(Isa::largest_of_each(largest)), 4 * i);
    }
  }

  // A vector of items of each row.
  static void join_items(const uint8_t *src, int64_t stride, int64_t rows, uint32_t *amax) {
    typename Of::Items largest = {};
    for (int64_t k = 0; k < rows; ++k) largest = larger(largest, Of::load(src + k * stride));
    const typename Of::Widened widened = Of::widen_all(largest);
    for (int i = 0; i < Of::kParts; ++i)
      store_lanes(amax + i * kLanes, larger(load_lanes<U32>(amax + i * kLanes), widened.part[i]));
  }

  static void join(const uint8_t *src, int64_t stride, int64_t rows, int64_t count, uint32_t *amax) {
    constexpr int64_t kItems = Of::kItems;
    for (; count >= kItems; count -= kItems, src += kItems * kBytes, amax += kItems)
      join_items(src, stride, rows, amax);
    for (int64_t k = 0; count > 0 && k < rows; ++k) {
      uint8_t from[kItems * kBytes] = {};
      uint32_t to[kItems] = {};
      memcpy(from, src + k * stride, static_cast<size_t>(count * kBytes));
      memcpy(to, amax, static_cast<size_t>(4 * count));
      join_items(from, 0, 1, to);
      memcpy(amax, to, static_cast<size_t>(4 * count));
    }
  }
};

// --- Scales ----------------------------------------------------------------------------------

// The recipes of scaling.h.
template <class Isa>
struct BlockScales {
  using U32 = typename Isa::U32;
  using F32 = typename Isa::F32;
  using Codes = typename Isa::QuarterU8;
  static constexpr int64_t kLanes = sizeof(U32) / 4;

  static U32 bits(F32 floats) { return reinterpret_cast<U32>(floats); }
  static F32 floats(U32 bits) { return reinterpret_cast<F32>(bits); }
  static F32 finite(F32 values) { return smaller(values, splat<F32>(kLargestFloat)); }

  // All ones or zeros.
  static U32 not_finite(U32 magnitudes) { return reinterpret_cast<U32>(magnitudes >= kFloatInfinity); }

  static bool has_any(U32 lanes) {
    uint32_t any = 0;
    for (int i = 0; i < kLanes; ++i) any |= lanes[i];
    return any != 0;
  }

  static void store_bytes(uint8_t *dst, U32 dwords, int64_t count) {
    Isa::store_part(dst, __builtin_convertvector(dwords, Codes), count);
  }

  // Codes of float8_e4m3fn, finite and without a sign: as float16 they are worth 2^-8 times that.
  static F32 decode_e4m3_magnitudes(U32 codes) { return Isa::widen_halves(codes << 7) * 256.0f; }

  // Calls step(first, count, magnitudes), whose result is the lanes' multipliers, but for blocks that have no finite
  // magnitude; returns whether there is one.
  template <class Step>
  static bool each_magnitude(const uint32_t *amax, int64_t count, float *multipliers, Step step) {
    U32 any = {};
    for (int64_t first = 0; first < count; first += kLanes) {
      const int64_t lanes = least(kLanes, count - first);
      const U32 magnitudes = Isa::template load_part<U32>(amax + first, 4 * lanes);
      Isa::store_part(multipliers + first, step(first, lanes, magnitudes), 4 * lanes);
      any |= not_finite(magnitudes);
    }
    return has_any(any);
  }

  // As `narrowed` of scaling.h.
  static F32 narrow(F32 values, int mantissa) {
    if (mantissa == 7) return floats(round_to_bfloat16(bits(values)) & 0xFFFF0000u);
    if (mantissa != 10) return values;
    const U32 power = larger<U32>(bits(values) & kFloatInfinity, splat<U32>(113u << 23));
    const F32 addend = floats(power + (13u << 23));
    return values >= 65520.0f ? splat<F32>(float_of(kFloatInfinity)) : (values + addend) - addend;
  }

  // As `narrowed_quotient`.
  static F32 narrow_quotients(F32 values, int mantissa) {
    if (mantissa == 23) return values;
    const U32 sign = bits(values) & kFloatSign;
    const U32 magnitude = bits(narrow(floats(bits(values) ^ sign), mantissa));
    return values == values ? floats(magnitude | sign) : values;
  }

  // What a tensor scale, or one of each lane's line, adds to a rule.
  struct OfTensors {
    F32 first, second, unit;
  };

  static F32 wanted_scales(const ScaleRule &rule, const OfTensors &of, F32 magnitudes) {
    const F32 first = rule.over_first ? narrow(magnitudes / of.first, rule.mantissa) : magnitudes * of.first;
    return finite(first * of.second * rule.expansion);
  }

  static U32 stored_codes(const ScaleRule &rule, U32 magnitudes, U32 codes) {
    const U32 least_of_some = magnitudes == 0u ? U32{} : splat<U32>(rule.least_code);
    const U32 code = larger<U32>(codes, least_of_some);
    return code == 0u ? splat<U32>(rule.zero_scale) : code;
  }

  static F32 two_level_factors(const ScaleRule &rule, const OfTensors &of, F32 scales) {
    const F32 decode = rule.over_unit ? scales / of.unit : scales * of.unit;
    if (rule.divides) return scales == 0.0f ? splat<F32>(kLargestFloat) : decode;
    const F32 factors = finite(1.0f / decode);
    return rule.order == DLFP4_BLOCK_FIRST ? (scales == 0.0f ? F32{} : factors) : factors;
  }

  // tensors_of(first, lanes) is what the blocks from `first` on have.
  template <class TensorsOf>
  DLFP4_ALWAYS_INLINE static bool find_two_level_by(const ScaleRule &rule, TensorsOf tensors_of, const uint32_t *amax,
                                                    int64_t count, uint8_t *stored, float *multipliers) {
    static constexpr EncodeRule kRule = make_encode_rule(kTypes[DLFP4_float8_e4m3fn], {DLFP4_NEAREST_EVEN, true});
    return each_magnitude(amax, count, multipliers, [&](int64_t first, int64_t lanes, U32 magnitudes) {
      const OfTensors of = tensors_of(first, lanes);
      const U32 special = not_finite(magnitudes), wanted = bits(wanted_scales(rule, of, floats(magnitudes)));
      const U32 rounded = encode_magnitudes<Isa, DLFP4_float8_e4m3fn, DLFP4_NEAREST_EVEN>(wanted, kRule) & 0x7Fu;
      const U32 code = stored_codes(rule, magnitudes, rounded | (wanted & kFloatSign) >> 24);
      const F32 scale = floats(bits(decode_e4m3_magnitudes(code & 0x7Fu)) | (code & 0x80u) << 24);
      store_bytes(stored + first, (code & ~special) | (special & 0x7Fu), lanes);
      return bits(two_level_factors(rule, of, scale)) & ~special;
    });
  }

  static bool find_two_level(const ScaleRule &rule, const uint32_t *amax, int64_t count, uint8_t *stored,
                             float *multipliers) {
    const OfTensors all = {splat<F32>(rule.first), splat<F32>(rule.second), splat<F32>(rule.unit)};
    return find_two_level_by(rule, [=](int64_t, int64_t) { return all; }, amax, count, stored, multipliers);
  }

  static bool find_two_level_of_lines(const ScaleRule &rule, const TensorScales &of, const uint32_t *amax,
                                      int64_t count, uint8_t *stored, float *multipliers) {
    const auto load = [](const float *numbers, int64_t lanes) {
      return Isa::template load_part<F32>(numbers, 4 * lanes);
    };
    const auto tensors_of = [&](int64_t first, int64_t lanes) -> OfTensors {
      return {load(of.first + first, lanes), load(of.second + first, lanes), load(of.unit + first, lanes)};
    };
    return find_two_level_by(rule, tensors_of, amax, count, stored, multipliers);
  }

  static bool find_powers(const ScaleRule &rule, const uint32_t *amax, int64_t count, uint8_t *stored,
                          float *multipliers) {
    const U32 carry = splat<U32>(rule.carry), lowest = splat<U32>(static_cast<uint32_t>(rule.exponent));
    const U32 zero_scale = splat<U32>(rule.zero_scale), one = splat<U32>(bits_of(1.0f));
    const U32 least = splat<U32>(rule.least), least_code = splat<U32>(rule.least_code);
    return each_magnitude(amax, count, multipliers, [&](int64_t first, int64_t lanes, U32 found) {
      const U32 special = not_finite(found), magnitudes = larger<U32>(found, least);
      const U32 exponent = (magnitudes + carry) >> 23;
      const U32 code = larger<U32>(larger<U32>(exponent, lowest) - lowest, least_code);
      const U32 multiplier = larger<U32>((254u - code) << 23, splat<U32>(1u << 22));
      const U32 finite_code = magnitudes == 0u ? zero_scale : code;
      store_bytes(stored + first, finite_code | (special & 0xFFu), lanes);
      return (magnitudes == 0u ? one : multiplier) & ~special;
    });
  }

  static bool find_float_scales(const ScaleRule &rule, const uint32_t *amax, int64_t count, uint8_t *stored,
                                float *multipliers) {
    if (rule.divides) return find_quotients(rule, amax, count, stored, multipliers);
    const F32 largest = splat<F32>(float_of(rule.largest));
    const U32 kept = splat<U32>(rule.pow2 ? kFloatInfinity : ~0u), smallest = splat<U32>(rule.least);
    const U32 one = splat<U32>(bits_of(1.0f));
    return each_magnitude(amax, count, multipliers, [&](int64_t first, int64_t lanes, U32 magnitudes) {
      const U32 counted = larger<U32>(magnitudes, smallest);
      const U32 encode = bits(finite(largest / floats(counted))) & kept;
      const U32 multiplier = counted - 1 >= kFloatInfinity - 1 ? one : encode;  // 0 wraps around
      Isa::store_part(stored + 4 * first, 1.0f / floats(multiplier), 4 * lanes);
      return multiplier;
    });
  }

  // Scales that elements are divided by.
  static bool find_quotients(const ScaleRule &rule, const uint32_t *amax, int64_t count, uint8_t *stored,
                             float *divisors) {
    const F32 largest = splat<F32>(float_of(rule.largest));
    const U32 smallest = splat<U32>(rule.least), one = splat<U32>(bits_of(1.0f));
    const U32 of_zeros = splat<U32>(quotient_of_zero(rule, true)), of_less = splat<U32>(quotient_of_zero(rule, false));
    return each_magnitude(amax, count, divisors, [&](int64_t first, int64_t lanes, U32 magnitudes) {
      const U32 counted = larger<U32>(magnitudes, smallest);
      const U32 quotient = bits(narrow(floats(counted) / largest, rule.mantissa));
      const U32 of_zero = counted == 0u ? of_zeros : of_less;
      const U32 divisor = counted >= kFloatInfinity ? one : quotient == 0u ? of_zero : quotient;
      Isa::store_part(stored + 4 * first, floats(divisor), 4 * lanes);
      return divisor;
    });
  }

  // Of integers: integer_scale of scaling.h, held as float32. Elements are divided by them.
  static bool find_integer_scales(const ScaleRule &rule, const uint32_t *amax, int64_t count, uint8_t *stored,
                                  float *divisors) {
    const F32 largest = splat<F32>(float_of(rule.largest));
    const U32 smallest = splat<U32>(rule.least), nan = splat<U32>(kFloatNan);
    const U32 of_zero = splat<U32>(unit_of_scales(rule));
    return each_magnitude(amax, count, divisors, [&](int64_t first, int64_t lanes, U32 magnitudes) {
      const U32 counted = larger<U32>(magnitudes, smallest);
      const U32 quotient = bits(narrow(floats(counted) / largest, rule.mantissa));
      const U32 divisor = counted >= kFloatInfinity ? nan : quotient == 0u ? of_zero : quotient;
      Isa::store_part(stored + 4 * first, floats(divisor), 4 * lanes);
      return divisor;
    });
  }

  // --- Decoding of scales --------------------------------------------------------------------

  // Calls scales_of(codes); returns whether one is not finite. Lanes beyond the count have code 0, which is finite
  // unless all others are not.
  template <class ScalesOf>
  static bool each_code(const uint8_t *stored, int64_t count, float *scales, ScalesOf scales_of) {
    U32 any = {};
    for (int64_t first = 0; first < count; first += kLanes) {
      const int64_t lanes = least(kLanes, count - first);
      const F32 found = scales_of(Isa::widen_bytes(Isa::template load_part<Codes>(stored + first, lanes)));
      Isa::store_part(scales + first, found, 4 * lanes);
      any |= not_finite(bits(found) & ~kFloatSign);
    }
    return has_any(any);
  }

  static bool decode_two_level(const uint8_t *stored, int64_t count, float decode, float *scales) {
    return each_code(stored, count, scales, [decode](U32 codes) {
      const U32 code = codes & 0x7Fu;
      const U32 magnitude = code == 0x7Fu ? splat<U32>(kFloatNan) : bits(decode_e4m3_magnitudes(code));
      return floats(magnitude | (codes >> 7) << 31) * decode;
    });
  }

  static bool decode_powers(const uint8_t *stored, int64_t count, float, float *scales) {
    return each_code(stored, count, scales, [](U32 codes) { return floats(bits_of_powers(codes)); });
  }
};

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_BLOCKS_VECTOR_SCALES_H_
