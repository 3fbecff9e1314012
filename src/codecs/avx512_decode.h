// Codes of at most 8 bits to float16, bfloat16, float32 and float64, for the AVX-512 kernels alone.
// Layout: codes one a byte or packed; floats in order.
// Trick: only the highest 16 bits of such a float can be nonzero. Two tables give their bytes, which are interleaved
// and widened.
#ifndef DLFP4_SRC_CODECS_AVX512_DECODE_H_
#define DLFP4_SRC_CODECS_AVX512_DECODE_H_

#include <string.h>

#include <type_traits>

#include "avx512_floats.h"
#include "host/simd/avx512.h"
#include "rules/numerics.h"

namespace dlfp4 {
namespace {

// The two highest bytes of the float that each code is worth.
struct DecodeTable {
  alignas(64) uint8_t high[256];
  alignas(64) uint8_t low[256];
};

template <int Src, int Dst>
constexpr DecodeTable make_decode_table() {
  DecodeTable table = {};
  for (uint64_t code = 0; code < 256; ++code) {
    const uint64_t value = convert(kTypes[Src], kTypes[Dst], code, {DLFP4_NEAREST_EVEN, false}, {0, 0, 0});
    table.high[code] = static_cast<uint8_t>(value >> (kTypes[Dst].bits - 8));
    table.low[code] = static_cast<uint8_t>(value >> (kTypes[Dst].bits - 16));
  }
  return table;
}

// Whether the codes' highest bit is the sign and nothing else: half the table then serves.
constexpr bool is_symmetric(const DecodeTable &table) {
  for (int code = 0; code < 128; ++code)
    if (table.high[code + 128] != (table.high[code] | 0x80) || table.low[code + 128] != table.low[code]) return false;
  return true;
}

// --- Words to floats -------------------------------------------------------------------------

// Word 0 of the vector as the highest two bytes of the first float of `Bytes` bytes, and so on; zeros are masked in.
template <int Bytes>
constexpr Constant kWordsOfFloats = make_constant([](int i) { return i / Bytes * 2 + (i + 2) % Bytes; });

template <int Bytes>
constexpr __mmask64 kHighestTwo = Bytes == 4 ? 0xCCCCCCCCCCCCCCCC : 0xC0C0C0C0C0C0C0C0;

// Floats [64 / Bytes * index, ...) of the 32 that `words` are worth.
template <int Bytes>
__m512i widen(__m512i words, int index) {
  const __m512i first = _mm512_set1_epi8(static_cast<char>(128 / Bytes * index));
  return _mm512_maskz_permutexvar_epi8(kHighestTwo<Bytes>, _mm512_add_epi8(load(kWordsOfFloats<Bytes>), first), words);
}

// `words` are the highest halves of 32 floats.
template <int Bytes, bool kStream>
void store_words(uint8_t *dst, __m512i words) {
  if constexpr (Bytes == 2) return store_vector(dst, words, kStream);
  for (int i = 0; i < Bytes / 2; ++i) store_vector(dst + 64 * i, widen<Bytes>(words, i), kStream);
}

// --- Tables ----------------------------------------------------------------------------------

struct Words {
  __m512i half[2];
};

// A step's codes to the highest halves of floats.
template <int Bits, int Size>
struct WordsOfCodes {
  Lookup<Size> high, low;

  explicit WordsOfCodes(const DecodeTable &table) : high(table.high), low(table.low) {}

  Words operator()(const uint8_t *src) const {
    const __m512i codes = load_run<Bits, kForWords>(src, Whole());
    __m512i highest = high(codes);
    if constexpr (Size == 128)  // with the code's sign: high | (codes & 0x80)
      highest = _mm512_ternarylogic_epi64(highest, codes, _mm512_set1_epi8(-128), 0xF8);
    const __m512i lowest = low(codes);
    return {{_mm512_unpacklo_epi8(lowest, highest), _mm512_unpackhi_epi8(lowest, highest)}};
  }
};

// To float32.
template <int Bits, int Size>
struct FloatsOfCodes {
  WordsOfCodes<Bits, Size> words_of;

  explicit FloatsOfCodes(const DecodeTable &table) : words_of(table) {}

  Floats operator()(const uint8_t *src) const {
    const Words words = words_of(src);
    Floats floats;
    for (int i = 0; i < 4; ++i) floats.part[i] = _mm512_castsi512_ps(widen<4>(words.half[i / 2], i % 2));
    return floats;
  }
};

constexpr Constant kNibblesToDwords = make_constant([](int i) { return i % 4 == 0 ? i : 0; });

// Of packed 4-bit codes 16 are spread to a dword each, which index a table of 16 floats.
template <int Size>
struct FloatsOfCodes<4, Size> {
  __m512 table_of_floats;

  explicit FloatsOfCodes(const DecodeTable &table) {
    const __m128i high = _mm_load_si128(reinterpret_cast<const __m128i *>(table.high));
    const __m128i low = _mm_load_si128(reinterpret_cast<const __m128i *>(table.low));
    table_of_floats = widen_bfloat16(_mm256_set_m128i(_mm_unpackhi_epi8(low, high), _mm_unpacklo_epi8(low, high)));
  }

  Floats operator()(const uint8_t *src) const {
    Floats floats;
    for (int i = 0; i < 4; ++i) {
      int64_t nibbles;
      memcpy(&nibbles, src + 8 * i, sizeof(nibbles));
      const __m512i codes = _mm512_multishift_epi64_epi8(load(kNibblesToDwords), _mm512_set1_epi64(nibbles));
      floats.part[i] = _mm512_permutexvar_ps(codes, table_of_floats);
    }
    return floats;
  }
};

template <int Src, int Dst>
constexpr DecodeTable kDecodeTable = make_decode_table<Src, Dst>();

// The entries that tell all codes apart.
template <int Src, int Dst>
constexpr int kDecodeSize = kTypes[Src].bits < 8                   ? 64
                            : is_symmetric(kDecodeTable<Src, Dst>) ? 128
                                                                   : 256;

template <int Bits, int Size, int Bytes, bool kStream>
__attribute__((noinline)) void decode_steps(const DecodeTable &table, const uint8_t *src, uint8_t *dst, int64_t count) {
  const std::conditional_t<Bytes == 4, FloatsOfCodes<Bits, Size>, WordsOfCodes<Bits, Size>> look_up(table);
  in_steps<Avx512, Bits, 8 * Bytes>(src, dst, count, [&](const uint8_t *from, uint8_t *to) DLFP4_ALWAYS_INLINE {
    const auto found = look_up(from);
    if constexpr (Bytes == 4)
      for (int i = 0; i < 4; ++i) store_vector(to + 64 * i, _mm512_castps_si512(found.part[i]), kStream);
    else
      for (int i = 0; i < 2; ++i) store_words<Bytes, kStream>(to + 32 * Bytes * i, found.half[i]);
  });
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_CODECS_AVX512_DECODE_H_
