// Blocks along rows: of one row, of squares, of the whole tensor; and back. Sixteen neighbours a thread.
// Layout: rows of whole steps on aligned memory; lines == 1 where rows follow one another without gaps.
// Trick: what lies in memory is read once, kept in registers until its scale is known, and written once.
#ifndef DLFP4_SRC_CUDA_ROWS_CUH_
#define DLFP4_SRC_CUDA_ROWS_CUH_

#include "codes.cuh"
#include "scales.cuh"

namespace dlfp4 {
namespace cuda {

constexpr unsigned kAllLanes = 0xFFFFFFFF;

// The largest of the lanes whose numbers differ in the bits of `lanes`: 7 is eight neighbours.
__device__ inline uint32_t largest_of_lanes(uint32_t value, int lanes) {
#pragma unroll
  for (int lane = 1; lane < 32; lane *= 2)
    if (lanes & lane) value = max(value, __shfl_xor_sync(kAllLanes, value, lane));
  return value;
}

struct StepPlace {
  int64_t line, first;
};

// The place of a step: hosts see to it that their number fits 32 bits.
__device__ inline StepPlace place_of_step(int64_t lines, int64_t length, int64_t step) {
  if (lines == 1) return {0, step * kStep};
  const uint32_t in_line = static_cast<uint32_t>(length / kStep), number = static_cast<uint32_t>(step);
  return {number / in_line, int64_t{number % in_line} * kStep};
}

// --- Quantize --------------------------------------------------------------------------------

// Sixteen values times their multiplier, as codes; zeros where the block has no finite largest magnitude.
template <int Row, int Kind>
__device__ inline void encode_scaled(const EncodeParams &encode, const float *values, BlockScale scale,
                                     uint32_t largest, uint32_t *words) {
  float scaled[kStep];
#pragma unroll
  for (int i = 0; i < kStep; ++i) scaled[i] = __fmul_rn(values[i], scale.multiplier);
  if (largest < kNotFinite) {
    encode_step<Row>(encode, scaled, words);
  } else if constexpr (Kind == DLFP4_LARGEST) {
    encode_step_by_rule<kFormats[Row].bits>(encode, scaled, words);
  } else {
#pragma unroll
    for (int i = 0; i < kCodeWords<kFormats[Row].bits>; ++i) words[i] = 0;
  }
}

// A step that is loaded, its line and position.
template <int Src>
struct LoadedStep {
  bool there;
  StepPlace at;
  uint4 raw[kFloatVectors<Src>];

