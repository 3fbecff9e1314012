"""dot and vecdot against float64 sums of the decoded operands: types, formats, axes, batches, strides, specials."""

import itertools

import ml_dtypes
import numpy as np
import pytest

import dlfp4

from ..support.block_reference import FORMATS
from ..support.levels import available_levels, run_at
from ..support.reference import BITS, SUBBYTE, dtype_of, native_cast, of_codes

pytestmark = pytest.mark.arithmetic

FLOATS = [name for name in BITS if "int" not in name and name not in ("float64", "float8_e8m0fnu")]
INTEGERS = ["int2", "uint2", "int4", "uint4", "int8", "uint8"]
EXACT = [*INTEGERS, "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"]
LENGTHS = [0, 1, 2, 7, 31, 64, 129, 1000]


def elements(name, shape, seed=0):
    """Finite ones, of moderate size where the type is wide."""
    rng = np.random.default_rng([seed, *np.atleast_1d(shape)])
    if name in INTEGERS:
        info = ml_dtypes.iinfo(dtype_of(name))
        return rng.integers(int(info.min), int(info.max) + 1, shape).astype(dtype_of(name))
    return native_cast(rng.normal(size=shape).astype(np.float32), name)


def wide(x):
    """float64 values of anything."""
    if isinstance(x, dlfp4.ScaledTensor):
        x = x.dequantize()
    array = x.to_numpy() if isinstance(x, dlfp4.Tensor) else x
    return array.astype(np.float64)


def tensor(array, packed):
    """A Tensor of an array, below 8 bits packed or padded."""
    return dlfp4.pack(array) if packed else dlfp4.asarray(array)


def assert_bound(got, a, b, axis=-1):
    """The bound of the products: K * 2**-24 * sum |a b|, and the rounding to float32."""
    length = a.shape[axis]
    expected, magnitudes = (a * b).sum(axis), np.abs(a * b).sum(axis)
    got = got.to_numpy()
    assert got.dtype == np.float32
    assert got.shape == expected.shape
    assert (np.abs(got - expected) <= (length + 1) * 2.0**-24 * magnitudes + 2.0**-126).all()


# ---- types ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(
    ("name", "packed"),
    [(n, p) for n in dict.fromkeys([*FLOATS, *INTEGERS]) for p in (False, True) if not p or n in SUBBYTE],
)
def test_every_type(name, packed, length):
    a, b = elements(name, length), elements(name, length, seed=1)
    got = dlfp4.dot(tensor(a, packed), tensor(b, packed))
    assert got.shape == ()
    assert_bound(got, wide(a), wide(b))
    if name in EXACT:
        assert float(got) == np.float32((wide(a) * wide(b)).sum())


def test_one_side_packed_and_the_other_padded():
    for name in ("float4_e2m1fn", "float6_e3m2fn", "int4"):
        a, b = elements(name, 5001), elements(name, 5001, seed=1)
        assert float(dlfp4.dot(dlfp4.pack(a), b)) == np.float32((wide(a) * wide(b)).sum())


def test_high_bits_of_padded_elements_do_not_count():
    a, b = elements("float4_e2m1fn", 500), elements("float4_e2m1fn", 500, seed=1)
    noisy = (a.view(np.uint8) | 0xA0).view(a.dtype)
    assert float(dlfp4.dot(noisy, b)) == np.float32((wide(a) * wide(b)).sum())


def test_two_floating_point_types():
    a, b = elements("bfloat16", (3, 700)), elements("float6_e2m3fn", (3, 700), seed=1)
    assert_bound(dlfp4.vecdot(a, dlfp4.pack(b)), wide(a), wide(b))


@pytest.mark.parametrize(
    ("a", "b"), [("float8_e8m0fnu", "float8_e8m0fnu"), ("float32", "int8"), ("int8", "int4"), ("float64", "float64")]
)
def test_types_without_products(a, b):
    with pytest.raises(TypeError, match="has no dot product of"):
        dlfp4.dot(np.zeros(4, dtype_of(a)), np.zeros(4, dtype_of(b)))


