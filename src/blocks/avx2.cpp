// The AVX2 kernels of block scaling: what vector.h needs to know of the instruction set, and their table.
// Layout: steps of 32 elements, four vectors of 8 floats.
// Trick: codes are decoded in the order that unpacking them to float32 turns into theirs, so that factors need none.
#include "codecs/avx2.h"
#include "vector.h"

namespace dlfp4 {
namespace {

struct Avx2Blocks : Avx2Codecs {
  using U8 = uint8_t __attribute__((vector_size(32)));
  using QuarterU8 = uint8_t __attribute__((vector_size(8)));

  static F32 widen_halves(U32 halves) {
    const __m256i dwords = reinterpret_cast<__m256i>(halves);
    return _mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(dwords), upper(dwords)));
  }

  static U32 widen_bytes(QuarterU8 bytes) { return __builtin_convertvector(bytes, U32); }

  static F32 choose_by_half(F32 values, F32 of_halves, F32 of_others) {
    const __m256i high = _mm256_slli_epi32(_mm256_castps_si256(values), 9);
    return _mm256_blendv_ps(of_others, of_halves, _mm256_castsi256_ps(high));
  }

  static F32 look_up(U32 dwords, const TableOfEight &table) {
    return _mm256_permutevar8x32_ps(_mm256_load_ps(table.numbers), reinterpret_cast<__m256i>(dwords));
  }

  static F32 multiply_add(F32 a, F32 b, F32 c) { return _mm256_fmadd_ps(a, b, c); }

  static F32 replace_nans(F32 values, float by) {
    return _mm256_blendv_ps(values, _mm256_set1_ps(by), _mm256_cmp_ps(values, values, _CMP_UNORD_Q));
  }

  // --- Largest of vectors ---

  template <int Src>
  using Largest = dlfp4::Largest<Avx2Blocks, Src>;

  static U32 larger_of(__m256i a, __m256i b) { return reinterpret_cast<U32>(_mm256_max_epu32(a, b)); }

  // Of two pairs of lanes in each half of each vector one pair.
  static U32 join_pairs(U32 a, U32 b) {
    const __m256i low = reinterpret_cast<__m256i>(a), high = reinterpret_cast<__m256i>(b);
    return larger_of(_mm256_unpacklo_epi64(low, high), _mm256_unpackhi_epi64(low, high));
  }

  static U32 join_lanes(U32 a, U32 b) {
    const F32 low = reinterpret_cast<F32>(a), high = reinterpret_cast<F32>(b);
    return larger_of(_mm256_castps_si256(_mm256_shuffle_ps(low, high, 0x88)),
                     _mm256_castps_si256(_mm256_shuffle_ps(low, high, 0xDD)));
  }

  static U32 largest_of_each(const U32 (&vectors)[8]) {
    U32 fours[2];
    for (int i = 0; i < 2; ++i)
      fours[i] = join_lanes(join_pairs(vectors[4 * i], vectors[4 * i + 1]),
                            join_pairs(vectors[4 * i + 2], vectors[4 * i + 3]));
    const __m256i low = reinterpret_cast<__m256i>(fours[0]), high = reinterpret_cast<__m256i>(fours[1]);
    return larger_of(_mm256_permute2x128_si256(low, high, 0x20), _mm256_permute2x128_si256(low, high, 0x31));
  }

  // --- Bytes ---

  static U8 zip_low(U8 a, U8 b) {
    return reinterpret_cast<U8>(_mm256_unpacklo_epi8(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
  }
  static U8 zip_high(U8 a, U8 b) {
    return reinterpret_cast<U8>(_mm256_unpackhi_epi8(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
  }

  static U8 load_sixteens(const uint8_t *src, int64_t next) {
    return reinterpret_cast<U8>(_mm256_set_m128i(load_16_bytes(src + next), load_16_bytes(src)));
  }

  // --- Steps ---

  static constexpr bool kEncodesIntegers = true;

  template <int Dst, int Rounding>
  static auto encoder() {
    if constexpr (is_block_integer(kTypes[Dst]))
      return IntegerEncoder();
    else
      return float_encoder<Dst, Rounding>();
  }

  template <int Dst, int Rounding>
  static auto float_encoder() {
    static constexpr EncodeRule kRule = make_encode_rule(kTypes[Dst], {static_cast<dlfp4_rounding>(Rounding), true});
    return Encoder<Dst, Rounding>{kRule};
  }

  template <int Src, int SrcBits>
  struct Elements {
    DLFP4_ALWAYS_INLINE Floats operator()(const uint8_t *src) const { return decode_floats<Src, SrcBits>(src); }
  };
};

}  // namespace

void add_avx2_blocks(BlockKernels *kernels) {
  add_block_kernels<Avx2Blocks>(kernels);
  add_turns<Avx2Blocks, 4, 6, 8>(kernels);
}

}  // namespace dlfp4
