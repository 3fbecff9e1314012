// What the host hands to the kernels: plain structs, the same on both sides.
// Layout: strides count elements, offsets are from the first element.
// Trick: one struct a kernel, passed by value; a launch needs no memory of its own.
#ifndef DLFP4_SRC_CUDA_PARAMS_H_
#define DLFP4_SRC_CUDA_PARAMS_H_

#include <stdint.h>

#include "../numerics.h"
#include "../scaling.h"

namespace dlfp4 {
namespace cuda {

constexpr int kThreads = 256;
constexpr int kStep = 16;                          // elements at a time of a thread of the fast kernels
constexpr int kTileRows = 128, kTileColumns = 64;  // of a block of threads that works along columns
constexpr int kMostDims = 12;

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
  bool copies;  // equal types: bits are moved
};

// A matrix of floats as lines, and its quantized form.
struct QuantizeParams {
  const uint8_t *src;
  int64_t lines, length;      // of the matrix
  int64_t line_stride, step;  // of src
  int64_t stored;             // elements of a stored line, zeros included
  uint8_t *data;
  int64_t data_stride, data_step;
  uint8_t *scales;
  int layout;
  int64_t scale_stride, scale_step, padded_columns;
  int64_t group, block;  // lines and elements that share a scale
  int64_t blocks;        // of a line
  bool repeats, whole;
  Format source, element;
  ScaleRule rule;
  dlfp4_rounding rounding;
  float zero;
  uint64_t seed;
  // The whole tensor's largest magnitude or decode scale, on the device; both null where the format has neither.
  const uint32_t *amax;
  const float *decode;
  float *keep[2];  // where a given decode scale is written to, or null
  int steps;       // of a thread, for blocks of one row
};

struct QuantizeRowsParams {
  QuantizeParams quantize;
  EncodeParams encode;
};

// Blocks along rows of row-major memory, along its columns, or both: `data` is null of what is not asked for.
struct TileParams {
  QuantizeParams rows, columns;
  EncodeParams encode;
  int64_t tiles_in_row;
};

struct DequantizeParams {
  const uint8_t *data;
  int64_t data_stride, data_step;
  const uint8_t *scales;
  int layout;
  int64_t scale_stride, scale_step, padded_columns;
  int line_shift, block_shift;  // log2 of the lines and elements that share a scale
  int kind;
  const float *decode;  // the tensor's scale, on the device; null: 1
  Format element, scale, target;
  uint8_t *dst;
  int64_t lines, length;
  int64_t line_stride, step;
};

struct LargestParams {
  const uint8_t *src;
  int64_t lines, length;
  int64_t line_stride, step;
  Format source;
  bool finite_only;
  uint32_t *largest;
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

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_CUDA_PARAMS_H_
