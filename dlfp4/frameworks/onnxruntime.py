"""ONNX Runtime: legacy capsules of compact memory both ways; from 1.32 on FP8 and packed FP4, int4 and int2, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dlfp4.frameworks import base

if TYPE_CHECKING:
    from onnxruntime import OrtValue

    from dlfp4 import Tensor

# TensorProto.DataType of the ONNX standard; ONNX Runtime makes no complex (14, 15) or FP6 (27, 28) tensors.
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
    "uint4": 21,
    "int4": 22,
    "float4_e2m1fn": 23,
    "float8_e8m0fnu": 24,
    "uint2": 25,
    "int2": 26,
}
NAMES = {number: name for name, number in ONNX_TYPES.items()}


def from_tensor(tensor: Tensor, copy: bool | None = None) -> OrtValue:
    """An ``onnxruntime.OrtValue`` over the memory of a dlfp4 Tensor.

    Parameters
    ----------
    tensor : dlfp4.Tensor
        Shape ``(...)``.
    copy : bool, optional
        None shares, but copies memory that is read-only or not row-major; False never copies; True always does.

    Raises
    ------
    BufferError
        ONNX Runtime exchanges no such element type (before 1.32, below 16 bits only 8-bit integers), or
        ``copy=False`` and a copy is needed.
    """
    from onnxruntime import OrtValue

    base.refuse_padded("ONNX Runtime", tensor)  # 1.30 ends the process on a versioned capsule
    obstacle = None if base.is_row_major(tensor) else f"its tensors are compact, the strides are {tensor.strides}"
    source = base.shareable("ONNX Runtime", tensor, copy, obstacle or base.read_only_obstacle(tensor))
    with base.translated("ONNX Runtime", tensor, (RuntimeError, TypeError, ValueError)):
        return OrtValue.from_dlpack(source)


def make(array: np.ndarray, packed: bool, device: str) -> OrtValue:
    """A value over a copy of the array, which it keeps alive; packed elements fill only the first bytes."""
    from onnxruntime import OrtValue

    bits = base.bits_view(array.copy())
    if packed:
        codes = base.pack_array(array)
        bits.reshape(-1)[: codes.size] = codes
    return OrtValue.ortvalue_from_numpy_with_onnx_type(bits, ONNX_TYPES[array.dtype.name])


def read(native: OrtValue) -> np.ndarray:
    """The values, read at its address: its own ``numpy()`` has no bfloat16 and no integers below 8 bits."""
    number = native.element_type()
    dtype = base.dtype_of(NAMES.get(number, f"ONNX type {number}"))
    return base.read_memory(native.data_ptr(), native.shape(), dtype)


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
