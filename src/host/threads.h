// Splits a range of elements over threads.
// Layout: [0, count), cut at multiples of kThreadAlign elements, or of tiles.
// Trick: the cut keeps packed bytes and random blocks whole, so that results do not depend on it; neither do they on
// what the caller has set the processor to, such as flushing subnormals.
#ifndef DLFP4_SRC_HOST_THREADS_H_
#define DLFP4_SRC_HOST_THREADS_H_

#include <stdint.h>

namespace dlfp4 {

constexpr int64_t kThreadAlign = 256;

using RangeBody = void (*)(const void *context, int64_t first, int64_t last);

// Calls body on disjoint ranges that make up [0, count); `grain` is the least worth a thread.
void parallel_for(int64_t count, int64_t grain, RangeBody body, const void *context);

// The same for `count` tiles, cut anywhere between them.
void parallel_for_tiles(int64_t count, int64_t grain, RangeBody body, const void *context);

// Raises a number that other threads raise as well.
template <class Number>
void raise(Number *place, Number value) {
  Number known = __atomic_load_n(place, __ATOMIC_RELAXED);
  while (known < value &&
         !__atomic_compare_exchange_n(place, &known, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

// Calls body() once, here, in the environment of floats that ranges get.
template <class Body>
void compute(const Body &body) {
  parallel_for_tiles(
      1, 1, [](const void *context, int64_t, int64_t) { (*static_cast<const Body *>(context))(); }, &body);
}

}  // namespace dlfp4

#endif  // DLFP4_SRC_HOST_THREADS_H_
