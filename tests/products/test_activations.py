"""matmul(activation=...) by FP8 formats: the bytes of the product of what quantize makes of x; what it refuses."""

from typing import get_args

import numpy as np
import pytest

import dlfp4
from dlfp4.formats import ACTIVATIONS, Activation

from ..support.block_reference import FORMATS
from ..support.capsules import framework
from ..support.reference import codes_of, native_cast
from .test_grouped_matmul import route, stack_of, values

FP8 = {name: format for name, format in ACTIVATIONS.items() if format is not None}
K = 384


def test_type_checkers_know_all_activations():
    assert get_args(Activation) == tuple(ACTIVATIONS)


def same(got, expected):
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    assert codes_of(got).tobytes() == codes_of(expected).tobytes()


def by_quantizing(x, w, activation, **options):
    """The same in two steps, with a result of x's type."""
    return dlfp4.matmul(dlfp4.quantize(x, FP8[activation]), w, **{"out_dtype": x.dtype, **options})


@pytest.mark.parametrize("activation", FP8)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", FORMATS)
def test_bytes_of_two_steps(name, dtype, activation):
    x, w = native_cast(values((5, K)), dtype), dlfp4.quantize(values((48, K), 1), name, pad=True)
    got = dlfp4.matmul(x, w.mT, activation=activation, alpha=0.5)
    same(got, by_quantizing(x, w.mT, activation, alpha=0.5))
    plain = dlfp4.matmul(x, w.mT, alpha=0.5)
    assert codes_of(got).tobytes() != codes_of(plain).tobytes()  # x was rounded


@pytest.mark.parametrize("activation", FP8)
def test_every_backend(activation):
    """That takes the pair."""
    framework("torch")
    x, w = values((5, K)), dlfp4.quantize(values((48, K), 1), "fp8_128x128")
    able = dlfp4.backends(dlfp4.quantize(x, FP8[activation]), w.mT)
    ran = [name for name, reason in able.items() if reason is None]
    assert {"cpu", "torch"} <= set(ran)
    for name in ran:
        same(dlfp4.matmul(x, w.mT, activation=activation, backend=name),
             by_quantizing(x, w.mT, activation, backend=name))  # fmt: skip


@pytest.mark.parametrize("activation", FP8)
@pytest.mark.parametrize("shape", [(K,), (2, 3, K), (0, K), (3, 0)], ids=str)
def test_shapes(shape, activation):
    x, w = values(shape), dlfp4.quantize(values((48, shape[-1]), 1), "mxfp8_e4m3")
    got = dlfp4.matmul(x, w.mT, activation=activation)
    assert got.shape == (*shape[:-1], 48)
    same(got, by_quantizing(x, w.mT, activation))


def test_plain_weights_and_transforms():
    x, w = values((5, K)), values((48, K), 1)
    turned = dlfp4.quantize(w, "nvfp4", hadamard=3)
    for activation in FP8:
        for weight in (w.T, turned.mT):
            same(dlfp4.matmul(x, weight, activation=activation), by_quantizing(x, weight, activation))


def test_blocks_that_end_early():
    """Those of 128 may, and rows are of any length; weights then have float32 scales as well."""
    x = values((5, 200))
    for name in ("fp8_128x128", "fp8_row"):
        w = dlfp4.quantize(values((48, 200), 1), name)
        for activation in ("fp8_1x128", "fp8_row"):
            same(dlfp4.matmul(x, w.mT, activation=activation), by_quantizing(x, w.mT, activation))


@pytest.mark.parametrize("activation", FP8)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_memory_of_the_caller(dtype, activation):
    x, w = values((5, K)), dlfp4.quantize(values((48, K), 1), "fp8_128x128")
    expected = by_quantizing(x, w.mT, activation, out_dtype=dtype)
    out = native_cast(np.full((5, 96), np.nan, np.float32), dtype)
    got = dlfp4.matmul(x, w.mT, activation=activation, out=out[:, ::2])
    assert got.data_ptr == out.ctypes.data
    same(np.ascontiguousarray(out[:, ::2]), expected)
    assert np.isnan(out[:, 1::2].astype(np.float32)).all()


def test_types_of_results():
    x, w = native_cast(values((5, K)), "bfloat16"), dlfp4.quantize(values((48, K), 1), "fp8_row")
    assert dlfp4.matmul(x, w.mT, activation="fp8_row").dtype.name == "bfloat16"
    same(dlfp4.matmul(x, w.mT, activation="fp8_row", out_dtype="float32"),
         by_quantizing(x, w.mT, "fp8_row", out_dtype="float32"))  # fmt: skip


