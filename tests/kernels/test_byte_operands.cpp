// Checks what is done before a product of FP8 by FP8, without a GPU: which operands are taken, which kernel is chosen,
// and when scales are brought together.
// Layout: byte_operands.cpp alone, on a driver that remembers what it was asked for.
// Trick: the driver gives the best kernel only where it has room for all, as that of GPUs does.
#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wunused-function"  // not all of the support is for operands
#endif

#include "gpu/kernels.h"
#include "products/cuda/tactics.h"
#include "rules/layouts.h"
#include "support.h"

namespace dlfp4 {
namespace cuda {
namespace {

constexpr int64_t kWorkspaceOfGroups = 96;

struct Asked {
  int turned, grouped;    // how often
  int64_t rows, columns;  // of scales that were turned
  const void *from, *to;
  dlfp4_cuda_bytes_product product;  // the last one
  int64_t rows_of_choice;
  bool fails;
};
Asked asked;

int find(int64_t rows, int *tactics, int capacity, int *count) {
  asked.rows_of_choice = rows;
  *count = rows == 7 ? 0 : capacity >= kNumTactics ? 2 : 1;  // of fewer, not the best one
  tactics[0] = capacity >= kNumTactics ? 5 : 0;
  return rows == 9 ? 700 : 0;
}

}  // namespace
}  // namespace cuda
}  // namespace dlfp4

using namespace dlfp4;
using namespace dlfp4::cuda;

extern "C" {

int dlfp4_cuda_find_tactics(int, int, int64_t rows, int64_t, int64_t, int *tactics, int capacity, int *count) {
  return find(rows, tactics, capacity, count);
}

int dlfp4_cuda_find_bytes_tactics(int, const dlfp4_cuda_bytes_product *product, int *tactics, int capacity,
                                  int *count) {
  return find(product->rows, tactics, capacity, count);
}

int dlfp4_cuda_convert_scales(int, uintptr_t, const void *src, int src_layout, void *dst, int dst_layout, int64_t rows,
                              int64_t columns, int itemsize, uint8_t) {
  check(src_layout == DLFP4_LAYOUT_linear && dst_layout == DLFP4_LAYOUT_cublas_1x128 && itemsize == 4,
        "scales are turned", "layouts");
  ++asked.turned;
  asked.from = src;
  asked.to = dst;
  asked.rows = rows;
  asked.columns = columns;
  return asked.fails ? 719 : 0;
}

int dlfp4_cuda_grouped_matmul_bytes_as_they_lie(int, uintptr_t, const dlfp4_cuda_bytes_product *product,
                                                const dlfp4_cuda_routing *) {
  ++asked.grouped;
  asked.product = *product;
  return 0;
}

int64_t dlfp4_cuda_grouped_matmul_bytes_as_they_lie_workspace(const dlfp4_cuda_bytes_product *,
                                                              const dlfp4_cuda_routing *) {
  return kWorkspaceOfGroups;
}
}

