// Checks which tiles the walking matrix kernels multiply, and the tactics that a shape gets, without a GPU.
// Layout: y in tiles, or in half tiles of `walk`.
// Trick: the kernel and this program ask the same WalkOrder; here its answers are counted.
#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wunused-function"  // not all of the support is for tactics
#endif

#include "products/cuda/tactics.h"

#include <math.h>

#include <algorithm>
#include <set>
#include <vector>

#include "support.h"

namespace dlfp4 {
namespace cuda {
namespace {

constexpr int kProcessors[] = {1, 2, 3, 16, 78, 114, 131, 132, 144};
constexpr int64_t kRows[] = {1,   16,  17,  127, 128,  129,  255,  256,  257,    300,
                             384, 385, 511, 512, 1000, 1024, 3000, 4097, 1 << 20};
constexpr int64_t kColumns[] = {1, 96, 128, 129, 256, 384, 512, 2688, 4096, 4224, 14336};
constexpr int64_t kDepths[] = {8, 64, 65, 128, 192, 4096, 14336};

char detail[128];

void describe(const ProductShape &shape, int processors) {
  snprintf(detail, sizeof(detail), "%ld x %ld of %ld on %d multiprocessors", static_cast<long>(shape.rows),
           static_cast<long>(shape.columns), static_cast<long>(shape.depth), processors);
}

// --- The order of the walk ---------------------------------------------------------------------

// How often each tile of y is multiplied, or each half tile where there are rests of rows.
struct Count {
  const WalkOrder &order;
  int rows_of_unit, columns, across;  // of y in units, rows and columns of tiles
  std::vector<int> times;
  bool completes_clusters;
  int sharers = 0;  // blocks of threads with a shared tile
  bool is_inside = true;

  Count(const WalkOrder &walk, const Tactic &tactic, const ProductShape &shape)
      : order(walk),
        rows_of_unit(tactic.family == kWalking ? tactic.rows / 2 : tactic.rows),
        columns(static_cast<int>((shape.columns + tactic.columns - 1) / tactic.columns)),
        across(static_cast<int>((shape.rows + rows_of_unit - 1) / rows_of_unit)),
        times(static_cast<size_t>(columns) * static_cast<size_t>(across)),
        completes_clusters(tactic.family != kWalking) {}

