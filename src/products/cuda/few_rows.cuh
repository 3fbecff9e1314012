// y = x @ w.T for up to 16 rows of x: the weights pass once, as fast as memory gives them.
// Layout: a block of threads has some tiles of 16 rows of w and all of K; its warps share K in slices.
// Trick: a warp's next weights are under way to its own shared memory while it multiplies, the first of them before the
// kernel that makes x has ended. x waits in shared memory, where a quantized one becomes bfloat16, and then in
// registers. Sums meet once, in shared memory, in the order of the warps. Instructions are scarce: what a turn of the
// loop needs stays in registers, and shared memory is laid out so that addresses are sums of constants.
#ifndef DLFP4_SRC_PRODUCTS_CUDA_FEW_ROWS_CUH_
#define DLFP4_SRC_PRODUCTS_CUDA_FEW_ROWS_CUH_

#include "coded_x.cuh"
#include "few_rows.h"
#include "gpu/async.cuh"

namespace dlfp4 {
namespace cuda {

// What a block of threads multiplies: tiles of rows of the weights, of which `first_column` is y's first column.
struct StreamPlace {
  int first_tile, tiles;
  int first_row, end_row;  // of x: from the first one on, as far as there are any
  int first_column;
  const float *factor;  // of the weights, or null
};

// What a warp does; `Eights` is rows of x by eight, `IsCoded` whether they are quantized, as the weights are.
template <int Kind, int Type, int Eights, bool IsCoded>
class FewRows {
  static_assert(!IsCoded || (Kind != kMxfp8 && Type == kBfloat16), "");
  static constexpr WeightLayout kLayout = weight_layout(Kind);
  static constexpr int kBlocks = slice_blocks(kLayout.bits);
  static constexpr int kChunks = kBlocks * kBlockK / 8, kRowBytes = kChunks * 16;  // of a row of a slice
  static constexpr int kRows = 8 * Eights;
  static constexpr int kSums = kRows * kTile;  // of a tile
  static constexpr int kTileCodes = kLayout.words() * 4 * kWarpSize, kTileScales = kTile * kLayout.groups();

  // The words of one tile and slice.
  struct Words {
    LaneWords<Kind> of_block[kBlocks];
  };

  // What is fetched next: slice by slice, each through all tiles. `block` is the slice's first in its row of blocks.
  struct Next {
    int slice = 0, tile = 0, block;
  };

  const ProductParams &q_;
  const StreamCut &cut_;
  const StreamPlace &place_;
  const uint32_t lane_ = read_lane();
  const int warp_ = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x / kWarpSize), 0),
            warps_ = blockDim.x / kWarpSize;
  const int first_tile_, tiles_;
  const int slices_ = held(cut_.slices_of_warp - (warp_ >= cut_.full_warps)), blocks_of_warps_ = held(warps_ * kBlocks);
  const uint32_t x_ = held(shared_address(shared_memory) + warp_ * cut_.memory.bytes);  // this warp's slice of x
  const uint32_t stage_ = held(x_ + cut_.memory.stage + lane_ * 16);                    // this lane's codes
  const uint32_t scale_offset_ = held(lane_ / (kTileScales / 16) * kLayout.bytes() + lane_ % (kTileScales / 16) * 16);
  uint32_t staged_scales_, sums_;  // this lane's; found when the first copies are under way
  Next next_;
  int slice_ = 0, tile_ = 0;
  // Set only where a slice begins, which ptxas cannot see: without a value before, they would keep their registers
  // throughout a loop around this.
  uint32_t operands_[Eights][kBlocks * kSteps * 2] = {};

 public:
  __device__ FewRows(const ProductParams &product, const StreamCut &cut, const StreamPlace &place)
      : q_(product), cut_(cut), place_(place), first_tile_(place.first_tile), tiles_(place.tiles) {
    next_.block = warp_ * kBlocks;
  }

