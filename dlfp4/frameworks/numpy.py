"""NumPy: all types of ml_dtypes, one element an item; from 2.5 on also through ``numpy.from_dlpack``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

from dlfp4.frameworks import base

if TYPE_CHECKING:
    from dlfp4 import Tensor

# DLPack code and bits of the types that NumPy can exchange once they are registered: those that fill whole bytes.
REGISTRABLE = {
    "bfloat16": (4, 16),
    "float8_e3m4": (7, 8),
    "float8_e4m3": (8, 8),
    "float8_e4m3b11fnuz": (9, 8),
    "float8_e4m3fn": (10, 8),
    "float8_e4m3fnuz": (11, 8),
    "float8_e5m2": (12, 8),
    "float8_e5m2fnuz": (13, 8),
    "float8_e8m0fnu": (14, 8),
}


def register_dlpack_dtypes() -> None:
    """Teach NumPy 2.5 or newer to exchange bfloat16 and FP8 itself; older versions cannot learn it.

    A type that another package has registered already is left as it is.
    """
    register = getattr(np.dtypes, "register_dlpack_dtype", None)
    if register is None:
        return
    for name, wire in REGISTRABLE.items():
        try:
            register(wire, np.dtype(getattr(ml_dtypes, name)))
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
