"""dequantize gives the values of the plain-NumPy reference, bit by bit: every code under every scale, every layout,
axis, padding and stride; and from_parts takes what checkpoints hold, without a copy, or says what does not fit."""

import itertools
import math

import numpy as np
import pytest

import dlfp4
from dlfp4.formats import offset_parts

from ..support import block_reference as reference
from ..support.block_reference import (
    BYTEWISE,
    FLOAT_SCALED,
    FORMATS,
    FP4,
    FP8,
    INPUTS,
    INTEGERS,
    LINES,
    MX,
    TWO_LEVEL,
    WHOLE,
    assert_equal,
    divides,
    make,
    same,
)
from ..support.capsules import Made, framework
from ..support.reference import BITS, SPECIAL, dtype_of, native_cast, of_codes, packed_bytes, raw_bytes

pytestmark = pytest.mark.arithmetic

F = np.float32
TARGETS = ["float32", "bfloat16", "float16"]
LAYOUTS = ["128x4", "8x4", "aiter"]
ONE_BYTE_SCALES = [*TWO_LEVEL, *MX]
UNITS = [1.0, 0.0123, 2.0**-130, 3e38, 2.0**120, float("inf"), 0.0, -1.5]  # of NVFP4: a file may hold any


def from_lines(name, codes, scales, unit=None, axis=-1, **options):
    """A ScaledTensor of codes and scales line by line."""
    q = reference.Quantized(name, axis, codes, codes, scales, unit)
    shape, data = q.data()
    octets = np.frombuffer(data, np.uint8).reshape(shape[0], -1) if data else np.empty(shape, np.uint8)
    scales = q.stored_scales()
    options = reference.middles(name, scales.shape) | options
    return dlfp4.ScaledTensor.from_parts(octets, scales, unit, format=name, axis=axis, **options)


def all_scales(name):
    """Every scale code, and of float32 scales the ends, subnormals, infinities and NaNs."""
    if FORMATS[name].scale == "float32":
        return np.concatenate([SPECIAL, np.geomspace(1e-30, 1e30, 43).astype(F)])
    return np.arange(256, dtype=np.uint8)


