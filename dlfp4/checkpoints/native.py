"""dlfp4's own way to keep quantized tensors in a file: every format, orientation and scale layout, exactly.

The parts are tensors of their own types (F4, F6_E2M3, F8_E8M0, ...), named as NVIDIA ModelOpt names them: the data as
the tensor, then ``_scale`` and ``_scale_2``, or ``_zero_points`` or ``_biases`` of integers. JSON under "dlfp4" in the
file's metadata describes them, and says which parts there are: ``"global_scale": false`` that one of two levels of
scales has no global scale. safetensors has no integers of 4 bits: those of data are stored two a byte, zero points
one a byte.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dlfp4 import ScaledTensor, Tensor, asarray
from dlfp4._core import _find_format, _in_shape_of, _parse_dtype, _refuse_turned, _with_encode_scale
from dlfp4.checkpoints.conventions import kept_encode_scale, merge, own_tensors
from dlfp4.checkpoints.names import listed
from dlfp4.checkpoints.safetensors import is_sizes
from dlfp4.formats import offset_parts
from dlfp4.parsing import brief, parse_json, shown
from dlfp4.spellings import Spelling

KEY = "dlfp4"
VERSION = 1
NAMES = Spelling("", (), global_scale="_scale_2")
MOST_FLOAT32 = float(np.finfo(np.float32).max)
BYTEWISE = {"uint4": "uint8", "int4": "int8"}  # how zero points of 4 bits are stored
RANGES = {"uint4": (0, 15), "int4": (-8, 7)}
OFFSETS = ("zero_points", "biases")  # of integers; described by their types


def split(tensors: Mapping[str, Any]) -> tuple[dict[str, Tensor], str]:
    """The parts to store, and the description that brings them together again; "" where nothing is quantized."""
    parts: dict[str, Tensor] = {}
    described: dict[str, Any] = {}
    for name, given in own_tensors(tensors).items():
        if isinstance(given, ScaledTensor):
            _refuse_turned(given)
            # A prepared weight has the order of one device.
            x = given.with_scale_layout("linear") if given.scale_layout == "prepared" else given
            fields: dict[str, Any] = {
                "format": x.format.name,
                "shape": x.shape,
                "axis": x.axis,
                "scale_layout": x.scale_layout,
            }
            if x.format.has_global_scale and x.global_scale is None:
                fields["global_scale"] = False
            if x.hadamard is not None:
                fields["hadamard"] = x.hadamard
            encode_scale = kept_encode_scale(x)
            if encode_scale is not None:
                fields["encode_scale"] = described_scale(encode_scale)
            offsets = offset_parts(x)
            fields |= {kind: part.dtype.name for kind, part in offsets.items()}
            described[name] = fields
            merge(parts, dict(zip(NAMES.parts(name), shaped_parts(x), strict=False)))
            merge(parts, {f"{name}_{kind}": stored_offsets(x, part) for kind, part in offsets.items()})
        else:
            merge(parts, {name: given})
    return parts, as_text(described) if described else ""


def as_text(described: Mapping[str, Any]) -> str:
    """The descriptions of tensors, as the metadata of a file has them; the inverse of :func:`parse`."""
    return json.dumps({"version": VERSION, "tensors": described}, separators=(",", ":"))


def shaped_parts(q: ScaledTensor) -> list[Tensor]:
    """Data, scales and, if there is one, the global scale; N-dimensional where their rows are the tensor's."""
    data, scales = q.data, shaped_like_scales(q, q.scales)
    if q.axis == -1:
        data = data.reshape((*q.shape[:-1], data.shape[1]))
    data = data.view("uint8") if q.format.has_integers else data
    return [data, scales] if q.global_scale is None else [data, scales, q.global_scale]


def shaped_like_scales(q: ScaledTensor, part: Tensor) -> Tensor:
    """One for each scale, in the tensor's leading dimensions where each of its rows has some."""
    if q.axis == -1 and q.scale_layout == "linear" and part.ndim == 2 and part.shape[0] == q.data.shape[0]:
        return part.reshape((*q.shape[:-1], part.shape[1]))
    return part


def stored_offsets(q: ScaledTensor, part: Tensor) -> Tensor:
    """Zero points or biases; those of 4 bits one a byte."""
    bytewise = BYTEWISE.get(part.dtype.name)
    if bytewise is not None:
        part = asarray(part.to_device("cpu").to_numpy().astype(bytewise))
    return shaped_like_scales(q, part)


def described_scale(scale: Tensor) -> dict[str, Any]:
    """The numbers of an encode scale, exactly; infinity and NaN are no JSON."""
    numbers = scale.to_device("cpu").to_numpy()
    return {"shape": list(numbers.shape), "values": [number.hex() for number in numbers.reshape(-1).tolist()]}


def parse_scale(fields: Any) -> npt.NDArray[np.float32]:
    """An encode scale of its description."""
    if not isinstance(fields, dict) or fields.keys() != {"shape", "values"} or not is_sizes(fields["shape"]):
        raise ValueError(f"its encode scale is described by {shown(fields)}, expected shape and values")
    values = fields["values"]
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError(
            f"its encode scale has the values {shown(values)}, expected a list of numbers as float.hex() writes"
        )
    return np.array([parse_float32(value) for value in values], np.float32).reshape(fields["shape"])


def parse_float32(text: str) -> float:
    """A number as :func:`described_scale` writes it; ValueError where float32 does not hold it."""
    number = float.fromhex(text)
    if math.isfinite(number) and not (abs(number) <= MOST_FLOAT32 and float(np.float32(number)) == number):
        raise ValueError(f"its encode scale has the value {shown(text)}, which is not a float32 number")
    return number


