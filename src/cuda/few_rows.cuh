// y = x @ w.T for up to 16 rows of x: the weights pass once, as fast as memory gives them.
// Layout: a block of threads has some tiles of 16 rows of w and all of K; its warps share K in slices.
// Trick: a warp's next weights are under way while it multiplies, to its own shared memory, or to registers where 16
// rows of x leave no room for them; the first begin before the kernel that makes x has ended. x waits in shared memory,
// where a quantized one becomes bfloat16, and then in registers. Sums meet once, in shared memory, in the order of the
// warps.
#ifndef DLFP4_SRC_CUDA_FEW_ROWS_CUH_
#define DLFP4_SRC_CUDA_FEW_ROWS_CUH_

#include "async.cuh"
#include "coded_x.cuh"
#include "few_rows.h"

namespace dlfp4 {
namespace cuda {

// What a warp does; `Eights` is rows of x by eight, `IsCoded` whether they are quantized, as the weights are.
template <int Kind, int Type, int Eights, bool IsCoded>
class FewRows {
  static_assert(!IsCoded || (Kind != kMxfp8 && Type == kBfloat16), "");
  static constexpr WeightLayout kLayout = weight_layout(Kind);
  static constexpr int kBlocks = slice_blocks(kLayout.bits);
  static constexpr int kChunks = kBlocks * kBlockK / 8;  // of 16 bytes, in a row of a slice
  static constexpr int kRows = 8 * Eights;
  static constexpr int kSums = kRows * kTile;  // of a tile
  static constexpr int kTileCodes = kLayout.words() * 4 * kWarpSize, kTileScales = kTile * kLayout.groups();
  static constexpr bool kIsStaged = has_stage(Eights);  // else weights go to registers

  // Of one tile and slice.
  struct Words {
    LaneWords<Kind> of_block[kBlocks];
  };

  // What is fetched next: slice by slice, each through all tiles. `block` is the slice's first in its row of blocks.
  struct Next {
    int slice = 0, tile = 0, block;
  };

  const StreamParams &p_;
  const ProductParams &q_;
  const int lane_ = threadIdx.x % kWarpSize, warp_ = threadIdx.x / kWarpSize, warps_ = blockDim.x / kWarpSize;
  const int first_tile_ = blockIdx.x * p_.tiles, tiles_ = min(p_.tiles, count_tiles(q_.columns) - first_tile_);
  const int first_row_ = blockIdx.y * kRows;
  const int slices_ = p_.slices_of_warp - (warp_ >= p_.full_warps);
  uint32_t x_, stage_;  // this warp's slice of x, and weights
  float *sums_;         // this warp's
  Next next_;
  int slice_ = 0, tile_ = 0;
  uint32_t operands_[Eights][kBlocks * kSteps * 2];

 public:
  __device__ explicit FewRows(const StreamParams &p) : p_(p), q_(p.product) {
    uint8_t *own = shared_memory + warp_ * p.memory.bytes;
    x_ = shared_address(own);
    stage_ = x_ + p.memory.stage;
    sums_ = reinterpret_cast<float *>(own + p.memory.sums);
    next_.block = warp_ * kBlocks;
  }

  __device__ void run() {
    Words words = {};
    kIsStaged ? copy_next() : load_next(words);
    let_next_kernel_start();
    wait_for_kernel_before();
    if (threadIdx.x == 0) copy_factors();
    copy_x(0);
    for (; slice_ < slices_; ++slice_)
      for (tile_ = 0; tile_ < tiles_; ++tile_) do_tile(words);
    __syncthreads();
    store(Finish(q_, factors()));
  }

 private:
  __device__ static int count_tiles(uint32_t columns) { return (columns + kTile - 1) / kTile; }

  // --- Weights

