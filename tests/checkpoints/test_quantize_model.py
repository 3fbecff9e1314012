"""Whole models: what a folder becomes, how a run is continued, what stops it, and who runs it."""

import concurrent.futures
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

import dlfp4
from dlfp4 import checkpoints
from dlfp4.checkpoints import commands, quantizing

from ..support.command_line import command_line

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


@pytest.fixture
def model(tmp_path):
    """A folder of three files, an embedding in the first and an output head in the last."""
    folder = tmp_path / "model"
    (folder / "more").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / ".git" / "objects").write_text("")
    tensors = [weights(number) for number in range(3)]
    tensors[0]["model.embed_tokens.weight"] = np.ones((64, 128), np.float32)
    tensors[2]["lm_head.weight"] = np.ones((64, 128), np.float32)
    for name, each in zip(SHARDS, tensors, strict=True):
        checkpoints.save(folder / name, each, {"format": "pt"})
    places = {name: shard for shard, each in zip(SHARDS, tensors, strict=True) for name in each}
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 1, "kind": "x"}, "weight_map": places}))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "name": "Größe"}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "more" / "notes.txt").write_text("notes")
    (folder / "pytorch_model.bin").write_bytes(b"other weights")
    return folder


@pytest.fixture
def target(tmp_path):
    return tmp_path / "out"


