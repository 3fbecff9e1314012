"""ScaledTensors, and modules of them, inside torch.compile and torch.export."""

import importlib
import io
import shutil

import pytest

import dlfp4
from dlfp4.operations import Encoding, Prepared

from ..support.capsules import framework
from ..support.torch_tensors import randn

torch = framework("torch")
dt = importlib.import_module("dlfp4.torch")
F = torch.nn.functional


def compiled(function):
    return torch.compile(function, fullgraph=True, backend="aot_eager")


def model():
    layers = (torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32, bias=False))
    return torch.nn.Sequential(*layers).requires_grad_(False)


@pytest.mark.parametrize("format", ["nvfp4", "mxfp6_e2m3", "fp8_row"])
def test_a_tensor_crosses_the_boundary(format):
    """In, out and within: quantized, transposed, multiplied, decoded."""

    def function(x, w):
        q = dt.quantize(x, format)
        return q, q @ w.mT, F.linear(x, w, x[0, :32]), w.mT[:, :16].dequantize(), w.to(torch.bfloat16)

    x, w = randn(4, 64), dt.quantize(randn(32, 64, seed=1), format)
    for made, expected in zip(compiled(function)(x, w), function(x, w), strict=True):
        assert (type(made), made.shape, made.dtype) == (type(expected), expected.shape, expected.dtype)
        if isinstance(made, dt.ScaledTensor):
            assert made.form == expected.form
            made, expected = made.dequantize(), expected.dequantize()
        assert torch.equal(made, expected)


BY_ROWS = {"recipe": dlfp4.Recipe(global_scale_per="row")}


@pytest.mark.parametrize(("format", "options"), [*((name, {}) for name in dlfp4.formats()), ("nvfp4", BY_ROWS)])
def test_every_format_crosses_the_boundary(format, options):
    """Taken apart where it goes in, and put together where it comes out."""
    torch._dynamo.reset()  # of other formats, which have the same code
    q = dt.quantize(randn(128, 128), format, **options)
    made, values = compiled(lambda q: (q.mT, q.dequantize()))(q)
    assert (type(made), made.form, made.turned, made.shape) == (dt.ScaledTensor, q.form, True, q.mT.shape)
    for name in ("elements", "scales", "global_scale", "offsets"):
        own, other = getattr(q, name), getattr(made, name)
        assert own is other or torch.equal(own.view(torch.uint8), other.view(torch.uint8))
    assert torch.equal(values, q.dequantize())


