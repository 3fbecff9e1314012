"""ScaledTensors whose dimensions PyTorch arranges anew on the way to a product, as ``torch.einsum`` does: none is
decoded for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from dlfp4.extents import count_elements
from dlfp4.torch.cutting import reshaped
from dlfp4.torch.memoryless import Memoryless
from dlfp4.torch.scaled_tensor import (
    ScaledTensor,
    Shape,
    Table,
    decomposed,
    described,
    handled,
    implements,
    strides_of,
    turn,
    values_of,
    wrapper,
)
from dlfp4.torch.tracing import is_traced_whole, traces_whole

aten = torch.ops.aten


class Factor(NamedTuple):
    """A dimension of the whole, or None: so many repeats of it."""

    dim: int | None
    extent: int


Group = tuple[Factor, ...]  # of a dimension, which is their product


class Arranged(Memoryless):
    """A ScaledTensor with its dimensions in another order, joined, or among repeats. It has products alone: what they
    take of it is a ScaledTensor again.
    """

    whole: ScaledTensor  # no transpose
    groups: tuple[Group, ...]

    def __new__(cls, whole: ScaledTensor, groups: Sequence[Group]) -> Arranged:  # noqa: PYI034  (PyTorch makes the object)
        """The tensor of such dimensions."""
        shape = tuple(count_elements(extent for _, extent in group) for group in groups)
        self: Arranged = wrapper(cls, shape, strides=strides_of(shape, False), dtype=whole.dtype, device=whole.device)
        self.whole, self.groups = whole, tuple(groups)
        return self

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        with traces_whole(is_traced_whole()):
            if function in ARRANGERS:
                return ARRANGERS[function](*args, **given)
            if function in PRODUCTS:
                return handled(function, args, given)
        return decomposed(function, args, given)

    def dequantize(self, dtype: Any = None) -> torch.Tensor:
        """The values, as of a ScaledTensor."""
        return values_of(self, dtype)

    def arrange(self, values: torch.Tensor) -> torch.Tensor:
        """Values of the whole in the dimensions of this tensor."""
        named = [factor for group in self.groups for factor in group]
        order = [factor.dim for factor in named if factor.dim is not None]
        ones = [dim for dim in range(values.dim()) if dim not in order]
        values = values.permute(*ones, *order).reshape([values.shape[dim] for dim in order])
        for place, factor in enumerate(named):
            values = values.unsqueeze(place) if factor.dim is None else values
        return values.expand([factor.extent for factor in named]).reshape(self.shape)

    def __tensor_flatten__(self) -> tuple[list[str], tuple[Group, ...]]:
        return ["whole"], self.groups

    @staticmethod
    def __tensor_unflatten__(
        parts: Mapping[str, Any], groups: tuple[Group, ...], size: Shape, stride: Shape
    ) -> Arranged:
        return Arranged(parts["whole"], groups)

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"{described(self.whole)}, arranged as {tuple(self.shape)}"


PRODUCTS = (aten.bmm.default, aten.baddbmm.default)
ARRANGERS = Table()  # what is done to such tensors: (*arguments)
arranges = ARRANGERS.implements


def groups_of(q: ScaledTensor | Arranged) -> tuple[ScaledTensor, list[Group]]:
    """The whole, and what of it each dimension is."""
    if isinstance(q, Arranged):
        return q.whole, list(q.groups)
    groups: list[Group] = [(Factor(dim, extent),) for dim, extent in enumerate(turn(q).shape if q.turned else q.shape)]
    return (turn(q), [*groups[:-2], groups[-1], groups[-2]]) if q.turned else (q, groups)


def settled(whole: ScaledTensor, groups: Sequence[Group]) -> Any:
    """The tensor of such dimensions, a ScaledTensor where that has a form for it."""
    arranged = Arranged(whole, groups)
    for is_turned in (False, True):
        order = [*groups[:-2], *groups[-2:][::-1]] if is_turned else groups
        kept = [factor.dim for group in order for factor in group if factor.extent != 1]
        if kept != [dim for dim, extent in enumerate(whole.shape) if extent != 1]:
            continue
        shape = tuple(count_elements(extent for _, extent in group) for group in order)
        if is_turned and len(shape) < 2:
            continue
        try:
            made = reshaped(whole, shape)
        except NotImplementedError:  # blocks run along what would be cut or joined
            continue
        return turn(made) if is_turned else made
    return arranged


# ---- Arranged anew


@arranges(aten.detach.default, aten.alias.default, aten.clone.default)
def same(q: Arranged, **options: Any) -> Arranged:  # noqa: ARG001
    """Another tensor of the same; it is not written to."""
    return Arranged(q.whole, q.groups)


@arranges(aten.permute.default)
def permuted(q: ScaledTensor | Arranged, dims: Sequence[int]) -> Any:
    """Dimensions in an order."""
    whole, groups = groups_of(q)
    return settled(whole, [groups[dim] for dim in dims])


@arranges(aten.transpose.int)
def transposed(q: ScaledTensor | Arranged, first: int, second: int) -> Any:
    """Two exchanged."""
    order = list(range(q.dim()))
    order[first], order[second] = order[second], order[first]
    return permuted(q, order)


@arranges(aten.unsqueeze.default)
def with_one_more(q: ScaledTensor | Arranged, dim: int) -> Any:
    """An extent of 1 more."""
    whole, groups = groups_of(q)
    groups.insert(dim % (q.dim() + 1), ())
    return settled(whole, groups)


@implements(aten.expand.default)
def expand(function: Any, q: ScaledTensor, size: Sequence[int], *, implicit: bool = False) -> Any:  # noqa: ARG001
    """Repeated along new dimensions, or along some of extent 1."""
    return repeated(q, size)


@arranges(aten.expand.default)
def repeated(q: ScaledTensor | Arranged, size: Sequence[int], *, implicit: bool = False) -> Any:  # noqa: ARG001
    """Repeated along dimensions, which only the arrangement remembers."""
    whole, groups = groups_of(q)
    groups = [()] * (len(size) - len(groups)) + groups
    own = [count_elements(extent for _, extent in group) for group in groups]
    pairs = zip(groups, own, size, strict=True)
    return settled(whole, [group if new in (-1, old) else (*group, Factor(None, new)) for group, old, new in pairs])


@arranges(aten.view.default, aten._unsafe_view.default)
def viewed(q: ScaledTensor | Arranged, size: Sequence[int]) -> Any:
    """Dimensions joined, or taken apart as they were joined."""
    whole, given = groups_of(q)
    factors = [factor for group in given for factor in group if factor.extent != 1]
    groups: list[Group] = []
    for extent in size:
        taken = [factors.pop(0)] if extent != 1 and factors else []
        while factors and count_elements(each.extent for each in taken) < extent:
            taken.append(factors.pop(0))
        groups.append(tuple(taken))
    made = settled(whole, groups)
    if tuple(made.shape) != tuple(size):
        raise NotImplementedError(f"{q!r} has no view of shape {tuple(size)}: call .dequantize() for the values")
    return made


# ---- Products


def multiply_repeated(
    multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], a: torch.Tensor | Arranged, b: torch.Tensor
) -> torch.Tensor:
    """Stacks, one of which repeats matrices: rows that meet the same one are multiplied together, by `multiply`."""
    if not isinstance(b, Arranged):
        return multiply_repeated(multiply, b.transpose(1, 2), transposed(a, 1, 2)).transpose(1, 2)
    batch, *matrix = b.groups
    order = sorted(range(len(batch)), key=lambda place: batch[place].dim is None)
    matrices = settled(b.whole, [tuple(each for each in batch if each.dim is not None), *matrix])
    if not isinstance(matrices, ScaledTensor) or isinstance(a, (ScaledTensor, Arranged)):
        raise NotImplementedError(
            f"a product with {b!r}: it takes a plain tensor by matrices of which a dimension stays as it was; call "
            f".dequantize() for the values"
        )
    sizes = [factor.extent for factor in batch]
    rows = a.unflatten(0, sizes).permute(*order, -2, -1) if sizes else a
    product = multiply(rows.reshape(matrices.shape[0], -1, a.shape[2]), matrices)
    product = product.reshape(*(sizes[place] for place in order), a.shape[1], -1)
    back = [order.index(place) for place in range(len(sizes))]
    return product.permute(*back, -2, -1).reshape(a.shape[0], a.shape[1], -1)