# ---- formats -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [16, 48, 128, 4096])
@pytest.mark.parametrize("name", FORMATS)
def test_every_format(name, length):
    x, y = elements("float32", (16, length)), elements("float32", (16, length), seed=1)
    a, b = (dlfp4.quantize(value, name, pad=True) for value in (x, y))
    assert_bound(dlfp4.vecdot(a, b), wide(a), wide(b))
    for other in ("float32", "bfloat16", "float16", "float8_e4m3fn"):
        activation = native_cast(y, other)
        assert_bound(dlfp4.vecdot(a, activation), wide(a), wide(activation))
        assert_bound(dlfp4.vecdot(activation, a), wide(a), wide(activation))


@pytest.mark.parametrize("layout", ["128x4", "8x4", "aiter"])
@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "mxfp8_e4m3"])
def test_scale_layouts(name, layout):
    x, y = elements("float32", (40, 256)), elements("float32", (40, 256), seed=1)
    a, b = dlfp4.quantize(x, name, scale_layout=layout), dlfp4.quantize(y, name)
    linear = dlfp4.vecdot(dlfp4.quantize(x, name), b).tolist()
    assert dlfp4.vecdot(a, b).tolist() == linear
    assert dlfp4.vecdot(b, a).tolist() == linear


def test_one_line_of_any_stride():
    q = dlfp4.quantize(elements("float32", (3, 64)), "nvfp4")
    data = np.zeros((1, 33), np.uint8)[:, :32]
    data[...] = q.data.view("uint8").to_numpy()[:1]
    odd = np.lib.stride_tricks.as_strided(data, (1, 32), (7, 1))
    one = dlfp4.ScaledTensor.from_parts(odd, q.scales[:1], q.global_scale, format="nvfp4")
    assert dlfp4.vecdot(one, one).tolist() == dlfp4.vecdot(q, q).tolist()[:1]


def test_two_formats():
    """Of one element type and blocks of two lengths, too."""
    left, right = (
        {name: dlfp4.quantize(elements("float32", (32, 256), seed), name) for name in FORMATS} for seed in (0, 1)
    )
    for a, b in itertools.product(left.values(), right.values()):
        assert_bound(dlfp4.vecdot(a, b), wide(a), wide(b))


def test_incomplete_blocks():
    for name in ("nvfp4", "mxfp4", "mxfp6_e2m3", "mxfp8_e5m2", "fp8_1x128"):
        a, b = (dlfp4.quantize(elements("float32", (3, 77), seed), name, pad=True) for seed in (0, 1))
        assert_bound(dlfp4.vecdot(a, b), wide(a), wide(b))


def test_columns():
    x, y = elements("float32", (64, 5)), elements("float32", (64, 5), seed=1)
    for name in ("nvfp4", "mxfp4", "mxfp8_e4m3"):
        a, b = (dlfp4.quantize(value, name, axis=-2) for value in (x, y))
        assert_bound(dlfp4.vecdot(a, b, axis=-2), wide(a), wide(b), axis=0)
        assert_bound(dlfp4.vecdot(a, y, axis=0), wide(a), wide(y), axis=0)
        with pytest.raises(ValueError, match="with blocks along axis -2"):
            dlfp4.vecdot(a, b)


def test_batches_of_blocks():
    x, y = elements("float32", (2, 3, 4, 64)), elements("float32", (3, 1, 64), seed=1)
    a, b = dlfp4.quantize(x, "nvfp4"), dlfp4.quantize(y, "nvfp4")
    assert_bound(dlfp4.vecdot(a, b), wide(a), np.broadcast_to(wide(b), x.shape))


