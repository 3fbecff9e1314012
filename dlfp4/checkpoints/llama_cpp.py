"""What llama.cpp calls the tensors of Hugging Face's models, whose rows it permutes, and which it stacks.

The ``gguf`` package knows the names of many architectures, but not what else llama.cpp changes in them. So only models
are renamed of which that is known: those of `ARCHITECTURES`.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

import dlfp4
from dlfp4 import ScaledTensor, Tensor
from dlfp4.formats import FLOATS
from dlfp4.parsing import shown

# By model_type.
ARCHITECTURES = {
    "llama": "llama", "mistral": "llama", "mixtral": "llama", "qwen2": "qwen2", "qwen3": "qwen3",
    "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe",
}  # fmt: skip
PERMUTED = {"llama": {"q_proj": "heads", "k_proj": "kv_heads"}}  # layers, and the attribute that counts their heads
MODULES = ("model.embed_tokens", "model.norm", "lm_head")
IN_LAYERS = (
    "input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm", "mlp.gate_proj",
    "mlp.up_proj", "mlp.down_proj", *(f"self_attn.{each}_proj" for each in "qkvo"),
)  # fmt: skip
# Of models with experts, by llama.cpp's architecture: the module that has them, and their projections.
EXPERTS = {
    "llama": ("block_sparse_moe", ("w1", "w2", "w3")),
    "qwen2moe": ("mlp", ("gate_proj", "up_proj", "down_proj")),
    "qwen3moe": ("mlp", ("gate_proj", "up_proj", "down_proj")),
}
SPARSE = ("mixtral", "qwen2_moe", "qwen3_moe")  # model types that have them
BESIDE_EXPERTS = ("gate", "shared_expert_gate", *(f"shared_expert.{each}_proj" for each in ("gate", "up", "down")))
NORMALIZES = {"qwen2moe": False, "qwen3moe": True}  # whether llama.cpp divides the chosen experts' weights by their sum
SUFFIXES = ("weight", "bias")
LLAMA_CPP = "llama.cpp"
MOST = 2**31 - 1  # of what GGUF and llama.cpp count
MOST_EXPERTS = 2**16  # of a layer
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
    layers, heads, kv_heads, experts : int
        How many there are.
    fields : dict
        What a GGUF file says of it: values by methods of GGUFWriter.
    """

    architecture: str
    layers: int
    heads: int
    kv_heads: int
    experts: int = 0
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
    stacks : dict
        By llama.cpp's name of a stack of experts: Hugging Face's names of its matrices.
    model : Model, optional
        None where the names stay.
    side : str
        Whose names these are.
    reason : str
        Why other names stay.
    """

    names: dict[str, str]
    heads: dict[str, int]
    stacks: dict[str, list[str]]
    model: Model | None
    side: str
    reason: str

    def rename(self, name: str, x: Tensor | ScaledTensor) -> tuple[str, Tensor | ScaledTensor, str]:
        """A tensor's new name, the tensor in the order and type that go with it, and what there is to say."""
        if name not in self.names:
            return name, x, f"its name stays: {self.reason}"
        new, said = self.names[name], f"named as {self.side} has it"
        if new == name:
            return name, x, f"{said}, {'stacked' if self.side == LLAMA_CPP else 'from a stack'}"
        if name in self.heads and 0 not in x.shape:  # which might have more rows than memory
            order = interleaved(x.shape[0], self.heads[name])
            x, said = take_rows(x, order if self.side == LLAMA_CPP else np.argsort(order)), f"{said}, rows permuted"
        if isinstance(x, ScaledTensor):
            return new, x, said
        if "shared_expert_gate." in name + new:  # a row, in llama.cpp without a dimension of its own
            x = x.reshape(-1) if self.side == LLAMA_CPP else x.reshape(1, -1)
        if self.side == LLAMA_CPP and is_wide(new, x) and x.dtype != np.float32:
            x, said = dlfp4.cast(x, "float32"), f"{said}, widened to float32"
        return new, x, said

    def apart(self, tensors: Mapping[str, Tensor | ScaledTensor]) -> dict[str, Tensor | ScaledTensor]:
        """Tensors with the matrices of llama.cpp's stacks in their places."""
        found: dict[str, Tensor | ScaledTensor] = {}
        for name, x in tensors.items():
            found |= {each: x[i] for i, each in enumerate(self.stacks[name])} if name in self.stacks else {name: x}
        return found

    def together(self, tensors: dict[str, Tensor | ScaledTensor]) -> dict[str, Tensor | ScaledTensor]:
        """Tensors with llama.cpp's stacks in the places of their matrices."""
        firsts = {names[0]: name for name, names in self.stacks.items()}
        members = {each for names in self.stacks.values() for each in names}
        found: dict[str, Tensor | ScaledTensor] = {}
        for name, x in tensors.items():
            if name in firsts:
                found[firsts[name]] = stacked([tensors[each] for each in self.stacks[firsts[name]]])
            elif name not in members:
                found[name] = x
        return found


