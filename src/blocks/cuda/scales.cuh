// Scales on the device: of blocks and of the whole tensor, to and from memory.
// Layout: any of layouts.h.
// Trick: the e4m3 and e8m0 conversions are a few instructions; scaling.h does all else.
#ifndef DLFP4_SRC_BLOCKS_CUDA_SCALES_CUH_
#define DLFP4_SRC_BLOCKS_CUDA_SCALES_CUH_

#include "gpu/codes.cuh"
#include "params.h"
#include "rules/layouts.h"

namespace dlfp4 {
namespace cuda {

// Bits of the tensor's scale, or of its largest magnitude, if they are on the device.
__device__ inline uint32_t load_given(const QuantizeParams &p) {
  return load_or(p.decode != nullptr ? static_cast<const void *>(p.decode) : p.amax, 0);
}

__device__ inline ScaleRule rule_with(ScaleRule rule, TensorScale scale) {
  set_scale(&rule, scale);
  return rule;
}

// One thread keeps the tensor's scale that was given.
__device__ inline void keep_decode(const QuantizeParams &p, float decode) {
  if (blockIdx.x != 0 || threadIdx.x != 0) return;
  for (float *const keep : p.keep)
    if (keep != nullptr) *keep = decode;
}

// The rule of a call: its tensor scale was found or given on the device, or is known to `rule`.
template <int Kind>
__device__ inline ScaleRule rule_of(const QuantizeParams &p, const ScaleRule &rule, uint32_t bits) {
  if (p.amax == nullptr && p.decode == nullptr) {
    keep_decode(p, p.number);
    return rule;
  }
  const TensorScale scale = p.decode != nullptr     ? scale_given(float_of(bits))
                            : Kind == DLFP4_LARGEST ? largest_scale(rule, bits)
                                                    : two_level_scale(rule, float_of(bits));
  keep_decode(p, scale.decode);
  return rule_with(rule, scale);
}

// The scale of a line that has its own: `largest` is its largest finite magnitude, if it is to be found.
__device__ inline TensorScale scale_of_line(const QuantizeParams &p, const ScaleRule &rule, int64_t line,
                                            uint32_t largest) {
  return p.finds_decodes ? two_level_scale(rule, float_of(largest)) : scale_given(p.decodes[line]);
}

// The rule of kernels that only multiply (is_plain in blocks.cpp): the compiler is told, and leaves out all else.
__device__ inline ScaleRule plain_rule(const QuantizeParams &p) {
  ScaleRule rule = p.rule;
  rule.divides = rule.over_first = rule.over_unit = false;
  rule.chooses = DLFP4_NOT_FOUR_OVER_SIX;
  if (rule.order != DLFP4_BLOCK_FIRST) rule.order = DLFP4_GLOBAL_FIRST;
  return rule;
}

// The same of blocks, of which two levels alone have a scale of the tensor.
template <int Kind>
__device__ inline uint32_t load_given_to_blocks(const QuantizeParams &p) {
  return Kind == DLFP4_TWO_LEVEL ? load_given(p) : 0;
}

template <int Kind>
__device__ inline ScaleRule rule_of_blocks(const QuantizeParams &p, uint32_t bits) {
  return Kind == DLFP4_TWO_LEVEL ? rule_of<Kind>(p, plain_rule(p), bits) : p.rule;
}

__device__ inline float float_of_e4m3_magnitude(uint32_t code) {
  return float_of(code << 20) * float_of(247u << 23);  // 2^120 moves the exponent to its place, subnormals too
}

// two_level_block in two halves, of rules that multiply: the code of the scale, and what values are multiplied by for
// it. Without a conversion instruction: below 2^-6 the spacing is that of the smallest normal numbers.
__device__ inline uint32_t two_level_code(const ScaleRule &rule, uint32_t magnitude) {
  const float product = float_of(magnitude) * rule.first * rule.second;
  if constexpr (kConvertsFp8) return stored_code(rule, magnitude, byte_of_e4m3(product));
  const uint32_t wanted = min(bits_of(finite(product)), 0x43E00000u);  // 448
  const uint32_t power = max(wanted & 0x7F800000, 121u << 23);
  const uint32_t sum = bits_of(float_of(wanted) + float_of(power + (20u << 23)));
  return stored_code(rule, magnitude, (sum & 0xFFFFF) + ((power >> 20) - 121 * 8));
}

__device__ inline float two_level_multiplier(const ScaleRule &rule, uint32_t code) {
  float scale[2];
  if constexpr (kConvertsFp8)
    floats_of_fp8<DLFP4_float8_e4m3fn>(code, scale);
  else
    scale[0] = float_of_e4m3_magnitude(code);
  return code == 0 && rule.order == DLFP4_BLOCK_FIRST ? 0 : finite(1 / (scale[0] * rule.unit));
}

constexpr BlockScale kTwoLevelNan = {0x7F, 0};  // of a block that is not finite

template <class MultiplierOf>
__device__ inline BlockScale two_level_fast(const ScaleRule &rule, uint32_t magnitude,
                                            const MultiplierOf &multiplier_of) {
  if (magnitude >= kFloatInfinity) return kTwoLevelNan;
  const uint32_t code = two_level_code(rule, magnitude);
  return {code, multiplier_of(code)};
}

template <int Kind>
__device__ inline BlockScale scale_of_block(const ScaleRule &rule, uint32_t magnitude) {
  if constexpr (Kind == DLFP4_TWO_LEVEL)
    return two_level_fast(rule, magnitude, [&](uint32_t code) { return two_level_multiplier(rule, code); });
  if constexpr (Kind == DLFP4_POWER) return power_block(rule, magnitude);
  return largest_block(rule, magnitude);
}

__device__ inline int64_t place_of_scale(int layout, int64_t stride, int64_t step, int64_t pitch, int64_t row,
                                         int64_t column) {
  return layout == DLFP4_LAYOUT_linear ? row * stride + column * step : dlfp4_scale_offset(layout, row, column, pitch);
}

template <int Kind>
__device__ inline void store_scale(const QuantizeParams &p, int64_t row, int64_t block, uint32_t stored) {
  const int64_t place = p.flat ? block : place_of_scale(p.layout, p.scale_stride, p.scale_step, p.pitch, row, block);
  if constexpr (Kind == DLFP4_LARGEST)
    reinterpret_cast<uint32_t *>(p.scales)[place] = stored;
  else
    p.scales[place] = static_cast<uint8_t>(stored);
}

// What a stored scale is worth, as decode_scale, times the tensor's where there are two levels.
template <int Kind>
__device__ inline float decode_fast(uint32_t stored, float tensor_decode) {
  if constexpr (Kind == DLFP4_LARGEST) return float_of(stored);
  if constexpr (Kind == DLFP4_POWER) {
    if (stored == 0xFF) return float_of(kFloatNan);
    return float_of(stored == 0 ? 1u << 22 : stored << 23);
  }
  if ((stored & 0x7F) == 0x7F) return float_of(kFloatNan);
  const float magnitude = float_of_e4m3_magnitude(stored & 0x7F);
  return (stored & 0x80 ? -magnitude : magnitude) * tensor_decode;
}

__device__ inline float decode_fast(int kind, uint32_t stored, float tensor_decode) {
  if (kind == DLFP4_LARGEST) return decode_fast<DLFP4_LARGEST>(stored, tensor_decode);
  if (kind == DLFP4_POWER) return decode_fast<DLFP4_POWER>(stored, tensor_decode);
  return decode_fast<DLFP4_TWO_LEVEL>(stored, tensor_decode);
}

// The same of scales of any type: decode_fast takes those of two levels to be E4M3.
__device__ inline float decode_any(int kind, ElementType scale, uint32_t stored, float tensor_decode) {
  const bool is_e4m3 = scale.mantissa == 3 && scale.specials == DLFP4_FN;
  if (kind == DLFP4_TWO_LEVEL && !is_e4m3) return decode_scale(scale, stored) * tensor_decode;
  return decode_fast(kind, stored, tensor_decode);
}

// Where the scale lies that a line's blocks have in common; null: nowhere.
__device__ inline const float *decode_place(const DequantizeParams &p, int64_t line) {
  if (p.decodes == nullptr) return p.decode;
  return p.decodes + (p.decode_lines == 1 ? line : line / p.decode_lines);
}

__device__ inline uint32_t scale_in(const DequantizeParams &p, int64_t place) {
  return p.kind == DLFP4_LARGEST ? reinterpret_cast<const uint32_t *>(p.scales)[place] : p.scales[place];
}

__device__ inline int64_t place_of_scale(const DequantizeParams &p, int64_t line, int64_t position) {
  return place_of_scale(p.layout, p.scale_stride, p.scale_step, p.pitch, line >> p.line_shift,
                        position >> p.block_shift);
}

__device__ inline uint32_t stored_scale(const DequantizeParams &p, int64_t line, int64_t position) {
  return scale_in(p, place_of_scale(p, line, position));
}

// Some scales at once: loads after branches, which would wait for those before them.
template <int Count>
__device__ inline void load_scales(const DequantizeParams &p, const int64_t *places, uint32_t *stored) {
  if (p.kind == DLFP4_LARGEST) {
#pragma unroll
    for (int i = 0; i < Count; ++i) stored[i] = reinterpret_cast<const uint32_t *>(p.scales)[places[i]];
  } else {
#pragma unroll
    for (int i = 0; i < Count; ++i) stored[i] = p.scales[places[i]];
  }
}

__device__ inline float scale_at(const DequantizeParams &p, int64_t line, int64_t position, float decode) {
  return decode_any(p.kind, p.scale, stored_scale(p, line, position), decode);
}

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_BLOCKS_CUDA_SCALES_CUH_
