"""Products of rows that are divided among experts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Never

import ml_dtypes
import numpy as np

from dlfp4._core import (
    _ON_CUDA,
    BackendError,
    ScaledTensor,
    Tensor,
    _has_grouped,
    _is_outline,
    _meet,
    _multiply_groups_on_cuda,
    _multiply_groups_on_host,
    _parse_integer,
    _stream_of_product,
    _with_equal_rotations,
    asarray,
)
from dlfp4.arguments import borrow_result, describe_product, prepare_result, rounded
from dlfp4.engines import cpu, cuda, cuda_fp8
from dlfp4.engines import problem as common
from dlfp4.engines.problem import Operand, Problem
from dlfp4.show import summary

if TYPE_CHECKING:
    from dlfp4._core import _DType, _Elements, _Stream
    from dlfp4.formats import Activation

# By NumPy's numbers, for a type's name costs it microseconds.
NUMBERS: dict[str, int] = {name: np.dtype(name).num for name in ("int32", "int64", "float32")}
INTEGERS = frozenset((NUMBERS["int32"], NUMBERS["int64"]))
WEIGHTS = frozenset((NUMBERS["float32"],))
E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
MOST_EXPERTS = 512  # of kernels for CUDA devices
NAMES = ("x", "w")  # what messages call the operands


class Routing(NamedTuple):
    """To which experts rows go: as :func:`grouped_matmul` takes it."""

    offsets: Tensor
    indices: Tensor | None
    weights: Tensor | None
    tokens: int | None

    @property
    def gathers(self) -> bool:
        """Whether indices are of rows of x."""
        return self.indices is not None and self.tokens is None


def grouped_matmul(
    x: _Elements | ScaledTensor,
    w: _Elements | ScaledTensor,
    offsets: _Elements,
    *,
    indices: _Elements | None = None,
    weights: _Elements | None = None,
    tokens: int | None = None,
    alpha: float | None = None,
    out_dtype: _DType | None = None,
    out: _Elements | None = None,
    activation: Activation | None = None,
    stream: _Stream | None = None,
) -> Tensor:
    """Rows times the matrices of their experts: row r of expert e is ``alpha * x[r] @ w[e]``.

    Parameters
    ----------
    x : producer or ScaledTensor
        ``(R, K)``, rows sorted by expert, or with `indices` ``(T, K)``, tokens: what :func:`matmul` takes.
    w : producer or ScaledTensor
        ``(E, K, N)``: usually ``w.mT`` of a stack w that was quantized as ``(E, N, K)`` along its last axis, with one
        global scale, or one for each expert.
    offsets : producer
        ``(E,)`` int32 or int64: where the rows of each expert end, as of ``torch.nn.functional.grouped_mm``. Those of
        expert e are ``offsets[e - 1]:offsets[e]``, and may be none.
    indices : producer, optional
        ``(R,)`` int32 or int64: the token of each row. Row r is ``x[indices[r]]``, without a copy of x.
    weights : producer, optional
        ``(R,)`` float32, with `indices`: each row is multiplied by its weight and added to its token.
    tokens : int, optional
        With `weights`: how many tokens there are. x then has the rows themselves, ``(R, K)``, as those that an expert's
        first product made, and `indices` only say where results go.
    alpha, out_dtype, out, activation, stream
        As of :func:`matmul`; `out` shares no memory with `offsets`, `indices` and `weights` either.

    Returns
    -------
    Tensor
        ``(R, N)``; with `weights` ``(T, N)``, where T is `tokens` or the rows of x.

    Raises
    ------
    ValueError
        Shapes that do not fit; offsets that decrease or pass R; indices without such a token; unknown options.
    TypeError
        Offsets, indices or weights of other types; `out` or `out_dtype` of a type that results do not have.
    BackendError
        Operands that are not multiplied by experts; the message has the reason.

    Notes
    -----
    Each expert's rows have the bits that :func:`matmul` gives for them alone on the host. Rows from the last offset on
    belong to no expert: their results are zero, and their indices and weights are not read. Weighted rows are added in
    their order, from zero, in float32, and rounded once to the result's type, so that results depend neither on the
    number of threads nor on chance; a token without rows is zero.

    On CUDA devices of compute capability 9.0 w is prepared (``w.prepare().mT``) and x of 16-bit floats, or of a format
    that they hold exactly; or both are E4M3 with float32 scales, as of fp8_1x128 by fp8_128x128, whose error is that of
    the backend "cuda_fp8" (see :func:`matmul`). There are at most 512 experts. The host does not wait to look: offsets
    that decrease or pass R count as the nearest ones that do not, and rows of tokens that are not there as rows of
    zeros. Graphs capture it, and may be replayed with other offsets. Each expert's rows have the bits of :func:`matmul`
    there by the tactic "stream" where w is prepared, there are at most five times as many rows as experts, and K is at
    most 8192, and else by one that does not share out K, such as "32x128". Tokens' rows and weighted rows, these as
    float32, take a buffer for the length of the call.

    Examples
    --------
    Four tokens and two experts; the first one has tokens 0 and 2, the second one 1 and 3.

    >>> import numpy as np, dlfp4
    >>> x = np.ones((4, 32), "float32")
    >>> w = dlfp4.quantize(np.stack([np.eye(2, 32), 2 * np.eye(2, 32)]).astype("float32"), "mxfp4")
    >>> y = dlfp4.grouped_matmul(x, w.mT, np.array([2, 4], "int32"), indices=np.array([0, 2, 1, 3], "int32"))
    >>> y.tolist()
    [[1.0, 1.0], [1.0, 1.0], [2.0, 2.0], [2.0, 2.0]]
    """
    given, dtype = borrow_result(out, out_dtype)
    left, right = _meet(as_rows(x), as_stack(w))
    routing = make_routing(left, right, offsets, indices, weights, tokens)
    place = _stream_of_product(left, right, (x, w, out), stream)
    shape = shape_of_result(left, right, routing)
    problem = describe_product(left, right, alpha, dtype, activation, place, rotate_alike, "x")
    multiplied = rounded(problem)
    check_operands(multiplied, routing)
    result = prepare_result(problem, shape, given, (left, right, *routing[:3]))
    if _is_outline(result):
        return result
    if problem.device.type not in _ON_CUDA:
        run_on_host(multiplied, routing, result)  # which checks offsets and indices of no results, too
    elif result.size:
        run_on_cuda(multiplied, routing, result)
    return result


def run_on_host(problem: Problem, routing: Routing, out: Tensor) -> None:
    """By dlfp4_host_grouped_matmul."""
    offsets, indices, weights, _ = routing
    rounds = problem.activation == "int8"
    _multiply_groups_on_host(
        problem.a, problem.b, offsets, indices, weights, out, problem.alpha, rounds, routing.gathers
    )


def run_on_cuda(problem: Problem, routing: Routing, out: Tensor) -> None:
    """By dlfp4_cuda_grouped_matmul, or ..._bytes for FP8 by FP8, of what refuses_on_cuda lets through."""
    w: Any = problem.b
    offsets, indices, weights, _ = routing
    x, factor = problem.a, None
    if w.scale_layout == "prepared":
        x, factor = cuda.values_of(x, cuda.types_of(problem)[0], problem.stream)
    _multiply_groups_on_cuda(
        x, w, offsets, indices, weights, out, problem.alpha, factor, routing.gathers, problem.stream
    )


# ---- Operands


def check_ranks(of_x: tuple[int, ...] | None, of_w: tuple[int, ...] | None) -> None:
    """ValueError unless x is a matrix and w a stack of them; None is for either that is not asked about."""
    if of_x is not None and len(of_x) != 2:
        raise ValueError(f"x has shape {of_x}; expected (rows, K): reshape it, and let offsets count all rows")
    if of_w is not None and len(of_w) != 3:
        raise ValueError(f"w has shape {of_w}; expected (experts, K, N): for a stack w of (E, N, K) pass w.mT")


def as_rows(x: _Elements | ScaledTensor) -> Operand:
    """A matrix."""
    rows = x if isinstance(x, ScaledTensor) else asarray(x)
    check_ranks(rows.shape, None)
    return rows


def as_stack(w: _Elements | ScaledTensor) -> Operand:
    """A stack: of blocks as it was quantized, (E, N, K), else (E, K, N)."""
    stack = w if isinstance(w, ScaledTensor) else asarray(w)
    check_ranks(None, stack.shape)
    if not isinstance(stack, ScaledTensor):
        return stack
    if stack.axis == -1:
        raise ValueError(
            f"w is {summary(stack)}, whose blocks run along N as (experts, K, N): quantize (E, N, K) along the last "
            f"axis, and pass w.mT"
        )
    return stack.mT


def rotate_alike(x: Operand, w: Operand, stream: int | None) -> tuple[Operand, Operand]:
    """Operands whose products are those of their values; what is decoded of a stack is (E, K, N)."""
    left, right = _with_equal_rotations(x, w, stream)
    decoded = isinstance(w, ScaledTensor) and isinstance(right, Tensor)
    return left, right.mT if decoded else right


def check_choice(indices: object, weights: object, tokens: object) -> None:
    """ValueError where one of them is given without another that it needs."""
    if weights is not None and indices is None:
        raise ValueError("weights add rows to tokens, and indices say to which: pass indices, or multiply the result")
    if tokens is not None and weights is None:
        raise ValueError("tokens is the number of rows of weighted sums; pass weights, or leave it out")


def make_routing(
    x: Operand,
    w: Operand,
    offsets: _Elements,
    indices: _Elements | None,
    weights: _Elements | None,
    tokens: int | None,
) -> Routing:
    """What says where rows go, checked for types and shapes."""
    check_choice(indices, weights, tokens)
    ends = as_vector(offsets, "offsets", INTEGERS, w.shape[0], "experts")
    places = None if indices is None else as_vector(indices, "indices", INTEGERS, None, "rows")
    rows = x.shape[0] if places is None else places.shape[0]
    factors = None if weights is None else as_vector(weights, "weights", WEIGHTS, rows, "rows")
    if tokens is not None:
        tokens = as_count(tokens)
        if x.shape[0] != rows:
            raise ValueError(f"x has {x.shape[0]} rows, but indices has {rows}; with tokens, both need the same number")
    return Routing(ends, places, factors, tokens)


def as_vector(x: _Elements, name: str, dtypes: frozenset[int], count: int | None, what: str) -> Tensor:
    """One number for each expert or row."""
    vector = asarray(x)
    if vector.dtype.num not in dtypes:
        expected = " or ".join(sorted(dtype for dtype, number in NUMBERS.items() if number in dtypes))
        raise TypeError(f"{name} has dtype {vector.dtype.name}; expected {expected}: convert it with its own library")
    if vector.ndim != 1 or (count is not None and vector.shape[0] != count):
        refuse_vector(name, vector.shape, count, what)
    return vector


def refuse_vector(name: str, shape: tuple[int, ...], count: int | None, what: str) -> Never:
    """Of numbers that are not one for each expert or row."""
    number = "" if count is None else f", {count} of them"
    raise ValueError(f"{name} has shape {shape}; expected one number for each of the {what}{number}")


def as_count(tokens: int) -> int:
    """A number of rows."""
    if isinstance(tokens, bool):
        raise TypeError("tokens is of type bool; expected an integer")
    if (count := _parse_integer(tokens, "tokens")) < 0:
        raise ValueError(f"tokens={count}; expected 0 or more")
    return count


def shape_of_result(x: Operand, w: Operand, routing: Routing) -> tuple[int, int]:
    """(R, N), or (T, N) of weighted sums."""
    depth, columns = w.shape[:0:-1] if isinstance(w, ScaledTensor) else w.shape[1:]
    if x.shape[1] != depth:
        refuse_depth(x.shape, depth)
    if routing.weights is None:
        return (x.shape[0] if routing.indices is None else routing.indices.shape[0]), columns
    return (x.shape[0] if routing.tokens is None else routing.tokens), columns


def refuse_depth(of_x: tuple[int, ...], depth: int) -> Never:
    """Of operands whose sums differ in length."""
    raise ValueError(f"x has shape {of_x}, but K of w is {depth}; expected (rows, K) and (experts, K, N)")


def check_operands(problem: Problem, routing: Routing) -> None:
    """BackendError with the reason where they are not multiplied by experts."""
    device = problem.device
    on_cuda = device.type in _ON_CUDA
    for name, part in zip(("offsets", "indices", "weights"), routing[:3], strict=True):
        if part is not None and not (part.device == device if on_cuda else part.device.type not in _ON_CUDA):
            raise BackendError(
                f"{name} lie on {part.device}, the operands on {device}; bring them together with "
                f".to_device({str(device)!r})"
            )
    if on_cuda and _is_outline(problem.a):  # of a device that need not be here
        return
    reason = refuses_on_cuda(problem) if on_cuda else refuses_on_host(problem)
    if reason is not None:
        raise BackendError(f"grouped_matmul does not multiply these operands: {reason}")


def refuses_on_cuda(problem: Problem) -> str | None:
    """Why kernels of a CUDA device do not take operands."""
    w = problem.b
    if not isinstance(w, ScaledTensor) or (w.scale_layout != "prepared" and common.element_of(w) != E4M3):
        return (
            f"they lie on {problem.device}, whose kernels multiply prepared weights and FP8 by experts, and w is "
            f"{common.describe(w)}: quantize (E, N, K) to nvfp4, mxfp4, mxfp8_e4m3 or fp8_e4m3 along K, pass "
            f"w.prepare().mT, or call matmul for each expert, or .to_device('cpu')"
        )
    refuses = refuses_prepared if w.scale_layout == "prepared" else refuses_bytes
    return (
        common.rounds_activations(problem)
        or common.not_on_one_cuda_device(problem, NAMES)
        or refuses(problem, w)
        or (f"w has {w.shape[0]} experts; expected at most {MOST_EXPERTS}" if w.shape[0] > MOST_EXPERTS else None)
        or (None if _has_grouped(w) else "the kernels by experts are for compute capability 9.0; call matmul for each")
    )


def refuses_prepared(problem: Problem, w: ScaledTensor) -> str | None:
    """Whether kernels do not multiply x by prepared weights."""
    if (reason := cuda.refuses_activations(problem.a)) is not None:
        return reason
    if not cuda.types_of(problem):
        return f"neither bfloat16 nor float16 holds both x and w, {summary(w)}, exactly"
    depth = w.shape[2]
    return f"K is {depth}; expected a multiple of {cuda.BULK}" if depth % cuda.BULK else None


def refuses_bytes(problem: Problem, w: ScaledTensor) -> str | None:
    """Whether kernels do not multiply x by FP8 as it lies."""
    x = problem.a
    if common.element_of(x) != E4M3:
        return (
            f"w is {w.format.name} and x is {common.describe(x)}; expected float8_e4m3fn of both: pass "
            f"activation='fp8_1x128', or quantize x, or pass w.prepare().mT of mxfp8_e4m3 or fp8_e4m3 with x of 16 bits"
        )
    if (reason := runs_across(x)) is not None:
        return reason
    if w.global_scale is not None or w.shape[2] % cuda_fp8.BULK:
        return f"w is {summary(w)}; expected no global scale and K a multiple of {cuda_fp8.BULK}"
    return cuda_fp8.refuses_bytes("x", x) or cuda_fp8.refuses_bytes("w", w) or cuda_fp8.refuses_together(x, w)


def runs_across(x: Operand) -> str | None:
    """Whether blocks of rows run across the sums."""
    if isinstance(x, ScaledTensor) and x.axis != -1:
        return f"blocks of x, {summary(x)}, run across the sums; quantize it along the last axis"
    return None


def refuses_on_host(problem: Problem) -> str | None:
    """Why the host does not take operands."""
    return (
        runs_across(problem.a)
        or common.not_on_host(problem, NAMES)
        or common.not_floats(problem, NAMES)
        or cpu.refuses_activation(problem, NAMES)
    )
