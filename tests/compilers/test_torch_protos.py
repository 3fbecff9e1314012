"""TensorProto under Dynamo: it describes, allocates, takes apart and puts together, in one graph."""

import dataclasses
import importlib

import pytest

import dlfp4
from dlfp4 import TensorProto

from ..support.capsules import framework

torch = framework("torch")
dt = importlib.import_module("dlfp4.torch")
quantize = importlib.import_module("dlfp4.torch.functions").quantize  # parts, of which dt.quantize makes a tensor
FORMATS = ("nvfp4", "nvfp4_16x16", "mxfp4", "mxfp6_e2m3", "mxfp8_e4m3", "fp8_e4m3", "fp8_row", "fp8_1x128")


@pytest.fixture(autouse=True)
def _forget():
    yield
    torch._dynamo.reset()  # formats are constants: each is a graph of the same function


def traced(function, dynamic=None):
    return torch.compile(function, fullgraph=True, backend="eager", dynamic=dynamic)


def bytes_of(x):
    codes = x if x.dtype == torch.float4_e2m1fn_x2 else x.reshape(-1).contiguous()
    return codes.view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("dynamic", [None, True])
def test_of_a_tensor(dynamic):
    def function(x):
        proto = TensorProto.of(x)
        return x * proto.shape[0], proto.buffers()[0].shape, proto.requires_grad, proto.dtype.name

    compiled = traced(function, dynamic)
    for rows in (3, 5):
        y, shape, requires_grad, name = compiled(torch.ones(rows, 4))
        assert (y[0, 0], shape, requires_grad, name) == (rows, (rows, 4), False, "float32")


@pytest.mark.parametrize(
    ("name", "usage"),
    [
        *((name, (True, True)) for name in FORMATS),
        *((name, usage) for name in ("nvfp4", "mxfp8_e4m3") for usage in ((True, False), (False, True))),
    ],
    ids=str,
)
def test_buffers_and_memory_by_usage(name, usage):
    """What a graph allocates is what the description says outside of it, whether or not gradients are asked for."""
    rowwise, columnwise = usage

    def function(x):
        proto = TensorProto(
            tuple(x.shape), format=name, requires_grad=x.requires_grad, rowwise=rowwise, columnwise=columnwise
        )
        made = proto.allocate()
        return [buffer.shape for buffer in proto.buffers()], list(proto.flatten(made).items()), made

    x = torch.ones(128, 256, requires_grad=True)
    shapes, flat, made = traced(function)(x)
    expected = TensorProto((128, 256), format=name, rowwise=rowwise, columnwise=columnwise)
    assert shapes == [buffer.shape for buffer in expected.buffers()]
    assert [key for key, _ in flat] == [buffer.name for buffer in expected.buffers()]
    axes = [axis for axis, wanted in ((-1, rowwise), (-2, columnwise)) if wanted]
    real = [quantize(x.detach(), name, axis=axis) for axis in axes]
    for parts, q in zip((made,) if isinstance(made, dt.Parts) else made, real, strict=True):
        assert parts.type == q.type
        assert [None if p is None else (p.shape, p.dtype) for p in parts[:3]] == [
            None if p is None else (p.shape, p.dtype) for p in q[:3]
        ]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in dlfp4.formats()),
        ("nvfp4", {"recipe": dlfp4.Recipe(global_scale_per="row")}),
        ("mxfp4", {"scale_layout": "128x4"}),
        ("nvfp4", {"hadamard": 3}),
        ("fp8_row", {"recipe": dlfp4.Recipe(scale_dtype="bfloat16")}),
        ("mxfp8_e4m3", {"pad": True}),
    ],
    ids=str,
)
def test_crossing_a_graphs_border(name, options):
    """A quantized tensor goes in, is taken apart and put together, and comes out as it was."""

    def function(q):
        proto = TensorProto.of(q)
        again = proto.unflatten(dict(proto.flatten(q)))
        assert TensorProto.of(again) == proto
        return again, dt.dequantize(again)

    shape = (128, 250) if "pad" in options else (128, 256)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    q = quantize(x, name, **options)
    again, values = traced(function)(q)
    assert (again.type, tuple(again.shape)) == (q.type, tuple(q.shape))
    for a, b in zip(again[:3], q[:3], strict=True):
        assert (a is None) == (b is None)
        assert a is None or bytes_of(a) == bytes_of(b)
    assert torch.equal(values, dt.dequantize(q))
    assert TensorProto.of(dlfp4.quantize(x, name, **options)) == eager_proto(q)


