// dlfp4_host_grouped_matmul: rows that are divided among experts, each by the lines of b of its expert.
// Layout: segments, which are some rows of one expert, at most a tile's; their prepared rows follow one another.
// Trick: one pass over all experts, cut among threads by what tiles cost, so that it does not matter how unevenly rows
// are divided. Weighted sums are cut by columns: each is then added up by one thread, in the order of the rows.
#include <string.h>

#include "host/threads.h"
#include "tiles.h"

namespace dlfp4 {
namespace {

constexpr int64_t kRowsOfPanels = 4;          // that could be multiplied while a tile's panels are made
constexpr int64_t kMostSums = 64 << 20;       // bytes of weighted sums at a time,
constexpr int64_t kLeastColumnsOfSums = 256;  // unless so many columns need more

struct Segment {
  int64_t expert;
  int64_t rows_of_expert;  // by which its form is chosen, as that of a product of its own
  int64_t first, rows;     // of the routed rows
  int64_t place;           // of its prepared rows, in bytes
  int64_t start, cost;     // of its tiles, among those that are multiplied at a time
};

struct GroupedCall : Job {  // whose sides have the lines of the first expert
  const dlfp4_groups *groups;
  uint8_t *prepared;
  Segment *segments;  // those that the workspace holds at a time
  int64_t num_segments;
  float *sums;              // of weighted rows: rows of the result by the columns that are summed at a time
  int64_t column, columns;  // these, or all
};

// --- Experts ---------------------------------------------------------------------------------

struct Expert {
  dlfp4_lines lines;
  Sides sides;
};

void find_expert(const GroupedCall &call, int64_t expert, int64_t rows, Expert *found) {
  found->lines = *call.sides.b.lines;
  found->lines.first += expert * call.groups->step;
  found->sides = call.sides;
  found->sides.b.lines = &found->lines;
  choose_form(&found->sides, rows);
}

PreparedRows rows_of(const GroupedCall &call, const Sides &sides, const Segment &segment) {
  PreparedRows rows = place_rows(sides, segment.rows, call.prepared + segment.place);
  rows.first_line = segment.first;
  rows.lines = call.groups->gather ? call.groups->gather + segment.first : nullptr;
  return rows;
}

int64_t cost_of_tile(const Sides &sides, int64_t rows) {
  return (rows * sides.parts + (has_panels(sides) ? kRowsOfPanels : 1)) * (sides.depth + 1);
}

// Calls take(segment, its sides), in the order of rows.
template <class Take>
void each_segment(const GroupedCall &call, Take take) {
  Expert expert;
  int64_t first = 0;
  for (int64_t e = 0; e < call.groups->experts; ++e) {
    const int64_t count = call.groups->ends[e] - first;
    if (count > 0) {
      find_expert(call, e, count, &expert);
      const int64_t group = rows_of_group(expert.sides);
      for (int64_t row = 0; row < count; row += group) {
        const int64_t rows = least(group, count - row);
        take(Segment{e, count, first + row, rows, 0, 0, cost_of_tile(expert.sides, rows)}, expert.sides);
      }
    }
    first += count;
  }
}

// --- What a thread does ----------------------------------------------------------------------

// The rows of [first, last), counted from the first segment's on.
void prepare_rows(const void *context, int64_t first, int64_t last) {
  const GroupedCall &call = *static_cast<const GroupedCall *>(context);
  const int64_t origin = call.segments[0].first;
  Expert expert;
  for (int64_t s = 0; s < call.num_segments; ++s) {
    const Segment &segment = call.segments[s];
    const int64_t start = segment.first - origin;
    const int64_t from = first > start ? first - start : 0, to = least(segment.rows, last - start);
    if (from >= to) continue;
    find_expert(call, segment.expert, segment.rows_of_expert, &expert);
    const PreparedRows rows = rows_of(call, expert.sides, segment);
    for (int64_t i = from; i < to; ++i) prepare_row(expert.sides, rows, i);
  }
}

struct Range {
  int64_t first, last;
};

int64_t tiles_at_a_time(const GroupedCall &call) { return divide_up(call.columns, kColumns); }

// A segment's tiles that start within [first, last) of all costs; of weighted sums these are tiles of each segment.
Range tiles_of(const GroupedCall &call, const Segment &segment, int64_t first, int64_t last) {
  if (call.sums) return {first, last};
  const int64_t tiles = tiles_at_a_time(call), from = first - segment.start, to = last - segment.start;
  return {from > 0 ? divide_up(from, segment.cost) : 0, to > 0 ? least(tiles, divide_up(to, segment.cost)) : 0};
}

void add_weighted(const GroupedCall &call, int64_t row, int64_t column, int64_t count, const float *values) {
  const float weight = call.groups->weights[row];
  float *const sums = call.sums + call.groups->scatter[row] * call.columns + column - call.column;
  for (int64_t c = 0; c < count; ++c) sums[c] += weight * values[c];
}

void multiply_segment(const GroupedCall &call, const Segment &segment, const Range &tiles) {
  Expert expert;
  find_expert(call, segment.expert, segment.rows_of_expert, &expert);
  const PreparedRows rows = rows_of(call, expert.sides, segment);
  for (int64_t t = tiles.first; t < tiles.last; ++t) {
    const int64_t place = t * kColumns, column = call.column + place, count = least(kColumns, call.columns - place);
    multiply_tile({expert.sides, rows, call.factor, 0, segment.rows, column, count},
                  [&](int64_t i, int64_t, int64_t, const float *values) {
                    if (call.sums) return add_weighted(call, segment.first + i, column, count, values);
                    put_row(call.results, segment.first + i, column, count, values);
                  });
  }
}

void multiply_tiles(const void *context, int64_t first, int64_t last) {
  const GroupedCall &call = *static_cast<const GroupedCall *>(context);
  for (int64_t s = 0; s < call.num_segments; ++s) {
    const Range tiles = tiles_of(call, call.segments[s], first, last);
    if (tiles.first < tiles.last) multiply_segment(call, call.segments[s], tiles);
  }
}

// --- All rows, as many at a time as the workspace holds --------------------------------------

void multiply_segments(const GroupedCall &call) {
  if (call.num_segments == 0) return;
  const Segment &last = call.segments[call.num_segments - 1];
  const int64_t tiles = tiles_at_a_time(call), all = last.start + tiles * last.cost, grain = kTileGrain / kColumns;
  parallel_for_tiles(last.first + last.rows - call.segments[0].first, grain_of_rows(call.sides), prepare_rows, &call);
  if (call.sums)
    parallel_for_tiles(tiles, divide_up(grain * tiles, all), multiply_tiles, &call);
  else
    parallel_for_tiles(all, grain, multiply_tiles, &call);
}

bool fills_workspace(int64_t bytes, int64_t more) { return bytes > 0 && bytes + more > kMostWorkspace; }

void multiply_all(GroupedCall *call) {
  int64_t bytes = 0, start = 0;
  call->num_segments = 0;
  each_segment(*call, [&](Segment segment, const Sides &sides) {
    const int64_t more = bytes_of_rows(sides, segment.rows);
    if (fills_workspace(bytes, more)) {
      multiply_segments(*call);
      call->num_segments = bytes = start = 0;
    }
    segment.place = bytes;
    segment.start = start;
    call->segments[call->num_segments++] = segment;
    bytes += more;
    start += segment.cost * tiles_at_a_time(*call);
  });
  multiply_segments(*call);
}

// --- Rows that are not sums of one expert ----------------------------------------------------

int64_t last_end(const dlfp4_groups &groups) { return groups.experts ? groups.ends[groups.experts - 1] : 0; }

// Rows beyond the last end, counted from there.
void put_zeros(const void *context, int64_t first, int64_t last) {
  const GroupedCall &call = *static_cast<const GroupedCall *>(context);
  const float zeros[kColumns] = {};
  const int64_t origin = last_end(*call.groups), columns = call.columns;
  for (int64_t row = origin + first; row < origin + last; ++row)
    for (int64_t c = 0; c < columns; c += kColumns) put_row(call.results, row, c, least(kColumns, columns - c), zeros);
}

void clear_sums(const void *context, int64_t first, int64_t last) {
  const GroupedCall &call = *static_cast<const GroupedCall *>(context);
  memset(call.sums + first * call.columns, 0, static_cast<size_t>((last - first) * call.columns) * sizeof(float));
}

void put_sums(const void *context, int64_t first, int64_t last) {
  const GroupedCall &call = *static_cast<const GroupedCall *>(context);
  for (int64_t row = first; row < last; ++row)
    for (int64_t c = 0; c < call.columns; c += kColumns)
      put_row(call.results, row, call.column + c, least(kColumns, call.columns - c),
              call.sums + row * call.columns + c);
}

int64_t columns_of_sums(const dlfp4_matrix &result) {
  const int64_t fitting = kMostSums / (result.rows * int64_t{sizeof(float)} + 1) / kColumns * kColumns;
  return least(result.columns, fitting < kLeastColumnsOfSums ? kLeastColumnsOfSums : fitting);
}

void multiply_weighted(GroupedCall *call) {
  const dlfp4_matrix &result = call->results.matrix;
  const int64_t most = columns_of_sums(result), grain = divide_up(kTileGrain, most);
  for (call->column = 0; call->column < result.columns; call->column += most) {
    call->columns = least(most, result.columns - call->column);
    parallel_for_tiles(result.rows, grain, clear_sums, call);
    multiply_all(call);
    parallel_for_tiles(result.rows, grain, put_sums, call);
  }
}

void multiply_plainly(GroupedCall *call) {
  const int64_t rest = call->groups->rows - last_end(*call->groups);
  call->columns = call->results.matrix.columns;
  multiply_all(call);
  parallel_for_tiles(rest, divide_up(kTileGrain, call->columns), put_zeros, call);
}

// --- Arguments -------------------------------------------------------------------------------

bool are_in_order(const dlfp4_groups &groups) {
  int64_t last = 0;
  for (int64_t e = 0; e < groups.experts; ++e) {
    if (groups.ends[e] < last) return false;
    last = groups.ends[e];
  }
  return last <= groups.rows;
}

dlfp4_status make_call(const Product &product, const dlfp4_groups &groups, const dlfp4_matrix &result, float alpha,
                       GroupedCall *call) {
  const dlfp4_status status = make_job(product, result, alpha, call);
  if (status != DLFP4_OK) return status;
  if (!are_in_order(groups) || !groups.weights != !groups.scatter) return DLFP4_E_SHAPE;
  if (!groups.scatter && result.rows != groups.rows) return DLFP4_E_SHAPE;
  call->groups = &groups;
  return DLFP4_OK;
}

// What the workspace holds, one after another; each is a multiple of kAlign.
struct WorkspaceSize {
  int64_t prepared, segments, sums;
};

WorkspaceSize size_workspace(const GroupedCall &call) {
  WorkspaceSize size = {};
  int64_t bytes = 0, count = 0, most = 0;
  each_segment(call, [&](const Segment &segment, const Sides &sides) {
    const int64_t more = bytes_of_rows(sides, segment.rows);
    if (fills_workspace(bytes, more)) bytes = count = 0;
    bytes += more;
    size.prepared = bytes > size.prepared ? bytes : size.prepared;
    most = ++count > most ? count : most;
  });
  const dlfp4_matrix &result = call.results.matrix;
  size.segments = round_up(most * int64_t{sizeof(Segment)}, kAlign);
  if (call.groups->scatter) size.sums = result.rows * columns_of_sums(result) * int64_t{sizeof(float)};
  return size;
}

}  // namespace
}  // namespace dlfp4

