"""Models of several files: folders, indices, lists of files."""

import json
import shutil

import numpy as np
import pytest

import dlfp4
from dlfp4 import checkpoints

RNG = np.random.default_rng(0)
UP = RNG.normal(size=(64, 64)).astype(np.float32)
DOWN = RNG.normal(size=(32, 64)).astype(np.float32)
FILES = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def write_index(folder, places):
    content = {"metadata": {"total_size": 1}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(content))


@pytest.fixture
def folder(tmp_path):
    """A model whose quantized tensor lies in two files: data in the first, scales in the second."""
    parts = checkpoints.split_parts({"up.weight": dlfp4.quantize(UP, "nvfp4"), "down.weight": DOWN}, "modelopt")
    first = {"up.weight": parts.pop("up.weight"), "bias": np.ones(3, np.float32)}
    for name, tensors in zip(FILES, (first, parts), strict=True):
        checkpoints.save(tmp_path / name, tensors)
    write_index(tmp_path, dict.fromkeys(first, FILES[0]) | dict.fromkeys(parts, FILES[1]))
    return tmp_path


def rewrite(folder, number, change):
    """Change the tensors of one file."""
    tensors = checkpoints.load(folder / FILES[number], join=False)
    change(tensors)
    checkpoints.save(folder / FILES[number], tensors)


def test_a_folder_of_models_names_them(tmp_path):
    """A pipeline of diffusers, for example."""
    for name in ("unet", "vae"):
        (tmp_path / name).mkdir()
        checkpoints.save(tmp_path / name / "diffusion_pytorch_model.safetensors", {"w": DOWN})
    with pytest.raises(ValueError, match=r"give a folder that holds a model, such as \S*unet, \S*vae, or a file"):
        checkpoints.load(tmp_path)
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match="give a folder that holds a model, or a file"):
        checkpoints.load(tmp_path / "none")


@pytest.mark.parametrize("nothing", ["", [""], ["", ""]])
def test_an_empty_name_is_not_the_current_folder(folder, monkeypatch, nothing):
    """A variable of a shell that is not set, for example."""
    monkeypatch.chdir(folder)
    assert checkpoints.load(".").keys() == checkpoints.load(folder).keys()
    for call in (
        checkpoints.load,
        checkpoints.inspect,
        lambda path: checkpoints.quantize_model(path, folder / "out", "nvfp4"),
        lambda path: checkpoints.convert_model(path, folder / "out", "dlfp4"),
        lambda path: checkpoints.convert_model(folder, path if isinstance(path, str) else "", "dlfp4"),
        lambda path: checkpoints.save(path if isinstance(path, str) else "", {}),
    ):
        with pytest.raises(FileNotFoundError, match=r"is an empty name; the current folder is '.'"):
            call(nothing)
    assert not (folder / "out").exists()


def test_every_way_to_name_a_model(folder):
    index = folder / "model.safetensors.index.json"
    files = [folder / name for name in FILES]
    for path in (folder, str(folder), index, files, tuple(map(str, files))):
        loaded = checkpoints.load(path)
        assert set(loaded) == {"up.weight", "down.weight", "bias"}
        expected = dlfp4.quantize(UP, "nvfp4")
        assert (
            loaded["up.weight"].data.view("uint8").to_numpy().tobytes()
            == expected.data.view("uint8").to_numpy().tobytes()
        )
        np.testing.assert_array_equal(loaded["up.weight"].dequantize().to_numpy(), expected.dequantize().to_numpy())
        np.testing.assert_array_equal(loaded["down.weight"].to_numpy(), DOWN)
        parts = checkpoints.load(path, join=False)
        assert set(parts) == {"up.weight", "up.weight_scale", "up.weight_scale_2", "down.weight", "bias"}
    index.unlink()
    assert set(checkpoints.load(folder)) == {"up.weight", "down.weight", "bias"}


def test_what_the_index_does_not_name_is_not_of_the_model(folder):
    checkpoints.save(folder / "consolidated.safetensors", {"bias": np.zeros(1, np.float32)})
    assert checkpoints.load(folder)["bias"].shape == (3,)


