// The level avx512: AVX-512 with byte permutations (VBMI): codecs and block scaling. Its products are AVX2's.
#include "level.h"
#include "x86.h"

namespace dlfp4 {

extern const Level level_avx2;
void add_avx512_codecs(CodecKernels *kernels);
void add_avx512_blocks(BlockKernels *kernels);

namespace {
bool runs() {
  using namespace x86;
  return level_avx2.runs() && has_all(kAvx512f, kAvx512bw, kAvx512vl, kAvx512dq, kAvx512vbmi) &&
         saves(kMasksAndWideVectors);
}
}  // namespace

extern const Level level_avx512;
const Level level_avx512 = {"avx512", runs, add_avx512_codecs, add_avx512_blocks, nullptr};

}  // namespace dlfp4
