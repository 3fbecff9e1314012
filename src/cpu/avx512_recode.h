// Between types of at most 8 bits, and between packed and padded codes of one type, for the AVX-512 kernels alone.
// Layout: codes one a byte or packed, on both sides.
// Trick: the scalar kernel makes a table of 256 codes at a pair's first use; registers hold it during a call.
#ifndef DLFP4_SRC_CPU_AVX512_RECODE_H_
#define DLFP4_SRC_CPU_AVX512_RECODE_H_

#include <string.h>

#include "../numerics.h"
#include "avx512_codes.h"
#include "kernels.h"

namespace dlfp4 {
namespace {

// --- Tables ----------------------------------------------------------------------------------

enum TableState { kEmpty, kFilling, kReady };

// Zero at the start of the program, then filled once.
struct RecodeTable {
  alignas(64) uint8_t code[256];
  int state;
};

template <int Src, int Dst>
RecodeTable recode_tables[kNumFixedModes];

void fill_table(int src, int dst, const Mode &mode, uint8_t *table) {
  uint8_t codes[256];
  for (int code = 0; code < 256; ++code) codes[code] = static_cast<uint8_t>(code);
  const Operand from = {static_cast<uint8_t>(src), false}, to = {static_cast<uint8_t>(dst), false};
  scalar_run(from, to, codes, table, 256, mode);
}

// Who does not come first, and does not find it ready, uses a table of its own: nobody waits, not even a forked child.
__attribute__((noinline)) const uint8_t *find_table(RecodeTable *table, int src, int dst, const Mode &mode,
                                                    uint8_t *own) {
  if (__atomic_load_n(&table->state, __ATOMIC_ACQUIRE) == kReady) return table->code;
  fill_table(src, dst, mode, own);
  int empty = kEmpty;
  if (__atomic_compare_exchange_n(&table->state, &empty, kFilling, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    memcpy(table->code, own, sizeof(table->code));
    __atomic_store_n(&table->state, kReady, __ATOMIC_RELEASE);
  }
  return own;
}

// --- Kernels ---------------------------------------------------------------------------------

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
  RecodeTable *table = &recode_tables<Src, Dst>[mode_index(mode.rounding, mode.saturate)];
  const uint8_t *codes = find_table(table, Src, Dst, mode, own);
  recode_runs<kSrcBits, kDstBits, (kFormats[Src].bits < 8 ? 64 : 256)>(codes, src, dst, count);
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

#endif  // DLFP4_SRC_CPU_AVX512_RECODE_H_
