// Runs a call on a CUDA device.
// Layout: the drivers' codes, and statuses.
// Trick: an image is loaded by the first call that needs it.
#ifndef DLFP4_SRC_API_CUDA_RUN_H_
#define DLFP4_SRC_API_CUDA_RUN_H_

#include "api/calls.h"
#include "gpu/driver.h"
#include "gpu/kernels.h"

namespace dlfp4 {
namespace api {

inline dlfp4_status status_of(int code) {
  if (code == 0) return DLFP4_OK;
  if (code <= -DLFP4_CUDA_REFUSED) return static_cast<dlfp4_status>(-code - DLFP4_CUDA_REFUSED);
  if (code == DLFP4_CUDA_MISSING) return DLFP4_E_CUDA_DRIVER;
  if (dlfp4_cuda_is_unserved(code)) return DLFP4_E_CUDA_KERNELS;
  return static_cast<dlfp4_status>(DLFP4_E_CUDA + code);
}

inline dlfp4_status load(int device, int image) {
  if (dlfp4_cuda_is_loaded(device, image)) return DLFP4_OK;
  return status_of(dlfp4_cuda_load(device, image, nullptr));
}

// Runs `call()` once its kernels are loaded.
template <class Call>
dlfp4_status run(const Place &place, int image, Call call) {
  if (const dlfp4_status status = load(place.device, image)) return status;
  return status_of(call());
}

}  // namespace api
}  // namespace dlfp4

#endif  // DLFP4_SRC_API_CUDA_RUN_H_
