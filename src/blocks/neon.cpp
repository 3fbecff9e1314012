// The NEON kernels of block scaling: what vector.h needs to know of the instruction set, and their table.
// Layout: steps of 16 elements, four vectors of 4 floats.
// Trick: vectors are short enough to need no reordering; pairwise instructions find the largest lanes.
#include "codecs/neon.h"
#include "vector.h"

namespace dlfp4 {
namespace {

struct NeonBlocks : NeonCodecs {
  using U8 = uint8x16_t;
  using QuarterU8 = uint8_t __attribute__((vector_size(4)));

  static F32 widen_halves(U32 halves) { return vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(halves))); }

  static U32 widen_bytes(QuarterU8 bytes) { return __builtin_convertvector(bytes, U32); }

  static F32 choose_by_half(F32 values, F32 of_halves, F32 of_others) {
    return (reinterpret_cast<U32>(values) & 1u << 22) != 0u ? of_halves : of_others;
  }

  static F32 look_up(U32 dwords, const TableOfEight &table) {
    const uint8x16x2_t bytes = vld1q_u8_x2(reinterpret_cast<const uint8_t *>(table.numbers));
    const U32 places = (dwords & 7u) * 0x04040404u + 0x03020100u;
    return reinterpret_cast<F32>(vqtbl2q_u8(bytes, reinterpret_cast<U8>(places)));
  }

  static F32 multiply_add(F32 a, F32 b, F32 c) { return vfmaq_f32(c, a, b); }

  static bool has_nan(const Floats &floats) {
    U32 numbers = floats.part[0] == floats.part[0];
    for (int i = 1; i < 4; ++i) numbers &= floats.part[i] == floats.part[i];
    return vminvq_u32(numbers) == 0;
  }

  static F32 replace_nans(F32 values, float by) { return values == values ? values : splat<F32>(by); }

  // --- Lanes and bytes ---

  template <int Src>
  using Largest = dlfp4::Largest<NeonBlocks, Src>;

  static U32 largest_of_each(const U32 (&vectors)[4]) {
    return vpmaxq_u32(vpmaxq_u32(vectors[0], vectors[1]), vpmaxq_u32(vectors[2], vectors[3]));
  }

  static U8 zip_low(U8 a, U8 b) { return vzip1q_u8(a, b); }
  static U8 zip_high(U8 a, U8 b) { return vzip2q_u8(a, b); }
  static U8 load_sixteens(const uint8_t *src, int64_t) { return vld1q_u8(src); }

  // --- Steps ---

  template <int Dst, int Rounding>
  static auto encoder() {
    static constexpr EncodeRule kRule = make_encode_rule(kTypes[Dst], {static_cast<dlfp4_rounding>(Rounding), true});
    return Encoder<Dst, Rounding>{kRule};
  }

  template <int Src, int SrcBits>
  struct Elements {
    Floats operator()(const uint8_t *src) const { return decode_floats<Src, SrcBits>(src); }
  };
};

}  // namespace

void add_neon_blocks(BlockKernels *kernels) {
  add_block_kernels<NeonBlocks>(kernels);
  add_turns<NeonBlocks, 4, 6, 8>(kernels);
}

}  // namespace dlfp4
