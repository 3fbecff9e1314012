// Reads what is multiplied: runs of a line's codes, scales and values, however they lie.
// Layout: in memory as dlfp4_lines says; out in order, codes packed or one a byte, values as float32 or bfloat16. Lines
// without elements may lie anywhere, and have no scales: only make_reader may be asked of them.
// Trick: elements that lie in order are read in place.
#ifndef DLFP4_SRC_PRODUCTS_READER_H_
#define DLFP4_SRC_PRODUCTS_READER_H_

#include <stdint.h>

#include "blocks/kernels.h"
#include "rules/matrix.h"
#include "rules/operand.h"

namespace dlfp4 {

// What the values of a line are to be multiplied with, beside what all are: every `lines` lines have a factor.
struct LineFactors {
  const float *data;  // null: none
  int64_t lines, stride;
};

// Between neighbours of a line. The only element of one has any, which decides nothing.
inline int64_t step_of(const dlfp4_blocks &blocks) { return blocks.length == 1 ? 1 : blocks.strides[1]; }

// One side of a product.
struct Reader {
  const dlfp4_lines *lines;
  const BlockKernels *blocks;
  const BlockKernels *scalar;
  FormatInfo format;  // of block-scaled operands
  Scales scales;
  int row;        // of dtypes.def: of the elements
  bool scaled;    // by blocks; scales of lines, but of integers, and of the whole tensor count as factors
  bool packed;    // elements share bytes
  double factor;  // what all values are to be multiplied with: the scales of the whole tensor
  LineFactors of_lines;
  int level;
};

// DLFP4_OK, or what is wrong with the description. Format and scales stay as they are if the operand is not
// block-scaled: clearing them would take longer than a short sum.
dlfp4_status make_reader(const dlfp4_lines &lines, int level, Reader *reader);

// A float32 as a double, also where the processor has been told to take subnormals for zeros.
double widen(float value);

// What the sums of a line are to be multiplied with, beside `factor`.
double factor_of_line(const Reader &reader, int64_t line);

// Whether elements are multiplied as floats. Integers of two plain operands are not.
bool is_value(const Reader &reader);

// Of an element.
int bits_in_memory(const Reader &reader);

// Where elements of a line lie in order and start on a byte, packed or not; null where they do not.
const uint8_t *find_codes(const Reader &reader, int64_t line, int64_t first);

// Unpacked elements, in place or in `buffer`.
const uint8_t *read_codes(const Reader &reader, int64_t line, int64_t first, int64_t count, uint8_t *buffer);

// Asks for the codes of [first, first + count), where they lie in order.
void prefetch_codes(const Reader &reader, int64_t line, int64_t first, int64_t count);

// Asks for the stored scales of a line's blocks up to `count`, where they lie in order.
void prefetch_scales(const Reader &reader, int64_t line, int64_t count);

// The stored scales of the blocks that hold [first, first + count), from where they lie or in `buffer`; first is a
// multiple of the block.
const uint8_t *read_stored_scales(const Reader &reader, int64_t line, int64_t first, int64_t count, uint8_t *buffer);

// The same as float32, without the scale of the whole tensor. Returns whether one is not finite.
bool read_scales(const Reader &reader, int64_t line, int64_t first, int64_t count, float *scales);

// Elements times scales, as float32 or as bfloat16 (which must hold them); without `factor`. At most kMostRead.
constexpr int64_t kMostRead = 2048;
void read_values(const Reader &reader, int64_t line, int64_t first, int64_t count, Source type, uint8_t *values);

// The same of elements alone, without the scales of their blocks.
void read_elements(const Reader &reader, int64_t line, int64_t first, int64_t count, Source type, uint8_t *values);

// Any number of elements times scales, from a block's start, completed with zeros to `depth`; float32 or bfloat16.
void read_line(const Reader &reader, int64_t line, int64_t first, int64_t count, int64_t depth, Source type,
               uint8_t *values);

}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_READER_H_
