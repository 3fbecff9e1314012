"""Matrix products of low-precision tensors: who can multiply them, in which order they are asked, and the call.

A backend is a row: its name, what it takes, its tactics, how it runs. It says why it does not take a problem, instead
of failing at it. To add one, write its file in ``dlfp4/engines`` and append its row to ``BACKENDS``.
"""

from __future__ import annotations

from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Never

from dlfp4 import _core
from dlfp4._core import (
    _ON_CUDA,
    BackendError,
    ScaledTensor,
    Tensor,
    _has_memory,
    _is_outline,
    _meet,
    _stream_of_product,
    _traits,
    _with_equal_rotations,
    asarray,
    cuda_available,
)
from dlfp4.arguments import borrow_result, describe_product, prepare_result, rounded
from dlfp4.autotune import choose, is_idle
from dlfp4.engines import cpu, cuda, cuda_fp8, flashinfer, scaled_mm, torch
from dlfp4.engines.problem import Backend, Machine, Operand, Problem
from dlfp4.suggest import did_you_mean, is_one_of

if TYPE_CHECKING:
    from dlfp4._core import Device, _DType, _Elements, _Stream
    from dlfp4.formats import Activation

# ---- The table: of backends of equal rank `auto` asks the first one first

BACKENDS: tuple[Backend, ...] = (
    cpu.BACKEND,
    cuda.BACKEND,
    cuda_fp8.BACKEND,
    torch.BACKEND,
    scaled_mm.BACKEND,
    flashinfer.BACKEND,
)


@cache
def machine_at(device: Device, rows: tuple[Backend, ...]) -> Machine:
    """What there is where a tensor lies."""
    # Metadata of CUDA memory needs no driver. One that fails is asked again: what raises is not remembered.
    capability = _core._cuda_capability_if_any(device.index) if device.type in _ON_CUDA else None
    return Machine(capability, MappingProxyType({row.name: row.missing() for row in rows}))


def reason_of(backend: Backend, problem: Problem, machine: Machine) -> str | None:
    """Why a backend does not serve, or None."""
    return machine.missing[backend.name] or backend.supports(problem, machine)


def order(problem: Problem, machine: Machine, rows: tuple[Backend, ...]) -> list[Backend]:
    """The backends among which "auto" chooses, the best guess first: a pure function."""
    able = [
        row for row in rows if reason_of(row, problem, machine) is None and row.only_by_name(problem, machine) is None
    ]
    return sorted(able, key=lambda row: row.rank(problem, machine))


def head(problem: Problem, machine: Machine, rows: tuple[Backend, ...]) -> list[Backend]:
    """The first of `order`, without asking those that cannot come before it: reasons take time."""
    found: list[tuple[int, Backend]] = []
    for row in rows:
        if reason_of(row, problem, machine) is None and row.only_by_name(problem, machine) is None:
            found.append((row.rank(problem, machine), row))
            if found[-1][0] == 0:
                break
    return [min(found, key=lambda each: each[0])[1]] if found else []


def refusals(problem: Problem, machine: Machine, rows: tuple[Backend, ...]) -> dict[str, str | None]:
    """Why "auto" does not choose each backend, or None where it may; those first among which it chooses."""
    able = {row.name: None for row in order(problem, machine, rows)}
    others = {
        row.name: reason_of(row, problem, machine) or f"only by its name: {row.only_by_name(problem, machine)}"
        for row in rows
        if row.name not in able
    }
    return able | others


ABLE: dict[tuple[Any, ...], list[Backend]] = {}  # by all that reasons and ranks depend on; refusals are found anew
MOST_ABLE = 4096


def candidates(problem: Problem, name: object) -> list[Backend]:
    """The backends that may run a problem, or the one of that name, from memory if they were asked before."""
    key = (_traits(problem.a), _traits(problem.b), problem.dtype.num, problem.activation, name, is_idle(), BACKENDS)
    able = ABLE.get(key) if isinstance(name, str) else None
    if able is None:
        able = ask(problem, name)
        if len(ABLE) >= MOST_ABLE:
            ABLE.clear()
        ABLE[key] = able
    return able


