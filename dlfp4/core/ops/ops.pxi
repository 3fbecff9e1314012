# Operations take any producer, borrow its memory for the length of the call, and return a Tensor.

cdef struct Conversion:
    dlfp4_view source, result
    const dlfp4_convert_options *options


cdef int convert_at(const Place *place, void *call) noexcept nogil:
    cdef Conversion *c = <Conversion *> call
    if is_host(place):
        return dlfp4_host_convert(&c.source, &c.result, c.options)
    return dlfp4_cuda_convert(place.device, place.stream, &c.source, &c.result, c.options)


cdef int convert(Tensor source, Tensor result, const dlfp4_convert_options *options, const Place *place) except -1:
    """result[i] = source[i], in result's type and packing."""
    cdef Conversion call
    cdef Touched touched
    cdef int status
    check_readable(source)
    check_readable(result)
    call.source = view_of(source)
    call.result = view_of(result)
    call.options = options
    touch_nothing(&touched)
    reads(&touched, source)
    writes(&touched, result)
    status = run_on(place, &touched, convert_at, DLFP4_CUDA_IMAGE_codecs, &call, source.size_)
    if status != 0 and is_host(place):
        raise TypeError(f"dlfp4 does not convert {dtype_name(source)} to {dtype_name(result)} (status {status}); "
                        f"it converts between floating-point types")
    if status != 0:
        check_run(place, status, f"converting {dtype_name(source)} to {dtype_name(result)}")
    return 0


cdef enum:
    NO_ROUNDING = -1

cdef dict ROUNDINGS = {
    "nearest_even": DLFP4_NEAREST_EVEN,
    "nearest_away": DLFP4_NEAREST_AWAY,
    "toward_zero": DLFP4_TOWARD_ZERO,
    "nearest_zero": DLFP4_NEAREST_ZERO,
    "stochastic": DLFP4_STOCHASTIC,
}
cdef int E8M0 = row_of_argument("float8_e8m0fnu")


cdef int fill_options(dlfp4_convert_options *options, rounding, saturate, seed) except -1:
    cdef int mode = parse_rounding(rounding)
    options.rounding = <dlfp4_rounding> mode
    options.saturate = parse_flag(saturate, "saturate")
    options.seed = parse_seed(mode, seed)
    return 0


cdef int fill_cast(dlfp4_convert_options *options, int row, rounding, saturate, seed) except -1:
    """The options of a cast to a type, one of which has a rounding of its own."""
    if row != E8M0 or not is_one_of(rounding, ("up",)):
        return fill_options(options, rounding, saturate, seed)
    fill_options(options, "nearest_even", saturate, seed)
    options.rounding = DLFP4_UPWARD
    return 0


cdef int check_convertible(Tensor source, int row) except -1:
    """TypeError where elements do not become those of another type."""
    if row == source.row or (is_float(row) and is_float(source.row)):
        return 0
    raise TypeError(f"dlfp4 does not cast {dtype_name(source)} to {dlfp4_dtypes[row].name.decode()}: it converts "
                    f"between floating-point types; convert others with their own library, such as NumPy's "
                    f".astype('float32') (.view(dtype) keeps the bits and changes the values)")


cdef int parse_rounding(rounding) except -1:
    cdef int mode = ROUNDINGS.get(rounding, NO_ROUNDING) if isinstance(rounding, str) else NO_ROUNDING
    if mode == NO_ROUNDING:
        of_powers = "; \"up\" is for casts to float8_e8m0fnu" if is_one_of(rounding, ("up",)) else ""
        raise ValueError(f"rounding={rounding!r}: expected one of {', '.join(ROUNDINGS)}"
                         f"{of_powers or did_you_mean(rounding, ROUNDINGS)}")
    return mode


cdef uint64_t parse_seed(int mode, seed) except? 0:
    if (seed is not None) != (mode == DLFP4_STOCHASTIC):
        names = [name for name in ROUNDINGS if ROUNDINGS[name] == mode]
        raise ValueError(f"seed={seed!r} with rounding={names[0]!r}: stochastic rounding needs a seed, the others take "
                         f"none")
    if seed is None:
        return 0
    number = parse_integer(seed, "seed")
    if not 0 <= number < 1 << 64:
        raise ValueError(f"seed={seed}: expected an integer from 0 to 2**64 - 1")
    return number


