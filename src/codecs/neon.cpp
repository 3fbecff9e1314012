// The NEON codecs: between codes of at most 8 bits and wider floats, and between these; packing.
// Layout: runs of codes, packed or one a byte, and of floats; 16 elements a step.
// Trick: the steps lie in headers, which hold nothing with external linkage.
#include "neon.h"

namespace dlfp4 {
namespace {

constexpr KernelRows kRows = make_rows<NeonCodecs>();

}  // namespace

void add_neon_codecs(CodecKernels *kernels) { kernels->add(kRows.row, kRows.size); }

}  // namespace dlfp4
