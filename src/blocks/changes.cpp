// What a conversion changes: dlfp4_host_find_changes, dlfp4_host_sum_up_changes, dlfp4_host_take_better.
// Layout: rows of floats, runs of at most kRun elements of one row at a time.
// Trick: threads take rows whether or not these share blocks: what they find only grows.
#include <string.h>

#include "host/level.h"
#include "host/threads.h"
#include "kernels.h"
#include "rules/changes.h"
#include "rules/grid.h"

namespace dlfp4 {
namespace {

constexpr int64_t kRun = 2048;       // elements of a row at a time
constexpr int64_t kGrain = 1 << 16;  // elements worth a thread
constexpr int64_t kMostBlocks = kRun / kSums;

// Calls body(first column, columns) for runs of a row: whole blocks, or parts of one.
template <class Body>
void for_runs(const dlfp4_grid &grid, const Body &body) {
  const int64_t length = least(grid.length, grid.columns), in_run = length < kRun ? kRun / length * length : kRun;
  for (int64_t block = 0; block < grid.columns; block += length < kRun ? grid.columns : length) {
    const int64_t end = length < kRun ? grid.columns : least(block + length, grid.columns);
    for (int64_t first = block; first < end; first += in_run) body(first, least(in_run, end - first));
  }
}

struct Search {
  dlfp4_grid grid;
  const float *before, *after;
  uint32_t *changes, *sizes;
  const BlockKernels *kernels;
};

// Raises the numbers of the blocks of a run to those of its elements.
void raise_blocks(const Search &search, const float *values, int64_t count, uint32_t *places) {
  const int64_t blocks = divide_up(count, search.grid.length);
  uint32_t largest[kMostBlocks];
  search.kernels->find_largest[kFromFloat32](reinterpret_cast<const uint8_t *>(values), count, search.grid.length,
                                             largest);
  for (int64_t i = 0; i < blocks; ++i) raise(places + i, largest[i]);
}

void search_rows(const void *context, int64_t first_row, int64_t last_row) {
  const Search &search = *static_cast<const Search *>(context);
  const int64_t along = size_of(search.grid).along;
  alignas(64) float changes[kRun], sizes[kRun];
  for (int64_t row = first_row; row < last_row; ++row) {
    for_runs(search.grid, [&](int64_t first, int64_t count) {
      const int64_t start = row * search.grid.columns + first;
      const int64_t place = row / search.grid.lines * along + first / search.grid.length;
      search.kernels->compare(search.before + start, search.after + start, count, changes, sizes);
      raise_blocks(search, changes, count, search.changes + place);
      raise_blocks(search, sizes, count, search.sizes + place);
    });
  }
}

struct Sum {
  const float *changes, *sizes;
  uint64_t changed, largest;
};

void sum_up_range(const void *context, int64_t first, int64_t last) {
  Sum &sum = *static_cast<Sum *>(const_cast<void *>(context));
  uint64_t changed = 0;
  double largest = 0;
  for (int64_t i = first; i < last; ++i) {
    if (sum.changes[i] == 0) continue;
    const double change = relative_change(sum.changes[i], sum.sizes[i]);
    largest = change > largest ? change : largest;
    ++changed;
  }
  uint64_t bits;
  memcpy(&bits, &largest, sizeof(bits));
  raise(&sum.largest, bits);
  __atomic_fetch_add(&sum.changed, changed, __ATOMIC_RELAXED);
}

struct Choice {
  dlfp4_grid grid;
  const float *exact;
  int64_t code_bytes;
  dlfp4_stored best, other;
  const BlockKernels *kernels;

  int64_t last_row(int64_t down) const { return least((down + 1) * grid.lines, grid.rows); }

  void add_squares(int64_t down, int64_t first, int64_t columns, const float *values, double *sums) const {
    for (int64_t row = down * grid.lines; row < last_row(down); ++row) {
      const int64_t start = row * grid.columns + first;
      kernels->add_squares(exact + start, values + start, columns, grid.length, sums);
    }
  }

  void take(int64_t down, int64_t block) const {
    const int64_t along = size_of(grid).along;
    best.scales[down * along + block] = other.scales[down * along + block];
    for (int64_t row = down * grid.lines; row < last_row(down); ++row) {
      const int64_t start = (row * along + block) * code_bytes;
      memcpy(best.codes + start, other.codes + start, static_cast<size_t>(code_bytes));
    }
  }
};

void choose_in_rows(const void *context, int64_t first_down, int64_t last_down) {
  const Choice &choice = *static_cast<const Choice *>(context);
  for (int64_t down = first_down; down < last_down; ++down) {
    for_runs(choice.grid, [&](int64_t first, int64_t count) {
      double best[kMostBlocks] = {}, other[kMostBlocks] = {};
      choice.add_squares(down, first, count, choice.best.values, best);
      choice.add_squares(down, first, count, choice.other.values, other);
      const int64_t block = first / choice.grid.length, blocks = divide_up(count, choice.grid.length);
      for (int64_t i = 0; i < blocks; ++i)
        if (other[i] < best[i]) choice.take(down, block + i);
    });
  }
}

}  // namespace
}  // namespace dlfp4

extern "C" {

dlfp4_status dlfp4_host_find_changes(const dlfp4_grid *grid, const float *before, const float *after, float *changes,
                                     float *sizes, int joins) {
  using namespace dlfp4;
  const int level = current_level();
  if (level < 0) return DLFP4_E_ISA;
  if (!is_grid(*grid)) return DLFP4_E_SHAPE;
  const GridSize size = size_of(*grid);
  if (size.down * size.along == 0) return DLFP4_OK;
  if (!joins) {
    memset(changes, 0, static_cast<size_t>(size.down * size.along) * sizeof(float));
    memset(sizes, 0, static_cast<size_t>(size.down * size.along) * sizeof(float));
  }
  const Search search = {*grid,
                         before,
                         after,
                         reinterpret_cast<uint32_t *>(changes),
                         reinterpret_cast<uint32_t *>(sizes),
                         &block_kernels(level)};
  parallel_for_tiles(grid->rows, divide_up(kGrain, grid->columns), search_rows, &search);
  return DLFP4_OK;
}

dlfp4_status dlfp4_host_sum_up_changes(const float *changes, const float *sizes, int64_t blocks,
                                       dlfp4_changes *result) {
  using namespace dlfp4;
  Sum sum = {changes, sizes, 0, 0};
  if (blocks > 0) parallel_for(blocks, kGrain, sum_up_range, &sum);
  result->changed = sum.changed;
  memcpy(&result->largest, &sum.largest, sizeof(result->largest));
  return DLFP4_OK;
}

dlfp4_status dlfp4_host_take_better(const dlfp4_grid *grid, const float *exact, int64_t code_bytes,
                                    const dlfp4_stored *best, const dlfp4_stored *other) {
  using namespace dlfp4;
  const int level = current_level();
  if (level < 0) return DLFP4_E_ISA;
  if (!is_grid(*grid) || grid->length > kRun) return DLFP4_E_SHAPE;
  const GridSize size = size_of(*grid);
  if (size.down * size.along == 0) return DLFP4_OK;
  const Choice choice = {*grid, exact, code_bytes, *best, *other, &block_kernels(level)};
  parallel_for_tiles(size.down, divide_up(kGrain, grid->lines * grid->columns), choose_in_rows, &choice);
  return DLFP4_OK;
}
}
