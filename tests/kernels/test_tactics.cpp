// Checks which tiles the walking matrix kernel multiplies, and the tactics that a shape gets, without a GPU.
// Layout: y in half tiles, 128 by 128.
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

// How often each half tile of y is multiplied.
struct Count {
  const WalkOrder &order;
  int halves;  // of a column of tiles
  std::vector<int> times;
  int sharers = 0;  // blocks of threads with a shared tile
  bool is_inside = true;

  Count(const WalkOrder &walk, int64_t rows)
      : order(walk),
        halves(static_cast<int>((rows + kWalkRows / 2 - 1) / (kWalkRows / 2))),
        times(static_cast<size_t>(walk.row_blocks) * static_cast<size_t>(halves)) {}

  void add(WalkOrder::Place place, int count) {
    is_inside &= place.row_block < order.row_blocks;
    for (int i = 0; i < count && is_inside; ++i) {
      const int half = place.first_row / (kWalkRows / 2) + i;
      if (half < halves)
        ++times[static_cast<size_t>(place.row_block) * static_cast<size_t>(halves) + static_cast<size_t>(half)];
      else
        is_inside &= i > 0;  // the second half of a last tile that is not full
    }
  }
};

// As Walk does, for a block of threads.
void walk_block(const WalkOrder &order, int block, int blocks, Count *count) {
  for (int rest = blocks - 1 - block; rest < order.rests(); rest += blocks) count->add(order.place_of_rest(rest), 1);
  const int halves = order.rows / (kWalkRows / 2);
  for (int tile = block; tile < order.alone; tile += blocks) count->add(order.place_of(tile), halves);
  const int tile = order.shared_tile(block / kWalkRanks);
  if (tile == order.kNone) return;
  ++count->sharers;
  if (block % kWalkRanks == 0) count->add(order.place_of(tile), 2);
}

// Blocks of threads of a cluster have tiles of the same rows, equally many.
void test_sharing(const WalkPlan &plan) {
  const WalkOrder &order = plan.order;
  const auto are_alike = [](WalkOrder::Place first, WalkOrder::Place second) {
    return first.first_row == second.first_row;
  };
  bool alike = order.alone % kWalkRanks == 0 && order.rests() % kWalkRanks == 0;
  for (int tile = 0; tile < order.alone; tile += kWalkRanks)
    alike &= are_alike(order.place_of(tile), order.place_of(tile + 1));
  check(alike, "clusters share rows", detail);
}

void test_walk(const ProductShape &shape, int tile_rows, int processors) {
  const WalkPlan plan = plan_walk(shape, tile_rows, processors);
  describe(shape, processors);
  check(plan.blocks >= kWalkRanks && plan.blocks % kWalkRanks == 0 && plan.blocks <= (processors < 2 ? 2 : processors),
        "blocks of the walk", detail);
  check(std::isfinite(plan.time) && plan.time > 0, "the time of the walk", detail);
  Count count(plan.order, shape.rows);
  for (int block = 0; block < plan.blocks; ++block) walk_block(plan.order, block, plan.blocks, &count);
  bool each_once = count.is_inside;
  for (int times : count.times) each_once &= times == 1;
  check(each_once, "each half tile once", detail);
  if (walk_sharers(shape.kind) > 1) test_sharing(plan);
  const int shared = plan.order.tiles() - plan.order.alone;
  check(count.sharers == shared * kWalkRanks, "all blocks of threads of a shared tile run", detail);
  check(shared == 0 || shape.depth > stage_depth(shape.kind), "a shared tile has two blocks along K", detail);
}

// What is checked of shared tiles says nothing if there are none.
void test_shared_tiles() {
  const ProductShape shape = {kNvfp4, 1024, 14336, 4096};
  const WalkOrder order = plan_walk(shape, kWalkRows, 132).order;
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
    const int64_t ways = tactic.family == kShared ? tactic.ranks * (kConsumers / tactic.halves) : 1;
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
  const bool walks = tactic.family == kWalking;
  const int staging = walks ? staging_bytes(kind) : 0, takers = kConsumers / tactic.halves;
  const int memory = shared_of_blocks(at_once);
  const int stages = ring_stages(kind, tactic.rows, tactic.halves, blocks, memory - staging);
  const int of_each = (blocks + takers - 1) / takers;
  snprintf(detail, sizeof(detail), "%s, kind %d, %d blocks: %d stages", tactic.name, kind, blocks, stages);
  check(stages % takers == 0, "no stage is shared", detail);
  check(stages / takers >= std::min(of_each, 2), "enough stages", detail);
  const int sums = walks ? 0 : sums_bytes(tactic.rows, tactic.halves);
  const int barriers = ring_barriers(kind, tactic.rows, tactic.halves, stages, staging, sums);
  const int of_stages = x_stage_bytes(tactic.rows) + weight_stage_bytes(kind, tactic.halves) +
                        scale_stage_bytes(kind, tactic.rows, tactic.halves);
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
  } kFastest[] = {{{kBytesByBlock, 128, 24576, 1536}, "walk128"},
                  {{kBytesByBlock, 256, 24576, 1536}, "walk128"},
                  {{kBytes, 256, 24576, 1536}, "walk128"},
                  {{kBytes, 256, 7168, 4096}, "2x128x128"},
                  {{kBytesByBlock, 64, 28672, 8192}, "64x128"},
                  {{kBytesByBlock, 256, 7168, 4096}, "2x128x128"},
                  {{kBytes, 4096, 7168, 4096}, "walk"}};
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
          for (int kind : {int{kNvfp4}, int{kBytes}, int{kBytesByBlock}}) {
            const ProductShape shape = {kind, rows, columns, depth};
            test_walk(shape, kWalkRows, processors);
            if (!is_prepared(kind)) test_walk(shape, kShortWalkRows, processors);
            test_tactics(shape, processors);
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
