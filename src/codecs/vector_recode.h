// Between types of at most 8 bits, as far as it is the same for every vector.
// Layout: codes one a byte or packed, on both sides.
// Trick: registers hold a table of all codes during a call.
#ifndef DLFP4_SRC_CODECS_VECTOR_RECODE_H_
#define DLFP4_SRC_CODECS_VECTOR_RECODE_H_

#include "recode_tables.h"
#include "vector.h"

namespace dlfp4 {
namespace {

// Isa has Table<Size>, which makes codes of a vector of codes and ignores what is above the lowest bits; kCodes of them
// a step; load<Bits>(src), in order; store<Bits>(dst, codes).
template <class Isa, int SrcBits, int DstBits, int Size>
__attribute__((noinline)) void recode_steps(const uint8_t *codes, const uint8_t *src, uint8_t *dst, int64_t count) {
  const typename Isa::template Table<Size> table(codes);
  in_steps<Isa::kCodes, SrcBits, DstBits>(src, dst, count, [&](const uint8_t *from, uint8_t *to) DLFP4_ALWAYS_INLINE {
    Isa::template store<DstBits>(to, table(Isa::template load<SrcBits>(from)));
  });
}

template <class Isa, int Src, bool kSrcPacked, int Dst, bool kDstPacked>
void recode(const uint8_t *src, uint8_t *dst, int64_t count, const Mode &mode) {
  constexpr int kSrcBits = kSrcPacked ? kFormats[Src].bits : 8, kDstBits = kDstPacked ? kFormats[Dst].bits : 8;
  uint8_t own[256];
  recode_steps<Isa, kSrcBits, kDstBits, 1 << kFormats[Src].bits>(find_table<Src, Dst>(mode, own), src, dst, count);
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_CODECS_VECTOR_RECODE_H_
