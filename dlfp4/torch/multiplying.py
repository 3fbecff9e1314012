"""Products with ScaledTensors, and their values: PyTorch's own operations, by those of ``torch.ops.dlfp4``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dlfp4.torch import functions, registering  # noqa: F401  (which defines the operations)
from dlfp4.torch.arranging import Arranged, multiply_repeated
from dlfp4.torch.representing import Parts, as_parts
from dlfp4.torch.scaled_tensor import ScaledTensor, decode, implements, turn
from dlfp4.torch.views import one_of

aten = torch.ops.aten
OPS = torch.ops.dlfp4


def multiply(a: torch.Tensor, b: torch.Tensor, alpha: float | None = None) -> torch.Tensor:
    """``alpha * a @ b``, of which one is a ScaledTensor, or each, in the type of `a`; in float64 of the values."""
    if a.dtype is torch.float64:
        product = torch.matmul(*[decode(x, a.dtype) if isinstance(x, ScaledTensor) else x for x in (a, b)])
        return product if alpha is None else product * alpha
    return functions.matmul(as_parts(a), as_parts(b), alpha=alpha, out_dtype=a.dtype)


@implements(aten.mm.default, aten.matmul.default)
def mm(function: Any, a: torch.Tensor, b: torch.Tensor) -> Any:  # noqa: ARG001
    """Matrices; in inference mode any two operands come here."""
    if b.dim() != 2 or (a.dim() != 2 and isinstance(a, ScaledTensor)):
        return NotImplemented
    return multiply(a, b)


@implements(aten.addmm.default, aten.baddbmm.default, aten.addbmm.default)
def addmm(
    function: Any,
    bias: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> torch.Tensor:
    """A bias, and a product of matrices or of stacks, or the sum of such a stack."""
    product = (multiply if a.dim() == 2 else multiply_stacks)(a, b, None if alpha == 1 else float(alpha))
    product = product.sum(0) if function is aten.addbmm.default else product
    return product if beta == 0 else torch.add(product, bias, alpha=beta)


@implements(aten.addmv.default)
def addmv(
    function: Any,
    bias: torch.Tensor,
    a: ScaledTensor,
    x: torch.Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> torch.Tensor:
    """A bias, and a matrix by a vector."""
    return addmm(function, bias, x[None], turn(a), beta=beta, alpha=alpha).reshape(-1)


@implements(aten.linear.default)
def linear(function: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:  # noqa: ARG001
    """In inference mode it comes whole."""
    product = multiply(x, turn(weight) if isinstance(weight, ScaledTensor) else weight.mT)
    return product if bias is None else product + bias


@implements(aten.mv.default)
def mv(function: Any, a: ScaledTensor, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG001
    """A matrix by a vector."""
    return multiply(x, turn(a))


@implements(aten.bmm.default)
def bmm(function: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:  # noqa: ARG001
    """Stacks."""
    return multiply_stacks(a, b)


def multiply_stacks(a: torch.Tensor, b: torch.Tensor, alpha: float | None = None) -> torch.Tensor:
    """Stacks, matrix by matrix."""
    if isinstance(a, Arranged) or isinstance(b, Arranged):
        return multiply_repeated(lambda a, b: multiply_stacks(a, b, alpha), a, b)
    made = [multiply(one(a, k), one(b, k), alpha) for k in range(a.shape[0])]
    return torch.stack(made) if made else torch.zeros((0, a.shape[1], b.shape[2]), dtype=a.dtype, device=a.device)


def one(x: torch.Tensor, k: int) -> torch.Tensor:
    """A matrix of a stack."""
    return one_of(x, 0, k) if isinstance(x, ScaledTensor) else x[k]


# transformers has an operation of its own for what compilers refuse of PyTorch's.
@implements(aten._grouped_mm.default, "transformers.grouped_mm_fallback.default")
def grouped_mm(
    function: Any,
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """``torch.nn.functional.grouped_mm``: rows by experts. Blocks along K are multiplied where they are those of a
    transposed stack; its gradient sums across blocks, and blocks of columns may cross from one expert to the next:
    of decoded weights.
    """
    if a.dim() != 2 or b.dim() != 3 or offs is None or bias is not None:
        raise NotImplementedError(
            f"{function} of shapes {tuple(a.shape)} and {tuple(b.shape)}: of ScaledTensors it takes rows (R, K), a "
            f"stack (E, K, N) and offs, without a bias; call .dequantize() for the values"
        )
    if isinstance(b, ScaledTensor) and not (b.turned and b.axis == -2):
        b = decode(b, torch.float32 if b.dtype is torch.float64 else b.dtype)
        if b.is_cuda:  # where dlfp4 multiplies no floats by experts
            found: torch.Tensor = function(a, b, offs, bias, out_dtype)
            return found
    return functions.grouped_matmul(as_parts(a), as_parts(b), offs, out_dtype=out_dtype or a.dtype)


# ---- dlfp4's own operations, to which Dynamo hands a tensor as it is

ABSENT = (None, None, "", None, None)  # what a plain operand has beside its data: see Parts
COUNT = len(ABSENT)


def parts_in(x: torch.Tensor, rest: Sequence[Any]) -> Parts:
    """An operand in its parts, those of a plain one as they were given."""
    return as_parts(x) if isinstance(x, ScaledTensor) else Parts(x, *rest)


def pair_in(a: torch.Tensor, b: torch.Tensor, rest: Sequence[Any]) -> tuple[Parts, Parts, Sequence[Any]]:
    """Two operands in their parts, of which those of `b` come first, and the options behind them."""
    given = (*rest, *(ABSENT * 2)[len(rest) :])
    return parts_in(a, given[COUNT : 2 * COUNT]), parts_in(b, given[:COUNT]), given[2 * COUNT :]


@implements(OPS.matmul.default, OPS.dot.default, OPS.vecdot.default)
def product(function: Any, a: torch.Tensor, b: torch.Tensor, *rest: Any) -> torch.Tensor:
    """Operands, their parts, and options."""
    left, right, options = pair_in(a, b, rest)
    return function(left.data, *right, *left[1:], *options)


@implements(OPS.grouped_matmul.default)
def grouped(function: Any, x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor, *rest: Any) -> torch.Tensor:
    """The same of a stack of weights, with offsets before the parts."""
    left, right, options = pair_in(x, w, rest)
    return function(left.data, right.data, offsets, *right[1:], *left[1:], *options)


@implements(aten._transformer_encoder_layer_fwd.default, aten._native_multi_head_attention.default)
def whole_layer(function: Any, *args: Any) -> Any:
    """A layer that PyTorch computes as one operation where nothing asks for a gradient: by the decoded weights."""
    return function(*[decode(x, x.dtype) if isinstance(x, ScaledTensor) else x for x in args])


@implements(OPS.dequantize.default)
def decode_parts(function: Any, q: torch.Tensor, *rest: Any) -> torch.Tensor:
    """The operand, its parts, and the type of values."""
    return function(*parts_in(q, rest[:COUNT]), *rest[COUNT:])


# ---- Values


@implements(aten.dequantize.self)
def dequantize(function: Any, q: ScaledTensor) -> torch.Tensor:  # noqa: ARG001
    """All values."""
    return decode(q, q.dtype)
