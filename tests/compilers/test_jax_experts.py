"""grouped_matmul inside JAX programs: the bytes of eager calls, transformations, what ends a program."""

import importlib
import itertools

import numpy as np
import pytest

import dlfp4

from ..support.capsules import framework

jax = framework("jax")
jnp = jax.numpy
dj = importlib.import_module("dlfp4.jax")
primitives = importlib.import_module("dlfp4.jax.primitives")

RNG = np.random.default_rng(0)
EXPERTS, N, K, TOKENS, ROUTED = 3, 32, 64, 6, 10
STACK = RNG.standard_normal((EXPERTS, N, K)).astype(np.float32)
X, ROWS = (RNG.standard_normal((count, K)).astype(np.float32) for count in (TOKENS, ROUTED))
SIZES, ENDS = np.array([4, 0, 5]), np.array([4, 4, 9])  # the last row belongs to none
INDICES = np.array([5, 0, 1, 1, 2, 3, 5, 0, 2, 2**30])
WEIGHTS = np.linspace(-1, 2, ROUTED, dtype=np.float32)
SUMS = {"indices": INDICES, "weights": WEIGHTS}
CALLS = {"rows": {}, "gathered": {"indices": INDICES}, "sums": SUMS, "sums of rows": {**SUMS, "tokens": TOKENS}}


def operand(name):
    return ROWS if name in ("rows", "sums of rows") else X


def as_eager(result, expected):
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    assert np.asarray(result).tobytes() == expected.to_numpy().tobytes()


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("format", ["nvfp4", "mxfp4", "mxfp6_e2m3", "mxfp8_e4m3", "fp8_row", "int4_g32"])
def test_bytes_of_eager_calls(format, name):
    q = dlfp4.quantize(STACK, format)
    w = dj.ScaledArray.from_tensor(q)
    x, options = operand(name), CALLS[name]
    expected = dlfp4.grouped_matmul(x, q.mT, ENDS, **options)
    as_eager(dj.grouped_matmul(x, w.mT, SIZES, **options), expected)
    arrays = {key: value for key, value in options.items() if key != "tokens"}
    rest = {key: value for key, value in options.items() if key == "tokens"}
    compiled = jax.jit(lambda x, w, sizes, arrays: dj.grouped_matmul(x, w.mT, sizes, **arrays, **rest))
    as_eager(compiled(x, w, SIZES, arrays), expected)
    as_eager(compiled(x, q, SIZES, arrays), expected)


ACTIVATIONS = [{"activation": name} for name in ("int8", "fp8_1x128", "mxfp8", "fp8_row")]


def test_options_and_quantized_rows():
    q = dlfp4.quantize(STACK, "nvfp4", recipe=dlfp4.Recipe(global_scale_per="matrix"))
    w, rows = dj.ScaledArray.from_tensor(q), dlfp4.quantize(ROWS, "nvfp4")
    for options in ({"alpha": 0.5}, {"out_dtype": "bfloat16"}, *ACTIVATIONS):
        as_eager(dj.grouped_matmul(ROWS, w.mT, SIZES, **options), dlfp4.grouped_matmul(ROWS, q.mT, ENDS, **options))
    as_eager(dj.grouped_matmul(dj.ScaledArray.from_tensor(rows), w.mT, SIZES), dlfp4.grouped_matmul(rows, q.mT, ENDS))
    as_eager(dj.grouped_matmul(ROWS, jnp.asarray(STACK.mT), SIZES),
             dlfp4.grouped_matmul(ROWS, np.ascontiguousarray(STACK.mT), ENDS))  # fmt: skip


def test_transposed_stacks():
    w = dj.quantize(STACK, "mxfp4")
    assert w.mT.shape == (EXPERTS, K, N)
    assert w.mT.axis == -2
    assert (dj.dequantize(w.mT) == dj.dequantize(w).mT).all()
    assert w.mT.to_tensor().shape == (EXPERTS, K, N)
    assert w.mT.mT.to_tensor().shape == w.shape
    with pytest.raises(ValueError, match="may cross"):
        _ = dj.quantize(STACK, "mxfp4", axis=-2).mT
    with pytest.raises(ValueError, match="only grouped_matmul multiplies"):
        dj.vecdot(w.mT, w.mT)


