// y = x @ w.T for more rows of x, on sm_90a: weights decoded in registers are the first operand of wgmma, x the second.
// Layout: a warpgroup of threads copies blocks of 64 along K into a ring in shared memory; two multiply them.
// Trick: two sets of operands, so that the next block is decoded while the tensor cores work on this one. Few columns
// are shared out along K: to the two warpgroups, and to a cluster of blocks that read each other's sums. Many tiles of
// y are walked by blocks that stay, so that copies for the next tile run while this one is stored, and results leave
// while the next one is multiplied.
#ifndef DLFP4_SRC_PRODUCTS_CUDA_MANY_ROWS_CUH_
#define DLFP4_SRC_PRODUCTS_CUDA_MANY_ROWS_CUH_

#include "bytes.cuh"
#include "few_rows.cuh"
#include "ring.cuh"

namespace dlfp4 {
namespace cuda {

#ifdef DLFP4_HOPPER
// --- Multiplying ---------------------------------------------------------------------------------

// A warpgroup's share of tiles: 64 columns of y by `Rows` rows. Of each eight rows four sums: (row, column),
// (row + 1, column), (row, column + 8), (row + 1, column + 8).
template <int Kind, int Type>
class Consumer {
  static constexpr WeightLayout kLayout = weight_layout(Kind);

 public:
  static constexpr int kReleases = 1;  // of a stage

  __device__ Consumer(const Ring<Kind> &ring, const ProductParams &q, int half, int first)
      : ring_(ring), by_(q.shifts), turn_(first) {
    const int tile = half * (kTilesInBlock / 2) + warp_of_group(), lane = lane_of_warp();
    codes_ = ring.weights + tile * (kLayout.words() * 4 * kWarpSize) + lane * 16;
    scales_ = ring.weights + ring.code_bytes + tile * (kTile * kLayout.groups()) + (lane >> 2) * (2 * kLayout.groups());
  }

  // With one set of operands, which takes fewer registers, blocks wait for one another.
  template <int Rows, int Sets = 2>
  __device__ __forceinline__ void multiply(const Blocks &blocks, float (&sums)[Rows / 2]) {
    static_assert(Sets == 1 || Sets == 2, "");
    uint32_t operands[Sets][4 * kSteps];
    int left = (blocks.count - blocks.first + blocks.by - 1) / blocks.by;
    for (bool adds = false; left >= 2; left -= 2, adds = true) {
      step<Rows, Sets>(operands[0], adds, blocks.by, sums);
      step<Rows, Sets>(operands[Sets - 1], true, blocks.by, sums);
    }
    if (left > 0) step<Rows, Sets>(operands[0], blocks.count - blocks.first > blocks.by, blocks.by, sums);
    wait_for_products<0>();
#pragma unroll
    for (float &sum : sums) asm volatile("" : "+f"(sum)::"memory");
  }

  // Releases the last block's stage to producers. One thread does so for its warpgroup, as in CUTLASS: a product is one
  // operation of four warps, and ends only when each has read its words of the stage.
  __device__ void release() const { ring_.release(last_, threadIdx.x % kWarpgroup); }

 private:
  __device__ void load(LaneWords<Kind> &words) const {
    const uint32_t offset = turn_.stage * ring_.weight_bytes;
#pragma unroll
    for (int i = 0; i < kLayout.words(); i += 4) load_shared_16(codes_ + offset + i * 4 * kWarpSize, words.codes + i);
    load_shared(scales_ + offset, words.scales);
  }

  // Waits for the products of the block before, if there is one, whose stage is free then; `Later` have begun since.
  template <int Later>
  __device__ void finish_block(bool is_there) const {
    wait_for_products<Later>();
    if (is_there) release();
  }

  template <int Rows, int Sets>
  __device__ __forceinline__ void step(uint32_t *operands, bool adds, int by, float *sums) {
    if (!is_there_) wait_for(ring_.full + 8 * turn_.stage, turn_.phase);
    LaneWords<Kind> words;
    load(words);
    Turn next = turn_;
    next.advance(by, ring_.stages);
    is_there_ = has_passed(ring_.full + 8 * next.stage, next.phase);
    if constexpr (Sets == 1) finish_block<0>(adds);
    decode_block<Kind, Type>(words, by_, operands);
    const uint64_t rows = describe_rows(ring_.x + turn_.stage * ring_.x_bytes);
    begin_products();
#pragma unroll
    for (int i = 0; i < kSteps; ++i) multiply_rows<Type, Rows>(sums, operands + 4 * i, rows + 2 * i, adds || i > 0);
    commit_products();
    if constexpr (Sets == 2) finish_block<1>(adds);
    last_ = turn_.stage;
    turn_ = next;
  }

