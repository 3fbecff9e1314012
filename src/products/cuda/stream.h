// How products of few rows are shared out to blocks of threads and their warps.
#ifndef DLFP4_SRC_PRODUCTS_CUDA_STREAM_H_
#define DLFP4_SRC_PRODUCTS_CUDA_STREAM_H_

#include "params.h"

namespace dlfp4 {
namespace cuda {

// At most so many tiles at a time, by how many warps.
StreamCut cut_stream(const ProductParams &product, int kind, int eights, int64_t most_tiles, int *warps);

// For experts, by as many warps as for one tile at a time, which is how K is shared out: the bytes of shared memory,
// which may be more than there are.
int cut_streamed_experts(const ProductParams &product, int kind, int *warps, StreamedCut *cut);

// Of a block of threads that needs so many bytes: one a multiprocessor, never two.
int stream_shared_bytes(int bytes);

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_CUDA_STREAM_H_
