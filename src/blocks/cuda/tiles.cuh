// Blocks along columns of row-major memory, alone or together with those along rows; squares of 16; and back.
// Layout: a block of threads takes 128 rows and columns through shared memory, in chunks of 16 bytes; bytes that lie
// across lines, and strips of 256 bytes a row with one scale for 128 rows, stay in registers.
// Trick: rows 16 apart lie side by side, their chunks swizzled, so that a warp reads columns of eight such segments at
// once, of squares four, without two in one bank, and what it writes of a column fills whole sectors. All that a thread
// reads or writes is then a fixed number of bytes apart.
#ifndef DLFP4_SRC_BLOCKS_CUDA_TILES_CUH_
#define DLFP4_SRC_BLOCKS_CUDA_TILES_CUH_

#include "gpu/async.cuh"
#include "rows.cuh"

namespace dlfp4 {
namespace cuda {

// A tile is boxes of 128 bytes of each row. Rows with the same place in their segments of sixteen lie side by side, and
// their chunks of 16 bytes are swizzled by the segment and the box: lanes that read columns of several segments, or
// neighbours in a row, meet in no bank. Where the lanes of one segment take several chunks, segments that are read
// together lie as far apart.
constexpr int kSegments = kTileRows / kStep, kRowPitch = kSegments * kBoxBytes;

static_assert(kBoxBytes == 16 * kSegments, "a swizzle that stays in the box: as many chunks as segments");

// The byte of a tile where an element lies, for units whose rows so many `Lanes` take. The next row of a segment is
// kRowPitch further.
template <int Bytes, int Lanes>
__device__ inline uint32_t place_in_tile(uint32_t row, uint32_t column) {
  constexpr uint32_t kChunks = Lanes * 2 * Bytes / 16, kApart = kChunks > 1 ? kChunks : 1;
  constexpr uint32_t kTogether = kSegments / kApart;
  const uint32_t byte = column * Bytes, box = byte / kBoxBytes, segment = row / kStep;
  const uint32_t place = segment % kTogether * kApart + segment / kTogether;
  const uint32_t chunk = byte % kBoxBytes / 16 ^ (place + box) % kSegments;
  return box * (kTileRows * kBoxBytes) + row % kStep * kRowPitch + place * kBoxBytes + chunk * 16 + byte % 16;
}

// A thread's share of rows of `InRow` chunks each, of which `Threads` have a tile: those of one segment that are
// `kApart` apart.
template <int InRow, int Threads = kThreads>
struct Share {
  static constexpr int kApart = Threads / InRow / kSegments, kRows = kStep / kApart;
  uint32_t chunk = threadIdx.x % InRow;
  uint32_t row = threadIdx.x / InRow % kSegments * kStep + threadIdx.x / (InRow * kSegments) % kApart;
};

// Where a thread works on columns: two neighbours, sixteen rows. So many `Lanes` of a warp take the same rows.
struct Unit {
  int row, column;
};

template <int Lanes>
__device__ inline Unit unit_of_thread(int thread = threadIdx.x) {
  constexpr int kOfWarp = 32 / Lanes, kWarpsAbove = kSegments / kOfWarp;
  const int warp = thread / 32, lane = thread % 32;
  return {(warp % kWarpsAbove * kOfWarp + lane / Lanes) * kStep, (warp / kWarpsAbove * Lanes + lane % Lanes) * 2};
}

constexpr int kLanesOfSegment = 4, kLanesOfSquares = 8, kUnitColumns = kThreads * 2 * kStep / kTileRows;

// A float for each column, some steps of them, so that neighbouring threads take theirs from different banks.
template <int Steps>
struct StepFloats {
  float4 fours[4][Steps];

  __device__ float &at(int column) { return (&fours[column % kStep / 4][column / kStep].x)[column % 4]; }
  __device__ void take(int step, float *floats) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 four = fours[i][step];
      floats[4 * i] = four.x, floats[4 * i + 1] = four.y, floats[4 * i + 2] = four.z, floats[4 * i + 3] = four.w;
    }
  }
};

// Hosts see to it that rows and columns can be counted in 32 bits.
struct TilePlace {
  uint32_t row, column;
};

template <int Columns>
__device__ inline TilePlace place_of_tile(const TileParams &p) {
  const uint32_t tile = block_number(p.columns);
  return {tile / p.tiles_in_row * kTileRows, tile % p.tiles_in_row * Columns};
}

// --- Quantize --------------------------------------------------------------------------------

// What a tile's threads share: of a two-level rule the multipliers of its 127 scales, so that each is divided for once;
// the scales of squares, found along columns, for their rows. A given scale that is no positive number, which the host
// cannot see, makes other codes, which go the long way; what they are is not defined.
template <int Kind>
class TileRule {
  static constexpr int kSide = 16, kScales = 0x7F;
  static constexpr uint32_t kIsFinite = 0x100;  // beside a square's code
  float multipliers_[Kind == DLFP4_TWO_LEVEL ? kScales : 1];
  uint16_t squares_[kTileRows / kSide][kTileColumns / kSide];
  static_assert(sizeof(multipliers_) + sizeof(squares_) <= kTileRuleBytes, "");

