"""scaling.h, alone: scales of blocks and tensors as NumPy's float32 gives them by the formulas of options.h."""

import itertools

import ml_dtypes
import numpy as np
import pytest

from ..support import rules
from ..support.block_reference import EMAX, LARGEST, MANTISSA
from ..support.reference import LOW, codes_of, hard_values, native_cast, of_codes, random_codes

pytestmark = pytest.mark.arithmetic

F = np.float32
MOST = np.finfo(F).max
LEAST = np.finfo(F).smallest_subnormal
NAN = 0x7FC00000
FP4, E4M3 = "float4_e2m1fn", ml_dtypes.float8_e4m3fn
GLOBAL_FIRST, BLOCK_FIRST, INPUT_TYPE = range(3)
KINDS = {23: "float32", 7: "bfloat16", 10: "float16"}  # by the bits of their mantissas
SCALED = ["float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz"]


def rounded(values, mantissa):
    return native_cast(native_cast(np.asarray(values, F), KINDS[mantissa]), "float32")


def finite(values):
    return np.minimum(values, MOST)


def stored(decode):
    return np.maximum(decode, F(1) / MOST)


def bits_of(values):
    return np.asarray(values, F).view(np.uint32)


def neighbours(values):
    values = np.asarray(values, F)
    with np.errstate(all="ignore"):
        return np.concatenate([values, np.nextafter(values, F(0)), np.nextafter(values, F(np.inf))])


def magnitudes(*more):
    """Powers of two and what lies beside them, ends, random ones, and what is no number."""
    powers = np.ldexp(F(1), np.arange(-149, 128))
    fractions = [1.0625, 1.125, 1.25, 1.5, 1.75, 1.875, 1.9375, 1.96875]
    rng = np.random.default_rng(3)
    numbers = [neighbours(powers), neighbours([p * F(f) for p in powers[24:] for f in fractions]), *more]
    numbers += [[0, MOST, LEAST, np.inf, np.nan, 65504, 65519, 65520, 65536], np.abs(rng.normal(size=500))]
    numbers += [rng.integers(0, 0x7F800000, 4000, dtype=np.uint32).view(F)]
    return np.abs(np.concatenate([np.asarray(part, F).ravel() for part in numbers]))


def agree(inputs, got, expected, what):
    """Bits of stored scales and multipliers."""
    for name, found, wanted in zip(("stored", "multiplier"), got, expected, strict=True):
        found, wanted = (bits_of(x) if x.dtype == F else x for x in (found, wanted))
        wrong = np.flatnonzero(found != wanted)
        some = [(inputs[i], hex(found[i]), hex(wanted[i])) for i in wrong[:4]]
        assert not len(wrong), f"{what}, {name}: {len(wrong)} of {len(inputs)} differ: {some}"


# ---- numbers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mantissa", KINDS)
def test_narrowed(mantissa):
    values = np.abs(np.concatenate([hard_values(KINDS[mantissa]), random_codes("float32", 1 << 14)]))
    values = values[~np.isnan(values)]
    found = np.array([rules.call("narrowed", value, mantissa) for value in values.tolist()], F)
    assert found.tobytes() == rounded(values, mantissa).tobytes()


def test_decode_scales_are_positive_and_finite():
    a = magnitudes()
    for value in (*a, *-a):
        assert rules.call("is_decode_scale", value) == bool(0 < value < np.inf), value


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e8m0fnu", "float8_e5m2"])
def test_stored_scales_have_their_types_values(name):
    found = np.array([rules.call("decode_scale", rules.rows()[name], code) for code in range(256)], F)
    assert np.array_equal(found, native_cast(of_codes(np.arange(256), name), "float32"), equal_nan=True)
    for bits in (0, 1, 0x3F800000, 0x7F800000):
        found = F(rules.call("decode_scale", rules.rows()["float32"], bits))
        assert bits_of(found) == bits


