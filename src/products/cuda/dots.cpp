// Sums of products on CUDA memory: which kernel serves, with which segments.
// Layout: lines as in dlfp4.h, of any number of axes.
// Trick: kernels for vectors and steps take aligned lines; all others go by elements.
#include <string.h>

#include <utility>

#include "dot_kernels.h"
#include "dots.h"
#include "gpu/context.h"
#include "gpu/runs.h"
#include "rules/sums.h"

namespace dlfp4 {
namespace cuda {

const KernelNames kernels_of_dots = {image_of_dots::kNames, image_of_dots::kNumKernels};

namespace {

using namespace image_of_dots;

// --- Segments --------------------------------------------------------------------------------

constexpr int64_t kMostOfWarp = 1 << 13;      // elements
constexpr int64_t kMostOfBlock = 1 << 15;     // elements; a thread's integers fit 32 bits
constexpr int64_t kManySegments = 1 << 9;     // of the smaller size: from there on there are fewer
constexpr int64_t kSegmentsOfWarp = 1 << 10;  // that a warp adds up

struct Segments {
  int64_t length, count;
  int team;
};

// Depends on a line's length alone, so that no other line decides a result's bits.
Segments cut_line(int64_t length) {
  if (length <= kMostOfWarp) return {kMostOfWarp, 1, kWarpSize};
  if (length <= kMostOfBlock) return {kMostOfBlock, 1, kThreads};
  const int64_t segment = length <= kManySegments * kMostOfWarp ? kMostOfWarp : kMostOfBlock;
  return {segment, divide_up(length, segment), kThreads};
}

// --- Sides -----------------------------------------------------------------------------------

void describe_blocks(const dlfp4_blocks &blocks, const FormatInfo &format, DotSide *side) {
  const Scales scales = make_scales(blocks, format);
  side->scales = scales.data;
  side->layout = scales.layout;
  side->scale_stride = scales.stride;
  side->scale_step = scales.step;
  side->pitch = scales.pitch;
  side->line_shift = log2_of(scales.lines_per_row);
  side->block_shift = log2_of(format.block);
  side->key = format.key;
  side->kind = format.row->kind;
  side->scale = kTypes[format.row->scale];
}

// A scale of the whole tensor, or of a line, alone multiplies sums.
dlfp4_status describe_format(const dlfp4_cuda_lines &lines, DotSide *side) {
  FormatInfo format;
  const dlfp4_blocks &blocks = lines.lines.blocks;
  if (!find_format(lines.lines.format, &format)) return DLFP4_E_OPTION;
  if (blocks.layout < 0 || blocks.layout >= DLFP4_NUM_LAYOUTS) return DLFP4_E_OPTION;
  if (!is_addressable(blocks, format, 2)) return DLFP4_E_SHAPE;
  if (format.integers) return DLFP4_E_DTYPE;  // the caller decodes them
  side->dtype = format.row->element;
  side->bits = format.bits;
  const bool is_alone = format.whole || format.line;  // elements have no other scale
  side->decode = is_alone ? static_cast<const float *>(blocks.scales) : lines.decode;
  side->decode_stride = format.line ? blocks.scale_strides[0] : 0;
  if (!is_alone && blocks.decodes) {
    side->decode = blocks.decodes;
    side->decode_lines = blocks.decode_lines;
    side->decode_stride = 1;
  }
  if (!is_alone) describe_blocks(blocks, format, side);
  return DLFP4_OK;
}

dlfp4_status describe_side(const dlfp4_cuda_lines &lines, DotSide *side) {
  const dlfp4_lines &plain = lines.lines;
  *side = {};
  side->decode_lines = 1;
  side->data = static_cast<const uint8_t *>(plain.blocks.data);
  side->line_stride = plain.blocks.strides[0];
  side->step = plain.blocks.strides[1];
  side->first = plain.first;
  if (plain.format >= 0) {
    if (const dlfp4_status status = describe_format(lines, side)) return status;
  } else {
    side->dtype = dlfp4_find_dtype(plain.code, plain.bits);
    side->bits = plain.padded ? 8 : plain.bits;
    if (side->dtype < 0) return DLFP4_E_DTYPE;
  }
  side->element = kTypes[side->dtype];
  side->is_signed = is_signed_integer(side->dtype);
  return DLFP4_OK;
}

// As on the host: two of one type, integers or floats; or values, which FP4 and FP6 are too.
bool is_value(const DotSide &side) {
  return is_summed_as_float(side.dtype) || (is_integer(side.dtype) && is_float(side.element));
}

bool have_product(const DotSide &a, const DotSide &b) {
  const bool plain = a.scales == nullptr && b.scales == nullptr && a.dtype == b.dtype;
  return (plain && is_integer(a.dtype)) || (is_value(a) && is_value(b));
}

// --- Kernels ---------------------------------------------------------------------------------

// Whether all lines are in order and start on multiples of `bytes`.
bool starts_on(const DotSide &side, const DotParams &p, int64_t bytes) {
  if ((side.step != 1 && p.length > 1) || !is_aligned(side.data, bytes)) return false;
  bool aligned = side.first * side.line_stride * side.bits % (8 * bytes) == 0;
  for (int dim = 0; dim < p.ndim; ++dim)
    aligned &= p.extent[dim] == 1 || side.stride[dim] * side.line_stride * side.bits % (8 * bytes) == 0;
  return aligned;
}

int64_t bytes_of_step(const DotSide &side) { return side.bits >= 8 ? 16 : side.bits == 6 ? 4 : side.bits * kStep / 8; }

// Two types as they are packed: by vectors of 16 bytes without scales, by steps with scales or without.
constexpr KernelList<DLFP4_NUM_DTYPES> kVectorKernels([](int row) {
  return find_kernel(KernelKey(kDotVectors, row, row));
});
constexpr KernelTable<DLFP4_NUM_DTYPES, DLFP4_NUM_DTYPES> kStepKernels([](int a, int b) {
  return find_kernel(KernelKey(kDotSteps, a, b));
});

// Both sides in blocks of one kind.
constexpr KernelList<kNumKeys> kBlockKernels([](int place) {
  const BlockKey &key = kBlockKeys[place];
  return find_kernel(KernelKey(kDotBlocks, key.element, key.element, key.scale, key.kind, key.length));
});

// Whether the scales of a vector's blocks are neighbours, from its first block on.
bool has_scales_together(const DotSide &side) {
  const int64_t blocks = 128 / side.bits >> side.block_shift;
  if (blocks <= 1) return true;
  if (side.layout == DLFP4_LAYOUT_linear) return side.scale_step == 1;
  return dlfp4_layouts[side.layout].run % blocks == 0;
}

DeviceKernel find_vector_kernel(const DotSide &a, const DotSide &b) {
  if (!a.scales && !b.scales) return a.dtype == b.dtype ? kVectorKernels[a.dtype] : kNoKernel;
  const bool are_alike = a.scales && b.scales && a.key == b.key;
  return are_alike && has_scales_together(a) && has_scales_together(b) ? kBlockKernels[a.key] : kNoKernel;
}

// Whether kernels of two known types decode the side's scales.
bool has_known_scales(const DotSide &side) { return !side.scales || is_fast_scale(kBlockKeys[side.key]); }

bool is_packed(const DotSide &side) { return side.bits == side.element.bits; }

// May swap the sides, which changes no product.
DeviceKernel find_dot_kernel(DotParams *p) {
  if (!starts_on(p->a, *p, bytes_of_step(p->a)) || !starts_on(p->b, *p, bytes_of_step(p->b))) return kKernel_dot_any;
  if (!is_packed(p->a) || !is_packed(p->b)) return kKernel_dot_steps;
  const bool vectors = starts_on(p->a, *p, 16) && starts_on(p->b, *p, 16);
  const DeviceKernel of_vectors = vectors ? find_vector_kernel(p->a, p->b) : kNoKernel;
  if (of_vectors != kNoKernel) return of_vectors;
  if (!has_known_scales(p->a) || !has_known_scales(p->b)) return kKernel_dot_steps;
  const DeviceKernel of_steps = kStepKernels[p->a.dtype][p->b.dtype], turned = kStepKernels[p->b.dtype][p->a.dtype];
  if (of_steps != kNoKernel) return of_steps;
  if (turned == kNoKernel) return kKernel_dot_steps;
  std::swap(p->a, p->b);
  return turned;
}

// --- Launches --------------------------------------------------------------------------------

// Kernels that read tables walk, so that each serves many segments.
int launch_dot(DeviceKernel kernel, const DotParams &p, uintptr_t stream) {
  const int64_t threads = p.lines * p.segments * p.team;
  if (kernel == kKernel_dot_any || kernel == kKernel_dot_steps) return run_walk(kernel, threads, p, stream);
  return run(kernel, least(threads, kMostBlocks * kThreads), p, stream);
}

// The sums of each line's segments to its result.
int add_segments(const DotParams &of_segments, uintptr_t stream) {
  DotParams p = of_segments;
  p.length = p.segment = of_segments.segments;
  p.segments = 1;
  p.sums = nullptr;
  p.team = p.length <= kSegmentsOfWarp ? kWarpSize : kThreads;
  p.parts = of_segments.sums;
  return launch_dot(kKernel_dot_segments, p, stream);
}

// Of a warp for a short line: as many as load some vectors or steps each, or, where elements go one by one, an element,
// so that others have lines of their own.
int count_lanes(const DotParams &p, DeviceKernel kernel) {
  constexpr int kAtOnce = 4;
  const bool are_vectors = kernel.operation == kDotVectors || kernel.operation == kDotBlocks;
  const int64_t of_lane = kernel == kKernel_dot_any ? 1 : kAtOnce * (are_vectors ? 128 / p.a.bits : kStep);
  int lanes = 1;
  while (lanes < kWarpSize && lanes * of_lane < p.length) lanes *= 2;
  return lanes;
}

int sum_lines(DotParams p, uintptr_t stream) {
  const DeviceKernel kernel = find_dot_kernel(&p);
  if (p.team == kWarpSize) p.team = count_lanes(p, kernel);
  const int status = launch_dot(kernel, p, stream);
  return status || !p.sums ? status : add_segments(p, stream);
}

struct Axes {
  int count;
  const int64_t *extent, *of_a, *of_b;
};

// All lines at once, or, of more axes than a kernel knows, those of the first axis one after the other.
int sum_axes(DotParams p, Axes axes, uintptr_t stream) {
  p.lines = 1;
  for (int i = 0; i < axes.count; ++i) p.lines *= axes.extent[i];
  if (axes.count > kMostDims) {
    const int64_t lines = p.lines / axes.extent[0];
    const Axes inner = {axes.count - 1, axes.extent + 1, axes.of_a + 1, axes.of_b + 1};
    int status = 0;
    for (int64_t i = 0; i < axes.extent[0] && !status; ++i) {
      status = sum_axes(p, inner, stream);
      p.a.first += axes.of_a[0];
      p.b.first += axes.of_b[0];
      p.result += lines;
    }
    return status;
  }
  p.ndim = axes.count;
  const size_t bytes = static_cast<size_t>(axes.count) * sizeof(int64_t);
  memcpy(p.extent, axes.extent, bytes);
  memcpy(p.a.stride, axes.of_a, bytes);
  memcpy(p.b.stride, axes.of_b, bytes);
  return sum_lines(p, stream);
}

}  // namespace
}  // namespace cuda
}  // namespace dlfp4

