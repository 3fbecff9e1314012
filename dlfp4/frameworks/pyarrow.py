"""PyArrow: DLPack 1.3 of integers and floats; one dimension as an Array, more as a Tensor; all memory is read-only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dlfp4.frameworks import base

if TYPE_CHECKING:
    import pyarrow as pa

    from dlfp4 import Tensor


def from_tensor(tensor: Tensor, copy: bool | None = None) -> pa.Array | pa.Tensor:
    """A ``pyarrow.Array`` (one dimension) or ``pyarrow.Tensor`` over the memory of a dlfp4 Tensor.

    Parameters
    ----------
    tensor : dlfp4.Tensor
        Shape ``(...)``.
    copy : bool, optional
        None shares, but copies strided one-dimensional memory and negative strides; False never copies; True always
        does.

    Raises
    ------
    BufferError
        Arrow has no such element type, or ``copy=False`` and a copy is needed.
    """
    import pyarrow as pa

    if not hasattr(pa.Tensor, "from_dlpack"):
        remedy = "upgrade it, or call pyarrow.array(t.to_numpy())"
        raise base.RefusedError("PyArrow", tensor, "it imports DLPack from version 26 on", remedy)
    source = base.shareable("PyArrow", tensor, copy, _obstacle(tensor))
    receiver = pa.Array if tensor.ndim == 1 else pa.Tensor
    with base.translated("PyArrow", tensor, (RuntimeError, TypeError, ValueError)):
        return receiver.from_dlpack(base.plain_strides(source))


def _obstacle(tensor: Tensor) -> str | None:
    """Why Arrow cannot share the memory of a tensor, or None."""
    if base.runs_backwards(tensor):
        return "it has no negative strides"
    if tensor.ndim == 1 and not base.is_row_major(tensor):
        return "its one-dimensional arrays are contiguous"
    return None


def make(array: np.ndarray, packed: bool, device: str) -> pa.Array:
    """A one-dimensional array of the same values; a Tensor would export only what a NumPy array does."""
    import pyarrow as pa

    return pa.array(array.reshape(-1))


def read(native: pa.Array | pa.Tensor) -> np.ndarray:
    """The values through ``to_numpy()``."""
    values: np.ndarray = native.to_numpy()
    return values


def pointer(native: pa.Array | pa.Tensor) -> int:
    """The address of the first element."""
    return read(native).ctypes.data


FRAMEWORK = base.Framework(
    module="pyarrow",
    dtypes=frozenset((*base.INTEGERS, *base.FLOATS)),
    make=make,
    from_tensor=from_tensor,
    read=read,
    pointer=pointer,
)
