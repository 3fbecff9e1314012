# Products: sums of products along an axis, of plain and of block-scaled tensors.

class BackendError(RuntimeError):
    """No backend can multiply the operands; the message has the reason of each."""


cdef struct Factor:            # one operand of a product, as lines along the summed axis
    dlfp4_lines lines
    const float *decode        # the scale of the whole tensor, where that lies on a device
    int64_t length             # elements along that axis
    int ndim                   # number of the other axes
    int64_t shape[MOST_DIMS]
    int64_t strides[MOST_DIMS]  # from line to line; 0 where a line is repeated


cdef int fill_factor(Factor *factor, x, int64_t axis, str name) except -1:
    """Any operand as lines along an axis; `x` must live as long as the factor."""
    memset(&factor.lines, 0, sizeof(factor.lines))   # the large arrays behind it are read as far as they are filled
    factor.ndim = 0
    factor.lines.decode = 1
    factor.lines.format = -1
    factor.decode = NULL
    if type(x) is ScaledTensor:
        return fill_scaled_factor(factor, x, axis, name)
    return fill_plain_factor(factor, x, axis, name)


cdef int fill_plain_factor(Factor *factor, Tensor self, int64_t axis, str name) except -1:
    cdef const DLTensor *dl = &self.dl
    cdef int along, k
    secure(self)
    check_readable(self)
    if dl.ndim == 0:
        raise ValueError(f"{name} is 0-d and has no axis to sum over; reshape it to (1,) first")
    along = along_axis(axis, dl.ndim, name)
    factor.lines.blocks.data = dl.data
    factor.lines.blocks.strides[0] = 1
    factor.lines.blocks.strides[1] = dl.strides[along]
    factor.lines.blocks.length = factor.length = dl.shape[along]
    factor.lines.code = dl.dtype.code
    factor.lines.bits = dl.dtype.bits
    factor.lines.padded = is_padded(self)
    for k in range(dl.ndim):
        if k != along:
            add_axis(factor, dl.shape[k], dl.strides[k])
    return 0


cdef int fill_scaled_factor(Factor *factor, ScaledTensor self, int64_t axis, str name) except -1:
    cdef tuple shape = self.shape
    cdef int ndim = len(shape), along = along_axis(axis, ndim, name), k
    cdef int64_t stride = 1
    check_axis_of_sums(self, axis, name)
    fill_blocks(&factor.lines.blocks, self, 0)
    factor.lines.format = self.number
    if self.global_scale is not None and self.global_scale.dl.ndim == 0:
        if on_cuda(self.global_scale):
            factor.decode = <const float *> self.global_scale.dl.data
        else:
            factor.lines.decode = read_scalar(self.global_scale)
    factor.length = shape[along]
    for k in range(ndim - 1, -1, -1):
        if k != along:
            add_axis(factor, shape[k], stride)
            stride = times(stride, shape[k])
    if stride == 1:   # the stride of a single line means nothing
        factor.lines.blocks.strides[0] = factor.lines.blocks.length
    reverse_axes(factor)
    return 0


cdef int check_axis_of_sums(ScaledTensor self, int64_t axis, str name) except -1:
    """Whether blocks run along the axis that is summed over."""
    cdef int ndim = len(self.shape), along = along_axis(axis, ndim, name)
    if self.axis == -2 and ndim != 2:
        raise ValueError(f"{name} is {summary_of(self)}, a stack with blocks along columns, which are not summed over; "
                         f"sum over .dequantize(), or quantize it along its last axis")
    if ndim + self.axis != along:
        raise ValueError(f"{name} is {summary_of(self)}, with blocks along axis {self.axis}, and is to be summed along "
                         f"{along - ndim}; quantize it along that axis, or sum over .dequantize()")
    return 0


cdef int along_axis(int64_t axis, int ndim, str name) except -1:
    if ndim > MOST_DIMS:
        raise ValueError(f"{name} has {ndim} dimensions; expected {MOST_DIMS} at most: reshape it first")
    if not -ndim <= axis < ndim:
        raise ValueError(f"axis={axis} of {name}, which has {ndim} dimensions; expected {-ndim} to {ndim - 1}")
    return axis + ndim if axis < 0 else axis


