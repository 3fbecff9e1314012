# Block scaling: floats become elements and scales, and turn back into floats.

cdef struct Quantization:   # one call of quantize
    dlfp4_matrix x
    uint32_t rotation
    int format
    dlfp4_recipe recipe
    dlfp4_tensor_scale scale        # of the whole tensor, on the host
    dlfp4_cuda_scale scale_there    # the same on a device
    dlfp4_blocks blocks[2]
    const dlfp4_blocks *along[2]    # rows, columns; NULL where blocks do not run along them


cdef int quantize_at(const Place *place, void *call) noexcept nogil:
    cdef Quantization *q = <Quantization *> call
    if is_host(place):
        return dlfp4_host_quantize(&q.x, q.format, &q.recipe, &q.scale, q.along[0], q.along[1])
    return dlfp4_cuda_quantize(place.device, place.stream, &q.x, q.format, &q.recipe, &q.scale_there, q.along[0],
                               q.along[1])


cdef int find_tensor_scale_at(const Place *place, void *call) noexcept nogil:
    """On the host; a device finds it with the same launch that quantizes."""
    cdef Quantization *q = <Quantization *> call
    return dlfp4_host_find_tensor_scale(&q.x, q.format, &q.recipe, q.rotation, &q.scale)


def quantize(x, format, *, recipe=None, axis=-1, global_scale=None, rounding=None, seed=None, scale_layout="linear",
             pad=False, hadamard=None, out=None, stream=None):
    """Quantize a tensor to a block-scaled format.

    Parameters
    ----------
    x : producer
        ``(..., K)`` of float32, bfloat16 or float16, of any strides, on the host or a CUDA device. float64 and nested
        lists of numbers are rounded once to float32. The tensor counts as a matrix of M = prod(shape[:-1]) rows.
    format : Format or str
        A row of :func:`formats`: "nvfp4", "nvfp4_16x16", "mxfp4", "mxfp4_16", "mxfp6_e2m3", "mxfp6_e3m2",
        "mxfp8_e4m3", "mxfp8_e5m2", "mxfp8_32x32", "fp8_e4m3", "fp8_e5m2", "fp8_row", "fp8_row_e5m2", "fp8_1x128",
        "fp8_1x128_e5m2", "fp8_1x128_e4m3fnuz", "fp8_1x128_e5m2fnuz", "fp8_128x128", "fp8_128x128_e5m2", "int4_g32",
        "int4_g64", "int4_g128", "int4_row", "uint4_g32", "uint4_g64", "uint4_g128" or "uint4_row".
    recipe : Recipe or str, optional
        How scales are chosen and elements rounded: a :class:`Recipe` or the name of one: "ocp" (the default for mx
        formats), "nvidia", "transformer-engine", "transformer-engine-rocm", "flashinfer", "modelopt",
        "compressed-tensors", "deepseek", "deepseek-ue8m0", "aiter" (or "rocm"), "ggml", "mlx". A name stands for what
        the project does in each format that it has.
    axis : int or tuple of int
        Blocks run along -1, the rows, or -2, the columns. A tuple gives a result for each axis, in its order, and reads
        `x` once, or twice where NVFP4 has to find its global scale. Columns run through all leading dimensions.
    global_scale : float or producer, optional
        A static decode scale g: values decode to ``element * scale * g``. For NVFP4 it replaces the largest magnitude /
        2688, which then need not be found; several, ``(M,)`` or ``(E,)``, are those of rows or of the matrices of a
        stack (see :class:`Recipe`, `global_scale_per`). For "fp8_e4m3" and "fp8_e5m2" it is the one scale. FlashInfer
        takes its reciprocal.
    rounding : {"nearest_even", "nearest_away", "nearest_zero", "toward_zero", "stochastic"}, optional
        Rounding of the elements, instead of the recipe's.
    seed : int, optional
        Below 2**64. Required for "stochastic" and refused otherwise. Elements are counted block by block along each
        line, including the padding that `pad` adds.
    scale_layout : str
        The layout of the scales in memory: "linear", "128x4", …; see :meth:`ScaledTensor.with_scale_layout`. The
        padding is written as 0 or, with "aiter", as the recipe's byte of a zero block.
    pad : bool
        Complete the last block of each line with zeros instead of refusing shapes that do not divide. FP8 needs no
        padding: its last blocks may be smaller. Lines of "int4_row" and "uint4_row" are completed to whole bytes.
    hadamard : sequence of int or int, optional
        Sixteen signs, each 1 or -1, or a seed that draws them: the random Hadamard transform goes before everything
        else. Sixteen neighbours along `axis` become ``x @ diag(signs) @ H16 / 4`` in float32, which spreads outliers.
        The result remembers the signs, and :func:`dequantize` undoes the transform. Two tensors with the same signs
        are multiplied as they are where sums are over whole groups; :func:`matmul` decodes others. Each of several axes
        is read by itself.
    out : ScaledTensor or tuple of ScaledTensor, optional
        The result of an earlier call, whose parts are overwritten. A slice of a larger tensor has that tensor's own
        scale for all of it, which is overwritten, too; pass it as `global_scale` to keep it. Other tensors that share
        some of the parts, as ``to`` and ``with_scale_layout`` make them, are no longer valid. A receipt and an encode
        scale stay those of the values before.
    stream : int or stream object, optional
        For CUDA memory: the stream to run on; see :func:`cast`.

    Returns
    -------
    ScaledTensor
        Or a tuple, for a tuple of axes.

    Raises
    ------
    ValueError
        The shape does not divide into blocks (NVFP4, MX, int4, uint4), options exclude one another, or `out` does not
        fit.
    TypeError
        `x` has another element type.
    BufferError
        Memory that the CPU cannot read, or a read-only `out`.

    Notes
    -----
    All arithmetic is float32, in the order given, without contraction. a is the largest magnitude of a block, A the
    largest finite magnitude of the tensor.

    What follows is done without a recipe; :class:`Recipe` has what differs with one.
    NVFP4 (as NVIDIA TransformerEngine): ``G = 2688 / A``, ``g = A / 2688``, ``s = e4m3(a * (G * (1/6)))``,
    ``q = e2m1(x * (1 / (s * (1 / G))))``. A block whose scale rounds to 0 decodes to 0, though its codes are nonzero.
    MX (OCP Microscaling Formats v1.0): ``q = round(x * 2**-e)``, with e by the recipe, between -127 and 127.
    FP8: ``encode = max / a``, ``s = 1 / encode``, ``q = round(x * encode)``; max is the element type's largest value.
    Where a is 0, infinite or NaN, encode is 1, as in TransformerEngine: elements are cast unscaled. Quotients are
    clamped to the largest float32, and g, computed or given, is at least its reciprocal.
    int4 (as compressed-tensors in float32): ``s = a / 7.5``, ``q = clamp(round(x / s), -8, 7)``, symmetric; where s
    would be 0, in a block of zeros, it is the last place of 1 in its type (2**-23 of float32). uint4 has equal values:
    codes are ``q + 8``, and the zero point of every block is 8. A block with a NaN or an infinity decodes to NaN: its
    scale is NaN, its elements are 0.
    The Hadamard transform, as in TransformerEngine: elements times ``signs / 4``, then sums and differences of
    neighbours 1, 2, 4 and 8 apart, in that order; H16 is Sylvester's matrix.
    Elements saturate. A block of NVFP4 or MX with a NaN or an infinity decodes to NaN, too. Other blocks are not
    affected.

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
    cdef Quantization call
    cdef Touched touched
    cdef Tensor given = borrow(x)
    cdef Place place = place_for(given, stream, x, global_scale, out[0] if type(out) is tuple and out else out)
    given = widen(given, &place) if given.row == FLOAT64 else given   # rounded once, to nearest even
    cdef Tensor source = flatten(given, &place)
    cdef _Rules rules = find_rules(format, recipe, rounding)
    cdef bint padded = parse_flag(pad, "pad")
    cdef str layout = parse_layout(scale_layout)
    cdef tuple axes = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,), results, written
    cdef Tensor units   # given global scales of lines or matrices
    cdef str per
    cdef uint32_t rotation = parse_hadamard(hadamard)
    cdef int status
    check_axes(axes)
    if rotation and len(axes) > 1:
        return quantize_each(axes, x, format, out, {
            "recipe": recipe, "global_scale": global_scale, "rounding": rounding, "seed": seed, "pad": pad,
            "scale_layout": layout, "hadamard": hadamard, "stream": stream})
    per, units = find_granularity(rules, global_scale, axes, given)
    if per == "matrix" and layout != "linear":
        options = (axis, recipe, global_scale, rounding, seed, pad, hadamard, stream)
        return quantize_stack_tiled(given, x, rules, options, layout, out)
    fill_matrix(&call.x, source)
    call.format = rules.number
    call.recipe = rules.recipe
    call.recipe.seed = parse_seed(rules.recipe.rounding, seed)
    if out is None:
        results = allocate_results(axes, given, rules, layout, padded, per, rotation, &place)
    else:
        results = check_out_scaled(out, axes, given, rules, layout, padded, per, rotation)
    check_rotated(results[0])
    written = results if rules.scale_dtype is None else with_float32_scales(results, &place)
    touch_nothing(&touched)
    if not is_host(&place) and not place.is_nowhere and dlfp4_cuda_quantizes_slowly(&call.x, call.format):
        source = copy_on(source, &place)
        fill_matrix(&call.x, source)
    reads(&touched, source)
    if per != "tensor":
        start_parts(&call, units, results, &place)
    elif is_host(&place):
        find_tensor_scale(&call, results[0], global_scale, &place)
    else:
        given = find_scale_there(&call, global_scale, &place)   # kept until the launch
        reads(&touched, given)
    if place.is_nowhere:   # what follows writes, and refuses nothing
        return results if isinstance(axis, (tuple, list)) else results[0]
    fill_results(&call, written, &touched, is_host(&place), units is None)
    if per == "matrix":
        status = quantize_matrices(&call, written[0], units is not None, &touched, &place)
    else:
        status = run_on(&place, &touched, quantize_at, DLFP4_CUDA_IMAGE_blocks, &call, source.size_)
    if status != 0:
        check_run(&place, status, f"quantizing {dtype_name(source)} to {rules.format}")
    if written is not results:
        for wide, result in zip(written, results):
            convert((<ScaledTensor> wide).scales, (<ScaledTensor> result).scales, NULL, &place)
    return results if isinstance(axis, (tuple, list)) else results[0]


cdef int check_axes(tuple axes) except -1:
    if len(axes) == 1 and type(axes[0]) is int and -2 <= axes[0] <= -1:
        return 0
    if not axes or len(set([parse_axis(axis) for axis in axes])) != len(axes):
        raise ValueError(f"axis={axes}: expected -1, -2, (-1, -2) or (-2, -1)")
    return 0


# ---- Results

cdef enum:
    PART_ALIGNMENT = 256   # of each part within their memory, as of memory that CUDA allocates


@cython.final
cdef class _Allotment:
    """The buffers of a tensor in one piece of memory: shapes, types and offsets of the data, the scales and, in formats
    that have it, the global scale or zero points; and the bytes of all."""
    cdef int64_t shapes[3][2]
    cdef int64_t offsets[3]
    cdef int ndims[3]
    cdef int rows[3]
    cdef int64_t bytes
    cdef bint has_global_scale
    cdef bint has_zero_points


@functools.lru_cache(maxsize=1024)
def _find_allotment(*described):
    """Lay out the buffers of _buffers_of in one piece of memory; remembered, since calls repeat."""
    cdef _Allotment self = _Allotment()
    cdef int number, k
    buffers = _buffers_of(*described)
    bytes = 0
    for number, buffer in enumerate(buffers):
        self.rows[number] = row_of_argument(buffer.dtype)
        self.ndims[number] = len(buffer.shape)
        for k in range(self.ndims[number]):
            self.shapes[number][k] = buffer.shape[k]
        self.offsets[number] = bytes
        bytes += -(count_of(buffer.shape) * dlfp4_dtypes[self.rows[number]].bits // -8)
        bytes += -bytes % PART_ALIGNMENT
        if bytes > INT64_MAX:
            raise MemoryError(f"shape {described[0]} in {described[1]} has more bytes than memory can hold")
    self.bytes = bytes
    names = [buffer.name for buffer in buffers]
    self.has_global_scale = "global_scale" in names
    self.has_zero_points = "zero_points" in names
    return self


cdef Tensor part_of(Tensor memory, _Allotment allotment, int number):
    """A buffer as a view of all its tensor's memory."""
    cdef Tensor part = make_view(memory, allotment.ndims[number])
    cdef int k
    set_dtype(part, allotment.rows[number], False)
    for k in range(allotment.ndims[number]):
        part.dl.shape[k] = allotment.shapes[number][k]
    fill_compact_strides(part.dl.ndim, part.dl.shape, part.dl.strides)
    part.dl.data = <char *> memory.dl.data + allotment.offsets[number]
    return finish_view(part)


