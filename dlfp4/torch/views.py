"""What PyTorch does to a ScaledTensor without reading its codes: views, copies, moves, memory for others like it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, Never

import torch
from torch.utils._python_dispatch import return_and_correct_aliasing

from dlfp4 import _core
from dlfp4.extents import count_elements
from dlfp4.formats import own_offsets
from dlfp4.frameworks.base import SUBBYTE
from dlfp4.frameworks.torch import element_name
from dlfp4.operations import Encoding
from dlfp4.proto import ACROSS, TensorProto
from dlfp4.torch.arranging import permuted, transposed, viewed, with_one_more
from dlfp4.torch.cutting import cut, is_one_line, reshaped
from dlfp4.torch.memoryless import Memoryless
from dlfp4.torch.protos import granularity_of, types_beside
from dlfp4.torch.representing import PAIRS, settle
from dlfp4.torch.representing import described as in_torch
from dlfp4.torch.scaled_tensor import (
    PARTS,
    UNITS,
    ScaledTensor,
    as_bytes,
    checked_dtype,
    described,
    handled,
    implements,
    like,
    mapped,
    owner_among,
    parts_of,
    plain,
    present,
    restore,
    turn,
    wrapper,
)

aten = torch.ops.aten


def aliasing(function: Any, args: tuple[Any, ...], result: Any) -> Any:
    """A view's result, which compilers shall know to share its argument's memory, and `copy_` as well."""
    q = args[0]
    for made in result if isinstance(result, list) else [result]:
        made.lent = (q.lent or frozenset()) | shared_parts(q, made)
    return return_and_correct_aliasing(function, args, {}, result)


def shared_parts(q: ScaledTensor, view: ScaledTensor) -> frozenset[str]:
    """The parts of a slice that are also those of what lies beside it: a scale of all, of rows, of a matrix."""
    if view.numel() == q.numel():
        return frozenset()
    own, parts = present(view), present(q)
    return frozenset(name for name in own if name != "elements" and own[name].numel() == parts[name].numel())


# ---- The same tensor


@implements(aten.detach.default, aten.alias.default)
def shared(function: Any, q: ScaledTensor) -> Any:
    """Another tensor over the same parts."""
    return aliasing(function, (q,), mapped(q, aten.alias.default))


@implements(aten.clone.default)
def clone(function: Any, q: ScaledTensor, *, memory_format: Any = None) -> ScaledTensor:  # noqa: ARG001
    """A copy of all parts, as they lie: a transpose stays one."""
    return cloned(q)


def cloned(q: ScaledTensor, **changes: Any) -> ScaledTensor:
    """A copy in memory of its own. The parts of a prepared weight lie in one, which copies of each would not: that
    gets the order back that it had before.
    """
    if type(q.elements) is torch.Tensor:
        return mapped(plain(q), torch.clone, **changes)
    copied = mapped(q, clone_in_graph, **changes)
    if q.encoding.prepared is not None:
        copied.elements = apart(copied.elements)
    return copied


def clone_in_graph(part: torch.Tensor) -> torch.Tensor:
    """A copy of a part; on hosts Inductor has no loop over scales of MX formats (2.13): an operation copies those."""
    if part.dtype == torch.float8_e8m0fnu and part.device.type == "cpu":
        found: torch.Tensor = torch.ops.dlfp4.cast(part, "float8_e8m0fnu")
        return found
    return part.clone()


def apart(codes: torch.Tensor) -> torch.Tensor:
    """Codes of a prepared weight in memory that is not a prepared weight's: what reads them then waits for them, and
    restores their order, as of all copies. Kernels read prepared weights before what writes them may have ended.
    """
    return torch.nn.functional.pad(codes, (0, 1))[..., :-1]


@implements(aten.lift_fresh.default, aten.contiguous.default)
def keep(function: Any, q: ScaledTensor, **options: Any) -> ScaledTensor:  # noqa: ARG001
    """The tensor itself: parts lie as the encoding says."""
    return q


@implements(aten.is_same_size.default, aten._has_same_storage_numel.default)
def is_same_size(function: Any, q: torch.Tensor, other: torch.Tensor) -> bool:  # noqa: ARG001
    """Whether a tensor has the shape of another one: its tangent is that of its values."""
    found: bool = q.shape == other.shape
    return found


@implements(aten._to_copy.default)
def to_copy(
    function: Any,  # noqa: ARG001
    q: ScaledTensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: Any = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: Any = None,  # noqa: ARG001
) -> ScaledTensor:
    """On another device, or counting as another float type, which leaves the parts as they are."""
    if layout not in (None, torch.strided):
        raise NotImplementedError(f"{described(q)} has no form of {layout}; call .dequantize() first")
    name = q.dtype if dtype is None else checked_dtype(dtype)
    if device is None or torch.device(device) == q.device:
        return cloned(q, dtype=name)
    options = {"device": device, "non_blocking": non_blocking}
    moved = mapped(plain(q), lambda part: part.to(**options), dtype=name)
    return mapped(moved, torch.Tensor.pin_memory) if pin_memory else moved


@implements(aten.is_pinned.default)
def is_pinned(function: Any, q: ScaledTensor, device: Any = None) -> bool:  # noqa: ARG001
    """Whether all parts lie in pinned memory."""
    return all(part.is_pinned() for part in present(q).values())


@implements(aten._pin_memory.default, aten.record_stream.default)
def each_part(function: Any, q: ScaledTensor, *options: Any) -> Any:
    """Each part pinned, or recorded on a stream."""
    made = {name: function(part, *options) for name, part in present(q).items()}
    return None if function is aten.record_stream.default else like(q, made)


# ---- Written to


@implements(aten.copy_.default)
def copy_(function: Any, target: Any, source: Any, non_blocking: bool = False) -> ScaledTensor:  # noqa: ARG001
    """Codes and scales of one tensor into the memory of another; nothing is quantized."""
    if not isinstance(target, ScaledTensor) or not isinstance(source, ScaledTensor):
        raise NotImplementedError(refusal_to_copy(target, source))
    source = brought_to(source, target)
    old, new = present(target), present(source)
    if target.form == source.form and kinds_of(old) == kinds_of(new) and keeps_others(target, source):
        for name, part in old.items():
            part.copy_(new[name].reshape(part.shape), non_blocking)
    elif target.lent is not None and not isinstance(target, torch.nn.Parameter):
        raise ValueError(
            f"{described(source)} cannot be copied into a view, {described(target)}: it has scales or parts of its "
            f"own, which the tensor behind the view would not get, or would get for other values; copy into that "
            f"tensor, of a parameter not into its .data"
        )
    else:  # scales of another granularity or type, parts that only one of them has: former views keep what they have
        for name in PARTS:
            setattr(target, name, new[name].to(target.device, copy=True) if name in new else None)
        target.form = source.form
    if target.encoding.prepared is not None and type(target.elements) is torch.Tensor:
        settle(target.elements)
    return target


def kinds_of(parts: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """By name, the shape and the type of each part."""
    return {name: (shape_of(part), part.dtype) for name, part in parts.items()}


def keeps_others(target: ScaledTensor, source: ScaledTensor) -> bool:
    """Whether what lies beside a slice keeps its values: the scales that both have are the source's as well, or zero,
    as in new memory. A device is waited for, unless the two are of one tensor, whose scales are the same memory.
    """
    pairs = [(getattr(target, name), getattr(source, name)) for name in target.lent or ()]
    return all(
        type(old) is torch.Tensor
        and (torch.equal(as_bytes(old), as_bytes(new.reshape(old.shape).to(old.device))) or not old.float().any())
        for old, new in pairs
    )


def shape_of(part: torch.Tensor) -> tuple[int, ...]:
    """The shape of a part; a single scale has that of one, or none."""
    return (1,) if part.numel() == 1 else tuple(part.shape)


def refusal_to_copy(target: Any, source: Any) -> str:
    """What to do instead of a copy that would have to quantize or to decode."""
    if isinstance(target, ScaledTensor):
        return (
            f"copy_ of plain values into {described(target)} would have to quantize them, by no known recipe; "
            f"copy dlfp4.torch.quantize(x, {target.format!r}, axis={target.axis})"
        )
    return f"copy_ of {described(source)} into a plain tensor: copy its values, .dequantize()"


def brought_to(source: ScaledTensor, target: ScaledTensor) -> ScaledTensor:
    """The source in the layout of the target; ValueError where the two are not of one kind."""
    if source.turned != target.turned and source.dim() == target.dim() == 2:
        source = turned_over(source)
    elif target.turned and not source.turned and source.dim() > 2 and source.axis == -2:
        source = one_by_one(source)
    if source.encoding.scale_layout != target.encoding.scale_layout:
        source = laid_out_as(source, target)
    faults = [
        f"{name} {new}, not {old}" for name in KIND if (old := getattr(target, name)) != (new := getattr(source, name))
    ]
    if faults:
        raise ValueError(f"{described(source)} cannot be copied into {described(target)}: it has {'; '.join(faults)}")
    return source


KIND = ("shape", "format", "axis", "turned")


def turned_over(q: ScaledTensor) -> ScaledTensor:
    """The same matrix as the transpose of parts that lie the other way, or the other way around."""
    made = parts_of(q if q.turned else turn(q))
    parts = present(q) | {"elements": made.data, "scales": made.scales}
    other = ScaledTensor(parts, made.type, made.shape, q.dtype)
    return other if q.turned else turn(other)


def one_by_one(q: ScaledTensor) -> ScaledTensor:
    """A stack with blocks along columns, where those of all its matrices follow one another, as one of transposes.

    Products by experts read that alone. What has no such form, as where a block crosses into the next matrix, stays.
    """
    format, (*leading, rows, columns) = _core._find_format(q.format), q.shape
    count, length = count_elements(leading), 1 if format.block is None else format.block[1] or rows
    units = 1 if q.global_scale is None else q.global_scale.numel()
    if q.encoding.scale_layout != "linear" or length == 0 or rows % length or units not in (1, count):
        return q
    is_across = format.element.name in SUBBYTE  # whose parts lie transposed
    if not q.numel() or (is_across and rows * SUBBYTE[format.element.name] % 8):
        return q
    parts = present(q)
    for name in ("elements", "scales", "offsets"):
        if name in parts and parts[name].dim() == 2:
            lines = parts[name] if is_across else parts[name].mT
            each = lines.expand(-1, count) if lines.shape[1] == 1 else lines  # one for a column of all matrices
            parts[name] = each.unflatten(1, (count, -1)).transpose(0, 1).flatten(0, 1)
    return turn(ScaledTensor(parts, str(replace(q.encoding, axis=-1)), (*leading, columns, rows), q.dtype))


def laid_out_as(source: ScaledTensor, target: ScaledTensor) -> ScaledTensor:
    """The source with its scales in the target's layout, where the target lies."""
    q = restore(plain(source)).to_device(str(target.device))
    layout: Any = target.encoding.scale_layout
    q = q.prepare() if layout == "prepared" else q.with_scale_layout(layout)
    made = ScaledTensor.from_dlfp4(q, source.dtype)
    return turn(made) if source.turned else made


