# Importer: a producer's DLTensor becomes a Tensor, or an exception; nothing in it is believed before it is checked.
# Four ways in, fastest first: our own Tensor, a NumPy array through NumPy's C API, a type with a C exchange table,
# and a capsule from `__dlpack__` (or handed over raw).

cdef enum:
    MAX_NDIM = 65535

cdef const char *LEGACY = "dltensor"
cdef const char *VERSIONED = "dltensor_versioned"
cdef const char *USED_LEGACY = "used_dltensor"
cdef const char *USED_VERSIONED = "used_dltensor_versioned"


# ---- A DLTensor's description, checked

cdef int refuse(const DLTensor *src, str problem) except -1:
    """Raise BufferError for a tensor as it was described; shape and strides are not read."""
    raise BufferError(f"{problem} (ndim={src.ndim}, dtype code={src.dtype.code} bits={src.dtype.bits} "
                      f"lanes={src.dtype.lanes}, device=({src.device.device_type}, {src.device.device_id}), "
                      f"byte_offset={src.byte_offset}); the producer's description is not a valid DLPack 1.x tensor")


cdef inline int reserve_dims(Tensor self, int ndim) except -1:
    """Room for shape and strides, and for both once more in pairs where the tensor may go out as x2."""
    cdef int64_t needed = 2 * ndim * (1 + self.x2_)
    cdef int64_t *dims = self.inline_dims
    if needed > INLINE_DIMS:
        dims = <int64_t *> PyMem_RawMalloc(needed * sizeof(int64_t))
        if dims == NULL:
            raise MemoryError(f"no memory for {ndim} dimensions")
    self.dl.ndim = ndim
    self.dl.shape = dims
    self.dl.strides = dims + ndim
    return 0


cdef int set_dtype(Tensor self, int row, bint padded) except -1:
    self.row = row
    self.dl.dtype.code = dlfp4_dtypes[row].code
    self.dl.dtype.bits = dlfp4_dtypes[row].bits
    self.dl.dtype.lanes = 1
    if padded and is_subbyte(row):
        self.flags |= DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED
    else:
        self.flags &= ~DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED
    return 0


cdef inline bint is_padded(Tensor self) noexcept nogil:
    return self.flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED != 0


cdef inline int storage_bits(Tensor self) noexcept nogil:
    """Bits from one element to the next in memory."""
    return 8 if is_padded(self) else self.dl.dtype.bits


cdef inline bint is_address(int32_t device_type) noexcept nogil:
    """Whether `data` is an address that offsets may be added to; elsewhere it may be an opaque handle."""
    return (host_readable(device_type) or is_cuda(device_type)
            or device_type == kDLROCM or device_type == kDLOneAPI)


cdef inline void fill_pairs(Tensor self) noexcept nogil:
    """Shape and strides in pairs, where the x2 dialect applies and the layout divides."""
    cdef int ndim = self.dl.ndim
    cdef int64_t *pairs
    cdef int dim
    self.pairs = NULL
    if self.x2_ and self.dl.dtype.bits == 4 and not is_padded(self):
        pairs = self.dl.strides + ndim
        dim = find_unit_dim(ndim, self.dl.shape, self.dl.strides)
        memcpy(pairs, self.dl.shape, 2 * ndim * sizeof(int64_t))
        if dim >= 0 and rescale_layout(ndim, pairs, pairs + ndim, dim, 4, 8):
            self.pairs = pairs


cdef int expand_pairs(Tensor self, const DLTensor *src) except -1:
    """From pairs (lanes = 2) to logical elements."""
    cdef int dim
    if self.dl.ndim == 0:
        raise BufferError("a rank-0 tensor of pairs has no room for its shape")  # callers reserve one dimension
    dim = find_unit_dim(self.dl.ndim, self.dl.shape, self.dl.strides)
    if dim < 0:
        raise BufferError(
            f"a {dtype_name(self)} tensor in pairs (lanes=2) of shape {shape_of(self)} and strides {strides_of(self)} has "
            f"no dimension of stride 1 along which to count single elements; make it contiguous first")
    if not rescale_layout(self.dl.ndim, self.dl.shape, self.dl.strides, dim, 8, 4):
        refuse(src, "shape or strides overflow when pairs are counted as single elements")
    return 0


