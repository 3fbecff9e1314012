// Tiles of matrix products, a row at a time.
// Layout: as in kernels.h.
// Trick: the loops over a panel's columns are what a compiler makes vectors of.
#ifndef DLFP4_SRC_PRODUCTS_SCALAR_TILES_H_
#define DLFP4_SRC_PRODUCTS_SCALAR_TILES_H_

#include <string.h>

#include <utility>

#include "kernels.h"
#include "rules/scaling.h"
#include "rules/sums.h"

namespace dlfp4 {
namespace {

constexpr int8_t kTwiceValues[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

int twice_value(const uint8_t *codes, int64_t index) { return kTwiceValues[codes[index / 2] >> (index % 2 * 4) & 15]; }

void pack_floats(const float *rows, int64_t pitch, int64_t depth, float *panel) {
  for (int64_t k = 0; k < depth; ++k)
    for (int64_t c = 0; c < kColumns; ++c) panel[k * kColumns + c] = rows[c * pitch + k];
}

void multiply_floats(const float *panel, const float *x, int64_t pitch, int64_t depth, int64_t rows, double *totals) {
  for (int64_t i = 0; i < rows; ++i, x += pitch, totals += kColumns) {
    float sum[kColumns] = {};
    for (int64_t k = 0; k < depth; ++k)
      for (int64_t c = 0; c < kColumns; ++c) sum[c] += x[k] * panel[k * kColumns + c];
    for (int64_t c = 0; c < kColumns; ++c) totals[c] += static_cast<double>(sum[c]);
  }
}

// Neighbours go to sums of their own, which are what a compiler makes vectors of.
void multiply_float_rows(const float *line, const float *x, int64_t pitch, int64_t count, int64_t rows,
                         double *totals) {
  for (int64_t i = 0; i < rows; ++i, x += pitch, totals += kColumns) {
    float sums[kFloatStep] = {};
    for (int64_t k = 0; k < count; k += kFloatStep)
      for (int64_t j = 0; j < kFloatStep; ++j) sums[j] += line[k + j] * x[k + j];
    for (float sum : sums) *totals += static_cast<double>(sum);
  }
}

struct ScaleTable {
  uint32_t bits[256];
};

constexpr ScaleTable make_scale_table(int row) {
  ScaleTable table = {};
  for (uint64_t code = 0; code < 256; ++code)
    table.bits[code] = static_cast<uint32_t>(
        convert(kTypes[row], kTypes[DLFP4_float32], code, {DLFP4_NEAREST_EVEN, false}, {0, 0, 0}));
  return table;
}

template <int Scale>
void pack_scales(const uint8_t *const *stored, int64_t lines, int64_t count, float *panel) {
  static constexpr ScaleTable kTable = make_scale_table(Scale);
  memset(panel, 0, static_cast<size_t>(count * kColumns) * sizeof(float));
  for (int64_t c = 0; c < lines; ++c)
    for (int64_t k = 0; k < count; ++k) panel[k * kColumns + c] = float_of(kTable.bits[stored[c][k]]);
}

void pack_integers(const uint8_t *const *codes, int64_t lines, int64_t depth, uint8_t *panel) {
  memset(panel, kIntegerOffset, static_cast<size_t>(depth * kColumns));
  for (int64_t c = 0; c < lines; ++c)
    for (int64_t k = 0; k < depth; ++k) {
      const int64_t at = (k / 8 * 2 + k % 2) * 4 * kColumns + 4 * c + k % 8 / 2;
      panel[at] = static_cast<uint8_t>(twice_value(codes[c], k) + kIntegerOffset);
    }
}

void spread_integers(const uint8_t *codes, int64_t count, int8_t *x) {
  for (int64_t i = 0; i < count; ++i) x[spread_integer(i)] = static_cast<int8_t>(twice_value(codes, i));
}

void multiply_integers(const uint8_t *panel, const float *scales, const IntegerRows &x, int64_t block, int64_t depth,
                       int64_t rows, const Ahead &, double *totals) {
  for (int64_t i = 0; i < rows; ++i, totals += kColumns) {
    float sum[kColumns] = {};
    for (int64_t b = 0; b < depth / block; ++b) {
      int32_t of_block[kColumns];
      for (int32_t &column : of_block) column = x.corrections[i * x.block_pitch + b];
      for (int64_t k = b * block; k < (b + 1) * block; ++k)
        for (int64_t c = 0; c < kColumns; ++c)
          of_block[c] += panel[k / 4 * 4 * kColumns + 4 * c + k % 4] * x.values[i * x.pitch + k];
      const float scale = x.scales[i * x.block_pitch + b];
      for (int64_t c = 0; c < kColumns; ++c) {  // the smaller scale first: what it makes is finite
        const float column_scale = scales[b * kColumns + c];
        const bool is_smaller = column_scale < scale;
        const float first = is_smaller ? column_scale : scale, second = is_smaller ? scale : column_scale;
        sum[c] += static_cast<float>(of_block[c]) * first * second;
      }
    }
    for (int64_t c = 0; c < kColumns; ++c) totals[c] += static_cast<double>(sum[c]);
  }
}

template <int Key>
void add_scale_packing(TileKernels *kernels) {
  constexpr int kScale = kBlockKeys[Key].scale;
  if constexpr (kTypes[kScale].bits == 8) kernels->pack_scales[Key] = pack_scales<kScale>;
}

template <int... Key>
void add_tiles(TileKernels *kernels, std::integer_sequence<int, Key...>) {
  kernels->pack_floats = pack_floats;
  kernels->multiply_floats = multiply_floats;
  (add_scale_packing<Key>(kernels), ...);
  kernels->pack_integers = pack_integers;
  kernels->spread_integers = spread_integers;
  kernels->multiply_integers = multiply_integers;
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_SCALAR_TILES_H_
