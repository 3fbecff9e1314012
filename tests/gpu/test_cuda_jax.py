"""dlfp4.jax on a GPU: the bytes of eager calls on the host, on XLA's stream, and in XLA's command buffers."""

import numpy as np
import pytest

import dlfp4

pytestmark = pytest.mark.gpu
jax = pytest.importorskip("jax")
from jax import numpy as jnp  # noqa: E402

from dlfp4 import jax as dj  # noqa: E402

from ..compilers import test_jax_experts as experts  # noqa: E402
from ..compilers.test_jax import FORMATS, OPTIONS, X, parts, to_bytes  # noqa: E402


@pytest.fixture(scope="module")
def device():
    try:
        return jax.devices("cuda")[0]
    except RuntimeError as error:
        pytest.skip(f"JAX has no GPU: {error}")


@pytest.mark.parametrize("format", FORMATS)
def test_bytes_of_the_host(format, device):
    @jax.jit
    def program(x):
        q, across = dj.quantize(x, format, axis=(-1, -2))
        return q, across, dj.dequantize(q), dj.dequantize(across)

    q, across = dlfp4.quantize(X, format, axis=(-1, -2))
    results = jax.device_get(program(jax.device_put(X, device)))
    assert parts(results[0]) == parts(q)
    assert parts(results[1]) == parts(across)
    assert [to_bytes(result) for result in results[2:]] == [to_bytes(each.dequantize()) for each in (q, across)]


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name, device):
    options = dict(OPTIONS[name])
    scale = options.pop("global_scale", None)
    x = X[:64, :80] if options.get("pad") else X[:64]
    given = jax.device_put((x, scale), device)
    q = jax.jit(lambda x, scale: dj.quantize(x, **options, global_scale=scale))(*given)
    expected = dlfp4.quantize(x, **options, global_scale=scale)
    assert parts(jax.device_get(q)) == parts(expected)
    assert to_bytes(jax.device_get(jax.jit(dj.dequantize)(q))) == to_bytes(expected.dequantize())


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float4_e2m1fn", "float6_e2m3fn"])
def test_casts(dtype, device):
    x = jax.device_put(X, device)
    result = jax.jit(lambda x: dj.cast(x, dtype))(x)
    assert to_bytes(jax.device_get(result)) == to_bytes(dlfp4.cast(X, dtype))
    back = jax.jit(lambda x: dj.cast(x, "float32", source_dtype=dtype))(result)
    assert to_bytes(jax.device_get(back)) == to_bytes(dlfp4.cast(dlfp4.cast(X, dtype), "float32"))


@pytest.mark.parametrize("format", ["nvfp4", "mxfp4", "mxfp8_e4m3"])
def test_tensors_that_enter_a_program_as_constants(format, device):
    q = dlfp4.quantize(X, format)
    there = q.to_device("cuda:0")
    with jax.default_device(device):
        found = jax.jit(lambda: dj.dequantize(dj.ScaledArray.from_tensor(there)))()
    assert to_bytes(jax.device_get(found)) == to_bytes(q.dequantize())


@pytest.mark.parametrize("dtype", ["float4_e2m1fn", "float6_e2m3fn"])
def test_packed_bytes_that_a_program_makes(dtype, device):
    octets = np.arange(192, dtype=np.uint8).reshape(2, 96)
    with jax.default_device(device):
        found = jax.jit(lambda: dj.unpack(jnp.arange(192, dtype=np.uint8).reshape(2, 96), dtype))()
    assert to_bytes(jax.device_get(found)) == to_bytes(dlfp4.unpack(dlfp4.asarray(octets).view(dtype)).view("uint8"))


def test_products(device):
    w = dlfp4.quantize(X, "nvfp4")
    x, of_w = jax.device_put((X[:4], dj.ScaledArray.from_tensor(w)), device)
    expected = X[:4].astype(np.float64) @ w.dequantize().to_numpy().T.astype(np.float64)
    np.testing.assert_allclose(jax.jit(lambda x, w: dj.matmul(x, w.mT))(x, of_w), expected, rtol=1e-5, atol=1e-2)
    batched = jax.jit(jax.vmap(lambda x, w: dj.matmul(x[None], w.mT)[0], in_axes=(0, None)))
    np.testing.assert_allclose(batched(x, of_w), expected, rtol=1e-5, atol=1e-2)
    for activation in ("fp8_1x128", "mxfp8", "fp8_row"):
        rounded = jax.jit(lambda x, w, activation=activation: dj.matmul(x, w.mT, activation=activation))
        eager = dlfp4.matmul(X[:4], w.mT, activation=activation).to_numpy()
        np.testing.assert_allclose(rounded(x, of_w), eager, rtol=1e-5, atol=1e-2)
    sums = jax.jit(dj.vecdot)(of_w, jax.device_put(X, device))
    np.testing.assert_allclose(sums, dlfp4.vecdot(w, X).to_numpy(), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("name", experts.CALLS)
def test_products_by_experts(name, device):
    w, x, options = dlfp4.quantize(experts.STACK, "mxfp4"), experts.operand(name), experts.CALLS[name]
    given, of_w, sizes = jax.device_put((x, dj.ScaledArray.from_tensor(w), experts.SIZES), device)
    made = jax.jit(lambda x, w, sizes: dj.grouped_matmul(x, w.mT, sizes, **options))(given, of_w, sizes)
    expected = dlfp4.grouped_matmul(x, w.mT, experts.ENDS, **options).to_numpy()
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-2)


