// Splits a range of elements over OpenMP's threads.
// Layout: [0, count), an equal share a thread, cut at multiples of kThreadAlign elements, or of tiles.
// Trick: a forked child works alone, for OpenMP's threads did not follow it.
#include "threads.h"

#include "dlfp4/dlfp4.h"

#ifdef _OPENMP
#include <omp.h>
#ifndef _WIN32  // where there are no forks
#include <pthread.h>
#endif
#endif
#ifdef __SSE__
#include <xmmintrin.h>
#endif

namespace dlfp4 {
namespace {

// As long as it lives, floats are rounded to nearest even and subnormals are numbers: some programs have the processor
// take them for zeros (torch.set_flush_denormal).
class FloatEnvironment {
 public:
  FloatEnvironment() : control_(read()) {
    if (control_ != kDefault) write(kDefault);
  }
  FloatEnvironment(const FloatEnvironment &) = delete;
  ~FloatEnvironment() {
    if (control_ != kDefault) write(control_);
  }

 private:
#if defined(__SSE__)
  using Control = unsigned;
  static constexpr Control kDefault = 0x1F80;              // all exceptions masked
  static Control read() { return _mm_getcsr() & ~0x3Fu; }  // without the flags of past exceptions
  static void write(Control control) { _mm_setcsr(control); }
#elif defined(__aarch64__)
  using Control = uint64_t;
  static constexpr Control kDefault = 0;
  static Control read() {
    Control control;
    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
    return control;
  }
  static void write(Control control) { __asm__ volatile("msr fpcr, %0" : : "r"(control)); }
#else
  using Control = int;
  static constexpr Control kDefault = 0;
  static Control read() { return kDefault; }
  static void write(Control) {}
#endif
  const Control control_;
};

void run_body(RangeBody body, const void *context, int64_t first, int64_t last) {
  const FloatEnvironment environment;
  body(context, first, last);
}

int chosen_threads = 0;  // by dlfp4_set_num_threads; 0: OpenMP's own number

#ifdef _OPENMP
bool works_alone = false;

#ifndef _WIN32
// As soon as the library is loaded: before its first call others may have had OpenMP's threads, and have forked.
__attribute__((constructor)) void watch_forks() {
  pthread_atfork(nullptr, nullptr, [] { works_alone = true; });
}
#endif

int usable_threads() {
  if (works_alone) return 1;
  const int chosen = __atomic_load_n(&chosen_threads, __ATOMIC_RELAXED);
  if (chosen > 0) return chosen;
  const int most = omp_get_max_threads();  // below 0 where OMP_NUM_THREADS is more than an int holds
  return most > 1 ? most : 1;
}

void run_shares(int64_t count, int64_t align, int threads, RangeBody body, const void *context) {
#pragma omp parallel num_threads(threads)
  {
    const int64_t team = omp_get_num_threads();
    const int64_t pieces = (count + align - 1) / align;
    const int64_t share = (pieces + team - 1) / team * align;
    const int64_t first = omp_get_thread_num() * share;
    const int64_t last = first + share < count ? first + share : count;
    if (first < last) run_body(body, context, first, last);
  }
}
#else
int usable_threads() { return 1; }

void run_shares(int64_t count, int64_t, int, RangeBody body, const void *context) { run_body(body, context, 0, count); }
#endif

void split(int64_t count, int64_t grain, int64_t align, RangeBody body, const void *context) {
  if (count - grain < grain) return run_body(body, context, 0, count);  // a division would cost short ranges dear
  const int64_t worthwhile = count / grain, usable = usable_threads();
  const int threads = static_cast<int>(usable < worthwhile ? usable : worthwhile);
  if (threads < 2) return run_body(body, context, 0, count);
  run_shares(count, align, threads, body, context);
}

}  // namespace

void parallel_for(int64_t count, int64_t grain, RangeBody body, const void *context) {
  split(count, grain, kThreadAlign, body, context);
}

void parallel_for_tiles(int64_t count, int64_t grain, RangeBody body, const void *context) {
  split(count, grain, 1, body, context);
}

}  // namespace dlfp4

extern "C" {

void dlfp4_set_num_threads(int threads) {
  __atomic_store_n(&dlfp4::chosen_threads, threads < 0 ? 0 : threads, __ATOMIC_RELAXED);
}

int dlfp4_get_num_threads(void) { return dlfp4::usable_threads(); }
}
