// y = x @ w.T for FP8 by FP8, on sm_90a: blocks of threads that stay walk over tiles of y, x is the first operand of
// wgmma.
// Layout: bytes.cuh's; before the ring results on their way out.
// Trick: tiles have as many columns as make the last round full. The two blocks of a cluster have the same rows of x or
// the same weights, of which each copies half for both; two threads start copies, for one would be late.
#ifndef DLFP4_SRC_PRODUCTS_CUDA_BYTE_WALK_CUH_
#define DLFP4_SRC_PRODUCTS_CUDA_BYTE_WALK_CUH_

#include "many_rows.cuh"

namespace dlfp4 {
namespace cuda {

#ifdef DLFP4_HOPPER
// A warpgroup's part of a tile.
template <int Kind, int Types, int Rows, int Columns>
class TileByX {
  static constexpr int kParts = Rows > kRowsByX ? Rows / kRowsByX : 1;
  static constexpr int kColumns = columns_of_group(Rows, Columns), kPiece = columns_of_piece(kColumns);
  // Scales of rows of weights take the place of a second set of products.
  static constexpr bool kHasTwoSets = !has_scales_of_rows(Kind);
  static_assert(kParts == 1 || (kParts * kRowsByX == Rows && !kHasTwoSets), "sums of all parts are made");
  static_assert(staging_bytes(Kind, Rows, Columns) % 1024 == 0, "rows behind them are swizzled");
  using Place = WalkOrder::Place;
  const BytesParams &p_;
  const ProductParams &q_;
  BytesConsumerByX<Kind, Types, kHasTwoSets, kColumns, !kHasTwoSets && kParts == 1> consumer_;
  const Finish finish_;

 public:
  __device__ TileByX(const BytesParams &p, const Ring<Kind> &ring)
      : p_(p), q_(p.product), consumer_(ring, group(), own_row(), own_column()), finish_(q_) {}

  __device__ void multiply(const WalkOrder &order, int tile) {
    float sums[kParts][kColumns / 2];
    consumer_.multiply(q_.blocks, sums);
    asm volatile("" : "+r"(tile));  // the place is found here, so that it takes no registers from the sums
    const Place place = order.place_of(tile);
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      store(sums[part], place.first_row + part * kRowsByX + own_row(), place.row_block * Columns + own_column());
  }

  __device__ void end() const {
    consumer_.end(group());
    wait_for_stores();  // they read this block's memory, which ends with it
  }

 private:
  __device__ static int group() { return warpgroup() - 1; }
  __device__ static int own_row() { return Rows > kRowsOfGroup ? group() * kRowsOfGroup : 0; }
  __device__ static int own_column() { return Rows > kRowsOfGroup ? 0 : group() * kColumns; }
  __device__ static uint32_t staging() {
    return shared_address(shared_memory) + group() * (staging_bytes(Kind, Rows, Columns) / kConsumers);
  }

  __device__ void store(float (&sums)[kColumns / 2], int row, int column) const {
    if constexpr (Kind == kBytesByLine)
      scale_lines<kColumns>({p_.of_x, q_.rows, row}, {p_.of_weights, q_.columns, column}, sums);
    if (!__builtin_expect(p_.maps_y, 1)) return store_each(sums, row, column);
#pragma unroll
    for (int first = 0; first < kColumns; first += kPiece) store_piece(sums + first / 2, row, column + first);
  }

  __device__ void store_each(const float *sums, int first_row, int first_column) const {
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) {
      const int row = first_row + line_of_thread() + (i >> 1 & 1) * 8;
      const int column = first_column + i / 4 * 8 + pair_of_thread() + (i & 1);
      if (row < q_.rows && column < q_.columns) store_result(q_, row, column, finish_(sums[i]));
    }
  }

  // Through shared memory.
  __device__ void store_piece(const float *sums, int row, int column) const {
    const uint32_t from = staging();
    wait_for_stores();
    sync_consumer(group());
    turn_sums<kPiece>(sums, finish_, q_.y_is_half, from);
    publish_writes();
    sync_consumer(group());
    if (threadIdx.x % kWarpgroup == 0) {
      store_box(&p_.y, column, row, from);
      commit_stores();
    }
    __syncwarp();
  }
};

template <int Kind, int Types, int Rows, int Columns>
class ByteWalk {
  static constexpr ScaleOrder kOrderOfX = has_scales_of_rows(Kind) ? kInOrder : kInPairs;
  static constexpr ScaleOrder kOrderOfWeights = has_scales_of_rows(Kind) ? kTurned : kOne;
  using Place = WalkOrder::Place;
  const BytesParams &p_;
  const ProductParams &q_;
  const WalkOrder &order_;
  const Ring<Kind> ring_;

