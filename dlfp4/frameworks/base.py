"""What dlfp4 asks of a framework, and what the framework files share. It names no framework."""

from __future__ import annotations

import ctypes
import importlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib import metadata
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from dlfp4.extents import count_elements

if TYPE_CHECKING:
    from dlfp4 import Tensor

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
COMMON = ("bool", *INTEGERS, *FLOATS)
FP8 = (
    "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
    "float8_e5m2fnuz", "float8_e8m0fnu",
)  # fmt: skip
FP6 = ("float6_e2m3fn", "float6_e3m2fn")
FP4 = "float4_e2m1fn"
# Bits of the types that may share a byte.
SUBBYTE = {**dict.fromkeys(FP6, 6), FP4: 4, "int4": 4, "uint4": 4, "int2": 2, "uint2": 2}
PADDED = " padded"


@dataclass(frozen=True)
class Natives:
    """Addresses of a framework's C functions, through which the core asks about a tensor in nanoseconds.

    A handle is the address of a pointer to the tensor's implementation. Functions that fill an `answer` return 0 on
    success, as in PyTorch's stable C interface; see ``core/exchange/natives.pxi``.

    Attributes
    ----------
    impl : int
        Bytes from the Python object of a tensor to that pointer.
    data, storage_offset, storage_bytes, dtype : int
        ``int f(void **handle, T *answer)``: the address of the first element (``void *``); its index in the storage and
        the current bytes of that storage (``int64_t``); the number of the element type (``int32_t``).
    itemsize : int
        ``size_t f(int32_t dtype)``.
    bytes : tuple of int
        The numbers of the two integer types that have 8 bits.
    trace : int
        ``void **f()``: where this thread keeps its trace, which is NULL outside of one.
    has_modes : int
        ``bool f(bool)``, called with false: whether a mode intercepts this thread's calls.
    flags_of_impl, flags_of_handle : dict of str
        ``bool f(void *)`` of the implementation, or of the handle, by the names of attributes in `guards`.
    """

    impl: int
    data: int
    storage_offset: int
    storage_bytes: int
    dtype: int
    itemsize: int
    bytes: tuple[int, int]
    trace: int
    has_modes: int
    flags_of_impl: dict[str, int]
    flags_of_handle: dict[str, int]


