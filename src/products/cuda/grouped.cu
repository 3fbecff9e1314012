// The image of products by experts: the kernels of grouped.def.
#include "gpu/image.cuh"
#include "grouped.cuh"
#include "grouped_stream.cuh"

#include "grouped.def"
