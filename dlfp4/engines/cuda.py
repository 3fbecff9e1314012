"""Our own kernels on CUDA devices, for weights that were prepared: exact operands for tensor cores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlfp4._core import (
    ScaledTensor,
    Tensor,
    _bucket_of_rows,
    _exact_in_half,
    _find_tactics,
    _multiply_on_cuda,
    _reads_codes,
    cast,
)
from dlfp4.engines import problem as common
from dlfp4.show import summary

if TYPE_CHECKING:
    from dlfp4._core import _Stream
    from dlfp4.engines.problem import Machine, Operand, Problem

OLDEST = (8, 0)
BULK = 8  # elements of 16 bits that are copied at a time
MOST_BYTES = 2**34  # of weights; more was never tried
MOST_ROWS = 2**20 - 16  # of a, in groups of 16 that are one dimension of a launch


def supports(problem: Problem, machine: Machine) -> str | None:
    """Floats of at most 16 bits, and a prepared weight of (N, K) as its transpose."""
    return (
        common.rounds_activations(problem)
        or common.not_on_one_cuda_device(problem)
        or common.not_capable(machine, OLDEST)
        or refuses_weight(problem.b)
        or refuses_activations(problem.a)
        or (
            None
            if types_of(problem)
            else f"neither bfloat16 nor float16 holds both a and b, {summary(problem.b)}, exactly"
        )
        or refuses_size(problem)
    )


def refuses_weight(b: Operand) -> str | None:
    """Whether b is prepared and K its blocks' direction."""
    if not isinstance(b, ScaledTensor) or b.scale_layout != "prepared":
        return "b is not prepared; call w.prepare() once for a weight w of (N, K), and pass its .mT"
    return None if b.axis == -2 else "b is prepared along N; quantize w of (N, K) along its last axis, and pass w.mT"


def refuses_size(problem: Problem) -> str | None:
    """Whether copies, places and launches can count so far."""
    depth = problem.b.shape[0]
    if depth % BULK:
        return f"K is {depth}; expected a multiple of {BULK}"
    if problem.b.nbytes > MOST_BYTES:
        return f"b has {problem.b.nbytes} bytes; expected at most {MOST_BYTES}: split N"
    return f"M is {problem.rows}; expected at most {MOST_ROWS}: split it" if problem.rows > MOST_ROWS else None


def refuses_activations(a: Operand) -> str | None:
    """Whether a has a type that tensor cores multiply with nothing lost."""
    if isinstance(a, ScaledTensor):
        if common.scales_lines(a):
            return f"a, {summary(a)}, has a scale for each of its lines; the kernels read one for the whole tensor"
        if a.axis != -1:
            return f"the blocks of a, {summary(a)}, run across the products' sums; quantize a along its last axis"
        return None if common.exact_types(a) != ("float32",) else f"{a.format} has no exact form of 16 bits"
    if common.name_of(a.dtype) in ("bfloat16", "float16") or (a.dtype.num in common.FACTORS and a.dtype.itemsize == 1):
        return None
    return f"a has dtype {a.dtype}; cast it to bfloat16 or float16"


def weight_of(problem: Problem) -> ScaledTensor:
    """B, a ScaledTensor wherever the problem is taken."""
    b: Any = problem.b
    weight: ScaledTensor = b
    return weight


def types_of(problem: Problem) -> list[str]:
    """The 16-bit types that hold both operands, the better first."""
    of_b = ("bfloat16", "float16") if _exact_in_half(weight_of(problem)) else ("bfloat16",)
    of_a = common.exact_types(problem.a)
    return [name for name in of_b if name in of_a]


def tactics(problem: Problem) -> tuple[str, ...]:
    """Tiles of y by rows and columns, "/" the blocks of threads that share K, the best guess first."""
    return _find_tactics(weight_of(problem), _bucket_of_rows(problem.rows))


def run(problem: Problem, tactic: str, out: Tensor) -> None:
    """Decode a if the kernel reads neither its floats nor its codes; scales of whole tensors multiply the sums."""
    a, weight, stream = problem.a, weight_of(problem), problem.stream
    if isinstance(a, ScaledTensor) and _reads_codes(a, weight, tactic):
        _multiply_on_cuda(a.data, weight, out, problem.alpha, a.global_scale, tactic, stream, a.scales)
    else:
        values, factor = values_of(a, types_of(problem)[0], stream)
        _multiply_on_cuda(values, weight, out, problem.alpha, factor, tactic, stream)


def values_of(a: Operand, name: str, stream: _Stream | None) -> tuple[Tensor, Tensor | None]:
    """A's values in a type, but for what scales the whole tensor."""
    if isinstance(a, ScaledTensor):
        return common.without_tensor_scale(a, name, stream)
    return (a if common.name_of(a.dtype) == name else cast(a, name, stream=stream)), None


def rank(problem: Problem, machine: Machine) -> int:
    """Before decoding and PyTorch's product, unless rows are many and the kernels are those for any GPU."""
    is_fast = machine.capability is not None and machine.capability[0] == 9
    return 0 if is_fast or problem.rows <= 64 else 1


BACKEND = common.Backend("cuda", common.never_missing, supports, tactics, run, rank, needs_gpu=True)
