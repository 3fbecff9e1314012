"""What the C API refuses: each by its status, and a result that it leaves as it was."""

import ctypes
from ctypes import byref

import numpy as np
import pytest

import dlfp4
from dlfp4 import _core

from ..support import c_api
from ..support.capsules import DEVICES
from .test_c_api import FORMATS, C, blank_like, bytes_of, routing, values
from .test_c_api_on_devices import on_device

pytestmark = pytest.mark.arithmetic


def quantize_by(q, x, options):
    """What quantizing x into q says of a format's recipe with some options."""
    recipe = c_api.Recipe()
    assert C.default_recipe(C.find_format(q.format.name.encode()), byref(recipe)) == c_api.OK
    for name, value in options.items():
        setattr(recipe, name, value)
    return C.quantize(c_api.describe(x), byref(recipe), 0, c_api.describe_scaled(q), None, None)


@pytest.mark.parametrize(
    "options",
    [{"rounding": 4}, {"rounding": 6}, {"rounding": -1}, {"scale_rule": 4}, {"scale_rule": -1}, {"scale_order": 3},
     {"scale_order": -1}, {"four_over_six": 3}, {"four_over_six": -1}, {"eps": -1.0}, {"eps": float("nan")},
     {"largest_scale": -1.0}, {"least_scale": 0x7F}, {"least_scale": 0x80}, {"least_scale": 0x81},
     {"zero_scale": 0x7F}, {"zero_scale": 0x81}, {"four_over_six": 1, "rounding": 5},
     {"four_over_six": 1, "divides": 1}, {"four_over_six": 2, "scale_order": 1}, {"eps": float("inf")},
     {"largest_scale": 449.0}, {"largest_scale": float("inf")}, {"largest_scale": float("nan")},
     {"scale_code": 99, "scale_bits": 16}, {"scale_code": 10, "scale_bits": 8}],
)  # fmt: skip
def test_recipes_that_are_not_known(options):
    x = values(16, 32)
    q = dlfp4.quantize(x, "nvfp4")
    before = bytes_of(q)
    assert quantize_by(q, x, options) == c_api.E_OPTION
    assert bytes_of(q) == before


def test_recipes_are_of_some_formats():
    x = values(128, 128)
    for name, taken in (("nvfp4", True), ("nvfp4_16x16", True), ("mxfp4", False), ("fp8_1x128", False)):
        status = quantize_by(dlfp4.quantize(x, name), x, {"four_over_six": 1, "largest_scale": 256})
        assert status == (c_api.OK if taken else c_api.E_OPTION), name
    for name, options in (("mxfp4", {"zero_scale": 0xFF}), ("mxfp4", {"least_scale": 0xFF})):
        assert quantize_by(dlfp4.quantize(x, name), x, options) == c_api.E_OPTION
    for name, options in (("mxfp4", {"zero_scale": 0x80}), ("fp8_row", {"zero_scale": 0x80, "least_scale": 0x7F})):
        assert quantize_by(dlfp4.quantize(x, name), x, options) == c_api.OK


def test_products_without_their_workspace_are_refused():
    x, w = c_api.plain(values(3, 64)), c_api.describe_scaled(dlfp4.quantize(values(10, 64), "nvfp4"))
    whole, of_experts = c_api.describe(np.zeros((3, 10), np.float32)), c_api.describe(np.zeros((3, 5), np.float32))
    nothing = c_api.describe(np.zeros((0, 10), np.float32))
    assert C.matmul(x, w, whole, None, None, None) == c_api.E_OPTION
    assert C.grouped_matmul(x, w, routing(ends=np.array([1, 3])), of_experts, None, None, None) == c_api.E_OPTION
    assert C.matmul(c_api.plain(values(0, 64)), w, nothing, None, None, None) == c_api.OK


def test_what_is_quantized_is_not_rounded_again():
    w, out = dlfp4.quantize(values(5, 64), "nvfp4"), c_api.describe(np.zeros((3, 5), np.float32))
    for name in ("fp8_row", "mxfp8_e4m3", "nvfp4"):
        x = dlfp4.quantize(values(3, 64), name)
        call = c_api.describe_scaled(x), c_api.describe_scaled(w), out
        assert C.matmul_workspace(*call, byref(c_api.MatmulOptions(activation=1, alpha=1.0))) == -1
        assert C.matmul_workspace(*call, byref(c_api.MatmulOptions(activation=0, alpha=1.0))) >= 0


