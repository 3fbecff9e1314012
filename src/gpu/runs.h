// What the operations on CUDA memory share: launching by threads, refusals, the fast encoder's constants.
// Trick: the fast kernels take whole steps on aligned memory; all else goes to one that takes anything.
#ifndef DLFP4_SRC_GPU_RUNS_H_
#define DLFP4_SRC_GPU_RUNS_H_

#include <stdint.h>

#include "kernels.h"
#include "launch.h"
#include "params.h"
#include "rules/encode_rule.h"
#include "rules/matrix.h"
#include "rules/operations.h"

namespace dlfp4 {
namespace cuda {
namespace {

template <class Params>
int run(const DeviceKernel &kernel, int64_t threads, Params params, uintptr_t stream) {
  return threads > 0 ? launch(kernel, divide_up(threads, kThreads), &params, stream) : 0;
}

// Kernels that walk have no more blocks than run at a time.
template <class Params>
int run_walk(const DeviceKernel &kernel, int64_t threads, Params params, uintptr_t stream) {
  return threads > 0 ? launch(kernel, least(divide_up(threads, kThreads), blocks_for_device()), &params, stream) : 0;
}

// How many steps of a run a thread takes: two where there are enough of them for all multiprocessors.
inline int steps_of_thread(int64_t steps) { return steps >= 2 * kThreads * blocks_for_device() ? 2 : 1; }

// Launches a kernel whose threads take some steps each. Blocks are smaller if larger ones would leave multiprocessors
// idle.
template <class Params>
int run_steps(const DeviceKernel &kernel, int64_t steps, Params params, int of_thread, uintptr_t stream) {
  const int64_t threads = divide_up(steps, of_thread);
  const int in_block = threads < int64_t{kThreads} * multiprocessors() ? kThreads / 4 : kThreads;
  return threads > 0 ? launch_shape(kernel, {{divide_up(threads, in_block), 1}, in_block, 0, 1}, &params, stream) : 0;
}

inline bool is_aligned(const void *data, int64_t bytes) { return reinterpret_cast<uintptr_t>(data) % bytes == 0; }

inline EncodeParams encode_params(int row, Round round) {
  const ElementType format = kTypes[row];
  const EncodeRule rule = make_encode_rule(format, round);
  EncodeParams params = {};
  params.limit = rule.limit;
  params.lowest = rule.lowest;
  params.magic = rule.magic;
  params.shift = rule.shift;
  params.sign = 1u << (format.bits - 1);
  params.nan = rule.nan.base;
  params.flip = rule.nan.flip;
  params.drops_sign_of_zero = format.specials == DLFP4_FNUZ;
  return params;
}

}  // namespace
}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_GPU_RUNS_H_
