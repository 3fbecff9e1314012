// dlfp4_cuda_grouped_matmul: rows that are divided among experts, on CUDA memory.
// Layout: see dlfp4_cuda_routing. The workspace has rows of tokens, their scales, sums in float32, a count of tiles.
// Trick: nothing is read by the host, so it chooses the kernel by the mean of experts' rows. Tokens' rows are brought
// together by a kernel before, unless weights are streamed. Weighted rows are made in float32, and added by a kernel
// after it, token by token, so that their order does not depend on chance.
#include <algorithm>

#include "gpu/context.h"
#include "gpu/runs.h"
#include "grouped_kernels.h"
#include "product_params.h"
#include "stream.h"

namespace dlfp4 {
namespace cuda {

const KernelNames kernels_of_grouped = {image_of_grouped::kNames, image_of_grouped::kNumKernels};

namespace {

using namespace image_of_grouped;
using Routing = dlfp4_cuda_routing;

// By prepared weights, for more and more rows.
constexpr GroupedOperation kOperations[] = {kGroupedStream, kGroupedFew, kGroupedMany};
template <int X>
constexpr KernelTable<3, kNumWeightKinds> kPreparedKernels([](int operation, int kind) {
  return find_kernel(KernelKey(kOperations[operation], X, kind));
});

DeviceKernel prepared_kernel(const dlfp4_cuda_product &product, GroupedOperation operation) {
  const int number = operation - kGroupedStream, kind = weight_kind(product.format);
  return product.x_is_half ? kPreparedKernels<DLFP4_float16>[number][kind]
                           : kPreparedKernels<DLFP4_bfloat16>[number][kind];
}

template <GroupedOperation Operation>
constexpr KernelList<kNumProductKinds> kOfBytes([](int kind) {
  return find_kernel(KernelKey(Operation, kE4m3E4m3, kind));
});

// The description of x's scales, for boxes of kScaleBox rows' for a block along K; whether bulk copies can read them.
bool describe_scales(const ByteScales &scales, const ProductParams &product, TensorMap *map) {
  constexpr int kFloat32 = 7;
  const uint64_t extents[2] = {static_cast<uint64_t>(product.rows), static_cast<uint64_t>(product.blocks)};
  const uint64_t strides[1] = {static_cast<uint64_t>(scales.block_stride) * 4};
  const uint32_t boxes[2] = {kScaleBox, 1}, steps[2] = {1, 1};
  return scales.data && scales.lines == 1 && scales.line_stride == 1 && scales.block_stride > 0 &&
         scales.block_stride % kScalesOfCopy == 0 && is_aligned(scales.data, 16) &&
         opened_driver().cuTensorMapEncodeTiled(map, kFloat32, 2, const_cast<float *>(scales.data), extents, strides,
                                                boxes, steps, 0, 0, 0, 0) == 0;
}

// Up to so many rows of an expert, a mean, weights are streamed where K has room; and the kernel for few rows is ahead,
// although some have more than a tile of it.
constexpr int64_t kStreamedOnAverage = 5, kFewOnAverage = 48;

// A product as the workspace and the kernels around it see it.
struct Work {
  ProductParams product;
  ByteScales scales;      // of x
  int64_t row_bytes;      // of x, a multiple of 16
  int64_t scales_of_row;  // that lie apart, or 0
  bool takes_tokens;      // rows of tokens are brought together before
  bool counts_tiles;      // blocks of threads ask for their next tile
  int64_t pitch_of_scales() const { return divide_up(product.rows, kScalesOfCopy) * kScalesOfCopy; }
};

Work work_of(const dlfp4_cuda_product &product) {
  return {product_params(product), {}, product.depth * 2, 0, false, false};
}

Work work_of(const dlfp4_cuda_bytes_product &product) {
  const BytesParams p = bytes_params(product);
  const int kind = byte_kind(product);
  const int64_t scales = has_scales(kind) ? p.product.blocks : kind == kBytesByLine;
  return {p.product, p.of_x, product.depth, scales, false, false};
}

// --- The workspace, whatever device it is for --------------------------------------------------

struct Workspace {
  int64_t scales, sums, next, end;  // where they begin, in bytes
};

int64_t sums_of_row(const Work &work) { return divide_up(work.product.columns, 8) * 8; }

Workspace lay_out(const Work &work, const Routing &routing) {
  const int64_t rows = work.product.rows, taken = routing.gathers ? rows : 0, added = routing.adds ? rows : 0;
  const int64_t scales = taken * work.row_bytes;
  const int64_t sums = scales + (taken ? work.pitch_of_scales() * work.scales_of_row * 4 : 0);
  const int64_t next = sums + added * sums_of_row(work) * 4;
  return {scales, sums, next, next + (next ? 16 : 0)};
}

uint8_t *at(const Routing &routing, int64_t offset) { return static_cast<uint8_t *>(routing.workspace) + offset; }

// --- Launches ----------------------------------------------------------------------------------

int *next_tile(const Work &work, const Routing &routing) {
  return work.counts_tiles ? reinterpret_cast<int *>(at(routing, lay_out(work, routing).next)) : nullptr;
}

// Whether a kernel comes before the product's.
bool gathers(const Work &work) { return work.takes_tokens || work.counts_tiles; }

// Rows of tokens to the workspace, from where the product reads them then.
void take_tokens(Work *work, const Routing &routing, GatherParams *p) {
  p->x = work->product.x;
  p->x_stride = work->product.x_stride;
  p->rows = at(routing, 0);
  p->sixteens = work->row_bytes / 16;
  p->scales = work->scales;
  p->row_scales = reinterpret_cast<float *>(at(routing, lay_out(*work, routing).scales));
  p->scales_of_row = work->scales_of_row;
  p->pitch_of_scales = work->pitch_of_scales();
  p->count_rows = work->product.rows;
  p->count_tokens = routing.tokens;
  p->tokens = {routing.indices, routing.index_bits};
  work->product.x = p->rows;
  work->product.x_stride = work->row_bytes;
  if (p->scales_of_row) work->scales = {p->row_scales, 1, p->pitch_of_scales, 1};
}

int gather(Work *work, const Routing &routing, uintptr_t stream) {
  GatherParams p = {};
  p.next = next_tile(*work, routing);
  if (work->takes_tokens) take_tokens(work, routing, &p);
  p.threads_of_row = kThreads;
  while (p.threads_of_row > kWarpSize && p.count_rows * p.threads_of_row > blocks_for_device() * kThreads)
    p.threads_of_row /= 2;
  const int64_t blocks = divide_up(p.count_rows * p.threads_of_row, kThreads);
  return launch(kKernel_gather_tokens, least(std::max<int64_t>(blocks, 1), blocks_for_device()), &p, stream);
}

int combine(const Work &work, const Routing &routing, uintptr_t stream) {
  constexpr int kWarps = kThreads / kWarpSize;
  CombineParams p = {};
  p.product = work.product;
  p.product.rows = static_cast<int>(routing.tokens);
  p.rows = reinterpret_cast<const float *>(at(routing, lay_out(work, routing).sums));
  p.row_stride = sums_of_row(work);
  p.ends = {routing.ends, routing.end_bits};
  p.tokens = {routing.indices, routing.index_bits};
  p.weights = routing.weights;
  p.experts = static_cast<int>(routing.experts);
  p.routed = work.product.rows;
  const int64_t blocks = divide_up(routing.tokens, kWarps), parts = divide_up(work.product.columns, kWarpSize * 8);
  const int64_t wanted = std::min(parts, divide_up(4 * multiprocessors(), blocks));
  return launch_shape(kKernel_combine_weighted, {{blocks, wanted}, kThreads, 0, 1}, &p, stream);
}

// What all kernels of products get.
void fill(const Work &work, const Routing &routing, RoutedParams *p) {
  ProductParams &q = p->product = work.product;
  if (routing.adds)
    q.y = at(routing, lay_out(work, routing).sums), q.y_stride = sums_of_row(work), q.y_bytes = sizeof(float);
  p->ends = {routing.ends, routing.end_bits};
  p->experts = static_cast<int>(routing.experts);
  p->follows_gathering = gathers(work);
  p->next = next_tile(work, routing);
}

// What those of tiles get.
int fill(const Work &work, const Routing &routing, BoxType type, RoutedRows of, GroupedParams *p) {
  fill(work, routing, p);
  const ProductParams &q = p->product;
  p->stores_eights = q.y_bytes == 2 && q.columns % 8 == 0 && q.y_stride % 8 == 0 && is_aligned(q.y, 16);
  return describe(q.x, type, q.rows, q.depth, q.x_stride, routed_box(of), &p->x);
}

template <class Params>
int launch_tiles(const DeviceKernel &kernel, RoutedRows of, Params &p, uintptr_t stream) {
  const int64_t rows = p.product.rows, sharers = count_sharers(of);
  const int64_t blocks_of_weights = divide_up(divide_up(p.product.columns, kBlockRows) + 1, sharers);
  const int64_t tiles = (divide_up(rows, most_rows(of)) + std::min<int64_t>(rows, p.experts)) * blocks_of_weights;
  const int64_t clusters =
      std::min(tiles, std::max<int64_t>(int64_t{multiprocessors()} * blocks_at_once(of) / sharers, 1));
  return launch_shape(
      kernel,
      {{clusters * sharers, 1}, kManyRowsThreads, shared_of_blocks(blocks_at_once(of)), static_cast<int>(sharers)}, &p,
      stream);
}

// How weights are streamed, if they are: as many blocks of threads share a multiprocessor as it has room for.
struct Streaming {
  StreamedCut cut;
  int warps, shared_bytes, at_once;
};

Streaming plan_streaming(const ProductParams &q, int kind, int64_t experts) {
  Streaming plan = {};
  if (q.rows > kStreamedOnAverage * experts) return plan;
  plan.shared_bytes = cut_streamed_experts(q, kind, &plan.warps, &plan.cut);
  plan.at_once = kMostStreamingWarps / plan.warps;
  while (plan.at_once > 0 && plan.shared_bytes > shared_of_blocks(plan.at_once)) --plan.at_once;
  return plan;
}

int multiply_streamed(const Work &work, const dlfp4_cuda_product &product, int factor_step, const Routing &routing,
                      const Streaming &plan, uintptr_t stream) {
  GroupedStreamParams p = {};
  p.factor_step = factor_step;
  p.cut = plan.cut;
  if (routing.gathers) p.tokens = {routing.indices, routing.index_bits}, p.count_tokens = routing.tokens;
  fill(work, routing, &p);
  return launch_shape(prepared_kernel(product, kGroupedStream),
                      {{int64_t{multiprocessors()} * plan.at_once, 1}, plan.warps * kWarpSize, plan.shared_bytes, 1},
                      &p, stream);
}

int multiply_in_tiles(const Work &work, const dlfp4_cuda_product &product, int factor_step, const Routing &routing,
                      RoutedRows of, uintptr_t stream) {
  GroupedParams p = {};
  p.factor_step = factor_step;
  const int status = fill(work, routing, box_type(product.x_is_half != 0), of, &p);
  return status != 0
             ? status
             : launch_tiles(prepared_kernel(product, of == kManyRows ? kGroupedMany : kGroupedFew), of, p, stream);
}

int multiply_in_tiles(const Work &work, const dlfp4_cuda_bytes_product &product, const Routing &routing, RoutedRows of,
                      uintptr_t stream) {
  GroupedBytesParams p = {};
  p.of_x = work.scales;
  p.of_weights = bytes_params(product).of_weights;
  p.weight_rows = static_cast<int>(product.columns * routing.experts);
  int status = fill(work, routing, kByteBox, of, &p);
  if (status == 0)
    status =
        describe(p.product.weights, kByteBox, p.weight_rows, p.product.depth, product.w.stride, kBlockRows, &p.weights);
  p.maps_scales = status == 0 && describe_scales(p.of_x, p.product, &p.x_scales);
  const int kind = byte_kind(product);
  const DeviceKernel &kernel = are_few(of) ? kOfBytes<kGroupedFewBytes>[kind] : kOfBytes<kGroupedManyBytes>[kind];
  return status != 0 ? status : launch_tiles(kernel, of, p, stream);
}

bool has_few_rows(const Work &work, const Routing &routing) {
  return work.product.rows <= kFewOnAverage * routing.experts;
}

// Blocks of threads that share a multiprocessor ask for their next tile where there is memory for the count.
bool can_count_tiles(const Work &work, const Routing &routing) {
  return has_few_rows(work, routing) && lay_out(work, routing).end > 0;
}

// With what comes before and after multiply(work).
template <class Multiply>
int run_routed(Work work, const Routing &routing, uintptr_t stream, const Multiply &multiply) {
  int status = 0;
  if (work.product.rows > 0) {
    if (gathers(work)) status = gather(&work, routing, stream);
    if (status == 0) status = multiply(work);
  }
  return status != 0 || !routing.adds || routing.tokens == 0 ? status : combine(work, routing, stream);
}

int multiply_prepared(const dlfp4_cuda_product &product, int factor_step, const Routing &routing, uintptr_t stream) {
  Work work = work_of(product);
  const Streaming plan = plan_streaming(work.product, weight_kind(product.format), routing.experts);
  const bool is_streamed = plan.at_once > 0;
  const RoutedRows of = has_few_rows(work, routing) ? kFewRows : kManyRows;
  work.takes_tokens = routing.gathers && !is_streamed;  // streams read them where they lie
  work.counts_tiles = !is_streamed && can_count_tiles(work, routing);
  return run_routed(work, routing, stream, [&](const Work &routed) {
    return is_streamed ? multiply_streamed(routed, product, factor_step, routing, plan, stream)
                       : multiply_in_tiles(routed, product, factor_step, routing, of, stream);
  });
}

int multiply_bytes(const dlfp4_cuda_bytes_product &product, const Routing &routing, uintptr_t stream) {
  Work work = work_of(product);
  work.takes_tokens = routing.gathers;
  const RoutedRows of = has_few_rows(work, routing) ? kFewRowsOfBytes : kManyRowsOfBytes;
  work.counts_tiles = can_count_tiles(work, routing);
  return run_routed(work, routing, stream,
                    [&](const Work &routed) { return multiply_in_tiles(routed, product, routing, of, stream); });
}

// Rows and tiles are counted in 32 bits.
bool can_count(int64_t rows, int64_t columns, int64_t depth, const Routing &routing) {
  constexpr int64_t kMost = INT32_MAX - most_rows(kManyRows), kLeastRows = most_rows(kFewRows);  // of whole tiles
  return routing.experts > 0 && routing.experts <= kMostExperts && depth > 0 && depth <= kMost && rows <= kMost &&
         routing.tokens <= kMost && columns <= kMost / routing.experts &&
         divide_up(rows, kLeastRows) + routing.experts <= kMost / (divide_up(columns, kBlockRows) + 1);
}

}  // namespace
}  // namespace cuda
}  // namespace dlfp4

