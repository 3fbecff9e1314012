"""dlfp4.jax on one device: the bytes of eager calls from compiled ones, for every format, and JAX's transformations."""

import functools

import numpy as np
import pytest

import dlfp4

jax = pytest.importorskip("jax")

from dlfp4 import jax as dj  # noqa: E402

from ..support.options import TAKING, refused_alike  # noqa: E402

SUBBYTE = ("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn", "int4", "uint4")
FORMATS = list(dlfp4.formats())
RNG = np.random.default_rng(31)
X = (RNG.standard_normal((128, 256)) * np.exp(RNG.standard_normal((128, 256)))).astype(np.float32)


def to_bytes(x):
    """The packed bytes of an array, a Tensor or None."""
    if x is None:
        return None
    tensor = dlfp4.asarray(np.asarray(x) if "int4" in str(x.dtype) and isinstance(x, jax.Array) else x)
    if tensor.dtype.name in SUBBYTE and not tensor.packed:
        tensor = dlfp4.pack(tensor)
    return (tensor if tensor.ndim == 0 else tensor.copy()).reshape((tensor.size,)).view("uint8").to_numpy().tobytes()


def parts(q):
    return [to_bytes(part) for part in (q.data, q.scales, q.global_scale, q.zero_points, q.biases)]


def same(q, expected):
    """Whether a ScaledArray has the bytes and the description of a ScaledTensor."""
    assert parts(q) == parts(expected)
    assert (q.shape, q.format, q.axis, q.scale_layout) == (
        expected.shape,
        expected.format,
        expected.axis,
        expected.scale_layout,
    )
    assert q.proto == dlfp4.TensorProto.of(expected)


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_gives_the_bytes_of_eager_calls(format):
    @jax.jit
    def program(x):
        q, across = dj.quantize(x, format, axis=(-1, -2))
        return q, across, dj.dequantize(q), dj.dequantize(across), dj.matmul(x[:4], q.mT), dj.vecdot(q, q)

    q, across = dlfp4.quantize(X, format, axis=(-1, -2))
    results = program(X)
    same(results[0], q)
    same(results[1], across)
    expected = [
        dlfp4.dequantize(q),
        dlfp4.dequantize(across),
        dlfp4.matmul(X[:4], q.mT),
        dlfp4.vecdot(q, q),
    ]
    for result, wanted in zip(results[2:], expected, strict=True):
        assert to_bytes(result) == to_bytes(wanted)


OPTIONS = {
    "stochastic": {"format": "mxfp4", "rounding": "stochastic", "seed": 5},
    "recipe": {"format": "nvfp4", "recipe": dlfp4.Recipe(four_over_six="mean_squared")},
    "layout": {"format": "nvfp4", "scale_layout": "128x4"},
    "padding of a layout": {"format": "mxfp8_e4m3", "scale_layout": "aiter", "recipe": "aiter"},
    "pad": {"format": "mxfp6_e2m3", "pad": True},
    "hadamard": {"format": "nvfp4", "hadamard": 3},
    "hadamard across": {"format": "nvfp4", "hadamard": 3, "axis": -2},
    "narrow scales": {"format": "fp8_128x128", "recipe": "deepseek-ue8m0"},
    "a given scale": {"format": "nvfp4", "global_scale": 0.25},
    "a given whole scale": {"format": "fp8_e4m3", "global_scale": 0.25},
    "a scale a row": {"format": "nvfp4", "recipe": dlfp4.Recipe(global_scale_per="row")},
    "given scales of rows": {"format": "nvfp4", "global_scale": np.linspace(0.1, 1, 64, dtype=np.float32)},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_give_the_bytes_of_eager_calls(name):
    options = dict(OPTIONS[name])
    scale = options.pop("global_scale", None)
    x = X[:64, :80] if options.get("pad") else X[:64]
    q = dlfp4.quantize(x, **options, global_scale=scale)
    result = jax.jit(lambda x, scale: dj.quantize(x, **options, global_scale=scale))(x, scale)
    same(result, q)
    assert to_bytes(jax.jit(dj.dequantize)(result)) == to_bytes(q.dequantize())


def test_stacks_with_a_global_scale_a_matrix():
    x = X.reshape(4, 32, 256)
    for more in ({}, {"rounding": "stochastic", "seed": 1}):
        options = {"recipe": dlfp4.Recipe(global_scale_per="matrix"), **more}
        q = dlfp4.quantize(x, "nvfp4", **options)
        same(jax.jit(lambda x, options=options: dj.quantize(x, "nvfp4", **options))(x), q)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "bfloat16", *SUBBYTE[:3]])
