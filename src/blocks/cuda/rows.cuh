// Blocks along rows: of one row, of squares, of the whole tensor; and back. Sixteen neighbours a thread.
// Layout: rows of whole steps on aligned memory; lines == 1 where rows follow one another without gaps.
// Trick: memory is read once, elements stay in registers until their scale is known, and results are written once.
#ifndef DLFP4_SRC_BLOCKS_CUDA_ROWS_CUH_
#define DLFP4_SRC_BLOCKS_CUDA_ROWS_CUH_

#include "gpu/async.cuh"
#include "gpu/codes.cuh"
#include "rules/hadamard.h"
#include "scales.cuh"

namespace dlfp4 {
namespace cuda {

// The largest among lanes whose numbers differ only in the bits of `lanes`: 7 stands for eight neighbours.
__device__ inline uint32_t largest_of_lanes(uint32_t value, int lanes) {
  if (lanes == kWarpSize - 1) return __reduce_max_sync(kAllLanes, value);
#pragma unroll
  for (int lane = 1; lane < 32; lane *= 2)
    if (lanes & lane) value = max(value, __shfl_xor_sync(kAllLanes, value, lane));
  return value;
}

// Ignores what is not finite.
template <int Count>
__device__ inline uint32_t largest_finite_of(const float *values) {
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < Count; ++i) {
    const uint32_t magnitude = bits_of(values[i]) & 0x7FFFFFFF;
    if (magnitude < kFloatInfinity) largest = max(largest, magnitude);
  }
  return largest;
}

// --- Quantize --------------------------------------------------------------------------------

// Sixteen values times their multiplier, as codes; zeros where the block has no finite largest magnitude. Products by
// powers of two are exact, or so small that their code is zero: they can be part of others.
template <int Dtype, int Kind>
__device__ inline void encode_scaled(const EncodeParams &encode, const FloatStep &step, BlockScale scale,
                                     uint32_t largest, uint32_t *words) {
  constexpr int kBits = kTypes[Dtype].bits;
  const bool is_finite = largest < kFloatInfinity;
  if constexpr (Kind == DLFP4_POWER) {
    if (is_finite) return encode_step<Dtype>(encode, step, words, scale.multiplier);
  } else {
    FloatStep scaled = step;  // by what is not negative
#pragma unroll
    for (float &value : scaled.values) value = __fmul_rn(value, scale.multiplier);
    if (is_finite) return encode_step<Dtype>(encode, scaled, words);
    if constexpr (Kind == DLFP4_LARGEST) return encode_step_by_rule<kBits>(encode, scaled.values, words);
  }
  if constexpr (Kind != DLFP4_LARGEST) {
#pragma unroll
    for (int i = 0; i < kCodeWords<kBits>; ++i) words[i] = 0;
  }
}

struct StepOfLine {
  uint32_t line, step;
};

__device__ inline StepOfLine step_of_line(const StepLines &lines, uint32_t number) {
  if (lines.steps == lines.in_line) return {0, number};
  const uint32_t upper = __umulhi(number, lines.magic);
  const uint32_t line = (upper + ((number - upper) >> lines.before)) >> lines.after;
  return {line, number - line * lines.in_line};
}

// Where a step of `Bits` an element lies.
template <int Bits, class Byte>
__device__ inline Byte *address_of_step(Byte *data, int64_t line_bytes, StepOfLine at) {
  return data + at.line * line_bytes + uint64_t{at.step} * (kStep * Bits / 8);
}

// A step that is loaded, or zeros.
template <int Src>
struct LoadedStep {
  bool there;
  StepOfLine at;
  uint4 raw[kFloatVectors<Src>];

  __device__ void load(const QuantizeParams &p, uint32_t number) {
    there = number < p.walk.steps;
    at = step_of_line(p.walk, number);
    load_step<Src>(address_of_step<kTypes[Src].bits>(p.src, p.walk.float_bytes, at), there, raw);
  }
};

// The Hadamard transform of a step, in place, and its largest magnitude.
__device__ inline uint32_t rotate_step(FloatStep *step, const Rotation &rotation) {
  static_assert(kStep == kRotatedLength, "");
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kStep; ++i) step->values[i] *= rotation.quarters[i];
  butterflies(step->values);
#pragma unroll
  for (int i = 0; i < kStep; ++i) largest = larger_float(largest, step->values[i]);
#pragma unroll
  for (int i = 0; i < 2; ++i) step->signs[i] = signs_of_floats(step->values + 8 * i);
  return bits_of(largest);
}

