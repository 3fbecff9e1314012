// The two sides of a matrix product, and the form in which they are multiplied.
#include "sides.h"

#include "rules/numerics.h"
#include "rules/sums.h"

namespace dlfp4 {
namespace {

constexpr int64_t kMostBlockRows = 2;  // that are multiplied as both sides lie; of other lines LineKernels knows
constexpr int64_t kLeastColumns = 64;  // for which it pays to make integers of a row of FP4

int significant_bits(int row) { return 1 + kTypes[row].mantissa; }

// Whether a bfloat16 holds elements times scales, without the factor. A product needs the bits of both; a power of two
// needs none.
bool fits_bfloat16(const Reader &reader) {
  constexpr int kMost = 1 + kTypes[DLFP4_bfloat16].mantissa;
  if (!reader.scaled) return reader.row == DLFP4_bfloat16 || kTypes[reader.row].bits <= 8;
  const int of_scale = significant_bits(reader.format.row->scale);
  return significant_bits(reader.row) + (of_scale > 1 ? of_scale : 0) <= kMost;
}

bool is_whole(const Sides &sides) { return sides.length % sides.b.format.block == 0; }

// How many bfloat16 make up one of a's elements: float16 has 11 bits; all others are read as float32, which has 24.
int64_t parts_of(const Reader &reader) {
  if (fits_bfloat16(reader)) return 1;
  return reader.row == DLFP4_float16 ? 2 : 3;
}

// Whether blocks are summed before b's float32 scales multiply them, and a's, if its blocks are as long.
bool can_scale_sums(const Sides &sides, int64_t parts) {
  const TileKernels &tiles = sides.kernels->tiles;
  const bool scales_a = has_float_scales(sides.a) && sides.a.format.block == sides.b.format.block;
  return tiles.multiply_scaled_bfloats && tiles.pack_elements[sides.b.row] && has_float_scales(sides.b) &&
         (parts == 1 || scales_a);
}

// Whether a kernel takes b's lines as they lie. Their scales need not fit a bfloat16: they do not multiply elements.
bool has_line_elements(const Sides &sides) {
  const bool is_long = !sides.b.scaled || sides.b.format.block >= kLeastElementBlock;
  return is_long && sides.kernels->lines.multiply_elements[sides.b.row] && lies_in_bytes(sides.b);
}

Form choose_floats(const Sides &sides, int64_t rows) {
  return rows <= sides.kernels->lines.most_float_rows ? kFloatLines : kFloatPanels;
}

// Parts cost less than float32 for very few rows, which meet codes that are decoded in less time, and by tiles.
Form choose_fp4(const Sides &sides, int64_t rows, int64_t parts) {
  const LineKernels &lines = sides.kernels->lines;
  const TileKernels &tiles = sides.kernels->tiles;
  if (rows * parts <= lines.most_bfloat_rows && lines.multiply_spread[sides.b.format.key]) return kSpreadLines;
  if (tiles.multiply_bfloats && (parts == 1 || tiles.take_bands)) return kBfloatPanels;
  return choose_floats(sides, rows);
}

// Lines of bfloat16, which are not decoded, take twice as many rows, but no parts: as float32 they cost as little.
int64_t most_element_rows(const Sides &sides, int64_t parts) {
  const int64_t most = sides.kernels->lines.most_bfloat_rows;
  return kTypes[sides.b.row].bits <= 8 ? most : parts == 1 ? 2 * most : 0;
}

Form choose_values(const Sides &sides, int64_t rows, int64_t parts) {
  const bool is_exact = parts == 1 || kTypes[sides.b.row].specials != DLFP4_IEEE;  // a part of 0 makes NaN of infinity
  if (rows * parts <= most_element_rows(sides, parts) && is_exact && has_line_elements(sides)) return kElementLines;
  if (sides.kernels->tiles.multiply_bfloats && parts == 1 && fits_bfloat16(sides.b)) return kBfloatPanels;
  if (can_scale_sums(sides, parts)) return kScaledPanels;
  return choose_floats(sides, rows);
}

int64_t block_of(const Sides &sides) {
  if (!is_scaled_fp4(sides.b)) return sides.b.format.block;
  const int64_t of_b = least(kMostFp4Block, sides.b.format.block);
  return is_scaled_fp4(sides.a) ? least(of_b, sides.a.format.block) : of_b;
}

// Powers of two, of which elements times the largest and the smallest leave bfloat16.
bool has_power_scales(const Reader &reader) { return significant_bits(reader.format.row->scale) == 1; }

// Both sides as integers, or by tiles that rows fill as bfloat16, whose sums no scales interrupt; a's blocks are b's
// or longer where lines serve. Blocks are multiplied as they lie where levels have no such lines, or rows meet few
// columns.
Form choose_integers(const Sides &sides, int64_t rows, bool as_they_lie) {
  const bool by_blocks = as_they_lie && rows <= kMostBlockRows;
  const LineKernels &lines = sides.kernels->lines;
  const bool by_lines = rows <= lines.most_rounded_rows && lines.multiply_rounded[sides.b.format.key] &&
                        block_of(sides) == sides.b.format.block;
  if (by_lines && !(by_blocks && sides.columns < kLeastColumns)) return kRoundedLines;
  if (by_blocks) return kBlockLines;
  const bool are_exact = !sides.rounds && !has_power_scales(sides.a) && !has_power_scales(sides.b);
  return are_exact && sides.kernels->tiles.take_bands && rows >= kBand ? kBfloatPanels : kIntegerPanels;
}

Form form_of(const Sides &sides, int64_t rows) {
  const bool fp4 = is_scaled_fp4(sides.b), both = fp4 && is_scaled_fp4(sides.a);
  const int64_t parts = parts_of(sides.a);
  if (!sides.rounds && !both) return fp4 ? choose_fp4(sides, rows, parts) : choose_values(sides, rows, parts);
  return choose_integers(sides, rows, both && sides.a.format.key == sides.b.format.key && is_whole(sides));
}

// Positions to which a row is completed, for kernels that take whole blocks of FP4 or the codes of a dword.
int64_t depth_of(const Sides &sides) {
  const bool any = has_floats(sides) || sides.form == kElementLines;
  return round_up(sides.length, any ? 1 : is_scaled_fp4(sides.b) ? sides.block : 4);
}

bool is_activation(int number) { return number == DLFP4_ACTIVATION_EXACT || number == DLFP4_ACTIVATION_INT8; }

}  // namespace

bool has_float_scales(const Reader &reader) {
  return reader.scaled && reader.format.row->kind == DLFP4_LARGEST && !reader.format.integers;
}

bool lies_in_bytes(const Reader &reader) {
  return (reader.scaled || kTypes[reader.row].bits >= 8) && step_of(reader.lines->blocks) == 1;
}

bool is_scaled_fp4(const Reader &reader) { return reader.scaled && is_fp4(kBlockKeys[reader.format.key]); }

dlfp4_status make_sides(const Product &product, int level, Sides *sides) {
  *sides = {};
  if (!is_activation(product.activation)) return DLFP4_E_OPTION;
  dlfp4_status status = make_reader(product.a, level, &sides->a);
  if (status == DLFP4_OK) status = make_reader(product.b, level, &sides->b);
  if (status != DLFP4_OK) return status;
  if (least(product.a.blocks.length, product.b.blocks.length) < product.length) return DLFP4_E_SHAPE;
  if (!is_value(sides->a) || !is_value(sides->b)) return DLFP4_E_DTYPE;
  sides->kernels = &product_kernels(level);
  sides->rounds = product.activation == DLFP4_ACTIVATION_INT8;
  if (sides->rounds && (sides->a.scaled || !is_scaled_fp4(sides->b))) return DLFP4_E_OPTION;
  sides->columns = product.columns;
  sides->length = product.length;
  choose_form(sides, product.rows);
  return DLFP4_OK;
}

void choose_form(Sides *sides, int64_t rows) {
  sides->form = form_of(*sides, rows);
  sides->parts = item_of(*sides) != 2 || sides->form == kScaledPanels ? 1 : parts_of(sides->a);
  sides->block = block_of(*sides);
  sides->depth = depth_of(*sides);
}

}  // namespace dlfp4
