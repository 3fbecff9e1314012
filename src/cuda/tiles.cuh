// Blocks along columns of row-major memory, alone or together with those along rows; squares of 16; and back.
// Layout: a block of threads takes 128 rows and 64 columns through shared memory, in chunks of 16 bytes.
// Trick: chunks are swizzled by the row, so that rows 16 apart lie in different banks: a warp reads columns of four
// such segments at once, and what it writes of a column fills whole sectors.
#ifndef DLFP4_SRC_CUDA_TILES_CUH_
#define DLFP4_SRC_CUDA_TILES_CUH_

#include "rows.cuh"

namespace dlfp4 {
namespace cuda {

constexpr int kStepsInTileRow = kTileColumns / kStep, kRowsOfPass = kThreads / kStepsInTileRow;
constexpr int kTilePasses = kTileRows / kRowsOfPass;

// The byte of a tile where columns [column, column + 16 / bytes) of a row start.
template <int Bytes>
__device__ inline int place_in_tile(int row, int column) {
  constexpr int kChunks = kTileColumns * Bytes / 16, kSpread = kChunks / 4;
  const int byte = column * Bytes, chunk = byte / 16 ^ row / 16 % 4 * kSpread;
  return (row * kChunks + chunk) * 16 + byte % 16;
}

// Where a thread works on columns: two neighbours, sixteen rows.
struct Unit {
  int row, column;
};

__device__ inline Unit unit_of_thread() {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  return {(warp / 4 * 4 + lane / 8) * kStep, (warp % 4 * 8 + lane % 8) * 2};
}

// Hosts see to it that rows and columns can be counted in 32 bits.
struct TilePlace {
  uint32_t row, column;
};

__device__ inline TilePlace place_of_tile(const TileParams &p) {
  const uint32_t tile = block_number(p.columns), in_row = static_cast<uint32_t>(p.tiles_in_row);
  return {tile / in_row * kTileRows, tile % in_row * kTileColumns};
}

// --- Quantize --------------------------------------------------------------------------------

// Two columns' values of sixteen rows, and their largest magnitudes.
template <int Src>
__device__ inline void read_columns(const uint8_t *tile, Unit unit, float (*values)[kStep], uint32_t *largest) {
  uint32_t halves = 0;
  float floats[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < kStep; ++i) {
    const uint8_t *const from = tile + place_in_tile<kFloatBytes<Src>>(unit.row + i, unit.column);
    float pair[2];
    if constexpr (Src == DLFP4_float32) {
      const float2 both = *reinterpret_cast<const float2 *>(from);
      pair[0] = both.x, pair[1] = both.y;
      for (int k = 0; k < 2; ++k) floats[k] = larger_float(floats[k], pair[k]);
    } else {
      const uint32_t word = *reinterpret_cast<const uint32_t *>(from);
      unpack_floats<Src>(word, pair);
      halves = larger_halves(halves, word);
    }
    values[0][i] = pair[0];
    values[1][i] = pair[1];
  }
  largest[0] = Src == DLFP4_float32 ? bits_of(floats[0]) : largest_half<Src>(halves & 0xFFFF);
  largest[1] = Src == DLFP4_float32 ? bits_of(floats[1]) : largest_half<Src>(halves >> 16);
}

// The tile's rows, four steps a row.
template <int Src>
struct TileRows {
  uint4 raw[kTilePasses][kFloatVectors<Src>];
};

__device__ inline int row_of_pass(int pass) { return pass * kRowsOfPass + threadIdx.x / kStepsInTileRow; }

__device__ inline int column_of_thread() { return threadIdx.x % kStepsInTileRow * kStep; }

template <int Src>
__device__ inline void load_rows(const QuantizeParams &p, TilePlace at, TileRows<Src> *rows) {
  const uint32_t first = at.column + column_of_thread(), line = at.row + row_of_pass(0);
  const uint8_t *const src = p.src + (line * p.line_stride + first) * kFloatBytes<Src>;
#pragma unroll
  for (int pass = 0; pass < kTilePasses; ++pass)
    load_step<Src>(src + pass * kRowsOfPass * p.line_stride * kFloatBytes<Src>,
                   line + pass * kRowsOfPass < p.lines && first < p.length, rows->raw[pass]);
}

template <int Src>
__device__ inline void stage_rows(const TileRows<Src> &rows, uint8_t *tile) {
  constexpr int kBytes = kFloatBytes<Src>;
#pragma unroll
  for (int pass = 0; pass < kTilePasses; ++pass)
#pragma unroll
    for (int i = 0; i < kFloatVectors<Src>; ++i)
      *reinterpret_cast<uint4 *>(
          tile + place_in_tile<kBytes>(row_of_pass(pass), column_of_thread() + i * 16 / kBytes)) = rows.raw[pass][i];
}

// Blocks along the tile's rows.
template <int Src, int Row, int BlockSize, int Kind>
__device__ inline void quantize_tile_rows(const TileParams &p, TilePlace at, const ScaleRule &rule,
                                          const TileRows<Src> &rows) {
  constexpr int kBits = kFormats[Row].bits;
  const QuantizeParams &q = p.rows;
  const uint32_t first = at.column + column_of_thread();
  uint8_t *const data = q.data + bytes_of<kBits>((at.row + row_of_pass(0)) * q.data_stride + first);
#pragma unroll
  for (int pass = 0; pass < kTilePasses; ++pass) {
    const uint32_t line = at.row + row_of_pass(pass);
    float values[kStep];
    uint32_t words[kCodeWords<kBits>];
    const uint32_t largest = largest_of_lanes(largest_of<Src>(rows.raw[pass]), BlockSize / kStep - 1);
    unpack_vectors<Src>(rows.raw[pass], values);
    if (line >= q.lines || first >= q.stored) continue;
    const BlockScale scale = scale_of_block<Kind>(rule, largest);
    if (first % BlockSize / kStep == 0) store_scale<Kind>(q, line, first / BlockSize, scale.stored);
    encode_scaled<Row, Kind>(p.encode, values, scale, largest, words);
    store_codes<kBits>(data + bytes_of<kBits>(pass * kRowsOfPass * q.data_stride), words);
  }
}

// Codes of two columns as bytes of sixteen rows, in the tile that is no longer needed.
__device__ inline void stage_codes(uint8_t *tile, Unit unit, const uint32_t (*words)[kCodeWords<8>]) {
#pragma unroll
  for (int i = 0; i < kStep; ++i) {
    const uint32_t pair = code_at<8>(words[0], i) | code_at<8>(words[1], i) << 8;
    *reinterpret_cast<uint16_t *>(tile + place_in_tile<1>(unit.row + i, unit.column)) = static_cast<uint16_t>(pair);
  }
}

__device__ inline void write_codes(const QuantizeParams &p, TilePlace at, const uint8_t *tile) {
  const int column = column_of_thread();
#pragma unroll
  for (int pass = 0; pass < kTilePasses; ++pass) {
    const int row = row_of_pass(pass);
    if (at.row + row >= p.stored || at.column + column >= p.lines) continue;
    *reinterpret_cast<uint4 *>(p.data + (at.column + column) + (at.row + row) * p.data_step) =
        *reinterpret_cast<const uint4 *>(tile + place_in_tile<1>(row, column));
  }
}

template <int Src, int Row, int BlockSize, int Kind, bool Square>
__device__ inline void quantize_tile(const TileParams &p) {
  constexpr int kBits = kFormats[Row].bits;
  constexpr int kLaneOfSegment = 8;
  __shared__ __align__(16) uint8_t tile[kTileRows * kTileColumns * kFloatBytes<Src>];
  const TilePlace at = place_of_tile(p);
  const QuantizeParams &columns = p.columns;
  TileRows<Src> rows;
  load_rows(p.rows, at, &rows);
  const ScaleRule rule = rule_of_blocks<Kind>(columns);
  stage_rows(rows, tile);
  if (p.rows.data != nullptr) quantize_tile_rows<Src, Row, BlockSize, Kind>(p, at, rule, rows);
  __syncthreads();
  const Unit unit = unit_of_thread();
  const uint32_t first = at.row + unit.row, line = at.column + unit.column;
  const bool there = first < columns.stored && line < columns.lines;
  uint8_t *const data = columns.data + bytes_of<kBits>(line * columns.data_stride + first);
  float values[2][kStep];
  uint32_t largest[2], words[2][kCodeWords<kBits>];
  read_columns<Src>(tile, unit, values, largest);
#pragma unroll
  for (int i = 0; i < 2; ++i) largest[i] = largest_of_lanes(largest[i], kLaneOfSegment * (BlockSize / kStep - 1));
  if constexpr (Square) largest[0] = largest[1] = largest_of_lanes(max(largest[0], largest[1]), kLaneOfSegment - 1);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const BlockScale scale = scale_of_block<Kind>(rule, largest[i]);
    encode_scaled<Row, Kind>(p.encode, values[i], scale, largest[i], words[i]);
    if (there && first % BlockSize / kStep == 0) store_scale<Kind>(columns, line + i, first / BlockSize, scale.stored);
    if (kBits < 8 && there) store_codes<kBits>(data + bytes_of<kBits>(i * columns.data_stride), words[i]);
  }
  if constexpr (kBits == 8) {
    __syncthreads();
    stage_codes(tile, unit, words);
    __syncthreads();
    write_codes(columns, at, tile);
  }
}

// Squares of 16 along rows, each row of which has the scale: 16 rows and 64 columns a warp.
template <int Src, int Row, int Kind>
__device__ inline void quantize_small_squares(const QuantizeParams &p, const EncodeParams &encode) {
  constexpr int kBits = kFormats[Row].bits, kSide = 16, kPasses = 2, kRows = kSide / kPasses;
  const uint32_t warp = block_number(p) * (kThreads / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t in_row = static_cast<uint32_t>((p.stored + kTileColumns - 1) / kTileColumns);
  const uint32_t first = warp % in_row * kTileColumns + lane % kStepsInTileRow * kStep;
  const uint32_t line = warp / in_row * kSide + lane / kStepsInTileRow;
  const bool there = line < p.lines && first < p.stored;
  uint4 raw[kPasses][kFloatVectors<Src>];
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    load_step<Src>(p.src + ((line + pass * kRows) * p.line_stride + first) * kFloatBytes<Src>,
                   there && line + pass * kRows < p.lines, raw[pass]);
  }
  const ScaleRule rule = rule_of_blocks<Kind>(p);
  float values[kPasses][kStep];
  uint32_t largest = 0, words[kCodeWords<kBits>];
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    unpack_vectors<Src>(raw[pass], values[pass]);
    largest = max(largest, largest_of<Src>(raw[pass]));
  }
  largest = largest_of_lanes(largest, 32 - kStepsInTileRow);
  if (!there) return;
  const BlockScale scale = scale_of_block<Kind>(rule, largest);
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    const uint32_t i = line + pass * kRows;
    if (i >= p.lines) break;
    store_scale<Kind>(p, i, first / kSide, scale.stored);
    encode_scaled<Row, Kind>(encode, values[pass], scale, largest, words);
    store_codes<kBits>(p.data + bytes_of<kBits>(i * p.data_stride + first), words);
  }
}

