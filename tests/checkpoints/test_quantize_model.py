"""Whole models: what a folder becomes."""

import json
import os
import re

import ml_dtypes
import numpy as np
import pytest

import dlfp4
from dlfp4 import checkpoints
from dlfp4.checkpoints import commands

from ..support.command_line import command_line
from ..support.models import INDEX, SHARDS, contents


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
    assert f"argument --jobs: {jobs!r} is not a positive integer" in done.stderr
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


def test_a_configuration_with_what_utf8_does_not_hold(model, target):
    """JSON escapes it, as it was in the file that it came from."""
    config = {"model_type": "\ud800", "name": "Größe \\\udfff"}
    (model / "config.json").write_text(json.dumps(config))
    checkpoints.quantize_model(model, target, "mxfp4")
    written = (target / "config.json").read_bytes()
    assert json.loads(written) == config
    assert "Größe".encode() in written
    pytest.importorskip("gguf")
    with pytest.raises(ValueError, match=r"^the architecture is '\\ud800', and has a character that UTF"):
        checkpoints.convert_model(target, target.with_suffix(".gguf"), "gguf")


def test_llama_4_has_quantized_experts_alone(tmp_path):
    experts, query = "layers.0.feed_forward.experts.down_proj", "layers.0.self_attn.q_proj.weight"
    checkpoints.save(tmp_path / "a", {experts: np.ones((2, 128, 64), "f4"), query: np.ones((64, 64), "f4")})
    for options, quantized in (({}, experts), ({"include": "q_proj"}, query)):
        outcomes = checkpoints.quantize_model(
            tmp_path / "a", tmp_path / "b", "nvfp4", convention="llama-4", axis=-2, **options
        )
        assert [outcome.name for outcome in outcomes if outcome.format] == [quantized]
        if not options:
            (kept,) = (outcome.reason for outcome in outcomes if not outcome.format)
            assert kept == "loaders of llama-4 support stacks of experts only; include names it"


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
    assert "not carried over, as they are not regular files: assets, gone.txt, pipe" in capsys.readouterr().out
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


@pytest.mark.parametrize("work", ["quantize", "convert"])
def test_other_indices_are_left_with_their_files(model, target, capsys, work):
    """A folder with two indices could not be loaded, and the second one named files that are not there."""
    others = ["model.fp16.safetensors.index.json", "pytorch_model.bin.index.json", "tf_model.h5.index.json"]
    index = json.loads((model / INDEX).read_text())
    for name in others:
        (model / name).write_text(json.dumps(index | {"weight_map": {"w": "model.fp16-00001-of-00001.safetensors"}}))
    (model / "words.index.json").write_text("{}")
    options = {"format": "mxfp4"} if work == "quantize" else {"convention": "dlfp4"}
    assert getattr(commands, work)(str(model / INDEX), str(target), jobs=1, **options) == 0
    assert f"not carried over, as they are indices of other weights: {', '.join(others)}\n" in capsys.readouterr().out
    assert set(contents(target)) == {
        *SHARDS,
        INDEX,
        "config.json",
        "more/notes.txt",
        "tokenizer.json",
        "words.index.json",
    }
    assert checkpoints.load(target).keys() == checkpoints.load(model / INDEX).keys()
