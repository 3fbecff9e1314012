// Sums of products of lines: any two types, formats and strides, and fast ones of what lies in order.
// Layout: a team of threads (a part of a warp, a warp or a block) takes a segment of a line; a second kernel adds the
// segments' sums.
// Trick: segments, teams and their trees of additions follow from a line's length and the types alone: the grid changes
// no bit of a result. Products go as integers or as float32 that hold them, a few at a time, and from there on as
// float64.
#ifndef DLFP4_SRC_PRODUCTS_CUDA_DOTS_CUH_
#define DLFP4_SRC_PRODUCTS_CUDA_DOTS_CUH_

#include "blocks/cuda/rows.cuh"
#include "blocks/cuda/scales.cuh"
#include "dots.h"
#include "gpu/elements.cuh"

namespace dlfp4 {
namespace cuda {

// --- Teams -----------------------------------------------------------------------------------

// What a team sums: elements [first, last) of a line, which has a number on each side.
struct Segment {
  int64_t line, a, b;
  int64_t first, last;
};

// Divisions take longer than the sum of a short line: there are none where a line is one segment, nor for its first
// axis.
__device__ inline Segment segment_of(const DotParams &p, int64_t number) {
  Segment s = {number, p.a.first, p.b.first, 0, 0};
  if (p.segments > 1) {
    s.line = number / p.segments;
    s.first = number % p.segments * p.segment;
  }
  s.last = min(s.first + p.segment, p.length);
  int64_t rest = s.line;
  for (int dim = p.ndim - 1; dim > 0; --dim) {
    const int64_t index = rest % p.extent[dim];
    rest /= p.extent[dim];
    s.a += index * p.a.stride[dim];
    s.b += index * p.b.stride[dim];
  }
  s.a += rest * p.a.stride[0];
  s.b += rest * p.b.stride[0];
  return s;
}

// Of so many lanes next to each other; all lanes of a warp come here together.
__device__ inline double add_lanes(double sum, int lanes) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(kAllLanes, sum, distance);
  return sum;
}

// All threads of a block come here together where the team is the block.
__device__ inline double add_team(double sum, int team) {
  __shared__ double of_warp[kThreads / kWarpSize];
  sum = add_lanes(sum, min(team, kWarpSize));
  if (team <= kWarpSize) return sum;
  if (threadIdx.x % kWarpSize == 0) of_warp[threadIdx.x / kWarpSize] = sum;
  __syncthreads();
  sum = of_warp[0];
  for (int i = 1; i < kThreads / kWarpSize; ++i) sum += of_warp[i];
  __syncthreads();
  return sum;
}

// Of the whole tensor, or of a line.
__device__ inline double tensor_scale(const DotSide &side, int64_t line) {
  if (side.decode == nullptr) return 1;
  const int64_t place = side.decode_stride == 0 ? 0 : line / side.decode_lines * side.decode_stride;
  return static_cast<double>(side.decode[place]);
}

// Calls sum(segment, lane) for a team's segments, and keeps the sums, or the results where a line is one segment. Teams
// of a warp go on together, some of them without a segment at last.
template <class Sum>
__device__ inline void sum_segments(const DotParams &p, Sum sum) {
  const int in_block = kThreads / p.team, thread = static_cast<int>(threadIdx.x), lane = thread % p.team;
  const int64_t segments = p.lines * p.segments, teams = int64_t{gridDim.x} * in_block;
  const int of_warp = thread / kWarpSize * kWarpSize / p.team, own = thread / p.team - of_warp;
  for (int64_t first = int64_t{blockIdx.x} * in_block + of_warp; first < segments; first += teams) {
    const int64_t number = first + own;
    const bool is_there = number < segments;
    const Segment segment = segment_of(p, is_there ? number : first);
    const double total = add_team(is_there ? sum(segment, lane) : 0, p.team);
    if (lane != 0 || !is_there) continue;
    if (p.sums != nullptr)
      p.sums[number] = total;
    else
      p.result[number] = static_cast<float>(total * (tensor_scale(p.a, segment.a) * tensor_scale(p.b, segment.b)));
  }
}

// --- Single elements -------------------------------------------------------------------------

// What a code is worth, integers included.
__device__ inline float value_by_rule(const DotSide &side, uint64_t code) {
  if (side.dtype == DLFP4_float32) return float_of(static_cast<uint32_t>(code));
  if (side.dtype == DLFP4_bfloat16) return float_of(static_cast<uint32_t>(code) << 16);
  if (is_float(side.element)) return to_float(code, side.element);
  code &= low_bits(side.element.bits);
  const bool negative = side.is_signed && code >> (side.element.bits - 1) & 1;
  return static_cast<float>(static_cast<int>(code) - (negative ? 1 << side.element.bits : 0));
}

// The same of all codes of at most 8 bits; those stored in a byte may have noise above theirs.
__device__ inline void fill_dot_table(const DotSide &side, float *table) {
  if (side.bits <= 8 && threadIdx.x < 256) table[threadIdx.x] = value_by_rule(side, threadIdx.x);
}

__device__ inline int64_t place_of_scale(const DotSide &side, int64_t line, int64_t position) {
  return place_of_scale(side.layout, side.scale_stride, side.scale_step, side.pitch, line >> side.line_shift,
                        position >> side.block_shift);
}

__device__ inline uint32_t stored_scale(const DotSide &side, int64_t line, int64_t position) {
  const int64_t place = place_of_scale(side, line, position);
  return side.kind == DLFP4_LARGEST ? reinterpret_cast<const uint32_t *>(side.scales)[place] : side.scales[place];
}

// Of a block, or 1: of any type, or of those that decode_fast knows.
template <bool AnyScale>
__device__ inline float block_scale(const DotSide &side, int64_t line, int64_t position) {
  if (side.scales == nullptr) return 1;
  const uint32_t stored = stored_scale(side, line, position);
  return AnyScale ? decode_any(side.kind, side.scale, stored, 1.0f) : decode_fast(side.kind, stored, 1.0f);
}

__device__ inline uint64_t load_element(const DotSide &side, int64_t element) {
  const uint8_t *const from = side.data + element * (side.bits / 8);
  const uint64_t address = reinterpret_cast<uint64_t>(from);
  if (side.bits == 16 && address % 2 == 0) return *reinterpret_cast<const uint16_t *>(from);
  if (side.bits == 32 && address % 4 == 0) return *reinterpret_cast<const uint32_t *>(from);
  return load_code(side.data, element, side.bits, side.element);
}

template <bool AnyScale>
__device__ inline float element_of(const DotSide &side, const float *table, int64_t line, int64_t position) {
  const uint64_t code = load_element(side, line * side.line_stride + position * side.step);
  const float value = table != nullptr && side.bits <= 8 ? table[code] : value_by_rule(side, code);
  return side.scales == nullptr ? value : decoded(value, block_scale<AnyScale>(side, line, position));
}

// A lane's share of the elements [first, s.last); without tables by the rule.
template <bool AnyScale>
__device__ __noinline__ double sum_elements(const DotParams &p, const float *of_a, const float *of_b, const Segment &s,
                                            int64_t first, int lane) {
  double sum = 0;
  for (int64_t k = first + lane; k < s.last; k += p.team)
    sum += static_cast<double>(element_of<AnyScale>(p.a, of_a, s.a, k)) *
           static_cast<double>(element_of<AnyScale>(p.b, of_b, s.b, k));
  return sum;
}

struct DotTables {
  float a[256], b[256];

