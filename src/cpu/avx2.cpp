// The AVX2 level: codes of at most 8 bits to wider floats, and from all of these but float64; packing and unpacking.
// Layout: runs, packed or one code a byte, against floats or codes; 32 elements a step.
// Trick: bytes are shuffled so that tables, unpacking and packing, which stay within 16 bytes, leave them in order.
#include <immintrin.h>
#include <string.h>

#include "kernels.h"
#include "vector_level.h"
#include "vector_rules.h"

namespace dlfp4 {
namespace {

constexpr int kCodes = 32;  // elements a step, whose codes fill a vector

// --- Vectors ---------------------------------------------------------------------------------

__m256i load(const Constant &constant) { return _mm256_load_si256(reinterpret_cast<const __m256i *>(constant.byte)); }

__m256i load_32_bytes(const uint8_t *src) { return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(src)); }
__m128i load_16_bytes(const uint8_t *src) { return _mm_loadu_si128(reinterpret_cast<const __m128i *>(src)); }
void store_16_bytes(uint8_t *dst, __m128i vector) { _mm_storeu_si128(reinterpret_cast<__m128i *>(dst), vector); }
void store_8_bytes(uint8_t *dst, __m128i vector) { _mm_storel_epi64(reinterpret_cast<__m128i *>(dst), vector); }

__m256i all_bytes(int value) { return _mm256_set1_epi8(static_cast<char>(value)); }
__m256i all_words(int value) { return _mm256_set1_epi16(static_cast<short>(value)); }
__m256i all(uint32_t value) { return _mm256_set1_epi32(static_cast<int>(value)); }

__m128i upper(__m256i vector) { return _mm256_extracti128_si256(vector, 1); }

// --- Unpacking -------------------------------------------------------------------------------

// Which code is where in a vector. Unpacking bytes to words, and words to wider ones, works within the two halves of a
// vector: in the order for floats of `Bytes` bytes that leaves the floats in order. One byte is in order.
template <int Bytes>
constexpr int code_at(int byte) {
  constexpr int kInHalf = 16 / Bytes;
  return Bytes == 1 ? byte : byte % 16 / kInHalf * 2 * kInHalf + byte / 16 * kInHalf + byte % kInHalf;
}

// From codes in order.
constexpr Constant kEvenPairsFirst =
    make_constant([](int i) { return i % 16 < 8 ? i % 8 / 2 * 4 + i % 2 : i % 8 / 2 * 4 + i % 2 + 2; });

template <int Bytes>
__m256i reorder(__m256i codes) {
  constexpr int kOuterQuartersFirst = 0xD8;
  if constexpr (Bytes == 4) return _mm256_permutevar8x32_epi32(codes, _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7));
  if constexpr (Bytes == 8) codes = _mm256_shuffle_epi8(codes, load(kEvenPairsFirst));
  return Bytes == 1 ? codes : _mm256_permute4x64_epi64(codes, kOuterQuartersFirst);
}

// Nibbles: every code's byte is brought to it, then those in the upper nibble are shifted down.
template <int Bytes>
constexpr Constant kBytesOfNibbles = make_constant([](int i) { return code_at<Bytes>(i) / 2; });

__m256i select_nibbles(__m256i bytes) {
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), all_words(0x0F00));
  return _mm256_or_si256(_mm256_and_si256(bytes, all_words(0x000F)), odd);
}

// 6 bits: words of two codes each, in their bits 0 to 11 and in their bits 4 to 15. The upper half's bytes come last.
constexpr Constant kWordsOfSixes =
    make_constant([](int i) { return (i < 16 ? 0 : 4) + i % 16 / 4 * 3 + (i % 4 + 1) / 2; });

