// Blocks along columns of row-major memory, alone or together with those along rows; squares of 16; and back.
// Layout: a block of threads takes 128 rows and columns through shared memory, in chunks of 16 bytes; strips of 64
// columns stay in registers.
// Trick: chunks are swizzled by the row, so that rows 16 apart lie in different banks: a warp reads columns of eight
// such segments at once, of squares four, and what it writes of a column fills whole sectors.
#ifndef DLFP4_SRC_CUDA_TILES_CUH_
#define DLFP4_SRC_CUDA_TILES_CUH_

#include "async.cuh"
#include "rows.cuh"

namespace dlfp4 {
namespace cuda {

// The byte of a tile where columns [column, column + 16 / bytes) of a row start. Segments of 16 rows lie in different
// banks, and so do the steps of a row.
template <int Bytes, int Columns>
__device__ inline int place_in_tile(int row, int column) {
  constexpr int kChunks = Columns * Bytes / 16;
  const int byte = column * Bytes, segment = row / kStep;
  const int turn = (segment & 1) << 2 | (segment & 2) | (segment >> 2 & 1);
  const int chunk = byte / 16 ^ byte / 128 % 4 ^ turn % kChunks;
  return (row * kChunks + chunk) * 16 + byte % 16;
}

// Where a thread works on columns: two neighbours, sixteen rows. So many `Lanes` of a warp take the same rows.
struct Unit {
  int row, column;
};

template <int Lanes>
__device__ inline Unit unit_of_thread() {
  constexpr int kSegments = 32 / Lanes, kWarpsAbove = kTileRows / kStep / kSegments;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  return {(warp % kWarpsAbove * kSegments + lane / Lanes) * kStep, (warp / kWarpsAbove * Lanes + lane % Lanes) * 2};
}

constexpr int kLanesOfSegment = 4, kUnitColumns = kThreads * 2 * kStep / kTileRows;

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
// the scales of squares, found along columns, for their rows. A given scale that is no positive number makes codes
// beyond these, which go the long way.
template <int Kind>
class TileRule {
  static constexpr int kSide = 16, kScales = 0x7F;
  static constexpr uint32_t kIsFinite = 0x100;  // beside a square's code
  float multipliers_[Kind == DLFP4_TWO_LEVEL ? kScales : 1];
  uint16_t squares_[kTileRows / kSide][kTileColumns / kSide];
  static_assert(sizeof(multipliers_) + sizeof(squares_) <= kTileRuleBytes, "");

  __device__ BlockScale with_multiplier(const ScaleRule &rule, uint32_t code) const {
    return {code, code < kScales ? multipliers_[code] : two_level_multiplier(rule, code)};
  }

 public:
  __device__ void fill(const ScaleRule &rule) {
    if (Kind == DLFP4_TWO_LEVEL && threadIdx.x < kScales)
      multipliers_[threadIdx.x] = two_level_multiplier(rule, threadIdx.x);
  }

  __device__ BlockScale operator()(const ScaleRule &rule, uint32_t magnitude) const {
    if constexpr (Kind != DLFP4_TWO_LEVEL) return scale_of_block<Kind>(rule, magnitude);
    if (magnitude >= kNotFinite) return kTwoLevelNan;
    return with_multiplier(rule, two_level_code(rule, magnitude));
  }

  __device__ void keep_square(Unit at, uint32_t code, uint32_t largest) {
    squares_[at.row / kSide][at.column / kSide] = static_cast<uint16_t>(code | (largest < kNotFinite ? kIsFinite : 0));
  }

