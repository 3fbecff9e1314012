// The CUDA image: every row of kernels.def as a kernel of its name.
// Layout: one struct of params.h a kernel.
// Trick: none; nvcc makes a fatbin of this file, and NVRTC the same at run time where the fatbin does not fit.
#include "blocks.cuh"
#include "convert.cuh"
#include "dots.cuh"
#include "few_rows.cuh"
#include "many_rows.cuh"
#include "prepare.cuh"
#include "tiles.cuh"

using namespace dlfp4;
using namespace dlfp4::cuda;

#define DLFP4_CUDA_KERNEL(name, parameters, body) \
  extern "C" __global__ void __launch_bounds__(kThreads) name(const __grid_constant__ parameters p) { body; }
#define DLFP4_CUDA_PRODUCT(name, parameters, threads, body) \
  extern "C" __global__ void __launch_bounds__(threads, 1) name(const __grid_constant__ parameters p) { body; }
#include "kernels.def"
