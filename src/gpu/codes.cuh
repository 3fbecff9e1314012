// Sixteen elements of a thread: between memory and registers, between floats and codes.
// Layout: neighbours in aligned memory; packed codes in words, the first in the lowest bits.
// Trick: FP4 is rounded by saturating multiplications, 6 and 8 bits by the conversion instructions of sm_89 and later.
#ifndef DLFP4_SRC_GPU_CODES_CUH_
#define DLFP4_SRC_GPU_CODES_CUH_

#include "elements.cuh"

namespace dlfp4 {
namespace cuda {

// --- Signs -----------------------------------------------------------------------------------

template <unsigned Selector>
__device__ inline uint32_t permute(uint32_t a, uint32_t b) {
  uint32_t result;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "n"(Selector));
  return result;
}

// Eight signs in a word of E2M1, from bytes that are all sign: of elements 0, 2, 4, 6, and of the others.
__device__ inline uint32_t place_signs(uint32_t even, uint32_t odd) { return (even & 0x08080808) | (odd & 0x80808080); }

// Bytes of the signs of two words of 16-bit floats: of their low halves, then of the high ones. A selector of 8 and
// more repeats the top bit of its byte.
__device__ inline uint32_t signs_of_halves(uint32_t a, uint32_t b) { return permute<0xFBD9>(a, b); }

// The signs of eight neighbours in four words.
__device__ inline uint32_t signs_of_neighbours(const uint32_t *words) {
  const uint32_t low = signs_of_halves(words[0], words[1]), high = signs_of_halves(words[2], words[3]);
  return place_signs(permute<0x5410>(low, high), permute<0x7632>(low, high));
}

// The signs of eight low halves, and of eight high ones.
__device__ inline void signs_of_columns(const uint32_t *words, uint32_t *low, uint32_t *high) {
  const uint32_t first = place_signs(signs_of_halves(words[0], words[2]), signs_of_halves(words[1], words[3]));
  const uint32_t last = place_signs(signs_of_halves(words[4], words[6]), signs_of_halves(words[5], words[7]));
  *low = permute<0x5410>(first, last);
  *high = permute<0x7632>(first, last);
}

// The signs of eight floats.
__device__ inline uint32_t signs_of_floats(const float *v) {
  const auto of_four = [v](int first) {
    const uint32_t low = permute<0x00FB>(bits_of(v[first]), bits_of(v[first + 2]));
    const uint32_t high = permute<0xFB00>(bits_of(v[first + 4]), bits_of(v[first + 6]));
    return permute<0x7610>(low, high);
  };
  return place_signs(of_four(0), of_four(1));
}

// --- Floats from memory ----------------------------------------------------------------------

__device__ inline float half_to_float(uint16_t half) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
  if (value == value) return value;
  return float_of((half & 0x8000u) << 16 | kFloatNan);  // the instruction drops a NaN's sign
}

template <int Dtype>
__device__ inline void unpack_floats(uint32_t word, float *floats) {
  if constexpr (Dtype == DLFP4_float32) {
    floats[0] = float_of(word);
  } else if constexpr (Dtype == DLFP4_bfloat16) {
    floats[0] = float_of(word << 16);
    floats[1] = float_of(word & 0xFFFF0000);
  } else {
    floats[0] = half_to_float(static_cast<uint16_t>(word));
    floats[1] = half_to_float(static_cast<uint16_t>(word >> 16));
  }
}

template <int Dtype>
constexpr int kFloatBytes = kTypes[Dtype].bits / 8;

template <int Dtype>
constexpr int kFloatVectors = kStep * kFloatBytes<Dtype> / 16;

// A step of floats, and their signs where words of E2M1 have them.
struct FloatStep {
  float values[kStep];
  uint32_t signs[2];
};

template <int Dtype>
__device__ inline FloatStep unpack_step(const uint4 *raw) {
  FloatStep step;
#pragma unroll
  for (int i = 0; i < 4 * kFloatVectors<Dtype>; ++i)
    unpack_floats<Dtype>((&raw[i / 4].x)[i % 4], step.values + i * (4 / kFloatBytes<Dtype>));
#pragma unroll
  for (int i = 0; i < 2; ++i)
    step.signs[i] = kFloatBytes<Dtype> == 4 ? signs_of_floats(step.values + 8 * i) : signs_of_neighbours(&raw[i].x);
  return step;
}

