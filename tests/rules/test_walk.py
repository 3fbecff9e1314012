"""walk.cpp and operand.cpp, alone: the order of elements in two views of any strides, and how they are moved."""

import ctypes
import itertools
import math

import numpy as np
import pytest

from ..support import capsules, rules
from ..support.reference import Guarded

pytestmark = pytest.mark.arithmetic

SRC, DST = range(2)
BIG = 1 << 62
SMALL = {"int2": 2, "float4_e2m1fn": 4, "float6_e3m2fn": 6}
WHOLE = {"uint8": 8, "float16": 16, "float32": 32, "float64": 64, "complex128": 128}
GUARDED = Guarded(1024)


def view(shape, strides, **fields):
    numbers = [(ctypes.c_int64 * max(1, len(part)))(*part) for part in (shape, strides)]
    return rules.View(None, *numbers, **{"ndim": len(shape), **fields})


def collapsed(shape, src, dst, before=1):
    """A walk in memory that held other numbers before."""
    walk = rules.Walk()
    ctypes.memset(ctypes.byref(walk), before, ctypes.sizeof(walk))
    assert rules.call("collapse", view(shape, src), view(shape, dst), walk)
    return walk


def dims(walk):
    """The extents, and the strides of each side."""
    return [list(numbers)[: walk.ndim] for numbers in (walk.extent, *walk.stride)]


def offsets(shape, strides):
    """Of all elements, in row-major order."""
    return [sum(i * stride for i, stride in zip(at, strides, strict=True)) for at in np.ndindex(*shape)]


STRIDES = (-2, -1, 0, 1, 2, 3, 4, 6)
SHAPES = [(), (1,), (3,), (2, 3), (3, 1, 2), (2, 2, 2), (1, 2, 1, 1, 3)]


def cases():
    """Shapes with strides of both sides: the usual ones and random ones."""
    rng = np.random.default_rng(0)
    for shape in SHAPES:
        compact = [math.prod(shape[k + 1 :]) for k in range(len(shape))]
        for _ in range(150):
            yield (
                shape,
                *(compact if rng.integers(3) == 0 else rng.choice(STRIDES, len(shape)).tolist() for _ in range(2)),
            )
        for twice in itertools.product((1, 2, -1), repeat=2):
            yield shape, *([step * stride for stride in compact] for step in twice)


def test_the_first_dimension_merges_with_nothing():
    """Not even where zeros lie before the strides, which are those of one element that repeats."""
    walk = collapsed((3,), (0,), (0,), before=0)
    assert dims(walk) == [[3], [0], [0]]


def test_dimensions_merge_wherever_both_sides_allow():
    for shape, src, dst in cases():
        walk = collapsed(shape, src, dst)
        extents, *strides = dims(walk)
        assert walk.size == math.prod(shape)
        for side, given in ((SRC, src), (DST, dst)):
            assert offsets(extents, strides[side]) == offsets(shape, given)
        if walk.size == 1:
            assert (extents, strides) == ([1], [[1], [1]])
        else:
            assert min(extents) > 1
        for k in range(walk.ndim - 1):
            assert any(side[k] != extents[k + 1] * side[k + 1] for side in strides)


def test_strides_that_cannot_be_multiplied_do_not_merge():
    """Their product wraps to 0, which is the stride before."""
    for side, step in itertools.product((SRC, DST), (BIG, -BIG)):
        strides = [[0, 1], [0, 1]]
        strides[side] = [0, step]
        strides[1 - side] = [4, 1]
        assert dims(collapsed((2, 4), *strides)) == [[2, 4], *strides]


def test_what_has_no_shape_in_common():
    walk = rules.Walk()
    for ndim in (0, 1, 2):
        assert not rules.call("collapse", view((2, 1), (1, 1)), view((2, 1), (1, 1), ndim=-1), walk)
        if ndim != 1:
            assert not rules.call("collapse", view((2, 1), (1, 1), ndim=1), view((2, 1), (1, 1), ndim=ndim), walk)
    assert not rules.call("collapse", view((2,), (1,), ndim=-1), view((2,), (1,), ndim=-1), walk)
    for shape, other in (((2,), (3,)), ((3, 2), (3, 3)), ((-1,), (-1,)), ((2, -2), (2, -2)), ((0, -1), (0, -1))):
        assert not rules.call("collapse", view(shape, (1, 1)), view(other, (1, 1)), walk)


def test_sizes():
    walk = rules.Walk()
    for shape, fits in (((1 << 32, 1 << 31), False), ((1 << 32, 1 << 30), True), ((3, BIG), False), ((BIG, 1), True)):
        one = view(shape, (1, 1))
        assert rules.call("collapse", one, one, walk) == fits
        assert not fits or walk.size == math.prod(shape)
    for shape in ((0,), (BIG, BIG, 0), (0, 5), (5, 0)):  # what has no elements is not multiplied
        one = view(shape, (1, 1, 1))
        walk.size = 9
        assert rules.call("collapse", one, one, walk)
        assert walk.size == 0


