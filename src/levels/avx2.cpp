// The level avx2: AVX2 with FMA and BMI2.
#include "level.h"
#include "x86.h"

namespace dlfp4 {

void add_avx2_codecs(CodecKernels *kernels);
void add_avx2_blocks(BlockKernels *kernels);
void add_avx2_products(ProductKernels *kernels);

namespace {
// Its F16C instructions come with every AVX2; not every compiler can ask for them.
bool runs() { return x86::has_all(x86::kAvx2, x86::kFma, x86::kBmi2) && x86::saves(x86::kVectors); }
}  // namespace

extern const Level level_avx2;
const Level level_avx2 = {"avx2", runs, add_avx2_codecs, add_avx2_blocks, add_avx2_products};

}  // namespace dlfp4
