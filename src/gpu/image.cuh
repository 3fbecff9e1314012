// An image of CUDA kernels: every row of a list as a kernel of its name.
// Layout: one struct of parameters a kernel.
// Trick: nvcc makes a fatbin of a file that includes this and a list, and NVRTC the same at run time where the fatbin
// does not fit.
#ifndef DLFP4_SRC_GPU_IMAGE_CUH_
#define DLFP4_SRC_GPU_IMAGE_CUH_

#include "async.cuh"
#include "params.h"

using namespace dlfp4;
using namespace dlfp4::cuda;

// All kernels wait for the one before them themselves: launches overlap.
#define DLFP4_CUDA_WAITING(name, parameters, body, ...)                                                  \
  extern "C" __global__ void __launch_bounds__(__VA_ARGS__) name(const __grid_constant__ parameters p) { \
    let_next_kernel_start();                                                                             \
    wait_for_kernel_before();                                                                            \
    body;                                                                                                \
  }
#define DLFP4_CUDA_KERNEL(name, key, parameters, body) DLFP4_CUDA_WAITING(name, parameters, body, kThreads)
#define DLFP4_CUDA_LEAN(name, key, parameters, body) DLFP4_CUDA_WAITING(name, parameters, body, kThreads, 4)
#define DLFP4_CUDA_PRODUCT(name, key, parameters, threads, at_once, body) \
  extern "C" __global__ void __launch_bounds__(threads, at_once) name(const __grid_constant__ parameters p) { body; }

#include "kernel_rows.h"

#endif  // DLFP4_SRC_GPU_IMAGE_CUH_
