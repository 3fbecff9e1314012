// Conversions on CUDA memory: which kernel serves, with which parameters.
// Layout: views as in dlfp4.h, their dimensions collapsed.
// Trick: what has whole steps goes by them; the rest, and all else, to the kernel for anything.
#include <string.h>

#include <initializer_list>

#include "codec_kernels.h"
#include "codecs/plan.h"
#include "gpu/context.h"
#include "gpu/runs.h"
#include "steps.h"

namespace dlfp4 {
namespace cuda {

const KernelNames kernels_of_codecs = {image_of_codecs::kNames, image_of_codecs::kNumKernels};

namespace {

using namespace image_of_codecs;

struct Conversion {
  bool part;  // of memory with other elements is the destination
  Round round;
  uint64_t seed;
  uintptr_t stream;
};

// --- Steps -----------------------------------------------------------------------------------

constexpr int kMostCodeBits = 8, kMostFloatBits = 32;

// What find(layout, i, k) finds for each layout.
template <int Rows, int Columns>
struct StepKernels {
  KernelTable<Rows, Columns> run, strided;

  template <class Find>
  constexpr explicit StepKernels(const Find &find)
      : run([&find](int i, int k) { return find(kRun, i, k); }),
        strided([&find](int i, int k) { return find(kStrided, i, k); }) {}

