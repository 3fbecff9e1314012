// The AVX2 codecs: between codes of at most 8 bits and wider floats, and between these; packing.
// Layout: runs of codes, packed or one a byte, and of floats; 32 elements a step.
// Trick: the steps lie in headers, which hold nothing with external linkage.
#include "avx2.h"

namespace dlfp4 {
namespace {

constexpr KernelRows kRows = make_rows<Avx2Codecs>();

}  // namespace

void add_avx2_codecs(CodecKernels *kernels) { kernels->add(kRows.row, kRows.size); }

}  // namespace dlfp4
