"""TransformerEngine: its quantized tensors of PyTorch, which become ScaledTensors over the same memory.

They are no producers: the core asks here where it meets one (``asarray``). What is read are the attributes of its
storage classes, as its source has them in 2026; the library itself, which needs a GPU and its own build, is
never imported and was never run with this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dlfp4._core import ScaledTensor, asarray
from dlfp4.extents import count_elements

if TYPE_CHECKING:
    from collections.abc import Callable

ELEMENTS = {"kFloat8E4M3": "e4m3", "kFloat8E5M2": "e5m2"}  # by the names of its enumeration
TILE = (128, 4)  # scales are padded to whole ones
REACH = 2688  # the largest magnitude of NVFP4 over its global scale: 6 * 448
LEAST = 1 / float(np.finfo(np.float32).max)  # of a global scale, which has a finite reciprocal


def from_transformer_engine(x: Any, copy: bool | None = None) -> ScaledTensor:
    """A ScaledTensor over the memory of an NVFP4Tensor, MXFP8Tensor or Float8Tensor.

    Of a tensor with both directions the one along rows is taken. The global scale of NVFP4 is made of the largest
    magnitude that TransformerEngine keeps. Nothing is copied, whatever `copy` says.
    """
    kind = type(x).__name__.removesuffix("Storage").removesuffix("Base")
    read = KINDS.get(kind)
    if read is None:
        raise TypeError(
            f"TransformerEngine's {kind} is not one of its tensors that dlfp4 knows, {', '.join(KINDS)}; pass its "
            f"parts to dlfp4.ScaledTensor.from_parts, or its values, .dequantize()"
        )
    return read(x)


class Parts(NamedTuple):
    """What TransformerEngine keeps of one direction."""

    data: Any
    scales: Any
    amax: Any = None


def rows_of(x: Any) -> Parts | None:
    """Along rows; None where it is not kept."""
    if x._rowwise_data is None:
        return None
    return Parts(x._rowwise_data, x._rowwise_scale_inv, getattr(x, "_amax_rowwise", None))


def columns_of(x: Any) -> Parts:
    """Along columns; ValueError where there is nothing at all."""
    if x._columnwise_data is None:
        raise ValueError(f"{type(x).__name__} has neither rows nor columns: its memory was cleared, or saved elsewhere")
    return Parts(x._columnwise_data, x._columnwise_scale_inv, getattr(x, "_amax_columnwise", None))


def lines_of(data: Any, length: int) -> tuple[int, int]:
    """How many lines data has, and how many blocks of so many elements a line."""
    return count_elements(data.shape[:-1]), -(-data.shape[-1] // length)


def join(x: Any, format: str, parts: Parts, shape: tuple[int, ...]) -> ScaledTensor:
    """A tensor whose blocks run along its last dimension."""
    data = asarray(parts.data)
    blocks = lines_of(data.view("float4_e2m1fn") if format == "nvfp4" else data, 16 if format == "nvfp4" else 32)
    swizzled = bool(getattr(x, "_with_gemm_swizzled_scales", False))
    expected = tuple(-(-size // whole) * whole for size, whole in zip(blocks, TILE, strict=True))
    if parts.scales.numel() != count_elements(expected):
        raise ValueError(
            f"{type(x).__name__} of shape {shape} has {parts.scales.numel()} scales; expected {expected}, whole tiles"
        )
    scales = asarray(parts.scales).reshape(expected)
    return ScaledTensor.from_parts(
        data,
        scales.reshape(-1) if swizzled else scales[: blocks[0], : blocks[1]],
        None if parts.amax is None else asarray(global_scale(parts.amax)),
        format=format,
        scale_layout="128x4" if swizzled else "linear",
        shape=shape,
    )


def global_scale(amax: Any) -> Any:
    """The decode scale of a tensor, or of each row, by its largest magnitude: 1 of zeros."""
    unit = (amax / amax.new_full((), REACH)).clamp(min=LEAST).masked_fill(amax == 0, 1)  # a number would be inverted
    return unit.reshape(()) if unit.numel() == 1 else unit.reshape(-1)


def read_nvfp4(x: Any) -> ScaledTensor:
    """Data along columns lies transposed."""
    parts = rows_of(x)
    if parts is not None:
        return join(x, "nvfp4", parts, (*parts.data.shape[:-1], 2 * parts.data.shape[-1]))
    parts = columns_of(x)
    return join(x, "nvfp4", parts, (parts.data.shape[0], 2 * parts.data.shape[-1])).mT


def read_mxfp8(x: Any) -> ScaledTensor:
    """Data and scales along columns lie as the matrix does."""
    format = f"mxfp8_{element_of(x)}"
    parts = rows_of(x)
    if parts is not None:
        return join(x, format, parts, tuple(parts.data.shape))
    parts = columns_of(x)
    rows, columns = count_elements(parts.data.shape[:-1]), parts.data.shape[-1]
    if getattr(x, "_with_gemm_swizzled_scales", False):
        raise ValueError(
            f"{type(x).__name__} has swizzled scales along columns alone, in an order that dlfp4 does not support"
        )
    scales = asarray(parts.scales)[: -(-rows // 32), :columns]
    return ScaledTensor.from_parts(asarray(parts.data).reshape((rows, columns)), scales, format=format, axis=-2)


def read_fp8(x: Any) -> ScaledTensor:
    """One scale; the transpose serves where it alone is kept."""
    format = f"fp8_{element_of(x)}"
    scale = asarray(x._scale_inv.reshape(()))
    if x._data is not None:
        return ScaledTensor.from_parts(as_element(x._data, format), scale, format=format)
    if x._transpose is None or x._transpose_invalid:
        raise ValueError(f"{type(x).__name__} has no data: its memory was cleared, or saved elsewhere")
    return ScaledTensor.from_parts(as_element(x._transpose, format), scale, format=format).mT


def as_element(data: Any, format: str) -> Any:
    """Bytes as elements of the format."""
    return asarray(data).view("float8_e4m3fn" if format.endswith("e4m3") else "float8_e5m2")


def element_of(x: Any) -> str:
    """The element type as formats name it; ValueError where it is none of theirs."""
    name = str(x._fp8_dtype).rpartition(".")[-1]
    if name not in ELEMENTS:
        raise ValueError(f"{type(x).__name__} has elements {name}; expected {' or '.join(ELEMENTS)}")
    return ELEMENTS[name]


KINDS: dict[str, Callable[[Any], ScaledTensor]] = {
    "NVFP4Tensor": read_nvfp4,
    "MXFP8Tensor": read_mxfp8,
    "Float8Tensor": read_fp8,
}
