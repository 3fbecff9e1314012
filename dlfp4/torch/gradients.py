"""Gradients, backward and forward, of the operations that have one.

An operation has none with respect to codes and scales: a gradient is no FP4. Roundings are passed straight through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad

from dlfp4.formats import FLOATS
from dlfp4.frameworks.torch import element_name
from dlfp4.torch.representing import PAIRS, Parts

if TYPE_CHECKING:
    from dlfp4.torch.registering import Call


class Rule(NamedTuple):
    """Of an operation: whether the result of a call has a gradient, what a gradient of the result is for each operand
    (`wanted` says for which), and what tangents of the operands are for the result.
    """

    applies: Callable[[tuple[Any, ...]], bool]
    backward: Callable[..., tuple[Any, ...]]
    tangent: Callable[..., Any]


def always(values: tuple[Any, ...]) -> bool:  # noqa: ARG001  (one signature for all)
    """Of results that are floats."""
    return True


def decoded(x: Parts, dtype: torch.dtype) -> torch.Tensor:
    """An operand in a float type: its values, but of a ScaledTensor itself, whose products do without them."""
    name = element_name(dtype)
    ops = torch.ops.dlfp4
    if x.scales is not None:
        found: torch.Tensor = ops.dequantize(*x, name)
    elif x.type or element_name(x.data.dtype) not in FLOATS:
        found = ops.cast(x.data, name, x.type)
    else:
        found = x.data.to(dtype)
    return found


def is_quantized(x: torch.Tensor) -> bool:
    """Whether a tensor is a ScaledTensor, which functorch's transforms hide."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(x):
        x = functorch.get_unwrapped(x)
    return hasattr(x, "__dlfp4_parts__")


def dense(x: Parts, dtype: torch.dtype) -> torch.Tensor:
    """The values as floats, also of a tensor that compilers and transforms hand over whole."""
    found = decoded(x, dtype)
    return found.dequantize() if is_quantized(found) else found


# ---- cast


def keeps_shape(values: tuple[Any, ...]) -> bool:
    """Whether a cast has a result of PyTorch's own float types, element by element."""
    x, name = values[:2]
    dtype = getattr(torch, name, None)
    return x.is_floating_point() and x.dtype != PAIRS and isinstance(dtype, torch.dtype)


def cast_backward(grad: torch.Tensor, x: Parts, *, wanted: Any, **_: Any) -> tuple[Any, ...]:
    """The gradient of a cast's operand: that of the result, in the operand's type."""
    return (grad.to(x.data.dtype) if wanted[0] else None,)


def cast_tangent(t: torch.Tensor, x: Parts, *, dtype: str, **_: Any) -> torch.Tensor:  # noqa: ARG001
    """The tangent of a cast's result: that of the operand, in the result's type."""
    return t.to(getattr(torch, dtype))


# ---- matmul


def matmul_backward(
    grad: torch.Tensor, a: Parts, b: Parts, *, wanted: Any, alpha: float | None, **_: Any
) -> tuple[Any, ...]:
    """By the decoded other operand, in the type of the gradient."""
    scaled = grad if alpha is None else grad * alpha
    of_a = of_b = None
    if wanted[0]:
        of_a = torch.matmul(scaled, decoded(b, grad.dtype).mT).to(a.data.dtype)
    if wanted[1]:
        rows, columns = (torch.atleast_2d(x).flatten(0, -2) for x in (decoded(a, grad.dtype), scaled))
        of_b = torch.matmul(rows.mT, columns).to(b.data.dtype)
    return of_a, of_b


def matmul_tangent(
    t_a: torch.Tensor | None,
    t_b: torch.Tensor | None,
    a: Parts,
    b: Parts,
    *,
    dtype: torch.dtype,
    alpha: float | None,
    **_: Any,
) -> torch.Tensor:
    """The product rule."""
    total = sum_of_terms(
        None if t_a is None else torch.matmul(t_a.to(dtype), decoded(b, dtype)),
        None if t_b is None else torch.matmul(decoded(a, dtype), t_b.to(dtype)),
    )
    return total if alpha is None else total * alpha


def sum_of_terms(*terms: torch.Tensor | None) -> torch.Tensor:
    """Of those that are there, at least one; None is the term of an operand without a tangent."""
    first, *others = (term for term in terms if term is not None)
    return sum(others, first)


