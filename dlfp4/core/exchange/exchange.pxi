# Exchange tables: a producer whose type has a C exchange table (DLPack 1.3) is read through it, without a capsule.

cdef struct Guard:
    # An attribute that must be false for the types in `rows`, which the producer's table does not check. The first of
    # these that is set reads it: a function of the implementation, a function of the handle, the descriptor.
    uint8_t (*of_impl)(void *) noexcept
    uint8_t (*of_handle)(void **) noexcept
    PyObject *descriptor
    PyObject *remedy
    uint64_t rows


cdef enum:
    MAX_GUARDS = 4
    MAX_PRODUCERS = 16
    MOST_TABLES = 16   # of one type, by major version; a longer chain is a circle


cdef struct Producer:
    PyTypeObject *type
    const DLPackExchangeAPI *api
    int origin
    PyObject *keeper                 # reads the object that keeps a lent tensor's memory alive; NULL: no loans
    PyObject *cannot_export          # why a tensor cannot be handed over, by its framework's file; NULL: never asked
    bint has_natives
    Natives natives
    int num_guards
    Guard guards[MAX_GUARDS]


# Append-only, a row per exact type met; read without a lock, so the count is raised after its row is filled.
cdef Producer PRODUCERS[MAX_PRODUCERS]
cdef int NUM_PRODUCERS = 0
cdef object PRODUCERS_LOCK = threading.Lock()


cdef const DLPackExchangeAPI *read_table(object capsule) except? NULL:
    """The newest table of our major version behind a capsule, or NULL where there is no usable one."""
    cdef const DLPackExchangeAPIHeader *header
    cdef const DLPackExchangeAPI *api
    cdef int step
    if not PyCapsule_CheckExact(capsule) or not PyCapsule_IsValid(capsule, "dlpack_exchange_api"):
        return NULL
    header = <const DLPackExchangeAPIHeader *> PyCapsule_GetPointer(capsule, "dlpack_exchange_api")
    for step in range(MOST_TABLES):
        if header == NULL or header.version.major == DLPACK_MAJOR_VERSION:
            break
        header = header.prev_api
    else:
        return NULL
    api = <const DLPackExchangeAPI *> header
    if api == NULL or api.managed_tensor_from_py_object_no_sync == NULL:
        return NULL
    return api


cdef inline Producer *find_producer(PyTypeObject *type) except? NULL:
    """The row of an exact type; NULL for those without a table of their own."""
    cdef int k
    for k in range(load_acquire(&NUM_PRODUCERS)):
        if PRODUCERS[k].type == type:
            return &PRODUCERS[k]
    return add_producer(type) if type_has(type, "__dlpack_c_exchange_api__") else NULL


cdef Producer *find_inherited(object type) except? NULL:
    """The row of the base from which a class inherits a table that is not its own, or NULL."""
    cdef Producer *producer
    if not type_has(<PyTypeObject *> type, "__dlpack_c_exchange_api__"):
        return NULL
    for base in frameworks.bases_of(type)[1:]:
        producer = find_producer(<PyTypeObject *> base)
        if producer != NULL:
            return producer
    return NULL


cdef Producer *add_producer(PyTypeObject *type) except? NULL:
    """Add the row of a type with a table of its own; NULL where the type goes through `__dlpack__` instead.

    Those are types that only inherit a table (it serves its exact type, and the subclasses that the framework's file
    names), types with an unusable table, and all further types once the rows are used up.
    """
    cdef Producer row
    cdef int k
    capsule = vars(<object> type).get("__dlpack_c_exchange_api__")
    if capsule is None and frameworks.shares_table(<object> type):
        capsule = (<object> type).__dlpack_c_exchange_api__
    row.type = type
    row.api = read_table(capsule)
    if row.api == NULL:
        return NULL
    add_guards(&row)
    with PRODUCERS_LOCK:
        for k in range(NUM_PRODUCERS):   # another thread may have been faster
            if PRODUCERS[k].type == type:
                release_guards(&row)
                return &PRODUCERS[k]
        if NUM_PRODUCERS == MAX_PRODUCERS:
            release_guards(&row)
            return NULL
        Py_INCREF(<object> type)
        PRODUCERS[NUM_PRODUCERS] = row
        store_release(&NUM_PRODUCERS, NUM_PRODUCERS + 1)
        return &PRODUCERS[NUM_PRODUCERS - 1]


