// The AVX2 level's kernels for products: dots of every type (avx2_dots.h, vector_dots.h), FP4 in blocks, tiles, lines.
// Layout: as in kernels.h; 32 bytes a vector.
// Trick: of a panel's columns eight make a vector; products of integers are summed in words as long as these hold them.
#include <utility>

#include "avx2_lines.h"

namespace dlfp4 {
namespace {

// --- Tiles -----------------------------------------------------------------------------------

constexpr int kVectors = kColumns / 8;

void add_to(double *totals, __m256 sums) {
  const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(sums));
  const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(sums, 1));
  _mm256_storeu_pd(totals, _mm256_add_pd(_mm256_loadu_pd(totals), low));
  _mm256_storeu_pd(totals + 4, _mm256_add_pd(_mm256_loadu_pd(totals + 4), high));
}

template <int kRows>
void multiply_some_floats(const float *panel, const float *x, int64_t pitch, int64_t depth, double *totals) {
  __m256 sums[kRows][kVectors] = {};
  for (int64_t k = 0; k < depth; ++k, panel += kColumns)
    for (int i = 0; i < kRows; ++i) {
      const __m256 value = _mm256_set1_ps(x[i * pitch + k]);
      for (int v = 0; v < kVectors; ++v) sums[i][v] = _mm256_fmadd_ps(_mm256_load_ps(panel + 8 * v), value, sums[i][v]);
    }
  for (int i = 0; i < kRows; ++i)
    for (int v = 0; v < kVectors; ++v) add_to(totals + i * kColumns + 8 * v, sums[i][v]);
}

void multiply_floats(const float *panel, const float *x, int64_t pitch, int64_t depth, int64_t rows, double *totals) {
  constexpr int kMost = 3;
  for (; rows >= kMost; rows -= kMost, x += kMost * pitch, totals += kMost * kColumns)
    multiply_some_floats<kMost>(panel, x, pitch, depth, totals);
  for (; rows > 0; --rows, x += pitch, totals += kColumns) multiply_some_floats<1>(panel, x, pitch, depth, totals);
}

struct Square {
  __m256i row[8];
};

// Dword j of row i becomes dword i of row j.
DLFP4_ALWAYS_INLINE inline Square transpose(const Square &square) {
  const __m256i *const r = square.row;
  Square pairs, fours, result;
  for (int i = 0; i < 8; i += 2) {
    pairs.row[i] = _mm256_unpacklo_epi32(r[i], r[i + 1]);
    pairs.row[i + 1] = _mm256_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 2; ++j) {
      fours.row[i + 2 * j] = _mm256_unpacklo_epi64(pairs.row[i + j], pairs.row[i + j + 2]);
      fours.row[i + 2 * j + 1] = _mm256_unpackhi_epi64(pairs.row[i + j], pairs.row[i + j + 2]);
    }
  for (int i = 0; i < 4; ++i) {
    result.row[i] = _mm256_permute2x128_si256(fours.row[i], fours.row[i + 4], 0x20);
    result.row[i + 4] = _mm256_permute2x128_si256(fours.row[i], fours.row[i + 4], 0x31);
  }
  return result;
}

// Eight lines of 64 packed codes at most to 16 vectors of the panel: even and odd codes of each octet.
void pack_eight(const uint8_t *const *codes, int64_t lines, int64_t first, int64_t octets, uint8_t *panel) {
  const __m256i values = load(kOffsetValues), low = _mm256_set1_epi8(15);
  Square square;
  for (int i = 0; i < 8; ++i) {
    uint8_t line[32] = {};
    if (i < lines) memcpy(line, codes[i] + 4 * first, static_cast<size_t>(octets) * 4);
    square.row[i] = load_32_bytes(line);
  }
  square = transpose(square);
  for (int64_t j = 0; j < octets; ++j) {
    const __m256i even = _mm256_and_si256(square.row[j], low);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi16(square.row[j], 4), low);
    uint8_t *const to = panel + (first + j) * 8 * kColumns;
    _mm256_store_si256(reinterpret_cast<__m256i *>(to), _mm256_shuffle_epi8(values, even));
    _mm256_store_si256(reinterpret_cast<__m256i *>(to + 4 * kColumns), _mm256_shuffle_epi8(values, odd));
  }
}

void pack_integers(const uint8_t *const *codes, int64_t lines, int64_t depth, uint8_t *panel) {
  for (int64_t octet = 0; octet < depth / 8; octet += 8) {
    const int64_t octets = depth / 8 - octet < 8 ? depth / 8 - octet : 8;
    for (int64_t c = 0; c < kColumns; c += 8) pack_eight(codes + c, lines - c, octet, octets, panel + 4 * c);
  }
}

