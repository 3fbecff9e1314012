// Codes between rows, which hold an element of every line, and packed lines, for the AVX-512 kernels alone.
// Layout: a code a byte in rows; bytes of packed codes in lines.
// Trick: rows are packed before they are transposed, as bytes: four vectors at a time, first within quarters.
// The tiles of vector_turns.h, 16 bytes of each line at a time, make quantization along columns 1.6 times as slow.
#ifndef DLFP4_SRC_BLOCKS_AVX512_TURNS_H_
#define DLFP4_SRC_BLOCKS_AVX512_TURNS_H_

#include "host/simd/avx512.h"
#include "kernels.h"

namespace dlfp4 {
namespace {

// --- Lines -----------------------------------------------------------------------------------

// Calls step(first, Whole or Part) for 64 lines at a time.
template <class Step>
DLFP4_ALWAYS_INLINE inline void in_sixty_fours(int64_t lines, Step step) {
  int64_t first = 0;
  for (; lines - first >= 64; first += 64) step(first, Whole());
  if (first < lines) step(first, Part{lines - first});
}

// A byte of each line.
__m512i load_row(const uint8_t *src, Whole) { return _mm512_loadu_si512(src); }
__m512i load_row(const uint8_t *src, Part part) { return _mm512_maskz_loadu_epi8(first_bytes(part.count), src); }
void store_row(uint8_t *dst, __m512i row, Whole) { _mm512_storeu_si512(dst, row); }
void store_row(uint8_t *dst, __m512i row, Part part) { _mm512_mask_storeu_epi8(dst, first_bytes(part.count), row); }

// --- Bytes -----------------------------------------------------------------------------------

constexpr int kTileBytes = 64;  // of a line, or of as many lines

// Dword l * 4 + j of fours[v][g] has bytes 4 * g to 4 * g + 3 of line 16 * l + 4 * v + j.
struct Fours {
  __m512i fours[4][16];
};

template <class Share>
void load_fours(const uint8_t *src, int64_t pitch, int64_t rows, Share share, Fours *result) {
  for (int g = 0; g < 16; ++g) {
    __m512i row[4];
    for (int i = 0; i < 4; ++i)
      row[i] = 4 * g + i < rows ? load_row(src + (4 * g + i) * pitch, share) : _mm512_setzero_si512();
    const __m512i low[] = {_mm512_unpacklo_epi8(row[0], row[1]), _mm512_unpacklo_epi8(row[2], row[3])};
    const __m512i high[] = {_mm512_unpackhi_epi8(row[0], row[1]), _mm512_unpackhi_epi8(row[2], row[3])};
    result->fours[0][g] = _mm512_unpacklo_epi16(low[0], low[1]);
    result->fours[1][g] = _mm512_unpackhi_epi16(low[0], low[1]);
    result->fours[2][g] = _mm512_unpacklo_epi16(high[0], high[1]);
    result->fours[3][g] = _mm512_unpackhi_epi16(high[0], high[1]);
  }
}

// Four vectors of dwords, transposed within each quarter.
void transpose_quarters(const __m512i *in, __m512i *out) {
  const __m512i low[] = {_mm512_unpacklo_epi32(in[0], in[1]), _mm512_unpacklo_epi32(in[2], in[3])};
  const __m512i high[] = {_mm512_unpackhi_epi32(in[0], in[1]), _mm512_unpackhi_epi32(in[2], in[3])};
  out[0] = _mm512_unpacklo_epi64(low[0], low[1]);
  out[1] = _mm512_unpackhi_epi64(low[0], low[1]);
  out[2] = _mm512_unpacklo_epi64(high[0], high[1]);
  out[3] = _mm512_unpackhi_epi64(high[0], high[1]);
}

// Quarter l of four vectors as the quarters of vector l.
void gather_quarters(__m512i a, __m512i b, __m512i c, __m512i d, __m512i *out) {
  const __m512i low[] = {_mm512_shuffle_i32x4(a, b, 0x44), _mm512_shuffle_i32x4(c, d, 0x44)};
  const __m512i high[] = {_mm512_shuffle_i32x4(a, b, 0xEE), _mm512_shuffle_i32x4(c, d, 0xEE)};
  out[0] = _mm512_shuffle_i32x4(low[0], low[1], 0x88);
  out[1] = _mm512_shuffle_i32x4(low[0], low[1], 0xDD);
  out[2] = _mm512_shuffle_i32x4(high[0], high[1], 0x88);
  out[3] = _mm512_shuffle_i32x4(high[0], high[1], 0xDD);
}

void store_line(uint8_t *dst, __m512i bytes, int64_t, int64_t count, Whole) {
  if (count == kTileBytes)
    _mm512_storeu_si512(dst, bytes);
  else
    _mm512_mask_storeu_epi8(dst, first_bytes(count), bytes);
}

void store_line(uint8_t *dst, __m512i bytes, int64_t line, int64_t count, Part part) {
  if (line < part.count) _mm512_mask_storeu_epi8(dst, first_bytes(count), bytes);
}

// Line i of dst gets byte i of each of so many rows, at most 16.
template <class Share>
void transpose_few(const Fours &all, int64_t rows, Share share, uint8_t *dst, int64_t stride) {
  for (int v = 0; v < 4; ++v) {
    __m512i sixteens[4];
    transpose_quarters(all.fours[v], sixteens);
    for (int j = 0; j < 4; ++j) {
      alignas(64) uint8_t lines[4][16];
      _mm512_store_si512(lines, sixteens[j]);
      for (int l = 0; l < 4; ++l) {
        const int64_t line = 16 * l + 4 * v + j;
        store_line(dst + line * stride, _mm512_zextsi128_si512(_mm_load_si128(reinterpret_cast<__m128i *>(lines[l]))),
                   line, rows, share);
      }
    }
  }
}

// The same of at most 64.
template <class Share>
void transpose_many(const Fours &all, int64_t rows, Share share, uint8_t *dst, int64_t stride) {
  for (int v = 0; v < 4; ++v) {
    __m512i sixteens[4][4];
    for (int q = 0; q < 4; ++q) transpose_quarters(all.fours[v] + 4 * q, sixteens[q]);
    for (int j = 0; j < 4; ++j) {
      __m512i lines[4];
      gather_quarters(sixteens[0][j], sixteens[1][j], sixteens[2][j], sixteens[3][j], lines);
      for (int l = 0; l < 4; ++l) {
        const int64_t line = 16 * l + 4 * v + j;
        store_line(dst + line * stride, lines[l], line, rows, share);
      }
    }
  }
}

template <class Share>
void transpose_bytes(const uint8_t *src, int64_t pitch, int64_t rows, Share share, uint8_t *dst, int64_t stride) {
  Fours all;
  load_fours(src, pitch, rows, share, &all);
  if (rows <= 16)
    transpose_few(all, rows, share, dst, stride);
  else
    transpose_many(all, rows, share, dst, stride);
}

// --- Rows to lines ---------------------------------------------------------------------------

// Shifts bytes; bits that leave one are lost.
template <int Count>
__m512i shift_bytes_left(__m512i bytes) {
  return _mm512_slli_epi16(_mm512_and_si512(bytes, _mm512_set1_epi8(0xFF >> Count)), Count);
}

template <int Count>
__m512i shift_bytes_right(__m512i bytes) {
  return _mm512_and_si512(_mm512_srli_epi16(bytes, Count), _mm512_set1_epi8(0xFF >> Count));
}

// So many rows of codes fill so many rows of bytes; a tile has at most kTileRows of codes.
template <int Bits>
struct RowPacking {
  static constexpr int kRows = Bits == 6 ? 4 : 8 / Bits;
  static constexpr int kBytes = kRows * Bits / 8;
  static constexpr int kTileRows = Bits == 4 ? 2 * kTileBytes : kTileBytes;
};

struct ByteRows {
  alignas(64) uint8_t row[kTileBytes][kTileBytes];
};

// Joins rows of codes to rows of bytes, each of which holds a byte of every line.
template <int Bits, class Share>
void pack_rows(const uint8_t *codes, int64_t pitch, int64_t rows, Share share, ByteRows *bytes) {
  using Packing = RowPacking<Bits>;
  uint8_t *to = bytes->row[0];
  for (int64_t k = 0; k < rows; k += Packing::kRows, codes += Packing::kRows * pitch, to += Packing::kBytes * 64) {
    __m512i row[Packing::kRows];
    for (int i = 0; i < Packing::kRows; ++i) row[i] = load_row(codes + i * pitch, share);
    if constexpr (Bits == 4) {
      _mm512_store_si512(to, _mm512_or_si512(row[0], _mm512_slli_epi16(row[1], 4)));
    } else {
      _mm512_store_si512(to, _mm512_or_si512(row[0], shift_bytes_left<6>(row[1])));
      _mm512_store_si512(to + 64, _mm512_or_si512(shift_bytes_right<2>(row[1]), shift_bytes_left<4>(row[2])));
      _mm512_store_si512(to + 128, _mm512_or_si512(shift_bytes_right<4>(row[2]), _mm512_slli_epi16(row[3], 2)));
    }
  }
}

// Asks for the lines that the next step writes: each lies in a page of its own, where no processor expects it.
void prefetch_lines(const uint8_t *dst, int64_t stride, Whole) {
  for (int64_t i = kTileBytes; i < 2 * kTileBytes; ++i)
    _mm_prefetch(reinterpret_cast<const char *>(reinterpret_cast<intptr_t>(dst) + i * stride), _MM_HINT_T0);
}

void prefetch_lines(const uint8_t *, int64_t, Part) {}

template <int Bits>
__attribute__((noinline)) void pack_lines(const uint8_t *codes, int64_t pitch, int64_t rows, int64_t count,
                                          uint8_t *dst, int64_t stride) {
  constexpr int64_t kRows = RowPacking<Bits>::kTileRows;
  in_sixty_fours(count, [=](int64_t line, auto share) {
    prefetch_lines(dst + line * stride, stride, share);
    for (int64_t first = 0; first < rows; first += kRows) {
      const uint8_t *const from = codes + first * pitch + line;
      uint8_t *const to = dst + line * stride + first * Bits / 8;
      const int64_t there = rows - first < kRows ? rows - first : kRows;
      if constexpr (Bits == 8) {
        transpose_bytes(from, pitch, there, share, to, stride);
      } else {
        ByteRows bytes;
        pack_rows<Bits>(from, pitch, there, share, &bytes);
        transpose_bytes(bytes.row[0], kTileBytes, there * Bits / 8, share, to, stride);
      }
    }
  });
}

// --- Lines to rows ---------------------------------------------------------------------------

// The rows of clean codes that so many rows of bytes hold.
template <int Bits>
void spread_bytes(const uint8_t *bytes, __m512i *row) {
  const __m512i first = _mm512_load_si512(bytes);
  row[0] = clear_noise<Bits>(first);
  if constexpr (Bits == 4) {
    row[1] = shift_bytes_right<4>(first);
  } else {
    const __m512i second = _mm512_load_si512(bytes + 64), third = _mm512_load_si512(bytes + 128);
    row[1] = clear_noise<6>(_mm512_or_si512(shift_bytes_right<6>(first), shift_bytes_left<2>(second)));
    row[2] = clear_noise<6>(_mm512_or_si512(shift_bytes_right<4>(second), shift_bytes_left<4>(third)));
    row[3] = shift_bytes_right<2>(third);
  }
}

template <int Bits, class Share>
void spread_rows(const ByteRows &bytes, int64_t rows, Share share, uint8_t *codes, int64_t pitch) {
  using Packing = RowPacking<Bits>;
  const uint8_t *from = bytes.row[0];
  for (int64_t k = 0; k < rows; k += Packing::kRows, from += Packing::kBytes * kTileBytes) {
    __m512i row[Packing::kRows];
    spread_bytes<Bits>(from, row);
    for (int i = 0; i < Packing::kRows && k + i < rows; ++i) store_row(codes + (k + i) * pitch, row[i], share);
  }
}

// At most 64 bytes of each of at most 64 lines, as so many rows.
void turn_lines(const uint8_t *src, int64_t stride, int64_t lines, int64_t bytes, uint8_t *dst, int64_t pitch) {
  if (bytes == kTileBytes)
    transpose_bytes(src, stride, lines, Whole(), dst, pitch);
  else
    transpose_bytes(src, stride, lines, Part{bytes}, dst, pitch);
}

int64_t lines_of(Whole) { return kTileBytes; }
int64_t lines_of(Part part) { return part.count; }

template <int Bits>
__attribute__((noinline)) void unpack_lines(const uint8_t *src, int64_t stride, int64_t rows, int64_t count,
                                            uint8_t *codes, int64_t pitch) {
  constexpr int64_t kRows = RowPacking<Bits>::kTileRows;
  in_sixty_fours(count, [=](int64_t line, auto share) {
    for (int64_t first = 0; first < rows; first += kRows) {
      const uint8_t *const from = src + line * stride + first * Bits / 8;
      uint8_t *const to = codes + first * pitch + line;
      const int64_t there = rows - first < kRows ? rows - first : kRows, bytes = (there * Bits + 7) / 8;
      if constexpr (Bits == 8) {
        turn_lines(from, stride, lines_of(share), bytes, to, pitch);
      } else {
        ByteRows turned;
        turn_lines(from, stride, lines_of(share), bytes, turned.row[0], kTileBytes);
        spread_rows<Bits>(turned, there, share, to, pitch);
      }
    }
  });
}

template <int... Bits>
void add_own_turns(BlockKernels *kernels) {
  ((kernels->pack_across[Bits] = pack_lines<Bits>), ...);
  ((kernels->unpack_across[Bits] = unpack_lines<Bits>), ...);
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_BLOCKS_AVX512_TURNS_H_
