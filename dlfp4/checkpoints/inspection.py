"""What a model's quantized weights are, and what in them makes engines fail or compute something else.

Nothing is dequantized: names, types, shapes, scales and global scales tell.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

import dlfp4
from dlfp4 import ScaledTensor, Tensor
from dlfp4.checkpoints import configs, conventions, folders, joining, models
from dlfp4.checkpoints.conventions import find_joins, find_unscaled, scales_shape
from dlfp4.checkpoints.models import ModelPath
from dlfp4.checkpoints.names import Beginnings, fused_with, is_part, last, listed, module_of
from dlfp4.checkpoints.roles import holds_codes
from dlfp4.formats import Format
from dlfp4.parsing import brief, printable
from dlfp4.rescaling import has_nonzero
from dlfp4.spellings import SPELLINGS, TORCHAO, Spelling
from dlfp4.tables import in_columns

OWN = "dlfp4"  # the convention of files that dlfp4 wrote


@dataclass(frozen=True)
class Group:
    """Tensors of a model that are stored alike.

    Attributes
    ----------
    convention : str
        Whose names they have; "" of tensors that are not quantized, "unknown" where no row of the table fits.
    format : str
        A format of dlfp4, else the element type.
    granularity : str
        What shares a scale, such as "1x16 and the tensor".
    scales : str
        The type of the scales as they are stored.
    scale_layout : str
        Of the scales.
    nibbles : str
        Which half of a byte has the even element: "low first" or "high first".
    tensors, nbytes : int
        How many there are, and the bytes of their parts.
    example : str
        The name of one.
    """

    convention: str
    format: str
    granularity: str
    scales: str
    scale_layout: str
    nibbles: str
    tensors: int
    nbytes: int
    example: str


@dataclass(frozen=True)
class Flag:
    """What may break an engine.

    Attributes
    ----------
    fault : str
        In a few words, the same for all tensors that have it.
    name : str
        The tensor, or several.
    detail : str
        What was found and, where it is known, the remedy.
    """

    fault: str
    name: str
    detail: str


@dataclass(frozen=True)
class Findings:
    """What :func:`inspect` found; it prints as a table and the list of flags.

    Attributes
    ----------
    convention : str
        Of the quantized weights, or several, joined by "+"; "" where nothing is quantized.
    groups : tuple of Group
        All tensors.
    flags : tuple of Flag
        Empty where nothing is wrong.
    """

    convention: str
    groups: tuple[Group, ...]
    flags: tuple[Flag, ...]

    def as_json(self) -> str:
        """The inspection as JSON."""
        return json.dumps(asdict(self), indent=2)

    def __str__(self) -> str:
        head = ("convention", "format", "a scale for", "scales", "layout", "nibbles", "tensors", "bytes", "such as")
        rows = [head] + [
            (each.convention or "-", each.format, each.granularity, each.scales, each.scale_layout, each.nibbles,
             f"{each.tensors:,}", f"{each.nbytes:,}", each.example)
            for each in self.groups
        ]  # fmt: skip
        by_fault: dict[str, list[Flag]] = {}
        for flag in self.flags:
            by_fault.setdefault(flag.fault, []).append(flag)
        flags = [
            f"{fault}: {listed(flag.name for flag in every)}: {every[0].detail}" for fault, every in by_fault.items()
        ]
        return "\n".join(map(printable, [*in_columns(rows), "", *(flags or ["nothing is flagged"])]))


Row: TypeAlias = tuple[str, str, str, str, str, str]  # the fields of a group that its tensors share


@dataclass(frozen=True)
class Item:
    """What was seen of a quantized tensor; the tensor, which may have been made to be looked at, is gone.

    Attributes
    ----------
    name : str
        Of the tensor.
    format : Format
        That it has.
    units : numpy.ndarray, optional
        Its global scales.
    row : Row
        The fields of its group.
    nbytes : int
        Of its parts.
    flags : tuple of Flag
        What is wrong with it.
    alike : tuple of str
        The conventions that store such a tensor so; the first is assumed where nothing else decides.
    """

    name: str
    format: Format
    units: npt.NDArray[np.float32] | None
    row: Row
    nbytes: int
    flags: tuple[Flag, ...]
    alike: tuple[str, ...]


def inspect(path: ModelPath | bytes | bytearray | memoryview) -> Findings:
    """Say how the weights of a model are quantized, and flag what breaks engines.

    Flagged are: a global scale that decodes to implausible magnitudes, as its reciprocal would; gate and up, or query,
    key and value, of one layer with different global scales or formats, which engines fuse; global scales that are
    infinite, NaN, zero or negative; NaN scales, and tensors whose scales are all zero; FP8 and packed data without
    scales; scales without data; scales in the layout of matrix kernels where nothing says so; several conventions in
    one model; a ``config.json`` that names another convention.

    Parameters
    ----------
    path : path-like, sequence of path-like, or bytes
        As :func:`load` takes it.

    Returns
    -------
    Findings
        Groups of tensors that are stored alike, and the flags.

    Raises
    ------
    ValueError
        A file is not a safetensors file, or is damaged; a file is missing; tensors are stored twice, or not where the
        index says.
    OSError
        There is nothing at `path`, or a file cannot be opened or mapped.

    Examples
    --------
    >>> import dlfp4.checkpoints, numpy as np, os, tempfile
    >>> q = dlfp4.quantize(np.ones((4, 64), np.float32), "nvfp4")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "model.safetensors")
    ...     dlfp4.checkpoints.save(path, {"up_proj.weight": q}, convention="modelopt")
    ...     findings = dlfp4.checkpoints.inspect(path)
    >>> findings.convention, findings.groups[0].granularity, findings.flags
    ('modelopt', '1x16 and the tensor', ())
    """
    shards = models.read(path)
    method = "" if isinstance(path, bytes | bytearray | memoryview) else method_of(path)
    own: dict[str, Any] = {}
    found: dict[str, Any] = {}
    marks: dict[str, str] = {}
    for shard in shards:
        marks |= joining.marks_of(shard)
        for name, x in joining.described(shard).items():
            (own if isinstance(x, ScaledTensor) else found)[name] = x
    items = [look_at(name, x, row_of(x, OWN), x.nbytes, (OWN,)) for name, x in own.items()]
    used: set[str] = set()
    for each in find_joins(found, marks, joining.unreadable(shards)):
        used.update(each.parts)
        alike = conventions_of(each.spelling, each.tensor.format, method)
        row = row_of(each.tensor, alike[0], each.spelling, found[each.parts[1]])
        items.append(look_at(each.name, each.tensor, row, sum(found[part].nbytes for part in each.parts), alike))
    items = settled(items)
    rest = {name: x for name, x in found.items() if name not in used and isinstance(x, Tensor)}
    groups = as_groups(items, rest, found)
    used_by = dict.fromkeys(each.convention for each in groups if each.convention)
    flags = [*flags_of_items(items), *flags_of_rest(items, rest), *flags_of_model(list(used_by), method)]
    return Findings(" + ".join(used_by), tuple(groups), tuple(flags))


def look_at(name: str, q: ScaledTensor, row: Row, nbytes: int, alike: tuple[str, ...]) -> Item:
    """What is to be known of a quantized tensor."""
    units = None if q.global_scale is None else numbers_of(q.global_scale)
    return Item(name, q.format, units, row, nbytes, (*flags_of_global(name, q), *flags_of_scales(name, q)), alike)


# ---- Conventions

# What configurations call the conventions.
METHODS = {"fp8": "deepseek", "mxfp4": "gpt-oss", "gpt_oss_mxfp4": "gpt-oss"}


def method_of(path: ModelPath) -> str:
    """The convention that the configuration beside the files names; "" where there is none."""
    files = models.find(path)
    try:
        config = folders.read_config(files)
    except (OSError, ValueError):
        if models.is_folder(path):
            raise
        config = None  # beside a single file there may be one of something else
    found = configs.find_method(config, files.folder)
    return METHODS.get(found[1], found[1]) if found else ""


def conventions_of(spelling: Spelling, format: Format, method: str) -> tuple[str, ...]:
    """The conventions that spell so, the one to assume first: that of the configuration alone, if it is among them."""

    def look(row: Spelling) -> tuple[object, ...]:
        marked = row.convention == "comfyui"
        return marked, row.data, row.scales, row.global_scale, row.name, row.words, row.encodes, row.high_first

    alike = [row.convention for row in SPELLINGS if look(row) == look(spelling) and format.name in row.formats]
    if method and method in alike:
        return (method,)
    first = spelling.convention
    if not first and spelling.data == TORCHAO[0]:
        first = "torchao"
    if not first:
        first = "gpt-oss" if spelling.splits_blocks else "deepseek"
    return tuple(dict.fromkeys([first, *filter(None, alike)]))


def settled(items: Sequence[Item]) -> list[Item]:
    """The same, where several conventions spell so, in one that other tensors of the model certainly have."""
    certain = dict.fromkeys(item.alike[0] for item in items if len(item.alike) == 1)

    def convention_of(item: Item) -> str:
        return next((each for each in certain if each in item.alike), item.alike[0])

    return [replace(item, row=(convention_of(item), *item.row[1:])) for item in items]


# Data of other conventions, by the last component of its name and the parts beside it; the first row that fits.
OTHERS = (
    ("gptq", re.compile(r"^qweight$"), "g_idx"),
    ("awq", re.compile(r"^qweight$"), "qzeros"),
    ("compressed-tensors", re.compile(r"_packed$"), "weight_shape"),
    ("mlx", re.compile(r"^weight$"), "biases"),
    ("bitsandbytes", re.compile(r"^weight$"), "SCB"),
    ("hqq", re.compile(r"^W_q$"), ""),
    ("torchao", re.compile(r"_qdata$"), ""),
    ("quanto", re.compile(r"^_data$"), ""),
    ("modelopt", re.compile(r"^weight$"), "weight_scale_2"),
    ("compressed-tensors", re.compile(r"^weight(_packed)?$"), "weight_zero_point"),
)


def convention_of_rest(name: str, found: Mapping[str, Any]) -> str:
    """The convention of data that was not joined, "unknown", or "" of FP8 alone."""
    if f"{name}.absmax" in found:
        return "bitsandbytes"
    for convention, pattern, beside in OTHERS:
        if pattern.search(last(name)) and (not beside or f"{module_of(name)}.{beside}" in found):
            return convention
    return "" if found[name].dtype.name.startswith("float8") else "unknown"  # FP8 may be no more than a cast


# ---- Groups


def as_groups(items: Iterable[Item], rest: Mapping[str, Tensor], found: Mapping[str, Any]) -> list[Group]:
    """All tensors, by how they are stored."""
    rows: dict[Row, list[tuple[str, int]]] = {}
    for item in items:
        rows.setdefault(item.row, []).append((item.name, item.nbytes))
    for name, x in rest.items():
        convention = convention_of_rest(name, found) if is_data(name, x) else ""
        rows.setdefault((convention, x.dtype.name, "", "", "", ""), []).append((name, x.nbytes))
    return [Group(*key, len(members), sum(size for _, size in members), members[0][0]) for key, members in rows.items()]


def row_of(q: ScaledTensor, convention: str, spelling: Spelling | None = None, scales: Tensor | None = None) -> Row:
    """The fields of a group; `scales` are as they are stored, if otherwise."""
    packed = conventions.is_packed(q.format) and not q.format.element.name.startswith("float6")
    nibbles = ("high first" if spelling and spelling.high_first else "low first") if packed else ""
    dtype = (q.scales if scales is None else scales).dtype.name
    return convention, q.format.name, granularity(q), dtype, q.scale_layout, nibbles


def granularity(q: ScaledTensor) -> str:
    """What shares a scale."""
    of_line = "a line" if q.format.scales_lines else "x".join(map(str, q.format.block or ()))
    block = "the tensor" if q.format.block is None else of_line
    whole = "" if q.global_scale is None else " and the tensor" if q.global_scale.size == 1 else " and a matrix or row"
    return block + whole + ("" if q.axis == -1 else " along axis -2")


# ---- Flags of quantized tensors

LARGEST_NVFP4 = 2688.0  # 6 * 448: the largest product of element and scale


def flags_of_items(items: Sequence[Item]) -> Iterator[Flag]:
    """What is wrong with joined tensors."""
    for item in items:
        yield from item.flags
    yield from flags_of_fused(items)


def flags_of_global(name: str, q: ScaledTensor) -> Iterator[Flag]:
    """Global scales that are no positive numbers, or the reciprocal of what they should be."""
    if q.global_scale is None:
        return
    units = numbers_of(q.global_scale).reshape(-1)
    bad = np.flatnonzero(~(np.isfinite(units) & (units > 0)))
    if bad.size:
        encoded = None if q.encode_scale is None else numbers_of(q.encode_scale).reshape(-1)
        stored = "" if encoded is None else f", stored as {encoded[bad[0]]:g}"
        yield Flag("global scale that is not a positive number", name, f"{units[bad[0]]:g}{stored}")
        return
    largest = float(units.max(initial=0)) * 6 * largest_scale(q)
    if largest > LARGEST_NVFP4:
        yield Flag(
            "inverted global scale",
            name,
            f"{units.max():g} decodes to magnitudes of {largest:.3g}; its reciprocal, to {reciprocal_of(q):.3g}: "
            f"compressed-tensors stores an encode scale, ModelOpt a decode scale",
        )


def reciprocal_of(q: ScaledTensor) -> float:
    """The largest magnitude under the reciprocal of the global scale."""
    return 6 * largest_scale(q) / float(numbers_of(q.global_scale).max())


def largest_scale(q: ScaledTensor) -> float:
    """The largest finite scale of the blocks."""
    scales = numbers_of(q.scales)
    return float(np.abs(scales[np.isfinite(scales)]).max(initial=0))


def numbers_of(x: Any) -> npt.NDArray[np.float32]:
    """The values of a part, as float32."""
    return np.asarray(dlfp4.cast(x, "float32").to_device("cpu").to_numpy())


def flags_of_scales(name: str, q: ScaledTensor) -> Iterator[Flag]:
    """Scales that are NaN, infinite or negative, and tensors whose scales are all zero."""
    scales = numbers_of(q.scales)
    nan, infinite, negative = int(np.isnan(scales).sum()), int(np.isinf(scales).sum()), int((scales < 0).sum())
    for count, what in ((nan, "NaN"), (infinite, "infinite"), (negative, "negative")):
        if count:
            yield Flag(f"{what} scales", name, f"{count:,} of {scales.size:,}")
    zeros = int((scales == 0).sum())
    whole = q.format.kind == "largest" or zeros == scales.size
    if zeros and whole and has_nonzero(q):
        yield Flag("zero scales", name, f"{zeros:,} of {scales.size:,}, over elements that are not zero")


def flags_of_fused(items: Sequence[Item]) -> Iterator[Flag]:
    """Layers that engines fuse, with different formats or global scales."""
    by_name = {item.name: item for item in items}
    told: set[str] = set()
    for item in items:
        names = fused_with(item.name)
        members = {component: by_name[name] for component, name in names.items() if name in by_name}
        if len(members) > 1 and item.name not in told:
            told.update(names.values())
            yield from flags_of_members(members)


def flags_of_members(members: Mapping[str, Item]) -> Iterator[Flag]:
    """What differs between layers that are fused, by the components of their names."""
    first = next(iter(members.values())).name
    if len({item.format for item in members.values()}) > 1:
        detail = ", ".join(f"{component} {item.format}" for component, item in members.items())
        yield Flag("fused layers of different formats", first, detail)
        return
    units = [item.units for item in members.values() if item.units is not None]
    if not units or any(unit.size != 1 for unit in units):
        return
    numbers = [unit.item() for unit in units]
    largest, least = max(numbers), min(numbers)
    if largest != least:
        ratio = largest / least if least else np.inf
        detail = f"{' and '.join(members)} differ by a factor of {ratio:.4g}; engines use one of them for all"
        yield Flag("fused layers with different global scales", first, detail)


# ---- Flags of the rest

SCALES = re.compile(r"(weight|proj|blocks|experts?)(_scale|_scales|_scale_inv|_scale_2|_global_scale)$|^scale_weight$")
DATA = re.compile(r"_(packed|blocks)$|^(blocks)$")
WORDS = re.compile(r"^(weight_packed|qweight)$")  # of integers, int32


def flags_of_rest(items: Sequence[Item], rest: Mapping[str, Tensor]) -> Iterator[Flag]:
    """FP8, packed data and scales that belong to nothing."""
    others = any(item.format.element.itemsize == 1 for item in items)
    unscaled = find_unscaled(rest)
    for name, left in unscaled.items():
        missing = "no scales are there" + (", although other weights have some" if others else "")
        yield Flag("unscaled FP8", name, unfit(left, rest) or missing)
    by_module: dict[str, list[str]] = {}
    for name in rest:
        by_module.setdefault(module_of(name), []).append(name)
    beginnings = {module: Beginnings(names) for module, names in by_module.items()}
    with_data = {module_of(name) for name, x in rest.items() if is_data(name, x)}
    claimed = {part for left in unscaled.values() for part in left}
    for name, x in rest.items():
        if DATA.search(last(name)) and x.dtype.name == "uint8" and x.ndim > 1:
            stem = re.sub(r"_(packed|blocks)$|(?<=\.)blocks$", "", name)
            beside = [each for each in beginnings[module_of(name)].find(stem) if each != name]
            claimed.update(beside)
            yield Flag("packed data without scales", name, unfit(beside, rest) or "no scales are there")
        elif WORDS.search(last(name)) and x.dtype.name == "int32" and not has_scales(by_module[module_of(name)]):
            yield Flag("packed data without scales", name, "no scales are there")
        elif is_swizzled(x, rest.get(f"{name}_scale")):
            detail = f"{in_words(f'{name}_scale', rest)} is padded as matrix kernels read it, and nothing says so"
            yield Flag("scales in the layout 128x4", name, detail)
        elif half := half_of_nvfp4(name, x, rest):
            yield Flag("packed data without scales", name, f"{in_words(half, rest)} alone is there, of two")
    for name in rest:
        if SCALES.search(last(name)) and name not in claimed and module_of(name) not in with_data:
            yield Flag("scales without a weight", name, "it is missing, or was renamed")


def is_data(name: str, x: Tensor) -> bool:
    """Whether a tensor of the rest is quantized data."""
    return holds_codes(name, x.dtype.name, x.shape) and not is_part(name)


def has_scales(names: Iterable[str]) -> bool:
    """Whether some of a module's tensors are called scales."""
    return any("scale" in last(name) for name in names)


