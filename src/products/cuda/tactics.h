// The ways to multiply by prepared weights.
#ifndef DLFP4_SRC_PRODUCTS_CUDA_TACTICS_H_
#define DLFP4_SRC_PRODUCTS_CUDA_TACTICS_H_

#include "many_rows.h"

namespace dlfp4 {
namespace cuda {

enum KernelFamily { kStream, kShared, kWalking, kByteWalk, kByteWalkPairs };  // those that walk come last

// Tiles of `rows` of x by `columns` of y, with K shared out to `ranks` blocks of threads. Of FP8 by FP8 a cluster walks
// over two such tiles at a time: with the same rows of x, or (pairs) the same weights.
struct Tactic {
  const char *name;
  KernelFamily family;
  int rows, columns, ranks;
};

constexpr int kNumTactics = 55;
extern const Tactic kTactics[kNumTactics];

// Whether blocks of threads walk over tiles.
inline bool walks(const Tactic &tactic) { return tactic.family >= kWalking; }
inline bool is_byte_walk(const Tactic &tactic) { return tactic.family >= kByteWalk; }

// How many tiles that follow one another along the rows of x read the same weights together.
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
WalkPlan plan_walk(const ProductShape &shape, const Tactic &tactic, int processors);

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_CUDA_TACTICS_H_
