// dlfp4_cuda_multiply_grouped: rows that are divided among experts, on CUDA memory.
// Layout: see dlfp4_cuda_grouped_product.
// Trick: nothing is read by the host, so it chooses the kernel by the mean of experts' rows. Tokens' rows are brought
// together by a kernel before. Weighted rows are made in float32, and added by a kernel after it, token by token, so
// that their order does not depend on chance.
#include <algorithm>

#include "gpu/context.h"
#include "gpu/runs.h"
#include "grouped_kernels.h"
#include "product_params.h"

namespace dlfp4 {
namespace cuda {

const KernelNames kernels_of_grouped = {image_of_grouped::kNames, image_of_grouped::kNumKernels};

namespace {

using namespace image_of_grouped;

constexpr GroupedOperation kOperations[] = {kGroupedFew, kGroupedMany};
constexpr KernelTable<2, kNumWeightKinds> kOfBfloat16([](int size, int kind) {
  return find_kernel(KernelKey(kOperations[size], DLFP4_bfloat16, kind));
});
constexpr KernelTable<2, kNumWeightKinds> kOfFloat16([](int size, int kind) {
  return find_kernel(KernelKey(kOperations[size], DLFP4_float16, kind));
});

// Up to so many rows of an expert, a mean of which some have more than a tile of the kernel for few, it is ahead.
constexpr int64_t kFewOnAverage = 48;

int64_t row_stride_of_sums(int64_t columns) { return divide_up(columns, 8) * 8; }

// The workspace: rows of tokens, then sums in float32.
int64_t bytes_of_rows(const dlfp4_cuda_grouped_product &g) {
  return g.gathers ? g.product.rows * g.product.depth * 2 : 0;  // whole sixteens, as depth is eights
}

int64_t bytes_of_sums(const dlfp4_cuda_grouped_product &g) {
  return g.adds ? g.product.rows * row_stride_of_sums(g.product.columns) * int64_t{sizeof(float)} : 0;
}

uint8_t *rows_of(const dlfp4_cuda_grouped_product &g) { return static_cast<uint8_t *>(g.workspace); }
uint8_t *sums_of(const dlfp4_cuda_grouped_product &g) { return rows_of(g) + bytes_of_rows(g); }

// Rows and tiles are counted in 32 bits.
bool can_count(const dlfp4_cuda_grouped_product &g) {
  constexpr int64_t kMost = INT32_MAX - kManyRoutedRows;
  const dlfp4_cuda_product &product = g.product;
  const int64_t blocks = divide_up(product.columns, kBlockRows) + 1;
  return product.rows <= kMost && g.tokens <= kMost && product.columns <= kMost && product.stored_depth <= kMost &&
         (divide_up(product.rows, kRoutedStep) + g.experts) * blocks <= kMost;
}

int gather(const dlfp4_cuda_grouped_product &g, uintptr_t stream) {
  GatherParams p = {};
  p.x = static_cast<const uint8_t *>(g.product.x);
  p.x_stride = g.product.x_stride * 2;
  p.rows = rows_of(g);
  p.sixteens = g.product.depth / 8;
  p.count_rows = g.product.rows;
  p.count_tokens = g.tokens;
  p.tokens = {g.indices, g.index_bits};
  return run_walk(kKernel_gather_tokens, p.count_rows * p.sixteens, p, stream);
}

// `has_many` rows an expert.
int multiply_rows(const dlfp4_cuda_grouped_product &g, bool has_many, uintptr_t stream) {
  const dlfp4_cuda_product &product = g.product;
  const int most = has_many ? kManyRoutedRows : kFewRoutedRows, kind = weight_kind(product.format);
  GroupedParams p = {};
  ProductParams &q = p.product = product_params(product);
  if (g.gathers) q.x = rows_of(g), q.x_stride = product.depth * 2;
  if (g.adds) q.y = sums_of(g), q.y_stride = row_stride_of_sums(product.columns), q.y_bytes = sizeof(float);
  p.ends = {g.ends, g.end_bits};
  p.experts = static_cast<int>(g.experts);
  p.factor_step = g.factor_step;
  p.stores_eights = q.y_bytes == 2 && q.columns % 8 == 0 && q.y_stride % 8 == 0 && is_aligned(q.y, 16);
  const int status = describe(q.x, box_type(product.x_is_half != 0), q.rows, q.depth, q.x_stride, kRoutedStep, &p.x);
  if (status != 0) return status;
  const int64_t tiles = (divide_up(product.rows, most) + std::min(product.rows, g.experts)) *
                        (divide_up(product.columns, kBlockRows) + 1);
  const int64_t blocks = std::min<int64_t>(tiles, int64_t{multiprocessors()} * blocks_at_once(most));
  const DeviceKernel kernel = (product.x_is_half ? kOfFloat16 : kOfBfloat16)[has_many][kind];
  return launch_shape(kernel, {{blocks, 1}, kManyRowsThreads, grouped_shared_bytes(most), 1}, &p, stream);
}

int combine(const dlfp4_cuda_grouped_product &g, uintptr_t stream) {
  constexpr int kWarps = kThreads / kWarpSize;
  CombineParams p = {};
  p.product = product_params(g.product);
  p.product.rows = static_cast<int>(g.tokens);
  p.rows = reinterpret_cast<const float *>(sums_of(g));
  p.row_stride = row_stride_of_sums(g.product.columns);
  p.ends = {g.ends, g.end_bits};
  p.tokens = {g.indices, g.index_bits};
  p.weights = g.weights;
  p.experts = static_cast<int>(g.experts);
  p.routed = static_cast<int>(g.product.rows);
  const int64_t blocks = divide_up(g.tokens, kWarps), parts = divide_up(g.product.columns, kWarpSize * 8);
  const int64_t wanted = std::min(parts, divide_up(4 * multiprocessors(), blocks));
  return launch_shape(kKernel_combine_weighted, {{blocks, wanted}, kThreads, 0, 1}, &p, stream);
}

}  // namespace
}  // namespace cuda
}  // namespace dlfp4

using namespace dlfp4;
using namespace dlfp4::cuda;

extern "C" {

int dlfp4_cuda_has_grouped(int device, int format) {
  const CurrentContext context(device);
  return context.status() == 0 && weight_kind(format) != kNoKind && ptx_version(kImage) == 90;
}

int64_t dlfp4_cuda_grouped_workspace(const dlfp4_cuda_grouped_product *g) {
  return bytes_of_rows(*g) + bytes_of_sums(*g);
}

int dlfp4_cuda_multiply_grouped(int device, uintptr_t stream, const dlfp4_cuda_grouped_product *g) {
  const CurrentContext context(device);
  if (context.status() != 0) return context.status();
  const dlfp4_cuda_product &product = g->product;
  if (weight_kind(product.format) == kNoKind || product.x_scales) return refuse(DLFP4_E_OPTION);
  if (ptx_version(kImage) != 90) return kNoBinary;
  if (g->experts <= 0 || g->experts > kMostExperts || product.depth == 0 || !can_count(*g))
    return refuse(DLFP4_E_SHAPE);
  if (product.columns == 0) return 0;
  int status = 0;
  if (product.rows > 0) {
    if (g->gathers) status = gather(*g, stream);
    if (status == 0) status = multiply_rows(*g, product.rows > kFewOnAverage * g->experts, stream);
  }
  return status != 0 || !g->adds || g->tokens == 0 ? status : combine(*g, stream);
}
}
