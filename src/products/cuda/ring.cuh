// The ring of blocks in shared memory that kernels for many rows copy into and multiply from.
// Layout: many_rows.h's.
// A barrier of a stage says that it is full, another that it is empty.
#ifndef DLFP4_SRC_PRODUCTS_CUDA_RING_CUH_
#define DLFP4_SRC_PRODUCTS_CUDA_RING_CUH_

#include "gpu/async.cuh"
#include "gpu/wgmma.cuh"
#include "params.h"

namespace dlfp4 {
namespace cuda {

#ifdef DLFP4_HOPPER
// A warpgroup's number, as warp_of_block().
__device__ inline int warpgroup() { return __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x / kWarpgroup), 0); }

__device__ inline int cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}

__device__ inline int cluster_size() {
  uint32_t size;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return static_cast<int>(size);
}

__device__ inline int cluster_number() {
  uint32_t number;
  asm("mov.u32 %0, %%clusterid.x;" : "=r"(number));
  return static_cast<int>(number);
}

// A thread's place in its warpgroup.
__device__ inline int lane_of_warp() { return threadIdx.x % kWarpSize; }
__device__ inline int warp_of_group() { return threadIdx.x % kWarpgroup / kWarpSize; }

// A stage of the ring, and how often the ring has been passed, modulo two.
struct Turn {
  int stage, phase = 0;
  __device__ explicit Turn(int first) : stage(first) {}
  __device__ void advance(int by, int stages) {
    stage += by;
    if (stage >= stages) stage -= stages, phase ^= 1;
  }
};

// A producer's: every stage is free.
__device__ inline Turn first_turn() {
  Turn turn(0);
  turn.phase = 1;
  return turn;
}

// Rows of a tile, of x or of weights, in boxes of so many.
struct BoxedRows {
  int first, count, box;
};

// `sharers` blocks of threads of a cluster have the same rows at the same time, of x or of weights, and each copies a
// part of them for all, so that less is read from the L2 cache. A stage is then free once all have released it. How
// many there are has to be known to the compiler: otherwise products by experts take 1.1 to 1.3 times as long.
template <int Kind>
struct Ring {
  uint32_t x, weights, scales, full, empty;
  int rows, x_bytes, code_bytes, weight_bytes, scale_bytes, stages, sharers;

  __device__ Ring(int rows_of_x, int columns, int count, int first, int sharers_of_rows = 1, int later = 0)
      : rows(rows_of_x),
        x_bytes(x_stage_bytes(rows_of_x)),
        code_bytes(code_stage_bytes(Kind, columns)),
        weight_bytes(weight_stage_bytes(Kind, columns)),
        scale_bytes(scale_stage_bytes(Kind, rows_of_x, columns)),
        stages(count),
        sharers(sharers_of_rows) {
    x = shared_address(shared_memory) + first;
    weights = x + stages * x_bytes;
    scales = weights + stages * weight_bytes;
    full = shared_address(shared_memory) + ring_barriers(Kind, rows, columns, stages, first, later);
    empty = full + stages * 8;
  }