__m256i unpack_sixes(const uint8_t *src) {
  const __m256i bytes = _mm256_set_m128i(load_16_bytes(src + 8), load_16_bytes(src));
  const __m256i words = _mm256_shuffle_epi8(bytes, load(kWordsOfSixes));
  const __m256i pairs = _mm256_mullo_epi16(words, all(0x00010010));  // now all in bits 4 to 15
  const __m256i even = _mm256_and_si256(_mm256_srli_epi16(pairs, 4), all_words(0x003F));
  return _mm256_or_si256(even, _mm256_and_si256(_mm256_srli_epi16(pairs, 2), all_words(0x3F00)));
}

// 2 bits: each byte four times, shifted by 0, 2, 4 and 6.
constexpr Constant kBytesOfTwos = make_constant([](int i) { return i / 4; });

__m256i unpack_twos(const uint8_t *src) {
  int64_t packed;
  memcpy(&packed, src, sizeof(packed));
  const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi64x(packed), load(kBytesOfTwos));
  const __m256i fours = _mm256_blend_epi16(bytes, _mm256_srli_epi16(bytes, 4), 0xAA);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi16(fours, 2), all_words(0x0300));
  return _mm256_or_si256(_mm256_and_si256(fours, all_words(0x0003)), odd);
}

// A step's codes in the order for floats of `Bytes` bytes. Padded ones keep the noise in their high bits.
template <int Bits, int Bytes>
__m256i load_codes(const uint8_t *src) {
  if constexpr (Bits == 8) return reorder<Bytes>(load_32_bytes(src));
  if constexpr (Bits == 6) return reorder<Bytes>(unpack_sixes(src));
  if constexpr (Bits == 4)
    return select_nibbles(
        _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load_16_bytes(src)), load(kBytesOfNibbles<Bytes>)));
  if constexpr (Bits == 2) return reorder<Bytes>(unpack_twos(src));
}

// --- Packing ---------------------------------------------------------------------------------

template <int Bits>
__m256i clear_noise(__m256i codes) {
  return Bits == 8 ? codes : _mm256_and_si256(codes, all_bytes((1 << Bits) - 1));
}

// Two clean codes a word.
template <int Bits>
__m256i join_pairs(__m256i codes) {
  return _mm256_maddubs_epi16(codes, all_words(1 | 1 << (8 + Bits)));
}

// Four clean codes a dword.
template <int Bits>
__m256i join_fours(__m256i codes) {
  return _mm256_madd_epi16(join_pairs<Bits>(codes), all(1 | 1 << (16 + 2 * Bits)));
}

// The first bytes of each half's dwords, next to each other.
template <int Bytes>
constexpr Constant kFirstOfDwords =
    make_constant([](int i) { return i % 16 < 4 * Bytes ? i % 16 / Bytes * 4 + i % 16 % Bytes : 0x80; });

// Clean codes, in order.
template <int Bits>
void store_codes(uint8_t *dst, __m256i codes) {
  if constexpr (Bits == 8) {
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(dst), codes);
  } else if constexpr (Bits == 4) {
    const __m256i words = join_pairs<4>(codes);
    store_16_bytes(dst, _mm_packus_epi16(_mm256_castsi256_si128(words), upper(words)));
  } else if constexpr (Bits == 6) {
    const __m256i halves = _mm256_shuffle_epi8(join_fours<6>(codes), load(kFirstOfDwords<3>));
    const __m256i packed = _mm256_permutevar8x32_epi32(halves, _mm256_setr_epi32(0, 1, 2, 4, 5, 6, 3, 7));
    store_16_bytes(dst, _mm256_castsi256_si128(packed));
    store_8_bytes(dst + 16, upper(packed));
  } else {
    const __m256i halves = _mm256_shuffle_epi8(join_fours<2>(codes), load(kFirstOfDwords<1>));
    store_8_bytes(dst, _mm_unpacklo_epi32(_mm256_castsi256_si128(halves), upper(halves)));
  }
}

template <int Bits>
void pack_codes(const uint8_t *src, uint8_t *dst, int64_t count, const Mode &) {
  in_steps<kCodes, 8, Bits>(src, dst, count, [](const uint8_t *from, uint8_t *to) DLFP4_ALWAYS_INLINE {
    store_codes<Bits>(to, clear_noise<Bits>(load_codes<8, 1>(from)));
  });
}

