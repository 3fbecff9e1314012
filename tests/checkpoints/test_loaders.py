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
            if mine.shape != x.shape or name == "gpt_oss" and mine.ndim == 3:
                mine = mine.mT
            tolerance = 2**-7 if format in ("fp8_e4m3", "fp8_row") else 0  # the loader rounds scales to bfloat16
            if not torch.allclose(mine, x.to(torch.bfloat16), rtol=tolerance, atol=0):
                faults.append(f"{key} differs")
        elif key in first:
            error = (x.float() - first[key].float()).norm() / first[key].float().norm()
            if not error < 0.15:
                faults.append(f"{key} is off by {error}")
    return {"faults": faults, "quantized": sum(bool(outcome.format) for outcome in outcomes)}

place = Path(sys.argv[1])
results = {}
for case in json.loads(sys.argv[2]):
    folder = place / "-".join(map(str, case))
    folder.mkdir()
    results["-".join(map(str, case))] = check(*case, folder)
print(json.dumps(results))
"""
CASES = {
    ("llama", "compressed-tensors", "nvfp4", ""): 14,
    ("llama", "compressed-tensors", "mxfp4", ""): 14,
    ("llama", "compressed-tensors", "mxfp8_e4m3", ""): 14,
    ("llama", "compressed-tensors", "fp8_e4m3", ""): 14,
    ("llama", "compressed-tensors", "fp8_row", ""): 14,
    ("llama", "compressed-tensors", "fp8_128x128", ""): 14,
    ("llama", "compressed-tensors", "nvfp4", "modelopt"): 14,
    ("tied", "compressed-tensors", "nvfp4", ""): 14,
    ("llama", "deepseek", "fp8_128x128", ""): 14,
    ("llama", "deepseek", "fp8_128x128", "compressed-tensors"): 14,
    ("qwen3_moe", "deepseek", "fp8_128x128", ""): 32,
    ("gpt_oss", "gpt-oss", "mxfp4", ""): 4,
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """All of them in one process: the import takes longest."""
    command = [sys.executable, "-P", "-c", PROGRAM, str(tmp_path_factory.mktemp("models")), json.dumps(list(CASES))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_transformers_loads_the_same_weights(results, case):
    assert results["-".join(case)] == {"faults": [], "quantized": CASES[case]}