cdef int add_guards(Producer *producer) except -1:
    """What the framework's own file says its table leaves unchecked."""
    framework = frameworks.of_type(<object> producer.type)
    producer.keeper = producer.cannot_export = NULL
    producer.has_natives = False
    producer.num_guards = 0
    if framework is None:
        producer.origin = add_origin((<object> producer.type).__module__, None, producer.api)
        return 0
    producer.origin = add_origin(framework.name, framework.current_stream, producer.api)
    keeper, guards, natives = framework.keeper(), framework.guards(), framework.natives()
    if len(guards) > MAX_GUARDS:
        raise RuntimeError(f"{framework.name} has {len(guards)} guards; a row has room for {MAX_GUARDS}")
    if natives is not None:
        fill_natives(&producer.natives, natives)
        producer.has_natives = True
    if framework.cannot_export is not None:   # the row of a framework lives for ever
        producer.cannot_export = <PyObject *> framework.cannot_export
    if keeper is not None and producer.api.dltensor_from_py_object_no_sync != NULL:
        Py_INCREF(keeper)
        producer.keeper = <PyObject *> keeper
    for descriptor, names, remedy in guards:
        fill_guard(&producer.guards[producer.num_guards], descriptor, names, remedy, natives)
        producer.num_guards += 1
    return 0


cdef int fill_guard(Guard *guard, descriptor, names, remedy, natives) except -1:
    cdef uintptr_t of_impl = 0, of_handle = 0
    if natives is not None:
        of_impl = natives.flags_of_impl.get(descriptor.__name__, 0)
        of_handle = natives.flags_of_handle.get(descriptor.__name__, 0)
    guard.of_impl = <uint8_t (*)(void *) noexcept> of_impl
    guard.of_handle = <uint8_t (*)(void **) noexcept> of_handle
    guard.rows = 0
    for name in names:
        guard.rows |= (<uint64_t> 1) << row_of_argument(name)
    guard.descriptor = <PyObject *> descriptor
    guard.remedy = <PyObject *> remedy
    Py_INCREF(descriptor)
    Py_INCREF(remedy)
    return 0


cdef void release_guards(Producer *producer) noexcept:
    """The references of a row that is not kept."""
    cdef int k
    Py_XDECREF(producer.keeper)
    for k in range(producer.num_guards):
        Py_DECREF(<object> producer.guards[k].descriptor)
        Py_DECREF(<object> producer.guards[k].remedy)


cdef inline bint is_set(const Guard *guard, const Producer *producer, object x):
    if guard.of_impl != NULL:
        return guard.of_impl(handle_in(&producer.natives, x)[0])
    if guard.of_handle != NULL:
        return guard.of_handle(handle_in(&producer.natives, x))
    return read_descriptor(guard.descriptor, x) is True


cdef int check_guards(const Producer *producer, object x, int row) except -1:
    cdef int k
    for k in range(producer.num_guards):
        if producer.guards[k].rows >> row & 1 and is_set(&producer.guards[k], producer, x):
            name = (<object> producer.guards[k].descriptor).__name__
            raise BufferError(f"the tensor's {name} bit is set, which DLPack cannot carry: the receiver would read "
                              f"other values, or lose the gradient; call {<object> producer.guards[k].remedy} first")
    return 0


cdef inline int check_usual(const Producer *producer, object x, const DLTensor *seen) except -1:
    """BufferError where a tensor is not what its description says, or has no memory; its framework's file decides, and
    has the words, wherever the quick checks do not suffice."""
    cdef int64_t low, high, bits = seen.dtype.bits * seen.dtype.lanes
    if producer.cannot_export == NULL:
        return 0
    if producer.has_natives:
        fill_byte_range(seen, bits, &low, &high)
        if (is_in_storage(&producer.natives, handle_in(&producer.natives, x), seen.data, max(1, bits >> 3), low, high)
                and is_seen_through(&producer.natives, x, seen)):
            return 0
    return refuse_export(x, (<object> producer.cannot_export)(x))


cdef int refuse_export(object x, problem) except -1:
    """Raise BufferError with the reason that a framework's file gives, if it gives one."""
    if problem is not None:
        raise BufferError(f"this {type(x).__module__}.{type(x).__name__} cannot be exchanged: {problem}")
    return 0


cdef Tensor import_through_table(const Producer *producer, object x):
    """Import through the table of x's exact type: as a loan where that carries everything, else as a managed tensor."""
    cdef DLManagedTensorVersioned *managed = NULL
    cdef DLTensor lent
    if producer.keeper != NULL:
        request_loan(producer, x, &lent)
        if lent.dtype.bits >= 8 or lent.dtype.lanes == 2:   # packed or padded? Only a managed tensor has flags
            check_usual(producer, x, &lent)
            return check_import(import_loan(x, &lent), producer, x)
    if producer.api.managed_tensor_from_py_object_no_sync(<void *> x, &managed) != 0 or managed == NULL:
        pass_refusal(producer, x)
    return check_import(adopt(managed), producer, x)


