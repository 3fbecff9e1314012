"""The C API on DLTensors gives the bytes of the package's functions, and refuses what it does not take."""

import ctypes
import math
from ctypes import byref

import ml_dtypes
import numpy as np
import pytest

import dlfp4
from dlfp4 import _core

from ..rules.test_layouts import LAYOUTS
from ..support import c_api
from ..support.capsules import DTYPES, flushed_subnormals
from ..support.reference import parts_of

pytestmark = pytest.mark.arithmetic  # no part of it depends on Python

C = c_api.load()
FORMATS = list(dlfp4.formats())
RNG = np.random.default_rng(33)


def values(*shape, dtype="float32"):
    x = RNG.standard_normal(shape) * np.exp2(RNG.integers(-3, 4, shape))
    return x.astype(getattr(ml_dtypes, dtype, dtype))


def bytes_of(q):
    return [part.view("uint8").to_numpy().tobytes() if part.ndim else part.item() for part in parts_of(q)]


def blank_like(q, x):
    """A result of the same shape with other contents."""
    return dlfp4.quantize(
        np.full_like(x, 3), q.format, axis=q.axis, scale_layout=q.scale_layout, pad=True,
        recipe=dlfp4.Recipe(global_scale_per="row") if q.global_scale is not None and q.global_scale.ndim else None,
    )  # fmt: skip


# ---- Formats


@pytest.mark.parametrize("name", FORMATS)
def test_formats_are_described(name):
    info, row, number = c_api.FormatInfo(), dlfp4.formats()[name], C.find_format(name.encode())
    assert C.describe_format(number, byref(info)) == c_api.OK
    assert info.name.decode() == name
    assert (info.element.code, info.element.bits, info.element.lanes) == (*DTYPES[row.element.name], 1)
    assert (info.scale.code, info.scale.bits, info.scale.lanes) == (*DTYPES[row.scale.name], 1)
    lines, length = row.block or (0, 0)
    assert (info.lines, info.length, info.repeats_scales) == (lines, length or 0, row.repeats_scales)
    assert ["two_level", "power", "largest"][info.kind] == row.kind


def test_unknown_formats_and_layouts():
    info, recipe = c_api.FormatInfo(), c_api.Recipe()
    assert C.find_format(b"fp5") == C.find_layout(b"diagonal") == -1
    for number in (-1, len(FORMATS)):
        assert C.describe_format(number, byref(info)) == c_api.E_OPTION
        assert C.default_recipe(number, byref(recipe)) == c_api.E_OPTION


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("name", FORMATS)
def test_buffers_are_those_of_the_package(name, axis):
    for layout in LAYOUTS:
        for shape in [(256, 512), (1, 1), (0, 64), (64, 0), (129, 130), (3, 4096)]:
            sizes = c_api.Sizes()
            status = C.size_buffers(
                C.find_format(name.encode()), axis, C.find_layout(layout.encode()), *shape, byref(sizes)
            )
            try:
                data, scales, *_ = _core._buffers_of(shape, name, axis, layout, True)
            except ValueError:
                assert status == c_api.E_OPTION
                continue
            assert (status, tuple(sizes.data)) == (c_api.OK, data.shape)
            assert tuple(sizes.scales)[: sizes.scale_ndim] == scales.shape
            assert sizes.data_bytes == (data.shape[0] * data.shape[1] * DTYPES[data.dtype.name][1] + 7) // 8
            assert sizes.scale_bytes == np.prod(scales.shape, dtype=int) * scales.dtype.itemsize


