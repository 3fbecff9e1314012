// Conversions on CUDA memory: which kernel serves, with which parameters.
// Layout: views as in dlfp4.h, their dimensions collapsed.
// Trick: one run on aligned memory goes by whole steps; its rest, and all else, to the kernel for anything.
#include <string.h>

#include <initializer_list>

#include "codec_kernels.h"
#include "codecs/plan.h"
#include "gpu/context.h"
#include "gpu/runs.h"
#include "params.h"
#include "rules/walk.h"

namespace dlfp4 {
namespace cuda {

const KernelNames kernels_of_codecs = {image_of_codecs::kNames, image_of_codecs::kNumKernels};

namespace {

using namespace image_of_codecs;

struct Operands {
  Operand src, dst;
  bool part;  // of memory with other elements is the destination
};

struct Conversion {
  Operands sides;
  Round round;
  uint64_t seed;
  uintptr_t stream;
};

// The memory of both sides, and the logical index of the first element.
struct Ends {
  const uint8_t *src;
  uint8_t *dst;
  int64_t first;
};

// --- Runs ------------------------------------------------------------------------------------

constexpr int kMostCodeBits = 8, kMostFloatBits = 32;

// From a source to a row of dtypes.def, and to codes of so many bits of any type; and back.
constexpr KernelTable<kNumSources, DLFP4_NUM_DTYPES> kEncoders([](int source, int row) {
  return find_kernel(KernelKey(kEncode, kSourceRows[source], row));
});
constexpr KernelTable<kNumSources, kMostCodeBits + 1> kBitEncoders([](int source, int bits) {
  return find_kernel(KernelKey(kEncodeToBits, kSourceRows[source], bits));
});
constexpr KernelTable<DLFP4_NUM_DTYPES, kNumSources> kDecoders([](int row, int source) {
  return find_kernel(KernelKey(kDecode, row, kSourceRows[source]));
});
constexpr KernelTable<kMostCodeBits + 1, kMostFloatBits + 1> kBitRecoders([](int from, int to) {
  return find_kernel(KernelKey(kRecodeBits, from, to));
});

constexpr KernelTable<kNumSources, kNumSources> kFloatConverters([](int from, int to) {
  return find_kernel(KernelKey(kConvertFloats, kSourceRows[from], kSourceRows[to]));
});

DeviceKernel find_encoder(Operands sides, Round round) {
  const int row = sides.dst.row, bits = spacing(sides.dst), source = source_of(sides.src.row);
  const bool rounds = round.rounding == DLFP4_NEAREST_EVEN && kTypes[row].specials != DLFP4_E8M0;
  if (source < 0 || !is_low(row) || !rounds) return kNoKernel;
  const bool saturates = round.saturate || kTypes[row].specials == DLFP4_FINITE;
  const bool has_own = saturates && bits == kTypes[row].bits && kEncoders[source][row] != kNoKernel;
  return has_own ? kEncoders[source][row] : kBitEncoders[source][bits];
}

// Of codes to floats that hold them, or to other codes.
DeviceKernel find_recoder(Operands sides, Round round) {
  const ElementType src = kTypes[sides.src.row], dst = kTypes[sides.dst.row];
  const int from = spacing(sides.src), to = spacing(sides.dst);
  if (from > kMostCodeBits || to > kMostFloatBits) return kNoKernel;
  const bool same = sides.src.row == sides.dst.row, is_code = is_low(sides.src.row);
  if (source_of(sides.dst.row) >= 0) return is_code && holds_exactly(dst, src) ? kBitRecoders[from][to] : kNoKernel;
  const bool has_table = is_code && is_low(sides.dst.row) && round.rounding != DLFP4_STOCHASTIC;
  return to <= kMostCodeBits && (same || has_table) ? kBitRecoders[from][to] : kNoKernel;
}

// Of floats to floats of another type.
DeviceKernel find_float_converter(Operands sides, Round round) {
  const int from = source_of(sides.src.row), to = source_of(sides.dst.row);
  if (from < 0 || to < 0) return kNoKernel;
  const bool is_exact = holds_exactly(kTypes[sides.dst.row], kTypes[sides.src.row]);
  return is_exact || round.rounding == DLFP4_NEAREST_EVEN ? kFloatConverters[from][to] : kNoKernel;
}

// The fast kernel of a contiguous run of whole steps, or kNoKernel.
DeviceKernel find_run_kernel(Operands sides, Round round) {
  if (const DeviceKernel converter = find_float_converter(sides, round); converter != kNoKernel) return converter;
  if (const DeviceKernel encoder = find_encoder(sides, round); encoder != kNoKernel) return encoder;
  const int target = source_of(sides.dst.row);
  const bool is_packed = spacing(sides.src) == kTypes[sides.src.row].bits;
  const DeviceKernel decoder = target >= 0 && is_packed ? kDecoders[sides.src.row][target] : kNoKernel;
  return decoder != kNoKernel ? decoder : find_recoder(sides, round);
}

int convert_run(DeviceKernel kernel, const Conversion &c, const Ends &ends, int64_t steps) {
  if (is_for(kernel, kEncode) || is_for(kernel, kEncodeToBits)) {
    EncodeParams params = encode_params(c.sides.dst.row, c.round);
    params.src = ends.src;
    params.dst = ends.dst;
    params.steps = steps;
    return run(kernel, steps, params, c.stream);
  }
  const int from = c.sides.src.row, to = c.sides.dst.row;
  DecodeParams params = {ends.src, ends.dst, steps, kTypes[from], kTypes[to], c.round, from == to, 1};
  if (is_for(kernel, kRecodeBits)) return run_walk(kernel, steps, params, c.stream);
  if (is_for(kernel, kConvertFloats)) return run(kernel, steps, params, c.stream);
  params.of_thread = steps_of_thread(steps);
  return run(kernel, divide_up(steps, params.of_thread), params, c.stream);
}

// --- Anything --------------------------------------------------------------------------------

Place make_place(const uint8_t *data, Operand operand, const Walk &walk, Side side) {
  Place place = {const_cast<uint8_t *>(data), kTypes[operand.row], spacing(operand), {}};
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

int convert_any(const Conversion &c, const Walk &walk, const Ends &ends) {
  const Operands &sides = c.sides;
  ConvertParams params = {};
  params.group = group_of(walk, sides.dst);
  if (params.group == 0) return refuse(DLFP4_E_SHAPE);
  params.src = make_place(ends.src, sides.src, walk, kSrc);
  params.dst = make_place(ends.dst, sides.dst, walk, kDst);
  params.ndim = walk.ndim;
  memcpy(params.extent, walk.extent, static_cast<size_t>(walk.ndim) * sizeof(int64_t));
  params.compact = sides.dst.packed && is_row_major(walk, kDst);
  params.size = walk.size;
  params.groups_in_row = divide_up(walk.extent[walk.ndim - 1], params.group);
  params.groups = params.compact ? divide_up(walk.size, params.group)
                                 : walk.size / walk.extent[walk.ndim - 1] * params.groups_in_row;
  params.copies = sides.src.row == sides.dst.row;
  params.shares = sides.part || !params.compact;
  params.kind = nan_rule(kTypes[sides.src.row], kTypes[sides.dst.row]);
  params.round = c.round;
  params.seed = c.seed;
  params.first = static_cast<uint64_t>(ends.first);
  return run(kKernel_convert_any, params.groups, params, c.stream);
}

// Elements of 16 bytes, which are only moved, as two of eight. False for too many dimensions.
bool halve_elements(Walk *walk, Operands *sides) {
  if (walk->ndim == kMaxDims) return false;
  for (int dim = 0; dim < walk->ndim; ++dim)
    for (Side side : {kSrc, kDst}) walk->stride[side][dim] *= 2;
  walk->extent[walk->ndim] = 2;
  walk->stride[kSrc][walk->ndim] = walk->stride[kDst][walk->ndim] = 1;
  ++walk->ndim;
  walk->size *= 2;
  sides->src.row = sides->dst.row = DLFP4_uint64;
  return true;
}

// From an element of a run on.
Ends advance(const Ends &ends, const Operands &sides, int64_t count) {
  return {ends.src + count * spacing(sides.src) / 8, ends.dst + count * spacing(sides.dst) / 8, ends.first + count};
}

// Whether elements are moved as they are, and all bits between the first and the last are theirs.
bool is_copy(const Operands &sides, const Walk &walk) {
  const int bits = kTypes[sides.src.row].bits;
  return sides.src.row == sides.dst.row && is_run(walk) && bits % 8 == 0 && spacing(sides.src) == bits &&
         spacing(sides.dst) == bits;
}

// Whole steps of a run by a fast kernel, the rest by the one for anything.
int convert_inner(const Conversion &c, Walk walk, const Ends &ends) {
  if (is_copy(c.sides, walk)) return copy_bytes(ends.dst, ends.src, walk.size * spacing(c.sides.dst) / 8, c.stream);
  const bool is_fast = is_run(walk) && is_aligned(ends.src, 16) && is_aligned(ends.dst, 16);
  const DeviceKernel kernel = is_fast ? find_run_kernel(c.sides, c.round) : kNoKernel;
  int64_t done = 0;
  if (kernel != kNoKernel) {
    const int64_t steps = walk.size / kStep;
    if (const int status = convert_run(kernel, c, ends, steps)) return status;
    done = steps * kStep;
    walk.extent[0] = walk.size -= done;
  }
  return walk.size == 0 ? 0 : convert_any(c, walk, advance(ends, c.sides, done));
}

// A launch for each place of the dimensions that kernels have no room for.
int convert_layout(Conversion c, const Walk &walk, const Ends &ends) {
  if (walk.ndim <= kMostDims) return convert_inner(c, walk, ends);
  Walk inner = {walk.ndim - 1, walk.size / walk.extent[0], {}, {}};
  memcpy(inner.extent, walk.extent + 1, static_cast<size_t>(inner.ndim) * sizeof(int64_t));
  for (Side side : {kSrc, kDst})
    memcpy(inner.stride[side], walk.stride[side] + 1, static_cast<size_t>(inner.ndim) * sizeof(int64_t));
  c.sides.part = true;  // the others' elements lie beside
  const int64_t from = walk.stride[kSrc][0] * spacing(c.sides.src);
  const int64_t to = walk.stride[kDst][0] * spacing(c.sides.dst);
  if (from % 8 != 0 || to % 8 != 0) return refuse(DLFP4_E_SHAPE);
  for (int64_t i = 0; i < walk.extent[0]; ++i) {
    const Ends of_place = {ends.src + i * from / 8, ends.dst + i * to / 8, ends.first + i * inner.size};
    if (const int status = convert_layout(c, inner, of_place)) return status;
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
  if (options && !is_rounding(options->rounding)) return refuse(DLFP4_E_OPTION);
  const Round round = options ? Round{options->rounding, options->saturate != 0} : Round{DLFP4_NEAREST_EVEN, true};
  Conversion conversion = {{{}, {}, dst->part != 0}, round, options ? options->seed : 0, stream};
  Operands &sides = conversion.sides;
  Walk walk;
  if (!find_operand(*src, &sides.src) || !find_operand(*dst, &sides.dst)) return refuse(DLFP4_E_DTYPE);
  if (!are_convertible(sides.src, sides.dst)) return refuse(DLFP4_E_DTYPE);
  if (round.rounding == DLFP4_UPWARD && kTypes[sides.dst.row].specials != DLFP4_E8M0) return refuse(DLFP4_E_OPTION);
  if (!collapse(*src, *dst, &walk)) return refuse(DLFP4_E_SHAPE);
  if (walk.size == 0) return 0;
  if (kTypes[sides.dst.row].bits == 128 && !halve_elements(&walk, &sides)) return refuse(DLFP4_E_SHAPE);
  const Ends ends = {static_cast<const uint8_t *>(src->data), static_cast<uint8_t *>(dst->data), 0};
  return convert_layout(conversion, walk, ends);
}
