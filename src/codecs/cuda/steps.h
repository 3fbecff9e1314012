// How a conversion goes by steps: which elements a thread takes at a time, and which steps neighbouring threads take.
#ifndef DLFP4_SRC_CODECS_CUDA_STEPS_H_
#define DLFP4_SRC_CODECS_CUDA_STEPS_H_

#include "params.h"
#include "rules/walk.h"

namespace dlfp4 {
namespace cuda {

// One side of a conversion: its first element, and what it is.
struct End {
  uint8_t *data;
  Operand operand;
};

struct Ends {
  End src, dst;

  const End &operator[](Side side) const { return side == kSrc ? src : dst; }
};

struct StepPlan {
  Steps steps;
  int dim;  // along which a step's elements lie; what kStep does not divide is left over
  StepLayout layout;
};

// False where no dimension has steps that kernels can read and write.
bool plan_steps(const Walk &walk, const Ends &ends, StepPlan *plan);

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_CODECS_CUDA_STEPS_H_
