"""Scales of lines, of matrices and of other types on a GPU: the host's bytes, by the kernels that are for them and, off
the borders of those, by the ones for anything."""

import numpy as np
import pytest

import dlfp4

from ..products.test_matmul import assert_product, values, wide
from ..support.reference import host_bytes, native_cast, parts_of
from .test_cuda_dots import assert_product as assert_dot
from .test_cuda_dots import on_cuda

pytestmark = pytest.mark.gpu

CUDA = "cuda:0"
SOURCES = ["float32", "bfloat16", "float16"]
ROWS, MATRICES = dlfp4.Recipe(global_scale_per="row"), dlfp4.Recipe(global_scale_per="matrix")
SHAPES = [
    (1, 16),
    (5, 128),
    (3, 2048),
    (300, 2064),
    (2, 4096),
    (7, 20000),
    (3, 40960),
    (2, 0),
]  # teams, held, read twice


def uneven(shape, source, seed=3):
    """Rows of many binades, zeros, and what is not finite."""
    rng = np.random.default_rng([seed, *shape])
    x = rng.standard_normal(shape) * np.exp2(rng.integers(-12, 12, (*shape[:-1], 1)))
    flat = x.reshape(int(np.prod(shape[:-1])), shape[-1])
    if len(flat) > 2 and shape[-1]:
        flat[0], flat[1, shape[-1] // 2], flat[2, -1] = 0, np.nan, -np.inf
    return native_cast(x.astype(np.float32), source)


def bytes_of(q):
    return [(part.shape, part.dtype.name, host_bytes(part)) for part in parts_of(q)]


def assert_like_the_host(x, name, view=lambda x: x, **options):
    device, host = view(dlfp4.asarray(x).to_device(CUDA)), np.ascontiguousarray(view(x))
    ours, theirs = (dlfp4.quantize(t, name, pad=True, **options) for t in (device, host))
    assert bytes_of(ours) == bytes_of(theirs)
    for dtype in SOURCES:
        assert host_bytes(ours.dequantize(dtype)) == host_bytes(theirs.dequantize(dtype)), dtype
    return ours, theirs


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("name", "recipe"), [("fp8_row", None), ("fp8_row_e5m2", None), ("nvfp4", ROWS)])
def test_rows(name, recipe, shape, source):
    assert_like_the_host(uneven(shape, source), name, recipe=recipe)


# Parts of tiles; rows that a block of threads holds, or a cluster, and more than that; columns that no sixteen divides.
ACROSS = [(16, 16), (64, 144), (160, 2048), (1040, 96), (4112, 272), (14464, 48), (128, 24)]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("shape", ACROSS)
@pytest.mark.parametrize(("name", "recipe"), [("fp8_row", None), ("fp8_row_e5m2", None), ("nvfp4", ROWS)])
def test_columns(name, recipe, shape, source):
    for x in (uneven(shape, source), np.ascontiguousarray(uneven(shape[::-1], source).T)):
        assert_like_the_host(x, name, recipe=recipe, axis=-2)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("errors", ["mean_squared", "mean_absolute"])
@pytest.mark.parametrize("axis", [-1, -2, (-1, -2)], ids=str)
def test_four_over_six(axis, errors, source):
    recipe = dlfp4.Recipe(four_over_six=errors)
    for shape in ((32, 32), (160, 2048), (130, 144)):
        x = uneven(shape, source)
        for given in (None, 0.002, 1e-30, 1e30):  # the last two: errors of subnormals and of infinities
            ours, theirs = (
                dlfp4.quantize(t, "nvfp4", axis=axis, recipe=recipe, global_scale=given, pad=True)
                for t in (dlfp4.asarray(x).to_device(CUDA), x)
            )
            for one, other in zip(*((q if isinstance(q, tuple) else (q,)) for q in (ours, theirs)), strict=True):
                assert bytes_of(one) == bytes_of(other)
    rows = dlfp4.Recipe(four_over_six=errors, global_scale_per="row")
    for along in (-1, -2):
        assert_like_the_host(uneven((64, 256), source), "nvfp4", recipe=rows, axis=along)


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize(("name", "recipe"), [("fp8_row", None), ("nvfp4", ROWS)])
def test_rows_off_borders(name, recipe, axis):
    x = uneven((64, 512), "float32")
    views = (lambda x: x, lambda x: x[:, 1:401], lambda x: x.T, lambda x: x[::2, ::2], lambda x: x[:33, :387])
    for view in views:
        assert_like_the_host(x, name, view, recipe=recipe, axis=axis)
    assert_like_the_host(
        x, name, recipe=dlfp4.Recipe(rounding="toward_zero", global_scale_per="row" if recipe else "tensor")
    )


