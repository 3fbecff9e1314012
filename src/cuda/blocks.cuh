// Block scaling on the device: the largest magnitudes, scales and elements of blocks, and back.
// Layout: any strides, layouts and roundings by a warp a block; rows of whole blocks on aligned memory by sixteen
// elements a thread, nearest even.
// Trick: FP4 is rounded by three additions, one for each spacing of its values: the least of the sums is the code.
#ifndef DLFP4_SRC_CUDA_BLOCKS_CUH_
#define DLFP4_SRC_CUDA_BLOCKS_CUH_

#include "../layouts.h"
#include "convert.cuh"
#include "elements.cuh"

namespace dlfp4 {
namespace cuda {

constexpr int kLanes = 32;
constexpr unsigned kAllLanes = 0xFFFFFFFF;

__device__ inline uint32_t largest_of_lanes(uint32_t value, int lanes) {
  for (int lane = 1; lane < lanes; lane *= 2) value = max(value, __shfl_xor_sync(kAllLanes, value, lane));
  return value;
}

// --- Scales ----------------------------------------------------------------------------------

// The rule of a call whose tensor scale was found on the device.
__device__ inline ScaleRule rule_of(const QuantizeParams &p) {
  ScaleRule rule = p.rule;
  if (p.amax == nullptr && p.decode == nullptr) return rule;
  const TensorScale scale = p.decode != nullptr ? scale_given(*p.decode)
                            : p.whole           ? largest_scale(rule, *p.amax)
                                                : two_level_scale(float_of(*p.amax));
  rule.encode = scale.encode;
  rule.sixth = scale.encode * kSixth;
  rule.unit = 1 / scale.encode;
  return rule;
}

// two_level_block with the e4m3 conversions as few instructions: below 2^-6 the spacing is that of the smallest normal
// numbers, and 2^120 moves the exponent to its place, subnormals too.
__device__ inline BlockScale two_level_fast(const ScaleRule &rule, uint32_t magnitude) {
  if (magnitude >= kNotFinite) return {0x7F, 0};
  const uint32_t wanted = min(bits_of(finite(float_of(magnitude) * rule.sixth)), 0x43E00000u);  // 448
  const uint32_t power = max(wanted & 0x7F800000, 121u << 23);
  const uint32_t sum = bits_of(float_of(wanted) + float_of(power + (20u << 23)));
  const uint32_t code = (sum & 0xFFFFF) + ((power >> 20) - 121 * 8);
  const float scale = float_of(code << 20) * float_of(247u << 23);
  return {code, finite(1 / (scale * rule.unit))};
}

template <int Kind>
__device__ inline BlockScale scale_of_block(const ScaleRule &rule, uint32_t magnitude) {
  if constexpr (Kind == DLFP4_TWO_LEVEL) return two_level_fast(rule, magnitude);
  if constexpr (Kind == DLFP4_POWER) return power_block(rule, magnitude);
  return largest_block(rule, magnitude);
}

__device__ inline BlockScale scale_of_block(const ScaleRule &rule, uint32_t magnitude, int kind) {
  if (kind == DLFP4_TWO_LEVEL) return two_level_block(rule, magnitude);
  return kind == DLFP4_POWER ? power_block(rule, magnitude) : largest_block(rule, magnitude);
}

__device__ inline int64_t place_of_scale(int layout, int64_t stride, int64_t step, int64_t columns, int64_t row,
                                         int64_t column) {
  return layout == DLFP4_LAYOUT_linear ? row * stride + column * step
                                       : dlfp4_scale_offset(layout, row, column, columns);
}

__device__ inline void store_scale(const QuantizeParams &p, int64_t line, int64_t block, uint32_t stored, int kind) {
  const int64_t place = place_of_scale(p.layout, p.scale_stride, p.scale_step, p.padded_columns, line, block);
  if (kind == DLFP4_LARGEST)
    reinterpret_cast<uint32_t *>(p.scales)[place] = stored;
  else
    p.scales[place] = static_cast<uint8_t>(stored);
}

// --- Any quantization: a warp a block --------------------------------------------------------

__device__ inline float element_at(const QuantizeParams &p, int64_t line, int64_t position) {
  if (position >= p.length) return 0;
  return to_float(load_code(p.src, line * p.line_stride + position * p.step, p.source.bits, p.source), p.source);
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
    for (int64_t k = b.first + threadIdx.x % kLanes; k < b.last; k += kLanes)
      largest = max(largest, bits_of(element_at(p, line, k)) & 0x7FFFFFFF);
  return largest_of_lanes(largest, kLanes);
}

// Up to eight elements from a byte on.
__device__ inline void encode_group(const QuantizeParams &p, float multiplier, bool zeroes, int64_t line, int64_t first,
                                    int count) {
  uint64_t word = 0;
  for (int i = 0; i < count && !zeroes; ++i) {
    const uint64_t index = static_cast<uint64_t>(line * p.stored + first + i);
    const Draw draw = p.rounding == DLFP4_STOCHASTIC ? draw_of(p.seed, index) : Draw{0, 0, 0};
    const float value = scaled(element_at(p, line, first + i), multiplier, p.zero);
    word |= from_float(value, p.element, {p.rounding, true}, draw) << i * p.element.bits;
  }
  uint8_t *const to = p.data + (line * p.data_stride + first * p.data_step) * p.element.bits / 8;
  if (p.data_step == 1) return store_bytes(to, word, count * p.element.bits / 8);
  for (int i = 0; i < count; ++i) to[i * p.data_step] = static_cast<uint8_t>(word >> 8 * i);
}

template <int Kind>
__device__ inline void quantize_block(const QuantizeParams &p) {
  constexpr int kGroup = 8;
  const int64_t number = global_thread() / kLanes;
  if (number >= p.blocks * ((p.lines + p.group - 1) / p.group)) return;
  const ScaleRule rule = rule_of(p);
  const Block b = block_of(p, number);
  BlockScale scale = {0, rule.encode};
  bool zeroes = false;
  if (!p.whole) {
    const uint32_t largest = largest_of_block(p, b);
    zeroes = Kind != DLFP4_LARGEST && largest >= kNotFinite;
    scale = scale_of_block(rule, largest, Kind);
    const int64_t rows = p.repeats ? b.last_line - b.line : 1;
    for (int64_t i = threadIdx.x % kLanes; i < rows; i += kLanes)
      store_scale(p, p.repeats ? b.line + i : b.line / p.group, b.first / p.block, scale.stored, Kind);
  }
  for (int64_t line = b.line; line < b.last_line; ++line)
    for (int64_t k = b.first + threadIdx.x % kLanes * kGroup; k < b.last; k += kLanes * kGroup)
      encode_group(p, scale.multiplier, zeroes, line, k, static_cast<int>(min(b.last - k, int64_t{kGroup})));
}

// --- Rows of whole blocks: sixteen elements a thread -----------------------------------------

// The code of a magnitude, in the low bits of a float. Below 2 values of FP4 are 1/2 apart, below 4 they are 1 apart,
// below 6 they are 2 apart: the code is the least of 2y, y + 2 and y/2 + 4, each rounded to an integer by one addition.
__device__ inline uint32_t magnitude_of_e2m1(float y) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: its last place is worth 1
  const float a = __fmaf_rn(y, 2.0f, kMagic), b = __fadd_rn(y, kMagic + 2), c = __fmaf_rn(y, 0.5f, kMagic + 4);
  return bits_of(fminf(fminf(a, b), fminf(c, kMagic + 7)));
}

template <int Bits>
__device__ inline uint32_t encode_element(const EncodeParams &rule, float value) {
  if constexpr (Bits == 4)
    return (magnitude_of_e2m1(fabsf(value)) & 7) | (bits_of(value) >> 28 & 8);
  else
    return encode_fast(rule, value);
}

template <int Src, int Bits, int BlockSize, int Kind>
__device__ inline void quantize_rows(const QuantizeParams &p, const EncodeParams &encode) {
  constexpr int kLanesOfBlock = BlockSize / kStep, kBytes = kFormats[Src].bits / 8;
  const int64_t step = global_thread(), in_line = p.stored / kStep;
  const bool there = step < p.lines * in_line;
  const int64_t line = there ? step / in_line : 0, first = there ? step % in_line * kStep : 0;
  float values[kStep];
  load_floats<Src>(p.src + (line * p.line_stride + first) * kBytes, values);
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kStep; ++i) largest = max(largest, bits_of(values[i]) & 0x7FFFFFFF);
  largest = largest_of_lanes(largest, kLanesOfBlock);
  if (!there) return;
  const BlockScale scale = scale_of_block<Kind>(rule_of(p), largest);
  if (first % BlockSize == 0) store_scale(p, line, first / BlockSize, scale.stored, Kind);
  const bool zeroes = Kind != DLFP4_LARGEST && largest >= kNotFinite;
  uint32_t codes[kStep];
#pragma unroll
  for (int i = 0; i < kStep; ++i)
    codes[i] = zeroes ? 0 : encode_element<Bits>(encode, scaled(values[i], scale.multiplier, p.zero));
  store_codes<Bits>(p.data + (line * p.data_stride + first) * Bits / 8, codes);
}

