"""CuPy: device memory only; bfloat16 from version 14 on, and the bytes of everything below 16 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

from dlfp4._core import _ON_CUDA
from dlfp4.frameworks import base

if TYPE_CHECKING:
    import cupy

    from dlfp4 import Tensor


def from_tensor(tensor: Tensor, copy: bool | None = None) -> cupy.ndarray:
    """A ``cupy.ndarray`` of a dlfp4 Tensor, over its memory where that lies on a GPU.

    CuPy has no 8-bit floats, FP6, FP4 or 4-bit integers: those arrive as the ``uint8`` bytes of their storage, packed
    ones shorter along the last dimension. bfloat16 arrives as such from CuPy 14 on, as ``uint16`` before.

    Parameters
    ----------
    tensor : dlfp4.Tensor
        Shape ``(...)``; host memory is copied to the current device.
    copy : bool, optional
        None shares device memory, but copies host memory and read-only memory; False never copies; True always does.

    Raises
    ------
    BufferError
        ``copy=False``, and the memory is on the host or read-only; or packed elements do not fill whole bytes.
    DriverError
        The copy to the device failed.
    ModuleNotFoundError
        CuPy is not installed.
    """
    try:
        import cupy
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{error}: CuPy comes with the extras dlfp4[cuda12] and dlfp4[cuda13]", name=error.name
        ) from error

    if tensor.device.type in _ON_CUDA:
        source = base.shareable("CuPy", tensor, copy, base.read_only_obstacle(tensor))
    elif copy is False:
        reason = "its arrays lie on a GPU, and copy=False forbids a copy"
        raise base.RefusedError("CuPy", tensor, reason, "allow it with copy=None")
    else:
        source = tensor.to_device(f"cuda:{cupy.cuda.Device().id}")
    name = source.dtype.name
    with base.translated("CuPy", tensor, (RuntimeError, TypeError, ValueError)):
        if name in base.SUBBYTE or name in base.FP8:
            source = source.view("uint8")
        elif name == "bfloat16" and not _has_bfloat16():
            source = source.view("uint16")
        return cupy.from_dlpack(source)


def _has_bfloat16() -> bool:
    import cupy

    return int(cupy.__version__.partition(".")[0]) >= 14


def current_stream(index: int) -> cupy.cuda.Stream:
    """CuPy's current stream on a CUDA device. The object may own the stream, so memory made there keeps the object."""
    import cupy

    with cupy.cuda.Device(index):
        return cupy.cuda.get_current_stream()


def gpu_missing() -> str | None:
    """Why CuPy cannot use a GPU, or None."""
    import cupy

    try:
        return None if cupy.cuda.runtime.getDeviceCount() else "CuPy sees no CUDA device"
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return base.first_line(error)


def make(array: np.ndarray, packed: bool, device: str) -> cupy.ndarray:
    """An array of the same values, made from integers of the same width for bfloat16."""
    import cupy

    if array.dtype.name == "bfloat16":
        return cupy.asarray(array.view(np.uint16)).view(ml_dtypes.bfloat16)
    return cupy.asarray(array)


def read(native: cupy.ndarray) -> np.ndarray:
    """The values on the host, through ``ndarray.get()``."""
    host: np.ndarray = native.get()
    return host


def pointer(native: cupy.ndarray) -> int:
    """The address of the first element."""
    return int(native.data.ptr)


FRAMEWORK = base.Framework(
    module="cupy",
    dtypes=frozenset((*base.COMMON, *base.COMPLEX, "bfloat16")),
    make=make,
    from_tensor=from_tensor,
    read=read,
    pointer=pointer,
    devices=("cuda",),
    gpu_missing=gpu_missing,
    current_stream=current_stream,
)
