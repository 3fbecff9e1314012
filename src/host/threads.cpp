// Splits a range of elements over OpenMP's threads.
// Layout: [0, count), an equal share a thread, cut at multiples of kThreadAlign elements, or of tiles. Threads that are
// done go on with what is left of the others' shares.
// Trick: a forked child works alone, for OpenMP's threads did not follow it.
#include "threads.h"

#include "dlfp4/dlfp4.h"
#include "rules/matrix.h"

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

// A range, and how it is cut: at multiples of `align`, each thread's share in so many portions.
struct Split {
  int64_t count, align, portions;
  const void *context;
};

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

// Pieces that nobody has taken yet, of a part of the range.
struct alignas(64) Share {
  int64_t next, last;
};

constexpr int kMostShares = 128;

// Takes `portion` pieces at a time: of one share first, then of what slower threads have left.
void run_portions(Share *shares, int count, int own, int64_t portion, RangeBody body, const Split &split) {
  for (int i = 0; i < count; ++i) {
    Share &share = shares[(own + i) % count];
    for (;;) {
      const int64_t piece = __atomic_fetch_add(&share.next, portion, __ATOMIC_RELAXED);
      if (piece >= share.last) break;
      const int64_t last = least(piece + portion, share.last) * split.align;
      run_body(body, split.context, piece * split.align, least(last, split.count));
    }
  }
}

// The team always has all threads: libgomp ends those for which a smaller team has no place, and starts new ones for
// the next larger team, which takes 16 of them half a millisecond.
void run_shares(const Split &split, int threads, RangeBody body) {
  Share shares[kMostShares];
  const int count = threads < kMostShares ? threads : kMostShares;
  const int64_t pieces = divide_up(split.count, split.align);
  for (int64_t i = 0; i < count; ++i) shares[i] = {i * pieces / count, (i + 1) * pieces / count};
  const int64_t portion = divide_up(pieces, threads * split.portions);
#pragma omp parallel num_threads(usable_threads())
  {
    const int number = omp_get_thread_num();
    if (number < threads) run_portions(shares, count, number % count, portion, body, split);
  }
}
#else
int usable_threads() { return 1; }

void run_shares(const Split &split, int, RangeBody body) { run_body(body, split.context, 0, split.count); }
#endif

void run_split(const Split &split, int64_t grain, RangeBody body) {
  const int64_t count = split.count;
  if (count - grain < grain) return run_body(body, split.context, 0, count);  // a division would cost short ranges dear
  const int threads = static_cast<int>(least(int64_t{usable_threads()}, count / grain));
  if (threads < 2) return run_body(body, split.context, 0, count);
  run_shares(split, threads, body);
}

}  // namespace

void parallel_for(int64_t count, int64_t grain, RangeBody body, const void *context) {
  run_split({count, kThreadAlign, 1, context}, grain, body);
}

void parallel_for_tiles(int64_t count, int64_t grain, RangeBody body, const void *context) {
  constexpr int64_t kPortions = 8;  // what threads take over from slower ones is an eighth of a share
  run_split({count, 1, kPortions, context}, grain, body);
}

}  // namespace dlfp4

extern "C" {

void dlfp4_set_num_threads(int threads) {
  __atomic_store_n(&dlfp4::chosen_threads, threads < 0 ? 0 : threads, __ATOMIC_RELAXED);
}

int dlfp4_get_num_threads(void) { return dlfp4::usable_threads(); }
}