  // Returns a magnitude that is as finite as the largest.
  __device__ uint32_t take_square(const ScaleRule &rule, int row, int column, BlockScale *scale) const {
    const uint32_t kept = squares_[row / kSide][column / kSide];
    *scale = kept & kIsFinite ? with_multiplier(rule, kept & 0xFF) : kTwoLevelNan;
    return kept & kIsFinite ? 0 : kNotFinite;
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

// The tile's rows into shared memory, with zeros for what is not there.
template <int Bytes>
__device__ inline void copy_tile(const QuantizeParams &p, TilePlace at, uint8_t *tile) {
  constexpr int kInRow = kTileColumns * Bytes / 16, kRows = kThreads / kInRow;
  const int column = threadIdx.x % kInRow * (16 / Bytes), row = threadIdx.x / kInRow;
  const uint32_t lines = static_cast<uint32_t>(p.lines);
  const bool has_columns = at.column + column < static_cast<uint32_t>(p.length);
  const uint8_t *from = p.src + ((at.row + row) * p.line_stride + at.column + column) * Bytes;
#pragma unroll
  for (int i = 0; i < kTileRows; i += kRows, from += kRows * p.line_stride * Bytes)
    copy_16(shared_address(tile + place_in_tile<Bytes, kTileColumns>(row + i, column)), from,
            has_columns && at.row + row + i < lines);
  commit_copies();
}

// Blocks along the tile's rows, or rows of squares whose scales were found: four neighbours a thread.
template <int Src, int Row, int BlockSize, int Kind, bool Square>
__device__ inline void quantize_tile_rows(const TileParams &p, TilePlace at, const ScaleRule &rule,
                                          const TileRule<Kind> &scales, const uint8_t *tile) {
  constexpr int kBits = kFormats[Row].bits, kBytes = kFloatBytes<Src>, kSteps = kTileColumns / kStep;
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
    float values[kStep];
    uint32_t words[kCodeWords<kBits>];
#pragma unroll
    for (int k = 0; k < kFloatVectors<Src>; ++k)
      raw[k] = *reinterpret_cast<const uint4 *>(
          tile + place_in_tile<kBytes, kTileColumns>(row, column + k * 16 / kBytes) + i * (kTileColumns * kBytes));
    uint32_t largest = largest_of_lanes(largest_of<Src>(raw), BlockSize / kStep - 1);
    if (!has_columns || line + i >= lines) continue;
    BlockScale scale;
    if constexpr (Square)
      largest = scales.take_square(rule, row, column, &scale);
    else
      scale = scales(rule, largest);
    if (is_first) store_scale<Kind>(q, scale_place, line + i, first / BlockSize, scale.stored);
    unpack_vectors<Src>(raw, values);
    encode_scaled<Row, Kind>(p.encode, values, scale, largest, words);
    store_codes<kBits>(data, words);
  }
}

// Two columns' values of sixteen rows, and their largest magnitudes.
template <int Src>
__device__ inline void read_columns(const uint8_t *tile, Unit unit, float (*values)[kStep], uint32_t *largest) {
  constexpr int kBytes = kFloatBytes<Src>;
  const uint8_t *const from = tile + place_in_tile<kBytes, kTileColumns>(unit.row, unit.column);
  uint32_t halves = 0;
  float floats[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < kStep; ++i) {
    float pair[2];
    if constexpr (Src == DLFP4_float32) {
      const float2 both = *reinterpret_cast<const float2 *>(from + i * (kTileColumns * kBytes));
      pair[0] = both.x, pair[1] = both.y;
      for (int k = 0; k < 2; ++k) floats[k] = larger_float(floats[k], pair[k]);
    } else {
      const uint32_t word = *reinterpret_cast<const uint32_t *>(from + i * (kTileColumns * kBytes));
      unpack_floats<Src>(word, pair);
      halves = larger_halves<Src>(halves, word);
    }
    values[0][i] = pair[0];
    values[1][i] = pair[1];
  }
  largest[0] = Src == DLFP4_float32 ? bits_of(floats[0]) : largest_half<Src>(halves & 0xFFFF);
  largest[1] = Src == DLFP4_float32 ? bits_of(floats[1]) : largest_half<Src>(halves >> 16);
}

// Codes of two columns as bytes of sixteen rows.
__device__ inline void stage_codes(uint8_t *staged, Unit unit, const uint32_t (*words)[kCodeWords<8>]) {
  uint8_t *const to = staged + place_in_tile<1, kTileColumns>(unit.row, unit.column);
#pragma unroll
  for (int i = 0; i < kStep; ++i) {
    const uint32_t pair = code_at<8>(words[0], i) | code_at<8>(words[1], i) << 8;
    *reinterpret_cast<uint16_t *>(to + i * kTileColumns) = static_cast<uint16_t>(pair);
  }
}

__device__ inline void write_codes(const QuantizeParams &p, TilePlace at, const uint8_t *staged) {
  constexpr int kSteps = kTileColumns / kStep, kRows = kThreads / kSteps;
  const int column = threadIdx.x % kSteps * kStep;
#pragma unroll
  for (int i = 0; i < kTileRows; i += kRows) {
    const int row = threadIdx.x / kSteps + i;
    if (at.row + row >= p.stored || at.column + column >= p.lines) continue;
    *reinterpret_cast<uint4 *>(p.data + (at.column + column) + (at.row + row) * p.data_step) =
        *reinterpret_cast<const uint4 *>(staged + place_in_tile<1, kTileColumns>(row, column));
  }
}

// Blocks along the columns of a unit. Codes of a byte each are left in `staged`.
template <int Src, int Row, int BlockSize, int Kind, bool Square, int Lanes>
__device__ inline void quantize_unit(const TileParams &p, TilePlace at, Unit unit, const ScaleRule &rule,
                                     TileRule<Kind> *scales, const uint8_t *tile, uint8_t *staged) {
  constexpr int kBits = kFormats[Row].bits;
  const QuantizeParams &q = p.columns;
  const uint32_t first = at.row + unit.row, line = at.column + unit.column, block = first / BlockSize;
  const bool there = first < static_cast<uint32_t>(q.stored) && line < static_cast<uint32_t>(q.lines);
  const bool is_first = there && first % BlockSize / kStep == 0;
  uint8_t *const data = q.data + bytes_of<kBits>(line * q.data_stride + first);
  uint8_t *const scale_place = linear_scale(q, line, block);
  float values[2][kStep];
  uint32_t largest[2], words[2][kCodeWords<kBits>];
  read_columns<Src>(tile, unit, values, largest);
#pragma unroll
  for (int i = 0; i < 2; ++i) largest[i] = largest_of_lanes(largest[i], Lanes * (BlockSize / kStep - 1));
  if constexpr (Square) largest[0] = largest[1] = largest_of_lanes(max(largest[0], largest[1]), Lanes - 1);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const BlockScale scale = (*scales)(rule, largest[i]);
    if (Square && i == 0 && unit.column % BlockSize == 0) scales->keep_square(unit, scale.stored, largest[i]);
    encode_scaled<Row, Kind>(p.encode, values[i], scale, largest[i], words[i]);
    if (is_first) store_scale<Kind>(q, scale_place + i * q.scale_stride, line + i, block, scale.stored);
    if (kBits < 8 && there) store_codes<kBits>(data + bytes_of<kBits>(i * q.data_stride), words[i]);
  }
  if constexpr (kBits == 8) stage_codes(staged, unit, words);
}

template <int Src, int Row, int BlockSize, int Kind, bool Square>
__device__ inline void quantize_tile(const TileParams &p) {
  constexpr int kLanes = Square ? 2 * kLanesOfSegment : kLanesOfSegment;
  constexpr bool kHasBytes = kFormats[Row].bits == 8;
  uint8_t *const tile = shared_memory + kTileRuleBytes, *const staged = tile + tile_bytes(kFloatBytes<Src>);
  TileRule<Kind> &scales = *reinterpret_cast<TileRule<Kind> *>(shared_memory);
  const TilePlace at = place_of_tile<kTileColumns>(p);
  copy_tile<kFloatBytes<Src>>(p.rows, at, tile);
  const ScaleRule rule = rule_of_blocks<Kind>(p.columns);
  scales.fill(rule);
  wait_for_copies<0>();
  __syncthreads();
  if (!Square && p.rows.data != nullptr)
    quantize_tile_rows<Src, Row, BlockSize, Kind, false>(p, at, rule, scales, tile);
  const Unit unit = unit_of_thread<kLanes>();
#pragma unroll 1
  for (int column = 0; column < kTileColumns; column += kUnitColumns)
    quantize_unit<Src, Row, BlockSize, Kind, Square, kLanes>(p, at, {unit.row, unit.column + column}, rule, &scales,
                                                             tile, staged);
  if (Square && p.rows.data != nullptr) {
    __syncthreads();
    quantize_tile_rows<Src, Row, BlockSize, Kind, true>(p, at, rule, scales, tile);
  }
  if constexpr (kHasBytes) {
    __syncthreads();
    write_codes(p.columns, at, staged);
  }
}

constexpr int kStepsInStrip = kStripColumns / kStep;

// Squares of 16 along rows, each row of which has the scale: 64 columns of some squares below one another a warp.
template <int Src, int Row, int Kind>
__device__ inline void quantize_small_squares(const QuantizeParams &p, const EncodeParams &encode) {
  constexpr int kBits = kFormats[Row].bits, kSide = 16, kPasses = 2, kRows = kSide / kPasses;
  const uint32_t warp = block_number(p) * (kThreads / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t in_row = static_cast<uint32_t>((p.stored + kStripColumns - 1) / kStripColumns);
  const uint32_t first = warp % in_row * kStripColumns + lane % kStepsInStrip * kStep;
  const uint32_t line = warp / in_row * (kSide * kSquaresOfWarp) + lane / kStepsInStrip;
  const auto is_there = [&](int square, int pass) {
    return first < p.stored && line + square * kSide + pass * kRows < p.lines;
  };
  uint4 raw[kSquaresOfWarp][kPasses][kFloatVectors<Src>];
#pragma unroll
  for (int square = 0; square < kSquaresOfWarp; ++square)
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass)
      load_step<Src>(p.src + ((line + square * kSide + pass * kRows) * p.line_stride + first) * kFloatBytes<Src>,
                     is_there(square, pass), raw[square][pass]);
  const ScaleRule rule = rule_of_blocks<Kind>(p);
#pragma unroll
  for (int square = 0; square < kSquaresOfWarp; ++square) {
    uint32_t largest = max(largest_of<Src>(raw[square][0]), largest_of<Src>(raw[square][1]));
    largest = largest_of_lanes(largest, 32 - kStepsInStrip);
    const BlockScale scale = scale_of_block<Kind>(rule, largest);
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      if (!is_there(square, pass)) continue;
      const uint32_t i = line + square * kSide + pass * kRows;
      float values[kStep];
      uint32_t words[kCodeWords<kBits>];
      unpack_vectors<Src>(raw[square][pass], values);
      store_scale<Kind>(p, i, first / kSide, scale.stored);
      encode_scaled<Row, Kind>(encode, values, scale, largest, words);
      store_codes<kBits>(p.data + bytes_of<kBits>(i * p.data_stride + first), words);
    }
  }
}

// --- Blocks of 128 along columns, one byte an element ----------------------------------------

constexpr int kRowsOfPass = kThreads / kStepsInStrip, kPassesOfStrip = kTileRows / kRowsOfPass;

struct Strip {
  uint32_t largest[kRowsOfPass][kStripColumns];
  uint32_t quarters[kThreads / kStripColumns][kStripColumns];
  float multipliers[kStripColumns];
  uint32_t of_column[kStripColumns];
};

// The largest magnitude and the multiplier of each column of a tile.
__device__ inline void find_strip_scales(const QuantizeParams &p, TilePlace at, Strip *strip) {
  constexpr int kQuarters = kThreads / kStripColumns, kRows = kRowsOfPass / kQuarters;
  const int column = threadIdx.x % kStripColumns, quarter = threadIdx.x / kStripColumns;
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kRows; ++i) largest = max(largest, strip->largest[quarter * kRows + i][column]);
  strip->quarters[quarter][column] = largest;
  __syncthreads();
  if (threadIdx.x < kStripColumns) {
#pragma unroll
    for (int i = 0; i < kQuarters; ++i) largest = max(largest, strip->quarters[i][column]);
    const BlockScale scale = scale_of_block<DLFP4_LARGEST>(p.rule, largest);
    strip->multipliers[column] = scale.multiplier;
    strip->of_column[column] = largest;
    if (at.column + column < p.lines)
      store_scale<DLFP4_LARGEST>(p, at.column + column, at.row / kTileRows, scale.stored);
  }
  __syncthreads();
}

