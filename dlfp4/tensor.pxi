# Tensor: a description of memory that something else owns, or that we do. Immutable; views share the memory.

cdef inline bint is_packed(Tensor self) noexcept nogil:
    """Whether several elements share a byte."""
    return storage_bits(self) < 8


cdef inline int64_t count_bytes(Tensor self) noexcept nogil:
    """ceil(size * bits / 8) over the whole tensor: DLPack's GetDataSize rounds per element, which is wrong for FP4."""
    return (self.size_ * storage_bits(self) + 7) // 8


cdef str dtype_name(Tensor self):
    return dlfp4_dtypes[self.row].name.decode()


cdef tuple dims_to_tuple(const int64_t *dims, int ndim):
    return tuple([dims[k] for k in range(ndim)])


cdef tuple shape_of(Tensor self):
    return dims_to_tuple(self.dl.shape, self.dl.ndim)


cdef tuple strides_of(Tensor self):
    return dims_to_tuple(self.dl.strides, self.dl.ndim)


cdef inline bint lies_on(Tensor self, Device device) noexcept:
    return self.dl.device.device_type == device.code and self.dl.device.device_id == device.index


cdef inline bint is_compact_tensor(Tensor self) noexcept nogil:
    return is_compact(self.dl.ndim, self.dl.shape, self.dl.strides)


# ---- Memory of our own

cdef enum:
    ALIGNMENT = 64   # JAX takes host memory without a copy only from here on


cdef Tensor allocate(int row, int ndim, const int64_t *shape, bint padded, DLDevice device, bint x2):
    """An uninitialised compact tensor; the spare bits of its last byte are zero."""
    cdef Tensor self = Tensor.__new__(Tensor)
    cdef int64_t bits
    self.x2_ = x2
    set_dtype(self, row, padded)
    self.dl.device = device
    reserve_dims(self, ndim)
    memcpy(self.dl.shape, shape, ndim * sizeof(int64_t))
    self.size_ = count_elements(ndim, shape)
    if self.size_ < 0 or mul_overflows(self.size_, storage_bits(self), &bits) \
            or not fill_compact_strides(ndim, self.dl.shape, self.dl.strides):
        raise MemoryError(f"shape {shape_of(self)} of {dtype_name(self)} has more elements than memory can hold")
    if device.device_type == kDLCPU:
        allocate_host(self)
    elif device.device_type == kDLCUDA:
        allocate_cuda(self)
    else:
        raise BufferError(f"dlfp4 cannot allocate memory on {device_from_dlpack(device)}; expected 'cpu' or 'cuda:N'")
    fill_pairs(self)
    return self


cdef int allocate_host(Tensor self) except -1:
    cdef int64_t bytes = count_bytes(self)
    cdef char *block = <char *> PyMem_RawMalloc(bytes + ALIGNMENT)
    if block == NULL:
        raise MemoryError(f"no memory for {bytes} bytes")
    self.owner = block
    self.owner_kind = OWNER_HOST
    self.dl.data = block + (ALIGNMENT - <uintptr_t> block % ALIGNMENT) % ALIGNMENT
    if is_packed(self) and bytes > 0:
        (<char *> self.dl.data)[bytes - 1] = 0
    return 0


cdef int allocate_cuda(Tensor self) except -1:
    cdef void *block = NULL
    self.stream = LEGACY_STREAM
    check_cuda(dlfp4_cuda_alloc(self.dl.device.device_id, self.stream, max(1, count_bytes(self)), &block),
               f"allocating {count_bytes(self)} bytes on {device_from_dlpack(self.dl.device)}")
    self.owner = self.dl.data = block
    self.owner_kind = OWNER_CUDA
    return 0


cdef Tensor allocate_like(Tensor source, DLDevice device):
    return allocate(source.row, source.dl.ndim, source.dl.shape, is_padded(source), device, source.x2_)


# ---- Copies