def test_sizes_that_do_not_exist():
    sizes, format = c_api.Sizes(), C.find_format(b"nvfp4")
    assert C.size_buffers(format, 0, 0, 16, 16, byref(sizes)) == c_api.E_OPTION
    assert C.size_buffers(format, -1, 99, 16, 16, byref(sizes)) == c_api.E_OPTION
    assert C.size_buffers(format, -1, 0, -1, 16, byref(sizes)) == c_api.E_SHAPE
    most = 2**40  # what an extent may be
    for shape in ((16, -1), (most, most), (2**30, 2**30), (most + 1, 0), (0, most + 1)):
        assert C.size_buffers(format, -1, 0, *shape, byref(sizes)) == c_api.E_SHAPE
    assert bytes(sizes) == bytes(c_api.Sizes())
    assert C.size_buffers(format, -1, 0, most, 0, byref(sizes)) == c_api.OK


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("name", FORMATS)
def test_the_largest_sizes_are_products_that_did_not_wrap(name, axis):
    taken = 0
    for layout in range(len(LAYOUTS)):
        for rows in (0, 1, 2**16, 2**17, 2**40 - 1, 2**40):
            for columns in (0, 1, 2**16, 2**17 - 256, 2**40 - 1, 2**40):
                sizes, format = c_api.Sizes(), C.find_format(name.encode())
                if C.size_buffers(format, axis, layout, rows, columns, byref(sizes)) != c_api.OK:
                    continue
                info = c_api.FormatInfo()
                C.describe_format(format, byref(info))
                assert sizes.data_bytes == (math.prod(sizes.data) * info.element.bits + 7) // 8
                assert sizes.scale_bytes == math.prod(sizes.scales) * info.scale.bits // 8
                taken += 1
    assert taken >= 20


def test_null_is_no_name_and_no_place_for_answers():
    assert C.find_format(None) == C.find_layout(None) == -1
    assert C.describe_format(0, None) == C.default_recipe(0, None) == c_api.E_OPTION
    assert C.size_buffers(0, -1, 0, 16, 16, None) == c_api.E_OPTION
    assert C.matmul_workspace(None, None, None, None) == C.grouped_matmul_workspace(None, None, None, None, None) == -1


# ---- Casts


@pytest.mark.parametrize("dtype", ["float4_e2m1fn", "float6_e3m2fn", "float8_e4m3fn", "bfloat16"])
@pytest.mark.parametrize("packed", [True, False])
def test_cast(dtype, packed):
    x = values(6, 8).T
    expected = dlfp4.cast(x, dtype, packed=packed)
    out = dlfp4.empty(x.shape, dtype, packed=packed)
    is_padded = not packed and DTYPES[dtype][1] < 8
    assert C.cast(c_api.describe(x), c_api.describe(out), None, 2 * is_padded, None) == c_api.OK
    back = np.zeros(x.shape, np.float32)
    assert C.cast(c_api.describe(out), c_api.describe(back), None, is_padded, None) == c_api.OK
    np.testing.assert_array_equal(back, expected.to_numpy().astype(np.float32))


def test_cast_with_options_and_without_strides():
    x = values(5, 3)
    out = dlfp4.empty(x.shape, "float8_e5m2")
    options = c_api.ConvertOptions(rounding=5, saturate=1, seed=7)
    source = c_api.describe(x[1:], data=x.ctypes.data, byte_offset=x.strides[0], strides=None)
    assert C.cast(source, c_api.describe(out[1:]), byref(options), 0, None) == c_api.OK
    expected = dlfp4.cast(x[1:], "float8_e5m2", rounding="stochastic", seed=7)
    assert out[1:].to_numpy().tobytes() == expected.to_numpy().tobytes()


def test_pairs_are_what_they_hold():
    codes = dlfp4.asarray(RNG.integers(0, 256, (4, 8), np.uint8)).view("float4_e2m1fn")
    pairs = c_api.describe(codes.view("uint8"), dtype=c_api.DLDataType(17, 4, 2))
    out = np.zeros((4, 16), np.float32)
    assert C.cast(pairs, c_api.describe(out), None, 0, None) == c_api.OK
    np.testing.assert_array_equal(out, codes.to_numpy().astype(np.float32))
    for given, taken, flag in (
        (pairs, c_api.describe(out), 1),
        (c_api.describe(out), pairs, 2),
    ):  # four bytes, not eight
        assert C.cast(given, taken, None, flag, None) == c_api.E_OPTION
    turned = c_api.describe(codes.view("uint8").T, dtype=c_api.DLDataType(17, 4, 2))
    assert C.cast(turned, c_api.describe(np.zeros((8, 8), np.float32)), None, 0, None) == c_api.E_SHAPE


