// Conversions on the device: any two formats by the oracle's rules; and fast ones to and from at most 8 bits, between
// floats, and of elements that are moved.
// Layout: any strides for the one, the layouts of steps.cuh for the others.
// Trick: a thread has a whole step of codes.cuh; codes without an instruction of their own are looked up in a table
// that the block makes of numerics.h.
#ifndef DLFP4_SRC_CODECS_CUDA_CONVERT_CUH_
#define DLFP4_SRC_CODECS_CUDA_CONVERT_CUH_

#include "steps.cuh"

namespace dlfp4 {
namespace cuda {

// --- Anything --------------------------------------------------------------------------------

__device__ inline int64_t offset_of(const ConvertParams &p, const Place &place, int64_t row) {
  int64_t offset = 0;
  for (int dim = p.ndim - 2; dim >= 0; --dim) {
    offset += row % p.extent[dim] * place.stride[dim];
    row /= p.extent[dim];
  }
  return offset;
}

__device__ inline uint64_t converted(const ConvertParams &p, uint64_t code, uint64_t index) {
  if (p.copies) return code;
  const Draw draw = p.round.rounding == DLFP4_STOCHASTIC ? draw_of(p.seed, index) : Draw{0, 0, 0};
  return encode(p.dst.format, decode(p.src.format, code), static_cast<NanRule>(p.kind), p.round, draw);
}

// A group's codes, from an element on. Spare bits of a byte that it does not fill become zero or stay.
__device__ inline void store_group(const ConvertParams &p, int64_t first, uint64_t word, int count) {
  const int whole = count * p.dst.bits / 8, filled = count * p.dst.bits % 8;
  uint8_t *to = p.dst.data + first * p.dst.bits / 8;
  if (p.shares && filled != 0) word |= static_cast<uint64_t>(to[whole] >> filled << filled) << 8 * whole;
  store_bytes(to, word, whole + (filled != 0));
}

__device__ inline void convert_compact_group(const ConvertParams &p, int64_t number) {
  const int64_t first = number * p.group, last = p.extent[p.ndim - 1], rest = p.size - first;
  const int count = static_cast<int>(rest < p.group ? rest : p.group);
  uint64_t word = 0;
  for (int i = 0; i < count; ++i) {
    const int64_t row = (first + i) / last, column = (first + i) % last;
    const int64_t from = offset_of(p, p.src, row) + column * p.src.stride[p.ndim - 1];
    const uint64_t code = load_code(p.src.data, from, p.src.bits, p.src.format);
    word |= converted(p, code, p.first + static_cast<uint64_t>(first + i)) << (i * p.dst.bits);
  }
  store_group(p, first, word, count);
}

__device__ inline void convert_group(const ConvertParams &p, int64_t number) {
  const int64_t row = number / p.groups_in_row, column = number % p.groups_in_row * p.group;
  const int64_t last = p.extent[p.ndim - 1], rest = last - column;
  const int count = static_cast<int>(rest < p.group ? rest : p.group);
  const int64_t from = offset_of(p, p.src, row) + column * p.src.stride[p.ndim - 1];
  const int64_t to = offset_of(p, p.dst, row) + column * p.dst.stride[p.ndim - 1];
  const uint64_t index = p.first + static_cast<uint64_t>(row * last + column);
  uint64_t word = 0;
  for (int i = 0; i < count; ++i) {
    const uint64_t code = load_code(p.src.data, from + i * p.src.stride[p.ndim - 1], p.src.bits, p.src.format);
    word |= converted(p, code, index + static_cast<uint64_t>(i)) << (i * p.dst.bits);
  }
  store_group(p, to, word, count);
}

__device__ inline void convert_groups(const ConvertParams &p) {
  const int64_t number = global_thread();
  if (number >= p.groups) return;
  if (p.compact)
    convert_compact_group(p, number);
  else
    convert_group(p, number);
}

// --- Steps -----------------------------------------------------------------------------------

// The largest number of both types, as a float's bits.
template <int From, int To>
constexpr uint32_t kLargest = From == DLFP4_float16 || To == DLFP4_float16 ? 0x477FE000 : 0x7F7F0000;

// A copy, for `words` would otherwise lie in memory for the other steps as well.
template <int From, int To, int Words>
__device__ inline void convert_step_by_rule(const DecodeParams &p, const uint8_t *src, int64_t stride,
                                            uint32_t (&words)[Words]) {
  uint32_t found[Words] = {};
#pragma unroll 1
  for (int i = 0; i < kStep; ++i) {
    const uint64_t code = load_element<kTypes[From].bits>(src + i * stride);
    const auto to = static_cast<uint32_t>(convert(type_of<From>(), type_of<To>(), code, p.round, {0, 0, 0}));
    found[i * kFloatBytes<To> / 4] |= to << i * kFloatBytes<To> % 4 * 8;
  }
#pragma unroll
  for (int i = 0; i < Words; ++i) words[i] = found[i];
}

// A step of floats, or zeros.
template <int Layout, int Dtype>
__device__ inline FloatStep load_floats(const Steps &steps, const uint8_t *src, bool there) {
  uint4 raw[kFloatVectors<Dtype>];
  load_elements<Layout, kTypes[Dtype].bits>(steps, src, there, &raw->x);
  return unpack_step<Dtype>(raw);
}

// Floats to codes, nearest even. `Dtype` is the destination where encode_step knows it, or kAnyDtype.
constexpr int kAnyDtype = -1;

template <int Layout, int Src, int Bits, int Dtype>
__device__ inline void encode_steps(const EncodeStepsParams &p) {
  const int64_t number = global_thread();
  if (number >= p.steps.count) return;
  uint32_t words[kCodeWords<Bits>];
  const StepPlace at = place_of<Layout, kTypes[Src].bits, Bits>(p.steps, number);
  const FloatStep floats = load_floats<Layout, Src>(p.steps, at.src, true);
  if constexpr (Dtype == kAnyDtype) {
    encode_step_by_rule<Bits>(p.encode, floats.values, words);
  } else {
    if (has_nan(floats.values))
      encode_step_by_rule<Bits>(p.encode, floats.values, words);
    else
      encode_step<Dtype>(p.encode, floats, words);
  }
  store_elements<Layout, Bits>(p.steps, at.dst, words);
}

// Floats to floats, nearest even where they are rounded. NaN, and what lies beyond the target's numbers, which may
// saturate, go by the oracle with the whole step.
template <int Layout, int From, int To>
__device__ inline void convert_floats(const DecodeParams &p) {
  constexpr int kSrcBits = kTypes[From].bits, kDstBits = kTypes[To].bits;
  const int64_t number = global_thread();
  const bool there = number < p.steps.count;
  const StepPlace at = place_of<Layout, kSrcBits, kDstBits>(p.steps, number);
  const FloatStep floats = load_floats<Layout, From>(p.steps, at.src, there);
  bool special = false;
#pragma unroll
  for (float value : floats.values) special |= !(fabsf(value) <= float_of(kLargest<From, To>));
  uint32_t words[kCodeWords<kDstBits>];
  if (special)
    convert_step_by_rule<From, To>(p, at.src, Layout == kRun ? kSrcBits / 8 : p.steps.from.of_element, words);
  else
    narrow_step<To>(floats.values, false, words);
  store_elements<Layout, kDstBits>(p.steps, there ? at.dst : nullptr, words);
}

// Elements as they are.
template <int Bits>
__device__ inline void move_steps(const Steps &steps) {
  const int64_t number = global_thread();
  const bool there = number < steps.count;
  const StepPlace at = place_of<kStrided, Bits, Bits>(steps, number);
  uint32_t words[kCodeWords<Bits>];
  load_elements<kStrided, Bits>(steps, at.src, there, words);
  store_elements<kStrided, Bits>(steps, there ? at.dst : nullptr, words);
}

// What each code becomes. Bits above the format's, in padded codes, are ignored.
__device__ inline void fill_table(const DecodeParams &p, uint32_t *table) {
  for (int i = threadIdx.x; i < 256; i += kThreads) {
    const uint64_t code = i & low_bits(p.from.bits);
    table[i] = static_cast<uint32_t>(p.copies ? code : convert(p.from, p.to, code, p.round, {0, 0, 0}));
  }
  __syncthreads();
}

template <int Layout, int SrcBits, int DstBits>
__device__ inline void decode_codes(const Steps &steps, const uint32_t *table, const uint32_t *codes, uint8_t *dst) {
  uint32_t values[kStep], words[kCodeWords<DstBits>];
#pragma unroll
  for (int i = 0; i < kStep; ++i) values[i] = table[code_at<SrcBits>(codes, i)];
  pack_codes<DstBits>(values, words);
  store_elements<Layout, DstBits>(steps, dst, words);
}

// Codes to floats, or to other codes. Threads walk, so that a block's table serves many steps, and load some ahead.
template <int Layout, int SrcBits, int DstBits>
__device__ inline void decode_steps(const DecodeParams &p) {
  constexpr int kAhead = 4;
  __shared__ uint32_t table[256];
  fill_table(p, table);
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t number = global_thread(); number - threadIdx.x % 32 < p.steps.count; number += kAhead * stride) {
    uint32_t codes[kAhead][kCodeWords<SrcBits>];
    uint8_t *dst[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const bool there = number + i * stride < p.steps.count;
      const StepPlace at = place_of<Layout, SrcBits, DstBits>(p.steps, number + i * stride);
      load_elements<Layout, SrcBits>(p.steps, at.src, there, codes[i]);
      dst[i] = there ? at.dst : nullptr;
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (number + i * stride - threadIdx.x % 32 >= p.steps.count) break;
      decode_codes<Layout, SrcBits, DstBits>(p.steps, table, codes[i], dst[i]);
    }
  }
}

// Codes of the formats that codes.cuh decodes to floats that hold them; specials go by the oracle. `p.of_thread` steps,
// one or two, lie a block of threads apart.
template <int Layout, int Dtype, int Dst>
__device__ inline void decode_values(const DecodeParams &p) {
  constexpr int kBits = kTypes[Dtype].bits, kDstBits = kTypes[Dst].bits;
  __shared__ Values<Dtype> table;
  const int64_t number = int64_t{blockIdx.x} * p.of_thread * kThreads + threadIdx.x;
  uint32_t codes[2][kCodeWords<kBits>];
  uint8_t *dst[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (i >= p.of_thread) break;
    const bool there = number + i * kThreads < p.steps.count;
    const StepPlace at = place_of<Layout, kBits, kDstBits>(p.steps, number + i * kThreads);
    load_elements<Layout, kBits>(p.steps, at.src, there, codes[i]);
    dst[i] = there ? at.dst : nullptr;
  }
  const int64_t later = (int64_t{blockIdx.x} + kBlocksAhead) * kThreads * p.of_thread + threadIdx.x * p.of_thread;
  if (Layout == kRun && later < p.steps.count) prefetch(place_of<Layout, kBits, kDstBits>(p.steps, later).src);
  table.fill();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (i >= p.of_thread) break;
    float values[kStep];
    uint32_t words[kCodeWords<kDstBits>];
    table.decode(codes[i], values);
#pragma unroll
    for (int k = 0; k < kStep; ++k) values[k] *= Values<Dtype>::kUnit;
    const bool special = has_special<Dtype>(codes[i]);
    if (special)
      for (int k = 0; k < kStep; ++k) values[k] = Values<Dtype>::decode_by_rule(codes[i], k);
    narrow_step<Dst>(values, special, words);
    store_elements<Layout, kDstBits>(p.steps, dst[i], words);
  }
}

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_CODECS_CUDA_CONVERT_CUH_
