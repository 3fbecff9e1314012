// y = x @ w.T for up to 16 rows of x: the weights pass once, as fast as memory gives them.
// Layout: a block of threads has some tiles of 16 rows of w and all of K; its warps share K in slices.
// Trick: weights go straight to registers, two items ahead, and begin before the kernel that makes x has ended; x waits
// in a warp's own shared memory and then in registers. Sums meet once, in shared memory, in the order of the warps.
#ifndef DLFP4_SRC_CUDA_FEW_ROWS_CUH_
#define DLFP4_SRC_CUDA_FEW_ROWS_CUH_

#include "async.cuh"
#include "few_rows.h"

namespace dlfp4 {
namespace cuda {

extern __shared__ __align__(1024) uint8_t shared_memory[];

// What a warp does; `Eights` is rows of x by eight.
template <int Kind, int Type, int Eights>
class FewRows {
  static constexpr WeightLayout kLayout = weight_layout(Kind);
  static constexpr int kBlocks = slice_blocks(kLayout.bits);
  static constexpr int kChunks = kBlocks * kBlockK / 8;  // of 16 bytes, in a row of a slice
  static constexpr int kRows = 8 * Eights;
  static constexpr int kSums = kRows * kTile;         // of a tile
  static constexpr int kAhead = Eights == 1 ? 2 : 1;  // tiles whose weights wait in registers
  static constexpr int kTileCodes = kLayout.words() * 4 * kWarpSize, kTileScales = kTile * kLayout.groups();

  // Of one tile and slice.
  struct Words {
    LaneWords<Kind> of_block[kBlocks];
  };

  // What is loaded next: slice by slice, each through all tiles. Places count words of 32 bits.
  struct Next {
    int slice = 0, tile = 0;
    uint32_t slice_begin, codes, scales;
  };

  const StreamParams &p_;
  const ProductParams &q_;
  const int lane_ = threadIdx.x % kWarpSize, warp_ = threadIdx.x / kWarpSize, warps_ = blockDim.x / kWarpSize;
  const int first_tile_ = blockIdx.x * p_.tiles;
  const int tiles_ = min(p_.tiles, (q_.columns + kTile - 1) / kTile - first_tile_);
  const int first_row_ = blockIdx.y * kRows;
  const int slices_ = p_.slices_of_warp - (warp_ >= p_.full_warps);
  uint32_t x_;   // this warp's slice of x
  float *sums_;  // this warp's
  Next next_;
  uint32_t to_codes_, to_scales_;  // from where a slice begins
  int slice_ = 0, tile_ = 0;       // that are done
  uint32_t operands_[Eights][kBlocks * kSteps * 2];

 public:
  __device__ explicit FewRows(const StreamParams &p) : p_(p), q_(p.product) {
    const int x_bytes = x_slice_bytes(Kind, Eights);
    uint8_t *own = shared_memory + warp_ * warp_bytes(Kind, Eights, p.tiles, p.reuses);
    x_ = shared_address(own);
    sums_ = reinterpret_cast<float *>(p.reuses ? own : own + x_bytes);
  }

  __device__ void run() {
    Words words[kAhead] = {};
    place_next();
#pragma unroll
    for (int i = 0; i < kAhead; ++i) load_next(words[i]);
    let_next_kernel_start();
    wait_for_kernel_before();
    load_x(0);
    const Finish finish(q_);
    while (slice_ < slices_)
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        if (slice_ < slices_) do_tile(words[i]);
    __syncthreads();
    store(finish);
  }

 private:
  __device__ int slice_number(int index) const { return warp_ + index * warps_; }

  __device__ void place_next() {
    const int in_block = first_tile_ % kTilesInBlock;
    const uint32_t number = first_tile_ / kTilesInBlock * q_.blocks_in_row + warp_ * kBlocks;
    next_.slice_begin = number * (kLayout.bytes() / 4);
    to_codes_ = (in_block * kTileCodes + lane_ * 16) / 4;
    to_scales_ = (kLayout.code_bytes() + in_block * kTileScales + (lane_ >> 2) * (2 * kLayout.groups())) / 4;
    next_.codes = next_.slice_begin + to_codes_;
    next_.scales = next_.slice_begin + to_scales_;
  }