cdef tuple allocate_results(tuple axes, Tensor source, _Rules rules, str scale_layout, bint pad, str per,
                            uint32_t rotation, const Place *place):
    shape = shape_of(source)
    if len(axes) == 1:
        return (allocate_scaled(shape, rules, axes[0], scale_layout, pad, per, rotation, place),)
    return (allocate_scaled(shape, rules, axes[0], scale_layout, pad, per, rotation, place),
            allocate_scaled(shape, rules, axes[1], scale_layout, pad, per, rotation, place))


cdef ScaledTensor allocate_scaled(tuple shape, _Rules rules, int axis, str scale_layout, bint pad, str per,
                                  uint32_t rotation, const Place *place):
    """One allocation for all parts, which each of them keeps alive: on a CUDA device an allocation takes a fifth of the
    call for a small tensor."""
    cdef _Allotment allotment = _find_allotment(shape, rules.format.name, axis, scale_layout, pad, rules.scale_dtype,
                                                per)
    cdef Tensor memory = allocate_on(place, UINT8, 1, &allotment.bytes, False)
    return make_scaled(part_of(memory, allotment, 0), part_of(memory, allotment, 1),
                       part_of(memory, allotment, 2) if allotment.has_global_scale else None,
                       rules.format, axis, scale_layout, shape, rotation,
                       part_of(memory, allotment, 2) if allotment.has_zero_points else None)


