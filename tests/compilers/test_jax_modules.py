"""ScaledArrays in modules of flax and equinox, and beside what optimizers of optax train."""

import importlib

import numpy as np
import pytest

from ..support.capsules import framework

jax = framework("jax")
jnp = jax.numpy
dj = importlib.import_module("dlfp4.jax")

RNG = np.random.default_rng(31)
X = jnp.asarray(RNG.standard_normal((4, 64)), "float32")
W = jnp.asarray(RNG.standard_normal((32, 64)), "float32")


def bytes_of(tree):
    """Those of all leaves, where they may have no equality of their own."""
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def error(y):
    return ((y - 1) ** 2).mean()


@pytest.mark.parametrize("format", ["nvfp4", "mxfp4", "mxfp6_e2m3"])
def test_linen(format):
    """In a collection of its own, beside the parameters that are trained."""
    nn, optax = framework("flax.linen"), framework("optax")

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x):
            weight = self.variable("quantized", "weight", lambda: dj.quantize(W, format)).value
            return dj.matmul(x, weight.mT) + self.param("bias", nn.initializers.zeros, (32,))

    layer, optimizer = Layer(), optax.adam(0.1)
    variables = layer.init(jax.random.key(0), X)
    assert isinstance(variables["quantized"]["weight"], dj.ScaledArray)
    assert bytes_of(jax.jit(layer.apply)(variables, X)) == bytes_of(dj.matmul(X, dj.quantize(W, format).mT))

    @jax.jit
    def step(parameters, state, rest):
        loss, gradient = jax.value_and_grad(lambda given: error(layer.apply({"params": given, **rest}, X)))(parameters)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(parameters, updates), state, loss

    parameters, rest = variables["params"], {"quantized": variables["quantized"]}
    state, losses = optimizer.init(parameters), []
    for _ in range(3):
        parameters, state, loss = step(parameters, state, rest)
        losses.append(float(loss))
    assert losses[0] > losses[1] > losses[2]


def test_nnx():
    """A variable that is no parameter: jit, split and merge, an optimizer of all parameters."""
    nnx, optax = framework("flax.nnx"), framework("optax")

    class Layer(nnx.Module):
        def __init__(self):
            self.weight, self.bias = nnx.Variable(dj.quantize(W, "nvfp4")), nnx.Param(jnp.zeros(32))

        def __call__(self, x):
            return dj.matmul(x, self.weight.get_value().mT) + self.bias

    layer, expected = Layer(), dj.matmul(X, dj.quantize(W, "nvfp4").mT)
    assert bytes_of(nnx.jit(lambda layer, x: layer(x))(layer, X)) == bytes_of(expected)
    assert bytes_of(nnx.merge(*nnx.split(layer))(X)) == bytes_of(expected)
    optimizer, before = nnx.Optimizer(layer, optax.adam(0.1), wrt=nnx.Param), bytes_of(layer.weight.get_value())

    @nnx.jit
    def step(layer, optimizer):
        loss, gradient = nnx.value_and_grad(lambda layer: error(layer(X)))(layer)
        optimizer.update(layer, gradient)
        return loss

    losses = [float(step(layer, optimizer)) for _ in range(3)]
    assert losses[0] > losses[1] > losses[2]
    assert bytes_of(layer.weight.get_value()) == before


def test_equinox():
    """A field of a module: filtered jit and gradients, and one of parts that are trained and parts that are not."""
    eqx, optax = framework("equinox"), framework("optax")

    class Layer(eqx.Module):
        weight: dj.ScaledArray
        bias: jax.Array

        def __call__(self, x):
            return dj.matmul(x, self.weight.mT) + self.bias

    layer = Layer(dj.quantize(W, "nvfp4"), jnp.zeros(32))
    expected = dj.matmul(X, dj.quantize(W, "nvfp4").mT)
    assert bytes_of(eqx.filter_jit(layer)(X)) == bytes_of(expected)
    is_trained = eqx.tree_at(lambda layer: layer.bias, jax.tree.map(lambda _: False, layer), True)
    trained, frozen = eqx.partition(layer, is_trained)
    optimizer = optax.adam(0.1)

    @eqx.filter_jit
    def step(trained, state):
        loss, gradient = eqx.filter_value_and_grad(lambda trained: error(eqx.combine(trained, frozen)(X)))(trained)
        updates, state = optimizer.update(gradient, state)
        return eqx.apply_updates(trained, updates), state, loss

    state, losses = optimizer.init(trained), []
    for _ in range(3):
        trained, state, loss = step(trained, state)
        losses.append(float(loss))
    assert losses[0] > losses[1] > losses[2]
    assert bytes_of(eqx.combine(trained, frozen).weight) == bytes_of(layer.weight)
