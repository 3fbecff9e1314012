"""NumPy: all types of ml_dtypes, one element an item; from 2.5 on also through ``numpy.from_dlpack``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dlfp4._core import _wire_of
from dlfp4.frameworks import base

if TYPE_CHECKING:
    from dlfp4 import Tensor

REGISTRABLE = ("bfloat16", *base.FP8)  # which fill whole bytes


def register_dlpack_dtypes() -> None:
    """Teach NumPy 2.5 or newer to exchange bfloat16 and FP8 itself; older versions cannot learn it.

    A type that another package has registered already is left as it is.
    """
    register = getattr(np.dtypes, "register_dlpack_dtype", None)
    if register is None:
        return
    for name in REGISTRABLE:
        try:
            register(_wire_of(name), base.dtype_of(name))
        except ValueError:
            continue  # another package's registration serves as well


def from_tensor(tensor: Tensor, copy: bool | None = None) -> np.ndarray:
    """A NumPy array; see :meth:`dlfp4.Tensor.to_numpy`."""
    return tensor.to_numpy(copy)


def make(array: np.ndarray, packed: bool, device: str) -> np.ndarray:
    """A fresh array."""
    return array.copy()


def read(native: np.ndarray) -> np.ndarray:
    """The array itself."""
    return native


def pointer(native: np.ndarray) -> int:
    """The address of the first element."""
    return native.ctypes.data


FRAMEWORK = base.Framework(
    module="numpy",
    dtypes=frozenset((*base.COMMON, *base.COMPLEX, "bfloat16", *base.FP8, *(t + base.PADDED for t in base.SUBBYTE))),
    make=make,
    from_tensor=from_tensor,
    read=read,
    pointer=pointer,
)
