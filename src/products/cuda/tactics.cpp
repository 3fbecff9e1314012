// Which kernel multiplies: a table of tactics, and about how long each takes.
// The times are those of an H200 (docs/matmul.md), and only their order matters.
#include "tactics.h"

#include <algorithm>

#include "rules/matrix.h"

namespace dlfp4 {
namespace cuda {

#define DLFP4_SHARED_TACTICS(rows)                                                                                     \
  {#rows "x128", kShared, rows, 2, 1}, {#rows "x128/2", kShared, rows, 2, 2}, {#rows "x128/3", kShared, rows, 2, 3},   \
      {#rows "x128/4", kShared, rows, 2, 4}, {#rows "x64", kShared, rows, 1, 1}, {#rows "x64/2", kShared, rows, 1, 2}, \
      {#rows "x64/4", kShared, rows, 1, 4}

// The first one serves all GPUs, the others those of sm_90a; which kind of product, `serves` says.
const Tactic kTactics[] = {
    {"stream", kStream, 16, 0, 1}, DLFP4_SHARED_TACTICS(32),          DLFP4_SHARED_TACTICS(64),
    DLFP4_SHARED_TACTICS(128),     DLFP4_SHARED_TACTICS(256),         {"walk", kWalking, kWalkRows, 2, 1},
    DLFP4_SHARED_TACTICS(16),      {"2x128x128", kPaired, 128, 2, 1}, {"walk128", kWalking, kShortWalkRows, 2, 1},
};
#undef DLFP4_SHARED_TACTICS
static_assert(sizeof(kTactics) / sizeof(kTactics[0]) == kNumTactics, "");

namespace {

int64_t count_steps(const ProductShape &shape) { return divide_up(shape.depth, stage_depth(shape.kind)); }

bool fits(const Tactic &tactic, const ProductShape &shape) {
  if (!serves(tactic, shape.kind)) return false;
  if (walks(tactic, kShortWalkRows)) return shape.rows > kShortWalkRows / 2;
  if (tactic.family == kStream || tactic.family == kWalking) return true;
  const int64_t ways = int64_t{tactic.ranks} * (kConsumers / tactic.halves);
  return ways <= count_steps(shape) && divide_up(shape.rows, tactic.rows * sharers_of(tactic)) <= UINT16_MAX;
}

// --- Microseconds ------------------------------------------------------------------------------

constexpr double kStart = 2.5;       // launch, first loads, last stores
constexpr double kReadRate = 4.4e6;  // bytes of weights that arrive in a microsecond
constexpr double kSharing = 2.5;     // of the walk: two blocks of threads exchange sums
constexpr double kReadAgain = 0.65;  // of bytes: the share of weights that each further tile of rows reads, from L2
constexpr double kWalkEnd = 0.5, kWalkEndByBlock = 4.2;  // of bytes: a tile's results
constexpr double kNextWave = 2.0;                        // of bytes: first loads of blocks that start late
constexpr double kNextPair = 3.5;                        // the same of pairs that are ahead of sums
constexpr double kExchange = 0.35;                       // of bytes: what clusters wait for one another, a rank,
constexpr double kOfRow = 0.005;                         // and for the sums of a row in half a tile
constexpr double kHalfTile = 1.1;    // of the walk: times what a tile of as many rows takes elsewhere
constexpr double kHalfBytes = 1.33;  // the same for bytes

// A stage of K: copies, decoding and products for a tile. Bytes are multiplied as they come, those with scales along K
// later, but where tensor cores are ahead of sums (where K is shared that gains nothing); pairs read less, and in a
// walk consumers take turns with more.
double time_of_step(int kind, int rows, int halves, KernelFamily family, int ranks = 1) {
  constexpr double kStageRate = 9e4, kWeightRate = 7e4;  // bytes that a multiprocessor gets in a microsecond
  if (is_prepared(kind)) return 0.18 + 0.00085 * rows * halves;
  const int sums = rows * halves;
  if (family == kWalking) return std::max(0.06 + 0.0015 * sums, stage_bytes(kind, rows, halves) / kStageRate);
  const bool is_ahead = kind == kBytesByBlock && rows == 128 && halves == 2 && ranks == 1 && family != kPaired;
  const double multiplied = family == kPaired  ? 0.14 + 0.001 * sums
                            : has_scales(kind) ? (halves == 1 ? 0.09 : 0.14) + 0.0012 * (is_ahead ? 0.86 : 1) * sums
                                               : 0.0017 * sums;
  return std::max(multiplied, weight_stage_bytes(kind, halves) / kWeightRate);
}

// Fitted apart from the others.
bool is_pair_ahead(const Tactic &tactic, int kind) { return tactic.family == kPaired && !has_scales_of_rows(kind); }

// Sums through shared memory, of several blocks of threads or warpgroups into one, to y.
double time_of_sums(const Tactic &tactic, int kind) {
  if (is_pair_ahead(tactic, kind)) return 0.6;
  const bool are_shared = tactic.ranks * (kConsumers / tactic.halves) > 1;
  return (are_shared ? 0.6 : 0) + 0.0084 * tactic.rows * tactic.halves;
}

// Blocks of threads that run at once: a cluster stays within a group of multiprocessors, and those of three and four
// leave some of a group out, 6 and 12 of an H200's 132.
int64_t running_at_once(int ranks, int processors) {
  const int left_out = ranks == 3 ? processors / 22 : ranks == 4 ? processors / 11 : 0;
  return std::max((processors - left_out) / ranks, 1) * ranks;
}

// Weights arrive, or are decoded and multiplied, whichever takes longer: 4 bits wait for the latter.
double time_of_stream(const ProductShape &shape) {
  const double weights = static_cast<double>(shape.columns) * static_cast<double>(shape.depth);
  const double arrival = weight_layout(shape.kind).bytes() / double{kBlockRows * kBlockK} / kReadRate;
  const double work = shape.rows <= 8 ? 0.14e-6 : 0.175e-6;
  return kStart + static_cast<double>(divide_up(shape.rows, kTile)) * weights * std::max(arrival, work);
}

double time_of_shared(const Tactic &tactic, const ProductShape &shape, int processors) {
  const int sharers = sharers_of(tactic);
  const int64_t reads = divide_up(shape.rows, tactic.rows * sharers);  // of the same weights
  const int64_t blocks = divide_up(shape.columns, kColumnsOfHalf * tactic.halves) * reads * sharers * tactic.ranks;
  const int64_t steps = divide_up(count_steps(shape), tactic.ranks),
                running = running_at_once(tactic.ranks, processors);
  const double sums = time_of_sums(tactic, shape.kind);
  const auto waves = static_cast<double>(divide_up(blocks, running * tiles_at_once(shape.kind, tactic.rows)));
  const double work = static_cast<double>(divide_up(blocks, running) * steps) *
                      time_of_step(shape.kind, tactic.rows, tactic.halves, tactic.family, tactic.ranks);
  if (is_prepared(shape.kind)) return kStart + work + waves * sums;
  const double again = kReadAgain * static_cast<double>(reads - 1);
  const double arrival =
      (1 + again) * static_cast<double>(shape.columns) * static_cast<double>(shape.depth) / kReadRate;
  return kStart + std::max(work, arrival) + waves * sums +
         (waves - 1) * (is_pair_ahead(tactic, shape.kind) ? kNextPair : kNextWave) +
         (tactic.ranks > 1 ? (kExchange + kOfRow * tactic.rows * tactic.halves) * tactic.ranks : 0);
}

// Blocks of threads take one whole tile after the other.
WalkPlan plan_short_walk(const ProductShape &shape, int row_blocks, int most) {
  constexpr double kStep = 0.445, kTileEnd = 0.7;
  WalkOrder order = {row_blocks, static_cast<int>(divide_up(shape.rows, kShortWalkRows)), 0, kShortWalkRows, false};
  order.alone = order.tiles();
  const auto rounds = static_cast<double>(divide_up(order.tiles(), most));
  return {std::min(order.tiles(), most), order,
          kStart + rounds * (static_cast<double>(count_steps(shape)) * kStep + kTileEnd)};
}

double time_of(const Tactic &tactic, const ProductShape &shape, int processors) {
  if (tactic.family == kStream) return time_of_stream(shape);
  return tactic.family == kWalking ? plan_walk(shape, tactic.rows, processors).time
                                   : time_of_shared(tactic, shape, processors);
}

}  // namespace

int sharers_of(const Tactic &tactic) { return tactic.family == kPaired ? kPair : 1; }

// With scales along K, tiles of 16 rows took longer than those of 32, for as many rows.
bool serves(const Tactic &tactic, int kind) {
  if (tactic.family == kStream) return is_prepared(kind);
  if (tactic.family == kPaired) return !is_prepared(kind);
  if (walks(tactic, kShortWalkRows)) return !is_prepared(kind) && kind != kBytesByRow;
  if (tactic.family == kWalking) return true;
  const int fewest = is_prepared(kind) || has_scales(kind) ? 32 : 16, most = is_prepared(kind) ? 256 : 128;
  return tactic.rows >= fewest && tactic.rows <= most;
}

// Blocks work alone on all tiles, or on as many as each block gets equally often, whichever ends sooner.
WalkPlan plan_walk(const ProductShape &shape, int tile_rows, int processors) {
  const int rows = static_cast<int>(shape.rows), most = std::max(processors / kWalkRanks, 1) * kWalkRanks;
  const int sharers = walk_sharers(shape.kind);
  const int64_t row_blocks = divide_up(divide_up(shape.columns, kBlockRows), sharers) * sharers;
  const int64_t steps = count_steps(shape);
  if (tile_rows == kShortWalkRows) return plan_short_walk(shape, static_cast<int>(row_blocks), most);
  WalkOrder order = {static_cast<int>(row_blocks), walk_x_tiles(rows), 0, kWalkRows, false};
  order.has_rest = rows > order.x_tiles * kWalkRows;
  const auto time_of_rounds = [&](int64_t tiles, int64_t steps, int rows) {
    return static_cast<double>(divide_up(tiles, most) * steps) * time_of_step(shape.kind, rows, 2, kWalking);
  };
  const auto plan = [&](int alone) {
    order.alone = alone;
    const int shared = order.tiles() - alone, busy = std::max({alone, order.rests(), shared * kWalkRanks});
    const double last = shared > 0 ? time_of_rounds(1, divide_up(steps, kWalkRanks), kWalkRows) + kSharing : 0;
    const auto ends = static_cast<double>(divide_up(alone, most) + (shared > 0));
    return WalkPlan{
        std::min(static_cast<int>(divide_up(busy, kWalkRanks)) * kWalkRanks, most), order,
        kStart + time_of_rounds(alone, steps, kWalkRows) +
            (is_prepared(shape.kind) ? kHalfTile : kHalfBytes) * time_of_rounds(order.rests(), steps, kWalkRows / 2) +
            last +
            ends * (is_prepared(shape.kind)       ? 0
                    : shape.kind == kBytesByBlock ? kWalkEndByBlock
                                                  : kWalkEnd)};
  };
  const int even = order.tiles() / most * most;
  const WalkPlan all = plan(order.tiles());
  if (steps < kWalkRanks || (order.tiles() - even) * kWalkRanks > most) return all;
  const WalkPlan shared = plan(even);
  return shared.time < all.time ? shared : all;
}

int find_tactics(const ProductShape &shape, int processors, bool has_hopper_kernels, int *numbers, int capacity) {
  constexpr double kTooSlow = 1.5;  // times the best guess
  double times[kNumTactics];
  int count = 0;
  for (int i = 0; i < (has_hopper_kernels ? kNumTactics : 1); ++i) {
    if (!fits(kTactics[i], shape) || count == capacity) continue;
    times[i] = time_of(kTactics[i], shape, processors);
    numbers[count++] = i;
  }
  std::stable_sort(numbers, numbers + count, [&](int a, int b) { return times[a] < times[b]; });
  while (count > 1 && times[numbers[count - 1]] > kTooSlow * times[numbers[0]]) --count;
  return count;
}

}  // namespace cuda
}  // namespace dlfp4