# ---- grouped_matmul


class Rows(NamedTuple):
    """The routed rows of a call: which belong to an expert, and the token of each, 0 where it has none."""

    is_routed: torch.Tensor
    tokens: torch.Tensor | None


def rows_of(x: Parts, offsets: Parts, indices: Parts | None) -> Rows:
    """What indices say of rows beyond the last offset is not to be looked at."""
    count = x.data.shape[0] if indices is None else indices.data.shape[0]
    last = offsets.data[-1] if offsets.data.shape[0] else 0
    is_routed = torch.arange(count, device=x.data.device) < last
    return Rows(is_routed, None if indices is None else torch.where(is_routed, indices.data, 0))


def grouped_backward(
    grad: torch.Tensor,
    x: Parts,
    w: Parts,
    offsets: Parts,
    indices: Parts | None,
    weights: Parts | None,
    *,
    wanted: Any,
    tokens: int | None,
    alpha: float | None,
    **_: Any,
) -> tuple[Any, ...]:
    """By the decoded weights, in the type of the gradient."""
    of_x = of_w = of_weights = None
    is_routed, places = rows_of(x, offsets, indices)
    gathers = places is not None and tokens is None
    rows = grad if weights is None else rows_at(grad, places)  # what a gradient is of each routed row
    scaled = rows if alpha is None else rows * alpha
    if weights is not None:
        scaled = scaled * weights.data[:, None].to(grad.dtype)
    if wanted[0]:
        stack = dense(w, grad.dtype).mT
        of_x = multiply_floats(scaled, stack, offsets.data, is_routed)
        if gathers:
            whole = torch.zeros(x.data.shape, dtype=grad.dtype, device=grad.device)
            of_x = whole.index_add(0, places, of_x) if x.data.shape[0] else whole
        of_x = of_x.to(x.data.dtype)
    if wanted[1]:
        own = dense(x, grad.dtype)
        of_w = sums_of_experts(rows_at(own, places) if gathers else own, scaled, offsets.data).to(w.data.dtype)
    if wanted[4] and weights is not None:
        given = (x.data, w.data, offsets.data, *w[1:], *x[1:], indices.data if gathers and indices else None)
        product = torch.ops.dlfp4.grouped_matmul(*given, None, None, alpha, element_name(grad.dtype))
        of_weights = torch.where(is_routed, (rows * product).sum(-1), 0).to(weights.data.dtype)
    return of_x, of_w, None, None, of_weights


def rows_at(x: torch.Tensor, places: torch.Tensor | None) -> torch.Tensor:
    """Rows by their numbers; of a matrix without any, to which no row is routed, zeros."""
    assert places is not None
    return x[places] if x.shape[0] else x.new_zeros((places.shape[0], x.shape[1]))


def multiply_floats(
    rows: torch.Tensor, stack: torch.Tensor, offsets: torch.Tensor, is_routed: torch.Tensor
) -> torch.Tensor:
    """Rows by a stack of floats, on CUDA devices by PyTorch, which leaves rows of no expert as they are."""
    if not rows.is_cuda:
        own: torch.Tensor = torch.ops.dlfp4.grouped_matmul(rows, stack, offsets)
        return own
    product = torch.nn.functional.grouped_mm(rows.contiguous(), stack, offs=offsets.to(torch.int32))
    return torch.where(is_routed[:, None], product, 0)


