"""``python -m dlfp4 quantize``, as a user runs it, and what it calls."""

import itertools
import json
import math
import os
import pty
import re
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

import dlfp4
from dlfp4 import checkpoints
from dlfp4.analysis import signal_to_noise
from dlfp4.checkpoints import quantize_model
from dlfp4.checkpoints.commands import sum_up
from dlfp4.checkpoints.folders import Outcome

from ..support.command_line import command_line

TENSORS = {
    "up.weight": np.random.default_rng(0).normal(size=(50, 64)).astype(np.float32),
    "layer.0.weight": np.random.default_rng(1).normal(size=(16, 64)).astype(ml_dtypes.bfloat16),
    "layer.0.bias": np.ones(64, np.float32),
    "experts.weight": np.random.default_rng(2).normal(size=(2, 16, 32)).astype(np.float16),
    "ragged.weight": np.ones((4, 50), np.float32),
    "ids": np.arange(128).reshape(2, 64),
    "double.weight": np.ones((2, 64)),
    "empty.weight": np.ones((0, 64), np.float32),
    "zeros.weight": np.zeros((2, 64), np.float32),
}
QUANTIZED = {"up.weight", "layer.0.weight", "experts.weight", "empty.weight", "zeros.weight"}


@pytest.fixture
def source(tmp_path):
    checkpoints.save(tmp_path / "model.safetensors", TENSORS, {"format": "pt"})
    return tmp_path / "model.safetensors"


@pytest.fixture
def target(tmp_path):
    return tmp_path / "out.safetensors"


def test_command_line(source, target):
    result = command_line("quantize", source, "--format", "nvfp4", "-o", target)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["tensor", "shape", "from", "to", "bytes", "bytes", "after", "SNR", "dB"]
    rows = {line.split()[0]: line.split()[1:] for line in lines[1:] if line}
    assert rows["up.weight"][:5] == ["50x64", "float32", "nvfp4", "12,800", "1,804"]
    assert 19 < float(rows["up.weight"][5]) < 22
    assert rows["ragged.weight"] == ["4x50", "float32", "kept", "800", "800"]
    assert "layer.0.bias" not in rows
    assert f"{target}: 5 of 9 tensors quantized" in lines[-1]
    assert result.stderr.splitlines()[0] == "[1/9] up.weight"
    loaded = checkpoints.load(target)
    assert list(loaded) == list(TENSORS)
    assert {name for name, tensor in loaded.items() if isinstance(tensor, dlfp4.ScaledTensor)} == QUANTIZED
    assert checkpoints.read_metadata(target) == {"format": "pt"}


@pytest.mark.parametrize("format", list(dlfp4.formats()))
def test_every_format(source, target, format):
    outcomes = {outcome.name: outcome for outcome in quantize_model(source, target, format)}
    assert list(outcomes) == list(TENSORS)
    for name, tensor in checkpoints.load(target).items():
        assert outcomes[name].before == TENSORS[name].nbytes
        assert outcomes[name].after == tensor.nbytes
        if isinstance(tensor, dlfp4.ScaledTensor):
            expected = dlfp4.quantize(TENSORS[name], format)
            np.testing.assert_array_equal(tensor.dequantize().to_numpy(), expected.dequantize().to_numpy())
            assert outcomes[name].format == format
        else:
            np.testing.assert_array_equal(tensor.to_numpy(), TENSORS[name])
            assert math.isnan(outcomes[name].snr)


def test_patterns_recipe_and_convention(source, target):
    options = ("--include", "*.weight", "--exclude", "up.*", "--exclude", "e[m]pty*", "--convention", "modelopt")
    result = command_line(
        "quantize", source, "--format", "mxfp4", "--recipe", "transformer-engine-rocm", "-o", target, *options
    )
    assert result.returncode == 0, result.stderr
    loaded = checkpoints.load(target)
    assert {name for name, tensor in loaded.items() if isinstance(tensor, dlfp4.ScaledTensor)} == {
        "layer.0.weight", "experts.weight", "zeros.weight"
    }  # fmt: skip
    assert checkpoints.load(target, join=False)["layer.0.weight"].dtype == np.uint8
    assert set(loaded["zeros.weight"].scales.view("uint8").to_numpy().flat) == {127}  # as only that recipe does


def test_a_quantized_file_is_kept_as_it_is(source, target):
    quantize_model(source, target, "nvfp4", exclude=["up.weight"])
    before = checkpoints.load(target)
    more = target.with_name("more.safetensors")
    outcomes = quantize_model(target, more, "mxfp4")
    assert [outcome.name for outcome in outcomes if outcome.format] == ["up.weight"]
    after = checkpoints.load(more)
    assert after["up.weight"].format == "mxfp4"
    assert after["layer.0.weight"].format == before["layer.0.weight"].format == "nvfp4"


