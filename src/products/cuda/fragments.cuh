// Prepared weights as operands of the tensor cores: 16-bit floats, exact.
// Layout: a lane's words of a block of 64 elements of K (prepared.h) to the four A operands of each k16 step.
// Trick: a code's bits in the low exponent and high mantissa bits of a 16-bit float are its value times a power of two,
// subnormal codes too, since the float is then subnormal as well. Scales bring the exponent back. Left shifts are
// multiplications, which run beside the masks. As bfloat16, FP4 takes eight operations for eight codes, e4m3 four for
// four.
#ifndef DLFP4_SRC_PRODUCTS_CUDA_FRAGMENTS_CUH_
#define DLFP4_SRC_PRODUCTS_CUDA_FRAGMENTS_CUH_

#include "gpu/async.cuh"
#include "gpu/elements.cuh"
#include "params.h"

namespace dlfp4 {
namespace cuda {

// --- Codes -----------------------------------------------------------------------------------

// A field as a 16-bit float: FP4 times 2^-126 (bfloat16) or 2^-14 (float16), e4m3 times 2^-120 or 2^-8.
template <int Type, int Bits>
__device__ inline uint32_t decode_field(uint32_t field, const Shifts &by) {
  if constexpr (Type == kBfloat16) return field & field_mask(Bits);
  return (field * by.by3 & magnitude_mask(Bits) << 3) | (field & kSigns);
}

template <int Type, int Bits>
__device__ inline void decode_word(uint32_t word, const Shifts &by, uint32_t *out) {
  spread_fields(Bits, word, by, out);
#pragma unroll
  for (int i = 0; i < fields_of_word(Bits); ++i) out[i] = decode_field<Type, Bits>(out[i], by);
}

// --- Scales ------------------------------------------------------------------------------------

// Of one row and block of 64: two of every second group in each of two words, low half first.
struct RowScales {
  uint32_t even, odd;
};

// Four e5m3 to scales times 2^118 (bfloat16) or 2^6 (float16).
template <int Type>
__device__ inline RowScales decode_two_level(uint32_t word, const Shifts &by) {
  if constexpr (Type == kBfloat16)
    return {(word & 0x0FF00FF0) | by.scale_exponents, (rotate_right(word, 8) & 0x0FF00FF0) | by.scale_exponents};
  return {word * by.by3 & 0x7F807F80, rotate_right(word, 5) & 0x7F807F80};
}

// Two exponents of bfloat16; for float16 less kHalfOffset, those far below become zero. `row` is 0, or 1 for that eight
// further down.
constexpr int kHalfOffset = kTopScale - 30;

template <int Type>
__device__ inline RowScales decode_power(uint32_t word, int row) {
  if constexpr (Type == kBfloat16) return {(row ? rotate_right(word, 8) : word) & 0x7F807F80, 0};
  constexpr uint32_t kOffsets = (0x10000u - kHalfOffset) * 0x00010001u;
  return {__viaddmax_s16x2_relu((row ? rotate_right(word, 15) : word >> 7) & 0x00FF00FF, kOffsets, 0) << 10, 0};
}

// Both halves of `value` times one half of `scales`. Written so, the instruction itself picks the half.
#define DLFP4_SCALE_BY(half, multiply)                                                                                \
  asm("{.reg .b16 low, high; .reg .b32 both; mov.b32 {low, high}, %2; mov.b32 both, {" half ", " half "};\n" multiply \
      "}"                                                                                                             \
      : "=r"(result)                                                                                                  \
      : "r"(value), "r"(scales), "r"(0x80008000))
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define DLFP4_MULTIPLY_BFLOAT16 "mul.rn.bf16x2 %0, %1, both;"
#else
#define DLFP4_MULTIPLY_BFLOAT16 "fma.rn.bf16x2 %0, %1, both, %3;"
#endif

template <int Type, bool High>
__device__ inline uint32_t scale_by_half(uint32_t value, uint32_t scales) {
  uint32_t result;
  if constexpr (Type == kFloat16 && High)
    DLFP4_SCALE_BY("high", "mul.rn.f16x2 %0, %1, both;");
  else if constexpr (Type == kFloat16)
    DLFP4_SCALE_BY("low", "mul.rn.f16x2 %0, %1, both;");
  else if constexpr (High)
    DLFP4_SCALE_BY("high", DLFP4_MULTIPLY_BFLOAT16);
  else
    DLFP4_SCALE_BY("low", DLFP4_MULTIPLY_BFLOAT16);
  return result;
}
#undef DLFP4_SCALE_BY
#undef DLFP4_MULTIPLY_BFLOAT16

// --- A block -----------------------------------------------------------------------------------

// A lane's words of a block of 64: codes, then the scales of its two rows.
template <int Kind>
struct LaneWords {
  static constexpr WeightLayout kLayout = weight_layout(Kind);
  static constexpr int kScaleWords = Kind == kNvfp4 ? 2 : 1;
  uint32_t codes[kLayout.words()];
  uint32_t scales[kScaleWords];
};

template <int Kind, int Type>
__device__ inline void decode_scales(const LaneWords<Kind> &words, const Shifts &by, RowScales *of_row) {
  if constexpr (Kind == kNvfp4) {
    of_row[0] = decode_two_level<Type>(words.scales[0], by);
    of_row[1] = decode_two_level<Type>(words.scales[1], by);
  } else {
    of_row[0] = decode_power<Type>(words.scales[0], 0);
    of_row[1] = decode_power<Type>(words.scales[0], 1);
  }
}

// The four operands of each of the four k16 steps.
template <int Kind, int Type>
__device__ inline void decode_block(const LaneWords<Kind> &words, const Shifts &by, uint32_t *operands) {
  RowScales of_row[2];
  decode_scales<Kind, Type>(words, by, of_row);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    uint32_t *out = operands + 4 * step;
    if constexpr (Kind == kMxfp8) {
      decode_word<Type, 8>(words.codes[2 * step], by, out);
      decode_word<Type, 8>(words.codes[2 * step + 1], by, out + 2);
    } else {
      decode_word<Type, 4>(words.codes[step], by, out);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const RowScales &row = of_row[i & 1];
      const uint32_t scales = Kind == kNvfp4 && (step & 1) ? row.odd : row.even;
      out[i] = step >> 1 ? scale_by_half<Type, true>(out[i], scales) : scale_by_half<Type, false>(out[i], scales);
    }
  }
}

// --- Results -----------------------------------------------------------------------------------

__device__ inline uint32_t round_pair(float low, float high, bool is_half) {
  uint32_t pair;
  if (is_half)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// The factors that turn sums of prepared values into results: first the unit, a power of two, then all others.
struct Finish {
  float unit, factor;

  __device__ Finish(const ProductParams &p, float factor_of_sums) : unit(p.unit), factor(factor_of_sums) {}
  __device__ Finish(const ProductParams &p, const float *factors_of_tensors)
      : Finish(p, p.alpha * factors_of_tensors[0] * factors_of_tensors[1]) {}
  // With one of the scales that matrices of weights have each.
  __device__ explicit Finish(const ProductParams &p, int64_t factor_of_weights = 0)
      : Finish(p, p.alpha * load_or_one(p.factors[0] ? p.factors[0] + factor_of_weights : nullptr) *
                      load_or_one(p.factors[1])) {}
  __device__ float operator()(float sum) const { return sum * unit * factor; }
};

__device__ inline void store_result(const ProductParams &p, int row, int column, float value) {
  uint8_t *to = p.y + (int64_t{row} * p.y_stride + column) * p.y_bytes;
  if (p.y_bytes == 4)
    *reinterpret_cast<float *>(to) = value;
  else
    *reinterpret_cast<uint16_t *>(to) = static_cast<uint16_t>(round_pair(value, 0.0f, p.y_is_half));
}

// Eight neighbours in a row at once, if they lie where that is possible.
__device__ inline bool store_whole_eight(const ProductParams &p, int row, int column, const float *values) {
  auto *to = reinterpret_cast<uint4 *>(p.y + (int64_t{row} * p.y_stride + column) * p.y_bytes);
  if (column < 0 || column + 8 > p.columns || reinterpret_cast<uintptr_t>(to) % 16 != 0) return false;
  if (p.y_bytes == 2) {
    to[0] = make_uint4(round_pair(values[0], values[1], p.y_is_half), round_pair(values[2], values[3], p.y_is_half),
                       round_pair(values[4], values[5], p.y_is_half), round_pair(values[6], values[7], p.y_is_half));
  } else {
    auto *fours = reinterpret_cast<float4 *>(to);
    fours[0] = make_float4(values[0], values[1], values[2], values[3]);
    fours[1] = make_float4(values[4], values[5], values[6], values[7]);
  }
  return true;
}

// The same as far as the row goes.
__device__ inline void store_eight(const ProductParams &p, int row, int column, const float *values) {
  if (__builtin_expect(store_whole_eight(p, row, column, values), 1)) return;
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (column + i < p.columns) store_result(p, row, column + i, values[i]);
}

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_CUDA_FRAGMENTS_CUH_