# ---- two levels ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("largest_scale", [0, 0.5, 256, 448])
def test_the_scale_of_a_tensor_in_two_levels(largest_scale):
    reach = F(6) * F(largest_scale or 448)
    for order, mantissa in ((GLOBAL_FIRST, 23), (BLOCK_FIRST, 23), (INPUT_TYPE, 7), (INPUT_TYPE, 10), (INPUT_TYPE, 23)):
        chosen = rules.options(FP4, "float8_e4m3fn", order=order, mantissa=mantissa, largest_scale=largest_scale)
        for largest in (*neighbours([2.0**k for k in range(-149, 128)]), *random_codes("float32", 300), F(0), MOST):
            if not np.isfinite(largest):
                continue
            largest = abs(largest)
            with np.errstate(all="ignore"):
                if largest == 0:
                    expected = F(1), F(1), F(0)
                elif order == INPUT_TYPE:
                    encode = rounded(rounded(F(1) / largest, mantissa) * reach, mantissa)[()]
                    expected = (encode, stored(F(1) / encode), largest) if encode < np.inf else (F(1), F(1), largest)
                else:
                    expected = finite(reach / largest), stored(largest / reach), largest
            found = rules.tensor_scale(chosen, rules.TWO_LEVEL, largest)
            assert bits_of(found).tolist() == bits_of(expected).tolist(), (largest, order, mantissa)


def test_a_scale_that_is_given():
    for decode in neighbours([1e-45, 1e-38, F(1) / MOST, 0.5, 1, 3, 1e38]):
        with np.errstate(all="ignore"):
            expected = finite(F(1) / decode), stored(decode), F(0)
        assert rules.tensor_scale(rules.options(FP4), 2, decode) == expected
    for divides, whole in ((0, 0.25), (1, 4)):
        assert rules.call("whole", rules.options(FP4, divides=divides, encode=0.25, decode=4)) == whole


def wanted(a, order, divides, mantissa, encode, decode, chooses, fours):
    """What a block's scale is before it is rounded, by options.h."""
    if order == INPUT_TYPE:
        scale = rounded(a / F(6), mantissa) * encode
    elif chooses or (order == BLOCK_FIRST and divides):
        scale = a / F(6) * encode
    elif order == BLOCK_FIRST:
        scale = a * (F(1) / F(6)) * encode
    else:
        scale = a / (F(6) * decode) if divides else a * (encode * (F(1) / F(6)))
    return finite(scale * F(1.5) if fours else scale)


def two_level(a, order, divides, mantissa, encode, decode, zero_scale, least_code, chooses, fours):
    scale = np.minimum(wanted(a, order, divides, mantissa, encode, decode, chooses, fours), F(448))
    codes = codes_of(scale.astype(E4M3)).astype(np.uint32)
    codes = np.where((a != 0) & (codes < least_code), least_code, np.where(codes == 0, zero_scale, codes))
    value = native_cast(of_codes(codes, "float8_e4m3fn"), "float32")
    unscaled = value / encode if order == INPUT_TYPE else value * (decode if divides else F(1) / encode)
    if divides:
        multiplier = np.where(value == 0, MOST, unscaled)
    else:
        multiplier = np.where((value == 0) & (order == BLOCK_FIRST), F(0), finite(F(1) / unscaled))
    lost = ~np.isfinite(a)
    return np.where(lost, 0x7F, codes).astype(np.uint32), np.where(lost, F(0), multiplier).astype(F)


@pytest.mark.parametrize("order", [GLOBAL_FIRST, BLOCK_FIRST, INPUT_TYPE])
@pytest.mark.parametrize("divides", [0, 1])
def test_blocks_in_two_levels(order, divides):
    scales = native_cast(of_codes(np.arange(0x7F), "float8_e4m3fn"), "float64")
    ties = (scales[1:] + scales[:-1]) / 2
    choices = itertools.product((F(1), F(2688) / F(12.3), F(1e-30), MOST), ((0, 0), (0x38, 0), (0x20, 1), (0, 0x18)))
    for encode, (zero_scale, least_code) in choices:
        decode = stored(F(1) / encode)
        with np.errstate(all="ignore"):
            a = magnitudes(neighbours((np.concatenate([scales, ties]) * 6 / np.float64(encode)).astype(F)))
        for mantissa in (7, 10, 23) if order == INPUT_TYPE else (23,):
            chosen = rules.options(
                FP4, "float8_e4m3fn", order=order, divides=divides, mantissa=mantissa, encode=encode, decode=decode,
                zero_scale=zero_scale, least_code=least_code,
            )  # fmt: skip
            with np.errstate(all="ignore"):
                expected = two_level(
                    a, order, divides, mantissa, encode, decode, zero_scale, least_code, chooses=0, fours=False
                )
            agree(a, rules.blocks(chosen, rules.TWO_LEVEL, a), expected, (encode, zero_scale, least_code, mantissa))


