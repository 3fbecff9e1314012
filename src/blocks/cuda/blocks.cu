// The image of block scaling: the kernels of blocks.def.
#include "blocks.cuh"
#include "changes.cuh"
#include "gpu/image.cuh"
#include "tiles.cuh"

#include "blocks.def"
