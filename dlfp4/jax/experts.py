"""Products of rows that are divided among experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dlfp4 import _core, grouped
from dlfp4.arguments import describe_product
from dlfp4.jax.codecs import Array
from dlfp4.jax.primitives import call, multiply_groups
from dlfp4.jax.products import both, is_turned, rounded, tangent_of, values_of
from dlfp4.jax.scaled_array import described
from dlfp4.jax.table import GROUPED
from dlfp4.proto import TensorProto

if TYPE_CHECKING:
    from dlfp4._core import _DType
    from dlfp4.formats import Activation


class Routing(NamedTuple):
    """What says where rows belong: numbers, which have no derivatives."""

    sizes: Array
    indices: Array | None


class Settings(NamedTuple):
    """What is constant of a product."""

    alpha: float
    gathers: bool
    tokens: int | None  # of weighted sums


def grouped_matmul(
    x: Any,
    w: Any,
    group_sizes: Any,
    *,
    indices: Any | None = None,
    weights: Any | None = None,
    tokens: int | None = None,
    alpha: float | None = None,
    out_dtype: _DType | None = None,
    activation: Activation | None = None,
) -> Array:
    """Rows times the matrices of their experts: :func:`dlfp4.grouped_matmul`, with sizes as ``jax.lax.ragged_dot``.

    Parameters
    ----------
    x : array or ScaledArray
        ``(R, K)``, rows sorted by expert, or with `indices` ``(T, K)``, tokens.
    w : array or ScaledArray
        ``(E, K, N)``: usually ``w.mT`` of a ScaledArray w that was quantized as ``(E, N, K)`` along its last axis.
    group_sizes : array
        ``(E,)`` integers: how many rows each expert has. Rows beyond their sum belong to none, and have results of 0.
    indices : array, optional
        ``(R,)`` integers: the token of each row.
    weights : array, optional
        ``(R,)`` float32, with `indices`: each row is multiplied by its weight and added to its token.
    tokens : int, optional
        With `weights`: how many tokens there are; x then has the rows themselves.
    alpha, out_dtype, activation
        As of :func:`matmul`.

    Returns
    -------
    jax.Array
        ``(R, N)``; with `weights` ``(T, N)``. The derivative is that of the product of decoded operands; it goes to
        float arrays, to the `source` of what was quantized with ``straight_through=True``, and to `weights`.

    Raises
    ------
    ValueError, TypeError, BackendError
        As :func:`dlfp4.grouped_matmul`. Sizes and indices that are wrong raise jax.errors.JaxRuntimeError when the
        program runs, or ValueError where it succeeded before.

    Notes
    -----
    On hosts the bytes are those of :func:`dlfp4.grouped_matmul`. On a GPU operands are decoded, and XLA multiplies.

    Examples
    --------
    >>> import jax, dlfp4.jax
    >>> w = dlfp4.jax.quantize(jax.numpy.stack([jax.numpy.eye(2, 32), 2 * jax.numpy.eye(2, 32)]), "mxfp4")
    >>> dlfp4.jax.grouped_matmul(jax.numpy.ones((3, 32)), w.mT, jax.numpy.array([1, 2]))
    Array([[1., 1.],
           [2., 2.],
           [2., 2.]], dtype=float32)
    """
    left, right = both(x, w, ("x", "w"), activation=activation)
    (of_x, arrays), (of_w, others) = described(left), described(right)
    eager = grouped.as_rows(_core._outline(of_x, False)), grouped.as_stack(_core._outline(of_w, is_turned(right)))
    sizes = as_numbers(group_sizes, "group_sizes")
    if sizes.shape != (eager[1].shape[0],):
        raise ValueError(
            f"group_sizes has shape {sizes.shape}; expected one number for each of the experts, {eager[1].shape[0]} of "
            f"them"
        )
    routing = Routing(sizes, None if indices is None else as_numbers(indices, "indices"))
    factors = None if weights is None else jnp.asarray(weights)
    given = [jnp.cumsum(routing.sizes, dtype=jnp.int32), routing.indices, factors]
    protos = [None if array is None else TensorProto(array.shape, array.dtype) for array in given]
    outlines: list[Any] = [None if proto is None else _core._outline(proto, False) for proto in protos]
    checked = grouped.make_routing(*eager, outlines[0], outlines[1], outlines[2], tokens)
    results, columns = grouped.shape_of_result(*eager, checked)
    problem = describe_product(*eager, alpha, out_dtype, activation, None, grouped.rotate_alike, "x")
    of_x, arrays, problem = rounded(of_x, arrays, problem)
    grouped.check_operands(problem, checked)
    (result,) = call(
        GROUPED,
        (of_x, of_w, *(proto for proto in protos if proto is not None)),
        [*arrays, *others, *(jax.lax.stop_gradient(array) for array in given if array is not None)],
        rows=of_x.shape[0] if routing.indices is None else routing.indices.shape[0],
        results=results,
        columns=columns,
        gathers=checked.gathers,
        adds=factors is not None,
        alpha=_core._Exact(problem.alpha),
        activation=problem.activation,
        out_dtype=problem.dtype.name,
    )
    settings = Settings(problem.alpha, checked.gathers, results if factors is not None else None)
    return carry_grouped(settings, result, left, right, factors, routing)


def as_numbers(x: Any, name: str) -> Array:
    """Integers, as handlers read them; those that int32 does not hold become its ends, which handlers refuse."""
    array = x if isinstance(x, jax.Array) else np.asarray(x)  # JAX would keep the low 32 bits of others
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise TypeError(f"{name} has dtype {array.dtype}; expected integers")
    if not np.can_cast(array.dtype, np.int32):
        clip = jnp.clip if isinstance(array, jax.Array) else np.clip
        ends = np.iinfo(np.int32)
        array = clip(array, None if jnp.issubdtype(array.dtype, jnp.unsignedinteger) else ends.min, ends.max)
    return jnp.asarray(array, jnp.int32)


# ---- Derivatives


def multiply_values(settings: Settings, x: Array, w: Array, weights: Array | None, routing: Routing) -> Array:
    """The product of values, in their type, by XLA."""
    found: Array = settings.alpha * multiply_groups(
        x, w, routing.sizes, routing.indices, weights, settings.gathers, settings.tokens
    )
    return found


def keep_grouped(settings: Settings, result: Array, x: Any, w: Any, weights: Any, routing: Routing) -> Array:
    """The result of a product that is linear in each of x, w and weights."""
    del settings, x, w, weights, routing
    return result


def differentiate_grouped(settings: Settings, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Array, Array]:
    """Its derivative is that of the product of the decoded operands."""
    result, x, w, weights, routing = primals
    own = [None if operand is None else values_of(operand, result.dtype) for operand in (x, w, weights)]
    total = jnp.zeros_like(result)
    for place, operand in enumerate(tangents[1:4]):
        tangent = None if operand is None else tangent_of(operand)
        if tangent is not None:
            factors: list[Any] = [*own]
            factors[place] = tangent.astype(result.dtype)
            total += multiply_values(settings, factors[0], factors[1], factors[2], routing)
    return carry_grouped(settings, result, x, w, weights, routing), total


carry_grouped = jax.custom_jvp(keep_grouped, nondiff_argnums=(0,))
carry_grouped.defjvp(differentiate_grouped, symbolic_zeros=True)
