/* The few driver calls that moving memory needs: copy, allocate, order two streams.
 *
 * libcuda is opened at the first call, never linked: the library works, and imports, on hosts without a GPU.
 * Functions return a CUresult (0: success), or DLFP4_CUDA_MISSING where no usable driver is installed.
 * Streams are handles as DLPack gives them: 0 and 1 the legacy default stream, 2 the per-thread default stream. */
#ifndef DLFP4_SRC_GPU_DRIVER_H_
#define DLFP4_SRC_GPU_DRIVER_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default) /* of the library, for the extension */

#define DLFP4_CUDA_MISSING (-1)

/* The driver's name for a status ("CUDA_ERROR_INVALID_VALUE"), static. */
const char *dlfp4_cuda_error_name(int status);

int dlfp4_cuda_device_count(int *count);

/* Copies `bytes` after the work on `stream`, and waits. A side that is said to be on the device must be: the driver
 * refuses a host address there, where its general copy would read it as host memory. */
enum dlfp4_cuda_direction { DLFP4_HOST_TO_DEVICE, DLFP4_DEVICE_TO_HOST, DLFP4_DEVICE_TO_DEVICE };
int dlfp4_cuda_copy(int device, uintptr_t stream, enum dlfp4_cuda_direction direction, void *dst, const void *src,
                    size_t bytes);

/* The same from the memory of `device` to that of another. GPUs that cannot reach each other's memory need this: the
 * driver's general copy refuses what they allocate in the order of a stream. */
int dlfp4_cuda_copy_to_peer(int device, uintptr_t stream, int peer, void *dst, const void *src, size_t bytes);

struct dlfp4_cuda_uses;

/* In the order of the stream. What a capture allocates stays until the graph has ended and it was freed. */
int dlfp4_cuda_alloc(int device, uintptr_t stream, size_t bytes, void **out);
int dlfp4_cuda_free(int device, uintptr_t stream, void *ptr, struct dlfp4_cuda_uses *uses);

/* Memory is freed after what `stream` holds now as well, whatever becomes of the stream; `uses` starts as NULL and ends
 * with dlfp4_cuda_free. What a graph uses is not waited for: who replays it keeps that, and what the capture itself has
 * made does not serve it again. Calls for one memory exclude each other. */
int dlfp4_cuda_add_use(int device, struct dlfp4_cuda_uses **uses, uintptr_t stream);

/* Waits for the work that `stream` holds. */
int dlfp4_cuda_wait(int device, uintptr_t stream);

/* The device of a stream; `device` where the driver does not say. A kernel launched on a stream of another device reads
 * outside of its memory, which ends the process's use of the GPU. */
int dlfp4_cuda_device_of_stream(int device, uintptr_t stream);

/* Whether work on `stream` goes into a graph, or may not be done while another stream is captured. */
bool dlfp4_cuda_is_capturing(int device, uintptr_t stream);

/* Work put on `later` from now on runs after what `earlier` holds now. The host does not wait. While one of them is
 * captured into a graph there is no such order between the two, and none is made: what the graph reads has to be ready
 * when it is replayed. */
int dlfp4_cuda_order(int device, uintptr_t earlier, uintptr_t later);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif /* DLFP4_SRC_GPU_DRIVER_H_ */
