# Exporter: a Tensor becomes a capsule or a managed tensor. What a form cannot carry is refused, never dropped.

cdef extern from *:
    """
    #include <Python.h>

    #if PY_VERSION_HEX < 0x030D0000
    #define Py_IsFinalizing _Py_IsFinalizing
    #endif

    /* Whether Python objects are out of reach: the interpreter is gone, or goes while this thread is not its own. */
    static inline int python_is_gone(void) {
        return !Py_IsInitialized() || (Py_IsFinalizing() && !PyGILState_Check());
    }
    """
    bint python_is_gone() noexcept nogil
    bint Py_IsFinalizing() noexcept nogil


# ---- Managed tensors: one block with the dimensions behind the struct, alive as long as its consumer wants

cdef inline bint holds_pairs(Tensor self) noexcept nogil:
    """Whether two elements share a byte."""
    return self.dl.dtype.bits == 4 and not is_padded(self)


cdef Tensor with_dialect(Tensor self, bint x2):
    """The same tensor, handed out in pairs or singly."""
    cdef Tensor view = Tensor.__new__(Tensor)
    view.x2_ = x2
    reserve_dims(view, self.dl.ndim)
    copy_description(view, self)
    share_owner(view, self)
    memcpy(view.dl.shape, self.dl.shape, 2 * self.dl.ndim * sizeof(int64_t))
    return finish_view(view)


cdef tuple why_no_pairs(Tensor self):
    """Why a tensor of packed 4-bit elements cannot be counted in pairs, and what helps."""
    cdef int dim = find_unit_dim(self.dl.ndim, self.dl.shape, self.dl.strides, 8, 4)   # as if it divided
    if dim < 0:
        return f"no dimension of strides {strides_of(self)} has stride 1", "call .copy() first"
    if self.dl.shape[dim] % 2:
        return (f"its elements lie side by side along dimension {dim}, of extent {self.dl.shape[dim]}, which is odd",
                "pad that to an even extent, or reshape it")
    return f"rows of strides {strides_of(self)} start within a byte, or pairs would be read along another", \
        "call .copy() first"


cdef inline int lend(Tensor self, DLTensor *out) except -1:
    """The exported description, in pairs where the tensor's dialect says so. `self` keeps its dimensions."""
    secure(self)
    if is_outline(self):
        refuse_outline(self)
    out[0] = self.dl
    if self.x2_ and holds_pairs(self):
        if self.pairs == NULL:
            reason, remedy = why_no_pairs(self)
            raise BufferError(f"{dtype_name(self)} of shape {shape_of(self)} cannot be counted in pairs (x2): "
                              f"{reason}; {remedy}, or hand out .x2(False)")
        out.dtype.lanes = 2
        out.shape = self.pairs
        out.strides = self.pairs + self.dl.ndim
    return 0


cdef inline void move_dims(DLTensor *self, int64_t *dims) noexcept:
    """Copy the dimensions to `dims`. Trailing extents of 1 get stride 1, except in pairs, where it has a meaning."""
    cdef int k = self.ndim - 1
    memcpy(dims, self.shape, 2 * self.ndim * sizeof(int64_t))   # the strides lie behind
    self.shape = dims
    self.strides = dims + self.ndim
    while k >= 0 and self.shape[k] == 1 and self.dtype.lanes == 1:
        self.strides[k] = 1
        k -= 1


cdef DLManagedTensorVersioned *export_versioned(Tensor self, uint64_t flags) except NULL:
    cdef DLTensor lent
    cdef DLManagedTensorVersioned *managed
    lend(self, &lent)   # refuses before there is a block to free
    managed = <DLManagedTensorVersioned *> PyMem_RawMalloc(
        sizeof(DLManagedTensorVersioned) + 2 * lent.ndim * sizeof(int64_t))
    if managed == NULL:
        raise MemoryError("no memory for a managed tensor")
    managed.dl_tensor = lent
    move_dims(&managed.dl_tensor, <int64_t *> (managed + 1))
    managed.version.major = DLPACK_MAJOR_VERSION
    managed.version.minor = DLPACK_MINOR_VERSION
    # IS_COPIED promises the consumer sole access, which ends when we share a copy.
    managed.flags = (self.flags & ~DLPACK_FLAG_BITMASK_IS_COPIED) | flags
    managed.manager_ctx = <void *> self
    managed.deleter = release_versioned
    Py_INCREF(self)
    return managed


