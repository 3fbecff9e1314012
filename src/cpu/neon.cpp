// The NEON level: codes of at most 8 bits to wider floats, and from all of these but float64; packing and unpacking.
// Layout: runs, packed or one code a byte, against floats or codes; 16 elements a step.
// Trick: tables of 16 bytes give the floats' highest bytes, which are zipped; adding a power of two rounds a float.
#include <arm_neon.h>
#include <string.h>

#include "kernels.h"
#include "vector_level.h"
#include "vector_rules.h"

namespace dlfp4 {
namespace {

constexpr int kCodes = 16;  // elements a step, whose codes fill a vector

uint8x16_t load(const Constant &constant) { return vld1q_u8(constant.byte); }

// --- Unpacking -------------------------------------------------------------------------------

uint32x4_t load_4_bytes(const uint8_t *src) {
  uint32_t word;
  memcpy(&word, src, sizeof(word));
  return vdupq_n_u32(word);
}

// Words of two codes each, in their bits 0 to 11 and in their bits 4 to 15.
constexpr Constant kWordsOfSixes = make_constant([](int i) { return i % 16 / 4 * 3 + (i % 4 + 1) / 2; });
constexpr int16_t kShiftsOfEvenSixes[8] = {0, -4, 0, -4, 0, -4, 0, -4};
constexpr int16_t kShiftsOfOddSixes[8] = {2, -2, 2, -2, 2, -2, 2, -2};

uint8x16_t unpack_sixes(const uint8_t *src) {
  const uint8x8_t rest = vget_low_u8(vreinterpretq_u8_u32(load_4_bytes(src + 8)));
  const uint8x16_t bytes = vqtbl1q_u8(vcombine_u8(vld1_u8(src), rest), load(kWordsOfSixes));
  const uint16x8_t words = vreinterpretq_u16_u8(bytes);
  const uint16x8_t even = vshlq_u16(words, vld1q_s16(kShiftsOfEvenSixes));
  const uint16x8_t odd = vshlq_u16(words, vld1q_s16(kShiftsOfOddSixes));
  return vreinterpretq_u8_u16(vbslq_u16(vdupq_n_u16(0x00FF), even, odd));
}

uint8x16_t unpack_nibbles(const uint8_t *src) {
  const uint8x8_t bytes = vld1_u8(src), odd = vshr_n_u8(bytes, 4);
  return vcombine_u8(vzip1_u8(bytes, odd), vzip2_u8(bytes, odd));
}

constexpr Constant kBytesOfTwos = make_constant([](int i) { return i % 16 / 4; });
constexpr int8_t kShiftsOfTwos[16] = {0, -2, -4, -6, 0, -2, -4, -6, 0, -2, -4, -6, 0, -2, -4, -6};

uint8x16_t unpack_twos(const uint8_t *src) {
  const uint8x16_t bytes = vqtbl1q_u8(vreinterpretq_u8_u32(load_4_bytes(src)), load(kBytesOfTwos));
  return vshlq_u8(bytes, vld1q_s8(kShiftsOfTwos));
}

// A step's codes, with noise in the bits above the lowest `Bits`.
template <int Bits>
uint8x16_t load_codes(const uint8_t *src) {
  if constexpr (Bits == 8) return vld1q_u8(src);
  if constexpr (Bits == 6) return unpack_sixes(src);
  if constexpr (Bits == 4) return unpack_nibbles(src);
  if constexpr (Bits == 2) return unpack_twos(src);
}

template <int Bits>
uint8x16_t clear_noise(uint8x16_t codes) {
  return Bits == 8 ? codes : vandq_u8(codes, vdupq_n_u8((1 << Bits) - 1));
}

// --- Packing ---------------------------------------------------------------------------------

// Two clean codes a word, then four a dword: the upper half is inserted above the lower one.
template <int Bits>
uint32x4_t join_fours(uint8x16_t codes) {
  const uint16x8_t words = vreinterpretq_u16_u8(codes);
  const uint16x8_t upper_codes = vshrq_n_u16(words, 8);
  const uint32x4_t dwords = vreinterpretq_u32_u16(vsliq_n_u16(words, upper_codes, Bits));
  const uint32x4_t upper_pairs = vshrq_n_u32(dwords, 16);
  return vsliq_n_u32(dwords, upper_pairs, 2 * Bits);
}

// The first bytes of the dwords, next to each other.
template <int Bytes>
constexpr Constant kFirstOfDwords = make_constant([](int i) { return i % 16 / Bytes % 4 * 4 + i % 16 % Bytes; });

// Clean codes.
template <int Bits>
void store_codes(uint8_t *dst, uint8x16_t codes) {
  if constexpr (Bits == 8) {
    vst1q_u8(dst, codes);
  } else {
    const uint8x16_t fours = vreinterpretq_u8_u32(join_fours<Bits>(codes));
    const uint8x16_t packed = vqtbl1q_u8(fours, load(kFirstOfDwords<Bits / 2>));
    uint8_t bytes[16];
    vst1q_u8(bytes, packed);
    memcpy(dst, bytes, kCodes * Bits / 8);
  }
}

template <int Bits>
void pack_codes(const uint8_t *src, uint8_t *dst, int64_t count, const Mode &) {
  in_steps<kCodes, 8, Bits>(src, dst, count, [](const uint8_t *from, uint8_t *to) {
    store_codes<Bits>(to, clear_noise<Bits>(load_codes<8>(from)));
  });
}

template <int Bits>
void unpack_codes(const uint8_t *src, uint8_t *dst, int64_t count, const Mode &) {
  in_steps<kCodes, Bits, 8>(src, dst, count, [](const uint8_t *from, uint8_t *to) {
    store_codes<8>(to, clear_noise<Bits>(load_codes<Bits>(from)));
  });
}

// --- Decoding --------------------------------------------------------------------------------

struct Neon {
  using Bytes = uint8x16_t;
  static Bytes zero() { return vdupq_n_u8(0); }
  static Bytes flip(Bytes bytes, Bytes bits) { return veorq_u8(bytes, bits); }
  static Bytes flip_equal(Bytes bytes, Bytes a, int b, int bits) {
    const Bytes equal = vceqq_u8(a, vdupq_n_u8(static_cast<uint8_t>(b)));
    return flip(bytes, vandq_u8(equal, vdupq_n_u8(static_cast<uint8_t>(bits))));
  }
  // An index above 15 finds a zero.
  static Bytes look_up(const Constant &table, Bytes index) { return vqtbl1q_u8(load(table), index); }
  static Bytes in_first(Bytes magnitudes) { return magnitudes; }
  static Bytes in_last(Bytes magnitudes, int largest) {
    return vsubq_u8(vdupq_n_u8(static_cast<uint8_t>(largest)), magnitudes);
  }
};

template <int Bits>
Nibbles<Neon> split(uint8x16_t noisy, int sign) {
  const uint8x16_t code = clear_noise<Bits>(noisy);
  const uint8x16_t magnitude = vandq_u8(noisy, vdupq_n_u8(static_cast<uint8_t>((1 << Bits) - 1 - sign)));
  return {code, magnitude, vshrq_n_u8(code, 4), vandq_u8(noisy, vdupq_n_u8(15))};
}

// The highest parts of consecutive floats of `Bytes` bytes, two bytes each; below them are zeros.
template <int Bytes>
void store_words(uint8_t *dst, uint8x16_t words) {
  if constexpr (Bytes == 2) {
    vst1q_u8(dst, words);
  } else {
    const uint16x8_t zero = vdupq_n_u16(0), low = vreinterpretq_u16_u8(words);
    const uint16x8_t dwords[2] = {vzip1q_u16(zero, low), vzip2q_u16(zero, low)};
    for (int i = 0; i < 2; ++i) {
      if constexpr (Bytes == 4) {
        vst1q_u8(dst + 16 * i, vreinterpretq_u8_u16(dwords[i]));
      } else {
        const uint32x4_t wide = vreinterpretq_u32_u16(dwords[i]), zeros = vdupq_n_u32(0);
        vst1q_u8(dst + 32 * i, vreinterpretq_u8_u32(vzip1q_u32(zeros, wide)));
        vst1q_u8(dst + 32 * i + 16, vreinterpretq_u8_u32(vzip2q_u32(zeros, wide)));
      }
    }
  }
}

template <int Src, bool kPacked, int Dst>
void decode_codes(const uint8_t *src, uint8_t *dst, int64_t count, const Mode &) {
  constexpr const DecodeRule &kRule = kDecodeRule<Src, Dst>;
  constexpr int kSrcBits = kPacked ? kFormats[Src].bits : 8, kBytes = kFormats[Dst].bits / 8;
  in_steps<kCodes, kSrcBits, kFormats[Dst].bits>(src, dst, count, [](const uint8_t *from, uint8_t *to) {
    const Nibbles<Neon> nibbles = split<kFormats[Src].bits>(load_codes<kSrcBits>(from), kRule.sign);
    const uint8x16_t low = decode_byte<Neon, Src, Dst, 0>(nibbles), high = decode_byte<Neon, Src, Dst, 1>(nibbles);
    const uint8x16_t words[2] = {vzip1q_u8(low, high), vzip2q_u8(low, high)};
    for (int i = 0; i < 2; ++i) {
      const uint16x8_t sum = vaddq_u16(vreinterpretq_u16_u8(words[i]), vdupq_n_u16(kRule.offset));
      store_words<kBytes>(to + 8 * kBytes * i, vreinterpretq_u8_u16(sum));
    }
  });
}

// --- Encoding --------------------------------------------------------------------------------

// The bits of 16 float32.
struct Floats {
  uint32x4_t part[4];
};

// bfloat16 and float16 widen exactly.
template <int Src>
Floats load_floats(const uint8_t *src) {
  Floats floats;
  for (int i = 0; i < 4; ++i) {
    if constexpr (Src == DLFP4_float32) {
      floats.part[i] = vreinterpretq_u32_u8(vld1q_u8(src + 16 * i));
    } else {
      const uint16x4_t words = vreinterpret_u16_u8(vld1_u8(src + 8 * i));
      floats.part[i] = Src == DLFP4_float16 ? vreinterpretq_u32_f32(vcvt_f32_f16(vreinterpret_f16_u16(words)))
                                            : vshll_n_u16(words, 16);
    }
  }
  return floats;
}

template <class Function>
Floats each(const Floats &floats, Function function) {
  return {{function(floats.part[0]), function(floats.part[1]), function(floats.part[2]), function(floats.part[3])}};
}

uint16x8_t words(uint32x4_t dwords) { return vreinterpretq_u16_u32(dwords); }
uint8x16_t bytes(uint16x8_t words) { return vreinterpretq_u8_u16(words); }

uint8x16_t lowest_bytes(const Floats &floats) {
  const uint16x8_t low = vuzp1q_u16(words(floats.part[0]), words(floats.part[1]));
  const uint16x8_t high = vuzp1q_u16(words(floats.part[2]), words(floats.part[3]));
  return vuzp1q_u8(bytes(low), bytes(high));
}

uint8x16_t highest_bytes(const Floats &floats) {
  const uint16x8_t low = vuzp2q_u16(words(floats.part[0]), words(floats.part[1]));
  const uint16x8_t high = vuzp2q_u16(words(floats.part[2]), words(floats.part[3]));
  return vuzp2q_u8(bytes(low), bytes(high));
}

uint32x4_t magnitude_of(uint32x4_t bits) { return vbicq_u32(bits, vdupq_n_u32(kFloatSign)); }

uint32x4_t is_nan(uint32x4_t bits) { return vcgtq_u32(magnitude_of(bits), vdupq_n_u32(kFloatInfinity)); }

// Codes of any format but E8M0.
template <int Dst>
struct Encoder {
  const EncodeRule &rule;