# ---- Block scaling


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("name", FORMATS)
def test_quantize_and_dequantize(name, axis):
    for layout in ("linear", "128x4", "cublas_1x128", "aiter"):
        for x in (values(128, 256), values(70, 100), values(256, 96, dtype="bfloat16").T, values(2, 64, 128)):
            try:
                expected = dlfp4.quantize(x, name, axis=axis, scale_layout=layout, pad=True)
            except ValueError:  # the format has no such layout
                assert layout != "linear"
                continue
            result = blank_like(expected, x)
            assert C.quantize(c_api.describe(x), None, 0, c_api.describe_scaled(result), None, None) == c_api.OK
            assert bytes_of(result) == bytes_of(expected)
            out = np.zeros(x.shape, ml_dtypes.bfloat16)
            assert C.dequantize(c_api.describe_scaled(expected), c_api.describe(out), None) == c_api.OK
            assert out.tobytes() == expected.dequantize("bfloat16").to_numpy().tobytes()


@pytest.mark.parametrize("name", ["nvfp4", "fp8_e4m3", "mxfp8_32x32", "fp8_1x128"])
def test_both_axes_in_one_call(name):
    x = values(128, 128)
    expected = dlfp4.quantize(x, name, axis=(-1, -2))
    results = [blank_like(q, x) for q in expected]
    described = [c_api.describe_scaled(q) for q in results]
    assert C.quantize(c_api.describe(x), None, 0, *described, None) == c_api.OK
    assert [bytes_of(q) for q in results] == [bytes_of(q) for q in expected]
    assert C.quantize(c_api.describe(x), None, 0, described[0], described[0], None) == c_api.E_OPTION


@pytest.mark.parametrize("name", ["nvfp4", "fp8_e4m3"])
def test_a_given_scale_of_the_tensor(name):
    x = values(16, 32)
    expected = dlfp4.quantize(x, name, global_scale=0.375)
    result = blank_like(expected, x)
    assert C.quantize(c_api.describe(x), None, 0.375, c_api.describe_scaled(result), None, None) == c_api.OK
    assert bytes_of(result) == bytes_of(expected)


def test_a_subnormal_scale_where_the_caller_flushes_subnormals():
    """As programs do that were linked with -ffast-math."""
    torch = pytest.importorskip("torch")
    x, scale = values(16, 32) * np.float32(1e-38), ctypes.c_float(5e-39)
    expected = dlfp4.quantize(x, "nvfp4", global_scale=5e-39)
    result = blank_like(expected, x)
    described = c_api.describe(x), None, scale, c_api.describe_scaled(result), None, None
    with flushed_subnormals(torch):
        status = C.quantize(*described)
    assert status == c_api.OK
    assert bytes_of(result) == bytes_of(expected)


def test_one_scale_in_an_array():
    x = values(16, 32)
    expected = dlfp4.quantize(x, "nvfp4")
    result = blank_like(expected, x)
    parts = dlfp4.ScaledTensor.from_parts(
        result.data, result.scales, result.global_scale.reshape(1), format="nvfp4", shape=x.shape
    )
    assert C.quantize(c_api.describe(x), None, 0, c_api.describe_scaled(parts), None, None) == c_api.OK
    assert bytes_of(result) == bytes_of(expected)


def test_scales_of_rows():
    x = values(24, 64)
    expected = dlfp4.quantize(x, "nvfp4", recipe=dlfp4.Recipe(global_scale_per="row"))
    result = blank_like(expected, x)
    assert C.quantize(c_api.describe(x), None, 0, c_api.describe_scaled(result), None, None) == c_api.OK
    assert result.global_scale.to_numpy().tobytes() == expected.global_scale.to_numpy().tobytes()
    assert result.data.view("uint8").to_numpy().tobytes() == expected.data.view("uint8").to_numpy().tobytes()
    assert C.quantize(c_api.describe(x), None, 0.5, c_api.describe_scaled(result), None, None) == c_api.E_OPTION


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("name", ["nvfp4", "mxfp6_e2m3"])
def test_rotations(name, axis):
    x = values(64, 32)
    expected = dlfp4.quantize(x, name, axis=axis, hadamard=12)
    result = blank_like(expected, x)
    described = c_api.describe_scaled(result, rotation=C.rotation(12))
    assert C.quantize(c_api.describe(x), None, 0, described, None, None) == c_api.OK
    assert bytes_of(result) == bytes_of(expected)
    out = np.zeros_like(x)
    assert C.dequantize(described, c_api.describe(out), None) == c_api.OK
    assert out.tobytes() == expected.dequantize().to_numpy().tobytes()


