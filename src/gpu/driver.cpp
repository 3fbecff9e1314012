// CUDA's driver, opened at run time: symbols.def names each function once, cuGetProcAddress finds them all at the first
// call.
// The context is the caller's if it is current on the tensor's device, else the primary one, pushed and popped.
// Nothing runs at load time, and a failed start is remembered, so that hosts without a driver pay for one look.

#include "driver.h"

#include <memory>
#include <mutex>
#include <vector>

#include "captured.h"
#include "context.h"
#include "host/libraries.h"
#include "kernels.h"

namespace dlfp4 {
namespace cuda {
namespace {

using GetProcAddress = CUresult (*)(const char *, void **, int, uint64_t);

constexpr int kPointerMemoryType = 2;
constexpr int kFirstOptional = 12000;  // kernels need such symbols, moving memory does not

Driver driver;
std::once_flag opened;
std::mutex primary_mutex;

int load() {
  const auto find = reinterpret_cast<GetProcAddress>(find_in_driver("cuGetProcAddress"));
  if (find == nullptr) return DLFP4_CUDA_MISSING;  // or older than 11.3, or a stub
#define DLFP4_CUDA_SYMBOL(name, version, parameters)                                                \
  if (find(#name, reinterpret_cast<void **>(&driver.name), version, 0) != 0) driver.name = nullptr; \
  if (!driver.name && version < kFirstOptional) return DLFP4_CUDA_MISSING;
#include "symbols.def"
#undef DLFP4_CUDA_SYMBOL
  return driver.cuInit(0);
}

int open() {
  std::call_once(opened, [] { driver.status = load(); });
  return driver.status;
}

// The primary context, retained once for the life of the process: frameworks use the same one.
int primary_context(int device, CUcontext *out) {
  if (device < 0 || device >= kMaxDevices) return kInvalidDevice;
  std::lock_guard<std::mutex> lock(primary_mutex);
  if (driver.primary[device] == nullptr) {
    CUdevice handle = 0;
    int status = driver.cuDeviceGet(&handle, device);
    if (status == 0) status = driver.cuDevicePrimaryCtxRetain(&driver.primary[device], handle);
    if (status != 0) return status;
  }
  *out = driver.primary[device];
  return 0;
}

CUstream handle(uintptr_t stream) { return reinterpret_cast<CUstream>(stream); }

CUdeviceptr address(const void *ptr) { return reinterpret_cast<CUdeviceptr>(ptr); }

// Fails for an address that the driver did not give out. Where the GPU can page in any host memory, a copy would not.
int check_address(const void *ptr) {
  unsigned type = 0;
  return driver.cuPointerGetAttribute(&type, kPointerMemoryType, address(ptr));
}

// Whether work on the stream goes into a graph.
bool is_in_graph(uintptr_t stream) {
  int state = 0;
  return driver.cuStreamIsCapturing(handle(stream), &state) == 0 && state != 0;
}

// The same, or whether the driver takes none: the legacy stream's while a stream that waits for it is captured.
bool is_capturing(uintptr_t stream) {
  int state = 0;
  return driver.cuStreamIsCapturing(handle(stream), &state) != 0 || state != 0;
}

}  // namespace

const Driver &opened_driver() { return driver; }

CurrentContext::CurrentContext(int device) {
  status_ = open();
  if (status_ == 0) status_ = driver.cuThreadExchangeStreamCaptureMode(&mode_);
  exchanged_ = status_ == 0;
  if (status_ == 0) status_ = make_current(device);
}

int CurrentContext::make_current(int device) {
  CUdevice current = -1;
  if (driver.cuCtxGetDevice(&current) == 0 && current == device) return 0;
  CUcontext context = nullptr;
  int status = primary_context(device, &context);
  if (status == 0) status = driver.cuCtxPushCurrent(context);
  pushed_ = status == 0;
  return status;
}

CurrentContext::~CurrentContext() {
  CUcontext popped = nullptr;
  if (pushed_) driver.cuCtxPopCurrent(&popped);
  if (exchanged_) driver.cuThreadExchangeStreamCaptureMode(&mode_);
}

}  // namespace cuda
}  // namespace dlfp4

using namespace dlfp4::cuda;

// The last use of memory on each stream that is not the one in whose order it is freed.
struct dlfp4_cuda_uses {
  struct Use {
    uintptr_t stream;
    CUevent event;
  };
  std::vector<Use> last;
  bool in_graph = false;  // on another stream that was captured

