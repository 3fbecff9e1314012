// The NEON level's kernels for products: FP4, FP6, integers and floats.
// Layout: as in kernels.h; 16 bytes a vector.
// Trick: values of both sides by table, multiplied to 16 bits, which hold the sums of many products of FP4.
#include <arm_neon.h>
#include <string.h>

#include <utility>

#include "codecs/neon_decode.h"
#include "codecs/neon_encode.h"
#include "host/simd/floats.h"
#include "kernels.h"
#include "rules/sums.h"
#include "vector_lines.h"

namespace dlfp4 {
namespace {

// --- Integers --------------------------------------------------------------------------------

struct Values {
  int8_t of[16];
};

constexpr Values make_values(int row) {
  Values values = {};
  for (int code = 0; code < 16; ++code)
    values.of[code] = static_cast<int8_t>(integer_of(row, static_cast<uint64_t>(code)));
  return values;
}

// Products of 32 packed codes, four in each of 8 words: of FP4 at most 576. Bytes 0 to 7 go to `first`, the others to
// `second`.
template <int Row>
struct Nibble {
  static constexpr Values kValues = make_values(Row);
  const int8x16_t values;

  Nibble() : values(vld1q_s8(kValues.of)) {}  // clang's vld1q_s8 is no expression for a default member initializer

  DLFP4_ALWAYS_INLINE int8x16_t low(uint8x16_t codes) const {
    return vqtbl1q_s8(values, vandq_u8(codes, vdupq_n_u8(15)));
  }
  DLFP4_ALWAYS_INLINE int8x16_t high(uint8x16_t codes) const { return vqtbl1q_s8(values, vshrq_n_u8(codes, 4)); }

  DLFP4_ALWAYS_INLINE int16x8_t first(uint8x16_t a, uint8x16_t b) const {
    return vmlal_s8(vmull_s8(vget_low_s8(low(a)), vget_low_s8(low(b))), vget_low_s8(high(a)), vget_low_s8(high(b)));
  }

  DLFP4_ALWAYS_INLINE int16x8_t second(uint8x16_t a, uint8x16_t b) const {
    return vmlal_s8(vmull_s8(vget_high_s8(low(a)), vget_high_s8(low(b))), vget_high_s8(high(a)), vget_high_s8(high(b)));
  }

