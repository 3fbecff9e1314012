// Rows times weights of their experts, on sm_90a: tiles of many_rows.cuh and bytes.cuh, which blocks of threads walk
// over. Layout: a tile is rows of one expert by 128 rows of all experts' weights, whose first and last may be a
// neighbour's. Trick: nothing waits for the host: each block reads where experts' rows end, and counts the tiles
// itself. Rows of tokens are brought together first, for bulk copies: copied by threads while others multiply, they
// came a third slower.
#ifndef DLFP4_SRC_PRODUCTS_CUDA_GROUPED_CUH_
#define DLFP4_SRC_PRODUCTS_CUDA_GROUPED_CUH_

#include "grouped.h"
#include "many_rows.cuh"
#include "routing.cuh"

namespace dlfp4 {
namespace cuda {

#ifdef DLFP4_HOPPER
template <int Kind, bool IsPrepared = is_prepared(Kind)>
struct GroupedOf {
  using Params = GroupedParams;
};

template <int Kind>
struct GroupedOf<Kind, false> {
  using Params = GroupedBytesParams;
};

template <int Kind, int Type, RoutedRows Of>
class Experts {
  using Params = typename GroupedOf<Kind>::Params;
  using Lanes = typename KindOf<Kind, Type>::Lanes;
  static constexpr int kSizes = count_sizes(Of), kSizesByX = sizes_by_x(Of), kBox = routed_box(Of);
  static constexpr int kChunks = kBoxBytes / 16, kSharers = count_sharers(Of);
  // One thread copies weights and another x: a small stage of both takes one thread longer than multiplying it. FP8 by
  // FP8 was 8 % slower that way.
  static constexpr int kCopiers = is_prepared(Kind) ? 2 : 1;

  struct Place {
    int expert, first_row, left;  // rows of the expert from the first on
    int row_block, first_column;  // of all weights; of the expert's, below 0 where the block begins with a neighbour's
  };

  const Params &p_;
  const ProductParams &q_;
  Schedule<Of> &schedule_;
  const Ring<Kind> ring_;

 public:
  __device__ explicit Experts(const Params &p)
      : p_(p),
        q_(p.product),
        schedule_(*reinterpret_cast<Schedule<Of> *>(shared_memory + kPieceBytes)),
        ring_(most_rows(Of), kBlockRows, grouped_stages(Kind, Of), bytes_before_ring(Of), kSharers) {}

  __device__ __forceinline__ void run() {
    let_next_kernel_start();
    wait_for_kernel_before();
    make_schedule();
    ring_.init(arrivals(Kind, kCopiers), kConsumers * Lanes::kReleases);
    if (warpgroup() == 0) {
      give_up_registers<Kind, blocks_at_once(Of)>();
      const int warp = warp_of_block();
      if (warp == 0 && is_elected()) produce<true, kCopiers == 1>();
      if (kCopiers == 2 && warp == 1 && is_elected()) produce<false, true>();
      if constexpr (has_scales(Kind)) {
        Turn turn = first_turn();
        if (warp == 1) produce_scales<0>(blockIdx.x, turn);
      }
      __syncwarp();
    } else {
      take_registers<Kind, blocks_at_once(Of)>();
      consume();
    }
  }

 private:
  // --- The schedule

  __device__ int first_block(int expert) const { return static_cast<int>(int64_t{expert} * q_.columns / kBlockRows); }
  __device__ int count_blocks(int expert) const {  // for whole clusters
    const int64_t end = (int64_t{expert + 1} * q_.columns + kBlockRows - 1) / kBlockRows;
    return (static_cast<int>(end) - first_block(expert) + kSharers - 1) / kSharers * kSharers;
  }

  // A warp counts tiles of a size.
  __device__ void make_schedule() {
    int *ends = reinterpret_cast<int *>(shared_memory);  // as they were given, where later results are
    load_ends(p_, ends);
    const int size = threadIdx.x / kWarpSize;
    if (size < kSizes) count_size(ends, size);
    __syncthreads();
  }

