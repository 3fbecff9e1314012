"""Casts, packing and unpacking of JAX arrays, and what plain operands are."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from dlfp4 import _core
from dlfp4.frameworks.base import SUBBYTE
from dlfp4.jax.calls import arrays_of, refuse_symbols
from dlfp4.jax.primitives import call
from dlfp4.jax.table import CONVERT
from dlfp4.proto import TensorProto

if TYPE_CHECKING:
    from dlfp4._core import _DType, _Rounding

Array: TypeAlias = Any  # a jax.Array, or what JAX puts in its place
FLOAT32 = np.dtype(np.float32)


def elements(x: Any, dtype: _DType | None = None, *, packed: bool = True) -> tuple[TensorProto, Array]:
    """A plain operand and what it is: of its own type, or of the one that its bytes are said to have."""
    array = x if isinstance(x, jax.Array) else jnp.asarray(x)
    refuse_symbols(array.shape)
    if dtype is None:
        return TensorProto(array.shape, array.dtype), array
    named = _core._parse_dtype(dtype)
    if array.dtype == named and packed:
        return TensorProto(array.shape, named), array
    if named.name not in SUBBYTE:
        if array.dtype == named:
            raise TypeError(f"{named} fills its bytes; pack takes types below 8 bits")
        raise TypeError(
            f"x has dtype {array.dtype}, which is not {named}; bytes can only be those of a type below 8 bits"
        )
    if array.dtype != np.uint8:
        expected = f"{named}, or its packed bytes as uint8" if packed else f"uint8, a code of {named} in each byte"
        done = "; its elements are packed already" if array.dtype == named else ""
        raise TypeError(f"x has dtype {array.dtype}; expected {expected}{done}")
    if not packed:
        return TensorProto(array.shape, named, packed=False), array
    return packed_bytes(array, named)


def packed_bytes(array: Array, dtype: np.dtype[Any]) -> tuple[TensorProto, Array]:
    """Packed bytes, whose rows are whole, as elements."""
    bits = SUBBYTE[dtype.name]
    if not array.ndim or array.shape[-1] * 8 % bits:
        raise ValueError(f"x of shape {array.shape}: rows of bytes do not divide into {dtype} elements")
    return TensorProto((*array.shape[:-1], array.shape[-1] * 8 // bits), dtype), array


def round_array(function: Any, x: Array) -> Array:
    """A rounding."""
    return function(x)


def differentiate_rounding(function: Any, primals: Sequence[Array], tangents: Sequence[Array]) -> tuple[Array, Array]:
    """Its derivative is that of the identity."""
    result = straight_through(function, *primals)  # by itself again, for derivatives of derivatives
    return result, tangents[0].astype(result.dtype)


straight_through = jax.custom_jvp(round_array, nondiff_argnums=(0,))
straight_through.defjvp(differentiate_rounding)


def is_float(dtype: Any) -> bool:
    """Whether JAX differentiates arrays of a type."""
    return bool(jnp.issubdtype(dtype, jnp.inexact))


def convert(proto: TensorProto, array: Array, dtype: _DType, *, packed: bool = True, **options: Any) -> Array:
    """One call of the codecs."""
    options = {"rounding": "nearest_even", "saturate": True, "seed": None, **options}
    named = _core._parse_dtype(dtype)
    if named.itemsize == 8 and not jax.config.read("jax_enable_x64"):
        raise TypeError(
            f"dtype={named}: JAX has types of 64 bits only with jax_enable_x64; set that, or ask for float32"
        )
    run = functools.partial(_convert, proto, named.name, packed, tuple(options.items()))
    result = arrays_of(TensorProto(proto.shape, named, packed=packed))[0][1]
    return straight_through(run, array) if is_float(array.dtype) and is_float(result) else run(array)


def _convert(proto: TensorProto, name: str, packed: bool, options: tuple[tuple[str, Any], ...], array: Array) -> Array:
    (result,) = call(CONVERT, (proto,), [array], dtype=name, packed=packed, **dict(options))
    return result


def cast(
    x: Any,
    dtype: _DType,
    *,
    source_dtype: _DType | None = None,
    rounding: _Rounding | Literal["up"] = "nearest_even",
    saturate: bool = True,
    seed: int | None = None,
) -> Array:
    """Convert elements to another floating-point type, with one rounding: :func:`dlfp4.cast` on JAX arrays.

    Parameters
    ----------
    x : array
        Of any shape; a tracer, too.
    dtype : dtype-like
        Of the result. FP6, of which XLA has no type, comes as its packed bytes: uint8, ``(..., K * 6 / 8)``.
    source_dtype : dtype-like, optional
        What x is where it comes as packed bytes in uint8: a type below 8 bits.
    rounding, saturate, seed
        See :func:`dlfp4.cast`; constants of a compiled program.

    Returns
    -------
    jax.Array
        Of x's shape. Its derivative is that of the identity, in the types of the two sides.

    Raises
    ------
    TypeError, ValueError
        As :func:`dlfp4.cast`; for FP6, K is not a multiple of 4.

    Examples
    --------
    >>> import jax, dlfp4.jax
    >>> jax.jit(lambda x: dlfp4.jax.cast(x, "float4_e2m1fn"))(jax.numpy.array([0.3, -5, 100]))
    Array([0.5, -4, 6], dtype=float4_e2m1fn)
    """
    proto, array = elements(x, source_dtype)
    return convert(proto, array, dtype, rounding=rounding, saturate=saturate, seed=seed)


def pack(x: Any, dtype: _DType) -> Array:
    """Pack elements below 8 bits that lie one a byte: :func:`dlfp4.pack` on JAX arrays.

    Parameters
    ----------
    x : array
        uint8, the codes in the low bits.
    dtype : dtype-like
        What they are.

    Returns
    -------
    jax.Array
        Of x's shape and `dtype`, which XLA packs; FP6 as packed bytes, ``(..., K * 6 / 8)`` of uint8.

    Examples
    --------
    >>> import jax, dlfp4.jax
    >>> dlfp4.jax.pack(jax.numpy.array([1, 2, 3, 15], "uint8"), "float4_e2m1fn")
    Array([0.5, 1, 1.5, -6], dtype=float4_e2m1fn)
    """
    proto, array = elements(x, dtype, packed=False)
    return convert(proto, array, dtype)


def unpack(x: Any, dtype: _DType | None = None) -> Array:
    """The codes of elements below 8 bits, one a byte: :func:`dlfp4.unpack` on JAX arrays.

    Parameters
    ----------
    x : array
        Of a type below 8 bits; or packed bytes as uint8, with `dtype`.
    dtype : dtype-like, optional
        What packed bytes are.

    Returns
    -------
    jax.Array
        uint8, of as many elements.

    Examples
    --------
    >>> import jax, dlfp4.jax
    >>> dlfp4.jax.unpack(jax.numpy.array([0.5, 1, 1.5, -6], "float4_e2m1fn"))
    Array([ 1,  2,  3, 15], dtype=uint8)
    """
    proto, array = elements(x, dtype)
    assert proto.dtype is not None
    if proto.dtype.name not in SUBBYTE:
        raise TypeError(
            f"{proto.dtype} fills its bytes; pack and unpack take types below 8 bits: cast it to one first, by "
            f"dlfp4.jax.cast, or say what packed bytes are by dtype="
        )
    return convert(proto, jax.lax.stop_gradient(array), proto.dtype, packed=False)
