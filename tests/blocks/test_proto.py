"""TensorProto: it says what quantize allocates, allocates the same itself, and takes tensors apart and together."""

import dataclasses
import re

import ml_dtypes
import numpy as np
import pytest

import dlfp4
from dlfp4 import TensorProto
from dlfp4.show import summary

from ..support import capsules
from ..support.capsules import framework, run_python
from ..support.reference import raw_bytes

FORMATS = list(dlfp4.formats())
LAYOUTS = ("linear", "128x4", "8x4", "aiter")
AXES = (-1, -2, (-1, -2), (-2, -1))
FLOAT_SCALES = [name for name, format in dlfp4.formats().items() if format.scale == np.float32]
# Into whole blocks of every format, and into none's but those that may be short.
WHOLE = [(128, 256), (2, 4, 16, 128), (0, 128), (128, 0)]
RAGGED = [(33, 50), (3, 5, 7), (1, 1)]


def values(shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def usage(axis):
    axes = axis if isinstance(axis, tuple) else (axis,)
    return {"rowwise": -1 in axes, "columnwise": -2 in axes}


def described(tensors):
    return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}


def parts_of(quantized):
    """Every buffer by the name that TensorProto has for it, found without it."""
    named = {}
    for q in quantized if isinstance(quantized, tuple) else (quantized,):
        prefix = "" if q.axis == -1 else "columnwise_"
        named |= {prefix + "data": q.data, prefix + "scales": q.scales}
        if q.global_scale is not None:
            named["global_scale"] = q.global_scale
        if q.zero_points is not None:
            named[prefix + "zero_points"] = q.zero_points
    return named


def strides_of(quantized):
    return {name: part.strides for name, part in parts_of(quantized).items()}


def pointers(parts):
    return {name: part.data_ptr for name, part in parts.items()}


def bytes_of(quantized):
    return {name: raw_bytes(part) for name, part in parts_of(quantized).items()}


def has_layout(name, layout):
    return layout == "linear" or name not in FLOAT_SCALES


# ---- Buffers, allocation, quantize


def name_of(value):
    """For a test's name; not the values of memory that nobody wrote."""
    return (summary(value) if isinstance(value, dlfp4.Tensor | dlfp4.ScaledTensor) else repr(value))[:60]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("axis", AXES, ids=str)
@pytest.mark.parametrize("name", FORMATS)
def test_allocation_and_quantize_agree(name, axis, layout):
    if not has_layout(name, layout):
        with pytest.raises(ValueError, match=f"scale_layout='{layout}'.*float32.*linear"):
            TensorProto((128, 256), format=name, scale_layout=layout, **usage(axis))
        with pytest.raises(ValueError, match=f"scale_layout='{layout}'.*float32.*linear"):
            dlfp4.quantize(values((128, 256)), name, axis=axis, scale_layout=layout)
        return
    for shape, pad in [*((shape, False) for shape in WHOLE), *((shape, True) for shape in RAGGED + WHOLE)]:
        p = TensorProto(shape, format=name, scale_layout=layout, pad=pad, **usage(axis))
        q = dlfp4.quantize(values(shape), name, axis=axis, scale_layout=layout, pad=pad)
        expected = {buffer.name: buffer[1:] for buffer in p.buffers()}
        assert described(parts_of(q)) == expected, (shape, pad)
        allocated = p.allocate()
        assert described(parts_of(allocated)) == expected, (shape, pad)
        assert strides_of(allocated) == strides_of(q), (shape, pad)
        assert TensorProto.of(allocated).buffers() == p.buffers()
        assert TensorProto.of(q) == TensorProto.of(allocated)


