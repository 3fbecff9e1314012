# CUDA: the status of kernels, their image, stream objects, managed memory.

cdef inline bint on_cuda(Tensor self) noexcept nogil:
    return is_cuda(self.dl.device.device_type)


cdef int check_kernel(int status, str what) except -1:
    """The status of a kernel's launch: a description that it does not take, or the driver's error."""
    if status <= -DLFP4_CUDA_REFUSED:
        if -status - DLFP4_CUDA_REFUSED == DLFP4_E_SHAPE:
            raise BufferError(f"{what}: CUDA kernels do not take these shapes and strides: packed elements are written "
                              f"only to rows that start on bytes and have no gaps (give a .copy(), another out, or "
                              f"none), and a launch has at most 2**31 - 1 blocks of threads (work on parts)")
        raise TypeError(f"{what}: these element types have no such kernel (status {-status - DLFP4_CUDA_REFUSED})")
    return check_cuda(status, what)


cdef int load_kernels(int device, int image) except -1:
    """Load an image of kernels before its first launch on a device: the build's or, where that does not fit the device,
    NVRTC's of the same sources."""
    cdef int architecture = 0, status = DLFP4_CUDA_NO_IMAGE
    cdef bytes compiled
    if dlfp4_cuda_is_loaded(device, image):
        return 0
    if os.environ.get("DLFP4_CUDA_IMAGE") != "nvrtc":
        status = dlfp4_cuda_load(device, image, NULL)
    if dlfp4_cuda_is_unserved(status):
        check_cuda(dlfp4_cuda_architecture(device, &architecture), "asking for the compute capability")
        compiled = importlib.import_module("dlfp4.nvrtc").load_image(dlfp4_cuda_image_name(image).decode(),
                                                                     str(architecture))
        status = dlfp4_cuda_load(device, image, <const char *> compiled)
    check_cuda(status, f"loading the CUDA kernels of cuda:{device}")
    return 0


cdef int check_stream(int64_t stream, Tensor source) except -1:
    """ValueError for a stream of another device, whose kernels would read invalid addresses."""
    cdef int device = source.dl.device.device_id
    if stream <= PER_THREAD_STREAM:   # these exist on every device
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
    """The handle of a stream object. The object is remembered, weakly: it may own the stream."""
    if hasattr(stream, "cuda_stream"):   # PyTorch's objects own no stream and take no weak references
        return stream.cuda_stream
    if not hasattr(stream, "__cuda_stream__"):
        return stream
    handle = stream.__cuda_stream__()[1]   # of cuda.core, CuPy and others: (version, handle)
    if PyType_SUPPORTS_WEAKREFS(Py_TYPE(stream)):
        STREAM_OBJECTS[handle] = weakref.ref(stream)
    return handle


cdef PyObject *retain_stream(int64_t stream) except? NULL:
    """A reference to the object of a stream, if there is one. Memory is still to be freed on the stream, which may end
    with its object, and the driver crashes on a stream that is gone."""
    if stream <= PER_THREAD_STREAM or not STREAM_OBJECTS:
        return NULL
    known = look_up(STREAM_OBJECTS, stream)
    kept = None if known is None else known()
    if kept is None:
        return NULL
    Py_INCREF(kept)
    return <PyObject *> kept


cdef Tensor place_managed(Tensor self, bint on_device):
    """Managed memory as memory of its device or, after a wait for its stream, of the host; other tensors unchanged."""
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


cdef int check_beside(Tensor result, Tensor source) except -1:
    """Whether the kernels that read `source` can write `result`."""
    if on_cuda(source):
        if not on_cuda(result) or result.dl.device.device_id != source.dl.device.device_id:
            raise BufferError(f"out lies on {device_of(result)}, the input on {device_of(source)}; give a tensor there")
    elif not host_readable(result.dl.device.device_type):
        raise BufferError(f"out lies on {device_of(result)}, which the CPU cannot write; give a tensor on the host")
    return 0


cdef bint is_aligned(Tensor self) noexcept nogil:
    """Whether the data is aligned to its element size, as GPU loads require."""
    return self.size_ == 0 or <uintptr_t> self.dl.data % max(1, self.dl.dtype.bits // 8) == 0


cdef int check_aligned(Tensor self, str name) except -1:
    """BufferError where CUDA kernels could not load the elements."""
    if on_cuda(self) and not is_aligned(self):
        raise BufferError(f"{name} of {dtype_name(self)} starts at address {<uintptr_t> self.dl.data:#x}, which is "
                          f"not a multiple of its element size; call .copy() first")
    return 0


def _is_captured(x, stream):
    """Whether an operation on `x` and a stream's handle is being captured in a graph, where times mean nothing."""
    return stream is not None and dlfp4_cuda_is_capturing(elements_of(x).dl.device.device_id, stream)


cdef enum:
    NO_DEVICE = 100   # CUDA_ERROR_NO_DEVICE, of a driver that sees none


def _cuda_capability(int index):
    """The compute capability of a CUDA device, as (major, minor)."""
    cdef int architecture = 0
    check_cuda(dlfp4_cuda_architecture(index, &architecture), "asking for the compute capability")
    return divmod(architecture, 10)


def _cuda_capability_if_any(int index):
    """The same, or None where there is no driver or no device; DriverError where the driver fails to say."""
    cdef int count = 0, status = dlfp4_cuda_device_count(&count)
    if status in (DLFP4_CUDA_MISSING, NO_DEVICE) or (status == 0 and count == 0):
        return None
    check_cuda(status, "counting the devices")
    return _cuda_capability(index)


def _cuda_device_name(int index):
    """The name of a CUDA device, as its driver tells it."""
    cdef char name[256]
    check_cuda(dlfp4_cuda_device_name(index, name, sizeof(name)), "asking for the name of a device")
    return name.decode()
