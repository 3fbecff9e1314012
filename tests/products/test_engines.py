"""What each backend says of problems on machines that are not here, and the order in which `auto` asks them.

Operands are descriptions of CUDA memory, which need no driver.
"""

import dataclasses
import importlib
from types import SimpleNamespace

import numpy as np
import pytest

import dlfp4
from dlfp4.engines import cuda, cuda_fp8, flashinfer, scaled_mm
from dlfp4.engines.problem import Backend, Machine, Problem

from ..support.capsules import Made
from .test_matmul import values

matmul = importlib.import_module("dlfp4.matmul")  # the package's attribute of that name is the function

ALL = {row.name: None for row in matmul.BACKENDS}
HOPPER, BLACKWELL = Machine((9, 0), ALL), Machine((10, 0), ALL)


def marked(x):
    """A Tensor or ScaledTensor whose memory is said to be a GPU's."""
    if isinstance(x, dlfp4.ScaledTensor):
        parts = [None if part is None else marked(part) for part in (x.data, x.scales, x.global_scale)]
        return dlfp4.ScaledTensor.from_parts(
            *parts, format=x.format, axis=x.axis, scale_layout=x.scale_layout, shape=x.shape
        )
    x = dlfp4.asarray(x)
    memory = np.zeros(max(x.nbytes, 1), np.uint8)
    return dlfp4.from_dlpack(Made(memory, dtype=x.dtype.name, shape=x.shape, strides=x.strides, device=(2, 0)).capsule)


def problem(a, b, dtype="bfloat16", **options):
    return Problem(marked(a), marked(b).mT, np.dtype(dtype), **options)


def quantized(name, shape=(32, 64), layout="linear"):
    return dlfp4.quantize(values(shape), name, scale_layout=layout)


# ---- scaled_mm


@pytest.mark.parametrize("names", [("fp8_e4m3", "fp8_e4m3"), ("fp8_e5m2", "fp8_e4m3")])
def test_scaled_mm_takes_fp8(names):
    asked = problem(*(quantized(name) for name in names))
    assert scaled_mm.supports(asked, HOPPER) is None
    assert scaled_mm.supports(asked, BLACKWELL) is None
    assert "has compute capability 8.0; expected compute capability 8.9" in scaled_mm.supports(
        asked, Machine((8, 0), ALL)
    )
    assert "not a CUDA device" in scaled_mm.supports(asked, Machine(None, ALL))
    plain = dlfp4.cast(values((32, 64)), "float8_e4m3fn")
    assert scaled_mm.supports(problem(plain, quantized("fp8_e4m3")), HOPPER) is None


@pytest.mark.parametrize("name", ["nvfp4", "mxfp8_e4m3"])
def test_scaled_mm_takes_blocks(name):
    q = quantized(name, layout="128x4")
    assert scaled_mm.supports(problem(q, q), BLACKWELL) is None
    assert "9.0; expected compute capability 10.0" in scaled_mm.supports(problem(q, q), HOPPER)
    linear = problem(quantized(name), q)
    assert "a has scale_layout 'linear'; expected '128x4', call a.with" in scaled_mm.supports(linear, BLACKWELL)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (("nvfp4", "mxfp8_e4m3"), "a is nvfp4 and b mxfp8_e4m3; expected"),
        (("mxfp6_e2m3", "mxfp6_e2m3"), "a is mxfp6_e2m3 and b mxfp6_e2m3; expected"),
        (("fp8_e5m2", "fp8_e5m2"), "both operands are float8_e5m2"),
    ],
)
def test_scaled_mm_refuses_formats(asked, message):
    assert message in scaled_mm.supports(problem(*map(quantized, asked)), BLACKWELL)


def test_scaled_mm_refuses():
    q = quantized("fp8_e4m3")
    assert "a is float32 and b fp8_e4m3" in scaled_mm.supports(problem(values((2, 64)), q), HOPPER)
    assert "K is 72 and N 32; expected multiples of 16 and 16" in scaled_mm.supports(
        problem(quantized("fp8_e4m3", (2, 72)), quantized("fp8_e4m3", (32, 72))), HOPPER
    )
    assert "K is 64 and N 40" in scaled_mm.supports(problem(q, quantized("fp8_e4m3", (40, 64))), HOPPER)
    assert "leave activation out" in scaled_mm.supports(problem(q, q, activation="int8"), HOPPER)
    on_host = Problem(q, q.mT, np.dtype("float32"))
    assert "the operands lie on cpu" in scaled_mm.supports(on_host, HOPPER)
    across = Problem(marked(q), marked(q.mT).mT, np.dtype("float32"))
    assert "run across" in scaled_mm.supports(
        Problem(across.a, marked(quantized("fp8_e4m3", (64, 32))), np.dtype("f4")), HOPPER
    )


