// The kernels of what a conversion changes, for every level: its compiler makes vectors of them.
// Layout: a row of floats in blocks of whole sixteens, or in one.
// Trick: sixteen lanes that know nothing of one another until the block ends.
#ifndef DLFP4_SRC_BLOCKS_CHANGES_H_
#define DLFP4_SRC_BLOCKS_CHANGES_H_

#include <string.h>

#include "kernels.h"
#include "rules/changes.h"

namespace dlfp4 {
namespace {

void compare(const float *before, const float *after, int64_t count, float *changes, float *sizes) {
  for (int64_t i = 0; i < count; ++i) {
    changes[i] = float_of(change_of(before[i], after[i]));
    sizes[i] = float_of(finite_magnitude(before[i]));
  }
}

// Of sixteen elements: square_of_error, four at a time, which every compiler has some instructions for.
struct Squares {
  using Floats = float __attribute__((vector_size(16)));
  using Doubles = double __attribute__((vector_size(32)));
  static constexpr int kFours = kSums / 4;
  Doubles sums[kFours] = {};

  void add(const float *exact, const float *decoded) {
    for (int i = 0; i < kFours; ++i) {
      Floats before, after;
      memcpy(&before, exact + 4 * i, sizeof(before));
      memcpy(&after, decoded + 4 * i, sizeof(after));
      const Doubles error = __builtin_convertvector(before - after, Doubles), square = error * error;
      sums[i] += square == square ? square : Doubles{};
    }
  }

  void add_some(const float *exact, const float *decoded, int64_t count) {
    float before[kSums] = {}, after[kSums] = {};
    memcpy(before, exact, static_cast<size_t>(count) * sizeof(float));
    memcpy(after, decoded, static_cast<size_t>(count) * sizeof(float));
    add(before, after);
  }

  double total() const {
    const Doubles four = (sums[0] + sums[2]) + (sums[1] + sums[3]);
    return (four[0] + four[2]) + (four[1] + four[3]);
  }
};

void add_squares(const float *exact, const float *decoded, int64_t count, int64_t block, double *sums) {
  for (int64_t first = 0; first < count; first += block, ++sums) {
    const int64_t last = first + block < count ? first + block : count, whole = last - (last - first) % kSums;
    Squares squares;
    for (int64_t i = first; i < whole; i += kSums) squares.add(exact + i, decoded + i);
    if (whole < last) squares.add_some(exact + whole, decoded + whole, last - whole);
    *sums += squares.total();
  }
}

void add_changes(BlockKernels *kernels) {
  kernels->compare = compare;
  kernels->add_squares = add_squares;
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_BLOCKS_CHANGES_H_
