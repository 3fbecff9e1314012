// What vector code needs to know of a format to decode it by tables of 16 bytes.
// Layout: codes of at most 8 bits, one a byte; constants made of numerics.h while compiling.
// Trick: the nibbles of a code add up to its float's highest bits, but for the first and the last codes.
#ifndef DLFP4_SRC_HOST_SIMD_DECODE_RULES_H_
#define DLFP4_SRC_HOST_SIMD_DECODE_RULES_H_

#include <stdint.h>

#include "lanes.h"
#include "rules/numerics.h"

namespace dlfp4 {
namespace {

// A vector. A table is the same in both halves: instructions look up within 16 bytes.
struct Constant {
  alignas(32) uint8_t byte[32];
};

template <class Function>
constexpr Constant make_constant(Function byte_at) {
  Constant constant = {};
  for (int i = 0; i < 32; ++i) constant.byte[i] = static_cast<uint8_t>(byte_at(i));
  return constant;
}

// --- Decoding --------------------------------------------------------------------------------

// Only the highest 16 bits of a code's float can be nonzero: they are its word. Sixteen codes that differ in their low
// nibble alone are a row.
constexpr uint16_t word_of(int src, int dst, int code) {
  const uint64_t value =
      convert(kTypes[src], kTypes[dst], static_cast<uint64_t>(code), {DLFP4_NEAREST_EVEN, false}, {0, 0, 0});
  return static_cast<uint16_t>(value >> (kTypes[dst].bits - 16));
}

// Words by a nibble, as a table a byte.
struct WordTable {
  Constant byte[2];
  constexpr void set(int nibble, int word) {
    for (int i = nibble; i < 32; i += 16) {
      byte[0].byte[i] = static_cast<uint8_t>(word);
      byte[1].byte[i] = static_cast<uint8_t>(word >> 8);
    }
  }
  constexpr int get(int nibble) const { return byte[0].byte[nibble] | byte[1].byte[nibble] << 8; }
  constexpr bool is_zero(int which) const {
    for (uint8_t entry : byte[which].byte)
      if (entry) return false;
    return true;
  }
};

// The words of a row that are wrong after the nibbles are looked up: none, one, or several.
struct Correction {
  int wrong;  // words
  int code;   // of the last wrong one
  int flip;   // that word's wrong bits
  WordTable table;
};

// word(code) = offset + (by_high[high nibble] ^ by_low[low nibble]) but in the first row, which has the subnormals, and
// in the last, which has the special values. The correction of the last is stored backwards.
struct DecodeRule {
  int sign;    // the bit of a code that is its sign, or 0 where the tables have to know better
  int offset;  // zero, unless the exponents' biases differ by what would carry out of the low nibble
  WordTable by_high;
  WordTable by_low;
  Correction first;
  Correction last;
  int negative_zero_flip;  // wrong bits of the word of -0, where that is a NaN
};

constexpr void correct(Correction *correction, int code, int entry, int flip) {
  correction->table.set(entry, flip);
  if (flip == 0) return;
  ++correction->wrong;
  correction->code = code;
  correction->flip = flip;
}

constexpr DecodeRule make_decode_rule(int src, int dst, int offset) {
  DecodeRule rule = {};
  const ElementType from = kTypes[src];
  rule.sign = from.bits == 4 || from.specials == DLFP4_E8M0 ? 0 : 1 << (from.bits - 1);
  rule.offset = offset & 0xFFFF;
  const int last = ((1 << from.bits) - 1 - rule.sign) >> 4, typical = last > 0 ? 1 : 0;
  const auto word = [&](int row, int low) { return (word_of(src, dst, row << 4 | low) - offset) & 0xFFFF; };
  for (int low = 0; low < 16; ++low) rule.by_low.set(low, word(typical, low) ^ word(typical, 0));
  for (int row = 0; row <= last; ++row) {
    const int normal = row == 0 ? 15 : 0;
    const int high = word(row, normal) ^ rule.by_low.get(normal);
    rule.by_high.set(row, high);
    if (rule.sign) rule.by_high.set(row | rule.sign >> 4, high ^ 0x8000);
  }
  for (int low = 0; low < 16; ++low) {
    correct(&rule.first, low, low, word(0, low) ^ rule.by_high.get(0) ^ rule.by_low.get(low));
    const int flip = last > typical ? word(last, low) ^ rule.by_high.get(last) ^ rule.by_low.get(low) : 0;
    correct(&rule.last, last << 4 | low, 15 - low, flip);
  }
  if (from.specials == DLFP4_FNUZ) rule.negative_zero_flip = word(8, 0) ^ word(0, 0) ^ 0x8000;
  return rule;
}

constexpr bool fits(const DecodeRule &rule, int src, int dst) {
  const int last = ((1 << kTypes[src].bits) - 1 - rule.sign) >> 4;
  for (int code = 16; code < last << 4; ++code) {
    const int word = rule.offset + (rule.by_high.get(code >> 4) ^ rule.by_low.get(code & 15));
    if ((word & 0xFFFF) != word_of(src, dst, code)) return false;
  }
  return true;
}

constexpr int difference_of_biases(int src, int dst) {
  const int mantissa = kTypes[dst].mantissa - (kTypes[dst].bits - 16);
  return (kTypes[dst].bias - kTypes[src].bias) * (1 << mantissa);
}

constexpr DecodeRule find_decode_rule(int src, int dst) {
  const DecodeRule rule = make_decode_rule(src, dst, 0);
  return fits(rule, src, dst) ? rule : make_decode_rule(src, dst, difference_of_biases(src, dst));
}

template <int Src, int Dst>
constexpr DecodeRule kDecodeRule = find_decode_rule(Src, Dst);

// The vectors of a step's codes.
template <class Isa>
struct Nibbles {
  typename Isa::Bytes code;  // without noise above it
  typename Isa::Bytes magnitude;
  typename Isa::Bytes high;
  typename Isa::Bytes low;  // or anything that finds the same entries
};

constexpr int byte_of(int word, int which) { return word >> 8 * which & 0xFF; }

// Byte `which` of the words. Isa has zero(), look_up(table, index), flip_equal(bytes, a, b, bits), which flips bits of
// the bytes where a is b, and the indices in_first(magnitudes) and in_last(magnitudes, largest), which find a zero
// outside the row.
template <class Isa, int Src, int Dst, int which>
DLFP4_ALWAYS_INLINE inline typename Isa::Bytes decode_byte(const Nibbles<Isa> &nibbles) {
  constexpr const DecodeRule &kRule = kDecodeRule<Src, Dst>;
  static_assert(fits(kRule, Src, Dst), "the words of this pair need another rule");
  typename Isa::Bytes bytes = Isa::zero();
  const auto flip = [&](const WordTable &table, typename Isa::Bytes index)
                        DLFP4_ALWAYS_INLINE { bytes = Isa::flip(bytes, Isa::look_up(table.byte[which], index)); };
  if constexpr (!kRule.by_high.is_zero(which)) flip(kRule.by_high, nibbles.high);
  if constexpr (!kRule.by_low.is_zero(which)) flip(kRule.by_low, nibbles.low);
  if constexpr (kRule.first.wrong > 1 && !kRule.first.table.is_zero(which))
    flip(kRule.first.table, Isa::in_first(nibbles.magnitude));
  if constexpr (kRule.last.wrong > 1 && !kRule.last.table.is_zero(which))
    flip(kRule.last.table, Isa::in_last(nibbles.magnitude, kRule.sign ? 0x7F : 0xFF));
  if constexpr (kRule.first.wrong == 1 && byte_of(kRule.first.flip, which) != 0)
    bytes = Isa::flip_equal(bytes, nibbles.magnitude, kRule.first.code, byte_of(kRule.first.flip, which));
  if constexpr (kRule.last.wrong == 1 && byte_of(kRule.last.flip, which) != 0)
    bytes = Isa::flip_equal(bytes, nibbles.magnitude, kRule.last.code, byte_of(kRule.last.flip, which));
  if constexpr (byte_of(kRule.negative_zero_flip, which) != 0)
    bytes = Isa::flip_equal(bytes, nibbles.code, 0x80, byte_of(kRule.negative_zero_flip, which));
  return bytes;
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_HOST_SIMD_DECODE_RULES_H_
