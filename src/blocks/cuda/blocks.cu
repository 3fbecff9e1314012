// The image of block scaling: the kernels of blocks.def.
#include "blocks.cuh"
#include "changes.cuh"
#include "columns.cuh"
#include "gpu/image.cuh"

#include "blocks.def"