@pytest.mark.parametrize("axis", [-1, -2, (-1, -2)], ids=str)
@pytest.mark.parametrize("name", FORMATS)
def test_what_is_allocated_can_be_refilled(name, axis):
    shape = (128, 128)
    for layout in filter(lambda layout: has_layout(name, layout), LAYOUTS):
        out = TensorProto(shape, format=name, scale_layout=layout, **usage(axis)).allocate()
        x = values(shape)
        filled = dlfp4.quantize(x, name, axis=axis, scale_layout=layout, out=out)
        assert bytes_of(filled) == bytes_of(dlfp4.quantize(x, name, axis=axis, scale_layout=layout))
        assert bytes_of(out) == bytes_of(filled)


F4, E4M3, E8M0, F8 = "float4_e2m1fn", "float8_e4m3fn", "float8_e8m0fnu", "float8_e5m2"


@pytest.mark.parametrize(
    ("shape", "arguments", "expected"),
    [
        ((4, 32), {"format": "nvfp4"},
         {"data": ((4, 32), F4), "scales": ((4, 2), E4M3), "global_scale": ((), "float32")}),
        ((2, 3, 64), {"format": "mxfp4"}, {"data": ((6, 64), F4), "scales": ((6, 2), E8M0)}),
        ((64,), {"format": "mxfp4"}, {"data": ((1, 64), F4), "scales": ((1, 2), E8M0)}),
        ((64, 3), {"format": "mxfp4", "rowwise": False, "columnwise": True},
         {"columnwise_data": ((3, 64), F4), "columnwise_scales": ((3, 2), E8M0)}),
        ((64, 3), {"format": "mxfp8_e5m2", "rowwise": False, "columnwise": True},
         {"columnwise_data": ((64, 3), F8), "columnwise_scales": ((2, 3), E8M0)}),
        ((64, 3), {"format": "mxfp8_e5m2", "rowwise": False, "columnwise": True, "scale_layout": "128x4"},
         {"columnwise_data": ((64, 3), F8), "columnwise_scales": ((128, 4), E8M0)}),
        ((33, 50), {"format": "mxfp8_e5m2", "pad": True, "columnwise": True},
         {"data": ((33, 64), F8), "scales": ((33, 2), E8M0),
          "columnwise_data": ((64, 50), F8), "columnwise_scales": ((2, 50), E8M0)}),
        ((130, 32), {"format": "nvfp4", "scale_layout": "128x4"},
         {"data": ((130, 32), F4), "scales": ((256, 4), E4M3), "global_scale": ((), "float32")}),
        ((9, 96), {"format": "mxfp4", "scale_layout": "8x4"}, {"data": ((9, 96), F4), "scales": ((16, 4), E8M0)}),
        ((9, 96), {"format": "mxfp4", "scale_layout": "aiter"}, {"data": ((9, 96), F4), "scales": ((256, 8), E8M0)}),
        ((32, 48), {"format": "nvfp4_16x16"},
         {"data": ((32, 48), F4), "scales": ((32, 3), E4M3), "global_scale": ((), "float32")}),
        ((17, 40), {"format": "nvfp4_16x16", "pad": True},
         {"data": ((17, 48), F4), "scales": ((17, 3), E4M3), "global_scale": ((), "float32")}),
        ((3, 5), {"format": "fp8_e5m2"}, {"data": ((3, 5), F8), "scales": ((), "float32")}),
        ((130, 300), {"format": "fp8_1x128"}, {"data": ((130, 300), E4M3), "scales": ((130, 3), "float32")}),
        ((130, 300), {"format": "fp8_1x128", "rowwise": False, "columnwise": True},
         {"columnwise_data": ((130, 300), E4M3), "columnwise_scales": ((2, 300), "float32")}),
        ((130, 300), {"format": "fp8_128x128"}, {"data": ((130, 300), E4M3), "scales": ((2, 3), "float32")}),
        ((2, 3), {"dtype": "bfloat16"}, {"data": ((2, 3), "bfloat16")}),
        ((), {"dtype": "int4"}, {"data": ((), "int4")}),
    ],
    ids=str,
)  # fmt: skip
def test_buffers(shape, arguments, expected):
    buffers = TensorProto(shape, **arguments).buffers()
    assert {name: (shape, dtype.name) for name, shape, dtype in buffers} == expected
    assert [buffer.name for buffer in buffers] == list(expected)
    assert all(isinstance(dtype, np.dtype) for _, _, dtype in buffers)


