"""The operations on PyTorch's tensors, with the signatures that they have in dlfp4."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import torch

from dlfp4 import _core
from dlfp4.formats import Format, Recipe, own_offsets
from dlfp4.frameworks.base import FP4
from dlfp4.frameworks.torch import element_name
from dlfp4.operations import text_of_recipe
from dlfp4.proto import constant_signs, flag_of
from dlfp4.torch.gradients import is_differentiated
from dlfp4.torch.memoryless import Memoryless
from dlfp4.torch.registering import CALLS
from dlfp4.torch.representing import FORMAT_ELEMENTS, PAIRS, Parts, as_parts, as_plain, as_quantized

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dlfp4._core import _DType, _RecipeLike, _Rounding, _ScaleLayout
    from dlfp4.formats import Activation

    Plain: TypeAlias = torch.Tensor | Parts
    Axis: TypeAlias = Literal[-1, -2]

OPS = torch.ops.dlfp4


def check_tensors(**given: Any) -> None:
    """TypeError for an argument that is no tensor, in other words than those of schemas."""
    for name, x in given.items():
        if not isinstance(x, torch.Tensor) and x is not None:
            raise TypeError(f"{name} is of type {type(x).__name__}; expected a torch.Tensor")


def check_memory(out: Any) -> None:
    """Refuse memory for a result in which PyTorch would read other values than are written there."""
    check_tensors(out=out)
    if torch.compiler.is_dynamo_compiling():  # which cannot ask for these bits
        return
    for name in ("neg", "conj"):
        if getattr(out, f"is_{name}")():
            raise ValueError(
                f"out is a tensor whose is_{name} bit is set: PyTorch changes the sign of what its memory holds; pass "
                f"plain memory, such as torch.empty({tuple(out.shape)}, dtype={out.dtype}), and copy from it"
            )


# ---- Constants of a graph


def name_of(dtype: _DType | None) -> str | None:
    """The name of an element type: a constant by value."""
    if dtype is None or isinstance(dtype, str):
        return dtype
    if isinstance(dtype, torch.dtype):
        return element_name(dtype)
    return _core._parse_dtype(dtype).name


def format_name(format: Any) -> str:
    """The name of a format."""
    return str(format) if isinstance(format, (str, Format)) else _core._find_format(format).name


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def text_of(recipe: Recipe | str) -> str:
    """A recipe as a constant of a graph."""
    return text_of_recipe(recipe)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def text_of_options(*options: Any) -> str:
    """The same of a recipe's options: one that a graph makes is no object while the graph is traced."""
    return text_of_recipe(Recipe(*options))


OPTIONS = tuple([field.name for field in fields(Recipe)])


def signed(seed: Any) -> int | None:
    """A seed as schemas have integers: with a sign, which those of 64 bits have not."""
    if seed is None:
        return None
    if not isinstance(seed, (int, np.integer)):
        seed = _core._parse_integer(seed, "seed")
    if not 0 <= seed < 1 << 64:
        raise ValueError(f"seed={seed}: expected an integer from 0 to 2**64 - 1")
    number = int(seed)
    return number if number < 1 << 63 else number - (1 << 64)


def run(op: Any, args: tuple[Any, ...], out: torch.Tensor | None) -> torch.Tensor:
    """An operation, or its out= form."""
    if torch.jit.is_tracing() and any(isinstance(each, (tuple, list)) and any(map(is_traced, each)) for each in args):
        raise RuntimeError(
            f"torch.jit.trace has no form for the shape of the quantized tensor that {op} takes: multiply by "
            f"F.linear or x @ w.mT, or use torch.export"
        )
    if out is not None:
        check_memory(out)
        called(op.out, args, out=out)
        return out
    found: torch.Tensor = called(op.default, args)
    return found


def called(op: Any, args: tuple[Any, ...], **options: Any) -> Any:
    """A call; of constants that schemas refuse in PyTorch's words, dlfp4's own function says what is wrong: after the
    fact, for a check before each call would take time.
    """
    try:
        return op(*args, **options)
    except RuntimeError:
        CALLS[op._schema.name.removeprefix("dlfp4::")].refuse_constants(args)
        raise