@dataclass(frozen=True)
class Framework:
    """One framework: what the core and the matrix need to know of it.

    Attributes
    ----------
    module : str
        The module to import. Its first part names the file in this package, unless `file` does.
    dtypes : frozenset of str
        The element types of its arrays, by dlfp4's names; ``"float4_e2m1fn"`` is packed, ``"float4_e2m1fn padded"`` is
        not.
    make : callable or None
        ``make(array, packed, device)``: the framework's own array with the values of a NumPy array. None: it only
        imports tensors.
    from_tensor : callable
        ``from_tensor(tensor, copy)``: the framework's array of a dlfp4 Tensor; BufferError where it cannot take it.
    read : callable
        ``read(native)``: the values as a NumPy array, one element an item, without the help of dlfp4.
    pointer : callable
        ``pointer(native)``: the address of its first element, or None where the framework does not tell it.
    errors : callable
        The exceptions, apart from BufferError, with which it refuses an exchange.
    devices : tuple of str
        The kinds of devices that hold its arrays: ``"cpu"``, ``"cuda"``.
    gpu_missing : callable
        Why its CUDA side cannot be used, or None.
    guards : callable
        ``(descriptor, dtypes, remedy)`` rows: attributes that must be false, which its C exchange table does not check.
    keeper : callable
        The attribute or method of its tensors that returns the object which keeps their memory alive; with it the core
        borrows through the C exchange table. Only for frameworks whose tensors are never read-only and never padded,
        which a loan could not say.
    natives : callable
        Its C functions that answer what a description does not say, or None where one of them is missing.
    current_stream : callable, optional
        ``current_stream(index)``: its current stream on that CUDA device, an object or a handle.
    cannot_export : callable, optional
        ``cannot_export(native)``: why that array cannot be handed over, and what helps, or None. Needed where the
        framework's own exception says less, where it raises none, or where the process would end.
    table_shared_with : callable
        Subclasses that the C exchange table of their base serves as well.
    immutable : bool
        Its arrays must not be written to, whatever a capsule says.
    title : str, optional
        Its name in messages. Default: `name`.
    element_name, device_name : callable, optional
        ``f(object)``: dlfp4's name of one of its element types, or of one of its devices. None where dlfp4 reads its
        objects without help.
    lost_by : str
        The calls that take the memory of one of its tensors away, for the error message.
    always_writable : bool
        It has no read-only arrays: it gets a copy of read-only memory.
    pairs : frozenset of str
        Packed 4-bit types that it counts in pairs. The core exports them in pairs when the framework asks.
    cannot_import : callable, optional
        ``cannot_import(tensor)``: why it cannot take a Tensor, and what helps, or None. The core asks about unusual
        tensors alone: negative strides, memory behind a handle, elements that are not aligned to their size, and empty
        tensors whose extents overflow when multiplied.
    environ : dict of str
        The environment of the process in which the matrix tries it.
    since : dict of str
        The first release with one of `dtypes`, where dlfp4 serves older releases as well.
    file : str, optional
        The name of its file in this package, where that is not the first part of `module`.
    """

    module: str
    dtypes: frozenset[str]
    make: Callable[[np.ndarray, bool, str], Any] | None
    from_tensor: Callable[[Tensor, bool | None], Any]
    read: Callable[[Any], np.ndarray]
    pointer: Callable[[Any], int | None]
    errors: Callable[[], tuple[type[Exception], ...]] = lambda: (RuntimeError, TypeError, ValueError)
    devices: tuple[str, ...] = ("cpu",)
    gpu_missing: Callable[[], str | None] = lambda: None
    guards: Callable[[], list[tuple[Any, tuple[str, ...], str]]] = field(default=list)
    keeper: Callable[[], Any] = lambda: None
    natives: Callable[[], Natives | None] = lambda: None
    current_stream: Callable[[int], Any] | None = None
    cannot_export: Callable[[Any], str | None] | None = None
    table_shared_with: Callable[[], tuple[type, ...]] = lambda: ()
    immutable: bool = False
    title: str | None = None
    element_name: Callable[[Any], str] | None = None
    device_name: Callable[[Any], str] | None = None
    lost_by: str = ""
    always_writable: bool = False
    pairs: frozenset[str] = frozenset()
    cannot_import: Callable[[Tensor], tuple[str, str] | None] | None = None
    environ: dict[str, str] = field(default_factory=dict)
    since: dict[str, tuple[int, ...]] = field(default_factory=dict)
    file: str | None = None

    @property
    def package(self) -> str:
        """The package that its classes come from."""
        return self.module.partition(".")[0]

    @property
    def name(self) -> str:
        """The framework's name here: that of its file."""
        return self.file or self.package

    def version(self) -> str:
        """The installed version, from the module or else from the package's metadata."""
        told = getattr(importlib.import_module(self.module), "__version__", None)
        return str(told or metadata.version(self.name))

    def release(self) -> tuple[int, ...]:
        """The installed version as numbers that compare."""
        return tuple(int(number) for number in re.findall(r"\d+", self.version())[:3])

    def holds(self, row: str) -> bool:
        """Whether arrays of the installed version can hold an element type, by its row of the matrix."""
        return row in self.dtypes and (row not in self.since or self.release() >= self.since[row])

    def installed(self) -> bool:
        """Whether ``import`` would find it. It is not imported, except for a namespace that it shares with others."""
        try:
            return find_spec(self.module) is not None
        except ModuleNotFoundError:
            return False

    def missing(self, device: str = "cpu") -> str | None:
        """Why the framework cannot be used on a device, or None."""
        if not self.installed():
            return "not installed"
        try:
            importlib.import_module(self.module)
        except ImportError as error:
            return f"does not import: {first_line(error)}"
        if device not in self.devices:
            return f"no arrays on {device}"
        return self.gpu_missing() if device == "cuda" else None


def first_line(error: BaseException) -> str:
    """The first line of an exception, without the C++ source locations that ONNX Runtime and Paddle add."""
    lines = str(error).strip().splitlines()
    return re.sub(r"^\S+\.cc:\d+ .*\) | \(at \S+\.cc:\d+\)$", "", lines[0]) if lines else type(error).__name__


def row_name(dtype: np.dtype, packed: bool) -> str:
    """A type and its storage as one name: sub-byte elements are packed unless the name says ``padded``."""
    return dtype.name + PADDED if dtype.name in SUBBYTE and not packed else dtype.name


def row_of(tensor: Tensor) -> str:
    """The row name of a Tensor."""
    return row_name(tensor.dtype, tensor.packed)


# ---- Handing a Tensor over


def in_words(tensor: Tensor) -> str:
    """What a tensor is, for a refusal."""
    return f"{row_of(tensor)} of shape {tensor.shape} on {tensor.device}"


