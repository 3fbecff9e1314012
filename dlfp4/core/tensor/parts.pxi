# ScaledTensor.from_parts: parts that come from elsewhere, as the format's types and shapes, where one kernel reads all
# of them.

cdef ScaledTensor assemble(data, scales, global_scale, format, int axis, str scale_layout, shape, offsets,
                           bint are_biases):
    cdef const dlfp4_format_row *row = &dlfp4_formats[<int> format.number]
    cdef Tensor elements = as_type(import_part(data), row.element, "data")
    cdef Tensor stored = as_scales(scales, elements, format)
    cdef tuple logical = shape_of(elements) if shape is None else tuple(parse_shape(shape))
    if is_padded(elements):   # as to_numpy gives them
        elements = repack(elements, False, None)
    if shape is None and axis == -2 and is_subbyte(elements.row) and elements.dl.ndim > 1:   # stored transposed
        *leading, lines, length = logical
        logical = (*leading, length, lines)
    buffers = _buffers_of(logical, format, axis, scale_layout, True, dtype_name(stored))
    elements = fit_part(elements, buffers[0], logical, format)
    stored = fit_part(stored, buffers[1], logical, format)
    if (global_scale is not None) and not format.has_global_scale:
        raise ValueError(f"{format} has no global scale; leave it out")
    unit = None if global_scale is None else as_global_scale(elements, global_scale, format, axis, logical)
    if is_subbyte(elements.row) and not rows_are_bytes(elements):
        raise BufferError(f"data has strides {strides_of(elements)}: its rows must be packed, without gaps between "
                          f"elements, and start on bytes; call .copy() first")
    if scale_layout != "linear" and not is_compact_tensor(stored):
        raise BufferError(f"scales of shape {shape_of(stored)} have strides {strides_of(stored)}, but tiles of "
                          f"{scale_layout!r} follow one another without gaps; call .copy() first")
    beside = None if offsets is None else as_offsets(offsets, are_biases, buffers[1], logical, format)
    elements, stored, unit, beside = place_parts((elements, stored, unit, beside))
    check_aligned(stored, "scales")
    if unit is not None:
        check_aligned(unit, "global_scale")
    if beside is not None:
        check_aligned(beside, "biases" if are_biases else "zero_points")
    return make_scaled(elements, stored, unit, format, axis, scale_layout, logical, 0, beside)


cdef Tensor as_offsets(offsets, bint are_biases, buffer, tuple logical, format):
    """Zero points or biases, one for each scale."""
    cdef Tensor self
    if not format.has_integers:
        raise ValueError(f"only formats of int4 and uint4 have zero_points or biases, {format} does not; leave "
                         f"them out")
    self = import_part(offsets)
    name, choices = ("biases", _BIASES) if are_biases else ("zero_points", _ZERO_POINTS)
    if dtype_name(self) not in choices:
        raise TypeError(f"{name} has dtype {dtype_name(self)}; expected one of {', '.join(choices)}")
    if is_padded(self):   # as to_numpy gives them
        self = repack(self, False, None)
    return fit_part(self, Buffer(name, buffer.shape, DTYPES[self.row]), logical, format)


cdef Tensor import_part(part):
    cdef Tensor self = asarray(part)
    return self


cdef Tensor as_scales(scales, Tensor elements, format):
    """The scales of a tensor; in a format with one scale a number serves as well."""
    cdef Tensor self
    if format.block is None and is_number(scales):
        return as_scalar_beside(elements, scales, "scales")
    self = import_part(scales)
    if format.kind != "largest" or not (NARROW_SCALES >> self.row & 1 or self.row == UINT8):
        return as_type(self, dlfp4_formats[<int> format.number].scale, "scales")
    return reinterpret(self, row_of_argument("float8_e8m0fnu")) if self.row == UINT8 else self


cdef uint64_t NARROW_SCALES = sum([(<uint64_t> 1) << row_of_argument(name)
                                   for name in ("bfloat16", "float16", "float8_e8m0fnu")])   # beside float32