extern "C" {

int64_t dlfp4_host_grouped_matmul_workspace(const dlfp4_lines *a, const dlfp4_lines *b, int64_t length,
                                            const dlfp4_groups *groups, const dlfp4_matrix *result,
                                            const dlfp4_matmul_options *options) {
  using namespace dlfp4;
  GroupedCall call = {};
  const Product product = {*a, *b, groups->rows, result->columns, length, number_of(options->activation)};
  if (make_call(product, *groups, *result, options->alpha, &call) != DLFP4_OK) return -1;
  if (result->rows == 0 || result->columns == 0) return kAlign;  // as many rows as an integer holds take no memory
  const WorkspaceSize size = size_workspace(call);
  return kAlign + size.prepared + size.segments + size.sums;
}

dlfp4_status dlfp4_host_grouped_matmul(const dlfp4_lines *a, const dlfp4_lines *b, int64_t length,
                                       const dlfp4_groups *groups, const dlfp4_matrix *result,
                                       const dlfp4_matmul_options *options, void *workspace) {
  using namespace dlfp4;
  GroupedCall call = {};
  const Product product = {*a, *b, groups->rows, result->columns, length, number_of(options->activation)};
  const dlfp4_status status = make_call(product, *groups, *result, options->alpha, &call);
  if (status != DLFP4_OK || result->rows == 0 || result->columns == 0) return status;
  if (!workspace) return DLFP4_E_OPTION;
  const WorkspaceSize size = size_workspace(call);
  call.prepared = align(workspace);
  call.segments = reinterpret_cast<Segment *>(call.prepared + size.prepared);
  if (groups->scatter) {
    call.sums = reinterpret_cast<float *>(call.prepared + size.prepared + size.segments);
    multiply_weighted(&call);
  } else {
    multiply_plainly(&call);
  }
  return DLFP4_OK;
}
}
