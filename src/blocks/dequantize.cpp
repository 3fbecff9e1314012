// dlfp4_host_dequantize and the scale of a whole tensor.
// Layout: runs along lines if their elements are neighbours in the result, else rows across lines.
// Trick: codes and scales are transposed before they are decoded: they are smaller than floats.
#include <string.h>

#include "host/level.h"
#include "host/threads.h"
#include "kernels.h"
#include "largest.h"
#include "rules/hadamard.h"
#include "scales.h"

namespace dlfp4 {
namespace {

constexpr int64_t kRun = 2048;  // elements of a line at a time
constexpr int64_t kGrain = 1 << 16;
constexpr int64_t kMostScales = kRun / kLeastBlock;
constexpr int kScaleBytes = 4;

struct DequantizeCall {
  const BlockKernels *kernels;
  const BlockKernels *scalar;
  FormatInfo format;
  float decode;
  const dlfp4_blocks *blocks;
  Scales scales;
  Lines result;
  bool across;  // whether neighbours in the result are elements of different lines
  int64_t tile_lines, tile_length;
};

const BlockKernels &kernels_for(const DequantizeCall &call, bool not_finite) {
  return not_finite ? *call.scalar : *call.kernels;
}

// What codes become values by, of blocks along a line, or of one block of lines.
template <int64_t kMost>
struct Factors {
  float scales[kMost], offsets[kMost];
  bool not_finite;

