// The blocks of rows of floats that are compared, as hosts count them.
#ifndef DLFP4_SRC_RULES_GRID_H_
#define DLFP4_SRC_RULES_GRID_H_

#include <stdint.h>

#include "changes.h"
#include "matrix.h"
#include "operations.h"

namespace dlfp4 {

struct GridSize {
  int64_t down, along;
};

inline GridSize size_of(const dlfp4_grid &grid) {
  return {divide_up(grid.rows, grid.lines), divide_up(grid.columns, grid.length)};
}

inline bool is_grid(const dlfp4_grid &grid) {
  return grid.rows >= 0 && grid.columns >= 0 && grid.lines > 0 && grid.length > 0 &&
         (grid.length % kSums == 0 || grid.length >= grid.columns);
}

}  // namespace dlfp4

#endif  // DLFP4_SRC_RULES_GRID_H_