def test_stacks_that_dlfp4_transposed():
    q = dlfp4.quantize(STACK, "nvfp4")
    w = dj.ScaledArray.from_tensor(q.mT)
    assert (w.shape, w.axis) == (q.mT.shape, -2)
    as_eager(dj.grouped_matmul(ROWS, w, SIZES), dlfp4.grouped_matmul(ROWS, q.mT, ENDS))
    as_eager(dj.grouped_matmul(ROWS, q.mT, SIZES), dlfp4.grouped_matmul(ROWS, q.mT, ENDS))


def test_vmap_is_one_call():
    w = dj.quantize(STACK, "mxfp4")
    batch = np.stack([ROWS, 2 * ROWS])
    sizes = np.stack([SIZES, SIZES[::-1]])
    made = jax.jit(jax.vmap(lambda x, sizes: dj.grouped_matmul(x, w.mT, sizes)))(batch, sizes)
    for k in range(2):
        assert (made[k] == dj.grouped_matmul(batch[k], w.mT, sizes[k])).all()


@pytest.mark.parametrize("name", CALLS)
def test_batches_of_derivatives(name):
    """Of rows, weights of experts and sizes that have a batch each, or have none."""
    values, x = jnp.asarray(STACK.mT), operand(name)
    stacks = x * jnp.array([1, 2, -1])[:, None, None], values * jnp.array([1, 3, 2])[:, None, None, None]
    sizes = jnp.array([SIZES, SIZES[::-1], [3, 3, 3]])

    def loss(x, w, sizes):
        return (dj.grouped_matmul(x, w, sizes, **CALLS[name]) ** 2).sum()

    derivatives = jax.grad(loss, (0, 1))
    expect = jax.jit(derivatives)
    for axes in itertools.product((0, None), repeat=3):
        given = [all if axis == 0 else all[0] for all, axis in zip((*stacks, sizes), axes, strict=True)]
        if axes != (None, None, None):
            found = jax.vmap(derivatives, in_axes=axes)(*given)
            for k in range(3):
                one = [each[k] if axis == 0 else each for each, axis in zip(given, axes, strict=True)]
                for made, expected in zip(found, expect(*one), strict=True):
                    assert np.allclose(made[k], expected, rtol=1e-5, atol=1e-3), axes


def test_whole_jacobians():
    """By batches of derivatives alone, forward and backward."""
    rows, values = ROWS[:, :8], jnp.asarray(STACK.mT)[:, :8]
    for place in (0, 1):
        forward, backward = (
            make(lambda x, w: dj.grouped_matmul(x, w, SIZES), place)(rows, values) for make in (jax.jacfwd, jax.jacrev)
        )
        assert np.allclose(forward, backward, atol=1e-5)
    assert np.allclose(backward[0, :, 0, :, 0], np.eye(N, 1) * rows[0], atol=1e-5)


def dense(x, w, weights, name):
    """By JAX's own operations."""
    routed, tokens = int(ENDS[-1]), INDICES[: int(ENDS[-1])]
    rows = x[:routed] if name in ("rows", "sums of rows") else x[tokens]
    made = jnp.einsum("rk,rkn->rn", rows, w[np.repeat(np.arange(EXPERTS), SIZES)], precision="highest")
    if not name.startswith("sums"):
        return jnp.concatenate([made, jnp.zeros((ROUTED - routed, N))])
    return jnp.zeros((TOKENS, N)).at[tokens].add(made * weights[:routed, None])


