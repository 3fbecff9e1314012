// dlfp4_cuda_multiply_grouped: rows that are divided among experts, on CUDA memory.
// Layout: see dlfp4_cuda_grouped_product.
// Trick: none yet, for there are no kernels. Callers ask dlfp4_cuda_has_grouped first, and say so.
#include "gpu/runs.h"

extern "C" {

int dlfp4_cuda_has_grouped(int) { return 0; }

int dlfp4_cuda_multiply_grouped(int, uintptr_t, const dlfp4_cuda_grouped_product *) {
  return dlfp4::cuda::refuse(DLFP4_E_OPTION);
}
}
