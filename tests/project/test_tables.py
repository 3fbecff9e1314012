"""Tables of the documentation's pages, asked of the library: what element types are in PyTorch and JAX, activations,
conversions between formats.
"""

import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import dlfp4
from dlfp4.formats import ACTIVATIONS

pytestmark = pytest.mark.arithmetic  # the same on every Python

DOCS = Path(__file__).parents[2] / "docs"
K = 256
X = np.random.default_rng(11).normal(size=(4, K)).astype("float32")


def rows_of(page, *first):
    """The rows of the table whose first columns have those names, each with its cells."""
    lines = (DOCS / page).read_text().split(f"| {' | '.join(first)} |")[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def named(cell):
    """The words of a cell that are set as code."""
    return re.findall(r"`([^`]+)`", cell)


def check_types(said, found):
    """Each kind of elements has the types that its row names; and, where it names one, its last extent."""
    for kind, tensors in found.items():
        names, depths = [], set()
        for word in named(said[kind]):
            depth = re.fullmatch(r"\(\.\.\., ([K\d */]+)\)", word)
            if depth:
                depths.add(eval(depth[1], {"K": K}))
            else:
                names.append(word)
        assert sorted({str(tensor.dtype) for tensor in tensors}) == sorted(names), kind
        assert not depths or {tensor.shape[-1] for tensor in tensors} == depths, kind


def test_types_in_pytorch():
    torch = pytest.importorskip("torch")
    import dlfp4.torch as ours

    said, x = dict(rows_of("torch.md", "dlfp4", "in PyTorch")), torch.from_numpy(X)
    fp4, fp6 = ours.cast(x, "float4_e2m1fn"), ours.cast(x, "float6_e2m3fn")
    bytes_of_fp6 = ours.unpack(ours.Parts(fp6, type="float6_e2m3fn"))
    fp8 = [ours.cast(x, "float8_e4m3fn"), ours.quantize(x, "mxfp8_e4m3").scales]
    check_types(said, {
        "FP4, packed": [fp4], "FP6, packed": [fp6], "FP8, FP8 scales": fp8,
        "FP4 and FP6, one element a byte": [ours.unpack(fp4), bytes_of_fp6],
    })  # fmt: skip
    assert named(said["a quantized tensor"]) == ["ScaledTensor", f"Parts({', '.join(ours.Parts._fields)})"]
    q = ours.quantize(x, "uint4_g32")
    assert isinstance(q, ours.ScaledTensor)
    assert q.offsets.dtype == torch.uint8
    assert named(said["zero points and biases of integers"]) == ["offsets", "torch.uint8"]


def test_calls_in_place_of_torchaos():
    torch = pytest.importorskip("torch")
    places = ("", ".mx_tensor", ".nvfp4_tensor")
    torchao = [pytest.importorskip(f"torchao.prototype.mx_formats{place}") for place in places]
    import dlfp4.torch as ours

    for theirs, instead in rows_of("torch.md", "torchao", "dlfp4"):
        for name in re.findall(r"\b\w+(?:Config|Tensor)\b", theirs):
            assert any(hasattr(module, name) for module in torchao), name
        for call in named(instead):
            if call.startswith("dlfp4.torch.quantize_("):
                model = torch.nn.Sequential(torch.nn.Linear(64, 32))
                eval(call, {"dlfp4": dlfp4, "model": model})
                assert isinstance(model[0].weight, ours.ScaledTensor), call
    options = named(dict(rows_of("torch.md", "torchao", "dlfp4"))["`filter_fn=`"])
    assert {option.rstrip("=") for option in options} <= inspect.signature(ours.quantize_).parameters.keys()


def test_types_in_jax():
    jax = pytest.importorskip("jax")
    import dlfp4.jax as ours

    said, x = dict(rows_of("jax.md", "dlfp4", "in JAX")), jax.numpy.asarray(X)
    fp4, fp6 = ours.cast(x, "float4_e2m1fn"), ours.cast(x, "float6_e2m3fn")
    bytes_of_fp6 = ours.unpack(fp6, "float6_e2m3fn")
    fp8 = [ours.cast(x, "float8_e4m3fn"), ours.quantize(x, "mxfp8_e4m3").scales]
    check_types(said, {
        "FP4, packed": [fp4], "FP6, packed": [fp6], "FP8 and FP8 scales": fp8,
        "FP4 and FP6, one element a byte": [ours.unpack(fp4), bytes_of_fp6],
    })  # fmt: skip
    assert named(said["a quantized tensor"]) == ["dlfp4.jax.ScaledArray"]
    assert isinstance(ours.quantize(x, "nvfp4"), ours.ScaledArray)


def test_activations():
    said = {named(name)[0].strip('"'): cells for name, *cells in rows_of("matmul.md", "activation", "x becomes")}
    assert said.keys() == ACTIVATIONS.keys()
    for name, (becomes, weights) in said.items():
        format = ACTIVATIONS[name]
        if format is not None:
            assert format in (*named(becomes), name)
        kinds = {"FP4": "nvfp4 mxfp4", "MX formats; K is a multiple of 32": "mxfp4 mxfp6_e2m3 mxfp8_e4m3"}
        for weight in named(weights) or kinds[weights].split():
            w = dlfp4.quantize(X, weight)
            product = dlfp4.matmul(X, w.mT, activation=name).to_numpy()
            if format is not None:
                rounded = dlfp4.quantize(X, format, recipe="ocp" if name == "mxfp8" else None)
                assert product.tobytes() == dlfp4.matmul(rounded, w.mT).to_numpy().tobytes(), (name, weight)


def formats_of(cell):
    """The formats that a cell names, those that begin so of a name that ends with dots."""
    words = [word.strip(",") for word in cell.split()]
    return [
        name for name in dlfp4.formats()
        if any(name.startswith(word[:-1]) if word.endswith("…") else name == word for word in words)
    ]  # fmt: skip


def length_of(name):
    """How many values of a line share a scale."""
    format = dlfp4.formats()[name]
    return K if format.scales_lines or format.block is None else format.block[-1]


def with_scales(powers):
    """Values of FP4 times so many powers of two, of which larger blocks have the first and the last."""
    values = np.random.default_rng(13).choice(np.float32([0.5, 1, -1.5, 2, -3, 4]), (128, K))
    values[:, ::32], values[:, 1::32] = 6, 0.5
    steps = (np.arange(128)[:, None] + np.resize([0, powers - 1, 3, 5], K // 32)) % powers
    return values * np.repeat(np.exp2(steps - 7.0), 32, axis=1).astype("float32")


def is_exact(q, other):
    changed = q.to(other)
    same = changed.dequantize().to_numpy().tobytes() == q.dequantize().to_numpy().tobytes()
    assert changed.receipt.is_exact == same
    return same


CONVERSIONS = rows_of("checkpoints.md", "from", "to", "exact")


def test_conversions_that_are_always_exact():
    tried = 0
    for first, second, exact in CONVERSIONS:
        for name in formats_of(first) if exact == "always" else ():
            q = dlfp4.quantize(with_scales(40), name, recipe="deepseek-ue8m0" if "power-of-two" in first else None)
            for other in formats_of(second):
                if "as long or shorter" not in second or length_of(other) <= length_of(name):
                    assert is_exact(q, other), (name, other)
                    tried += 1
    assert tried > 40


def test_conversions_that_are_exact_where_scales_are_near():
    of_mxfp4 = [
        (formats_of(to), re.search(r"at most (\d+) powers", exact))
        for start, to, exact in CONVERSIONS
        if start == "mxfp4"
    ]
    spans = [(others, int(most[1])) for others, most in of_mxfp4 if most]
    assert sum(len(others) for others, _ in spans) == 5
    for others, most in spans:
        near, far = (dlfp4.quantize(with_scales(powers), "mxfp4") for powers in (most, most + 1))
        for other in others:
            assert (is_exact(near, other), is_exact(far, other)) == (True, False), other
