// The rows of a matrix product's first side, prepared once in a workspace.
// Layout: rows with a pitch, in the order that the form's kernels read; those of a row's parts next to each other.
// Trick: a row has an odd number of cache lines, so that the same position of several does not fall into one set.
#ifndef DLFP4_SRC_PRODUCTS_ROWS_H_
#define DLFP4_SRC_PRODUCTS_ROWS_H_

#include <stdint.h>

#include "sides.h"

namespace dlfp4 {

struct PreparedRows {
  uint8_t *values;
  int32_t *corrections;
  float *scales;
  int64_t pitch, block_pitch;  // in elements
  int64_t first_line;          // of a, the first row
  const int64_t *lines;        // of a, each row; null: one after another from first_line on
};

inline int64_t line_of(const PreparedRows &rows, int64_t i) { return rows.lines ? rows.lines[i] : rows.first_line + i; }

// Whether rows lie in bands of kBand.
inline bool are_in_bands(const Sides &sides) {
  return sides.kernels->tiles.take_bands && (sides.form == kBfloatPanels || sides.form == kScaledPanels);
}

// Bytes of `rows` rows, each a multiple of 64; more than any memory has where they are too long to be counted.
int64_t bytes_of_rows(const Sides &sides, int64_t rows);
PreparedRows place_rows(const Sides &sides, int64_t rows, uint8_t *workspace);

void prepare_row(const Sides &sides, const PreparedRows &rows, int64_t i);

// A part of the result: some of the workspace's rows (a row's parts count) by some lines of b, by panels at most
// kMostPanels times kColumns, else kColumns. Products are added to totals[p][i][c], each kColumns lines by themselves.
struct Tile {
  const Sides &sides;
  const PreparedRows &rows;
  int64_t row, count;
  int64_t column, columns;
  double *totals;
};

// A row's values from one position on; in bands the first of a band, from a multiple of what its pieces have.
uint8_t *values_of(const Sides &sides, const PreparedRows &rows, int64_t row, int64_t first);

// What the kernels for integers take, of rows from one position on, a multiple of the block.
IntegerRows integers_of(const Sides &sides, const PreparedRows &rows, int64_t row, int64_t first);

// The same of the kernels for bfloat16 with scales.
BfloatRows bfloats_of(const Sides &sides, const PreparedRows &rows, int64_t row, int64_t first);

}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_ROWS_H_
