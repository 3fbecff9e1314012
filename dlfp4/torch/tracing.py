"""Traces of whole operations, before autograd and their decomposition, as torch.export makes them: whether there is
one, and what it sees of a ScaledTensor's operations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

PRE_DISPATCH = torch._C.DispatchKey.PreDispatch


class PlainTraced(TorchDispatchMode):  # type: ignore[misc]
    """Has the trace take operations on tensors that are not made of others, into which one on a ScaledTensor was
    decomposed.
    """

    def __torch_dispatch__(
        self, function: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented
        with traces_whole(True):
            return function(*args, **(kwargs or {}))


def is_traced_whole() -> bool:
    """Whether a trace on this thread takes operations before autograd and their decomposition."""
    found: bool = torch._C._dispatch_tls_is_dispatch_key_included(PRE_DISPATCH)
    return found


@contextmanager
def traces_whole(on: bool) -> Iterator[None]:
    """With or without such a trace, which PyTorch takes for off where it calls ``__torch_dispatch__``."""
    is_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded(PRE_DISPATCH)
    torch._C._dispatch_tls_set_dispatch_key_excluded(PRE_DISPATCH, not on)
    try:
        yield
    finally:
        torch._C._dispatch_tls_set_dispatch_key_excluded(PRE_DISPATCH, is_excluded)
