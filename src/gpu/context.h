// The opened driver, and what a thread is allowed for as long as a call lasts: a context, and what no graph can hold.
// Layout: the driver's ABI, as far as it is used; declared here so that building needs no CUDA toolkit.
// Trick: the current context serves if it is on the tensor's device, else the primary one, pushed and popped.
// While any thread captures in the driver's global mode, the others may not allocate, free or wait either, unless they
// have exchanged their mode for the relaxed one: their attempt would end the capture. Ours concern streams that are not
// captured.
#ifndef DLFP4_SRC_GPU_CONTEXT_H_
#define DLFP4_SRC_GPU_CONTEXT_H_

#include <stddef.h>
#include <stdint.h>

namespace dlfp4 {
namespace cuda {

using CUresult = int;
using CUdevice = int;
using CUdeviceptr = uintptr_t;
using CUcontext = struct CUctx_st *;
using CUstream = struct CUstream_st *;
using CUevent = struct CUevent_st *;
using CUlibrary = struct CUlib_st *;
using CUkernel = struct CUkern_st *;
using CUfunction = struct CUfunc_st *;
using CUgraph = struct CUgraph_st *;
using CUuserObject = struct CUuserObject_st *;

constexpr int kMaxDevices = 64;

// CUresult, those that are given or told apart here.
enum Status {
  kNotInitialized = 3,
  kInvalidDevice = 101,
  kNoBinary = 209,  // for this GPU
  kInvalidPtx = 218,
  kJitCompilerNotFound = 221,
  kUnsupportedPtxVersion = 222,
  kJitCompilationDisabled = 223,
  kNotSupported = 801
};

constexpr unsigned kEventDisableTiming = 2;

// CUlaunchAttribute and CUlaunchConfig.
struct LaunchAttribute {
  int id;
  alignas(8) union {
    char pad[64];
    struct {
      unsigned int x, y, z;
    } cluster;
    int programmatic;
  } value;
};

struct LaunchConfig {
  unsigned int grid[3], block[3];
  unsigned int shared_bytes;
  CUstream stream;
  LaunchAttribute *attributes;
  unsigned int num_attributes;
};

struct Driver {
#define DLFP4_CUDA_SYMBOL(name, version, parameters) CUresult(*name) parameters;
#include "symbols.def"
#undef DLFP4_CUDA_SYMBOL
  CUcontext primary[kMaxDevices];
  int status;
};

// After a CurrentContext without an error.
const Driver &opened_driver();

// While it lives, the device's context is current, and no capture forbids this thread anything.
class CurrentContext {
 public:
  explicit CurrentContext(int device);
  ~CurrentContext();
  CurrentContext(const CurrentContext &) = delete;
  CurrentContext &operator=(const CurrentContext &) = delete;
  int status() const { return status_; }

 private:
  int make_current(int device);

  static constexpr int kRelaxed = 2;
  int mode_ = kRelaxed;  // the thread's own, once exchanged
  int status_ = 0;
  // Tests have a driver of their own.
  [[maybe_unused]] bool exchanged_ = false, pushed_ = false;
};

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_GPU_CONTEXT_H_
