// Sums of products of elements in blocks with scales, for the AVX-512 kernels alone.
// Layout: packed elements and stored scales in order; 512 elements of FP4 a step, 64 of the others.
// Trick: integers within a block are collapsed by packs and vpmaddwd to a lane a block, the scales permuted to match.
#ifndef DLFP4_SRC_PRODUCTS_AVX512_BLOCK_DOTS_H_
#define DLFP4_SRC_PRODUCTS_AVX512_BLOCK_DOTS_H_

#include "avx512_dots.h"

namespace dlfp4 {
namespace {

// --- FP4 by its stored scales ----------------------------------------------------------------

constexpr int64_t kBlocksStep = 512;  // elements
constexpr int kVectors = 4;           // of each side's elements

struct Products {
  __m512i part[kVectors];
};

// Vector i of a step's elements, `share` of the whole step.
__m512i load_part(const uint8_t *src, int i, Whole) { return _mm512_loadu_si512(src + 64 * i); }

__m512i load_part(const uint8_t *src, int i, Part part) {
  const __mmask64 kept = first_bytes(part.count / 2 - 64 * i);
  return kept ? _mm512_maskz_loadu_epi8(kept, src + 64 * i) : _mm512_setzero_si512();
}

template <class Share>
DLFP4_INLINE inline Products multiply(const Integers<DLFP4_float4_e2m1fn> &integers, const uint8_t *a, const uint8_t *b,
                                      Share share) {
  Products products;
  for (int i = 0; i < kVectors; ++i)
    products.part[i] = integers.nibbles(_mm512_setzero_si512(), load_part(a, i, share), load_part(b, i, share));
  return products;
}

// Lanes of a and of b, added in pairs: each 128 bits get first those of a, then those of b.
__m512i add_pairs(__m512i a, __m512i b) { return _mm512_madd_epi16(_mm512_packs_epi32(a, b), _mm512_set1_epi16(1)); }

template <int64_t kBlock>
__m256i load_scales(const uint8_t *src, Whole) {
  return kBlock == 16 ? _mm256_loadu_si256(reinterpret_cast<const __m256i *>(src))
                      : _mm256_zextsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i *>(src)));
}

template <int64_t kBlock>
__m256i load_scales(const uint8_t *src, Part part) {
  return _mm256_maskz_loadu_epi8(static_cast<__mmask32>(first_bytes(part.count / kBlock)), src);
}

template <class Step>
DLFP4_INLINE inline void in_block_steps(int64_t count, Step step) {
  int64_t first = 0;
  for (; count - first >= kBlocksStep; first += kBlocksStep) step(first, Whole());
  if (first < count) step(first, Part{count - first});
}

// Blocks of 16: after add_pairs, lane d of 128 bits l holds block 2 l + d of the first vector (d < 2), or of the
// second.
constexpr int block_of_16(int lane) { return 2 * (lane / 4) + lane % 2 + 8 * (lane % 4 / 2); }

// Bytes of 32 scales of a, then 32 of b, so that after unpacklo and unpackhi with their tables' other bytes lane i of a
// vector of words has the scales of its blocks in the step's first (even word) and second half.
constexpr Constant kScalesOf16 = make_constant([](int i) {
  const int lane = i / 16, half = i / 8 % 2, word = i % 8;
  return 32 * half + 16 * (word % 2) + block_of_16(4 * lane + word / 2);
});

double sum_two_level(const uint8_t *a, const uint8_t *a_scales, const uint8_t *b, const uint8_t *b_scales,
                     int64_t count) {
  const Integers<DLFP4_float4_e2m1fn> integers;
  const Bfloats<DLFP4_float8_e4m3fn> bfloats{};
  const __m512i order = load(kScalesOf16);
  __m512 sum0 = {}, sum1 = {};
  in_block_steps(count, [&](int64_t first, auto share) DLFP4_INLINE {
    const __m256i of_a = load_scales<16>(a_scales + first / 16, share);
    const __m256i of_b = load_scales<16>(b_scales + first / 16, share);
    const __m512i codes = _mm512_inserti64x4(_mm512_castsi256_si512(of_a), of_b, 1);
    const BfloatPair scales = bfloats(_mm512_permutexvar_epi8(order, codes));
    const __m512i left = reinterpret_cast<__m512i>(scales.first);
    const __m512 scales0 =
        _mm512_dpbf16_ps(__m512{}, reinterpret_cast<__m512bh>(_mm512_maskz_mov_epi16(0x55555555, left)), scales.second);
    const __m512 scales1 =
        _mm512_dpbf16_ps(__m512{}, reinterpret_cast<__m512bh>(_mm512_maskz_mov_epi16(0xAAAAAAAA, left)), scales.second);
    const Products p = multiply(integers, a + first / 2, b + first / 2, share);
    sum0 = _mm512_fmadd_ps(_mm512_cvtepi32_ps(add_pairs(p.part[0], p.part[1])), scales0, sum0);
    sum1 = _mm512_fmadd_ps(_mm512_cvtepi32_ps(add_pairs(p.part[2], p.part[3])), scales1, sum1);
  });
  return add_lanes(_mm512_add_ps(sum0, sum1)) / 4;
}

// Blocks of 32: after two add_pairs lane d of 128 bits l holds block 4 d + l.
__m128i order_of_32() { return _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15); }

