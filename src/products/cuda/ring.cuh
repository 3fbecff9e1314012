// The ring of blocks in shared memory that kernels for many rows copy into and multiply from.
// Layout: many_rows.h's.
// A barrier of a stage says that it is full, another that it is empty.
#ifndef DLFP4_SRC_PRODUCTS_CUDA_RING_CUH_
#define DLFP4_SRC_PRODUCTS_CUDA_RING_CUH_

#include "gpu/async.cuh"
#include "many_rows.h"

namespace dlfp4 {
namespace cuda {

#ifdef DLFP4_HOPPER
// A warpgroup's number, in a form in which the compiler knows that a warp agrees on it. All lanes have to ask.
__device__ inline int warpgroup() { return __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x / kWarpgroup), 0); }

// A thread's place in its warpgroup.
__device__ inline int lane_of_warp() { return threadIdx.x % kWarpSize; }
__device__ inline int warp_of_group() { return threadIdx.x % kWarpgroup / kWarpSize; }

template <int Kind>
struct Ring {
  uint32_t x, weights, scales, full, empty;
  int rows, x_bytes, code_bytes, weight_bytes, scale_bytes, stages;

  __device__ Ring(int rows_of_x, int halves, int count, int first)
      : rows(rows_of_x),
        x_bytes(x_stage_bytes(rows_of_x)),
        code_bytes(code_stage_bytes(Kind, halves)),
        weight_bytes(weight_stage_bytes(Kind, halves)),
        scale_bytes(scale_stage_bytes(Kind, rows_of_x, halves)),
        stages(count) {
    x = shared_address(shared_memory) + first;
    weights = x + stages * x_bytes;
    scales = weights + stages * weight_bytes;
    full = scales + stages * scale_bytes;
    empty = full + stages * 8;
  }

  __device__ void init(int producers, int consumers) const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < stages; ++i) {
        init_barrier(full + 8 * i, producers);
        init_barrier(empty + 8 * i, consumers);
      }
      publish_barriers();
    }
    __syncthreads();
  }
};

// A stage of the ring, and how often the ring has been passed, modulo two.
struct Turn {
  int stage, phase = 0;
  __device__ explicit Turn(int first) : stage(first) {}
  __device__ void advance(int by, int stages) {
    stage += by;
    if (stage >= stages) stage -= stages, phase ^= 1;
  }
};

// Which blocks along K: `count` of them, of which a consumer takes `first`, first + `by`, ...
struct Blocks {
  int count, first, by;
};
#endif  // DLFP4_HOPPER

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_CUDA_RING_CUH_
