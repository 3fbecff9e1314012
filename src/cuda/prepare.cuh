// Weights into the order of the matrix kernels, and back.
// Layout: prepared.h's on one side; rows of codes with any strides, and linear scales, on the other.
// Trick: a thread does a lane's words of one block, so that what it writes is 16 bytes in a row.
#ifndef DLFP4_SRC_CUDA_PREPARE_CUH_
#define DLFP4_SRC_CUDA_PREPARE_CUH_

#include "elements.cuh"
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

// Where a pair lies in a lane's words of a block: FP4 has four places in each half of a word, FP8 two bytes.
__device__ inline uint32_t place_pair(uint32_t pair, int bits, int place) {
  if (bits == 4) return place_code(pair & 15, place) | place_code(pair >> 4 & 15, place) << 16;
  const int shift = place & 1 ? 0 : 8;
  return (pair & 0xFF) << shift | (pair >> 8 & 0xFF) << (16 + shift);
}

__device__ inline uint32_t pair_at(uint32_t word, int bits, int place) {
  if (bits == 4) return code_at(word & 0xFFFF, place) | code_at(word >> 16, place) << 4;
  const int shift = place & 1 ? 0 : 8;
  return (word >> shift & 0xFF) | (word >> (16 + shift) & 0xFF) << 8;
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

  // The scale of group `group` of row `row` of the tile: a row's, then those of the row eight further down.
  __device__ uint8_t *scale(const WeightLayout &layout, int in_tile, int group) const {
    const int groups = layout.groups();
    return block + layout.code_bytes() + ((tile * 8 + (in_tile & 7)) * 2 + in_tile / 8) * groups + group;
  }
};

// Under an E4M3 scale of zero all codes are worth zero. As bfloat16 the kernels have no such scale: the codes become
// zeros instead, of the same signs.
__device__ inline uint32_t load_valued_pair(const PrepareParams &p, int64_t row, int64_t k) {
  const uint32_t pair = load_pair(p, row, k);
  const bool is_hidden = p.layout.group == 16 && pair != 0 && p.scales[scale_offset(p, row, k / p.layout.group)] == 0;
  return is_hidden ? pair & 0x88 : pair;
}

// Scales whose rows or groups do not exist belong to codes that are zero, and only have to be finite.
__device__ inline uint8_t prepare_scale(const PrepareParams &p, int64_t row, int64_t group) {
  const bool there = row < p.rows && group * p.layout.group < p.columns;
  if (p.layout.group == 16) return there ? wide_scale(p.scales[scale_offset(p, row, group)]) : 0;
  if (!there || !p.scales) return kTopScale;
  return relative_scale(p.scales[scale_offset(p, row, group)], p.largest);
}

__device__ inline void restore_scale(const PrepareParams &p, int64_t row, int64_t group, uint8_t stored) {
  if (row >= p.rows || group * p.layout.group >= p.columns || !p.scales) return;
  p.scales[scale_offset(p, row, group)] =
      p.layout.group == 16 ? narrow_scale(stored) : absolute_scale(stored, p.largest);
}

// The scales of a tile are spread over its lanes.
template <class Do>
__device__ inline void for_each_scale(const PrepareParams &p, const Fragment &at, Do &&apply) {
  const int groups = p.layout.groups();
  for (int i = at.lane; i < kTile * groups; i += kWarpSize) {
    const int row = i / groups, group = i % groups;
    apply(at.row + row, at.k / p.layout.group + group, at.scale(p.layout, row, group));
  }
}

__device__ inline void prepare_fragment(const PrepareParams &p) {
  const int64_t thread = global_thread();
  if (thread >= p.threads) return;
  const Fragment at(p, thread);
  const int bits = p.layout.bits, places = 16 / bits;  // in a word
#pragma unroll 1
  for (int index = 0; index < bits; ++index) {
    uint32_t word = 0;
    for (int i = 0; i < places; ++i) {
      const int step = index * places / 4, place = index * places % 4 + i;
      const uint32_t pair =
          load_valued_pair(p, at.row + fragment_row(at.lane, place), at.k + fragment_k(at.lane, step, place));
      word |= place_pair(pair, bits, place);
    }
    *at.word(bits, index) = word;
  }
  for_each_scale(p, at, [&](int64_t row, int64_t group, uint8_t *stored) { *stored = prepare_scale(p, row, group); });
}

__device__ inline void restore_fragment(const PrepareParams &p) {
  const int64_t thread = global_thread();
  if (thread >= p.threads) return;
  const Fragment at(p, thread);
  const int bits = p.layout.bits, places = 16 / bits;
#pragma unroll 1
  for (int index = 0; index < bits; ++index) {
    const uint32_t word = *at.word(bits, index);
    for (int i = 0; i < places; ++i) {
      const int step = index * places / 4, place = index * places % 4 + i;
      store_pair(p, at.row + fragment_row(at.lane, place), at.k + fragment_k(at.lane, step, place),
                 pair_at(word, bits, place));
    }
  }
  for_each_scale(p, at,
                 [&](int64_t row, int64_t group, const uint8_t *stored) { restore_scale(p, row, group, *stored); });
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
  const uint32_t lanes = __ballot_sync(~0u, thread < p.threads);
  if (thread >= p.threads) return;
  const int64_t groups = (p.columns + p.layout.group - 1) / p.layout.group;
  const int64_t row = thread / groups, group = thread % groups;
  const uint8_t scale = p.scales ? p.scales[scale_offset(p, row, group)] : 127;
  if (p.layout.group == 16) return report_largest(&p.report[0], scale >= 0x7F, lanes);  // NaN, negative
  const GroupContent content = look_at_group(p, row, group * p.layout.group);
  report_largest(&p.report[0], scale == 255 || content.has_nan, lanes);
  report_largest(&p.report[1], scale, lanes);
  report_largest(&p.report[2], content.any ? 255u - scale : 0, lanes);
}

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_CUDA_PREPARE_CUH_
