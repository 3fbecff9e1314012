"""Every row of formats.def on a GPU: quantize and dequantize give the host's bytes, dot and matmul hold to float64.

Nothing here names a format: a row that is appended is tested as it is, by the kernels that are for it or, off the
borders of fast ones, by those for anything.
"""

import numpy as np
import pytest

import dlfp4
from dlfp4.formats import RECIPES, find_recipe

from ..products.test_matmul import assert_product, values, wide
from ..support.reference import host_bytes, native_cast, parts_of
from .test_cuda_dots import assert_product as assert_dot
from .test_cuda_dots import on_cuda
from .test_cuda_matmul import HOPPER_FP8

pytestmark = pytest.mark.gpu

CUDA = "cuda:0"
FORMATS = list(dlfp4.formats())
SOURCES = ["float32", "bfloat16", "float16"]
VIEWS = {  # of (256, 512) elements, in the orders that kernels have of their own, and in none
    "rows": lambda x: x,
    "columns": lambda x: x.T,
    "rows off borders": lambda x: x[:128, 1:385],
    "every other": lambda x: x[::2, ::2],
}


def magnitudes_of_all_kinds(source):
    """A block row each: of many binades, zeros, the largest values, what is not finite."""
    rng = np.random.default_rng(11)
    x = rng.standard_normal((256, 512)) * np.exp2(rng.integers(-12, 12, (256, 32))).repeat(16, 1)
    x[:3], x[3] = 0, -0.0
    x[4], x[5, 40], x[6, 300], x[200, 7] = np.finfo(np.float16).max, np.nan, np.inf, -np.inf
    return native_cast(x.astype(np.float32), source)


def bytes_of(q):
    return [(part.shape, host_bytes(part)) for part in parts_of(q)]


@pytest.mark.parametrize("hadamard", [None, 9])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", FORMATS)
def test_bytes_of_the_host(name, source, view, hadamard):
    x = magnitudes_of_all_kinds(source)
    device, host = VIEWS[view](dlfp4.asarray(x).to_device(CUDA)), np.ascontiguousarray(VIEWS[view](x))
    for axis in (-1, -2):
        ours, theirs = (dlfp4.quantize(t, name, axis=axis, pad=True, hadamard=hadamard) for t in (device, host))
        assert bytes_of(ours) == bytes_of(theirs)
        for dtype in SOURCES:
            expected = host_bytes(theirs.dequantize(dtype))
            assert host_bytes(ours.dequantize(dtype)) == expected, dtype
            out = dlfp4.empty((2 * host.shape[0], host.shape[1]), dtype, device=CUDA)[::2]  # rows with gaps
            assert host_bytes(dlfp4.dequantize(ours, out=out).copy()) == expected, dtype
            turned = dlfp4.empty(host.shape[::-1], dtype, device=CUDA).T
            assert host_bytes(dlfp4.dequantize(ours, out=turned).copy()) == expected, dtype
    both = [dlfp4.quantize(t, name, axis=(-1, -2), pad=True, hadamard=hadamard) for t in (device, host)]
    for ours, theirs in zip(*both, strict=True):
        assert bytes_of(ours) == bytes_of(theirs)


@pytest.mark.parametrize("recipe", ["ocp", "nvidia", "aiter", "transformer-engine-rocm"])
@pytest.mark.parametrize("name", [n for n in FORMATS if dlfp4.formats()[n].kind == "power"])
def test_bytes_of_every_rule(name, recipe):
    x = magnitudes_of_all_kinds("float32")
    for axis in (-1, -2):
        device, host = (
            dlfp4.quantize(t, name, recipe=recipe, axis=axis) for t in (dlfp4.asarray(x).to_device(CUDA), x)
        )
        assert bytes_of(device) == bytes_of(host)


def recipes_of(name):
    """Each named recipe that a format has, and options that none of them has."""
    row = dlfp4.formats()[name]
    others = {
        "two_level": [
            dlfp4.Recipe(four_over_six="mean_absolute"),
            dlfp4.Recipe(four_over_six="mean_squared", largest_scale=448),
            dlfp4.Recipe(scale_floor=2.0**-9, zero_scale=0x38),
        ],
        "power": [dlfp4.Recipe(eps=1e-4, scale_floor=2.0**-9), dlfp4.Recipe(rounding="nearest_zero")],
        "largest": [dlfp4.Recipe(divide=True), dlfp4.Recipe(pow2=True, eps=1e-4)],
    }
    for recipe in (*RECIPES, *others[row.kind]):
        try:
            find_recipe(row, recipe)
        except ValueError:
            continue
        yield recipe


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", FORMATS)
def test_bytes_of_every_recipe(name, source):
    """By the fast kernels where a recipe differs in numbers alone, else by those for anything."""
    x = magnitudes_of_all_kinds(source)
    for view in ("rows", "columns", "every other"):
        device, host = VIEWS[view](dlfp4.asarray(x).to_device(CUDA)), np.ascontiguousarray(VIEWS[view](x))
        for recipe in recipes_of(name):
            for axis in (-1, -2, (-1, -2)):
                ours, theirs = (dlfp4.quantize(t, name, recipe=recipe, axis=axis, pad=True) for t in (device, host))
                if not isinstance(ours, tuple):
                    ours, theirs = (ours,), (theirs,)
                for one, other in zip(ours, theirs, strict=True):
                    assert bytes_of(one) == bytes_of(other), (recipe, view, axis)


