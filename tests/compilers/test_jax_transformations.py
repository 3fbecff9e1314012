"""dlfp4.jax under JAX's transformations, and ScaledArray as a pytree."""

import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest

import dlfp4

jax = pytest.importorskip("jax")
from jax import numpy as jnp  # noqa: E402

from dlfp4 import jax as dj  # noqa: E402
from dlfp4.jax import exporting  # noqa: E402

from .test_jax import X, parts, same, to_bytes  # noqa: E402

W = X[:64]


def count_calls(function, *arguments):
    """How many custom calls of ours a program has."""
    return jax.jit(function).lower(*arguments).as_text().count("stablehlo.custom_call @dlfp4_")


# ---- vmap


@pytest.mark.parametrize(
    "format", ["nvfp4", "nvfp4_16x16", "mxfp4", "mxfp6_e2m3", "fp8_e4m3", "fp8_128x128", "fp8_row"]
)
def test_vmap_is_one_call(format):
    stack = X.reshape(4, 32, 256)
    for axis in (-1, -2):
        quantize = jax.vmap(lambda x, axis=axis: dj.quantize(x, format, axis=axis))
        assert count_calls(quantize, stack) == 1
        q = quantize(stack)
        assert q.shape == (4, 32, 256)
        values = jax.vmap(dj.dequantize)(q)
        assert count_calls(jax.vmap(dj.dequantize), q) == 1
        for number, x in enumerate(stack):
            one = dlfp4.quantize(x, format, axis=axis)
            same(jax.tree.map(lambda leaf, number=number: leaf[number], q), one)
            assert to_bytes(values[number]) == to_bytes(one.dequantize())


def test_vmap_of_what_chance_rounds_is_that_of_each():
    stack = X.reshape(4, 32, 256)
    q = jax.vmap(lambda x: dj.quantize(x, "mxfp4", rounding="stochastic", seed=1))(stack)
    casts = jax.vmap(lambda x: dj.cast(x, "float4_e2m1fn", rounding="stochastic", seed=1))(stack)
    for number, x in enumerate(stack):
        one = dlfp4.quantize(x, "mxfp4", rounding="stochastic", seed=1)
        same(jax.tree.map(lambda leaf, number=number: leaf[number], q), one)
        assert to_bytes(casts[number]) == to_bytes(dlfp4.cast(x, "float4_e2m1fn", rounding="stochastic", seed=1))


def test_vmap_of_products():
    x, w = X.reshape(8, 16, 256), dlfp4.quantize(W, "nvfp4")
    of_w = dj.ScaledArray.from_tensor(w)
    batched = jax.vmap(lambda x: dj.matmul(x, of_w.mT))
    assert count_calls(batched, x) == 1
    assert to_bytes(batched(x)) == to_bytes(dlfp4.matmul(x, w.mT))
    for activation in ("fp8_1x128", "mxfp8", "fp8_row"):
        rounded = jax.vmap(lambda x, activation=activation: dj.matmul(x, of_w.mT, activation=activation))
        assert count_calls(rounded, x) == 2  # which quantize, and multiply
        assert to_bytes(rounded(x)) == to_bytes(dlfp4.matmul(x, w.mT, activation=activation))
    experts = [dlfp4.quantize(part, "nvfp4") for part in X.reshape(8, 16, 256)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(dj.ScaledArray.from_tensor, experts))
    multiply = jax.vmap(lambda x, w: dj.matmul(x, w.mT))
    assert count_calls(multiply, x, stacked) == 1
    for result, rows, expert in zip(multiply(x, stacked), x, experts, strict=True):
        assert to_bytes(result) == to_bytes(dlfp4.matmul(rows, expert.mT))
    of_pairs = jax.vmap(jax.vmap(dj.dot))(x, x)
    assert of_pairs.shape == (8, 16)
    assert to_bytes(of_pairs) == to_bytes(dlfp4.vecdot(x, x))
    with pytest.raises(ValueError, match=r"is a stack of tensors of shape \(16, 256\)"):
        dj.matmul(x[0], stacked)


