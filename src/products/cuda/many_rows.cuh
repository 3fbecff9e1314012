// y = x @ w.T for more rows of x, on sm_90a: weights decoded in registers are the first operand of wgmma, x the second.
// Layout: a warpgroup of threads copies blocks of 64 along K into a ring in shared memory; two multiply them.
// Trick: two sets of operands, so that the next block is decoded while the tensor cores work on this one. These leave
// little room to other instructions, so the loop keeps what it needs in registers. Few columns are shared out along K:
// to the two warpgroups, and to a cluster of blocks that read each other's sums. Many tiles of y are walked by blocks
// that stay, so that copies for the next tile run while this one is stored, and results leave while the next one is
// multiplied.
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
      : ring_(ring),
        by_(q.shifts),
        weight_bytes_(held(ring.weight_bytes)),
        full_(held(ring.full)),
        empty_(held(ring.empty)),
        releases_(held(threadIdx.x % kWarpgroup == 0)),
        turn_(first) {
    const int tile = half * (kTilesInBlock / 2) + warp_of_group(), lane = lane_of_warp();
    codes_ = held(ring.weights + tile * (kLayout.words() * 4 * kWarpSize) + lane * 16);
    scales_ =
        held(ring.weights + ring.code_bytes + tile * (kTile * kLayout.groups()) + (lane >> 2) * (2 * kLayout.groups()));
  }

  // With one set of operands, which takes fewer registers, blocks wait for one another.
  template <int Rows, int Sets = 2>
  __device__ __forceinline__ void multiply(const Blocks &blocks, float (&sums)[Rows / 2]) {
    static_assert(Sets == 1 || Sets == 2, "");
    uint32_t operands[Sets][4 * kSteps];
    int left = (blocks.count - blocks.first + blocks.by - 1) / blocks.by;
    if (left > 0) step<Rows, Sets, false>(operands[0], blocks.by, sums);
    for (; left > Sets; left -= Sets) {
#pragma unroll
      for (int set = Sets - 1; set >= 0; --set) step<Rows, Sets, true>(operands[set], blocks.by, sums);
    }
    if (left > 1) step<Rows, Sets, true>(operands[Sets - 1], blocks.by, sums);
    wait_for_products<0>();
#pragma unroll
    for (float &sum : sums) asm volatile("" : "+f"(sum)::"memory");
  }

  // Releases the last block's stage to producers. One thread does so for its warpgroup, as in CUTLASS: a product is one
  // operation of four warps, and ends only when each has read its words of the stage.
  __device__ void release() const {
    if (releases_) arrive(empty_ + 8 * last_);
  }

 private:
  __device__ void load(LaneWords<Kind> &words) const {
    const uint32_t offset = turn_.stage * weight_bytes_;
#pragma unroll
    for (int i = 0; i < kLayout.words(); i += 4) load_shared_16(codes_ + offset + i * 4 * kWarpSize, words.codes + i);
    load_shared(scales_ + offset, words.scales);
  }

  // Waits for the products of the block before, if there is one, whose stage is free then; `Later` have begun since.
  template <int Later, bool IsThere>
  __device__ void finish_block() const {
    wait_for_products<Later>();
    if constexpr (IsThere) release();
  }

  // `Adds` to the sums of blocks before.
  template <int Rows, int Sets, bool Adds>
  __device__ __forceinline__ void step(uint32_t *operands, int by, float *sums) {
    if (!is_there_) wait_for(full_ + 8 * turn_.stage, turn_.phase);
    LaneWords<Kind> words;
    load(words);
    Turn next = turn_;
    next.advance(by, ring_.stages);
    is_there_ = has_passed(full_ + 8 * next.stage, next.phase);
    if constexpr (Sets == 1) finish_block<0, Adds>();
    decode_block<Kind, Type>(words, by_, operands);
    const uint64_t rows = describe_rows(ring_.x + turn_.stage * ring_.x_bytes);
    begin_products();
#pragma unroll
    for (int i = 0; i < kSteps; ++i) multiply_rows<Type, Rows>(sums, operands + 4 * i, rows + 2 * i, Adds || i > 0);
    commit_products();
    if constexpr (Sets == 2) finish_block<1, Adds>();
    last_ = turn_.stage;
    turn_ = next;
  }

  const Ring<Kind> &ring_;
  const Shifts &by_;
  const uint32_t weight_bytes_, full_, empty_;
  const bool releases_;
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
    static_assert(kConsumers * kExchangeBytes <= staging_bytes(Kind, kWalkRows, kBlockRows), "");
    float sums[kRows / 2], own[kHalfRows / 2];
    multiply<kRows>(blocks, sums);
    wait_for_stores();
    exchange_sums(sums, rank, staging(), own);
    store<kHalfRows>(own, {place.row_block, place.first_row + rank * kHalfRows});
  }

 private:
  __device__ static int half() { return warpgroup() - 1; }
  __device__ static uint32_t staging() {
    return shared_address(shared_memory) + half() * (staging_bytes(Kind, kWalkRows, kBlockRows) / kConsumers);
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
};