def at_the_ends(name):
    """Zeros under the largest scales and ones under the smallest, (2, 128), and the sums of their rows."""
    unit = np.float32(1) if name == "nvfp4" else None
    for value, scale in ((0, 0x7E if name == "nvfp4" else 0xFE), (1, 1)):
        q = dlfp4.quantize(np.full((2, 128), value, np.float32), name)
        scales = of_codes(np.full(q.scales.shape, scale, np.uint8), q.scales.dtype.name)
        a = dlfp4.ScaledTensor.from_parts(q.data, scales, unit, format=name)
        expected = a.dequantize().to_numpy().astype(np.float64).sum(-1)
        assert (expected != 0).all() == (value != 0)
        yield value, a, expected


@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "mxfp6_e3m2", "mxfp8_e4m3"])
def test_scales_at_the_ends(name):
    """Blocks of zeros stay zeros under the largest scales; the smallest do not vanish."""
    for value, a, expected in at_the_ends(name):
        assert dlfp4.vecdot(a, np.ones(128, np.float32)).tolist() == expected.tolist()
        if value == 0:
            assert dlfp4.vecdot(a, a).tolist() == [0, 0]


# ---- shapes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
@pytest.mark.parametrize("name", ["float8_e4m3fn", "float4_e2m1fn", "float32", "int8"])
def test_axes(name, axis):
    a, b = elements(name, (5, 6, 70)), elements(name, (5, 6, 70), seed=1)
    assert_bound(dlfp4.vecdot(a, b, axis), wide(a), wide(b), axis)
    if name in SUBBYTE:
        assert_bound(dlfp4.vecdot(dlfp4.pack(a), dlfp4.pack(b), axis), wide(a), wide(b), axis)


def test_broadcasting():
    a, b = elements("bfloat16", (4, 1, 3, 33)), elements("bfloat16", (5, 1, 33), seed=1)
    assert_bound(dlfp4.vecdot(a, b), *np.broadcast_arrays(wide(a), wide(b)))


def test_packed_lines_that_start_within_a_byte():
    a, b = elements("float4_e2m1fn", (7, 33)), elements("float4_e2m1fn", (7, 33), seed=1)
    assert_bound(dlfp4.vecdot(dlfp4.pack(a), dlfp4.pack(b)), wide(a), wide(b))
    assert_bound(dlfp4.vecdot(dlfp4.pack(a).T, dlfp4.pack(b).T, axis=0), wide(a), wide(b))


@pytest.mark.parametrize("step", [2, -1, -3])
def test_strides_and_offsets(step):
    for name in ("float8_e5m2", "float16", "int8"):
        a, b = elements(name, (9, 300)), elements(name, (9, 300), seed=1)
        left, right = a[1::2, 3::step], b[1::2, 3::step]
        assert_bound(dlfp4.vecdot(dlfp4.asarray(a)[1::2, 3::step], right), wide(left), wide(right))
        assert_bound(dlfp4.vecdot(left, right), wide(left), wide(right))


def test_nothing():
    assert float(dlfp4.dot(np.zeros(0, np.int8), np.zeros(0, np.int8))) == 0
    assert dlfp4.vecdot(np.zeros((3, 0), np.float32), np.zeros((3, 0), np.float32)).tolist() == [0, 0, 0]
    assert dlfp4.vecdot(np.zeros((0, 4), np.float32), np.zeros((0, 4), np.float32)).shape == (0,)


def test_errors():
    with pytest.raises(ValueError, match="both need the same number"):
        dlfp4.dot(np.zeros(4, np.int8), np.zeros(5, np.int8))
    with pytest.raises(ValueError, match="do not broadcast: 2 is not 3"):
        dlfp4.vecdot(np.zeros((2, 4), np.int8), np.zeros((3, 4), np.int8))
    with pytest.raises(ValueError, match="dot takes two vectors"):
        dlfp4.dot(np.zeros((2, 4), np.int8), np.zeros((2, 4), np.int8))
    with pytest.raises(ValueError, match=r"b has shape \(2, 4\): dot takes two vectors"):
        dlfp4.dot(np.zeros(4, np.int8), np.zeros((2, 4), np.int8))
    with pytest.raises(ValueError, match=r"a has shape \(\): dot takes two vectors"):
        dlfp4.dot(np.zeros((), np.int8), np.zeros((), np.int8))
    with pytest.raises(ValueError, match="axis=2 of a, which has 1 dimensions"):
        dlfp4.vecdot(np.zeros(4, np.int8), np.zeros(4, np.int8), axis=2)