template <int Bits>
void unpack_codes(const uint8_t *src, uint8_t *dst, int64_t count, const Mode &) {
  in_steps<kCodes, Bits, 8>(src, dst, count, [](const uint8_t *from, uint8_t *to) DLFP4_ALWAYS_INLINE {
    store_codes<8>(to, load_codes<Bits, 1>(from));
  });
}

// --- Decoding --------------------------------------------------------------------------------

struct Avx2 {
  using Bytes = __m256i;
  static Bytes zero() { return _mm256_setzero_si256(); }
  static Bytes flip(Bytes bytes, Bytes bits) { return _mm256_xor_si256(bytes, bits); }
  static Bytes flip_equal(Bytes bytes, Bytes a, int b, int bits) {
    return flip(bytes, _mm256_and_si256(_mm256_cmpeq_epi8(a, all_bytes(b)), all_bytes(bits)));
  }
  // An index with its highest bit set finds a zero.
  static Bytes look_up(const Constant &table, Bytes index) { return _mm256_shuffle_epi8(load(table), index); }
  static Bytes in_first(Bytes magnitudes) { return _mm256_adds_epu8(magnitudes, all_bytes(0x70)); }
  static Bytes in_last(Bytes magnitudes, int largest) {
    return in_first(_mm256_sub_epi8(all_bytes(largest), magnitudes));
  }
};

template <int Bits>
Nibbles<Avx2> split(__m256i noisy, int sign) {
  Nibbles<Avx2> nibbles;
  nibbles.code = clear_noise<Bits>(noisy);
  nibbles.magnitude = sign ? _mm256_and_si256(noisy, all_bytes((1 << Bits) - 1 - sign)) : nibbles.code;
  nibbles.high = _mm256_and_si256(_mm256_srli_epi16(nibbles.code, 4), all_bytes(0x0F));
  nibbles.low = Bits == 8 && !sign ? _mm256_and_si256(noisy, all_bytes(0x0F)) : nibbles.magnitude;
  return nibbles;
}

template <bool kStream>
void store_vector(uint8_t *dst, __m256i vector) {
  if constexpr (kStream)
    _mm256_stream_si256(reinterpret_cast<__m256i *>(dst), vector);
  else
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(dst), vector);
}

// The highest halves of consecutive floats of `Bytes` bytes, in the order for them.
template <int Bytes, bool kStream>
void store_words(uint8_t *dst, __m256i words) {
  const __m256i zero = _mm256_setzero_si256();
  if constexpr (Bytes == 2) {
    store_vector<kStream>(dst, words);
  } else {
    const __m256i dwords[2] = {_mm256_unpacklo_epi16(zero, words), _mm256_unpackhi_epi16(zero, words)};
    for (int i = 0; i < 2; ++i) {
      if constexpr (Bytes == 4) {
        store_vector<kStream>(dst + 32 * i, dwords[i]);
      } else {
        store_vector<kStream>(dst + 64 * i, _mm256_unpacklo_epi32(zero, dwords[i]));
        store_vector<kStream>(dst + 64 * i + 32, _mm256_unpackhi_epi32(zero, dwords[i]));
      }
    }
  }
}

template <int Src, bool kPacked, int Dst, bool kStream>
DLFP4_ALWAYS_INLINE inline void decode_step(const uint8_t *src, uint8_t *dst) {
  constexpr const DecodeRule &kRule = kDecodeRule<Src, Dst>;
  constexpr int kBytes = kFormats[Dst].bits / 8;
  const Nibbles<Avx2> nibbles =
      split<kFormats[Src].bits>(load_codes<kPacked ? kFormats[Src].bits : 8, kBytes>(src), kRule.sign);
  const __m256i low = decode_byte<Avx2, Src, Dst, 0>(nibbles), high = decode_byte<Avx2, Src, Dst, 1>(nibbles);
  __m256i words[2] = {_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)};
  for (int i = 0; i < 2; ++i) {
    if constexpr (kRule.offset != 0) words[i] = _mm256_add_epi16(words[i], all_words(kRule.offset));
    store_words<kBytes, kStream>(dst + 16 * kBytes * i, words[i]);
  }
}