using namespace dlfp4;
using namespace dlfp4::cuda;

extern "C" {

int dlfp4_cuda_need_grouped(int device, int format) {
  const CurrentContext context(device);
  if (context.status() != 0) return context.status();
  return format >= 0 && weight_kind(format) == kNoKind ? kNoBinary : need_hopper_kernels(kImage);
}

int64_t dlfp4_cuda_grouped_matmul_workspace(const dlfp4_cuda_product *product, const dlfp4_cuda_routing *routing) {
  if (!can_count(product->rows, product->columns, product->stored_depth, *routing)) return -1;
  return lay_out(work_of(*product), *routing).end;
}

int64_t dlfp4_cuda_grouped_matmul_bytes_as_they_lie_workspace(const dlfp4_cuda_bytes_product *product,
                                                              const dlfp4_cuda_routing *routing) {
  if (!can_count(product->rows, product->columns, product->depth, *routing)) return -1;
  return lay_out(work_of(*product), *routing).end;
}

int dlfp4_cuda_grouped_matmul(int device, uintptr_t stream, const dlfp4_cuda_product *product, int factor_step,
                              const dlfp4_cuda_routing *routing) {
  const CurrentContext context(device);
  if (context.status() != 0) return context.status();
  if (weight_kind(product->format) == kNoKind || product->x_scales) return refuse(DLFP4_E_OPTION);
  if (const int status = need_hopper_kernels(kImage)) return status;
  if (!can_count(product->rows, product->columns, product->stored_depth, *routing)) return refuse(DLFP4_E_SHAPE);
  if (product->columns == 0) return 0;
  return multiply_prepared(*product, factor_step, *routing, stream);
}

int dlfp4_cuda_grouped_matmul_bytes_as_they_lie(int device, uintptr_t stream, const dlfp4_cuda_bytes_product *product,
                                                const dlfp4_cuda_routing *routing) {
  const CurrentContext context(device);
  if (context.status() != 0) return context.status();
  const bool has_both_scales = product->x.scales && product->w.scales;
  if (product->x.is_e5m2 || product->w.is_e5m2 || (byte_kind(*product) != kBytes && !has_both_scales))
    return refuse(DLFP4_E_OPTION);
  if (const int status = need_hopper_kernels(kImage)) return status;
  if (!can_count(product->rows, product->columns, product->depth, *routing)) return refuse(DLFP4_E_SHAPE);
  if (product->columns == 0) return 0;
  return multiply_bytes(*product, *routing, stream);
}
}