def test_both_orientations_share_one_global_scale():
    p = TensorProto((32, 64), format="nvfp4", columnwise=True)
    names = ["data", "scales", "global_scale", "columnwise_data", "columnwise_scales"]
    assert [buffer.name for buffer in p.buffers()] == names
    rowwise, columnwise = p.allocate()
    assert (rowwise.axis, columnwise.axis) == (-1, -2)
    assert rowwise.global_scale.data_ptr == columnwise.global_scale.data_ptr


@pytest.mark.parametrize(
    ("name", "packed", "nbytes"),
    [(F4, True, 8), (F4, False, 15), ("float6_e2m3fn", True, 12), ("bfloat16", True, 30)],
)
def test_allocate_plain(name, packed, nbytes):
    tensor = TensorProto((3, 5), name, packed=packed).allocate()
    assert (tensor.shape, tensor.dtype.name, tensor.nbytes) == ((3, 5), name, nbytes)
    assert tensor.data_ptr % 64 == 0


@pytest.mark.parametrize(
    ("name", "shape", "axis", "said"),
    [
        ("nvfp4", (32, 3221), -1, "1x16"),
        ("mxfp4", (1481, 677), -1, "1x32"),
        ("mxfp8_e4m3", (64, 31), -1, "1x32"),
        ("nvfp4", (2333, 32), -2, "1x16"),
        ("mxfp6_e2m3", (31, 64), -2, "1x32"),
        ("nvfp4_16x16", (20, 32), -1, "16x16"),
        ("nvfp4_16x16", (32, 20), -2, "16x16"),
    ],
    ids=str,
)
def test_shapes_that_do_not_divide(name, shape, axis, said):
    message = rf"{re.escape(str(shape))}.*{said}.*pad=True"
    with pytest.raises(ValueError, match=message):
        TensorProto(shape, format=name, **usage(axis))
    with pytest.raises(ValueError, match=message):
        dlfp4.quantize(np.zeros(shape, np.float32), name, axis=axis)
    assert TensorProto(shape, format=name, pad=True, **usage(axis)).buffers()


@pytest.mark.parametrize(("shape", "axis", "said"), [((32,), -2, "two dimensions"), ((), -1, "one dimension or more")])
@pytest.mark.parametrize("name", FORMATS)
def test_shapes_without_lines(name, shape, axis, said):
    for pad in (False, True):
        with pytest.raises(ValueError, match=rf"{re.escape(str(shape))}.*{said}"):
            TensorProto(shape, format=name, pad=pad, **usage(axis))


# ---- The description


def test_equal_by_value_and_hashable():
    same = [
        TensorProto((2, 64), "bfloat16"),
        TensorProto([2, 64], ml_dtypes.bfloat16, None, "cpu", False),
        TensorProto((np.int64(2), 64), dtype=np.dtype("bfloat16"), device=dlfp4.Device("cpu"), packed=False),
        TensorProto((2, 64), "bfloat16", device=(1, 0)),
    ]
    assert len(set(same)) == 1
    quantized = [
        TensorProto((2, 64), format="mxfp4", device="cuda:1"),
        TensorProto((2, 64), format=dlfp4.formats()["mxfp4"], device=(2, 1)),
    ]
    assert len({*same, *quantized}) == 2
    p = quantized[0]
    assert (p.shape, p.dtype, p.format, p.device) == ((2, 64), None, "mxfp4", "cuda:1")
    assert (p.is_quantized, same[0].is_quantized) == (True, False)
    assert type(p.device) is dlfp4.Device
    assert type(p.format) is dlfp4.Format
    assert isinstance(same[0].dtype, np.dtype)
    assert all(type(extent) is int for extent in same[2].shape)


