"""TensorProto inside ``torch.compile``: there it describes and allocates PyTorch's tensors, a constant by value.

Dynamo traces the class itself. What it cannot trace are functions in C; here they are called while it traces, with
constants alone: names, extents, flags.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._pytree import register_constant

from dlfp4 import _core, proto
from dlfp4._core import Device
from dlfp4.formats import FLOATS, Format, offsets_of
from dlfp4.formats import granularity_of as granularity_by_count
from dlfp4.frameworks.torch import element_name
from dlfp4.operations import Encoding
from dlfp4.proto import InGraph, TensorProto, constant_signs, constants
from dlfp4.torch.representing import PAIRS, Parts, as_parts, described, device_of, single_shape, unpacked


def describe(x: Any) -> TensorProto:
    """The description of a tensor, of parts, or of a tuple of parts along two axes."""
    if isinstance(x, (tuple, list)) and not isinstance(x, Parts):
        axes = [facts_of(as_parts(each).type)[1] for each in x]
        return describe_quantized(as_parts(x[0]), axes)
    parts = as_parts(x)
    if parts.scales is not None:
        return describe_quantized(parts, [facts_of(parts.type)[1]])
    data = parts.data
    name, _, how = parts.type.partition("/")
    if name:
        padded = how == "padded"
        shape = tuple(data.shape) if padded else unpacked(tuple(data.shape), name)
        return TensorProto(shape, name, None, device_of(data), packed=not padded)
    shape = single_shape(data) if data.dtype == PAIRS else tuple(data.shape)
    return TensorProto(shape, name_of(data.dtype), None, device_of(data), data.requires_grad)


def describe_quantized(x: Parts, axes: list[int]) -> TensorProto:
    """That of parts, by what they say of themselves."""
    name, axis, layout, hadamard, zero_points, biases = facts_of(x.type)
    if x.shape is None or x.scales is None:
        raise TypeError(f"parts of type {x.type!r} without shape or scales: give what dlfp4.torch.quantize returns")
    shape = constants(x.shape)
    unit = x.global_scale
    return TensorProto(
        shape,
        format=name,
        device=device_of(x.data),
        scale_layout=layout,
        pad=completes(shape, name, tuple(axes)),
        rowwise=-1 in axes,
        columnwise=-2 in axes,
        scale_dtype=scale_type_of(name, x.scales.dtype),
        global_scale_per=granularity_of(name, axis, shape, None if unit is None else constants(unit.shape)),
        hadamard=hadamard,
        zero_points=zero_points,
        biases=biases,
    )


def allocate(made: TensorProto) -> Any:
    """A tensor of a description, or its parts, with memory that is not initialised."""
    device = [name for name, device in proto.DEVICES.items() if device is made.device][0]  # noqa: RUF015
    named = {}
    for name, shape, dtype in specs(made):
        named[name] = torch.empty(shape, dtype=dtype, device=device)
    return unflatten(made, named)


def specs(made: TensorProto) -> Any:
    """The buffers by name, with their shapes and types in PyTorch."""
    element = None if made.dtype is None else made.dtype.name
    name = None if made.format is None else made.format.name
    how = (made.packed, made.scale_layout, made.pad, made.rowwise, made.columnwise, made.scale_dtype)
    others = (constant_signs(made.hadamard), made.zero_points, made.biases)
    return specs_of_constants(made._extents, element, name, *how, made.global_scale_per, *others)


def flatten(made: TensorProto, x: Any) -> dict[str, torch.Tensor]:
    """The buffers of a tensor by name, in the order of the description's."""
    if made.format is None:
        return {"data": as_parts(x).data}
    several = x if isinstance(x, (tuple, list)) and not isinstance(x, Parts) else (x,)
    found = {}
    for each in several:
        parts = as_parts(each)
        axis = facts_of(parts.type)[1]
        named = ("data", "scales", "global_scale", "biases" if made.biases else "zero_points")
        for name, part in zip(named, (*parts[:3], parts.offsets), strict=True):
            if part is not None:
                found[made._name(name, axis)] = part
    return {name: found[name] for name, _, _ in specs(made)}