  __device__ void fill(const DotParams &p) {
    fill_dot_table(p.a, a);
    fill_dot_table(p.b, b);
    __syncthreads();
  }
};

__device__ inline void sum_any(const DotParams &p) {
  __shared__ DotTables tables;
  tables.fill(p);
  sum_segments(p,
               [&](const Segment &s, int lane) { return sum_elements<true>(p, tables.a, tables.b, s, s.first, lane); });
}

// --- Sums of floats --------------------------------------------------------------------------

// Whether float32 holds products of two such types as normal numbers, and sums of some.
template <int A, int B>
constexpr bool kHoldsProducts =
    (kTypes[A].bits <= 8 || A == DLFP4_float16) && (kTypes[B].bits <= 8 || B == DLFP4_float16);

// float64 does not overflow where float32 does; infinite and NaN operands stay so.
template <int Count, bool HoldsProducts = false>
__device__ inline double sum_floats(const float *a, const float *b) {
  float sum = a[0] * b[0];
#pragma unroll
  for (int i = 1; i < Count; ++i) sum = __fmaf_rn(a[i], b[i], sum);
  if (HoldsProducts || fabsf(sum) <= kLargestFloat) return sum;
  double exact = 0;
#pragma unroll
  for (int i = 0; i < Count; ++i) exact += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return exact;
}

// --- Steps of any two types that lie in order ------------------------------------------------

// Sixteen elements as they lie. Memory is aligned to 16 bytes; of 2, 4 and 6 bits an element to 4, 8 and 4.
template <int Bits>
__device__ inline void load_words(const uint8_t *from, uint32_t *words) {
  if constexpr (Bits == 2) {
    words[0] = *reinterpret_cast<const uint32_t *>(from);
  } else if constexpr (Bits < 8) {
    load_codes<Bits>(from, words);
  } else {
#pragma unroll
    for (int i = 0; i < Bits / 8; ++i) load_codes<8>(from + 16 * i, words + 4 * i);
  }
}

__device__ inline void load_words(const uint8_t *from, int bits, uint32_t *words) {
  if (bits == 2) return load_words<2>(from, words);
  if (bits == 4) return load_words<4>(from, words);
  if (bits == 6) return load_words<6>(from, words);
  if (bits == 8) return load_words<8>(from, words);
  if (bits == 16) return load_words<16>(from, words);
  load_words<32>(from, words);
}

// Four bytes of a float8; without the instructions of sm_89 through the bits of a float16 or float32.
template <int Dtype>
__device__ inline void unpack_fp8(uint32_t word, float *values) {
  static_assert(kHasInstructions<Dtype>, "");
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t low = word >> 8 * i & 0xFF, high = word >> 8 * i & 0xFF00;
    if constexpr (kConvertsFp8) {
      floats_of_fp8<Dtype>(low | high, values + i);
    } else if constexpr (Dtype == DLFP4_float8_e5m2) {
      values[i] = half_to_float(static_cast<uint16_t>(low << 8));
      values[i + 1] = half_to_float(static_cast<uint16_t>(high));
    } else {
      values[i] = decode_fast<DLFP4_TWO_LEVEL>(low, 1.0f);  // scales are of this type
      values[i + 1] = decode_fast<DLFP4_TWO_LEVEL>(high >> 8, 1.0f);
    }
  }
}

