// Between float16, bfloat16, float32 and float64, for the AVX-512 kernels alone.
// Layout: floats in order on both sides, 64 a step.
// Trick: everything is a float32 on the way, exactly; the processor's own treatment of NaNs is put right where it
// counts.
#ifndef DLFP4_SRC_CODECS_AVX512_FLOATS_H_
#define DLFP4_SRC_CODECS_AVX512_FLOATS_H_

#include "host/simd/avx512.h"
#include "host/simd/floats.h"
#include "kernels.h"
#include "rules/encode_rule.h"
#include "rules/numerics.h"

namespace dlfp4 {
namespace {

// --- 64 floats as float32 --------------------------------------------------------------------

__m512i all(uint32_t value) { return _mm512_set1_epi32(static_cast<int>(value)); }

struct Floats {
  __m512 part[4];
};

using U32 = uint32_t __attribute__((vector_size(64)));

U32 dwords(__m512i vector) { return reinterpret_cast<U32>(vector); }
U32 bits_of(__m512 floats) { return reinterpret_cast<U32>(floats); }

// The vector `offset` bytes into a step's floats of `Bytes` each, with zeros beyond a part's.
template <int Bytes>
__m512i load_vector(const uint8_t *src, int64_t offset, Whole) {
  return _mm512_loadu_si512(src + offset);
}

template <int Bytes>
__m512i load_vector(const uint8_t *src, int64_t offset, Part part) {
  const __mmask64 kept = first_bytes(part.count * Bytes - offset);
  return kept ? _mm512_maskz_loadu_epi8(kept, src + offset) : _mm512_setzero_si512();
}

template <int Bytes>
void store_vector(uint8_t *dst, int64_t offset, __m512i vector, Whole, bool streams) {
  store_vector(dst + offset, vector, streams);
}

template <int Bytes>
void store_vector(uint8_t *dst, int64_t offset, __m512i vector, Part part, bool) {
  const __mmask64 kept = first_bytes(part.count * Bytes - offset);
  if (kept) _mm512_mask_storeu_epi8(dst + offset, kept, vector);
}

inline __m512 join(__m256 low, __m256 high) { return _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1); }
__m512i join(__m256i low, __m256i high) { return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1); }

__m256i half_of(__m512i vector, int half) {
  return half ? _mm512_extracti64x4_epi64(vector, 1) : _mm512_castsi512_si256(vector);
}

