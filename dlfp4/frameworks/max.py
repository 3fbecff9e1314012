"""MAX: legacy capsules of compact memory (it ignores strides); FP8, packed FP6 and packed FP4 both ways."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dlfp4.frameworks import base

if TYPE_CHECKING:
    from max import driver

    from dlfp4 import Tensor

FP8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")


def from_tensor(tensor: Tensor, copy: bool | None = None) -> driver.Buffer:
    """A ``max.driver.Buffer`` over the memory of a dlfp4 Tensor.

    Parameters
    ----------
    tensor : dlfp4.Tensor
        Shape ``(...)``, on the host or a GPU that MAX sees.
    copy : bool, optional
        None shares, but copies memory that is read-only or not row-major (MAX ignores strides); False never copies;
        True always does.

    Raises
    ------
    BufferError
        MAX has no such element type (complex, integers below 8 bits), or ``copy=False`` and a copy is needed.
    """
    from max.driver import Buffer

    base.refuse_padded("MAX", tensor)
    obstacle = None if base.is_row_major(tensor) else f"it reads no strides, and these are {tensor.strides}"
    source = base.shareable("MAX", tensor, copy, obstacle or base.read_only_obstacle(tensor))
    with base.translated("MAX", tensor, (RuntimeError, TypeError, ValueError)):
        taken = Buffer.from_dlpack(source)
        str(taken.dtype)  # it accepts types that it cannot name, and fails only here
    return taken


def gpu_missing() -> str | None:
    """Why MAX cannot use a GPU, or None."""
    from max.driver import accelerator_count

    return None if accelerator_count() else "MAX sees no GPU"


def make(array: np.ndarray, packed: bool, device: str) -> driver.Buffer:
    """A buffer of the same values: its bytes, under another type."""
    from max.driver import CPU, Accelerator, Buffer
    from max.dtype import DType

    octets = base.pack_array(array) if packed else np.frombuffer(array.tobytes(), np.uint8)
    held = Buffer.from_numpy(octets.copy()).view(getattr(DType, array.dtype.name), array.shape)
    return held.to(Accelerator() if device == "cuda" else CPU())


def read(native: driver.Buffer) -> np.ndarray:
    """The values through a view of its bytes and ``Buffer.to_numpy()``."""
    from max.driver import CPU
    from max.dtype import DType

    dtype = base.dtype_of(native.dtype.name)
    octets = native.to(CPU()).view(DType.uint8, (base.num_bytes(native.shape, dtype),)).to_numpy()
    return base.as_array(octets, native.shape, dtype)


def pointer(native: driver.Buffer) -> int:
    """The address of the first element."""
    return int(native._data_ptr())


FRAMEWORK = base.Framework(
    module="max.driver",
    dtypes=frozenset((*base.COMMON, "bfloat16", *FP8, *base.FP6, base.FP4)),
    make=make,
    from_tensor=from_tensor,
    read=read,
    pointer=pointer,
    devices=("cpu", "cuda"),
    gpu_missing=gpu_missing,
)