cdef DLManagedTensor *export_legacy(Tensor self) except NULL:
    cdef DLTensor lent
    cdef DLManagedTensor *managed
    lend(self, &lent)   # refuses before there is a block to free
    managed = <DLManagedTensor *> PyMem_RawMalloc(
        sizeof(DLManagedTensor) + 2 * lent.ndim * sizeof(int64_t))
    if managed == NULL:
        raise MemoryError("no memory for a managed tensor")
    managed.dl_tensor = lent
    move_dims(&managed.dl_tensor, <int64_t *> (managed + 1))
    managed.manager_ctx = <void *> self
    managed.deleter = release_legacy
    Py_INCREF(self)
    return managed


# A consumer may call a deleter from any thread, with the GIL or without, even while Python shuts down.

cdef void release_versioned(DLManagedTensorVersioned *managed) noexcept nogil:
    if not python_is_gone():
        with gil:
            release_export(managed.manager_ctx, managed)


cdef void release_legacy(DLManagedTensor *managed) noexcept nogil:
    if not python_is_gone():
        with gil:
            release_export(managed.manager_ctx, managed)


cdef inline void release_export(void *tensor, void *block) noexcept:
    if base_of(<Tensor> tensor).owner_kind == OWNER_CUDA and not Py_IsFinalizing():
        retain_for_consumers(<Tensor> tensor)
    free_export(tensor, block)


cdef void retain_for_consumers(Tensor self) noexcept:
    """Keep a pending exception: a deleter may be called while one propagates."""
    cdef PyObject *kind, *value, *traceback
    PyErr_Fetch(&kind, &value, &traceback)
    retain_for_streams(self)
    PyErr_Restore(kind, value, traceback)


cdef void retain_for_streams(Tensor self) noexcept:
    """A consumer that drops a tensor may still have work under way that reads it, on a stream that only its framework
    knows. Errors cannot be raised here: Cython passes them to sys.unraisablehook."""
    for stream in frameworks.current_streams(self.dl.device.device_id):
        used_on(self, parse_handle(handle_of(stream)))


# ---- Capsules

cdef void destroy_versioned(PyObject *capsule) noexcept:
    """The capsule's destructor, called with the GIL: a capsule that nobody consumed is still ours to release."""
    if PyCapsule_GetName(<object> capsule) == VERSIONED:   # compared by address: a consumer gives another string
        delete_versioned(<DLManagedTensorVersioned *> PyCapsule_GetPointer(<object> capsule, VERSIONED))


cdef void destroy_legacy(PyObject *capsule) noexcept:
    if PyCapsule_GetName(<object> capsule) == LEGACY:
        delete_legacy(<DLManagedTensor *> PyCapsule_GetPointer(<object> capsule, LEGACY))


cdef bint wants_versioned(Tensor self, max_version) except -1:
    """Which of the two capsules the consumer gets; BufferError where a legacy one would lose something."""
    cdef bint padded = is_padded(self)
    if max_version is None:
        # Padded data gets a versioned capsule even so, which a legacy consumer refuses by its name.
        if padded:
            return True
    elif knows_versions(max_version):
        return True
    if padded:
        raise BufferError(f"a capsule below version 1.0 cannot say that {dtype_name(self)} is padded to a byte an "
                          f"element; ask for max_version=(1, 0) or newer, or dlfp4.pack it")
    if self.flags & DLPACK_FLAG_BITMASK_READ_ONLY:
        raise BufferError("a capsule below version 1.0 cannot say that the memory is read-only; "
                          "ask for max_version=(1, 0) or newer, or hand out a .copy()")
    return False