def unfit(parts: Sequence[str], rest: Mapping[str, Tensor]) -> str:
    """The parts that fit no convention, in words; "" for none."""
    if not parts:
        return ""
    return f"{listed(parts, lambda part: in_words(part, rest))} {'does' if len(parts) == 1 else 'do'} not fit"


def half_of_nvfp4(name: str, data: Tensor, rest: Mapping[str, Tensor]) -> str:
    """The scales of blocks or the global scale of FP4 in ModelOpt's names, where the other is missing; "" elsewhere."""
    if data.ndim < 2 or data.dtype.name != "uint8":
        return ""
    blocks, whole = f"{name}_scale", f"{name}_scale_2"
    if whole in rest and blocks not in rest:
        return whole
    lone = blocks in rest and whole not in rest and rest[blocks].dtype.name == "float8_e4m3fn"
    return blocks if lone else ""


def is_swizzled(data: Tensor, scales: Tensor | None) -> bool:
    """Whether scales have the padded shape of a layout, and not their own."""
    if scales is None or data.ndim != 2 or data.dtype.name != "uint8":
        return False
    plain = scales_shape(dlfp4.formats()["nvfp4"], (data.shape[0], data.shape[1] * 2))
    padded = None if plain is None else (-(-plain[0] // 128) * 128, -(-plain[1] // 4) * 4)
    return plain != padded and scales.shape == padded


def in_words(name: str, rest: Mapping[str, Tensor]) -> str:
    """A part in a few words."""
    x = rest[name]
    return f"{brief(name)} ({x.dtype.name} {'x'.join(map(str, x.shape)) or 'scalar'})"


# ---- Flags of the model


def flags_of_model(used: Sequence[str], method: str) -> Iterator[Flag]:
    """Several conventions, or another one than the configuration says."""
    used = [convention for convention in used if convention != "unknown"]
    if len(used) > 1:
        yield Flag("mixed conventions", "the model", ", ".join(used))
    known = {row.convention for row in SPELLINGS} | {OWN, "torchao"}
    if method and used and method in known and method not in used:
        yield Flag("configuration", "config.json", f"it says {method}, the weights are stored as {', '.join(used)}")