@pytest.mark.parametrize("chooses", [1, 2])
def test_four_over_six(chooses):
    """Both candidates, and the errors by which one of them is chosen."""
    encode, decode = F(2688) / F(12.3), F(12.3) / F(2688)
    chosen = rules.options(FP4, "float8_e4m3fn", chooses=chooses, encode=encode, decode=decode, largest_scale=256)
    a = magnitudes()
    for fours in (False, True):
        with np.errstate(all="ignore"):
            expected = two_level(a, GLOBAL_FIRST, 0, 23, encode, decode, 0, 0, chooses=chooses, fours=fours)
        agree(a, rules.blocks(chosen, rules.TWO_LEVEL, a, fours=fours), expected, fours)
    rng = np.random.default_rng(1)
    for largest in (F(0), F(0.5), F(7.25)):
        chosen.largest = largest
        reach = F(6) * F(256)
        amax = largest if largest else decode * reach
        for element, scale, x in rng.normal(size=(200, 3)).astype(F):
            decoded = element * scale * amax / reach
            for value in (x, decoded):  # the error of which is +0
                error = decoded - value
                expected = error * error if chooses == 2 else abs(error)
                assert bits(rules.call("error", chosen, element, scale, value)) == bits(expected)


# ---- powers of two -------------------------------------------------------------------------------------------------


def exponents(a, element, rule):
    """By exact numbers: of finite magnitudes above zero, before they are clipped."""
    fraction, exponent = np.frexp(a.astype(np.float64))  # fraction * 2**exponent, from 1/2 up
    if rule == "floor":
        return exponent - 1 - EMAX[element]
    if rule == "ceil":
        return exponent - (fraction == 0.5) - EMAX[element]
    if rule == "rceil":
        quotient, power = np.frexp(a.astype(np.float64) / LARGEST[element])
        return power - (quotient == 0.5)
    places = 2.0 ** (MANTISSA[element] + 1)
    return exponent - 1 + (np.floor(fraction * places + 0.5) >= places) - EMAX[element]


def test_errors_that_scale_with_their_values():
    """Of tensors whose largest magnitude lies between two numbers, which themselves do not count."""
    least, most = F(1e-24), F(1e30)
    for amax in (LEAST, least, most, MOST):
        assert not rules.call("has_usual_errors", rules.options(FP4, "float8_e4m3fn", largest=amax)), amax
    for amax in (np.nextafter(least, F(1)), F(1), np.nextafter(most, F(1))):
        assert rules.call("has_usual_errors", rules.options(FP4, "float8_e4m3fn", largest=amax)), amax


@pytest.mark.parametrize("element", SCALED[:5])
@pytest.mark.parametrize("rule", ["floor", "rceil", "ceil", "even"])
def test_blocks_by_powers_of_two(element, rule):
    with np.errstate(all="ignore"):
        a = magnitudes(neighbours(LARGEST[element] * np.ldexp(1.0, np.arange(-149, 120))))
    number = ["floor", "rceil", "ceil", "even"].index(rule)
    for zero_scale, least_code, eps in (
        (0, 0, 0),
        (127, 0, 0),
        (5, 100, 0),
        (9, 254, 0),
        (0, 0, F(1e-4)),
        (0, 1, F(3e-39)),
    ):
        chosen = rules.options(
            element, "float8_e8m0fnu", scale_rule=number, zero_scale=zero_scale, least_code=least_code, eps=eps
        )
        lost = ~np.isfinite(a)
        amax = np.where(lost, F(1), np.maximum(np.where(lost, F(0), a), F(eps)))
        with np.errstate(all="ignore"):
            codes = np.clip(exponents(amax, element, rule) + 127, least_code, 254)
        codes = np.where(lost, 0xFF, np.where(amax == 0, zero_scale, codes)).astype(np.uint32)
        multiplier = np.ldexp(F(1), 127 - codes.astype(np.int32))
        multiplier = np.where(lost, F(0), np.where(amax == 0, F(1), multiplier))
        agree(a, rules.blocks(chosen, rules.POWER, a), (codes, multiplier), (zero_scale, least_code, eps))


