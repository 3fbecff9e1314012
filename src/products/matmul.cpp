// dlfp4_host_matmul: lines of a times lines of b.
// Layout: tiles of a group's rows and some columns of the result, each with panels of b of its own.
// Trick: a's rows are prepared once in the workspace; a panel of b serves all rows of its tile from the cache.
#include "dlfp4/dlfp4.h"
#include "host/threads.h"
#include "tiles.h"

namespace dlfp4 {
namespace {

struct MatmulCall : Job {  // of the rows that the workspace holds
  PreparedRows rows;
  int64_t columns;  // of a tile
};

// --- Tiles -----------------------------------------------------------------------------------

constexpr int64_t kRowsAhead = 6;

void put_tile(const MatmulCall &call, int64_t row, int64_t column) {
  const int64_t rows = least(rows_of_group(call.sides), call.results.matrix.rows - row);
  const int64_t columns = least(call.columns, call.results.matrix.columns - column);
  const TileOfResults tile = {call.sides, call.rows, call.factor, row, rows, column, columns};
  const auto put = [&](int64_t i, int64_t first, int64_t count, const float *values) {
    prefetch_row(call.results, row + i + kRowsAhead, first, count);
    put_row(call.results, row + i, first, count, values);
  };
  columns > kColumns ? multiply_tile<kMostPanels>(tile, put) : multiply_tile(tile, put);
}

void multiply_tiles(const void *context, int64_t first, int64_t last) {
  const MatmulCall &call = *static_cast<const MatmulCall *>(context);
  const int64_t group = rows_of_group(call.sides), groups = divide_up(call.results.matrix.rows, group);
  for (int64_t tile = first; tile < last; ++tile) put_tile(call, tile % groups * group, tile / groups * call.columns);
}

void prepare_rows(const void *context, int64_t first, int64_t last) {
  const MatmulCall &call = *static_cast<const MatmulCall *>(context);
  for (int64_t i = first; i < last; ++i) prepare_row(call.sides, call.rows, i);
}

// Tiles as wide as leaves each thread some of them.
int64_t columns_of_tile(const MatmulCall &call) {
  constexpr int64_t kLeast = 8;
  if (!has_panels(call.sides) || !call.sides.kernels->tiles.take_bands) return kColumns;
  const int64_t groups = divide_up(call.results.matrix.rows, rows_of_group(call.sides));
  int64_t columns = kMostPanels * kColumns;
  while (columns > kColumns &&
         groups * divide_up(call.results.matrix.columns, columns) < kLeast * dlfp4_get_num_threads())
    columns /= 2;
  return columns;
}

void multiply_rows(MatmulCall *call) {
  const dlfp4_matrix &matrix = call->results.matrix;
  const int64_t group = rows_of_group(call->sides), rows = least(matrix.rows, group), depth = call->sides.depth + 1;
  call->columns = columns_of_tile(*call);
  parallel_for_tiles(matrix.rows, grain_of_rows(call->sides), prepare_rows, call);
  parallel_for_tiles(divide_up(matrix.rows, group) * divide_up(matrix.columns, call->columns),
                     divide_up(kTileGrain, rows * depth * call->columns), multiply_tiles, call);
}

// --- Arguments -------------------------------------------------------------------------------

// Rows of a that the workspace holds at a time.
int64_t rows_at_a_time(const Sides &sides, int64_t rows) {
  const int64_t fitting = kMostWorkspace / (bytes_of_rows(sides, kGroup) + 1) * kGroup;
  return least(rows, fitting < kGroup ? kGroup : fitting);
}

}  // namespace
}  // namespace dlfp4

extern "C" {

int64_t dlfp4_host_matmul_workspace(const dlfp4_lines *a, const dlfp4_lines *b, int64_t length,
                                    const dlfp4_matrix *result, const dlfp4_matmul_options *options) {
  using namespace dlfp4;
  MatmulCall call = {};
  const Product product = {*a, *b, result->rows, result->columns, length, number_of(options->activation)};
  if (make_job(product, *result, options->alpha, &call) != DLFP4_OK) return -1;
  return kAlign + bytes_of_rows(call.sides, rows_at_a_time(call.sides, result->rows));
}

dlfp4_status dlfp4_host_matmul(const dlfp4_lines *a, const dlfp4_lines *b, int64_t length, const dlfp4_matrix *result,
                               const dlfp4_matmul_options *options, void *workspace) {
  using namespace dlfp4;
  MatmulCall call = {};
  const Product product = {*a, *b, result->rows, result->columns, length, number_of(options->activation)};
  const dlfp4_status status = make_job(product, *result, options->alpha, &call);
  if (status != DLFP4_OK || result->rows == 0 || result->columns == 0) return status;
  if (!workspace) return DLFP4_E_OPTION;
  uint8_t *const memory = align(workspace);
  const int64_t most = rows_at_a_time(call.sides, result->rows);
  call.rows = place_rows(call.sides, most, memory);
  for (int64_t row = 0; row < result->rows; row += most) {
    dlfp4_matrix &rows = call.results.matrix;
    rows.rows = least(most, result->rows - row);
    rows.data = static_cast<uint8_t *>(result->data) + row * result->strides[0] * (result->bits / 8);
    call.rows.first_line = row;
    multiply_rows(&call);
  }
  return DLFP4_OK;
}
}
