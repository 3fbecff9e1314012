// Largest magnitudes of blocks, their scales and multipliers, for the AVX-512 kernels alone.
// Layout: floats in order; a magnitude, a scale or a multiplier a dword, those of 16 blocks in a vector.
// Trick: sixteen blocks are transposed while they are halved: four steps leave a block's largest magnitude in its
// dword.
#ifndef DLFP4_SRC_BLOCKS_AVX512_SCALES_H_
#define DLFP4_SRC_BLOCKS_AVX512_SCALES_H_

#include "codecs/avx512_encode.h"
#include "codecs/avx512_floats.h"
#include "host/simd/avx512.h"
#include "rules/numerics.h"
#include "rules/scaling.h"

namespace dlfp4 {
namespace {

constexpr int kLanes = 16;  // dwords of a vector

// --- Magnitudes ------------------------------------------------------------------------------

// They are compared as the integers that they are in memory, of 16 or 32 bits: so NaNs and infinities win.
template <int Src>
struct Magnitudes {
  static constexpr int kBytes = kFormats[Src].bits / 8;
  static constexpr int kInVector = 64 / kBytes;

  static __m512i larger(__m512i a, __m512i b) { return kBytes == 4 ? _mm512_max_epu32(a, b) : _mm512_max_epu16(a, b); }

  template <class Share>
  static __m512i load(const uint8_t *src, int64_t offset, Share share) {
    const __m512i floats = load_vector<kBytes>(src, offset, share);
    return _mm512_and_si512(floats, all(kBytes == 4 ? 0x7FFFFFFF : 0x7FFF7FFF));
  }

