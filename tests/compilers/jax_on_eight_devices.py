"""dlfp4.jax on eight devices of the host, in a process of its own: jit of sharded arrays, and shard_map."""

import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import numpy as np
from jax import numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import dlfp4
from dlfp4 import jax as dj

KIND = jax.sharding.AxisType.Explicit if "explicit" in sys.argv else jax.sharding.AxisType.Auto
MESH = jax.make_mesh((4, 2), ("rows", "depth"), axis_types=(KIND, KIND))
RNG = np.random.default_rng(8)
X = RNG.standard_normal((16, 1024)).astype(np.float32)
W = RNG.standard_normal((1024, 1024)).astype(np.float32)


def put(x, *spec):
    return jax.device_put(x, NamedSharding(MESH, P(*spec)))


def to_bytes(x):
    return None if x is None else np.asarray(x).tobytes()


def check(result, expected, spec):
    """The bytes of the eager call, under a sharding."""
    assert to_bytes(result) == to_bytes(expected.to_numpy()), "bytes differ"
    assert result.sharding.is_equivalent_to(NamedSharding(MESH, P(*spec)), result.ndim), result.sharding


def quantizing(format):
    """Rows stay sharded, and so do blocks along them where each has a scale of its own or the tensor has."""
    q = dlfp4.quantize(W, format)
    along = "depth" if format != "fp8_row" else None
    program = jax.jit(lambda w: dj.quantize(w, format))
    given = put(W, "rows", "depth")
    result = program(given)
    check(result.data, q.data.view("uint8") if "mxfp6" in format else q.data, ("rows", along))
    if q.scales.ndim:
        check(result.scales, q.scales, ("rows", along))
    assert q.global_scale is None or to_bytes(result.global_scale) == to_bytes(q.global_scale.to_numpy())
    if along:
        assert "all-gather" not in program.lower(given).compile().as_text()
    back = jax.jit(dj.dequantize)
    check(back(result), q.dequantize(), ("rows", along))
    if along:
        assert "all-gather" not in back.lower(result).compile().as_text()


def casting():
    for dtype in ("float8_e4m3fn", "float4_e2m1fn"):
        check(
            jax.jit(lambda x, dtype=dtype: dj.cast(x, dtype))(put(X, "rows", "depth")),
            dlfp4.cast(X, dtype),
            ("rows", "depth"),
        )


