"""DLPack 1.3 in ctypes: a mirror of the ABI, a factory of capsules (honest or hostile) that counts deleter calls,
producers that behave and misbehave, a reader of other people's capsules, and a model of strided sub-byte memory.

Nothing here knows dlfp4: what it makes can be given to any consumer.
"""

import contextlib
import ctypes
import itertools
import operator
import os
import subprocess
import sys
import threading
import warnings
import weakref
from ctypes import (
    CFUNCTYPE,
    POINTER,
    PYFUNCTYPE,
    Structure,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_uint32,
    c_void_p,
    py_object,
)
from ctypes import pythonapi as capi

import ml_dtypes
import numpy as np

# ---- the ABI ------------------------------------------------------------------------------------------------------

READ_ONLY, IS_COPIED, PADDED = 1, 2, 4
LEGACY, VERSIONED = b"dltensor", b"dltensor_versioned"

DEVICES = {
    "cpu": 1, "cuda": 2, "cuda_host": 3, "opencl": 4, "vulkan": 7, "metal": 8, "vpi": 9, "rocm": 10, "rocm_host": 11,
    "ext_dev": 12, "cuda_managed": 13, "oneapi": 14, "webgpu": 15, "hexagon": 16, "maia": 17, "trn": 18, "tpu": 19,
    "tpu_host": 20, "ascend": 21,
}  # fmt: skip

# name: (DLPack code, bits)
DTYPES = {
    "bool": (6, 8), "int8": (0, 8), "int16": (0, 16), "int32": (0, 32), "int64": (0, 64),
    "uint8": (1, 8), "uint16": (1, 16), "uint32": (1, 32), "uint64": (1, 64),
    "float16": (2, 16), "float32": (2, 32), "float64": (2, 64), "bfloat16": (4, 16),
    "complex64": (5, 64), "complex128": (5, 128), "bcomplex32": (18, 32),
    "float8_e3m4": (7, 8), "float8_e4m3": (8, 8), "float8_e4m3b11fnuz": (9, 8), "float8_e4m3fn": (10, 8),
    "float8_e4m3fnuz": (11, 8), "float8_e5m2": (12, 8), "float8_e5m2fnuz": (13, 8), "float8_e8m0fnu": (14, 8),
    "float6_e2m3fn": (15, 6), "float6_e3m2fn": (16, 6), "float4_e2m1fn": (17, 4), "int4": (0, 4), "uint4": (1, 4),
}  # fmt: skip
if not hasattr(ml_dtypes, "bcomplex32"):  # older than 0.6
    del DTYPES["bcomplex32"]
SUBBYTE = [name for name, (_, bits) in DTYPES.items() if bits < 8]


class DLPackVersion(Structure):
    _fields_ = [("major", c_uint32), ("minor", c_uint32)]


class DLDevice(Structure):
    _fields_ = [("device_type", c_int32), ("device_id", c_int32)]


