// The image of products with prepared weights: the kernels of products.def.
#include "few_rows.cuh"
#include "gpu/image.cuh"
#include "many_rows.cuh"
#include "prepare.cuh"

#include "products.def"