def test_activations_that_are_not_known():
    x, w = values(3, 64), dlfp4.quantize(values(5, 64), "nvfp4")
    call = c_api.plain(x), c_api.describe_scaled(w), c_api.describe(np.zeros((3, 5), np.float32))
    for activation in (-1, 2, 2**31 - 1):
        options = byref(c_api.MatmulOptions(activation=activation, alpha=1.0))
        assert C.matmul_workspace(*call, options) == -1
        assert C.matmul(*call, options, None, None) == c_api.E_OPTION


def test_statuses_have_words():
    words = [C.status_string(status).decode() for status in range(10)]
    assert words[0] == "done"
    assert len(set(words)) == 10
    assert C.status_string(500).decode() == C.status_string(-1).decode() == "no status of dlfp4"
    assert C.status_string(c_api.E_CUDA + 2).decode()


@pytest.mark.parametrize("device", [c_api.DLDevice(2, 0), c_api.DLDevice(8, 0)], ids=["cuda", "metal"])
def test_results_lie_where_operands_lie(device):
    x, out = np.zeros((128, 4), np.uint8), np.ones((128, 4), np.uint8)
    for devices in ({}, {"device": device}), ({"device": device}, {}):
        pair = [c_api.describe(given, **where) for given, where in zip((x, out), devices, strict=True)]
        assert C.cast(*pair, None, 0, None) == c_api.E_DEVICE
        assert C.convert_scales(pair[0], 0, pair[1], 0, 128, 4, 0, None) == c_api.E_DEVICE
    assert out.all()


def test_what_is_not_together_or_not_there_is_refused():
    x = values(16, 32)
    q = dlfp4.quantize(x, "nvfp4")
    good, elsewhere = c_api.describe_scaled(q), c_api.describe(x, device=c_api.DLDevice(2, 0))
    assert C.quantize(elsewhere, None, 0, good, None, None) == c_api.E_DEVICE
    assert C.dequantize(good, elsewhere, None) == c_api.E_DEVICE
    assert C.cast(c_api.describe(x, device=c_api.DLDevice(8, 0)), c_api.describe(x), None, 0, None) == c_api.E_DEVICE
    assert C.matmul_workspace(c_api.plain(x), good, c_api.describe(x, device=c_api.DLDevice(2, 0)), None) == -1
    assert C.quantize(None, None, 0, good, None, None) == c_api.E_OPTION
    assert C.quantize(c_api.describe(x), None, 0, None, None, None) == c_api.E_OPTION
    assert C.cast(c_api.describe(x), None, None, 0, None) == c_api.E_OPTION


@pytest.mark.parametrize("name", _core._ON_HOST)
def test_memory_that_the_host_reads(name):
    x, out = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    there = [c_api.describe(part, device=c_api.DLDevice(DEVICES[name], 0)) for part in (x, out)]
    assert C.cast(*there, None, 0, None) == c_api.OK
    np.testing.assert_array_equal(out, x)


@pytest.mark.skipif(dlfp4.cuda_available(), reason="there is a CUDA device")
def test_without_a_driver_a_device_is_refused():
    x = values(16, 32)
    there = c_api.describe(x, device=c_api.DLDevice(2, 0))
    assert C.load_cuda(0) == c_api.E_CUDA_DRIVER
    assert C.cast(there, there, None, 0, None) == c_api.E_CUDA_DRIVER


def test_parts_that_do_not_fit_are_refused():
    x = values(16, 32)
    q = dlfp4.quantize(x, "nvfp4")
    part = {name: c_api.describe(getattr(q, name)) for name in ("data", "scales", "global_scale")}

    def status(x=x, given=0.0, **changed):
        described = c_api.describe_scaled(q)
        for name, value in changed.items():
            setattr(described, name, ctypes.pointer(value) if isinstance(value, c_api.DLTensor) else value)
        return C.quantize(c_api.describe(x), None, given, described, None, None)

    assert status() == c_api.OK
    assert status(x=values(17, 32)) == c_api.E_SHAPE
    assert status(x=values(16, 33)) == c_api.E_SHAPE
    assert status(x=values(16, 32).astype(np.float64)) == c_api.E_DTYPE
    assert status(data=part["scales"]) == c_api.E_DTYPE
    assert status(scales=part["data"]) == c_api.E_DTYPE
    assert status(scales=c_api.describe(q.scales, ndim=1)) == c_api.E_SHAPE
    assert status(scales=None) == c_api.E_OPTION
    assert status(global_scale=None) == c_api.E_OPTION
    assert status(global_scale=c_api.describe(values(3))) == c_api.E_SHAPE
    assert status(global_scale=part["data"]) == c_api.E_DTYPE
    assert status(zero_points=part["scales"]) == status(biases=part["scales"]) == c_api.E_OPTION
    assert status(axis=0) == c_api.E_OPTION
    assert status(format=len(FORMATS)) == c_api.E_OPTION
    assert status(layout=-1) == c_api.E_OPTION
    assert status(given=-1.0) == status(given=float("nan")) == status(given=float("inf")) == c_api.E_OPTION
    mx = c_api.describe_scaled(dlfp4.quantize(x, "mxfp4"))
    assert C.quantize(c_api.describe(x), None, 0.5, mx, None, None) == c_api.E_OPTION


