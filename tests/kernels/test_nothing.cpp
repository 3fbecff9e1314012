// Checks operations on nothing at every level: sums of no elements are zero, and nothing else is read or written.
// Layout: tensors without elements lie at the end of the address space, or nowhere, with steps that leave it.
// Trick: what is read there faults; a sanitizer reports what is only computed.
#include <math.h>

#include <vector>

#include "rules/formats.h"
#include "rules/layouts.h"
#include "rules/scaling.h"
#include "support.h"
#include "xla/frames.h"

namespace dlfp4 {
namespace {

const char *level_name;
void *nowhere;  // where what has no elements lies

void report(bool good, const char *test, const char *name, int64_t rows, int64_t columns) {
  char detail[256];
  snprintf(detail, sizeof(detail), "%s, %s, %ld x %ld at %p", level_name, name, static_cast<long>(rows),
           static_cast<long>(columns), nowhere);
  check(good, test, detail);
}

dlfp4_blocks blocks_of_nothing(int64_t length) {
  constexpr int64_t kFar = int64_t{1} << 40;
  dlfp4_blocks blocks = {};
  blocks.data = blocks.scales = nowhere;
  blocks.strides[0] = blocks.scale_strides[0] = kFar;
  blocks.strides[1] = blocks.scale_strides[1] = 1;
  blocks.length = length;
  blocks.decode_lines = 1;
  return blocks;
}

// --- Products --------------------------------------------------------------------------------

struct Side {
  const char *name;
  dlfp4_lines lines;
};

const float kScale = 2;

// Lines of no elements: of each type, packed in order and a byte each with a step, and of each format.
std::vector<Side> all_sides() {
  std::vector<Side> sides;
  for (int row = 0; row < DLFP4_NUM_DTYPES; ++row)
    for (bool packed : {true, false}) {
      const dlfp4_dtype_row &type = dlfp4_dtypes[row];
      Side side = {type.name, {blocks_of_nothing(0), -1, type.code, type.bits, !packed, 1, 3, 5}};
      side.lines.blocks.strides[1] = packed ? 1 : 3;
      sides.push_back(side);
    }
  for (int number = 0; number < DLFP4_NUM_FORMATS; ++number) {
    Side side = {dlfp4_formats[number].name, {blocks_of_nothing(0), number, 0, 0, 0, kScale, 3, 5}};
    if (dlfp4_formats[number].lines == 0) side.lines.blocks.scales = const_cast<float *>(&kScale);
    sides.push_back(side);
  }
  return sides;
}

// Bits of +0 alone.
bool are_zeros(const std::vector<float> &values) {
  for (float value : values)
    if (bits_of(value) != 0) return false;
  return true;
}

void check_dots(const Side &a, const Side &b) {
  std::vector<float> sums(3, NAN);
  if (dlfp4_host_vecdot(&a.lines, &b.lines, 3, 0, sums.data(), 1) != DLFP4_OK) return;  // by types that do not go
  report(are_zeros(sums), "dot", a.name, 3, 1);
}

void check_matmul(const Side &a, const Side &b, int64_t rows, int64_t columns, const dlfp4_matmul_options &options) {
  std::vector<float> sums(static_cast<size_t>(rows * columns), NAN);
  const dlfp4_matrix result = {sums.data(), rows, columns, {columns, 1}, 2, 32};
  const int64_t bytes = dlfp4_host_matmul_workspace(&a.lines, &b.lines, 0, &result, &options);
  if (bytes < 0) return;
  std::vector<uint8_t> workspace(static_cast<size_t>(bytes), 0xFF);
  const bool done =
      dlfp4_host_matmul(&a.lines, &b.lines, 0, &result, &options, workspace.data()) == DLFP4_OK && are_zeros(sums);
  report(done, "matmul", a.name, rows, columns);
}

void check_experts(const Side &a, const Side &b, int64_t rows, int64_t columns, const dlfp4_matmul_options &options) {
  const int64_t ends[] = {rows / 3, rows / 2};
  const std::vector<int64_t> places(static_cast<size_t>(rows), 1);
  const std::vector<float> weights(static_cast<size_t>(rows), -1.5f);
  for (bool weighted : {false, true}) {
    const int64_t results = weighted ? rows + 2 : rows;
    std::vector<float> sums(static_cast<size_t>(results * columns), NAN);
    const dlfp4_matrix result = {sums.data(), results, columns, {columns, 1}, 2, 32};
    const dlfp4_groups groups = {
        rows, 2, columns, ends, places.data(), weighted ? places.data() : nullptr, weighted ? weights.data() : nullptr};
    const int64_t bytes = dlfp4_host_grouped_matmul_workspace(&a.lines, &b.lines, 0, &groups, &result, &options);
    if (bytes < 0) return;
    std::vector<uint8_t> workspace(static_cast<size_t>(bytes), 0xFF);
    const dlfp4_status status =
        dlfp4_host_grouped_matmul(&a.lines, &b.lines, 0, &groups, &result, &options, workspace.data());
    report(status == DLFP4_OK && are_zeros(sums), "experts", a.name, rows, columns);
  }
}

void test_products() {
  const int64_t rows[] = {1, 7, 300}, columns[] = {1, 40, 200};
  const std::vector<Side> sides = all_sides();
  for (const Side &a : sides)
    for (const Side &b : sides) {
      check_dots(a, b);
      const int64_t some_rows = rows[random_below(3)], some_columns = columns[random_below(3)];
      for (dlfp4_activation activation : {DLFP4_ACTIVATION_EXACT, DLFP4_ACTIVATION_INT8}) {
        check_matmul(a, b, some_rows, some_columns, {activation, NAN});
        check_experts(a, b, some_rows, some_columns, {activation, NAN});
      }
    }
}

// --- Block scaling ---------------------------------------------------------------------------

constexpr int64_t kLines = 128;  // whole blocks of every format

void check_format(int number, int layout, int64_t rows, int64_t columns) {
  const dlfp4_format_row &format = dlfp4_formats[number];
  dlfp4_recipe recipe;
  dlfp4_default_recipe(number, &recipe);
  float decodes[kLines], scale = NAN;
  const dlfp4_matrix x = {nowhere, rows, columns, {int64_t{1} << 40, 1}, 2, 32};
  dlfp4_tensor_scale whole;
  report(dlfp4_host_find_tensor_scale(&x, number, &recipe, 0, &whole) == DLFP4_OK && whole.largest == 0,
         "scale of the tensor", format.name, rows, columns);
  dlfp4_blocks along = blocks_of_nothing(columns), across = blocks_of_nothing(rows);
  for (dlfp4_blocks *blocks : {&along, &across}) {
    blocks->layout = layout;
    blocks->fill = 7;
    if (format.lines == 0) blocks->scales = &scale;
    if (format.element == DLFP4_uint4) {
      blocks->offsets = nowhere;
      blocks->offset_strides[0] = int64_t{1} << 40;
      blocks->offset_strides[1] = 1;
      blocks->offset_code = dlfp4_dtypes[DLFP4_uint8].code;
      blocks->offset_bits = 8;
    }
  }
  for (float &decode : decodes) decode = NAN;
  if (format.kind == DLFP4_TWO_LEVEL && format.lines == 1) {
    along.decodes = decodes;
    along.finds_decodes = 1;
  }
  dlfp4_status status = dlfp4_host_quantize(&x, number, &recipe, &whole, &along, &across);
  report(status == DLFP4_OK, "quantize", format.name, rows, columns);
  for (int64_t line = 0; along.decodes && line < rows; ++line)
    report(isfinite(decodes[line]), "scales of lines", format.name, rows, columns);
  status = dlfp4_host_dequantize(&along, number, 1, &x);
  report(status == DLFP4_OK, "dequantize", format.name, rows, columns);
}

void test_blocks() {
  const int64_t extents[][2] = {{0, 0}, {0, kLines}, {kLines, 0}};
  for (const auto &extent : extents)
    for (int layout = 0; layout < DLFP4_NUM_LAYOUTS; ++layout) {
      for (int number = 0; number < DLFP4_NUM_FORMATS; ++number) check_format(number, layout, extent[0], extent[1]);
      report(dlfp4_host_convert_scales(nowhere, layout, nowhere, 0, extent[0], extent[1], 1, 7) == DLFP4_OK, "scales",
             dlfp4_layouts[layout].name, extent[0], extent[1]);
    }
}

// --- Others ----------------------------------------------------------------------------------

void test_others() {
  const int64_t shape[] = {3, 0}, strides[] = {int64_t{1} << 40, 3};
  for (int row = 0; row < DLFP4_NUM_DTYPES; ++row) {
    const dlfp4_view view = view_of({row, true}, nowhere, 2, shape, strides);
    report(dlfp4_host_convert(&view, &view, nullptr) == DLFP4_OK, "convert", dlfp4_dtypes[row].name, 3, 0);
  }
  auto *const floats = static_cast<float *>(nowhere);
  auto *const bytes = static_cast<uint8_t *>(nowhere);
  for (const dlfp4_grid &grid : {dlfp4_grid{0, 64, 1, 32}, dlfp4_grid{3, 0, 1, 32}}) {
    report(dlfp4_host_find_changes(&grid, floats, floats, floats, floats, 0) == DLFP4_OK, "changes", "grid", grid.rows,
           grid.columns);
    const dlfp4_stored stored = {floats, bytes, bytes};
    report(dlfp4_host_take_better(&grid, floats, 16, &stored, &stored) == DLFP4_OK, "better", "grid", grid.rows,
           grid.columns);
  }
  dlfp4_changes changes;
  report(dlfp4_host_sum_up_changes(floats, floats, 0, &changes) == DLFP4_OK && changes.changed == 0, "sum", "blocks", 0,
         0);
  report(dlfp4_host_shuffle_weight(nowhere, nowhere, 0, 64, 0) == DLFP4_OK, "shuffle", "weight", 0, 64);
}

void test_parts() {
  dlfp4_quantize_plan plan = {};
  plan.x = {nowhere, 3, 0, {1, 1}, 2, 32};
  plan.blocks[0] = blocks_of_nothing(0);
  for (int64_t &step : plan.part_steps) step = 12;
  xla::step_to_next_part(&plan);
  const bool stays = plan.x.data == nowhere && plan.blocks[0].data == nowhere && plan.blocks[0].scales == nowhere;
  report(stays, "next", "part", 3, 0);
}

void test_level(const char *name) {
  level_name = name;
  for (uintptr_t place : {uintptr_t{0}, UINTPTR_MAX - 63}) {
    nowhere = reinterpret_cast<void *>(place);
    test_products();
    test_blocks();
    test_others();
    test_parts();
  }
  printf("%s: %ld checks, %ld failures\n", name, checks, failures);
}

}  // namespace
}  // namespace dlfp4

int main() {
  return dlfp4::run([] { dlfp4::each_level(dlfp4::test_level); });
}
