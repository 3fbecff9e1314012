"""The parts of quantized tensors in checkpoints: joined and split by the table of :mod:`dlfp4.spellings`."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import dlfp4
from dlfp4 import ScaledTensor, Tensor
from dlfp4._core import UnscaledWarning, _as_unscaled, _home_of, _refuse_hadamard
from dlfp4.checkpoints import comfyui
from dlfp4.checkpoints.integers import PACKINGS, with_biases
from dlfp4.checkpoints.names import Beginnings, errors_of, is_part, last, listed, module_of
from dlfp4.extents import count_elements
from dlfp4.formats import Format
from dlfp4.parsing import brief, shown
from dlfp4.show import summary
from dlfp4.spellings import CONVENTIONS, SPELLINGS, TORCHAO, Spelling
from dlfp4.suggest import is_one_of

GPT_OSS_BYTES = 16  # bytes in a block of 32 elements; they form an axis of their own
MOST_DIMS = 64  # of NumPy's arrays, as which many parts are read
MARKER = "scaled_fp8"  # a tensor of no elements in stable diffusion's files; its type is that of the weights


# Those whose loaders give each linear layer its parts, and know no stacks of experts.
BY_LAYER = ("compressed-tensors", "deepseek", "deepseek-v4", "comfyui", "gptq", "awq")
BY_STACK = ("gpt-oss", "llama-4")  # whose loaders give stacks of experts their parts, and know no quantized layers
EXPERT = re.compile(r"\.experts\.\d+\.")  # in the name of one expert's matrix
# A part of such a name says that there is more to a tensor than data and scales.
FURTHER = (
    "_scale_2", "_global_scale", "_zero_point", "_zeros", ".biases", ".zeros", "_scale_inv", "_scale", ".scale_2",
    TORCHAO[2], "._weight_zero_point",
)  # fmt: skip


# ---- Parts to tensors


class Parts(dict[str, Tensor | ScaledTensor]):
    """Tensors as a file stores them, and the metadata of its header, which may say how they are meant."""

    metadata: dict[str, str]

    def __init__(self, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
        super().__init__(tensors)
        self.metadata = dict(metadata)


@dataclass(frozen=True)
class Join:
    """Parts that make a quantized tensor.

    Attributes
    ----------
    name : str
        Of the tensor.
    tensor : ScaledTensor
        Of the parts.
    parts : tuple of str
        Their names: data, scales and, where there is one, the global scale.
    spelling : Spelling
        How they are stored.
    """

    name: str
    tensor: ScaledTensor
    parts: tuple[str, ...]
    spelling: Spelling


def join(
    tensors: Mapping[str, Any],
    marks: Mapping[str, str],
    without: Collection[str] = (),
    look: Callable[[Tensor | ScaledTensor], Any] = lambda x: x,
) -> dict[str, Any]:
    """:func:`joining.join_parts` with the layers that ComfyUI marks, but of some conventions, without warnings; or what
    `look` says of each tensor, for which those that have to be packed anew need not be in memory at once.
    """
    return dict(join_in_place(tensors, marks, without, look).values())


def join_in_place(
    tensors: Mapping[str, Any],
    marks: Mapping[str, str],
    without: Collection[str],
    look: Callable[[Tensor | ScaledTensor], Any],
) -> dict[str, tuple[str, Any]]:
    """The same by the name under which a tensor's data is stored: the tensor's own name, and the tensor."""
    found = own_tensors(tensors)
    used: set[str] = set()
    joined: dict[str, tuple[str, Any]] = {}
    for each in find_joins(found, marks, without):
        used.update(each.parts)
        if each.spelling.convention == "comfyui":
            # The mark of a layer says how its parts lie, which another convention's parts would not fit.
            used.add(comfyui.mark_of(each.parts[0]))
        joined[each.parts[0]] = each.name, look(each.tensor)
    kept = {name: (name, look(tensor)) for name, tensor in found.items() if name not in used}
    return {name: joined.get(name) or kept[name] for name in found if name in joined or name in kept}


def find_joins(
    found: Mapping[str, Tensor | ScaledTensor], marks: Mapping[str, str], without: Collection[str] = ()
) -> Iterator[Join]:
    """The parts that belong together, but of some conventions."""
    used: set[str] = set()
    wholes: set[str] = set()
    for spelling in (each for each in SPELLINGS if each.convention not in without):
        for stem in [name.removesuffix(spelling.scales) for name in found if name.endswith(spelling.scales)]:
            whole = stem + spelling.name if stem + spelling.data in found else stem
            names = spelling.parts(stem, whole)
            if spelling.packing:
                names = tuple(name for name in names if name in found)
            taken = whole in wholes or (whole in found and whole not in names)
            if taken or not used.isdisjoint(names) or not is_meant(spelling, stem, names, found, marks):
                continue
            if stem + spelling.data in found:  # scales alone may be those of something else
                check_dims({name: found[name] for name in names if name in found})
            with errors_of(brief(whole)):
                if spelling.packing:
                    quantized = read_integers(found, stem, whole, spelling)
                else:
                    quantized = assemble([found.get(name) for name in names], spelling)
            if quantized is not None:
                wholes.add(whole)
                used.update(names)
                yield Join(whole, quantized, names, spelling)


def check_dims(parts: Mapping[str, Tensor | ScaledTensor]) -> None:
    """ValueError where a part has more dimensions than can be read."""
    for name, part in parts.items():
        if part.ndim > MOST_DIMS:
            raise ValueError(
                f"{brief(name)} has {part.ndim} dimensions; parts of quantized tensors have at most {MOST_DIMS}"
            )


def is_meant(
    spelling: Spelling, stem: str, names: Iterable[str], found: Mapping[str, object], marks: Mapping[str, str]
) -> bool:
    """Whether nothing speaks against the spelling: a mark of ComfyUI, or further parts."""
    mark = marks.get(module_of(next(iter(names))))
    if (spelling.convention == "comfyui") != (mark is not None) or (mark is not None and mark not in spelling.formats):
        return False
    return not any(stem + suffix in found for suffix in FURTHER if stem + suffix not in names)


def kinds_of_parts(stem: str, whole: str, spelling: Spelling) -> dict[str, str]:
    """The names of the parts of packed integers, by what `integers` calls them."""
    kinds = ("data", "scales", *spelling.further)
    return dict(zip(kinds, spelling.parts(stem, whole), strict=True))


def read_integers(found: Mapping[str, Any], stem: str, whole: str, spelling: Spelling) -> ScaledTensor | None:
    """The tensor of packed integers that parts make, or None where they do not fit the spelling."""
    names = kinds_of_parts(stem, whole, spelling)
    parts = {kind: found[name] for kind, name in names.items() if name in found}
    if not {"data", "scales"} <= parts.keys() or not all(isinstance(part, Tensor) for part in parts.values()):
        return None
    return PACKINGS[spelling.packing].read(parts)


def assemble(parts: list[Any], spelling: Spelling) -> ScaledTensor | None:
    """The quantized tensor of these parts, or None where they do not fit the spelling."""
    if not all(isinstance(part, Tensor) for part in parts):
        return None
    data, scales = parts[0], parts[1]
    if spelling.across:
        if data.ndim < 2 or scales.ndim < 2:
            return None
        data, scales = data.mT.copy(), scales.mT.copy()
    if scales.ndim == 4 and scales.shape[1::2] == (1, 1):  # ModelOpt's tiles
        scales = scales.reshape(scales.shape[::2])
    unit = parts[2] if len(parts) > 2 else None
    if unit is not None and not (unit.dtype == np.float32 and unit.size in (1, count_elements(data.shape[:-2]))):
        return None
    for format in (dlfp4.formats()[name] for name in spelling.formats):
        elements = as_elements(data, spelling, format)
        if elements is not None and fits(scales, format, elements.shape, spelling):
            return make(elements, scales, unit, format, spelling)
    return None


def make(elements: Tensor, scales: Tensor, unit: Tensor | None, format: Format, spelling: Spelling) -> ScaledTensor:
    """The quantized tensor of parts that fit."""
    scales = scales if spelling.scale_layout == "linear" else scales.reshape(-1)
    global_scale: dict[str, Any] = {"encode_scale": unit} if spelling.encodes else {"global_scale": unit}
    return ScaledTensor.from_parts(
        elements,
        as_stored(scales, format, elements.ndim),
        format=format,
        scale_layout=spelling.scale_layout,
        shape=elements.shape,
        **global_scale,
    )


def as_elements(data: Tensor, spelling: Spelling, format: Format) -> Tensor | None:
    """Data with its elements counted, (..., K), or None where it does not fit the spelling."""
    if data.ndim < 2 + spelling.splits_blocks or (spelling.splits_blocks and data.shape[-1] != GPT_OSS_BYTES):
        return None
    words = (spelling.words,) if spelling.words == "uint32" else ("uint8", "int8") if is_packed(format) else ()
    if data.dtype.name not in (*words, format.element.name):
        return None
    try:
        if spelling.splits_blocks:
            data = data.reshape((*data.shape[:-2], data.shape[-2] * GPT_OSS_BYTES))
        if spelling.high_first:
            return swap_nibbles(data).view(format.element)
        return data.view(format.element)
    except (BufferError, ValueError):  # bytes that do not lie in rows
        return None


def is_packed(format: Format) -> bool:
    """Whether elements take less than a byte."""
    return format.has_integers or format.element.name.startswith(("float4", "float6"))


def swap_nibbles(data: Tensor) -> Tensor:
    """A copy of bytes with their two elements exchanged."""
    octets = data.view("uint8").to_device("cpu").to_numpy()
    return dlfp4.asarray(octets << 4 | octets >> 4).to_device(_home_of(data))


FLOAT32_SCALES = ("float32", "bfloat16", "float16", "float8_e8m0fnu")


def fits(scales: Tensor, format: Format, shape: tuple[int, ...], spelling: Spelling) -> bool:
    """Whether the scales have a type and the shape that go with data of that shape."""
    containers = ("uint8", format.scale.name) if format.scale.itemsize == 1 else FLOAT32_SCALES
    if format.scale.itemsize > 1 and spelling.scales != "_scale" and format.block is not None:
        containers = (*containers, "uint8")  # powers of two in DeepSeek's blocks
    if scales.dtype.name not in containers:
        return False
    expected = scales_shape(format, shape)
    if spelling.scale_layout == "128x4" and expected is not None and scales.ndim == 2:
        # a stack's rows are one matrix's
        tiles = -(-count_elements(expected[:-1]) // 128), -(-expected[-1] // 4)
        return scales.shape in ((tiles[0] * 128, tiles[1] * 4), (tiles[0] * 32, tiles[1] * 16))  # the same bytes
    if format.scales_lines and expected is not None and scales.shape == expected[:-1]:
        return True
    return scales.size == 1 if format.block is None else scales.shape == expected


def scales_shape(format: Format, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape of the scales beside data of shape (..., N, K); None where a matrix does not divide into blocks."""
    lines, length = format.block or (1, 1)
    lines, length = 1 if format.repeats_scales else lines, length or max(shape[-1], 1)
    whole = format.kind != "largest" or format.has_integers
    if (whole and shape[-1] % length) or (len(shape) > 2 and shape[-2] % lines):
        return None
    return (*shape[:-2], -(-shape[-2] // lines), -(-shape[-1] // length))


def as_stored(scales: Tensor, format: Format, ndim: int) -> Tensor:
    """Scales of a type that the format has, beside data of so many dimensions."""
    scales = scales.view("float8_e8m0fnu") if format.kind == "largest" and scales.dtype.name == "uint8" else scales
    return scales.reshape((*scales.shape, 1)) if format.scales_lines and scales.ndim < ndim else scales


# ---- What came back without its scales


def find_unscaled(joined: Mapping[str, Tensor | ScaledTensor]) -> dict[str, list[str]]:
    """Matrices of FP8 that were joined to no scales, each with the tensors beside it that are called as scales are."""
    parts: list[str] = []
    scales: dict[str, list[str]] = {}  # of the weight of a module
    unscaled = []
    for name, x in joined.items():
        if not isinstance(x, Tensor):
            continue
        if is_part(name):
            parts.append(name)
            if scales_weight(name):
                scales.setdefault(module_of(name), []).append(name)
        elif x.ndim > 1 and is_fp8(x):
            unscaled.append(name)
    beginnings = Beginnings(parts)
    return {name: scales_beside(name, beginnings, scales) for name in unscaled}


def is_fp8(x: Tensor) -> bool:
    """Whether the elements are FP8; e8m0 holds scales."""
    return x.dtype.name.startswith("float8") and x.dtype.name != "float8_e8m0fnu"


def scales_beside(name: str, parts: Beginnings, scales: Mapping[str, list[str]]) -> list[str]:
    """The parts in the module of a weight that may scale it, and not activations or another weight."""
    module, start = module_of(name), len(name)
    called = [part for part in parts.find(name) if "." not in part[start:]]
    of_module = scales.get(module, ()) if last(name) in ("weight", "kernel") else ()
    return list(dict.fromkeys([*called, *of_module]))


def scales_weight(part: str) -> bool:
    """Whether a part is called as the scales of a module's weight are."""
    own = last(part)
    return "scale" in own and not own.startswith(("input", "output"))


def warn_unscaled(joined: dict[str, Tensor | ScaledTensor], stacklevel: int) -> None:
    """Warn of FP8 without scales, where some were left or the rest of the model has scales, and let its products
    warn, too.
    """
    others = any(isinstance(x, ScaledTensor) and not is_packed(x.format) for x in joined.values())
    unscaled = {name: left for name, left in find_unscaled(joined).items() if left or others}
    if not unscaled:
        return
    marked = {name: _as_unscaled(x) for name, x in joined.items() if name in unscaled and isinstance(x, Tensor)}
    joined.update(marked)

    def tell(name: str) -> str:
        left = unscaled[name]
        if not left:
            return f"{brief(name)} (none is there)"
        return f"{brief(name)} ({listed(left)} {'is' if len(left) == 1 else 'are'} left)"

    warnings.warn(
        f"FP8 without its scales, which a product would multiply as it is: {listed(unscaled, tell)}",
        UnscaledWarning,
        stacklevel=stacklevel + 1,
    )


# ---- Tensors to parts


def split_parts(tensors: Mapping[str, Any], convention: str) -> dict[str, Tensor]:
    """Split quantized tensors into the parts that a convention stores; the inverse of :func:`join_parts`.

    Elements share memory, except where the convention has another order: NVFP4 in "comfyui" and "llama-4", int4 in
    "compressed-tensors", all of "gptq" and "awq". The global scale of "compressed-tensors" is the reciprocal of ours;
    one that :func:`join_parts` read is stored with the same bits. "nvfp4_16x16" looks like "nvfp4" and comes back as
    that, with the same values.

    Parameters
    ----------
    tensors : mapping of str to Tensor, ScaledTensor or producer
        By name; tensors that are not quantized stay as they are.
    convention : str
        The convention whose names and containers to use, one of ``checkpoints.CONVENTIONS``.

    Returns
    -------
    dict of str to Tensor
        The parts by the convention's names, and the tensors that are not quantized.

    Raises
    ------
    ValueError
        The convention is unknown or does not store a tensor's format; blocks do not run along the last axis, or scales
        are not linear; a global scale has no place or no finite reciprocal; two parts have the same name.

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
    ours = own_tensors(tensors)
    packed: dict[int, dict[str, Tensor]] = {}
    for name, x in ours.items():
        merge(parts, split_one(name, x, convention, packed) if isinstance(x, ScaledTensor) else {name: x})
    quantized = [x for x in ours.values() if isinstance(x, ScaledTensor)]
    if convention == "stable-diffusion" and quantized and MARKER not in parts:
        parts[MARKER] = dlfp4.empty((0,), quantized[0].data.dtype)
    return parts


def check_convention(convention: str) -> None:
    """ValueError for an unknown convention."""
    if not is_one_of(convention, CONVENTIONS):
        raise ValueError(f"convention={convention!r}: expected one of {', '.join(CONVENTIONS)}")


def why_unknown(ndim: int, convention: str) -> str:
    """The word that loaders of a convention know no stacks of experts, or nothing else; "" where they know both."""
    if convention in BY_LAYER and ndim > 2:
        return f"loaders of {convention} do not support stacks"
    return f"loaders of {convention} support stacks of experts only" if convention in BY_STACK and ndim != 3 else ""


def caution(name: str, format: Format, convention: str | None) -> str:
    """What a loader makes of a tensor without a word; "" where none is known that does."""
    forgets = convention == "compressed-tensors" and format.has_global_scale and EXPERT.search(name)
    return "transformers 5.24 forgets the global scales of experts" if forgets else ""


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
    """Add the parts of one more tensor; ValueError where a name is taken, but by the mark of the whole file."""
    for name in (parts.keys() & more.keys()) - {MARKER}:
        if last(name) == comfyui.MARK:
            raise ValueError(
                f"{', '.join(more)}: the module has another quantized tensor, and ComfyUI marks a module by one "
                f"{comfyui.MARK}; give each a module of its own"
            )
        raise ValueError(f"{name} would be stored twice: as a tensor of that name and as a part of a quantized one")
    parts.update({name: part for name, part in more.items() if name not in parts})


def check_mapping(what: str, given: Any, values: str) -> None:
    """TypeError for what is no mapping of names."""
    if not isinstance(given, Mapping):
        raise TypeError(f"{what} is of type {type(given).__name__}; expected a mapping of names to {values}")
    for name in given:
        if not isinstance(name, str):
            raise TypeError(
                f"{what} has the name {shown(name)} of type {type(name).__name__}; expected names of type str"
            )


def own_tensors(tensors: Mapping[str, Any]) -> dict[str, Tensor | ScaledTensor]:
    """All tensors of a checkpoint, as dlfp4's own."""
    check_mapping("tensors", tensors, "tensors")
    return {name: named(name, x) for name, x in tensors.items()}


def named(name: str, x: Any) -> Tensor | ScaledTensor:
    """A tensor of a checkpoint, as dlfp4's own; error messages begin with its name."""
    try:
        return x if isinstance(x, ScaledTensor) else dlfp4.asarray(x)
    except (BufferError, TypeError) as error:
        kind = TypeError if isinstance(error, TypeError) else BufferError
        raise kind(f"{name}: {error}") from error


def split_one(name: str, q: ScaledTensor, convention: str, packed: dict[int, dict[str, Tensor]]) -> dict[str, Tensor]:
    """The parts of one tensor; `packed` has those of integers by the tensor, which may have several names."""
    check_dims({name: q})
    with errors_of(name):
        spelling = find_spelling(q.format, convention)
        _refuse_hadamard(q, convention)
    expected = scales_shape(q.format, q.shape) if len(q.shape) > 1 else None
    if q.axis != -1 or q.scale_layout not in ("linear", spelling.scale_layout):
        remedy = "quantize it so" if q.axis != -1 else "call .with_scale_layout('linear')"
        raise ValueError(
            f"{name} is {summary(q)}, but {convention} stores blocks along axis -1 with linear scales; {remedy}"
        )
    if expected is None or q.data.shape[-1] != q.shape[-1]:
        raise ValueError(
            f"{name} is {summary(q)}, but {convention} stores matrices of whole blocks, each of a stack by itself"
        )
    stem = spelling.stem(name)
    if spelling.packing:
        return write_integers(name, q, spelling, packed)
    parts = [stored_data(q, spelling), stored_scales(name, q, spelling, expected)]
    unit = stored_unit(name, q, spelling)
    split = dict(zip(spelling.parts(stem, name), parts if unit is None else [*parts, unit], strict=True))
    if convention == "comfyui":
        split[comfyui.mark_of(name)] = comfyui.make_mark(q.format.name)
    return split


def write_integers(
    name: str, q: ScaledTensor, spelling: Spelling, packed: dict[int, dict[str, Tensor]]
) -> dict[str, Tensor]:
    """The parts of packed integers by their names."""
    names = kinds_of_parts(spelling.stem(name), name, spelling)
    with errors_of(name):
        parts = packed.get(id(q)) or PACKINGS[spelling.packing].write(q)
    packed[id(q)] = parts
    return {names[kind]: part.to_device(_home_of(q)) for kind, part in parts.items()}


def stored_data(q: ScaledTensor, spelling: Spelling) -> Tensor:
    """The elements in the container and the order of the convention."""
    data = q.data.reshape(q.shape)
    words = spelling.words or ("uint8" if is_packed(q.format) else "")
    if words:
        data = data.view(words)
    if spelling.high_first:
        data = swap_nibbles(data)
    if spelling.splits_blocks:
        data = data.reshape((*data.shape[:-1], data.shape[-1] // GPT_OSS_BYTES, GPT_OSS_BYTES))
    return data.mT.copy() if spelling.across else data


def stored_scales(name: str, q: ScaledTensor, spelling: Spelling, shape: tuple[int, ...]) -> Tensor:
    """The scales in the type, the shape and the layout of the convention."""
    if q.format.block is None:
        return q.scales.reshape(spelling.one)
    scales = q.with_scale_layout(spelling.scale_layout).scales
    if spelling.scale_layout == "linear":
        is_flat = q.format.scales_lines and spelling.flat_rows and shape[-1] == 1  # without columns there is no scale
        scales = scales.reshape(shape[:-1] if is_flat else shape)
    if q.format.scale.itemsize == 1:
        scales = scales.view(spelling.scale_words or ("uint8" if q.format.kind == "power" else q.format.scale))
    elif spelling.scale_words:
        scales = as_powers(name, scales)
    return scales.mT.copy() if spelling.across else scales


def as_powers(name: str, scales: Tensor) -> Tensor:
    """Scales as e8m0; ValueError where they are no powers of two."""
    if scales.dtype.name == "float8_e8m0fnu":
        return scales
    stored = dlfp4.cast(scales, "float8_e8m0fnu")
    before, after = (dlfp4.cast(each, "float32").to_device("cpu").to_numpy() for each in (scales, stored))
    if (before != after).any():
        raise ValueError(
            f"{name} has scales that are not powers of two, but e8m0 stores them; quantize with recipe='deepseek-ue8m0'"
        )
    return stored


def stored_unit(name: str, q: ScaledTensor, spelling: Spelling) -> Tensor | None:
    """The global scale as it is stored: 1 for a tensor without one, such as ggml's; None where there is no place."""
    unit = q.global_scale
    if not spelling.global_scale:
        if unit is not None and (unit.size > 1 or unit.item() != 1):
            raise ValueError(
                f"{name} has a global scale{'' if unit.size > 1 else f' of {unit.item()}'}, but {spelling.convention} "
                f"stores none; quantize with global_scale=1"
            )
        return None
    if unit is not None and unit.size > 1 and unit.size != count_elements(q.shape[:-2]):
        raise ValueError(f"{name} has a global scale per row, but {spelling.convention} stores one per matrix")
    if not spelling.encodes:
        return as_unit(np.ones((), np.float32) if unit is None else unit, q, spelling)
    encode_scale = kept_encode_scale(q)
    if encode_scale is not None:
        return as_unit(encode_scale, q, spelling)
    numbers = np.ones((), np.float32) if unit is None else reciprocal(unit)
    if not np.isfinite(numbers).all():
        raise ValueError(f"{name} has a global scale whose reciprocal is {numbers.max()}, which decodes to nothing")
    return as_unit(numbers, q, spelling)


def kept_encode_scale(q: ScaledTensor) -> Tensor | None:
    """The number whose reciprocal the global scale is; None where there is none, or no longer: ``quantize(out=...)``
    writes another global scale into the same memory.
    """
    if q.encode_scale is None or q.global_scale is None:
        return None
    numbers, unit = (x.to_device("cpu").to_numpy().reshape(-1) for x in (q.encode_scale, q.global_scale))
    with np.errstate(divide="ignore", over="ignore"):  # as from_parts computes it
        return q.encode_scale if np.array_equal(np.float32(1) / numbers, unit, equal_nan=True) else None


def as_it_comes_back(q: ScaledTensor, spelling: Spelling) -> ScaledTensor:
    """A tensor with the values that are read again, which may differ in the last bit: under the global scale that comes
    back from its stored reciprocal, or with MLX's biases.
    """
    if spelling.packing == "mlx" and q.biases is None:
        return with_biases(q)
    if q.global_scale is None or not spelling.encodes:
        return q
    return ScaledTensor.from_parts(
        q.data, q.scales, format=q.format, axis=q.axis, shape=q.shape, encode_scale=reciprocal(q.global_scale)
    )


def as_unit(numbers: Any, q: ScaledTensor, spelling: Spelling) -> Tensor:
    """A global scale as the convention stores it, beside the other parts."""
    stored = dlfp4.asarray(numbers)
    stored = stored.reshape(spelling.one) if stored.ndim == 0 or len(q.shape) == 2 else stored
    return stored.to_device(_home_of(q))


def reciprocal(scale: Tensor) -> npt.NDArray[np.float32]:
    """1 / the global scale, in float32, on the host."""
    numbers, largest = scale.to_device("cpu").to_numpy(), np.finfo(np.float32).max
    with np.errstate(divide="ignore", over="ignore"):  # a broken checkpoint may store (nearly) 0
        # The least that quantize gives is 1 / largest. Rounded, its own reciprocal is infinite.
        return np.where(numbers == 1 / largest, largest, np.float32(1) / numbers)
