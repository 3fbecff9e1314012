// Weights in the order in which the matrix kernels read them.
// Layout: blocks of 128 rows and 64 elements of K, row blocks outermost: the codes of a block, then its scales. The
// codes lie in fragments of mma.m16n8k16: [tile of 16 rows][lane][k16 step] words, so that a lane loads 16 bytes at a
// time. Trick: a word of FP4 holds the codes where masks and one shift a field make 16-bit floats of them
// (fragments.cuh), and scales are unsigned with five exponent bits, which a shift makes 16-bit floats of. What cannot
// be stored so is refused by inspect_weights; all else converts back exactly, but for codes under a zero scale, of
// which the signs are left.
#ifndef DLFP4_SRC_CUDA_PREPARED_H_
#define DLFP4_SRC_CUDA_PREPARED_H_

#include "../formats.h"
#include "../numerics.h"

namespace dlfp4 {
namespace cuda {

constexpr int kBlockRows = 128, kBlockK = 64, kTile = 16, kTilesInBlock = kBlockRows / kTile;
constexpr int kSteps = kBlockK / 16;  // of an mma, along K
constexpr int kWarpSize = 32;

// Rows of blocks are completed to a multiple of what kernels for few rows of x take at a time (few_rows.h).
DLFP4_RULE int slice_blocks(int bits) { return bits == 4 ? 4 : 2; }

// What distinguishes prepared weights: the width of a code, and how many of a row share a scale.
enum WeightKind { kNvfp4, kMxfp4, kMxfp8, kNumWeightKinds };

struct WeightLayout {
  int bits, group;
  DLFP4_RULE int words() const { return bits; }  // of a lane in a block: 32 codes
  DLFP4_RULE int groups() const { return kBlockK / group; }
  DLFP4_RULE int code_bytes() const { return kBlockRows * kBlockK * bits / 8; }
  DLFP4_RULE int scale_bytes() const { return kBlockRows * groups(); }
  DLFP4_RULE int bytes() const { return code_bytes() + scale_bytes(); }
};

DLFP4_RULE WeightLayout weight_layout(int kind) {
  return kind == kNvfp4 ? WeightLayout{4, 16} : kind == kMxfp4 ? WeightLayout{4, 32} : WeightLayout{8, 32};
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

// Where a half word of FP4 holds the code of place 0 to 3, the operand a0 to a3 of the mma: its sign and its magnitude.
DLFP4_RULE int sign_bit(int place) { return place == 0 ? 15 : place == 1 ? 11 : place == 2 ? 9 : 10; }
DLFP4_RULE int magnitude_bit(int place) { return place == 0 ? 6 : place == 1 ? 3 : place == 2 ? 0 : 12; }

DLFP4_RULE uint32_t place_code(uint32_t code, int place) {
  return code >> 3 << sign_bit(place) | (code & 7) << magnitude_bit(place);
}

DLFP4_RULE uint32_t code_at(uint32_t half, int place) {
  return (half >> sign_bit(place) & 1) << 3 | (half >> magnitude_bit(place) & 7);
}

// Of a lane's pair of neighbours along K: its row in the tile, and the first one's place among 64. `step` is the k16
// step, `place` the operand.
DLFP4_RULE int fragment_row(int lane, int place) { return (lane >> 2) + (place & 1) * 8; }
DLFP4_RULE int fragment_k(int lane, int step, int place) { return step * 16 + (place >> 1) * 8 + (lane & 3) * 2; }

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_CUDA_PREPARED_H_
