// Codes of at most 8 bits to wider floats, for the AVX2 kernels alone.
// Layout: codes packed or one a byte, 32 a step; floats in order.
// Trick: tables of 16 bytes give the floats' highest bytes, which are unpacked; what no cache holds goes past them.
#ifndef DLFP4_SRC_CODECS_AVX2_DECODE_H_
#define DLFP4_SRC_CODECS_AVX2_DECODE_H_

#include <type_traits>

#include "host/simd/avx2.h"
#include "host/simd/decode_rules.h"
#include "kernels.h"

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
  const Nibbles<Avx2> nibbles = split<kFormats[Src].bits>(noisy, kRule.sign);
  const __m256i low = decode_byte<Avx2, Src, Dst, 0>(nibbles), high = decode_byte<Avx2, Src, Dst, 1>(nibbles);
  Words words = {{_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)}};
  if constexpr (kRule.offset != 0)
    for (__m256i &half : words.half) half = _mm256_add_epi16(half, all_words(kRule.offset));
  return words;
}

// The same of a step's codes, in the order for the floats.
template <int Src, int SrcBits, int Dst>
DLFP4_ALWAYS_INLINE inline Words decode_words(const uint8_t *src) {
  return words_of<Src, Dst>(load_codes<SrcBits, kFormats[Dst].bits / 8>(src));
}

template <int Src, bool kPacked, int Dst, bool kStream>
DLFP4_ALWAYS_INLINE inline void decode_step(const uint8_t *src, uint8_t *dst) {
  constexpr int kBytes = kFormats[Dst].bits / 8;
  const Words words = decode_words<Src, (kPacked ? kFormats[Src].bits : 8), Dst>(src);
  for (int i = 0; i < 2; ++i) store_words<kBytes, kStream>(dst + 16 * kBytes * i, words.half[i]);
}

template <int Src, bool kPacked, int Dst, bool kStream>
void decode_steps(const uint8_t *src, uint8_t *dst, int64_t count) {
  in_steps<kCodes, (kPacked ? kFormats[Src].bits : 8), kFormats[Dst].bits>(
      src, dst, count,
      [](const uint8_t *from, uint8_t *to) DLFP4_ALWAYS_INLINE { decode_step<Src, kPacked, Dst, kStream>(from, to); });
}

// Output that no cache holds goes past them: it is not read before it is overwritten. Calls
// steps(src, dst, count, streams) for all elements, of so many bits and bytes: once, or for those before a boundary of
// 32 bytes, those of whole steps, which may go past the caches, and the others.
constexpr int64_t kStreamBytes = 64 << 20;

template <int SrcBits, int DstBytes, class Steps>
void in_stretches(const uint8_t *src, uint8_t *dst, int64_t count, Steps steps) {
  const int64_t unaligned = -reinterpret_cast<intptr_t>(dst) & 31, head = unaligned / DstBytes;
  if (count * DstBytes < kStreamBytes || unaligned % DstBytes != 0 || head * SrcBits % 8 != 0)
    return steps(src, dst, count, std::false_type());
  const int64_t body = (count - head) / kCodes * kCodes;
  steps(src, dst, head, std::false_type());
  src += head * SrcBits / 8, dst += unaligned;
  steps(src, dst, body, std::true_type());
  _mm_sfence();
  steps(src + body * SrcBits / 8, dst + body * DstBytes, count - head - body, std::false_type());
}

template <int Src, bool kPacked, int Dst>
void decode_codes(const uint8_t *src, uint8_t *dst, int64_t count, const Mode &) {
  constexpr int kBits = kPacked ? kFormats[Src].bits : 8;
  in_stretches<kBits, kFormats[Dst].bits / 8>(src, dst, count, [](auto from, auto to, int64_t elements, auto streams) {
    decode_steps<Src, kPacked, Dst, decltype(streams)::value>(from, to, elements);
  });
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_CODECS_AVX2_DECODE_H_
