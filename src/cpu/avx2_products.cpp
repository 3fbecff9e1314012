// The AVX2 level's kernels for products: dots of every type (avx2_dots.h, vector_dots.h), FP4 in blocks, tiles, lines.
// Layout: as in product_kernels.h; 32 bytes a vector.
// Trick: sums of blocks are collapsed in the order in which lanes leave them, and scales are put into that order.
#include <utility>

#include "avx2_dots.h"

namespace dlfp4 {
namespace {

using Fp4 = Nibble<DLFP4_float4_e2m1fn>;

__m256i multiply_fp4(const uint8_t *a, const uint8_t *b) { return Fp4::nibbles(load_32_bytes(a), load_32_bytes(b)); }

// --- FP4 in blocks ---------------------------------------------------------------------------

// Eight codes of float8_e4m3fn in the low bytes of words, as floats.
__m256 decode_e4m3(__m128i codes) {
  const __m128i sign = _mm_slli_epi16(_mm_and_si128(codes, _mm_set1_epi16(0x80)), 8);
  const __m128i magnitude = _mm_and_si128(codes, _mm_set1_epi16(0x7F));
  const __m128i nan = _mm_and_si128(_mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7F)), _mm_set1_epi16(0x7C00));
  const __m128i half = _mm_or_si128(_mm_or_si128(sign, nan), _mm_slli_epi16(magnitude, 7));
  return _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256));
}

// Eight codes of float8_e8m0fnu.
__m256 decode_e8m0(__m256i codes) {
  const __m256i lowest =
      _mm256_and_si256(_mm256_cmpeq_epi32(codes, _mm256_setzero_si256()), _mm256_set1_epi32(1 << 22));
  const __m256i nan = _mm256_cmpeq_epi32(codes, _mm256_set1_epi32(255));
  const __m256i quiet = _mm256_and_si256(nan, _mm256_set1_epi32(1 << 22));
  return _mm256_castsi256_ps(_mm256_or_si256(_mm256_slli_epi32(codes, 23), _mm256_or_si256(lowest, quiet)));
}

__m128i load_eight(const uint8_t *src) { return _mm_loadl_epi64(reinterpret_cast<const __m128i *>(src)); }

// Calls step(a, a's scales, b, b's scales) for eight blocks at a time, the last ones followed by zeros.
template <int64_t kBlock, class Step>
DLFP4_ALWAYS_INLINE inline void each_eight(const uint8_t *a, const uint8_t *a_scales, const uint8_t *b,
                                           const uint8_t *b_scales, int64_t count, Step step) {
  constexpr int64_t kStep = 8 * kBlock;
  int64_t first = 0;
  for (; count - first >= kStep; first += kStep)
    step(a + first / 2, a_scales + first / kBlock, b + first / 2, b_scales + first / kBlock);
  if (first == count) return;
  uint8_t left[kStep / 2] = {}, right[kStep / 2] = {}, of_left[8] = {}, of_right[8] = {};
  const size_t bytes = static_cast<size_t>(count - first) / 2, blocks = static_cast<size_t>((count - first) / kBlock);
  memcpy(left, a + first / 2, bytes);
  memcpy(right, b + first / 2, bytes);
  memcpy(of_left, a_scales + first / kBlock, blocks);
  memcpy(of_right, b_scales + first / kBlock, blocks);
  step(left, of_left, right, of_right);
}

// After pairs are added, 128 bits l hold blocks 2 l, 2 l + 1 of the first vector, then of the second.
double sum_two_level(const uint8_t *a, const uint8_t *a_scales, const uint8_t *b, const uint8_t *b_scales,
                     int64_t count) {
  const __m128i order = _mm_setr_epi8(0, -1, 1, -1, 4, -1, 5, -1, 2, -1, 3, -1, 6, -1, 7, -1);
  __m256 sums = _mm256_setzero_ps();
  each_eight<16>(a, a_scales, b, b_scales, count,
                 [&](const uint8_t *x, const uint8_t *x_scales, const uint8_t *y, const uint8_t *y_scales)
                     DLFP4_ALWAYS_INLINE {
                       const __m256i first = add_pairs(multiply_fp4(x, y));
                       const __m256i second = add_pairs(multiply_fp4(x + 32, y + 32));
                       const __m256 blocks = _mm256_cvtepi32_ps(add_pairs(_mm256_packs_epi32(first, second)));
                       const __m256 scales = _mm256_mul_ps(decode_e4m3(_mm_shuffle_epi8(load_eight(x_scales), order)),
                                                           decode_e4m3(_mm_shuffle_epi8(load_eight(y_scales), order)));
                       sums = _mm256_fmadd_ps(blocks, scales, sums);
                     });
  return add_lanes(sums) / 4;
}

