"""The repr of tensors: values, abbreviated as NumPy abbreviates them, and a description."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dlfp4.extents import count_elements
from dlfp4.formats import offset_parts
from dlfp4.frameworks.base import PADDED, is_row_major, row_of

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from dlfp4 import ScaledTensor, Tensor

MOST_READ = 4096  # elements


def is_scaled(x: Tensor | ScaledTensor) -> TypeIs[ScaledTensor]:
    """Whether it is block-scaled; the core, which imports this file, has the class."""
    return hasattr(x, "scale_layout")


def summary(x: Tensor | ScaledTensor) -> str:
    """A tensor's description in a line, without its values."""
    return f"{type(x).__name__}({', '.join(details(x))})"


def details(x: Tensor | ScaledTensor) -> list[str]:
    """Shape, type, device, and all that differs from the default."""
    shape, device = f"shape={x.shape}", f"device={str(x.device)!r}"
    if is_scaled(x):
        axis = [] if x.axis == -1 else [f"axis={x.axis}"]
        layout = [] if x.scale_layout == "linear" else [f"scale_layout={x.scale_layout!r}"]
        offsets = [f"{name}={part.dtype.name}" for name, part in offset_parts(x).items()]
        signs = [] if x.hadamard is None else [f"hadamard={x.hadamard}"]
        return [shape, f"format={x.format.name!r}", device, *axis, *layout, *offsets, *signs]
    storage = ["packed=True"] if x.packed else ["packed=False"] if row_of(x).endswith(PADDED) else []
    strides = [] if is_row_major(x) else [f"strides={x.strides}"]
    return [shape, f"dtype={x.dtype.name}", device, *storage, *strides, *(["readonly=True"] if x.readonly else [])]


def show(x: Tensor | ScaledTensor, is_on_host: bool) -> str:
    """The description with values, where the host can read them and a few suffice."""
    sample = sample_of(x) if is_on_host else None
    if sample is None:
        return summary(x)
    name, edge = type(x).__name__, np.get_printoptions()["edgeitems"]
    threshold = sample.size if sample.shape == x.shape and not is_abbreviated(x.shape) else 0
    text = np.array2string(sample, separator=", ", prefix=f"{name}(", threshold=threshold, edgeitems=edge)
    gap = f"\n{' ' * (len(name) + 1)}" if "\n" in text else " "
    return f"{name}({text},{gap}{', '.join(details(x))})"


def is_abbreviated(shape: tuple[int, ...]) -> bool:
    """Whether NumPy would abbreviate so many elements."""
    return count_elements(shape) > min(np.get_printoptions()["threshold"], MOST_READ)


def sample_of(x: Tensor | ScaledTensor) -> np.ndarray[Any, Any] | None:
    """All values, or those at the edges; None where the memory is gone, or where only the whole could be decoded."""
    is_large = count_elements(x.shape) > MOST_READ
    try:
        if is_scaled(x):
            return None if is_large else numbers(x.dequantize())
        return corners(x) if is_large else numbers(x)
    except BufferError:
        return None


def corners(x: Tensor) -> np.ndarray[Any, Any] | None:
    """The first and last elements along each dimension, somewhat more than are shown; None where they are too many."""
    kept = np.get_printoptions()["edgeitems"] + 1 & ~1  # so that packed elements start on bytes
    if count_elements(min(extent, 2 * kept) for extent in x.shape) > MOST_READ:
        return None
    return take_corners(x, 0, kept)


def take_corners(x: Tensor, dim: int, kept: int) -> np.ndarray[Any, Any]:
    """The corners along the dimensions from `dim` on."""
    if dim == x.ndim:
        return numbers(x)
    extent = x.shape[dim]
    if extent <= 2 * kept:
        return take_corners(x, dim + 1, kept)
    parts = (slice(kept), slice(extent - kept, None))
    return np.concatenate([take_corners(x[(slice(None),) * dim + (part,)], dim + 1, kept) for part in parts], dim)


def numbers(x: Tensor) -> np.ndarray[Any, Any]:
    """A few elements as an array that NumPy prints in columns: types of ml_dtypes become Python numbers."""
    if x.size == 0:
        return np.empty(0)  # NumPy has no shape for the extents of some
    return np.array(x.tolist(), x.dtype if x.dtype.isbuiltin == 1 else None)
