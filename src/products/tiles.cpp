// Tiles of a product's result, and where their rows go.
#include "tiles.h"

#include <string.h>

#include "few_rows.h"
#include "host/level.h"
#include "panels.h"
#include "rules/numerics.h"

namespace dlfp4 {
namespace {

// Adds the totals of a row's parts, into the row's place.
void add_parts(int64_t parts, int64_t rows, double *totals) {
  for (int64_t i = 0; parts > 1 && i < rows; ++i)
    for (int64_t c = 0; c < kColumns; ++c) {
      double total = 0;
      for (int64_t p = 0; p < parts; ++p) total += totals[(i * parts + p) * kColumns + c];
      totals[i * kColumns + c] = total;
    }
}

// False where the type is none of results'.
bool make_results(const dlfp4_matrix &matrix, int level, Results *results) {
  Lines lines;
  if (!make_lines(matrix, kAlongRows, &lines)) return false;
  const Operand from = {DLFP4_float32, false}, to = {static_cast<uint8_t>(kSourceRows[lines.source]), false};
  *results = {matrix, make_plan(level, from, to, {DLFP4_NEAREST_EVEN, true, 0, 0})};
  return true;
}

}  // namespace

dlfp4_status make_job(const Product &product, const dlfp4_matrix &result, float alpha, Job *job) {
  const int level = current_level();
  if (level < 0) return DLFP4_E_ISA;
  const dlfp4_status status = make_sides(product, level, &job->sides);
  if (status != DLFP4_OK) return status;
  if (!make_results(result, level, &job->results)) return DLFP4_E_DTYPE;
  job->factor = job->sides.a.factor * job->sides.b.factor * widen(alpha);
  return DLFP4_OK;
}

void prefetch_row(const Results &results, int64_t row, int64_t column, int64_t count) {
  constexpr int64_t kLine = 64;
  const dlfp4_matrix &matrix = results.matrix;
  const int64_t item = matrix.bits / 8;
  if (row >= matrix.rows || matrix.strides[1] != 1) return;
  const uint8_t *const place = static_cast<const uint8_t *>(matrix.data) + (row * matrix.strides[0] + column) * item;
  for (int64_t byte = 0; byte < count * item; byte += kLine) __builtin_prefetch(place + byte, 1, 2);
}

void put_row(const Results &results, int64_t row, int64_t column, int64_t count, const float *values) {
  const dlfp4_matrix &matrix = results.matrix;
  const int64_t item = matrix.bits / 8, step = matrix.strides[1];
  uint8_t *const place = static_cast<uint8_t *>(matrix.data) + (row * matrix.strides[0] + column * step) * item;
  alignas(64) uint8_t converted[kMostPanels * kColumns * sizeof(float)];
  run_plan(results.plan, reinterpret_cast<const uint8_t *>(values), step == 1 ? place : converted, count,
           {DLFP4_NEAREST_EVEN, true, 0, 0});
  if (step != 1) scatter_items(converted, item, count, place, step);
}

void sum_tile(const TileOfResults &tile, double *totals) {
  const int64_t parts = tile.sides.parts, rows = tile.rows * parts;
  const auto multiply = has_panels(tile.sides) ? multiply_panels : multiply_few_rows;
  memset(totals, 0, static_cast<size_t>(rows * round_up(tile.columns, kColumns)) * sizeof(double));
  multiply({tile.sides, tile.prepared, tile.row * parts, rows, tile.column, tile.columns, totals});
  for (int64_t c = 0; c < tile.columns; c += kColumns) add_parts(parts, tile.rows, totals + c * rows);
}

void factors_of_columns(const TileOfResults &tile, int64_t first, double *of_columns) {
  const int64_t count = least(kColumns, tile.column + tile.columns - first);
  memset(of_columns, 0, kColumns * sizeof(double));
  for (int64_t c = 0; c < count; ++c) of_columns[c] = factor_of_line(tile.sides.b, first + c);
}

void scale_totals(const TileOfResults &tile, int64_t i, const double *of_columns, const double *totals, float *values) {
  const int64_t line = line_of(tile.prepared, tile.row + i);
  const double of_row = tile.factor * factor_of_line(tile.sides.a, line);
  for (int64_t c = 0; c < kColumns; ++c) values[c] = static_cast<float>(totals[c] * (of_row * of_columns[c]));
}

}  // namespace dlfp4
