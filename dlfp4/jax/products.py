"""Products of JAX arrays and ScaledArrays."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from dlfp4 import _core
from dlfp4.arguments import format_of
from dlfp4.extents import count_elements
from dlfp4.formats import ROTATED_LENGTH
from dlfp4.frameworks.base import SUBBYTE
from dlfp4.jax.calls import arrays_of
from dlfp4.jax.codecs import Array
from dlfp4.jax.primitives import call
from dlfp4.jax.scaled_array import Operand, ScaledArray, as_operand, dequantize, described, with_read_scales
from dlfp4.jax.scaling import quantize
from dlfp4.jax.table import MATMUL, VECDOT
from dlfp4.matmul import candidates, make_problem

if TYPE_CHECKING:
    from dlfp4._core import _DType
    from dlfp4.engines.problem import Problem
    from dlfp4.formats import Activation
    from dlfp4.proto import TensorProto

Axes = tuple[int | None, int | None]


def both(
    a: Any, b: Any, names: tuple[str, str], axes: Axes = (-1, -2), activation: Activation | None = None
) -> tuple[Operand, Operand]:
    """Two operands as the kernels read them, whose products are summed along axes: the second may be transposed. The
    first one stays quantized where it is to be an array, of which `activation` rounds the elements.
    """
    left, right = as_operand(a, names[0]), as_operand(b, names[1])
    if activation is None or not isinstance(left, ScaledArray):
        left, right = with_equal_rotations(left, right, axes)
    return readable(settled(left)), readable(right)


def readable(x: Operand) -> Operand:
    """An operand with scales that the kernels read."""
    return with_read_scales(x) if isinstance(x, ScaledArray) else x


def along_sums(x: Operand, axis: int) -> Operand:
    """An operand; its values where blocks run across the sums along an axis, which no kernel of ours reads."""
    return dequantize(x) if isinstance(x, ScaledArray) and x.axis != axis else x


def is_turned(x: Operand) -> bool:
    """Whether it is the transpose of a quantized tensor."""
    return isinstance(x, ScaledArray) and x.is_transposed


def settled(q: Operand) -> Operand:
    """The tensor with its arrays as the kernels read them: what mT has exchanged is so in memory."""
    if not isinstance(q, ScaledArray) or not q.is_transposed:
        return q
    if len(q.proto.shape) > 2:
        raise ValueError(f"{q!r} is a transposed stack, which only grouped_matmul multiplies; pass its .mT")
    proto = replace(q.proto, shape=q.shape, rowwise=q.proto.columnwise, columnwise=q.proto.rowwise)
    parts = q.parts
    if q.dtype.name not in SUBBYTE:
        parts[0] = parts[0].mT
        if q.scale_layout == "linear" and parts[1].ndim == 2:
            parts[1] = parts[1].mT
    return ScaledArray(parts, proto, source=q.source)


def with_equal_rotations(a: Operand, b: Operand, axes: Axes) -> tuple[Operand, Operand]:
    """Two operands whose products are those of their values: transforms that are alike cancel where products are summed
    along both, others are undone.
    """
    of_a, of_b = (x.hadamard if isinstance(x, ScaledArray) else None for x in (a, b))
    if not of_a and not of_b:
        return a, b
    if of_a != of_b or not all(map(cancels, (a, b), axes)):
        return (dequantize(a) if of_a else a), (dequantize(b) if of_b else b)
    return forget_rotation(a), forget_rotation(b)


def cancels(q: ScaledArray, axis: int | None) -> bool:
    """Whether sums along an axis are over whole groups of the transform, none of which zeros complete; None: the axis
    along which blocks run.
    """
    shape = q.proto.shape
    length = shape[-1] if q.proto.rowwise else count_elements(shape[:-1])
    return axis in (None, q.axis) and length % ROTATED_LENGTH == 0


def forget_rotation(q: ScaledArray) -> ScaledArray:
    """Codes that stand for themselves."""
    return ScaledArray(q.parts, replace(q.proto, hadamard=None), source=q.source, is_transposed=q.is_transposed)


def values_of(x: Operand, dtype: Any) -> Array:
    """An operand's values, through which second derivatives go."""
    return dequantize(x, dtype) if isinstance(x, ScaledArray) else x.astype(dtype)


def tangent_of(x: Operand) -> Array | None:
    """Of an operand's tangents, the one of what it was made of; None for zeros."""
    found = x.source if isinstance(x, ScaledArray) else x
    return None if found is None or isinstance(found, SymbolicZero) or found.dtype == jax.dtypes.float0 else found


def keep_product(product: Any, result: Array, a: Operand, b: Operand) -> Array:
    """The result of a bilinear product of the values of two operands."""
    del product, a, b
    return result


def differentiate_product(product: Any, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Array, Array]:
    """Its derivative is that of the product of the decoded operands."""
    result, a, b = primals
    of_a, of_b = tangent_of(tangents[1]), tangent_of(tangents[2])
    total = jnp.zeros_like(result)
    if of_a is not None:
        total += product(of_a.astype(result.dtype), values_of(b, result.dtype))
    if of_b is not None:
        total += product(values_of(a, result.dtype), of_b.astype(result.dtype))
    return carry_product(product, result, a, b), total


carry_product = jax.custom_jvp(keep_product, nondiff_argnums=(0,))
carry_product.defjvp(differentiate_product, symbolic_zeros=True)


