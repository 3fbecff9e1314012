"""Warp: legacy capsules both ways, up to four dimensions, any strides; bfloat16, but no FP8 or sub-byte types."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dlfp4.frameworks import base

if TYPE_CHECKING:
    import warp

    from dlfp4 import Tensor


def from_tensor(tensor: Tensor, copy: bool | None = None) -> warp.array:
    """A ``warp.array`` over the memory of a dlfp4 Tensor.

    Parameters
    ----------
    tensor : dlfp4.Tensor
        Shape ``(...)`` of at most four dimensions, on the host or a GPU that Warp sees.
    copy : bool, optional
        None shares, but copies read-only memory; False never copies; True always does.

    Raises
    ------
    BufferError
        Warp has no such element type, the tensor has more than four dimensions, or ``copy=False`` and the memory is
        read-only.
    """
    import warp

    warp.init()  # from_dlpack is the only Warp function that does not do this itself
    source = base.shareable("Warp", tensor, copy, base.read_only_obstacle(tensor))
    with base.translated("Warp", tensor, (RuntimeError, TypeError, ValueError)):
        return warp.from_dlpack(source)


def gpu_missing() -> str | None:
    """Why Warp cannot use a GPU, or None."""
    import warp

    return None if warp.is_cuda_available() else "Warp sees no CUDA device"


def make(array: np.ndarray, packed: bool, device: str) -> warp.array:
    """An array of the same values."""
    import warp

    return warp.array(array, device=device)


def read(native: warp.array) -> np.ndarray:
    """The values through ``array.numpy()``."""
    values: np.ndarray = native.numpy()
    return values


def pointer(native: warp.array) -> int:
    """The address of the first element."""
    return int(native.ptr)


FRAMEWORK = base.Framework(
    module="warp",
    dtypes=frozenset((*base.COMMON, "bfloat16")),
    make=make,
    from_tensor=from_tensor,
    read=read,
    pointer=pointer,
    devices=("cpu", "cuda"),
    gpu_missing=gpu_missing,
)
