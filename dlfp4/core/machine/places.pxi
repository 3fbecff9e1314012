# Places: where an operation runs, the host or a stream of a CUDA device, and the one way in which kernels run there; of
# tensors without memory, nowhere.

cdef enum:
    RELEASE_GIL_FROM = 1 << 14   # elements; below, giving up the GIL costs more than it frees
    MOST_TOUCHED = 8   # products by experts read as many


cdef struct Place:
    int64_t stream   # NO_STREAM on the host
    int device
    int origin       # whose current stream that is, as the results shall know
    bint is_nowhere  # of outlines: no kernel runs, and results are outlines


cdef struct Touched:   # the memory of a kernel; the Tensors are borrowed from the function that runs it
    int num_read, num_written
    int num_ready   # of those read, the first, that no stream is still writing
    PyObject *read[MOST_TOUCHED]
    PyObject *written[MOST_TOUCHED]


# What runs: on the host, or launched on a device's stream. `call` has the operation's own arguments.
ctypedef int (*Kernel)(const Place *place, void *call) noexcept nogil

cdef Place ON_HOST = Place(NO_STREAM, 0, NO_ORIGIN, False)


cdef inline bint is_host(const Place *place) noexcept nogil:
    return place.stream == NO_STREAM


cdef inline void touch_nothing(Touched *touched) noexcept:
    touched.num_read = touched.num_written = touched.num_ready = 0


cdef inline void reads(Touched *touched, Tensor part) noexcept:
    if part is not None:
        touched.read[touched.num_read] = <PyObject *> part
        touched.num_read += 1


cdef inline void reads_ready(Touched *touched, Tensor part) noexcept:
    """What has been waited for and never changes, such as prepared weights: to be named before all others."""
    reads(touched, part)
    touched.num_ready = touched.num_read


cdef inline void writes(Touched *touched, Tensor part) noexcept:
    if part is not None:
        touched.written[touched.num_written] = <PyObject *> part
        touched.num_written += 1


cdef int run_on(const Place *place, const Touched *touched, Kernel kernel, int image, void *call,
                int64_t elements) except? -1:
    """Run a kernel where `place` says, and return its status.

    The host gives up the GIL for large tensors. A device loads the kernel's image if it lacks that. Its stream waits
    for all that is touched; what is read is kept until the kernel has ended, and work on the results' own streams waits
    for it.
    """
    cdef int status
    if place.is_nowhere:
        return 0
    if is_host(place):
        if elements < RELEASE_GIL_FROM:
            return kernel(place, call)
        with nogil:
            status = kernel(place, call)
        return status
    load_kernels(place.device, image)
    wait_for_all(touched, place.stream)
    status = kernel(place, call)
    if status == 0:
        settle_all(touched, place.stream)
    return status


cdef int check_run(const Place *place, int status, str what) except -1:
    """The status that run_on returned. Callers ask only where it is not 0: the message costs a tenth of a call."""
    if status == 0:
        return 0
    if is_host(place):
        raise RuntimeError(f"{what}: the kernel refused the description it was given (status {status})")
    return check_kernel(status, what)


# ---- Where

cdef Place place_of(Tensor source) noexcept:
    """Where a tensor was made."""
    return Place(source.stream if on_cuda(source) else NO_STREAM, source.dl.device.device_id, source.origin,
                 is_outline(source))


cdef Place place_for(Tensor source, stream, x, y=None, z=None) except *:
    """Where an operation on `source` runs: on the stream given, else on the current one of the framework that calls,
    known by the operands x, y and z, else where the data is made."""
    cdef Place place = ON_HOST
    if on_cuda(source):
        return place_on_cuda(source, stream, x, y, z)
    if stream is not None:
        refuse_stream(stream)
    place.is_nowhere = is_outline(source)
    return place


cdef int refuse_stream(stream) except -1:
    raise ValueError(f"stream={stream!r}: host memory has no streams; pass None")


cdef Place place_on_cuda(Tensor source, stream, x, y, z) except *:
    """Where an operation on memory of a device runs."""
    cdef Place place = place_of(source)
    if place.is_nowhere:   # no driver is asked, which need not be here
        return place
    place.origin = choose_origin(x, y, z)
    if stream is not None:
        place.stream = parse_handle(stream if type(stream) is int else handle_of(stream))
        if place.stream != source.stream:
            check_stream(place.stream, source)
    elif place.origin != NO_ORIGIN:
        place.stream = current_stream_of(place.origin, source.dl.device)
    if place.stream == LEGACY_STREAM:
        check_capture(source.dl.device, place.origin if stream is None else NO_ORIGIN)
    return place


