"""TensorFlow: legacy capsules of compact, 64-byte aligned memory; it holds FP8, FP4 and int4 but exchanges none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dlfp4.frameworks import base

if TYPE_CHECKING:
    import tensorflow as tf

    from dlfp4 import Tensor

ALIGNMENT = 64
FP8 = ("float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")


def from_tensor(tensor: Tensor, copy: bool | None = None) -> tf.Tensor:
    """A ``tf.Tensor`` of a dlfp4 Tensor, over its memory where TensorFlow can share it.

    TensorFlow shares compact, writable memory that is aligned to 64 bytes, and assumes that it never changes. Other
    memory is copied: unaligned memory would end the process at TensorFlow's first operation.

    Parameters
    ----------
    tensor : dlfp4.Tensor
        Shape ``(...)``.
    copy : bool, optional
        None shares, but copies where TensorFlow cannot share; False never copies; True always does.

    Raises
    ------
    BufferError
        TensorFlow exchanges no such element type, or ``copy=False`` and a copy is needed.
    """
    import tensorflow as tf

    source = base.shareable("TensorFlow", tensor, copy, _obstacle(tensor))
    with base.translated("TensorFlow", tensor, errors()):
        return tf.experimental.dlpack.from_dlpack(source.__dlpack__())


def _obstacle(tensor: Tensor) -> str | None:
    """Why TensorFlow cannot share the memory of a tensor, or None."""
    if tensor.readonly:
        return "its capsules cannot say read-only"
    if not base.starts_on_border(tensor, ALIGNMENT):
        return f"its tensors start on a {ALIGNMENT}-byte border"
    if not base.is_row_major(tensor):
        return f"its tensors are compact, the strides are {tensor.strides}"
    return None


def errors() -> tuple[type[Exception], ...]:
    """The exceptions with which TensorFlow refuses an exchange."""
    import tensorflow as tf

    return (tf.errors.OpError, RuntimeError, TypeError, ValueError)


def make(array: np.ndarray, packed: bool, device: str) -> tf.Tensor:
    """A constant of the same values."""
    import tensorflow as tf

    return tf.constant(array)


def read(native: tf.Tensor) -> np.ndarray:
    """The values through ``Tensor.numpy()``."""
    values: np.ndarray = native.numpy()
    return values


def pointer(native: tf.Tensor) -> int | None:
    """The address of the first element, from the buffer protocol, or None for types that NumPy lacks."""
    import tensorflow as tf

    known = tf.bitcast(native, tf.uint16) if native.dtype == tf.bfloat16 else native
    try:
        return np.asarray(memoryview(known)).ctypes.data
    except ValueError:
        return None


def cannot_export(native: tf.Tensor) -> str | None:
    """Why a tensor without numbers cannot be exported: TensorFlow would end the process, as with numpy.from_dlpack."""
    if native.dtype.name in ("string", "resource", "variant"):
        return f"a tensor of {native.dtype.name} has no numbers in memory"
    return None


FRAMEWORK = base.Framework(
    module="tensorflow",
    dtypes=frozenset(
        (
            *(*base.COMMON, *base.COMPLEX, "bfloat16", *FP8),
            *(t + base.PADDED for t in (base.FP4, "int4", "uint4", "int2", "uint2")),
        )
    ),
    make=make,
    from_tensor=from_tensor,
    read=read,
    pointer=pointer,
    errors=errors,
    cannot_export=cannot_export,
    immutable=True,
    environ={"TF_CPP_MIN_LOG_LEVEL": "3"},
)
