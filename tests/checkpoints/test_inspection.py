"""``checkpoints.inspect`` and ``python -m dlfp4 inspect``: what a model is, and what in it breaks engines."""

import json

import ml_dtypes
import numpy as np
import pytest

import dlfp4
from dlfp4 import checkpoints
from dlfp4.checkpoints import inspect, split_parts
from dlfp4.spellings import SPELLINGS

from ..support.command_line import command_line

UP, GATE, DOWN = (f"model.layers.0.mlp.{name}_proj.weight" for name in ("up", "gate", "down"))


def values(*shape):
    return np.random.default_rng(5).normal(size=shape).astype(np.float32) / 8


def quantized(format="nvfp4", shape=(128, 128), **options):
    return dlfp4.quantize(values(*shape), format, **options)


@pytest.fixture
def look(tmp_path):
    """Save tensors and inspect them."""

    def look(tensors, convention=None, metadata=None):
        checkpoints.save(tmp_path / "model.safetensors", tensors, metadata, convention=convention)
        return inspect(tmp_path)

    return look


def faults(findings):
    return {(flag.fault, flag.name) for flag in findings.flags}


@pytest.mark.parametrize(
    ("convention", "format"),
    [(spelling.convention, name) for spelling in SPELLINGS if spelling.convention for name in spelling.formats],
)
def test_every_convention_is_named(tmp_path, look, convention, format):
    unit = {"global_scale": 1.0} if convention == "mlx" and dlfp4.formats()[format].has_global_scale else {}
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": convention}}))
    findings = look({DOWN: quantized(format, **unit), "norm.weight": np.ones(3, np.float32)}, convention)
    assert findings.convention == convention
    group = next(group for group in findings.groups if group.convention)
    looks_like = {"nvfp4_16x16": "nvfp4", "int4_row": "int4_g128", "uint4_row": "uint4_g128"}  # of lines of 128
    assert group.format == looks_like.get(format, format)
    assert group.tensors == 1
    assert group.example == DOWN
    assert group.nibbles == ("" if "fp8" in format else "high first" if convention == "comfyui" else "low first")
    assert group.scale_layout == (
        "128x4" if convention == "comfyui" and "mx" in format + "nv" * 0 else group.scale_layout
    )
    assert findings.flags == ()
    assert "nothing is flagged" in str(findings)


def test_what_dlfp4_wrote(look):
    findings = look({DOWN: quantized("mxfp6_e2m3", axis=-2), "ids": np.arange(3)})
    assert findings.convention == "dlfp4"
    assert [(g.convention, g.format, g.granularity, g.scales) for g in findings.groups] == [
        ("dlfp4", "mxfp6_e2m3", "1x32 along axis -2", "float8_e8m0fnu"),
        ("", "int64", "", ""),
    ]


@pytest.mark.parametrize(
    ("parts", "convention"),
    [
        ({"qweight": ("int32", (8, 64)), "g_idx": ("int32", (64,)), "scales": ("float16", (2, 64))}, "gptq"),
        ({"qweight": ("int32", (64, 8)), "qzeros": ("int32", (2, 8)), "scales": ("float16", (2, 64))}, "awq"),
        (
            {
                "weight_packed": ("int32", (64, 8)),
                "weight_shape": ("int64", (2,)),
                "weight_scale": ("float16", (64, 3)),
            },
            "compressed-tensors",
        ),
        ({"weight": ("uint32", (64, 8)), "scales": ("float16", (64, 2)), "biases": ("float16", (64, 2))}, "mlx"),
        ({"weight": ("uint8", (64, 1)), "weight.absmax": ("float32", (8,))}, "bitsandbytes"),
        ({"codes": ("int8", (64, 8)), "steps": ("float32", (64,))}, "unknown"),
    ],
)
def test_conventions_that_stay_in_parts(look, parts, convention):
    findings = look({f"layers.0.up.{name}": np.zeros(shape, dtype) for name, (dtype, shape) in parts.items()})
    assert findings.convention == convention
    assert findings.flags == ()


