// The scalar level's kernels for products, in a file of their own.
// Layout: as in product_kernels.h.
// Trick: complete; all other levels fall through to it.
#include "scalar.h"

namespace dlfp4 {

extern const ProductKernels scalar_products;
const ProductKernels scalar_products = kProductKernels;

}  // namespace dlfp4