  const Ring<Kind> &ring_;
  const Shifts &by_;
  uint32_t codes_, scales_;
  Turn turn_;
  bool is_there_ = false;  // that turn's stage, as was seen a turn before, for an answer takes time
  int last_ = 0;
};

// --- Tiles of a walk ------------------------------------------------------------------------------

// A warpgroup's share of such tiles. Those that two blocks of a cluster share are stored by both, half of the rows
// each.
template <int Kind, int Type>
class PreparedTile {
  static constexpr int kRows = kWalkRows, kHalfRows = kRows / 2;
  using Place = WalkOrder::Place;
  const ManyRowsParams &p_;
  const ProductParams &q_;
  Consumer<Kind, Type> consumer_;
  const Finish finish_;

 public:
  static constexpr int kSyncs = 2;  // of the cluster, for a shared tile

  __device__ PreparedTile(const ManyRowsParams &p, const Ring<Kind> &ring)
      : p_(p), q_(p.product), consumer_(ring, q_, half(), 0), finish_(q_) {}

  __device__ void end() const { wait_for_stores(); }  // they read this block's memory, which ends with it

  __device__ void rest(const Place &place) {
    float sums[kHalfRows / 2];
    multiply<kHalfRows>(q_.blocks, sums);
    store<kHalfRows>(sums, place);
  }

  __device__ void whole(const WalkOrder &order, int tile) {
    float sums[kRows / 2];
    multiply<kRows>(q_.blocks, sums);
    asm volatile("" : "+r"(tile));  // the place is found here, so that it takes no registers from the sums
    store<kRows>(sums, order.place_of(tile));
  }

  // The sums meet in the memory for results.
  __device__ void shared(const Place &place, int blocks, int rank) {
    static_assert(kConsumers * kExchangeBytes <= staging_bytes(Kind), "");
    float sums[kRows / 2], own[kHalfRows / 2];
    multiply<kRows>(blocks, sums);
    wait_for_stores();
    exchange_sums(sums, rank, staging(), own);
    store<kHalfRows>(own, {place.row_block, place.first_row + rank * kHalfRows});
  }

 private:
  __device__ static int half() { return warpgroup() - 1; }
  __device__ static uint32_t staging() {
    return shared_address(shared_memory) + half() * (staging_bytes(Kind) / kConsumers);
  }

  template <int Rows>
  __device__ void multiply(int blocks, float (&sums)[Rows / 2]) {
    consumer_.template multiply<Rows>({blocks, 0, 1}, sums);
    consumer_.release();
  }

  template <int Rows>
  __device__ void store(const float *sums, Place place) const {
    const int column = place.row_block * kBlockRows + half() * kColumnsOfHalf;
    if (__builtin_expect(p_.maps_y, 1))
      store_by_copy<Rows>(sums, place.first_row, column);
    else
      store_each<Rows>(sums, place.first_row, column);
  }

  template <int Rows>
  __device__ void store_each(const float *sums, int first_row, int column) const {
    const int lane = lane_of_warp(), tile = column + warp_of_group() * kTile;
#pragma unroll
    for (int i = 0; i < Rows / 2; ++i) {
      const int row = first_row + i / 4 * 8 + (lane & 3) * 2 + (i & 1), at = tile + (lane >> 2) + (i >> 1 & 1) * 8;
      if (row < q_.rows && at < q_.columns) store_result(q_, row, at, finish_(sums[i]));
    }
  }