@implements(aten._foreach_lerp_.Scalar)
def keep_equal(function: Any, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor], weight: float) -> None:
    """Averages of models, as of ``torch.optim.swa_utils``: frozen weights, of which both have the same, stay."""
    pairs = list(zip(targets, sources, strict=True))
    quantized = [pair for pair in pairs if any(isinstance(x, ScaledTensor) for x in pair)]
    for target, source in quantized:
        if not is_equal(target, source):
            raise NotImplementedError(
                f"{function} of {owner_among((target, source))} and other values: only equal ones have an average "
                f"without being decoded; call .dequantize(), and quantize the result again"
            )
    others = [pair for pair in pairs if not any(isinstance(x, ScaledTensor) for x in pair)]
    if others:
        function(*map(list, zip(*others, strict=True)), weight)


def is_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two are quantized tensors of one description and of the same parts."""
    if not (isinstance(a, ScaledTensor) and isinstance(b, ScaledTensor)):
        return False
    own, other = present(a), present(b)
    if (a.form, a.shape, a.turned, own.keys()) != (b.form, b.shape, b.turned, other.keys()):
        return False
    return all(torch.equal(as_bytes(part), as_bytes(other[name])) for name, part in own.items())


# ---- Transposed


@implements(aten.t.default)
def t(function: Any, q: ScaledTensor) -> Any:
    """A matrix transposed."""
    if q.dim() != 2:
        raise NotImplementedError(f"t() of {described(q)}: it has {q.dim()} dimensions; .mT exchanges the last two")
    return aliasing(function, (q,), turn(q))


@implements(aten.transpose.int)
def transpose(function: Any, q: ScaledTensor, first: int, second: int) -> Any:
    """The last two dimensions exchanged, or one with itself."""
    pair = {first % q.dim(), second % q.dim()}
    if len(pair) == 1:
        return aliasing(function, (q, first, second), mapped(q, aten.alias.default))
    if pair != {q.dim() - 2, q.dim() - 1}:
        return transposed(q, first, second)
    return aliasing(function, (q, first, second), turn(q))


@implements(aten.permute.default)
def permute(function: Any, q: ScaledTensor, dims: Sequence[int]) -> Any:
    """Dimensions in another order: the last two may be exchanged."""
    order, usual = [dim % q.dim() for dim in dims], list(range(q.dim()))
    if order == usual:
        return aliasing(function, (q, dims), mapped(q, aten.alias.default))
    if order != [*usual[:-2], *usual[:-3:-1]]:
        return permuted(q, order)
    return aliasing(function, (q, dims), turn(q))


# ---- Parts and other shapes


@implements(aten.view.default, aten._unsafe_view.default)
def view(function: Any, q: ScaledTensor, size: Sequence[int]) -> Any:
    """Leading dimensions in another way; or all in a line, where blocks are lines that follow one another."""
    shape = completed(size, q.numel())
    if shape == (q.numel(),) and q.dim() > 1 and (q.turned or not is_one_line(q)):
        return Line(q)
    if q.turned and shape[-2:] != tuple(q.shape[-2:]):
        return viewed(q, shape)
    return aliasing(function, (q, size), reshaped(q, shape))


def completed(size: Sequence[int], count: int) -> tuple[int, ...]:
    """A shape with its -1 filled in."""
    known = count_elements(extent for extent in size if extent != -1)
    return tuple(count // max(1, known) if extent == -1 else extent for extent in size)


class Line(Memoryless):
    """Whole tensors one after another in a line, in which their blocks would be none: FSDP keeps that of a shard, to
    hold its memory, and DistributedDataParallel sends those of a module as one.
    """

    members: tuple[torch.Tensor, ...]

    def __new__(cls, *members: torch.Tensor) -> Line:  # noqa: PYI034  (PyTorch makes the object)
        """The line of some tensors."""
        count, first = sum(member.numel() for member in members), members[0]
        self: Line = wrapper(cls, (count,), dtype=first.dtype, device=first.device)
        self.members = members
        return self

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        line, *rest = args
        if not isinstance(line, Line):
            found = handled(function, args, kwargs or {})
        elif function in (aten.detach.default, aten.alias.default):
            found = Line(*line.members)
        elif function is aten.slice.Tensor:
            found = line.member_at(*rest)
        elif function is aten.view.default:
            found = line.in_shape(tuple(rest[0]))
        else:
            found = NotImplemented
        if found is NotImplemented:
            raise NotImplementedError(
                f"{function} of all elements in a line, across blocks; call .dequantize() before it"
            )
        return found

    def member_at(self, dim: int = 0, start: int = 0, end: int | None = None, step: int = 1) -> Any:
        """The line of the one that a slice takes."""
        ends = list(accumulate(member.numel() for member in self.members))
        for member, first, last in zip(self.members, [0, *ends], ends, strict=False):
            if (dim, start, end, step) == (0, first, last, 1):
                return Line(member)
        return NotImplemented

    def in_shape(self, shape: tuple[int, ...]) -> Any:
        """The one that it has, if that has such a shape or is a line itself."""
        member, *others = self.members
        if others or (member.dim() > 1 and shape != tuple(member.shape)):
            return NotImplemented
        return aten.alias.default(member) if shape == tuple(member.shape) else member.view(shape)

    def dequantize(self, dtype: Any = None) -> Never:
        """Refused."""
        raise NotImplementedError(f"{self!r}: call .dequantize() before it is put in a line")

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"{', '.join(map(repr, self.members))} in a line"


@implements(aten.as_strided.default)
def as_strided(
    function: Any, q: ScaledTensor, size: Sequence[int], stride: Sequence[int], offset: int | None = None
) -> Any:
    """The tensor itself, by the words of its memory."""
    if (tuple(size), tuple(stride), offset or 0) != (tuple(q.shape), q.stride(), 0):
        raise NotImplementedError(
            f"as_strided({list(size)}, {list(stride)}, {offset}) of {described(q)}: elements have no strides of their "
            f"own; take slices, or call .dequantize(). PyTorch asks for strides where a view leaves a compiled graph: "
            f"take it before, or return its .clone()"
        )
    return aliasing(function, (q, size, stride, offset), mapped(q, aten.alias.default))


@implements(aten.unsqueeze.default)
def unsqueeze(function: Any, q: ScaledTensor, dim: int) -> Any:
    """One more leading dimension; another one on the way to a product."""
    place = dim % (q.dim() + 1)
    if place > q.dim() - 2:
        return with_one_more(q, place)
    return aliasing(function, (q, dim), reshaped(q, (*q.shape[:place], 1, *q.shape[place:])))


@implements(aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default)
def squeeze(function: Any, q: ScaledTensor, dim: int | Sequence[int] | None = None) -> Any:
    """Without some leading dimensions of extent 1."""
    given = range(q.dim()) if dim is None else [dim] if isinstance(dim, int) else dim
    places = {each % q.dim() for each in given}
    kept = tuple(extent for place, extent in enumerate(q.shape) if extent != 1 or place not in places)
    return aliasing(function, (q,) if dim is None else (q, dim), reshaped(q, kept))


@implements(aten.slice.Tensor)
def take(
    function: Any, q: ScaledTensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    """A slice on borders of blocks."""
    if step != 1:
        raise NotImplementedError(f"a slice of {described(q)} has a step of {step}; blocks stay whole: use steps of 1")
    extent = q.shape[dim]
    first, last = (limited(each, extent) for each in (start or 0, extent if end is None else end))
    return aliasing(function, (q, dim, start, end, step), cut(q, dim, first, max(first, last)))


def limited(index: int, extent: int) -> int:
    """An end of a slice as a position."""
    return min(max(index + extent if index < 0 else index, 0), extent)


@implements(aten.select.int)
def select(function: Any, q: ScaledTensor, dim: int, index: int) -> Any:
    """One tensor of a stack."""
    return aliasing(function, (q, dim, index), one_of(q, dim, index))


def one_of(q: ScaledTensor, dim: int, index: int) -> ScaledTensor:
    """One tensor of a stack, of which compilers are not told."""
    place = dim % q.dim()
    if place >= q.dim() - 2:
        raise NotImplementedError(
            f"{described(q)} is not a stack along dimension {dim}: take a slice of whole blocks, or call .dequantize()"
        )
    first = index + q.shape[place] if index < 0 else index
    part = cut(q, place, first, first + 1)
    return reshaped(part, (*part.shape[:place], *part.shape[place + 1 :]))


NUMBERS = (torch.int32, torch.int64)


@implements(aten.index.Tensor)
def take_numbered(function: Any, q: ScaledTensor, indices: Sequence[torch.Tensor | None]) -> ScaledTensor:
    """Copies of the matrices of a stack that have these numbers, as models take the experts of each token."""
    numbers = indices[0]
    is_alone = len(indices) == 1 and numbers is not None and numbers.dim() == 1
    stack = plain(turn(q) if q.turned else q)
    height, _ = _core._find_format(q.format).block or (1, None)
    lies_apart = stack.dim() == 3 and stack.encoding.axis == -1 and stack.shape[1] % height == 0
    lies_apart = lies_apart and stack.encoding.scale_layout == "linear"
    if numbers is None or numbers.dtype not in NUMBERS or not is_alone or not lies_apart:
        raise NotImplementedError(
            f"{function} of {described(q)}: it takes a vector of the numbers of matrices, of a stack (E, N, K) with "
            f"blocks along K and linear scales, or of its .mT; call .dequantize() for the values"
        )
    made = mapped(stack, lambda part: matrices_of(part, stack.shape[0], numbers) if part.dim() else part.clone())
    made = like(made, present(made), shape=(numbers.shape[0], *stack.shape[1:]))
    return turn(made) if q.turned else made


@implements(aten.index_select.default)
def take_selected(function: Any, q: ScaledTensor, dim: int, numbers: torch.Tensor) -> ScaledTensor:
    """Some tensors of a stack, by their numbers along a dimension."""
    taken: ScaledTensor = take_numbered(function, q, [*[None] * (dim % q.dim()), numbers.reshape(-1)])
    return taken


def matrices_of(part: torch.Tensor, count: int, numbers: torch.Tensor) -> torch.Tensor:
    """What some of so many matrices have of a part; a global scale of a single matrix is a number."""
    each = as_bytes(part).unflatten(0, (count, part.shape[0] // max(1, count)))[numbers]
    taken = each.flatten(0, 1).view(part.dtype)
    return taken.reshape(()) if taken.dim() == 1 and part.shape[0] == count and taken.numel() == 1 else taken


@implements(aten.unbind.int)
def unbind(function: Any, q: ScaledTensor, dim: int = 0) -> Any:
    """All tensors of a stack."""
    return aliasing(function, (q, dim), [one_of(q, dim, index) for index in range(q.shape[dim])])


@implements(aten.split.Tensor, aten.unsafe_split.Tensor)
def split(function: Any, q: ScaledTensor, size: int, dim: int = 0) -> Any:
    """Slices of one size, on borders of blocks."""
    extent = q.shape[dim]
    starts = range(0, max(extent, 1), max(size, 1))
    return aliasing(function, (q, size, dim), [cut(q, dim, first, min(first + size, extent)) for first in starts])


@implements(aten.split_with_sizes.default, aten.unsafe_split_with_sizes.default)
def split_with_sizes(function: Any, q: ScaledTensor, sizes: Sequence[int], dim: int = 0) -> Any:
    """Slices of several sizes, on borders of blocks, such as query, key and value."""
    ends = list(accumulate(sizes))
    pairs = zip([0, *ends], ends, strict=False)
    return aliasing(function, (q, sizes, dim), [cut(q, dim, first, last) for first, last in pairs])


# ---- Memory for others like it


@implements(aten.empty_like.default, aten.zeros_like.default)
def memory_like(function: Any, q: ScaledTensor, **options: Any) -> ScaledTensor:
    """A tensor of the same description, of codes and scales of zero or of none yet."""
    dtype = checked_dtype(options.get("dtype") or q.dtype)
    kept = {name: options[name] for name in ("device", "pin_memory") if options.get(name) is not None}
    return mapped(plain(q), lambda part: function(part, **kept), dtype=dtype)


@implements(aten.new_zeros.default, aten.new_empty.default)
def memory_for(function: Any, q: ScaledTensor, size: Sequence[int], **options: Any) -> ScaledTensor:
    """A tensor of the same format in another shape, of codes and scales of zero or of none yet."""
    q = plain(q)
    dtype = checked_dtype(options.pop("dtype", None) or q.dtype)
    kept = {name: each for name, each in options.items() if name in ("device", "pin_memory") and each is not None}
    shape = tuple(size)
    stored = (*shape[:-2], shape[-1], shape[-2]) if q.turned else shape
    parts = present(q)
    sizes = sizes_of(stored, q.encoding, True, element_name(q.scales.dtype), unit_of(q))
    sizes |= {name: sizes["global_scale"] for name in UNITS if name in parts}
    made = {name: function(parts[name], size, **kept) for name, (size, _) in sizes.items() if name in parts}
    return like(q, made, shape=shape, dtype=dtype)


def unit_of(q: ScaledTensor) -> Any:
    """What has a global scale: the tensor, a row or a matrix."""
    stored = tuple(turn(q).shape if q.turned else q.shape)
    unit = None if q.global_scale is None else tuple(q.global_scale.shape)
    return granularity_of(q.format, q.encoding.axis, stored, unit)


def sizes_of(
    shape: tuple[int, ...], encoding: Encoding, pad: bool, scale: str | None = None, per: Any = "tensor"
) -> dict[str, tuple[Any, torch.dtype]]:
    """Shape and type of each part of a tensor, as dlfp4 describes them."""
    zero_points, biases = types_beside(encoding)
    proto = TensorProto(
        shape,
        format=encoding.format,
        scale_layout=encoding.scale_layout,  # type: ignore[arg-type]
        pad=pad,
        rowwise=encoding.axis == -1,
        columnwise=encoding.axis == -2,
        scale_dtype=scale if _core._find_format(encoding.format).kind == "largest" else None,  # type: ignore[arg-type]
        global_scale_per=per,
        zero_points=zero_points,
        biases=biases,
    )
    made = {PART_OF_BUFFER[buffer.name.removeprefix(ACROSS)]: in_torch(buffer) for buffer in proto.buffers()}
    size, dtype = made["elements"]
    return made | {"elements": (size, torch.uint8 if dtype is PAIRS else dtype)}


# What the buffers of a TensorProto are called here.
PART_OF_BUFFER = {
    "data": "elements", "scales": "scales", "global_scale": "global_scale",
    "zero_points": "offsets", "biases": "offsets",
}  # fmt: skip


def blank(shape: tuple[int, ...], format: str, dtype: torch.dtype, device: Any) -> ScaledTensor:
    """A tensor of zeros, with linear scales along its rows."""
    encoding = Encoding(format, offsets=own_offsets(_core._find_format(format)))
    sizes = sizes_of(shape, encoding, False)
    parts = {name: blank_part(name, size, kind, device) for name, (size, kind) in sizes.items()}
    return ScaledTensor(parts, str(encoding), shape, dtype)


def blank_part(name: str, shape: Any, dtype: torch.dtype, device: Any) -> torch.Tensor:
    """A part of such a tensor; its global scale is one, of which conventions may store the reciprocal."""
    make = torch.ones if name == "global_scale" else torch.zeros
    made: torch.Tensor = make(shape, dtype=dtype, device=device)
    return made
