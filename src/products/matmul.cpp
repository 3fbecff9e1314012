// dlfp4_matmul: lines of a times lines of b.
// Layout: tiles of kGroup rows and kColumns columns of the result, each with panels of b of its own.
// Trick: a's rows are prepared once in the workspace; a panel of b serves all rows of its tile from the cache.
#include <string.h>

#include "codecs/plan.h"
#include "few_rows.h"
#include "host/level.h"
#include "host/threads.h"
#include "panels.h"
#include "rules/numerics.h"

namespace dlfp4 {
namespace {

constexpr int64_t kMostWorkspace = 16 << 20;  // bytes, unless one group needs more
constexpr int64_t kTileGrain = 1 << 20;       // products worth a thread
constexpr int64_t kAlign = 64;
constexpr int64_t kGroup = 256;  // rows of a tile, parts counted

struct MatmulCall {
  Sides sides;
  PreparedRows rows;
  double factor;
  dlfp4_matrix result;  // the rows that the workspace holds
  Plan to_result;
};

// --- Results ---------------------------------------------------------------------------------

// `count` values of a row of the result, from `column` on.
void put_row(const MatmulCall &call, int64_t row, int64_t column, int64_t count, const float *values) {
  const int64_t item = call.result.bits / 8, step = call.result.strides[1];
  uint8_t *const place =
      static_cast<uint8_t *>(call.result.data) + (row * call.result.strides[0] + column * step) * item;
  alignas(64) uint8_t converted[kColumns * sizeof(float)];
  run_plan(call.to_result, reinterpret_cast<const uint8_t *>(values), step == 1 ? place : converted, count,
           {DLFP4_NEAREST_EVEN, true, 0, 0});
  if (step != 1) scatter_items(converted, item, count, place, step);
}

void put_totals(const MatmulCall &call, int64_t row, int64_t rows, int64_t column, int64_t columns,
                const double *totals) {
  double of_columns[kColumns] = {};
  const bool is_empty = call.sides.length == 0;  // whose sums are zero under any scale
  for (int64_t c = 0; !is_empty && c < columns; ++c) of_columns[c] = factor_of_line(call.sides.b, column + c);
  for (int64_t i = 0; i < rows; ++i, totals += kColumns) {
    float values[kColumns];
    const double of_row = is_empty ? 0 : call.factor * factor_of_line(call.sides.a, call.rows.first_line + row + i);
    for (int64_t c = 0; c < kColumns; ++c) values[c] = static_cast<float>(totals[c] * (of_row * of_columns[c]));
    put_row(call, row + i, column, columns, values);
  }
}

// --- Tiles -----------------------------------------------------------------------------------

int64_t rows_of_group(const MatmulCall &call) { return kGroup / call.sides.parts; }

// Adds the totals of a row's parts, into the row's place.
void add_parts(int64_t parts, int64_t rows, double *totals) {
  for (int64_t i = 0; parts > 1 && i < rows; ++i)
    for (int64_t c = 0; c < kColumns; ++c) {
      double total = 0;
      for (int64_t p = 0; p < parts; ++p) total += totals[(i * parts + p) * kColumns + c];
      totals[i * kColumns + c] = total;
    }
}

void multiply_tile(const MatmulCall &call, int64_t row, int64_t column) {
  alignas(64) double totals[kGroup * kColumns];
  const int64_t rows = least(rows_of_group(call), call.result.rows - row);
  const int64_t columns = least(kColumns, call.result.columns - column);
  const int64_t parts = call.sides.parts;
  const auto multiply = has_panels(call.sides) ? multiply_panels : multiply_few_rows;
  memset(totals, 0, static_cast<size_t>(rows * parts * kColumns) * sizeof(double));
  multiply({call.sides, call.rows, row * parts, rows * parts, column, columns, totals});
  add_parts(parts, rows, totals);
  put_totals(call, row, rows, column, columns, totals);
}

void multiply_tiles(const void *context, int64_t first, int64_t last) {
  const MatmulCall &call = *static_cast<const MatmulCall *>(context);
  const int64_t group = rows_of_group(call), groups = divide_up(call.result.rows, group);
  for (int64_t tile = first; tile < last; ++tile) multiply_tile(call, tile % groups * group, tile / groups * kColumns);
}

void prepare_rows(const void *context, int64_t first, int64_t last) {
  const MatmulCall &call = *static_cast<const MatmulCall *>(context);
  for (int64_t i = first; i < last; ++i) prepare_row(call.sides, call.rows, i);
}

void multiply_rows(const MatmulCall &call) {
  const int64_t group = rows_of_group(call), rows = least(call.result.rows, group), depth = call.sides.depth + 1;
  parallel_for_tiles(call.result.rows, divide_up(kTileGrain / 8, depth), prepare_rows, &call);
  parallel_for_tiles(divide_up(call.result.rows, group) * divide_up(call.result.columns, kColumns),
                     divide_up(kTileGrain, rows * depth * kColumns), multiply_tiles, &call);
}

// --- Arguments -------------------------------------------------------------------------------

// Rows of a that the workspace holds at a time.
int64_t rows_at_a_time(const Sides &sides, int64_t rows) {
  const int64_t fitting = kMostWorkspace / (bytes_of_rows(sides, 1) + 1) / kGroup * kGroup;
  return least(rows, fitting < kGroup ? kGroup : fitting);
}

bool is_activation(dlfp4_activation activation) {
  const int number = number_of(activation);
  return number == DLFP4_ACTIVATION_EXACT || number == DLFP4_ACTIVATION_INT8;
}

dlfp4_status make_job(const Product &product, const dlfp4_matrix &result, float alpha, MatmulCall *call) {
  const int level = current_level();
  if (level < 0) return DLFP4_E_ISA;
  if (!is_activation(product.activation)) return DLFP4_E_OPTION;
  const dlfp4_status status = make_sides(product, level, &call->sides);
  if (status != DLFP4_OK) return status;
  Lines lines;
  if (!make_lines(result, kAlongRows, &lines)) return DLFP4_E_DTYPE;
  const Operand from = {DLFP4_float32, false}, to = {static_cast<uint8_t>(kSourceRows[lines.source]), false};
  call->to_result = make_plan(level, from, to, {DLFP4_NEAREST_EVEN, true, 0, 0});
  call->factor = call->sides.a.factor * call->sides.b.factor * static_cast<double>(alpha);
  return DLFP4_OK;
}

uint8_t *align(void *memory) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(memory);
  return static_cast<uint8_t *>(memory) + (kAlign - address % kAlign) % kAlign;
}

}  // namespace
}  // namespace dlfp4