def ask(problem: Problem, name: object) -> list[Backend]:
    """The backends that may run a problem, or the one of that name; BackendError with every reason.

    Where nothing was measured, the best guess alone. Outlines on a CUDA device, which need not be here, have none.
    """
    if _is_outline(problem.a) and problem.device.type in _ON_CUDA:
        return []
    rows, machine = BACKENDS, machine_at(problem.device, BACKENDS)
    if is_one_of(name, ("auto",)):
        able = (head if is_idle() else order)(problem, machine, rows)
        reasons = {} if able else refusals(problem, machine, rows)
    else:
        named = [row for row in rows if is_one_of(name, (row.name,))]
        if not named:
            names = [row.name for row in rows]
            near = did_you_mean(name, ["auto", *names])
            raise ValueError(f"backend={name!r}: expected 'auto' or one of {', '.join(names)}{near}")
        reasons = {row.name: reason_of(row, problem, machine) for row in named}
        able = [row for row in named if reasons[row.name] is None]
    if not able:
        told = "\n  ".join(f"{row}: {reason}" for row, reason in reasons.items())
        raise BackendError(f"no backend multiplies these operands:\n  {told}")
    return able


def backends(
    a: _Elements | ScaledTensor | None = None, b: _Elements | ScaledTensor | None = None
) -> dict[str, str | None]:
    """Each backend of :func:`matmul` in the order in which it is asked, and why it cannot serve.

    Parameters
    ----------
    a, b : producer or ScaledTensor, optional
        Operands of a product; without both only the machine counts.

    Returns
    -------
    dict
        Name to reason, or to None where "auto" may choose the backend; these come first, the best guess at their head.
        A reason that begins with "only by its name" is of a backend that multiplies if it is asked to.

    Examples
    --------
    >>> import dlfp4
    >>> dlfp4.backends()["cpu"] is None
    True
    """
    if a is None and b is None:
        no_gpu = None if cuda_available() else "no CUDA device can be used here"
        told = {row.name: row.missing() or (no_gpu if row.needs_gpu else None) for row in BACKENDS}
        return dict(sorted(told.items(), key=lambda item: item[1] is not None))
    if a is None or b is None:
        raise TypeError("backends() takes both operands of a product, or none")
    problem = make_problem(a, b, None, None, None)
    return refusals(problem, machine_at(problem.device, BACKENDS), BACKENDS)


# ---- The call


def refuse_shapes(of_a: tuple[int, ...], of_b: tuple[int, ...]) -> Never:
    """Of operands that do not fit together."""
    came, expected = f"a has shape {of_a} and b {of_b}", "expected (..., M, K) and (K, N)"
    if of_a and len(of_b) == 2:
        raise ValueError(f"{came}: K is {of_a[-1]} and {of_b[0]}; {expected}, for a weight w of (N, K) pass w.mT")
    instead = {1: ": for a vector b pass b.reshape(-1, 1)", 3: ": stacks of matrices are for grouped_matmul"}
    raise ValueError(f"{came}; {expected}{instead.get(len(of_b), '') if of_a else ''}")


def as_operands(a: _Elements | ScaledTensor, b: _Elements | ScaledTensor) -> tuple[Operand, Operand]:
    """The operands as they are, checked against one another."""
    left = a if isinstance(a, ScaledTensor) else asarray(a)
    right = b if isinstance(b, ScaledTensor) else asarray(b)
    of_a, of_b = left.shape, right.shape
    if not of_a or len(of_b) != 2 or of_a[-1] != of_b[0]:
        refuse_shapes(of_a, of_b)
    return _meet(left, right)


def make_problem(
    a: _Elements | ScaledTensor,
    b: _Elements | ScaledTensor,
    alpha: float | None,
    out_dtype: _DType | None,
    activation: Activation | None,
) -> Problem:
    """A product whose result gets memory of its own."""
    left, right = as_operands(a, b)
    place = _stream_of_product(left, right, (a, b, None), None)
    return describe_product(left, right, alpha, out_dtype, activation, place, _with_equal_rotations, "a")