def test_a_batch_that_does_not_fill_bytes_is_refused():
    x = dj.cast(X[:6, :5].reshape(2, 3, 5), "float4_e2m1fn")
    assert to_bytes(jax.vmap(lambda x: dj.cast(x, "float32"))(x)) == to_bytes(dlfp4.cast(x, "float32"))
    with pytest.raises(ValueError, match="do not fill bytes"):
        jax.vmap(lambda x: dj.vecdot(x, x))(x)


def test_vmap_in_vmap():
    x = X.reshape(2, 4, 16, 256)
    scales = np.float32([[0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8]])
    q = jax.vmap(jax.vmap(lambda x, g: dj.quantize(x, "nvfp4", global_scale=g)), in_axes=(0, 0))(x, scales)
    inner = jax.vmap(
        jax.vmap(lambda x, g: dj.quantize(x, "nvfp4", global_scale=g), in_axes=(0, None)), in_axes=(None, 0)
    )
    shared = inner(x[0], scales[:, 1])
    for i in range(2):
        for j in range(4):
            one = dlfp4.quantize(x[i, j], "nvfp4", global_scale=scales[i, j])
            same(jax.tree.map(lambda leaf, i=i, j=j: leaf[i, j], q), one)
            one = dlfp4.quantize(x[0, j], "nvfp4", global_scale=scales[i, 1])
            same(jax.tree.map(lambda leaf, i=i, j=j: leaf[i, j], shared), one)


# ---- Derivatives


def test_derivatives_go_straight_through():
    weights = np.random.default_rng(1).standard_normal(W.shape).astype(np.float32)

    def through(x, format="nvfp4"):
        return (dj.quantize(x, format, straight_through=True).dequantize() * weights).sum()

    for gradient in (jax.grad(through), jax.jit(jax.grad(through)), jax.grad(jax.jit(through))):
        assert (gradient(W) == weights).all()
    values, tangent = jax.jvp(
        lambda x: dj.quantize(x, "mxfp4", straight_through=True).mT.dequantize(), (W,), (weights,)
    )
    assert to_bytes(values) == to_bytes(dlfp4.quantize(W, "mxfp4").dequantize().mT)
    assert (tangent == weights.T).all()
    assert (jax.grad(lambda x: (dj.cast(x, "bfloat16").astype("float32") * 2).sum())(W) == 2).all()
    with pytest.raises(TypeError, match="straight_through=True"):
        jax.grad(lambda x: dj.quantize(x, "nvfp4").dequantize().sum())(W)
    assert dj.quantize(W, "nvfp4").source is None


def test_second_derivatives():
    """Those of a square, also where both operands are differentiated: not of a result that counts as a constant."""
    x, w = jnp.asarray(X[:2, :64]), dj.quantize(W[:, :64], "mxfp4")
    values = dj.dequantize(w.mT)
    cases = [
        (lambda x: dj.matmul(x, w.mT), lambda x: x @ values),
        (lambda x: dj.matmul(x, x.T), lambda x: x @ x.T),
        (lambda x: dj.vecdot(x, x), lambda x: (x * x).sum(-1)),
        (lambda x: dj.cast(x, "float32"), lambda x: x),
        (lambda x: dj.quantize(x, "mxfp8_e4m3", straight_through=True).dequantize(), None),
    ]
    for ours, theirs in cases:
        found = [None if f is None else jax.hessian(lambda x, f=f: (f(x) ** 2).sum())(x) for f in (ours, theirs)]
        expected = 2 * np.eye(x.size).reshape(found[0].shape) if theirs is None else found[1]
        np.testing.assert_allclose(found[0], expected, rtol=1e-4, atol=1e-2)