def multiplying():
    w = dlfp4.quantize(W, "nvfp4")
    q = jax.jit(lambda w: dj.quantize(w, "nvfp4"))
    multiply = jax.jit(lambda x, w: dj.matmul(x, w.mT))

    def expected(rows, columns):
        """The products of shards: the order of a sum may depend on how many rows there are."""
        shards = [
            [
                dlfp4.matmul(x, w[start : start + 1024 // columns].mT).to_numpy()
                for start in range(0, 1024, 1024 // columns)
            ]
            for x in np.split(X, rows)
        ]
        return dlfp4.asarray(np.block(shards))

    check(multiply(put(X, "rows"), q(put(W))), expected(4, 1), ("rows", None))
    check(multiply(put(X), q(put(W, "rows"))), expected(1, 4), (None, "rows"))
    check(multiply(put(X, "depth"), q(put(W, "rows"))), expected(2, 4), ("depth", "rows"))
    arguments = put(X, "rows", "depth"), q(put(W, None, "depth"))
    result = multiply(*arguments)
    np.testing.assert_allclose(result, expected(1, 1).to_numpy(), rtol=1e-5, atol=1e-3)
    text = multiply.lower(*arguments).compile().as_text()
    assert "all-reduce" in text
    assert "all-gather" not in text
    for activation in ("fp8_1x128", "mxfp8", "fp8_row"):
        rounded = jax.jit(lambda x, w, activation=activation: dj.matmul(x, w.mT, activation=activation))
        eager = dlfp4.matmul(X, w.mT, activation=activation).to_numpy()
        np.testing.assert_allclose(rounded(*arguments), eager, rtol=1e-5, atol=1e-3)


def batches():
    stack = W.reshape(8, 128, 1024)
    program = jax.jit(jax.vmap(lambda w: dj.quantize(w, "nvfp4")))
    given = put(stack, ("rows", "depth"))
    result = program(given)
    assert "all-gather" not in program.lower(given).compile().as_text()
    for number, part in enumerate(stack):
        assert to_bytes(np.asarray(result.data)[number]) == to_bytes(dlfp4.quantize(part, "nvfp4").data.to_numpy())
    activations = jnp.asarray(X.reshape(4, 4, 1024))
    q = jax.jit(lambda x: dj.quantize(x, "mxfp4"))(put(activations, "rows"))
    assert to_bytes(q.data) == to_bytes(dlfp4.quantize(X, "mxfp4").data.to_numpy())
    assert q.data.sharding.spec[0] == "rows"


def uneven_and_whole():
    """What cannot be divided evenly, or at all, is gathered."""
    x = W[:6]
    q = jax.jit(lambda x: dj.quantize(x, "nvfp4"))(put(x, None, "rows"))
    assert to_bytes(q.data) == to_bytes(dlfp4.quantize(x, "nvfp4").data.to_numpy())
    for options in ({"rounding": "stochastic", "seed": 3}, {"hadamard": 1}, {"axis": -2}, {"scale_layout": "128x4"}):
        q = jax.jit(lambda x, options=options: dj.quantize(x, "nvfp4", **options))(put(W, "rows", "depth"))
        eager = dlfp4.quantize(W, "nvfp4", **options)
        assert to_bytes(q.data) == to_bytes(eager.data.to_numpy()), options
        assert to_bytes(q.scales) == to_bytes(eager.scales.to_numpy()), options
    assert to_bytes(jax.jit(dj.vecdot)(put(X, "rows"), put(X))) == to_bytes(dlfp4.vecdot(X, X).to_numpy())
    for options in ({}, {"global_scale": 0.01}):  # shards would end within groups of what was transformed
        x, eager = X[:, :64], dlfp4.quantize(X[:, :64], "fp8_e4m3", hadamard=1, **options)
        q = jax.jit(lambda x, options=options: dj.quantize(x, "fp8_e4m3", hadamard=1, **options))(
            put(x, None, ("rows", "depth"))
        )
        assert to_bytes(q.data) == to_bytes(eager.data.to_numpy())
        assert to_bytes(jax.jit(dj.dequantize)(q)) == to_bytes(eager.dequantize().to_numpy())


def mapping_shards():
    def step(x, w):
        return dj.matmul(x, dj.quantize(w, "mxfp4").mT), dj.dequantize(dj.quantize(x, "mxfp8_e4m3"))

    for checked in (True, False):
        program = jax.shard_map(
            step, mesh=MESH, in_specs=(P("rows"), P()), out_specs=(P("rows"), P("rows")), check_vma=checked
        )
        product, back = jax.jit(program)(put(X, "rows"), put(W))
        w = dlfp4.quantize(W, "mxfp4")
        assert to_bytes(product) == b"".join(to_bytes(dlfp4.matmul(x, w.mT).to_numpy()) for x in np.split(X, 4))
        assert to_bytes(back) == to_bytes(dlfp4.quantize(X, "mxfp8_e4m3").dequantize().to_numpy())

    def summed(x, w):
        return jax.lax.psum(dj.matmul(x, dj.quantize(w, "mxfp4").mT), "depth")

    specs = (P("rows", "depth"), P(None, "depth"))
    program = jax.jit(jax.shard_map(summed, mesh=MESH, in_specs=specs, out_specs=P("rows")))
    product = program(put(X, *specs[0]), put(W, *specs[1]))
    np.testing.assert_allclose(product, dlfp4.matmul(X, dlfp4.quantize(W, "mxfp4").mT).to_numpy(), rtol=1e-5, atol=1e-4)


def mapping_quantized(format):
    """A shard of a ScaledArray is a tensor of its own, and shards that leave the map are one of them all."""
    w = dj.quantize(W, format)
    eager = dlfp4.quantize(W, format)
    expected = to_bytes(dlfp4.matmul(X, eager.mT).to_numpy())
    specs = jax.tree.map(lambda part: P("rows") if part.ndim else P(), w)
    shapes = []

    def multiply(x, w):
        shapes.append(w.shape)
        return dj.matmul(x, w.mT)

    program = jax.shard_map(multiply, mesh=MESH, in_specs=(P(), specs), out_specs=P(None, "rows"))
    sharded = jax.tree.map(lambda part, spec: put(part, *spec), w, specs)
    assert to_bytes(jax.jit(program)(put(X), sharded)) == expected
    gradient = jax.jit(jax.grad(lambda x: program(x, sharded).sum()))(put(X))
    np.testing.assert_allclose(gradient, np.tile(eager.dequantize().to_numpy().sum(0), (16, 1)), rtol=1e-4, atol=1e-3)
    assert set(shapes) == {(256, 1024)}
    product = jax.jit(lambda x, w: dj.matmul(x, w.mT))(jnp.asarray(X), sharded)  # an x on one device
    assert (to_bytes(product), product.sharding.spec) == (expected, P(None, "rows"))
    halves = jax.tree.map(lambda part: P(None, "depth") if part.ndim else P(), w)
    whole = jax.jit(jax.shard_map(lambda w: w, mesh=MESH, in_specs=(halves,), out_specs=halves))(
        jax.tree.map(lambda part, spec: put(part, *spec), w, halves)
    )
    assert (whole.shape, to_bytes(dj.dequantize(whole))) == ((1024, 1024), to_bytes(eager.dequantize().to_numpy()))


def derivatives():
    def loss(w, x):
        return dj.matmul(x, dj.quantize(w, "nvfp4", straight_through=True).mT).sum()

    depth = None if jax.sharding.AxisType.Explicit == KIND else "depth"  # where jnp.matmul asks what becomes of sums
    gradient = jax.jit(jax.grad(loss))(put(W, "rows", depth), put(X, None, depth))
    np.testing.assert_allclose(gradient, np.tile(X.sum(0), (1024, 1)), rtol=1e-4, atol=1e-4)


if __name__ == "__main__":
    for format in ("nvfp4", "mxfp4", "mxfp6_e2m3", "fp8_e4m3", "fp8_128x128", "fp8_row"):
        quantizing(format)
    casting()
    multiplying()
    batches()
    uneven_and_whole()
    mapping_shards()
    for format in ("nvfp4", "mxfp6_e2m3", "mxfp8_32x32", "fp8_128x128"):
        mapping_quantized(format)
    derivatives()
    print("all equal")