template <int Src, int Row>
__device__ inline void quantize_strip(const TileParams &p) {
  __shared__ Strip strip;
  const QuantizeParams &q = p.columns;
  const TilePlace at = place_of_tile<kStripColumns>(p);
  const int column = threadIdx.x % kStepsInStrip * kStep, row = threadIdx.x / kStepsInStrip;
  uint4 raw[kPassesOfStrip][kFloatVectors<Src>];
  uint32_t largest[kStep] = {}, words[kCodeWords<8>];
  float values[kStep];
#pragma unroll
  for (int pass = 0; pass < kPassesOfStrip; ++pass) {
    const int64_t i = at.row + pass * kRowsOfPass + row;
    load_step<Src>(q.src + (i * q.step + (at.column + column)) * kFloatBytes<Src>,
                   i < q.length && at.column + column < q.lines, raw[pass]);
    unpack_vectors<Src>(raw[pass], values);
#pragma unroll
    for (int k = 0; k < kStep; ++k) largest[k] = max(largest[k], bits_of(values[k]) & 0x7FFFFFFF);
  }
  store_vectors<kStep>(reinterpret_cast<uint8_t *>(&strip.largest[row][column]), largest);
  __syncthreads();
  find_strip_scales(q, at, &strip);
  uint32_t worst = 0;
#pragma unroll
  for (int k = 0; k < kStep; ++k) worst = max(worst, strip.of_column[column + k]);
#pragma unroll
  for (int pass = 0; pass < kPassesOfStrip; ++pass) {
    const int64_t i = at.row + pass * kRowsOfPass + row;
    if (i >= q.stored || at.column + column >= q.lines) continue;
    unpack_vectors<Src>(raw[pass], values);
#pragma unroll
    for (int k = 0; k < kStep; ++k) values[k] = __fmul_rn(values[k], strip.multipliers[column + k]);
    if (worst < kNotFinite)
      encode_step<Row>(p.encode, values, words);
    else
      encode_step_by_rule<8>(p.encode, values, words);
    store_codes<8>(q.data + (at.column + column) + i * q.data_step, words);
  }
}

