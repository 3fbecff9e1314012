// Block scaling on CUDA memory: which kernel serves, with which parameters, in how many blocks.
// Layout: matrices and blocks as in dlfp4.h.
// Trick: rows that follow one another are one; what is the same along rows and columns goes along rows.
#include <string.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "block_kernels.h"
#include "blocks/scales.h"
#include "gpu/context.h"
#include "gpu/runs.h"
#include "host/threads.h"
#include "params.h"
#include "rules/hadamard.h"

namespace dlfp4 {
namespace cuda {

const KernelNames kernels_of_blocks = {image_of_blocks::kNames, image_of_blocks::kNumKernels};

namespace {

using namespace image_of_blocks;

Rotation make_rotation(uint32_t signs) {
  Rotation rotation = {signs, {}};
  for (int i = 0; i < kRotatedLength; ++i) rotation.quarters[i] = signed_quarter(signs, i);
  return rotation;
}

// --- Quantize --------------------------------------------------------------------------------

// The whole tensor's largest magnitude or decode scale on the device, or the latter as a number, and where it is kept.
struct TensorPlace {
  const uint32_t *amax;
  const float *decode;
  float number;
  float *keep[2];
};

// What is the same along rows and along columns.
struct Quantization {
  const FormatInfo &format;
  const dlfp4_recipe &recipe;
  ScaleRule rule;
  TensorPlace place;
  uintptr_t stream;
};

QuantizeParams quantize_params(const Quantization &of, const Lines &x, const dlfp4_blocks &blocks) {
  const FormatInfo &format = of.format;
  const Scales scales = make_scales(blocks, format);
  QuantizeParams p = {};
  p.src = x.data;
  p.lines = x.lines;
  p.length = x.length;
  p.line_stride = x.line_stride;
  p.step = x.step;
  p.stored = blocks.length;
  p.data = static_cast<uint8_t *>(blocks.data);
  p.data_stride = blocks.strides[0];
  p.data_step = blocks.strides[1];
  p.scales = scales.data;
  p.layout = blocks.layout;
  p.scale_stride = scales.stride;
  p.scale_step = scales.step;
  p.pitch = scales.pitch;
  p.group = format.group;
  p.block = least(format.block, format.whole ? 4096 : format.block);
  p.blocks = divide_up(blocks.length, p.block);
  p.repeats = format.row->repeats;
  p.whole = format.whole;
  p.source = kTypes[kSourceRows[x.source]];
  p.element = kTypes[encoded_row(format.row->element)];
  p.middle = format.row->element == DLFP4_uint4 ? kMiddle : 0;
  p.scale = kTypes[format.row->scale];
  p.rule = of.rule;
  p.rounding = of.recipe.rounding;
  p.zero = of.recipe.drops_negative_zero ? 0.0f : -0.0f;
  p.plus_zeros = of.recipe.rounds_to_plus_zero && is_float(p.element) && p.element.specials != DLFP4_FNUZ;
  p.seed = of.recipe.seed;
  p.first = of.recipe.first;
  p.rotation = make_rotation(blocks.rotation);
  p.amax = of.place.amax;
  p.decode = of.place.decode;
  p.number = of.place.number;
  p.decodes = blocks.decodes;
  p.finds_decodes = blocks.finds_decodes;
  memcpy(p.keep, of.place.keep, sizeof(p.keep));
  return p;
}

// --- Quantize: the fast kernels --------------------------------------------------------------

constexpr int64_t kMostSteps = UINT32_MAX - 2 * kThreads;

// What blocks along rows and columns of row-major memory go by; kByName: by the kernels for anything.
constexpr int operation_along_rows(const dlfp4_format_row &row) {
  if (row.length == 0) return row.lines == 0 ? kQuantizeWhole : kQuantizeLines;
  if (row.lines == 1) return kQuantizeRows;
  if (row.lines != row.length) return kByName;
  return row.repeats ? kQuantizeRepeatingSquares : kQuantizeSquares;
}

constexpr int operation_along_columns(const dlfp4_format_row &row) {
  if (row.length == 0) return kByName;
  if (row.lines == 1) return row.length == kTileRows ? kQuantizeStrip : kQuantizeTile;
  return row.lines == row.length && row.repeats ? kQuantizeTileOfSquares : kByName;
}

constexpr DeviceKernel find_quantizer(int operation, const dlfp4_format_row &row, int source) {
  if (operation == kByName) return kNoKernel;
  return find_kernel(KernelKey(operation, kSourceRows[source], row.element, row.scale, row.kind, row.length));
}

// By format and source.
using FormatKernels = KernelTable<DLFP4_NUM_FORMATS, kNumSources>;
constexpr FormatKernels kRowKernels([](int format, int source) {
  return find_quantizer(operation_along_rows(dlfp4_formats[format]), dlfp4_formats[format], source);
});
constexpr FormatKernels kLineKernels([](int format, int source) {  // where each line has a scale of its own
  return find_quantizer(kQuantizeLines, dlfp4_formats[format], source);
});
constexpr FormatKernels kColumnKernels([](int format, int source) {
  return find_quantizer(operation_along_columns(dlfp4_formats[format]), dlfp4_formats[format], source);
});

constexpr FormatKernels kNoKernels([](int, int) { return kNoKernel; });

// Those for an operation on blocks of one line.
constexpr auto quantizers_of_lines(int operation) {
  return [operation](int format, int source) {
    const dlfp4_format_row &row = dlfp4_formats[format];
    return find_quantizer(row.lines == 1 ? operation : kByName, row, source);
  };
}

constexpr FormatKernels kRotatedRowKernels(quantizers_of_lines(kQuantizeRotatedRows));
constexpr FormatKernels kRotatedColumnKernels(quantizers_of_lines(kQuantizeRotatedTile));

// The same of lines that have scales of their own and are columns.
constexpr FormatKernels kLinesOfColumns([](int format, int source) {
  const dlfp4_format_row &row = dlfp4_formats[format];
  return find_quantizer(row.length == 0 ? kQuantizeColumns : kQuantizeTileOfLines, row, source);
});

// Four over six.
constexpr FormatKernels kChoosingRowKernels(quantizers_of_lines(kQuantizeChoosingRows));
constexpr FormatKernels kChoosingColumnKernels(quantizers_of_lines(kQuantizeChoosingTile));

// The kernels for anything, by the kind of scales.
constexpr KernelList<DLFP4_LARGEST + 1> kAnyKernels([](int kind) {
  return find_kernel(KernelKey(kQuantizeAny, kAnything, kAnything, kAnything, kind));
});

// One direction of it.
struct Pass {
  const dlfp4_blocks *blocks;  // null: not asked for
  Lines x;
  QuantizeParams params;
};

bool is_row_major(const Lines &x) {
  return x.step == 1 && x.length % kStep == 0 && is_aligned(x.data, 16) &&
         (x.lines == 1 || x.line_stride * x.item % 16 == 0) && divide_up(x.lines * x.length, kStep) <= kMostSteps;
}

// The same matrix with its columns as lines, or the reverse.
Lines transposed(Lines x) {
  std::swap(x.lines, x.length);
  std::swap(x.line_stride, x.step);
  return x;
}

// Kernels of tiles count lines and their elements in 32 bits.
bool has_tiles(int64_t lines, int64_t length) { return lines <= kMostSteps && length <= kMostSteps; }

bool can_store_steps(const uint8_t *data, int64_t stride, int64_t step) {
  return is_aligned(data, 16) && step == 1 && stride % kStep == 0;
}

// What the fast kernels do: they round products to nearest even, and keep signs of zeros. Four over six has its own.
bool is_plain(const QuantizeParams &p) {
  const bool multiplies = !p.rule.divides && (p.rule.chooses || !p.rule.over_first);
  return p.rounding == DLFP4_NEAREST_EVEN && std::signbit(p.zero) && !p.plus_zeros && multiplies;
}

// Squares and whole tensors are the same along rows and columns, where elements are bytes and no line has a scale of
// its own.
bool is_symmetric(const FormatInfo &format) {
  return format.bits == 8 && !format.row->repeats && (format.whole || format.group == format.block);
}

// As if along rows; but stochastic rounding draws for the places of elements in the lines that were asked for.
void prefer_rows(Pass *pass, const FormatInfo &format) {
  QuantizeParams &p = pass->params;
  if (p.rounding == DLFP4_STOCHASTIC) return;
  if (!is_symmetric(format) || p.stored != p.length || p.rotation.signs != 0 || pass->x.step == 1 ||
      p.layout != DLFP4_LAYOUT_linear)
    return;
  pass->x = transposed(pass->x);
  std::swap(p.lines, p.length);
  std::swap(p.line_stride, p.step);
  std::swap(p.data_stride, p.data_step);
  std::swap(p.scale_stride, p.scale_step);
  p.stored = p.length;
  p.blocks = divide_up(p.stored, p.block);
}

// Rows without gaps between them are one row.
void join_rows(QuantizeParams *p, const FormatInfo &format) {
  const bool scales_follow = format.whole || (p->layout == DLFP4_LAYOUT_linear && p->scale_step == 1 &&
                                              p->scale_stride == p->blocks && p->length % p->block == 0);
  if (p->decodes || p->group != 1 || p->line_stride != p->length || p->data_stride != p->length || !scales_follow)
    return;
  p->length = p->stored = p->lines * p->length;
  p->lines = 1;
}

// Threads that share a line: whole warps, whose threads hold all of it unless it is longer than most.
int team_of_line(const Pass &pass) {
  const int64_t warps = std::max(divide_up(pass.params.stored / kStep, kStepsOfLine * kWarpSize), int64_t{1});
  return static_cast<int>(least(warps * kWarpSize, most_of_line(pass.x.item)));
}

bool serves_rows(DeviceKernel kernel, const Pass &pass, const FormatInfo &format) {
  if (kernel == kNoKernel) return false;
  const QuantizeParams &p = pass.params;
  const bool partial = p.group > 1 && !p.repeats;  // squares may end within
  const bool whole_blocks = format.whole || format.line || partial || p.stored % p.block == 0;
  if (is_for(kernel, kQuantizeLines) && p.lines * team_of_line(pass) > kMostSteps) return false;
  return is_row_major(pass.x) && is_plain(p) && p.stored == p.length && whole_blocks &&
         can_store_steps(p.data, p.lines == 1 ? 0 : p.data_stride, p.data_step);
}

StepLines make_step_lines(int64_t lines, int64_t length, int64_t float_bytes, int64_t code_bytes) {
  const uint64_t in_line = static_cast<uint64_t>(length / kStep);
  uint32_t bits = 0;
  while (uint64_t{1} << bits < in_line) ++bits;
  const uint64_t magic = ((((uint64_t{1} << bits) - in_line) << 32) / in_line) + 1;
  return {static_cast<uint32_t>(static_cast<uint64_t>(lines) * in_line),
          static_cast<uint32_t>(in_line),
          static_cast<uint32_t>(magic),
          bits > 0 ? 1u : 0u,
          bits > 0 ? bits - 1 : 0,
          float_bytes,
          code_bytes};
}

template <class Params>
bool is_flat(const Params &p) {
  return p.lines == 1 && p.layout == DLFP4_LAYOUT_linear && p.scale_step == 1;
}

int64_t threads_of_rows(const QuantizeParams &p, DeviceKernel kernel) {
  if (is_for(kernel, kQuantizeLines)) return p.lines * p.team;
  if (is_for(kernel, kQuantizeSquares))
    return divide_up(p.lines, p.group) * divide_up(p.stored, kSquaresColumns) * kThreads;
  if (is_for(kernel, kQuantizeRepeatingSquares))
    return divide_up(p.lines, p.group) * divide_up(p.stored, kSquaresColumns) * 32;
  return p.lines * (p.stored / kStep);
}

// A block of threads has a line, or one for each warp.
int run_lines(DeviceKernel kernel, int64_t threads, QuantizeRowsParams params, uintptr_t stream) {
  const int team = params.quantize.team, in_block = team == kWarpSize ? kThreads : team;
  return threads > 0 ? launch_shape(kernel, {{divide_up(threads, in_block), 1}, in_block, 0, 1}, &params, stream) : 0;
}

int quantize_rows(DeviceKernel kernel, const Pass &pass, const Quantization &of) {
  QuantizeRowsParams params = {pass.params, encode_params(of.format.row->element, {DLFP4_NEAREST_EVEN, true})};
  join_rows(&params.quantize, of.format);
  params.quantize.team = team_of_line(pass);
  const int64_t threads = threads_of_rows(params.quantize, kernel);
  const bool steps = is_for(kernel, kQuantizeRows) || is_for(kernel, kQuantizeRotatedRows),
             one_row = steps || is_for(kernel, kQuantizeChoosingRows);
  params.quantize.steps = steps && pass.x.item == 2 ? steps_of_thread(threads) : 1;
  params.quantize.flat = is_flat(params.quantize);
  params.quantize.walk =
      make_step_lines(params.quantize.lines, params.quantize.stored, params.quantize.line_stride * pass.x.item,
                      params.quantize.data_stride * of.format.bits / 8);
  if (is_for(kernel, kQuantizeLines)) return run_lines(kernel, threads, params, of.stream);
  return one_row ? run_steps(kernel, threads, params, params.quantize.steps, of.stream)
                 : run(kernel, threads, params, of.stream);
}

bool serves_columns(DeviceKernel kernel, const Pass &pass, const FormatInfo &format) {
  const QuantizeParams &p = pass.params;
  if (kernel == kNoKernel || !has_tiles(p.lines, p.stored)) return false;
  if (!is_row_major(transposed(pass.x)) || !is_plain(p)) return false;
  if (p.stored % p.block != 0 && !is_for(kernel, kQuantizeStrip)) return false;
  return format.bits == 8 ? can_store_steps(p.data, p.data_step, p.data_stride)
                          : can_store_steps(p.data, p.data_stride, p.data_step);
}

// Blocks along columns of row-major memory; with `rows`, along rows too.
int quantize_columns(DeviceKernel kernel, const Pass &columns, const Pass *rows, const Quantization &of) {
  const Lines x = transposed(columns.x);
  TileParams params = {};
  params.columns = columns.params;
  params.rows.src = x.data;
  params.rows.lines = x.lines;
  params.rows.length = x.length;
  params.rows.line_stride = x.line_stride;
  if (rows) params.rows = rows->params;
  params.encode = encode_params(of.format.row->element, {DLFP4_NEAREST_EVEN, true});
  const bool strip = is_for(kernel, kQuantizeStrip);
  const int64_t tiles_in_row =
      divide_up(rows ? rows->params.stored : x.length, strip ? strip_columns(x.item) : kTileColumns);
  params.tiles_in_row = static_cast<uint32_t>(tiles_in_row);
  const int64_t tiles = tiles_in_row * divide_up(columns.params.stored, kTileRows);
  const int staged_bytes = of.format.bits == 8 ? tile_bytes(1) : 0;
  const int shared_bytes = strip ? 0 : kTileRuleBytes + tile_bytes(x.item) + staged_bytes;
  return launch_shape(kernel, {{tiles, 1}, kThreads, shared_bytes, 1}, &params, of.stream);
}

// --- Lines that have scales of their own ---------------------------------------------------------

constexpr FormatKernels kHeldColumns([](int format, int source) {
  return find_quantizer(kQuantizeHeldColumns, dlfp4_formats[format], source);
});

// How a cluster holds columns: how many blocks it has, of how many tiles and threads; none where there is no room.
struct Holding {
  int cluster, tiles, threads;
};

// Two blocks of threads have room on a multiprocessor where columns are short: one loads while the other works.
Holding holding_of(int64_t rows, int item) {
  constexpr int kTilesAtEase = 4;
  const int64_t tiles = divide_up(rows, kTileRows), room = most_shared_memory();
  int64_t cluster = 1;
  while (cluster < kMostHolders && tiles > cluster * kTilesAtEase) cluster *= 2;
  const int64_t of_block = divide_up(tiles, cluster), bytes = held_bytes(of_block);
  if (bytes > room) return {};
  const int64_t threads = 2 * bytes <= room ? kMostHoldingThreads / 2 : kMostHoldingThreads;
  return {static_cast<int>(cluster), static_cast<int>(of_block),
          static_cast<int>(least(threads, of_block * team_of_tile(item)))};
}

// Reads columns once. A CUresult, of CUDA_ERROR_NO_BINARY_FOR_GPU where no cluster can hold them.
int quantize_held(const Pass &pass, const Quantization &of) {
  const DeviceKernel kernel = kHeldColumns[of.format.number][pass.x.source];
  const QuantizeParams &p = pass.params;
  const Holding by = holding_of(p.stored, pass.x.item);
  if (kernel == kNoKernel || by.threads == 0 || !has_tiles(p.lines, p.stored)) return kNoBinary;
  if (const int status = need_hopper_kernels(kImage_blocks)) return status;
  HeldParams params = {p, encode_params(of.format.row->element, {DLFP4_NEAREST_EVEN, true}), by.cluster, by.tiles};
  const int64_t blocks = divide_up(p.lines, held_columns(pass.x.item)) * by.cluster;
  const int bytes = static_cast<int>(held_bytes(by.tiles));
  return launch_shape(kernel, {{blocks, 1}, by.threads, bytes, by.cluster}, &params, of.stream);
}

// Largest magnitudes of columns, by the kind of scales.
constexpr KernelTable<DLFP4_LARGEST + 1, kNumSources> kLargestOfColumns([](int kind, int source) {
  return find_kernel(KernelKey(kFindLargestOfEachColumn, kSourceRows[source], kAnything, kAnything, kind));
});

int64_t threads_of_columns(const QuantizeParams &p) {
  return divide_up(p.lines, kColumnsOfBlock) * divide_up(p.length, kRowsOfBlock) * kThreads;
}

// They stand in the places of scales until all blocks are scaled.
int find_largest_of_each_column(const Pass &pass, int kind, void *places, uintptr_t stream) {
  const QuantizeParams &p = pass.params;
  const int status = set_bytes(places, 0, p.lines * static_cast<int64_t>(sizeof(float)), stream);
  return status ? status : run(kLargestOfColumns[kind][pass.x.source], threads_of_columns(p), p, stream);
}

int find_line_scales(const Pass &pass, const Quantization &of) {
  const QuantizeParams &p = pass.params;
  if (!p.decodes || !p.finds_decodes) return 0;
  if (p.rotation.signs == 0 && is_row_major(transposed(pass.x)) &&
      kLargestOfColumns[DLFP4_TWO_LEVEL][pass.x.source] != kNoKernel)
    return find_largest_of_each_column(pass, DLFP4_TWO_LEVEL, p.decodes, of.stream);
  return run(kKernel_largest_of_lines, p.lines * kWarpSize, p, of.stream);
}

int finish_line_scales(const QuantizeParams &p, const Quantization &of) {
  return p.decodes ? run(kKernel_line_scales, p.lines, p, of.stream) : 0;
}

int quantize_anyhow(const Pass &pass, const Quantization &of) {
  const QuantizeParams &p = pass.params;
  const int64_t warps = divide_up(p.lines, p.group) * p.blocks;
  int status = find_line_scales(pass, of);
  if (!status) status = run(kAnyKernels[of.format.row->kind], warps * kWarpSize, p, of.stream);
  return status ? status : finish_line_scales(p, of);
}

// Whether a kernel of columns takes bytes with a scale for each.
bool serves_whole_columns(DeviceKernel kernel, const Pass &pass) {
  const QuantizeParams &p = pass.params;
  return is_for(kernel, kQuantizeColumns) && is_row_major(transposed(pass.x)) && is_plain(p) && p.stored == p.length &&
         p.layout == DLFP4_LAYOUT_linear && p.scale_stride == 1 && can_store_steps(p.data, p.data_step, p.data_stride);
}

int quantize_whole_columns(DeviceKernel kernel, const Pass &pass, const Quantization &of) {
  int status = quantize_held(pass, of);
  if (status != kNoBinary) return status;
  const QuantizeRowsParams params = {pass.params, encode_params(of.format.row->element, {DLFP4_NEAREST_EVEN, true})};
  const QuantizeParams &p = params.quantize;
  status = find_largest_of_each_column(pass, DLFP4_LARGEST, p.scales, of.stream);
  if (!status) status = run(kernel, threads_of_columns(p), params, of.stream);
  return status ? status : run(kKernel_column_scales, p.lines, p, of.stream);
}

int quantize_columns_of_lines(DeviceKernel kernel, const Pass &pass, const Quantization &of) {
  const bool finds = pass.params.decodes && pass.params.finds_decodes;
  int status = finds ? quantize_held(pass, of) : kNoBinary;
  if (status != kNoBinary) return status;
  status = find_line_scales(pass, of);
  if (!status) status = quantize_columns(kernel, pass, nullptr, of);
  return status ? status : finish_line_scales(pass.params, of);
}

// --- One direction -------------------------------------------------------------------------------

// Of one that scales, in a way of its own, its lines or blocks.
struct PassKernels {
  const FormatKernels &rows, &columns;
};

PassKernels kernels_of(const QuantizeParams &p, const FormatInfo &format) {
  const bool alone = p.decodes || format.line, rotated = p.rotation.signs != 0;
  if (alone && (rotated || p.rule.chooses)) return {kNoKernels, kNoKernels};
  if (p.rule.chooses)
    return rotated ? PassKernels{kNoKernels, kNoKernels} : PassKernels{kChoosingRowKernels, kChoosingColumnKernels};
  if (alone) return {kLineKernels, kLinesOfColumns};
  return rotated ? PassKernels{kRotatedRowKernels, kRotatedColumnKernels} : PassKernels{kRowKernels, kColumnKernels};
}

int quantize_pass(const Pass &pass, const Quantization &of) {
  const PassKernels kernels = kernels_of(pass.params, of.format);
  const DeviceKernel rows = kernels.rows[of.format.number][pass.x.source];
  const DeviceKernel columns = kernels.columns[of.format.number][pass.x.source];
  if (serves_rows(rows, pass, of.format)) return quantize_rows(rows, pass, of);
  if (serves_whole_columns(columns, pass)) return quantize_whole_columns(columns, pass, of);
  if (!is_for(columns, kQuantizeColumns) && serves_columns(columns, pass, of.format))
    return quantize_columns_of_lines(columns, pass, of);
  return quantize_anyhow(pass, of);
}

// Both directions at once, where one kernel has both.
int quantize_passes(const Pass *passes, const Quantization &of) {
  const int along = passes[kAlongRows].x.step == 1 ? kAlongRows : kAlongColumns;
  const Pass &rows = passes[along], &columns = passes[1 - along];
  const DeviceKernel kernel = kColumnKernels[of.format.number][columns.x.source];
  const bool both = rows.blocks && columns.blocks && !is_for(kernel, kQuantizeStrip) && !rows.params.decodes &&
                    !rows.params.rule.chooses;
  if (both && serves_columns(kernel, columns, of.format) && is_row_major(rows.x) &&
      rows.params.stored % rows.params.block == 0 &&
      can_store_steps(rows.params.data, rows.params.data_stride, rows.params.data_step))
    return quantize_columns(kernel, columns, &rows, of);
  for (int i = 0; i < 2; ++i)
    if (passes[i].blocks)
      if (const int status = quantize_pass(passes[i], of)) return status;
  return 0;
}

// --- The largest magnitude -------------------------------------------------------------------

constexpr KernelList<kNumSources> kLargestKernels([](int source) {
  return find_kernel(KernelKey(kFindLargest, kSourceRows[source]));
});

LargestParams largest_params(const Lines &x, const FormatInfo &format, uint32_t rotation, uint32_t *place) {
  return {x.data,
          x.lines,
          x.length,
          x.line_stride,
          x.step,
          kTypes[kSourceRows[x.source]],
          format.row->kind == DLFP4_TWO_LEVEL,
          place,
          {},
          make_rotation(rotation)};
}

constexpr KernelList<kNumSources> kLargestOfRotatedRows([](int source) {
  return find_kernel(KernelKey(kFindLargestOfRotatedRows, kSourceRows[source]));
});
constexpr KernelList<kNumSources> kLargestOfRotatedColumns([](int source) {
  return find_kernel(KernelKey(kFindLargestOfRotatedColumns, kSourceRows[source]));
});

int raise_largest_of_rotated(const Lines &x, LargestParams p, uintptr_t stream) {
  if (is_row_major(x)) {
    p.walk = make_step_lines(x.lines, x.length, x.line_stride * x.item, 0);
    return run(kLargestOfRotatedRows[x.source], p.walk.steps, p, stream);
  }
  const bool has_columns = x.line_stride == 1 && x.length % kStep == 0 && x.lines % 2 == 0 && x.step % 2 == 0 &&
                           is_aligned(x.data, 2 * x.item);
  if (has_columns) return run(kLargestOfRotatedColumns[x.source], x.length / kStep * (x.lines / 2), p, stream);
  return run_walk(kKernel_largest_any, x.lines * x.length, p, stream);
}

int raise_largest(const Lines &x, const FormatInfo &format, uint32_t *place, uintptr_t stream) {
  LargestParams p = largest_params(x, format, 0, place);
  const int64_t count = x.lines * x.length;
  if (!is_row_major(x)) return run_walk(kKernel_largest_any, count, p, stream);
  p.walk = make_step_lines(x.lines, x.length, x.line_stride * x.item, 0);
  return run(kLargestKernels[x.source], divide_up(count * x.item / 16, kLargestAhead), p, stream);
}

// In whatever order: columns that are rows, rows that are one, and what is left of it after whole steps.
int find_largest(Lines x, const FormatInfo &format, uint32_t rotation, uint32_t *place, uintptr_t stream) {
  if (const int status = set_word(place, 0, stream)) return status;
  if (x.lines * x.length == 0) return 0;
  if (rotation) return raise_largest_of_rotated(x, largest_params(x, format, rotation, place), stream);
  if (x.step != 1 && x.line_stride == 1) x = transposed(x);
  if (x.step == 1 && x.line_stride == x.length) x = {x.data, x.source, x.item, 1, x.lines * x.length, 0, 1, 0};
  const int64_t rest = x.lines == 1 && x.step == 1 && x.length > kStep ? x.length % kStep : 0;
  x.length -= rest;
  const int status = raise_largest(x, format, place, stream);
  if (status != 0 || rest == 0) return status;
  x.data += x.length * x.item;
  x.length = rest;
  return raise_largest(x, format, place, stream);
}

int fill_padding(const dlfp4_blocks &blocks, const FormatInfo &format, int64_t lines, uintptr_t stream) {
  if (blocks.layout == DLFP4_LAYOUT_linear) return 0;
  const int64_t rows = divide_up(lines, format.row->repeats ? 1 : format.group);
  const int64_t columns = divide_up(blocks.length, format.block);
  const dlfp4_layout_row &layout = dlfp4_layouts[blocks.layout];
  if (rows % layout.rows == 0 && columns % layout.columns == 0) return 0;
  return set_bytes(blocks.scales, blocks.fill, padded_bytes(blocks.layout, rows, columns, format.scale_bytes), stream);
}

// Zero points of a result: all in the middle.
int set_offsets(const dlfp4_blocks &blocks, const FormatInfo &format, int64_t lines, uintptr_t stream) {
  if (!blocks.offsets) return 0;
  const int64_t count = divide_up(blocks.length, format.block), stride = blocks.offset_strides[0];
  if (lines == 0 || count == 0) return 0;
  uint8_t *const zeros = static_cast<uint8_t *>(blocks.offsets);
  if (lines == 1 || stride == count) return set_bytes(zeros, kMiddle, lines * count, stream);
  int status = 0;  // a slice of another tensor's, whose rows are apart
  for (int64_t i = 0; i < lines && !status; ++i) status = set_bytes(zeros + i * stride, kMiddle, count, stream);
  return status;
}

// Sees to it that a scale that was given lies in a result's place too: by the kernel that reads it, if one runs.
int keep_scale(const dlfp4_cuda_scale &scale, int result, const Lines &x, Quantization *of) {
  float *const place = scale.places[result];
  if (!place) return 0;
  if (x.lines * x.length == 0) {
    if (!scale.given) return set_word(place, bits_of(of->place.number), of->stream);
    return place == scale.given ? 0 : copy_bytes(place, scale.given, sizeof(float), of->stream);
  }
  of->place.keep[result] = place;
  return 0;
}

// Lines without elements have no scales but those of two levels.
int put_empty_lines(const dlfp4_blocks &blocks, int64_t lines, const Quantization &of) {
  if (!blocks.decodes || !blocks.finds_decodes) return 0;
  QuantizeParams p = {};
  p.lines = lines;
  p.decodes = blocks.decodes;
  p.finds_decodes = true;
  p.rule = of.rule;
  const int status = set_bytes(p.decodes, 0, lines * static_cast<int64_t>(sizeof(float)), of.stream);
  return status ? status : run(kKernel_line_scales, lines, p, of.stream);
}

// What one direction needs; without blocks where there is nothing to do.
int describe_pass(const dlfp4_matrix &x, Direction direction, const dlfp4_blocks *blocks, const Quantization &of,
                  Pass *pass) {
  if (!make_lines(x, direction, &pass->x)) return refuse(DLFP4_E_DTYPE);
  if (!blocks) return 0;
  const int64_t lines = pass->x.lines;
  if (blocks->length < pass->x.length || !is_addressable(*blocks, of.format, lines) ||
      !is_rotation(blocks->rotation, blocks->length))
    return refuse(DLFP4_E_SHAPE);
  if (blocks->decodes && (of.format.row->kind != DLFP4_TWO_LEVEL || of.format.group > 1 || blocks->decode_lines != 1))
    return refuse(DLFP4_E_OPTION);
  if (!can_set_offsets(*blocks, of.format)) return refuse(DLFP4_E_OPTION);
  if (!has_whole_blocks(of.format, blocks->length)) return refuse(DLFP4_E_SHAPE);
  if (const int status = set_offsets(*blocks, of.format, lines, of.stream)) return status;
  if (const int status = fill_padding(*blocks, of.format, lines, of.stream)) return status;
  if (lines == 0) return 0;
  if (blocks->length == 0) return put_empty_lines(*blocks, lines, of);
  pass->blocks = blocks;
  pass->params = quantize_params(of, pass->x, *blocks);
  prefer_rows(pass, of.format);
  return 0;
}

// --- Dequantize ------------------------------------------------------------------------------

DequantizeParams dequantize_params(const dlfp4_blocks &q, const FormatInfo &format, const float *decode,
                                   const Lines &result) {
  const Scales scales = make_scales(q, format);
  DequantizeParams p = {};
  p.data = static_cast<const uint8_t *>(q.data);
  p.data_stride = q.strides[0];
  p.data_step = q.strides[1];
  p.scales = scales.data;
  p.layout = q.layout;
  p.scale_stride = scales.stride;
  p.scale_step = scales.step;
  p.pitch = scales.pitch;
  p.line_shift = log2_of(scales.lines_per_row);
  p.block_shift = log2_of(format.block);
  p.kind = format.row->kind;
  p.decode = decode;
  p.decodes = q.decodes;
  p.decode_lines = static_cast<uint32_t>(q.decode_lines);
  p.element = kTypes[format.row->element];
  p.scale = kTypes[format.row->scale];
  p.target = kTypes[kSourceRows[result.source]];
  p.rotation = make_rotation(q.rotation);
  p.offsets = static_cast<const uint8_t *>(q.offsets);
  p.offset_stride = q.offset_strides[0];
  p.offset_step = q.offset_strides[1];
  p.offset_bits = q.offset_bits;
  p.offset_is_signed = q.offset_code == dlfp4_dtypes[DLFP4_int4].code;
  p.dst = result.data;
  p.lines = result.lines;
  p.length = result.length;
  p.line_stride = result.line_stride;
  p.step = result.step;
  return p;
}

// Rows without gaps between them are one row.
void join_rows(DequantizeParams *p) {
  const int64_t blocks = p->length >> p->block_shift;
  const bool scales_follow = p->line_shift == 0 && p->layout == DLFP4_LAYOUT_linear && p->scale_step == 1 &&
                             p->scale_stride == blocks && blocks << p->block_shift == p->length;
  if (p->line_stride != p->length || p->data_stride != p->length || !scales_follow || p->decodes) return;
  p->length *= p->lines;
  p->lines = 1;
}

// Back goes by the element's kernels, whatever the blocks' length; but dequantize_across takes one scale for
// kAcrossLength elements.
constexpr DeviceKernel find_dequantizer(int operation, const dlfp4_format_row &row, int target) {
  return is_fast_scale(key_of_row(row)) ? find_kernel(KernelKey(operation, row.element, kSourceRows[target]))
                                        : kNoKernel;
}

constexpr FormatKernels kRowsBack([](int format, int target) {
  return find_dequantizer(kDequantizeRows, dlfp4_formats[format], target);
});
constexpr FormatKernels kTilesBack([](int format, int target) {
  return find_dequantizer(kDequantizeTile, dlfp4_formats[format], target);
});
constexpr FormatKernels kAcrossBack([](int format, int target) {
  const dlfp4_format_row &row = dlfp4_formats[format];
  const bool has_length = row.length == 0 || row.length % kAcrossLength == 0;
  return has_length ? find_dequantizer(kDequantizeAcross, row, target) : kNoKernel;
});

// The same of what was rotated.
constexpr FormatKernels kRotatedRowsBack([](int format, int target) {
  return find_dequantizer(kDequantizeRotatedRows, dlfp4_formats[format], target);
});
constexpr FormatKernels kRotatedAcrossBack([](int format, int target) {
  return find_dequantizer(kDequantizeRotatedAcross, dlfp4_formats[format], target);
});
constexpr FormatKernels kRotatedTilesBack([](int format, int target) {
  return find_dequantizer(kDequantizeRotatedTile, dlfp4_formats[format], target);
});

// As if along rows, where that is the same.
void prefer_rows(DequantizeParams *p, Lines *result, const FormatInfo &format) {
  if (!is_symmetric(format) || p->rotation.signs != 0 || p->data_step == 1 || p->layout != DLFP4_LAYOUT_linear) return;
  *result = transposed(*result);
  std::swap(p->lines, p->length);
  std::swap(p->line_stride, p->step);
  std::swap(p->data_stride, p->data_step);
  std::swap(p->scale_stride, p->scale_step);
}

int dequantize_rows(DeviceKernel kernel, DequantizeParams p, const Lines &result, uintptr_t stream) {
  join_rows(&p);
  const int64_t steps = p.lines * (p.length / kStep);
  p.steps = result.item == 2 ? steps_of_thread(steps) : 1;
  p.flat = is_flat(p);
  p.walk = make_step_lines(p.lines, p.length, p.line_stride * result.item, p.data_stride * p.element.bits / 8);
  return run_steps(kernel, steps, p, p.steps, stream);
}

int dequantize_lines(DequantizeParams p, Lines result, const FormatInfo &format, uintptr_t stream) {
  prefer_rows(&p, &result, format);
  const bool rotated = p.rotation.signs != 0;
  const DeviceKernel rows = (rotated ? kRotatedRowsBack : kRowsBack)[format.number][result.source];
  const DeviceKernel tile = (rotated ? kRotatedTilesBack : kTilesBack)[format.number][result.source];
  const DeviceKernel across = (rotated ? kRotatedAcrossBack : kAcrossBack)[format.number][result.source];
  if (rows != kNoKernel && is_row_major(result) &&
      can_store_steps(p.data, p.lines == 1 ? 0 : p.data_stride, p.data_step))
    return dequantize_rows(rows, p, result, stream);
  const bool has_columns = is_row_major(transposed(result)) && has_tiles(p.lines, p.length);
  const int64_t tiles = divide_up(p.length, kTileRows) * divide_up(p.lines, kTileColumns);
  if (has_columns && tiles == 0) return 0;
  if (tile != kNoKernel && has_columns && can_store_steps(p.data, p.data_stride, p.data_step))
    return launch_shape(tile, {{tiles, 1}, kThreads, kTileRuleBytes + tile_bytes(result.item), 1}, &p, stream);
  const bool takes_across =
      across != kNoKernel && has_columns && !p.decodes && can_store_steps(p.data, p.data_step, p.data_stride);
  if (takes_across && (!rotated || p.length % kStep == 0)) return launch(across, tiles, &p, stream);
  return run(kKernel_dequantize_any, p.lines * p.length, p, stream);
}

}  // namespace
}  // namespace cuda
}  // namespace dlfp4

