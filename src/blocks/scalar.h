// Block scaling one element at a time, by the rules of scaling.h and numerics.h: the oracle of all levels' kernels.
// Layout: as in kernels.h.
// Products are float32, and numerics.h rounds them.
#ifndef DLFP4_SRC_BLOCKS_SCALAR_H_
#define DLFP4_SRC_BLOCKS_SCALAR_H_

#include <string.h>

#include "kernels.h"
#include "rules/hadamard.h"
#include "rules/numerics.h"
#include "rules/operand.h"
#include "rules/scaling.h"

namespace dlfp4 {
namespace {

// --- Floats ----------------------------------------------------------------------------------

constexpr Round kNearestSaturating = {DLFP4_NEAREST_EVEN, true};

template <int Row>
uint64_t load_code(const uint8_t *data, int64_t index) {
  constexpr int kBytes = kTypes[Row].bits / 8;
  uint64_t code = 0;
  memcpy(&code, data + index * kBytes, kBytes);
  return code;
}

template <int Row>
float load_float(const uint8_t *data, int64_t index) {
  const uint64_t code = load_code<Row>(data, index);
  if constexpr (Row == DLFP4_float32) return float_of(static_cast<uint32_t>(code));
  return float_of(
      static_cast<uint32_t>(convert(kTypes[Row], kTypes[DLFP4_float32], code, kNearestSaturating, {0, 0, 0})));
}

template <int Row>
void store_float(uint8_t *data, int64_t index, float value) {
  constexpr int kBytes = kTypes[Row].bits / 8;
  uint64_t code = bits_of(value);
  if constexpr (Row != DLFP4_float32)
    code = convert(kTypes[DLFP4_float32], kTypes[Row], code, kNearestSaturating, {0, 0, 0});
  memcpy(data + index * kBytes, &code, kBytes);
}

// --- Largest magnitudes ----------------------------------------------------------------------

template <int Src>
uint32_t magnitude_of(const uint8_t *src, int64_t index) {
  return bits_of(load_float<Src>(src, index)) & 0x7FFFFFFF;
}

template <int Src>
void find_largest(const uint8_t *src, int64_t count, int64_t block, uint32_t *amax) {
  for (int64_t first = 0; first < count; first += block, ++amax) {
    const int64_t last = count - first < block ? count : first + block;
    *amax = 0;
    for (int64_t i = first; i < last; ++i) {
      const uint32_t magnitude = magnitude_of<Src>(src, i);
      if (magnitude > *amax) *amax = magnitude;
    }
  }
}

template <int Src>
void join_largest(const uint8_t *src, int64_t stride, int64_t rows, int64_t count, uint32_t *amax) {
  for (int64_t k = 0; k < rows; ++k, src += stride) {
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t magnitude = magnitude_of<Src>(src, i);
      if (magnitude > amax[i]) amax[i] = magnitude;
    }
  }
}

// --- Scales ----------------------------------------------------------------------------------

template <int Key>
BlockScale scale_block(const ScaleRule &rule, uint32_t magnitude) {
  constexpr BlockKey kKey = kBlockKeys[Key];
  if constexpr (kKey.kind == DLFP4_TWO_LEVEL) return two_level_block(rule, kTypes[kKey.scale], magnitude);
  if constexpr (kKey.kind == DLFP4_POWER) return power_block(rule, magnitude);
  return largest_block(rule, magnitude);
}

template <int Key>
bool find_scales(const ScaleRule &rule, const uint32_t *amax, int64_t count, uint8_t *stored, float *multipliers) {
  constexpr int kBytes = kTypes[kBlockKeys[Key].scale].bits / 8;
  bool not_finite = false;
  for (int64_t b = 0; b < count; ++b) {
    const BlockScale scale = scale_block<Key>(rule, amax[b]);
    memcpy(stored + b * kBytes, &scale.stored, kBytes);
    multipliers[b] = scale.multiplier;
    not_finite |= amax[b] >= kFloatInfinity;
  }
  return not_finite;
}

template <int Key>
bool find_scales_of_lines(const ScaleRule &rule, const TensorScales &of, const uint32_t *amax, int64_t count,
                          uint8_t *stored, float *multipliers) {
  constexpr int kBytes = kTypes[kBlockKeys[Key].scale].bits / 8;
  ScaleRule of_line = rule;
  bool not_finite = false;
  for (int64_t i = 0; i < count; ++i) {
    of_line.first = of.first[i], of_line.second = of.second[i], of_line.unit = of.unit[i];
    not_finite |= find_scales<Key>(of_line, amax + i, 1, stored + i * kBytes, multipliers + i);
  }
  return not_finite;
}

template <int Key>
bool decode_scales(const uint8_t *stored, int64_t count, float decode, float *scales) {
  constexpr BlockKey kKey = kBlockKeys[Key];
  constexpr int kBytes = kTypes[kKey.scale].bits / 8;
  bool not_finite = false;
  for (int64_t b = 0; b < count; ++b) {
    uint32_t code = 0;
    memcpy(&code, stored + b * kBytes, kBytes);
    const float scale = decode_scale(kTypes[kKey.scale], code);
    scales[b] = kKey.kind == DLFP4_TWO_LEVEL ? scale * decode : scale;
    not_finite |= (bits_of(scales[b]) & 0x7FFFFFFF) >= kFloatInfinity;
  }
  return not_finite;
}

// --- Encoding --------------------------------------------------------------------------------

inline float scaled_by(float factor, float value, const BlockMode &mode) {
  return scaled(value, factor, mode.divides, mode.mantissa, mode.zero);
}

template <int Rounding, int Dst>
uint64_t encode_float(float value, const BlockMode &mode, int64_t index) {
  Draw draw = {0, 0, 0};
  if constexpr (Rounding == DLFP4_STOCHASTIC)
    draw = draw_of(mode.seed, mode.first + static_cast<uint64_t>(index) * mode.step);
  return convert(kTypes[DLFP4_float32], kTypes[Dst], bits_of(value), {static_cast<dlfp4_rounding>(Rounding), true},
                 draw);
}

// A group is the least number of elements that fills whole bytes: one, two or four.
template <int Bits>
struct Packing {
  static constexpr int kBits = Bits;
  static constexpr int kBytes = kBits == 6 ? 3 : 1;
  static constexpr int kElements = 8 * kBytes / kBits;
};

// Calls code_of(i) for all elements in order and packs the results.
template <int Bits, class CodeOf>
void pack_each(int64_t count, uint8_t *dst, CodeOf code_of) {
  using Pack = Packing<Bits>;
  for (int64_t i = 0; i < count; i += Pack::kElements, dst += Pack::kBytes) {
    uint64_t word = 0;
    for (int k = 0; k < Pack::kElements; ++k) word |= code_of(i + k) << k * Pack::kBits;
    memcpy(dst, &word, Pack::kBytes);
  }
}

template <int Rounding, int Src, int Dst>
void encode(const uint8_t *src, int64_t count, int64_t block, const float *multipliers, uint8_t *dst,
            const BlockMode &mode) {
  int64_t last = block;
  pack_each<kTypes[Dst].bits>(count, dst, [&](int64_t i) {
    if (i == last) ++multipliers, last += block;
    return encode_float<Rounding, Dst>(scaled_by(*multipliers, load_float<Src>(src, i), mode), mode, i);
  });
}

template <int Rounding, int Src, int Dst>
void encode_across(const uint8_t *src, int64_t count, const float *multipliers, uint8_t *codes, const BlockMode &mode) {
  for (int64_t i = 0; i < count; ++i) {
    const float value = scaled_by(multipliers[i], load_float<Src>(src, i), mode);
    codes[i] = static_cast<uint8_t>(encode_float<Rounding, Dst>(value, mode, i));
  }
}

template <int Bits>
void pack_across(const uint8_t *codes, int64_t pitch, int64_t rows, int64_t count, uint8_t *dst, int64_t stride) {
  for (int64_t i = 0; i < count; ++i)
    pack_each<Bits>(rows, dst + i * stride, [&](int64_t k) { return uint64_t{codes[k * pitch + i]}; });
}

// The elements of a line's first bytes, a group of whole bytes at a time; the last group may be incomplete.
template <int Bits>
void unpack_line(const uint8_t *src, int64_t rows, uint8_t *codes, int64_t pitch) {
  using Pack = Packing<Bits>;
  for (int64_t k = 0; k < rows; src += Pack::kBytes) {
    const int64_t last = rows - k < Pack::kElements ? rows : k + Pack::kElements;
    uint64_t word = 0;
    memcpy(&word, src, static_cast<size_t>(((last - k) * Pack::kBits + 7) / 8));
    for (; k < last; ++k, word >>= Pack::kBits) codes[k * pitch] = static_cast<uint8_t>(word & low_bits(Pack::kBits));
  }
}

template <int Bits>
void unpack_across(const uint8_t *src, int64_t stride, int64_t rows, int64_t count, uint8_t *codes, int64_t pitch) {
  for (int64_t i = 0; i < count; ++i) unpack_line<Bits>(src + i * stride, rows, codes + i, pitch);
}

// --- Four over six ---------------------------------------------------------------------------

template <int Rounding, int Src>
float fp4_error(const uint8_t *src, const ErrorParams &both, int64_t of, int candidate) {
  constexpr ElementType kTo = kTypes[DLFP4_float4_e2m1fn];
  constexpr Round kRound = {static_cast<dlfp4_rounding>(Rounding), true};
  const float value = load_float<Src>(src, 0);
  const float product = value * both.multipliers[candidate][of];
  const uint64_t code = convert(kTypes[DLFP4_float32], kTo, bits_of(product), kRound, {0, 0, 0});
  const uint64_t element = convert(kTo, kTypes[DLFP4_float32], code, kNearestSaturating, {0, 0, 0});
  return error_of(*both.rule, float_of(static_cast<uint32_t>(element)), both.scales[candidate][of], value);
}

// Of one block's elements, `step` bytes apart.
template <int Rounding, int Src>
void add_block_errors(const uint8_t *src, int64_t step, int64_t elements, const ErrorParams &both, int64_t block,
                      float *sixes, float *fours) {
  float sums[2] = {0, 0};
  for (int64_t k = 0; k < elements; ++k)
    for (int c = 0; c < 2; ++c) sums[c] += fp4_error<Rounding, Src>(src + k * step, both, block, c);
  sixes[block] += sums[0];
  fours[block] += sums[1];
}

template <int Rounding, int Src>
void add_errors(const uint8_t *src, int64_t stride, int64_t rows, int64_t count, const ErrorParams &both, float *sixes,
                float *fours) {
  constexpr int64_t kBytes = kTypes[Src].bits / 8;
  for (int64_t i = 0; i < count; ++i)
    add_block_errors<Rounding, Src>(src + i * kBytes, stride, rows, both, i, sixes, fours);
}

template <int Rounding, int Src>
void sum_errors(const uint8_t *src, int64_t blocks, const ErrorParams &both, float *sixes, float *fours) {
  constexpr int64_t kBytes = kTypes[Src].bits / 8;
  for (int64_t b = 0; b < blocks; ++b)
    add_block_errors<Rounding, Src>(src + b * kErrorBlock * kBytes, kBytes, kErrorBlock, both, b, sixes, fours);
}

// --- Decoding --------------------------------------------------------------------------------

template <int Row>
float decode_element(uint64_t code) {
  return float_of(
      static_cast<uint32_t>(convert(kTypes[Row], kTypes[DLFP4_float32], code, kNearestSaturating, {0, 0, 0})));
}

template <int Src, int Dst>
void decode_blocks(const uint8_t *src, int64_t count, int64_t block, const float *scales, uint8_t *dst) {
  int64_t last = block;
  for (int64_t i = 0; i < count; ++i) {
    if (i == last) ++scales, last += block;
    store_float<Dst>(dst, i, decoded(decode_element<Src>(packed_code(src, i, kTypes[Src].bits)), *scales));
  }
}

template <int Src, int Dst>
void decode_across(const uint8_t *codes, int64_t count, const float *scales, uint8_t *dst) {
  for (int64_t i = 0; i < count; ++i) store_float<Dst>(dst, i, decoded(decode_element<Src>(codes[i]), scales[i]));
}

inline BlockOffset offset_at(const Affine &by, int64_t i) {
  return by.are_biases ? BlockOffset{kNoOffset.zero, by.offsets[i]} : BlockOffset{by.offsets[i], kNoOffset.bias};
}

template <int Src, int Dst>
void decode_affine(const uint8_t *src, int64_t count, int64_t block, const Affine &by, uint8_t *dst) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t b = i / block;
    const float element = decode_element<Src>(packed_code(src, i, kTypes[Src].bits));
    store_float<Dst>(dst, i, decoded_with(element, by.scales[b], offset_at(by, b)));
  }
}

