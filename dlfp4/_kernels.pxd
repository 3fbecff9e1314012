# Cython's view of the native side: the element-type table, the host kernels, the CUDA driver.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t


cdef extern from "rules/dtypes.h" nogil:
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


cdef extern from "rules/formats.h" nogil:
    enum:
        DLFP4_NUM_FORMATS
        DLFP4_TWO_LEVEL
        DLFP4_POWER
        DLFP4_LARGEST

    ctypedef struct dlfp4_format_row:
        const char *name
        uint8_t element
        uint8_t scale
        uint8_t kind
        uint8_t repeats
        int32_t lines
        int32_t length

    const dlfp4_format_row dlfp4_formats[]


cdef extern from "rules/layouts.h" nogil:
    enum:
        DLFP4_NUM_LAYOUTS
        DLFP4_LAYOUT_linear, DLFP4_LAYOUT_aiter, DLFP4_LAYOUT_cublas_1x128

    ctypedef struct dlfp4_layout_row:
        const char *name
        int32_t rows
        int32_t columns
        int32_t run
        int32_t bytes
        int32_t by_rows
        int32_t lines

    const dlfp4_layout_row dlfp4_layouts[]


cdef extern from "dlfp4/dlfp4.h" nogil:
    ctypedef int dlfp4_status
    enum:
        DLFP4_OK
        DLFP4_E_SHAPE

    const char *dlfp4_version()
    const char *dlfp4_status_string(dlfp4_status)
    dlfp4_status dlfp4_register_tvm_ffi()
    uint32_t dlfp4_rotation(uint64_t)
    const char *dlfp4_isa()
    dlfp4_status dlfp4_set_isa(const char *)
    const char *dlfp4_isa_numbered(int)
    void dlfp4_set_num_threads(int)
    int dlfp4_get_num_threads()


