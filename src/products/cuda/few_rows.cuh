// y = x @ w.T for up to 16 rows of x: the weights pass once, as fast as memory gives them.
// Layout: a block of threads has some tiles of 16 rows of w and all of K; its warps share K in slices.
// Trick: a warp's next weights are under way to its own shared memory while it multiplies, the first of them before the
// kernel that makes x has ended. x waits in shared memory, where a quantized one becomes bfloat16, and then in
// registers. Sums meet once, in shared memory, in the order of the warps. Instructions are scarce: what a turn of the
// loop needs stays in registers, and shared memory is laid out so that addresses are sums of constants.
#ifndef DLFP4_SRC_PRODUCTS_CUDA_FEW_ROWS_CUH_
#define DLFP4_SRC_PRODUCTS_CUDA_FEW_ROWS_CUH_

#include "coded_x.cuh"
#include "stream_slice.cuh"

namespace dlfp4 {
namespace cuda {

// What a warp does; `Eights` is rows of x by eight, `IsCoded` whether they are quantized, as the weights are.
template <int Kind, int Type, int Eights, bool IsCoded>
class FewRows {
  static_assert(!IsCoded || (Kind != kMxfp8 && Type == kBfloat16), "");
  using Slice = StreamSlice<Kind, Type, Eights>;
  static constexpr WeightLayout kLayout = Slice::kLayout;
  static constexpr int kBlocks = Slice::kBlocks, kChunks = Slice::kChunks, kRowBytes = Slice::kRowBytes;
  static constexpr int kRows = Slice::kRows, kSums = Slice::kSums;

  // What is fetched next: slice by slice, each through all tiles. `block` is the slice's first in its row of blocks.
  struct Next {
    int slice = 0, tile = 0, block;
  };

  const ProductParams &q_;
  const StreamCut &cut_;
  const uint32_t lane_ = read_lane();
  const int warp_ = warp_of_block(), warps_ = blockDim.x / kWarpSize;
  const int first_tile_, tiles_, first_row_;
  const int slices_ = held(cut_.slices_of_warp - (warp_ >= cut_.full_warps)), blocks_of_warps_ = held(warps_ * kBlocks);
  const uint32_t x_ = held(shared_address(shared_memory) + warp_ * cut_.memory.bytes);  // this warp's slice of x
  const uint32_t stage_ = held(x_ + cut_.memory.stage + lane_ * 16);                    // this lane's codes
  const uint32_t scale_offset_ = held(Slice::scale_offset(lane_));
  uint32_t staged_scales_, sums_;  // this lane's; found when the first copies are under way
  Next next_;
  int slice_ = 0, tile_ = 0;
  typename Slice::Operands operands_;

 public:
  __device__ FewRows(const StreamParams &p, int first_tile, int tiles)
      : q_(p.product), cut_(p.cut), first_tile_(first_tile), tiles_(tiles), first_row_(blockIdx.y * kRows) {
    next_.block = warp_ * kBlocks;
  }

  __device__ void run() {
    copy_next();
    let_next_kernel_start();
    staged_scales_ = held(x_ + cut_.memory.stage + Slice::staged_scales(lane_));
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
  // --- Weights

  __device__ void advance_next() {
    const bool is_last = ++next_.tile == tiles_;
    next_.tile = is_last ? 0 : next_.tile;
    next_.slice += is_last;
    next_.block += is_last ? blocks_of_warps_ : 0;
  }

  // To the stage, as one group of copies; zeros where no weights are left.
  __device__ void copy_next() {
    const uint32_t tile = first_tile_ + next_.tile;
    const uint8_t *codes = Slice::find_codes(q_, tile, next_.block);
    const uint8_t *scales = codes + (Slice::offset_of_scales(tile) + scale_offset_);
    Slice::copy_weights(stage_, codes, scales, lane_, next_.slice < slices_);
    commit_copies();
    advance_next();
  }

  // --- x

  // A slice, as one group of copies; an empty one where there is none.
  __device__ void copy_x(int index) const {
    if (index < slices_) {
      if constexpr (IsCoded)
        copy_codes(warp_ + index * warps_);
      else
        Slice::copy_x(q_, x_, first_row_, q_.rows, warp_ + index * warps_, lane_);
    }
    commit_copies();
  }

  // Where the codes of a row lie, then its scales: behind what decode_x writes before it reads them.
  __device__ uint32_t codes_address(int row) const { return x_ + kRows * (kRowBytes - kCodedRow) + row * kCodedRow; }

  // K has no tail: it is whole slices.
  __device__ void copy_codes(int slice) const {
    constexpr int kBytes = kChunks * 4, kScales = kBlocks * kLayout.groups(), kAtOnce = kWarpSize / (kBytes / 16);
    const int row = lane_ / (kBytes / 16), in_row = lane_ % (kBytes / 16) * 16;
    const uint8_t *from = q_.x + (first_row_ + row) * q_.x_stride + slice * kBytes + in_row;
#pragma unroll
    for (int in_slice = 0; in_slice < kRows; in_slice += kAtOnce) {
      copy_16(codes_address(row + in_slice) + in_row, from, first_row_ + row + in_slice < q_.rows);
      from += kAtOnce * q_.x_stride;
    }
    if (lane_ >= kRows) return;
    const uint8_t *scales = q_.x_scales + (first_row_ + lane_) * q_.x_scale_stride + slice * kScales;
    const bool there = first_row_ + lane_ < q_.rows;
    if constexpr (kScales == 16)
      copy_16(codes_address(lane_) + kBytes, scales, there);
    else
      copy_8(codes_address(lane_) + kBytes, scales, there);
  }

  // In place, two rows at a time, 16 elements a lane; rows beyond M stay what they are, for nothing reads their sums.
  __device__ void decode_x() const {
    constexpr int kScales = kBlocks * kLayout.groups();
    const int rows = min(kRows, q_.rows - first_row_), lane = read_lane(), own_row = lane % 2, own = lane / 2;
    const uint32_t from = codes_address(own_row) + own * 8, to = Slice::x_address(x_, own_row, 2 * own);
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
    Slice::take_x(x_, lane_, operands_);
  }

  // --- The scales of whole tensors, behind the warps' memory: a load here would be waited for, a copy is not.

  __device__ float *factors() const { return reinterpret_cast<float *>(shared_memory + warps_ * cut_.memory.bytes); }

  __device__ void copy_factors() const {
    const float *from[2] = {q_.factors[0], q_.factors[1]};
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
    typename Slice::Words words;
    Slice::take_weights(stage_, staged_scales_, words);
    copy_next();
    if (tile_ == 0)
      copy_x(slice_ + 1);
    else
      commit_copies();
    typename Slice::Sums sums = {};
    take_sums(sums.of[0]);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) Slice::multiply_block(words.of_block[b], operands_, b, q_.shifts, sums);
    sums.join();
    keep_sums(sums.of[0]);
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
      const int y_row = first_row_ + row;
      const int y_column = (first_tile_ + tile) * kTile + column;
      if (y_row < q_.rows && y_column < q_.columns)
        store_result(q_, y_row, y_column, finish(sum_of_warps(first + at, cut_.memory.bytes / 4)));
    }
  }
};

template <int Kind, int Type, int Eights, bool IsCoded>
__device__ inline void multiply_few_rows(const StreamParams &p) {
  const int first_tile = blockIdx.x * p.cut.tiles, tiles = (p.product.columns + uint32_t{kTile} - 1) / kTile;
  FewRows<Kind, Type, Eights, IsCoded>(p, first_tile, min(p.cut.tiles, tiles - first_tile)).run();
}

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_CUDA_FEW_ROWS_CUH_