  // Each dword's largest magnitude as a float32.
  static __m512i widen_largest(__m512i largest) {
    if constexpr (Src == DLFP4_float32) return largest;
    if constexpr (Src == DLFP4_bfloat16)
      return _mm512_and_si512(larger(largest, _mm512_slli_epi32(largest, 16)), all(0xFFFF0000));
    const __m256i words = _mm512_cvtepi32_epi16(larger(largest, _mm512_srli_epi32(largest, 16)));
    return _mm512_castps_si512(restore_payloads(_mm512_cvtph_ps(words), words));
  }
};

// --- Largest magnitudes ----------------------------------------------------------------------

constexpr Constant kLanesTransposed = make_constant([](int i) { return i % 4 ? 0 : i / 4 % 4 * 4 + i / 16; });

// Of pairs of blocks, one in each half of a vector, the largest dword of each block.
template <class Kind>
__m512i join_pairs_of_blocks(const __m512i (&pairs)[8]) {
  __m512i fours[4], eights[2];
  for (int i = 0; i < 4; ++i)
    fours[i] = Kind::larger(_mm512_shuffle_i32x4(pairs[2 * i], pairs[2 * i + 1], 0x88),
                            _mm512_shuffle_i32x4(pairs[2 * i], pairs[2 * i + 1], 0xDD));
  for (int i = 0; i < 2; ++i)
    eights[i] = Kind::larger(_mm512_unpacklo_epi64(fours[2 * i], fours[2 * i + 1]),
                             _mm512_unpackhi_epi64(fours[2 * i], fours[2 * i + 1]));
  const __m512 low = _mm512_castsi512_ps(eights[0]), high = _mm512_castsi512_ps(eights[1]);
  const __m512i sixteen = Kind::larger(_mm512_castps_si512(_mm512_shuffle_ps(low, high, 0x88)),
                                       _mm512_castps_si512(_mm512_shuffle_ps(low, high, 0xDD)));
  return _mm512_permutexvar_epi32(load(kLanesTransposed), sixteen);
}

// A block's magnitudes, the largest of those that share a place in a vector.
template <class Kind, int Block>
__m512i join_vectors(const uint8_t *src) {
  __m512i largest = Kind::load(src, 0, Whole());
  for (int i = 1; i < Block / Kind::kInVector; ++i) largest = Kind::larger(largest, Kind::load(src, 64 * i, Whole()));
  return largest;
}

// Blocks `pair` and `pair` + 1, one in each half.
template <class Kind, int Block>
__m512i load_pair_of_blocks(const uint8_t *src) {
  if constexpr (Block < Kind::kInVector) return Kind::load(src, 0, Whole());
  const __m512i a = join_vectors<Kind, Block>(src), b = join_vectors<Kind, Block>(src + Block * Kind::kBytes);
  return Kind::larger(_mm512_shuffle_i32x4(a, b, 0x44), _mm512_shuffle_i32x4(a, b, 0xEE));
}

template <int Src>
uint32_t largest_of_block(const uint8_t *src, int64_t count) {
  using Kind = Magnitudes<Src>;
  constexpr int kVectors = kCodes / Kind::kInVector;
  __m512i largest[kVectors] = {};
  in_steps(count, [&](int64_t first, auto share) {
    const uint8_t *const from = src + first * Kind::kBytes;
    prefetch<kCodes * Kind::kBytes>(from, share);
    for (int i = 0; i < kVectors; ++i) largest[i] = Kind::larger(largest[i], Kind::load(from, 64 * i, share));
  });
  for (int i = 1; i < kVectors; ++i) largest[0] = Kind::larger(largest[0], largest[i]);
  return _mm512_reduce_max_epu32(Kind::widen_largest(largest[0]));
}

// The largest magnitudes of whole sixteens of blocks; returns how many elements these are.
template <int Src, int Block>
int64_t find_sixteens(const uint8_t *src, int64_t count, uint32_t *amax) {
  using Kind = Magnitudes<Src>;
  constexpr int kBytes = Block * Kind::kBytes;
  int64_t first = 0;
  for (; count - first >= kLanes * Block; first += kLanes * Block, src += kLanes * kBytes, amax += kLanes) {
    __m512i pairs[8];
    for (int i = 0; i < 8; ++i) {
      pairs[i] = load_pair_of_blocks<Kind, Block>(src + 2 * i * kBytes);
    }
    _mm512_storeu_si512(amax, Kind::widen_largest(join_pairs_of_blocks<Kind>(pairs)));
  }
  return first;
}

template <int Src>
void find_largest(const uint8_t *src, int64_t count, int64_t block, uint32_t *amax) {
  int64_t first = 0;
  if (block == 16) first = find_sixteens<Src, 16>(src, count, amax);
  if (block == 32) first = find_sixteens<Src, 32>(src, count, amax);
  if (block == 128) first = find_sixteens<Src, 128>(src, count, amax);
  amax += first / block;
  for (; first < count; first += block, ++amax)
    *amax = largest_of_block<Src>(src + first * Magnitudes<Src>::kBytes, count - first < block ? count - first : block);
}

// --- Largest magnitudes across lines ---------------------------------------------------------

// A step's magnitudes as float32, 16 in each vector.
template <int Src, class Share>
Floats load_magnitudes(const uint8_t *src, Share share) {
  Floats floats = load_floats<Src>(src, share, round_to_odd);
  if (Src == DLFP4_float16 && __builtin_expect(has_nan(floats), 0))
    for (int i = 0; i < 4; ++i)
      floats.part[i] = restore_payloads(floats.part[i], half_of(load_vector<2>(src, 64 * (i / 2), share), i % 2));
  for (int i = 0; i < 4; ++i) floats.part[i] = _mm512_abs_ps(floats.part[i]);
  return floats;
}

template <int Src>
void join_largest(const uint8_t *src, int64_t count, uint32_t *amax) {
  constexpr int kBytes = kFormats[Src].bits / 8;
  in_steps(count, [=](int64_t first, auto share) __attribute__((always_inline)) {
    const Floats magnitudes = load_magnitudes<Src>(src + first * kBytes, share);
    uint8_t *const to = reinterpret_cast<uint8_t *>(amax + first);
    for (int i = 0; i < 4; ++i) {
      const __m512i known = load_vector<4>(to, 64 * i, share);
      store_vector<4>(to, 64 * i, _mm512_max_epu32(known, _mm512_castps_si512(magnitudes.part[i])), share, false);
    }
  });
}

// --- Scales ----------------------------------------------------------------------------------

// Calls step(first, mask) for 16 blocks at a time; the last ones are under a mask.
template <class Step>
__attribute__((always_inline)) inline void in_sixteens(int64_t count, Step step) {
  for (int64_t first = 0; first < count; first += kLanes)
    step(first, static_cast<__mmask16>(first_bytes(count - first)));
}

__mmask16 not_finite(__m512i magnitudes) { return _mm512_cmpge_epu32_mask(magnitudes, all(kFloatInfinity)); }

__m512 finite(__m512 values) { return _mm512_min_ps(values, _mm512_set1_ps(kLargestFloat)); }

// Codes of float8_e4m3fn, one a dword, finite and without a sign: as float16 they are worth 2^-8 times that.
__m512 decode_e4m3_magnitudes(__m512i codes) {
  return _mm512_mul_ps(_mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_slli_epi32(codes, 7))), _mm512_set1_ps(256));
}

