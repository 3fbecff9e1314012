"""ScaledTensors joined by PyTorch's own functions: ``torch.cat`` and ``torch.stack``, by those of dlfp4."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data._utils.collate import default_collate_fn_map

import dlfp4
from dlfp4.torch.scaled_tensor import (
    ScaledTensor,
    described,
    implements,
    owner_among,
    restore,
    turn,
    turned_dim,
)
from dlfp4.torch.views import Line

if TYPE_CHECKING:
    from dlfp4 import ScaledTensor as Scaled

aten = torch.ops.aten


@implements(aten.cat.default)
def cat(function: Any, tensors: Sequence[torch.Tensor], dim: int = 0) -> torch.Tensor:
    """Along one of their dimensions; vectors become a line, in which PyTorch sends them to other processes."""
    if all(x.dim() == 1 for x in tensors):
        return Line(*[member for x in tensors for member in (x.members if isinstance(x, Line) else (x,))])
    count = tensors[0].dim()
    place = dim % count
    return joined(
        function, tensors, lambda given, lies: dlfp4.concatenate(given, turned_dim(place, count) if lies else place)
    )


@implements(aten.stack.default)
def stack(function: Any, tensors: Sequence[torch.Tensor], dim: int = 0) -> torch.Tensor:
    """Along a new first dimension."""
    if dim % (tensors[0].dim() + 1):
        raise NotImplementedError(
            f"{function} of {owner_among(tensors)} along dimension {dim}: only along a new first one, 0; call "
            f".dequantize() for the values"
        )
    return joined(function, tensors, lambda given, _: dlfp4.stack(given))


def collated(batch: Sequence[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:  # noqa: ARG001
    """A batch of a DataLoader; its workers would have plain tensors stacked in shared memory made for values."""
    return torch.stack(list(batch))


default_collate_fn_map[ScaledTensor] = collated


def joined(
    function: Any, tensors: Sequence[torch.Tensor], join: Callable[[Sequence[Scaled], bool], Scaled]
) -> ScaledTensor:
    """The tensors as one that has their values. If all are transposes, it is that of what their parts make, as which
    they are joined then.
    """
    quantized = [x for x in tensors if isinstance(x, ScaledTensor)]
    if len(quantized) < len(tensors):
        raise NotImplementedError(
            f"{function} of {owner_among(tensors)} and plain tensors: quantize those, or call .dequantize()"
        )
    if any(type(x.elements) is not torch.Tensor for x in quantized):
        raise NotImplementedError(
            f"{function} of {owner_among(tensors)} within a trace, where scales, which decide, have no values: join "
            f"the tensors before, or the values of .dequantize()"
        )
    lies = all(x.turned for x in quantized)
    made = join([restore(x) if lies else x.to_dlfp4() for x in quantized], lies)
    if rounded := blocks_rounded(made):
        raise ValueError(
            f"{function} of {described(quantized[0])} and others: they have scales of their own, and under one "
            f"{rounded} would be rounded. Quantize them with one global_scale, or to a format with scales of blocks or "
            f"rows; dlfp4.concatenate and dlfp4.stack round"
        )
    q = ScaledTensor.from_dlfp4(made, reduce(torch.promote_types, [x.dtype for x in quantized]))
    return turn(q) if lies else q


def blocks_rounded(q: Scaled) -> str:
    """How many blocks of a joined tensor a scale that they had to share has changed, in words; "" for none."""
    receipt = q.receipt
    if receipt is None or receipt.is_exact:
        return ""
    return f"{receipt.blocks - receipt.exact} of {receipt.blocks} blocks"
