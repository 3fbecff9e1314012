// Codes of at most 8 bits to float16, bfloat16, float32 and float64, for the AVX-512 kernels alone.
// Layout: codes one a byte or packed; floats in order.
// Trick: of such a float only the highest 16 bits can be other than zero: two tables of bytes, interleaved and widened.
#ifndef DLFP4_SRC_CPU_AVX512_DECODE_H_
#define DLFP4_SRC_CPU_AVX512_DECODE_H_

#include "../numerics.h"
#include "avx512_codes.h"

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
    const uint64_t value = convert(kFormats[Src], kFormats[Dst], code, {DLFP4_NEAREST_EVEN, false}, {0, 0, 0});
    table.high[code] = static_cast<uint8_t>(value >> (kFormats[Dst].bits - 8));
    table.low[code] = static_cast<uint8_t>(value >> (kFormats[Dst].bits - 16));
  }
  return table;
}

// Whether the codes' highest bit is the sign and nothing else: then half the table does.
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

// --- Storing ---------------------------------------------------------------------------------

template <bool kStream>
void store_vector(uint8_t *dst, __m512i vector) {
  if constexpr (kStream)
    _mm512_stream_si512(reinterpret_cast<__m512i *>(dst), vector);
  else
    _mm512_storeu_si512(dst, vector);
}

// The vector that starts `offset` bytes into a step's floats.
template <int Bytes, bool kStream>
void store_floats(uint8_t *dst, int64_t offset, __m512i vector, Whole) {
  store_vector<kStream>(dst + offset, vector);
}

template <int Bytes, bool kStream>
void store_floats(uint8_t *dst, int64_t offset, __m512i vector, Part part) {
  const __mmask64 kept = first_bytes(part.count * Bytes - offset);
  if (kept) _mm512_mask_storeu_epi8(dst + offset, kept, vector);
}

// `words` are the highest halves of the step's first or last 32 floats.
template <int Bytes, bool kStream, class Share>
void store_words(uint8_t *dst, int half, __m512i words, Share share) {
  if constexpr (Bytes == 2) return store_floats<Bytes, kStream>(dst, 64 * half, words, share);
  for (int i = 0; i < Bytes / 2; ++i)
    store_floats<Bytes, kStream>(dst, 32 * Bytes * half + 64 * i, widen<Bytes>(words, i), share);
}

// --- Kernels ---------------------------------------------------------------------------------

template <int Bits, int Size, int Bytes, bool kStream>
struct Decoder {
  Lookup<Size> high, low;

  explicit Decoder(const DecodeTable &table) : high(table.high), low(table.low) {}

  template <class Share>
  void operator()(const uint8_t *src, uint8_t *dst, Share share) const {
    const __m512i codes = load_codes<Bits, kForWords>(src, share);
    __m512i highest = high(codes);
    if constexpr (Size == 128)  // with the code's sign: high | (codes & 0x80)
      highest = _mm512_ternarylogic_epi64(highest, codes, _mm512_set1_epi8(-128), 0xF8);
    const __m512i lowest = low(codes);
    store_words<Bytes, kStream>(dst, 0, _mm512_unpacklo_epi8(lowest, highest), share);
    store_words<Bytes, kStream>(dst, 1, _mm512_unpackhi_epi8(lowest, highest), share);
  }
};

// Packed 4-bit codes to float32: a dword a code, then a table of 16 floats.
template <bool kStream>
struct Decoder<4, 64, 4, kStream> {
  Decoder<4, 64, 4, false> general;
};

template <int Bits, int Size, int Bytes, bool kStream>
void decode_all(const DecodeTable &table, const uint8_t *src, uint8_t *dst, int64_t count) {
  const Decoder<Bits, Size, Bytes, kStream> decoder(table);
  in_steps(count, [&](int64_t first, auto share) { decoder(src + first * Bits / 8, dst + first * Bytes, share); });
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_CPU_AVX512_DECODE_H_
