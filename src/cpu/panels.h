// The two sides of a matrix product as its kernels want them: rows of a prepared once, panels of b made on the way.
// Layout: rows with a pitch, in a workspace; panels as in product_kernels.h.
// Trick: what form both sides take follows from what holds them exactly.
#ifndef DLFP4_SRC_CPU_PANELS_H_
#define DLFP4_SRC_CPU_PANELS_H_

#include <stdint.h>

#include "lines.h"
#include "product_kernels.h"

namespace dlfp4 {

// float32; bfloat16, where it holds the elements of both sides; integers of a byte, of FP4 by FP4 or by int8. For few
// rows, without panels: bfloat16 in the order of spread_bfloat by FP4; FP4 by FP4 as both lie.
enum Form { kFloatForm, kBfloatForm, kIntegerForm, kSpreadForm, kBlockForm };

struct Sides {
  const ProductKernels *kernels;
  Reader a, b;
  Form form;
  bool rounds;     // a's floats to int8
  int64_t parts;   // of bfloat16 that a row of wider floats is made of
  int64_t length;  // positions that are multiplied
  int64_t depth;   // the same, completed with zeros to whole blocks or pairs
  int64_t block;   // of the integer form
};

// DLFP4_OK, or why there is no such product of `rows` lines of a.
dlfp4_status make_sides(const dlfp4_lines &a, const dlfp4_lines &b, int64_t rows, int64_t length,
                        dlfp4_activation activation, int level, Sides *sides);

// What the integer form's totals are to be divided by.
double units_of(const Sides &sides);

// Rows of a in the workspace, those of a row's parts next to each other.
struct Rows {
  uint8_t *values;
  int32_t *corrections;
  float *scales;
  int64_t pitch, block_pitch;  // in elements
  int64_t first_line;          // of a, the first row
};

// Bytes of `rows` rows, each a multiple of 64.
int64_t bytes_of_rows(const Sides &sides, int64_t rows);
Rows place_rows(const Sides &sides, int64_t rows, uint8_t *workspace);

void prepare_row(const Sides &sides, const Rows &rows, int64_t i);

// Of a tile: parts of rows, and columns.
constexpr int64_t kGroup = 256;

// totals[i][c] += rows [row, row + count) times `columns` lines of b, from `column` on; there is room for the parts of
// all rows, zeros.
void multiply_lines(const Sides &sides, const Rows &rows, int64_t row, int64_t count, int64_t column, int64_t columns,
                    double *totals);

}  // namespace dlfp4

#endif  // DLFP4_SRC_CPU_PANELS_H_