cdef extern from "rules/operations.h" nogil:
    ctypedef struct dlfp4_view:
        void *data
        const int64_t *shape
        const int64_t *strides
        int32_t ndim
        uint8_t code
        uint8_t bits
        uint8_t padded
        uint8_t part

    ctypedef int dlfp4_rounding
    enum:
        DLFP4_NEAREST_EVEN
        DLFP4_NEAREST_AWAY
        DLFP4_TOWARD_ZERO
        DLFP4_NEAREST_ZERO
        DLFP4_UPWARD
        DLFP4_STOCHASTIC

    ctypedef struct dlfp4_convert_options:
        dlfp4_rounding rounding
        int saturate
        uint64_t seed

    dlfp4_status dlfp4_host_convert(const dlfp4_view *, const dlfp4_view *, const dlfp4_convert_options *)
    float dlfp4_host_narrow(double)

    ctypedef int dlfp4_scale_rule
    enum:
        DLFP4_SCALE_FLOOR
        DLFP4_SCALE_RCEIL
        DLFP4_SCALE_CEIL
        DLFP4_SCALE_EVEN

    ctypedef int dlfp4_scale_order
    enum:
        DLFP4_GLOBAL_FIRST
        DLFP4_BLOCK_FIRST
        DLFP4_INPUT_TYPE

    ctypedef int dlfp4_four_over_six
    enum:
        DLFP4_NOT_FOUR_OVER_SIX
        DLFP4_MEAN_ABSOLUTE
        DLFP4_MEAN_SQUARED

    ctypedef struct dlfp4_recipe:
        dlfp4_scale_rule scale_rule
        dlfp4_scale_order scale_order
        dlfp4_four_over_six four_over_six
        float largest_scale
        dlfp4_rounding rounding
        uint64_t seed
        uint64_t first
        float eps
        uint8_t divides
        uint8_t pow2
        uint8_t zero_scale
        uint8_t least_scale
        uint8_t drops_negative_zero
        uint8_t rounds_to_plus_zero
        uint8_t scale_code
        uint8_t scale_bits

    ctypedef struct dlfp4_tensor_scale:
        float encode
        float decode
        float largest

    ctypedef struct dlfp4_matrix:
        void *data
        int64_t rows
        int64_t columns
        int64_t strides[2]
        uint8_t code
        uint8_t bits

    ctypedef struct dlfp4_blocks:
        void *data
        int64_t strides[2]
        void *scales
        int64_t scale_strides[2]
        int32_t layout
        uint8_t fill
        int64_t length
        float *decodes
        int64_t decode_lines
        uint8_t finds_decodes
        uint32_t rotation
        void *offsets
        int64_t offset_strides[2]
        uint8_t offset_code
        uint8_t offset_bits

    enum:
        DLFP4_ROTATED
    dlfp4_status dlfp4_host_find_tensor_scale(const dlfp4_matrix *, int, const dlfp4_recipe *, uint32_t,
                                              dlfp4_tensor_scale *)
    dlfp4_tensor_scale dlfp4_host_given_tensor_scale(float)
    bint dlfp4_host_is_decode_scale(float)
    dlfp4_status dlfp4_host_quantize(const dlfp4_matrix *, int, const dlfp4_recipe *, const dlfp4_tensor_scale *,
                                     const dlfp4_blocks *, const dlfp4_blocks *)
    dlfp4_status dlfp4_host_dequantize(const dlfp4_blocks *, int, float, const dlfp4_matrix *)
    dlfp4_status dlfp4_host_convert_scales(const void *, int, void *, int, int64_t, int64_t, int, uint8_t)
    dlfp4_status dlfp4_host_shuffle_weight(const void *, void *, int64_t, int64_t, int)

    ctypedef struct dlfp4_grid:
        int64_t rows, columns, lines, length

    ctypedef struct dlfp4_changes:
        uint64_t changed
        double largest

    ctypedef struct dlfp4_stored:
        const float *values
        uint8_t *codes
        uint8_t *scales

    dlfp4_status dlfp4_host_find_changes(const dlfp4_grid *, const float *, const float *, float *, float *, int)
    dlfp4_status dlfp4_host_sum_up_changes(const float *, const float *, int64_t, dlfp4_changes *)
    dlfp4_status dlfp4_host_take_better(const dlfp4_grid *, const float *, int64_t, const dlfp4_stored *,
                                        const dlfp4_stored *)

    ctypedef struct dlfp4_lines:
        dlfp4_blocks blocks
        int32_t format
        uint8_t code
        uint8_t bits
        uint8_t padded
        float decode
        int64_t first
        int64_t step

    dlfp4_status dlfp4_host_vecdot(const dlfp4_lines *, const dlfp4_lines *, int64_t, int64_t, float *, int64_t)

    dlfp4_status dlfp4_host_vecdot_axes(const dlfp4_lines *, const int64_t *, const dlfp4_lines *, const int64_t *, int,
                                        const int64_t *, int64_t, float *)

    ctypedef int dlfp4_activation
    enum:
        DLFP4_ACTIVATION_EXACT
        DLFP4_ACTIVATION_INT8

    ctypedef struct dlfp4_matmul_options:
        dlfp4_activation activation
        float alpha

    int64_t dlfp4_host_matmul_workspace(const dlfp4_lines *, const dlfp4_lines *, int64_t, const dlfp4_matrix *,
                                        const dlfp4_matmul_options *)
    dlfp4_status dlfp4_host_matmul(const dlfp4_lines *, const dlfp4_lines *, int64_t, const dlfp4_matrix *,
                                   const dlfp4_matmul_options *, void *)

    ctypedef struct dlfp4_groups:
        int64_t rows
        int64_t experts
        int64_t step
        const int64_t *ends
        const int64_t *gather
        const int64_t *scatter
        const float *weights

    int64_t dlfp4_host_grouped_matmul_workspace(const dlfp4_lines *, const dlfp4_lines *, int64_t, const dlfp4_groups *,
                                                const dlfp4_matrix *, const dlfp4_matmul_options *)
    dlfp4_status dlfp4_host_grouped_matmul(const dlfp4_lines *, const dlfp4_lines *, int64_t, const dlfp4_groups *,
                                           const dlfp4_matrix *, const dlfp4_matmul_options *, void *)


cdef extern from "xla/plans.h" nogil:
    enum:
        DLFP4_PLAN_VERSION
        DLFP4_PLAN_AXES

    ctypedef struct dlfp4_plan:
        uint32_t version
        uint32_t bytes
        int64_t count
        int64_t steps[8]

    ctypedef struct dlfp4_plan_elements:
        uint8_t code
        uint8_t bits
        uint8_t padded

    ctypedef struct dlfp4_convert_plan:
        dlfp4_plan plan
        int64_t size
        dlfp4_plan_elements source
        dlfp4_plan_elements result
        dlfp4_convert_options options

    ctypedef int dlfp4_unit
    enum:
        DLFP4_UNIT_NONE
        DLFP4_UNIT_TENSOR
        DLFP4_UNIT_LINES

    enum:
        DLFP4_GIVEN_NOTHING
        DLFP4_GIVEN_SCALE
        DLFP4_GIVEN_LARGEST

    ctypedef struct dlfp4_quantize_plan:
        dlfp4_plan plan
        dlfp4_matrix x
        int32_t format
        uint32_t rotation
        dlfp4_recipe recipe
        dlfp4_blocks blocks[2]
        uint8_t along[2]
        uint8_t given
        uint8_t has_scale
        dlfp4_unit unit
        int64_t units
        int64_t parts
        int64_t part_steps[3]
        uint64_t part_elements

    ctypedef struct dlfp4_dequantize_plan:
        dlfp4_plan plan
        dlfp4_blocks blocks
        int32_t format
        dlfp4_unit unit
        dlfp4_matrix result

    ctypedef struct dlfp4_plan_factor:
        dlfp4_lines lines
        dlfp4_unit unit

    ctypedef struct dlfp4_matmul_plan:
        dlfp4_plan plan
        dlfp4_plan_factor factors[2]
        int64_t length
        dlfp4_matrix result
        dlfp4_matmul_options options

    enum:
        DLFP4_ROUTING_GATHERS
        DLFP4_ROUTING_ADDS

    ctypedef struct dlfp4_grouped_plan:
        dlfp4_plan plan
        dlfp4_plan_factor factors[2]
        int64_t length
        dlfp4_matrix result
        dlfp4_matmul_options options
        int64_t rows
        int64_t experts
        int64_t step
        int64_t tokens
        int64_t routing

    ctypedef struct dlfp4_vecdot_plan:
        dlfp4_plan plan
        dlfp4_plan_factor factors[2]
        int64_t length
        int32_t ndim
        int64_t shape[32]
        int64_t strides[2][32]