def every_pair(name):
    """Codes and scales line by line, in which every code meets every scale."""
    count, (lines, length) = 1 << BITS[FORMATS[name].element], FORMATS[name].block
    length = length or count
    line = np.resize(np.arange(count, dtype=np.uint8), -(-count // length) * length)
    scales = np.repeat(all_scales(name)[:, None], len(line) // length, 1)
    codes = np.tile(line, (len(scales) * lines, 1))
    return codes, np.repeat(scales, lines, 0) if FORMATS[name].repeats else scales


def assert_values(tensor, expected):
    assert (tensor.shape, tensor.dtype) == (expected.shape, expected.dtype)
    unit = f"u{expected.itemsize}"
    got, wanted = np.frombuffer(raw_bytes(tensor), unit), expected.ravel().view(unit)
    wrong = np.flatnonzero(got != wanted)
    assert [(int(i), hex(got[i]), hex(wanted[i])) for i in wrong[:5]] == []


# ---- values --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", [name for name in FORMATS if FORMATS[name].block is not None])
def test_every_code_under_every_scale(name, target):
    codes, scales = every_pair(name)
    for axis, unit in itertools.product((-1, -2), UNITS if name in TWO_LEVEL else [None]):
        q = from_lines(name, codes, scales, unit, axis)
        expected = reference.dequantize(codes, scales, name, target, unit)
        assert_values(q.dequantize(target), np.ascontiguousarray(expected if axis == -1 else expected.T))


@pytest.mark.parametrize("name", WHOLE)
def test_every_code_under_one_scale_for_all(name):
    codes = np.arange(256, dtype=np.uint8).reshape(2, 128)
    for scale, target in itertools.product(all_scales(name), TARGETS):
        expected = reference.dequantize(codes, scale.reshape(()), name, target)
        for axis in (-1, -2):
            q = dlfp4.ScaledTensor.from_parts(codes, scale, format=name, axis=axis)
            assert_values(q.dequantize(target), expected)


def test_scales_that_are_not_finite_as_written_down():
    """NaN for the whole block, positive; 0x00 of e8m0 is 2**-127 and not 0; a NaN element keeps its sign."""
    nvfp4 = from_lines("nvfp4", np.full((1, 16), 9, np.uint8), np.array([[0x7F]], np.uint8), 1.0)
    assert set(np.frombuffer(raw_bytes(nvfp4.dequantize()), np.uint32)) == {0x7FC00000}
    assert set(np.frombuffer(raw_bytes(nvfp4.dequantize("bfloat16")), np.uint16)) == {0x7FC0}
    assert set(np.frombuffer(raw_bytes(nvfp4.dequantize("float16")), np.uint16)) == {0x7E00}
    mx = from_lines("mxfp4", np.full((1, 96), 2, np.uint8), np.array([[0, 254, 255]], np.uint8))
    assert mx.dequantize().to_numpy()[0, [0, 32]].tolist() == [2.0**-127, 2.0**127]
    assert np.isnan(mx.dequantize().to_numpy()[0, 64:]).all()
    nan = from_lines("mxfp8_e4m3", np.full((1, 32), 0xFF, np.uint8), np.array([[127]], np.uint8))
    assert set(np.frombuffer(raw_bytes(nan.dequantize()), np.uint32)) == {0xFFC00000}
    infinite = from_lines("mxfp8_e5m2", np.full((1, 32), 0xFC, np.uint8), np.array([[1]], np.uint8))
    assert set(infinite.dequantize().to_numpy().ravel()) == {-np.inf}


def test_a_block_whose_scale_is_zero_decodes_to_zero():
    """The trap of NVFP4: codes are not zero, but their scale is."""
    x = np.zeros((1, 32), F)
    x[0, 0], x[0, 16:] = 1000, -1e-6
    q = dlfp4.quantize(x, "nvfp4")
    assert raw_bytes(q.scales)[1] == 0
    assert raw_bytes(q.data)[8:] == b"\xff" * 8
    assert not q.dequantize().to_numpy()[0, 16:].any()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", FORMATS)
def test_what_was_quantized(name, target):
    for kind, shape in itertools.product(INPUTS, [(1, 16), (5, 7), (33, 70), (2, 3, 130), (129, 40)]):
        x = make(kind, shape)
        for axis in (-1, -2):
            q = dlfp4.quantize(x, name, axis=axis, pad=True)
            assert_values(q.dequantize(target), reference.values_of(reference.quantize(x, name, axis), shape, target))


@pytest.mark.parametrize("name", FORMATS)
def test_every_width(name):
    for k in range(1, 140):
        for shape, axis in (((3, k), -1), ((k, 3), -2)):
            x = make("normal", shape)
            expected = reference.values_of(reference.quantize(x, name, axis), shape)
            q = dlfp4.quantize(x, name, axis=axis, pad=True)
            assert_values(q.dequantize(), expected)


@pytest.mark.parametrize("shape", [(8, 32, 256), (4, 8, 4, 512), (1024, 512)], ids=str)
def test_large_tensors(shape):
    x = make("normal", shape)
    for name, axis, target in zip(FORMATS, itertools.cycle((-1, -2)), itertools.cycle(TARGETS), strict=False):
        q = dlfp4.quantize(x, name, axis=axis)
        assert_values(q.dequantize(target), reference.values_of(reference.quantize(x, name, axis), shape, target))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ONE_BYTE_SCALES)
def test_layouts_change_no_value(name, layout):
    for shape in ((48, 64), (150, 290), (2, 40, 96)):
        x = make("scaled blocks", shape)
        for axis in (-1, -2):
            q = dlfp4.quantize(x, name, axis=axis, pad=True)
            tiled = dlfp4.quantize(x, name, axis=axis, pad=True, scale_layout=layout)
            assert raw_bytes(tiled.dequantize()) == raw_bytes(q.dequantize())


def test_of_a_transpose():
    for name in FORMATS:
        x = make("normal", (128, 256))
        for axis in (-1, -2):
            q = dlfp4.quantize(x, name, axis=axis)
            assert (q.mT.shape, q.mT.axis) == ((256, 128), -3 - axis)
            expected = reference.values_of(reference.quantize(x, name, axis), x.shape)
            assert_values(q.mT.dequantize(), np.ascontiguousarray(expected.T))
            assert_values(q.mT.mT.dequantize("bfloat16"), native_cast(expected, "bfloat16"))
            assert q.mT.data.data_ptr == q.data.data_ptr
            assert q.mT.scales.data_ptr == q.scales.data_ptr
    with pytest.raises(ValueError, match="two dimensions"):
        _ = dlfp4.quantize(make("normal", (32,)), "mxfp4").mT


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in INTEGERS])  # whose -8 becomes -7.5
def test_quantizing_again_gives_the_same(name):
    """Decoded values are fixed points, with the global scale given: no block's largest value leaves its binade."""
    x = make("normal", (32, 256))
    recipe = dlfp4.Recipe(pow2=True) if name in LINES else None  # other quotients are not exact
    q = dlfp4.quantize(x, name, recipe=recipe)
    unit = q.global_scale if q.global_scale is not None else q.scales if FORMATS[name].block is None else None
    again = dlfp4.quantize(q.dequantize(), name, recipe=recipe, global_scale=unit)
    if name in FP8 and unit is None:  # whose scales follow a block's largest value, which a rounding may have moved
        again = dlfp4.quantize(again.dequantize(), name, recipe=recipe)
    assert raw_bytes(again.dequantize()) == raw_bytes(q.dequantize())


