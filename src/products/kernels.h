// The kernels of dot products and matrix products that a level may have.
// Layout: runs of codes, one a byte or packed from a byte on; floats in order; tiles as said below.
// Trick: a null entry falls through to the next level, as with KernelRow; the scalar level has them all.
#ifndef DLFP4_SRC_PRODUCTS_KERNELS_H_
#define DLFP4_SRC_PRODUCTS_KERNELS_H_

#include <stdint.h>

#include "blocks/kernels.h"
#include "rules/dtypes.h"

namespace dlfp4 {

// The most elements that one call of a kernel sums into floats: few enough for a float32 in a vector of them.
constexpr int64_t kMostFloats = 1 << 13;  // one by one
constexpr int64_t kMostSummed = 1 << 15;  // in blocks

// Rows of integers. Each block has a scale, and a correction for the panel's offset: -kIntegerOffset times the
// sum of its integers.
struct IntegerRows {
  const int8_t *values;
  const int32_t *corrections;
  const float *scales;
  int64_t pitch, block_pitch;
};

// Rows of bfloat16 with scales, a block each.
struct BfloatRows {
  const uint16_t *values;
  const float *scales;
  int64_t pitch, block_pitch;
};

// Memory that is read next: panel kernels prefetch it a little with each step while they multiply. Prefetched at once
// it would keep the processor waiting. Of rows in bands, so much of each band from where the first begins.
struct Ahead {
  const uint8_t *from;
  int64_t bytes;
  const uint8_t *rows;
  int64_t row_bytes;
};

// FP4 in blocks whose scales are bytes: integers within a block. Kernels that name no key take blocks of at most
// kMostFp4Block; a longer block counts as several with the same scale.
constexpr int64_t kMostFp4Block = 32;
static constexpr bool is_fp4(const BlockKey &key) {
  return key.element == DLFP4_float4_e2m1fn && kTypes[key.scale].bits == 8;
}

// Whether there are blocks of that length of an element, a row of dtypes.def.
static constexpr bool has_blocks(int element, int64_t length) {
  for (int place = 0; place < kNumKeys; ++place)
    if (kBlockKeys[place].element == element && kBlockKeys[place].length == length) return true;
  return false;
}

// Whether elements in blocks may be multiplied before scales: integers may have zero points or biases.
static constexpr bool sums_elements(const BlockKey &key) {
  return key.length > 0 && !is_block_integer(kTypes[key.element]);
}

// FP4 with scales of one type and blocks of one length.
static constexpr bool is_fp4(const BlockKey &key, int scale, int64_t length) {
  return is_fp4(key) && key.scale == scale && key.length == length;
}

// Matrix products go by panels: kColumns lines of the second matrix from one position on, with neighbours across lines.
constexpr int64_t kColumns = 32;
constexpr int64_t kDepth = 1024;  // positions of a panel, a multiple of every block
constexpr int64_t kMostPanels = 8;

// Of a band of kBand rows the first kBandBytes of each lie one after another, then the next of each. Such rows have a
// multiple of kBandBytes, completed with zeros; their pitch is that of rows that lie by themselves.
constexpr int64_t kBand = 16, kBandBytes = 64;

// Where position k of a line lies in the order that the bytes of packed 4-bit codes suggest: of 128 positions the even
// ones of the even blocks of 16 come first, then the odd ones of these, then the same of the odd blocks.
constexpr int64_t kSpread = 128;
static constexpr int64_t spread_bfloat(int64_t k) {
  return k / kSpread * kSpread + k / 16 % 2 * 64 + k % 2 * 32 + k % kSpread / 32 * 8 + k % 16 / 2;
}

// Integers lie so that the even positions of each kRun come first: runs of 8 for panels, of 128 for lines.
template <int64_t kRun>
static constexpr int64_t evens_first(int64_t k) {
  return k / kRun * kRun + k % 2 * (kRun / 2) + k % kRun / 2;
}
constexpr int64_t kPanelSpread = 8;
static constexpr int64_t spread_integer(int64_t k) { return evens_first<kPanelSpread>(k); }
static constexpr int64_t spread_rounded(int64_t k) { return evens_first<kSpread>(k); }

// Added to the second matrix's integers in panels, so that they have no sign.
constexpr int kIntegerOffset = 12;

// Where the scale and correction of a block of 16 or 32 lie beside spread_rounded: lanes of products are added up in
// this order.
static constexpr int64_t spread_block(int64_t b, int64_t block) {
  const int64_t lane = block == 16 ? b % 8 / 2 * 4 + b % 16 / 8 * 2 + b % 2 : b % 4 * 4 + b % 16 / 4;
  return b / 16 * 16 + lane;
}
constexpr int64_t kRoundedStep = 512;  // positions that such a row is completed to with zeros

// Missing lines of a panel hold zeros. Pitches count elements. Panels are aligned to 64 bytes.
struct TileKernels {
  // panel[k][c] = rows[c * pitch + k], for k < depth.
  void (*pack_floats)(const float *rows, int64_t pitch, int64_t depth, float *panel);