@pytest.mark.parametrize("name", [n for n in FORMATS if dlfp4.formats()[n].kind == "two_level"])
def test_tiny_tensors_and_given_scales(name):
    for magnitude in (1e-37, 2.0**-149):
        x = np.full((32, 64), magnitude, np.float32)
        for given in (None, 2.0**-140):
            device, host = (dlfp4.quantize(t, name, global_scale=given) for t in (dlfp4.asarray(x).to_device(CUDA), x))
            assert bytes_of(device) == bytes_of(host)


@pytest.mark.parametrize("length", [480, 515, 40000])
@pytest.mark.parametrize("name", FORMATS)
def test_dots_by_every_other_format(name, length):
    a = dlfp4.quantize(values((4, length), 1, zeros=0.1), name, pad=True)
    for other in FORMATS:
        b = dlfp4.quantize(values((4, length), 2, zeros=0.1), other, pad=True)
        assert_dot(on_cuda(a), on_cuda(b), of_a=wide(a), of_b=wide(b))
    for dtype in SOURCES:
        x = native_cast(values((4, length), 3), dtype)
        assert_dot(on_cuda(a), on_cuda(x), of_a=wide(a), of_b=x.astype(np.float64))


@pytest.mark.parametrize("name", [n for n in FORMATS if dlfp4.formats()[n].scale.itemsize == 1])
@pytest.mark.parametrize("layout", ["128x4", "8x4", "aiter"])
def test_dots_under_every_layout(name, layout):
    a, b = (dlfp4.quantize(values((160, 512), seed, zeros=0.1), name) for seed in (1, 2))
    assert_dot(on_cuda(a.with_scale_layout(layout)), on_cuda(b), of_a=wide(a), of_b=wide(b))


@pytest.mark.parametrize("rows", [1, 17])
@pytest.mark.parametrize("name", FORMATS)
def test_products_by_every_backend(name, rows):
    """Of weights as they are and prepared; each backend that takes them, and one that does."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    x, w = native_cast(values((rows, 256)), "bfloat16"), dlfp4.quantize(values((128, 256), 1), name)
    q = dlfp4.quantize(values((rows, 256), 2), name, pad=True)
    for weight in (on_cuda(w), on_cuda(w).prepare()):
        for host, a in ((dlfp4.asarray(x), on_cuda(x)), (q, on_cuda(q))):
            able = [backend for backend, reason in dlfp4.backends(a, weight.mT).items() if reason is None]
            assert able
            for backend in able:
                got = dlfp4.matmul(a, weight.mT, backend=backend, out_dtype="float32").to_device("cpu")
                assert_product(got, host, w.mT, per_magnitude=HOPPER_FP8 if backend == "cuda_fp8" else None)


@pytest.mark.parametrize("kind", ["uint4", "int4", "uint8", "int8", "biases"])
@pytest.mark.parametrize("name", [n for n in FORMATS if dlfp4.formats()[n].has_integers])
def test_zero_points_and_biases(name, kind):
    """Of 4 bits, in rows that start within a byte; of 8; biases of every float type."""
    rng = np.random.default_rng(5)
    lines, length = 33, 384
    blocks = length // (dlfp4.formats()[name].block[1] or length)
    codes = rng.integers(0, 256, (lines, length // 2), dtype=np.uint8)
    scales = rng.standard_normal((lines, blocks)).astype(np.float32)
    scales[3, 0] = np.nan
    numbers = rng.integers(0, 8, (lines, blocks)) - (3 if kind.startswith("int") else 0)
    types = SOURCES if kind == "biases" else [kind]
    for dtype in types:
        offset = native_cast(scales[::-1], dtype) if kind == "biases" else numbers.astype(dlfp4.empty(1, dtype).dtype)
        named = {"biases" if kind == "biases" else "zero_points": offset}
        q = dlfp4.ScaledTensor.from_parts(codes, scales, format=name, **named)
        there = q.to_device(CUDA)
        assert bytes_of(there) == bytes_of(q)
        for target in SOURCES:
            expected = host_bytes(q.dequantize(target))
            assert host_bytes(there.dequantize(target)) == expected
            turned = dlfp4.empty((length, lines), target, device=CUDA).T
            assert host_bytes(dlfp4.dequantize(there, out=turned).copy()) == expected
        assert_dot(there[:3], there[4:7], of_a=wide(q[:3]), of_b=wide(q[4:7]))
