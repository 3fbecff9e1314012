"""The rounding modes: ties away from zero and truncation against exact values, and stochastic rounding, which is a
function of the seed and of the element's index, leaves what is representable alone and is right on average."""

import math
from fractions import Fraction

import numpy as np
import pytest

import dlfp4

from ..support.reference import (
    BITS,
    FLOATS,
    LOW,
    PAIRS,
    ROUNDINGS,
    all_codes,
    codec,
    codes_of,
    drawn,
    draws,
    dtype_of,
    hard_values,
    native_cast,
    of_codes,
    philox,
    random_codes,
    turning_points,
)

pytestmark = pytest.mark.arithmetic

WIDEST = ["float32", "float64"]
ROUNDED = [name for name in FLOATS if BITS[name] <= 32]


def cast(array, name, rounding, **options):
    return codes_of(dlfp4.cast(array, name, rounding=rounding, packed=False, **options))


def decoded(codes, name):
    return native_cast(of_codes(codes, name), "float64")


# ---- ties away from zero, truncation -------------------------------------------------------------------------------


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize(("source", "target"), [pair for pair in PAIRS if pair[0] in WIDEST and pair[1] in ROUNDED])
def test_hard_values(source, target, rounding):
    values = np.concatenate([hard_values(target, source), random_codes(source, 1 << 14)])
    if BITS[target] > 8:
        values = values[~np.isnan(values)]
    for saturate in (False, True):
        expected = codec(target).round(values, rounding, saturate=saturate)
        assert cast(values, target, rounding, saturate=saturate).tobytes() == expected.tobytes()


@pytest.mark.parametrize("source", ["float64", "float32", "bfloat16", "float16", "float8_e5m2"])
def test_powers_of_two_rounded_up(source):
    """As ONNX does by default: to the next power of two, on long runs too."""
    values = native_cast(np.resize(hard_values("float8_e8m0fnu"), 1000), source)
    for saturate in (False, True):
        got = cast(values, "float8_e8m0fnu", "up", saturate=saturate)
        expected = codec("float8_e8m0fnu").round(native_cast(values, "float64"), "up", saturate=saturate)
        assert got.tobytes() == expected.tobytes()
    with pytest.raises(ValueError, match="float8_e8m0fnu"):
        dlfp4.cast(values, "float8_e4m3fn", rounding="up")


@pytest.mark.parametrize("rounding", ["nearest_away", "toward_zero", "nearest_zero"])
def test_every_code(rounding):
    for source, target in PAIRS:
        if BITS[source] <= 16 and BITS[target] <= 16:
            values = all_codes(source)
            known = ~np.isnan(native_cast(values, "float64")) if BITS[target] > 8 else slice(None)
            for saturate in (False, True):
                got = cast(values, target, rounding, saturate=saturate)
                expected = codec(target).round(native_cast(values, "float64"), rounding, saturate=saturate)
                assert got[known].tobytes() == expected[known].tobytes(), (source, target, saturate)


def exact(x, name, rounding):
    """The code for a finite x within the range, by fractions."""
    target, wanted = codec(name), Fraction(abs(x))
    values = [Fraction(float(v)) for v in target.value(np.arange(target.largest + 1))]
    low = max(code for code, value in enumerate(values) if value <= wanted)
    if values[low] != wanted and rounding == "nearest_away":
        low += 2 * wanted >= values[low] + values[low + 1]
    if values[low] != wanted and rounding == "nearest_zero":
        low += 2 * wanted > values[low] + values[low + 1]
    return low | (target.sign if math.copysign(1, x) < 0 and (low or not target.fnuz) else 0)


