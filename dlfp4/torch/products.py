"""matmul as it is called most: a plain tensor by a quantized weight, again and again.

What was checked, chosen and described once is compared in C, so that a small product is not mostly Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from dlfp4 import _core
from dlfp4._core import ScaledTensor, Tensor, _multiply_again, _Product, asarray
from dlfp4.arguments import format_of
from dlfp4.autotune import choose, is_idle
from dlfp4.engines import cpu, cuda
from dlfp4.engines import problem as common
from dlfp4.matmul import candidates, make_problem
from dlfp4.torch.representing import is_put_together, share

if TYPE_CHECKING:
    from dlfp4.torch.registering import Call, Plan

KNOWN: dict[Any, Any] = {}
KNOWN_IN_C: dict[bytes, Any] = {}  # the same by all that a call says: see core/ops/boxed.pxi


def repeated(call: Call, kernel: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A kernel that remembers what it multiplied."""

    def multiply(*args: Any) -> torch.Tensor:
        known = _multiply_again(KNOWN, args) if is_idle() and not args[0].requires_grad else None
        if known is not None:
            found: torch.Tensor = known
            return found
        made = kernel(*args)
        remember(call, args)
        return made

    return multiply


def remember(call: Call, args: tuple[Any, ...]) -> None:
    """Keep how a product was made, if our own kernels made it of operands as they are."""
    values = call.values(args)
    operands, plan = call.operands(values), call.recall(args)
    a, b = operands["a"], operands["b"]
    if (
        a is None
        or b is None
        or a.type
        or a.scales is not None
        or b.scales is None
        or b.offsets is not None
        or is_put_together(b)
        or not is_idle()
    ):
        return
    left, right = asarray(a.data.detach()), share(b)
    if isinstance(right, ScaledTensor) and right.hadamard is None:
        product = product_of(left, right, plan, a.data.device)
        if product is not None:
            _core._remember_product(KNOWN, args, product)


def product_of(a: Tensor, b: ScaledTensor, plan: Plan, device: torch.device) -> _Product | None:
    """The product, by the backend that is chosen for it; None where that is none of ours, or other work goes first."""
    options = plan.constants
    (shape, dtype), alpha, activation = plan.specs[0], options["alpha"], options["activation"]
    if format_of(activation) is not None:
        return None
    problem = make_problem(a, b, alpha, plan.proto.dtype, activation)
    row, tactic = choose(problem, candidates(problem, options["backend"]))
    reads_floats = row is cuda.BACKEND and common.name_of(a.dtype) == cuda.types_of(problem)[0]
    if not (row is cpu.BACKEND or reads_floats) or 0 in shape:
        return None
    how = {"dtype": dtype, "device": device}
    tactic_of_cuda = tactic if reads_floats else None
    return _Product(a, b, torch.empty, shape, how, problem.alpha, activation == "int8", tactic_of_cuda)