def test_masks_and_tables_of_positions_are_no_codes(look):
    """As they are none where a model is quantized."""
    tables = {"relative_position_index": ("int32", (49, 49)), "mask": ("uint8", (8, 8)), "token_ids": ("int16", (2, 8))}
    findings = look({f"layers.0.{name}": np.zeros(shape, dtype) for name, (dtype, shape) in tables.items()})
    assert (findings.convention, findings.flags) == ("", ())


def test_an_inverted_global_scale(look):
    for convention, suffix in (("compressed-tensors", "_global_scale"), ("modelopt", "_scale_2")):
        parts = split_parts({DOWN: quantized()}, convention)
        unit = parts[DOWN + suffix].to_numpy()
        assert look(parts).flags == ()
        findings = look(parts | {DOWN + suffix: 1 / unit})
        assert faults(findings) == {("inverted global scale", DOWN)}
        assert "its reciprocal, to 0.469" in findings.flags[0].detail


@pytest.mark.parametrize(
    ("convention", "suffix", "stored", "detail"),
    [
        ("modelopt", "_scale_2", np.inf, "inf"),
        ("modelopt", "_scale_2", np.nan, "nan"),
        ("modelopt", "_scale_2", 0, "0"),
        ("modelopt", "_scale_2", -1, "-1"),
        ("compressed-tensors", "_global_scale", np.inf, "0, stored as inf"),
        ("compressed-tensors", "_global_scale", 0, "inf, stored as 0"),
    ],
)
def test_global_scales_that_are_no_positive_numbers(look, convention, suffix, stored, detail):
    """compressed-tensors stores infinity for a tensor of zeros."""
    parts = split_parts({DOWN: quantized()}, convention)
    for shape in ((), (1,)):
        (flag,) = look(parts | {DOWN + suffix: np.full(shape, stored, np.float32)}).flags
        assert (flag.fault, flag.name, flag.detail) == ("global scale that is not a positive number", DOWN, detail)


def test_the_flag_names_the_global_scale_that_is_none(look):
    parts = split_parts({DOWN: quantized(shape=(2, 32, 64), recipe="transformer-engine")}, "compressed-tensors")
    encoded = {f"{DOWN}_global_scale": np.array([4, np.inf], np.float32)}
    (flag,) = look(parts | encoded).flags
    assert flag.detail == "0, stored as inf"


def test_fused_rows_with_global_scales_of_their_own(look):
    recipe = dlfp4.Recipe(global_scale_per="row")
    gate, up = (dlfp4.quantize(values(1, 64) * factor, "nvfp4", recipe=recipe) for factor in (1, 4))
    (flag,) = look({GATE: gate, UP: up}).flags
    assert flag.fault == "fused layers with different global scales"
    assert "by a factor of 4" in flag.detail


def test_scales_that_are_no_numbers(look):
    parts = split_parts({DOWN: quantized()}, "modelopt")
    scales = parts[f"{DOWN}_scale"].to_numpy().copy()
    scales[0, :3] = np.nan
    scales[1, 0] = -1
    findings = look(parts | {f"{DOWN}_scale": scales})
    assert faults(findings) == {("NaN scales", DOWN), ("negative scales", DOWN)}
    assert findings.flags[0].detail == "3 of 1,024"
    findings = look(parts | {f"{DOWN}_scale": np.zeros_like(scales)})
    assert faults(findings) == {("zero scales", DOWN)}
    assert look(split_parts({DOWN: dlfp4.quantize(np.zeros((4, 64), np.float32), "nvfp4")}, "modelopt")).flags == ()
    parts = split_parts({DOWN: quantized("fp8_128x128", (256, 128))}, "deepseek")
    findings = look(parts | {f"{DOWN}_scale_inv": np.array([[0], [np.inf]], np.float32)})
    assert faults(findings) == {("zero scales", DOWN), ("infinite scales", DOWN)}


