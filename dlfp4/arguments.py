"""What :func:`matmul` and :func:`grouped_matmul` share: their options, activations in a format, memory of results."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from dlfp4 import _core
from dlfp4._core import (
    BackendError,
    ScaledTensor,
    Tensor,
    _allocate_result,
    _as_float32,
    _borrow_out,
    _check_out_product,
    _parse_dtype,
    quantize,
)
from dlfp4.engines.problem import FLOAT_NUMBERS, Operand, Problem, has_fp4_blocks
from dlfp4.formats import ACTIVATIONS, FLOATS

if TYPE_CHECKING:
    from dlfp4._core import _DType, _Elements
    from dlfp4.formats import Activation, Format

Rotate: TypeAlias = Callable[[Operand, Operand, int | None], tuple[Operand, Operand]]

FLOAT32 = np.dtype(np.float32)
ROUNDED = ("float64", *FLOATS)  # what quantize takes


def describe_product(
    a: Operand,
    b: Operand,
    alpha: float | None,
    out_dtype: _DType | None,
    activation: Activation | None,
    stream: int | None,
    rotate: Rotate,
    name: str,
) -> Problem:
    """Operands whose shapes fit as they are multiplied, `rotate` having undone transforms; messages call a by `name`.

    Activations are still as they came: see `rounded`.
    """
    check_activation(activation, a, b, name)
    dtype = result_dtype(a, out_dtype)
    factor = 1.0 if alpha is None else _as_float32(alpha, "alpha")
    left, right = rotate(a, b, stream)
    return Problem(left, right, dtype, factor, activation, stream)


def result_dtype(a: Operand, asked: _DType | None) -> np.dtype[Any]:
    """What was asked for, else a's float type, else float32."""
    if asked is None:
        own = a.dtype if isinstance(a, Tensor) else FLOAT32
        return own if own.num in FLOAT_NUMBERS else FLOAT32
    dtype = _parse_dtype(asked)
    if dtype.num not in FLOAT_NUMBERS:
        raise TypeError(f"a result of {dtype} was asked for, by out_dtype or out; expected one of {', '.join(FLOATS)}")
    return dtype


# ---- Activations


def check_activation(activation: Activation | None, a: Operand, b: Operand, name: str) -> None:
    """Whether there is such a rounding of activations, and it can be done to `a` for the codes of `b`."""
    if activation is None:
        return
    check_named(activation)
    if isinstance(a, ScaledTensor):
        raise BackendError(f"activation={activation!r} rounds floats, and {name} is quantized already; leave it out")
    depth = a.shape[-1]
    if format_of(activation) is None:
        check_codes(activation, b)
        return
    if str(a.dtype) not in ROUNDED:
        raise TypeError(
            f"activation={activation!r} rounds floats, and {name} has dtype {a.dtype}; expected one of "
            f"{', '.join(ROUNDED)}"
        )
    if reason := refuses_depth(activation, depth):
        raise ValueError(
            f"activation={activation!r}: {reason}; complete both operands with zeros, or pass activation='fp8_1x128' "
            f"or 'fp8_row', which take any K"
        )


def refuses_depth(activation: Activation, depth: int) -> str | None:
    """Whether lines of so many elements do not divide into the blocks of an activation."""
    format = format_of(activation)
    if format is None:
        return None
    row = _core._find_format(format)
    length = row.block_in(1, depth)[1]
    if row.kind == "power" and depth % length:  # float32 scales serve shorter blocks as well
        return f"K is {depth}, and the blocks of {format} have {length} elements"
    return None


def check_layer(activation: Activation | None, format: Format, depth: int, name: str) -> None:
    """Whether a layer, which messages call by `name`, can round its inputs for weights of a format and of that K."""
    if activation is None:
        return
    if format_of(activation) is None and not has_fp4_blocks(format):
        raise ValueError(
            f"activation={activation!r} is for weights of FP4 in blocks, such as nvfp4 or mxfp4, and {name} is to be "
            f"{format}; pass another activation, such as 'fp8_row', or leave it out"
        )
    if reason := refuses_depth(activation, depth):
        raise ValueError(
            f"activation={activation!r}: {reason}, in {name}; pass activation='fp8_1x128' or 'fp8_row', which take "
            f"any K"
        )


def check_codes(activation: Activation, b: Operand) -> None:
    """Whether the codes of weights can meet integers: they stand for transformed values until they are decoded."""
    if isinstance(b, ScaledTensor) and b.hadamard is not None:
        raise BackendError(
            f"activation={activation!r} multiplies the codes of weights, and these were transformed by hadamard=, so "
            f"that they are decoded first: quantize weights without hadamard=, or leave activation out"
        )


def check_named(activation: object) -> None:
    """Whether there is such a rounding of activations."""
    if not (activation is None or (isinstance(activation, str) and activation in ACTIVATIONS)):
        raise ValueError(f"activation={activation!r}: expected None or one of {', '.join(map(repr, ACTIVATIONS))}")


def rounded(problem: Problem) -> Problem:
    """The product of activations in the format that was asked for; integers are made by the kernels that read them."""
    format = format_of(problem.activation)
    if format is None:
        return problem
    floats: Any = problem.a
    return problem._replace(a=quantize(floats, format, stream=problem.stream), activation=None)


def format_of(activation: Activation | None) -> str | None:
    """The format in which activations are multiplied."""
    return None if activation is None else ACTIVATIONS[activation]


# ---- Memory of results


def borrow_result(out: _Elements | None, out_dtype: _DType | None) -> tuple[Tensor | None, _DType | None]:
    """The caller's memory, and the type that is asked for: its own unless another one is named."""
    if out is None:
        return None, out_dtype
    given = _borrow_out(out)
    return given, given.dtype if out_dtype is None else out_dtype


def prepare_result(
    problem: Problem, shape: tuple[int, ...], given: Tensor | None, inputs: tuple[Operand | None, ...]
) -> Tensor:
    """The caller's memory, which shares none with what it passed, or our own."""
    if given is None:
        return _allocate_result(problem.a, shape, problem.dtype, problem.stream)
    _check_out_product(given, shape, problem.dtype, inputs)
    return given
