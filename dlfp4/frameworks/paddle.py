"""PaddlePaddle: DLPack 1.x both ways; bfloat16, float8_e4m3fn and float8_e5m2; no read-only tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from dlfp4.frameworks import base

if TYPE_CHECKING:
    import paddle

    from dlfp4 import Tensor

VIEWED = ("bfloat16", "float8_e4m3fn", "float8_e5m2")


def from_tensor(tensor: Tensor, copy: bool | None = None) -> paddle.Tensor:
    """A ``paddle.Tensor`` over the memory of a dlfp4 Tensor.

    Parameters
    ----------
    tensor : dlfp4.Tensor
        Shape ``(...)``.
    copy : bool, optional
        None shares, but copies read-only memory (Paddle would write to it) and negative strides; False never copies;
        True always does.

    Raises
    ------
    BufferError
        Paddle has no such element type, or ``copy=False`` and a copy is needed.
    """
    import paddle

    obstacle = base.read_only_obstacle(tensor)
    if base.runs_backwards(tensor):
        obstacle = "it has no negative strides"
    source = base.shareable("PaddlePaddle", tensor, copy, obstacle)
    with base.translated("PaddlePaddle", tensor, (RuntimeError, TypeError, ValueError)):
        return paddle.from_dlpack(base.plain_strides(source))


def guards() -> list[tuple[Any, tuple[str, ...], str]]:
    """The attribute that Paddle's exchange table does not check, and the call that clears it."""
    import paddle

    differentiable = (*base.FLOATS, *base.COMPLEX, *VIEWED)
    return [(paddle.Tensor.requires_grad.fget, differentiable, ".detach()")]


def make(array: np.ndarray, packed: bool, device: str) -> paddle.Tensor:
    """A tensor of the same values, made from bytes where NumPy lacks the type."""
    import paddle

    if array.dtype.name in VIEWED:
        return paddle.to_tensor(array.view(np.uint8)).view(array.dtype.name)
    return paddle.to_tensor(array)


def read(native: paddle.Tensor) -> np.ndarray:
    """The values through ``Tensor.numpy()``."""
    name = native.dtype.name.lower()
    if name in VIEWED:
        native = native.view("uint8")
    values: np.ndarray = native.numpy()
    return values.view(getattr(ml_dtypes, name)) if name in VIEWED else values


def pointer(native: paddle.Tensor) -> int:
    """The address of the first element."""
    return int(native.data_ptr())


FRAMEWORK = base.Framework(
    module="paddle",
    dtypes=frozenset(
        ("bool", "int8", "int16", "int32", "int64", "uint8", *base.FLOATS, *base.COMPLEX, *VIEWED),
    ),
    make=make,
    from_tensor=from_tensor,
    read=read,
    pointer=pointer,
    guards=guards,
)