// --- Blocks of 128 along columns, one byte an element ----------------------------------------

struct Strip {
  uint32_t largest[kRowsOfPass][kTileColumns];
  uint32_t quarters[kThreads / kTileColumns][kTileColumns];
  float multipliers[kTileColumns];
  uint32_t of_column[kTileColumns];
};

// The largest magnitude and the multiplier of each column of a tile.
__device__ inline void find_strip_scales(const QuantizeParams &p, TilePlace at, Strip *strip) {
  constexpr int kQuarters = kThreads / kTileColumns, kRows = kRowsOfPass / kQuarters;
  const int column = threadIdx.x % kTileColumns, quarter = threadIdx.x / kTileColumns;
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kRows; ++i) largest = max(largest, strip->largest[quarter * kRows + i][column]);
  strip->quarters[quarter][column] = largest;
  __syncthreads();
  if (threadIdx.x < kTileColumns) {
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
  const TilePlace at = place_of_tile(p);
  const int column = column_of_thread(), row = row_of_pass(0);
  uint4 raw[kTilePasses][kFloatVectors<Src>];
  uint32_t largest[kStep] = {}, words[kCodeWords<8>];
  float values[kStep];
#pragma unroll
  for (int pass = 0; pass < kTilePasses; ++pass) {
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
  for (int pass = 0; pass < kTilePasses; ++pass) {
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
  constexpr int kBits = kFormats[Row].bits, kBytes = kFloatBytes<Dst>, kWords = kStep * kBytes / 4;
  __shared__ Values<Row> table;
  __shared__ __align__(16) uint8_t tile[kTileRows * kTileColumns * kBytes];
  table.fill();
  const uint32_t in_row = static_cast<uint32_t>((p.lines + kTileColumns - 1) / kTileColumns);
  const int64_t top = int64_t{blockIdx.x / in_row} * kTileRows, left = int64_t{blockIdx.x % in_row} * kTileColumns;
  const Unit unit = unit_of_thread();
  const int64_t first = top + unit.row;
  uint32_t words[2][kWords];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t line = left + unit.column + i;
    if (first >= p.length || line >= p.lines) continue;
    uint32_t codes[kCodeWords<kBits>];
    load_codes<kBits>(p.data + (line * p.data_stride + first) * kBits / 8, codes);
    dequantize_step<Row, Dst>(table, codes, scale_at(p, line, first, tensor_decode(p)), words[i]);
  }
#pragma unroll
  for (int i = 0; i < kStep; ++i) {
    uint8_t *const to = tile + place_in_tile<kBytes>(unit.row + i, unit.column);
    if constexpr (kBytes == 4)
      *reinterpret_cast<uint2 *>(to) = make_uint2(words[0][i], words[1][i]);
    else if (i % 2 == 0)
      *reinterpret_cast<uint32_t *>(to) = permute<0x5410>(words[0][i / 2], words[1][i / 2]);
    else
      *reinterpret_cast<uint32_t *>(to) = permute<0x7632>(words[0][i / 2], words[1][i / 2]);
  }
  __syncthreads();
  constexpr int kElements = 16 / kBytes, kChunks = kTileColumns / kElements;
#pragma unroll
  for (int chunk = threadIdx.x; chunk < kTileRows * kChunks; chunk += kThreads) {
    const int row = chunk / kChunks, column = chunk % kChunks * kElements;
    if (top + row >= p.length || left + column >= p.lines) continue;
    *reinterpret_cast<uint4 *>(p.dst + (left + column + (top + row) * p.step) * kBytes) =
        *reinterpret_cast<const uint4 *>(tile + place_in_tile<kBytes>(row, column));
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
