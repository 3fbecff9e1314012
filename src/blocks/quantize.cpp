// dlfp4_host_quantize: cuts a matrix into tiles and takes each through three steps: largest magnitudes, scales,
// elements. Layout: tiles along lines where their elements are neighbours, across lines where elements of one position
// are; other strides are gathered first. Trick: a tile is small enough that each step finds it in a cache, so that
// memory is read once for both directions.
#include <string.h>

#include <initializer_list>

#include "dlfp4/dlfp4.h"
#include "host/level.h"
#include "host/threads.h"
#include "kernels.h"
#include "largest.h"
#include "rules/hadamard.h"
#include "rules/operand.h"
#include "scales.h"

namespace dlfp4 {
namespace {

constexpr int64_t kRun = 2048;       // elements of a line at a time
constexpr int64_t kAhead = 4;        // positions of a tile across lines that are read, and prefetched, together
constexpr int64_t kSquareRun = 512;  // elements of a line at a time, where many lines are
constexpr int64_t kGrain = 1 << 16;  // elements worth a thread
constexpr int64_t kMostScales = kTileLines;
constexpr int kScaleBytes = 4;

static_assert(kRun / kLeastBlock <= kMostScales, "a run's scales");
static_assert(kRun <= kMostStaged && kSquareRun <= kMostStaged, "a run");

struct QuantizeCall {
  const BlockKernels *kernels;
  const BlockKernels *scalar;  // which rounds scales to 16 bits
  FormatInfo format;
  ScaleRule rule;
  BlockMode mode;
  Lines x;
  Direction direction;
  bool across;  // whether neighbours in memory are elements of different lines
  const dlfp4_blocks *blocks;
  Scales scales;
  bool plus_zeros;               // codes of -0 become those of +0
  bool moves;                    // codes of integers with a sign become those without, whose zero is in the middle
  const TensorScales *of_lines;  // of a tile's lines, which have one each
  const QuantizeCall *along;     // the other direction of the same matrix, which this one, across lines, takes along
};

// A part of the lines: [line, last_line) x [first, last).
struct Tile {
  int64_t line, last_line;
  int64_t first, last;
};

BlockMode mode_at(const QuantizeCall &call, int64_t line, int64_t position, int64_t step) {
  BlockMode mode = call.mode;
  mode.first += static_cast<uint64_t>(line * call.blocks->length + position);
  mode.step = static_cast<uint64_t>(step);
  return mode;
}

// The scales of `count` blocks and their multipliers; whether a block has no finite magnitude that zeroes its elements.
bool find_scales(const QuantizeCall &call, const uint32_t *amax, int64_t count, uint8_t *stored, float *multipliers) {
  if (call.of_lines)
    return call.kernels->find_scales_of_lines[call.format.key](call.rule, *call.of_lines, amax, count, stored,
                                                               multipliers);
  const BlockKernels &kernels = call.rule.scale_mantissa < 23 ? *call.scalar : *call.kernels;
  const bool special = kernels.find_scales[call.format.key](call.rule, amax, count, stored, multipliers);
  return special && call.format.row->kind != DLFP4_LARGEST;
}

// --- Along lines -----------------------------------------------------------------------------

void zero_blocks(const QuantizeCall &call, const uint32_t *amax, int64_t count, int64_t blocks, uint8_t *codes) {
  const int64_t block = call.format.block;
  for (int64_t b = 0; b < blocks; ++b) {
    if (amax[b] < kFloatInfinity) continue;
    const int64_t first = b * block, last = least(count, first + block);
    memset(codes + first * call.format.bits / 8, 0, static_cast<size_t>((last - first) * call.format.bits / 8));
  }
}

// Codes of -0 become those of +0. A pattern has the bits of all elements of a byte, or of three.
void clear_negative_zeros(uint8_t *codes, int64_t bytes, int bits) {
  if (bits == 4) {
    for (int64_t i = 0; i < bytes; ++i) {
      const int magnitudes = codes[i] & 0x77, any = (magnitudes | magnitudes >> 1 | magnitudes >> 2) & 0x11;
      codes[i] = static_cast<uint8_t>(codes[i] & (0x77 | any << 3));
    }
  } else if (bits == 6) {
    for (int64_t i = 0; i + 3 <= bytes; i += 3) {
      uint32_t group = 0;
      memcpy(&group, codes + i, 3);
      const uint32_t m = group & 0x7DF7DF, any = (m | m >> 1 | m >> 2 | m >> 3 | m >> 4) & 0x041041;
      group &= 0x7DF7DF | any << 5;
      memcpy(codes + i, &group, 3);
    }
  } else {
    for (int64_t i = 0; i < bytes; ++i) codes[i] = codes[i] == 0x80 ? 0 : codes[i];
  }
}

// Codes of integers with a sign to those without: `pattern` has the highest bit of each code of a byte.
void move_to_middle(uint8_t *codes, int64_t bytes, uint8_t pattern) {
  const uint64_t patterns = pattern * uint64_t{0x0101010101010101};
  int64_t i = 0;
  for (uint64_t word; i + 8 <= bytes; i += 8) {
    memcpy(&word, codes + i, sizeof(word));
    word ^= patterns;
    memcpy(codes + i, &word, sizeof(word));
  }
  for (; i < bytes; ++i) codes[i] ^= pattern;
}

// Whether codes of a line are written to the result at once. Those that move are not: two threads with the same result
// would move them twice.
bool are_in_place(const QuantizeCall &call) { return call.blocks->strides[1] == 1 && !call.moves; }

uint8_t *place_of(const QuantizeCall &call, int64_t line, int64_t first, uint8_t *buffer) {
  return are_in_place(call) ? line_at(*call.blocks, call.format, line, first) : buffer;
}

// Copies codes that lie next to each other to a line of the result, if they are not there.
void put_line(const QuantizeCall &call, int64_t line, int64_t first, int64_t count, const uint8_t *codes) {
  if (are_in_place(call)) return;
  uint8_t *const to = line_at(*call.blocks, call.format, line, first);
  if (call.blocks->strides[1] == 1)
    memcpy(to, codes, static_cast<size_t>(count * call.format.bits / 8));
  else
    scatter_items(codes, 1, count, to, call.blocks->strides[1]);
}

struct Found {
  uint32_t amax[kMostScales];
  uint8_t stored[kMostScales * kScaleBytes];
  float multipliers[kMostScales];
  bool has_special;
};

// Four over six: what blocks are multiplied with and what their scales are worth if largest elements lie on 6 and on 4.
struct Candidates {
  uint8_t stored[kMostScales];
  float multipliers[2][kMostScales], scales[2][kMostScales], errors[2][kMostScales];

