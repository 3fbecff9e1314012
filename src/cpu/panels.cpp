// The two sides of a matrix product as its kernels want them: rows of a prepared once, panels of b made on the way.
// Layout: see panels.h.
// Trick: FP4 is unpacked, scaled and transposed in one go; other elements are decoded line by line, then transposed.
#include "panels.h"

#include <math.h>
#include <string.h>

#include "../numerics.h"
#include "product_rules.h"

namespace dlfp4 {
namespace {

constexpr int64_t kMostBlockRows = 2;     // that are multiplied as both sides lie
constexpr int64_t kMostSpreadRows = 8;    // that are multiplied by lines, not panels
constexpr int64_t kMostRowsInParts = 32;  // of float32
constexpr int64_t kLine = 64;             // bytes of a cache line
constexpr int64_t kIntegerBlock = 32;     // of floats that are rounded to int8
constexpr float kLargestInteger = 127;
constexpr float kLeastMagnitude = 0x1p-110f;  // of a block of floats: smaller ones are zeros

// --- The form --------------------------------------------------------------------------------

bool is_value(const Reader &reader) {
  return reader.scaled || is_summed_as_float(reader.row) || (is_integer(reader.row) && is_float(kFormats[reader.row]));
}

bool is_scaled_e2m1(const Reader &reader) { return reader.scaled && reader.format.element == kE2m1; }

// Elements times scales, but for the factor: FP4, FP6 and FP8 times a power of two or a float8 has few enough bits.
bool fits_bfloat16(const Reader &reader) {
  if (reader.scaled) return reader.format.row->kind != DLFP4_LARGEST;
  return reader.row == DLFP4_bfloat16 || kFormats[reader.row].bits <= 8;
}

bool is_whole(const Sides &sides) { return sides.length % sides.b.format.block == 0; }

// How many bfloat16 make up one of a's elements: float16 has 11 bits, float32 24. 0: they are no floats of their own.
int64_t parts_of(const Reader &reader) {
  if (fits_bfloat16(reader)) return 1;
  return reader.scaled ? 0 : reader.row == DLFP4_float16 ? 2 : 3;
}

// Parts cost less than float32 where b is FP4, which is then not decoded to it.
void choose_bfloats(Sides *sides, int64_t rows) {
  const int64_t parts = parts_of(sides->a);
  const bool fp4 = is_scaled_e2m1(sides->b);
  if (!sides->kernels->tiles.multiply_bfloats || !fits_bfloat16(sides->b) || parts == 0) return;
  if (parts > 1 && !fp4) return;
  if (parts > 2 && rows > kMostRowsInParts) return;
  sides->form = fp4 && rows * parts <= kMostSpreadRows ? kSpreadForm : kBfloatForm;
  sides->parts = parts;
}

void choose_form(Sides *sides, int64_t rows) {
  const bool fp4 = is_scaled_e2m1(sides->b), both = fp4 && is_scaled_e2m1(sides->a);
  sides->form = kFloatForm;
  sides->parts = 1;
  if (sides->rounds)
    sides->form = kIntegerForm;
  else if (both && rows <= kMostBlockRows && sides->a.format.block == sides->b.format.block && is_whole(*sides))
    sides->form = kBlockForm;
  else if (both)
    sides->form = kIntegerForm;
  else
    choose_bfloats(sides, rows);
}

int64_t round_up(int64_t value, int64_t multiple) { return divide_up(value, multiple) * multiple; }

// --- Rows of a -------------------------------------------------------------------------------

// Bytes of an element of a row.
int64_t item_of(const Sides &sides) {
  constexpr int64_t kItems[] = {4, 2, 1, 2, 0};
  return kItems[sides.form];
}

// Of a row in the workspace: an odd number of cache lines, so that the same position of several rows does not fall into
// one set of the cache.
int64_t bytes_of_values(const Sides &sides) {
  const int64_t positions = sides.form == kSpreadForm ? round_up(sides.depth, 2 * kSpread) : sides.depth;
  return round_up(positions * item_of(sides), kLine) | (item_of(sides) ? kLine : 0);
}

int64_t blocks_of_row(const Sides &sides) {
  return sides.form == kIntegerForm ? round_up(sides.depth / sides.block, 16) : 0;
}

Source source_of(const Sides &sides) { return sides.form == kFloatForm ? kFromFloat32 : kFromBfloat16; }

// Values of a line in pieces that a reader takes, completed with zeros.
void read_line(const Reader &reader, int64_t line, int64_t first, int64_t count, int64_t depth, Source type,
               uint8_t *values) {
  const int64_t item = type == kFromFloat32 ? 4 : 2;
  for (int64_t done = 0; done < count; done += kMostRead)
    read_values(reader, line, first + done, least(kMostRead, count - done), type, values + done * item);
  memset(values + count * item, 0, static_cast<size_t>((depth - count) * item));
}

// Of a block of floats, integers and the scale; a block that is not finite is NaN as a whole.
float round_block(const float *values, int64_t count, int8_t *x, int64_t first) {
  float largest = 0, sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float magnitude = fabsf(values[i]);
    largest = magnitude > largest ? magnitude : largest;
    sum += magnitude - magnitude;  // NaN, where one is not finite
  }
  if (largest < kLeastMagnitude) largest = 0;
  const float multiplier = largest > 0 && sum == 0 ? kLargestInteger / largest : 0;
  for (int64_t i = 0; i < count; ++i) {
    const float scaled = values[i] * multiplier;
    x[spread_integer(first + i)] = sum == 0 ? static_cast<int8_t>(lrintf(scaled)) : int8_t{0};
  }
  return sum == 0 ? largest / kLargestInteger : sum;
}

void round_row(const Sides &sides, int64_t line, int8_t *x, float *scales) {
  alignas(64) float values[kMostRead];
  memset(x, 0, static_cast<size_t>(sides.depth));
  for (int64_t first = 0; first < sides.length; first += kMostRead) {
    const int64_t count = least(kMostRead, sides.length - first);
    read_values(sides.a, line, first, count, kFromFloat32, reinterpret_cast<uint8_t *>(values));
    for (int64_t i = 0; i < count; i += kIntegerBlock) {
      const float scale = round_block(values + i, least(kIntegerBlock, count - i), x, first + i);
      const int64_t last = least(first + i + kIntegerBlock, sides.depth);
      for (int64_t k = first + i; k < last; k += sides.block) scales[k / sides.block] = scale;
    }
  }
}

// A row of FP4; what lies beyond the length does not count.
void spread_row(const Sides &sides, int64_t line, int8_t *x, float *scales) {
  float read[kMostRead / 16 + 1];
  sides.kernels->tiles.spread_integers(find_codes(sides.a, line, 0), sides.depth, x);
  for (int64_t k = sides.length; k < sides.depth; ++k) x[spread_integer(k)] = 0;
  for (int64_t first = 0; first < sides.depth; first += kMostRead) {
    const int64_t count = least(kMostRead, sides.depth - first);
    read_scales(sides.a, line, first, count, read);
    for (int64_t k = 0; k < count; k += sides.block) scales[(first + k) / sides.block] = read[k / sides.a.format.block];
  }
}

void prepare_integers(const Sides &sides, const Rows &rows, int64_t i, int64_t line) {
  int8_t *const x = reinterpret_cast<int8_t *>(rows.values) + i * rows.pitch;
  float *const scales = rows.scales + i * rows.block_pitch;
  if (sides.rounds)
    round_row(sides, line, x, scales);
  else
    spread_row(sides, line, x, scales);
  for (int64_t b = 0; b < sides.depth / sides.block; ++b) {
    int32_t sum = 0;
    for (int64_t k = b * sides.block; k < (b + 1) * sides.block; ++k) sum += x[k];
    rows.corrections[i * rows.block_pitch + b] = -kIntegerOffset * sum;
  }
}

// The first bits of `count` floats as bfloat16, and what is left of them; of NaN and infinity nothing is.
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

// A row as bfloat16, in as many rows as it has parts, each in order or in that of spread_bfloat.
void prepare_bfloats(const Sides &sides, const Rows &rows, int64_t i, int64_t line) {
  alignas(64) float values[kMostRead];
  alignas(64) uint16_t part[kMostRead];
  uint16_t *const x = reinterpret_cast<uint16_t *>(rows.values) + i * sides.parts * rows.pitch;
  memset(x, 0, static_cast<size_t>(sides.parts * rows.pitch) * sizeof(*x));
  for (int64_t first = 0; first < sides.length; first += kMostRead) {
    const int64_t count = least(kMostRead, sides.length - first);
    if (sides.parts > 1)
      read_values(sides.a, line, first, count, kFromFloat32, reinterpret_cast<uint8_t *>(values));
    else
      read_values(sides.a, line, first, count, kFromBfloat16, reinterpret_cast<uint8_t *>(part));
    for (int64_t p = 0; p < sides.parts; ++p) {
      if (sides.parts > 1) take_part(values, count, part);
      uint16_t *const row = x + p * rows.pitch;
      if (sides.form == kBfloatForm) memcpy(row + first, part, static_cast<size_t>(count) * sizeof(*part));
      for (int64_t k = 0; sides.form == kSpreadForm && k < count; ++k) row[spread_bfloat(first + k)] = part[k];
    }
  }
}

// --- Panels of b -----------------------------------------------------------------------------

// Scales of `columns` lines, a row of the panel a block of `block`, which b's own blocks may be a multiple of.
void fill_scales(const Sides &sides, int64_t column, int64_t columns, int64_t first, int64_t depth, int64_t block,
                 float *panel) {
  constexpr int64_t kMost = kDepth / 16, kRow = kColumns * sizeof(float);
  const uint8_t *stored[kColumns];
  uint8_t buffer[kColumns][kMost];
  const int64_t count = divide_up(depth, sides.b.format.block), repeats = sides.b.format.block / block;
  for (int64_t c = 0; c < columns; ++c) stored[c] = read_stored_scales(sides.b, column + c, first, depth, buffer[c]);
  sides.kernels->tiles.pack_scales[sides.b.format.row->kind](stored, columns, count, panel);
  for (int64_t k = depth / block - 1; repeats > 1 && k > 0; --k)
    memmove(panel + k * kColumns, panel + k / repeats * kColumns, kRow);
}

constexpr int64_t kMostItem = sizeof(float);

struct Panel {
  alignas(64) uint8_t values[kDepth * kColumns * kMostItem / 2];
  alignas(64) float scales[kDepth / 16 * kColumns];
};

// Positions of a panel: float32 is twice as wide.
int64_t panel_depth(const Sides &sides) { return sides.form == kFloatForm ? kDepth / 2 : kDepth; }

void fill_e2m1(const Sides &sides, int64_t column, int64_t columns, int64_t first, int64_t depth, Panel *panel) {
  const uint8_t *codes[kColumns];
  const TileKernels &tiles = sides.kernels->tiles;
  const int64_t block = sides.form == kIntegerForm ? sides.block : sides.b.format.block;
  for (int64_t c = 0; c < columns; ++c) codes[c] = find_codes(sides.b, column + c, first);
  fill_scales(sides, column, columns, first, depth, block, panel->scales);
  if (sides.form == kIntegerForm) return tiles.pack_integers(codes, columns, depth, panel->values);
  tiles.pack_scaled_bfloats(codes, columns, depth, panel->scales, block, reinterpret_cast<uint16_t *>(panel->values));
}

void fill_values(const Sides &sides, int64_t column, int64_t columns, int64_t first, int64_t depth, Panel *panel) {
  constexpr int64_t kPitch = 256;
  alignas(64) uint8_t rows[kColumns * kPitch * kMostItem];
  const TileKernels &tiles = sides.kernels->tiles;
  const int64_t item = item_of(sides);
  memset(rows + columns * kPitch * item, 0, static_cast<size_t>((kColumns - columns) * kPitch * item));
  for (int64_t k = 0; k < depth; k += kPitch) {
    const int64_t here = least(kPitch, depth - k), count = least(here, sides.length - first - k);
    for (int64_t c = 0; c < columns; ++c)
      read_line(sides.b, column + c, first + k, count, here, source_of(sides), rows + c * kPitch * item);
    uint8_t *const place = panel->values + k * kColumns * item;
    if (sides.form == kFloatForm)
      tiles.pack_floats(reinterpret_cast<float *>(rows), kPitch, here, reinterpret_cast<float *>(place));
    else
      tiles.pack_bfloats(reinterpret_cast<uint16_t *>(rows), kPitch, here, reinterpret_cast<uint16_t *>(place));
  }
}

void fill_panel(const Sides &sides, int64_t column, int64_t columns, int64_t first, int64_t depth, Panel *panel) {
  if (sides.form != kFloatForm && is_scaled_e2m1(sides.b))
    return fill_e2m1(sides, column, columns, first, depth, panel);
  fill_values(sides, column, columns, first, depth, panel);
}

void multiply_panel(const Sides &sides, const Rows &rows, int64_t row, int64_t count, int64_t first, int64_t depth,
                    const Panel &panel, double *totals) {
  const TileKernels &tiles = sides.kernels->tiles;
  const uint8_t *const values = rows.values + (row * rows.pitch + first) * item_of(sides);
  if (sides.form == kFloatForm)
    return tiles.multiply_floats(reinterpret_cast<const float *>(panel.values), reinterpret_cast<const float *>(values),
                                 rows.pitch, depth, count, totals);
  if (sides.form == kBfloatForm)
    return tiles.multiply_bfloats(reinterpret_cast<const uint16_t *>(panel.values),
                                  reinterpret_cast<const uint16_t *>(values), rows.pitch, depth, count, totals);
  const int64_t block = row * rows.block_pitch + first / sides.block;
  const IntegerRows x = {reinterpret_cast<const int8_t *>(values), rows.corrections + block, rows.scales + block,
                         rows.pitch, rows.block_pitch};
  tiles.multiply_integers(panel.values, panel.scales, x, sides.block, depth, count, totals);
}

// --- Without panels --------------------------------------------------------------------------

// All lines by the positions that the rows have room for in the L1 cache, then by the next ones.
void multiply_spread(const Sides &sides, const Rows &rows, int64_t row, int64_t count, int64_t column, int64_t columns,
                     double *totals) {
  constexpr int64_t kPositionsInCache = 1 << 14;
  uint8_t buffer[kMostSummed / 16];
  const auto multiply = sides.kernels->tiles.multiply_spread[sides.b.format.row->kind];
  const uint16_t *const x = reinterpret_cast<const uint16_t *>(rows.values) + row * rows.pitch;
  const int64_t most = kPositionsInCache / least(count, 8) / kDepth * kDepth;
  for (int64_t first = 0; first < sides.depth; first += most) {
    const int64_t depth = least(most, sides.depth - first);
    for (int64_t c = 0; c < columns; ++c) {
      const uint8_t *const scales = read_stored_scales(sides.b, column + c, first, depth, buffer);
      const uint8_t *const codes = find_codes(sides.b, column + c, first);
      multiply(codes, scales, x + first, rows.pitch, depth, count, totals + c);
    }
  }
}

double multiply_blocks(const Sides &sides, int64_t a_line, int64_t b_line) {
  uint8_t a_buffer[kMostSummed / 16], b_buffer[kMostSummed / 16];
  const auto sum = sides.kernels->sum_blocks[sides.b.format.row->kind];
  double total = 0;
  for (int64_t first = 0; first < sides.depth; first += kMostSummed) {
    const int64_t depth = least(kMostSummed, sides.depth - first);
    const uint8_t *const a_scales = read_stored_scales(sides.a, a_line, first, depth, a_buffer);
    const uint8_t *const b_scales = read_stored_scales(sides.b, b_line, first, depth, b_buffer);
    total += sum(find_codes(sides.a, a_line, first), a_scales, find_codes(sides.b, b_line, first), b_scales, depth);
  }
  return total;
}

}  // namespace

