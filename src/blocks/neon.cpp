// The NEON kernels of block scaling: what vector.h needs to know of the instruction set, and their table.
// Layout: steps of 16 elements, four vectors of 4 floats.
// Trick: vectors are short enough to need no reordering; pairwise instructions find the largest lanes.
#include "host/simd/neon.h"
#include "codecs/neon_decode.h"
#include "codecs/neon_encode.h"
#include "vector.h"

namespace dlfp4 {
namespace {

struct NeonBlocks : Neon {
  using U8 = uint8x16_t;
  using U16 = uint16x8_t;
  using HalfU16 = uint16x4_t;
  using QuarterU8 = uint8_t __attribute__((vector_size(4)));
  static constexpr int kCodes = dlfp4::kCodes;

  // --- Floats of 16 bits ---

  static F32 widen_halves(U32 halves) { return vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(halves))); }

  static U16 round_to_halves(F32 low, F32 high) {
    return vreinterpretq_u16_f16(vcombine_f16(vcvt_f16_f32(low), vcvt_f16_f32(high)));
  }

  static U16 upper_halves(U32 low, U32 high) { return vuzp2q_u16(words(low), words(high)); }

  // --- Lanes and bytes ---

  static U32 largest_of_each(const U32 (&vectors)[4]) {
    return vpmaxq_u32(vpmaxq_u32(vectors[0], vectors[1]), vpmaxq_u32(vectors[2], vectors[3]));
  }

  static U8 zip_low(U8 a, U8 b) { return vzip1q_u8(a, b); }
  static U8 zip_high(U8 a, U8 b) { return vzip2q_u8(a, b); }
  static U8 load_sixteens(const uint8_t *src, int64_t) { return vld1q_u8(src); }

  // --- Steps ---

  template <int Src>
  static Floats load_floats(const uint8_t *src) {
    return dlfp4::load_floats<Src>(src);
  }

  template <int Dst, int Rounding>
  static uint8x16_t encode(const Floats &floats, const EncodeRule &rule) {
    return Encoder<Dst, Rounding>{rule}(floats);
  }

  template <int Bits>
  static void store_codes(uint8_t *dst, uint8x16_t codes) {
    dlfp4::store_codes<Bits>(dst, codes);
  }

  template <int Src, int SrcBits>
  static Floats decode(const uint8_t *src) {
    const Words words = decode_words<Src, SrcBits, DLFP4_float32>(src);
    const uint16x8_t zero = vdupq_n_u16(0);
    Floats floats;
    for (int i = 0; i < 2; ++i) {
      const uint16x8_t half = vreinterpretq_u16_u8(words.half[i]);
      floats.part[2 * i] = vreinterpretq_f32_u16(vzip1q_u16(zero, half));
      floats.part[2 * i + 1] = vreinterpretq_f32_u16(vzip2q_u16(zero, half));
    }
    return floats;
  }
};

}  // namespace

void add_neon_blocks(BlockKernels *kernels) { add_block_kernels<NeonBlocks>(kernels); }

}  // namespace dlfp4