def contents(folder):
    """What a folder holds, by path, without the book."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".dlfp4.json"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_a_folder(model, target):
    outcomes = checkpoints.quantize_model(model, target, "nvfp4", convention="compressed-tensors")
    assert set(contents(target)) == {*SHARDS, INDEX, "config.json", "tokenizer.json", "more/notes.txt"}
    quantized = {outcome.name for outcome in outcomes if outcome.format}
    assert quantized == {f"model.layers.{k}.mlp.{name}_proj.weight" for k in range(3) for name in ("up", "down")}
    assert [outcome.name for outcome in outcomes] == [
        name for shard in SHARDS for name in checkpoints.load(model / shard)
    ]
    loaded = checkpoints.load(target)
    for name, x in checkpoints.load(model).items():
        if name in quantized:
            expected = dlfp4.quantize(x, "nvfp4")
            np.testing.assert_array_equal(loaded[name].dequantize().to_numpy(), expected.dequantize().to_numpy())
        else:
            np.testing.assert_array_equal(loaded[name].to_numpy(), x.to_numpy())
    assert checkpoints.read_metadata(target / SHARDS[1]) == {"format": "pt"}
    index = json.loads((target / INDEX).read_text())
    assert index["metadata"] == {
        "kind": "x", "total_size": sum(x.nbytes for x in checkpoints.load(target, join=False).values())
    }  # fmt: skip
    config = json.loads((target / "config.json").read_text())
    assert config["model_type"] == "llama"
    assert config["name"] == "Größe"
    assert config["quantization_config"]["format"] == "nvfp4-pack-quantized"
    assert config["quantization_config"]["ignore"] == ["lm_head", "model.embed_tokens"]


@pytest.mark.parametrize("pow2", [False, True])
def test_the_configuration_says_that_scales_are_powers_of_two(model, target, pow2):
    again = target.with_name("again")
    checkpoints.quantize_model(model, target, "fp8_128x128", convention="deepseek", recipe=dlfp4.Recipe(pow2=pow2))
    checkpoints.convert_model(target, again, "deepseek")
    for folder in (target, again):
        said = json.loads((folder / "config.json").read_text())["quantization_config"]
        assert said.get("scale_fmt") == ("ue8m0" if pow2 else None)


@pytest.mark.parametrize("zero", [8, 7])
def test_gptq_says_whether_all_zero_points_are_8(model, target, zero):
    """Marlin's kernels read none, and GPTQModel refuses others' files that do not say it."""
    again, back = target.with_name("again"), target.with_name("back")
    checkpoints.quantize_model(model, target, "int4_g32", convention="compressed-tensors")
    checkpoints.convert_model(target, again, "gptq")  # from symmetric codes with a sign
    path = again / SHARDS[0]
    tensors = checkpoints.load(path, join=False)
    name = next(name for name in tensors if name.endswith(".qzeros"))
    stored = tensors[name].to_numpy().copy()
    assert (stored.view(np.uint8) == 0x77).all()
    stored.view(np.uint8)[0, 0] = 0x70 | (zero - 1)
    checkpoints.save(path, {**tensors, name: stored}, checkpoints.read_metadata(path), convention=None)
    checkpoints.convert_model(again, back, "gptq")
    for folder, symmetric in ((again, True), (back, zero == 8)):
        said = json.loads((folder / "config.json").read_text())["quantization_config"]
        assert said["sym"] is symmetric


@pytest.mark.parametrize("convention", ["compressed-tensors", "modelopt"])
@pytest.mark.parametrize("said", [{"dtype": "float32"}, {"torch_dtype": "float16"}, {"dtype": "bfloat16"}, {}])
@pytest.mark.parametrize("format", ["nvfp4", "mxfp4", "mxfp8_e4m3", "fp8_row"])
def test_a_model_has_the_type_to_which_loaders_decode(model, target, format, said, convention):
    """Those of compressed-tensors decode to bfloat16, by which they cannot multiply in other types."""
    again = target.with_name("again")
    (model / "config.json").write_text(json.dumps({"model_type": "llama", **said}))
    first = checkpoints.quantize_model(model, target, format, convention="modelopt")
    second = checkpoints.quantize_model(model, target.with_name("b"), format, convention=convention)
    third = checkpoints.convert_model(target, again, convention)
    changes = convention == "compressed-tensors" and format != "fp8_row"
    expected = dict.fromkeys(said or ["dtype"], "bfloat16") if changes else said
    for folder in (target.with_name("b"), again):
        config = json.loads((folder / "config.json").read_text())
        assert {key: config[key] for key in ("dtype", "torch_dtype") if key in config} == expected
    word = "; config.json says bfloat16 instead of " + "".join(said.values()) + ", as loaders decode to it"
    told = word.removeprefix("; ") if changes and "bfloat16" not in said.values() and said else ""
    assert {each.reason for outcomes in (second, third) for each in outcomes if each.format} == {told}
    assert not any(each.reason for each in first if each.format)


@pytest.mark.parametrize(
    ("convention", "format", "types"),
    [
        ("compressed-tensors", "int4_g32", ("bfloat16", "float32")),
        ("compressed-tensors", "uint4_row", ("bfloat16", "float32")),
        ("mlx", "uint4_g32", ("bfloat16", "float32")),
        ("gptq", "uint4_g32", ("float16", "float16")),
        ("awq", "uint4_g32", ("float16", "float16")),
        ("compressed-tensors", "fp8_row", ("bfloat16", "bfloat16")),
        ("compressed-tensors", "fp8_e4m3", ("bfloat16", "bfloat16")),
        ("compressed-tensors", "fp8_128x128", ("bfloat16", "bfloat16")),
        ("modelopt", "fp8_e4m3", ("float32", "float32")),
    ],
)
def test_scales_have_the_type_in_which_loaders_multiply(model, target, convention, format, types):
    checkpoints.quantize_model(model, target, format, convention=convention)
    scales = {name: q.scales.dtype.name for name, q in checkpoints.load(target).items() if hasattr(q, "format")}
    assert len(scales) == 6
    for name, dtype in scales.items():
        assert dtype == types["down_proj" in name]  # up_proj is bfloat16, down_proj float32


@pytest.mark.parametrize(
    ("file", "content", "method"),
    [
        ("config.json", {"quantization_config": {"quant_method": "awq"}}, "awq"),
        ("config.json", {"quantization": {"bits": 4}}, "mlx"),
        ("hf_quant_config.json", {}, "modelopt"),
        ("quantize_config.json", {}, "gptq"),
        ("quant_config.json", {}, "awq"),
    ],
)
def test_a_model_that_says_it_is_quantized_gets_no_second_convention(model, target, file, content, method):
    (model / file).write_text(json.dumps(content))
    with pytest.raises(ValueError, match=f"{file} says that the model is quantized already, by '{method}'"):
        checkpoints.quantize_model(model, target, "nvfp4", convention="compressed-tensors")
    assert not target.exists()
    (model / file).write_text(json.dumps({"quantization_config": None}))
    if file == "config.json":
        checkpoints.quantize_model(model, target, "nvfp4", convention="compressed-tensors")


def test_phimoe_keeps_its_routers_by_both_names(model, target):
    """transformers' routers are linear layers called otherwise than in files; it would look for their scales."""
    router = np.ones((4, 64), np.float32)
    checkpoints.save(model / "more.safetensors", {"model.layers.0.block_sparse_moe.gate.weight": router})
    index = model / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["model.layers.0.block_sparse_moe.gate.weight"] = "more.safetensors"
    index.write_text(json.dumps(content))
    checkpoints.quantize_model(model, target, "int4_g32", convention="compressed-tensors")
    ignored = json.loads((target / "config.json").read_text())["quantization_config"]["ignore"]
    assert {"model.layers.0.block_sparse_moe.gate", "model.layers.0.mlp.router"} <= set(ignored)


def test_a_file_holds_what_save_writes(model, target):
    checkpoints.quantize_model(model / SHARDS[0], target, "mxfp8_e4m3")
    tensors = checkpoints.load(model / SHARDS[0])
    for name in tensors:
        if "proj" in name:
            tensors[name] = dlfp4.quantize(tensors[name], "mxfp8_e4m3")
    checkpoints.save(f"{target}.expected", tensors, {"format": "pt"})
    assert target.read_bytes() == target.with_suffix(".expected").read_bytes()


@pytest.mark.parametrize("path", [INDEX, ""])
def test_modelopt_and_a_model_without_config(model, target, path):
    (model / "config.json").unlink()
    checkpoints.quantize_model(model / path, target, "nvfp4", convention="modelopt", exclude=["re:.*down_proj"])
    assert not (target / "config.json").exists()
    config = json.loads((target / "hf_quant_config.json").read_text())["quantization"]
    assert (config["quant_algo"], config["group_size"]) == ("W4A16_NVFP4", 16)
    assert config["exclude_modules"] == [
        "lm_head", "model.embed_tokens", *(f"model.layers.{number}.mlp.down_proj" for number in range(3))
    ]  # fmt: skip