void store_low_bytes(uint8_t *dst, __mmask16 kept, __m512i dwords) {
  _mm_mask_storeu_epi8(dst, kept, _mm512_cvtepi32_epi8(dwords));
}

// two_level_block of scaling.h.
bool find_two_level(const ScaleRule &rule, const uint32_t *amax, int64_t count, uint8_t *stored, float *multipliers) {
  const Encoder<8, true, DLFP4_NEAREST_EVEN> encoder(
      kRules<EncodeRule, DLFP4_float8_e4m3fn>.rule[mode_index(DLFP4_NEAREST_EVEN, true)]);
  const __m512 per_magnitude = _mm512_set1_ps(rule.per_magnitude), unit = _mm512_set1_ps(rule.unit),
               one = _mm512_set1_ps(1);
  __mmask16 any = 0;
  in_sixteens(count, [&](int64_t first, __mmask16 kept) {
    const __m512i magnitudes = _mm512_maskz_loadu_epi32(kept, amax + first);
    const __mmask16 special = not_finite(magnitudes);
    const __m512 wanted = finite(_mm512_mul_ps(_mm512_castsi512_ps(magnitudes), per_magnitude));
    const __m512i sign = _mm512_and_si512(_mm512_castps_si512(wanted), all(kFloatSign));
    const __m512i code = _mm512_and_si512(encoder.magnitudes(wanted), all(0x7F));
    const __m512 scale = _mm512_or_ps(decode_e4m3_magnitudes(code), _mm512_castsi512_ps(sign));
    const __m512i signed_code = _mm512_or_si512(code, _mm512_srli_epi32(sign, 24));
    store_low_bytes(stored + first, kept, _mm512_mask_mov_epi32(signed_code, special, all(0x7F)));
    const __m512 multiplier = finite(_mm512_div_ps(one, _mm512_mul_ps(scale, unit)));
    _mm512_mask_storeu_ps(multipliers + first, kept, _mm512_maskz_mov_ps(~special, multiplier));
    any |= special;
  });
  return any;
}

// power_block of scaling.h.
bool find_powers(const ScaleRule &rule, const uint32_t *amax, int64_t count, uint8_t *stored, float *multipliers) {
  const __m512i carry = all(rule.carry), exponent = all(static_cast<uint32_t>(rule.exponent));
  const __m512i zero_scale = all(rule.zero_scale), one = _mm512_castps_si512(_mm512_set1_ps(1));
  __mmask16 any = 0;
  in_sixteens(count, [&](int64_t first, __mmask16 kept) {
    const __m512i magnitudes = _mm512_maskz_loadu_epi32(kept, amax + first);
    const __mmask16 special = not_finite(magnitudes), zero = _mm512_testn_epi32_mask(magnitudes, magnitudes);
    const __m512i power = _mm512_sub_epi32(_mm512_srli_epi32(_mm512_add_epi32(magnitudes, carry), 23), exponent);
    const __m512i code = _mm512_min_epi32(_mm512_max_epi32(power, all(0)), all(254));
    const __m512i bits = _mm512_slli_epi32(_mm512_sub_epi32(all(254), code), 23);
    const __m512i multiplier = _mm512_mask_mov_epi32(_mm512_max_epu32(bits, all(1 << 22)), zero, one);
    const __m512i finite_code = _mm512_mask_mov_epi32(code, zero, zero_scale);
    store_low_bytes(stored + first, kept, _mm512_mask_mov_epi32(finite_code, special, all(0xFF)));
    _mm512_mask_storeu_epi32(multipliers + first, kept, _mm512_maskz_mov_epi32(~special, multiplier));
    any |= special;
  });
  return any;
}