# ---- numbers -------------------------------------------------------------------------------------------------------


def special_products(name):
    """Vectors with a NaN or an infinity among them, and their dot product by the rules of float arithmetic."""
    ones = native_cast(np.ones(200, np.float32), name)
    for special in (np.nan, np.inf, -np.inf):
        a = ones.copy()
        with np.errstate(all="ignore"):
            a[117] = special
        value = float(a[117])
        yield a, ones, value
        if np.isinf(value):
            b, both = ones.copy(), a.copy()
            b[117] = 0
            both[5] = -special
            yield a, b, np.nan
            yield both, ones, np.nan


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "bfloat16", "float16", "float32"])
def test_nan_and_infinity(name):
    for a, b, expected in special_products(name):
        np.testing.assert_equal(float(dlfp4.dot(a, b)), expected)


@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "mxfp6_e2m3", "mxfp8_e4m3"])
def test_nan_blocks(name):
    x = np.ones((4, 256), np.float32)
    x[1, 37], x[3, 255] = np.nan, np.inf
    q, one = dlfp4.quantize(x, name), dlfp4.quantize(np.ones((4, 256), np.float32), name)
    assert np.isnan(dlfp4.vecdot(q, one).to_numpy()).tolist() == [False, True, False, True]
    assert np.isnan(dlfp4.vecdot(np.ones(256, np.float32), q).to_numpy()).tolist() == [False, True, False, True]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["float4_e2m1fn", "int8", "float8_e4m3fn", "bfloat16", "float32"])
def test_long_sums_of_one_sign(name):
    value = {"float4_e2m1fn": 6, "int8": -128, "float8_e4m3fn": 448}.get(name, 1.5)
    a = native_cast(np.full(1 << 26, value, np.float32 if name != "int8" else np.int8), name)
    got = float(dlfp4.dot(dlfp4.pack(a) if name in SUBBYTE else a, dlfp4.pack(a) if name in SUBBYTE else a))
    assert abs(got / (value * value * 2.0**26) - 1) <= 1e-5


def test_long_sums_of_one_sign_keep_their_digits():
    a = np.full(1 << 20, 1.1, np.float32)
    assert abs(float(dlfp4.dot(a, a)) / (float(a[0]) ** 2 * 2.0**20) - 1) <= 2e-6


def test_threads_do_not_change_results():
    a, b = elements("float8_e4m3fn", 3_000_001), elements("float8_e4m3fn", 3_000_001, seed=1)
    q = dlfp4.quantize(elements("float32", (600, 4096)), "nvfp4")
    results = []
    for threads in (1, 2, 3, 0):
        dlfp4.set_num_threads(threads)
        results.append((float(dlfp4.dot(a, b)), dlfp4.vecdot(q, q).tolist()))
    assert all(result == results[0] for result in results)


LEVEL = """
import numpy as np, dlfp4
x = np.random.default_rng(0).integers(-4, 5, (3, 999)).astype("float32")
for name in ("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"):
    for packed in (True, False):
        print(dlfp4.vecdot(dlfp4.cast(x, name, packed=packed), dlfp4.cast(x[::-1], name, packed=packed)).tolist())
"""


def test_levels_agree_where_sums_are_exact():
    found = {level: run_at(level, LEVEL) for level in available_levels()}
    assert len(set(found.values())) == 1
    assert found["scalar"].count("[") == 6