cdef bint knows_versions(max_version) except -1:
    """Whether a consumer that knows that version takes versioned capsules."""
    if isinstance(max_version, (tuple, list)) and len(max_version) == 2:
        major, minor = max_version
        if PyIndex_Check(major) and PyIndex_Check(minor):
            return PyNumber_Index(major) >= 1
    raise TypeError(f"max_version={max_version!r}: expected None or (major, minor)")


cdef inline object export_capsule(Tensor self, max_version, uint64_t flags):
    if wants_versioned(self, max_version):
        return own_in_capsule(<void *> self, export_versioned(self, flags), VERSIONED,
                              <PyCapsule_Destructor> destroy_versioned)
    return own_in_capsule(<void *> self, export_legacy(self), LEGACY,
                          <PyCapsule_Destructor> destroy_legacy)


# ---- Frameworks that take less than a capsule can say, by their rows

@cython.final
cdef class _Consumer:
    cdef str title
    cdef uint64_t pairs          # a bit per row of the types that it counts in pairs
    cdef bint always_writable
    cdef object cannot_import


cdef dict CONSUMERS = {}   # by framework's name; None for those that take everything
cdef dict CONSUMER_OF_MODULE = {}   # the same by the module of the function that asks, as met


cdef _Consumer find_consumer(str name):
    """What the row of a framework says; None where there is no such row, or where it takes everything."""
    cdef _Consumer self
    if name in CONSUMERS or name not in frameworks.NAMES:
        return look_up(CONSUMERS, name)
    row = frameworks.framework(name)
    self = None
    if row.always_writable or row.pairs or row.cannot_import is not None:
        self = _Consumer()
        self.title = row.title or row.name
        self.always_writable = row.always_writable
        self.cannot_import = row.cannot_import
        for dtype in row.pairs:
            self.pairs |= (<uint64_t> 1) << row_of_argument(dtype)
    CONSUMERS[name] = self
    return self


cdef _Consumer find_asking():
    """The framework one of whose functions called into this extension."""
    cdef PyObject *caller = PyEval_GetGlobals()
    name = None if caller == NULL else look_up(<dict> caller, "__name__")
    if not isinstance(name, str):
        return None
    known = look_up(CONSUMER_OF_MODULE, name)
    if known is None:
        known = find_consumer(name.partition(".")[0]) or False
        if len(CONSUMER_OF_MODULE) < 256:
            CONSUMER_OF_MODULE[name] = known
    return known or None


cdef inline bint has_negative_stride(Tensor self) noexcept nogil:
    cdef int k
    for k in range(self.dl.ndim):
        if self.dl.strides[k] < 0:   # of an extent above 1
            return True
    return False


cdef inline bint is_unusual(Tensor self) noexcept nogil:
    """Whether a consumer may not expect the tensor: see `cannot_import` of frameworks.base.Framework."""
    return (has_negative_stride(self) or not is_address(self.dl.device.device_type)
            or (on_cuda(self) and not is_aligned(self))
            or (self.size_ == 0 and not has_countable_extents(self.dl.ndim, self.dl.shape)))


cdef inline bint depends_on_consumer(Tensor self) noexcept nogil:
    """Whether the export depends on who asks; finding out is skipped otherwise."""
    return holds_pairs(self) or self.flags & DLPACK_FLAG_BITMASK_READ_ONLY != 0 or is_unusual(self)


cdef inline bint is_counted_in_pairs(Tensor self, _Consumer consumer):
    return holds_pairs(self) and consumer.pairs >> self.row & 1


cdef Tensor suit(Tensor self, _Consumer consumer, copy, bint *copied):
    """The tensor as a consumer takes it."""
    if consumer.always_writable and self.flags & DLPACK_FLAG_BITMASK_READ_ONLY:
        if copy is False:
            raise frameworks.RefusedError(
                consumer.title, self, "its tensors are always writable, this memory is read-only", "allow a copy")
        self = duplicate(self)
        copied[0] = True
    refused = find_refusal(self, consumer)
    if refused is not None:
        raise frameworks.RefusedError(consumer.title, self, *refused)
    return with_dialect(self, True) if is_counted_in_pairs(self, consumer) else self