// A step, or zeros.
template <int Dtype>
__device__ inline void load_step(const uint8_t *src, bool there, uint4 *raw) {
#pragma unroll
  for (int i = 0; i < kFloatVectors<Dtype>; ++i)
    raw[i] = there ? reinterpret_cast<const uint4 *>(src)[i] : make_uint4(0, 0, 0, 0);
}

// The larger magnitudes of two halves each, whose signs mean nothing; NaN wins.
template <int Dtype>
__device__ inline uint32_t larger_halves(uint32_t largest, uint32_t word) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ < 860
  return __vmaxu2(largest & 0x7FFF7FFF, word & 0x7FFF7FFF);
#else
  if constexpr (Dtype == DLFP4_bfloat16)
    asm("max.NaN.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(largest) : "r"(largest), "r"(word));
  else
    asm("max.NaN.xorsign.abs.f16x2 %0, %1, %2;" : "=r"(largest) : "r"(largest), "r"(word));
  return largest;
#endif
}

// The bits as float32 of the larger magnitude of two halves.
template <int Dtype>
__device__ inline uint32_t largest_half(uint32_t halves) {
  const uint32_t half = max(halves & 0x7FFF, halves >> 16 & 0x7FFF);
  return Dtype == DLFP4_bfloat16 ? half << 16 : bits_of(half_to_float(static_cast<uint16_t>(half)));
}

// The larger magnitude of two floats; NaN wins.
__device__ inline float larger_float(float largest, float value) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(largest), "f"(fabsf(value)));
  return result;
}

// The bits of the largest magnitude of a step; of a NaN, more than infinity's.
template <int Dtype>
__device__ inline uint32_t largest_of(const uint4 *raw) {
  uint32_t halves = 0;
  float largest = 0;
#pragma unroll
  for (int i = 0; i < 4 * kFloatVectors<Dtype>; ++i) {
    const uint32_t word = (&raw[i / 4].x)[i % 4];
    if constexpr (Dtype == DLFP4_float32)
      largest = larger_float(largest, float_of(word));
    else
      halves = larger_halves<Dtype>(halves, word);
  }
  return Dtype == DLFP4_float32 ? bits_of(largest) : largest_half<Dtype>(halves);
}

__device__ inline bool has_nan(const float *values) {
  bool found = false;
#pragma unroll
  for (int i = 0; i < kStep; ++i) found |= values[i] != values[i];
  return found;
}

// --- Codes to and from memory ----------------------------------------------------------------

template <int Bits>
constexpr int kCodeWords = kStep * Bits / 32;

// The bytes of so many elements, which fill whole bytes.
template <int Bits>
__device__ inline int64_t bytes_of(int64_t elements) {
  return elements * Bits >> 3;
}

// On memory aligned to 16, 4 or 8 bytes for 8, 6 or 4 bits.
template <int Bits>
__device__ inline void store_codes(uint8_t *dst, const uint32_t *words) {
  if constexpr (Bits == 8)
    *reinterpret_cast<uint4 *>(dst) = make_uint4(words[0], words[1], words[2], words[3]);
  else if constexpr (Bits == 4)
    *reinterpret_cast<uint2 *>(dst) = make_uint2(words[0], words[1]);
  else
    for (int i = 0; i < 3; ++i) reinterpret_cast<uint32_t *>(dst)[i] = words[i];
}

template <int Bits>
__device__ inline void load_codes(const uint8_t *src, uint32_t *words) {
  if constexpr (Bits == 8) {
    const uint4 raw = *reinterpret_cast<const uint4 *>(src);
    words[0] = raw.x, words[1] = raw.y, words[2] = raw.z, words[3] = raw.w;
  } else if constexpr (Bits == 4) {
    const uint2 raw = *reinterpret_cast<const uint2 *>(src);
    words[0] = raw.x, words[1] = raw.y;
  } else {
    for (int i = 0; i < 3; ++i) words[i] = reinterpret_cast<const uint32_t *>(src)[i];
  }
}

