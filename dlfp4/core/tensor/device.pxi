# Devices and streams: the names of DLPack's device types, what the host may read, how stream arguments are parsed.

cdef dict DEVICE_NAMES = {
    kDLCPU: "cpu", kDLCUDA: "cuda", kDLCUDAHost: "cuda_host", kDLOpenCL: "opencl", kDLVulkan: "vulkan",
    kDLMetal: "metal", kDLVPI: "vpi", kDLROCM: "rocm", kDLROCMHost: "rocm_host", kDLExtDev: "ext_dev",
    kDLCUDAManaged: "cuda_managed", kDLOneAPI: "oneapi", kDLWebGPU: "webgpu", kDLHexagon: "hexagon",
    kDLMAIA: "maia", kDLTrn: "trn", kDLTPU: "tpu", kDLTPUHost: "tpu_host", kDLAscend: "ascend",
}
cdef dict DEVICE_CODES = {name: code for code, name in DEVICE_NAMES.items()}
# A process sees one device of these types, so that they need no index.
cdef frozenset SINGLE_DEVICES = frozenset(("cpu", "cuda_host", "cuda_managed", "rocm_host", "tpu_host"))

cdef enum:
    LEGACY_STREAM = 1
    PER_THREAD_STREAM = 2
    NO_STREAM = -1
    MOST_INDEX = 0x7FFFFFFF   # of a device, in DLPack


class DriverError(RuntimeError):
    """A call of the CUDA driver failed; the message holds its name and number."""


# What others call devices, and DLPack's names of them; "" where it has none. They are not misspelt.
cdef dict OTHER_NAMES = {
    "gpu": "cuda", "hip": "rocm", "host": "cpu", "mps": "metal", "mtia": "", "npu": "ascend", "xpu": "oneapi",
}


cdef str remedy_of_device(str type):
    """What the caller may have meant by a name that is no device type of DLPack's."""
    if type == "meta":
        return "; PyTorch's 'meta' has no memory: name the device that the tensor is meant for, such as 'cpu'"
    if type not in OTHER_NAMES:
        return did_you_mean(type, DEVICE_CODES)
    name = OTHER_NAMES[type]
    return f"; DLPack's name is {name!r}" if name else ""


@cython.final
cdef class Device:
    """Where a tensor lies: DLPack's device type and the index of the device.

    ``str(device)`` is ``"cpu"``, ``"cuda:0"``, ``"cuda_host"``, ... A device equals its string and its DLPack pair,
    but does not share their hashes: in a dictionary only a Device finds it. ``Device("cuda:1")`` equals
    ``Device("cuda", 1)``.
    """
    cdef readonly str type
    cdef readonly int index
    cdef int code

    def __cinit__(self, type, index=None):   # once: a Device never changes
        if not isinstance(type, str):
            raise TypeError(f"device type {type!r} is of type {type.__class__.__name__}; expected a string such as "
                            f"'cpu' or 'cuda:0'")
        if index is None:
            index = 0
            name, colon, digits = type.partition(":")
            if colon and digits.isdecimal():
                type, index = name, int(digits)
        if type not in DEVICE_CODES:
            raise ValueError(f"device type {type!r} is unknown; expected one of {', '.join(DEVICE_CODES)}; with an "
                             f"index 'cuda:0', or Device('cuda', 0){remedy_of_device(type)}")
        number = parse_integer(index, "index")
        if not 0 <= number <= MOST_INDEX:
            raise ValueError(f"device index {number} of {type!r}: expected 0 to {MOST_INDEX}")
        self.type = type
        self.index = number
        self.code = DEVICE_CODES[type]

    def __str__(self):
        return self.type if self.index == 0 and self.type in SINGLE_DEVICES else f"{self.type}:{self.index}"

    def __repr__(self):
        return f"Device({str(self)!r})"

    def __eq__(self, other):
        if isinstance(other, Device):
            return self.code == (<Device>other).code and self.index == (<Device>other).index
        if isinstance(other, (str, tuple)):
            try:
                return self == parse_device(other)
            except (ValueError, TypeError):
                return False
        return NotImplemented

    def __hash__(self):
        return hash((self.code, self.index))

    def __reduce__(self):
        return Device, (self.type, self.index)


cdef Device HOST = Device("cpu")