cdef Tensor as_global_scale(Tensor elements, value, format, int axis, tuple shape):
    """A global scale in its shape: a number, one a line, or one a matrix of a stack."""
    cdef Tensor self
    if is_number(value):
        return as_scalar_beside(elements, value, "global_scale")
    self = as_numbers_of_scale(value, "global_scale")
    kept = global_scale_shape(self, format, axis, shape)
    self = self if is_compact_tensor(self) else duplicate(self)
    return self if has_shape(self, kept) else reshape_tensor(self, kept)


cdef tuple global_scale_shape(Tensor self, format, int axis, tuple shape):
    """Which of the shapes of global scales a tensor of numbers has; leading dimensions may come unmerged."""
    lines = as_lines(shape, axis)[0]
    if self.size_ == 1:
        return ()
    if self.size_ == lines and format.block[0] == 1:
        return (lines,)
    if len(shape) > 2 and axis == -1 and self.size_ == count_of(shape[:len(shape) - 2]):
        return global_scales(shape, format, axis, "matrix")
    stacked = f", or {listed(shape[:len(shape) - 2])}, one a matrix" if len(shape) > 2 and axis == -1 else ""
    per_line = f", or ({lines},), one a line of blocks" if format.block[0] == 1 else ""
    raise ValueError(f"global_scale has shape {listed(shape_of(self))}; expected one number{per_line}{stacked}, for "
                     f"{format} of shape {listed(shape)} along axis {axis}")


cdef Tensor as_encode_scale(value):
    """An encode scale as it is given, or a number as a 0-d float32 tensor."""
    if is_number(value):
        return as_scalar(value, "encode_scale")
    return as_numbers_of_scale(value, "encode_scale")


cdef Tensor as_numbers_of_scale(value, str name):
    """Global scales of lines or matrices, of no more dimensions than NumPy has, which computes with them."""
    cdef Tensor self = as_type(import_part(value), FLOAT32, name)
    if self.dl.ndim > MOST_DIMS:
        raise ValueError(f"{name} has {self.dl.ndim} dimensions; expected {MOST_DIMS} at most: reshape it first")
    return self


cdef object reciprocal_of(Tensor stored):
    """1 / the encode scale in float32, in its shape and on its device; infinite for (nearly) 0."""
    with np.errstate(divide="ignore", over="ignore"):
        # NumPy's scalars, which quotients of arrays without dimensions are, cannot be written, as PyTorch wants to.
        decode = asarray(np.array(np.float32(1) / stored.to_device("cpu").to_numpy()))
    return move(decode, device_of(stored)) if on_cuda(stored) else decode


cdef Tensor as_type(Tensor self, int row, str name):
    """A part as the format's type; it may come as bytes."""
    if self.row == row:
        return self
    if self.row == UINT8 and dlfp4_dtypes[row].bits <= 8:
        if dlfp4_dtypes[row].bits < 8 and not has_dense_lines(self):
            raise BufferError(f"{name} has strides {strides_of(self)}: its bytes must lie side by side along the last "
                              f"dimension; call .copy() first")
        return reinterpret(self, row)
    also = ", or its bytes as uint8" if dlfp4_dtypes[row].bits <= 8 else ""
    if row == FLOAT32:
        also = f": convert it first{f', or pass float({name})' if self.size_ == 1 else ''}"
    raise TypeError(f"{name} has dtype {dtype_name(self)}; expected {dlfp4_dtypes[row].name.decode()}{also}")


cdef Tensor fit_part(Tensor self, buffer, tuple logical, format):
    """A part in the shape of its buffer. Leading dimensions may come unmerged, tiles of scales flat."""
    cdef tuple shape = buffer.shape
    cdef bint same_rows = self.dl.ndim <= 1 or not shape or self.dl.shape[self.dl.ndim - 1] == shape[len(shape) - 1]
    if self.size_ != count_of(buffer.shape) or not same_rows:
        raise ValueError(f"{buffer.name} has shape {listed(shape_of(self))}; {format} of shape {listed(logical)} "
                         f"needs {buffer.shape} of {buffer.dtype}, or as many in one dimension")
    return self if has_shape(self, shape) else reshape_tensor(self, shape)


