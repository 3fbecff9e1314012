"""matmul on the host against float64 products of the decoded operands, by each backend; its choice; its errors."""

from decimal import Decimal
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import dlfp4

from ..support.block_reference import FORMATS
from ..support.capsules import framework
from ..support.levels import LEVELS, PRODUCTS_ALONE, run_at
from ..support.reference import codes_of, native_cast

CASES = [
    (1, 256, 512), (512, 512, 256), (48, 512, 512), (7, 128, 256), (13, 256, 128), (9, 512, 256), (31, 256, 256),
    (3, 256, 512), (17, 128, 128), (64, 512, 96), (64, 512, 192), (1, 4096, 4096), (1, 2112, 1024), (17, 1088, 576),
]  # fmt: skip
LARGE = [(1024, 4096, 128), (13, 11008, 128), (3000, 1088, 768), (2048, 2688, 2688)]
EPSILON = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}


def values(shape, seed=0, zeros=0.75):
    """Normal random numbers, most of them zeros."""
    rng = np.random.default_rng([seed, *shape])
    return np.where(rng.random(shape) < zeros, 0, rng.normal(size=shape)).astype(np.float32)


def wide(x):
    """float64 values."""
    x = x.dequantize() if isinstance(x, dlfp4.ScaledTensor) else dlfp4.cast(x, "float64")
    return x.to_numpy().astype(np.float64)


def poisoned(shape, dtype):
    """Memory for a result, full of NaN."""
    return native_cast(np.full(shape, np.nan, np.float32), dtype)


def assert_product(got, a, b, alpha=1.0, per_magnitude=None):
    """Within matmul's bound, or another one in units of the sums of magnitudes."""
    left, right = wide(a), wide(b)
    expected, magnitudes = alpha * (left @ right), abs(alpha) * (np.abs(left) @ np.abs(right))
    epsilon = EPSILON[got.dtype.name]
    got = dlfp4.cast(got, "float64").to_numpy()
    assert got.shape == expected.shape
    length = max(left.shape[-1], 16)  # what is stored of the shortest lines
    bound = (per_magnitude or length * 2.0**-24) * magnitudes + epsilon * np.abs(expected) + 2.0**-126
    if epsilon == EPSILON["float16"]:
        bound += 2.0**-25  # half of its smallest step
    wrong = ~(np.abs(got - expected) <= bound)
    assert not wrong.any(), f"{wrong.sum()} of {wrong.size} wrong, first at {np.argwhere(wrong)[0]}"


def check(a, b, dtype, **options):
    """By every backend that takes it, twice, into poisoned memory."""
    used = [name for name, reason in dlfp4.backends(a, b).items() if reason is None]
    assert used[0] == "cpu"
    for name in used:
        outs = [poisoned((*a.shape[:-1], b.shape[-1]), dtype) for _ in range(2)]
        for out in outs:
            dlfp4.matmul(a, b, out=out, backend=name, **options)
        assert_product(outs[0], a, b, options.get("alpha", 1.0))
        assert codes_of(outs[0]).tobytes() == codes_of(outs[1]).tobytes(), name


# ---- the cases -----------------------------------------------------------------------------------------------------


@pytest.mark.arithmetic
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "mxfp8_e4m3", "fp8_128x128"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_float_by_weight(case, name, dtype):
    m, n, k = case
    w = dlfp4.quantize(values((n, k), 1), name)
    check(native_cast(values((m, k)), dtype), w.mT, dtype)


@pytest.mark.arithmetic
@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "mxfp6_e2m3", "mxfp8_e5m2"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_quantized_by_weight(case, name):
    m, n, k = case
    check(dlfp4.quantize(values((m, k)), name), dlfp4.quantize(values((n, k), 1), name).mT, "float32")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("case", LARGE, ids=str)
def test_large(case, dtype):
    m, n, k = case
    w = dlfp4.quantize(values((n, k), 1), "nvfp4")
    check(native_cast(values((m, k)), dtype), w.mT, dtype)
    check(dlfp4.quantize(values((m, k)), "nvfp4"), w.mT, "float32")