  __device__ void count_size(const int *ends, int size) {
    const auto count = [&](int expert, int rows) { return count_tiles(rows, Of, size) * count_blocks(expert); };
    add_up_experts(ends, p_.experts, count, [&](int expert, int end, int sum) {
      if (size == 0) schedule_.ends[expert] = end;
      schedule_.tiles[size][expert] = sum;
    });
  }

  __device__ int tiles_of_size(int size) const { return schedule_.tiles[size][p_.experts - 1]; }

  // An expert's tiles of the same rows of x are a cluster's, and of the same weights are neighbours, so that these come
  // from the memory once.
  __device__ Place place_of(int size, int tile) const {
    const int *tiles = schedule_.tiles[size];
    const int expert = find_expert(tiles, p_.experts, tile);
    const int first = expert ? schedule_.ends[expert - 1] : 0, rows = schedule_.ends[expert] - first;
    const int in_expert = tile - (expert ? tiles[expert - 1] : 0), cluster = in_expert / kSharers;
    const int across = count_tiles(rows, Of, size);
    const int down = (size == 0 ? cluster % across : rows / most_rows(Of)) * most_rows(Of);
    const int row_block = first_block(expert) + cluster / across * kSharers + in_expert % kSharers;
    return {expert, first + down, rows - down, row_block,
            static_cast<int>(int64_t{row_block} * kBlockRows - int64_t{expert} * q_.columns)};
  }

  // --- Copying

  template <bool Weights, bool X>
  __device__ void produce() const {
    Turn turn = first_turn();
    int tile = blockIdx.x;
    for (int size = 0; size < kSizes; ++size) {
      for (; tile < tiles_of_size(size); tile += gridDim.x)
        produce_tile<Weights, X>(place_of(size, tile), rows_of_size(Of, size), X && maps_scales(size), turn);
      tile -= tiles_of_size(size);
    }
    if constexpr (kSharers > 1) ring_.drain(turn);
  }

  template <bool Weights, bool X>
  __device__ __forceinline__ void produce_tile(const Place &place, int count, bool maps_scales, Turn &turn) const {
    const BoxedRows rows = {place.first_row, count, kBox};
    const int bytes = (Weights ? ring_.weight_bytes : 0) + (X ? x_stage_bytes(count) : 0) +
                      (maps_scales ? ring_.scales_of_copies(rows) * 4 : 0);
    for (int block = 0; block < q_.blocks; ++block) {
      const uint32_t full = ring_.full + 8 * turn.stage;
      wait_for(ring_.empty + 8 * turn.stage, turn.phase);
      expect_bytes(full, bytes);
      if (Weights) copy_row_block(ring_, p_, place.row_block, block, turn.stage);
      if (X) ring_.copy_x(&p_.x, block * stage_depth(Kind), rows, turn.stage, kSharers);
      if constexpr (has_scales(Kind))
        if (maps_scales) ring_.copy_x_scales(&p_.x_scales, block, rows, turn.stage, kSharers);
      turn.advance(1, ring_.stages);
    }
  }

  // Whether bulk copies bring the scales of x, which they cannot turn.
  __device__ bool maps_scales(int size) const {
    if constexpr (has_scales(Kind)) return size < kSizesByX && p_.maps_scales;
    return false;
  }

  // A warp copies what scales a stage.
  template <int Size>
  __device__ void produce_scales(int tile, Turn &turn) const {
    for (; tile < tiles_of_size(Size); tile += gridDim.x) {
      const Place place = place_of(Size, tile);
      constexpr ScaleOrder kOfX = Size < kSizesByX ? kInOrder : kTurned, kOther = kOfX == kTurned ? kInOrder : kTurned;
      const LaneScales<rows_of_size(Of, Size), kOfX> of_x(p_.of_x, place.first_row, q_.rows);
      const LaneScales<kBlockRows, has_scales_of_rows(Kind) ? kOther : kOne> of_weights(
          p_.of_weights, place.row_block * kBlockRows, p_.weight_rows);
      for (int block = 0; block < q_.blocks; ++block) {
        const uint32_t to = ring_.scales + turn.stage * ring_.scale_bytes;
        wait_for(ring_.empty + 8 * turn.stage, turn.phase);
        if (!maps_scales(Size)) of_x.copy(to, block);
        of_weights.copy(to + line_scale_bytes(most_rows(Of)), block);
        arrive_after_copies(ring_.full + 8 * turn.stage);
        turn.advance(1, ring_.stages);
      }
    }
    if constexpr (Size + 1 < kSizes) produce_scales<Size + 1>(tile - tiles_of_size(Size), turn);
  }