cdef int check_memory(Tensor self, const DLTensor *src) except -1:
    """Size, addresses and the data pointer: everything between the first and the last element must be addressable."""
    cdef int64_t low, high, first, bits = storage_bits(self)
    self.size_ = count_elements(self.dl.ndim, self.dl.shape)
    if self.size_ < 0 or mul_overflows(self.size_, bits, &high):
        refuse(src, f"shape {shape_of(self)} has more elements than memory can hold")
    if self.size_ == 0:
        return 0
    if src.data == NULL:
        refuse(src, f"data is NULL for shape {shape_of(self)}")
    if not find_extent(self.dl.ndim, self.dl.shape, self.dl.strides, &low, &high) \
            or mul_overflows(low, bits, &low) or mul_overflows(high, bits, &high):
        refuse(src, f"strides {strides_of(self)} reach beyond the address space for shape {shape_of(self)}")
    first = <int64_t> self.dl.byte_offset
    if is_address(self.dl.device.device_type):
        first = <int64_t> self.dl.data
    if first < 0 or first + low // 8 - 1 < -1 or add_overflows(first, high // 8 + bits, &high):
        refuse(src, f"byte_offset and strides {strides_of(self)} reach outside the address space")
    return 0


cdef int describe(Tensor self, const DLTensor *src, uint64_t flags) except -1:
    """Fill `self` from a foreign description. On an exception `self` owns nothing of the producer's."""
    cdef int row, k, ndim = src.ndim
    cdef bint in_pairs = src.dtype.lanes == 2
    if ndim < 0 or ndim > MAX_NDIM:
        refuse(src, f"ndim must be between 0 and {MAX_NDIM}")
    if ndim > 0 and src.shape == NULL:
        refuse(src, "shape is NULL")
    if src.device.device_id < 0 or not is_device_type(src.device.device_type):
        refuse(src, "the device is none of DLPack 1.3's")
    row = row_of_dlpack(src.dtype)
    self.flags = flags & (DLPACK_FLAG_BITMASK_READ_ONLY | DLPACK_FLAG_BITMASK_IS_COPIED)
    set_dtype(self, row, flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED != 0)
    if in_pairs:
        if is_padded(self):
            refuse(src, "the elements are flagged as padded (one a byte) and counted in pairs (two a byte)")
        self.x2_ = True
    self.dl.device = src.device
    reserve_dims(self, 1 if in_pairs and ndim == 0 else ndim)
    if in_pairs and ndim == 0:
        self.dl.shape[0] = self.dl.strides[0] = 1
    for k in range(ndim):
        if src.shape[k] < 0:
            refuse(src, f"shape[{k}]={src.shape[k]} is negative")
        self.dl.shape[k] = src.shape[k]
    if src.strides != NULL:
        memcpy(self.dl.strides, src.strides, ndim * sizeof(int64_t))
    elif not fill_compact_strides(ndim, self.dl.shape, self.dl.strides):
        refuse(src, f"shape {shape_of(self)} has more elements than memory can hold")
    if in_pairs:
        expand_pairs(self, src)
    self.dl.data = src.data
    self.dl.byte_offset = src.byte_offset
    if is_address(src.device.device_type) and src.byte_offset != 0:
        if src.byte_offset > <uint64_t> INT64_MAX or add_overflows(<int64_t> src.data, src.byte_offset, &self.size_):
            refuse(src, "byte_offset reaches outside the address space")
        self.dl.data = <char *> src.data + src.byte_offset
        self.dl.byte_offset = 0
    check_memory(self, src)
    fill_pairs(self)
    return 0


# ---- Our own tensors and NumPy's arrays

cdef Tensor share(Tensor source):
    """A Tensor of its own over the same memory, with the same description."""
    cdef Tensor self = Tensor.__new__(Tensor)
    cdef int ndim = source.dl.ndim
    self.x2_ = source.x2_
    reserve_dims(self, ndim)
    memcpy(self.dl.shape, source.dl.shape, 2 * ndim * sizeof(int64_t))
    copy_description(self, source)
    borrow_owner(self, source)
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
    self.row = source.row
    self.flags = source.flags


