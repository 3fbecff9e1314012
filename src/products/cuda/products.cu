// The image of products with prepared weights: the kernels of products.def.
#include "byte_walk.cuh"
#include "few_rows.cuh"
#include "gpu/image.cuh"
#include "prepare.cuh"

#include "products.def"