  __device__ void init(int producers, int consumers) const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < stages; ++i) {
        init_barrier(full + 8 * i, producers);
        init_barrier(empty + 8 * i, consumers * sharers);
      }
      publish_barriers();
    }
    if (sharers > 1)
      sync_cluster();
    else
      __syncthreads();
  }

  // For one thread: a stage's rows of x, and their scales; of `among` blocks that have the same, its part for all.
  __device__ void copy_x(const TensorMap *map, int column, const BoxedRows &rows, int stage, int among) const {
    each_box(rows, among, [&](int first) {
      copy_among(x + stage * x_bytes + x_stage_bytes(first), map, column, rows.first + first, full + 8 * stage, among);
    });
  }

  // The same of rows of a tile, from one on, of which each block of threads copies one box.
  __device__ void copy_tile_of_x(const TileRows &rows, int column, int first_row, int stage, int among,
                                 int row_of_tile = 0) const {
    copy_tile(x + stage * x_bytes + row_of_tile * kBoxBytes, rows, column, first_row, stage, among);
  }

  // And of weights as they lie.
  __device__ void copy_tile_of_weights(const TileRows &rows, int column, int first_row, int stage, int among) const {
    copy_tile(weights + stage * weight_bytes, rows, column, first_row, stage, among);
  }

  // All rows of a tile of weights.
  __device__ void copy_weights(const TensorMap *map, int column, const BoxedRows &rows, int stage, int among) const {
    each_box(rows, among, [&](int first) {
      copy_among(weights + stage * weight_bytes + first * kBoxBytes, map, column, rows.first + first, full + 8 * stage,
                 among);
    });
  }

  // Scales begin at a multiple of what bulk copies read.
  __device__ void copy_x_scales(const TensorMap *map, int block, const BoxedRows &rows, int stage, int among) const {
    const BoxedRows copied = {rows.first / kScalesOfCopy * kScalesOfCopy, scales_of_copies(rows), kScaleBox};
    each_box(copied, among, [&](int first) {
      copy_among(scales + stage * scale_bytes + first * 4, map, copied.first + first, block, full + 8 * stage, among);
    });
  }

  // How many such scales arrive.
  __device__ static int scales_of_copies(const BoxedRows &rows) {
    return rows.first % kScalesOfCopy == 0 ? rows.count : rows.count + kScaleBox;
  }

  // A stage, by a thread for all that count as one; of those the first have numbers below `sharers`.
  __device__ void release(int stage, int thread) const {
    if (sharers == 1) {
      if (thread == 0) arrive(empty + 8 * stage);
    } else if (thread < sharers) {
      arrive_in_cluster(address_at_rank(empty + 8 * stage, thread));
    }
  }

  // For one thread that copies, after its last copy: until every stage is released. Memory ends with its block of
  // threads, and no arrival of another is on its way to it then.
  __device__ void drain(Turn turn) const {
    for (int i = 0; i < stages; ++i, turn.advance(1, stages)) wait_for(empty + 8 * turn.stage, turn.phase);
  }

 private:
  __device__ void copy_tile(uint32_t to, const TileRows &rows, int column, int first_row, int stage, int among) const {
    const int first = among > 1 ? cluster_rank() * rows.count : 0;
    copy_among(to + first * kBoxBytes, &rows.map, column, first_row + first, full + 8 * stage, among);
  }

  template <class Copy>
  __device__ static void each_box(const BoxedRows &rows, int among, const Copy &copy) {
    for (int first = among > 1 ? cluster_rank() * rows.box : 0; first < rows.count; first += among * rows.box)
      copy(first);
  }

  __device__ static void copy_among(uint32_t to, const TensorMap *map, int column, int row, uint32_t barrier,
                                    int among) {
    if (among > 1)
      copy_box_to_all(to, map, column, row, barrier, (1 << among) - 1);
    else
      copy_box(to, map, column, row, barrier);
  }
};

// What a warpgroup's threads have of a tile that two blocks of a cluster share, half of K each: each block gets the
// sums of the half of its rows that it stores, and adds its own, in memory of kExchangeBytes.
constexpr int kSumsOfHalf = kWalkRows / 4, kExchangeBytes = kSumsOfHalf * kWarpgroup * 4;

__device__ inline void exchange_sums(const float (&sums)[2 * kSumsOfHalf], int rank, uint32_t memory,
                                     float (&own)[kSumsOfHalf]) {
  constexpr int kStride = kWarpgroup * 16;
  const uint32_t here = memory + threadIdx.x % kWarpgroup * 16, there = address_at_rank(here, rank ^ 1);
  sync_cluster();
#pragma unroll
  for (int i = 0; i < kSumsOfHalf; i += 4) {
    float others[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      own[i + k] = rank ? sums[kSumsOfHalf + i + k] : sums[i + k];
      others[k] = rank ? sums[i + k] : sums[kSumsOfHalf + i + k];
    }
    store_to_cluster(there + i / 4 * kStride, make_float4(others[0], others[1], others[2], others[3]));
  }
  sync_cluster();
#pragma unroll
  for (int i = 0; i < kSumsOfHalf; i += 4) {
    uint32_t others[4];
    load_shared_16(here + i / 4 * kStride, others);
#pragma unroll
    for (int k = 0; k < 4; ++k) own[i + k] += __uint_as_float(others[k]);
  }
}

// Which blocks along K: `count` of them, of which a consumer takes `first`, first + `by`, ...
struct Blocks {
  int count, first, by;
};
#endif  // DLFP4_HOPPER

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_CUDA_RING_CUH_