// Blocks that become zeros where they are not finite, transformed before anything else.
template <int Src, int Dtype, int BlockSize, int Kind>
__device__ inline void quantize_rotated_step(const QuantizeParams &p, const EncodeParams &encode, const ScaleRule &rule,
                                             const LoadedStep<Src> &step) {
  static_assert(Kind != DLFP4_LARGEST, "keeps NaNs, whose pattern is not that of the rule");
  constexpr int kBits = kTypes[Dtype].bits, kStepsOfBlock = BlockSize / kStep;
  FloatStep floats = unpack_step<Src>(step.raw);
  const uint32_t largest = largest_of_lanes(rotate_step(&floats, p.rotation), kStepsOfBlock - 1);
  if (!step.there) return;
  uint32_t words[kCodeWords<kBits>];
  const BlockScale scale = scale_of_block<Kind>(rule, largest);
  if (step.at.step % kStepsOfBlock == 0) store_scale<Kind>(p, step.at.line, step.at.step / kStepsOfBlock, scale.stored);
  encode_scaled<Dtype, Kind>(encode, floats, scale, largest, words);
  store_codes<kBits>(address_of_step<kBits>(p.data, p.walk.code_bytes, step.at), words);
}

template <int Src, int Dtype, int BlockSize, int Kind>
__device__ inline void quantize_step(const QuantizeParams &p, const EncodeParams &encode, const ScaleRule &rule,
                                     const LoadedStep<Src> &step) {
  constexpr int kBits = kTypes[Dtype].bits, kStepsOfBlock = BlockSize / kStep;
  const uint32_t largest = largest_of_lanes(largest_of<Src>(step.raw), kStepsOfBlock - 1);
  if (!step.there) return;
  uint32_t words[kCodeWords<kBits>];
  const BlockScale scale = scale_of_block<Kind>(rule, largest);
  if (step.at.step % kStepsOfBlock == 0) store_scale<Kind>(p, step.at.line, step.at.step / kStepsOfBlock, scale.stored);
  encode_scaled<Dtype, Kind>(encode, unpack_step<Src>(step.raw), scale, largest, words);
  store_codes<kBits>(address_of_step<kBits>(p.data, p.walk.code_bytes, step.at), words);
}

// The number of a block of threads, counted from the end if the tensor was just read: some of its end is cached.
__device__ inline uint32_t block_number(const QuantizeParams &p) {
  return p.amax == nullptr && !p.finds_decodes ? blockIdx.x : gridDim.x - 1 - blockIdx.x;
}

// Blocks of one row. `p.steps` of a thread lie a block of threads apart, and are loaded before the rule is known: two
// of 16 bits share its price, where there are enough of them for all multiprocessors.
template <int Src, int Dtype, int BlockSize, int Kind, bool Rotated = false>
__device__ inline void quantize_rows(const QuantizeParams &p, const EncodeParams &encode) {
  const uint32_t number = block_number(p) * p.steps * blockDim.x + threadIdx.x;
  const uint32_t given = load_given_to_blocks<Kind>(p);
  LoadedStep<Src> first, second;
  first.load(p, number);
  if (kFloatBytes<Src> == 2 && p.steps == 2) second.load(p, number + blockDim.x);
  const ScaleRule rule = rule_of_blocks<Kind>(p, given);
  const auto quantize = [&](const LoadedStep<Src> &step) {
    if constexpr (Rotated)
      quantize_rotated_step<Src, Dtype, BlockSize, Kind>(p, encode, rule, step);
    else
      quantize_step<Src, Dtype, BlockSize, Kind>(p, encode, rule, step);
  };
  quantize(first);
  if (kFloatBytes<Src> == 2 && p.steps == 2) quantize(second);
}