cdef tuple with_float32_scales(tuple results, const Place *place):
    """The results as kernels write them, whose scales are then cast to the type that was asked for."""
    cdef ScaledTensor result
    cdef list wide = []
    for result in results:
        result = another(result)
        result.scales = allocate_on(place, FLOAT32, result.scales.dl.ndim, result.scales.dl.shape, False)
        wide.append(result)
    return tuple(wide)


# ---- The tensor's scale

cdef int find_tensor_scale(Quantization *call, ScaledTensor result, global_scale, const Place *place) except -1:
    """The scale of the whole tensor on the host, given or found in the data, where the format has one. What is
    transformed is found along the lines of the result."""
    cdef bint turned = result.rotation and result.axis == -2
    cdef int status
    if not has_tensor_scale(call.format, global_scale):
        return 0
    if global_scale is not None:
        call.scale = dlfp4_host_given_tensor_scale(parse_scale(global_scale))
        return 0
    call.rotation = result.rotation
    if turned:
        turn_matrix(&call.x)
    status = run_on(place, NULL, find_tensor_scale_at, DLFP4_CUDA_IMAGE_blocks, call,
                    times(call.x.rows, call.x.columns))
    if turned:
        turn_matrix(&call.x)
    return check_run(place, status, "finding a tensor's scale")