class UnscaledWarning(UserWarning):
    """FP8 of a checkpoint was joined to no scales, although there are some: as a matrix it has wrong values."""

    __module__ = "dlfp4.checkpoints"


def _as_unscaled(Tensor self):
    """The same memory, of which, and of whose views and copies, products warn."""
    cdef Tensor marked = share(self)
    marked.unscaled = True
    return marked


cdef int tell_unscaled(a, b, int level) except -1:
    """Warn of operands that are marked so; `level` tells whose line does the product."""
    if is_unscaled(a) or is_unscaled(b):
        warnings.warn("a product of FP8 whose scales were left in its checkpoint multiplies it as it is; make a "
                      "ScaledTensor of both by ScaledTensor.from_parts, or cast what has no scale",
                      UnscaledWarning, stacklevel=level)
    return 0


cdef inline bint is_unscaled(x):
    return type(x) is Tensor and (<Tensor> x).unscaled


def _stream_of_product(a, b, given, stream):
    """The handle of a matrix product's stream, None on the host; `given` has the operands and `out` as they came."""
    cdef Tensor source = elements_of(a) if on_cuda(elements_of(a)) else elements_of(b)
    cdef Place place
    tell_unscaled(a, b, 2)
    if on_cuda(source):
        x, y, z = given
        place = place_on_cuda(source, stream, x, y, z)
        return place.stream
    if stream is not None:
        refuse_stream(stream)
    return None


cdef Tensor allocate_on(const Place *place, int row, int ndim, const int64_t *shape, bint padded):
    """Memory for a result where an operation runs."""
    cdef DLDevice device = CPU
    if not is_host(place):
        device.device_type = kDLCUDA
        device.device_id = place.device
    if place.is_nowhere:
        return outline(row, ndim, shape, padded, device)
    if is_host(place):
        return allocate(row, ndim, shape, padded, device)
    return allocate(row, ndim, shape, padded, device, place.stream, place.origin)


# ---- The order of streams

cdef int wait_for_all(const Touched *touched, int64_t stream) except -1:
    """Let work on `stream` start after that on which the parts are made, which often is the same."""
    cdef int64_t waited = stream
    cdef Tensor part
    cdef int k
    for k in range(touched.num_ready, touched.num_read + touched.num_written):
        part = <Tensor> (touched.read[k] if k < touched.num_read else touched.written[k - touched.num_read])
        if part.stream != waited:
            wait_for(part, stream)
            waited = part.stream
    return 0


cdef int settle_all(const Touched *touched, int64_t stream) except -1:
    """After a launch on `stream`; parts that share memory share its uses."""
    cdef Tensor base, last = None
    cdef int k
    for k in range(touched.num_read):
        base = base_of(<Tensor> touched.read[k])
        if base is not last:
            used_on(base, stream)
        last = base
    for k in range(touched.num_written):
        order_behind(<Tensor> touched.written[k], stream)
    return 0


cdef int wait_for(Tensor source, int64_t stream) except -1:
    """Let work on `stream` start after the one on which a tensor's data is made."""
    cdef int status
    if stream == source.stream:
        return 0
    status = dlfp4_cuda_order(source.dl.device.device_id, source.stream, stream)
    if status != 0:   # the message would cost more than the call
        check_cuda(status, f"making stream {stream} wait for stream {source.stream}")
    return 0


cdef int used_on(Tensor self, int64_t stream) except -1:
    """Our own memory is freed in the order of one stream: keep it until work on another has ended that used it."""
    cdef Tensor base = base_of(self)
    cdef int status
    if base.owner_kind != OWNER_CUDA or base.stream == stream:
        return 0
    with cython.critical_section(base):
        status = dlfp4_cuda_add_use(base.dl.device.device_id, &base.uses, stream)
    if status != 0:
        check_cuda(status, f"keeping memory for stream {stream}")
    return 0


cdef inline Tensor base_of(Tensor self):
    """The Tensor whose memory a view shares."""
    if self.owner_kind == OWNER_OBJECT and type(<object> self.owner) is Tensor:
        return <Tensor> self.owner
    return self


cdef int order_behind(Tensor result, int64_t stream) except -1:
    """Let work on a result's own stream start after a write on `stream`. The memory is then freed after the write as
    well, unless it is freed in the order of a third stream, which is told."""
    if stream != result.stream:
        check_cuda(dlfp4_cuda_order(result.dl.device.device_id, stream, result.stream), "ordering two streams")
    return 0 if base_of(result).stream == result.stream else used_on(result, stream)


def _written_on(Tensor result, stream):
    """Order a result behind another library's write on a stream of its own."""
    order_behind(result, parse_handle(stream))
