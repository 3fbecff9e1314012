"""The small headers alone: which type is which, integers and units of all codes, the transform, changes."""

import ctypes
import itertools

import numpy as np
import pytest

from ..support import capsules, rules
from ..support.reference import BITS, Guarded, native_cast, of_codes

pytestmark = pytest.mark.arithmetic

F = np.float32
NAN = 0x7FC00000
SIGNED, UNSIGNED = ["int2", "int4", "int8"], ["uint2", "uint4", "uint8"]
SMALL_FLOATS = ["float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"]
FLOATS = [
    "float32", "float16", "bfloat16", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn",
    "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
]  # fmt: skip
GUARDED = Guarded(64)


def at_edges(numbers, dtype):
    """Numbers with no memory before them, then with none after them: who reads further crashes."""
    for right in (False, True):
        place = GUARDED.flush(len(numbers) * np.dtype(dtype).itemsize, right).view(dtype)
        place[:] = numbers
        yield place


def test_types_by_code_and_width():
    """All pairs of a code and a width: those of DLPack's types, and types without bytes of their own."""
    rows = rules.rows()
    known = {**capsules.DTYPES, "int2": (0, 2), "uint2": (1, 2), "bcomplex32": (18, 32)}
    assert known.keys() == rows.keys()
    numbers = {pair: rows[name] for name, pair in known.items()}
    for pair in itertools.product(range(256), repeat=2):
        assert rules.call("find_dtype", *pair) == numbers.get(pair, -1), pair
    for name, (_, bits) in known.items():
        assert rules.call("spacing", rows[name], True) == bits
        assert rules.call("spacing", rows[name], False) == max(8, bits)


def test_roundings_by_number():
    assert [n for n in range(-300, 300) if rules.call("is_rounding", n)] == list(range(len(rules.ROUNDINGS)))


def test_codes_are_copied_without_spare_bits():
    """Bytes behind the last one keep what they have, spare bits of the last one become zeros."""
    source = np.full(9, 0xFF, np.uint8)
    for bits in range(65):
        copied = np.full(9, 0xAA, np.uint8)
        rules.call("copy_codes", *(rules.pointer(array, rules.BYTES) for array in (copied, source)), bits)
        whole = (bits + 7) // 8
        assert int.from_bytes(copied[:whole].tobytes(), "little") == (1 << bits) - 1
        assert (copied[whole:] == 0xAA).all()


def test_what_is_summed_how():
    rows = rules.rows()
    assert {name for name in rows if rules.call("is_integer", rows[name])} == {*SIGNED, *UNSIGNED, *SMALL_FLOATS}
    assert {name for name in rows if rules.call("is_summed_as_float", rows[name])} == set(FLOATS)


def test_values_in_units():
    """A unit is the least value of a type of floats, and 1 of integers."""
    for name in SMALL_FLOATS:
        values = native_cast(of_codes(np.arange(1 << BITS[name]), name), "float64")
        unit = 1 / values[1]
        assert rules.call("unit", rules.rows()[name]) == unit
        found = [rules.call("integer", rules.rows()[name], code) for code in range(1 << BITS[name])]
        assert found == (values * unit).tolist()
    for name in (*SIGNED, *UNSIGNED):
        bits = int(name[-1])
        assert rules.call("unit", rules.rows()[name]) == 1
        found = [rules.call("integer", rules.rows()[name], code) for code in range(1 << bits)]
        half = 1 << (bits - 1) if name in SIGNED else 1 << bits
        assert found == [code if code < half else code - (1 << bits) for code in range(1 << bits)]


def test_scales_that_need_no_care():
    def asked(name, numbers, *before):
        dtype, kind = (F, ctypes.c_float) if name == "are_far" else (np.uint8, ctypes.c_uint8)
        left, right = (
            rules.call(name, *before, place.ctypes.data_as(ctypes.POINTER(kind)), len(numbers))
            for place in at_edges(numbers, dtype)
        )
        assert left == right
        return left

    for least, most in ((10, 20), (0, 255), (0, 0), (65, 191)):
        for byte in range(256):
            for numbers in ([byte], [least, byte], [byte, most], [least, most, byte, least]):
                assert asked("are_between", numbers, least, most) == (least <= byte <= most)
    assert not asked("are_between", [5, 30, 6], 5, 6)
    for scales, far in (([1.0], 0), ([2.0**100], 0), ([1, 2.0**101], 1), ([np.inf, 1], 1), ([np.nan], 0), ([-1e38], 0)):
        assert asked("are_far", scales) == far


def test_plain_powers():
    """The widest range of which any two, multiplied and counted in quarters, make a normal float32."""
    bias = rules.call("quarter_bias")

    def field(a, b):  # of the product's exponent
        return int((2.0 ** (a - 127) * 2.0 ** (b - 127) / 4).hex().split("p")[1]) + 127

    plain = [byte for byte in range(256) if rules.call("are_plain_powers", (ctypes.c_uint8 * 1)(byte), 1)]
    assert plain == [a for a in range(256) if 0 < field(a, a) < 255]
    for a, b in itertools.product(plain, plain):
        assert field(a, b) == a + b - bias
        assert 0 < field(a, b) < 255


