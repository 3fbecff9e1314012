// dlfp4_quantize: cuts a matrix into tiles and takes each through three steps: largest magnitudes, scales, elements.
// Layout: tiles along lines where their elements are neighbours, across lines where elements of one position are; other
// strides are gathered first.
// Trick: a tile is small enough that each step finds it in a cache, so that memory is read once for both directions.
#include <string.h>

#include <initializer_list>

#include "host/level.h"
#include "host/threads.h"
#include "kernels.h"
#include "rules/operand.h"
#include "scales.h"

namespace dlfp4 {
namespace {

constexpr int64_t kRun = 2048;       // elements of a line at a time
constexpr int64_t kAhead = 4;        // positions of such a tile to prefetch
constexpr int64_t kSquareRun = 512;  // elements of a line at a time, where many lines are
constexpr int64_t kGrain = 1 << 16;  // elements worth a thread
constexpr int64_t kMostScales = kTileLines;
constexpr int kMostItem = 4, kScaleBytes = 4;

static_assert(kRun / kLeastBlock <= kMostScales, "a run's scales");

struct Job {
  const BlockKernels *kernels;
  FormatInfo format;
  ScaleRule rule;
  BlockMode mode;
  Lines x;
  Direction direction;
  bool across;  // whether neighbours in memory are elements of different lines
  const dlfp4_blocks *blocks;
  Scales scales;
  const Job *along;  // the other direction of the same matrix, which this one, across lines, takes along
};

// A part of the lines: [line, last_line) x [first, last).
struct Tile {
  int64_t line, last_line;
  int64_t first, last;
};

BlockMode mode_at(const Job &job, int64_t line, int64_t position, int64_t step) {
  BlockMode mode = job.mode;
  mode.first = static_cast<uint64_t>(line * job.blocks->length + position);
  mode.step = static_cast<uint64_t>(step);
  return mode;
}

// The scales of `count` blocks and their multipliers; whether a block has no finite magnitude that zeroes its elements.
bool find_scales(const Job &job, const uint32_t *amax, int64_t count, uint8_t *stored, float *multipliers) {
  const bool special = job.kernels->find_scales[job.format.key](job.rule, amax, count, stored, multipliers);
  return special && job.format.row->kind != DLFP4_LARGEST;
}

// --- Along lines -----------------------------------------------------------------------------

// The elements of a line as neighbours, followed by zeros where the line is shorter than its blocks.
const uint8_t *stage(const Lines &x, int64_t line, int64_t first, int64_t count, uint8_t *buffer) {
  const int64_t there = least(count, x.length - first);
  if (x.step == 1 && there == count) return at(x, line, first);
  if (there > 0) gather_items(at(x, line, first), x.step, x.item, there, buffer);
  const int64_t copied = there > 0 ? there : 0;
  memset(buffer + copied * x.item, 0, static_cast<size_t>((count - copied) * x.item));
  return buffer;
}

void zero_blocks(const Job &job, const uint32_t *amax, int64_t count, int64_t blocks, uint8_t *codes) {
  const int64_t block = job.format.block;
  for (int64_t b = 0; b < blocks; ++b) {
    if (amax[b] < kFloatInfinity) continue;
    const int64_t first = b * block, last = least(count, first + block);
    memset(codes + first * job.format.bits / 8, 0, static_cast<size_t>((last - first) * job.format.bits / 8));
  }
}

// Copies codes that lie next to each other to a line of the result.
uint8_t *place_of(const Job &job, int64_t line, int64_t first, uint8_t *buffer) {
  return job.blocks->strides[1] == 1 ? line_at(*job.blocks, job.format, line, first) : buffer;
}

void put_line(const Job &job, int64_t line, int64_t first, int64_t count, const uint8_t *codes) {
  if (job.blocks->strides[1] != 1)
    scatter_items(codes, 1, count, line_at(*job.blocks, job.format, line, first), job.blocks->strides[1]);
}

struct Found {
  uint32_t amax[kMostScales];
  uint8_t stored[kMostScales * kScaleBytes];
  float multipliers[kMostScales];
  bool has_special;
};

// The scales of the blocks at [first, first + count) of the lines that share them.
void find_along(const Job &job, int64_t line, int64_t last_line, int64_t first, int64_t count, Found *found) {
  alignas(64) uint8_t buffer[kRun * kMostItem];
  const int64_t blocks = divide_up(count, job.format.block);
  uint32_t largest[kMostScales];
  for (int64_t i = line; i < last_line; ++i) {
    const uint8_t *const src = stage(job.x, i, first, count, buffer);
    job.kernels->find_largest[job.x.source](src, count, job.format.block, i == line ? found->amax : largest);
    for (int64_t b = 0; i > line && b < blocks; ++b)
      if (largest[b] > found->amax[b]) found->amax[b] = largest[b];
  }
  found->has_special = find_scales(job, found->amax, blocks, found->stored, found->multipliers);
  const int64_t last_row = job.format.row->repeats ? last_line : line + 1;
  for (int64_t i = line; i < last_row; ++i)
    store_scales(job.scales, i, first / job.format.block, blocks, found->stored);
}

void encode_along(const Job &job, int64_t line, int64_t first, int64_t count, const Found &found) {
  alignas(64) uint8_t buffer[kRun * kMostItem];
  alignas(64) uint8_t codes[kRun];
  const auto encode = job.kernels->encode[job.mode.rounding][job.x.source][job.format.element];
  uint8_t *const to = place_of(job, line, first, codes);
  encode(stage(job.x, line, first, count, buffer), count, job.format.block, found.multipliers, to,
         mode_at(job, line, first, 1));
  if (found.has_special) zero_blocks(job, found.amax, count, divide_up(count, job.format.block), to);
  put_line(job, line, first, count, to);
}

// Runs of lines that share scales: the scales are found before any line is encoded.
void quantize_along(const Job &job, const Tile &tile) {
  const int64_t run = tile.last_line - tile.line == 1 ? kRun : kSquareRun;
  Found found;
  found.multipliers[0] = job.rule.encode;
  found.has_special = false;
  for (int64_t line = tile.line; line < tile.last_line; line += job.format.group) {
    const int64_t last_line = least(line + job.format.group, tile.last_line);
    for (int64_t first = tile.first; first < tile.last; first += run) {
      const int64_t count = least(run, tile.last - first);
      if (!job.format.whole) find_along(job, line, last_line, first, count, &found);
      for (int64_t i = line; i < last_line; ++i) encode_along(job, i, first, count, found);
    }
  }
}

// --- Across lines ----------------------------------------------------------------------------

// A tile's results by position: codes, and stored scales of one byte. A tile has a single row of longer scales.
struct Results {
  alignas(64) uint8_t codes[kTileLength][kTilePitch];
  alignas(64) uint8_t stored[kTileBlocks][kTilePitch];
};

static_assert(kTileLines * kScaleBytes <= sizeof(Results::stored), "a row of float32 scales");

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
void prefetch_position(const Job &job, const Tile &tile, int64_t position) {
  if (position >= job.x.length) return;
  const uint8_t *const data = at(job.x, tile.line, position);
  const int64_t bytes = (tile.last_line - tile.line) * job.x.item;
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(data + i);
}

void find_across(const Job &job, const Tile &block, Found *found, uint8_t *stored) {
  const int64_t lines = block.last_line - block.line;
  memset(found->amax, 0, static_cast<size_t>(lines) * sizeof(found->amax[0]));
  for (int64_t k = block.first; k < least(block.last, job.x.length); ++k) {
    prefetch_position(job, block, k + kAhead);
    job.kernels->join_largest[job.x.source](at(job.x, block.line, k), lines, found->amax);
  }
  join_groups(lines, job.format.group, found->amax);
  found->has_special = find_scales(job, found->amax, lines, stored, found->multipliers);
}

void encode_across(const Job &job, const Tile &tile, int64_t position, const Found &found, uint8_t *codes) {
  const int64_t lines = tile.last_line - tile.line;
  if (position >= job.x.length) return static_cast<void>(memset(codes, 0, static_cast<size_t>(lines)));
  job.kernels->encode_across[job.mode.rounding][job.x.source][job.format.element](
      at(job.x, tile.line, position), lines, found.multipliers, codes,
      mode_at(job, tile.line, position, job.blocks->length));
  for (int64_t i = 0; found.has_special && i < lines; ++i)
    if (found.amax[i] >= kFloatInfinity) codes[i] = 0;
}

// Where the result's codes of one position lie next to each other, there is nothing to transpose.
uint8_t *row_of_codes(const Job &job, const Tile &tile, int64_t position, Results *results) {
  if (job.blocks->strides[0] == 1 && job.format.bits == 8) return line_at(*job.blocks, job.format, tile.line, position);
  return results->codes[position - tile.first];
}

void put_codes(const Job &job, const Tile &tile, const Results &results) {
  const int64_t lines = tile.last_line - tile.line, rows = tile.last - tile.first;
  if (job.blocks->strides[0] == 1 && job.format.bits == 8) return;
  uint8_t *const to = line_at(*job.blocks, job.format, tile.line, tile.first);
  if (job.blocks->strides[1] == 1)
    return job.kernels->pack_across[job.format.bits](results.codes[0], kTilePitch, rows, lines, to,
                                                     job.blocks->strides[0] * job.format.bits / 8);
  for (int64_t k = 0; k < rows; ++k)
    scatter_items(results.codes[k], 1, lines, to + k * job.blocks->strides[1], job.blocks->strides[0]);
}

// Scales of one byte that are no neighbours across lines are turned, so that those of a line are.
void put_scales(const Job &job, const Tile &tile, const Results &results) {
  const Scales &scales = job.scales;
  const int64_t lines = tile.last_line - tile.line, block = tile.first / job.format.block;
  const int64_t blocks = divide_up(tile.last - tile.first, job.format.block);
  const bool linear = scales.layout == DLFP4_LAYOUT_linear;
  if (scales.bytes > 1 || scales.lines_per_row > 1 || (linear && scales.stride == 1)) {
    for (int64_t b = 0; b < blocks; ++b) store_scales_across(scales, tile.line, lines, block + b, results.stored[b]);
    return;
  }
  const auto turn = job.kernels->pack_across[8 * scales.bytes];
  if (linear && scales.step == 1)
    return turn(results.stored[0], kTilePitch, blocks, lines, scales.data + tile.line * scales.stride + block,
                scales.stride);
  uint8_t turned[kTileLines][kTileBlocks];
  turn(results.stored[0], kTilePitch, blocks, lines, turned[0], kTileBlocks);
  for (int64_t i = 0; i < lines; ++i) store_scales(scales, tile.line + i, block, blocks, turned[i]);
}

// The other direction of a block, while the block is in a cache. The last tile has the zeros that end its lines.
void quantize_other(const Job &job, const Tile &block) {
  const Job &along = *job.along;
  const int64_t last = block.last_line == job.x.lines ? along.blocks->length : block.last_line;
  if (block.first < along.x.lines)
    quantize_along(along, {block.first, least(block.last, along.x.lines), block.line, last});
}

void quantize_tile_across(const Job &job, const Tile &tile) {
  Found found;
  Results results;
  found.has_special = false;
  for (int64_t i = 0; i < kTileLines; ++i) found.multipliers[i] = job.rule.encode;
  const int64_t block = least(job.format.block, kTileLength);
  for (int64_t first = tile.first; first < tile.last; first += block) {
    const Tile part = {tile.line, tile.last_line, first, least(first + block, tile.last)};
    if (job.along) quantize_other(job, part);
    if (!job.format.whole) find_across(job, part, &found, results.stored[(first - tile.first) / block]);
    for (int64_t k = part.first; k < part.last; ++k)
      encode_across(job, tile, k, found, row_of_codes(job, tile, k, &results));
  }
  put_codes(job, tile, results);
  if (!job.format.whole) put_scales(job, tile, results);
}

void quantize_across(const Job &job, const Tile &tile) {
  for (int64_t first = tile.first; first < tile.last; first += kTileLength)
    for (int64_t line = tile.line; line < tile.last_line; line += kTileLines)
      quantize_tile_across(
          job, {line, least(line + kTileLines, tile.last_line), first, least(first + kTileLength, tile.last)});
}

// --- Tiles -----------------------------------------------------------------------------------

// A matrix in tiles of so many of its rows and columns; blocks may add zeros to either.
struct Work {
  Job job;
  int64_t rows, columns;
  int64_t tile_rows, tile_columns;
};

void quantize_tile(const Job &job, int64_t row, int64_t last_row, int64_t column, int64_t last_column) {
  const bool rows = job.direction == kAlongRows;
  const Tile tile = {rows ? row : column, least(rows ? last_row : last_column, job.x.lines), rows ? column : row,
                     least(rows ? last_column : last_row, job.blocks->length)};
  if (tile.line >= tile.last_line || tile.first >= tile.last) return;
  if (job.across)
    quantize_across(job, tile);
  else
    quantize_along(job, tile);
}

void quantize_tiles(const void *context, int64_t first_tile, int64_t last_tile) {
  const Work &work = *static_cast<const Work *>(context);
  const int64_t in_row = divide_up(work.columns, work.tile_columns);
  for (int64_t number = first_tile; number < last_tile; ++number) {
    const int64_t row = number / in_row * work.tile_rows, column = number % in_row * work.tile_columns;
    quantize_tile(work.job, row, row + work.tile_rows, column, column + work.tile_columns);
  }
}

void run_work(const Work &work) {
  const int64_t tiles = divide_up(work.rows, work.tile_rows) * divide_up(work.columns, work.tile_columns);
  const int64_t grain = divide_up(kGrain, work.tile_rows * work.tile_columns);
  if (tiles > 0) parallel_for_tiles(tiles, grain, quantize_tiles, &work);
}

// Tiles whose lines are rows or columns have the same shape, one the transpose of the other.
Work make_work(const Job &job, int64_t tile_lines, int64_t tile_length) {
  const bool rows = job.direction == kAlongRows;
  Work work = {};
  work.job = job;
  work.rows = rows ? job.x.lines : job.blocks->length;
  work.columns = rows ? job.blocks->length : job.x.lines;
  work.tile_rows = rows ? tile_lines : tile_length;
  work.tile_columns = rows ? tile_length : tile_lines;
  return work;
}

// Whether each line, its blocks and its scales follow those of the line before.
// Short lines are joined to long ones where that makes no difference.
void quantize_lines(const Job &job) {
  dlfp4_blocks blocks = *job.blocks;
  Job one = job;
  one.blocks = &blocks;
  if (are_one_line(*job.blocks, job.scales, job.x, job.format)) {
    blocks.length = one.x.length = job.x.lines * job.x.length;
    one.x.lines = 1;
  }
  run_work(make_work(one, 1, kRun));
}

void quantize_one_way(const Job &job) {
  if (job.across)
    run_work(make_work(job, kTileLines, kTileLength));
  else if (job.format.group > 1)
    run_work(make_work(job, job.format.group, kSquareRun));
  else
    quantize_lines(job);
}

// Both directions, if the elements of one are neighbours.
void quantize_both_ways(const Job &along, const Job &across) {
  if (across.x.lines == 0) return quantize_one_way(along);
  Job both = across;
  both.along = &along;
  quantize_one_way(both);
}

// --- Arguments -------------------------------------------------------------------------------

bool is_recipe(const dlfp4_recipe &recipe) {
  const int rounding = number_of(recipe.rounding), rule = number_of(recipe.scale_rule);
  return rounding >= DLFP4_NEAREST_EVEN && rounding <= DLFP4_STOCHASTIC && rule >= DLFP4_SCALE_FLOOR &&
         rule <= DLFP4_SCALE_EVEN && recipe.eps >= 0;
}

dlfp4_status check_blocks(const Job &job) {
  const dlfp4_blocks &blocks = *job.blocks;
  if (blocks.layout < 0 || blocks.layout >= DLFP4_NUM_LAYOUTS) return DLFP4_E_OPTION;
  const bool any_length = job.format.row->kind == DLFP4_LARGEST;
  if (blocks.length < job.x.length || (!any_length && blocks.length % job.format.block != 0)) return DLFP4_E_SHAPE;
  return is_addressable(blocks, job.format, job.x.lines) ? DLFP4_OK : DLFP4_E_SHAPE;
}

void fill_padding(const Job &job) {
  if (job.blocks->layout == DLFP4_LAYOUT_linear) return;
  const int64_t rows = divide_up(job.x.lines, job.scales.lines_per_row);
  const int64_t columns = divide_up(job.blocks->length, job.format.block);
  memset(job.blocks->scales, job.blocks->fill,
         static_cast<size_t>(padded_bytes(job.blocks->layout, rows, columns, job.format.scale_bytes)));
}

}  // namespace
}  // namespace dlfp4

