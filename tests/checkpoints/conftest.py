"""Where tests keep a file or a model, and what tests of whole models begin with."""

import json

import numpy as np
import pytest

from dlfp4 import checkpoints

from ..support.models import INDEX, SHARDS, weights


@pytest.fixture
def model(tmp_path):
    """A folder of three files, an embedding in the first and an output head in the last."""
    folder = tmp_path / "model"
    (folder / "more").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / ".git" / "objects").write_text("")
    tensors = [weights(number) for number in range(3)]
    tensors[0]["model.embed_tokens.weight"] = np.ones((64, 128), np.float32)
    tensors[2]["lm_head.weight"] = np.ones((64, 128), np.float32)
    for name, each in zip(SHARDS, tensors, strict=True):
        checkpoints.save(folder / name, each, {"format": "pt"})
    places = {name: shard for shard, each in zip(SHARDS, tensors, strict=True) for name in each}
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 1, "kind": "x"}, "weight_map": places}))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "name": "Größe"}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "more" / "notes.txt").write_text("notes")
    (folder / "pytorch_model.bin").write_bytes(b"other weights")
    return folder


@pytest.fixture
def target(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"
