"""quantize's arguments: memory to refill and its neighbours, what is refused and how, what frameworks get."""

import ctypes
import dataclasses
import gc
import itertools
import math
import re

import ml_dtypes
import numpy as np
import pytest

import dlfp4
from dlfp4.formats import KINDS_OF_OPTIONS, OPTIONS_OF_INTEGERS

from ..support import block_reference as reference
from ..support.block_reference import (
    FLOAT_SCALED,
    FORMATS,
    FP8,
    INTEGERS,
    MX,
    RULES,
    TWO_LEVEL,
    assert_equal,
    make,
    same,
)
from ..support.capsules import Made, framework
from ..support.reference import BITS, native_cast, parts_of, raw_bytes, unpacked_codes

F = np.float32
FLOATS = ["float32", "bfloat16", "float16"]
LAYOUTS = ["128x4", "8x4", "aiter"]


# ---- out -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "layout"),
    [(name, layout) for name in FORMATS for layout in ("linear", *([] if name in FLOAT_SCALED else LAYOUTS))],
)
def test_out_is_refilled(name, layout):
    """All of it, the padding of its scales too."""
    x = make("normal", (50, 70))
    for axis in (-1, -2):
        options = {"axis": axis, "pad": True, "scale_layout": layout}
        out = dlfp4.quantize(x * F(100), name, **options)
        for part in (out.data, out.scales):
            ctypes.memset(part.data_ptr, 0xA5, part.nbytes)
        pointers = [out.data.data_ptr, out.scales.data_ptr]
        assert dlfp4.quantize(x, name, out=out, **options) is out
        assert_equal(out, reference.quantize(x, name, axis), layout)
        assert [out.data.data_ptr, out.scales.data_ptr] == pointers


def test_out_of_both_axes():
    x, y = make("normal", (32, 64)), make("uniform", (32, 64))
    out = dlfp4.quantize(x, "mxfp8_e4m3", axis=(-2, -1))
    result = dlfp4.quantize(y, "mxfp8_e4m3", axis=(-2, -1), out=out)
    assert all(a is b for a, b in zip(result, out, strict=True))
    for q in out:
        assert_equal(q, reference.quantize(y, "mxfp8_e4m3", q.axis))


def test_out_over_the_callers_memory():
    """With room around it that stays as it is, and rows apart for elements of a byte."""
    x = make("normal", (32, 64))
    data, scales = np.full((34, 80), 0xA5, np.uint8), np.full((34, 3), 0xA5, np.uint8)
    out = dlfp4.ScaledTensor.from_parts(data[1:33, 8:72], scales[1:33, :2], format="mxfp8_e5m2")
    dlfp4.quantize(x, "mxfp8_e5m2", out=out)
    expected = reference.quantize(x, "mxfp8_e5m2")
    assert data[1:33, 8:72].tolist() == expected.codes.tolist()
    assert scales[1:33, :2].tolist() == expected.scales.tolist()
    data[1:33, 8:72], scales[1:33, :2] = 0xA5, 0xA5
    assert set(data.ravel()) == set(scales.ravel()) == {0xA5}


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("name", ["mxfp8_e4m3", "mxfp8_e5m2"])
def test_negative_zeros_beside_out_stay(name, axis):
    """A recipe that has none clears those of the result alone."""
    recipe = dlfp4.Recipe(rounds_to_negative_zero=False)
    x = make("normal", (32, 64))
    x[::3] = -1e-30
    expected = dlfp4.quantize(x, name, axis=axis, recipe=recipe)
    codes = expected.data.view("uint8").to_numpy()
    data = np.full((34, 80), 0x80, np.uint8)
    out = dlfp4.ScaledTensor.from_parts(data[1:33, 8:72], expected.scales.copy(), format=name, axis=axis)
    dlfp4.quantize(x, name, axis=axis, recipe=recipe, out=out)
    assert data[1:33, 8:72].tolist() == codes.tolist()
    assert not (codes == 0x80).any()
    data[1:33, 8:72] = 0x80
    assert set(data.ravel()) == {0x80}


