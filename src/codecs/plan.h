// Which kernels serve a conversion at a level.
// Layout: operands as in kernels.h, contiguous runs of any length.
// Trick: a plan is one kernel where a level has it, else unpack, convert and pack block by block.
#ifndef DLFP4_SRC_CODECS_PLAN_H_
#define DLFP4_SRC_CODECS_PLAN_H_

#include "kernels.h"

namespace dlfp4 {

// The kernels of a conversion in the order in which they run; null ones have nothing to do. `whole` does it all where
// it is there.
struct Plan {
  Operand src;
  Operand dst;
  Kernel whole;
  Kernel unpack;
  Kernel convert;
  Kernel pack;
};

// Whether they are equal types or both floats.
bool are_convertible(Operand from, Operand to);

// `src` and `dst` are convertible.
Plan make_plan(int level, Operand src, Operand dst, const Mode &mode);

void run_plan(const Plan &plan, const uint8_t *src, uint8_t *dst, int64_t count, const Mode &mode);

}  // namespace dlfp4

#endif  // DLFP4_SRC_CODECS_PLAN_H_
