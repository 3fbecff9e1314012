"""ONNX Runtime: an OrtValue takes and gives legacy capsules of compact memory; FP8, FP4 and int4 stay inside."""

from __future__ import annotations

from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

from dlfp4.frameworks import base

if TYPE_CHECKING:
    from onnxruntime import OrtValue

    from dlfp4 import Tensor

# TensorProto.DataType of the ONNX standard.
ONNX_TYPES = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "uint16": 4,
    "int16": 5,
    "int32": 6,
    "int64": 7,
    "bool": 9,
    "float16": 10,
    "float64": 11,
    "uint32": 12,
    "uint64": 13,
    "bfloat16": 16,
    "float8_e4m3fn": 17,
    "float8_e4m3fnuz": 18,
    "float8_e5m2": 19,
    "float8_e5m2fnuz": 20,
    "float8_e8m0fnu": 24,
}
DTYPES = {number: np.dtype(getattr(ml_dtypes, name, name)) for name, number in ONNX_TYPES.items()}


def from_tensor(tensor: Tensor, copy: bool | None = None) -> OrtValue:
    """An ``onnxruntime.OrtValue`` over the memory of a dlfp4 Tensor.

    Parameters
    ----------
    tensor : dlfp4.Tensor
        Shape ``(...)``.
    copy : bool, optional
        None shares, and copies read-only memory and memory that is not row-major; False never copies; True always does.

    Raises
    ------
    BufferError
        ONNX Runtime exchanges no such element type, or ``copy=False`` and a copy is needed.
    """
    from onnxruntime import OrtValue

    if tensor.dtype.name in base.SUBBYTE and not tensor.packed:  # 1.30 ends the process on a capsule that is not legacy
        reason = "it reads legacy capsules, which cannot say padded"
        raise base.RefusedError("ONNX Runtime", tensor, reason, base.bytes_remedy(tensor))
    obstacle = None if base.is_row_major(tensor) else f"its tensors are compact, the strides are {tensor.strides}"
    source = base.shareable("ONNX Runtime", tensor, copy, obstacle or base.read_only_obstacle(tensor))
    with base.translated("ONNX Runtime", tensor, (RuntimeError, TypeError, ValueError)):
        return OrtValue.from_dlpack(source)


def make(array: np.ndarray, packed: bool, device: str) -> OrtValue:
    """A value over a copy of the array, which it keeps alive."""
    from onnxruntime import OrtValue

    bits = base.bits_view(array.copy())
    return OrtValue.ortvalue_from_numpy_with_onnx_type(bits, ONNX_TYPES[array.dtype.name])


def read(native: OrtValue) -> np.ndarray:
    """The values from its address: its own ``numpy()`` does not know bfloat16."""
    return base.read_memory(native.data_ptr(), native.shape(), DTYPES[native.element_type()])


def pointer(native: OrtValue) -> int:
    """The address of the first element."""
    return int(native.data_ptr())


FRAMEWORK = base.Framework(
    module="onnxruntime",
    dtypes=frozenset(ONNX_TYPES),
    make=make,
    from_tensor=from_tensor,
    read=read,
    pointer=pointer,
)
