"""From one block-scaled format to another: ``ScaledTensor.to``.

Where the new format holds the products of codes and scales, codes are shared, or renamed by the table of ``cast``, and
scales go through a small table: no value is decoded. Where it does not, values are decoded, quantized and compared, a
few lines at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dlfp4 import _core, rescaling, spellings
from dlfp4._core import (
    _ON_HOST,
    ScaledTensor,
    Tensor,
    _buffers_of,
    _home_of,
    _with_encode_scale,
    _with_hadamard,
    _with_receipt,
    asarray,
    cast,
    dequantize,
    empty,
    formats,
    quantize,
)
from dlfp4.extents import count_elements
from dlfp4.formats import RECIPES, ROTATED_LENGTH, Format, Recipe, offset_parts
from dlfp4.receipts import (
    Array,
    Receipt,
    all_exact,
    divide,
    join_lines,
    largest_of,
    receipt_of,
    relative_errors,
)
from dlfp4.rescaling import Octets
from dlfp4.show import summary
from dlfp4.spellings import SPELLINGS
from dlfp4.suggest import did_you_mean

if TYPE_CHECKING:
    from dlfp4._core import _RecipeLike

AT_ONCE = 1 << 18  # elements decoded at a time, so that they stay in a cache
AT_ONCE_THERE = 1 << 26  # the same on a device, whose memory three times as many floats take
LEAST_UNIT = 1 / float(np.finfo(np.float32).max)  # whose reciprocal is finite
LEAST_POWER, MOST_POWER = -127, 127  # of e8m0


# ---- What a convention stores


@dataclass(frozen=True, slots=True)
class Convention:
    """The formats that other software stores, those of its own elements first.

    Parameters
    ----------
    formats : tuple of str
        In the order of preference.
    without_global_scale : tuple of str
        Those of two levels that it stores without a scale of the tensor.
    has_biases : bool
        Whether it stores biases beside integers, and not zero points alone.
    """

    formats: tuple[str, ...]
    without_global_scale: tuple[str, ...] = ()
    has_biases: bool = False


def of_files(name: str) -> Convention:
    """What a convention's files hold, those with float32 scales after the others."""
    rows = [row for row in SPELLINGS if row.convention == name]
    held = {each: row for row in rows for each in row.formats}
    known = formats()
    return Convention(
        tuple(sorted(held, key=lambda each: known[each].kind == "largest")),
        tuple(each for each, row in held.items() if known[each].has_global_scale and not row.global_scale),
        any(".biases" in row.further for row in rows),
    )