cdef bint has_tensor_scale(int format, global_scale) except -1:
    if dlfp4_formats[format].kind == DLFP4_TWO_LEVEL or scales_whole(format):
        return True
    if global_scale is not None:
        raise ValueError(f"{dlfp4_formats[format].name.decode()} has no scale of the whole tensor; leave global_scale "
                         f"out")
    return False


cdef float parse_scale(global_scale) except? -1:
    cdef float number
    if type(global_scale) is float:
        number = dlfp4_host_narrow(global_scale)
    else:
        number = read_scalar(as_scalar(global_scale, "global_scale"))
    if not dlfp4_host_is_decode_scale(number):
        shown = global_scale if type(global_scale) is float else number
        raise ValueError(f"global_scale={shown}: a decode scale is a positive, finite float32")
    return number


cdef float read_scalar(Tensor self) except? -1:
    """The number in a 0-d float32 tensor; that of an outline is any."""
    if is_outline(self):
        return 1
    if not host_readable(self.dl.device.device_type):
        return self.item()
    secure(self)
    return (<float *> self.dl.data)[0]


cdef int fill_results(Quantization *call, tuple results, Touched *touched, bint on_host, bint finds_parts) except -1:
    """Where elements and scales are written. The host writes the scale of the whole tensor at once; a device is told
    where to write it. Global scales of lines are written, where they are to be found, with the blocks."""
    cdef ScaledTensor result
    cdef Tensor whole
    cdef int direction, number = 0
    call.along[0] = call.along[1] = NULL
    for result in results:
        direction = -1 - result.axis
        fill_blocks(&call.blocks[direction], result, call.recipe.zero_scale)
        call.along[direction] = &call.blocks[direction]
        writes(touched, result.data)
        writes(touched, result.scales)
        writes(touched, result.global_scale)
        writes(touched, result.offsets)
        call.blocks[direction].finds_decodes = finds_parts
        whole = result.scales if scales_whole(call.format) else result.global_scale
        if whole is None or whole.dl.ndim:   # of lines or matrices; their address says nothing, of which there is none
            continue
        if on_host:
            store_float(<float *> whole.dl.data, call.scale.decode)
        else:
            call.scale_there.places[number] = <float *> whole.dl.data
            number += 1
    return 0


