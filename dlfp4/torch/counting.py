"""What ``torch.utils.flop_counter.FlopCounterMode`` counts of products: as many operations as of floats."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

from dlfp4.torch.registering import CALLS, Call
from dlfp4.torch.representing import describe


def count(
    call: Call, *args: Any, out: torch.Tensor | None = None, out_val: torch.Tensor | None = None, **named: Any
) -> int:
    """A multiplication and an addition for each element of the result and of K; `out_val` is what PyTorch got."""
    values = list(call.values(args))
    for name, value in named.items():
        values[call.places[name]] = value
    first = next(iter(call.operands(tuple(values)).values()))
    made = out_val if out is None else out
    assert first is not None
    assert made is not None
    return int(2 * made.numel() * describe(first).shape[-1])


for name in ("matmul", "grouped_matmul"):
    register_flop_formula(getattr(torch.ops.dlfp4, name), get_raw=True)(partial(count, CALLS[name]))
