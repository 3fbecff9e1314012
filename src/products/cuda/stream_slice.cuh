// A warp's part of a product of few rows: 16 rows of weights by up to 16 of x, in a slice of K.
// Layout: weights as they are prepared, a word a lane; rows of x in shared memory, swizzled, then in registers.
#ifndef DLFP4_SRC_PRODUCTS_CUDA_STREAM_SLICE_CUH_
#define DLFP4_SRC_PRODUCTS_CUDA_STREAM_SLICE_CUH_

#include "few_rows.h"
#include "fragments.cuh"
#include "gpu/async.cuh"

namespace dlfp4 {
namespace cuda {

// Of `Eights` times eight rows of x.
template <int Kind, int Type, int Eights>
struct StreamSlice {
  static constexpr WeightLayout kLayout = weight_layout(Kind);
  static constexpr int kBlocks = slice_blocks(kLayout.bits);
  static constexpr int kChunks = kBlocks * kBlockK / 8, kRowBytes = kChunks * 16;  // of a row of a slice
  static constexpr int kRows = 8 * Eights;
  static constexpr int kSums = kRows * kTile;  // of a tile
  static constexpr int kTileCodes = kLayout.words() * 4 * kWarpSize, kTileScales = kTile * kLayout.groups();
  static constexpr int kStagedScales = kBlocks * kTileCodes;  // where they begin in a stage

  // Those of one tile.
  struct Words {
    LaneWords<Kind> of_block[kBlocks];
  };

  // --- Weights

  // The words of a tile in a block; other blocks of the slice follow in steps of a block's bytes.
  __device__ static const uint8_t *find_codes(const ProductParams &q, uint32_t tile, int block) {
    return q.weights + uint64_t{tile / kTilesInBlock * q.blocks_in_row + block} * kLayout.bytes() +
           tile % kTilesInBlock * kTileCodes;
  }

  // From there to the tile's scales.
  __device__ static uint32_t offset_of_scales(uint32_t tile) {
    return kLayout.code_bytes() - tile % kTilesInBlock * (kTileCodes - kTileScales);
  }

  // To those that a lane copies.
  __device__ static uint32_t scale_offset(uint32_t lane) {
    return lane / (kTileScales / 16) * kLayout.bytes() + lane % (kTileScales / 16) * 16;
  }

  // From where a stage begins to the lane's scales of the first block.
  __device__ static uint32_t staged_scales(uint32_t lane) { return kStagedScales + lane / 4 * (2 * kLayout.groups()); }

  // To this lane's place in the stage; zeros where no weights are wanted.
  __device__ static void copy_weights(uint32_t stage, const uint8_t *codes, const uint8_t *scales, uint32_t lane,
                                      bool wanted) {
    codes += lane * 16;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
#pragma unroll
      for (int i = 0; i < kTileCodes; i += 16 * kWarpSize)
        copy_16(stage + b * kTileCodes + i, codes + b * kLayout.bytes() + i, wanted);
    if (lane < kBlocks * (kTileScales / 16)) copy_16(stage + kStagedScales, scales, wanted);
  }

  __device__ static void take_weights(uint32_t stage, uint32_t scales, Words &words) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) take_block(stage, scales, b, words.of_block[b]);
    __syncwarp();
  }

  __device__ static void take_block(uint32_t stage, uint32_t scales, int block, LaneWords<Kind> &words) {
#pragma unroll
    for (int i = 0; i < kLayout.words(); i += 4)
      load_shared_16(stage + block * kTileCodes + i * 4 * kWarpSize, words.codes + i);
    load_shared(scales + block * kTileScales, words.scales);
  }

  // --- x

  // Where 16 bytes of a row of x lie: swizzled, so that eight rows meet in eight different banks. A line of the cache
  // still becomes a line of shared memory; rows 16 bytes further apart instead, of which it fills two, took 2 us more.
  __device__ static uint32_t x_address(uint32_t x, int row, int chunk) {
    return ((x + chunk * 16) ^ row % 8 * 16) + row * kRowBytes;
  }

