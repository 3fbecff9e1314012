// What the host hands to the kernels: plain structs, the same on both sides.
// Layout: strides count elements, offsets are from the first element.
// Trick: one struct a kernel, passed by value; a launch needs no memory of its own.
#ifndef DLFP4_SRC_GPU_PARAMS_H_
#define DLFP4_SRC_GPU_PARAMS_H_

#include <stdint.h>

#include "rules/numerics.h"

namespace dlfp4 {
namespace cuda {

constexpr int kThreads = 256, kWarpSize = 32;
constexpr unsigned kAllLanes = 0xFFFFFFFF;
constexpr int kStep = 16;  // elements at a time of a thread of the fast kernels
constexpr int kMostDims = 12;

// Floats to codes of at most 8 bits, rounded to nearest even: see encode_rule.h.
struct EncodeParams {
  uint32_t limit, lowest, magic, shift;
  uint32_t sign;       // the code's sign bit
  uint32_t nan, flip;  // of a NaN: nan ^ (sign & flip)
  bool drops_sign_of_zero;
};

// The driver's description of a matrix for bulk copies of boxes (CUtensorMap).
struct alignas(64) TensorMap {
  uint64_t words[16];
};

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_GPU_PARAMS_H_