cdef inline int request_loan(const Producer *producer, object x, DLTensor *lent) except -1:
    if producer.api.dltensor_from_py_object_no_sync(<void *> x, lent) != 0:
        pass_refusal(producer, x)
    return 0


cdef int pass_refusal(const Producer *producer, object x) except -1:
    """Raise what a table's refusal means: the words of its framework's file where it has some, else the table's own
    exception. A RuntimeError (sparse, meta), or a refusal without an exception, becomes a BufferError."""
    cdef object reason = None
    try:
        raise_pending()
    except RuntimeError as error:
        reason = error
    if producer.cannot_export != NULL:
        refuse_export(x, (<object> producer.cannot_export)(x))
    raise refusal_of(x, reason or "its exchange table gave no reason") from reason


cdef object refusal_of(object x, reason):
    lines = str(reason).strip().splitlines()
    return BufferError(f"{type(x).__module__}.{type(x).__name__} cannot be exchanged: "
                       f"{lines[0] if lines else type(reason).__name__}")


cdef inline Tensor import_loan(object x, const DLTensor *lent):
    """A Tensor that holds `x` itself: half the price of a managed tensor, but each use must secure it."""
    cdef Tensor self = Tensor.__new__(Tensor)
    self.stream = LEGACY_STREAM
    describe(self, lent, 0)
    Py_INCREF(x)
    self.owner = <void *> x
    self.owner_kind = OWNER_LOAN
    return self


cdef inline int secure(Tensor self) except -1:
    """To be called before memory is read or handed on: it must still exist, and must outlive the lender."""
    return secure_loan(self) if self.owner_kind == OWNER_LOAN else 0


cdef int secure_loan(Tensor self) except -1:
    """Check that the lender still has the memory that this view describes, and retain its storage.

    A framework may free or replace the memory under every view of a tensor (PyTorch: set_, resize_ and `.data =`), and
    a managed tensor would not prevent that either.
    """
    cdef object lender = <object> self.owner
    cdef const Producer *producer = find_producer(Py_TYPE(lender))
    cdef object storage = None
    if producer == NULL or producer.keeper == NULL:
        raise BufferError(f"the tensor that this Tensor shares memory with has become a {type(lender).__module__}."
                          f"{type(lender).__name__} (__class__ = ...); import it again")
    if self.retained == NULL:   # read before the lender is checked, so that both are of the same storage
        storage = read_descriptor(producer.keeper, lender)
    if not still_lends(self, producer, lender):
        refuse_lost(lender)
    if storage is not None:
        retain_storage(self, storage)
    return 0


cdef int refuse_lost(object lender) except -1:
    framework = frameworks.of_type(type(lender))
    by = f" ({framework.lost_by})" if framework is not None and framework.lost_by else ""
    raise BufferError(f"the {type(lender).__module__}.{type(lender).__name__} that this Tensor shares memory with was "
                      f"resized or given other memory since{by}: what it shared is gone; import it again")


cdef inline bint still_lends(Tensor self, const Producer *producer, object lender) except *:
    """Whether the memory that a view describes is still its lender's. The storage answers, or a fresh loan where a
    framework has no functions to ask for it."""
    cdef DLTensor lent
    cdef int64_t low, high, lent_low, lent_high
    if self.size_ == 0:   # has no memory that could be taken
        return True
    fill_byte_range(&self.dl, storage_bits(self), &low, &high)
    if producer.has_natives:
        return still_stores(&producer.natives, lender, low, high)
    try:
        request_loan(producer, lender, &lent)
        check_usual(producer, lender, &lent)
    except BufferError:   # says why, as the context of what helps
        refuse_lost(lender)
    fill_byte_range(&lent, lent.dtype.bits * lent.dtype.lanes, &lent_low, &lent_high)
    return low >= lent_low and high <= lent_high


cdef int retain_storage(Tensor self, object storage) except -1:
    with cython.critical_section(self):
        if self.retained == NULL:   # another thread may have been faster
            Py_INCREF(storage)
            self.retained = <void *> storage
    return 0


cdef inline Tensor check_import(Tensor self, const Producer *producer, object x):
    if producer.num_guards:
        check_guards(producer, x, self.row)
    self.origin = producer.origin
    if is_cuda(self.dl.device.device_type):
        self.stream = current_work_stream(producer.api, self.dl.device)
    return self