  // A warpgroup turns its columns around in shared memory, from where they leave while the next tile is multiplied.
  template <int Rows>
  __device__ void store_by_copy(const float *sums, int first_row, int column) const {
    constexpr int kRowBytes = kColumnsOfHalf * 2;
    const int lane = lane_of_warp(), eight = warp_of_group() * 2 + (lane >> 3 & 1), row = (lane & 7) + (lane >> 4) * 8;
    const uint32_t from = staging(),
                   to = from + row * kRowBytes + (eight ^ (lane & 7)) * 16;  // as the copy expects it swizzled
    wait_for_stores();
    sync_consumer(half());
#pragma unroll
    for (int group = 0; group < Rows / 16; ++group) {
      const float *own = sums + group * 8;
      uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) pairs[i] = round_pair(finish_(own[2 * i]), finish_(own[2 * i + 1]), q_.y_is_half);
      store_matrices_turned(to + group * (16 * kRowBytes), pairs);
    }
    publish_writes();
    sync_consumer(half());
    if (threadIdx.x % kWarpgroup == 0) {
      for (int box = 0; box < Rows; box += kHalfRows) store_box(&p_.y, column, first_row + box, from + box * kRowBytes);
      commit_stores();
    }
    __syncwarp();
  }
};

// What kernels for a kind of product get, and how they multiply.
template <int Kind, int Type, bool IsPrepared = is_prepared(Kind)>
struct KindOf {
  using Params = ManyRowsParams;
  using Lanes = Consumer<Kind, Type>;
  template <int Rows>
  using Tile = PreparedTile<Kind, Type>;
};

template <int Kind, int Types>
struct KindOf<Kind, Types, false> {
  using Params = BytesParams;
  using Lanes = BytesConsumer<Kind, Types>;
  template <int Rows>
  using Tile = BytesTile<Kind, Types, Rows>;
};

// A thread's registers move from copying to multiplying; copying scales of bytes needs more. `AtOnce` blocks of threads
// have those of a multiprocessor.
template <int Kind, int AtOnce = 1>
__device__ inline void give_up_registers() {
  constexpr int kLeft = AtOnce == 1 ? (is_prepared(Kind) ? 40 : 56) : (is_prepared(Kind) ? 24 : 40);
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kLeft));
}

template <int Kind, int AtOnce = 1>
__device__ inline void take_registers() {
  constexpr int kTaken = AtOnce == 1 ? (is_prepared(Kind) ? 232 : 224) : (is_prepared(Kind) ? 104 : 96);
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kTaken));
}

// Of a kernel's operands.
template <int Kind, class Params>
__device__ inline void prefetch_maps(const Params &p) {
  prefetch_map(&p.x);
  if constexpr (!is_prepared(Kind)) prefetch_map(&p.weights);
}

// For one thread: 128 rows of weights, and their scales where they are prepared, of a block along K.
template <int Kind, class Params>
__device__ inline void copy_row_block(const Ring<Kind> &ring, const Params &p, int row_block, int block, int stage) {
  if constexpr (is_prepared(Kind)) {
    constexpr int kBytes = weight_layout(Kind).bytes();
    const uint8_t *from = p.product.weights + (int64_t{row_block} * p.product.blocks_in_row + block) * kBytes;
    copy_bytes(ring.weights + stage * ring.weight_bytes, from, kBytes, ring.full + 8 * stage);
  } else {
    const BoxedRows rows = {row_block * kBlockRows, kBlockRows, kBlockRows};
    ring.copy_weights(&p.weights, block * stage_depth(Kind), rows, stage, 1);
  }
}

// How many threads of a block arrive at a stage that is full: those that begin copies of weights and of x, or one for
// both; where there are scales those that bring them, by default each lane of a warp.
__device__ inline int arrivals(int kind, int copiers, int of_scales = kWarpSize) {
  return copiers + (has_scales(kind) ? of_scales : 0);
}

// --- One tile a block of threads, or a cluster -----------------------------------------------------

// Where there are `Sharers`, a cluster's blocks have the same weights and neighbouring rows of x, and not shares of K.
template <int Kind, int Type, int Rows, int Sharers>
class SharedTile {
  using Params = typename KindOf<Kind, Type>::Params;
  using Lanes = typename KindOf<Kind, Type>::Lanes;
  // Copies start earlier, and take longer where there are many.
  static constexpr bool kLoadsScales = has_scales(Kind) && Rows >= 128;
  // But where rows of weights have scales along K: a thread needs two of a stage so, and 32 otherwise.
  static constexpr bool kXMayBeFirst = !is_prepared(Kind) && !has_scales_of_rows(Kind) && Rows == kRowsByX;
  static constexpr ScaleOrder kOrderOfWeights = has_scales_of_rows(Kind) ? kInOrder : kOne;
  const Params &p_;
  const ProductParams &q_;
  const Ring<Kind> ring_;
  const uint32_t ranks_ = Sharers > 1 ? 1 : cluster_size(), rank_ = Sharers > 1 ? 0 : cluster_rank();
  const int number_ = cluster_number();
  static constexpr int kDepth = stage_depth(Kind);
  const int first_row_ = (blockIdx.y * Sharers + (Sharers > 1 ? cluster_rank() : 0)) * Rows;
  const int begin_ = part_of(q_.blocks, rank_), count_ = part_of(q_.blocks, rank_ + 1) - begin_;

