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

/* The decode scale of the whole tensor, of formats that have one. All pointers are to the device. */
typedef struct {
  const float *given; /* NULL: `number` is the scale, or, if that is 0, it is found in x */
  float number;
  float *places[2]; /* where the scale of each result is kept; the second may be NULL */
} dlfp4_cuda_scale;

int dlfp4_cuda_quantize(int device, uintptr_t stream, const dlfp4_matrix *x, int format, const dlfp4_recipe *recipe,
                        const dlfp4_cuda_scale *scale, const dlfp4_blocks *along_rows,
                        const dlfp4_blocks *along_columns);

/* `decode` is on the device, or NULL. */
int dlfp4_cuda_dequantize(int device, uintptr_t stream, const dlfp4_blocks *q, int format, const float *decode,
                          const dlfp4_matrix *result);

int dlfp4_cuda_convert_scales(int device, uintptr_t stream, const void *src, int src_layout, void *dst, int dst_layout,
                              int64_t rows, int64_t columns, uint8_t fill);

int dlfp4_cuda_shuffle_weight(int device, uintptr_t stream, const void *src, void *dst, int64_t rows, int64_t columns,
                              int back);

/* What this build's image was compiled for ("90a, PTX"), or "" where it has none. */
const char *dlfp4_cuda_image(void);

/* Loads the kernels, if they are not: the build's, or another image of the same sources. DLFP4_CUDA_NO_IMAGE where the
 * build has none, CUDA_ERROR_NO_BINARY_FOR_GPU and the like where it does not serve the device. */
int dlfp4_cuda_load(int device, const void *image);

/* The device's compute capability: 90 for 9.0. */
int dlfp4_cuda_architecture(int device, int *architecture);

#ifdef __cplusplus
}
#endif

#endif /* DLFP4_SRC_CUDA_KERNELS_H_ */
