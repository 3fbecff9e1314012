"""Every code of every type of at most 16 bits, and the hard values of the wider ones, into every other type: equal bits
to ml_dtypes (saturate=False) and to the reference of reference.py (saturate=True), NaN's sign and payload included."""

import math
from fractions import Fraction

import numpy as np
import pytest

import dlfp4

from ..support.reference import (
    BITS,
    FLOATS,
    LOW,
    OLD_E8M0,
    PAIRS,
    SPECIAL,
    WIDE,
    all_codes,
    codec,
    codes_of,
    dtype_of,
    hard_values,
    native_cast,
    random_codes,
    turning_points,
)

pytestmark = pytest.mark.arithmetic

FINITE = ["float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"]
NARROW_PAIRS = [(source, target) for source, target in PAIRS if BITS[source] <= 16]
TO_LOW = [(source, target) for source, target in PAIRS if BITS[target] <= 8]


def cast(array, name, **options):
    return codes_of(dlfp4.cast(array, name, packed=False, **options))


def agree(array, got, expected):
    """Assert equal codes; the message has the first few that differ."""
    assert got.dtype == expected.dtype
    wrong = np.flatnonzero(got != expected)
    some = [f"{codes_of(array)[i]:#x} ({array[i]}): {got[i]:#x}, not {expected[i]:#x}" for i in wrong[:5]]
    assert not len(wrong), f"{len(wrong)} of {len(got)}: {some}"


# ---- the reference itself ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in FLOATS if BITS[name] <= 32])
def test_the_reference_is_ml_dtypes_without_saturation(name):
    if name == "float8_e8m0fnu" and OLD_E8M0:
        pytest.skip("this ml_dtypes sends ties of float8_e8m0fnu to the even code")
    values = hard_values(name)
    if BITS[name] > 8:
        values = values[~np.isnan(values)]  # payloads are not the reference's business
    agree(values, codec(name).round(values, saturate=False), codes_of(native_cast(values, name)))


def test_the_reference_knows_published_ends():
    ends = {name: float(codec(name).value(np.array(codec(name).largest))) for name in LOW}
    assert ends == {
        "float8_e3m4": 15.5, "float8_e4m3": 240, "float8_e4m3b11fnuz": 30, "float8_e4m3fn": 448,
        "float8_e4m3fnuz": 240, "float8_e5m2": 57344, "float8_e5m2fnuz": 57344, "float8_e8m0fnu": 2.0**127,
        "float6_e2m3fn": 7.5, "float6_e3m2fn": 28, "float4_e2m1fn": 6,
    }  # fmt: skip
    smallest = {name: float(codec(name).value(np.array(1))) for name in LOW}
    assert [math.log2(smallest[name]) for name in LOW] == [-6, -9, -13, -9, -10, -16, -17, -126, -3, -4, -1]
    assert [name for name in LOW if not codec(name).has_nan] == FINITE


# ---- saturate=False: ml_dtypes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("source", "target"), NARROW_PAIRS)
def test_every_code_without_saturation(source, target):
    values = all_codes(source)
    agree(values, cast(values, target, saturate=False), codes_of(native_cast(values, target)))


@pytest.mark.parametrize("target", FLOATS)
def test_float32_without_saturation(target):
    for values in (hard_values(target), random_codes("float32", 1 << 17)):
        agree(values, cast(values, target, saturate=False), codes_of(native_cast(values, target)))


@pytest.mark.parametrize("name", FLOATS)
def test_to_the_same_type_moves_bits(name):
    values = all_codes(name) if BITS[name] <= 16 else random_codes(name, 5000)
    for saturate in (False, True):
        agree(values, cast(values, name, saturate=saturate), codes_of(values))


# ---- saturate=True -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("source", "target"), [(source, target) for source, target in TO_LOW if BITS[source] <= 16])
def test_every_code_with_saturation(source, target):
    values = all_codes(source)
    agree(values, cast(values, target), codec(target).round(values))


@pytest.mark.parametrize("target", LOW)
@pytest.mark.parametrize("source", ["float32", "float64"])
def test_wide_values_with_saturation(source, target):
    for values in (hard_values(target, source), random_codes(source, 1 << 16)):
        agree(values, cast(values, target), codec(target).round(values))


def test_saturation_is_for_low_precision_alone():
    """A float16 of an infinity, or of what is too large for it, is an infinity: IEEE 754 has no other way."""
    for source, target in PAIRS:
        if BITS[target] > 8:
            values = all_codes(source) if BITS[source] <= 16 else hard_values(target, source)
            agree(values, cast(values, target, saturate=True), cast(values, target, saturate=False))


E2M1 = [
    (0, 0), (0.24, 0), (0.25, 0), (0.26, 1), (0.5, 1), (0.74, 1), (0.75, 2), (1, 2), (1.25, 2), (1.26, 3), (1.5, 3),
    (1.75, 4), (2, 4), (2.5, 4), (2.51, 5), (3, 5), (3.5, 6), (4, 6), (5, 6), (5.01, 7), (6, 7), (1e30, 7), (np.inf, 7),
]  # fmt: skip


def test_fp4_midpoints_and_ends_as_written_down():
    values = np.array([x for x, _ in E2M1], np.float32)
    expected = np.array([code for _, code in E2M1], np.uint8)
    agree(values, cast(values, "float4_e2m1fn"), expected)
    agree(-values, cast(-values, "float4_e2m1fn"), expected | np.uint8(8))