template <int Bits>
__device__ inline void pack_codes(const uint32_t *codes, uint32_t *words) {
#pragma unroll
  for (int i = 0; i < kCodeWords<Bits>; ++i) words[i] = 0;
#pragma unroll
  for (int i = 0; i < kStep; ++i) {
    const int bit = i * Bits, word = bit / 32, shift = bit % 32;
    words[word] |= codes[i] << shift;
    if (shift + Bits > 32) words[word + 1] |= codes[i] >> (32 - shift) % 32;
  }
}

template <int Bits>
__device__ inline uint32_t code_at(const uint32_t *words, int i) {
  const int bit = i * Bits, word = bit / 32, shift = bit % 32;
  const uint32_t code = shift + Bits > 32 ? __funnelshift_r(words[word], words[word + 1], shift) : words[word] >> shift;
  return code & ((1u << Bits) - 1);
}

// --- Floats to codes, rounded to nearest even ------------------------------------------------

// Any format of at most 8 bits: see encode_rule.h.
__device__ inline uint32_t encode_by_rule(const EncodeParams &p, float value) {
  const uint32_t bits = bits_of(value), magnitude = bits & 0x7FFFFFFF;
  const uint32_t clamped = min(magnitude, p.limit);
  const uint32_t power = max(clamped & 0x7F800000, p.lowest);
  const uint32_t sum = bits_of(float_of(clamped) + float_of(power + p.magic));
  uint32_t code = (sum + (sum >> p.shift)) & 0xFF;
  const uint32_t sign = static_cast<int32_t>(bits) < 0 && !(p.drops_sign_of_zero && code == 0) ? p.sign : 0;
  code |= sign;
  return magnitude > kFloatInfinity ? p.nan ^ (static_cast<int32_t>(bits) < 0 ? p.flip : 0) : code;
}

template <int Bits>
__device__ inline void encode_step_by_rule(const EncodeParams &p, const float *values, uint32_t *words) {
  uint32_t codes[kStep];
#pragma unroll
  for (int i = 0; i < kStep; ++i) codes[i] = encode_by_rule(p, values[i]);
  pack_codes<Bits>(codes, words);
}

// value * factor + addend between 0 and 1; NaN becomes 0.
__device__ inline float saturated(float value, float factor, float addend) {
  float result;
  asm("fma.rn.sat.f32 %0, %1, %2, %3;" : "=f"(result) : "f"(value), "f"(factor), "f"(addend));
  return result;
}

// The bits of a float from which kE2m1Zero is subtracted to get the code of a magnitude y in E2M1: 2y up to 2, growing
// by 1 for each 1 up to 4, for each 2 up to 6. Two saturated parts, each exact, are added to 2^24 - 6, which y == 4
// makes 2^24: the last place is worth 1 below and 2 from there on, so that the second sum rounds as the code wants,
// once, ties to even. y is a value times a power of two, which costs nothing here.
constexpr uint32_t kE2m1Zero = 0x4B800000 - 6;

__device__ inline uint32_t sum_of_e2m1(float value, float power) {
  const float magnitude = fabsf(value);
  const float upto2 = __fmaf_rn(saturated(magnitude, power * 0.5f, 0.0f), 4.0f, 16777210.0f);
  return bits_of(__fmaf_rn(saturated(magnitude, power * 0.25f, -0.5f), 4.0f, upto2));
}

// Eight floats times a power of two as a word of E2M1.
__device__ inline uint32_t word_of_e2m1(const float *v, float power, uint32_t signs) {
  uint32_t sum = sum_of_e2m1(v[7], power);
#pragma unroll
  for (int i = 6; i >= 0; --i) sum = sum * 16 + sum_of_e2m1(v[i], power);
  return sum - kE2m1Zero * 0x11111111 + signs;
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
constexpr bool kConvertsFp8 = true;
#else
constexpr bool kConvertsFp8 = false;
#endif

// The types of 8 bits that instructions convert; others go by the rule, and back by a table.
template <int Dtype>
constexpr bool kHasInstructions = Dtype == DLFP4_float8_e4m3fn || Dtype == DLFP4_float8_e5m2;

// Four floats as bytes of E4M3 or E5M2, saturating; NaN is 0x7F.
template <int Dtype>
__device__ inline uint32_t bytes_of_fp8(const float *v) {
  static_assert(kHasInstructions<Dtype>, "");
  uint16_t low, high;
  if constexpr (Dtype == DLFP4_float8_e4m3fn) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(v[1]), "f"(v[0]));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(v[3]), "f"(v[2]));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(low) : "f"(v[1]), "f"(v[0]));
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(high) : "f"(v[3]), "f"(v[2]));
  }
  return low | static_cast<uint32_t>(high) << 16;
}