def test_scaled_mm_multiplies(monkeypatch):
    """By both of PyTorch's functions; on a host it has them for one scale a tensor."""
    torch = pytest.importorskip("torch")
    a, b = (torch.randn(shape).to(torch.float8_e4m3fn) for shape in ((5, 64), (32, 64)))
    scales = torch.tensor(0.5), torch.tensor(4.0)
    expected = 2 * a.double() @ b.double().T
    for _ in range(2):
        got = scaled_mm.multiply(a, b.t(), *scales, "TensorWise")
        assert got.dtype == torch.float32
        assert torch.allclose(got.double(), expected, rtol=1e-5, atol=1e-5)
        monkeypatch.delattr(torch.nn.functional, "scaled_mm", raising=False)


@pytest.mark.parametrize("name", ["nvfp4", "mxfp8_e4m3"])
def test_scaled_mm_gives_what_pytorch_checks(name):
    """PyTorch's own check of shapes, types and layouts, without a GPU."""
    torch = pytest.importorskip("torch")
    if not hasattr(torch.nn.functional, "scaled_mm"):
        pytest.skip("this PyTorch has no torch.nn.functional.scaled_mm")
    from torch._subclasses.fake_tensor import FakeTensorMode

    parts = [
        dlfp4.quantize(torch.randn(shape), name, scale_layout="128x4").to_torch() for shape in ((40, 256), (48, 256))
    ]
    with FakeTensorMode(allow_non_fake_inputs=True):
        (a, a_scale, _), (b, b_scale, _) = (
            [None if part is None else torch.empty(part.shape, dtype=part.dtype, device="cuda:0") for part in side]
            for side in parts
        )
        result = scaled_mm.multiply(a, b.t(), a_scale, b_scale, scaled_mm.RECIPES[name][0])
    assert (result.shape, result.dtype) == ((40, 48), torch.float32)


# ---- FlashInfer


@pytest.mark.parametrize("name", ["nvfp4", "mxfp4"])
def test_flashinfer_takes(name):
    q = quantized(name, layout="128x4")
    assert flashinfer.supports(problem(q, q), BLACKWELL) is None
    assert "9.0; expected compute capability 10.0" in flashinfer.supports(problem(q, q), HOPPER)
    assert "a has scale_layout 'linear'" in flashinfer.supports(problem(quantized(name), q), BLACKWELL)
    assert "the result is float32; expected bfloat16 or float16" in flashinfer.supports(
        problem(q, q, "float32"), BLACKWELL
    )
    assert "expected nvfp4 or mxfp4 on both sides" in flashinfer.supports(problem(values((2, 64)), q), BLACKWELL)
    odd = quantized(name, (31, 64), layout="128x4")
    assert "K is 64 and N 31; expected multiples of 32 and 8" in flashinfer.supports(problem(q, odd), BLACKWELL)


def test_flashinfer_is_found(monkeypatch):
    flashinfer.missing.cache_clear()
    monkeypatch.setattr(flashinfer.importlib.util, "find_spec", lambda name: None)
    assert "FlashInfer is not installed" in flashinfer.missing()
    flashinfer.missing.cache_clear()


# ---- the order


def row(name, rank=0, supports=None, only_by_name=None):
    return Backend(
        name,
        lambda: None,
        lambda problem, machine: supports,
        lambda problem: ("default",),
        lambda problem, tactic, out: None,
        lambda problem, machine: rank,
        lambda problem, machine: only_by_name,
    )


ROWS = (
    row("slow", 1),
    row("gone"),
    row("first"),
    row("second"),
    row("unable", supports="no"),
    row("shy", only_by_name="it is shy"),
)
MACHINE = Machine((9, 0), {each.name: "not installed" if each.name == "gone" else None for each in ROWS})


def test_order_is_by_rank_then_by_table():
    assert [each.name for each in matmul.order(SimpleNamespace(), MACHINE, ROWS)] == ["first", "second", "slow"]
    for rows in (ROWS, ROWS[::-1], ROWS[:2], ROWS[1:2]):
        expected = matmul.order(SimpleNamespace(), MACHINE, rows)[:1]
        assert matmul.head(SimpleNamespace(), MACHINE, rows) == expected


def test_reasons_of_those_left_out():
    told = matmul.refusals(SimpleNamespace(), MACHINE, ROWS)
    assert list(told.items()) == [
        ("first", None),
        ("second", None),
        ("slow", None),
        ("gone", "not installed"),
        ("unable", "no"),
        ("shy", "only by its name: it is shy"),
    ]