cdef Tensor find_scale_there(Quantization *call, global_scale, const Place *place):
    """A given scale of the whole tensor for a device: where it lies there, or a number of the host. What is not given
    is found there, and stays there. Returns the tensor that is read, or None."""
    cdef Tensor given
    memset(&call.scale_there, 0, sizeof(call.scale_there))
    if not has_tensor_scale(call.format, global_scale) or global_scale is None:
        return None
    given = None if type(global_scale) is float else as_scalar(global_scale, "global_scale")
    if given is None or not on_cuda(given):
        call.scale_there.number = parse_scale(global_scale if given is None else given)
        return None
    if given.dl.device.device_id != place.device:
        raise ValueError(f"global_scale lies on {device_of(given)}, the input on cuda:{place.device}; move it there, "
                         f"or give a number")
    check_aligned(given, "global_scale")
    call.scale_there.given = <const float *> given.dl.data
    return given


# ---- Global scales of lines and matrices

cdef tuple find_granularity(_Rules rules, global_scale, tuple axes, Tensor given):
    """Which part of the tensor a global scale is of, and those that were given, if they are not one number."""
    cdef Tensor units
    per = rules.global_scale_per
    if global_scale is None:
        return per, None
    if rules.scale_dtype is not None and scales_whole(rules.number):
        raise ValueError(f"global_scale is stored as it is given, and scale_dtype={rules.scale_dtype!r} is of scales "
                         f"that are found; leave one of them out")
    units = None if is_number(global_scale) or not rules.format.has_global_scale else import_part(global_scale)
    if units is None or units.size_ == 1 and per == "tensor":
        if per != "tensor":
            raise ValueError(f"global_scale={global_scale!r} is one number, and global_scale_per={per!r} asks for one "
                             f"a {per}: give as many, or leave either out")
        return per, None
    if len(axes) > 1:
        raise ValueError(f"global_scale has shape {shape_of(units)}: the lines of axes {axes} differ; quantize along "
                         f"one axis at a time")
    units = as_type(units, FLOAT32, "global_scale")
    shape = shape_of(given)
    if per == "tensor":
        global_scale_shape(units, rules.format, axes[0], shape)   # refuses other numbers of them
        return granularity_of(rules.format, shape, axes[0], units.size_), units
    expected = global_scales(shape, rules.format, axes[0], per)
    if units.size_ != expected[0]:
        raise ValueError(f"global_scale has shape {shape_of(units)}; with global_scale_per={per!r} expected {expected}")
    return per, units