  __device__ float multiplier(const ScaleRule &rule, uint32_t code) const {
    return code < kScales ? multipliers_[code] : two_level_multiplier(rule, code);
  }

 public:
  __device__ void fill(const ScaleRule &rule) {
    if (Kind == DLFP4_TWO_LEVEL && threadIdx.x < kScales)
      multipliers_[threadIdx.x] = two_level_multiplier(rule, threadIdx.x);
  }

  __device__ BlockScale operator()(const ScaleRule &rule, uint32_t magnitude) const {
    if constexpr (Kind != DLFP4_TWO_LEVEL) return scale_of_block<Kind>(rule, magnitude);
    return two_level_fast(rule, magnitude, [&](uint32_t code) { return multiplier(rule, code); });
  }

  __device__ void keep_square(Unit at, uint32_t code, uint32_t largest) {
    squares_[at.row / kSide][at.column / kSide] =
        static_cast<uint16_t>(code | (largest < kFloatInfinity ? kIsFinite : 0));
  }

  // Returns a magnitude that is as finite as the largest.
  __device__ uint32_t take_square(const ScaleRule &rule, int row, int column, BlockScale *scale) const {
    const uint32_t kept = squares_[row / kSide][column / kSide];
    *scale = kept & kIsFinite ? BlockScale{kept & 0xFF, multiplier(rule, kept & 0xFF)} : kTwoLevelNan;
    return kept & kIsFinite ? 0 : kFloatInfinity;
  }
};

// A scale whose place is known if the layout is linear.
template <int Kind>
__device__ inline void store_scale(const QuantizeParams &p, uint8_t *linear, uint32_t row, uint32_t block,
                                   uint32_t stored) {
  static_assert(Kind != DLFP4_LARGEST, "scales of one byte");
  if (p.layout == DLFP4_LAYOUT_linear)
    *linear = static_cast<uint8_t>(stored);
  else
    store_scale<Kind>(p, row, block, stored);
}

__device__ inline uint8_t *linear_scale(const QuantizeParams &p, uint32_t row, uint32_t block) {
  return p.scales + row * p.scale_stride + block * p.scale_step;
}

// The tile's columns from `first` on, as many as a pass takes, into shared memory, with zeros for what is not there.
template <int Bytes, int Lanes>
__device__ inline void copy_columns(const QuantizeParams &p, TilePlace at, int first, uint8_t *tile) {
  using S = Share<kUnitColumns * Bytes / 16>;
  const S share;
  const uint32_t column = first + share.chunk * (16 / Bytes), line = at.row + share.row;
  const bool has_columns = at.column + column < static_cast<uint32_t>(p.length);
  const uint8_t *from = p.src + (line * p.line_stride + at.column + column) * Bytes;
  const uint32_t to = shared_address(tile) + place_in_tile<Bytes, Lanes>(share.row, column);
#pragma unroll
  for (int i = 0; i < S::kRows; ++i, from += S::kApart * p.line_stride * Bytes)
    copy_16(to + i * S::kApart * kRowPitch, from, has_columns && line + i * S::kApart < static_cast<uint32_t>(p.lines));
  commit_copies();
}

// Blocks along the tile's rows, or rows of squares whose scales were found: four neighbours a thread.
template <int Src, int Dtype, int BlockSize, int Kind, bool Square, int Lanes>
__device__ inline void quantize_tile_rows(const TileParams &p, TilePlace at, const ScaleRule &rule,
                                          const TileRule<Kind> &scales, const uint8_t *tile) {
  constexpr int kBits = kTypes[Dtype].bits, kBytes = kFloatBytes<Src>, kSteps = kTileColumns / kStep;
  constexpr int kRows = kTileRows / (kThreads / kSteps);
  const QuantizeParams &q = p.rows;
  const int row = threadIdx.x / kSteps * kRows, column = threadIdx.x % kSteps * kStep;
  const uint32_t line = at.row + row, first = at.column + column, lines = static_cast<uint32_t>(q.lines);
  const bool has_columns = first < static_cast<uint32_t>(q.stored), is_first = first % BlockSize / kStep == 0;
  uint8_t *data = q.data + bytes_of<kBits>(line * q.data_stride + first);
  uint8_t *scale_place = linear_scale(q, line, first / BlockSize);
#pragma unroll
  for (int i = 0; i < kRows; ++i, data += bytes_of<kBits>(q.data_stride), scale_place += q.scale_stride) {
    uint4 raw[kFloatVectors<Src>];
    uint32_t words[kCodeWords<kBits>];
#pragma unroll
    for (int k = 0; k < kFloatVectors<Src>; ++k)
      raw[k] = *reinterpret_cast<const uint4 *>(tile + place_in_tile<kBytes, Lanes>(row, column + k * 16 / kBytes) +
                                                i * kRowPitch);
    uint32_t largest = largest_of_lanes(largest_of<Src>(raw), BlockSize / kStep - 1);
    if (!has_columns || line + i >= lines) continue;
    BlockScale scale;
    if constexpr (Square)
      largest = scales.take_square(rule, row, column, &scale);
    else
      scale = scales(rule, largest);
    if (is_first) store_scale<Kind>(q, scale_place, line + i, first / BlockSize, scale.stored);
    encode_scaled<Dtype, Kind>(p.encode, unpack_step<Src>(raw), scale, largest, words);
    store_codes<kBits>(data, words);
  }
}