  void add(WalkOrder::Place place, int units) {
    is_inside &= place.row_block < order.row_blocks && place.first_row < order.x_tiles * order.rows + rows_of_unit;
    for (int i = 0; i < units && is_inside; ++i) {
      const int unit = place.first_row / rows_of_unit + i;
      if (place.row_block < columns && unit < across)
        ++times[static_cast<size_t>(place.row_block) * static_cast<size_t>(across) + static_cast<size_t>(unit)];
      else  // the second half of a last tile that is not full, or a tile that completes a cluster
        is_inside &= i > 0 || completes_clusters;
    }
  }
};

// As the kernels do, for a block of threads.
void walk_block(const WalkOrder &order, int block, int blocks, Count *count) {
  const int units = order.rows / count->rows_of_unit;
  for (int rest = blocks - 1 - block; rest < order.rests(); rest += blocks) count->add(order.place_of_rest(rest), 1);
  for (int tile = block; tile < order.alone; tile += blocks) count->add(order.place_of(tile), units);
  const int tile = order.shared_tile(block / kWalkRanks);
  if (tile == order.kNone) return;
  ++count->sharers;
  if (block % kWalkRanks == 0) count->add(order.place_of(tile), units);
}

// Blocks of threads of a cluster have tiles of the same rows, or neighbours of the same weights, equally many.
void test_sharing(const WalkOrder &order, bool are_pairs) {
  bool alike = order.alone % kWalkRanks == 0 && order.rests() == 0;
  for (int tile = 0; tile < order.alone; tile += kWalkRanks) {
    const WalkOrder::Place first = order.place_of(tile), second = order.place_of(tile + 1);
    alike &= are_pairs ? first.row_block == second.row_block && first.first_row + order.rows == second.first_row
                       : first.first_row == second.first_row && first.row_block != second.row_block;
  }
  check(alike, are_pairs ? "clusters share weights" : "clusters share rows", detail);
}

void test_walk(const ProductShape &shape, const Tactic &tactic, int processors) {
  const WalkPlan plan = plan_walk(shape, tactic, processors);
  describe(shape, processors);
  check(plan.blocks >= kWalkRanks && plan.blocks % kWalkRanks == 0 && plan.blocks <= (processors < 2 ? 2 : processors),
        "blocks of the walk", detail);
  check(std::isfinite(plan.time) && plan.time > 0, "the time of the walk", detail);
  Count count(plan.order, tactic, shape);
  for (int block = 0; block < plan.blocks; ++block) walk_block(plan.order, block, plan.blocks, &count);
  bool each_once = count.is_inside;
  for (int times : count.times) each_once &= times == 1;
  check(each_once, "each tile once", detail);
  if (tactic.family != kWalking) test_sharing(plan.order, tactic.family == kByteWalkPairs);
  const int shared = plan.order.tiles() - plan.order.alone;
  check(count.sharers == shared * kWalkRanks, "all blocks of threads of a shared tile run", detail);
  check(shared == 0 || shape.depth > stage_depth(shape.kind), "a shared tile has two blocks along K", detail);
}

const Tactic &tactic_named(const char *name) {
  return *std::find_if(kTactics, kTactics + kNumTactics,
                       [&](const Tactic &tactic) { return strcmp(tactic.name, name) == 0; });
}

// What is checked of shared tiles says nothing if there are none.
void test_shared_tiles() {
  const ProductShape shape = {kNvfp4, 1024, 14336, 4096};
  const WalkOrder order = plan_walk(shape, tactic_named("walk"), 132).order;
  describe(shape, 132);
  check(order.alone == 396, "whole tiles of each block of threads", detail);
  check(order.tiles() - order.alone == 52, "shared tiles", detail);
  check(order.shared_tile(51) == 447 && order.shared_tile(52) == order.kNone, "the last shared tile", detail);
}

// --- Tactics -------------------------------------------------------------------------------------

void test_tactics(const ProductShape &shape, int processors) {
  int numbers[kNumTactics];
  describe(shape, processors);
  const int count = find_tactics(shape, processors, true, numbers, kNumTactics);
  check(count >= 1 && count <= kNumTactics, "tactics", detail);
  check(std::set<int>(numbers, numbers + count).size() == static_cast<size_t>(count), "each tactic once", detail);
  for (int i = 0; i < count; ++i) {
    const Tactic &tactic = kTactics[numbers[i]];
    const int64_t ways = tactic.family == kShared ? tactic.ranks * shares_of_depth(tactic.columns) : 1;
    check(ways <= (shape.depth + stage_depth(shape.kind) - 1) / stage_depth(shape.kind), "each part of K has a block",
          detail);
  }
  const int everywhere = find_tactics(shape, processors, false, numbers, kNumTactics);
  if (is_prepared(shape.kind))
    check(everywhere == 1 && kTactics[numbers[0]].family == kStream, "the kernel for every GPU", detail);
  else
    check(everywhere == 0, "FP8 has kernels for sm_90a alone", detail);
}

// A warpgroup waits for every use of its stages, and may have the next block on its way while it multiplies one.
void test_stages(const Tactic &tactic, int kind, int blocks, int at_once) {
  const int staging = walks(tactic) ? staging_bytes(kind, tactic.rows, tactic.columns) : 0;
  const int takers = shares_of_depth(tactic.columns);
  const int memory = shared_of_blocks(at_once);
  const int stages = ring_stages(kind, tactic.rows, tactic.columns, blocks, memory - staging);
  const int of_each = (blocks + takers - 1) / takers;
  snprintf(detail, sizeof(detail), "%s, kind %d, %d blocks: %d stages", tactic.name, kind, blocks, stages);
  check(stages % takers == 0, "no stage is shared", detail);
  check(stages / takers >= std::min(of_each, 2), "enough stages", detail);
  const int sums = walks(tactic) ? 0 : sums_bytes(tactic.rows, tactic.columns);
  const int barriers = ring_barriers(kind, tactic.rows, tactic.columns, stages, staging, sums);
  const int of_stages = x_stage_bytes(tactic.rows) + weight_stage_bytes(kind, tactic.columns) +
                        scale_stage_bytes(kind, tactic.rows, tactic.columns);
  check(barriers >= staging + stages * of_stages, "barriers lie behind the stages", detail);
  check(barriers >= sums, "sums do not reach barriers, which still count as such", detail);
  check(barriers + stages * kBarrierBytes <= memory, "there is memory", detail);
}

// What is measured to be the fastest is guessed: few rows, many rows.
void test_guesses() {
  int numbers[kNumTactics];
  for (int64_t depth : {4096, 14336}) {
    for (int kind : {kNvfp4, kMxfp4, kMxfp8})
      for (int64_t rows : {1, 16}) {
        const ProductShape few = {kind, rows, 4096, depth};
        describe(few, 132);
        find_tactics(few, 132, true, numbers, kNumTactics);
        check(kTactics[numbers[0]].family == kStream, "few rows stream", detail);
      }
    const ProductShape many = {kNvfp4, 4096, 4096, depth};
    describe(many, 132);
    find_tactics(many, 132, true, numbers, kNumTactics);
    check(kTactics[numbers[0]].family == kWalking, "many rows walk", detail);
  }
  const struct {
    ProductShape shape;
    const char *name;
  } kFastest[] = {{{kNvfp4, 32, 4096, 4096}, "32x64/2"},
                  {{kNvfp4, 64, 4096, 14336}, "64x64/2"},
                  {{kNvfp4, 128, 14336, 4096}, "128x128"},
                  {{kNvfp4, 256, 4096, 4096}, "128x64"},
                  {{kBytesByBlock, 16, 2112, 7168}, "32x64/2"},
                  {{kBytesByBlock, 16, 24576, 1536}, "walk64x128"},
                  {{kBytesByBlock, 128, 24576, 1536}, "walk2x64x128"},
                  {{kBytesByBlock, 256, 24576, 1536}, "walk2x128x128"},
                  {{kBytesByBlock, 1024, 2112, 7168}, "walk2x128x64"},
                  {{kBytesByBlock, 4096, 7168, 4096}, "walk2x128x128"},
                  {{kBytes, 16, 2112, 7168}, "16x64/2"},
                  {{kBytes, 16, 24576, 1536}, "walk64x192"},
                  {{kBytes, 128, 7168, 4096}, "walk2x64x112"},
                  {{kBytes, 256, 4096, 7168}, "128x64"},
                  {{kBytes, 1024, 7168, 16384}, "walk2x128x112"},
                  {{kBytes, 1024, 2112, 7168}, "walk2x128x144"},
                  {{kBytesByRow, 4096, 7168, 4096}, "walk2x256x128"}};
  for (const auto &each : kFastest) {
    describe(each.shape, 132);
    find_tactics(each.shape, 132, true, numbers, kNumTactics);
    check(strcmp(kTactics[numbers[0]].name, each.name) == 0, each.name, detail);
  }
}

}  // namespace
}  // namespace cuda
}  // namespace dlfp4