@pytest.mark.parametrize("k", [1, 2, 3])
def test_float32_keeps_its_last_bits(k):
    """So few products that a bit lost of an operand shows beside the bound."""
    rng = np.random.default_rng(k)
    x, w = (rng.uniform(1, 2, (rows, k)).astype("float32") for rows in (2, 40))
    w = dlfp4.cast(w, "float8_e4m3fn")
    exact = x.astype(np.float64) @ wide(w).T
    assert (abs(dlfp4.matmul(x, w.mT).to_numpy() - exact) <= (k + 1) * 2.0**-24 * exact).all()


@pytest.mark.arithmetic
@pytest.mark.parametrize("m", [1, 2, 3, 5, 8, 9, 16, 200])
@pytest.mark.parametrize("name", FORMATS)
def test_every_format(name, m):
    w = dlfp4.quantize(values((48, 2320), 1, zeros=0), name, pad=True)
    for dtype in ("float32", "bfloat16", "float16"):
        assert_product(
            dlfp4.matmul(native_cast(values((m, 2320)), dtype), w.mT), native_cast(values((m, 2320)), dtype), w.mT
        )


@pytest.mark.arithmetic
@pytest.mark.parametrize(
    "names",
    [
        ("nvfp4", "mxfp4"), ("mxfp4", "nvfp4"), ("mxfp8_e4m3", "nvfp4"), ("fp8_e4m3", "mxfp4"),
        ("fp8_1x128", "fp8_128x128"), ("fp8_1x128_e5m2", "fp8_1x128"), ("fp8_1x128", "nvfp4"), ("nvfp4", "fp8_1x128"),
    ],
)  # fmt: skip
def test_two_formats(names):
    for m in (1, 2, 33):
        a, w = dlfp4.quantize(values((m, 1056)), names[0]), dlfp4.quantize(values((40, 1056), 1), names[1])
        assert_product(dlfp4.matmul(a, w.mT), a, w.mT)