extern "C" {

int dlfp4_cuda_quantize(int device, uintptr_t stream, const dlfp4_matrix *x, int format, const dlfp4_recipe *recipe,
                        const dlfp4_cuda_scale *scale, const dlfp4_blocks *along_rows,
                        const dlfp4_blocks *along_columns) {
  using namespace dlfp4;
  using namespace dlfp4::cuda;
  const CurrentContext context(device);
  if (context.status()) return context.status();
  FormatInfo info;
  Lines lines;
  if (!find_format(format, &info) || !is_recipe(*recipe, info)) return refuse(DLFP4_E_OPTION);
  const uint32_t rotation = along_rows ? along_rows->rotation : along_columns ? along_columns->rotation : 0;
  if (rotation && along_rows && along_columns) return refuse(DLFP4_E_OPTION);
  if (!make_lines(*x, rotation && along_columns ? kAlongColumns : kAlongRows, &lines)) return refuse(DLFP4_E_DTYPE);
  const bool alone = (along_rows && along_rows->decodes) || (along_columns && along_columns->decodes);
  const bool scaled = info.whole || (info.row->kind == DLFP4_TWO_LEVEL && !alone);
  const bool is_known = is_decode_scale(scale->number), searches = scaled && !scale->given && !is_known;
  const dlfp4_tensor_scale known = dlfp4_host_given_tensor_scale(scale->number);
  Quantization of = {info, *recipe, {}, {}, stream};
  compute([&] { of.rule = make_rule(info, *recipe, lines.source, is_known ? &known : nullptr); });
  uint32_t *const word = reinterpret_cast<uint32_t *>(scale->places[0]);
  of.place = {searches ? word : nullptr, scale->given, known.decode, {nullptr, nullptr}};
  int status = searches ? find_largest(lines, info, rotation, word, stream) : 0;
  for (int i = 0; i < 2 && !status && scaled && !searches; ++i) status = keep_scale(*scale, i, lines, &of);
  Pass passes[2] = {};
  const dlfp4_blocks *const results[] = {along_rows, along_columns};
  for (int i = 0; i < 2 && !status; ++i)
    status = describe_pass(*x, static_cast<Direction>(i), results[i], of, &passes[i]);
  if (!status) status = quantize_passes(passes, of);
  if (status || !searches) return status;
  const TensorScaleParams params = {{word, reinterpret_cast<uint32_t *>(scale->places[1])}, info.row->kind, of.rule};
  return run(kKernel_tensor_scale, 1, params, stream);
}

// Kernels read rows, or columns that are rows in memory, which bytes do not change places for.
int dlfp4_cuda_quantizes_slowly(const dlfp4_matrix *x, int format) {
  using namespace dlfp4;
  using namespace dlfp4::cuda;
  FormatInfo info;
  Lines rows;
  if (!find_format(format, &info) || !make_lines(*x, kAlongRows, &rows) || rows.length % kStep != 0) return 0;
  const bool turns = is_row_major(transposed(rows)) && (info.bits < 8 || is_symmetric(info));
  return !is_row_major(rows) && !turns;
}

int dlfp4_cuda_dequantize(int device, uintptr_t stream, const dlfp4_blocks *q, int format, const float *decode,
                          const dlfp4_matrix *result) {
  using namespace dlfp4;
  using namespace dlfp4::cuda;
  const CurrentContext context(device);
  if (context.status()) return context.status();
  FormatInfo info;
  Lines lines;
  if (!find_format(format, &info)) return refuse(DLFP4_E_OPTION);
  if (!make_lines(*result, kAlongRows, &lines)) return refuse(DLFP4_E_DTYPE);
  if (q->length < lines.length || !is_addressable(*q, info, lines.lines) || !is_rotation(q->rotation, q->length))
    return refuse(DLFP4_E_SHAPE);
  if (!has_known_offsets(*q, info)) return refuse(DLFP4_E_OPTION);
  if (lines.lines * lines.length == 0) return 0;
  return dequantize_lines(dequantize_params(*q, info, decode, lines), lines, info, stream);
}

int dlfp4_cuda_convert_scales(int device, uintptr_t stream, const void *src, int src_layout, void *dst, int dst_layout,
                              int64_t rows, int64_t columns, int itemsize, uint8_t fill) {
  using namespace dlfp4;
  using namespace dlfp4::cuda;
  const CurrentContext context(device);
  if (context.status()) return context.status();
  const dlfp4_layout_row &to = dlfp4_layouts[dst_layout];
  const int64_t padded_rows = round_up(rows, to.rows), padded_columns = round_up(columns, to.columns);
  const ScalesParams p = {static_cast<const uint8_t *>(src),
                          static_cast<uint8_t *>(dst),
                          src_layout,
                          dst_layout,
                          columns,
                          1,
                          pitch_of(dlfp4_layouts[src_layout], rows, columns),
                          pitch_of(to, rows, columns),
                          rows,
                          columns,
                          padded_rows,
                          padded_columns,
                          itemsize,
                          fill};
  return run(kKernel_convert_scales, padded_rows * padded_columns, p, stream);
}

int dlfp4_cuda_shuffle_weight(int device, uintptr_t stream, const void *src, void *dst, int64_t rows, int64_t columns,
                              int back) {
  using namespace dlfp4;
  using namespace dlfp4::cuda;
  const CurrentContext context(device);
  if (context.status()) return context.status();
  const ShuffleParams p = {static_cast<const uint8_t *>(src), static_cast<uint8_t *>(dst), rows, columns, back != 0};
  return run(kKernel_shuffle_weight, rows * (columns / 16), p, stream);
}
}
