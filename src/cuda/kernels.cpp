// The operations on CUDA memory: which kernel serves, with which parameters, in how many blocks.
// Layout: descriptions as in dlfp4.h.
// Trick: the fast kernels take whole steps on aligned memory; all else goes to one that takes anything.
#include "kernels.h"

#include <string.h>

#include "../cpu/blocks.h"
#include "../cpu/dispatch.h"
#include "../cpu/layout.h"
#include "../encode_rule.h"
#include "context.h"
#include "driver.h"
#include "launch.h"
#include "params.h"

namespace dlfp4 {
namespace cuda {
namespace {

constexpr int64_t kStep = 16;  // elements a thread of the fast kernels

int refuse(dlfp4_status status) { return -(DLFP4_CUDA_REFUSED + status); }

template <class Params>
int run(KernelNumber kernel, int64_t threads, Params params, uintptr_t stream) {
  return threads > 0 ? launch(kernel, divide_up(threads, kThreads), &params, stream) : 0;
}

// Of kernels that walk, no more blocks than run at a time.
template <class Params>
int run_walk(int kernel, int64_t threads, Params params, uintptr_t stream) {
  return threads > 0 ? launch(kernel, least(divide_up(threads, kThreads), blocks_for_device()), &params, stream) : 0;
}

bool is_aligned(const void *data, int64_t bytes) { return reinterpret_cast<uintptr_t>(data) % bytes == 0; }

KernelNumber plus(KernelNumber first, int offset) { return static_cast<KernelNumber>(first + offset); }

// --- Convert ---------------------------------------------------------------------------------

struct Sides {
  Operand src, dst;
};

int spacing(Operand operand) {
  const int bits = dlfp4_dtypes[operand.row].bits;
  return operand.packed || bits > 8 ? bits : 8;
}

bool find_operand(const dlfp4_view &view, Operand *operand) {
  const int row = find_row(view.code, view.bits);
  *operand = {static_cast<uint8_t>(row), view.bits < 8 && !view.padded};
  return row >= 0;
}

EncodeParams encode_params(int row, Round round) {
  const Format format = kFormats[row];
  const EncodeRule rule = make_encode_rule(format, round);
  EncodeParams params = {};
  params.limit = rule.limit;
  params.lowest = rule.lowest;
  params.magic = rule.magic;
  params.shift = rule.shift;
  params.sign = 1u << (format.bits - 1);
  params.nan = rule.nan.base;
  params.flip = rule.nan.flip;
  params.drops_sign_of_zero = format.specials == DLFP4_FNUZ;
  return params;
}

int source_index(int row) {
  for (int i = 0; i < kNumSources; ++i)
    if (kSourceRows[i] == row) return i;
  return -1;
}

// 0, 1, 2 for 4, 6 and 8 bits.
int width_index(int bits) { return (bits - 4) / 2; }

bool is_low(int row) { return is_float(kFormats[row]) && kFormats[row].bits <= 8; }

// The fast kernel of a contiguous run of whole steps, or -1.
int find_run_kernel(Sides sides, Round round) {
  const int from = spacing(sides.src), to = spacing(sides.dst);
  const bool plain = round.rounding == DLFP4_NEAREST_EVEN;
  const bool same = sides.src.row == sides.dst.row;
  const int target = source_index(sides.dst.row), source = source_index(sides.src.row);
  if (source >= 0 && is_low(sides.dst.row) && kFormats[sides.dst.row].specials != DLFP4_E8M0 && plain)
    return kKernel_encode_float32_4 + 3 * source + width_index(to);
  if (from < 4 || to < 4) return -1;
  if (is_low(sides.src.row) && target >= 0 && holds_exactly(kFormats[sides.dst.row], kFormats[sides.src.row]))
    return kKernel_decode_4_2 + 2 * width_index(from) + (target == kFromFloat32);
  const bool codes = from <= 8 && to <= 8 && (same || (is_low(sides.src.row) && is_low(sides.dst.row)));
  if (codes && (same || round.rounding != DLFP4_STOCHASTIC))
    return kKernel_recode_4_4 + 3 * width_index(from) + width_index(to);
  return -1;
}

int convert_run(Sides sides, Round round, const uint8_t *src, uint8_t *dst, int64_t steps, uintptr_t stream) {
  const int kernel = find_run_kernel(sides, round);
  if (kernel < kKernel_decode_4_2) {
    EncodeParams params = encode_params(sides.dst.row, round);
    params.src = src;
    params.dst = dst;
    params.steps = steps;
    return run(static_cast<KernelNumber>(kernel), steps, params, stream);
  }
  const DecodeParams params = {src, dst, steps, kFormats[sides.src.row], kFormats[sides.dst.row], round};
  return run_walk(kernel, steps, params, stream);
}

Place make_place(const uint8_t *data, Operand operand, const Layout &layout, Side side) {
  Place place = {const_cast<uint8_t *>(data), kFormats[operand.row], spacing(operand), {}};
  memcpy(place.stride, layout.stride[side], static_cast<size_t>(layout.ndim) * sizeof(int64_t));
  return place;
}

bool is_compact(const Layout &layout, Side side) {
  int64_t expected = 1;
  for (int dim = layout.ndim - 1; dim >= 0; --dim) {
    if (layout.stride[side][dim] != expected) return false;
    expected *= layout.extent[dim];
  }
  return true;
}

// Packed destinations are compact, or have rows that start on bytes and have no gaps.
bool can_write(const Layout &layout, Operand dst) {
  if (!dst.packed || is_compact(layout, kDst)) return true;
  const bool dense = layout.stride[kDst][layout.ndim - 1] == 1 || layout.extent[layout.ndim - 1] == 1;
  return dense && (layout.ndim == 1 || rows_start_on_bytes(layout, kDst, dst));
}

int convert_any(Sides sides, const Layout &layout, const uint8_t *src, uint8_t *dst, Round round, uint64_t seed,
                int64_t first, uintptr_t stream) {
  if (layout.ndim > kMostDims || !can_write(layout, sides.dst)) return refuse(DLFP4_E_SHAPE);
  ConvertParams params = {};
  params.src = make_place(src, sides.src, layout, kSrc);
  params.dst = make_place(dst, sides.dst, layout, kDst);
  params.ndim = layout.ndim;
  memcpy(params.extent, layout.extent, static_cast<size_t>(layout.ndim) * sizeof(int64_t));
  params.group = sides.dst.packed ? 8 : 1;
  params.compact = sides.dst.packed && is_compact(layout, kDst);
  params.size = layout.size;
  params.groups_in_row = divide_up(layout.extent[layout.ndim - 1], params.group);
  params.groups = params.compact ? divide_up(layout.size, params.group)
                                 : layout.size / layout.extent[layout.ndim - 1] * params.groups_in_row;
  params.copies = sides.src.row == sides.dst.row;
  params.kind = nan_rule(kFormats[sides.src.row], kFormats[sides.dst.row]);
  params.round = round;
  params.seed = seed;
  params.first = static_cast<uint64_t>(first);
  return run(kKernel_convert_any, params.groups, params, stream);
}

bool is_run(const Layout &layout) {
  return layout.ndim == 1 && layout.stride[kSrc][0] == 1 && layout.stride[kDst][0] == 1;
}

// Whole steps of a run by a fast kernel, the rest by the one for anything.
int convert_layout(Sides sides, Layout layout, const uint8_t *src, uint8_t *dst, Round round, uint64_t seed,
                   uintptr_t stream) {
  int64_t done = 0;
  if (is_run(layout) && is_aligned(src, 16) && is_aligned(dst, 16) && find_run_kernel(sides, round) >= 0) {
    const int64_t steps = layout.size / kStep;
    if (const int status = convert_run(sides, round, src, dst, steps, stream)) return status;
    done = steps * kStep;
    layout.extent[0] = layout.size -= done;
  }
  if (layout.size == 0) return 0;
  return convert_any(sides, layout, src + done * spacing(sides.src) / 8, dst + done * spacing(sides.dst) / 8, round,
                     seed, done, stream);
}

// --- Quantize --------------------------------------------------------------------------------

// Where the whole tensor's largest magnitude or decode scale lies.
struct TensorPlace {
  const uint32_t *amax;
  const float *decode;
};

QuantizeParams quantize_params(const Lines &x, const FormatInfo &format, const ScaleRule &rule,
                               const dlfp4_recipe &recipe, const dlfp4_blocks &blocks, TensorPlace place) {
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
  p.padded_columns = scales.padded_columns;
  p.group = format.group;
  p.block = least(format.block, format.whole ? 4096 : format.block);
  p.blocks = divide_up(blocks.length, p.block);
  p.repeats = format.row->repeats;
  p.whole = format.whole;
  p.source = kFormats[kSourceRows[x.source]];
  p.element = kFormats[format.row->element];
  p.rule = rule;
  p.rounding = recipe.rounding;
  p.zero = recipe.drops_negative_zero ? 0.0f : -0.0f;
  p.seed = recipe.seed;
  p.amax = place.amax;
  p.decode = place.decode;
  return p;
}

// The fast kernel's offset among those of a source, or -1.
int find_rows_kernel(const QuantizeParams &p, const FormatInfo &format) {
  const int64_t bytes = p.source.bits / 8;
  const bool whole_blocks = p.stored == p.length && p.stored % p.block == 0 && p.group == 1 && !p.whole;
  const bool runs = p.step == 1 && p.data_step == 1 && p.rounding == DLFP4_NEAREST_EVEN;
  const bool aligned = is_aligned(p.src, 16) && p.line_stride * bytes % 16 == 0 && is_aligned(p.data, 16) &&
                       p.data_stride * format.bits / 8 % 4 == 0 && p.data_stride % kStep == 0;
  if (!whole_blocks || !runs || !aligned) return -1;
  if (format.row->kind == DLFP4_TWO_LEVEL) return 0;
  return format.row->kind == DLFP4_LARGEST ? 4 : 1 + width_index(format.bits);
}

int quantize_lines(const Lines &x, const FormatInfo &format, const QuantizeParams &p, uintptr_t stream) {
  const int fast = find_rows_kernel(p, format);
  if (fast < 0) {
    const int64_t warps = divide_up(p.lines, p.group) * p.blocks;
    return run(plus(kKernel_quantize_any_0, format.row->kind), warps * 32, p, stream);
  }
  const QuantizeRowsParams params = {p, encode_params(format.row->element, {DLFP4_NEAREST_EVEN, true})};
  return run(plus(kKernel_quantize_float32_4_16, 5 * x.source + fast), p.lines * (p.stored / kStep), params, stream);
}

int find_largest(const Lines &x, const FormatInfo &format, uint32_t *place, uintptr_t stream) {
  LargestParams p = {x.data,
                     x.lines,
                     x.length,
                     x.line_stride,
                     x.step,
                     kFormats[kSourceRows[x.source]],
                     format.row->kind == DLFP4_TWO_LEVEL,
                     place};
  if (const int status = set_word(place, 0, stream)) return status;
  const int64_t count = x.lines * x.length;
  const bool run = x.step == 1 && (x.line_stride == x.length || x.lines == 1) && is_aligned(x.data, 16);
  if (run && count % kStep == 0) return run_walk(kKernel_largest_float32 + x.source, count / kStep, p, stream);
  return run_walk(kKernel_largest_any, count, p, stream);
}

int fill_padding(const dlfp4_blocks &blocks, const FormatInfo &format, int64_t lines, uintptr_t stream) {
  if (blocks.layout == DLFP4_LAYOUT_linear) return 0;
  const int64_t rows = divide_up(lines, format.row->repeats ? 1 : format.group);
  const int64_t columns = divide_up(blocks.length, format.block);
  return set_bytes(blocks.scales, blocks.fill, padded_bytes(blocks.layout, rows, columns, format.scale_bytes), stream);
}

int quantize_direction(const dlfp4_matrix &x, Direction direction, const FormatInfo &format, const ScaleRule &rule,
                       const dlfp4_recipe &recipe, const dlfp4_blocks *blocks, TensorPlace place, uintptr_t stream) {
  Lines lines;
  if (!blocks) return 0;
  if (!make_lines(x, direction, &lines)) return refuse(DLFP4_E_DTYPE);
  if (blocks->length < lines.length || !is_addressable(*blocks, format, lines.lines)) return refuse(DLFP4_E_SHAPE);
  if (lines.lines == 0 || blocks->length == 0) return fill_padding(*blocks, format, lines.lines, stream);
  if (const int status = fill_padding(*blocks, format, lines.lines, stream)) return status;
  return quantize_lines(lines, format, quantize_params(lines, format, rule, recipe, *blocks, place), stream);
}

}  // namespace
}  // namespace cuda
}  // namespace dlfp4