@pytest.mark.parametrize("name", ["nvfp4", "mxfp6_e2m3", "fp8_row"])
def test_scaled_tensors_inside_and_outside_of_a_graph(name):
    """The same description and the same buffers, of one axis or of both."""

    def function(q):
        proto = TensorProto.of(q)
        return [(buffer.name, buffer.shape) for buffer in proto.buffers()], list(proto.flatten(q).items())

    x = torch.randn((128, 256), generator=torch.Generator().manual_seed(0))
    row, column = dt.quantize(x, name, axis=(-1, -2))
    for q in (row, (row, column)):
        (said, flat), (expected, parts) = traced(function)(q), function(q)
        assert said == expected
        assert [key for key, _ in flat] == [key for key, _ in parts]
        for (_, a), (_, b) in zip(flat, parts, strict=True):
            assert bytes_of(a) == bytes_of((b.view("uint8") if b.dtype.itemsize == 1 else b).to_torch())
        again = TensorProto.of(q).unflatten(dict(parts))
        assert TensorProto.of(again) == TensorProto.of(q)
    for q in (column, row.mT, row.bfloat16().requires_grad_()):
        assert list(TensorProto.of(q).flatten(q)) == [buffer.name for buffer in TensorProto.of(q).buffers()]


def eager_proto(q):
    """What a graph says of a tensor, as one says it outside."""
    return importlib.import_module("dlfp4.torch.protos").describe(q)


FROM_OUTSIDE = [
    TensorProto((4, 64), format="nvfp4"),
    TensorProto((8, 64), format="nvfp4"),
    TensorProto((8, 64), format="mxfp4"),
    TensorProto((128, 64), format="mxfp8_e4m3", rowwise=False, columnwise=True),
    TensorProto((2, 4, 64), format="nvfp4", global_scale_per="row", hadamard=3),
    TensorProto((4, 64), "bfloat16"),
    TensorProto.of(torch.ones(2, 3, requires_grad=True)),  # a flag as it was then, which changes no buffer
]


@pytest.mark.parametrize("dynamic", [None, True])
def test_descriptions_from_outside_are_constants_by_value(dynamic):
    """A graph is of one of them, and of all that equal it, however extents of others have differed."""

    def function(x, proto):
        again = TensorProto(proto.shape, proto.dtype, proto.format, proto.device)
        parts = proto.flatten(proto.allocate())
        shapes = [buffer.shape for buffer in proto.buffers()]
        return x + 1, shapes, [*parts.items()], proto == FROM_OUTSIDE[2], again == proto, proto.format == "nvfp4"

    graphs = traced(function, dynamic)
    for one_of_many in (False, True):
        with torch._dynamo.config.patch(error_on_recompile=one_of_many):
            for proto in FROM_OUTSIDE:
                given = dataclasses.replace(proto)
                _, shapes, parts, is_third, is_again, is_nvfp4 = graphs(torch.ones(2), given)
                assert shapes == [buffer.shape for buffer in proto.buffers()]
                specs = importlib.import_module("dlfp4.torch.protos").specs(proto)
                assert [(name, part.shape, part.dtype) for name, part in parts] == list(specs)
                again = TensorProto(proto.shape, proto.dtype, proto.format, proto.device)
                expected = (proto == FROM_OUTSIDE[2], again == proto, proto.format == "nvfp4")
                assert (is_third, is_again, is_nvfp4) == expected, proto


def test_devices_of_descriptions_are_one_object():
    """Compilers compare no others: those of tensors on CUDA devices are made anew each time."""
    for name in ("cpu", "cuda:0"):
        device = dlfp4._core._parse_device(name)
        assert TensorProto(3, "float32", None, device).device is TensorProto(4, "int8", None, name).device


def test_plain_memory():
    made = traced(lambda x: TensorProto.of(x).allocate().zero_())(torch.ones(3, 4, dtype=torch.bfloat16))
    assert (made.shape, made.dtype, made.abs().sum()) == ((3, 4), torch.bfloat16, 0)


# ---- Outside of graphs


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("options", [
    {}, {"axis": -2}, {"axis": (-1, -2)}, {"hadamard": 3}, {"recipe": dlfp4.Recipe(global_scale_per="row")},
    {"scale_layout": "128x4", "pad": True},
], ids=str)  # fmt: skip
def test_of_parts_and_of_what_has_no_memory(options, device):
    x = torch.ones(32, 64, device=device)
    expected = TensorProto.of(dlfp4.quantize(torch.ones(32, 64), "nvfp4", **options))
    parts = quantize(x, "nvfp4", **options)
    for made in (parts, dt.quantize(x, "nvfp4", **options)):
        assert TensorProto.of(made) == expected
    if device == "cpu":
        assert list(expected.flatten(parts)) == [buffer.name for buffer in expected.buffers()]


@pytest.mark.parametrize("kind", ["float6_e2m3fn", "float6_e2m3fn/padded", "float4_e2m1fn"])
def test_of_bytes(kind):
    parts = dt.Parts(torch.zeros(2, 12, dtype=torch.uint8), type=kind)
    found = TensorProto.of(parts)
    assert found.dtype.name == kind.partition("/")[0]
    assert (found.packed, found.allocate().nbytes) == ("padded" not in kind, 24)
    assert traced(lambda x: TensorProto.of(parts._replace(data=x)))(parts.data) == found
    assert found.flatten(parts)["data"].data_ptr == parts.data.data_ptr()


@pytest.mark.parametrize("device", ["meta", torch.device("meta")])
def test_meta_is_no_device(device):
    with pytest.raises(ValueError, match=r"device type 'meta' is unknown.*; PyTorch's 'meta' has no memory: name"):
        TensorProto((2, 3), "float32", device=device)
