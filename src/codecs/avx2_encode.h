// Floats to codes of at most 8 bits, for the AVX2 kernels alone.
// Layout: floats in order, 32 a step; codes packed or one a byte.
// Trick: adding a power of two rounds a float; of FP4 the highest bits, floor and ceiling added up, decide.
#ifndef DLFP4_SRC_CODECS_AVX2_ENCODE_H_
#define DLFP4_SRC_CODECS_AVX2_ENCODE_H_

#include "host/simd/avx2.h"
#include "host/simd/floats.h"

namespace dlfp4 {
namespace {

// Eight floats of a vector of doubles and the next one.
__m256 narrow_doubles(__m256d low, __m256d high) {
  return _mm256_set_m128(_mm256_cvtpd_ps(high), _mm256_cvtpd_ps(low));
}

// Eight masks of dwords of those of qwords.
__m256i narrow_masks(__m256d low, __m256d high) {
  constexpr int kEvenDwords = 0x88;
  const __m256 masks = _mm256_shuffle_ps(_mm256_castpd_ps(low), _mm256_castpd_ps(high), kEvenDwords);
  return outer_quarters_first(_mm256_castps_si256(masks));
}

// Rounds a double to odd: of the two floats next to it, takes the one whose last bit is set. Rounding that to fewer
// bits gives the same as rounding the double. The nearest float is already that one, or the other float is on the
// double's side of it.
__m256 round_to_odd(__m256d low, __m256d high) {
  const __m256 nearest = narrow_doubles(low, high);
  const __m256d nearest_low = _mm256_cvtps_pd(_mm256_castps256_ps128(nearest));
  const __m256d nearest_high = _mm256_cvtps_pd(_mm256_extractf128_ps(nearest, 1));
  const auto is_above = [](__m256d a, __m256d b) DLFP4_ALWAYS_INLINE {
    const __m256d sign = _mm256_set1_pd(-0.0);
    return _mm256_cmp_pd(_mm256_andnot_pd(sign, a), _mm256_andnot_pd(sign, b), _CMP_GT_OQ);
  };
  const __m256i inexact =
      narrow_masks(_mm256_cmp_pd(nearest_low, low, _CMP_NEQ_UQ), _mm256_cmp_pd(nearest_high, high, _CMP_NEQ_UQ));
  const __m256i above = narrow_masks(is_above(nearest_low, low), is_above(nearest_high, high));
  const __m256i to_other = _mm256_sub_epi32(_mm256_add_epi32(above, above), inexact);  // -1, 1, or 0 where it is exact
  const __m256i bits = _mm256_castps_si256(nearest), is_even = _mm256_sub_epi32(_mm256_and_si256(bits, all(1)), all(1));
  return _mm256_castsi256_ps(_mm256_add_epi32(bits, _mm256_and_si256(to_other, is_even)));
}

// bfloat16 and float16 widen exactly; float64 is rounded to nearest, or to odd.
template <int Src, bool kToOdd = true>
Floats load_floats(const uint8_t *src) {
  Floats floats;
  for (int i = 0; i < 4; ++i) {
    if constexpr (Src == DLFP4_float64) {
      const __m256d low = _mm256_castsi256_pd(load_32_bytes(src + 64 * i));
      const __m256d high = _mm256_castsi256_pd(load_32_bytes(src + 64 * i + 32));
      floats.part[i] = kToOdd ? round_to_odd(low, high) : narrow_doubles(low, high);
    } else if constexpr (Src == DLFP4_float32) {
      floats.part[i] = _mm256_castsi256_ps(load_32_bytes(src + 32 * i));
    } else if constexpr (Src == DLFP4_float16) {
      floats.part[i] = _mm256_cvtph_ps(load_16_bytes(src + 16 * i));
    } else {
      floats.part[i] = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_16_bytes(src + 16 * i)), 16));
    }
  }
  return floats;
}

// Dwords to bytes; each half of the result has its half of every operand. Saturation keeps signs and masks as they are.
__m256i narrow_signs(__m256i a, __m256i b, __m256i c, __m256i d) {
  return _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
}