def test_bar_on_a_terminal(source, target):
    pytest.importorskip("rich")
    reader, writer = pty.openpty()
    try:
        command = [sys.executable, "-P", "-m", "dlfp4", "quantize", source, "--format", "mxfp4", "-o", target]
        environment = os.environ | {"TERM": "xterm"}
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=writer, timeout=120, check=True, env=environment)
        shown = os.read(reader, 1 << 16).decode()
    finally:
        os.close(reader)
        os.close(writer)
    assert "quantizing" in shown
    assert "[1/9]" not in shown


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--format", "nvfp5"], 2, "invalid choice: 'nvfp5'"),
        (
            ["--format", "nvfp4", "--recipe", "ocp"],
            1,
            "nvfp4 takes nvidia, transformer-engine, flashinfer, modelopt, compressed-tensors, mlx",
        ),
        (["--format", "nvfp4", "--convention", "gpt-oss"], 1, "gpt-oss stores no nvfp4; it has mxfp4"),
        (["--format", "nvfp4", "--recipe", "ocp"], 1, "--recipe 'ocp' is for mx formats; "),
        (["--format", "nvfp4", "--include", "*.weigth"], 1, "--include '*.weigth' matches no tensor of"),
        (["--format", "nvfp4", "--exclude", "re:("], 1, "--exclude 're:(' is not a regular expression"),
        (["--format", "nvfp4", "--include", "bias"], 1, "--include 'bias' chooses nothing, as what it matches is kept"),
        (
            ["--format", "fp8_128x128", "--recipe", "deepseek", "--convention", "deepseek-v4"],
            1,
            "e8m0 stores them; quantize with --recipe 'deepseek-ue8m0'",
        ),
    ],
)
def test_mistakes_are_named(source, target, arguments, status, message):
    result = command_line("quantize", source, "-o", target, *arguments)
    assert result.returncode == status
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not target.exists()


def test_remedies_are_options(tmp_path, target):
    """In Python the same words are arguments."""
    names = ("lm_head.weight", "model.embed_tokens.weight", "mlp.experts.weight", "mlp.gates", "up.weight")
    x = np.ones((64, 64), np.float32)
    checkpoints.save(tmp_path / "model", {name: x[None] if "experts" in name else x for name in names})
    result = command_line("quantize", tmp_path / "model", "--format", "mxfp4", "-o", target)
    assert result.returncode == 0, result.stderr
    for remedy in (
        "kept: output head; --include-heads quantizes it: lm_head.weight",
        "kept: embedding; --include-embeddings quantizes it: model.embed_tokens.weight",
        "kept: not called a weight; --include names it: mlp.gates",
        "mxfp4: taken as (experts, out, in); --axis -2 if it is (experts, in, out): mlp.experts.weight",
    ):
        assert remedy in result.stdout.splitlines()
    assert not re.search(r"include_|axis=", result.stdout)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"convention": "gpt-oss"}, "gpt-oss stores no nvfp4"),
        ({"recipe": "ocp"}, "nvfp4 takes nvidia, transformer-engine, flashinfer, modelopt, compressed-tensors, mlx"),
    ],
)
def test_what_does_not_go_with_the_format_is_told_before_any_work(source, target, options, message):
    with pytest.raises(ValueError, match=message):
        quantize_model(source, target, "nvfp4", **options, report=lambda *_: pytest.fail("work began"))


def test_what_the_convention_does_not_store_is_told_before_any_work(tmp_path, target):
    w = np.ones((4, 64), np.float32)
    checkpoints.save(tmp_path / "mixed.safetensors", {"a": dlfp4.quantize(w, "mxfp6_e2m3"), "b": w})
    with pytest.raises(ValueError, match="a: modelopt stores no mxfp6_e2m3"):
        quantize_model(
            tmp_path / "mixed.safetensors",
            target,
            "nvfp4",
            convention="modelopt",
            report=lambda *_: pytest.fail("work began"),
        )


def test_a_place_where_no_file_can_be_is_told_before_any_work(source, tmp_path, monkeypatch):
    monkeypatch.setattr(dlfp4, "quantize", None)  # not to be called
    for target, error in ((tmp_path, IsADirectoryError), (tmp_path / "no" / "out.safetensors", FileNotFoundError)):
        with pytest.raises(error, match=re.escape(repr(str(target)))):
            quantize_model(source, target, format="mxfp4")


def test_the_model_itself_is_never_written_over(source, tmp_path):
    """By whatever name, nor by a conversion, nor by a file that is made of a folder."""
    before, link = source.read_bytes(), tmp_path / "link.safetensors"
    link.symlink_to(source)
    for place in (source, link, source.parent / "." / source.name):
        with pytest.raises(ValueError, match="is the model itself, or a file of it; name another file"):
            quantize_model(source, place, "mxfp4")
        with pytest.raises(ValueError, match="is the model itself"):
            checkpoints.convert_model(source, place, "modelopt")
        with pytest.raises(ValueError, match="is the model itself"):
            checkpoints.convert_model(source, place, "gguf")
    with pytest.raises(ValueError, match="is the model itself"):
        checkpoints.convert_model([source], source, "gguf")
    assert source.read_bytes() == before


