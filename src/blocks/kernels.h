// The kernels of block scaling that a level may have, for one line or one row of a tile at a time.
// Layout: floats in order; codes packed along a line, or one a byte across lines.
// Trick: a null entry falls through to the next level, as with KernelRow; the scalar level has them all.
#ifndef DLFP4_SRC_BLOCKS_KERNELS_H_
#define DLFP4_SRC_BLOCKS_KERNELS_H_

#include <stdint.h>

#include "rules/block_keys.h"
#include "rules/operations.h"
#include "rules/scaling.h"

namespace dlfp4 {

// How values become scaled ones, and these elements; they saturate.
struct BlockMode {
  dlfp4_rounding rounding;
  bool divides;   // by what would be multiplied with
  int mantissa;   // what quotients are rounded to
  float zero;     // added to each product: -0 keeps all as it is, +0 drops the sign of -0
  uint64_t seed;  // stochastic rounding draws for the elements of indices first, first + step, ...
  uint64_t first;
  uint64_t step;
};

constexpr int kNumRoundings = DLFP4_STOCHASTIC + 1;
constexpr int kMostBits = 8;  // of an element, or of a scale that is turned

constexpr int64_t kErrorBlock = 16;  // elements of a line, of blocks that four over six chooses scales for

// Four over six: what each block, or line, is multiplied with and what its scale is worth, on 6 and on 4.
struct ErrorParams {
  const ScaleRule *rule;
  const float *multipliers[2];
  const float *scales[2];
};

// What `set_scale` makes of a tensor scale, one for each line.
struct TensorScales {
  const float *first;
  const float *second;
  const float *unit;
};

// What codes of integers become values by: decoded_with of scaling.h. One a block, or one an element.
struct Affine {
  const float *scales;
  const float *offsets;  // zero points, or
  bool are_biases;
};

// Pointers to numbers are aligned, pointers to bytes need not be. No byte past what is named is read or written.
//
// "count" elements make up blocks of "block" each: a multiple of 16, or at least `count` (one block). The last one may
// be incomplete: 8-bit elements may end anywhere, packed elements where they fill whole bytes.
struct BlockKernels {
  // amax[b] = the bits of block b's largest magnitude as float32. NaN and infinity win as integers do.
  void (*find_largest[kNumSources])(const uint8_t *src, int64_t count, int64_t block, uint32_t *amax);

  // amax[i] = max(amax[i], |src[i]|), of so many rows, `stride` bytes apart, of blocks that run across rows.
  void (*join_largest[kNumSources])(const uint8_t *src, int64_t stride, int64_t rows, int64_t count, uint32_t *amax);

  // The scales of `count` blocks, codes of the key's type, and multipliers. Returns whether a block has no finite
  // magnitude.
  bool (*find_scales[kNumKeys])(const ScaleRule &rule, const uint32_t *amax, int64_t count, uint8_t *stored,
                                float *multipliers);

  // The same of blocks of lines that have tensor scales of their own, a line each. Of DLFP4_TWO_LEVEL alone.
  bool (*find_scales_of_lines[kNumKeys])(const ScaleRule &rule, const TensorScales &of, const uint32_t *amax,
                                         int64_t count, uint8_t *stored, float *multipliers);

  // Four over six, of FP4. sixes[b] += the sum of the errors of block b's elements in order, with the first candidate;
  // fours[b] with the second: of blocks of kErrorBlock, or, add_errors, of a block of each line, as at most kErrorBlock
  // rows that are `stride` bytes apart.
  void (*sum_errors[kNumRoundings][kNumSources])(const uint8_t *src, int64_t blocks, const ErrorParams &both,
                                                 float *sixes, float *fours);
  void (*add_errors[kNumRoundings][kNumSources])(const uint8_t *src, int64_t stride, int64_t rows, int64_t count,
                                                 const ErrorParams &both, float *sixes, float *fours);

  // dst[i] = src[i] * multipliers[i / block], or src[i] divided by it, rounded and packed. None for DLFP4_UPWARD. Codes
  // of uint4 are those of int4, which the driver moves to the middle.
  void (*encode[kNumRoundings][kNumSources][kNumElements])(const uint8_t *src, int64_t count, int64_t block,
                                                           const float *multipliers, uint8_t *dst,
                                                           const BlockMode &mode);

