// dlfp4_quantize, dlfp4_dequantize and dlfp4_convert_scales: the scalar level's bytes at every level.
// Layout: see c_api.h.
// Trick: see c_api.h.
#include "c_api.h"
#include "rules/layouts.h"

namespace fuzz {
namespace {

int64_t any_extent(Bytes *input) { return input->one_of({1, 2, 16, 32, 48, 64, 128, 3, 7, 0, 33, 130}); }

int any_floats(Bytes *input) {
  return input->chance(24) ? input->below(DLFP4_NUM_DTYPES)
                           : input->one_of<int>({DLFP4_float32, DLFP4_bfloat16, DLFP4_float16});
}

bool are_floats(int dtype) { return dtype == DLFP4_float32 || dtype == DLFP4_bfloat16 || dtype == DLFP4_float16; }

// A matrix, or more dimensions that count as one.
Tensor make_values(Bytes *input, Arena *arena, int dtype, int64_t rows, int64_t columns, bool is_result) {
  if (rows % 2 == 0 && input->chance(4)) return make_compact(input, arena, dtype, {2, rows / 2, columns});
  return make_any(input, arena, dtype, {rows, columns}, is_result);
}

struct Matrix {
  int format, axis, layout, dtype;
  int64_t rows, columns;
};

Matrix any_matrix(Bytes *input) {
  Matrix m = {};
  m.format = input->below(DLFP4_NUM_FORMATS);
  m.axis = input->chance(2) ? -2 : -1;
  m.layout = input->chance(4) ? input->below(DLFP4_NUM_LAYOUTS) : 0;
  m.dtype = any_floats(input);
  m.rows = any_extent(input);
  m.columns = any_extent(input);
  if (m.rows * m.columns > 6000) throw Dropped();
  return m;
}

// Fields of a recipe that are known, and now and then others.
dlfp4_recipe any_recipe(Bytes *input, int format) {
  dlfp4_recipe recipe;
  require(dlfp4_default_recipe(format, &recipe) == DLFP4_OK, "a format without a recipe");
  const auto choose = [&](auto *field, int bound) {
    const int value = input->chance(64) ? static_cast<int>(input->edge()) : input->below(bound);
    memcpy(field, &value, sizeof(*field));
  };
  choose(&recipe.scale_rule, 4);
  choose(&recipe.scale_order, 3);
  if (input->chance(3)) choose(&recipe.four_over_six, 3);
  choose(&recipe.rounding, 6);
  recipe.largest_scale = input->one_of({0.0f, 0.0f, 448.0f, 256.0f, 6.0f, -1.0f, 1e38f});
  recipe.seed = input->byte();
  recipe.first = input->chance(4) ? input->word() : 0;
  recipe.eps = input->one_of({0.0f, 0.0f, 1e-12f, 1.0f, -1.0f});
  const int flags = input->byte();
  recipe.divides = flags & 1;
  recipe.pow2 = flags >> 1 & 1;
  recipe.drops_negative_zero = flags >> 2 & 1;
  recipe.rounds_to_plus_zero = flags >> 3 & 1;
  recipe.zero_scale = input->chance(4) ? input->byte() : 0;
  recipe.least_scale = input->chance(4) ? input->byte() : 0;
  if (input->chance(4)) {
    recipe.scale_code = input->one_of<uint8_t>({4, 2, 9});
    recipe.scale_bits = 16;
  }
  return recipe;
}

float any_global_scale(Bytes *input, const dlfp4_format_row &row) {
  const bool has_one = row.kind == DLFP4_TWO_LEVEL || row.lines == 0;
  if (!input->chance(has_one ? 3 : 32)) return 0;
  const float edges[] = {0.01f, 1.0f, 3e38f, 1e-40f, -1.0f, __builtin_inff(), __builtin_nanf("")};
  return edges[input->below(7)];
}

void append(std::vector<Operand> *operands, const std::vector<Operand> &more) {
  operands->insert(operands->end(), more.begin(), more.end());
}

void quantize(Bytes *input, Arena *arena) {
  const Matrix m = any_matrix(input);
  const dlfp4_format_row &row = dlfp4_formats[m.format];
  const bool has_recipe = input->chance(2), has_other = input->chance(4);
  dlfp4_recipe recipe = {};
  if (has_recipe) recipe = any_recipe(input, m.format);
  const float global_scale = any_global_scale(input, row);
  Parts parts, other;
  Tensor x = make_values(input, arena, m.dtype, m.rows, m.columns, false);
  make_parts(input, arena, m.format, m.axis, m.layout, m.rows, m.columns, true, &parts);
  if (has_other) make_parts(input, arena, m.format, -3 - m.axis, m.layout, m.rows, m.columns, true, &other);
  if (input->chance(6)) parts.q.rotation = dlfp4_rotation(input->byte());
  change_some(input, arena, {&x, &parts.data, &parts.scales, &parts.global_scale, &parts.offsets});
  std::vector<Operand> operands = {{&x, false}};
  append(&operands, operands_of(parts, true));
  if (has_other) append(&operands, operands_of(other, true));
  const bool refuses = must_refuse(operands);
  const bool is_plain = !is_changed({&x, &parts.data, &parts.scales, &parts.global_scale, &parts.offsets}) &&
                        !has_recipe && !has_other && global_scale == 0 && !parts.q.rotation && are_floats(m.dtype);
  run(input, arena,
      refuses    ? kMustRefuse
      : is_plain ? kMustTake
                 : kMay,
      true, [&] {
        return dlfp4_quantize(&x.fields, has_recipe ? &recipe : nullptr, global_scale, &parts.q,
                              has_other ? &other.q : nullptr, nullptr);
      });
}

void dequantize(Bytes *input, Arena *arena) {
  const Matrix m = any_matrix(input);
  Parts parts;
  make_parts(input, arena, m.format, m.axis, m.layout, m.rows, m.columns, false, &parts);
  Tensor out = make_values(input, arena, m.dtype, m.rows, m.columns, true);
  if (input->chance(6)) parts.q.rotation = dlfp4_rotation(input->byte());
  change_some(input, arena, {&out, &parts.data, &parts.scales, &parts.global_scale, &parts.offsets});
  std::vector<Operand> operands = operands_of(parts, false);
  operands.push_back({&out, true});
  const bool refuses = must_refuse(operands);
  const bool is_plain = !is_changed({&out, &parts.data, &parts.scales, &parts.global_scale, &parts.offsets}) &&
                        !parts.q.rotation && are_floats(m.dtype);
  run(input, arena,
      refuses    ? kMustRefuse
      : is_plain ? kMustTake
                 : kMay,
      true, [&] { return dlfp4_dequantize(&parts.q, &out.fields, nullptr); });
}

// --- Scales ----------------------------------------------------------------------------------

std::vector<int64_t> shape_of_tiles(int layout, int64_t rows, int64_t columns) {
  const dlfp4_layout_row &tile = dlfp4_layouts[layout];
  const int64_t padded_rows = (rows + tile.rows - 1) / tile.rows * tile.rows;
  const int64_t padded_columns = (columns + tile.columns - 1) / tile.columns * tile.columns;
  if (tile.by_rows) return {padded_columns / tile.run, padded_rows * tile.run};
  return {padded_rows, padded_columns};
}

// The place of a scale in a matrix of them, by layouts.h.
int64_t place_of(int layout, int64_t i, int64_t j, int64_t rows, int64_t columns) {
  const dlfp4_layout_row &tile = dlfp4_layouts[layout];
  const int64_t extent = tile.by_rows ? rows : columns, multiple = tile.by_rows ? tile.rows : tile.columns;
  return dlfp4_scale_offset(layout, i, j, (extent + multiple - 1) / multiple * multiple);
}

void convert_scales(Bytes *input, Arena *arena) {
  const int from = input->below(DLFP4_NUM_LAYOUTS), to = input->below(DLFP4_NUM_LAYOUTS);
  const int dtype = input->one_of<int>(
      {DLFP4_float8_e8m0fnu, DLFP4_float8_e4m3fn, DLFP4_float32, DLFP4_bfloat16, DLFP4_float64, DLFP4_complex128});
  int64_t rows = input->byte(), columns = input->below(20);
  const uint8_t fill = input->byte();
  Tensor x = make_compact(input, arena, dtype, shape_of_tiles(from, rows, columns));
  Tensor out = make_compact(input, arena, dtype, shape_of_tiles(to, rows, columns));
  change_some(input, arena, {&x, &out});
  const bool is_wide = dlfp4_dtypes[dtype].bits > 32, changed = is_changed({&x, &out});
  const bool refuses = is_wide || must_refuse({{&x, false}, {&out, true}});
  const int64_t real_rows = rows, real_columns = columns;
  if (input->chance(16)) rows = input->edge();
  if (input->chance(16)) columns = input->edge();
  const bool is_plain = !changed && rows == real_rows && columns == real_columns;
  const bool taken =
      run(input, arena,
          refuses    ? kMustRefuse
          : is_plain ? kMustTake
                     : kMay,
          true, [&] { return dlfp4_convert_scales(&x.fields, from, &out.fields, to, rows, columns, fill, nullptr); });
  if (!taken || !is_plain) return;
  const int64_t item = dlfp4_dtypes[dtype].bits / 8;
  std::vector<uint8_t> expected(static_cast<size_t>(out.memory.bytes), fill);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      memcpy(&expected[static_cast<size_t>(place_of(to, i, j, rows, columns) * item)],
             x.memory.begin + place_of(from, i, j, rows, columns) * item, static_cast<size_t>(item));
  require(expected.empty() || memcmp(expected.data(), out.memory.begin, expected.size()) == 0, "scales are misplaced");
}

void blocks(Bytes *input, Arena *arena) {
  const int operation = input->below(8);
  if (operation == 7) return convert_scales(input, arena);
  operation < 4 ? quantize(input, arena) : dequantize(input, arena);
}

}  // namespace
}  // namespace fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  return fuzz::run_case(data, size, fuzz::blocks);
}