  ErrorParams params(const QuantizeCall &call) const {
    return {&call.rule, {multipliers[0], multipliers[1]}, {scales[0], scales[1]}};
  }
};

// The candidates of `count` blocks, of which those on 6 were found; no errors yet.
void find_candidates(const QuantizeCall &call, int64_t count, const Found &found, const uint8_t *stored,
                     Candidates *both) {
  const int key = call.format.key;
  memcpy(both->multipliers[0], found.multipliers, static_cast<size_t>(count) * sizeof(float));
  call.kernels->find_scales[key](rule_of_four(call.rule), found.amax, count, both->stored, both->multipliers[1]);
  call.kernels->decode_scales[key](stored, count, 1, both->scales[0]);
  call.kernels->decode_scales[key](both->stored, count, 1, both->scales[1]);
  for (float *errors : both->errors) memset(errors, 0, static_cast<size_t>(count) * sizeof(float));
}

// Keeps the candidate with the smaller error of each block. There are no branches: nobody foresees which it is.
void choose(int64_t count, const Candidates &both, uint8_t *stored, float *multipliers) {
  for (int64_t b = 0; b < count; ++b) {
    const bool four = both.errors[1][b] < both.errors[0][b];
    const uint8_t codes[] = {stored[b], both.stored[b]};
    stored[b] = codes[four];
    multipliers[b] = both.multipliers[four][b];
  }
}

// Four over six of blocks whose scales for 6 were found.
void choose_along(const QuantizeCall &call, int64_t line, int64_t last_line, int64_t first, int64_t count,
                  Found *found) {
  StagingMemory memory;
  const int64_t blocks = divide_up(count, call.format.block);
  Candidates both;
  find_candidates(call, blocks, *found, found->stored, &both);
  for (int64_t i = line; i < last_line; ++i) {
    const Run run = stage(*call.kernels, call.x, i, first, count, &memory);
    const auto sum_errors = call.kernels->sum_errors[call.mode.rounding][run.source];
    sum_errors(run.src, blocks, both.params(call), both.errors[0], both.errors[1]);
  }
  choose(blocks, both, found->stored, found->multipliers);
}

void find_in_run(const QuantizeCall &call, const Run &run, int64_t count, uint32_t *amax) {
  call.kernels->find_largest[run.source](run.src, count, call.format.block, amax);
}

// The scales of the blocks at [first, first + count) of the lines that share them, by their largest magnitudes.
void put_scales_along(const QuantizeCall &call, int64_t line, int64_t last_line, int64_t first, int64_t count,
                      Found *found) {
  const int64_t blocks = divide_up(count, call.format.block);
  found->has_special = find_scales(call, found->amax, blocks, found->stored, found->multipliers);
  if (call.rule.chooses) choose_along(call, line, last_line, first, count, found);
  const int64_t last_row = call.format.row->repeats ? last_line : line + 1;
  for (int64_t i = line; i < last_row; ++i)
    store_scales(call.scales, i, first / call.format.block, blocks, found->stored);
}

void find_along(const QuantizeCall &call, int64_t line, int64_t last_line, int64_t first, int64_t count, Found *found) {
  StagingMemory memory;
  const int64_t blocks = divide_up(count, call.format.block);
  uint32_t largest[kMostScales];
  for (int64_t i = line; i < last_line; ++i) {
    find_in_run(call, stage(*call.kernels, call.x, i, first, count, &memory), count, i == line ? found->amax : largest);
    for (int64_t b = 0; i > line && b < blocks; ++b)
      if (largest[b] > found->amax[b]) found->amax[b] = largest[b];
  }
  put_scales_along(call, line, last_line, first, count, found);
}

void encode_run(const QuantizeCall &call, const Run &run, int64_t line, int64_t first, int64_t count,
                const Found &found) {
  alignas(64) uint8_t codes[kRun];
  const auto encode = call.kernels->encode[call.mode.rounding][run.source][call.format.element];
  uint8_t *const to = place_of(call, line, first, codes);
  encode(run.src, count, call.format.block, found.multipliers, to, mode_at(call, line, first, 1));
  if (found.has_special) zero_blocks(call, found.amax, count, divide_up(count, call.format.block), to);
  if (call.plus_zeros) clear_negative_zeros(to, count * call.format.bits / 8, call.format.bits);
  if (call.moves) move_to_middle(to, count * call.format.bits / 8, kMiddle | kMiddle << 4);
  put_line(call, line, first, count, to);
}

void encode_along(const QuantizeCall &call, int64_t line, int64_t first, int64_t count, const Found &found) {
  StagingMemory memory;
  encode_run(call, stage(*call.kernels, call.x, line, first, count, &memory), line, first, count, found);
}

// A line that shares its scales with no other is staged once.
void quantize_run(const QuantizeCall &call, int64_t line, int64_t first, int64_t count, Found *found) {
  StagingMemory memory;
  const Run run = stage(*call.kernels, call.x, line, first, count, &memory);
  find_in_run(call, run, count, found->amax);
  put_scales_along(call, line, line + 1, first, count, found);
  encode_run(call, run, line, first, count, *found);
}

// Runs of lines that share scales: the scales are found before any line is encoded.
void quantize_along(const QuantizeCall &call, const Tile &tile) {
  const int64_t run = tile.last_line - tile.line == 1 ? kRun : kSquareRun;
  Found found;
  found.multipliers[0] = call.rule.whole;
  found.has_special = false;
  for (int64_t line = tile.line; line < tile.last_line; line += call.format.group) {
    const int64_t last_line = least(line + call.format.group, tile.last_line);
    for (int64_t first = tile.first; first < tile.last; first += run) {
      const int64_t count = least(run, tile.last - first);
      const bool finds = !call.format.whole, alone = last_line - line == 1;
      if (finds && alone) {
        quantize_run(call, line, first, count, &found);
        continue;
      }
      if (finds) find_along(call, line, last_line, first, count, &found);
      for (int64_t i = line; i < last_line; ++i) encode_along(call, i, first, count, found);
    }
  }
}

// --- Whole lines -----------------------------------------------------------------------------

// Whether a line has a scale of its own, which is found in all of it before any of it is encoded.
bool takes_whole_lines(const QuantizeCall &call) { return call.format.line || call.blocks->decodes; }

uint32_t largest_of_line(const QuantizeCall &call, int64_t line, bool finite_only) {
  uint32_t largest = 0;
  const int64_t length = rotated_length(call.x);
  for (int64_t first = 0; first < length; first += kRun) {
    const int64_t count = least(kRun, length - first);
    const uint32_t of_run = largest_of_run(*call.kernels, call.x, finite_only, line, first, count);
    largest = of_run > largest ? of_run : largest;
  }
  return largest;
}

void find_scale_of_line(const QuantizeCall &call, int64_t line, Found *found) {
  found->amax[0] = largest_of_line(call, line, false);
  found->has_special = find_scales(call, found->amax, 1, found->stored, found->multipliers);
  store_scales(call.scales, line, 0, 1, found->stored);
}

// Of two levels: blocks of the line are scaled by what the line alone has. `largest_of(line)` is asked where its scale
// is not given.
template <class LargestOf>
ScaleRule rule_of_line(const QuantizeCall &call, int64_t line, LargestOf largest_of) {
  ScaleRule rule = call.rule;
  float *const decode = call.blocks->decodes + line;
  const TensorScale scale =
      call.blocks->finds_decodes ? two_level_scale(rule, float_of(largest_of(line))) : scale_given(*decode);
  *decode = scale.decode;
  set_scale(&rule, scale);
  return rule;
}

void quantize_whole_lines(const QuantizeCall &call, const Tile &tile) {
  QuantizeCall of_line = call;
  Found found;
  found.has_special = false;
  for (int64_t line = tile.line; line < tile.last_line; ++line) {
    if (call.format.line)
      find_scale_of_line(call, line, &found);
    else
      of_line.rule = rule_of_line(call, line, [&](int64_t i) { return largest_of_line(call, i, true); });
    for (int64_t first = tile.first; first < tile.last; first += kRun) {
      const int64_t count = least(kRun, tile.last - first);
      if (call.format.line)
        encode_along(of_line, line, first, count, found);
      else
        quantize_run(of_line, line, first, count, &found);
    }
  }
}

// --- Across lines ----------------------------------------------------------------------------

// A tile's results by position: codes and stored scales.
struct Results {
  alignas(64) uint8_t codes[kTileLength][kTilePitch];
  alignas(64) uint8_t stored[kTileBlocks][kTilePitch * kScaleBytes];
};

// Lines that share scales have the largest magnitude of them all.
void join_groups(int64_t lines, int64_t group, uint32_t *amax) {
  for (int64_t line = 0; group > 1 && line < lines; line += group) {
    const int64_t last = least(line + group, lines);
    uint32_t largest = 0;
    for (int64_t i = line; i < last; ++i)
      if (amax[i] > largest) largest = amax[i];
    for (int64_t i = line; i < last; ++i) amax[i] = largest;
  }
}

// Prefetches the elements of a later position: the processor does not foresee where they lie.
void prefetch_position(const QuantizeCall &call, const Tile &tile, int64_t position) {
  if (position >= call.x.length) return;
  const uint8_t *const data = at(call.x, tile.line, position);
  const int64_t bytes = (tile.last_line - tile.line) * call.x.item;
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(data + i);
}

// Lines that share scales have the sum of their errors.
void add_groups(int64_t lines, int64_t group, float *errors) {
  for (int64_t line = 0; group > 1 && line < lines; line += group) {
    const int64_t last = least(line + group, lines);
    float sum = 0;
    for (int64_t i = line; i < last; ++i) sum += errors[i];
    for (int64_t i = line; i < last; ++i) errors[i] = sum;
  }
}

// Four over six of a block of each line, whose scales for 6 were found.
void choose_across(const QuantizeCall &call, const Tile &block, Found *found, uint8_t *stored) {
  const int64_t lines = block.last_line - block.line;
  const auto add_errors = call.kernels->add_errors[call.mode.rounding][call.x.source];
  Candidates both;
  find_candidates(call, lines, *found, stored, &both);
  const int64_t rows = least(block.last, call.x.length) - block.first;
  if (rows > 0)
    add_errors(at(call.x, block.line, block.first), call.x.step * call.x.item, rows, lines, both.params(call),
               both.errors[0], both.errors[1]);
  for (float *errors : both.errors) add_groups(lines, call.format.group, errors);
  choose(lines, both, stored, found->multipliers);
}

// Of a part of each line. Rows that are longer than a tile's the processor foresees.
void largest_across(const QuantizeCall &call, const Tile &part, uint32_t *amax) {
  const auto join = call.kernels->join_largest[call.x.source];
  const int64_t lines = part.last_line - part.line, last = least(part.last, call.x.length);
  const bool prefetches = lines <= kTileLines;
  memset(amax, 0, static_cast<size_t>(lines) * sizeof(amax[0]));
  for (int64_t k = part.first; k < last; k += kAhead) {
    const int64_t rows = least(kAhead, last - k);
    for (int64_t i = 0; prefetches && i < rows; ++i) prefetch_position(call, part, k + kAhead + i);
    join(at(call.x, part.line, k), call.x.step * call.x.item, rows, lines, amax);
  }
}

void find_across(const QuantizeCall &call, const Tile &block, Found *found, uint8_t *stored) {
  const int64_t lines = block.last_line - block.line;
  largest_across(call, block, found->amax);
  join_groups(lines, call.format.group, found->amax);
  found->has_special = find_scales(call, found->amax, lines, stored, found->multipliers);
  if (call.rule.chooses) choose_across(call, block, found, stored);
}

void encode_across(const QuantizeCall &call, const Tile &tile, int64_t position, const Found &found, uint8_t *codes) {
  const int64_t lines = tile.last_line - tile.line;
  const uint8_t middle = call.moves ? kMiddle : 0;
  if (position >= call.x.length) return static_cast<void>(memset(codes, middle, static_cast<size_t>(lines)));
  call.kernels->encode_across[call.mode.rounding][call.x.source][call.format.element](
      at(call.x, tile.line, position), lines, found.multipliers, codes,
      mode_at(call, tile.line, position, call.blocks->length));
  for (int64_t i = 0; found.has_special && i < lines; ++i)
    if (found.amax[i] >= kFloatInfinity) codes[i] = 0;
  const int negative_zero = 1 << (call.format.bits - 1);
  for (int64_t i = 0; call.plus_zeros && i < lines; ++i)
    if (codes[i] == negative_zero) codes[i] = 0;
  if (call.moves) move_to_middle(codes, lines, kMiddle);
}

uint8_t *row_of_codes(const QuantizeCall &call, const Tile &tile, int64_t position, Results *results) {
  if (are_rows(*call.blocks, call.format)) return line_at(*call.blocks, call.format, tile.line, position);
  return results->codes[position - tile.first];
}

void put_codes(const QuantizeCall &call, const Tile &tile, const Results &results) {
  const int64_t lines = tile.last_line - tile.line, rows = tile.last - tile.first;
  if (are_rows(*call.blocks, call.format)) return;
  uint8_t *const to = line_at(*call.blocks, call.format, tile.line, tile.first);
  if (call.blocks->strides[1] == 1)
    return call.kernels->pack_across[call.format.bits](results.codes[0], kTilePitch, rows, lines, to,
                                                       call.blocks->strides[0] * call.format.bits / 8);
  for (int64_t k = 0; k < rows; ++k)
    scatter_items(results.codes[k], 1, lines, to + k * call.blocks->strides[1], call.blocks->strides[0]);
}

void put_scales(const QuantizeCall &call, const Tile &tile, const Results &results) {
  const Scales &scales = call.scales;
  const int64_t lines = tile.last_line - tile.line, block = tile.first / call.format.block;
  const int64_t blocks = divide_up(tile.last - tile.first, call.format.block);
  if (!are_turned(scales)) {
    for (int64_t b = 0; b < blocks; ++b) store_scales_across(scales, tile.line, lines, block + b, results.stored[b]);
    return;
  }
  constexpr int64_t kPitch = sizeof(results.stored[0]);
  const auto turn = call.kernels->pack_across[8];
  if (scales.layout == DLFP4_LAYOUT_linear && scales.step == 1)
    return turn(results.stored[0], kPitch, blocks, lines, scales.data + tile.line * scales.stride + block,
                scales.stride);
  uint8_t turned[kTileLines][kTileBlocks];
  turn(results.stored[0], kPitch, blocks, lines, turned[0], kTileBlocks);
  for (int64_t i = 0; i < lines; ++i) store_scales(scales, tile.line + i, block, blocks, turned[i]);
}

// The other direction of a block, while the block is in a cache. The last tile has the zeros that end its lines.
void quantize_other(const QuantizeCall &call, const Tile &block) {
  const QuantizeCall &along = *call.along;
  const int64_t last = block.last_line == call.x.lines ? along.blocks->length : block.last_line;
  if (block.first < along.x.lines)
    quantize_along(along, {block.first, least(block.last, along.x.lines), block.line, last});
}

// A block's elements, rotated, by position.
constexpr int64_t kRotatedPitch = kTileLines + 16;
struct RotatedRows {
  alignas(64) float row[kTileLength][kRotatedPitch];
};

// The call with rotated floats in place of a block's elements. Those of the next block are prefetched.
QuantizeCall rotate_tile(const QuantizeCall &call, const Tile &tile, RotatedRows *rows) {
  const int64_t length = tile.last - tile.first;
  for (int64_t k = tile.last; k < tile.last + length; ++k) prefetch_position(call, tile, k);
  for (int64_t first = tile.first; first < tile.last; first += kRotatedLength)
    for (int64_t line = tile.line; line < tile.last_line; line += kMostRotatedLines)
      stage_across(*call.kernels, call.x, line, least(kMostRotatedLines, tile.last_line - line), first,
                   rows->row[first - tile.first] + (line - tile.line), kRotatedPitch);
  const int64_t offset = (tile.line + tile.first * kRotatedPitch) * int64_t{sizeof(float)};
  uint8_t *const origin = reinterpret_cast<uint8_t *>(reinterpret_cast<intptr_t>(rows) - offset);
  QuantizeCall rotated = call;
  rotated.x = {origin, kFromFloat32, sizeof(float), call.x.lines, call.blocks->length, 1, kRotatedPitch, 0};
  return rotated;
}

void quantize_tile_across(const QuantizeCall &call, const Tile &tile) {
  Found found;
  Results results;
  RotatedRows rows;
  QuantizeCall rotated;
  found.has_special = false;
  for (int64_t i = 0; i < kTileLines; ++i) found.multipliers[i] = call.rule.whole;
  const int64_t block = least(call.format.block, kTileLength);
  for (int64_t first = tile.first; first < tile.last; first += block) {
    const Tile part = {tile.line, tile.last_line, first, least(first + block, tile.last)};
    if (call.along) quantize_other(call, part);
    if (call.x.rotation) rotated = rotate_tile(call, part, &rows);
    const QuantizeCall &of_part = call.x.rotation ? rotated : call;
    if (!call.format.whole) find_across(of_part, part, &found, results.stored[(first - tile.first) / block]);
    for (int64_t k = part.first; k < part.last; ++k)
      encode_across(of_part, tile, k, found, row_of_codes(call, tile, k, &results));
  }
  put_codes(call, tile, results);
  if (!call.format.whole) put_scales(call, tile, results);
}

// Of so many lines together the largest magnitudes are found before any of them is encoded. Long rows in memory count
// for more than that elements may leave a cache before they are read again.
constexpr int64_t kWholeLines = 4096;

int64_t whole_lines_of_tile(const QuantizeCall &call) {
  constexpr int64_t kLeastLines = 64;
  return least(kWholeLines, round_up(divide_up(call.x.lines, dlfp4_get_num_threads()), kLeastLines));
}

// Calls quantize(tile) for tiles of all lines and positions of one, neighbours in memory after another.
template <class Quantize>
void in_tiles(const Tile &all, const Quantize &quantize) {
  for (int64_t first = all.first; first < all.last; first += kTileLength)
    for (int64_t line = all.line; line < all.last_line; line += kTileLines)
      quantize(Tile{line, least(line + kTileLines, all.last_line), first, least(first + kTileLength, all.last)});
}

void quantize_whole_lines_across(const QuantizeCall &call, const Tile &all) {
  uint32_t amax[kWholeLines];
  Results results;
  largest_across(call, all, amax);
  in_tiles(all, [&](const Tile &tile) {
    Found found;
    const int64_t lines = tile.last_line - tile.line;
    memcpy(found.amax, amax + (tile.line - all.line), static_cast<size_t>(lines) * sizeof(amax[0]));
    found.has_special = find_scales(call, found.amax, lines, results.stored[0], found.multipliers);
    if (tile.first == all.first) store_scales_across(call.scales, tile.line, lines, 0, results.stored[0]);
    for (int64_t k = tile.first; k < tile.last; ++k)
      encode_across(call, tile, k, found, row_of_codes(call, tile, k, &results));
    put_codes(call, tile, results);
  });
}

// Blocks of lines that have a tensor scale each.
void quantize_scaled_lines_across(const QuantizeCall &call, const Tile &all) {
  uint32_t amax[kWholeLines];
  float first[kWholeLines], second[kWholeLines], unit[kWholeLines];
  if (call.blocks->finds_decodes) largest_across(call, all, amax);
  const auto largest_of = [&](int64_t line) {
    const uint32_t largest = amax[line - all.line];
    return largest < kFloatInfinity ? largest : largest_of_line(call, line, true);
  };
  for (int64_t line = all.line; line < all.last_line; ++line) {
    const ScaleRule rule = rule_of_line(call, line, largest_of);
    const int64_t i = line - all.line;
    first[i] = rule.first, second[i] = rule.second, unit[i] = rule.unit;
  }
  in_tiles(all, [&](const Tile &tile) {
    const int64_t i = tile.line - all.line;
    const TensorScales scales = {first + i, second + i, unit + i};
    QuantizeCall of_lines = call;
    of_lines.of_lines = &scales;
    quantize_tile_across(of_lines, tile);
  });
}

void quantize_across(const QuantizeCall &call, const Tile &all) {
  in_tiles(all, [&](const Tile &tile) { quantize_tile_across(call, tile); });
}

// --- Tiles -----------------------------------------------------------------------------------

// A matrix in tiles of so many of its rows and columns; blocks may add zeros to either.
struct Work {
  QuantizeCall call;
  int64_t rows, columns;
  int64_t tile_rows, tile_columns;
};

void quantize_tile(const QuantizeCall &call, int64_t row, int64_t last_row, int64_t column, int64_t last_column) {
  const bool rows = call.direction == kAlongRows;
  const Tile tile = {rows ? row : column, least(rows ? last_row : last_column, call.x.lines), rows ? column : row,
                     least(rows ? last_column : last_row, call.blocks->length)};
  if (tile.line >= tile.last_line || tile.first >= tile.last) return;
  if (takes_whole_lines(call) && !call.across) return quantize_whole_lines(call, tile);
  if (call.format.line) return quantize_whole_lines_across(call, tile);
  if (call.blocks->decodes) return quantize_scaled_lines_across(call, tile);
  if (call.across)
    quantize_across(call, tile);
  else
    quantize_along(call, tile);
}

void quantize_tiles(const void *context, int64_t first_tile, int64_t last_tile) {
  const Work &work = *static_cast<const Work *>(context);
  const int64_t in_row = divide_up(work.columns, work.tile_columns);
  for (int64_t number = first_tile; number < last_tile; ++number) {
    const int64_t row = number / in_row * work.tile_rows, column = number % in_row * work.tile_columns;
    quantize_tile(work.call, row, row + work.tile_rows, column, column + work.tile_columns);
  }
}

void run_work(const Work &work) {
  const int64_t tiles = divide_up(work.rows, work.tile_rows) * divide_up(work.columns, work.tile_columns);
  const int64_t grain = divide_up(kGrain, work.tile_rows * work.tile_columns);
  if (tiles > 0) parallel_for_tiles(tiles, grain, quantize_tiles, &work);
}

// Tiles whose lines are rows or columns have the same shape, one the transpose of the other.
Work make_work(const QuantizeCall &call, int64_t tile_lines, int64_t tile_length) {
  const bool rows = call.direction == kAlongRows;
  Work work = {};
  work.call = call;
  work.rows = rows ? call.x.lines : call.blocks->length;
  work.columns = rows ? call.blocks->length : call.x.lines;
  work.tile_rows = rows ? tile_lines : tile_length;
  work.tile_columns = rows ? tile_length : tile_lines;
  return work;
}

// Short lines are joined to long ones where that makes no difference.
void quantize_lines(const QuantizeCall &call) {
  dlfp4_blocks blocks = *call.blocks;
  QuantizeCall one = call;
  one.blocks = &blocks;
  if (are_one_line(*call.blocks, call.scales, call.x, call.format)) {
    blocks.length = one.x.length = call.x.lines * call.x.length;
    one.x.lines = 1;
  }
  run_work(make_work(one, 1, kRun));
}

// Lines without elements may lie anywhere, as may their scales, and no lines.
bool is_empty(const QuantizeCall &call) { return call.x.lines == 0 || call.blocks->length == 0; }

// Lines without elements have no scales but those of two levels.
void put_empty_lines(const QuantizeCall &call) {
  if (!call.blocks->decodes || !call.blocks->finds_decodes) return;
  for (int64_t line = 0; line < call.x.lines; ++line) call.blocks->decodes[line] = two_level_scale(call.rule, 0).decode;
}

void quantize_one_way(const QuantizeCall &call) {
  if (is_empty(call)) return put_empty_lines(call);
  if (takes_whole_lines(call))
    run_work(make_work(call, call.across ? whole_lines_of_tile(call) : 1, call.blocks->length));
  else if (call.across)
    run_work(make_work(call, kTileLines, kTileLength));
  else if (call.format.group > 1)
    run_work(make_work(call, call.format.group, kSquareRun));
  else
    quantize_lines(call);
}

// Both directions, if the elements of one are neighbours.
void quantize_both_ways(const QuantizeCall &along, const QuantizeCall &across) {
  if (across.x.lines == 0) return quantize_one_way(along);
  QuantizeCall both = across;
  both.along = &along;
  quantize_one_way(both);
}

// --- Arguments -------------------------------------------------------------------------------

dlfp4_status check_blocks(const QuantizeCall &call) {
  const dlfp4_blocks &blocks = *call.blocks;
  if (blocks.layout < 0 || blocks.layout >= DLFP4_NUM_LAYOUTS) return DLFP4_E_OPTION;
  if (blocks.decodes && (call.format.row->kind != DLFP4_TWO_LEVEL || call.format.group > 1 || blocks.decode_lines != 1))
    return DLFP4_E_OPTION;
  if (blocks.length < call.x.length || !has_whole_blocks(call.format, blocks.length)) return DLFP4_E_SHAPE;
  if (!can_set_offsets(blocks, call.format)) return DLFP4_E_OPTION;
  if (!is_rotation(blocks.rotation, blocks.length)) return DLFP4_E_SHAPE;
  return is_addressable(blocks, call.format, call.x.lines) ? DLFP4_OK : DLFP4_E_SHAPE;
}

// Lines that are taken as a whole are rotated, and their candidates compared, along them.
bool is_across(const QuantizeCall &call) {
  const bool whole_lines = takes_whole_lines(call) && (call.x.rotation || call.rule.chooses);
  return call.x.step != 1 && call.x.line_stride == 1 && !whole_lines;
}

void fill_padding(const QuantizeCall &call) {
  if (call.blocks->layout == DLFP4_LAYOUT_linear) return;
  const int64_t rows = divide_up(call.x.lines, call.scales.lines_per_row);
  const int64_t columns = divide_up(call.blocks->length, call.format.block);
  memset(call.blocks->scales, call.blocks->fill,
         static_cast<size_t>(padded_bytes(call.blocks->layout, rows, columns, call.format.scale_bytes)));
}

// Neighbours in memory are written together, whichever way they lie.
void set_offsets(const QuantizeCall &call) {
  if (!call.blocks->offsets) return;
  const int64_t counts[] = {call.x.lines, divide_up(call.blocks->length, call.format.block)};
  const int64_t *const strides = call.blocks->offset_strides;
  const int inner = strides[0] == 1 ? 0 : 1, outer = 1 - inner;
  for (int64_t i = 0; i < counts[outer]; ++i) {
    uint8_t *const zeros = static_cast<uint8_t *>(call.blocks->offsets) + i * strides[outer];
    if (strides[inner] == 1)
      memset(zeros, kMiddle, static_cast<size_t>(counts[inner]));
    else
      for (int64_t k = 0; k < counts[inner]; ++k) zeros[k * strides[inner]] = kMiddle;
  }
}

// What both directions have in common.
dlfp4_status make_call(const dlfp4_matrix &x, int format, const dlfp4_recipe &recipe, const dlfp4_tensor_scale *scale,
                       QuantizeCall *call) {
  const int level = current_level();
  if (level < 0) return DLFP4_E_ISA;
  if (!find_format(format, &call->format) || !is_recipe(recipe, call->format)) return DLFP4_E_OPTION;
  call->kernels = &block_kernels(level);
  call->scalar = &block_kernels(scalar_level());
  if (!make_lines(x, kAlongRows, &call->x)) return DLFP4_E_DTYPE;
  call->rule = make_rule(call->format, recipe, call->x.source, scale);
  call->mode = {recipe.rounding,
                call->rule.divides,
                call->rule.element_mantissa,
                recipe.drops_negative_zero ? 0.0f : -0.0f,
                recipe.seed,
                recipe.first,
                1};
  const ElementType element = kTypes[call->format.row->element];
  call->plus_zeros = recipe.rounds_to_plus_zero && is_float(element) && element.specials != DLFP4_FNUZ;
  call->moves = call->format.row->element == DLFP4_uint4;
  return DLFP4_OK;
}

// What one has of its own.
dlfp4_status aim(const dlfp4_matrix &x, Direction direction, const dlfp4_blocks &blocks, QuantizeCall *call) {
  call->direction = direction;
  call->blocks = &blocks;
  if (!make_lines(x, direction, &call->x)) return DLFP4_E_DTYPE;
  if (const dlfp4_status status = check_blocks(*call)) return status;
  call->scales = make_scales(blocks, call->format);
  call->x.rotation = blocks.rotation;
  call->across = is_across(*call);
  return DLFP4_OK;
}

}  // namespace
}  // namespace dlfp4

