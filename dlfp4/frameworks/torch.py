"""PyTorch: DLPack 1.x both ways; FP4 in pairs (``float4_e2m1fn_x2``); no read-only tensors, no negative strides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from dlfp4._core import _single_shape, _torch_problem
from dlfp4.frameworks import base

if TYPE_CHECKING:
    import torch

    from dlfp4 import Tensor

FP8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")


def from_tensor(tensor: Tensor, copy: bool | None = None) -> torch.Tensor:
    """A ``torch.Tensor`` over the memory of a dlfp4 Tensor.

    Packed FP4 becomes ``torch.float4_e2m1fn_x2``, whose last dimension counts pairs. PyTorch has no read-only
    tensors, so read-only memory is copied rather than handed out writable; to share it all the same, and promise not
    to write, call ``torch.from_dlpack(tensor)``.

    Parameters
    ----------
    tensor : dlfp4.Tensor
        Shape ``(...)``, on the host or a GPU that PyTorch sees.
    copy : bool, optional
        None shares, and copies only read-only memory; False never copies; True always does.

    Raises
    ------
    BufferError
        PyTorch has no such element type; a stride is negative (PyTorch would end the process); FP4 does not divide
        into pairs; or ``copy=False`` and the memory is read-only.
    """
    import torch

    source = base.shareable("PyTorch", tensor, copy, base.read_only_obstacle(tensor))
    problem = _torch_problem(source)
    if problem is not None:
        raise base.RefusedError("PyTorch", tensor, *problem)
    if source.packed and source.dtype == ml_dtypes.float4_e2m1fn:
        source = in_pairs(source)
    with base.translated("PyTorch", tensor, errors()):
        return torch.from_dlpack(source)


def errors() -> tuple[type[Exception], ...]:
    """The exceptions with which PyTorch refuses an exchange, devices that its build does not know among them."""
    return AssertionError, ImportError, RuntimeError, TypeError


def in_pairs(tensor: Tensor) -> Tensor:
    """Packed FP4 as PyTorch counts it."""
    try:
        return tensor.x2()
    except ValueError as error:
        is_odd = tensor.ndim == 0 or tensor.shape[-1] % 2
        remedy = "pad the last axis to an even extent" if is_odd else "call .copy() first"
        raise base.RefusedError("PyTorch", tensor, "it counts FP4 in pairs of neighbours", remedy) from error


def describe(x: torch.Tensor) -> tuple[tuple[int, ...], str]:
    """Shape in single elements and element type of a tensor that may have no memory (``device="meta"``)."""
    name = str(x.dtype).removeprefix("torch.")
    if name != base.FP4 + "_x2":
        return tuple(x.shape), name
    return _single_shape(tuple(x.shape), x.stride()), base.FP4


def guards() -> list[tuple[Any, tuple[str, ...], str]]:
    """What PyTorch's exchange table hands out without a check, and the call that clears it.

    A lazy negation comes from ``x.conj().imag``, hence only in the types of a complex number's parts, or in a complex
    view of those; ``torch._neg_view``, which is private, could set it on any type.
    """
    import torch

    tensor = torch._C.TensorBase
    differentiable = (*base.FLOATS, *base.COMPLEX, "bfloat16", *FP8, base.FP4)
    return [
        (tensor.requires_grad, differentiable, ".detach()"),
        (tensor.is_conj, base.COMPLEX, ".resolve_conj()"),
        (tensor.is_neg, (*base.FLOATS, *base.COMPLEX), ".resolve_neg()"),
    ]


def keeper() -> Any:
    """What keeps a tensor's memory alive, whatever becomes of the tensor: its storage."""
    import torch

    return torch._C.TensorBase.untyped_storage


def table_shared_with() -> tuple[type, ...]:
    """Parameters are tensors that do nothing else."""
    import torch

    return (torch.nn.Parameter,)


def current_stream(index: int) -> int:
    """The handle of PyTorch's current stream on a CUDA device; before it uses CUDA, which asking would start, 0."""
    import torch

    return int(torch.cuda.current_stream(index).cuda_stream) if torch.cuda.is_initialized() else 0


def gpu_missing() -> str | None:
    """Why PyTorch cannot use a GPU, or None."""
    import torch

    return None if torch.cuda.is_available() else "PyTorch sees no CUDA device"


def make(array: np.ndarray, packed: bool, device: str) -> torch.Tensor:
    """A tensor of the same values, from integers of the same width."""
    import torch

    name = array.dtype.name
    if name == base.FP4:
        codes = base.pack_array(array).reshape(*array.shape[:-1], -1)
        return torch.tensor(codes, device=device).view(torch.float4_e2m1fn_x2)
    if name in FP8 or name == "bfloat16":
        return torch.tensor(base.bits_view(array), device=device).view(getattr(torch, name))
    return torch.tensor(array, device=device)


def read(native: torch.Tensor) -> np.ndarray:
    """The values through a view of bytes and ``Tensor.numpy()``."""
    import torch

    name = str(native.dtype).removeprefix("torch.")
    host = native.cpu()
    if name == base.FP4 + "_x2":
        packed = host.view(torch.uint8).numpy()
        codes = base.unpack_codes(packed, 4, 2 * packed.size)
        return codes.view(ml_dtypes.float4_e2m1fn).reshape(*packed.shape[:-1], -1)
    if name in FP8 or name == "bfloat16":
        bits = host.view(torch.uint8 if host.itemsize == 1 else torch.uint16).numpy()
        return bits.view(getattr(ml_dtypes, name))
    return host.numpy()


def pointer(native: torch.Tensor) -> int:
    """The address of the first element."""
    return native.data_ptr()


FRAMEWORK = base.Framework(
    module="torch",
    dtypes=frozenset((*base.COMMON, *base.COMPLEX, "bfloat16", *FP8, base.FP4)),
    make=make,
    from_tensor=from_tensor,
    read=read,
    pointer=pointer,
    devices=("cpu", "cuda"),
    gpu_missing=gpu_missing,
    errors=errors,
    counts_pairs=True,
    guards=guards,
    keeper=keeper,
    table_shared_with=table_shared_with,
    current_stream=current_stream,
)