# ---- one level of floats -------------------------------------------------------------------------------------------


def held(decode, mantissa):
    if mantissa == 23:
        return decode
    kind = ml_dtypes.finfo(KINDS[mantissa])
    return np.clip(rounded(decode, mantissa), F(kind.smallest_subnormal), F(kind.max))


def one_level(a, element, divides, pow2, mantissa, eps, of_input=None):
    """The encode and the decode scale of each magnitude: current scaling; `of_input`: the bits of the mantissa of the
    input's type, to which quotients are rounded."""
    largest = F(LARGEST[element])
    unscaled = ~np.isfinite(a) | (np.maximum(np.nan_to_num(a), eps) == 0)
    amax = np.where(unscaled, F(1), np.maximum(a, eps)).astype(F)
    if divides and of_input:
        amax = np.where(np.isfinite(a), np.maximum(a, eps), F(1)).astype(F)
        quotient = rounded(amax / largest, of_input)
        decode = held(np.where(quotient == 0, np.ldexp(F(1), -of_input), quotient).astype(F), mantissa)
        decode = np.where(np.isfinite(a), decode, F(1))
        return finite(F(1) / decode), decode
    if divides:
        decode = held(np.maximum(amax / largest, LEAST), mantissa)
        encode = finite(F(1) / decode)
    else:
        encode = finite(largest / amax)
        if pow2:
            encode = np.ldexp(F(1), np.frexp(encode)[1] - 1)
        decode = F(1) / encode
        if mantissa != 23:
            decode = held(decode, mantissa)
            encode = finite(F(1) / decode)
    return np.where(unscaled, F(1), encode), np.where(unscaled, F(1), decode)


@pytest.mark.parametrize("element", SCALED)
@pytest.mark.parametrize(("divides", "pow2"), [(0, 0), (0, 1), (1, 0)])
def test_blocks_by_their_largest(element, divides, pow2):
    with np.errstate(all="ignore"):
        a = magnitudes(neighbours(np.float64(LARGEST[element]) * np.ldexp(1.0, np.arange(-149, 110))))
    for mantissa, eps in itertools.product(KINDS, (F(0), F(1e-12), LEAST)):
        chosen = rules.options(element, divides=divides, pow2=pow2, scale_mantissa=mantissa, eps=eps)
        with np.errstate(all="ignore"):
            encode, decode = one_level(a, element, divides, pow2, mantissa, eps)
        expected = bits_of(decode), decode if divides else encode
        agree(a, rules.blocks(chosen, rules.LARGEST, a), expected, (mantissa, eps))
        for i in (*range(0, len(a), 97), *np.flatnonzero(~np.isfinite(a) | (a == 0))):
            found = rules.tensor_scale(chosen, 1, a[i])
            assert found == (encode[i], decode[i], 0), (a[i], mantissa, eps)


@pytest.mark.parametrize("element", SCALED)
def test_quotients_in_the_type_of_the_input(element):
    with np.errstate(all="ignore"):
        a = magnitudes(neighbours(np.float64(LARGEST[element]) * np.ldexp(1.0, np.arange(-149, 110))))
    for of_input, mantissa, eps in itertools.product(KINDS, KINDS, (F(0), F(1e-12), LEAST)):
        given = a[~np.isfinite(a) | (a <= F(65504))] if of_input == 10 else a
        options = {"divides": 1, "order": INPUT_TYPE, "mantissa": of_input, "scale_mantissa": mantissa, "eps": eps}
        chosen = rules.options(element, **options)
        with np.errstate(all="ignore"):
            encode, decode = one_level(given, element, True, False, mantissa, eps, of_input)
        agree(given, rules.blocks(chosen, rules.LARGEST, given), (bits_of(decode), decode), (of_input, mantissa, eps))
        for i in (*range(0, len(given), 97), *np.flatnonzero(~np.isfinite(given) | (given == 0))):
            assert rules.tensor_scale(chosen, 1, given[i]) == (encode[i], decode[i], 0), (
                given[i],
                of_input,
                mantissa,
                eps,
            )


