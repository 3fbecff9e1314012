// Codes of at most 8 bits to wider floats, for the AVX2 kernels alone.
// Layout: codes packed or one a byte, 32 a step; floats in order.
// Trick: tables of 16 bytes give the floats' highest bytes, which are unpacked.
#ifndef DLFP4_SRC_CODECS_AVX2_DECODE_H_
#define DLFP4_SRC_CODECS_AVX2_DECODE_H_

#include "host/simd/avx2.h"
#include "host/simd/decode_rules.h"

namespace dlfp4 {
namespace {

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

struct Words {
  __m256i half[2];
};

// The highest 16 bits of the floats that codes are worth.
template <int Src, int Dst>
DLFP4_ALWAYS_INLINE inline Words words_of(__m256i noisy) {
  constexpr const DecodeRule &kRule = kDecodeRule<Src, Dst>;
  const Nibbles<Avx2> nibbles = split<kTypes[Src].bits>(noisy, kRule.sign);
  const __m256i low = decode_byte<Avx2, Src, Dst, 0>(nibbles), high = decode_byte<Avx2, Src, Dst, 1>(nibbles);
  Words words = {{_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)}};
  if constexpr (kRule.offset != 0)
    for (__m256i &half : words.half) half = _mm256_add_epi16(half, all_words(kRule.offset));
  return words;
}

// The same of a step's codes, in the order for the floats.
template <int Src, int SrcBits, int Dst>
DLFP4_ALWAYS_INLINE inline Words decode_words(const uint8_t *src) {
  return words_of<Src, Dst>(load_codes<SrcBits, kTypes[Dst].bits / 8>(src));
}

// A step's elements as float32, in order.
template <int Src, int SrcBits>
DLFP4_ALWAYS_INLINE inline Floats decode_floats(const uint8_t *src) {
  const Words words = decode_words<Src, SrcBits, DLFP4_float32>(src);
  const __m256i zero = _mm256_setzero_si256();
  Floats floats;
  for (int i = 0; i < 2; ++i) {
    floats.part[2 * i] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, words.half[i]));
    floats.part[2 * i + 1] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, words.half[i]));
  }
  return floats;
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_CODECS_AVX2_DECODE_H_
