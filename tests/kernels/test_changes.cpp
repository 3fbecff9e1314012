// Checks what conversions change, at every level against the scalar one, bit for bit, and against plain sums.
// Layout: see block_support.h.
// Trick: see block_support.h.
#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wunused-function"  // not all of the support is for these
#endif

#include "block_support.h"
#include "rules/changes.h"

namespace dlfp4 {
namespace {

constexpr int64_t kMostElements = 200;
constexpr int64_t kBlocks[] = {16, 32, 64, 128, 256};

// Any float, mostly near the one given; NaN and infinities among them.
float some_float(float near) {
  if (random_below(4) == 0) return near;
  if (random_below(8) != 0) return near + near * static_cast<float>(random_below(64)) / 64;
  constexpr uint32_t kSpecial[] = {0, 0x80000000, kFloatInfinity, 0xFF800000, kFloatNan, 0x7FBFFFFF, 1, 0x7F7FFFFF};
  return random_below(2) ? float_of(kSpecial[random_below(8)]) : float_of(static_cast<uint32_t>(random_bits()));
}

struct Pair {
  float *before, *after;

  Pair(int64_t count, Place at) {
    before = reinterpret_cast<float *>(place(floats_memory, 4 * count, at));
    after = reinterpret_cast<float *>(place(factors_memory, 4 * count, at));
    for (int64_t i = 0; i < count; ++i) {
      before[i] = some_float(static_cast<float>(random_below(100)) - 50);
      after[i] = some_float(before[i]);
    }
  }
};

bool is_right(float before, float after, float change, float size) {
  const bool same = before == after || (isnan(before) && isnan(after));
  const float expected = same ? 0 : isfinite(before - after) ? fabsf(before - after) : INFINITY;
  return change == expected && size == (isfinite(before) ? fabsf(before) : 0);
}

void check_changes(int64_t count, Place at) {
  const Pair pair(count, at);
  float *const changes = reinterpret_cast<float *>(place(result_memory, 8 * count, at)), *const sizes = changes + count;
  snprintf(context, sizeof(context), "%ld elements", static_cast<long>(count));
  compare(
      "compare", {Output(result_memory, changes, 8 * count)},
      [](const BlockKernels &kernels) { return kernels.compare; },
      [&](auto kernel) {
        kernel(pair.before, pair.after, count, changes, sizes);
        bool good = true;
        for (int64_t i = 0; i < count; ++i) good &= is_right(pair.before[i], pair.after[i], changes[i], sizes[i]);
        check(good, "changes by their definition", context);
        return true;
      });
}

void check_squares(int64_t count, int64_t block, Place at) {
  const Pair pair(count, at);
  const int64_t blocks = (count + block - 1) / block;
  double *const sums = reinterpret_cast<double *>(place(result_memory, 8 * blocks, at));
  snprintf(context, sizeof(context), "%ld elements in blocks of %ld", static_cast<long>(count),
           static_cast<long>(block));
  compare(
      "add_squares", {Output(result_memory, sums, 8 * blocks)},
      [](const BlockKernels &kernels) { return kernels.add_squares; },
      [&](auto kernel) {
        for (int64_t i = 0; i < blocks; ++i) sums[i] = static_cast<double>(i % 3);
        kernel(pair.before, pair.after, count, block, sums);
        bool good = true;
        for (int64_t i = 0; i < blocks; ++i) {
          double sum = static_cast<double>(i % 3);
          for (int64_t k = i * block; k < count && k < (i + 1) * block; ++k)
            sum += square_of_error(pair.before[k], pair.after[k]);
          good &= sums[i] == sum || fabs(sums[i] - sum) <= 1e-12 * sum;
        }
        check(good, "squares by their definition", context);
        return true;
      });
}

void test_all() {
  for (int64_t count = 0; count <= kMostElements; ++count)
    for (Place at : {kAtEnd, kAtBegin}) {
      check_changes(count, at);
      for (int64_t block : kBlocks) check_squares(count, block, at);
    }
}

}  // namespace
}  // namespace dlfp4

int main() { return dlfp4::run_at_every_level(dlfp4::test_all); }
