"""Models from one convention to another, and what readers of theirs make of them."""

import concurrent.futures
import json
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

import dlfp4
from dlfp4 import checkpoints
from dlfp4.checkpoints import conventions, converting, models
from dlfp4.spellings import SPELLINGS

from ..support.command_line import command_line
from ..support.files import make_file

RNG = np.random.default_rng(0)
UP = RNG.normal(size=(64, 128)).astype(np.float32)
EXPERTS = RNG.normal(size=(3, 32, 64)).astype(ml_dtypes.bfloat16)
NORM = RNG.normal(size=64).astype(np.float32)
UPPER = "model.layers.0.up_proj.weight"
STACK = "model.layers.0.experts.weight"


def tensors_of(format):
    return {UPPER: dlfp4.quantize(UP, format), STACK: dlfp4.quantize(EXPERTS, format), "norm.weight": NORM}


def same(a, b):
    """The same codes, scales and values."""
    if not hasattr(a, "dequantize"):
        return a.shape == b.shape and a.to_numpy().tobytes() == b.to_numpy().tobytes()
    pairs = [(a.data, b.data), (a.scales, b.scales)]
    octets = [[x.reshape(-1).view("uint8").to_numpy().tobytes() for x in pair] for pair in pairs]
    equal = all(x == y for x, y in octets)
    return equal and a.format == b.format and np.array_equal(a.dequantize().to_numpy(), b.dequantize().to_numpy())


@pytest.mark.parametrize(
    ("format", "conventions"),
    [
        ("nvfp4", ["modelopt", "compressed-tensors", "dlfp4", "modelopt", "gguf", "modelopt"]),
        ("mxfp4", ["compressed-tensors", "gpt-oss", "mlx", "modelopt", "gguf", "mlx", "gguf", "dlfp4"]),
        ("mxfp8_e4m3", ["modelopt", "mlx", "dlfp4", "compressed-tensors"]),
        ("fp8_e4m3", ["compressed-tensors", "deepseek", "modelopt"]),
    ],
)
def test_a_file_around_the_conventions(tmp_path, format, conventions):
    if "gguf" in conventions:
        pytest.importorskip("gguf")
    given = tensors_of(format)
    path = tmp_path / "0.safetensors"
    checkpoints.save(path, given, {"format": "pt"})
    for number, convention in enumerate(conventions, 1):
        target = tmp_path / f"{number}.{'gguf' if convention == 'gguf' else 'safetensors'}"
        outcomes = checkpoints.convert_model(path, target, convention)
        assert {outcome.name: outcome.format for outcome in outcomes} == {
            UPPER: format,
            STACK: format,
            "norm.weight": "",
        }
        path = target
        if convention != "gguf":
            loaded = checkpoints.load(path)
            assert loaded.keys() == given.keys()
            assert all(
                same(loaded[name], dlfp4.asarray(x) if name == "norm.weight" else x) for name, x in given.items()
            )


@pytest.mark.parametrize(
    ("convention", "format"),
    [(row.convention, format) for row in SPELLINGS if row.convention for format in row.formats],
)
def test_every_convention_there_and_back(tmp_path, convention, format):
    """A folder, whose files hold one tensor each."""
    x = RNG.normal(size=(2, 256, 256)).astype(np.float32)
    unit = {"global_scale": 1.0} if convention == "mlx" and format == "nvfp4" else {}
    given = {f"layers.{k}.up_proj.weight": dlfp4.quantize(x[k], format, **unit) for k in range(2)}
    (tmp_path / "a").mkdir()
    for name, q in given.items():
        checkpoints.save(tmp_path / "a" / f"{name}.safetensors", {name: q, f"{name}.bias": NORM})
    checkpoints.convert_model(tmp_path / "a", tmp_path / "b", convention)
    checkpoints.convert_model(tmp_path / "b", tmp_path / "c", "dlfp4")
    for folder in ("b", "c"):
        loaded = checkpoints.load(tmp_path / folder)
        assert set(given) < set(loaded)
        for name, q in given.items():
            np.testing.assert_allclose(loaded[name].dequantize().to_numpy(), q.dequantize().to_numpy(), rtol=1e-6)
    if convention not in ("stable-diffusion", "comfyui"):
        assert set(loaded) == {*given, *(f"{name}.bias" for name in given)}


