# dequantize: the values of a block-scaled tensor.

def dequantize(q, dtype=None, *, out=None, stream=None):
    """The values of a block-scaled tensor.

    Parameters
    ----------
    q : ScaledTensor
        On the host or a CUDA device; of other libraries what :func:`asarray` takes for one.
    dtype : dtype-like, optional
        float32, bfloat16 or float16. Default: the type of `out`, else float32.
    out : producer, optional
        Writable memory of q's shape and `dtype`, of any strides.
    stream : int or stream object, optional
        For CUDA memory: the stream to run on; see :func:`cast`.

    Returns
    -------
    Tensor
        ``(..., K)``, q's shape: ``element * scale``, with NVFP4 ``element * (scale * global_scale)``, of integers
        ``(element - zero point) * scale`` or ``element * scale + bias``, in float32 and without contraction, rounded to
        nearest even. A NaN scale gives NaN.

    Raises
    ------
    TypeError
        `q` is not a ScaledTensor; `dtype` is none of the three; or `out` has another one.
    ValueError
        `out` has another shape.
    BufferError
        Memory that the CPU cannot read, or a read-only `out`.

    Examples
    --------
    >>> import numpy as np, dlfp4
    >>> q = dlfp4.quantize(np.arange(32, dtype="float32"), "mxfp8_e4m3")
    >>> dlfp4.dequantize(q, "bfloat16")[::8]
    Tensor([ 0.,  8., 16., 24.], shape=(4,), dtype=bfloat16, device='cpu', strides=(8,))
    """
    cdef ScaledTensor source
    cdef Tensor given = None if out is None else _borrow_out(out), result, matrix
    cdef int row = row_of_argument(dtype) if dtype is not None else FLOAT32 if given is None else given.row
    cdef Place place
    if type(q) is not ScaledTensor and is_quantized(q):
        q = as_scaled(q)
    if type(q) is not ScaledTensor:
        raise TypeError(f"q is of type {type(q).__name__}; expected a ScaledTensor, from quantize or "
                        "ScaledTensor.from_parts")
    if not SOURCE_ROWS >> row & 1:
        raise TypeError(f"{'out has dtype ' if dtype is None else 'dtype='}{dlfp4_dtypes[row].name.decode()}: "
                        f"block-scaled tensors dequantize to float32, bfloat16 or float16")
    if (<ScaledTensor> q).turned:
        return dequantize(q.mT, dtype, out=None if out is None else given.mT, stream=stream).mT
    place = place_for((<ScaledTensor> q).data, stream, q, out)
    source = plain_on(q, &place)
    if out is None:
        result = allocate_values(source, row, &place)
    else:
        result = check_out_values(given, source, row)
    matrix = view_matrix(result)
    if matrix is None:   # through memory of our own
        matrix = view_matrix(allocate_values(source, row, &place))
    run_dequantize(source, matrix, &place)
    if out is not None and matrix.dl.data != result.dl.data:
        convert(reshape_tensor(matrix, source.shape), result, NULL, &place)
    return result


cdef Tensor allocate_values(ScaledTensor source, int row, const Place *place):
    cdef int64_t dims[MOST_DIMS]
    cdef int ndim = fill_extents(dims, list(source.shape))
    return allocate_on(place, row, ndim, dims, False)


cdef int fill_lines(dlfp4_matrix *matrix, ScaledTensor source, Tensor result) except -1:
    """The result as a matrix whose rows are lines: its columns, where blocks run along columns."""
    fill_matrix(matrix, result)
    if source.axis == -2:
        turn_matrix(matrix)
    return 0


cdef struct Dequantization:
    dlfp4_blocks blocks
    int format
    float decode                # the scale of the whole tensor, on the host
    const float *decode_there   # the same on a device, or NULL
    dlfp4_matrix matrix


cdef int dequantize_at(const Place *place, void *call) noexcept nogil:
    cdef Dequantization *d = <Dequantization *> call
    if is_host(place):
        return dlfp4_host_dequantize(&d.blocks, d.format, d.decode, &d.matrix)
    return dlfp4_cuda_dequantize(place.device, place.stream, &d.blocks, d.format, d.decode_there, &d.matrix)


cdef int run_dequantize(ScaledTensor source, Tensor result, const Place *place) except -1:
    cdef Dequantization call
    cdef Touched touched
    cdef int status
    if result.size_ == 0:   # an empty slice need not end where a block does
        return 0
    fill_blocks(&call.blocks, source, 0)
    fill_lines(&call.matrix, source, result)
    call.format = source.number
    call.decode = 1
    call.decode_there = NULL
    if source.global_scale is not None and source.global_scale.dl.ndim == 0:
        if is_host(place):
            call.decode = read_scalar(source.global_scale)
        else:
            call.decode_there = <const float *> source.global_scale.dl.data
    touch_nothing(&touched)
    reads_parts(&touched, source)
    writes(&touched, result)
    status = run_on(place, &touched, dequantize_at, DLFP4_CUDA_IMAGE_blocks, &call, result.size_)
    return 0 if status == 0 else check_run(place, status, f"dequantizing {source.format}")
