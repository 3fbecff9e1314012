// What the host hands to the kernels: plain structs, the same on both sides.
// Layout: strides count elements, offsets are from the first element.
// Trick: one struct a kernel, passed by value; a launch needs no memory of its own.
#ifndef DLFP4_SRC_GPU_PARAMS_H_
#define DLFP4_SRC_GPU_PARAMS_H_

#include <stdint.h>

#include "products/cuda/few_rows.h"
#include "products/cuda/many_rows.h"
#include "rules/numerics.h"
#include "rules/scaling.h"

namespace dlfp4 {
namespace cuda {

constexpr int kThreads = 256;
constexpr int kStep = 16;  // elements at a time of a thread of the fast kernels
// What a block of threads takes that works along columns, or turns rows into columns.
constexpr int kTileRows = 128, kTileColumns = 128;
DLFP4_RULE int strip_columns(int item) { return 256 / item; }  // 256 bytes of a row
constexpr int kAcrossLength = 32;     // of columns of bytes, the elements that share a scale, or more of them
constexpr int kSquaresColumns = 128;  // of squares of 16 along rows, those of a warp

// Shared memory: for what a tile's threads share of a rule, then for its floats, then for codes of a byte.
constexpr int kTileRuleBytes = 1024;
DLFP4_RULE int tile_bytes(int item) { return kTileRows * kTileColumns * item; }

constexpr int kMostDims = 12;
constexpr int kLargestAhead = 8;  // vectors of 16 bytes a thread, of the search for the largest

// One side of a conversion. `stride` belongs to the shape that both sides share.
struct Place {
  uint8_t *data;
  Format format;
  int bits;  // from one element to the next where their stride is 1
  int64_t stride[kMostDims];
};

// Any conversion, a group of up to eight elements a thread. A group stays within a row, or, where the destination is
// compact, counts on through all rows: packed rows need not start on bytes then.
struct ConvertParams {
  Place src, dst;
  int ndim;
  int64_t extent[kMostDims];
  bool compact;
  int64_t size;
  int64_t groups_in_row;
  int64_t groups;
  int group;  // elements
  int kind;   // a row of NanRule
  Round round;
  uint64_t seed;
  uint64_t first;  // the logical index of the first element
  bool copies;     // equal types: bits are moved
  bool shares;     // bits of a last byte that no group fills are other elements'
};

// Floats to codes of at most 8 bits in one run, rounded to nearest even: see encode_rule.h.
struct EncodeParams {
  const uint8_t *src;
  uint8_t *dst;
  int64_t steps;  // of kStep elements
  uint32_t limit, lowest, magic, shift;
  uint32_t sign;       // the code's sign bit
  uint32_t nan, flip;  // of a NaN: nan ^ (sign & flip)
  bool drops_sign_of_zero;
};

// Codes to floats, or to other codes, in one run.
struct DecodeParams {
  const uint8_t *src;
  uint8_t *dst;
  int64_t steps;
  Format from, to;
  Round round;
  bool copies;    // equal types: bits are moved
  int of_thread;  // steps, where threads do not walk
};

// Lines of whole steps: how many there are, where a line starts. The quotient of a step's number and `in_line` is
// (t + ((number - t) >> before)) >> after, with t the upper half of number * magic (Granlund, Montgomery, "Division by
// invariant integers using multiplication", PLDI'94).
struct StepLines {
  uint32_t steps, in_line;
  uint32_t magic, before, after;
  int64_t float_bytes, code_bytes;  // from one line to the next
};

// A matrix of floats as lines, and its quantized form. What all kernels read comes first, in few lines of the constant
// cache: where a call is short, each line that a multiprocessor fetches is a tenth of it.
struct QuantizeParams {
  const uint8_t *src;
  uint8_t *data;
  uint8_t *scales;
  StepLines walk;  // of blocks of one row
  int steps;       // of a thread that takes them
  bool flat;       // one line, whose scales follow one another
  // The whole tensor's largest magnitude or decode scale, on the device; both null where the format has neither.
  const uint32_t *amax;
  const float *decode;
  ScaleRule rule;
  float *keep[2];             // where a given decode scale is written to, or null
  int64_t lines, length;      // of the matrix
  int64_t line_stride, step;  // of src
  int64_t stored;             // elements of a stored line, zeros included
  int64_t data_stride, data_step;
  int layout;
  int64_t scale_stride, scale_step, padded_columns;
  int64_t group, block;  // lines and elements that share a scale
  int64_t blocks;        // of a line
  bool repeats, whole;
  Format source, element, scale;
  dlfp4_rounding rounding;
  float zero;
  uint64_t seed;
};

struct QuantizeRowsParams {
  QuantizeParams quantize;
  EncodeParams encode;
};

// Blocks along rows of row-major memory, along its columns, or both: `data` is null of what is not asked for.
struct TileParams {
  QuantizeParams rows, columns;
  EncodeParams encode;
  uint32_t tiles_in_row;
};

struct DequantizeParams {
  const uint8_t *data;
  const uint8_t *scales;
  uint8_t *dst;
  StepLines walk;  // of blocks along rows
  int steps;       // of a thread that takes them
  bool flat;       // one line, whose scales follow one another
  int kind;
  const float *decode;          // the tensor's scale, on the device; null: 1
  int line_shift, block_shift;  // log2 of the lines and elements that share a scale
  int layout;
  int64_t scale_stride, scale_step, padded_columns;
  int64_t data_stride, data_step;
  int64_t lines, length;
  int64_t line_stride, step;
  Format element, scale, target;
};

struct LargestParams {
  const uint8_t *src;
  int64_t lines, length;
  int64_t line_stride, step;
  Format source;
  bool finite_only;
  uint32_t *largest;
  StepLines walk;
};

struct TensorScaleParams {
  uint32_t *places[2];  // for the decode scale; the first holds the magnitude, the second may be null
  int kind;
  ScaleRule rule;
};

struct ScalesParams {
  const uint8_t *src;
  uint8_t *dst;
  int src_layout, dst_layout;
  int64_t src_stride, src_step, src_columns;
  int64_t rows, columns, padded_rows, padded_columns;
  int fill;
};

struct ShuffleParams {
  const uint8_t *src;
  uint8_t *dst;
  int64_t rows, columns;
  bool back;
};

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

// Few rows: a block of threads has `tiles` tiles of 16 columns, all of K.
struct StreamParams {
  ProductParams product;
  int tiles;
  int slices_of_warp, full_warps;  // of K; warps from `full_warps` on have one less
  WarpMemory memory;               // shared
};

// The driver's description of a matrix for bulk copies of boxes (CUtensorMap).
struct alignas(64) TensorMap {
  uint64_t words[16];
};

// More rows: a block of threads has `halves` times 64 columns of y. With one, its two warpgroups share K.
struct ManyRowsParams {
  TensorMap x;
  TensorMap y;  // where `maps_y`
  ProductParams product;
  bool maps_y;  // results leave by bulk copies
  int halves;
  int stages;       // of the ring of blocks in flight
  WalkOrder order;  // where blocks of threads walk over tiles
};

// One side of sums of products, as lines: see dlfp4_lines.
struct DotSide {
  const uint8_t *data;
  int row;  // of dtypes.def
  Format element;
  bool is_signed;             // of integers
  int bits;                   // from one element to the next where their step is 1
  int64_t line_stride, step;  // in elements
  int64_t first;              // line
  int64_t stride[kMostDims];  // in lines
  const uint8_t *scales;      // null: none, or one of the whole tensor
  int layout;
  int64_t scale_stride, scale_step, padded_columns;
  int line_shift, block_shift;  // log2 of the lines and elements that share a scale
  int kind;
  int key;              // the place of such blocks among kBlockKeys
  const float *decode;  // the tensor's scale, on the device; null: 1
  Format scale;
};

struct DotParams {
  DotSide a, b;
  int ndim;
  int64_t extent[kMostDims];  // of lines
  int64_t lines, length;
  int64_t segment, segments;  // elements, and of a line
  int team;                   // threads that share a segment: 32 or kThreads
  const double *parts;        // what add_segments reads: `length` a line
  double *sums;               // of segments; null: one segment is a line, and goes to
  float *result;
};

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_GPU_PARAMS_H_
