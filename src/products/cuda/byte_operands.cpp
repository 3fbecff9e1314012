// What the extension and the C API do alike before a product: which operands of FP8 by FP8 are taken, which kernel
// multiplies where nothing was measured, and when scales of experts' rows are brought together first.
// Layout: see dlfp4_cuda_bytes.
// Trick: scales of neighbouring rows that lie side by side are copied in bulk. Turning them so is a launch, which pays
// from many rows on.
#include "gpu/kernels.h"
#include "product_params.h"
#include "rules/dtypes.h"
#include "rules/layouts.h"
#include "rules/matrix.h"
#include "tactics.h"

namespace dlfp4 {
namespace cuda {
namespace {

constexpr int64_t kBulk = 16;    // bytes that are copied at a time, and their alignment
constexpr int64_t kDepth = 128;  // of K that tensor cores sum, at the end of which a scale may change

// From so many rows of an expert on, on average, bringing scales together saves more than it costs.
constexpr int64_t kManyRows = 100;

constexpr int64_t kExactRows = 16;             // up to here kernels differ from one number of rows to the next
constexpr int64_t kMostInBuckets = 1LL << 30;  // beyond it a bucket may be more than kernels count

bool is_fp8(int dtype) { return dtype == DLFP4_float8_e4m3fn || dtype == DLFP4_float8_e5m2; }

bool are_read(int layout) {
  return layout == DLFP4_LAYOUT_linear || layout == DLFP4_LAYOUT_cublas_1x128 || layout == DLFP4_LAYOUT_cublas_128x128;
}

int element_of(const dlfp4_lines &lines) {
  return lines.format < 0 ? dlfp4_find_dtype(lines.code, lines.bits) : dlfp4_formats[lines.format].element;
}

void read_scales(const dlfp4_lines &lines, dlfp4_cuda_bytes *side) {
  const dlfp4_format_row &row = dlfp4_formats[lines.format];
  const dlfp4_blocks &blocks = lines.blocks;
  side->scales = static_cast<const float *>(blocks.scales);
  side->scale_lines = row.lines;
  side->scale_stride = blocks.scale_strides[0];
  side->scale_step = row.length > 0 ? blocks.scale_strides[1] : 0;
  if (blocks.layout == DLFP4_LAYOUT_cublas_1x128) {
    side->scale_stride = 1;
    side->scale_step = blocks.scale_strides[0];
  }
}

// --- Scales that lie together ------------------------------------------------------------------

int64_t blocks_of(const dlfp4_cuda_bytes_product &product) { return divide_up(product.depth, kDepth); }

int64_t pitch_of(const dlfp4_cuda_bytes_product &product) {
  const int64_t tile = dlfp4_layouts[DLFP4_LAYOUT_cublas_1x128].rows;
  return divide_up(product.rows, tile) * tile;
}

// Those of x, where each row has its own and they follow one another row by row.
int64_t bytes_of_scales(const dlfp4_cuda_bytes_product &product) {
  const dlfp4_cuda_bytes &x = product.x;
  if (x.scale_lines != 1 || x.scale_step != 1 || x.scale_stride != blocks_of(product)) return 0;
  return pitch_of(product) * blocks_of(product) * int64_t{sizeof(float)};
}

int bring_together(int device, uintptr_t stream, dlfp4_cuda_bytes_product *product, void *workspace) {
  const int status =
      dlfp4_cuda_convert_scales(device, stream, product->x.scales, DLFP4_LAYOUT_linear, workspace,
                                DLFP4_LAYOUT_cublas_1x128, product->rows, blocks_of(*product), sizeof(float), 0);
  product->x.scales = static_cast<const float *>(workspace);
  product->x.scale_stride = 1;
  product->x.scale_step = pitch_of(*product);
  return status;
}

// --- The best guess ----------------------------------------------------------------------------

// The first one of find(numbers, capacity, count).
template <class Find>
int choose(const Find &find, int *tactic) {
  int numbers[kNumTactics], count = 0;
  const int status = find(numbers, kNumTactics, &count);
  if (status != 0) return status;
  if (count == 0) return -(DLFP4_CUDA_REFUSED + DLFP4_E_SHAPE);
  *tactic = numbers[0];
  return 0;
}

}  // namespace
}  // namespace cuda
}  // namespace dlfp4

using namespace dlfp4;
using namespace dlfp4::cuda;