  Affine affine(const dlfp4_blocks &blocks) const { return {scales, offsets, has_biases(blocks)}; }
};

// Of the blocks that hold the positions [first, first + count) of a line.
void factors_along(const DequantizeCall &call, int64_t line, int64_t first, int64_t count,
                   Factors<kMostScales> *factors) {
  alignas(64) uint8_t stored[kMostScales * kScaleBytes];
  const int64_t block = first / call.format.block, blocks = divide_up(first + count, call.format.block) - block;
  load_scales(call.scales, line, block, blocks, stored);
  const float decode = decode_of_line(*call.blocks, call.decode, line);
  factors->not_finite = call.kernels->decode_scales[call.format.key](stored, blocks, decode, factors->scales);
  if (call.blocks->offsets) factors->not_finite |= load_offsets(*call.blocks, line, block, blocks, factors->offsets);
}

// A part of a line, from the start of a block on, decoded to neighbours.
void decode_plain(const DequantizeCall &call, int64_t line, int64_t first, int64_t count, Source target, uint8_t *dst) {
  Factors<kMostScales> factors;
  uint8_t gathered[kRun];
  factors_along(call, line, first, count, &factors);
  const uint8_t *codes = line_at(*call.blocks, call.format, line, first);
  if (call.blocks->strides[1] != 1) {
    gather_items(codes, call.blocks->strides[1], 1, count, gathered);
    codes = gathered;
  }
  const BlockKernels &kernels = kernels_for(call, factors.not_finite);
  if (call.blocks->offsets)
    return kernels.decode_affine[call.format.element][target](codes, count, call.format.block,
                                                              factors.affine(*call.blocks), dst);
  kernels.decode[call.format.element][target](codes, count, call.format.block, factors.scales, dst);
}

// The same of what was rotated: whole sixteens, of which the last may end beyond the result.
void decode_rotated(const DequantizeCall &call, int64_t line, int64_t first, int64_t count, uint8_t *dst) {
  alignas(64) float rotated[kRun];
  alignas(64) uint8_t values[kRotatedLength * kMostItem];
  const auto rotate_back = call.kernels->rotate_back[call.result.source];
  const int64_t rest = count % kRotatedLength, whole = count - rest;
  decode_plain(call, line, first, round_up(count, kRotatedLength), kFromFloat32, reinterpret_cast<uint8_t *>(rotated));
  rotate_back(rotated, whole, call.blocks->rotation, dst);
  if (rest == 0) return;
  rotate_back(rotated + whole, kRotatedLength, call.blocks->rotation, values);
  memcpy(dst + whole * call.result.item, values, static_cast<size_t>(rest * call.result.item));
}

void decode_along(const DequantizeCall &call, int64_t line, int64_t first, int64_t count, uint8_t *dst) {
  if (call.blocks->rotation) return decode_rotated(call, line, first, count, dst);
  decode_plain(call, line, first, count, call.result.source, dst);
}

// --- Results whose lines are neighbours along them -------------------------------------------

void put_run(const DequantizeCall &call, int64_t line, int64_t first, int64_t count) {
  alignas(64) uint8_t buffer[kRun * kMostItem];
  uint8_t *const place = at(call.result, line, first);
  if (call.result.step == 1) return decode_along(call, line, first, count, place);
  decode_along(call, line, first, count, buffer);
  scatter_items(buffer, call.result.item, count, place, call.result.step);
}

// --- Results whose neighbours belong to different lines --------------------------------------

// A part of the lines: [line, line + lines) x [first, first + count).
struct Tile {
  int64_t line, lines;
  int64_t first, count;
};

// A tile's codes and stored scales by position.
struct Turned {
  alignas(64) uint8_t codes[kTileLength][kTilePitch];
  alignas(64) uint8_t stored[kTileBlocks][kTilePitch * kScaleBytes];
};

void turn_scales(const DequantizeCall &call, const Tile &tile, Turned *turned) {
  const Scales &scales = call.scales;
  const int64_t block = tile.first / call.format.block;
  const int64_t blocks = divide_up(tile.first + tile.count, call.format.block) - block;
  if (!are_turned(scales)) {
    for (int64_t b = 0; b < blocks; ++b)
      load_scales_across(scales, tile.line, tile.lines, block + b, turned->stored[b]);
    return;
  }
  const auto turn = call.kernels->unpack_across[8];
  if (scales.layout == DLFP4_LAYOUT_linear && scales.step == 1)
    return turn(scales.data + tile.line * scales.stride + block, scales.stride, blocks, tile.lines, turned->stored[0],
                sizeof(turned->stored[0]));
  uint8_t loaded[kTileLines][kTileBlocks];
  for (int64_t i = 0; i < tile.lines; ++i) load_scales(scales, tile.line + i, block, blocks, loaded[i]);
  turn(loaded[0], kTileBlocks, blocks, tile.lines, turned->stored[0], sizeof(turned->stored[0]));
}

void turn_codes(const DequantizeCall &call, const Tile &tile, Turned *turned) {
  const uint8_t *const codes = line_at(*call.blocks, call.format, tile.line, tile.first);
  const int64_t stride = call.blocks->strides[0], step = call.blocks->strides[1];
  if (are_rows(*call.blocks, call.format)) return;
  if (step == 1)
    return call.kernels->unpack_across[call.format.bits](codes, stride * call.format.bits / 8, tile.count, tile.lines,
                                                         turned->codes[0], kTilePitch);
  for (int64_t k = 0; k < tile.count; ++k) gather_items(codes + k * step, stride, 1, tile.lines, turned->codes[k]);
}

// The scales of a tile's lines, where they have some of their own.
const float *decodes_of(const DequantizeCall &call, const Tile &tile, float *decodes) {
  if (!call.blocks->decodes) return nullptr;
  for (int64_t i = 0; i < tile.lines; ++i) decodes[i] = decode_of_line(*call.blocks, 1, tile.line + i);
  return decodes;
}

// Of one block of a tile's lines.
void factors_across(const DequantizeCall &call, const Tile &tile, int64_t block, const uint8_t *stored,
                    const float *decodes, Factors<kTileLines> *factors) {
  float *const scales = factors->scales;
  const auto decode = call.kernels->decode_scales[call.format.key];
  factors->not_finite = decode(stored, tile.lines, decodes ? 1 : call.decode, scales);
  uint32_t largest = 0;
  for (int64_t i = 0; decodes && i < tile.lines; ++i) {
    scales[i] *= decodes[i];
    const uint32_t magnitude = bits_of(scales[i]) & 0x7FFFFFFF;
    largest = magnitude > largest ? magnitude : largest;
  }
  factors->not_finite |= largest >= kFloatInfinity;
  if (call.blocks->offsets)
    factors->not_finite |= load_offsets_across(*call.blocks, tile.line, tile.lines, block, factors->offsets);
}

// The codes of one position of a tile's lines, by the factors of its block.
void decode_position(const DequantizeCall &call, const Tile &tile, const uint8_t *codes, Source target,
                     const Factors<kTileLines> &factors, uint8_t *dst) {
  const BlockKernels &kernels = kernels_for(call, factors.not_finite);
  if (call.blocks->offsets)
    return kernels.decode_affine_across[call.format.element][target](codes, tile.lines, factors.affine(*call.blocks),
                                                                     dst);
  kernels.decode_across[call.format.element][target](codes, tile.lines, factors.scales, dst);
}

// Sixteen positions of a tile's lines before the rotation is undone.
struct RotatedRows {
  alignas(64) float row[kRotatedLength][kTilePitch];
};

void put_rotated(const DequantizeCall &call, const Tile &tile, int64_t first, const RotatedRows &rows) {
  const Lines &x = call.result;
  const auto rotate_back = call.kernels->rotate_across_back[x.source];
  const int64_t there = least(kRotatedLength, x.length - first), row_bytes = tile.lines * x.item;
  if (there == kRotatedLength)
    return rotate_back(rows.row[0], kTilePitch, tile.lines, call.blocks->rotation, at(x, tile.line, first),
                       x.step * x.item);
  alignas(64) uint8_t values[kRotatedLength * kTileLines * kMostItem];
  rotate_back(rows.row[0], kTilePitch, tile.lines, call.blocks->rotation, values, row_bytes);
  for (int64_t k = 0; k < there; ++k)
    memcpy(at(x, tile.line, first + k), values + k * row_bytes, static_cast<size_t>(row_bytes));
}

void decode_tile(const DequantizeCall &call, const Tile &tile) {
  const bool rotated = call.blocks->rotation != 0;
  const Source target = rotated ? kFromFloat32 : call.result.source;
  Factors<kTileLines> factors;
  Turned turned;
  RotatedRows rows;
  float decodes_of_lines[kTileLines];
  const float *const decodes = decodes_of(call, tile, decodes_of_lines);
  turn_codes(call, tile, &turned);
  turn_scales(call, tile, &turned);
  const int64_t last = tile.first + tile.count;
  for (int64_t k = tile.first, row = 0; k < last; ++row) {
    const int64_t end = least((k / call.format.block + 1) * call.format.block, last);
    factors_across(call, tile, k / call.format.block, turned.stored[row], decodes, &factors);
    for (; k < end; ++k) {
      const uint8_t *const codes = are_rows(*call.blocks, call.format)
                                       ? line_at(*call.blocks, call.format, tile.line, k)
                                       : turned.codes[k - tile.first];
      float *const row = rows.row[k % kRotatedLength];
      decode_position(call, tile, codes, target, factors,
                      rotated ? reinterpret_cast<uint8_t *>(row) : at(call.result, tile.line, k));
      if (rotated && (k + 1) % kRotatedLength == 0) put_rotated(call, tile, k + 1 - kRotatedLength, rows);
    }
  }
}

// --- Tiles -----------------------------------------------------------------------------------

void dequantize_tile(const DequantizeCall &call, int64_t line, int64_t first) {
  const int64_t lines = least(call.tile_lines, call.result.lines - line);
  const int64_t count = least(call.tile_length, call.result.length - first);
  if (call.across)
    decode_tile(call, {line, lines, first, call.blocks->rotation ? round_up(count, kRotatedLength) : count});
  else
    put_run(call, line, first, count);
}

// In the order of the result's memory, so that each thread writes a run of it and not a part of every row, whose caches
// hold half as much.
void dequantize_tiles(const void *context, int64_t first_tile, int64_t last_tile) {
  const DequantizeCall &call = *static_cast<const DequantizeCall *>(context);
  const int64_t of_lines = divide_up(call.result.lines, call.tile_lines);
  const int64_t in_line = divide_up(call.result.length, call.tile_length);
  for (int64_t number = first_tile; number < last_tile; ++number) {
    const int64_t line = call.across ? number % of_lines : number / in_line;
    const int64_t place = call.across ? number / of_lines : number % in_line;
    dequantize_tile(call, line * call.tile_lines, place * call.tile_length);
  }
}

void dequantize_all(DequantizeCall *call) {
  call->across = call->result.step != 1 && call->result.line_stride == 1;
  call->tile_lines = call->across ? kTileLines : 1;
  call->tile_length = call->across ? kTileLength : kRun;
  if (are_one_line(*call->blocks, call->scales, call->result, call->format)) {
    call->result.length *= call->result.lines;
    call->result.lines = 1;
  }
  const int64_t tiles =
      divide_up(call->result.lines, call->tile_lines) * divide_up(call->result.length, call->tile_length);
  parallel_for_tiles(tiles, divide_up(kGrain, call->tile_lines * call->tile_length), dequantize_tiles, call);
}

// --- The scale of a whole tensor -------------------------------------------------------------

struct Search {
  const BlockKernels *kernels;
  Lines x;
  bool finite_only;
  bool across;  // whether lines are rotated whose neighbours in memory belong to other lines
  uint32_t largest;
};

uint32_t search_along(const Search &search, int64_t number) {
  const int64_t length = rotated_length(search.x), in_line = divide_up(length, kRun), first = number % in_line * kRun;
  return largest_of_run(*search.kernels, search.x, search.finite_only, number / in_line, first,
                        least(kRun, length - first));
}

uint32_t search_across(const Search &search, int64_t number) {
  const int64_t in_row = divide_up(search.x.lines, kMostRotatedLines), line = number % in_row * kMostRotatedLines;
  return largest_of_rotated(*search.kernels, search.x, search.finite_only, line,
                            least(kMostRotatedLines, search.x.lines - line), number / in_row * kRotatedLength);
}

int64_t count_runs(const Search &search) {
  if (search.across) return divide_up(search.x.lines, kMostRotatedLines) * divide_up(search.x.length, kRotatedLength);
  return search.x.lines * divide_up(rotated_length(search.x), kRun);
}

void search_runs(const void *context, int64_t first_run, int64_t last_run) {
  Search &search = *static_cast<Search *>(const_cast<void *>(context));
  uint32_t largest = 0;
  for (int64_t number = first_run; number < last_run; ++number) {
    const uint32_t of_run = search.across ? search_across(search, number) : search_along(search, number);
    largest = of_run > largest ? of_run : largest;
  }
  raise(&search.largest, largest);
}

}  // namespace
}  // namespace dlfp4

