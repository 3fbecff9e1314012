// Splits a range of elements over OpenMP's threads.
// Layout: [0, count), an equal share a thread, cut at multiples of kThreadAlign elements.
// Trick: a child forked after threaded work works alone, for OpenMP's threads did not follow it.
#include "threads.h"

#include "dlfp4/dlfp4.h"

#ifdef _OPENMP
#include <omp.h>
#include <pthread.h>
#endif

namespace dlfp4 {
namespace {

int chosen_threads = 0;  // by dlfp4_set_num_threads; 0: OpenMP's own number

#ifdef _OPENMP
bool works_alone = false;
pthread_once_t fork_once = PTHREAD_ONCE_INIT;

void become_a_forked_child() { works_alone = true; }

void watch_forks() { pthread_atfork(nullptr, nullptr, become_a_forked_child); }

int usable_threads() {
  if (works_alone) return 1;
  const int chosen = __atomic_load_n(&chosen_threads, __ATOMIC_RELAXED);
  return chosen > 0 ? chosen : omp_get_max_threads();
}

void run_shares(int64_t count, int threads, RangeBody body, const void *context) {
  pthread_once(&fork_once, watch_forks);
#pragma omp parallel num_threads(threads)
  {
    const int64_t team = omp_get_num_threads();
    const int64_t pieces = (count + kThreadAlign - 1) / kThreadAlign;
    const int64_t share = (pieces + team - 1) / team * kThreadAlign;
    const int64_t first = omp_get_thread_num() * share;
    const int64_t last = first + share < count ? first + share : count;
    if (first < last) body(context, first, last);
  }
}
#else
int usable_threads() { return 1; }

void run_shares(int64_t count, int, RangeBody body, const void *context) { body(context, 0, count); }
#endif

}  // namespace

void parallel_for(int64_t count, int64_t grain, RangeBody body, const void *context) {
  const int64_t worthwhile = count / grain;
  if (worthwhile < 2) return body(context, 0, count);
  const int64_t usable = usable_threads();
  const int threads = static_cast<int>(usable < worthwhile ? usable : worthwhile);
  if (threads < 2) return body(context, 0, count);
  run_shares(count, threads, body, context);
}

}  // namespace dlfp4

extern "C" {

void dlfp4_set_num_threads(int threads) {
  __atomic_store_n(&dlfp4::chosen_threads, threads < 0 ? 0 : threads, __ATOMIC_RELAXED);
}

int dlfp4_get_num_threads(void) { return dlfp4::usable_threads(); }
}
