# Memory: allocation of our own, and copies between devices, layouts and forms of storage.

cdef enum:
    ALIGNMENT = 64   # bytes; JAX copies host memory that is aligned to less


cdef Tensor allocate(int row, int ndim, const int64_t *shape, bint padded, DLDevice device,
                     int64_t stream=LEGACY_STREAM, int origin=NO_ORIGIN):
    """An uninitialised compact tensor; the spare bits of its last byte are zero. CUDA memory is ordered on `stream`."""
    cdef Tensor self = describe_compact(row, ndim, shape, padded, device)
    self.origin = origin
    if device.device_type == kDLCPU and device.device_id == 0:
        allocate_host(self)
    elif device.device_type == kDLCUDA:
        allocate_cuda(self, stream)
    else:
        raise BufferError(f"dlfp4 cannot allocate memory on {device_from_dlpack(device)}; expected 'cpu' or 'cuda:N'")
    return self


cdef inline Tensor describe_compact(int row, int ndim, const int64_t *shape, bint padded, DLDevice device):
    """A compact tensor that has no memory yet."""
    cdef Tensor self = Tensor.__new__(Tensor)
    cdef int k
    set_dtype(self, row, padded)
    self.dl.device = device
    reserve_dims(self, ndim)
    for k in range(ndim):   # a call of memcpy costs more than the few numbers
        self.dl.shape[k] = shape[k]
    self.size_ = count_elements(ndim, shape)
    if count_bits(self.size_, storage_bits(self)) < 0 \
            or not fill_compact_strides(ndim, self.dl.shape, self.dl.strides):
        raise MemoryError(f"shape {shape_of(self)} of {dtype_name(self)} {beyond_memory(self.size_)}")
    return self


cdef extern from *:
    """
    #include <sys/mman.h>

    /* Huge pages for large blocks, as NumPy asks for: the first writes then cause a hundredth of the page faults. */
    static inline void advise_huge_pages(void *block, size_t bytes) {
    #ifdef MADV_HUGEPAGE
        const size_t page = (size_t)1 << 12, large = (size_t)1 << 22;
        if (bytes >= large) {
            size_t skipped = (page - (size_t)block % page) % page;
            madvise((char *)block + skipped, bytes - skipped, MADV_HUGEPAGE); /* only advice: may fail */
        }
    #else
        (void)block;
        (void)bytes;
    #endif
    }
    """
    void advise_huge_pages(void *, size_t) noexcept nogil


cdef int allocate_host(Tensor self) except -1:
    cdef int64_t bytes = count_bytes(self)
    cdef char *block = <char *> PyMem_RawMalloc(bytes + ALIGNMENT)
    if block == NULL:
        raise MemoryError(f"no memory for {bytes} bytes")
    advise_huge_pages(block, bytes + ALIGNMENT)
    self.owner = block
    self.owner_kind = OWNER_HOST
    self.dl.data = block + (ALIGNMENT - <uintptr_t> block % ALIGNMENT) % ALIGNMENT
    if is_packed(self) and bytes > 0:
        (<char *> self.dl.data)[bytes - 1] = 0
    return 0


cdef int allocate_cuda(Tensor self, int64_t stream) except -1:
    cdef void *block = NULL
    cdef int64_t bytes = count_bytes(self)
    cdef int status
    self.stream = stream
    status = dlfp4_cuda_alloc(self.dl.device.device_id, stream, bytes if bytes > 0 else 1, &block)
    if status != 0:   # the message alone would cost as much as the allocation
        check_cuda(status, f"allocating {bytes} bytes on {device_of(self)}")
    self.owner = self.dl.data = block
    self.owner_kind = OWNER_CUDA
    self.retained = retain_stream(stream)
    return 0


cdef Tensor allocate_like(Tensor source, DLDevice device):
    return allocate(source.row, source.dl.ndim, source.dl.shape, is_padded(source), device)


def _home_of(x):
    """Where memory of our own lies beside a tensor's: pinned memory is the host's, managed memory its device's."""
    cdef Tensor self = elements_of(x)
    if host_readable(self.dl.device.device_type):
        return HOST
    return Device("cuda", self.dl.device.device_id) if on_cuda(self) else device_of(self)


