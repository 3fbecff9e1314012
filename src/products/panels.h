// Matrix products by panels: some lines of the second side, transposed and decoded once for all rows.
// Layout: as in kernels.h.
// Trick: FP4 is unpacked, scaled and transposed in one go; other elements are decoded line by line, then transposed.
#ifndef DLFP4_SRC_PRODUCTS_PANELS_H_
#define DLFP4_SRC_PRODUCTS_PANELS_H_

#include <stdint.h>

#include "rows.h"

namespace dlfp4 {

void multiply_panels(const Tile &tile);

}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_PANELS_H_
