"""Several block-scaled tensors as one: their codes and scales side by side, under one global scale."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dlfp4 import rescaling
from dlfp4._core import (
    _ON_HOST,
    ScaledTensor,
    Tensor,
    _buffers_of,
    _copied,
    _home_of,
    _parse_integer,
    _with_encode_scale,
    _with_hadamard,
    _with_receipt,
    asarray,
    cast,
    dequantize,
    empty,
    pack,
    quantize,
    unpack,
)
from dlfp4.extents import count_elements
from dlfp4.formats import offset_parts
from dlfp4.frameworks.base import SUBBYTE
from dlfp4.proto import own_scaled
from dlfp4.receipts import Array, Receipt, all_exact, join_lines, receipt_of, relative_errors, sum_up
from dlfp4.show import summary

if TYPE_CHECKING:
    from typing import SupportsIndex

    from dlfp4._core import _Quantized

POWERS = range(-17, 18)  # of two, by which E4M3 scales may be moved
MOST_UNITS = 16  # global scales of which all powers are tried


def concatenate(tensors: Iterable[ScaledTensor | _Quantized], axis: SupportsIndex = 0) -> ScaledTensor:
    """Join block-scaled tensors along an axis without going through floats, such as gate and up into one weight.

    Codes and scales are copied side by side. Formats with a scale of the whole tensor get one that serves all: where
    the given ones differ, scales of blocks are renamed in units of the common one, which is chosen to keep the most
    blocks exact. ``.receipt`` tells how many were, and the largest error of the rest. Global scales of rows and of the
    matrices of a stack stay those of the same rows and matrices, and stacks that are joined along a leading axis keep
    theirs; where matrices grow, such as the gate and up of each expert, each gets one scale of its own.

    Parameters
    ----------
    tensors : iterable of ScaledTensor
        Those of dlfp4.torch and dlfp4.jax, too. Of one format, with blocks along one axis, on one device, equal in
        shape but along `axis`. All but the last end there where a block does. Other scale layouts become linear. Lines
        that have a scale each are made longer only where those scales are equal.
    axis : int
        The axis of the tensors' shape. Blocks along -2 take stacks along the first and the last axis alone.

    Returns
    -------
    ScaledTensor
        With linear scales, and a :class:`Receipt`. It has memory of its own, also where it is made of one tensor.

    Raises
    ------
    ValueError
        No tensors, or tensors that do not fit together; a tensor ends within a block.
    TypeError
        Something else than ScaledTensors.
    BufferError
        On a device: blocks that have to be rounded again, which is done on the host.

    Notes
    -----
    Two global scales whose ratio is a power of two usually leave all blocks exact, since E4M3 holds most scales times a
    power of two. Any other ratio rounds the scales of all blocks but those of one tensor, by 2**-4 of their values at
    most. Codes change only where a scale is no normal E4M3 number.

    Examples
    --------
    >>> import numpy as np, dlfp4
    >>> gate, up = (dlfp4.quantize(np.eye(32, dtype="float32") * size, "nvfp4") for size in (1, 4))
    >>> w = dlfp4.concatenate([gate, up])
    >>> w.shape, w.receipt.is_exact
    ((64, 32), True)
    """
    given = check_tensors(tensors)
    ndim = given[0].ndim
    number = _parse_integer(axis, "axis")
    if not -ndim <= number < ndim:
        raise ValueError(f"axis={number}: the tensors have {ndim} dimensions; expected {-ndim} to {ndim - 1}")
    along = number % ndim
    check_shapes(given, along)
    given = [each for each in given if each.shape[along]] or given[:1]  # what is empty there adds nothing
    check_borders(given, along)
    if len(given) == 1:
        return _with_receipt(_copied(given[0]), all_exact(count_blocks(given[0])))
    bare = [_with_hadamard(each, None) for each in given]
    if has_own_units(given, along):
        joined, receipt = under_own_units(bare, along)
    else:
        common, receipt = under_one_scale(bare)
        joined = join(common, along, common[0].global_scale, common_encode_scale(common))
    return _with_hadamard(_with_receipt(joined, receipt), given[0].hadamard)  # which codes stand for


def stack(tensors: Iterable[ScaledTensor | _Quantized]) -> ScaledTensor:
    """Stack block-scaled tensors along a new first axis, such as experts' weights (N, K) into (E, N, K).

    Parameters
    ----------
    tensors : iterable of ScaledTensor
        As :func:`concatenate` takes them, of equal shapes of whole blocks.

    Returns
    -------
    ScaledTensor
        ``result[k]`` is the k-th tensor. Tensors with blocks along their rows keep their global scales, which become
        one a matrix, ``(E,)``, or stay those of rows; others have one scale of the whole tensor, as by
        :func:`concatenate`. ``.receipt`` tells how exact it is.

    Raises
    ------
    ValueError, TypeError, BufferError
        As :func:`concatenate`.

    Examples
    --------
    >>> import numpy as np, dlfp4
    >>> experts = [dlfp4.quantize(np.full((16, 32), k + 1, "float32"), "mxfp4") for k in range(3)]
    >>> dlfp4.stack(experts).shape
    (3, 16, 32)
    """
    given = check_tensors(tensors)
    check_shapes(given, -1)
    return concatenate([reshaped(each, (1, *each.shape)) for each in given], 0)


def reshaped(q: ScaledTensor, shape: tuple[int, ...]) -> ScaledTensor:
    """The same matrix of rows under other leading dimensions."""
    made = ScaledTensor.from_parts(
        q.data,
        q.scales,
        q.global_scale,
        format=q.format,
        axis=q.axis,
        shape=shape,
        hadamard=q.hadamard,
        **offset_parts(q),
    )
    return encoded(made, q.encode_scale)


# ---- What fits together


def check_tensors(tensors: Iterable[Any]) -> list[ScaledTensor]:
    """The tensors with linear scales; they have one format, axis, rank and device."""
    all_of_them: Any = tensors
    if isinstance(all_of_them, ScaledTensor):
        raise TypeError(f"tensors is {summary(all_of_them)}; expected several ScaledTensors, in a list")
    try:
        each_of_them = iter(all_of_them)
    except TypeError:  # no iterable, or an array without dimensions
        kind = type(all_of_them).__name__
        raise TypeError(f"tensors is of type {kind}; expected several ScaledTensors, in a list") from None
    given = list(map(own_scaled, each_of_them))
    for each in given:
        if not isinstance(each, ScaledTensor):
            raise TypeError(
                f"tensors has one of type {type(each).__name__}; expected ScaledTensors: quantize it, or join plain "
                f"tensors with their own library"
            )
    if not given:
        raise ValueError("tensors is empty; expected one ScaledTensor or more")
    first = given[0]
    for each in given:
        check_kinds(first, each)
    return [each.with_scale_layout("linear") for each in given]


def check_kinds(first: ScaledTensor, other: ScaledTensor) -> None:
    """ValueError for the first thing in which tensors differ that are to be joined, beside their shapes."""
    for (what, ours), (_, theirs) in zip(kind_of(first), kind_of(other), strict=True):
        if ours != theirs:
            remedy = {
                "format": f"bring them together with .to({first.format.name!r})",
                "device": f"bring them together with .to_device({str(first.device)!r})",
                "rank": "index the larger one, or reshape what is quantized",
            }.get(what, "quantize them alike")
            raise ValueError(f"{summary(first)} and {summary(other)} differ in {what}: {ours} and {theirs}; {remedy}")


def kind_of(q: ScaledTensor) -> list[tuple[str, Any]]:
    """What tensors have in common that are joined, beside their shapes, as users call it."""
    offsets = [f"{name} of {part.dtype.name}" for name, part in offset_parts(q).items()]
    return [
        ("format", q.format.name),
        ("device", q.device),
        ("rank", q.ndim),
        ("the axis of their blocks", q.axis),
        ("the type of their scales", q.scales.dtype.name),
        ("the signs of their Hadamard transforms", q.hadamard),
        ("zero points or biases", ", ".join(offsets) or "none"),
    ]


def check_shapes(given: Sequence[ScaledTensor], along: int) -> None:
    """ValueError unless shapes are equal but along an axis (-1: none)."""
    shapes = [tuple(extent for dim, extent in enumerate(each.shape) if dim != along) for each in given]
    for each, shape in zip(given, shapes, strict=True):
        if shape != shapes[0]:
            but = f" but along axis {along}" if along >= 0 else ""
            raise ValueError(f"shapes {given[0].shape} and {each.shape} differ; expected equal ones{but}")


def check_borders(given: Sequence[ScaledTensor], along: int) -> None:
    """ValueError unless the tensors end where blocks do."""
    q = given[0]
    columns = along == q.ndim - 1
    if q.axis == -2 and 0 < along < q.ndim - 1:
        raise ValueError(
            f"{summary(q)} has blocks along its rows, which run through the stack: join it along axis 0 or -1"
        )
    along_lines = lengthens(q, along)
    if q.format.scales_lines and along_lines and not have_equal_scales(given):
        raise ValueError(
            f"{summary(q)} has one scale for each line, and the tensors' differ: join the values of .dequantize()"
        )
    lines, length = (1, 1) if q.format.block is None else q.format.block_in(1, 1)
    if q.format.scales_lines and q.format.element.name in SUBBYTE:
        length = 2  # lines are whole bytes
    step = max(1, length if along_lines else lines)
    for each in given if 0 < along < q.ndim - 1 else given[:-1]:
        extent = each.shape[-1] if columns else count_elements(each.shape[along:-1])  # rows that stay together
        if extent % step:
            what = "columns" if columns else "rows"
            raise ValueError(
                f"{summary(each)} has {extent} {what} to join, and blocks of {lines}x{length} along axis {q.axis} end "
                f"at multiples of {step}: slice it there, or join the values of .dequantize()"
            )


def lengthens(q: ScaledTensor, along: int) -> bool:
    """Whether the lines along which blocks run become longer by what is joined there."""
    return (along == q.ndim - 1) == (q.axis == -1)


def have_equal_scales(given: Sequence[ScaledTensor]) -> bool:
    """Whether the scales, zero points and biases of all tensors have the same bits."""
    parts = [[each.scales, *offset_parts(each).values()] for each in given]
    octets = {tuple(part.to_device("cpu").copy().to_numpy().tobytes() for part in of_one) for of_one in parts}
    return len(octets) == 1


# ---- Parts side by side


def join(
    given: Sequence[ScaledTensor], along: int, unit: Tensor | None, encode_scale: Tensor | None = None
) -> ScaledTensor:
    """Copy parts into one tensor's, which has the global scale `unit`. What all have alike is copied, too: the given
    tensors may be written to.
    """
    first = given[0]
    extent = sum(each.shape[along] for each in given)
    shape = (*first.shape[:along], extent, *first.shape[along + 1 :])
    buffers = _buffers_of(shape, first.format, first.axis, "linear", True, first.scales.dtype.name)
    data = empty(buffers[0].shape, buffers[0].dtype, device=_home_of(first))
    place([each.data for each in given], data, given, along)
    if not first.scales.ndim or (first.format.scales_lines and lengthens(first, along)):
        scales = first.scales.copy()
        offsets = {name: part.copy() for name, part in offset_parts(first).items()}
    else:
        scales = empty(buffers[1].shape, buffers[1].dtype, device=_home_of(first))
        place([each.scales for each in given], scales, given, along)
        offsets = join_offsets(given, along, buffers[1].shape)
    made = ScaledTensor.from_parts(
        data,
        scales,
        own(unit),
        format=first.format,
        axis=first.axis,
        shape=shape,
        hadamard=first.hadamard,
        **offsets,
    )
    return encoded(made, own(encode_scale))


def own(unit: Tensor | None) -> Tensor | None:
    """A copy of a global scale, if there is one."""
    return None if unit is None else unit.copy()


def encoded(q: ScaledTensor, encode_scale: Tensor | None) -> ScaledTensor:
    """The tensor, whose global scale was stored as the reciprocal of this one, if there is one."""
    return q if encode_scale is None else _with_encode_scale(q, encode_scale)


def join_offsets(given: Sequence[ScaledTensor], along: int, shape: tuple[int, ...]) -> dict[str, Any]:
    """Zero points or biases side by side; packed ones a byte each, since one may start within another's."""
    joined = {}
    for name, first in offset_parts(given[0]).items():
        packed = first.packed and first.dtype.name in SUBBYTE
        parts = [offset_parts(each)[name] for each in given]
        whole = empty(shape, first.dtype, device=_home_of(first), packed=not packed)
        place([unpack(part) for part in parts] if packed else parts, whole, given, along)
        joined[name] = pack(whole) if packed else whole
    return joined


