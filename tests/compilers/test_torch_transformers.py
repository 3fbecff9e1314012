"""A model of transformers, made from its configuration: tokens eager and compiled, and from a quantized checkpoint."""

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

MISSING = [name for name in ("torch", "transformers") if find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} not installed")

# Tokens of the quantized model: eager, compiled, of one that has loaded what the command line wrote, and of the first
# model with the decoded weights, whose products round otherwise.
PROGRAM = """
import copy, json, subprocess, sys, torch, transformers
from pathlib import Path
import dlfp4.torch
from dlfp4 import checkpoints

transformers.logging.set_verbosity_error()
place, format, convention, cache = Path(sys.argv[1]), *sys.argv[2:]
config = transformers.LlamaConfig(hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
                                  num_key_value_heads=2, vocab_size=512, max_position_embeddings=64)
ids = torch.tensor([[7, 300, 12, 45, 501]])

def made(seed):
    torch.manual_seed(seed)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()

def tokens(model, **options):
    options |= {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    return model.generate(ids, **options)[0].tolist()

model = made(0)
model.save_pretrained(place / "float")
decoded = copy.deepcopy(model)
dlfp4.torch.quantize_(model, format)
for name, weight in model.named_parameters():
    if isinstance(weight, dlfp4.torch.ScaledTensor):
        decoded.get_parameter(name).data.copy_(weight.dequantize())

command = ["quantize", str(place / "float"), "-o", str(place / "small"), "--format", format, "--convention", convention]
subprocess.run([sys.executable, "-P", "-m", "dlfp4", *command], check=True, stdout=subprocess.DEVNULL)
parts = checkpoints.load(place / "small", join=False)
loaded = dlfp4.torch.quantize_(made(1), format)
other = tokens(loaded)
loaded.load_state_dict({name: part.to_torch() for name, part in parts.items()})

results = {"eager": tokens(model), "decoded": tokens(decoded), "loaded": tokens(loaded), "other": other}
model.forward = torch.compile(model.forward, fullgraph=True, backend="aot_eager")
results["compiled"] = tokens(model, cache_implementation=cache)
with torch._dynamo.config.patch(error_on_recompile=cache == "static"):
    assert tokens(model, cache_implementation=cache) == results["compiled"]
print(json.dumps(results))
"""


# Experts stored as (experts, in, out), as gpt-oss has them; no product decodes a stack of them.
EXPERTS = """
import copy, json, sys, torch, transformers
import dlfp4.torch
from dlfp4.torch import multiplying

transformers.logging.set_verbosity_error()
config = transformers.GptOssConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
                                   num_key_value_heads=2, head_dim=32, vocab_size=512, num_local_experts=4,
                                   num_experts_per_tok=2, max_position_embeddings=64, sliding_window=16)
ids = torch.tensor([[7, 300, 12, 45, 501]])

def tokens(model, **options):
    options |= {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    return model.generate(ids, **options)[0].tolist()

torch.manual_seed(0)
model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
for name, parameter in model.named_parameters():
    if "experts" in name:
        torch.nn.init.normal_(parameter, std=0.3)
decoded = copy.deepcopy(model)
dlfp4.torch.quantize_(model, "mxfp4")
for name, weight in model.named_parameters():
    if isinstance(weight, dlfp4.torch.ScaledTensor):
        decoded.get_parameter(name).data.copy_(weight.dequantize())
calls, decode = [], multiplying.decode
multiplying.decode = lambda q, dtype: calls.append(q.shape) or decode(q, dtype)

results = {"decoded": tokens(decoded)}
for way in ("eager", "grouped_mm", "batched_mm"):
    model.set_experts_implementation(way)
    results[way] = tokens(model)
forward = model.forward
for way in ("grouped_mm", "batched_mm"):
    torch._dynamo.reset()
    model.set_experts_implementation(way)
    model.forward = torch.compile(forward, fullgraph=True, backend="aot_eager")
    results[way + ", compiled"] = tokens(model, cache_implementation="static")
print(json.dumps([results, len(calls)]))
"""


def test_experts_by_grouped_products():
    done = subprocess.run(
        [sys.executable, "-P", "-c", EXPERTS], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    found, decoded = json.loads(done.stdout.splitlines()[-1])
    assert len(set(found["decoded"][5:])) > 1
    assert set(map(tuple, found.values())) == {tuple(found["decoded"])}, found
    assert decoded == 0


@pytest.mark.parametrize(
    ("format", "convention", "cache"),
    [("nvfp4", "compressed-tensors", "static"), ("mxfp8_e4m3", "modelopt", "dynamic")],
)
def test_tokens(tmp_path, format, convention, cache):
    """In a process of its own: transformers and what it imports warn of much. With a cache of one size no token
    compiles anything anew.
    """
    command = [sys.executable, "-P", "-c", PROGRAM, str(tmp_path), format, convention, cache]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(set(found["eager"][5:])) > 1
    assert found["eager"] == found["compiled"] == found["loaded"] == found["decoded"]
    assert found["eager"] != found["other"]
