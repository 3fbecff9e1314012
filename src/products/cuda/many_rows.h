// What host and device agree on for products of many rows: the ring of blocks in shared memory, the order of the walk.
// Layout: [stage] rows of x, [stage] weights, barriers; before them the walking kernel's results.
#ifndef DLFP4_SRC_PRODUCTS_CUDA_MANY_ROWS_H_
#define DLFP4_SRC_PRODUCTS_CUDA_MANY_ROWS_H_

#include "prepared.h"

namespace dlfp4 {
namespace cuda {

constexpr int kWarpgroup = 128, kConsumers = 2, kManyRowsThreads = kWarpgroup * (1 + kConsumers);
constexpr int kMostShared = 227 * 1024;
constexpr int kColumnsOfHalf = kBlockRows / 2;
constexpr int kBoxColumns = 64;  // of 16 bits, in boxes of bulk copies: what is swizzled

static_assert(kBoxColumns == kBlockK && kBoxColumns == kColumnsOfHalf, "");

DLFP4_RULE int x_stage_bytes(int rows) { return rows * kBlockK * 2; }

DLFP4_RULE int weight_stage_bytes(int kind, int halves) { return weight_layout(kind).bytes() / 2 * halves; }

DLFP4_RULE int stage_bytes(int kind, int rows, int halves) {
  return x_stage_bytes(rows) + weight_stage_bytes(kind, halves) + 16;
}

// Stages of the ring: what there is memory for, or blocks. Warpgroups that take blocks in turn have stages of their
// own, an even number together, and two each if they have as many blocks: a barrier tells a stage's use from the next
// one, but not from the one after that, which would be a warpgroup's next if the two shared stages.
DLFP4_RULE int ring_stages(int kind, int rows, int halves, int blocks, int other_bytes) {
  constexpr int kMostStages = 32;
  const int takers = kConsumers / halves, in_memory = (kMostShared - other_bytes) / stage_bytes(kind, rows, halves);
  const int most = (in_memory < kMostStages ? in_memory : kMostStages) / takers * takers;
  const int wanted = blocks < 2 ? 2 : (blocks + takers - 1) / takers * takers;
  return wanted < most ? wanted : most;
}

// Floats of a row of sums in shared memory, four more than there are columns so that rows start in different banks.
DLFP4_RULE int sums_pitch(int halves) { return kColumnsOfHalf * halves + 4; }

DLFP4_RULE int sums_bytes(int rows, int halves) { return (kConsumers / halves) * rows * sums_pitch(halves) * 4; }

// --- The walking kernel ----------------------------------------------------------------------

// Rows of x in a tile, blocks of threads of a cluster, memory for a tile's results of 16 bits, before the ring.
constexpr int kWalkRows = 256, kWalkRanks = 2, kStaging = kWalkRows * kBlockRows * 2;

// Tiles along the rows of x, without a last one that is at most half full.
DLFP4_RULE int walk_x_tiles(int rows) { return (rows + kWalkRows / 2 - 1) / kWalkRows; }

// Which tiles of y a block of threads multiplies: first those of rows of x that fill at most half a tile, then `alone`
// whole ones, each a grid apart, at last one that it shares with the other block of its cluster, half of K each. The
// first of these orders starts at the last block, because the first blocks have shared tiles.
struct WalkOrder {
  static constexpr int kNone = -1;
  // Row blocks that meet all rows of x before the next, so that both stay in the cache.
  static constexpr int kGroup = 64;

  struct Place {
    int row_block, first_row;
  };

  int row_blocks, x_tiles, alone;
  bool has_rest;

  DLFP4_RULE int tiles() const { return row_blocks * x_tiles; }
  DLFP4_RULE int rests() const { return has_rest ? row_blocks : 0; }
  DLFP4_RULE Place place_of_rest(int rest) const { return {rest, x_tiles * kWalkRows}; }

  DLFP4_RULE Place place_of(int tile) const {
    const int in_group = kGroup * x_tiles, group = tile / in_group, place = tile % in_group;
    const int left = row_blocks - group * kGroup, height = left < kGroup ? left : kGroup;
    return {group * kGroup + place % height, place / height * kWalkRows};
  }

  DLFP4_RULE int shared_tile(int cluster) const { return cluster < tiles() - alone ? alone + cluster : kNone; }
};

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_CUDA_MANY_ROWS_H_
