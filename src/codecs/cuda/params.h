// What hosts hand to the kernels of conversions.
#ifndef DLFP4_SRC_CODECS_CUDA_PARAMS_H_
#define DLFP4_SRC_CODECS_CUDA_PARAMS_H_

#include <stdint.h>

#include "gpu/params.h"
#include "rules/numerics.h"

namespace dlfp4 {
namespace cuda {

// One side of a conversion. `stride` belongs to the shape that both sides share.
struct Place {
  uint8_t *data;
  ElementType format;
  int bits;  // from one element to the next where their stride is 1
  int64_t stride[kMostDims];
};

// Any conversion, a group of up to eight elements a thread. A group stays within a row, or, where the destination is
// compact, counts on through all rows: packed rows need not start on bytes then.
struct ConvertParams {
  Place src, dst;
  int ndim;
  int64_t extent[kMostDims];
  bool compact;
  int64_t size;
  int64_t groups_in_row;
  int64_t groups;
  int group;  // elements
  int kind;   // a row of NanRule
  Round round;
  uint64_t seed;
  uint64_t first;  // the logical index of the first element
  bool copies;     // equal types: bits are moved
  bool shares;     // bits of a last byte that no group fills are other elements'
};

// kRun: one run on both sides, by vectors alone.
enum StepLayout { kRun, kStrided, kNumStepLayouts };

// One side of steps, in bytes.
struct StepsOfSide {
  int64_t of_element;  // from one element of a step to the next
  bool together;       // these are neighbours, in memory that vectors load and store
};

// A dimension of steps: how many, and bytes from one to the next.
struct StepsOfDim {
  int64_t extent;
  int64_t src, dst;
};

// Steps of kStep elements in any layout. The last dimension is that of neighbouring threads. What all kernels read
// comes first, see QuantizeParams.
struct Steps {
  const uint8_t *src;
  uint8_t *dst;
  int64_t count;
  StepsOfSide from, to;
  int ndim;
  StepsOfDim dims[kMostDims];
};

// Floats to codes, rounded to nearest even.
struct EncodeStepsParams {
  Steps steps;
  EncodeParams encode;
};

// Codes to floats, codes to other codes, floats to floats.
struct DecodeParams {
  int of_thread;  // steps, where threads do not walk
  bool copies;    // equal types: bits are moved
  Round round;
  Steps steps;
  ElementType from, to;
};

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_CODECS_CUDA_PARAMS_H_
