"""What a model's configuration says about its quantized weights, in the words of the loaders that read it.

Sources: compressed-tensors 0.20 (``QuantizationConfig`` and its preset schemes), transformers 5 (the configurations
"fp8", "mxfp4", "gptq" and "awq"), NVIDIA ModelOpt's ``hf_quant_config.json`` as vLLM's documentation lists it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import dlfp4
from dlfp4 import ScaledTensor
from dlfp4.checkpoints import activations, integers
from dlfp4.checkpoints.folders import CONFIG, Outcome, write_json
from dlfp4.checkpoints.names import experts_of, fused_module, module_of
from dlfp4.formats import FLOATS

KEY = "quantization_config"
MODELOPT = "hf_quant_config.json"
# Files beside ``config.json`` that say how weights are quantized, each in the words of a convention.
FILES: Mapping[str, str] = {MODELOPT: "modelopt", "quantize_config.json": "gptq", "quant_config.json": "awq"}
HEAD = "lm_head"
WEIGHT = ".weight"
# Other names of output heads that models tie to an embedding, so that no file has them, and the types of these models.
TIED_HEADS: Mapping[str, str] = {
    "cls.predictions.decoder": "bert big_bird deberta deberta-v2 ernie fnet layoutlm lxmert megatron-bert mobilebert "
    "mra nomic_bert nystromformer roc_bert roformer squeezebert tapas visual_bert yoso",
    "decoder": "modernbert modernbert-decoder",
    "decoder.output_projection": "fsmt",
    "embed_out": "gpt_neox_japanese",
    "entity_predictions.decoder": "luke",
    "generator_lm_head": "convbert electra",
    "head": "rwkv",
    "head.decoder": "ultrabert",
    "lm_head.decoder": "bert-generation camembert data2vec-text esm gte ibert jina_embeddings_v3 longformer luke mpnet "
    "roberta roberta-prelayernorm xlm-roberta xlm-roberta-xl xmod",
    "lm_head.out_proj": "t5gemma t5gemma2",
    "lm_loss": "xlnet",
    "output": "git",
    "output_projection": "biogpt trocr",
    "pred_layer.proj": "flaubert xlm",
    "predictions.decoder": "albert",
    "proj_out": "canary cohere_asr moonshine moonshine_streaming whisper",
    "text_decoder.cls.predictions.decoder": "blip",
    "text_decoder_postnet.lm_head": "speecht5",
    "text_model.lm_head": "kosmos-2",
    "vocab_projector": "distilbert",
}
ROUTER = re.compile(r"(^|\.)block_sparse_moe\.gate$")  # in files
BLOCK = re.compile(r".*?\.\d+\.")  # what precedes the name of a module within its block
# Around the language model of a composite one, and missing or in another order in files of older versions than loaders.
WRAPPERS = r"((model|language_model)\.)*"


@dataclass(frozen=True)
class Facts:
    """What a configuration says.

    Attributes
    ----------
    convention : str
        How the weights are stored.
    quantized : mapping of str to sequence of str
        The names of the quantized tensors, by format.
    kept : sequence of str
        The names of other weights, stacks of experts among them.
    pow2 : bool
        Whether all scales are powers of two.
    symmetric : bool
        Whether all zero points are the middle of the codes.
    with_inputs : collection of str
        The formats of which all layers have a scale of what they multiply by.
    has_cache : bool
        Whether scales of a cache of keys and values are there.
    model_type : str
        As the model's configuration has it.
    is_composite : bool
        Whether that has configurations of several models, such as one of images beside one of text.
    """

    convention: str
    quantized: Mapping[str, Sequence[str]]
    kept: Sequence[str]
    pow2: bool
    symmetric: bool
    with_inputs: Collection[str] = ()
    has_cache: bool = False
    model_type: str = ""
    is_composite: bool = False

    @property
    def format(self) -> str:
        """The format of the most tensors."""
        return max(self.quantized, key=lambda format: len(self.quantized[format]))

    def unusual(self) -> Iterator[tuple[str, str]]:
        """The modules of the tensors of other formats, and these."""
        for format, names in self.quantized.items():
            if format != self.format:
                yield from ((module_of(name), format) for name in names)

    @property
    def ignored(self) -> list[str]:
        """The modules whose weights stay as they are.

        The output head is among them even where no tensor is called so: a model that ties it to its embedding has one
        all the same, and loaders would look for its scales. PhiMoE's routers are among them by both of their names:
        transformers has linear layers for them, which it calls otherwise than the files do.
        """
        modules = {module_of(name) for name in self.kept if name.endswith(WEIGHT)} | set(self.kept_experts)
        modules |= {ROUTER.sub(r"\1mlp.router", name) for name in modules}
        quantized = [name for names in self.quantized.values() for name in names]
        if not any(HEAD in name.split(".") for name in quantized):
            modules.add(HEAD)
        tied = (head for head, types in TIED_HEADS.items() if self.model_type in types.split())
        modules |= {head for head in tied if not any(name.startswith(f"{head}.") for name in quantized)}
        return sorted(modules - {""})

    @property
    def kept_experts(self) -> list[str]:
        """The modules of experts of which none is quantized: engines have one layer for all of them."""
        quantized = {experts_of(name) for names in self.quantized.values() for name in names}
        return sorted({experts_of(name) for name in self.kept} - quantized - {""})

    def expression(self, module: str, end: str = "$") -> str:
        """A regular expression for the names by which loaders know a module."""
        if not self.is_composite:
            return f"^{re.escape(module)}{end}"
        return f"^{WRAPPERS}{re.escape(re.sub(f'^{WRAPPERS}', '', module))}{end}"


def scheme(bits: int, strategy: str, **more: Any) -> dict[str, Any]:
    """How compressed-tensors describes weights of floats."""
    return {"num_bits": bits, "type": "float", "strategy": strategy, "symmetric": True, "dynamic": False, **more}


LENGTHS: Mapping[str, int] = {  # of the groups of integers; 0: a line
    row.name: row.block[1] or 0 for row in dlfp4.formats().values() if row.has_integers and row.block
}


def scheme_of_integers(format: str) -> dict[str, Any]:
    """How compressed-tensors describes weights of integers: those without a sign have zero points."""
    length = LENGTHS[format]
    groups = {"strategy": "group", "group_size": length} if length else {"strategy": "channel"}
    return {"num_bits": 4, "type": "int", "symmetric": format.startswith("int4"), "dynamic": False, **groups}


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
    **{format: ("pack-quantized", scheme_of_integers(format)) for format in LENGTHS},
}
# How compressed-tensors describes what layers multiply by, where its scale is stored: FP4's blocks have scales of their
# own beside it.
INPUTS: Mapping[str, dict[str, Any]] = {
    "nvfp4": scheme(4, "tensor_group", group_size=16, scale_dtype="torch.float8_e4m3fn") | {"dynamic": "local"},
    "fp8_e4m3": scheme(8, "tensor"),
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


# What loaders of compressed-tensors decode to bfloat16 whatever the type of the model, whose products then fail.
IN_BFLOAT16 = ("nvfp4", "nvfp4_16x16", "mxfp4", "mxfp8_e4m3")
# What configurations call the type of a model, those of today first.
TYPES = ("dtype", "torch_dtype")


# ModelOpt's names where these scales are stored, if they are others.
WITH_INPUTS: Mapping[str, str] = {"nvfp4": "NVFP4"}


# MLX's mode, bits of an element and length of a group.
MODES: Mapping[str, tuple[str, int, int]] = {
    "mxfp4": ("mxfp4", 4, 32),
    "nvfp4": ("nvfp4", 4, 16),
    "mxfp8_e4m3": ("mxfp8", 8, 32),
    **{format: ("affine", 4, length) for format, length in LENGTHS.items() if length},
}


def compressed_tensors(facts: Facts) -> dict[str, Any]:
    """The ``quantization_config`` of compressed-tensors: a group for each format.

    vLLM looks among what is ignored for experts one by one, even where they are a stack in the file. transformers looks
    for modules under its own names.
    """
    groups: dict[str, Any] = {}
    for number, (format, names) in enumerate(facts.quantized.items()):
        storage, weights = COMPRESSED[format]
        named = [f"re:{facts.expression(module_of(name))}" for name in names]
        groups[f"group_{number}"] = {
            "targets": ["Linear"] if len(facts.quantized) == 1 else named, "weights": weights,
            "input_activations": INPUTS[format] if format in facts.with_inputs else None,
            "output_activations": None, "format": storage,
        }  # fmt: skip
    storages = {group["format"] for group in groups.values()}
    patterns = [facts.expression(module, r"\.") for module in facts.kept_experts]
    patterns += map(facts.expression, facts.ignored) if facts.is_composite else ()
    return {
        "quant_method": "compressed-tensors",
        "format": storages.pop() if len(storages) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": facts.ignored + [f"re:{pattern}" for pattern in patterns],
        "kv_cache_scheme": scheme(8, "tensor") if facts.has_cache else None,
    }


def fine_grained(facts: Facts) -> dict[str, Any]:
    """The ``quantization_config`` of DeepSeek's FP8, as transformers, vLLM and SGLang read it.

    With ``"scale_fmt": "ue8m0"`` they give activations scales of powers of two as well, as the weights have them since
    DeepSeek-V3.1.
    """
    said = {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128] if facts.format == "fp8_128x128" else None,
        "modules_to_not_convert": facts.ignored,
    }
    return said | ({"scale_fmt": "ue8m0"} if facts.pow2 else {})


def gpt_oss(facts: Facts) -> dict[str, Any]:
    """The ``quantization_config`` of gpt-oss."""
    return {"quant_method": "mxfp4", "modules_to_not_convert": facts.ignored}


def modelopt(facts: Facts) -> dict[str, Any]:
    """The ``quantization_config`` of ModelOpt; vLLM reads it where there is no ``hf_quant_config.json``."""
    section = hf_quant_config(facts)["quantization"]
    section["ignore"] = section.pop("exclude_modules")
    return {"quant_method": "modelopt", "producer": producer(), **section}


def hf_quant_config(facts: Facts) -> dict[str, Any]:
    """ModelOpt's own file."""
    if len(facts.quantized) == 1:
        section: dict[str, Any] = algorithm_of(facts.format, facts)
    else:
        layers = {
            module_of(name): algorithm_of(format, facts) for format, names in facts.quantized.items() for name in names
        }
        section = {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    section |= {"kv_cache_quant_algo": "FP8" if facts.has_cache else None, "exclude_modules": facts.ignored}
    return {"producer": producer(), "quantization": section}


def algorithm_of(format: str, facts: Facts) -> dict[str, Any]:
    """What ModelOpt calls a format."""
    algorithm, length = ALGORITHMS[format]
    algorithm = WITH_INPUTS.get(format, algorithm) if format in facts.with_inputs else algorithm
    return {"quant_algo": algorithm, "group_size": length} if length else {"quant_algo": algorithm}


def mlx(facts: Facts) -> dict[str, Any]:
    """The ``quantization`` of MLX: that of the most layers, and that of each other one under its name."""

    def section(format: str) -> dict[str, Any]:
        mode, bits, length = MODES[format]
        return {"group_size": length, "bits": bits, "mode": mode}

    return section(facts.format) | {name: section(format) for name, format in facts.unusual()}


def gptq(facts: Facts) -> dict[str, Any]:
    """The ``quantization_config`` of GPTQ, of files whose zero points are stored less 1.

    Only where they are all 8, which ``"sym"`` says, do Marlin's kernels take the weights: they read no zero points.
    GPTQModel refuses other files of version 1 that itself did not make. Layers that are kept, and those of other
    groups, are told by patterns, of the files' names and of those under which SGLang, and vLLM before 2026, look for
    the layers that they fuse. optimum, by which transformers loads such models, reads no patterns; it wants to know
    what is quantized in blocks.
    """
    experts = facts.kept_experts
    patterns: dict[str, dict[str, int]] = {rf"-:^{re.escape(module)}\b": {} for module in experts}
    patterns |= {
        f"-:^{re.escape(module)}$": {}
        for name in facts.ignored
        if experts_of(f"{name}.") not in experts
        for module in (name, fused_module(name))
    }
    patterns |= {
        f"+:^{re.escape(module)}$": {"group_size": LENGTHS[format] or -1}
        for name, format in facts.unusual()
        for module in (name, fused_module(name))
    }
    chosen = in_blocks(facts)
    return ({"modules_in_block_to_quantize": [chosen]} if chosen else {}) | {
        "quant_method": "gptq",
        "dynamic": patterns,
        "bits": 4,
        "group_size": LENGTHS[facts.format] or -1,
        "desc_act": False,
        "sym": facts.symmetric,
        "checkpoint_format": "gptq",
        "modules_to_not_convert": facts.ignored,
    }


def in_blocks(facts: Facts) -> list[str]:
    """The ends of the names of the quantized modules in blocks, or the names; none where no other module is in one."""
    quantized = {module_of(name) for names in facts.quantized.values() for name in names}
    others = [module for module in facts.ignored if BLOCK.match(module)]
    ends = {BLOCK.sub("", module, count=1) for module in quantized}
    if any(end in module for module in others for end in ends):  # as vLLM looks for them
        ends = quantized
    return sorted(ends) if others else []


def awq(facts: Facts) -> dict[str, Any]:
    """The ``quantization_config`` of AWQ."""
    return {
        "quant_method": "awq",
        "bits": 4,
        "group_size": LENGTHS[facts.format] or -1,
        "zero_point": True,
        "version": "gemm",
        "modules_to_not_convert": facts.ignored,
    }


def producer() -> dict[str, str]:
    """Who wrote the weights. Loaders look for ModelOpt's name nowhere but in `quant_method`."""
    return {"name": "dlfp4", "version": dlfp4.__version__}


# By convention: what writes the configuration, and the formats that its loaders know; None for all that it stores.
WRITERS: Mapping[str, tuple[Callable[[Facts], dict[str, Any]], Collection[str]]] = {
    "awq": (awq, LENGTHS),
    "compressed-tensors": (compressed_tensors, COMPRESSED),
    "deepseek": (fine_grained, ("fp8_128x128", "fp8_e4m3")),
    "gpt-oss": (gpt_oss, ("mxfp4",)),
    "gptq": (gptq, LENGTHS),
    "mlx": (mlx, MODES),
    "modelopt": (modelopt, ALGORITHMS),
}


def files_of(facts: Facts, config: Mapping[str, Any] | None) -> dict[str, Mapping[str, Any]]:
    """The configuration files of a model, by name.

    Parameters
    ----------
    facts : Facts
        About the quantized weights.
    config : mapping, optional
        What the model's ``config.json`` holds. What it says of another convention is left out, unless nothing is
        quantized in this one.
    """
    if not facts.quantized:
        return {} if config is None else {CONFIG: config}
    writer, known = WRITERS.get(facts.convention, (None, ()))
    plain = {key: value for key, value in (config or {}).items() if key not in (KEY, "quantization")}
    said: dict[str, Any] = {}
    if writer is not None and all(format in known for format in facts.quantized):
        said = {KEY: writer(facts)} | ({"quantization": writer(facts)} if facts.convention == "mlx" else {})
        if facts.convention == "compressed-tensors" and not facts.quantized.keys().isdisjoint(IN_BFLOAT16):
            said |= dict.fromkeys([key for key in TYPES if key in plain] or TYPES[:1], "bfloat16")
    files: dict[str, Mapping[str, Any]] = {} if config is None else {CONFIG: plain | said}
    if said and facts.convention == "modelopt":
        files[MODELOPT] = hf_quant_config(facts)
    return files


def type_of(config: Mapping[str, Any]) -> str:
    """The type of the model that a configuration names; "" where it names none."""
    return next((str(config[key]) for key in TYPES if config.get(key)), "")


def write(
    folder: Path,
    files: Mapping[str, Mapping[str, Any]],
    outcomes: Sequence[Outcome],
    former: Mapping[str, Any] | None,
) -> list[Outcome]:
    """Write the configuration files of a new model, and say in its outcomes what they change."""
    for name, content in files.items():
        write_json(folder / name, content)
    return with_new_type(outcomes, former, files)


def with_new_type(
    outcomes: Sequence[Outcome], config: Mapping[str, Any] | None, files: Mapping[str, Mapping[str, Any]]
) -> list[Outcome]:
    """The outcomes, which say so where the new configuration names another type of the model than the former."""
    former = type_of(config or {})
    if former in ("", type_of(files.get(CONFIG, {}))):
        return list(outcomes)
    word = f"{CONFIG} says bfloat16 instead of {former}, as loaders decode to it"
    return [
        replace(each, reason="; ".join(filter(None, (each.reason, word)))) if each.format in IN_BFLOAT16 else each
        for each in outcomes
    ]


def facts_of(convention: str, outcomes: Sequence[Outcome], config: Mapping[str, Any] | None) -> Facts:
    """What the configuration has to say, by what became of the tensors and by the former configuration."""
    quantized: dict[str, list[str]] = {}
    for outcome in outcomes:
        if outcome.format:
            quantized.setdefault(outcome.format, []).append(outcome.name)
    kept = [each.name for each in outcomes if is_kept(each)]
    pow2 = all(outcome.pow2 for outcome in outcomes if outcome.format)
    symmetric = all(outcome.symmetric for outcome in outcomes if outcome.format)
    others = [outcome.name for outcome in outcomes if not outcome.format]
    with_inputs = [
        format
        for format, names in quantized.items()
        if {module_of(name) for name in names} <= activations.layers_with_inputs(others, convention, format)
    ]
    has_cache = activations.has_cache(others, convention)
    model_type = str((config or {}).get("model_type", ""))
    parts = {name for name, part in (config or {}).items() if name.endswith("_config") and isinstance(part, dict)}
    is_composite = bool(parts - {KEY})
    return Facts(convention, quantized, kept, pow2, symmetric, with_inputs, has_cache, model_type, is_composite)


def is_kept(outcome: Outcome) -> bool:
    """Whether a tensor is the weight of a module, or of all experts, that is not quantized."""
    name, dims = outcome.name, len(outcome.shape)
    is_stack = dims == 3 and outcome.dtype in FLOATS and experts_of(name) == module_of(name)
    return not outcome.format and (is_stack or (dims > 1 and name.endswith(WEIGHT)))


def has_pow2_scales(q: ScaledTensor) -> bool:
    """Whether all scales are powers of two; of NVFP4's, which are many, nobody asks."""
    if q.format.kind == "two_level":
        return False
    if q.scales.dtype == np.dtype(ml_dtypes.float8_e8m0fnu):
        return True
    return bool(np.all(np.frexp(q.scales.to_numpy().astype(np.float32))[0] == 0.5))


def is_symmetric(q: ScaledTensor) -> bool:
    """Whether all zero points are the middle of the codes: 8 of those without a sign, 0 of others."""
    if q.biases is not None:
        return q.format.element.name == "uint4" and integers.is_symmetric(q.scales, q.biases)
    middle = 8 if q.format.element.name.startswith("uint") else 0
    return not middle if q.zero_points is None else bool((q.zero_points.to_device("cpu").to_numpy() == middle).all())


def find_method(config: Mapping[str, Any] | None, folder: Path) -> tuple[Path, str] | None:
    """The file of a model that says that weights are quantized, and by which convention; None where none does."""
    if config and config.get(KEY):
        section = config[KEY]
        named = section.get("quant_method", section) if isinstance(section, dict) else section
        return folder / CONFIG, str(named)
    if config and config.get("quantization"):
        return folder / CONFIG, "mlx"
    return next(((folder / name, method) for name, method in FILES.items() if (folder / name).is_file()), None)
