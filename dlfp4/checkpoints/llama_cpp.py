"""What llama.cpp calls the tensors of Hugging Face's models, and whose rows it permutes.

The ``gguf`` package knows the names of many architectures, but not what else llama.cpp changes in them. So only models
are renamed of which that is known: dense ones of `ARCHITECTURES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

import dlfp4
from dlfp4 import ScaledTensor, Tensor

ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}  # by model_type
PERMUTED = {"llama": {"q_proj": "heads", "k_proj": "kv_heads"}}  # layers, and the attribute that counts their heads
MODULES = ("model.embed_tokens", "model.norm", "lm_head")
IN_LAYERS = (
    "input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm", "mlp.gate_proj",
    "mlp.up_proj", "mlp.down_proj", *(f"self_attn.{each}_proj" for each in "qkvo"),
)  # fmt: skip
SUFFIXES = ("weight", "bias")
LLAMA_CPP = "llama.cpp"
MOST = 2**31 - 1  # of what GGUF and llama.cpp count
# Methods of GGUFWriter that describe a model, and where its config.json has the counts that they write.
COUNTS = {
    "add_context_length": "max_position_embeddings",
    "add_embedding_length": "hidden_size",
    "add_feed_forward_length": "intermediate_size",
    "add_vocab_size": "vocab_size",
    "add_block_count": "num_hidden_layers",
    "add_head_count": "num_attention_heads",
}


@dataclass(frozen=True)
class Model:
    """What names and permutations depend on.

    Attributes
    ----------
    architecture : str
        llama.cpp's name of it.
    layers, heads, kv_heads : int
        How many there are.
    fields : dict
        What a GGUF file says of it: values by methods of GGUFWriter.
    """

    architecture: str
    layers: int
    heads: int
    kv_heads: int
    fields: dict[str, int | float] = field(default_factory=dict)


@dataclass(frozen=True)
class Naming:
    """The names that a model's tensors get.

    Attributes
    ----------
    names : dict
        The new name of a tensor by its old one.
    heads : dict
        By the old name of a tensor whose rows change places: the heads among which they do.
    model : Model, optional
        None where the names stay.
    side : str
        Whose names these are.
    reason : str
        Why other names stay.
    """

    names: dict[str, str]
    heads: dict[str, int]
    model: Model | None
    side: str
    reason: str

    def rename(self, name: str, x: Tensor | ScaledTensor) -> tuple[str, Tensor | ScaledTensor, str]:
        """A tensor's new name, the tensor in the order that goes with it, and what there is to say."""
        if name not in self.names:
            return name, x, f"its name stays: {self.reason}"
        said = f"named as {self.side} has it"
        if name not in self.heads:
            return self.names[name], x, said
        order = interleaved(x.shape[0], self.heads[name])
        order = order if self.side == LLAMA_CPP else np.argsort(order)
        return self.names[name], take_rows(x, order), f"{said}, rows permuted"


def naming(
    library: Any, facts: Mapping[str, Any] | None, shapes: Mapping[str, tuple[int, ...]], *, to_gguf: bool
) -> Naming:
    """How the tensors of these names and shapes are renamed, by a config.json or by the fields of a GGUF file."""
    side = LLAMA_CPP if to_gguf else "Hugging Face"
    try:
        model = model_of_config(facts) if to_gguf else model_of_fields(facts or {})
        names, heads = names_of(library, model, shapes, to_gguf=to_gguf)
    except ValueError as error:
        return Naming({}, {}, None, side, str(error))
    return Naming(names, heads, model, side, f"{side} has none for it")


# ---- What a model is


def model_of_config(config: Mapping[str, Any] | None) -> Model:
    """By Hugging Face's config.json; ValueError says why llama.cpp's names would not be enough."""
    if config is None:
        raise ValueError("there is no config.json")
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise ValueError(f"model_type is {kind!r}; known are {', '.join(ARCHITECTURES)}")
    if rope_of(config).get("rope_type", rope_of(config).get("type", "default")) != "default":
        raise ValueError("its rotary embeddings are scaled, for which llama.cpp wants a tensor of its own")
    fields: dict[str, int | float] = {method: count_of(config, key) for method, key in COUNTS.items()}
    heads = count_of(config, "num_attention_heads")
    kv_heads = heads if config.get("num_key_value_heads") is None else count_of(config, "num_key_value_heads")
    size = count_of(config, "hidden_size") // heads if config.get("head_dim") is None else count_of(config, "head_dim")
    fields |= dict.fromkeys(("add_rope_dimension_count", "add_key_length", "add_value_length"), size)
    fields |= {"add_head_count_kv": kv_heads, "add_layer_norm_rms_eps": number_of(config, "rms_norm_eps")}
    has_theta = config if "rope_theta" in config else rope_of(config)
    if "rope_theta" in has_theta:
        fields["add_rope_freq_base"] = number_of(has_theta, "rope_theta")
    return Model(ARCHITECTURES[kind], count_of(config, "num_hidden_layers"), heads, kv_heads, fields)


