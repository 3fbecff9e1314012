"""PyTorch: DLPack 1.x both ways; FP4 in pairs (``float4_e2m1fn_x2``); no read-only tensors, no negative strides."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from dlfp4._core import _ON_CUDA, _refusal, _single_shape
from dlfp4.extents import BEYOND, bounded_product
from dlfp4.frameworks import base

if TYPE_CHECKING:
    import torch

    from dlfp4 import Tensor

PAIRS = frozenset((base.FP4,))
FP8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")


def from_tensor(tensor: Tensor, copy: bool | None = None) -> torch.Tensor:
    """A ``torch.Tensor`` over the memory of a dlfp4 Tensor.

    Packed FP4 becomes ``torch.float4_e2m1fn_x2``, whose last dimension counts pairs. PyTorch has no read-only
    tensors, so read-only memory is copied, by ``torch.from_dlpack(tensor)`` as well. To share it all the same, on the
    promise not to write, call ``torch.from_dlpack(tensor.__dlpack__(max_version=(1, 0)))``.

    Parameters
    ----------
    tensor : dlfp4.Tensor
        Shape ``(...)``, on the host or a GPU that PyTorch sees.
    copy : bool, optional
        None copies read-only memory and shares all other; False never copies; True always does.

    Raises
    ------
    BufferError
        PyTorch has no such element type; a stride is negative (PyTorch would end the process); FP4 does not divide
        into pairs along the last dimension of stride 1; or ``copy=False`` and the memory is read-only.
    """
    import torch

    source = base.shareable("PyTorch", tensor, copy, base.read_only_obstacle(tensor))
    refused = _refusal("torch", source)
    if refused is not None:
        raise base.RefusedError("PyTorch", tensor, *refused)
    with base.translated("PyTorch", tensor, errors()):
        return torch.from_dlpack(source)


def cannot_import(tensor: Tensor) -> tuple[str, str] | None:
    """Why PyTorch cannot take a tensor, and what helps: it would end the process (2.13) or fault on the GPU."""
    if base.runs_backwards(tensor):
        return "it has no negative strides", "call .copy() first"
    if tensor.device.type == "opencl":
        return "it has no OpenCL memory", "copy it to the host with its own library first"
    if tensor.device.type in _ON_CUDA and not base.starts_on_border(tensor, tensor.dtype.itemsize):
        return (
            "it reads memory of a GPU in whole elements, which start on multiples of their size",
            "call .copy() first",
        )
    if tensor.size == 0 and bounded_product(extent for extent in tensor.shape if extent) == BEYOND:
        return "it multiplies extents, of empty tensors too, to more than 63 bits", "call .reshape((0,)) first"
    return None


def element_name(dtype: torch.dtype) -> str:
    """The name of a type; that of FP4 is named after its pairs."""
    return str(dtype).removeprefix("torch.").removesuffix("_x2")


def errors() -> tuple[type[Exception], ...]:
    """The exceptions with which PyTorch refuses an exchange, also for devices that its build lacks."""
    return AssertionError, ImportError, RuntimeError, TypeError, ValueError


def describe(x: torch.Tensor) -> tuple[tuple[int, ...], str]:
    """Shape in single elements and element type of a tensor that may have no memory (``device="meta"``)."""
    name = element_name(x.dtype)
    return _single_shape(tuple(x.shape), x.stride()) if name in PAIRS else tuple(x.shape), name


def guards() -> list[tuple[Any, tuple[str, ...], str]]:
    """The bits that PyTorch's exchange table does not check, each with the call that clears it.

    A lazy negation comes from ``x.conj().imag``: it occurs in the types of a complex number's parts, and in complex
    views of those. The private ``torch._neg_view`` could set it on any type.
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
    """A tensor's storage, which keeps the memory alive whatever happens to the tensor."""
    import torch

    return torch._C.TensorBase.untyped_storage


def table_shared_with() -> tuple[type, ...]:
    """Parameters behave as tensors do."""
    import torch

    return (torch.nn.Parameter,)


LIBRARY_FUNCTIONS = {
    "data": "aoti_torch_get_data_ptr",
    "storage_offset": "aoti_torch_get_storage_offset",
    "storage_bytes": "aoti_torch_get_storage_size",
    "dtype": "aoti_torch_get_dtype",
    "itemsize": "aoti_torch_dtype_element_size",
    "trace": "_ZN5torch3jit6tracer15getTracingStateEv",  # torch::jit::tracer::getTracingState()
    "has_modes": "_ZN3c104impl20TorchDispatchModeTLS13any_modes_setEb",  # TorchDispatchModeTLS::any_modes_set
}
FLAGS_OF_IMPL = {"requires_grad": "_ZNK3c1010TensorImpl13requires_gradEv"}
FLAGS_OF_HANDLE = {
    "is_neg": "_ZN2at6native6is_negERKNS_6TensorE",
    "is_conj": "_ZN2at6native7is_conjERKNS_6TensorE",
}