// Two columns of sixteen rows, and their largest magnitudes.
template <int Src, int Lanes>
__device__ inline void read_columns(const uint8_t *tile, Unit unit, FloatStep *columns, uint32_t *largest) {
  const uint8_t *const from = tile + place_in_tile<kFloatBytes<Src>, Lanes>(unit.row, unit.column);
  if constexpr (Src == DLFP4_float32) {
    float floats[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
      const float2 pair = *reinterpret_cast<const float2 *>(from + i * kRowPitch);
      columns[0].values[i] = pair.x;
      columns[1].values[i] = pair.y;
      floats[0] = larger_float(floats[0], pair.x);
      floats[1] = larger_float(floats[1], pair.y);
    }
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      largest[k] = bits_of(floats[k]);
      for (int i = 0; i < 2; ++i) columns[k].signs[i] = signs_of_floats(columns[k].values + 8 * i);
    }
  } else {
    uint32_t words[kStep], halves = 0;
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
      words[i] = *reinterpret_cast<const uint32_t *>(from + i * kRowPitch);
      halves = larger_halves<Src>(halves, words[i]);
      float pair[2];
      unpack_floats<Src>(words[i], pair);
      columns[0].values[i] = pair[0];
      columns[1].values[i] = pair[1];
    }
    for (int i = 0; i < 2; ++i) signs_of_columns(words + 8 * i, &columns[0].signs[i], &columns[1].signs[i]);
    largest[0] = largest_half<Src>(halves & 0xFFFF);
    largest[1] = largest_half<Src>(halves >> 16);
  }
}

// Codes of two columns as bytes of sixteen rows.
__device__ inline void stage_codes(uint8_t *staged, Unit unit, const uint32_t (*words)[kCodeWords<8>]) {
  uint8_t *const to = staged + place_in_tile<1, kLanesOfSegment>(unit.row, unit.column);
#pragma unroll
  for (int i = 0; i < kStep; ++i) {
    const uint32_t pair = code_at<8>(words[0], i) | code_at<8>(words[1], i) << 8;
    *reinterpret_cast<uint16_t *>(to + i * kRowPitch) = static_cast<uint16_t>(pair);
  }
}

__device__ inline void write_codes(const QuantizeParams &p, TilePlace at, const uint8_t *staged) {
  using S = Share<kTileColumns / 16>;
  const S share;
  const uint32_t column = at.column + share.chunk * 16, row = at.row + share.row;
  const uint8_t *const from = staged + place_in_tile<1, kLanesOfSegment>(share.row, share.chunk * 16);
  uint8_t *to = p.data + column + row * p.data_step;
  if (column >= static_cast<uint32_t>(p.lines)) return;
#pragma unroll
  for (int i = 0; i < S::kRows; ++i, to += S::kApart * p.data_step)
    if (row + i * S::kApart < static_cast<uint32_t>(p.stored))
      *reinterpret_cast<uint4 *>(to) = *reinterpret_cast<const uint4 *>(from + i * S::kApart * kRowPitch);
}

// Twelve bytes of FP6 of each of eight lanes, so many apart, which lie side by side: exchanged, so that each store
// fills sectors. The first `lanes` of them are there.
template <int Apart>
__device__ inline void store_run(uint8_t *run, int number, int lanes, const uint32_t *words) {
  static_assert(8 * Apart == 32, "lanes of one warp");
  uint32_t received[3];
#pragma unroll
  for (int i = 0; i < 3; ++i) {  // word i of a lane, every third of the run: eight further is two further among three
    const int word = number + (2 * i + number) % 3 * 8;
    received[i] = __shfl_sync(kAllLanes, words[i], threadIdx.x % kWarpSize + (word / 3 - number) * Apart);
  }
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    const int word = number + i * 8, which = word % 3;
    if (word / 3 < lanes)
      reinterpret_cast<uint32_t *>(run)[word] = which == 0 ? received[0] : which == 1 ? received[1] : received[2];
  }
}

// What the scales of blocks along columns are in units of: the tensor's, or their line's, whose magnitude or scale is
// in its place; or the tensor's, by four over six.
enum TileScales { kOfTensor, kOfLines, kChosen };

__device__ inline ScaleRule rule_of_line(const QuantizeParams &p, int64_t line) {
  const ScaleRule rule = plain_rule(p);
  return rule_with(rule, scale_of_line(p, rule, line, bits_of(p.decodes[line])));
}