# ---- Copies

cdef dlfp4_view view_of(Tensor self) noexcept:
    """The kernels' description of a tensor."""
    cdef dlfp4_view view
    view.data = self.dl.data
    view.shape = self.dl.shape
    view.strides = self.dl.strides
    view.ndim = self.dl.ndim
    view.code = self.dl.dtype.code
    view.bits = self.dl.dtype.bits
    view.padded = is_padded(self)
    view.part = self.is_part
    return view


cdef int check_host(Tensor self) except -1:
    """BufferError where the memory is not the host's."""
    cdef int count
    if is_cuda(self.dl.device.device_type):   # an error of the driver explains more than the device's name
        check_cuda(dlfp4_cuda_device_count(&count), f"reading memory on {device_of(self)}")
    if not host_readable(self.dl.device.device_type):
        raise BufferError(f"the CPU cannot read memory on {device_of(self)}; "
                          f"call .to_device('cpu') first")
    return 0


cdef inline int check_readable(Tensor self) except -1:
    """Whether our kernels can read the memory: the host's, or a CUDA device's."""
    return 0 if on_cuda(self) else check_host(self)


cdef inline Tensor keep_mark(Tensor self, Tensor copy):
    """A copy, of whose elements products say what they say of the tensor's own."""
    copy.unscaled = self.unscaled
    return copy


cdef Tensor duplicate(Tensor self):
    """A compact copy where operations on the tensor run: of pinned memory on the host, of managed memory on its
    device."""
    cdef Tensor result
    cdef Place place
    secure(self)
    if not on_cuda(self) and not host_readable(self.dl.device.device_type):
        return move(self, device_of(self))   # which says why not
    place = place_for(self, None, self)
    result = allocate_on(&place, self.row, self.dl.ndim, self.dl.shape, is_padded(self))
    convert(self, result, NULL, &place)
    return result


cdef Tensor move(Tensor self, Device device):
    """A compact copy on `device`. Only host and CUDA memory can be reached; other memory needs its own library."""
    cdef Tensor source = self, result
    cdef DLDevice target
    cdef Place place
    secure(self)
    target.device_type = device.code
    target.device_id = device.index
    if is_outline(self):
        return outline(self.row, self.dl.ndim, self.dl.shape, is_padded(self), target)
    if device.code == kDLCPU and device.index != 0:
        raise BufferError(f"dlfp4 cannot move to {device}: the host is one device, 'cpu'")
    if host_readable(self.dl.device.device_type) and device.code == kDLCPU:
        return duplicate(self)
    if not is_cuda(self.dl.device.device_type) and not host_readable(self.dl.device.device_type):
        raise BufferError(f"dlfp4 has no driver for {device_of(self)}; "
                          f"move the tensor with its own library first")
    if host_readable(self.dl.device.device_type):
        source = self if is_compact_tensor(self) else duplicate(self)
    elif not is_compact_tensor(self) and device.code == kDLCPU:
        return move_strided(self)
    elif not is_compact_tensor(self):
        source = duplicate(self)
    if on_cuda(source) and target.device_type == kDLCUDA and target.device_id == source.dl.device.device_id:
        place = place_of(source)   # the stream of the copy
        result = allocate_on(&place, source.row, source.dl.ndim, source.dl.shape, is_padded(source))
    else:
        result = allocate_like(source, target)
    copy_bytes(result, source, count_bytes(source))
    return result


cdef Tensor move_strided(Tensor self):
    """Copy a strided CUDA tensor to the host: first its whole extent as bytes, then its elements out of that."""
    cdef int64_t low, high, bytes
    cdef Tensor extent, staging, elements
    fill_byte_range(&self.dl, storage_bits(self), &low, &high)
    bytes = high - low
    extent = share(self)
    extent.dl.data = <void *> low
    staging = allocate(UINT8, 1, &bytes, False, CPU)
    copy_bytes(staging, extent, bytes)
    elements = make_view(staging, self.dl.ndim)
    memcpy(elements.dl.shape, self.dl.shape, 2 * self.dl.ndim * sizeof(int64_t))
    elements.dl.data = <char *> staging.dl.data + (<int64_t> self.dl.data - low)
    set_dtype(elements, self.row, is_padded(self))
    return duplicate(finish_view(elements))