cdef int start_parts(Quantization *call, Tensor units, tuple results, const Place *place) except -1:
    """Put given global scales where those of the result lie; there is none of the whole tensor."""
    cdef Tensor unit = (<ScaledTensor> results[0]).global_scale
    call.scale.encode = call.scale.decode = 1
    memset(&call.scale_there, 0, sizeof(call.scale_there))
    if units is None:
        return 0
    if host_readable(units.dl.device.device_type):
        for number in () if place.is_nowhere else units.to_numpy().ravel().tolist():
            parse_scale(number)
        units = units if is_host(place) else move(units, Device("cuda", place.device))
    check_beside(units, unit)
    return convert(reshape_tensor(units if is_compact_tensor(units) else duplicate(units), shape_of(unit)), unit, NULL,
                   place)


cdef int quantize_matrices(Quantization *call, ScaledTensor result, bint are_given, Touched *touched,
                           const Place *place) except? 1:
    """Each matrix of a stack as a tensor of its own; the first status that is not 0."""
    cdef int64_t count = result.global_scale.size_, rows = call.x.rows // count if count else 0, number
    cdef int64_t size = times(rows, call.x.columns)
    cdef int64_t steps[3]
    cdef float *units = <float *> result.global_scale.dl.data
    cdef Quantization part = call[0]
    cdef int status = 0
    fill_matrix_steps(steps, &call.x, &call.blocks[0], call.format, rows)
    part.x.rows = rows
    part.along[0], part.along[1] = &part.blocks[0], NULL
    part.blocks[0].decodes = NULL
    part.rotation = result.rotation
    for number in range(count):
        if size:   # what has no elements may lie anywhere
            part.x.data = <char *> call.x.data + times(number, steps[0])
            part.blocks[0].data = <char *> call.blocks[0].data + times(number, steps[1])
            part.blocks[0].scales = <char *> call.blocks[0].scales + times(number, steps[2])
        part.recipe.first = times(number, times(rows, call.blocks[0].length))
        if not is_host(place):
            part.scale_there.given = units + number if are_given else NULL
            part.scale_there.places[0] = units + number
        elif are_given:
            part.scale = dlfp4_host_given_tensor_scale(units[number])
        else:
            run_on(&ON_HOST, NULL, find_tensor_scale_at, DLFP4_CUDA_IMAGE_blocks, &part, size)
        if is_host(place):
            units[number] = part.scale.decode
        status = run_on(place, touched, quantize_at, DLFP4_CUDA_IMAGE_blocks, &part, size)
        if status != 0:
            break
    return status


cdef void fill_matrix_steps(int64_t *steps, const dlfp4_matrix *x, const dlfp4_blocks *blocks, int format,
                            int64_t rows) noexcept:
    """The bytes from a matrix of a stack to the next one: of x, of its elements and of its scales."""
    cdef const dlfp4_format_row *row = &dlfp4_formats[format]
    cdef int64_t lines_of_scale = 1 if row.repeats else row.lines
    steps[0] = times(times(rows, x.strides[0]), x.bits // 8)
    steps[1] = times(times(rows, blocks.strides[0]), dlfp4_dtypes[row.element].bits) // 8
    steps[2] = times(times(rows // lines_of_scale, blocks.scale_strides[0]), dlfp4_dtypes[row.scale].bits // 8)


cdef object quantize_stack_tiled(Tensor source, x, _Rules rules, tuple options, str scale_layout, out):
    """Under a layout of tiles, which the matrices of a stack may share: through linear scales."""
    cdef ScaledTensor result, into
    axis, recipe, global_scale, rounding, seed, pad, hadamard, stream = options
    made = quantize(x, rules.format, recipe=recipe, axis=axis, global_scale=global_scale, rounding=rounding, seed=seed,
                    pad=pad, hadamard=hadamard, stream=stream)
    result = relayout(made[0] if type(made) is tuple else made, scale_layout, 0)
    if out is not None:
        into = check_out_scaled(out, (-1,), source, rules, scale_layout, parse_flag(pad, "pad"), "matrix",
                                result.rotation)[0]
        for part, place in zip(parts_of(result), parts_of(into)):
            cast(part, place.dtype, out=place, stream=stream)
        result = into
    return (result,) if isinstance(axis, (tuple, list)) else result
