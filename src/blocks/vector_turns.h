// Codes one a byte across lines to packed ones along lines, and back, for AVX2 and NEON alike.
// Layout: rows have a byte, or a code, of every line; lines have theirs next to each other.
// Trick: whole bytes are transposed, 16 of as many lines in each 16 bytes of the vectors, by nothing but zips.
#ifndef DLFP4_SRC_BLOCKS_VECTOR_TURNS_H_
#define DLFP4_SRC_BLOCKS_VECTOR_TURNS_H_

#include <stdint.h>
#include <string.h>

#include "host/simd/lanes.h"

namespace dlfp4 {
namespace {

// --- Bytes -----------------------------------------------------------------------------------

// Isa::zip_low and zip_high alternate the bytes of the lower or upper eight of each 16; Isa::load_sixteens(src, next)
// loads as many sixteens as there are in a vector, `next` bytes apart.
template <class Isa>
struct ByteTile {
  using U8 = typename Isa::U8;
  static constexpr int kLines = sizeof(U8);
  U8 row[16];

  // Each round moves one bit of a byte's place into its row, and one bit of its row into its place.
  void transpose() {
    for (int bit = 0; bit < 4; ++bit) {
      U8 next[16];
      for (int i = 0; i < 8; ++i) {
        next[2 * i] = Isa::zip_low(row[i], row[i + 8]);
        next[2 * i + 1] = Isa::zip_high(row[i], row[i + 8]);
      }
      for (int i = 0; i < 16; ++i) row[i] = next[i];
    }
  }

  // Line i is in sixteen i / 16 of row i % 16.
  void load_whole_lines(const uint8_t *src, int64_t stride) {
    for (int i = 0; i < 16; ++i) row[i] = Isa::load_sixteens(src + i * stride, 16 * stride);
  }

  void load_lines(const uint8_t *src, int64_t stride, int64_t lines, int64_t bytes) {
    if (lines >= kLines && bytes >= 16) return load_whole_lines(src, stride);
    alignas(64) uint8_t staged[kLines][16] = {};
    for (int64_t i = 0; i < least(lines, kLines); ++i)
      memcpy(staged[i], src + i * stride, static_cast<size_t>(least(bytes, 16)));
    load_whole_lines(staged[0], 16);
  }

  void store_lines(uint8_t *dst, int64_t stride, int64_t lines, int64_t bytes) const {
    for (int64_t i = 0; i < least(lines, kLines); ++i) {
      uint8_t sixteens[kLines];
      store_lanes(sixteens, row[i % 16]);
      const uint8_t *const line = sixteens + i / 16 * 16;
      if (bytes >= 16)
        memcpy(dst + i * stride, line, 16);
      else
        memcpy(dst + i * stride, line, static_cast<size_t>(bytes));
    }
  }
};

// Bytes are shifted as words; bits that come from the neighbour are cleared.
template <class Isa>
struct ByteShifts {
  using U8 = typename Isa::U8;
  using U16 = typename Isa::U16;

  static U8 only(U16 words, int bits) {
    return reinterpret_cast<U8>(words & splat<U16>(static_cast<uint16_t>(0x0101 * (bits & 0xFF))));
  }
  static U8 up(U8 bytes, int count) { return only(reinterpret_cast<U16>(bytes) << count, 0xFF << count); }
  static U8 down(U8 bytes, int count) { return only(reinterpret_cast<U16>(bytes) >> count, 0xFF >> count); }
  static U8 lowest(U8 bytes, int count) { return only(reinterpret_cast<U16>(bytes), (1 << count) - 1); }
};

// --- Packing ---------------------------------------------------------------------------------

// Rows of clean codes as rows of bytes.
template <class Isa, int Bits>
struct RowsOfCodes {
  using U8 = typename Isa::U8;
  using Shift = ByteShifts<Isa>;
  const uint8_t *codes;
  int64_t pitch;
  int64_t lines;

  U8 load(int64_t row) const { return Isa::template load_part<U8>(codes + row * pitch, lines); }

  U8 bytes(int64_t row) const {
    if constexpr (Bits == 8) return load(row);
    if constexpr (Bits == 4) return load(2 * row) | Shift::up(load(2 * row + 1), 4);
    const int64_t low = row / 3 * 4 + row % 3;
    const int part = static_cast<int>(row % 3);
    return Shift::down(load(low), 2 * part) | Shift::up(load(low + 1), 6 - 2 * part);
  }
};

template <class Isa, int Bits>
void pack_lines(const uint8_t *codes, int64_t pitch, int64_t rows, int64_t count, uint8_t *dst, int64_t stride) {
  using Tile = ByteTile<Isa>;
  const int64_t bytes = rows * Bits / 8;
  for (int64_t line = 0; line < count; line += Tile::kLines) {
    const RowsOfCodes<Isa, Bits> part = {codes + line, pitch, count - line};
    for (int64_t first = 0; first < bytes; first += 16) {
      Tile tile;
      for (int i = 0; i < 16; ++i) tile.row[i] = first + i < bytes ? part.bytes(first + i) : typename Isa::U8{};
      tile.transpose();
      tile.store_lines(dst + line * stride + first, stride, count - line, bytes - first);
    }
  }
}

// --- Unpacking -------------------------------------------------------------------------------

// Code `number` of those that begin with the tile's first byte.
template <class Isa, int Bits>
typename Isa::U8 code_of(const ByteTile<Isa> &tile, int number) {
  using Shift = ByteShifts<Isa>;
  const int byte = number * Bits / 8, shift = number * Bits % 8;
  if constexpr (Bits == 8) return tile.row[number];
  const typename Isa::U8 low = Shift::down(tile.row[byte], shift);
  if (shift + Bits <= 8) return Shift::lowest(low, Bits);
  return Shift::lowest(low | Shift::up(tile.row[byte + 1], 8 - shift), Bits);
}

template <class Isa, int Bits>
void unpack_lines(const uint8_t *src, int64_t stride, int64_t rows, int64_t count, uint8_t *codes, int64_t pitch) {
  using Tile = ByteTile<Isa>;
  constexpr int kBytes = Bits == 6 ? 15 : 16, kRows = kBytes * 8 / Bits;
  for (int64_t line = 0; line < count; line += Tile::kLines) {
    for (int64_t first = 0; first < rows; first += kRows) {
      const int64_t byte = first * Bits / 8, bytes = (rows * Bits + 7) / 8 - byte;
      Tile tile;
      tile.load_lines(src + line * stride + byte, stride, count - line, bytes);
      tile.transpose();
      for (int k = 0; k < least(kRows, rows - first); ++k)
        Isa::store_part(codes + (first + k) * pitch + line, code_of<Isa, Bits>(tile, k), count - line);
    }
  }
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_BLOCKS_VECTOR_TURNS_H_