cdef int copy_bytes(Tensor result, Tensor source, int64_t bytes) except -1:
    """Copy through the driver, after the work on the stream of the CUDA side, or of both."""
    cdef bint from_cuda = is_cuda(source.dl.device.device_type), to_cuda = is_cuda(result.dl.device.device_type)
    cdef Tensor cuda = source if from_cuda else result
    cdef int device = cuda.dl.device.device_id, other = result.dl.device.device_id, status = 0
    cdef bint apart = from_cuda and to_cuda and other != device
    cdef uintptr_t made_on = result.stream, stream = cuda.stream
    cdef dlfp4_cuda_direction direction = DLFP4_HOST_TO_DEVICE
    if from_cuda:
        direction = DLFP4_DEVICE_TO_DEVICE if to_cuda else DLFP4_DEVICE_TO_HOST
    if bytes == 0:
        return 0
    with nogil:
        if apart:
            status = dlfp4_cuda_wait(other, made_on)
        if status == 0 and apart:
            status = dlfp4_cuda_copy_to_peer(device, stream, other, result.dl.data, source.dl.data, bytes)
        elif status == 0:
            status = dlfp4_cuda_copy(device, stream, direction, result.dl.data, source.dl.data, bytes)
    if status != 0:   # the message alone costs more than a short copy
        check_cuda(status, f"copying {bytes} bytes from {device_of(source)} to {device_of(result)}")
    return 0


# ---- NumPy

cdef object as_numpy(Tensor self):
    """A NumPy array over host memory, one item an element."""
    cdef cnp.npy_intp bytes_strides[MOST_DIMS]
    cdef int64_t itemsize = storage_bits(self) // 8
    cdef int k
    if self.dl.ndim > MOST_DIMS:
        raise BufferError(f"NumPy takes {MOST_DIMS} dimensions at most, this tensor has {self.dl.ndim}; "
                          f"reshape it first")
    for k in range(self.dl.ndim):
        bytes_strides[k] = times(itemsize, self.dl.strides[k] if self.dl.shape[k] > 1 and self.size_ != 0 else 1)
    try:
        array = new_array(DTYPES[self.row], self.dl.ndim, self.dl.shape, bytes_strides, self.dl.data, array_flags(self))
    except ValueError as error:   # the extents of an empty tensor overflow
        raise BufferError(f"NumPy has no array of shape {shape_of(self)}: {error}; call .reshape((0,)) first") from None
    cnp.set_array_base(array, self)
    return array


cdef inline int array_flags(Tensor self) noexcept:
    """Flags of a NumPy array over the memory."""
    return 0 if self.immutable or self.flags & DLPACK_FLAG_BITMASK_READ_ONLY else cnp.NPY_ARRAY_WRITEABLE


cdef Tensor on_host(Tensor self, copy):
    """`self` where NumPy can read it: host memory, one element a byte or more."""
    cdef Tensor source = self, result
    secure(self)
    if is_outline(self):
        refuse_outline(self)
    if not host_readable(self.dl.device.device_type):
        if copy is False:
            raise BufferError(f"NumPy cannot read memory on {device_of(self)}; "
                              f"allow the copy (copy=None), or call .to_device('cpu') first")
        source = move(self, HOST)
    if is_packed(source):
        if copy is False:
            raise BufferError(f"NumPy has no packed {dtype_name(self)}: one element a byte needs a copy, which "
                              f"copy=False forbids; call .view('uint8') for the bytes")
        result = allocate(source.row, source.dl.ndim, source.dl.shape, True, CPU)
        convert(source, result, NULL, &ON_HOST)
        return result
    return duplicate(source) if copy is True and source is self else source