def test_the_gradient_of_a_product_is_that_of_the_decoded_weight():
    w = dlfp4.quantize(W, "nvfp4")
    of_w, decoded, x = dj.ScaledArray.from_tensor(w), w.dequantize().to_numpy(), X[:4]
    outer = np.random.default_rng(2).standard_normal((4, 64)).astype(np.float32)
    gradient = jax.jit(jax.grad(lambda x: (dj.matmul(x, of_w.mT, alpha=0.5) * outer).sum()))(x)
    np.testing.assert_allclose(gradient, 0.5 * outer @ decoded, rtol=1e-5, atol=1e-5)

    def trained(w, x):
        return (dj.matmul(x, dj.quantize(w, "nvfp4", straight_through=True).mT) * outer).sum()

    of_weight, of_x = jax.grad(trained, argnums=(0, 1))(jnp.asarray(W), jnp.asarray(x))
    np.testing.assert_allclose(of_weight, outer.T @ x, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(of_x, outer @ decoded, rtol=1e-5, atol=1e-5)
    sums = jax.grad(lambda x: dj.vecdot(x, of_w.dequantize()[:4]).sum())(jnp.asarray(x))
    np.testing.assert_allclose(sums, decoded[:4])
    frozen = jax.grad(lambda q: dj.matmul(x, q.mT).sum(), allow_int=True)(of_w)
    assert all((np.asarray(leaf).astype(np.float32) == 0).all() for leaf in jax.tree.leaves(frozen))


def test_gradients_in_vmap_and_scan():
    w = jnp.asarray(X.reshape(4, 32, 256)[:, :, :32])

    def layers(x, w):
        q = jax.vmap(lambda w: dj.quantize(w, "mxfp4", straight_through=True))(w)
        return jax.lax.scan(lambda x, q: (dj.matmul(x, q.mT), None), x, q)[0].sum()

    gradient = jax.jit(jax.grad(layers, argnums=1))(jnp.asarray(X[:2, :32]), w)
    assert gradient.shape == w.shape
    assert np.isfinite(gradient).all()


def test_a_scan_over_layers():
    layers = [dlfp4.quantize(part[:, :32], "mxfp4") for part in X.reshape(4, 32, 256)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(dj.ScaledArray.from_tensor, layers))
    result, _ = jax.jit(lambda x, w: jax.lax.scan(lambda x, w: (dj.matmul(x, w.mT), None), x, w))(X[:2, :32], stacked)
    expected = X[:2, :32]
    for layer in layers:
        expected = dlfp4.matmul(expected, layer.mT)
    assert to_bytes(result) == to_bytes(expected)


# ---- Programs


def test_shapes_without_a_program():
    q = jax.eval_shape(lambda x: dj.quantize(x, "nvfp4"), jax.ShapeDtypeStruct((8, 64), "bfloat16"))
    assert isinstance(q, dj.ScaledArray)
    assert [(leaf.shape, leaf.dtype.name) for leaf in jax.tree.leaves(q)] == [
        ((8, 64), "float4_e2m1fn"),
        ((8, 4), "float8_e4m3fn"),
        ((), "float32"),
    ]
    assert q.proto == dlfp4.TensorProto((8, 64), format="nvfp4")


def test_compiled_ahead_donated_and_exported():
    q = dlfp4.quantize(X, "nvfp4")
    step = jax.jit(lambda x: dj.quantize(x, "nvfp4"), donate_argnums=0)
    program = step.lower(jax.ShapeDtypeStruct(X.shape, X.dtype)).compile()
    for function in (program, step):
        given = jnp.array(X)
        same(function(given), q)
    back = jax.jit(lambda x: dj.dequantize(dj.quantize(x, "mxfp8_e4m3")), donate_argnums=0)
    given = jnp.array(X)
    assert to_bytes(back(given)) == to_bytes(dlfp4.quantize(X, "mxfp8_e4m3").dequantize())
    assert given.is_deleted()
    checks = [jax.export.DisabledSafetyCheck.custom_call(f"dlfp4_{name}") for name in ("quantize", "dequantize")]
    stored = jax.export.export(back, disabled_checks=checks)(X).serialize()
    assert to_bytes(jax.export.deserialize(stored).call(X)) == to_bytes(dlfp4.quantize(X, "mxfp8_e4m3").dequantize())


@pytest.mark.parametrize("format", ["nvfp4", "mxfp8_e4m3", "int4_g32", "uint4_g32"])
def test_programs_compiled_ahead_take_tensors_of_dlfp4(format):
    q = dlfp4.quantize(X, format)
    array = dj.ScaledArray.from_tensor(q)
    program = jax.jit(lambda x, w: dj.matmul(x, w.mT)).lower(X[:4], array).compile()
    assert to_bytes(program(X[:4], array)) == to_bytes(dlfp4.matmul(X[:4], q.mT))


def exported(function, *arguments):
    """A program through its stored form."""
    calls = ("quantize", "dequantize", "convert", "vecdot", "matmul", "grouped_matmul")
    checks = [jax.export.DisabledSafetyCheck.custom_call(f"dlfp4_{name}") for name in calls]
    return jax.export.deserialize(jax.export.export(jax.jit(function), disabled_checks=checks)(*arguments).serialize())


@pytest.mark.parametrize(
    ("format", "options"),
    [
        ("nvfp4", {}),
        ("nvfp4", {"hadamard": 3, "scale_layout": "128x4"}),
        ("mxfp6_e2m3", {"axis": -2}),
        ("fp8_128x128", {"recipe": dlfp4.Recipe(scale_dtype="bfloat16")}),
    ],
)
def test_stored_programs_take_and_give_scaled_arrays(format, options):
    q = dj.quantize(X, format, **options)
    for given in (q, q.mT):
        values = exported(lambda named: named["q"].dequantize(), {"q": given}).call({"q": given})
        assert to_bytes(values) == to_bytes(given.dequantize())
    made = exported(lambda x: (dj.quantize(x, format, **options), None), X).call(X)[0]
    assert jax.tree.structure(made) == jax.tree.structure(q)
    same(made, q.to_tensor())


def test_stored_programs_of_scaled_tensors_take_scaled_arrays():
    q = dlfp4.quantize(W, "uint4_g64")  # with zero points, whose type is part of what it is
    program = exported(lambda q: q.zero_points, q)
    array = dj.ScaledArray.from_tensor(q)
    assert to_bytes(program.call(array)) == to_bytes(q.zero_points)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("}", "", "is not JSON"),
        ("{", "[{", "is not JSON"),
        ('"version": 1', '"version": 2', "has version 2; this dlfp4 reads version 1"),
        ('"version": 1, ', "", "has version None"),
        ('"format"', '"farmat"', r"is damaged: \['format', 'farmat'\] absent or unknown"),
        ('"nvfp4"', '"nvfp4", "dtype": "float32"', r"is damaged: \['dtype'\] absent or unknown"),
        ("false", "0", "is damaged: .*is_transposed 0"),
        ("[64, 256]", "64", "is damaged: shape 64"),
        ("[64, 256]", '["64"]', "is damaged: .*expected an integer"),
        ("[64, 256]", "[64, 255]", "is damaged: .*255"),
        ("nvfp4", "nvfp5", "is damaged: .*nvfp5"),
        ('"nvfp4"', "null", "is damaged: .*give either of them"),
        ('"nvfp4"', '"nvfp4", "hadamard": [2]', "is damaged: hadamard"),
        ('"nvfp4"', '"nvfp4", "zero_points": {}', "is damaged: .*zero_points"),
    ],
)
def test_damaged_structures_of_stored_programs_are_refused(old, new, message):
    structure = jax.tree.structure(dj.quantize(W, "nvfp4")).node_data()[1]
    text = exporting.text_of(structure)
    assert exporting.structure_of(text) == structure
    damaged = text.replace(old.encode(), new.encode())
    assert damaged != text
    with pytest.raises(ValueError, match=f"^the text of a ScaledArray in this exported program {message}"):
        exporting.structure_of(damaged)


