// The NEON level: between codes of at most 8 bits and wider floats, and between these; packing; block scaling.
// Layout: runs, packed or one code a byte, against floats or codes; 16 elements a step.
// Trick: the steps lie in headers, which hold nothing with external linkage.
#include "kernels.h"
#include "neon_decode.h"
#include "neon_encode.h"
#include "neon_floats.h"
#include "neon_recode.h"
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
  static constexpr Kernel recode = dlfp4::recode<NeonRecode, Src, kSrcPacked, Dst, kDstPacked>;
  template <int Bits>
  static constexpr Kernel pack = pack_codes<Bits>;
  template <int Bits>
  static constexpr Kernel unpack = unpack_codes<Bits>;
};

constexpr Rows kRows = make_rows<Kernels>();

}  // namespace

void add_neon_codecs(CodecKernels *kernels) { kernels->add(kRows.row, kRows.size); }

}  // namespace dlfp4