// Blocks along the columns of a unit. Codes of a byte each are left in `staged`.
template <int Src, int Dtype, int BlockSize, int Kind, bool Square, int Lanes, bool Rotated, TileScales Scales>
__device__ inline void quantize_unit(const TileParams &p, TilePlace at, Unit unit, const ScaleRule &rule,
                                     TileRule<Kind> *scales, const uint8_t *tile, uint8_t *staged) {
  constexpr int kBits = kTypes[Dtype].bits;
  const QuantizeParams &q = p.columns;
  const uint32_t first = at.row + unit.row, line = at.column + unit.column, block = first / BlockSize;
  const bool there = first < static_cast<uint32_t>(q.stored) && line < static_cast<uint32_t>(q.lines);
  const bool is_first = there && first % BlockSize / kStep == 0;
  uint8_t *const data = q.data + bytes_of<kBits>(line * q.data_stride + first);
  uint8_t *const scale_place = linear_scale(q, line, block);
  FloatStep columns[2];
  uint32_t largest[2], words[2][kCodeWords<kBits>];
  read_columns<Src, Lanes>(tile, unit, columns, largest);
#pragma unroll
  for (int i = 0; i < 2; ++i)
    if constexpr (Rotated) largest[i] = rotate_step(&columns[i], q.rotation);
#pragma unroll
  for (int i = 0; i < 2; ++i) largest[i] = largest_of_lanes(largest[i], Lanes * (BlockSize / kStep - 1));
  if constexpr (Square) largest[0] = largest[1] = largest_of_lanes(max(largest[0], largest[1]), Lanes - 1);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    BlockScale scale;
    if constexpr (Scales == kChosen)
      scale = better_scale(rule, columns[i], largest[i]);
    else if constexpr (Scales == kOfLines)
      scale = scale_of_block<Kind>(rule_of_line(q, min(int64_t{line} + i, q.lines - 1)), largest[i]);
    else
      scale = (*scales)(rule, largest[i]);
    if (Square && i == 0 && unit.column % BlockSize == 0) scales->keep_square(unit, scale.stored, largest[i]);
    encode_scaled<Dtype, Kind>(p.encode, columns[i], scale, largest[i], words[i]);
    if (is_first) store_scale<Kind>(q, scale_place + i * q.scale_stride, line + i, block, scale.stored);
    uint8_t *const to = data + bytes_of<kBits>(i * q.data_stride);
    if constexpr (kBits == 6) {
      const int lanes = line < q.lines ? static_cast<int>(min(q.stored - at.row, int64_t{kTileRows}) / kStep) : 0;
      store_run<Lanes>(to - bytes_of<kBits>(unit.row), unit.row / kStep, lanes, words[i]);
    } else if (kBits < 8 && there)
      store_codes<kBits>(to, words[i]);
  }
  if constexpr (kBits == 8) stage_codes(staged, unit, words);
}

template <int Src, int Dtype, int BlockSize, int Kind, bool Square, bool Rotated = false, TileScales Scales = kOfTensor>
__device__ inline void quantize_tile(const TileParams &p) {
  constexpr int kLanes = Square ? kLanesOfSquares : kLanesOfSegment;
  constexpr bool kHasBytes = kTypes[Dtype].bits == 8;
  uint8_t *const tile = shared_memory + kTileRuleBytes, *const staged = tile + tile_bytes(kFloatBytes<Src>);
  TileRule<Kind> &scales = *reinterpret_cast<TileRule<Kind> *>(shared_memory);
  const TilePlace at = place_of_tile<kTileColumns>(p);
  const uint32_t given = load_given_to_blocks<Kind>(p.columns);
  static_assert(kTileColumns == 2 * kUnitColumns, "the second half arrives while the first is worked on");
  copy_columns<kFloatBytes<Src>, kLanes>(p.rows, at, 0, tile);
  copy_columns<kFloatBytes<Src>, kLanes>(p.rows, at, kUnitColumns, tile);
  const ScaleRule rule =
      Scales == kChosen ? rule_of<Kind>(p.columns, p.columns.rule, given) : rule_of_blocks<Kind>(p.columns, given);
  if constexpr (Scales == kOfTensor) scales.fill(rule);
  const Unit unit = unit_of_thread<kLanes>();
#pragma unroll 1
  for (int column = 0; column < kTileColumns; column += kUnitColumns) {
    if (column == 0)
      wait_for_copies<1>();
    else
      wait_for_copies<0>();
    __syncthreads();
    quantize_unit<Src, Dtype, BlockSize, Kind, Square, kLanes, Rotated, Scales>(p, at, {unit.row, unit.column + column},
                                                                                rule, &scales, tile, staged);
  }
  if (p.rows.data != nullptr) {
    if constexpr (Square) __syncthreads();  // for the scales
    quantize_tile_rows<Src, Dtype, BlockSize, Kind, Square, kLanes>(p, at, rule, scales, tile);
  }
  if constexpr (kHasBytes) {
    __syncthreads();
    write_codes(p.columns, at, staged);
  }
}

constexpr int kStepsOfSquares = kSquaresColumns / kStep;