@pytest.mark.parametrize("name", CALLS)
def test_derivatives(name):
    q = dj.quantize(STACK, "mxfp4")
    values, x = dj.dequantize(q.mT), operand(name)

    def ours(x, w, weights):
        given = {**CALLS[name], **({"weights": weights} if name.startswith("sums") else {})}
        return dj.grouped_matmul(x, w, SIZES, **given)

    def theirs(x, w, weights):
        return dense(x, w, weights, name)

    def loss(f):
        return lambda *args: (f(*args) ** 2).sum()

    args = (x, values, WEIGHTS)
    for made, expected in zip(*(jax.jit(jax.grad(loss(f), (0, 1, 2)))(*args) for f in (ours, theirs)), strict=True):
        assert np.allclose(made, expected, rtol=1e-3, atol=1e-2)
    of_x = jax.grad(lambda x: loss(ours)(x, q.mT, WEIGHTS))(x)
    assert np.allclose(of_x, jax.grad(lambda x: loss(theirs)(x, values, WEIGHTS))(x), rtol=1e-3, atol=1e-2)
    second = [jax.grad(lambda x, f=f: (jax.grad(loss(f))(x, values, WEIGHTS) ** 2).sum())(x) for f in (ours, theirs)]
    assert np.allclose(*second, rtol=1e-3, atol=1)


@pytest.mark.parametrize("name", CALLS)
def test_what_gpus_do(name):
    """XLA's own operations on decoded operands, here on the host; the program is lowered for a GPU as well."""
    q, x = dj.quantize(STACK, "mxfp4"), operand(name)

    def program(x):
        return dj.grouped_matmul(x, q.mT, SIZES, alpha=0.5, **CALLS[name])

    jaxpr = jax.make_jaxpr(program)(x)
    (call,) = [each for each in jaxpr.eqns if each.primitive.name == "dlfp4_grouped_matmul"]
    arrays = [x, q.data, q.scales, jnp.asarray(ENDS), *(jnp.asarray(CALLS[name][key]) for key in ("indices", "weights")
                                                        if key in CALLS[name])]  # fmt: skip
    (made,) = primitives.multiply_groups_on_cuda(*arrays, **call.params)
    assert np.allclose(made, program(x), atol=1e-4)
    batch = [jnp.stack([array, array]) for array in arrays]
    (both,) = primitives.multiply_groups_on_cuda(*batch, **{**call.params, "batched": (True,) * len(batch)})
    assert np.allclose(both, jnp.stack([made, made]), atol=1e-4)
    alone = (True, *(False for _ in arrays[1:]))
    (both,) = primitives.multiply_groups_on_cuda(batch[0], *arrays[1:], **{**call.params, "batched": alone})
    assert np.allclose(both, jnp.stack([made, made]), atol=1e-4)
    text = jax.jit(program).trace(x).lower(lowering_platforms=("cuda",)).as_text()
    assert "dlfp4_grouped_matmul" not in text
    assert "dlfp4_dequantize" in text


@pytest.mark.parametrize("tokens", [None, 0])
def test_derivatives_of_no_tokens(tokens):
    """To which no row is routed."""
    x = ROWS if tokens == 0 else X[:0]
    given = {"indices": INDICES, "weights": WEIGHTS, **({} if tokens is None else {"tokens": 0})}

    def total(x, w):
        return dj.grouped_matmul(x, w, 0 * SIZES, **given).sum()

    for found, leaf in zip(jax.grad(total, (0, 1))(x, STACK.mT), (x, STACK.mT), strict=True):
        assert (found.shape, found.any()) == (leaf.shape, False)


def test_straight_through_to_the_master():
    def loss(stack):
        w = dj.quantize(stack, "mxfp4", straight_through=True)
        return dj.grouped_matmul(ROWS, w.mT, SIZES).sum()

    grad = jax.grad(loss)(STACK)
    expected = np.stack([ROWS[first:end].sum(0) for first, end in ((0, 4), (4, 4), (4, 9))])
    assert np.allclose(grad, np.broadcast_to(expected[:, None], STACK.shape), atol=1e-4)


