// Elements of scaled blocks: floats times multipliers to codes, for the AVX-512 kernels alone.
// Layout: floats in order; codes packed along a line, or one a byte across lines.
// Trick: the encoders of plain conversions round the products.
#ifndef DLFP4_SRC_BLOCKS_AVX512_ENCODE_H_
#define DLFP4_SRC_BLOCKS_AVX512_ENCODE_H_

#include "codecs/avx512_encode.h"
#include "codecs/avx512_floats.h"
#include "host/simd/avx512.h"
#include "kernels.h"
#include "rules/numerics.h"

namespace dlfp4 {
namespace {

// --- Factors ---------------------------------------------------------------------------------

// Those of blocks of 16 << shift elements each, or of one block of `count`.
struct BlockFactors {
  static constexpr int kAhead = 4096;  // elements to prefetch: two runs of quantize.cpp, the next of which is there
  const float *factors;
  int shift;
  int64_t last;  // of the elements' sixteens

  BlockFactors(const float *of_blocks, int64_t block, int64_t count)
      : factors(of_blocks), shift(block >= count ? 62 : __builtin_ctzll(block) - 4), last((count - 1) / 16) {}

  // Of 16 elements of a step, the part `part`.
  __m512 operator()(int64_t first, int part, Whole) const {
    return _mm512_set1_ps(factors[(first / 16 + part) >> shift]);
  }

  __m512 operator()(int64_t first, int part, Part) const {
    const int64_t sixteen = first / 16 + part;
    return _mm512_set1_ps(factors[(sixteen < last ? sixteen : last) >> shift]);
  }
};

// One for each element.
struct ElementFactors {
  static constexpr int kAhead = 0;  // what comes next is for the caller to know
  const float *factors;

  template <class Share>
  __m512 operator()(int64_t first, int part, Share share) const {
    return _mm512_castsi512_ps(load_vector<4>(reinterpret_cast<const uint8_t *>(factors + first), 64 * part, share));
  }
};

// Blocks of 16, 32, 64 ... elements, or a single one, are walked at once; others one by one.
constexpr bool are_walked_at_once(int64_t block, int64_t count) { return block >= count || (block & (block - 1)) == 0; }

// --- Encoding --------------------------------------------------------------------------------

template <int Src, int DstBits, class CodesOf, class Factors>
__attribute__((noinline)) void encode_scaled(const CodesOf &codes_of, const uint8_t *src, int64_t count,
                                             const Factors &all_factors, uint8_t *dst, float zero) {
  constexpr int kSrcBytes = kFormats[Src].bits / 8;
  const CodesOf local = codes_of;
  const Factors factors = all_factors;
  const __m512 addend = _mm512_set1_ps(zero);
  in_steps(count, [&](int64_t first, auto share) {
    if constexpr (Factors::kAhead > 0)
      prefetch<kCodes * kSrcBytes, Factors::kAhead * kSrcBytes>(src + first * kSrcBytes, share);
    Floats floats = load_floats<Src>(src + first * kSrcBytes, share, round_to_odd);
    for (int i = 0; i < 4; ++i)
      floats.part[i] = _mm512_add_ps(_mm512_mul_ps(floats.part[i], factors(first, i, share)), addend);
    store_codes<DstBits>(dst + first * DstBits / 8, local(floats), share, false);
  });
}

// Calls run(encoder) for a mode and a format of elements.
template <int Rounding, int Dst, class Run>
void with_encoder(Run run) {
  constexpr Format kTo = kFormats[Dst];
  constexpr int kIndex = mode_index(static_cast<dlfp4_rounding>(Rounding), true), kSums = largest_sum(kTo) + 1;
  if constexpr (kSums <= 256) {
    constexpr int kSize = kSums <= 64 ? 64 : 256;
    run(GridEncoder<kTo.bits, kSize>(kRules<GridRule<kSize>, Dst>.rule[kIndex]));
  } else {
    constexpr bool kSignsZeros = kTo.specials != DLFP4_FNUZ;
    run(Encoder<kTo.bits, kSignsZeros, static_cast<dlfp4_rounding>(Rounding)>(kRules<EncodeRule, Dst>.rule[kIndex]));
  }
}

template <int Rounding, int Src, int Dst>
void encode_blocks(const uint8_t *src, int64_t count, int64_t block, const float *multipliers, uint8_t *dst,
                   const BlockMode &mode) {
  constexpr int kSrcBytes = kFormats[Src].bits / 8, kBits = kFormats[Dst].bits;
  with_encoder<Rounding, Dst>([&](const auto &encoder) {
    const int64_t run = are_walked_at_once(block, count) ? count : block;
    for (int64_t first = 0; first < count; first += run, ++multipliers) {
      const int64_t elements = count - first < run ? count - first : run;
      encode_scaled<Src, kBits>(encoder, src + first * kSrcBytes, elements, BlockFactors(multipliers, block, elements),
                                dst + first * kBits / 8, mode.zero);
    }
  });
}

template <int Rounding, int Src, int Dst>
void encode_across(const uint8_t *src, int64_t count, const float *multipliers, uint8_t *codes, const BlockMode &mode) {
  with_encoder<Rounding, Dst>([&](const auto &encoder) {
    encode_scaled<Src, 8>(encoder, src, count, ElementFactors{multipliers}, codes, mode.zero);
  });
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_BLOCKS_AVX512_ENCODE_H_