def place(parts: Sequence[Tensor], result: Tensor, given: Sequence[ScaledTensor], along: int) -> None:
    """Copy matrices side by side along an axis of the tensors' shape."""
    if not result.size:
        return
    q = given[0]
    turned = q.axis == -2 and q.format.element.name in SUBBYTE  # stored transposed
    columns = along == q.ndim - 1
    dim, spread, views = int(columns != turned), result, list(parts)
    if not columns and along > 0:
        batches = count_elements(q.shape[:along])
        dim, spread = 1, result.reshape((batches, -1, result.shape[1]))
        views = [part.reshape((batches, -1, part.shape[1])) for part in parts]
    start = 0
    for view in views:
        stop = start + view.shape[dim]
        cast(view, view.dtype, out=spread[(slice(None),) * dim + (slice(start, stop),)])
        start = stop


# ---- Global scales of lines and of matrices


def has_own_units(given: Sequence[ScaledTensor], along: int) -> bool:
    """Whether lines or matrices have a global scale each, or may have it: matrices of stacks that are joined."""
    first = given[0]
    if any(q.global_scale is not None and q.global_scale.ndim for q in given):
        return True
    if not first.format.has_global_scale or first.axis != -1 or along >= first.ndim - 2:
        return False
    return len({rescaling.unit_of(q) for q in given}) > 1


