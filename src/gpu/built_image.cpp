// The images of CUDA kernels that nvcc made, as bytes of this library.
// Layout: fatbins, as the driver loads them.
// Trick: the assembler includes the files; a build without nvcc has none.
#include "kernels.h"
#include "launch.h"

#ifdef DLFP4_CUDA_IMAGES
#define DLFP4_CUDA_IMAGE(name)                 \
  __asm__(                                     \
      ".section .rodata\n"                     \
      ".balign 16\n"                           \
      "dlfp4_cuda_" #name                      \
      ":\n"                                    \
      ".incbin \"" DLFP4_CUDA_IMAGES "/" #name \
      ".fatbin\"\n"                            \
      ".previous\n");                          \
  extern "C" __attribute__((visibility("hidden"))) const unsigned char dlfp4_cuda_##name[];
#include "images.def"
#undef DLFP4_CUDA_IMAGE

const void *dlfp4::cuda::built_image(Image image) {
  static const unsigned char *const images[kNumImages] = {
#define DLFP4_CUDA_IMAGE(name) dlfp4_cuda_##name,
#include "images.def"
#undef DLFP4_CUDA_IMAGE
  };
  return images[image];
}
#else
#define DLFP4_CUDA_TARGETS ""
const void *dlfp4::cuda::built_image(Image) { return nullptr; }
#endif

const char *dlfp4_cuda_image(void) { return DLFP4_CUDA_TARGETS; }