def test_packed_out_with_rows_apart():
    x = make("normal", (16, 32))
    data, scales = np.full((16, 20), 0xA5, np.uint8), np.full((16, 2), 0xA5, np.uint8)
    out = dlfp4.ScaledTensor.from_parts(data[:, 2:18], scales, 1.0, format="nvfp4")
    dlfp4.quantize(x, "nvfp4", out=out)
    expected = reference.quantize(x, "nvfp4")
    assert data[:, 2:18].tobytes() == expected.data()[1]
    assert set(data[:, :2].ravel()) == set(data[:, 18:].ravel()) == {0xA5}
    assert (scales.tolist(), out.global_scale.item()) == (expected.scales.tolist(), float(expected.global_scale))


def test_out_that_does_not_fit():
    x = make("normal", (32, 64))
    options = [
        (dlfp4.quantize(x[:16], "mxfp4"), {}),
        (dlfp4.quantize(x.reshape(1, 32, 64), "mxfp4"), {}),
        (dlfp4.quantize(x, "nvfp4"), {}),
        (dlfp4.quantize(x, "mxfp4", axis=-2), {}),
        (dlfp4.quantize(x, "mxfp4"), {"axis": -2}),
        (dlfp4.quantize(x, "mxfp4"), {"scale_layout": "8x4"}),
        (dlfp4.quantize(x, "mxfp4", scale_layout="aiter"), {}),
        (dlfp4.quantize(x, "mxfp4", axis=(-1, -2)), {}),
        (dlfp4.quantize(x, "mxfp4"), {"axis": (-1, -2)}),
        (dlfp4.quantize(x, "mxfp4", axis=(-1, -2)), {"axis": (-2, -1)}),
    ]
    for out, more in options:
        with pytest.raises(ValueError, match="out"):
            dlfp4.quantize(x, "mxfp4", out=out, **more)
    for out in (dlfp4.quantize(x, "mxfp4").data, np.empty((32, 64), F), 3):
        with pytest.raises(TypeError, match="ScaledTensor"):
            dlfp4.quantize(x, "mxfp4", out=out)


def test_out_of_completed_blocks_is_for_padded_calls():
    x = make("normal", (4, 40))
    out = dlfp4.quantize(x, "mxfp4", pad=True)
    whole = dlfp4.quantize(x[:, :32], "mxfp4")
    for _ in range(2):  # what is known of a tensor from one call must not let another pass
        assert dlfp4.quantize(x, "mxfp4", pad=True, out=out) is out
        with pytest.raises(ValueError, match="pass pad=True"):
            dlfp4.quantize(x, "mxfp4", out=out)
        for pad in (False, True):
            assert dlfp4.quantize(x[:, :32], "mxfp4", pad=pad, out=whole) is whole


def test_out_that_may_not_be_written():
    x = make("normal", (32, 64))
    data, scales = np.zeros((32, 32), np.uint8), np.zeros((32, 2), np.uint8)
    for frozen in (data, scales):
        frozen.flags.writeable = False
        out = dlfp4.ScaledTensor.from_parts(data, scales, format="mxfp4")
        with pytest.raises(BufferError, match="read-only"):
            dlfp4.quantize(x, "mxfp4", out=out)
        frozen.flags.writeable = True
    assert not data.any()


def test_out_that_overlaps():
    memory = np.zeros(32 * 64 * 4, np.uint8)
    x = memory.view(F).reshape(32, 64)
    scales = np.zeros((32, 2), np.uint8)
    out = dlfp4.ScaledTensor.from_parts(memory[: 32 * 32].reshape(32, 32), scales, format="mxfp4")
    with pytest.raises(ValueError, match="overlap"):
        dlfp4.quantize(x, "mxfp4", out=out)