template <int Src, int Dst>
void decode_affine_across(const uint8_t *codes, int64_t count, const Affine &by, uint8_t *dst) {
  for (int64_t i = 0; i < count; ++i)
    store_float<Dst>(dst, i, decoded_with(decode_element<Src>(codes[i]), by.scales[i], offset_at(by, i)));
}

// --- The Hadamard transform ------------------------------------------------------------------

// Sixteen elements, `step` bytes apart, as floats, and back.
template <int Src>
void gather_sixteen(const uint8_t *src, int64_t step, float *values) {
  for (int k = 0; k < kRotatedLength; ++k) values[k] = load_float<Src>(src + k * step, 0);
}

template <int Dst>
void scatter_sixteen(const float *values, uint8_t *dst, int64_t step) {
  for (int k = 0; k < kRotatedLength; ++k) store_float<Dst>(dst + k * step, 0, values[k]);
}

template <int Src, int Dst>
void rotate_sixteen(const uint8_t *src, int64_t step, uint32_t rotation, bool back, uint8_t *dst, int64_t dst_step) {
  float values[kRotatedLength];
  gather_sixteen<Src>(src, step, values);
  back ? dlfp4::rotate_back(values, rotation) : dlfp4::rotate(values, rotation);
  scatter_sixteen<Dst>(values, dst, dst_step);
}