  // totals[i][c] += the sum over k < depth of x[i * pitch + k] * panel[k][c], for i < rows; depth <= kDepth.
  void (*multiply_floats)(const float *panel, const float *x, int64_t pitch, int64_t depth, int64_t rows,
                          double *totals);

  // The same of bfloat16: panel[k / 2][c][k % 2]; depth is even. May be null at all levels: float32 serves.
  void (*pack_bfloats)(const uint16_t *rows, int64_t pitch, int64_t depth, uint16_t *panel);
  void (*multiply_bfloats)(const uint16_t *panel, const uint16_t *x, int64_t pitch, int64_t depth, int64_t rows,
                           const Ahead &ahead, double *totals);

  // totals[i][c] += the sum over blocks of (the sum of such a panel * x) * scales[block][c] * x.scales. May be null,
  // as multiply_bfloats may.
  void (*multiply_scaled_bfloats)(const uint16_t *panel, const float *scales, const BfloatRows &x, int64_t block,
                                  int64_t depth, int64_t rows, const Ahead &ahead, double *totals);

  // Such a panel of codes of at most 8 bits, one a byte: times scales[k / block][c], or as they are where `scales` is
  // null. depth is a multiple of 4.
  void (*pack_elements[DLFP4_NUM_DTYPES])(const uint8_t *const *codes, int64_t lines, int64_t depth,
                                          const float *scales, int64_t block, uint16_t *panel);

  // panel[k][c] = what stored scale k of line c is worth, for keys with scales of a byte.
  void (*pack_scales[kNumKeys])(const uint8_t *const *stored, int64_t lines, int64_t count, float *panel);

  // The same panel of packed float4_e2m1fn, codes[c] a line's: times scales[k / block][c]. depth is a multiple of the
  // block, 16 or 32.
  void (*pack_scaled_bfloats)(const uint8_t *const *codes, int64_t lines, int64_t depth, const float *scales,
                              int64_t block, uint16_t *panel);

  // Packed float4_e2m1fn as bytes: with k = 8 j + 2 i + odd, panel[j][odd][c][i] = kIntegerOffset + twice the value.
  void (*pack_integers)(const uint8_t *const *codes, int64_t lines, int64_t depth, uint8_t *panel);

  // Twice the values of `count` codes, a multiple of 8: x[spread_integer(k)] of position k.
  void (*spread_integers)(const uint8_t *codes, int64_t count, int8_t *x);

  // totals[i][c] += the sum over blocks of ((the sum of panel * x, in that order, plus x.corrections) *
  // scales[block][c]) * x.scales: depth is a multiple of the block, 16 or 32.
  void (*multiply_integers)(const uint8_t *panel, const float *scales, const IntegerRows &x, int64_t block,
                            int64_t depth, int64_t rows, const Ahead &ahead, double *totals);