 public:
  __device__ explicit SharedTile(const Params &p)
      : p_(p), q_(p.product), ring_(Rows, p.halves, p.stages, 0, Sharers, sums_bytes(Rows, p.halves)) {}

  __device__ void run() {
    if (threadIdx.x == 0) prefetch_maps<Kind>(p_);
    ring_.init(arrivals(Kind, 2, kLoadsScales ? 1 : kWarpSize), p_.halves * Lanes::kReleases);
    let_next_kernel_start();
    if (warpgroup() == 0) {
      give_up_registers<Kind, tiles_at_once(Kind, Rows)>();
      if (threadIdx.x == 0) produce_weights();
      if (threadIdx.x == kWarpSize) produce_x();
      if (threadIdx.x / kWarpSize >= 2) produce_scales(threadIdx.x / kWarpSize - 2);
      __syncwarp();
      if (ranks_ > 1) sync_cluster(), sync_cluster();  // as those who share sums
    } else {
      take_registers<Kind, tiles_at_once(Kind, Rows)>();
      consume();
    }
  }

 private:
  // Where a rank's part of so many begins, which are below 2^30.
  __device__ int part_of(uint32_t count, uint32_t rank) const { return static_cast<int>(count * rank / ranks_); }

  __device__ void copy_weights(int block, int stage, uint64_t policy) const {
    if constexpr (is_prepared(Kind))
      copy_prepared(block, stage, policy);
    else
      ring_.copy_weights(&p_.weights, (begin_ + block) * kDepth, weight_rows(), stage, Sharers);
  }

  __device__ void copy_prepared(int block, int stage, uint64_t policy) const {
    constexpr WeightLayout kLayout = weight_layout(Kind);
    const uint32_t to = ring_.weights + stage * ring_.weight_bytes, barrier = ring_.full + 8 * stage;
    const int row_block = p_.halves == 2 ? number_ : number_ / 2;
    const uint8_t *from = q_.weights + (int64_t{row_block} * q_.blocks_in_row + begin_ + block) * kLayout.bytes();
    if (p_.halves == 2) return copy_bytes(to, from, kLayout.bytes(), barrier, policy);
    const int half = number_ % 2, scale_bytes = kLayout.scale_bytes() / 2;
    copy_bytes(to, from + half * ring_.code_bytes, ring_.code_bytes, barrier, policy);
    copy_bytes(to + ring_.code_bytes, from + kLayout.code_bytes() + half * scale_bytes, scale_bytes, barrier, policy);
  }

  // For each block along K copy(block, stage), as soon as its stage is free.
  template <class Copy>
  __device__ Turn produce(const Copy &copy) const {
    Turn turn = first_turn();
    for (int block = 0; block < count_; ++block) {
      wait_for(ring_.empty + 8 * turn.stage, turn.phase);
      copy(block, turn.stage);
      turn.advance(1, ring_.stages);
    }
    return turn;
  }

  // Prepared weights fill the ring before x is known to be there; others may be what the kernel before makes.
  __device__ void produce_weights() const {
    if (!is_prepared(Kind)) wait_for_kernel_before();
    const uint64_t policy = evict_first();
    const Turn end = produce([&](int block, int stage) {
      expect_bytes(ring_.full + 8 * stage, ring_.weight_bytes);
      copy_weights(block, stage, policy);
    });
    if (Sharers > 1) ring_.drain(end);
  }

  __device__ void produce_x() const {
    wait_for_kernel_before();
    produce([&](int block, int stage) {
      expect_bytes(ring_.full + 8 * stage, ring_.x_bytes);
      ring_.copy_x(&p_.x, (begin_ + block) * kDepth, {first_row_, Rows, Rows}, stage, 1);
    });
  }

  __device__ void produce_scales(int warp) const {
    if constexpr (has_scales(Kind)) {
      wait_for_kernel_before();
      if (p_.halves == 2)
        produce_scales_of<2 * kColumnsOfHalf, kXMayBeFirst ? kInPairs : kTurned>(warp);
      else
        produce_scales_of<kColumnsOfHalf, kTurned>(warp);
    }
  }

