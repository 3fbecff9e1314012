// The rows of a matrix product's first side, prepared once in a workspace.
#include "rows.h"

#include <math.h>
#include <string.h>

namespace dlfp4 {
namespace {

constexpr int64_t kLine = 64;          // bytes of a cache line
constexpr int64_t kIntegerBlock = 32;  // of floats that are rounded to int8
constexpr float kLargestInteger = 127;
constexpr float kLeastMagnitude = 0x1p-110f;  // of a block of floats: smaller ones are zeros

// A line that repeats one element may have more positions than 63 bits count bytes of prepared rows. Such rows are as
// many bytes as no memory has, and a few times as many can be counted.
constexpr int64_t kMostPositions = int64_t{1} << 48, kTooManyBytes = int64_t{1} << 60;

// --- Integers --------------------------------------------------------------------------------

struct IntegerRow {
  int8_t *values;
  int32_t *corrections;
  float *scales;
};

// Of a block of floats, integers in order and the scale; a block that is not finite is NaN as a whole. A compiler makes
// vectors of these loops: magnitudes are compared as bits, and a float that is added rounds to integers.
float round_block(const float *values, int8_t *integers) {
  constexpr float kRounding = 0x1.8p23f;
  int32_t largest_bits = 0;
  for (int64_t i = 0; i < kIntegerBlock; ++i) {
    const auto bits = static_cast<int32_t>(bits_of(values[i]) & 0x7FFFFFFF);
    largest_bits = bits > largest_bits ? bits : largest_bits;
  }
  const float largest = float_of(static_cast<uint32_t>(largest_bits));
  const bool is_zero = !(largest >= kLeastMagnitude && largest < INFINITY);
  const float multiplier = is_zero ? 0 : kLargestInteger / largest;
  for (int64_t i = 0; i < kIntegerBlock; ++i) {
    const float value = is_zero ? 0 : values[i];
    integers[i] = static_cast<int8_t>(bits_of(value * multiplier + kRounding) - bits_of(kRounding));
  }
  return largest < kLeastMagnitude ? 0 : largest - largest + largest / kLargestInteger;  // NaN of infinity
}

// Puts the block that starts at position k where evens_first has it.
template <int64_t kRun>
void put_integers(const int8_t *integers, int64_t k, int8_t *x) {
  constexpr int64_t kPairs = (kRun < kIntegerBlock ? kRun : kIntegerBlock) / 2;
  for (int64_t i = 0; i < kIntegerBlock; i += 2 * kPairs) {
    int8_t *const even = x + evens_first<kRun>(k + i), *const odd = even + kRun / 2;
    for (int64_t j = 0; j < kPairs; ++j) {
      even[j] = integers[i + 2 * j];
      odd[j] = integers[i + 2 * j + 1];
    }
  }
}

int32_t sum_of(const int8_t *integers, int64_t count) {
  int32_t sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += integers[i];
  return sum;
}

bool is_by_lines(const Sides &sides) { return sides.form == kRoundedLines; }

// The scale of block b, and the correction that follows from the sum of its integers.
void put_block(const Sides &sides, int64_t b, int32_t sum, float scale, const IntegerRow &row) {
  const int64_t at = is_by_lines(sides) ? spread_block(b, sides.block) : b;
  row.scales[at] = scale;
  row.corrections[at] = -kIntegerOffset * sum;
}

// A row of floats.
void round_row(const Sides &sides, int64_t line, const IntegerRow &row) {
  alignas(64) float values[kMostRead];
  const auto put = is_by_lines(sides) ? put_integers<kSpread> : put_integers<kPanelSpread>;
  for (int64_t first = 0; first < sides.length; first += kMostRead) {
    const int64_t count = least(kMostRead, sides.length - first), completed = round_up(count, kIntegerBlock);
    read_values(sides.a, line, first, count, kFromFloat32, reinterpret_cast<uint8_t *>(values));
    memset(values + count, 0, static_cast<size_t>(completed - count) * sizeof(float));
    for (int64_t i = 0; i < completed; i += kIntegerBlock) {
      int8_t integers[kIntegerBlock];
      const float scale = round_block(values + i, integers);
      put(integers, first + i, row.values);
      for (int64_t k = 0; k < kIntegerBlock && first + i + k < sides.depth; k += sides.block)
        put_block(sides, (first + i + k) / sides.block, sum_of(integers + k, sides.block), scale, row);
    }
  }
}

// Twice the values of a row of FP4, and zeros beyond its length.
void spread_codes(const Sides &sides, const uint8_t *codes, int8_t *values) {
  if (is_by_lines(sides)) return sides.kernels->lines.spread_codes(codes, sides.length, values);
  sides.kernels->tiles.spread_integers(codes, sides.depth, values);
  for (int64_t k = sides.length; k < sides.depth; ++k) values[spread_integer(k)] = 0;
}

void spread_row(const Sides &sides, int64_t line, const IntegerRow &row) {
  float scales[kMostRead / 16 + 1];
  spread_codes(sides, find_codes(sides.a, line, 0), row.values);
  const int64_t half = sides.block / 2, odd = is_by_lines(sides) ? kSpread / 2 : half;
  for (int64_t k = 0; k < sides.depth; k += sides.block) {
    if (k % kMostRead == 0) read_scales(sides.a, line, k, least(kMostRead, sides.depth - k), scales);
    const int8_t *const integers = row.values + (is_by_lines(sides) ? spread_rounded(k) : k);
    const int32_t sum = sum_of(integers, half) + sum_of(integers + odd, half);
    put_block(sides, k / sides.block, sum, scales[k % kMostRead / sides.a.format.block], row);
  }
}

void prepare_integers(const Sides &sides, const PreparedRows &rows, int64_t i, int64_t line) {
  const int64_t block = i * rows.block_pitch;
  const IntegerRow row = {reinterpret_cast<int8_t *>(rows.values) + i * rows.pitch, rows.corrections + block,
                          rows.scales + block};
  memset(row.values, 0, static_cast<size_t>(rows.pitch));
  memset(row.corrections, 0, static_cast<size_t>(rows.block_pitch) * sizeof(*row.corrections));
  memset(row.scales, 0, static_cast<size_t>(rows.block_pitch) * sizeof(*row.scales));
  if (sides.rounds)
    round_row(sides, line, row);
  else
    spread_row(sides, line, row);
  // The unit of the sums goes into the scales, so that no sum is larger than its result.
  const float unit = sides.rounds ? 0.5f : 0.25f;
  for (int64_t b = 0; b < rows.block_pitch; ++b) row.scales[b] *= unit;
}

// --- Floats ----------------------------------------------------------------------------------

// The first bits of `count` floats as bfloat16, and the rest. NaN and infinity leave no rest.
void take_part(float *values, int64_t count, uint16_t *part) {
  for (int64_t k = 0; k < count; ++k) {
    uint32_t bits;
    memcpy(&bits, values + k, sizeof(bits));
    const bool is_nan = values[k] != values[k];
    part[k] = static_cast<uint16_t>(bits >> 16 | (is_nan ? 1 : 0));
    bits &= 0xFFFF0000;
    float taken;
    memcpy(&taken, &bits, sizeof(taken));
    const float left = values[k] - taken;
    values[k] = left == left ? left : 0;
  }
}

// The scales of a row's blocks, or 1 for all of them.
void prepare_scales(const Sides &sides, const PreparedRows &rows, int64_t i, int64_t line) {
  float *const scales = rows.scales + i * rows.block_pitch;
  for (int64_t b = 0; b < rows.block_pitch; ++b) scales[b] = 1;
  if (!has_float_scales(sides.a)) return;
  for (int64_t first = 0; first < sides.length; first += kMostRead)
    read_scales(sides.a, line, first, least(kMostRead, sides.length - first), scales + first / sides.block);
}

// Where the piece of a row lies that has position `first`.
uint8_t *find_piece(const Sides &sides, const PreparedRows &rows, int64_t row, int64_t first) {
  return values_of(sides, rows, row / kBand * kBand, first) + row % kBand * kBandBytes;
}

// Calls put(bytes of a row from its first on, where they go, how many), all at once unless they lie in bands.
template <class Put>
void each_piece(const Sides &sides, const PreparedRows &rows, int64_t row, int64_t first, int64_t count, Put put) {
  const int64_t item = item_of(sides), step = kBandBytes / item;
  if (!are_in_bands(sides)) return put(0, values_of(sides, rows, row, first), count * item);
  for (int64_t k = 0; k < count; k += step)
    put(k * item, find_piece(sides, rows, row, first + k), least(step, count - k) * item);
}

// What the row's elements may leave: in bands their last piece and what follows.
void clear_row(const Sides &sides, const PreparedRows &rows, int64_t row) {
  const int64_t step = kBandBytes / item_of(sides), first = are_in_bands(sides) ? sides.length / step * step : 0;
  each_piece(sides, rows, row, first, rows.pitch - first,
             [](int64_t, uint8_t *to, int64_t bytes) { memset(to, 0, static_cast<size_t>(bytes)); });
}

void put_bfloats(const Sides &sides, const PreparedRows &rows, int64_t row, int64_t first, const uint16_t *part,
                 int64_t count) {
  if (sides.form == kSpreadLines) {
    uint16_t *const x = reinterpret_cast<uint16_t *>(values_of(sides, rows, row, 0));
    for (int64_t k = 0; k < count; ++k) x[spread_bfloat(first + k)] = part[k];
    return;
  }
  const uint8_t *const from = reinterpret_cast<const uint8_t *>(part);
  each_piece(sides, rows, row, first, count, [from](int64_t at, uint8_t *to, int64_t bytes) {
    if (bytes == kBandBytes) return static_cast<void>(memcpy(to, from + at, kBandBytes));  // which needs no call
    memcpy(to, from + at, static_cast<size_t>(bytes));
  });
}

// A row as bfloat16, in as many rows as it has parts, each in order or in that of spread_bfloat.
void prepare_bfloats(const Sides &sides, const PreparedRows &rows, int64_t i, int64_t line) {
  alignas(64) float values[kMostRead];
  alignas(64) uint16_t part[kMostRead];
  const auto read = sides.form == kScaledPanels && has_float_scales(sides.a) ? read_elements : read_values;
  for (int64_t p = 0; p < sides.parts; ++p) clear_row(sides, rows, i * sides.parts + p);
  for (int64_t first = 0; first < sides.length; first += kMostRead) {
    const int64_t count = least(kMostRead, sides.length - first);
    if (sides.parts > 1)
      read_values(sides.a, line, first, count, kFromFloat32, reinterpret_cast<uint8_t *>(values));
    else
      read(sides.a, line, first, count, kFromBfloat16, reinterpret_cast<uint8_t *>(part));
    for (int64_t p = 0; p < sides.parts; ++p) {
      if (sides.parts > 1) take_part(values, count, part);
      put_bfloats(sides, rows, i * sides.parts + p, first, part, count);
    }
  }
}

// --- The workspace ---------------------------------------------------------------------------

// Bytes of a row, with what its kernels read beyond the depth.
int64_t positions_of_row(const Sides &sides) {
  if (sides.form == kSpreadLines) return round_up(sides.depth, 2 * kSpread);
  if (sides.form == kElementLines) return round_up(sides.depth, kElementStep);
  if (sides.form == kRoundedLines) return round_up(sides.depth, kRoundedStep);
  return round_up(sides.depth, are_integer_panels(sides) ? kIntegerBlock : kFloatStep);
}

int64_t bytes_of_values(const Sides &sides) {
  const int64_t bytes = round_up(positions_of_row(sides) * item_of(sides), kLine), of_panel = kDepth * item_of(sides);
  if (are_in_bands(sides) && bytes > of_panel) return round_up(bytes, of_panel) | of_panel;
  return bytes | (item_of(sides) ? kLine : 0);
}

// Of `rows` rows, with those that complete a band.
int64_t bytes_of_values(const Sides &sides, int64_t rows) {
  const int64_t all = rows * sides.parts;
  return (are_in_bands(sides) ? round_up(all, kBand) : all) * bytes_of_values(sides);
}

int64_t blocks_of_row(const Sides &sides) {
  const bool has_blocks = are_integer_panels(sides) || sides.form == kScaledPanels;
  return has_blocks ? round_up(divide_up(positions_of_row(sides), sides.block), 16) : 0;
}

}  // namespace

int64_t bytes_of_rows(const Sides &sides, int64_t rows) {
  if (sides.length > kMostPositions) return kTooManyBytes;
  return bytes_of_values(sides, rows) + rows * sides.parts * blocks_of_row(sides) * 8;
}

PreparedRows place_rows(const Sides &sides, int64_t rows, uint8_t *workspace) {
  const int64_t values = bytes_of_values(sides), blocks = blocks_of_row(sides);
  int32_t *const corrections = reinterpret_cast<int32_t *>(workspace + bytes_of_values(sides, rows));
  float *const scales = reinterpret_cast<float *>(corrections + rows * blocks);
  return {workspace, corrections, scales, item_of(sides) ? values / item_of(sides) : 0, blocks, 0, nullptr};
}

void prepare_row(const Sides &sides, const PreparedRows &rows, int64_t i) {
  const int64_t line = line_of(rows, i);
  if (sides.form == kBlockLines || sides.length == 0) return;
  if (are_integer_panels(sides)) return prepare_integers(sides, rows, i, line);
  if (sides.form == kScaledPanels) prepare_scales(sides, rows, i, line);
  if (!has_floats(sides)) return prepare_bfloats(sides, rows, i, line);
  read_line(sides.a, line, 0, sides.length, rows.pitch, kFromFloat32, rows.values + i * rows.pitch * item_of(sides));
}

uint8_t *values_of(const Sides &sides, const PreparedRows &rows, int64_t row, int64_t first) {
  return rows.values + (row * rows.pitch + first * (are_in_bands(sides) ? kBand : 1)) * item_of(sides);
}

IntegerRows integers_of(const Sides &sides, const PreparedRows &rows, int64_t row, int64_t first) {
  const int64_t block = row * rows.block_pitch + first / sides.block;
  return {reinterpret_cast<const int8_t *>(values_of(sides, rows, row, first)), rows.corrections + block,
          rows.scales + block, rows.pitch, rows.block_pitch};
}

BfloatRows bfloats_of(const Sides &sides, const PreparedRows &rows, int64_t row, int64_t first) {
  const uint16_t *const values = reinterpret_cast<const uint16_t *>(values_of(sides, rows, row, first));
  return {values, rows.scales + row * rows.block_pitch + first / sides.block, rows.pitch, rows.block_pitch};
}

}  // namespace dlfp4