def test_a_line_is_a_matrix_of_one_row():
    x = values(1, 64)
    q = dlfp4.quantize(x, "mxfp4")
    made = blank_like(q, x)
    described = c_api.describe_scaled(made)
    assert C.quantize(c_api.describe(x[0]), None, 0.0, described, None, None) == c_api.OK
    assert bytes_of(made) == bytes_of(q)
    assert C.quantize(c_api.describe(x[0, 0]), None, 0.0, described, None, None) == c_api.E_SHAPE


@pytest.mark.parametrize("format", ["int4_g32", "uint4_g32"])
def test_zero_points_and_biases_are_told_apart(format):
    """Either, by its name, in the type that it has; quantizing writes zero points alone."""
    x = values(16, 64)
    made = dlfp4.quantize(x, format)
    numbers = {"zero_points": np.full((16, 2), 7, np.uint8), "biases": np.full((16, 2), 0.5, np.float32)}
    for name, part in numbers.items():
        q = dlfp4.ScaledTensor.from_parts(made.data, made.scales, format=format, **{name: part})
        out, described = np.zeros_like(x), c_api.describe_scaled(q)
        assert C.dequantize(described, c_api.describe(out), None) == c_api.OK
        assert out.tobytes() == q.dequantize().to_numpy().tobytes()
        (other,) = numbers.keys() - {name}
        setattr(described, other, getattr(described, name))
        assert C.dequantize(described, c_api.describe(out), None) == c_api.E_OPTION  # both
        setattr(described, name, None)
        assert C.dequantize(described, c_api.describe(out), None) == c_api.E_OPTION  # one by the other's name
    others = c_api.describe_scaled(made)
    others.zero_points = (
        None if made.zero_points is not None else ctypes.pointer(c_api.describe(numbers["zero_points"]))
    )
    assert C.quantize(c_api.describe(x), None, 0.0, others, None, None) == c_api.E_OPTION
    biases = c_api.describe_scaled(dlfp4.ScaledTensor.from_parts(made.data, made.scales, format=format, biases=part))
    assert C.quantize(c_api.describe(x), None, 0.0, biases, None, None) == c_api.E_OPTION