cdef dlfp4_view host_view(Tensor self) except *:
    """The kernels' description of a tensor; BufferError where its memory is not the host's."""
    cdef dlfp4_view view
    cdef int count
    if is_cuda(self.dl.device.device_type):   # without a driver this is no device memory at all
        check_cuda(dlfp4_cuda_device_count(&count), f"reading memory on {device_from_dlpack(self.dl.device)}")
    if not host_readable(self.dl.device.device_type):
        raise BufferError(f"the CPU cannot read memory on {device_from_dlpack(self.dl.device)}; "
                          f"call .to_device('cpu') first")
    view.data = self.dl.data
    view.shape = self.dl.shape
    view.strides = self.dl.strides
    view.ndim = self.dl.ndim
    view.code = self.dl.dtype.code
    view.bits = self.dl.dtype.bits
    view.padded = is_padded(self)
    return view


cdef Tensor duplicate(Tensor self):
    """A compact tensor of the same elements on the same device."""
    cdef Tensor result
    check_alive(self)
    if not host_readable(self.dl.device.device_type):
        return move(self, device_from_dlpack(self.dl.device))
    result = allocate_like(self, CPU)
    convert(self, result, NULL)
    return result


cdef Tensor move(Tensor self, Device device):
    """A compact copy on `device`; host and CUDA memory can be reached, the rest only through its own library."""
    cdef Tensor source = self, result
    cdef DLDevice target
    check_alive(self)
    target.device_type = device.code
    target.device_id = device.index
    if host_readable(self.dl.device.device_type) and device.code == kDLCPU:
        return duplicate(self)
    if not is_cuda(self.dl.device.device_type) and not host_readable(self.dl.device.device_type):
        raise BufferError(f"dlfp4 has no driver for {device_from_dlpack(self.dl.device)}; "
                          f"move the tensor with its own library first")
    if host_readable(self.dl.device.device_type):
        source = self if is_compact_tensor(self) else duplicate(self)
    elif not is_compact_tensor(self):
        return move_strided(self, device)
    result = allocate_like(source, target)
    copy_bytes(result, source, count_bytes(source))
    return result


cdef Tensor move_strided(Tensor self, Device device):
    """A strided CUDA tensor to the host: its whole extent as bytes, then its elements from there."""
    cdef int64_t low, high, bits = storage_bits(self), bytes
    cdef Tensor staging, source
    if device.code != kDLCPU:
        raise BufferError(f"a tensor of shape {shape_of(self)} and strides {strides_of(self)} on "
                          f"{device_from_dlpack(self.dl.device)} is not contiguous; make it so with its own library first")
    find_extent(self.dl.ndim, self.dl.shape, self.dl.strides, &low, &high)
    low = low * bits // 8
    bytes = (high * bits + bits + 7) // 8 - low
    staging = allocate(row_of_argument("uint8"), 1, &bytes, False, CPU, False)
    source = share(self)
    source.dl.data = <char *> self.dl.data + low
    copy_bytes(staging, source, bytes)
    source.dl.data = <char *> staging.dl.data - low
    source.dl.device = CPU
    return duplicate(source)


cdef int copy_bytes(Tensor result, Tensor source, int64_t bytes) except -1:
    """Through the driver, after the work on either side's stream."""
    cdef Tensor cuda = source if is_cuda(source.dl.device.device_type) else result
    cdef int device = cuda.dl.device.device_id, status
    cdef uintptr_t stream = cuda.stream
    if bytes == 0:
        return 0
    with nogil:
        status = dlfp4_cuda_copy(device, stream, result.dl.data, source.dl.data, bytes)
    return check_cuda(status, f"copying {bytes} bytes from {device_from_dlpack(source.dl.device)} "
                              f"to {device_from_dlpack(result.dl.device)}")


# ---- Views

cdef Tensor make_view(Tensor source, int ndim):
    """A Tensor over `source`'s memory whose `ndim` dimensions the caller fills, and then calls finish_view."""
    cdef Tensor self = Tensor.__new__(Tensor)
    self.x2_ = source.x2_
    reserve_dims(self, ndim)
    copy_description(self, source)
    self.flags &= ~DLPACK_FLAG_BITMASK_IS_COPIED   # "yours alone" is no longer true of memory with two views
    borrow_owner(self, source)
    return self