CONVENTIONS = {
    **{name: of_files(name) for name in spellings.CONVENTIONS},
    "ggml": Convention(("mxfp4", "nvfp4")),
    "torchao": Convention(("nvfp4", "mxfp4", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp8_e4m3", "mxfp8_e5m2")),
}


class Target(NamedTuple):
    """What a tensor is to become."""

    format: Format
    recipe: _RecipeLike | None  # of what is rounded
    requantizes: bool  # also what is in the format already
    has_unit: bool  # a scale of the whole tensor, where the format has one
    has_biases: bool = True  # biases of integers stay what they are


def find_target(q: ScaledTensor, target: Any, recipe: _RecipeLike | None) -> Target:
    """The format, convention or recipe that was asked for; ValueError where there is none of that name."""
    if isinstance(target, Recipe) or (isinstance(target, str) and target in RECIPES and target not in CONVENTIONS):
        if recipe is not None:
            raise ValueError(f"to({target!r}, recipe={recipe!r}) names two recipes; give one")
        chosen: Any = target
        return Target(q.format, chosen, requantizes=True, has_unit=True)
    name = str(target)
    if name in CONVENTIONS:
        convention = CONVENTIONS[name]
        format = nearest_format(q.format, convention)
        has_unit = format.name not in convention.without_global_scale
        return Target(format, recipe, requantizes=False, has_unit=has_unit, has_biases=convention.has_biases)
    if name not in formats():
        known = [*formats(), *CONVENTIONS, *RECIPES]
        raise ValueError(
            f"to({target!r}): expected a format ({', '.join(formats())}), a convention ({', '.join(CONVENTIONS)}) or a "
            f"recipe ({', '.join(RECIPES)}){did_you_mean(name, known)}"
        )
    return Target(_core._find_format(target), recipe, requantizes=False, has_unit=True)


def nearest_format(format: Format, convention: Convention) -> Format:
    """The format itself where a convention stores it, else the first of the same elements, else the first of all.

    Of formats in two levels, one in two levels comes first: nvfp4_16x16 is nvfp4 that repeats its scales.
    """
    if format.name in convention.formats:
        return format
    if f"u{format.name}" in convention.formats:  # the same values without a sign
        return formats()[f"u{format.name}"]
    rows = [formats()[name] for name in convention.formats]
    alike = [row for row in rows if row.element == format.element]
    in_two = [row for row in alike if row.kind == format.kind == "two_level"]
    return (in_two or alike or rows)[0]


# ---- The way


def transcode(q: ScaledTensor, target: Any, recipe: _RecipeLike | None) -> ScaledTensor:
    """``ScaledTensor.to``. Codes that stand for transformed values still do."""
    signs = q.hadamard
    if signs is None:
        return _with_receipt(*transcode_codes(q, target, recipe))
    whole = in_whole_groups(_with_hadamard(q.with_scale_layout("linear"), None))
    result, receipt = transcode_codes(whole, target, recipe)
    if _buffers_of(q.shape, result.format, q.axis, "linear", True)[0].shape != result.data.shape:
        raise ValueError(
            f"{summary(q)} was transformed with the zeros that complete its lines, which {result.format} does not "
            f"store: quantize the values of .dequantize() instead"
        )
    return _with_hadamard(_with_receipt(renamed(result, result.format, q.shape), receipt), signs)


def in_whole_groups(q: ScaledTensor) -> ScaledTensor:
    """A tensor of transformed values whose lines end where a group of the transform does, not within: behind their end,
    where others have zeros, such lines have numbers.
    """
    rows, columns = count_elements(q.shape[:-1]), q.shape[-1]
    if q.axis == -1:
        return renamed(q, q.format, (*q.shape[:-1], columns + -columns % ROTATED_LENGTH))
    return q if rows % ROTATED_LENGTH == 0 else renamed(q, q.format, (rows + -rows % ROTATED_LENGTH, columns))


def transcode_codes(q: ScaledTensor, target: Any, recipe: _RecipeLike | None) -> tuple[ScaledTensor, Receipt]:
    """The same of a tensor that stands for its own values."""
    wanted = find_target(q, target, recipe)
    linear = q.with_scale_layout("linear")
    if wanted.format.has_integers and not (wanted.has_biases and wanted.format.element == q.format.element):
        unbiased = with_zero_points(linear)
        if unbiased is not None:
            result, _ = transcode_codes(unbiased, target, recipe)
            return result, compare(as_matrix(linear), as_matrix(result), q.format)
    source = as_matrix(linear)
    if not wanted.requantizes and (wanted.has_unit or q.global_scale is None):
        if q.format == wanted.format:
            return linear, all_exact(count_blocks(source, q.format))
        if source.format == wanted.format:
            return renamed(linear, wanted.format, q.shape), all_exact(count_blocks(source, q.format))
    result, receipt = convert(source, wanted)
    if source.format != q.format:
        receipt = compare(source, result, q.format)
    return as_tensor(result, wanted.format, q), receipt


def as_matrix(q: ScaledTensor) -> ScaledTensor:
    """Lines as the rows of a matrix, with blocks along them. Squares under a global scale for each matrix of a stack
    become blocks of the lines, whose scales are repeated: a matrix of squares has one global scale.
    """
    shape = (count_elements(q.shape[:-1]), q.shape[-1])
    units = units_of_lines(q, shape)
    squares = q.format.repeats_scales and units is not None and units.ndim > 0
    format = formats()["nvfp4"] if squares else q.format
    matrix = ScaledTensor.from_parts(
        q.data, q.scales, units, format=format, axis=q.axis, shape=shape, **offset_parts(q)
    )
    return matrix if q.axis == -1 else matrix.mT


def renamed(q: ScaledTensor, format: Format, shape: tuple[int, ...]) -> ScaledTensor:
    """The same parts, of another format or shape that has them so; scales are linear."""
    made = ScaledTensor.from_parts(
        q.data, q.scales, q.global_scale, format=format, axis=q.axis, shape=shape, **offset_parts(q)
    )
    return made if q.encode_scale is None else _with_encode_scale(made, q.encode_scale)


def units_of_lines(q: ScaledTensor, shape: tuple[int, int]) -> Tensor | None:
    """The global scale, one a line where there are several."""
    units = q.global_scale
    lines = shape[0] if q.axis == -1 else shape[1]
    if units is None or not units.ndim or units.size == lines:
        return units
    return asarray(np.repeat(units.to_device("cpu").to_numpy(), lines // units.size)).to_device(_home_of(q))


def as_tensor(matrix: ScaledTensor, format: Format, q: ScaledTensor) -> ScaledTensor:
    """Undo `as_matrix`, for a tensor of another format."""
    turned = matrix if q.axis == -1 else matrix.mT
    return ScaledTensor.from_parts(
        turned.data,
        turned.scales,
        turned.global_scale,
        format=format,
        axis=q.axis,
        shape=q.shape,
        **offset_parts(turned),
    )


def convert(q: ScaledTensor, target: Target) -> tuple[ScaledTensor, Receipt]:
    """A matrix with blocks along its rows in another format, by the cheapest way that is exact."""
    if not target.requantizes:
        found = by_codes(q, target)
        if found is not None:
            return found
    return by_values(q, target)


def count_blocks(q: ScaledTensor, format: Format | None = None) -> int:
    """How many blocks a matrix has, of its own format or another."""
    lines, length = (format or q.format).block_in(*q.shape)
    rows, columns = q.shape
    return -(-rows // lines) * -(-columns // length) if rows and columns else 0


# ---- By codes


HOLDS = {  # the element types that hold every element of another
    "float4_e2m1fn": ("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn", "float8_e4m3fn", "float8_e5m2"),
    "float6_e2m3fn": ("float6_e2m3fn", "float8_e4m3fn"),
    "float6_e3m2fn": ("float6_e3m2fn", "float8_e4m3fn", "float8_e5m2"),
    "float8_e4m3fn": ("float8_e4m3fn",),
    "float8_e5m2": ("float8_e5m2",),
    "float8_e4m3fnuz": ("float8_e4m3fnuz",),
    "float8_e5m2fnuz": ("float8_e5m2fnuz",),
    "int4": ("int4", "uint4"),  # with zero points
    "uint4": ("uint4", "int4"),
}


def by_codes(q: ScaledTensor, target: Target) -> tuple[ScaledTensor, Receipt] | None:
    """The conversion by tables alone; None where blocks do not nest or scales are not to be had."""
    if not nests(q, target.format):
        return None
    if q.format.has_integers:
        return by_integers(q, target.format)
    if target.format.kind == "two_level":
        return in_two_levels(q, target)
    if q.format.kind == "power" and target.format.kind == "power":
        return assemble(q, target.format, repeat(q, q.scales, target.format)), all_exact(count_blocks(q))
    worth = worth_of_scales(q)
    if target.format.kind == "largest":
        stored = asarray(worth).to_device(_home_of(q))
    else:
        powers = bytes_of_powers(worth)
        if powers is None:
            return None
        stored = asarray(powers).view("float8_e8m0fnu").to_device(_home_of(q))
    return assemble(q, target.format, repeat(q, stored, target.format)), all_exact(count_blocks(q))


MIDDLE = 8  # by which codes of uint4 differ from those of int4
MOST_CODE = 15


def by_integers(q: ScaledTensor, format: Format) -> tuple[ScaledTensor, Receipt] | None:
    """int4 and uint4, whose codes and zero points differ by 8; None of biases, which would have to be rounded, and of
    zero points that no byte holds.
    """
    by = MIDDLE if format.element.name == "uint4" else -MIDDLE
    if q.format.element != format.element and (q.biases is not None or not can_move(q, by)):
        return None
    stored = _buffers_of(q.shape, format, -1, "linear", True)[0].shape[1]
    data = q.data if stored == q.data.shape[1] else q.data[:, :stored]
    offsets: dict[str, Any] = {name: repeat_offsets(q, part, format) for name, part in offset_parts(q).items()}
    if q.format.element != format.element:
        octets = data.view("uint8").to_device("cpu").to_numpy() ^ np.uint8(MIDDLE | MIDDLE << 4)
        data = asarray(octets).view(format.element).to_device(_home_of(q))
        zeros = moved_zero_points(q, by)
        offsets = {} if zeros is None else {"zero_points": repeat_offsets(q, zeros, format)}
    scales = repeat(q, q.scales, format)
    result = ScaledTensor.from_parts(data, scales, format=format, shape=q.shape, **offsets)
    return result, all_exact(count_blocks(q))


def with_zero_points(q: ScaledTensor) -> ScaledTensor | None:
    """The tensor with zero points instead of biases, where each is minus so many scales; else None. Its values may be
    rounded otherwise, if scales are float32.
    """
    if q.biases is None:
        return None
    scales, biases = (cast(part, "float32").to_device("cpu").to_numpy() for part in (q.scales, q.biases))
    with np.errstate(divide="ignore", invalid="ignore"):
        counts = np.where((scales == 0) & (biases == 0), MIDDLE, -biases / scales)
    if not ((counts == np.rint(counts)) & (counts >= 0) & (counts <= MOST_CODE)).all():
        return None
    zeros = asarray(counts.astype(np.uint8)).to_device(_home_of(q))
    return ScaledTensor.from_parts(q.data, q.scales, format=q.format, axis=q.axis, shape=q.shape, zero_points=zeros)


def moved_zero_points(q: ScaledTensor, by: int) -> Tensor | None:
    """Zero points and a number, of a byte each; None where all are zero and codes have a sign."""
    given = np.zeros(q.scales.shape, np.int16)
    if q.zero_points is not None:
        given = q.zero_points.to_device("cpu").to_numpy().astype(np.int16)
    zeros = given + np.int16(by)
    if by < 0 and not zeros.any():
        return None
    return asarray(zeros.astype(np.uint8 if zeros.min(initial=0) >= 0 else np.int8)).to_device(_home_of(q))


def can_move(q: ScaledTensor, by: int) -> bool:
    """Whether a byte holds zero points and a number: uint8, or int8 where one is negative."""
    if q.zero_points is None:
        return True
    numbers = q.zero_points.to_device("cpu").to_numpy().astype(np.int16)
    low, high = int(numbers.min(initial=0)) + by, int(numbers.max(initial=0)) + by
    return high <= (255 if low >= 0 else 127) and low >= -128


def repeat_offsets(q: ScaledTensor, offsets: Tensor, format: Format) -> Tensor:
    """Zero points or biases of blocks for the smaller ones within them."""
    rows, columns = _buffers_of(q.shape, format, -1, "linear", True)[1].shape
    if offsets.shape == (rows, columns):
        return offsets
    length, own_length = (each.block_in(*q.shape)[1] for each in (format, q.format))
    spread = np.repeat(offsets.to_device("cpu").to_numpy(), max(1, -(-own_length // length)), axis=1)[:, :columns]
    return asarray(np.ascontiguousarray(spread)).to_device(_home_of(q))


def nests(q: ScaledTensor, format: Format) -> bool:
    """Whether blocks of the format lie within those of the tensor, and its elements among the format's."""
    if format.element.name not in HOLDS.get(q.format.element.name, ()):
        return False
    if format.block is None:
        return q.format.block is None
    lines, length = format.block_in(*q.shape)
    stored = _buffers_of(q.shape, format, -1, "linear", True)[0].shape
    if stored[1] > q.data.shape[1]:
        return False
    if q.format.block is None:
        return True
    own_lines, own_length = q.format.block_in(*q.shape)
    return own_length % length == 0 and (own_lines % lines == 0 or own_lines >= q.shape[0])


def worth_of_scales(q: ScaledTensor) -> npt.NDArray[np.float32]:
    """What the scales of blocks are worth in float32, that of the whole tensor included."""
    scales = q.scales.to_device("cpu")
    if q.format.kind == "largest":
        return cast(scales, "float32").to_numpy()
    values = rescaling.values_of_scales(q.format.scale.name)[scales.view("uint8").to_numpy()]
    with np.errstate(all="ignore"):
        worth: npt.NDArray[np.float32] = values * units_of(q)
    return worth


def units_of(q: ScaledTensor) -> Any:
    """The scale of the whole tensor, that goes with each of the scales."""
    if q.global_scale is None:
        return np.float32(1)
    return (
        q.global_scale.to_device("cpu").to_numpy().reshape(-1, 1)
        if q.global_scale.ndim
        else np.float32(q.global_scale.item())
    )


def bytes_of_powers(worth: npt.NDArray[np.float32]) -> Octets | None:
    """The e8m0 bytes of scales; None where one is no power of two."""
    fraction, exponent = np.frexp(worth.astype(np.float64))
    finite = np.isfinite(worth)
    powers = exponent - 1
    if not ((fraction == 0.5) & (powers >= LEAST_POWER) & (powers <= MOST_POWER) | np.isnan(worth)).all():
        return None
    return np.where(finite, powers + 127, 255).astype(np.uint8)


def repeat(q: ScaledTensor, scales: Tensor, format: Format) -> Tensor:
    """Scales of blocks for the smaller ones within them."""
    rows, columns = _buffers_of(q.shape, format, -1, "linear", True)[1].shape
    lines, length = (1, 1) if format.block is None else format.block_in(*q.shape)
    lines = 1 if format.repeats_scales else lines
    own_lines, own_length = q.format.block_in(*q.shape)
    down = 1 if q.format.repeats_scales else min(-(-own_lines // lines), rows)
    along = 1 if own_length >= q.shape[1] and scales.ndim == 0 else own_length // length
    if scales.ndim == 0:
        down, along, scales = rows, columns, scales.reshape((1, 1))
    if q.format.repeats_scales and lines > 1:
        scales = scales[::lines]
    if (down, along) == (1, 1):
        return scales
    if scales.device.type in _ON_HOST and scales.dtype.itemsize == 1:
        octets = rescaling.repeat(scales.view("uint8").to_numpy(), down, along)
        return asarray(octets).view(scales.dtype)[:rows, :columns]
    spread = empty((scales.shape[0], down, scales.shape[1], along), scales.dtype, device=_home_of(scales))
    for line in range(down):
        for place in range(along):
            cast(scales, scales.dtype, out=spread[:, line, :, place])
    return spread.reshape((scales.shape[0] * down, scales.shape[1] * along))[:rows, :columns]


def assemble(q: ScaledTensor, format: Format, scales: Tensor, unit: float | None = None) -> ScaledTensor:
    """The tensor's codes, renamed where elements are wider, under other scales."""
    stored = _buffers_of(q.shape, format, -1, "linear", True)[0].shape[1]
    data = q.data if stored == q.data.shape[1] else q.data[:, :stored]
    if q.format.element != format.element:
        data = cast(data, format.element)
    return ScaledTensor.from_parts(data, scales, unit, format=format, shape=q.shape)


# ---- To two levels by codes


def in_two_levels(q: ScaledTensor, target: Target) -> tuple[ScaledTensor, Receipt] | None:
    """FP4 under E4M3 scales and one scale of the tensor; a few blocks may have to be rounded, on the host."""
    if q.format.kind == "largest" or (q.global_scale is not None and q.global_scale.ndim):
        return None
    octets = q.scales.view("uint8").to_device("cpu").to_numpy()
    if q.format.kind == "power":
        unit = 2.0 ** choose_power(q, octets) if target.has_unit else 1.0
        table = table_of_powers(unit)
    else:
        unit = rescaling.unit_of(q) if target.has_unit else 1.0
        table = rescaling.rename(rescaling.unit_of(q), unit)
    fresh = asarray(rescaling.translate(octets, table.codes)).view("float8_e4m3fn").to_device(_home_of(q))
    result = assemble(q, target.format, repeat(q, fresh, target.format), unit if target.has_unit else None)
    if not rescaling.translate(octets, (table.errors > 0).astype(np.uint8)).any():
        return result, all_exact(count_blocks(q))
    own = repeat(q, q.scales, target.format).view("uint8").to_device("cpu").to_numpy()
    return mend(q, result, own, table.errors[own], Mending(unit, target.recipe))


class Mending(NamedTuple):
    """The global scale, and the recipe of what is rounded."""

    unit: float
    recipe: _RecipeLike | None


def table_of_powers(unit: float) -> rescaling.Renamed:
    """The E4M3 scale of each e8m0 byte, under a global scale."""
    powers = rescaling.values_of_scales("float8_e8m0fnu")
    with np.errstate(all="ignore"):
        codes = rescaling.nearest_e4m3(powers.astype(np.float64) / unit)
        values = rescaling.values_of_scales("float8_e4m3fn")[codes] * np.float32(unit)
    return rescaling.Renamed(codes, relative_errors(powers[:, None], values[:, None]))


# The powers of two among E4M3 numbers.
LOWEST, HIGHEST = -9, 8


def choose_power(q: ScaledTensor, octets: Octets) -> int:
    """The exponent of the global scale under which the most blocks are exact; of several, the one that leaves room for
    the largest scale. Blocks of zeros and of NaN are exact under any.
    """
    smallest, largest = (int(each) for each in (octets.min(initial=255), octets.max(initial=0)))
    if 0 <= largest - smallest <= HIGHEST - LOWEST and largest < 255:  # as usual: no need to look any closer
        return max(largest - 127 - HIGHEST, -126)
    counts = rescaling.count_codes(octets)[:255]
    used = np.flatnonzero(counts)
    if len(used) and used[-1] - used[0] > HIGHEST - LOWEST:
        zero = zero_blocks_of(q, octets.shape)
        counts = rescaling.count_codes(octets[~zero])[:255]
        used = np.flatnonzero(counts)
    if not len(used):
        return 0
    low, high = int(used[0]) - 127, int(used[-1]) - 127
    total = np.concatenate([[0], np.cumsum(counts)])
    choices = range(max(-126, low - HIGHEST), min(127, high - LOWEST) + 1)
    held = {
        power: int(total[min(255, power + HIGHEST + 128)] - total[max(0, power + LOWEST + 127)]) for power in choices
    }
    most = max(held.values())
    wanted = high - HIGHEST
    return min((power for power, count in held.items() if count == most), key=lambda power: abs(power - wanted))


def zero_blocks_of(q: ScaledTensor, shape: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    """Which blocks hold zeros alone."""
    octets = q.data.view("uint8").to_device("cpu").to_numpy()
    return rescaling.zero_blocks(octets, 2 * octets.shape[1] // shape[1])


def mend(
    q: ScaledTensor, result: ScaledTensor, own: Octets, errors: Array, how: Mending
) -> tuple[ScaledTensor, Receipt] | None:
    """Choose codes anew where the scale came out too coarse or, by a recipe, where it is not exact, on the host; None
    for squares, which share scales.
    """
    if result.format.repeats_scales:
        return None
    if q.device.type not in _ON_HOST:
        found = mend(q.to_device("cpu"), result.to_device("cpu"), own, errors, how)
        return found and (found[0].to_device(_home_of(q)), found[1])
    scales = result.scales.view("uint8").to_numpy(copy=True)
    octets = result.data.view("uint8").to_numpy(copy=True).reshape(*scales.shape, -1)
    errors = np.where(rescaling.zero_blocks(octets.reshape(len(octets), -1), rescaling.LENGTH), 0, errors)
    coarse = errors > (rescaling.HALF_STEP * (1 + 1e-6) if how.recipe is None else 0)
    sizes = sizes_of(q, octets, own)
    before = values_under(q, octets[coarse], own[coarse])
    rescaling.mend(rescaling.Remedy(coarse, before, how.unit, how.recipe), octets, scales, errors)
    mended = ScaledTensor.from_parts(
        octets.reshape(len(octets), -1), scales, result.global_scale, format=result.format, shape=q.shape
    )
    return mended, receipt_of(of_source_blocks(q, errors, sizes))


def values_under(q: ScaledTensor, octets: Octets, scales: Octets) -> npt.NDArray[np.float32]:
    """What blocks of 16 decode to under the tensor's own scales."""
    if q.format.kind == "power":
        return rescaling.values_of_blocks(octets, scales, "mxfp4_16", None)
    return rescaling.values_of_blocks(octets, scales, "nvfp4", rescaling.unit_of(q))


def sizes_of(q: ScaledTensor, octets: Octets, scales: Octets) -> Array:
    """The largest magnitude of each block of 16 under the tensor's own scales, in units of its global one; 0 of NaN."""
    codes = np.maximum(octets & 7, octets >> 4 & 7).max(-1, initial=0)
    sizes: Array = rescaling.values_of_fp4()[codes] * np.abs(rescaling.values_of_scales(q.format.scale.name)[scales])
    return np.nan_to_num(sizes, copy=False, nan=0)


def of_source_blocks(q: ScaledTensor, errors: Array, sizes: Array) -> Array:
    """The errors of the tensor's own blocks, from those of the blocks of 16 within them and their magnitudes."""
    lines, length = q.format.block_in(*q.shape)
    changes = np.where(np.isfinite(errors), errors * sizes, errors)
    parts = (join_lines(largest_of(each, length // rescaling.LENGTH), lines) for each in (changes, sizes))
    return divide(*parts)


# ---- By values


def by_values(q: ScaledTensor, target: Target) -> tuple[ScaledTensor, Receipt]:
    """Decode, quantize and compare, some lines at a time."""
    if target.format.kind == "two_level" and target.recipe is None:
        found = through_powers(q, target)
        if found is not None:
            return found
    unscaled, factor = without_unit(q, target)
    unit, recipe = scale_of_all(unscaled, target), recipe_of(unscaled, target)
    result = allocate(q, target, unit)
    certain = is_certain(q, target)
    changes = Changes(q, q.format)
    for rows in chunks(q, target.format):
        part = result[rows]
        values = dequantize(unscaled[rows])
        quantize(values, target.format, recipe=recipe, global_scale=unit, pad=True, out=part)
        if certain:
            continue
        if target.format.kind == "power" and target.recipe is None:
            improve(values, part)
        if factor is not None:
            scale_by(part.scales, factor)
            values = dequantize(q[rows])
        changes.add(rows.start, values, dequantize(part))
    if not target.has_unit:
        result = ScaledTensor.from_parts(result.data, result.scales, format=target.format, shape=q.shape)
    return result, all_exact(count_blocks(q)) if certain else changes.receipt()


class Changes:
    """The largest change and magnitude of each block of a matrix, where that lies.

    Parameters
    ----------
    q : ScaledTensor
        The matrix.
    format : Format or None
        Whose blocks; None: it is one.
    """

    block: tuple[int, int]
    changes: Tensor
    sizes: Tensor

    def __init__(self, q: ScaledTensor, format: Format | None) -> None:
        self.block = (max(1, q.shape[0]), max(1, q.shape[1])) if format is None else format.block_in(*q.shape)
        shape = tuple(-(-extent // size) for extent, size in zip(q.shape, self.block, strict=True))
        self.changes, self.sizes = (empty(shape, "float32", device=_home_of(q)) for _ in range(2))

    def add(self, first: int, before: Tensor, after: Tensor) -> None:
        """Some rows; those before them belong to other blocks, or to the one of the whole."""
        down = slice(first // self.block[0], None)
        _core._find_changes(before, after, self.block, self.changes[down], self.sizes[down], first % self.block[0] > 0)

    def receipt(self) -> Receipt:
        """Once all rows are there."""
        blocks = self.changes.size
        if not blocks:
            return all_exact(0)
        changed, largest = _core._sum_up_changes(self.changes, self.sizes)
        return Receipt(blocks, blocks - changed, largest)


def compare(before: ScaledTensor, after: ScaledTensor, format: Format) -> Receipt:
    """What became of a matrix, by the blocks of a format."""
    changes = Changes(before, format)
    for rows in chunks(before, after.format):
        changes.add(rows.start, dequantize(before[rows]), dequantize(after[rows]))
    return changes.receipt()


MOST_SHIFTED = 14  # powers of two by which E4M3 numbers hold all of FP4: 2**-8 to 2**6
SAFE = (20, 235)  # e8m0 bytes whose products are far from the ends of float32


def is_certain(q: ScaledTensor, target: Target) -> bool:
    """Whether FP8 holds FP4 whatever the codes are, as scales tell: nothing needs to be compared."""
    if (q.format.kind, q.format.element.name) != ("power", "float4_e2m1fn") or target.recipe is not None:
        return False
    if (target.format.kind, target.format.element.name) != ("largest", "float8_e4m3fn") or not q.scales.size:
        return False
    octets = q.scales.view("uint8").to_device("cpu").to_numpy()
    smallest, largest = int(octets.min()), int(octets.max())
    return largest - smallest <= MOST_SHIFTED and SAFE[0] <= smallest <= largest <= SAFE[1]


def chunks(q: ScaledTensor, format: Format) -> list[slice]:
    """Rows to take at a time: whole blocks of both formats."""
    rows, columns = q.shape
    group = math.lcm(*(each.block[0] if each.block else 1 for each in (q.format, format)))
    if q.format.has_integers or format.has_integers:
        group = math.lcm(group, 2)  # rows of zero points start on bytes
    at_once = AT_ONCE if q.device.type in _ON_HOST else AT_ONCE_THERE
    step = max(1, at_once // max(1, columns) // group) * group
    return [slice(first, min(rows, first + step)) for first in range(0, rows if columns else 0, step)]


def allocate(q: ScaledTensor, target: Target, unit: float | None) -> ScaledTensor:
    """Memory for a matrix in another format."""
    buffers = _buffers_of(q.shape, target.format, -1, "linear", True)
    device = _home_of(q)
    data, scales = (empty(buffer.shape, buffer.dtype, device=device) for buffer in buffers[:2])
    offsets: dict[str, Any] = {
        name: empty(shape, dtype, device=device) for name, shape, dtype in buffers if name == "zero_points"
    }
    if target.format.block is None:
        scales = asarray(np.array(unit, np.float32)).to_device(device)
    whole = unit if target.format.has_global_scale else None
    return ScaledTensor.from_parts(data, scales, whole, format=target.format, shape=q.shape, **offsets)


def without_unit(q: ScaledTensor, target: Target) -> tuple[ScaledTensor, np.float32 | None]:
    """The tensor without the scale of the whole, and that scale, where FP8's scales can take it: so powers of two
    suffice for the rest.
    """
    whole = q.global_scale
    blocks = target.format.kind == "largest" and target.format.block is not None
    if not blocks or target.format.has_integers or target.recipe is not None or whole is None or whole.ndim:
        return q, None
    return ScaledTensor.from_parts(q.data, q.scales, format=q.format, shape=q.shape), np.float32(whole.item())


def scale_by(scales: Tensor, factor: np.float32) -> None:
    """Multiply float32 scales in place."""
    with np.errstate(all="ignore"):
        product = scales.to_device("cpu").to_numpy() * factor
    cast(asarray(product).to_device(_home_of(scales)), "float32", out=scales)


def recipe_of(q: ScaledTensor, target: Target) -> _RecipeLike | None:
    """The recipe that was asked for, else the one that finds exact scales where there are some."""
    is_fp8 = target.format.kind == "largest" and not target.format.has_integers
    if target.recipe is None and is_fp8 and has_powers(q):
        return Recipe(pow2=True)
    return target.recipe


def has_powers(q: ScaledTensor) -> bool:
    """Whether scales are powers of two, or E4M3 numbers, which FP8 elements take."""
    return q.format.kind != "largest" or bytes_of_powers(worth_of_scales(q)) is not None


def scale_of_all(q: ScaledTensor, target: Target) -> float | None:
    """The scale of the whole tensor by the format's own rule, where it has one."""
    if not target.has_unit:
        return 1.0
    if target.format.block is not None and not target.format.has_global_scale:
        return None
    sample = np.zeros(target.format.block_in(1, 1), np.float32)
    sample[0, 0] = largest_magnitude(q)
    found = quantize(sample, target.format, recipe=recipe_of(q, target))
    scale = found.scales if found.global_scale is None else found.global_scale
    return max(float(scale.item()), LEAST_UNIT)


def largest_magnitude(q: ScaledTensor) -> float:
    """Of what is finite."""
    whole = Changes(q, None)
    for rows in chunks(q, q.format):
        values = dequantize(q[rows])
        whole.add(rows.start, values, values)
    return whole.sizes.item() if count_elements(q.shape) else 0.0


def improve(values: Tensor, part: ScaledTensor) -> None:
    """Take the scale above the one of the rule "floor" where that has a smaller squared error: where the largest
    element saturates.
    """
    floor = dequantize(part)
    if values.device.type in _ON_HOST and are_equal(values, floor):
        return  # as powers of two often are
    other = quantize(values, part.format, recipe=Recipe(scale_rule="rceil"), pad=True)
    best = (floor, part.data, part.scales)
    _core._take_better(values, part.format.block_in(*part.shape), best, (dequantize(other), other.data, other.scales))


def are_equal(a: Tensor, b: Tensor) -> bool:
    """Whether floats on the host have the same bits."""
    return np.array_equal(a.view("uint32").to_numpy(), b.view("uint32").to_numpy())


def through_powers(q: ScaledTensor, target: Target) -> tuple[ScaledTensor, Receipt] | None:
    """Two levels by way of FP4 under powers of two, where that is exact; the first lines tell whether it may be."""
    if target.format.repeats_scales or not count_elements(q.shape):
        return None
    powers = Target(formats()["mxfp4_16"], None, requantizes=False, has_unit=True)
    first = chunks(q, powers.format)[0]
    for part in (q,) if first.stop == q.shape[0] else (q[first], q):
        middle, receipt = by_values(part, powers)
        if not receipt.is_exact:
            return None
    found = in_two_levels(middle, target)
    if found is None or not found[1].is_exact:
        return None
    return found[0], all_exact(count_blocks(q))


_core._set_transcoder(transcode)
