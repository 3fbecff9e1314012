// Loads the image once, finds its kernels, launches them.
// Layout: one image for all devices; a kernel handle a row of kernels.def.
// Trick: loading is allowed while a graph is captured, because the thread steps out of the capture for it.
#include "launch.h"

#include <atomic>
#include <mutex>

#include "context.h"
#include "kernels.h"
#include "params.h"

#ifdef DLFP4_CUDA_FATBIN
__asm__(
    ".section .rodata\n"
    ".balign 16\n"
    "dlfp4_cuda_fatbin:\n"
    ".incbin \"" DLFP4_CUDA_FATBIN
    "\"\n"
    ".previous\n");
extern "C" __attribute__((visibility("hidden"))) const unsigned char dlfp4_cuda_fatbin[];
constexpr bool kHasImage = true;
#else
constexpr bool kHasImage = false;
#define DLFP4_CUDA_TARGETS ""
constexpr const unsigned char *dlfp4_cuda_fatbin = nullptr;
#endif

namespace dlfp4 {
namespace cuda {
namespace {

constexpr int kNotSupported = 801;  // CUDA_ERROR_NOT_SUPPORTED
constexpr int kInvalidValue = 1;    // CUDA_ERROR_INVALID_VALUE
constexpr int kNotInitialized = 3;  // CUDA_ERROR_NOT_INITIALIZED
constexpr int kMultiprocessors = 16, kSharedMemoryOptIn = 97, kCaptureRelaxed = 2;
constexpr int kPtxVersion = 5, kDynamicSharedBytes = 8;               // of a function's attributes
constexpr int kClusterDimension = 4, kProgrammaticSerialization = 6;  // of a launch's
constexpr int kSharedUnasked = 48 * 1024;
constexpr int64_t kMostBlocks = INT32_MAX, kMostBlocksAcross = 65535;
constexpr int64_t kBlocksOfMultiprocessor = 2048 / kThreads;

constexpr const char *kNames[kNumKernels] = {
#define DLFP4_CUDA_KERNEL(name, parameters, body) #name,
#include "kernels.def"
#undef DLFP4_CUDA_KERNEL
};

std::mutex load_mutex;
std::atomic<bool> is_loaded{false};
CUkernel kernels[kNumKernels];

// The driver loads lazily: asking for a function finds out whether the image serves the current device.
int load_image(const void *image) {
  const Driver &driver = opened_driver();
  CUlibrary library = nullptr;
  CUfunction function = nullptr;
  if (!driver.cuLibraryLoadData || !driver.cuLibraryGetKernel || !driver.cuKernelGetFunction) return kNotSupported;
  int status = driver.cuLibraryLoadData(&library, image, nullptr, nullptr, 0, nullptr, nullptr, 0);
  for (int i = 0; i < kNumKernels && status == 0; ++i)
    status = driver.cuLibraryGetKernel(&kernels[i], library, kNames[i]);
  return status != 0 ? status : driver.cuKernelGetFunction(&function, kernels[0]);
}

int load_once(const void *image) {
  const std::lock_guard<std::mutex> lock(load_mutex);
  if (is_loaded) return 0;
  int mode = kCaptureRelaxed;
  opened_driver().cuThreadExchangeStreamCaptureMode(&mode);
  const int status = load_image(image);
  opened_driver().cuThreadExchangeStreamCaptureMode(&mode);
  is_loaded = status == 0;
  return status;
}

// Once a kernel and device: more shared memory is to be asked for.
int allow_shared_memory(int kernel) {
  static std::atomic<uint64_t> allowed[kNumKernels];
  CUdevice device = 0;
  int status = opened_driver().cuCtxGetDevice(&device);
  if (status != 0 || allowed[kernel] >> device & 1) return status;
  status = opened_driver().cuKernelSetAttribute(kDynamicSharedBytes, most_shared_memory(), kernels[kernel], device);
  if (status == 0) allowed[kernel] |= uint64_t{1} << device;
  return status;
}

// Whether kernels, as they run on the current device, wait for the kernel before them themselves: from sm_90 on.
bool kernels_overlap() {
  static std::atomic<uint64_t> known, that_do;
  CUdevice device = 0;
  if (opened_driver().cuCtxGetDevice(&device) != 0) return false;
  const uint64_t bit = uint64_t{1} << device;
  if (!(known & bit)) {
    if (ptx_version(0) >= 90) that_do |= bit;
    known |= bit;
  }
  return (that_do & bit) != 0;
}

LaunchAttribute cluster_of(int blocks) {
  LaunchAttribute attribute = {};
  attribute.id = kClusterDimension;
  attribute.value.cluster = {static_cast<unsigned>(blocks), 1, 1};
  return attribute;
}

LaunchAttribute overlapping() {
  LaunchAttribute attribute = {};
  attribute.id = kProgrammaticSerialization;
  attribute.value.programmatic = 1;
  return attribute;
}

}  // namespace

int launch_shape(int kernel, const Shape &shape, void *params, uintptr_t stream) {
  if (!is_loaded) return kNotInitialized;
  if (!opened_driver().cuLaunchKernelEx || !opened_driver().cuKernelSetAttribute) return kNotSupported;
  if (shape.blocks[0] > kMostBlocks || shape.blocks[1] > kMostBlocksAcross) return kInvalidValue;
  const int status = shape.shared_bytes > kSharedUnasked ? allow_shared_memory(kernel) : 0;
  if (status != 0) return status;
  LaunchAttribute attributes[2];
  unsigned count = 0;
  if (shape.cluster > 1) attributes[count++] = cluster_of(shape.cluster);
  if (kernels_overlap()) attributes[count++] = overlapping();
  const LaunchConfig config = {{static_cast<unsigned>(shape.blocks[0]), static_cast<unsigned>(shape.blocks[1]), 1},
                               {static_cast<unsigned>(shape.threads), 1, 1},
                               static_cast<unsigned>(shape.shared_bytes),
                               reinterpret_cast<CUstream>(stream),
                               attributes,
                               count};
  return opened_driver().cuLaunchKernelEx(&config, kernels[kernel], &params, nullptr);
}

int launch(int kernel, int64_t blocks, void *params, uintptr_t stream) {
  return launch_shape(kernel, {{blocks, 1}, kThreads, 0, 1}, params, stream);
}

int ptx_version(int kernel) {
  CUdevice device = 0;
  int version = 0;
  if (!is_loaded || !opened_driver().cuKernelGetAttribute || opened_driver().cuCtxGetDevice(&device) != 0) return 0;
  return opened_driver().cuKernelGetAttribute(&version, kPtxVersion, kernels[kernel], device) == 0 ? version : 0;
}

int set_word(void *place, uint32_t value, uintptr_t stream) {
  return opened_driver().cuMemsetD32Async(reinterpret_cast<CUdeviceptr>(place), value, 1,
                                          reinterpret_cast<CUstream>(stream));
}

int copy_word(void *dst, const void *src, uintptr_t stream) {
  return opened_driver().cuMemcpyDtoDAsync(reinterpret_cast<CUdeviceptr>(dst), reinterpret_cast<CUdeviceptr>(src), 4,
                                           reinterpret_cast<CUstream>(stream));
}

int set_bytes(void *place, uint8_t value, int64_t count, uintptr_t stream) {
  if (count == 0) return 0;
  return opened_driver().cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(place), value, static_cast<size_t>(count),
                                         reinterpret_cast<CUstream>(stream));
}

namespace {

int attribute_of_device(int attribute, int unknown) {
  CUdevice device = 0;
  int value = unknown;
  if (opened_driver().cuCtxGetDevice(&device) == 0) opened_driver().cuDeviceGetAttribute(&value, attribute, device);
  return value;
}

}  // namespace

int multiprocessors() { return attribute_of_device(kMultiprocessors, 1); }

int most_shared_memory() { return attribute_of_device(kSharedMemoryOptIn, 48 * 1024); }

int64_t blocks_for_device() { return multiprocessors() * kBlocksOfMultiprocessor; }

}  // namespace cuda
}  // namespace dlfp4

extern "C" {

const char *dlfp4_cuda_image(void) { return DLFP4_CUDA_TARGETS; }

int dlfp4_cuda_load(int device, const void *image) {
  const dlfp4::cuda::CurrentContext context(device);
  if (context.status() != 0) return context.status();
  if (!image && !kHasImage) return DLFP4_CUDA_NO_IMAGE;
  return dlfp4::cuda::load_once(image ? image : dlfp4_cuda_fatbin);
}
}