// Squares of 16 along rows, each row of which has the scale: 128 columns a warp, four rows at a time.
template <int Src, int Dtype, int Kind>
__device__ inline void quantize_small_squares(const QuantizeParams &p, const EncodeParams &encode) {
  constexpr int kBits = kTypes[Dtype].bits, kSide = 16, kRows = 32 / kStepsOfSquares;
  constexpr int kPasses = kSide / kRows;
  const uint32_t warp = block_number(p) * (kThreads / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t in_row = static_cast<uint32_t>((p.stored + kSquaresColumns - 1) / kSquaresColumns);
  const uint32_t first = warp % in_row * kSquaresColumns + lane % kStepsOfSquares * kStep, block = first / kSide;
  const uint32_t line = warp / in_row * kSide + lane / kStepsOfSquares;
  const auto is_there = [&](int pass) { return first < p.stored && line + pass * kRows < p.lines; };
  const uint8_t *const from = p.src + (line * p.line_stride + first) * kFloatBytes<Src>;
  uint8_t *to = p.data + bytes_of<kBits>(line * p.data_stride + first), *scale_place = linear_scale(p, line, block);
  const uint32_t given = load_given_to_blocks<Kind>(p);
  uint4 raw[kPasses][kFloatVectors<Src>];
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass)
    load_step<Src>(from + pass * (kRows * p.line_stride * kFloatBytes<Src>), is_there(pass), raw[pass]);
  const ScaleRule rule = rule_of_blocks<Kind>(p, given);
  uint32_t largest = 0;
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) largest = max(largest, largest_of<Src>(raw[pass]));
  largest = largest_of_lanes(largest, 32 - kStepsOfSquares);
  const BlockScale scale = scale_of_block<Kind>(rule, largest);
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    if (is_there(pass)) {
      uint32_t words[kCodeWords<kBits>];
      store_scale<Kind>(p, scale_place, line + pass * kRows, block, scale.stored);
      encode_scaled<Dtype, Kind>(encode, unpack_step<Src>(raw[pass]), scale, largest, words);
      store_codes<kBits>(to, words);
    }
    to += bytes_of<kBits>(kRows * p.data_stride);
    scale_place += kRows * p.scale_stride;
  }
}

// --- Blocks of 128 along columns, one byte an element ----------------------------------------

// Sixteen columns a thread, all rows of the strip in some passes. Words hold one or two magnitudes, as they lie in src.
template <int Src>
struct Strip {
  static constexpr int kColumns = strip_columns(kFloatBytes<Src>), kSteps = kColumns / kStep;
  static constexpr int kRowsOfPass = kThreads / kSteps, kPasses = kTileRows / kRowsOfPass;
  static constexpr int kWords = 4 * kFloatVectors<Src>, kWordsOfRow = kSteps * kWords,
                       kColumnsOfWord = 4 / kFloatBytes<Src>;
  static constexpr int kTeam = kThreads / kWordsOfRow;     // threads that share a word's rows
  static constexpr int kPitch = kWordsOfRow + 32 / kTeam;  // so that a team reads different banks
  uint32_t largest[kRowsOfPass * kPitch];
  StepFloats<kSteps> multipliers;
};

// The larger magnitudes of two words of floats.
template <int Src>
__device__ inline uint32_t larger_of_words(uint32_t largest, uint32_t word) {
  if constexpr (Src == DLFP4_float32) return bits_of(larger_float(float_of(largest), float_of(word)));
  return larger_halves<Src>(largest, word);
}

// The multiplier of each column from the largest magnitudes of the threads; returns whether all are finite.
template <int Src>
__device__ inline bool find_strip_scales(const QuantizeParams &p, TilePlace at, Strip<Src> *strip) {
  using S = Strip<Src>;
  const int member = threadIdx.x % S::kTeam, word = threadIdx.x / S::kTeam;
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < S::kRowsOfPass / S::kTeam; ++i)
    largest =
        larger_of_words<Src>(largest, strip->largest[(member * (S::kRowsOfPass / S::kTeam) + i) * S::kPitch + word]);
#pragma unroll
  for (int lane = 1; lane < S::kTeam; lane *= 2)
    largest = larger_of_words<Src>(largest, __shfl_xor_sync(kAllLanes, largest, lane));
  if (member < S::kColumnsOfWord) {
    const int column = word * S::kColumnsOfWord + member;
    largest = S::kColumnsOfWord == 1 ? largest & 0x7FFFFFFF : largest_half<Src>(largest >> 16 * member & 0xFFFF);
    const BlockScale scale = scale_of_block<DLFP4_LARGEST>(p.rule, largest);
    strip->multipliers.at(column) = scale.multiplier;
    if (at.column + column < p.lines)
      store_scale<DLFP4_LARGEST>(p, at.column + column, at.row / kTileRows, scale.stored);
  } else {
    largest = 0;
  }
  return !__syncthreads_or(largest >= kFloatInfinity);
}

// Codes of neighbours in a row, each with a multiplier of its own.
template <int Dtype>
__device__ inline void encode_bytes(const EncodeParams &encode, FloatStep step, const float *multipliers,
                                    bool is_finite, uint32_t *words) {
#pragma unroll
  for (int i = 0; i < kStep; ++i) step.values[i] = __fmul_rn(step.values[i], multipliers[i]);
  if (is_finite)
    encode_step<Dtype>(encode, step, words);
  else
    encode_step_by_rule<8>(encode, step.values, words);
}