  __device__ void load(const QuantizeParams &p, int64_t step) {
    there = step < p.lines * (p.stored / kStep);
    at = place_of_step(p.lines, p.stored, there ? step : 0);
    load_step<Src>(p.src + (at.line * p.line_stride + at.first) * kFloatBytes<Src>, there, raw);
  }
};

template <int Src, int Row, int BlockSize, int Kind>
__device__ inline void quantize_step(const QuantizeParams &p, const EncodeParams &encode, const ScaleRule &rule,
                                     const LoadedStep<Src> &step) {
  constexpr int kBits = kFormats[Row].bits;
  const StepPlace at = step.at;
  const uint32_t largest = largest_of_lanes(largest_of<Src>(step.raw), BlockSize / kStep - 1);
  if (!step.there) return;
  float values[kStep];
  uint32_t words[kCodeWords<kBits>];
  const BlockScale scale = scale_of_block<Kind>(rule, largest);
  if (at.first % BlockSize == 0) store_scale<Kind>(p, at.line, at.first / BlockSize, scale.stored);
  unpack_vectors<Src>(step.raw, values);
  encode_scaled<Row, Kind>(encode, values, scale, largest, words);
  store_codes<kBits>(p.data + (at.line * p.data_stride + at.first) * kBits / 8, words);
}

// Blocks of one row. `p.steps` of a thread lie a block of threads apart, and are loaded before the rule is known: two
// of 16 bits share its price, where there are enough of them for all multiprocessors.
template <int Src, int Row, int BlockSize, int Kind>
__device__ inline void quantize_rows(const QuantizeParams &p, const EncodeParams &encode) {
  const int64_t number = int64_t{blockIdx.x} * p.steps * kThreads + threadIdx.x;
  LoadedStep<Src> first, second;
  first.load(p, number);
  if (kFloatBytes<Src> == 2 && p.steps == 2) second.load(p, number + kThreads);
  const ScaleRule rule = rule_of_blocks<Kind>(p);
  quantize_step<Src, Row, BlockSize, Kind>(p, encode, rule, first);
  if (kFloatBytes<Src> == 2 && p.steps == 2) quantize_step<Src, Row, BlockSize, Kind>(p, encode, rule, second);
}

// One scale for the whole tensor, found or given.
template <int Src, int Row>
__device__ inline void quantize_whole(const QuantizeParams &p, const EncodeParams &encode) {
  const int64_t step = global_thread();
  if (step >= p.lines * (p.stored / kStep)) return;
  const StepPlace at = place_of_step(p.lines, p.stored, step);
  float values[kStep];
  uint32_t words[kCodeWords<8>];
  uint4 raw[kFloatVectors<Src>];
  load_step<Src>(p.src + (at.line * p.line_stride + at.first) * kFloatBytes<Src>, true, raw);
  const BlockScale scale = {0, rule_of(p).encode};
  unpack_vectors<Src>(raw, values);
  encode_scaled<Row, DLFP4_LARGEST>(encode, values, scale, largest_of<Src>(raw), words);
  store_codes<8>(p.data + at.line * p.data_stride + at.first, words);
}

// Squares of 128 rows and columns that share a float32 scale: a square a block of threads. Rows and columns may end
// within a square, columns at a whole step.
template <int Src, int Row>
__device__ inline void quantize_squares(const QuantizeParams &p, const EncodeParams &encode) {
  constexpr int kSide = 128, kStepsInRow = kSide / kStep, kRows = kThreads / kStepsInRow, kPasses = kSide / kRows;
  __shared__ uint32_t shared_largest[kThreads / 32];
  const int64_t row = blockIdx.x / p.blocks, column = blockIdx.x % p.blocks;
  const int64_t first = column * kSide + threadIdx.x % kStepsInRow * kStep;
  const int64_t line = row * kSide + threadIdx.x / kStepsInRow;
  uint4 raw[kPasses][kFloatVectors<Src>];
  float values[kStep];
  uint32_t largest = 0, words[kCodeWords<8>];
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    const int64_t i = line + pass * kRows;
    load_step<Src>(p.src + (i * p.line_stride + first) * kFloatBytes<Src>, i < p.lines && first < p.stored, raw[pass]);
  }
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) largest = max(largest, largest_of<Src>(raw[pass]));
  largest = largest_of_lanes(largest, 31);
  if (threadIdx.x % 32 == 0) shared_largest[threadIdx.x / 32] = largest;
  __syncthreads();
#pragma unroll
  for (int warp = 0; warp < kThreads / 32; ++warp) largest = max(largest, shared_largest[warp]);
  const BlockScale scale = scale_of_block<DLFP4_LARGEST>(p.rule, largest);
  if (threadIdx.x == 0) store_scale<DLFP4_LARGEST>(p, row, column, scale.stored);
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    const int64_t i = line + pass * kRows;
    if (i >= p.lines || first >= p.stored) continue;
    unpack_vectors<Src>(raw[pass], values);
    encode_scaled<Row, DLFP4_LARGEST>(encode, values, scale, largest, words);
    store_codes<8>(p.data + i * p.data_stride + first, words);
  }
}

// --- Dequantize ------------------------------------------------------------------------------

// The values of all codes, for formats that are decoded by a table. Those of 8 bits go by the oracle; shorter ones have
// no specials: shifted to its place, a magnitude lacks nothing but the difference of the biases.
template <int Row>
__device__ inline void fill_values(float *table) {
  constexpr Format kFormat = kFormats[Row];
  constexpr int kSign = 1 << (kFormat.bits - 1);
  for (int code = threadIdx.x; code < 1 << kFormat.bits; code += kThreads) {
    const float magnitude = float_of((code & (kSign - 1)) << (23 - kFormat.mantissa));
    const float value = magnitude * float_of((254 - kFormat.bias) << 23);
    table[code] = kFormat.bits == 8 ? to_float(code, format_of<Row>()) : code & kSign ? -value : value;
  }
  __syncthreads();
}