// Four over six: the magnitude of FP4 next to one of up to 6, even where two are. Its values lie a half apart, from 2
// on a power of two: adding 2^22 or as much more rounds to them. Exponents far below share 1's, and become zero.
__device__ inline float nearest_of_four_bits(float magnitude) {
  const uint32_t power = max(bits_of(magnitude) & kFloatInfinity, bits_of(1.0f));
  const float addend = float_of(power + (22u << 23));
  return (magnitude + addend) - addend;
}

// How far the elements of a block are from their codes with a candidate, errors added in order.
enum Errors { kAnyErrors, kUsualSquares, kUsualMagnitudes };

template <Errors kErrors>
__device__ inline float sum_of_errors(const ScaleRule &rule, const FloatStep &step, BlockScale candidate) {
  constexpr uint32_t kHalf = 1u << 22;  // set in 1.5 times a power of two
  const float scale = decode_scale(kTypes[DLFP4_float8_e4m3fn], candidate.stored);
  const float one = scale * rule.amax / rule.reach, one_and_half = 1.5f * scale * rule.amax / rule.reach;
  float sum = 0;
#pragma unroll
  for (const float value : step.values) {
    const float element = nearest_of_four_bits(fminf(fabsf(value) * candidate.multiplier, 6));
    const float power = float_of(bits_of(element) & ~kHalf);
    const float error = power * (bits_of(element) & kHalf ? one_and_half : one) - fabsf(value);
    if constexpr (kErrors == kAnyErrors)
      sum += error_of(rule, element, scale, fabsf(value));
    else
      sum += kErrors == kUsualSquares ? error * error : fabsf(error);
  }
  return sum;
}

__device__ inline float error_of_block(const ScaleRule &rule, const FloatStep &step, BlockScale candidate) {
  if (!has_usual_errors(rule)) return sum_of_errors<kAnyErrors>(rule, step, candidate);
  return rule.chooses == DLFP4_MEAN_SQUARED ? sum_of_errors<kUsualSquares>(rule, step, candidate)
                                            : sum_of_errors<kUsualMagnitudes>(rule, step, candidate);
}

// That with the smaller error.
__device__ inline BlockScale better_scale(const ScaleRule &rule, const FloatStep &step, uint32_t largest) {
  constexpr ElementType kScale = kTypes[DLFP4_float8_e4m3fn];
  const BlockScale six = two_level_block(rule, kScale, largest);
  const BlockScale four = two_level_block(rule_of_four(rule), kScale, largest);
  return error_of_block(rule, step, four) < error_of_block(rule, step, six) ? four : six;
}

template <int Src, int Dtype>
__device__ inline void quantize_choosing_rows(const QuantizeParams &p, const EncodeParams &encode) {
  constexpr int kBits = kTypes[Dtype].bits;
  const uint32_t given = load_given(p);
  LoadedStep<Src> step;
  step.load(p, block_number(p) * blockDim.x + threadIdx.x);
  const ScaleRule rule = rule_of<DLFP4_TWO_LEVEL>(p, p.rule, given);
  if (!step.there) return;
  uint32_t words[kCodeWords<kBits>];
  const FloatStep floats = unpack_step<Src>(step.raw);
  const uint32_t largest = largest_of<Src>(step.raw);
  const BlockScale scale = better_scale(rule, floats, largest);
  encode_scaled<Dtype, DLFP4_TWO_LEVEL>(encode, floats, scale, largest, words);
  store_scale<DLFP4_TWO_LEVEL>(p, step.at.line, step.at.step, scale.stored);
  store_codes<kBits>(address_of_step<kBits>(p.data, p.walk.code_bytes, step.at), words);
}

// One scale for the whole tensor, found or given.
template <int Src, int Dtype>
__device__ inline void quantize_whole(const QuantizeParams &p, const EncodeParams &encode) {
  const uint32_t given = load_given(p);
  LoadedStep<Src> step;
  step.load(p, block_number(p) * kThreads + threadIdx.x);
  if (!step.there) return;
  uint32_t words[kCodeWords<8>];
  const BlockScale scale = {0, rule_of<DLFP4_LARGEST>(p, p.rule, given).whole};
  encode_scaled<Dtype, DLFP4_LARGEST>(encode, unpack_step<Src>(step.raw), scale, largest_of<Src>(step.raw), words);
  store_codes<8>(address_of_step<8>(p.data, p.walk.code_bytes, step.at), words);
}