cdef Device device_from_dlpack(DLDevice device):
    if device.device_type == kDLCPU and device.device_id == 0:
        return HOST
    return Device(DEVICE_NAMES[device.device_type], device.device_id)


cdef tuple read_pair(pair):
    """DLPack's (type, id) as integers, or None where `pair` is no such pair. Types may be members of an enumeration; an
    id of None, which PaddlePaddle gives, counts as 0."""
    if not isinstance(pair, tuple) or len(pair) != 2 or isinstance(pair[0], str) or isinstance(pair[1], str):
        return None
    if not PyIndex_Check(pair[0]) or not (pair[1] is None or PyIndex_Check(pair[1])):
        return None
    return PyNumber_Index(pair[0]), 0 if pair[1] is None else PyNumber_Index(pair[1])


cdef Device parse_pair(pair):
    """A DLPack pair as a Device."""
    numbers = read_pair(pair)
    if numbers is None:
        raise TypeError(f"device {pair!r}: expected a DLPack pair of integers, (type, id), or a string such as "
                        f"'cuda:0'")
    code, index = numbers
    if code not in DEVICE_NAMES:
        known = ", ".join([f"{each} ({name})" for each, name in DEVICE_NAMES.items()])
        raise ValueError(f"DLPack device type {code} is unknown; expected one of {known}")
    return Device(DEVICE_NAMES[code], index)


cdef Device parse_device(device):
    """A device argument: a Device, "cpu", "cuda:1", a framework's device, or DLPack's (type, id) pair."""
    if isinstance(device, Device):
        return device
    if isinstance(device, str) and device == "cpu":
        return HOST
    if isinstance(device, tuple):
        return parse_pair(device)
    if isinstance(device, str):
        return Device(str(device))
    framework = frameworks.of_type(type(device))
    if framework is None or framework.device_name is None:
        raise TypeError(f"device {device!r} is of type {type(device).__name__}; expected a string such as 'cpu' or "
                        "'cuda:0', or a DLPack pair (type, id)")
    return Device(framework.device_name(device))


def _parse_device(device):
    """A device argument as the Device."""
    return parse_device(device)


cdef inline bint is_device_type(int32_t code) noexcept nogil:
    return kDLCPU <= code <= kDLAscend and code != 5 and code != 6   # 5 and 6 were never given out


cdef inline bint host_readable(int32_t device_type) noexcept nogil:
    """Whether the CPU may read the memory at its address, without a driver and without synchronising."""
    return (device_type == kDLCPU or device_type == kDLCUDAHost or device_type == kDLROCMHost
            or device_type == kDLTPUHost)


cdef inline bint is_cuda(int32_t device_type) noexcept nogil:
    return device_type == kDLCUDA or device_type == kDLCUDAManaged


# The same by name, for dlfp4's Python files.
_ON_HOST = tuple([name for name, code in DEVICE_CODES.items() if host_readable(code)])
_ON_CUDA = tuple([name for name, code in DEVICE_CODES.items() if is_cuda(code)])


cdef int check_cuda(int status, str what) except -1:
    if status != 0:
        raise DriverError(f"{what}: {dlfp4_cuda_error_name(status).decode()} ({status})")
    return 0


cdef int64_t parse_stream(stream, DLDevice device) except? -2:
    """A consumer's stream by the rules of the array API; NO_STREAM where nothing needs ordering."""
    cdef int64_t value
    if stream is not None and (isinstance(stream, bool) or not PyIndex_Check(stream)):
        raise TypeError(f"stream={stream!r}: expected None or an integer")
    number = NO_STREAM if stream is None else parse_integer(stream, "stream")
    if not NO_STREAM <= number <= INT64_MAX:
        raise ValueError(f"stream={stream}: expected None, -1 or a stream handle")
    value = number
    if is_cuda(device.device_type):
        if value == 0:
            raise ValueError("stream=0 is ambiguous on CUDA: pass 1 for the legacy default stream, "
                             "2 for the per-thread default stream, or a handle")
        return LEGACY_STREAM if stream is None else value
    if device.device_type == kDLROCM and value in (1, 2):
        raise ValueError(f"stream={value} has no meaning on ROCm: pass 0 for the default stream, or a handle")
    if host_readable(device.device_type) and value != NO_STREAM:
        raise ValueError(f"stream={stream}: host memory has no streams; pass None")
    return value