// The same for a float that is not negative.
__device__ inline uint32_t byte_of_e4m3(float value) {
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
  return pair;
}

// E2M3 and E3M2 have the significands of E4M3 and E5M2: their codes are those of the value times a power of two, which
// evens out the exponents' biases.
template <int Dtype>
constexpr int kFp8OfFp6 = Dtype == DLFP4_float6_e2m3fn ? DLFP4_float8_e4m3fn : DLFP4_float8_e5m2;
template <int Dtype>
constexpr float kPowerOfFp6 = Dtype == DLFP4_float6_e2m3fn ? 0x1p-6f : 0x1p-12f;

// Bits of `a` under the mask, of `b` elsewhere: one operation. If b is a shifted a, fields of bytes or halves move
// together; the bits between them are not needed.
__device__ inline uint32_t select_bits(uint32_t mask, uint32_t a, uint32_t b) { return (a & mask) | (b & ~mask); }

// Four floats times a power of two as codes in 24 bits. Magnitudes of more than five bits become the largest.
template <int Dtype>
__device__ inline uint32_t codes_of_fp6(const float *v, float power) {
  float moved[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) moved[i] = v[i] * (power * kPowerOfFp6<Dtype>);
  const uint32_t bytes = bytes_of_fp8<kFp8OfFp6<Dtype>>(moved), beyond = (bytes | bytes >> 1) & 0x20202020;
  const uint32_t codes = ((bytes | (beyond - (beyond >> 5))) & 0x1F1F1F1F) | (bytes >> 2 & 0x20202020);
  const uint32_t pairs = select_bits(0x003F003F, codes, codes >> 2);
  return select_bits(0xFFF, pairs, pairs >> 4);
}

// Sixteen floats, none of which is NaN, times a power of two, as codes; those of 8 bits saturate.
template <int Dtype>
__device__ inline void encode_step(const EncodeParams &p, const FloatStep &step, uint32_t *words, float power = 1) {
  constexpr int kBits = kTypes[Dtype].bits;
  const float *const values = step.values;
  if constexpr (kBits == 4) {
    words[0] = word_of_e2m1(values, power, step.signs[0]);
    words[1] = word_of_e2m1(values + 8, power, step.signs[1]);
  } else if constexpr (kBits == 6 && kConvertsFp8) {
    const uint32_t a = codes_of_fp6<Dtype>(values, power), b = codes_of_fp6<Dtype>(values + 4, power);
    const uint32_t c = codes_of_fp6<Dtype>(values + 8, power), d = codes_of_fp6<Dtype>(values + 12, power);
    words[0] = a | b << 24;
    words[1] = b >> 8 | c << 16;
    words[2] = c >> 16 | d << 8;
  } else {
    float scaled[kStep];
#pragma unroll
    for (int i = 0; i < kStep; ++i) scaled[i] = values[i] * power;
    if constexpr (kConvertsFp8 && kHasInstructions<Dtype>) {
#pragma unroll
      for (int i = 0; i < 4; ++i) words[i] = bytes_of_fp8<Dtype>(scaled + 4 * i);
    } else {
      encode_step_by_rule<kBits>(p, scaled, words);
    }
  }
}

// --- Codes to floats -------------------------------------------------------------------------

