// The image of sums of products: the kernels of dots.def.
#include "dots.cuh"
#include "gpu/image.cuh"

#include "dots.def"