def test_out_needs_room_for_the_global_scale():
    x = make("normal", (32, 64))
    q = dlfp4.quantize(x, "nvfp4")
    out = dlfp4.ScaledTensor.from_parts(q.data.copy(), q.scales.copy(), format="nvfp4")
    before = raw_bytes(out.data), raw_bytes(out.scales)
    with pytest.raises(ValueError, match="without a global scale, for which the result needs memory"):
        dlfp4.quantize(make("uniform", (32, 64)), "nvfp4", out=out)
    assert (raw_bytes(out.data), raw_bytes(out.scales)) == before


def test_out_whose_elements_meet():
    x = make("normal", (32, 64))
    data, scales = np.zeros((32, 32), np.uint8), np.zeros((32, 2), np.uint8)
    for part, out in (
        ("data", (np.broadcast_to(data[:1], (32, 32)), scales)),
        ("scales", (data, np.broadcast_to(scales[:1], (32, 2)))),
    ):
        for each in out:
            each.flags.writeable = True
        with pytest.raises(ValueError, match=rf"out's {part} has strides \(0, 1\) .* elements may share memory"):
            dlfp4.quantize(x, "mxfp4", out=dlfp4.ScaledTensor.from_parts(*out, format="mxfp4"))
    assert not data.any()


def test_parts_of_out_that_overlap():
    x = make("normal", (256, 256))
    memory = np.zeros((256, 136), np.uint8)
    message = "parts of out overlap one another"
    for data, scales in ((memory[:, :128], memory[:, 120:128]), (memory[:, 8:], memory[:, 1:9])):
        with pytest.raises(ValueError, match=message):
            dlfp4.quantize(x, "mxfp4", out=dlfp4.ScaledTensor.from_parts(data, scales, format="mxfp4"))
    unit = memory[3, 8:12].view(F)
    whole = dlfp4.ScaledTensor.from_parts(memory[:, 8:], np.zeros((256, 16), np.uint8), unit, format="nvfp4")
    with pytest.raises(ValueError, match=message):
        dlfp4.quantize(x, "nvfp4", out=whole)
    assert not memory.any()
    q = dlfp4.quantize(x, "fp8_1x128")
    with pytest.raises(ValueError, match=message):
        dlfp4.quantize(x, "fp8_1x128", axis=(-1, -2), out=(q, q.mT))


@pytest.mark.parametrize("length", [32, 96])
@pytest.mark.parametrize("first", ["data", "scales"])
def test_rows_of_out_in_records(first, length):
    """A row of codes and its scales side by side, as caches of keys and values have them."""
    x = make("normal", (64, length))
    records = np.full((64, 60), 0xA5, np.uint8)
    n = length // 32  # scales of a row
    data, scales = (records[:, 2 : 2 + 16 * n], records[:, 2 + 16 * n : 2 + 17 * n])
    if first == "scales":
        scales, data = records[:, 2 : 2 + n], records[:, 2 + n : 2 + 17 * n]
    out = dlfp4.ScaledTensor.from_parts(data, scales, format="mxfp4")
    dlfp4.quantize(x, "mxfp4", out=out)
    expected = reference.quantize(x, "mxfp4")
    assert (data.tobytes(), scales.tolist()) == (expected.data()[1], expected.scales.tolist())
    assert set(records[:, :2].ravel()) == set(records[:, 2 + 17 * n :].ravel()) == {0xA5}


# ---- one piece of memory -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [0, 1, 3, 37])
@pytest.mark.parametrize("name", FORMATS)
def test_parts_lie_apart(name, rows):
    parts = parts_of(dlfp4.quantize(make("normal", (rows, 200)), name, pad=True))
    for part in parts:
        assert part.data_ptr % 64 == 0
        assert not part.readonly
    places = sorted((part.data_ptr, part.data_ptr + part.nbytes) for part in parts)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(places))
    for number, part in enumerate(parts):
        ctypes.memset(part.data_ptr, number, part.nbytes)
    for number, part in enumerate(parts):
        assert raw_bytes(part) == bytes([number]) * part.nbytes