def test_kinds_of_walks():
    bits = {"int8": 8, **SMALL}
    for shape, src, dst in cases():
        walk = collapsed(shape, src, dst)
        extents, *strides = dims(walk)
        contiguous = strides[SRC][-1] == 1 and strides[DST][-1] == 1
        assert rules.call("has_contiguous_rows", walk) == contiguous
        assert rules.call("is_run", walk) == (contiguous and walk.ndim == 1)
        for side in (SRC, DST):
            places = offsets(extents, strides[side])
            assert rules.call("is_row_major", walk, side) == (places == list(range(walk.size)))
            if len(set(places)) == walk.size:
                assert rules.call("is_dense", walk, side) == (sorted(places) == list(range(walk.size)))
            for name, width in bits.items():
                row = rules.rows()[name]
                starts = all(stride * width % 8 == 0 for stride in strides[side][:-1])
                assert rules.call("rows_start_on_bytes", walk, side, row, True) == starts
                assert rules.call("rows_start_on_bytes", walk, side, row, False)


def test_dense_elements_reach_as_far_as_there_are_elements():
    for shape, strides, dense in (((2, 2), (0, 3), 1), ((2, 2), (0, 2), 0), ((2, 3), (3, -1), 0), ((3, 4), (1, 3), 1)):
        walk = collapsed(shape, strides, (9, 2))
        assert [rules.call("is_dense", walk, side) for side in (SRC, DST)] == [dense, 0]


def moved(way, walk, side, name, packed, data, element, step, codes, count):
    rules.call(
        way, walk, side, rules.rows()[name], packed, rules.pointer(data, rules.BYTES), element, step,
        rules.pointer(codes, rules.BYTES), count,
    )  # fmt: skip


MOVES = [((24,), (1,)), ((24,), (2,)), ((2, 3, 4), (12, 4, 1)), ((2, 3, 4), (1, 2, 6)), ((2, 3, 4), (24, 5, 1))]
PARTS = [(0, 24, 24), (0, 24, 1), (0, 24, 7), (5, 13, 13), (5, 19, 2), (23, 1, 1), (8, 4, 4), (11, 0, 1)]


def test_elements_of_whole_bytes():
    rng = np.random.default_rng(1)
    for (shape, strides), (first, count, step), side in itertools.product(MOVES, PARTS, (SRC, DST)):
        walk = collapsed(shape, *((strides, [-9] * len(shape)) if side == SRC else ([-9] * len(shape), strides)))
        places = offsets(shape, strides)[first : first + count]
        for name, bits in {**WHOLE, **SMALL}.items():
            item = max(1, bits // 8)
            mask = (1 << min(bits, 8)) - 1
            size = (max(offsets(shape, strides)) + 1) * item
            for right in (False, True):
                data = GUARDED.flush(size, right)
                data[:] = rng.integers(0, 256, size)
                before = data.reshape(-1, item).copy()
                codes = np.full(count * item + 8, 0xA5, np.uint8)
                moved("gather", walk, side, name, False, data, first, step, codes, count)
                expected = before[places].reshape(-1) & mask
                assert (codes[: count * item] == expected).all()
                assert (codes[count * item :] == 0xA5).all()
                written = rng.integers(0, 256, codes.size).astype(np.uint8)
                moved("scatter", walk, side, name, False, data, first, step, written, count)
                before[places] = written[: count * item].reshape(-1, item) & mask
                assert (data == before.reshape(-1)).all()


def test_packed_elements():
    """Bits of others stay, and no byte without an element of the view's is touched."""
    rng = np.random.default_rng(2)
    for (shape, strides), (first, count, step), side in itertools.product(MOVES, PARTS, (SRC, DST)):
        walk = collapsed(shape, *((strides, [-9] * len(shape)) if side == SRC else ([-9] * len(shape), strides)))
        places = offsets(shape, strides)[first : first + count]
        for name, bits in SMALL.items():
            size = -(-(max(offsets(shape, strides)) + 1) * bits // 8)
            for right in (False, True):
                data = GUARDED.flush(size, right)
                data[:] = rng.integers(0, 256, size)
                flat = np.unpackbits(data, bitorder="little")
                at = np.array(places, int).reshape(-1, 1) * bits + np.arange(bits)
                codes = np.full(count + 8, 0xA5, np.uint8)
                moved("gather", walk, side, name, True, data, first, step, codes, count)
                expected = np.packbits(flat[at], axis=1, bitorder="little").reshape(-1)
                assert (codes[:count] == expected).all()
                assert (codes[count:] == 0xA5).all()
                written = rng.integers(0, 256, codes.size).astype(np.uint8)
                moved("scatter", walk, side, name, True, data, first, step, written, count)
                flat[at] = np.unpackbits(written[:count, None], axis=1, bitorder="little")[:, :bits]
                assert (np.unpackbits(data, bitorder="little") == flat).all()


def test_operands_of_types():
    """All pairs of a code and a width; what is below a byte is packed unless it is padded."""
    known = {pair: rules.rows()[name] for name, pair in capsules.DTYPES.items()}
    known |= {(0, 2): rules.rows()["int2"], (1, 2): rules.rows()["uint2"], (18, 32): rules.rows()["bcomplex32"]}
    packed = ctypes.c_int32()
    for code, bits in itertools.product(range(256), repeat=2):
        row = known.get((code, bits), -1)
        for padded in (0, 1):
            assert rules.call("find_operand", rules.View(code=code, bits=bits, padded=padded), packed) == row
            assert row < 0 or packed.value == (bits < 8 and not padded)