def test_casts(dtype):
    cast = jax.jit(lambda x: dj.cast(x, dtype))
    assert to_bytes(cast(X)) == to_bytes(dlfp4.cast(X, dtype))
    back = jax.jit(lambda x: dj.cast(x, "float32", source_dtype=dtype))(cast(X))
    assert to_bytes(back) == to_bytes(dlfp4.cast(dlfp4.cast(X, dtype), "float32"))
    stochastic = dlfp4.cast(X, dtype, rounding="stochastic", seed=7)
    assert to_bytes(dj.cast(X, dtype, rounding="stochastic", seed=7)) == to_bytes(stochastic)


@pytest.mark.parametrize("dtype", SUBBYTE[:3])
def test_packing(dtype):
    packed = dlfp4.cast(X, dtype)
    codes = dlfp4.unpack(packed).to_numpy().view(np.uint8)
    result = jax.jit(lambda codes: dj.pack(codes, dtype))(codes)
    assert to_bytes(result) == to_bytes(packed)
    assert (np.asarray(jax.jit(lambda x: dj.unpack(x, dtype))(result)) == codes).all()


@pytest.mark.parametrize("dtype", SUBBYTE)
def test_packed_bytes_that_are_constants_of_a_program(dtype):
    """Bytes of NumPy, of JAX, and made by the program."""
    octets = np.arange(192, dtype=np.uint8).reshape(2, 96)
    expected = to_bytes(dlfp4.unpack(dlfp4.asarray(octets).view(dtype)).view("uint8"))

    @jax.jit
    def program():
        made = jax.numpy.arange(192, dtype=np.uint8).reshape(2, 96)
        return [dj.unpack(x, dtype=dtype) for x in (octets, jax.numpy.asarray(octets), made)]

    assert [to_bytes(found) for found in program()] == [expected] * 3


@pytest.mark.parametrize("format", FORMATS)
def test_a_tensor_that_enters_a_program_as_a_constant(format):
    q = dlfp4.quantize(X, format)
    found = jax.jit(lambda: dj.dequantize(dj.ScaledArray.from_tensor(q)))()
    assert to_bytes(found) == to_bytes(dlfp4.dequantize(q))


def test_an_odd_number_of_fp4():
    x = X[:3, :5]
    result = jax.jit(lambda x: dj.cast(x, "float4_e2m1fn"))(x)
    assert (np.asarray(result).view(np.uint8) == dlfp4.cast(x, "float4_e2m1fn").to_numpy().view(np.uint8)).all()


def test_products_of_plain_and_quantized_operands():
    a, w = dlfp4.quantize(X[:8], "nvfp4"), dlfp4.quantize(X, "nvfp4")
    of_a, of_w = dj.ScaledArray.from_tensor(a), dj.ScaledArray.from_tensor(w)
    x, e4m3 = X[:8], dlfp4.cast(X, "float8_e4m3fn")
    stack = X[:16].reshape(2, 8, 256)
    cases = [
        (dj.matmul(of_a, of_w.mT, out_dtype="bfloat16"), dlfp4.matmul(a, w.mT, out_dtype="bfloat16")),
        (dj.matmul(x, of_w.mT, alpha=0.5, activation="int8"), dlfp4.matmul(x, w.mT, alpha=0.5, activation="int8")),
        (dj.matmul(stack, of_w.mT), dlfp4.matmul(stack, w.mT)),
        (dj.matmul(x[0], of_w.mT), dlfp4.matmul(x[0], w.mT)),
        (dj.matmul(x, e4m3.to_jax().T), dlfp4.matmul(x, e4m3.T)),
        (dj.dot(of_a.mT.mT.dequantize()[0], x[0]), dlfp4.dot(a.dequantize()[0], x[0])),
        (dj.vecdot(of_a, x[:, None]), dlfp4.vecdot(a, x[:, None])),
        (dj.vecdot(x, x, 0), dlfp4.vecdot(x, x, 0)),
    ]
    for result, expected in cases:
        assert result.shape == expected.shape
        assert to_bytes(result) == to_bytes(expected)


