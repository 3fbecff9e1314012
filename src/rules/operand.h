// One side of an operation: which type its elements have, and whether they are packed.
// Layout: packed (sub-byte types only), or an element a byte and more.
#ifndef DLFP4_SRC_RULES_OPERAND_H_
#define DLFP4_SRC_RULES_OPERAND_H_

#include <stdint.h>
#include <string.h>

#include "dtypes.h"
#include "operations.h"

namespace dlfp4 {

struct Operand {
  uint8_t row;  // of dtypes.def
  bool packed;
};

// What the elements of a view are; false where they are of no known type.
bool find_operand(const dlfp4_view &view, Operand *operand);

// Bits from one element to the next.
inline int spacing(Operand operand) {
  const int bits = dlfp4_dtypes[operand.row].bits;
  return operand.packed || bits > 8 ? bits : 8;
}

// A field that is an enum, as the number that it is in memory: C callers may store any.
template <class Enum>
int number_of(const Enum &field) {
  int number;
  static_assert(sizeof(number) == sizeof(field), "an enum is as wide as an int");
  memcpy(&number, &field, sizeof(number));
  return number;
}

inline bool is_rounding(const dlfp4_rounding &field) {
  return number_of(field) >= DLFP4_NEAREST_EVEN && number_of(field) <= DLFP4_STOCHASTIC;
}

// A code of at most a byte among packed ones, at any bit: a second byte is read only where it spills into that.
static inline uint8_t packed_code(const uint8_t *data, int64_t element, int bits) {
  const int64_t bit = element * bits;
  const uint8_t *const at = data + (bit >> 3);
  const int shift = static_cast<int>(bit & 7);
  unsigned word = at[0];
  if (shift + bits > 8) word |= static_cast<unsigned>(at[1]) << 8;
  return static_cast<uint8_t>(word >> shift & ((1u << bits) - 1));
}

// Copies `bits` of codes, without a last byte's spare bits.
static inline void copy_codes(uint8_t *dst, const uint8_t *src, int64_t bits) {
  memcpy(dst, src, static_cast<size_t>((bits + 7) / 8));
  if (bits % 8) dst[bits / 8] &= static_cast<uint8_t>((1 << bits % 8) - 1);
}

}  // namespace dlfp4

#endif  // DLFP4_SRC_RULES_OPERAND_H_