  // codes[i] = src[i] * multipliers[i], rounded, one a byte: one row of blocks that run across rows.
  void (*encode_across[kNumRoundings][kNumSources][kNumElements])(const uint8_t *src, int64_t count,
                                                                  const float *multipliers, uint8_t *codes,
                                                                  const BlockMode &mode);

  // By the bits of a code: 4, 6 or 8. Line i of dst, `stride` bytes after line i - 1, gets codes[k * pitch + i], k <
  // rows, packed. `rows` of them fill whole bytes.
  void (*pack_across[kMostBits + 1])(const uint8_t *codes, int64_t pitch, int64_t rows, int64_t count, uint8_t *dst,
                                     int64_t stride);

  // codes[k * pitch + i] = element k, k < rows, of line i of src, `stride` bytes after line i - 1: the way back. The
  // last byte of a line need not be filled.
  void (*unpack_across[kMostBits + 1])(const uint8_t *src, int64_t stride, int64_t rows, int64_t count, uint8_t *codes,
                                       int64_t pitch);

  // scales[i] = what stored code i is worth; `decode` is the tensor's scale, for DLFP4_TWO_LEVEL. Returns whether one
  // is not finite; such runs are decoded by the scalar level.
  bool (*decode_scales[kNumKeys])(const uint8_t *stored, int64_t count, float decode, float *scales);

  // dst[i] = src[i] * scales[i / block], rounded to nearest even; packed elements from a byte on. Only the elements
  // that `count` counts are read from a packed last byte.
  void (*decode[kNumElements][kNumSources])(const uint8_t *src, int64_t count, int64_t block, const float *scales,
                                            uint8_t *dst);

  // dst[i] = codes[i] * scales[i] of codes one a byte: one row of blocks that run across rows.
  void (*decode_across[kNumElements][kNumSources])(const uint8_t *codes, int64_t count, const float *scales,
                                                   uint8_t *dst);

  // The same of integers with zero points or biases; none of floats.
  void (*decode_affine[kNumElements][kNumSources])(const uint8_t *src, int64_t count, int64_t block, const Affine &by,
                                                   uint8_t *dst);
  void (*decode_affine_across[kNumElements][kNumSources])(const uint8_t *codes, int64_t count, const Affine &by,
                                                          uint8_t *dst);

  // The Hadamard transform of a run's sixteens, and its inverse: see rules/hadamard.h. `count` is a multiple of 16.
  void (*rotate[kNumSources])(const uint8_t *src, int64_t count, uint32_t rotation, float *dst);
  void (*rotate_back[kNumSources])(const float *src, int64_t count, uint32_t rotation, uint8_t *dst);

  // The same of sixteen rows of `count` elements, `stride` bytes or `pitch` floats apart.
  void (*rotate_across[kNumSources])(const uint8_t *src, int64_t stride, int64_t count, uint32_t rotation, float *dst,
                                     int64_t pitch);
  void (*rotate_across_back[kNumSources])(const float *src, int64_t pitch, int64_t count, uint32_t rotation,
                                          uint8_t *dst, int64_t stride);

  // The bits of the largest magnitude of what `rotate` and `rotate_across` make, without that being made; infinity
  // where one is not finite.
  uint32_t (*largest_rotated[kNumSources])(const uint8_t *src, int64_t count, uint32_t rotation);
  uint32_t (*largest_rotated_across[kNumSources])(const uint8_t *src, int64_t stride, int64_t count, uint32_t rotation);

  // What became of each element, and its magnitude before where that is finite, else 0; and the sums of the squared
  // errors of blocks, which are added to what is there. See rules/changes.h.
  void (*compare)(const float *before, const float *after, int64_t count, float *changes, float *sizes);
  void (*add_squares)(const float *exact, const float *decoded, int64_t count, int64_t block, double *sums);
};

// The kernels of a level, with those of slower levels where it has none.
const BlockKernels &block_kernels(int level);

}  // namespace dlfp4

#endif  // DLFP4_SRC_BLOCKS_KERNELS_H_
