# Block scaling: floats become elements and scales, and back.

cdef struct Request:            # one call of quantize
    dlfp4_matrix x
    dlfp4_recipe recipe
    dlfp4_tensor_scale scale
    int format


def quantize(x, format, *, recipe=None, axis=-1, global_scale=None, rounding=None, seed=None, scale_layout="linear",
             pad=False, out=None, stream=None):
    """Quantize a tensor to a block-scaled format.

    Parameters
    ----------
    x : producer
        ``(..., K)`` of float32, bfloat16 or float16, of any strides, on the host. It counts as a matrix of
        M = prod(shape[:-1]) rows.
    format : Format or str
        A row of :func:`formats`: "nvfp4", "nvfp4_16x16", "mxfp4", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp8_e4m3",
        "mxfp8_e5m2", "fp8_e4m3", "fp8_e5m2", "fp8_1x128", "fp8_128x128" and their "_e5m2" forms.
    recipe : Recipe or str, optional
        How scales are chosen and elements rounded: "ocp" (the default for mx formats), "nvidia", "rocm", or a
        :class:`Recipe`.
    axis : int or tuple of int
        Blocks along -1, the rows, or -2, the columns; a tuple gives a result for each, in its order, and reads `x`
        once (once more where NVFP4 has to find its global scale). Columns run through all leading dimensions.
    global_scale : float or producer, optional
        A static decode scale g: values decode to ``element * scale * g``. NVFP4: instead of the largest magnitude /
        2688, which then need not be found; "fp8_e4m3", "fp8_e5m2": the one scale. Its reciprocal is what FlashInfer
        takes.
    rounding : {"nearest_even", "nearest_away", "toward_zero", "stochastic"}, optional
        Of the elements, instead of the recipe's.
    seed : int, optional
        For "stochastic", below 2**64.
    scale_layout : {"linear", "128x4", "8x4", "aiter"}
        How the scales lie in memory; see :meth:`ScaledTensor.with_scale_layout`. The padding is written: 0, or with
        "aiter" the recipe's byte of a zero block.
    pad : bool
        Complete the last block of each line with zeros, instead of refusing shapes that do not divide.
    out : ScaledTensor or tuple of ScaledTensor, optional
        What an earlier call returned, to be refilled.
    stream : None
        For device memory, which this version does not quantize.

    Returns
    -------
    ScaledTensor
        Or a tuple, for a tuple of axes.

    Raises
    ------
    ValueError
        The shape does not divide into blocks; options that do not go together; `out` that does not fit.
    TypeError
        Another element type.
    BufferError
        Memory that the CPU cannot read, or a read-only `out`.

    Notes
    -----
    All arithmetic is float32, in this order, without contraction; a is a block's largest magnitude, A the tensor's
    largest finite one.

    NVFP4 (as NVIDIA TransformerEngine): ``G = 2688 / A``, ``g = A / 2688``, ``s = e4m3(a * (G * (1/6)))``,
    ``q = e2m1(x * (1 / (s * (1 / G))))``. A block whose scale rounds to 0 decodes to 0, though its codes are not.
    MX (OCP Microscaling Formats v1.0): ``q = round(x * 2**-e)``, with e by the recipe, between -127 and 127.
    FP8: ``encode = max / a``, ``s = 1 / encode``, ``q = round(x * encode)``; max is the element type's largest value.
    Quotients are clamped to the largest float32. Elements saturate. A block of NVFP4 or MX with a NaN or an infinity
    decodes to NaN: its scale is NaN, its elements are 0; no other block is touched.

    Examples
    --------
    >>> import numpy as np, dlfp4
    >>> x = np.linspace(-6, 6, 64, dtype="float32").reshape(2, 32)
    >>> q = dlfp4.quantize(x, "mxfp4")
    >>> q.data.shape, q.scales.shape, q.nbytes
    ((2, 32), (2, 1), 34)
    >>> float(abs(q.dequantize().to_numpy() - x).max()) <= 1
    True
    """
    cdef Request request
    cdef Tensor source = flatten(borrow(x))
    cdef object chosen_format = find_format(format), chosen = find_recipe(chosen_format, recipe)
    cdef tuple axes = axis if type(axis) is tuple else (axis,), shape = shape_of(borrow(x))
    cdef list results
    if stream is not None:
        raise ValueError(f"stream={stream!r}: host memory has no streams; pass None")
    check_axes(axes)
    fill_matrix(&request.x, source)
    request.format = chosen_format.number
    fill_recipe(&request.recipe, chosen, rounding, seed)
    if out is None:
        results = [allocate_scaled(shape, chosen_format, a, scale_layout, bool(pad), source.x2_) for a in axes]
    else:
        results = check_out_scaled(out, axes, shape, chosen_format, scale_layout, bool(pad), source)
    find_tensor_scale(&request, chosen_format, global_scale)
    run_quantize(&request, results, chosen)
    return tuple(results) if type(axis) is tuple else results[0]