// --- Dequantize ------------------------------------------------------------------------------

// Lines that are columns of the result: packed codes along them.
template <int Row, int Dst>
__device__ inline void dequantize_tile(const DequantizeParams &p) {
  constexpr int kBits = kFormats[Row].bits, kBytes = kFloatBytes<Dst>, kUnits = kTileColumns / kUnitColumns;
  constexpr int kPitch = kTileColumns * kBytes, kElements = 16 / kBytes, kChunks = kTileColumns / kElements;
  static_assert(sizeof(Values<Row>) <= kTileRuleBytes, "");
  Values<Row> &table = *reinterpret_cast<Values<Row> *>(shared_memory);
  uint8_t *const tile = shared_memory + kTileRuleBytes;
  const uint32_t in_row = static_cast<uint32_t>((p.lines + kTileColumns - 1) / kTileColumns);
  const int64_t top = int64_t{blockIdx.x / in_row} * kTileRows, left = int64_t{blockIdx.x % in_row} * kTileColumns;
  const Unit unit = unit_of_thread<kLanesOfSegment>();
  const int64_t first = top + unit.row;
  uint32_t codes[kUnits][2][kCodeWords<kBits>] = {}, scales[kUnits][2] = {};
#pragma unroll
  for (int i = 0; i < 2 * kUnits; ++i) {
    const int64_t line = left + unit.column + i / 2 * kUnitColumns + i % 2;
    if (first >= p.length || line >= p.lines) continue;
    load_codes<kBits>(p.data + (line * p.data_stride + first) * kBits / 8, codes[i / 2][i % 2]);
    scales[i / 2][i % 2] = stored_scale(p, line, first);
  }
  const float decode = tensor_decode(p);
  table.fill();
#pragma unroll
  for (int number = 0; number < kUnits; ++number) {
    uint8_t *const to = tile + place_in_tile<kBytes, kTileColumns>(unit.row, unit.column + number * kUnitColumns);
    float values[2][kStep];
    bool special = false;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      special |= decode_step(table, codes[number][i], decode_fast(p.kind, scales[number][i], decode), values[i]);
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
      if constexpr (kBytes == 4) {
        *reinterpret_cast<float2 *>(to + i * kPitch) = make_float2(values[0][i], values[1][i]);
      } else {
        const uint32_t pair = narrow_pair<Dst>(values[0][i], values[1][i]);
        *reinterpret_cast<uint32_t *>(to + i * kPitch) =
            special ? quiet_pair<Dst>(pair, values[0][i], values[1][i]) : pair;
      }
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kTileRows * kChunks; i += kThreads) {
    const int row = (threadIdx.x + i) / kChunks, column = threadIdx.x % kChunks * kElements;
    if (top + row >= p.length || left + column >= p.lines) continue;
    *reinterpret_cast<uint4 *>(p.dst + (left + column + (top + row) * p.step) * kBytes) =
        *reinterpret_cast<const uint4 *>(tile + place_in_tile<kBytes, kTileColumns>(row, column));
  }
}