def join(tensors: Mapping[str, Tensor], description: str) -> dict[str, Tensor | ScaledTensor]:
    """Undo :func:`split`; ValueError where the description does not fit the tensors."""
    return rebuilt(tensors, parse(description))


def rebuilt(tensors: Mapping[str, Tensor], described: Mapping[str, Any]) -> dict[str, Tensor | ScaledTensor]:
    """The same by the descriptions of some tensors; the parts of others stay."""
    parts = dict(tensors)
    joined = {name: rebuild(name, fields, parts) for name, fields in described.items()}
    taken = [name for name in joined if name not in parts]
    if taken:
        raise ValueError(
            f"{listed(taken)}: described as a tensor, and as a part of another one; expected one of the two"
        )
    return {name: joined.get(name, part) for name, part in parts.items()}


def parse(description: str) -> dict[str, Any]:
    """The descriptions by the tensors' names."""
    content = parse_json(description.encode(), f"the metadata under {KEY!r}")
    if not isinstance(content, dict) or not isinstance(content.get("tensors"), dict):
        raise ValueError(f"the metadata under {KEY!r} has no object of tensors")
    if content.get("version") != VERSION:
        raise ValueError(
            f"the metadata under {KEY!r} is version {shown(content.get('version'))}; this dlfp4 reads {VERSION}"
        )
    tensors: dict[str, Any] = content["tensors"]
    return tensors


def rebuild(name: str, fields: Any, parts: dict[str, Tensor]) -> ScaledTensor:
    """One tensor from its parts. Scales and global scale leave `parts`; the data stays, under the tensor's name."""
    called = brief(name)
    check_fields(called, fields)
    data, scales, unit = NAMES.parts(name)
    if data not in parts or scales not in parts:
        raise ValueError(
            f"{called} is described as {shown(fields['format'])}, but its parts {brief(data)} and {brief(scales)} are "
            f"not there"
        )
    offsets = {kind: f"{name}_{kind}" for kind in OFFSETS if kind in fields}
    for kind, part in offsets.items():
        if part not in parts:
            raise ValueError(f"{called} is described with {kind}, but its part {brief(part)} is not there")
    try:
        stored = take_global_scale(unit, fields, parts)
        described = {key: fields[key] for key in fields.keys() - {"global_scale", "encode_scale"}}
        described["shape"] = tuple(fields["shape"])
        described |= {kind: read_offsets(parts.pop(part), fields[kind]) for kind, part in offsets.items()}
        made = _in_shape_of(ScaledTensor.from_parts(parts[data], parts.pop(scales), stored, **described), stored)
        return with_encode_scale(made, parse_scale(fields["encode_scale"])) if "encode_scale" in fields else made
    except (TypeError, ValueError, OverflowError, BufferError) as error:
        raise ValueError(f"{called} is not what the metadata says: {error}") from error


def check_fields(called: str, fields: Any) -> None:
    """ValueError unless a tensor is described by the fields that :func:`split` writes. What reads them checks the
    others.
    """
    required = {"format", "shape", "axis", "scale_layout"}
    optional = {"global_scale", "encode_scale", "hadamard", *OFFSETS}
    if not isinstance(fields, dict) or fields.keys() - optional != required:
        raise ValueError(f"{called} is described by {shown(fields)}, expected format, shape, axis and scale_layout")
    if not is_sizes(fields["shape"]):
        raise ValueError(
            f"{called} is described with shape {shown(fields['shape'])}, expected a list of integers from 0, below "
            f"2**63"
        )
    if fields.get("global_scale", False) is not False:
        raise ValueError(
            f"{called} is described with global_scale {shown(fields['global_scale'])}, expected false, or no such "
            f"field where it has a global scale"
        )


def take_global_scale(unit: str, fields: Mapping[str, Any], parts: dict[str, Tensor]) -> Tensor | None:
    """The part that is a tensor's global scale; None of one that has none."""
    if "global_scale" in fields or not _find_format(fields["format"]).has_global_scale:
        return None
    if unit not in parts:  # without it values would be larger or smaller by any factor
        raise ValueError(f"its global scale, {brief(unit)}, is not there")
    return parts.pop(unit)


def with_encode_scale(q: ScaledTensor, encode_scale: npt.NDArray[np.float32]) -> ScaledTensor:
    """A tensor and the reciprocal as which its global scale was stored; ValueError where it is not that."""
    made = _with_encode_scale(q, encode_scale)
    if kept_encode_scale(made) is None:
        unit = "none" if q.global_scale is None else shown(q.global_scale.to_numpy().reshape(-1).tolist())
        raise ValueError(
            f"its global scale is {unit}, and its encode scale {shown(encode_scale.reshape(-1).tolist())}; expected "
            "each to be the reciprocal of the other"
        )
    return made


def read_offsets(stored: Tensor, dtype: Any) -> Any:
    """Zero points or biases in the type that they had."""
    if not isinstance(dtype, str):
        raise ValueError(f"its zero points or biases are described by {shown(dtype)}, expected the name of a type")
    expected = BYTEWISE.get(dtype, dtype)
    if stored.dtype.name != expected:
        raise ValueError(
            f"its zero points or biases are of {stored.dtype}; as they are described they are {shown(dtype)}, which is "
            f"stored as {shown(expected)}"
        )
    if dtype not in BYTEWISE:
        return stored
    codes, (least, most) = stored.to_numpy(), RANGES[dtype]
    wrong = codes[(codes < least) | (codes > most)]
    if wrong.size:
        raise ValueError(f"it has the zero point {wrong[0]}; expected {least} to {most}, as {dtype} has")
    return codes.astype(_parse_dtype(dtype))
