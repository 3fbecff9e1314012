// The AVX-512 codecs: between codes of at most 8 bits and wider floats, and between these; packing.
// Layout: runs of codes, packed or one a byte, and of floats; 64 elements a step.
// Trick: the steps lie in headers, which hold nothing with external linkage.
#include "avx512.h"

namespace dlfp4 {
namespace {

constexpr KernelRows kRows = make_rows<Avx512Codecs>();

}  // namespace

void add_avx512_codecs(CodecKernels *kernels) { kernels->add(kRows.row, kRows.size); }

}  // namespace dlfp4