def test_a_recipe():
    x, recipe = values(32, 64), c_api.Recipe()
    assert C.default_recipe(C.find_format(b"mxfp4"), byref(recipe)) == c_api.OK
    recipe.scale_rule, recipe.rounding = 1, 3
    expected = dlfp4.quantize(x, "mxfp4", recipe=dlfp4.Recipe(scale_rule="rceil", rounding="nearest_zero"))
    result = blank_like(expected, x)
    assert C.quantize(c_api.describe(x), byref(recipe), 0, c_api.describe_scaled(result), None, None) == c_api.OK
    assert bytes_of(result) == bytes_of(expected)


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if "cublas" not in name])
def test_scales_change_their_layout(layout):
    q = dlfp4.quantize(values(100, 320), "mxfp8_e4m3")
    expected = q.with_scale_layout(layout)
    out = blank_like(expected, values(100, 320)).scales
    numbers = 0, C.find_layout(layout.encode())
    arguments = c_api.describe(q.scales), numbers[0], c_api.describe(out), numbers[1], 100, 10, 0, None
    assert C.convert_scales(*arguments) == c_api.OK
    assert out.view("uint8").to_numpy().tobytes() == expected.scales.view("uint8").to_numpy().tobytes()


@pytest.mark.parametrize("dtype", ["float64", "complex128", "float4_e2m1fn"])
def test_scales_of_other_sizes_are_refused(dtype):
    x, out = (c_api.describe(dlfp4.empty((1, 256), dtype)) for _ in range(2))
    assert C.convert_scales(x, 0, out, 0, 1, 256, 0, None) == c_api.E_DTYPE


def test_layouts_of_scales_that_are_not_known():
    x, out = (c_api.describe(dlfp4.empty((1, 256), "float8_e8m0fnu")) for _ in range(2))
    assert C.convert_scales(x, 0, out, 0, 1, 256, 0, None) == c_api.OK
    for number in (-1, len(LAYOUTS)):
        assert C.convert_scales(x, number, out, 0, 1, 256, 0, None) == c_api.E_OPTION
        assert C.convert_scales(x, 0, out, number, 1, 256, 0, None) == c_api.E_OPTION


# ---- Products


def operands():
    x, w = values(5, 128), values(48, 128)
    yield x, w
    yield x.astype(ml_dtypes.bfloat16), dlfp4.quantize(w, "nvfp4")
    yield dlfp4.quantize(x, "mxfp4"), dlfp4.quantize(w, "mxfp4")
    yield dlfp4.quantize(x, "fp8_1x128"), dlfp4.quantize(values(128, 128), "fp8_128x128")
    yield x, dlfp4.quantize(w, "fp8_e4m3")
    yield x, dlfp4.quantize(w, "uint4_g32")
    yield x, dlfp4.quantize(w, "nvfp4", recipe=dlfp4.Recipe(global_scale_per="row"))
    yield values(128, 5).T, dlfp4.quantize(values(128, 48), "mxfp8_e4m3", axis=-2)
    yield values(5, 100), dlfp4.quantize(values(48, 100), "mxfp4", pad=True)


def operand(x):
    return c_api.describe_scaled(x) if isinstance(x, dlfp4.ScaledTensor) else c_api.plain(x)


@pytest.mark.parametrize("number", range(9))
def test_matmul(number):
    a, b = list(operands())[number]
    transposed = b if isinstance(b, dlfp4.ScaledTensor) and b.axis == -2 else b.T if isinstance(b, np.ndarray) else b.mT
    expected = dlfp4.matmul(a, transposed, alpha=0.5, out_dtype="bfloat16", backend="cpu")
    out = np.zeros(expected.shape, ml_dtypes.bfloat16)
    call = operand(a), operand(b), c_api.describe(out), byref(c_api.MatmulOptions(alpha=0.5))
    workspace = ctypes.create_string_buffer(C.matmul_workspace(*call))
    assert C.matmul(*call, workspace, None) == c_api.OK
    assert out.tobytes() == expected.to_numpy().tobytes()