@pytest.mark.parametrize("activation", FP8)
@pytest.mark.parametrize("name", ["fp8_128x128", "mxfp8_e4m3", "mxfp4"])
def test_experts(name, activation):
    tokens, w = values((40, K)), stack_of(name, 6, 128, K)
    indices, ends = route(40, 6, 2, skew=0.5)
    q = dlfp4.quantize(tokens, FP8[activation])
    factors = values((len(indices),))
    for options in (
        {"indices": indices},
        {"indices": indices, "weights": factors},
        {"indices": indices, "weights": factors, "out": np.full((40, 128), np.nan, np.float32)},
        {"alpha": 0.5, "out_dtype": "bfloat16", "indices": indices},
    ):
        expected = dlfp4.grouped_matmul(q, w.mT, ends, **{**options, "out": None})
        got = dlfp4.grouped_matmul(tokens, w.mT, ends, activation=activation, **options)
        same(got, expected)
    rows, x = tokens[indices], native_cast(tokens[indices], "float16")
    same(dlfp4.grouped_matmul(rows, w.mT, ends, activation=activation),
         dlfp4.grouped_matmul(q, w.mT, ends, indices=indices))  # fmt: skip
    assert dlfp4.grouped_matmul(x, w.mT, ends, activation=activation).dtype == np.float16


def test_rows_by_themselves():
    """What one row is rounded to depends on no other."""
    x, w = values((9, K)), dlfp4.quantize(values((48, K), 1), "fp8_128x128")
    for activation in FP8:
        whole = dlfp4.matmul(x, w.mT, activation=activation).to_numpy()
        x[3:] *= 1000
        assert (dlfp4.matmul(x, w.mT, activation=activation).to_numpy()[:3] == whole[:3]).all()
        x[3:] /= 1000


W = dlfp4.quantize(values((64, 64), 1), "mxfp8_e4m3")
X = values((64, 64))
REFUSED = {
    "no such format": ({"activation": "fp8"}, ValueError,
                       "expected None or one of 'int8', 'fp8_1x128', 'mxfp8', 'fp8_row'"),
    "no name": ({"activation": ["mxfp8"]}, ValueError, r"activation=\['mxfp8'\]: expected None or one of"),
    "an array": ({"activation": np.array(["mxfp8", "int8"])}, ValueError,
                 r"activation=array\(.*expected None or one of"),
    "quantized twice": ({"x": dlfp4.quantize(X, "fp8_row"), "activation": "fp8_row"}, dlfp4.BackendError,
                        "x is quantized already"),
    "quantized twice, transformed": ({"x": dlfp4.quantize(X, "nvfp4", hadamard=1), "activation": "mxfp8"},
                                     dlfp4.BackendError, "x is quantized already"),
    "integers": ({"x": X.astype(np.int8), "activation": "fp8_1x128"}, TypeError, "int8"),
    "blocks that do not divide K": ({"x": X[:, :40], "w": X[:40], "activation": "mxfp8"}, ValueError,
                                    "K is 40, and the blocks of mxfp8_e4m3 have 32 elements; complete both"),
    "out that is x": ({"out": X, "activation": "mxfp8"}, ValueError, "overlaps"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    given, error, message = REFUSED[name]
    options = {"x": X, "w": W.mT, **given}
    x, w = options.pop("x"), options.pop("w")
    with pytest.raises(error, match=message.replace("x is", "a is")):
        dlfp4.matmul(x, w, **options)
    stack = w[None] if isinstance(w, np.ndarray) else stack_of("mxfp8_e4m3", 1, 64, 64).mT
    with pytest.raises(error, match=message):
        dlfp4.grouped_matmul(x, stack, np.array([64]), **options)


def test_codes_of_transformed_weights_meet_no_integers():
    w = dlfp4.quantize(values((2, 64, 64)), "nvfp4", hadamard=1)
    with pytest.raises(dlfp4.BackendError, match=r"transformed by hadamard=.*: quantize weights without"):
        dlfp4.matmul(X, w[0].mT, activation="int8")
    with pytest.raises(dlfp4.BackendError, match=r"transformed by hadamard=.*: quantize weights without"):
        dlfp4.grouped_matmul(X, w.mT, np.array([32, 64]), activation="int8")


@pytest.mark.parametrize("activation", FP8)
def test_float64_is_taken_as_quantize_takes_it(activation):
    x = np.random.default_rng(3).normal(size=(8, 64))
    rounded = dlfp4.quantize(x, FP8[activation], recipe="ocp" if activation == "mxfp8" else None)
    expected = dlfp4.matmul(rounded, W.mT).to_numpy()
    assert expected.any()
    assert dlfp4.matmul(x, W.mT, activation=activation).to_numpy().tobytes() == expected.tobytes()
