// Walks the elements of two views of one shape, in row-major order, from any index.
// Layout: any strides (zero, negative, packed at any bit), at most 63 dimensions once collapsed.
// Trick: dimensions merge where both sides allow; the rest is gathered into blocks of plain codes.
#ifndef DLFP4_SRC_RULES_WALK_H_
#define DLFP4_SRC_RULES_WALK_H_

#include <stdint.h>

#include "operand.h"
#include "operations.h"

namespace dlfp4 {

constexpr int kMaxDims = 63;  // extents of at least 2 each: more elements than memory has

enum Side { kSrc, kDst };

// The shape that two views share. The last dimension runs fastest; there is always one.
struct Walk {
  int ndim;
  int64_t size;
  int64_t extent[kMaxDims];
  int64_t stride[2][kMaxDims];
};

// False where the elements are too many to count. `size` is 0 for an empty shape, whose other
// members are then not set.
bool collapse(const dlfp4_view &src, const dlfp4_view &dst, Walk *walk);

// True where elements next to each other in the last dimension are so in memory, on both sides.
bool has_contiguous_rows(const Walk &walk);

// True where all elements are neighbours, on both sides.
bool is_run(const Walk &walk);

// True where the elements of a side are neighbours in row-major order.
bool is_row_major(const Walk &walk, Side side);

// True where each row of `side` starts on a byte.
bool rows_start_on_bytes(const Walk &walk, Side side, Operand operand);

// True where the elements of a side fill one stretch of memory, in whatever order.
bool is_dense(const Walk &walk, Side side);

// A place in the row-major order of one side.
struct Cursor {
  const Walk *walk;
  const int64_t *stride;
  int64_t offset;  // from the view's first element, in elements
  int64_t index[kMaxDims];
};

Cursor cursor_at(const Walk &walk, Side side, int64_t element);

// Moves by whole or partial rows; never past the end of a row at once.
void advance(Cursor *cursor, int64_t elements);

// Reads `count` elements as unpacked codes, and writes them; both move the cursor. Sub-byte codes
// are cleared of stray bits; the neighbours in a shared byte keep theirs.
void gather(Operand operand, const uint8_t *data, Cursor *cursor, uint8_t *codes, int64_t count);
void scatter(Operand operand, uint8_t *data, Cursor *cursor, const uint8_t *codes, int64_t count);

}  // namespace dlfp4

#endif  // DLFP4_SRC_RULES_WALK_H_