def test_dlfp4s_own_convention_leaves_the_configuration(model, target):
    checkpoints.quantize_model(model, target, "nvfp4_16x16")
    assert json.loads((target / "config.json").read_text()) == json.loads((model / "config.json").read_text())
    assert {x.format.name for x in checkpoints.load(target).values() if hasattr(x, "format")} == {"nvfp4_16x16"}


def test_one_file_in_a_folder_needs_no_index(model, target):
    for name in (*SHARDS[1:], INDEX):
        (model / name).unlink()
    (model / SHARDS[0]).rename(model / "model.safetensors")
    checkpoints.quantize_model(model, target, "mxfp4")
    assert set(contents(target)) == {"model.safetensors", "config.json", "tokenizer.json", "more/notes.txt"}


def test_scales_in_another_file_are_kept(tmp_path, target):
    """Bytes of an unknown convention, in one file, and their scales in the other."""
    model = tmp_path / "model"
    model.mkdir()
    codes = np.random.default_rng(0).integers(0, 1 << 31, (64, 16), np.int32)
    scales = np.ones((64, 32), ml_dtypes.bfloat16)
    checkpoints.save(model / "1.safetensors", {"e.weight_packed": codes})
    checkpoints.save(
        model / "2.safetensors", {"e.weight_scale": scales, "up_proj.weight": np.ones((32, 32), np.float32)}
    )
    outcomes = checkpoints.quantize_model(model, target, "mxfp4", convention="modelopt")
    assert [outcome.name for outcome in outcomes if outcome.format] == ["up_proj.weight"]
    loaded = checkpoints.load(target, join=False)
    assert loaded["e.weight_packed"].to_numpy().tobytes() == codes.tobytes()
    assert loaded["e.weight_scale"].to_numpy().tobytes() == scales.tobytes()


@pytest.mark.parametrize(
    ("convention", "format", "quantized"),
    [
        ("compressed-tensors", "nvfp4", {"q_proj.weight"}),
        ("compressed-tensors", "int4_g32", {"q_proj.weight"}),
        ("deepseek", "fp8_e4m3", {"q_proj.weight"}),
        ("awq", "uint4_g32", {"q_proj.weight"}),
        ("gptq", "uint4_g32", {"q_proj.weight", "c_attn.weight"}),  # whose loaders take GPT-2's matrices
        ("modelopt", "nvfp4", {"q_proj.weight", "experts.gate_up_proj", "experts.down_proj"}),
        (
            None,
            "nvfp4",
            {"q_proj.weight", "experts.gate_up_proj", "experts.down_proj", "c_attn.weight", "in_proj_weight"},
        ),
    ],
)
def test_what_loaders_do_not_look_for_is_kept(tmp_path, convention, format, quantized):
    """They leave what they do not find to chance: stacks of experts, matrices that are transposed or of no module."""
    rng = np.random.default_rng(0)
    tensors = {
        "layers.0.q_proj.weight": rng.normal(size=(64, 64)),
        "layers.0.experts.gate_up_proj": rng.normal(size=(2, 64, 128)),
        "layers.0.experts.down_proj": rng.normal(size=(2, 64, 64)),
        "layers.0.c_attn.weight": rng.normal(size=(64, 96)),
        "layers.0.c_attn.bias": rng.normal(size=96),
        "layers.0.in_proj_weight": rng.normal(size=(192, 64)),
    }
    (tmp_path / "a").mkdir()
    checkpoints.save(tmp_path / "a" / "model.safetensors", {name: x.astype(np.float32) for name, x in tensors.items()})
    outcomes = checkpoints.quantize_model(tmp_path / "a", tmp_path / "b", format, convention=convention)
    assert {o.name.removeprefix("layers.0.") for o in outcomes if o.format} == quantized
    loaded = checkpoints.load(tmp_path / "b")
    for outcome in outcomes:
        if not outcome.format:
            assert outcome.name.endswith("bias") or outcome.reason.endswith("include names it")
            assert loaded[outcome.name].to_numpy().tobytes() == tensors[outcome.name].astype(np.float32).tobytes()
    if convention == "compressed-tensors" and format == "nvfp4":
        for name, options in (("c", {"include": ["experts"]}), ("d", {"axis": -2})):
            again = checkpoints.quantize_model(
                tmp_path / "a", tmp_path / name, format, convention=convention, **options
            )
            assert {o.name for o in again if o.format} >= {
                "layers.0.experts.gate_up_proj", "layers.0.experts.down_proj"
            }  # fmt: skip


