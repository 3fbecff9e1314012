# Products of FP8 by FP8 on the tensor cores of a CUDA device, as both operands lie (src/products/cuda/bytes.cuh).
# dlfp4/engines/cuda_fp8.py says which operands are taken.

cdef struct BytesMultiplication:
    dlfp4_cuda_bytes_product product
    int tactic


cdef int multiply_bytes_at(const Place *place, void *call) noexcept nogil:
    cdef BytesMultiplication *m = <BytesMultiplication *> call
    return dlfp4_cuda_multiply_bytes(place.device, place.stream, &m.product, m.tactic)


cdef int fill_scaled_bytes(dlfp4_cuda_bytes *side, ScaledTensor self) except -1:
    """A quantized operand, whose blocks run along K."""
    cdef const dlfp4_format_row *row = &dlfp4_formats[self.number]
    cdef dlfp4_blocks blocks
    fill_blocks(&blocks, self, 0)
    side.data = blocks.data
    side.stride = row_step(self.data)
    side.is_e5m2 = row.element == FLOAT8_E5M2
    side.scales = <const float *> blocks.scales
    side.scale_lines = row.lines
    side.scale_stride = blocks.scale_strides[0]
    side.scale_step = blocks.scale_strides[1] if has_blocks_along(self) else 0   # the one of a row serves all of it
    if self.scale_layout_row == DLFP4_LAYOUT_cublas_1x128:
        side.scale_stride, side.scale_step = 1, blocks.scale_strides[0]
    return 0


cdef int fill_plain_bytes(dlfp4_cuda_bytes *side, Tensor rows) except -1:
    """A matrix of (lines, K) without scales."""
    secure(rows)
    check_readable(rows)
    side.data = rows.dl.data
    side.stride = row_step(rows)
    side.is_e5m2 = rows.row == FLOAT8_E5M2
    return 0


cdef object as_bytes(x, const Place *place):
    """An operand (..., lines, K) that bulk copies can read: a copy where it lies otherwise."""
    cdef ScaledTensor scaled
    cdef Tensor rows
    if type(x) is ScaledTensor:
        scaled = readable(x, place)
        if lies_in_rows_of_16(scaled.data):
            return scaled
        return as_encoded(scaled, make_scaled(copy_on(scaled.data, place), scaled.scales, None, scaled.format, -1,
                                              scaled.scale_layout, scaled.shape, scaled.rotation, None))
    rows = as_rows(x, place)
    return rows if lies_in_rows_of_16(rows) else copy_on(rows, place)


cdef object with_scales_together(x, const Place *place):
    """A matrix whose neighbouring rows' scales lie side by side, as bulk copies take them."""
    cdef ScaledTensor scaled
    if type(x) is not ScaledTensor or x.ndim != 2:
        return x
    scaled = x
    if scaled.scale_layout != "linear" or dlfp4_formats[scaled.number].lines != 1 or not has_blocks_along(scaled):
        return x
    return relayout_on(scaled, "cublas_1x128", 0, place)


cdef bint lies_in_rows_of_16(Tensor codes) noexcept:
    """Whether the rows of a matrix of bytes lie at multiples of 16, each as long as the step to the next at most."""
    cdef int64_t row = row_step(codes)
    return has_dense_lines(codes) and row % 16 == 0 and row >= codes.dl.shape[1] \
        and <uintptr_t> codes.dl.data % 16 == 0


cdef int fill_bytes(dlfp4_cuda_bytes *side, x, Touched *touched) except -1:
    memset(side, 0, sizeof(dlfp4_cuda_bytes))
    reads_operand(touched, x)
    return fill_scaled_bytes(side, x) if type(x) is ScaledTensor else fill_plain_bytes(side, x)


cdef void fill_result_of_bytes(dlfp4_cuda_bytes_product *product, Tensor result, Touched *touched) noexcept:
    cdef dlfp4_cuda_product written
    fill_result(&written, result, touched)
    product.y, product.y_stride = written.y, written.y_stride
    product.y_bytes, product.y_is_half = written.y_bytes, written.y_is_half
    product.columns = written.columns


def _find_bytes_tactics(a, b, rows):
    """The names of the kernels for `rows` rows of FP8 times FP8, the best guess first."""
    cdef int numbers[64]
    cdef int count, device = elements_of(b).dl.device.device_id
    cdef dlfp4_cuda_bytes_product product
    key = (device, format_number(a), format_number(b), rows, b.shape)
    found = look_up(FOUND_TACTICS, key)
    if found is None:
        load_kernels(device, DLFP4_CUDA_IMAGE_products)
        memset(&product, 0, sizeof(product))
        product.x.scale_lines, product.w.scale_lines = lines_of_scale(a), lines_of_scale(b)
        product.x.scale_step, product.w.scale_step = has_blocks_along(a), has_blocks_along(b)
        product.rows, product.columns, product.depth = rows, b.shape[1], b.shape[0]
        check_kernel(dlfp4_cuda_find_bytes_tactics(device, &product, numbers, 64, &count), "choosing a kernel")
        found = keep_tactics(key, numbers, count)
    return found


cdef inline int format_number(x):
    return (<ScaledTensor> x).number if type(x) is ScaledTensor else -1


cdef inline bint has_blocks_along(x):
    """Whether a row has more than one scale."""
    return type(x) is ScaledTensor and dlfp4_formats[(<ScaledTensor> x).number].length > 0


cdef inline int lines_of_scale(x):
    return dlfp4_formats[(<ScaledTensor> x).number].lines if type(x) is ScaledTensor else 0


# From so many rows on, of a matrix and of an expert on average, bringing scales together saves more than it costs.
cdef int64_t MANY_ROWS = 1024, MANY_ROWS_OF_EXPERT = 100


def _multiply_bytes_on_cuda(a, b, Tensor out, alpha, str tactic, stream):
    """out = alpha * a @ b of FP8 (..., M, K) and (K, N)."""
    cdef Place place = place_for(elements_of(a), stream, a, out)
    cdef Tensor target, result
    cdef object x, w   # to be kept until the launch
    cdef BytesMultiplication call
    cdef Touched touched
    memset(&call, 0, sizeof(call))
    touch_nothing(&touched)
    secure(out)
    x, w = as_bytes(a, &place), as_bytes(b.mT, &place)
    target = result = as_rows(out, &place)
    if (result.dl.shape[1] > 1 and result.dl.strides[1] != 1) or not is_aligned(result):
        result = allocate_on(&place, target.row, 2, target.dl.shape, False)
    if tactic == "walk" and result.dl.shape[0] >= MANY_ROWS:
        x = with_scales_together(x, &place)
    fill_bytes(&call.product.x, x, &touched)
    fill_bytes(&call.product.w, w, &touched)
    fill_result_of_bytes(&call.product, result, &touched)
    call.product.rows, call.product.depth = result.dl.shape[0], b.shape[0]
    call.product.alpha = alpha
    call.tactic = TACTICS[tactic]
    check_run(&place, run_on(&place, &touched, multiply_bytes_at, DLFP4_CUDA_IMAGE_products, &call, 0),
              "multiplying matrices")
    if result is not target:
        convert(result, target, NULL, &place)
