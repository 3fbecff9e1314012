// Conversions, once for all vectors: codes to codes, codes to floats, floats to codes, floats to floats; their table.
// Layout: codes one a byte or packed, on both sides; floats in order.
// Trick: an instruction set defines how it loads, stores and rounds a step's elements; this file has everything else.
#ifndef DLFP4_SRC_CODECS_VECTOR_H_
#define DLFP4_SRC_CODECS_VECTOR_H_

#include <type_traits>
#include <utility>

#include "host/simd/floats.h"
#include "host/simd/lanes.h"
#include "recode_tables.h"
#include "rules/encode_rule.h"
#include "table.h"

namespace dlfp4 {
namespace {

// --- Runs ------------------------------------------------------------------------------------

// Output larger than the caches is written past them: reading it first would be wasted. Calls
// steps(src, dst, count, streams) for all elements, of so many bits each: once, or three times, for those before a
// vector's boundary, for whole steps, which may go past the caches, and for the rest.
constexpr int64_t kStreamBytes = 64 << 20;

template <class Isa, int SrcBits, int DstBits, class Steps>
void in_stretches(const uint8_t *src, uint8_t *dst, int64_t count, Steps steps) {
  if constexpr (Isa::template kStreams<DstBits>) {
    constexpr int64_t kVector = sizeof(typename Isa::U32);
    const int64_t unaligned = -reinterpret_cast<intptr_t>(dst) & (kVector - 1), head = unaligned * 8 / DstBits;
    const bool can_align = unaligned * 8 % DstBits == 0 && head * SrcBits % 8 == 0;
    if (can_align && count / 8 * DstBits >= kStreamBytes) {
      const int64_t body = (count - head) / Isa::kCodes * Isa::kCodes;
      steps(src, dst, head, std::false_type());
      src += head * SrcBits / 8, dst += unaligned, count -= head;
      steps(src, dst, body, std::true_type());
      Isa::fence();
      src += body * SrcBits / 8, dst += body * DstBits / 8, count -= body;
    }
  }
  steps(src, dst, count, std::false_type());
}

// --- Codes to codes --------------------------------------------------------------------------

// Isa has Table<Size>, which makes codes of a vector of codes and ignores what is above the lowest bits; kCodes of them
// a step; load_codes<Bits>(src), in order, with noise above the lowest bits; store_codes<Bits>(dst, codes, streams).
template <class Isa, int SrcBits, int DstBits, int Size>
__attribute__((noinline)) void recode_steps(const uint8_t *codes, const uint8_t *src, uint8_t *dst, int64_t count,
                                            bool streams) {
  const typename Isa::template Table<Size> table(codes);
  in_steps<Isa, SrcBits, DstBits>(src, dst, count, [&](const uint8_t *from, uint8_t *to) DLFP4_ALWAYS_INLINE {
    Isa::template store_codes<DstBits>(to, table(Isa::template load_codes<SrcBits>(from)), streams);
  });
}

template <class Isa, int Src, bool kSrcPacked, int Dst, bool kDstPacked>
void recode(const uint8_t *src, uint8_t *dst, int64_t count, const Mode &mode) {
  constexpr int kSrcBits = kSrcPacked ? kTypes[Src].bits : 8, kDstBits = kDstPacked ? kTypes[Dst].bits : 8;
  alignas(64) uint8_t own[256];
  const uint8_t *const table = find_table<Src, Dst>(mode, own);
  in_stretches<Isa, kSrcBits, kDstBits>(src, dst, count, [=](auto from, auto to, int64_t elements, bool streams) {
    recode_steps<Isa, kSrcBits, kDstBits, 1 << kTypes[Src].bits>(table, from, to, elements, streams);
  });
}

template <class Isa, int Bits>
void pack_codes(const uint8_t *src, uint8_t *dst, int64_t count, const Mode &) {
  in_stretches<Isa, 8, Bits>(src, dst, count, [](auto from, auto to, int64_t elements, bool streams) {
    in_steps<Isa, 8, Bits>(from, to, elements, [=](const uint8_t *a, uint8_t *b) DLFP4_ALWAYS_INLINE {
      Isa::template store_codes<Bits>(b, Isa::template clear_noise<Bits>(Isa::template load_codes<8>(a)), streams);
    });
  });
}

// Isa::load_clean<Bits>(src) is load_codes<Bits>(src) without the noise.
template <class Isa, int Bits>
void unpack_codes(const uint8_t *src, uint8_t *dst, int64_t count, const Mode &) {
  in_stretches<Isa, Bits, 8>(src, dst, count, [](auto from, auto to, int64_t elements, bool streams) {
    in_steps<Isa, Bits, 8>(from, to, elements, [=](const uint8_t *a, uint8_t *b) DLFP4_ALWAYS_INLINE {
      Isa::template store_codes<8>(b, Isa::template load_clean<Bits>(a), streams);
    });
  });
}

// --- Codes to floats -------------------------------------------------------------------------

// Isa::decode_steps<Src, SrcBits, Dst, kStream>(src, dst, count) decodes any number of codes.
template <class Isa, int Src, bool kPacked, int Dst>
void decode_codes(const uint8_t *src, uint8_t *dst, int64_t count, const Mode &) {
  constexpr int kSrcBits = kPacked ? kTypes[Src].bits : 8;
  in_stretches<Isa, kSrcBits, kTypes[Dst].bits>(
      src, dst, count, [](auto from, auto to, int64_t elements, auto streams) {
        Isa::template decode_steps<Src, kSrcBits, Dst, decltype(streams)::value>(from, to, elements);
      });
}

// --- Floats to codes -------------------------------------------------------------------------

template <int Row, dlfp4_rounding Rounding = DLFP4_NEAREST_EVEN>
constexpr EncodeRule kNearestRules[] = {make_encode_rule(kTypes[Row], {Rounding, false}),
                                        make_encode_rule(kTypes[Row], {Rounding, true})};

// What the encoder of E8M0 needs. The code of a power of two is the exponent of its float32.
struct PowerEncodeRule {
  uint32_t half;            // added before the significand is cut off
  uint32_t below_one;       // a float32: the largest whose code is 0, zero apart
  uint32_t largest;         // code
  uint32_t smallest_valid;  // a float32: zero, or where a zero is NaN the next one
};

struct PowerRules {
  PowerEncodeRule rule[kNumFixedModes];
};

// What carries into the exponent.
constexpr uint32_t carry_of_power(dlfp4_rounding rounding) {
  if (rounding == DLFP4_TOWARD_ZERO) return 0;
  if (rounding == DLFP4_UPWARD) return 0x007FFFFF;
  return rounding == DLFP4_NEAREST_ZERO ? 0x003FFFFF : 0x00400000;
}

// The smallest float32 whose code is 1 is a subnormal: all others below 2^-126 have none but code 0.
constexpr PowerRules make_power_rules(ElementType f) {
  constexpr uint32_t kLowest = 0x00400000, kBelowHalf = 0x005FFFFF, kHalf = 0x00600000;
  PowerRules rules = {};
  for (int mode = 0; mode < kNumFixedModes; ++mode) {
    const Round round = {static_cast<dlfp4_rounding>(mode / 2), mode % 2 != 0};
    rules.rule[mode].half = carry_of_power(round.rounding);
    rules.rule[mode].below_one = code_of_float(f, kLowest + 1, round) == 1 ? kLowest
                                 : code_of_float(f, kHalf, round) == 1     ? kBelowHalf
                                                                           : kHalf;
    rules.rule[mode].largest = code_of_float(f, kFloatInfinity, round);
    rules.rule[mode].smallest_valid = code_of_float(f, 0, round) == 0 ? 0 : 1;
  }
  return rules;
}

template <int Row>
constexpr PowerRules kPowerRules = make_power_rules(kTypes[Row]);

// E8M0: unsigned powers of two. Isa::lowest_bytes(dwords) makes a vector of a step's dwords, in order.
template <class Isa>
struct PowerEncoder {
  using U32 = typename Isa::U32;
  using I32 = typename Isa::I32;
  const PowerEncodeRule &rule;

