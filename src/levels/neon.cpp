// The level neon: NEON, which every 64-bit Arm processor has.
#include "level.h"

namespace dlfp4 {

void add_neon_codecs(CodecKernels *kernels);
void add_neon_blocks(BlockKernels *kernels);
void add_neon_products(ProductKernels *kernels);

namespace {
bool runs() { return true; }
}  // namespace

extern const Level level_neon;
const Level level_neon = {"neon", runs, add_neon_codecs, add_neon_blocks, add_neon_products};

}  // namespace dlfp4