EXTREMES = """
import ml_dtypes, numpy as np, dlfp4
rng = np.random.default_rng(0)
K, VALUES = 256, [1, 2, 3, 4, 6, -1, -3]
PLAIN = {"float32": (-140, 120), "bfloat16": (-130, 120)}
SCALES = {"fp8_1x128": (-140, 110), "fp8_row": (-140, 110), "fp8_e4m3": (-140, 110), "mxfp4": (-127, 120),
          "mxfp6_e3m2": (-127, 120), "mxfp8_e4m3": (-127, 120), "nvfp4": (-6, 8)}

def line(name, at):  # of one element beside zeros, and what it is worth
    value, exponent = float(rng.choice(VALUES)), int(rng.integers(*(PLAIN | SCALES)[name]))
    x = np.zeros((1, K), np.float32)
    x[0, at] = value
    if name in PLAIN:
        return dlfp4.cast(np.ldexp(x, exponent), name), np.ldexp(value, exponent)
    of_ones = dlfp4.quantize(np.ones((1, K), np.float32), name)
    scales = np.full(of_ones.scales.shape, np.ldexp(np.float32(1), exponent)).astype(of_ones.scales.dtype)
    unit = None if of_ones.global_scale is None else np.ldexp(np.float32(1), int(rng.integers(-140, 110)))
    q = dlfp4.ScaledTensor.from_parts(dlfp4.cast(x, of_ones.data.dtype, packed="fp4" in name or "fp6" in name), scales,
                                      unit, format=name)
    return q, np.ldexp(value, exponent) * (1 if unit is None else float(unit))

for _ in range(3000):
    names, at = rng.choice(list(PLAIN | SCALES), 2), rng.integers(K)
    (a, left), (b, right) = (line(name, at) for name in names)
    with np.errstate(over="ignore"):
        exact = np.float32(left * right)
    assert dlfp4.vecdot(a, b).to_numpy()[0].tobytes() == exact.tobytes(), (*names, left, right)
"""


@pytest.mark.parametrize("level", available_levels())
def test_sums_that_only_a_scale_makes_ordinary(level):
    """What is below or beyond float32 before the scales of tensors and lines lead back, by single exact products."""
    run_at(level, EXTREMES)


LARGEST = """
import ml_dtypes, numpy as np, dlfp4
for name in ("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"):
    largest = float(ml_dtypes.finfo(name).max)
    for packed in (True, False):
        x = dlfp4.cast(np.full(200_001, largest, np.float32), name, packed=packed)
        assert dlfp4.dot(x, x).item() == np.float32(200_001 * largest**2), (name, packed)
for name in ("int8", "uint8"):
    x = np.full(200_001, np.iinfo(name).min or 255, name)
    assert dlfp4.dot(x, x).item() == np.float32(200_001 * int(x[0]) ** 2), name
"""


@pytest.mark.parametrize("level", available_levels())
def test_as_many_of_the_largest_as_lanes_hold_and_more(level):
    run_at(level, LARGEST)


def test_torch():
    torch = pytest.importorskip("torch")
    a = torch.randn(4, 128).to(torch.float8_e4m3fn)
    expected = (a.float() * a.float()).sum(-1)
    assert torch.allclose(torch.from_dlpack(dlfp4.vecdot(a, a)), expected, rtol=1e-5)
    q = dlfp4.quantize(torch.randn(4, 128), "nvfp4")
    assert_bound(dlfp4.vecdot(q.data, q.data), wide(q.data), wide(q.data))


