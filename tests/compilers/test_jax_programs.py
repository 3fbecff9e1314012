"""Whole programs as people run them: a transformer that is trained with FP4 weights, and what a fresh process runs;
what XLA has of dlfp4 in a compiled program.
"""

import importlib
import re
import subprocess
import sys

import numpy as np

import dlfp4
from dlfp4.operations import OPERATIONS

from ..support.capsules import framework

jax = framework("jax")
jnp = jax.numpy
dj = importlib.import_module("dlfp4.jax")

WIDTH, TOKENS = 64, 32
RNG = np.random.default_rng(31)


def made(*shape):
    return jnp.asarray(RNG.standard_normal(shape) / 8, "float32")


def parameters():
    shapes = {"qkv": (3 * WIDTH, WIDTH), "out": (WIDTH, WIDTH), "up": (4 * WIDTH, WIDTH), "down": (WIDTH, 2 * WIDTH)}
    block = {name: made(*shape) for name, shape in shapes.items()}
    return {"embedding": made(TOKENS, WIDTH), "block": block, "head": made(TOKENS, WIDTH)}


def product(x, master):
    return dj.matmul(x, dj.quantize(master, "nvfp4", straight_through=True).mT)


def eager_product(x, master):
    return dlfp4.matmul(x, dlfp4.quantize(master, "nvfp4").mT).to_numpy()


def loss_of(weights, tokens, xp=jnp, product=product):
    """Of the next tokens: attention and a gated layer, by masters that are quantized in each step."""
    block, x = weights["block"], weights["embedding"][tokens[:, :-1]]
    q, k, v = xp.split(product(normed(x, xp), block["qkv"]).reshape(*x.shape[:2], 6, WIDTH // 2), 3, axis=-2)
    scores = xp.exp(xp.einsum("bqhd,bkhd->bhqk", q, k) / 8) * xp.tri(x.shape[1], dtype="float32")
    found = xp.einsum("bhqk,bkhd->bqhd", scores / scores.sum(-1, keepdims=True), v)
    x = x + product(found.reshape(x.shape), block["out"])
    gate, up = xp.split(product(normed(x, xp), block["up"]), 2, axis=-1)
    logits = (x + product(gate / (1 + xp.exp(-gate)) * up, block["down"])) @ weights["head"].T
    chances = logits - xp.log(xp.exp(logits).sum(-1, keepdims=True))
    return -xp.take_along_axis(chances, tokens[:, 1:, None], -1).mean()


def normed(x, xp):
    return (x - x.mean(-1, keepdims=True)) / xp.sqrt(x.var(-1, keepdims=True) + 1e-5)


def test_training_with_fp4_weights():
    """The first loss is that of eager products; rematerialized, steps are the same."""
    tokens, weights = RNG.integers(TOKENS, size=(2, 9)), parameters()
    expected = loss_of(jax.tree.map(np.asarray, weights), tokens, np, eager_product)
    results = []
    for loss in (loss_of, jax.checkpoint(loss_of)):

        @jax.jit
        def step(weights, loss=loss):
            value, gradient = jax.value_and_grad(loss)(weights, tokens)
            return jax.tree.map(lambda master, by: master - 0.05 * by, weights, gradient), value

        made, losses = weights, []
        for _ in range(3):
            made, each = step(made)
            losses.append(float(each))
        np.testing.assert_allclose(losses[0], expected, rtol=1e-5)
        assert losses[0] > losses[1] > losses[2]
        results.append(losses)
    np.testing.assert_allclose(*results, rtol=1e-4)


def test_rules_of_users_for_derivatives():
    """A custom_vjp around the operations, whose rules call them again."""

    @jax.custom_vjp
    def layer(w, x):
        return dj.matmul(x, dj.quantize(w, "nvfp4").mT)

    def backward(kept, gradient):
        w, x = kept
        return gradient.T @ x, dj.matmul(gradient, dj.quantize(w, "nvfp4"))

    layer.defvjp(lambda w, x: (layer(w, x), (w, x)), backward)
    w, x = made(32, WIDTH), made(4, WIDTH)
    found = jax.jit(jax.grad(lambda w, x: (layer(w, x) ** 2).sum(), (0, 1)))(w, x)
    own = jax.grad(lambda w, x: (product(x, w) ** 2).sum(), (0, 1))(w, x)
    for one, other in zip(found, own, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_typed_calls_without_callbacks_and_copies():
    """All that XLA runs: parameters reach the calls as they are, and results leave them so."""
    w, x = dj.quantize(made(32, WIDTH), "nvfp4"), made(4, WIDTH)

    def program(x, w):
        q, codes = dj.quantize(x, "mxfp8_e4m3"), dj.cast(x, "float6_e2m3fn")
        padded = dj.unpack(codes, "float6_e2m3fn")
        products = dj.matmul(x, w.mT), dj.matmul(q, w.mT), dj.vecdot(x, x)
        return *products, q.dequantize(), dj.pack(padded, "float6_e2m3fn")

    text = jax.jit(program).lower(x, w).compile().as_text()
    entry = text[text.index("ENTRY") :]
    kinds = set(re.findall(r"= (?:\([^=]*?\)|\S+) ([a-z][a-z-]*)\(", entry))
    assert kinds - {"tuple"} == {"parameter", "custom-call", "get-tuple-element"}
    calls = re.findall(r"custom_call_target=\"(\w+)\".*?api_version=(\w+)", entry)
    names = {f"dlfp4_{name}" for name in ("convert", "quantize", "dequantize", "matmul", "vecdot")}
    assert dict(calls) == dict.fromkeys(names, "API_VERSION_TYPED_FFI")


def test_every_operation_has_a_function():
    assert OPERATIONS.keys() <= set(dj.__all__)


RUNNING = """
import sys, numpy as np, jax.export, dlfp4.jax as dj

with open(sys.argv[1], "rb") as file:
    program = jax.export.deserialize(file.read())
x, w, expected = (np.load(sys.argv[2])[name] for name in ("x", "w", "expected"))
product, q = program.call(x, w)
assert np.asarray(product).tobytes() == expected.tobytes()
assert isinstance(q, dj.ScaledArray) and (q.mT.format, q.shape) == ("nvfp4", w.shape), q
assert np.asarray(dj.matmul(x, q.mT)).tobytes() == expected.tobytes()
"""


def test_a_program_in_a_process_that_imports_dlfp4_alone(tmp_path):
    """Its bytes, and the ScaledArrays that it gives; without the import JAX says which call it does not find."""
    x, w = made(4, WIDTH), made(32, WIDTH)

    def program(x, w):
        q = dj.quantize(w, "nvfp4")
        return dj.matmul(x, q.mT), q

    checks = [jax.export.DisabledSafetyCheck.custom_call(f"dlfp4_{name}") for name in ("quantize", "matmul")]
    stored = jax.export.export(jax.jit(program), disabled_checks=checks)(x, w).serialize()
    (tmp_path / "program").write_bytes(stored)
    np.savez(tmp_path / "results.npz", x=x, w=w, expected=program(x, w)[0])
    arguments = [str(tmp_path / "program"), str(tmp_path / "results.npz")]
    subprocess.run([sys.executable, "-P", "-c", RUNNING, *arguments], check=True, timeout=300)
