// What host and device agree on for products of few rows: how K is cut, and how much shared memory a warp has.
#ifndef DLFP4_SRC_PRODUCTS_CUDA_FEW_ROWS_H_
#define DLFP4_SRC_PRODUCTS_CUDA_FEW_ROWS_H_

#include "prepared.h"

namespace dlfp4 {
namespace cuda {

constexpr int kMostWarps = 16;

// Of a slice of K.
DLFP4_RULE int x_slice_bytes(int kind, int eights) {
  return slice_blocks(weight_layout(kind).bits) * kBlockK * 2 * 8 * eights;
}

// Of weights, a tile in a slice, in steps of 128, so that what a warp has begins at multiples of them: x is swizzled.
DLFP4_RULE int slice_of_tile_bytes(int kind) {
  const WeightLayout layout = weight_layout(kind);
  return (slice_blocks(layout.bits) * layout.bytes() / kTilesInBlock + 127) / 128 * 128;
}

DLFP4_RULE int sums_bytes_of_tile(int eights) { return 8 * eights * kTile * 4; }

// The value of one in a quantized x that the kernels decode. MXFP4 is decoded to its own values.
DLFP4_RULE float coded_unit(int kind) { return kind == kNvfp4 ? 0x1p8f : 1; }

constexpr int kFactorBytes = 16;  // of a block of threads: the scales of whole tensors

// Shared memory of a warp: from its start, x, then sums and weights. Sums may lie over x where a warp has one slice.
struct WarpMemory {
  int sums, stage, bytes;
};

DLFP4_RULE WarpMemory warp_memory(int kind, int eights, int tiles, bool reuses) {
  const int x = x_slice_bytes(kind, eights), sums = tiles * sums_bytes_of_tile(eights);
  const int stage = reuses ? (x > sums ? x : sums) : x + sums;
  return {reuses ? 0 : x, stage, stage + slice_of_tile_bytes(kind)};
}

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_CUDA_FEW_ROWS_H_
