// Which tiles a block of threads multiplies, of products by experts in tiles.
// Layout: in shared memory the schedule (grouped.h): where experts' rows end, tiles size by size, and a ring of jobs.
// Trick: nothing waits for the host: each block reads where experts' rows end, and counts the tiles itself. One thread
// finds each tile's place and its factor while the tile before is multiplied; those that copy and those that multiply
// read them.
#ifndef DLFP4_SRC_PRODUCTS_CUDA_GROUPED_PLAN_CUH_
#define DLFP4_SRC_PRODUCTS_CUDA_GROUPED_PLAN_CUH_

#include "ring.cuh"
#include "routing.cuh"

namespace dlfp4 {
namespace cuda {

#ifdef DLFP4_HOPPER
// Jobs one after another, as one who takes part reads them.
template <RoutedRows Of>
class Jobs {
  const Schedule<Of> &schedule_;
  Turn turn_;

 public:
  __device__ explicit Jobs(const Schedule<Of> &schedule) : schedule_(schedule), turn_(0) { wait(); }

  // One of no size comes after the last.
  __device__ const Job &now() const { return schedule_.jobs[turn_.stage]; }

  // By threads that count as one, of which the first speaks for all.
  __device__ void next(bool is_first = true) {
    if (is_first) arrive(shared_address(&schedule_.taken[turn_.stage]));
    turn_.advance(1, kJobs);
    wait();
  }

 private:
  __device__ void wait() const { wait_for(shared_address(&schedule_.planned[turn_.stage]), turn_.phase); }
};

template <RoutedRows Of>
class Plan {
  static constexpr int kSizes = count_sizes(Of), kSharers = count_sharers(Of);

  const RoutedParams &p_;
  const ProductParams &q_;
  Schedule<Of> &schedule_;

 public:
  __device__ Plan(const RoutedParams &p, Schedule<Of> &schedule) : p_(p), q_(p.product), schedule_(schedule) {}

  // By all threads, of which `takers` read each job: a warp lists some of the sizes.
  __device__ void prepare(int takers) const {
    const int warp = threadIdx.x / kWarpSize;
    load_ends(p_, schedule_.ends);
    if (threadIdx.x < kJobs) {
      init_barrier(shared_address(&schedule_.planned[threadIdx.x]), 1);
      init_barrier(shared_address(&schedule_.taken[threadIdx.x]), takers);
      publish_barriers();
    }
    __syncthreads();
    if (warp == 0) order_ends(schedule_.ends, p_.experts);
    __syncthreads();
    for (int size = warp; size < kSizes; size += kManyRowsThreads / kWarpSize) list_experts(size);
    __syncthreads();
  }

  // For one thread: every job of this block, and one of no size.
  __device__ void run() const {
    Turn turn = first_turn();
    int size = 0, larger = 0;  // tiles of larger sizes
    for (int tile = blockIdx.x; size <= kSizes; tile = next_tile(tile)) {
      for (; size < kSizes && tile - larger >= tiles_of_size(size); ++size) larger += tiles_of_size(size);
      schedule_.jobs[turn.stage] = size < kSizes ? job_of(size, tile - larger) : Job{size++};
      arrive(shared_address(&schedule_.planned[turn.stage]));
      turn.advance(1, kJobs);
      wait_for(shared_address(&schedule_.taken[turn.stage]), turn.phase);
    }
  }

 private:
  // Of all experts' weights, whose first and last block of rows may be a neighbour's too.
  __device__ int first_block(int expert) const { return static_cast<int>(int64_t{expert} * q_.columns / kBlockRows); }
  __device__ int count_blocks(int expert) const {  // for whole clusters
    const int64_t end = (int64_t{expert + 1} * q_.columns + kBlockRows - 1) / kBlockRows;
    return (static_cast<int>(end) - first_block(expert) + kSharers - 1) / kSharers * kSharers;
  }

  __device__ int first_row(int expert) const { return expert > 0 ? schedule_.ends[expert - 1] : 0; }
  __device__ int rows_of(int expert) const {
    return expert < p_.experts ? schedule_.ends[expert] - first_row(expert) : 0;
  }

  // For a warp: experts that have tiles of a size, behind those of larger sizes.
  __device__ void list_experts(int size) const {
    int begin = 0;
#pragma unroll 1
    for (int first = 0; first < p_.experts; first += kWarpSize) {
      const int rows = rows_of(first + read_lane()), last = size_of_last(rows, Of);
      begin += count_lanes(size > 0 && count_tiles(rows, Of, 0) > 0) + count_lanes(last > 0 && last < size);
    }
    int end = begin;
    const auto count = [&](int expert) { return count_tiles(rows_of(expert), Of, size) * count_blocks(expert); };
    add_up_experts(p_.experts, count, [&](int expert, int own, int sum) {
      const unsigned all = __ballot_sync(kAllLanes, own > 0), before = all & ((1u << read_lane()) - 1);
      if (own > 0) {
        schedule_.experts[end + __popc(before)] = static_cast<uint16_t>(expert);
        schedule_.tiles[end + __popc(before)] = sum;
      }
      end += __popc(all);
    });
    schedule_.begins[size] = begin;
    schedule_.counts[size] = end - begin;
  }

  __device__ static int count_lanes(bool counts) { return __popc(__ballot_sync(kAllLanes, counts)); }

  __device__ int tiles_of_size(int size) const {
    const int count = schedule_.counts[size];
    return count ? schedule_.tiles[schedule_.begins[size] + count - 1] : 0;
  }

  // Blocks that share a multiprocessor have too few tiles each to take as many as any other.
  __device__ int next_tile(int tile) const {
    if (!p_.next) return tile + gridDim.x;
    wait_for_kernel_before();
    return gridDim.x + atomicAdd(p_.next, 1);
  }

  // An expert's tiles of the same rows of x are a cluster's, and of the same weights are neighbours, so that these come
  // from the memory once.
  __device__ Job job_of(int size, int tile) const {
    const int begin = schedule_.begins[size], *tiles = schedule_.tiles + begin;
    const int entry = find_expert(tiles, schedule_.counts[size], tile), expert = schedule_.experts[begin + entry];
    const int rows = rows_of(expert), across = count_tiles(rows, Of, size);
    const int cluster = (tile - (entry ? tiles[entry - 1] : 0)) / kSharers;
    const int first = size == 0 ? cluster % across * most_rows(Of) : rows / most_rows(Of) * most_rows(Of);
    const int row_block = first_block(expert) + cluster / across * kSharers + tile % kSharers;
    return {size,
            first_row(expert) + first,
            rows - first,
            row_block,
            static_cast<int>(int64_t{row_block} * kBlockRows - int64_t{expert} * q_.columns),
            Finish(q_, int64_t{expert} * p_.factor_step).factor};
  }
};
#endif  // DLFP4_HOPPER

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_CUDA_GROUPED_PLAN_CUH_
