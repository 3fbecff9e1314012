// Walks the elements of two views of one shape, in row-major order, from any index.
// Layout: any strides (zero, negative, packed at any bit), at most 63 dimensions once collapsed.
// Trick: one loop over rows, instantiated for each size of element and each direction.
#include "walk.h"

#include <string.h>

namespace dlfp4 {
namespace {

bool is_empty(const dlfp4_view &view) {
  for (int32_t dim = 0; dim < view.ndim; ++dim)
    if (view.shape[dim] == 0) return true;
  return false;
}

bool merges(const Walk &walk, Side side, int64_t extent, int64_t stride) {
  int64_t reach;
  return !__builtin_mul_overflow(extent, stride, &reach) && walk.stride[side][walk.ndim - 1] == reach;
}

void append(Walk *walk, int64_t extent, int64_t src_stride, int64_t dst_stride) {
  const int last = walk->ndim - 1;
  if (last >= 0 && merges(*walk, kSrc, extent, src_stride) && merges(*walk, kDst, extent, dst_stride)) {
    walk->extent[last] *= extent;
  } else {
    ++walk->ndim;
    walk->extent[last + 1] = extent;
  }
  walk->stride[kSrc][walk->ndim - 1] = src_stride;
  walk->stride[kDst][walk->ndim - 1] = dst_stride;
}

int64_t left_in_row(const Cursor &cursor) {
  const int last = cursor.walk->ndim - 1;
  return cursor.walk->extent[last] - cursor.index[last];
}

void next_row(Cursor *cursor) {
  const Walk &walk = *cursor->walk;
  for (int dim = walk.ndim - 1; dim > 0 && cursor->index[dim] == walk.extent[dim]; --dim) {
    cursor->offset += cursor->stride[dim - 1] - walk.extent[dim] * cursor->stride[dim];
    cursor->index[dim] = 0;
    ++cursor->index[dim - 1];
  }
}

// Elements of whole bytes.
template <int Bytes>
struct Whole {
  static constexpr int kCodeBytes = Bytes;
  static void load(const uint8_t *data, int64_t offset, uint8_t *code) { memcpy(code, data + offset * Bytes, Bytes); }
  static void store(uint8_t *data, int64_t offset, const uint8_t *code) { memcpy(data + offset * Bytes, code, Bytes); }
};

// Elements of less than a byte, in a byte each.
template <int Bits>
struct Padded {
  static constexpr int kCodeBytes = 1;
  static constexpr uint8_t kMask = (1 << Bits) - 1;
  static void load(const uint8_t *data, int64_t offset, uint8_t *code) { *code = data[offset] & kMask; }
  static void store(uint8_t *data, int64_t offset, const uint8_t *code) { data[offset] = *code & kMask; }
};

// Elements of less than a byte, at any bit: a second byte is touched only where one spills into it.
template <int Bits>
struct Packed {
  static constexpr int kCodeBytes = 1;
  static constexpr unsigned kMask = (1u << Bits) - 1;
  static void load(const uint8_t *data, int64_t offset, uint8_t *code) { *code = packed_code(data, offset, Bits); }
  static void store(uint8_t *data, int64_t offset, const uint8_t *code) {
    const int64_t bit = offset * Bits;
    uint8_t *at = data + (bit >> 3);
    const int shift = bit & 7;
    const unsigned hole = kMask << shift, word = (*code & kMask) << shift;
    at[0] = static_cast<uint8_t>((at[0] & ~hole) | word);
    if (shift + Bits > 8) at[1] = static_cast<uint8_t>((at[1] & ~(hole >> 8)) | word >> 8);
  }
};

struct Gather {
  const uint8_t *data;
  Cursor *cursor;
  uint8_t *codes;
  int64_t count;

  template <class Element>
  void row(int64_t first, int64_t elements) const {
    const int64_t stride = cursor->stride[cursor->walk->ndim - 1];
    for (int64_t i = 0; i < elements; ++i)
      Element::load(data, cursor->offset + i * stride, codes + (first + i) * Element::kCodeBytes);
  }
};

struct Scatter {
  uint8_t *data;
  Cursor *cursor;
  const uint8_t *codes;
  int64_t count;