  // A negative number, but for a zero, and a NaN are above infinity when they are read as unsigned integers.
  U32 codes(U32 bits) const {
    const U32 magnitude = bits & ~kFloatSign;
    const I32 ordered = reinterpret_cast<I32>(magnitude);
    const U32 rounded = smaller<U32>((magnitude + rule.half) >> 23, splat<U32>(rule.largest));
    const U32 code = ordered > static_cast<int32_t>(rule.below_one) ? rounded : U32{};
    const U32 value = ordered == 0 ? U32{} : bits;
    return value - rule.smallest_valid > kFloatInfinity - rule.smallest_valid ? splat<U32>(0xFFu) : code;
  }

  template <class Floats>
  DLFP4_ALWAYS_INLINE auto operator()(const Floats &floats) const {
    U32 dwords[4];
    for (int i = 0; i < 4; ++i) dwords[i] = codes(reinterpret_cast<U32>(floats.part[i]));
    return Isa::lowest_bytes(dwords[0], dwords[1], dwords[2], dwords[3]);
  }
};

// Isa::load_floats<Src>(src) makes a step's floats float32, in four vectors; float64 is rounded to odd.
template <class Isa, int Src, int DstBits, class Encoder>
__attribute__((noinline)) void encode_steps(const Encoder &encoder, const uint8_t *src, uint8_t *dst, int64_t count,
                                            bool streams) {
  const Encoder codes_of = encoder;
  in_steps<Isa, kTypes[Src].bits, DstBits>(src, dst, count, [&](const uint8_t *from, uint8_t *to) DLFP4_ALWAYS_INLINE {
    Isa::template prefetch<Isa::kCodes * kTypes[Src].bits / 8, 4096>(from);
    Isa::template store_codes<DstBits>(to, codes_of(Isa::template load_floats<Src>(from)), streams);
  });
}

// Isa::with_encoder<Dst>(rounding, saturate, run) calls run(encoder), which makes codes of a step's floats.
template <class Isa, int Src, int Dst, bool kPacked>
void encode_floats(const uint8_t *src, uint8_t *dst, int64_t count, const Mode &mode) {
  constexpr int kDstBits = kPacked ? kTypes[Dst].bits : 8;
  const auto run = [=](const auto &encoder) {
    in_stretches<Isa, kTypes[Src].bits, kDstBits>(
        src, dst, count, [&](auto from, auto to, int64_t elements, bool streams) {
          encode_steps<Isa, Src, kDstBits>(encoder, from, to, elements, streams);
        });
  };
  if constexpr (kTypes[Dst].specials == DLFP4_E8M0)
    run(PowerEncoder<Isa>{kPowerRules<Dst>.rule[mode_index(mode.rounding, mode.saturate)]});
  else
    Isa::template with_encoder<Dst>(mode.rounding, mode.saturate, run);
}

// --- Floats to floats ------------------------------------------------------------------------

// Everything is exactly a float32 on the way; the processor's own treatment of NaNs is corrected where it counts.
template <class Isa>
typename Isa::U32 load_words(const uint8_t *src) {
  return __builtin_convertvector(load_lanes<typename Isa::HalfU16>(src), typename Isa::U32);
}

template <class Isa>
__attribute__((noinline)) typename Isa::F32 restore_payloads(typename Isa::F32 floats, const uint8_t *src) {
  using U32 = typename Isa::U32;
  return reinterpret_cast<typename Isa::F32>(restore_payloads(reinterpret_cast<U32>(floats), load_words<Isa>(src)));
}

template <class Isa, int Src, int Dst>
__attribute__((noinline)) typename Isa::U16 put_nans(typename Isa::U16 words, typename Isa::F32 low,
                                                     typename Isa::F32 high) {
  using U32 = typename Isa::U32;
  uint8_t halves[2][sizeof(words) / 2];
  memcpy(halves, &words, sizeof(words));
  return Isa::upper_halves(put_nans<Src, Dst>(load_words<Isa>(halves[0]), reinterpret_cast<U32>(low)) << 16,
                           put_nans<Src, Dst>(load_words<Isa>(halves[1]), reinterpret_cast<U32>(high)) << 16);
}

// Isa::has_nan(floats) of a step; round_to_words<Dst>(low, high) of two of its vectors; store_words<kStream>(dst,
// words) and store_floats<Dst, kStream>(dst, vector).
template <class Isa, int Src, int Dst, bool kStream>
DLFP4_ALWAYS_INLINE inline void convert_step(const uint8_t *src, uint8_t *dst) {
  constexpr int kLanes = sizeof(typename Isa::U32) / 4, kBytes = kTypes[Dst].bits / 8;
  auto floats = Isa::template load_floats<Src, Dst != DLFP4_float32>(src);
  if constexpr (kBytes > 2) {
    if (Src == DLFP4_float16 && __builtin_expect(Isa::has_nan(floats), 0))
      for (int i = 0; i < 4; ++i) floats.part[i] = restore_payloads<Isa>(floats.part[i], src + 2 * kLanes * i);
    for (int i = 0; i < 4; ++i) Isa::template store_floats<Dst, kStream>(dst + kLanes * kBytes * i, floats.part[i]);
  } else {
    const bool special = __builtin_expect(Isa::has_nan(floats), 0);
    for (int i = 0; i < 4; i += 2) {
      const auto words = Isa::template round_to_words<Dst>(floats.part[i], floats.part[i + 1]);
      Isa::template store_words<kStream>(
          dst + kLanes * kBytes * i,
          special ? put_nans<Isa, Src, Dst>(words, floats.part[i], floats.part[i + 1]) : words);
    }
  }
}

template <class Isa, int Src, int Dst>
void convert_floats(const uint8_t *src, uint8_t *dst, int64_t count, const Mode &) {
  constexpr int kSrcBits = kTypes[Src].bits, kDstBits = kTypes[Dst].bits;
  in_stretches<Isa, kSrcBits, kDstBits>(src, dst, count, [](auto from, auto to, int64_t elements, auto streams) {
    in_steps<Isa, kSrcBits, kDstBits>(from, to, elements, [](const uint8_t *a, uint8_t *b) DLFP4_ALWAYS_INLINE {
      Isa::template prefetch<Isa::kCodes * kSrcBits / 8, 4096>(a);
      convert_step<Isa, Src, Dst, decltype(streams)::value>(a, b);
    });
  });
}

// --- The table -------------------------------------------------------------------------------

constexpr bool is_sub_byte(int row) { return kTypes[row].bits < 8; }

// Isa::kRoundings<Low> are the modes of its encoders; Isa::kRoundsDecoded says whether decode_steps serves pairs that
// are not exact.
template <class Isa, int Low, bool kPacked, int Wide, class Table>
constexpr void add_codes(Table *rows) {
  constexpr Operand kLow = {Low, kPacked}, kWide = {Wide, false};
  if constexpr (Isa::kRoundsDecoded || holds_exactly(kTypes[Wide], kTypes[Low]))
    rows->add(kLow, kWide, wide_modes<Low, Wide>(), decode_codes<Isa, Low, kPacked, Wide>);
  constexpr Modes kRoundings = kTypes[Low].specials == DLFP4_E8M0 ? kFixedModes : Isa::template kRoundings<Low>;
  rows->add(kWide, kLow, kRoundings, encode_floats<Isa, Wide, Low, kPacked>);
}

template <class Isa, int Src, bool kSrcPacked, int Dst, class Table>
constexpr void add_recodes(Table *rows) {
  rows->add({Src, kSrcPacked}, {Dst, false}, kFixedModes, recode<Isa, Src, kSrcPacked, Dst, false>);
  if constexpr (is_sub_byte(Dst))
    rows->add({Src, kSrcPacked}, {Dst, true}, kFixedModes, recode<Isa, Src, kSrcPacked, Dst, true>);
}

template <class Isa, int Row, int Other, class Table>
constexpr void add_pair(Table *rows) {
  if constexpr (is_low(Row) && is_wide(Other)) {
    add_codes<Isa, Row, false, Other>(rows);
    if constexpr (is_sub_byte(Row)) add_codes<Isa, Row, true, Other>(rows);
  }
  if constexpr (is_low(Row) && is_low(Other) && Row != Other) {
    add_recodes<Isa, Row, false, Other>(rows);
    if constexpr (is_sub_byte(Row)) add_recodes<Isa, Row, true, Other>(rows);
  }
  if constexpr (is_wide(Row) && is_wide(Other) && converts_through_float32(Row, Other))
    rows->add({Row, false}, {Other, false}, wide_modes<Row, Other>(), convert_floats<Isa, Row, Other>);
}

template <class Isa, int Row, class Table, int... Other>
constexpr void add_type(Table *rows, std::integer_sequence<int, Other...>) {
  if constexpr (is_sub_byte(Row)) {
    rows->add({Row, false}, {Row, true}, kAnyMode, pack_codes<Isa, kTypes[Row].bits>);
    rows->add({Row, true}, {Row, false}, kAnyMode, unpack_codes<Isa, kTypes[Row].bits>);
  }
  (add_pair<Isa, Row, Other>(rows), ...);
}

template <class Isa, int Size, int... Row>
constexpr KernelRows<Size> make_rows(std::integer_sequence<int, Row...> all_rows) {
  KernelRows<Size> rows = {};
  (add_type<Isa, Row>(&rows, all_rows), ...);
  return rows;
}

template <class Isa>
constexpr auto make_rows() {
  constexpr std::make_integer_sequence<int, DLFP4_NUM_DTYPES> kAllRows = {};
  constexpr int kMostRows = 4 * DLFP4_NUM_DTYPES * DLFP4_NUM_DTYPES;
  return make_rows<Isa, make_rows<Isa, kMostRows>(kAllRows).size>(kAllRows);
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_CODECS_VECTOR_H_