@pytest.mark.parametrize("names", [("model-00001-of-00002", "model-00002-of-00002"), ("experts", "rest")])
def test_no_other_file_of_the_model_is_written_over(source, tmp_path, names):
    """Those of its numbers, and of its index; what else lies there is replaced."""
    first, other = (tmp_path / f"{name}.safetensors" for name in names)
    source.rename(first)
    weights = checkpoints.load(first)
    checkpoints.save(other, {"other.weight": next(iter(weights.values()))})
    places = {**dict.fromkeys(weights, f"./{first.name}"), "other.weight": other.name}
    index = tmp_path / "model.safetensors.index.json"
    if "-of-" not in first.name:
        index.write_text(json.dumps({"weight_map": places}))
    before, link = other.read_bytes(), tmp_path / "link.safetensors"
    link.hardlink_to(other)
    for place in (other, link):
        with pytest.raises(ValueError, match="is the model itself, or a file of it; name another file"):
            quantize_model(first, place, "mxfp4")
        with pytest.raises(ValueError, match="is the model itself, or a file of it; name another file"):
            checkpoints.convert_model(first, place, "modelopt")
    assert other.read_bytes() == before
    elsewhere = tmp_path / "other-00002-of-00002.safetensors"
    elsewhere.write_bytes(before)
    for _ in range(2):
        quantize_model(first, elsewhere, "mxfp4")
    index.write_text("{")
    quantize_model(first, elsewhere, "mxfp4")


def test_of_two_files_that_are_not_there_the_model_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=re.escape(repr(str(tmp_path / "model.safetensors")))):
        quantize_model(tmp_path / "model.safetensors", tmp_path / "no" / "out.safetensors", "mxfp4")


def test_no_file_and_no_safetensors_file(tmp_path, target):
    result = command_line("quantize", tmp_path / "nothing", "--format", "nvfp4", "-o", target)
    assert result.returncode == 1
    assert "No such file" in result.stderr
    (tmp_path / "text").write_text("hello world")
    result = command_line("quantize", tmp_path / "text", "--format", "nvfp4", "-o", target)
    assert result.returncode == 1
    assert "is not a safetensors file" in result.stderr


def test_what_a_convention_cannot_store_is_kept(tmp_path, target):
    """128 rows of a block would be of two experts."""
    experts = np.random.default_rng(3).normal(size=(2, 192, 256)).astype(np.float32)
    checkpoints.save(tmp_path / "experts.safetensors", {"experts": experts, "whole": experts[0, :128]})
    for convention, kept in (("deepseek", True), (None, False)):
        outcomes = quantize_model(tmp_path / "experts.safetensors", target, "fp8_128x128", convention=convention)
        assert [outcome.format for outcome in outcomes] == ["" if kept else "fp8_128x128", "fp8_128x128"]
    quantize_model(tmp_path / "experts.safetensors", target, "fp8_128x128", convention="deepseek")
    loaded = checkpoints.load(target)
    assert loaded["experts"].to_numpy().tobytes() == experts.tobytes()
    assert isinstance(loaded["whole"], dlfp4.ScaledTensor)


def test_what_has_no_ratio_is_the_worst():
    def outcome(name, snr):
        return Outcome(name, (2, 32), "float32", "mxfp4", 256, 34, snr)

    for order in itertools.permutations(
        (outcome("good", 20.0), outcome("broken", math.nan), outcome("exact", math.inf))
    ):
        assert sum_up(order).endswith("SNR 20.0 dB (median), nan dB (broken)")


def test_signal_to_noise():
    x = np.random.default_rng(0).normal(size=(3, 1 << 20)).astype(np.float32)  # several chunks
    q = dlfp4.quantize(x, "mxfp8_e4m3")
    error = x.astype(np.float64) - q.dequantize().to_numpy()
    expected = 10 * np.log10((x.astype(np.float64) ** 2).sum() / (error**2).sum())
    assert signal_to_noise(dlfp4.asarray(x), q) == pytest.approx(expected, abs=0.1)  # by a sample
    few, of_few = dlfp4.asarray(x[:, :64]), dlfp4.quantize(x[:, :64], "nvfp4")
    error = few.to_numpy().astype(np.float64) - of_few.dequantize().to_numpy()
    expected = 10 * np.log10((few.to_numpy().astype(np.float64) ** 2).sum() / (error**2).sum())
    assert signal_to_noise(few, of_few) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("format", dlfp4.formats())
@pytest.mark.parametrize(("shape", "axis"), [((2, 256, 512), -1), ((700, 1024), -1), ((512, 256), -2)])
def test_signal_to_noise_of_every_format(format, shape, axis):
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    q = dlfp4.quantize(x, format, axis=axis, pad=True)
    error = x - q.dequantize().to_numpy()
    assert signal_to_noise(dlfp4.asarray(x), q) == pytest.approx(
        10 * np.log10((x**2).sum() / (error**2).sum()), abs=0.2
    )
    largest = dlfp4.asarray(np.full((2, 32), np.finfo(np.float32).max, np.float32))
    assert signal_to_noise(largest, dlfp4.quantize(largest, "mxfp4", recipe="nvidia")) == -math.inf
    zeros = dlfp4.asarray(np.zeros((2, 32), np.float32))
    assert signal_to_noise(zeros, dlfp4.quantize(zeros, "mxfp4")) == math.inf
