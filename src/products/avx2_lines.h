// A line of FP4 times few rows of integers, for the AVX2 kernels alone.
// Layout: codes and scales as they lie; rows in the order of spread_rounded and spread_block; 512 positions a step.
// Trick: values have an offset, so that vpmaddubsw takes them; sums of blocks are left in the order of spread_block.
#ifndef DLFP4_SRC_PRODUCTS_AVX2_LINES_H_
#define DLFP4_SRC_PRODUCTS_AVX2_LINES_H_

#include "avx2_block_dots.h"
#include "vector_lines.h"

namespace dlfp4 {
namespace {

constexpr Constant kOffsetValues = make_constant(
    [](int i) { return kIntegerOffset + integer_of(DLFP4_float4_e2m1fn, static_cast<uint64_t>(i % 16)); });

// --- Sums of blocks --------------------------------------------------------------------------

// The values of 64 codes, and where a row's integers for them lie: vector i of a step.
struct OffsetValues {
  __m256i even, odd;
  int64_t at;

  OffsetValues(const uint8_t *codes, int i) : at(i / 2 * kSpread + i % 2 * 32) {
    const __m256i pairs = load_32_bytes(codes + 32 * i);
    even = Avx2::look_up(kOffsetValues, _mm256_and_si256(pairs, all_bytes(15)));
    odd = Avx2::look_up(kOffsetValues, _mm256_and_si256(_mm256_srli_epi16(pairs, 4), all_bytes(15)));
  }

  // Four products in each word: at most 4 * 24 * 127, twice which a word holds.
  DLFP4_ALWAYS_INLINE __m256i multiply(const int8_t *row) const {
    const auto load_row = [=](int64_t i) { return load_32_bytes(reinterpret_cast<const uint8_t *>(row + at + i)); };
    return _mm256_add_epi16(_mm256_maddubs_epi16(even, load_row(0)), _mm256_maddubs_epi16(odd, load_row(kSpread / 2)));
  }
};

// Of vectors i and i + 2, a sum of 16 products in each dword.
struct PairOfVectors {
  OffsetValues first, second;

  PairOfVectors(const uint8_t *codes, int i) : first(codes, i), second(codes, i + 2) {}

  DLFP4_ALWAYS_INLINE __m256i multiply(const int8_t *row) const {
    return add_pairs(_mm256_hadd_epi16(first.multiply(row), second.multiply(row)));
  }
};

// Of a step's blocks, eight sums at a time.
template <int64_t kBlock>
struct EightBlocks;

template <>
struct EightBlocks<16> {
  const PairOfVectors pair;

  EightBlocks(const uint8_t *codes, int i) : pair(codes, i / 2 * 4 + i % 2) {}

  DLFP4_ALWAYS_INLINE __m256i multiply(const int8_t *row) const { return pair.multiply(row); }
};

template <>
struct EightBlocks<32> {
  const PairOfVectors low, high;

  EightBlocks(const uint8_t *codes, int i) : low(codes, i), high(codes, i + 4) {}