def count_lines(q: ScaledTensor) -> int:
    """Along which blocks run."""
    return count_elements(q.shape[:-1]) if q.axis == -1 else q.shape[-1]


def under_own_units(given: Sequence[ScaledTensor], along: int) -> tuple[ScaledTensor, Receipt]:
    """Tensors joined, of which some have a global scale for each line or matrix."""
    first = given[0]
    units = [(q.global_scale, count_lines(q)) for q in given]
    of_lines = any(unit is not None and unit.ndim and unit.size == lines for unit, lines in units)
    if not of_lines and along >= first.ndim - 2:
        return matrix_by_matrix(given, along)
    if not lengthens(first, along):
        return beside_each_other(given, along, of_lines)
    numbers = [numbers_of(unit, lines) for unit, lines in units]
    if any(each.tobytes() != numbers[0].tobytes() for each in numbers):
        raise ValueError(
            f"{summary(first)} has one global scale for each line, and the tensors' differ: join the values of "
            f".dequantize()"
        )
    unit = asarray(numbers[0]).to_device(_home_of(first))
    return join(given, along, unit, common_encode_scale(given)), all_exact(sum(map(count_blocks, given)))


def matrix_by_matrix(given: Sequence[ScaledTensor], along: int) -> tuple[ScaledTensor, Receipt]:
    """Stacks whose matrices grow, each of them joined under a global scale of its own."""
    *leading, _, _ = given[0].shape
    stacks = [reshaped(q, (count_elements(leading), *q.shape[-2:])) for q in given]
    joined = [concatenate(matrices, along - len(leading)) for matrices in zip(*map(taken_apart, stacks), strict=True)]
    stacked = stack(joined)
    return reshaped(stacked, (*leading, *stacked.shape[-2:])), sum_up([q.receipt for q in joined if q.receipt])


