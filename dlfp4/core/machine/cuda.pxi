# Operations on CUDA memory: the same descriptions as on the host, handed to the kernels of the device, on a stream.

cdef inline bint on_cuda(Tensor self) noexcept nogil:
    return is_cuda(self.dl.device.device_type)


cdef int check_kernel(int status, str what) except -1:
    """The status of a kernel's launch: a description that it does not take, or the driver's error."""
    if status <= -DLFP4_CUDA_REFUSED:
        if -status - DLFP4_CUDA_REFUSED == DLFP4_E_SHAPE:
            raise BufferError(f"{what}: CUDA kernels have no way to this layout; packed elements are written only to "
                              f"rows that start on bytes and have no gaps: give a .copy(), another out, or none")
        raise TypeError(f"{what}: these element types have no such kernel (status {-status - DLFP4_CUDA_REFUSED})")
    return check_cuda(status, what)


# Statuses that say: the image has nothing for this device, or only PTX that the driver cannot compile.
# NO_BINARY_FOR_GPU, INVALID_PTX, JIT_COMPILER_NOT_FOUND, UNSUPPORTED_PTX_VERSION, JIT_COMPILATION_DISABLED
cdef tuple UNSERVED = (DLFP4_CUDA_NO_IMAGE, 209, 218, 221, 222, 223)


cdef int load_kernels(int device, int image) except -1:
    """Load an image of kernels on a device, before its first launch there: the build's, or, where that does not serve
    the device, what NVRTC makes of the same sources."""
    cdef int architecture = 0, status = DLFP4_CUDA_NO_IMAGE
    cdef bytes compiled
    if dlfp4_cuda_is_loaded(device, image):
        return 0
    if os.environ.get("DLFP4_CUDA_IMAGE") != "nvrtc":
        status = dlfp4_cuda_load(device, image, NULL)
    if status in UNSERVED:
        check_cuda(dlfp4_cuda_architecture(device, &architecture), "asking for the compute capability")
        compiled = importlib.import_module("dlfp4.nvrtc").load_image(dlfp4_cuda_image_name(image).decode(),
                                                                     str(architecture))
        status = dlfp4_cuda_load(device, image, <const char *> compiled)
    check_cuda(status, f"loading the CUDA kernels of cuda:{device}")
    return 0


cdef struct Work:        # where an operation runs
    int64_t stream       # NO_STREAM on the host
    int origin           # whose current stream that is, as its results shall know


cdef inline Work work_of(Tensor source) noexcept:
    """Where a tensor was made."""
    return Work(source.stream if on_cuda(source) else NO_STREAM, source.origin)


cdef Work work_for(Tensor source, stream, x, y=None, z=None) except *:
    """Where an operation on `source` runs: on the stream given, else on the current one of the framework that calls,
    known by the operands x, y and z, else where the data is made. The stream then waits for the data."""
    cdef Work work = Work(NO_STREAM, NO_ORIGIN)
    if on_cuda(source):
        work = work_on_cuda(source, stream, x, y, z)
        if work.stream != source.stream:
            wait_for(source, work.stream)
    elif stream is not None:
        refuse_stream(stream)
    return work


cdef int refuse_stream(stream) except -1:
    raise ValueError(f"stream={stream!r}: host memory has no streams; pass None")


cdef Work work_on_cuda(Tensor source, stream, x, y, z) except *:
    """The same for memory of a device, without waiting."""
    cdef Work work = Work(source.stream, choose_origin(x, y, z))
    if stream is not None:
        work.stream = parse_handle(stream if type(stream) is int else handle_of(stream))
        if work.stream != source.stream:
            check_stream(work.stream, source)
    elif work.origin != NO_ORIGIN:
        work.stream = current_stream_of(work.origin, source.dl.device)
    if work.stream == LEGACY_STREAM:
        check_capture(source.dl.device, work.origin if stream is None else NO_ORIGIN)
    return work


def _stream_of_product(a, b, given, stream):
    """The handle of a matrix product's stream, None on the host; `given` has the operands and `out` as they came."""
    cdef Tensor source = elements_of(a) if on_cuda(elements_of(a)) else elements_of(b)
    cdef Work work
    if on_cuda(source):
        x, y, z = given
        work = work_on_cuda(source, stream, x, y, z)
        return work.stream
    if stream is not None:
        refuse_stream(stream)
    return None


cdef int check_stream(int64_t stream, Tensor source) except -1:
    """ValueError for a stream of another device, where kernels would read outside of their memory."""
    cdef int device = source.dl.device.device_id
    if stream <= PER_THREAD_STREAM:   # of the device that is current
        return 0
    place = dlfp4_cuda_device_of_stream(device, stream)
    if place != device:
        raise ValueError(f"stream={stream}: a stream of cuda:{place}, and the data lies on {device_of(source)}; "
                         f"pass a stream of cuda:{device}")
    return 0


cdef int64_t parse_handle(handle) except -1:
    """The handle of a CUDA stream, as the driver takes it."""
    number = parse_integer(handle, "stream")
    if not 0 <= number <= INT64_MAX:
        raise ValueError(f"stream={number}: expected the handle of a stream, 0 or more")
    return number or LEGACY_STREAM


cdef dict STREAM_OBJECTS = {}   # by handle: a weak reference to the object that was last given for it