def test_batches_and_loops(device):
    """The same calls again and again, as command buffers replay them."""
    stack = jax.device_put(X.reshape(4, 32, 256), device)
    q = jax.jit(jax.vmap(lambda x: dj.quantize(x, "nvfp4")))(stack)
    for number, x in enumerate(X.reshape(4, 32, 256)):
        one = jax.device_get(jax.tree.map(lambda leaf, number=number: leaf[number], q))
        assert parts(one) == parts(dlfp4.quantize(x, "nvfp4"))

    @jax.jit
    def loop(x):
        return jax.lax.fori_loop(0, 20, lambda _, x: dj.quantize(x, "mxfp8_e4m3").dequantize() * 1.5, x)

    expected = X
    for _ in range(20):
        expected = dlfp4.quantize(expected, "mxfp8_e4m3").dequantize().to_numpy() * np.float32(1.5)
    for _ in range(3):
        assert to_bytes(jax.device_get(loop(jax.device_put(X, device)))) == expected.tobytes()


def test_derivatives(device):
    def loss(w, x):
        return dj.matmul(x, dj.quantize(w, "nvfp4", straight_through=True).mT).sum()

    gradient = jax.jit(jax.grad(loss))(*jax.device_put((jnp.asarray(X), jnp.asarray(X[:4])), device))
    np.testing.assert_allclose(gradient, np.tile(X[:4].sum(0), (128, 1)), rtol=1e-5, atol=1e-4)


def test_what_a_scaled_tensor_on_the_device_becomes(device):
    q = dlfp4.quantize(dlfp4.asarray(X).to_device("cuda:0"), "mxfp8_e4m3")
    array = dj.ScaledArray.from_tensor(q)
    assert {part.devices().pop().platform for part in array.parts} == {"gpu"}
    assert array.data.unsafe_buffer_pointer() == q.data.data_ptr
    assert array.to_tensor().data.data_ptr == q.data.data_ptr
    values = jax.device_get(jax.jit(dj.dequantize)(array))
    assert to_bytes(values) == to_bytes(q.dequantize().to_device("cpu"))


@pytest.mark.parametrize("format", ["nvfp4", "mxfp8_e4m3", "fp8_row", "uint4_g32"])
def test_compiled_ahead_donated_and_stored(format, device):
    """What was lowered for shapes, what takes over its argument's memory, and a program that comes back from bytes."""
    x, q = jax.device_put(X, device), dlfp4.quantize(X, format)
    step = jax.jit(lambda x: dj.quantize(x, format), donate_argnums=0)
    shape = jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=jax.sharding.SingleDeviceSharding(device))
    for function in (step.lower(shape).compile(), step):
        made = function(jax.device_put(X, device))
        assert {part.devices().pop() for part in made.parts} == {device}
        assert parts(jax.device_get(made)) == parts(q)
    back = jax.jit(lambda x: dj.dequantize(dj.quantize(x, format)), donate_argnums=0)
    given, again = (jax.device_put(X, device) for _ in range(2))
    assert to_bytes(jax.device_get(back(given))) == to_bytes(q.dequantize())
    assert given.is_deleted()
    names = ("dlfp4_quantize", "dlfp4_dequantize")
    checks = [jax.export.DisabledSafetyCheck.custom_call(name) for name in names]
    platform = "cuda" if device.platform == "gpu" else device.platform
    program = jax.export.export(back, platforms=[platform], disabled_checks=checks)(x)
    found = jax.export.deserialize(program.serialize()).call(again)
    assert to_bytes(jax.device_get(found)) == to_bytes(q.dequantize())


@pytest.mark.parametrize("format", FORMATS)
def test_a_tensor_whose_memory_is_given_on(format, device):
    """A donated ScaledArray, whose memory the result takes over or frees."""
    q = dlfp4.quantize(X, format)
    array = jax.device_put(dj.ScaledArray.from_tensor(q), device)
    expected = parts(jax.device_get(array))
    made = jax.jit(lambda w: jax.tree.map(lambda leaf: leaf, w), donate_argnums=0)(array)
    assert parts(jax.device_get(made)) == expected