int main() {
  using namespace dlfp4;
  using namespace dlfp4::cuda;
  for (int processors : kProcessors)
    for (int64_t rows : kRows)
      for (int64_t columns : kColumns)
        for (int64_t depth : kDepths) {
          for (int kind : {int{kNvfp4}, int{kBytes}, int{kBytesByRow}, int{kBytesByBlock}}) {
            const ProductShape shape = {kind, rows, columns, depth};
            test_tactics(shape, processors);
            // Of FP8 by FP8 the order does not depend on K, and of most rows there are many tiles.
            const bool is_left_out = !is_prepared(kind) && (depth > kDepths[0] || (rows > 4097 && processors != 132));
            for (const Tactic &tactic : kTactics)
              if (walks(tactic) && serves(tactic, kind) && !is_left_out) test_walk(shape, tactic, processors);
          }
        }
  for (const Tactic &tactic : kTactics)
    for (int kind = 0; kind < kNumProductKinds; ++kind)
      for (int blocks = 1; tactic.family != kStream && serves(tactic, kind) && blocks <= 64; ++blocks)
        for (int at_once = 1; at_once <= tiles_at_once(kind, tactic.rows); ++at_once)
          test_stages(tactic, kind, blocks, at_once);
  test_shared_tiles();
  test_guesses();
  return report();
}
