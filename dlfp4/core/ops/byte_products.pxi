# Products of FP8 by FP8 on the tensor cores of a CUDA device, as both operands lie (src/products/cuda/bytes.cuh).
# Which operands are taken is src/products/cuda/byte_operands.cpp's to say, and in words dlfp4/engines/cuda_fp8.py's.

cdef struct BytesMultiplication:
    dlfp4_cuda_bytes_product product
    int tactic


cdef int multiply_bytes_at(const Place *place, void *call) noexcept nogil:
    cdef BytesMultiplication *m = <BytesMultiplication *> call
    return dlfp4_cuda_multiply_bytes(place.device, place.stream, &m.product, m.tactic)


cdef tuple REFUSALS_OF_BYTES = (None, "elements", "scales", "layout")   # as dlfp4_cuda_bytes_refusal counts them


def _refusal_of_bytes(x):
    """Why kernels do not multiply an operand as it lies, in a word: its "elements", "scales" or "layout"; else None."""
    cdef Tensor elements = elements_of(x)
    cdef ScaledTensor scaled
    if type(x) is not ScaledTensor:
        return REFUSALS_OF_BYTES[dlfp4_cuda_refuses_bytes(-1, elements.row, DLFP4_LAYOUT_linear)]
    scaled = x
    return REFUSALS_OF_BYTES[dlfp4_cuda_refuses_bytes(scaled.number, 0, scaled.scale_layout_row)]


cdef object as_bytes(x, const Place *place):
    """An operand (..., lines, K) that bulk copies can read: a copy where it lies otherwise."""
    cdef ScaledTensor scaled
    cdef Tensor rows
    if type(x) is ScaledTensor:
        scaled = readable(x, place)
        if not lies_in_rows_of_16(scaled.data):
            scaled = another(scaled)
            scaled.data = copy_on(scaled.data, place)
        return scaled
    rows = as_rows(x, place)
    return rows if lies_in_rows_of_16(rows) else copy_on(rows, place)


cdef bint lies_in_rows_of_16(Tensor codes) noexcept:
    """Whether bulk copies read the rows of a matrix of bytes."""
    return dlfp4_cuda_reads_rows_of_bytes(codes.dl.data, codes.dl.strides, codes.dl.shape[0], codes.dl.shape[1])


cdef int fill_bytes(dlfp4_cuda_bytes *side, x, Touched *touched) except -1:
    """What `as_bytes` gave, as lines along K."""
    cdef Tensor elements = elements_of(x)
    cdef dlfp4_lines lines
    memset(&lines, 0, sizeof(lines))
    lines.step = 1
    if type(x) is ScaledTensor:
        fill_blocks(&lines.blocks, x, 0)
        lines.format = (<ScaledTensor> x).number
    else:
        fill_plain_bytes(&lines, elements)
    reads_operand(touched, x)
    if dlfp4_cuda_read_bytes(&lines, elements.dl.shape[0], elements.dl.shape[1], side) != 0:
        raise RuntimeError("the kernels of FP8 refused an operand that they were said to take")
    return 0


cdef int fill_plain_bytes(dlfp4_lines *lines, Tensor rows) except -1:
    """A matrix of (lines, K) without scales."""
    secure(rows)
    check_readable(rows)
    lines.blocks.data = rows.dl.data
    lines.blocks.strides[0], lines.blocks.strides[1] = rows.dl.strides[0], rows.dl.strides[1]
    lines.format = -1
    lines.code, lines.bits = rows.dl.dtype.code, rows.dl.dtype.bits
    return 0


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


def _bucket_of_rows(rows):
    """The largest number of rows that shares a choice of kernel with `rows`."""
    return dlfp4_cuda_bucket_of_rows(rows)


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
    target = as_rows(out, &place)
    result = writable_rows(target, &place)
    fill_bytes(&call.product.x, x, &touched)
    fill_bytes(&call.product.w, w, &touched)
    fill_result_of_bytes(&call.product, result, &touched)
    call.product.rows, call.product.depth = result.dl.shape[0], b.shape[0]
    call.product.alpha = dlfp4_host_narrow(alpha)
    call.tactic = TACTICS[tactic]
    check_run(&place, run_on(&place, &touched, multiply_bytes_at, DLFP4_CUDA_IMAGE_products, &call, 0),
              "multiplying matrices")
    if result is not target:
        convert(result, target, NULL, &place)