cdef Tensor finish_view(Tensor self):
    self.size_ = count_elements(self.dl.ndim, self.dl.shape)
    fill_pairs(self)
    return self


cdef int advance(Tensor self, int64_t elements) except -1:
    """Move the first element; packed elements must go on starting on a byte."""
    cdef int64_t bits = elements * storage_bits(self)
    if bits % 8:
        raise BufferError(
            f"this view of packed {dtype_name(self)} starts {bits % 8} bits into a byte (element {elements} from the "
            f"first), where DLPack has no address; slice a copy with one element a byte: dlfp4.unpack(t)[...]")
    if is_address(self.dl.device.device_type):
        self.dl.data = <char *> self.dl.data + bits // 8
    elif <int64_t> self.dl.byte_offset + bits // 8 < 0:
        raise BufferError(f"this view would start before the buffer on {device_from_dlpack(self.dl.device)}")
    else:
        self.dl.byte_offset += bits // 8
    return 0


cdef list expand_key(Tensor self, key):
    """An index as a list with one entry a dimension of `self`, and None where a dimension is added."""
    cdef list entries = list(key) if isinstance(key, tuple) else [key]
    cdef int used = 0, ellipses = 0, k
    for entry in entries:
        if entry is Ellipsis:
            ellipses += 1
        elif entry is not None:
            used += 1
    if ellipses > 1:
        raise IndexError("an index can have one ellipsis ('...') at most")
    if used > self.dl.ndim:
        raise IndexError(f"{used} indices for a tensor of {self.dl.ndim} dimensions, shape {shape_of(self)}")
    rest = [slice(None)] * (self.dl.ndim - used)
    if not ellipses:
        return entries + rest
    k = [entry is Ellipsis for entry in entries].index(True)
    return entries[:k] + rest + entries[k + 1:]


cdef Tensor slice_tensor(Tensor self, key):
    cdef list entries = expand_key(self, key)
    cdef int dim = 0, new = 0
    cdef int64_t offset = 0, index, extent
    cdef Tensor view = make_view(self, len([e for e in entries if e is None or isinstance(e, slice)]))
    for entry in entries:
        if entry is None:
            view.dl.shape[new] = view.dl.strides[new] = 1
            new += 1
            continue
        extent = self.dl.shape[dim]
        if isinstance(entry, slice):
            start, stop, step = entry.indices(extent)
            view.dl.shape[new] = len(range(start, stop, step))
            view.dl.strides[new] = self.dl.strides[dim] * step if view.dl.shape[new] > 1 else self.dl.strides[dim]
            offset += self.dl.strides[dim] * <int64_t> start if view.dl.shape[new] else 0
            new += 1
        else:
            index = as_index(entry, extent, dim)
            offset += self.dl.strides[dim] * index
        dim += 1
    finish_view(view)
    if view.size_ != 0:
        advance(view, offset)
    return view


cdef int64_t as_index(entry, int64_t extent, int dim) except -1:
    cdef int64_t index
    if isinstance(entry, bool) or not PyIndex_Check(entry):
        raise TypeError(f"index {entry!r} is a {type(entry).__name__}; a Tensor takes integers, slices, '...' and None "
                        f"(views without a copy); for more, index .to_numpy()")
    index = PyNumber_AsSsize_t(entry, IndexError)
    if not -extent <= index < extent:
        raise IndexError(f"index {index} is out of bounds for dimension {dim} of extent {extent}")
    return index + extent if index < 0 else index


cdef Tensor reshape_tensor(Tensor self, shape):
    cdef list wanted = parse_shape(shape)
    cdef Tensor view
    cdef int k
    resolve_unknown(self, wanted)
    view = make_view(self, len(wanted))
    for k in range(len(wanted)):
        view.dl.shape[k] = wanted[k]
    if self.size_ == 0:
        fill_compact_strides(view.dl.ndim, view.dl.shape, view.dl.strides)
    elif not fill_reshaped_strides(self.dl.ndim, self.dl.shape, self.dl.strides,
                                   view.dl.ndim, view.dl.shape, view.dl.strides):
        raise BufferError(f"reshaping {shape_of(self)} with strides {strides_of(self)} to {tuple(wanted)} needs a copy; "
                          f"call .copy().reshape(...)")
    return finish_view(view)