def model_of_fields(fields: Mapping[str, Any]) -> Model:
    """By what a GGUF file says of itself; ValueError says why Hugging Face's names would not be enough."""
    kind = fields.get("general.architecture")
    if not isinstance(kind, str) or kind not in ARCHITECTURES.values():
        raise ValueError(f"the architecture is {kind!r}; known are {', '.join(sorted(set(ARCHITECTURES.values())))}")
    heads = count_of(fields, f"{kind}.attention.head_count")
    of_keys = f"{kind}.attention.head_count_kv"
    return Model(
        kind, count_of(fields, f"{kind}.block_count"), heads, count_of(fields, of_keys) if of_keys in fields else heads
    )


def count_of(facts: Mapping[str, Any], key: str) -> int:
    """A positive number among facts."""
    found = facts.get(key)
    if not isinstance(found, int) or isinstance(found, bool) or not 0 < found <= MOST:
        raise ValueError(f"{key} is {found!r}; expected an integer from 1 to {MOST}")
    return found


def number_of(facts: Mapping[str, Any], key: str) -> float:
    """A positive number among facts, as a float32 can hold it."""
    found = facts.get(key)
    if not isinstance(found, int | float) or isinstance(found, bool) or not 0 < found < 3e38:
        raise ValueError(f"{key} is {found!r}; expected a positive number")
    return float(found)


def rope_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a configuration says of rotary embeddings."""
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return found if isinstance(found, Mapping) else {}


# ---- Names


def names_of(
    library: Any, model: Model, shapes: Mapping[str, tuple[int, ...]], *, to_gguf: bool
) -> tuple[dict[str, str], dict[str, int]]:
    """`names` and `heads` of a Naming; ValueError where the tensors are not a model's of that kind."""
    if model.layers > len(shapes):
        raise ValueError(f"there are {len(shapes)} tensors, fewer than the {model.layers} layers that it is to have")
    names: dict[str, str] = {}
    heads: dict[str, int] = {}
    for theirs, ours in modules_of(library, model):
        old, new = (theirs, ours) if to_gguf else (ours, theirs)
        counts = PERMUTED.get(model.architecture, {}).get(theirs.rpartition(".")[2])
        for suffix in SUFFIXES:
            name = f"{old}.{suffix}"
            if name not in shapes:
                continue
            names[name] = f"{new}.{suffix}"
            if counts:
                heads[name] = getattr(model, counts)
                check_heads(name, shapes[name], heads[name])
    if not names:
        raise ValueError("no tensor has a name of that architecture")
    taken = set(names.values()) & (shapes.keys() - names.keys())
    if taken:
        raise ValueError(f"two tensors would be called {min(taken)}")
    return names, heads


def modules_of(library: Any, model: Model) -> list[tuple[str, str]]:
    """Hugging Face's name of each module and llama.cpp's."""
    architecture = {name: key for key, name in library.MODEL_ARCH_NAMES.items()}[model.architecture]
    known = library.get_tensor_name_map(architecture, model.layers)
    layers = [f"model.layers.{i}.{each}" for i in range(model.layers) for each in IN_LAYERS]
    return [(name, found) for name in (*MODULES, *layers) if (found := known.get_name(name))]


# ---- Rows


def check_heads(name: str, shape: tuple[int, ...], heads: int) -> None:
    """ValueError where the rows of a tensor are not those of so many heads, in pairs."""
    if not shape or shape[0] % (2 * heads):
        raise ValueError(f"{name} has shape {shape}, whose rows are not those of {heads} heads")


def interleaved(rows: int, heads: int) -> npt.NDArray[np.int64]:
    """The rows of a projection in llama.cpp's order: each head's halves, which are rotated together, row by row."""
    return np.arange(rows).reshape(heads, 2, rows // heads // 2).swapaxes(1, 2).reshape(-1)


def take_rows(x: Tensor | ScaledTensor, order: npt.NDArray[np.int64]) -> Tensor | ScaledTensor:
    """The rows of a matrix, or the elements of a bias, in that order. Blocks run along rows, as ggml's do."""
    if not isinstance(x, ScaledTensor):
        return dlfp4.asarray(x.to_numpy()[order])
    data, scales = (part.view("uint8").to_numpy()[order] for part in (x.data, x.scales))
    return ScaledTensor.from_parts(data, scales, x.global_scale, format=x.format, shape=x.shape)
