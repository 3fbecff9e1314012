// The version of the library, statuses in words, and what belongs to devices.
#include "calls.h"

#define DLFP4_TEXT_OF(number) #number
#define DLFP4_TEXT(number) DLFP4_TEXT_OF(number)

extern "C" {

const char *dlfp4_version(void) {
  return DLFP4_TEXT(DLFP4_VERSION_MAJOR) "." DLFP4_TEXT(DLFP4_VERSION_MINOR) "." DLFP4_TEXT(DLFP4_VERSION_PATCH);
}

const char *dlfp4_status_string(dlfp4_status status) {
  switch (static_cast<int>(status)) {
    case DLFP4_OK:
      return "done";
    case DLFP4_E_DTYPE:
      return "an element type, or a pair of them, that the operation does not have";
    case DLFP4_E_SHAPE:
      return "shapes differ or do not divide into blocks, or strides or an alignment are not taken; see "
             "dlfp4_size_buffers";
    case DLFP4_E_OPTION:
      return "NULL, or an option, a format, an axis or a layout that is out of range or has no use here";
    case DLFP4_E_ISA:
      return "an instruction set that this machine, or this build, does not have; see the variable DLFP4_ISA";
    case DLFP4_E_DEVICE:
      return "tensors on several devices, or memory that the operation does not reach";
    case DLFP4_E_MEMORY:
      return "no memory on the host";
    case DLFP4_E_LIBRARY:
      return "a library that the process has not loaded";
    case DLFP4_E_CUDA_DRIVER:
      return "no CUDA driver, or no device";
    case DLFP4_E_CUDA_KERNELS:
      return "no kernels for the CUDA device: build with nvcc for its architecture, if the operation is for that";
    default:
      return status >= DLFP4_E_CUDA && status <= DLFP4_E_CUDA_LAST ? dlfp4::api::name_of_cuda(status - DLFP4_E_CUDA)
                                                                   : "no status of dlfp4";
  }
}

dlfp4_status dlfp4_load_cuda(int device) { return dlfp4::api::load_on_cuda(device); }
}
