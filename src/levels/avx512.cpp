// The level avx512: AVX-512 with byte permutations (VBMI): codecs and block scaling. Its products are AVX2's.
#include "level.h"

namespace dlfp4 {

void add_avx512_codecs(CodecKernels *kernels);
void add_avx512_blocks(BlockKernels *kernels);

namespace {
bool runs() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi2");
}
}  // namespace

extern const Level level_avx512;
const Level level_avx512 = {"avx512", runs, add_avx512_codecs, add_avx512_blocks, nullptr};

}  // namespace dlfp4
