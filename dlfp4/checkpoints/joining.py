"""The parts of quantized tensors in a model's files: joined, and split again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dlfp4 import ScaledTensor, Tensor
from dlfp4.checkpoints import comfyui, models, native
from dlfp4.checkpoints.conventions import (
    MARKER,
    Parts,
    check_mapping,
    join,
    join_in_place,
    own_tensors,
    split_parts,
    warn_unscaled,
)
from dlfp4.checkpoints.models import Shard
from dlfp4.checkpoints.names import errors_of, module_of


def joined(shards: Iterable[Shard]) -> dict[str, Tensor | ScaledTensor]:
    """The tensors of all files of a model, their parts joined: as the files describe them, else by their names."""
    return dict(located(shards).values())


def located(
    shards: Iterable[Shard], look: Callable[[Tensor | ScaledTensor], Any] = lambda x: x
) -> dict[str, tuple[str, Any]]:
    """The same by the name under which a tensor's data is stored: the tensor's own name, and what `look` says of it."""
    tensors: dict[str, Tensor | ScaledTensor] = {}
    marks: dict[str, str] = {}
    every = list(shards)
    for shard in every:
        tensors |= described(shard)
        marks |= marks_of(shard)
    return join_in_place(tensors, marks, unreadable(every), look)


def described(shard: Shard) -> Mapping[str, Tensor | ScaledTensor]:
    """The tensors of a file, joined where it describes them: dlfp4 wrote it."""
    description = shard.metadata.get(native.KEY)
    with errors_of(shard.path or "the bytes"):
        return shard.tensors if description is None else native.join(shard.tensors, description)


def marks_of(shard: Shard) -> dict[str, str]:
    """The format of each layer that ComfyUI marks in a file."""
    with errors_of(shard.path or "the bytes"):
        return comfyui.find_marks(shard.tensors, shard.metadata)


def join_parts(
    tensors: Mapping[str, Any], *, metadata: Mapping[str, str] | None = None
) -> dict[str, Tensor | ScaledTensor]:
    """Join the parts of quantized tensors where metadata describes them, or names, types and shapes follow a known
    convention.

    Memory is shared, with these exceptions: global scales stored as reciprocals are inverted (the tensor keeps the
    stored one as ``encode_scale``); the elements of ComfyUI's FP4 change places in their bytes; Llama-4's stacks of
    experts are transposed. Tensors that follow no convention stay as they are. ComfyUI's marks of joined layers are
    parts of them.

    Parameters
    ----------
    tensors : mapping of str to producer
        By the names in the checkpoint: a state dict, or what :func:`load` gives with ``join=False``.
    metadata : mapping of str to str, optional
        Of the file's header, in which dlfp4 describes what :func:`save` wrote, and ComfyUI may mark layers that have
        another memory order. Default: that of `tensors`, where :func:`load` gave them.

    Returns
    -------
    dict of str to Tensor or ScaledTensor
        In the order of `tensors`. A quantized tensor takes the place of its data and the name that it had before
        quantization.

    Raises
    ------
    ValueError
        dlfp4's or ComfyUI's metadata is damaged, or describes other tensors of these names.

    Warns
    -----
    UnscaledWarning
        FP8 comes back without its scales: they have an unknown form, or are doubled.

    Examples
    --------
    >>> import numpy as np
    >>> from dlfp4 import checkpoints
    >>> parts = {"up.weight": np.zeros((4, 16), np.uint8), "up.weight_scale": np.zeros((4, 1), np.uint8)}
    >>> {name: (str(q.format), q.shape) for name, q in checkpoints.join_parts(parts).items()}
    {'up.weight': ('mxfp4', (4, 32))}
    """
    check_mapping("tensors", tensors, "tensors")
    known = getattr(tensors, "metadata", {}) if metadata is None else metadata
    check_mapping("metadata", known, "strings")
    joined = join(as_described(tensors, known), comfyui.find_marks(tensors, known))
    warn_unscaled(joined, stacklevel=2)
    return joined


def as_stored(shards: Sequence[Shard]) -> Parts:
    """The tensors of all files of a model, with the metadata of the headers."""
    tensors: dict[str, Tensor] = {}
    metadata: dict[str, str] = {}
    for shard in shards:
        tensors |= shard.tensors
        metadata |= shard.metadata
    for writer in (native, comfyui):
        texts = [shard.metadata[writer.KEY] for shard in shards if writer.KEY in shard.metadata]
        if len(texts) > 1:
            metadata[writer.KEY] = united(texts, writer)
    return Parts(tensors, metadata)


def united(texts: Iterable[str], writer: Any) -> str:
    """What several files say of their tensors, as one; where one is damaged its text, which joining refuses."""
    found: dict[str, Any] = {}
    for text in texts:
        try:
            found |= writer.parse(text)
        except ValueError:
            return text
    return str(writer.as_text(found))


def as_described(tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> Mapping[str, Any]:
    """Tensors that came from files, joined where the metadata describes those that are still there."""
    if native.KEY not in metadata:
        return tensors
    there = {name: x for name, x in own_tensors(tensors).items() if not isinstance(x, ScaledTensor)}
    fields = native.parse(metadata[native.KEY])
    joined = native.rebuilt(there, {name: each for name, each in fields.items() if name in there})
    return {name: joined.get(name, x) for name, x in tensors.items() if name in joined or name not in there}


def for_new_file(parts: Parts, metadata: Mapping[str, str]) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    """Parts that came from files, joined where those describe them, and metadata that says of the others what those
    said: ComfyUI's marks, unless it has its own.
    """
    try:
        tensors = as_described(parts, parts.metadata)
        if comfyui.KEY in parts.metadata.keys() - metadata.keys():
            metadata = {**metadata, comfyui.KEY: comfyui.left(parts.metadata[comfyui.KEY], tensors)}
    except ValueError as error:
        raise ValueError(f"{error}; dict(tensors) forgets what the file said of them") from error
    return tensors, metadata


def places_of(shard: Shard) -> set[str]:
    """Names by which tensors of other files may belong to those of a file: of a tensor's parts, of their marks and of
    what speaks against joining them, any two have the same module, or one is the other's.
    """
    names = shard.tensors.keys() - {MARKER}
    return {*names, *map(module_of, names), *marks_of(shard)}


CONFIGS = ("config.json", "quantize_config.json")


def unreadable(shards: Iterable[Shard]) -> tuple[str, ...]:
    """The conventions whose names the files have and whose rules they do not follow, by the configuration beside them:
    GPTQ of version 2 stores zero points as they are. Beside other files it does not matter, and need not be JSON.
    """
    packed = [shard for shard in shards if any(name.endswith(".qweight") for name in shard.tensors)]
    for folder in {Path(shard.path).parent for shard in packed if shard.path}:
        for path in filter(Path.is_file, (folder / name for name in CONFIGS)):
            content = models.read_json(path)
            section = content.get("quantization_config", content)
            if isinstance(section, dict) and section.get("checkpoint_format") == "gptq_v2":
                return ("gptq",)
    return ()


def split(tensors: Mapping[str, Any], convention: str | None) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The parts of tensors as a file holds them, and what its metadata says of them; None: as dlfp4 stores them."""
    if convention is not None:
        return split_parts(tensors, convention), {}
    parts, description = native.split(tensors)
    return parts, {native.KEY: description} if description else {}