template <int Src, int Dtype>
__device__ inline void quantize_strip(const TileParams &p) {
  using S = Strip<Src>;
  __shared__ S strip;
  const QuantizeParams &q = p.columns;
  const TilePlace at = place_of_tile<S::kColumns>(p);
  const int step = threadIdx.x % S::kSteps, row = threadIdx.x / S::kSteps;
  const uint32_t line = at.column + step * kStep, first = at.row + row;
  const bool has_lines = line < q.lines;
  const uint8_t *from = q.src + (first * q.step + line) * kFloatBytes<Src>;
  uint4 raw[S::kPasses][kFloatVectors<Src>];
#pragma unroll
  for (int pass = 0; pass < S::kPasses; ++pass, from += S::kRowsOfPass * q.step * kFloatBytes<Src>)
    load_step<Src>(from, has_lines && first + pass * S::kRowsOfPass < q.length, raw[pass]);
  uint32_t largest[S::kWords] = {};
#pragma unroll
  for (int pass = 0; pass < S::kPasses; ++pass)
#pragma unroll
    for (int i = 0; i < S::kWords; ++i) largest[i] = larger_of_words<Src>(largest[i], (&raw[pass][i / 4].x)[i % 4]);
  store_vectors<S::kWords>(reinterpret_cast<uint8_t *>(strip.largest + row * S::kPitch + step * S::kWords), largest);
  __syncthreads();
  const bool is_finite = find_strip_scales<Src>(q, at, &strip);
  float multipliers[kStep];
  uint32_t words[kCodeWords<8>];
  strip.multipliers.take(step, multipliers);
  uint8_t *to = q.data + line + first * q.data_step;
#pragma unroll
  for (int pass = 0; pass < S::kPasses; ++pass, to += S::kRowsOfPass * q.data_step) {
    if (!has_lines || first + pass * S::kRowsOfPass >= q.stored) continue;
    encode_bytes<Dtype>(p.encode, unpack_step<Src>(raw[pass]), multipliers, is_finite, words);
    store_codes<8>(to, words);
  }
}

// --- Dequantize ------------------------------------------------------------------------------

// Hosts see to it that lines and their elements can be counted in 32 bits.
__device__ inline TilePlace place_of_tile(const DequantizeParams &p, uint32_t tile) {
  const uint32_t in_row = (static_cast<uint32_t>(p.lines) + kTileColumns - 1) / kTileColumns;
  return {tile / in_row * kTileRows, tile % in_row * kTileColumns};
}

static_assert(kThreads == 2 * kTileRows && kThreads == 2 * kTileColumns, "a thread prefetches half of a line");

// A tile's columns of floats from `first` on, as many as a pass makes, from shared memory to the result.
template <int Bytes>
__device__ inline void store_columns(const DequantizeParams &p, TilePlace at, int first, const uint8_t *tile) {
  using S = Share<kUnitColumns * Bytes / 16>;
  const S share;
  const uint32_t column = first + share.chunk * (16 / Bytes), line = at.row + share.row;
  const uint8_t *const from = tile + place_in_tile<Bytes, kLanesOfSegment>(share.row, column);
  uint8_t *to = p.dst + (int64_t{line} * p.step + (at.column + column)) * Bytes;
  if (at.column + column >= static_cast<uint32_t>(p.lines)) return;
#pragma unroll
  for (int i = 0; i < S::kRows; ++i, to += S::kApart * p.step * Bytes)
    if (line + i * S::kApart < static_cast<uint32_t>(p.length))
      *reinterpret_cast<uint4 *>(to) = *reinterpret_cast<const uint4 *>(from + i * S::kApart * kRowPitch);
}

// Two columns' values of sixteen rows, to shared memory.
template <int Dst>
__device__ inline void stage_columns(uint8_t *tile, Unit unit, const float (*values)[kStep], bool special) {
  constexpr int kBytes = kFloatBytes<Dst>, kHalf = kStep / 2;
  uint8_t *const to = tile + place_in_tile<kBytes, kLanesOfSegment>(unit.row, unit.column);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float pairs[kStep];
    uint32_t words[kStep * kBytes / 4];
#pragma unroll
    for (int i = 0; i < kStep; ++i) pairs[i] = values[i % 2][half * kHalf + i / 2];
    narrow_step<Dst>(pairs, special, words);
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      uint8_t *const place = to + (half * kHalf + i) * kRowPitch;
      if constexpr (kBytes == 4)
        *reinterpret_cast<uint2 *>(place) = make_uint2(words[2 * i], words[2 * i + 1]);
      else
        *reinterpret_cast<uint32_t *>(place) = words[i];
    }
  }
}

