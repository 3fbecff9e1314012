// Which kernel multiplies: a table of tactics, and about how long each takes.
// The times are those of an H200 (docs/matmul.md), and only their order matters.
#include "tactics.h"

#include <algorithm>

#include "rules/matrix.h"

namespace dlfp4 {
namespace cuda {

#define DLFP4_SHARED_TACTICS(rows)                                                      \
  {#rows "x128", kShared, rows, 128, 1}, {#rows "x128/2", kShared, rows, 128, 2},       \
      {#rows "x128/3", kShared, rows, 128, 3}, {#rows "x128/4", kShared, rows, 128, 4}, \
      {#rows "x64", kShared, rows, 64, 1}, {#rows "x64/2", kShared, rows, 64, 2},       \
      {#rows "x64/4", kShared, rows, 64, 4}

#define DLFP4_BYTE_WALKS(rows, columns)                     \
  {"walk" #rows "x" #columns, kByteWalk, rows, columns, 1}, \
      {"walk2x" #rows "x" #columns, kByteWalkPairs, rows, columns, 1}

// The first one serves all GPUs, the others those of sm_90a; which kind of product, `serves` says.
const Tactic kTactics[] = {
    {"stream", kStream, 16, 0, 1}, DLFP4_SHARED_TACTICS(32),   DLFP4_SHARED_TACTICS(64),
    DLFP4_SHARED_TACTICS(128),     DLFP4_SHARED_TACTICS(256),  {"walk", kWalking, kWalkRows, 128, 1},
    DLFP4_SHARED_TACTICS(16),      DLFP4_BYTE_WALKS(64, 64),   DLFP4_BYTE_WALKS(64, 112),
    DLFP4_BYTE_WALKS(64, 128),     DLFP4_BYTE_WALKS(64, 192),  DLFP4_BYTE_WALKS(128, 64),
    DLFP4_BYTE_WALKS(128, 112),    DLFP4_BYTE_WALKS(128, 128), DLFP4_BYTE_WALKS(128, 144),
    DLFP4_BYTE_WALKS(256, 128),
};
#undef DLFP4_BYTE_WALKS
#undef DLFP4_SHARED_TACTICS
static_assert(sizeof(kTactics) / sizeof(kTactics[0]) == kNumTactics, "");

namespace {

int64_t count_steps(const ProductShape &shape) { return divide_up(shape.depth, stage_depth(shape.kind)); }

bool fits(const Tactic &tactic, const ProductShape &shape) {
  if (!serves(tactic, shape.kind)) return false;
  if (tactic.family == kByteWalkPairs) return shape.rows > tactic.rows;
  if (tactic.family != kShared) return true;
  const int64_t ways = int64_t{tactic.ranks} * shares_of_depth(tactic.columns);
  return ways <= count_steps(shape) && divide_up(shape.rows, tactic.rows) <= UINT16_MAX;
}

// --- Microseconds ------------------------------------------------------------------------------

constexpr double kSharing = 2.5;   // of the walk: two blocks of threads exchange sums
constexpr double kHalfTile = 1.1;  // of the walk: times what a tile of as many rows takes elsewhere

// By prepared weights, and of bytes.
struct Costs {
  double start;                   // launch, first loads, last stores
  double read_rate;               // bytes of weights that arrive in a microsecond
  double meeting;                 // in shared memory, of sums of blocks of threads or warpgroups that share K
  double of_sums;                 // of a row in half a tile, on their way through shared memory to y
  double exchange, of_exchanged;  // of clusters, a rank: at all, and for such a row
};
constexpr Costs kPrepared = {1.5, 4.4e6, 0.6, 0.0062, 0.57, 0},
                kBytesAsTheyLie = {1.2, 3.8e6, 0.44, 0.0101, 0.49, 0.0053};

const Costs &costs_of(int kind) { return is_prepared(kind) ? kPrepared : kBytesAsTheyLie; }

// How many rows' sums of half a tile there are.
int sums_of(const Tactic &tactic) { return tactic.rows * tactic.columns / kColumnsOfHalf; }

// A stage of K: copies, decoding and products for a tile. Where bytes have scales along K, sums are scaled after them.
double time_of_step(int kind, int sums, int columns) {
  constexpr double kWeightRate = 6.3e4;  // bytes that a multiprocessor gets in a microsecond
  if (is_prepared(kind))
    return columns == kColumnsOfHalf ? 0.06 + 0.00105 * sums : std::max(0.125 + 0.00088 * sums, 0.00122 * sums);
  const double scaling = columns == kColumnsOfHalf ? 0.1 : 0.21;
  return std::max(has_scales(kind) ? scaling + 0.0018 * sums : 0.0017 * sums,
                  weight_stage_bytes(kind, columns) / kWeightRate);
}

double time_of_sums(const Tactic &tactic, int kind) {
  const bool are_shared = tactic.ranks * shares_of_depth(tactic.columns) > 1;
  return (are_shared ? costs_of(kind).meeting : 0) + costs_of(kind).of_sums * sums_of(tactic);
}

double count_weights(const ProductShape &shape) {
  return static_cast<double>(shape.columns) * static_cast<double>(shape.depth);
}

// Of bytes: work, or the arrival of weights, which tiles of rows of x read one after another, most of them from the L2
// cache. What takes longer hides the other, but for a little.
double time_of_bytes(double work, const ProductShape &shape, int64_t reads) {
  constexpr double kReadAgain = 0.66, kNotHidden = 0.02;
  const double arrival =
      (1 + kReadAgain * static_cast<double>(reads - 1)) * count_weights(shape) / kBytesAsTheyLie.read_rate;
  return std::max(work, arrival) + kNotHidden * work;
}

// Blocks of threads that run at once: a cluster stays within a group of multiprocessors, and those of three and four
// leave some of a group out, of an H200's 132 more than 12 (how many differs between devices) and 12.
int64_t running_at_once(int ranks, int processors) {
  const int left_out = ranks == 3 ? processors / 8 : ranks == 4 ? processors / 11 : 0;
  return std::max((processors - left_out) / ranks, 1) * ranks;
}

// Of prepared weights.
double time_of_arrival(const ProductShape &shape) {
  return count_weights(shape) * weight_layout(shape.kind).bytes() / (kBlockRows * kBlockK) / kPrepared.read_rate;
}

// Weights arrive, or are decoded and multiplied, whichever takes longer: 4 bits wait for the latter.
double time_of_stream(const ProductShape &shape) {
  constexpr double kStart = 2.5;
  const double work = count_weights(shape) * (shape.rows <= 8 ? 0.14e-6 : 0.175e-6);
  return kStart + static_cast<double>(divide_up(shape.rows, kTile)) * std::max(time_of_arrival(shape), work);
}

double time_of_shared(const Tactic &tactic, const ProductShape &shape, int processors) {
  constexpr double kNextWave = 2.0;  // first loads of blocks that start late
  const Costs &costs = costs_of(shape.kind);
  const int64_t reads = divide_up(shape.rows, tactic.rows);  // of the same weights
  const int64_t blocks = divide_up(shape.columns, tactic.columns) * reads * tactic.ranks;
  const int64_t steps = divide_up(count_steps(shape), tactic.ranks),
                running = running_at_once(tactic.ranks, processors);
  const auto waves = static_cast<double>(divide_up(blocks, running * tiles_at_once(shape.kind, tactic.rows)));
  const double work = static_cast<double>(divide_up(blocks, running) * steps) *
                      time_of_step(shape.kind, sums_of(tactic), tactic.columns);
  const double exchange = tactic.ranks > 1 ? (costs.exchange + costs.of_exchanged * sums_of(tactic)) * tactic.ranks : 0;
  const double weights =
      is_prepared(shape.kind) ? std::max(work, time_of_arrival(shape)) : time_of_bytes(work, shape, reads);
  return costs.start + weights + waves * time_of_sums(tactic, shape.kind) + (waves - 1) * kNextWave + exchange;
}

// A stage of K where x is the first operand.
double time_of_byte_walk_step(const Tactic &tactic, const ProductShape &shape) {
  constexpr double kStageRate = 9.6e4;  // bytes that a multiprocessor gets in a microsecond
  constexpr double kBeside = 1.12;      // how much longer a step takes where clusters share rows of x, not weights
  const int sums = sums_of(tactic),
            lines = static_cast<int>(std::min<int64_t>(tactic.rows, shape.rows)) + tactic.columns;
  const double multiplied = !has_scales(shape.kind)          ? 0.066 + 0.00128 * sums
                            : has_scales_of_rows(shape.kind) ? 0.26 + 0.00184 * sums
                                                             : 0.15 + 0.00099 * sums;
  return std::max(multiplied, x_stage_bytes(lines) / kStageRate) * (tactic.family == kByteWalk ? kBeside : 1);
}

// Blocks of threads take one whole tile after the other.
WalkPlan plan_byte_walk(const ProductShape &shape, const Tactic &tactic, int most) {
  const int along = sharers_of(tactic), across = kWalkRanks / along;
  const auto count = [](int64_t extent, int tile, int sharers) {
    return static_cast<int>(divide_up(extent, tile * sharers) * sharers);
  };
  WalkOrder order = {count(shape.columns, tactic.columns, across),
                     count(shape.rows, tactic.rows, along),
                     0,
                     tactic.rows,
                     along,
                     false};
  order.alone = order.tiles();
  const double of_tile = static_cast<double>(count_steps(shape)) * time_of_byte_walk_step(tactic, shape) +
                         (0.76 + 0.00166 * sums_of(tactic));
  const double work = static_cast<double>(divide_up(order.tiles(), most)) * of_tile;
  return {std::min(order.tiles(), most), order,
          kBytesAsTheyLie.start + time_of_bytes(work, shape, order.x_tiles / along)};
}

double time_of(const Tactic &tactic, const ProductShape &shape, int processors) {
  if (tactic.family == kStream) return time_of_stream(shape);
  return walks(tactic) ? plan_walk(shape, tactic, processors).time : time_of_shared(tactic, shape, processors);
}

}  // namespace

int sharers_of(const Tactic &tactic) { return tactic.family == kByteWalkPairs ? kWalkRanks : 1; }

namespace {

// Where 128 rows of weights share a scale, a tile's columns lie within them. Scales of each row leave no registers for
// tiles other than 128 x 128 and 256 x 128. Without any along K there are those whose columns make the last round
// fuller.
bool serves_byte_walk(const Tactic &tactic, int kind) {
  const bool is_square = tactic.rows == 128 && tactic.columns == 128, is_within = kBlockRows % tactic.columns == 0;
  if (has_scales_of_rows(kind)) return is_square || tactic.rows > 128;
  return tactic.rows <= 128 && (is_square || is_within == has_scales(kind));
}

}  // namespace

// With scales along K, tiles of 16 rows took longer than those of 32, for as many rows.
bool serves(const Tactic &tactic, int kind) {
  if (tactic.family == kStream || tactic.family == kWalking) return is_prepared(kind);
  if (walks(tactic)) return !is_prepared(kind) && serves_byte_walk(tactic, kind);
  const int fewest = is_prepared(kind) || has_scales(kind) ? 32 : 16, most = is_prepared(kind) ? 256 : 128;
  return tactic.rows >= fewest && tactic.rows <= most;
}

// Blocks work alone on all tiles, or on as many as each block gets equally often, whichever ends sooner.
WalkPlan plan_walk(const ProductShape &shape, const Tactic &tactic, int processors) {
  const int rows = static_cast<int>(shape.rows), most = std::max(processors / kWalkRanks, 1) * kWalkRanks;
  if (is_byte_walk(tactic)) return plan_byte_walk(shape, tactic, most);
  const int64_t steps = count_steps(shape);
  const double ends = kPrepared.start + kPrepared.of_sums * sums_of(tactic);
  WalkOrder order = {
      static_cast<int>(divide_up(shape.columns, kBlockRows)), walk_x_tiles(rows), 0, kWalkRows, 1, false};
  order.has_rest = rows > order.x_tiles * kWalkRows;
  const auto time_of_rounds = [&](int64_t tiles, int64_t steps, int rows) {
    return static_cast<double>(divide_up(tiles, most) * steps) *
           time_of_step(shape.kind, rows * kConsumers, kBlockRows);
  };
  const auto plan = [&](int alone) {
    order.alone = alone;
    const int shared = order.tiles() - alone, busy = std::max({alone, order.rests(), shared * kWalkRanks});
    const double last = shared > 0 ? time_of_rounds(1, divide_up(steps, kWalkRanks), kWalkRows) + kSharing : 0;
    return WalkPlan{std::min(static_cast<int>(divide_up(busy, kWalkRanks)) * kWalkRanks, most), order,
                    ends + time_of_rounds(alone, steps, kWalkRows) +
                        kHalfTile * time_of_rounds(order.rests(), steps, kWalkRows / 2) + last};
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