// Two bytes of E4M3 or E5M2 as floats, by the instructions of sm_89.
template <int Row>
__device__ inline void floats_of_fp8(uint32_t pair, float *values) {
  uint32_t halves;
  if constexpr (Row == DLFP4_float8_e4m3fn)
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(pair)));
  else
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(pair)));
  asm("{ .reg .f16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
      : "=f"(values[0]), "=f"(values[1])
      : "r"(halves));
}

// Eight codes of E2M1 as floats. A magnitude's three bits are the float's from bit 22 on, times 2^126; codes 4 apart
// are moved there together, as halves.
__device__ inline void floats_of_e2m1(uint32_t word, float *values) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t two = word >> 4 * i;
    const uint32_t halves = (two << 6 & 0x01C001C0) | (two << 12 & 0x80008000);
    values[i] = float_of(halves << 16) * float_of(253u << 23);
    values[i + 4] = float_of(halves & 0xFFFF0000) * float_of(253u << 23);
  }
}

// What the codes of a step are worth: by a table, or by instructions.
template <int Row>
struct Values {
  static constexpr int kBits = kFormats[Row].bits;
  static constexpr bool kByTable = kBits == 6 || (kBits == 8 && !kConvertsFp8);
  float table[kByTable ? 1 << kBits : 1];

  __device__ void fill() {
    if constexpr (kByTable) fill_values<Row>(table);
  }

  __device__ void decode(const uint32_t *words, float *values) const {
    if constexpr (kByTable) {
#pragma unroll
      for (int i = 0; i < kStep; ++i) values[i] = table[code_at<kBits>(words, i)];
    } else if constexpr (kBits == 4) {
      floats_of_e2m1(words[0], values);
      floats_of_e2m1(words[1], values + 8);
    } else {
#pragma unroll
      for (int i = 0; i < kStep; i += 2) floats_of_fp8<Row>(words[i / 4] >> i % 4 * 8, values + i);
    }
  }

  // As the oracle has it, whose NaN keep their signs.
  __device__ static float decode_by_rule(const uint32_t *words, int i) {
    return to_float(code_at<kBits>(words, i), format_of<Row>());
  }
};

// Whether a step has a code that is not finite: adding 1 to E4M3's only NaN, or 4 to E5M2's, carries into the top bit.
template <int Row>
__device__ inline bool has_special(const uint32_t *words) {
  if constexpr (kFormats[Row].bits < 8) return false;
  constexpr uint32_t kCarry = Row == DLFP4_float8_e4m3fn ? 0x01010101 : 0x04040404;
  uint32_t carried = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) carried |= (words[i] & 0x7F7F7F7F) + kCarry;
  return carried & 0x80808080;
}

// Products as words of the target. Where one may be NaN the oracle decides about its bits.
template <int Row, int Dst>
__device__ inline void dequantize_step(const Values<Row> &table, const uint32_t *codes, float scale, uint32_t *words) {
  float values[kStep];
  const bool special = has_special<Row>(codes) || !(fabsf(scale) <= kLargestFloat);
  table.decode(codes, values);
#pragma unroll
  for (int i = 0; i < kStep; ++i) values[i] = __fmul_rn(values[i], scale);
  if (special)
    for (int i = 0; i < kStep; ++i) values[i] = decoded(Values<Row>::decode_by_rule(codes, i), scale);
  narrow_step<Dst>(values, special, words);
}

template <int Row, int Dst>
__device__ inline void dequantize_rows(const DequantizeParams &p) {
  constexpr int kBits = kFormats[Row].bits, kWords = kStep * kFloatBytes<Dst> / 4;
  __shared__ Values<Row> table;
  uint32_t codes[kCodeWords<kBits>], words[kWords];
  uint8_t *dst = nullptr;
  float scale = 1;
  const int64_t step = global_thread();
  if (step < p.lines * (p.length / kStep)) {
    const StepPlace at = place_of_step(p.lines, p.length, step);
    dst = p.dst + (at.line * p.line_stride + at.first) * kFloatBytes<Dst>;
    load_codes<kBits>(p.data + (at.line * p.data_stride + at.first) * kBits / 8, codes);
    scale = scale_at(p, at.line, at.first, tensor_decode(p));
  }
  table.fill();
  if (dst != nullptr) dequantize_step<Row, Dst>(table, codes, scale, words);
  warp_store<kWords>().store(dst, words);
}

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_CUDA_ROWS_CUH_
