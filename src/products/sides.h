// The two sides of a matrix product, and the form in which they are multiplied.
// Layout: as reader.h reads them.
// Trick: the form follows from what holds both sides exactly, and from the number of rows.
#ifndef DLFP4_SRC_PRODUCTS_SIDES_H_
#define DLFP4_SRC_PRODUCTS_SIDES_H_

#include <stdint.h>

#include "kernels.h"
#include "reader.h"

namespace dlfp4 {

// By panels: float32; bfloat16, if it holds the elements of both sides; bfloat16 without float32 scales, if these
// multiply the sums of blocks; integers of a byte, for FP4 by FP4 or by int8. By lines as they lie, for few rows:
// bfloat16 in the order of spread_bfloat by FP4; bfloat16 by other elements; integers by FP4; FP4 by FP4; float32 by
// anything.
enum Form {
  kFloatPanels,
  kBfloatPanels,
  kScaledPanels,
  kIntegerPanels,
  kSpreadLines,
  kElementLines,
  kRoundedLines,
  kBlockLines,
  kFloatLines,
};

struct Sides {
  const ProductKernels *kernels;
  Reader a, b;
  Form form;
  bool rounds;      // a's floats to int8
  int64_t parts;    // of bfloat16 that a row of wider floats is made of
  int64_t columns;  // lines of b
  int64_t length;   // positions that are multiplied
  int64_t depth;    // the same, completed with zeros to whole blocks or pairs
  int64_t block;    // of FP4 and of integers, and of scales that sums are multiplied with
};

// What is asked for: so many rows, lines of a, by so many columns, lines of b, each of `length` elements.
struct Product {
  const dlfp4_lines &a, &b;
  int64_t rows, columns, length;
  int activation;  // a dlfp4_activation, or any other number
};

// DLFP4_OK, or why there is no such product.
dlfp4_status make_sides(const Product &product, int level, Sides *sides);

// Chooses the form, and what follows from it, for another number of a's rows.
void choose_form(Sides *sides, int64_t rows);

// FP4 in blocks whose scales are bytes.
bool is_scaled_fp4(const Reader &reader);

// Whether lines lie in order, and each starts on a byte.
bool lies_in_bytes(const Reader &reader);

// Whether scales are float32, whose product with an element a bfloat16 cannot hold, and multiply sums of elements:
// those of integers, which may have zero points, do not.
bool has_float_scales(const Reader &reader);

inline bool has_panels(const Sides &sides) { return sides.form <= kIntegerPanels; }
inline bool are_integer_panels(const Sides &sides) {
  return sides.form == kIntegerPanels || sides.form == kRoundedLines;
}
inline bool has_floats(const Sides &sides) { return sides.form == kFloatPanels || sides.form == kFloatLines; }

// Bytes of an element of a row; none where a is not prepared.
inline int64_t item_of(const Sides &sides) {
  return sides.form == kBlockLines ? 0 : are_integer_panels(sides) ? 1 : has_floats(sides) ? 4 : 2;
}

}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_SIDES_H_