@pytest.mark.parametrize("rounding", ["nearest_away", "toward_zero", "nearest_zero"])
@pytest.mark.parametrize("name", [name for name in LOW if name != "float8_e8m0fnu"])
def test_against_fractions(name, rounding):
    points = turning_points(name, 40)
    points = points[points <= codec(name).value(np.array(codec(name).largest))]
    values = np.concatenate(
        [points, np.nextafter(points[1:], 0), np.nextafter(points[:-1], 1e9), points * (1 - 2.0**-30)]
    )
    values = np.concatenate([values, -values])
    expected = np.array([exact(x, name, rounding) for x in values.tolist()], np.uint8)
    assert cast(values, name, rounding).tobytes() == expected.tobytes()


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_fp4_as_written_down(rounding):
    """3.25, the tie 5 between codes 6 and 7 (which is 4 and 6) and 5.5, of both signs."""
    got = cast(np.array([3.25, 5, 5.5, -3.25, -5, -5.5], np.float32), "float4_e2m1fn", rounding)
    expected = {"nearest_away": [5, 7, 7], "toward_zero": [5, 6, 6]}.get(rounding, [5, 6, 7])
    assert got.tolist() == [*expected, *(code | 8 for code in expected)]


@pytest.mark.parametrize("name", [name for name in ROUNDED if name != "float8_e8m0fnu"])
def test_truncation_is_never_too_large_nor_an_infinity(name):
    values = hard_values(name)
    values = values[np.isfinite(values)]
    if name == "float32":
        values = np.nextafter(values.astype(np.float64), np.inf)
    for saturate in (False, True):
        got = decoded(cast(values, name, "toward_zero", saturate=saturate), name)
        assert np.isfinite(got).all()
        assert (np.abs(got) <= np.abs(values)).all()


# ---- stochastic: what it is a function of --------------------------------------------------------------------------