  // In the lowest byte.
  uint32x4_t magnitudes(uint32x4_t bits) const {
    const uint32x4_t clamped = vminq_u32(magnitude_of(bits), vdupq_n_u32(rule.limit));
    const uint32x4_t power = vmaxq_u32(vandq_u32(clamped, vdupq_n_u32(kFloatInfinity)), vdupq_n_u32(rule.lowest));
    const uint32x4_t magic = vaddq_u32(power, vdupq_n_u32(rule.magic));
    const uint32x4_t sum =
        vreinterpretq_u32_f32(vaddq_f32(vreinterpretq_f32_u32(clamped), vreinterpretq_f32_u32(magic)));
    return vsraq_n_u32(sum, sum, 23 - kFormats[Dst].mantissa);
  }

  uint8x16_t operator()(const Floats &floats) const {
    constexpr int kBits = kFormats[Dst].bits;
    const uint8x16_t magnitude = lowest_bytes(each(floats, [this](uint32x4_t bits) { return magnitudes(bits); }));
    uint8x16_t signs = vandq_u8(highest_bytes(floats), vdupq_n_u8(0x80));
    if constexpr (kBits < 8) signs = vshrq_n_u8(signs, 8 - kBits);
    uint8x16_t kept_signs = signs;
    if constexpr (kFormats[Dst].specials == DLFP4_FNUZ) kept_signs = vandq_u8(signs, vtstq_u8(magnitude, magnitude));
    const uint8x16_t flips = vandq_u8(signs, vdupq_n_u8(static_cast<uint8_t>(rule.nan_flip)));
    const uint8x16_t nan = veorq_u8(vdupq_n_u8(static_cast<uint8_t>(rule.nan)), flips);
    return vbslq_u8(lowest_bytes(each(floats, is_nan)), nan, vorrq_u8(magnitude, kept_signs));
  }
};

// E8M0: unsigned powers of two.
struct PowerEncoder {
  const PowerRule &rule;