cdef inline void borrow_owner(Tensor self, Tensor source) noexcept:
    """Keep alive what keeps `source`'s memory alive: its owner object, or `source` itself."""
    if source.owner_kind == OWNER_OBJECT or source.owner_kind == OWNER_LOAN:
        self.owner = source.owner
        self.owner_kind = source.owner_kind
    else:
        self.owner = <void *> source
        self.owner_kind = OWNER_OBJECT
    Py_INCREF(<object> self.owner)


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
    self.size_ = 1
    for k in range(ndim):
        self.dl.shape[k] = shape[k]
        self.size_ *= shape[k]
        # The item size is a power of two: a mask and a shift instead of two divisions.
        if strides[k] & (itemsize - 1) and shape[k] > 1:
            raise BufferError(f"NumPy's strides {(<object> array).strides} are no multiples of the item size {itemsize}; DLPack "
                              f"counts strides in items: call numpy.ascontiguousarray first")
        self.dl.strides[k] = strides[k] >> ctz(itemsize)
    self.owner = <void *> array
    self.owner_kind = OWNER_OBJECT
    Py_INCREF(array)
    return self


# ---- The C exchange table of a producer's type

cdef struct Guard:
    # What a producer's table does not check: an attribute that must be false for the types in `rows`.
    PyObject *descriptor
    PyObject *remedy
    uint64_t rows


cdef enum:
    MAX_GUARDS = 4
    MAX_PRODUCERS = 16


cdef struct Producer:
    PyTypeObject *type
    const DLPackExchangeAPI *api
    bint counts_pairs                # hands FP4 out, and wants it back, as x2
    bint lends                       # a loan from the table says all that a managed tensor would
    int num_guards
    Guard guards[MAX_GUARDS]


# Append-only, a row per exact type met; read without a lock, so the count is raised after its row is filled.
cdef Producer PRODUCERS[MAX_PRODUCERS]
cdef int NUM_PRODUCERS = 0
cdef object PRODUCERS_LOCK = threading.Lock()


cdef const DLPackExchangeAPI *read_table(object capsule) except? NULL:
    """The newest table of our major version behind a capsule, or NULL where there is none to use."""
    cdef const DLPackExchangeAPIHeader *header
    cdef const DLPackExchangeAPI *api
    if not PyCapsule_IsValid(capsule, "dlpack_exchange_api"):
        return NULL
    header = <const DLPackExchangeAPIHeader *> PyCapsule_GetPointer(capsule, "dlpack_exchange_api")
    while header != NULL and header.version.major != DLPACK_MAJOR_VERSION:
        header = header.prev_api
    api = <const DLPackExchangeAPI *> header
    if api == NULL or api.managed_tensor_from_py_object_no_sync == NULL:
        return NULL
    return api


cdef Producer *find_producer(PyTypeObject *type) except? NULL:
    cdef int k
    for k in range(load_acquire(&NUM_PRODUCERS)):
        if PRODUCERS[k].type == type:
            return &PRODUCERS[k]
    if getattr(<object> type, "__dlpack_c_exchange_api__", None) is None:
        return NULL
    return add_producer(type)


cdef Producer *add_producer(PyTypeObject *type) except? NULL:
    """The row of a type that has a table of its own; NULL where it only inherits one (a table takes its exact type
    alone), where the table is not usable, or where the rows are used up: `__dlpack__` serves all of these."""
    cdef Producer row
    cdef int k
    capsule = vars(<object> type).get("__dlpack_c_exchange_api__")
    row.type = type
    row.api = NULL if capsule is None else read_table(capsule)
    if row.api == NULL:
        return NULL
    add_guards(&row)
    with PRODUCERS_LOCK:
        for k in range(NUM_PRODUCERS):   # another thread may have been faster
            if PRODUCERS[k].type == type:
                return &PRODUCERS[k]
        if NUM_PRODUCERS == MAX_PRODUCERS:
            return NULL
        Py_INCREF(<object> type)
        PRODUCERS[NUM_PRODUCERS] = row
        store_release(&NUM_PRODUCERS, NUM_PRODUCERS + 1)
        return &PRODUCERS[NUM_PRODUCERS - 1]


cdef int add_guards(Producer *producer) except -1:
    """What the framework's own file says its table leaves unchecked."""
    cdef Guard *guard
    framework = frameworks.of_type(<object> producer.type)
    producer.counts_pairs = framework is not None and framework.counts_pairs
    producer.lends = (framework is not None and framework.lends
                      and producer.api.dltensor_from_py_object_no_sync != NULL)
    producer.num_guards = 0
    for descriptor, names, remedy in () if framework is None else framework.guards():
        guard = &producer.guards[producer.num_guards]
        guard.descriptor = <PyObject *> descriptor
        guard.remedy = <PyObject *> remedy
        guard.rows = 0
        for name in names:
            guard.rows |= (<uint64_t> 1) << row_of_argument(name)
        Py_INCREF(descriptor)
        Py_INCREF(remedy)
        producer.num_guards += 1
    return 0