# ---- out -----------------------------------------------------------------------------------------------------------

PLACES = {
    "compact": lambda block: block[:2, :40, :96],
    "rows apart": lambda block: block[1:3, 1:41, 5:101],
    "every second": lambda block: block[::2, ::2, ::2][:2, :40, :96],
    "reversed": lambda block: block[:2, 39::-1, 95::-1],
    "transposed": lambda block: block.swapaxes(1, 2)[:2, :40, :96],
    "leading transposed": lambda block: block.T[:2, :40, :96],
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", FORMATS)
def test_out_of_any_strides(name, place):
    """Written where it belongs, and nowhere else."""
    x = make("normal", (2, 40, 96))
    for axis, target in itertools.product((-1, -2), TARGETS):
        q = dlfp4.quantize(x, name, axis=axis, pad=True)
        block = native_cast(np.full((200, 200, 4) if "leading" in place else (4, 200, 200), 7.0), target)
        model, out = block.copy(), PLACES[place](block)
        PLACES[place](model)[...] = reference.values_of(reference.quantize(x, name, axis), x.shape, target)
        result = dlfp4.dequantize(q, target, out=out)
        assert result.shape == x.shape
        assert result.data_ptr == out.ctypes.data
        assert block.tobytes() == model.tobytes()


def test_out_over_the_global_scale():
    out = np.zeros((32, 64), np.float32)
    unit = out.reshape(-1)[5:6]
    unit[:] = 2
    q = dlfp4.quantize(np.ones((32, 64), np.float32), "nvfp4", global_scale=2.0)
    q = dlfp4.ScaledTensor.from_parts(q.data, q.scales, unit, format="nvfp4")
    with pytest.raises(ValueError, match="out overlaps an input"):
        dlfp4.dequantize(q, out=out)
    assert (unit[0], np.count_nonzero(out)) == (2, 1)


def test_out_that_does_not_fit():
    q = dlfp4.quantize(make("normal", (4, 32)), "mxfp8_e4m3")
    for shape in ((4, 31), (32, 4), (128,), (1, 4, 32)):
        with pytest.raises(ValueError, match="shape"):
            dlfp4.dequantize(q, out=np.empty(shape, F))
    for dtype in (np.float16, np.float64, np.uint32):
        with pytest.raises(TypeError):
            dlfp4.dequantize(q, "float32", out=np.empty((4, 32), dtype))
    frozen = np.zeros((4, 32), F)
    frozen.flags.writeable = False
    with pytest.raises(BufferError, match="read-only"):
        dlfp4.dequantize(q, out=frozen)
    assert not frozen.any()
    memory = np.zeros((4, 32 * 4), np.uint8)
    q = dlfp4.ScaledTensor.from_parts(memory[:, :32], np.full((4, 1), 127, np.uint8), format="mxfp8_e4m3")
    with pytest.raises(ValueError, match="overlap"):
        dlfp4.dequantize(q, out=memory.view(F))


def test_arguments_that_are_none():
    q = dlfp4.quantize(make("normal", (4, 32)), "mxfp4")
    for dtype in ("float64", "int8", FP4, "float8_e4m3fn"):
        with pytest.raises(TypeError, match="float32, bfloat16 or float16"):
            dlfp4.dequantize(q, dtype)
    for other in (q.data, np.zeros((4, 32), F), None):
        with pytest.raises(TypeError, match="ScaledTensor"):
            dlfp4.dequantize(other)
    with pytest.raises(ValueError, match="stream"):
        dlfp4.dequantize(q, stream=1)
    assert raw_bytes(q.dequantize(np.float16)) == raw_bytes(dlfp4.dequantize(q, dtype="float16"))


# ---- from_parts ----------------------------------------------------------------------------------------------------


def rebuilt(q, data, scales, **options):
    options = {"format": q.format, "axis": q.axis, "scale_layout": q.scale_layout, **offset_parts(q), **options}
    return dlfp4.ScaledTensor.from_parts(data, scales, q.global_scale, **options)


@pytest.mark.parametrize(
    ("name", "layout"),
    [(n, layout) for n in FORMATS for layout in ("linear", *LAYOUTS) if layout == "linear" or n not in FLOAT_SCALED],
)
def test_parts_go_and_come_back(name, layout):
    for shape, axis in itertools.product([(48, 160), (3, 32, 64), (40, 50)], (-1, -2)):
        q = dlfp4.quantize(make("normal", shape), name, axis=axis, scale_layout=layout, pad=True)
        again = rebuilt(q, q.data, q.scales, shape=shape)
        assert (again.shape, again.axis, again.format) == (shape, axis, name)
        assert same(again, q)
        assert (again.data.data_ptr, again.scales.data_ptr) == (q.data.data_ptr, q.scales.data_ptr)
        assert raw_bytes(again.dequantize()) == raw_bytes(q.dequantize())
        if len(shape) == 2 and divides(shape, name, axis):
            assert rebuilt(q, q.data, q.scales).shape == shape


@pytest.mark.parametrize("name", FORMATS)
def test_parts_as_bytes(name):
    """uint8 memory, as checkpoints have it, is shared and not copied."""
    x = make("normal", (32, 256))
    expected = reference.quantize(x, name)
    data = np.frombuffer(expected.data()[1], np.uint8).reshape(32, -1).copy()
    scales = expected.stored_scales()
    zeros = reference.middles(name, scales.shape)
    q = dlfp4.ScaledTensor.from_parts(data, scales, expected.global_scale, format=name, **zeros)
    assert_equal(q, expected)
    assert (q.data.data_ptr, q.scales.data_ptr) == (data.ctypes.data, scales.ctypes.data)
    assert_values(q.dequantize(), reference.values_of(expected, x.shape))
    data[...] = 0x88 if zeros else 0
    assert not q.dequantize().to_numpy().any()


def test_leading_dimensions_of_parts():
    """gpt-oss has blocks (..., G, 16) of bytes and scales (..., G); its tensor is (..., G * 32)."""
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (2, 6, 3, 16), dtype=np.uint8)
    scales = rng.integers(110, 140, (2, 6, 3), dtype=np.uint8)
    codes = np.stack([blocks & 15, blocks >> 4], -1).reshape(12, 96)
    q = dlfp4.ScaledTensor.from_parts(blocks.reshape(2, 6, 48), scales, format="mxfp4")
    assert_values(q.dequantize(), reference.dequantize(codes, scales.reshape(12, 3), "mxfp4").reshape(2, 6, 96))