// --- Back ------------------------------------------------------------------------------------

__device__ inline float scale_at(const DequantizeParams &p, int64_t line, int64_t position) {
  const int64_t place = place_of_scale(p.layout, p.scale_stride, p.scale_step, p.padded_columns, line / p.lines_in_row,
                                       position / p.block);
  const uint32_t stored =
      p.kind == DLFP4_LARGEST ? reinterpret_cast<const uint32_t *>(p.scales)[place] : p.scales[place];
  return decode_scale(stored, p.kind, p.decode == nullptr ? 1.0f : *p.decode);
}

__device__ inline uint64_t decoded_code(float element, float scale, Format target) {
  return from_float(decoded(element, scale), target, {DLFP4_NEAREST_EVEN, true}, {0, 0, 0});
}

__device__ inline void dequantize_element(const DequantizeParams &p) {
  const int64_t number = global_thread();
  if (number >= p.lines * p.length) return;
  const int64_t line = number / p.length, position = number % p.length;
  const uint64_t code = load_code(p.data, line * p.data_stride + position * p.data_step, p.element.bits, p.element);
  const uint64_t value = decoded_code(to_float(code, p.element), scale_at(p, line, position), p.target);
  store_bytes(p.dst + (line * p.line_stride + position * p.step) * (p.target.bits / 8), value, p.target.bits / 8);
}