# ---- the transform -------------------------------------------------------------------------------------------------


def hadamard():
    """H16, as Sylvester made it."""
    matrix = np.ones((1, 1))
    for _ in range(4):
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


def transformed(name, values, rotation):
    left, right = [], []
    for found, place in zip((left, right), at_edges(values, F), strict=True):
        rules.call(name, place.ctypes.data_as(ctypes.POINTER(ctypes.c_float)), rotation)
        found[:] = place
    assert np.array(left, F).tobytes() == np.array(right, F).tobytes()
    return np.array(left, F)


@pytest.mark.parametrize("signs", [0, 1, 0x8000, 0x5A3C, 0xFFFF])
def test_the_transform(signs):
    """Of small integers every sum is exact; a rotation and what undoes it are transposes of one another."""
    rng = np.random.default_rng(signs)
    diagonal = np.array([-1.0 if signs >> i & 1 else 1.0 for i in range(16)])
    for values in (*np.eye(16), *rng.integers(-99, 100, (20, 16))):
        found = transformed("rotate", values, signs | 1 << 16)
        assert found.tolist() == (hadamard() @ (values * diagonal) / 4).tolist()
        back = transformed("rotate_back", values, signs | 1 << 16)
        assert back.tolist() == (diagonal * (hadamard() @ values / 4)).tolist()


def test_sums_of_the_transform_are_made_in_one_order():
    """Neighbours first, then those 2, 4 and 8 apart; quarters come before sums, so that few of these overflow."""
    rng = np.random.default_rng(0)
    for signs in (0, 0x1234):
        for _ in range(50):
            values = (rng.normal(size=16) * 10.0 ** rng.integers(-6, 7, 16)).astype(F)
            flips = np.array([-1 if signs >> i & 1 else 1 for i in range(16)], F)
            for name, x in (("rotate", values * F(0.25) * flips), ("rotate_back", values * F(0.25))):
                for step in (1, 2, 4, 8):
                    pairs = x.reshape(-1, 2, step)
                    x = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], 1).reshape(16)
                expected = x * flips if name == "rotate_back" else x
                assert transformed(name, values, signs | 1 << 16).tobytes() == expected.tobytes()
    most = np.finfo(F).max
    assert transformed("rotate", [most] * 4 + [0] * 12, 1 << 16)[0] == most


def test_every_nan_of_the_transform_is_one():
    for place in range(16):
        values = np.zeros(16, F)
        values[place] = np.uint32(0xFFC12345).view(F)
        for name in ("rotate", "rotate_back"):
            assert transformed(name, values, 0xFFFF | 1 << 16).view(np.uint32).tolist() == [NAN] * 16


# ---- changes -------------------------------------------------------------------------------------------------------

HARD = np.array([0.0, -0.0, 1.0, -1.0, 1.5, 1e-45, 3.4e38, -3.4e38, np.inf, -np.inf, np.nan, -np.nan], F)
HARD = np.append(HARD, np.array([0x7F800001, 0xFF800001, 0x7FC12345], np.uint32).view(F))


def as_it_is(value):
    """A float32 on its way to a function in C; as a number a NaN that signals would be made quiet."""
    return ctypes.c_float.from_buffer_copy(value.tobytes())


def test_changes():
    infinite = int(np.array(np.inf, F).view(np.uint32))
    with np.errstate(all="ignore"):
        for before, after in itertools.product(HARD, HARD):
            change = abs(before - after)
            if not np.isfinite(change):
                stayed = before == after or (np.isnan(before) and np.isnan(after))
                change = F(0) if stayed else F(np.inf)
            assert rules.call("change", as_it_is(before), as_it_is(after)) == int(change.view(np.uint32)), (
                before,
                after,
            )
            error = np.float64(before - after)
            expected = 0 if np.isnan(error) else error * error
            assert rules.call("square_of_error", before, after) == expected
    for value in HARD:
        expected = int(abs(value).view(np.uint32)) if np.isfinite(value) else 0
        assert rules.call("finite_magnitude", as_it_is(value)) == expected
    assert infinite == 0x7F800000
    assert rules.call("relative_change", 1.0, 3.0) == 1 / 3


def test_grids():
    """Blocks whose length is a multiple of sixteen, or of one block along a row; those at the ends may be smaller."""
    for rows, columns, lines in itertools.product((-1, 0, 1, 5), (-1, 0, 1, 40), (-1, 0, 1, 3)):
        for length in (-16, -1, 0, 1, 8, 15, 16, 17, 32, 39, 40, 41):
            whole = length % 16 == 0 or length >= columns
            expected = rows >= 0 and columns >= 0 and lines > 0 and length > 0 and whole
            assert rules.call("is_grid", rows, columns, lines, length) == expected, (rows, columns, lines, length)
            if expected:
                size = ctypes.c_int64(), ctypes.c_int64()
                rules.call("grid_size", rows, columns, lines, length, *size)
                assert [x.value for x in size] == [-(-rows // lines), -(-columns // length)]