@pytest.mark.parametrize("format", ["nvfp4", "mxfp6_e3m2", "mxfp8_e4m3", "int4_g32"])
@pytest.mark.parametrize("taken", [lambda q: q, jax.device_get], ids=["jax", "numpy"])
def test_functions_of_the_library_take_scaled_arrays(format, taken):
    q = dlfp4.quantize(W, format)
    array = taken(dj.ScaledArray.from_tensor(q))
    for given, expected in ((array, q), (array.mT, q.mT)):
        assert parts(dlfp4.asarray(given)) == parts(expected)
        assert dlfp4.TensorProto.of(given) == dlfp4.TensorProto.of(expected)
        assert to_bytes(dlfp4.dequantize(given)) == to_bytes(expected.dequantize())
    assert to_bytes(dlfp4.matmul(X, array.mT)) == to_bytes(dlfp4.matmul(X, q.mT))
    assert dlfp4.asarray(array, copy=True).scales.data_ptr != dlfp4.asarray(array).scales.data_ptr
    if format == "int4_g32" or (format == "nvfp4" and isinstance(array.data, np.ndarray)):
        with pytest.raises(BufferError, match=f"^{array.data.dtype} of ScaledArray.* which copy=False forbids"):
            dlfp4.asarray(array, copy=False)
    else:
        shared = dlfp4.asarray(array, copy=False)
        assert shared.data.data_ptr == dlfp4.asarray(array.data).data_ptr