// 128 bits l hold block l of each of four vectors. The smaller scale goes first: what it makes is exact, or finite.
double sum_power(const uint8_t *a, const uint8_t *a_scales, const uint8_t *b, const uint8_t *b_scales, int64_t count) {
  const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, -1, -1, -1, -1, -1, -1, -1, -1);
  __m256 sums = _mm256_setzero_ps();
  each_eight<32>(a, a_scales, b, b_scales, count,
                 [&](const uint8_t *x, const uint8_t *x_scales, const uint8_t *y, const uint8_t *y_scales)
                     DLFP4_ALWAYS_INLINE {
                       const __m256i p0 = multiply_fp4(x, y), p1 = multiply_fp4(x + 32, y + 32);
                       const __m256i p2 = multiply_fp4(x + 64, y + 64), p3 = multiply_fp4(x + 96, y + 96);
                       const __m256i words = _mm256_hadd_epi16(_mm256_hadd_epi16(p0, p1), _mm256_hadd_epi16(p2, p3));
                       const __m256i left = _mm256_cvtepu8_epi32(_mm_shuffle_epi8(load_eight(x_scales), order));
                       const __m256i right = _mm256_cvtepu8_epi32(_mm_shuffle_epi8(load_eight(y_scales), order));
                       const __m256 whole = _mm256_mul_ps(_mm256_cvtepi32_ps(add_pairs(words)), _mm256_set1_ps(0.25f));
                       const __m256 blocks = _mm256_mul_ps(whole, decode_e8m0(_mm256_min_epu32(left, right)));
                       sums = _mm256_fmadd_ps(blocks, decode_e8m0(_mm256_max_epu32(left, right)), sums);
                     });
  return add_lanes(sums);
}

constexpr Constant kOffsetValues = make_constant(
    [](int i) { return kIntegerOffset + integer_of(DLFP4_float4_e2m1fn, static_cast<uint64_t>(i % 16)); });

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

// A decoded line by some rows: of one alone, two sums would wait for each other.
template <int kRows>
void multiply_some_rows(const float *line, const float *x, int64_t pitch, int64_t count, double *totals) {
  constexpr int kSums = kRows == 1 ? 4 : 2;
  __m256 sums[kRows][kSums] = {};
  for (int64_t k = 0; k < count; k += 8 * kSums)
    for (int i = 0; i < kSums; ++i) {
      const __m256 values = _mm256_loadu_ps(line + k + 8 * i);
      for (int r = 0; r < kRows; ++r)
        sums[r][i] = _mm256_fmadd_ps(values, _mm256_loadu_ps(x + r * pitch + k + 8 * i), sums[r][i]);
    }
  for (int r = 0; r < kRows; ++r) {
    for (int i = 1; i < kSums; ++i) sums[r][0] = _mm256_add_ps(sums[r][0], sums[r][i]);
    totals[r * kColumns] += add_lanes(sums[r][0]);
  }
}

void multiply_rows(const float *line, const float *x, int64_t pitch, int64_t count, int64_t rows, double *totals) {
  constexpr int kMost = 4;
  for (; rows >= kMost; rows -= kMost, x += kMost * pitch, totals += kMost * kColumns)
    multiply_some_rows<kMost>(line, x, pitch, count, totals);
  if (rows == 3) return multiply_some_rows<3>(line, x, pitch, count, totals);
  if (rows == 2) return multiply_some_rows<2>(line, x, pitch, count, totals);
  if (rows == 1) multiply_some_rows<1>(line, x, pitch, count, totals);
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

void multiply_integers(const uint8_t *panel, const float *scales, const IntegerRows &x, int64_t block, int64_t depth,
                       int64_t rows, const Ahead &, double *totals) {
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
        sums[v] = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(products[v]), column_scales), scale, sums[v]);
      }
    }
    for (int v = 0; v < kVectors; ++v) add_to(totals + 8 * v, sums[v]);
  }
}

// --- The table -------------------------------------------------------------------------------

template <int Row>
constexpr void add_sums(ProductKernels *kernels) {
  constexpr int kBits = kFormats[Row].bits;
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

template <int... Row>
constexpr ProductKernels make_kernels(std::integer_sequence<int, Row...>) {
  ProductKernels kernels = {};
  (add_sums<Row>(&kernels), ...);
  add_scaled_sums<Avx2Dots>(&kernels);
  kernels.sum_blocks[DLFP4_TWO_LEVEL] = sum_two_level;
  kernels.sum_blocks[DLFP4_POWER] = sum_power;
  kernels.tiles.multiply_floats = multiply_floats;
  kernels.tiles.pack_integers = pack_integers;
  kernels.tiles.multiply_integers = multiply_integers;
  kernels.lines.multiply_floats = multiply_rows;
  return kernels;
}

}  // namespace

extern const ProductKernels avx2_products;
const ProductKernels avx2_products = make_kernels(std::make_integer_sequence<int, DLFP4_NUM_DTYPES>());

}  // namespace dlfp4