template <int Dtype>
__device__ inline void decode_word(uint32_t word, float *values) {
  if constexpr (kTypes[Dtype].bits == 4) {
    floats_of_e2m1(word, values);
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] *= Values<Dtype>::kUnit;
  } else if constexpr (kTypes[Dtype].bits == 8) {
    unpack_fp8<Dtype>(word, values);
  } else {
    unpack_floats<Dtype>(word, values);
  }
}

template <int Dtype>
__device__ inline void decode_words(const uint32_t *words, float *values) {
  constexpr int kInWord = 32 / kTypes[Dtype].bits;
#pragma unroll
  for (int i = 0; i < kStep / kInWord; ++i) decode_word<Dtype>(words[i], values + i * kInWord);
}

template <int Bits>
__device__ inline void look_up_words(const uint32_t *words, const float *table, float *values) {
#pragma unroll
  for (int i = 0; i < kStep; ++i) values[i] = table[code_at<Bits>(words, i)];
}

__device__ inline void decode_words(const DotSide &side, const uint32_t *words, const float *table, float *values) {
  if (side.dtype == DLFP4_float32) return decode_words<DLFP4_float32>(words, values);
  if (side.dtype == DLFP4_bfloat16) return decode_words<DLFP4_bfloat16>(words, values);
  if (side.dtype == DLFP4_float16) return decode_words<DLFP4_float16>(words, values);
  if (side.bits == 8) return look_up_words<8>(words, table, values);
  if (side.bits == 6) return look_up_words<6>(words, table, values);
  if (side.bits == 4) return look_up_words<4>(words, table, values);
  look_up_words<2>(words, table, values);
}

