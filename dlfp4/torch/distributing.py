"""ScaledTensors over several processes: what FSDP's ``fully_shard`` asks of a shard, and what it keeps of one; DTensors
of shards, and what these are together.

A shard has whole blocks, so that it is a ScaledTensor itself; its parts are gathered one by one, as bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

from dlfp4.extents import count_elements
from dlfp4.frameworks.base import SUBBYTE
from dlfp4.torch.scaled_tensor import (
    UNITS,
    ScaledTensor,
    Shape,
    as_bytes,
    described,
    element_of,
    implements,
    like,
    present,
)


class Sent(NamedTuple):
    """A part as it goes to the others: bytes, its type, and the dimension of rows; None where all have the same."""

    name: str
    memory: torch.Tensor
    dtype: torch.dtype
    rows: int | None


class Whole(NamedTuple):
    """What shards are to become: its shape, from so many, and of each part what came and how it was."""

    shape: Shape
    shards: int
    parts: tuple[Sent, ...]


@implements("fsdp_pre_all_gather")
def offer(q: ScaledTensor, mesh: Any, shape: Shape) -> tuple[tuple[torch.Tensor, ...], Whole]:
    """A shard's parts, and what has to be known when all have come."""
    shards = mesh.size()
    if shape[1:] != tuple(q.shape[1:]) or shape[0] != q.shape[0] * shards:
        raise ValueError(
            f"a quantized weight of shape {shape} on {shards} processes: {described(q)} is not an equal share of its "
            f"rows; let their number be a multiple of processes times the rows of a block, and shard along dimension 0"
        )
    parts = tuple(sent(q, shape, shards))
    whole = Whole(shape, shards, tuple(part._replace(memory=part.memory.to("meta")) for part in parts))
    return tuple(part.memory for part in parts), whole


def parts_to_send(q: ScaledTensor) -> dict[str, torch.Tensor]:
    """The parts of a tensor by name; ValueError for a prepared one, whose order kernels know, and other devices not."""
    if q.encoding.prepared is not None:
        raise ValueError(
            f"{described(q)} cannot go to other processes: prepared, it is more than its parts; use prepare=False"
        )
    return present(q)


def sent(q: ScaledTensor, shape: Shape, shards: int) -> Iterable[Sent]:
    """Each part."""
    # Bytes lie as the tensor does; of smaller elements each line of blocks is a row.
    rows = 1 if q.encoding.axis == -2 and element_of(q.format) in SUBBYTE else 0
    for name, part in parts_to_send(q).items():
        if name in UNITS:
            place = 0 if has_units_of_rows(q, part, shape, shards) else None
        else:
            place = rows if part.dim() > 1 else None
        yield Sent(name, as_bytes(part).contiguous().reshape(part.shape or (1,)), part.dtype, place)


def has_units_of_rows(q: ScaledTensor, unit: torch.Tensor, shape: Shape, shards: int) -> bool:
    """Whether each shard has global scales of its own: of rows, or of matrices, of which it may have just one."""
    if unit.dim():
        return q.encoding.axis == -1 or q.dim() > 2
    return len(shape) > 2 and count_elements(shape[:-2]) == shards


@implements("fsdp_post_all_gather")
def gather(
    q: ScaledTensor,
    outputs: Sequence[torch.Tensor],
    whole: Whole,
    dtype: torch.dtype,
    out: ScaledTensor | None,
) -> tuple[ScaledTensor, tuple[torch.Tensor, ...]] | None:
    """The whole tensor of what was gathered, and the memory that it holds; or `out`, made of the same memory before."""
    if whole.shards == 1:  # then PyTorch hands over the first part alone, and the shard is the whole
        return None if out is not None else (like(q, present(q), dtype=dtype), ())
    parts = {part.name: joined(part, output, whole.shards) for part, output in zip(whole.parts, outputs, strict=True)}
    if out is None:
        kept = tuple(part for part in parts.values() if not any(shares(part, each) for each in outputs))
        return like(q, parts, shape=whole.shape, dtype=dtype), (*outputs, *kept)
    for name, part in parts.items():
        held = getattr(out, name)
        if not shares(held, part):
            with torch.autograd._unsafe_preserve_version_counter(held):  # it is what autograd kept: the same values
                held.copy_(part)
    return None


def joined(part: Sent, output: torch.Tensor, shards: int) -> torch.Tensor:
    """A part of the whole, in memory of its own where rows lie across."""
    shape = part.memory.shape
    pieces = output.view(shards, *shape)
    if part.rows is None:
        return pieces[0].view(part.dtype).reshape(shape if shape != (1,) else ())
    made = output.view(-1, *shape[1:]) if part.rows == 0 else torch.cat(pieces.unbind(), part.rows)
    return made.view(part.dtype)


def shares(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether two tensors begin at one place."""
    found: bool = x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
    return found


# ---- DTensors, whose class PyTorch does not have everywhere


def is_divided(x: Any) -> bool:
    """Whether a tensor is a DTensor of which each process has a ScaledTensor."""
    return isinstance(getattr(x, "_local_tensor", None), ScaledTensor)


def without_values(x: torch.Tensor) -> ScaledTensor:
    """What the shards of such a DTensor are together, on "meta"; a ScaledTensor itself."""
    found: ScaledTensor = x._local_tensor.new_empty(x.shape, device="meta") if is_divided(x) else x
    return found


def divided(q: ScaledTensor, target: torch.Tensor) -> torch.Tensor:
    """A tensor that each process has whole, over the processes as `target` is where that is a DTensor. Of its parts it
    keeps those of the target, which may have been made without the encode scale of some files.
    """
    if not is_divided(target):
        return q
    device = q.device if target.is_meta else target.device
    parts = {name: part.to(device) for name, part in present(q).items() if name in present(target._local_tensor)}
    distribute = torch.distributed.tensor.distribute_tensor
    made: torch.Tensor = distribute(like(q, parts), target.device_mesh, target.placements, src_data_rank=None)
    return made


def gathered(x: torch.Tensor) -> torch.Tensor:
    """A tensor that each process has whole, of any DTensor."""
    return x.full_tensor() if hasattr(x, "full_tensor") else x
