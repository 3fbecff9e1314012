# Importer: a producer's DLTensor becomes a Tensor, or an exception. There are four ways in, fastest first: our own
# Tensor, a NumPy array through NumPy's C API, a type with a C exchange table, and a capsule, raw or from `__dlpack__`.

cdef const char *LEGACY = "dltensor"
cdef const char *VERSIONED = "dltensor_versioned"
cdef const char *USED_LEGACY = "used_dltensor"
cdef const char *USED_VERSIONED = "used_dltensor_versioned"


# ---- Our own tensors and NumPy's arrays

cdef Tensor share(Tensor source):
    """A Tensor of its own over the same memory, with the same description."""
    cdef Tensor self = make_view(source, source.dl.ndim)
    memcpy(self.dl.shape, source.dl.shape, 2 * source.dl.ndim * sizeof(int64_t))
    fill_pairs(self)
    return self


cdef inline void copy_description(Tensor self, Tensor source) noexcept:
    """Everything but the dimensions and the owner."""
    self.dl.data = source.dl.data
    self.dl.byte_offset = source.dl.byte_offset
    self.dl.device = source.dl.device
    self.dl.dtype = source.dl.dtype
    self.size_ = source.size_
    self.stream = source.stream
    self.origin = source.origin
    self.row = source.row
    self.flags = source.flags
    self.is_part = source.is_part
    self.unscaled = source.unscaled
    self.immutable = source.immutable


cdef inline void share_owner(Tensor self, Tensor source) noexcept:
    """Keep alive what owns `source`'s memory: its owner object, or `source` itself."""
    if source.owner_kind == OWNER_OBJECT or source.owner_kind == OWNER_LOAN:
        self.owner = source.owner
        self.owner_kind = source.owner_kind
    else:
        self.owner = <void *> source
        self.owner_kind = OWNER_OBJECT
    Py_INCREF(<object> self.owner)


cdef inline bint share_exported(Tensor self, Tensor source) noexcept:
    """Share the owner of the Tensor `source` that comes back through another form (a capsule, an array), and restore
    the facts that this form cannot carry. False for a loan: the other form secures that itself."""
    if source.owner_kind == OWNER_LOAN:
        return False
    self.is_part = source.is_part
    self.immutable = source.immutable
    if source.immutable:   # its NumPy array is read-only; the Tensor keeps the flag that it had
        self.flags = (self.flags & ~DLPACK_FLAG_BITMASK_READ_ONLY) | (source.flags & DLPACK_FLAG_BITMASK_READ_ONLY)
    share_owner(self, source)
    return True