 public:
  __device__ explicit ByteWalk(const BytesParams &p)
      : p_(p),
        q_(p.product),
        order_(p.order),
        ring_(Rows, Columns, p.stages, staging_bytes(Kind, Rows, Columns), kWalkRanks) {}

  __device__ void run() {
    if (threadIdx.x == 0) prefetch_maps<Kind>(p_);
    ring_.init(arrivals(Kind, 2, 1), kConsumers * BytesConsumer<Kind, Types>::kReleases);
    let_next_kernel_start();
    if (warpgroup() == 0) {
      give_up_registers<Kind>();
      const int warp = warp_of_block();
      if (warp == 0 && is_elected()) produce_weights();
      if (warp == 1 && is_elected()) produce_x();
      if (has_scales(Kind) && warp >= 2) load_scales(warp - 2);
    } else {
      take_registers<Kind>();
      wait_for_kernel_before();
      TileByX<Kind, Types, Rows, Columns> own(p_, ring_);
      each_tile([&](int tile) { own.multiply(order_, tile); });
      own.end();
    }
  }

 private:
  template <class Use>
  __device__ void each_tile(const Use &use) const {
    for (int tile = blockIdx.x; tile < order_.alone; tile += gridDim.x) use(tile);
  }

  // For each block along K of each tile copier(place)(block, stage), as soon as its stage is free.
  template <class Copier>
  __device__ Turn produce(const Copier &copier) const {
    wait_for_kernel_before();
    Turn turn = first_turn();
    each_tile([&](int tile) {
      const auto copy = copier(order_.place_of(tile));
      for (int block = 0; block < q_.blocks; ++block) {
        wait_for(ring_.empty + 8 * turn.stage, turn.phase);
        copy(block, turn.stage);
        turn.advance(1, ring_.stages);
      }
    });
    return turn;
  }

  // A loop for each number of blocks that have the same: with a number that the compiler does not know, products take
  // up to 1.4 times as long.
  __device__ void produce_weights() const {
    ring_.drain(order_.together == 1 ? produce_weights_among<1>() : produce_weights_among<kWalkRanks>());
  }

  __device__ void produce_x() const {
    if (order_.together == 1)
      produce_x_among<kWalkRanks>();
    else
      produce_x_among<1>();
  }

  // A tile beyond the matrix is there only to complete a cluster. It copies the last tile's rows, so that both blocks
  // of threads expect equally many bytes.
  template <int Among>
  __device__ Turn produce_weights_among() const {
    const int last = (q_.columns - 1) / Columns;
    return produce([&](const Place &place) {
      const int row_block = min(place.row_block, last);
      const TileRows &rows = row_block == last ? p_.weights.last : p_.weights.whole;
      return [&, row_block](int block, int stage) {
        expect_bytes(ring_.full + 8 * stage, rows.count * Among * kBoxBytes);
        ring_.copy_tile_of_weights(rows, block * kBoxBytes, row_block * Columns, stage, Among);
      };
    });
  }

  template <int Among>
  __device__ void produce_x_among() const {
    const int last = (q_.rows - 1) / Rows * Rows;
    produce([&](const Place &place) {
      const int first_row = min(place.first_row, last);
      const TileRows &rows = first_row == last ? p_.x.last : p_.x.whole;
      return [&, first_row](int block, int stage) {
        expect_bytes(ring_.full + 8 * stage, rows.count * Among * kBoxBytes);
        ring_.copy_tile_of_x(rows, block * kBoxBytes, first_row, stage, Among);
      };
    });
  }

  // For two warps: those of this block of threads.
  __device__ void load_scales(int warp) const {
    if constexpr (has_scales(Kind)) {
      wait_for_kernel_before();
      Turn turn = first_turn();
      int groups = 0;
      each_tile([&](int tile) {
        const Place place = order_.place_of(tile);
        const LoadedTileScales<Kind, Rows, kOrderOfX, Columns, kOrderOfWeights> scales(p_, place.first_row,
                                                                                       place.row_block * Columns);
        scales.produce(ring_, warp, 0, q_.blocks, turn, groups);
      });
    }
  }
};
#endif  // DLFP4_HOPPER

// On other GPUs, where the host does not call it, this is empty.
template <int Kind, int Types, int Rows, int Columns>
__device__ inline void multiply_byte_walk(const BytesParams &p) {
#ifdef DLFP4_HOPPER
  ByteWalk<Kind, Types, Rows, Columns>(p).run();
#endif
}

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_CUDA_BYTE_WALK_CUH_