  template <int Columns, ScaleOrder OrderOfX>
  __device__ void produce_scales_of(int warp) const {
    if constexpr (kLoadsScales) {
      const LoadedTileScales<Kind, Rows, OrderOfX, Columns, kOrderOfWeights> scales(p_, first_row_, first_column());
      Turn turn = first_turn();
      int groups = 0;
      scales.produce(ring_, warp, begin_, begin_ + count_, turn, groups);
    } else if (warp == 0) {
      const TileScales<Rows, OrderOfX, Columns, kOrderOfWeights> scales(p_, first_row_, first_column());
      produce([&](int block, int stage) {
        scales.copy(ring_.scales + stage * ring_.scale_bytes, begin_ + block, ring_.full + 8 * stage, true);
      });
    }
  }

  __device__ int first_column() const { return number_ * kColumnsOfHalf * p_.halves; }
  __device__ BoxedRows weight_rows() const {
    const int count = kColumnsOfHalf * p_.halves;
    return {first_column(), count, count / Sharers};
  }

  __device__ void consume() const {
    wait_for_kernel_before();
    const int group = warpgroup() - 1;
    if (kXMayBeFirst && p_.halves == 2)
      multiply_by_x(group);
    else
      multiply(group);
    if (ranks_ > 1)
      sync_cluster();
    else
      sync_consumers();  // a cluster's barrier orders memory for the whole GPU
    const int parts = ranks_ * (p_.halves == 2 ? 1 : kConsumers);
    const Finish finish(q_);
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

  // A warpgroup's sums come to the memory of the ring, when its stages are free.
  __device__ void multiply(int group) const {
    const int half = p_.halves == 2 ? group : 0, share = p_.halves == 2 ? 0 : group;
    Lanes consumer(ring_, q_, half, share);
    float sums[Rows / 2];
    consumer.template multiply<Rows>({count_, share, p_.halves == 2 ? 1 : kConsumers}, sums);
    if constexpr (Kind == kBytesByLine)
      scale_lines<Rows>({p_.of_weights, q_.columns, first_column() + half * kColumnsOfHalf},
                        {p_.of_x, q_.rows, first_row_}, sums);
    sync_consumers();
    keep(sums, half, share);
  }

  __device__ void multiply_by_x(int group) const {
    if constexpr (kXMayBeFirst) {
      BytesConsumerByX<Kind, Type, true> consumer(ring_, group);
      float sums[1][kSumsByX];
      consumer.multiply(count_, sums);
      consumer.end(group);
      if constexpr (Kind == kBytesByLine)
        scale_lines<kBlockRows>({p_.of_x, q_.rows, first_row_ + group * kRowsOfGroup},
                                {p_.of_weights, q_.columns, first_column()}, sums[0]);
      sync_consumers();
      float *to = memory_of_sums() + (group * kRowsOfGroup + line_of_thread()) * sums_pitch(2) + pair_of_thread();
#pragma unroll
      for (int i = 0; i < kSumsByX; i += 2)
        *reinterpret_cast<float2 *>(to + i / 4 * 8 + (i >> 1 & 1) * 8 * sums_pitch(2)) =
            make_float2(sums[0][i], sums[0][i + 1]);
    }
  }

  __device__ void keep(const float *sums, int half, int share) const {
    const int pitch = sums_pitch(p_.halves), lane = lane_of_warp();
    float *to = memory_of_sums() + share * Rows * pitch + half * kColumnsOfHalf + warp_of_group() * kTile + (lane >> 2);
#pragma unroll
    for (int i = 0; i < Rows / 2; ++i)
      to[(i / 4 * 8 + (lane & 3) * 2 + (i & 1)) * pitch + (i >> 1 & 1) * 8] = share < count_ ? sums[i] : 0;
  }

  __device__ static float *memory_of_sums() { return reinterpret_cast<float *>(shared_memory); }

  // This rank's rows: all ranks' sums of them, and of both warpgroups where they share K.
  template <int Parts>
  __device__ void store(const Finish &finish) const {
    const int log_eights = p_.halves == 2 ? 4 : 3, rows_at_once = kConsumers * kWarpgroup >> log_eights;
    const int thread = threadIdx.x - kWarpgroup, own = (thread & (1 << log_eights) - 1) * 8;
    const int column = first_column() + own, pitch = sums_pitch(p_.halves);
    if (column >= q_.columns) return;
    const int end = min(part_of(Rows, rank_ + 1), q_.rows - first_row_);
    for (int row = part_of(Rows, rank_) + (thread >> log_eights); row < end; row += rows_at_once) {
      float4 parts[Parts][2];
#pragma unroll
      for (int part = 0; part < Parts; ++part) {
        const int rank = p_.halves == 2 ? part : part / kConsumers, share = p_.halves == 2 ? 0 : part % kConsumers;
        const uint32_t at = shared_address(shared_memory) + ((share * Rows + row) * pitch + own) * 4;
        parts[part][0] = load_part<Parts>(at, rank);
        parts[part][1] = load_part<Parts>(at + 16, rank);
      }
      float sums[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        sums[j] = (&parts[0][j / 4].x)[j % 4];
#pragma unroll
        for (int part = 1; part < Parts; ++part) sums[j] += (&parts[part][j / 4].x)[j % 4];
        sums[j] = finish(sums[j]);
      }
      store_eight(q_, first_row_ + row, column, sums);
    }
  }

  template <int Parts>
  __device__ static float4 load_part(uint32_t address, int rank) {
    if constexpr (Parts > 1) return load_from_cluster(address_at_rank(address, rank));
    uint32_t words[4];  // its own
    load_shared_16(address, words);
    return make_float4(__uint_as_float(words[0]), __uint_as_float(words[1]), __uint_as_float(words[2]),
                       __uint_as_float(words[3]));
  }
};

// --- Blocks of threads that walk over tiles ----------------------------------------------------------

// In the order of WalkOrder. Tiles of 128 rows are all whole, and each is one block's.
template <int Kind, int Type, int Rows>
class Walk {
  static constexpr int kRows = Rows, kHalfRows = kRows / 2, kDepth = stage_depth(Kind);
  static constexpr int kSharers = walk_sharers(Kind);
  static constexpr bool kIsShort = Rows == kShortWalkRows;
  using Tile = typename KindOf<Kind, Type>::template Tile<Rows>;
  using Place = WalkOrder::Place;
  using Params = typename KindOf<Kind, Type>::Params;
  const Params &p_;
  const ProductParams &q_;
  const WalkOrder &order_;
  const Ring<Kind> ring_;
  const int rank_ = cluster_rank(), shared_tile_ = order_.shared_tile(blockIdx.x / kWalkRanks);