def test_scaled_arrays_are_no_arrays():
    q = dj.quantize(W, "nvfp4")
    for use in (np.asarray, jnp.asarray, np.zeros_like, lambda q: np.add(q, 1), lambda q: W @ q.mT):
        with pytest.raises(TypeError, match=r"^ScaledArray\(.* is not an array: .*\.dequantize\(\) gives its values"):
            use(q)


@pytest.mark.parametrize("form", ["whole", "transposed", "traced"])
def test_what_is_like_a_scaled_array_needs_a_type(form):
    def check(q):
        given = q.mT if form == "transposed" else q
        for make in (jnp.zeros_like, jnp.ones_like, jnp.empty_like, jax.lax.full_like, jnp.full_like):
            fill = (2.0,) if "full" in make.__name__ else ()
            with pytest.raises(TypeError, match=r"^ScaledArray\(.* is not an array: .* its kind need a dtype"):
                make(given, *fill)
            made = make(given, *fill, dtype="float32")
            assert (made.shape, made.dtype) == (given.shape, jnp.float32)
        return jax.tree.map(jnp.zeros_like, given)

    q = dj.quantize(W, "nvfp4")
    anew = (jax.jit(check) if form == "traced" else check)(q)
    assert anew.format == "nvfp4"
    assert not anew.dequantize().any()


def test_scaled_arrays_are_several_arrays():
    q = dj.quantize(W, "nvfp4")
    for function in (lambda x: dlfp4.quantize(x, "mxfp4"), lambda x: dlfp4.cast(x, "float32"), dlfp4.pack):
        with pytest.raises(
            TypeError, match=r"a ScaledArray is several tensors: take one of its parts, or \.dequantize"
        ):
            function(q)


def test_symbolic_dimensions_are_refused():
    (rows,) = jax.export.symbolic_shape("rows")
    w = dj.quantize(X.reshape(4, 32, 256), "mxfp4")
    x = jax.ShapeDtypeStruct((rows, 256), np.float32)
    q = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((rows, leaf.shape[1]), leaf.dtype), dj.quantize(W, "mxfp4"))
    for function, argument in (
        (lambda x: dj.quantize(x, "nvfp4"), x),
        (lambda x: dj.cast(x, "float8_e4m3fn"), x),
        (lambda x: dj.vecdot(x, x), x),
        (lambda x: dj.matmul(x, dj.quantize(W, "nvfp4").mT), x),
        (lambda x: dj.grouped_matmul(x, w.mT, jnp.arange(4, dtype=np.int32)), x),
        (dj.dequantize, q),
        (lambda q: dj.matmul(X, q.mT), q),
        (jax.vmap(lambda x: dj.quantize(x, "mxfp4")), x),
        (jax.vmap(lambda x: dj.quantize(x, "nvfp4")), x),
    ):
        with pytest.raises(TypeError, match=r"^an array of shape \(.*rows.*export a program for each shape"):
            exported(function, argument)


