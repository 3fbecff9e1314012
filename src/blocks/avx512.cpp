// The AVX-512 kernels of block scaling: what vector.h needs to know of the instruction set, and their table.
// Layout: steps of 64 elements, four vectors of 16 floats.
// Trick: masks make whole vectors of a line's last elements; tables of all codes stay in registers.
#include "codecs/avx512.h"
#include "avx512_largest.h"
#include "avx512_turns.h"
#include "vector.h"

namespace dlfp4 {
namespace {

struct Avx512Blocks : Avx512Codecs {
  using U8 = uint8_t __attribute__((vector_size(64)));
  using QuarterU8 = uint8_t __attribute__((vector_size(16)));

  static F32 widen_halves(U32 halves) {
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(reinterpret_cast<__m512i>(halves)));
  }

  static U32 widen_bytes(QuarterU8 bytes) {
    return reinterpret_cast<U32>(_mm512_cvtepu8_epi32(reinterpret_cast<__m128i>(bytes)));
  }

  static F32 choose_by_half(F32 values, F32 of_halves, F32 of_others) {
    return _mm512_mask_blend_ps(_mm512_test_epi32_mask(_mm512_castps_si512(values), _mm512_set1_epi32(1 << 22)),
                                of_others, of_halves);
  }

  static F32 look_up(U32 dwords, const TableOfEight &table) {
    const __m512 twice = _mm512_castpd_ps(_mm512_broadcast_f64x4(_mm256_castps_pd(_mm256_load_ps(table.numbers))));
    return _mm512_permutexvar_ps(reinterpret_cast<__m512i>(dwords), twice);
  }

  // Half a vector, and another `next` bytes later.
  static U32 load_halves(const uint8_t *src, int64_t next) {
    const auto half = [src](int64_t offset) {
      return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(src + offset));
    };
    return reinterpret_cast<U32>(_mm512_inserti64x4(_mm512_castsi256_si512(half(0)), half(next), 1));
  }

  static F32 multiply_add(F32 a, F32 b, F32 c) { return _mm512_fmadd_ps(a, b, c); }

  // By a table of what becomes of each class of numbers: a digit of 0 keeps the first operand, 1 takes the second.
  static F32 replace_nans(F32 values, float by) {
    return _mm512_fixupimm_ps(_mm512_set1_ps(by), values, _mm512_set1_epi32(0x11111100), 0);
  }

  template <int Src>
  struct Largest : dlfp4::Largest<Avx512Blocks, Src> {
    static void find(const uint8_t *src, int64_t count, int64_t block, uint32_t *amax) {
      find_largest<Avx512Blocks, Src>(src, count, block, amax);
    }
  };

  // --- Steps ---

  static constexpr bool kEncodesIntegers = true;

  template <int Dst, int Rounding>
  static auto encoder() {
    if constexpr (is_block_integer(kTypes[Dst]))
      return IntegerEncoder();
    else
      return make_encoder<Dst, Rounding>(true);
  }

  template <int Src, int SrcBits>
  struct Elements : FloatsOfCodes<SrcBits, kDecodeSize<Src, DLFP4_float32>> {
    Elements() : FloatsOfCodes<SrcBits, kDecodeSize<Src, DLFP4_float32>>(kDecodeTable<Src, DLFP4_float32>) {}
  };
};

}  // namespace

void add_avx512_blocks(BlockKernels *kernels) {
  add_block_kernels<Avx512Blocks>(kernels);
  add_own_turns<4, 6, 8>(kernels);
}

}  // namespace dlfp4
