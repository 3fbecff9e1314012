// The AVX2 level: between codes of at most 8 bits and wider floats, and between these; packing; block scaling.
// Layout: runs of codes, packed or one a byte, and of floats; 32 elements a step.
// Trick: the steps lie in headers, which hold nothing with external linkage.
#include "avx2_decode.h"
#include "avx2_encode.h"
#include "avx2_floats.h"
#include "avx2_recode.h"
#include "kernels.h"
#include "vector.h"

namespace dlfp4 {
namespace {

struct Kernels {
  template <int Src, bool kPacked, int Dst>
  static constexpr Kernel decode = decode_codes<Src, kPacked, Dst>;
  template <int Src, int Dst, bool kPacked>
  static constexpr Kernel encode = encode_floats<Src, Dst, kPacked>;
  template <int Src, int Dst>
  static constexpr Kernel convert = convert_floats<Src, Dst>;
  template <int Src, bool kSrcPacked, int Dst, bool kDstPacked>
  static constexpr Kernel recode = dlfp4::recode<Avx2Recode, Src, kSrcPacked, Dst, kDstPacked>;
  template <int Bits>
  static constexpr Kernel pack = pack_codes<Bits>;
  template <int Bits>
  static constexpr Kernel unpack = unpack_codes<Bits>;
};

constexpr Rows kRows = make_rows<Kernels>();

}  // namespace

void add_avx2_codecs(CodecKernels *kernels) { kernels->add(kRows.row, kRows.size); }

}  // namespace dlfp4
