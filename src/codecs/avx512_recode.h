// Between types of at most 8 bits, and between packed and padded codes of one type, for the AVX-512 kernels alone.
// Layout: codes one a byte or packed, on both sides.
// Trick: registers hold a table of all codes during a call.
#ifndef DLFP4_SRC_CODECS_AVX512_RECODE_H_
#define DLFP4_SRC_CODECS_AVX512_RECODE_H_

#include "host/simd/avx512.h"
#include "recode_tables.h"
#include "rules/numerics.h"

namespace dlfp4 {
namespace {

// A part's codes beyond its count are what a zero or a spare bit looks up: cleared, for spare bits written are zero.
__m512i clear_beyond(__m512i codes, Whole) { return codes; }
__m512i clear_beyond(__m512i codes, Part part) { return _mm512_maskz_mov_epi8(first_bytes(part.count), codes); }

template <int SrcBits, int DstBits, int Size>
__attribute__((noinline)) void recode(const uint8_t *table, const uint8_t *src, uint8_t *dst, int64_t count,
                                      bool streams) {
  const Lookup<Size> look_up(table);
  in_steps(count, [&](int64_t first, auto share) {
    const __m512i codes = load_run<SrcBits, kInOrder>(src + first * SrcBits / 8, share);
    store_codes<DstBits>(dst + first * DstBits / 8, clear_beyond(look_up(codes), share), share, streams);
  });
}

template <int SrcBits, int DstBits, int Size>
__attribute__((noinline)) void recode_runs(const uint8_t *table, const uint8_t *src, uint8_t *dst, int64_t count) {
  in_runs<SrcBits, DstBits>(src, dst, count, [=](const uint8_t *from, uint8_t *to, int64_t elements, bool streams) {
    recode<SrcBits, DstBits, Size>(table, from, to, elements, streams);
  });
}

template <int Src, bool kSrcPacked, int Dst, bool kDstPacked>
void recode_rows(const uint8_t *src, uint8_t *dst, int64_t count, const Mode &mode) {
  constexpr int kSrcBits = kSrcPacked ? kFormats[Src].bits : 8, kDstBits = kDstPacked ? kFormats[Dst].bits : 8;
  alignas(64) uint8_t own[256];
  const uint8_t *const table = find_table<Src, Dst>(mode, own);
  recode_runs<kSrcBits, kDstBits, (kFormats[Src].bits < 8 ? 64 : 256)>(table, src, dst, count);
}

template <int SrcBits, int DstBits>
void copy_steps(const uint8_t *src, uint8_t *dst, int64_t count, bool streams) {
  in_steps(count, [=](int64_t first, auto share) {
    const __m512i noisy = load_run<SrcBits, kInOrder>(src + first * SrcBits / 8, share);
    const __m512i codes = clear_noise<(SrcBits < DstBits ? SrcBits : DstBits)>(noisy);
    store_codes<DstBits>(dst + first * DstBits / 8, clear_beyond(codes, share), share, streams);
  });
}

template <int SrcBits, int DstBits>
void copy_codes(const uint8_t *src, uint8_t *dst, int64_t count, const Mode &) {
  in_runs<SrcBits, DstBits>(src, dst, count, copy_steps<SrcBits, DstBits>);
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_CODECS_AVX512_RECODE_H_