  // Without a branch, so that loads in flight are not waited for where ways meet.
  __device__ void advance_next() {
    const bool is_last = ++next_.tile == tiles_, leaves_block = (first_tile_ + next_.tile) % kTilesInBlock == 0;
    const uint32_t row_of_blocks = leaves_block ? q_.blocks_in_row * (kLayout.bytes() / 4) : 0;
    next_.slice += is_last;
    next_.tile = is_last ? 0 : next_.tile;
    next_.slice_begin += is_last ? warps_ * kBlocks * (kLayout.bytes() / 4) : 0;
    next_.codes += kTileCodes / 4 + (leaves_block ? row_of_blocks - kTilesInBlock * kTileCodes / 4 : 0);
    next_.scales += kTileScales / 4 + (leaves_block ? row_of_blocks - kTilesInBlock * kTileScales / 4 : 0);
    next_.codes = is_last ? next_.slice_begin + to_codes_ : next_.codes;
    next_.scales = is_last ? next_.slice_begin + to_scales_ : next_.scales;
  }

  __device__ void load_next(Words &words) {
    const bool wanted = next_.slice < slices_;
    const uint8_t *codes = q_.weights + uint64_t{next_.codes} * 4, *scales = q_.weights + uint64_t{next_.scales} * 4;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      LaneWords<Kind> &to = words.of_block[b];
#pragma unroll
      for (int i = 0; i < kLayout.words(); i += 4)
        load_once_16(codes + b * kLayout.bytes() + i * 4 * kWarpSize, wanted, to.codes + i);
      load_once(scales + b * kLayout.bytes(), wanted, to.scales);
    }
    advance_next();
  }

  // Where 16 bytes of a row of x lie: swizzled, so that eight rows meet in eight different banks.
  __device__ uint32_t x_address(int row, int chunk) const {
    return x_ + (row * kChunks + ((chunk & ~7) | ((chunk ^ row) & 7))) * 16;
  }

  __device__ void load_x(int index) const {
    if (index >= slices_) return;
    const int first = slice_number(index) * kChunks, row = lane_ / kChunks, chunk = lane_ % kChunks;
    const uint8_t *from = q_.x + (first_row_ + row) * q_.x_stride + (first + chunk) * 16;
    const bool in_depth = (first + chunk) * 8 < q_.depth;
#pragma unroll
    for (int in_slice = 0; in_slice < kRows; in_slice += kWarpSize / kChunks) {
      const bool there = in_depth && first_row_ + row + in_slice < q_.rows;
      copy_16(x_address(row + in_slice, chunk), from, there);
      from += kWarpSize / kChunks * q_.x_stride;
    }
    commit_copies();
  }

  __device__ void take_x(int index) {
    wait_for_copies();
    __syncwarp();
#pragma unroll
    for (int n = 0; n < Eights; ++n)
#pragma unroll
      for (int i = 0; i < kBlocks * kSteps / 2; ++i)
        load_matrices(x_address(n * 8 + (lane_ & 7), i * 4 + (lane_ >> 3)), &operands_[n][4 * i]);
    __syncwarp();
    load_x(index + 1);
  }

  __device__ void do_tile(Words &words) {
    if (tile_ == 0) take_x(slice_);
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
    load_next(words);
    keep(sums);
    if (++tile_ == tiles_) tile_ = 0, ++slice_;
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

  __device__ void store(const Finish &finish) const {
    const float *first =
        reinterpret_cast<const float *>(shared_memory) + (p_.reuses ? 0 : x_slice_bytes(Kind, Eights) / 4);
    const int next = warp_bytes(Kind, Eights, p_.tiles, p_.reuses) / 4;
    for (int i = threadIdx.x; i < tiles_ * kSums; i += blockDim.x) {
      const int row = first_row_ + i % kSums / kTile, column = (first_tile_ + i / kSums) * kTile + i % kTile;
      if (row >= q_.rows || column >= q_.columns) continue;
      float sum = 0;
#pragma unroll
      for (int warp = 0; warp < kMostWarps; ++warp)
        if (warp < warps_) sum += first[warp * next + i];
      store_result(q_, row, column, finish(sum));
    }
  }
};

template <int Kind, int Type, int Eights>
__device__ inline void multiply_few_rows(const StreamParams &p) {
  FewRows<Kind, Type, Eights>(p).run();
}

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_CUDA_FEW_ROWS_CUH_