extern "C" {

dlfp4_cuda_bytes_refusal dlfp4_cuda_refuses_bytes(int format, int dtype, int layout) {
  if (format < 0) return is_fp8(dtype) ? DLFP4_CUDA_BYTES_TAKEN : DLFP4_CUDA_BYTES_ELEMENTS;
  const dlfp4_format_row &row = dlfp4_formats[format];
  if (!is_fp8(row.element)) return DLFP4_CUDA_BYTES_ELEMENTS;
  if (row.scale != DLFP4_float32 || (row.length != 0 && row.length != kDepth)) return DLFP4_CUDA_BYTES_SCALES;
  return are_read(layout) ? DLFP4_CUDA_BYTES_TAKEN : DLFP4_CUDA_BYTES_LAYOUT;
}

int dlfp4_cuda_reads_rows_of_bytes(const void *data, const int64_t *strides, int64_t rows, int64_t length) {
  if (length > 1 && strides[1] != 1) return 0;
  if (reinterpret_cast<uintptr_t>(data) % kBulk != 0 || length % kBulk != 0) return 0;
  return rows <= 1 || (strides[0] % kBulk == 0 && strides[0] >= length);
}

dlfp4_status dlfp4_cuda_read_bytes(const dlfp4_lines *lines, int64_t count, int64_t length, dlfp4_cuda_bytes *side) {
  const int dtype = element_of(*lines);
  const dlfp4_cuda_bytes_refusal refusal = dlfp4_cuda_refuses_bytes(lines->format, dtype, lines->blocks.layout);
  if (refusal != DLFP4_CUDA_BYTES_TAKEN) return refusal == DLFP4_CUDA_BYTES_ELEMENTS ? DLFP4_E_DTYPE : DLFP4_E_OPTION;
  const int64_t strides[] = {lines->blocks.strides[0] * lines->step, lines->blocks.strides[1]};
  if (!dlfp4_cuda_reads_rows_of_bytes(lines->blocks.data, strides, count, length)) return DLFP4_E_SHAPE;
  if (reinterpret_cast<uintptr_t>(lines->blocks.scales) % sizeof(float) != 0) return DLFP4_E_SHAPE;
  *side = {};
  side->data = lines->blocks.data;
  side->stride = count > 1 ? strides[0] : length;  // that of a single row means nothing
  side->is_e5m2 = dtype == DLFP4_float8_e5m2;
  if (lines->format >= 0) read_scales(*lines, side);
  return DLFP4_OK;
}

int64_t dlfp4_cuda_bucket_of_rows(int64_t rows) {
  if (rows <= kExactRows || rows > kMostInBuckets) return rows;
  constexpr int64_t kInOctave = 4;  // from one power of two to the next
  int64_t step = kExactRows / kInOctave;
  while (2 * kInOctave * step < rows) step *= 2;
  return divide_up(rows, step) * step;
}

int dlfp4_cuda_choose_tactic(int device, int format, int64_t rows, int64_t columns, int64_t depth, int *tactic) {
  return choose(
      [=](int *numbers, int capacity, int *count) {
        return dlfp4_cuda_find_tactics(device, format, dlfp4_cuda_bucket_of_rows(rows), columns, depth, numbers,
                                       capacity, count);
      },
      tactic);
}

int dlfp4_cuda_choose_bytes_tactic(int device, const dlfp4_cuda_bytes_product *product, int *tactic) {
  dlfp4_cuda_bytes_product of_bucket = *product;
  of_bucket.rows = dlfp4_cuda_bucket_of_rows(product->rows);
  return choose([&](int *numbers, int capacity,
                    int *count) { return dlfp4_cuda_find_bytes_tactics(device, &of_bucket, numbers, capacity, count); },
                tactic);
}

int dlfp4_cuda_brings_scales(const dlfp4_cuda_bytes_product *product, const dlfp4_cuda_routing *routing) {
  if (routing->gathers) return 0;  // which brings them together as well
  return product->rows >= kManyRows * routing->experts && bytes_of_scales(*product) > 0;
}

int64_t dlfp4_cuda_grouped_matmul_bytes_workspace(const dlfp4_cuda_bytes_product *product,
                                                  const dlfp4_cuda_routing *routing) {
  const int64_t bytes = dlfp4_cuda_grouped_matmul_bytes_as_they_lie_workspace(product, routing);
  return bytes < 0 || !dlfp4_cuda_brings_scales(product, routing) ? bytes : bytes + bytes_of_scales(*product);
}

int dlfp4_cuda_grouped_matmul_bytes(int device, uintptr_t stream, const dlfp4_cuda_bytes_product *product,
                                    const dlfp4_cuda_routing *routing) {
  dlfp4_cuda_bytes_product brought = *product;
  if (dlfp4_cuda_brings_scales(product, routing)) {
    char *const scales = static_cast<char *>(routing->workspace) +
                         dlfp4_cuda_grouped_matmul_bytes_as_they_lie_workspace(product, routing);
    const int status = bring_together(device, stream, &brought, scales);
    if (status != 0) return status;
  }
  return dlfp4_cuda_grouped_matmul_bytes_as_they_lie(device, stream, &brought, routing);
}
}