// 2^(a + b - 254), as an exponent, of sums in quarters; NaN where a code is 0xFF.
__m512 exponents_of(__m128i a, __m128i b) {
  const __mmask16 nans = _mm_cmpeq_epi8_mask(a, _mm_set1_epi8(-1)) | _mm_cmpeq_epi8_mask(b, _mm_set1_epi8(-1));
  const __m512i sum = _mm512_add_epi32(_mm512_cvtepu8_epi32(a), _mm512_cvtepu8_epi32(b));
  const __m512 exponents = _mm512_cvtepi32_ps(_mm512_sub_epi32(sum, _mm512_set1_epi32(256)));
  return _mm512_mask_mov_ps(exponents, nans, _mm512_set1_ps(__builtin_nanf("")));
}

// Calls add(sums of 16 blocks of 32, as floats in quarters, a's scales, b's): the sums in order_of_32.
template <class Add>
DLFP4_INLINE inline void in_powers(const uint8_t *a, const uint8_t *a_scales, const uint8_t *b, const uint8_t *b_scales,
                                   int64_t count, Add add) {
  const Integers<DLFP4_float4_e2m1fn> integers;
  in_block_steps(count, [&](int64_t first, auto share) DLFP4_INLINE {
    const Products p = multiply(integers, a + first / 2, b + first / 2, share);
    const __m512i blocks = add_pairs(add_pairs(p.part[0], p.part[1]), add_pairs(p.part[2], p.part[3]));
    add(_mm512_cvtepi32_ps(blocks), _mm256_castsi256_si128(load_scales<32>(a_scales + first / 32, share)),
        _mm256_castsi256_si128(load_scales<32>(b_scales + first / 32, share)));
  });
}

double sum_power_by_any(const uint8_t *a, const uint8_t *a_scales, const uint8_t *b, const uint8_t *b_scales,
                        int64_t count) {
  __m512 sum = {};
  in_powers(a, a_scales, b, b_scales, count, [&](__m512 blocks, __m128i of_a, __m128i of_b) DLFP4_INLINE {
    const __m128i order = order_of_32();
    const __m512 exponents = exponents_of(_mm_shuffle_epi8(of_a, order), _mm_shuffle_epi8(of_b, order));
    sum = _mm512_add_ps(sum, _mm512_scalef_ps(blocks, exponents));
  });
  return add_lanes(sum);
}

double sum_power(const uint8_t *a, const uint8_t *a_scales, const uint8_t *b, const uint8_t *b_scales, int64_t count) {
  if (!are_plain_powers(a_scales, count / 32) || !are_plain_powers(b_scales, count / 32))
    return sum_power_by_any(a, a_scales, b, b_scales, count);
  __m512 sum = {};
  in_powers(a, a_scales, b, b_scales, count, [&](__m512 blocks, __m128i of_a, __m128i of_b) DLFP4_INLINE {
    const __m128i exponents = _mm_sub_epi8(_mm_add_epi8(of_a, of_b), _mm_set1_epi8(static_cast<char>(kQuarterBias)));
    const __m512i scales = _mm512_slli_epi32(_mm512_cvtepu8_epi32(_mm_shuffle_epi8(exponents, order_of_32())), 23);
    sum = _mm512_fmadd_ps(blocks, _mm512_castsi512_ps(scales), sum);
  });
  return add_lanes(sum);
}

// --- FP6 and FP8 by the products of their scales ---------------------------------------------

// The scales of a step's two halves: blocks are multiples of 32, and powers of two.
struct HalfScales {
  const float *scales;
  int64_t last;
  int shift;

  HalfScales(const float *all, int64_t count, int64_t block)
      : scales(all), last(count - 1), shift(__builtin_ctzll(static_cast<uint64_t>(block))) {}

  __m512 operator()(int64_t first) const { return _mm512_set1_ps(scales[(first < last ? first : last) >> shift]); }

  // Of the step from `first` on, a half in each half of the vector.
  __m512 both(int64_t first) const { return _mm512_mask_mov_ps((*this)(first), 0xFF00, (*this)(first + 32)); }
};

// Codes in order become words of which each 128 bits hold some of the same 16, so a lane sums four products of one half
// of a step: exactly where the elements are FP6, integers below 2^24 of their units.
template <int Key>
double sum_scaled(const uint8_t *a, const uint8_t *b, int64_t count, const float *scales) {
  constexpr int kRow = kBlockKeys[Key].element, kBits = kTypes[kRow].bits;
  const Bfloats<kRow> bfloats{};
  const HalfScales scale(scales, count, kBlockKeys[Key].length);
  return sum_steps<__m512, 64>(count, [&](__m512 sum, int64_t first, auto share) DLFP4_INLINE {
    const BfloatPair left = bfloats(load_codes<kBits, kInOrder>(a + first * kBits / 8, share));
    const BfloatPair right = bfloats(load_codes<kBits, kInOrder>(b + first * kBits / 8, share));
    const __m512 half = _mm512_dpbf16_ps(__m512{}, left.first, right.first);
    return _mm512_fmadd_ps(_mm512_dpbf16_ps(half, left.second, right.second), scale.both(first), sum);
  });
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_AVX512_BLOCK_DOTS_H_
