// Products with prepared weights: preparing them, choosing a kernel and its shape, launching it.
// Layout: prepared.h's.
// Trick: a tactic is a row of a table; which are tried first is a matter of how many multiprocessors they keep busy.
#include <algorithm>
#include <cmath>

#include "../cpu/blocks.h"
#include "context.h"
#include "few_rows.h"
#include "jobs.h"
#include "many_rows.h"

namespace dlfp4 {
namespace cuda {
namespace {

// --- Preparing ---------------------------------------------------------------------------------

constexpr int kNoKind = -1;

int weight_kind(int format) {
  switch (format) {
    case DLFP4_FORMAT_nvfp4:
      return kNvfp4;
    case DLFP4_FORMAT_mxfp4:
      return kMxfp4;
    case DLFP4_FORMAT_mxfp8_e4m3:
    case DLFP4_FORMAT_fp8_e4m3:
      return kMxfp8;
    default:
      return kNoKind;
  }
}

int64_t blocks_in_row(int kind, int64_t columns) {
  const int slice = slice_blocks(weight_layout(kind).bits);
  return divide_up(columns, kBlockK * slice) * slice;
}

int64_t count_blocks(int kind, int64_t rows, int64_t columns) {
  return divide_up(rows, kBlockRows) * blocks_in_row(kind, columns);
}

PrepareParams prepare_params(const dlfp4_blocks &w, int format, int64_t rows) {
  PrepareParams p = {};
  p.layout = weight_layout(weight_kind(format));
  p.codes = static_cast<uint8_t *>(w.data);
  p.code_stride = p.layout.bits == 4 ? w.strides[0] / 2 : w.strides[0];
  p.code_step = w.strides[1];
  if (format != DLFP4_FORMAT_fp8_e4m3) {
    p.scales = static_cast<uint8_t *>(w.scales);
    p.scale_stride = w.scale_strides[0];
    p.scale_step = w.scale_strides[1];
  }
  p.rows = rows;
  p.columns = w.length;
  p.blocks_in_row = blocks_in_row(weight_kind(format), w.length);
  return p;
}

// --- Tactics -----------------------------------------------------------------------------------

enum KernelFamily { kStream, kShared, kWalking };

// Tiles of `rows` of x by 64 * `halves` columns of y, with K shared out to `ranks` blocks of threads.
struct Tactic {
  const char *name;
  KernelFamily family;
  int rows, halves, ranks;
};

#define DLFP4_SHARED_TACTICS(rows)                                                                                \
  {#rows "x128", kShared, rows, 2, 1}, {#rows "x128/2", kShared, rows, 2, 2}, {#rows "x64", kShared, rows, 1, 1}, \
      {#rows "x64/2", kShared, rows, 1, 2}, {#rows "x64/4", kShared, rows, 1, 4}

// The first and the last are the ones that guess() asks for by their place.
constexpr Tactic kTactics[] = {
    {"stream", kStream, 16, 0, 1}, DLFP4_SHARED_TACTICS(32),  DLFP4_SHARED_TACTICS(64),
    DLFP4_SHARED_TACTICS(128),     DLFP4_SHARED_TACTICS(256), {"walk", kWalking, kWalkRows, 2, 1},
};
#undef DLFP4_SHARED_TACTICS
constexpr int kNumTactics = sizeof(kTactics) / sizeof(kTactics[0]);

struct Problem {
  int kind;
  int64_t rows, columns, depth;
};

int64_t tiles_of(const Tactic &tactic, const Problem &problem) {
  return divide_up(problem.columns, kColumnsOfHalf * tactic.halves) * divide_up(problem.rows, tactic.rows);
}

bool fits(const Tactic &tactic, const Problem &problem) {
  if (tactic.family == kStream) return true;
  const int64_t ways = int64_t{tactic.ranks} * (kConsumers / tactic.halves);
  return ways <= divide_up(problem.depth, kBlockK) && divide_up(problem.rows, tactic.rows) <= UINT16_MAX;
}

// Blocks of threads.
int64_t blocks_of(const Tactic &tactic, const Problem &problem) { return tiles_of(tactic, problem) * tactic.ranks; }

// Which of two is the better guess: more blocks of threads, as long as all run at once; then wide tiles, for which x is
// read less often; then tall ones, for which weights are.
bool is_better(const Tactic &a, const Tactic &b, const Problem &problem, int processors) {
  const int64_t of_a = blocks_of(a, problem), of_b = blocks_of(b, problem);
  if ((of_a <= processors) != (of_b <= processors)) return of_a <= processors;
  if (of_a != of_b) return (of_a > of_b) == (of_a <= processors);
  return a.halves != b.halves ? a.halves > b.halves : a.rows > b.rows;
}

// Which to try first. Walking pays where its large tiles fill the device; else tiles hold all rows, or half of many.
const Tactic &guess(const Problem &problem, const Tactic *first, const Tactic *last, int processors) {
  const Tactic &walk = last[-1];
  if (problem.rows <= kTile || walk.family != kWalking) return *first;  // stream
  if (problem.rows > kWalkRows / 2 && tiles_of(walk, problem) * 4 >= processors * 3) return walk;
  const int64_t rows = std::min<int64_t>(problem.rows, kWalkRows), least_rows = rows > 64 ? rows / 2 : rows;
  const Tactic *best = nullptr;
  for (const Tactic *tactic = first; tactic != last; ++tactic) {
    const bool suits = tactic->rows >= least_rows && tactic->rows < std::max<int64_t>(2 * rows, 64);
    if (tactic->family != kShared || !suits) continue;
    if (fits(*tactic, problem) && (!best || is_better(*tactic, *best, problem, processors))) best = tactic;
  }
  return best ? *best : *first;
}

// Whether it may be the fastest: tiles not far from the rows, blocks of threads for a good part of the device.
bool is_plausible(const Tactic &tactic, const Problem &problem, int processors) {
  if (tactic.family == kStream) return problem.rows <= 64;
  const int64_t blocks = blocks_of(tactic, problem);
  const bool fits_rows = tactic.rows < 4 * problem.rows && (tactic.rows * 4 >= problem.rows || tactic.rows >= 128);
  return fits_rows && blocks * 3 >= processors && (tactic.ranks == 1 || blocks <= 3 * processors);
}

// --- Shapes ------------------------------------------------------------------------------------

// Kernels for a GPU from sm_90 on wait for the one before them themselves; those for all GPUs do not.
bool overlaps() { return ptx_version(kKernel_multiply_8_kNvfp4_bfloat16) >= 90; }

bool has_hopper_kernels() { return ptx_version(kKernel_multiply_8_kNvfp4_bfloat16) == 90; }

// As many warps as there are slices and memory for, with as little for each to do as that allows.
int warps_of_stream(int kind, int eights, int slices) {
  const int most = std::min(kMostWarps, most_shared_memory() / warp_bytes(kind, eights, 1, false));
  return static_cast<int>(divide_up(slices, divide_up(slices, most)));
}

StreamParams stream_params(const ProductParams &product, int kind, int eights, Shape *shape) {
  StreamParams p = {};
  p.product = product;
  const int slices = static_cast<int>(divide_up(product.blocks, slice_blocks(weight_layout(kind).bits)));
  const int warps = warps_of_stream(kind, eights, slices);
  const int64_t tiles = divide_up(product.columns, kTile), groups = divide_up(product.rows, 8 * eights);
  p.slices_of_warp = static_cast<int>(divide_up(slices, warps));
  p.full_warps = slices - (p.slices_of_warp - 1) * warps;
  p.reuses = p.slices_of_warp == 1;
  p.tiles = static_cast<int>(divide_up(tiles * groups, multiprocessors()));
  while (p.tiles > 1 && warps * warp_bytes(kind, eights, p.tiles, p.reuses) > most_shared_memory()) --p.tiles;
  const int shared_bytes = warps * warp_bytes(kind, eights, p.tiles, p.reuses);
  *shape = {{divide_up(tiles, p.tiles), groups}, warps * kWarpSize, shared_bytes, 1, overlaps()};
  return p;
}

// The driver's description of x, for boxes of `rows` by kBlockK.
int describe_x(const ProductParams &product, bool is_half, int rows, TensorMap *map) {
  constexpr int kFloat16Type = 6, kBfloat16Type = 9, kSwizzle128 = 3, kPromote256 = 3;
  const uint64_t extents[2] = {static_cast<uint64_t>(product.depth), static_cast<uint64_t>(product.rows)};
  const uint64_t strides[1] = {static_cast<uint64_t>(product.x_stride)};
  const uint32_t box[2] = {kBlockK, static_cast<uint32_t>(rows)}, steps[2] = {1, 1};
  if (!opened_driver().cuTensorMapEncodeTiled) return 801;  // CUDA_ERROR_NOT_SUPPORTED
  return opened_driver().cuTensorMapEncodeTiled(map, is_half ? kFloat16Type : kBfloat16Type, 2,
                                                const_cast<uint8_t *>(product.x), extents, strides, box, steps, 0,
                                                kSwizzle128, kPromote256, 0);
}

Shape many_rows_shape(const Tactic &tactic, const Problem &problem, ManyRowsParams *p) {
  constexpr int kMostStages = 32;
  const int stage = stage_bytes(problem.kind, tactic.rows, tactic.halves);
  const int staging = tactic.family == kWalking ? kStaging : 0;
  const int blocks = static_cast<int>(divide_up(problem.depth, kBlockK));
  p->halves = tactic.halves;
  p->stages = std::min({kMostStages, (kMostShared - staging) / stage, std::max(blocks, 2)});
  p->group = 32;
  const int64_t tiles = tiles_of(tactic, problem);
  const int ring = p->stages * stage + staging;
  if (tactic.family == kWalking) {
    const int64_t waves = divide_up(tiles, multiprocessors());
    return {{divide_up(tiles, waves), 1}, kManyRowsThreads, ring, 1, true};
  }
  const int64_t across = divide_up(problem.columns, kColumnsOfHalf * tactic.halves);
  return {{across * tactic.ranks, divide_up(problem.rows, tactic.rows)},
          kManyRowsThreads,
          std::max(ring, sums_bytes(tactic.rows, tactic.halves)),
          tactic.ranks,
          true};
}

// --- Products ----------------------------------------------------------------------------------

// What one is in prepared weights: the exponent that decode_block leaves, and that of the largest scale.
float unit_of(int kind, bool is_half, int format, int largest) {
  if (kind == kNvfp4) return 0x1p8f;
  const int top = format == DLFP4_FORMAT_fp8_e4m3 ? 127 : largest;
  const int offset = kind == kMxfp4 ? (is_half ? 128 : 124) : (is_half ? 134 : 130);
  return static_cast<float>(std::ldexp(1.0, top - offset));
}

ProductParams product_params(const dlfp4_cuda_product &product) {
  const int kind = weight_kind(product.format);
  ProductParams p = {};
  p.weights = static_cast<const uint8_t *>(product.weights);
  p.x = static_cast<const uint8_t *>(product.x);
  p.x_stride = product.x_stride * 2;
  p.y = static_cast<uint8_t *>(product.y);
  p.y_stride = product.y_stride;
  p.y_bytes = product.y_bytes;
  p.y_is_half = product.y_is_half != 0;
  p.rows = static_cast<int>(product.rows);
  p.columns = static_cast<int>(product.columns);
  p.depth = static_cast<int>(product.depth);
  p.blocks = static_cast<int>(divide_up(product.depth, kBlockK));
  p.blocks_in_row = static_cast<int>(blocks_in_row(kind, product.stored_depth));
  p.unit = unit_of(kind, product.x_is_half != 0, product.format, product.largest);
  p.alpha = product.alpha;
  p.factors[0] = product.factors[0];
  p.factors[1] = product.factors[1];
  p.shifts = Shifts();
  return p;
}

// The number of a kernel of DLFP4_CUDA_PRODUCTS, whose rows go by kind, type and size.
KernelNumber product_kernel(int kind, bool is_half, int size) {
  constexpr int kSizes = kKernel_multiply_8_kNvfp4_float16 - kKernel_multiply_8_kNvfp4_bfloat16;
  return plus(kKernel_multiply_8_kNvfp4_bfloat16, (kind * 2 + is_half) * kSizes + size);
}

int size_of(const Tactic &tactic, int64_t rows) {
  if (tactic.family == kStream) return rows > 8;
  if (tactic.family == kWalking) return 6;
  return tactic.rows == 32 ? 2 : tactic.rows == 64 ? 3 : tactic.rows == 128 ? 4 : 5;
}

int multiply(const dlfp4_cuda_product &product, const Tactic &tactic, uintptr_t stream) {
  const int kind = weight_kind(product.format);
  const bool is_half = product.x_is_half != 0;
  const KernelNumber kernel = product_kernel(kind, is_half, size_of(tactic, product.rows));
  Shape shape;
  if (tactic.family == kStream) {
    StreamParams p = stream_params(product_params(product), kind, product.rows > 8 ? 2 : 1, &shape);
    return launch_shape(kernel, shape, &p, stream);
  }
  ManyRowsParams p = {};
  p.product = product_params(product);
  shape = many_rows_shape(tactic, {kind, product.rows, product.columns, product.depth}, &p);
  const int status = describe_x(p.product, is_half, tactic.rows, &p.x);
  return status != 0 ? status : launch_shape(kernel, shape, &p, stream);
}

}  // namespace
}  // namespace cuda
}  // namespace dlfp4

using namespace dlfp4;
using namespace dlfp4::cuda;

extern "C" {

dlfp4_cuda_prepared_size dlfp4_cuda_size_prepared(int format, int64_t rows, int64_t columns) {
  const int kind = weight_kind(format);
  if (kind == kNoKind) return {0, 0, 0};
  const WeightLayout layout = weight_layout(kind);
  return {count_blocks(kind, rows, columns), layout.code_bytes(), layout.scale_bytes()};
}

int dlfp4_cuda_inspect(int device, uintptr_t stream, const dlfp4_blocks *w, int format, int64_t rows,
                       dlfp4_cuda_report *report) {
  const CurrentContext context(device);
  if (context.status() != 0) return context.status();
  PrepareParams p = prepare_params(*w, format, rows);
  p.threads = rows * divide_up(w->length, p.layout.group);
  p.report = &report->refused;
  const int status = set_bytes(report, 0, sizeof(*report), stream);
  return status != 0 ? status : run(kKernel_inspect_weights, p.threads, p, stream);
}

int dlfp4_cuda_can_prepare(int format, const dlfp4_cuda_report *report) {
  if (report->refused) return 0;
  if (weight_kind(format) == kNvfp4) return 1;
  const int smallest = static_cast<int>(255 - report->smallest), largest = static_cast<int>(report->largest);
  return largest <= kTopScale && largest - smallest <= kSpanBfloat16;
}

int dlfp4_cuda_is_exact_in_half(int format, const dlfp4_cuda_report *report) {
  if (weight_kind(format) == kNvfp4) return 1;
  return static_cast<int>(report->largest) - static_cast<int>(255 - report->smallest) <= kSpanFloat16;
}

int dlfp4_cuda_prepare(int device, uintptr_t stream, const dlfp4_blocks *w, int format, int64_t rows, int largest,
                       void *prepared, int back) {
  const CurrentContext context(device);
  if (context.status() != 0) return context.status();
  PrepareParams p = prepare_params(*w, format, rows);
  p.largest = largest;
  p.prepared = static_cast<uint8_t *>(prepared);
  p.threads = count_blocks(weight_kind(format), rows, w->length) * kTilesInBlock * kWarpSize;
  return run(back ? kKernel_restore_weights : kKernel_prepare_weights, p.threads, p, stream);
}

const char *dlfp4_cuda_tactic_name(int tactic) {
  return tactic >= 0 && tactic < kNumTactics ? kTactics[tactic].name : nullptr;
}

int dlfp4_cuda_find_tactics(int device, int format, int64_t rows, int64_t columns, int64_t depth, int *tactics,
                            int capacity, int *count) {
  const CurrentContext context(device);
  if (context.status() != 0) return context.status();
  const Problem problem = {weight_kind(format), rows, columns, depth};
  const Tactic *last = kTactics + (has_hopper_kernels() ? kNumTactics : 1);
  const int processors = multiprocessors();
  const Tactic *first = &guess(problem, kTactics, last, processors);
  *count = 0;
  tactics[(*count)++] = static_cast<int>(first - kTactics);
  for (const Tactic *tactic = kTactics; tactic != last && *count < capacity; ++tactic)
    if (tactic != first && fits(*tactic, problem) && is_plausible(*tactic, problem, processors))
      tactics[(*count)++] = static_cast<int>(tactic - kTactics);
  return 0;
}

int dlfp4_cuda_multiply(int device, uintptr_t stream, const dlfp4_cuda_product *product, int tactic) {
  const CurrentContext context(device);
  if (context.status() != 0) return context.status();
  if (tactic < 0 || tactic >= kNumTactics || weight_kind(product->format) == kNoKind) return refuse(DLFP4_E_OPTION);
  const int64_t words = dlfp4_cuda_size_prepared(product->format, product->columns, product->stored_depth).blocks *
                        weight_layout(weight_kind(product->format)).bytes() / 4;
  if (words > UINT32_MAX || product->rows > INT32_MAX || product->columns > INT32_MAX || product->depth > INT32_MAX)
    return refuse(DLFP4_E_SHAPE);
  return multiply(*product, kTactics[tactic], stream);
}
}