def taken_apart(q: ScaledTensor) -> list[ScaledTensor]:
    """The matrices of a stack."""
    return [q[k] for k in range(q.shape[0])]


def beside_each_other(given: Sequence[ScaledTensor], along: int, of_lines: bool) -> tuple[ScaledTensor, Receipt]:
    """Tensors joined where lines stay as long as they were; each line or matrix keeps its global scale."""
    q = given[0]
    batches = count_elements(q.shape[:along]) if q.axis == -1 else 1
    counts = [count_lines(each) if of_lines else count_elements(each.shape[:-2]) for each in given]

    def side_by_side(units: Sequence[Tensor | None]) -> Tensor:
        numbers = map(numbers_of, units, counts)
        parts = [each.reshape(batches, each.size // max(1, batches)) for each in numbers]
        return asarray(np.concatenate(parts, axis=1).reshape(-1)).to_device(_home_of(q))

    encode_scales = [each.encode_scale for each in given]
    encode_scale = None if any(each is None for each in encode_scales) else side_by_side(encode_scales)
    joined = join(given, along, side_by_side([each.global_scale for each in given]), encode_scale)
    return joined, all_exact(sum(map(count_blocks, given)))


def numbers_of(unit: Tensor | None, count: int) -> Array:
    """A global scale, 1 where there is none, as so many numbers."""
    if unit is None:
        return np.ones(count, np.float32)
    numbers: Array = unit.to_device("cpu").to_numpy().reshape(-1)
    return np.repeat(numbers, count // max(1, numbers.size))


def common_encode_scale(given: Sequence[ScaledTensor]) -> Tensor | None:
    """That by which the global scale of all tensors goes; None where they have none, or several."""
    scales = [q.encode_scale for q in given]
    bits = {None if each is None else each.to_device("cpu").to_numpy().tobytes() for each in scales}
    return scales[0] if len(bits) == 1 else None


# ---- One scale for all


def under_one_scale(given: Sequence[ScaledTensor]) -> tuple[Sequence[ScaledTensor], Receipt]:
    """The tensors with scales in units of one scale of the whole tensor, where the format has one."""
    exact = sum_up([all_exact(count_blocks(each)) for each in given])
    format = given[0].format
    if format.has_global_scale:
        units = [rescaling.unit_of(each) for each in given]
        if len(set(units)) > 1:
            return under_one_unit(given, units)
        of_some = next((each.global_scale for each in given if each.global_scale is not None), None)
        return [encoded(with_parts(q, q.data, q.scales, of_some), q.encode_scale) for q in given], exact
    if format.block is None:
        return under_one_float(given, exact)
    return given, exact


def count_blocks(q: ScaledTensor) -> int:
    """How many scales a tensor has, but for repeated ones."""
    if q.format.block is None or not q.format.repeats_scales:
        return q.scales.size
    lines, blocks = q.scales.shape
    return -(-lines // q.format.block[0]) * blocks


def with_parts(q: ScaledTensor, data: Tensor, scales: Tensor, unit: Tensor | float | None) -> ScaledTensor:
    """The same tensor with other memory."""
    return ScaledTensor.from_parts(data, scales, unit, format=q.format, axis=q.axis, shape=q.shape, **offset_parts(q))


def under_one_unit(given: Sequence[ScaledTensor], units: Sequence[float]) -> tuple[Sequence[ScaledTensor], Receipt]:
    """E4M3 scales in units of the global scale that keeps the most blocks exact. Zeros keep their scales' bytes, which
    recipes choose, and have no say.
    """
    scales = [each.scales.view("uint8").to_device("cpu").to_numpy() for each in given]
    counts = [rescaling.count_codes(each) for each in scales]
    zero = [is_zero(*each) for each in zip(given, units, counts, strict=True)]
    judged = [k for k, each in enumerate(zero) if not each] or range(len(given))
    unit = best_unit([units[k] for k in judged], [counts[k] for k in judged])
    renamed = [
        (with_parts(q, q.data, q.scales, unit), all_exact(count_blocks(q)))
        if zero[k]
        else in_units(q, scales[k], units[k], unit)
        for k, q in enumerate(given)
    ]
    return [q for q, _ in renamed], sum_up([receipt for _, receipt in renamed])


def is_zero(q: ScaledTensor, unit: float, count: Array) -> bool:
    """Whether all values are zeros, of a tensor with so many scales of each code. Zeros alone have one scale, as all
    recipes quantize them: the elements of others are not read.
    """
    codes = np.flatnonzero(count)
    may_be = len(codes) < 2 and np.isfinite(unit) and not np.isin(codes, rescaling.NANS).any()
    return may_be and not rescaling.has_nonzero(q)


def best_unit(units: Sequence[float], counts: Sequence[Array]) -> float:
    """Of the given global scales times powers of two, that under which no scale saturates and the most stay exact; of
    such ones the one with the least error.
    """
    finite = sorted({unit for unit in units if np.isfinite(unit) and unit > 0}) or [1.0]
    if len(finite) > MOST_UNITS:
        finite = finite[:: len(finite) // MOST_UNITS] + finite[-1:]
    with np.errstate(all="ignore"):
        moved = np.array(finite, np.float32)[:, None] * np.ldexp(np.float32(1), np.array(POWERS))
    choices = [float(unit) for unit in np.unique(moved) if np.finfo(np.float32).tiny <= unit < np.inf]
    return max(choices, key=lambda unit: judge(unit, units, counts))


def judge(unit: float, units: Sequence[float], counts: Sequence[Array]) -> tuple[bool, int, float]:
    """How well a global scale serves: whether nothing saturates, how many blocks are exact, minus the error of all."""
    exact, error, saturates = 0, 0.0, False
    largest = 448 * unit * (1 + rescaling.HALF_STEP)
    values = np.abs(np.nan_to_num(rescaling.values_of_scales("float8_e4m3fn"))).astype(np.float64)
    for own, count in zip(units, counts, strict=True):
        errors = np.minimum(rescaling.rename(own, unit).errors, 1e6)
        exact += int(count[errors == 0].sum())
        error += float(count @ errors**2)
        saturates |= bool((count[values * own > largest]).any())
    return not saturates, exact, -error


def in_units(q: ScaledTensor, scales: rescaling.Octets, own: float, unit: float) -> tuple[ScaledTensor, Receipt]:
    """One tensor with its scales renamed. Where a scale comes out too coarse, codes are chosen anew."""
    table = rescaling.rename(own, unit)
    renamed = table.codes[scales]
    errors = table.errors[scales]
    data = q.data
    if errors.any():
        if q.device.type in _ON_HOST:  # zeros are exact under any scale
            octets = q.data.view("uint8").to_numpy()
            errors = np.where(rescaling.zero_blocks(octets, rescaling.LENGTH), 0, errors)
        data, renamed, errors = mend(q, scales, renamed, errors, (own, unit))
    repeats = q.format.block[0] if q.format.block and q.format.repeats_scales else 1
    fresh = asarray(np.ascontiguousarray(renamed)).view("float8_e4m3fn").to_device(_home_of(q))
    return with_parts(q, data, fresh, unit), receipt_of(join_lines(errors, repeats))


def mend(
    q: ScaledTensor, scales: rescaling.Octets, renamed: rescaling.Octets, errors: Array, units: tuple[float, float]
) -> tuple[Tensor, rescaling.Octets, Array]:
    """Blocks whose scale is too coarse get new codes."""
    coarse = errors > rescaling.HALF_STEP * (1 + 1e-6)
    if not coarse.any() or q.format.repeats_scales:  # squares share one scale over their lines
        return q.data, renamed, errors
    if q.device.type not in _ON_HOST:
        raise BufferError(
            f"{summary(q)} has blocks whose codes must be chosen anew under the common global scale, which is done on "
            f"the host: call .to_device('cpu') on all tensors first"
        )
    octets = q.data.view("uint8").to_numpy(copy=True).reshape(*scales.shape, -1)
    before = rescaling.values_of_blocks(octets[coarse], scales[coarse], "nvfp4", units[0])
    rescaling.mend(rescaling.Remedy(coarse, before, units[1]), octets, renamed, errors)
    data = asarray(octets.reshape(octets.shape[0], -1)).view(q.format.element.name)
    return data, renamed, errors


def under_one_float(given: Sequence[ScaledTensor], exact: Receipt) -> tuple[Sequence[ScaledTensor], Receipt]:
    """One float32 scale a tensor: the largest serves all, and the codes of the others are rounded again. A tensor of
    zeros has no say: its own scale, 1, is far above that of any weight.
    """
    scales = [float(each.scales.item()) for each in given]
    if min(scales) == max(scales):
        return given, exact
    judged = [scale for q, scale in zip(given, scales, strict=True) if rescaling.has_nonzero(q)]
    largest = max(judged or scales)
    results = [q if scale == largest else rounded_again(q, largest) for q, scale in zip(given, scales, strict=True)]
    errors = [change_of(q, result) for q, result in zip(given, results, strict=True)]
    return results, receipt_of(np.array(errors))


def rounded_again(q: ScaledTensor, scale: float) -> ScaledTensor:
    """A tensor with one scale, under another."""
    return quantize(dequantize(q), q.format, axis=q.axis, global_scale=scale)


def change_of(q: ScaledTensor, result: ScaledTensor) -> float:
    """The error of a tensor as one block."""
    before, after = (dequantize(each).to_device("cpu").to_numpy().reshape(1, -1) for each in (q, result))
    return float(relative_errors(before, after)[0])
