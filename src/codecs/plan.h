// Which kernel serves a conversion at the level in use.
// Layout: operands as in kernels.h, contiguous runs of any length.
// Trick: a plan is one kernel where a level has it, else unpack, convert and pack block by block.
#ifndef DLFP4_SRC_CODECS_PLAN_H_
#define DLFP4_SRC_CODECS_PLAN_H_

#include <string.h>

#include "kernels.h"

namespace dlfp4 {

// The kernels of a conversion in the order in which they run; a null one has nothing to do. `whole`
// is alone where it is there.
struct Plan {
  Operand src;
  Operand dst;
  Kernel whole;
  Kernel unpack;
  Kernel convert;
  Kernel pack;
};

// The level in use as an index, or -1: DLFP4_ISA names a level that is not there.
int current_level();

// The row of a DLPack type with lanes = 1, or -1.
int find_row(uint8_t code, uint8_t bits);

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

// Whether they are equal types or both floats.
bool are_convertible(Operand from, Operand to);

// `src` and `dst` are convertible.
Plan make_plan(int level, Operand src, Operand dst, const Mode &mode);

void run_plan(const Plan &plan, const uint8_t *src, uint8_t *dst, int64_t count, const Mode &mode);

}  // namespace dlfp4

#endif  // DLFP4_SRC_CODECS_PLAN_H_
