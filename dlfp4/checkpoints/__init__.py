"""Quantized weights in files: safetensors, the conventions of those who write them, ggml's blocks.

Loading maps a file and shares its memory; saving writes straight from memory. docs/checkpoints.md has the table of
conventions.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from dlfp4 import ScaledTensor, Tensor
from dlfp4.checkpoints import native, safetensors
from dlfp4.checkpoints.conventions import CONVENTIONS, join_parts, split_parts
from dlfp4.checkpoints.ggml import from_ggml, to_ggml

__all__ = ["CONVENTIONS", "from_ggml", "join_parts", "load", "read_metadata", "save", "split_parts", "to_ggml"]

COMFYUI = "_quantization_metadata"  # of files whose scales are shuffled, see join_parts


def load(path: str | os.PathLike[str], *, join: bool = True) -> dict[str, Tensor | ScaledTensor]:
    """The tensors of a safetensors file, which is mapped: nothing is read before it is used.

    Tensors share the mapping. It is private: they can be written to (and so PyTorch can share them), which changes
    neither the file nor what others see of it. The file must not be shortened while they live; :func:`save` never does.

    Parameters
    ----------
    path : path-like
        A file of :func:`save`, or any other.
    join : bool
        Bring the parts of quantized tensors together: those that :func:`save` wrote exactly as they were, others as
        :func:`join_parts` recognises them. False: every tensor as the file has it.

    Returns
    -------
    dict of str to Tensor or ScaledTensor
        In the order of the file's header.

    Raises
    ------
    ValueError
        The file is not a safetensors file, or damaged; the message says what is wrong.
    OSError
        It cannot be opened or mapped.
    """
    tensors, metadata = safetensors.read(path)
    if native.KEY in metadata and join:
        try:
            return native.join(tensors, metadata[native.KEY])
        except ValueError as error:
            raise ValueError(f"{path}: {error}; join=False gives the tensors as they are stored") from error
    return join_parts(tensors) if join and COMFYUI not in metadata else dict(tensors)


def read_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """The free-form strings of a safetensors file, such as ``{"format": "pt"}``, which some loaders insist on.

    Raises
    ------
    ValueError
        The file is not a safetensors file, or damaged.
    """
    metadata = safetensors.read(path)[1]
    metadata.pop(native.KEY, None)
    return metadata


def save(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Any],
    metadata: Mapping[str, str] | None = None,
    *,
    convention: str | None = None,
) -> None:
    """Write tensors to a safetensors file, straight from their memory.

    The file appears whole or not at all: one that exists is replaced in the end, and those who have mapped it keep what
    they mapped. Tensors with gaps, and those on devices, are copied to be written.

    Parameters
    ----------
    path : path-like
        Where to.
    tensors : mapping of str to Tensor, ScaledTensor or producer
        By name.
    metadata : mapping of str to str, optional
        Free-form strings for the header. ``{"format": "pt"}`` makes a file that Transformers loads.
    convention : {"modelopt", "compressed-tensors", "gpt-oss", "deepseek"}, optional
        Name and store the parts of quantized tensors so, for loaders that expect it: see :func:`split_parts`. By
        default they keep their types, and :func:`load` gives back every format, axis and scale layout exactly.

    Raises
    ------
    ValueError
        A tensor that the file cannot hold; two of one name.
    OSError
        The file cannot be written.

    Examples
    --------
    >>> import dlfp4.checkpoints, numpy as np, os, tempfile
    >>> q = dlfp4.quantize(np.ones((4, 64), np.float32), "nvfp4")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "model.safetensors")
    ...     dlfp4.checkpoints.save(path, {"w": q})
    ...     w = dlfp4.checkpoints.load(path)["w"]
    >>> w.shape, w.format.name
    ((4, 64), 'nvfp4')
    """
    strings = dict(metadata or {})
    if native.KEY in strings:
        raise ValueError(f"metadata has {native.KEY!r}, under which dlfp4 describes the tensors; use another key")
    if convention is not None:
        safetensors.write(path, split_parts(tensors, convention), strings)
        return
    parts, description = native.split(tensors)
    safetensors.write(path, parts, strings | ({native.KEY: description} if description else {}))
