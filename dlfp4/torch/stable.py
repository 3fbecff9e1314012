"""Kernels in C by PyTorch's stable C interface, whose functions are found at run time: nothing links to PyTorch."""

from __future__ import annotations

import ctypes
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _disable_current_modes

from dlfp4 import _core
from dlfp4.autotune import is_idle
from dlfp4.frameworks.torch import natives
from dlfp4.torch.products import KNOWN, KNOWN_IN_C

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dlfp4.frameworks.base import Natives
    from dlfp4.torch.registering import Call

# In the order of boxed.h.
FUNCTIONS = (
    "aoti_torch_get_dim",
    "aoti_torch_get_sizes",
    "aoti_torch_get_strides",
    "aoti_torch_get_dtype",
    "aoti_torch_get_device_type",
    "aoti_torch_get_device_index",
    "aoti_torch_grad_mode_is_enabled",
    "aoti_torch_empty_strided",
    "aoti_torch_new_tensor_handle",
    "aoti_torch_delete_tensor_object",
    "torch_string_length",
    "torch_string_c_str",
    "torch_delete_string",
    "torch_list_size",
    "torch_list_get_item",
    "torch_delete_list",
    "aoti_torch_library_init_impl",
    "torch_library_impl",
)
LATER = ("torch_delete_stable_ivalue",)  # than 2.11: boxed.cpp has what serves before

KINDS = MappingProxyType({"Tensor": "T", "Tensor?": "t", "str": "S", "str?": "s", "SymInt[]?": "i", "float?": "f"})


LIBRARY = ctypes.CDLL(torch._C.__file__)  # finds the symbols of all of PyTorch's libraries
KEYS = torch._C.DispatchKey
PASSED = (KEYS.ADInplaceOrView, KEYS.BackendSelect)  # by the dispatcher: no operation of ours has a kernel there


def addresses() -> list[int] | None:
    """Those of the functions; None where this PyTorch lacks one."""

    def address(name: str) -> int:
        return ctypes.cast(getattr(LIBRARY, name), ctypes.c_void_p).value or 0

    if not all(hasattr(LIBRARY, name) for name in FUNCTIONS):
        return None
    return [address(name) if hasattr(LIBRARY, name) else 0 for name in (*FUNCTIONS, *LATER)]


def register(call: Call, kernel: Callable[..., Any], devices: Sequence[str]) -> bool:
    """Give matmul kernels in C that multiply what they know, and leave other calls to the kernel in Python; False where
    this PyTorch does not have what that takes.
    """
    functions, of_tensors = addresses(), natives()
    # Its like for one tensor keeps it for good (2.13).
    wrap = getattr(torch._C._aoti, "alloc_tensors_by_stealing_from_void_ptrs", None)
    if functions is None or of_tensors is None or wrap is None or not brings_arguments(functions, of_tensors, wrap):
        return False
    kinds = "".join([KINDS[each.kind] for each in call.parameters])
    _core._prepare_boxed(functions, of_tensors, kinds, kernel, wrap, is_idle, KNOWN, KNOWN_IN_C)
    for device in devices:
        _core._register_boxed("dlfp4", call.row.name, device, False)
    return True


def brings_arguments(functions: list[int], of_tensors: Natives, wrap: Callable[..., Any]) -> bool:
    """Whether arguments of all kinds come through the interface as they were given: versions convert more and more."""
    library = torch.library.Library("dlfp4_probe", "DEF")
    library.define("f(Tensor a, Tensor? b, str c, str? d, SymInt[]? e, float? f) -> Tensor")
    seen = []

    def echo(*args: Any) -> Any:
        seen.append(args)
        return args[0]

    _core._prepare_boxed(functions, of_tensors, "TtSsif", echo, wrap, lambda: False, {}, {})
    _core._register_boxed("dlfp4_probe", "f", "CPU", False)
    # Not by torch.ops, which in 2.11 remembers operations that are gone, and stumbles over them whenever it compiles.
    operation, _ = torch._C._jit_get_operation("dlfp4_probe::f")
    with _disable_current_modes():
        x = torch.empty(1, device="cpu")
        calls = [(x, x, "c", "d", [1, -2], 0.5), (x, None, "", None, None, None)]
        try:
            for call in calls:
                operation(*call)
        except RuntimeError:
            return False
    return seen == calls


def register_gradient(
    name: str, differentiable: Callable[..., Any], is_at_once: Callable[..., bool], devices: Sequence[str]
) -> None:
    """The same for autograd, after :func:`register`: without what this takes the kernel in Python stays the only one.

    `differentiable` is that kernel, and `is_at_once` says whether it calls the device's kernel at once.
    """
    of_tensors, offset = natives(), offset_of_keys()
    if of_tensors is None or offset is None:
        return

    def follow(*args: Any) -> tuple[Any, bool]:
        keyset = keys_of(args)
        return differentiable(keyset, *args), is_at_once(keyset, *args)

    requires_grad = of_tensors.flags_of_impl["requires_grad"]
    if not _core._follow_boxed(follow, vars(forward_ad), LIBRARY._handle, offset, requires_grad):
        return
    op = getattr(torch.ops.dlfp4, name).default
    for device in devices:
        _core._register_boxed("dlfp4", name, f"Autograd{device}", True)
        # Traces with symbols as extents, of which kernels in C would make numbers, ask PyTorch's dispatcher in Python.
        op.py_impl(getattr(KEYS, f"Autograd{device}"))(lambda *args: differentiable(keys_of(args), *args))


def keys_of(args: tuple[Any, ...]) -> Any:
    """The set of dispatch keys by which a call with some arguments goes, as the dispatcher finds it."""
    found = torch._C._dispatch_tls_local_include_set()
    for value in args:
        if isinstance(value, torch.Tensor):
            found = found | torch._C._dispatch_keys(value)
    found = found - torch._C._dispatch_tls_local_exclude_set()
    for key in PASSED:
        found = found.remove(key)
    return found


def offset_of_keys() -> int | None:
    """Where, in what implements a tensor, its dispatch keys lie; None where that is not found."""
    with _disable_current_modes():
        tensors = [torch.empty(0, device="cpu"), torch.empty(0, device="meta")]
    offsets = [
        offset
        for offset in range(0, BYTES_OF_IMPL, ctypes.sizeof(ctypes.c_uint64))
        if all(
            ctypes.c_uint64.from_address(each._cdata + offset).value == torch._C._dispatch_keys(each).raw_repr()
            for each in tensors
        )
    ]
    return offsets[0] if len(offsets) == 1 else None


BYTES_OF_IMPL = 192  # of any tensor, from PyTorch 2.11 to 2.13