@pytest.mark.parametrize(
    "other",
    [{"shape": (32, 64)}, {"format": "mxfp8_e4m3"}, {"device": "cuda:0"}, {"requires_grad": True}, {"pad": True},
     {"scale_layout": "8x4"}, {"columnwise": True}, {"format": None, "dtype": "float32"}],
    ids=str,
)  # fmt: skip
def test_unequal_where_a_field_differs(other):
    p = TensorProto((64, 64), format="mxfp4")
    changed = dataclasses.replace(p, **other)
    assert p != changed
    assert changed == dataclasses.replace(p, **other)
    assert repr(changed) != repr(p)
    assert eval(repr(changed), {"TensorProto": TensorProto, "float32": "float32"}) == changed


def test_padded_elements_are_another_description():
    assert TensorProto(4, "int4") != TensorProto(4, "int4", packed=False)
    assert repr(TensorProto(4, "int4", packed=False)) == (
        "TensorProto(shape=(4,), dtype=int4, device='cpu', packed=False)"
    )


def test_immutable():
    p = TensorProto((2, 3), "float32")
    for field in dataclasses.fields(p):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(p, field.name, getattr(p, field.name))
    with pytest.raises((AttributeError, TypeError)):  # slots: which of the two depends on the Python
        p.other = 1


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({}, ValueError, "dtype=None and format=None"),
        ({"dtype": "float32", "format": "nvfp4"}, ValueError, "dtype='float32' and format='nvfp4'"),
        ({"dtype": "float5"}, TypeError, "float5.*float4_e2m1fn"),
        ({"format": "nvfp5"}, ValueError, "nvfp5.*nvfp4"),
        ({"format": "mxfp4", "scale_layout": "4x4"}, ValueError, "4x4.*128x4"),
        ({"format": "fp8_e4m3", "scale_layout": "4x4"}, ValueError, "4x4.*128x4"),
        ({"format": "mxfp4", "packed": False}, ValueError, "packed=False"),
        ({"format": "mxfp4", "rowwise": False}, ValueError, "rowwise=False and columnwise=False"),
        ({"dtype": "int8", "pad": True, "columnwise": True}, ValueError, "pad=True, columnwise=True without a format"),
        ({"dtype": "float32", "device": "gpu"}, ValueError, "gpu"),
        ({"dtype": "float32", "device": 3}, TypeError, "device 3"),
        ({"dtype": "float32", "shape": (2, -1)}, ValueError, r"\(2, -1\)"),
        ({"format": "mxfp4", "shape": (-2, -32)}, ValueError, r"\(-2, -32\)"),
        ({"dtype": "float32", "shape": 2.5}, TypeError, "shape=2.5 is of type float; expected an integer"),
        ({"dtype": "float32", "shape": (2, None)}, TypeError, "shape=None is of type NoneType; expected an integer"),
    ],
    ids=str,
)  # fmt: skip
def test_bad_arguments(arguments, error, said):
    with pytest.raises(error, match=said):
        TensorProto(**{"shape": (64, 64), **arguments})


def test_device_needs_no_device():
    p = TensorProto((64, 64), format="nvfp4", device="cuda:7")
    assert str(p.device) == "cuda:7"
    assert len(p.buffers()) == 3
    if not dlfp4.cuda_available():
        with pytest.raises(dlfp4.DriverError):
            p.allocate()
    with pytest.raises(BufferError, match="metal"):
        TensorProto(3, "float32", device="metal").allocate()


def test_without_pytorch():
    assert run_python("""
import sys
sys.modules["torch"] = None
import numpy as np, dlfp4
p = dlfp4.TensorProto((32, 64), format="nvfp4", columnwise=True)
q = dlfp4.quantize(np.ones((32, 64), "float32"), p.format, axis=(-1, -2))
assert dlfp4.TensorProto.of(q) == p == dlfp4.TensorProto.of(p.allocate())
assert p.unflatten(p.flatten(q))[0].dequantize().tolist() == q[0].dequantize().tolist()
print(dlfp4.TensorProto.of(np.ones(3)))
""").strip() == "TensorProto(shape=(3,), dtype=float64, device='cpu')"  # fmt: skip


