// What quantizing and dequantizing share: a matrix as lines, the place of a scale, the rule of a format and a recipe.
// Layout: line i, position k; blocks run along lines, which are the matrix's rows or its columns.
// Trick: rows and columns differ in their strides alone.
#ifndef DLFP4_SRC_RULES_MATRIX_H_
#define DLFP4_SRC_RULES_MATRIX_H_

#include <stdint.h>

#include "block_keys.h"
#include "formats.h"
#include "layouts.h"
#include "operations.h"
#include "scaling.h"

namespace dlfp4 {

// Floats as lines; strides count elements.
struct Lines {
  uint8_t *data;
  Source source;
  int64_t item;  // bytes of an element
  int64_t lines, length;
  int64_t line_stride, step;
  uint32_t rotation;  // of hadamard.h: what stands for the elements; 0: they themselves
};

enum Direction { kAlongRows, kAlongColumns };

// False where the type is none of the sources.
bool make_lines(const dlfp4_matrix &matrix, Direction direction, Lines *lines);

inline uint8_t *at(const Lines &x, int64_t line, int64_t position) {
  return x.data + (line * x.line_stride + position * x.step) * x.item;
}

constexpr int64_t kWholeLine = int64_t{1} << 62;  // longer than any line, and can be added to one
static_assert(kWholeLine > INT64_MAX / 4 && kWholeLine <= INT64_MAX - INT64_MAX / 4, "INT64_MAX bits, 4 an element");

// A format with what follows from it.
struct FormatInfo {
  const dlfp4_format_row *row;
  int element;      // its place among the elements: see block_keys.h
  int key;          // the place of its blocks among the keys
  int bits;         // of an element
  int scale_bytes;  // of a stored scale
  int64_t block;    // elements of a line that share a scale
  int64_t group;    // lines that share a scale; 1 for a whole tensor
  bool whole;       // one scale for the tensor
  bool line;        // one scale for a line
  bool integers;    // elements are integers, which may have zero points or biases
  int number;       // its row of formats.def
};

// Tiles across lines that are neighbours in memory.
constexpr int64_t kTileLines = 512;
constexpr int64_t kTileLength = 128;             // positions, a multiple of every block
constexpr int64_t kTilePitch = kTileLines + 64;  // of rows: a power of two would have them share a cache's few places
constexpr int64_t kTileBlocks = kTileLength / kLeastBlock;  // of a line
static_assert(kTileLength % kMostBlock == 0 && kTileBlocks * kLeastBlock == kTileLength, "tiles end where blocks do");
static_assert(kTileLines % 64 == 0, "only the last tile has a part of a vector");
static_assert(kTilePitch % 64 == 0 && kTilePitch > kTileLines, "rows of tiles start on lines of a cache");

// False where there is no such format.
bool find_format(int number, FormatInfo *format);

// The scales of a quantized matrix in memory.
struct Scales {
  uint8_t *data;
  int layout;
  int bytes;
  int64_t stride, step;  // linear: between rows and columns of the matrix of scales
  int64_t pitch;         // of other layouts: see layouts.h
  int64_t lines_per_row;
};

Scales make_scales(const dlfp4_blocks &blocks, const FormatInfo &format);

// Of a line, of formats with two levels, whose tensor may have one decode scale, `decode`, or one for some lines.
inline float decode_of_line(const dlfp4_blocks &blocks, float decode, int64_t line) {
  return blocks.decodes ? blocks.decodes[line / blocks.decode_lines] : decode;
}

// Whether all lines of floats, codes and scales can be read as one, which saves the cost of short lines.
bool are_one_line(const dlfp4_blocks &blocks, const Scales &scales, const Lines &floats, const FormatInfo &format);

// `count` scales of a line's blocks, from `block` on, to and from memory.
void store_scales(const Scales &scales, int64_t line, int64_t block, int64_t count, const uint8_t *stored);
void load_scales(const Scales &scales, int64_t line, int64_t block, int64_t count, uint8_t *stored);

// The same for one block of `count` lines, from `line` on.
void store_scales_across(const Scales &scales, int64_t line, int64_t count, int64_t block, const uint8_t *stored);
void load_scales_across(const Scales &scales, int64_t line, int64_t count, int64_t block, uint8_t *stored);

// Of integers with offsets: whether these are biases, or zero points.
bool has_biases(const dlfp4_blocks &blocks);

// Those of `count` blocks of a line from `block` on, or, across, of a block of `count` lines from `line` on. Returns
// whether a bias is not finite.
bool load_offsets(const dlfp4_blocks &blocks, int64_t line, int64_t block, int64_t count, float *offsets);
bool load_offsets_across(const dlfp4_blocks &blocks, int64_t line, int64_t count, int64_t block, float *offsets);

// Whether the offsets of blocks, if there are some, are of a type that kernels read, and the format has a use for them.
bool has_known_offsets(const dlfp4_blocks &blocks, const FormatInfo &format);

// Whether lines of so many elements may be stored: whole blocks, but for bytes under float32 scales, whose last block
// may be incomplete; whole bytes.
bool has_whole_blocks(const FormatInfo &format, int64_t length);

// Whether quantizing can set the zero points that a result has.
bool can_set_offsets(const dlfp4_blocks &blocks, const FormatInfo &format);

// True where packed lines start on bytes and have no gaps between elements, or elements are bytes.
bool is_addressable(const dlfp4_blocks &blocks, const FormatInfo &format, int64_t lines);

inline uint8_t *line_at(const dlfp4_blocks &blocks, const FormatInfo &format, int64_t line, int64_t position) {
  return static_cast<uint8_t *>(blocks.data) +
         (line * blocks.strides[0] + position * blocks.strides[1]) * format.bits / 8;
}

inline int64_t divide_up(int64_t count, int64_t size) { return (count + size - 1) / size; }

inline int64_t round_up(int64_t value, int64_t multiple) { return divide_up(value, multiple) * multiple; }

inline int log2_of(int64_t power) { return __builtin_ctzll(static_cast<unsigned long long>(power)); }

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// Copies elements of `item` bytes between memory with and without gaps.
void gather_items(const uint8_t *src, int64_t step, int64_t item, int64_t count, uint8_t *dst);
void scatter_items(const uint8_t *src, int64_t item, int64_t count, uint8_t *dst, int64_t step);

}  // namespace dlfp4

#endif  // DLFP4_SRC_RULES_MATRIX_H_
