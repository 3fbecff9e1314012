// How a conversion goes by steps: along the dimension where most of them are vectors.
// Layout: a walk's dimensions, of which one is counted in steps and one is that of neighbouring threads.
// Trick: a side that has no vectors there is read or written by elements, in the order in which they lie in memory.
#include "steps.h"

#include <cstdlib>
#include <initializer_list>

#include "gpu/runs.h"

namespace dlfp4 {
namespace cuda {
namespace {

int64_t step_bytes(const End &end) { return kStep * spacing(end.operand) / 8; }

// Bytes to which the vectors of a step are aligned.
int64_t alignment_of(const End &end) { return least(step_bytes(end) & -step_bytes(end), int64_t{16}); }

// Whether the elements of a step along a dimension are neighbours in aligned memory, wherever the step is.
bool has_vectors(const Walk &walk, Side side, const End &end, int dim) {
  const int64_t alignment = alignment_of(end);
  if (walk.stride[side][dim] != 1 || !is_aligned(end.data, alignment)) return false;
  for (int other = 0; other < walk.ndim; ++other)
    if (other != dim && walk.stride[side][other] * spacing(end.operand) % (8 * alignment) != 0) return false;
  return true;
}

bool has_elements(const End &end) {
  const int bits = spacing(end.operand);
  return bits % 8 == 0 && is_aligned(end.data, bits / 8);
}

// The side by whose vectors a matrix is transposed: the source, for parts of sectors cost more to write than to read;
// unless the destination's vectors are smaller and still whole sectors.
Side transposing_side(const Ends &ends) {
  constexpr int64_t kSector = 32;
  const int64_t bytes = step_bytes(ends.dst);
  return bytes >= kSector && bytes < step_bytes(ends.src) ? kDst : kSrc;
}

// How good steps along a dimension are, the more the better: -1 where there are none.
int rank(const Walk &walk, const Ends &ends, int dim) {
  if (walk.extent[dim] < kStep) return -1;
  int rank = 0;
  for (Side side : {kSrc, kDst}) {
    const bool vectors = has_vectors(walk, side, ends[side], dim);
    if (!vectors && !has_elements(ends[side])) return -1;
    if (vectors) rank += side == transposing_side(ends) ? 3 : 2;
  }
  return rank;
}

// The dimension of neighbouring threads: that of the steps, unless a side without vectors has nearer elements in
// another. What is written comes first: a part of a sector costs more to write than to read.
int dim_of_threads(const Walk &walk, const Steps &steps, int dim) {
  int nearest = dim;
  for (Side side : {kDst, kSrc}) {
    if ((side == kSrc ? steps.from : steps.to).together) continue;
    for (int other = 0; other < walk.ndim; ++other)
      if (std::abs(walk.stride[side][other]) < std::abs(walk.stride[side][nearest])) nearest = other;
    if (nearest != dim) break;
  }
  return nearest;
}

void append(const Walk &walk, const Ends &ends, int dim, int64_t elements, Steps *steps) {
  const int64_t extent = walk.extent[dim] / elements;
  if (extent == 1) return;
  steps->dims[steps->ndim++] = {extent, walk.stride[kSrc][dim] * elements * spacing(ends.src.operand) / 8,
                                walk.stride[kDst][dim] * elements * spacing(ends.dst.operand) / 8};
  steps->count *= extent;
}

}  // namespace

bool plan_steps(const Walk &walk, const Ends &ends, StepPlan *plan) {
  int highest = -1;
  for (int dim = walk.ndim - 1; dim >= 0; --dim) {
    const int found = rank(walk, ends, dim);
    if (found <= highest) continue;
    highest = found;
    plan->dim = dim;
  }
  if (highest < 0) return false;
  const int dim = plan->dim;
  Steps &steps = plan->steps;
  steps = {ends.src.data, ends.dst.data, 1, {}, {}, 0, {}};
  for (Side side : {kSrc, kDst}) {
    StepsOfSide &of_side = side == kSrc ? steps.from : steps.to;
    of_side.together = has_vectors(walk, side, ends[side], dim);
    of_side.of_element = walk.stride[side][dim] * spacing(ends[side].operand) / 8;
  }
  const int last = dim_of_threads(walk, steps, dim);
  for (int other = 0; other < walk.ndim; ++other)
    if (other != last) append(walk, ends, other, other == dim ? kStep : 1, &steps);
  append(walk, ends, last, last == dim ? kStep : 1, &steps);
  if (steps.ndim == 0) steps.ndim = 1;
  plan->layout = is_run(walk) && steps.from.together && steps.to.together ? kRun : kStrided;
  return true;
}

}  // namespace cuda
}  // namespace dlfp4