@pytest.mark.gpu
def test_allocate_on_a_gpu():
    p = TensorProto((64, 64), format="nvfp4", device="cuda:0", columnwise=True)
    made = p.allocate()
    assert {str(part.device) for part in parts_of(made).values()} == {"cuda:0"}
    assert TensorProto.of(made) == p
    assert p.flatten(made).keys() == {buffer.name for buffer in p.buffers()}


# ---- of


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (np.zeros((2, 3), np.float16), TensorProto((2, 3), "float16")),
        (np.zeros((4, 6), np.int32)[::2, ::-3], TensorProto((2, 2), "int32")),
        (np.zeros(5, ml_dtypes.float4_e2m1fn), TensorProto(5, "float4_e2m1fn", packed=False)),
        (np.float32(1), TensorProto((), "float32")),
        (b"bytes", TensorProto(5, "uint8")),
        (dlfp4.empty((3, 5), "float4_e2m1fn"), TensorProto((3, 5), "float4_e2m1fn")),
        (dlfp4.empty((3, 5), "int4", packed=False), TensorProto((3, 5), "int4", packed=False)),
        (dlfp4.quantize(values((4, 64)), "mxfp4"), TensorProto((4, 64), format="mxfp4")),
        (dlfp4.quantize(values((4, 60)), "mxfp4", pad=True), TensorProto((4, 60), format="mxfp4", pad=True)),
        (dlfp4.quantize(values((4, 64)), "mxfp4").mT,
         TensorProto((64, 4), format="mxfp4", rowwise=False, columnwise=True)),
        (dlfp4.quantize(values((32, 64)), "nvfp4", axis=(-2, -1), scale_layout="8x4"),
         TensorProto((32, 64), format="nvfp4", scale_layout="8x4", columnwise=True)),
        (list(dlfp4.quantize(values((32, 64)), "fp8_e4m3", axis=(-1, -2))),
         TensorProto((32, 64), format="fp8_e4m3", columnwise=True)),
    ],
    ids=name_of,
)  # fmt: skip
def test_of(x, expected):
    assert TensorProto.of(x) == expected


def test_of_a_gpu_tensor_reads_nothing():
    made = capsules.Made(capsules.random_array((4,)), device=(2, 3))  # host memory that claims to be a device's
    assert TensorProto.of(dlfp4.from_dlpack(made.capsule)) == TensorProto(4, "float32", device="cuda:3")