extern "C" {

int64_t dlfp4_matmul_workspace(const dlfp4_lines *a, const dlfp4_lines *b, int64_t length, const dlfp4_matrix *result,
                               const dlfp4_matmul_options *options) {
  using namespace dlfp4;
  MatmulCall call = {};
  const Product product = {*a, *b, result->rows, result->columns, length, options->activation};
  if (make_job(product, *result, options->alpha, &call) != DLFP4_OK) return -1;
  return kAlign + bytes_of_rows(call.sides, rows_at_a_time(call.sides, result->rows));
}

dlfp4_status dlfp4_matmul(const dlfp4_lines *a, const dlfp4_lines *b, int64_t length, const dlfp4_matrix *result,
                          const dlfp4_matmul_options *options, void *workspace) {
  using namespace dlfp4;
  MatmulCall call = {};
  const Product product = {*a, *b, result->rows, result->columns, length, options->activation};
  const dlfp4_status status = make_job(product, *result, options->alpha, &call);
  if (status != DLFP4_OK || result->rows == 0 || result->columns == 0) return status;
  uint8_t *const memory = align(workspace);
  call.result = *result;
  const int64_t most = rows_at_a_time(call.sides, result->rows);
  call.rows = place_rows(call.sides, most, memory);
  for (int64_t row = 0; row < result->rows; row += most) {
    call.result.rows = least(most, result->rows - row);
    call.result.data = static_cast<uint8_t *>(result->data) + row * result->strides[0] * (result->bits / 8);
    call.rows.first_line = row;
    multiply_rows(call);
  }
  return DLFP4_OK;
}
}
