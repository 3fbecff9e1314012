"""Names of llama.cpp in GGUF files, and its order of rows, both ways; transformers loads what is written."""

import json
import subprocess
import sys
from importlib.util import find_spec

import ml_dtypes
import numpy as np
import pytest

import dlfp4
from dlfp4 import checkpoints

gguf = pytest.importorskip("gguf")
HEADS, KV_HEADS, SIZE = 4, 2, 64
CONFIG = {
    "model_type": "llama", "num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
    "hidden_size": SIZE, "intermediate_size": 128, "vocab_size": 32, "rms_norm_eps": 1e-5, "rope_theta": 5e5,
    "max_position_embeddings": 256,
}  # fmt: skip
# Hugging Face's names, llama.cpp's, and the rows and columns.
TENSORS = {
    "model.embed_tokens.weight": ("token_embd.weight", (32, SIZE)),
    "model.layers.0.self_attn.q_proj.weight": ("blk.0.attn_q.weight", (SIZE, SIZE)),
    "model.layers.0.self_attn.q_proj.bias": ("blk.0.attn_q.bias", (SIZE,)),
    "model.layers.0.self_attn.k_proj.weight": ("blk.0.attn_k.weight", (SIZE // 2, SIZE)),
    "model.layers.0.self_attn.v_proj.weight": ("blk.0.attn_v.weight", (SIZE // 2, SIZE)),
    "model.layers.0.self_attn.o_proj.weight": ("blk.0.attn_output.weight", (SIZE, SIZE)),
    "model.layers.0.mlp.gate_proj.weight": ("blk.0.ffn_gate.weight", (128, SIZE)),
    "model.layers.0.mlp.up_proj.weight": ("blk.0.ffn_up.weight", (128, SIZE)),
    "model.layers.0.mlp.down_proj.weight": ("blk.0.ffn_down.weight", (SIZE, 128)),
    "model.layers.0.input_layernorm.weight": ("blk.0.attn_norm.weight", (SIZE,)),
    "model.layers.0.post_attention_layernorm.weight": ("blk.0.ffn_norm.weight", (SIZE,)),
    "model.norm.weight": ("output_norm.weight", (SIZE,)),
    "lm_head.weight": ("output.weight", (32, SIZE)),
}


def write_model(folder, config, format="nvfp4", extra=()):
    """A model whose projections are quantized; its tensors."""
    rng = np.random.default_rng(0)
    tensors = {name: rng.normal(size=shape).astype(np.float32) for name, (_, shape) in TENSORS.items()}
    tensors = {name: dlfp4.quantize(x, format) if "_proj.weight" in name else x for name, x in tensors.items()}
    tensors |= {name: rng.normal(size=4).astype(np.float32) for name in extra}
    folder.mkdir()
    checkpoints.save(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(json.dumps(config))
    return tensors


def values_of(x):
    return np.asarray(x.dequantize() if isinstance(x, dlfp4.ScaledTensor) else x)


def permuted(weights, heads):
    """As convert_hf_to_gguf.py of llama.cpp has it."""
    shape = weights.shape
    return weights.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


@pytest.mark.parametrize("format", ["nvfp4", "mxfp4"])
def test_names_and_rows_are_llama_cpp_s_and_come_back(tmp_path, format):
    given = write_model(tmp_path / "made", CONFIG, format)
    outcomes = checkpoints.convert_model(tmp_path / "made", tmp_path / "a.gguf", "gguf")
    assert {outcome.name: outcome.reason for outcome in outcomes} == {
        name: "named as llama.cpp has it" + (", rows permuted" if ".q_proj" in name or ".k_proj" in name else "")
        for name in TENSORS
    }
    reader = gguf.GGUFReader(tmp_path / "a.gguf")
    entries = {entry.name: entry for entry in reader.tensors}
    for name, (theirs, shape) in TENSORS.items():
        entry = entries.pop(theirs)
        values = gguf.quants.dequantize(entry.data, entry.tensor_type).reshape(shape)
        if format == "nvfp4" and "_proj.weight" in name:
            values = values * entries.pop(theirs.replace(".weight", ".scale")).data[0]
        expected = values_of(given[name])
        if ".q_proj" in name or ".k_proj" in name:
            expected = permuted(expected, HEADS if ".q_proj" in name else KV_HEADS)
        np.testing.assert_allclose(values, expected, rtol=2e-7)
    assert not entries
    fields = {key: field.contents() for key, field in reader.fields.items()}
    assert fields["general.architecture"] == "llama"
    described = {
        "block_count": 1, "context_length": 256, "embedding_length": SIZE, "feed_forward_length": 128,
        "vocab_size": 32, "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS, "rope.freq_base": 5e5,
        "rope.dimension_count": 16, "attention.key_length": 16, "attention.value_length": 16,
        "attention.layer_norm_rms_epsilon": float(np.float32(1e-5)),
    }  # fmt: skip
    assert {key: fields.get(f"llama.{key}") for key in described} == described

    checkpoints.convert_model(tmp_path / "a.gguf", tmp_path / "b.safetensors", "dlfp4")
    back = checkpoints.load(tmp_path / "b.safetensors")
    assert back.keys() == given.keys()
    for name, x in given.items():
        np.testing.assert_array_equal(values_of(back[name]), values_of(x))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "gemma2"}, "model_type is 'gemma2'; known are llama, mistral, mixtral, qwen2, qwen3"),
        ({"model_type": ["llama"]}, "model_type is ['llama']"),
        ({"num_hidden_layers": 2**30}, "fewer than the 1073741824 layers"),
        ({"num_hidden_layers": 2**40}, "num_hidden_layers is 1099511627776; expected an integer from 1 to"),
        ({"num_attention_heads": "4"}, "num_attention_heads is '4'; expected an integer"),
        ({"num_key_value_heads": True}, "num_key_value_heads is True"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan; expected a positive number"),
        ({"rope_theta": "big"}, "rope_theta is 'big'"),
        ({"num_attention_heads": 5}, "whose rows are not those of 5 heads"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "its rotary embeddings are scaled"),
        ({"hidden_size": None}, "hidden_size is None"),
    ],
)
def test_names_stay_where_more_than_names_would_change(tmp_path, changes, reason):
    given = write_model(tmp_path / "made", CONFIG | changes)
    outcomes = checkpoints.convert_model(tmp_path / "made", tmp_path / "a.gguf", "gguf")
    for outcome in outcomes:
        assert outcome.reason.startswith("its name stays: ")
        assert reason in outcome.reason
    entries = {entry.name: entry for entry in gguf.GGUFReader(tmp_path / "a.gguf").tensors}
    assert given.keys() <= entries.keys()
    checkpoints.convert_model(tmp_path / "a.gguf", tmp_path / "b.safetensors", "dlfp4")
    assert checkpoints.load(tmp_path / "b.safetensors").keys() == given.keys()


def test_a_tensor_without_a_name_of_llama_cpp_s_keeps_its_own(tmp_path):
    write_model(tmp_path / "made", CONFIG, extra=["model.extra.weight"])
    outcomes = checkpoints.convert_model(tmp_path / "made", tmp_path / "a.gguf", "gguf")
    assert {outcome.name: outcome.reason for outcome in outcomes}["model.extra.weight"] == (
        "its name stays: llama.cpp has none for it"
    )
    names = {entry.name for entry in gguf.GGUFReader(tmp_path / "a.gguf").tensors}
    assert {"model.extra.weight", "blk.0.attn_q.weight"} <= names


@pytest.mark.parametrize("format", ["", "mxfp4"])
def test_rows_of_nothing_are_not_counted(tmp_path, format):
    """There may be more of them than memory holds."""
    write_model(tmp_path / "made", CONFIG, "mxfp4")
    name, empty = "model.layers.0.self_attn.q_proj.weight", np.zeros((2**40, 0), np.float32)
    tensors = checkpoints.load(tmp_path / "made") | {name: dlfp4.quantize(empty, format) if format else empty}
    checkpoints.save(tmp_path / "made" / "model.safetensors", tensors)
    outcomes = checkpoints.convert_model(tmp_path / "made", tmp_path / "a.gguf", "gguf")
    assert {each.name: each.reason for each in outcomes}[name] == "named as llama.cpp has it"
    checkpoints.convert_model(tmp_path / "a.gguf", tmp_path / "back", "dlfp4")
    assert checkpoints.load(tmp_path / "back")[name].shape == (2**40, 0)


def test_a_name_that_is_taken_is_not_given_twice(tmp_path):
    given = write_model(tmp_path / "made", CONFIG, extra=["output_norm.weight"])
    outcomes = checkpoints.convert_model(tmp_path / "made", tmp_path / "a.gguf", "gguf")
    assert {outcome.reason for outcome in outcomes} == {
        "its name stays: two tensors would be called output_norm.weight"
    }
    assert given.keys() <= {entry.name for entry in gguf.GGUFReader(tmp_path / "a.gguf").tensors}


# ---- Experts

COUNT = 3
# By model type: what differs from CONFIG, what holds the experts, their names, and llama.cpp's architecture.
SPARSE = {
    "mixtral": ({"num_local_experts": COUNT}, "block_sparse_moe", ("w1", "w3", "w2"), "llama"),
    "qwen2_moe": (
        {"num_experts": COUNT, "moe_intermediate_size": 192, "shared_expert_intermediate_size": 160},
        "mlp", ("gate_proj", "up_proj", "down_proj"), "qwen2moe",
    ),
    "qwen3_moe": (
        {"num_experts": COUNT, "moe_intermediate_size": 192, "norm_topk_prob": True},
        "mlp", ("gate_proj", "up_proj", "down_proj"), "qwen3moe",
    ),
}  # fmt: skip


def sparse_model(folder, kind, format="nvfp4", changes=()):
    """A model with experts, and its configuration."""
    extra, block, projections, _ = SPARSE[kind]
    rng = np.random.default_rng(1)
    wide = extra.get("moe_intermediate_size", 128)
    place = f"model.layers.0.{block}"
    tensors = {name: rng.normal(size=shape).astype(np.float32) for name, (_, shape) in TENSORS.items()}
    tensors = {name: x for name, x in tensors.items() if ".mlp." not in name}
    tensors[f"{place}.gate.weight"] = rng.normal(size=(COUNT, SIZE)).astype(ml_dtypes.bfloat16)
    for i in range(COUNT):
        for projection in projections:
            shape = (SIZE, wide) if projection == projections[2] else (wide, SIZE)
            x = rng.normal(size=shape).astype(np.float32) * (i + 1)
            tensors[f"{place}.experts.{i}.{projection}.weight"] = dlfp4.quantize(x, format)
    if kind == "qwen2_moe":
        tensors[f"{place}.shared_expert_gate.weight"] = rng.normal(size=(1, SIZE)).astype(np.float16)
        for each, shape in (("gate", (160, SIZE)), ("up", (160, SIZE)), ("down", (SIZE, 160))):
            tensors[f"{place}.shared_expert.{each}_proj.weight"] = rng.normal(size=shape).astype(np.float32)
    config = CONFIG | extra | {"model_type": kind, "num_experts_per_tok": 2} | dict(changes)
    folder.mkdir()
    checkpoints.save(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(json.dumps(config))
    return tensors


@pytest.mark.parametrize("format", ["nvfp4", "mxfp4"])
@pytest.mark.parametrize("kind", SPARSE)
def test_experts_are_stacked_and_taken_apart(tmp_path, kind, format):
    given = sparse_model(tmp_path / "made", kind, format)
    _, block, projections, architecture = SPARSE[kind]
    outcomes = checkpoints.convert_model(tmp_path / "made", tmp_path / "a.gguf", "gguf")
    said = {outcome.name: outcome.reason for outcome in outcomes}
    assert not any("stays" in reason for reason in said.values())
    reader = gguf.GGUFReader(tmp_path / "a.gguf")
    entries = {entry.name: entry for entry in reader.tensors}
    known = gguf.get_tensor_name_map({name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}[architecture], 1)
    for projection, theirs in zip(projections, ("gate", "up", "down"), strict=True):
        names = [f"model.layers.0.{block}.experts.{i}.{projection}.weight" for i in range(COUNT)]
        assert known.get_name(f"model.layers.0.{block}.experts.{projection}") == f"blk.0.ffn_{theirs}_exps"
        assert {said[name] for name in names} == {"named as llama.cpp has it, stacked"}
        expected = np.stack([values_of(given[name]) for name in names])
        entry = entries[f"blk.0.ffn_{theirs}_exps.weight"]
        values = gguf.quants.dequantize(entry.data, entry.tensor_type).reshape(expected.shape)
        if format == "nvfp4":
            values = values * entries[f"blk.0.ffn_{theirs}_exps.scale"].data.reshape(COUNT, 1, 1)
        np.testing.assert_allclose(values, expected, rtol=2e-7)
    router = entries["blk.0.ffn_gate_inp.weight"]
    assert router.tensor_type.name == "F32"
    np.testing.assert_array_equal(router.data, given[f"model.layers.0.{block}.gate.weight"].astype(np.float32))
    if kind == "qwen2_moe":
        assert entries["blk.0.ffn_gate_inp_shexp.weight"].data.shape == (SIZE,)
        assert entries["blk.0.ffn_down_shexp.weight"].data.shape == (SIZE, 160)
    fields = {key: field.contents() for key, field in reader.fields.items()}
    described = {"expert_count": COUNT, "expert_used_count": 2}
    if kind != "mixtral":
        described["expert_feed_forward_length"] = 192
    if kind == "qwen2_moe":
        described["expert_shared_feed_forward_length"] = 160
    assert fields["general.architecture"] == architecture
    assert {key: fields.get(f"{architecture}.{key}") for key in described} == described

    outcomes = checkpoints.convert_model(tmp_path / "a.gguf", tmp_path / "b.safetensors", "dlfp4")
    reasons = {outcome.reason for outcome in outcomes if ".experts." in outcome.name}
    assert reasons == {"named as Hugging Face has it, from a stack"}
    back = checkpoints.load(tmp_path / "b.safetensors")
    assert back.keys() == given.keys()
    for name, x in given.items():
        assert back[name].shape == x.shape
        np.testing.assert_array_equal(values_of(back[name]).astype(np.float32), values_of(x).astype(np.float32))


def without(name):
    return lambda tensors: tensors.pop(name)


def replaced(name, x):
    return lambda tensors: tensors.update({name: x})


EXPERT = "model.layers.0.mlp.experts.1.up_proj.weight"


@pytest.mark.parametrize(
    ("changes", "edit", "reason"),
    [
        ({}, without(EXPERT), f"{EXPERT} is missing"),
        ({}, replaced(EXPERT, np.zeros((192, SIZE), np.float32)), "differ in shape or type"),
        ({}, replaced(EXPERT, dlfp4.quantize(np.ones((64, SIZE), np.float32), "nvfp4")), "differ in shape or type"),
        ({}, replaced("blk.0.ffn_up_exps.weight", np.zeros(4)), "would be called blk.0.ffn_up_exps.weight"),
        ({"num_experts": 10**4}, None, "fewer than the 10000 experts that it should have"),
        ({"num_experts": 10**6}, None, "num_experts is 1000000; expected an integer from 1 to 65536"),
        ({"num_experts": COUNT + 1}, None, "experts.3.gate_proj.weight is missing"),
        ({"norm_topk_prob": False}, None, "norm_topk_prob is False; llama.cpp computes as if it were True"),
        ({"mlp_only_layers": [0]}, None, "some of its layers have no experts"),
        ({"decoder_sparse_step": 2}, None, "some of its layers have no experts"),
        ({"num_experts_per_tok": 0}, None, "num_experts_per_tok is 0"),
    ],
)
def test_experts_that_are_no_stacks_keep_all_names(tmp_path, changes, edit, reason):
    given = sparse_model(tmp_path / "made", "qwen3_moe", changes=changes)
    if edit:
        edit(given)
        checkpoints.save(tmp_path / "made" / "model.safetensors", given)
    outcomes = checkpoints.convert_model(tmp_path / "made", tmp_path / "a.gguf", "gguf")
    assert {outcome.name for outcome in outcomes} == given.keys()
    assert all(outcome.reason.startswith("its name stays: ") for outcome in outcomes)
    assert all(reason in outcome.reason for outcome in outcomes)
    assert given.keys() <= {entry.name for entry in gguf.GGUFReader(tmp_path / "a.gguf").tensors}


def test_a_stack_of_another_number_of_experts_stays(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "qwen3moe")
    writer.add_block_count(1)
    writer.add_head_count(2)
    writer.add_expert_count(4)
    writer.add_tensor("blk.0.ffn_up_exps.weight", np.zeros((3, 8, 32), np.float32))
    writer.add_tensor("output_norm.weight", np.zeros(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    outcomes = checkpoints.convert_model(tmp_path / "a.gguf", tmp_path / "b.safetensors", "dlfp4")
    reason = "its name stays: blk.0.ffn_up_exps.weight has shape (3, 8, 32), which is not a stack of 4 experts"
    assert {outcome.reason for outcome in outcomes} == {reason}


# ---- A loader

PROGRAM = """
import sys, torch, transformers
from pathlib import Path
from transformers import AutoModelForCausalLM
from dlfp4 import checkpoints

transformers.logging.set_verbosity_error()
torch.manual_seed(0)
SMALL = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 64}
for number, config in enumerate((
    transformers.LlamaConfig(**SMALL, tie_word_embeddings=False, rope_theta=3e4),
    transformers.LlamaConfig(**SMALL, tie_word_embeddings=True),
    transformers.MistralConfig(**SMALL, head_dim=32),
    transformers.Qwen2Config(**SMALL),
    transformers.Qwen3Config(**SMALL, head_dim=128),
    # Its loader takes the other counts of experts' rows for the default ones.
    transformers.Qwen2MoeConfig(**SMALL, num_experts=4, num_experts_per_tok=2),
    transformers.Qwen3MoeConfig(**SMALL, head_dim=128, num_experts=4, num_experts_per_tok=2, norm_topk_prob=True),
)):
    place = Path(sys.argv[1]) / str(number)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for parameter in model.parameters():  # zeros and ones would hide a wrong order
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(place / "made")
    checkpoints.quantize_model(place / "made", place / "quantized", "mxfp4", convention="compressed-tensors")
    checkpoints.convert_model(place / "quantized", place / "model.gguf", "gguf")
    loaded = AutoModelForCausalLM.from_pretrained(place, gguf_file="model.gguf", dtype=torch.float32)
    tensors = checkpoints.load(place / "quantized").items()
    tensors = {name: x.dequantize() if hasattr(x, "dequantize") else x for name, x in tensors}
    checkpoints.save(place / "made" / "model.safetensors", tensors, {"format": "pt"})
    expected = AutoModelForCausalLM.from_pretrained(place / "made", dtype=torch.float32)
    tokens = torch.arange(16)[None]
    assert torch.equal(expected(tokens).logits, loaded(tokens).logits), config.model_type
"""


@pytest.mark.skipif(
    any(find_spec(name) is None for name in ("torch", "transformers", "accelerate")),
    reason="transformers not installed",
)
def test_transformers_loads_it_with_the_same_products(tmp_path):
    command = [sys.executable, "-P", "-c", PROGRAM, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