def test_bytes(tmp_path):
    q = dlfp4.quantize(UP, "mxfp6_e2m3")
    checkpoints.save(tmp_path / "model.safetensors", {"q": q, "bias": np.arange(3)})
    content = (tmp_path / "model.safetensors").read_bytes()
    for each in (content, bytearray(content), memoryview(content)):
        loaded = checkpoints.load(each)
        assert loaded["q"].format == "mxfp6_e2m3"
        np.testing.assert_array_equal(loaded["q"].dequantize().to_numpy(), q.dequantize().to_numpy())
        assert loaded["bias"].tolist() == [0, 1, 2]
    for bad in (b"", content[:-1], content + b"\0", b"\xff" * 16):
        with pytest.raises(ValueError, match=r"^the (bytes are|content is) not a safetensors file"):
            checkpoints.load(bad)


def test_memoryviews(tmp_path):
    checkpoints.save(tmp_path / "model.safetensors", {"bias": np.arange(3)})
    octets = np.frombuffer((tmp_path / "model.safetensors").read_bytes(), np.uint8)
    whole = {"lines": octets.reshape(-1, 8), "words": octets.view("=u8")}
    for name, array in whole.items():
        assert checkpoints.load(memoryview(array))["bias"].tolist() == [0, 1, 2], name
    doubled = memoryview(np.repeat(octets, 2))[::2]
    for view in (doubled, memoryview(octets.reshape(-1, 8).T)):
        for call in (checkpoints.load, checkpoints.inspect):
            with pytest.raises(ValueError, match=r"memoryview of shape .* do not lie one after another.*; give bytes"):
                call(view)
    assert checkpoints.load(bytes(doubled))["bias"].tolist() == [0, 1, 2]
    for view in (doubled[:0], memoryview(np.zeros((0, 3), np.uint8))):
        with pytest.raises(ValueError, match=r"^the bytes are not a safetensors file: 0 of them"):
            checkpoints.load(view)


def test_files_of_save_come_back_from_a_folder(tmp_path):
    tensors = {"a": dlfp4.quantize(UP, "mxfp6_e2m3"), "b": dlfp4.quantize(UP, "nvfp4", axis=-2), "c": DOWN}
    for number, (name, x) in enumerate(tensors.items()):
        checkpoints.save(tmp_path / f"{number}.safetensors", {name: x})
    loaded = checkpoints.load(tmp_path)
    assert {name: getattr(x, "format", None) for name, x in loaded.items()} == {
        "a": "mxfp6_e2m3",
        "b": "nvfp4",
        "c": None,
    }
    assert loaded["b"].axis == -2


def lack_a_file(folder):
    (folder / FILES[1]).unlink()


def lack_a_numbered_file(folder):
    (folder / "model.safetensors.index.json").unlink()
    (folder / FILES[1]).unlink()


def lack_a_scale(folder):
    rewrite(folder, 1, lambda tensors: tensors.pop("up.weight_scale"))


def rename_a_scale(folder):
    rewrite(folder, 1, lambda tensors: tensors.update({"up.weight_scales": tensors.pop("up.weight_scale")}))


def double_a_tensor(folder):
    rewrite(folder, 1, lambda tensors: tensors.update({"bias": np.ones(3, np.float32)}))


def move_a_tensor(folder):
    scale = checkpoints.load(folder / FILES[1], join=False)["up.weight_scale"].copy()
    lack_a_scale(folder)
    rewrite(folder, 0, lambda tensors: tensors.update({"up.weight_scale": scale}))


def add_an_index(folder):
    shutil.copy(folder / "model.safetensors.index.json", folder / "other.safetensors.index.json")


def damage_a_file(folder):
    (folder / FILES[1]).write_bytes((folder / FILES[1]).read_bytes()[:-1])


def leave_the_folder(folder):
    write_index(folder, {"bias": "../elsewhere.safetensors"})


def nest_files(folder):
    for name in ("a", "b"):
        (folder / name).mkdir()
        checkpoints.save(folder / name / "x.safetensors", {name: DOWN})
    write_index(folder, {"a": "a/x.safetensors", "b": "b/x.safetensors"})


def write_text(text):
    return lambda folder: (folder / "model.safetensors.index.json").write_text(text)


