// The scalar level: plain C++, the rules themselves, complete, so that all other levels may leave out what they like.
#include "level.h"

namespace dlfp4 {

void add_scalar_codecs(CodecKernels *kernels);
void add_scalar_blocks(BlockKernels *kernels);
void add_scalar_products(ProductKernels *kernels);

namespace {
bool runs() { return true; }
}  // namespace

extern const Level level_scalar;
const Level level_scalar = {"scalar", runs, add_scalar_codecs, add_scalar_blocks, add_scalar_products};

}  // namespace dlfp4