// Lines that are columns of the result: packed codes along them, scales of a byte. What lies beyond the last ones is
// read from them instead: a branch would wait for the loads before it.
template <int Dtype, int Dst, bool Rotated = false>
__device__ inline void dequantize_tile(const DequantizeParams &p) {
  constexpr int kBits = kTypes[Dtype].bits, kUnits = kTileColumns / kUnitColumns;
  static_assert(sizeof(Values<Dtype>) <= kTileRuleBytes, "");
  Values<Dtype> &table = *reinterpret_cast<Values<Dtype> *>(shared_memory);
  uint8_t *const tile = shared_memory + kTileRuleBytes;
  const TilePlace at = place_of_tile(p, blockIdx.x), later = place_of_tile(p, blockIdx.x + kBlocksAhead);
  const Unit unit = unit_of_thread<kLanesOfSegment>();
  const uint32_t first = min((at.row + unit.row) / kStep, (static_cast<uint32_t>(p.length) - 1) / kStep) * kStep;
  const float decode = load_or_one(p.decode);
  int64_t places[2 * kUnits];
  uint32_t codes[2 * kUnits][kCodeWords<kBits>], scales[2 * kUnits];
  float decodes[2 * kUnits];
  const auto line_of = [&](int i) {
    return min(at.column + unit.column + i / 2 * kUnitColumns + i % 2, static_cast<uint32_t>(p.lines) - 1);
  };
#pragma unroll
  for (int i = 0; i < 2 * kUnits; ++i) places[i] = place_of_scale(p, line_of(i), first);
#pragma unroll
  for (int i = 0; i < 2 * kUnits; ++i)
    load_codes<kBits>(p.data + bytes_of<kBits>(line_of(i) * p.data_stride + first), codes[i]);
  load_scales<2 * kUnits>(p, places, scales);
#pragma unroll
  for (int i = 0; i < 2 * kUnits; ++i) decodes[i] = p.decodes == nullptr ? decode : *decode_place(p, line_of(i));
  const uint32_t later_line = later.column + threadIdx.x / 2, later_row = later.row + threadIdx.x % 2 * (kTileRows / 2);
  if (later_line < p.lines && later_row < p.length)
    prefetch(p.data + bytes_of<kBits>(later_line * p.data_stride + later_row));
  table.fill();
#pragma unroll
  for (int i = 0; i < kUnits; ++i) {
    float values[2][kStep];
    bool special = false;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const float scale = decode_fast(p.kind, scales[2 * i + k], decodes[2 * i + k]);
      special |= Rotated ? decode_rotated_step(table, codes[2 * i + k], scale, p.rotation, values[k])
                         : decode_step(table, codes[2 * i + k], scale, values[k]);
    }
    stage_columns<Dst>(tile, {unit.row, unit.column + i * kUnitColumns}, values, special);
    __syncthreads();
    store_columns<kFloatBytes<Dst>>(p, at, i * kUnitColumns, tile);
  }
}

// The codes of a later tile whose columns are those of memory.
__device__ inline void prefetch_rows(const DequantizeParams &p, TilePlace later) {
  const uint32_t row = later.row + threadIdx.x / 2, line = later.column + threadIdx.x % 2 * (kTileColumns / 2);
  if (line < p.lines && row < p.length) prefetch(p.data + line + row * p.data_step);
}

// Lines that are columns of the codes' memory too, a byte an element, with scales of 32 elements and more: sixteen
// columns a thread.
template <int Dtype, int Dst>
__device__ inline void dequantize_plain_across(const DequantizeParams &p) {
  constexpr int kSteps = kTileColumns / kStep, kRows = kThreads / kSteps, kPasses = kTileRows / kRows;
  constexpr int kWords = kStep * kFloatBytes<Dst> / 4, kScales = kPasses * kTileColumns / kThreads;
  static_assert(kRows == kAcrossLength, "a pass has one scale a column");
  static_assert(Values<Dtype>::kUnit == 1, "scales are those of values");
  __shared__ Values<Dtype> table;
  __shared__ StepFloats<kSteps> scales[kPasses];
  const TilePlace at = place_of_tile(p, blockIdx.x);
  const uint32_t lines = static_cast<uint32_t>(p.lines), length = static_cast<uint32_t>(p.length);
  const uint32_t step = threadIdx.x % kSteps, line = at.column + step * kStep, first = at.row + threadIdx.x / kSteps;
  const float decode = load_or_one(p.decode);
  int64_t places[kScales];
  uint32_t codes[kPasses][kCodeWords<8>], stored[kScales];
#pragma unroll
  for (int i = 0; i < kScales; ++i) {
    const uint32_t number = threadIdx.x + i * kThreads, row = at.row + number / kTileColumns * kRows;
    places[i] = place_of_scale(p, min(at.column + number % kTileColumns, lines - 1), min(row, length - 1));
  }
#pragma unroll
  for (int i = 0; i < kPasses; ++i)
    load_codes<8>(p.data + min(line, lines - kStep) + min(first + i * kRows, length - 1) * p.data_step, codes[i]);
  load_scales<kScales>(p, places, stored);
  prefetch_rows(p, place_of_tile(p, blockIdx.x + kBlocksAhead));
  bool special = false;
#pragma unroll
  for (int i = 0; i < kScales; ++i) {
    const int number = threadIdx.x + i * kThreads;
    const float scale = decode_fast(p.kind, stored[i], decode);
    scales[number / kTileColumns].at(number % kTileColumns) = scale;
    special |= !(fabsf(scale) <= kLargestFloat);
  }
  table.fill();
  special = __syncthreads_or(special);
#pragma unroll
  for (int i = 0; i < kPasses; ++i) {
    const uint32_t row = first + i * kRows;
    float values[kStep], factors[kStep];
    uint32_t words[kWords];
    const bool has_nan = special || has_special<Dtype>(codes[i]);
    scales[i].take(step, factors);
    table.decode(codes[i], values);
#pragma unroll
    for (int k = 0; k < kStep; ++k) values[k] = __fmul_rn(values[k], factors[k]);
    if (has_nan)
      for (int k = 0; k < kStep; ++k) values[k] = decoded(Values<Dtype>::decode_by_rule(codes[i], k), factors[k]);
    narrow_step<Dst>(values, has_nan, words);
    const bool there = line < lines && row < length;
    warp_store<kWords>().store(there ? p.dst + (line + row * p.step) * kFloatBytes<Dst> : nullptr, words);
  }
}