def matmul(
    a: Any,
    b: Any,
    *,
    alpha: float | None = None,
    out_dtype: _DType | None = None,
    activation: Activation | None = None,
) -> Array:
    """The matrix product ``alpha * a @ b``: :func:`dlfp4.matmul` on JAX arrays.

    Parameters
    ----------
    a : array or ScaledArray
        ``(..., M, K)`` or ``(K,)``.
    b : array or ScaledArray
        ``(K, N)``: usually ``w.mT`` of a ScaledArray w that was quantized as ``(N, K)`` along its last axis. Blocks
        that run across the sums, of either operand, are decoded first.
    alpha : float, optional
        A factor of the result; a constant of a compiled program.
    out_dtype : dtype-like, optional
        float32, bfloat16 or float16. Default: a's if it is one of these, else float32.
    activation : {"int8", "fp8_1x128", "mxfp8", "fp8_row"}, optional
        See :func:`dlfp4.matmul`; "int8" on hosts alone. Derivatives are those of the product without this rounding.

    Returns
    -------
    jax.Array
        ``(..., M, N)``. The derivative is that of the product of the decoded operands; it goes to float arrays, and to
        the `source` of what was quantized with ``straight_through=True``.

    Raises
    ------
    ValueError, TypeError, BackendError
        As :func:`dlfp4.matmul`.

    Examples
    --------
    >>> import jax, dlfp4.jax
    >>> w = dlfp4.jax.quantize(jax.numpy.eye(2, 32), "mxfp4")
    >>> jax.jit(dlfp4.jax.matmul)(jax.numpy.full((1, 32), 3.0), w.mT)
    Array([[3., 3.]], dtype=float32)
    """
    left, right = both(a, b, ("a", "b"), activation=activation)
    if activation is None:  # else a is to be an array, and says so
        left = along_sums(left, -1)
    if not (isinstance(activation, str) and activation == "int8"):  # which multiplies codes
        right = along_sums(right, -2)
    (of_a, arrays), (of_b, others), turned = described(left), described(right), is_turned(right)
    outlines = _core._outline(of_a, False), _core._outline(of_b, turned)
    problem = make_problem(*outlines, alpha, out_dtype, activation)
    of_a, arrays, problem = rounded(of_a, arrays, problem)
    candidates(problem, "cpu")  # which says why it does not multiply them
    if of_a.format is None:
        of_a = replace(of_a, shape=(count_elements(of_a.shape[:-1]), of_a.shape[-1]))
        arrays = [arrays[0].reshape(arrays_of(of_a)[0][0])]
    (result,) = call(
        MATMUL,
        (of_a, of_b),
        [*arrays, *others],
        alpha=_core._Exact(problem.alpha),
        activation=problem.activation,
        out_dtype=problem.dtype.name,
        turned=turned,
    )
    product = functools.partial(multiply_values, problem.alpha)
    return carry_product(product, result.reshape(problem.shape), left, right)


def rounded(of_x: TensorProto, arrays: list[Array], problem: Problem) -> tuple[TensorProto, list[Array], Problem]:
    """A product and its first operand, as it was described: quantized, where activations are asked for in a format."""
    format = format_of(problem.activation)
    if format is None:
        return of_x, arrays, problem
    of_q, parts = described(readable(quantize(arrays[0], format)))
    return of_q, parts, problem._replace(a=_core._outline(of_q, False), activation=None)


def multiply_values(alpha: float, a: Array, b: Array) -> Array:
    """The product of values, in their type."""
    return alpha * jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def vecdot(a: Any, b: Any, axis: int = -1) -> Array:
    """Sums of products along one axis: :func:`dlfp4.vecdot` on JAX arrays.

    Parameters
    ----------
    a, b : array or ScaledArray
        Of one element type, or of different floating-point types; see :func:`dlfp4.vecdot`.
    axis : int
        The axis to sum over; the others broadcast.

    Returns
    -------
    jax.Array
        float32. The derivative is that of the sums of the decoded operands' products.

    Raises
    ------
    ValueError, TypeError
        As :func:`dlfp4.vecdot`.

    Examples
    --------
    >>> import jax, dlfp4.jax
    >>> x = dlfp4.jax.cast(jax.numpy.arange(-4.0, 4).reshape(2, 4), "float4_e2m1fn")
    >>> dlfp4.jax.vecdot(x, x)
    Array([30., 14.], dtype=float32)
    """
    along = _core._parse_integer(axis, "axis")
    left, right = (settled(x) for x in both(a, b, ("a", "b"), (None, None)))
    (of_a, arrays), (of_b, others) = described(left), described(right)
    (result,) = call(VECDOT, (of_a, of_b), [*arrays, *others], axis=along)
    return carry_product(functools.partial(sum_values, along), result, left, right)


def sum_values(axis: int, a: Array, b: Array) -> Array:
    """The sums of products of values along an axis of each; the others broadcast."""
    return jnp.sum(jnp.moveaxis(a, axis, -1) * jnp.moveaxis(b, axis, -1), -1)


def dot(a: Any, b: Any) -> Array:
    """The sum of products of two vectors; :func:`vecdot` of 1-D arrays.

    Parameters
    ----------
    a, b : array or ScaledArray
        ``(K,)`` each.

    Returns
    -------
    jax.Array
        0-d float32.

    Raises
    ------
    ValueError, TypeError
        As :func:`dlfp4.dot`.

    Examples
    --------
    >>> import jax, dlfp4.jax
    >>> q = dlfp4.jax.quantize(jax.numpy.ones(32), "nvfp4")
    >>> dlfp4.jax.dot(q, q)
    Array(32., dtype=float32)
    """
    left, right = as_operand(a, "a"), as_operand(b, "b")
    for name, x in (("a", left), ("b", right)):
        if x.ndim != 1:
            _core._refuse_vector(name, x.shape)
    return vecdot(left, right)