def naming(
    library: Any, facts: Mapping[str, Any] | None, tensors: Mapping[str, Tensor | ScaledTensor], *, to_gguf: bool
) -> Naming:
    """How these tensors are renamed, by a config.json or by the fields of a GGUF file."""
    side = LLAMA_CPP if to_gguf else "Hugging Face"
    try:
        model = model_of_config(facts) if to_gguf else model_of_fields(facts or {})
        names, heads = names_of(library, model, tensors, to_gguf=to_gguf)
        stacks = stacks_of(library, model, tensors, to_gguf=to_gguf)
        members = {each: each for names_ in stacks.values() for each in names_}
        check_free(tensors, names, stacks if to_gguf else members, members if to_gguf else stacks)
    except ValueError as error:
        return Naming({}, {}, {}, None, side, str(error))
    return Naming(names | members, heads, stacks, model, side, f"{side} has none for it")


# ---- What a model is


def model_of_config(config: Mapping[str, Any] | None) -> Model:
    """By Hugging Face's config.json; ValueError says why llama.cpp's names would not be enough."""
    if config is None:
        raise ValueError("there is no config.json")
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise ValueError(f"model_type is {shown(kind)}; known are {', '.join(ARCHITECTURES)}")
    if rope_of(config).get("rope_type", rope_of(config).get("type", "default")) != "default":
        raise ValueError("its rotary embeddings are scaled, for which llama.cpp needs an extra tensor")
    fields: dict[str, int | float] = {method: count_of(config, key) for method, key in COUNTS.items()}
    heads = count_of(config, "num_attention_heads")
    kv_heads = heads if config.get("num_key_value_heads") is None else count_of(config, "num_key_value_heads")
    size = count_of(config, "hidden_size") // heads if config.get("head_dim") is None else count_of(config, "head_dim")
    fields |= dict.fromkeys(("add_rope_dimension_count", "add_key_length", "add_value_length"), size)
    fields |= {"add_head_count_kv": kv_heads, "add_layer_norm_rms_eps": number_of(config, "rms_norm_eps")}
    has_theta = config if "rope_theta" in config else rope_of(config)
    if "rope_theta" in has_theta:
        fields["add_rope_freq_base"] = number_of(has_theta, "rope_theta")
    experts, of_experts = experts_of_config(config, ARCHITECTURES[kind]) if kind in SPARSE else (0, {})
    layers = count_of(config, "num_hidden_layers")
    return Model(ARCHITECTURES[kind], layers, heads, kv_heads, experts, fields | of_experts)


def experts_of_config(config: Mapping[str, Any], architecture: str) -> tuple[int, dict[str, int | float]]:
    """How many experts a layer has, and what a GGUF file says of them; ValueError where llama.cpp has others."""
    if config.get("decoder_sparse_step", 1) != 1 or config.get("mlp_only_layers"):
        raise ValueError("some of its layers have no experts, which llama.cpp does not support in such models")
    normalizes = config.get("norm_topk_prob", False)
    if architecture in NORMALIZES and normalizes is not NORMALIZES[architecture]:
        raise ValueError(f"norm_topk_prob is {shown(normalizes)}; llama.cpp computes as if it were {not normalizes}")
    experts = count_of(config, "num_experts" if "num_experts" in config else "num_local_experts", MOST_EXPERTS)
    fields: dict[str, int | float] = {
        "add_expert_count": experts, "add_expert_used_count": count_of(config, "num_experts_per_tok"),
    }  # fmt: skip
    if architecture != "llama":
        fields["add_expert_feed_forward_length"] = count_of(config, "moe_intermediate_size")
    if architecture == "qwen2moe":
        fields["add_expert_shared_feed_forward_length"] = count_of(config, "shared_expert_intermediate_size")
    return experts, fields


def model_of_fields(fields: Mapping[str, Any]) -> Model:
    """By what a GGUF file says of itself; ValueError says why Hugging Face's names would not be enough."""
    kind = fields.get("general.architecture")
    if not isinstance(kind, str) or kind not in ARCHITECTURES.values():
        raise ValueError(
            f"the architecture is {shown(kind)}; known are {', '.join(sorted(set(ARCHITECTURES.values())))}"
        )
    heads = count_of(fields, f"{kind}.attention.head_count")
    of_keys, of_experts = f"{kind}.attention.head_count_kv", f"{kind}.expert_count"
    kv_heads = count_of(fields, of_keys) if of_keys in fields else heads
    experts = count_of(fields, of_experts, MOST_EXPERTS) if fields.get(of_experts) else 0
    return Model(kind, count_of(fields, f"{kind}.block_count"), heads, kv_heads, experts)


def count_of(facts: Mapping[str, Any], key: str, most: int = MOST) -> int:
    """A positive number among facts."""
    found = facts.get(key)
    if not isinstance(found, int) or isinstance(found, bool) or not 0 < found <= most:
        raise ValueError(f"{key} is {shown(found)}; expected an integer from 1 to {most}")
    return found


def number_of(facts: Mapping[str, Any], key: str) -> float:
    """A positive number among facts, as a float32 can hold it."""
    found = facts.get(key)
    if not isinstance(found, int | float) or isinstance(found, bool) or not 0 < found < 3e38:
        raise ValueError(f"{key} is {shown(found)}; expected a positive number")
    return float(found)


