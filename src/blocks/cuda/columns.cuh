// Columns of row-major memory that have a scale each.
// Layout: a cluster of blocks of threads holds a strip in shared memory, 128 bytes of each row: tiles of tiles.cuh
// below one another, of which each block has some. Where those are too many, threads take sixteen neighbours of some
// rows. Trick: a cluster reads its strip once, for the largest magnitudes and for the codes. Elsewhere the second
// reading begins where the first ended, for some of that is cached.
#ifndef DLFP4_SRC_BLOCKS_CUDA_COLUMNS_CUH_
#define DLFP4_SRC_BLOCKS_CUDA_COLUMNS_CUH_

#include "tiles.cuh"

namespace dlfp4 {
namespace cuda {

// --- Held by a cluster -------------------------------------------------------------------------

#ifdef DLFP4_HOPPER
template <int Src>
struct HeldStrip {
  static constexpr int kBytes = kFloatBytes<Src>, kColumns = held_columns(kBytes), kSteps = kColumns / kStep;
  static constexpr int kTeam = team_of_tile(kBytes);  // threads that a tile keeps busy
  static constexpr int kChunks = kBoxBytes / 16, kWords = 4, kOfWord = 4 / kBytes, kOfChunk = kWords * kOfWord;
  uint32_t own[kColumns], all[kColumns];  // largest magnitudes, of the block's rows and of the cluster's
  StepFloats<kSteps> multipliers;
};

// A block's share of a strip.
struct HeldTiles {
  uint32_t column, row;  // where it begins
  int first, count, by;  // tiles of a team