@pytest.mark.parametrize(
    ("of_a", "of_b", "axis"),
    [
        ((4,), (4, 7), 0),
        ((4, 7), (4,), 0),
        ((4, 1), (4,), 0),
        ((3, 4), (2, 4, 3), 1),
        ((4, 3), (4, 5, 3), 0),
        ((2, 3, 4), (3, 4), -1),
    ],
)
def test_operands_of_two_ranks_are_summed_along_an_axis_of_each(of_a, of_b, axis):
    a, b = (np.random.default_rng(0).standard_normal(shape).astype(np.float32) for shape in (of_a, of_b))
    expected = dlfp4.vecdot(a, b, axis)
    result = jax.jit(functools.partial(dj.vecdot, axis=axis))(a, b)
    assert (result.shape, to_bytes(result)) == (expected.shape, to_bytes(expected))
    found = jax.grad(lambda a, b: dj.vecdot(a, b, axis).sum(), (0, 1))(a, b)
    own = jax.grad(lambda a, b: (jax.numpy.moveaxis(a, axis, -1) * jax.numpy.moveaxis(b, axis, -1)).sum(), (0, 1))(a, b)
    for gradient, exact in zip(found, own, strict=True):
        np.testing.assert_allclose(gradient, exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("activation", ["fp8_1x128", "mxfp8", "fp8_row"])
def test_activations(activation):
    w = dlfp4.quantize(X, "fp8_128x128")
    of_w = dj.ScaledArray.from_tensor(w)
    multiply = jax.jit(lambda x, w: dj.matmul(x, w.mT, activation=activation))
    for x in (X[:8], X[0], X[:16].reshape(2, 8, 256), jax.numpy.asarray(X[:8], "bfloat16")):
        result, expected = multiply(x, of_w), dlfp4.matmul(x, w.mT, activation=activation)
        assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
        assert to_bytes(result) == to_bytes(expected)


def test_activations_round_what_is_not_quantized():
    """Also where a transform has to be undone, which would leave an array."""
    a = dlfp4.quantize(X[:4], "mxfp8_e4m3", hadamard=3)
    for lib in (dlfp4, dj):
        with pytest.raises(dlfp4.BackendError, match="a is quantized already"):
            lib.matmul(a, X[:2].T, activation="fp8_row")
        with pytest.raises(dlfp4.BackendError, match="x is quantized already"):
            lib.grouped_matmul(a, X[None, :2].mT, np.array([4], np.int32), activation="fp8_row")


def test_integers_with_zero_points_and_biases():
    zero_points, biases = RNG.integers(0, 16, (128, 8)), RNG.standard_normal((128, 8))
    plain = dlfp4.quantize(X, "uint4_g32")
    for name, values in (
        ("zero_points", zero_points.astype("uint8")),
        ("zero_points", zero_points.astype(plain.data.dtype)),
        ("biases", biases.astype("float32")),
        ("biases", biases.astype("float16")),
    ):
        q = dlfp4.ScaledTensor.from_parts(plain.data, plain.scales, format="uint4_g32", **{name: values})
        array = dj.ScaledArray.from_tensor(q)
        same(array, q)
        assert to_bytes(getattr(array.to_tensor(), name)) == to_bytes(getattr(q, name))
        assert to_bytes(jax.jit(dj.dequantize)(array)) == to_bytes(q.dequantize())
        assert to_bytes(jax.jit(dj.dequantize)(array.mT)) == to_bytes(q.mT.dequantize())
        assert to_bytes(dj.matmul(X[:4], array.mT)) == to_bytes(dlfp4.matmul(X[:4], q.mT))


def test_hadamard_transforms_cancel_or_are_undone():
    a, w = (dlfp4.quantize(x, "nvfp4", hadamard=1) for x in (X[:4], X))
    of_a, of_w = map(dj.ScaledArray.from_tensor, (a, w))
    for left, eager in ((of_a, a), (X[:4], X[:4])):
        assert to_bytes(dj.matmul(left, of_w.mT)) == to_bytes(dlfp4.matmul(eager, w.mT))


@pytest.mark.parametrize("of_b", [-1, -2])
@pytest.mark.parametrize("of_a", [-1, -2])
def test_hadamard_transforms_along_other_axes_are_undone(of_a, of_b):
    a = dlfp4.quantize(X[:32, :128], "nvfp4", axis=of_a, hadamard=1)
    b = dlfp4.quantize(X[:, :96], "nvfp4", axis=of_b, hadamard=1)
    assert to_bytes(jax.jit(dj.matmul)(a, b)) == to_bytes(dlfp4.matmul(a, b))


@pytest.mark.parametrize("name", ["nvfp4", "mxfp8_e4m3", "fp8_128x128", "fp8_row", "fp8_e4m3", "int4_g32"])
def test_blocks_across_the_sums_are_decoded(name):
    x, w = X[:8, :128], dlfp4.quantize(X[:128], name, axis=-2)
    of_w = dj.ScaledArray.from_tensor(w)
    expected = dlfp4.matmul(X[:8], w.dequantize().to_numpy().T)
    assert to_bytes(jax.jit(lambda x, w: dj.matmul(x, w.mT))(X[:8], of_w)) == to_bytes(expected)
    a = dlfp4.quantize(X[:128, :128], name, axis=-2)
    of_a = dj.ScaledArray.from_tensor(a)
    assert to_bytes(dj.matmul(of_a, of_w)) == to_bytes(dlfp4.matmul(a.dequantize().to_numpy(), w))
    found = jax.grad(lambda x: dj.matmul(x, of_w.mT).sum())(X[:8])
    np.testing.assert_allclose(found, np.broadcast_to(w.dequantize().to_numpy().sum(0), (8, 256)), rtol=1e-5, atol=1e-4)
    rows = dlfp4.quantize(X[:128], name)  # (K, N) with blocks along N, and x rounded on the way
    rounded = dlfp4.matmul(x, rows.dequantize().to_numpy(), activation="fp8_row")
    assert to_bytes(dj.matmul(x, dj.ScaledArray.from_tensor(rows), activation="fp8_row")) == to_bytes(rounded)


def test_hadamard_transforms_of_incomplete_groups_are_undone():
    a, b = (dlfp4.quantize(x, "mxfp4", hadamard=1, pad=True) for x in (X[:8, :33], X[8:16, :33]))
    assert to_bytes(jax.jit(dj.matmul)(a, b.mT)) == to_bytes(dlfp4.matmul(a, b.mT))
    assert to_bytes(jax.jit(dj.vecdot)(a, b)) == to_bytes(dlfp4.vecdot(a, b))


def test_refusals_are_those_of_eager_calls():
    cases = [
        (ValueError, lambda lib: lib.quantize(X[:, :10], "nvfp4")),
        (ValueError, lambda lib: lib.quantize(X, "nvfp44")),
        (ValueError, lambda lib: lib.quantize(X, "mxfp4", global_scale=1.0)),
        (ValueError, lambda lib: lib.quantize(X, "nvfp4", global_scale=-1.0)),
        (ValueError, lambda lib: lib.quantize(X, "fp8_e4m3", global_scale=np.ones(2, np.float32))),
        (ValueError, lambda lib: lib.quantize(X, "fp8_e5m2", global_scale=np.ones(0, np.float32))),
        (ValueError, lambda lib: lib.quantize(X, "mxfp4", seed=1)),
        (TypeError, lambda lib: lib.quantize(X.view(np.int32), "mxfp4")),
        (TypeError, lambda lib: lib.cast(X.view(np.int32), "float8_e4m3fn")),
        (ValueError, lambda lib: lib.matmul(X, X)),
        (ValueError, lambda lib: lib.matmul(X, X.T, activation="fp8")),
        (ValueError, lambda lib: lib.matmul(X[:, :40], X[:, :40].T, activation="mxfp8")),
        (TypeError, lambda lib: lib.matmul(X.view(np.int32), X.T, activation="fp8_row")),
        (dlfp4.BackendError, lambda lib: lib.matmul(lib.quantize(X, "fp8_row"), X.T, activation="fp8_row")),
        (dlfp4.BackendError, lambda lib: lib.matmul(X, X.view(np.int32).T)),
        (TypeError, lambda lib: lib.vecdot(X, X.view(np.int32))),
        (ValueError, lambda lib: lib.vecdot(X, X[:, :1])),
        (ValueError, lambda lib: lib.vecdot(X, X, 2)),
        (ValueError, lambda lib: lib.vecdot(X, X[0], -2)),
        (ValueError, lambda lib: lib.vecdot(X[0], np.zeros((), np.float32))),
        (TypeError, lambda lib: lib.vecdot(X, X, None)),
    ]
    for error, case in cases:
        with pytest.raises(error) as eager:
            case(dlfp4)
        with pytest.raises(error) as traced:
            jax.eval_shape(lambda case=case: case(dj))
        assert str(eager.value).startswith(str(traced.value))  # no other backends can help inside a program


@pytest.mark.parametrize("recipe", [-1, 2.5, ("modelopt",)])
def test_a_recipe_that_is_none(recipe):
    with pytest.raises(TypeError, match=r"recipe=.* is of type .*; expected a name, or a dlfp4\.Recipe"):
        dj.quantize(X, "nvfp4", recipe=recipe)


def test_subnormal_numbers_in_a_program():
    """XLA has the processor take them for zeros."""
    scale, x = 5e-39, X * np.float32(1e-38)
    program = jax.jit(lambda x, scale: dj.quantize(x, "nvfp4", global_scale=scale))
    same(program(x, np.float32(scale)), dlfp4.quantize(x, "nvfp4", global_scale=scale))
    large = X * np.float32(1e17)
    found = jax.jit(lambda a: dj.matmul(a, a.T, alpha=1e-40))(large)
    assert to_bytes(found) == to_bytes(dlfp4.matmul(large, large.T, alpha=1e-40))


def test_a_number_that_float32_does_not_hold_is_no_scale():
    with pytest.raises(ValueError, match=r"global_scale=1e\+300: a decode scale is a positive, finite float32"):
        dj.quantize(X, "nvfp4", global_scale=1e300)


def test_types_that_jax_was_not_told_to_have():
    with pytest.raises(TypeError, match="dtype=float64: JAX has types of 64 bits only with jax_enable_x64"):
        dj.cast(X, "float64")
    with pytest.raises(TypeError, match="x has dtype uint8, which is not float32; bytes can only be those of a type"):
        dj.unpack(np.zeros(4, np.uint8), "float32")


@pytest.mark.parametrize(
    ("dtype", "named", "words"),
    [
        (
            "float4_e2m1fn",
            "float4_e2m1fn",
            "expected uint8, a code of float4_e2m1fn in each byte; its elements are packed",
        ),
        ("float32", "float4_e2m1fn", "x has dtype float32; expected uint8, a code of float4_e2m1fn in each byte$"),
        ("float32", "float32", "float32 fills its bytes; pack takes types below 8 bits"),
    ],
)
def test_pack_says_what_it_takes(dtype, named, words):
    with pytest.raises(TypeError, match=words):
        dj.pack(jax.numpy.zeros((4, 8), dtype), named)


@pytest.mark.parametrize("wrong", [np.ones(3), 1, dj.quantize(X, "mxfp4")])
def test_from_tensor_takes_dlfp4s_own(wrong):
    with pytest.raises(TypeError, match=f"q is of type {type(wrong).__name__}; expected a dlfp4.ScaledTensor"):
        dj.ScaledArray.from_tensor(wrong)


def test_a_traced_scale_that_is_none_ends_the_program():
    program = jax.jit(lambda x, scale: dj.quantize(x, "nvfp4", global_scale=scale))
    with pytest.raises(jax.errors.JaxRuntimeError, match="global_scale: a decode scale is a positive, finite float32"):
        jax.block_until_ready(program(X, -1.0))
    jax.block_until_ready(program(X, 1.0))
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="global_scale: a decode scale is a positive"):
        jax.block_until_ready(program(X, -1.0))


