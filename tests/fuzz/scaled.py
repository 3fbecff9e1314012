"""Targets of ScaledTensors: joined, brought to other formats, through Arrow, and by tvm-ffi's functions.

What comes out is held against NumPy's pieces side by side, byte by byte, and receipts against what the values became.
"""

import functools
import math
from importlib.util import find_spec

import numpy as np
import scaled_makers as makers
from capsules import DTYPES

import dlfp4

REFUSALS = (BufferError, TypeError, ValueError)
PARTS = ("data", "scales", "global_scale", "encode_scale", "zero_points", "biases")
OFFSETS = ("zero_points", "biases")


def values(q):
    """What a tensor stands for."""
    return q.dequantize().to_numpy()


def octets(part):
    """The bytes of a part, in order."""
    return np.ascontiguousarray(part.copy().to_numpy()).tobytes()


def bits_of(part):
    """Of an element."""
    return DTYPES[part.dtype.name][1]


# ---- Receipts


def blocks_of(q, x):
    """Values as blocks of a tensor, (lines of blocks, lines, blocks, length), completed with zeros."""
    x = x.reshape(math.prod(x.shape[:-1]), x.shape[-1]).astype(np.float64)
    x = x.T if q.axis == -2 else x
    lines, length = (extent or whole for extent, whole in zip(q.format.block or (0, 0), x.shape, strict=True))
    x = np.pad(x, ((0, -len(x) % max(lines, 1)), (0, -x.shape[1] % max(length, 1))))
    lines, length = max(lines, 1), max(length, 1)
    return x.reshape(len(x) // lines, lines, x.shape[1] // length, length)


def errors_of(q, after):
    """Of each block: the largest change over the largest magnitude before."""
    before, after = blocks_of(q, values(q)), blocks_of(q, after)
    with np.errstate(all="ignore"):
        same = (before == after) | (np.isnan(before) & np.isnan(after))
        change = np.where(same, 0, np.abs(before - after)).max((1, 3), initial=0)
        size = np.where(np.isfinite(before), np.abs(before), 0).max((1, 3), initial=0)
        return np.where(change == 0, 0, np.where(np.isfinite(change), change / size, np.inf))


def check_receipt(receipt, errors):
    """It tells how many blocks stayed as they were, and the largest error of the others."""
    assert (receipt.blocks, receipt.exact) == (errors.size, np.count_nonzero(errors == 0)), (receipt, errors)
    largest, found = errors.max(initial=0), receipt.largest_error
    assert found == largest or abs(found - largest) <= 1e-6 + 1e-5 * largest, (receipt, largest)


# ---- Joined


def joined(rng):
    """Tensors side by side: codes and scales of the pieces, or a receipt that says what became of the values."""
    given, along = makers.pieces(rng)
    stacks = rng.random() < 0.3
    try:
        result = dlfp4.stack(given) if stacks else dlfp4.concatenate(given, along)
    except REFUSALS:
        return False
    axis = along % given[0].ndim
    shapes = [np.empty(q.shape, np.bool_) for q in given]
    assert result.shape == (np.stack(shapes) if stacks else np.concatenate(shapes, axis)).shape
    after = values(result)
    if 0 in after.shape:
        return True
    places = np.cumsum([q.shape[axis] for q in given])[:-1]
    pieces = list(after) if stacks else np.split(after, places, axis)
    check_receipt(
        result.receipt, np.concatenate([errors_of(*each).ravel() for each in zip(given, pieces, strict=True)])
    )
    if not stacks and have_one_unit(given) and all(math.prod(q.shape) for q in given):
        check_codes(given, result, axis)
    return True


def have_one_unit(given):
    """Whether nothing has to be brought to another scale."""
    q = given[0]
    if q.format.block is None or q.format.scales_lines:
        return len({octets(each.scales) for each in given}) == 1
    return len({each.global_scale is not None and octets(each.global_scale) for each in given}) == 1


def check_codes(given, result, axis):
    """Codes side by side; scales and offsets, too, but where lines or several matrices share them."""
    lines = (result.format.block or (0, 0))[0]
    are_cut = result.ndim == 2 or (lines == 1 and result.axis == -1)
    have_own = not result.format.scales_lines and result.scales.ndim and are_cut
    for name in ("data", "scales", *OFFSETS) if have_own else ("data",):
        parts = [as_shape(q, getattr(q, name)) for q in given]
        if parts[0] is None:
            continue
        expected = np.concatenate(parts, axis)
        assert as_shape(result, getattr(result, name)).tobytes() == expected.tobytes(), name


def as_shape(q, part):
    """The codes of a part, one in each element, with the dimensions of the tensor in their order; None of none."""
    if part is None:
        return None
    codes = dlfp4.unpack(part) if bits_of(part) < 8 and part.packed else part
    codes = codes.to_numpy()
    codes = codes.view(f"u{codes.dtype.itemsize}")
    turned = q.axis == -2 and bits_of(q.data) < 8
    codes = codes.T if turned else codes
    if part is q.data:  # without what completes blocks
        return codes[: math.prod(q.shape[:-1]), : q.shape[-1]].reshape(q.shape)
    count = max(1, math.prod(q.shape[:-2]))
    return codes.reshape(*q.shape[:-2], len(codes) // count, codes.shape[-1])


# ---- In other formats


def transcoded(rng):
    """A tensor in another format, a convention's or after a recipe: a receipt that says what became of the values."""
    (q,), _ = makers.pieces(rng, 1)
    target = rng.choice(makers.TARGETS)
    try:
        result = q.to(target)
    except REFUSALS:
        return False
    assert target not in dlfp4.formats() or result.format.name == target
    lines = tuple(slice(extent) for extent in q.shape)
    check_receipt(result.receipt, errors_of(q, values(result)[lines]))
    assert not np.any(values(result)[..., q.shape[-1] :]), "what completes blocks is not zero"
    again = result.to(result.format.name)
    assert again.receipt.is_exact
    assert values(again).tobytes() == values(result).tobytes()
    return True


# ---- Arrow


def same(a, b):
    """Whether two tensors have equal parts."""
    described = ("format", "axis", "shape", "scale_layout", "hadamard")
    assert [getattr(a, name) for name in described] == [getattr(b, name) for name in described]
    for name in PARTS:
        one, other = getattr(a, name), getattr(b, name)
        assert (one is None) == (other is None), name
        if one is not None:
            assert (one.dtype, octets(one)) == (other.dtype, octets(other)), name
            assert one.shape == other.shape or (one.shape, other.shape) == ((1,), ()), name  # a scale of the whole


def in_arrow(rng):
    """An Arrow array, of which some values or offsets are then others: ValueError, or tensors within its memory."""
    import pyarrow as pa

    from dlfp4 import arrow

    given = [None if rng.random() < 0.2 else makers.pieces(rng, 1)[0][0] for _ in range(rng.randrange(4))]
    made = arrow.array(given)
    for q, back in zip(given, made.to_tensors(), strict=True):
        assert (q is None) == (back is None)
        if q is not None:
            same(q, back)
    storage = made.storage
    try:
        storage = makers.changed_storage(rng, storage)
    except (pa.ArrowException, *REFUSALS, OverflowError):  # what Arrow itself does not hold
        return False
    array = pa.ExtensionArray.from_storage(arrow.ScaledTensorType(), storage)
    try:
        found = array.to_tensors()
    except ValueError:
        return False
    for q in found:
        if q is not None:
            values(q)
    return True


# ---- tvm-ffi


@functools.cache
def registered():
    """Put dlfp4's functions into the registry of this process: tvm-ffi imports PyTorch, which takes a second."""
    from dlfp4.frameworks.tvm_ffi import register_functions

    register_functions()


def by_tvm_ffi(rng):
    """A function of the registry, with other arguments: an exception of tvm-ffi's, or the bytes of the package's."""
    import tvm_ffi

    registered()
    name, given, expected = makers.call_of_tvm_ffi(rng)
    given, is_changed = list(given), False
    for _ in range(rng.choice([0, 0, 1, 2])):
        given[rng.randrange(len(given))] = makers.argument_of_tvm_ffi(rng)
        is_changed = True
    if rng.random() < 0.05:
        is_changed, given = True, given[: rng.randrange(len(given))]
    call = tvm_ffi.get_global_func(f"dlfp4.{name}")
    try:
        call(*(tvm_ffi.from_dlpack(each) if isinstance(each, dlfp4.Tensor) else each for each in given))
    except (*REFUSALS, OverflowError, RuntimeError):
        assert is_changed, (name, given)
        return False
    if not is_changed:
        found, wanted = expected
        assert [octets(each) for each in found] == [octets(each) for each in wanted], name
    return True


TARGETS = {
    "joined": joined,
    "transcoded": transcoded,
}
if find_spec("pyarrow"):
    TARGETS["arrow"] = in_arrow
if find_spec("tvm_ffi"):
    TARGETS["tvm_ffi"] = by_tvm_ffi