def lines_of(name, code, scale, global_scale=None):
    """A line of equal elements in blocks of equal scales."""
    form = dlfp4.formats()[name]
    length = form.block[1]
    data = np.full((1, length * BITS[form.element.name] // 8), code, np.uint8)
    scales = np.full((1, 1), scale, np.uint8 if form.scale.itemsize == 1 else np.float32)
    return dlfp4.ScaledTensor.from_parts(data, scales, global_scale, format=name)


@pytest.mark.parametrize(
    ("name", "code", "scale"),
    [("mxfp8_e5m2", 0x78, 52), ("mxfp8_e5m2", 0x78, 50), ("fp8_1x128", 0x7E, 7.3e-22), ("fp8_1x128", 0x7E, 1.3e-21)],
)
def test_products_of_scales_that_float32_has_not(name, code, scale):
    """Those of the elements are normal numbers."""
    q = lines_of(name, code, scale)
    value = float(q.dequantize().to_numpy()[0, 0])
    exact = value * value * q.shape[-1]
    assert value * value > 2.0**-126
    assert float(dlfp4.vecdot(q, q).to_numpy()[0]) == pytest.approx(exact, rel=q.shape[-1] * 2.0**-24)
    assert float(dlfp4.matmul(q, q.mT).to_numpy()[0, 0]) == pytest.approx(exact, rel=q.shape[-1] * 2.0**-24)


@pytest.mark.parametrize("rows", [1, 4, 64])
@pytest.mark.parametrize("exponents", [(61, 61), (121, 0), (0, 121)])
def test_sums_that_are_finite(exponents, rows):
    """Up to float32's last binade, though FP4 by FP4 counts in quarters."""
    codes = np.zeros((rows, 16), np.uint8)
    codes[:, 3] = 0x07  # one 6 a line
    a, b = (
        dlfp4.ScaledTensor.from_parts(codes, np.full((rows, 1), 127 + exponent, np.uint8), format="mxfp4")
        for exponent in exponents
    )
    exact = 36 * 2.0 ** sum(exponents)
    assert 2.0**128 > exact > 2.0**126
    assert set(dlfp4.vecdot(a, b).to_numpy().tolist()) == {exact}
    assert set(dlfp4.matmul(a, b.mT).to_numpy().ravel().tolist()) == {exact}


def test_columns_of_a_stack_are_refused():
    q = dlfp4.quantize(np.ones((2, 32, 8), np.float32), "mxfp8_e4m3", axis=-2)
    with pytest.raises(ValueError, match="quantize it along its last axis"):
        dlfp4.vecdot(q, q, axis=-2)


def test_a_sum_is_a_number():
    x = dlfp4.asarray(np.array([1.5, -2.25], np.float32))
    total = dlfp4.dot(x, x)
    assert (f"{total:.2f}", f"{total:>7}", f"{total}", int(total)) == ("7.31", " 7.3125", str(total), 7)
    with pytest.raises(ValueError, match="one element"):
        format(x, ".2f")


def test_sums_go_where_they_are_asked_to():
    x, out = np.arange(8, dtype=np.float32).reshape(2, 4), np.empty(2, np.float32)
    assert dlfp4.vecdot(x, x, out=out).data_ptr == out.ctypes.data
    assert out.tolist() == dlfp4.vecdot(x, x).tolist()
    one = np.empty((), np.float32)
    dlfp4.dot(x[0], x[1], out=one)
    assert one == 38
    for wrong, error, said in (
        (np.empty(3, np.float32), ValueError, r"out has shape \(3,\), the result has \(2,\)"),
        (np.empty(4, np.float32)[::2], ValueError, r"out has strides \(2,\); it must be compact"),
        (np.empty(2), TypeError, "out has dtype float64"),
        (x[0, :2], ValueError, "out overlaps an input"),
    ):
        with pytest.raises(error, match=said):
            dlfp4.vecdot(x, x, out=wrong)


def test_sums_do_not_go_to_operands_that_are_decoded_first():
    q = dlfp4.quantize(np.ones((32, 64), np.float32), "mxfp8_e4m3", hadamard=1)
    refuses_memory_of(q.data.to_numpy(), q)


def test_sums_do_not_go_to_scales_that_are_widened_first():
    q = dlfp4.quantize(np.ones((32, 64), np.float32), "int4_g32")
    scales = q.scales.to_numpy().astype(np.float16)
    refuses_memory_of(scales, dlfp4.ScaledTensor.from_parts(q.data, scales, format="int4_g32"))


def refuses_memory_of(part, q):
    before = part.tobytes()
    with pytest.raises(ValueError, match="out overlaps an input"):
        dlfp4.vecdot(q, np.ones(64, np.float32), out=part.view(np.float32).ravel()[:32])
    assert part.tobytes() == before