cdef extern from "xla/handlers.h" nogil:
    ctypedef void *dlfp4_xla_function "XLA_FFI_Handler *"

    ctypedef struct dlfp4_xla_handler:
        const char *name
        dlfp4_xla_function execute
        dlfp4_xla_function initialize

    const dlfp4_xla_handler *dlfp4_xla_handlers()
    const dlfp4_xla_handler *dlfp4_xla_handlers_of_cuda()


cdef extern from "gpu/kernels.h" nogil:
    enum:
        DLFP4_CUDA_REFUSED
        DLFP4_CUDA_NO_IMAGE
        DLFP4_CUDA_CAPTURE_IMPLICIT
        DLFP4_CUDA_IMAGE_codecs
        DLFP4_CUDA_IMAGE_blocks
        DLFP4_CUDA_IMAGE_dots
        DLFP4_CUDA_IMAGE_products
        DLFP4_CUDA_IMAGE_grouped
    int dlfp4_cuda_convert(int, uintptr_t, const dlfp4_view *, const dlfp4_view *, const dlfp4_convert_options *)
    ctypedef struct dlfp4_cuda_scale:
        const float *given
        float number
        float *places[2]
    int dlfp4_cuda_quantize(int, uintptr_t, const dlfp4_matrix *, int, const dlfp4_recipe *, const dlfp4_cuda_scale *,
                            const dlfp4_blocks *, const dlfp4_blocks *)
    bint dlfp4_cuda_quantizes_slowly(const dlfp4_matrix *, int)
    int dlfp4_cuda_dequantize(int, uintptr_t, const dlfp4_blocks *, int, const float *, const dlfp4_matrix *)
    int dlfp4_cuda_convert_scales(int, uintptr_t, const void *, int, void *, int, int64_t, int64_t, int, uint8_t)
    int dlfp4_cuda_shuffle_weight(int, uintptr_t, const void *, void *, int64_t, int64_t, int)
    int dlfp4_cuda_find_changes(int, uintptr_t, const dlfp4_grid *, const float *, const float *, float *, float *, int)
    int dlfp4_cuda_sum_up_changes(int, uintptr_t, const float *, const float *, int64_t, dlfp4_changes *)
    int dlfp4_cuda_take_better(int, uintptr_t, const dlfp4_grid *, const float *, int64_t, const dlfp4_stored *,
                               const dlfp4_stored *)
    ctypedef struct dlfp4_cuda_lines:
        dlfp4_lines lines
        const int64_t *strides
        const float *decode
    int64_t dlfp4_cuda_vecdot_workspace(int64_t, int64_t)
    int dlfp4_cuda_vecdot(int, uintptr_t, const dlfp4_cuda_lines *, const dlfp4_cuda_lines *, int, const int64_t *,
                          int64_t, float *, double *)
    ctypedef struct dlfp4_cuda_prepared_size:
        int64_t blocks, code_bytes, scale_bytes, block_rows
    ctypedef struct dlfp4_cuda_report:
        uint32_t refused, largest, smallest
    dlfp4_cuda_prepared_size dlfp4_cuda_size_prepared(int, int64_t, int64_t)
    int dlfp4_cuda_inspect(int, uintptr_t, const dlfp4_blocks *, int, int64_t, dlfp4_cuda_report *)
    bint dlfp4_cuda_can_prepare(int, const dlfp4_cuda_report *)
    bint dlfp4_cuda_is_exact_in_half(int, const dlfp4_cuda_report *)
    int dlfp4_cuda_prepare(int, uintptr_t, const dlfp4_blocks *, int, int64_t, int, void *, bint)
    ctypedef struct dlfp4_cuda_product:
        const void *weights
        int format, largest
        const void *x
        int64_t x_stride
        bint x_is_half
        const void *x_scales
        int64_t x_scale_stride
        void *y
        int64_t y_stride
        int y_bytes
        bint y_is_half
        int64_t rows, columns, depth, stored_depth
        float alpha
        const float *factors[2]
    const char *dlfp4_cuda_tactic_name(int)
    int dlfp4_cuda_find_tactics(int, int, int64_t, int64_t, int64_t, int *, int, int *)
    int64_t dlfp4_cuda_reads_codes(int, int64_t, int)
    int dlfp4_cuda_multiply(int, uintptr_t, const dlfp4_cuda_product *, int)
    ctypedef struct dlfp4_cuda_bytes:
        const void *data
        int64_t stride
        bint is_e5m2
        const float *scales
        int64_t scale_stride, scale_step
        int scale_lines
    ctypedef struct dlfp4_cuda_bytes_product:
        dlfp4_cuda_bytes x, w
        void *y
        int64_t y_stride
        int y_bytes
        bint y_is_half
        int64_t rows, columns, depth
        float alpha
    int dlfp4_cuda_find_bytes_tactics(int, const dlfp4_cuda_bytes_product *, int *, int, int *)
    ctypedef int dlfp4_cuda_bytes_refusal
    dlfp4_cuda_bytes_refusal dlfp4_cuda_refuses_bytes(int, int, int)
    bint dlfp4_cuda_reads_rows_of_bytes(const void *, const int64_t *, int64_t, int64_t)
    dlfp4_status dlfp4_cuda_read_bytes(const dlfp4_lines *, int64_t, int64_t, dlfp4_cuda_bytes *)
    int64_t dlfp4_cuda_bucket_of_rows(int64_t)
    int dlfp4_cuda_multiply_bytes(int, uintptr_t, const dlfp4_cuda_bytes_product *, int)
    ctypedef struct dlfp4_cuda_routing:
        int64_t experts
        const void *ends
        int end_bits
        const void *indices
        int index_bits
        bint gathers
        bint adds
        const float *weights
        int64_t tokens
        void *workspace
    int dlfp4_cuda_need_grouped(int, int)
    int64_t dlfp4_cuda_grouped_matmul_workspace(const dlfp4_cuda_product *, const dlfp4_cuda_routing *)
    int64_t dlfp4_cuda_grouped_matmul_bytes_workspace(const dlfp4_cuda_bytes_product *, const dlfp4_cuda_routing *)
    int dlfp4_cuda_grouped_matmul(int, uintptr_t, const dlfp4_cuda_product *, int, const dlfp4_cuda_routing *)
    bint dlfp4_cuda_brings_scales(const dlfp4_cuda_bytes_product *, const dlfp4_cuda_routing *)
    int dlfp4_cuda_grouped_matmul_bytes(int, uintptr_t, const dlfp4_cuda_bytes_product *, const dlfp4_cuda_routing *)
    const char *dlfp4_cuda_image()
    int dlfp4_cuda_load(int, int, const void *)
    bint dlfp4_cuda_is_unserved(int)
    bint dlfp4_cuda_is_loaded(int, int)
    const char *dlfp4_cuda_image_name(int)
    int dlfp4_cuda_architecture(int, int *)
    int dlfp4_cuda_device_name(int, char *, int)


