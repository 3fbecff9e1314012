// Vectors of codes, unpacking and packing, for the AVX2 kernels alone.
// Layout: runs of codes, packed or one a byte; 32 elements a step.
// Trick: bytes are shuffled so that instructions that work within 16 bytes, such as unpacking to wider elements, leave
// them in order.
#ifndef DLFP4_SRC_HOST_SIMD_AVX2_H_
#define DLFP4_SRC_HOST_SIMD_AVX2_H_

#include <immintrin.h>
#include <string.h>

#include "decode_rules.h"
#include "lanes.h"

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

// --- The instruction set ---------------------------------------------------------------------

struct Avx2 : PlainMemory {
  static constexpr int kCodes = dlfp4::kCodes;
  template <int Bits>
  static constexpr bool kStreams = Bits >= 16;
  static void fence() { _mm_sfence(); }

  using U32 = uint32_t __attribute__((vector_size(32)));
  using I32 = int32_t __attribute__((vector_size(32)));
  using U16 = uint16_t __attribute__((vector_size(32)));
  using HalfU16 = uint16_t __attribute__((vector_size(16)));
  using F32 = __m256;
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

// A step's elements.
struct Floats {
  __m256 part[4];
};

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

// Instructions that join two vectors within their halves leave the quarters of one next to those of the other.
__m256i outer_quarters_first(__m256i vector) { return _mm256_permute4x64_epi64(vector, 0xD8); }

template <int Bytes>
__m256i reorder(__m256i codes) {
  if constexpr (Bytes == 4) return _mm256_permutevar8x32_epi32(codes, _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7));
  if constexpr (Bytes == 8) codes = _mm256_shuffle_epi8(codes, load(kEvenPairsFirst));
  return Bytes == 1 ? codes : outer_quarters_first(codes);
}

// Nibbles: every code's byte is brought to it, then those in the upper nibble are shifted down.
template <int Bytes>
constexpr Constant kBytesOfNibbles = make_constant([](int i) { return code_at<Bytes>(i) / 2; });

inline __m256i select_nibbles(__m256i bytes) {
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

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_HOST_SIMD_AVX2_H_