PHILOX = [  # counter, key, result: the known answers that Random123 publishes for philox4x32-10
    ([0, 0, 0, 0], [0, 0], [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    ([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0],
     [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]),
]  # fmt: skip


@pytest.mark.parametrize(("counter", "key", "words"), PHILOX)
def test_the_model_has_the_published_words(counter, key, words):
    assert [int(word) for word in philox(counter, key)] == words


@pytest.mark.parametrize("seed", [0, 1, 2**32, 0x123456789ABCDEF0, 2**64 - 1])
@pytest.mark.parametrize("name", [*LOW, "float16", "bfloat16"])
def test_up_where_the_draw_is_below_the_fraction(name, seed):
    """Element i draws a word of Philox at (seed, i); all 32 bits of it are compared with the distance."""
    for values in (hard_values(name), random_codes("float32", 5003)):
        values = values[~np.isnan(values)]
        for saturate in (False, True):
            got = cast(values, name, "stochastic", saturate=saturate, seed=seed)
            assert got.tobytes() == drawn(values, name, seed, saturate).tobytes()


def test_the_last_bit_of_a_draw_decides():
    """A fraction of the very bits that are drawn is not above them; with one more in the last place it is."""
    first, second = draws(77, 1001), draws(77, 1001, depth=1)
    fraction = first * 2.0**-32
    for values, code in ((fraction, 0), (fraction + 2.0**-32, 1)):
        assert set(cast(values * 0.5, "float4_e2m1fn", "stochastic", seed=77).tolist()) == {code}
    longer = fraction + (second >> np.uint64(12)) * 2.0**-52  # 52 bits: equal words, and the next ones compared
    assert (longer > fraction).all()
    for values, code in ((longer, 0), (longer + 2.0**-52, 1)):
        assert set(cast(values * 0.5, "float4_e2m1fn", "stochastic", seed=77).tolist()) == {code}


@pytest.mark.parametrize("name", ["float4_e2m1fn", "float6_e3m2fn", "float8_e5m2", "float16"])
def test_independent_of_threads_and_of_layout(name, threads):
    values = random_codes("float32", 3 * 70001).reshape(3, 70001)
    threads(1)
    whole = cast(values, name, "stochastic", seed=7)
    for count in (2, 3, 4):
        threads(count)
        assert cast(values, name, "stochastic", seed=7).tobytes() == whole.tobytes()
        assert codes_of(dlfp4.cast(values, name, rounding="stochastic", seed=7)).tobytes() == whole.tobytes()
    for layout in (values.ravel(), np.asfortranarray(values), np.repeat(values, 2, axis=1)[:, ::2]):
        assert cast(layout, name, "stochastic", seed=7).tobytes() == whole.tobytes()
    head = values.ravel()[:1001]  # what comes behind has no say
    assert cast(head, name, "stochastic", seed=7).tobytes() == whole.ravel()[:1001].tobytes()
    assert cast(values, name, "stochastic", seed=8).tobytes() != whole.tobytes()


@pytest.mark.parametrize("source", [name for name in FLOATS if name != "float8_e8m0fnu"])
def test_one_value_draws_alike_from_any_type(source):
    """The index counts elements, whatever their width."""
    values = native_cast(np.resize(np.array([0.5, 1, 1.5, -0.5, 2, -1.5]), 999), source)
    for target in ("float8_e8m0fnu", "float4_e2m1fn"):
        got = cast(values, target, "stochastic", seed=3)
        assert got.tobytes() == cast(values.astype(np.float64), target, "stochastic", seed=3).tobytes()


# ---- stochastic: what comes out ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in FLOATS if BITS[name] <= 16])
def test_representable_values_never_change(name):
    """Nor do zeros of either sign, infinities and NaNs."""
    codes = np.resize(np.arange(1 << BITS[name]), max(4096, 1 << BITS[name]))
    for wide in ("float32", "float64"):
        values = native_cast(of_codes(codes, name), wide)
        kept = cast(values, name, "stochastic", seed=11, saturate=False)
        exactly = cast(values, name, "nearest_even", saturate=False)
        assert kept.tobytes() == exactly.tobytes()
        finite = np.isfinite(values)
        if name != "float8_e8m0fnu":
            assert kept[finite].tobytes() == of_codes(codes, name)[finite].tobytes()


def outcomes(x, name, count, **options):
    """How often `count` elements of value x go where, by value: over their indices, then over seeds."""
    over_indices = cast(np.full(count, x), name, "stochastic", seed=5, **options)
    over_seeds = [cast(np.array([x]), name, "stochastic", seed=seed, **options)[0] for seed in range(count // 20)]
    return [decoded(np.asarray(codes), name) for codes in (over_indices, over_seeds)]


PLACES = [
    ("float4_e2m1fn", 0.1), ("float4_e2m1fn", 2.7), ("float4_e2m1fn", -5.9), ("float6_e2m3fn", 0.01),
    ("float6_e3m2fn", -13.3), ("float8_e4m3fn", 3.05), ("float8_e4m3fnuz", -0.0003), ("float8_e5m2", 50000.0),
    ("float8_e8m0fnu", 1.25), ("float8_e8m0fnu", 5.0), ("bfloat16", 1.001), ("float16", 1e-7),
    ("float32", 1 + 2.0**-26),
]  # fmt: skip


@pytest.mark.parametrize(("name", "x"), PLACES)
def test_the_mean_is_the_exact_value(name, x):
    target = codec(name)
    low = target.floor(np.array(abs(x)))
    below, above = (math.copysign(float(target.value(low + k)), x) for k in (0, 1))
    chance = (x - below) / (above - below)
    assert 0 < chance < 1
    for values in outcomes(x, name, 40_000):
        assert set(values.tolist()) == {below, above}
        deviation = abs(above - below) * math.sqrt(chance * (1 - chance) / len(values))
        assert abs(values.mean() - x) / deviation < 5
        half = values[: len(values) // 2].mean() - values[len(values) // 2 :].mean()  # no drift either
        assert abs(half) / (2 * deviation) < 5


def test_neighbours_draw_independently():
    """No correlation of an element with any of the eight after it, at two seeds next to each other, or across them."""
    count = 1 << 16
    ups = [2.0 * cast(np.full(count, 2.5), "float4_e2m1fn", "stochastic", seed=seed) - 9 for seed in (40, 41)]
    assert set(ups[0].tolist()) == {-1.0, 1.0}
    pairs = [(u[:-lag], u[lag:]) for u in ups for lag in range(1, 9)] + [(ups[0], ups[1])]
    assert max(abs((a * b).mean()) * math.sqrt(len(a)) for a, b in pairs) < 5


def test_overflow_and_specials():
    huge = np.array([1e30, -1e30, np.inf, -np.inf, 449, np.nan], np.float32)
    got = cast(np.resize(huge, 600), "float8_e4m3fn", "stochastic", seed=1).reshape(100, 6)
    assert np.unique(got, axis=0).tolist() == [[0x7E, 0xFE, 0x7E, 0xFE, 0x7E, 0x7F]]
    got = cast(np.resize(huge, 600), "float4_e2m1fn", "stochastic", seed=1).reshape(100, 6)
    assert np.unique(got, axis=0).tolist() == [[7, 15, 7, 15, 7, 7]]
    beyond = cast(np.full(4000, 464, np.float32), "float8_e4m3fn", "stochastic", seed=1, saturate=False)
    assert set(beyond.tolist()) == {0x7E, 0x7F}  # half way from the largest value to where NaN is


def test_tiny_values_go_up_as_rarely_as_they_should():
    """2^-149 is 2^-148 of the way to the smallest FP4: never, in practice; 2^-12 of the way: now and then."""
    count = 1 << 17
    for x, chance in ((2.0**-149, 0), (2.0**-13, 2.0**-12)):
        ups = int(cast(np.full(count, x, np.float32), "float4_e2m1fn", "stochastic", seed=2).sum())
        assert abs(ups - count * chance) <= 5 * math.sqrt(count * chance)
    signs = cast(np.full(100, -(2.0**-149), np.float32), "float4_e2m1fn", "stochastic", seed=2)
    assert set(signs.tolist()) == {8}


# ---- arguments -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"rounding": "stochastic"}, ValueError),
        ({"rounding": "stochastic", "seed": None}, ValueError),
        ({"seed": 1}, ValueError),
        ({"rounding": "toward_zero", "seed": 0}, ValueError),
        ({"rounding": "up"}, ValueError),
        ({"rounding": None}, ValueError),
        ({"rounding": ["nearest_even"]}, (TypeError, ValueError)),
        ({"rounding": "stochastic", "seed": -1}, ValueError),
        ({"rounding": "stochastic", "seed": 2**64}, ValueError),
        ({"rounding": "stochastic", "seed": 1.5}, TypeError),
        ({"rounding": "stochastic", "seed": "1"}, TypeError),
    ],
    ids=str,
)
def test_bad_options_write_nothing(options, error):
    out = np.full(4, 0x5A, np.uint8).view(dtype_of("float8_e4m3fn"))
    with pytest.raises(error):
        dlfp4.cast(np.ones(4, np.float32), "float8_e4m3fn", out=out, **options)
    assert codes_of(out).tolist() == [0x5A] * 4


def test_seed_is_any_integer():
    values = np.full(64, 2.3, np.float32)
    expected = cast(values, "float4_e2m1fn", "stochastic", seed=1)
    for seed in (np.int32(1), np.uint64(1), True):
        assert cast(values, "float4_e2m1fn", "stochastic", seed=seed).tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", ["float4_e2m1fn", "float8_e4m3fn"])
def test_stochastic_rounding_of_rows_apart(name):
    x = np.random.default_rng(0).normal(size=(5, 200)).astype(np.float32)[:, :100]
    strided, compact = (
        dlfp4.cast(given, name, rounding="stochastic", seed=7, packed=False).view("uint8") for given in (x, x.copy())
    )
    assert strided.tolist() == compact.tolist()