// largest_block of scaling.h.
bool find_float_scales(const ScaleRule &rule, const uint32_t *amax, int64_t count, uint8_t *stored,
                       float *multipliers) {
  const __m512 largest = all_floats(rule.largest), one = _mm512_set1_ps(1);
  const __m512i kept_bits = all(rule.pow2 ? kFloatInfinity : 0xFFFFFFFF), least = all(rule.least);
  __mmask16 any = 0;
  in_sixteens(count, [&](int64_t first, __mmask16 kept) {
    const __m512i magnitudes = _mm512_maskz_loadu_epi32(kept, amax + first);
    const __m512i counted = _mm512_max_epu32(magnitudes, least);
    const __mmask16 usual = _mm512_test_epi32_mask(counted, counted) & ~not_finite(counted);
    const __m512 exact = finite(_mm512_div_ps(largest, _mm512_castsi512_ps(counted)));
    const __m512 rounded = _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(exact), kept_bits));
    const __m512 multiplier = _mm512_mask_mov_ps(one, usual, rounded);
    _mm512_mask_storeu_ps(multipliers + first, kept, multiplier);
    _mm512_mask_storeu_ps(stored + 4 * first, kept, _mm512_div_ps(one, multiplier));
    any |= not_finite(magnitudes);
  });
  return any;
}

// --- Decoding of scales ----------------------------------------------------------------------

__m512i load_bytes_as_dwords(const uint8_t *src, __mmask16 kept) {
  return _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(kept, src));
}

__mmask16 find_not_finite(__m512 floats) { return not_finite(_mm512_castps_si512(_mm512_abs_ps(floats))); }

bool decode_two_level(const uint8_t *stored, int64_t count, float decode, float *scales) {
  const __m512i largest = all(0x7F);
  __mmask16 any = 0;
  in_sixteens(count, [&](int64_t first, __mmask16 kept) {
    const __m512i codes = load_bytes_as_dwords(stored + first, kept), magnitudes = _mm512_and_si512(codes, largest);
    const __mmask16 nan = _mm512_cmpeq_epi32_mask(magnitudes, largest);
    const __m512 usual = decode_e4m3_magnitudes(magnitudes);
    const __m512 sign = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_srli_epi32(codes, 7), 31));
    const __m512 value = _mm512_or_ps(_mm512_mask_mov_ps(usual, nan, all_floats(kFloatNan)), sign);
    const __m512 scale = _mm512_mul_ps(value, _mm512_set1_ps(decode));
    _mm512_mask_storeu_ps(scales + first, kept, scale);
    any |= find_not_finite(scale) & kept;
  });
  return any;
}

bool decode_powers(const uint8_t *stored, int64_t count, float, float *scales) {
  __mmask16 any = 0;
  in_sixteens(count, [&](int64_t first, __mmask16 kept) {
    const __m512i codes = load_bytes_as_dwords(stored + first, kept);
    const __mmask16 nan = _mm512_cmpeq_epi32_mask(codes, all(0xFF));
    const __m512i usual = _mm512_max_epu32(_mm512_slli_epi32(codes, 23), all(1 << 22));
    _mm512_mask_storeu_epi32(scales + first, kept, _mm512_mask_mov_epi32(usual, nan, all(kFloatNan)));
    any |= nan;
  });
  return any;
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_BLOCKS_AVX512_SCALES_H_
