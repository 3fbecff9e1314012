// The image of casts, packing and unpacking: the kernels of codecs.def.
#include "convert.cuh"
#include "gpu/image.cuh"

#include "codecs.def"
