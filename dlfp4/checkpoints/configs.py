"""What a model's configuration says about its quantized weights, in the words of the loaders that read it.

Sources: compressed-tensors 0.20 (``QuantizationConfig`` and its preset schemes), transformers 5 (the configurations
"fp8" and "mxfp4"), NVIDIA ModelOpt's ``hf_quant_config.json`` as vLLM's documentation lists it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dlfp4

KEY = "quantization_config"
MODELOPT = "hf_quant_config.json"
HEAD = "lm_head"


@dataclass(frozen=True)
class Facts:
    """What a configuration says.

    Attributes
    ----------
    convention, format : str
        How the weights are stored.
    ignored : sequence of str
        Modules whose weights are not quantized.
    powers : bool
        Scales are powers of two, although the format does not ask for that.
    """

    convention: str
    format: str
    ignored: Sequence[str] = field(default_factory=tuple)
    powers: bool = False


def scheme(bits: int, strategy: str, **more: Any) -> dict[str, Any]:
    """How compressed-tensors describes weights of floats."""
    return {"num_bits": bits, "type": "float", "strategy": strategy, "symmetric": True, "dynamic": False, **more}


# What compressed-tensors calls the storage, and the weights' scheme.
NVFP4 = ("nvfp4-pack-quantized", scheme(4, "tensor_group", group_size=16, scale_dtype="torch.float8_e4m3fn"))
COMPRESSED: Mapping[str, tuple[str, dict[str, Any]]] = {
    "nvfp4": NVFP4,
    "nvfp4_16x16": NVFP4,
    "mxfp4": ("mxfp4-pack-quantized", scheme(4, "group", group_size=32, scale_dtype="torch.uint8")),
    "mxfp8_e4m3": ("mxfp8-quantized", scheme(8, "group", group_size=32, scale_dtype="torch.uint8")),
    "fp8_e4m3": ("float-quantized", scheme(8, "tensor")),
    "fp8_row": ("float-quantized", scheme(8, "channel")),
    "fp8_128x128": ("float-quantized", scheme(8, "block", block_structure=[128, 128])),
}
# ModelOpt's names of weights without static scales of activations, and the length of a group, 0 for none.
ALGORITHMS: Mapping[str, tuple[str, int]] = {
    "nvfp4": ("W4A16_NVFP4", 16),
    "nvfp4_16x16": ("W4A16_NVFP4", 16),
    "mxfp4": ("MXFP4", 32),
    "mxfp8_e4m3": ("MXFP8", 32),
    "fp8_e4m3": ("FP8", 0),
    "fp8_row": ("FP8_PER_CHANNEL_PER_TOKEN", 0),
    "fp8_128x128": ("FP8_PB_WO", 128),
}


def compressed_tensors(facts: Facts) -> dict[str, Any]:
    """The ``quantization_config`` of compressed-tensors."""
    storage, weights = COMPRESSED[facts.format]
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": storage,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": list(facts.ignored),
        "kv_cache_scheme": None,
    }


def fine_grained(facts: Facts) -> dict[str, Any]:
    """The ``quantization_config`` of DeepSeek's FP8, as transformers, vLLM and SGLang read it."""
    return {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128] if facts.format == "fp8_128x128" else None,
        "modules_to_not_convert": list(facts.ignored),
        **({"scale_fmt": "ue8m0"} if facts.powers else {}),
    }


def gpt_oss(facts: Facts) -> dict[str, Any]:
    """The ``quantization_config`` of gpt-oss."""
    return {"quant_method": "mxfp4", "modules_to_not_convert": list(facts.ignored)}


def modelopt(facts: Facts) -> dict[str, Any]:
    """The ``quantization_config`` of ModelOpt; vLLM reads it where there is no ``hf_quant_config.json``."""
    algorithm, _ = ALGORITHMS[facts.format]
    return {"quant_method": "modelopt", "quant_algo": algorithm, "ignore": list(facts.ignored), "producer": producer()}


def hf_quant_config(facts: Facts) -> dict[str, Any]:
    """ModelOpt's own file."""
    algorithm, length = ALGORITHMS[facts.format]
    quantization: dict[str, Any] = {"quant_algo": algorithm, "kv_cache_quant_algo": None}
    if length:
        quantization["group_size"] = length
    return {"producer": producer(), "quantization": quantization | {"exclude_modules": list(facts.ignored)}}


def producer() -> dict[str, str]:
    """Who wrote the weights. Loaders look for ModelOpt's name nowhere but in `quant_method`."""
    return {"name": "dlfp4", "version": dlfp4.__version__}


# By convention: what writes the configuration, and the formats that its loaders know; None for all that it stores.
WRITERS: Mapping[str, tuple[Callable[[Facts], dict[str, Any]], Collection[str]]] = {
    "compressed-tensors": (compressed_tensors, COMPRESSED),
    "deepseek": (fine_grained, ("fp8_128x128", "fp8_e4m3")),
    "gpt-oss": (gpt_oss, ("mxfp4",)),
    "modelopt": (modelopt, ALGORITHMS),
}


def files_of(facts: Facts, config: Mapping[str, Any] | None) -> dict[str, Mapping[str, Any]]:
    """The configuration files to write, by name: none for what no loader knows.

    Parameters
    ----------
    facts : Facts
        About the quantized weights.
    config : mapping, optional
        What the model's ``config.json`` holds.
    """
    writer, known = WRITERS.get(facts.convention, (None, ()))
    if writer is None or facts.format not in known:
        return {}
    files: dict[str, Mapping[str, Any]] = {} if config is None else {"config.json": {**config, KEY: writer(facts)}}
    return files | ({MODELOPT: hf_quant_config(facts)} if facts.convention == "modelopt" else {})


def ignored(kept: Collection[str], quantized: Collection[str]) -> list[str]:
    """The modules whose weights stay as they are.

    The output head is among them even where no tensor is called so: a model that ties it to its embedding has one all
    the same, and loaders would look for its scales.
    """
    modules = {name.rpartition(".")[0] for name in kept}
    if not any(HEAD in name.split(".") for name in quantized):
        modules.add(HEAD)
    return sorted(modules - {""})


def method_of(config: Mapping[str, Any]) -> str:
    """The convention that a configuration names."""
    section = config[KEY]
    return str(section.get("quant_method", section)) if isinstance(section, dict) else str(section)
