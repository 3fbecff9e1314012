"""A model in three files, and what a folder holds."""

import ml_dtypes
import numpy as np

SHARDS = [f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)]
INDEX = "model.safetensors.index.json"


def weights(number):
    rng = np.random.default_rng(number)
    layer = f"model.layers.{number}"
    return {
        f"{layer}.mlp.up_proj.weight": rng.normal(size=(128, 128)).astype(ml_dtypes.bfloat16),
        f"{layer}.mlp.down_proj.weight": rng.normal(size=(128, 256)).astype(np.float32),
        f"{layer}.input_layernorm.weight": np.ones(128, np.float32),
    }


def contents(folder):
    """What a folder holds, by path, without the book."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".dlfp4.json"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}