// 16 positions of a row times 8 columns each: sums of 16 bits hold 4 * 2 * 24 * 127.
DLFP4_ALWAYS_INLINE inline void add_sixteen(const uint8_t *panel, const int8_t *x, __m256i (&sums)[kVectors]) {
  __m256i words[kVectors] = {};
  for (int quad = 0; quad < 4; ++quad) {
    int value;
    memcpy(&value, x + 4 * quad, sizeof(value));
    const __m256i values = _mm256_set1_epi32(value);
    for (int v = 0; v < kVectors; ++v)
      words[v] =
          _mm256_add_epi16(words[v], _mm256_maddubs_epi16(load_32_bytes(panel + 4 * kColumns * quad + 32 * v), values));
  }
  for (int v = 0; v < kVectors; ++v) sums[v] = _mm256_add_epi32(sums[v], add_pairs(words[v]));
}

template <bool kFar>
void multiply_blocks(const uint8_t *panel, const float *scales, const IntegerRows &x, int64_t block, int64_t depth,
                     int64_t rows, double *totals) {
  for (int64_t i = 0; i < rows; ++i, totals += kColumns) {
    __m256 sums[kVectors] = {};
    for (int64_t b = 0; b < depth / block; ++b) {
      __m256i products[kVectors];
      for (__m256i &product : products) product = _mm256_set1_epi32(x.corrections[i * x.block_pitch + b]);
      for (int64_t k = b * block; k < (b + 1) * block; k += 16)
        add_sixteen(panel + k * kColumns, x.values + i * x.pitch + k, products);
      const __m256 scale = _mm256_set1_ps(x.scales[i * x.block_pitch + b]);
      for (int v = 0; v < kVectors; ++v) {
        const __m256 column_scales = _mm256_load_ps(scales + b * kColumns + 8 * v);
        sums[v] = add_scaled<kFar>(_mm256_cvtepi32_ps(products[v]), column_scales, scale, sums[v]);
      }
    }
    for (int v = 0; v < kVectors; ++v) add_to(totals + 8 * v, sums[v]);
  }
}

void multiply_integers(const uint8_t *panel, const float *scales, const IntegerRows &x, int64_t block, int64_t depth,
                       int64_t rows, const Ahead &, double *totals) {
  const auto multiply = are_far(scales, depth / block * kColumns) ? multiply_blocks<true> : multiply_blocks<false>;
  multiply(panel, scales, x, block, depth, rows, totals);
}

// --- The table -------------------------------------------------------------------------------

template <int Row>
void add_sums(ProductKernels *kernels) {
  constexpr int kBits = kTypes[Row].bits;
  if constexpr (is_summed_as_float(Row)) {
    kernels->sum_floats[Row] = sum_floats<Avx2Dots, Row>;
  } else if constexpr (Row == DLFP4_int8 || Row == DLFP4_uint8) {
    kernels->sum_integers[Row][0] = sum_whole<is_signed_integer(Row)>;
  } else if constexpr (is_integer(Row)) {
    kernels->sum_integers[Row][0] = sum_bytes<Row, 8>;
    if constexpr (kBits == 4) kernels->sum_integers[Row][1] = sum_nibbles<Row>;
    if constexpr (kBits == 2 || kBits == 6) kernels->sum_integers[Row][1] = sum_bytes<Row, kBits>;
  }
}

template <int Key, int64_t kBlock>
void add_fp4(ProductKernels *kernels) {
  if constexpr (is_fp4(kBlockKeys[Key], DLFP4_float8_e4m3fn, kBlock)) {
    kernels->sum_blocks[Key] = sum_two_level<kBlock>;
    kernels->lines.multiply_rounded[Key] = multiply_rounded<DLFP4_float8_e4m3fn, kBlock>;
  }
  if constexpr (is_fp4(kBlockKeys[Key], DLFP4_float8_e8m0fnu, kBlock)) {
    kernels->sum_blocks[Key] = sum_power<kBlock>;
    kernels->lines.multiply_rounded[Key] = multiply_rounded<DLFP4_float8_e8m0fnu, kBlock>;
  }
}

template <int Key>
void add_key(ProductKernels *kernels) {
  add_scaled_sum<Avx2Dots, Key>(kernels);
  add_fp4<Key, 16>(kernels);
  add_fp4<Key, 32>(kernels);
}

template <int... Row, int... Key>
void add_kernels(ProductKernels *kernels, std::integer_sequence<int, Row...>, std::integer_sequence<int, Key...>) {
  (add_sums<Row>(kernels), ...);
  (add_key<Key>(kernels), ...);
  kernels->tiles.multiply_floats = multiply_floats;
  kernels->tiles.pack_integers = pack_integers;
  kernels->tiles.multiply_integers = multiply_integers;
  kernels->lines.spread_codes = spread_codes;
  kernels->lines.most_rounded_rows = 24;
  kernels->lines.most_float_rows = 24;
  kernels->lines.multiply_floats = multiply_float_lines<Avx2Dots>;
  (add_codes<Avx2Dots, Row>(&kernels->lines), ...);
}

}  // namespace

void add_avx2_products(ProductKernels *kernels) {
  add_kernels(kernels, std::make_integer_sequence<int, DLFP4_NUM_DTYPES>(),
              std::make_integer_sequence<int, kNumKeys>());
}

}  // namespace dlfp4
