# Cython's view of the native side: the element-type table, the host kernels, the CUDA driver.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint64_t, uintptr_t


cdef extern from "dtypes.h" nogil:
    enum:
        DLFP4_NUM_DTYPES
        DLFP4_NONE

    ctypedef struct dlfp4_dtype_row:
        const char *name
        uint8_t code
        uint8_t bits
        uint8_t exponent
        uint8_t mantissa
        int16_t bias
        uint8_t specials

    const dlfp4_dtype_row dlfp4_dtypes[]


cdef extern from "dlfp4/dlfp4.h" nogil:
    ctypedef int dlfp4_status
    enum:
        DLFP4_OK
        DLFP4_E_DTYPE
        DLFP4_E_SHAPE
        DLFP4_E_OPTION
        DLFP4_E_ISA

    ctypedef struct dlfp4_view:
        void *data
        const int64_t *shape
        const int64_t *strides
        int32_t ndim
        uint8_t code
        uint8_t bits
        uint8_t padded

    ctypedef int dlfp4_rounding
    enum:
        DLFP4_NEAREST_EVEN
        DLFP4_NEAREST_AWAY
        DLFP4_TOWARD_ZERO
        DLFP4_STOCHASTIC

    ctypedef struct dlfp4_convert_options:
        dlfp4_rounding rounding
        int saturate
        uint64_t seed

    dlfp4_status dlfp4_convert(const dlfp4_view *, const dlfp4_view *, const dlfp4_convert_options *)
    const char *dlfp4_isa()
    dlfp4_status dlfp4_set_isa(const char *)
    void dlfp4_set_num_threads(int)
    int dlfp4_get_num_threads()


cdef extern from "cuda/driver.h" nogil:
    enum:
        DLFP4_CUDA_MISSING
    const char *dlfp4_cuda_error_name(int)
    int dlfp4_cuda_device_count(int *)
    ctypedef enum dlfp4_cuda_direction "enum dlfp4_cuda_direction":
        DLFP4_HOST_TO_DEVICE
        DLFP4_DEVICE_TO_HOST
        DLFP4_DEVICE_TO_DEVICE
    int dlfp4_cuda_copy(int, uintptr_t, dlfp4_cuda_direction, void *, const void *, size_t)
    int dlfp4_cuda_alloc(int, uintptr_t, size_t, void **)
    int dlfp4_cuda_free(int, uintptr_t, void *)
    int dlfp4_cuda_order(int, uintptr_t, uintptr_t)
