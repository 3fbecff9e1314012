"""cuda.core: views of foreign memory, read-only memory included; it imports bfloat16 but exports none; no FP8."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np

from dlfp4.frameworks import base

if TYPE_CHECKING:
    from cuda.core.utils import StridedMemoryView

    from dlfp4 import Tensor

NOT_ORDERED, LEGACY_STREAM = -1, 1


def from_tensor(tensor: Tensor, copy: bool | None = None) -> StridedMemoryView:
    """A ``cuda.core.utils.StridedMemoryView`` of the memory of a dlfp4 Tensor.

    GPU memory is ready for work on the legacy default stream; for another stream, call
    ``StridedMemoryView.from_dlpack(tensor, stream)``.

    Parameters
    ----------
    tensor : dlfp4.Tensor
        Shape ``(...)``, on the host or a GPU.
    copy : bool, optional
        None and False share; True copies.

    Raises
    ------
    BufferError
        cuda.core has no such element type.
    """
    from cuda.core.utils import StridedMemoryView

    source = base.shareable("cuda.core", tensor, copy, None)
    stream = NOT_ORDERED if tensor.device.type == "cpu" else LEGACY_STREAM
    with base.translated("cuda.core", tensor, (RuntimeError, TypeError, ValueError)):
        taken = StridedMemoryView.from_dlpack(source, stream)
        str(taken.dtype)  # it accepts types that it cannot name, and fails only here
    return taken


def make(array: np.ndarray, packed: bool, device: str) -> StridedMemoryView:
    """A view of memory that dlfp4 allocates, since cuda.core allocates none on the host."""
    import dlfp4

    owned = dlfp4.asarray(array, copy=True)
    return from_tensor(owned.to_device("cuda:0") if device == "cuda" else owned)


def read(native: StridedMemoryView) -> np.ndarray:
    """The values, read at its address."""
    octets_at = base.octets_by_cuda if native.is_device_accessible else ctypes.string_at
    return base.read_memory(native.ptr, native.shape, native.dtype, native.strides, octets_at)


def pointer(native: StridedMemoryView) -> int:
    """The address of the first element."""
    return int(native.ptr)


def cannot_export(native: StridedMemoryView) -> str | None:
    """Why it cannot export bfloat16, which its exchange table refuses without a message."""
    if native.dtype == base.dtype_of("bfloat16"):
        return "it takes bfloat16 and hands none out; hand over what it views, x.exporting_obj"
    return None


FRAMEWORK = base.Framework(
    module="cuda.core",
    file="cuda_core",
    dtypes=frozenset((*base.COMMON, *base.COMPLEX, "bfloat16")),
    make=make,
    from_tensor=from_tensor,
    read=read,
    pointer=pointer,
    devices=("cpu", "cuda"),
    gpu_missing=base.cuda_missing,
    cannot_export=cannot_export,
)