template <int Src>
void rotate_line(const uint8_t *src, int64_t count, uint32_t rotation, float *dst) {
  constexpr int64_t kBytes = kTypes[Src].bits / 8;
  for (int64_t i = 0; i < count; i += kRotatedLength)
    rotate_sixteen<Src, DLFP4_float32>(src + i * kBytes, kBytes, rotation, false, reinterpret_cast<uint8_t *>(dst + i),
                                       4);
}

template <int Dst>
void rotate_line_back(const float *src, int64_t count, uint32_t rotation, uint8_t *dst) {
  constexpr int64_t kBytes = kTypes[Dst].bits / 8;
  for (int64_t i = 0; i < count; i += kRotatedLength)
    rotate_sixteen<DLFP4_float32, Dst>(reinterpret_cast<const uint8_t *>(src + i), 4, rotation, true, dst + i * kBytes,
                                       kBytes);
}

template <int Src>
void rotate_rows(const uint8_t *src, int64_t stride, int64_t count, uint32_t rotation, float *dst, int64_t pitch) {
  for (int64_t i = 0; i < count; ++i)
    rotate_sixteen<Src, DLFP4_float32>(src + i * (kTypes[Src].bits / 8), stride, rotation, false,
                                       reinterpret_cast<uint8_t *>(dst + i), 4 * pitch);
}

