// Elements of scaled blocks: codes times scales to float32, bfloat16 and float16, for the AVX-512 kernels alone.
// Layout: codes packed along a line, or one a byte across lines; floats in order.
// Trick: the product is a float32; bfloat16 is rounded to in words, whose lower halves decide whether to carry.
#ifndef DLFP4_SRC_BLOCKS_AVX512_DECODE_H_
#define DLFP4_SRC_BLOCKS_AVX512_DECODE_H_

#include <string.h>

#include <type_traits>

#include "avx512_encode.h"
#include "codecs/avx512_decode.h"
#include "codecs/avx512_floats.h"
#include "host/simd/avx512.h"
#include "rules/numerics.h"

namespace dlfp4 {
namespace {

// --- Elements --------------------------------------------------------------------------------

// A step's elements as float32.
template <int Bits, int Size>
struct ElementTable {
  const Lookup<Size> high, low;

  explicit ElementTable(const DecodeTable &table) : high(table.high), low(table.low) {}

  template <class Share>
  Floats operator()(const uint8_t *src, Share share) const {
    const __m512i codes = load_run<Bits, kForWords>(src, share);
    __m512i highest = high(codes);
    if constexpr (Size == 128)  // with the code's sign: high | (codes & 0x80)
      highest = _mm512_ternarylogic_epi64(highest, codes, _mm512_set1_epi8(-128), 0xF8);
    const __m512i lowest = low(codes);
    const __m512i words[] = {_mm512_unpacklo_epi8(lowest, highest), _mm512_unpackhi_epi8(lowest, highest)};
    Floats floats;
    for (int i = 0; i < 4; ++i) floats.part[i] = _mm512_castsi512_ps(widen<4>(words[i / 2], i % 2));
    return floats;
  }
};

// Packed 4-bit codes: 16 of them are spread to a dword each, which index a table of 16 floats.
struct NibbleTable {
  __m512 floats;

  explicit NibbleTable(const DecodeTable &table) {
    const __m128i high = _mm_load_si128(reinterpret_cast<const __m128i *>(table.high));
    const __m128i low = _mm_load_si128(reinterpret_cast<const __m128i *>(table.low));
    floats = widen_bfloat16(_mm256_set_m128i(_mm_unpackhi_epi8(low, high), _mm_unpacklo_epi8(low, high)));
  }

  __m512 look_up(__m512i nibbles) const {
    return _mm512_permutexvar_ps(_mm512_multishift_epi64_epi8(load(kNibblesToDwords), nibbles), floats);
  }

  Floats operator()(const uint8_t *src, Whole) const {
    Floats result;
    for (int i = 0; i < 4; ++i) {
      int64_t nibbles;
      memcpy(&nibbles, src + 8 * i, sizeof(nibbles));
      result.part[i] = look_up(_mm512_set1_epi64(nibbles));
    }
    return result;
  }