def sums_of_experts(x: torch.Tensor, grad: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """The products of the rows of each expert, whose number the host does not know. Rows of others may be NaN."""
    expert_of = torch.bucketize(torch.arange(x.shape[0], device=x.device), offsets, right=True)
    are_own = [(expert_of == expert)[:, None] for expert in range(offsets.shape[0])]
    made = [torch.where(own, x, 0).mT @ torch.where(own, grad, 0) for own in are_own]
    return torch.stack(made) if made else x.new_zeros((0, x.shape[1], grad.shape[1]))


def grouped_tangent(
    t_x: torch.Tensor | None,
    t_w: torch.Tensor | None,
    t_offsets: None,  # noqa: ARG001  (a tangent for each operand)
    t_indices: None,  # noqa: ARG001
    t_weights: torch.Tensor | None,
    x: Parts,
    w: Parts,
    offsets: Parts,
    indices: Parts | None,
    weights: Parts | None,
    *,
    dtype: torch.dtype,
    tokens: int | None,
    alpha: float | None,
    **_: Any,
) -> torch.Tensor:
    """The product rule."""

    def product(x: Parts, w: Parts, weights: torch.Tensor | None) -> torch.Tensor:
        of_indices = None if indices is None else indices.data
        given = (x.data, w.data, offsets.data, *w[1:], *x[1:], of_indices, weights, tokens, alpha)
        found: torch.Tensor = torch.ops.dlfp4.grouped_matmul(*given, element_name(dtype))
        return found

    own = None if weights is None else weights.data
    return sum_of_terms(
        None if t_x is None else product(Parts(t_x), w, own),
        None if t_w is None else product(x, Parts(t_w), own),
        None if t_weights is None else product(x, w, t_weights),
    )


# ---- dot, vecdot


def vecdot_backward(
    grad: torch.Tensor, a: Parts, b: Parts, *, wanted: Any, axis: int = -1, **_: Any
) -> tuple[Any, ...]:
    """By the decoded other operand."""
    along = grad.unsqueeze(-1)

    def of(x: Parts, other: Parts) -> torch.Tensor:
        product = along * dense(other, grad.dtype).movedim(axis, -1)
        return product.sum_to_size(x.data.movedim(axis, -1).shape).movedim(-1, axis).to(x.data.dtype)

    return of(a, b) if wanted[0] else None, of(b, a) if wanted[1] else None


def vecdot_tangent(
    t_a: torch.Tensor | None,
    t_b: torch.Tensor | None,
    a: Parts,
    b: Parts,
    *,
    dtype: torch.dtype,
    axis: int = -1,
    **_: Any,
) -> torch.Tensor:
    """The product rule."""
    return sum_of_terms(
        None if t_a is None else sums_of_products(t_a.to(dtype), dense(b, dtype), axis),
        None if t_b is None else sums_of_products(dense(a, dtype), t_b.to(dtype), axis),
    )


def sums_of_products(a: torch.Tensor, b: torch.Tensor, axis: int) -> torch.Tensor:
    """Along an axis of each; the others broadcast."""
    return (a.movedim(axis, -1) * b.movedim(axis, -1)).sum(-1)


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "cast": Rule(keeps_shape, cast_backward, cast_tangent),
        "dot": Rule(always, vecdot_backward, vecdot_tangent),
        "vecdot": Rule(always, vecdot_backward, vecdot_tangent),
        "matmul": Rule(always, matmul_backward, matmul_tangent),
        "grouped_matmul": Rule(always, grouped_backward, grouped_tangent),
    }
)


# ---- Registration


