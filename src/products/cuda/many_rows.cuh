// y = x @ w.T for more rows of x, on sm_90a: weights decoded in registers are the first operand of wgmma, x the second.
// Layout: a warpgroup of threads copies blocks of 64 along K into a ring in shared memory; two multiply them.
// Trick: two sets of operands, so that the next block is decoded while the tensor cores work on this one. Few columns
// are shared out along K: to the two warpgroups, and to a cluster of blocks that read each other's sums. Many tiles of
// y are walked by blocks that stay, so that copies for the next tile run while this one is stored, and results leave
// while the next one is multiplied.
#ifndef DLFP4_SRC_PRODUCTS_CUDA_MANY_ROWS_CUH_
#define DLFP4_SRC_PRODUCTS_CUDA_MANY_ROWS_CUH_

#include "few_rows.cuh"
#include "gpu/async.cuh"
#include "many_rows.h"

namespace dlfp4 {
namespace cuda {

#ifdef DLFP4_HOPPER
// A warpgroup's number, in a form in which the compiler knows that a warp agrees on it.
__device__ inline int warpgroup() { return __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x / kWarpgroup), 0); }

// --- The ring ------------------------------------------------------------------------------------

template <int Kind>
struct Ring {
  static constexpr WeightLayout kLayout = weight_layout(Kind);
  uint32_t x, weights, full, empty;
  int x_bytes, code_bytes, weight_bytes, stages;