def test_no_truth_value_and_no_membership():
    stack = dlfp4.quantize(np.ones((2, 16, 32), np.float32), "mxfp4")
    with pytest.raises(TypeError, match="has no truth value"):
        bool(stack)
    with pytest.raises(TypeError, match="does not compare its elements"):
        stack[0] in stack  # noqa: B015


@pytest.mark.parametrize("rows", [0, 1, 3, 37])
@pytest.mark.parametrize("name", FORMATS)
def test_a_part_outlives_its_tensor(name, rows):
    """And the other parts: the memory of all of them is in use as long as one is."""
    x = make("normal", (rows, 200))
    for number in range(len(parts_of(dlfp4.quantize(x, name, pad=True)))):
        q = dlfp4.quantize(x, name, pad=True)
        part = parts_of(q)[number]
        expected = raw_bytes(part)
        del q
        gc.collect()
        others = [parts_of(dlfp4.quantize(x, name, pad=True)) for _ in range(8)]  # would get the memory if it were free
        for other in itertools.chain(*others):
            ctypes.memset(other.data_ptr, 0xA5, other.nbytes)
        assert raw_bytes(part) == expected


# ---- arguments -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool", "complex64", "int64", "float8_e4m3fn", "float8_e8m0fnu"])
def test_other_element_types_are_refused(dtype):
    x = np.ones((1, 32)).astype(getattr(ml_dtypes, dtype, dtype))
    for name in ("nvfp4", "mxfp8_e4m3", "fp8_e4m3"):
        with pytest.raises(TypeError, match=f"{dtype}.*float32, bfloat16 or float16"):
            dlfp4.quantize(x, name)


def test_rows_that_cannot_be_counted_are_refused():
    x = Made(np.zeros(1, F), shape=(1 << 40, 1 << 40, 0), strides=(0, 0, 1))
    with pytest.raises(ValueError, match="more rows than can be counted"):
        dlfp4.quantize(x.capsule, "mxfp4")


def test_what_is_no_tensor_is_refused():
    for x in (None, 3.0, "x", [["x"] * 32]):
        with pytest.raises(TypeError):
            dlfp4.quantize(x, "mxfp4")
    with pytest.raises(ValueError, match="0-d"):
        dlfp4.quantize(np.ones((), F), "fp8_e4m3")


@pytest.mark.parametrize("axis", [0, 1, -3, (), (-1, -1), (-2, -2), (-1, -2, -1), (0,)])
def test_other_axes_are_refused(axis):
    with pytest.raises(ValueError, match="axis"):
        dlfp4.quantize(np.ones((32, 32), F), "mxfp4", axis=axis)


def test_columns_need_two_dimensions():
    for name in ("nvfp4", "mxfp8_e5m2"):
        with pytest.raises(ValueError, match="axis=-2"):
            dlfp4.quantize(np.ones(32, F), name, axis=-2)


def test_unknown_names_are_refused():
    x = np.ones((32, 32), F)
    for options, named in (
        ({"format": "nvfp5"}, "nvfp4_16x16"),
        ({"recipe": "rocmm"}, "did you mean 'rocm'"),
        ({"recipe": 3}, "nvidia"),
        ({"rounding": "up"}, "nearest_away"),
        ({"scale_layout": "4x128"}, "128x4"),
    ):
        with pytest.raises(ValueError, match=named):
            dlfp4.quantize(x, **{"format": "mxfp4", **options})


@pytest.mark.parametrize(
    "options",
    [
        {"axis": ["rows"]},
        {"axis": "0"},
        {"axis": 1.0},
        {"seed": "a", "rounding": "stochastic"},
        {"scale_layout": 3},
        {"recipe": []},
        {"rounding": {}},
    ],
    ids=str,
)
def test_arguments_of_other_types_are_named(options):
    with pytest.raises(TypeError, match=next(iter(options))):
        dlfp4.quantize(np.ones((32, 32), F), "mxfp4", **options)