  Floats operator()(const uint8_t *src, Part part) const {
    const __m512i bytes = load_bytes<4>(src, part);
    Floats result;
    for (int i = 0; i < 4; ++i) result.part[i] = look_up(_mm512_permutexvar_epi64(_mm512_set1_epi64(i), bytes));
    return result;
  }
};

// --- To 16 bits ------------------------------------------------------------------------------

template <int First>
constexpr Constant kEveryOtherWord = make_constant([](int i) { return i % 2 ? 0 : i + First; });

// To nearest, ties to even; a NaN must have no payload in its lower half.
__m512i round_to_bfloat16(__m512 low, __m512 high) {
  const __m512i a = _mm512_castps_si512(low), b = _mm512_castps_si512(high), one = _mm512_set1_epi16(1);
  const __m512i upper = _mm512_permutex2var_epi16(a, load(kEveryOtherWord<1>), b);
  const __m512i lower = _mm512_permutex2var_epi16(a, load(kEveryOtherWord<0>), b);
  const __m512i rest = _mm512_adds_epu16(lower, _mm512_and_si512(upper, one));
  return _mm512_mask_add_epi16(upper, _mm512_cmpgt_epu16_mask(rest, _mm512_set1_epi16(-0x8000)), upper, one);
}

template <int Dst>
__m512i round_to_halves(__m512 low, __m512 high) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  if constexpr (Dst == DLFP4_bfloat16) return round_to_bfloat16(low, high);
  return join(_mm512_cvt_roundps_ph(low, kNearest), _mm512_cvt_roundps_ph(high, kNearest));
}

// --- Kernels ---------------------------------------------------------------------------------

// An infinite element times a scale of zero is the positive NaN; the processor's has a sign.
__attribute__((noinline)) Floats clear_new_nans(const Floats &products, const Floats &elements) {
  Floats result;
  for (int i = 0; i < 4; ++i) {
    const __mmask16 made = nans_of(products.part[i]) & ~nans_of(elements.part[i]);
    result.part[i] = _mm512_mask_mov_ps(products.part[i], made, all_floats(kFloatNan));
  }
  return result;
}

template <int Dst, class Share>
void store_products(const Floats &products, uint8_t *dst, Share share) {
  if constexpr (Dst == DLFP4_float32) {
    store_floats<DLFP4_float32>(products, dst, share, false);
  } else {
    for (int i = 0; i < 2; ++i)
      store_vector<2>(dst, 64 * i, round_to_halves<Dst>(products.part[2 * i], products.part[2 * i + 1]), share, false);
  }
}

template <int Bits, int Dst, bool kHasInfinities, class Elements, class Factors>
__attribute__((noinline)) void decode_scaled(const DecodeTable &table, const uint8_t *src, int64_t count,
                                             const Factors &all_factors, uint8_t *dst) {
  constexpr int kBytes = kFormats[Dst].bits / 8;
  const Elements elements_of(table);
  const Factors factors = all_factors;
  in_steps(count, [&](int64_t first, auto share) {
    const Floats elements = elements_of(src + first * Bits / 8, share);
    Floats products;
    for (int i = 0; i < 4; ++i) products.part[i] = _mm512_mul_ps(elements.part[i], factors(first, i, share));
    if (kHasInfinities && __builtin_expect(has_nan(products), 0)) products = clear_new_nans(products, elements);
    store_products<Dst>(products, dst + first * kBytes, share);
  });
}

template <int Src, int Dst, bool kPacked, class Factors>
void decode_elements(const uint8_t *src, int64_t count, const Factors &factors, uint8_t *dst) {
  static constexpr DecodeTable kTable = make_decode_table<Src, DLFP4_float32>();
  constexpr int kBits = kPacked ? kFormats[Src].bits : 8;
  constexpr int kSize = kFormats[Src].bits < 8 ? 64 : is_symmetric(kTable) ? 128 : 256;
  using Elements = std::conditional_t<kBits == 4, NibbleTable, ElementTable<kBits, kSize>>;
  decode_scaled<kBits, Dst, kFormats[Src].specials == DLFP4_IEEE, Elements>(kTable, src, count, factors, dst);
}

template <int Src, int Dst>
void decode_blocks(const uint8_t *src, int64_t count, int64_t block, const float *scales, uint8_t *dst) {
  constexpr int kSrcBits = kFormats[Src].bits, kDstBytes = kFormats[Dst].bits / 8;
  const int64_t run = are_walked_at_once(block, count) ? count : block;
  for (int64_t first = 0; first < count; first += run, ++scales) {
    const int64_t elements = count - first < run ? count - first : run;
    decode_elements<Src, Dst, true>(src + first * kSrcBits / 8, elements, BlockFactors(scales, block, elements),
                                    dst + first * kDstBytes);
  }
}

template <int Src, int Dst>
void decode_across(const uint8_t *codes, int64_t count, const float *scales, uint8_t *dst) {
  decode_elements<Src, Dst, false>(codes, count, ElementFactors{scales}, dst);
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_BLOCKS_AVX512_DECODE_H_
