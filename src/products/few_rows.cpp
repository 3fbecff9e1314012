// Matrix products of few rows: the second side's lines are multiplied as they lie, without panels.
#include "few_rows.h"

namespace dlfp4 {
namespace {

constexpr int64_t kBytesInCache = 32 << 10;            // of rows: they are to stay in the L1 cache
constexpr int64_t kMostPositions = kBytesInCache / 2;  // of one row of bfloat16
constexpr int64_t kMostScales = kMostPositions / 32;   // rows of float32 have half of these, in blocks of 16
constexpr int64_t kMostPartRows = 8;                   // at least what any level's most_bfloat_rows is

// Calls multiply(first, depth, line of b, its totals) for all positions, as many at a time as the rows have room for.
// Kernels prefetch what follows in memory, which is not the next piece if lines are cut into pieces.
template <class Multiply>
void each_line(const Tile &tile, int64_t most, Multiply multiply) {
  const bool in_pieces = most < tile.sides.depth;
  for (int64_t first = 0; first < tile.sides.depth; first += most) {
    const int64_t depth = least(most, tile.sides.depth - first);
    for (int64_t c = 0; c < tile.columns; ++c) {
      const int64_t line = tile.column + c;
      if (in_pieces && c + 1 < tile.columns)
        prefetch_codes(tile.sides.b, line + 1, first, least(depth, tile.sides.length - first));
      multiply(first, depth, line, tile.totals + c);
    }
  }
}

int64_t positions_in_cache(const Tile &tile) {
  const int64_t fitting = kBytesInCache / item_of(tile.sides) / least(tile.count, 8);
  return least(kMostPositions, fitting / kDepth * kDepth);
}

// The tile's rows from their first position on, of bfloat16 or float32.
template <class Item>
const Item *rows_of(const Tile &tile) {
  return reinterpret_cast<const Item *>(tile.rows.values) + tile.row * tile.rows.pitch;
}

// --- By stored scales ------------------------------------------------------------------------

// Calls multiply(first, depth, codes, scales, its totals) for pieces of each line.
template <class Multiply>
void each_stored_line(const Tile &tile, Multiply multiply) {
  uint8_t buffer[kMostPositions / 16];
  const Reader &b = tile.sides.b;
  each_line(tile, positions_in_cache(tile), [&](int64_t first, int64_t depth, int64_t line, double *totals) {
    multiply(first, depth, find_codes(b, line, first), read_stored_scales(b, line, first, depth, buffer), totals);
  });
}

void multiply_spread(const Tile &tile) {
  const auto multiply = tile.sides.kernels->lines.multiply_spread[tile.sides.b.format.key];
  const uint16_t *const x = rows_of<uint16_t>(tile);
  each_stored_line(tile,
                   [&](int64_t first, int64_t depth, const uint8_t *codes, const uint8_t *scales, double *totals) {
                     multiply(codes, scales, x + first, tile.rows.pitch, depth, tile.count, totals);
                   });
}

void multiply_rounded(const Tile &tile) {
  const auto multiply = tile.sides.kernels->lines.multiply_rounded[tile.sides.b.format.key];
  each_stored_line(
      tile, [&](int64_t first, int64_t depth, const uint8_t *codes, const uint8_t *scales, double *totals) {
        multiply(codes, scales, integers_of(tile.sides, tile.rows, tile.row, first), depth, tile.count, totals);
      });
}

// --- By what the scales are worth ------------------------------------------------------------

// The scales of a line's blocks, and a zero. A line without scales is one block of scale 1. Returns whether one is not
// finite.
bool read_line_scales(const Reader &reader, int64_t line, int64_t first, int64_t count, float *scales) {
  alignas(64) uint8_t buffer[kMostScales * sizeof(float)];
  scales[0] = 1;
  if (!reader.scaled) return false;
  const int64_t blocks = divide_up(count, reader.format.block);
  const uint8_t *const stored = read_stored_scales(reader, line, first, count, buffer);
  scales[blocks] = 0;
  return reader.blocks->decode_scales[reader.format.key](stored, blocks, 1, scales);
}

// Blocks one by one. Their parts are added up before a scale that is infinite, whose product with a part of 0 is NaN.
template <class Multiply>
void multiply_each_block(const Tile &tile, int64_t depth, const float *scales, double *totals, Multiply multiply) {
  constexpr float kOne = 1;
  const int64_t block = tile.sides.b.format.block, parts = tile.sides.parts;
  for (int64_t k = 0; k < depth; k += block) {
    double sums[kMostPartRows * kColumns] = {};
    multiply(k, least(block, depth - k), &kOne, kWholeLine, sums);
    for (int64_t i = 0; i < tile.count; ++i)
      if (i % parts > 0) sums[(i - i % parts) * kColumns] += sums[i * kColumns];
    for (int64_t i = 0; i < tile.count; i += parts)
      totals[i * kColumns] += sums[i * kColumns] * widen(scales[k / block]);
  }
}

// Codes as they lie, by rows of `Item`.
template <class Item, class Kernel>
void multiply_scaled(const Tile &tile, Kernel multiply) {
  float scales[kMostScales + 1];
  const Reader &b = tile.sides.b;
  const int64_t block = b.scaled ? b.format.block : kWholeLine;
  const Item *const x = rows_of<Item>(tile);
  each_line(tile, positions_in_cache(tile), [&](int64_t first, int64_t depth, int64_t line, double *totals) {
    const auto multiply_piece = [&](int64_t k, int64_t count, const float *of_blocks, int64_t length, double *sums) {
      multiply(find_codes(b, line, first + k), of_blocks, length, x + first + k, tile.rows.pitch, count, tile.count,
               sums);
    };
    const bool not_finite = read_line_scales(b, line, first, depth, scales);
    if (not_finite && tile.sides.parts > 1 && has_float_scales(b))
      return multiply_each_block(tile, depth, scales, totals, multiply_piece);
    multiply_piece(0, depth, scales, block, totals);
  });
}

// --- Others ----------------------------------------------------------------------------------

// Each line is decoded to float32, once for all rows.
void multiply_floats(const Tile &tile) {
  alignas(64) float values[kMostRead];
  const auto multiply = tile.sides.kernels->lines.multiply_floats;
  const float *const x = rows_of<float>(tile);
  each_line(tile, least(kMostRead, positions_in_cache(tile)),
            [&](int64_t first, int64_t depth, int64_t line, double *totals) {
              const int64_t completed = round_up(depth, kFloatStep);
              read_line(tile.sides.b, line, first, depth, completed, kFromFloat32, reinterpret_cast<uint8_t *>(values));
              multiply(values, x + first, tile.rows.pitch, completed, tile.count, totals);
            });
}

double sum_blocks(const Sides &sides, int64_t a_line, int64_t b_line) {
  uint8_t a_buffer[kMostSummed / 16], b_buffer[kMostSummed / 16];
  const auto sum = sides.kernels->sum_blocks[sides.b.format.key];
  double total = 0;
  for (int64_t first = 0; first < sides.depth; first += kMostSummed) {
    const int64_t depth = least(kMostSummed, sides.depth - first);
    const uint8_t *const a_scales = read_stored_scales(sides.a, a_line, first, depth, a_buffer);
    const uint8_t *const b_scales = read_stored_scales(sides.b, b_line, first, depth, b_buffer);
    total += sum(find_codes(sides.a, a_line, first), a_scales, find_codes(sides.b, b_line, first), b_scales, depth);
  }
  return total;
}

void multiply_blocks(const Tile &tile) {
  for (int64_t c = 0; c < tile.columns; ++c)
    for (int64_t i = 0; i < tile.count; ++i)
      tile.totals[i * kColumns + c] += sum_blocks(tile.sides, line_of(tile.rows, tile.row + i), tile.column + c);
}

}  // namespace

void multiply_few_rows(const Tile &tile) {
  const Sides &sides = tile.sides;
  const LineKernels &lines = sides.kernels->lines;
  // With more rows than it takes at a time, a kernel would decode the codes again.
  const bool has_codes = tile.count <= kMostCodeRows && lines.multiply_codes[sides.b.row] && lies_in_bytes(sides.b);
  switch (sides.form) {
    case kSpreadLines:
      return multiply_spread(tile);
    case kElementLines:
      return multiply_scaled<uint16_t>(tile, lines.multiply_elements[sides.b.row]);
    case kRoundedLines:
      return multiply_rounded(tile);
    case kBlockLines:
      return multiply_blocks(tile);
    default:
      return has_codes ? multiply_scaled<float>(tile, lines.multiply_codes[sides.b.row]) : multiply_floats(tile);
  }
}

}  // namespace dlfp4