@pytest.mark.parametrize("m", [1, 9, 33])
@pytest.mark.parametrize("scale", [1e20, 2.0**-75, 1e-21])
def test_scales_whose_product_no_float32_holds(m, scale):
    """Results are ordinary numbers, or 0 where no element meets another."""
    k = 1024
    scales = [np.full((rows, k // 128), scale, np.float32) for rows in (m, 36)]
    codes = [dlfp4.cast(np.abs(values((rows, k), rows, zeros=0)) * 200, "float8_e4m3fn").to_numpy() for rows in (m, 36)]
    if scale > 1:
        codes[0][:, ::2], codes[1][:, 1::2] = 0, 0
    a, w = (dlfp4.ScaledTensor.from_parts(c, s, format="fp8_1x128") for c, s in zip(codes, scales, strict=True))
    assert_product(dlfp4.matmul(a, w.mT), a, w.mT)


BELOW_NORMAL_NUMBERS = """
import itertools
import ml_dtypes
import numpy as np
import dlfp4

K, N = 256, 40

def make(name, rows, exponent, seed):
    x = np.random.default_rng(seed).normal(size=(rows, K)) * 2.0**exponent
    if name in ("float32", "bfloat16"):
        return x.astype(name)
    return dlfp4.quantize(x.astype("float32"), name)

def wide(x):
    x = x.dequantize() if isinstance(x, dlfp4.ScaledTensor) else dlfp4.cast(x, "float64")
    return x.to_numpy().astype("float64")

most = 0.0
NAMES = ("float32", "bfloat16", "mxfp4", "mxfp8_e4m3", "fp8_1x128")
for left, right, rows in itertools.product(NAMES, NAMES, (1, 3, 20)):
    for exponents in ((-56, -56), (-66, -66), (-70, -70), (-90, -20), (-40, -90)):
        x, w = make(left, rows, exponents[0], rows), make(right, N, exponents[1], 99)
        a, b = wide(x), wide(w).T
        for alpha in (1.0, 2.0 ** min(126, -sum(exponents))):
            got = dlfp4.matmul(x, w.mT, alpha=alpha, out_dtype="float32").to_numpy().astype("float64")
            wrong = abs(got - alpha * (a @ b)) - 2.0**-24 * abs(alpha * (a @ b)) - 2.0**-150
            most = max(most, float((wrong / alpha - K * 2.0**-24 * (abs(a) @ abs(b))).max()) / K)
print(most)
"""


@pytest.mark.arithmetic
@pytest.mark.parametrize("level", LEVELS)
def test_what_sums_lose_below_normal_numbers(level):
    """A large `alpha` makes it visible: beyond the bound at every level, and no more than the docstring says."""
    lost = float(run_at(level, BELOW_NORMAL_NUMBERS))
    assert 0 < lost <= (2.0**-123 if level in PRODUCTS_ALONE else 2.0**-149)


def test_plain_elements():
    for name in ("float4_e2m1fn", "float6_e3m2fn", "float8_e4m3fn", "float8_e5m2fnuz", "bfloat16", "float32"):
        a, w = dlfp4.cast(values((6, 77)), name), dlfp4.cast(values((35, 77), 1), name)
        assert_product(dlfp4.matmul(a, w.mT), a, w.mT)


@pytest.mark.arithmetic
@pytest.mark.parametrize("length", [1, 5, 17, 33, 1039])
def test_incomplete_blocks(length):
    for name in ("nvfp4", "mxfp4", "mxfp6_e3m2", "fp8_1x128"):
        w = dlfp4.quantize(values((34, length), 1, zeros=0), name, pad=True)
        for m in (1, 4, 20):
            x = values((m, length), zeros=0)
            assert_product(dlfp4.matmul(native_cast(x, "bfloat16"), w.mT), native_cast(x, "bfloat16"), w.mT)
            q = dlfp4.quantize(x, name, pad=True)
            assert_product(dlfp4.matmul(q, w.mT), q, w.mT)


@pytest.mark.parametrize("layout", ["128x4", "8x4", "aiter"])
def test_scale_layouts(layout):
    for name in ("nvfp4", "mxfp4"):
        x, w = values((9, 256)), values((40, 256), 1)
        linear = dlfp4.matmul(dlfp4.quantize(x, name), dlfp4.quantize(w, name).mT).tolist()
        a, b = dlfp4.quantize(x, name, scale_layout=layout), dlfp4.quantize(w, name, scale_layout=layout)
        assert dlfp4.matmul(a, b.mT).tolist() == linear


# ---- options and shapes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", ["2", 1j, np.ones(1), [1.0]], ids=repr)
def test_alpha_that_is_no_number(alpha):
    with pytest.raises(TypeError, match=r"alpha=.*expected a number"):
        dlfp4.matmul(values((1, 64)), values((64, 1)), alpha=alpha)


@pytest.mark.parametrize("alpha", [np.float32(0.5), ml_dtypes.bfloat16(0.5), Fraction(1, 2), Decimal("0.5")], ids=repr)
def test_alpha_of_any_number(alpha):
    a, b = values((3, 64)), values((64, 5), 1)
    assert dlfp4.matmul(a, b, alpha=alpha).tolist() == dlfp4.matmul(a, b, alpha=0.5).tolist()


def test_alpha_and_result_types():
    a, w = values((5, 64)), dlfp4.quantize(values((32, 64), 1), "nvfp4")
    for dtype in EPSILON:
        got = dlfp4.matmul(a, w.mT, alpha=-0.375, out_dtype=dtype)
        assert got.dtype.name == dtype
        assert_product(got, a, w.mT, alpha=-0.375)
    assert dlfp4.matmul(native_cast(a, "bfloat16"), w.mT).dtype.name == "bfloat16"
    assert dlfp4.matmul(native_cast(a, "float8_e4m3fn"), w.mT).dtype.name == "float32"
    assert dlfp4.matmul(dlfp4.quantize(a, "nvfp4"), w.mT).dtype.name == "float32"


def test_batches_and_vectors():
    w = dlfp4.quantize(values((48, 64), 1), "mxfp4")
    x = values((2, 3, 5, 64))
    assert_product(dlfp4.matmul(x, w.mT), x, w.mT)
    assert_product(dlfp4.matmul(x.transpose(1, 0, 2, 3), w.mT), x.transpose(1, 0, 2, 3), w.mT)
    assert_product(dlfp4.matmul(dlfp4.quantize(x, "nvfp4"), w.mT), dlfp4.quantize(x, "nvfp4"), w.mT)
    vector = dlfp4.matmul(x[0, 0, 0], w.mT)
    assert vector.shape == (48,)
    assert vector.tolist() == dlfp4.matmul(x[0, 0, :1], w.mT).to_numpy()[0].tolist()


def test_strided_inputs_and_results():
    x, w = values((20, 128)), dlfp4.quantize(values((40, 128), 1), "nvfp4")
    for view in (np.asfortranarray(x), x[::-2], np.repeat(x, 2, 1)[:, ::2]):
        assert_product(dlfp4.matmul(view, w.mT), np.ascontiguousarray(view), w.mT)
    for out in (poisoned((40, 20), "float32").T, poisoned((40, 80), "bfloat16")[::2, ::2]):
        dlfp4.matmul(x, w.mT, out=out)
        assert_product(dlfp4.asarray(out), x, w.mT)


def test_pytorch_multiplies_what_runs_backwards():
    framework("torch")
    x, w = values((20, 128)), dlfp4.quantize(values((40, 128), 1), "nvfp4")
    for view in (x[::-1], x[:, ::-1]):
        assert_product(dlfp4.matmul(view, w.mT, backend="torch"), np.ascontiguousarray(view), w.mT)
    for out in (poisoned((20, 40), "float32")[::-1], poisoned((20, 40), "bfloat16")[:, ::-1]):
        dlfp4.matmul(x, w.mT, out=out, backend="torch")
        assert_product(dlfp4.asarray(out), x, w.mT)


def test_nothing():
    w = dlfp4.quantize(values((32, 64), 1), "nvfp4")
    assert dlfp4.matmul(np.zeros((0, 64), np.float32), w.mT).shape == (0, 32)
    assert not dlfp4.matmul(np.zeros((2, 0), np.float32), np.zeros((0, 3), np.float32)).to_numpy().any()


@pytest.mark.parametrize("m", [1, 4, 11, 40])
@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "mxfp6_e3m2", "mxfp8_e4m3", "mxfp8_e5m2", "fp8_1x128"])
def test_nan_and_infinity(name, m):
    w = np.ones((34, 128), np.float32)
    w[3, 5] = np.nan
    q, x = dlfp4.quantize(w, name), np.ones((m, 128), np.float32)
    x[-1, 7] = np.inf
    for a in (x, native_cast(x, "bfloat16"), dlfp4.quantize(np.ones((m, 128), np.float32), name)):
        got = dlfp4.matmul(a, q.mT, out_dtype="float32").to_numpy()
        assert np.isnan(got[:, 3]).all()
        assert not np.isnan(np.delete(got, 3, 1)).any()
        if not isinstance(a, dlfp4.ScaledTensor):
            assert np.isinf(np.delete(got[-1], 3)).all()
            assert (np.delete(got[:-1], 3, 1) == 128).all()


def test_threads_do_not_change_results():
    weights = [
        dlfp4.quantize(values((300, 1024), 1), name) for name in ("nvfp4", "mxfp8_e4m3", "fp8_e4m3", "fp8_1x128")
    ]
    inputs = [values((m, 1024)) for m in (1, 9, 250)]
    inputs += [native_cast(x, "bfloat16") for x in inputs] + [dlfp4.quantize(x, "nvfp4") for x in inputs]
    results = []
    for threads in (1, 2, 3, 0):
        dlfp4.set_num_threads(threads)
        found = [codes_of(dlfp4.matmul(x, w.mT)).tobytes() for w in weights for x in inputs]
        found += [codes_of(dlfp4.matmul(x, weights[0].mT, activation="int8")).tobytes() for x in inputs[:3]]
        results.append(found)
    assert all(result == results[0] for result in results)


def rounded_to_int8(x):
    """Blocks of 32 as integers with a scale, in float64."""
    blocks = np.pad(x, ((0, 0), (0, -x.shape[1] % 32))).reshape(len(x), -1, 32)
    largest = np.abs(blocks).max(-1, keepdims=True)
    integers = np.rint(blocks * (np.float32(127) / largest))
    return (integers * (largest.astype(np.float64) / 127)).reshape(len(x), -1)[:, : x.shape[1]]


@pytest.mark.parametrize("m", [1, 2, 5, 8, 9, 20])
@pytest.mark.parametrize("name", ["nvfp4", "mxfp4"])
def test_int8_activations(name, m):
    for length in (1, 77, 512, 1000, 2080):
        x, w = values((m, length), zeros=0), dlfp4.quantize(values((40, length), 1, zeros=0), name, pad=True)
        left, right = rounded_to_int8(x), wide(w).T
        got = dlfp4.matmul(x, w.mT, activation="int8").to_numpy()
        bound = (length + 4) * 2.0**-24 * (np.abs(left) @ np.abs(right))
        assert (np.abs(got - left @ right) <= bound).all()
    tiny = np.full((m, 2080), 1e-42, np.float32)
    assert not dlfp4.matmul(tiny, w.mT, activation="int8").to_numpy().any()
    for special in (np.nan, np.inf):
        x[m - 1, 40] = special
        found = np.isnan(dlfp4.matmul(x, w.mT, activation="int8").to_numpy())
        assert found.any(1).tolist() == found.all(1).tolist() == [i == m - 1 for i in range(m)]


@pytest.mark.parametrize("m", [1, 3, 8, 11])
def test_elements_and_infinities(m):
    """Weights without scales, and infinities of their own, by few rows and more."""
    for name in ("float8_e5m2", "float8_e4m3fnuz", "bfloat16", "float16"):
        x, w = native_cast(values((m, 200)), "bfloat16"), native_cast(values((35, 200), 1), name)
        assert_product(dlfp4.matmul(x, w.T, out_dtype="float32"), x, w.T)
    w = native_cast(np.ones((33, 200), np.float32), "float8_e5m2")
    w[5, 199] = np.inf
    for dtype in ("bfloat16", "float16", "float32"):
        got = dlfp4.matmul(native_cast(np.ones((m, 200), np.float32), dtype), w.T, out_dtype="float32").to_numpy()
        assert (got[:, 5] == np.inf).all()
        assert (np.delete(got, 5, 1) == 200).all()


INFINITE = """
import numpy as np, dlfp4
for name in ("fp8_1x128", "fp8_128x128", "fp8_1x128_e5m2", "int4_g32", "fp8_row", "fp8_e4m3"):
    q = dlfp4.quantize(np.ones((40, 384), "float32"), name)
    for special in (np.inf, -np.inf, np.nan):
        scales = q.scales.to_numpy().copy()
        scales.reshape(-1)[-1] = special
        w = dlfp4.ScaledTensor.from_parts(q.data, scales, format=name, shape=(40, 384))
        for rows in (1, 2, 3, 8, 33):
            for dtype in ("float32", "bfloat16", "float16"):
                for value in (1, 1 + 2.0**-10):  # bits of the first bfloat16 alone, and others
                    x = dlfp4.cast(np.full((rows, 384), value, "float32"), dtype)
                    got = dlfp4.matmul(x, w.mT, out_dtype="float32").to_numpy()[:, -1]
                    assert np.array_equal(got, np.full(rows, special), equal_nan=True), (name, special, rows, dtype)
                x = np.where(np.arange(384) % 2, 1, -1) * np.ones((rows, 1), "float32")
                got = dlfp4.matmul(dlfp4.cast(x.astype("float32"), dtype), w.mT, out_dtype="float32").to_numpy()
                assert np.isnan(got[:, -1]).all(), (name, special, rows, dtype)
print("fine")
"""


@pytest.mark.arithmetic
@pytest.mark.parametrize("level", LEVELS)
def test_scales_that_are_not_finite(level):
    """Each counts once, however many parts a row is multiplied in; a sum of 0 by infinity is NaN."""
    assert run_at(level, INFINITE) == "fine\n"


LEVEL = """
import numpy as np, dlfp4
rng = np.random.default_rng(0)
w = rng.normal(size=(64, 512)).astype("float32")
for rows in (1, 2, 5, 10, 17, 25):
    x = rng.normal(size=(rows, 512)).astype("float32")
    for name in dlfp4.formats():
        q = dlfp4.quantize(w, name)
        scaled = dlfp4.quantize(np.pad(x, ((0, -rows % 32), (0, 0))), name)
        right = q.dequantize().to_numpy().astype("f8").T
        for a in (x, dlfp4.cast(x, "bfloat16"), dlfp4.cast(x, "float16"), scaled):
            left = (a.dequantize() if a is scaled else dlfp4.cast(a, "float32")).to_numpy().astype("f8")
            got = dlfp4.matmul(a, q.mT, out_dtype="float32").to_numpy()
            assert (abs(got - left @ right) <= 513 * 2.0**-24 * (abs(left) @ abs(right))).all()
        if q.data.dtype.name == "float4_e2m1fn":
            got = dlfp4.matmul(x, q.mT, activation="int8").to_numpy()
            assert (abs(got - x.astype("f8") @ right) <= abs(x).max() / 127 * 0.51 * abs(right).sum(0)).all()
print("fine")
"""


@pytest.mark.arithmetic
@pytest.mark.parametrize("level", LEVELS)
def test_levels(level):
    assert run_at(level, LEVEL) == "fine\n"


# ---- backends and errors -------------------------------------------------------------------------------------------


def test_backends_of_a_machine(monkeypatch):
    for has_gpu in (False, True):
        monkeypatch.setitem(dlfp4.matmul.__globals__, "cuda_available", lambda has_gpu=has_gpu: has_gpu)
        found = dlfp4.backends()
        assert found["cpu"] is None
        assert (found["cuda"] is None) == has_gpu
    with pytest.raises(TypeError, match="both operands"):
        dlfp4.backends(values((2, 64)))


def test_backends():
    told = dlfp4.backends()
    assert sorted(told) == ["cpu", "cuda", "cuda_fp8", "flashinfer", "scaled_mm", "torch"]
    assert [reason is None for reason in told.values()] == sorted([reason is None for reason in told.values()])[::-1]
    w = dlfp4.quantize(values((32, 64), 1), "nvfp4")
    assert dlfp4.backends(values((2, 64)), w.mT)["cpu"] is None
    across = dlfp4.quantize(values((64, 32), 1), "nvfp4")
    assert "run across" in dlfp4.backends(values((2, 64)), across)["cpu"]
    with pytest.raises(dlfp4.BackendError, match=r"run across.*pass a and w\.mT"):
        dlfp4.matmul(values((2, 64)), across, backend="cpu")


def test_what_only_another_backend_takes():
    pytest.importorskip("torch")
    across = dlfp4.quantize(values((64, 32), 1), "nvfp4")
    assert_product(dlfp4.matmul(values((2, 64)), across), values((2, 64)), across)


def test_every_reason_is_told():
    w = np.zeros((64, 32), np.int8)
    with pytest.raises(
        dlfp4.BackendError, match=r"(?s)cpu: b has dtype int8.*torch: (b has dtype int8|PyTorch is not installed)"
    ):
        dlfp4.matmul(values((2, 64)), w)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"backend": "abacus"}, ValueError, "expected 'auto' or one of cpu, cuda, cuda_fp8, torch"),
        ({"backend": ["cpu"]}, ValueError, r"backend=\['cpu'\]: expected 'auto' or one of cpu"),
        ({"activation": "int4"}, ValueError, "expected None or one of 'int8', 'fp8_1x128', 'mxfp8', 'fp8_row'"),
        ({"out_dtype": "float8_e4m3fn"}, TypeError, "expected one of float32"),
        ({"stream": 1}, ValueError, "host memory has no streams"),
        ({"out": np.zeros((2, 31), np.float32)}, ValueError, "out has shape"),
        ({"out": np.zeros((2, 32))}, TypeError, "float64 was asked for, by out_dtype or out; expected one of float32"),
        ({"out": np.zeros((2, 32), np.float32), "out_dtype": "bfloat16"}, TypeError, "out has dtype float32"),
    ],
)
def test_bad_options(options, error, message):
    w = dlfp4.quantize(values((32, 64), 1), "nvfp4")
    with pytest.raises(error, match=message):
        dlfp4.matmul(values((2, 64)), w.mT, **options)