template <int Src>
uint32_t largest_of_rotated_sixteen(const uint8_t *src, int64_t step, uint32_t rotation) {
  float values[kRotatedLength];
  gather_sixteen<Src>(src, step, values);
  dlfp4::rotate(values, rotation);
  uint32_t largest = 0;
  for (const float value : values) {
    const uint32_t magnitude = bits_of(value) & 0x7FFFFFFF;
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest < kFloatInfinity ? largest : kFloatInfinity;
}

template <int Src>
uint32_t largest_of_rotated_line(const uint8_t *src, int64_t count, uint32_t rotation) {
  constexpr int64_t kBytes = kTypes[Src].bits / 8;
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; i += kRotatedLength) {
    const uint32_t of_sixteen = largest_of_rotated_sixteen<Src>(src + i * kBytes, kBytes, rotation);
    largest = of_sixteen > largest ? of_sixteen : largest;
  }
  return largest;
}

template <int Src>
uint32_t largest_of_rotated_rows(const uint8_t *src, int64_t stride, int64_t count, uint32_t rotation) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t of_sixteen = largest_of_rotated_sixteen<Src>(src + i * (kTypes[Src].bits / 8), stride, rotation);
    largest = of_sixteen > largest ? of_sixteen : largest;
  }
  return largest;
}

template <int Dst>
void rotate_rows_back(const float *src, int64_t pitch, int64_t count, uint32_t rotation, uint8_t *dst, int64_t stride) {
  for (int64_t i = 0; i < count; ++i)
    rotate_sixteen<DLFP4_float32, Dst>(reinterpret_cast<const uint8_t *>(src + i), 4 * pitch, rotation, true,
                                       dst + i * (kTypes[Dst].bits / 8), stride);
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_BLOCKS_SCALAR_H_