def test_rows_of_packed_parts_may_be_apart():
    x = make("normal", (16, 64))
    expected = reference.quantize(x, "nvfp4")
    wide = np.full((16, 40), 0xA5, np.uint8)
    wide[:, 4:36] = np.frombuffer(expected.data()[1], np.uint8).reshape(16, 32)
    scales = np.full((16, 9), 0xA5, np.uint8)
    scales[:, 1:9:2] = expected.scales
    q = dlfp4.ScaledTensor.from_parts(wide[:, 4:36], scales[:, 1:9:2], expected.global_scale, format="nvfp4")
    assert_values(q.dequantize(), reference.values_of(expected, x.shape))
    q = dlfp4.ScaledTensor.from_parts(wide[::-1, 4:36], scales[::-1, 1:9:2], expected.global_scale, format="nvfp4")
    assert_values(q.dequantize(), np.ascontiguousarray(reference.values_of(expected, x.shape)[::-1]))


@pytest.mark.parametrize("name", BYTEWISE)
def test_bytes_of_any_strides(name):
    x = make("normal", (128, 256))
    for axis in (-1, -2):
        expected = reference.quantize(x, name, axis)
        codes = expected.codes.T if axis == -2 else expected.codes
        wide = np.zeros((128, 520), np.uint8)
        wide[:, 3:515:2] = codes
        for data in (wide[:, 3:515:2], np.asfortranarray(codes)):
            q = dlfp4.ScaledTensor.from_parts(data, expected.stored_scales(), format=name, axis=axis)
            assert_values(q.dequantize(), reference.values_of(expected, x.shape))


