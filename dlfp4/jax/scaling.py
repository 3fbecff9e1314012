"""Quantizing JAX arrays."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

import jax
import jax.numpy as jnp
import numpy as np

from dlfp4 import _core
from dlfp4.extents import count_elements
from dlfp4.jax.codecs import FLOAT32, Array, cast, convert, elements
from dlfp4.jax.primitives import call
from dlfp4.jax.scaled_array import ScaledArray
from dlfp4.jax.table import QUANTIZE, described_quantized
from dlfp4.proto import TensorProto, flag_of

if TYPE_CHECKING:
    from dlfp4._core import _Axis, _Hadamard, _RecipeLike, _Rounding, _ScaleLayout
    from dlfp4.formats import Format


@overload
def quantize(
    x: Any,
    format: Format | str,
    *,
    recipe: _RecipeLike | None = ...,
    axis: _Axis = ...,
    global_scale: Any = ...,
    rounding: _Rounding | None = ...,
    seed: int | None = ...,
    scale_layout: _ScaleLayout = ...,
    pad: bool = ...,
    hadamard: _Hadamard | None = ...,
    straight_through: bool = ...,
) -> ScaledArray: ...
@overload
def quantize(
    x: Any,
    format: Format | str,
    *,
    recipe: _RecipeLike | None = ...,
    axis: tuple[_Axis, ...],
    global_scale: Any = ...,
    rounding: _Rounding | None = ...,
    seed: int | None = ...,
    scale_layout: _ScaleLayout = ...,
    pad: bool = ...,
    hadamard: _Hadamard | None = ...,
    straight_through: bool = ...,
) -> tuple[ScaledArray, ...]: ...
def quantize(
    x: Any,
    format: Format | str,
    *,
    recipe: _RecipeLike | None = None,
    axis: _Axis | tuple[_Axis, ...] = -1,
    global_scale: Any = None,
    rounding: _Rounding | None = None,
    seed: int | None = None,
    scale_layout: _ScaleLayout = "linear",
    pad: bool = False,
    hadamard: _Hadamard | None = None,
    straight_through: bool = False,
) -> ScaledArray | tuple[ScaledArray, ...]:
    """Quantize to a block-scaled format: :func:`dlfp4.quantize` on JAX arrays.

    Parameters
    ----------
    x : array
        ``(..., K)`` of float32, bfloat16 or float16; float64 is rounded once to float32.
    format, recipe, axis, rounding, seed, scale_layout, pad, hadamard
        See :func:`dlfp4.quantize`; constants of a compiled program.
    global_scale : float or array, optional
        See :func:`dlfp4.quantize`; an array may be traced.
    straight_through : bool
        The result keeps x as its `source`, and derivatives go to it as if nothing had been quantized, through
        :func:`dequantize`, :func:`matmul`, :func:`dot` and :func:`vecdot`. Codes cannot carry them: JAX's derivatives
        have the type of their array. Without it, differentiating is refused.

    Returns
    -------
    ScaledArray
        Or a tuple, for a tuple of axes.

    Raises
    ------
    ValueError, TypeError
        As :func:`dlfp4.quantize`. A traced global scale that is not a decode scale raises
        jax.errors.JaxRuntimeError when the program runs, or ValueError where it succeeded before.

    Examples
    --------
    >>> import jax, dlfp4.jax
    >>> jax.jit(lambda x: dlfp4.jax.quantize(x, "nvfp4"))(jax.numpy.ones((4, 32)))  # doctest: +ELLIPSIS
    ScaledArray(shape=(4, 32), format='nvfp4', data=float4_e2m1fn[4, 32], scales=float8_e4m3fn[4, 2], ...)
    """
    axes: tuple[Any, ...] = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
    several = isinstance(axis, (tuple, list))
    keeps_source = flag_of(straight_through, "straight_through")
    options = {
        "recipe": recipe,
        "rounding": rounding,
        "seed": seed,
        "scale_layout": scale_layout,
        "pad": pad,
        "hadamard": _core._parse_hadamard(hadamard),
    }
    if hadamard is not None and len(axes) > 1:  # what is transformed differs
        each = functools.partial(
            quantize, x, format, global_scale=global_scale, straight_through=keeps_source, **options
        )
        return tuple(each(axis=one) for one in axes)
    proto, array = elements(x)
    if proto.dtype == np.float64:
        array = convert(proto, array, FLOAT32)
        proto = replace(proto, dtype=FLOAT32)
    unit = None if global_scale is None else given_scale(global_scale)
    rounded = jax.lax.stop_gradient(array) if keeps_source else array
    made = quantize_elements(proto, rounded, unit, axes, format=_core._find_format(format).name, **options)
    if keeps_source:
        made = [ScaledArray(q.parts, q.proto, source=array) for q in made]
    return tuple(made) if several else made[0]


def given_scale(value: Any) -> Array:
    """A given global scale as an array; a number is checked at once."""
    if isinstance(value, jax.Array):
        return jax.lax.stop_gradient(value).astype(FLOAT32)
    with np.errstate(over="ignore"):  # infinity is refused next
        numbers = np.asarray(value, FLOAT32)
    if not (np.isfinite(numbers) & (numbers > 0)).all():
        raise ValueError(f"global_scale={value}: a decode scale is a positive, finite float32")
    return jnp.asarray(numbers)


def quantize_elements(
    proto: TensorProto, array: Array, unit: Array | None, axes: tuple[_Axis, ...], **options: Any
) -> list[ScaledArray]:
    """One call of the kernels, which write along rows first, and scales in their format's type."""
    operands: tuple[TensorProto, ...] = (proto,)
    arrays = [array]
    if unit is not None:
        operands, arrays = (proto, TensorProto(unit.shape, FLOAT32)), [array, unit]
    described = described_quantized(operands, {**options, "axes": axes})
    if described[0].global_scale_per != "matrix":  # rows and columns are all that counts
        matrix = (count_elements(proto.shape[:-1]), proto.shape[-1])
        operands, arrays = (replace(proto, shape=matrix), *operands[1:]), [array.reshape(matrix), *arrays[1:]]
    parts = iter(call(QUANTIZE, operands, arrays, axes=tuple(sorted(axes, reverse=True)), **options))
    made = {}
    for one in sorted(described, key=lambda each: each.columnwise):
        data, scales, *rest = (next(parts) for _ in one.buffers())
        narrow = scales if one.scale_dtype is None else cast(scales, one.scale_dtype)
        made[one] = ScaledArray([data, narrow, *rest], one)
    return [made[one] for one in described]