extern "C" {

int64_t dlfp4_cuda_vecdot_workspace(int64_t lines, int64_t length) {
  const int64_t segments = dlfp4::cuda::cut_line(length).count;
  return segments == 1 ? 0 : lines * segments;
}

int dlfp4_cuda_vecdot(int device, uintptr_t stream, const dlfp4_cuda_lines *a, const dlfp4_cuda_lines *b, int ndim,
                      const int64_t *shape, int64_t length, float *result, double *workspace) {
  using namespace dlfp4;
  using namespace dlfp4::cuda;
  const CurrentContext context(device);
  if (context.status()) return context.status();
  DotParams p = {};
  dlfp4_status status = describe_side(*a, &p.a);
  if (status == DLFP4_OK) status = describe_side(*b, &p.b);
  if (status == DLFP4_OK && !have_product(p.a, p.b)) status = DLFP4_E_DTYPE;
  if (status == DLFP4_OK && (a->lines.blocks.length < length || b->lines.blocks.length < length))
    status = DLFP4_E_SHAPE;
  if (status != DLFP4_OK) return refuse(status);
  int64_t lines = 1;
  for (int i = 0; i < ndim; ++i) lines *= shape[i];
  if (lines == 0 || length == 0) return set_bytes(result, 0, lines * static_cast<int64_t>(sizeof(float)), stream);
  const Segments segments = cut_line(length);
  p.length = length;
  p.segment = segments.length;
  p.segments = segments.count;
  p.team = segments.team;
  p.sums = segments.count == 1 ? nullptr : workspace;
  p.result = result;
  return sum_axes(p, {ndim, shape, a->strides, b->strides}, stream);
}
}