namespace dlfp4 {
namespace cuda {
namespace {

// --- Operands ----------------------------------------------------------------------------------

alignas(16) char memory[128];
const float scales[8] = {};

void test_refusals() {
  for (int format = 0; format < DLFP4_NUM_FORMATS; ++format) {
    const dlfp4_format_row &row = dlfp4_formats[format];
    const bool is_fp8 = row.element == DLFP4_float8_e4m3fn || row.element == DLFP4_float8_e5m2;
    const bool has_floats = row.scale == DLFP4_float32;  // of FP8, 128 of K or all of it
    const dlfp4_cuda_bytes_refusal expected = !is_fp8       ? DLFP4_CUDA_BYTES_ELEMENTS
                                              : !has_floats ? DLFP4_CUDA_BYTES_SCALES
                                                            : DLFP4_CUDA_BYTES_TAKEN;
    check(dlfp4_cuda_refuses_bytes(format, 0, DLFP4_LAYOUT_linear) == expected, "a format", row.name);
    if (expected == DLFP4_CUDA_BYTES_TAKEN)
      check(dlfp4_cuda_refuses_bytes(format, 0, DLFP4_LAYOUT_128x4) == DLFP4_CUDA_BYTES_LAYOUT, "a layout", row.name);
  }
  for (int dtype = 0; dtype < DLFP4_NUM_DTYPES; ++dtype) {
    const bool is_fp8 = dtype == DLFP4_float8_e4m3fn || dtype == DLFP4_float8_e5m2;
    check((dlfp4_cuda_refuses_bytes(-1, dtype, 0) == DLFP4_CUDA_BYTES_TAKEN) == is_fp8, "plain elements",
          dlfp4_dtypes[dtype].name);
  }
}

int find_named_format(const char *name) {
  for (int format = 0; format < DLFP4_NUM_FORMATS; ++format)
    if (strcmp(dlfp4_formats[format].name, name) == 0) return format;
  return -1;
}

dlfp4_lines lines_of(const char *format) {
  dlfp4_lines lines = {};
  lines.blocks.data = memory;
  lines.blocks.strides[0] = 272;
  lines.blocks.strides[1] = 1;
  lines.blocks.scales = const_cast<float *>(scales);
  lines.blocks.scale_strides[0] = 2;
  lines.blocks.scale_strides[1] = 1;
  lines.format = find_named_format(format);
  lines.step = 1;
  return lines;
}

void test_sides() {
  const struct {
    const char *format;
    int layout, lines;
    int64_t stride, step;
    bool is_e5m2;
  } rows[] = {
      {"fp8_e4m3", DLFP4_LAYOUT_linear, 0, 2, 0, false},
      {"fp8_row_e5m2", DLFP4_LAYOUT_linear, 1, 2, 0, true},
      {"fp8_1x128", DLFP4_LAYOUT_linear, 1, 2, 1, false},
      {"fp8_1x128", DLFP4_LAYOUT_cublas_1x128, 1, 1, 2, false},
      {"fp8_128x128_e5m2", DLFP4_LAYOUT_cublas_128x128, 128, 2, 1, true},
  };
  for (const auto &row : rows) {
    dlfp4_lines lines = lines_of(row.format);
    lines.blocks.layout = row.layout;
    dlfp4_cuda_bytes side;
    check(dlfp4_cuda_read_bytes(&lines, 3, 256, &side) == DLFP4_OK, "taken", row.format);
    check(side.data == memory && side.stride == 272 && side.is_e5m2 == row.is_e5m2, "its elements", row.format);
    check(side.scales == scales && side.scale_lines == row.lines && side.scale_stride == row.stride &&
              side.scale_step == row.step,
          "its scales", row.format);
    check(dlfp4_cuda_read_bytes(&lines, 1, 256, &side) == DLFP4_OK && side.stride == 256, "one row", row.format);
  }
}

void test_sides_that_are_refused() {
  dlfp4_cuda_bytes side;
  const auto status = [&](const dlfp4_lines &lines, int64_t length) {
    return dlfp4_cuda_read_bytes(&lines, 3, length, &side);
  };
  dlfp4_lines lines = lines_of("fp8_row");
  check(status(lines, 248) == DLFP4_E_SHAPE, "K that no 16 divides", "248");
  check(status(lines, 288) == DLFP4_E_SHAPE, "rows that overlap", "288");
  lines.blocks.strides[0] = 264;
  check(status(lines, 256) == DLFP4_E_SHAPE, "rows that copies do not read", "264 bytes apart");
  lines = lines_of("fp8_row");
  lines.blocks.data = memory + 8;
  check(status(lines, 256) == DLFP4_E_SHAPE, "an address that copies do not read", "8");
  lines = lines_of("fp8_row");
  lines.blocks.scales = memory + 2;
  check(status(lines, 256) == DLFP4_E_SHAPE, "scales that no GPU reads", "2");
  lines = lines_of("fp8_row");
  lines.blocks.strides[1] = 2;
  check(status(lines, 128) == DLFP4_E_SHAPE, "elements apart", "2");
  check(status(lines_of("nvfp4"), 256) == DLFP4_E_DTYPE, "FP4", "nvfp4");
  check(status(lines_of("mxfp8_e4m3"), 256) == DLFP4_E_OPTION, "scales of powers of two", "mxfp8_e4m3");
  lines = lines_of("none");
  lines.code = 2;
  lines.bits = 16;
  check(status(lines, 256) == DLFP4_E_DTYPE, "plain floats", "float16");
  lines.code = dlfp4_dtypes[DLFP4_float8_e5m2].code;
  lines.bits = 8;
  lines.step = 2;
  check(status(lines, 256) == DLFP4_OK && side.is_e5m2 && side.stride == 544 && !side.scales, "plain FP8", "step 2");
}

// --- The choice --------------------------------------------------------------------------------

void test_buckets() {
  const int64_t rows[][2] = {{0, 0},   {1, 1},       {16, 16},     {17, 20},           {32, 32},
                             {33, 40}, {4096, 4096}, {4097, 5120}, {1 << 30, 1 << 30}, {(1 << 30) + 1, (1 << 30) + 1}};
  for (const auto &each : rows) check(dlfp4_cuda_bucket_of_rows(each[0]) == each[1], "a bucket", "of rows");
}

void test_choices() {
  dlfp4_cuda_bytes_product product = {};
  const struct {
    int64_t rows, bucket;
    int status;
  } cases[] = {{5, 5, 0}, {100, 112, 0}, {9, 9, 700}, {7, 7, -(DLFP4_CUDA_REFUSED + DLFP4_E_SHAPE)}};
  for (const auto &each : cases) {
    product.rows = each.rows;
    int of_bytes = -1, of_prepared = -1;
    check(dlfp4_cuda_choose_bytes_tactic(0, &product, &of_bytes) == each.status, "its status", "FP8");
    check(asked.rows_of_choice == each.bucket, "a bucket's choice", "FP8");
    check(dlfp4_cuda_choose_tactic(0, 0, each.rows, 128, 128, &of_prepared) == each.status, "its status", "prepared");
    check(asked.rows_of_choice == each.bucket, "a bucket's choice", "prepared");
    const int expected = each.status == 0 ? 5 : -1;
    check(of_bytes == expected && of_prepared == expected, "the best of all", "both");
  }
}

// --- Scales that lie together ------------------------------------------------------------------

dlfp4_cuda_bytes_product product_of(int64_t rows) {
  dlfp4_cuda_bytes_product product = {};
  product.rows = rows;
  product.depth = 336;  // three blocks, the last one in part
  product.columns = 256;
  product.x.scales = scales;
  product.x.scale_lines = 1;
  product.x.scale_stride = 3;
  product.x.scale_step = 1;
  return product;
}

bool is_as_it_was(const dlfp4_cuda_bytes &x) { return x.scales == scales && x.scale_stride == 3 && x.scale_step == 1; }

bool is_brought(const dlfp4_cuda_bytes &x, const void *at, int64_t pitch) {
  return x.scales == at && x.scale_stride == 1 && x.scale_step == pitch;
}

void test_groups() {
  dlfp4_cuda_bytes_product product = product_of(401);
  dlfp4_cuda_routing routing = {};
  routing.experts = 4;
  routing.workspace = memory;
  const int64_t together = 404 * 3 * 4;
  check(dlfp4_cuda_grouped_matmul_bytes_workspace(&product, &routing) == kWorkspaceOfGroups + together, "a workspace",
        "of groups");
  asked = {};
  check(dlfp4_cuda_grouped_matmul_bytes(0, 0, &product, &routing) == 0 && asked.turned == 1 && asked.grouped == 1,
        "scales are brought", "groups");
  check(asked.from == scales && asked.rows == 401 && asked.columns == 3, "which", "groups");
  check(asked.to == memory + kWorkspaceOfGroups && is_brought(asked.product.x, asked.to, 404), "behind the rest",
        "groups");
  asked.fails = true;
  check(dlfp4_cuda_grouped_matmul_bytes(0, 0, &product, &routing) == 719 && asked.grouped == 1, "a failure", "groups");
  asked = {};
  for (int k = 0; k < 2; ++k) {
    product.rows = k == 0 ? 399 : 401;
    routing.gathers = k;  // which brings them together by itself
    check(dlfp4_cuda_grouped_matmul_bytes_workspace(&product, &routing) == kWorkspaceOfGroups, "no more", "groups");
    check(dlfp4_cuda_grouped_matmul_bytes(0, 0, &product, &routing) == 0 && asked.turned == 0 &&
              is_as_it_was(asked.product.x),
          "scales as they lie", "groups");
  }
  routing.gathers = 0;
  product.x.scale_step = 0;  // one a row
  check(dlfp4_cuda_grouped_matmul_bytes_workspace(&product, &routing) == kWorkspaceOfGroups, "a scale a row", "groups");
  product.x.scale_step = 1;
  product.x.scale_stride = 4;  // rows of scales apart
  check(dlfp4_cuda_grouped_matmul_bytes_workspace(&product, &routing) == kWorkspaceOfGroups, "scales apart", "groups");
}

}  // namespace
}  // namespace cuda
}  // namespace dlfp4

int main() {
  using namespace dlfp4::cuda;
  test_refusals();
  test_sides();
  test_sides_that_are_refused();
  test_buckets();
  test_choices();
  test_groups();
  return dlfp4::report();
}