// Towards zero, then the last bit is set unless that was exact: what rounds this to fewer bits sees what it would see
// in the double.
__m256 round_to_odd(__m512d value) {
  const __m256 rounded = _mm512_cvt_roundpd_ps(value, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
  const __mmask8 inexact = _mm512_cmp_pd_mask(_mm512_cvtps_pd(rounded), value, _CMP_NEQ_UQ);
  const __m256i bits = _mm256_castps_si256(rounded);
  return _mm256_castsi256_ps(_mm256_mask_or_epi32(bits, inexact, bits, _mm256_set1_epi32(1)));
}

__m256 round_to_even(__m512d value) {
  return _mm512_cvt_roundpd_ps(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

__m512 widen_bfloat16(__m256i words) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
}

// A row's 64 floats; of float64, what `round` makes of eight of them.
template <int Src, class Share, class Round>
Floats load_floats(const uint8_t *src, Share share, Round round) {
  constexpr int kBytes = kFormats[Src].bits / 8;
  Floats floats;
  for (int i = 0; i < 4; ++i) {
    const __m512i first = load_vector<kBytes>(src, 16 * kBytes * i & -64, share);
    if constexpr (Src == DLFP4_float64) {
      const __m512i second = load_vector<kBytes>(src, 16 * kBytes * i + 64, share);
      floats.part[i] = join(round(_mm512_castsi512_pd(first)), round(_mm512_castsi512_pd(second)));
    } else if constexpr (Src == DLFP4_float32) {
      floats.part[i] = _mm512_castsi512_ps(first);
    } else {
      const __m256i words = half_of(first, i % 2);
      floats.part[i] = Src == DLFP4_float16 ? _mm512_cvtph_ps(words) : widen_bfloat16(words);
    }
  }
  return floats;
}

template <class Test>
__mmask64 test_floats(const Floats &floats, Test test) {
  __mmask64 result = 0;
  for (int i = 0; i < 4; ++i) result |= static_cast<__mmask64>(test(floats.part[i])) << 16 * i;
  return result;
}

bool has_nan(const Floats &floats) {
  return _mm512_cmp_ps_mask(floats.part[0], floats.part[1], _CMP_UNORD_Q) |
         _mm512_cmp_ps_mask(floats.part[2], floats.part[3], _CMP_UNORD_Q);
}

__mmask16 nans_of(__m512 floats) { return _mm512_cmp_ps_mask(floats, floats, _CMP_UNORD_Q); }

// --- To 16 bits ------------------------------------------------------------------------------

template <int Dst>
U32 round_to_words(__m512 floats) {
  if constexpr (Dst == DLFP4_float16)
    return dwords(_mm512_cvtepu16_epi32(_mm512_cvt_roundps_ph(floats, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)));
  return round_to_bfloat16(bits_of(floats));
}

template <int Src, int Dst>
__m256i narrow(__m512 floats) {
  U32 words = round_to_words<Dst>(floats);
  if (__builtin_expect(nans_of(floats), 0)) words = put_nans<Src, Dst>(words, bits_of(floats));
  return _mm512_cvtepi32_epi16(reinterpret_cast<__m512i>(words));
}

// --- Kernels ---------------------------------------------------------------------------------

__m512 restore_payloads(__m512 floats, __m256i words) {
  return reinterpret_cast<__m512>(restore_payloads(bits_of(floats), dwords(_mm512_cvtepu16_epi32(words))));
}

template <int Dst, class Share>
void store_floats(const Floats &floats, uint8_t *dst, Share share, bool streams) {
  if constexpr (Dst == DLFP4_float32) {
    for (int i = 0; i < 4; ++i) store_vector<4>(dst, 64 * i, _mm512_castps_si512(floats.part[i]), share, streams);
  } else {
    for (int i = 0; i < 8; ++i) {
      const __m256i half = half_of(_mm512_castps_si512(floats.part[i / 2]), i % 2);
      const __m512d wide = _mm512_cvtps_pd(_mm256_castsi256_ps(half));
      store_vector<8>(dst, 64 * i, _mm512_castpd_si512(wide), share, streams);
    }
  }
}

template <int Src, int Dst>
void convert_floats(const uint8_t *src, uint8_t *dst, int64_t count, bool streams) {
  constexpr int kSrcBytes = kFormats[Src].bits / 8, kDstBytes = kFormats[Dst].bits / 8;
  in_steps(count, [=](int64_t first, auto share) {
    const uint8_t *const from = src + first * kSrcBytes;
    uint8_t *const to = dst + first * kDstBytes;
    prefetch<kCodes * kSrcBytes>(from, share);
    Floats floats = load_floats<Src>(
        from, share, [](__m512d x) { return Dst == DLFP4_float32 ? round_to_even(x) : round_to_odd(x); });
    if constexpr (kDstBytes == 2) {
      for (int i = 0; i < 2; ++i)
        store_vector<2>(to, 64 * i,
                        join(narrow<Src, Dst>(floats.part[2 * i]), narrow<Src, Dst>(floats.part[2 * i + 1])), share,
                        streams);
    } else {
      if (Src == DLFP4_float16 && __builtin_expect(has_nan(floats), 0))
        for (int i = 0; i < 4; ++i)
          floats.part[i] = restore_payloads(floats.part[i], half_of(load_vector<2>(from, 64 * (i / 2), share), i % 2));
      store_floats<Dst>(floats, to, share, streams);
    }
  });
}

template <int Src, int Dst>
void float_rows(const uint8_t *src, uint8_t *dst, int64_t count, const Mode &) {
  in_runs<kFormats[Src].bits, kFormats[Dst].bits>(src, dst, count, convert_floats<Src, Dst>);
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_CODECS_AVX512_FLOATS_H_