  // --- Multiplying

  __device__ __forceinline__ void consume() const {
    if constexpr (kSizesByX > 0) {
      BytesConsumerByX<Kind, Type> by_x(ring_, half(), half() * kRowsOfGroup);
      const int tile = multiply_sizes<0, kSizesByX>(by_x, blockIdx.x);
      Lanes consumer(ring_, half(), by_x.end(half()));
      multiply_sizes<kSizesByX, kSizes>(consumer, tile);
    } else {
      Lanes consumer(ring_, q_, half(), 0);
      multiply_sizes<0, kSizes>(consumer, blockIdx.x);
    }
    clear_rows(q_, schedule_.ends[p_.experts - 1], threadIdx.x - kWarpgroup, kConsumers * kWarpgroup);
  }

  // From a tile on; returns the first of the sizes that follow. A loop a size: with all sizes in one loop ptxas finds
  // no registers for the sums.
  template <int Size, int End, class Consumer>
  __device__ __forceinline__ int multiply_sizes(Consumer &consumer, int tile) const {
    for (; tile < tiles_of_size(Size); tile += gridDim.x) multiply<Size>(consumer, tile);
    tile -= tiles_of_size(Size);
    if constexpr (Size + 1 < End) tile = multiply_sizes<Size + 1, End>(consumer, tile);
    return tile;
  }

  __device__ static int half() { return warpgroup() - 1; }

  template <int Size>
  __device__ __forceinline__ void multiply(BytesConsumerByX<Kind, Type> &consumer, int tile) const {
    constexpr int kParts = rows_of_size(Of, Size) / kRowsByX;
    float sums[kParts][kSumsByX];
    consumer.multiply(q_.blocks, sums, maps_scales(Size) ? place_of(Size, tile).first_row % kScalesOfCopy : 0);
    asm volatile("" : "+r"(tile));  // the place is found anew, so that it takes no registers from the sums
    const Place place = place_of(Size, tile);
    const Finish finish(q_, int64_t{place.expert} * p_.factor_step);
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      store_rows(sums[part], part * kRowsByX + half() * kRowsOfGroup, place, finish);
  }

  template <int Size>
  __device__ __forceinline__ void multiply(Lanes &consumer, int tile) const {
    constexpr int kRows = rows_of_size(Of, Size);
    float sums[kRows / 2];
    if constexpr (is_prepared(Kind)) {
      consumer.template multiply<kRows, sets_of_operands(Of)>({q_.blocks, 0, 1}, sums);
      consumer.release();
    } else {
      consumer.template multiply<kRows>({q_.blocks, 0, 1}, sums);
    }
    asm volatile("" : "+r"(tile));  // the place is found anew, so that it takes no registers from the sums
    const Place place = place_of(Size, tile);
    if constexpr (Kind == kBytesByLine)
      scale_lines<kRows>({p_.of_weights, p_.weight_rows, place.row_block * kBlockRows + half() * kColumnsOfHalf},
                         {p_.of_x, q_.rows, place.first_row}, sums);
    const Finish finish(q_, int64_t{place.expert} * p_.factor_step);
    if (p_.stores_eights)
      store_pieces<kRows>(sums, place, finish);
    else
      store_each<kRows>(sums, place, finish);
  }

  // --- Results