// Squares of bytes, of as many rows as columns, 32 to 128, that share a scale: a block of threads takes those of
// kSquaresColumns columns. Rows and columns may end within a square, columns at a whole step.
template <int Src, int Dtype, int Side, int Kind>
__device__ inline void quantize_squares(const QuantizeParams &p, const EncodeParams &encode) {
  constexpr int kStepsInRow = kSquaresColumns / kStep, kStepsOfSquare = Side / kStep, kRows = kThreads / kStepsInRow;
  constexpr int kPasses = Side / kRows, kWarps = kThreads / kWarpSize, kSquares = kSquaresColumns / Side;
  constexpr int kLanesOfSquare = (kWarpSize - kStepsInRow) | (kStepsOfSquare - 1);
  __shared__ uint32_t shared_largest[kWarps][kSquares];
  const int64_t in_row = (p.blocks + kSquares - 1) / kSquares, row = blockIdx.x / in_row;
  const int step = threadIdx.x % kStepsInRow, square = step / kStepsOfSquare;
  const int64_t column = blockIdx.x % in_row * kSquares + square;
  const int64_t first = blockIdx.x % in_row * kSquaresColumns + step * kStep;
  const int64_t line = row * Side + threadIdx.x / kStepsInRow;
  uint4 raw[kPasses][kFloatVectors<Src>];
  uint32_t largest = 0, words[kCodeWords<8>];
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    const int64_t i = line + pass * kRows;
    load_step<Src>(p.src + (i * p.line_stride + first) * kFloatBytes<Src>, i < p.lines && first < p.stored, raw[pass]);
  }
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) largest = max(largest, largest_of<Src>(raw[pass]));
  largest = largest_of_lanes(largest, kLanesOfSquare);
  if ((threadIdx.x % kWarpSize & kLanesOfSquare) == 0) shared_largest[threadIdx.x / kWarpSize][square] = largest;
  __syncthreads();
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) largest = max(largest, shared_largest[warp][square]);
  const BlockScale scale = scale_of_block<Kind>(p.rule, largest);
  if (threadIdx.x < kStepsInRow && step % kStepsOfSquare == 0 && column < p.blocks)
    store_scale<Kind>(p, row, column, scale.stored);
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    const int64_t i = line + pass * kRows;
    if (i >= p.lines || first >= p.stored) continue;
    encode_scaled<Dtype, Kind>(encode, unpack_step<Src>(raw[pass]), scale, largest, words);
    store_codes<8>(p.data + i * p.data_stride + first, words);
  }
}

// --- Whole lines -----------------------------------------------------------------------------

// What a step's largest magnitude adds to its line's; of two levels, what is finite counts.
template <int Src, int Kind>
__device__ inline uint32_t largest_for_line(uint32_t largest, const uint4 *raw) {
  if (Kind != DLFP4_TWO_LEVEL || largest < kFloatInfinity) return largest;
  return largest_finite_of<kStep>(unpack_step<Src>(raw).values);
}

// The largest among the threads that share a line: a warp, or all of the block, which come here together.
__device__ inline uint32_t largest_of_team(uint32_t largest, uint32_t team) {
  __shared__ uint32_t of_warp[most_of_line(2) / kWarpSize];
  const uint32_t lane = threadIdx.x % kWarpSize;
  largest = largest_of_lanes(largest, kWarpSize - 1);
  if (team == kWarpSize) return largest;
  if (lane == 0) of_warp[threadIdx.x / kWarpSize] = largest;
  __syncthreads();
  return largest_of_lanes(of_warp[min(lane, team / kWarpSize - 1)], kWarpSize - 1);
}