WRONG = {"an array": np.array(["a", "b"]), "a list": ["a"], "an array of JAX": jax.numpy.ones(2), "an object": object()}
TAKEN_BY = {
    **TAKING,
    "saturate": lambda lib, x, w, wrong: lib.cast(x, "float8_e4m3fn", saturate=wrong),
    "pad": lambda lib, x, w, wrong: lib.quantize(x, "nvfp4", pad=wrong),
}


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("option", TAKEN_BY)
def test_objects_that_are_no_options(option, what):
    """They are refused in the words of dlfp4's own functions."""
    call, wrong, x = TAKEN_BY[option], WRONG[what], jax.numpy.ones((2, 64))
    w = dlfp4.quantize(np.ones((2, 64), np.float32), "nvfp4")
    refused_alike(call, dj, x, w, dj.ScaledArray.from_tensor(w), wrong)
    for name in ("rounding", "seed"):
        with pytest.raises((TypeError, ValueError), match=f"{name}=.*expected"):
            dj.quantize(x, "nvfp4", **{"rounding": "stochastic", name: wrong})


@pytest.mark.parametrize("wrong", [None, 1, "no"])
def test_straight_through_is_true_or_false(wrong):
    with pytest.raises(TypeError, match=f"straight_through={wrong!r} is of type .*expected True or False"):
        dj.quantize(jax.numpy.ones((2, 32)), "mxfp4", straight_through=wrong)
