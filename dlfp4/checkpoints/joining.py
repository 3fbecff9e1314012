"""The parts of quantized tensors in a model's files: joined, and split again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from dlfp4 import ScaledTensor, Tensor
from dlfp4.checkpoints import comfyui, models, native
from dlfp4.checkpoints.conventions import MARKER, join_in_place, split_parts
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


def places_of(shard: Shard) -> set[str]:
    """Names by which tensors of other files may belong to those of a file: of a tensor's parts, of their marks and of
    what speaks against joining them, any two have the same module, or one is the other's.
    """
    names = shard.tensors.keys() - {MARKER}
    return {*names, *map(module_of, names), *marks_of(shard)}


CONFIGS = ("config.json", "quantize_config.json")


def unreadable(shards: Iterable[Shard]) -> tuple[str, ...]:
    """The conventions whose names the files have and whose rules they do not follow, by the configuration beside them:
    GPTQ of version 2 stores zero points as they are.
    """
    for folder in {Path(shard.path).parent for shard in shards if shard.path}:
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