def test_fused_layers(look):
    up, gate = quantized(), dlfp4.quantize(values(128, 128) * 2.5, "nvfp4")
    findings = look({UP: up, GATE: gate, DOWN: quantized(global_scale=0.5)}, "compressed-tensors")
    assert faults(findings) == {("fused layers with different global scales", GATE)}
    assert "gate_proj and up_proj differ by a factor of 2.5;" in findings.flags[0].detail
    assert look({UP: up, GATE: up, DOWN: gate}, "compressed-tensors").flags == ()
    names = [f"layers.0.self_attn.{name}_proj.weight" for name in "qkv"]
    findings = look(dict(zip(names, (up, up, gate), strict=True)), "modelopt")
    assert faults(findings) == {("fused layers with different global scales", names[0])}
    findings = look({UP: up, GATE: quantized("mxfp4")}, "modelopt")
    assert faults(findings) == {("fused layers of different formats", GATE)}
    assert findings.flags[0].detail == "gate_proj mxfp4, up_proj nvfp4"


def test_data_and_scales_that_belong_to_nothing(look):
    fp8 = values(64, 64).astype(ml_dtypes.float8_e4m3fn)
    scaled = split_parts({UP: quantized("fp8_128x128")}, "deepseek")
    findings = look({DOWN: fp8, **scaled})
    assert faults(findings) == {("unscaled FP8", DOWN)}
    assert "although other weights have some" in findings.flags[0].detail
    assert faults(look({DOWN: fp8})) == {("unscaled FP8", DOWN)}
    findings = look({DOWN: fp8, f"{DOWN}_scale_inv": values(3, 1)})
    assert faults(findings) == {("unscaled FP8", DOWN)}
    assert findings.flags[0].detail == f"{DOWN}_scale_inv (float32 3x1) does not fit"
    parts = split_parts({DOWN: quantized()}, "compressed-tensors")
    scales = parts.pop(f"{DOWN}_scale")
    findings = look(parts)
    assert faults(findings) == {("packed data without scales", f"{DOWN}_packed")}
    findings = look({f"{DOWN}_scale": scales})
    assert faults(findings) == {("scales without a weight", f"{DOWN}_scale")}
    for missing in ("_scale", "_scale_2"):
        parts = split_parts({DOWN: quantized()}, "modelopt")
        del parts[DOWN + missing]
        assert faults(look(parts)) == {("packed data without scales", DOWN)}
    both = {f"{DOWN}_scale": np.float32(1).reshape(()), f"{DOWN}_scale_inv": np.float32(2).reshape(())}
    assert faults(look({DOWN: fp8} | both)) == {("unscaled FP8", DOWN)}


@pytest.mark.parametrize(
    ("convention", "format", "scales"),
    [
        ("compressed-tensors", "int4_g32", "weight_scale"),
        ("gptq", "uint4_g32", "scales"),
        ("awq", "uint4_g32", "scales"),
    ],
)
def test_words_of_integers_without_scales(look, convention, format, scales):
    """Scales beside them that do not fit are of a convention that is not read, such as another order of groups."""
    parts = split_parts({DOWN: quantized(format)}, convention)
    module = DOWN.removesuffix("weight")
    (data,) = (name for name in parts if name.endswith(("qweight", "weight_packed")))
    assert look(parts | {module + scales: values(3, 5)}).flags == ()
    parts.pop(module + scales)
    assert faults(look(parts)) == {("packed data without scales", data)}


def test_scales_in_the_order_of_kernels(look):
    q = quantized(shape=(100, 96))
    parts = split_parts({DOWN: q}, "modelopt") | {f"{DOWN}_scale": q.with_scale_layout("128x4").scales}
    assert faults(look(parts)) == {("scales in the layout 128x4", DOWN)}


def test_mixed_conventions_and_the_configuration(tmp_path, look):
    mixed = split_parts({DOWN: quantized()}, "compressed-tensors") | split_parts({UP: quantized("mxfp4")}, "gpt-oss")
    findings = look(mixed)
    assert findings.convention == "compressed-tensors + gpt-oss"
    assert faults(findings) == {("mixed conventions", "the model")}
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "modelopt"}}')
    findings = look({DOWN: quantized()}, "compressed-tensors")
    assert faults(findings) == {("configuration", "config.json")}
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "fp8"}}')
    assert look({DOWN: quantized("fp8_128x128")}, "deepseek").flags == ()
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "bitsandbytes"}}')
    assert look({"w": values(3)}).flags == ()