// The values of all codes, for types that are decoded by a table. The oracle decodes 8 bits. Shorter types have no
// specials: a magnitude shifted to its place lacks nothing but the difference of the biases.
template <int Dtype>
__device__ inline void fill_values(float *table) {
  constexpr ElementType kFormat = kTypes[Dtype];
  constexpr int kSign = 1 << (kFormat.bits - 1);
  for (int code = threadIdx.x; code < 1 << kFormat.bits; code += blockDim.x) {
    const float magnitude = float_of((code & (kSign - 1)) << (23 - kFormat.mantissa));
    const float value = magnitude * float_of((254 - kFormat.bias) << 23);
    table[code] = kFormat.bits == 8 ? to_float(code, type_of<Dtype>()) : code & kSign ? -value : value;
  }
  __syncthreads();
}

// Two bytes of E4M3 or E5M2 as floats, by the instructions of sm_89.
template <int Dtype>
__device__ inline void floats_of_fp8(uint32_t pair, float *values) {
  static_assert(kHasInstructions<Dtype>, "");
  uint32_t halves;
  if constexpr (Dtype == DLFP4_float8_e4m3fn)
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(pair)));
  else
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(pair)));
  asm("{ .reg .f16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
      : "=f"(values[0]), "=f"(values[1])
      : "r"(halves));
}

// Eight codes of E2M1 as floats in units of 2^126: a magnitude's three bits are the float's from bit 22 on, which is
// where codes 4 apart are moved together, as halves.
__device__ inline void floats_of_e2m1(uint32_t word, float *values) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t sign = word << (12 - 4 * i), magnitude = i < 2 ? word << (6 - 4 * i) : word >> (4 * i - 6);
    const uint32_t halves = (sign & 0x80008000) | (magnitude & 0x01C001C0);
    values[i] = float_of(halves << 16);
    values[i + 4] = float_of(halves & 0xFFFF0000);
  }
}

// Four codes of E2M3 or E3M2, in 24 bits, as floats in units of 1 / kPowerOfFp6.
template <int Dtype>
__device__ inline void floats_of_fp6(uint32_t codes, float *values) {
  const uint32_t halves = select_bits(0xFFF, codes, codes << 4), bytes = select_bits(0x003F003F, halves, halves << 2);
  const uint32_t moved = (bytes & 0x1F1F1F1F) | (bytes << 2 & 0x80808080);
  floats_of_fp8<kFp8OfFp6<Dtype>>(moved, values);
  floats_of_fp8<kFp8OfFp6<Dtype>>(moved >> 16, values + 2);
}

// What the codes of a step are worth, in units of kUnit: by a table, or by instructions.
template <int Dtype>
struct Values {
  static constexpr int kBits = kTypes[Dtype].bits;
  static constexpr bool kByTable = kBits > 4 && !(kConvertsFp8 && (kBits == 6 || kHasInstructions<Dtype>));
  static constexpr float kUnit = kBits == 4 ? 0x1p126f : kBits == 6 && kConvertsFp8 ? 1 / kPowerOfFp6<Dtype> : 1;
  float table[kByTable ? 1 << kBits : 1];

  __device__ void fill() {
    if constexpr (kByTable) fill_values<Dtype>(table);
  }

  __device__ void decode(const uint32_t *words, float *values) const {
    if constexpr (kByTable) {
#pragma unroll
      for (int i = 0; i < kStep; ++i) values[i] = table[code_at<kBits>(words, i)];
    } else if constexpr (kBits == 4) {
      floats_of_e2m1(words[0], values);
      floats_of_e2m1(words[1], values + 8);
    } else if constexpr (kBits == 6) {
      floats_of_fp6<Dtype>(words[0], values);
      floats_of_fp6<Dtype>(__funnelshift_r(words[0], words[1], 24), values + 4);
      floats_of_fp6<Dtype>(__funnelshift_r(words[1], words[2], 16), values + 8);
      floats_of_fp6<Dtype>(words[2] >> 8, values + 12);
    } else {
#pragma unroll
      for (int i = 0; i < kStep; i += 2) floats_of_fp8<Dtype>(words[i / 4] >> i % 4 * 8, values + i);
    }
  }

  // As the oracle does: a NaN keeps its sign.
  __device__ static float decode_by_rule(const uint32_t *words, int i) {
    return to_float(code_at<kBits>(words, i), type_of<Dtype>());
  }
};

