# Origins: frameworks with a current stream, from which tensors come. An operation on a device runs on the current
# stream of the framework that calls or, failing that, of the one from which its operands came.

cdef struct Origin:
    const DLPackExchangeAPI *api    # asked in nanoseconds; NULL where there is no table, or none was met yet
    PyObject *current_stream        # of the framework's file: by the index of a device, a stream object or a handle


cdef enum:
    MAX_ORIGINS = 32
    NO_ORIGIN = 0

# Append-only, like PRODUCERS; number 0 is nobody.
cdef Origin ORIGINS[MAX_ORIGINS]
cdef int NUM_ORIGINS = 1
cdef dict ORIGIN_BY_NAME = {}
cdef dict ORIGIN_BY_TYPE = {}
cdef object ORIGINS_LOCK = threading.Lock()


cdef int add_origin(str name, current_stream, const DLPackExchangeAPI *api) except -1:
    """The number of a framework, or NO_ORIGIN if it has no current stream. A table answers faster than its file."""
    cdef int number = NO_ORIGIN
    if api != NULL and api.current_work_stream == NULL:
        api = NULL
    if api == NULL and current_stream is None:
        return NO_ORIGIN
    with ORIGINS_LOCK:
        number = ORIGIN_BY_NAME.get(name, NUM_ORIGINS)
        if number == MAX_ORIGINS:
            return NO_ORIGIN
        if number == NUM_ORIGINS:
            ORIGINS[number].api = NULL
            ORIGINS[number].current_stream = <PyObject *> current_stream
            Py_INCREF(current_stream)
            ORIGIN_BY_NAME[name] = number
        if api != NULL:
            ORIGINS[number].api = api
        store_release(&NUM_ORIGINS, max(NUM_ORIGINS, number + 1))
    return number


cdef int origin_of_framework(framework) except -1:
    return NO_ORIGIN if framework is None else add_origin(framework.name, framework.current_stream, NULL)


cdef int origin_of(object x) except -1:
    """The origin of an operand: where a Tensor came from, or the framework that a foreign object belongs to."""
    cdef int k
    if x is None or type(x) is float:
        return NO_ORIGIN
    if type(x) is Tensor:
        return (<Tensor> x).origin
    if type(x) is ScaledTensor:
        return (<ScaledTensor> x).data.origin
    for k in range(load_acquire(&NUM_PRODUCERS)):
        if PRODUCERS[k].type == Py_TYPE(x):
            return PRODUCERS[k].origin
    known = look_up(ORIGIN_BY_TYPE, type(x))
    if known is None:
        known = origin_of_framework(frameworks.of_type(type(x)))
        if len(ORIGIN_BY_TYPE) < 256:
            ORIGIN_BY_TYPE[type(x)] = known
    return known


cdef inline bint is_ours(object x) noexcept:
    return type(x) is Tensor or type(x) is ScaledTensor


cdef int choose_origin(object x, object y, object z) except -1:
    """The origin of the first foreign object among three operands (None where absent), else of the first Tensor."""
    cdef int of_x = origin_of(x), of_y, of_z
    if of_x != NO_ORIGIN and not is_ours(x):
        return of_x
    of_y = origin_of(y)
    if of_y != NO_ORIGIN and not is_ours(y):
        return of_y
    of_z = origin_of(z)
    if of_z != NO_ORIGIN and not is_ours(z):
        return of_z
    return of_x or of_y or of_z


cdef int64_t current_stream_of(int origin, DLDevice device) except? -2:
    """The stream on which a framework works now, as DLPack numbers streams."""
    if ORIGINS[origin].api != NULL:
        return current_work_stream(ORIGINS[origin].api, device)
    return parse_handle(handle_of((<object> ORIGINS[origin].current_stream)(device.device_id)))


cdef int64_t current_work_stream(const DLPackExchangeAPI *api, DLDevice device) except? -2:
    """The same by a table."""
    cdef void *stream = NULL
    if api.current_work_stream == NULL:
        return LEGACY_STREAM
    if api.current_work_stream(kDLCUDA, device.device_id, &stream) != 0:
        raise_pending()
    return <int64_t> stream if stream != NULL else LEGACY_STREAM


cdef dict LOADED = sys.modules
cdef int NUM_LOADED = 0                           # when they had been looked at
cdef dict UNMET = dict.fromkeys(frameworks.NAMES)   # emptied in place, for threads go through it at once


cdef int meet_loaded() except -1:
    """Number the frameworks that were imported since the last call, though none of their tensors has come yet."""
    cdef int loaded = <int> len(LOADED)
    for name in list(UNMET):
        if name in LOADED:
            origin_of_framework(frameworks.framework(name))
            UNMET.pop(name, None)
    store_release(&NUM_LOADED, loaded)   # last: who finds it passes by
    return 0


cdef int check_capture(DLDevice device, int chosen) except -1:
    """DriverError where a framework captures another stream: work on the legacy stream would run at once and be missing
    from the graph, without an error of the driver."""
    cdef int64_t stream
    cdef int k
    if len(LOADED) != load_acquire(&NUM_LOADED):
        meet_loaded()
    for k in range(1, load_acquire(&NUM_ORIGINS)):
        if k == chosen:   # which works on the legacy stream itself
            continue
        stream = current_stream_of(k, device)
        if stream != LEGACY_STREAM and dlfp4_cuda_is_capturing(device.device_id, stream):
            check_cuda(DLFP4_CUDA_CAPTURE_IMPLICIT,
                       f"the operation would run on the legacy default stream, where no operand comes from the "
                       f"framework that captures stream {stream}; give stream={stream}, or out= of that framework")
    return 0