  template <class Element>
  void row(int64_t first, int64_t elements) const {
    const int64_t stride = cursor->stride[cursor->walk->ndim - 1];
    for (int64_t i = 0; i < elements; ++i)
      Element::store(data, cursor->offset + i * stride, codes + (first + i) * Element::kCodeBytes);
  }
};

template <class Element, class Move>
void each_row(const Move &move) {
  for (int64_t done = 0; done < move.count;) {
    const int64_t left = left_in_row(*move.cursor), wanted = move.count - done;
    const int64_t elements = left < wanted ? left : wanted;
    move.template row<Element>(done, elements);
    advance(move.cursor, elements);
    done += elements;
  }
}

template <int Bits, class Move>
void move_small(bool packed, const Move &move) {
  if (packed) return each_row<Packed<Bits>>(move);
  each_row<Padded<Bits>>(move);
}

template <class Move>
void move_elements(Operand operand, const Move &move) {
  switch (dlfp4_dtypes[operand.row].bits) {
    case 2:
      return move_small<2>(operand.packed, move);
    case 4:
      return move_small<4>(operand.packed, move);
    case 6:
      return move_small<6>(operand.packed, move);
    case 8:
      return each_row<Whole<1>>(move);
    case 16:
      return each_row<Whole<2>>(move);
    case 32:
      return each_row<Whole<4>>(move);
    case 64:
      return each_row<Whole<8>>(move);
    case 128:
      return each_row<Whole<16>>(move);
  }
}

bool have_one_shape(const dlfp4_view &src, const dlfp4_view &dst) {
  if (src.ndim != dst.ndim || src.ndim < 0) return false;
  for (int32_t dim = 0; dim < src.ndim; ++dim)
    if (src.shape[dim] != dst.shape[dim] || src.shape[dim] < 0) return false;
  return true;
}

}  // namespace

bool collapse(const dlfp4_view &src, const dlfp4_view &dst, Walk *walk) {
  walk->ndim = 0;
  walk->size = 0;
  if (!have_one_shape(src, dst)) return false;
  if (is_empty(src)) return true;
  walk->size = 1;
  for (int32_t dim = 0; dim < src.ndim; ++dim) {
    const int64_t extent = src.shape[dim];
    if (extent == 1) continue;
    if (__builtin_mul_overflow(walk->size, extent, &walk->size)) return false;
    append(walk, extent, src.strides[dim], dst.strides[dim]);
  }
  if (walk->ndim == 0) append(walk, 1, 1, 1);
  return true;
}

bool has_contiguous_rows(const Walk &walk) {
  return walk.stride[kSrc][walk.ndim - 1] == 1 && walk.stride[kDst][walk.ndim - 1] == 1;
}

bool is_run(const Walk &walk) { return walk.ndim == 1 && has_contiguous_rows(walk); }

bool is_row_major(const Walk &walk, Side side) {
  int64_t stride = 1;
  for (int dim = walk.ndim - 1; dim >= 0; --dim) {
    if (walk.stride[side][dim] != stride) return false;
    stride *= walk.extent[dim];
  }
  return true;
}

bool rows_start_on_bytes(const Walk &walk, Side side, Operand operand) {
  if (!operand.packed) return true;
  for (int dim = 0; dim < walk.ndim - 1; ++dim)
    if (walk.stride[side][dim] * dlfp4_dtypes[operand.row].bits % 8 != 0) return false;
  return true;
}

bool is_dense(const Walk &walk, Side side) {
  int64_t last = 0;
  for (int dim = 0; dim < walk.ndim; ++dim) {
    if (walk.stride[side][dim] < 0) return false;
    last += (walk.extent[dim] - 1) * walk.stride[side][dim];
  }
  return last == walk.size - 1;
}

Cursor cursor_at(const Walk &walk, Side side, int64_t element) {
  Cursor cursor;
  cursor.walk = &walk;
  cursor.stride = walk.stride[side];
  cursor.offset = 0;
  for (int dim = walk.ndim - 1; dim > 0; --dim) {
    cursor.index[dim] = element % walk.extent[dim];
    element /= walk.extent[dim];
    cursor.offset += cursor.index[dim] * cursor.stride[dim];
  }
  cursor.index[0] = element;
  cursor.offset += element * cursor.stride[0];
  return cursor;
}

void advance(Cursor *cursor, int64_t elements) {
  const int last = cursor->walk->ndim - 1;
  cursor->index[last] += elements;
  cursor->offset += elements * cursor->stride[last];
  next_row(cursor);
}

void gather(Operand operand, const uint8_t *data, Cursor *cursor, uint8_t *codes, int64_t count) {
  move_elements(operand, Gather{data, cursor, codes, count});
}

void scatter(Operand operand, uint8_t *data, Cursor *cursor, const uint8_t *codes, int64_t count) {
  move_elements(operand, Scatter{data, cursor, codes, count});
}

}  // namespace dlfp4