def cast(x, dtype, *, rounding="nearest_even", saturate=True, packed=True, seed=None, out=None, stream=None):
    """Convert the elements of a tensor to another floating-point type, with one rounding.

    Parameters
    ----------
    x : producer
        Anything :func:`asarray` takes, of any shape and strides, on the host or a CUDA device.
    dtype : dtype-like
        The element type of the result.
    rounding : {"nearest_even", "nearest_away", "nearest_zero", "toward_zero", "stochastic"} or "up"
        "nearest_away" sends ties away from zero, "nearest_zero" toward it; "stochastic" rounds up with the probability
        of the distance. "up", for float8_e8m0fnu alone, gives the next power of two, as ONNX does by default.
    saturate : bool
        For results of 8 bits and fewer. True: values beyond the range, infinities included, become the largest finite
        value; NaN stays NaN where `dtype` has one, and becomes the largest finite value where it has none (FP4, FP6).
        For float8_e8m0fnu, values from zero to 2**-127 give 2**-127, negative values give NaN. False: the result is
        that of ``ml_dtypes``' ``astype`` (float8_e8m0fnu's of 0.6, which rounds ties up), except that float64 is
        rounded once, not twice. Wider results overflow to infinity either way. With "toward_zero" finite values never
        become infinite, but at most the largest finite one, as IEEE 754 has it. Elements that already have the
        result's type are copied unchanged, infinities included.
    packed : bool
        For results below 8 bits: several elements a byte (True), the first in the low bits, or one a byte (False).
    seed : int, optional
        Below 2**64. Required for "stochastic" and refused otherwise. The result depends only on the seed and on each
        element's row-major index.
    out : producer, optional
        Writable memory of the result's shape and dtype, packed or padded. It may be `x` itself where elements keep
        their size. The spare bits in the last byte of packed memory are written as zero, unless `out` is a view whose
        Tensor has other elements there. PyTorch does not notice the write: where autograd has saved `out`, call
        ``torch.autograd.graph.increment_version``.
    stream : int or stream object, optional
        For CUDA memory: the stream to run on, as a handle or an object with ``__cuda_stream__`` or ``cuda_stream``. It
        waits for the data; the host does not. Default: the current stream of PyTorch or CuPy if an operand or `out` is
        theirs, else of the framework from which the Tensors came, else the stream on which the data was made. Results
        keep a stream object alive; a stream given by its handle must outlive them.

    Returns
    -------
    Tensor
        With x's shape; `out` as a Tensor where it was given.

    Raises
    ------
    TypeError
        There is no conversion between the two types, or `out` has another dtype.
    ValueError
        `out` has another shape or overlaps `x`; a bad `rounding` or `seed`.
    BufferError
        Memory that the CPU cannot read, or a read-only `out`.
    DriverError
        CUDA failed; or the work would run on the legacy default stream while a framework captures another stream of
        this thread, and would be missing from its graph.

    Notes
    -----
    Formats and saturation: OCP Microscaling Formats (MX) v1.0 and OCP 8-bit Floating Point (OFP8) v1.0.

    Examples
    --------
    >>> import numpy as np, dlfp4
    >>> t = dlfp4.cast(np.array([0.3, -5.0, 100.0], dtype="float32"), "float4_e2m1fn")
    >>> t.to_numpy().astype("float32")
    array([ 0.5, -4. ,  6. ], dtype=float32)
    """
    cdef dlfp4_convert_options options
    cdef bint padded = not parse_flag(packed, "packed")
    cdef int row = row_of_argument(dtype)
    cdef Tensor source = borrow(x), result
    cdef Place place = place_for(source, stream, x, out)
    fill_cast(&options, row, rounding, saturate, seed)
    check_convertible(source, row)
    if out is None:
        result = allocate_on(&place, row, source.dl.ndim, source.dl.shape, padded)
    else:
        result = check_out(out, source, row)
    convert(source, result, &options, &place)
    return result


def pack(x, *, out=None):
    """Pack elements below 8 bits that lie one a byte, little-endian: two FP4 in a byte, four FP6 in three bytes.

    Parameters
    ----------
    x : producer
        A tensor of a sub-byte type on the host or a CUDA device, padded or packed. The high bits of padded elements are
        ignored.
    out : producer, optional
        Writable packed memory of the same shape and dtype.

    Returns
    -------
    Tensor
        Packed as a whole: rows need not start on bytes. The spare bits of the last byte are zero.

    Raises
    ------
    TypeError
        The elements are not below 8 bits.
    ValueError, BufferError
        As :func:`cast`.
    """
    return repack(x, False, out)


def unpack(x, *, out=None):
    """Unpack elements below 8 bits to one a byte: in the low bits, with the high bits zero.

    Parameters
    ----------
    x : producer
        A tensor of a sub-byte type on the host or a CUDA device.
    out : producer, optional
        Writable padded memory of the same shape and dtype.

    Returns
    -------
    Tensor
        Padded; NumPy shares its memory as an array with a type of ml_dtypes.

    Raises
    ------
    TypeError
        The elements are not below 8 bits.
    ValueError, BufferError
        As :func:`cast`.
    """
    return repack(x, True, out)


cdef Tensor repack(x, bint padded, out):
    cdef Tensor source = borrow(x), result
    cdef Place place
    if not is_subbyte(source.row):
        raise TypeError(f"{dtype_name(source)} fills its bytes; pack and unpack take types below 8 bits: "
                        f"cast it to one first, by dlfp4.cast; bytes of which each has a code are an array's "
                        f".view(ml_dtypes.float4_e2m1fn)")
    place = place_for(source, None, x, out)
    if out is None:
        result = allocate_on(&place, source.row, source.dl.ndim, source.dl.shape, padded)
    else:
        result = check_out(out, source, source.row)
        if is_padded(result) != padded:
            raise ValueError(f"out is {'padded' if is_padded(result) else 'packed'}, the result is "
                             f"{'padded' if padded else 'packed'}")
    convert(source, result, NULL, &place)
    return result
