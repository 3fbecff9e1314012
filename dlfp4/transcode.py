"""From one block-scaled format to another: ``ScaledTensor.to``.

Where the new format holds the products of codes and scales, codes are shared, or renamed by the table of ``cast``, and
scales go through a small table: no value is decoded. Where it does not, values are decoded, quantized and compared, a
few lines at a time.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from dlfp4 import _core
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
from dlfp4.formats import ROTATED_LENGTH, Format, Recipe, offset_parts
from dlfp4.receipts import Receipt, all_exact
from dlfp4.recoding import by_codes, bytes_of_powers, count_blocks, in_two_levels, with_zero_points, worth_of_scales
from dlfp4.show import summary
from dlfp4.targets import Target, find_target

if TYPE_CHECKING:
    from dlfp4._core import _RecipeLike

AT_ONCE = 1 << 18  # elements decoded at a time, so that they stay in a cache
AT_ONCE_THERE = 1 << 26  # the same on a device, whose memory three times as many floats take
LEAST_UNIT = 1 / float(np.finfo(np.float32).max)  # whose reciprocal is finite


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