class RefusedError(BufferError):
    """A framework cannot take a tensor. The message says what came, why it was refused, and what to do instead.

    Raised by ``to_torch``, ``to_jax``, ``to_cupy`` and ``to_like``. ``torch.from_dlpack`` of a Tensor raises it for FP4
    without pairs, and for strides that PyTorch does not take. Elements of which a library has no type, its own
    ``from_dlpack`` refuses: PyTorch's by a plain BufferError, NumPy's by RuntimeError, in
    newer versions BufferError, JAX's by ``jax.errors.JaxRuntimeError``.

    Parameters
    ----------
    framework : str
        Who refuses it.
    tensor : Tensor or str
        The tensor, or its description in words.
    reason : str
        Why.
    remedy : str
        What to do.

    Attributes
    ----------
    framework, tensor, reason, remedy : str
        The parts of the message.
    """

    framework: str
    tensor: str
    reason: str
    remedy: str

    def __init__(self, framework: str, tensor: Tensor | str, reason: str, remedy: str) -> None:
        self.framework, self.reason, self.remedy = framework, reason, remedy
        self.tensor = tensor if isinstance(tensor, str) else in_words(tensor)
        super().__init__(f"{framework} cannot take {self.tensor}: {reason}; {remedy}")

    def __reduce__(self) -> tuple[Any, ...]:
        return RefusedError, (self.framework, self.tensor, self.reason, self.remedy)


def bytes_remedy(tensor: Tensor) -> str:
    """The call that helps where a framework lacks the element type."""
    if tensor.dtype.name == FP4 and not tensor.packed:
        return 'call dlfp4.pack(t), or hand over the bytes with .view("uint8")'
    if tensor.packed and tensor.ndim and tensor.shape[-1] * SUBBYTE[tensor.dtype.name] % 8:
        return 'hand over one element a byte, with dlfp4.unpack(t).view("uint8")'
    return f'hand over the bits with .view("uint{8 * min(tensor.dtype.itemsize, 8)}")'


class translated:  # noqa: N801
    """Turn a framework's own refusal into the BufferError that callers of dlfp4 expect.

    A class, because a generator for a context would take as long as the exchange itself.
    """

    __slots__ = ("errors", "framework", "tensor")

    def __init__(self, framework: str, tensor: Tensor, errors: tuple[type[Exception], ...]) -> None:
        self.framework, self.tensor, self.errors = framework, tensor, errors

    def __enter__(self) -> None:
        """Nothing is to be prepared."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and isinstance(error, (BufferError, *self.errors)):
            raise RefusedError(self.framework, self.tensor, first_line(error), bytes_remedy(self.tensor)) from error


def shareable(framework: str, tensor: Tensor, copy: bool | None, obstacle: str | None) -> Tensor:
    """The tensor to hand over: itself, or a copy where `copy` asks for one or an obstacle requires it.

    Raises
    ------
    BufferError
        A copy is needed, and ``copy=False`` forbids it.
    """
    if copy is False and obstacle is not None:
        raise RefusedError(framework, tensor, f"{obstacle}, and copy=False forbids a copy", "allow it with copy=None")
    return tensor.copy() if copy or obstacle is not None else tensor


def refuse_padded(
    framework: str, tensor: Tensor, reason: str = "it reads legacy capsules, which cannot say padded"
) -> None:
    """BufferError for padded elements, one a byte, which a framework would refuse or misread."""
    if tensor.dtype.name in SUBBYTE and not tensor.packed:
        raise RefusedError(framework, tensor, reason, bytes_remedy(tensor))


def read_only_obstacle(tensor: Tensor) -> str | None:
    """The obstacle of read-only memory for frameworks whose arrays are always writable."""
    return "its arrays are always writable, this memory is read-only" if tensor.readonly else None


def steps(tensor: Tensor) -> list[int]:
    """The strides that mean something: those of extents above 1 in a tensor that is not empty."""
    return [stride for extent, stride in zip(tensor.shape, tensor.strides, strict=True) if extent > 1 and tensor.size]


def runs_backwards(tensor: Tensor) -> bool:
    """Whether a stride is negative, which few frameworks support."""
    return any(stride < 0 for stride in steps(tensor))


def plain_strides(tensor: Tensor) -> Tensor:
    """The same tensor with row-major strides where strides mean nothing: some frameworks read them all the same."""
    return tensor.reshape(tensor.shape)


def starts_on_border(tensor: Tensor, alignment: int) -> bool:
    """Whether the first element is aligned to so many bytes; an empty tensor is."""
    return tensor.size == 0 or tensor.data_ptr % alignment == 0


def check_shared(framework: str, tensor: Tensor, copy: bool | None, pointer: int) -> None:
    """BufferError where a framework copied, though ``copy=False`` forbids it."""
    if copy is False and tensor.size and pointer != tensor.data_ptr:
        reason = "it copied the data, which copy=False forbids"
        raise RefusedError(framework, tensor, reason, "allow it with copy=None")


def is_row_major(tensor: Tensor) -> bool:
    """Whether the elements lie without gaps in row-major order."""
    if tensor.size == 0:
        return True
    expected = 1
    for extent, stride in zip(reversed(tensor.shape), reversed(tensor.strides), strict=True):
        if extent > 1 and stride != expected:
            return False
        expected *= extent
    return True


# ---- Values in and out, for frameworks whose constructors lack a type


def pack_codes(codes: np.ndarray, bits: int) -> np.ndarray:
    """Element codes, one a byte, as a little-endian stream of `bits` each: the bytes of DLPack's packed types."""
    return np.packbits(np.unpackbits(codes.reshape(-1, 1), axis=1, bitorder="little")[:, :bits], bitorder="little")