 public:
  __device__ explicit Walk(const Params &p)
      : p_(p), q_(p.product), order_(p.order), ring_(kRows, 2, p.stages, staging_bytes(Kind), kSharers) {}

  __device__ void run() {
    if (threadIdx.x == 0) prefetch_maps<Kind>(p_);
    ring_.init(arrivals(Kind, 1, kIsShort ? 1 : kWarpSize), kConsumers * KindOf<Kind, Type>::Lanes::kReleases);
    let_next_kernel_start();
    if (warpgroup() == 0) {
      give_up_registers<Kind>();
      if (threadIdx.x == 0) produce_boxes();
      if (kIsShort && has_scales(Kind) && threadIdx.x / kWarpSize >= 2) load_scales(threadIdx.x / kWarpSize - 2);
      if (!kIsShort && has_scales(Kind) && threadIdx.x / kWarpSize == 1) produce_scales();
      __syncwarp();
      if (has_share())
        for (int i = 0; i < Tile::kSyncs; ++i) sync_cluster();  // as those who exchange sums
    } else {
      take_registers<Kind>();
      consume();
    }
  }

 private:
  __device__ int first_rest() const { return gridDim.x - 1 - blockIdx.x; }
  __device__ bool has_share() const { return !kIsShort && shared_tile_ != WalkOrder::kNone; }
  __device__ int begin_of_share() const { return q_.blocks * rank_ / kWalkRanks; }
  __device__ int end_of_share() const { return q_.blocks * (rank_ + 1) / kWalkRanks; }