def test_both_directions():
    x = uneven((256, 512), "bfloat16")
    for name, recipe in (("fp8_row", None), ("nvfp4", ROWS)):
        both = [dlfp4.quantize(t, name, axis=(-1, -2), recipe=recipe) for t in (dlfp4.asarray(x).to_device(CUDA), x)]
        for ours, theirs in zip(*both, strict=True):
            assert bytes_of(ours) == bytes_of(theirs)


@pytest.mark.parametrize("layout", ["linear", "128x4"])
def test_given_scales(layout):
    x, given = uneven((130, 128), "bfloat16"), np.geomspace(1e-39, 10, 130).astype(np.float32)
    for form in (given, dlfp4.asarray(given).to_device(CUDA)):
        ours = dlfp4.quantize(dlfp4.asarray(x).to_device(CUDA), "nvfp4", global_scale=form, scale_layout=layout)
        assert bytes_of(ours) == bytes_of(dlfp4.quantize(x, "nvfp4", global_scale=given, scale_layout=layout))


@pytest.mark.parametrize("name", ["nvfp4", "nvfp4_16x16"])
def test_matrices(name):
    x, given = uneven((5, 32, 256), "bfloat16"), np.geomspace(1e-3, 10, 5).astype(np.float32)
    ours, theirs = assert_like_the_host(x, name, recipe=MATRICES)
    assert bytes_of(ours[3]) == bytes_of(theirs[3])
    assert_like_the_host(x, name, recipe=MATRICES, scale_layout="128x4")
    assert_like_the_host(x, name, global_scale=given)
    stochastic = dlfp4.Recipe(rounding="stochastic", global_scale_per="matrix")
    assert_like_the_host(x, name, recipe=stochastic, seed=4)


@pytest.mark.parametrize(
    ("name", "scale_dtype"),
    [
        (name, scale_dtype)
        for name, row in dlfp4.formats().items()
        for scale_dtype in ("bfloat16", "float16", "float8_e8m0fnu")
        if row.kind == "largest" and not (row.has_integers and scale_dtype == "float8_e8m0fnu")
    ],
)
def test_types_of_scales(name, scale_dtype):
    powers = scale_dtype == "float8_e8m0fnu"
    recipe = dlfp4.Recipe(scale_dtype=scale_dtype, pow2=True if powers else None)
    for source in SOURCES:
        assert_like_the_host(uneven((256, 384), source), name, recipe=recipe)
    assert_like_the_host(uneven((256, 384), "float32"), name, recipe=recipe, axis=-2)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", [name for name, row in dlfp4.formats().items() if row.kind == "largest"])
def test_quotients_in_the_type_of_the_input(name, source):
    recipe = dlfp4.Recipe(divide=True, scale_order="input_type")
    for axis in (-1, -2):
        assert_like_the_host(uneven((256, 384), source), name, recipe=recipe, axis=axis)


@pytest.mark.parametrize("length", [480, 40000])
def test_dots(length):
    a = dlfp4.quantize(values((4, length), 1), "nvfp4", recipe=ROWS)
    for b in (a, dlfp4.quantize(values((4, length), 2), "fp8_row"), dlfp4.quantize(values((4, length), 3), "mxfp4")):
        assert_dot(on_cuda(a), on_cuda(b), of_a=wide(a), of_b=wide(b))


@pytest.mark.parametrize("rows", [1, 17])
def test_products(rows):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    w = dlfp4.quantize(values((128, 256), 1), "nvfp4", recipe=ROWS)
    for a in (
        dlfp4.quantize(values((rows, 256), 2), "nvfp4", recipe=ROWS),
        dlfp4.quantize(values((rows, 256), 2), "fp8_row"),
        dlfp4.asarray(native_cast(values((rows, 256), 2), "bfloat16")),
    ):
        for weight in (w, dlfp4.quantize(values((128, 256), 1), "nvfp4")):
            for there in (on_cuda(weight), on_cuda(weight).prepare()):
                got = dlfp4.matmul(on_cuda(a), there.mT, out_dtype="float32").to_device("cpu")
                assert_product(got, a, weight.mT)