// Scales of sixteen lines at one position: next to each other where that is how they lie.
__device__ inline void load_scales(const DequantizeParams &p, int64_t line, int64_t position, float decode,
                                   float *scales) {
  const int64_t place = line * p.scale_stride + (position >> p.block_shift) * p.scale_step;
  const uint4 *const from = reinterpret_cast<const uint4 *>(p.scales + (p.kind == DLFP4_LARGEST ? place * 4 : place));
  const bool vectors = p.layout == DLFP4_LAYOUT_linear && p.scale_stride == 1 && p.line_shift == 0 &&
                       reinterpret_cast<uintptr_t>(from) % 16 == 0;
  if (vectors && p.kind == DLFP4_POWER) {
    const uint4 raw = *from;
#pragma unroll
    for (int i = 0; i < kStep; ++i) scales[i] = decode_fast<DLFP4_POWER>((&raw.x)[i / 4] >> i % 4 * 8 & 0xFF, decode);
  } else if (vectors && p.kind == DLFP4_LARGEST) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 raw = from[i];
      scales[4 * i] = float_of(raw.x), scales[4 * i + 1] = float_of(raw.y);
      scales[4 * i + 2] = float_of(raw.z), scales[4 * i + 3] = float_of(raw.w);
    }
  } else {
    for (int i = 0; i < kStep; ++i) scales[i] = scale_at(p, line + i, position, decode);
  }
}