  // For each block along K of each tile copier(place, rows, among)(block, stage), as soon as its stage is free. `rows`
  // of x are wanted, of which `among` blocks of threads have the same; of a shared tile they have other parts of K.
  template <class Copier>
  __device__ Turn produce(const Copier &copier) const {
    wait_for_kernel_before();
    Turn turn = first_turn();
    const auto produce_tile = [&](const Place &place, int begin, int end, int rows, int among) {
      const auto copy = copier(place, rows, among);
      for (int block = begin; block < end; ++block) {
        wait_for(ring_.empty + 8 * turn.stage, turn.phase);
        copy(block, turn.stage);
        turn.advance(1, ring_.stages);
      }
    };
    for (int rest = first_rest(); rest < order_.rests(); rest += gridDim.x)
      produce_tile(order_.place_of_rest(rest), 0, q_.blocks, kHalfRows, kSharers);
    for (int tile = blockIdx.x; tile < order_.alone; tile += gridDim.x)
      produce_tile(order_.place_of(tile), 0, q_.blocks, kRows, kSharers);
    if (has_share()) produce_tile(order_.place_of(shared_tile_), begin_of_share(), end_of_share(), kRows, 1);
    return turn;
  }

  // Blocks of a cluster that share a tile at last wait for each other there.
  __device__ void produce_boxes() const {
    const Turn end = produce([&](const Place &place, int count, int among) {
      const BoxedRows rows = {place.first_row, count, kHalfRows};
      return [&, place, rows, among](int block, int stage) {
        const uint32_t full = ring_.full + 8 * stage;
        const int scales = maps_scales() ? ring_.scales_of_copies(rows) : 0;
        expect_bytes(full, x_stage_bytes(rows.count) + ring_.weight_bytes + scales * 4);
        copy_row_block(ring_, p_, place.row_block, block, stage);
        ring_.copy_x(&p_.x, block * kDepth, rows, stage, among);
        if constexpr (has_scales(Kind))
          if (maps_scales()) ring_.copy_x_scales(&p_.x_scales, block, rows, stage, among);
      };
    });
    if (kSharers > 1 && !has_share()) ring_.drain(end);
  }

  __device__ void produce_scales() const {
    if constexpr (has_scales(Kind) && !kIsShort)
      produce([&](const Place &place, int, int) {
        constexpr ScaleOrder kOrder = has_scales_of_rows(Kind) ? kTurned : kOne;
        const TileScales<kRows, kInOrder, kBlockRows, kOrder> scales(p_, place.first_row, place.row_block * kBlockRows);
        return [&, scales](int block, int stage) {
          scales.copy(ring_.scales + stage * ring_.scale_bytes, block, ring_.full + 8 * stage, !maps_scales());
        };
      });
  }

  // The same for two warps.
  __device__ void load_scales(int warp) const {
    if constexpr (has_scales(Kind) && kIsShort) {
      wait_for_kernel_before();
      Turn turn = first_turn();
      int groups = 0;
      for (int tile = blockIdx.x; tile < order_.alone; tile += gridDim.x) {
        const Place place = order_.place_of(tile);
        const LoadedTileScales<Kind, Rows, kInPairs, kBlockRows, kOne> scales(p_, place.first_row,
                                                                              place.row_block * kBlockRows);
        scales.produce(ring_, warp, 0, q_.blocks, turn, groups);
      }
    }
  }

  // Whether bulk copies bring the scales of x.
  __device__ bool maps_scales() const {
    if constexpr (has_scales(Kind) && !kIsShort) return p_.maps_scales;
    return false;
  }

  __device__ void consume() const {
    wait_for_kernel_before();
    Tile tiles(p_, ring_);
    if constexpr (!kIsShort)
      for (int rest = first_rest(); rest < order_.rests(); rest += gridDim.x) tiles.rest(order_.place_of_rest(rest));
    for (int tile = blockIdx.x; tile < order_.alone; tile += gridDim.x) tiles.whole(order_, tile);
    if constexpr (!kIsShort)
      if (has_share()) tiles.shared(order_.place_of(shared_tile_), end_of_share() - begin_of_share(), rank_);
    tiles.end();
  }
};
#endif  // DLFP4_HOPPER

// On other GPUs, where the host does not call them, these are empty.
template <int Kind, int Type, int Rows, int Sharers, class Params>
__device__ inline void multiply_shared_tile(const Params &p) {
#ifdef DLFP4_HOPPER
  SharedTile<Kind, Type, Rows, Sharers>(p).run();
#endif
}

template <int Kind, int Type, int Rows, class Params>
__device__ inline void multiply_walking(const Params &p) {
#ifdef DLFP4_HOPPER
  Walk<Kind, Type, Rows>(p).run();
#endif
}

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_CUDA_MANY_ROWS_CUH_