  DLFP4_ALWAYS_INLINE int16x8_t both(uint8x16_t a, uint8x16_t b) const { return vaddq_s16(first(a, b), second(a, b)); }
};

template <int Row>
int64_t sum_nibbles(const uint8_t *a, const uint8_t *b, int64_t count) {
  constexpr int64_t kMost = 32 * 48;  // 48 * 576 fits a word
  const Nibble<Row> nibbles;
  int64_t total = 0;
  for (int64_t first = 0; first < count; first += kMost) {
    int16x8_t words = vdupq_n_s16(0);
    in_steps_of_both<32, 4>(a + first / 2, b + first / 2, least(kMost, count - first),
                            [&](const uint8_t *x, const uint8_t *y) DLFP4_ALWAYS_INLINE {
                              words = vaddq_s16(words, nibbles.both(vld1q_u8(x), vld1q_u8(y)));
                            });
    total += vaddlvq_s16(words);
  }
  return total;
}

int32x4_t add_products(int32x4_t sums, int8x16_t a, int8x16_t b) {
  sums = vpadalq_s16(sums, vmull_s8(vget_low_s8(a), vget_low_s8(b)));
  return vpadalq_s16(sums, vmull_s8(vget_high_s8(a), vget_high_s8(b)));
}

int8x16_t load_integers(const uint8_t *src) { return vreinterpretq_s8_u8(vld1q_u8(src)); }

int64_t sum_int8(const uint8_t *a, const uint8_t *b, int64_t count) {
  constexpr int64_t kMost = 1 << 18;  // four products of 2^14 a lane and step fit 32 bits
  int64_t total = 0;
  for (int64_t first = 0; first < count; first += kMost) {
    int32x4_t sums = vdupq_n_s32(0);
    in_steps_of_both<16, 8>(a + first, b + first, least(kMost, count - first),
                            [&](const uint8_t *x, const uint8_t *y)
                                DLFP4_ALWAYS_INLINE { sums = add_products(sums, load_integers(x), load_integers(y)); });
    total += vaddlvq_s32(sums);
  }
  return total;
}

// --- FP4 in blocks ---------------------------------------------------------------------------

struct Eight {
  float32x4_t half[2];
};

// Eight codes of float8_e4m3fn, by float16: its exponents are 8 more.
DLFP4_ALWAYS_INLINE inline Eight decode_e4m3(uint8x8_t codes) {
  const uint16x8_t words = vmovl_u8(codes), magnitudes = vandq_u16(words, vdupq_n_u16(0x7F));
  const uint16x8_t sign = vshlq_n_u16(vandq_u16(words, vdupq_n_u16(0x80)), 8);
  const uint16x8_t nan = vandq_u16(vceqq_u16(magnitudes, vdupq_n_u16(0x7F)), vdupq_n_u16(0x7C00));
  const uint16x8_t bits = vorrq_u16(vorrq_u16(sign, nan), vshlq_n_u16(magnitudes, 7));
  const float16x8_t halves = vreinterpretq_f16_u16(bits);
  return {{vmulq_n_f32(vcvt_f32_f16(vget_low_f16(halves)), 256), vmulq_n_f32(vcvt_high_f32_f16(halves), 256)}};
}

float32x4_t decode_e8m0(uint32x4_t codes) { return vreinterpretq_f32_u32(bits_of_powers(codes)); }

// Products of eight blocks, a vector each, to eight sums: words hold those of 32 times 144.
DLFP4_ALWAYS_INLINE inline Eight collapse(const int16x8_t (&p)[8]) {
  const int16x8_t low = vpaddq_s16(vpaddq_s16(p[0], p[1]), vpaddq_s16(p[2], p[3]));
  const int16x8_t high = vpaddq_s16(vpaddq_s16(p[4], p[5]), vpaddq_s16(p[6], p[7]));
  const int16x8_t sums = vpaddq_s16(low, high);
  // Their unit is a quarter: as fixed-point numbers with two bits behind the point they are whole.
  return {{vcvtq_n_f32_s32(vmovl_s16(vget_low_s16(sums)), 2), vcvtq_n_f32_s32(vmovl_high_s16(sums), 2)}};
}

using Fp4 = Nibble<DLFP4_float4_e2m1fn>;

// Sums of eight blocks.
template <int64_t kBlock>
DLFP4_ALWAYS_INLINE inline Eight sum_eight(const Fp4 &nibbles, const uint8_t *a, const uint8_t *b) {
  static_assert(kBlock == 16 || kBlock == 32, "a vector holds a block of 32, or two of 16");
  int16x8_t products[8];
  for (int i = 0; i < kBlock / 4; ++i) {
    const uint8x16_t x = vld1q_u8(a + 16 * i), y = vld1q_u8(b + 16 * i);
    if constexpr (kBlock == 32) {
      products[i] = nibbles.both(x, y);
    } else {
      products[2 * i] = nibbles.first(x, y);
      products[2 * i + 1] = nibbles.second(x, y);
    }
  }
  return collapse(products);
}

// Eight blocks by both scales at once: a product of two float8 is exact.
template <int64_t kBlock>
void add_two_level(const Fp4 &nibbles, const uint8_t *a, const uint8_t *a_scales, const uint8_t *b,
                   const uint8_t *b_scales, float32x4_t (&sums)[2]) {
  const Eight blocks = sum_eight<kBlock>(nibbles, a, b), of_a = decode_e4m3(vld1_u8(a_scales)),
              of_b = decode_e4m3(vld1_u8(b_scales));
  for (int i = 0; i < 2; ++i) sums[i] = vfmaq_f32(sums[i], blocks.half[i], vmulq_f32(of_a.half[i], of_b.half[i]));
}

// Eight blocks. The smaller scale goes first: what it makes is exact, or finite.
template <int64_t kBlock>
void add_power(const Fp4 &nibbles, const uint8_t *a, const uint8_t *a_scales, const uint8_t *b, const uint8_t *b_scales,
               float32x4_t (&sums)[2]) {
  const Eight blocks = sum_eight<kBlock>(nibbles, a, b);
  const uint8x8_t of_a = vld1_u8(a_scales), of_b = vld1_u8(b_scales);
  const uint16x8_t least = vmovl_u8(vmin_u8(of_a, of_b)), most = vmovl_u8(vmax_u8(of_a, of_b));
  const uint32x4_t smaller[] = {vmovl_u16(vget_low_u16(least)), vmovl_high_u16(least)};
  const uint32x4_t larger[] = {vmovl_u16(vget_low_u16(most)), vmovl_high_u16(most)};
  for (int i = 0; i < 2; ++i)
    sums[i] = vfmaq_f32(sums[i], vmulq_f32(blocks.half[i], decode_e8m0(smaller[i])), decode_e8m0(larger[i]));
}

double add_lanes(float32x4_t sums) {
  return vaddvq_f64(vaddq_f64(vcvt_f64_f32(vget_low_f32(sums)), vcvt_high_f64_f32(sums)));
}

// Eight blocks at a time, the last ones followed by zeros.
template <int64_t kBlock, class Add>
DLFP4_ALWAYS_INLINE inline double sum_eights(const uint8_t *a, const uint8_t *a_scales, const uint8_t *b,
                                             const uint8_t *b_scales, int64_t count, Add add) {
  const Fp4 nibbles;
  float32x4_t sums[2] = {vdupq_n_f32(0), vdupq_n_f32(0)};
  each_eight<kBlock>(a, a_scales, b, b_scales, count,
                     [&](const uint8_t *x, const uint8_t *x_scales, const uint8_t *y, const uint8_t *y_scales)
                         DLFP4_ALWAYS_INLINE { add(nibbles, x, x_scales, y, y_scales, sums); });
  return add_lanes(sums[0]) + add_lanes(sums[1]);
}

template <int64_t kBlock>
double sum_two_level(const uint8_t *a, const uint8_t *a_scales, const uint8_t *b, const uint8_t *b_scales,
                     int64_t count) {
  return sum_eights<kBlock>(a, a_scales, b, b_scales, count, add_two_level<kBlock>);
}

template <int64_t kBlock>
double sum_power(const uint8_t *a, const uint8_t *a_scales, const uint8_t *b, const uint8_t *b_scales, int64_t count) {
  return sum_eights<kBlock>(a, a_scales, b, b_scales, count, add_power<kBlock>);
}

// --- Floats ----------------------------------------------------------------------------------

struct NeonDots : Neon {
  using Factors = Floats;
  static constexpr int kCodes = dlfp4::kCodes;

