// What hosts know of the kernels of block scaling.
#ifndef DLFP4_SRC_BLOCKS_CUDA_BLOCK_KERNELS_H_
#define DLFP4_SRC_BLOCKS_CUDA_BLOCK_KERNELS_H_

#include "gpu/keys.h"

namespace dlfp4 {
namespace cuda {

// What there are kernels for; 0 is kByName.
enum BlockOperation {
  kFindLargest = 1,
  kFindLargestOfRotatedRows,
  kFindLargestOfRotatedColumns,
  kFindLargestOfEachColumn,
  kQuantizeAny,
  kQuantizeRows,
  kQuantizeLines,
  kQuantizeRepeatingSquares,
  kQuantizeSquares,
  kQuantizeWhole,
  kQuantizeTile,
  kQuantizeTileOfSquares,
  kQuantizeStrip,
  kQuantizeRotatedRows,
  kQuantizeRotatedTile,
  kQuantizeChoosingRows,
  kQuantizeChoosingTile,
  kQuantizeTileOfLines,
  kQuantizeColumns,
  kQuantizeHeldColumns,
  kDequantizeRows,
  kDequantizeTile,
  kDequantizeAcross,
  kDequantizeRotatedRows,
  kDequantizeRotatedTile,
  kDequantizeRotatedAcross
};

}  // namespace cuda
}  // namespace dlfp4

#define DLFP4_CUDA_IMAGE_NAME blocks
#define DLFP4_CUDA_IMAGE_LIST "blocks/cuda/blocks.def"
#include "gpu/kernels_of_image.h"

#endif  // DLFP4_SRC_BLOCKS_CUDA_BLOCK_KERNELS_H_