def unpack_codes(packed: np.ndarray, bits: int, count: int) -> np.ndarray:
    """Undo :func:`pack_codes` for the first `count` elements."""
    stream = np.unpackbits(packed.reshape(-1), bitorder="little")[: count * bits]
    return np.packbits(stream.reshape(count, bits), axis=1, bitorder="little").reshape(-1)


def codes_of(array: np.ndarray) -> np.ndarray:
    """The elements of an ml_dtypes array below 8 bits as bytes with zero high bits (NumPy extends signs of int4)."""
    return array.view(np.uint8) & ((1 << SUBBYTE[array.dtype.name]) - 1)


def pack_array(array: np.ndarray) -> np.ndarray:
    """The packed bytes of an ml_dtypes array below 8 bits."""
    return pack_codes(codes_of(array), SUBBYTE[array.dtype.name])


def bits_view(array: np.ndarray) -> np.ndarray:
    """An array under the unsigned integer type of its width, which every framework knows."""
    return array.view(f"uint{8 * array.dtype.itemsize}")


def dtype_of(name: str) -> np.dtype:
    """The type of NumPy or ml_dtypes of that name; TypeError, which says the name, where neither has it."""
    return np.dtype(getattr(ml_dtypes, name, name))


def num_bytes(shape: Iterable[int], dtype: np.dtype) -> int:
    """The bytes of compact elements, packed below 8 bits."""
    return -(-count_elements(shape) * SUBBYTE.get(dtype.name, 8 * dtype.itemsize) // 8)


def as_array(octets: bytes | np.ndarray, shape: Iterable[int], dtype: np.dtype) -> np.ndarray:
    """The bytes of compact elements, packed below 8 bits, as an array of one element an item."""
    dims, flat = tuple(shape), np.frombuffer(octets, np.uint8)
    if dtype.name in SUBBYTE:
        flat = unpack_codes(flat, SUBBYTE[dtype.name], count_elements(dims))
    return flat.view(dtype).reshape(dims)


def read_memory(
    pointer: int,
    shape: Iterable[int],
    dtype: np.dtype,
    strides: Iterable[int] | None = None,
    octets_at: Callable[[int, int], bytes] = ctypes.string_at,
) -> np.ndarray:
    """A copy of memory, packed below 8 bits, for arrays that cannot be read otherwise.

    The memory is compact unless `strides` are given, in elements; ``octets_at(pointer, size)`` reads it.
    """
    dims = tuple(shape)
    if strides is None or 0 in dims:
        return as_array(octets_at(pointer, num_bytes(dims, dtype)), dims, dtype)
    steps = tuple(strides)
    reach = [(extent - 1) * step for extent, step in zip(dims, steps, strict=True)]
    first, last = sum(r for r in reach if r < 0), sum(r for r in reach if r > 0)
    start = pointer + first * SUBBYTE.get(dtype.name, 8 * dtype.itemsize) // 8
    flat = read_memory(start, (last - first + 1,), dtype, None, octets_at).view(np.uint8)
    size = dtype.itemsize
    return np.ndarray(dims, dtype, flat, -first * size, [step * size for step in steps]).copy()


# ---- CUDA memory of frameworks that depend on NVIDIA's bindings


def cuda_missing() -> str | None:
    """Why CUDA's runtime reaches no device, or None."""
    from cuda.bindings import runtime

    status, count = runtime.cudaGetDeviceCount()
    return None if count else f"{status.name} of CUDA's runtime"


def octets_by_cuda(pointer: int, size: int) -> bytes:
    """Bytes at any address that CUDA knows, of a device or of the host."""
    from cuda.bindings import runtime

    octets = np.empty(size, np.uint8)
    (status,) = runtime.cudaMemcpy(octets.ctypes.data, pointer, size, runtime.cudaMemcpyKind.cudaMemcpyDefault)
    if status != runtime.cudaError_t.cudaSuccess:
        raise RuntimeError(f"cudaMemcpy: {status.name}")
    return octets.tobytes()
