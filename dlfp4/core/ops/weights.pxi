# shuffle_weight and its inverse: weights in the order in which a library's matrix kernels read them.

def shuffle_weight(x, layout="aiter"):
    """A weight in the order in which a library's matrix kernels read it.

    Parameters
    ----------
    x : producer
        ``(N, K)``: packed elements or their bytes. N is a multiple of 16, the bytes of a row a multiple of 32.
    layout : {"aiter"}
        AITER's (16, 16) shuffle: byte (i, j) of Kb a row goes to
        ``(i//16)*16*Kb + (j//16)*256 + (i%16)*16 + j%16``.

    Returns
    -------
    Tensor
        Of x's shape and dtype.

    Raises
    ------
    ValueError
        The shape does not divide, or an unknown layout.
    BufferError
        Memory that dlfp4 cannot read.
    """
    return shuffle(x, layout, False)


def unshuffle_weight(x, layout="aiter"):
    """The inverse of :func:`shuffle_weight`.

    Parameters
    ----------
    x : producer
        What :func:`shuffle_weight` gave.
    layout : {"aiter"}
        In which order its bytes lie.

    Returns
    -------
    Tensor
        A copy in row-major order.

    Raises
    ------
    ValueError
        As of :func:`shuffle_weight`.
    """
    return shuffle(x, layout, True)


cdef struct Shuffle:
    void *source
    void *result
    int64_t rows, row_bytes
    bint back


cdef int shuffle_at(const Place *place, void *call) noexcept nogil:
    cdef Shuffle *s = <Shuffle *> call
    if is_host(place):
        return dlfp4_host_shuffle_weight(s.source, s.result, s.rows, s.row_bytes, s.back)
    return dlfp4_cuda_shuffle_weight(place.device, place.stream, s.source, s.result, s.rows, s.row_bytes, s.back)


cdef Tensor shuffle(x, layout, bint back):
    cdef Tensor source = borrow(x), result
    cdef int64_t row_bits
    cdef Shuffle call
    cdef Touched touched
    cdef Place place
    if not is_one_of(layout, ("aiter",)):
        raise ValueError(f"layout={layout!r}: expected 'aiter'")
    if source.dl.ndim != 2:
        raise ValueError(f"a weight has two dimensions, (N, K); this tensor has shape {shape_of(source)}")
    check_readable(source)
    if not is_compact_tensor(source):
        source = duplicate(source)
    row_bits = times(source.dl.shape[1], storage_bits(source))
    if source.dl.shape[0] % 16 or row_bits % 256:
        raise ValueError(f"shape {shape_of(source)} of {dtype_name(source)}: the aiter shuffle needs rows in multiples "
                         f"of 16 and row lengths in multiples of 32 bytes; pad the weight")
    place = place_for(source, None, x)
    result = allocate_on(&place, source.row, 2, source.dl.shape, is_padded(source))
    if source.size_ == 0:
        return result
    call = Shuffle(source.dl.data, result.dl.data, source.dl.shape[0], row_bits // 8, back)
    touch_nothing(&touched)
    reads(&touched, source)
    writes(&touched, result)
    check_run(&place, run_on(&place, &touched, shuffle_at, DLFP4_CUDA_IMAGE_blocks, &call, source.size_),
              "shuffling a weight")
    return result
