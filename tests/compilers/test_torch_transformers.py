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
place, format, convention = Path(sys.argv[1]), *sys.argv[2:]
config = transformers.LlamaConfig(hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
                                  num_key_value_heads=2, vocab_size=512, max_position_embeddings=64)
ids = torch.tensor([[7, 300, 12, 45, 501]])

def made(seed):
    torch.manual_seed(seed)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()

def tokens(model):
    return model.generate(ids, max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0)[0].tolist()

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
results["compiled"] = tokens(model)
print(json.dumps(results))
"""


@pytest.mark.parametrize(("format", "convention"), [("nvfp4", "compressed-tensors"), ("mxfp8_e4m3", "modelopt")])
def test_tokens(tmp_path, format, convention):
    """In a process of its own: transformers and what it imports warn of much."""
    command = [sys.executable, "-P", "-c", PROGRAM, str(tmp_path), format, convention]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(set(found["eager"][5:])) > 1
    assert found["eager"] == found["compiled"] == found["loaded"] == found["decoded"]
    assert found["eager"] != found["other"]