cdef object values_of(Tensor self):
    """A NumPy array whose items are the elements' values: ml_dtypes reads the high bits of padded ones as well."""
    return as_numpy(on_host(duplicate(self) if is_padded(self) else self, None))


# ---- Other frameworks, and how tensors look

cdef object as_native_like(Tensor self, x):
    """An object of x's framework, on x's device."""
    framework = None if is_ours(x) else frameworks.of_type(type(x))
    if framework is None and not is_ours(x):
        raise TypeError(f"{type(x).__module__}.{type(x).__name__} belongs to no framework that dlfp4 knows: expected "
                        f"an object of {', '.join(frameworks.NAMES)}, or a Tensor")
    if framework is None:
        return beside_pair(self, elements_of(x).__dlpack_device__())
    if not type_has(Py_TYPE(x), "__dlpack_device__"):   # on the host, as ONNX Runtime's of old and NumPy's numbers
        return framework.from_tensor(self, None)
    refusals = (AttributeError, *framework.errors())   # traced, deleted, or on several devices
    try:
        pair = device_of_producer(x)
    except refusals as error:
        raise BufferError(f"this {type(x).__module__}.{type(x).__name__} cannot say where it lies: "
                          f"{frameworks.first_line(error)}") from error
    return framework.from_tensor(beside_pair(self, pair), None)


cdef Tensor beside_pair(Tensor self, tuple pair):
    """The tensor on a device; any memory that the host reads counts as the host."""
    code, index = pair
    if host_readable(code):
        return self if host_readable(self.dl.device.device_type) else move(self, HOST)
    target = parse_pair((kDLCUDA if is_cuda(code) else code, index))
    return self if lies_on(self, target) else move(self, target)


cdef object shown(x, Tensor elements):
    """x's repr; only memory of the host is read for it."""
    return show.show(x, host_readable(elements.dl.device.device_type) and not is_outline(elements))


cdef str summary_of(x):
    """What a tensor is, for a message: in a line, without its values."""
    return show.summary(x)


# ---- The entry

def empty(shape, dtype, *, device="cpu", packed=True):
    """An uninitialised Tensor of our own memory.

    Parameters
    ----------
    shape : int or tuple of int
        In logical elements.
    dtype : dtype-like
        The element type.
    device : str, tuple or Device
        ``"cpu"`` (aligned to 64 bytes) or ``"cuda:N"`` (stream-ordered on the legacy default stream).
    packed : bool
        For types below 8 bits: share bytes (True) or one element a byte (False).

    Returns
    -------
    Tensor
        In row-major order; its elements have no defined values.

    Raises
    ------
    ValueError, TypeError
        A negative extent, an unknown device or dtype.
    BufferError
        A device on which dlfp4 cannot allocate.
    MemoryError, DriverError
        The memory is not there.
    """
    cdef int64_t dims[MOST_DIMS]
    cdef int ndim = fill_extents(dims, parse_shape(shape))
    cdef Device where = parse_device(device)
    cdef DLDevice target
    target.device_type = where.code
    target.device_id = where.index
    return allocate(row_of_argument(dtype), ndim, dims, not parse_flag(packed, "packed"), target)


cdef int fill_extents(int64_t *dims, list extents) except -1:
    """Check the extents of an allocation; returns the number of dimensions."""
    cdef int overflow, k, ndim = len(extents)
    cdef bint fits = True
    if ndim > MOST_DIMS:
        refuse_extents(extents)
    for k in range(ndim):
        dims[k] = PyLong_AsLongLongAndOverflow(extents[k], &overflow)
        if overflow < 0 or (overflow == 0 and dims[k] < 0):
            refuse_extents(extents)
        fits &= overflow == 0
    if not fits or not 0 <= count_elements(ndim, dims) <= INT64_MAX // 16:
        raise MemoryError(f"shape {tuple(extents)} has more elements than memory can hold")
    return ndim


cdef int refuse_extents(list extents) except -1:
    raise ValueError(f"shape {tuple(extents)}: expected {MOST_DIMS} dimensions at most, of extent 0 or more")
