// Sums of products of plain elements, for the AVX2 kernels alone.
// Layout: codes one a byte or packed, 32 a step; floats in order.
// Trick: |a| times b with a's sign, as bytes, through vpmaddubsw: sums of 16 bits, which are widened before they wrap.
#ifndef DLFP4_SRC_PRODUCTS_AVX2_DOTS_H_
#define DLFP4_SRC_PRODUCTS_AVX2_DOTS_H_

#include "codecs/avx2_decode.h"
#include "codecs/avx2_encode.h"
#include "host/simd/avx2.h"
#include "kernels.h"
#include "rules/sums.h"
#include "vector_dots.h"

namespace dlfp4 {
namespace {

struct Avx2Dots : Avx2 {
  using Factors = Floats;
  static constexpr int kCodes = dlfp4::kCodes;

  static F32 multiply_add(F32 a, F32 b, F32 sum) { return _mm256_fmadd_ps(a, b, sum); }

  template <int Row>
  static Floats load_wide(const uint8_t *src) {
    return load_floats<Row>(src);
  }

  static Floats widen_bytes(const uint8_t *src) {
    Floats floats;
    for (int half = 0; half < 2; ++half) {
      const __m128i pairs = load_16_bytes(src + 16 * half);
      floats.part[2 * half] = _mm256_cvtph_ps(_mm_slli_epi16(pairs, 8));
      floats.part[2 * half + 1] = _mm256_cvtph_ps(_mm_and_si128(pairs, _mm_set1_epi16(-256)));
    }
    return floats;
  }

  template <int Row, int Bits>
  static Words words_of(const uint8_t *src) {
    return dlfp4::words_of<Row, DLFP4_bfloat16>(load_codes<Bits, 1>(src));
  }

  template <int Row>
  static Floats decode(const uint8_t *src) {
    return decode_floats<Row, kTypes[Row].bits>(src);
  }
};

// --- Adding up -------------------------------------------------------------------------------

int64_t add_lanes(__m256i sums) {
  alignas(32) int32_t lanes[8];
  int64_t total = 0;
  _mm256_store_si256(reinterpret_cast<__m256i *>(lanes), sums);
  for (int32_t lane : lanes) total += lane;
  return total;
}

__m256i add_pairs(__m256i words) { return _mm256_madd_epi16(words, all_words(1)); }

// --- Integers of at most 4 bits --------------------------------------------------------------

// By low nibbles; codes of fewer bits are repeated, so that noise does not matter.
constexpr Constant make_values(int row, bool magnitudes) {
  return make_constant([=](int i) {
    const int value = integer_of(row, static_cast<uint64_t>(i) & low_bits(least(kTypes[row].bits, 4)));
    return magnitudes && value < 0 ? -value : value;
  });
}

// Products of codes in bytes, two neighbouring ones in each word; of FP4 the sign of a is turned into b before.
template <int Row>
struct Nibble {
  static constexpr Constant kMagnitudes = make_values(Row, true), kValues = make_values(Row, false);
  static constexpr bool kIsFloat = is_float(kTypes[Row]);

  static __m256i look_up(const Constant &table, __m256i codes) {
    return _mm256_shuffle_epi8(load(table), _mm256_and_si256(codes, all_bytes(15)));
  }

  static __m256i turn(__m256i a, __m256i b) {
    return kIsFloat ? _mm256_xor_si256(b, _mm256_and_si256(a, all_bytes(0x88))) : b;
  }

  // vpshufb looks at a byte's bit 7 and its lowest four: without signs, those of FP4 need no other mask.
  static __m256i unsign(__m256i codes) { return kIsFloat ? _mm256_and_si256(codes, all_bytes(0x77)) : codes; }

