"""Quantized weights in files: safetensors, the naming conventions of their writers, and ggml's blocks.

Loading maps a file and shares its memory; saving writes straight from memory. docs/checkpoints.md has the table of
conventions.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from dlfp4 import ScaledTensor, Tensor
from dlfp4._core import UnscaledWarning, _parse_flag
from dlfp4.checkpoints import folders, joining, models, native, safetensors
from dlfp4.checkpoints.conventions import (
    Parts,
    check_mapping,
    split_parts,
    warn_unscaled,
)
from dlfp4.checkpoints.converting import convert_model
from dlfp4.checkpoints.ggml import from_ggml, to_ggml
from dlfp4.checkpoints.inspection import Findings, Flag, Group, inspect
from dlfp4.checkpoints.joining import join_parts
from dlfp4.checkpoints.models import ModelPath
from dlfp4.checkpoints.quantizing import quantize_model
from dlfp4.files import as_path
from dlfp4.spellings import CONVENTIONS

__all__ = [
    "CONVENTIONS",
    "Findings",
    "Flag",
    "Group",
    "UnscaledWarning",
    "convert_model",
    "from_ggml",
    "inspect",
    "join_parts",
    "load",
    "quantize_model",
    "read_metadata",
    "save",
    "split_parts",
    "to_ggml",
]


def load(path: ModelPath | bytes | bytearray | memoryview, *, join: bool = True) -> dict[str, Tensor | ScaledTensor]:
    """Map the safetensors files of a model and return its tensors; data is read only when it is used.

    Tensors share the mapping, which is private: they can be written to (so PyTorch can share them) without changing the
    files or what others see of them. Do not shorten a file while the tensors live; :func:`save` never does.

    Parameters
    ----------
    path : path-like, sequence of path-like, or bytes
        A safetensors file; the folder of a model, or its index (``model.safetensors.index.json``), whose files are then
        read as one; the list of the files; or the bytes of a file, whose memory the tensors share.
    join : bool
        Join the parts of quantized tensors, wherever in the model they lie. Those that :func:`save` wrote come back
        exactly as they were, others as :func:`join_parts` recognises them. False returns every tensor as it is stored.

    Returns
    -------
    dict of str to Tensor or ScaledTensor
        In the order of the files and their headers.

    Raises
    ------
    ValueError
        A file is not a safetensors file, or is damaged; a file is missing; a tensor is stored twice, or not where the
        index says. The message says what is wrong and where.
    OSError
        There is nothing at `path`, or a file cannot be opened or mapped.

    Warns
    -----
    UnscaledWarning
        As :func:`join_parts`.
    """
    joins = _parse_flag(join, "join")
    shards = models.read(path)
    if not joins:
        return joining.as_stored(shards)
    try:
        tensors = joining.joined(shards)
    except ValueError as error:
        raise ValueError(f"{error}; join=False gives the tensors as they are stored") from error
    warn_unscaled(tensors, stacklevel=2)
    return tensors


def read_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """The free-form strings of a safetensors file, such as ``{"format": "pt"}``, which some loaders insist on.

    Parameters
    ----------
    path : path-like
        The file; its tensors are not read.

    Returns
    -------
    dict of str to str
        Without what :func:`save` says of quantized tensors.

    Raises
    ------
    ValueError
        The file is not a safetensors file, or is damaged.
    OSError
        It cannot be read.
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

    The file appears whole or not at all. An existing file is replaced at the end; whoever has mapped it keeps the old
    contents. Tensors with gaps and tensors on devices are copied first.

    Parameters
    ----------
    path : path-like
        The file to write.
    tensors : mapping of str to Tensor, ScaledTensor or producer
        By name. What :func:`load` gave with ``join=False`` keeps what its header says of quantized tensors: they come
        back from the new file, too.
    metadata : mapping of str to str, optional
        Free-form strings for the header. ``{"format": "pt"}`` makes a file that Transformers loads.
    convention : str, optional
        One of ``CONVENTIONS``: name and store the parts of quantized tensors as it does, for loaders that expect it;
        see :func:`split_parts`. By default the parts keep their own types, and :func:`load` gives back every format,
        axis and scale layout exactly.

    Raises
    ------
    ValueError
        The file cannot hold a tensor, two tensors have the same name, or `path` ends as GGUF files or indices do; what
        a header says of `tensors` is damaged, or no longer fits them.
    TypeError
        A name or an entry of `metadata` is not a string, or a tensor is of a type that cannot be taken.
    BufferError
        A tensor's producer cannot share it.
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
    strings = {} if metadata is None else metadata
    check_mapping("metadata", strings, "strings")
    if native.KEY in strings:
        raise ValueError(f"metadata has {native.KEY!r}, under which dlfp4 describes the tensors; use another key")
    if isinstance(tensors, Parts):
        tensors, strings = joining.for_new_file(tensors, strings)
    folders.check_suffix(as_path("path", path), gguf=False)
    parts, description = joining.split(tensors, convention)
    safetensors.write(path, parts, {**strings, **description})