def unflatten(made: TensorProto, buffers: Any) -> Any:
    """The tensor, or the parts, of given buffers."""
    names = [name for name, _, _ in specs(made)]
    named = buffers if isinstance(buffers, Mapping) else dict(zip(names, buffers, strict=True))
    if made.format is None:
        return named["data"]
    results = []
    for axis in made._axes:
        beside = "biases" if made.biases else "zero_points"
        parts: list[Any] = [named.get(made._name(name, axis)) for name in ("data", "scales", "global_scale", beside)]
        signs = constant_signs(made.hadamard)
        kind = text_of(made.format.name, axis, made.scale_layout, signs, made.zero_points, made.biases)
        results.append(Parts(parts[0], parts[1], parts[2], kind, made._extents, parts[3]))
    return results[0] if len(results) == 1 else tuple(results)


# ---- Functions of constants alone


def name_of(dtype: torch.dtype) -> str:
    """The name of an element type."""
    return element_name(dtype)


def facts_of(text: str) -> Any:
    """Format, axis, layout of scales, signs, types of zero points and of biases, by the text of an Encoding."""
    found = Encoding.parse(text)
    layout = "linear" if found.scale_layout == "prepared" else found.scale_layout
    return found.format, found.axis, layout, found.hadamard, *types_beside(found)


def types_beside(encoding: Encoding) -> tuple[Any, Any]:
    """The types of zero points and of biases, as TensorProto takes them."""
    if encoding.offsets in FLOATS:
        return None, encoding.offsets
    return encoding.offsets or ("none" if _core._find_format(encoding.format).has_integers else None), None


def text_of(
    format: str, axis: Any, scale_layout: Any, hadamard: tuple[int, ...] | None, zero_points: Any, biases: Any
) -> str:
    """The text of the Encoding with that format, axis, layout, signs, and types of zero points and biases."""
    offsets = offsets_of(_core._find_format(format), zero_points, biases)
    return str(Encoding(format, axis, scale_layout, hadamard, offsets=offsets))


def completes(shape: tuple[int, ...], format: str, axes: tuple[int, ...]) -> bool:
    """Whether blocks do not divide a shape, and so were completed."""
    return not all(_core._divides(shape, _core._find_format(format), axis) for axis in axes)


def granularity_of(format: str, axis: int, shape: tuple[int, ...], unit: tuple[int, ...] | None) -> Any:
    """Which part of a tensor its global scales are of, by their shape."""
    if not unit:
        return "tensor"
    return granularity_by_count(_core._find_format(format), shape, axis, unit[0])


def scale_type_of(format: str, dtype: torch.dtype) -> Any:
    """The name of the type of scales, which may come as bytes."""
    return _core._find_format(format).scale.name if dtype == torch.uint8 else element_name(dtype)


def specs_of_constants(
    shape: tuple[int, ...], dtype: Any, format: Any, packed: bool, scale_layout: Any, pad: bool, rowwise: bool,
    columnwise: bool, scale_dtype: Any, per: Any, hadamard: Any, zero_points: Any, biases: Any,
) -> Any:  # fmt: skip
    """The buffers of a description in PyTorch, of a TensorProto that is made of the same constants."""
    options = {} if format is None else {
        "scale_layout": scale_layout, "pad": pad, "rowwise": rowwise, "columnwise": columnwise,
        "scale_dtype": scale_dtype, "global_scale_per": per, "hadamard": hadamard,
        "zero_points": zero_points, "biases": biases,
    }  # fmt: skip
    made = TensorProto(shape, dtype, format, packed=packed, **options)
    return tuple((buffer.name, *described(buffer, made.packed)) for buffer in made.buffers())


for function in (
    *proto.CONSTANT, name_of, facts_of, text_of, completes, granularity_of, scale_type_of, specs_of_constants,
):  # fmt: skip
    torch.compiler.assume_constant_result(function)
for constant in (TensorProto, Format, Device):  # that of another value is for another graph
    register_constant(constant)
proto.IN_GRAPH.append(InGraph(torch.compiler.is_dynamo_compiling, describe, allocate, flatten, unflatten))