class DLDataType(Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class DLTensor(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device", DLDevice),
        ("ndim", c_int32),
        ("dtype", DLDataType),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class DLManagedTensor(Structure):
    _fields_ = [("dl_tensor", DLTensor), ("manager_ctx", c_void_p), ("deleter", c_void_p)]


class DLManagedTensorVersioned(Structure):
    _fields_ = [
        ("version", DLPackVersion),
        ("manager_ctx", c_void_p),
        ("deleter", c_void_p),
        ("flags", ctypes.c_uint64),
        ("dl_tensor", DLTensor),
    ]


class DLPackExchangeAPIHeader(Structure):
    _fields_ = [("version", DLPackVersion), ("prev_api", c_void_p)]


SetError = CFUNCTYPE(None, c_void_p, c_char_p, c_char_p)
# PYFUNCTYPE keeps the GIL during the call and raises the Python exception that a -1 comes with.
Allocator = PYFUNCTYPE(c_int, POINTER(DLTensor), POINTER(c_void_p), c_void_p, SetError)
FromPyObject = PYFUNCTYPE(c_int, py_object, POINTER(c_void_p))
ToPyObject = PYFUNCTYPE(c_int, c_void_p, POINTER(c_void_p))
BorrowPyObject = PYFUNCTYPE(c_int, py_object, POINTER(DLTensor))
WorkStream = PYFUNCTYPE(c_int, c_int32, c_int32, POINTER(c_void_p))


class DLPackExchangeAPI(Structure):
    _fields_ = [
        ("header", DLPackExchangeAPIHeader),
        ("managed_tensor_allocator", Allocator),
        ("managed_tensor_from_py_object_no_sync", FromPyObject),
        ("managed_tensor_to_py_object_no_sync", ToPyObject),
        ("dltensor_from_py_object_no_sync", BorrowPyObject),
        ("current_work_stream", WorkStream),
    ]


Deleter = CFUNCTYPE(None, c_void_p)  # a foreign call: ctypes lets go of the GIL around it

# ---- PyCapsule ----------------------------------------------------------------------------------------------------
# Own prototypes, so that nobody else's argtypes on the shared `pythonapi` functions get in the way. The destructor
# sees a capsule whose reference count is 0, which must never become a py_object: hence the c_void_p variants.


def _prototype(name, restype, *argtypes):
    return PYFUNCTYPE(restype, *argtypes)((name, capi))


_new = _prototype("PyCapsule_New", py_object, c_void_p, c_char_p, c_void_p)
_name = _prototype("PyCapsule_GetName", c_char_p, py_object)
_name_address = _prototype("PyCapsule_GetName", c_void_p, py_object)
_pointer = _prototype("PyCapsule_GetPointer", c_void_p, py_object, c_char_p)
_set_name = _prototype("PyCapsule_SetName", c_int, py_object, c_char_p)
_dying_name = _prototype("PyCapsule_GetName", c_char_p, c_void_p)
_dying_pointer = _prototype("PyCapsule_GetPointer", c_void_p, c_void_p, c_char_p)
_immortal = _prototype("Py_IncRef", None, py_object)

_NAMES: dict[bytes, bytes] = {}  # a capsule keeps the pointer to its name only: names live for ever


def _static(name):
    return None if name is None else _NAMES.setdefault(name, name)


def capsule_name(capsule):
    return _name(capsule)


def capsule_name_address(capsule):
    return _name_address(capsule)


def rename(capsule, name):
    _set_name(capsule, _static(name))


# ---- the factory --------------------------------------------------------------------------------------------------

_LIVE: dict[int, "Made"] = {}  # keeps the memory until the deleter has run, whatever the test drops
_ALL: "weakref.WeakValueDictionary[int, Made]" = weakref.WeakValueDictionary()  # by token, to count a second call
_BY_ADDRESS: "weakref.WeakValueDictionary[int, Made]" = weakref.WeakValueDictionary()
_TOKENS = itertools.count(1)
STRAY: list[int] = []  # deleter calls for memory that nobody knows any more


def _deleted(token):
    made = _LIVE.pop(token, None) or _ALL.get(token)
    if made is None:
        STRAY.append(token)
    else:
        made.deletes.append(token)


@Deleter
def _delete_legacy(address):
    if _deleted is not None:  # else the interpreter is clearing this module
        _deleted(DLManagedTensor.from_address(address).manager_ctx)


@Deleter
def _delete_versioned(address):
    if _deleted is not None:
        _deleted(DLManagedTensorVersioned.from_address(address).manager_ctx)


@Deleter
def _destroy(capsule):
    if _dying_name is None:
        return
    name = _dying_name(capsule)
    address = _dying_pointer(capsule, name)
    made = _BY_ADDRESS.get(address)
    consumed = name is not None and name.startswith(b"used_")
    if made is None:
        STRAY.extend([] if consumed else [address])
    elif made.struct.deleter and not consumed:
        Deleter(made.struct.deleter)(address)
    elif name == made.first_name or not made.struct.deleter:
        _LIVE.pop(made.token, None)  # nobody will ever call a deleter: let go of the memory


for _callback in (_delete_legacy, _delete_versioned, _destroy):
    _immortal(_callback)  # a capsule may die after this module

AUTO = type("AUTO", (), {"__repr__": lambda self: "AUTO"})()


def _int64s(value, keep):
    """A tuple becomes an array, None NULL, an int that very address."""
    if value is None:
        return POINTER(c_int64)()
    if isinstance(value, int):
        return ctypes.cast(value, POINTER(c_int64))
    array = (c_int64 * max(len(value), 1))(*value)
    keep.append(array)
    return ctypes.cast(array, POINTER(c_int64))


class Made:
    """A capsule over `memory`, with every field settable; `deletes` grows by one for each call of the deleter.

    `capsule` is kept here until `drop()`, so that the capsule's own destructor never runs with an exception in flight.
    A `shape` or `strides` of None is NULL, an int is an address; so is `data`. `name` may be any bytes, or None.
    """

    def __init__(
        self, memory=AUTO, *, versioned=True, name=AUTO, dtype=AUTO, code=AUTO, bits=AUTO, lanes=1, shape=AUTO,
        strides=AUTO, ndim=AUTO, data=AUTO, byte_offset=0, device=(1, 0), flags=0, version=(1, 3), deleter=True,
    ):  # fmt: skip
        self.memory = random_array((4,)) if memory is AUTO else memory
        self.token = next(_TOKENS)
        self.deletes: list[int] = []
        self.keep: list[object] = []
        shape = self.memory.shape if shape is AUTO else shape
        if strides is AUTO:
            own = isinstance(shape, tuple) and shape == self.memory.shape
            strides = tuple(s // self.memory.itemsize for s in self.memory.strides) if own else compact(shape)
        known = DTYPES.get(self.memory.dtype.name if dtype is AUTO else dtype, (2, 32))
        self.struct = DLManagedTensorVersioned() if versioned else DLManagedTensor()
        tensor = self.struct.dl_tensor
        tensor.data = self.memory.ctypes.data if data is AUTO else data
        tensor.device = DLDevice(*device)
        tensor.ndim = (len(shape) if isinstance(shape, tuple) else 0) if ndim is AUTO else ndim
        tensor.dtype = DLDataType(known[0] if code is AUTO else code, known[1] if bits is AUTO else bits, lanes)
        tensor.shape, tensor.strides = _int64s(shape, self.keep), _int64s(strides, self.keep)
        tensor.byte_offset = byte_offset
        self.struct.manager_ctx = self.token
        callback = _delete_versioned if versioned else _delete_legacy
        self.struct.deleter = ctypes.cast(callback, c_void_p) if deleter else None
        if versioned:
            self.struct.version, self.struct.flags = DLPackVersion(*version), flags
        self.first_name = (VERSIONED if versioned else LEGACY) if name is AUTO else name
        self._register()

    def _register(self):
        address = ctypes.addressof(self.struct)
        _LIVE[self.token] = _ALL[self.token] = _BY_ADDRESS[address] = self
        self.capsule = _new(address, _static(self.first_name), ctypes.cast(_destroy, c_void_p))

    @property
    def name(self):
        return capsule_name(self.capsule)

    @property
    def deleted(self):
        return len(self.deletes)

    @property
    def struct_device(self):
        device = self.struct.dl_tensor.device
        return device.device_type, device.device_id

    def drop(self):
        """Let go of the capsule (the last reference, unless the test holds another): its destructor runs."""
        self.capsule = None

    @property
    def untouched(self):
        return self.name == self.first_name and self.deleted == 0


def random_array(shape, dtype="float32", seed=0):
    """Nonzero random values of the numpy or ml_dtypes type of that name, finite and exactly representable."""
    rng = np.random.default_rng([seed, *shape])
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.startswith(("float16", "float32", "float64")):
        return rng.uniform(1, 2, shape).astype(dtype)
    if "complex" in dtype:
        return (rng.uniform(1, 2, shape) + 1j * rng.uniform(1, 2, shape)).astype(np.complex64).astype(dtype)
    if dtype.startswith(("int", "uint")):
        bits = DTYPES[dtype][1]
        return rng.integers(1, 2 ** min(bits - 1, 30), shape).astype(dtype)
    if dtype == "bfloat16":
        return rng.uniform(1, 2, shape).astype(dtype)
    bits = DTYPES[dtype][1]  # a float of at most 8 bits: 1 ... 2^(bits-2) are positive finite values of every such type
    return rng.integers(1, 2 ** (bits - 2), shape, dtype=np.uint8).view(np.dtype(dtype))


def random_bytes(count, seed=0):
    return np.random.default_rng([seed, count]).integers(1, 256, count, dtype=np.uint8)


def compact(shape):
    """Row-major strides in elements; 1 for each dimension where the true ones would not fit; NULL for no shape."""
    if not isinstance(shape, tuple):
        return None
    strides = tuple(itertools.accumulate(shape[:0:-1], operator.mul, initial=1))[::-1] if shape else ()
    return strides if all(abs(s) < 2**63 for s in strides) else (1,) * len(shape)


# ---- reading capsules ---------------------------------------------------------------------------------------------


class Managed:
    """What a capsule says, read without consuming it."""

    def __init__(self, capsule):
        self.capsule = capsule
        self.name = capsule_name(capsule)
        self.versioned = self.name in (VERSIONED, b"used_" + VERSIONED)
        assert self.versioned or self.name in (LEGACY, b"used_" + LEGACY), self.name
        self.address = _pointer(capsule, self.name)
        self.struct = (DLManagedTensorVersioned if self.versioned else DLManagedTensor).from_address(self.address)
        self.tensor = self.struct.dl_tensor

    version = property(lambda self: (self.struct.version.major, self.struct.version.minor))
    flags = property(lambda self: self.struct.flags)
    dtype = property(lambda self: (self.tensor.dtype.code, self.tensor.dtype.bits, self.tensor.dtype.lanes))
    device = property(lambda self: (self.tensor.device.device_type, self.tensor.device.device_id))
    shape = property(lambda self: tuple(self.tensor.shape[: self.tensor.ndim]))
    strides = property(lambda self: tuple(self.tensor.strides[: self.tensor.ndim]))
    data = property(lambda self: self.tensor.data)
    byte_offset = property(lambda self: self.tensor.byte_offset)

    def consume(self):
        """Rename as a consumer does: from here on the deleter is ours to call."""
        rename(self.capsule, b"used_" + (VERSIONED if self.versioned else LEGACY))
        return self

    def delete(self):
        assert capsule_name(self.capsule).startswith(b"used_")
        Deleter(self.struct.deleter)(self.address)

    def bytes(self, count):
        return ctypes.string_at(self.data + self.byte_offset, count)


def table_capsule(table):
    """A capsule over an exchange table, or over its header, as a type has it."""
    return _new(ctypes.addressof(table), _static(b"dlpack_exchange_api"), None)


def exchange_api(kind):
    """The table behind `kind.__dlpack_c_exchange_api__`."""
    address = _pointer(kind.__dlpack_c_exchange_api__, b"dlpack_exchange_api")
    return DLPackExchangeAPI.from_address(address)


_decref = _prototype("Py_DecRef", None, py_object)


def take_object(address):
    """The object of a `PyObject *` that the caller owns."""
    value = ctypes.cast(address, py_object).value
    _decref(value)
    return value


# ---- producers ----------------------------------------------------------------------------------------------------


class Producer:
    """A modern producer; `calls` records the keyword arguments it got."""

    def __init__(self, made, device=(1, 0)):
        self.made, self.device, self.calls = made, device, []

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        self.calls.append({"stream": stream, "max_version": max_version, "dl_device": dl_device, "copy": copy})
        return self.made.capsule if isinstance(self.made, Made) else self.made


class OldProducer(Producer):
    """A producer older than DLPack 1.0: it knows `stream` alone, or nothing at all."""

    def __dlpack__(self, stream=None):
        self.calls.append({"stream": stream})
        return self.made.capsule


class OldestProducer(Producer):
    def __dlpack__(self):
        self.calls.append({})
        return self.made.capsule


class RaisingProducer(Producer):
    """Makes its capsule and raises before handing it out ("halfway"), or already when asked for its device."""

    def __init__(self, error, *, made=None, at="dlpack"):
        super().__init__(made)
        self.error, self.at = error, at

    def __dlpack_device__(self):
        if self.at == "device":
            raise self.error
        return (1, 0)

    def __dlpack__(self, **kwargs):
        self.calls.append(kwargs)
        raise self.error


# ---- the model of strided, packed memory --------------------------------------------------------------------------


def element_codes(raw, bits, shape, strides, *, padded=False, start=0):
    """The code of each element in row-major order: element (i, j, ...) lies at bit (i*stride_i + ...)*b (one integer
    holds the whole memory, little-endian). Padded elements take a byte each, with the high bits ignored."""
    memory = int.from_bytes(bytes(raw), "little")
    step = 8 if padded else bits
    offsets = (sum(i * s for i, s in zip(index, strides, strict=True)) for index in np.ndindex(*shape))
    return [memory >> (start + offset * step) & (2**bits - 1) for offset in offsets]


def pack_codes(codes, bits):
    """The inverse for a compact tensor: little-endian bits, spare bits zero."""
    memory = sum(code << (bits * i) for i, code in enumerate(codes))
    return memory.to_bytes(-(-len(codes) * bits // 8), "little")


# ---- running snippets, finding frameworks -------------------------------------------------------------------------


def together(count, action):
    """`count` threads run `action(i)` at the same moment; their results, exceptions included."""
    barrier, results = threading.Barrier(count), [None] * count

    def run(i):
        barrier.wait()
        try:
            results[i] = action(i)
        except Exception as error:
            results[i] = error.with_traceback(None)  # whose frames would hold the results

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def run_python(code, *, timeout=120, **environ):
    """Run `code` in a fresh interpreter that can import this module; its output, once it has exited cleanly."""
    here = os.path.dirname(os.path.abspath(__file__))
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-P", "-c", code]  # -P: the working folder must not hide the installed package
    env = {**os.environ, "PYTHONPATH": path, "PYTHONFAULTHANDLER": "1", **environ}
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, env=env)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert done.stderr == "", done.stderr
    return done.stdout


def framework(name):
    """Import an optional framework, deaf to its own import-time warnings; skip with the reason where it is missing."""
    import pytest

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name, reason=f"{name} is not installed")


@contextlib.contextmanager
def flushed_subnormals(torch):
    """Within, the processor takes subnormals for zeros; skip where it cannot."""
    import pytest

    if not torch.set_flush_denormal(True):
        pytest.skip("PyTorch cannot flush subnormals on this processor")
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
