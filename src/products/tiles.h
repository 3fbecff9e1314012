// Tiles of a product's result, and where their rows go.
// Layout: a group of prepared rows, parts counted, by some lines of b.
// Trick: a tile's panels of b are made once, for all of its rows.
#ifndef DLFP4_SRC_PRODUCTS_TILES_H_
#define DLFP4_SRC_PRODUCTS_TILES_H_

#include <stdint.h>

#include "codecs/plan.h"
#include "rows.h"

namespace dlfp4 {

constexpr int64_t kGroup = 256;               // rows of a tile, parts counted
constexpr int64_t kMostWorkspace = 16 << 20;  // bytes of prepared rows at a time, unless one group needs more
constexpr int64_t kTileGrain = 1 << 20;       // products worth a thread
constexpr int64_t kAlign = 64;                // of a workspace

// Whole bands.
inline int64_t rows_of_group(const Sides &sides) { return kGroup / sides.parts / kBand * kBand; }

// What is worth a thread, of rows to prepare.
inline int64_t grain_of_rows(const Sides &sides) { return divide_up(kTileGrain / 32, sides.depth + 1); }

inline uint8_t *align(void *memory) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(memory);
  return static_cast<uint8_t *>(memory) + (kAlign - address % kAlign) % kAlign;
}

// The matrix of results, and how float32 becomes its type.
struct Results {
  dlfp4_matrix matrix;
  Plan plan;
};

// What the arguments of a product make, however its rows are divided.
struct Job {
  Sides sides;
  Results results;
  double factor;  // of all results
};

// DLFP4_OK, or why there is no such product.
dlfp4_status make_job(const Product &product, const dlfp4_matrix &result, float alpha, Job *job);

// `count` values of a row, at most kMostPanels * kColumns, from `column` on.
void put_row(const Results &results, int64_t row, int64_t column, int64_t count, const float *values);

// Asks for where such values go, which takes longer than to compute them: rows are pages apart.
void prefetch_row(const Results &results, int64_t row, int64_t column, int64_t count);

// Sums of `rows` prepared rows from `row` on by some lines of b. `factor` multiplies them, beside those of lines.
struct TileOfResults {
  const Sides &sides;
  const PreparedRows &prepared;
  double factor;
  int64_t row, rows;
  int64_t column, columns;
};

// totals[p][i][c], for all rows of a tile and each kColumns lines: parts are added up.
void sum_tile(const TileOfResults &tile, double *totals);

// What row `i` of the tile has in some columns, of their totals.
void scale_totals(const TileOfResults &tile, int64_t i, const double *of_columns, const double *totals, float *values);

// What columns from `first` on, at most kColumns, are multiplied with.
void factors_of_columns(const TileOfResults &tile, int64_t first, double *of_columns);

// Sums of nothing are zero under any scale.
template <class Put>
void put_zeros(const TileOfResults &tile, Put put) {
  const float zeros[kColumns] = {};
  for (int64_t c = 0; c < tile.columns; c += kColumns)
    for (int64_t i = 0; i < tile.rows; ++i) put(i, tile.column + c, least(kColumns, tile.columns - c), zeros);
}

// Calls put(i, first column, number of columns, their values) for the rows of a tile of at most kPanels * kColumns
// columns, all of a row at once. The totals of many take more of the stack.
template <int64_t kPanels = 1, class Put>
__attribute__((noinline)) void multiply_tile(const TileOfResults &tile, Put put) {
  alignas(64) double totals[kPanels * kGroup * kColumns];
  double of_columns[kPanels * kColumns];
  float values[kPanels * kColumns];
  if (tile.sides.length == 0) return put_zeros(tile, put);
  sum_tile(tile, totals);
  for (int64_t c = 0; c < tile.columns; c += kColumns) factors_of_columns(tile, tile.column + c, of_columns + c);
  for (int64_t i = 0; i < tile.rows; ++i) {
    for (int64_t c = 0; c < tile.columns; c += kColumns) {
      const double *const of_row = totals + c * tile.rows * tile.sides.parts + i * kColumns;
      scale_totals(tile, i, of_columns + c, of_row, values + c);
    }
    put(i, tile.column, tile.columns, values);
  }
}

}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_TILES_H_
