// Weights into the order of the matrix kernels, and back.
// Layout: prepared.h's on one side; rows of codes with any strides, and linear scales, on the other.
// Trick: a thread does a lane's words of one block, so that what it writes is 16 bytes in a row.
#ifndef DLFP4_SRC_PRODUCTS_CUDA_PREPARE_CUH_
#define DLFP4_SRC_PRODUCTS_CUDA_PREPARE_CUH_

#include "gpu/elements.cuh"
#include "params.h"
#include "prepared.h"

namespace dlfp4 {
namespace cuda {

__device__ inline int64_t scale_offset(const PrepareParams &p, int64_t row, int64_t group) {
  return row * p.scale_stride + group * p.scale_step;
}

// The two codes of neighbours along K: 8 bits of FP4, 16 of FP8.
__device__ inline uint32_t load_pair(const PrepareParams &p, int64_t row, int64_t k) {
  if (row >= p.rows || k >= p.columns) return 0;
  const uint8_t *codes = p.codes + row * p.code_stride;
  if (p.layout.bits == 4) return codes[k / 2];
  return codes[k * p.code_step] | (k + 1 < p.columns ? codes[(k + 1) * p.code_step] << 8 : 0);
}

__device__ inline void store_pair(const PrepareParams &p, int64_t row, int64_t k, uint32_t pair) {
  if (row >= p.rows || k >= p.columns) return;
  uint8_t *codes = p.codes + row * p.code_stride;
  if (p.layout.bits == 4) {
    codes[k / 2] = static_cast<uint8_t>(pair);
    return;
  }
  codes[k * p.code_step] = static_cast<uint8_t>(pair);
  if (k + 1 < p.columns) codes[(k + 1) * p.code_step] = static_cast<uint8_t>(pair >> 8);
}

// The field of a word that holds a pair, and back.
__device__ inline uint32_t field_of_pair(uint32_t pair, int bits) {
  return field_of_codes(bits, pair & ((1u << bits) - 1), pair >> bits);
}

__device__ inline uint32_t pair_of_field(uint32_t field, int bits) {
  return code_of_field(bits, field, 0) | code_of_field(bits, field, 1) << bits;
}

// A thread's place: a lane of a tile of 16 rows, in a block.
struct Fragment {
  int64_t row, k;  // the first of the tile and the block
  int tile, lane;
  uint8_t *block;

  __device__ Fragment(const PrepareParams &p, int64_t thread) {
    lane = static_cast<int>(thread % kWarpSize);
    tile = static_cast<int>(thread / kWarpSize % kTilesInBlock);
    const int64_t number = thread / (kWarpSize * kTilesInBlock);
    row = number / p.blocks_in_row * kBlockRows + tile * kTile;
    k = number % p.blocks_in_row * kBlockK;
    block = p.prepared + number * p.layout.bytes();
  }

  // Word `index` of the lane, of 4 for FP4 and 8 for FP8, whose words of two steps follow one another.
  __device__ uint32_t *word(int bits, int index) const {
    const int run = bits == 4 ? tile : 2 * tile + index / 4;
    return reinterpret_cast<uint32_t *>(block) + (run * kWarpSize + lane) * 4 + index % 4;
  }

  __device__ uint32_t *scale_word(const WeightLayout &layout, int index) const {
    return reinterpret_cast<uint32_t *>(block + layout.code_bytes()) + tile * layout.scale_words() + index;
  }
};

// Under an E4M3 scale of zero all codes are worth zero. As bfloat16 the kernels have no such scale: the codes become
// zeros instead, of the same signs.
__device__ inline uint32_t load_valued_pair(const PrepareParams &p, int64_t row, int64_t k) {
  const uint32_t pair = load_pair(p, row, k);
  const bool is_hidden = !p.layout.is_power && pair != 0 && p.scales[scale_offset(p, row, k / p.layout.group)] == 0;
  return is_hidden ? pair & 0x88 : pair;
}

// Scales whose rows or groups do not exist belong to codes that are zero, and only have to be finite.
__device__ inline uint8_t prepare_scale(const PrepareParams &p, int64_t row, int64_t group) {
  const bool there = row < p.rows && group * p.layout.group < p.columns;
  if (!p.layout.is_power) return there ? wide_scale(p.scales[scale_offset(p, row, group)]) : 0;
  if (!there || !p.scales) return kTopScale;
  return relative_scale(p.scales[scale_offset(p, row, group)], p.largest);
}

__device__ inline void restore_scale(const PrepareParams &p, int64_t row, int64_t group, uint8_t stored) {
  if (row >= p.rows || group * p.layout.group >= p.columns || !p.scales) return;
  p.scales[scale_offset(p, row, group)] = p.layout.is_power ? absolute_scale(stored, p.largest) : narrow_scale(stored);
}

// The words of a tile's scales are spread over its lanes.
__device__ inline void prepare_scales(const PrepareParams &p, const Fragment &at) {
  const int group = p.layout.group;
  for (int i = at.lane; i < p.layout.scale_words(); i += kWarpSize) {
    uint32_t word = 0;
    for (int byte = 0; byte < 4; ++byte) {
      const ScalePlace place = scale_place(group, i, byte);
      word |= uint32_t{prepare_scale(p, at.row + place.row, at.k / group + place.group)} << 8 * byte;
    }
    *at.scale_word(p.layout, i) = rotate_right(word, 32 - turn_of_scales(p.layout.is_power));
  }
}

__device__ inline void restore_scales(const PrepareParams &p, const Fragment &at) {
  const int group = p.layout.group;
  for (int i = at.lane; i < p.layout.scale_words(); i += kWarpSize) {
    const uint32_t word = rotate_right(*at.scale_word(p.layout, i), turn_of_scales(p.layout.is_power));
    for (int byte = 0; byte < 4; ++byte) {
      const ScalePlace place = scale_place(group, i, byte);
      restore_scale(p, at.row + place.row, at.k / group + place.group, static_cast<uint8_t>(word >> 8 * byte));
    }
  }
}

// Of field `field` of word `index` of a lane: where its pair lies.
struct PairPlace {
  int64_t row, k;