def test_a_missing_global_scale_is_one():
    x = make("normal", (16, 32))
    expected = reference.quantize(x, "nvfp4")
    data = np.frombuffer(expected.data()[1], np.uint8).reshape(16, 16)
    q = dlfp4.ScaledTensor.from_parts(data, expected.scales, format="nvfp4")
    assert_values(q.dequantize(), reference.dequantize(expected.codes, expected.scales, "nvfp4"))


@pytest.mark.parametrize(
    "given", [0.25, F(0.25), np.full((), 0.25, F), np.full((1,), 0.25, F), np.full((1, 1), 0.25, F)]
)
def test_global_scales_of_any_form(given):
    q = dlfp4.ScaledTensor.from_parts(
        np.full((1, 8), 0x22, np.uint8), np.full((1, 1), 0x38, np.uint8), given, format="nvfp4"
    )
    assert (q.global_scale.shape, q.global_scale.item()) == ((), 0.25)
    assert set(q.dequantize().to_numpy().ravel()) == {0.25}


OCTETS = np.zeros((4, 32), np.uint8)
REFUSED = [
    ({"data": OCTETS, "scales": np.zeros((4, 3), np.uint8), "format": "mxfp4"}, ValueError, r"\(4, 2\)"),
    ({"data": OCTETS, "scales": np.zeros((2, 4), np.uint8), "format": "mxfp4"}, ValueError, r"\(4, 2\)"),
    ({"data": OCTETS, "scales": np.zeros((4, 4), np.uint8), "format": "mxfp4", "axis": -2}, ValueError, "scales"),
    ({"data": OCTETS, "scales": np.zeros((4, 2), F), "format": "mxfp4"}, TypeError, "float8_e8m0fnu"),
    ({"data": OCTETS.view(F), "scales": np.zeros((4, 2), np.uint8), "format": "mxfp4"}, TypeError, FP4),
    ({"data": OCTETS, "scales": np.zeros((4, 1), np.uint8), "global_scale": 1.0, "format": "mxfp8_e4m3"}, ValueError,
     "global scale"),
    ({"data": OCTETS, "scales": np.zeros((4, 4), np.uint8), "global_scale": np.ones(2, F), "format": "nvfp4"},
     ValueError, "global_scale"),
    ({"data": OCTETS, "scales": np.zeros((4, 4), np.uint8), "global_scale": np.ones((), np.float64),
      "format": "nvfp4"}, TypeError, "global_scale"),
    ({"data": OCTETS, "scales": np.zeros((4, 1), np.int8), "format": "fp8_1x128"}, TypeError, "float32"),
    ({"data": OCTETS, "scales": np.zeros((4, 2), np.uint8), "format": "mxfp5"}, ValueError, "mxfp4"),
    ({"data": OCTETS, "scales": np.zeros((4, 2), np.uint8), "format": "mxfp4", "scale_layout": "16x4"}, ValueError,
     "128x4"),
    ({"data": OCTETS, "scales": np.zeros((4, 2), np.uint8), "format": "mxfp4", "scale_layout": "128x4"}, ValueError,
     r"\(128, 4\)"),
    ({"data": OCTETS, "scales": np.zeros((4, 2), np.uint8), "format": "mxfp4", "axis": 0}, ValueError, "axis"),
    ({"data": OCTETS, "scales": np.zeros((4, 2), np.uint8), "format": "mxfp4", "shape": (4, 128)}, ValueError, "data"),
    ({"data": OCTETS, "scales": np.zeros((4, 1), F), "format": "fp8_1x128", "scale_layout": "8x4"}, ValueError,
     "linear"),
]  # fmt: skip