@pytest.mark.parametrize("exclude", [(), ("experts",)])
def test_llama_4_has_its_experts_one_by_one(tmp_path, exclude):
    """By compressed-tensors alone, quantized or kept: its loaders have a module for each."""
    rng, start = np.random.default_rng(0), "language_model.model.layers.0.feed_forward.experts"
    up = rng.normal(size=(3, 64, 2 * 96)).astype(ml_dtypes.bfloat16)
    down = rng.normal(size=(3, 96, 64)).astype(ml_dtypes.bfloat16)
    (tmp_path / "a").mkdir()
    checkpoints.save(tmp_path / "a" / "1.safetensors", {f"{start}.gate_up_proj": up})
    checkpoints.save(tmp_path / "a" / "2.safetensors", {f"{start}.down_proj": down, "other.weight": down[0]})
    expected = {"other.weight": down[0]}
    for number in range(3):
        expected |= {
            f"{start}.{number}.gate_proj.weight": up[number].T[:96],
            f"{start}.{number}.up_proj.weight": up[number].T[96:],
            f"{start}.{number}.down_proj.weight": down[number].T,
        }
    options = {"convention": "compressed-tensors", "exclude": exclude}
    checkpoints.quantize_model(tmp_path / "a", tmp_path / "b", "fp8_128x128", **options)
    loaded = checkpoints.load(tmp_path / "b")
    assert loaded.keys() == expected.keys()
    for name, x in expected.items():
        x = np.ascontiguousarray(x)
        if exclude and "experts" in name:
            assert loaded[name].to_numpy().tobytes() == x.tobytes()
        else:
            q = dlfp4.quantize(x, "fp8_128x128")
            assert loaded[name].dequantize().to_numpy().tobytes() == q.dequantize().to_numpy().tobytes()
    index = json.loads((tmp_path / "b" / INDEX).read_text())["weight_map"]
    assert index[f"{start}.2.up_proj.weight" + ("" if exclude else "_scale")] == "1.safetensors"
    checkpoints.quantize_model(tmp_path / "a", tmp_path / "c", "nvfp4", convention="modelopt")
    assert checkpoints.load(tmp_path / "c")[f"{start}.gate_up_proj"].shape == (3, 2 * 96, 64)


@pytest.mark.parametrize("jobs", ["0", "-3", "1.5", "two", ""])
def test_jobs_are_one_or_more(model, tmp_path, jobs):
    done = command_line("quantize", model, "-o", tmp_path / "out", "--format", "nvfp4", f"--jobs={jobs}")
    assert done.returncode == 2
    assert f"argument --jobs: {jobs!r} is no whole number from 1 on" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("model_type", "heads"), [("whisper", ["lm_head", "proj_out"]), ("luke", ["entity_predictions.decoder", "lm_head",
     "lm_head.decoder"]), ("git", ["lm_head", "output"]), ("llama", ["lm_head"]), (None, ["lm_head"])],
)  # fmt: skip
def test_heads_that_no_file_has_are_ignored(tmp_path, model_type, heads):
    """Loaders would look for their scales, whatever the model calls them."""
    (tmp_path / "a").mkdir()
    tensors = {"model.embed.weight": np.ones((64, 32), "f4"), "model.output.fc1.weight": np.ones((32, 32), "f4")}
    checkpoints.save(tmp_path / "a" / "model.safetensors", tensors)
    (tmp_path / "a" / "config.json").write_text(json.dumps({"model_type": model_type}))
    checkpoints.quantize_model(tmp_path / "a", tmp_path / "b", "mxfp4", convention="compressed-tensors")
    checkpoints.convert_model(tmp_path / "b", tmp_path / "c", "modelopt")
    for path, key in (("b", "ignore"), ("c", "ignore")):
        config = json.loads((tmp_path / path / "config.json").read_text())["quantization_config"]
        assert config[key] == sorted([*heads, "model.embed"])


def skips_by_substring(section, layer):  # AWQ in vLLM
    return any(each in layer for each in section["modules_to_not_convert"])


def skips_by_name(names, layer):  # DeepSeek's FP8 and ModelOpt in vLLM
    return any(layer in each for each in names) if "experts" in layer else layer in names


def skips_by_patterns(section, layer):  # GPTQ in vLLM, SGLang and GPTQModel
    for pattern in section["dynamic"]:
        if re.match(pattern.removeprefix("-:").removeprefix("+:"), layer):
            return pattern.startswith("-:")
    return False


def skips_by_blocks(section, layer):  # in transformers, by optimum: the layers in blocks alone
    (ends,) = section["modules_in_block_to_quantize"]
    return "layers" not in layer or not layer.endswith(tuple(ends))


def skips_by_expressions(section, layer):  # compressed-tensors, in vLLM: the first of the experts
    name = f"{layer}.0.gate_proj" if layer.endswith("experts") else layer
    return any(
        re.match(each.removeprefix("re:"), name) if each.startswith("re:") else each == name
        for each in section["ignore"]
    )


