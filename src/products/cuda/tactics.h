// The ways to multiply by prepared weights.
#ifndef DLFP4_SRC_PRODUCTS_CUDA_TACTICS_H_
#define DLFP4_SRC_PRODUCTS_CUDA_TACTICS_H_

#include "many_rows.h"

namespace dlfp4 {
namespace cuda {

enum KernelFamily { kStream, kShared, kPaired, kWalking };

// Tiles of `rows` of x by 64 * `halves` columns of y, with K shared out to `ranks` blocks of threads. Pairs of such
// tiles have the same weights.
struct Tactic {
  const char *name;
  KernelFamily family;
  int rows, halves, ranks;
};

constexpr int kNumTactics = 39;
extern const Tactic kTactics[kNumTactics];

// Whether blocks of threads walk over tiles of so many rows.
inline bool walks(const Tactic &tactic, int rows) { return tactic.family == kWalking && tactic.rows == rows; }

// How many tiles that are next to each other read the same weights together.
int sharers_of(const Tactic &tactic);

// Whether there are kernels of a tactic for a kind of product, a WeightKind or ByteKind.
bool serves(const Tactic &tactic, int kind);

struct ProductShape {
  int kind;  // a WeightKind or ByteKind
  int64_t rows, columns, depth;
};

// The numbers of those that fit a shape and may be the fastest, the best guess first; how many.
int find_tactics(const ProductShape &shape, int processors, bool has_hopper_kernels, int *numbers, int capacity);

// The blocks of threads that walk, in which order, and the microseconds of all that.
struct WalkPlan {
  int blocks;
  WalkOrder order;
  double time;
};
WalkPlan plan_walk(const ProductShape &shape, int tile_rows, int processors);

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_CUDA_TACTICS_H_