def type_of_result(dtype: _DType | None, out: torch.Tensor | None) -> str | None:
    """The name of the element type that is asked for: that of the memory for a result, unless another one is named."""
    if dtype is not None or out is None:
        return name_of(dtype)
    check_tensors(out=out)
    return element_name(out.dtype)


def is_traced(extent: Any) -> bool:
    """Whether an extent is one that torch.jit.trace follows."""
    return isinstance(extent, torch.Tensor)


# ---- Codecs


def cast(
    x: Plain,
    dtype: _DType,
    *,
    rounding: _Rounding | Literal["up"] = "nearest_even",
    saturate: bool = True,
    packed: bool = True,
    seed: int | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Convert the elements of a tensor to another floating-point type, with one rounding; see :func:`dlfp4.cast`.

    Parameters
    ----------
    x : torch.Tensor or Parts
        Of any shape; ``Parts(bytes, type="float6_e2m3fn")`` of a type that PyTorch lacks.
    dtype : dtype-like
        The element type of the result. FP4 comes in pairs, ``torch.float4_e2m1fn_x2`` of ``(..., K/2)``; FP6 as bytes,
        ``torch.uint8`` of ``(..., 3*K/4)``. FP8 that PyTorch lacks (float8_e3m4, float8_e4m3, float8_e4m3b11fnuz) comes
        as bytes of x's shape, which ``Parts(bytes, type="float8_e3m4")`` names again.
    rounding, saturate, seed
        As :func:`dlfp4.cast`.
    packed : bool
        False: elements below 8 bits one a byte, ``torch.uint8`` of x's shape.
    out : torch.Tensor, optional
        Memory for the result; without a gradient.

    Returns
    -------
    torch.Tensor
        On x's device. Gradients go straight through where the result has a float type of PyTorch and x's shape.

    Raises
    ------
    TypeError, ValueError
        As :func:`dlfp4.cast`; rows of a result in bytes that do not end on bytes.

    Examples
    --------
    >>> import torch, dlfp4.torch
    >>> dlfp4.torch.cast(torch.tensor([0.3, -5.0]), "float8_e4m3fn").float()
    tensor([ 0.3125, -5.0000])
    """
    a = as_plain(x)
    flags = flag_of(saturate, "saturate"), flag_of(packed, "packed")  # PyTorch would take None for False
    return run(OPS.cast, (a.data, name_of(dtype), a.type, rounding, *flags, signed(seed)), out)


def pack(x: Plain, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """Pack elements below 8 bits that lie one a byte; see :func:`dlfp4.pack`.

    Parameters
    ----------
    x : Parts
        ``Parts(bytes, type="float4_e2m1fn/padded")``: PyTorch has no type for such elements.
    out : torch.Tensor, optional
        Memory for the result.

    Returns
    -------
    torch.Tensor
        ``float4_e2m1fn_x2`` or bytes, packed along the last axis.

    Raises
    ------
    TypeError, ValueError
        As :func:`dlfp4.pack`.

    Examples
    --------
    >>> import torch, dlfp4.torch
    >>> codes = torch.tensor([1, 2], dtype=torch.uint8)
    >>> dlfp4.torch.pack(dlfp4.torch.Parts(codes, type="float4_e2m1fn/padded")).view(torch.uint8)
    tensor([33], dtype=torch.uint8)
    """
    a = as_plain(x)
    return run(OPS.pack, (a.data, a.type), out)


def unpack(x: Plain, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """Unpack elements below 8 bits to one a byte, in the low bits; see :func:`dlfp4.unpack`.

    Parameters
    ----------
    x : torch.Tensor or Parts
        ``float4_e2m1fn_x2``, or ``Parts(bytes, type="float6_e2m3fn")``.
    out : torch.Tensor, optional
        Memory for the result.

    Returns
    -------
    torch.Tensor
        ``torch.uint8``, a byte for each element.

    Raises
    ------
    TypeError, ValueError
        As :func:`dlfp4.unpack`.

    Examples
    --------
    >>> import torch, dlfp4.torch
    >>> dlfp4.torch.unpack(torch.tensor([33], dtype=torch.uint8).view(torch.float4_e2m1fn_x2))
    tensor([1, 2], dtype=torch.uint8)
    """
    a = as_plain(x)
    return run(OPS.unpack, (a.data, a.type), out)


# ---- Block scaling


def quantize(
    x: Plain,
    format: Format | str,
    *,
    recipe: _RecipeLike | None = None,
    axis: Axis | tuple[Axis, ...] = -1,
    global_scale: float | torch.Tensor | None = None,
    rounding: _Rounding | None = None,
    seed: int | None = None,
    scale_layout: _ScaleLayout = "linear",
    pad: bool = False,
    hadamard: Sequence[int] | int | None = None,
    out: Any = None,
) -> Any:
    """The parts of a tensor quantized to a block-scaled format, of which ``dlfp4.torch.quantize`` makes a tensor.

    Parameters
    ----------
    x : torch.Tensor
        ``(..., K)`` of float32, bfloat16, float16 or float64.
    format : Format or str
        A row of :func:`dlfp4.formats`.
    recipe, axis, global_scale, rounding, seed, scale_layout, pad, hadamard
        As :func:`dlfp4.quantize`.
    out : Parts or tuple of Parts, optional
        The result of an earlier call, which is overwritten.

    Returns
    -------
    Parts
        Or a tuple, for a tuple of axes. Codes and scales have no gradient.

    Raises
    ------
    ValueError, TypeError
        As :func:`dlfp4.quantize`.

    Examples
    --------
    >>> import torch
    >>> from dlfp4.torch.functions import quantize
    >>> q = quantize(torch.ones(2, 32), "mxfp4")
    >>> q.data.dtype, tuple(q.data.shape), tuple(q.scales.shape)
    (torch.float4_e2m1fn_x2, (2, 16), (2, 1))
    """
    axes = list(axis) if isinstance(axis, (tuple, list)) else [axis]
    args = arguments_of_quantize(x, format, axes, recipe, global_scale, rounding, seed, scale_layout, pad, hadamard)
    if out is not None:
        results = out if isinstance(out, tuple) and not isinstance(out, Parts) else (out,)
        if len(results) != len(axes):
            raise ValueError(f"out has {len(results)} quantized tensors for {len(axes)} axes")
        given = [as_parts(each, "out") for each in results]
        written = listed(axes, given)
        called(OPS.quantize.out, args, out=written)
        copy_common(given, written)
        return out
    made = quantize_to_bytes(args)
    if FORMAT_ELEMENTS[str(format)] == FP4:
        made = tuple(parts._replace(data=parts.data.view(PAIRS)) for parts in made)
    return made if isinstance(axis, (tuple, list)) else made[0]


def arguments_of_quantize(
    x: Plain,
    format: Format | str,
    axes: list[Any],
    recipe: _RecipeLike | None = None,
    global_scale: float | torch.Tensor | None = None,
    rounding: _Rounding | None = None,
    seed: int | None = None,
    scale_layout: _ScaleLayout = "linear",
    pad: bool = False,
    hadamard: Sequence[int] | int | None = None,
) -> tuple[Any, ...]:
    """What the operation takes."""
    a = as_plain(x)
    unit = global_scale
    if isinstance(unit, (int, float, np.floating)):
        # Dynamo has no form for the check: there the graph itself refuses the number.
        unit = unit if torch.compiler.is_dynamo_compiling() else _core._as_float32(unit, "global_scale")
        unit = torch.full((), unit, dtype=torch.float32, device=a.data.device)
    check_tensors(global_scale=unit)
    if torch.compiler.is_dynamo_compiling():
        hadamard = constant_signs(hadamard)
    signs = None if hadamard is None else list(signs_of(hadamard))
    if recipe is None or isinstance(recipe, str):
        said = recipe or ""
    elif type(recipe) is Recipe and torch.compiler.is_dynamo_compiling():
        said = text_of_options(*[getattr(recipe, name) for name in OPTIONS])
    else:
        said = text_of(recipe)
    along = [each if type(each) is int else _core._parse_integer(each, "axis") for each in axes]
    name = format_name(format)
    return a.data, name, a.type, unit, said, along, rounding, signed(seed), scale_layout, flag_of(pad, "pad"), signs


def quantize_to_bytes(args: tuple[Any, ...]) -> tuple[Parts, ...]:
    """The parts along each axis as the operation gives them for its arguments: FP4 as bytes."""
    x, format, _, _, _, axes, *_, scale_layout, _, signs = args
    made = called(OPS.quantize.default, args)
    types = {each: type_of(format, each, scale_layout, signs) for each in axes}
    return by_axis(axes, made, types, tuple(x.shape))


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def signs_of(hadamard: Sequence[int] | int) -> tuple[int, ...]:
    """The signs that an argument stands for."""
    return hadamard if isinstance(hadamard, tuple) else _core._parse_hadamard(hadamard) or ()


def type_of(format: str, axis: int, scale_layout: str, signs: list[int] | None) -> str:
    """What the parts along an axis are: the text of their Encoding."""
    words = [format] if axis == -1 else [format, "columns"]
    if scale_layout != "linear":
        words.append(scale_layout)
    if signs is not None:
        words.append("hadamard=" + "".join(["-" if sign < 0 else "+" for sign in signs]))
    if format in ZERO_POINTS:
        words.append("offsets=" + ZERO_POINTS[format])
    return "/".join(words)


# The types of the zero points that quantize makes, of the formats that have some.
ZERO_POINTS = {name: own_offsets(row) for name, row in _core.formats().items() if own_offsets(row)}


def by_axis(
    axes: list[Any], parts: list[torch.Tensor], types: dict[Any, str], shape: tuple[int, ...]
) -> tuple[Parts, ...]:
    """The parts of each axis, of all in the order of :meth:`TensorProto.buffers`: two axes may share a global scale."""
    count = 2 if len(parts) in (2, 4) else 3
    first, second = parts[:count], parts[count:]
    if len(second) == 2 and count == 3:
        second = [*second, first[2]]
    found = {-1: first, -2: second} if len(axes) == 2 else {axes[0]: first}
    made = []
    for axis in axes:
        data, scales, *third = found[axis]
        has_offsets = "offsets=" in types[axis]
        unit, offsets = (None, *third) if has_offsets else (*third, None) if third else (None, None)
        made.append(Parts(data, scales, unit, types[axis], shape, offsets))
    return tuple(made)


def listed(axes: list[Any], results: list[Parts]) -> list[torch.Tensor]:
    """The parts of tensors along one axis or two as one list, in the order of :meth:`TensorProto.buffers`."""
    found: list[torch.Tensor] = []
    for axis in sorted(axes, reverse=True):
        result = results[axes.index(axis)]
        parts = [part for part in (*result[:3], result.offsets) if part is not None]
        shared = len(parts) == 3 and len(found) > 2 and is_common(result, found[2])
        found += parts[:2] if shared else parts
    return found


def is_common(result: Parts, unit: torch.Tensor) -> bool:
    """Whether the global scale of a tensor along one axis is that of it along the other: one of all values, which are
    others along each where they are transformed.
    """
    own = result.global_scale
    return own is unit or (own is not None and own.dim() == unit.dim() == 0 and "hadamard" not in result.type)


def copy_common(results: list[Parts], written: list[torch.Tensor]) -> None:
    """Of tensors along two axes that have memory of their own, fill in the global scale that was written once."""
    for result in results:
        unit = result.global_scale
        if unit is not None and unit is not written[2] and is_common(result, written[2]):
            unit.copy_(written[2])


def dequantize(q: Any, dtype: _DType | None = None, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """The values of a quantized tensor; see :func:`dlfp4.dequantize`.

    Parameters
    ----------
    q : ScaledTensor or Parts
        What ``dlfp4.torch.quantize`` returns, or its parts.
    dtype : dtype-like, optional
        float32, bfloat16 or float16; of a ScaledTensor also float64, with the values of float32. Default: that of
        `out`, else float32, whereas :meth:`ScaledTensor.dequantize` has the type of the tensor.
    out : torch.Tensor, optional
        Memory for the result, of float32, bfloat16 or float16; without a gradient.

    Returns
    -------
    torch.Tensor
        ``(..., K)``. Gradients pass through to a ScaledTensor.

    Raises
    ------
    TypeError, ValueError
        As :func:`dlfp4.dequantize`.

    Examples
    --------
    >>> import torch, dlfp4.torch
    >>> dlfp4.torch.dequantize(dlfp4.torch.quantize(torch.ones(1, 32), "nvfp4"), "bfloat16").sum()
    tensor(32., dtype=torch.bfloat16)
    """
    if isinstance(q, Memoryless) and out is None:
        values: torch.Tensor = q.dequantize("float32" if dtype is None else dtype)
        return values
    a = Parts(q) if is_whole(q) else as_quantized(q)
    return run(OPS.dequantize, (*a, type_of_result(dtype, out) or "float32"), out)


# ---- Products


def dot(a: Any, b: Any, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """The sum of products of two vectors; see :func:`dlfp4.dot`.

    Parameters
    ----------
    a, b : torch.Tensor, ScaledTensor or Parts
        ``(K,)`` each.
    out : torch.Tensor, optional
        Memory for the result.

    Returns
    -------
    torch.Tensor
        0-d float32.

    Raises
    ------
    TypeError, ValueError
        As :func:`dlfp4.dot`.

    Examples
    --------
    >>> import torch, dlfp4.torch
    >>> dlfp4.torch.dot(torch.ones(4), torch.ones(4))
    tensor(4.)
    """
    return run(OPS.dot, both(a, b), out)


def vecdot(a: Any, b: Any, axis: int = -1, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """Sums of products along one axis; see :func:`dlfp4.vecdot`.

    Parameters
    ----------
    a, b : torch.Tensor, ScaledTensor or Parts
        Of one element type, or of two floating-point ones.
    axis : int
        The axis to sum over, in both operands; the other axes broadcast.
    out : torch.Tensor, optional
        Memory for the result.

    Returns
    -------
    torch.Tensor
        float32, of the broadcast shape without `axis`.

    Raises
    ------
    TypeError, ValueError
        As :func:`dlfp4.vecdot`.

    Examples
    --------
    >>> import torch, dlfp4.torch
    >>> dlfp4.torch.vecdot(torch.ones(2, 4), torch.ones(4))
    tensor([4., 4.])
    """
    return run(OPS.vecdot, (*both(a, b), axis), out)


def both(a: Any, b: Any) -> tuple[Any, ...]:
    """Two operands in the order of the schemas."""
    left, right = as_operand(a, "a"), as_operand(b, "b")
    return (left.data, *right, *left[1:])


def as_operand(x: Any, name: str) -> Parts:
    """An operand as it is given to an operation: in its parts, or whole."""
    return Parts(x) if is_whole(x) else as_parts(x, name)


def is_whole(x: Any) -> bool:
    """Whether an operation is to have a quantized tensor whole, as autograd follows it: its parts have no gradient."""
    return hasattr(type(x), "__dlfp4_parts__") and is_differentiated(x)


def matmul(
    a: Any,
    b: Any,
    *,
    alpha: float | None = None,
    out_dtype: _DType | None = None,
    out: torch.Tensor | None = None,
    activation: Activation | None = None,
    backend: str = "auto",
) -> torch.Tensor:
    """The matrix product ``alpha * a @ b`` of low-precision tensors; see :func:`dlfp4.matmul`.

    Parameters
    ----------
    a : torch.Tensor, ScaledTensor or Parts
        ``(..., M, K)`` or ``(K,)``.
    b : torch.Tensor, ScaledTensor or Parts
        ``(K, N)``: usually ``w.mT`` of what ``dlfp4.torch.quantize`` made of a weight ``(N, K)``.
    alpha : float, optional
        A factor of the result.
    out_dtype : dtype-like, optional
        float32, bfloat16 or float16. Default: that of `out`, else a's if it is one of these, else float32.
    out : torch.Tensor, optional
        Memory for the result; without a gradient.
    activation, backend
        As :func:`dlfp4.matmul`.

    Returns
    -------
    torch.Tensor
        ``(..., M, N)``. Gradients flow to floats, and to a ScaledTensor that requires one, such as a quantized master
        weight: to `a` by the decoded `b`, and the other way round, as of the product without the rounding that
        `activation` asks for. Under ``torch.autocast`` a float32 `a` is cast as that of ``torch.matmul``.

    Raises
    ------
    ValueError, TypeError, BackendError
        As :func:`dlfp4.matmul`.

    Examples
    --------
    >>> import torch, dlfp4.torch
    >>> w = dlfp4.torch.quantize(torch.eye(2, 32), "mxfp4")
    >>> dlfp4.torch.matmul(torch.full((1, 32), 3.0), w.mT)
    tensor([[3., 3.]])
    """
    name = type_of_result(out_dtype, out)
    return run(OPS.matmul, (*both(a, b), alpha, name, activation, backend), out)


def grouped_matmul(
    x: Any,
    w: Any,
    offsets: torch.Tensor,
    *,
    indices: torch.Tensor | None = None,
    weights: torch.Tensor | None = None,
    tokens: int | None = None,
    alpha: float | None = None,
    out_dtype: _DType | None = None,
    out: torch.Tensor | None = None,
    activation: Activation | None = None,
) -> torch.Tensor:
    """Rows times the matrices of their experts; see :func:`dlfp4.grouped_matmul`.

    Parameters
    ----------
    x : torch.Tensor, ScaledTensor or Parts
        ``(R, K)``, rows sorted by expert, or with `indices` ``(T, K)``, tokens.
    w : torch.Tensor, ScaledTensor or Parts
        ``(E, K, N)``: usually ``w.mT`` of what ``dlfp4.torch.quantize`` made of a stack ``(E, N, K)``.
    offsets : torch.Tensor
        ``(E,)`` int32 or int64: where the rows of each expert end.
    indices, weights, tokens
        As :func:`dlfp4.grouped_matmul`.
    alpha, out_dtype, out, activation
        As :func:`matmul`.

    Returns
    -------
    torch.Tensor
        ``(R, N)``; with `weights` ``(T, N)``. Gradients flow to `x` by the decoded `w`, to a `w` of floats or a
        ScaledTensor that requires one, and to `weights`, as of the product without the rounding that `activation` asks
        for. Under ``torch.autocast`` float32 operands are cast as those of ``torch.matmul``.

    Raises
    ------
    ValueError, TypeError, BackendError
        As :func:`dlfp4.grouped_matmul`.

    Examples
    --------
    >>> import torch, dlfp4.torch
    >>> w = dlfp4.torch.quantize(torch.stack([torch.eye(2, 32), 2 * torch.eye(2, 32)]), "mxfp4")
    >>> ends = torch.tensor([1, 3], dtype=torch.int32)
    >>> dlfp4.torch.grouped_matmul(torch.ones(3, 32), w.mT, ends)[:, 0]
    tensor([1., 2., 2.])
    """
    if offsets is None:
        raise TypeError("offsets is None; expected a torch.Tensor: where the rows of each expert end")
    check_tensors(offsets=offsets, indices=indices, weights=weights)
    name = type_of_result(out_dtype, out)
    left, right = as_operand(x, "x"), as_operand(w, "w")
    operands = (left.data, right.data, offsets, *right[1:], *left[1:])
    return run(OPS.grouped_matmul, (*operands, indices, weights, tokens, alpha, name, activation), out)
