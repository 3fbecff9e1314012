// What host and device agree on for products by experts: tiles of y, and shared memory.
// Layout: the schedule, sums on their way out, then the ring of many_rows.h.
#ifndef DLFP4_SRC_PRODUCTS_CUDA_GROUPED_H_
#define DLFP4_SRC_PRODUCTS_CUDA_GROUPED_H_

#include "params.h"

namespace dlfp4 {
namespace cuda {

constexpr int kMostExperts = 512;

// Kernels of tiles are for few rows of an expert or many, of 16 bits by prepared weights or of bytes by bytes. Of those
// for few two blocks of threads share a multiprocessor, for one waits, or stores results, while the other multiplies.
enum RoutedRows { kFewRows, kManyRows, kFewRowsOfBytes, kManyRowsOfBytes };

DLFP4_RULE bool are_few(RoutedRows of) { return of == kFewRows || of == kFewRowsOfBytes; }
DLFP4_RULE bool are_bytes(RoutedRows of) { return of >= kFewRowsOfBytes; }

DLFP4_RULE int blocks_at_once(RoutedRows of) { return are_few(of) ? 2 : 1; }

// Blocks of threads of a cluster, which have the same rows of x.
DLFP4_RULE int count_sharers(RoutedRows of) { return of == kManyRowsOfBytes ? 2 : 1; }

// Of a tile.
DLFP4_RULE int most_rows(RoutedRows of) { return are_few(of) ? 64 : 256; }

// Sizes of tiles, the largest first. Of 16 bits they are multiples of the smallest, of bytes each is half of the one
// before.
DLFP4_RULE int least_rows(RoutedRows of) { return of == kFewRows ? 8 : of == kManyRowsOfBytes ? 32 : 16; }
DLFP4_RULE int count_sizes(RoutedRows of) {
  const int multiples = most_rows(of) / least_rows(of);
  return are_bytes(of) ? 1 + (multiples > 1) + (multiples > 2) + (multiples > 4) : multiples;
}

DLFP4_RULE int rows_of_size(RoutedRows of, int size) {
  return are_bytes(of) ? most_rows(of) >> size : most_rows(of) - size * least_rows(of);
}

// Sizes whose tiles have x as the first operand: multiples of what the warpgroups share out then.
DLFP4_RULE int sizes_by_x(RoutedRows of) { return of == kManyRowsOfBytes ? 2 : 0; }

// Rows of x in a copy; a tile's last one may bring some more than it has.
DLFP4_RULE int routed_box(RoutedRows of) { return are_few(of) ? 16 : 32; }
DLFP4_RULE int copied_rows(RoutedRows of, int size) {
  return (rows_of_size(of, size) + routed_box(of) - 1) / routed_box(of) * routed_box(of);
}

// Of wgmma's operands, of which threads of two blocks have registers for one: the blocks wait for each other's sake.
DLFP4_RULE int sets_of_operands(RoutedRows of) { return 3 - blocks_at_once(of); }

// Of what whole tiles leave of an expert's rows: the smallest size that holds it, or none.
DLFP4_RULE int size_of_last(int rows, RoutedRows of) {
  const int left = rows % most_rows(of);
  if (left == 0) return count_sizes(of);
  if (!are_bytes(of)) return (most_rows(of) - left) / least_rows(of);
  int size = 0;
  while (size + 1 < count_sizes(of) && left <= rows_of_size(of, size + 1)) ++size;
  return size;
}

// How many tiles there are of one size, for an expert's rows and a block of weights.
DLFP4_RULE int count_tiles(int rows, RoutedRows of, int size) {
  return (size == 0 ? rows / most_rows(of) : 0) + (size_of_last(rows, of) == size);
}

// A tile: rows of x from one on, up to the last of their expert; 128 rows of all experts' weights, and which column of
// the expert's results the first of these makes, below 0 where the block begins with a neighbour's.
struct alignas(16) Job {
  int size, first_row, left, row_block, first_column;
  float factor;  // of results
};

constexpr int kJobs = 2;  // that wait

// Where experts' rows end; size by size the experts that have tiles of it, and how many there are up to each, its own
// included; jobs, and barriers that say which are there and which every thread has done with.
template <RoutedRows Of>
struct Schedule {
  static constexpr int kMostEntries = 2 * kMostExperts;
  Job jobs[kJobs];
  uint64_t planned[kJobs], taken[kJobs];
  int ends[kMostExperts], tiles[kMostEntries];
  uint16_t experts[kMostEntries];
  int begins[count_sizes(Of)], counts[count_sizes(Of)];  // of a size's entries
};

// Sums on their way out: so many rows of a warpgroup's columns leave together, four floats further apart than they need
// so that they start in different banks. Of bytes so few that the ring has room for a fourth stage.
constexpr int kPiecePitch = kColumnsOfHalf + 4;
DLFP4_RULE int piece_rows(RoutedRows of) { return of == kFewRowsOfBytes ? 8 : of == kFewRows ? 16 : 32; }
DLFP4_RULE int piece_bytes(RoutedRows of) { return piece_rows(of) * kPiecePitch * 4; }

// Rows of x begin at multiples of what is swizzled.
template <RoutedRows Of>
constexpr int kBeforeRing = (sizeof(Schedule<Of>) + kConsumers * piece_bytes(Of) + 1023) / 1024 * 1024;

template <RoutedRows Of>
DLFP4_RULE int grouped_stages(int kind) {
  return (shared_of_blocks(blocks_at_once(Of)) - kBeforeRing<Of>) / stage_bytes(kind, most_rows(Of), kBlockRows);
}

// Integers of 32 or 64 bits.
struct Integers {
  const void *data;  // or null
  int bits;
};

// y = alpha * x @ w[e].T for the rows of each expert e, whose weights follow one another; `product` has the columns of
// one expert and all rows.
struct RoutedParams {
  ProductParams product;
  Integers ends;
  int experts, factor_step;
  bool follows_gathering;  // by a kernel that has waited for what makes the ends
  int *next;               // beyond a grid's, the tile that nobody has, which that kernel clears; null: in turn
};

struct GroupedParams : RoutedParams {
  TensorMap x;
  bool stores_eights;  // results of 16 bits whose rows begin at multiples of 16 bytes
};

// So few rows that weights are streamed, eight of an expert at a time, by warps that registers are shared out to.
constexpr int kStreamedRows = 8, kMostStreamingWarps = 24;
constexpr int kStreamStages = 2;
constexpr int kPassed = 8;                                  // tiles whose sums are on their way
constexpr int kStreamScheduleBytes = 2 * kMostExperts * 4;  // where experts' rows and tiles end

struct GroupedStreamParams : RoutedParams {
  Integers tokens;  // that rows are of; null: in order
  int64_t count_tokens;
  StreamedCut cut;
};

// The same of FP8 by FP8: all experts' weights are one matrix of `weight_rows`.
struct GroupedBytesParams : GroupedParams {
  TensorMap weights, x_scales;
  ByteScales of_x, of_weights;
  bool maps_scales;
  int weight_rows;
};

// Rows of tokens one after another, and their scales; zeros for tokens that are not there.
struct GatherParams {
  const uint8_t *x;
  int64_t x_stride;  // bytes, a multiple of 16
  uint8_t *rows;
  int64_t sixteens;  // of a row
  int threads_of_row;
  ByteScales scales;
  float *row_scales;                       // those of all rows for a block along K, then the next
  int64_t scales_of_row, pitch_of_scales;  // or 0
  int64_t count_rows, count_tokens;
  Integers tokens;
  int *next;  // or null, to be cleared
};

// Rows of y as weighted sums of rows that experts have made.
struct CombineParams {
  ProductParams product;  // y
  const float *rows;
  int64_t row_stride;  // a multiple of 8
  Integers ends, tokens;
  const float *weights;
  int experts, routed;
};

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_CUDA_GROUPED_H_
