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

int describe(const uint8_t *data, BoxType type, int rows, int columns, int64_t stride, int box_rows, TensorMap *map,
             int box_columns) {
  constexpr int kSwizzle128 = 3, kPromote256 = 3;
  const uint64_t extents[2] = {static_cast<uint64_t>(columns), static_cast<uint64_t>(rows)};
  const uint64_t strides[1] = {static_cast<uint64_t>(stride)};
  const int swizzled = type == kByteBox ? kBoxBytes : kBoxBytes / 2, of_row = box_columns ? box_columns : swizzled;
  const uint32_t box[2] = {static_cast<uint32_t>(of_row), static_cast<uint32_t>(box_rows)}, steps[2] = {1, 1};
  if (!opened_driver().cuTensorMapEncodeTiled) return kNotSupported;
  return opened_driver().cuTensorMapEncodeTiled(map, type, 2, const_cast<uint8_t *>(data), extents, strides, box, steps,
                                                0, of_row == swizzled ? kSwizzle128 : 0, kPromote256, 0);
}

namespace {

// Rows of x or of weights.
struct Lines {
  const uint8_t *data;
  BoxType type;
  int count, depth;
  int64_t stride;  // bytes
};

// Tiles of `tile` rows, of which `copiers` blocks of threads copy equal parts: multiples of the eight rows that are
// swizzled alike.
int describe_tiles(const Lines &lines, int tile, int copiers, TiledRows *tiles) {
  constexpr int kSwizzled = 8;
  const auto describe_rows = [&](int count, TileRows *rows) {
    rows->count = static_cast<int>(divide_up(count, kSwizzled * copiers)) * kSwizzled;
    return describe(lines.data, lines.type, lines.count, lines.depth, lines.stride, rows->count, &rows->map);
  };
  const int status = describe_rows(std::min(tile, lines.count), &tiles->whole), last = lines.count % tile;
  tiles->last = tiles->whole;
  return status != 0 || last == 0 || lines.count < tile ? status : describe_rows(last, &tiles->last);
}

int describe_matrices(const Tactic &tactic, int kind, BoxType type, ManyRowsParams *p) {
  const ProductParams &q = p->product;
  const int y_rows = is_prepared(kind) ? tactic.rows / 2 : kRowsOfGroup;
  const int y_columns =
      is_prepared(kind) ? kColumnsOfHalf : columns_of_piece(columns_of_group(tactic.rows, tactic.columns));
  // Bulk copies write whole 16 bytes, at the end of a row too.
  p->maps_y = walks(tactic) && q.y_bytes == 2 && q.columns % 8 == 0 && q.y_stride >= q.columns && q.y_stride % 8 == 0 &&
              reinterpret_cast<uintptr_t>(q.y) % 16 == 0 &&
              describe(q.y, box_type(q.y_is_half), q.rows, q.columns, q.y_stride * 2, y_rows, &p->y, y_columns) == 0;
  const int tile = tactic.family == kWalking ? kWalkRows / 2 : tactic.rows;
  return describe_tiles({q.x, type, q.rows, q.depth, q.x_stride}, tile, tactic.family == kByteWalk ? kWalkRanks : 1,
                        &p->x);
}

// Blocks of threads with so many stages; what comes before the ring, and what takes its place later.
int many_rows_bytes(const Tactic &tactic, int kind, int stages, int first, int later) {
  return ring_barriers(kind, tactic.rows, tactic.columns, stages, first, later) + stages * kBarrierBytes;
}

Shape walk_shape(const Tactic &tactic, const ProductShape &shape, ManyRowsParams *p) {
  const WalkPlan plan = plan_walk(shape, tactic, multiprocessors());
  const int staging = staging_bytes(shape.kind, tactic.rows, tactic.columns);
  p->order = plan.order;
  // The ring has blocks of the next tile, too.
  p->stages = ring_stages(shape.kind, tactic.rows, tactic.columns, INT16_MAX, kMostShared - staging);
  return {{plan.blocks, 1}, kManyRowsThreads, many_rows_bytes(tactic, shape.kind, p->stages, staging, 0), kWalkRanks};
}

// As many tiles at once as there are registers for, if it takes more than one a multiprocessor.
Shape tiles_shape(const Tactic &tactic, const ProductShape &shape, ManyRowsParams *p) {
  const int64_t across = divide_up(shape.columns, tactic.columns) * tactic.ranks;
  const int64_t along = divide_up(shape.rows, tactic.rows);
  const int at_once = across * along > multiprocessors() ? tiles_at_once(shape.kind, tactic.rows) : 1;
  const auto blocks = static_cast<int>(divide_up(shape.depth, stage_depth(shape.kind)));
  p->stages = ring_stages(shape.kind, tactic.rows, tactic.columns, blocks, shared_of_blocks(at_once));
  const int sums = sums_bytes(tactic.rows, tactic.columns);
  return {{across, along}, kManyRowsThreads, many_rows_bytes(tactic, shape.kind, p->stages, 0, sums), tactic.ranks};
}

Shape many_rows_shape(const Tactic &tactic, const ProductShape &shape, ManyRowsParams *p) {
  p->columns = tactic.columns;
  return walks(tactic) ? walk_shape(tactic, shape, p) : tiles_shape(tactic, shape, p);
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
  constexpr int64_t kMost = INT32_MAX - 4 * kWalkRows;  // a cluster's second tile may begin beyond the last row
  // Tiles of 64 by 64, of which clusters have two.
  const int64_t across = divide_up(columns, kColumnsOfHalf) + 1, along = divide_up(rows, kRowsOfGroup) + 1;
  return rows <= kMost && columns <= kMost && depth <= kMost &&
         divide_up(columns, kBlockRows) * divide_up(depth, kBlockK) <= kMost && across * along <= kMost;
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

// The size of a tile that a block of threads multiplies alone, or that such blocks walk over.
constexpr struct {
  ProductOperation operation;
  int rows, columns;  // of one alone 0: its kernel is told
} kByteTiles[] = {{kMultiply16, 16, 0},
                  {kMultiply32, 32, 0},
                  {kMultiply64, 64, 0},
                  {kMultiply128, 128, 0},
                  {kMultiplyWalk64x64, 64, 64},
                  {kMultiplyWalk64x112, 64, 112},
                  {kMultiplyWalk64x128, 64, 128},
                  {kMultiplyWalk64x192, 64, 192},
                  {kMultiplyWalk128x64, 128, 64},
                  {kMultiplyWalk128x112, 128, 112},
                  {kMultiplyWalk128x128, 128, 128},
                  {kMultiplyWalk128x144, 128, 144},
                  {kMultiplyWalk256x128, 256, 128}};
constexpr int kNumByteTiles = sizeof(kByteTiles) / sizeof(*kByteTiles);

// The place among kByteTiles.
int tile_of(const Tactic &tactic) {
  const int columns = is_byte_walk(tactic) ? tactic.columns : 0;
  int i = 0;
  while (kByteTiles[i].rows != tactic.rows || kByteTiles[i].columns != columns) ++i;
  return i;
}

template <int Kind>
constexpr KernelTable<kNumByteTiles, kNumByteTypes> kByteKernels([](int tile, int types) {
  return find_kernel(KernelKey(kByteTiles[tile].operation, types, Kind));
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
  const int tile = tile_of(tactic);
  const int kind = byte_kind(product);
  return kind == kBytes          ? kByteKernels<kBytes>[tile][types]
         : kind == kBytesByLine  ? kByteKernels<kBytesByLine>[tile][types]
         : kind == kBytesByBlock ? kByteKernels<kBytesByBlock>[tile][types]
                                 : kByteKernels<kBytesByRow>[tile][types];
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
  if (status == 0) {
    const ProductParams &q = p.product;
    status = describe_tiles({q.weights, kByteBox, q.columns, q.depth, product.w.stride}, p.columns, sharers_of(tactic),
                            &p.weights);
  }
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