// Whether a step has a code that is not finite: adding 1 to E4M3's only NaN, or 4 to E5M2's, carries into the top bit.
// Where -0 is the one NaN, no bit below the top one is set, and taking 1 borrows.
template <int Dtype>
__device__ inline bool has_special(const uint32_t *words) {
  constexpr ElementType kFormat = kTypes[Dtype];
  if constexpr (kFormat.bits < 8) return false;
  constexpr bool kIsZero = kFormat.specials == DLFP4_FNUZ;
  constexpr uint32_t kCarry = 0x01010101u << (kFormat.specials == DLFP4_IEEE ? kFormat.mantissa : 0);
  uint32_t carried = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    carried |=
        kIsZero ? ((words[i] | 0x80808080) - 0x01010101 ^ 0x80808080) & words[i] : (words[i] & 0x7F7F7F7F) + kCarry;
  return carried & 0x80808080;
}

// A float as the target's code. NaN is rare, and takes the oracle's way.
template <int Dst>
__device__ inline uint32_t narrow(float value) {
  const uint32_t bits = bits_of(value);
  if constexpr (Dst == DLFP4_float32) return bits;
  if (value != value)
    return static_cast<uint32_t>(from_float(value, type_of<Dst>(), {DLFP4_NEAREST_EVEN, true}, {0, 0, 0}));
  if constexpr (Dst == DLFP4_bfloat16) return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
  uint16_t half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
  return half;
}

// Two floats, neither of which is NaN, in a word.
template <int Dst>
__device__ inline uint32_t narrow_pair(float low, float high) {
  uint32_t word;
  if constexpr (Dst == DLFP4_bfloat16)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

// Sixteen floats in words of the target; `has_nan` where one of them may be NaN.
template <int Dst>
__device__ inline void narrow_step(const float *values, bool has_nan, uint32_t *words) {
  if constexpr (kFloatBytes<Dst> == 4) {
#pragma unroll
    for (int i = 0; i < kStep; ++i) words[i] = bits_of(values[i]);
  } else if (has_nan) {
    for (int i = 0; i < kStep; i += 2) words[i / 2] = narrow<Dst>(values[i]) | narrow<Dst>(values[i + 1]) << 16;
  } else {
#pragma unroll
    for (int i = 0; i < kStep; i += 2) words[i / 2] = narrow_pair<Dst>(values[i], values[i + 1]);
  }
}

template <int Words>
__device__ inline void load_vectors(const uint8_t *src, uint32_t *words) {
#pragma unroll
  for (int i = 0; i < Words; i += 4) {
    const uint4 vector = reinterpret_cast<const uint4 *>(src)[i / 4];
    words[i] = vector.x, words[i + 1] = vector.y, words[i + 2] = vector.z, words[i + 3] = vector.w;
  }
}

template <int Words>
__device__ inline void store_vectors(uint8_t *dst, const uint32_t *words) {
#pragma unroll
  for (int i = 0; i < Words; i += 4)
    reinterpret_cast<uint4 *>(dst)[i / 4] = make_uint4(words[i], words[i + 1], words[i + 2], words[i + 3]);
}

// The same by a whole warp, so that neighbouring lanes write neighbouring memory. Chunks of 16 bytes change lanes
// through shared memory, swizzled against bank conflicts. `dst` is null in lanes that have nothing to store.
template <int Words>
struct WarpStore {
  static constexpr int kChunks = Words / 4;
  uint4 chunks[32 * kChunks];

  __device__ static int place(int lane, int chunk) { return lane * kChunks + (chunk ^ lane / (8 / kChunks) % kChunks); }

  __device__ void store(uint8_t *dst, const uint32_t *words) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kChunks; ++i)
      chunks[place(lane, i)] = make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int number = i * 32 + lane, from = number / kChunks, chunk = number % kChunks;
      const unsigned long long to = __shfl_sync(kAllLanes, reinterpret_cast<unsigned long long>(dst), from);
      if (to != 0) reinterpret_cast<uint4 *>(to)[chunk] = chunks[place(from, chunk)];
    }
    __syncwarp();
  }
};

// A block's shared memory for it.
template <int Words>
__device__ inline WarpStore<Words> &warp_store() {
  __shared__ WarpStore<Words> of_warp[kThreads / 32];
  return of_warp[threadIdx.x / 32];
}

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_GPU_CODES_CUH_
