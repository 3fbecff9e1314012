// What hosts hand to the kernels of products with prepared weights.
#ifndef DLFP4_SRC_PRODUCTS_CUDA_PARAMS_H_
#define DLFP4_SRC_PRODUCTS_CUDA_PARAMS_H_

#include <stdint.h>

#include "few_rows.h"
#include "gpu/params.h"
#include "many_rows.h"
#include "rules/numerics.h"

namespace dlfp4 {
namespace cuda {

// Weights of rows and columns, and their prepared form: see prepared.h.
struct PrepareParams {
  uint8_t *codes;
  int64_t code_stride, code_step;  // bytes; FP4 has no step
  uint8_t *scales;                 // null: the whole tensor has one, elsewhere
  int64_t scale_stride, scale_step;
  int64_t rows, columns;
  WeightLayout layout;
  uint8_t *prepared;
  int64_t blocks_in_row;
  int64_t threads;
  int largest;       // scale, of the kinds that store scales relative to it
  uint32_t *report;  // three numbers, see inspect_group
};

// y = alpha * x @ w.T for prepared weights w.
struct ProductParams {
  const uint8_t *weights;
  const uint8_t *x;         // rows of 16-bit floats, or of codes like the weights': 16 bytes apart or multiples of it
  int64_t x_stride;         // bytes
  const uint8_t *x_scales;  // of the codes, linear; null: x is floats
  int64_t x_scale_stride;   // bytes
  uint8_t *y;
  int64_t y_stride;           // elements
  int y_bytes;                // of an element
  bool y_is_half;             // of two bytes: float16, not bfloat16
  int rows, columns, depth;   // M, N, K
  int blocks, blocks_in_row;  // of the weights, along K: those that count, and those that are there
  float unit;                 // what one is in the prepared weights
  float alpha;
  const float *factors[2];  // scales of whole tensors, on the device, or null
  Shifts shifts;
};

// Few rows: a block of threads has at most `tiles` tiles of 16 columns at a time, all of K.
struct StreamCut {
  int tiles;
  int slices_of_warp, full_warps;  // of K; warps from `full_warps` on have one less
  WarpMemory memory;               // shared
};

// The same by experts: a warp's memory has x in all of its slices and two stages of weights. Behind all warps' lie sums
// on their way from warp to warp, with barriers, and where experts' rows and tiles end.
struct StreamedCut {
  int slices_of_warp, full_warps;
  int stage, bytes;  // of a warp's memory
  int sums, barriers, schedule;
};

struct StreamParams {
  ProductParams product;
  StreamCut cut;
};

// What one block of threads copies of a tile: `count` rows of x or of weights.
struct TileRows {
  TensorMap map;
  int count;
};

// The last tile may have fewer rows, and a map for those alone: bulk copies fill what lies outside a matrix with zeros,
// which takes longer than copying rows. Shared memory beyond them keeps old bytes, which reach no sum that is stored.
struct TiledRows {
  TileRows whole, last;
};

struct ManyRowsParams {
  TiledRows x;
  TensorMap y;  // where `maps_y`
  ProductParams product;
  bool maps_y;      // results leave by bulk copies
  int columns;      // of y, those of a block of threads
  int stages;       // of the ring of blocks in flight
  WalkOrder order;  // where blocks of threads walk over tiles
};

// Scales of FP8 matrices, or null: `lines` rows share one, which is for 128 of K or more.
struct ByteScales {
  const float *data;
  int64_t line_stride, block_stride;
  int lines;
};

struct BytesParams : ManyRowsParams {
  TiledRows weights;
  ByteScales of_x, of_weights;
};

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_CUDA_PARAMS_H_
