// The level avx512_bf16: products of the AVX-512 level on processors that have BF16 and VNNI too.
#include "level.h"

namespace dlfp4 {

void add_avx512_bf16_products(ProductKernels *kernels);

namespace {
bool runs() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni") &&
         __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi2");
}
}  // namespace

extern const Level level_avx512_bf16;
const Level level_avx512_bf16 = {"avx512_bf16", runs, nullptr, nullptr, add_avx512_bf16_products};

}  // namespace dlfp4