  ~dlfp4_cuda_uses() {
    for (const Use &use : last) driver.cuEventDestroy(use.event);
  }

  // Work of a destroyed stream may have to be waited for under a handle that now belongs to another stream.
  int add(uintptr_t stream) {
    for (const Use &use : last) {
      if (use.stream != stream) continue;
      const int status = driver.cuStreamWaitEvent(handle(stream), use.event, 0);
      return status != 0 ? status : driver.cuEventRecord(use.event, handle(stream));
    }
    CUevent event = nullptr;
    const int status = driver.cuEventCreate(&event, kEventDisableTiming);
    if (status != 0) return status;
    last.push_back({stream, event});
    return driver.cuEventRecord(event, handle(stream));
  }

  int order_before(uintptr_t stream) const {
    int status = 0;
    for (const Use &use : last)
      if (status == 0) status = driver.cuStreamWaitEvent(handle(stream), use.event, 0);
    return status;
  }

  std::vector<CUevent> take() {
    std::vector<CUevent> events;
    for (const Use &use : last) events.push_back(use.event);
    last.clear();
    return events;
  }
};

const char *dlfp4_cuda_error_name(int status) {
  const char *name = nullptr;
  if (status == DLFP4_CUDA_NO_IMAGE)
    return "this build of dlfp4 has no CUDA kernels; install it where nvcc is on the path, with DLFP4_CUDA=ON";
  if (status == DLFP4_CUDA_MISSING) return "no CUDA driver (libcuda.so.1, 11.3 or newer) on this machine";
  if (driver.cuGetErrorName == nullptr || driver.cuGetErrorName(status, &name) != 0) return "unknown CUDA error";
  return name;
}

int dlfp4_cuda_device_count(int *count) {
  int status = open();
  return status != 0 ? status : driver.cuDeviceGetCount(count);
}

int dlfp4_cuda_architecture(int device, int *architecture) {
  constexpr int kMajor = 75, kMinor = 76;
  CUdevice number = 0;
  int major = 0, minor = 0, status = open();
  if (status == 0) status = driver.cuDeviceGet(&number, device);
  if (status == 0) status = driver.cuDeviceGetAttribute(&major, kMajor, number);
  if (status == 0) status = driver.cuDeviceGetAttribute(&minor, kMinor, number);
  *architecture = 10 * major + minor;
  return status;
}

int dlfp4_cuda_device_name(int device, char *name, int length) {
  CUdevice number = 0;
  int status = open();
  if (status == 0) status = driver.cuDeviceGet(&number, device);
  return status != 0 ? status : driver.cuDeviceGetName(name, length, number);
}

int dlfp4_cuda_copy(int device, uintptr_t stream, dlfp4_cuda_direction direction, void *dst, const void *src,
                    size_t bytes) {
  const CurrentContext context(device);
  if (context.status() != 0) return context.status();
  int status = direction == DLFP4_HOST_TO_DEVICE ? 0 : check_address(src);
  if (status == 0 && direction != DLFP4_DEVICE_TO_HOST) status = check_address(dst);
  if (status != 0) return status;
  status = direction == DLFP4_HOST_TO_DEVICE ? driver.cuMemcpyHtoDAsync(address(dst), src, bytes, handle(stream))
           : direction == DLFP4_DEVICE_TO_HOST
               ? driver.cuMemcpyDtoHAsync(dst, address(src), bytes, handle(stream))
               : driver.cuMemcpyDtoDAsync(address(dst), address(src), bytes, handle(stream));
  return status != 0 ? status : driver.cuStreamSynchronize(handle(stream));
}

int dlfp4_cuda_copy_to_peer(int device, uintptr_t stream, int peer, void *dst, const void *src, size_t bytes) {
  const CurrentContext context(device);
  CUcontext from = nullptr, to = nullptr;
  int status = context.status();
  if (status == 0) status = check_address(src);
  if (status == 0) status = check_address(dst);
  if (status == 0) status = primary_context(device, &from);
  if (status == 0) status = primary_context(peer, &to);
  if (status == 0) status = driver.cuMemcpyPeerAsync(address(dst), to, address(src), from, bytes, handle(stream));
  return status != 0 ? status : driver.cuStreamSynchronize(handle(stream));
}

int dlfp4_cuda_alloc(int device, uintptr_t stream, size_t bytes, void **out) {
  const CurrentContext context(device);
  if (context.status() != 0) return context.status();
  int status = 0;
  if (allocate_if_captured(device, stream, bytes, out, &status)) return status;
  CUdeviceptr ptr = 0;
  status = driver.cuMemAllocAsync(&ptr, bytes, handle(stream));
  *out = reinterpret_cast<void *>(ptr);
  return status;
}

int dlfp4_cuda_free(int device, uintptr_t stream, void *ptr, dlfp4_cuda_uses *uses) {
  const CurrentContext context(device);
  const std::unique_ptr<const dlfp4_cuda_uses> ended(uses);
  if (context.status() != 0) return context.status();
  // A capture keeps what is freed in it, and cannot wait for anything outside it.
  const bool waits = uses && !is_capturing(stream);
  int status = waits ? uses->order_before(stream) : 0;
  if (status != 0) return status;
  const bool serves_again = !uses || !uses->in_graph;
  std::vector<CUevent> readers = uses && !waits ? uses->take() : std::vector<CUevent>();
  return free_if_captured(device, stream, ptr, serves_again, std::move(readers), &status)
             ? status
             : driver.cuMemFreeAsync(address(ptr), handle(stream));
}

int dlfp4_cuda_add_use(int device, dlfp4_cuda_uses **uses, uintptr_t stream) {
  const CurrentContext context(device);
  if (context.status() != 0) return context.status();
  if (!*uses) *uses = new dlfp4_cuda_uses;
  if (!is_capturing(stream)) return (*uses)->add(stream);
  (*uses)->in_graph = true;
  return 0;
}

int dlfp4_cuda_wait(int device, uintptr_t stream) {
  const CurrentContext context(device);
  return context.status() != 0 ? context.status() : driver.cuStreamSynchronize(handle(stream));
}

int dlfp4_cuda_device_of_stream(int device, uintptr_t stream) {
  const CurrentContext current(device);
  CUcontext context = nullptr, popped = nullptr;
  CUdevice found = device;
  if (current.status() != 0 || driver.cuStreamGetCtx(handle(stream), &context) != 0) return device;
  if (driver.cuCtxPushCurrent(context) != 0) return device;
  const int status = driver.cuCtxGetDevice(&found);
  driver.cuCtxPopCurrent(&popped);
  return status == 0 ? found : device;
}

bool dlfp4_cuda_is_capturing(int device, uintptr_t stream) {
  const CurrentContext context(device);
  return context.status() == 0 && is_capturing(stream);
}

int dlfp4_cuda_order(int device, uintptr_t earlier, uintptr_t later) {
  const CurrentContext context(device);
  if (context.status() != 0) return context.status();
  if (is_in_graph(earlier) != is_in_graph(later)) return 0;
  CUevent event = nullptr;
  int status = driver.cuEventCreate(&event, kEventDisableTiming);
  if (status != 0) return status;
  status = driver.cuEventRecord(event, handle(earlier));
  if (status == 0) status = driver.cuStreamWaitEvent(handle(later), event, 0);
  // Destroying a recorded event is deferred by the driver until it has completed.
  int destroyed = driver.cuEventDestroy(event);
  return status != 0 ? status : destroyed;
}