  template <int Src>
  __device__ static HeldTiles of(const HeldParams &p) {
    using S = HeldStrip<Src>;
    const uint32_t rank = blockIdx.x % p.cluster;
    return {blockIdx.x / p.cluster * S::kColumns, rank * p.tiles * kTileRows, static_cast<int>(threadIdx.x) / S::kTeam,
            p.tiles, static_cast<int>(blockDim.x) / S::kTeam};
  }
  __device__ uint8_t *tile(int number) const { return shared_memory + kHeldBytes + number * (kTileRows * kBoxBytes); }
  __device__ uint32_t row_of(int number) const { return row + number * kTileRows; }
};

template <int Src>
__device__ inline uint32_t magnitude_of_word(uint32_t word, int i) {
  if constexpr (Src == DLFP4_float32) return word & 0x7FFFFFFF;
  return largest_half<Src>(word >> 16 * i & 0xFFFF);
}

// Chunks of 16 bytes that a thread copies and looks through, of all tiles of its team: f(address of the chunk, its
// row).
template <int Src, class F>
__device__ inline void each_own_chunk(const HeldTiles &tiles, const F &f) {
  using S = HeldStrip<Src>;
  const Share<S::kChunks, S::kTeam> share;
  const uint32_t place = place_in_tile<S::kBytes, kLanesOfSegment>(share.row, share.chunk * (16 / S::kBytes));
  for (int number = tiles.first; number < tiles.count; number += tiles.by)
#pragma unroll
    for (int i = 0; i < share.kRows; ++i)
      f(tiles.tile(number) + place + i * share.kApart * kRowPitch, tiles.row_of(number) + share.row + i * share.kApart);
}

template <int Src>
__device__ inline void copy_held(const QuantizeParams &p, const HeldTiles &tiles) {
  using S = HeldStrip<Src>;
  const uint32_t line = tiles.column + threadIdx.x % S::kChunks * S::kOfChunk;
  each_own_chunk<Src>(tiles, [&](uint8_t *to, uint32_t row) {
    copy_16(shared_address(to), p.src + (row * p.step + line) * S::kBytes, line < p.lines && row < p.length);
  });
  commit_copies();
}

// The largest magnitudes of a thread's chunks, column by column.
template <int Src>
__device__ inline void find_largest_of_chunks(const HeldTiles &tiles, uint32_t *largest) {
  using S = HeldStrip<Src>;
  uint32_t words[S::kWords] = {};
  each_own_chunk<Src>(tiles, [&](const uint8_t *from, uint32_t) {
    uint32_t chunk[S::kWords];
    load_shared_16(shared_address(from), chunk);
#pragma unroll
    for (int i = 0; i < S::kWords; ++i) words[i] = larger_of_words<Src>(words[i], chunk[i]);
  });
#pragma unroll
  for (int i = 0; i < S::kOfChunk; ++i) largest[i] = magnitude_of_word<Src>(words[i / S::kOfWord], i % S::kOfWord);
}

// The same of what is finite.
template <int Src>
__device__ inline void find_largest_finite_of_chunks(const HeldTiles &tiles, uint32_t *largest) {
  using S = HeldStrip<Src>;
  for (int i = 0; i < S::kOfChunk; ++i) largest[i] = 0;
  each_own_chunk<Src>(tiles, [&](const uint8_t *from, uint32_t) {
    for (int i = 0; i < S::kOfChunk; ++i) {
      const uint32_t word = reinterpret_cast<const uint32_t *>(from)[i / S::kOfWord];
      const uint32_t magnitude = magnitude_of_word<Src>(word, i % S::kOfWord);
      if (magnitude < kFloatInfinity) largest[i] = max(largest[i], magnitude);
    }
  });
}

// A thread's to the block's. Of two levels, the largest of what is finite.
template <int Src, int Kind>
__device__ inline void raise_own(const HeldTiles &tiles, HeldStrip<Src> *strip) {
  using S = HeldStrip<Src>;
  uint32_t largest[S::kOfChunk], of_all = 0;
  find_largest_of_chunks<Src>(tiles, largest);
  for (int i = 0; i < S::kOfChunk; ++i) of_all = max(of_all, largest[i]);
  if (Kind == DLFP4_TWO_LEVEL && of_all >= kFloatInfinity) find_largest_finite_of_chunks<Src>(tiles, largest);
  const int first = threadIdx.x % S::kChunks * S::kOfChunk;
#pragma unroll
  for (int i = 0; i < S::kOfChunk; ++i) {
    for (int lane = S::kChunks; lane < kWarpSize; lane *= 2)
      largest[i] = max(largest[i], __shfl_xor_sync(kAllLanes, largest[i], lane));
    if (threadIdx.x % kWarpSize < S::kChunks) atomicMax(&strip->own[first + i], largest[i]);
  }
}

// The block's to those of all blocks of the cluster.
template <int Src>
__device__ inline void raise_all(const HeldParams &p, HeldStrip<Src> *strip) {
  for (int i = threadIdx.x; i < p.cluster * strip->kColumns; i += blockDim.x) {
    const int column = i % strip->kColumns;
    raise_in_cluster(address_at_rank(shared_address(&strip->all[column]), i / strip->kColumns), strip->own[column]);
  }
}

// A thread makes a column's.
template <int Src, int Kind>
__device__ inline void make_held_scales(const HeldParams &p, const HeldTiles &tiles, HeldStrip<Src> *strip) {
  const QuantizeParams &q = p.quantize;
  const int column = threadIdx.x;
  if (column >= strip->kColumns) return;
  const int64_t line = tiles.column + column;
  const bool stores = tiles.row == 0 && line < q.lines;
  if constexpr (Kind == DLFP4_TWO_LEVEL) {
    if (stores) q.decodes[line] = two_level_scale(plain_rule(q), float_of(strip->all[column])).decode;
  } else {
    const BlockScale scale = largest_block(q.rule, strip->all[column]);
    strip->multipliers.at(column) = scale.multiplier;
    if (stores) store_scale<Kind>(q, line, 0, scale.stored);
  }
}

// Bytes, which lie as the elements do: sixteen neighbours of two rows of a tile.
template <int Src, int Dtype>
__device__ inline void encode_held_bytes(const HeldParams &p, const HeldTiles &tiles, const HeldStrip<Src> &strip) {
  using S = HeldStrip<Src>;
  const QuantizeParams &q = p.quantize;
  const Share<S::kSteps, S::kTeam> share;
  const uint32_t line = tiles.column + share.chunk * kStep;
  if (line >= q.lines) return;
  float multipliers[kStep];
  bool is_finite = true;
  strip.multipliers.take(share.chunk, multipliers);
#pragma unroll
  for (int i = 0; i < kStep; ++i) is_finite &= strip.all[share.chunk * kStep + i] < kFloatInfinity;
  for (int number = tiles.first; number < tiles.count; number += tiles.by)
#pragma unroll
    for (int i = 0; i < share.kRows; ++i) {
      const uint32_t row = tiles.row_of(number) + share.row + i * share.kApart;
      if (row >= q.length) return;
      uint4 raw[kFloatVectors<Src>];
      uint32_t words[kCodeWords<8>];
#pragma unroll
      for (int k = 0; k < kFloatVectors<Src>; ++k)
        raw[k] = *reinterpret_cast<const uint4 *>(
            tiles.tile(number) +
            place_in_tile<S::kBytes, kLanesOfSegment>(share.row, share.chunk * kStep + k * 16 / S::kBytes) +
            i * share.kApart * kRowPitch);
      encode_bytes<Dtype>(p.encode, unpack_step<Src>(raw), multipliers, is_finite, words);
      store_codes<8>(q.data + row * q.data_step + line, words);
    }
}

// Blocks along the columns: two neighbours of sixteen rows of a tile.
template <int Src, int Dtype>
__device__ inline void encode_held_blocks(const HeldParams &p, const HeldTiles &tiles, const HeldStrip<Src> &strip) {
  constexpr int kBits = kTypes[Dtype].bits, kKind = DLFP4_TWO_LEVEL;
  const QuantizeParams &q = p.quantize;
  const Unit unit = unit_of_thread<kLanesOfSegment>(threadIdx.x % HeldStrip<Src>::kTeam);
  const uint32_t line = tiles.column + unit.column;
  if (line >= q.lines) return;
  const ScaleRule rule = plain_rule(q);
  ScaleRule rules[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) rules[i] = rule_with(rule, two_level_scale(rule, float_of(strip.all[unit.column + i])));
  for (int number = tiles.first; number < tiles.count; number += tiles.by) {
    const uint32_t first = tiles.row_of(number) + unit.row;
    if (first >= q.stored) return;
    FloatStep columns[2];
    uint32_t largest[2];
    read_columns<Src, kLanesOfSegment>(tiles.tile(number), unit, columns, largest);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t words[kCodeWords<kBits>];
      const BlockScale scale = scale_of_block<kKind>(rules[i], largest[i]);
      encode_scaled<Dtype, kKind>(p.encode, columns[i], scale, largest[i], words);
      store_scale<kKind>(q, linear_scale(q, line + i, first / kStep), line + i, first / kStep, scale.stored);
      store_codes<kBits>(q.data + bytes_of<kBits>((line + i) * q.data_stride + first), words);
    }
  }
}

template <int Src, int Dtype, int Kind>
__device__ inline void quantize_held(const HeldParams &p) {
  using S = HeldStrip<Src>;
  static_assert(sizeof(S) <= kHeldBytes, "tiles begin behind it");
  S &strip = *reinterpret_cast<S *>(shared_memory);
  const HeldTiles tiles = HeldTiles::of<Src>(p);
  let_next_kernel_start();
  wait_for_kernel_before();
  copy_held<Src>(p.quantize, tiles);
  if (threadIdx.x < S::kColumns) strip.own[threadIdx.x] = strip.all[threadIdx.x] = 0;
  __syncthreads();
  arrive_at_cluster();
  wait_for_copies<0>();
  raise_own<Src, Kind>(tiles, &strip);
  wait_for_cluster();  // for zeros in the memory of others
  __syncthreads();
  raise_all(p, &strip);
  sync_cluster();
  make_held_scales<Src, Kind>(p, tiles, &strip);
  __syncthreads();
  if constexpr (Kind == DLFP4_TWO_LEVEL)
    encode_held_blocks<Src, Dtype>(p, tiles, strip);
  else
    encode_held_bytes<Src, Dtype>(p, tiles, strip);
}
#else
template <int Src, int Dtype, int Kind>
__device__ inline void quantize_held(const HeldParams &) {}
#endif  // DLFP4_HOPPER

// --- Read twice ------------------------------------------------------------------------------

// Sixteen neighbours of some rows, or of none.
struct ColumnsOfThread {
  int64_t of_block, line, first, last;

