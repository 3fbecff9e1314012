// The image of CUDA kernels that nvcc made, as bytes of this library.
// Layout: a fatbin, as the driver loads it.
// Trick: the assembler includes the file; a build without nvcc has none.
#include "kernels.h"
#include "launch.h"

#ifdef DLFP4_CUDA_FATBIN
__asm__(
    ".section .rodata\n"
    ".balign 16\n"
    "dlfp4_cuda_fatbin:\n"
    ".incbin \"" DLFP4_CUDA_FATBIN
    "\"\n"
    ".previous\n");
extern "C" __attribute__((visibility("hidden"))) const unsigned char dlfp4_cuda_fatbin[];
#else
#define DLFP4_CUDA_TARGETS ""
constexpr const unsigned char *dlfp4_cuda_fatbin = nullptr;
#endif

const void *dlfp4::cuda::built_image() { return dlfp4_cuda_fatbin; }

const char *dlfp4_cuda_image(void) { return DLFP4_CUDA_TARGETS; }