def rope_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a configuration says of rotary embeddings."""
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return found if isinstance(found, Mapping) else {}


# ---- Names


def names_of(
    library: Any, model: Model, tensors: Mapping[str, Tensor | ScaledTensor], *, to_gguf: bool
) -> tuple[dict[str, str], dict[str, int]]:
    """`names` and `heads` of a Naming; ValueError where the tensors are not a model's of that kind."""
    if model.layers > len(tensors):
        raise ValueError(f"there are {len(tensors)} tensors, fewer than the {model.layers} layers that it should have")
    names: dict[str, str] = {}
    heads: dict[str, int] = {}
    for theirs, ours in modules_of(library, model):
        old, new = (theirs, ours) if to_gguf else (ours, theirs)
        counts = PERMUTED.get(model.architecture, {}).get(theirs.rpartition(".")[2])
        for suffix in SUFFIXES:
            name = f"{old}.{suffix}"
            if name not in tensors:
                continue
            names[name] = f"{new}.{suffix}"
            if counts:
                heads[name] = getattr(model, counts)
                check_heads(name, tensors[name].shape, heads[name])
    if not names:
        raise ValueError("no tensor has a name of that architecture")
    return names, heads


def stacks_of(
    library: Any, model: Model, tensors: Mapping[str, Tensor | ScaledTensor], *, to_gguf: bool
) -> dict[str, list[str]]:
    """`stacks` of a Naming; ValueError where the tensors are not whole stacks of experts."""
    if model.experts == 0:
        return {}
    wanted = model.layers * model.experts
    if to_gguf and wanted > len(tensors):
        raise ValueError(f"there are {len(tensors)} tensors, fewer than the {wanted} experts that it should have")
    block, projections = EXPERTS[model.architecture]
    known = name_map(library, model)
    stacks: dict[str, list[str]] = {}
    for layer, projection in itertools.product(range(model.layers), projections):
        place = f"model.layers.{layer}.{block}.experts"
        stack = f"{known.get_name(f'{place}.{projection}')}.weight"
        members = [f"{place}.{i}.{projection}.weight" for i in range(model.experts)]
        if to_gguf and any(name in tensors for name in members):
            check_members(tensors, members)
            stacks[stack] = members
        elif not to_gguf and stack in tensors:
            check_stack(stack, tensors[stack].shape, model.experts)
            stacks[stack] = members
    return stacks


def modules_of(library: Any, model: Model) -> list[tuple[str, str]]:
    """Hugging Face's name of each module and llama.cpp's."""
    known, in_layers = name_map(library, model), list(IN_LAYERS)
    if model.experts:
        in_layers += [f"{EXPERTS[model.architecture][0]}.{each}" for each in BESIDE_EXPERTS]
    layers = [f"model.layers.{i}.{each}" for i in range(model.layers) for each in in_layers]
    return [(name, found) for name in (*MODULES, *layers) if (found := known.get_name(name))]


def name_map(library: Any, model: Model) -> Any:
    """llama.cpp's names of the modules of a model."""
    architecture = {name: key for key, name in library.MODEL_ARCH_NAMES.items()}[model.architecture]
    return library.get_tensor_name_map(architecture, model.layers)


def check_free(
    tensors: Mapping[str, Any], names: Mapping[str, str], made: Collection[str], replaced: Collection[str]
) -> None:
    """ValueError where a new name is that of a tensor that keeps its own."""
    taken = (set(names.values()) | set(made)) & (tensors.keys() - names.keys() - set(replaced))
    if taken:
        raise ValueError(f"two tensors would be called {min(taken)}")


# ---- Experts


def check_members(tensors: Mapping[str, Tensor | ScaledTensor], names: list[str]) -> None:
    """ValueError where experts are missing, or differ in shape or type."""
    kinds: dict[tuple[tuple[int, ...], str], str] = {}
    for name in names:
        if name not in tensors:
            raise ValueError(f"{name} is missing")
        x = tensors[name]
        kinds.setdefault((x.shape, str(x.format if isinstance(x, ScaledTensor) else x.dtype)), name)
    if len(kinds) > 1:
        raise ValueError(f"experts cannot be stacked: {' and '.join(list(kinds.values())[:2])} differ in shape or type")


def check_stack(name: str, shape: tuple[int, ...], experts: int) -> None:
    """ValueError where a tensor is no stack of so many matrices."""
    if len(shape) != 3 or shape[0] != experts:
        raise ValueError(f"{name} has shape {shape}, which is not a stack of {experts} experts")


def stacked(experts: list[Any]) -> Tensor | ScaledTensor:
    """Experts of one shape and type as one tensor."""
    if isinstance(experts[0], ScaledTensor):
        return dlfp4.stack(experts)
    return dlfp4.asarray(np.stack([each.to_numpy() for each in experts]))


def is_wide(name: str, x: Tensor) -> bool:
    """Whether llama.cpp computes with a tensor in float32 alone: vectors, norms and routers."""
    return x.dtype.name in FLOATS and (x.ndim == 1 or "_norm." in name or "ffn_gate_inp" in name)


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
