"""From one block-scaled format to another without decoding a value: codes are shared, or renamed by the table of
``cast``, and scales go through a small table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dlfp4 import rescaling
from dlfp4._core import _ON_HOST, ScaledTensor, Tensor, _buffers_of, _home_of, asarray, cast, empty
from dlfp4.formats import Format, offset_parts
from dlfp4.receipts import Array, Receipt, all_exact, divide, join_lines, largest_of, receipt_of, relative_errors
from dlfp4.rescaling import Octets

if TYPE_CHECKING:
    from dlfp4._core import _RecipeLike
    from dlfp4.targets import Target

LEAST_POWER, MOST_POWER = -127, 127  # of e8m0
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


def count_blocks(q: ScaledTensor, format: Format | None = None) -> int:
    """How many blocks a matrix has, of its own format or another."""
    lines, length = (format or q.format).block_in(*q.shape)
    rows, columns = q.shape
    return -(-rows // lines) * -(-columns // length) if rows and columns else 0