@pytest.mark.parametrize(
    ("convention", "first", "second"),
    [
        ("compressed-tensors", "nvfp4", "fp8_row"),
        ("compressed-tensors", "fp8_128x128", "fp8_e4m3"),
        ("compressed-tensors", "mxfp8_e4m3", "int4_g32"),
        ("modelopt", "fp8_e4m3", "nvfp4"),
        ("comfyui", "nvfp4", "fp8_e4m3"),
    ],
)
def test_two_formats_of_a_convention_are_not_mixed_conventions(look, convention, first, second):
    """FP8 is spelled alike by several, of which the other format tells one."""
    findings = look({DOWN: quantized(first), "model.layers.0.self_attn.o_proj.weight": quantized(second)}, convention)
    assert findings.convention == convention
    assert findings.flags == ()


def test_findings_are_json(look):
    findings = look({UP: quantized(), GATE: quantized(global_scale=0.5)}, "modelopt")
    content = json.loads(findings.as_json())
    assert content["convention"] == "modelopt"
    assert content["groups"][0]["tensors"] == 2
    assert [flag["name"] for flag in content["flags"]] == [GATE]


def test_files_that_are_none_and_bytes(tmp_path, look):
    look({DOWN: quantized()})
    assert inspect((tmp_path / "model.safetensors").read_bytes()).convention == "dlfp4"
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"has no \.safetensors files"):
        inspect(tmp_path / "empty")
    content = (tmp_path / "model.safetensors").read_bytes().replace(b'"version\\":1', b'"version\\":7')
    with pytest.raises(ValueError, match=r"the bytes: .* is version 7"):
        inspect(content)


@pytest.mark.parametrize("content", [None, "// none\n{}", "[]", "null", '{"a": 1, "a": 2}'])
def test_a_file_beside_something_else_that_is_called_config(tmp_path, content):
    """None: a folder. A model's own configuration has to be readable, and so has that of GPTQ, which tells versions."""
    path, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    checkpoints.save(path, {DOWN: quantized()}, convention="modelopt")
    config.mkdir() if content is None else config.write_text(content)
    assert inspect(path).convention == "modelopt"
    assert checkpoints.load(path).keys() == checkpoints.load(tmp_path).keys() == {DOWN}
    if content is None:
        with pytest.raises(IsADirectoryError):
            inspect(tmp_path)
        return
    with pytest.raises(ValueError, match=r"config\.json is "):
        inspect(tmp_path)
    checkpoints.save(path, {DOWN: quantized("uint4_g64")}, convention="gptq")
    for look in (checkpoints.load, inspect):
        with pytest.raises(ValueError, match=r"config\.json is "):
            look(path)


def test_modelopts_own_file_names_it_too(tmp_path, look):
    """Its exporter has not always said it in config.json."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "hf_quant_config.json").write_text("{}")
    assert [flag.fault for flag in look({DOWN: quantized()}, "compressed-tensors").flags] == ["configuration"]
    assert look({DOWN: quantized()}, "modelopt").flags == ()


def test_command_line(tmp_path, look):
    look({DOWN: quantized(), "ids": np.arange(3)}, "compressed-tensors")
    result = command_line("inspect", tmp_path)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].split()[:2] == ["convention", "format"]
    assert lines[1].split()[:6] == ["compressed-tensors", "nvfp4", "1x16", "and", "the", "tensor"]
    assert lines[-1] == "nothing is flagged"
    look({f"{DOWN}_scale": values(4, 4)})
    result = command_line("inspect", tmp_path, "--json")
    assert result.returncode == 1
    assert json.loads(result.stdout)["flags"][0]["fault"] == "scales without a weight"
    result = command_line("inspect", tmp_path / "nothing")
    assert result.returncode == 1
    assert "No such file" in result.stderr


def test_damaged_metadata_names_the_file(look, tmp_path):
    """ComfyUI's, of one file of a model."""
    with pytest.raises(ValueError, match=r"model\.safetensors: the metadata under '_quantization_\w+' is not JSON"):
        look({"w": values(3)}, metadata={"_quantization_metadata": "{"})
    with pytest.raises(ValueError, match=r"model\.safetensors: .* is not JSON[^;]*$"):  # convert has no join=False
        checkpoints.convert_model(tmp_path, tmp_path.parent / "converted", "modelopt")
