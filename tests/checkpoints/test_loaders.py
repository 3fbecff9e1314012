"""Folders that `quantize_model` and `convert_model` make, taken as they are by transformers and compressed-tensors."""

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

MISSING = [name for name in ("torch", "transformers", "compressed_tensors", "accelerate") if find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} not installed")

# Makes each model from its configuration, quantizes it, loads it, and compares: the loader's weights with those of
# dlfp4, bit for bit, where the names agree; with the first ones, roughly, where the loader puts experts together.
PROGRAM = """
import json, sys, torch, transformers
from pathlib import Path
from transformers import AutoModelForCausalLM, CompressedTensorsConfig, FineGrainedFP8Config, Mxfp4Config
from compressed_tensors.compressors.pack_quantized import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import quantize
from compressed_tensors.quantization.utils import calculate_qparams
import dlfp4
from dlfp4 import checkpoints

transformers.logging.set_verbosity_error()
torch.manual_seed(0)
SMALL = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 64}
CONFIGS = {
    "llama": transformers.LlamaConfig(**SMALL, tie_word_embeddings=False),
    "tied": transformers.LlamaConfig(**SMALL, tie_word_embeddings=True),
    "qwen3_moe": transformers.Qwen3MoeConfig(
        **SMALL, moe_intermediate_size=128, num_experts=4, num_experts_per_tok=2, head_dim=32),
    "llama4": transformers.Llama4TextConfig(
        **SMALL, intermediate_size_mlp=256, num_local_experts=4, head_dim=32, pad_token_id=0),
    "phimoe": transformers.PhimoeConfig(**SMALL, num_local_experts=4),
    "gpt_oss": transformers.GptOssConfig(
        **SMALL | {"intermediate_size": 128}, num_local_experts=4, head_dim=32, layer_types=["full_attention"] * 2),
}
OPTIONS = {
    "gpt-oss": {"quantization_config": Mxfp4Config(dequantize=True)},
    "deepseek": {"quantization_config": FineGrainedFP8Config(dequantize=True)},
}

def check(name, convention, format, by_way_of, place):
    made, quantized, out = place / "made", place / "quantized", place / "out"
    model = AutoModelForCausalLM.from_config(CONFIGS[name], dtype=torch.bfloat16)
    model.save_pretrained(made, max_shard_size="200KB")
    if by_way_of:
        checkpoints.quantize_model(made, quantized, format, convention=by_way_of)
        outcomes = checkpoints.convert_model(quantized, out, convention)
    else:
        outcomes = checkpoints.quantize_model(made, out, format, convention=convention)
    loaded, info = AutoModelForCausalLM.from_pretrained(
        out, dtype=torch.bfloat16, output_loading_info=True, **OPTIONS.get(convention, {}))
    loaded(torch.arange(16)[None])
    faults = [f"{what}: {names}" for what, names in info.items() if names]
    theirs, first, ours = loaded.state_dict(), model.state_dict(), checkpoints.load(out)
    for key, x in theirs.items():
        mine = ours.get(key)
        if mine is not None:
            mine = mine.dequantize("bfloat16").to_torch() if hasattr(mine, "dequantize") else mine.to_torch()
            if mine.shape != x.shape or convention == "gpt-oss" and mine.ndim == 3:
                mine = mine.mT
            # the loader rounds scales to bfloat16, which those of another convention are not
            tolerance = 2**-7 if by_way_of and format in ("fp8_e4m3", "fp8_row") else 0
            if not torch.allclose(mine, x.to(torch.bfloat16), rtol=tolerance, atol=0):
                faults.append(f"{key} differs")
        elif key in first:
            error = (x.float() - first[key].float()).norm() / first[key].float().norm()
            if not error < 0.15:
                faults.append(f"{key} is off by {error}")
    return {"faults": faults, "quantized": sum(bool(outcome.format) for outcome in outcomes)}

# A model of another type than bfloat16, loaded without a word about types: it runs, and has the values of the file.
def faults_of_type(name, format, dtype, place):
    place.mkdir()
    model = AutoModelForCausalLM.from_config(CONFIGS[name], dtype=getattr(torch, dtype))
    model.save_pretrained(place / "made")
    checkpoints.quantize_model(place / "made", place / "out", format, convention="compressed-tensors")
    loaded = AutoModelForCausalLM.from_pretrained(place / "out")
    loaded(torch.arange(16)[None])
    values = {name: (x.dequantize() if hasattr(x, "dequantize") else x).to_torch().float()
              for name, x in checkpoints.load(place / "out").items()}
    for layer in (f"model.layers.{k}.mlp.experts" for k in range(2) if name == "qwen3_moe"):
        down, gate, up = (torch.stack([values[f"{layer}.{k}.{own}_proj.weight"] for k in range(4)])
                          for own in ("down", "gate", "up"))
        values |= {f"{layer}.down_proj": down, f"{layer}.gate_up_proj": torch.cat([gate, up], 1)}
    wrong = [key for key, x in loaded.state_dict().items()
             if key in values and not torch.equal(x, values[key].to(loaded.dtype).to(x.dtype))]
    types = {x.dtype for key, x in loaded.state_dict().items() if key in values}
    return wrong + [f"{each} beside {loaded.dtype}" for each in types - {loaded.dtype}]

# ModelOpt's scales of activations in the convention of compressed-tensors: all are found.
def faults_of_inputs(format, place):
    place.mkdir()
    model = AutoModelForCausalLM.from_config(CONFIGS["llama"], dtype=torch.bfloat16)
    model.save_pretrained(place / "made")
    checkpoints.quantize_model(place / "made", place / "first", format, convention="modelopt")
    tensors = dict(checkpoints.load(place / "first", join=False))
    scales = {name.removesuffix("weight") + "input_scale": torch.tensor(0.25)
              for name in tensors if name.endswith("_proj.weight")}
    checkpoints.save(place / "first" / "model.safetensors", tensors | scales, {"format": "pt"})
    checkpoints.convert_model(place / "first", place / "out", "compressed-tensors")
    loaded, info = AutoModelForCausalLM.from_pretrained(place / "out", output_loading_info=True)
    kind = "input_global_scale" if format == "nvfp4" else "input_scale"
    found = [x.item() for name, x in loaded.named_parameters() if name.endswith(kind)]
    wrong = [f"{what}: {names}" for what, names in info.items() if names]
    return wrong + ["scales"] * (found != [4.0 if format == "nvfp4" else 0.25] * 14)

# Models that tie a head to their embedding, of another name than lm_head: all that is loaded is found.
TIED = {
    "whisper": lambda: transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(
        d_model=128, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=128, decoder_ffn_dim=128, vocab_size=64,
        encoder_attention_heads=4, decoder_attention_heads=4, max_source_positions=32, max_target_positions=32,
        num_mel_bins=16, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1)),
    "bert": lambda: transformers.BertForMaskedLM(transformers.BertConfig(
        hidden_size=128, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4, vocab_size=64)),
    "roberta": lambda: transformers.RobertaForMaskedLM(transformers.RobertaConfig(
        hidden_size=128, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4, vocab_size=64)),
}
def faults_of_tied(name, format, place):
    place.mkdir()
    model = TIED[name]().to(torch.bfloat16)
    model.save_pretrained(place / "made")
    checkpoints.quantize_model(place / "made", place / "out", format, convention="compressed-tensors")
    loaded, info = type(model).from_pretrained(place / "out", output_loading_info=True)
    head, first = loaded.get_output_embeddings().weight, model.get_output_embeddings().weight
    return [f"{what}: {names}" for what, names in info.items() if names] + ["head"] * (not torch.equal(head, first))

# Layers of images are excluded, which transformers has under other names than the files: all that is loaded is found.
def faults_of_excluded(format, place):
    place.mkdir()
    text = SMALL | {"head_dim": 32, "layer_types": ["full_attention"] * 2}
    images = {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4,
              "image_size": 32, "patch_size": 16}
    model = transformers.Gemma3ForConditionalGeneration(
        transformers.Gemma3Config(text_config=text, vision_config=images, mm_tokens_per_image=4)).to(torch.bfloat16)
    model.save_pretrained(place / "made")
    options = {"convention": "compressed-tensors", "exclude": "vision_tower"}
    checkpoints.quantize_model(place / "made", place / "out", format, **options)
    loaded, info = type(model).from_pretrained(place / "out", output_loading_info=True)
    first = {name: x for name, x in model.state_dict().items() if "vision_tower" in name}
    kept = [name for name, x in loaded.state_dict().items() if name in first and torch.equal(x, first[name])]
    return [f"{what}: {names}" for what, names in info.items() if names] + ["kept"] * (len(kept) != len(first))

def differing_bytes(name, group, dtype):  # what compressed-tensors quantizes to other bytes
    args = QuantizationArgs(num_bits=4, symmetric=True, strategy="group" if group else "channel", group_size=group)
    kinds = {"normal": torch.randn(32, 256), "cauchy": torch.empty(32, 256).cauchy_(),
             "ties": torch.randint(-15, 16, (32, 256)) / 2.0, "zeros": torch.zeros(32, 256),
             "tiny": torch.randn(32, 256) * 1e-38, "huge": torch.rand(32, 256) * 3e38,
             "subnormal": torch.randint(-4, 5, (32, 256)) * 2.0**-149, "one-hot": torch.eye(32, 256) * 3}
    kinds = {kind: x.to(dtype) for kind, x in kinds.items()}
    wrong = []
    for kind, x in kinds.items():
        if not x.isfinite().all():
            continue
        blocks = x.unflatten(-1, (-1, group or 256))
        scales, zeros = calculate_qparams(blocks.amin(-1), blocks.amax(-1), args)
        codes = quantize(x=x, scale=scales, zero_point=zeros, args=args, dtype=torch.int8)
        q = dlfp4.quantize(x, name, recipe="compressed-tensors")
        middle = 0 if q.zero_points is None else 8
        same = torch.equal(torch.from_numpy(q.data.to_numpy().astype("int8")) - middle, codes)
        if not (same and torch.equal(q.scales.to_torch(), scales.float())):
            wrong.append(kind)
    return wrong

# Scales of 16 bits, of float32 weights and of weights of their type: its scales, and its codes by float32 division.
def faults_of_short_scales(dtype):
    args = QuantizationArgs(num_bits=4, symmetric=True, strategy="group", group_size=32)
    wrong = []
    for x in (torch.randn(32, 256), torch.randn(32, 256).to(dtype)):
        blocks = x.unflatten(-1, (-1, 32))
        scales, zeros = (each.to(dtype) for each in calculate_qparams(blocks.amin(-1), blocks.amax(-1), args))
        codes = quantize(x=x.float(), scale=scales.float(), zero_point=zeros.float(), args=args, dtype=torch.int8)
        q = dlfp4.quantize(x, "int4_g32", recipe=dlfp4.Recipe(scale_dtype=str(dtype).removeprefix("torch.")))
        if not torch.equal(torch.from_numpy(q.data.to_numpy().astype("int8")), codes):
            wrong.append(f"codes of {x.dtype}")
        if not torch.equal(q.scales.to_torch(), scales):
            wrong.append(f"scales of {x.dtype}")
    return wrong

# What compressed-tensors makes of a weight with zero points (transformers 5.24 loads none), and what dlfp4 reads and
# writes of it.
def faults_of_zero_points(group):
    args = QuantizationArgs(num_bits=4, symmetric=False, strategy="group" if group else "channel", group_size=group)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    x = torch.randn(72, 256)
    blocks = x.unflatten(-1, (-1, group or 256))
    scales, zeros = calculate_qparams(blocks.amin(-1), blocks.amax(-1), args)
    stored = {"weight": x.bfloat16(), "weight_scale": scales.bfloat16(), "weight_zero_point": zeros}
    stored = PackedQuantizationCompressor.compress(stored, scheme)
    q = checkpoints.join_parts({f"up.{name}": part for name, part in stored.items()})["up.weight"]
    theirs = PackedQuantizationCompressor.decompress(dict(stored), scheme)["weight"]
    back = checkpoints.split_parts({"up.weight": q}, "compressed-tensors")
    wrong = [name for name, part in stored.items() if not torch.equal(back["up." + name].to_torch(), part)]
    return wrong + ["values"] * (not torch.equal(q.dequantize("bfloat16").to_torch(), theirs))

place = Path(sys.argv[1])
results = {f"zero points {group}": faults_of_zero_points(group) for group in (32, 128, None)}
results |= {str(dtype): faults_of_short_scales(dtype) for dtype in (torch.bfloat16, torch.float16)}
results |= {f"{name} {dtype}": differing_bytes(name, group, dtype) for name, group in
           (("int4_g32", 32), ("int4_g128", 128), ("int4_row", None), ("uint4_g64", 64), ("uint4_row", None))
           for dtype in (torch.float32, torch.bfloat16, torch.float16)}
results |= {f"tied {name} {format}": faults_of_tied(name, format, place / f"{name} {format}")
            for name in TIED for format in ("nvfp4", "fp8_row")}
results |= {f"excluded {format}": faults_of_excluded(format, place / f"excluded {format}")
            for format in ("nvfp4", "fp8_row")}
results |= {f"inputs of {format}": faults_of_inputs(format, place / format) for format in ("nvfp4", "fp8_e4m3")}
results |= {"-".join(case): faults_of_type(*case, place / "-".join(case)) for case in json.loads(sys.argv[3])}
for case in json.loads(sys.argv[2]):
    folder = place / "-".join(map(str, case))
    folder.mkdir()
    results["-".join(map(str, case))] = check(*case, folder)
print(json.dumps(results))
"""
HEADS = """
import json, warnings, transformers
import transformers.models.auto.modeling_auto as auto
from dlfp4.checkpoints.configs import HEAD, TIED_HEADS

warnings.simplefilter("ignore")
types = {}
for table in (getattr(auto, name) for name in dir(auto) if name.endswith("_MAPPING_NAMES")):
    for model_type, classes in table.items():
        for each in (classes if isinstance(classes, tuple) else (classes,)):
            types.setdefault(each, set()).add(model_type)
missing = set()
for each, of_class in types.items():
    tied = getattr(getattr(transformers, each, None), "_tied_weights_keys", None)
    for key, source in (tied if isinstance(tied, dict) else {}).items():
        head = key.removesuffix(".weight")
        others = ("embed_tokens", "embed_patches", "word_embeddings", "embedding")  # that are no heads
        if head == key or "embed" not in source or any(each in head for each in others) or head == HEAD:
            continue
        missing |= {(head, each) for each in of_class if each not in TIED_HEADS.get(head, "").split()}
print(json.dumps(sorted(missing)))
"""
CASES = {
    ("llama", "compressed-tensors", "nvfp4", ""): 14,
    ("llama", "compressed-tensors", "mxfp4", ""): 14,
    ("llama", "compressed-tensors", "mxfp8_e4m3", ""): 14,
    ("llama", "compressed-tensors", "fp8_e4m3", ""): 14,
    ("llama", "compressed-tensors", "fp8_row", ""): 14,
    ("llama", "compressed-tensors", "fp8_128x128", ""): 14,
    ("llama", "compressed-tensors", "int4_g32", ""): 14,
    ("llama", "compressed-tensors", "int4_row", ""): 14,
    ("llama", "compressed-tensors", "nvfp4", "modelopt"): 14,
    ("tied", "compressed-tensors", "nvfp4", ""): 14,
    ("llama4", "compressed-tensors", "nvfp4", ""): 38,
    ("llama4", "compressed-tensors", "fp8_row", ""): 38,
    ("phimoe", "compressed-tensors", "int4_g32", ""): 32,  # whose routers transformers calls otherwise than the files
    ("phimoe", "compressed-tensors", "fp8_row", ""): 32,
    ("llama", "deepseek", "fp8_128x128", ""): 14,
    ("llama", "deepseek", "fp8_128x128", "compressed-tensors"): 14,
    ("qwen3_moe", "deepseek", "fp8_128x128", ""): 32,
    ("gpt_oss", "gpt-oss", "mxfp4", ""): 4,
    ("gpt_oss", "compressed-tensors", "mxfp4", ""): 8,  # no experts
    ("gpt_oss", "deepseek", "fp8_128x128", ""): 8,
}