def matmul(
    a: _Elements | ScaledTensor,
    b: _Elements | ScaledTensor,
    *,
    alpha: float | None = None,
    out_dtype: _DType | None = None,
    out: _Elements | None = None,
    activation: Activation | None = None,
    backend: str = "auto",
    stream: _Stream | None = None,
) -> Tensor:
    """The matrix product ``alpha * a @ b`` of low-precision tensors.

    Parameters
    ----------
    a : producer or ScaledTensor
        ``(..., M, K)`` or ``(K,)``: floats of at most 32 bits, not float8_e8m0fnu, or a :class:`ScaledTensor` with
        blocks along K; blocks along M are decoded first, by a framework's backend.
    b : producer or ScaledTensor
        ``(K, N)``: usually ``w.mT`` of a ScaledTensor w that was quantized as ``(N, K)`` along its last axis; on a GPU
        best ``w.prepare().mT``, see :meth:`ScaledTensor.prepare`.
    alpha : float, optional
        A factor of the result.
    out_dtype : dtype-like, optional
        float32, bfloat16 or float16. Default: that of `out`, else a's if it is one of these, else float32.
    out : producer, optional
        Writable memory of the result's shape and dtype, which shares none with the operands; a matrix of any strides,
        or compact.
    activation : {"int8", "fp8_1x128", "mxfp8", "fp8_row"}, optional
        Round a float `a` on the way, which is faster and not exact. "fp8_1x128", "mxfp8" (mxfp8_e4m3) and "fp8_row":
        `a` is quantized to that format by its default recipe, and the result has the bits of that ScaledTensor's
        product. "int8", for FP4 weights on hosts: to blocks of 32, with a scale of largest magnitude / 127 each.
    backend : str
        "auto", the first one of :func:`backends` or, after :func:`autotune`, the one measured to be the fastest; or a
        name.
    stream : int or stream object, optional
        CUDA memory: where to run; see :func:`cast`.

    Returns
    -------
    Tensor
        ``(..., M, N)``.

    Raises
    ------
    ValueError
        Shapes that do not fit, `out` of another shape, unknown options, K that blocks of the activation do not divide.
    TypeError
        `out` or `out_dtype` of a type that results do not have.
    BackendError
        No backend takes the operands; the message has the reason of each.

    Notes
    -----
    Against the float64 product of the decoded operands: ``abs(error) <= max(K, 16) * 2**-24 * sum(abs(a * b))``, with
    `alpha` as float32, and one rounding to the result's type. On hosts at most 1024 products go into one float32 before
    such sums are added in float64; tensor cores sum in float32. The scale of a whole tensor multiplies sums, and that
    of a block may multiply the sum of its products: a sum must not overflow float32 without them (large finite values
    by tiny scales give infinity or NaN), and an infinite scale counts once for the block. What a sum loses below
    float32's normal numbers is at most ``K * 2**-149`` beside that, before `alpha` and scales multiply the sum: it is
    seen in results near 2**-126, or where these are huge. Where a host multiplies in bfloat16 (AVX-512 BF16, AMX),
    operands (elements times the scales of their blocks), the last bits of a float32 `a`, products and sums count as
    zero below 2**-126: the bound holds for operands of at least that magnitude, a float32 `a` of 2**-100 and more, and
    sums lose at most ``K * 2**-123``. Decoded FP4 and FP8 are exact in what is multiplied: integers (FP4 by
    FP4), bfloat16, float16 or float32. NaN and infinity propagate as in float arithmetic; with ``activation="int8"`` a
    block of `a` that holds one is NaN as a whole, and one without magnitudes of 2**-110 or more is zeros. With other
    activations `a` is what :func:`quantize` makes of it: infinities may become the format's largest values. Results do
    not depend on the number of threads, and a tactic gives the same bits at each call.

    FP8 by FP8 on a GPU of compute capability 9.0, where each side has float32 scales for 128 elements or more, or none,
    is an exception: its tensor cores (backend "cuda_fp8") keep 13 bits below the largest when they sum 128 products;
    what is smaller is lost. Those sums are added in float32. The error of random values is below
    ``2**-10 * sum(abs(a * b))``, and at most ``2**-6`` of that sum. ``backend="torch"`` decodes, within the bound.

    Examples
    --------
    >>> import numpy as np, dlfp4
    >>> w = dlfp4.quantize(np.eye(2, 32, dtype="float32"), "mxfp4")
    >>> dlfp4.matmul(np.full((1, 32), 3, "float32"), w.mT)
    Tensor([[3., 3.]], shape=(1, 2), dtype=float32, device='cpu')
    """
    given, dtype = borrow_result(out, out_dtype)
    left, right = as_operands(a, b)
    place = _stream_of_product(left, right, (a, b, out), stream)
    problem = describe_product(left, right, alpha, dtype, activation, place, _with_equal_rotations, "a")
    multiplied = rounded(problem)
    able = candidates(multiplied, backend)
    result = prepare_result(problem, problem.shape, given, (left, right))
    if _has_memory(result):
        row, tactic = choose(multiplied, able)
        row.run(multiplied, tactic, result)
    return result