cdef int check_axes(tuple axes) except -1:
    if not axes or len(set([parse_axis(axis) for axis in axes])) != len(axes):
        raise ValueError(f"axis={axes}: expected -1, -2, (-1, -2) or (-2, -1)")
    return 0


cdef Tensor flatten(Tensor self):
    """The tensor as a matrix; a copy only where its leading dimensions are not one run."""
    cdef int64_t rows
    if self.dl.ndim == 2:
        return self
    if self.dl.ndim == 0:
        raise ValueError("a 0-d tensor has no axis for blocks to run along; reshape it to (1,) first")
    columns = self.dl.shape[self.dl.ndim - 1]
    rows = count_elements(self.dl.ndim - 1, self.dl.shape)
    try:
        return reshape_tensor(self, (rows, columns))
    except BufferError:
        return reshape_tensor(duplicate(self), (rows, columns))


cdef int fill_matrix(dlfp4_matrix *matrix, Tensor self) except -1:
    cdef dlfp4_view view = host_view(self)
    if self.row not in SOURCE_ROWS:
        raise TypeError(f"{dtype_name(self)} is not block-scaled: expected float32, bfloat16 or float16; "
                        f"convert it first, for example dlfp4.cast(x, 'float32')")
    matrix.data = view.data
    matrix.rows = view.shape[0]
    matrix.columns = view.shape[1]
    matrix.strides[0] = view.strides[0]
    matrix.strides[1] = view.strides[1]
    matrix.code = view.code
    matrix.bits = view.bits
    return 0


cdef frozenset SOURCE_ROWS = frozenset([row_of_argument(name) for name in ("float32", "bfloat16", "float16")])


cdef int fill_recipe(dlfp4_recipe *recipe, chosen, rounding, seed) except -1:
    cdef dlfp4_convert_options options
    fill_options(&options, chosen.rounding if rounding is None else rounding, True, seed)
    recipe.rounding = options.rounding
    recipe.seed = options.seed
    recipe.scale_rule = <dlfp4_scale_rule> <int> _SCALE_RULES[chosen.scale_rule or "floor"]
    recipe.eps = chosen.eps
    recipe.pow2 = bool(chosen.pow2)
    recipe.zero_scale = chosen.zero_scale
    recipe.drops_negative_zero = not chosen.keeps_negative_zero
    return 0


# ---- Results

cdef ScaledTensor allocate_scaled(tuple shape, format, int axis, str scale_layout, bint pad, bint x2):
    buffers = buffers_of(shape, format, axis, scale_layout, pad)
    parts = [allocate_buffer(buffer.shape, row_of_argument(buffer.dtype), x2 and number == 0)
             for number, buffer in enumerate(buffers)]
    return make_scaled(parts[0], parts[1], parts[2] if len(parts) == 3 else None, format, axis, scale_layout, shape)