@pytest.mark.parametrize("name", FLOAT_SCALED)
def test_float32_scales_have_one_layout(name):
    for layout in LAYOUTS:
        with pytest.raises(ValueError, match="linear"):
            dlfp4.quantize(np.ones((128, 128), F), name, scale_layout=layout)


@pytest.mark.parametrize("name", [*TWO_LEVEL, *FP8])
def test_scale_rules_are_for_mx_formats(name):
    x = make("normal", (128, 128))
    for recipe in ("ocp", "rocm", *(dlfp4.Recipe(scale_rule=rule) for rule in RULES)):
        with pytest.raises(ValueError, match=name):
            dlfp4.quantize(x, name, recipe=recipe)
    for recipe in ("nvidia", dlfp4.Recipe()):
        assert same(dlfp4.quantize(x, name, recipe=recipe), dlfp4.quantize(x, name))


@pytest.mark.parametrize("options", [{"pow2": True}, {"eps": 1.0}, {"zero_scale": 0}, {"scale_rule": "floor"}], ids=str)
@pytest.mark.parametrize("name", FORMATS)
def test_options_that_a_format_has_no_use_for_are_refused(name, options):
    (option,) = options
    recipe, x = dlfp4.Recipe(**options), np.ones((128, 128), F)
    if FORMATS[name].kind in KINDS_OF_OPTIONS[option] and (name not in INTEGERS or option in OPTIONS_OF_INTEGERS):
        dlfp4.quantize(x, name, recipe=recipe)
        return
    with pytest.raises(ValueError, match=f"{option}=.*{name} has no use"):
        dlfp4.quantize(x, name, recipe=recipe)


@pytest.mark.parametrize("name", MX)
def test_the_default_recipe_is_ocps(name):
    x = make("normal", (32, 64))
    for recipe in ("ocp", dlfp4.Recipe(), dlfp4.Recipe(scale_rule="floor")):
        assert same(dlfp4.quantize(x, name, recipe=recipe), dlfp4.quantize(x, name))


