// Block scaling on the device of anything: every format, stride, layout and rounding; the whole tensor; layouts.
// Layout: any.
// Trick: a warp takes a block, and the oracle has all rules; rows.cuh and tiles.cuh do the common cases faster.
#ifndef DLFP4_SRC_BLOCKS_CUDA_BLOCKS_CUH_
#define DLFP4_SRC_BLOCKS_CUDA_BLOCKS_CUH_

#include "gpu/elements.cuh"
#include "rows.cuh"
#include "scales.cuh"

namespace dlfp4 {
namespace cuda {

// --- Any quantization: a warp a block --------------------------------------------------------

template <class Params>
__device__ inline float plain_element_at(const Params &p, int64_t line, int64_t position) {
  if (position >= p.length) return 0;
  return to_float(load_code(p.src, line * p.line_stride + position * p.step, p.source.bits, p.source), p.source);
}

// The item at a position of a line: of `plain(position)` or, where there is a transform, of sixteen of these after
// `turn`; each thread makes its own sixteen.
template <class Plain, class Turn>
__device__ inline float turned_at(uint32_t rotation, int64_t position, Plain plain, Turn turn) {
  if (rotation == 0) return plain(position);
  float values[kRotatedLength];
  const int64_t place = position % kRotatedLength;
  for (int i = 0; i < kRotatedLength; ++i) values[i] = plain(position - place + i);
  turn(values, rotation);
  return values[place];
}

template <class Params>
__device__ inline float element_at(const Params &p, int64_t line, int64_t position) {
  return turned_at(p.rotation.signs, position, [&](int64_t at) { return plain_element_at(p, line, at); }, rotate);
}

struct Block {
  int64_t line, last_line, first, last;
};

__device__ inline Block block_of(const QuantizeParams &p, int64_t number) {
  const int64_t line = number / p.blocks * p.group, first = number % p.blocks * p.block;
  return {line, min(line + p.group, p.lines), first, min(first + p.block, p.stored)};
}

__device__ inline uint32_t largest_of_block(const QuantizeParams &p, const Block &b) {
  uint32_t largest = 0;
  for (int64_t line = b.line; line < b.last_line; ++line)
    for (int64_t k = b.first + threadIdx.x % kWarpSize; k < b.last; k += kWarpSize)
      largest = max(largest, bits_of(element_at(p, line, k)) & 0x7FFFFFFF);
  return largest_of_lanes(largest, kWarpSize - 1);
}

// Up to eight elements from a byte on.
__device__ inline void encode_group(const QuantizeParams &p, float multiplier, bool zeroes, int64_t line, int64_t first,
                                    int count) {
  uint64_t word = 0;
  for (int i = 0; i < count && !zeroes; ++i) {
    const uint64_t index = p.first + static_cast<uint64_t>(line * p.stored + first + i);
    const Draw draw = p.rounding == DLFP4_STOCHASTIC ? draw_of(p.seed, index) : Draw{0, 0, 0};
    const ScaleRule &rule = p.rule;
    const float value = scaled(element_at(p, line, first + i), multiplier, rule.divides, rule.element_mantissa, p.zero);
    const uint64_t code = from_float(value, p.element, {p.rounding, true}, draw);
    const bool is_negative_zero = p.plus_zeros && code == sign_bit(p.element, true);
    word |= (is_negative_zero ? 0 : code ^ p.middle) << i * p.element.bits;
  }
  uint8_t *const to = p.data + (line * p.data_stride + first * p.data_step) * p.element.bits / 8;
  if (p.data_step == 1) return store_bytes(to, word, count * p.element.bits / 8);
  for (int i = 0; i < count; ++i) to[i * p.data_step] = static_cast<uint8_t>(word >> 8 * i);
}

// Uses scaling.h alone, so this kernel checks those with conversions of their own.
template <int Kind>
__device__ inline BlockScale exact_scale(const ScaleRule &rule, ElementType scale, uint32_t magnitude) {
  if constexpr (Kind == DLFP4_TWO_LEVEL) return two_level_block(rule, scale, magnitude);
  return scale_of_block<Kind>(rule, magnitude);
}

// Four over six: the errors of a block's elements with a candidate, those of a line added up in order, and lines'. A
// lane has an element.
__device__ inline float errors_of_block(const QuantizeParams &p, const ScaleRule &rule, const Block &b,
                                        BlockScale candidate) {
  const int lane = threadIdx.x % kWarpSize, length = static_cast<int>(b.last - b.first);
  const float scale = decode_scale(p.scale, candidate.stored);
  float sum = 0;
  for (int64_t line = b.line; line < b.last_line; ++line) {
    float error = 0, of_line = 0;
    if (lane < length) {
      const float value = element_at(p, line, b.first + lane);
      const float product = scaled(value, candidate.multiplier, rule.divides, rule.element_mantissa, -0.0f);
      const uint64_t code = from_float(product, p.element, {p.rounding, true}, {0, 0, 0});
      error = error_of(rule, to_float(code, p.element), scale, value);
    }
    for (int i = 0; i < length; ++i) of_line += __shfl_sync(kAllLanes, error, i);
    sum += of_line;
  }
  return sum;
}

// Keeps what has the smaller error.
__device__ inline BlockScale choose_scale(const QuantizeParams &p, const ScaleRule &rule, const Block &b,
                                          uint32_t largest, BlockScale six) {
  const BlockScale four = two_level_block(rule_of_four(rule), p.scale, largest);
  const float of_six = errors_of_block(p, rule, b, six), of_four = errors_of_block(p, rule, b, four);
  return of_four < of_six ? four : six;
}

template <int Kind>
__device__ inline void quantize_block(const QuantizeParams &p) {
  constexpr int kGroup = 8;
  const int64_t number = global_thread() / kWarpSize;
  if (number >= p.blocks * ((p.lines + p.group - 1) / p.group)) return;
  const Block b = block_of(p, number);
  const ScaleRule rule = p.decodes == nullptr
                             ? rule_of<Kind>(p, p.rule, load_given(p))
                             : rule_with(p.rule, scale_of_line(p, p.rule, b.line, bits_of(p.decodes[b.line])));
  BlockScale scale = {0, rule.whole};
  bool zeroes = false;
  if (!p.whole) {
    const uint32_t largest = largest_of_block(p, b);
    zeroes = Kind != DLFP4_LARGEST && largest >= kFloatInfinity;
    scale = exact_scale<Kind>(rule, p.scale, largest);
    if (Kind == DLFP4_TWO_LEVEL && rule.chooses) scale = choose_scale(p, rule, b, largest, scale);
    const int64_t rows = p.repeats ? b.last_line - b.line : 1;
    for (int64_t i = threadIdx.x % kWarpSize; i < rows; i += kWarpSize)
      store_scale<Kind>(p, p.repeats ? b.line + i : b.line / p.group, b.first / p.block, scale.stored);
  }
  for (int64_t line = b.line; line < b.last_line; ++line)
    for (int64_t k = b.first + threadIdx.x % kWarpSize * kGroup; k < b.last; k += kWarpSize * kGroup)
      encode_group(p, scale.multiplier, zeroes, line, k, static_cast<int>(min(b.last - k, int64_t{kGroup})));
}

// --- Scales of lines -------------------------------------------------------------------------

// A warp a line finds its largest finite magnitude, which stands in the scale's place until all blocks are scaled.
__device__ inline void find_largest_of_lines(const QuantizeParams &p) {
  const int64_t line = global_thread() / kWarpSize;
  if (line >= p.lines) return;
  uint32_t largest = 0;
  for (int64_t k = threadIdx.x % kWarpSize; k < p.stored; k += kWarpSize) {
    const uint32_t magnitude = bits_of(element_at(p, line, k)) & 0x7FFFFFFF;
    if (magnitude < kFloatInfinity) largest = max(largest, magnitude);
  }
  largest = largest_of_lanes(largest, kWarpSize - 1);
  if (threadIdx.x % kWarpSize == 0) p.decodes[line] = float_of(largest);
}

__device__ inline void finish_line_scales(const QuantizeParams &p) {
  const int64_t line = global_thread();
  if (line < p.lines) p.decodes[line] = scale_of_line(p, p.rule, line, bits_of(p.decodes[line])).decode;
}

// --- Back ------------------------------------------------------------------------------------

// What a block of integers has beside its scale.
__device__ inline BlockOffset offset_at(const DequantizeParams &p, int64_t line, int64_t position) {
  const int64_t place = line * p.offset_stride + (position >> p.block_shift) * p.offset_step;
  if (p.offset_bits == 32) return {kNoOffset.zero, reinterpret_cast<const float *>(p.offsets)[place]};
  const bool packed = p.offset_bits == 4;
  const uint32_t byte = p.offsets[packed ? place >> 1 : place], code = packed ? byte >> (place & 1) * 4 : byte;
  return {zero_point_of(code, p.offset_bits, p.offset_is_signed), kNoOffset.bias};
}

__device__ inline float plain_value_at(const DequantizeParams &p, int64_t line, int64_t position) {
  const uint64_t code = load_code(p.data, line * p.data_stride + position * p.data_step, p.element.bits, p.element);
  const float element = to_float(code, p.element);
  const float scale = scale_at(p, line, position, load_or_one(decode_place(p, line)));
  return p.offsets == nullptr ? decoded(element, scale) : decoded_with(element, scale, offset_at(p, line, position));
}

// Blocks are whole sixteens, whatever the length of the result.
__device__ inline float value_at(const DequantizeParams &p, int64_t line, int64_t position) {
  return turned_at(p.rotation.signs, position, [&](int64_t at) { return plain_value_at(p, line, at); }, rotate_back);
}

__device__ inline void dequantize_element(const DequantizeParams &p) {
  const int64_t number = global_thread();
  if (number >= p.lines * p.length) return;
  const int64_t line = number / p.length, position = number % p.length;
  const uint64_t value = from_float(value_at(p, line, position), p.target, {DLFP4_NEAREST_EVEN, true}, {0, 0, 0});
  store_bytes(p.dst + (line * p.line_stride + position * p.step) * (p.target.bits / 8), value, p.target.bits / 8);
}

// --- The whole tensor ------------------------------------------------------------------------

__device__ inline void find_largest(const LargestParams &p) {
  const int64_t length =
      p.rotation.signs == 0 ? p.length : (p.length + kStep - 1) / kStep * kStep;  // zeros are rotated too
  const int64_t count = p.lines * length;
  uint32_t largest = 0;
  for (int64_t i = global_thread(); i < count; i += int64_t{gridDim.x} * kThreads) {
    const uint32_t magnitude = bits_of(element_at(p, i / length, i % length)) & 0x7FFFFFFF;
    if (!p.finite_only || magnitude < kFloatInfinity) largest = max(largest, magnitude);
  }
  largest = largest_of_lanes(largest, kWarpSize - 1);
  if (threadIdx.x % kWarpSize == 0 && largest > 0) atomicMax(p.largest, largest);
}

template <int Dtype>
constexpr int kFloatsOfVector = 16 / kFloatBytes<Dtype>;

// The largest magnitude of four words, two halves at a time or one float.
template <int Src>
__device__ inline uint32_t largest_of_vector(const LargestParams &p, uint4 raw) {
  const uint32_t words[] = {raw.x, raw.y, raw.z, raw.w};
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    largest = kFloatBytes<Src> == 4 ? max(largest, words[i] & 0x7FFFFFFF) : larger_halves<Src>(largest, words[i]);
  if constexpr (kFloatBytes<Src> == 2) largest = largest_half<Src>(largest);
  if (!p.finite_only || largest < kFloatInfinity) return largest;
  float values[kFloatsOfVector<Src>];
#pragma unroll
  for (int i = 0; i < 4; ++i) unpack_floats<Src>(words[i], values + i * kFloatsOfVector<Src> / 4);
  return largest_finite_of<kFloatsOfVector<Src>>(values);
}

// Vector `number` of rows of whole steps.
template <int Src>
__device__ inline uint4 vector_of_rows(const LargestParams &p, int64_t number) {
  constexpr int kInStep = kStep / kFloatsOfVector<Src>;
  if (p.walk.steps == p.walk.in_line) return reinterpret_cast<const uint4 *>(p.src)[number];
  const StepOfLine at = step_of_line(p.walk, static_cast<uint32_t>(number / kInStep));
  const uint8_t *const step = address_of_step<kTypes[Src].bits>(p.src, p.walk.float_bytes, at);
  return reinterpret_cast<const uint4 *>(step)[number % kInStep];
}

// A block of threads writes once.
__device__ inline void raise_once(const LargestParams &p, uint32_t largest) {
  __shared__ uint32_t of_warp[kThreads / kWarpSize];
  largest = largest_of_lanes(largest, kWarpSize - 1);
  if (threadIdx.x % kWarpSize == 0) of_warp[threadIdx.x / kWarpSize] = largest;
  __syncthreads();
  if (threadIdx.x >= kThreads / kWarpSize) return;
  largest = __reduce_max_sync((1u << kThreads / kWarpSize) - 1, of_warp[threadIdx.x]);
  if (threadIdx.x == 0 && largest > 0) atomicMax(p.largest, largest);
}

__device__ inline uint32_t largest_of_rotated(const LargestParams &p, FloatStep step) {
  const uint32_t largest = rotate_step(&step, p.rotation);
  return p.finite_only && largest >= kFloatInfinity ? largest_finite_of<kStep>(step.values) : largest;
}

// The same of rows on aligned memory, kLargestAhead vectors a thread: neighbours read neighbouring vectors, all at
// once.
template <int Src>
__device__ inline void find_largest_of_rows(const LargestParams &p) {
  const int64_t last = p.lines * p.length / kFloatsOfVector<Src> - 1;
  const int64_t first = int64_t{blockIdx.x} * kThreads * kLargestAhead + threadIdx.x;
  uint4 raw[kLargestAhead];
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kLargestAhead; ++i)
    raw[i] = vector_of_rows<Src>(p, min(first + i * kThreads, last));  // twice changes nothing
#pragma unroll
  for (int i = 0; i < kLargestAhead; ++i) largest = max(largest, largest_of_vector<Src>(p, raw[i]));
  raise_once(p, largest);
}

// The same of transformed rows of whole steps, a step a thread, and of columns, two neighbours of sixteen rows.
template <int Src>
__device__ inline void find_largest_of_rotated_rows(const LargestParams &p) {
  const uint32_t number = blockIdx.x * kThreads + threadIdx.x;
  uint4 raw[kFloatVectors<Src>];
  const uint8_t *const from =
      address_of_step<kTypes[Src].bits>(p.src, p.walk.float_bytes, step_of_line(p.walk, number));
  load_step<Src>(from, number < p.walk.steps, raw);
  raise_once(p, largest_of_rotated(p, unpack_step<Src>(raw)));
}

template <int Src>
__device__ inline void find_largest_of_rotated_columns(const LargestParams &p) {
  constexpr int kBytes = kFloatBytes<Src>;
  const int64_t number = int64_t{blockIdx.x} * kThreads + threadIdx.x, in_row = p.lines / 2;
  const int64_t row = number / in_row * kStep, column = number % in_row * 2;
  FloatStep columns[2];
#pragma unroll
  for (int i = 0; i < kStep; ++i) {
    const uint8_t *const from = p.src + ((row + i) * p.step + column) * kBytes;
    uint32_t words[kBytes / 2] = {};
    for (int k = 0; row < p.length && k < kBytes / 2; ++k) words[k] = reinterpret_cast<const uint32_t *>(from)[k];
    float pair[2];
    for (int k = 0; k < kBytes / 2; ++k) unpack_floats<Src>(words[k], pair + k);
    columns[0].values[i] = pair[0];
    columns[1].values[i] = pair[1];
  }
  raise_once(p, max(largest_of_rotated(p, columns[0]), largest_of_rotated(p, columns[1])));
}

// One thread does this: the scale overwrites the magnitude that it is made of.
__device__ inline void finish_tensor_scale(const TensorScaleParams &p) {
  if (global_thread() != 0) return;
  const uint32_t amax = *p.places[0];
  const TensorScale scale =
      p.kind == DLFP4_TWO_LEVEL ? two_level_scale(p.rule, float_of(amax)) : largest_scale(p.rule, amax);
  for (uint32_t *const place : p.places)
    if (place != nullptr) *place = bits_of(scale.decode);
}

// --- Layouts ---------------------------------------------------------------------------------

__device__ inline void convert_scale(const ScalesParams &p) {
  const int64_t number = global_thread();
  if (number >= p.padded_rows * p.padded_columns) return;
  const int64_t row = number / p.padded_columns, column = number % p.padded_columns;
  const bool there = row < p.rows && column < p.columns;
  const int64_t to = dlfp4_scale_offset(p.dst_layout, row, column, p.dst_pitch);
  const int64_t from = place_of_scale(p.src_layout, p.src_stride, p.src_step, p.src_pitch, row, column);
  if (p.bytes == 1)
    p.dst[to] = there ? p.src[from] : static_cast<uint8_t>(p.fill);
  else
    reinterpret_cast<uint32_t *>(p.dst)[to] =
        there ? reinterpret_cast<const uint32_t *>(p.src)[from] : 0x01010101u * static_cast<uint32_t>(p.fill);
}

__device__ inline void shuffle_tile(const ShuffleParams &p) {
  const int64_t number = global_thread();
  if (number >= p.rows * (p.columns / 16)) return;
  const int64_t in_row = p.columns / 16, row = number / in_row, column = number % in_row * 16;
  const int64_t plain = row * p.columns + column, shuffled = dlfp4_offset_aiter_weight(row, column, p.columns);
  const uint8_t *const from = p.src + (p.back ? shuffled : plain);
  uint8_t *const to = p.dst + (p.back ? plain : shuffled);
  for (int i = 0; i < 16; ++i) to[i] = from[i];
}

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_BLOCKS_CUDA_BLOCKS_CUH_
