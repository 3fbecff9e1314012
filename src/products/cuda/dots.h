// What hosts hand to the kernels of dots.
#ifndef DLFP4_SRC_PRODUCTS_CUDA_DOTS_H_
#define DLFP4_SRC_PRODUCTS_CUDA_DOTS_H_

#include <stdint.h>

#include "gpu/params.h"
#include "rules/numerics.h"

namespace dlfp4 {
namespace cuda {

// One side of sums of products, as lines: see dlfp4_lines.
struct DotSide {
  const uint8_t *data;
  int dtype;  // a row of dtypes.def
  ElementType element;
  bool is_signed;             // of integers
  int bits;                   // from one element to the next where their step is 1
  int64_t line_stride, step;  // in elements
  int64_t first;              // line
  int64_t stride[kMostDims];  // in lines
  const uint8_t *scales;      // null: none, or one of the whole tensor
  int layout;
  int64_t scale_stride, scale_step, pitch;
  int line_shift, block_shift;  // log2 of the lines and elements that share a scale
  int kind;
  int key;  // the place of such blocks among kBlockKeys
  // The tensor's scale, on the device, or those of lines: of number n decode[n / decode_lines * decode_stride].
  // Null: 1.
  const float *decode;
  int64_t decode_lines, decode_stride;
  ElementType scale;
};

struct DotParams {
  DotSide a, b;
  int ndim;
  int64_t extent[kMostDims];  // of lines
  int64_t lines, length;
  int64_t segment, segments;  // elements, and of a line
  int team;                   // threads that share a segment: a part of a warp, a warp or kThreads
  const double *parts;        // what add_segments reads: `length` a line
  double *sums;               // of segments; null: one segment is a line, and goes to
  float *result;
};

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_CUDA_DOTS_H_