__device__ inline void scale_values(float scale, float *values) {
#pragma unroll
  for (int i = 0; i < kStep; ++i) values[i] *= scale;
}

__device__ inline const uint8_t *bytes_at(const DotSide &side, int64_t line, int64_t first) {
  return side.data + (line * side.line_stride + first) * side.bits / 8;
}

// Sixteen products of FP4, FP6 or integers are exact in float32, and so is their sum. Blocks are multiples of a step.
__device__ inline double sum_step(const DotParams &p, const DotTables &tables, const Segment &s, int64_t first) {
  uint32_t of_a[kStep], of_b[kStep];
  float a[kStep], b[kStep];
  load_words(bytes_at(p.a, s.a, first), p.a.bits, of_a);
  load_words(bytes_at(p.b, s.b, first), p.b.bits, of_b);
  decode_words(p.a, of_a, tables.a, a);
  decode_words(p.b, of_b, tables.b, b);
  scale_values(block_scale<true>(p.a, s.a, first), a);
  scale_values(block_scale<true>(p.b, s.b, first), b);
  return sum_floats<kStep>(a, b);
}

__device__ inline void sum_steps(const DotParams &p) {
  __shared__ DotTables tables;
  tables.fill(p);
  sum_segments(p, [&](const Segment &s, int lane) {
    const int64_t whole = s.last - (s.last - s.first) % kStep;
    double sum = 0;
    for (int64_t k = s.first + lane * kStep; k < whole; k += p.team * kStep) sum += sum_step(p, tables, s, k);
    return sum + sum_elements<true>(p, tables.a, tables.b, s, whole, lane);
  });
}

// --- Steps of two known types ----------------------------------------------------------------

// Where a step's stored scale lies; without scales anything that is there.
__device__ inline const uint8_t *scale_of_step(const DotSide &side, int64_t line, int64_t first) {
  if (side.scales == nullptr) return side.data;
  return side.scales + place_of_scale(side, line, first) * (side.kind == DLFP4_LARGEST ? 4 : 1);
}

// Without a branch, which would wait for the loads before it.
__device__ inline uint32_t load_scale(const uint8_t *from, bool is_word) {
  uint32_t stored;
  asm volatile("{.reg .pred p; setp.ne.u32 p, %2, 0; @p ld.global.b32 %0, [%1]; @!p ld.global.u8 %0, [%1];}"
               : "=r"(stored)
               : "l"(from), "r"(uint32_t{is_word}));
  return stored;
}

// Some steps of one side.
template <int Dtype, int Count>
struct KnownSteps {
  uint32_t words[Count][kStep * kTypes[Dtype].bits / 32], scales[Count];

  __device__ void load(const DotSide &side, int64_t line, const int64_t *first, const uint8_t *const *from) {
    const bool are_words = side.scales != nullptr && side.kind == DLFP4_LARGEST;
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      scales[i] = load_scale(from[i], are_words);
      load_words<kTypes[Dtype].bits>(bytes_at(side, line, first[i]), words[i]);
    }
  }

  __device__ float scale_of(const DotSide &side, int i) const {
    return side.scales == nullptr ? 1 : decode_fast(side.kind, scales[i], 1.0f);
  }
};

