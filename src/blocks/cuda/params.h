// What hosts hand to the kernels of block scaling, and the shapes that both count on.
#ifndef DLFP4_SRC_BLOCKS_CUDA_PARAMS_H_
#define DLFP4_SRC_BLOCKS_CUDA_PARAMS_H_

#include <stdint.h>

#include "gpu/params.h"
#include "rules/hadamard.h"
#include "rules/numerics.h"
#include "rules/scaling.h"

namespace dlfp4 {
namespace cuda {

// What a block of threads takes that works along columns, or turns rows into columns.
constexpr int kTileRows = 128, kTileColumns = 128, kBoxBytes = 128;  // the last of a row of a box
DLFP4_RULE int strip_columns(int item) { return 256 / item; }        // 256 bytes of a row
constexpr int kAcrossLength = 32;     // of columns of bytes, the elements that share a scale, or more of them
constexpr int kSquaresColumns = 128;  // of squares along rows: those of 16 of a warp, larger ones of a block of threads
constexpr int kColumnsOfThread = 4;   // of columns of bytes that were rotated, those of a thread

// Of lines that have a scale each: the steps that a thread holds, and the threads that a line may have, for two blocks
// of which a multiprocessor has registers.
constexpr int kStepsOfLine = 2;
DLFP4_RULE int most_of_line(int item) { return item == 4 ? 512 : 640; }

// Of columns that have a scale each: a block of threads has steps side by side, whose rows its warps share out.
constexpr int kRowsOfThread = 32, kRowsOfBlock = kRowsOfThread * (kThreads / kWarpSize);
constexpr int kColumnsOfBlock = kStep * kWarpSize;

// The same where clusters hold all of a column: tiles of a box each, behind what a strip's threads share.
constexpr int kHeldBytes = 1024, kMostHoldingThreads = 1024, kMostHolders = 8;
DLFP4_RULE int held_columns(int item) { return kBoxBytes / item; }
DLFP4_RULE int team_of_tile(int item) { return held_columns(item) / 2 * (kTileRows / kStep); }
DLFP4_RULE int64_t held_bytes(int64_t tiles) { return kHeldBytes + tiles * kTileRows * kBoxBytes; }

// Shared memory: for what a tile's threads share of a rule, then for its floats, then for codes of a byte.
constexpr int kTileRuleBytes = 1024;
DLFP4_RULE int tile_bytes(int item) { return kTileRows * kTileColumns * item; }

constexpr int kLargestAhead = 8;  // vectors of 16 bytes a thread, of the search for the largest

// Lines of whole steps: how many there are, where a line starts. The quotient of a step's number and `in_line` is
// (t + ((number - t) >> before)) >> after, with t the upper half of number * magic (Granlund, Montgomery, "Division by
// invariant integers using multiplication", PLDI'94).
struct StepLines {
  uint32_t steps, in_line;
  uint32_t magic, before, after;
  int64_t float_bytes, code_bytes;  // from one line to the next
};

// A transform of rules/hadamard.h, 0: none, and its quarters with signs: constants, one instruction an element.
struct Rotation {
  uint32_t signs;
  float quarters[kRotatedLength];
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
  // The whole tensor's largest magnitude or decode scale, on the device; both null where the format has neither, or the
  // scale is a number.
  const uint32_t *amax;
  const float *decode;
  float *decodes;      // the decode scales of lines, where each has its own; or null
  bool finds_decodes;  // they are found, not given
  int team;            // threads that share a line, of kernels that take whole ones
  ScaleRule rule;
  float number;
  float *keep[2];             // where a given decode scale is written to, or null
  int64_t lines, length;      // of the matrix
  int64_t line_stride, step;  // of src
  int64_t stored;             // elements of a stored line, zeros included
  int64_t data_stride, data_step;
  int layout;
  int64_t scale_stride, scale_step, pitch;
  int64_t group, block;  // lines and elements that share a scale
  int64_t blocks;        // of a line
  bool repeats, whole;
  ElementType source, element, scale;
  dlfp4_rounding rounding;
  float zero;
  bool plus_zeros;  // codes of -0 become those of +0
  uint64_t seed, first;
  Rotation rotation;
  uint32_t middle;  // what codes are moved by: of integers without a sign
};

struct QuantizeRowsParams {
  QuantizeParams quantize;
  EncodeParams encode;
};

// A cluster of so many blocks of threads, each with so many tiles.
struct HeldParams {
  QuantizeParams quantize;
  EncodeParams encode;
  int cluster, tiles;
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
  const float *decode;   // the tensor's scale, on the device; null: 1
  const float *decodes;  // or those of some lines each
  uint32_t decode_lines;
  int line_shift, block_shift;  // log2 of the lines and elements that share a scale
  int layout;
  int64_t scale_stride, scale_step, pitch;
  int64_t data_stride, data_step;
  int64_t lines, length;
  int64_t line_stride, step;
  ElementType element, scale, target;
  Rotation rotation;       // to undo
  const uint8_t *offsets;  // of integers: zero points or biases; null: none
  int64_t offset_stride, offset_step;
  int offset_bits;  // 32: biases
  bool offset_is_signed;
};

struct LargestParams {
  const uint8_t *src;
  int64_t lines, length;
  int64_t line_stride, step;
  ElementType source;
  bool finite_only;
  uint32_t *largest;
  StepLines walk;
  Rotation rotation;
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
  int64_t src_stride, src_step, src_pitch, dst_pitch;
  int64_t rows, columns, padded_rows, padded_columns;
  int bytes;  // of a scale: 1 or 4
  int fill;   // of every byte of the padding
};

constexpr int kPartOfRow = 512;  // elements that a warp compares

struct ChangesParams {
  const float *before, *after;
  uint32_t *changes, *sizes;  // bits of floats
  int64_t rows, columns, lines, length;
  int64_t along;  // blocks
  int64_t parts;  // of a row
};

struct SumParams {
  const float *changes, *sizes;
  int64_t blocks;
  unsigned long long *changed, *largest;  // the bits of a double
};

struct ChoiceParams {
  const float *exact, *best_values, *other_values;
  uint8_t *best_codes, *best_scales;
  const uint8_t *other_codes, *other_scales;
  int64_t rows, columns, lines, length, along, blocks;
  int64_t code_bytes;
};

struct ShuffleParams {
  const uint8_t *src;
  uint8_t *dst;
  int64_t rows, columns;
  bool back;
};

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_BLOCKS_CUDA_PARAMS_H_