def test_tensors_that_cannot_be_counted_are_refused():
    x = np.zeros(4, np.float32)
    out = c_api.describe(x)

    def status(**changed):
        return C.cast(c_api.describe(x, **changed), out, None, 0, None)

    assert status() == c_api.OK
    assert status(ndim=-1) == status(ndim=64) == c_api.E_SHAPE
    assert status(shape=(ctypes.c_int64 * 1)(-4)) == c_api.E_SHAPE
    assert status(ndim=2, shape=(ctypes.c_int64 * 2)(2**40, 2**40), strides=None) == c_api.E_SHAPE
    # Of the last one the span is two, if what overflows is lost; the one before makes 2**56 elements reach too far.
    for stride in (2**62, -(2**63), 2**60, (2**56 - 1) // 3, (2**64 + 2) // 3):
        assert status(strides=(ctypes.c_int64 * 1)(stride)) == c_api.E_SHAPE
    assert status(shape=(ctypes.c_int64 * 1)(2), strides=(ctypes.c_int64 * 1)(-(2**63))) == c_api.E_SHAPE
    assert status(shape=None) == status(data=None) == c_api.E_OPTION
    nothing = np.zeros(0, np.float32)
    assert C.cast(c_api.describe(nothing, data=None), c_api.describe(nothing, data=None), None, 0, None) == c_api.OK
    assert status(dtype=c_api.DLDataType(2, 32, 2)) == status(dtype=c_api.DLDataType(99, 8, 1)) == c_api.E_DTYPE
    assert C.cast(c_api.describe(x), out, None, 4, None) == c_api.E_OPTION


@pytest.mark.parametrize("step", [3 * 64 + 1, 3 * 64 - 1, 64, 0])
def test_leading_dimensions_that_are_no_rows_are_refused(step):
    x = np.zeros(1024, np.float32)
    q = c_api.describe_scaled(dlfp4.quantize(values(6, 64), "mxfp4"))

    def given(*strides):
        return c_api.describe(x, ndim=3, shape=(ctypes.c_int64 * 3)(2, 3, 64), strides=(ctypes.c_int64 * 3)(*strides))

    assert C.quantize(given(3 * 64, 64, 1), None, 0.0, q, None, None) == c_api.OK
    assert C.quantize(given(step, 64, 1), None, 0.0, q, None, None) == c_api.E_SHAPE
    assert C.dequantize(q, given(step, 64, 1), None) == c_api.E_SHAPE


def test_numbers_without_dimensions_are_no_matrix():
    number, q = c_api.describe(np.zeros((), np.float32)), dlfp4.quantize(np.zeros((1, 0), np.float32), "mxfp4")
    assert C.quantize(number, None, 0.0, c_api.describe_scaled(q), None, None) == c_api.E_SHAPE
    assert C.dequantize(c_api.describe_scaled(q), number, None) == c_api.E_SHAPE


def test_weights_are_prepared_on_devices_alone():
    w, prepared = c_api.describe_scaled(dlfp4.quantize(values(128, 64), "nvfp4")), c_api.Prepared()
    assert C.prepared_bytes(w.format, 128, 64) >= 128 * 64 // 2 + 128 * 64 // 16
    assert C.prepared_bytes(C.find_format(b"int4_g32"), 128, 64) == C.prepared_bytes(99, 128, 64) == 0
    memory = ctypes.create_string_buffer(C.prepared_bytes(w.format, 128, 64))
    assert C.prepare(w, memory, byref(prepared), None) == c_api.E_DEVICE
    assert C.prepare(w, None, byref(prepared), None) == c_api.E_OPTION
    x = c_api.describe(values(4, 64, dtype="bfloat16"))
    assert C.matmul_prepared(x, byref(prepared), x, 1, None) == c_api.E_DEVICE
    there = on_device(dlfp4.quantize(values(128, 64), "nvfp4"))
    assert C.prepare(there, 4096 + 128, byref(prepared), None) == c_api.E_SHAPE
    assert C.prepare(there, 4096, None, None) == c_api.E_OPTION


def test_numbers_that_are_not_aligned_are_refused():
    x, memory = values(4, 64), np.zeros(64, np.uint8)
    q = c_api.describe_scaled(dlfp4.quantize(x, "nvfp4"))
    q.global_scale.contents.data = memory.ctypes.data + 1
    assert C.quantize(c_api.describe(x), None, 0, q, None, None) == c_api.E_SHAPE
    out = c_api.describe(np.zeros(4, np.float32), data=memory.ctypes.data + 2)
    assert C.vecdot(c_api.plain(x), c_api.plain(x), out, None, None) == c_api.E_SHAPE
    whole = c_api.describe_scaled(dlfp4.quantize(x, "fp8_e4m3"))
    whole.scales.contents.data = memory.ctypes.data + 3
    assert C.dequantize(whole, c_api.describe(x), None) == c_api.E_SHAPE


def test_operands_that_do_not_go_together_are_refused():
    x, out = values(5, 64), c_api.describe(np.zeros((5, 48), np.float32))
    w = c_api.describe_scaled(dlfp4.quantize(values(48, 64), "mxfp4"))
    turned = c_api.describe_scaled(dlfp4.quantize(values(48, 64), "mxfp4"), rotation=C.rotation(1))
    assert C.matmul_workspace(c_api.plain(x), w, out, None) >= 0
    assert C.matmul(c_api.plain(values(5, 96)), w, out, None, None, None) == c_api.E_SHAPE
    assert C.matmul(c_api.plain(values(4, 64)), w, out, None, None, None) == c_api.E_SHAPE
    assert C.matmul(c_api.plain(x), turned, out, None, None, None) == c_api.E_OPTION
    assert C.matmul(None, w, out, None, None, None) == c_api.E_OPTION
    assert C.vecdot(c_api.plain(x), w, c_api.describe(np.zeros(5, np.float32)), None, None) == c_api.E_SHAPE
    assert C.vecdot(c_api.plain(x), c_api.plain(x), c_api.describe(np.zeros(5)), None, None) == c_api.E_DTYPE