  __device__ void run() {
    copy_next();
    let_next_kernel_start();
    staged_scales_ = held(x_ + cut_.memory.stage + kBlocks * kTileCodes + lane_ / 4 * (2 * kLayout.groups()));
    sums_ = held(x_ + cut_.memory.sums + slot(lane_ / 4, lane_ % 4) * 16);
    wait_for_kernel_before();
    if (threadIdx.x == 0) copy_factors();
    copy_x(0);
    for (; slice_ < slices_; ++slice_)
      for (tile_ = 0; tile_ < tiles_; ++tile_) do_tile();
    __syncthreads();
    store(Finish(q_, factors()));
  }

 private:
  // A value that stays in a register, instead of being computed anew in each turn of the loop.
  __device__ static uint32_t held(uint32_t value) {
    asm volatile("" : "+r"(value));
    return value;
  }

  // --- Weights

  // The next tile's words in its first block; other blocks of the slice follow in steps of a block's bytes.
  __device__ const uint8_t *next_codes() const {
    const uint32_t row = next_tile() / kTilesInBlock;
    return q_.weights + uint64_t{row * q_.blocks_in_row + next_.block} * kLayout.bytes() +
           next_tile() % kTilesInBlock * kTileCodes;
  }
  __device__ uint32_t next_tile() const { return first_tile_ + next_.tile; }

  // From codes of the next tile to its scales.
  __device__ uint32_t next_scales() const {
    return kLayout.code_bytes() - next_tile() % kTilesInBlock * (kTileCodes - kTileScales);
  }

  __device__ void advance_next() {
    const bool is_last = ++next_.tile == tiles_;
    next_.tile = is_last ? 0 : next_.tile;
    next_.slice += is_last;
    next_.block += is_last ? blocks_of_warps_ : 0;
  }

  // To the stage, as one group of copies; zeros where no weights are left.
  __device__ void copy_next() {
    const uint8_t *codes = next_codes();
    const uint8_t *scales = codes + (next_scales() + scale_offset_);
    const bool wanted = next_.slice < slices_;
    codes += lane_ * 16;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
#pragma unroll
      for (int i = 0; i < kTileCodes; i += 16 * kWarpSize)
        copy_16(stage_ + b * kTileCodes + i, codes + b * kLayout.bytes() + i, wanted);
    if (lane_ < kBlocks * (kTileScales / 16)) copy_16(stage_ + kBlocks * kTileCodes, scales, wanted);
    commit_copies();
    advance_next();
  }