template <int Src, bool kPacked, int Dst, bool kStream>
void decode_steps(const uint8_t *src, uint8_t *dst, int64_t count) {
  in_steps<kCodes, (kPacked ? kFormats[Src].bits : 8), kFormats[Dst].bits>(
      src, dst, count,
      [](const uint8_t *from, uint8_t *to) DLFP4_ALWAYS_INLINE { decode_step<Src, kPacked, Dst, kStream>(from, to); });
}

// Output that no cache holds goes past them: it is not read before it is overwritten.
constexpr int64_t kStreamBytes = 64 << 20;

template <int Src, bool kPacked, int Dst>
void decode_codes(const uint8_t *src, uint8_t *dst, int64_t count, const Mode &) {
  constexpr int kBits = kPacked ? kFormats[Src].bits : 8, kBytes = kFormats[Dst].bits / 8;
  const int64_t unaligned = -reinterpret_cast<intptr_t>(dst) & 31, head = unaligned / kBytes;
  if (count * kBytes < kStreamBytes || unaligned % kBytes != 0 || head * kBits % 8 != 0)
    return decode_steps<Src, kPacked, Dst, false>(src, dst, count);
  const int64_t body = (count - head) / kCodes * kCodes;
  decode_steps<Src, kPacked, Dst, false>(src, dst, head);
  src += head * kBits / 8, dst += unaligned;
  decode_steps<Src, kPacked, Dst, true>(src, dst, body);
  _mm_sfence();
  decode_steps<Src, kPacked, Dst, false>(src + body * kBits / 8, dst + body * kBytes, count - head - body);
}

// --- Encoding --------------------------------------------------------------------------------

struct Floats {
  __m256 part[4];
};

// bfloat16 and float16 widen exactly.
template <int Src>
Floats load_floats(const uint8_t *src) {
  Floats floats;
  for (int i = 0; i < 4; ++i) {
    if constexpr (Src == DLFP4_float32)
      floats.part[i] = _mm256_castsi256_ps(load_32_bytes(src + 32 * i));
    else if constexpr (Src == DLFP4_float16)
      floats.part[i] = _mm256_cvtph_ps(load_16_bytes(src + 16 * i));
    else
      floats.part[i] = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_16_bytes(src + 16 * i)), 16));
  }
  return floats;
}

// Dwords to bytes; each half of the result has its half of every operand. Saturation keeps signs and masks as they are.
__m256i narrow_signs(__m256i a, __m256i b, __m256i c, __m256i d) {
  return _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
}

__m256i narrow_lowest_bytes(__m256i a, __m256i b, __m256i c, __m256i d) {
  const __m256i byte = all(0xFF);
  const __m256i low = _mm256_packus_epi32(_mm256_and_si256(a, byte), _mm256_and_si256(b, byte));
  const __m256i high = _mm256_packus_epi32(_mm256_and_si256(c, byte), _mm256_and_si256(d, byte));
  return _mm256_packus_epi16(low, high);
}

