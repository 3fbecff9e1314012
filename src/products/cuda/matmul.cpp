// Products with prepared weights: preparing them, the shape of a kernel's launch, launching it.
// Layout: prepared.h's.
// tactics.cpp chooses the kernel.
#include <algorithm>
#include <cmath>

#include "few_rows.h"
#include "gpu/context.h"
#include "gpu/runs.h"
#include "many_rows.h"
#include "product_kernels.h"
#include "product_params.h"
#include "rules/matrix.h"
#include "stream.h"
#include "tactics.h"

namespace dlfp4 {
namespace cuda {

const KernelNames kernels_of_products = {image_of_products::kNames, image_of_products::kNumKernels};

namespace {

using namespace image_of_products;

// --- Preparing ---------------------------------------------------------------------------------

// Blocks that have a prepared form. The scale of a whole tensor stays beside the form, whose scales are then all one.
constexpr struct {
  BlockKey blocks;
  WeightKind kind;
} kPreparable[] = {
    {{DLFP4_float4_e2m1fn, DLFP4_float8_e4m3fn, DLFP4_TWO_LEVEL, 16}, kNvfp4},
    {{DLFP4_float4_e2m1fn, DLFP4_float8_e8m0fnu, DLFP4_POWER, 32}, kMxfp4},
    {{DLFP4_float8_e4m3fn, DLFP4_float8_e8m0fnu, DLFP4_POWER, 32}, kMxfp8},
    {{DLFP4_float8_e4m3fn, DLFP4_float32, DLFP4_LARGEST, 0}, kMxfp8},
};

}  // namespace

// Formats whose lines have scales of their own have none.
int weight_kind(int format) {
  const dlfp4_format_row &row = dlfp4_formats[format];
  for (const auto &each : kPreparable)
    if (row.lines <= 1 && each.blocks == key_of_row(row)) return each.kind;
  return kNoKind;
}

namespace {

bool has_one_scale(int format) { return dlfp4_formats[format].lines == 0; }

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
  if (!has_one_scale(format)) {
    p.scales = static_cast<uint8_t *>(w.scales);
    p.scale_stride = w.scale_strides[0];
    p.scale_step = w.scale_strides[1];
  }
  p.rows = rows;
  p.columns = w.length;
  p.blocks_in_row = blocks_in_row(weight_kind(format), w.length);
  return p;
}

// --- Shapes ------------------------------------------------------------------------------------

StreamParams stream_params(const ProductParams &product, int kind, int eights, Shape *shape) {
  const int64_t tiles = divide_up(product.columns, kTile), groups = divide_up(product.rows, 8 * eights);
  StreamParams p = {product, {}};
  int warps;
  p.cut = cut_stream(product, kind, eights, divide_up(tiles * groups, multiprocessors()), &warps);
  *shape = {{divide_up(tiles, p.cut.tiles), groups},
            warps * kWarpSize,
            stream_shared_bytes(warps * p.cut.memory.bytes + kFactorBytes),
            1};
  return p;
}

}  // namespace

int describe(const uint8_t *data, BoxType type, int rows, int columns, int64_t stride, int box_rows, TensorMap *map) {
  constexpr int kSwizzle128 = 3, kPromote256 = 3;
  const uint64_t extents[2] = {static_cast<uint64_t>(columns), static_cast<uint64_t>(rows)};
  const uint64_t strides[1] = {static_cast<uint64_t>(stride)};
  const uint32_t box_columns = type == kByteBox ? kBoxBytes : kBoxBytes / 2;
  const uint32_t box[2] = {box_columns, static_cast<uint32_t>(box_rows)}, steps[2] = {1, 1};
  if (!opened_driver().cuTensorMapEncodeTiled) return kNotSupported;
  return opened_driver().cuTensorMapEncodeTiled(map, type, 2, const_cast<uint8_t *>(data), extents, strides, box, steps,
                                                0, kSwizzle128, kPromote256, 0);
}

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

namespace {

int describe_matrices(const Tactic &tactic, int kind, BoxType type, ManyRowsParams *p) {
  const ProductParams &q = p->product;
  const bool walks = tactic.family == kWalking;
  const int box_rows = tactic.rows / (walks ? 2 : 1), y_rows = is_prepared(kind) ? box_rows : kColumnsOfHalf;
  // Bulk copies write whole 16 bytes, at the end of a row too.
  p->maps_y = walks && q.y_bytes == 2 && q.columns % 8 == 0 && q.y_stride >= q.columns && q.y_stride % 8 == 0 &&
              reinterpret_cast<uintptr_t>(q.y) % 16 == 0 &&
              describe(q.y, box_type(q.y_is_half), q.rows, q.columns, q.y_stride * 2, y_rows, &p->y) == 0;
  return describe(q.x, type, q.rows, q.depth, q.x_stride, box_rows, &p->x);
}

// Blocks of threads with so many stages; what comes before the ring, and what takes its place later.
int many_rows_bytes(const Tactic &tactic, int kind, int stages, int first, int later) {
  return ring_barriers(kind, tactic.rows, tactic.halves, stages, first, later) + stages * kBarrierBytes;
}

Shape walk_shape(const Tactic &tactic, const ProductShape &shape, ManyRowsParams *p) {
  const WalkPlan plan = plan_walk(shape, tactic.rows, multiprocessors());
  const int staging = staging_bytes(shape.kind);
  p->order = plan.order;
  // The ring has blocks of the next tile, too.
  p->stages = ring_stages(shape.kind, tactic.rows, tactic.halves, INT16_MAX, kMostShared - staging);
  return {{plan.blocks, 1}, kManyRowsThreads, many_rows_bytes(tactic, shape.kind, p->stages, staging, 0), kWalkRanks};
}

// As many tiles at once as there are registers for, if it takes more than one a multiprocessor.
Shape tiles_shape(const Tactic &tactic, const ProductShape &shape, ManyRowsParams *p) {
  const int sharers = sharers_of(tactic), cluster = sharers * tactic.ranks;
  const int64_t across = divide_up(shape.columns, kColumnsOfHalf * tactic.halves) * cluster;
  const int64_t along = divide_up(shape.rows, tactic.rows * sharers);
  const int at_once = across * along > multiprocessors() ? tiles_at_once(shape.kind, tactic.rows) : 1;
  const auto blocks = static_cast<int>(divide_up(shape.depth, stage_depth(shape.kind)));
  p->stages = ring_stages(shape.kind, tactic.rows, tactic.halves, blocks, shared_of_blocks(at_once));
  const int sums = sums_bytes(tactic.rows, tactic.halves);
  return {{across, along}, kManyRowsThreads, many_rows_bytes(tactic, shape.kind, p->stages, 0, sums), cluster};
}

Shape many_rows_shape(const Tactic &tactic, const ProductShape &shape, ManyRowsParams *p) {
  p->halves = tactic.halves;
  return tactic.family == kWalking ? walk_shape(tactic, shape, p) : tiles_shape(tactic, shape, p);
}

// --- Products ----------------------------------------------------------------------------------

// The value of one in prepared weights: the exponent that decode_block leaves, and that of the largest scale.
float unit_of(int kind, bool is_half, int format, int largest) {
  if (!weight_layout(kind).is_power) return 0x1p8f;
  const int top = has_one_scale(format) ? 127 : largest;
  const int offset = weight_layout(kind).bits == 4 ? (is_half ? 128 : 124) : (is_half ? 134 : 130);
  return static_cast<float>(std::ldexp(1.0, top - offset));
}

// What kernels are told of either kind of product alike; they take `depth_of_stage` of K at a time.
template <class Product>
void set_result(const Product &product, int depth_of_stage, ProductParams *p) {
  p->y = static_cast<uint8_t *>(product.y);
  p->y_stride = product.y_stride;
  p->y_bytes = product.y_bytes;
  p->y_is_half = product.y_is_half != 0;
  p->rows = static_cast<int>(product.rows);
  p->columns = static_cast<int>(product.columns);
  p->depth = static_cast<int>(product.depth);
  p->blocks = static_cast<int>(divide_up(product.depth, depth_of_stage));
  p->alpha = product.alpha;
}

}  // namespace

ProductParams product_params(const dlfp4_cuda_product &product) {
  const int kind = weight_kind(product.format);
  ProductParams p = {};
  p.weights = static_cast<const uint8_t *>(product.weights);
  p.x = static_cast<const uint8_t *>(product.x);
  p.x_stride = product.x_scales ? product.x_stride / 2 : product.x_stride * 2;
  p.x_scales = static_cast<const uint8_t *>(product.x_scales);
  p.x_scale_stride = product.x_scale_stride;
  set_result(product, stage_depth(kind), &p);
  p.blocks_in_row = static_cast<int>(blocks_in_row(kind, product.stored_depth));
  p.unit = unit_of(kind, product.x_is_half != 0, product.format, product.largest);
  if (product.x_scales) p.unit *= coded_unit(kind);
  p.factors[0] = product.factors[0];
  p.factors[1] = product.factors[1];
  p.shifts = Shifts();
  return p;
}

namespace {

// Kernels count rows, columns and K in 32 bits, each rounded up to tiles, and blocks of weights and tiles of y too.
bool can_count(int64_t rows, int64_t columns, int64_t depth) {
  constexpr int64_t kMost = INT32_MAX - kWalkRows;
  return rows <= kMost && columns <= kMost && depth <= kMost &&
         divide_up(columns, kBlockRows) * std::max(divide_up(depth, kBlockK), divide_up(rows, kShortWalkRows)) <= kMost;
}

bool is_tactic(int number, int kind) { return number >= 0 && number < kNumTactics && serves(kTactics[number], kind); }

constexpr ProductOperation kSizes[] = {kMultiply8,   kMultiply16,  kMultiply32,     kMultiply64,
                                       kMultiply128, kMultiply256, kMultiplyWalking};
constexpr int kNumSizes = sizeof(kSizes) / sizeof(*kSizes);

// Of x of a type, by size and kind of weights. A quantized x is of the weights' elements.
template <int X>
constexpr KernelTable<kNumSizes, kNumWeightKinds> kProductKernels([](int size, int kind) {
  return find_kernel(KernelKey(kSizes[size], X, kind));
});

DeviceKernel product_kernel(const dlfp4_cuda_product &product, int kind, int size) {
  if (product.x_scales) return kProductKernels<DLFP4_float4_e2m1fn>[size][kind];
  return product.x_is_half ? kProductKernels<DLFP4_float16>[size][kind] : kProductKernels<DLFP4_bfloat16>[size][kind];
}

// The place among kSizes.
int size_of(const Tactic &tactic, int64_t rows) {
  if (tactic.family == kStream) return rows > 8;
  if (tactic.family == kWalking) return 6;
  return tactic.rows == 32 ? 2 : tactic.rows == 64 ? 3 : tactic.rows == 128 ? 4 : 5;
}

int multiply(const dlfp4_cuda_product &product, const Tactic &tactic, uintptr_t stream) {
  const int kind = weight_kind(product.format);
  const DeviceKernel kernel = product_kernel(product, kind, size_of(tactic, product.rows));
  Shape shape;
  if (tactic.family == kStream) {
    StreamParams p = stream_params(product_params(product), kind, product.rows > 8 ? 2 : 1, &shape);
    return launch_shape(kernel, shape, &p, stream);
  }
  ManyRowsParams p = {};
  p.product = product_params(product);
  shape = many_rows_shape(tactic, {kind, product.rows, product.columns, product.depth}, &p);
  const int status = describe_matrices(tactic, kind, box_type(product.x_is_half != 0), &p);
  return status != 0 ? status : launch_shape(kernel, shape, &p, stream);
}

// --- FP8 by FP8 --------------------------------------------------------------------------------

constexpr ProductOperation kByteSizes[] = {kMultiply16,    kMultiply32,      kMultiply64,        kMultiply128,
                                           kMultiplyPairs, kMultiplyWalking, kMultiplyWalking128};
constexpr int kNumByteSizes = sizeof(kByteSizes) / sizeof(*kByteSizes);

template <int Kind>
constexpr KernelTable<kNumByteSizes, kNumByteTypes> kByteKernels([](int size, int types) {
  return find_kernel(KernelKey(kByteSizes[size], types, Kind));
});

}  // namespace

int byte_kind(const dlfp4_cuda_bytes_product &product) {
  if (product.x.scale_lines == 0 && product.w.scale_lines == 0) return kBytes;
  if (product.x.scale_step == 0 && product.w.scale_step == 0) return kBytesByLine;
  return product.w.scale_lines % kBlockRows == 0 ? kBytesByBlock : kBytesByRow;
}

namespace {

DeviceKernel byte_kernel(const dlfp4_cuda_bytes_product &product, const Tactic &tactic) {
  const int types = (product.w.is_e5m2 ? kE5m2E4m3 : kE4m3E4m3) + (product.x.is_e5m2 ? 1 : 0);
  const int size = walks(tactic, kWalkRows)        ? 5
                   : walks(tactic, kShortWalkRows) ? 6
                   : tactic.family == kPaired      ? 4
                   : tactic.rows == 16             ? 0
                   : tactic.rows == 32             ? 1
                   : tactic.rows == 64             ? 2
                                                   : 3;
  const int kind = byte_kind(product);
  return kind == kBytes          ? kByteKernels<kBytes>[size][types]
         : kind == kBytesByLine  ? kByteKernels<kBytesByLine>[size][types]
         : kind == kBytesByBlock ? kByteKernels<kBytesByBlock>[size][types]
                                 : kByteKernels<kBytesByRow>[size][types];
}

// The scale of a tensor serves as that of all its blocks.
ByteScales byte_scales(const dlfp4_cuda_bytes &side) {
  if (side.scale_lines == 0) return {side.scales, 0, 0, 1};
  return {side.scales, side.scale_stride, side.scale_step, side.scale_lines};
}

ProductShape shape_of(const dlfp4_cuda_bytes_product &product) {
  return {byte_kind(product), product.rows, product.columns, product.depth};
}

}  // namespace

BytesParams bytes_params(const dlfp4_cuda_bytes_product &product) {
  BytesParams p = {};
  ProductParams &q = p.product;
  q.x = static_cast<const uint8_t *>(product.x.data);
  q.x_stride = product.x.stride;
  q.weights = static_cast<const uint8_t *>(product.w.data);
  set_result(product, stage_depth(kBytes), &q);
  q.unit = 1;
  if (byte_kind(product) == kBytes) {
    q.factors[0] = product.x.scales;
    q.factors[1] = product.w.scales;
  } else {
    p.of_x = byte_scales(product.x);
    p.of_weights = byte_scales(product.w);
  }
  return p;
}

namespace {

int multiply_bytes(const dlfp4_cuda_bytes_product &product, const Tactic &tactic, uintptr_t stream) {
  const int kind = byte_kind(product);
  BytesParams p = bytes_params(product);
  const Shape shape = many_rows_shape(tactic, shape_of(product), &p);
  int status = describe_matrices(tactic, kind, kByteBox, &p);
  if (status == 0)
    status = describe(p.product.weights, kByteBox, p.product.columns, p.product.depth, product.w.stride,
                      kColumnsOfHalf * p.halves / sharers_of(tactic), &p.weights);
  p.maps_scales = status == 0 && walks(tactic, kWalkRows) && describe_scales(p.of_x, p.product, &p.x_scales);
  return status != 0 ? status : launch_shape(byte_kernel(product, tactic), shape, &p, stream);
}

}  // namespace
}  // namespace cuda
}  // namespace dlfp4