  // A warpgroup's from a row of the tile on, where x is the first operand.
  __device__ void store_rows(float *sums, int first_row, const Place &place, const Finish &finish) const {
    if constexpr (Kind == kBytesByLine)
      scale_lines<kBlockRows>({p_.of_x, q_.rows, place.first_row + first_row},
                              {p_.of_weights, p_.weight_rows, place.row_block * kBlockRows}, sums);
    const int left = min(kRowsOfGroup, place.left - first_row);
    if (!p_.stores_eights) return store_each_row(sums, first_row, left, place, finish);
#pragma unroll
    for (int first = 0; first < kBlockRows; first += kColumnsOfHalf) {
      sync_consumer(half());  // all have stored the piece before
      turn_sums(sums + first / 2, finish, q_.y_is_half, piece());
      sync_consumer(half());
      store_piece(place.first_row + first_row, left, place.first_column + first);
    }
  }

  __device__ void store_each_row(const float *sums, int first_row, int left, const Place &place,
                                 const Finish &finish) const {
#pragma unroll
    for (int i = 0; i < kSumsByX; ++i) {
      const int row = line_of_thread() + (i >> 1 & 1) * 8;
      const int column = place.first_column + i / 4 * 8 + pair_of_thread() + (i & 1);
      if (row < left && has_column(column))
        store_result(q_, place.first_row + first_row + row, column, finish(sums[i]));
    }
  }

  __device__ bool has_column(int column) const {
    return static_cast<unsigned>(column) < static_cast<unsigned>(q_.columns);
  }

  template <int Rows>
  __device__ void store_each(const float *sums, const Place &place, const Finish &finish) const {
    const int lane = lane_of_warp(),
              first = place.first_column + half() * kColumnsOfHalf + warp_of_group() * kTile + (lane >> 2);
#pragma unroll
    for (int i = 0; i < Rows / 2; ++i) {
      const int row = i / 4 * 8 + (lane & 3) * 2 + (i & 1), column = first + (i >> 1 & 1) * 8;
      if (row < place.left && has_column(column)) store_result(q_, place.first_row + row, column, finish(sums[i]));
    }
  }

  // A warpgroup turns its columns around in shared memory, and stores rows of 16 bytes a thread.
  template <int Rows>
  __device__ void store_pieces(const float *sums, const Place &place, const Finish &finish) const {
    constexpr int kRows = Rows < kPieceRows ? Rows : kPieceRows, kRowBytes = kColumnsOfHalf * 2;
    const int lane = lane_of_warp(), eight = warp_of_group() * 2 + (lane >> 3 & 1);
    const uint32_t to = piece() + ((lane & 7) + (lane >> 4) * 8) * kRowBytes + (eight ^ (lane & 7)) * 16;
#pragma unroll
    for (int first = 0; first < Rows; first += kRows) {
      if (first >= place.left) break;
      sync_consumer(half());  // all have stored the piece before
#pragma unroll
      for (int group = 0; group < kRows / 16; ++group) {
        if (first + group * 16 >= Rows) break;
        const float *own = sums + (first / 16 + group) * 8;
        uint32_t pairs[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) pairs[i] = round_pair(finish(own[2 * i]), finish(own[2 * i + 1]), q_.y_is_half);
        store_matrices_turned(to + group * (16 * kRowBytes), pairs);
      }
      sync_consumer(half());
      store_piece(place.first_row + first, min(kRows, place.left - first),
                  place.first_column + half() * kColumnsOfHalf);
    }
  }

  // Where a warpgroup's results lie on their way out.
  __device__ static uint32_t piece() { return shared_address(shared_memory) + half() * (kPieceBytes / kConsumers); }