  __device__ Ring(int rows, int halves, int count, int first)
      : x_bytes(x_stage_bytes(rows)),
        code_bytes(kLayout.code_bytes() / 2 * halves),
        weight_bytes(weight_stage_bytes(Kind, halves)),
        stages(count) {
    x = shared_address(shared_memory) + first;
    weights = x + stages * x_bytes;
    full = weights + stages * weight_bytes;
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

// --- Multiplying ---------------------------------------------------------------------------------

// A warpgroup's share of tiles: 64 columns of y by `Rows` rows. Of each eight rows four sums: (row, column),
// (row + 1, column), (row, column + 8), (row + 1, column + 8).
template <int Kind, int Type>
class Consumer {
  static constexpr WeightLayout kLayout = weight_layout(Kind);

 public:
  __device__ Consumer(const Ring<Kind> &ring, const Shifts &by, int half, int first)
      : ring_(ring), by_(by), turn_(first) {
    const int tile = half * (kTilesInBlock / 2) + warp();
    codes_ = ring.weights + tile * (kLayout.words() * 4 * kWarpSize) + lane() * 16;
    scales_ =
        ring.weights + ring.code_bytes + tile * (kTile * kLayout.groups()) + (lane() >> 2) * (2 * kLayout.groups());
  }

  __device__ static int lane() { return threadIdx.x % kWarpSize; }
  __device__ static int warp() { return threadIdx.x % kWarpgroup / kWarpSize; }

  template <int Rows>
  __device__ void multiply(const Blocks &blocks, float (&sums)[Rows / 2]) {
    uint32_t operands[2][4 * kSteps];
    int left = (blocks.count - blocks.first + blocks.by - 1) / blocks.by;
    for (bool adds = false; left >= 2; left -= 2, adds = true) {
      step<Rows>(operands[0], adds, blocks.by, sums);
      step<Rows>(operands[1], true, blocks.by, sums);
    }
    if (left > 0) step<Rows>(operands[0], blocks.count - blocks.first > blocks.by, blocks.by, sums);
    wait_for_products<0>();
#pragma unroll
    for (float &sum : sums) asm volatile("" : "+f"(sum)::"memory");
  }

  // Releases the last block's stage to the producer. One thread does so for its warpgroup, as in CUTLASS: a product is
  // one operation of four warps, and ends only when each has read its words of the stage.
  __device__ void release() const {
    if (threadIdx.x % kWarpgroup == 0) arrive(ring_.empty + 8 * last_);
  }

 private:
  __device__ void load(LaneWords<Kind> &words) const {
    const uint32_t offset = turn_.stage * ring_.weight_bytes;
#pragma unroll
    for (int i = 0; i < kLayout.words(); i += 4) load_shared_16(codes_ + offset + i * 4 * kWarpSize, words.codes + i);
    load_shared(scales_ + offset, words.scales);
  }

  template <int Rows>
  __device__ void step(uint32_t *operands, bool adds, int by, float *sums) {
    wait_for(ring_.full + 8 * turn_.stage, turn_.phase);
    LaneWords<Kind> words;
    load(words);
    decode_block<Kind, Type>(words, by_, operands);
    const uint64_t rows = describe_rows(ring_.x + turn_.stage * ring_.x_bytes);
    begin_products();
#pragma unroll
    for (int i = 0; i < kSteps; ++i) multiply_rows<Type, Rows>(sums, operands + 4 * i, rows + 2 * i, adds || i > 0);
    commit_products();
    wait_for_products<1>();  // of the block before, whose stage is free then
    if (adds) release();
    last_ = turn_.stage;
    turn_.advance(by, ring_.stages);
  }

  const Ring<Kind> &ring_;
  const Shifts &by_;
  uint32_t codes_, scales_;
  Turn turn_;
  int last_ = 0;
};

// --- One tile a block of threads, or a cluster -----------------------------------------------------

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

template <int Kind, int Type, int Rows>
class SharedTile {
  const ManyRowsParams &p_;
  const ProductParams &q_;
  const Ring<Kind> ring_;
  const int ranks_ = cluster_size(), rank_ = cluster_rank(), number_ = blockIdx.x / ranks_;
  const int first_row_ = blockIdx.y * Rows;
  const int begin_ = static_cast<int>(int64_t{q_.blocks} * rank_ / ranks_);
  const int count_ = static_cast<int>(int64_t{q_.blocks} * (rank_ + 1) / ranks_) - begin_;

 public:
  __device__ explicit SharedTile(const ManyRowsParams &p) : p_(p), q_(p.product), ring_(Rows, p.halves, p.stages, 0) {}

  __device__ void run() {
    ring_.init(2, p_.halves);
    let_next_kernel_start();
    if (warpgroup() == 0) {
      asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
      if (threadIdx.x == 0) produce_weights();
      if (threadIdx.x == kWarpSize) produce_x();
      __syncwarp();
      if (ranks_ > 1) sync_cluster(), sync_cluster();  // as those who share sums
    } else {
      asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
      consume();
    }
  }

 private:
  __device__ void copy_weights(int block, int stage, uint64_t policy) const {
    constexpr WeightLayout kLayout = weight_layout(Kind);
    const uint32_t to = ring_.weights + stage * ring_.weight_bytes, barrier = ring_.full + 8 * stage;
    const int row_block = p_.halves == 2 ? number_ : number_ / 2;
    const uint8_t *from = q_.weights + (int64_t{row_block} * q_.blocks_in_row + begin_ + block) * kLayout.bytes();
    if (p_.halves == 2) return copy_bytes(to, from, kLayout.bytes(), barrier, policy);
    const int half = number_ % 2, scale_bytes = kLayout.scale_bytes() / 2;
    copy_bytes(to, from + half * ring_.code_bytes, ring_.code_bytes, barrier, policy);
    copy_bytes(to + ring_.code_bytes, from + kLayout.code_bytes() + half * scale_bytes, scale_bytes, barrier, policy);
  }

  // Weights fill the ring before x is known to be there.
  __device__ void produce_weights() const {
    const uint64_t policy = evict_first();
    Turn turn(0);
    turn.phase = 1;  // every stage is free
    for (int block = 0; block < count_; ++block) {
      wait_for(ring_.empty + 8 * turn.stage, turn.phase);
      expect_bytes(ring_.full + 8 * turn.stage, ring_.weight_bytes);
      copy_weights(block, turn.stage, policy);
      turn.advance(1, ring_.stages);
    }
  }

  __device__ void produce_x() const {
    wait_for_kernel_before();
    Turn turn(0);
    turn.phase = 1;
    for (int block = 0; block < count_; ++block) {
      const uint32_t full = ring_.full + 8 * turn.stage;
      wait_for(ring_.empty + 8 * turn.stage, turn.phase);
      expect_bytes(full, ring_.x_bytes);
      copy_box(ring_.x + turn.stage * ring_.x_bytes, &p_.x, (begin_ + block) * kBlockK, first_row_, full);
      turn.advance(1, ring_.stages);
    }
  }

  __device__ void consume() const {
    wait_for_kernel_before();
    const Finish finish(q_);
    const int group = warpgroup() - 1;
    const int half = p_.halves == 2 ? group : 0, share = p_.halves == 2 ? 0 : group;
    const Blocks blocks = {count_, share, p_.halves == 2 ? 1 : kConsumers};
    Consumer<Kind, Type> consumer(ring_, q_.shifts, half, share);
    float sums[Rows / 2];
    consumer.template multiply<Rows>(blocks, sums);
    sync_consumers();  // the ring's memory is free
    keep(sums, half, share);
    if (ranks_ > 1)
      sync_cluster();
    else
      sync_consumers();  // a cluster's barrier orders memory for the whole GPU
    const int parts = ranks_ * (kConsumers / p_.halves);
    if (parts == 1)
      store<1>(finish);
    else if (parts == 2)
      store<2>(finish);
    else if (parts == 3)
      store<3>(finish);
    else if (parts == 4)
      store<4>(finish);
    else
      store<8>(finish);
    if (ranks_ > 1) sync_cluster();  // others have read the sums of this block
  }

  __device__ void keep(const float *sums, int half, int share) const {
    const int pitch = sums_pitch(p_.halves), lane = threadIdx.x % kWarpSize,
              warp = threadIdx.x % kWarpgroup / kWarpSize;
    float *to = reinterpret_cast<float *>(shared_memory) + share * Rows * pitch + half * kColumnsOfHalf + warp * kTile +
                (lane >> 2);
#pragma unroll
    for (int i = 0; i < Rows / 2; ++i)
      to[(i / 4 * 8 + (lane & 3) * 2 + (i & 1)) * pitch + (i >> 1 & 1) * 8] = share < count_ ? sums[i] : 0;
  }

  // This rank's rows: all ranks' sums of them, and of both warpgroups where they share K.
  template <int Parts>
  __device__ void store(const Finish &finish) const {
    const int pitch = sums_pitch(p_.halves), eights = kColumnsOfHalf * p_.halves / 8;
    const int begin = Rows * rank_ / ranks_, end = Rows * (rank_ + 1) / ranks_;
    const uint32_t sums_at = shared_address(shared_memory);
    for (int i = threadIdx.x - kWarpgroup + begin * eights; i < end * eights; i += kConsumers * kWarpgroup) {
      const int in_tile = i / eights, row = first_row_ + in_tile;
      const int column = number_ * kColumnsOfHalf * p_.halves + i % eights * 8;
      if (row >= q_.rows || column >= q_.columns) continue;
      float4 parts[Parts][2];
#pragma unroll
      for (int part = 0; part < Parts; ++part) {
        const int rank = p_.halves == 2 ? part : part / kConsumers, share = p_.halves == 2 ? 0 : part % kConsumers;
        const uint32_t at = sums_at + ((share * Rows + in_tile) * pitch + i % eights * 8) * 4;
        parts[part][0] = load_from_cluster(address_at_rank(at, rank));
        parts[part][1] = load_from_cluster(address_at_rank(at + 16, rank));
      }
      float sums[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        sums[j] = (&parts[0][j / 4].x)[j % 4];
#pragma unroll
        for (int part = 1; part < Parts; ++part) sums[j] += (&parts[part][j / 4].x)[j % 4];
        sums[j] = finish(sums[j]);
      }
      store_eight(q_, row, column, sums);
    }
  }
};

// --- Blocks of threads that walk over tiles ----------------------------------------------------------

// In the order of WalkOrder. The two blocks of a cluster that share a tile each store half of its rows.
template <int Kind, int Type>
class Walk {
  static constexpr int kRows = kWalkRows, kHalfRows = kWalkRows / 2;
  using Place = WalkOrder::Place;
  using Lanes = Consumer<Kind, Type>;
  const ManyRowsParams &p_;
  const ProductParams &q_;
  const WalkOrder &order_;
  const Ring<Kind> ring_;
  const int rank_ = cluster_rank(), shared_tile_ = order_.shared_tile(blockIdx.x / kWalkRanks);

 public:
  __device__ explicit Walk(const ManyRowsParams &p)
      : p_(p), q_(p.product), order_(p.order), ring_(kRows, 2, p.stages, kStaging) {}

  __device__ void run() {
    ring_.init(1, kConsumers);
    let_next_kernel_start();
    if (warpgroup() == 0) {
      asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
      if (threadIdx.x == 0) produce();
      __syncwarp();
      if (has_share()) sync_cluster(), sync_cluster();  // as those who exchange sums
    } else {
      asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
      consume();
    }
  }

 private:
  __device__ int first_rest() const { return gridDim.x - 1 - blockIdx.x; }
  __device__ bool has_share() const { return shared_tile_ != WalkOrder::kNone; }
  __device__ int begin_of_share() const { return q_.blocks * rank_ / kWalkRanks; }
  __device__ int end_of_share() const { return q_.blocks * (rank_ + 1) / kWalkRanks; }

  __device__ void produce() const {
    wait_for_kernel_before();
    Turn turn(0);
    turn.phase = 1;  // every stage is free
    for (int rest = first_rest(); rest < order_.rests(); rest += gridDim.x)
      copy(order_.place_of_rest(rest), 0, q_.blocks, 1, turn);
    for (int tile = blockIdx.x; tile < order_.alone; tile += gridDim.x)
      copy(order_.place_of(tile), 0, q_.blocks, 2, turn);
    if (has_share()) copy(order_.place_of(shared_tile_), begin_of_share(), end_of_share(), 2, turn);
  }

  // Blocks of weights, and as many boxes of half a tile's rows of x.
  __device__ void copy(const Place &place, int begin, int end, int boxes, Turn &turn) const {
    constexpr int kBytes = weight_layout(Kind).bytes();
    const uint8_t *weights = q_.weights + int64_t{place.row_block} * q_.blocks_in_row * kBytes;
    const uint32_t box_bytes = x_stage_bytes(kHalfRows);
    for (int block = begin; block < end; ++block) {
      const uint32_t full = ring_.full + 8 * turn.stage, x = ring_.x + turn.stage * ring_.x_bytes;
      wait_for(ring_.empty + 8 * turn.stage, turn.phase);
      expect_bytes(full, boxes * box_bytes + ring_.weight_bytes);
      copy_bytes(ring_.weights + turn.stage * ring_.weight_bytes, weights + int64_t{block} * kBytes, kBytes, full);
      for (int box = 0; box < boxes; ++box)
        copy_box(x + box * box_bytes, &p_.x, block * kBlockK, place.first_row + box * kHalfRows, full);
      turn.advance(1, ring_.stages);
    }
  }

  __device__ void consume() const {
    Consumer<Kind, Type> consumer(ring_, q_.shifts, half(), 0);
    wait_for_kernel_before();
    const Finish finish(q_);
    for (int rest = first_rest(); rest < order_.rests(); rest += gridDim.x) {
      float sums[kHalfRows / 2];
      multiply<kHalfRows>(consumer, q_.blocks, sums);
      store<kHalfRows>(sums, order_.place_of_rest(rest), finish);
    }
    for (int tile = blockIdx.x; tile < order_.alone || has_share(); tile += gridDim.x) {
      const bool is_alone = tile < order_.alone;
      float sums[kRows / 2];
      multiply<kRows>(consumer, is_alone ? q_.blocks : end_of_share() - begin_of_share(), sums);
      if (!is_alone) {
        share(sums, order_.place_of(shared_tile_), finish);
        break;
      }
      asm volatile("" : "+r"(tile));  // the place is found here, so that it takes no registers from the sums
      store<kRows>(sums, order_.place_of(tile), finish);
    }
    wait_for_stores();  // they read this block's memory, which ends with it
  }

  __device__ static int half() { return warpgroup() - 1; }
  __device__ static uint32_t staging(int half) {
    return shared_address(shared_memory) + half * (kStaging / kConsumers);
  }

  template <int Rows>
  __device__ void multiply(Consumer<Kind, Type> &consumer, int blocks, float (&sums)[Rows / 2]) const {
    consumer.template multiply<Rows>({blocks, 0, 1}, sums);
    consumer.release();
  }

  // Each block of the cluster gets the sums of the half that it stores, in its memory for results.
  __device__ void share(const float *sums, Place place, const Finish &finish) const {
    constexpr int kFours = kRows / 4 / 4, kStride = kWarpgroup * 16;
    static_assert(kFours * kStride * kConsumers <= kStaging, "");
    const uint32_t here = staging(half()) + threadIdx.x % kWarpgroup * 16, there = address_at_rank(here, rank_ ^ 1);
    float own[4 * kFours];
    wait_for_stores();
    sync_cluster();
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      float others[4];
#pragma unroll
      for (int k = 4 * i; k < 4 * i + 4; ++k) {
        own[k] = rank_ ? sums[4 * kFours + k] : sums[k];
        others[k % 4] = rank_ ? sums[k] : sums[4 * kFours + k];
      }
      store_to_cluster(there + i * kStride, make_float4(others[0], others[1], others[2], others[3]));
    }
    sync_cluster();
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      uint32_t others[4];
      load_shared_16(here + i * kStride, others);
#pragma unroll
      for (int k = 0; k < 4; ++k) own[4 * i + k] += __uint_as_float(others[k]);
    }
    store<kHalfRows>(own, {place.row_block, place.first_row + rank_ * kHalfRows}, finish);
  }