cdef tuple find_refusal(Tensor self, _Consumer consumer):
    """Why a consumer cannot take the tensor, and what helps; or None."""
    refused = None
    if consumer.cannot_import is not None and is_unusual(self):
        refused = consumer.cannot_import(self)
    if refused is None and is_counted_in_pairs(self, consumer) and with_dialect(self, True).pairs == NULL:
        reason, remedy = why_no_pairs(self)
        refused = f"it counts {dtype_name(self)} in pairs of neighbours, and {reason}", remedy
    return refused


def _refusal(str name, Tensor self):
    """The same by a framework's name, for dlfp4's Python files."""
    consumer = find_consumer(name)
    return None if consumer is None else find_refusal(self, consumer)


# ---- As a consumer asks

cdef object export_as_it_is(Tensor self, max_version):
    """Memory without streams, on its own device."""
    cdef bint copied = False
    cdef _Consumer consumer = find_asking() if depends_on_consumer(self) else None
    if consumer is not None:
        self = suit(self, consumer, None, &copied)
    return export_capsule(self, max_version, DLPACK_FLAG_BITMASK_IS_COPIED if copied else 0)


cdef object export_as_asked(Tensor self, stream, max_version, dl_device, copy):
    cdef Tensor source = self
    cdef int64_t waiting = NO_STREAM
    cdef _Consumer consumer
    cdef bint copied = False
    cdef Device target = None if dl_device is None else parse_target(dl_device)
    check_copy(copy)
    if target is not None and not lies_on(self, target):
        if stream is not None:
            raise ValueError(f"stream={stream!r} with a dl_device on another device: the copy is complete when it is "
                             f"handed out; pass None")
        source = export_to_host(self, target, copy)
        copied = source.owner_kind == OWNER_HOST   # not merely named as host memory
    else:
        waiting = parse_stream(stream, self.dl.device)
    if copy is True and not copied:
        source = duplicate(source)
        copied = True
    consumer = find_asking() if depends_on_consumer(source) else None
    if consumer is not None:
        source = suit(source, consumer, copy, &copied)
    order_streams(source, waiting)   # after a copy, which may be under way
    return export_capsule(source, max_version, DLPACK_FLAG_BITMASK_IS_COPIED if copied else 0)


cdef Device parse_target(dl_device):
    """A consumer's device; BufferError for a pair that names no device."""
    try:
        return parse_device(dl_device)
    except ValueError as error:
        if not isinstance(dl_device, tuple):
            raise
        raise BufferError(f"dl_device={dl_device}: {error}") from None


cdef Tensor export_to_host(Tensor self, Device target, copy):
    """The tensor for a consumer on the CPU: as it is where the host may read it, else a copy."""
    cdef Tensor view
    if target.code != kDLCPU or target.index != 0:
        raise BufferError(f"dl_device={target}: this tensor lies on {device_of(self)} and can go out "
                          f"there, or to the host as (1, 0); call .to_device({str(target)!r}) first")
    if host_readable(self.dl.device.device_type):
        view = share(self)
        view.dl.device = CPU
        return view
    if copy is False:
        raise BufferError(f"memory on {device_of(self)} reaches the host by a copy, "
                          f"which copy=False forbids")
    return move(self, target)


cdef int order_streams(Tensor self, int64_t consumer) except -1:
    """The consumer's stream waits for the stream on which the data becomes ready."""
    if consumer == NO_STREAM or consumer == self.stream:
        return 0
    if is_cuda(self.dl.device.device_type):
        wait_for(self, consumer)
    elif self.dl.device.device_type == kDLROCM and consumer > PER_THREAD_STREAM:
        raise BufferError(f"stream={consumer}: dlfp4 has no ROCm driver to order streams with; "
                          f"synchronise and pass stream=-1")
    return 0


# ---- The C exchange API, as a producer

cdef DLPackExchangeAPI EXCHANGE_API