  // Of the next tile, in its first block; other blocks of the slice follow in steps of a block's bytes.
  __device__ const uint8_t *next_codes() const {
    return next_block() + (first_tile_ + next_.tile) % uint32_t{kTilesInBlock} * kTileCodes;
  }
  __device__ const uint8_t *next_scales() const {
    return next_block() + kLayout.code_bytes() + (first_tile_ + next_.tile) % uint32_t{kTilesInBlock} * kTileScales;
  }
  __device__ const uint8_t *next_block() const {
    const uint32_t row = (first_tile_ + next_.tile) / uint32_t{kTilesInBlock};
    return q_.weights + uint64_t{row * q_.blocks_in_row + next_.block} * kLayout.bytes();
  }

  __device__ void advance_next() {
    const bool is_last = ++next_.tile == tiles_;
    next_.tile = is_last ? 0 : next_.tile;
    next_.slice += is_last;
    next_.block += is_last ? warps_ * kBlocks : 0;
  }

  // To the stage, as one group of copies; an empty one where no weights are left.
  __device__ void copy_next() {
    constexpr int kScaleChunks = kTileScales / 16;
    if (next_.slice < slices_) {
      const uint8_t *codes = next_codes() + lane_ * 16;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b)
#pragma unroll
        for (int i = 0; i < kTileCodes; i += 16 * kWarpSize)
          copy_16(stage_ + b * kTileCodes + i + lane_ * 16, codes + b * kLayout.bytes() + i, true);
      if (lane_ < kBlocks * kScaleChunks)
        copy_16(stage_ + kBlocks * kTileCodes + lane_ * 16,
                next_scales() + lane_ / kScaleChunks * kLayout.bytes() + lane_ % kScaleChunks * 16, true);
      advance_next();
    }
    commit_copies();
  }