@pytest.mark.parametrize(("parts", "error", "message"), REFUSED, ids=range(len(REFUSED)))
def test_parts_that_do_not_fit(parts, error, message):
    with pytest.raises(error, match=message):
        dlfp4.ScaledTensor.from_parts(**parts)


def test_packed_parts_with_gaps_are_refused():
    """Where a row's elements do not lie side by side, or a row starts within a byte, the message says: copy."""
    octets, scales = np.ones((64, 64), np.uint8), np.ones((64, 2), np.uint8)
    packed = dlfp4.quantize(make("normal", (32, 64)), "mxfp4").data
    for data, its_scales in (
        (octets[:4, ::2], scales[:4]),
        (octets.T[:4, :32], scales[:8, :1]),
        (packed.T, scales[:, :1]),
    ):
        with pytest.raises((BufferError, ValueError), match="copy"):
            dlfp4.ScaledTensor.from_parts(data, its_scales, format="mxfp4")


HOST, PINNED, CUDA, OTHER_CUDA, MANAGED, ROCM = (1, 0), (3, 0), (2, 0), (2, 1), (13, 0), (10, 0)


def parts_said_to_lie_on(*devices):
    """Data, scales and the global scale of an NVFP4 tensor: host memory that claims to be a device's."""
    arrays = OCTETS, np.zeros((4, 4), np.uint8), np.ones((), F)
    return [
        dlfp4.from_dlpack(Made(array.copy(), device=device).capsule)
        for array, device in zip(arrays, devices, strict=True)
    ]


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ((HOST, HOST, CUDA), r"global_scale lies on cuda:0, data on cpu.*to_device\('cpu'\)"),
        ((CUDA, CUDA, HOST), r"global_scale lies on cpu, data on cuda:0.*to_device\('cuda:0'\)"),
        ((CUDA, HOST, CUDA), r"scales lies on cpu, data on cuda:0.*to_device\('cuda:0'\)"),
        ((PINNED, CUDA, HOST), r"scales lies on cuda:0, data on cuda_host.*to_device\('cpu'\)"),
        ((CUDA, CUDA, OTHER_CUDA), r"global_scale lies on cuda:1, data on cuda:0.*to_device\('cuda:0'\)"),
        ((MANAGED, OTHER_CUDA, MANAGED), r"data lies on cuda_managed, scales on cuda:1.*to_device\('cuda:1'\)"),
        ((MANAGED, HOST, CUDA), r"global_scale lies on cuda:0, scales on cpu.*to_device\('cpu'\)"),
        ((ROCM, ROCM, HOST), r"global_scale lies on cpu, data on rocm:0"),
        ((HOST, ROCM, HOST), r"scales lies on rocm:0, data on cpu"),
    ],
)
def test_parts_on_different_devices_are_refused(devices, message):
    with pytest.raises(ValueError, match=message):
        dlfp4.ScaledTensor.from_parts(*parts_said_to_lie_on(*devices), format="nvfp4")


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ((HOST, PINNED, HOST), ["cpu", "cuda_host", "cpu"]),
        ((CUDA, CUDA, CUDA), ["cuda:0"] * 3),
        ((MANAGED, MANAGED, MANAGED), ["cuda_managed"] * 3),
        ((MANAGED, CUDA, MANAGED), ["cuda:0"] * 3),
        ((CUDA, MANAGED, CUDA), ["cuda:0"] * 3),
        ((ROCM, ROCM, ROCM), ["rocm:0"] * 3),
    ],
)
def test_parts_that_the_same_kernels_read(devices, expected):
    parts = parts_said_to_lie_on(*devices)
    q = dlfp4.ScaledTensor.from_parts(*parts, format="nvfp4")
    found = q.data, q.scales, q.global_scale
    assert [str(part.device) for part in found] == expected
    assert [part.data_ptr for part in found] == [part.data_ptr for part in parts]