cdef list parse_shape(shape):
    """A shape argument as a list of Python integers, unchecked but for their type."""
    return [operator.index(extent) for extent in (shape if isinstance(shape, (tuple, list)) else (shape,))]


cdef int resolve_unknown(Tensor self, list wanted) except -1:
    """Replace the -1 of a shape, of which there may be one, by the extent that fits; ValueError where none does."""
    given = tuple(wanted)
    known = math.prod([extent for extent in wanted if extent != -1])
    if min(wanted, default=0) < -1 or wanted.count(-1) > 1:
        raise ValueError(f"shape {given} is none: extents are 0 or more, and one of them may be -1")
    if -1 in wanted and known > 0:
        wanted[wanted.index(-1)] = self.size_ // known
    if math.prod(wanted) != self.size_ or -1 in wanted:
        raise ValueError(f"cannot reshape {shape_of(self)} ({self.size_} elements) to {given}")
    return 0


cdef Tensor permute(Tensor self, bint last_two):
    """All dimensions reversed, or the last two exchanged."""
    cdef Tensor view = make_view(self, self.dl.ndim)
    cdef int ndim = self.dl.ndim, k, source
    for k in range(ndim):
        source = k
        if not last_two or k >= ndim - 2:
            source = ndim - 1 - k if not last_two else 2 * ndim - 3 - k
        view.dl.shape[k] = self.dl.shape[source]
        view.dl.strides[k] = self.dl.strides[source]
    return finish_view(view)


cdef Tensor reinterpret(Tensor self, int row):
    """The same bytes as elements of another type, along the dimension where neighbours lie in memory."""
    cdef Tensor view = make_view(self, self.dl.ndim)
    cdef int old_bits = storage_bits(self), new_bits, dim
    memcpy(view.dl.shape, self.dl.shape, 2 * self.dl.ndim * sizeof(int64_t))
    # Only a type of the same width keeps one element a byte; anything else reads the bytes as packed.
    set_dtype(view, row, is_padded(self) and dlfp4_dtypes[row].bits == self.dl.dtype.bits)
    new_bits = storage_bits(view)
    if new_bits != old_bits:
        dim = find_unit_dim(view.dl.ndim, view.dl.shape, view.dl.strides)
        if dim < 0 or not rescale_layout(view.dl.ndim, view.dl.shape, view.dl.strides, dim, old_bits, new_bits):
            raise ValueError(
                f"cannot view {dtype_name(self)} ({old_bits} bits) of shape {shape_of(self)} and strides "
                f"{strides_of(self)} as {dtype_name(view)} ({new_bits} bits): the bytes along the dimension of stride 1 "
                f"must divide evenly; call .copy() if there is none, or slice to a multiple")
    return finish_view(view)


# ---- NumPy

cdef object as_numpy(Tensor self):
    """A NumPy array over host memory, one item an element."""
    cdef cnp.npy_intp bytes_strides[64]
    cdef int64_t itemsize = storage_bits(self) // 8
    cdef int flags = 0 if self.flags & DLPACK_FLAG_BITMASK_READ_ONLY else cnp.NPY_ARRAY_WRITEABLE
    cdef int k
    if self.dl.ndim > 64:
        raise BufferError(f"NumPy takes 64 dimensions at most, this tensor has {self.dl.ndim}; reshape it first")
    for k in range(self.dl.ndim):
        bytes_strides[k] = self.dl.strides[k] * itemsize
    array = new_array(DTYPES[self.row], self.dl.ndim, self.dl.shape, bytes_strides, self.dl.data, flags)
    cnp.set_array_base(array, self)
    return array