dlfp4_status make_sides(const dlfp4_lines &a, const dlfp4_lines &b, int64_t rows, int64_t length,
                        dlfp4_activation activation, int level, Sides *sides) {
  *sides = {};
  dlfp4_status status = make_reader(a, level, &sides->a);
  if (status == DLFP4_OK) status = make_reader(b, level, &sides->b);
  if (status != DLFP4_OK) return status;
  if (a.blocks.length < length || b.blocks.length < length) return DLFP4_E_SHAPE;
  if (!is_value(sides->a) || !is_value(sides->b)) return DLFP4_E_DTYPE;
  sides->kernels = &product_kernels(level);
  sides->rounds = activation == DLFP4_ACTIVATION_INT8;
  if (sides->rounds && (sides->a.scaled || !is_scaled_e2m1(sides->b))) return DLFP4_E_OPTION;
  sides->length = length;
  choose_form(sides, rows);
  sides->block = is_scaled_e2m1(sides->b) ? sides->b.format.block : 2;
  if (is_scaled_e2m1(sides->a)) sides->block = least(sides->block, sides->a.format.block);
  sides->depth = round_up(length, sides->form == kFloatForm ? 1 : sides->block);
  return DLFP4_OK;
}

double units_of(const Sides &sides) { return sides.form != kIntegerForm ? 1 : sides.rounds ? 2 : 4; }

