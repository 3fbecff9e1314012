"""Collectives of ScaledTensors, part by part: what DTensors call to distribute a weight and to put it together, and
their values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from dlfp4.torch.distributing import joined, parts_to_send, sent
from dlfp4.torch.scaled_tensor import ScaledTensor, as_bytes, described, implements, like, turn
from dlfp4.torch.views import Line

FUNCTIONAL = torch.ops._c10d_functional
WAITS = ("wait_tensor", "_wrap_tensor_autograd")  # of which older PyTorch lacks the latter


@implements(FUNCTIONAL.all_gather_into_tensor.default)
def all_gather(function: Any, q: ScaledTensor, count: int, group: str) -> ScaledTensor:
    """The tensor of all shards' rows."""
    if q.turned:
        raise NotImplementedError(f"a gathered transpose of {described(turn(q))}: gather it as it lies, then transpose")
    shape = (q.shape[0] * count, *q.shape[1:])
    parts = {}
    for part in sent(q, shape, count):
        gathered = FUNCTIONAL.wait_tensor(function(part.memory, count, group))
        parts[part.name] = joined(part, gathered, count)
    return like(q, parts, shape=shape)


@implements(*(getattr(FUNCTIONAL, name).default for name in WAITS if hasattr(FUNCTIONAL, name)))
def waited_for(function: Any, q: ScaledTensor) -> ScaledTensor:  # noqa: ARG001
    """The tensor itself: its parts have been waited for."""
    return q


@implements(torch.ops.c10d.broadcast_.default)
def broadcast(function: Any, tensors: Sequence[torch.Tensor], *how: Any) -> tuple[Any, Any]:
    """One process's parts in the memory of all, which collectives read without its strides."""
    works: list[Any] = []
    for part in [part for x in tensors for part in parts_within(x)]:
        memory = as_bytes(part).contiguous()
        works.append(function([memory], *how)[1])
        if not part.is_contiguous():
            works[-1].wait()
            as_bytes(part).copy_(memory)
    return list(tensors), last_of(works)


def parts_within(x: torch.Tensor) -> list[torch.Tensor]:
    """The plain tensors of which one is made."""
    if isinstance(x, Line):
        return [part for member in x.members for part in parts_within(member)]
    if not isinstance(x, ScaledTensor):
        return [x]
    return list(parts_to_send(x).values())


@implements(torch.ops.c10d.scatter_.default)
def scatter(
    function: Any, outputs: Sequence[ScaledTensor], inputs: Sequence[Sequence[ScaledTensor]], *how: Any
) -> tuple[Any, Any]:
    """Each process gets a tensor of those that one has, which are views, of columns with strides."""
    (output,), works = outputs, []
    for name, part in parts_to_send(output).items():
        given = [[as_bytes(parts_to_send(q)[name]).contiguous() for q in each] for each in inputs]
        works.append(function([as_bytes(part)], given, *how)[1])
    return list(outputs), last_of(works)


def last_of(works: Sequence[Any]) -> Any:
    """What to wait for when all others have been."""
    for work in works[:-1]:
        work.wait()
    return works[-1]


# ---- DTensors


def dequantize(function: Any, args: tuple[DTensor], kwargs: Any) -> DTensor:  # noqa: ARG001
    """The values, which lie as the codes do. PyTorch's own rules for operations would take them for float32."""
    (x,) = args
    values = function(x._local_tensor)
    made: DTensor = DTensor.from_local(values, x.device_mesh, x.placements, shape=x.shape, stride=x.stride())
    return made


# Where a PyTorch has no such table, it refuses DTensors itself.
getattr(DTensor._op_dispatcher, "_custom_op_handlers", {})[torch.ops.aten.dequantize.self] = dequantize