cdef int check_guards(const Producer *producer, object x, int row) except -1:
    cdef int k
    for k in range(producer.num_guards):
        if producer.guards[k].rows >> row & 1 and read_descriptor(producer.guards[k].descriptor, x) is True:
            name = (<object> producer.guards[k].descriptor).__name__
            raise BufferError(f"the tensor's {name} bit is set, which DLPack cannot carry: the receiver would read other "
                              f"values, or lose the gradient; call {<object> producer.guards[k].remedy} first")
    return 0


cdef Tensor import_through_table(const Producer *producer, object x):
    """Through the table of x's exact type: on loan, where a loan can say all there is, else as a managed tensor."""
    cdef DLManagedTensorVersioned *managed = NULL
    cdef DLTensor lent
    if producer.lends:
        ask_loan(producer, x, &lent)
        if lent.dtype.bits >= 8 or lent.dtype.lanes == 2:   # packed or padded? Only a managed tensor has flags
            return check_import(take_loan(producer, x, &lent), producer, x)
    if producer.api.managed_tensor_from_py_object_no_sync(<void *> x, &managed) != 0 or managed == NULL:
        raise BufferError(f"{type(x).__name__}'s exchange table refused the tensor without saying why")
    return check_import(adopt(managed, producer.counts_pairs), producer, x)


cdef inline int ask_loan(const Producer *producer, object x, DLTensor *lent) except -1:
    if producer.api.dltensor_from_py_object_no_sync(<void *> x, lent) != 0:
        raise BufferError(f"{type(x).__name__}'s exchange table refused the tensor without saying why")
    return 0


cdef inline Tensor take_loan(const Producer *producer, object x, const DLTensor *lent):
    """A Tensor that keeps `x` itself, which is half the price of a managed tensor, and checks the loan at each use."""
    cdef Tensor self = Tensor.__new__(Tensor)
    self.x2_ = producer.counts_pairs
    self.stream = LEGACY_STREAM
    describe(self, lent, 0)
    Py_INCREF(x)
    self.owner = <void *> x
    self.owner_kind = OWNER_LOAN
    return self


cdef inline int check_alive(Tensor self) except -1:
    """Before memory is read or handed on: a tensor on loan may have been given other memory since."""
    return check_loan(self) if self.owner_kind == OWNER_LOAN else 0


cdef int check_loan(Tensor self) except -1:
    """PyTorch's resize_, set_ and `.data =` free or exchange memory under every view of it; a managed tensor would not
    keep it either. What the lender lends now must still hold all that this view describes."""
    cdef object lender = <object> self.owner
    cdef const Producer *producer = find_producer(Py_TYPE(lender))
    cdef DLTensor lent
    cdef int64_t low, high, lent_low, lent_high
    ask_loan(producer, lender, &lent)
    fill_byte_range(&self.dl, storage_bits(self), &low, &high)
    fill_byte_range(&lent, lent.dtype.bits * lent.dtype.lanes, &lent_low, &lent_high)
    if self.size_ != 0 and (low < lent_low or high > lent_high):
        raise BufferError(f"the {type(lender).__module__}.{type(lender).__name__} that this one shares memory with was resized or given other memory "
                          f"since (resize_, set_, .data = ...): what it shared is gone; import it again")
    return 0


cdef inline Tensor check_import(Tensor self, const Producer *producer, object x):
    if producer.num_guards:
        check_guards(producer, x, self.row)
    if is_cuda(self.dl.device.device_type):
        self.stream = current_work_stream(producer.api, self.dl.device)
    return self


cdef int64_t current_work_stream(const DLPackExchangeAPI *api, DLDevice device) except? -2:
    """The stream on which the producer works now, as DLPack numbers streams."""
    cdef void *stream = NULL
    if api.current_work_stream == NULL:
        return LEGACY_STREAM
    if api.current_work_stream(device.device_type, device.device_id, &stream) != 0:
        raise BufferError("the producer's exchange table did not name its current stream")
    return <int64_t> stream if stream != NULL else LEGACY_STREAM


# ---- Managed tensors and capsules