def test_what_ends_a_program():
    w = dj.quantize(STACK, "mxfp4")
    program = jax.jit(lambda sizes, indices: dj.grouped_matmul(X, w.mT, sizes, indices=indices))
    with pytest.raises(jax.errors.JaxRuntimeError, match="group_sizes: expected numbers of rows"):
        jax.block_until_ready(program(np.array([4, 4, 4]), INDICES))
    with pytest.raises(jax.errors.JaxRuntimeError, match="group_sizes: expected numbers of rows"):
        jax.block_until_ready(program(np.array([4, -1, 4]), INDICES))
    with pytest.raises(jax.errors.JaxRuntimeError, match="indices: expected the numbers of tokens"):
        jax.block_until_ready(program(SIZES, INDICES + 1))


def test_what_ends_a_program_that_ran_before():
    """JAX calls it by another path then, which makes other exceptions."""
    w = dj.quantize(STACK, "mxfp4")
    program = jax.jit(lambda sizes, indices: dj.grouped_matmul(X, w.mT, sizes, indices=indices))
    wrong = (jax.errors.JaxRuntimeError, ValueError)
    expected = jax.block_until_ready(program(SIZES, INDICES))
    with pytest.raises(wrong, match="group_sizes: expected numbers of rows"):
        jax.block_until_ready(program(np.array([4, -1, 4]), INDICES))
    with pytest.raises(wrong, match="indices: expected the numbers of tokens"):
        jax.block_until_ready(program(SIZES, INDICES + 1))
    assert (program(SIZES, INDICES) == expected).all()


@pytest.mark.parametrize("x64", [False, True])
def test_numbers_beyond_int32_end_a_program(x64):
    """JAX's own arrays have none of them without x64; NumPy's are not cut to 32 bits on the way."""
    w = dj.quantize(STACK, "mxfp4")
    with jax.enable_x64(x64):
        for far in (2**32, -(2**32)):
            with pytest.raises(jax.errors.JaxRuntimeError, match="group_sizes: expected numbers of rows"):
                jax.block_until_ready(dj.grouped_matmul(X, w.mT, SIZES + np.int64(far), indices=INDICES))
            with pytest.raises(jax.errors.JaxRuntimeError, match="indices: expected the numbers of tokens"):
                jax.block_until_ready(dj.grouped_matmul(X, w.mT, SIZES, indices=INDICES + np.int64(far)))
        with pytest.raises(jax.errors.JaxRuntimeError, match="group_sizes: expected numbers of rows"):
            jax.block_until_ready(dj.grouped_matmul(X, w.mT, SIZES.astype("uint64") + 2**32, indices=INDICES))


@pytest.mark.parametrize("sizes", [SIZES[:-1], SIZES[None]])
def test_sizes_are_one_for_each_expert(sizes):
    w = dj.quantize(STACK, "mxfp4")
    with pytest.raises(ValueError, match=rf"group_sizes has shape .*experts, {EXPERTS} of them"):
        dj.grouped_matmul(ROWS, w.mT, sizes)


def test_refusals_are_those_of_eager_calls():
    w = dj.quantize(STACK, "mxfp4")
    for error, message, call in (
        (ValueError, r"pass w\.mT", lambda: dj.grouped_matmul(ROWS, w, SIZES)),
        (ValueError, "K of w is 64", lambda: dj.grouped_matmul(ROWS[:, :32], w.mT, SIZES)),
        (ValueError, "pass indices", lambda: dj.grouped_matmul(ROWS, w.mT, SIZES, weights=WEIGHTS)),
        (ValueError, "each of the experts", lambda: dj.grouped_matmul(ROWS, w.mT, SIZES[:2])),
        (TypeError, "expected integers", lambda: dj.grouped_matmul(ROWS, w.mT, SIZES.astype("float32"))),
        (
            TypeError,
            "float32",
            lambda: dj.grouped_matmul(X, w.mT, SIZES, **{**SUMS, "weights": WEIGHTS.astype("float16")}),
        ),
        (dlfp4.BackendError, "x has dtype int32", lambda: dj.grouped_matmul(ROWS.astype("int32"), w.mT, SIZES)),
    ):
        with pytest.raises(error, match=message):
            jax.eval_shape(call)