  __device__ void take_stage(Words &words) const {
    const uint32_t codes = stage_ + lane_ * 16;
    const uint32_t scales = stage_ + kBlocks * kTileCodes + (lane_ >> 2) * (2 * kLayout.groups());
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < kLayout.words(); i += 4)
        load_shared_16(codes + b * kTileCodes + i * 4 * kWarpSize, words.of_block[b].codes + i);
      load_shared(scales + b * kTileScales, words.of_block[b].scales);
    }
    __syncwarp();
  }

  // Without a branch, so that loads in flight are not waited for where ways meet.
  __device__ void load_next(Words &words) {
    const uint8_t *codes = next_codes() + lane_ * 16, *scales = next_scales() + (lane_ >> 2) * (2 * kLayout.groups());
    const bool wanted = next_.slice < slices_;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < kLayout.words(); i += 4)
        load_once_16(codes + b * kLayout.bytes() + i * 4 * kWarpSize, wanted, words.of_block[b].codes + i);
      load_once(scales + b * kLayout.bytes(), wanted, words.of_block[b].scales);
    }
    advance_next();
  }

  // --- x

  // Where 16 bytes of a row of x lie: swizzled, so that eight rows meet in eight different banks.
  __device__ uint32_t x_address(int row, int chunk) const {
    return ((x_ + chunk * 16) ^ row % 8 * 16) + row * (kChunks * 16);
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

  __device__ void copy_values(int slice) const {
    const int in_row = slice * kChunks + lane_ % kChunks, row = lane_ / kChunks;
    const uint8_t *from = q_.x + (first_row_ + row) * q_.x_stride + in_row * 16;
    const bool in_depth = in_row * 8 < q_.depth;
#pragma unroll
    for (int in_slice = 0; in_slice < kRows; in_slice += kWarpSize / kChunks) {
      const bool there = in_depth && first_row_ + row + in_slice < q_.rows;
      copy_16(x_address(row + in_slice, lane_ % kChunks), from, there);
      from += kWarpSize / kChunks * q_.x_stride;
    }
  }

  // Where the codes of a row lie, then its scales: behind what decode_x writes before it reads them.
  __device__ uint32_t codes_address(int row) const { return x_ + kRows * (kChunks * 16 - kCodedRow) + row * kCodedRow; }

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
      const uint32_t chunk = (to ^ row % 8 * 16) + row * (kChunks * 16);  // as x_address; its neighbour's is ^ 16
      store_shared_16(chunk, values);
      store_shared_16(chunk ^ 16, values + 4);
    }
    __syncwarp();
  }

  __device__ void take_x() {
    if constexpr (IsCoded) decode_x();
#pragma unroll
    for (int n = 0; n < Eights; ++n) {
      const uint32_t first = x_address(n * 8 + (lane_ & 7), lane_ >> 3);
#pragma unroll
      for (int i = 0; i < kBlocks * kSteps / 2;
           ++i)  // four chunks at a time; x_address of the fifth is the first's ^ 64
        load_matrices((first ^ i % 2 * 64) + i / 2 * 128, &operands_[n][4 * i]);
    }
    __syncwarp();
  }

  // --- The scales of whole tensors, behind the warps' memory: a load here would be waited for, a copy is not.

  __device__ float *factors() const { return reinterpret_cast<float *>(shared_memory + warps_ * p_.memory.bytes); }

  __device__ void copy_factors() const {
    for (int i = 0; i < 2; ++i)
      if (q_.factors[i])
        copy_4(shared_address(factors() + i), q_.factors[i]);
      else
        factors()[i] = 1;
  }

  // --- Products

  // Weights of a tile come before x of the next slice, which may take until the tile has been multiplied.
  __device__ void wait_for_copies_of_tile() const {
    if (kIsStaged && tile_ == 1)
      wait_for_copies<1>();
    else
      wait_for_copies<0>();
    __syncwarp();
  }

  __device__ void do_tile(Words &words) {
    if (kIsStaged || tile_ == 0) wait_for_copies_of_tile();
    if (tile_ == 0) take_x();
    if constexpr (kIsStaged) {
      take_stage(words);
      copy_next();
    }
    if (tile_ == 0) copy_x(slice_ + 1);
    float sums[Eights][2][4] = {};
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      uint32_t weights[4 * kSteps];
      decode_block<Kind, Type>(words.of_block[b], q_.shifts, weights);
#pragma unroll
      for (int step = 0; step < kSteps; ++step)
#pragma unroll
        for (int n = 0; n < Eights; ++n)  // of eight rows, two chains of sums
          multiply_tile<Type>(sums[n][Eights == 1 ? step & 1 : 0], weights + 4 * step,
                              &operands_[n][(b * kSteps + step) * 2]);
    }
    if constexpr (!kIsStaged) load_next(words);
    keep(sums);
  }

  // Adds to the slices before, again without a branch.
  __device__ void keep(const float (&sums)[Eights][2][4]) const {
    float *to = sums_ + tile_ * kSums + (lane_ & 3) * 2 * kTile + (lane_ >> 2);
#pragma unroll
    for (int n = 0; n < Eights; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float *place = to + (n * 8 + (i & 1)) * kTile + (i >> 1) * 8;
        const float sum = Eights == 1 ? sums[n][0][i] + sums[n][1][i] : sums[n][0][i];
        *place = sum + (slice_ > 0 ? *place : 0);
      }
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
    const float *first = reinterpret_cast<const float *>(shared_memory + p_.memory.sums);
    for (uint32_t i = threadIdx.x; i < tiles_ * kSums; i += blockDim.x) {
      const int row = first_row_ + i % kSums / kTile, column = (first_tile_ + i / kSums) * kTile + i % kTile;
      if (row < q_.rows && column < q_.columns)
        store_result(q_, row, column, finish(sum_of_warps(first + i, p_.memory.bytes / 4)));
    }
  }
};

template <int Kind, int Type, int Eights, bool IsCoded>
__device__ inline void multiply_few_rows(const StreamParams &p) {
  FewRows<Kind, Type, Eights, IsCoded>(p).run();
}

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_CUDA_FEW_ROWS_CUH_
