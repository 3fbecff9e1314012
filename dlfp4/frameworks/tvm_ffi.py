"""Apache TVM FFI: DLPack 1.3 and the C exchange API, packed FP6 and FP4 included; it allocates nothing itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dlfp4._core import _register_tvm_ffi
from dlfp4.frameworks import base

if TYPE_CHECKING:
    import tvm_ffi

    from dlfp4 import Tensor


def from_tensor(tensor: Tensor, copy: bool | None = None) -> tvm_ffi.Tensor:
    """A ``tvm_ffi.Tensor`` over the memory of a dlfp4 Tensor.

    Parameters
    ----------
    tensor : dlfp4.Tensor
        Shape ``(...)``, on any device.
    copy : bool, optional
        None shares, but copies read-only memory, which TVM FFI would hand on as writable; False never copies;
        True always does.

    Raises
    ------
    BufferError
        TVM FFI has no such element type (complex, padded sub-byte), or ``copy=False`` and the memory is read-only.
    """
    import tvm_ffi

    source = base.shareable("TVM FFI", tensor, copy, base.read_only_obstacle(tensor))
    with base.translated("TVM FFI", tensor, (RuntimeError, TypeError, ValueError)):
        taken = tvm_ffi.from_dlpack(source)
        str(taken.dtype)  # it accepts types that it cannot name, and fails only here
    return taken


def register_functions() -> None:
    """Put "dlfp4.cast", "dlfp4.quantize", "dlfp4.dequantize" and "dlfp4.matmul" into TVM FFI's registry.

    Anything in the process that speaks TVM FFI then calls them by name, without Python in between: they take the parts
    of tensors and write to them. ``dlfp4/dlfp4.h`` has their arguments.

    Raises
    ------
    ImportError
        TVM FFI is not installed.

    Examples
    --------
    >>> import tvm_ffi, dlfp4.frameworks.tvm_ffi  # doctest: +SKIP
    >>> dlfp4.frameworks.tvm_ffi.register_functions()  # doctest: +SKIP
    >>> tvm_ffi.get_global_func("dlfp4.cast")(x, out)  # doctest: +SKIP
    """
    import tvm_ffi  # noqa: F401  (loads the library that has the registry)

    _register_tvm_ffi()


def make(array: np.ndarray, packed: bool, device: str) -> tvm_ffi.Tensor:
    """A tensor over memory that dlfp4 allocates, since ``from_dlpack`` is the only constructor."""
    import dlfp4

    return from_tensor(dlfp4.pack(array) if packed else dlfp4.asarray(array), True)


def read(native: tvm_ffi.Tensor) -> np.ndarray:
    """The values through NumPy, or read at the address of compact memory where NumPy has no such type."""
    name = str(native.dtype)
    if name in base.COMMON:
        return np.from_dlpack(native)
    return base.read_memory(native.data_ptr(), native.shape, base.dtype_of(name))


def pointer(native: tvm_ffi.Tensor) -> int:
    """The address of the first element."""
    return int(native.data_ptr())


FRAMEWORK = base.Framework(
    module="tvm_ffi",
    dtypes=frozenset((*base.COMMON, "bfloat16", *base.FP8, *base.SUBBYTE)),
    make=make,
    from_tensor=from_tensor,
    read=read,
    pointer=pointer,
)
