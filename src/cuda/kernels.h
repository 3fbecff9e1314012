/* The operations of dlfp4.h on CUDA memory, in the order of a stream.
 *
 * All return 0, a CUresult, DLFP4_CUDA_MISSING, or -(DLFP4_CUDA_REFUSED + a dlfp4_status) for a description that the
 * kernels do not take. None waits, none allocates: all can be captured in a graph.
 */
#ifndef DLFP4_SRC_CUDA_KERNELS_H_
#define DLFP4_SRC_CUDA_KERNELS_H_

#include <stdint.h>

#include "dlfp4/dlfp4.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DLFP4_CUDA_NO_IMAGE (-2) /* this build has no CUDA kernels */
#define DLFP4_CUDA_REFUSED 100

int dlfp4_cuda_convert(int device, uintptr_t stream, const dlfp4_view *src, const dlfp4_view *dst,
                       const dlfp4_convert_options *options);

/* `place` is four bytes on the device for the decode scale of the whole tensor, of the formats that have one. With
 * `given` nonzero it holds that scale, otherwise it is found in x. */
int dlfp4_cuda_quantize(int device, uintptr_t stream, const dlfp4_matrix *x, int format, const dlfp4_recipe *recipe,
                        int given, void *place, const dlfp4_blocks *along_rows, const dlfp4_blocks *along_columns);

/* Four bytes to the device, and from one place on it to another, in the order of the stream. */
int dlfp4_cuda_set_word(int device, uintptr_t stream, void *place, uint32_t value);
int dlfp4_cuda_copy_word(int device, uintptr_t stream, void *dst, const void *src);

/* `decode` is on the device, or NULL. */
int dlfp4_cuda_dequantize(int device, uintptr_t stream, const dlfp4_blocks *q, int format, const float *decode,
                          const dlfp4_matrix *result);

int dlfp4_cuda_convert_scales(int device, uintptr_t stream, const void *src, int src_layout, void *dst, int dst_layout,
                              int64_t rows, int64_t columns, uint8_t fill);

int dlfp4_cuda_shuffle_weight(int device, uintptr_t stream, const void *src, void *dst, int64_t rows, int64_t columns,
                              int back);

/* Whether this build has kernels, and what it was compiled for ("90a compute_80"), or "". */
const char *dlfp4_cuda_image(void);

#ifdef __cplusplus
}
#endif

#endif /* DLFP4_SRC_CUDA_KERNELS_H_ */
