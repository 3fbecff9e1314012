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
constexpr int kBoxBytes = 128;  // of a row, in boxes of bulk copies: what is swizzled

static_assert(kBoxBytes == 2 * kBlockK && kBoxBytes == 2 * kColumnsOfHalf, "");

// Beside the prepared weights of prepared.h, which x of 16 bits meets, weights and x of FP8 as they lie (bytes.cuh):
// with no scales but those of tensors; with one for each row; with one for 128 of K and each row of x, and one for them
// and each row of weights, or 128 of these.
enum ByteKind { kBytes = kNumWeightKinds, kBytesByLine, kBytesByRow, kBytesByBlock, kNumProductKinds };

// Elements of such weights, and of x.
enum ByteTypes { kE4m3E4m3, kE4m3E5m2, kE5m2E4m3, kE5m2E5m2, kNumByteTypes };

DLFP4_RULE bool is_e5m2(int types) { return types >= kE5m2E4m3; }
DLFP4_RULE bool x_is_e5m2(int types) { return types % 2 != 0; }

DLFP4_RULE bool is_prepared(int kind) { return kind < kNumWeightKinds; }
DLFP4_RULE bool has_scales_of_rows(int kind) { return kind == kBytesByRow; }

// Whether stages have scales.
DLFP4_RULE bool has_scales(int kind) { return kind == kBytesByRow || kind == kBytesByBlock; }

// Elements of K in a stage of the ring.
DLFP4_RULE int stage_depth(int kind) { return is_prepared(kind) ? kBlockK : kBoxBytes; }

// To how many warpgroups K is shared out in a tile that is not walked to: to both where there are columns for one.
DLFP4_RULE int shares_of_depth(int columns) { return columns == kColumnsOfHalf ? kConsumers : 1; }

DLFP4_RULE int x_stage_bytes(int rows) { return rows * kBoxBytes; }

DLFP4_RULE int weight_stage_bytes(int kind, int columns) {
  return is_prepared(kind) ? weight_layout(kind).bytes() / kBlockRows * columns : columns * kBoxBytes;
}

// Of those, what comes before the scales of prepared weights.
DLFP4_RULE int code_stage_bytes(int kind, int columns) {
  return is_prepared(kind) ? weight_layout(kind).code_bytes() / kBlockRows * columns
                           : weight_stage_bytes(kind, columns);
}

// Scales of a stage of bytes, of x and then of rows of weights: as the first operand of wgmma has its rows; the two of
// these that a thread needs next to each other; or four times those that a thread needs of the second operand, four
// floats further apart so that they start in different banks.
enum ScaleOrder { kOne, kInOrder, kInPairs, kTurned };

DLFP4_RULE int paired_place(int line) { return line / 16 * 16 + line % 8 * 2 + line / 8 % 2; }

DLFP4_RULE int turned_pitch(int lines) { return lines / 4 + 4; }
DLFP4_RULE int turned_place(int lines, int line) {
  return line % 8 / 2 * turned_pitch(lines) + line / 8 * 2 + line % 2;
}

// In any order, and where they begin with those of up to three lines before, for bulk copies read whole 16 bytes.
constexpr int kScalesOfCopy = 4, kScaleBox = 32;
DLFP4_RULE int line_scale_bytes(int lines) {
  const int turned = 4 * turned_pitch(lines), in_order = lines + kScaleBox;
  return (turned > in_order ? turned : in_order) * 4;
}

DLFP4_RULE int scale_stage_bytes(int kind, int rows, int columns) {
  constexpr int kAligned = 128;  // for bulk copies
  if (!has_scales(kind)) return 0;
  const int bytes = line_scale_bytes(rows) + (has_scales_of_rows(kind) ? line_scale_bytes(columns) : 4);
  return (bytes + kAligned - 1) / kAligned * kAligned;
}

constexpr int kBarrierBytes = 16;  // of a stage's two

DLFP4_RULE int stage_bytes(int kind, int rows, int columns) {
  return x_stage_bytes(rows) + weight_stage_bytes(kind, columns) + scale_stage_bytes(kind, rows, columns) +
         kBarrierBytes;
}

// Shared memory of each of so many blocks of threads on a multiprocessor.
DLFP4_RULE int shared_of_blocks(int at_once) {
  constexpr int kOwnOfBlock = 1024;  // what the driver keeps of each
  return (kMostShared + kOwnOfBlock) / at_once - kOwnOfBlock;
}