cdef Tensor on_host(Tensor self, copy):
    """`self` where NumPy can read it: host memory, one element a byte or more."""
    cdef Tensor source = self, result
    check_alive(self)
    if not host_readable(self.dl.device.device_type):
        if copy is False:
            raise BufferError(f"NumPy cannot read memory on {device_from_dlpack(self.dl.device)}; "
                              f"allow the copy (copy=None), or call .to_device('cpu') first")
        source = move(self, Device("cpu"))
    if is_packed(source):
        if copy is False:
            raise BufferError(f"NumPy has no packed {dtype_name(self)}: one element a byte needs a copy, which copy=False "
                              f"forbids; call .view('uint8') for the bytes")
        result = allocate(source.row, source.dl.ndim, source.dl.shape, True, CPU, False)
        convert(source, result, NULL)
        return result
    return duplicate(source) if copy is True and source is self else source


cdef object values_of(Tensor self):
    """A NumPy array whose items are the elements' values: ml_dtypes reads the high bits of padded ones as well."""
    return as_numpy(on_host(duplicate(self) if is_padded(self) else self, None))


# ---- The class

@cython.final
@cython.freelist(32)
@cython.no_gc
cdef class Tensor:
    """Memory of any library, described as DLPack does: elements, shape, strides, device.

    A Tensor comes from :func:`from_dlpack`, :func:`asarray`, :func:`empty` or an operation, and goes out through
    ``__dlpack__``, the C exchange API and the ``to_*`` methods. It counts logical elements: a packed FP4 tensor of
    shape (2, 8) is 8 bytes. Its description never changes; slicing, ``T``, ``reshape`` and ``view`` share memory, and
    raise rather than copy.
    """

    def __cinit__(self):
        # A Tensor that nobody described is an empty one.
        self.dl.ndim = 1
        self.dl.device.device_type = kDLCPU
        self.dl.shape = self.inline_dims
        self.dl.strides = self.inline_dims + 1
        self.dl.dtype.code = dlfp4_dtypes[0].code
        self.dl.dtype.bits = dlfp4_dtypes[0].bits
        self.dl.dtype.lanes = 1

    def __init__(self):
        raise TypeError("a Tensor is made by dlfp4.from_dlpack, dlfp4.asarray or dlfp4.empty")

    def __dealloc__(self):
        if self.dl.shape != self.inline_dims:
            PyMem_RawFree(self.dl.shape)
        if self.owner_kind == OWNER_OBJECT or self.owner_kind == OWNER_LOAN:
            Py_DECREF(<object> self.owner)
        elif self.owner_kind == OWNER_VERSIONED:
            delete_versioned(<DLManagedTensorVersioned *> self.owner)
        elif self.owner_kind == OWNER_LEGACY:
            if (<DLManagedTensor *> self.owner).deleter != NULL:
                (<DLManagedTensor *> self.owner).deleter(<DLManagedTensor *> self.owner)
        elif self.owner_kind == OWNER_HOST:
            PyMem_RawFree(self.owner)
        elif self.owner_kind == OWNER_CUDA:
            # Nothing to report a failure to: the context may be gone at exit, and its memory with it.
            dlfp4_cuda_free(self.dl.device.device_id, self.stream, self.owner)

    @property
    def shape(self):
        """Extents, in logical elements."""
        return shape_of(self)

    @property
    def strides(self):
        """Steps between neighbours of each dimension, in elements."""
        return strides_of(self)

    @property
    def ndim(self):
        """Number of dimensions."""
        return self.dl.ndim

    @property
    def size(self):
        """Number of elements."""
        return self.size_

    @property
    def nbytes(self):
        """Bytes that the elements take when compact: ``ceil(size * bits / 8)``."""
        return count_bytes(self)

    @property
    def dtype(self):
        """The ``numpy.dtype``, of NumPy or of ml_dtypes."""
        return DTYPES[self.row]

    @property
    def device(self):
        """The :class:`Device` on which the memory lies."""
        return device_from_dlpack(self.dl.device)

    @property
    def packed(self):
        """True where several elements share a byte; False for padded sub-byte types and all wider ones."""
        return is_packed(self)

    @property
    def readonly(self):
        """True where the memory must not be written."""
        return self.flags & DLPACK_FLAG_BITMASK_READ_ONLY != 0

    @property
    def data_ptr(self):
        """Address of the first element; on devices with opaque handles, the handle."""
        return <uintptr_t> self.dl.data

    @property
    def T(self):
        """All dimensions in reverse order, without a copy."""
        return permute(self, False)

    @property
    def mT(self):
        """The last two dimensions exchanged, without a copy; ValueError below two dimensions."""
        if self.dl.ndim < 2:
            raise ValueError(f"mT needs two dimensions or more; this tensor has shape {shape_of(self)}")
        return permute(self, True)

    def __len__(self):
        if self.dl.ndim == 0:
            raise TypeError("len() of a 0-d Tensor")
        return self.dl.shape[0]

    def __getitem__(self, key):
        return slice_tensor(self, key)

    def __repr__(self):
        extra = ", packed=True" if is_packed(self) else ", packed=False" if is_padded(self) else ""
        if not is_compact_tensor(self):
            extra += f", strides={strides_of(self)}"
        if self.readonly:
            extra += ", readonly=True"
        return (f"Tensor(shape={shape_of(self)}, dtype={dtype_name(self)}, "
                f"device={str(device_from_dlpack(self.dl.device))!r}{extra})")

    def reshape(self, shape):
        """The same elements under another shape, without a copy.

        Parameters
        ----------
        shape : int or tuple of int
            One extent may be -1: it is computed.

        Raises
        ------
        BufferError
            The strides do not allow it; call ``.copy().reshape(shape)``.
        ValueError
            The number of elements differs.
        """
        return reshape_tensor(self, shape)

    def view(self, dtype):
        """The same bytes as elements of another type, without a copy.

        Along the dimension of stride 1 the extent changes with the width: uint8 ``(..., n)`` becomes FP4
        ``(..., 2n)`` or FP6 ``(..., 8n/6)``, and back. Raw bytes enter this way: ``asarray(x).view(dtype)``.

        Parameters
        ----------
        dtype : dtype-like
            Any type with the element type's name: ``numpy.dtype``, ml_dtypes, JAX, PyTorch, or a string.

        Raises
        ------
        ValueError
            The bytes do not divide into elements of `dtype`.
        TypeError
            `dtype` is not an element type that dlfp4 carries.
        """
        return reinterpret(self, row_of_argument(dtype))

    def x2(self, enable=True, /):
        """The same tensor, handed out in pairs of 4-bit elements (PyTorch's ``float4_e2m1fn_x2``), or singly.

        The Tensor itself counts single elements either way; only ``__dlpack__`` and the C exchange API differ.

        Raises
        ------
        ValueError
            The elements are not packed 4-bit ones, or do not divide into pairs.
        """
        cdef Tensor result = make_view(self, 0)
        result.x2_ = bool(enable)
        reserve_dims(result, self.dl.ndim)
        memcpy(result.dl.shape, self.dl.shape, 2 * self.dl.ndim * sizeof(int64_t))
        finish_view(result)
        if result.x2_ and result.pairs == NULL:
            raise ValueError(pairs_problem(self))
        return result

    def copy(self):
        """A compact copy on the same device, aligned to 64 bytes on the host, and writable."""
        return duplicate(self)

    def to_device(self, device, /, *, stream=None):
        """The tensor on `device`: itself if it lies there, else a copy, complete on return.

        Parameters
        ----------
        device : str, tuple or Device
            Such as ``"cpu"`` or ``"cuda:0"``.
        stream : None
            For the array API; the copy follows the stream on which the data was made.

        Raises
        ------
        BufferError
            dlfp4 cannot reach one of the two devices.
        DriverError
            The CUDA driver failed.
        """
        target = parse_device(device)
        if stream is not None:
            raise ValueError(f"stream={stream!r}: to_device waits for the copy, so it takes no stream; pass None")
        return self if lies_on(self, target) else move(self, target)

    def to_numpy(self, copy=None):
        """A NumPy array of the element type of NumPy or ml_dtypes.

        Host memory is shared, except packed elements: those become a fresh array with one element a byte, high bits
        zero. Device memory is copied.

        Parameters
        ----------
        copy : bool, optional
            True always copies, False never does, None where it must.

        Raises
        ------
        BufferError
            ``copy=False``, and a copy is needed.
        """
        check_copy(copy)
        return as_numpy(on_host(self, copy))

    def __array__(self, dtype=None, copy=None):
        array = self.to_numpy(copy)
        if dtype is None or array.dtype == dtype:
            return array
        if copy is False:
            raise ValueError(f"{array.dtype} to {np.dtype(dtype)} needs a copy, which copy=False forbids")
        return array.astype(dtype)

    def to_torch(self, copy=None):
        """A ``torch.Tensor``; see :func:`dlfp4.frameworks.torch.from_tensor`."""
        check_copy(copy)
        return frameworks.load("torch").from_tensor(self, copy)

    def to_jax(self, copy=None):
        """A ``jax.Array``; see :func:`dlfp4.frameworks.jax.from_tensor`."""
        check_copy(copy)
        return frameworks.load("jax").from_tensor(self, copy)

    def to_cupy(self, copy=None):
        """A ``cupy.ndarray``; see :func:`dlfp4.frameworks.cupy.from_tensor`."""
        check_copy(copy)
        return frameworks.load("cupy").from_tensor(self, copy)

    def tolist(self):
        """The elements as nested lists of Python scalars."""
        return values_of(self).tolist()

    def item(self):
        """The one element as a Python scalar; ValueError where there are more, or none."""
        if self.size_ != 1:
            raise ValueError(f"item() needs one element; shape {shape_of(self)} has {self.size_}")
        return values_of(self).item()

    def __float__(self):
        return float(self.item())

    # ---- Exporter: see exporter.pxi

    __dlpack_c_exchange_api__ = make_exchange_capsule()

    def __dlpack_device__(self):
        """DLPack's (device type, device id)."""
        return self.dl.device.device_type, self.dl.device.device_id

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        """A DLPack capsule of this tensor.

        Parameters
        ----------
        stream : int, optional
            The consumer's stream. CUDA: None or 1 the legacy default, 2 the per-thread default, a handle, or -1 for
            no synchronisation. Host memory: None.
        max_version : tuple of int, optional
            The newest version the consumer understands. Default, or below (1, 0): a legacy capsule.
        dl_device : tuple of int, optional
            Where the consumer wants the data: the tensor's own device, or (1, 0) for the host.
        copy : bool, optional
            True copies and flags the copy, False never copies, None where `dl_device` needs it.

        Raises
        ------
        BufferError
            The data cannot go out as asked; the message says what to do.
        ValueError
            An argument has a value that means nothing.
        """
        if stream is None and dl_device is None and copy is None and not is_cuda(self.dl.device.device_type):
            return export_capsule(self, max_version, 0)
        return export_as_asked(self, stream, max_version, dl_device, copy)


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

    Raises
    ------
    ValueError, TypeError
        A negative extent, an unknown device or dtype.
    BufferError
        A device on which dlfp4 cannot allocate.
    MemoryError, DriverError
        The memory is not there.
    """
    cdef int64_t dims[64]
    cdef DLDevice target
    cdef list extents = parse_shape(shape)
    cdef int k
    if len(extents) > 64 or min(extents, default=0) < 0:
        raise ValueError(f"shape {tuple(extents)}: expected 64 dimensions at most, of extent 0 or more")
    if math.prod(extents) > INT64_MAX // 16:
        raise MemoryError(f"shape {tuple(extents)} has more elements than memory can hold")
    for k in range(len(extents)):
        dims[k] = extents[k]
    where = parse_device(device)
    target.device_type = where.code
    target.device_id = where.index
    return allocate(row_of_argument(dtype), len(extents), dims, not packed, target, False)
