// What a conversion changes, on the device: see rules/changes.h.
// Layout: rows of floats next to one another.
// Trick: sixteen threads take a sixteen of a row together, each the lane that the host's loops give it.
#ifndef DLFP4_SRC_BLOCKS_CUDA_CHANGES_CUH_
#define DLFP4_SRC_BLOCKS_CUDA_CHANGES_CUH_

#include "gpu/elements.cuh"
#include "params.h"
#include "rows.cuh"
#include "rules/changes.h"

namespace dlfp4 {
namespace cuda {

// Numbers only grow: what has been read is at most what is there, and most blocks need no atomic operation.
__device__ inline void raise(uint32_t *place, uint32_t value) {
  if (*static_cast<volatile uint32_t *>(place) < value) atomicMax(place, value);
}

// A warp takes two sixteens at a time. Blocks are whole sixteens, so that the first thread of each sixteen speaks for
// it.
__device__ inline void find_changes_of_part(const ChangesParams &p) {
  const int64_t number = global_thread() / kWarpSize, row = number / p.parts;
  if (row >= p.rows) return;
  const int64_t first = number % p.parts * kPartOfRow, last = min(first + kPartOfRow, p.columns);
  for (int64_t start = first; start < last; start += kWarpSize) {
    const int64_t column = start + threadIdx.x % kWarpSize;
    uint32_t change = 0, size = 0;
    if (column < p.columns) {
      const float before = p.before[row * p.columns + column];
      change = change_of(before, p.after[row * p.columns + column]);
      size = finite_magnitude(before);
    }
    change = largest_of_lanes(change, kSums - 1);
    size = largest_of_lanes(size, kSums - 1);
    if (threadIdx.x % kSums != 0 || column >= p.columns) continue;
    const int64_t block = row / p.lines * p.along + column / p.length;
    raise(p.changes + block, change);
    raise(p.sizes + block, size);
  }
}

__device__ inline void sum_up_some(const SumParams &p) {
  double largest = 0;
  int changed = 0;
  for (int64_t i = global_thread(); i < p.blocks; i += int64_t{gridDim.x} * kThreads) {
    if (p.changes[i] == 0) continue;
    largest = fmax(largest, relative_change(p.changes[i], p.sizes[i]));
    ++changed;
  }
  for (int lane = 1; lane < kWarpSize; lane *= 2) {
    largest = fmax(largest, __shfl_xor_sync(kAllLanes, largest, lane));
    changed += __shfl_xor_sync(kAllLanes, changed, lane);
  }
  if (threadIdx.x % kWarpSize != 0 || changed == 0) return;
  atomicAdd(p.changed, static_cast<unsigned long long>(changed));
  atomicMax(p.largest, static_cast<unsigned long long>(__double_as_longlong(largest)));
}

// The sum of a block's squared errors, in each of its sixteen threads.
__device__ inline double squares_of_block(const ChoiceParams &p, const float *values, int64_t down, int64_t along) {
  const unsigned together = 0xFFFFu << (threadIdx.x & kSums);
  double sum = 0;
  const int64_t last_row = min((down + 1) * p.lines, p.rows), last = min((along + 1) * p.length, p.columns);
  for (int64_t row = down * p.lines; row < last_row; ++row) {
    double of_lane = 0;
    for (int64_t column = along * p.length + threadIdx.x % kSums; column < last; column += kSums)
      of_lane += square_of_error(p.exact[row * p.columns + column], values[row * p.columns + column]);
    for (int half = kSums / 2; half > 0; half /= 2) of_lane += __shfl_xor_sync(together, of_lane, half);
    sum += of_lane;
  }
  return sum;
}

// Two blocks a warp.
__device__ inline void take_better_block(const ChoiceParams &p) {
  const int64_t number = global_thread() / kSums, down = number / p.along, along = number % p.along;
  if (number >= p.blocks) return;
  const double best = squares_of_block(p, p.best_values, down, along);
  const double other = squares_of_block(p, p.other_values, down, along);
  if (!(other < best)) return;
  if (threadIdx.x % kSums == 0) p.best_scales[number] = p.other_scales[number];
  for (int64_t row = down * p.lines; row < min((down + 1) * p.lines, p.rows); ++row)
    for (int64_t i = threadIdx.x % kSums; i < p.code_bytes; i += kSums)
      p.best_codes[(row * p.along + along) * p.code_bytes + i] =
          p.other_codes[(row * p.along + along) * p.code_bytes + i];
}

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_BLOCKS_CUDA_CHANGES_CUH_