  __device__ ColumnsOfThread(const QuantizeParams &p, uint32_t block) {
    const int64_t across = (p.lines + kColumnsOfBlock - 1) / kColumnsOfBlock;
    of_block = block % across * kColumnsOfBlock;
    line = of_block + threadIdx.x % kWarpSize * kStep;
    first = block / across * kRowsOfBlock + threadIdx.x / kWarpSize * kRowsOfThread;
    last = line < p.lines ? min(first + kRowsOfThread, p.length) : first;
  }
};

template <int Src>
__device__ inline FloatStep load_across(const QuantizeParams &p, int64_t line, int64_t position) {
  uint4 raw[kFloatVectors<Src>];
  load_step<Src>(p.src + (position * p.step + line) * kFloatBytes<Src>, true, raw);
  return unpack_step<Src>(raw);
}

// Where a line's largest magnitude stands until all is scaled: in the place of its scale.
template <int Kind>
__device__ inline uint32_t *largest_place(const QuantizeParams &p, int64_t line) {
  if constexpr (Kind == DLFP4_TWO_LEVEL) return reinterpret_cast<uint32_t *>(p.decodes) + line;
  return reinterpret_cast<uint32_t *>(p.scales) + line * p.scale_stride;
}

// Zero was there before. Of two levels, the largest of what is finite. Warps meet in shared memory, so that neighbours
// are raised together.
template <int Src, int Kind>
__device__ inline void find_largest_of_columns(const QuantizeParams &p) {
  __shared__ uint32_t shared[kStep][kWarpSize];
  const ColumnsOfThread at(p, blockIdx.x);
  for (int i = threadIdx.x; i < kColumnsOfBlock; i += kThreads) shared[i / kWarpSize][i % kWarpSize] = 0;
  uint32_t largest[kStep] = {};
#pragma unroll 4
  for (int64_t position = at.first; position < at.last; ++position) {
    const FloatStep step = load_across<Src>(p, at.line, position);
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
      const uint32_t magnitude = bits_of(step.values[i]) & 0x7FFFFFFF;
      if (Kind != DLFP4_TWO_LEVEL || magnitude < kFloatInfinity) largest[i] = max(largest[i], magnitude);
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kStep; ++i) atomicMax(&shared[i][threadIdx.x % kWarpSize], largest[i]);
  __syncthreads();
  for (int i = threadIdx.x; i < kColumnsOfBlock && at.of_block + i < p.lines; i += kThreads)
    atomicMax(largest_place<Kind>(p, at.of_block + i), shared[i % kStep][i / kStep]);
}

// Bytes that lie as the elements do, from the end, for some of it is cached.
template <int Src, int Dtype>
__device__ inline void quantize_columns(const QuantizeParams &p, const EncodeParams &encode) {
  const ColumnsOfThread at(p, gridDim.x - 1 - blockIdx.x);
  if (at.first >= at.last) return;
  float multipliers[kStep];
  bool is_finite = true;
#pragma unroll
  for (int i = 0; i < kStep; ++i) {
    const uint32_t largest = *largest_place<DLFP4_LARGEST>(p, at.line + i);
    is_finite &= largest < kFloatInfinity;
    multipliers[i] = largest_block(p.rule, largest).multiplier;
  }
#pragma unroll 2
  for (int64_t position = at.first; position < at.last; ++position) {
    uint32_t words[kCodeWords<8>];
    encode_bytes<Dtype>(encode, load_across<Src>(p, at.line, position), multipliers, is_finite, words);
    store_codes<8>(p.data + position * p.data_step + at.line, words);
  }
}

__device__ inline void finish_column_scales(const QuantizeParams &p) {
  const int64_t line = global_thread();
  if (line >= p.lines) return;
  uint32_t *const place = largest_place<DLFP4_LARGEST>(p, line);
  *place = largest_block(p.rule, *place).stored;
}

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_BLOCKS_CUDA_COLUMNS_CUH_