@pytest.mark.parametrize("dynamic", [True, None])
def test_slices_as_arguments(dynamic):
    """With dynamic shapes detached, for PyTorch fails on views of tensors that are made of others: docs/torch.md."""
    q = dt.quantize(randn(128, 64), "nvfp4")
    function = torch.compile(F.linear, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for part in (q[:64], q[64:], q[:, 32:]):
        w = part.detach() if dynamic else part
        for rows in (3, 5):
            x = randn(rows, part.shape[1], seed=rows)
            assert torch.equal(function(x, w), F.linear(x, part))


def test_a_tensor_of_dlfp4_breaks_the_graph():
    """Its conversion runs between two graphs; where there must be one, PyTorch says why there is none."""
    q = dlfp4.quantize(randn(32, 64), "nvfp4")

    def function(x):
        return x.relu() @ dt.ScaledTensor.from_dlfp4(q).mT

    x = randn(4, 64, seed=1)
    assert torch.equal(torch.compile(function, backend="aot_eager")(x), function(x))
    torch.compiler.reset()  # what it keeps of the function
    with pytest.raises(torch._dynamo.exc.Unsupported, match="make them before it"):
        compiled(function)(x)


def test_views_that_leave_a_graph():
    """A slice has no words for where it begins: a copy leaves a graph, a view is refused."""
    w = dt.quantize(randn(32, 64), "nvfp4")
    with pytest.raises(NotImplementedError, match=r"where a view leaves a compiled graph: take it before, or .*clone"):
        torch.compile(lambda w: w[16:], backend="aot_eager")(w)
    for take in (lambda w: w[16:].clone(), lambda w: w.mT.clone()):
        torch._dynamo.reset()
        assert torch.equal(torch.compile(take, backend="aot_eager")(w).dequantize(), take(w).dequantize())


@pytest.mark.skipif(not shutil.which("g++"), reason="Inductor needs a C++ compiler, and there is no g++")
@pytest.mark.filterwarnings("ignore:`torch.jit.script(_method)?` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("format", ["nvfp4", "mxfp6_e2m3", "nvfp4_16x16", "fp8_row", "fp8_e4m3"])
def test_inductor(format):
    """Layers with any number of rows, their gradients, and tensors that are made within."""
    layers = torch.nn.Linear(128, 128), torch.nn.ReLU(), torch.nn.Linear(128, 128, bias=False)
    module = dt.quantize_(torch.nn.Sequential(*layers).requires_grad_(False), format)
    w = dt.quantize(randn(128, 128, seed=1), format)

    def function(x, w):
        q = dt.quantize(x, format)
        return q.dequantize() + 1, F.linear(x.relu(), w, x[0]), w.mT.dequantize(), module(x), q

    torch._dynamo.reset()  # of other formats, which have the same code
    made = torch.compile(function, fullgraph=True, dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for rows in (256, 384):  # not as many as columns: PyTorch would take the two for one number
            x = randn(rows, 128, seed=rows)
            *plain, q = made(x, w)
            *expected, expected_q = function(x, w)
            assert all(map(torch.equal, plain, expected))
            assert (type(q), q.form, q.shape) == (dt.ScaledTensor, expected_q.form, expected_q.shape)
            assert torch.equal(q.dequantize(), expected_q.dequantize())
    x, y = (randn(4, 128).requires_grad_() for _ in range(2))
    torch.compile(module, fullgraph=True, dynamic=True)(x).sum().backward()
    module(y).sum().backward()
    assert torch.allclose(x.grad, y.grad, rtol=1e-4, atol=1e-5)  # products of PyTorch, in layouts of its own


def test_what_compiled_code_depends_on():
    q = dt.quantize(randn(32, 64), "nvfp4")
    texts = {
        each._stable_hash_for_caching() for each in (q, q.mT, q[:16], q.bfloat16(), dt.quantize(randn(32, 64), "mxfp4"))
    }
    assert len(texts) == 5
    assert dt.quantize(randn(32, 64, seed=1), "nvfp4")._stable_hash_for_caching() in texts


def test_gradients_through_a_compiled_model():
    module, x, y = dt.quantize_(model(), "nvfp4"), randn(4, 64).requires_grad_(), randn(4, 64).requires_grad_()
    compiled(module)(x).sum().backward()
    module(y).sum().backward()
    assert torch.equal(x.grad, y.grad)


# Dynamo itself makes an object of the class.
@pytest.mark.filterwarnings("ignore:<class 'torch.autograd.function.Function'> should not be:DeprecationWarning")
def test_training_the_master_straight_through():
    def loss(master, x):
        return F.linear(x, dt.quantize(master, "nvfp4")).square().sum()

    x = randn(4, 64)
    masters = [randn(32, 64).requires_grad_() for _ in range(2)]
    for function, master in zip((compiled(loss), loss), masters, strict=True):
        function(master, x).backward()
    assert torch.equal(masters[0].grad, masters[1].grad)


@pytest.mark.parametrize("activation", ["int8", "fp8_1x128", "mxfp8", "fp8_row"])
def test_a_layer_that_rounds_activations(activation):
    module = dt.quantize_(model(), "nvfp4", activation=activation)
    x = randn(4, 64)
    assert torch.equal(compiled(module)(x), module(x))


@pytest.mark.filterwarnings("ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated:FutureWarning")
def test_export_saved_and_loaded():
    module, file = dt.quantize_(model(), "nvfp4"), io.BytesIO()
    exported = torch.export.export(module, (randn(4, 64),))
    torch.export.save(exported, file)
    file.seek(0)
    x = randn(4, 64, seed=3)
    assert torch.equal(torch.export.load(file).module()(x), module(x))


# ---- Tensors that a traced function makes, and what it does to them

WITHIN = {
    "mT": lambda x, q: x @ q.mT,
    "t": lambda x, q: torch.mm(x, q.t()),
    "transpose": lambda x, q: x @ q.transpose(0, 1),
    "transposed twice": lambda x, q: F.linear(x, q.mT.mT, x.new_ones(32)),
    "permute": lambda x, q: torch.addmm(x.new_ones(32), x, q.permute(1, 0)),
    "slice": lambda x, q: x[:, :32] @ q[:16, :32].mT,
    "slice of a transpose": lambda x, q: x[:, :32] @ q.mT[:32],
    "split": lambda x, q: sum(F.linear(x, part) for part in q.split(16)),
    "chunk": lambda x, q: sum(F.linear(x, part) for part in q.chunk(2)),
    "view": lambda x, q: F.linear(x, q.view(2, 16, 64)[1]),
    "flatten": lambda x, q: F.linear(x, q.unflatten(0, (2, 16)).flatten(0, 1)),
    "unsqueeze": lambda x, q: F.linear(x, q.unsqueeze(0).squeeze(0)),
    "unbind": lambda x, q: sum(F.linear(x, part) for part in q.view(2, 16, 64)),
    "detach": lambda x, q: F.linear(x, q.detach()),
    "clone": lambda x, q: F.linear(x, q.clone()),
    "to": lambda x, q: F.linear(x.bfloat16(), q.to(torch.bfloat16)),
    "zeros_like": lambda x, q: F.linear(x, torch.zeros_like(q)),
    "dequantize": lambda x, q: x @ q.mT.dequantize(),
    "vector": lambda x, q: q @ x[0],
    "rows in stacks": lambda x, q: F.linear(x.view(2, 2, 64), q),
    "stacks": lambda x, q: x.expand(2, 4, 64) @ q.view(2, 16, 64).mT,
    "stacks of stacks": lambda x, q: x.expand(2, 1, 4, 64) @ q.view(2, 1, 16, 64).mT,
    "ours": lambda x, q: dt.matmul(x, q.mT),
    "sizes": lambda x, q: x * q.shape[0] * q.dim() * q.numel(),
}  # fmt: skip


class Within(torch.nn.Module):
    def __init__(self, function, format):
        super().__init__()
        self.function, self.format = function, format

    def forward(self, x, w):
        return self.function(x, dt.quantize(w, self.format))


def saved_and_loaded(exported):
    file = io.BytesIO()
    torch.export.save(exported, file)
    file.seek(0)
    return torch.export.load(file)


def make_fx(module, arguments, **options):
    return torch.fx.experimental.proxy_tensor.make_fx(module, **options)(*arguments)


WAYS = {
    "compile": lambda module, arguments: compiled(module),
    "export": lambda module, arguments: torch.export.export(module, arguments).module(),
    "strict": lambda module, arguments: torch.export.export(module, arguments, strict=True).module(),
    "save": lambda module, arguments: saved_and_loaded(torch.export.export(module, arguments)).module(),
    "decompositions": lambda module, arguments: (
        torch.export.export(module, arguments).run_decompositions().module()
    ),
    "make_fx": make_fx,
    "make_fx of whole operations": lambda module, arguments: make_fx(module, arguments, pre_dispatch=True),
    "make_fx of any shape": lambda module, arguments: make_fx(module, arguments, tracing_mode="symbolic"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated:FutureWarning")
@pytest.mark.parametrize("name", WITHIN)
def test_tensors_made_within(name):
    arguments, others = (randn(4, 64), randn(32, 64, seed=1)), (randn(4, 64, seed=2), randn(32, 64, seed=3))
    for way, trace in WAYS.items():
        module = Within(WITHIN[name], "mxfp8_e4m3" if way == "decompositions" else "nvfp4")
        traced = trace(module, arguments)
        for given in (arguments, others):
            assert torch.equal(traced(*given), module(*given)), way


@pytest.mark.parametrize("format", ["mxfp4", "mxfp6_e2m3", "nvfp4_16x16", "fp8_row", "int4_g32", "nvfp4"])
def test_formats_made_within(format):
    if format.startswith("mx") and torch.__version__.startswith("2.11"):
        pytest.skip("PyTorch 2.11 stores no program that has float8_e8m0fnu")
    for axis in (-1, -2):
        x, w = randn(4, 64), randn(32, 64, seed=1)

        class Columns(torch.nn.Module):
            def forward(self, x, w):
                return x @ dt.quantize(w, format, axis=axis).mT  # noqa: B023

        made = saved_and_loaded(torch.export.export(Columns(), (x, w))).module()
        assert torch.equal(made(x, 2 * w), Columns()(x, 2 * w))


@pytest.mark.skipif(not shutil.which("g++"), reason="Inductor needs a C++ compiler, and there is no g++")
@pytest.mark.filterwarnings("ignore:`torch.jit.script(_method)?` is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated:FutureWarning")
def test_an_aot_package_of_tensors_made_within(tmp_path):
    names = ("mT", "slice", "view", "transposed twice", "clone", "vector", "stacks")
    module = Within(lambda x, q: [WITHIN[name](x, q) for name in names], "nvfp4")
    x, w = randn(4, 64), randn(32, 64, seed=1)
    exported = torch.export.export(module, (x, w))
    package = torch._inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "within.pt2"))
    made = torch._inductor.aoti_load_package(package)(2 * x, w)
    for name, one, expected in zip(names, made, module(2 * x, w), strict=True):
        assert torch.equal(one, expected), name


def test_rows_of_any_number_by_a_tensor_made_within():
    module, w = Within(WITHIN["mT"], "nvfp4"), randn(32, 64, seed=1)
    exported = torch.export.export(module, (randn(4, 64), w), dynamic_shapes=({0: torch.export.Dim("rows")}, None))
    x = randn(7, 64).requires_grad_()
    made = exported.module()(x, w)
    assert torch.equal(made, module(x, w))
    made.sum().backward()
    assert torch.allclose(x.grad, dt.quantize(w, "nvfp4").dequantize().sum(0).expand(7, 64), atol=1e-5)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("call", [
    lambda q, w: dt.matmul(q, w.mT), lambda q, w: dt.vecdot(q, w[:4]), lambda q, w: dt.dequantize(q),
    lambda q, w: (q.elements, q.scales),
], ids=["matmul", "vecdot", "dequantize", "parts"])  # fmt: skip
def test_parts_of_a_tensor_made_within_beside_a_quantized_weight(call, strict):
    """While torch.export traces it looks up what it was given, of whatever is of that type."""

    class Beside(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(dt.quantize(randn(32, 64), "nvfp4"), requires_grad=False)

        def forward(self, x):
            return call(dt.quantize(x, "nvfp4"), self.weight)

    module, x = Beside(), randn(4, 64, seed=1)
    made = torch.export.export(module, (x,), strict=strict).module()(2 * x)
    torch.testing.assert_close(made, module(2 * x), rtol=0, atol=0)


def test_a_trace_of_whole_operations_gives_no_quantized_result():
    """PyTorch would return the tensor that it traced with, which has no memory."""
    with pytest.raises(RuntimeError, match=r"no form for a ScaledTensor among its results; return \.dequantize\(\)"):
        torch.export.export(Within(lambda x, q: q.mT, "nvfp4"), (randn(4, 64), randn(32, 64)))
    module = Within(lambda x, q: (q.elements, q.scales, q.global_scale), "nvfp4")
    made = torch.export.export(module, (randn(4, 64), randn(32, 64))).module()(randn(4, 64), randn(32, 64, seed=2))
    for part, expected in zip(made, module(None, randn(32, 64, seed=2)), strict=True):
        assert torch.equal(part, expected)


@pytest.mark.skipif(not shutil.which("g++"), reason="Inductor needs a C++ compiler, and there is no g++")
@pytest.mark.filterwarnings("ignore:`torch.jit.script(_method)?` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "mxfp8_e4m3", "fp8_e4m3", "int4_g32"])
def test_copies_in_a_graph_of_inductor(name):
    w = dt.quantize(randn(64, 64), name)
    for copy in (lambda w: w.clone(), lambda w: w.to(torch.bfloat16)):
        made, expected = torch.compile(copy, fullgraph=True)(w), copy(w)
        assert made.dtype == expected.dtype
        assert made.elements.data_ptr() != w.elements.data_ptr()
        assert torch.equal(made.elements.view(torch.uint8), expected.elements.view(torch.uint8))
        assert torch.equal(made.dequantize(), expected.dequantize())


def test_all_scales_of_mx_formats_are_copied():
    views = importlib.import_module("dlfp4.torch.views")
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    assert torch.equal(views.clone_in_graph(codes).view(torch.uint8), codes.view(torch.uint8))


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "mxfp8_e4m3", "fp8_e4m3"])
def test_saved_programs_of_prepared_weights(name, axis):
    """The graph has the type of what it was exported with; the weight was pickled in the order that it had before."""
    representing = importlib.import_module("dlfp4.torch.representing")
    w = dt.quantize(randn(256, 512), name)
    shape = (256, 512) if axis == -1 else (512, 256)
    form = str(Encoding(name, axis, "prepared", prepared=Prepared(256, 512, 120, 1)))
    found = representing.share(representing.Parts(w.elements, w.scales, w.global_scale, form, shape))
    expected = w if axis == -1 else w.mT
    assert torch.equal(found.dequantize().to_torch(), expected.dequantize())
    assert found.data.data_ptr == w.elements.data_ptr()


@pytest.mark.skipif(not shutil.which("g++"), reason="Inductor needs a C++ compiler, and there is no g++")
@pytest.mark.filterwarnings("ignore:`torch.jit.script(_method)?` is deprecated:DeprecationWarning")
def test_a_copy_of_a_prepared_weight_in_a_graph_is_not_taken_for_one():
    """Only a GPU makes such weights; their parts will do here: kernels would read the copy before it is written."""
    facts = Prepared(128, 128, 8, 1)
    blocks, code_bytes, _, _ = dlfp4._core._size_of_prepared("fp8_e4m3", 128, 128)
    parts = {"elements": torch.zeros(blocks, code_bytes, dtype=torch.uint8), "scales": torch.ones(())}
    form = str(Encoding("fp8_e4m3", scale_layout="prepared", prepared=facts))
    w = dt.ScaledTensor(parts, form, (128, 128), torch.float32)
    for backend in ("aot_eager", "inductor"):
        made = torch.compile(lambda w: w.clone(), fullgraph=True, backend=backend)(w)
        assert torch.equal(made.elements, w.elements)
        assert made.elements.stride(0) > code_bytes
