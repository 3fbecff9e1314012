// Matrix products of few rows: the second side's lines are multiplied as they lie, without panels.
// Layout: as reader.h reads them.
// Trick: all lines are multiplied by as many positions of the rows as fit a cache, then by the next ones.
#ifndef DLFP4_SRC_PRODUCTS_FEW_ROWS_H_
#define DLFP4_SRC_PRODUCTS_FEW_ROWS_H_

#include <stdint.h>

#include "rows.h"

namespace dlfp4 {

void multiply_few_rows(const Tile &tile);

}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_FEW_ROWS_H_
