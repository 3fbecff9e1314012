// The level avx512_bf16: products of the AVX-512 level on processors that have BF16 and VNNI too.
#include "level.h"
#include "x86.h"

namespace dlfp4 {

extern const Level level_avx512;
void add_avx512_bf16_products(ProductKernels *kernels);

namespace {
bool runs() { return level_avx512.runs() && x86::has_all(x86::kAvx512vnni, x86::kAvx512bf16); }
}  // namespace

extern const Level level_avx512_bf16;
const Level level_avx512_bf16 = {"avx512_bf16", runs, nullptr, nullptr, add_avx512_bf16_products};

}  // namespace dlfp4