__m256i in_order(__m256i narrowed) {
  return _mm256_permutevar8x32_epi32(narrowed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

// The floats' signs as sign bits of codes.
template <int Bits>
__m256i sign_bits(const Floats &floats) {
  const __m256i signs = narrow_signs(_mm256_castps_si256(floats.part[0]), _mm256_castps_si256(floats.part[1]),
                                     _mm256_castps_si256(floats.part[2]), _mm256_castps_si256(floats.part[3]));
  return _mm256_and_si256(Bits < 8 ? _mm256_srli_epi16(signs, 8 - Bits) : signs, all_bytes(1 << (Bits - 1)));
}

bool has_nan(const Floats &floats) {
  const __m256 nan = _mm256_or_ps(_mm256_cmp_ps(floats.part[0], floats.part[1], _CMP_UNORD_Q),
                                  _mm256_cmp_ps(floats.part[2], floats.part[3], _CMP_UNORD_Q));
  return _mm256_movemask_ps(nan) != 0;
}

__m256i find_nans(__m256 floats) { return _mm256_castps_si256(_mm256_cmp_ps(floats, floats, _CMP_UNORD_Q)); }

__attribute__((noinline)) __m256i put_nans(__m256i codes, const Floats &floats, __m256i signs, const EncodeRule &rule) {
  const __m256i nan = _mm256_xor_si256(all_bytes(rule.nan), _mm256_and_si256(signs, all_bytes(rule.nan_flip)));
  const __m256i where = narrow_signs(find_nans(floats.part[0]), find_nans(floats.part[1]), find_nans(floats.part[2]),
                                     find_nans(floats.part[3]));
  return _mm256_blendv_epi8(codes, nan, where);
}

// Codes of any format but E8M0.
template <int Dst>
struct Encoder {
  const EncodeRule &rule;

  // In the lowest byte of each dword.
  __m256i magnitudes(__m256 floats) const {
    const __m256i magnitude = _mm256_and_si256(_mm256_castps_si256(floats), all(~kFloatSign));
    const __m256i clamped = _mm256_min_epu32(magnitude, all(rule.limit));
    const __m256i power = _mm256_max_epu32(_mm256_and_si256(clamped, all(kFloatInfinity)), all(rule.lowest));
    const __m256i magic = _mm256_add_epi32(power, all(rule.magic));
    const __m256i sum = _mm256_castps_si256(_mm256_add_ps(_mm256_castsi256_ps(clamped), _mm256_castsi256_ps(magic)));
    return _mm256_add_epi32(sum, _mm256_srli_epi32(sum, 23 - kFormats[Dst].mantissa));
  }

  DLFP4_ALWAYS_INLINE __m256i operator()(const Floats &floats) const {
    const __m256i magnitude = narrow_lowest_bytes(magnitudes(floats.part[0]), magnitudes(floats.part[1]),
                                                  magnitudes(floats.part[2]), magnitudes(floats.part[3]));
    const __m256i signs = sign_bits<kFormats[Dst].bits>(floats);
    __m256i kept_signs = signs;
    if constexpr (kFormats[Dst].specials == DLFP4_FNUZ)
      kept_signs = _mm256_andnot_si256(_mm256_cmpeq_epi8(magnitude, _mm256_setzero_si256()), signs);
    const __m256i codes = _mm256_or_si256(magnitude, kept_signs);
    return in_order(__builtin_expect(has_nan(floats), 0) ? put_nans(codes, floats, signs, rule) : codes);
  }
};

// A class of magnitudes is a float32 with two bits of mantissa, even numbers, or all between two of them, odd ones: it
// decides how a format with one bit of mantissa rounds. They count from the least that FP4 tells apart.
constexpr uint32_t kFirstClass = 125 << 3;

constexpr int code_of_class(int number) {
  const uint32_t bits = kFirstClass + static_cast<uint32_t>(number);
  return code_of_float(kFormats[DLFP4_float4_e2m1fn], bits / 2 << 21 | bits % 2, true);
}

// By class: the code as the sum of two tables' entries, of the classes up to 15 and from 19 to 34, and of a comparison.
struct ClassTables {
  Constant low;
  Constant high;
};

constexpr ClassTables kClasses = {make_constant([](int i) { return code_of_class(i % 16); }),
                                  make_constant([](int i) { return code_of_class(19 + i % 16) - code_of_class(18); })};
static_assert(code_of_class(0) == 0 && code_of_class(15) == code_of_class(18), "between the tables nothing happens");
static_assert(code_of_class(34) + 1 == code_of_class(35) && code_of_class(35) == 7, "one comparison does the rest");

// FP4: the floor and the ceiling of a float's highest 11 bits are added up to its class and its sign.
template <>
struct Encoder<DLFP4_float4_e2m1fn> {
  const EncodeRule &rule;

  __m256i signed_classes(__m256 floats) const {
    const __m256i bits = _mm256_castps_si256(floats), almost_one = all((1 << 21) - 1);
    return _mm256_add_epi32(_mm256_srai_epi32(bits, 21), _mm256_srai_epi32(_mm256_add_epi32(bits, almost_one), 21));
  }

  __m256i signed_classes(__m256 a, __m256 b) const { return _mm256_packs_epi32(signed_classes(a), signed_classes(b)); }

  __m256i codes_of_classes(__m256i classes) const {
    const __m256i low = _mm256_shuffle_epi8(load(kClasses.low), _mm256_min_epu8(classes, all_bytes(15)));
    const __m256i above_low = _mm256_sub_epi8(_mm256_min_epu8(classes, all_bytes(34)), all_bytes(19));
    const __m256i codes = _mm256_add_epi8(low, _mm256_shuffle_epi8(load(kClasses.high), above_low));
    return _mm256_sub_epi8(codes, _mm256_cmpeq_epi8(_mm256_max_epu8(classes, all_bytes(35)), classes));
  }

  DLFP4_ALWAYS_INLINE __m256i operator()(const Floats &floats) const {
    const __m256i low = signed_classes(floats.part[0], floats.part[1]);
    const __m256i high = signed_classes(floats.part[2], floats.part[3]);
    const __m256i unsigned_low = _mm256_and_si256(low, all_words(0x7FF));
    const __m256i unsigned_high = _mm256_and_si256(high, all_words(0x7FF));
    const __m256i first = all_words(kFirstClass);
    const __m256i classes =
        _mm256_packus_epi16(_mm256_subs_epu16(unsigned_low, first), _mm256_subs_epu16(unsigned_high, first));
    const __m256i signs = _mm256_and_si256(_mm256_srli_epi16(_mm256_packs_epi16(low, high), 4), all_bytes(8));
    const __m256i codes = _mm256_or_si256(codes_of_classes(classes), signs);
    return in_order(__builtin_expect(has_nan(floats), 0) ? put_nans(codes, floats, sign_bits<4>(floats), rule) : codes);
  }
};

// E8M0: unsigned powers of two.
struct PowerEncoder {
  const PowerRule &rule;

  __m256i codes(__m256 floats) const {
    const __m256i bits = _mm256_castps_si256(floats), magnitude = _mm256_and_si256(bits, all(~kFloatSign));
    const __m256i counts = _mm256_cmpgt_epi32(magnitude, all(rule.below_one));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(magnitude, all(0x00400000)), 23);
    const __m256i code = _mm256_and_si256(counts, _mm256_min_epu32(rounded, all(rule.largest)));
    // NaN is what is neither 0, where that has a code, nor positive; -0 is 0.
    const __m256i shifted = _mm256_sub_epi32(bits, all(rule.zero_is_nan));
    const __m256i valid =
        _mm256_cmpeq_epi32(_mm256_min_epu32(shifted, all(kFloatInfinity - rule.zero_is_nan)), shifted);
    const __m256i decides = _mm256_cmpgt_epi32(magnitude, all(rule.zero_is_nan ? ~0u : 0));
    return _mm256_or_si256(code, _mm256_andnot_si256(valid, decides));
  }

  DLFP4_ALWAYS_INLINE __m256i operator()(const Floats &floats) const {
    return in_order(narrow_lowest_bytes(codes(floats.part[0]), codes(floats.part[1]), codes(floats.part[2]),
                                        codes(floats.part[3])));
  }
};

template <int Src, int DstBits, class Encode>
void encode_steps(const uint8_t *src, uint8_t *dst, int64_t count, Encode codes_of) {
  in_steps<kCodes, kFormats[Src].bits, DstBits>(src, dst, count,
                                                [&](const uint8_t *from, uint8_t *to) DLFP4_ALWAYS_INLINE {
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

extern const Level level_avx2;
const Level level_avx2 = {"avx2", kRows.row, kRows.size, nullptr};

}  // namespace dlfp4
