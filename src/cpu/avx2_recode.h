// Between types of at most 8 bits, for the AVX2 kernels alone.
// Layout: codes one a byte or packed, on both sides; 32 a step.
// Trick: every sixteen codes of a table are looked up by the lowest four bits, the other bits choose among what is
// found.
#ifndef DLFP4_SRC_CPU_AVX2_RECODE_H_
#define DLFP4_SRC_CPU_AVX2_RECODE_H_

#include "avx2_codes.h"
#include "recode_tables.h"

namespace dlfp4 {
namespace {

// What each of `Size` codes becomes; higher bits are ignored.
template <int Size>
struct Table {
  __m256i part[Size / 16];

  explicit Table(const uint8_t *codes) {
    for (int i = 0; i < Size / 16; ++i) part[i] = _mm256_broadcastsi128_si256(load_16_bytes(codes + 16 * i));
  }

  // Among kCount parts from kFirst on. vpblendvb looks at a byte's highest bit.
  template <int kFirst, int kCount>
  DLFP4_ALWAYS_INLINE __m256i find(__m256i codes, __m256i low) const {
    if constexpr (kCount == 1) {
      return _mm256_shuffle_epi8(part[kFirst], low);
    } else {
      constexpr int kToHighest = kCount == 2 ? 3 : kCount == 4 ? 2 : kCount == 8 ? 1 : 0;
      return _mm256_blendv_epi8(find<kFirst, kCount / 2>(codes, low), find<kFirst + kCount / 2, kCount / 2>(codes, low),
                                _mm256_slli_epi16(codes, kToHighest));
    }
  }

  DLFP4_ALWAYS_INLINE __m256i operator()(__m256i codes) const {
    return find<0, Size / 16>(codes, _mm256_and_si256(codes, all_bytes(15)));
  }
};

template <int SrcBits, int DstBits, int Size>
__attribute__((noinline)) void recode_steps(const uint8_t *codes, const uint8_t *src, uint8_t *dst, int64_t count) {
  const Table<Size> table(codes);
  in_steps<kCodes, SrcBits, DstBits>(src, dst, count, [&](const uint8_t *from, uint8_t *to) DLFP4_ALWAYS_INLINE {
    store_codes<DstBits>(to, table(load_codes<SrcBits, 1>(from)));
  });
}

template <int Src, bool kSrcPacked, int Dst, bool kDstPacked>
void recode(const uint8_t *src, uint8_t *dst, int64_t count, const Mode &mode) {
  constexpr int kSrcBits = kSrcPacked ? kFormats[Src].bits : 8, kDstBits = kDstPacked ? kFormats[Dst].bits : 8;
  uint8_t own[256];
  recode_steps<kSrcBits, kDstBits, 1 << kFormats[Src].bits>(find_table<Src, Dst>(mode, own), src, dst, count);
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_CPU_AVX2_RECODE_H_