  static F32 multiply_add(F32 a, F32 b, F32 sum) { return vfmaq_f32(sum, a, b); }

  template <int Row>
  static Floats load_wide(const uint8_t *src) {
    return load_floats<Row>(src);
  }

  static Floats widen_bytes(const uint8_t *src) {
    const uint16x8_t pairs = vreinterpretq_u16_u8(vld1q_u8(src));
    const float16x8_t even = vreinterpretq_f16_u16(vshlq_n_u16(pairs, 8));
    const float16x8_t odd = vreinterpretq_f16_u16(vandq_u16(pairs, vdupq_n_u16(0xFF00)));
    return {{vcvt_f32_f16(vget_low_f16(even)), vcvt_high_f32_f16(even), vcvt_f32_f16(vget_low_f16(odd)),
             vcvt_high_f32_f16(odd)}};
  }

  template <int Row, int Bits>
  static Words words_of(const uint8_t *src) {
    return decode_words<Row, Bits, DLFP4_bfloat16>(src);
  }

  template <int Row>
  static Floats decode(const uint8_t *src) {
    return decode_floats<Row, kTypes[Row].bits>(src);
  }
};

// --- The table -------------------------------------------------------------------------------

template <int Row>
void add_sums(ProductKernels *kernels) {
  if constexpr (is_summed_as_float(Row)) {
    kernels->sum_floats[Row] = sum_floats<NeonDots, Row>;
  } else if constexpr (is_float(kTypes[Row]) && is_integer(Row)) {
    kernels->sum_integers[Row][0] = sum_as_floats<NeonDots, Row, 8>;
    kernels->sum_integers[Row][1] = sum_as_floats<NeonDots, Row, kTypes[Row].bits>;
  }
}

template <int Key, int64_t kBlock>
void add_fp4(ProductKernels *kernels) {
  if constexpr (is_fp4(kBlockKeys[Key], DLFP4_float8_e4m3fn, kBlock)) kernels->sum_blocks[Key] = sum_two_level<kBlock>;
  if constexpr (is_fp4(kBlockKeys[Key], DLFP4_float8_e8m0fnu, kBlock)) kernels->sum_blocks[Key] = sum_power<kBlock>;
}

template <int Key>
void add_key(ProductKernels *kernels) {
  add_scaled_sum<NeonDots, Key>(kernels);
  add_fp4<Key, 16>(kernels);
  add_fp4<Key, 32>(kernels);
}

template <int... Row, int... Key>
void add_kernels(ProductKernels *kernels, std::integer_sequence<int, Row...>, std::integer_sequence<int, Key...>) {
  (add_sums<Row>(kernels), ...);
  kernels->sum_integers[DLFP4_float4_e2m1fn][1] = sum_nibbles<DLFP4_float4_e2m1fn>;
  kernels->sum_integers[DLFP4_int4][1] = sum_nibbles<DLFP4_int4>;
  kernels->sum_integers[DLFP4_int8][0] = sum_int8;
  (add_key<Key>(kernels), ...);
  kernels->lines.multiply_floats = multiply_float_lines<NeonDots>;
  (add_codes<NeonDots, Row>(&kernels->lines), ...);
}

}  // namespace

void add_neon_products(ProductKernels *kernels) {
  add_kernels(kernels, std::make_integer_sequence<int, DLFP4_NUM_DTYPES>(),
              std::make_integer_sequence<int, kNumKeys>());
}

}  // namespace dlfp4