cdef list check_out_scaled(out, tuple axes, tuple shape, format, str scale_layout, bint pad, Tensor source):
    """The caller's ScaledTensors, if they are what would have been allocated."""
    results = list(out) if type(out) is tuple else [out]
    if len(results) != len(axes):
        raise ValueError(f"out has {len(results)} ScaledTensors for {len(axes)} axes")
    for result, axis in zip(results, axes):
        if type(result) is not ScaledTensor:
            raise TypeError(f"out is a {type(result).__name__}; expected a ScaledTensor, as quantize returns it")
        given = result.format, result.axis, result.scale_layout, result.shape
        if given != (format, axis, scale_layout, shape):
            raise ValueError(f"out is {result!r}; the result has shape {shape}, format {format.name!r}, axis {axis} "
                             f"and scale_layout {scale_layout!r}")
        for part, buffer in zip((result.data, result.scales, result.global_scale),
                                buffers_of(shape, format, axis, scale_layout, pad)):
            check_out_part(part, buffer, source)
    return results


cdef int check_out_part(part, buffer, Tensor source) except -1:
    cdef Tensor self
    if part is None or part.shape != buffer.shape:
        raise ValueError(f"out's {buffer.name} has shape {None if part is None else part.shape}; "
                         f"expected {buffer.shape}")
    self = part
    if self.flags & DLPACK_FLAG_BITMASK_READ_ONLY:
        raise BufferError(f"out's {buffer.name} is read-only; give writable memory")
    host_view(self)
    if overlaps(self, source):
        raise ValueError(f"out's {buffer.name} overlaps the input; give other memory")
    return 0


cdef dlfp4_blocks blocks_of(ScaledTensor self) except *:
    """The kernels' description of a ScaledTensor, line by line."""
    cdef dlfp4_view data = host_view(self.data), scales = host_view(self.scales)
    cdef dlfp4_blocks blocks
    cdef bint swapped = self.axis == -2 and not is_subbyte(self.data.row)
    blocks.data = data.data
    blocks.strides[0] = data.strides[swapped]
    blocks.strides[1] = data.strides[not swapped]
    blocks.length = data.shape[not swapped]
    blocks.scales = scales.data
    blocks.scale_strides[0] = scales.strides[swapped] if scales.ndim == 2 else 0
    blocks.scale_strides[1] = scales.strides[not swapped] if scales.ndim == 2 else 0
    blocks.layout = LAYOUTS[self.scale_layout]
    blocks.fill = 0
    return blocks


# ---- The tensor's scale

cdef int find_tensor_scale(Request *request, format, global_scale) except -1:
    """The scale of the whole tensor, where the format has one: given, or found in the data."""
    cdef dlfp4_status status
    if not format.has_global_scale and format.block is not None:
        if global_scale is not None:
            raise ValueError(f"{format} has no scale of the whole tensor; leave global_scale out")
        return 0
    if global_scale is not None:
        request.scale = dlfp4_given_tensor_scale(parse_scale(global_scale))
        return 0
    with nogil:
        status = dlfp4_find_tensor_scale(&request.x, request.format, &request.recipe, &request.scale)
    return check_status(status)


cdef float parse_scale(global_scale) except? -1:
    number = float(as_scalar(global_scale))
    if not 0 < number < float("inf"):
        raise ValueError(f"global_scale={number}: a decode scale is a positive, finite float32")
    return number


cdef int put_tensor_scale(ScaledTensor result, float decode) except -1:
    cdef Tensor scale = result.global_scale if result.format.has_global_scale else result.scales
    (<float *> scale.dl.data)[0] = decode
    return 0


cdef int check_status(dlfp4_status status) except -1:
    if status != DLFP4_OK:
        raise RuntimeError(f"the kernel refused the description it was given (status {status})")
    return 0