  __device__ PairPlace(const Fragment &at, int bits, int index, int field) {
    const int number = index * fields_of_word(bits) + field;  // among the operands of the lane, four a step
    row = at.row + fragment_row(at.lane, number % 4);
    k = at.k + fragment_k(at.lane, number / 4, number % 4);
  }
};

__device__ inline void prepare_fragment(const PrepareParams &p) {
  const int64_t thread = global_thread();
  if (thread >= p.threads) return;
  const Fragment at(p, thread);
  const int bits = p.layout.bits;
#pragma unroll 1
  for (int index = 0; index < p.layout.words(); ++index) {
    uint32_t fields[4] = {};
    for (int i = 0; i < fields_of_word(bits); ++i) {
      const PairPlace place(at, bits, index, i);
      fields[i] = field_of_pair(load_valued_pair(p, place.row, place.k), bits);
    }
    *at.word(bits, index) = word_of_fields(bits, fields);
  }
  prepare_scales(p, at);
}

__device__ inline void restore_fragment(const PrepareParams &p) {
  const int64_t thread = global_thread();
  if (thread >= p.threads) return;
  const Fragment at(p, thread);
  const int bits = p.layout.bits;
#pragma unroll 1
  for (int index = 0; index < p.layout.words(); ++index) {
    uint32_t fields[4] = {};
    spread_fields(bits, *at.word(bits, index), Shifts(), fields);
    for (int i = 0; i < fields_of_word(bits); ++i) {
      const PairPlace place(at, bits, index, i);
      store_pair(p, place.row, place.k, pair_of_field(fields[i], bits));
    }
  }
  restore_scales(p, at);
}

// --- What the prepared form can hold -----------------------------------------------------------

// Whether a group of one row has a magnitude other than zero, and whether it has a NaN (FP8).
struct GroupContent {
  bool any, has_nan;
};

__device__ inline GroupContent look_at_group(const PrepareParams &p, int64_t row, int64_t first) {
  GroupContent content = {false, false};
  for (int64_t k = first; k < first + p.layout.group && k < p.columns; k += 2) {
    const uint32_t pair = load_pair(p, row, k);
    if (p.layout.bits == 4) {
      content.any |= (pair & 0x77) != 0;
      continue;
    }
    content.any |= (pair & 0x7F7F) != 0;
    content.has_nan |= (pair & 0x7F) == 0x7F || (pair & 0x7F00) == 0x7F00;  // e4m3fn
  }
  return content;
}

__device__ inline void report_largest(uint32_t *place, uint32_t value, uint32_t lanes) {
  const uint32_t largest = __reduce_max_sync(lanes, value);
  if (threadIdx.x % kWarpSize == 0 && largest > 0) atomicMax(place, largest);
}

// A thread a group of a row. The report: whether something cannot be held and, of powers of two, the largest scale and
// 255 - the smallest scale of codes that are not all zero.
__device__ inline void inspect_group(const PrepareParams &p) {
  const int64_t thread = global_thread();
  const uint32_t lanes = __ballot_sync(kAllLanes, thread < p.threads);
  if (thread >= p.threads) return;
  const int64_t groups = (p.columns + p.layout.group - 1) / p.layout.group;
  const int64_t row = thread / groups, group = thread % groups;
  const uint8_t scale = p.scales ? p.scales[scale_offset(p, row, group)] : 127;
  if (!p.layout.is_power) return report_largest(&p.report[0], scale >= 0x7F, lanes);  // NaN, negative
  const GroupContent content = look_at_group(p, row, group * p.layout.group);
  report_largest(&p.report[0], scale == 255 || content.has_nan, lanes);
  report_largest(&p.report[1], scale, lanes);
  report_largest(&p.report[2], content.any ? 255u - scale : 0, lanes);
}

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_CUDA_PREPARE_CUH_