// A float as the target's code. What is NaN is rare, and takes the oracle's way.
template <int Dst>
__device__ inline uint32_t narrow(float value) {
  const uint32_t bits = bits_of(value);
  if constexpr (Dst == DLFP4_float32) return bits;
  if (value != value)
    return static_cast<uint32_t>(from_float(value, format_of<Dst>(), {DLFP4_NEAREST_EVEN, true}, {0, 0, 0}));
  if constexpr (Dst == DLFP4_bfloat16) return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
  uint16_t half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
  return half;
}

template <int Bits, int Dst>
__device__ inline void dequantize_rows(const DequantizeParams &p) {
  __shared__ float table[256];
  for (int code = threadIdx.x; code < 1 << Bits; code += kThreads) table[code] = to_float(code, p.element);
  __syncthreads();
  const int64_t in_line = p.length / kStep, steps = p.lines * in_line;
  for (int64_t step = global_thread(); step < steps; step += int64_t{gridDim.x} * kThreads) {
    const int64_t line = step / in_line, first = step % in_line * kStep;
    uint32_t codes[kStep];
    load_codes<Bits>(p.data + (line * p.data_stride + first) * Bits / 8, codes);
    const float scale = scale_at(p, line, first);
#pragma unroll
    for (int i = 0; i < kStep; ++i) codes[i] = narrow<Dst>(decoded(table[codes[i]], scale));
    store_words<kFormats[Dst].bits / 8>(p.dst + (line * p.line_stride + first) * (kFormats[Dst].bits / 8), codes);
  }
}

// --- The whole tensor ------------------------------------------------------------------------

__device__ inline void find_largest(const LargestParams &p) {
  const int64_t count = p.lines * p.length;
  uint32_t largest = 0;
  for (int64_t i = global_thread(); i < count; i += int64_t{gridDim.x} * kThreads) {
    const int64_t place = i / p.length * p.line_stride + i % p.length * p.step;
    const uint32_t magnitude =
        bits_of(to_float(load_code(p.src, place, p.source.bits, p.source), p.source)) & 0x7FFFFFFF;
    if (!p.finite_only || magnitude < kNotFinite) largest = max(largest, magnitude);
  }
  largest = largest_of_lanes(largest, kLanes);
  if (threadIdx.x % kLanes == 0 && largest > 0) atomicMax(p.largest, largest);
}

// The same of one run on aligned memory.
template <int Src>
__device__ inline void find_largest_run(const LargestParams &p) {
  const int64_t steps = p.lines * p.length / kStep;
  uint32_t largest = 0;
  for (int64_t step = global_thread(); step < steps; step += int64_t{gridDim.x} * kThreads) {
    float values[kStep];
    load_floats<Src>(p.src + step * kStep * (kFormats[Src].bits / 8), values);
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
      const uint32_t magnitude = bits_of(values[i]) & 0x7FFFFFFF;
      if (!p.finite_only || magnitude < kNotFinite) largest = max(largest, magnitude);
    }
  }
  largest = largest_of_lanes(largest, kLanes);
  if (threadIdx.x % kLanes == 0 && largest > 0) atomicMax(p.largest, largest);
}

__device__ inline void finish_tensor_scale(const TensorScaleParams &p) {
  const TensorScale scale =
      p.kind == DLFP4_TWO_LEVEL ? two_level_scale(float_of(*p.place)) : largest_scale(p.rule, *p.place);
  *p.place = bits_of(scale.decode);
}

// --- Layouts ---------------------------------------------------------------------------------

__device__ inline void convert_scale(const ScalesParams &p) {
  const int64_t number = global_thread();
  if (number >= p.padded_rows * p.padded_columns) return;
  const int64_t row = number / p.padded_columns, column = number % p.padded_columns;
  const bool there = row < p.rows && column < p.columns;
  const int64_t to = dlfp4_scale_offset(p.dst_layout, row, column, p.padded_columns);
  p.dst[to] = there ? p.src[place_of_scale(p.src_layout, p.src_stride, p.src_step, p.src_columns, row, column)]
                    : static_cast<uint8_t>(p.fill);
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

#endif  // DLFP4_SRC_CUDA_BLOCKS_CUH_