@pytest.mark.parametrize("lines", [1, 6])
def test_vecdot(lines):
    x, w = values(6, 64), dlfp4.quantize(values(lines, 64), "nvfp4")
    out = np.zeros(6, np.float32)
    assert C.vecdot(c_api.plain(x), c_api.describe_scaled(w), c_api.describe(out), None, None) == c_api.OK
    np.testing.assert_array_equal(out, dlfp4.vecdot(x, w).to_numpy())


def routing(**parts):
    described = {name: ctypes.pointer(c_api.describe(part)) for name, part in parts.items() if name != "gathers"}
    result = c_api.Routing(gathers=parts.get("gathers", 0), **described)
    result.kept = described
    return result


@pytest.mark.parametrize("way", ["in order", "gathered", "added", "both"])
def test_grouped_matmul(way):
    w, ends, rows = dlfp4.quantize(values(3, 32, 64), "mxfp4"), np.array([4, 4, 9]), 9
    gathers, adds = way in ("gathered", "both"), way in ("added", "both")
    x = values(5 if gathers else rows, 64)
    parts = {"ends": ends}
    if gathers or adds:
        parts["indices"] = RNG.integers(0, 5, rows)
    if adds:
        parts["weights"] = values(rows)
    out = np.zeros((5 if adds else rows, 32), np.float32)
    if adds and not gathers:
        expected = np.zeros_like(out)
        products = dlfp4.grouped_matmul(x, w.mT, ends).to_numpy()
        for index, weight, product in zip(parts["indices"], parts["weights"], products, strict=True):
            expected[index] += weight * product
    else:
        named = {name: part for name, part in parts.items() if name != "ends"}
        expected = dlfp4.grouped_matmul(x, w.mT, ends, **named).to_numpy()
    call = c_api.plain(x), c_api.describe_scaled(w), routing(**parts, gathers=gathers), c_api.describe(out), None
    workspace = ctypes.create_string_buffer(max(1, C.grouped_matmul_workspace(*call)))
    assert C.grouped_matmul(*call, workspace, None) == c_api.OK
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("turned", [False, True])
def test_experts_of_plain_weights(turned):
    x, w, ends = values(9, 64), values(3, 64, 32), np.array([4, 4, 9])
    rows = np.ascontiguousarray(w.transpose(0, 2, 1)).reshape(96, 64)
    weights = np.asfortranarray(rows)[::-1][::-1] if turned else rows
    out, expected = np.zeros((9, 32), np.float32), dlfp4.grouped_matmul(x, w, ends).to_numpy()
    call = c_api.plain(x), c_api.plain(weights), routing(ends=ends), c_api.describe(out), None
    workspace = ctypes.create_string_buffer(max(1, C.grouped_matmul_workspace(*call)))
    assert C.grouped_matmul(*call, workspace, None) == c_api.OK
    np.testing.assert_array_equal(out, expected)


def test_rows_that_are_nowhere_are_refused():
    x, w = values(5, 64), c_api.describe_scaled(dlfp4.quantize(values(2, 32, 64), "mxfp4"))
    out = c_api.describe(np.zeros((5, 32), np.float32))

    def status(**parts):
        return C.grouped_matmul(c_api.plain(x), w, routing(**parts), out, None, None, None)

    ends, some = np.array([2, 5]), np.arange(5)
    for wrong in ([3, 2], [-1, 5], [2, 6]):
        assert status(ends=np.array(wrong)) == c_api.E_OPTION
    assert status(ends=np.array([1, 2, 5])) == c_api.E_SHAPE
    assert status(ends=ends.astype(np.int32)) == c_api.E_DTYPE
    assert status() == status(ends=ends, weights=values(5)) == status(ends=ends, indices=some) == c_api.E_OPTION
    assert status(ends=ends, indices=some + 1, gathers=1) == c_api.E_OPTION
    assert status(ends=ends, indices=some - 1, weights=values(5)) == c_api.E_OPTION
    assert status(ends=ends, indices=some, weights=values(4)) == c_api.E_SHAPE
    assert C.grouped_matmul_workspace(c_api.plain(x), w, None, out, None) == -1


