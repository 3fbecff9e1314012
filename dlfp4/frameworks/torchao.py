"""torchao: its tensors of NVFP4 and MX formats, which are quantized tensors, in and out over the same memory.

They are no producers: the core asks here where it meets one (``asarray``), and ``ScaledTensor.to_torchao`` does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dlfp4._core import ScaledTensor, _parse_dtype, _refuse_hadamard, _refuse_turned, asarray, formats, pack, unpack
from dlfp4.extents import count_elements
from dlfp4.formats import FLOATS
from dlfp4.frameworks import base
from dlfp4.show import summary

if TYPE_CHECKING:
    from dlfp4._core import Tensor

BLOCKED: Literal["128x4"] = "128x4"  # torchao's "swizzled"
ELEMENTS = {  # by torchao's names, which are PyTorch's types or its own
    "float4_e2m1fn_x2": "float4_e2m1fn",
    "fp6_e2m3": "float6_e2m3fn",
    "fp6_e3m2": "float6_e3m2fn",
    "float8_e4m3fn": "float8_e4m3fn",
    "float8_e5m2": "float8_e5m2",
}


def from_torchao(x: Any, copy: bool | None = None) -> ScaledTensor:
    """A ScaledTensor over the memory of an NVFP4Tensor or MXTensor; FP6, which torchao keeps one a byte, is packed,
    which ``copy=False`` forbids.
    """
    kind = type(x).__name__
    if kind not in ("NVFP4Tensor", "MXTensor"):
        raise TypeError(
            f"torchao's {kind} is not one of its block-scaled tensors that dlfp4 knows, NVFP4Tensor and MXTensor; pass "
            f"its parts to dlfp4.ScaledTensor.from_parts, or its values, .dequantize()"
        )
    if x.qdata.ndim > 1 and x.qdata.stride(-2) < x.qdata.stride(-1):  # columns, by torchao's own sign
        return from_rows(x, x.qdata.transpose(-2, -1), x.scale.transpose(-2, -1), copy).mT
    return from_rows(x, x.qdata, x.scale, copy)


def from_rows(x: Any, qdata: Any, scale: Any, copy: bool | None) -> ScaledTensor:
    """The same of data whose blocks run along its last dimension."""
    format = format_of(x)
    data, scales = asarray(qdata), asarray(scale)
    if format.element.name in base.FP6:
        if copy is False:
            raise BufferError(
                f"{type(x).__name__} keeps {format.element} one a byte; packing it needs a copy, which copy=False "
                f"forbids"
            )
        data = pack(as_element(data, format.element))
    elif data.dtype == np.uint8:
        data = data.view(format.element)
    unit = getattr(x, "per_tensor_scale", None)
    swizzled = bool(x.is_swizzled_scales)
    if swizzled:
        check_tiles(x, data.shape, scales.size)
        scales = scales.reshape(-1)
    return ScaledTensor.from_parts(
        data,
        scales,
        None if unit is None else asarray(unit.reshape(-1) if unit.numel() > 1 else unit.reshape(())),
        format=format,
        scale_layout=BLOCKED if swizzled else "linear",
        shape=data.shape,
    )


def format_of(x: Any) -> Any:
    """The format of a torchao tensor; ValueError where dlfp4 has none."""
    if type(x).__name__ == "NVFP4Tensor":
        element, kind = "float4_e2m1fn", "two_level"
    else:
        element, kind = ELEMENTS.get(str(x.elem_dtype).removeprefix("torch."), ""), "power"
    for row in formats().values():
        if (row.element.name, row.kind, row.block, row.repeats_scales) == (element, kind, (1, x.block_size), False):
            return row
    raise ValueError(
        f"{type(x).__name__} with {x.block_size} elements of {element or x.elem_dtype} a block is not a format of dlfp4"
    )


def as_element(data: Tensor, element: np.dtype[Any]) -> Tensor:
    """Bytes as elements of a type below 8 bits, one a byte."""
    return asarray(data.to_numpy().view(element))


def check_tiles(x: Any, shape: tuple[int, ...], size: int) -> None:
    """ValueError where torchao pads each matrix of a stack by itself."""
    rows = count_elements(shape[:-1])
    expected = -(-rows // 128) * 128 * (-(-shape[-1] // x.block_size // 4) * 4)
    if size != expected:
        raise ValueError(
            f"{type(x).__name__} of shape {shape} has {size} swizzled scales; expected {expected}, tiles of all "
            f"rows as one matrix"
        )


# ---- Out


def to_torchao(q: ScaledTensor, dtype: Any = "bfloat16") -> Any:
    """An NVFP4Tensor or MXTensor over the memory of a ScaledTensor; FP6 becomes one element a byte."""
    _refuse_turned(q)
    if q.axis == -2:
        return to_torchao(q.mT, dtype).t()
    _refuse_hadamard(q, "torchao")
    if q.scale_layout not in ("linear", BLOCKED):
        q = q.with_scale_layout("linear")
    if q.format.kind == "largest" or q.format.repeats_scales or (q.format.block or (0, 0))[0] != 1:
        raise ValueError(
            f"{summary(q)}: torchao's block-scaled tensors are NVFP4 and MX with blocks of one line; q.to('torchao') "
            f"gives such a tensor"
        )
    if q.global_scale is not None and q.global_scale.size not in (1, count_elements(q.shape[:-2])):
        raise ValueError(
            f"{summary(q)} has a global scale per row, and torchao's tensors have one per "
            f"matrix; q.to(dlfp4.Recipe()) has one, and other codes"
        )
    if q.data.shape[-1] != q.shape[-1] or q.ndim < 2:
        raise ValueError(f"{summary(q)}: torchao's tensors are matrices of whole blocks, or stacks of such")
    import torch

    name = _parse_dtype(dtype).name
    if name not in FLOATS:
        raise ValueError(f"dtype={dtype!r}: torchao takes a tensor for one of {', '.join(FLOATS)}")
    origin = getattr(torch, name)
    data, scales = parts_of(q)
    swizzled = q.scale_layout == BLOCKED
    if q.format.kind == "two_level":
        nvfp4 = import_module("torchao.prototype.mx_formats.nvfp4_tensor")
        return nvfp4.NVFP4Tensor(data, scales, 16, origin, unit_of(q), is_swizzled_scales=swizzled)
    mx_tensor = import_module("torchao.prototype.mx_formats.mx_tensor")
    names = {ours: theirs for theirs, ours in ELEMENTS.items()}
    element = names[q.format.element.name]
    return mx_tensor.MXTensor(
        data,
        scales,
        element if element.startswith("fp6") else getattr(torch, element),
        (q.format.block or (1, 32))[1],
        origin,
        mx_tensor.KernelPreference.EMULATED,
        None,
        swizzled,
    )


def parts_of(q: ScaledTensor) -> tuple[Any, Any]:
    """Data and scales as torchao has them."""
    import torch

    name = q.format.element.name
    data = q.data.reshape(q.shape)
    if name in base.FP6:
        theirs = torch.from_numpy(unpack(data).to_numpy().view(np.uint8))
    else:
        theirs = (data.view("uint8") if name == base.FP4 else data).to_torch()
    scales = q.scales
    if q.scale_layout == "linear":
        scales = scales.reshape((*q.shape[:-1], scales.shape[-1]))
    return theirs, scales.to_torch()


def unit_of(q: ScaledTensor) -> Any:
    """The global scale: 0-d, or (E, 1, 1)."""
    if q.global_scale is None:
        return None
    unit = q.global_scale.to_torch()
    return unit.reshape(-1, 1, 1) if unit.ndim else unit