template <int A, int B>
__device__ inline double sum_step(const uint32_t *of_a, float scale_a, const uint32_t *of_b, float scale_b) {
  float a[kStep], b[kStep];
  decode_words<A>(of_a, a);
  decode_words<B>(of_b, b);
  if constexpr (kHoldsProducts<A, B>)
    return sum_floats<kStep, true>(a, b) * (static_cast<double>(scale_a) * static_cast<double>(scale_b));
  scale_values(scale_a, a);
  scale_values(scale_b, b);
  return sum_floats<kStep>(a, b);
}

// Some steps ahead; instead of those beyond the segment the first is loaded again.
template <int A, int B>
__device__ inline double sum_known_steps(const DotParams &p, const Segment &s, int lane) {
  constexpr int kAhead = 4;
  const int steps = static_cast<int>(s.last - s.first) / kStep;
  double sum = 0;
  for (int first = lane; first < steps; first += kAhead * p.team) {
    int64_t at[kAhead];
    const uint8_t *scales_of_a[kAhead], *scales_of_b[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int step = first + i * p.team < steps ? first + i * p.team : first;
      at[i] = s.first + step * kStep;
      scales_of_a[i] = scale_of_step(p.a, s.a, at[i]);
      scales_of_b[i] = scale_of_step(p.b, s.b, at[i]);
    }
    KnownSteps<A, kAhead> a;
    KnownSteps<B, kAhead> b;
    a.load(p.a, s.a, at, scales_of_a);
    b.load(p.b, s.b, at, scales_of_b);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + i * p.team >= steps) break;
      sum += sum_step<A, B>(a.words[i], a.scale_of(p.a, i), b.words[i], b.scale_of(p.b, i));
    }
  }
  const int64_t rest = s.first + steps * kStep;
  return rest < s.last ? sum + sum_elements<false>(p, nullptr, nullptr, s, rest, lane) : sum;
}

template <int A, int B>
__device__ inline void sum_pairs(const DotParams &p) {
  sum_segments(p, [&](const Segment &s, int lane) { return sum_known_steps<A, B>(p, s, lane); });
}

// --- Vectors of 16 bytes: integers -----------------------------------------------------------

// What a vector has beside its elements if they have no scales.
struct NoScales {
  __device__ static NoScales load(const DotParams &, const Segment &, int64_t, bool) { return {}; }
};

template <unsigned Low, unsigned High>
__device__ inline uint32_t look_up_bytes(uint32_t selector) {
  uint32_t result;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "n"(Low), "n"(High), "r"(selector));
  return result;
}

// Magnitudes of E2M1 in half units, of the codes in the low half of a word without signs.
__device__ inline int half_units(uint32_t codes) {
  return static_cast<int>(look_up_bytes<0x03020100, 0x0C080604>(codes));
}

// sum + twice a times twice b of eight E2M1. Where the signs differ, -b is taken as ~b + 1.
__device__ inline int add_e2m1(int sum, uint32_t a, uint32_t b) {
  const uint32_t signs = a ^ b, even = signs << 4;
  const int low = static_cast<int>(permute<0xD9C8>(even, signs)), high = static_cast<int>(permute<0xFBEA>(even, signs));
  a &= 0x77777777;
  b &= 0x77777777;
  const int low_a = half_units(a), high_a = half_units(a >> 16);
  sum = __dp4a(low_a, half_units(b) ^ low, sum);
  sum = __dp4a(high_a, half_units(b >> 16) ^ high, sum);
  return sum - __dp4a(low_a, low, __dp4a(high_a, high, 0));
}

__device__ inline int add_nibbles(int sum, uint32_t a, uint32_t b) {  // 16 times each signed value
  sum = __dp4a(static_cast<int>(a << 4 & 0xF0F0F0F0), static_cast<int>(b << 4 & 0xF0F0F0F0), sum);
  return __dp4a(static_cast<int>(a & 0xF0F0F0F0), static_cast<int>(b & 0xF0F0F0F0), sum);
}