def natives() -> base.Natives | None:
    """PyTorch's C functions: its stable interface and, where that has none, C++ functions by their symbols."""
    import torch

    library = ctypes.CDLL(torch._C.__file__)  # finds the symbols of all of PyTorch's libraries

    def address(symbol: str) -> int:
        return ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value or 0

    try:
        return base.Natives(
            impl=_offset_of_impl(),
            **{name: address(symbol) for name, symbol in LIBRARY_FUNCTIONS.items()},
            bytes=(library.aoti_torch_dtype_uint8(), library.aoti_torch_dtype_int8()),
            flags_of_impl={name: address(symbol) for name, symbol in FLAGS_OF_IMPL.items()},
            flags_of_handle={name: address(symbol) for name, symbol in FLAGS_OF_HANDLE.items()},
        )
    except (AttributeError, LookupError):  # this version lacks a symbol, or its tensors have other fields
        return None


def _offset_of_impl() -> int:
    """The offset, in a tensor's Python object, of the pointer that ``_cdata`` returns."""
    import torch

    tensor = torch.empty(0)
    words = range(object.__basicsize__, torch._C.TensorBase.__basicsize__, ctypes.sizeof(ctypes.c_void_p))
    for offset in words:
        if ctypes.c_void_p.from_address(id(tensor) + offset).value == tensor._cdata:
            return offset
    raise LookupError("no word of a tensor's object is the address of its implementation")


def cannot_export(native: torch.Tensor) -> str | None:
    """Why DLPack cannot describe a tensor, or would expose other memory than its values."""
    import torch

    if torch._C._get_tracing_state() is not None:
        return f"torch.jit.trace {BAKES}"
    if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None:
        return f"make_fx, or what exports by it, {BAKES}"
    with torch._C.DisableTorchFunctionSubclass():
        return _kind_refusal(native) or _memory_refusal(native)


BAKES = "would make a constant of the result, without a word: call dlfp4 outside of what is traced"


def _kind_refusal(native: torch.Tensor) -> str | None:
    """Refuse tensors that are not one strided array of numbers."""
    import torch

    if torch._C._functorch.is_functorch_wrapped_tensor(native):
        return (
            "within vmap, grad, jvp or functionalize it stands for others and has no memory of its own; call dlfp4 "
            "outside of the transform, or in a torch.autograd.Function with the rule that the transform needs"
        )
    if native.is_nested:
        return "it is nested, rows of different length; hand over the parts of .unbind(), or of to_padded_tensor"
    if native.layout is not torch.strided:
        return f"its layout is {native.layout}, without one element after another; call .to_dense() first"
    if native.is_quantized:
        return "its numbers are codes of a scale that DLPack cannot say; hand over .int_repr(), or .dequantize() it"
    if native.dtype in _shells():
        return (
            f"DLPack would call its {native.dtype} an integer of 8 bits; hand over the bytes, .view(torch.uint8), and "
            f'say what they are, for example with dlfp4.asarray(...).view("int4") for two elements a byte'
        )
    return None


@cache
def _shells() -> frozenset[torch.dtype]:
    """Element types of PyTorch that only have a name and a size."""
    import torch

    names = (f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8))
    return frozenset(getattr(torch, name) for name in names if hasattr(torch, name))


def _memory_refusal(native: torch.Tensor) -> str | None:
    """Refuse tensors whose address points to no storage, or whose storage was shrunk below them."""
    import torch

    if type(native).__dlpack__ is not torch.Tensor.__dlpack__:
        return None  # the class exports memory by its own rule
    if native.device.type == "meta":
        return 'it has no values on device "meta"; make it on a device with memory, as .to_empty(device="cpu") does'
    if native.numel() == 0:
        return None
    storage = native.untyped_storage()
    first, end = _reach(native)
    if not 0 <= first < end <= storage.nbytes():
        return f"it ends at byte {end} of a storage that was resized to {storage.nbytes()} bytes under it"
    return None if _address(storage) else _no_memory(native)


def _address(storage: torch.UntypedStorage) -> int:
    """The address of a storage, or 0 if it has none; a fake tensor's raises."""
    try:
        return storage.data_ptr()
    except RuntimeError:
        return 0


def _no_memory(native: torch.Tensor) -> str:
    """Say what a tensor without memory is, and where its values are."""
    if hasattr(native, "to_local"):
        return "it is distributed; hand over this process's part of it, .to_local(), or .full_tensor()"
    if hasattr(native, "fake_mode"):
        return "it is a fake tensor, which has a shape and no values"
    return (
        "it has no memory of its own: functional and zero tensors have none, and subclasses whose values are in others"
    )


def _reach(native: torch.Tensor) -> tuple[int, int]:
    """The first and the end byte of a tensor's elements in its storage."""
    start = native.storage_offset()
    last = start + sum((extent - 1) * stride for extent, stride in zip(native.shape, native.stride(), strict=True))
    return start * native.itemsize, (last + 1) * native.itemsize


def current_stream(index: int) -> int:
    """The handle of PyTorch's current stream on a CUDA device; 0 until PyTorch uses CUDA, which asking would start."""
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
        return host.view(getattr(torch, f"uint{8 * host.itemsize}")).numpy().view(getattr(ml_dtypes, name))
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
    guards=guards,
    keeper=keeper,
    natives=natives,
    cannot_export=cannot_export,
    table_shared_with=table_shared_with,
    current_stream=current_stream,
    title="PyTorch",
    element_name=element_name,
    device_name=str,
    lost_by="resize_, set_, .data = ...",
    always_writable=True,
    pairs=PAIRS,
    cannot_import=cannot_import,
)
