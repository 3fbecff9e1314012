"""Matrix products of low-precision tensors: who can multiply them, in which order they are asked, and the call.

A backend is a row: its name, what it takes, its tactics, how it runs. It says why it does not take a problem, instead
of failing at it. To add one, write its functions and append its row to ``BACKENDS``.
"""

from __future__ import annotations

import importlib.util
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from dlfp4._core import (
    BackendError,
    ScaledTensor,
    Tensor,
    _check_result,
    _multiply_on_host,
    _parse_dtype,
    _written_on,
    asarray,
    cast,
    dequantize,
    empty,
)

if TYPE_CHECKING:
    from dlfp4._core import _DType, _Elements, _Stream

Operand: TypeAlias = Tensor | ScaledTensor

RESULTS = ("float32", "bfloat16", "float16")
LOW = (
    *("float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2"),
    *("float8_e5m2fnuz", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"),
)
# By NumPy's numbers, for a type's name costs it a microsecond.
RESULT_NUMBERS = frozenset(_parse_dtype(name).num for name in RESULTS)
FACTORS = frozenset(_parse_dtype(name).num for name in (*RESULTS, *LOW))
FP4 = _parse_dtype("float4_e2m1fn")
ONE_TACTIC = ("default",)


@dataclass(frozen=True, slots=True)
class Problem:
    """One matrix product: a of (..., M, K) and b of (K, N), and what is to become of it."""

    a: Operand
    b: Operand
    dtype: np.dtype[Any]
    alpha: float = 1.0
    activation: Literal["int8"] | None = None
    stream: _Stream | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the result."""
        return (*self.a.shape[:-1], self.b.shape[-1])


@dataclass(frozen=True, slots=True)
class Backend:
    """A way to multiply.

    Parameters
    ----------
    name : str
        What ``matmul(backend=...)`` takes.
    missing : callable
        Why this machine does not have it, or None.
    supports : callable
        Why it does not take a problem, or None where it does.
    tactics : callable
        The names of its ways to run a problem, the best guess first.
    run : callable
        Writes the product of a problem by a tactic to a Tensor.
    """

    name: str
    missing: Callable[[], str | None]
    supports: Callable[[Problem], str | None]
    tactics: Callable[[Problem], tuple[str, ...]]
    run: Callable[[Problem, str, Tensor], None]


# ---- What several backends ask


def element_of(x: Operand) -> np.dtype[Any]:
    """The type of an operand's elements."""
    return x.data.dtype if isinstance(x, ScaledTensor) else x.dtype


def not_on_host(problem: Problem) -> str | None:
    """Which operand the CPU cannot read."""
    for name, x in (("a", problem.a), ("b", problem.b)):
        if x.device.type not in ("cpu", "cuda_host", "rocm_host"):
            return f"{name} lies on {x.device}, and this backend reads host memory; call .to_device('cpu') first"
    return None


def not_floats(problem: Problem) -> str | None:
    """Which operand has elements that are no floats of at most 32 bits."""
    for name, x in (("a", problem.a), ("b", problem.b)):
        dtype = element_of(x)
        if dtype.num not in FACTORS:
            return f"{name} has dtype {dtype}; expected floats of at most 32 bits, or a ScaledTensor; cast it first"
    return None


# ---- Our own kernels on the host


def never_missing() -> str | None:
    """What every machine has."""
    return None


def cpu_supports(problem: Problem) -> str | None:
    """Any floats and formats whose blocks run along K."""
    for name, x, axis in (("a", problem.a, -1), ("b", problem.b, -2)):
        if isinstance(x, ScaledTensor) and x.axis != axis:
            return (
                f"the blocks of {name}, {x!r}, run across the products' sums; quantize a of (M, K) and w of (N, K) "
                f"along the last axis and pass a and w.mT, or dequantize {name}"
            )
    return not_on_host(problem) or not_floats(problem) or cpu_refuses_activation(problem)


def cpu_refuses_activation(problem: Problem) -> str | None:
    """Rounding to int8 is for float activations and FP4 weights."""
    if problem.activation is None:
        return None
    if isinstance(problem.a, ScaledTensor):
        return "activation='int8' rounds a float a, and this a is quantized already; leave activation out"
    if not isinstance(problem.b, ScaledTensor) or element_of(problem.b) != FP4 or problem.b.format.block is None:
        return "activation='int8' needs b to be a ScaledTensor of FP4: nvfp4 or mxfp4"
    return None


def one_tactic(problem: Problem) -> tuple[str, ...]:  # noqa: ARG001
    """Of backends that choose for themselves."""
    return ONE_TACTIC


def cpu_run(problem: Problem, tactic: str, out: Tensor) -> None:  # noqa: ARG001
    """By dlfp4_matmul."""
    _multiply_on_host(problem.a, problem.b, out, problem.alpha, problem.activation == "int8")


# ---- PyTorch: decode, then its own product


@cache
def torch_missing() -> str | None:
    """Whether PyTorch can be imported; it is not, before it multiplies."""
    return None if importlib.util.find_spec("torch") else "PyTorch is not installed; pip install 'dlfp4[torch]'"


def torch_supports(problem: Problem) -> str | None:
    """Whatever can be decoded, both on the host or both on one CUDA device."""
    if problem.activation is not None:
        return "it multiplies decoded values and does not round activations; leave activation out"
    return not_together(problem) or not_floats(problem)


def not_together(problem: Problem) -> str | None:
    """Whether the operands lie apart, or where PyTorch does not multiply."""
    a, b = problem.a.device, problem.b.device
    if "cuda" not in (a.type, b.type):
        return not_on_host(problem)
    return None if a == b else f"a lies on {a}, b on {b}; bring them together with .to_device({str(a)!r})"


def torch_run(problem: Problem, tactic: str, out: Tensor) -> None:  # noqa: ARG001
    """On the host both sides as float32, so that operands are exact."""
    import torch

    if problem.a.device.type == "cuda":
        return torch_run_on_cuda(problem, out)
    a, b = (decode(x).to_torch() for x in (problem.a, problem.b))
    product = torch.matmul(a, b) * problem.alpha
    out.to_torch().copy_(product)
    return None


def decode(x: Operand) -> Tensor:
    """An operand's values."""
    return x.dequantize("float32") if isinstance(x, ScaledTensor) else asarray(x, dtype="float32")


def torch_run_on_cuda(problem: Problem, out: Tensor) -> None:
    """By tensor cores, where a type of 16 bits holds both sides: they sum in float32, and nothing is rounded before.

    What scales a whole tensor multiplies the float32 result.
    """
    import torch

    name = next(
        t for t in ("bfloat16", "float16", "float32") if all(t in exact_types(x) for x in (problem.a, problem.b))
    )
    with torch.cuda.device(problem.a.device.index), torch.cuda.stream(torch_stream(problem.stream)):
        here = torch.cuda.current_stream()
        (a, a_scale), (b, b_scale) = (values_on_cuda(x, name, here) for x in (problem.a, problem.b))
        options = {} if name == "float32" else {"out_dtype": torch.float32}
        product = torch.mm(a.reshape(-1, a.shape[-1]), b, **options)
        for factor in (problem.alpha, a_scale, b_scale):
            if factor is not None:
                product *= factor
        out.to_torch().copy_(product.reshape(out.shape))
        _written_on(out, here.cuda_stream)


def torch_stream(stream: Any) -> Any:
    """A stream, in any of the forms that operations take, as PyTorch's."""
    import torch

    if stream is None or isinstance(stream, torch.cuda.Stream):
        return stream
    handle = stream.__cuda_stream__()[1] if hasattr(stream, "__cuda_stream__") else operator.index(stream)
    return torch.cuda.ExternalStream(handle)


def exact_types(x: Operand) -> tuple[str, ...]:
    """The types that hold an operand's values, but for a scale of the whole tensor, exactly."""
    if isinstance(x, ScaledTensor):
        if x.format.kind == "two_level" or x.format.block is None:  # 6 significant bits, from 2**-10 to 2688; FP8
            return RESULTS
        # MX: 4 significant bits and bfloat16's exponents, down to 2**-126.
        return ("bfloat16", "float32") if x.format.kind == "power" else ("float32",)
    if x.dtype.itemsize == 1:
        return RESULTS
    return (x.dtype.name, "float32")


def values_on_cuda(x: Operand, name: str, stream: Any) -> tuple[Any, Any]:
    """An operand as a PyTorch tensor of some type, and the scale of the whole tensor, if it is left out of that."""
    if not isinstance(x, ScaledTensor):
        return (x if x.dtype.name == name else cast(x, name, stream=stream)).to_torch(), None
    if x.axis == -2 and x.ndim == 2:  # the lines of its transpose are rows: less to turn around
        values, scale = values_on_cuda(x.mT, name, stream)
        return values.T, scale
    if x.format.block is None:
        return cast(x.data, name, stream=stream).to_torch().reshape(x.shape), x.scales.to_torch()
    if x.global_scale is None:
        return dequantize(x, name, stream=stream).to_torch(), None
    scale = x.global_scale.to_torch()
    bare = ScaledTensor.from_parts(
        x.data, x.scales, scale.new_ones(()), format=x.format, axis=x.axis, scale_layout=x.scale_layout, shape=x.shape
    )
    return dequantize(bare, name, stream=stream).to_torch(), scale


# ---- The table, in the order in which `auto` asks

BACKENDS = (
    Backend("cpu", never_missing, cpu_supports, one_tactic, cpu_run),
    Backend("torch", torch_missing, torch_supports, one_tactic, torch_run),
)


def reason_of(backend: Backend, problem: Problem) -> str | None:
    """Why a backend does not serve, or None."""
    return backend.missing() or backend.supports(problem)


def choose(problem: Problem, name: str) -> Backend:
    """The first backend that takes the problem, of all or of the one of that name; BackendError with every reason."""
    rows = [backend for backend in BACKENDS if name in ("auto", backend.name)]
    if not rows:
        raise ValueError(f"backend={name!r}: expected 'auto' or one of {', '.join(row.name for row in BACKENDS)}")
    reasons = []
    for backend in rows:
        reason = reason_of(backend, problem)
        if reason is None:
            return backend
        reasons.append(f"{backend.name}: {reason}")
    raise BackendError("no backend multiplies these operands:\n  " + "\n  ".join(reasons))


def backends(
    a: _Elements | ScaledTensor | None = None, b: _Elements | ScaledTensor | None = None
) -> dict[str, str | None]:
    """Each backend of :func:`matmul` in the order in which it is asked, and why it cannot serve.

    Parameters
    ----------
    a, b : producer or ScaledTensor, optional
        Operands of a product; without them only the machine counts.

    Returns
    -------
    dict
        Name to reason, or to None where the backend serves.

    Examples
    --------
    >>> import dlfp4
    >>> dlfp4.backends()["cpu"] is None
    True
    """
    if a is None or b is None:
        return {backend.name: backend.missing() for backend in BACKENDS}
    problem = make_problem(a, b, None, None, None)
    return {backend.name: reason_of(backend, problem) for backend in BACKENDS}


# ---- The call


def make_problem(
    a: _Elements | ScaledTensor,
    b: _Elements | ScaledTensor,
    alpha: float | None,
    out_dtype: _DType | None,
    activation: Literal["int8"] | None,
) -> Problem:
    """The operands as they are, checked against one another."""
    left = a if isinstance(a, ScaledTensor) else asarray(a)
    right = b if isinstance(b, ScaledTensor) else asarray(b)
    if left.ndim < 1 or right.ndim != 2:
        raise ValueError(f"a has shape {left.shape} and b {right.shape}; expected (..., M, K) and (K, N)")
    if left.shape[-1] != right.shape[0]:
        raise ValueError(
            f"a has shape {left.shape} and b {right.shape}: K is {left.shape[-1]} and {right.shape[0]}; expected "
            f"(..., M, K) and (K, N), for a weight w of (N, K) pass w.mT"
        )
    if activation not in (None, "int8"):
        raise ValueError(f"activation={activation!r}: expected None or 'int8'")
    return Problem(left, right, result_dtype(left, out_dtype), 1.0 if alpha is None else float(alpha), activation)


def result_dtype(a: Operand, asked: _DType | None) -> np.dtype[Any]:
    """What was asked for, else a's float type, else float32."""
    if asked is None:
        return a.dtype if isinstance(a, Tensor) and a.dtype.num in RESULT_NUMBERS else np.dtype(np.float32)
    dtype = _parse_dtype(asked)
    if dtype.num not in RESULT_NUMBERS:
        raise TypeError(f"out_dtype={asked}: expected one of {', '.join(RESULTS)}")
    return dtype


def prepare_result(problem: Problem, out: _Elements | None) -> Tensor:
    """The caller's memory, or our own."""
    if out is None:
        return empty(problem.shape, problem.dtype, device=problem.a.device)
    result = asarray(out)
    _check_result(result, problem.shape, problem.dtype, (problem.a, problem.b))
    return result


def matmul(
    a: _Elements | ScaledTensor,
    b: _Elements | ScaledTensor,
    *,
    alpha: float | None = None,
    out_dtype: _DType | None = None,
    out: _Elements | None = None,
    activation: Literal["int8"] | None = None,
    backend: str = "auto",
    stream: _Stream | None = None,
) -> Tensor:
    """The matrix product ``alpha * a @ b`` of low-precision tensors.

    Parameters
    ----------
    a : producer or ScaledTensor
        ``(..., M, K)`` or ``(K,)``: floats of at most 32 bits, or a :class:`ScaledTensor` with blocks along K.
    b : producer or ScaledTensor
        ``(K, N)``: usually ``w.mT`` of a ScaledTensor w that was quantized as ``(N, K)`` along its last axis.
    alpha : float, optional
        A factor of the result.
    out_dtype : dtype-like, optional
        float32, bfloat16 or float16. Default: that of `out`, else a's if it is one of these, else float32.
    out : producer, optional
        Writable memory of the result's shape and dtype, which shares none with the operands.
    activation : {"int8"}, optional
        Round a float `a` to int8 in blocks of 32, with a scale of largest magnitude / 127 each, on the way to FP4
        weights: faster on hosts, not exact.
    backend : str
        "auto", or a name of :func:`backends`.
    stream : int or stream object, optional
        For CUDA memory.

    Returns
    -------
    Tensor
        ``(..., M, N)``.

    Raises
    ------
    ValueError
        Shapes that do not fit, `out` of another shape, unknown options.
    TypeError
        `out` or `out_dtype` of a type that results do not have.
    BackendError
        No backend takes the operands; the message has the reason of each.

    Notes
    -----
    Against the float64 product of the decoded operands: ``abs(error) <= K * 2**-24 * sum(abs(a * b))``, and one
    rounding to the result's type. At most 1024 products go into one float32 before such sums are added in float64.
    Decoded FP4 and FP8 are exact in what is multiplied: integers (FP4 by FP4), bfloat16 or float32. NaN and infinity
    propagate as in float arithmetic; with ``activation="int8"`` a block of `a` that holds one is NaN as a whole.
    Results do not depend on the number of threads.

    Examples
    --------
    >>> import numpy as np, dlfp4
    >>> w = dlfp4.quantize(np.eye(32, dtype="float32"), "mxfp4")
    >>> dlfp4.matmul(np.ones((2, 32), "float32"), w.mT)
    Tensor(shape=(2, 32), dtype=float32, device='cpu')
    """
    if out is not None and out_dtype is None:
        out_dtype = asarray(out).dtype
    problem = replace(make_problem(a, b, alpha, out_dtype, activation), stream=stream)
    chosen = choose(problem, backend)
    if stream is not None and problem.a.device.type == "cpu":
        raise ValueError(f"stream={stream!r}: host memory has no streams; pass None")
    result = prepare_result(problem, out)
    if result.size:
        chosen.run(problem, chosen.tactics(problem)[0], result)
    return result