  __device__ void take_stage(Words &words) const {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < kLayout.words(); i += 4)
        load_shared_16(stage_ + b * kTileCodes + i * 4 * kWarpSize, words.of_block[b].codes + i);
      load_shared(staged_scales_ + b * kTileScales, words.of_block[b].scales);
    }
    __syncwarp();
  }

  // --- x

  // Where 16 bytes of a row of x lie: swizzled, so that eight rows meet in eight different banks. A line of the cache
  // still becomes a line of shared memory; rows 16 bytes further apart instead, of which it fills two, took 2 us more.
  __device__ uint32_t x_address(int row, int chunk) const {
    return ((x_ + chunk * 16) ^ row % 8 * 16) + row * kRowBytes;
  }

  // A slice, as one group of copies; an empty one where there is none.
  __device__ void copy_x(int index) const {
    if (index < slices_) {
      if constexpr (IsCoded)
        copy_codes(warp_ + index * warps_);
      else
        copy_values(warp_ + index * warps_);
    }
    commit_copies();
  }

  // Four rows at a time, eight lanes each.
  __device__ void copy_values(int slice) const {
    if ((slice + 1) * kChunks * 8 <= q_.depth)
      copy_rows<true>(slice * kChunks);
    else
      copy_rows<false>(slice * kChunks);
  }

  // Zeros beyond M and, if the slice is not whole, beyond K.
  template <bool IsWhole>
  __device__ void copy_rows(int first_chunk) const {
    constexpr uint32_t kLanes = 8, kAtOnce = kWarpSize / kLanes;
    const int row = lane_ / kLanes, chunk = lane_ % kLanes, left = place_.end_row - place_.first_row - row;
    const uint8_t *from = q_.x + (place_.first_row + row) * q_.x_stride + (first_chunk + chunk) * 16;
    const uint32_t to = x_address(row, chunk);
#pragma unroll
    for (int rows = 0; rows < kRows; rows += kAtOnce) {
#pragma unroll
      for (int i = 0; i < kChunks; i += kLanes)
        copy_16((to ^ rows % 8 * 16) + rows * kRowBytes + i * 16, from + i * 16,
                rows < left && (IsWhole || (first_chunk + chunk + i) * 8 < q_.depth));
      from += kAtOnce * q_.x_stride;
    }
  }

  // Where the codes of a row lie, then its scales: behind what decode_x writes before it reads them.
  __device__ uint32_t codes_address(int row) const { return x_ + kRows * (kRowBytes - kCodedRow) + row * kCodedRow; }

  // K has no tail: it is whole slices.
  __device__ void copy_codes(int slice) const {
    constexpr int kBytes = kChunks * 4, kScales = kBlocks * kLayout.groups(), kAtOnce = kWarpSize / (kBytes / 16);
    const int row = lane_ / (kBytes / 16), in_row = lane_ % (kBytes / 16) * 16;
    const uint8_t *from = q_.x + (place_.first_row + row) * q_.x_stride + slice * kBytes + in_row;
#pragma unroll
    for (int in_slice = 0; in_slice < kRows; in_slice += kAtOnce) {
      copy_16(codes_address(row + in_slice) + in_row, from, place_.first_row + row + in_slice < place_.end_row);
      from += kAtOnce * q_.x_stride;
    }
    if (lane_ >= kRows) return;
    const uint8_t *scales = q_.x_scales + (place_.first_row + lane_) * q_.x_scale_stride + slice * kScales;
    const bool there = place_.first_row + lane_ < place_.end_row;
    if constexpr (kScales == 16)
      copy_16(codes_address(lane_) + kBytes, scales, there);
    else
      copy_8(codes_address(lane_) + kBytes, scales, there);
  }

  // In place, two rows at a time, 16 elements a lane; rows beyond M stay what they are, for nothing reads their sums.
  __device__ void decode_x() const {
    constexpr int kScales = kBlocks * kLayout.groups();
    const int rows = min(kRows, place_.end_row - place_.first_row), lane = read_lane(), own_row = lane % 2,
              own = lane / 2;
    const uint32_t from = codes_address(own_row) + own * 8, to = x_address(own_row, 2 * own);
    const uint32_t scales = codes_address(own_row) + kChunks * 4 + own * kScales / 16;
#pragma unroll
    for (int row = 0; row < kRows; row += 2) {
      if (row >= rows) break;
      uint32_t codes[2], values[8];
      load_shared(from + row * kCodedRow, codes);
      const uint32_t scale = load_shared_byte(scales + row * kCodedRow);
      __syncwarp();
      decode_neighbours<Kind>(codes, scale, q_.shifts, values);
      const uint32_t chunk = (to ^ row % 8 * 16) + row * kRowBytes;  // as x_address; its neighbour's is ^ 16
      store_shared_16(chunk, values);
      store_shared_16(chunk ^ 16, values + 4);
    }
    __syncwarp();
  }

  __device__ void take_x() {
    if constexpr (IsCoded) decode_x();
    const uint32_t first = x_address(lane_ & 7, lane_ >> 3);
#pragma unroll
    for (int n = 0; n < Eights; ++n)
#pragma unroll
      for (int i = 0; i < kBlocks * kSteps / 2; ++i)  // four chunks at a time
        load_matrices((first ^ i % 2 * 64) + n * 8 * kRowBytes + i / 2 * 128, &operands_[n][4 * i]);
    __syncwarp();
  }

  // --- The scales of whole tensors, behind the warps' memory: a load here would be waited for, a copy is not.

  __device__ float *factors() const { return reinterpret_cast<float *>(shared_memory + warps_ * cut_.memory.bytes); }

  __device__ void copy_factors() const {
    const float *from[2] = {place_.factor, q_.factors[1]};
    for (int i = 0; i < 2; ++i)
      if (from[i])
        copy_4(shared_address(factors() + i), from[i]);
      else
        factors()[i] = 1;
  }

  // --- Products

  // Of the first tile's copies, weights come before x of the next slice, which may take until the next tile is done.
  __device__ void do_tile() {
    if (tile_ == 0) {
      wait_for_copies<0>();
      __syncwarp();
      take_x();
    } else {
      wait_for_copies<1>();
      __syncwarp();
    }
    Words words;
    take_stage(words);
    copy_next();
    if (tile_ == 0)
      copy_x(slice_ + 1);
    else
      commit_copies();
    float sums[Eights][4] = {}, more[Eights][4] = {};  // two chains
    take_sums(sums);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      uint32_t weights[4 * kSteps];
      decode_block<Kind, Type>(words.of_block[b], q_.shifts, weights);
#pragma unroll
      for (int step = 0; step < kSteps; ++step)
#pragma unroll
        for (int n = 0; n < Eights; ++n)
          multiply_tile<Type>(step % 2 ? more[n] : sums[n], weights + 4 * step, &operands_[n][(b * kSteps + step) * 2]);
    }
