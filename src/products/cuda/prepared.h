// Weights in the order in which the matrix kernels read them.
// Layout: blocks of 128 rows and 64 elements of K, row blocks outermost: the codes of a block, then its scales. The
// codes lie in fragments of mma.m16n8k16: [tile of 16 rows][lane][k16 step] words, so that a lane loads 16 bytes at a
// time.
// Trick: a word is what the fewest operations turn into 16-bit floats (fragments.cuh). It holds not codes but bits from
// which shifts and an exclusive or make the codes, each where one mask cuts it out. Scales are powers of two, or
// unsigned with five exponent bits, turned to where a mask leaves 16-bit floats. inspect_weights refuses what cannot be
// stored so. All else converts back exactly, except codes under a zero scale, which keep their signs alone.
#ifndef DLFP4_SRC_PRODUCTS_CUDA_PREPARED_H_
#define DLFP4_SRC_PRODUCTS_CUDA_PREPARED_H_

#include "rules/formats.h"
#include "rules/numerics.h"

namespace dlfp4 {
namespace cuda {

constexpr int kBlockRows = 128, kBlockK = 64, kTile = 16, kTilesInBlock = kBlockRows / kTile;
constexpr int kSteps = kBlockK / 16;  // of an mma, along K

// Rows of blocks are completed to a multiple of what kernels for few rows of x take at a time (few_rows.h).
DLFP4_RULE int slice_blocks(int bits) { return bits == 4 ? 4 : 2; }

// What distinguishes prepared weights: the width of a code, how many of a row share a scale, and whether scales are
// powers of two or E4M3.
enum WeightKind { kNvfp4, kMxfp4, kMxfp8, kNumWeightKinds };

struct WeightLayout {
  int bits, group;
  bool is_power;
  DLFP4_RULE int words() const { return bits; }  // of a lane in a block: 32 codes
  DLFP4_RULE int groups() const { return kBlockK / group; }
  DLFP4_RULE int code_bytes() const { return kBlockRows * kBlockK * bits / 8; }
  DLFP4_RULE int scale_bytes() const { return kBlockRows * groups(); }
  DLFP4_RULE int scale_words() const { return kTile * groups() / 4; }  // of a tile
  DLFP4_RULE int bytes() const { return code_bytes() + scale_bytes(); }
};

DLFP4_RULE WeightLayout weight_layout(int kind) {
  return kind == kNvfp4   ? WeightLayout{4, 16, false}
         : kind == kMxfp4 ? WeightLayout{4, 32, true}
                          : WeightLayout{8, 32, true};
}

// Power-of-two scales are stored relative to the tensor's largest, which becomes kTopScale: its byte, as the exponent
// of a bfloat16, is close to the largest that is finite.
constexpr int kTopScale = 250;
// How far below it a scale with codes other than zero may lie for weights to be exact: in bfloat16, and in float16.
constexpr int kSpanBfloat16 = 120, kSpanFloat16 = 22;

// Unsigned e5m3, bias 22: e4m3's magnitudes, its subnormals normal. 0 stays 0.
DLFP4_RULE uint8_t wide_scale(uint8_t e4m3) {
  if (e4m3 == 0) return 0;
  int exponent = e4m3 >> 3, mantissa = e4m3 & 7;
  if (exponent == 0) {
    for (exponent = 1; mantissa < 8; --exponent) mantissa <<= 1;
    mantissa &= 7;
  }
  return static_cast<uint8_t>((exponent + 14) << 3 | mantissa);
}

DLFP4_RULE uint8_t narrow_scale(uint8_t wide) {
  if (wide == 0) return 0;
  const int exponent = (wide >> 3) - 14, mantissa = wide & 7;
  return static_cast<uint8_t>(exponent > 0 ? exponent << 3 | mantissa : (8 | mantissa) >> (1 - exponent));
}

// Relative to the largest, and back.
DLFP4_RULE uint8_t relative_scale(uint8_t byte, int largest) {
  return static_cast<uint8_t>(byte - largest + kTopScale);
}

DLFP4_RULE uint8_t absolute_scale(uint8_t byte, int largest) {
  return static_cast<uint8_t>(byte - kTopScale + largest);
}

// --- Words of codes ----------------------------------------------------------------------------
// A field is two neighbours along K, low half first, each with its sign in the top bit and its magnitude in the low
// exponent and the high mantissa bits of a bfloat16. A word of FP4 has four fields, of FP8 two: the mma's operands.

constexpr uint32_t kSigns = 0x80008000;

DLFP4_RULE uint32_t magnitude_mask(int bits) { return bits == 4 ? 0x01C001C0 : 0x07F007F0; }
DLFP4_RULE uint32_t field_mask(int bits) { return kSigns | magnitude_mask(bits); }
DLFP4_RULE int fields_of_word(int bits) { return 16 / bits; }

DLFP4_RULE uint32_t rotate_right(uint32_t word, int count) { return word >> count | word << (32 - count); }

// Constants that the compiler is not to know: powers of two, by which kernels shift left, so that it multiplies, for
// the units that shift are the busy ones; and bits to be set, so that one operation masks and sets.
struct Shifts {
  uint32_t by2 = 1 << 2, by3 = 1 << 3, by4 = 1 << 4, by8 = 1 << 8;
  uint32_t scale_exponents = 0x70007000;
};

// What field_mask cuts the fields from. No four turns of a word have every bit of it under the mask once; of these,
// with the exclusive or, each bit can be told from what the mask leaves.
DLFP4_RULE void spread_fields(int bits, uint32_t word, const Shifts &by, uint32_t *fields) {
  fields[0] = word;
  if (bits == 4) {
    const uint32_t turned = rotate_right(word, 10);
    fields[1] = word * by.by4;
    fields[2] = turned * by.by4;
    fields[3] = turned ^ turned * by.by8;
  } else {
    fields[1] = word * by.by4 ^ word >> 4;
  }
}

// The bits of the word that those of a field depend on and no field before does.
DLFP4_RULE uint32_t own_bits(int bits, int field, uint32_t of_field) {
  if (field == 0) return of_field;
  if (bits == 8) return (of_field & 0x07000700) << 4 | (of_field & ~0x07000700u) >> 4;
  if (field == 1) return of_field >> 4;
  if (field == 2) return rotate_right(of_field, 26);
  return rotate_right(of_field & ~0x01000100u, 22) | (of_field & 0x01000100) << 2;
}

// The word that has these fields: what is wrong is put right, until nothing is. No bit is two fields' own. One that was
// changed may make another wrong that depends on it too; after four rounds at most there is none left.
DLFP4_RULE uint32_t word_of_fields(int bits, const uint32_t *fields) {
  uint32_t word = 0, wrong = 1;
  while (wrong != 0) {
    uint32_t found[4] = {};
    spread_fields(bits, word, Shifts(), found);
    wrong = 0;
    for (int i = 0; i < fields_of_word(bits); ++i)
      wrong |= own_bits(bits, i, (found[i] ^ fields[i]) & field_mask(bits));
    word ^= wrong;
  }
  return word;
}

DLFP4_RULE uint32_t field_of_codes(int bits, uint32_t low, uint32_t high) {
  const int sign = bits - 1, place = bits == 4 ? 6 : 4;
  const uint32_t magnitudes = (1u << sign) - 1, both = low | high << 16;
  return (both >> sign & 0x00010001) << 15 | (both & (magnitudes | magnitudes << 16)) << place;
}

DLFP4_RULE uint32_t code_of_field(int bits, uint32_t field, int half) {
  const int sign = bits - 1, place = bits == 4 ? 6 : 4;
  const uint32_t own = field >> 16 * half;
  return (own >> 15 & 1) << sign | (own >> place & ((1u << sign) - 1));
}

// --- Words of scales ---------------------------------------------------------------------------
// Four bytes, turned so that one mask cuts the first and the third out of the word where 16-bit floats have them, and
// the second and the fourth out of the word turned by a byte.

DLFP4_RULE int turn_of_scales(bool is_power) { return is_power ? 7 : 4; }

// Of byte `byte` of word `word` of a tile: the row in the tile, and the group in the block.
struct ScalePlace {
  int row, group;
};

DLFP4_RULE ScalePlace scale_place(int group, int word, int byte) {
  return group == 16 ? ScalePlace{word / 2 + word % 2 * 8, byte} : ScalePlace{word + byte % 2 * 8, byte / 2};
}

// --- Fragments ---------------------------------------------------------------------------------

// Of a lane's pair of neighbours along K: its row in the tile, and the first one's place among 64. `step` is the k16
// step, `place` the operand.
DLFP4_RULE int fragment_row(int lane, int place) { return (lane >> 2) + (place & 1) * 8; }
DLFP4_RULE int fragment_k(int lane, int step, int place) { return step * 16 + (place >> 1) * 8 + (lane & 3) * 2; }

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_CUDA_PREPARED_H_