template <int Kind, int Types>
struct KindOf<Kind, Types, false> {
  using Params = BytesParams;
  using Lanes = BytesConsumer<Kind, Types>;
};

// Those of a thread that copies (more where it also loads scales) and of one that multiplies, with `at_once` blocks of
// threads on a multiprocessor.
struct Registers {
  int copying, multiplying;
};

DLFP4_RULE Registers registers_of(int kind, int at_once) {
  if (at_once > 1) return is_prepared(kind) ? Registers{24, 104} : Registers{40, 96};
  if (is_prepared(kind)) return {40, 232};
  return has_scales(kind) ? Registers{56, 224} : Registers{24, 240};
}

template <int Kind, int AtOnce = 1>
__device__ inline void give_up_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers_of(Kind, AtOnce).copying));
}

template <int Kind, int AtOnce = 1>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers_of(Kind, AtOnce).multiplying));
}

// Of a kernel's operands.
template <int Kind, class Params>
__device__ inline void prefetch_maps(const Params &p) {
  prefetch_map(&p.x.whole.map);
  prefetch_map(&p.x.last.map);
  if constexpr (!is_prepared(Kind)) {
    prefetch_map(&p.weights.whole.map);
    prefetch_map(&p.weights.last.map);
  }
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

template <int Kind, int Type, int Rows>
class SharedTile {
  using Params = typename KindOf<Kind, Type>::Params;
  using Lanes = typename KindOf<Kind, Type>::Lanes;
  // Copies start earlier, and take longer where there are many.
  static constexpr bool kLoadsScales = has_scales(Kind) && Rows >= 128;
  static constexpr ScaleOrder kOrderOfWeights = has_scales_of_rows(Kind) ? kInOrder : kOne;
  const Params &p_;
  const ProductParams &q_;
  const Ring<Kind> ring_;
  const uint32_t ranks_ = cluster_size(), rank_ = cluster_rank();
  const int number_ = cluster_number(), shares_ = shares_of_depth(p_.columns);
  static constexpr int kDepth = stage_depth(Kind);
  const int first_row_ = blockIdx.y * Rows;
  const int begin_ = part_of(q_.blocks, rank_), count_ = part_of(q_.blocks, rank_ + 1) - begin_;

 public:
  __device__ explicit SharedTile(const Params &p)
      : p_(p), q_(p.product), ring_(Rows, p.columns, p.stages, 0, 1, sums_bytes(Rows, p.columns)) {}

  __device__ void run() {
    if (threadIdx.x == 0) prefetch_maps<Kind>(p_);
    ring_.init(arrivals(Kind, 2, kLoadsScales ? 1 : kWarpSize), kConsumers / shares_ * Lanes::kReleases);
    let_next_kernel_start();
    if (warpgroup() == 0) {
      give_up_registers<Kind, tiles_at_once(Kind, Rows)>();
      const int warp = warp_of_block();
      if (warp == 0 && is_elected()) produce_weights();
      if (warp == 1 && is_elected()) produce_x();
      if (warp >= 2) produce_scales(warp - 2);
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

  // For each block along K copy(block, stage), as soon as its stage is free.
  template <class Copy>
  __device__ void produce(const Copy &copy) const {
    Turn turn = first_turn();
    for (int block = 0; block < count_; ++block) {
      wait_for(ring_.empty + 8 * turn.stage, turn.phase);
      copy(block, turn.stage);
      turn.advance(1, ring_.stages);
    }
  }

  // Of all columns of a block of prepared weights, or of half of them.
  template <int Shares>
  __device__ void produce_prepared() const {
    constexpr WeightLayout kLayout = weight_layout(Kind);
    constexpr int kCodes = kLayout.code_bytes() / Shares, kScales = kLayout.scale_bytes() / Shares;
    const uint64_t policy = evict_first();
    const int half = number_ % Shares;
    const uint8_t *first = q_.weights + (int64_t{number_ / Shares} * q_.blocks_in_row + begin_) * kLayout.bytes();
    produce([&](int block, int stage) {
      const uint32_t to = ring_.weights + stage * (kCodes + kScales), barrier = ring_.full + 8 * stage;
      const uint8_t *from = first + int64_t{block} * kLayout.bytes();
      expect_bytes(barrier, kCodes + kScales);
      if constexpr (Shares == 1) return copy_bytes(to, from, kCodes + kScales, barrier, policy);
      copy_bytes(to, from + half * kCodes, kCodes, barrier, policy);
      copy_bytes(to + kCodes, from + kLayout.code_bytes() + half * kScales, kScales, barrier, policy);
    });
  }

  // Prepared weights fill the ring before x is known to be there; others may be what the kernel before makes.
  __device__ void produce_weights() const {
    if constexpr (is_prepared(Kind)) {
      if (shares_ == 1)
        produce_prepared<1>();
      else
        produce_prepared<kConsumers>();
    } else {
      const TileRows &rows = first_column() + p_.columns <= q_.columns ? p_.weights.whole : p_.weights.last;
      wait_for_kernel_before();
      produce([&](int block, int stage) {
        expect_bytes(ring_.full + 8 * stage, rows.count * kBoxBytes);
        ring_.copy_tile_of_weights(rows, (begin_ + block) * kDepth, first_column(), stage, 1);
      });
    }
  }

  __device__ void produce_x() const {
    const TileRows &rows = first_row_ + Rows <= q_.rows ? p_.x.whole : p_.x.last;
    wait_for_kernel_before();
    produce([&](int block, int stage) {
      expect_bytes(ring_.full + 8 * stage, rows.count * kBoxBytes);
      ring_.copy_tile_of_x(rows, (begin_ + block) * kDepth, first_row_, stage, 1);
    });
  }

  __device__ void produce_scales(int warp) const {
    if constexpr (has_scales(Kind)) {
      wait_for_kernel_before();
      if (shares_ == 1)
        produce_scales_of<2 * kColumnsOfHalf>(warp);
      else
        produce_scales_of<kColumnsOfHalf>(warp);
    }
  }

  template <int Columns>
  __device__ void produce_scales_of(int warp) const {
    if constexpr (kLoadsScales) {
      const LoadedTileScales<Kind, Rows, kTurned, Columns, kOrderOfWeights> scales(p_, first_row_, first_column());
      Turn turn = first_turn();
      int groups = 0;
      scales.produce(ring_, warp, begin_, begin_ + count_, turn, groups);
    } else if (warp == 0) {
      const TileScales<Rows, kTurned, Columns, kOrderOfWeights> scales(p_, first_row_, first_column());
      produce([&](int block, int stage) {
        scales.copy(ring_.scales + stage * ring_.scale_bytes, begin_ + block, ring_.full + 8 * stage);
      });
    }
  }

  __device__ int first_column() const { return number_ * p_.columns; }

  __device__ void consume() const {
    wait_for_kernel_before();
    multiply(warpgroup() - 1);
    if (ranks_ > 1)
      sync_cluster();
    else
      sync_consumers();  // a cluster's barrier orders memory for the whole GPU
    const int parts = ranks_ * shares_;
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
    const int half = shares_ == 1 ? group : 0, share = shares_ == 1 ? 0 : group;
    Lanes consumer(ring_, q_, half, share);
    float sums[Rows / 2];
    consumer.template multiply<Rows>({count_, share, shares_}, sums);
    if constexpr (Kind == kBytesByLine)
      scale_lines<Rows>({p_.of_weights, q_.columns, first_column() + half * kColumnsOfHalf},
                        {p_.of_x, q_.rows, first_row_}, sums);
    sync_consumers();
    keep(sums, half, share);
  }

  __device__ void keep(const float *sums, int half, int share) const {
    const int pitch = sums_pitch(p_.columns), lane = lane_of_warp();
    float *to = memory_of_sums() + share * Rows * pitch + half * kColumnsOfHalf + warp_of_group() * kTile + (lane >> 2);
#pragma unroll
    for (int i = 0; i < Rows / 2; ++i)
      to[(i / 4 * 8 + (lane & 3) * 2 + (i & 1)) * pitch + (i >> 1 & 1) * 8] = share < count_ ? sums[i] : 0;
  }

  __device__ static float *memory_of_sums() { return reinterpret_cast<float *>(shared_memory); }

  // This rank's rows: all ranks' sums of them, and of both warpgroups where they share K.
  template <int Parts>
  __device__ void store(const Finish &finish) const {
    const int log_eights = shares_ == 1 ? 4 : 3, rows_at_once = kConsumers * kWarpgroup >> log_eights;
    const int thread = threadIdx.x - kWarpgroup, own = (thread & (1 << log_eights) - 1) * 8;
    const int column = first_column() + own, pitch = sums_pitch(p_.columns);
    if (column >= q_.columns) return;
    const int end = min(part_of(Rows, rank_ + 1), q_.rows - first_row_);
    for (int row = part_of(Rows, rank_) + (thread >> log_eights); row < end; row += rows_at_once) {
      float4 parts[Parts][2];
#pragma unroll
      for (int part = 0; part < Parts; ++part) {
        const int rank = shares_ == 1 ? part : part / kConsumers, share = shares_ == 1 ? 0 : part % kConsumers;
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

// In the order of WalkOrder, by prepared weights.
template <int Kind, int Type>
class Walk {
  static constexpr int kRows = kWalkRows, kHalfRows = kRows / 2;
  using Place = WalkOrder::Place;
  const ManyRowsParams &p_;
  const ProductParams &q_;
  const WalkOrder &order_;
  const Ring<Kind> ring_;
  const int rank_ = cluster_rank(), shared_tile_ = order_.shared_tile(blockIdx.x / kWalkRanks);

 public:
  __device__ explicit Walk(const ManyRowsParams &p)
      : p_(p),
        q_(p.product),
        order_(p.order),
        ring_(kRows, kBlockRows, p.stages, staging_bytes(Kind, kRows, kBlockRows)) {}

  __device__ void run() {
    if (threadIdx.x == 0) prefetch_maps<Kind>(p_);
    ring_.init(arrivals(Kind, 1), kConsumers);
    let_next_kernel_start();
    if (warpgroup() == 0) {
      give_up_registers<Kind>();
      if (warp_of_block() == 0 && is_elected()) produce();
      __syncwarp();
      if (has_share())
        for (int i = 0; i < PreparedTile<Kind, Type>::kSyncs; ++i) sync_cluster();  // as those who exchange sums
    } else {
      take_registers<Kind>();
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
    Turn turn = first_turn();
    for (int rest = first_rest(); rest < order_.rests(); rest += gridDim.x)
      produce_tile(order_.place_of_rest(rest), 0, q_.blocks, kHalfRows, turn);
    for (int tile = blockIdx.x; tile < order_.alone; tile += gridDim.x)
      produce_tile(order_.place_of(tile), 0, q_.blocks, kRows, turn);
    if (has_share()) produce_tile(order_.place_of(shared_tile_), begin_of_share(), end_of_share(), kRows, turn);
  }

  // Half a tile's.
  __device__ const TileRows &rows_from(int row) const { return row + kHalfRows <= q_.rows ? p_.x.whole : p_.x.last; }

  // Each block along K, as soon as its stage is free.
  __device__ void produce_tile(const Place &place, int begin, int end, int count, Turn &turn) const {
    const int second_row = place.first_row + kHalfRows, column = stage_depth(Kind);
    const TileRows &first = rows_from(place.first_row), &second = rows_from(second_row);
    const int copied = first.count + (count > kHalfRows ? second.count : 0);
    for (int block = begin; block < end; ++block) {
      wait_for(ring_.empty + 8 * turn.stage, turn.phase);
      expect_bytes(ring_.full + 8 * turn.stage, copied * kBoxBytes + ring_.weight_bytes);
      copy_row_block(ring_, p_, place.row_block, block, turn.stage);
      ring_.copy_tile_of_x(first, block * column, place.first_row, turn.stage, 1);
      if (count > kHalfRows) ring_.copy_tile_of_x(second, block * column, second_row, turn.stage, 1, kHalfRows);
      turn.advance(1, ring_.stages);
    }
  }

  __device__ void consume() const {
    wait_for_kernel_before();
    PreparedTile<Kind, Type> tiles(p_, ring_);
    for (int rest = first_rest(); rest < order_.rests(); rest += gridDim.x) tiles.rest(order_.place_of_rest(rest));
    for (int tile = blockIdx.x; tile < order_.alone; tile += gridDim.x) tiles.whole(order_, tile);
    if (has_share()) tiles.shared(order_.place_of(shared_tile_), end_of_share() - begin_of_share(), rank_);
    tiles.end();
  }
};
#endif  // DLFP4_HOPPER

// On other GPUs, where the host does not call them, these are empty.
template <int Kind, int Type, int Rows, class Params>
__device__ inline void multiply_shared_tile(const Params &p) {
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