// A step of a line whose scale is known: `of_line`, or, of two levels, what is in `rule`. `largest` is the line's
// magnitude or, of two levels, the step's.
template <int Src, int Dtype, int Kind>
__device__ inline void encode_step_of_line(const QuantizeParams &p, const EncodeParams &encode, const ScaleRule &rule,
                                           BlockScale of_line, uint32_t largest, StepOfLine at, const uint4 *raw) {
  constexpr int kBits = kTypes[Dtype].bits;
  uint32_t words[kCodeWords<kBits>];
  if constexpr (Kind == DLFP4_TWO_LEVEL) {  // blocks of one step
    of_line = scale_of_block<Kind>(rule, largest);
    store_scale<Kind>(p, at.line, at.step, of_line.stored);
  }
  encode_scaled<Dtype, Kind>(encode, unpack_step<Src>(raw), of_line, largest, words);
  store_codes<kBits>(address_of_step<kBits>(p.data, p.walk.code_bytes, at), words);
}

// Lines that have a scale each, `p.team` threads a line: what a thread holds is read once, the rest of a longer line a
// second time, from a cache.
template <int Src, int Dtype, int Kind>
__device__ inline void quantize_lines(const QuantizeParams &p, const EncodeParams &encode) {
  constexpr int kHeld = kStepsOfLine;
  let_next_kernel_start();
  wait_for_kernel_before();
  const uint32_t team = p.team;
  const bool is_warp = team == kWarpSize;
  const uint32_t line = is_warp ? (blockIdx.x * blockDim.x + threadIdx.x) / kWarpSize : blockIdx.x;
  const uint32_t member = is_warp ? threadIdx.x % kWarpSize : threadIdx.x;
  const uint32_t in_line = line < p.lines ? p.walk.in_line : 0;
  const auto load = [&](uint32_t step, uint4 *raw) {
    load_step<Src>(address_of_step<kTypes[Src].bits>(p.src, p.walk.float_bytes, StepOfLine{line, step}), step < in_line,
                   raw);
    return largest_of<Src>(raw);
  };
  uint4 held[kHeld][kFloatVectors<Src>];
  uint32_t largest = 0, of_step[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) of_step[i] = load(member + i * team, held[i]);
#pragma unroll
  for (int i = 0; i < kHeld; ++i) largest = max(largest, largest_for_line<Src, Kind>(of_step[i], held[i]));
  if (Kind == DLFP4_LARGEST || p.finds_decodes) {
#pragma unroll 4
    for (uint32_t step = member + kHeld * team; step < in_line; step += team) {
      uint4 raw[kFloatVectors<Src>];
      largest = max(largest, largest_for_line<Src, Kind>(load(step, raw), raw));
    }
    largest = largest_of_team(largest, team);
  }
  if (in_line == 0) return;
  const ScaleRule plain = plain_rule(p);
  ScaleRule rule = plain;
  BlockScale scale = {0, 0};
  if constexpr (Kind == DLFP4_TWO_LEVEL) {
    const auto of_line = [&] { return scale_of_line(p, plain, line, largest); };
    rule = rule_with(plain, of_line());
    if (member == 0) p.decodes[line] = of_line().decode;  // found again, so that one thread alone divides for it
  } else {
    scale = scale_of_block<Kind>(rule, largest);
    if (member == 0) store_scale<Kind>(p, line, 0, scale.stored);
  }
  const auto encode_step = [&](uint32_t step, uint32_t of_step, const uint4 *raw) {
    encode_step_of_line<Src, Dtype, Kind>(p, encode, rule, scale, Kind == DLFP4_TWO_LEVEL ? of_step : largest,
                                          {line, step}, raw);
  };
#pragma unroll
  for (int i = 0; i < kHeld; ++i)
    if (member + i * team < in_line) encode_step(member + i * team, of_step[i], held[i]);
  for (uint32_t step = member + kHeld * team; step < in_line; step += team) {
    uint4 raw[kFloatVectors<Src>];
    const uint32_t of_step = load(step, raw);
    encode_step(step, of_step, raw);
  }
}

// --- Dequantize ------------------------------------------------------------------------------

