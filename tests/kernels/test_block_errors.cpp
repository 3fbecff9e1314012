// Checks the errors by which four over six chooses, at every level against the scalar one, bit for bit.
// Layout: see block_support.h.
// Trick: see block_support.h.
#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wunused-function"  // not all of the support is for these
#endif

#include "block_support.h"

namespace dlfp4 {
namespace {

// A float from 2^-30 to 2 times the unit, of any sign.
float some_value(float unit) {
  const uint32_t bits = static_cast<uint32_t>(random_bits());
  return float_of((bits & 0x807FFFFF) | static_cast<uint32_t>(97 + random_below(31)) << 23) * unit;
}

// Finite numbers of a source's type.
uint8_t *fill_values(int source, int64_t count, float unit, Place at) {
  uint8_t *const data = place(floats_memory, count * bytes_of(source), at);
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t code = convert(kTypes[DLFP4_float32], kTypes[kSourceRows[source]], bits_of(some_value(unit)),
                                  {DLFP4_NEAREST_EVEN, true}, {0, 0, 0});
    memcpy(data + i * bytes_of(source), &code, static_cast<size_t>(bytes_of(source)));
  }
  return data;
}

ScaleRule some_rule(float amax) {
  ScaleRule rule = {};
  rule.reach = random_below(2) ? 1536.0f : 2688.0f;
  rule.amax = amax;
  rule.chooses = random_below(2) ? DLFP4_MEAN_SQUARED : DLFP4_MEAN_ABSOLUTE;
  return rule;
}

// Multipliers and scales of both candidates, and the errors, one after another behind a page or before one.
struct Numbers {
  float *multipliers[2], *scales[2], *errors[2];

  Numbers(int64_t count, float amax, Place at) {
    float *next = reinterpret_cast<float *>(place(factors_memory, 16 * count, at));
    float *out = reinterpret_cast<float *>(place(result_memory, 8 * count, at));
    for (int c = 0; c < 2; ++c) {
      multipliers[c] = next, scales[c] = next + count, next += 2 * count;
      errors[c] = out, out += count;
      for (int64_t i = 0; i < count; ++i) {
        scales[c][i] = decode_scale(kTypes[DLFP4_float8_e4m3fn], static_cast<uint32_t>(random_below(127)));
        multipliers[c][i] = 448.0f / amax / (scales[c][i] + 0.0625f);
      }
    }
  }
};

// `run` calls a kernel.
template <class KernelOf, class Run>
void check_errors(const char *name, int source, int64_t count, int64_t elements, float amax, Place at,
                  KernelOf kernel_of, Run run) {
  const ScaleRule rule = some_rule(amax);
  const Numbers numbers(count, amax, at);
  const uint8_t *const src = fill_values(source, elements, amax / 2, at);
  const ErrorParams both = {
      &rule, {numbers.multipliers[0], numbers.multipliers[1]}, {numbers.scales[0], numbers.scales[1]}};
  snprintf(context, sizeof(context), "%s, %ld, largest %g, reach %g, kind %d", name_of_source(source),
           static_cast<long>(count), static_cast<double>(amax), static_cast<double>(rule.reach), rule.chooses);
  compare(name, {Output(result_memory, numbers.errors[0], 8 * count)}, kernel_of, [&](auto kernel) {
    for (int64_t i = 0; i < 2 * count; ++i) numbers.errors[0][i] = static_cast<float>(i % 7);
    run(kernel, src, both, numbers.errors[0], numbers.errors[1]);
    return true;
  });
}

void test_all() {
  for (int source = 0; source < kNumSources; ++source)
    for (float amax : {1.0f, 3.7f, 6e-5f, 5e4f, 1e-24f, 1e-37f, 3e35f}) {
      const bool is_half = kSourceRows[source] == DLFP4_float16;
      if (is_half && (amax < 1e-6f || amax > 6e4f)) continue;
      for (int64_t count = 0; count <= 80; ++count)
        for (Place at : {kAtEnd, kAtBegin}) {
          check_errors(
              "sum_errors", source, count, count * kErrorBlock, amax, at,
              [=](const BlockKernels &kernels) { return kernels.sum_errors[DLFP4_NEAREST_EVEN][source]; },
              [=](auto kernel, auto src, auto &both, float *sixes, float *fours) {
                kernel(src, count, both, sixes, fours);
              });
          const int64_t rows = 1 + random_below(kErrorBlock), pitch = count + random_below(3);
          check_errors(
              "add_errors", source, count, (rows - 1) * pitch + count, amax, at,
              [=](const BlockKernels &kernels) { return kernels.add_errors[DLFP4_NEAREST_EVEN][source]; },
              [=](auto kernel, auto src, auto &both, float *sixes, float *fours) {
                kernel(src, pitch * bytes_of(source), rows, count, both, sixes, fours);
              });
        }
    }
}

}  // namespace
}  // namespace dlfp4

int main() { return dlfp4::run_at_every_level(dlfp4::test_all); }
