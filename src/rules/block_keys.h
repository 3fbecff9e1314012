// What kernels of block scaling are told apart by, on the host and on the device: floats, elements, kinds of blocks.
// Layout: lists in the order in which formats.def first names their items; a place in one indexes tables of kernels.
// Trick: all of it is made of formats.def while compiling; a row that kernels could not serve stops the build.
#ifndef DLFP4_SRC_RULES_BLOCK_KEYS_H_
#define DLFP4_SRC_RULES_BLOCK_KEYS_H_

#include <stdint.h>

#include "formats.h"
#include "numerics.h"

namespace dlfp4 {

// The floats that elements come from and go to.
enum Source { kFromFloat32, kFromBfloat16, kFromFloat16, kNumSources };
constexpr int kSourceRows[kNumSources] = {DLFP4_float32, DLFP4_bfloat16, DLFP4_float16};

// How elements in blocks are scaled. Kernels walk a line at a time: they need not know how many lines share a block, or
// whether these repeat its scale.
struct BlockKey {
  int element;     // a row of dtypes.def
  int scale;       // a row of dtypes.def
  int kind;        // dlfp4_scale_kind
  int64_t length;  // elements of a line that share a scale; kWholeLines: all; 0: one scale for the whole tensor
};

constexpr int64_t kWholeLines = -2;  // -1 is kAnything of keys.h

namespace {

constexpr bool operator==(const BlockKey &a, const BlockKey &b) {
  return a.element == b.element && a.scale == b.scale && a.kind == b.kind && a.length == b.length;
}

constexpr BlockKey key_of_row(const dlfp4_format_row &row) {
  return {row.element, row.scale, row.kind, row.length == 0 && row.lines == 1 ? kWholeLines : row.length};
}

// Items without repetitions, in the order in which they are added; at most one a format.
template <class Item>
struct List {
  Item item[DLFP4_NUM_FORMATS];
  int size;

  constexpr const Item &operator[](int place) const { return item[place]; }

  // An item's place, or -1.
  constexpr int find(const Item &wanted) const {
    int place = size - 1;
    while (place >= 0 && !(item[place] == wanted)) --place;
    return place;
  }

  constexpr void add(const Item &other) {
    if (find(other) < 0) item[size++] = other;
  }
};

constexpr List<int> list_elements() {
  List<int> elements = {};
  for (const dlfp4_format_row &row : dlfp4_formats) elements.add(row.element);
  return elements;
}

constexpr List<BlockKey> list_keys() {
  List<BlockKey> keys = {};
  for (const dlfp4_format_row &row : dlfp4_formats) keys.add(key_of_row(row));
  return keys;
}

// The formats' elements, rows of dtypes.def, and their kinds of blocks.
constexpr List<int> kElementRows = list_elements();
constexpr List<BlockKey> kBlockKeys = list_keys();

}  // namespace

constexpr int kNumElements = kElementRows.size;
constexpr int kNumKeys = kBlockKeys.size;

namespace {

// The place of a type among the sources or the elements, and of a kind of block among the keys, or -1. This is the only
// way to a place: do not count on an order.
constexpr int source_of(int row) {
  int place = kNumSources - 1;
  while (place >= 0 && kSourceRows[place] != row) --place;
  return place;
}

constexpr int element_of(int row) { return kElementRows.find(row); }

constexpr int place_of_key(const BlockKey &key) { return kBlockKeys.find(key); }

// What encoders make of an element: integers without a sign come from those with one.
constexpr int encoded_row(int row) { return row == DLFP4_uint4 ? DLFP4_int4 : row; }

// --- What a row of formats.def must be -------------------------------------------------------

constexpr int64_t kLeastBlock = 16, kMostBlock = 128;  // elements, of blocks that are no whole tensor

constexpr bool is_element(ElementType f) {
  return is_float(f) && f.specials != DLFP4_E8M0 && (f.bits == 4 || f.bits == 6 || f.bits == 8);
}

constexpr bool is_integer_row(const dlfp4_format_row &row) { return is_block_integer(kTypes[row.element]); }

// Integers may have a zero point or a bias a block, which lines do not share.
constexpr bool is_integer_block(const dlfp4_format_row &row) {
  return row.kind == DLFP4_LARGEST && row.lines == 1 && kTypes[row.element].bits == 4;
}

constexpr bool is_extent(int64_t extent, int64_t smallest) {
  return extent >= smallest && extent <= kMostBlock && (extent & (extent - 1)) == 0;
}

constexpr bool is_block(const dlfp4_format_row &row) {
  return row.length == 0 ? row.lines == 0 || row.lines == 1
                         : is_extent(row.length, kLeastBlock) && is_extent(row.lines, 1);
}

constexpr bool is_scale(const dlfp4_format_row &row) {
  const ElementType scale = kTypes[row.scale];
  if (row.kind == DLFP4_POWER) return scale.specials == DLFP4_E8M0 && largest_exponent(kTypes[row.element]) >= 1;
  if (row.kind == DLFP4_LARGEST) return row.scale == DLFP4_float32;
  return is_element(scale) && scale.bits == 8;
}

#define DLFP4_BLOCK_FORMAT(name, element, lines, length, scale, rule, repeats)                                     \
  static_assert(is_element(kTypes[DLFP4_##element]) || is_block_integer(kTypes[DLFP4_##element]),                  \
                "formats.def, " #name                                                                              \
                ": kernels know elements that are floats of 4, 6 or 8 bits, int4 and uint4; add others to them");  \
  static_assert(                                                                                                   \
      !is_integer_row(dlfp4_formats[DLFP4_FORMAT_##name]) || is_integer_block(dlfp4_formats[DLFP4_FORMAT_##name]), \
      "formats.def, " #name ": integers are scaled by LARGEST, in blocks of one line");                            \
  static_assert(is_block(dlfp4_formats[DLFP4_FORMAT_##name]),                                                      \
                "formats.def, " #name                                                                              \
                ": a block is 0 x 0, 1 x 0, or 1 to 128 lines of 16 to 128 elements, powers of two; "              \
                "longer ones need larger tiles and panels");                                                       \
  static_assert(is_scale(dlfp4_formats[DLFP4_FORMAT_##name]),                                                      \
                "formats.def, " #name                                                                              \
                ": scales are a float8 for TWO_LEVEL, float8_e8m0fnu of elements from 2 on for POWER, "            \
                "float32 for LARGEST; scaling.h has no rule for others");                                          \
  static_assert((length) > 0 || DLFP4_##rule == DLFP4_LARGEST,                                                     \
                "formats.def, " #name ": one scale for the whole tensor, or for a line, comes by LARGEST alone");  \
  static_assert(DLFP4_##rule != DLFP4_LARGEST || kTypes[DLFP4_##element].bits == 8 ||                              \
                    is_integer_row(dlfp4_formats[DLFP4_FORMAT_##name]),                                            \
                "formats.def, " #name ": blocks by LARGEST may be incomplete, which packed elements cannot be");   \
  static_assert((repeats) == 0 || (lines) > 1, "formats.def, " #name ": only what lines share can be repeated");
#include "formats.def"
#undef DLFP4_BLOCK_FORMAT

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_RULES_BLOCK_KEYS_H_