using namespace dlfp4;
using namespace dlfp4::cuda;

extern "C" {

dlfp4_cuda_prepared_size dlfp4_cuda_size_prepared(int format, int64_t rows, int64_t columns) {
  const int kind = weight_kind(format);
  if (kind == kNoKind) return {0, 0, 0, 0};
  const WeightLayout layout = weight_layout(kind);
  return {count_blocks(kind, rows, columns), layout.code_bytes(), layout.scale_bytes(), kBlockRows};
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
  if (!weight_layout(weight_kind(format)).is_power) return 1;
  const int smallest = static_cast<int>(255 - report->smallest), largest = static_cast<int>(report->largest);
  return largest <= kTopScale && largest - smallest <= kSpanBfloat16;
}

int dlfp4_cuda_is_exact_in_half(int format, const dlfp4_cuda_report *report) {
  if (!weight_layout(weight_kind(format)).is_power) return 1;
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
  const ProductShape shape = {weight_kind(format), rows, columns, depth};
  if (shape.kind == kNoKind) return refuse(DLFP4_E_OPTION);
  if (!can_count(rows, columns, depth)) return refuse(DLFP4_E_SHAPE);
  const int status = need_hopper_kernels(kImage);
  if (status != 0 && status != kNoBinary) return status;
  *count = find_tactics(shape, multiprocessors(), status == 0, tactics, capacity);
  return 0;
}

int64_t dlfp4_cuda_reads_codes(int format, int64_t depth, int tactic) {
  constexpr int64_t kSlice = slice_blocks(4) * kBlockK;
  const int kind = weight_kind(format);
  const bool has_kernel = kind != kNoKind && kProductKernels<DLFP4_float4_e2m1fn>[0][kind] != kNoKernel;
  return kTactics[tactic].family == kStream && has_kernel && depth % kSlice == 0 ? kSlice : 0;
}

int dlfp4_cuda_find_bytes_tactics(int device, const dlfp4_cuda_bytes_product *product, int *tactics, int capacity,
                                  int *count) {
  const CurrentContext context(device);
  if (context.status() != 0) return context.status();
  if (const int status = need_hopper_kernels(kImage)) return status;
  if (!can_count(product->rows, product->columns, product->depth)) return refuse(DLFP4_E_SHAPE);
  *count = find_tactics(shape_of(*product), multiprocessors(), true, tactics, capacity);
  return 0;
}

int dlfp4_cuda_multiply_bytes(int device, uintptr_t stream, const dlfp4_cuda_bytes_product *product, int tactic) {
  const CurrentContext context(device);
  if (context.status() != 0) return context.status();
  const bool has_x_scales = product->x.scales != nullptr, has_scales_of_w = product->w.scales != nullptr;
  if (!is_tactic(tactic, byte_kind(*product)) || (byte_kind(*product) != kBytes && !(has_x_scales && has_scales_of_w)))
    return refuse(DLFP4_E_OPTION);
  if (const int status = need_hopper_kernels(kImage)) return status;
  if (product->depth == 0 || !can_count(product->rows, product->columns, product->depth)) return refuse(DLFP4_E_SHAPE);
  if (product->rows * product->columns == 0) return 0;
  return multiply_bytes(*product, kTactics[tactic], stream);
}

int dlfp4_cuda_multiply(int device, uintptr_t stream, const dlfp4_cuda_product *product, int tactic) {
  const CurrentContext context(device);
  if (context.status() != 0) return context.status();
  const int kind = weight_kind(product->format);
  if (kind == kNoKind || !is_tactic(tactic, kind)) return refuse(DLFP4_E_OPTION);
  if (kTactics[tactic].family != kStream)
    if (const int status = need_hopper_kernels(kImage)) return status;
  if (product->x_scales && dlfp4_cuda_reads_codes(product->format, product->depth, tactic) == 0)
    return refuse(DLFP4_E_OPTION);
  if (product->depth == 0 || !can_count(product->rows, product->columns, product->stored_depth))
    return refuse(DLFP4_E_SHAPE);
  if (product->rows * product->columns == 0) return 0;
  return multiply(*product, kTactics[tactic], stream);
}
}