__device__ inline int add_unsigned_nibbles(int sum, uint32_t a, uint32_t b) {
  const uint32_t even = __dp4a(a & 0x0F0F0F0F, b & 0x0F0F0F0F, static_cast<uint32_t>(sum));
  return static_cast<int>(__dp4a(a >> 4 & 0x0F0F0F0F, b >> 4 & 0x0F0F0F0F, even));
}

// The sum of a thread's share of a segment, at most 256 elements, fits 32 bits. Units are those of the products.
template <int Dtype>
struct IntegerSum {
  using Scales = NoScales;
  static constexpr int kElements = 128 / kTypes[Dtype].bits;
  int sum = 0;

  __device__ void add_word(uint32_t a, uint32_t b) {
    if constexpr (Dtype == DLFP4_float4_e2m1fn) sum = add_e2m1(sum, a, b);
    if constexpr (Dtype == DLFP4_int4) sum = add_nibbles(sum, a, b);
    if constexpr (Dtype == DLFP4_uint4) sum = add_unsigned_nibbles(sum, a, b);
    if constexpr (Dtype == DLFP4_int8) sum = __dp4a(static_cast<int>(a), static_cast<int>(b), sum);
    if constexpr (Dtype == DLFP4_uint8) sum = static_cast<int>(__dp4a(a, b, static_cast<uint32_t>(sum)));
  }

  __device__ void add(uint4 a, uint4 b, NoScales) {
    add_word(a.x, b.x);
    add_word(a.y, b.y);
    add_word(a.z, b.z);
    add_word(a.w, b.w);
  }

  __device__ double total() const {
    constexpr double kUnit = Dtype == DLFP4_float4_e2m1fn ? 0.25 : Dtype == DLFP4_int4 ? 1.0 / 256 : 1.0;
    return sum * kUnit;
  }
};

// --- Vectors of 16 bytes: floats -------------------------------------------------------------

template <int Dtype>
struct FloatSum {
  using Scales = NoScales;
  static constexpr int kElements = 128 / kTypes[Dtype].bits, kInWord = kElements / 4;
  double sum = 0;

  __device__ static void unpack(uint4 vector, float *values) {
    decode_word<Dtype>(vector.x, values);
    decode_word<Dtype>(vector.y, values + kInWord);
    decode_word<Dtype>(vector.z, values + 2 * kInWord);
    decode_word<Dtype>(vector.w, values + 3 * kInWord);
  }

  __device__ void add(uint4 a, uint4 b, NoScales) {
    float of_a[kElements], of_b[kElements];
    unpack(a, of_a);
    unpack(b, of_b);
    if constexpr (kInWord == 1) {  // products of float32 are exact in float64
#pragma unroll
      for (int i = 0; i < 4; ++i) sum += static_cast<double>(of_a[i]) * static_cast<double>(of_b[i]);
    } else {
      sum += sum_floats<kElements, kHoldsProducts<Dtype, Dtype>>(of_a, of_b);
    }
  }

  __device__ double total() const { return sum; }
};

// --- Vectors of 16 bytes: FP4 in blocks ------------------------------------------------------

// The stored scales of a vector's blocks, which lie next to each other in memory.
template <int Blocks>
struct StoredScales {
  uint8_t a[Blocks], b[Blocks];

  __device__ static void load_side(const DotSide &side, int64_t line, int64_t first, uint8_t *scales) {
    const int64_t place = place_of_scale(side, line, first);
#pragma unroll
    for (int i = 0; i < Blocks; ++i) scales[i] = side.scales[place + i];
  }

  __device__ static StoredScales load(const DotParams &p, const Segment &s, int64_t first, bool there) {
    StoredScales scales = {};
    if (!there) return scales;
    load_side(p.a, s.a, first, scales.a);
    load_side(p.b, s.b, first, scales.b);
    return scales;
  }
};

// Blocks of 16: a block's sum times both scales has at most 20 bits.
struct TwoLevelSum {
  using Scales = StoredScales<2>;
  static constexpr int kElements = 32;
  double sum = 0;

