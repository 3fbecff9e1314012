// Loads images once a device, finds their kernels, launches them.
// Layout: a table by image and device of the library that serves; a library has a handle a kernel of its image.
#include "launch.h"

#include <atomic>
#include <mutex>

#include "context.h"
#include "kernels.h"
#include "params.h"

namespace dlfp4 {
namespace cuda {
namespace {

constexpr int kMultiprocessors = 16, kSharedMemoryOptIn = 97;
constexpr int kPtxVersion = 5, kDynamicSharedBytes = 8;               // of a function's attributes
constexpr int kClusterDimension = 4, kProgrammaticSerialization = 6;  // of a launch's
constexpr int kSharedUnasked = 48 * 1024;
constexpr int64_t kMostBlocksAcross = 65535;
constexpr int64_t kBlocksOfMultiprocessor = 2048 / kThreads;

constexpr const KernelNames *kKernels[kNumImages] = {
#define DLFP4_CUDA_IMAGE(name) &kernels_of_##name,
#include "images.def"
#undef DLFP4_CUDA_IMAGE
};

struct Library {
  CUlibrary handle;
  CUkernel kernels[kMostKernels];
};

// What serves a device; the version stays as it is once there is a library.
struct Service {
  std::atomic<const Library *> library;
  int ptx_version;  // that its kernels were compiled for
};

// What stays as it is once an image serves the device.
struct Properties {
  int multiprocessors = 1, shared_memory = kSharedUnasked;
};

struct Loaded {
  Library built;                   // of the build's image, for all devices that it serves
  Library of_device[kMaxDevices];  // of images that were given
  Service services[kMaxDevices];
};

std::mutex load_mutex;  // of the libraries, until a device is served by them
Loaded loaded[kNumImages];
Properties properties[kMaxDevices];

bool has_needed_symbols(const Driver &driver) {
  return driver.cuLibraryLoadData && driver.cuLibraryUnload && driver.cuLibraryGetKernel &&
         driver.cuKernelGetFunction && driver.cuLaunchKernelEx && driver.cuKernelGetAttribute &&
         driver.cuKernelSetAttribute;
}

void unload(Library *library) {
  opened_driver().cuLibraryUnload(library->handle);
  library->handle = nullptr;
}

int load_library(Image image, const void *data, Library *library) {
  const Driver &driver = opened_driver();
  int status = driver.cuLibraryLoadData(&library->handle, data, nullptr, nullptr, 0, nullptr, nullptr, 0);
  if (status != 0) {
    library->handle = nullptr;
    return status;
  }
  for (int i = 0; i < kKernels[image]->count && status == 0; ++i)
    status = driver.cuLibraryGetKernel(&library->kernels[i], library->handle, kKernels[image]->names[i]);
  if (status != 0) unload(library);
  return status;
}

int version_of(CUkernel kernel, CUdevice device) {
  int version = 0;
  return opened_driver().cuKernelGetAttribute(&version, kPtxVersion, kernel, device) == 0 ? version : 0;
}

int attribute_of(CUdevice device, int attribute, int unknown) {
  int value = 0;
  return opened_driver().cuDeviceGetAttribute(&value, attribute, device) == 0 ? value : unknown;
}

bool is_served(int device) {
  for (const Loaded &image : loaded)
    if (image.services[device].library) return true;
  return false;
}

// The driver loads lazily: asking for a function finds out whether the library serves the current device.
int serve(Image image, int device, const Library &library) {
  CUfunction function = nullptr;
  const int status = opened_driver().cuKernelGetFunction(&function, library.kernels[0]);
  if (status != 0) return status;
  if (!is_served(device))
    properties[device] = {attribute_of(device, kMultiprocessors, 1),
                          attribute_of(device, kSharedMemoryOptIn, kSharedUnasked)};
  Service *service = &loaded[image].services[device];
  service->ptx_version = version_of(library.kernels[0], device);
  service->library = &library;
  return 0;
}

// The library stays when it does not serve this device: it may serve another, and loading it again changes nothing.
int serve_built(Image image, int device) {
  if (!built_image(image)) return DLFP4_CUDA_NO_IMAGE;
  Library *library = &loaded[image].built;
  const int status = library->handle ? 0 : load_library(image, built_image(image), library);
  return status != 0 ? status : serve(image, device, *library);
}

int serve_given(Image image, int device, const void *data) {
  Library *library = &loaded[image].of_device[device];
  int status = load_library(image, data, library);
  if (status != 0) return status;
  status = serve(image, device, *library);
  if (status != 0) unload(library);
  return status;
}

int load_once(Image image, int device, const void *data) {
  const std::lock_guard<std::mutex> lock(load_mutex);
  if (loaded[image].services[device].library) return 0;
  if (!has_needed_symbols(opened_driver())) return kNotSupported;
  return data ? serve_given(image, device, data) : serve_built(image, device);
}

bool is_in_table(int device) { return device >= 0 && device < kMaxDevices; }

// The device of the current context, or -1 and why there is none.
CUdevice current_device(int *status) {
  CUdevice device = -1;
  *status = opened_driver().cuCtxGetDevice(&device);
  if (*status == 0 && !is_in_table(device)) *status = kInvalidDevice;
  return *status == 0 ? device : -1;
}

// The same, and its kernels of an image: null where none are loaded, for which `status` is the reason.
struct Current {
  CUdevice device;
  const Library *library;
  int status;
};

Current current_kernels(Image image) {
  int status = 0;
  const CUdevice device = current_device(&status);
  if (device < 0) return {device, nullptr, status};
  return {device, loaded[image].services[device].library.load(std::memory_order_acquire), kNotInitialized};
}

Properties current_properties() {
  int status = 0;
  const CUdevice device = current_device(&status);
  return device >= 0 && is_served(device) ? properties[device] : Properties();
}

// Once a kernel and device: more shared memory is to be asked for.
int allow_shared_memory(const DeviceKernel &kernel, const Current &current) {
  static std::atomic<uint64_t> of_kernels[kNumImages][kMostKernels];
  std::atomic<uint64_t> *allowed = &of_kernels[kernel.image][kernel.number];
  const uint64_t bit = uint64_t{1} << current.device;
  if (*allowed & bit) return 0;
  const int status = opened_driver().cuKernelSetAttribute(kDynamicSharedBytes, properties[current.device].shared_memory,
                                                          current.library->kernels[kernel.number], current.device);
  if (status == 0) *allowed |= bit;
  return status;
}

LaunchAttribute cluster_of(int blocks) {
  LaunchAttribute attribute = {};
  attribute.id = kClusterDimension;
  attribute.value.cluster = {static_cast<unsigned>(blocks), 1, 1};
  return attribute;
}

// From sm_90 on kernels wait for the kernel before them themselves.
bool overlaps(const Service &service) { return service.ptx_version >= 90; }

LaunchAttribute overlapping() {
  LaunchAttribute attribute = {};
  attribute.id = kProgrammaticSerialization;
  attribute.value.programmatic = 1;
  return attribute;
}

}  // namespace

int launch_shape(const DeviceKernel &kernel, const Shape &shape, void *params, uintptr_t stream) {
  const Current current = current_kernels(kernel.image);
  if (!current.library) return current.status;
  if (shape.blocks[0] > kMostBlocks || shape.blocks[1] > kMostBlocksAcross) return refuse(DLFP4_E_SHAPE);
  const int status = shape.shared_bytes > kSharedUnasked ? allow_shared_memory(kernel, current) : 0;
  if (status != 0) return status;
  LaunchAttribute attributes[2];
  unsigned count = 0;
  if (shape.cluster > 1) attributes[count++] = cluster_of(shape.cluster);
  if (overlaps(loaded[kernel.image].services[current.device])) attributes[count++] = overlapping();
  const LaunchConfig config = {{static_cast<unsigned>(shape.blocks[0]), static_cast<unsigned>(shape.blocks[1]), 1},
                               {static_cast<unsigned>(shape.threads), 1, 1},
                               static_cast<unsigned>(shape.shared_bytes),
                               reinterpret_cast<CUstream>(stream),
                               attributes,
                               count};
  return opened_driver().cuLaunchKernelEx(&config, current.library->kernels[kernel.number], &params, nullptr);
}

int launch(const DeviceKernel &kernel, int64_t blocks, void *params, uintptr_t stream) {
  return launch_shape(kernel, {{blocks, 1}, kThreads, 0, 1}, params, stream);
}

int need_hopper_kernels(Image image) {
  const Current current = current_kernels(image);
  if (!current.library) return current.status == kNotInitialized ? kNoBinary : current.status;
  return loaded[image].services[current.device].ptx_version == 90 ? 0 : kNoBinary;
}

int set_word(void *place, uint32_t value, uintptr_t stream) {
  return opened_driver().cuMemsetD32Async(reinterpret_cast<CUdeviceptr>(place), value, 1,
                                          reinterpret_cast<CUstream>(stream));
}

int copy_bytes(void *dst, const void *src, int64_t count, uintptr_t stream) {
  return opened_driver().cuMemcpyDtoDAsync(reinterpret_cast<CUdeviceptr>(dst), reinterpret_cast<CUdeviceptr>(src),
                                           static_cast<size_t>(count), reinterpret_cast<CUstream>(stream));
}

int set_bytes(void *place, uint8_t value, int64_t count, uintptr_t stream) {
  if (count == 0) return 0;
  return opened_driver().cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(place), value, static_cast<size_t>(count),
                                         reinterpret_cast<CUstream>(stream));
}

int multiprocessors() { return current_properties().multiprocessors; }

int most_shared_memory() { return current_properties().shared_memory; }

int64_t blocks_for_device() { return multiprocessors() * kBlocksOfMultiprocessor; }

}  // namespace cuda
}  // namespace dlfp4

using namespace dlfp4::cuda;

int dlfp4_cuda_load(int device, int image, const void *data) {
  const CurrentContext context(device);
  if (context.status() != 0) return context.status();
  return is_in_table(device) ? load_once(static_cast<Image>(image), device, data) : kInvalidDevice;
}

int dlfp4_cuda_is_unserved(int status) {
  return status == DLFP4_CUDA_NO_IMAGE || status == kNoBinary || status == kInvalidPtx ||
         status == kJitCompilerNotFound || status == kUnsupportedPtxVersion || status == kJitCompilationDisabled;
}

int dlfp4_cuda_is_loaded(int device, int image) {
  return is_in_table(device) && loaded[image].services[device].library;
}

const char *dlfp4_cuda_image_name(int image) {
  static constexpr const char *kImageNames[] = {
#define DLFP4_CUDA_IMAGE(name) #name,
#include "images.def"
#undef DLFP4_CUDA_IMAGE
  };
  return kImageNames[image];
}