extern "C" {

dlfp4_tensor_scale dlfp4_given_tensor_scale(float decode) {
  dlfp4::TensorScale scale = {};
  dlfp4::compute([&] { scale = dlfp4::scale_given(decode); });
  return {scale.encode, scale.decode};
}

dlfp4_status dlfp4_quantize(const dlfp4_matrix *x, int format, const dlfp4_recipe *recipe,
                            const dlfp4_tensor_scale *scale, const dlfp4_blocks *along_rows,
                            const dlfp4_blocks *along_columns) {
  using namespace dlfp4;
  const int level = current_level();
  if (level < 0) return DLFP4_E_ISA;
  Job job = {};
  if (!find_format(format, &job.format)) return DLFP4_E_OPTION;
  if (!is_recipe(*recipe)) return DLFP4_E_OPTION;
  job.kernels = &block_kernels(level);
  job.rule = make_rule(job.format, *recipe, scale);
  job.mode = {recipe->rounding, recipe->drops_negative_zero ? 0.0f : -0.0f, recipe->seed, 0, 1};
  const dlfp4_blocks *const results[] = {along_rows, along_columns};
  Job jobs[2];
  int count = 0;
  for (Direction direction : {kAlongRows, kAlongColumns}) {
    if (!results[direction]) continue;
    job.direction = direction;
    job.blocks = results[direction];
    if (!make_lines(*x, direction, &job.x)) return DLFP4_E_DTYPE;
    if (const dlfp4_status status = check_blocks(job)) return status;
    job.scales = make_scales(*job.blocks, job.format);
    job.across = job.x.step != 1 && job.x.line_stride == 1;
    jobs[count++] = job;
  }
  for (int i = 0; i < count; ++i) fill_padding(jobs[i]);
  if (count == 2 && jobs[0].across != jobs[1].across) {
    quantize_both_ways(jobs[jobs[0].across], jobs[jobs[1].across]);
    return DLFP4_OK;
  }
  for (int i = 0; i < count; ++i) quantize_one_way(jobs[i]);
  return DLFP4_OK;
}
}