cdef void add_axis(Factor *factor, int64_t extent, int64_t stride) noexcept:
    factor.shape[factor.ndim] = extent
    factor.strides[factor.ndim] = stride
    factor.ndim += 1


cdef void reverse_axes(Factor *factor) noexcept:
    cdef int k, other
    for k in range(factor.ndim // 2):
        other = factor.ndim - 1 - k
        factor.shape[k], factor.shape[other] = factor.shape[other], factor.shape[k]
        factor.strides[k], factor.strides[other] = factor.strides[other], factor.strides[k]


# ---- Broadcasting

cdef void broadcast_to(Factor *factor, int ndim, const int64_t *shape) noexcept:
    """Add leading axes of extent 1, and give repeated axes a stride of 0."""
    cdef int missing = ndim - factor.ndim, k
    for k in range(ndim - 1, -1, -1):
        if k < missing or (factor.shape[k - missing] == 1 and shape[k] != 1):
            factor.strides[k] = 0
        else:
            factor.strides[k] = factor.strides[k - missing]
        factor.shape[k] = shape[k]
    factor.ndim = ndim


cdef int broadcast(Factor *a, Factor *b) except -1:
    """Both to their common shape."""
    cdef int64_t shape[MOST_DIMS]
    cdef int ndim = max(a.ndim, b.ndim), k
    cdef int64_t of_a, of_b
    for k in range(ndim):
        of_a = a.shape[k - ndim + a.ndim] if k >= ndim - a.ndim else 1
        of_b = b.shape[k - ndim + b.ndim] if k >= ndim - b.ndim else 1
        if of_a != of_b and of_a != 1 and of_b != 1:
            _refuse_broadcast(extents_of(a), extents_of(b), of_a, of_b)
        shape[k] = of_b if of_a == 1 else of_a
    if count_elements(ndim, shape) < 0:
        raise ValueError(f"shapes {extents_of(a)} and {extents_of(b)}, without the axis that is summed over, broadcast "
                         f"to more lines than can be counted")
    broadcast_to(a, ndim, shape)
    broadcast_to(b, ndim, shape)
    return 0


def _refuse_broadcast(of_a, of_b, m, n):
    """Of two shapes with extents that do not go together."""
    raise ValueError(f"shapes {of_a} and {of_b}, without the axis that is summed over, do not broadcast: {m} is not "
                     f"{n}")


cdef tuple extents_of(const Factor *factor):
    return tuple([factor.shape[k] for k in range(factor.ndim)])


cdef bint steps_evenly(const Factor *factor, int outer, int inner, int64_t extent) noexcept nogil:
    return factor.strides[outer] == times(factor.strides[inner], extent)


cdef void merge_axes(Factor *a, Factor *b) noexcept nogil:
    """Merge neighbouring axes over which both sides step evenly, and drop axes of extent 1; one axis remains."""
    cdef int kept = 0, k
    for k in range(a.ndim):
        if a.shape[k] == 1:
            continue
        if kept and steps_evenly(a, kept - 1, k, a.shape[k]) and steps_evenly(b, kept - 1, k, a.shape[k]):
            a.shape[kept - 1] = times(a.shape[kept - 1], a.shape[k])
        else:
            a.shape[kept] = a.shape[k]
            kept += 1
        a.strides[kept - 1] = a.strides[k]
        b.strides[kept - 1] = b.strides[k]
    if kept == 0:
        a.shape[0] = 1
        a.strides[0] = b.strides[0] = 0
        kept = 1
    a.ndim = b.ndim = kept


# ---- Sums

cdef dlfp4_status sum_products(Factor *a, Factor *b, float *result) noexcept nogil:
    """Sum all lines, along as few axes as they need."""
    merge_axes(a, b)
    return dlfp4_host_vecdot_axes(&a.lines, a.strides, &b.lines, b.strides, a.ndim, a.shape, a.length, result)


cdef Tensor sum_over(a, b, int64_t axis, out):
    """Sums over an axis of two operands; fill_factor secures those that are Tensors."""
    cdef object left = a if is_ours(a) else borrow(a), right = b if is_ours(b) else borrow(b)
    cdef tuple inputs  # which are not what is multiplied, where scales or values are made of them first
    cdef Tensor elements, others, result
    cdef Factor of_left, of_right
    cdef Place place
    if on_cuda(elements_of(left)) != on_cuda(elements_of(right)):
        left, right = _meet(left, right)
    inputs = None if out is None else (left, right)
    left, right = with_equal_rotations(left, right, (None, None), None)
    elements = elements_of(left)
    others = elements_of(right)
    check_together(elements, others)
    tell_unscaled(left, right, 1)
    place = place_for(elements, None, a, b, out)
    left = for_dots(plain_on(left, &place), axis, "a", &place)
    right = for_dots(plain_on(right, &place), axis, "b", &place)
    fill_sums(&of_left, &of_right, left, right, axis)
    if out is None:
        result = allocate_on(&place, FLOAT32, of_left.ndim, of_left.shape, False)
    else:
        result = check_out_sums(out, extents_of(&of_left), inputs)
    if result.size_ and not run_sums(Sums(&of_left, &of_right, <float *> result.dl.data, NULL), left, right, &place):
        refuse_sums(left, right)
    return result


cdef int refuse_sums(left, right) except -1:
    raise TypeError(f"dlfp4 has no dot product of {name_of_factor(left)} and {name_of_factor(right)}: expected two "
                    f"tensors of one type, floats of at most 32 bits (not float8_e8m0fnu) or integers of at most 8; "
                    f"two of different floating-point types; or ScaledTensors. Convert others first, floats by "
                    f"dlfp4.cast")


cdef int fill_sums(Factor *a, Factor *b, left, right, int64_t axis) except -1:
    """Both operands as lines along an axis, broadcast."""
    fill_factor(a, left, axis, "a")
    fill_factor(b, right, axis, "b")
    if a.length != b.length:
        _refuse_lengths(left.shape, right.shape, axis)
    return broadcast(a, b)


def _refuse_lengths(of_a, of_b, axis):
    """Of operands whose sums differ in length."""
    raise ValueError(f"a of shape {of_a} has {of_a[axis]} elements along axis {axis}, b of shape {of_b} has "
                     f"{of_b[axis]}; both need the same number")


cdef inline object plain_on(x, const Place *place):
    """An operand in a layout that every operation reads, with scales that it reads, made where the operation runs."""
    return readable(x, place) if type(x) is ScaledTensor else x


cdef inline object for_dots(x, int64_t axis, str name, const Place *place):
    """An operand as the kernels of dots take it: on a device in lines, and integers in blocks are decoded first."""
    if is_host(place):
        return x
    if type(x) is Tensor:
        return x if place.is_nowhere else in_lines(x, axis, name, place)
    if not (<ScaledTensor> x).format.has_integers:
        return x
    check_axis_of_sums(x, axis, name)
    return dequantize(x, stream=place.stream)


cdef Tensor in_lines(Tensor self, int64_t axis, str name, const Place *place):
    """Elements along an axis next to each other, copied if they lie apart, where a device would read one by one."""
    cdef int last = self.dl.ndim - 1, along
    if last < 0:
        return self   # fill_factor refuses it
    along = along_axis(axis, last + 1, name)
    if self.dl.shape[along] <= 1 or self.dl.strides[along] == 1:
        return self
    secure(self)
    return exchange_dims(copy_on(exchange_dims(self, along, last), place), along, last)


cdef inline ScaledTensor readable(ScaledTensor self, const Place *place):
    return widen_scales(plain(self, place.stream), place)


cdef inline ScaledTensor widen_scales(ScaledTensor self, const Place *place):
    """Scales of a format whose scales are float32, and biases, as that: the type that kernels read."""
    cdef bint has_biases = self.offsets is not None and is_float(self.offsets.row)
    if dlfp4_formats[self.number].kind != DLFP4_LARGEST or (
            self.scales.row == FLOAT32 and not (has_biases and self.offsets.row != FLOAT32)):
        return self
    self = another(self)
    self.scales = widen(self.scales, place)
    if has_biases:
        self.offsets = widen(self.offsets, place)
    return self


cdef Tensor widen(Tensor self, const Place *place):
    """Floats as float32."""
    cdef Tensor result
    if self.row == FLOAT32:
        return self
    result = allocate_on(place, FLOAT32, self.dl.ndim, self.dl.shape, False)
    convert(self, result, NULL, place)
    return result


def _meet(a, b):
    """Two operands where managed memory joins the CUDA device on which the other operand lies, or the host."""
    cdef Tensor of_a = elements_of(a), of_b = elements_of(b)
    cdef bint on_device = of_a.dl.device.device_type == kDLCUDA or of_b.dl.device.device_type == kDLCUDA
    return place_operand(a, of_a, on_device), place_operand(b, of_b, on_device)


cdef object place_operand(x, Tensor elements, bint on_device):
    cdef ScaledTensor scaled
    if elements.dl.device.device_type != kDLCUDAManaged:
        return x
    if elements is x:
        return place_managed(elements, on_device)
    scaled = plain(x)
    return make_scaled(place_managed(scaled.data, on_device), place_managed(scaled.scales, on_device),
                       place_managed(scaled.global_scale, on_device), scaled.format, scaled.axis, scaled.scale_layout,
                       scaled.shape, scaled.rotation, place_managed(scaled.offsets, on_device))


cdef int check_together(Tensor a, Tensor b) except -1:
    if on_cuda(a) != on_cuda(b) or (on_cuda(a) and a.dl.device.device_id != b.dl.device.device_id):
        raise BackendError(f"a lies on {device_of(a)}, b on {device_of(b)}; bring them together with "
                           f".to_device({str(place_beside(a))!r})")
    return 0


cdef struct Sums:
    Factor *a
    Factor *b
    float *result
    double *workspace   # of a device, for what several blocks of threads sum


cdef int sum_at(const Place *place, void *call) noexcept nogil:
    cdef Sums *s = <Sums *> call
    cdef dlfp4_cuda_lines a, b
    if is_host(place):
        return sum_products(s.a, s.b, s.result)
    merge_axes(s.a, s.b)
    a.lines, a.strides, a.decode = s.a.lines, s.a.strides, s.a.decode
    b.lines, b.strides, b.decode = s.b.lines, s.b.strides, s.b.decode
    return dlfp4_cuda_vecdot(place.device, place.stream, &a, &b, s.a.ndim, s.a.shape, s.a.length, s.result, s.workspace)


cdef bint has_sums(const Factor *a, const Factor *b) noexcept:
    """Whether the host sums products of such types; of no lines nothing is read."""
    return dlfp4_host_vecdot(&a.lines, &b.lines, 0, a.length, NULL, 1) == DLFP4_OK


cdef bint run_sums(Sums call, left, right, const Place *place) except -1:
    """The sums of all lines, of which there are some; false where the types have no product."""
    cdef Touched touched
    cdef Tensor workspace   # kept until the launch
    cdef int64_t count = count_elements(call.a.ndim, call.a.shape), numbers
    cdef int status
    if place.is_nowhere:   # kernels of a device are not asked, which need not be here
        return not is_host(place) or has_sums(call.a, call.b)
    touch_nothing(&touched)
    if not is_host(place):
        reads_operand(&touched, left)
        reads_operand(&touched, right)
        numbers = dlfp4_cuda_vecdot_workspace(count, call.a.length)
        if numbers:
            workspace = allocate_on(place, FLOAT64, 1, &numbers, False)
            call.workspace = <double *> workspace.dl.data
    status = run_on(place, &touched, sum_at, DLFP4_CUDA_IMAGE_dots, &call, count * (call.a.length + 1))
    if is_host(place) or status <= -DLFP4_CUDA_REFUSED:
        return status == 0
    check_cuda(status, "summing products")
    return True


cdef void reads_operand(Touched *touched, x) noexcept:
    if type(x) is ScaledTensor:
        reads_parts(touched, <ScaledTensor> x)
    else:
        reads(touched, <Tensor> x)


cdef str name_of_factor(x):
    return x.format.name if type(x) is ScaledTensor else dtype_name(x)


def vecdot(a, b, axis=-1, *, out=None):
    """Sums of products along one axis, of low-precision tensors.

    Parameters
    ----------
    a, b : producer or ScaledTensor
        Tensors of one element type: floats of at most 32 bits (not float8_e8m0fnu), packed or padded FP4 and FP6, or
        integers of at most 8 bits. Floating-point types may differ; strides are free. Either side may be a
        :class:`ScaledTensor` of any format whose blocks run along `axis`. Both lie on the host, or on one CUDA device;
        managed memory serves on either.
    axis : int
        The axis to sum over, in both operands; the other axes broadcast.
    out : producer, optional
        Compact writable memory for the result, which shares none with the operands.

    Returns
    -------
    Tensor
        float32, of the broadcast shape without `axis`. An empty sum is 0.

    Raises
    ------
    ValueError
        The lengths differ, the shapes do not broadcast, blocks run along another axis, or `out` does not fit.
    TypeError
        The types have no product, or `out` is not float32.
    BackendError
        Operands on different devices.

    Notes
    -----
    Sums of FP4, FP6 and integers are exact at any length and rounded once; so are sums within a block of FP4 or FP6.
    Other sums are float32 for at most 2**12 steps, then float64: the error is at most
    ``max(K, 16) * 2**-24 * sum(abs(a * b))``. NaN and infinity propagate as in float arithmetic. The scale of a whole
    tensor multiplies sums, and the scale of a block may multiply the sum of its products. On a host a sum that leaves
    the range of float32 before that is made in float64; bfloat16 inputs below 2**-126 may count as zero, as in the
    processor's instructions. On a device so may other inputs, the last bits of float32 inputs, and products, and the
    unscaled sums must not overflow float32. Results do not depend on the number of threads.

    On a CUDA device the work runs on the current stream of the framework that calls, as in :func:`cast`, or where `a`
    was made; that stream waits for the operands, the host does not. Results are the same at each call, but sums may be
    taken in another order than on the host.

    Examples
    --------
    >>> import numpy as np, dlfp4
    >>> x = dlfp4.cast(np.arange(-4, 4, dtype="float32").reshape(2, 4), "float4_e2m1fn")
    >>> dlfp4.vecdot(x, x).tolist()
    [30.0, 14.0]
    """
    number = parse_integer(axis, "axis")
    if not -MOST_DIMS <= number < MOST_DIMS:
        raise ValueError(f"axis={number}: operands have {MOST_DIMS} dimensions at most")
    return sum_over(a, b, number, out)


def dot(a, b, *, out=None):
    """The sum of products of two vectors; :func:`vecdot` of 1-D tensors.

    Parameters
    ----------
    a, b : producer or ScaledTensor
        ``(K,)`` each.
    out : producer, optional
        0-d writable memory for the result.

    Returns
    -------
    Tensor
        0-d float32; ``float(t)`` and ``t.item()`` give the number.

    Raises
    ------
    ValueError
        An operand does not have exactly one dimension, or the lengths differ.
    TypeError, BackendError
        As :func:`vecdot`.

    Examples
    --------
    >>> import numpy as np, dlfp4
    >>> q = dlfp4.quantize(np.ones(32, "float32"), "nvfp4")
    >>> float(dlfp4.dot(q, q))
    32.0
    """
    return sum_over(as_vector(a, "a"), as_vector(b, "b"), -1, out)


cdef object as_vector(x, str name):
    """An operand of one dimension. Its rank is read directly: a shape tuple costs as much as a short sum."""
    cdef bint scaled = type(x) is ScaledTensor
    cdef object operand = x if scaled or type(x) is Tensor else borrow(x)
    cdef Py_ssize_t ndim = len((<ScaledTensor> operand).shape) if scaled else (<Tensor> operand).dl.ndim
    if ndim != 1:
        _refuse_vector(name, operand.shape)
    return operand


def _refuse_vector(name, shape):
    """Of an operand that is none."""
    raise ValueError(f"{name} has shape {shape}: dot takes two vectors; for more dimensions call vecdot (along an "
                     f"axis) or matmul")


# ---- Matrix products on the host; dlfp4/matmul.py chooses who multiplies

def _multiply_on_host(a, b, result, alpha, rounds):
    """result = alpha * a @ b: a may be a stack, b is a matrix; `result` is compact, or a matrix of any strides."""
    cdef Factor of_a, of_b
    cdef dlfp4_matrix matrix
    cdef dlfp4_matmul_options options
    cdef object left = plain_on(a, &ON_HOST) if type(a) is ScaledTensor else as_rows(a, &ON_HOST)   # maybe a copy
    cdef object right = plain_on(b, &ON_HOST)   # to be kept until the end
    cdef Tensor rows = as_rows(result, &ON_HOST)   # maybe a view
    fill_product(&of_a, &of_b, &matrix, left, right, rows)
    fill_product_options(&options, alpha, rounds)
    run_matmul(MatrixProduct(&of_a.lines, &of_b.lines, of_a.length, &matrix, &options, NULL))


cdef void fill_product_options(dlfp4_matmul_options *options, double alpha, bint rounds) noexcept:
    options.alpha = dlfp4_host_narrow(alpha)
    options.activation = DLFP4_ACTIVATION_INT8 if rounds else DLFP4_ACTIVATION_EXACT


cdef int fill_product(Factor *a, Factor *b, dlfp4_matrix *result, left, right, Tensor rows) except -1:
    """Rows times columns, into a matrix."""
    fill_factor(a, left, -1, "a")
    fill_factor(b, right, -2, "b")
    a.lines.step = 1 if type(left) is ScaledTensor else a.strides[0]
    b.lines.step = b.strides[0]
    return fill_matrix(result, rows)


cdef Tensor as_rows(Tensor self, const Place *place):
    return flatten(self, place) if self.dl.ndim > 1 else reshape_tensor(self, (1, self.size_))


cdef struct MatrixProduct:
    dlfp4_lines *a
    dlfp4_lines *b
    int64_t length
    dlfp4_matrix *result
    dlfp4_matmul_options *options
    void *workspace


cdef int multiply_on_host_at(const Place *place, void *call) noexcept nogil:
    cdef MatrixProduct *m = <MatrixProduct *> call
    return dlfp4_host_matmul(m.a, m.b, m.length, m.result, m.options, m.workspace)


cdef int run_matmul(MatrixProduct call) except -1:
    cdef int64_t bytes = dlfp4_host_matmul_workspace(call.a, call.b, call.length, call.result, call.options)
    return run_with_workspace(&call.workspace, bytes, multiply_on_host_at, &call, "multiplying matrices")


cdef int run_with_workspace(void **workspace, int64_t bytes, Kernel kernel, void *call, str what) except -1:
    """Run a product on the host, whose `call` points to its workspace."""
    cdef int status
    workspace[0] = PyMem_RawMalloc(max(1, bytes))
    if workspace[0] == NULL:
        raise MemoryError(f"no memory for a workspace of {bytes} bytes")
    status = run_on(&ON_HOST, NULL, kernel, DLFP4_CUDA_IMAGE_products, call, INT64_MAX)
    PyMem_RawFree(workspace[0])
    return check_run(&ON_HOST, status, what)


def _allocate_result(a, shape, dtype, stream):
    """Memory for a matrix product beside `a`, in the order of the stream on which the product runs."""
    cdef Tensor elements = elements_of(a)
    cdef int64_t dims[MOST_DIMS]
    cdef int ndim = fill_extents(dims, list(shape))
    cdef Place place = place_for(elements, stream, a)
    return allocate_on(&place, row_of_argument(dtype), ndim, dims, False)