int64_t bytes_of_rows(const Sides &sides, int64_t rows) {
  return rows * sides.parts * (bytes_of_values(sides) + blocks_of_row(sides) * 8);
}

Rows place_rows(const Sides &sides, int64_t rows, uint8_t *workspace) {
  const int64_t values = bytes_of_values(sides), blocks = blocks_of_row(sides);
  int32_t *const corrections = reinterpret_cast<int32_t *>(workspace + rows * sides.parts * values);
  float *const scales = reinterpret_cast<float *>(corrections + rows * blocks);
  return {workspace, corrections, scales, item_of(sides) ? values / item_of(sides) : 0, blocks, 0};
}

void prepare_row(const Sides &sides, const Rows &rows, int64_t i) {
  const int64_t line = rows.first_line + i;
  if (sides.form == kBlockForm) return;
  if (sides.form == kIntegerForm) return prepare_integers(sides, rows, i, line);
  if (sides.form != kFloatForm) return prepare_bfloats(sides, rows, i, line);
  read_line(sides.a, line, 0, sides.length, sides.depth, source_of(sides),
            rows.values + i * rows.pitch * item_of(sides));
}

namespace {

// All parts of the rows.
void multiply_parts(const Sides &sides, const Rows &rows, int64_t row, int64_t count, int64_t column, int64_t columns,
                    double *totals) {
  Panel panel;
  if (sides.form == kSpreadForm)
    multiply_spread(sides, rows, row, count, column, columns, totals);
  else if (sides.form == kBlockForm)
    for (int64_t c = 0; c < columns; ++c)
      for (int64_t i = 0; i < count; ++i)
        totals[i * kColumns + c] = multiply_blocks(sides, rows.first_line + row + i, column + c);
  else
    for (int64_t first = 0; first < sides.depth; first += panel_depth(sides)) {
      const int64_t depth = least(panel_depth(sides), sides.depth - first);
      fill_panel(sides, column, columns, first, depth, &panel);
      multiply_panel(sides, rows, row, count, first, depth, panel, totals);
    }
}

}  // namespace

void multiply_lines(const Sides &sides, const Rows &rows, int64_t row, int64_t count, int64_t column, int64_t columns,
                    double *totals) {
  const int64_t parts = sides.parts;
  multiply_parts(sides, rows, row * parts, count * parts, column, columns, totals);
  for (int64_t i = 0; parts > 1 && i < count; ++i)
    for (int64_t c = 0; c < kColumns; ++c) {
      double total = 0;
      for (int64_t p = 0; p < parts; ++p) total += totals[(i * parts + p) * kColumns + c];
      totals[i * kColumns + c] = total;
    }
}

}  // namespace dlfp4