  // Whether rows of bfloat16 lie in bands for these kernels, and stay in the cache for kMostPanels panels.
  bool take_bands;
};

// For few rows panels do not pay: lines of the second matrix are multiplied as they lie. totals[i * kColumns] += the
// sum of a line's `count` scaled elements times row i of x, for i < rows. Null at levels without such instructions:
// lines of float32 and panels serve.
struct LineKernels {
  // Packed float4_e2m1fn by bfloat16 in the order of spread_bfloat, completed with zeros to 2 * kSpread; count is a
  // multiple of the key's block, 16 or 32.
  void (*multiply_spread[kNumKeys])(const uint8_t *codes, const uint8_t *scales, const uint16_t *x, int64_t pitch,
                                    int64_t count, int64_t rows, double *totals);

  // Floats that bfloat16 holds, packed below 8 bits, by bfloat16 in order, completed with zeros to kElementStep.
  // scales[k / block] is that of position k; block is a power of two from kLeastElementBlock on.
  void (*multiply_elements[DLFP4_NUM_DTYPES])(const uint8_t *codes, const float *scales, int64_t block,
                                              const uint16_t *x, int64_t pitch, int64_t count, int64_t rows,
                                              double *totals);

  // Twice the values of packed float4_e2m1fn in the order of spread_rounded, completed with zeros to kSpread.
  void (*spread_codes)(const uint8_t *codes, int64_t count, int8_t *x);

  // Twice packed float4_e2m1fn by integers in the order of spread_rounded, with scales and corrections in that of
  // spread_block; all completed with zeros to kRoundedStep. count is a multiple of the key's block, 16 or 32.
  void (*multiply_rounded[kNumKeys])(const uint8_t *codes, const uint8_t *scales, const IntegerRows &x, int64_t count,
                                     int64_t rows, double *totals);

  // Floats, packed below 8 bits, by float32 in order, completed with zeros to kFloatStep.
  // scales[k / block] is that of position k, up to where x ends; block is a power of two from 16 on.
  void (*multiply_codes[DLFP4_NUM_DTYPES])(const uint8_t *codes, const float *scales, int64_t block, const float *x,
                                           int64_t pitch, int64_t count, int64_t rows, double *totals);

  // float32, decoded already, by the same in order; count is a multiple of kFloatStep.
  void (*multiply_floats)(const float *line, const float *x, int64_t pitch, int64_t count, int64_t rows,
                          double *totals);

  // The most rows for which lines cost less than panels, as measured: by bfloat16 where codes have to be decoded, a
  // row's parts counted; by integers; by float32. None at levels without such lines.
  intptr_t most_bfloat_rows, most_rounded_rows, most_float_rows;
};

constexpr int64_t kElementStep = 64, kFloatStep = 32, kMostCodeRows = 4;
constexpr int64_t kLeastElementBlock = 32;

// No pointer need be aligned, and no byte past what is named is read or written. High bits of unpacked codes below 8
// bits are ignored; so are bits of a packed last byte that `count` does not fill.
struct ProductKernels {
  // The sum of a[i] * b[i], exact, with elements in units of unit_of(row): types that integers can stand for, one a
  // byte [0] or packed [1]; any count.
  int64_t (*sum_integers[DLFP4_NUM_DTYPES][2])(const uint8_t *a, const uint8_t *b, int64_t count);

  // The same of floats of at most 32 bits, one a byte and more; count <= kMostFloats.
  double (*sum_floats[DLFP4_NUM_DTYPES])(const uint8_t *a, const uint8_t *b, int64_t count);

  // The sum of scales[i / the key's block] * a[i] * b[i] of packed elements that fill whole bytes; count <=
  // kMostSummed. The scales are finite. Null where one scale serves the whole tensor.
  double (*sum_scaled[kNumKeys])(const uint8_t *a, const uint8_t *b, int64_t count, const float *scales);

  // The same of the keys of is_fp4 by stored scales of both sides; count is a multiple of the block.
  double (*sum_blocks[kNumKeys])(const uint8_t *a, const uint8_t *a_scales, const uint8_t *b, const uint8_t *b_scales,
                                 int64_t count);

  TileKernels tiles;
  LineKernels lines;
};

// The kernels of a level, with those of slower levels where it has none.
const ProductKernels &product_kernels(int level);

}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_KERNELS_H_