  static constexpr int kRowLanes = 8, kRowsAtOnce = kWarpSize / kRowLanes;  // lanes that copy a row

  // Rows of x from one on, as a lane copies them: its own of four at a time, from its first 16 bytes on.
  struct RowsInOrder {
    const uint8_t *from;
    int left;
    int64_t step;

    __device__ RowsInOrder(const ProductParams &q, int first_row, int end_row, int first_chunk, uint32_t lane)
        : from(q.x + (first_row + lane / kRowLanes) * q.x_stride + (first_chunk + lane % kRowLanes) * 16),
          left(end_row - first_row - lane / kRowLanes),
          step(kRowsAtOnce * q.x_stride) {}

    __device__ bool has(int row) const { return row < left; }
    __device__ void advance() { from += step; }
  };

  __device__ static void copy_x(const ProductParams &q, uint32_t x, int first_row, int end_row, int slice,
                                uint32_t lane) {
    copy_slice(q, x, slice, lane, RowsInOrder(q, first_row, end_row, slice * kChunks, lane));
  }

  template <class Rows>
  __device__ static void copy_slice(const ProductParams &q, uint32_t x, int slice, uint32_t lane, const Rows &rows) {
    if ((slice + 1) * kChunks * 8 <= q.depth)
      copy_rows<true>(q, x, slice * kChunks, lane, rows);
    else
      copy_rows<false>(q, x, slice * kChunks, lane, rows);
  }

  // Zeros for rows that are not there and, if the slice is not whole, beyond K.
  template <bool IsWhole, class Rows>
  __device__ static void copy_rows(const ProductParams &q, uint32_t x, int first_chunk, uint32_t lane, Rows rows) {
    const int chunk = lane % kRowLanes;
    const uint32_t to = x_address(x, lane / kRowLanes, chunk);
#pragma unroll
    for (int row = 0; row < kRows; row += kRowsAtOnce) {
#pragma unroll
      for (int i = 0; i < kChunks; i += kRowLanes)
        copy_16((to ^ row % 8 * 16) + row * kRowBytes + i * 16, rows.from + i * 16,
                rows.has(row) && (IsWhole || (first_chunk + chunk + i) * 8 < q.depth));
      rows.advance();
    }
  }

  using Operands = uint32_t[Eights][kBlocks * kSteps * 2];

  __device__ static void take_x(uint32_t x, uint32_t lane, Operands &operands) {
    const uint32_t first = x_address(x, lane & 7, lane >> 3);
#pragma unroll
    for (int n = 0; n < Eights; ++n)
#pragma unroll
      for (int i = 0; i < kBlocks * kSteps / 2; ++i)  // four chunks at a time
        load_matrices((first ^ i % 2 * 64) + n * 8 * kRowBytes + i / 2 * 128, &operands[n][4 * i]);
    __syncwarp();
  }

  // --- Products

  // A lane's four of eight rows, in two chains, of which the first goes on from the slices before.
  struct Sums {
    float of[2][Eights][4];

    // Where a slice ends.
    __device__ void join() {
#pragma unroll
      for (int n = 0; n < Eights; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          of[0][n][i] += of[1][n][i];
          of[1][n][i] = 0;
        }
    }
  };

  __device__ static void multiply_block(const LaneWords<Kind> &words, const Operands &operands, int block,
                                        const Shifts &shifts, Sums &sums) {
    uint32_t weights[4 * kSteps];
    decode_block<Kind, Type>(words, shifts, weights);
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
#pragma unroll
      for (int n = 0; n < Eights; ++n)
        multiply_tile<Type>(sums.of[step % 2][n], weights + 4 * step, &operands[n][(block * kSteps + step) * 2]);
  }
};

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_CUDA_STREAM_SLICE_CUH_
