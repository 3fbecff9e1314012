"""Parts of ScaledTensors: slices between blocks, matrices of a stack, and other shapes, as views of the inner tensors.

The rules are those of ``core/tensor/slices.pxi``, on tensors that need have no memory, as in a compiler.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from dlfp4 import _core
from dlfp4.extents import count_elements
from dlfp4.formats import ROTATED_LENGTH
from dlfp4.frameworks.base import SUBBYTE
from dlfp4.torch.scaled_tensor import ScaledTensor, Shape, described, like, mapped, present, turn, turned_dim

if TYPE_CHECKING:
    from dlfp4.formats import Format


@dataclass(frozen=True)
class Cut:
    """An interval of rows or columns, of so many; borders are multiples of `step`, and the end."""

    first: int
    last: int
    extent: int
    step: int

    @property
    def is_empty(self) -> bool:
        """Whether it takes nothing, which may be between any two elements."""
        return self.first == self.last

    def check(self, q: ScaledTensor, what: str) -> None:
        """ValueError where it cuts through a block."""
        if self.first % self.step or (self.last % self.step and self.last != self.extent):
            raise ValueError(
                f"{what} {self.first}:{self.last} of {described(q)} cut through blocks, which have borders at "
                f"multiples of {self.step} {what}, and at the end, {self.extent}"
            )

    def of(self, size: int) -> slice:
        """What it takes of a dimension in which `size` elements have one entry."""
        return slice(0, 0) if self.is_empty else slice(self.first // size, -(-self.last // size))

    def bytes(self, bits: int) -> slice:
        """What it takes of packed elements; the last block with the zeros that complete it."""
        if self.is_empty:
            return slice(0, 0)
        return slice(self.first * bits // 8, None if self.last == self.extent else self.last * bits // 8)


def cut(q: ScaledTensor, dim: int, first: int, last: int) -> ScaledTensor:
    """The part of a tensor between two borders along a dimension: views of its parts."""
    dim %= q.dim()
    if q.turned:
        return turn(cut(turn(q), turned_dim(dim, q.dim()), first, last))
    shape = tuple(q.shape)
    result = (*shape[:dim], last - first, *shape[dim + 1 :])
    if (first, last) == (0, shape[dim]):
        return mapped(q, torch.ops.aten.alias.default)
    if q.encoding.prepared is not None:
        return cut_prepared(q, dim, first, last, result)
    format = format_to_cut(q)
    lines, length = format.block or (1, None)
    along, across = length or (2 if format.element.name in SUBBYTE else 1), max(1, lines)
    along = along if q.encoding.hadamard is None else max(along, ROTATED_LENGTH)
    steps = (across, along) if q.encoding.axis == -1 else (along, across)
    rows, columns = count_elements(shape[:-1]), shape[-1]
    if not count_elements(result):  # which may lie between any two elements
        taken = count_elements(result[:-1]), result[-1]
        return cut_parts(q, format, Cut(0, taken[0], rows, steps[0]), Cut(0, taken[1], columns, steps[1]), result)
    if dim == len(shape) - 1:
        return cut_parts(q, format, Cut(0, rows, rows, steps[0]), Cut(first, last, columns, steps[1]), result)
    cut_rows = rows_of(q, dim, first, last, steps[0])
    return cut_parts(q, format, cut_rows, Cut(0, columns, columns, steps[1]), result)


def rows_of(q: ScaledTensor, dim: int, first: int, last: int, step: int) -> Cut:
    """The rows that an interval of a leading dimension takes; ValueError where they do not follow one another."""
    shape = tuple(q.shape)
    if count_elements(shape[:dim]) > 1:
        raise ValueError(
            f"rows {first}:{last} along dimension {dim} of {described(q)} do not follow one another; take each tensor "
            f"of the stack, q[k]"
        )
    inner = count_elements(shape[dim + 1 : -1])
    return Cut(first * inner, last * inner, count_elements(shape[:-1]), step)


def cut_prepared(q: ScaledTensor, dim: int, first: int, last: int, shape: Shape) -> ScaledTensor:
    """Whole blocks of a prepared weight's rows, such as matrices of a stack, which follow one another."""
    encoding, facts = q.encoding, q.encoding.prepared
    assert facts is not None
    *_, height = _core._size_of_prepared(encoding.format, facts.rows, facts.columns)
    by_rows = encoding.axis == -1 and dim < q.dim() - 1 and count_elements(shape) > 0
    rows = rows_of(q, dim, first, last, height) if by_rows else None
    if rows is None or rows.first % height or (rows.last % height and rows.last != rows.extent):
        raise ValueError(
            f"{described(q)} cannot be cut to {first}:{last} along dimension {dim}: prepared, it has borders at "
            f"multiples of {height} rows; do not prepare it"
        )
    in_row = q.elements.shape[0] // -(-facts.rows // height)
    blocks = slice(rows.first // height * in_row, -(-rows.last // height) * in_row)
    parts = dict(present(q)) | {"elements": q.elements[blocks]}
    if _core._find_format(encoding.format).block is not None:
        parts["scales"] = q.scales[blocks]
    share_scale(q, parts, slice(rows.first, rows.last), rows.extent, shape)
    form = str(replace(encoding, prepared=facts._replace(rows=rows.last - rows.first)))
    return ScaledTensor(parts, form, shape, q.dtype)


def share_scale(
    q: ScaledTensor, parts: dict[str, torch.Tensor | None], lines: slice, extent: int, shape: Shape
) -> None:
    """Of global scales that lines or matrices have, those of some lines: one matrix has a number, even of nothing."""
    if q.global_scale is None or not q.global_scale.dim():
        return
    each = max(1, extent // max(1, q.global_scale.numel()))
    if each > 1 and not count_elements(shape):
        lines = slice(0, each * count_elements(shape[:-2]))
    for name in ("global_scale", "encode_scale"):
        whole = parts.get(name)
        if whole is not None:
            unit = whole.reshape(-1)[lines.start // each : -(-lines.stop // each)]
            parts[name] = unit if each == 1 or unit.numel() != 1 else unit.reshape(())


def format_to_cut(q: ScaledTensor) -> Format:
    """The format; ValueError where scales lie in tiles."""
    format = _core._find_format(q.format)
    if q.encoding.scale_layout != "linear" and format.block is not None:
        raise ValueError(
            f"{described(q)} cannot be cut: only linear scales lie block by block; quantize without a "
            f"scale layout, and do not prepare it"
        )
    return format


def cut_parts(q: ScaledTensor, format: Format, rows: Cut, columns: Cut, shape: Shape) -> ScaledTensor:
    """The parts of rows and columns on borders."""
    if count_elements(shape):
        rows.check(q, "rows")
        columns.check(q, "columns")
    bits = SUBBYTE.get(format.element.name, 8)
    by_columns = q.encoding.axis == -2
    lines, along = (columns, rows) if by_columns else (rows, columns)
    along = along if count_elements(shape) else with_whole_blocks(along, format, bits)
    parts = dict(present(q))
    stored = (lines.of(1), along.bytes(bits))
    transposed = by_columns and bits == 8  # bytes lie as the tensor does, whichever way blocks run
    parts["elements"] = q.elements[stored[::-1] if transposed else stored]
    if q.scales.dim() == 2:
        height, length = format.block or (1, None)
        step = 1 if format.repeats_scales else height
        block = slice(None) if length is None and not along.is_empty else along.of(length or 1)
        index = (lines.of(step), block)
        parts["scales"] = q.scales[index[::-1] if transposed else index]
        if q.offsets is not None:
            parts["offsets"] = q.offsets[offsets_within(q, *index)]
    share_scale(q, parts, lines.of(1), lines.extent, shape)
    return like(q, parts, shape=shape)


def with_whole_blocks(along: Cut, format: Format, bits: int) -> Cut:
    """The length of a tensor of nothing: its lines are as long as those of others, whose blocks are completed."""
    if format.block is None or (format.kind == "largest" and not format.has_integers):  # blocks may be short
        return along
    step = format.block[1] or 8 // bits
    return replace(along, last=min(along.extent, -(-along.last // step) * step))


def offsets_within(q: ScaledTensor, lines: slice, blocks: slice) -> tuple[slice, slice]:
    """Where the zero points or biases of some blocks lie: packed ones in bytes."""
    assert q.offsets is not None
    bits = SUBBYTE.get(q.encoding.offsets, 8)
    if bits == 8 or blocks == slice(None):
        return lines, blocks
    ends = [blocks.start * bits, blocks.stop * bits]
    if ends[0] % 8 or (ends[1] % 8 and blocks.stop < q.scales.shape[1]):
        raise ValueError(
            f"blocks {blocks.start}:{blocks.stop} of {described(q)}: zero points of {q.encoding.offsets} lie two a "
            f"byte; cut between pairs of blocks, or store them as uint8"
        )
    return lines, slice(ends[0] // 8, -(-ends[1] // 8))


def reshaped(q: ScaledTensor, shape: Shape) -> ScaledTensor:
    """The tensor in another shape over the same memory: leading dimensions are rows that follow one another."""
    if tuple(q.shape) == shape:
        return mapped(q, torch.ops.aten.alias.default)
    if q.turned and shape[-2:] == tuple(q.shape[-2:]):
        return turn(reshaped(turn(q), (*shape[:-2], shape[-1], shape[-2])))
    if q.turned:
        raise NotImplementedError(f"{described(q)} is a transpose: reshape it before that, q.mT.reshape(...).mT")
    if q.numel() != count_elements(shape):
        raise ValueError(f"{described(q)} has {q.numel()} elements, not those of shape {shape}")
    keeps_lines = shape[-1:] == tuple(q.shape[-1:]) and (len(shape) > 1 or q.encoding.axis == -1)
    keeps_lines = keeps_lines and count_elements(shape[:-1]) == count_elements(q.shape[:-1])  # also of nothing
    if keeps_lines and units_fit(q, shape):
        return mapped(q, torch.ops.aten.alias.default, shape=shape)
    if is_one_line(q) and (len(shape) == 1 or (q.dim() == 1 and are_lines(q, shape))):
        rows = count_elements(shape[:-1])
        made = mapped(q, lambda part: part.reshape(rows, -1) if part.dim() == 2 else part, shape=shape)
        if all(part.is_contiguous() for part in present(q).values()):
            return made
        return mapped(made, torch.clone)  # a copy, as PyTorch's reshape makes it, and of a scale that all have as well
    raise NotImplementedError(
        f"{described(q)} in shape {shape}: the last dimension stays, beside another one where blocks run along "
        f"columns, and so do matrices that have a global scale each; call .dequantize() first"
    )


def units_fit(q: ScaledTensor, shape: Shape) -> bool:
    """Whether each line, or each matrix, still has the global scale that it had; of one row both are the same."""
    if q.global_scale is None or q.global_scale.dim() == 0:
        return True
    lines = count_elements(shape[:-1]) if q.encoding.axis == -1 else shape[-1]
    return q.global_scale.numel() in (lines, count_elements(shape[:-2])) and shape[-2:] == tuple(q.shape[-2:])


def are_lines(q: ScaledTensor, shape: Shape) -> bool:
    """Whether blocks that follow one another in a line do not cross from row to row of a shape."""
    _, length = _core._find_format(q.format).block or (1, 1)
    return count_elements(shape) > 0 and shape[-1] % (length or 1) == 0


def is_one_line(q: ScaledTensor) -> bool:
    """Whether the rows, with their blocks, are one row as well."""
    format = _core._find_format(q.format)
    one = q.global_scale is None or q.global_scale.dim() == 0
    if format.block is None:
        return q.encoding.axis == -1 and one
    lines, length = format.block
    fits = lines == 1 and length is not None and q.shape[-1] % length == 0
    return fits and one and q.encoding.axis == -1 and q.encoding.scale_layout == "linear"