  static __m256i multiply(__m256i unsigned_a, __m256i turned) {
    const __m256i right = look_up(kValues, turned);
    if constexpr (kIsFloat) return _mm256_maddubs_epi16(_mm256_shuffle_epi8(load(kMagnitudes), unsigned_a), right);
    const __m256i left = look_up(kValues, unsigned_a);
    return _mm256_maddubs_epi16(_mm256_abs_epi8(left), _mm256_sign_epi8(right, left));
  }

  // Of one code a byte.
  static __m256i bytes(__m256i a, __m256i b) { return multiply(unsign(a), turn(a, b)); }

  // Of two, four products in each word.
  static __m256i nibbles(__m256i a, __m256i b) {
    const __m256i left = unsign(a), turned = turn(a, b);
    return _mm256_add_epi16(multiply(left, turned), multiply(_mm256_srli_epi16(left, 4), _mm256_srli_epi16(turned, 4)));
  }
};

// --- Other integers --------------------------------------------------------------------------

// Of FP6 codes: bytes below zero or above.
__m256i signs_of_products(__m256i a, __m256i b) {
  return _mm256_or_si256(_mm256_slli_epi16(_mm256_xor_si256(a, b), 2), all_bytes(1));
}

// FP6 of values that fit a byte. The first 16 magnitudes are worth their codes, the others more.
struct Sixes {
  static constexpr int kRow = DLFP4_float6_e2m3fn, kFirst = 16;
  static constexpr Constant kOthers =
      make_constant([](int i) { return integer_of(kRow, static_cast<uint64_t>(kFirst + i % 16)); });

  static __m256i magnitudes(__m256i codes) {
    const __m256i clean = _mm256_and_si256(codes, all_bytes(31));
    return _mm256_max_epu8(clean, Avx2::look_up(kOthers, _mm256_sub_epi8(clean, all_bytes(kFirst))));
  }

  static __m256i bytes(__m256i a, __m256i b) {
    return _mm256_maddubs_epi16(magnitudes(a), _mm256_sign_epi8(magnitudes(b), signs_of_products(a, b)));
  }
};

// FP6 of values up to 448: of the first 16 magnitudes a byte, of the others a byte of eighths.
struct WideSixes {
  static constexpr int kRow = DLFP4_float6_e3m2fn;
  static constexpr Constant kFirst =
      make_constant([](int i) { return integer_of(kRow, static_cast<uint64_t>(i % 16)); });
  static constexpr Constant kLast =
      make_constant([](int i) { return integer_of(kRow, static_cast<uint64_t>(16 + i % 16)) / 8; });

  struct Values {
    __m256i first, last;  // one of them is zero
  };

  static Values look_up(__m256i codes) {
    const __m256i clean = _mm256_and_si256(codes, all_bytes(31));
    return {Avx2::look_up(kFirst, Avx2::in_first(clean)), Avx2::look_up(kLast, _mm256_sub_epi8(clean, all_bytes(16)))};
  }

