"""JAX: bfloat16 and all FP8 both ways; exports FP4; imports below 8 bits by a copy; compact, 64-byte aligned arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dlfp4._core import _ON_CUDA
from dlfp4.frameworks import base

if TYPE_CHECKING:
    import jax

    from dlfp4 import Tensor

WIDE = ("int64", "uint64", "float64", "complex128")
WITHOUT_DLPACK = frozenset(base.dtype_of(name) for name in base.SUBBYTE if name != base.FP4)
FP6_SINCE = (0, 11)
ALIGNMENT = 64


def from_tensor(tensor: Tensor, copy: bool | None = None) -> jax.Array:
    """A ``jax.Array`` of a dlfp4 Tensor, over its memory where JAX can share it.

    JAX shares compact memory (also transposed) that is aligned to 64 bytes and writable; dlfp4 allocates such memory.
    JAX assumes that its arrays never change: do not write to memory that it shares.

    Parameters
    ----------
    tensor : dlfp4.Tensor
        Shape ``(...)``, on the host or a GPU that JAX sees.
    copy : bool, optional
        None shares, but copies where JAX cannot share; False never copies; True always does.

    Raises
    ------
    BufferError
        JAX has no such element type (FP6 before 0.11; 64-bit types, which it would narrow, unless ``jax_enable_x64`` is
        set); or ``copy=False`` and a copy is needed, as it always is below 8 bits.
    """
    import jax

    name = tensor.dtype.name
    if name in base.FP6 and jax.__version_info__ < FP6_SINCE:
        raise base.RefusedError("JAX", tensor, "it has FP6 from 0.11 on", base.bytes_remedy(tensor))
    if name in base.SUBBYTE:
        return _from_codes(tensor, copy)
    if name in WIDE and not jax.config.jax_enable_x64:
        remedy = 'call jax.config.update("jax_enable_x64", True), or cast the tensor'
        raise base.RefusedError("JAX", tensor, "it would round 64-bit types to 32 bits", remedy)
    source = base.shareable("JAX", tensor, copy, _obstacle(tensor))
    with base.translated("JAX", tensor, (RuntimeError, TypeError, ValueError)):
        array = jax.dlpack.from_dlpack(source)
    base.check_shared("JAX", tensor, copy, pointer(array))
    return array


def _obstacle(tensor: Tensor) -> str | None:
    """Why JAX cannot share the memory of a tensor, or None."""
    if tensor.readonly and not _takes_read_only():
        return "this version of JAX asks for capsules that cannot say read-only"
    if not base.starts_on_border(tensor, ALIGNMENT):
        return f"its arrays start on a {ALIGNMENT}-byte border"
    if not _is_compact(tensor):
        return f"its arrays are compact, the strides are {tensor.strides}"
    return None


def _takes_read_only() -> bool:
    """JAX 0.12 is the first to ask for DLPack 1.x."""
    import jax

    return jax.__version_info__ >= (0, 12)


def _is_compact(tensor: Tensor) -> bool:
    """Whether some order of the dimensions has no gaps."""
    if tensor.size == 0:
        return True
    dims = sorted((stride, extent) for stride, extent in zip(tensor.strides, tensor.shape, strict=True) if extent != 1)
    expected = 1
    for stride, extent in dims:
        if stride != expected:
            return False
        expected *= extent
    return True


def _from_codes(tensor: Tensor, copy: bool | None) -> jax.Array:
    """Import elements below 8 bits, into a program that is traced as its constants: on the host one a byte, as XLA has
    them there; on a GPU by a bitcast of bytes, but for FP6, padded elements and partial bytes.
    """
    import jax

    name = tensor.dtype.name
    if copy is False:
        reason = "it imports elements below 8 bits only by a copy, which copy=False forbids"
        remedy = 'allow it with copy=None, or share the bytes of the packed tensor with .view("uint8")'
        raise base.RefusedError("JAX", tensor, reason, remedy)
    if tensor.device.type not in _ON_CUDA:
        with base.translated("JAX", tensor, (RuntimeError,)), jax.ensure_compile_time_eval():
            host = jax.devices("cpu")[0]
            # Programs compiled ahead refuse elements below 8 bits that are bound to a device (JAX 0.10.2).
            place = None if jax.default_backend() == "cpu" else host
            return jax.device_put(tensor.to_numpy(copy=True), place)
    if not tensor.packed or name in base.FP6 or tensor.size * base.SUBBYTE[name] % 8:
        return jax.numpy.asarray(tensor.to_numpy())
    compact = tensor if base.is_row_major(tensor) else tensor.copy()
    octets = from_tensor(compact.reshape((tensor.size,)).view("uint8"))
    return elements_of(octets, getattr(jax.numpy, name), tensor.shape)


def elements_of(octets: jax.Array, dtype: Any, shape: tuple[int, ...]) -> jax.Array:
    """Bytes as the elements below 8 bits that they hold.

    XLA makes other elements of bytes that are constants of a program (jaxlib 0.10.2), which the barrier hides from it.
    """
    import jax

    return jax.lax.bitcast_convert_type(jax.lax.optimization_barrier(octets), dtype).reshape(shape)


def gpu_missing() -> str | None:
    """Why JAX cannot use a GPU, or None."""
    import jax

    try:
        jax.devices("cuda")
    except RuntimeError as error:
        return base.first_line(error)
    return None


def make(array: np.ndarray, packed: bool, device: str) -> jax.Array:
    """An array of the same values on a device."""
    import jax

    with jax.default_device(jax.devices(device)[0]):
        if array.dtype.name == base.FP4:
            codes = base.pack_array(array).reshape(*array.shape[:-1], -1)
            return elements_of(jax.numpy.array(codes), jax.numpy.float4_e2m1fn, array.shape)
        return jax.numpy.array(array)


def read(native: jax.Array) -> np.ndarray:
    """The values through ``__array__``."""
    return np.asarray(native)


def pointer(native: jax.Array) -> int:
    """The address of the first element."""
    return int(native.unsafe_buffer_pointer())


def cannot_export(native: jax.Array) -> str | None:
    """Why JAX cannot export an array, where its own exceptions give no reason or no remedy."""
    import jax

    if isinstance(native, jax.core.Tracer):
        return "it has no values while it is traced; call dlfp4 outside of jit, or by jax.pure_callback"
    if native.is_deleted():
        return "the array was deleted or donated"
    if len(native.devices()) > 1:
        return "it lies on several devices; hand over each x.addressable_shards[i].data"
    if native.dtype in WITHOUT_DLPACK:
        return f"its {native.dtype.name} has no DLPack equivalent; call dlfp4.asarray(numpy.asarray(x)), a copy"
    return None


FRAMEWORK = base.Framework(
    module="jax",
    dtypes=frozenset(
        (
            *(*base.COMMON, *base.COMPLEX, "bfloat16", *base.FP8, base.FP4, "int4", "uint4", "int2", "uint2"),
            *(t + base.PADDED for t in base.FP6),
        )
    ),
    since={t + base.PADDED: FP6_SINCE for t in base.FP6},
    make=make,
    from_tensor=from_tensor,
    read=read,
    pointer=pointer,
    devices=("cpu", "cuda"),
    gpu_missing=gpu_missing,
    cannot_export=cannot_export,
    immutable=True,
    environ={"JAX_ENABLE_X64": "1", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
)