cdef int table_allocate(DLTensor *prototype, DLManagedTensorVersioned **out, void *context,
                        SetErrorFunction set_error) noexcept with gil:
    out[0] = NULL
    try:
        out[0] = export_versioned(allocate_after(prototype), 0)
    except BaseException as error:   # whatever it is must reach the caller through set_error
        tell(error, context, set_error)
    return -1 if out[0] == NULL else 0


cdef Tensor allocate_after(const DLTensor *prototype):
    """Memory for a tensor as the prototype describes it, in pairs as well."""
    cdef DLTensor wanted = prototype[0]
    cdef Tensor described = Tensor.__new__(Tensor), made
    wanted.data = <void *> FIRST_PAGE   # a prototype has no memory; this address is checked, never read
    wanted.strides = NULL
    wanted.byte_offset = 0
    describe(described, &wanted, 0)
    made = allocate_like(described, wanted.device)
    return with_dialect(made, True) if wanted.dtype.lanes == 2 else made


cdef void tell(error, void *context, SetErrorFunction set_error) noexcept:
    """What went wrong, in words where there is memory for them."""
    cdef bytes kind = b"MemoryError", message = b"no memory is left to say what failed"
    try:
        kind, message = type(error).__name__.encode(errors="replace"), str(error).encode(errors="replace")
    except MemoryError:
        pass
    set_error(context, kind, message)


cdef int table_export(void *py_object, DLManagedTensorVersioned **out) except -1:
    out[0] = export_versioned(as_tensor(<object> py_object), 0)
    return 0


cdef int table_import(DLManagedTensorVersioned *managed, void **out) except -1:
    cdef Tensor self = adopt(managed)
    Py_INCREF(self)
    out[0] = <void *> self
    return 0


cdef int table_lend(void *py_object, DLTensor *out) except -1:
    """Lend a DLTensor; padded and read-only tensors are refused, which only managed tensors can express."""
    cdef Tensor self = as_tensor(<object> py_object)
    if is_padded(self) or self.flags & DLPACK_FLAG_BITMASK_READ_ONLY:
        what = f"{dtype_name(self)} is padded to a byte an element" if is_padded(self) else "memory is read-only"
        raise BufferError(f"a DLTensor alone cannot say that {what}; ask for a managed tensor")
    return lend(self, out)


cdef Tensor as_tensor(object x):
    if type(x) is not Tensor:
        raise TypeError(f"dlfp4's exchange table takes dlfp4.Tensor, got {type(x).__name__}")
    return <Tensor> x


cdef int table_stream(DLDeviceType device_type, int32_t device_id, void **out) except -1:
    """The current stream of the framework whose tensors dlfp4 carries, the first that came if there are several: dlfp4
    has no streams of its own."""
    cdef int k
    out[0] = NULL
    for k in range(load_acquire(&NUM_PRODUCERS)):
        if is_cuda(device_type) and PRODUCERS[k].api.current_work_stream != NULL:
            if PRODUCERS[k].api.current_work_stream(device_type, device_id, out) != 0:
                raise_pending()
            break
    return 0


# Each function returns -1 with the exception set: the standard asks for that, and Cython's `except -1` is just that.
cdef object make_exchange_capsule():
    EXCHANGE_API.header.version.major = DLPACK_MAJOR_VERSION
    EXCHANGE_API.header.version.minor = DLPACK_MINOR_VERSION
    EXCHANGE_API.header.prev_api = NULL
    EXCHANGE_API.managed_tensor_allocator = table_allocate
    EXCHANGE_API.managed_tensor_from_py_object_no_sync = <ExportFunction> table_export
    EXCHANGE_API.managed_tensor_to_py_object_no_sync = <ImportFunction> table_import
    EXCHANGE_API.dltensor_from_py_object_no_sync = <LendFunction> table_lend
    EXCHANGE_API.current_work_stream = <StreamFunction> table_stream
    return PyCapsule_New(&EXCHANGE_API, "dlpack_exchange_api", NULL)