  uint32x4_t codes(uint32x4_t bits) const {
    const uint32x4_t magnitude = magnitude_of(bits);
    const uint32x4_t counts = vcgtq_u32(magnitude, vdupq_n_u32(rule.below_one));
    const uint32x4_t rounded = vshrq_n_u32(vaddq_u32(magnitude, vdupq_n_u32(0x00400000)), 23);
    const uint32x4_t code = vandq_u32(counts, vminq_u32(rounded, vdupq_n_u32(rule.largest)));
    // NaN is what is neither 0, where that has a code, nor positive; -0 is 0.
    const uint32x4_t zero_is_nan = vdupq_n_u32(rule.zero_is_nan);
    const uint32x4_t invalid = vcgtq_u32(vsubq_u32(bits, zero_is_nan), vdupq_n_u32(kFloatInfinity - rule.zero_is_nan));
    const uint32x4_t decides = vtstq_u32(vorrq_u32(magnitude, zero_is_nan), vdupq_n_u32(~0u));
    return vorrq_u32(code, vandq_u32(invalid, decides));
  }

  uint8x16_t operator()(const Floats &floats) const {
    return lowest_bytes(each(floats, [this](uint32x4_t bits) { return codes(bits); }));
  }
};

template <int Src, int DstBits, class Encode>
void encode_steps(const uint8_t *src, uint8_t *dst, int64_t count, Encode codes_of) {
  in_steps<kCodes, kFormats[Src].bits, DstBits>(src, dst, count, [&](const uint8_t *from, uint8_t *to) {
    store_codes<DstBits>(to, codes_of(load_floats<Src>(from)));
  });
}

template <int Src, int Dst, bool kPacked>
void encode_floats(const uint8_t *src, uint8_t *dst, int64_t count, const Mode &mode) {
  constexpr Format kTo = kFormats[Dst];
  if constexpr (kTo.specials == DLFP4_E8M0) {
    static constexpr PowerRule kRules[] = {make_power_rule(kTo, false), make_power_rule(kTo, true)};
    encode_steps<Src, 8>(src, dst, count, PowerEncoder{kRules[mode.saturate]});
  } else {
    static constexpr EncodeRule kRules[] = {make_encode_rule(kTo, false), make_encode_rule(kTo, true)};
    encode_steps<Src, (kPacked ? kTo.bits : 8)>(src, dst, count, Encoder<Dst>{kRules[mode.saturate]});
  }
}

// --- The level -------------------------------------------------------------------------------

struct Kernels {
  template <int Src, bool kPacked, int Dst>
  static constexpr Kernel decode = decode_codes<Src, kPacked, Dst>;
  template <int Src, int Dst, bool kPacked>
  static constexpr Kernel encode = encode_floats<Src, Dst, kPacked>;
  template <int Bits>
  static constexpr Kernel pack = pack_codes<Bits>;
  template <int Bits>
  static constexpr Kernel unpack = unpack_codes<Bits>;
};

constexpr Rows kRows = make_rows<Kernels>();

}  // namespace

extern const Level level_neon;
const Level level_neon = {"neon", kRows.row, kRows.size, nullptr};

}  // namespace dlfp4