SKIPS = [
    ("awq", "uint4_g32", skips_by_substring),
    ("gptq", "uint4_g32", skips_by_patterns),
    ("gptq", "uint4_g32", skips_by_blocks),
    ("deepseek", "fp8_128x128", lambda section, layer: skips_by_name(section["modules_to_not_convert"], layer)),
    ("modelopt", "nvfp4", lambda section, layer: skips_by_name(section["ignore"], layer)),
    ("compressed-tensors", "nvfp4", skips_by_expressions),
]


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize(("convention", "format", "skips"), SKIPS)
def test_loaders_find_what_is_kept(tmp_path, convention, format, skips, stacked):
    """By the rules of each: layers that are excluded, routers, and all experts of a layer, one by one or as a stack."""
    weight, experts = np.ones((128, 128), "f4"), "model.layers.11.mlp.experts"
    linear = [f"model.layers.{k}.{own}" for k in (1, 11) for own in ("self_attn.q_proj", "mlp.down_proj")]
    one_by_one = [f"model.layers.1.mlp.experts.{k}.{own}_proj" for k in (0, 1) for own in ("gate", "up", "down")]
    routers = [f"model.layers.{k}.mlp.gate" for k in (1, 11)]
    tensors = {f"{name}.weight": weight for name in (*linear, *one_by_one, *routers, "lm_head")}
    if stacked:
        tensors |= {f"{experts}.{own}_proj": np.ones((2, 128, 128), "f4") for own in ("gate_up", "down")}
    else:
        tensors |= {f"{name}.weight".replace("layers.1.", "layers.11."): weight for name in one_by_one}
    (tmp_path / "a").mkdir()
    checkpoints.save(tmp_path / "a" / "model.safetensors", tensors)
    (tmp_path / "a" / "config.json").write_text('{"model_type": "llama"}')
    exclude = [experts, "model.layers.11.mlp.down_proj"]
    checkpoints.quantize_model(tmp_path / "a", tmp_path / "b", format, convention=convention, exclude=exclude)
    section = json.loads((tmp_path / "b" / "config.json").read_text())["quantization_config"]
    quantized = {*linear[:3], *([] if skips is skips_by_blocks else ["model.layers.1.mlp.experts"])}
    for layer in {*linear, *routers, "lm_head", experts, *quantized}:
        assert bool(skips(section, layer)) is (layer not in quantized), layer
    checkpoints.convert_model(tmp_path / "b", tmp_path / "c", convention)
    assert json.loads((tmp_path / "c" / "config.json").read_text())["quantization_config"] == section


def test_a_head_that_is_quantized_is_not_ignored(tmp_path):
    (tmp_path / "a").mkdir()
    checkpoints.save(tmp_path / "a" / "model.safetensors", {"proj_out.weight": np.ones((64, 32), "f4")})
    (tmp_path / "a" / "config.json").write_text('{"model_type": "whisper"}')
    options = {"convention": "compressed-tensors", "include_heads": True}
    checkpoints.quantize_model(tmp_path / "a", tmp_path / "b", "mxfp4", **options)
    config = json.loads((tmp_path / "b" / "config.json").read_text())["quantization_config"]
    assert config["ignore"] == ["lm_head"]


def test_what_a_loader_forgets_is_said(tmp_path):
    """Experts' NVFP4 in transformers: the model runs, with other values."""
    names = [f"model.layers.0.mlp.{own}.weight" for own in ("experts.3.up_proj", "shared.up_proj")]
    checkpoints.save(tmp_path / "a", {name: np.ones((32, 32), "f4") for name in names})
    word = "transformers 5.24 forgets the global scales of experts"
    for format, convention, said in (
        ("nvfp4", "compressed-tensors", word),
        ("mxfp4", "compressed-tensors", ""),
        ("nvfp4", "modelopt", ""),
    ):
        outcomes = checkpoints.quantize_model(tmp_path / "a", tmp_path / convention, format, convention=convention)
        assert [(each.format, each.reason) for each in outcomes] == [(format, said), (format, "")]
    outcomes = checkpoints.convert_model(tmp_path / "modelopt", tmp_path / "b", "compressed-tensors")
    assert [each.reason for each in outcomes] == [word, ""]


def test_gpt_oss_has_quantized_experts_alone(tmp_path):
    """They are stored as (experts, out, in), whatever their shapes tell, unless they are named."""
    experts, query = "model.layers.0.mlp.experts.down_proj", "model.layers.0.self_attn.q_proj.weight"
    tensors = {
        experts: np.random.default_rng(0).normal(size=(2, 64, 64)).astype(np.float32),
        query: np.ones((64, 64), "f4"),
    }
    checkpoints.save(tmp_path / "a", tensors)
    outcomes = checkpoints.quantize_model(tmp_path / "a", tmp_path / "b", "mxfp4", convention="gpt-oss")
    assert {outcome.name: outcome.format for outcome in outcomes} == {experts: "mxfp4", query: ""}
    expected = dlfp4.quantize(np.ascontiguousarray(tensors[experts].transpose(0, 2, 1)), "mxfp4")
    loaded = checkpoints.load(tmp_path / "b")
    np.testing.assert_array_equal(loaded[experts].dequantize().to_numpy(), expected.dequantize().to_numpy())
    outcomes = checkpoints.quantize_model(
        tmp_path / "a", tmp_path / "b", "mxfp4", convention="gpt-oss", include=["q_proj"]
    )
    assert {outcome.name: outcome.format for outcome in outcomes} == {experts: "", query: "mxfp4"}


@pytest.mark.parametrize(
    ("format", "recipe"),
    [
        ("fp8_row", {"scale_dtype": "bfloat16"}),
        ("fp8_128x128", {"scale_dtype": "float8_e8m0fnu"}),
        ("nvfp4", {"global_scale_per": "row"}),
        ("nvfp4", {"global_scale_per": "matrix"}),
    ],
)
def test_recipes_that_change_the_parts(tmp_path, format, recipe):
    x = np.random.default_rng(0).normal(size=(3, 128, 128)).astype(np.float32)
    names = [f"mlp.{name}_proj.weight" for name in ("gate", "up")]  # which share a global scale, if they have one each
    checkpoints.save(tmp_path / "a", {"experts.down_proj": x, **dict.fromkeys(names, x[0])})
    checkpoints.quantize_model(tmp_path / "a", tmp_path / "b", format, recipe=dlfp4.Recipe(**recipe))
    if recipe == {"global_scale_per": "matrix"}:
        flat = dlfp4.quantize(x[0], format)
    else:
        flat = dlfp4.quantize(x[0], format, recipe=dlfp4.Recipe(**recipe))
    stack = dlfp4.quantize(x, format, recipe=dlfp4.Recipe(**recipe))
    checkpoints.save(tmp_path / "c", {"experts.down_proj": stack, **dict.fromkeys(names, flat)})
    assert (tmp_path / "b").read_bytes() == (tmp_path / "c").read_bytes()