def function_of(call: Call, rule: Rule, op: Any) -> Any:
    """An operation as a node of autograd's graph, for backward and forward derivatives.

    It is what a Function is within one level of functorch's transforms: kernels for autograd run within one, and the
    redispatch brings the call to the next.
    """
    places = [place[0] for _, _, place in call.operand_places]

    def forward(keyset: Any, *args: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd(), followed_further():
            return op.redispatch(keyset & torch._C._after_autograd_keyset, *args)

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        values = call.values(inputs[1:])
        tensors = [value if isinstance(value, torch.Tensor) else None for value in values]
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.set_materialize_grads(False)  # of codes there are none
        ctx.given = len(inputs)
        ctx.dtype = output.dtype
        ctx.values = tuple(None if isinstance(value, torch.Tensor) else value for value in values)

    def recalled(ctx: Any) -> tuple[Any, ...]:
        saved = ctx.saved_tensors
        return tuple(value if tensor is None else tensor for tensor, value in zip(saved, ctx.values, strict=True))

    def backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
        if grad is None:
            nothing: tuple[Any, ...] = (None,) * ctx.given
            return nothing
        values = recalled(ctx)
        operands = call.operands(values)
        wanted = tuple(at(ctx.needs_input_grad, 1 + place, False) for place in places)
        found = rule.backward(grad, *operands.values(), wanted=wanted, **call.constants(values))
        made: list[Any] = [None] * ctx.given
        for place, of_operand in zip(places, found, strict=False):
            if of_operand is not None:
                made[1 + place] = of_operand
        return tuple(made)

    def jvp(ctx: Any, _: Any, *tangents: Any) -> Any:
        values = recalled(ctx)
        operands = call.operands(values)
        constants = {"dtype": ctx.dtype, **call.constants(values)}
        return rule.tangent(*(at(tangents, place) for place in places), *operands.values(), **constants)

    methods = {each.__name__: staticmethod(each) for each in (forward, setup_context, backward, jvp)}
    return type(f"{call.row.name}_of_dlfp4", (torch.autograd.function._SingleLevelFunction,), methods)


def at(values: tuple[Any, ...], place: int, default: Any = None) -> Any:
    """One of some values, of which trailing ones may have been left out."""
    return values[place] if place < len(values) else default


def followed_further() -> AbstractContextManager[Any]:
    """Within transforms of functorch the next level may follow a call, too, which PyTorch turns off in a node."""
    if not torch._C._are_functorch_transforms_active():
        return nullcontext()
    stack = ExitStack()
    stack.enter_context(torch.enable_grad())
    stack.enter_context(forward_ad._set_fwd_grad_enabled(True))
    return stack


def register_gradient(call: Call, kernel: Callable[..., Any], library: torch.library.Library) -> Callable[..., Any]:
    """Give an operation its kernel for autograd, which is returned, and its out= form a refusal.

    PyTorch's own registration (``torch.library.register_autograd``) refuses ``torch.func.grad`` and gives
    ``torch.func.jvp`` zeros.
    """
    name = call.row.name
    op, rule = getattr(torch.ops.dlfp4, name).default, RULES.get(name)
    function = None if rule is None else function_of(call, rule, op)

    def differentiable(keyset: Any, *args: Any) -> Any:
        followed = is_followed(*args)
        if not followed and keyset.raw_repr() in DIRECT:
            return kernel(*args)
        if followed and rule is not None and function is not None and rule.applies(call.values(args)):
            with enable_single_level_autograd_function():
                return function.apply(keyset, *args)
        if leads_to_kernel(keyset):
            return kernel(*args)
        with torch._C._AutoDispatchBelowAutograd():
            return op.redispatch(keyset & torch._C._after_autograd_keyset, *args)

    op_out = getattr(torch.ops.dlfp4, name).out

    def without_gradient(keyset: Any, *args: Any, out: Any) -> None:
        if is_followed(*args, out):
            raise RuntimeError(f"{name}(out=...) has no gradient, and an argument requires one: omit `out=`")
        with torch._C._AutoDispatchBelowAutograd():
            op_out.redispatch(keyset & torch._C._after_autograd_keyset, *args, out=out)

    library.impl(name, differentiable, "Autograd", with_keyset=True)
    library.impl(f"{name}.out", without_gradient, "Autograd", with_keyset=True)
    return differentiable


def is_at_once(keyset: Any, *args: Any) -> bool:
    """Whether a kernel for autograd calls that of the device, for nothing comes between and nothing is followed."""
    return not is_followed(*args) and leads_to_kernel(keyset)


# Sets of dispatch keys, as numbers, below whose keys for autograd nothing comes but a device: no mode, no transform, no
# subclass. There the kernel is called at once, for a redispatch takes as long as a small product.
DIRECT: set[int] = set()


def leads_to_kernel(keyset: Any) -> bool:
    """Whether a set of dispatch keys is such, which is then remembered."""
    keys = torch._C.DispatchKey
    below = keyset & torch._C._after_autograd_keyset
    for passed in (keys.ADInplaceOrView, keys.BackendSelect):
        below = below.remove(passed)
    found = below.highestPriorityTypeId() in (keys.CPU, keys.CUDA)
    if found:
        DIRECT.add(keyset.raw_repr())
    return found


def is_followed(*args: Any) -> bool:
    """Whether autograd follows a call, backward or forward."""
    wanted: bool = torch._C.is_grad_enabled() and torch._C._any_requires_grad(*args)
    return wanted or forward_ad._current_level >= 0


def is_differentiated(x: torch.Tensor) -> bool:
    """Whether autograd follows what is done with a tensor, in what Dynamo can trace."""
    follows: bool = (torch.is_grad_enabled() and x.requires_grad) or forward_ad._current_level >= 0
    return follows
