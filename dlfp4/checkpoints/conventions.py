"""How checkpoints name and store the parts of a quantized tensor: a table, and the functions that join and split by it.

Sources: the exporters of NVIDIA ModelOpt and of compressed-tensors (llm-compressor), openai/gpt-oss, deepseek-ai. All
of them pack FP4 with the even element in the low nibble and keep scales in rows, as dlfp4 does. They differ only in
names, containers and the meaning of the global scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import dlfp4
from dlfp4 import ScaledTensor, Tensor
from dlfp4.formats import Format
from dlfp4.show import summary

GPT_OSS_BYTES = 16  # bytes in a block of 32 elements; they form an axis of their own


@dataclass(frozen=True)
class Spelling:
    """One way to store a quantized tensor: a part is named by a stem and the suffix given here.

    Attributes
    ----------
    convention : str
        The name that :func:`split_parts` takes; "" marks a spelling that is only read.
    formats : tuple of str
        The formats stored this way. Where two look alike, the first is assumed on reading.
    data, scales, global_scale : str
        Suffixes of the parts; a `global_scale` of "" means that there is none.
    name : str
        Suffix of the tensor's own name.
    encodes : bool
        The stored global scale is the reciprocal of the decode scale.
    splits_blocks : bool
        The data has a separate axis for the blocks: (..., K / 32, 16).
    """

    convention: str
    formats: tuple[str, ...]
    data: str = ""
    scales: str = "_scale"
    global_scale: str = ""
    name: str = ""
    encodes: bool = False
    splits_blocks: bool = False

    def parts(self, stem: str) -> tuple[str, ...]:
        """The names of data, scales and, where there is one, the global scale."""
        names = (stem + self.data, stem + self.scales)
        return (*names, stem + self.global_scale) if self.global_scale else names


BYTES = ("mxfp8_e4m3", "mxfp8_e5m2", "fp8_e4m3", "fp8_e5m2")
TILES = ("fp8_128x128", "fp8_128x128_e5m2")
SPELLINGS = (
    Spelling("modelopt", ("nvfp4", "nvfp4_16x16"), global_scale="_scale_2"),
    Spelling("modelopt", ("mxfp4", *BYTES)),
    Spelling("compressed-tensors", ("nvfp4", "nvfp4_16x16"), "_packed", global_scale="_global_scale", encodes=True),
    Spelling("compressed-tensors", ("mxfp4",), "_packed"),
    Spelling("compressed-tensors", (*BYTES, *TILES)),
    Spelling("gpt-oss", ("mxfp4",), "_blocks", "_scales", splits_blocks=True),
    Spelling("", ("mxfp4",), ".blocks", ".scales", splits_blocks=True),  # gpt-oss in the names of OpenAI's own files
    Spelling("deepseek", ("fp8_128x128", "fp8_e4m3"), scales="_scale_inv"),
    Spelling("", ("mxfp4",), ".weight", ".scale", name=".weight"),  # DeepSeek-V4's experts, two elements in an int8
)
CONVENTIONS = tuple(dict.fromkeys(spelling.convention for spelling in SPELLINGS if spelling.convention))


# ---- Parts to tensors


def join_parts(tensors: Mapping[str, Any]) -> dict[str, Tensor | ScaledTensor]:
    """Join the parts of quantized tensors where names, types and shapes follow a known convention.

    Memory is shared, with two exceptions: global scales stored as reciprocals are inverted, and bfloat16 scales become
    float32. Tensors that follow no convention stay as they are. So do layers of ComfyUI, which packs the high nibble
    first and shuffles scales, and stacks of experts with one global scale per expert.

    Parameters
    ----------
    tensors : mapping of str to producer
        By the names in the checkpoint: a state dict, or what :func:`load` gives with ``join=False``.

    Returns
    -------
    dict of str to Tensor or ScaledTensor
        In the order of `tensors`. A quantized tensor takes the place of its data and the name that it had before
        quantization.

    Examples
    --------
    >>> import numpy as np
    >>> from dlfp4 import checkpoints
    >>> parts = {"up.weight": np.zeros((4, 16), np.uint8), "up.weight_scale": np.zeros((4, 1), np.uint8)}
    >>> {name: (str(q.format), q.shape) for name, q in checkpoints.join_parts(parts).items()}
    {'up.weight': ('mxfp4', (4, 32))}
    """
    found = {name: x if isinstance(x, ScaledTensor) else named(name, x) for name, x in tensors.items()}
    joined: dict[str, tuple[str, ScaledTensor]] = {}  # by the name of the data, whose place they take
    used: set[str] = set()
    wholes: set[str] = set()
    for spelling in SPELLINGS:
        for stem in [name.removesuffix(spelling.scales) for name in found if name.endswith(spelling.scales)]:
            names, whole = spelling.parts(stem), stem + spelling.name
            taken = whole in wholes or (whole in found and whole not in names)
            if taken or not used.isdisjoint(names) or is_foreign(names[0], found):
                continue
            quantized = assemble([found.get(name) for name in names], spelling)
            if quantized is not None:
                joined[names[0]] = whole, quantized
                wholes.add(whole)
                used.update(names)
    kept = {name: (name, tensor) for name, tensor in found.items() if name not in used}
    return dict((joined.get(name) or kept[name]) for name in found if name in joined or name in kept)


def is_foreign(name: str, found: Mapping[str, object]) -> bool:
    """Whether ComfyUI marked the layer: its parts have the usual names and types, but another memory order."""
    return f"{name.rpartition('.')[0]}.comfy_quant" in found


def assemble(parts: list[Any], spelling: Spelling) -> ScaledTensor | None:
    """The quantized tensor of these parts, or None where they do not fit the spelling."""
    if not all(isinstance(part, Tensor) for part in parts):
        return None
    data, scales = as_elements(parts[0], spelling), parts[1]
    if scales.ndim == 4 and scales.shape[1::2] == (1, 1):  # ModelOpt's tiles
        scales = scales.reshape(scales.shape[::2])
    decode = parts[2] if len(parts) > 2 else None
    if data is None or (decode is not None and not (decode.size == 1 and decode.dtype == np.float32)):
        return None
    for format in (dlfp4.formats()[name] for name in spelling.formats):
        if format.element == data.dtype and fits(scales, format, data.shape):
            decode = reciprocal(decode) if decode is not None and spelling.encodes else decode
            return ScaledTensor.from_parts(data, as_float32(scales), decode, format=format)
    return None


def as_elements(data: Tensor, spelling: Spelling) -> Tensor | None:
    """Data with its elements counted, (..., K), or None where it does not fit the spelling."""
    if data.ndim < 2 + spelling.splits_blocks or (spelling.splits_blocks and data.shape[-1] != GPT_OSS_BYTES):
        return None
    try:
        if spelling.splits_blocks:
            data = data.reshape((*data.shape[:-2], data.shape[-2] * GPT_OSS_BYTES))
        return data.view("float4_e2m1fn") if data.dtype.name in ("uint8", "int8") else data
    except (BufferError, ValueError):  # bytes that do not lie in rows
        return None


def fits(scales: Tensor, format: Format, shape: tuple[int, ...]) -> bool:
    """Whether the scales have a type and the shape that go with data of that shape."""
    containers = ("uint8", format.scale.name) if format.scale.itemsize == 1 else ("float32", "bfloat16")
    if scales.dtype.name not in containers:
        return False
    return scales.size == 1 if format.block is None else scales.shape == scales_shape(format, shape)


def scales_shape(format: Format, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape of the scales beside data of shape (..., N, K); None where a matrix does not divide into blocks."""
    lines, length = format.block or (1, 1)
    lines = 1 if format.repeats_scales else lines
    if (format.kind != "largest" and shape[-1] % length) or (len(shape) > 2 and shape[-2] % lines):
        return None
    return (*shape[:-2], -(-shape[-2] // lines), -(-shape[-1] // length))


def as_float32(scales: Tensor) -> Tensor:
    """Scales of a type that has no kernel of its own."""
    return dlfp4.cast(scales, "float32") if scales.dtype.name == "bfloat16" else scales


def reciprocal(scale: Tensor) -> np.float32:
    """1 / the global scale, as a number, which goes wherever the other parts lie."""
    with np.errstate(divide="ignore", over="ignore"):  # a broken checkpoint may store (nearly) 0
        return np.float32(1) / np.float32(scale.item())


# ---- Tensors to parts


def split_parts(tensors: Mapping[str, Any], convention: str) -> dict[str, Tensor]:
    """Split quantized tensors into the parts that a convention stores; the inverse of :func:`join_parts`.

    Memory is shared, except for the global scale of "compressed-tensors", which is the reciprocal of ours: rounded on
    the way out and back, it may change in its last bit. A format that looks like another comes back as the other, with
    the same values: "nvfp4_16x16" as "nvfp4", and in "compressed-tensors" an "fp8_128x128" of one block as "fp8_e4m3".

    Parameters
    ----------
    tensors : mapping of str to Tensor, ScaledTensor or producer
        By name; tensors that are not quantized stay as they are.
    convention : {"modelopt", "compressed-tensors", "gpt-oss", "deepseek"}
        The convention whose names and containers to use.

    Raises
    ------
    ValueError
        The convention is unknown or does not store a tensor's format; blocks do not run along the last axis, or scales
        are not linear; a global scale has no finite reciprocal; two parts have the same name.

    Examples
    --------
    >>> import dlfp4.checkpoints, numpy as np
    >>> q = dlfp4.quantize(np.ones((4, 64), np.float32), "mxfp4")
    >>> parts = dlfp4.checkpoints.split_parts({"experts.down_proj": q}, "gpt-oss")
    >>> {name: (part.dtype.name, part.shape) for name, part in parts.items()}
    {'experts.down_proj_blocks': ('uint8', (4, 2, 16)), 'experts.down_proj_scales': ('uint8', (4, 2))}
    """
    check_convention(convention)
    parts: dict[str, Tensor] = {}
    for name, x in tensors.items():
        merge(parts, split_one(name, x, convention) if isinstance(x, ScaledTensor) else {name: named(name, x)})
    return parts


def check_convention(convention: str) -> None:
    """ValueError for an unknown convention."""
    if convention not in CONVENTIONS:
        raise ValueError(f"convention={convention!r}: expected one of {', '.join(CONVENTIONS)}")


def find_spelling(format: Format, convention: str) -> Spelling:
    """How a convention stores a format; ValueError where it does not."""
    check_convention(convention)
    spellings = [spelling for spelling in SPELLINGS if spelling.convention == convention]
    for spelling in spellings:
        if format.name in spelling.formats:
            return spelling
    known = [name for spelling in spellings for name in spelling.formats]
    raise ValueError(f"{convention} stores no {format}; it has {', '.join(known)}")


def merge(parts: dict[str, Tensor], more: Mapping[str, Tensor]) -> None:
    """Add the parts of one more tensor; ValueError where a name is taken."""
    for name in parts.keys() & more.keys():
        raise ValueError(f"{name} would be stored twice: as a tensor of that name and as a part of a quantized one")
    parts.update(more)


def named(name: str, x: Any) -> Tensor:
    """A tensor of a checkpoint; error messages begin with its name."""
    try:
        return dlfp4.asarray(x)
    except (BufferError, TypeError) as error:
        kind = TypeError if isinstance(error, TypeError) else BufferError
        raise kind(f"{name}: {error}") from error


def split_one(name: str, q: ScaledTensor, convention: str) -> dict[str, Tensor]:
    """The parts of one tensor."""
    try:
        spelling = find_spelling(q.format, convention)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    expected = scales_shape(q.format, q.shape) if len(q.shape) > 1 else None
    if q.axis != -1 or q.scale_layout != "linear":
        remedy = "quantize it so" if q.axis != -1 else "call .with_scale_layout('linear')"
        raise ValueError(
            f"{name} is {summary(q)}, but {convention} stores blocks along axis -1 with linear scales; {remedy}"
        )
    if expected is None or q.data.shape[-1] != q.shape[-1]:
        raise ValueError(
            f"{name} is {summary(q)}, but {convention} stores matrices of whole blocks, each of a stack by itself"
        )
    data, scales = q.data.reshape(q.shape), q.scales
    if q.format.element.name == "float4_e2m1fn":
        data = data.view("uint8")
    if spelling.splits_blocks:
        data = data.reshape((*data.shape[:-1], data.shape[-1] // GPT_OSS_BYTES, GPT_OSS_BYTES))
    if q.format.block is not None:
        scales = scales.reshape(expected)
    if q.format.kind == "power":
        scales = scales.view("uint8")
    parts = [data, scales]
    if spelling.global_scale:
        parts.append(stored_unit(name, q, spelling))
    return dict(zip(spelling.parts(name), parts, strict=True))


def stored_unit(name: str, q: ScaledTensor, spelling: Spelling) -> Tensor:
    """The global scale as it is stored; 1 for a tensor without one, such as ggml's."""
    unit = q.global_scale
    if unit is not None and not spelling.encodes:
        return unit
    number = np.float32(1) if unit is None else reciprocal(unit)
    if not np.isfinite(number):
        raise ValueError(f"{name} has a global scale whose reciprocal is {number}, which decodes to nothing")
    stored = dlfp4.asarray(np.full((1,) if spelling.encodes else (), number))
    return stored.to_device(q.device) if q.device.type == "cuda" else stored