  DLFP4_ALWAYS_INLINE __m256i multiply(const int8_t *row) const {
    return _mm256_hadd_epi32(low.multiply(row), high.multiply(row));
  }
};

// --- Their scales ----------------------------------------------------------------------------

constexpr int block_at(int lane, int64_t block) {
  int64_t b = 0;
  while (spread_block(b, block) != lane) ++b;
  return static_cast<int>(b);
}

template <int64_t kBlock>
constexpr Constant kBlocksInOrder = make_constant([](int i) { return block_at(i % 16, kBlock); });

// Scales of 16 blocks, in order; those of lanes 8 * i on come first.
template <int64_t kBlock>
__m128i order_scales(const uint8_t *stored, int64_t i) {
  const __m128i order = _mm256_castsi256_si128(load(kBlocksInOrder<kBlock>));
  const __m128i scales = _mm_shuffle_epi8(load_16_bytes(stored), order);
  return i == 0 ? scales : _mm_unpackhi_epi64(scales, scales);
}

// What those of sums 8 * i on are worth.
template <int Scale, int64_t kBlock>
DLFP4_ALWAYS_INLINE inline __m256 decode_eight(const uint8_t *stored, int i) {
  static_assert(Scale == DLFP4_float8_e4m3fn || Scale == DLFP4_float8_e8m0fnu, "scales that are decoded here");
  const __m128i codes = order_scales<kBlock>(stored + i / 2 * 16, i % 2);
  if constexpr (Scale == DLFP4_float8_e4m3fn) return decode_e4m3(_mm_cvtepu8_epi16(codes));
  return decode_e8m0(_mm256_cvtepu8_epi32(codes));
}

// --- Lines -----------------------------------------------------------------------------------

void spread_codes(const uint8_t *codes, int64_t count, int8_t *x) {
  in_steps_of_line<kSpread, 4>(codes, count, [=](const uint8_t *src, int64_t first) DLFP4_ALWAYS_INLINE {
    for (int i = 0; i < 2; ++i) {
      const __m256i pairs = load_32_bytes(src + 32 * i);
      __m256i *const place = reinterpret_cast<__m256i *>(x + first + 32 * i);
      _mm256_storeu_si256(place, Fp4::look_up(Fp4::kValues, pairs));
      _mm256_storeu_si256(place + 2, Fp4::look_up(Fp4::kValues, _mm256_srli_epi16(pairs, 4)));
    }
  });
}

// Calls step(codes, scales, position) for 512 positions at a time, the last ones followed by zeros.
template <int64_t kBlock, class Step>
DLFP4_ALWAYS_INLINE inline void in_rounded_steps(const uint8_t *codes, const uint8_t *scales, int64_t count,
                                                 Step step) {
  int64_t first = 0;
  for (; count - first >= kRoundedStep; first += kRoundedStep) step(codes + first / 2, scales + first / kBlock, first);
  if (first == count) return;
  uint8_t last[kRoundedStep / 2] = {}, of_last[kRoundedStep / kBlock] = {};
  memcpy(last, codes + first / 2, static_cast<size_t>((count - first) / 2));
  memcpy(of_last, scales + first / kBlock, static_cast<size_t>((count - first) / kBlock));
  step(last, of_last, first);
}

template <int Scale, int64_t kBlock>
void multiply_rounded(const uint8_t *codes, const uint8_t *scales, const IntegerRows &x, int64_t count, int64_t rows,
                      double *totals) {
  constexpr bool kFar = Scale == DLFP4_float8_e8m0fnu;
  in_fours(rows, [&](auto some, int64_t row) {
    __m256 sums[some()] = {};
    in_rounded_steps<kBlock>(
        codes, scales, count, [&](const uint8_t *src, const uint8_t *stored, int64_t first) DLFP4_ALWAYS_INLINE {
          for (int i = 0; i < kRoundedStep / kBlock / 8; ++i) {
            const EightBlocks<kBlock> blocks(src, i);
            const __m256 scales = decode_eight<Scale, kBlock>(stored, i);
            for (int r = 0; r < some(); ++r) {
              const int64_t at = (row + r) * x.block_pitch + first / kBlock + 8 * i;
              const __m256i corrections = load_32_bytes(reinterpret_cast<const uint8_t *>(x.corrections + at));
              const __m256i sum =
                  _mm256_add_epi32(blocks.multiply(x.values + (row + r) * x.pitch + first), corrections);
              const __m256 of_row = _mm256_loadu_ps(x.scales + at);
              sums[r] = add_scaled<kFar>(_mm256_cvtepi32_ps(sum), scales, of_row, sums[r]);
            }
          }
        });
    for (int r = 0; r < some(); ++r) totals[(row + r) * kColumns] += add_lanes(sums[r]);
  });
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_AVX2_LINES_H_