@pytest.mark.parametrize(
    "options",
    [
        {"scale_rule": "round"}, {"rounding": "up"}, {"zero_scale": 255}, {"zero_scale": -1}, {"eps": -1.0},
        {"eps": math.inf}, {"eps": math.nan}, {"eps": 1e39}, {"zero_scale": 1.5}, {"pow2": "no"},
        {"keeps_negative_zero": None},
    ],
    ids=str,
)  # fmt: skip
def test_recipes_that_are_none(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        dlfp4.Recipe(**options)


@pytest.mark.parametrize("byte", [0x7F, 0x80, 0xB8])
def test_scales_of_zeros_are_positive_numbers(byte):
    x = make("normal", (32, 64))
    with pytest.raises(ValueError, match=f"zero_scale={byte}: as float8_e4m3fn"):
        dlfp4.quantize(x, "nvfp4", recipe=dlfp4.Recipe(zero_scale=byte))
    dlfp4.quantize(x, "mxfp4", recipe=dlfp4.Recipe(zero_scale=byte))
    dlfp4.quantize(x, "nvfp4", recipe=dlfp4.Recipe(zero_scale=0x7E))


def test_the_docstring_names_all_formats():
    notes = dlfp4.quantize.__doc__.partition("A row of :func:`formats`: ")[2].partition("recipe :")[0]
    assert sorted(re.findall(r'"(\w+)"', notes)) == sorted(dlfp4.formats())


def test_formats_and_recipes_are_values():
    for name, format in dlfp4.formats().items():
        assert (format.name, str(format)) == (name, name)
        assert format.has_global_scale == (name in TWO_LEVEL)
        assert (format == name, hash(format)) == (True, hash(name))
        assert format != "float32"
        with pytest.raises(AttributeError):
            format.name = "other"
    with pytest.raises(TypeError):
        dlfp4.formats()["mine"] = format
    assert dlfp4.Recipe("ceil") == dlfp4.Recipe(scale_rule="ceil")
    assert len({dlfp4.Recipe("ceil"), dlfp4.Recipe("ceil"), dlfp4.Recipe()}) == 2
    with pytest.raises(AttributeError):
        dlfp4.Recipe().eps = 1.0
    x = np.ones((1, 32), F)
    assert same(dlfp4.quantize(x, dlfp4.formats()["mxfp4"]), dlfp4.quantize(x, "mxfp4"))


def test_a_scaled_tensor_never_changes():
    q = dlfp4.quantize(np.ones((2, 32), F), "nvfp4")
    for name in ("data", "scales", "global_scale", "format", "axis", "scale_layout", "shape"):
        with pytest.raises(AttributeError):
            setattr(q, name, None)
    assert q.nbytes == 2 * 16 + 2 * 2 + 4
    assert str(q.device) == "cpu"
    assert "nvfp4" in repr(q)
    assert "(2, 32)" in repr(q)


# ---- frameworks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["nvfp4", "nvfp4_16x16", "mxfp4"])
def test_pytorchs_dialect_is_inherited(name, dtype):
    torch = framework("torch")
    x = make("normal", (32, 64), "float32")
    tensor = torch.from_numpy(x).to(getattr(torch, dtype))
    values = native_cast(x, dtype)
    for axis in (-1, -2):
        q = dlfp4.quantize(tensor, name, axis=axis)
        expected = reference.quantize(values, name, axis)
        assert_equal(q, expected)
        data = torch.from_dlpack(q.data)
        shape, octets = expected.data()
        assert (data.dtype, tuple(data.shape)) == (torch.float4_e2m1fn_x2, (shape[0], shape[1] // 2))
        assert data.view(torch.uint8).numpy().tobytes() == octets
        parts = q.to_torch()
        assert parts.data.dtype == torch.float4_e2m1fn_x2
        assert parts.scales.view(torch.uint8).numpy().tobytes() == expected.scales.tobytes()
        again = dlfp4.quantize(tensor * 0, name, axis=axis)
        assert_equal(dlfp4.quantize(tensor, name, axis=axis, out=again), expected)


def test_pytorch_tensors_of_any_strides():
    torch = framework("torch")
    x = make("normal", (64, 96), "bfloat16")
    tensor = torch.from_numpy(native_cast(x, "float32")).bfloat16()
    for name in ("mxfp8_e4m3", "mxfp4", "fp8_e4m3"):
        q = dlfp4.quantize(tensor.T, name)
        assert_equal(q, reference.quantize(x.T, name))
        expected = {8: torch.float8_e4m3fn, 4: torch.float4_e2m1fn_x2}[BITS[FORMATS[name].element]]
        assert torch.from_dlpack(q.data).dtype == expected


def test_numpy_parts_are_one_element_a_byte():
    q = dlfp4.quantize(make("normal", (16, 32)), "nvfp4")
    parts = q.to_numpy()
    assert parts.data.dtype == ml_dtypes.float4_e2m1fn
    assert parts.data.view(np.uint8).tolist() == unpacked_codes(raw_bytes(q.data), 4, 512).reshape(16, 32).tolist()
    assert parts.scales.dtype == ml_dtypes.float8_e4m3fn
    assert parts.global_scale.shape == ()


# ---- stacks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_one_of_a_stack(name):
    x = np.random.default_rng(3).standard_normal((3, 2, 128, 256)).astype("float32")
    q = dlfp4.quantize(x, name)
    for whole, stack in ((q, x), (q[1], x[1])):
        taken = [whole[k] for k in range(len(stack))]
        values = np.stack([one.dequantize().to_numpy() for one in taken])
        assert values.tobytes() == whole.dequantize().to_numpy().tobytes()
        assert all(one.shape == stack.shape[1:] and one.format == name for one in taken)
        assert taken[0].data.data_ptr == whole.data.data_ptr
        assert whole[-1].dequantize().to_numpy().tobytes() == values[-1].tobytes()
    assert dlfp4.matmul(x[0, 0, :4], q[1][1].mT).shape == (4, 128)
    with pytest.raises(TypeError, match="not a stack"):
        q[0][0][0]
    with pytest.raises(IndexError, match="index 3 is out of bounds"):
        q[3]


def test_blocks_that_hold_rows_of_two_are_not_taken_apart():
    x = np.ones((2, 24, 128), np.float32)
    for name in ("nvfp4_16x16", "fp8_128x128"):
        with pytest.raises(ValueError, match=r"rows 0:24 .* borders at multiples of \d+ rows, and at the end, 48"):
            dlfp4.quantize(x, name, pad=True)[0]
    with pytest.raises(ValueError, match=r"with_scale_layout\('linear'\)"):
        dlfp4.quantize(x, "nvfp4", scale_layout="128x4")[0]


@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "mxfp6_e2m3", "mxfp8_e4m3"])
def test_scales_of_out_apart(name):
    x = np.random.default_rng(1).normal(size=(5, 64)).astype(np.float32)
    expected = dlfp4.quantize(x, name)
    width = expected.scales.shape[1]
    memory = np.full((5, 2 * width), 7, np.uint8)
    unit = None if expected.global_scale is None else expected.global_scale.copy()
    out = dlfp4.ScaledTensor.from_parts(expected.data.copy(), memory[:, :width], unit, format=name)
    dlfp4.quantize(x, name, out=out)
    assert (memory[:, :width] == expected.scales.view("uint8").to_numpy()).all()
    assert (memory[:, width:] == 7).all()


def test_global_scale_of_out_in_the_input():
    x = np.ones((4, 32), np.float32)
    q = dlfp4.quantize(x, "nvfp4")
    out = dlfp4.ScaledTensor.from_parts(q.data, q.scales, x[0, :1].reshape(()), format="nvfp4")
    with pytest.raises(ValueError, match="out's global scale overlaps"):
        dlfp4.quantize(x, "nvfp4", out=out)


def test_a_recipe_keeps_its_choices_beside_a_default_rule():
    x = np.zeros((1, 32), np.float32)
    assert dlfp4.quantize(x, "mxfp4", recipe=dlfp4.Recipe(zero_scale=127)).scales.view("uint8").tolist() == [[127]]
    x[0, 1] = -0.0
    q = dlfp4.quantize(x, "mxfp4", recipe=dlfp4.Recipe(keeps_negative_zero=False))
    assert not q.data.view("uint8").to_numpy().any()


def test_formats_are_rows_of_the_table():
    changed = dataclasses.replace(dlfp4.formats()["nvfp4"], block=(1, 32))
    with pytest.raises(ValueError, match=r"expected a row of dlfp4\.formats\(\)"):
        dlfp4.quantize(np.ones((2, 64), np.float32), changed)
    with pytest.raises(ValueError, match="eps='a'"):
        dlfp4.Recipe(eps="a")


def test_parts_of_one_dimension_along_columns():
    with pytest.raises(ValueError, match="blocks along columns need two dimensions"):
        dlfp4.ScaledTensor.from_parts(np.zeros(16, np.uint8), np.zeros(1, np.uint8), format="mxfp4", axis=-2)


def test_rows_of_parts_start_on_bytes():
    made = Made(np.zeros(200, np.uint8), code=15, bits=6, shape=(4, 32), strides=(33, 1))
    scales = np.zeros((4, 1), np.uint8)
    with pytest.raises(BufferError, match="start on bytes"):
        dlfp4.ScaledTensor.from_parts(dlfp4.from_dlpack(made.capsule), scales, format="mxfp6_e2m3")
