// The AVX2 level: codes of at most 8 bits to wider floats, and from all of these but float64; between float32, bfloat16
// and float16; packing; block scaling.
// Layout: runs of codes, packed or one a byte, and of floats; 32 elements a step.
// Trick: the steps lie in headers, which hold nothing with external linkage.
#include "avx2_blocks.h"
#include "avx2_decode.h"
#include "avx2_encode.h"
#include "avx2_floats.h"
#include "kernels.h"
#include "vector_level.h"

namespace dlfp4 {
namespace {

struct Kernels {
  template <int Src, bool kPacked, int Dst>
  static constexpr Kernel decode = decode_codes<Src, kPacked, Dst>;
  template <int Src, int Dst, bool kPacked>
  static constexpr Kernel encode = encode_floats<Src, Dst, kPacked>;
  template <int Bits>
  static constexpr Kernel pack = pack_codes<Bits>;
  template <int Bits>
  static constexpr Kernel unpack = unpack_codes<Bits>;
};

template <int Src, int Dst>
constexpr void add_floats(Rows *rows) {
  const bool is_exact = holds_exactly(kFormats[Dst], kFormats[Src]);
  rows->add({Src, false}, {Dst, false}, is_exact ? kAnyMode : kNearestEven, convert_floats<Src, Dst>);
}

constexpr Rows make_all_rows() {
  Rows rows = make_rows<Kernels>();
  add_floats<DLFP4_float32, DLFP4_bfloat16>(&rows);
  add_floats<DLFP4_float32, DLFP4_float16>(&rows);
  add_floats<DLFP4_bfloat16, DLFP4_float32>(&rows);
  add_floats<DLFP4_bfloat16, DLFP4_float16>(&rows);
  add_floats<DLFP4_float16, DLFP4_float32>(&rows);
  add_floats<DLFP4_float16, DLFP4_bfloat16>(&rows);
  return rows;
}

constexpr Rows kRows = make_all_rows();

}  // namespace

extern const Level level_avx2;
const Level level_avx2 = {"avx2", kRows.row, kRows.size, &kBlocks};

}  // namespace dlfp4
