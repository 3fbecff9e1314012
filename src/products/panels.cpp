// Matrix products by panels: some lines of the second side, transposed and decoded once for all rows.
#include "panels.h"

#include <string.h>

namespace dlfp4 {
namespace {

// The positions [first, first + depth) of some lines of b.
struct Strip {
  int64_t column, columns;
  int64_t first, depth;
};

// Its scales: a row of the panel a block of `block`. b's own blocks may be a multiple of that.
void fill_scales(const Sides &sides, const Strip &strip, int64_t block, float *panel) {
  constexpr int64_t kMost = kDepth / 16, kRow = kColumns * sizeof(float);
  const uint8_t *stored[kColumns];
  uint8_t buffer[kColumns][kMost];
  const int64_t count = divide_up(strip.depth, sides.b.format.block), repeats = sides.b.format.block / block;
  for (int64_t c = 0; c < strip.columns; ++c)
    stored[c] = read_stored_scales(sides.b, strip.column + c, strip.first, strip.depth, buffer[c]);
  sides.kernels->tiles.pack_scales[sides.b.format.key](stored, strip.columns, count, panel);
  for (int64_t k = strip.depth / block - 1; repeats > 1 && k > 0; --k)
    memmove(panel + k * kColumns, panel + k / repeats * kColumns, kRow);
}

constexpr int64_t kPrefetched = 4096;    // positions, of whole panels: the L2 cache holds them of all lines
constexpr int64_t kMostAhead = 1 << 19;  // bytes, for the same reason

constexpr int64_t kMostItem = sizeof(float);

struct Panel {
  alignas(64) uint8_t values[kDepth * kColumns * kMostItem / 2];
  alignas(64) float scales[kDepth / 16 * kColumns];
};

// Positions of a panel: float32 is twice as wide. Of rows in bands the L2 cache holds those that are multiplied, those
// that come next, and totals.
int64_t panel_depth(const Sides &sides) {
  return sides.form == kFloatPanels || are_in_bands(sides) ? kDepth / 2 : kDepth;
}

// Packed codes of positions up to the length. Those beyond it in the same block become zeros, whatever lies there:
// times the block's scale they could be infinite. `buffer` has room for `depth` codes.
const uint8_t *find_whole_pairs(const Sides &sides, int64_t line, int64_t first, int64_t depth, uint8_t *buffer) {
  const uint8_t *const codes = find_codes(sides.b, line, first);
  const int64_t count = sides.length - first;
  if (count >= depth) return codes;
  memset(buffer, 0, static_cast<size_t>(depth / 2));
  copy_codes(buffer, codes, 4 * count);
  return buffer;
}

void fill_fp4(const Sides &sides, const Strip &strip, Panel *panel) {
  uint8_t buffer[kColumns][kDepth / 2];
  const uint8_t *codes[kColumns];
  const TileKernels &tiles = sides.kernels->tiles;
  for (int64_t c = 0; c < strip.columns; ++c)
    codes[c] = find_whole_pairs(sides, strip.column + c, strip.first, strip.depth, buffer[c]);
  fill_scales(sides, strip, sides.block, panel->scales);
  if (sides.form == kIntegerPanels) return tiles.pack_integers(codes, strip.columns, strip.depth, panel->values);
  tiles.pack_scaled_bfloats(codes, strip.columns, strip.depth, panel->scales, sides.block,
                            reinterpret_cast<uint16_t *>(panel->values));
}

// Float32 scales as they are, and zeros for lines that are not there.
void fill_float_scales(const Sides &sides, const Strip &strip, float *panel) {
  float scales[kDepth / 16];
  const int64_t count = divide_up(strip.depth, sides.block);
  memset(panel, 0, static_cast<size_t>(count * kColumns) * sizeof(float));
  for (int64_t c = 0; c < strip.columns; ++c) {
    read_scales(sides.b, strip.column + c, strip.first, strip.depth, scales);
    for (int64_t b = 0; b < count; ++b) panel[b * kColumns + c] = scales[b];
  }
}

// `count` codes one a byte, from where they lie, or in `buffer`, completed with zeros to `depth`.
const uint8_t *read_whole_codes(const Reader &reader, int64_t line, int64_t first, int64_t count, int64_t depth,
                                uint8_t *buffer) {
  const uint8_t *const codes = read_codes(reader, line, first, count, buffer);
  if (count == depth) return codes;
  if (codes != buffer) memcpy(buffer, codes, static_cast<size_t>(count));
  memset(buffer + count, 0, static_cast<size_t>(depth - count));
  return buffer;
}

// Elements of at most 8 bits, times their scales unless these multiply sums.
void fill_elements(const Sides &sides, const Strip &strip, Panel *panel) {
  constexpr int64_t kPitch = 256;  // a multiple of the blocks whose scales are applied here
  const bool scales_elements = sides.b.scaled && sides.form == kBfloatPanels;
  const int64_t block = scales_elements ? sides.b.format.block : kPitch;
  uint8_t buffer[kColumns][kPitch];
  const uint8_t *codes[kColumns];
  uint16_t *const values = reinterpret_cast<uint16_t *>(panel->values);
  if (scales_elements) fill_scales(sides, strip, block, panel->scales);
  if (sides.form == kScaledPanels) fill_float_scales(sides, strip, panel->scales);
  for (int64_t k = 0; k < strip.depth; k += kPitch) {
    const int64_t here = least(kPitch, strip.depth - k), count = least(here, sides.length - strip.first - k);
    for (int64_t c = 0; c < strip.columns; ++c)
      codes[c] = read_whole_codes(sides.b, strip.column + c, strip.first + k, count, here, buffer[c]);
    const float *const scales = scales_elements ? panel->scales + k / block * kColumns : nullptr;
    sides.kernels->tiles.pack_elements[sides.b.row](codes, strip.columns, here, scales, block, values + k * kColumns);
  }
}

// Elements of more bits, and all elements at levels without a kernel for the above.
void fill_values(const Sides &sides, const Strip &strip, Panel *panel) {
  constexpr int64_t kPitch = 256;
  alignas(64) uint8_t rows[kColumns * kPitch * kMostItem];
  const TileKernels &tiles = sides.kernels->tiles;
  const int64_t item = item_of(sides);
  memset(rows + strip.columns * kPitch * item, 0, static_cast<size_t>((kColumns - strip.columns) * kPitch * item));
  for (int64_t k = 0; k < strip.depth; k += kPitch) {
    const int64_t here = least(kPitch, strip.depth - k), count = least(here, sides.length - strip.first - k);
    for (int64_t c = 0; c < strip.columns; ++c)
      read_line(sides.b, strip.column + c, strip.first + k, count, here,
                has_floats(sides) ? kFromFloat32 : kFromBfloat16, rows + c * kPitch * item);
    uint8_t *const place = panel->values + k * kColumns * item;
    if (sides.form == kFloatPanels)
      tiles.pack_floats(reinterpret_cast<float *>(rows), kPitch, here, reinterpret_cast<float *>(place));
    else
      tiles.pack_bfloats(reinterpret_cast<uint16_t *>(rows), kPitch, here, reinterpret_cast<uint16_t *>(place));
  }
}

void fill_panel(const Sides &sides, const Strip &strip, Panel *panel) {
  if (sides.form != kFloatPanels && is_scaled_fp4(sides.b)) return fill_fp4(sides, strip, panel);
  if (!has_floats(sides) && sides.kernels->tiles.pack_elements[sides.b.row]) return fill_elements(sides, strip, panel);
  fill_values(sides, strip, panel);
}

void multiply_panel(const Tile &tile, const Strip &strip, const Panel &panel, const Ahead &ahead) {
  const Sides &sides = tile.sides;
  const PreparedRows &rows = tile.rows;
  const TileKernels &tiles = sides.kernels->tiles;
  const int64_t first = strip.first, depth = strip.depth;
  const uint8_t *const values = values_of(sides, rows, tile.row, first);
  const auto *const bfloats = reinterpret_cast<const uint16_t *>(panel.values);
  double *const totals = tile.totals + (strip.column - tile.column) * tile.count;
  switch (sides.form) {
    case kBfloatPanels:
      return tiles.multiply_bfloats(bfloats, reinterpret_cast<const uint16_t *>(values), rows.pitch, depth, tile.count,
                                    ahead, totals);
    case kScaledPanels:
      return tiles.multiply_scaled_bfloats(bfloats, panel.scales, bfloats_of(sides, rows, tile.row, first), sides.block,
                                           depth, tile.count, ahead, totals);
    case kIntegerPanels:
      return tiles.multiply_integers(panel.values, panel.scales, integers_of(sides, rows, tile.row, first), sides.block,
                                     depth, tile.count, ahead, totals);
    default:
      return tiles.multiply_floats(reinterpret_cast<const float *>(panel.values),
                                   reinterpret_cast<const float *>(values), rows.pitch, depth, tile.count, totals);
  }
}

// --- What comes next -------------------------------------------------------------------------

// Asks for the codes of a tile's lines, one line after another: panels read a little of many lines in turn, which no
// prefetcher of the processor follows.
void prefetch_lines(const Sides &sides, int64_t column, int64_t columns, int64_t first) {
  if (dlfp4_dtypes[sides.b.row].bits > 8) return;
  const int64_t count = least(kPrefetched, sides.length - first);
  for (int64_t c = 0; c < columns; ++c) prefetch_codes(sides.b, column + c, first, count);
}

// Asks for the scales of the next tile's lines: they are few.
void prefetch_next_scales(const Sides &sides, int64_t column, int64_t columns) {
  const int64_t next = column + columns, lines = least(columns, sides.columns - next);
  for (int64_t c = 0; c < lines; ++c) prefetch_scales(sides.b, next + c, sides.length);
}

// The part of the next tile's lines to prefetch while the strip's panel is multiplied, if the lines lie one after
// another; otherwise memory that is in the cache anyway.
Ahead find_codes_ahead(const Sides &sides, const Strip &strip, int64_t columns, const Panel &panel) {
  const int64_t next = strip.column + round_up(columns, kColumns), lines = least(kColumns, sides.columns - next);
  const uint8_t *const from = lines > 0 ? find_codes(sides.b, next, 0) : nullptr;
  const uint8_t *const before = from ? find_codes(sides.b, next - 1, 0) : nullptr;
  const int64_t all = before ? lines * (from - before) : 0;
  if (all <= 0 || all > kMostAhead) return {panel.values, 0, panel.values, 0};
  return {from + all * strip.first / sides.depth, all * strip.depth / sides.depth, panel.values, 0};
}

// The same, and of the positions that come next, or of the first, the panel's share of rows that the cache does not
// hold from one tile to the next.
Ahead find_ahead(const Tile &tile, const Strip &strip, const Panel &panel) {
  constexpr int64_t kHeldRows = 1 << 20;  // bytes
  const Sides &sides = tile.sides;
  Ahead ahead = find_codes_ahead(sides, strip, tile.columns, panel);
  if (!are_in_bands(sides) || tile.count * sides.depth * item_of(sides) <= kHeldRows) return ahead;
  const int64_t share = panel_depth(sides) / kMostPanels, next = strip.first + panel_depth(sides);
  const int64_t first = (next < sides.depth ? next : 0) + (strip.column - tile.column) / kColumns * share;
  ahead.rows = values_of(sides, tile.rows, tile.row, first);
  ahead.row_bytes = share * kBand * item_of(sides);
  return ahead;
}

}  // namespace

void multiply_panels(const Tile &tile) {
  Panel panel;
  const Sides &sides = tile.sides;
  prefetch_next_scales(sides, tile.column, tile.columns);
  for (int64_t first = 0; first < sides.depth; first += panel_depth(sides)) {
    if ((tile.column == 0 || has_floats(sides)) && first % kPrefetched == 0)
      prefetch_lines(sides, tile.column, tile.columns, first);
    for (int64_t c = 0; c < tile.columns; c += kColumns) {
      const Strip strip = {tile.column + c, least(kColumns, tile.columns - c), first,
                           least(panel_depth(sides), sides.depth - first)};
      const Ahead ahead = find_ahead(tile, strip, panel);
      fill_panel(sides, strip, &panel);
      multiply_panel(tile, strip, panel, ahead);
    }
  }
}

}  // namespace dlfp4