  constexpr const KernelTable<Rows, Columns> &operator[](StepLayout layout) const {
    return layout == kRun ? run : strided;
  }
};

constexpr DeviceKernel find_steps(StepLayout layout, int operation, int from, int to) {
  return find_kernel(KernelKey(operation, from, to, kAnything, layout));
}

// From a source to a row of dtypes.def, and to codes of so many bits of any type; and back.
constexpr StepKernels<kNumSources, DLFP4_NUM_DTYPES> kEncoders([](StepLayout layout, int source, int row) {
  return find_steps(layout, kEncode, kSourceRows[source], row);
});
constexpr StepKernels<kNumSources, kMostCodeBits + 1> kBitEncoders([](StepLayout layout, int source, int bits) {
  return find_steps(layout, kEncodeToBits, kSourceRows[source], bits);
});
constexpr StepKernels<DLFP4_NUM_DTYPES, kNumSources> kDecoders([](StepLayout layout, int row, int source) {
  return find_steps(layout, kDecode, row, kSourceRows[source]);
});
constexpr StepKernels<kMostCodeBits + 1, kMostFloatBits + 1> kBitRecoders([](StepLayout layout, int from, int to) {
  return find_steps(layout, kRecodeBits, from, to);
});
constexpr StepKernels<kNumSources, kNumSources> kFloatConverters([](StepLayout layout, int from, int to) {
  return find_steps(layout, kConvertFloats, kSourceRows[from], kSourceRows[to]);
});
constexpr KernelList<kMostFloatBits + 1> kMovers([](int bits) { return find_steps(kStrided, kMove, bits, bits); });

// What find_step_kernel looks for.
struct StepWish {
  Operand src, dst;
  Round round;
  StepLayout layout;
};

DeviceKernel find_encoder(const StepWish &wish) {
  const int row = wish.dst.row, bits = spacing(wish.dst), source = source_of(wish.src.row);
  const bool rounds = wish.round.rounding == DLFP4_NEAREST_EVEN && kTypes[row].specials != DLFP4_E8M0;
  if (source < 0 || !is_low(row) || !rounds) return kNoKernel;
  const bool saturates = wish.round.saturate || kTypes[row].specials == DLFP4_FINITE;
  const DeviceKernel own = kEncoders[wish.layout][source][row];
  const bool has_own = saturates && bits == kTypes[row].bits && own != kNoKernel;
  return has_own ? own : kBitEncoders[wish.layout][source][bits];
}

// Of codes to floats that hold them, or to other codes.
DeviceKernel find_recoder(const StepWish &wish) {
  const int src = wish.src.row, dst = wish.dst.row, from = spacing(wish.src), to = spacing(wish.dst);
  if (from > kMostCodeBits || to > kMostFloatBits) return kNoKernel;
  const DeviceKernel recoder = kBitRecoders[wish.layout][from][to];
  if (source_of(dst) >= 0) return is_low(src) && holds_exactly(kTypes[dst], kTypes[src]) ? recoder : kNoKernel;
  const bool has_table = is_low(src) && is_low(dst) && wish.round.rounding != DLFP4_STOCHASTIC;
  return to <= kMostCodeBits && (src == dst || has_table) ? recoder : kNoKernel;
}

// Of floats to floats of another type.
DeviceKernel find_float_converter(const StepWish &wish) {
  const int from = source_of(wish.src.row), to = source_of(wish.dst.row);
  if (from < 0 || to < 0) return kNoKernel;
  const bool is_exact = holds_exactly(kTypes[wish.dst.row], kTypes[wish.src.row]);
  return is_exact || wish.round.rounding == DLFP4_NEAREST_EVEN ? kFloatConverters[wish.layout][from][to] : kNoKernel;
}

// Elements are moved as they are, and all of their bits are theirs.
bool is_move(Operand src, Operand dst) {
  const int bits = kTypes[src.row].bits;
  return src.row == dst.row && bits % 8 == 0 && spacing(src) == bits && spacing(dst) == bits;
}

// The kernel that takes whole steps, or kNoKernel. None draws numbers.
DeviceKernel find_step_kernel(const StepWish &wish) {
  const int row = wish.src.row, bits = spacing(wish.src), target = source_of(wish.dst.row);
  if (is_move(wish.src, wish.dst)) return bits <= kMostFloatBits ? kMovers[bits] : kNoKernel;
  if (const DeviceKernel converter = find_float_converter(wish); converter != kNoKernel) return converter;
  if (const DeviceKernel encoder = find_encoder(wish); encoder != kNoKernel) return encoder;
  const bool is_packed = bits == kTypes[row].bits;
  const DeviceKernel decoder = target >= 0 && is_packed ? kDecoders[wish.layout][row][target] : kNoKernel;
  return decoder != kNoKernel ? decoder : find_recoder(wish);
}

int convert_steps(DeviceKernel kernel, const Conversion &c, const Ends &ends, const Steps &steps) {
  const int from = ends.src.operand.row, to = ends.dst.operand.row;
  if (is_for(kernel, kMove)) return run(kernel, steps.count, steps, c.stream);
  if (is_for(kernel, kEncode) || is_for(kernel, kEncodeToBits))
    return run(kernel, steps.count, EncodeStepsParams{steps, encode_params(to, c.round)}, c.stream);
  DecodeParams params = {1, from == to, c.round, steps, kTypes[from], kTypes[to]};
  if (is_for(kernel, kRecodeBits)) return run_walk(kernel, steps.count, params, c.stream);
  if (is_for(kernel, kConvertFloats)) return run(kernel, steps.count, params, c.stream);
  params.of_thread = steps_of_thread(steps.count);
  return run(kernel, divide_up(steps.count, params.of_thread), params, c.stream);
}

// --- Anything --------------------------------------------------------------------------------

Place make_place(const End &end, const Walk &walk, Side side) {
  Place place = {end.data, kTypes[end.operand.row], spacing(end.operand), {}};
  memcpy(place.stride, walk.stride[side], static_cast<size_t>(walk.ndim) * sizeof(int64_t));
  return place;
}

// How many elements a thread writes at a time, to bytes that no other thread writes; 0 where there is no such number.
int group_of(const Walk &walk, Operand dst) {
  if (!dst.packed) return 1;
  if (is_row_major(walk, kDst)) return 8;
  if (!rows_start_on_bytes(walk, kDst, dst)) return 0;
  const int64_t step = walk.stride[kDst][walk.ndim - 1];
  if (step == 1) return 8;
  return step * spacing(dst) % 8 == 0 ? 1 : 0;
}

// `first` is the logical index of the first element.
int convert_any(const Conversion &c, const Walk &walk, const Ends &ends, int64_t first) {
  const Operand src = ends.src.operand, dst = ends.dst.operand;
  ConvertParams params = {};
  params.group = group_of(walk, dst);
  if (params.group == 0) return refuse(DLFP4_E_SHAPE);
  params.src = make_place(ends.src, walk, kSrc);
  params.dst = make_place(ends.dst, walk, kDst);
  params.ndim = walk.ndim;
  memcpy(params.extent, walk.extent, static_cast<size_t>(walk.ndim) * sizeof(int64_t));
  params.compact = dst.packed && is_row_major(walk, kDst);
  params.size = walk.size;
  params.groups_in_row = divide_up(walk.extent[walk.ndim - 1], params.group);
  params.groups = params.compact ? divide_up(walk.size, params.group)
                                 : walk.size / walk.extent[walk.ndim - 1] * params.groups_in_row;
  params.copies = src.row == dst.row;
  params.shares = c.part || !params.compact;
  params.kind = nan_rule(kTypes[src.row], kTypes[dst.row]);
  params.round = c.round;
  params.seed = c.seed;
  params.first = static_cast<uint64_t>(first);
  return run(kKernel_convert_any, params.groups, params, c.stream);
}

// --- Layouts ---------------------------------------------------------------------------------

// Elements of more than four bytes that are moved, as several: in the last dimension, where they are neighbours, as
// words; else those of 16 bytes in a dimension more. False where there is no room for it.
bool split_elements(Walk *walk, Ends *ends) {
  const int bits = kTypes[ends->dst.operand.row].bits;
  if (bits <= 32 || !is_move(ends->src.operand, ends->dst.operand)) return true;
  const bool words = has_contiguous_rows(*walk);
  if (!words && bits == 64) return true;
  if (!words && walk->ndim == kMaxDims) return false;
  const int parts = words ? bits / 32 : 2, last = walk->ndim - 1;
  for (int dim = 0; dim < walk->ndim; ++dim)
    for (Side side : {kSrc, kDst}) walk->stride[side][dim] *= parts;
  const int dim = words ? last : walk->ndim++;
  walk->extent[dim] = words ? walk->extent[dim] * parts : parts;
  walk->stride[kSrc][dim] = walk->stride[kDst][dim] = 1;
  walk->size *= parts;
  ends->src.operand.row = ends->dst.operand.row = words ? DLFP4_uint32 : DLFP4_uint64;
  return true;
}

uint8_t *advance(const End &end, int64_t elements) { return end.data + elements * spacing(end.operand) / 8; }

// From a place along a dimension on.
Ends advance(const Ends &ends, const Walk &walk, int dim, int64_t place) {
  return {{advance(ends.src, place * walk.stride[kSrc][dim]), ends.src.operand},
          {advance(ends.dst, place * walk.stride[kDst][dim]), ends.dst.operand}};
}

// Whole steps by a kernel for them where there is one, what is left by the one for anything.
int convert_inner(const Conversion &c, Walk walk, const Ends &ends, int64_t first) {
  const Operand src = ends.src.operand, dst = ends.dst.operand;
  if (is_run(walk) && is_move(src, dst))
    return copy_bytes(ends.dst.data, ends.src.data, walk.size * spacing(dst) / 8, c.stream);
  StepPlan plan;
  if (!plan_steps(walk, ends, &plan)) return convert_any(c, walk, ends, first);
  const DeviceKernel kernel = find_step_kernel({src, dst, c.round, plan.layout});
  if (kernel == kNoKernel) return convert_any(c, walk, ends, first);
  if (const int status = convert_steps(kernel, c, ends, plan.steps)) return status;
  int64_t &extent = walk.extent[plan.dim];
  const int64_t done = extent / kStep * kStep;
  if (done == extent) return 0;
  walk.size = walk.size / extent * (extent - done);
  extent -= done;
  return convert_any(c, walk, advance(ends, walk, plan.dim, done), 0);
}

// A launch for each place of the dimensions that kernels have no room for.
int convert_layout(Conversion c, const Walk &walk, const Ends &ends, int64_t first) {
  if (walk.ndim <= kMostDims) return convert_inner(c, walk, ends, first);
  Walk inner = {walk.ndim - 1, walk.size / walk.extent[0], {}, {}};
  memcpy(inner.extent, walk.extent + 1, static_cast<size_t>(inner.ndim) * sizeof(int64_t));
  for (Side side : {kSrc, kDst})
    memcpy(inner.stride[side], walk.stride[side] + 1, static_cast<size_t>(inner.ndim) * sizeof(int64_t));
  c.part = true;  // the others' elements lie beside
  for (Side side : {kSrc, kDst})
    if (walk.stride[side][0] * spacing(ends[side].operand) % 8 != 0) return refuse(DLFP4_E_SHAPE);
  for (int64_t i = 0; i < walk.extent[0]; ++i)
    if (const int status = convert_layout(c, inner, advance(ends, walk, 0, i), first + i * inner.size)) return status;
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
  if (options && !is_rounding(options->rounding)) return refuse(DLFP4_E_OPTION);
  const Round round = options ? Round{options->rounding, options->saturate != 0} : Round{DLFP4_NEAREST_EVEN, true};
  const Conversion conversion = {dst->part != 0, round, options ? options->seed : 0, stream};
  Ends ends = {{static_cast<uint8_t *>(src->data), {}}, {static_cast<uint8_t *>(dst->data), {}}};
  Walk walk;
  if (!find_operand(*src, &ends.src.operand) || !find_operand(*dst, &ends.dst.operand)) return refuse(DLFP4_E_DTYPE);
  if (!are_convertible(ends.src.operand, ends.dst.operand)) return refuse(DLFP4_E_DTYPE);
  if (round.rounding == DLFP4_UPWARD && kTypes[ends.dst.operand.row].specials != DLFP4_E8M0)
    return refuse(DLFP4_E_OPTION);
  if (!collapse(*src, *dst, &walk)) return refuse(DLFP4_E_SHAPE);
  if (walk.size == 0) return 0;
  if (!split_elements(&walk, &ends)) return refuse(DLFP4_E_SHAPE);
  return convert_layout(conversion, walk, ends, 0);
}