inline __m256i narrow_lowest_bytes(__m256i a, __m256i b, __m256i c, __m256i d) {
  const __m256i byte = all(0xFF);
  const __m256i low = _mm256_packus_epi32(_mm256_and_si256(a, byte), _mm256_and_si256(b, byte));
  const __m256i high = _mm256_packus_epi32(_mm256_and_si256(c, byte), _mm256_and_si256(d, byte));
  return _mm256_packus_epi16(low, high);
}

__m256i in_order(__m256i narrowed) {
  return _mm256_permutevar8x32_epi32(narrowed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

// The floats' signs as sign bits of codes.
template <int Bits>
__m256i sign_bits(const Floats &floats) {
  const __m256i signs = narrow_signs(_mm256_castps_si256(floats.part[0]), _mm256_castps_si256(floats.part[1]),
                                     _mm256_castps_si256(floats.part[2]), _mm256_castps_si256(floats.part[3]));
  return _mm256_and_si256(Bits < 8 ? _mm256_srli_epi16(signs, 8 - Bits) : signs, all_bytes(1 << (Bits - 1)));
}

bool has_nan(const Floats &floats) {
  const __m256 nan = _mm256_or_ps(_mm256_cmp_ps(floats.part[0], floats.part[1], _CMP_UNORD_Q),
                                  _mm256_cmp_ps(floats.part[2], floats.part[3], _CMP_UNORD_Q));
  return _mm256_movemask_ps(nan) != 0;
}

__m256i find_nans(__m256 floats) { return _mm256_castps_si256(_mm256_cmp_ps(floats, floats, _CMP_UNORD_Q)); }

__attribute__((noinline)) __m256i put_nans(__m256i codes, const Floats &floats, __m256i signs, const EncodeRule &rule) {
  const __m256i nan = _mm256_xor_si256(all_bytes(rule.nan.base), _mm256_and_si256(signs, all_bytes(rule.nan.flip)));
  const __m256i where = narrow_signs(find_nans(floats.part[0]), find_nans(floats.part[1]), find_nans(floats.part[2]),
                                     find_nans(floats.part[3]));
  return _mm256_blendv_epi8(codes, nan, where);
}

// Codes of any format but E8M0.
template <int Dst, int Rounding>
struct Encoder {
  const EncodeRule &rule;

  __m256i magnitudes(__m256 floats) const {
    return reinterpret_cast<__m256i>(encode_magnitudes<Avx2, Dst, Rounding>(reinterpret_cast<Avx2::U32>(floats), rule));
  }

  DLFP4_ALWAYS_INLINE __m256i operator()(const Floats &floats) const {
    const __m256i magnitude = narrow_lowest_bytes(magnitudes(floats.part[0]), magnitudes(floats.part[1]),
                                                  magnitudes(floats.part[2]), magnitudes(floats.part[3]));
    const __m256i signs = sign_bits<kTypes[Dst].bits>(floats);
    __m256i kept_signs = signs;
    if constexpr (kTypes[Dst].specials == DLFP4_FNUZ)
      kept_signs = _mm256_andnot_si256(_mm256_cmpeq_epi8(magnitude, _mm256_setzero_si256()), signs);
    const __m256i codes = _mm256_or_si256(magnitude, kept_signs);
    return in_order(__builtin_expect(has_nan(floats), 0) ? put_nans(codes, floats, signs, rule) : codes);
  }
};

// Codes of int4, to nearest even; NaN is 0.
struct IntegerEncoder {
  static __m256i round(__m256 floats) {
    const __m256 numbers = _mm256_and_ps(floats, _mm256_cmp_ps(floats, floats, _CMP_ORD_Q));
    return _mm256_cvtps_epi32(_mm256_max_ps(_mm256_min_ps(numbers, _mm256_set1_ps(7)), _mm256_set1_ps(-8)));
  }

  DLFP4_ALWAYS_INLINE __m256i operator()(const Floats &floats) const {
    const __m256i integers =
        narrow_signs(round(floats.part[0]), round(floats.part[1]), round(floats.part[2]), round(floats.part[3]));
    return in_order(_mm256_and_si256(integers, all_bytes(0x0F)));
  }
};

// The class of a magnitude decides how a format with one bit of mantissa rounds it. An even class is a float32 with two
// bits of mantissa, an odd one all that lies between two such. Classes count from the least that FP4 tells apart.
constexpr uint32_t kFirstClass = 125 << 3;

constexpr int code_of_class(int number, dlfp4_rounding rounding) {
  const uint32_t bits = kFirstClass + static_cast<uint32_t>(number);
  return code_of_float(kTypes[DLFP4_float4_e2m1fn], bits / 2 << 21 | bits % 2, {rounding, true});
}

// By class: the code as the sum of two tables' entries, of the classes up to 15 and from 19 to 34, and of a comparison.
struct ClassTables {
  Constant low;
  Constant high;
};

template <dlfp4_rounding Rounding>
constexpr ClassTables kClasses = {
    make_constant([](int i) { return code_of_class(i % 16, Rounding); }),
    make_constant([](int i) { return code_of_class(19 + i % 16, Rounding) - code_of_class(18, Rounding); })};

constexpr bool fits_tables(dlfp4_rounding rounding) {
  const auto code = [rounding](int number) { return code_of_class(number, rounding); };
  return code(0) == 0 && code(15) == code(18) && code(34) + 1 == code(35) && code(35) == 7;
}

// FP4: the floor and the ceiling of a float's highest 11 bits are added up to its class and its sign.
template <dlfp4_rounding Rounding>
struct ClassEncoder {
  static_assert(fits_tables(Rounding), "between the tables nothing happens, and one comparison does the rest");
  const EncodeRule &rule;

  __m256i signed_classes(__m256 floats) const {
    const __m256i bits = _mm256_castps_si256(floats), almost_one = all((1 << 21) - 1);
    return _mm256_add_epi32(_mm256_srai_epi32(bits, 21), _mm256_srai_epi32(_mm256_add_epi32(bits, almost_one), 21));
  }

  __m256i signed_classes(__m256 a, __m256 b) const { return _mm256_packs_epi32(signed_classes(a), signed_classes(b)); }

  __m256i codes_of_classes(__m256i classes) const {
    const __m256i low = _mm256_shuffle_epi8(load(kClasses<Rounding>.low), _mm256_min_epu8(classes, all_bytes(15)));
    const __m256i above_low = _mm256_sub_epi8(_mm256_min_epu8(classes, all_bytes(34)), all_bytes(19));
    const __m256i codes = _mm256_add_epi8(low, _mm256_shuffle_epi8(load(kClasses<Rounding>.high), above_low));
    return _mm256_sub_epi8(codes, _mm256_cmpeq_epi8(_mm256_max_epu8(classes, all_bytes(35)), classes));
  }

  DLFP4_ALWAYS_INLINE __m256i operator()(const Floats &floats) const {
    const __m256i low = signed_classes(floats.part[0], floats.part[1]);
    const __m256i high = signed_classes(floats.part[2], floats.part[3]);
    const __m256i unsigned_low = _mm256_and_si256(low, all_words(0x7FF));
    const __m256i unsigned_high = _mm256_and_si256(high, all_words(0x7FF));
    const __m256i first = all_words(kFirstClass);
    const __m256i classes =
        _mm256_packus_epi16(_mm256_subs_epu16(unsigned_low, first), _mm256_subs_epu16(unsigned_high, first));
    const __m256i signs = _mm256_and_si256(_mm256_srli_epi16(_mm256_packs_epi16(low, high), 4), all_bytes(8));
    const __m256i codes = _mm256_or_si256(codes_of_classes(classes), signs);
    return in_order(__builtin_expect(has_nan(floats), 0) ? put_nans(codes, floats, sign_bits<4>(floats), rule) : codes);
  }
};

template <>
struct Encoder<DLFP4_float4_e2m1fn, DLFP4_NEAREST_EVEN> : ClassEncoder<DLFP4_NEAREST_EVEN> {};

template <>
struct Encoder<DLFP4_float4_e2m1fn, DLFP4_NEAREST_ZERO> : ClassEncoder<DLFP4_NEAREST_ZERO> {};

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_CODECS_AVX2_ENCODE_H_