def test_all_parts_are_moved():
    """Though the data lies where it is asked for."""
    q = dlfp4.ScaledTensor.from_parts(*parts_said_to_lie_on(HOST, PINNED, HOST), format="nvfp4")
    moved = q.to_device("cpu")
    assert moved.data is q.data
    assert str(moved.scales.device) == "cpu"
    assert moved.to_device("cpu") is moved


def test_it_is_made_by_quantize_or_from_parts():
    with pytest.raises(TypeError, match="from_parts"):
        dlfp4.ScaledTensor()


# ---- frameworks ----------------------------------------------------------------------------------------------------


# PyTorch has no FP6, JAX from 0.11 on.
EXCHANGED = [name for name in FORMATS if BITS[FORMATS[name].element] != 6]
TAKEN_BACK = [name for name in EXCHANGED if name not in INTEGERS]  # JAX exports no int4


@pytest.mark.parametrize("name", EXCHANGED)
def test_parts_of_pytorch(name):
    torch = framework("torch")
    x = make("normal", (32, 256))
    q = dlfp4.quantize(torch.from_numpy(x), name)
    parts = q.to_torch()
    again = dlfp4.ScaledTensor.from_parts(**parts._asdict(), format=name)
    assert same(again, q)
    assert again.data.data_ptr == q.data.data_ptr
    assert_values(again.dequantize(), reference.values_of(reference.quantize(x, name), x.shape))
    if BITS[FORMATS[name].element] < 8 and name not in INTEGERS:
        again = dlfp4.ScaledTensor.from_parts(parts.data.view(torch.uint8), parts.scales, q.global_scale, format=name)
        assert same(again, q)
    out = torch.empty(x.shape, dtype=torch.bfloat16)
    dlfp4.dequantize(q, "bfloat16", out=out)
    assert out.view(torch.uint16).numpy().tobytes() == raw_bytes(q.dequantize("bfloat16"))


@pytest.mark.parametrize("name", TAKEN_BACK)
def test_parts_of_jax(name):
    framework("jax")
    q = dlfp4.quantize(make("normal", (32, 256)), name)
    assert same(dlfp4.ScaledTensor.from_parts(**q.to_jax()._asdict(), format=name), q)


def test_numpy_elements_pack_to_parts():
    """to_numpy unpacks; pack is the way back."""
    q = dlfp4.quantize(make("normal", (16, 64)), "nvfp4")
    parts = q.to_numpy()
    again = dlfp4.ScaledTensor.from_parts(dlfp4.pack(parts.data), parts.scales, parts.global_scale, format="nvfp4")
    assert same(again, q)
    codes = of_codes(np.arange(16).repeat(2).reshape(1, 32), FP4)
    packed = dlfp4.pack(codes)
    assert raw_bytes(packed) == packed_bytes(codes.view(np.uint8), 4)
    one = dlfp4.ScaledTensor.from_parts(packed, np.full((1, 1), 127, np.uint8), format="mxfp4")
    assert one.dequantize().to_numpy().tolist() == native_cast(codes, "float32").tolist()
    assert math.prod(one.shape) == one.data.size
    assert one.data.dtype == dtype_of(FP4)


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "fp8_e4m3"])
def test_out_with_rows_apart(name):
    q = dlfp4.quantize(np.random.default_rng(0).normal(size=(256, 128)).astype(np.float32), name)
    memory = np.full((256, 160), 7, np.float32)
    dlfp4.dequantize(q, out=memory[:, :128])
    assert (memory[:, :128] == q.dequantize().to_numpy()).all()
    assert (memory[:, 128:] == 7).all()