def test_experts_with_more_columns_than_can_be_counted():
    """In all 2**64 lines of weights, of which there is none."""
    none, out = c_api.plain(values(0, 64)), c_api.describe(np.zeros((0, 2**56), np.float32))
    many = routing(ends=np.zeros(256, np.int64))
    assert C.grouped_matmul(none, none, many, out, None, None, None) == c_api.E_SHAPE
    assert C.grouped_matmul_workspace(none, none, many, out, None) == -1
    nobody = routing(ends=np.zeros(0, np.int64))
    wide = c_api.plain(np.zeros((0, 2**30), np.float32))
    assert C.grouped_matmul(wide, wide, nobody, out, None, None, None) == c_api.E_SHAPE


def test_a_scale_for_each_matrix_of_a_stack():
    given, x, ends = values(3, 32, 64), values(9, 64), np.array([4, 4, 9])
    w = dlfp4.quantize(given, "nvfp4", recipe=dlfp4.Recipe(global_scale_per="matrix"))
    described, out = c_api.describe_scaled(w), np.zeros((3, 32, 64), np.float32)
    assert C.dequantize(described, c_api.describe(out), None) == c_api.OK
    assert out.tobytes() == w.dequantize().to_numpy().tobytes()
    product, expected = np.zeros((9, 32), np.float32), dlfp4.grouped_matmul(x, w.mT, ends).to_numpy()
    call = c_api.plain(x), described, routing(ends=ends), c_api.describe(product), None
    workspace = ctypes.create_string_buffer(C.grouped_matmul_workspace(*call))
    assert C.grouped_matmul(*call, workspace, None) == c_api.OK
    assert product.tobytes() == expected.tobytes()
    assert C.quantize(c_api.describe(given), None, 0, described, None, None) == c_api.E_SHAPE
    for count, status in ((2, c_api.OK), (96, c_api.OK), (5, c_api.E_SHAPE), (0, c_api.E_SHAPE)):
        described.global_scale = ctypes.pointer(c_api.describe(np.ones(count, np.float32)))
        assert C.dequantize(described, c_api.describe(out), None) == status


# ---- Strides that mean nothing, addresses of any alignment


def test_empty_tensors_have_any_strides():
    huge = (ctypes.c_int64 * 2)(2**62, 2**62)
    x, out = np.zeros((3, 0), np.float32), np.zeros((3, 0), np.float16)
    assert C.cast(c_api.describe(x, strides=huge), c_api.describe(out, strides=huge), None, 0, None) == c_api.OK
    pairs = c_api.describe(np.zeros((3, 0), np.uint8), strides=huge, dtype=c_api.DLDataType(17, 4, 2))
    assert C.cast(pairs, c_api.describe(out), None, 0, None) == c_api.OK
    rows = np.zeros((3, 0, 64), np.float32)
    odd = c_api.describe(rows, strides=(ctypes.c_int64 * 3)(7, 64, 1))
    q = c_api.describe_scaled(dlfp4.quantize(np.zeros((0, 64), np.float32), "mxfp4"))
    assert C.quantize(odd, None, 0, q, None, None) == c_api.OK
    for strides in (None, huge):
        scales = c_api.describe(np.zeros((128, 0), np.uint8), strides=strides)
        assert C.convert_scales(scales, 1, scales, 0, 128, 0, 0, None) == c_api.OK


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("shape", [(1, 0), (0, 1), (3, 0), (0, 64)])
def test_quantize_without_elements(name, axis, shape):
    x = np.zeros(shape, np.float32)
    q = c_api.describe_scaled(dlfp4.quantize(x, name, axis=axis, pad=True))
    assert C.quantize(c_api.describe(x), None, 0, q, None, None) == c_api.OK


def test_scales_of_lines_at_any_address():
    x, w = values(3, 64), dlfp4.quantize(values(5, 64), "fp8_row")
    scales = np.zeros(21, np.uint8)[1:].view(np.uint8)
    scales[:] = w.scales.view("uint8").to_numpy().reshape(-1)
    parts = c_api.describe_scaled(w)
    moved = c_api.describe(w.scales, data=scales.ctypes.data)
    parts.scales = ctypes.pointer(moved)
    out, expected = np.zeros((3, 5), np.float32), dlfp4.matmul(x, w.mT).to_numpy()
    call = c_api.plain(x), parts, c_api.describe(out), None
    workspace = ctypes.create_string_buffer(C.matmul_workspace(*call))
    assert C.matmul(*call, workspace, None) == c_api.OK
    assert out.tobytes() == expected.tobytes()
