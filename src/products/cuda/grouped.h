// What host and device agree on for products by experts: tiles of y, and shared memory.
// Layout: results on their way out, the schedule, then the ring of many_rows.h.
#ifndef DLFP4_SRC_PRODUCTS_CUDA_GROUPED_H_
#define DLFP4_SRC_PRODUCTS_CUDA_GROUPED_H_

#include "params.h"

namespace dlfp4 {
namespace cuda {

constexpr int kMostExperts = 512;

// Kernels of tiles are for few rows of an expert or many, of 16 bits by prepared weights, and for bytes by bytes. Of
// the first one two blocks of threads share a multiprocessor, for one waits while the other decodes.
enum RoutedRows { kFewRows, kManyRows, kRowsOfBytes };

DLFP4_RULE int blocks_at_once(RoutedRows of) { return of == kFewRows ? 2 : 1; }

// Blocks of threads of a cluster, which have the same rows of x.
DLFP4_RULE int count_sharers(RoutedRows of) { return of == kRowsOfBytes ? 2 : 1; }

// Of a tile.
DLFP4_RULE int most_rows(RoutedRows of) { return of == kFewRows ? 64 : 256; }

// Sizes of tiles, the largest first: an expert has tiles of that size, and a last one of the size that just holds it.
// Of 16 bits they are multiples of 32, of bytes what multiply_bytes has.
DLFP4_RULE int count_sizes(RoutedRows of) { return of == kRowsOfBytes ? 4 : most_rows(of) / 32; }

DLFP4_RULE int rows_of_size(RoutedRows of, int size) {
  return of == kRowsOfBytes ? most_rows(of) >> size : most_rows(of) - size * 32;
}

// Sizes whose tiles have x as the first operand: multiples of what the warpgroups share out then.
DLFP4_RULE int sizes_by_x(RoutedRows of) { return of == kRowsOfBytes ? 2 : 0; }

// Rows of x in a copy.
DLFP4_RULE int routed_box(RoutedRows of) { return rows_of_size(of, count_sizes(of) - 1); }

// Of wgmma's operands, of which threads of two blocks have registers for one: the blocks wait for each other's sake.
DLFP4_RULE int sets_of_operands(RoutedRows of) { return 3 - blocks_at_once(of); }

// Of one size, for an expert's rows and a block of weights.
DLFP4_RULE int count_tiles(int rows, RoutedRows of, int size) {
  const int last = rows % most_rows(of), most = rows_of_size(of, size);
  const int less = size + 1 < count_sizes(of) ? rows_of_size(of, size + 1) : 0;
  return (size == 0 ? rows / most_rows(of) : 0) + (last > less && last <= most);
}

// Where experts' rows end, and of each size how many tiles there are up to an expert, its own included.
template <RoutedRows Of>
struct Schedule {
  int ends[kMostExperts], tiles[count_sizes(Of)][kMostExperts];
};

DLFP4_RULE int schedule_bytes(RoutedRows of) { return (1 + count_sizes(of)) * kMostExperts * 4; }

constexpr int kPieceRows = 64;  // of a tile, that leave together
constexpr int kPieceBytes = kConsumers * kPieceRows * kColumnsOfHalf * 2;
DLFP4_RULE int bytes_before_ring(RoutedRows of) { return kPieceBytes + schedule_bytes(of); }
static_assert(kPieceBytes % 1024 == 0 && kMostExperts * 4 % 1024 == 0, "rows of x are swizzled");

DLFP4_RULE int grouped_stages(int kind, RoutedRows of) {
  return (shared_of_blocks(blocks_at_once(of)) - bytes_before_ring(of)) / stage_bytes(kind, most_rows(of), kBlockRows);
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
  ByteScales scales;
  float *row_scales;                       // those of all rows for a block along K, then the next
  int64_t scales_of_row, pitch_of_scales;  // or 0
  int64_t count_rows, count_tokens;
  Integers tokens;
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