// Blocks of threads with a tile each that a multiprocessor has registers for: of two, one has its first operands on
// their way, or stores sums, while the other multiplies.
DLFP4_RULE int tiles_at_once(int kind, int rows) { return !is_prepared(kind) && rows <= 64 ? 2 : 1; }

// Stages of the ring: what there is memory for, or blocks. Warpgroups that take blocks in turn have stages of their
// own, an even number together, and two each if they have as many blocks: a barrier tells a stage's use from the next
// one, but not from the one after that, which would be a warpgroup's next if the two shared stages.
DLFP4_RULE int ring_stages(int kind, int rows, int columns, int blocks, int memory) {
  constexpr int kMostStages = 32;
  const int takers = shares_of_depth(columns), in_memory = memory / stage_bytes(kind, rows, columns);
  const int most = (in_memory < kMostStages ? in_memory : kMostStages) / takers * takers;
  const int wanted = blocks < 2 ? 2 : (blocks + takers - 1) / takers * takers;
  return wanted < most ? wanted : most;
}

// Floats of a row of sums in shared memory, four more than there are columns so that rows start in different banks.
DLFP4_RULE int sums_pitch(int columns) { return columns + 4; }

DLFP4_RULE int sums_bytes(int rows, int columns) { return shares_of_depth(columns) * rows * sums_pitch(columns) * 4; }

// Where the ring's barriers begin: behind `first` bytes and the stages, and behind the `later` bytes that take the
// place of both while barriers still count as such.
DLFP4_RULE int ring_barriers(int kind, int rows, int columns, int stages, int first, int later) {
  const int behind = first + stages * (stage_bytes(kind, rows, columns) - kBarrierBytes);
  return behind > later ? behind : later;
}

// --- Walking kernels -------------------------------------------------------------------------

constexpr int kWalkRanks = 2;  // blocks of threads of a cluster

constexpr int kWalkRows = 256;  // of x in a tile, by prepared weights

// A warpgroup's part of a tile whose first operand is x. Two share out a tile's rows, or its columns if it has no more
// rows.
constexpr int kRowsOfGroup = 64;
DLFP4_RULE int columns_of_group(int rows, int columns) { return rows > kRowsOfGroup ? columns : columns / kConsumers; }

// Of those, what a warpgroup stores at a time.
DLFP4_RULE int columns_of_piece(int columns) { return columns > kColumnsOfHalf ? columns / 2 : columns; }

// Memory for results of 16 bits, before the ring: of a tile, or of bytes a piece for each consumer.
DLFP4_RULE int staging_bytes(int kind, int rows, int columns) {
  if (is_prepared(kind)) return rows * columns * 2;
  return kConsumers * kRowsOfGroup * columns_of_piece(columns_of_group(rows, columns)) * 2;
}

// Tiles of 256 along the rows of x, without a last one that is at most half full.
DLFP4_RULE int walk_x_tiles(int rows) { return (rows + kWalkRows / 2 - 1) / kWalkRows; }

// Which tiles of y a block of threads multiplies: first those of rows of x that fill at most half a tile, then `alone`
// whole ones, each a grid apart, at last one that it shares with the other block of its cluster, half of K each. The
// first of these orders starts at the last block, because the first blocks have shared tiles. FP8 by FP8 has whole
// tiles alone.
struct WalkOrder {
  static constexpr int kNone = -1;
  // Row blocks that meet all rows of x before the next, so that both stay in the cache.
  static constexpr int kGroup = 64;

  struct Place {
    int row_block, first_row;
  };

  int row_blocks, x_tiles, alone;  // one of the first two counts for whole clusters of FP8 by FP8
  int rows;                        // of a tile
  int together;                    // tiles along x that a cluster has at once, of the same weights, or one
  bool has_rest;

  DLFP4_RULE int tiles() const { return row_blocks * x_tiles; }
  DLFP4_RULE int rests() const { return has_rest ? row_blocks : 0; }
  DLFP4_RULE Place place_of_rest(int rest) const { return {rest, x_tiles * rows}; }

  DLFP4_RULE Place place_of(int tile) const {
    const int turn = tile / together, in_group = kGroup * (x_tiles / together);
    const int group = turn / in_group, place = turn % in_group;
    const int left = row_blocks - group * kGroup, height = left < kGroup ? left : kGroup;
    return {group * kGroup + place % height, (place / height * together + tile % together) * rows};
  }

  DLFP4_RULE int shared_tile(int cluster) const { return cluster < tiles() - alone ? alone + cluster : kNone; }
};

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_CUDA_MANY_ROWS_H_