TYPES = [
    *(("llama", format, "float16") for format in ("mxfp4", "mxfp8_e4m3", "fp8_row", "fp8_128x128", "int4_g32")),
    *(("llama", format, "float32") for format in ("mxfp4", "fp8_e4m3", "int4_row")),
    *(("qwen3_moe", "int4_g32", dtype) for dtype in ("float16", "float32", "bfloat16")),
]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """All of them in one process: the import takes longest."""
    command = [sys.executable, "-P", "-c", PROGRAM, str(tmp_path_factory.mktemp("models"))]
    command += [json.dumps(list(CASES)), json.dumps(TYPES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_transformers_loads_the_same_weights(results, case):
    assert results["-".join(case)] == {"faults": [], "quantized": CASES[case]}


@pytest.mark.parametrize("case", TYPES, ids="-".join)
def test_models_of_other_types_run_as_they_are_loaded(results, case):
    assert results["-".join(case)] == []


@pytest.mark.parametrize("format", ["nvfp4", "fp8_row"])
@pytest.mark.parametrize("name", ["whisper", "bert", "roberta"])
def test_heads_that_are_tied_stay_as_they_are(results, name, format):
    assert results[f"tied {name} {format}"] == []


@pytest.mark.parametrize("format", ["nvfp4", "fp8_row"])
def test_layers_of_images_stay_as_they_are(results, format):
    assert results[f"excluded {format}"] == []


@pytest.mark.slow
def test_heads_of_every_model_that_ties_one():
    """The table has those of transformers' models, by what their classes say."""
    done = subprocess.run([sys.executable, "-P", "-c", HEADS], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == []


@pytest.mark.parametrize("format", ["nvfp4", "fp8_e4m3"])
def test_scales_of_activations_are_found(results, format):
    assert results[f"inputs of {format}"] == []


@pytest.mark.parametrize("dtype", ["torch.float32", "torch.bfloat16", "torch.float16"])
@pytest.mark.parametrize("name", ["int4_g32", "int4_g128", "int4_row", "uint4_g64", "uint4_row"])
def test_bytes_of_compressed_tensors(results, name, dtype):
    assert results[f"{name} {dtype}"] == []


@pytest.mark.parametrize("dtype", ["torch.bfloat16", "torch.float16"])
def test_elements_are_divided_in_float32_by_short_scales(results, dtype):
    assert results[dtype] == []


@pytest.mark.parametrize("group", [32, 128, None])
def test_zero_points_of_compressed_tensors(results, group):
    assert results[f"zero points {group}"] == []
