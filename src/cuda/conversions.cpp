// Conversions on CUDA memory: which kernel serves, with which parameters.
// Layout: views as in dlfp4.h, their dimensions collapsed.
// Trick: one run on aligned memory goes by whole steps; its rest, and all else, to the kernel for anything.
#include <string.h>

#include <initializer_list>

#include "../cpu/dispatch.h"
#include "../cpu/layout.h"
#include "context.h"
#include "jobs.h"

namespace dlfp4 {
namespace cuda {
namespace {

struct Sides {
  Operand src, dst;
  bool part;  // of memory with other elements is the destination
};

// 0, 1, 2 for 4, 6 and 8 bits.
int width_index(int bits) { return (bits - 4) / 2; }

// The kernel's number among a source's encoders.
int encoder_of(int row, int bits, Round round) {
  const bool saturates = round.saturate || kFormats[row].specials == DLFP4_FINITE;
  const int element = element_of(row);
  if (saturates && element >= 0 && bits == kFormats[row].bits)
    return kKernel_encode_float32_e2m1 + element - kKernel_encode_float32_4;
  return width_index(bits);
}

// The fast kernel of a contiguous run of whole steps, or -1.
int find_run_kernel(Sides sides, Round round) {
  constexpr int kEncoders = kKernel_encode_bfloat16_4 - kKernel_encode_float32_4;
  const int from = spacing(sides.src), to = spacing(sides.dst);
  const bool plain = round.rounding == DLFP4_NEAREST_EVEN;
  const bool same = sides.src.row == sides.dst.row;
  const int target = source_of(sides.dst.row), source = source_of(sides.src.row);
  if (source >= 0 && is_low(sides.dst.row) && kFormats[sides.dst.row].specials != DLFP4_E8M0 && plain)
    return kKernel_encode_float32_4 + kEncoders * source + encoder_of(sides.dst.row, to, round);
  if (from < 4 || to < 4) return -1;
  if (target >= 0 && element_of(sides.src.row) >= 0 && from == kFormats[sides.src.row].bits)
    return kKernel_values_float4_e2m1fn_float32 + kNumSources * element_of(sides.src.row) + target;
  if (is_low(sides.src.row) && target >= 0 && holds_exactly(kFormats[sides.dst.row], kFormats[sides.src.row]))
    return kKernel_decode_4_16 + 2 * width_index(from) + (target == kFromFloat32);
  const bool codes = from <= 8 && to <= 8 && (same || (is_low(sides.src.row) && is_low(sides.dst.row)));
  if (codes && (same || round.rounding != DLFP4_STOCHASTIC))
    return kKernel_decode_4_4 + 3 * width_index(from) + width_index(to);
  return -1;
}

int convert_run(Sides sides, Round round, const uint8_t *src, uint8_t *dst, int64_t steps, uintptr_t stream) {
  const int kernel = find_run_kernel(sides, round);
  if (kernel < kKernel_decode_4_16) {
    EncodeParams params = encode_params(sides.dst.row, round);
    params.src = src;
    params.dst = dst;
    params.steps = steps;
    return run(static_cast<KernelNumber>(kernel), steps, params, stream);
  }
  DecodeParams params = {
      src, dst, steps, kFormats[sides.src.row], kFormats[sides.dst.row], round, sides.src.row == sides.dst.row, 1};
  if (kernel < kKernel_values_float4_e2m1fn_float32) return run_walk(kernel, steps, params, stream);
  params.of_thread = steps_of_thread(steps);
  return run(static_cast<KernelNumber>(kernel), divide_up(steps, params.of_thread), params, stream);
}

Place make_place(const uint8_t *data, Operand operand, const Layout &layout, Side side) {
  Place place = {const_cast<uint8_t *>(data), kFormats[operand.row], spacing(operand), {}};
  memcpy(place.stride, layout.stride[side], static_cast<size_t>(layout.ndim) * sizeof(int64_t));
  return place;
}

// How many elements a thread writes at a time, to bytes that no other thread writes; 0 where there is no such number.
int group_of(const Layout &layout, Operand dst) {
  if (!dst.packed) return 1;
  if (is_row_major(layout, kDst)) return 8;
  if (!rows_start_on_bytes(layout, kDst, dst)) return 0;
  const int64_t step = layout.stride[kDst][layout.ndim - 1];
  if (step == 1) return 8;
  return step * spacing(dst) % 8 == 0 ? 1 : 0;
}

int convert_any(Sides sides, const Layout &layout, const uint8_t *src, uint8_t *dst, Round round, uint64_t seed,
                int64_t first, uintptr_t stream) {
  ConvertParams params = {};
  params.group = group_of(layout, sides.dst);
  if (params.group == 0) return refuse(DLFP4_E_SHAPE);
  params.src = make_place(src, sides.src, layout, kSrc);
  params.dst = make_place(dst, sides.dst, layout, kDst);
  params.ndim = layout.ndim;
  memcpy(params.extent, layout.extent, static_cast<size_t>(layout.ndim) * sizeof(int64_t));
  params.compact = sides.dst.packed && is_row_major(layout, kDst);
  params.size = layout.size;
  params.groups_in_row = divide_up(layout.extent[layout.ndim - 1], params.group);
  params.groups = params.compact ? divide_up(layout.size, params.group)
                                 : layout.size / layout.extent[layout.ndim - 1] * params.groups_in_row;
  params.copies = sides.src.row == sides.dst.row;
  params.shares = sides.part || !params.compact;
  params.kind = nan_rule(kFormats[sides.src.row], kFormats[sides.dst.row]);
  params.round = round;
  params.seed = seed;
  params.first = static_cast<uint64_t>(first);
  return run(kKernel_convert_any, params.groups, params, stream);
}

// Elements of 16 bytes, which are only moved, as two of eight. False for too many dimensions.
bool halve_elements(Layout *layout, Sides *sides) {
  if (layout->ndim == kMaxDims) return false;
  for (int dim = 0; dim < layout->ndim; ++dim)
    for (Side side : {kSrc, kDst}) layout->stride[side][dim] *= 2;
  layout->extent[layout->ndim] = 2;
  layout->stride[kSrc][layout->ndim] = layout->stride[kDst][layout->ndim] = 1;
  ++layout->ndim;
  layout->size *= 2;
  sides->src.row = sides->dst.row = DLFP4_uint64;
  return true;
}

// Whole steps of a run by a fast kernel, the rest by the one for anything.
int convert_inner(Sides sides, Layout layout, const uint8_t *src, uint8_t *dst, Round round, uint64_t seed,
                  int64_t first, uintptr_t stream) {
  int64_t done = 0;
  if (is_run(layout) && is_aligned(src, 16) && is_aligned(dst, 16) && find_run_kernel(sides, round) >= 0) {
    const int64_t steps = layout.size / kStep;
    if (const int status = convert_run(sides, round, src, dst, steps, stream)) return status;
    done = steps * kStep;
    layout.extent[0] = layout.size -= done;
  }
  if (layout.size == 0) return 0;
  return convert_any(sides, layout, src + done * spacing(sides.src) / 8, dst + done * spacing(sides.dst) / 8, round,
                     seed, first + done, stream);
}

// A launch for each place of the dimensions that kernels have no room for.
int convert_layout(Sides sides, const Layout &layout, const uint8_t *src, uint8_t *dst, Round round, uint64_t seed,
                   int64_t first, uintptr_t stream) {
  if (layout.ndim <= kMostDims) return convert_inner(sides, layout, src, dst, round, seed, first, stream);
  Layout inner = {layout.ndim - 1, layout.size / layout.extent[0], {}, {}};
  memcpy(inner.extent, layout.extent + 1, static_cast<size_t>(inner.ndim) * sizeof(int64_t));
  for (Side side : {kSrc, kDst})
    memcpy(inner.stride[side], layout.stride[side] + 1, static_cast<size_t>(inner.ndim) * sizeof(int64_t));
  sides.part = true;  // the others' elements lie beside
  const int64_t from = layout.stride[kSrc][0] * spacing(sides.src), to = layout.stride[kDst][0] * spacing(sides.dst);
  if (from % 8 != 0 || to % 8 != 0) return refuse(DLFP4_E_SHAPE);
  for (int64_t i = 0; i < layout.extent[0]; ++i) {
    const int status =
        convert_layout(sides, inner, src + i * from / 8, dst + i * to / 8, round, seed, first + i * inner.size, stream);
    if (status != 0) return status;
  }
  return 0;
}

}  // namespace
}  // namespace cuda
}  // namespace dlfp4

extern "C" int dlfp4_cuda_convert(int device, uintptr_t stream, const dlfp4_view *src, const dlfp4_view *dst,
                                  const dlfp4_convert_options *options) {
  using namespace dlfp4;
  using namespace dlfp4::cuda;
  const CurrentContext context(device);
  if (context.status()) return context.status();
  Sides sides = {{}, {}, dst->part != 0};
  Layout layout;
  const Round round = options ? Round{options->rounding, options->saturate != 0} : Round{DLFP4_NEAREST_EVEN, true};
  if (!find_operand(*src, &sides.src) || !find_operand(*dst, &sides.dst)) return refuse(DLFP4_E_DTYPE);
  if (!are_convertible(sides.src, sides.dst)) return refuse(DLFP4_E_DTYPE);
  if (!collapse(*src, *dst, &layout)) return refuse(DLFP4_E_SHAPE);
  if (layout.size == 0) return 0;
  if (kFormats[sides.dst.row].bits == 128 && !halve_elements(&layout, &sides)) return refuse(DLFP4_E_SHAPE);
  return convert_layout(sides, layout, static_cast<const uint8_t *>(src->data), static_cast<uint8_t *>(dst->data),
                        round, options ? options->seed : 0, 0, stream);
}