def test_what_is_no_file_is_not_carried_over(model, target, capsys):
    """A link to nothing ends no run, a pipe hangs none; the summary names them."""
    (model / "gone.txt").symlink_to(model / "nothing")
    (model / "assets").symlink_to(model.parent)
    os.mkfifo(model / "pipe")
    (model / "license.txt").symlink_to(model / "config.json")
    assert commands.quantize(str(model), str(target), jobs=1, format="mxfp4") == 0
    assert "not carried over, as they are no files: assets, gone.txt, pipe" in capsys.readouterr().out
    assert not {"gone.txt", "assets", "pipe"} & {path.name for path in target.iterdir()}
    assert (target / "license.txt").read_bytes() == (model / "config.json").read_bytes()


def test_files_of_an_index_in_folders_below_it(model, target, capsys):
    """They become files beside the index, and are no other weights."""
    (model / "parts").mkdir()
    for name in SHARDS:
        (model / name).rename(model / "parts" / name)
    index = model / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"] = {name: f"parts/{file}" for name, file in content["weight_map"].items()}
    index.write_text(json.dumps(content))
    assert commands.quantize(str(model), str(target), jobs=1, format="mxfp4") == 0
    assert "not carried over, as they hold other weights: pytorch_model.bin\n" in capsys.readouterr().out
    assert set(SHARDS) <= {path.name for path in target.iterdir()}
    assert set(json.loads((target / index.name).read_text())["weight_map"].values()) == set(SHARDS)


# ---- A run that was ended


def test_finished_files_are_kept(model, target, monkeypatch):
    checkpoints.quantize_model(model, target, "mxfp4")
    before = contents(target)
    stamps = {name: (target / name).stat().st_ino for name in SHARDS}
    (target / SHARDS[1]).unlink()
    (target / SHARDS[2]).write_bytes(b"damaged")
    told = []
    outcomes = checkpoints.quantize_model(model, target, "mxfp4", report=lambda *what: told.append(what))
    assert (target / SHARDS[0]).stat().st_ino == stamps[SHARDS[0]]
    assert contents(target) == before
    assert len(told) == 7  # of two files
    assert len(outcomes) == 11
    assert all(isinstance(outcome.shape, tuple) for outcome in outcomes)