def test_lowered_for_cuda_from_a_host_without():
    w = dj.quantize(W, "nvfp4")
    names = ("quantize", "dequantize", "convert", "vecdot")
    checks = [jax.export.DisabledSafetyCheck.custom_call(f"dlfp4_{name}") for name in names]

    def program(x):
        q = dj.quantize(x, "mxfp8_e4m3")
        return dj.matmul(x, w.mT), dj.matmul(q, w.mT), dj.cast(x, "float4_e2m1fn"), dj.vecdot(x, x)

    def experts(x):
        return dj.matmul(x[:4], dj.quantize(x, "nvfp4", global_scale=1.0).mT), *program(x)

    for function in (program, jax.vmap(program), jax.vmap(experts)):
        x = X[:8].reshape(2, 4, 256) if function is not program else X[:8]
        text = jax.export.export(jax.jit(function), platforms=["cuda"], disabled_checks=checks)(x).mlir_module()
        assert all(f"@dlfp4_{name}" in text for name in names)
        assert "dot_general" in text
        assert "@dlfp4_matmul" not in text


def test_a_stored_program_of_another_build_is_refused():
    plan = np.zeros(8, np.int64)
    program = jax.ffi.ffi_call("dlfp4_dequantize", jax.ShapeDtypeStruct((2,), np.float32))
    with pytest.raises(jax.errors.JaxRuntimeError, match="traced with another version of dlfp4"):
        program(np.zeros(2, np.float32), plan=plan)


def test_threads_do_not_change_a_program(threads):
    program = jax.jit(lambda x: dj.quantize(x, "nvfp4"))
    big = np.tile(X, (8, 8))
    results = []
    for count in (1, 2):
        threads(count)
        results.append(parts(program(big)))
    assert results[0] == results[1] == parts(dlfp4.quantize(big, "nvfp4"))


# ---- The pytree


class State(NamedTuple):  # as optax has them
    count: jax.Array
    moments: dict[str, dj.ScaledArray]


def test_a_pytree_with_names():
    q = dj.quantize(X, "nvfp4")
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path({"w": q})]
    assert names == ["['w'].data", "['w'].scales", "['w'].global_scale"]
    leaves, structure = jax.tree.flatten(q)
    assert structure == jax.tree.structure(dj.quantize(2 * X, "nvfp4"))
    assert structure != jax.tree.structure(dj.quantize(X, "mxfp4"))
    same(jax.tree.unflatten(structure, leaves), dlfp4.quantize(X, "nvfp4"))
    same(jax.device_put(q, jax.devices()[0]), dlfp4.quantize(X, "nvfp4"))
    assert "format='nvfp4'" in repr(jax.tree.unflatten(structure, [None, object(), 1]))
    assert (q.dtype, q.ndim, q.size, q.nbytes) == (
        dlfp4.formats()["nvfp4"].element,
        2,
        X.size,
        dlfp4.quantize(X, "nvfp4").nbytes,
    )
    assert (q.mT.shape, q.mT.axis, q.hadamard) == ((256, 128), -2, None)
    with pytest.raises(ValueError, match="needs two dimensions"):
        _ = dj.quantize(X[0], "nvfp4").mT


def test_an_optimizer_with_a_quantized_state():
    @jax.jit
    def update(gradient, state):
        moments = jax.tree.map(dj.dequantize, state.moments, is_leaf=lambda x: isinstance(x, dj.ScaledArray))
        moments = {"w": 0.9 * moments["w"] + 0.1 * gradient}
        return State(state.count + 1, {"w": dj.quantize(moments["w"], "mxfp8_e4m3")})

    state = State(jnp.zeros((), int), {"w": dj.quantize(jnp.zeros(X.shape), "mxfp8_e4m3")})
    for _ in range(2):
        state = update(jnp.asarray(X), state)
    first = dlfp4.quantize(0.1 * X, "mxfp8_e4m3").dequantize().to_numpy()
    np.testing.assert_allclose(state.moments["w"].dequantize(), 0.9 * first + 0.1 * X, rtol=0.13, atol=1e-3)