def test_bad_operands():
    w = dlfp4.quantize(values((32, 64), 1), "nvfp4")
    with pytest.raises(ValueError, match=r"K is 32 and 64"):
        dlfp4.matmul(values((2, 32)), w.mT)
    with pytest.raises(ValueError, match=r"pass w\.mT"):
        dlfp4.matmul(values((2, 64)), w)
    with pytest.raises(ValueError, match=r"\(\.\.\., M, K\) and \(K, N\)"):
        dlfp4.matmul(values((2, 64)), values((2, 64, 3)))
    with pytest.raises(dlfp4.BackendError, match="quantized already"):
        dlfp4.matmul(dlfp4.quantize(values((2, 64)), "nvfp4"), w.mT, activation="int8")
    with pytest.raises(dlfp4.BackendError, match="ScaledTensor of FP4"):
        dlfp4.matmul(values((2, 64)), values((64, 3)), activation="int8")


def test_out_shares_no_memory():
    x = values((32, 32))
    with pytest.raises(ValueError, match="overlaps an input"):
        dlfp4.matmul(x, np.eye(32, dtype=np.float32), out=x)
    w = dlfp4.quantize(values((32, 32), 1), "nvfp4")
    w = dlfp4.ScaledTensor.from_parts(w.data, w.scales, x[3, 4:5], format="nvfp4")
    with pytest.raises(ValueError, match="overlaps an input"):
        dlfp4.matmul(values((32, 32)), w.mT, out=x)