// Four words of four bytes each, a row a word, as columns.
__device__ inline void turn_bytes(const uint32_t *rows, uint32_t *columns) {
  static_assert(kColumnsOfThread == 4, "bytes of a word");
  const uint32_t low[] = {__byte_perm(rows[0], rows[1], 0x5140), __byte_perm(rows[2], rows[3], 0x5140)};
  const uint32_t high[] = {__byte_perm(rows[0], rows[1], 0x7362), __byte_perm(rows[2], rows[3], 0x7362)};
  columns[0] = __byte_perm(low[0], low[1], 0x5410);
  columns[1] = __byte_perm(low[0], low[1], 0x7632);
  columns[2] = __byte_perm(high[0], high[1], 0x5410);
  columns[3] = __byte_perm(high[0], high[1], 0x7632);
}

// Rows of sixteen bytes of four neighbours each, as the codes of four columns.
__device__ inline void load_columns(const uint8_t *from, int64_t pitch, uint32_t (*codes)[kStep / 4]) {
#pragma unroll
  for (int four = 0; four < kStep / 4; ++four) {
    uint32_t rows[4], columns[kColumnsOfThread];
#pragma unroll
    for (int i = 0; i < 4; ++i) rows[i] = *reinterpret_cast<const uint32_t *>(from + (4 * four + i) * pitch);
    turn_bytes(rows, columns);
#pragma unroll
    for (int k = 0; k < kColumnsOfThread; ++k) codes[k][four] = columns[k];
  }
}

// Rotated lines that are columns of the codes' memory too, a byte an element: sixteen rows of four columns a thread.
template <int Dtype, int Dst>
__device__ inline void dequantize_rotated_across(const DequantizeParams &p) {
  constexpr int kBytes = kFloatBytes<Dst>;
  static_assert(kTileColumns == kWarpSize * kColumnsOfThread && kTileRows == kThreads / kWarpSize * kStep, "");
  __shared__ Values<Dtype> table;
  const TilePlace at = place_of_tile(p, blockIdx.x);
  const uint32_t lines = static_cast<uint32_t>(p.lines), length = static_cast<uint32_t>(p.length);
  const uint32_t line = at.column + threadIdx.x % kWarpSize * kColumnsOfThread;
  const uint32_t row = at.row + threadIdx.x / kWarpSize * kStep;
  const bool there = line < lines && row < length;
  const uint32_t column = there ? line : 0, first = there ? row : 0;
  const float decode = load_or_one(p.decode);
  uint32_t codes[kColumnsOfThread][kStep / 4], stored[kColumnsOfThread];
  int64_t places[kColumnsOfThread];
#pragma unroll
  for (int k = 0; k < kColumnsOfThread; ++k) places[k] = place_of_scale(p, column + k, first);
  load_scales<kColumnsOfThread>(p, places, stored);
  load_columns(p.data + first * p.data_step + column, p.data_step, codes);
  prefetch_rows(p, place_of_tile(p, blockIdx.x + kBlocksAhead));
  table.fill();
  if (!there) return;
  uint32_t words[2][kStep * kBytes / 2];  // of two pairs of columns, rows one after the other
#pragma unroll
  for (int pair = 0; pair < 2; ++pair) {
    float values[2][kStep], rows[2 * kStep];
    bool special = false;
#pragma unroll
    for (int k = 0; k < 2; ++k)
      special |= decode_rotated_step(table, codes[2 * pair + k], decode_fast(p.kind, stored[2 * pair + k], decode),
                                     p.rotation, values[k]);
#pragma unroll
    for (int i = 0; i < 2 * kStep; ++i) rows[i] = values[i % 2][i / 2];
    narrow_step<Dst>(rows, special, words[pair]);
    narrow_step<Dst>(rows + kStep, special, words[pair] + kStep * kBytes / 4);
  }
  uint8_t *to = p.dst + (first * p.step + column) * kBytes;
#pragma unroll
  for (int i = 0; i < kStep; ++i, to += p.step * kBytes) {
    if constexpr (kBytes == 2)
      *reinterpret_cast<uint2 *>(to) = make_uint2(words[0][i], words[1][i]);
    else
      *reinterpret_cast<uint4 *>(to) =
          make_uint4(words[0][2 * i], words[0][2 * i + 1], words[1][2 * i], words[1][2 * i + 1]);
  }
}

template <int Dtype, int Dst, bool Rotated = false>
__device__ inline void dequantize_across(const DequantizeParams &p) {
  if constexpr (Rotated)
    dequantize_rotated_across<Dtype, Dst>(p);
  else
    dequantize_plain_across<Dtype, Dst>(p);
}

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_BLOCKS_CUDA_TILES_CUH_
