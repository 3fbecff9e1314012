// Conversions on the device: any two formats by the oracle's rules, and fast runs to and from at most 8 bits.
// Layout: any strides for the one, contiguous runs on aligned memory for the others.
// Trick: the fast encoder adds a power of two chosen by the exponent (see encode_rule.h); the fast decoder reads a
// table that the block makes of numerics.h.
#ifndef DLFP4_SRC_CUDA_CONVERT_CUH_
#define DLFP4_SRC_CUDA_CONVERT_CUH_

#include "elements.cuh"

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
  store_bytes(p.dst.data + first * p.dst.bits / 8, word, (count * p.dst.bits + 7) / 8);
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
  store_bytes(p.dst.data + to * p.dst.bits / 8, word, (count * p.dst.bits + 7) / 8);
}

__device__ inline void convert_groups(const ConvertParams &p) {
  const int64_t number = global_thread();
  if (number >= p.groups) return;
  if (p.compact)
    convert_compact_group(p, number);
  else
    convert_group(p, number);
}

// --- Runs of floats to codes -----------------------------------------------------------------

constexpr int kStep = 16;  // elements a thread

__device__ inline float half_to_float(uint16_t half) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
  if (value == value) return value;
  return float_of((half & 0x8000u) << 16 | 0x7FC00000);  // the instruction drops a NaN's sign
}

// Sixteen floats of a type, as neighbours.
template <int Row>
__device__ inline void load_floats(const uint8_t *src, float *floats) {
  constexpr int kBytes = kFormats[Row].bits / 8, kVectors = kStep * kBytes / 16;
  uint4 raw[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) raw[i] = reinterpret_cast<const uint4 *>(src)[i];
#pragma unroll
  for (int i = 0; i < 4 * kVectors; ++i) {
    const uint32_t word = (&raw[i / 4].x)[i % 4];
    if constexpr (Row == DLFP4_float32) {
      floats[i] = float_of(word);
    } else if constexpr (Row == DLFP4_bfloat16) {
      floats[2 * i] = float_of(word << 16);
      floats[2 * i + 1] = float_of(word & 0xFFFF0000);
    } else {
      floats[2 * i] = half_to_float(static_cast<uint16_t>(word));
      floats[2 * i + 1] = half_to_float(static_cast<uint16_t>(word >> 16));
    }
  }
}

__device__ inline uint32_t encode_fast(const EncodeParams &p, float value) {
  const uint32_t bits = bits_of(value), magnitude = bits & 0x7FFFFFFF;
  const uint32_t clamped = min(magnitude, p.limit);
  const uint32_t power = max(clamped & 0x7F800000, p.lowest);
  const uint32_t sum = bits_of(float_of(clamped) + float_of(power + p.magic));
  uint32_t code = (sum + (sum >> p.shift)) & 0xFF;
  const uint32_t sign = static_cast<int32_t>(bits) < 0 && !(p.drops_sign_of_zero && code == 0) ? p.sign : 0;
  code |= sign;
  return magnitude > kNotFinite ? p.nan ^ (static_cast<int32_t>(bits) < 0 ? p.flip : 0) : code;
}

// Sixteen codes, packed and stored as whole words.
template <int Bits>
__device__ inline void store_codes(uint8_t *dst, const uint32_t *codes) {
  uint32_t words[kStep * Bits / 32] = {};
#pragma unroll
  for (int i = 0; i < kStep; ++i) {
    const int bit = i * Bits, word = bit / 32, shift = bit % 32;
    words[word] |= codes[i] << shift;
    if (shift + Bits > 32) words[word + 1] |= codes[i] >> (32 - shift);
  }
  if constexpr (Bits == 8)
    *reinterpret_cast<uint4 *>(dst) = make_uint4(words[0], words[1], words[2], words[3]);
  else if constexpr (Bits == 4)
    *reinterpret_cast<uint2 *>(dst) = make_uint2(words[0], words[1]);
  else
    for (int i = 0; i < 3; ++i) reinterpret_cast<uint32_t *>(dst)[i] = words[i];
}

template <int Src, int Bits>
__device__ inline void encode_run(const EncodeParams &p) {
  const int64_t step = global_thread();
  if (step >= p.steps) return;
  float floats[kStep];
  uint32_t codes[kStep];
  load_floats<Src>(p.src + step * kStep * (kFormats[Src].bits / 8), floats);
#pragma unroll
  for (int i = 0; i < kStep; ++i) codes[i] = encode_fast(p, floats[i]);
  store_codes<Bits>(p.dst + step * kStep * Bits / 8, codes);
}

// --- Runs of codes ---------------------------------------------------------------------------

template <int Bits>
__device__ inline void load_codes(const uint8_t *src, uint32_t *codes) {
  constexpr int kWords = kStep * Bits / 32;
  uint32_t words[kWords + 1];
  if constexpr (Bits == 8) {
    const uint4 raw = *reinterpret_cast<const uint4 *>(src);
    words[0] = raw.x, words[1] = raw.y, words[2] = raw.z, words[3] = raw.w;
  } else if constexpr (Bits == 4) {
    const uint2 raw = *reinterpret_cast<const uint2 *>(src);
    words[0] = raw.x, words[1] = raw.y;
  } else {
    for (int i = 0; i < kWords; ++i) words[i] = reinterpret_cast<const uint32_t *>(src)[i];
  }
  words[kWords] = 0;
#pragma unroll
  for (int i = 0; i < kStep; ++i) {
    const int bit = i * Bits, word = bit / 32;
    codes[i] = __funnelshift_r(words[word], words[word + 1], bit % 32) & ((1u << Bits) - 1);
  }
}

// Sixteen results of 1, 2 or 4 bytes.
template <int Bytes>
__device__ inline void store_words(uint8_t *dst, const uint32_t *values) {
  if constexpr (Bytes == 1) {
    store_codes<8>(dst, values);
  } else {
#pragma unroll
    for (int i = 0; i < Bytes; ++i) {
      uint32_t words[4];
#pragma unroll
      for (int k = 0; k < 4; ++k)
        words[k] = Bytes == 4 ? values[4 * i + k] : values[8 * i + 2 * k] | values[8 * i + 2 * k + 1] << 16;
      reinterpret_cast<uint4 *>(dst)[i] = make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
}

// What each code becomes. Padded codes have bits above the format's, which do not count.
template <class Item>
__device__ inline void fill_table(const DecodeParams &p, Item *table) {
  for (int code = threadIdx.x; code < 256; code += kThreads)
    table[code] = static_cast<Item>(convert(p.from, p.to, static_cast<uint64_t>(code), p.round, {0, 0, 0}));
  __syncthreads();
}

// Steps are taken until there are none, so that a block's table serves many.
template <int SrcBits, int Bytes, int DstBits>
__device__ inline void decode_run(const DecodeParams &p) {
  __shared__ uint32_t table[256];
  fill_table(p, table);
  for (int64_t step = global_thread(); step < p.steps; step += int64_t{gridDim.x} * kThreads) {
    uint32_t codes[kStep];
    load_codes<SrcBits>(p.src + step * kStep * SrcBits / 8, codes);
#pragma unroll
    for (int i = 0; i < kStep; ++i) codes[i] = table[codes[i]];
    if constexpr (Bytes > 1)
      store_words<Bytes>(p.dst + step * kStep * Bytes, codes);
    else
      store_codes<DstBits>(p.dst + step * kStep * DstBits / 8, codes);
  }
}

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_CUDA_CONVERT_CUH_