  static __m256i multiply(__m256i a, __m256i b) {
    const Values of_a = look_up(a), magnitudes = look_up(b);
    const __m256i sign = signs_of_products(a, b), weights = all_words(0x0801);
    const Values of_b = {_mm256_sign_epi8(magnitudes.first, sign), _mm256_sign_epi8(magnitudes.last, sign)};
    const auto low = [=](const Values &values) DLFP4_ALWAYS_INLINE {
      return _mm256_maddubs_epi16(weights, _mm256_unpacklo_epi8(values.first, values.last));
    };
    const auto high = [=](const Values &values) DLFP4_ALWAYS_INLINE {
      return _mm256_maddubs_epi16(weights, _mm256_unpackhi_epi8(values.first, values.last));
    };
    return _mm256_add_epi32(_mm256_madd_epi16(low(of_a), low(of_b)), _mm256_madd_epi16(high(of_a), high(of_b)));
  }
};

// Products of 32 codes, a byte each, four in each of eight dwords.
template <int Row>
DLFP4_ALWAYS_INLINE inline __m256i multiply_codes(__m256i a, __m256i b) {
  if constexpr (Row == DLFP4_float6_e2m3fn) return add_pairs(Sixes::bytes(a, b));
  if constexpr (Row == DLFP4_float6_e3m2fn) return WideSixes::multiply(a, b);
  if constexpr (kTypes[Row].bits <= 4) return add_pairs(Nibble<Row>::bytes(a, b));
}

// --- Integers: kernels -----------------------------------------------------------------------

// Adds up step(a, b), which is eight dwords, over all elements; so many of them do not wrap a lane.
constexpr int64_t kMostInLanes = 1 << 16;

template <int Elements, int Bits, class Step>
int64_t sum_steps(const uint8_t *a, const uint8_t *b, int64_t count, Step step) {
  int64_t total = 0;
  for (int64_t first = 0; first < count; first += kMostInLanes) {
    const int64_t at = first * Bits / 8;
    __m256i sums = _mm256_setzero_si256();
    in_steps_of_both<Elements, Bits>(a + at, b + at, least(kMostInLanes, count - first),
                                     [&](const uint8_t *x, const uint8_t *y)
                                         DLFP4_ALWAYS_INLINE { sums = _mm256_add_epi32(sums, step(x, y)); });
    total += add_lanes(sums);
  }
  return total;
}

template <int Row, int Bits>
int64_t sum_bytes(const uint8_t *a, const uint8_t *b, int64_t count) {
  return sum_steps<kCodes, Bits>(a, b, count, [](const uint8_t *x, const uint8_t *y) DLFP4_ALWAYS_INLINE {
    return multiply_codes<Row>(load_codes<Bits, 1>(x), load_codes<Bits, 1>(y));
  });
}

// Bytes as they are.
template <bool kSigned>
int64_t sum_whole(const uint8_t *a, const uint8_t *b, int64_t count) {
  const auto widen = [](const uint8_t *src) DLFP4_ALWAYS_INLINE {
    return kSigned ? _mm256_cvtepi8_epi16(load_16_bytes(src)) : _mm256_cvtepu8_epi16(load_16_bytes(src));
  };
  return sum_steps<kCodes, 8>(a, b, count, [=](const uint8_t *x, const uint8_t *y) DLFP4_ALWAYS_INLINE {
    return _mm256_add_epi32(_mm256_madd_epi16(widen(x), widen(y)), _mm256_madd_epi16(widen(x + 16), widen(y + 16)));
  });
}

constexpr int largest_integer(int row) {
  int largest = 0;
  for (uint64_t code = 0; code < uint64_t{1} << kTypes[row].bits; ++code) {
    const int value = integer_of(row, code), magnitude = value < 0 ? -value : value;
    if (magnitude > largest) largest = magnitude;
  }
  return largest;
}

// Two codes a byte. Words hold the sums of so many elements, of which each step adds four products to one.
template <int Row>
int64_t sum_nibbles(const uint8_t *a, const uint8_t *b, int64_t count) {
  constexpr int kStep = 2 * kCodes, kLargest = largest_integer(Row);
  constexpr int64_t kMostInWords = INT16_MAX / (4 * kLargest * kLargest) * kStep;
  int64_t total = 0;
  for (int64_t first = 0; first < count; first += kMostInLanes) {
    const int64_t end = least(count, first + kMostInLanes);
    __m256i sums = _mm256_setzero_si256();
    for (int64_t k = first; k < end; k += kMostInWords) {
      __m256i words = _mm256_setzero_si256();
      in_steps_of_both<kStep, 4>(a + k / 2, b + k / 2, least(kMostInWords, end - k),
                                 [&](const uint8_t *x, const uint8_t *y) DLFP4_ALWAYS_INLINE {
                                   words = _mm256_add_epi16(words,
                                                            Nibble<Row>::nibbles(load_32_bytes(x), load_32_bytes(y)));
                                 });
      sums = _mm256_add_epi32(sums, add_pairs(words));
    }
    total += add_lanes(sums);
  }
  return total;
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_AVX2_DOTS_H_
