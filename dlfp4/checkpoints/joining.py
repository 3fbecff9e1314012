"""The tensors of a model's files, with the parts of quantized ones joined."""

from __future__ import annotations

from collections.abc import Iterable

from dlfp4 import ScaledTensor, Tensor
from dlfp4.checkpoints import comfyui, native
from dlfp4.checkpoints.conventions import join
from dlfp4.checkpoints.models import Shard


def joined(shards: Iterable[Shard]) -> dict[str, Tensor | ScaledTensor]:
    """The tensors of all files of a model, their parts joined: as the files describe them, else by their names."""
    tensors: dict[str, Tensor | ScaledTensor] = {}
    marks: dict[str, str] = {}
    for shard in shards:
        try:
            description = shard.metadata.get(native.KEY)
            tensors |= shard.tensors if description is None else native.join(shard.tensors, description)
            marks |= comfyui.find_marks(shard.tensors, shard.metadata)
        except ValueError as error:
            reason = f"{shard.path or 'the bytes'}: {error}; join=False gives the tensors as they are stored"
            raise ValueError(reason) from error
    return join(tensors, marks)
