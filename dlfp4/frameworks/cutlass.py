"""CuTe DSL: imports legacy capsules for its kernels, including FP8, packed FP6 and packed FP4; exports nothing."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np

from dlfp4.frameworks import base

if TYPE_CHECKING:
    from cutlass import cute

    from dlfp4 import Tensor

HELD = (
    *base.COMMON, "bfloat16",
    "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu",
    *base.FP6, base.FP4,
)  # fmt: skip
# CuTe's class names in lower case, to dlfp4's names.
NAMES = {name.replace("_", ""): name for name in HELD} | {"boolean": "bool"}


def from_tensor(tensor: Tensor, copy: bool | None = None) -> cute.Tensor:
    """A ``cutlass.cute.Tensor`` over the memory of a dlfp4 Tensor, for a function of ``cute.jit``.

    CuTe orders no streams: launch work that reads GPU memory on the stream on which that memory becomes ready.

    Parameters
    ----------
    tensor : dlfp4.Tensor
        Shape ``(...)``, on the host or a GPU.
    copy : bool, optional
        None shares, but copies read-only memory; False never copies; True always does.

    Raises
    ------
    BufferError
        CuTe has no such element type (complex, integers below 8 bits, FP8 with one zero but for
        ``float8_e4m3b11fnuz``), or ``copy=False`` and the memory is read-only.
    """
    from cutlass.cute.runtime import from_dlpack

    base.refuse_padded("CuTe", tensor, "it would take padded elements for packed ones")
    source = base.shareable("CuTe", tensor, copy, base.read_only_obstacle(tensor))
    with base.translated("CuTe", tensor, (AttributeError, RuntimeError, TypeError, ValueError)):
        native = from_dlpack(source, assumed_align=_alignment(tensor))
        str(native.element_type)  # it reads the capsule only when it is first asked
    return native


def _alignment(tensor: Tensor) -> int | None:
    """The alignment in bytes to assume, or None for CuTe's default.

    The default is ``bits // 8``. It is 0 for types below 8 bits, CuTe's bool included; kernels divide by it, which ends
    the process.
    """
    return 1 if tensor.dtype.name in (*base.SUBBYTE, "bool") else None


def read(native: cute.Tensor) -> np.ndarray:
    """The values, read at its address; it does not tell on which device that is."""
    name = native.element_type.__name__.lower()
    dtype = base.dtype_of(NAMES.get(name, name))
    octets_at = ctypes.string_at if base.cuda_missing() else base.octets_by_cuda
    return base.read_memory(pointer(native), native.shape, dtype, native.stride, octets_at)


def pointer(native: cute.Tensor) -> int:
    """The address of the first element."""
    return int(native.data_ptr)


FRAMEWORK = base.Framework(
    module="cutlass",
    dtypes=frozenset(HELD),
    make=None,
    from_tensor=from_tensor,
    read=read,
    pointer=pointer,
    devices=("cpu", "cuda"),
    gpu_missing=base.cuda_missing,
)