  template <int Rows>
  __device__ void store(const float *sums, Place place, const Finish &finish) const {
    const int number = half(), column = place.row_block * kBlockRows + number * kColumnsOfHalf;
    if (p_.maps_y)
      store_by_copy<Rows>(sums, number, place.first_row, column, finish);
    else
      store_each<Rows>(sums, place.first_row, column, finish);
  }

  template <int Rows>
  __device__ void store_each(const float *sums, int first_row, int column, const Finish &finish) const {
    const int lane = Lanes::lane(), tile = column + Lanes::warp() * kTile;
#pragma unroll
    for (int i = 0; i < Rows / 2; ++i) {
      const int row = first_row + i / 4 * 8 + (lane & 3) * 2 + (i & 1), at = tile + (lane >> 2) + (i >> 1 & 1) * 8;
      if (row < q_.rows && at < q_.columns) store_result(q_, row, at, finish(sums[i]));
    }
  }

  // A warpgroup turns its columns around in shared memory, from where they leave while the next tile is multiplied.
  template <int Rows>
  __device__ void store_by_copy(const float *sums, int number, int first_row, int column, const Finish &finish) const {
    constexpr int kRowBytes = kColumnsOfHalf * 2;
    const int lane = Lanes::lane(), eight = Lanes::warp() * 2 + (lane >> 3 & 1), row = (lane & 7) + (lane >> 4) * 8;
    const uint32_t from = staging(number),
                   to = from + row * kRowBytes + (eight ^ (lane & 7)) * 16;  // as the copy expects it swizzled
    wait_for_stores();
    sync_consumer(number);
#pragma unroll
    for (int group = 0; group < Rows / 16; ++group) {
      const float *own = sums + group * 8;
      uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) pairs[i] = round_pair(finish(own[2 * i]), finish(own[2 * i + 1]), q_.y_is_half);
      store_matrices_turned(to + group * (16 * kRowBytes), pairs);
    }
    publish_writes();
    sync_consumer(number);
    if (threadIdx.x % kWarpgroup == 0) {
      for (int box = 0; box < Rows; box += kHalfRows) store_box(&p_.y, column, first_row + box, from + box * kRowBytes);
      commit_stores();
    }
    __syncwarp();
  }
};
#endif  // DLFP4_HOPPER

// On other GPUs, where the host does not call them, these are empty.
template <int Kind, int Type, int Rows>
__device__ inline void multiply_shared_tile(const ManyRowsParams &p) {
#ifdef DLFP4_HOPPER
  SharedTile<Kind, Type, Rows>(p).run();
#endif
}

template <int Kind, int Type>
__device__ inline void multiply_walking(const ManyRowsParams &p) {
#ifdef DLFP4_HOPPER
  Walk<Kind, Type>(p).run();
#endif
}

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_CUDA_MANY_ROWS_CUH_
