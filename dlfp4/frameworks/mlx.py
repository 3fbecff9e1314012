"""MLX: legacy capsules; it copies whatever it imports; no FP8 or sub-byte types; 64-bit floats only on request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

from dlfp4.frameworks import base

if TYPE_CHECKING:
    import mlx.core as mx

    from dlfp4 import Tensor

NARROWED = ("float64", "complex128")


def from_tensor(tensor: Tensor, copy: bool | None = None) -> mx.array:
    """An ``mlx.core.array`` of a dlfp4 Tensor; MLX copies host memory.

    Parameters
    ----------
    tensor : dlfp4.Tensor
        Shape ``(...)``.
    copy : bool, optional
        None and True let MLX copy; False shares or fails.

    Raises
    ------
    BufferError
        MLX has no such element type (it would narrow 64-bit floats to 32 bits), or ``copy=False`` and it copied.
    """
    import mlx.core as mx

    if tensor.dtype.name in NARROWED:
        raise base.RefusedError("MLX", tensor, "it would narrow the values to 32 bits", "cast the tensor first")
    obstacle = "it asks for capsules that cannot say read-only" if tensor.readonly else None
    if base.runs_backwards(tensor):
        obstacle = "it has no negative strides"
    source = base.shareable("MLX", tensor, False if copy is False else None, obstacle)
    with base.translated("MLX", tensor, (RuntimeError, TypeError, ValueError)):
        array = mx.from_dlpack(base.plain_strides(source))
    base.check_shared("MLX", tensor, copy, pointer(array))
    return array


def make(array: np.ndarray, packed: bool, device: str) -> mx.array:
    """An array of the same values."""
    import mlx.core as mx

    if array.dtype.name == "float64":
        return mx.array(array, dtype=mx.float64)
    if array.dtype.name == "bfloat16":
        return mx.array(base.bits_view(array)).view(mx.bfloat16)
    return mx.array(array)


def read(native: mx.array) -> np.ndarray:
    """The values through the buffer protocol, bfloat16 as integers of its width."""
    import mlx.core as mx

    if native.dtype == mx.bfloat16:
        return np.array(native.view(mx.uint16)).view(ml_dtypes.bfloat16)
    return np.array(native)


def pointer(native: mx.array) -> int:
    """The address of the first element."""
    import mlx.core as mx

    return np.asarray(memoryview(native.reshape(-1).view(mx.uint8))).ctypes.data  # bfloat16 is no buffer


FRAMEWORK = base.Framework(
    module="mlx.core",
    dtypes=frozenset((*base.COMMON, "complex64", "bfloat16")),
    make=make,
    from_tensor=from_tensor,
    read=read,
    pointer=pointer,
)