#pragma unroll
    for (int n = 0; n < Eights; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[n][i] += more[n][i];
    keep_sums(sums);
  }

  // --- Sums: a lane's four of eight rows side by side

  // Where those of a column and a pair of rows lie, so that neither lanes that keep theirs nor columns of a row meet in
  // a bank.
  __device__ static int slot(int column, int pair) { return (column + 2 * pair) % 8 + 8 * pair; }

  __device__ uint32_t address_of_sums(int eight) const { return sums_ + (tile_ * kSums + eight * 8 * kTile) * 4; }

  // Of the slices before, if there are any.
  __device__ void take_sums(float (&sums)[Eights][4]) const {
#pragma unroll
    for (int n = 0; n < Eights; ++n) load_shared_16(address_of_sums(n), slice_ > 0, sums[n]);
  }

  __device__ void keep_sums(const float (&sums)[Eights][4]) const {
#pragma unroll
    for (int n = 0; n < Eights; ++n) store_shared_16(address_of_sums(n), sums[n]);
  }

  // One of all warps' sums, in their order.
  __device__ float sum_of_warps(const float *first, int next) const {
    float sum = 0;
    if (warps_ == kMostWarps) {
#pragma unroll
      for (int warp = 0; warp < kMostWarps; ++warp) sum += first[warp * next];
    } else {
      for (int warp = 0; warp < warps_; ++warp) sum += first[warp * next];
    }
    return sum;
  }

  __device__ void store(const Finish &finish) const {
    const float *first = reinterpret_cast<const float *>(shared_memory + cut_.memory.sums);
    for (uint32_t i = threadIdx.x; i < tiles_ * kSums; i += blockDim.x) {
      const int tile = i / kSums, row = i % kSums / kTile, column = i % kTile;
      const int at = tile * kSums + row / 8 * 8 * kTile + slot(column % 8, row % 8 / 2) * 4 + row % 2 + column / 8 * 2;
      const int y_row = place_.first_row + row;
      const int y_column = (first_tile_ + tile) * kTile + column - place_.first_column;
      if (y_row < place_.end_row && static_cast<unsigned>(y_column) < static_cast<unsigned>(q_.columns))
        store_result(q_, y_row, y_column, finish(sum_of_warps(first + at, cut_.memory.bytes / 4)));
    }
  }
};

template <int Kind, int Type, int Eights, bool IsCoded>
__device__ inline void multiply_few_rows(const StreamParams &p) {
  const ProductParams &q = p.product;
  const int first_tile = blockIdx.x * p.cut.tiles, tiles = (q.columns + uint32_t{kTile} - 1) / kTile;
  const StreamPlace place = {
      first_tile,  min(p.cut.tiles, tiles - first_tile), static_cast<int>(blockIdx.y) * 8 * Eights, q.rows, 0,
      q.factors[0]};
  FewRows<Kind, Type, Eights, IsCoded>(q, p.cut, place).run();
}

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_CUDA_FEW_ROWS_CUH_
