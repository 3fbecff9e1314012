"""Our own kernels on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlfp4._core import ScaledTensor, Tensor, _multiply_on_host
from dlfp4.engines import problem as common

if TYPE_CHECKING:
    from dlfp4.engines.problem import Machine, Problem


def supports(problem: Problem, machine: Machine) -> str | None:  # noqa: ARG001
    """Any floats and formats whose blocks run along K."""
    return (
        common.not_along_sums(problem)
        or common.not_on_host(problem)
        or common.not_floats(problem)
        or refuses_activation(problem)
    )


def refuses_activation(problem: Problem, names: tuple[str, str] = common.AS_OF_MATMUL) -> str | None:
    """Rounding to int8 is for FP4 weights."""
    if problem.activation is None:
        return None
    if not isinstance(problem.b, ScaledTensor) or not common.has_fp4_blocks(problem.b.format):
        return f"activation='int8' needs {names[1]} to be a ScaledTensor of FP4 in blocks, such as nvfp4 or mxfp4"
    return None


def run(problem: Problem, tactic: str, out: Tensor) -> None:  # noqa: ARG001
    """By dlfp4_host_matmul."""
    _multiply_on_host(problem.a, problem.b, out, problem.alpha, problem.activation == "int8")


BACKEND = common.Backend("cpu", common.never_missing, supports, common.one_tactic, run)