def test_a_killed_run_leaves_no_half_file_and_is_continued(model, target, tmp_path):
    checkpoints.quantize_model(model, tmp_path / "whole", "mxfp4")
    program = (
        "import os, signal, sys; from dlfp4 import checkpoints\n"
        "def report(name, done, total):\n"
        "    if done == 6: os.kill(os.getpid(), signal.SIGKILL)\n"
        "checkpoints.quantize_model(sys.argv[1], sys.argv[2], 'mxfp4', report=report)"
    )
    killed = subprocess.run([sys.executable, "-P", "-c", program, model, target], check=False, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    assert {path.name for path in target.iterdir()} == {SHARDS[0], ".dlfp4.json"}  # 4 tensors, then 2 of the next
    inode = (target / SHARDS[0]).stat().st_ino
    checkpoints.quantize_model(model, target, "mxfp4")
    assert (target / SHARDS[0]).stat().st_ino == inode
    assert contents(target) == contents(tmp_path / "whole")


@pytest.mark.parametrize("entry", ["text", {}, {"outcomes": 3}, {"outcomes": [3]}, {"outcomes": [{"name": "w"}]}])
def test_a_damaged_book_is_named(model, target, entry):
    checkpoints.quantize_model(model, target, "mxfp4")
    book = json.loads((target / ".dlfp4.json").read_text())
    stamp = {"is": book["files"][SHARDS[0]]["is"]} if isinstance(entry, dict) else {}
    book["files"][SHARDS[0]] = stamp | entry if stamp else entry
    (target / ".dlfp4.json").write_text(json.dumps(book))
    with pytest.raises(ValueError, match=r"\.dlfp4\.json is damaged .*; name a new folder, or remove this one"):
        checkpoints.quantize_model(model, target, "mxfp4")


@pytest.mark.parametrize("options", [{"format": "mxfp4"}, {"exclude": ["re:.*down_proj"]}, {"convention": "modelopt"}])
def test_a_folder_of_other_options_is_left_alone(model, target, options):
    checkpoints.quantize_model(model, target, "nvfp4")
    before = contents(target)
    with pytest.raises(ValueError, match="was made from another model, by another dlfp4 or with other options"):
        checkpoints.quantize_model(model, target, **({"format": "nvfp4"} | options))
    os.utime(model / SHARDS[0], (1, 1))
    with pytest.raises(ValueError, match="was made from another model"):
        checkpoints.quantize_model(model, target, "nvfp4")
    assert contents(target) == before


# ---- What stops a run


@pytest.mark.parametrize("format", ["nvfp4", "fp8_128x128"])
def test_the_model_itself_and_folders_of_others_are_left_alone(model, target, format):
    before = contents(model)
    link = model.parent / "link"
    link.symlink_to(model)
    for place in (model, link, model / "more" / ".."):
        with pytest.raises(ValueError, match="holds the model itself"):
            checkpoints.quantize_model(model, place, format)
    target.mkdir()
    (target / "precious").write_text("")
    with pytest.raises(ValueError, match="out has other files, precious"):
        checkpoints.quantize_model(model, target, format)
    with pytest.raises(NotADirectoryError, match="precious"):
        checkpoints.quantize_model(model, target / "precious", format)
    with pytest.raises(FileNotFoundError, match=re.escape(str(target / "no"))):
        checkpoints.quantize_model(model, target / "no" / "out", format)
    assert contents(model) == before
    assert set(contents(target)) == {"precious"}


def test_a_model_that_is_quantized_already_is_not_given_two_conventions(model, target):
    config = {"quantization_config": {"quant_method": "fp8"}}
    (model / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"config.json says that the model is quantized already, by 'fp8'"):
        checkpoints.quantize_model(model, target, "nvfp4", convention="modelopt")
    assert not target.exists()
    checkpoints.quantize_model(model, target, "nvfp4")
    assert json.loads((target / "config.json").read_text()) == config


def test_two_parts_of_one_name_in_two_files(tmp_path, target):
    model = tmp_path / "model"
    model.mkdir()
    checkpoints.save(model / "1.safetensors", {"up_proj.weight": np.ones((32, 32), np.float32)})
    checkpoints.save(model / "2.safetensors", {"up_proj.weight_packed": np.ones(3, np.uint8)})
    with pytest.raises(ValueError, match=r"up_proj.weight_packed is doubled: it lies in .*1.safetensors and in .*2"):
        checkpoints.quantize_model(model, target, "mxfp4", convention="compressed-tensors")
    assert not target.exists()


def test_a_full_disk_names_the_file_and_leaves_the_old_ones(model, target):
    """Files may grow to 60 kB: enough for the first of these, not for a kept embedding."""
    checkpoints.save(target, {"old": np.ones(3)})
    before = target.read_bytes()
    program = (
        "import resource, sys; from dlfp4 import checkpoints\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "try: checkpoints.quantize_model(*sys.argv[1:], 'nvfp4')\n"
        "except OSError as error: print(error.filename)"
    )
    for source, place, wrong in ((model / SHARDS[0], target, target), (model, f"{target}s", f"{target}s/{SHARDS[0]}")):
        done = subprocess.run(
            [sys.executable, "-P", "-c", program, source, place],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        assert done.stdout.strip() == str(wrong)
    assert target.read_bytes() == before
    assert [path.name for path in target.parent.iterdir() if path.name.endswith(".tmp")] == []
    assert os.listdir(f"{target}s") == [".dlfp4.json"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(model, target):
    target.mkdir(0o500)
    with pytest.raises(PermissionError, match="out"):
        checkpoints.quantize_model(model, target, "nvfp4")


def test_an_interrupt_leaves_the_old_file(model, target):
    checkpoints.save(target, {"old": np.ones(3)})
    before = target.read_bytes()

    def interrupt(name, done, total):
        raise KeyboardInterrupt

    for source, place in ((model / SHARDS[0], target), (model, target.with_name("folder"))):
        with pytest.raises(KeyboardInterrupt):
            checkpoints.quantize_model(source, place, "nvfp4", report=interrupt)
    assert target.read_bytes() == before
    assert [path.name for path in target.with_name("folder").iterdir()] == [".dlfp4.json"]


def test_what_a_file_lacks_is_named_with_the_file(model, target):
    (model / SHARDS[1]).write_bytes((model / SHARDS[1]).read_bytes()[:-5])
    with pytest.raises(ValueError, match=SHARDS[1]):
        checkpoints.quantize_model(model, target, "nvfp4")
    (model / SHARDS[1]).unlink()
    with pytest.raises(ValueError, match=f"names files that are not there: {SHARDS[1]}"):
        checkpoints.quantize_model(model, target, "nvfp4")
    assert not target.exists()


def test_a_configuration_that_is_none(model, target):
    (model / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is not JSON"):
        checkpoints.quantize_model(model, target, "nvfp4", convention="modelopt")
    assert not target.exists()


def test_memory_holds_two_files_at_most(tmp_path):
    """Six files of 48 MB; what is read of a mapped file counts, too."""
    program = (
        "import resource, sys; from dlfp4 import checkpoints\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10\n"
        "checkpoints.quantize_model(sys.argv[1] + '/0.safetensors', sys.argv[2] + '.file', 'nvfp4')\n"
        "before = peak()\n"
        "checkpoints.quantize_model(sys.argv[1], sys.argv[2], 'nvfp4')\n"
        "print(peak() - before)"
    )
    (tmp_path / "model").mkdir()
    for number in range(6):
        weight = np.full((4096, 6144), number + 1, ml_dtypes.bfloat16)
        checkpoints.save(tmp_path / "model" / f"{number}.safetensors", {f"layers.{number}.up_proj.weight": weight})
    command = [sys.executable, "-P", "-c", program, tmp_path / "model", tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert int(done.stdout) < 48 << 20  # beyond one file and its result


# ---- Executors


def check_executor(executor, model, target):
    """The same files, a task each."""
    told = []
    options = {"convention": "modelopt", "recipe": dlfp4.Recipe(rounding="toward_zero")}
    outcomes = checkpoints.quantize_model(
        model, target, "nvfp4", **options, executor=executor, report=lambda *x: told.append(x)
    )
    alone = target.with_name("alone")
    assert outcomes == checkpoints.quantize_model(model, alone, "nvfp4", **options) or any(
        np.isnan(outcome.snr) for outcome in outcomes
    )
    assert contents(target) == contents(alone)
    assert sorted(name for name, _, _ in told) == SHARDS
    assert [numbers for _, *numbers in told] == [[1, 3], [2, 3], [3, 3]]


def test_threads(model, target):
    with concurrent.futures.ThreadPoolExecutor(2) as executor:
        check_executor(executor, model, target)


def test_processes(model, target):
    with concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as executor:
        check_executor(executor, model, target)


def test_a_fault_in_a_task_comes_out(model, target, monkeypatch):
    def fail(tensor, choice, job):
        raise ValueError(f"{job.source}: {choice.name} is broken")

    monkeypatch.setattr(quantizing, "quantized", fail)
    with (
        concurrent.futures.ThreadPoolExecutor(1) as executor,
        pytest.raises(ValueError, match=rf"{SHARDS[0]}: model.layers.0.mlp.\w+_proj.weight is broken"),
    ):
        checkpoints.quantize_model(model, target, "nvfp4", executor=executor)
    assert [path.name for path in target.iterdir()] == [".dlfp4.json"]


# ---- On the command line


def test_files_at_once(model, target, tmp_path):
    options = ("--format", "nvfp4", "--convention", "modelopt")
    done = command_line("quantize", model, "-o", target, *options, "--jobs", "2")
    assert done.returncode == 0, done.stderr
    assert sorted(line.split()[1] for line in done.stderr.splitlines()) == SHARDS
    assert command_line("quantize", model, "-o", tmp_path / "alone", *options).returncode == 0
    assert contents(target) == contents(tmp_path / "alone")


KILLED = """
import os, sys, time
from dlfp4.checkpoints import commands

if __name__ == "__main__":
    with commands.workers(2) as executor:
        executor.submit(abs, -1).result()  # a worker is there
        executor.submit(time.sleep, 600)
        os.kill(os.getpid(), int(sys.argv[1]))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_a_killed_command(tmp_path, number):
    program = tmp_path / "program.py"
    program.write_text(KILLED)
    command = [sys.executable, "-P", program, str(int(number))]
    # The pipes end once nobody holds them.
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert done.returncode == -number, done.stderr


INTERRUPTED = """
import os, signal, sys, time
from dlfp4.checkpoints import commands

def work(seconds):
    time.sleep(seconds)
    return os.getpid()

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored where the tests run in the background
    try:
        with commands.workers(2) as executor:
            seen = set()
            while len(seen) < 2:  # until both workers are there
                seen.update(executor.map(work, (0.1, 0.1)))
            executor.submit(time.sleep, 600)  # the other waits for work
            time.sleep(1)
            os.killpg(0, signal.SIGINT)
            time.sleep(600)
    except KeyboardInterrupt:
        sys.exit(130)
"""


def test_an_interrupt_ends_workers_without_a_word(tmp_path):
    """As Ctrl-C, which a terminal sends to the command and to its workers."""
    program = tmp_path / "program.py"
    program.write_text(INTERRUPTED)
    command = [sys.executable, "-P", program]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path, start_new_session=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


IGNORED = """
import os, signal
from dlfp4.checkpoints import commands

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with commands.workers(2) as executor:
        executor.submit(abs, -1).result()  # a worker is there
        os.killpg(0, signal.SIGINT)
        print(executor.submit(abs, -2).result())
"""


def test_workers_ignore_an_interrupt_that_the_command_ignores(tmp_path):
    """As commands do that a shell starts with `&`, or nohup."""
    program = tmp_path / "program.py"
    program.write_text(IGNORED)
    command = [sys.executable, "-P", program]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path, start_new_session=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n", "")


def test_command_line(model, target):
    done = command_line("quantize", model, "-o", target, "--format", "nvfp4", "--convention", "compressed-tensors")
    assert done.returncode == 0, done.stderr
    assert "not carried over, as they hold other weights: pytorch_model.bin" in done.stdout
    assert f"{target}: 6 of 11 tensors quantized" in done.stdout.splitlines()[-1]
    assert checkpoints.load(target)["model.layers.0.mlp.up_proj.weight"].format == "nvfp4"
    again = command_line("quantize", model, "-o", target, "--format", "mxfp4", "--convention", "compressed-tensors")
    assert again.returncode == 1
    assert "was made from another model" in again.stderr
    assert "Traceback" not in again.stderr