  __device__ void store_piece(int first_row, int rows, int first_column) const {
    const uint32_t from = piece();
    const int chunk = threadIdx.x % kChunks, column = first_column + chunk * 8;
    if (!has_column(column)) return;
    for (int row = threadIdx.x % kWarpgroup / kChunks; row < rows; row += kWarpgroup / kChunks) {
      uint32_t eight[4];
      load_shared_16(from + row * (kColumnsOfHalf * 2) + (chunk ^ (row & 7)) * 16, eight);
      uint8_t *to = q_.y + (int64_t{first_row + row} * q_.y_stride + column) * 2;
      *reinterpret_cast<uint4 *>(to) = make_uint4(eight[0], eight[1], eight[2], eight[3]);
    }
  }
};
#endif  // DLFP4_HOPPER

// --- Rows of tokens ------------------------------------------------------------------------------

// A thread has 16 bytes at a time, or a scale. Rows that no expert has come along.
__device__ inline void gather_rows(const GatherParams &p) {
  const int64_t threads = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = global_thread(); i < p.count_rows * p.sixteens; i += threads) {
    const int64_t token = load_integer(p.tokens, i / p.sixteens);
    const auto *from = reinterpret_cast<const uint4 *>(p.x + token * p.x_stride) + i % p.sixteens;
    const bool there = token >= 0 && token < p.count_tokens;
    reinterpret_cast<uint4 *>(p.rows)[i] = there ? *from : make_uint4(0, 0, 0, 0);
  }
  for (int64_t i = global_thread(); i < p.count_rows * p.scales_of_row; i += threads) {
    const int64_t row = i % p.count_rows, block = i / p.count_rows, token = load_integer(p.tokens, row);
    const bool there = token >= 0 && token < p.count_tokens;
    p.row_scales[block * p.pitch_of_scales + row] =
        there ? p.scales.data[token / p.scales.lines * p.scales.line_stride + block * p.scales.block_stride] : 0;
  }
}

// --- Weighted sums -------------------------------------------------------------------------------

// A warp has a token, and eight columns a lane at a time.
class Combine {
  // Some rows of the token, a lane each, and where to look for more.
  struct Found {
    int count, row, next;
  };

  const CombineParams &p_;
  const ProductParams &q_;
  const int lane_ = read_lane();
  int64_t token_ = int64_t{blockIdx.x} * (blockDim.x / kWarpSize) + threadIdx.x / kWarpSize;
  int routed_;  // rows that experts have

 public:
  __device__ explicit Combine(const CombineParams &p)
      : p_(p), q_(p.product), routed_(count_routed(p.ends, p.experts, p.routed)) {}

  __device__ void run() const {
    if (token_ >= q_.rows) return;
    const Found first = find(0);
    for (int column = (blockIdx.y * kWarpSize + lane_) * 8; column - lane_ * 8 < q_.columns;
         column += gridDim.y * kWarpSize * 8) {
      float sums[8] = {};
      Found found = first;
      add(found, column, sums);
      while (found.next < routed_) add(found = find(found.next), column, sums);
      store_eight(q_, static_cast<int>(token_), column, sums);
    }
  }

 private:
  __device__ Found find(int from) const {
    Found found = {0, 0, from};
    for (; found.next < routed_; found.next += kWarpSize) {
      const int row = found.next + lane_;
      unsigned here = __ballot_sync(kAllLanes, row < routed_ && load_integer(p_.tokens, row) == token_);
      if (found.count + __popc(here) > kWarpSize) break;
      for (; here; here &= here - 1, ++found.count)
        if (lane_ == found.count) found.row = found.next + __ffs(here) - 1;
    }
    return found;
  }

  // In the order of the rows; products are rounded before they are added, as on the host (-fmad=false).
  __device__ void add(const Found &found, int column, float (&sums)[8]) const {
    for (int i = 0; i < found.count; ++i) {
      const int64_t row = __shfl_sync(kAllLanes, found.row, i);
      if (column >= q_.columns) continue;
      const float weight = __ldg(p_.weights + row);
      const auto *from = reinterpret_cast<const float4 *>(p_.rows + row * p_.row_stride + column);
      const float4 low = from[0], high = from[1];
      const float values[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int k = 0; k < 8; ++k) sums[k] += weight * values[k];
    }
  }
};

// On other GPUs, where the host does not call them, these are empty.
template <int Kind, int Type, RoutedRows Of, class Params>
__device__ __forceinline__ void multiply_grouped(const Params &p) {
#ifdef DLFP4_HOPPER
  Experts<Kind, Type, Of>(p).run();
#endif
}

__device__ inline void combine_rows(const CombineParams &p) { Combine(p).run(); }

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_CUDA_GROUPED_CUH_
