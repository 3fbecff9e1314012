// How products of few rows are shared out to blocks of threads and their warps.
#ifndef DLFP4_SRC_PRODUCTS_CUDA_STREAM_H_
#define DLFP4_SRC_PRODUCTS_CUDA_STREAM_H_

#include "params.h"

namespace dlfp4 {
namespace cuda {

// At most so many tiles at a time, by how many warps.
StreamCut cut_stream(const ProductParams &product, int kind, int eights, int64_t most_tiles, int *warps);

// As many tiles at a time as `memory` has room for; by so many warps as for one, which is how K is shared out.
StreamCut cut_long_stream(const ProductParams &product, int kind, int eights, int memory, int *warps);

// Of a block of threads that needs so many bytes: one a multiprocessor, never two.
int stream_shared_bytes(int bytes);

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_CUDA_STREAM_H_
