// Which rows are whose: where experts' rows end, and how many tiles of work there are up to each.
// Layout: offsets lie on the device, sums over experts in shared memory.
// Trick: nothing waits for the host: each block of threads counts for itself, an expert a lane.
#ifndef DLFP4_SRC_PRODUCTS_CUDA_ROUTING_CUH_
#define DLFP4_SRC_PRODUCTS_CUDA_ROUTING_CUH_

#include "fragments.cuh"
#include "grouped.h"

namespace dlfp4 {
namespace cuda {

__device__ inline int64_t load_integer(const Integers &from, int64_t place) {
  return from.bits == 32 ? static_cast<const int32_t *>(from.data)[place]
                         : static_cast<const int64_t *>(from.data)[place];
}

__device__ inline int load_end(const Integers &ends, int expert, int rows) {
  const int64_t end = load_integer(ends, expert);
  return static_cast<int>(end < 0 ? 0 : end > rows ? rows : end);
}

// Where experts' rows end, as was given, by all threads.
__device__ inline void load_ends(const RoutedParams &p, int *ends) {
  for (int expert = threadIdx.x; expert < p.experts; expert += blockDim.x)
    ends[expert] = load_end(p.ends, expert, p.product.rows);
}

// How many rows experts have in all, for a warp.
__device__ inline int count_routed(const Integers &ends, int experts, int rows) {
  int last = 0;
  for (int expert = read_lane(); expert < experts; expert += kWarpSize) last = max(last, load_end(ends, expert, rows));
  return __reduce_max_sync(kAllLanes, last);
}

// Of a lane's value and those of the lanes before it.
template <class Combine>
__device__ inline int scan(int value, const Combine &combine) {
  const int lane = read_lane();
  for (int step = 1; step < kWarpSize; step *= 2) {
    const int before = __shfl_up_sync(kAllLanes, value, step);
    if (lane >= step) value = combine(value, before);
  }
  return value;
}

// For a warp: ends that decrease count as the largest before.
__device__ inline void order_ends(int *ends, int experts) {
  int last = 0;
#pragma unroll 1
  for (int first = 0; first < experts; first += kWarpSize) {
    const int expert = first + read_lane();
    const int end = scan(max(last, expert < experts ? ends[expert] : 0), [](int a, int b) { return max(a, b); });
    if (expert < experts) ends[expert] = end;
    last = __shfl_sync(kAllLanes, end, kWarpSize - 1);
  }
}

// For a warp: count(expert) of each and, to all lanes at once, keep(expert, own, sum) with what there is up to it.
// Behind the last expert there is nothing.
template <class Count, class Keep>
__device__ inline void add_up_experts(int experts, const Count &count, const Keep &keep) {
  int total = 0;
#pragma unroll 1
  for (int first = 0; first < experts; first += kWarpSize) {
    const int expert = first + read_lane(), own = expert < experts ? count(expert) : 0;
    const int sum = total + scan(own, [](int a, int b) { return a + b; });
    keep(expert, own, sum);
    total = __shfl_sync(kAllLanes, sum, kWarpSize - 1);
  }
}

// Whose a tile is: the first expert whose sum is beyond it.
__device__ inline int find_expert(const int *sums, int experts, int tile) {
  int expert = 0;
  for (int end = experts - 1; expert < end;) {
    const int middle = (expert + end) / 2;
    if (sums[middle] > tile)
      end = middle;
    else
      expert = middle + 1;
  }
  return expert;
}

// Rows of y from one on, which no expert has: the threads of a block have some of each.
__device__ inline void clear_rows(const ProductParams &p, int first, int thread, int threads) {
  const float zeros[8] = {};
  const int eights = (p.columns + 7) / 8;
  for (int row = first + blockIdx.x; row < p.rows; row += gridDim.x)
    for (int i = thread; i < eights; i += threads) store_eight(p, row, i * 8, zeros);
}

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_CUDA_ROUTING_CUH_