def test_out_shares_no_memory_with_operands_that_are_decoded_first():
    w = dlfp4.quantize(values((64, 64), 1), "mxfp8_e4m3", hadamard=1)
    data = w.data.to_numpy()
    with pytest.raises(ValueError, match="overlaps an input"):
        dlfp4.matmul(values((16, 64)), w.mT, out=data.view(np.float32).reshape(16, 64))
    assert data.tobytes() == dlfp4.quantize(values((64, 64), 1), "mxfp8_e4m3", hadamard=1).data.to_numpy().tobytes()


def test_out_of_batches_is_compact():
    w = dlfp4.quantize(np.eye(32, dtype=np.float32), "mxfp4").mT
    out = np.zeros((3, 2, 32), np.float32).transpose(1, 0, 2)
    with pytest.raises(ValueError, match="must be compact"):
        dlfp4.matmul(np.ones((2, 3, 32), np.float32), w, out=out)


def test_a_stack_of_second_operands_is_refused():
    with pytest.raises(ValueError, match=r"expected \(\.\.\., M, K\) and \(K, N\)"):
        dlfp4.matmul(np.ones((2, 32), np.float32), np.zeros((32, 4, 2), np.float32))


def test_alpha_at_the_end_of_float32():
    w = dlfp4.quantize(np.eye(32, dtype=np.float32), "mxfp4").mT
    x = np.eye(32, dtype=np.float32) * 2.0**-126
    for alpha in (2.0**128 - 2.0**103, -(2.0**128 - 2.0**103)):
        with pytest.raises(ValueError, match="beyond float32"):
            dlfp4.matmul(x, w, alpha=alpha)
    largest = float(np.nextafter(2.0**128 - 2.0**103, 0))
    assert np.isfinite(dlfp4.matmul(x, w, alpha=largest).to_numpy()).all()
    assert dlfp4.matmul(np.ones((1, 32), np.float32), w, alpha=np.inf).tolist() == [[np.inf] * 32]