def test_bytes_come_back(tmp_path):
    """From compressed-tensors to ModelOpt and back: the stored reciprocal, too."""
    for seed in range(20):
        parts = {
            "w.weight_packed": RNG.integers(0, 256, (16, 16), np.uint8),
            "w.weight_scale": RNG.integers(1, 126, (16, 2), np.uint8).view(ml_dtypes.float8_e4m3fn),
            "w.weight_global_scale": np.array([RNG.uniform(100, 10000)], np.float32),
        }
        checkpoints.save(tmp_path / "a", parts)
        checkpoints.convert_model(tmp_path / "a", tmp_path / "b", "modelopt")
        checkpoints.convert_model(tmp_path / "a", tmp_path / "c", "compressed-tensors")
        assert (tmp_path / "a").read_bytes() == (tmp_path / "c").read_bytes(), seed


@pytest.fixture
def model(tmp_path):
    """A folder of ModelOpt, the scales in another file than the data."""
    folder = tmp_path / "model"
    folder.mkdir()
    parts = checkpoints.split_parts(tensors_of("nvfp4"), "modelopt")
    first = {name: parts.pop(name) for name in (UPPER, "norm.weight")}
    for name, tensors in (("1.safetensors", first), ("2.safetensors", parts)):
        checkpoints.save(folder / name, tensors)
    (folder / "config.json").write_text(json.dumps({"a": 1, "quantization_config": {"quant_method": "modelopt"}}))
    (folder / "hf_quant_config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    return folder


def test_a_folder(model, tmp_path):
    target = tmp_path / "out"
    checkpoints.convert_model(model, target, "compressed-tensors")
    assert {path.name for path in target.iterdir()} == {
        ".dlfp4.json", "1.safetensors", "2.safetensors", "model.safetensors.index.json", "config.json", "tokenizer.json"
    }  # fmt: skip
    config = json.loads((target / "config.json").read_text())
    assert config["a"] == 1
    assert config["quantization_config"]["quant_method"] == "compressed-tensors"
    before, after = checkpoints.load(model), checkpoints.load(target)
    assert before.keys() == after.keys()
    assert all(same(before[name], after[name]) for name in before)
    assert set(checkpoints.load(target / "1.safetensors")) == {UPPER, "norm.weight"}  # whole, in one file
    index = json.loads((target / "model.safetensors.index.json").read_text())
    assert index["weight_map"][f"{UPPER}_global_scale"] == "1.safetensors"


def cut_in_files(folder, parts, files):
    """A model whose parts lie in files, by number; 0 is the first."""
    folder.mkdir()
    for number in range(max(files) + 1):
        own = {name: part for (name, part), file in zip(parts.items(), files, strict=True) if file == number}
        checkpoints.save(folder / f"{number}.safetensors", own)


@pytest.mark.parametrize(
    ("convention", "format"),
    [("modelopt", "nvfp4"), ("compressed-tensors", "mxfp4"), ("mlx", "uint4_g64"), ("comfyui", "nvfp4"),
     ("gptq", "uint4_g32"), ("gpt-oss", "mxfp4"), ("deepseek-v4", "fp8_128x128"), ("stable-diffusion", "fp8_e4m3")],
)  # fmt: skip
def test_parts_may_lie_in_any_files(tmp_path, convention, format):
    """However a model is cut, its tensors are those of the whole, each in the file that holds its data."""
    given = {f"layers.{k}.{own}_proj.weight": dlfp4.quantize(UP, format) for k in range(2) for own in ("up", "down")}
    parts = checkpoints.split_parts({**given, "norm.weight": NORM}, convention)
    whole = checkpoints.join_parts(parts)
    whole.pop("scaled_fp8", None)  # the mark of its convention alone
    rng = np.random.default_rng(1)
    for number in range(4):
        files = rng.permutation(np.arange(len(parts)) % 3).tolist()
        cut_in_files(tmp_path / f"cut{number}", parts, files)
        checkpoints.convert_model(tmp_path / f"cut{number}", tmp_path / f"out{number}", "dlfp4")
        found = checkpoints.load(tmp_path / f"out{number}")
        assert found.keys() == whole.keys()
        assert all(same(found[name], x) for name, x in whole.items())


def test_a_plan_joins_once_and_names_the_files_that_are_needed(tmp_path, monkeypatch):
    given = {f"layers.{k}.up_proj.weight": dlfp4.quantize(UP, "nvfp4") for k in range(4)}
    parts = checkpoints.split_parts(given, "modelopt")
    cut_in_files(tmp_path / "a", parts, [0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2])
    made = []
    monkeypatch.setattr(conventions, "make", lambda *given, make=conventions.make: made.append(1) or make(*given))
    jobs, converts = converting.plan(models.read(tmp_path / "a"), tmp_path / "b", "dlfp4", whole=True)
    assert (len(made), converts) == (4, True)
    others = [[path.rpartition("/")[2] for path in job.others] for job in jobs]
    assert others == [["1.safetensors"], ["0.safetensors"], []]
    assert [len(job.names) for job in jobs] == [2, 1, 1]


def test_what_speaks_against_joining_may_lie_in_another_file(tmp_path):
    """FP4 with a second scale that is no number is not MXFP4, whichever file holds that scale."""
    parts = {
        "w.weight": np.ones((8, 32), np.uint8),
        "w.weight_scale": np.full((8, 2), 127, np.uint8),
        "w.weight_scale_2": np.ones(3, np.float32),
    }
    cut_in_files(tmp_path / "a", parts, [0, 0, 1])
    outcomes = checkpoints.convert_model(tmp_path / "a", tmp_path / "b", "dlfp4")
    assert [outcome.format for outcome in outcomes] == ["", "", ""]
    assert {name: x.to_numpy().tobytes() for name, x in checkpoints.load(tmp_path / "b", join=False).items()} == {
        name: x.tobytes() for name, x in parts.items()
    }


PARTS = {  # that no convention here has: bitsandbytes' and HQQ's
    "bitsandbytes": {
        f"{UPPER}": np.ones((4096, 1), np.uint8),
        f"{UPPER}.absmax": np.ones(128, np.float32),
        f"{UPPER}.quant_map": np.ones(16, np.float32),
        f"{UPPER}.quant_state.bitsandbytes__nf4": np.ones(81, np.uint8),
    },
    "hqq": {
        "model.layers.0.up_proj.W_q": np.ones((32, 128), np.uint8),
        "model.layers.0.up_proj.scale": np.ones((128, 1), np.float16),
        "model.layers.0.up_proj.zero": np.ones((128, 1), np.float16),
    },
}


@pytest.mark.parametrize("method", PARTS)
def test_what_is_not_converted_keeps_its_bytes_and_its_configuration(tmp_path, method):
    source, target = tmp_path / "a", tmp_path / "b"
    source.mkdir()
    given = {**PARTS[method], "norm.weight": NORM}
    checkpoints.save(source / "model.safetensors", given, {"format": "pt"})
    config = {"quantization_config": {"quant_method": method}, "dtype": "float16"}
    (source / "config.json").write_text(json.dumps(config))
    (source / "hf_quant_config.json").write_text("{}")
    outcomes = checkpoints.convert_model(source, target, "compressed-tensors")
    told = [each.name for each in outcomes if each.reason == "quantized in a way that is not converted"]
    assert told == [name for name in given if name in (UPPER, "model.layers.0.up_proj.W_q")]
    loaded = checkpoints.load(target, join=False)
    assert {name: x.to_numpy().tobytes() for name, x in loaded.items()} == {
        name: x.tobytes() for name, x in given.items()
    }
    assert json.loads((target / "config.json").read_text()) == config
    assert (target / "hf_quant_config.json").read_text() == "{}"


def test_files_of_another_convention_are_left(tmp_path):
    source = tmp_path / "a"
    source.mkdir()
    checkpoints.save(source / "model.safetensors", {UPPER: dlfp4.quantize(UP, "uint4_g32")}, convention="awq")
    for name in ("hf_quant_config.json", "quantize_config.json", "quant_config.json", "generation_config.json"):
        (source / name).write_text("{}")
    checkpoints.convert_model(source, tmp_path / "b", "gptq")
    names = {path.name for path in (tmp_path / "b").iterdir() if not path.name.startswith(".")}
    assert names == {"model.safetensors", "generation_config.json"}


def test_executor(model, tmp_path):
    with concurrent.futures.ThreadPoolExecutor(2) as executor:
        checkpoints.convert_model(model, tmp_path / "out", "compressed-tensors", executor=executor)
    checkpoints.convert_model(model, tmp_path / "alone", "compressed-tensors")
    for name in ("1.safetensors", "2.safetensors", "config.json", "model.safetensors.index.json"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()


def test_formats_of_two_kinds_are_two_groups(tmp_path):
    (tmp_path / "model").mkdir()
    tensors = {"a.weight": dlfp4.quantize(UP, "nvfp4"), "b.weight": dlfp4.quantize(UP, "fp8_e4m3")}
    checkpoints.save(tmp_path / "model" / "model.safetensors", tensors)
    (tmp_path / "model" / "config.json").write_text("{}")
    checkpoints.convert_model(tmp_path / "model", tmp_path / "ct", "compressed-tensors")
    config = json.loads((tmp_path / "ct" / "config.json").read_text())["quantization_config"]
    assert config["format"] == "mixed-precision"
    assert [group["targets"] for group in config["config_groups"].values()] == [["re:^a$"], ["re:^b$"]]
    checkpoints.convert_model(tmp_path / "model", tmp_path / "mo", "modelopt")
    config = json.loads((tmp_path / "mo" / "hf_quant_config.json").read_text())["quantization"]
    assert config["quantized_layers"] == {
        "a": {"quant_algo": "W4A16_NVFP4", "group_size": 16}, "b": {"quant_algo": "FP8"}
    }  # fmt: skip


def test_formats_of_two_kinds_in_one_section(tmp_path):
    """MLX has entries for single layers, GPTQ patterns; AWQ has neither."""
    (tmp_path / "model").mkdir()
    tensors = {f"{name}.weight": dlfp4.quantize(UP, "uint4_g32") for name in ("a.x", "b")}
    tensors["a.y.weight"] = dlfp4.quantize(UP, "uint4_g64")
    checkpoints.save(tmp_path / "model" / "model.safetensors", tensors)
    (tmp_path / "model" / "config.json").write_text("{}")
    tensors["a.k_proj.weight"] = tensors["a.y.weight"]
    checkpoints.save(tmp_path / "model" / "model.safetensors", tensors | {"c.weight": tensors["b.weight"]})
    for convention in ("mlx", "gptq"):
        checkpoints.convert_model(tmp_path / "model", tmp_path / convention, convention)
    config = json.loads((tmp_path / "mlx" / "config.json").read_text())
    groups = [{"group_size": length, "bits": 4, "mode": "affine"} for length in (32, 64)]
    said = groups[0] | dict.fromkeys(("a.y", "a.k_proj"), groups[1])
    assert config["quantization"] == config["quantization_config"] == said
    section = json.loads((tmp_path / "gptq" / "config.json").read_text())["quantization_config"]
    # Engines look for the layers that they fuse under names that no file has.
    others = {rf"+:^a\.{name}$": {"group_size": 64} for name in ("y", "k_proj", "qkv_proj")}
    assert (section["group_size"], section["dynamic"]) == (32, {"-:^lm_head$": {}, **others})
    with pytest.raises(
        ValueError, match="the model has uint4_g32, uint4_g64, and a configuration of awq has one length"
    ):
        checkpoints.convert_model(tmp_path / "model", tmp_path / "awq", "awq")
    assert not (tmp_path / "awq").exists()


@pytest.mark.parametrize("convention", ["dlfp4", "modelopt", "deepseek", "compressed-tensors"])
def test_the_mark_of_stable_diffusions_files_stays_there(tmp_path, convention):
    """Loaders of other conventions would not expect it."""
    there, back, unmarked = (tmp_path / name for name in "abc")
    q = dlfp4.quantize(UP, "fp8_e4m3")
    checkpoints.save(tmp_path / "q", {UPPER: q}, convention=None if convention == "dlfp4" else convention)
    checkpoints.convert_model(tmp_path / "q", there, "stable-diffusion")
    assert "scaled_fp8" in checkpoints.load(there)
    checkpoints.convert_model(there, back, convention)
    assert back.read_bytes() == (tmp_path / "q").read_bytes()
    checkpoints.save(tmp_path / "plain", {"scaled_fp8": np.zeros(0, np.uint8), UPPER: UP})
    checkpoints.convert_model(tmp_path / "plain", unmarked, convention)  # where nothing is quantized all is copied
    assert set(checkpoints.load(unmarked)) == {"scaled_fp8", UPPER}


FULL = """
import os, resource, sys
from dlfp4 import checkpoints

source, target, free = sys.argv[1:]
if free:
    os.statvfs = lambda folder: os.statvfs_result((4096, 4096, 99, int(free), int(free), 0, 0, 0, 0, 255))
else:
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    checkpoints.convert_model(source, target, "gguf")
except OSError as error:
    print(error.errno, error.filename, error.strerror)
"""


@pytest.mark.parametrize(
    ("free", "words"),
    [
        ("", "5 {} it cannot be written: "),
        ("3", "28 {} No space left on device: 32768 bytes are needed, 12288 are free"),
    ],
)
def test_a_full_disk_names_the_gguf_file(tmp_path, free, words):
    """At the start where it is known, later by NumPy, whose errors say neither what happened nor where."""
    pytest.importorskip("gguf")
    source, target = tmp_path / "a", tmp_path / "a.gguf"
    checkpoints.save(source, {UPPER: UP})
    target.write_bytes(b"old")
    command = [sys.executable, "-P", "-c", FULL, source, target, free]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.startswith(words.format(target))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "a.gguf"]
    assert target.read_bytes() == b"old"


def test_a_gguf_file_has_no_mark(tmp_path):
    """GGUF has no type for it, nor for FP8: its values are as MXFP4's here."""
    pytest.importorskip("gguf")
    q = dlfp4.quantize(UP, "mxfp4").to("fp8_e4m3")
    checkpoints.save(tmp_path / "a", {UPPER: q}, convention="stable-diffusion")
    checkpoints.convert_model(tmp_path / "a", tmp_path / "a.gguf", "gguf")
    checkpoints.convert_model(tmp_path / "a.gguf", tmp_path / "b", "dlfp4")
    (back,) = checkpoints.load(tmp_path / "b").values()
    np.testing.assert_array_equal(back.dequantize().to_numpy(), q.dequantize().to_numpy())


def test_what_a_convention_lacks_is_transcoded_and_told(tmp_path):
    """MLX's NVFP4 has no global scale, and ComfyUI has no MXFP4."""
    q = dlfp4.quantize(UP, "nvfp4")
    checkpoints.save(tmp_path / "a", {UPPER: q})
    (outcome,) = checkpoints.convert_model(tmp_path / "a", tmp_path / "b", "mlx")
    expected = q.to("mlx")
    assert (outcome.dtype, outcome.format) == ("nvfp4", "nvfp4")
    assert outcome.reason.startswith(f"from nvfp4: {expected.receipt.exact} of {expected.receipt.blocks} blocks exact")
    loaded = checkpoints.load(tmp_path / "b")[UPPER]
    np.testing.assert_array_equal(loaded.dequantize().to_numpy(), expected.dequantize().to_numpy())


# ---- Readers of others


def test_gguf_reads_it(tmp_path):
    gguf = pytest.importorskip("gguf")
    for format in ("mxfp4", "nvfp4"):
        given = tensors_of(format)
        checkpoints.save(tmp_path / "a.safetensors", given)
        checkpoints.convert_model(tmp_path / "a.safetensors", tmp_path / "a.gguf", "gguf")
        entries = {entry.name: entry for entry in gguf.GGUFReader(tmp_path / "a.gguf").tensors}
        for name in (UPPER, STACK):
            entry = entries[name]
            assert entry.tensor_type.name == format.upper()
            assert tuple(reversed(entry.shape)) == given[name].shape
            values = gguf.quants.dequantize(entry.data, entry.tensor_type).reshape(given[name].shape)
            if format == "nvfp4":
                units = entries[name.removesuffix(".weight") + ".scale"].data
                assert units.shape == ((1,) if name == UPPER else (3,))
                values = values * units[0]
            np.testing.assert_allclose(values, given[name].dequantize().to_numpy(), rtol=2e-7)
        np.testing.assert_array_equal(entries["norm.weight"].data, NORM)


def test_what_llama_cpp_quantizes_otherwise_is_decoded(tmp_path):
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    kind = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor("w.weight", gguf.quants.quantize(UP, kind), raw_dtype=kind)
    writer.add_tensor("b", EXPERTS.view(np.uint8).reshape(3, 32, 128), raw_dtype=gguf.GGMLQuantizationType.BF16)
    for write in (
        writer.write_header_to_file,
        writer.write_kv_data_to_file,
        writer.write_tensors_to_file,
        writer.close,
    ):
        write()
    checkpoints.convert_model(tmp_path / "a.gguf", tmp_path / "a.safetensors", "dlfp4")
    loaded = checkpoints.load(tmp_path / "a.safetensors")
    expected = gguf.quants.dequantize(gguf.quants.quantize(UP, kind), kind)
    np.testing.assert_array_equal(loaded["w.weight"].to_numpy(), expected)
    assert loaded["b"].to_numpy().tobytes() == EXPERTS.tobytes()


@pytest.mark.parametrize("shape", [(), (3,), (0, 4), (2, 1, 3, 4)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int8", "int16", "int32", "int64"])
def test_what_is_not_quantized_comes_back_from_gguf(tmp_path, dtype, shape):
    gguf = pytest.importorskip("gguf")
    x = np.asarray(RNG.normal(size=shape) * 9).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    checkpoints.save(tmp_path / "a.safetensors", {"w": x})
    checkpoints.convert_model(tmp_path / "a.safetensors", tmp_path / "a.gguf", "gguf")
    checkpoints.convert_model(tmp_path / "a.gguf", tmp_path / "b.safetensors", "dlfp4")
    (entry,) = gguf.GGUFReader(tmp_path / "a.gguf").tensors
    assert entry.data.tobytes() == x.tobytes()
    back = checkpoints.load(tmp_path / "b.safetensors")["w"]
    expected = (1,) if (dtype, shape) == ("bfloat16", ()) else shape
    assert (back.dtype.name, back.shape, back.to_numpy().tobytes()) == (dtype, expected, x.tobytes())


def test_blocks_that_the_package_does_not_decode_are_named(tmp_path):
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_tensor("w.weight", np.zeros((2, 292), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q8_K)
    for write in ("write_header_to_file", "write_kv_data_to_file", "write_tensors_to_file", "close"):
        getattr(writer, write)()
    with pytest.raises(ValueError, match=r"a\.gguf: w\.weight: Dequantization for Q8_K"):
        checkpoints.convert_model(tmp_path / "a.gguf", tmp_path / "a.safetensors", "dlfp4")


@pytest.mark.parametrize(("format", "mode", "bits"), [("mxfp4", "mxfp4", 4), ("mxfp8_e4m3", "mxfp8", 8)])
def test_mlx_reads_it(tmp_path, format, mode, bits):
    mx = pytest.importorskip("mlx.core")
    (tmp_path / "model").mkdir()
    given = tensors_of(format)
    checkpoints.save(tmp_path / "model" / "model.safetensors", given)
    (tmp_path / "model" / "config.json").write_text("{}")
    checkpoints.convert_model(tmp_path / "model", tmp_path / "out", "mlx")
    loaded = mx.load(str(tmp_path / "out" / "model.safetensors"))
    for name in (UPPER, STACK):
        scales = loaded[name.removesuffix("weight") + "scales"]
        values = mx.dequantize(loaded[name], scales, group_size=32, bits=bits, mode=mode)
        np.testing.assert_array_equal(np.array(values.astype(mx.float32)), given[name].dequantize().to_numpy())
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["quantization"] == config["quantization_config"] == {"group_size": 32, "bits": bits, "mode": mode}


# ---- What goes wrong


def test_faults_are_named(tmp_path):
    pytest.importorskip("gguf")
    source = tmp_path / "a.safetensors"
    for x, target, convention, message in (
        (
            dlfp4.quantize(UP * np.exp2(np.arange(128, dtype=np.float32) % 32 - 16), "mxfp8_e5m2"),
            "b.safetensors",
            "mlx",
            r"a.safetensors: w: mlx stores no mxfp8_e5m2.*as mxfp8_e4m3 it would lose precision",
        ),
        (dlfp4.quantize(UP, "mxfp6_e2m3"), "b.gguf", "gguf", r"a.safetensors: w: ggml has no blocks of mxfp6_e2m3"),
        (dlfp4.quantize(UP[:, :48], "nvfp4"), "b.gguf", "gguf", r"a.safetensors: w: .*multiples of 64"),
        (
            dlfp4.quantize(UP, "nvfp4", recipe=dlfp4.Recipe(global_scale_per="row")),
            "b.gguf",
            "gguf",
            r"a.safetensors: w: it has a global scale per row, but GGUF files have one per matrix",
        ),
        (dlfp4.quantize(UP, "nvfp4", hadamard=1), "b.gguf", "gguf", r"a.safetensors: w: .*Hadamard"),
        (dlfp4.quantize(UP, "nvfp4", hadamard=1), "b.safetensors", "mlx", r"a.safetensors: w: .*Hadamard"),
        (
            dlfp4.quantize(UP, "fp8_e4m3"),
            "b",
            "gpt-oss",
            r"gpt-oss stores no fp8_e4m3.*as mxfp4 it would lose precision",
        ),
        (np.ones(3, np.uint32), "b.gguf", "gguf", r"w: GGUF has no uint32"),
        (np.ones((1, 1, 1, 1, 3), np.float32), "b.gguf", "gguf", r"w has shape .*; GGUF's tensors have at most 4"),
        (np.ones(3, np.uint32), "b", "ggml", r"convention='ggml': expected one of dlfp4, "),
    ):
        checkpoints.save(source, {"w": x})
        with pytest.raises(ValueError, match=message):
            checkpoints.convert_model(source, tmp_path / target, convention)
    q = dlfp4.quantize(UP, "nvfp4")
    bare = dlfp4.ScaledTensor.from_parts(q.data, q.scales, format="nvfp4", shape=q.shape)  # without a global scale
    for tensors, message in (
        ({"w.weight": bare, "w.scale": NORM}, r"^w.scale is what GGUF files call the global scale of w.weight; rename"),
        ({"w.scale": q, "w.weight": q}, r"^w.scale is what "),
        ({"w": bare, "w.weight": q}, r"^w and w.weight: in GGUF files w.scale scales both; rename one"),
    ):
        checkpoints.save(source, tensors)
        with pytest.raises(ValueError, match=message):
            checkpoints.convert_model(source, tmp_path / "b.gguf", "gguf")
    checkpoints.save(source, {"w" * 64: UP})
    with pytest.raises(ValueError, match="names have at most 63 bytes"):
        checkpoints.convert_model(source, tmp_path / "b.gguf", "gguf")
    source.write_bytes(make_file(b'{"w\\udcff": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}', b"1"))
    for target, convention in (("b.gguf", "gguf"), ("b.safetensors", "dlfp4")):
        with pytest.raises(ValueError, match=r"a tensor is named 'w.udcff', and has a character"):
            checkpoints.convert_model(source, tmp_path / target, convention)
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]


def test_a_damaged_gguf_file_is_named(tmp_path):
    pytest.importorskip("gguf")
    checkpoints.save(tmp_path / "a.safetensors", tensors_of("nvfp4"))
    checkpoints.convert_model(tmp_path / "a.safetensors", tmp_path / "a.gguf", "gguf")
    content = (tmp_path / "a.gguf").read_bytes()
    for length in (0, 3, 8, 20, 40, 100, 300, len(content) - 1000):
        (tmp_path / "b.gguf").write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"b\.gguf"):
            checkpoints.convert_model(tmp_path / "b.gguf", tmp_path / "b.safetensors", "dlfp4")
    assert not (tmp_path / "b.safetensors").exists()


# ---- On the command line


def test_command_line(model, tmp_path):
    done = command_line("convert", model, "-o", tmp_path / "out", "--to", "compressed-tensors")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"{tmp_path / 'out'}: 3 tensors, 2 nvfp4"
    done = command_line("convert", tmp_path / "out", "-o", tmp_path / "no" / "out", "--to", "modelopt")
    assert done.returncode == 1
    assert "No such file" in done.stderr
    done = command_line("convert", model, "-o", tmp_path / "out", "--to", "nothing")
    assert done.returncode == 2


def test_deepseek_has_blocks_in_all_matrices_or_in_none(tmp_path):
    """Its configuration has one word for all; compressed-tensors' scale of one block has two dimensions."""
    rng = np.random.default_rng(0)
    (tmp_path / "a").mkdir()
    names = {f"layers.0.{name}_proj.weight": (128, 128 * n) for n, name in enumerate(("q", "up", "down"), 1)}
    tensors = {name: rng.normal(size=shape).astype(np.float32) for name, shape in names.items()}
    for number, (name, x) in enumerate(tensors.items(), 1):
        checkpoints.save(tmp_path / "a" / f"model-0000{number}-of-00003.safetensors", {name: x})
    (tmp_path / "a" / "config.json").write_text('{"model_type": "llama"}')
    checkpoints.quantize_model(tmp_path / "a", tmp_path / "b", "fp8_128x128", convention="deepseek")
    checkpoints.convert_model(tmp_path / "b", tmp_path / "c", "compressed-tensors")
    outcomes = checkpoints.convert_model(tmp_path / "c", tmp_path / "d", "deepseek")
    assert not any(outcome.reason for outcome in outcomes)
    for path in (tmp_path / "b").iterdir():
        if path.suffix in (".safetensors", ".json") and not path.name.startswith("."):
            assert (tmp_path / "d" / path.name).read_bytes() == path.read_bytes()
    checkpoints.save(tmp_path / "one.safetensors", {"up.weight": dlfp4.quantize(UP, "fp8_e4m3")}, convention="modelopt")
    checkpoints.convert_model(tmp_path / "one.safetensors", tmp_path / "two.safetensors", "deepseek")
    assert checkpoints.load(tmp_path / "two.safetensors")["up.weight"].format.name == "fp8_e4m3"
    (tmp_path / "mixed").mkdir()
    formats = {"layers.0.q_proj.weight": "fp8_e4m3", "layers.0.up_proj.weight": "fp8_128x128"}
    mixed = {name: dlfp4.quantize(tensors[name], format) for name, format in formats.items()}
    checkpoints.save(tmp_path / "mixed" / "model.safetensors", mixed)
    outcomes = checkpoints.convert_model(tmp_path / "mixed", tmp_path / "e", "deepseek")
    assert [outcome.reason for outcome in outcomes if outcome.reason] == [
        "from fp8_e4m3: 1 of 1 blocks exact, largest error 0"
    ]


@pytest.mark.parametrize(("convention", "format"), [("gpt-oss", "mxfp4"), ("llama-4", "nvfp4")])
def test_layers_that_loaders_do_not_know_are_said(tmp_path, convention, format):
    checkpoints.save(tmp_path / "a", tensors_of(format), convention="modelopt")
    reasons = {each.name: each.reason for each in checkpoints.convert_model(tmp_path / "a", tmp_path / "b", convention)}
    assert reasons == {
        UPPER: f"loaders of {convention} support stacks of experts only",
        STACK: "",
        "norm.weight": "",
    }


@pytest.mark.parametrize(("convention", "said"), [("compressed-tensors", True), ("modelopt", False), ("dlfp4", False)])
def test_stacks_that_loaders_do_not_know_are_said(tmp_path, convention, said):
    checkpoints.save(tmp_path / "a", tensors_of("mxfp4"), convention="gpt-oss")
    reasons = {each.name: each.reason for each in checkpoints.convert_model(tmp_path / "a", tmp_path / "b", convention)}
    assert reasons == {
        UPPER: "",
        STACK: "loaders of compressed-tensors do not support stacks" if said else "",
        "norm.weight": "",
    }
