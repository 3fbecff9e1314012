// What hosts know of the kernels of casts, packing and unpacking.
#ifndef DLFP4_SRC_CODECS_CUDA_CODEC_KERNELS_H_
#define DLFP4_SRC_CODECS_CUDA_CODEC_KERNELS_H_

#include "gpu/keys.h"
#include "params.h"

namespace dlfp4 {
namespace cuda {

// What there are kernels for; 0 is kByName.
enum CodecOperation { kEncode = 1, kEncodeToBits, kDecode, kRecodeBits, kConvertFloats, kMove };

}  // namespace cuda
}  // namespace dlfp4

#define DLFP4_CUDA_IMAGE_NAME codecs
#define DLFP4_CUDA_IMAGE_LIST "codecs/cuda/codecs.def"
#include "gpu/kernels_of_image.h"

#endif  // DLFP4_SRC_CODECS_CUDA_CODEC_KERNELS_H_
