"""Our own kernels for FP8 by FP8 on CUDA devices of compute capability 9.0: its tensor cores multiply both as they lie.

They keep some 14 bits of a sum; so each sums 128 products, and such sums are added in float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlfp4._core import (
    ScaledTensor,
    Tensor,
    _bucket_of_rows,
    _find_bytes_tactics,
    _multiply_bytes_on_cuda,
    _refusal_of_bytes,
)
from dlfp4.engines import problem as common
from dlfp4.show import summary

if TYPE_CHECKING:
    from dlfp4.engines.problem import Machine, Operand, Problem

HOPPER = 9
BULK = 16  # bytes of a row that are copied at a time
DEPTH = 128  # elements of K that tensor cores sum
LAYOUTS = ("linear", "cublas_1x128", "cublas_128x128")
MOST = 2**31 - 2**10  # rows and columns, which kernels count in 32 bits


def supports(problem: Problem, machine: Machine) -> str | None:
    """Two matrices of FP8, each without scales or with float32 scales that serve 128 of K or more."""
    return (
        common.rounds_activations(problem)
        or common.not_on_one_cuda_device(problem)
        or not_hopper(machine)
        or refuses_operand("a", problem.a)
        or refuses_operand("b", problem.b)
        or common.not_along_sums(problem)
        or refuses_together(problem.a, problem.b)
        or refuses_size(problem)
    )


def not_hopper(machine: Machine) -> str | None:
    """Whether the GPU lacks the instructions."""
    if machine.capability is not None and machine.capability[0] == HOPPER:
        return None
    here = (
        "no CUDA device" if machine.capability is None else f"compute capability {common.version(machine.capability)}"
    )
    return f"the operands lie on {here}; its kernels are for compute capability 9.0"


def refuses_operand(name: str, x: Operand) -> str | None:
    """Whether it is FP8 as it lies, with scales that kernels read."""
    if (reason := refuses_bytes(name, x)) is not None or not isinstance(x, ScaledTensor):
        return reason
    block = x.format.block
    if x.ndim > 2 and block is not None and block[0] > 1:
        return f"{name} is a stack of matrices with blocks of {block[0]} rows; expected one matrix"
    return None


def refuses_bytes(name: str, x: Operand) -> str | None:
    """What the kernels say of an operand, in words."""
    refusal = _refusal_of_bytes(x)
    if refusal == "elements":
        return f"{name} is {common.describe(x)}; expected float8_e4m3fn or float8_e5m2"
    if refusal is None or not isinstance(x, ScaledTensor):
        return None
    if refusal == "scales":
        return f"{name} is {summary(x)}; expected scales of float32, one for {DEPTH} of K or for more"
    return f"{name} has scale_layout {x.scale_layout!r}; expected one of {', '.join(LAYOUTS)}, see with_scale_layout"


def refuses_together(a: Operand, b: Operand) -> str | None:
    """Whether only one side has scales, and more than one."""
    for x, other in ((a, b), (b, a)):
        if isinstance(x, ScaledTensor) and x.format.block is not None and not isinstance(other, ScaledTensor):
            return f"{common.describe(x)} by {common.describe(other)}, which has no scale; give both sides scales"
    return None


def refuses_size(problem: Problem) -> str | None:
    """Whether copies and launches can count so far."""
    depth, columns = problem.b.shape
    if depth % BULK:
        return f"K is {depth}; expected a multiple of {BULK}"
    if max(problem.rows, columns) > MOST:
        return f"M is {problem.rows} and N {columns}; expected at most {MOST}: split them"
    return None


def tactics(problem: Problem) -> tuple[str, ...]:
    """As those of the backend "cuda"."""
    return _find_bytes_tactics(problem.a, problem.b, _bucket_of_rows(problem.rows))


def run(problem: Problem, tactic: str, out: Tensor) -> None:
    """One launch; operands that bulk copies cannot read are copied first."""
    _multiply_bytes_on_cuda(problem.a, problem.b, out, problem.alpha, tactic, problem.stream)


BACKEND = common.Backend("cuda_fp8", common.never_missing, supports, tactics, run, needs_gpu=True)