def test_of_pytorch():
    torch = framework("torch")
    assert TensorProto.of(torch.ones(2, 3)) == TensorProto((2, 3), "float32")
    assert TensorProto.of(torch.ones(2, 3, requires_grad=True)) == TensorProto((2, 3), "float32", requires_grad=True)
    fp4 = torch.zeros((2, 8), dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    assert TensorProto.of(fp4) == TensorProto((2, 16), "float4_e2m1fn")


def test_of_what_pytorch_has_no_memory_for():
    torch = framework("torch")
    weight = torch.nn.Linear(3, 2, device="meta", dtype=torch.bfloat16).weight
    assert TensorProto.of(weight) == TensorProto((2, 3), "bfloat16", requires_grad=True)
    for pairs, shape in [((2, 8), (2, 16)), ((4, 1), (4, 2)), ((4, 0), (4, 0))]:
        fp4 = torch.empty(pairs, dtype=torch.uint8, device="meta").view(torch.float4_e2m1fn_x2)
        assert TensorProto.of(fp4) == TensorProto(shape, F4)
    real = torch.zeros((4, 8), dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    for view in (lambda x: x.T, lambda x: x[:, :1], lambda x: x[:1], lambda x: x[None]):
        assert TensorProto.of(view(real.to("meta"))) == TensorProto.of(view(real))


def test_of_what_is_no_tensor():
    q = dlfp4.quantize(values((32, 64)), "nvfp4", axis=(-1, -2))
    for stranger, error in [
        ([1.0, 2.0], TypeError),
        ((), TypeError),
        ("text", TypeError),
        (None, TypeError),
        (q[0].to_numpy(), TypeError),
        ((q[0], q[0]), ValueError),
        ((q[0], dlfp4.quantize(values((32, 32)), "nvfp4", axis=-2)), ValueError),
        ((q[0], dlfp4.quantize(values((32, 64)), "mxfp4", axis=-2)), ValueError),
    ]:
        with pytest.raises(error):
            TensorProto.of(stranger)


def test_of_does_not_consume_a_capsule():
    made = capsules.Made()
    with pytest.raises(TypeError, match="from_dlpack"):
        TensorProto.of(made.capsule)
    assert made.name == capsules.VERSIONED


# ---- flatten, unflatten


@pytest.mark.parametrize(
    ("name", "layout"), [(n, layout) for n in FORMATS for layout in LAYOUTS if has_layout(n, layout)]
)
@pytest.mark.parametrize("axis", AXES, ids=str)
def test_flatten_and_back(name, axis, layout):
    x = values((2, 24, 40))
    q = dlfp4.quantize(x, name, axis=axis, scale_layout=layout, pad=True)
    p = TensorProto.of(q)
    flat = p.flatten(q)
    assert list(flat) == [buffer.name for buffer in p.buffers()]
    first = {key: part for key, part in parts_of(q).items() if key in flat}
    if isinstance(q, tuple) and "global_scale" in flat:  # one of two equal ones
        first["global_scale"] = flat["global_scale"]
    assert pointers(flat) == pointers(first)
    for buffers in (flat, dict(reversed(flat.items())), list(flat.values()), tuple(flat.values())):
        back = p.unflatten(buffers)
        assert TensorProto.of(back) == p
        assert bytes_of(back) == bytes_of(q)
        assert pointers(parts_of(back)) == pointers(flat)


def test_flatten_two_axes_that_were_transformed():
    q = dlfp4.quantize(values((32, 64)), "nvfp4", axis=(-1, -2), hadamard=5)
    flat = TensorProto.of(q).flatten(q)
    assert list(flat)[-1] == "columnwise_global_scale"
    assert [bytes_of(part) for part in TensorProto.of(q).unflatten(flat)] == [bytes_of(part) for part in q]


def test_flatten_plain():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    p = TensorProto((2, 3), "float32")
    flat = p.flatten(array)
    assert (list(flat), flat["data"].data_ptr) == (["data"], array.ctypes.data)
    assert p.unflatten({"data": array}).data_ptr == array.ctypes.data
    torch = framework("torch")
    leaf = torch.ones(2, 3, requires_grad=True)
    assert p.flatten(leaf)["data"].data_ptr == leaf.data_ptr()


def test_any_producer_is_a_buffer():
    p = TensorProto((64, 64), format="mxfp8_e4m3")
    q = dlfp4.quantize(values((64, 64)), "mxfp8_e4m3")
    arrays = dict(zip(("data", "scales"), q.to_numpy(), strict=False))
    assert bytes_of(p.unflatten(arrays)) == bytes_of(q)
    torch = framework("torch")
    q = dlfp4.quantize(torch.ones(64, 64), "nvfp4")
    back = TensorProto.of(q).unflatten(list(q.to_torch()))
    assert bytes_of(back) == bytes_of(q)
    assert back.to_torch().data.dtype == torch.float4_e2m1fn_x2


P = TensorProto((32, 64), format="nvfp4", columnwise=True)
ABSENT = object()


def buffers(**changes):
    made = P.flatten(dlfp4.quantize(values((32, 64)), "nvfp4", axis=(-1, -2)))
    made |= changes
    return {name: part for name, part in made.items() if part is not ABSENT}


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"scales": ABSENT}, ValueError, "scales absent"),
        ({"scales": None, "columnwise_data": ABSENT}, ValueError, "scales, columnwise_data absent"),
        ({"amax": np.zeros(1)}, ValueError, "amax extra"),
        ({"amax": np.zeros(1), "data": ABSENT}, ValueError, "data absent; amax extra"),
        ({"scales": np.zeros((32, 5), ml_dtypes.float8_e4m3fn)}, ValueError, r"scales has shape \(32, 5\).*\(32, 4\)"),
        ({"scales": np.zeros((32, 4), np.uint8)}, TypeError, r"scales has dtype uint8.*view\('float8_e4m3fn'\)"),
        ({"global_scale": np.zeros(1, np.float32)}, ValueError, r"global_scale has shape \(1,\)"),
        ({"global_scale": np.zeros((), np.float64)}, TypeError, "global_scale has dtype float64"),
        ({"data": np.zeros((32, 64), ml_dtypes.float4_e2m1fn)}, ValueError, "data has packed=False.*dlfp4.pack"),
        ({"columnwise_data": dlfp4.empty((32, 64), F4)}, ValueError, r"columnwise_data has shape.*\(64, 32\)"),
        ({"data": 3.5}, TypeError, "float"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_unflatten_refuses(changes, error, said):
    assert P.unflatten(buffers())
    with pytest.raises(error, match=said):
        P.unflatten(buffers(**changes))


def test_unflatten_counts_a_sequence():
    parts = list(buffers().values())
    with pytest.raises(ValueError, match="columnwise_scales absent"):
        P.unflatten(parts[:-1])
    with pytest.raises(ValueError, match="number 5 extra"):
        P.unflatten([*parts, parts[0]])
    with pytest.raises(TypeError, match=r"Tensor.*mapping"):
        TensorProto(1, "float32").unflatten(dlfp4.empty(1, "float32"))


def test_unflatten_refuses_another_device():
    made = capsules.Made(capsules.random_array((4,)), device=(2, 0))
    with pytest.raises(ValueError, match=r"data lies on cuda:0; expected cpu.*to_device"):
        TensorProto(4, "float32").unflatten([dlfp4.from_dlpack(made.capsule)])


@pytest.mark.parametrize(
    ("x", "field"),
    [
        (dlfp4.quantize(values((32, 64)), "nvfp4"), "columnwise"),
        (dlfp4.quantize(values((32, 64)), "mxfp4", axis=(-1, -2)), "format"),
        (dlfp4.quantize(values((64, 32)), "nvfp4", axis=(-1, -2)), "shape"),
        (dlfp4.quantize(values((32, 64)), "nvfp4", axis=(-1, -2), scale_layout="8x4"), "scale_layout"),
        (np.zeros((32, 64), np.float32), "format"),
    ],
    ids=name_of,
)
def test_flatten_refuses_another_description(x, field):
    with pytest.raises(ValueError, match=f"^{field} differs"):
        P.flatten(x)


def test_flatten_refuses_two_global_scales():
    q = dlfp4.quantize(values((32, 64)), "nvfp4"), dlfp4.quantize(2 * values((32, 64)), "nvfp4", axis=-2)
    with pytest.raises(ValueError, match="global_scale differs"):
        P.flatten(q)


def test_flatten_refuses_a_part_that_is_not_there():
    q = dlfp4.quantize(values((32, 64)), "nvfp4")
    bare = dlfp4.ScaledTensor.from_parts(q.data, q.scales, format="nvfp4")
    with pytest.raises(ValueError, match="global_scale absent"):
        TensorProto.of(q).flatten(bare)


def test_directions_with_scales_in_two_layouts():
    rows, columns = dlfp4.quantize(np.ones((128, 128), np.float32), "nvfp4", axis=(-1, -2))
    for parts in ((rows, columns.with_scale_layout("128x4")), (rows.with_scale_layout("128x4"), columns)):
        with pytest.raises(ValueError, match="not one tensor"):
            TensorProto.of(parts)
