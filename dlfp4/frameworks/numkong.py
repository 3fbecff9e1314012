"""NumKong: DLPack 1.0 both ways on the host; FP6 one element a byte; FP8 only as e4m3fn and e5m2; no FP4."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dlfp4.frameworks import base

if TYPE_CHECKING:
    import numkong

    from dlfp4 import Tensor

NAMES = {
    "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
    "e2m3": "float6_e2m3fn",
    "e3m2": "float6_e3m2fn",
}


def from_tensor(tensor: Tensor, copy: bool | None = None) -> numkong.Tensor:
    """A ``numkong.Tensor`` over the memory of a dlfp4 Tensor.

    Parameters
    ----------
    tensor : dlfp4.Tensor
        Shape ``(...)`` of one dimension or more, on the host.
    copy : bool, optional
        None shares, but copies read-only memory (NumKong would write to it) and broadcast dimensions (NumKong would
        never return); False never copies; True always does.

    Raises
    ------
    BufferError
        NumKong has no such element type, the tensor is 0-dimensional, or ``copy=False`` and a copy is needed.
    """
    import numkong

    if tensor.ndim == 0:
        raise base.RefusedError("NumKong", tensor, "it has no tensors without a dimension", "call .reshape((1,)) first")
    obstacle = base.read_only_obstacle(tensor)
    if 0 in base.steps(tensor):
        obstacle = "it has no stride of zero"
    source = base.shareable("NumKong", tensor, copy, obstacle)
    with base.translated("NumKong", tensor, (RuntimeError, TypeError, ValueError)):
        return numkong.from_dlpack(source)


def make(array: np.ndarray, packed: bool, device: str) -> numkong.Tensor:
    """A tensor of the same values."""
    import numkong

    return numkong.Tensor(array)


def read(native: numkong.Tensor) -> np.ndarray:
    """The values through ``__array__``, which gives bits where NumPy has no type."""
    name = NAMES.get(native.dtype, native.dtype)
    return np.asarray(native).view(base.dtype_of(name))


def pointer(native: numkong.Tensor) -> int:
    """The address of the first element."""
    return int(native.data_ptr)


FRAMEWORK = base.Framework(
    module="numkong",
    dtypes=frozenset(
        (
            *(*base.INTEGERS, *base.FLOATS, *base.COMPLEX, "bfloat16", "float8_e4m3fn", "float8_e5m2"),
            *(t + base.PADDED for t in base.FP6),
        )
    ),
    make=make,
    from_tensor=from_tensor,
    read=read,
    pointer=pointer,
)
