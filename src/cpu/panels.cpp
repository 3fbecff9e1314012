// Matrix products by panels: some lines of the second side, transposed and decoded once for all rows.
// Layout: see panels.h.
// Trick: see panels.h.
#include "panels.h"

#include <string.h>

namespace dlfp4 {
namespace {

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
int64_t panel_depth(const Sides &sides) { return sides.form == kFloatPanels ? kDepth / 2 : kDepth; }

void fill_e2m1(const Sides &sides, int64_t column, int64_t columns, int64_t first, int64_t depth, Panel *panel) {
  const uint8_t *codes[kColumns];
  const TileKernels &tiles = sides.kernels->tiles;
  const int64_t block = sides.form == kIntegerPanels ? sides.block : sides.b.format.block;
  for (int64_t c = 0; c < columns; ++c) codes[c] = find_codes(sides.b, column + c, first);
  fill_scales(sides, column, columns, first, depth, block, panel->scales);
  if (sides.form == kIntegerPanels) return tiles.pack_integers(codes, columns, depth, panel->values);
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
      read_line(sides.b, column + c, first + k, count, here, has_floats(sides) ? kFromFloat32 : kFromBfloat16,
                rows + c * kPitch * item);
    uint8_t *const place = panel->values + k * kColumns * item;
    if (sides.form == kFloatPanels)
      tiles.pack_floats(reinterpret_cast<float *>(rows), kPitch, here, reinterpret_cast<float *>(place));
    else
      tiles.pack_bfloats(reinterpret_cast<uint16_t *>(rows), kPitch, here, reinterpret_cast<uint16_t *>(place));
  }
}

void fill_panel(const Sides &sides, int64_t column, int64_t columns, int64_t first, int64_t depth, Panel *panel) {
  if (sides.form != kFloatPanels && is_scaled_e2m1(sides.b))
    return fill_e2m1(sides, column, columns, first, depth, panel);
  fill_values(sides, column, columns, first, depth, panel);
}

void multiply_panel(const Sides &sides, const Rows &rows, int64_t row, int64_t count, int64_t first, int64_t depth,
                    const Panel &panel, double *totals) {
  const TileKernels &tiles = sides.kernels->tiles;
  const uint8_t *const values = rows.values + (row * rows.pitch + first) * item_of(sides);
  if (sides.form == kFloatPanels)
    return tiles.multiply_floats(reinterpret_cast<const float *>(panel.values), reinterpret_cast<const float *>(values),
                                 rows.pitch, depth, count, totals);
  if (sides.form == kBfloatPanels)
    return tiles.multiply_bfloats(reinterpret_cast<const uint16_t *>(panel.values),
                                  reinterpret_cast<const uint16_t *>(values), rows.pitch, depth, count, totals);
  tiles.multiply_integers(panel.values, panel.scales, integers_of(sides, rows, row, first), sides.block, depth, count,
                          totals);
}

}  // namespace

void multiply_panels(const Sides &sides, const Rows &rows, int64_t row, int64_t count, int64_t column, int64_t columns,
                     double *totals) {
  Panel panel;
  for (int64_t first = 0; first < sides.depth; first += panel_depth(sides)) {
    const int64_t depth = least(panel_depth(sides), sides.depth - first);
    fill_panel(sides, column, columns, first, depth, &panel);
    multiply_panel(sides, rows, row, count, first, depth, panel, totals);
  }
}

}  // namespace dlfp4
