"""PyTorch's product of scaled FP8 and FP4, as cuBLAS has it: both sides stay as they are stored.

``torch.nn.functional.scaled_mm`` where PyTorch has it, else ``torch._scaled_mm``. Results are float32, and what scales
whole tensors multiplies them, so that they round once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlfp4._core import ScaledTensor, Tensor
from dlfp4.engines import problem as common
from dlfp4.engines import torch as decoding

if TYPE_CHECKING:
    from dlfp4.engines.problem import Machine, Operand, Problem

WHOLE = "fp8"  # one scale a tensor
# Kind of operand: the recipe of both sides' scales, and the compute capability from which on tensor cores take it.
RECIPES: dict[str, tuple[str, tuple[int, int]]] = {
    WHOLE: ("TensorWise", (8, 9)),
    "nvfp4": ("BlockWise1x16", (10, 0)),
    "mxfp8_e4m3": ("BlockWise1x32", (10, 0)),
}
FP8 = ("float8_e4m3fn", "float8_e5m2")
LAYOUT = "128x4"


def supports(problem: Problem, machine: Machine) -> str | None:
    """Two FP8 matrices with a scale each, or two of the same block-scaled format."""
    return (
        common.rounds_activations(problem)
        or common.not_on_one_cuda_device(problem)
        or refuses_formats(problem, machine)
        or common.refuses_scales_of_lines(problem)
        or common.refuses_layouts(problem, LAYOUT)
        or refuses_shapes(problem)
    )


def kind_of(x: Operand) -> str | None:
    """The row of RECIPES that an operand belongs to."""
    if isinstance(x, ScaledTensor) and not common.has_own_scales(x):
        return None
    if isinstance(x, ScaledTensor) and x.format.block is not None:
        return x.format.name if x.format.name in RECIPES else None
    return WHOLE if common.name_of(common.element_of(x)) in FP8 else None


def refuses_formats(problem: Problem, machine: Machine) -> str | None:
    """Whether the operands are of one kind, and the GPU multiplies it."""
    kinds = kind_of(problem.a), kind_of(problem.b)
    if kinds[0] is None or kinds[0] != kinds[1]:
        return (
            f"a is {common.describe(problem.a)} and b {common.describe(problem.b)}; expected float8_e4m3fn or "
            f"float8_e5m2 with one scale a tensor on both sides, or one of nvfp4, mxfp8_e4m3 on both"
        )
    if all(common.name_of(common.element_of(x)) == "float8_e5m2" for x in (problem.a, problem.b)):
        return "both operands are float8_e5m2; expected float8_e4m3fn on one side at least"
    return common.not_capable(machine, RECIPES[kinds[0]][1])


def refuses_shapes(problem: Problem) -> str | None:
    """CuBLAS reads and writes rows of whole 16 bytes."""
    k, n = problem.b.shape
    step = 32 if kind_of(problem.b) == "nvfp4" else 16
    if k % step or n % 16:
        return f"K is {k} and N {n}; expected multiples of {step} and 16"
    return None


def only_by_name(problem: Problem, machine: Machine) -> str:  # noqa: ARG001
    """Sums that may miss matmul's error bound."""
    if machine.capability is not None and machine.capability[0] < 10:
        return "this GPU keeps about 14 bits of sums of FP8 products, which can miss matmul's error bound"
    return "no test holds its sums on this GPU to matmul's error bound"


def run(problem: Problem, tactic: str, out: Tensor) -> None:  # noqa: ARG001
    """On the operands' memory."""
    import torch

    with torch.cuda.device(problem.a.device.index), torch.cuda.stream(decoding.stream_of(problem.stream)):
        run_here(problem, out)


def run_here(problem: Problem, out: Tensor) -> None:
    """The same on the current stream, on which what it shares with dlfp4 has to end, too: dlfp4 frees it after that."""
    a, a_scale, a_factor = parts_of(problem.a, problem.device.index)
    b, b_scale, b_factor = parts_of(problem.b.mT, problem.device.index)
    product = multiply(a, b.t(), a_scale, b_scale, RECIPES[kind_of(problem.a) or WHOLE][0])
    decoding.write(problem, out, product, (a_factor, b_factor))


def parts_of(x: Operand, index: int) -> tuple[Any, Any, Any]:
    """A matrix (lines, K), its scales, and what scales the whole tensor beside them, as PyTorch tensors."""
    import torch

    if not isinstance(x, ScaledTensor):
        return matrix(x), torch.ones((), device=index), None
    scales = x.scales.to_torch()
    return matrix(x.data), scales, None if x.global_scale is None else x.global_scale.to_torch()


def matrix(x: Tensor) -> Any:
    """Elements as a PyTorch matrix whose rows follow one another."""
    rows = x.to_torch()
    return rows.reshape(-1, rows.shape[-1]).contiguous()


def multiply(a: Any, b: Any, a_scale: Any, b_scale: Any, recipe: str) -> Any:
    """a (M, K) @ b (K, N) in float32; sums are taken out of the tensor cores as often as cuBLAS does that at all."""
    import torch

    functional = torch.nn.functional
    if not hasattr(functional, "scaled_mm"):
        return torch._scaled_mm(a, b, a_scale, b_scale, out_dtype=torch.float32, use_fast_accum=False)
    scaling = getattr(functional.ScalingType, recipe)
    swizzle = functional.SwizzleType.NO_SWIZZLE
    if recipe != RECIPES[WHOLE][0]:
        swizzle = functional.SwizzleType.SWIZZLE_32_4_4
    return functional.scaled_mm(
        a, b, a_scale, scaling, b_scale, scaling, swizzle, swizzle, output_dtype=torch.float32, use_fast_accum=False
    )


BACKEND = common.Backend(
    "scaled_mm", decoding.missing, supports, common.one_tactic, run, only_by_name=only_by_name, needs_gpu=True
)