# ---- integers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("element", ["int4", "uint4"])
def test_blocks_of_integers(element):
    with np.errstate(all="ignore"):
        a = magnitudes(neighbours(7.5 * np.ldexp(1.0, np.arange(-149, 110))), neighbours([7.5 * 65504, 7.5 * 65520]))
    for of_input, mantissa, eps in itertools.product(KINDS, KINDS, (F(0), F(1e-3), LEAST)):
        given = a[~np.isfinite(a) | (a <= F(65504))] if of_input == 10 else a
        least = max(float(ml_dtypes.finfo(KINDS[kind]).eps) for kind in (of_input, mantissa))
        with np.errstate(all="ignore"):
            scale = rounded(rounded(np.fmax(given, eps) / F(7.5), of_input), mantissa)
            scale = np.minimum(scale, F(65504)) if mantissa == 10 else scale
        scale = np.where(scale == 0, F(least), scale).astype(F)
        expected = np.where(np.isfinite(given), bits_of(scale), NAN).astype(np.uint32)
        chosen = rules.options(element, mantissa=of_input, scale_mantissa=mantissa, eps=eps)
        found = rules.blocks(chosen, rules.LARGEST, given)
        agree(given, found, (expected, expected.view(F)), (of_input, mantissa, eps))


def test_zero_points():
    for code in range(256):
        for bits in (4, 8):
            low = code % (1 << bits)
            assert rules.call("zero_point", code, bits, 0) == low
            assert rules.call("zero_point", code, bits, 1) == (low - (1 << bits) if low >= 1 << (bits - 1) else low)
    # Symmetric codes without a sign are int4's with the highest bit turned.
    values = [rules.call("zero_point", code ^ 8, 4, 1) for code in range(16)]
    assert values == [code - rules.call("middle") for code in range(16)]


# ---- elements ------------------------------------------------------------------------------------------------------

HARD = [0.0, -0.0, 1.0, -1.5, 3.0, 448.0, 1e-40, -1e-45, 3e38, -3e38, np.inf, -np.inf]


def bits(found):
    return int(bits_of(F(found)))


def canonical(value):
    return NAN if np.isnan(value) else bits(value)


@pytest.mark.parametrize("mantissa", KINDS)
def test_quotients_that_are_no_numbers_stay_so(mantissa):
    """Whatever their bits, of which CUDA sets all: rounded as a number, such a one would become a zero."""
    for nan in np.array([NAN, 0xFFC00000, 0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(F):
        assert np.isnan(rules.call("scaled", nan, 1, 1, mantissa, 0))


def test_elements_are_scaled_and_decoded():
    with np.errstate(all="ignore"):
        for x, y in itertools.product(np.array(HARD, F), repeat=2):
            for zero in (F(0.0), F(-0.0)):
                for (divides, exact), mantissa in itertools.product(((0, x * y), (1, x / y)), KINDS):
                    kept = rounded(exact, mantissa) if divides else exact
                    found, expected = F(rules.call("scaled", x, y, divides, mantissa, zero)), kept + zero
                    same = bits(found) == bits(expected) or (np.isnan(found) and np.isnan(expected))
                    assert same, (x, y, divides, mantissa)
            for name in ("decoded", "decoded_without"):
                assert bits(rules.call(name, x, y)) == canonical(x * y), (name, x, y)
            for zero, bias in ((F(0), F(-0.0)), (F(8), F(-0.0)), (F(0), F(0.3)), (F(-3), F(1e30)), (F(0), F(np.inf))):
                expected = (x - zero) * y + bias
                assert bits(rules.call("decoded_with", x, y, zero, bias)) == canonical(expected), (x, y, zero, bias)
    for nan in (0x7FC00000, 0x7FC12345, 0xFFC54321):
        element = float(np.uint32(nan).view(F))
        assert bits(rules.call("decoded", element, 2.0)) == nan
        assert bits(rules.call("decoded_with", element, 2.0, 1.0, 0.0)) == NAN


def test_every_low_type_has_a_largest_value():
    """Of the rule that every scale stands on, by a block whose largest magnitude is 1."""
    for name in LOW:
        if name != "float8_e8m0fnu":
            stored_bits, multiplier = rules.blocks(rules.options(name), rules.LARGEST, np.ones(1, F))
            assert multiplier[0] == F(LARGEST[name])
            assert stored_bits.view(F)[0] == F(1) / F(LARGEST[name])
