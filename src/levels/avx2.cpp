// The level avx2: AVX2 with FMA and BMI2.
#include "level.h"

namespace dlfp4 {

void add_avx2_codecs(CodecKernels *kernels);
void add_avx2_blocks(BlockKernels *kernels);
void add_avx2_products(ProductKernels *kernels);

namespace {
// Its F16C instructions come with every AVX2; not every compiler can ask for them.
bool runs() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}
}  // namespace

extern const Level level_avx2;
const Level level_avx2 = {"avx2", runs, add_avx2_codecs, add_avx2_blocks, add_avx2_products};

}  // namespace dlfp4