@pytest.mark.parametrize("format", ["nvfp4", "mxfp6_e2m3", "mxfp8_e4m3", "fp8_row"])
@pytest.mark.parametrize("axis", [-1, -2])
def test_to_and_from_scaled_tensors(format, axis):
    q = dlfp4.quantize(X, format, axis=axis)
    array = dj.ScaledArray.from_tensor(q)
    same(array, q)
    for there in (array.to_tensor(), array.mT.mT.to_tensor()):
        assert parts(there) == parts(q)
    assert parts(array.mT.to_tensor()) == parts(q.mT)
    assert array.scales.unsafe_buffer_pointer() == q.scales.data_ptr
    assert array.to_tensor().scales.data_ptr == q.scales.data_ptr
    if format != "nvfp4":  # JAX imports FP4 by a copy alone
        assert array.data.unsafe_buffer_pointer() == q.data.data_ptr
    assert array.to_tensor().data.data_ptr == array.data.unsafe_buffer_pointer()


@pytest.mark.parametrize("format", ["nvfp4", "mxfp6_e2m3", "mxfp8_32x32", "fp8_128x128", "fp8_row"])
def test_leaves_cut_between_blocks_are_a_tensor(format):
    q = dj.quantize(np.concatenate([X, -X]), format)
    values = dj.dequantize(q)
    top = jax.tree.map(lambda part: part[: len(part) // 2] if part.ndim else part, q)
    left = jax.tree.map(lambda part: part[:, : -(-part.shape[1] // 2)] if part.ndim else part, q)
    assert (top.shape, left.shape) == ((128, 256), (256, 128))
    assert to_bytes(dj.dequantize(top)) == to_bytes(values[:128])
    assert to_bytes(dj.dequantize(left)) == to_bytes(values[:, :128])
    assert to_bytes(dj.matmul(X[:3], top.mT)) == to_bytes(dj.matmul(X[:3], q.mT)[:, :128])
    assert jax.tree.structure(top) == jax.tree.structure(q)


def test_leaves_that_make_no_tensor_are_refused():
    """Rather than read as the tensor that their structure names."""
    q = dj.quantize(X, "mxfp4")
    wrong = jax.tree.unflatten(jax.tree.structure(q), [q.data[:8], q.scales[:16]])
    columns = jax.tree.map(lambda part: part[:8], dj.quantize(X, "mxfp4", axis=-2))
    for each in (wrong, columns):
        for use in (dj.dequantize, lambda w: dj.matmul(X, w.mT), lambda w: w.to_tensor()):
            with pytest.raises(ValueError, match="take whole blocks with their scales"):
                use(each)


def test_scaled_tensors_are_pytrees():
    q = dlfp4.quantize(X, "nvfp4")
    assert [leaf.dtype.name for leaf in jax.tree.leaves(q)] == ["float4_e2m1fn", "float8_e4m3fn", "float32"]
    assert isinstance(jax.tree.map(lambda leaf: leaf, q), dlfp4.ScaledTensor)
    assert parts(jax.device_put(q)) == parts(q)
    assert to_bytes(jax.jit(lambda x, w: dj.matmul(x, w.mT))(X[:4], q)) == to_bytes(dlfp4.matmul(X[:4], q.mT))
    assert isinstance(jax.jit(lambda q: q)(q), dj.ScaledArray | dlfp4.ScaledTensor)


def test_orbax_saves_and_restores(tmp_path):
    orbax = pytest.importorskip("orbax.checkpoint")
    state = {"w": dj.quantize(X, "nvfp4"), "v": dj.quantize(X, "mxfp6_e2m3").mT}
    with orbax.StandardCheckpointer() as saver:
        saver.save(tmp_path / "state", state)
        saver.wait_until_finished()
        restored = saver.restore(tmp_path / "state", jax.tree.map(jnp.zeros_like, state))
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    assert {name: parts(q) for name, q in restored.items()} == {name: parts(q) for name, q in state.items()}


def test_importing_dlfp4_imports_no_jax():
    code = "import sys, dlfp4; assert 'jax' not in sys.modules; dlfp4.jax.cast; assert 'jax' in sys.modules"
    subprocess.run([sys.executable, "-P", "-c", code], check=True, timeout=120)
