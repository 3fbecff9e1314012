"""FlashInfer's product of two FP4 matrices, on tensor cores that have such a product."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import TYPE_CHECKING, Any

from dlfp4._core import ScaledTensor, Tensor, _written_on
from dlfp4.engines import problem as common
from dlfp4.engines import torch as decoding

if TYPE_CHECKING:
    from dlfp4.engines.problem import Machine, Problem

FORMATS = ("nvfp4", "mxfp4")
DTYPES = ("bfloat16", "float16")
OLDEST = (10, 0)
LAYOUT = "128x4"


@cache
def missing() -> str | None:
    """Whether FlashInfer can be imported; it is not, before it multiplies."""
    if importlib.util.find_spec("flashinfer"):
        return decoding.missing()
    return "FlashInfer is not installed; pip install flashinfer-python"


def supports(problem: Problem, machine: Machine) -> str | None:
    """Two matrices of one FP4 format, to 16-bit results."""
    return (
        common.rounds_activations(problem)
        or common.not_on_one_cuda_device(problem)
        or refuses_formats(problem)
        or common.refuses_scales_of_lines(problem)
        or common.not_capable(machine, OLDEST)
        or common.refuses_layouts(problem, LAYOUT)
        or refuses_result(problem)
    )


def refuses_formats(problem: Problem) -> str | None:
    """Whether both operands are of one FP4 format."""
    a, b = problem.a, problem.b
    if isinstance(a, ScaledTensor) and isinstance(b, ScaledTensor) and a.format == b.format and a.format in FORMATS:
        return None
    return f"a is {common.describe(a)} and b {common.describe(b)}; expected nvfp4 or mxfp4 on both sides"


def refuses_result(problem: Problem) -> str | None:
    """The type of the result, and steps of 16 bytes along K and N."""
    if common.name_of(problem.dtype) not in DTYPES:
        return f"the result is {problem.dtype}; expected {' or '.join(DTYPES)}, pass out_dtype"
    k, n = problem.b.shape
    return None if k % 32 == 0 and n % 8 == 0 else f"K is {k} and N {n}; expected multiples of 32 and 8"


def only_by_name(problem: Problem, machine: Machine) -> str:  # noqa: ARG001
    """Sums that nobody has held to matmul's error bound."""
    return "no test holds its sums on this GPU to matmul's error bound"


def run(problem: Problem, tactic: str, out: Tensor) -> None:  # noqa: ARG001
    """By mm_fp4, which chooses among its own backends."""
    import flashinfer
    import torch

    a, b = problem.a, problem.b.mT
    assert isinstance(a, ScaledTensor)
    assert isinstance(b, ScaledTensor)
    with torch.cuda.device(problem.device.index), torch.cuda.stream(decoding.stream_of(problem.stream)):
        is_nvfp4 = a.format == "nvfp4"
        product = flashinfer.mm_fp4(
            bytes_of(a.data),
            bytes_of(b.data).T,
            bytes_of(a.scales),
            bytes_of(b.scales).T,
            factor_of(problem),
            getattr(torch, problem.dtype.name),
            block_size=16 if is_nvfp4 else 32,
            use_nvfp4=is_nvfp4,
        )
        out.to_torch().copy_(product.reshape(out.shape))
        _written_on(out, torch.cuda.current_stream().cuda_stream)


def bytes_of(x: Tensor) -> Any:
    """Packed elements, or scales, as PyTorch's uint8, whose rows follow one another."""
    return x.view("uint8").to_torch().contiguous()


def factor_of(problem: Problem) -> Any:
    """What scales the whole result, on the device."""
    import torch

    factor = torch.full((1,), problem.alpha, device=problem.device.index)
    for x in (problem.a, problem.b):
        if isinstance(x, ScaledTensor) and x.global_scale is not None:
            factor = factor * x.global_scale.to_torch()
    return factor


BACKEND = common.Backend(
    "flashinfer", missing, supports, common.one_tactic, run, only_by_name=only_by_name, needs_gpu=True
)