cdef Tensor import_array(cnp.ndarray array):
    """A NumPy array, ml_dtypes' types included: its memory, one element an item (FP4 and FP6 are padded)."""
    cdef Tensor self = Tensor.__new__(Tensor)
    cdef int row = row_of_array(array)
    cdef int ndim = cnp.PyArray_NDIM(array), k
    cdef int64_t itemsize = max(1, item_bits(row) // 8)
    cdef const cnp.npy_intp *shape = cnp.PyArray_DIMS(array)
    cdef const cnp.npy_intp *strides = cnp.PyArray_STRIDES(array)
    set_dtype(self, row, True)
    if not cnp.PyArray_ISWRITEABLE(array):
        self.flags |= DLPACK_FLAG_BITMASK_READ_ONLY
    self.dl.device.device_type = kDLCPU
    self.dl.data = cnp.PyArray_DATA(array)
    reserve_dims(self, ndim)
    for k in range(ndim):
        self.dl.shape[k] = shape[k]
        # The item size is a power of two: a mask and a shift instead of two divisions.
        if strides[k] & (itemsize - 1) and shape[k] > 1 and cnp.PyArray_SIZE(array):
            raise BufferError(f"NumPy's strides {(<object> array).strides} are not multiples of the item size "
                              f"{itemsize}; DLPack counts strides in items: call numpy.ascontiguousarray first")
        self.dl.strides[k] = strides[k] >> ctz(itemsize)
    self.size_ = count_elements(ndim, self.dl.shape)
    settle_strides(ndim, self.dl.shape, self.dl.strides, self.size_)
    if count_bits(self.size_, storage_bits(self)) < 0:   # by strides of 0
        raise BufferError(f"shape {shape_of(self)} of {dtype_name(self)} has more elements than memory can hold")
    share_array(self, array)
    return self


cdef inline int share_array(Tensor self, cnp.ndarray array) except -1:
    """Keep an array's memory alive: through the Tensor that the array came from, or else the array. See
    share_own_export for the reason."""
    cdef object base = array_base(array)
    if base is not None and type(base) is cnp.ndarray:   # a view of the array that was handed out
        base = array_base(<cnp.ndarray> base)
    if base is not None and type(base) is Tensor and share_exported(self, <Tensor> base):
        return 0
    self.owner = <void *> array
    self.owner_kind = OWNER_OBJECT
    Py_INCREF(array)
    return 0


# ---- Managed tensors and capsules

cdef inline void delete_versioned(DLManagedTensorVersioned *managed) noexcept:
    if managed.deleter == release_versioned:   # our own: this thread holds the GIL already
        release_export(managed.manager_ctx, managed)
    elif managed.deleter != NULL:
        managed.deleter(managed)


cdef inline void delete_legacy(DLManagedTensor *managed) noexcept:
    if managed.deleter == release_legacy:
        release_export(managed.manager_ctx, managed)
    elif managed.deleter != NULL:
        managed.deleter(managed)


cdef inline int check_version(DLManagedTensorVersioned *managed) except -1:
    """Refuse another major version, whose struct is unknown: its deleter is called, and nothing else is read."""
    if managed.version.major != DLPACK_MAJOR_VERSION:
        major, minor = managed.version.major, managed.version.minor
        delete_versioned(managed)
        raise BufferError(f"the producer made a DLPack {major}.{minor} tensor; dlfp4 understands version "
                          f"{DLPACK_MAJOR_VERSION}.x: ask it for max_version=(1, 3)")
    return 0


cdef Tensor adopt(DLManagedTensorVersioned *managed):
    """A Tensor that owns `managed` from the start, so that a refusal releases it."""
    cdef Tensor self
    check_version(managed)
    try:
        self = Tensor.__new__(Tensor)
    except MemoryError:
        delete_versioned(managed)
        raise
    self.owner = managed
    self.owner_kind = OWNER_VERSIONED
    self.stream = LEGACY_STREAM
    describe(self, &managed.dl_tensor, managed.flags)
    share_own_export(self)
    return self


cdef inline void share_own_export(Tensor self) noexcept:
    """Where the managed tensor is our own export, share its Tensor's owner instead: a tensor that is exchanged over and
    over would otherwise be released link by link, in a recursion as deep as the chain."""
    cdef void *managed = self.owner
    if self.owner_kind == OWNER_VERSIONED and (<DLManagedTensorVersioned *> managed).deleter == release_versioned:
        if share_exported(self, <Tensor> (<DLManagedTensorVersioned *> managed).manager_ctx):
            free_export((<DLManagedTensorVersioned *> managed).manager_ctx, managed)
    elif self.owner_kind == OWNER_LEGACY and (<DLManagedTensor *> managed).deleter == release_legacy:
        if share_exported(self, <Tensor> (<DLManagedTensor *> managed).manager_ctx):
            free_export((<DLManagedTensor *> managed).manager_ctx, managed)


cdef Tensor import_capsule(object capsule, Device device, copy, int row):
    """Consume a capsule, unless `copy` forbids what is asked for. It is renamed once the tensor is ours, inside the
    lock, so that one consumer alone wins."""
    cdef DLManagedTensorVersioned *versioned
    cdef DLManagedTensor *legacy
    cdef Tensor self = Tensor.__new__(Tensor)
    self.stream = LEGACY_STREAM
    with cython.critical_section(capsule):
        if PyCapsule_IsValid(capsule, VERSIONED):
            versioned = <DLManagedTensorVersioned *> PyCapsule_GetPointer(capsule, VERSIONED)
            if versioned.version.major != DLPACK_MAJOR_VERSION:
                PyCapsule_SetName(capsule, USED_VERSIONED)
            check_version(versioned)
            describe(self, &versioned.dl_tensor, versioned.flags)
            check_unmoved(self, capsule, device, copy, row)
            PyCapsule_SetName(capsule, USED_VERSIONED)
            self.owner = versioned
            self.owner_kind = OWNER_VERSIONED
        elif PyCapsule_IsValid(capsule, LEGACY):
            legacy = <DLManagedTensor *> PyCapsule_GetPointer(capsule, LEGACY)
            describe(self, &legacy.dl_tensor, 0)
            check_unmoved(self, capsule, device, copy, row)
            PyCapsule_SetName(capsule, USED_LEGACY)
            self.owner = legacy
            self.owner_kind = OWNER_LEGACY
        else:
            refuse_capsule(capsule)
    share_own_export(self)
    return self


cdef int check_unmoved(Tensor self, object x, Device device, copy, int row) except -1:
    """BufferError where copy=False forbids what x as it is asked for would be: a copy, elsewhere, of another type."""
    if copy is not False:
        return 0
    if self.flags & DLPACK_FLAG_BITMASK_IS_COPIED and type(x) is not Tensor:
        raise BufferError(f"{type(x).__name__} can only hand out a copy, which copy=False forbids")
    if device is not None and not lies_on(self, device):
        raise BufferError(f"the data lies on {device_of(self)}; moving it to {device} needs a copy, which copy=False "
                          f"forbids")
    if row != NO_ROW and row != self.row:
        raise BufferError(f"{dtype_name(self)} to {dlfp4_dtypes[row].name.decode()} needs a copy, which copy=False "
                          f"forbids")
    return 0


cdef int refuse_capsule(object capsule) except -1:
    cdef const char *name = PyCapsule_GetName(capsule)
    shown = "no name" if name == NULL else f"the name {name.decode(errors='replace')!r}"
    used = name != NULL and strncmp(name, "used_", 5) == 0
    raise BufferError(f"the capsule has {shown}; expected 'dltensor_versioned' or 'dltensor'"
                      + ("; it was consumed before: ask the producer for a new one" if used else ""))


cdef tuple device_of_producer(object x):
    """x.__dlpack_device__() as (type, id), which chooses the stream; the capsule's device is the one that counts."""
    pair = x.__dlpack_device__()
    numbers = read_pair(pair)
    if numbers is None:
        raise TypeError(f"{type(x).__name__}.__dlpack_device__() returned {pair!r}; expected (device_type, device_id)")
    return numbers


cdef object request_capsule(object x, dict wanted):
    """x.__dlpack__() with the newest arguments that the producer understands; ours come first."""
    method = x.__dlpack__
    try:
        return method(max_version=(DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION), **wanted)
    except TypeError as error:
        if type(error) is not TypeError:   # a subclass is about the data, not about the arguments
            raise
        if wanted.pop("copy", None) is not None:   # a producer that does not know it makes no copy unasked
            return request_capsule(x, wanted)
        # Array API 2022 and older: no keyword but stream.
        return method(stream=wanted["stream"]) if "stream" in wanted else method()


cdef Tensor import_from_protocol(object x, Device device, copy):
    """The Python protocol: a capsule asked of `x`, already on `device` where the producer can do that."""
    cdef dict wanted = {}
    cdef Producer *producer
    cdef int origin = NO_ORIGIN
    cdef Tensor self
    if not type_has(Py_TYPE(x), "__dlpack__"):
        refuse_scaled(x)
        raise TypeError(f"{type(x).__name__} is not a DLPack producer: expected an object with __dlpack__ and "
                        f"__dlpack_device__, or a capsule; for buffers and NumPy arrays call dlfp4.asarray")
    framework = frameworks.of_type(type(x))
    if framework is not None and framework.cannot_export is not None:
        refuse_export(x, framework.cannot_export(x))
    source = device_of_producer(x) if type_has(Py_TYPE(x), "__dlpack_device__") else (kDLCPU, 0)
    if source[0] in (kDLCUDA, kDLCUDAManaged):
        wanted["stream"] = stream_to_ask_for(framework, source, &origin)
    elif source[0] == kDLROCM:
        wanted["stream"] = 0
    if copy is False:
        wanted["copy"] = False
    if device is not None and (device.code, device.index) != source:
        # dl_device and a stream of the source exclude one another: the producer synchronises.
        try:
            capsule = x.__dlpack__(max_version=(DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION),
                                   dl_device=(device.code, device.index), copy=copy)
        except (TypeError, BufferError, ValueError):
            capsule = request_capsule(x, wanted)   # where it lies; from_dlpack moves it if it can
    else:
        capsule = request_capsule(x, wanted)
    if not PyCapsule_CheckExact(capsule):
        raise TypeError(f"{type(x).__name__}.__dlpack__() returned an object of type {type(capsule).__name__}; "
                        "expected a capsule")
    producer = find_inherited(type(x))
    self = import_capsule(capsule, None, None, NO_ROW)
    if is_cuda(self.dl.device.device_type):
        self.stream = wanted.get("stream", LEGACY_STREAM)
        self.origin = origin
    if producer != NULL:
        check_guards(producer, x, self.row)
    self.immutable = framework is not None and framework.immutable
    return self


cdef object stream_to_ask_for(framework, tuple source, int *origin):
    """The framework's current stream, which needs no ordering (a capture forbids it); else the legacy default."""
    cdef DLDevice device
    device.device_type = kDLCUDA
    device.device_id = source[1]
    origin[0] = origin_of_framework(framework)
    return LEGACY_STREAM if origin[0] == NO_ORIGIN else current_stream_of(origin[0], device)


# ---- The entry

cdef Tensor retain(object x, Device device, copy, int row):
    """Any producer's memory as a Tensor that keeps it alive; where `copy` is False, on that device and of that type."""
    cdef Tensor self = share(<Tensor> x) if type(x) is Tensor else retain_foreign(x, device, copy, row)
    check_unmoved(self, x, device, copy, row)
    return self


cdef Tensor retain_foreign(object x, Device device, copy, int row):
    """Any foreign producer's memory, by the fastest way that its type offers."""
    cdef Producer *producer
    cdef PyTypeObject *type = Py_TYPE(x)
    if type == <PyTypeObject *> cnp.ndarray:
        return import_array(<cnp.ndarray> x)
    if PyCapsule_CheckExact(x):
        return import_capsule(x, device, copy, row)
    producer = find_producer(type)
    if producer != NULL:
        return import_through_table(producer, x)
    if cnp.PyArray_Check(x) and isinstance(x, np.ma.MaskedArray):
        raise BufferError("a MaskedArray's mask cannot be carried; hand over x.filled(value), or x.data to go without")
    return import_from_protocol(x, device, copy)


cdef Tensor borrow(object x):
    """Any producer's memory as a Tensor, for an operation."""
    cdef Producer *producer
    if type(x) is Tensor:
        secure(<Tensor> x)
        return <Tensor> x
    if type(x) is cnp.ndarray:
        return import_array(<cnp.ndarray> x)
    producer = find_producer(Py_TYPE(x))
    if producer != NULL:
        return import_through_table(producer, x)
    return import_array(as_floats(x)) if isinstance(x, (list, tuple)) else as_producer(x, None, NO_ROW)


cdef int refuse_scaled(object x) except -1:
    if isinstance(x, ScaledTensor):
        raise TypeError("a ScaledTensor is several tensors: take its .data or .scales, or .dequantize() it")
    return 0


cdef Tensor as_producer(object x, copy, int row):
    """Import what is no producer itself: subclasses of NumPy's arrays, lists of numbers, buffers."""
    refuse_scaled(x)
    if type_has(Py_TYPE(x), "__dlfp4_scaled__"):
        raise TypeError(f"a {type(x).__name__} is several tensors: take one of its parts, or .dequantize() it; "
                        f"dlfp4.asarray takes it whole")
    if isinstance(x, np.ndarray) and type(x) is not cnp.ndarray and not isinstance(x, np.ma.MaskedArray):
        x = x.view(np.ndarray)   # subclasses only add a face
    elif isinstance(x, (list, tuple)):
        x = as_numbers(x)
        if copy is False:
            raise BufferError("a list of numbers has no memory to share, and copy=False forbids a copy")
    elif not type_has(Py_TYPE(x), "__dlpack__") and not PyCapsule_CheckExact(x):
        try:
            x = np.asarray(memoryview(x))
        except (TypeError, ValueError):   # ValueError: items that NumPy has no type for
            raise TypeError(f"{type(x).__name__} has no memory to share: expected a DLPack producer or capsule, a "
                            f"NumPy array, a buffer or a list of numbers; for one number call numpy.asarray first, of "
                            f"a variable pass its value") from None
    return retain(x, None, copy, row)


cdef inline bint is_quantized(object x):
    """Whether it is a quantized tensor of another library, or the form of ours in another library."""
    return type_has(Py_TYPE(x), "__dlfp4_scaled__") or package_of(x) in frameworks.QUANTIZED


cdef str package_of(object x):
    """The package that an object's type comes from."""
    return str(type(x).__module__).partition(".")[0]


cdef ScaledTensor as_scaled(object x, copy=None):
    """The ScaledTensor over the memory of a quantized tensor that has another form; who makes it knows what it copies,
    and refuses that where `copy` is False."""
    if type_has(Py_TYPE(x), "__dlfp4_scaled__"):
        return x.__dlfp4_scaled__(copy)
    package = package_of(x)
    return getattr(frameworks.load(package), f"from_{package}")(x, copy)


cdef object as_quantized(x, dtype, copy):
    """Quantized tensors of other libraries are ScaledTensors to us."""
    if dtype is not None:
        raise TypeError(f"dtype={dtype!r}: {type(x).__name__} is a quantized tensor, which asarray takes as it is; "
                        f"call .dequantize(dtype) of the result")
    found = as_scaled(x, copy)
    return change_parts(found, Tensor.copy) if copy is True else found


cdef object as_floats(x):
    """Nested lists as an array for an operation: integers and truth values count as float64."""
    numbers = as_numbers(x)
    return numbers.astype(np.float64) if numbers.dtype.kind in "biu" else numbers


cdef object as_numbers(x):
    """Nested lists of Python numbers as a NumPy array."""
    try:
        numbers = np.asarray(x)
    except (TypeError, ValueError) as error:   # rows of different length, or what is no number
        raise TypeError(f"this {type(x).__name__} is not an array: expected numbers in rows of equal length "
                        f"({str(error).partition('. ')[0]})") from None
    if is_strange(numbers.dtype):
        strange = next(each for each in np.asarray(x, object).reshape(-1) if is_strange(np.asarray(each).dtype))
        raise TypeError(f"this {type(x).__name__} has an element of type {type(strange).__name__}; expected numbers, "
                        f"integers of at most 64 bits")
    return numbers


cdef bint is_strange(dtype):
    """Whether it is not NumPy's type of numbers."""
    return dtype.hasobject or dtype.kind in "SUV"


def _borrow_out(out):
    """The memory for a result; a list has none."""
    if isinstance(out, (list, tuple)):
        raise TypeError(f"out is of type {type(out).__name__}; expected a producer of writable memory")
    return borrow(out)


def from_dlpack(x, /, *, device=None, copy=None):
    """A tensor of any library as a :class:`Tensor`, sharing its memory.

    Parameters
    ----------
    x : producer or capsule
        An object with ``__dlpack__`` and ``__dlpack_device__``, of any element type and on any device, or a raw
        DLPack capsule (legacy or versioned), which is consumed; where ``copy=False`` forbids it, it stays as it was.
    device : str, tuple or Device, optional
        The device of the result, for example ``"cpu"``. Default: where `x` lies.
    copy : bool, optional
        True always copies, False never does, None copies only to reach `device`.

    Returns
    -------
    Tensor
        It counts logical elements. PyTorch counts FP4 in pairs: the last dimension of stride 1 doubles on the way in,
        and halves again on the way back to PyTorch. Read-only memory stays read-only.

    Raises
    ------
    BufferError
        The data cannot be exchanged: a type or device that DLPack 1.3 does not have, a description that is not
        valid, bits that a capsule cannot carry (PyTorch's conj, neg, requires_grad), or a copy that ``copy=False``
        forbids.
    TypeError
        `x` is not a producer.
    ValueError
        `device` is not known.
    DriverError
        The CUDA driver failed while data was moved.
    Exception
        What the producer's own ``__dlpack__`` raises comes through as it is.

    Notes
    -----
    Memory is not read. The Tensor keeps `x` alive; stored as an attribute of `x`, it would keep both alive forever.

    Protocol: https://dmlc.github.io/dlpack/latest/python_spec.html

    Examples
    --------
    >>> import numpy as np, dlfp4
    >>> dlfp4.from_dlpack(np.arange(6, dtype="float32").reshape(2, 3))
    Tensor([[0., 1., 2.],
            [3., 4., 5.]],
           shape=(2, 3), dtype=float32, device='cpu')
    """
    cdef Device target
    cdef Tensor self
    if device is None and copy is None:
        return retain(x, None, None, NO_ROW)
    check_copy(copy)
    target = None if device is None else parse_device(device)
    self = retain(x, target, copy, NO_ROW)
    if target is not None and not lies_on(self, target):
        return move(self, target)
    return duplicate(self) if copy is True else self


def asarray(x, /, *, dtype=None, copy=None):
    """Anything with elements as a :class:`Tensor`, sharing its memory where it can.

    Parameters
    ----------
    x : producer, capsule, numpy.ndarray, buffer or nested lists
        What :func:`from_dlpack` takes; NumPy arrays with the types of ml_dtypes (FP4, FP6 and 4-bit integers are padded
        there, one element a byte); subclasses such as ``numpy.memmap``; any object with the buffer protocol, such as
        ``bytes`` or ``mmap``; nested lists of numbers, which become float64, int64 or bool as NumPy has it (cast
        and quantize take lists, too; there integers and truth values count as float64); quantized tensors of PyTorch
        (:class:`dlfp4.torch.ScaledTensor`), JAX (:class:`dlfp4.jax.ScaledArray`), torchao (NVFP4Tensor, MXTensor) and
        TransformerEngine (NVFP4Tensor, MXFP8Tensor, Float8Tensor, by the attributes that it documents; it was never run
        with dlfp4).
    dtype : dtype-like, optional
        Convert to this element type (nearest even, saturating, packed), if it is not the one that `x` has.
    copy : bool, optional
        True always copies, False never does, None only for `dtype`.

    Returns
    -------
    Tensor
        A ScaledTensor of a quantized tensor.

    Raises
    ------
    BufferError
        The data cannot be exchanged, or needs a copy that ``copy=False`` forbids.
    TypeError
        `x` has no elements to share.
    """
    cdef Tensor self
    cdef int row = NO_ROW if dtype is None else row_of_argument(dtype)
    check_copy(copy)
    if type(x) is Tensor:
        self = <Tensor> x
        check_unmoved(self, x, None, copy, row)
    elif isinstance(x, (list, tuple)) and row != NO_ROW and is_float(row) and copy is not False:
        self = import_array(as_floats(x))
    elif type(x) is cnp.ndarray or find_producer(Py_TYPE(x)) != NULL:
        self = retain(x, None, copy, row)
    elif is_quantized(x):
        return as_quantized(x, dtype, copy)
    else:
        self = as_producer(x, copy, row)
    if row == NO_ROW or row == self.row:
        return duplicate(self) if copy is True else self
    return cast(self, dtype)