cdef inline void delete_versioned(DLManagedTensorVersioned *managed) noexcept:
    if managed.deleter == release_versioned:   # our own: this thread holds the GIL already
        drop_export(managed.manager_ctx, managed)
    elif managed.deleter != NULL:
        managed.deleter(managed)


cdef inline void delete_legacy(DLManagedTensor *managed) noexcept:
    if managed.deleter == release_legacy:
        drop_export(managed.manager_ctx, managed)
    elif managed.deleter != NULL:
        managed.deleter(managed)


cdef inline int check_version(DLManagedTensorVersioned *managed) except -1:
    """Of another major version the layout is unknown: its deleter is called, and nothing else read."""
    if managed.version.major != DLPACK_MAJOR_VERSION:
        major, minor = managed.version.major, managed.version.minor
        delete_versioned(managed)
        raise BufferError(f"the producer made a DLPack {major}.{minor} tensor; dlfp4 understands version "
                          f"{DLPACK_MAJOR_VERSION}.x: ask it for max_version=(1, 3)")
    return 0


cdef Tensor adopt(DLManagedTensorVersioned *managed, bint counts_pairs):
    """A Tensor that owns `managed` from the start: what is refused is released with it."""
    cdef Tensor self
    check_version(managed)
    self = Tensor.__new__(Tensor)
    self.owner = managed
    self.owner_kind = OWNER_VERSIONED
    self.x2_ = counts_pairs
    self.stream = LEGACY_STREAM
    describe(self, &managed.dl_tensor, managed.flags)
    return self


cdef Tensor import_capsule(object capsule, bint counts_pairs):
    """Consume a capsule: its name changes only once the tensor is ours, and by one consumer alone."""
    cdef DLManagedTensorVersioned *versioned
    cdef DLManagedTensor *legacy
    cdef Tensor self = Tensor.__new__(Tensor)
    self.x2_ = counts_pairs
    self.stream = LEGACY_STREAM
    with cython.critical_section(capsule):
        if PyCapsule_IsValid(capsule, VERSIONED):
            versioned = <DLManagedTensorVersioned *> PyCapsule_GetPointer(capsule, VERSIONED)
            if versioned.version.major != DLPACK_MAJOR_VERSION:
                PyCapsule_SetName(capsule, USED_VERSIONED)
            check_version(versioned)
            describe(self, &versioned.dl_tensor, versioned.flags)
            PyCapsule_SetName(capsule, USED_VERSIONED)
            self.owner = versioned
            self.owner_kind = OWNER_VERSIONED
        elif PyCapsule_IsValid(capsule, LEGACY):
            legacy = <DLManagedTensor *> PyCapsule_GetPointer(capsule, LEGACY)
            describe(self, &legacy.dl_tensor, 0)
            PyCapsule_SetName(capsule, USED_LEGACY)
            self.owner = legacy
            self.owner_kind = OWNER_LEGACY
        else:
            refuse_capsule(capsule)
    return self


cdef int refuse_capsule(object capsule) except -1:
    cdef const char *name = PyCapsule_GetName(capsule)
    if name == NULL:
        PyErr_Clear()
    shown = "no name" if name == NULL else f"the name {name.decode(errors='replace')!r}"
    used = name != NULL and name[:5] == b"used_"
    raise BufferError(f"the capsule has {shown}; expected 'dltensor_versioned' or 'dltensor'"
                      + ("; it was consumed before: ask the producer for a new one" if used else ""))


cdef tuple device_of_producer(object x):
    """x.__dlpack_device__() as (type, id), to choose a stream by; the capsule has the last word. An id of None, which
    PaddlePaddle gives, is 0."""
    pair = x.__dlpack_device__()
    if not (isinstance(pair, tuple) and len(pair) == 2):
        raise TypeError(f"{type(x).__name__}.__dlpack_device__() returned {pair!r}; expected (device_type, device_id)")
    return int(pair[0]), int(pair[1] or 0)


cdef object request_capsule(object x, dict wanted):
    """x.__dlpack__() with the newest arguments that the producer understands; ours come first."""
    method = x.__dlpack__
    try:
        return method(max_version=(DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION), **wanted)
    except TypeError:
        # Array API 2022 and older: no keyword but stream.
        return method(stream=wanted["stream"]) if "stream" in wanted else method()