def test_auto_leaves_out_what_may_miss_the_bound():
    """But for our own kernels for FP8, whose bound is another one."""
    q = quantized("fp8_e4m3")
    names = [each.name for each in matmul.order(problem(q, q), HOPPER, matmul.BACKENDS)]
    assert names == ["cuda_fp8", "torch"]
    told = matmul.refusals(problem(q, q), HOPPER, matmul.BACKENDS)["scaled_mm"]
    assert told.startswith("only by its name: this GPU keeps about 14 bits")
    blocks = quantized("nvfp4", layout="128x4")
    told = matmul.refusals(problem(blocks, blocks), BLACKWELL, matmul.BACKENDS)
    assert told["scaled_mm"].startswith("only by its name")
    assert told["flashinfer"].startswith("only by its name")


def test_our_kernels_want_prepared_weights():
    asked = problem(dlfp4.cast(values((2, 64)), "bfloat16"), quantized("nvfp4"))
    assert "call w.prepare() once" in cuda.supports(asked, HOPPER)
    for rows, machine, rank in ((1, HOPPER, 0), (4096, HOPPER, 0), (64, BLACKWELL, 0), (65, BLACKWELL, 1)):
        assert cuda.rank(SimpleNamespace(rows=rows), machine) == rank


@pytest.mark.parametrize("name", list(dlfp4.formats()))
def test_which_formats_of_fp8_are_taken_as_they_lie(name):
    """Those of float32 scales, in the layouts that kernels read; blocks of rows as one matrix alone."""
    x = dlfp4.quantize(values((128, 256)), name)
    told, format = cuda_fp8.refuses_operand("a", x), x.format
    if format.element.name not in ("float8_e4m3fn", "float8_e5m2"):
        assert told == f"a is {name}; expected float8_e4m3fn or float8_e5m2"
    elif format.scale.name != "float32":
        assert told.endswith("expected scales of float32, one for 128 of K or for more")
    else:
        assert told is None
        if format.block in ((1, 128), (128, 128)):
            turned = x.with_scale_layout("cublas_1x128" if format.block[0] == 1 else "cublas_128x128")
            assert cuda_fp8.refuses_operand("a", turned) is None
        stack = cuda_fp8.refuses_operand("a", dlfp4.quantize(values((2, 128, 256)), name))
        assert (stack is not None) == (format.block == (128, 128))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float16", "float4_e2m1fn"])
def test_which_plain_elements_are_taken_as_they_lie(dtype):
    told = cuda_fp8.refuses_operand("b", dlfp4.cast(values((4, 32)), dtype))
    expected = f"b is {dtype}; expected float8_e4m3fn or float8_e5m2"
    assert told == (None if dtype in ("float8_e4m3fn", "float8_e5m2") else expected)


def test_backends_are_asked_once_for_what_they_judge_alike(monkeypatch):
    asked = []

    def supports(problem, machine):
        asked.append(problem.a.shape)
        return "b is a Tensor" if isinstance(problem.b, dlfp4.Tensor) else None

    monkeypatch.setattr(matmul, "BACKENDS", (dataclasses.replace(matmul.BACKENDS[0], supports=supports),))
    w = dlfp4.quantize(values((32, 64), 1), "nvfp4")
    other = dlfp4.quantize(values((32, 64), 2), "nvfp4")
    for x in (values((2, 64)), values((2, 64), 3)):
        for weight in (w, other):
            np.testing.assert_allclose(dlfp4.matmul(x, weight.mT), x @ weight.dequantize().to_numpy().T, 1e-5, 1e-4)
    assert asked == [(2, 64)]
    for x, weight, options in (
        (values((3, 64)), w, {}),
        (dlfp4.cast(values((2, 64)), "bfloat16"), w, {}),
        (dlfp4.quantize(values((2, 64)), "mxfp8_e4m3"), w, {}),
        (values((2, 64)), dlfp4.quantize(values((32, 64)), "mxfp4"), {}),
        (values((2, 64)), w.with_scale_layout("128x4"), {}),
        (values((2, 64)), w, {"out_dtype": "float16"}),
        (values((2, 64)), w, {"activation": "int8"}),
        (values((2, 64)), w, {"backend": "cpu"}),
    ):
        asked.clear()
        for _ in range(2):
            dlfp4.matmul(x, weight.mT, **options)
        assert len(asked) == 1
    for _ in range(2):  # reasons are told anew
        asked.clear()
        with pytest.raises(dlfp4.BackendError, match="b is a Tensor"):
            dlfp4.matmul(values((2, 64)), values((64, 3)))
        assert asked


def test_a_backend_by_name_needs_no_rank(monkeypatch):
    shy = row("shy", only_by_name="it is shy")
    monkeypatch.setattr(matmul, "BACKENDS", (shy,))
    w = dlfp4.quantize(values((32, 64), 1), "nvfp4")
    assert dlfp4.matmul(values((2, 64)), w.mT, backend="shy").shape == (2, 32)
    with pytest.raises(dlfp4.BackendError, match="shy: only by its name: it is shy"):
        dlfp4.matmul(values((2, 64)), w.mT)
