// Matrix products of few rows: the second side's lines are multiplied as they lie, without panels.
// Layout: as lines.h reads them.
// Trick: rows are multiplied by as many positions as fit a cache, by all lines, then by the next ones.
#ifndef DLFP4_SRC_PRODUCTS_FEW_ROWS_H_
#define DLFP4_SRC_PRODUCTS_FEW_ROWS_H_

#include <stdint.h>

#include "rows.h"

namespace dlfp4 {

void multiply_few_rows(const Tile &tile);

}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_FEW_ROWS_H_