// Products; returns whether one may be NaN. Elements of 8 bits may be that too: the oracle decides about its bits. The
// scale takes the values' unit, but where it is too large for that.
template <int Dtype>
__device__ inline bool decode_step(const Values<Dtype> &table, const uint32_t *codes, float scale, float *values) {
  constexpr float kUnit = Values<Dtype>::kUnit;
  const float in_units = scale * kUnit;
  const bool special = has_special<Dtype>(codes) || !(fabsf(scale) <= kLargestFloat);
  table.decode(codes, values);
  if (fabsf(in_units) <= kLargestFloat) {
#pragma unroll
    for (int i = 0; i < kStep; ++i) values[i] = __fmul_rn(values[i], in_units);
  } else {
#pragma unroll
    for (int i = 0; i < kStep; ++i) values[i] = __fmul_rn(__fmul_rn(values[i], kUnit), scale);
  }
  if (special && kTypes[Dtype].bits == 8)
    for (int i = 0; i < kStep; ++i) values[i] = decoded(Values<Dtype>::decode_by_rule(codes, i), scale);
  else if (special)
    for (int i = 0; i < kStep; ++i) values[i] = values[i] == values[i] ? values[i] : float_of(kFloatNan);
  return special;
}

// The same with the transform undone. Of scales far from both ends of a float's range quarters are exact, last as well
// as first, and no sum is NaN, whatever finite codes there are.
template <int Dtype>
__device__ inline bool decode_rotated_step(const Values<Dtype> &table, const uint32_t *codes, float scale,
                                           const Rotation &rotation, float *values) {
  const float size = fabsf(scale);
  const bool usual = size <= 0x1p100f && (size >= 0x1p-100f || size == 0);
  const bool special = decode_step(table, codes, scale, values);
  if (!usual)
    for (int i = 0; i < kStep; ++i) values[i] *= 0.25f;
  butterflies(values);
  if (usual)
    for (int i = 0; i < kStep; ++i) values[i] *= rotation.quarters[i];
  else
    turn_signs(values, rotation.signs);
  if (usual && !special) return false;
  clear_nans(values);
  return true;
}

template <int Dtype, int Dst, bool Rotated>
struct CodedStep {
  static constexpr int kBits = kTypes[Dtype].bits, kWords = kStep * kFloatBytes<Dst> / 4;
  uint32_t codes[kCodeWords<kBits>];
  uint32_t scale;
  float decode;
  uint8_t *dst;

  __device__ void load(const DequantizeParams &p, uint32_t number) {
    dst = nullptr;
    if (number >= p.walk.steps) return;
    const StepOfLine at = step_of_line(p.walk, number);
    dst = address_of_step<kTypes[Dst].bits>(p.dst, p.walk.float_bytes, at);
    load_codes<kBits>(address_of_step<kBits>(p.data, p.walk.code_bytes, at), codes);
    decode = load_or_one(decode_place(p, at.line));
    scale = p.flat ? scale_in(p, uint64_t{at.step} * kStep >> p.block_shift)
                   : stored_scale(p, at.line, int64_t{at.step} * kStep);
  }

  __device__ void finish(const DequantizeParams &p, const Values<Dtype> &table) const {
    uint32_t words[kWords];
    if (dst != nullptr) {
      float values[kStep];
      const float factor = decode_fast(p.kind, scale, decode);
      const bool special = Rotated ? decode_rotated_step(table, codes, factor, p.rotation, values)
                                   : decode_step(table, codes, factor, values);
      narrow_step<Dst>(values, special, words);
    }
    warp_store<kWords>().store(dst, words);
  }
};

// `p.steps` of a thread, one or two, lie a block of threads apart.
template <int Dtype, int Dst, bool Rotated = false>
__device__ inline void dequantize_rows(const DequantizeParams &p) {
  __shared__ Values<Dtype> table;
  const uint32_t number = blockIdx.x * p.steps * blockDim.x + threadIdx.x;
  CodedStep<Dtype, Dst, Rotated> first, second;
  first.load(p, number);
  if (p.steps == 2) second.load(p, number + blockDim.x);
  const uint32_t later = ((blockIdx.x + kBlocksAhead) * blockDim.x + threadIdx.x) * p.steps;
  if (later < p.walk.steps)
    prefetch(address_of_step<kTypes[Dtype].bits>(p.data, p.walk.code_bytes, step_of_line(p.walk, later)));
  table.fill();
#pragma unroll 1
  for (int i = 0; i < p.steps; ++i, first = second) first.finish(p, table);
}

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_BLOCKS_CUDA_ROWS_CUH_