extern "C" {

dlfp4_status dlfp4_host_dequantize(const dlfp4_blocks *q, int format, float decode, const dlfp4_matrix *result) {
  using namespace dlfp4;
  const int level = current_level();
  if (level < 0) return DLFP4_E_ISA;
  DequantizeCall call = {};
  if (!find_format(format, &call.format) || q->layout < 0 || q->layout >= DLFP4_NUM_LAYOUTS) return DLFP4_E_OPTION;
  if (!make_lines(*result, kAlongRows, &call.result)) return DLFP4_E_DTYPE;
  if (q->length < call.result.length || !is_addressable(*q, call.format, call.result.lines)) return DLFP4_E_SHAPE;
  if (!is_rotation(q->rotation, q->length)) return DLFP4_E_SHAPE;
  if (!has_known_offsets(*q, call.format)) return DLFP4_E_OPTION;
  call.kernels = &block_kernels(level);
  call.scalar = &block_kernels(scalar_level());
  call.decode = decode;
  call.blocks = q;
  call.scales = make_scales(*q, call.format);
  if (call.result.lines > 0 && call.result.length > 0) dequantize_all(&call);
  return DLFP4_OK;
}

dlfp4_status dlfp4_host_find_tensor_scale(const dlfp4_matrix *x, int format, const dlfp4_recipe *recipe,
                                          uint32_t rotation, dlfp4_tensor_scale *scale) {
  using namespace dlfp4;
  const int level = current_level();
  if (level < 0) return DLFP4_E_ISA;
  FormatInfo info;
  Search search = {};
  if (!find_format(format, &info) || !is_recipe(*recipe, info)) return DLFP4_E_OPTION;
  const bool columns = x->strides[1] != 1 && x->strides[0] == 1;
  if (!make_lines(*x, columns && !rotation ? kAlongColumns : kAlongRows, &search.x)) return DLFP4_E_DTYPE;
  if (!is_rotation(rotation, 0)) return DLFP4_E_OPTION;
  search.x.rotation = rotation;
  search.across = columns && rotation;
  search.kernels = &block_kernels(level);
  search.finite_only = info.row->kind == DLFP4_TWO_LEVEL;
  parallel_for_tiles(count_runs(search), divide_up(kGrain, kRun), search_runs, &search);
  const ScaleRule rule = make_rule(info, *recipe, search.x.source, nullptr);
  compute([&] {
    const TensorScale found =
        search.finite_only ? two_level_scale(rule, float_of(search.largest)) : largest_scale(rule, search.largest);
    *scale = {found.encode, found.decode, found.largest};
  });
  return DLFP4_OK;
}
}