cdef extern from "gpu/driver.h" nogil:
    int DLFP4_CUDA_MISSING
    const char *dlfp4_cuda_error_name(int)
    int dlfp4_cuda_device_count(int *)
    ctypedef enum dlfp4_cuda_direction "enum dlfp4_cuda_direction":
        DLFP4_HOST_TO_DEVICE
        DLFP4_DEVICE_TO_HOST
        DLFP4_DEVICE_TO_DEVICE
    int dlfp4_cuda_copy(int, uintptr_t, dlfp4_cuda_direction, void *, const void *, size_t)
    int dlfp4_cuda_copy_to_peer(int, uintptr_t, int, void *, const void *, size_t)
    int dlfp4_cuda_alloc(int, uintptr_t, size_t, void **)
    struct dlfp4_cuda_uses:
        pass
    int dlfp4_cuda_free(int, uintptr_t, void *, dlfp4_cuda_uses *)
    int dlfp4_cuda_add_use(int, dlfp4_cuda_uses **, uintptr_t)
    int dlfp4_cuda_wait(int, uintptr_t)
    int dlfp4_cuda_order(int, uintptr_t, uintptr_t)
    int dlfp4_cuda_device_of_stream(int, uintptr_t)
    bint dlfp4_cuda_is_capturing(int, uintptr_t)
