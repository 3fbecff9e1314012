"""The operations inside torch.compile, torch.export and AOTInductor: one graph, bytes equal to eager ones."""

import importlib
import io
import shutil

import pytest

import dlfp4

from ..support.capsules import framework
from ..support.torch_tensors import randn

torch = framework("torch")
dt = importlib.import_module("dlfp4.torch")
quantize = importlib.import_module("dlfp4.torch.functions").quantize  # parts, of which dt.quantize makes a tensor
# What PyTorch's own modules warn of when Inductor or torch.export loads them: they script, and build treespecs.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script(_method)?` is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated:FutureWarning"),
]
needs_compiler = pytest.mark.skipif(
    not shutil.which("g++"), reason="Inductor needs a C++ compiler, and there is no g++"
)
PAIRS = torch.float4_e2m1fn_x2


X = randn(3, 64)
FORMATS = ("nvfp4", "nvfp4_16x16", "mxfp6_e2m3", "mxfp8_e4m3", "fp8_e4m3", "fp8_row", "fp8_128x128", "uint4_g32")


def check_equal(made, expected):
    for a, b in zip(made, expected, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert bytes_of(a) == bytes_of(b)


def bytes_of(x):
    codes = x if x.dtype == PAIRS else x.detach().reshape(-1).contiguous()
    return codes.view(torch.uint8).numpy().tobytes()


@pytest.fixture
def weight():
    return quantize(randn(32, 64, seed=1), "nvfp4")


class Layer(torch.nn.Module):
    """A product by a quantized weight, whose parts are buffers."""

    def __init__(self, weight):
        super().__init__()
        for name, part in zip(("codes", "scales", "unit"), weight[:3], strict=True):
            self.register_buffer(name, part.view(torch.uint8) if part.dtype == PAIRS else part)

    def forward(self, x):
        return dt.matmul(torch.relu(x), dt.Parts(self.codes, self.scales, self.unit, "nvfp4").mT, alpha=0.5)


def everything(x, w):
    q = quantize(x * 2, "nvfp4")
    return (
        dt.matmul(q, w.mT, out_dtype=torch.bfloat16),
        dt.matmul(torch.relu(x), w.mT) + 1,
        dt.dequantize(q, "bfloat16"),
        dt.cast(x, torch.float8_e4m3fn),
        q.data.view(torch.uint8),
        dt.unpack(dt.cast(x, "float4_e2m1fn")),
        dt.vecdot(x, x[:1]),
        dt.dot(x[0], x[1]),
    )


@needs_compiler
def test_inductor_with_dynamic_shapes(weight):
    compiled = torch.compile(everything, fullgraph=True, dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for rows in (3, 5, 16):
            x = randn(rows, 64)
            check_equal(compiled(x, weight), everything(x, weight))


@pytest.mark.parametrize("name", FORMATS)
def test_each_kind_of_format(name):
    def function(x):
        rows, columns = quantize(x, name, axis=(-1, -2))
        return (
            *(part for part in (*rows[:3], rows.offsets, *columns[:3], columns.offsets) if part is not None),
            dt.dequantize(columns, "float16"),
            dt.matmul(x, rows.mT),
        )

    x = randn(128, 128)
    check_equal(torch.compile(function, fullgraph=True, backend="aot_eager")(x), function(x))


@pytest.mark.parametrize(
    "options",
    [
        {"recipe": "modelopt"},
        {"recipe": dlfp4.Recipe(global_scale_per="row")},
        {"global_scale": 0.5},
        {"scale_layout": "128x4", "pad": True},
        {"hadamard": 3},
        {"rounding": "stochastic", "seed": 2**64 - 1},
    ],
    ids=str,
)
def test_options_are_constants_of_the_graph(options):
    def function(x):
        q = quantize(x, "nvfp4", **options)
        return *q[:3], dt.dequantize(q)

    check_equal(torch.compile(function, fullgraph=True, backend="aot_eager")(X), function(X))


def test_recipes_may_be_made_within_a_graph():
    def function(x):
        q = quantize(x, "fp8_1x128", recipe=dlfp4.Recipe(eps=100.0, scale_dtype="bfloat16"))
        return *q[:2], dt.dequantize(q)

    check_equal(torch.compile(function, fullgraph=True, backend="aot_eager")(X), function(X))


@pytest.mark.parametrize("dynamic", [None, True])
def test_options_from_outside_are_constants(dynamic):
    """Numbers, of which Dynamo makes symbols once they have differed."""

    def function(x, signs, axis, alpha):
        q = quantize(x, "nvfp4", hadamard=signs, axis=axis)
        proto = dlfp4.TensorProto((32, 32), format="nvfp4", hadamard=signs)
        return [*q[:3], dt.matmul(x, x.mT, alpha=alpha)], proto.hadamard

    x = randn(32, 32)
    compiled = torch.compile(function, fullgraph=True, backend="eager", dynamic=dynamic)
    for options in (((1, -1) * 8, -1, 2.0), ((1,) * 16, -1, 3.0), (3, -2, 0.5), (5, -1, 2.0)):
        (made, signs), (expected, own) = compiled(x, *options), function(x, *options)
        check_equal(made, expected)
        assert signs == own


def test_out_forms(weight):
    def function(x, out):
        dt.matmul(x, weight.mT, out=out)
        return out + 1

    out, other = torch.empty(3, 32), torch.empty(3, 32)
    check_equal(
        [torch.compile(function, fullgraph=True, backend="aot_eager")(X, out), out], [function(X, other), other]
    )


def test_gradients_and_transforms(weight):
    layer = Layer(weight)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
    compiled(x).sum().backward()
    layer(y).sum().backward()
    check_equal([x.grad], [y.grad])
    grad = torch.func.vmap(torch.func.grad(lambda x: layer(x).sum()))
    check_equal([torch.compile(grad, fullgraph=True, backend="aot_eager")(X)], [grad(X)])


def test_autocast(weight):
    def function(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return dt.matmul(x, weight.mT)

    check_equal([torch.compile(function, fullgraph=True, backend="aot_eager")(X)], [dt.matmul(X.bfloat16(), weight.mT)])


@pytest.fixture
def exported(weight):
    return torch.export.export(Layer(weight), (X,), dynamic_shapes=({0: torch.export.Dim("rows", min=2)},))


def test_export(exported, weight):
    file = io.BytesIO()
    torch.export.save(exported, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    x = randn(5, 64)
    check_equal([loaded(x)], [Layer(weight)(x)])
    assert "torch.ops.dlfp4.matmul.default" in str(exported.graph)


@needs_compiler
@pytest.mark.slow
def test_aot_inductor(exported, weight, tmp_path):
    package = torch._inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "layer.pt2"))
    x = randn(5, 64)
    check_equal([torch._inductor.aoti_load_package(package)(x)], [Layer(weight)(x)])