@pytest.mark.parametrize("name", LOW)
def test_nan_and_infinity_with_saturation(name):
    """NaN is the type's, with its sign where it can have one, or the largest value; infinities are the largest ones."""
    largest, sign = codec(name).largest, codec(name).sign
    nan = 0xFF if name == "float8_e8m0fnu" else 0x80 if name.endswith("fnuz") else None
    expected = [largest, largest] if name in FINITE else [nan, nan]
    if name in ("float8_e3m4", "float8_e4m3", "float8_e4m3fn", "float8_e5m2"):
        positive = {"float8_e3m4": 0x78, "float8_e4m3": 0x7C, "float8_e4m3fn": 0x7F, "float8_e5m2": 0x7E}[name]
        expected = [positive, positive | 0x80]
    lowest = nan if name == "float8_e8m0fnu" else largest | sign
    for source in WIDE:
        values = native_cast(np.array([np.nan, -np.nan, np.inf, -np.inf], np.float32), source)
        assert cast(values, name).tolist() == [*expected, largest, lowest]
    quiet_and_not = SPECIAL[np.isnan(SPECIAL)]
    assert set(cast(quiet_and_not, name).tolist()) == set(expected)


E8M0 = [
    (0.0, 0), (-0.0, 0), (2.0**-149, 0), (2.0**-128, 0), (2.0**-127, 0), (1.4375 * 2.0**-127, 0), (1.5 * 2.0**-127, 1),
    (2.0**-126, 1), (1, 127), (1.49, 127), (1.5, 128), (3, 129), (2.0**127, 254), (3e38, 254), (np.inf, 254),
    (-(2.0**-149), 255), (-1, 255), (-np.inf, 255), (np.nan, 255),
]  # fmt: skip


def test_e8m0_with_saturation_as_written_down():
    values = np.array([x for x, _ in E8M0], np.float32)
    agree(values, cast(values, "float8_e8m0fnu"), np.array([code for _, code in E8M0], np.uint8))


def test_overflow_starts_where_the_next_value_would_round():
    """The largest value plus half a step is the first not to come back as the largest one (saturate=False)."""
    for name in ("float8_e4m3", "float8_e5m2", "float8_e3m4", "float8_e4m3fnuz", "float8_e5m2fnuz", "float16"):
        target = codec(name)
        tie = np.float32((target.value(np.array(target.largest)) + target.beyond) / 2)
        below = np.nextafter(tie, np.float32(0))
        lost = target.infinity if target.infinity is not None else 0x80
        assert cast(np.array([below, tie]), name, saturate=False).tolist() == [target.largest, lost]


# ---- one rounding, from any width ----------------------------------------------------------------------------------


def nearest(x, name):
    """The finite value nearest to x, ties to the even code, in exact arithmetic."""
    target, exact = codec(name), Fraction(abs(float(x)))
    low = int(target.floor(np.array(abs(float(x)))))
    below, above = (Fraction(float(target.value(np.array(code)))) for code in (low, low + 1))
    assert below <= exact <= above
    up = 2 * exact > below + above or (2 * exact == below + above and low % 2 == 1)
    return low + up | (target.sign if x < 0 and not (target.fnuz and low + up == 0) else 0)


@pytest.mark.parametrize("name", [name for name in FLOATS if BITS[name] <= 32 and name != "float8_e8m0fnu"])
def test_float64_is_rounded_once(name):
    """Beside ties, where a rounding to float32 on the way would make the tie and then take the wrong side."""
    target = codec(name)
    points = turning_points(name, 80)
    points = points[(points > 0) & (points < target.value(np.array(target.largest)))]
    near = [
        np.nextafter(points, 0),
        points,
        np.nextafter(points, np.inf),
        points * (1 + 2.0**-40),
        points * (1 - 2.0**-40),
    ]
    values = np.concatenate([*near, *(-part for part in near)])
    expected = np.array([nearest(x, name) for x in values.tolist()], f"u{target.dtype.itemsize}")
    for saturate in (False, True):
        agree(values, cast(values, name, saturate=saturate), expected)
    if BITS[name] < 32:  # and these values do tell the two ways apart
        assert (codes_of(native_cast(native_cast(values, "float32"), name)) != expected).any()


@pytest.mark.parametrize(
    ("source", "target"),
    [
        pair
        for pair in PAIRS
        if pair == ("float64", "float32") or (BITS[pair[0]] < BITS[pair[1]] and pair[1] in ("float32", "float64"))
    ],
)
def test_wide_to_wide_is_numpy(source, target):
    """NumPy rounds these once, and no value of at most 16 bits needs any rounding."""
    values = all_codes(source) if BITS[source] <= 16 else hard_values("float32", source)
    agree(values, cast(values, target), codes_of(native_cast(values, target)))


def test_subnormals_are_neither_flushed_nor_read_as_zero():
    for source, target in (
        ("float32", "float64"),
        ("float64", "float32"),
        ("float32", "bfloat16"),
        ("float32", "float16"),
    ):
        smallest = codec(target).value(np.array([1, 2, 3])) if BITS[target] < 64 else 2.0**-149 * np.array([1, 2, 3])
        values = smallest.astype(dtype_of(source))
        assert cast(values, target).view(dtype_of(target)).astype(np.float64).tolist() == smallest.tolist()
        assert (smallest > 0).all()


@pytest.mark.parametrize("target", FLOATS)
def test_zeros_keep_their_signs(target):
    sign = 0 if target.endswith("fnuz") or target == "float8_e8m0fnu" else 1 << (BITS[target] - 1)
    for source in [name for name in FLOATS if not name.endswith("fnuz") and name not in (target, "float8_e8m0fnu")]:
        zeros = native_cast(np.array([0.0, -0.0], np.float32), source)
        assert cast(zeros, target).tolist() == [0, sign]
