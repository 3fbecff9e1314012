"""PyTorch: decode, then its own product."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import TYPE_CHECKING, Any

from dlfp4._core import ScaledTensor, Tensor, _refusal, cast
from dlfp4.engines import problem as common

if TYPE_CHECKING:
    from dlfp4.engines.problem import Machine, Operand, Problem


@cache
def missing() -> str | None:
    """Whether PyTorch can be imported; it is not, before it multiplies."""
    return None if importlib.util.find_spec("torch") else "PyTorch is not installed; pip install torch"


def supports(problem: Problem, machine: Machine) -> str | None:  # noqa: ARG001
    """Whatever can be decoded, both on the host or both on one CUDA device."""
    return common.rounds_activations(problem) or not_together(problem) or common.not_floats(problem)


def not_together(problem: Problem) -> str | None:
    """Whether the operands lie apart, or where PyTorch does not multiply."""
    on_cuda = "cuda" in (problem.a.device.type, problem.b.device.type)
    return common.not_on_one_cuda_device(problem) if on_cuda else common.not_on_host(problem)


def run(problem: Problem, tactic: str, out: Tensor) -> None:  # noqa: ARG001
    """On the host both sides as float32, so that operands are exact."""
    import torch

    if problem.a.device.type == "cuda":
        return run_on_cuda(problem, out)
    a, b = (taken(common.decode(x)) for x in (problem.a, problem.b))
    cast(torch.matmul(a, b) * problem.alpha, out.dtype, out=out)  # of any strides, which PyTorch has not
    return None


def taken(values: Tensor) -> Any:
    """A Tensor as PyTorch's: a copy, where that could not have its memory as it lies."""
    return (values.copy() if _refusal("torch", values) else values).to_torch()


def run_on_cuda(problem: Problem, out: Tensor) -> None:
    """By tensor cores, where a type of 16 bits holds both sides: they sum in float32, and nothing is rounded before.

    What scales a whole tensor multiplies the float32 result.
    """
    import torch

    with torch.cuda.device(problem.a.device.index), torch.cuda.stream(stream_of(problem.stream)):
        run_here(problem, out)


def run_here(problem: Problem, out: Tensor) -> None:
    """The same on the current stream, on which what it shares with dlfp4 has to end, too: dlfp4 frees it after that."""
    import torch

    name = next(
        t for t in ("bfloat16", "float16", "float32") if all(t in common.exact_types(x) for x in (problem.a, problem.b))
    )
    here = torch.cuda.current_stream()
    (a, a_scale), (b, b_scale) = (values_on_cuda(x, name, here) for x in (problem.a, problem.b))
    options = {} if name == "float32" else {"out_dtype": torch.float32}
    product = torch.mm(a.reshape(-1, a.shape[-1]), b, **options)
    write(problem, out, product, (a_scale, b_scale))


def write(problem: Problem, out: Tensor, product: Any, factors: tuple[Any, ...]) -> None:
    """Multiply float32 sums by alpha and by what scales whole tensors, and round them once."""
    import torch

    scales = [factor for factor in factors if factor is not None]
    for factor in scales if problem.alpha == 1 else [problem.alpha, *scales]:
        product *= factor
    cast(product.reshape(out.shape), out.dtype, out=out, stream=torch.cuda.current_stream())  # strides, as on the host


LEGACY_STREAM = 1  # as CUDA names it; PyTorch's default stream, which it calls 0


def stream_of(stream: int | None) -> Any:
    """The stream of a handle as PyTorch's: its own object where it has one, for its allocator goes by that."""
    import torch

    current = torch.cuda.current_stream()
    if stream in (None, current.cuda_stream or LEGACY_STREAM):
        return current
    return torch.cuda.default_stream() if stream == LEGACY_STREAM else torch.cuda.ExternalStream(stream)


def values_on_cuda(x: Operand, name: str, stream: Any) -> tuple[Any, Any]:
    """An operand as a PyTorch tensor of some type, and the scale of the whole tensor, if it is left out of that."""
    if not isinstance(x, ScaledTensor):
        return taken(x if common.name_of(x.dtype) == name else cast(x, name, stream=stream)), None
    if x.axis == -2 and x.ndim == 2:  # the lines of its transpose are rows: less to turn around
        values, scale = values_on_cuda(x.mT, name, stream)
        return values.T, scale
    tensor, factor = common.without_tensor_scale(x, name, stream)
    return tensor.to_torch(), None if factor is None else factor.to_torch()


BACKEND = common.Backend("torch", missing, supports, common.one_tactic, run)
