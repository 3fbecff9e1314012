// Every conversion, one element at a time, by the rules of numerics.h: the oracle of all levels.
// Layout: contiguous unpacked codes on both sides; packing and unpacking are kernels of their own.
// Trick: codes of at most 8 bits go through a table, made by the same rules, where that pays.
#include <string.h>

#include <utility>

#include "kernels.h"
#include "rules/numerics.h"

namespace dlfp4 {
namespace {

template <int Bits>
struct CodeType;
template <>
struct CodeType<8> {
  using type = uint8_t;
};
template <>
struct CodeType<16> {
  using type = uint16_t;
};
template <>
struct CodeType<32> {
  using type = uint32_t;
};
template <>
struct CodeType<64> {
  using type = uint64_t;
};

// The integer that holds an unpacked code of a row.
template <int Row>
using Code = typename CodeType < kTypes[Row].bits<8 ? 8 : kTypes[Row].bits>::type;

template <class Integer>
Integer load(const uint8_t *data, int64_t index) {
  Integer value;
  memcpy(&value, data + index * sizeof(value), sizeof(value));
  return value;
}

template <class Integer>
void store(uint8_t *data, int64_t index, Integer value) {
  memcpy(data + index * sizeof(value), &value, sizeof(value));
}

// --- Conversions -----------------------------------------------------------------------------

constexpr Draw kNoDraw = {0, 0, 0};

// Inlined, as is the loop around it: as a call it is up to twice as slow, and what else is in this file decides whether
// gcc makes it one.
template <int Src, int Dst>
DLFP4_RULE Code<Dst> convert_code(Code<Src> code, Round round, const Draw &draw) {
  return static_cast<Code<Dst>>(convert(kTypes[Src], kTypes[Dst], code, round, draw));
}

template <int Src, int Dst>
struct Table {
  static constexpr int kSize = 1 << (kTypes[Src].bits <= 8 ? kTypes[Src].bits : 0);
  Code<Dst> code[kSize];
};

template <int Src, int Dst>
constexpr Table<Src, Dst> make_table(Round round) {
  Table<Src, Dst> table = {};
  for (int code = 0; code < Table<Src, Dst>::kSize; ++code)
    table.code[code] = convert_code<Src, Dst>(static_cast<Code<Src>>(code), round, kNoDraw);
  return table;
}

template <int Src, int Dst>
void look_up(const Table<Src, Dst> &table, const uint8_t *src, uint8_t *dst, int64_t count) {
  for (int64_t i = 0; i < count; ++i) store(dst, i, table.code[src[i] & (Table<Src, Dst>::kSize - 1)]);
}

template <int Src, int Dst>
__attribute__((always_inline)) inline void round_each(const uint8_t *src, uint8_t *dst, int64_t count, Round round) {
  for (int64_t i = 0; i < count; ++i) store(dst, i, convert_code<Src, Dst>(load<Code<Src>>(src, i), round, kNoDraw));
}

template <int Src, int Dst>
void round_randomly(const uint8_t *src, uint8_t *dst, int64_t count, const Mode &mode) {
  const Round round = {DLFP4_STOCHASTIC, mode.saturate};
  RandomBlock block = philox(mode.seed, mode.first / 4, 0);
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t index = mode.first + static_cast<uint64_t>(i);
    if (index % 4 == 0) block = philox(mode.seed, index / 4, 0);
    const Draw draw = {mode.seed, index, block.word[index % 4]};
    store(dst, i, convert_code<Src, Dst>(load<Code<Src>>(src, i), round, draw));
  }
}

template <int Src, int Dst>
void convert_codes(const uint8_t *src, uint8_t *dst, int64_t count, const Mode &mode) {
  if (mode.rounding == DLFP4_STOCHASTIC) return round_randomly<Src, Dst>(src, dst, count, mode);
  const Round round = {mode.rounding, mode.saturate};
  if constexpr (kTypes[Src].bits <= 8) {
    if (count >= 4 * Table<Src, Dst>::kSize) return look_up<Src, Dst>(make_table<Src, Dst>(round), src, dst, count);
  }
  if (round.rounding == DLFP4_NEAREST_EVEN)  // The constant lets the compiler drop the other ways.
    round_each<Src, Dst>(src, dst, count, {DLFP4_NEAREST_EVEN, round.saturate});
  else
    round_each<Src, Dst>(src, dst, count, round);
}

template <int Src, int Dst>
void decode_codes(const uint8_t *src, uint8_t *dst, int64_t count, const Mode &) {
  static constexpr Table<Src, Dst> table = make_table<Src, Dst>({DLFP4_NEAREST_EVEN, false});
  look_up<Src, Dst>(table, src, dst, count);
}

template <int Src, int Dst>
constexpr Kernel conversion() {
  if constexpr (kTypes[Src].bits <= 8 && holds_exactly(kTypes[Dst], kTypes[Src]))
    return decode_codes<Src, Dst>;
  else
    return convert_codes<Src, Dst>;
}

// --- Copies ----------------------------------------------------------------------------------

template <int Bytes>
void copy(const uint8_t *src, uint8_t *dst, int64_t count, const Mode &) {
  memmove(dst, src, static_cast<size_t>(count) * Bytes);
}

template <int Bits>
void copy_padded(const uint8_t *src, uint8_t *dst, int64_t count, const Mode &) {
  for (int64_t i = 0; i < count; ++i) dst[i] = src[i] & ((1 << Bits) - 1);
}

template <int Bits>
void copy_packed(const uint8_t *src, uint8_t *dst, int64_t count, const Mode &) {
  const int64_t whole = count * Bits / 8;
  const int spare = static_cast<int>(count * Bits % 8);
  memmove(dst, src, static_cast<size_t>(whole));
  if (spare) dst[whole] = src[whole] & static_cast<uint8_t>((1 << spare) - 1);
}

// A group is the least number of elements that fills whole bytes.
template <int Bits>
struct Group {
  static constexpr int kBytes = Bits == 6 ? 3 : 1;
  static constexpr int kElements = 8 * kBytes / Bits;
};

template <int Bits>
uint32_t pack_group(const uint8_t *codes, int64_t elements) {
  uint32_t word = 0;
  for (int64_t i = 0; i < elements; ++i) word |= (codes[i] & ((1u << Bits) - 1)) << i * Bits;
  return word;
}

template <int Bits>
void unpack_group(uint32_t word, uint8_t *codes, int64_t elements) {
  for (int64_t i = 0; i < elements; ++i) codes[i] = word >> i * Bits & ((1u << Bits) - 1);
}

inline uint32_t load_bytes(const uint8_t *data, int64_t bytes) {
  uint32_t word = 0;
  for (int64_t i = 0; i < bytes; ++i) word |= static_cast<uint32_t>(data[i]) << 8 * i;
  return word;
}

inline void store_bytes(uint8_t *data, uint32_t word, int64_t bytes) {
  for (int64_t i = 0; i < bytes; ++i) data[i] = static_cast<uint8_t>(word >> 8 * i);
}

template <int Bits>
void pack(const uint8_t *src, uint8_t *dst, int64_t count, const Mode &) {
  constexpr int kElements = Group<Bits>::kElements, kBytes = Group<Bits>::kBytes;
  const int64_t groups = count / kElements, rest = count % kElements;
  for (int64_t i = 0; i < groups; ++i)
    store_bytes(dst + i * kBytes, pack_group<Bits>(src + i * kElements, kElements), kBytes);
  store_bytes(dst + groups * kBytes, pack_group<Bits>(src + groups * kElements, rest), (rest * Bits + 7) / 8);
}

template <int Bits>
void unpack(const uint8_t *src, uint8_t *dst, int64_t count, const Mode &) {
  constexpr int kElements = Group<Bits>::kElements, kBytes = Group<Bits>::kBytes;
  const int64_t groups = count / kElements, rest = count % kElements;
  for (int64_t i = 0; i < groups; ++i)
    unpack_group<Bits>(load_bytes(src + i * kBytes, kBytes), dst + i * kElements, kElements);
  unpack_group<Bits>(load_bytes(src + groups * kBytes, (rest * Bits + 7) / 8), dst + groups * kElements, rest);
}

// --- The table -------------------------------------------------------------------------------

constexpr int count_rows() {
  int rows = 0;
  for (int src = 0; src < DLFP4_NUM_DTYPES; ++src) {
    rows += kTypes[src].bits < 8 ? 4 : 1;
    for (int dst = 0; dst < DLFP4_NUM_DTYPES; ++dst)
      rows += is_float(kTypes[src]) && is_float(kTypes[dst]) && src != dst;
  }
  return rows;
}

struct KernelRows {
  KernelRow row[count_rows()];
  int size;
  constexpr void add(uint8_t src, bool src_packed, uint8_t dst, bool dst_packed, Kernel kernel) {
    row[size++] = {{src, src_packed}, {dst, dst_packed}, kAnyMode, kernel};
  }
};

template <int Row>
constexpr void add_copies(KernelRows *rows) {
  constexpr int kBits = kTypes[Row].bits;
  if constexpr (kBits < 8) {
    rows->add(Row, false, Row, false, copy_padded<kBits>);
    rows->add(Row, true, Row, true, copy_packed<kBits>);
    rows->add(Row, true, Row, false, unpack<kBits>);
    rows->add(Row, false, Row, true, pack<kBits>);
  } else {
    rows->add(Row, false, Row, false, copy<kBits / 8>);
  }
}

template <int Src, int Dst>
constexpr void add_conversion(KernelRows *rows) {
  if constexpr (Src != Dst && is_float(kTypes[Src]) && is_float(kTypes[Dst]))
    rows->add(Src, false, Dst, false, conversion<Src, Dst>());
}

template <int Src, int... Dst>
constexpr void add_source(KernelRows *rows, std::integer_sequence<int, Dst...>) {
  add_copies<Src>(rows);
  (add_conversion<Src, Dst>(rows), ...);
}

template <int... Src>
constexpr KernelRows make_rows(std::integer_sequence<int, Src...> all) {
  KernelRows rows = {};
  (add_source<Src>(&rows, all), ...);
  return rows;
}

constexpr KernelRows kRows = make_rows(std::make_integer_sequence<int, DLFP4_NUM_DTYPES>());

}  // namespace

void add_scalar_codecs(CodecKernels *kernels) { kernels->add(kRows.row, kRows.size); }

}  // namespace dlfp4