cdef inline bint has_dense_lines(Tensor self) noexcept nogil:
    """Whether neighbours along the last dimension lie side by side."""
    cdef int last = self.dl.ndim - 1
    return last < 0 or self.dl.strides[last] == 1 or self.dl.shape[last] == 1


cdef bint rows_are_bytes(Tensor self) noexcept:
    cdef int bits = self.dl.dtype.bits
    return self.size_ == 0 or (
        has_dense_lines(self) and (self.dl.shape[0] == 1 or times(self.dl.strides[0], bits) % 8 == 0))


cdef tuple place_parts(tuple parts):
    """The parts of a tensor, in the order of its fields, placed where one kernel can read all of them: managed memory
    joins the device or the host of the other parts."""
    cdef Tensor part, anchor
    cdef int k, held = 0   # by the first part that is not managed, if there is one
    for k, part in enumerate(parts):
        if part is not None and part.dl.device.device_type != kDLCUDAManaged:
            held = k
            break
    anchor = parts[held]
    for k, part in enumerate(parts):
        if part is not None and not is_read_beside(part, anchor):
            raise ValueError(f"{PART_NAMES[k]} lies on {device_of(part)}, {PART_NAMES[held]} on "
                             f"{device_of(anchor)}; the same kernels must read all parts: call "
                             f".to_device({str(place_beside(anchor))!r}) first")
    if anchor.dl.device.device_type == kDLCUDAManaged:
        return parts
    return tuple([place_managed(part, on_cuda(anchor)) for part in parts])


cdef tuple PART_NAMES = ("data", "scales", "global_scale", "zero_points or biases")


cdef object place_beside(Tensor anchor):
    """Where to move a tensor for the kernels that read `anchor`."""
    return HOST if host_readable(anchor.dl.device.device_type) else device_of(anchor)


cdef bint is_read_beside(Tensor self, Tensor anchor):
    """Whether the kernels that read `anchor` can read another part; managed memory may join either side."""
    if on_cuda(anchor):
        return on_cuda(self) and self.dl.device.device_id == anchor.dl.device.device_id
    if host_readable(anchor.dl.device.device_type):
        return host_readable(self.dl.device.device_type) or self.dl.device.device_type == kDLCUDAManaged
    return lies_on(self, device_of(anchor))


cdef bint is_number(value):
    """Whether it is a real number of Python, NumPy or ml_dtypes, or converts to a float and shares no memory."""
    if isinstance(value, np.generic):
        return not isinstance(value, (np.complexfloating, np.flexible, np.datetime64, np.timedelta64))
    return isinstance(value, (float, int)) or (
        type_has(Py_TYPE(value), "__float__") and not type_has(Py_TYPE(value), "__dlpack__"))


cdef double FLOAT32_INFINITE = 2.0**128 - 2.0**103   # from here on float32 rounds to infinity


def _as_float32(value, str name):
    """A number within the range of float32."""
    if not is_number(value):
        raise TypeError(f"{name}={in_short(value)} is of type {type(value).__name__}; expected a number, such as "
                        f"float({name})")
    try:
        number = float(value)
    except OverflowError:
        number = INFINITY
    if abs(number) >= FLOAT32_INFINITE and value not in (INFINITY, -INFINITY):
        raise ValueError(f"{name}={value} is beyond float32, which holds numbers up to 3.4e38")
    return number


cdef Tensor as_scalar_beside(Tensor data, value, str name):
    """As `as_scalar`, but a plain number is placed on the device of `data`."""
    cdef Tensor self = as_scalar(value, name)
    if is_number(value) and on_cuda(data):
        return move(self, Device("cuda", data.dl.device.device_id))
    return self


cdef Tensor as_scalar(value, str name):
    """A 0-d float32 tensor of a number, or of a producer of one element."""
    cdef Tensor self
    if is_number(value):
        value = np.array(_as_float32(value, name), np.float32)
    self = as_type(import_part(value), FLOAT32, name)
    if self.size_ != 1:
        raise ValueError(f"{name} has shape {shape_of(self)}; expected one number")
    return self if self.dl.ndim == 0 else reshape_tensor(self, ())
