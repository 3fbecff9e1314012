/* A libcuda.so.1 with two devices of different compute capability, for tests of dlfp4 on machines without a GPU.
 *
 * Kernels do nothing, but say on standard output on which device they were launched and from which image: a fatbin,
 * which serves the first device alone, or text, "sm_" and the compute capability that it serves; and on which stream,
 * if the variable STAND_IN_STREAMS is set, as do events. A test has any call fail by stand_in_fail, and asks by
 * stand_in_held what has been allocated and created and not been given back, by stand_in_launched how many kernels.
 * Some other thread always captures in the global mode, which forbids a thread much unless its own mode is relaxed. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  kSuccess = 0,
  kOutOfMemory = 2,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kNoBinaryForGpu = 209,
  kForbidden = 900
};
enum { kDevices = 2, kMajor = 75, kMinor = 76 };
enum { kStreamOfLaunch = 32, kFirstCaptured = 500 };

static const int kCapabilities[kDevices] = {90, 120};
static _Thread_local int contexts[16], depth; /* device numbers, as if pushed */

enum { kGlobal, kRelaxed = 2 };
static _Thread_local int capture_mode = kGlobal;

int stand_in_mode_is_global(void) { return capture_mode == kGlobal; }

static int exchange_capture_mode(int *mode) {
  const int before = capture_mode;
  capture_mode = *mode;
  *mode = before;
  return kSuccess;
}

/* What allocates, frees, waits or loads. */
static const char *const kForbiddenInGlobalMode[] = {
    "cuMemAllocAsync",   "cuMemFreeAsync",      "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync",
    "cuMemcpyPeerAsync", "cuStreamSynchronize", "cuStreamCreate",    "cuLibraryLoadData",
};

static int is_forbidden(const char *name) {
  if (capture_mode == kRelaxed) return 0;
  for (size_t i = 0; i < sizeof(kForbiddenInGlobalMode) / sizeof(*kForbiddenInGlobalMode); ++i)
    if (strcmp(name, kForbiddenInGlobalMode[i]) == 0) return 1;
  return 0;
}

static int do_nothing(void) { return kSuccess; }

static int get_count(int *count) {
  *count = kDevices;
  return kSuccess;
}

static int get_device(int *device, int ordinal) {
  *device = ordinal;
  return ordinal < kDevices ? kSuccess : kInvalidDevice;
}

static int get_device_attribute(int *value, int attribute, int device) {
  *value = attribute == kMajor   ? kCapabilities[device] / 10
           : attribute == kMinor ? kCapabilities[device] % 10
                                 : 1 << 17;
  return kSuccess;
}

static int retain_context(void **context, int device) {
  *context = (void *)(intptr_t)(device + 1);
  return kSuccess;
}

static int push(void *context) {
  contexts[depth++] = (int)(intptr_t)context - 1;
  return kSuccess;
}

static int pop(void **context) { return retain_context(context, contexts[--depth]); }

/* Streams are numbers: those of the second device begin at 1000. */
static int get_stream_context(void *stream, void **context) {
  return retain_context(context, (intptr_t)stream >= 1000);
}

static int get_current_device(int *device) {
  if (depth == 0) return kInvalidContext;
  *device = contexts[depth - 1];
  return kSuccess;
}

static void say(const char *what, const void *stream) {
  if (getenv("STAND_IN_STREAMS") == NULL) return;
  printf("%s %d\n", what, (int)(intptr_t)stream);
  fflush(stdout);
}

/* Streams from 500 on are being captured. */
static int is_capturing(void *stream, int *status) {
  *status = (intptr_t)stream >= kFirstCaptured && (intptr_t)stream < 1000;
  return kSuccess;
}

static int record(void *event, void *stream) {
  (void)event;
  say("record", stream);
  return kSuccess;
}

static int wait_event(void *stream, void *event, unsigned flags) {
  (void)event, (void)flags;
  say("wait", stream);
  return kSuccess;
}

static _Atomic long held, launched, calls, failing = -1;
static int failure;
static const char *failed = "";

/* The number-th call from now on fails, once; -1: none. */
void stand_in_fail(long number, int error) {
  capture_mode = kGlobal;
  failed = "";
  calls = 0;
  failure = error;
  failing = number;
}

/* Which call failed; "": none yet. */
const char *stand_in_failed(void) { return failed; }

long stand_in_held(void) { return held; }

long stand_in_launched(void) { return launched; }

static int create_event(void **event, unsigned flags) {
  (void)flags;
  ++held;
  *event = malloc(1);
  return kSuccess;
}

static int destroy_event(void *event) {
  --held;
  free(event);
  return kSuccess;
}

/* At multiples of 256, as drivers do. */
static int allocate(void **ptr, size_t bytes, void *stream) {
  const size_t aligned = bytes / 256 * 256 + 256;
  (void)stream;
  *ptr = aligned < bytes ? NULL : aligned_alloc(256, aligned);
  held += *ptr != NULL;
  return *ptr ? kSuccess : kOutOfMemory;
}

static int release(void *ptr, void *stream) {
  (void)stream;
  --held;
  free(ptr);
  return kSuccess;
}