def test_a_gguf_file_is_called_one(tmp_path):
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    for take in (checkpoints.load, checkpoints.inspect):
        with pytest.raises(ValueError, match=r"a\.gguf is a GGUF file, expected safetensors; python -m dlfp4 convert"):
            take(tmp_path / "a.gguf")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lack_a_file, r"index.json names files that are not there: model-00002-of-00002.safetensors"),
        (lack_a_numbered_file, r"lacks model-00002-of-00002.safetensors"),
        (lack_a_scale, r"index.json does not fit its files: up.weight_scale is missing in .*model-00002"),
        (
            rename_a_scale,
            r"up.weight_scale is missing in .*; up.weight_scales of .*model-00002\S* is not in the index; were they",
        ),
        (double_a_tensor, r"bias is stored twice, in .*model-00001\S* and in .*model-00002\S*; leave out the one"),
        (move_a_tensor, r"up.weight_scale is missing in .*model-00002\S*, it lies in .*model-00001"),
        (add_an_index, r"has several indices, model.safetensors.index.json, other.safetensors.index.json"),
        (damage_a_file, r"model-00002-of-00002.safetensors is not a safetensors file, or is damaged"),
        (leave_the_folder, r"index.json says that 'bias' lies in '../elsewhere.safetensors'"),
        (nest_files, r"two files are called x.safetensors"),
        (write_text("{"), r"index.json is not JSON"),
        (write_text("[]"), r"index.json is a JSON list, expected an object"),
        (write_text("{}"), r"index.json is not the index of a model"),
        (write_text('{"weight_map": {}}'), r"index.json names no tensors"),
        (write_text('{"weight_map": {"a": "x", "a": "y"}}'), r"index.json is not JSON: 'a' comes twice"),
        (write_text('{"weight_map": {"a": 1}}'), r"says that 'a' lies in 1"),
        (write_text('{"weight_map": {"a": "/x.safetensors"}}'), r"says that 'a' lies in '/x\.safetensors'; expected"),
        (
            write_text('{"weight_map": {"a": "x\\u0000"}}'),
            r"says that 'a' lies in 'x\\x00'; expected the name of a file",
        ),
    ],
)
def test_faults_are_named(folder, damage, message):
    damage(folder)
    with pytest.raises(ValueError, match=message):
        checkpoints.load(folder)


def test_one_file_under_two_spellings_of_its_name(folder):
    places = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    whole = checkpoints.load(folder)
    for name in ("up.weight", "bias"):
        write_index(folder, places | {name: f".//{places[name]}"})
        assert list(checkpoints.load(folder)) == list(whole)


def test_no_model(tmp_path):
    with pytest.raises(ValueError, match=r"has no \.safetensors files"):
        checkpoints.load(tmp_path)
    with pytest.raises(ValueError, match="no files"):
        checkpoints.load([])
    with pytest.raises(FileNotFoundError):
        checkpoints.load(tmp_path / "nothing")


@pytest.mark.parametrize("path", [None, 3, {}, [None], np.zeros(3, np.uint8)], ids=repr)
def test_what_is_no_path_is_named(tmp_path, path):
    file = tmp_path / "a.safetensors"
    checkpoints.save(file, {"up_proj.weight": np.ones((64, 64), np.float32)})
    what = "file 0 of the model is of type NoneType" if isinstance(path, list) else "the model is of type"
    for read in (
        checkpoints.load,
        checkpoints.inspect,
        lambda path: checkpoints.quantize_model(path, tmp_path / "b", "nvfp4"),
        lambda path: checkpoints.convert_model(path, tmp_path / "b", "dlfp4"),
    ):
        with pytest.raises(TypeError, match=what):
            read(path)
    for what, write in (
        ("path", checkpoints.read_metadata),
        ("path", lambda path: checkpoints.save(path, {})),
        ("target", lambda path: checkpoints.quantize_model(file, path, "nvfp4")),
        ("target", lambda path: checkpoints.convert_model(file, path, "dlfp4")),
    ):
        with pytest.raises(TypeError, match=f"{what} is of type {type(path).__name__}; expected a path"):
            write(path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exclude": [3]}, r"exclude=\[3\]: expected a pattern of names"),
        ({"executor": 3}, r"executor is of type int; expected a concurrent\.futures\.Executor"),
        ({"report": 3}, "report is of type int; expected a function"),
    ],
    ids=str,
)
def test_options_of_other_types_are_named(tmp_path, options, message):
    checkpoints.save(tmp_path / "a.safetensors", {"up_proj.weight": np.ones((64, 64), np.float32)})
    with pytest.raises(TypeError, match=message):
        checkpoints.quantize_model(tmp_path / "a.safetensors", tmp_path / "b", "nvfp4", **options)
    assert not (tmp_path / "b").exists()
    with pytest.raises(TypeError, match="tensors is of type NoneType"):
        checkpoints.selection.choose(None, "nvfp4")