// Lines that are columns of the codes' memory too, a byte an element.
template <int Row, int Dst>
__device__ inline void dequantize_across(const DequantizeParams &p) {
  constexpr int kWords = kStep * kFloatBytes<Dst> / 4;
  __shared__ Values<Row> table;
  table.fill();
  const float decode = tensor_decode(p);
  const int64_t steps = p.length * (p.lines / kStep), stride = int64_t{gridDim.x} * kThreads;
  for (int64_t step = global_thread(); step - threadIdx.x % 32 < steps; step += stride) {
    uint32_t codes[kCodeWords<8>], words[kWords];
    float values[kStep], scales[kStep];
    uint8_t *dst = nullptr;
    if (step < steps) {
      const StepPlace at = place_of_step(p.length, p.lines, step);
      dst = p.dst + (at.first + at.line * p.step) * kFloatBytes<Dst>;
      load_codes<8>(p.data + at.first + at.line * p.data_step, codes);
      load_scales(p, at.first, at.line, decode, scales);
      table.decode(codes, values);
#pragma unroll
      for (int i = 0; i < kStep; ++i) values[i] = __fmul_rn(values[i], scales[i]);
      const bool special = has_nan(values);
      if (special)
        for (int i = 0; i < kStep; ++i) values[i] = decoded(Values<Row>::decode_by_rule(codes, i), scales[i]);
      narrow_step<Dst>(values, special, words);
    }
    warp_store<kWords>().store(dst, words);
  }
}

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_CUDA_TILES_CUH_
