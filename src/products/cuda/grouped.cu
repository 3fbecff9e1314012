// The image of products by experts: the kernels of grouped.def.
#include "gpu/image.cuh"
#include "grouped.cuh"

#include "grouped.def"
