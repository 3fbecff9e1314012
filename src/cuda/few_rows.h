// What host and device agree on for products of few rows: how K is cut, and how much shared memory a warp has.
#ifndef DLFP4_SRC_CUDA_FEW_ROWS_H_
#define DLFP4_SRC_CUDA_FEW_ROWS_H_

#include "prepared.h"

namespace dlfp4 {
namespace cuda {

constexpr int kMostWarps = 16;

// Of a slice of K, which has as many blocks as a lane's registers hold twice.
DLFP4_RULE int x_slice_bytes(int kind, int eights) {
  return slice_blocks(weight_layout(kind).bits) * kBlockK * 2 * 8 * eights;
}

DLFP4_RULE int warp_bytes(int kind, int eights, int tiles, bool reuses) {
  const int x = x_slice_bytes(kind, eights), sums = tiles * 8 * eights * kTile * 4;
  return reuses ? (x > sums ? x : sums) : x + sums;
}

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_CUDA_FEW_ROWS_H_