cdef int run_quantize(Request *request, list results, chosen) except -1:
    cdef dlfp4_blocks blocks[2]
    cdef const dlfp4_blocks *along[2]
    cdef ScaledTensor result
    cdef dlfp4_status status
    cdef int direction
    along[0] = along[1] = NULL
    for result in results:
        direction = -1 - result.axis
        blocks[direction] = blocks_of(result)
        if result.scale_layout == "aiter":
            blocks[direction].fill = chosen.zero_scale
        along[direction] = &blocks[direction]
        if result.format.has_global_scale or result.format.block is None:
            put_tensor_scale(result, request.scale.decode)
    with nogil:
        status = dlfp4_quantize(&request.x, request.format, &request.recipe, &request.scale, along[0], along[1])
    return check_status(status)


# ---- Back

def dequantize(q, dtype="float32", *, out=None, stream=None):
    """The values of a block-scaled tensor.

    Parameters
    ----------
    q : ScaledTensor
        On the host.
    dtype : dtype-like
        float32, bfloat16 or float16.
    out : producer, optional
        Writable memory of q's shape and `dtype`, of any strides.
    stream : None
        For device memory, which this version does not dequantize.

    Returns
    -------
    Tensor
        ``(..., K)``, q's shape: ``element * scale``, with NVFP4 ``element * (scale * global_scale)``, in float32,
        rounded to nearest even. A NaN scale gives NaN.

    Raises
    ------
    TypeError
        `q` is no ScaledTensor, another `dtype`, or `out` of another one.
    ValueError
        `out` has another shape.
    BufferError
        Memory that the CPU cannot read, or a read-only `out`.

    Examples
    --------
    >>> import numpy as np, dlfp4
    >>> q = dlfp4.quantize(np.arange(32, dtype="float32"), "mxfp8_e4m3")
    >>> dlfp4.dequantize(q, "bfloat16")
    Tensor(shape=(32,), dtype=bfloat16, device='cpu')
    """
    cdef int row = row_of_argument(dtype)
    cdef ScaledTensor source
    cdef Tensor result, matrix
    if type(q) is not ScaledTensor:
        raise TypeError(f"q is a {type(q).__name__}; expected a ScaledTensor, from quantize or ScaledTensor.from_parts")
    if row not in SOURCE_ROWS:
        raise TypeError(f"dtype={dtype}: block-scaled tensors dequantize to float32, bfloat16 or float16")
    if stream is not None:
        raise ValueError(f"stream={stream!r}: host memory has no streams; pass None")
    source = q
    result = empty(source.shape, DTYPES[row]) if out is None else check_result(borrow(out), source, row)
    matrix = flatten(result)
    run_dequantize(source, matrix)
    if out is not None and matrix.dl.data != result.dl.data:   # strides that are no matrix: through a copy
        convert(reshape_tensor(matrix, source.shape), result, NULL)
    return result


cdef Tensor check_result(Tensor self, ScaledTensor source, int row):
    check_writable(self, row)
    if shape_of(self) != source.shape:
        raise ValueError(f"out has shape {shape_of(self)}, the result has {source.shape}")
    if overlaps(self, source.data) or overlaps(self, source.scales):
        raise ValueError("out overlaps the quantized tensor; give other memory")
    return self


cdef int run_dequantize(ScaledTensor source, Tensor result) except -1:
    cdef dlfp4_blocks blocks = blocks_of(source)
    cdef dlfp4_matrix matrix
    cdef float decode = 1
    cdef int format = source.format.number
    cdef dlfp4_status status
    fill_matrix(&matrix, result)
    if source.axis == -2:   # a row of the kernels' matrix is a line: a column
        matrix.rows, matrix.columns = matrix.columns, matrix.rows
        matrix.strides[0], matrix.strides[1] = matrix.strides[1], matrix.strides[0]
    if source.global_scale is not None:
        decode = source.global_scale.item()
    with nogil:
        status = dlfp4_dequantize(&blocks, format, decode, &matrix)
    return check_status(status)
