"""Scales of activations beside quantized weights, from ModelOpt to compressed-tensors and back."""

import json

import numpy as np
import pytest

import dlfp4
from dlfp4 import checkpoints

F = np.float32
LAYER = "model.layers.0"
UP, KEYS = f"{LAYER}.mlp.up_proj", f"{LAYER}.self_attn.k_proj"
W = np.random.default_rng(0).normal(size=(128, 128)).astype(F)
SCALES = {UP: 0.25, KEYS: 0.01}


def save(folder, format, files=1, **more):
    """A model of ModelOpt with scales of activations, in another file than the weights if there are two."""
    folder.mkdir()
    scales = {f"{name}.input_scale": np.array(scale, F) for name, scale in SCALES.items()}
    scales |= {f"{KEYS}.k_scale": np.array(0.5, F), f"{LAYER}.self_attn.v_proj.v_scale": np.array(2, F), **more}
    weights = {f"{name}.weight": dlfp4.quantize(W, format) for name in SCALES}
    parts = {name: x.to_numpy() for name, x in checkpoints.split_parts(weights, "modelopt").items()}
    for number, each in enumerate([parts, scales] if files == 2 else [parts | scales], 1):
        checkpoints.save(folder / f"model-{number:05}-of-{files:05}.safetensors", each, {"format": "pt"})
    (folder / "config.json").write_text("{}")
    return folder


def stored(folder):
    """What is beside the weights."""
    tensors = checkpoints.load(folder, join=False)
    kinds = ("input_scale", "input_global_scale", "k_scale", "v_scale")
    return {name: x.to_numpy() for name, x in tensors.items() if name.endswith(kinds)}


def said(folder):
    return json.loads((folder / "config.json").read_text()).get("quantization_config")


@pytest.mark.parametrize("files", [1, 2])
@pytest.mark.parametrize("format", ["nvfp4", "fp8_e4m3"])
def test_there_and_back(tmp_path, format, files):
    first = save(tmp_path / "a", format, files)
    outcomes = checkpoints.convert_model(first, tmp_path / "b", "compressed-tensors")
    found = stored(tmp_path / "b")
    own = "input_global_scale" if format == "nvfp4" else "input_scale"
    cache = {f"{LAYER}.self_attn.k_scale", f"{LAYER}.self_attn.v_scale"}
    assert found.keys() == {f"{name}.{own}" for name in SCALES} | cache
    assert found.keys() < {outcome.name for outcome in outcomes}
    for name, scale in SCALES.items():
        expected = F(1) / F(scale) if format == "nvfp4" else F(scale)
        assert found[f"{name}.{own}"].tolist() == [expected]
    (group,) = said(tmp_path / "b")["config_groups"].values()
    inputs = group["input_activations"]
    assert (inputs["num_bits"], inputs["dynamic"]) == ((4, "local") if format == "nvfp4" else (8, False))
    assert said(tmp_path / "b")["kv_cache_scheme"]["num_bits"] == 8
    for source, target in (("b", "c"), ("a", "d")):
        checkpoints.convert_model(tmp_path / source, tmp_path / target, "modelopt")
        assert stored(tmp_path / target) == stored(first)
        assert said(tmp_path / target)["quant_algo"] == ("NVFP4" if format == "nvfp4" else "FP8")
        assert said(tmp_path / target)["kv_cache_quant_algo"] == "FP8"


@pytest.mark.parametrize("convention", ["mlx", "dlfp4", "comfyui"])
def test_other_conventions_get_them_as_they_are(tmp_path, convention):
    first = save(tmp_path / "a", "nvfp4")
    outcomes = checkpoints.convert_model(first, tmp_path / "b", convention)
    assert stored(tmp_path / "b") == stored(first)
    told = {each.name for each in outcomes if each.reason.endswith(f"loaders of {convention} do not know")}
    assert told == (set() if convention == "dlfp4" else stored(first).keys())


def test_where_a_layer_has_none_activations_are_not_said_to_be_quantized(tmp_path):
    first = save(tmp_path / "a", "nvfp4")
    tensors = checkpoints.load(first, join=False)
    del tensors[f"{UP}.input_scale"]
    checkpoints.save(first / "model-00001-of-00001.safetensors", tensors)
    checkpoints.convert_model(first, tmp_path / "b", "compressed-tensors")
    checkpoints.convert_model(first, tmp_path / "c", "modelopt")
    assert said(tmp_path / "b")["config_groups"]["group_0"]["input_activations"] is None
    assert said(tmp_path / "c")["quant_algo"] == "W4A16_NVFP4"


@pytest.mark.parametrize("name", ["gate.input_scale", "norm.k_scale.weight", "q_proj.k_scale"])
def test_of_other_layers_they_stay(tmp_path, name):
    first = save(tmp_path / "a", "nvfp4", **{f"{LAYER}.{name}": np.array(0.5, F)})
    checkpoints.convert_model(first, tmp_path / "b", "compressed-tensors")
    assert checkpoints.load(tmp_path / "b")[f"{LAYER}.{name}"].item() == 0.5


def test_no_tensor_takes_the_name_of_another(tmp_path):
    taken = f"{LAYER}.self_attn.k_scale"
    first = save(tmp_path / "a", "nvfp4", **{taken: np.array(3, F)})
    checkpoints.convert_model(first, tmp_path / "b", "compressed-tensors")
    found = stored(tmp_path / "b")
    assert (found[taken].item(), found[f"{KEYS}.k_scale"].item()) == (3, 0.5)


def test_a_model_that_is_not_quantized_keeps_them(tmp_path):
    (tmp_path / "a").mkdir()
    checkpoints.save(tmp_path / "a" / "model.safetensors", {f"{KEYS}.weight": W, f"{KEYS}.k_scale": np.array(0.5, F)})
    checkpoints.convert_model(tmp_path / "a", tmp_path / "b", "compressed-tensors")
    assert checkpoints.load(tmp_path / "b").keys() == {f"{KEYS}.weight", f"{KEYS}.k_scale"}


def test_a_scale_without_a_reciprocal_is_named(tmp_path):
    first = save(tmp_path / "a", "nvfp4", **{f"{UP}.input_scale": np.array(0, F)})
    with pytest.raises(ValueError, match=rf"safetensors: {UP}\.input_scale: .*reciprocal of 0"):
        checkpoints.convert_model(first, tmp_path / "b", "compressed-tensors")