extern "C" {

dlfp4_tensor_scale dlfp4_host_given_tensor_scale(float decode) {
  dlfp4::TensorScale scale = {};
  dlfp4::compute([&] { scale = dlfp4::scale_given(decode); });
  return {scale.encode, scale.decode, scale.largest};
}

int dlfp4_host_is_decode_scale(float number) { return dlfp4::is_decode_scale(number); }

dlfp4_status dlfp4_host_quantize(const dlfp4_matrix *x, int format, const dlfp4_recipe *recipe,
                                 const dlfp4_tensor_scale *scale, const dlfp4_blocks *along_rows,
                                 const dlfp4_blocks *along_columns) {
  using namespace dlfp4;
  QuantizeCall call = {};
  if (const dlfp4_status status = make_call(*x, format, *recipe, scale, &call)) return status;
  if (along_rows && along_columns && (along_rows->rotation || along_columns->rotation)) return DLFP4_E_OPTION;
  const dlfp4_blocks *const results[] = {along_rows, along_columns};
  QuantizeCall jobs[2];
  int count = 0;
  for (Direction direction : {kAlongRows, kAlongColumns}) {
    if (!results[direction]) continue;
    if (const dlfp4_status status = aim(*x, direction, *results[direction], &call)) return status;
    jobs[count++] = call;
  }
  for (int i = 0; i < count; ++i) {
    if (is_empty(jobs[i])) continue;
    fill_padding(jobs[i]);
    set_offsets(jobs[i]);
  }
  if (count == 2 && jobs[0].across != jobs[1].across && !takes_whole_lines(jobs[0])) {
    quantize_both_ways(jobs[jobs[0].across], jobs[jobs[1].across]);
    return DLFP4_OK;
  }
  for (int i = 0; i < count; ++i) quantize_one_way(jobs[i]);
  return DLFP4_OK;
}
}