extern "C" {

int dlfp4_cuda_convert(int device, uintptr_t stream, const dlfp4_view *src, const dlfp4_view *dst,
                       const dlfp4_convert_options *options) {
  using namespace dlfp4;
  using namespace dlfp4::cuda;
  const CurrentContext context(device);
  if (context.status()) return context.status();
  Sides sides;
  Layout layout;
  const Round round = options ? Round{options->rounding, options->saturate != 0} : Round{DLFP4_NEAREST_EVEN, true};
  if (!find_operand(*src, &sides.src) || !find_operand(*dst, &sides.dst)) return refuse(DLFP4_E_DTYPE);
  const bool convertible = is_float(kFormats[sides.src.row]) && is_float(kFormats[sides.dst.row]);
  if (sides.src.row != sides.dst.row && !convertible) return refuse(DLFP4_E_DTYPE);
  if (!collapse(*src, *dst, &layout)) return refuse(DLFP4_E_SHAPE);
  if (layout.size == 0) return 0;
  return convert_layout(sides, layout, static_cast<const uint8_t *>(src->data), static_cast<uint8_t *>(dst->data),
                        round, options ? options->seed : 0, stream);
}

int dlfp4_cuda_quantize(int device, uintptr_t stream, const dlfp4_matrix *x, int format, const dlfp4_recipe *recipe,
                        int given, void *place, const dlfp4_blocks *along_rows, const dlfp4_blocks *along_columns) {
  using namespace dlfp4;
  using namespace dlfp4::cuda;
  const CurrentContext context(device);
  if (context.status()) return context.status();
  FormatInfo info;
  Lines lines;
  if (!find_format(format, &info)) return refuse(DLFP4_E_OPTION);
  if (!make_lines(*x, kAlongRows, &lines)) return refuse(DLFP4_E_DTYPE);
  const bool scaled = info.whole || info.row->kind == DLFP4_TWO_LEVEL, searches = scaled && !given;
  const ScaleRule rule = make_rule(info, *recipe, nullptr);
  uint32_t *const word = static_cast<uint32_t *>(place);
  const TensorPlace found = {searches ? word : nullptr, scaled && given ? static_cast<float *>(place) : nullptr};
  int status = searches ? find_largest(lines, info, word, stream) : 0;
  if (!status) status = quantize_direction(*x, kAlongRows, info, rule, *recipe, along_rows, found, stream);
  if (!status) status = quantize_direction(*x, kAlongColumns, info, rule, *recipe, along_columns, found, stream);
  if (status || !searches) return status;
  return run(kKernel_tensor_scale, 1, TensorScaleParams{word, info.row->kind, rule}, stream);
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
  if (q->length < lines.length || !is_addressable(*q, info, lines.lines)) return refuse(DLFP4_E_SHAPE);
  const Scales scales = make_scales(*q, info);
  const Format element = kFormats[info.row->element], target = kFormats[kSourceRows[lines.source]];
  const DequantizeParams p = {static_cast<const uint8_t *>(q->data),
                              q->strides[0],
                              q->strides[1],
                              scales.data,
                              q->layout,
                              scales.stride,
                              scales.step,
                              scales.padded_columns,
                              scales.lines_per_row,
                              info.block,
                              info.row->kind,
                              decode,
                              element,
                              kFormats[info.row->scale],
                              target,
                              lines.data,
                              lines.lines,
                              lines.length,
                              lines.line_stride,
                              lines.step};
  const bool runs = p.step == 1 && p.data_step == 1 && p.length % kStep == 0 && p.data_stride % kStep == 0;
  const bool aligned = is_aligned(p.data, 16) && is_aligned(p.dst, 16) && p.line_stride * lines.item % 16 == 0;
  if (!runs || !aligned) return run(kKernel_dequantize_any, p.lines * p.length, p, stream);
  const int kernel = kKernel_dequantize_4_float32 + 3 * width_index(info.bits) + lines.source;
  return run_walk(kernel, p.lines * (p.length / kStep), p, stream);
}

int dlfp4_cuda_set_word(int device, uintptr_t stream, void *place, uint32_t value) {
  const dlfp4::cuda::CurrentContext context(device);
  return context.status() ? context.status() : dlfp4::cuda::set_word(place, value, stream);
}

int dlfp4_cuda_copy_word(int device, uintptr_t stream, void *dst, const void *src) {
  using namespace dlfp4::cuda;
  const CurrentContext context(device);
  if (context.status()) return context.status();
  return opened_driver().cuMemcpyDtoDAsync(reinterpret_cast<CUdeviceptr>(dst), reinterpret_cast<CUdeviceptr>(src), 4,
                                           reinterpret_cast<CUstream>(stream));
}

int dlfp4_cuda_convert_scales(int device, uintptr_t stream, const void *src, int src_layout, void *dst, int dst_layout,
                              int64_t rows, int64_t columns, uint8_t fill) {
  using namespace dlfp4;
  using namespace dlfp4::cuda;
  const CurrentContext context(device);
  if (context.status()) return context.status();
  const dlfp4_layout_row &from = dlfp4_layouts[src_layout], &to = dlfp4_layouts[dst_layout];
  const int64_t padded_rows = divide_up(rows, to.rows) * to.rows;
  const int64_t padded_columns = divide_up(columns, to.columns) * to.columns;
  const ScalesParams p = {static_cast<const uint8_t *>(src),
                          static_cast<uint8_t *>(dst),
                          src_layout,
                          dst_layout,
                          columns,
                          1,
                          divide_up(columns, from.columns) * from.columns,
                          rows,
                          columns,
                          padded_rows,
                          padded_columns,
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