/* Memory of any device is the host's. */
static int copy_to_peer(void *dst, void *dst_context, const void *src, void *src_context, size_t bytes, void *stream) {
  (void)stream;
  printf("copy %zu from %d to %d on %d\n", bytes, (int)(intptr_t)src_context - 1, (int)(intptr_t)dst_context - 1,
         contexts[depth - 1]);
  fflush(stdout);
  memcpy(dst, src, bytes);
  return kSuccess;
}

static int copy(void *dst, const void *src, size_t bytes, void *stream) {
  (void)stream;
  memcpy(dst, src, bytes);
  return kSuccess;
}

static int set_bytes(void *dst, unsigned char value, size_t count, void *stream) {
  (void)stream;
  memset(dst, value, count);
  return kSuccess;
}

/* A library, and each of its kernels, is the number that its image was made for: 0 for a fatbin. */
static int load_library(void **library, const char *image) {
  *library = (void *)(intptr_t)(1 + (strncmp(image, "sm_", 3) == 0 ? atoi(image + 3) : 0));
  return kSuccess;
}

static int get_kernel(void **kernel, void *library, const char *name) {
  (void)name;
  *kernel = library;
  return kSuccess;
}

static int get_function(void **function, void *kernel) {
  const int made_for = (int)(intptr_t)kernel - 1, device = contexts[depth - 1];
  *function = kernel;
  return made_for == (made_for == 0 ? device : kCapabilities[device]) ? kSuccess : kNoBinaryForGpu;
}

/* The PTX version of its code: what its image was made for. */
static int get_kernel_attribute(int *value, int attribute, void *kernel, int device) {
  (void)attribute, (void)device;
  *value = (int)(intptr_t)kernel - 1;
  return kSuccess;
}

static int launch(const void *config, void *kernel) {
  ++launched;
  say("launch", *(void *const *)((const char *)config + kStreamOfLaunch));
  printf("%d sm_%d\n", contexts[depth - 1], (int)(intptr_t)kernel - 1);
  fflush(stdout);
  return kSuccess;
}

static int get_error_name(int error, const char **name) {
  (void)error;
  *name = "CUDA_ERROR_OF_THE_STAND_IN";
  return kSuccess;
}

static const struct {
  const char *name;
  void *function;
} kFunctions[] = {
    {"cuGetErrorName", get_error_name},
    {"cuGetErrorString", get_error_name},
    {"cuDeviceGetCount", get_count},
    {"cuDeviceGet", get_device},
    {"cuDeviceGetAttribute", get_device_attribute},
    {"cuDevicePrimaryCtxRetain", retain_context},
    {"cuCtxPushCurrent", push},
    {"cuCtxPopCurrent", pop},
    {"cuCtxGetDevice", get_current_device},
    {"cuStreamGetCtx", get_stream_context},
    {"cuStreamIsCapturing", is_capturing},
    {"cuThreadExchangeStreamCaptureMode", exchange_capture_mode},
    {"cuStreamWaitEvent", wait_event},
    {"cuEventRecord", record},
    {"cuEventCreate", create_event},
    {"cuEventDestroy", destroy_event},
    {"cuMemAllocAsync", allocate},
    {"cuMemFreeAsync", release},
    {"cuMemcpyHtoDAsync", copy},
    {"cuMemcpyDtoHAsync", copy},
    {"cuMemcpyPeerAsync", copy_to_peer},
    {"cuMemsetD8Async", set_bytes},
    {"cuLibraryLoadData", load_library},
    {"cuLibraryGetKernel", get_kernel},
    {"cuKernelGetFunction", get_function},
    {"cuKernelGetAttribute", get_kernel_attribute},
    {"cuLaunchKernelEx", launch},
};

static int fails(const char *name) {
  if (calls++ != failing) return kSuccess;
  failed = name;
  return failure;
}

/* All arguments are integers and pointers, at most twelve, which any function takes as such. */
typedef int (*Function)(long, long, long, long, long, long, long, long, long, long, long, long);

static Function function_of(const char *name) {
  for (size_t i = 0; i < sizeof(kFunctions) / sizeof(*kFunctions); ++i)
    if (strcmp(name, kFunctions[i].name) == 0) return (Function)kFunctions[i].function;
  return (Function)(void *)do_nothing;
}

#define DLFP4_CUDA_SYMBOL(name, version, parameters)                                                             \
  static int call_##name(long a, long b, long c, long d, long e, long f, long g, long h, long i, long j, long k, \
                         long l) {                                                                               \
    const int status = is_forbidden(#name) ? kForbidden : fails(#name);                                          \
    return status ? status : function_of(#name)(a, b, c, d, e, f, g, h, i, j, k, l);                             \
  }
#include "../../src/gpu/symbols.def"
#undef DLFP4_CUDA_SYMBOL

int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
  (void)version, (void)flags;
#define DLFP4_CUDA_SYMBOL(symbol, since, parameters) \
  if (strcmp(name, #symbol) == 0) *function = (void *)call_##symbol;
#include "../../src/gpu/symbols.def"
#undef DLFP4_CUDA_SYMBOL
  return kSuccess;
}