cdef object handle_of(stream):
    """The handle of a stream object, which is remembered where it may own its stream."""
    if hasattr(stream, "cuda_stream"):   # PyTorch's own none, and do not bear weak references
        return stream.cuda_stream
    if not hasattr(stream, "__cuda_stream__"):
        return stream
    handle = stream.__cuda_stream__()[1]   # of cuda.core, CuPy and others: (version, handle)
    if PyType_SUPPORTS_WEAKREFS(Py_TYPE(stream)):
        STREAM_OBJECTS[handle] = weakref.ref(stream)
    return handle


cdef PyObject *keep_stream(int64_t stream) except? NULL:
    """A reference to the object of a stream, if there is one: its end may destroy the stream, on which memory is still
    to be freed, and the driver does not survive a stream that is gone."""
    if stream <= PER_THREAD_STREAM or not STREAM_OBJECTS:
        return NULL
    known = look_up(STREAM_OBJECTS, stream)
    kept = None if known is None else known()
    if kept is None:
        return NULL
    Py_INCREF(kept)
    return <PyObject *> kept


cdef int wait_for(Tensor source, int64_t stream) except -1:
    """Let work on `stream` start after the one on which a tensor's data is made."""
    cdef int status
    if stream == source.stream:
        return 0
    status = dlfp4_cuda_order(source.dl.device.device_id, source.stream, stream)
    if status != 0:   # as everywhere on this way, messages are made of failures alone
        check_cuda(status, f"making stream {stream} wait for stream {source.stream}")
    return 0


cdef int used_on(Tensor self, int64_t stream) except -1:
    """Memory of our own is freed in the order of one stream: keep it for what others hold that read or wrote it."""
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


cdef Tensor place_managed(Tensor self, bint on_device):
    """Managed memory as its device's, or as the host's after the work on its stream; other tensors as they are."""
    cdef Tensor view
    cdef int status
    if self is None or self.dl.device.device_type != kDLCUDAManaged:
        return self
    view = share(self)
    if on_device:
        view.dl.device.device_type = kDLCUDA
    else:
        with nogil:
            status = dlfp4_cuda_wait(self.dl.device.device_id, self.stream)
        check_cuda(status, "waiting for managed memory")
        view.dl.device = CPU
    return view


cdef Tensor allocate_beside(Tensor source, int row, int ndim, const int64_t *shape, bint padded, Work work):
    """Memory for a result where an operation on `source` runs."""
    cdef DLDevice device
    if not on_cuda(source):
        return allocate(row, ndim, shape, padded, CPU)
    device.device_type = kDLCUDA
    device.device_id = source.dl.device.device_id
    return allocate(row, ndim, shape, padded, device, work.stream, work.origin)


cdef int check_beside(Tensor result, Tensor source) except -1:
    """Whether the kernels that read `source` can write `result`."""
    if on_cuda(source):
        if not on_cuda(result) or result.dl.device.device_id != source.dl.device.device_id:
            raise BufferError(f"out lies on {device_of(result)}, the input on {device_of(source)}; give a tensor there")
    elif not host_readable(result.dl.device.device_type):
        raise BufferError(f"out lies on {device_of(result)}, which the CPU cannot write; give a tensor on the host")
    return 0


cdef bint is_aligned(Tensor self) noexcept nogil:
    """Whether elements start on multiples of their size, without which a GPU reads none whole."""
    return self.size_ == 0 or <uintptr_t> self.dl.data % max(1, self.dl.dtype.bits // 8) == 0


cdef int check_aligned(Tensor self, str name) except -1:
    """For what CUDA kernels read whole: the scales of a tensor."""
    if on_cuda(self) and not is_aligned(self):
        raise BufferError(f"{name} of {dtype_name(self)} starts at address {<uintptr_t> self.dl.data:#x}, no multiple "
                          f"of its element size; call .copy() first")
    return 0


cdef int convert_on_cuda(Tensor source, Tensor result, const dlfp4_convert_options *options, int64_t stream) except -1:
    cdef dlfp4_view src = view_of(source), dst = view_of(result)
    cdef int status
    load_kernels(source.dl.device.device_id, DLFP4_CUDA_IMAGE_codecs)
    wait_for(result, stream)
    status = dlfp4_cuda_convert(source.dl.device.device_id, stream, &src, &dst, options)
    if status != 0:   # the message alone would cost a tenth of the call
        check_kernel(status, f"converting {dtype_name(source)} to {dtype_name(result)}")
    used_on(source, stream)
    return hand_back(result, stream)


cdef int hand_back(Tensor result, int64_t stream) except -1:
    """Let work on a result's own stream start after what was written on another; its memory is then freed after that,
    too, unless that is done in the order of a third."""
    if stream != result.stream:
        check_cuda(dlfp4_cuda_order(result.dl.device.device_id, stream, result.stream), "ordering two streams")
    return 0 if base_of(result).stream == result.stream else used_on(result, stream)


def _written_on(Tensor result, stream):
    """The same after another library's work on a stream of its own."""
    hand_back(result, parse_handle(stream))


def _is_captured(x, stream):
    """Whether an operation on `x` and a stream's handle goes into a graph, in which nothing can be measured."""
    return stream is not None and dlfp4_cuda_is_capturing(elements_of(x).dl.device.device_id, stream)


def _cuda_capability(int index):
    """The compute capability of a CUDA device, as (major, minor)."""
    cdef int architecture = 0
    check_cuda(dlfp4_cuda_architecture(index, &architecture), "asking for the compute capability")
    return divmod(architecture, 10)


def _cuda_device_name(int index):
    """The name of a CUDA device, as its driver tells it."""
    cdef char name[256]
    check_cuda(dlfp4_cuda_device_name(index, name, sizeof(name)), "asking for the name of a device")
    return name.decode()