  __device__ static float add_block(uint32_t a, uint32_t b, uint32_t next_a, uint32_t next_b, uint8_t scale_a,
                                    uint8_t scale_b) {
    const float scale = decode_fast<DLFP4_TWO_LEVEL>(scale_a, 1.0f) * decode_fast<DLFP4_TWO_LEVEL>(scale_b, 1.0f);
    return static_cast<float>(add_e2m1(add_e2m1(0, a, b), next_a, next_b)) * scale;
  }

  __device__ void add(uint4 a, uint4 b, Scales scales) {
    const float low = add_block(a.x, b.x, a.y, b.y, scales.a[0], scales.b[0]);
    sum += low + add_block(a.z, b.z, a.w, b.w, scales.a[1], scales.b[1]);
  }

  __device__ double total() const { return sum * 0.25; }
};

// Blocks of 16 or 32: the product of two powers of two is one of float64.
template <int Length>
struct PowerSum {
  using Scales = StoredScales<32 / Length>;
  static constexpr int kElements = 32;
  double sum = 0;

  __device__ static double power(uint32_t a, uint32_t b) {
    if (a == 0xFF || b == 0xFF) return static_cast<double>(float_of(kFloatNan));
    return __longlong_as_double(static_cast<long long>(a + b + 1023 - 2 * 127) << 52);
  }

  __device__ void add(uint4 a, uint4 b, Scales scales) {
    const uint32_t of_a[] = {a.x, a.y, a.z, a.w}, of_b[] = {b.x, b.y, b.z, b.w};
#pragma unroll
    for (int block = 0; block < 32 / Length; ++block) {
      int of_block = 0;
#pragma unroll
      for (int i = block * Length / 8; i < (block + 1) * Length / 8; ++i)
        of_block = add_e2m1(of_block, of_a[i], of_b[i]);
      sum += of_block * power(scales.a[block], scales.b[block]);
    }
  }

  __device__ double total() const { return sum * 0.25; }
};

// --- Vectors of 16 bytes: lines --------------------------------------------------------------

// Some vectors ahead; those beyond the segment are zeros.
template <class Sum>
__device__ inline double sum_vectors(const DotParams &p, const Segment &s, int lane) {
  constexpr int kAhead = 4, kElements = Sum::kElements;
  const uint4 *const a = reinterpret_cast<const uint4 *>(bytes_at(p.a, s.a, s.first));
  const uint4 *const b = reinterpret_cast<const uint4 *>(bytes_at(p.b, s.b, s.first));
  const int vectors = static_cast<int>(s.last - s.first) / kElements;
  Sum sum;
  for (int first = lane; first < vectors; first += kAhead * p.team) {
    uint4 of_a[kAhead], of_b[kAhead];
    typename Sum::Scales scales[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int at = first + i * p.team;
      const bool there = at < vectors;
      of_a[i] = there ? a[at] : make_uint4(0, 0, 0, 0);
      of_b[i] = there ? b[at] : make_uint4(0, 0, 0, 0);
      scales[i] = Sum::Scales::load(p, s, s.first + int64_t{at} * kElements, there);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) sum.add(of_a[i], of_b[i], scales[i]);
  }
  const int64_t rest = s.first + int64_t{vectors} * kElements;
  return rest < s.last ? sum.total() + sum_elements<false>(p, nullptr, nullptr, s, rest, lane) : sum.total();
}

template <class Sum>
__device__ inline void sum_lines(const DotParams &p) {
  sum_segments(p, [&](const Segment &s, int lane) { return sum_vectors<Sum>(p, s, lane); });
}

// --- Segments --------------------------------------------------------------------------------

// The sums of a line's segments, in a line of their own.
__device__ inline void add_segments(const DotParams &p) {
  sum_segments(p, [&](const Segment &s, int lane) {
    double sum = 0;
    for (int64_t k = lane; k < p.length; k += p.team) sum += p.parts[s.line * p.length + k];
    return sum;
  });
}

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_CUDA_DOTS_CUH_