cdef Tensor import_from_protocol(object x, Device device, copy):
    """The Python protocol: a capsule asked of `x`, already on `device` where the producer can do that."""
    cdef dict wanted = {}
    if not hasattr(type(x), "__dlpack__"):
        raise TypeError(f"{type(x).__name__} is no DLPack producer: expected an object with __dlpack__ and "
                        f"__dlpack_device__, or a capsule; for buffers and NumPy arrays call dlfp4.asarray")
    source = device_of_producer(x) if hasattr(type(x), "__dlpack_device__") else (kDLCPU, 0)
    if source[0] in (kDLCUDA, kDLCUDAManaged):
        wanted["stream"] = LEGACY_STREAM
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
            capsule = request_capsule(x, wanted)   # as it is; from_dlpack moves it where we can
    else:
        capsule = request_capsule(x, wanted)
    if not PyCapsule_CheckExact(capsule):
        raise TypeError(f"{type(x).__name__}.__dlpack__() returned a {type(capsule).__name__}; expected a capsule")
    return import_capsule(capsule, frameworks.counts_pairs(type(x)))


# ---- The entry

cdef Tensor retain(object x, Device device, copy):
    """Any producer's memory as a Tensor that keeps it alive."""
    cdef Producer *producer
    cdef PyTypeObject *type = Py_TYPE(x)
    if type == <PyTypeObject *> Tensor:
        return share(<Tensor> x)
    if type == <PyTypeObject *> cnp.ndarray:
        return import_array(<cnp.ndarray> x)
    if PyCapsule_CheckExact(x):
        return import_capsule(x, False)
    producer = find_producer(type)
    if producer != NULL:
        return import_through_table(producer, x)
    return import_from_protocol(x, device, copy)


cdef Tensor borrow(object x):
    """Any producer's memory as a Tensor, for an operation."""
    cdef Producer *producer
    if type(x) is Tensor:
        check_alive(<Tensor> x)
        return <Tensor> x
    if type(x) is cnp.ndarray:
        return import_array(<cnp.ndarray> x)
    producer = find_producer(Py_TYPE(x))
    return as_producer(x, None) if producer == NULL else import_through_table(producer, x)


def from_dlpack(x, /, *, device=None, copy=None):
    """A tensor of any library as a :class:`Tensor`, sharing its memory.

    Parameters
    ----------
    x : producer or capsule
        An object with ``__dlpack__`` and ``__dlpack_device__``, of any element type and on any device, or a raw
        DLPack capsule (legacy or versioned), which is consumed.
    device : str, tuple or Device, optional
        Where the result shall lie, for example ``"cpu"``. Default: where `x` lies.
    copy : bool, optional
        True always copies, False never does, None copies only to reach `device`.

    Returns
    -------
    Tensor
        With logical elements: FP4 that PyTorch counts in pairs has its last dimension doubled, and goes back to
        PyTorch as it came. Read-only memory stays read-only.

    Raises
    ------
    BufferError
        The data cannot be exchanged: a type or device that DLPack 1.3 does not have, a description that is not
        valid, bits that a capsule cannot carry (PyTorch's conj, neg, requires_grad), or a copy that ``copy=False`` forbids.
    TypeError
        `x` is no producer.
    ValueError
        `device` is not known.
    DriverError
        The CUDA driver failed while data was moved.

    Notes
    -----
    Memory is not read. Protocol: https://dmlc.github.io/dlpack/latest/python_spec.html

    Examples
    --------
    >>> import numpy as np, dlfp4
    >>> dlfp4.from_dlpack(np.arange(6, dtype="float32").reshape(2, 3))
    Tensor(shape=(2, 3), dtype=float32, device='cpu')
    """
    cdef Device target
    cdef Tensor self
    if device is None and copy is None:
        return retain(x, None, None)
    check_copy(copy)
    target = None if device is None else parse_device(device)
    self = retain(x, target, copy)
    if copy is False and self.flags & DLPACK_FLAG_BITMASK_IS_COPIED and type(x) is not Tensor:
        raise BufferError(f"{type(x).__name__} can only hand out a copy, which copy=False forbids")
    if target is not None and not lies_on(self, target):
        if copy is False:
            raise BufferError(f"the data lies on {device_from_dlpack(self.dl.device)}; moving it to {target} needs a copy, "
                              f"which copy=False forbids")
        return move(self, target)
    return duplicate(self) if copy is True else self


cdef int check_copy(copy) except -1:
    if copy is not None and copy is not True and copy is not False:
        raise ValueError(f"copy={copy!r}: expected True, False or None")
    return 0
