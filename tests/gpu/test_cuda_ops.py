"""Operations on a GPU give the bytes that the host gives: casts, packing, block scaling, layouts."""

import ctypes
import itertools
import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

import dlfp4
from dlfp4._core import _cuda_capability
from dlfp4.checkpoints import join_parts, split_parts, to_ggml

from ..support import reference
from ..support.capsules import DTYPES, PADDED, Made, flushed_subnormals
from ..support.reference import dtype_of, host_bytes, parts_of, raw_bytes

pytestmark = pytest.mark.gpu

CUDA = "cuda:0"
FORMATS = list(dlfp4.formats())
SOURCES = ["float32", "bfloat16", "float16"]
MODES = [(rounding, saturate) for rounding in [*reference.ROUNDINGS, "stochastic"] for saturate in (True, False)]


def assert_equal_parts(device, host):
    for ours, theirs in zip(parts_of(device), parts_of(host), strict=True):
        assert (ours.shape, host_bytes(ours)) == (theirs.shape, host_bytes(theirs))


def halfway(target):
    """Between all neighbours of a type of 16 bits, beyond the last one too, and next to that on either side."""
    numbers = np.unique(reference.all_codes(target).astype(np.float64))
    numbers = numbers[np.isfinite(numbers)]
    beyond = numbers[-1] * 2 - numbers[-2]
    between = (np.concatenate([[-beyond], numbers]) + np.concatenate([numbers, [beyond]])) / 2
    middle = between.astype(np.float32)
    return np.concatenate([middle, np.nextafter(middle, np.float32(0)), np.nextafter(middle, np.float32(np.inf))])


def hard_inputs(name, target):
    """All codes of small types; values around every boundary of `target`, specials and random bits of wide ones."""
    if reference.BITS[name] <= 16:
        return reference.all_codes(name)
    with np.errstate(all="ignore"):
        values = [reference.hard_values(target, name)] if target in reference.LOW else []
        if reference.BITS[target] == 16:
            values = [halfway(target).astype(name)]
    return np.concatenate([*values, reference.random_codes(name, 4099)])


# ---- Casts


@pytest.mark.parametrize(("source", "target"), list(itertools.permutations(reference.FLOATS, 2)))
def test_cast_equals_the_host(source, target):
    x = hard_inputs(source, target)
    device = dlfp4.asarray(x).to_device(CUDA)
    for rounding, saturate in MODES:
        seed = 5 if rounding == "stochastic" else None
        options = {"rounding": rounding, "saturate": saturate, "seed": seed}
        for packed in {True, reference.BITS[target] >= 8}:
            ours = dlfp4.cast(device, target, packed=packed, **options)
            theirs = dlfp4.cast(x, target, packed=packed, **options)
            assert str(ours.device) == CUDA
            assert host_bytes(ours) == host_bytes(theirs), (rounding, saturate, packed)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 15, 16, 17, 31, 33, 255, 257, 4099])
@pytest.mark.parametrize("target", ["float4_e2m1fn", "float6_e2m3fn", "float8_e4m3fn", "bfloat16", "float32"])
def test_tails_and_offsets(count, target):
    x = np.random.default_rng(count).standard_normal(count + 3).astype("float32")
    device = dlfp4.asarray(x).to_device(CUDA)
    for start in range(4):
        ours, theirs = dlfp4.cast(device[start:][:count], target), dlfp4.cast(x[start:][:count], target)
        assert host_bytes(ours) == host_bytes(theirs)
        back = dlfp4.cast(ours, "float32")
        assert host_bytes(back) == host_bytes(dlfp4.cast(theirs, "float32"))


@pytest.mark.parametrize("name", reference.SUBBYTE)
def test_pack_and_unpack(name):
    codes = np.random.default_rng(1).integers(0, 256, (37, 101), dtype=np.uint8).view(reference.dtype_of(name))
    packed = dlfp4.pack(dlfp4.asarray(codes).to_device(CUDA))
    assert host_bytes(packed) == host_bytes(dlfp4.pack(codes))
    assert host_bytes(dlfp4.unpack(packed)) == host_bytes(dlfp4.unpack(dlfp4.pack(codes)))


def test_strides():
    x = np.random.default_rng(2).standard_normal((6, 10, 14)).astype("float32")
    device = dlfp4.asarray(x).to_device(CUDA)
    for view in (lambda t: t[::2, 1:, ::-1], lambda t: t.T, lambda t: t[1:, ::3, 2:9]):
        for target in ("float8_e5m2", "float4_e2m1fn", "float16"):
            ours = dlfp4.cast(view(device), target)
            assert host_bytes(ours) == host_bytes(dlfp4.cast(np.ascontiguousarray(view(x)), target))
    assert device.T.copy().to_numpy().tobytes() == x.T.tobytes()


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_strided_copies_of_every_type(name):
    if reference.BITS.get(name, 8) < 8:
        codes = dlfp4.asarray(np.random.default_rng(3).integers(0, 256, (6, 10), dtype=np.uint8).view(dtype_of(name)))
    else:
        octets = np.random.default_rng(3).integers(0, 2, (6, 10, dtype_of(name).itemsize), dtype=np.uint8)
        codes = dlfp4.asarray(octets.view(dtype_of(name))[..., 0])
    device = codes.to_device(CUDA)
    for view in (lambda t: t.T, lambda t: t[::2, 1::3], lambda t: t[::-1], lambda t: t[:, ::-2]):
        assert host_bytes(view(device).copy()) == raw_bytes(view(codes).copy())


# Of 64 by 128: rows with gaps, of no vectors, and with a rest; heads; columns that are rows; each second; backwards;
# the same row again; dimensions too short for steps; more of them than kernels count.
LAYOUTS = {
    "pitch": lambda t: t[:, :64],
    "offset": lambda t: t[:, 1:66],
    "rest": lambda t: t[3:, 16:91],
    "heads": lambda t: t[:48].reshape(4, 12, 8, 16).transpose(0, 2, 1, 3),
    "turned": lambda t: t.T,
    "turned with a rest": lambda t: t[2:41, 32:].T,
    "turned heads": lambda t: t.reshape(4, 16, 8, 16)[..., 1:].transpose(2, 0, 3, 1),
    "second": lambda t: t[1:, ::2],
    "backwards": lambda t: t[::-1, ::-1],
    "again": lambda t: np.broadcast_to(t[1], (20, 128)),
    "short": lambda t: t[:, 4:11],
    "narrow": lambda t: t.reshape(-1)[:8190].reshape(-1, 3)[:, :2],
    "many": lambda t: t.reshape((2,) * 13)[(slice(None), slice(None, None, -1)) * 6],
}
LAYOUT_TYPES = ["float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2fnuz", "float6_e2m3fn", "float4_e2m1fn"]
PACKED = [name for name in LAYOUT_TYPES if reference.BITS[name] < 8]
FROM_BYTES = ["pitch", "rest", "heads", "turned", "second", "again", "short", "narrow"]  # that start on bytes, packed
TO_BYTES = ["pitch", "rest", "heads", "short"]  # all of whose rows do


def laid_out(device, base, view):
    """The elements on the device that `view` has of `base`, which may be packed there."""
    bits = reference.BITS[base.dtype.name] if device.packed else 8 * base.itemsize
    start = (view.ctypes.data - base.ctypes.data) // base.itemsize * bits
    assert start % 8 == 0
    made = Made(view, data=device.data_ptr + start // 8, device=(2, 0), flags=0 if device.packed else PADDED)
    return made, dlfp4.from_dlpack(made.capsule)


@pytest.mark.parametrize(
    ("source", "layout", "packed"),
    [*itertools.product(LAYOUT_TYPES, LAYOUTS, [False]), *itertools.product(PACKED, FROM_BYTES, [True])],
)
def test_casts_from_every_layout(source, layout, packed):
    base = np.resize(hard_inputs(source, "float8_e4m3fn"), (64, 128))
    view, device = LAYOUTS[layout](base), dlfp4.cast(base, source, packed=packed).to_device(CUDA)
    _made, given = laid_out(device, base, view)
    assert host_bytes(given.copy()) == host_bytes(dlfp4.cast(np.ascontiguousarray(view), source, packed=packed))
    for target in LAYOUT_TYPES:
        for pads in (True, False):
            expected = dlfp4.cast(np.ascontiguousarray(view), target, packed=pads)
            assert host_bytes(dlfp4.cast(given, target, packed=pads)) == raw_bytes(expected), (target, pads)


@pytest.mark.parametrize(
    ("target", "layout", "packed"),
    [
        *itertools.product(LAYOUT_TYPES, [name for name in LAYOUTS if name != "again"], [False]),
        *itertools.product(PACKED, TO_BYTES, [True]),
    ],
)
def test_casts_to_every_layout(target, layout, packed):
    """What lies between stays as it was."""
    base = np.resize(reference.random_codes(target, 999)[::-1], (64, 128))
    view = LAYOUTS[layout](base)
    before = dlfp4.cast(base, target, packed=packed)
    for source in LAYOUT_TYPES:
        x = np.resize(hard_inputs(source, target), view.shape)
        device, after = before.to_device(CUDA), base.copy()
        _made, out = laid_out(device, base, view)
        dlfp4.cast(dlfp4.asarray(x).to_device(CUDA), target, out=out)
        LAYOUTS[layout](after)[...] = dlfp4.cast(x, target, packed=False).to_numpy().reshape(view.shape)
        assert host_bytes(device) == raw_bytes(dlfp4.cast(after, target, packed=packed)), source


def test_out_on_the_device(torch):
    x = torch.randn(64, 48, device="cuda")
    out = torch.empty(64, 48, dtype=torch.float8_e4m3fn, device="cuda")
    result = dlfp4.cast(x, "float8_e4m3fn", out=out)
    assert result.data_ptr == out.data_ptr()
    assert out.cpu().view(torch.uint8).numpy().tobytes() == host_bytes(dlfp4.cast(x.cpu(), "float8_e4m3fn"))
    with pytest.raises(BufferError, match=r"out lies on cpu, the input on cuda:0"):
        dlfp4.cast(x, "float8_e4m3fn", out=out.cpu())
    with pytest.raises(BufferError, match=r"out lies on cuda:0"):
        dlfp4.cast(x.cpu(), "float8_e4m3fn", out=out)


# ---- Block scaling


def special_values(shape, name):
    """Normal, heavy-tailed, zero, subnormal, largest and non-finite blocks of 16."""
    rng = np.random.default_rng(7)
    x = rng.standard_normal(shape) * np.exp(rng.standard_normal((*shape[:-1], 1)) * 4)
    with np.errstate(all="ignore"):
        x = x.astype(reference.dtype_of(name))
        flat = x.reshape(-1)
        limits = np.finfo(np.float32) if name != "float16" else np.finfo(np.float16)
        picks = [0.0, -0.0, float(limits.tiny) / 4, float(limits.max), np.nan, np.inf, -np.inf]
        for number, value in enumerate(picks):
            first = 48 * (number + 1)
            if first + 16 <= flat.size:
                flat[first : first + (16 if value == 0 else 1)] = value
    return x


SHAPES = [(1, 16), (3, 32), (64, 128), (96, 384), (4, 8, 256), (129, 80), (200, 208), (17, 33), (0, 32), (1, 0), (4, 0)]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", FORMATS)
def test_quantize_equals_the_host(name, source):
    for shape in SHAPES:
        x = special_values(shape, source)
        device = dlfp4.asarray(x).to_device(CUDA)
        for axis in (-1, -2):
            host = dlfp4.quantize(x, name, axis=axis, pad=True)
            ours = dlfp4.quantize(device, name, axis=axis, pad=True)
            assert_equal_parts(ours, host)
            for dtype in SOURCES:
                assert host_bytes(ours.dequantize(dtype)) == host_bytes(host.dequantize(dtype))
        both = [dlfp4.quantize(t, name, axis=(-1, -2), pad=True) for t in (device, x)]
        for ours, host in zip(*both, strict=True):
            assert_equal_parts(ours, host)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", FORMATS)
def test_other_strides_equal_the_host(name, source):
    """Columns that follow one another in memory, rows with gaps, and no order that a fast kernel knows."""
    x = special_values((160, 288), source)
    device = dlfp4.asarray(x).to_device(CUDA)
    for view in (lambda t: t.T, lambda t: t[:128, 16:272], lambda t: t[::2, ::2], lambda t: t[32:, 8:264]):
        for axis in (-1, -2, (-1, -2)):
            host = dlfp4.quantize(np.ascontiguousarray(view(x)), name, axis=axis, pad=True)
            ours = dlfp4.quantize(view(device), name, axis=axis, pad=True)
            for one, other in zip(*(q if isinstance(q, tuple) else (q,) for q in (ours, host)), strict=True):
                assert_equal_parts(one, other)
                assert host_bytes(one.dequantize("bfloat16")) == host_bytes(other.dequantize("bfloat16"))


@pytest.mark.parametrize(
    "recipe",
    ["ocp", "nvidia", "aiter", "transformer-engine-rocm", dlfp4.Recipe("ceil"), dlfp4.Recipe("ceil", "toward_zero")],
)
@pytest.mark.parametrize("name", [name for name in FORMATS if dlfp4.formats()[name].kind == "power"])
def test_recipes_equal_the_host(name, recipe):
    x = special_values((64, 256), "float32")
    device = dlfp4.asarray(x).to_device(CUDA)
    for axis in (-1, -2):
        ours, host = (dlfp4.quantize(t, name, recipe=recipe, axis=axis) for t in (device, x))
        assert_equal_parts(ours, host)
    both = [dlfp4.quantize(t, name, recipe=recipe, axis=(-1, -2)) for t in (device, x)]
    for ours, host in zip(*both, strict=True):
        assert_equal_parts(ours, host)
    options = {"recipe": recipe, "rounding": "stochastic", "seed": 3, "axis": -2}
    assert_equal_parts(dlfp4.quantize(device, name, **options), dlfp4.quantize(x, name, **options))


def every_code_by_every_scale(name, axis):
    """A line for each scale byte, with all codes, which lie along lines if packed, across if bytes along columns."""
    form = dlfp4.formats()[name]
    codes = np.broadcast_to(np.arange(256, dtype=np.uint8), (256, 256))
    scales = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 256 // form.block[1], axis=1)
    if reference.BITS[form.element.name] == 8:
        codes, scales = (codes, scales) if axis == -1 else (codes.T, scales.T)
        data = np.ascontiguousarray(codes)
    else:
        data = dlfp4.pack(np.ascontiguousarray(codes).view(form.element))
    global_scales = [None, 1e-30, 1e30] if form.has_global_scale else [None]
    return [
        dlfp4.ScaledTensor.from_parts(data, np.ascontiguousarray(scales), given, format=name, axis=axis)
        for given in global_scales
    ]


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize(
    "name", [n for n in FORMATS if dlfp4.formats()[n].scale.itemsize == 1 and dlfp4.formats()[n].block[0] == 1]
)
def test_every_code_by_every_scale_equals_the_host(name, axis):
    """Also scales too large to take the unit in which codes are decoded, and products beyond float32."""
    for host in every_code_by_every_scale(name, axis):
        ours = host.to_device(CUDA)
        for dtype in SOURCES:
            assert host_bytes(ours.dequantize(dtype)) == host_bytes(host.dequantize(dtype)), dtype


@pytest.mark.parametrize("axis", [-1, -2])
def test_every_code_by_float_scales_equals_the_host(axis):
    """Scales that are negative, subnormal or not finite beside ordinary ones."""
    scales = np.resize(np.float32([1, -0.5, 1e-44, 0, -0.0, 3e38, np.inf, -np.inf, np.nan, 2**-126]), (2, 256))
    codes = np.broadcast_to(np.arange(256, dtype=np.uint8)[:, None], (256, 256))
    parts = (codes, scales) if axis == -2 else (codes.T, scales.T)
    for name in [
        n for n, row in dlfp4.formats().items() if row.block == (1, 128) and row.element.name.startswith("float8")
    ]:
        host = dlfp4.ScaledTensor.from_parts(*map(np.ascontiguousarray, parts), format=name, axis=axis)
        ours = host.to_device(CUDA)
        for dtype in SOURCES:
            assert host_bytes(ours.dequantize(dtype)) == host_bytes(host.dequantize(dtype)), dtype


def extreme_blocks(source):
    """Of 32 rows and columns each: magnitudes from subnormal ones to the largest, in steps of some binades."""
    rng = np.random.default_rng(3)
    limits = ml_dtypes.finfo(reference.dtype_of(source))
    powers = np.linspace(int(limits.minexp) - limits.nmant, int(limits.maxexp) - 1, 64).round().reshape(8, 8)
    x = rng.uniform(-2, 2, (256, 256)) * np.exp2(np.kron(powers, np.ones((32, 32))))
    return np.clip(x, -float(limits.max), float(limits.max)).astype(reference.dtype_of(source))


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", FORMATS)
def test_blocks_of_every_magnitude(name, source):
    """Scales from the first to the last, whose products are subnormal, or rounded beyond the largest code."""
    x = extreme_blocks(source)
    both = [dlfp4.quantize(t, name, axis=(-1, -2)) for t in (dlfp4.asarray(x).to_device(CUDA), x)]
    for ours, host in zip(*both, strict=True):
        assert_equal_parts(ours, host)
    if dlfp4.formats()[name].kind == "power" and source != "float16":  # which has fewer exponents than the scales
        scales = np.unique(both[1][0].scales.to_numpy().view(np.uint8))
        assert scales[0] == 0
        assert scales[-1] > 235


@pytest.mark.parametrize("name", ["nvfp4", "mxfp6_e2m3", "mxfp8_e4m3"])
def test_more_tiles_than_are_fetched_ahead(name):
    """The last ones are half empty, both ways."""
    x = np.random.default_rng(1).standard_normal((3040, 2000)).astype("float32")
    host = dlfp4.quantize(x, name, axis=-2)
    ours = host.to_device(CUDA)
    assert host_bytes(ours.dequantize("bfloat16")) == host_bytes(host.dequantize("bfloat16"))
    along = dlfp4.quantize(x[:, :1984], name)
    assert host_bytes(along.to_device(CUDA).dequantize("bfloat16")) == host_bytes(along.dequantize("bfloat16"))


@pytest.mark.parametrize("source", SOURCES)
def test_columns_beside_one_that_is_not_finite(source):
    x = np.random.default_rng(5).standard_normal((256, 288)).astype(reference.dtype_of(source))
    x[7, 3], x[200, 40], x[255, 271] = np.inf, np.nan, -np.inf
    for name in FORMATS:
        ours, host = (dlfp4.quantize(t, name, axis=-2) for t in (dlfp4.asarray(x).to_device(CUDA), x))
        assert_equal_parts(ours, host)


@pytest.mark.parametrize("layout", ["128x4", "8x4", "aiter"])
@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("name", [name for name in FORMATS if dlfp4.formats()[name].scale.itemsize == 1])
def test_scale_layouts_equal_the_host(name, axis, layout):
    x = special_values((160, 96), "bfloat16")
    device = dlfp4.asarray(x).to_device(CUDA)
    host = dlfp4.quantize(x, name, axis=axis, scale_layout=layout)
    ours = dlfp4.quantize(device, name, axis=axis, scale_layout=layout)
    assert_equal_parts(ours, host)
    assert host_bytes(ours.dequantize()) == host_bytes(host.dequantize())
    assert_equal_parts(ours.with_scale_layout("linear"), host.with_scale_layout("linear"))
    linear = dlfp4.quantize(device, name, axis=axis)
    assert_equal_parts(linear.with_scale_layout(layout), host)
    along_axis = dlfp4.quantize(device, name, axis=(axis, -3 - axis), scale_layout=layout)[0]
    assert_equal_parts(along_axis, host)


def test_every_block_scale_of_nvfp4():
    """The kernel has conversions of its own for e4m3 scales: magnitudes over their whole range, given scales."""
    magnitudes = np.arange(0x30000000, 0x45000000, 997, dtype=np.uint32).view(np.float32)
    magnitudes = magnitudes[: magnitudes.size // 64 * 64]
    x = np.zeros((magnitudes.size, 16), np.float32)
    x[:, 3], x[:, 9] = magnitudes, -magnitudes / 3
    x = x.reshape(64, -1)
    turned = np.ascontiguousarray(x.T)
    for scale in (1.0, 0.0123, 3e-5, 700.0):
        for source, axis in ((x, -1), (turned, -2)):
            device = dlfp4.quantize(dlfp4.asarray(source).to_device(CUDA), "nvfp4", axis=axis, global_scale=scale)
            assert_equal_parts(device, dlfp4.quantize(source, "nvfp4", axis=axis, global_scale=scale))
        along_rows, _ = dlfp4.quantize(dlfp4.asarray(x).to_device(CUDA), "nvfp4", axis=(-1, -2), global_scale=scale)
        assert_equal_parts(along_rows, dlfp4.quantize(x, "nvfp4", global_scale=scale))


def test_given_scale_on_the_device(torch):
    x = torch.randn(64, 128, device="cuda")
    for name in ("nvfp4", "nvfp4_16x16", "fp8_e4m3"):
        for axis in (-1, -2):
            ours = dlfp4.quantize(x, name, axis=axis, global_scale=torch.tensor(0.0123, device="cuda"))
            assert_equal_parts(ours, dlfp4.quantize(x.cpu(), name, axis=axis, global_scale=0.0123))
        given = torch.tensor(0.0123, device="cuda")
        both = dlfp4.quantize(x, name, axis=(-1, -2), global_scale=given)
        for ours, host in zip(both, dlfp4.quantize(x.cpu(), name, axis=(-1, -2), global_scale=0.0123), strict=True):
            assert_equal_parts(ours, host)


@pytest.mark.parametrize("scale", [-1.0, -0.0, 0.0, float("inf"), float("-inf"), float("nan")])
def test_a_given_scale_that_is_none_gives_the_same_along_rows_and_columns(torch, scale):
    """Nobody looks at a scale on the device before the kernels: they must read nothing else for it."""
    x = torch.randn(256, 128, device="cuda")
    x[:16, :3], x[16, 3], x[32, 4] = 0.0, float("inf"), float("nan")
    given, turned = torch.tensor(scale, device="cuda"), x.t().contiguous()
    columns, rows = (
        dlfp4.quantize(x, "nvfp4", axis=-2, global_scale=given),
        dlfp4.quantize(turned, "nvfp4", global_scale=given),
    )
    assert host_bytes(columns.data) == host_bytes(rows.data)
    assert host_bytes(columns.scales) == host_bytes(rows.scales)


def test_shuffle_weight():
    w = np.random.default_rng(3).integers(0, 256, (48, 96), dtype=np.uint8)
    device = dlfp4.asarray(w).to_device(CUDA)
    shuffled = dlfp4.shuffle_weight(device)
    assert host_bytes(shuffled) == host_bytes(dlfp4.shuffle_weight(w))
    assert host_bytes(dlfp4.unshuffle_weight(shuffled)) == w.tobytes()


# ---- Size


def test_more_elements_than_an_int_counts(torch):
    """2^31 and a bit: what lies at both ends is what the host makes of it."""
    rows, columns = (1 << 19) + 64, 4096
    x = torch.randn(64, columns, device="cuda", dtype=torch.bfloat16).repeat(rows // 64, 1)
    x[-64:] *= 3
    ends = torch.cat([x[:64], x[-64:]]).cpu()

    def assert_ends(big, small):
        assert big.size > 1 << 31 or big.size == rows * columns // 32
        for ours, theirs in ((big[:64], small[:64]), (big[-64:], small[64:])):
            assert host_bytes(ours) == host_bytes(theirs.copy())

    assert_ends(dlfp4.cast(x, "float8_e4m3fn"), dlfp4.cast(ends, "float8_e4m3fn"))
    assert_ends(dlfp4.cast(x, "float4_e2m1fn"), dlfp4.cast(ends, "float4_e2m1fn"))
    q, host = dlfp4.quantize(x, "mxfp4"), dlfp4.quantize(ends, "mxfp4")
    assert_ends(q.data, host.data)
    assert_ends(q.scales, host.scales)
    columnwise = dlfp4.quantize(x, "fp8_1x128", axis=-2)
    for part in (slice(None, 128), slice(-64, None)):  # a whole block of rows, and the last, shorter one
        alone = dlfp4.quantize(x[part].cpu(), "fp8_1x128", axis=-2)
        assert host_bytes(columnwise.data[part]) == host_bytes(alone.data)
    columnwise = [dlfp4.quantize(x, name, axis=-2) for name in ("mxfp8_e4m3", "mxfp4")]
    of_ends = [dlfp4.quantize(ends, name, axis=-2) for name in ("mxfp8_e4m3", "mxfp4")]
    assert_ends(columnwise[0].data, of_ends[0].data)
    for ours, theirs in zip(columnwise, of_ends, strict=True):
        assert_ends(dlfp4.dequantize(ours, "bfloat16", out=x), theirs.dequantize("bfloat16"))
    assert_ends(dlfp4.dequantize(q, "bfloat16", out=x), host.dequantize("bfloat16"))


# ---- The image


def devices():
    """The numbers of the first CUDA device and, where there is one, the second."""
    count = ctypes.c_int()
    assert ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(count)) == 0
    return range(min(count.value, 2))


def test_each_device_runs_its_kernels():
    x = np.random.default_rng(0).standard_normal((64, 256)).astype("float32")
    host = dlfp4.quantize(x, "nvfp4")
    for number in devices():
        q = dlfp4.quantize(dlfp4.asarray(x).to_device(f"cuda:{number}"), "nvfp4")
        assert str(q.device) == f"cuda:{number}"
        assert_equal_parts(q, host)


def test_kernels_that_nvrtc_compiled(tmp_path):
    """The same sources at run time, for each device, and then from the cache: an image an architecture."""
    pytest.importorskip("platformdirs", reason="platformdirs is not installed")
    pytest.importorskip("cuda.pathfinder", reason="cuda-pathfinder is not installed")
    code = """
import os, pathlib, sys
import numpy as np, dlfp4
x = np.random.default_rng(0).standard_normal((64, 256)).astype("float32")
host = dlfp4.quantize(x, "nvfp4").data.view("uint8").to_numpy().tobytes()
for number in sys.argv[1:]:
    q = dlfp4.quantize(dlfp4.asarray(x).to_device(f"cuda:{number}"), "nvfp4")
    assert q.data.to_device("cpu").view("uint8").to_numpy().tobytes() == host, number
cubins = pathlib.Path(os.environ["XDG_CACHE_HOME"], "dlfp4").glob("*.cubin")
print(*sorted((cubin.name, cubin.stat().st_mtime_ns) for cubin in cubins), sep="\\n")
"""
    env = {**os.environ, "DLFP4_CUDA_IMAGE": "nvrtc", "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-P", "-c", code, *map(str, devices())]
    first, second = (
        subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout for _ in range(2)
    )
    assert first == second  # the second found what the first had kept
    assert len(first.splitlines()) == len({_cuda_capability(number) for number in devices()})


# ---- Streams and graphs


def test_nothing_waits(torch):
    x = torch.randn(256, 256, device="cuda")
    q = dlfp4.quantize(x, "nvfp4")
    y = torch.empty_like(x)
    torch.cuda.synchronize()
    torch.cuda._sleep(200_000_000)
    dlfp4.quantize(x, "nvfp4", out=q)
    dlfp4.dequantize(q, out=y)
    dlfp4.cast(x, "float8_e4m3fn")
    assert not torch.cuda.current_stream().query()
    torch.cuda.synchronize()


@pytest.mark.parametrize("name", ["nvfp4", "mxfp8_e4m3", "fp8_e4m3", "fp8_128x128"])
def test_a_graph_replays_what_was_captured(torch, name):
    x = torch.randn(128, 256, device="cuda")
    q, y = dlfp4.quantize(x, name), torch.empty_like(x)
    graph = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        held = dlfp4.ScaledTensor.from_parts(*q.to_torch(), format=name)
        with torch.cuda.graph(graph, stream=side):
            dlfp4.quantize(x, name, out=held)
            dlfp4.dequantize(held, out=y)
    x.copy_(torch.randn(128, 256, device="cuda") * 3)
    graph.replay()
    torch.cuda.synchronize()
    host = dlfp4.quantize(x.cpu(), name)
    assert y.cpu().numpy().tobytes() == host_bytes(host.dequantize())


def test_parts_on_both_sides_are_refused(torch):
    x = np.linspace(-6, 6, 4 * 64, dtype=np.float32).reshape(4, 64)
    host = dlfp4.quantize(x, "nvfp4")
    for q, other in ((host, CUDA), (host.to_device(CUDA), "cpu")):
        parts = q.to_torch()
        with pytest.raises(ValueError, match=f"global_scale lies on {other}, data on {q.device}.*to_device"):
            dlfp4.ScaledTensor.from_parts(parts.data, parts.scales, parts.global_scale.to(other), format="nvfp4")
        with pytest.raises(ValueError, match=f"scales lies on {other}, data on {q.device}.*to_device"):
            dlfp4.ScaledTensor.from_parts(parts.data, parts.scales.to(other), parts.global_scale, format="nvfp4")


def test_a_number_goes_where_the_data_lies(torch):
    host = dlfp4.quantize(np.linspace(-6, 6, 4 * 64, dtype=np.float32).reshape(4, 64), "nvfp4")
    parts = host.to_device(CUDA).to_torch()
    q = dlfp4.ScaledTensor.from_parts(parts.data, parts.scales, float(host.global_scale), format="nvfp4")
    assert_equal_parts(q, host)
    assert str(q.global_scale.device) == CUDA
    assert host_bytes(q.dequantize()) == host_bytes(host.dequantize())


def test_the_reciprocal_of_a_checkpoint_goes_where_the_data_lies(torch):
    host = dlfp4.quantize(np.linspace(-6, 6, 4 * 64, dtype=np.float32).reshape(4, 64), "nvfp4")
    stored = split_parts({"w": host}, "compressed-tensors")
    theirs = join_parts({name: part.to_device(CUDA) for name, part in stored.items()})["w"]
    ours = join_parts(stored)["w"]
    assert_equal_parts(theirs, ours)
    assert host_bytes(theirs.dequantize()) == host_bytes(ours.dequantize())


def test_another_stream(torch):
    x = torch.randn(1 << 20, device="cuda").reshape(1024, 1024)
    stream = torch.cuda.Stream()
    ours = dlfp4.quantize(x, "mxfp4", stream=stream)
    stream.synchronize()
    assert_equal_parts(ours, dlfp4.quantize(x.cpu(), "mxfp4"))


def test_out_needs_room_for_the_global_scale():
    """Which would be written over scales of blocks."""
    x = dlfp4.asarray(np.random.default_rng(6).standard_normal((32, 64)).astype("float32")).to_device(CUDA)
    q = dlfp4.quantize(x, "nvfp4")
    out = dlfp4.ScaledTensor.from_parts(q.data, q.scales, format="nvfp4")
    before = host_bytes(q.scales)
    with pytest.raises(ValueError, match="without a global scale"):
        dlfp4.quantize(x, "nvfp4", out=out)
    assert host_bytes(q.scales) == before


@pytest.mark.parametrize("name", ["nvfp4", "mxfp4"])
def test_ggmls_blocks_of_a_prepared_weight(name):
    q = dlfp4.quantize(np.random.default_rng(7).standard_normal((128, 512)).astype("float32"), name)
    prepared = q.to_device(CUDA).prepare()
    assert prepared.scale_layout == "prepared"
    assert host_bytes(to_ggml(prepared)) == host_bytes(to_ggml(q))


def test_a_global_scale_on_another_device():
    x = dlfp4.asarray(np.ones((32, 64), np.float32)).to_device(CUDA)
    elsewhere = dlfp4.from_dlpack(Made(np.ones(1, np.float32), device=(2, 1)).capsule)
    with pytest.raises(ValueError, match=r"global_scale lies on cuda:1, the input on cuda:0"):
        dlfp4.quantize(x, "nvfp4", global_scale=elsewhere)


@pytest.mark.parametrize("shape", [(0,), (1, 0), (4, 0), (0, 32), (2, 0, 64)], ids=str)
@pytest.mark.parametrize("name", FORMATS)
def test_values_of_nothing(name, shape):
    q = dlfp4.quantize(dlfp4.empty(shape, "float32", device=CUDA), name, pad=True)
    for values in (q.dequantize(), dlfp4.dequantize(q, "bfloat16", out=dlfp4.empty(shape, "bfloat16", device=CUDA))):
        assert (values.shape, str(values.device)) == (shape, CUDA)


@pytest.mark.parametrize("name", FORMATS)
def test_stochastic_rounding_equals_the_host(name):
    """Draws are by the places of elements in the lines that were asked for, however these lie."""
    x = np.random.default_rng(8).standard_normal((256, 384)).astype("float32")
    device = dlfp4.asarray(x).to_device(CUDA)
    for axis, view in itertools.product((-1, -2), (lambda t: t, lambda t: t.T, lambda t: t[:128, ::2])):
        options = {"rounding": "stochastic", "seed": 7, "axis": axis, "pad": True}
        assert_equal_parts(dlfp4.quantize(view(device), name, **options), dlfp4.quantize(view(x), name, **options))
    options = {"rounding": "stochastic", "seed": 9, "axis": (-1, -2)}
    for ours, host in zip(dlfp4.quantize(device, name, **options), dlfp4.quantize(x, name, **options), strict=True):
        assert_equal_parts(ours, host)


# ---- Slices of ScaledTensors


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("name", FORMATS)
def test_slices_on_block_borders(name, axis):
    x = np.random.default_rng(4).standard_normal((256, 384)).astype(np.float32)
    host = dlfp4.quantize(x, name, axis=axis)
    device = host.to_device(CUDA)
    for key in (np.s_[128:], np.s_[:, 128:], np.s_[128:, 128:256], np.s_[:, 256:]):
        part, expected = device[key], host[key]
        assert part.dequantize().to_device("cpu").tolist() == expected.dequantize().tolist()
        assert_equal_parts(part.to_device("cpu"), expected)
        if axis == -1:
            given = x[:5, : expected.shape[1]]
            product = dlfp4.matmul(dlfp4.asarray(given).to_device(CUDA), part.prepare().mT).to_device("cpu").to_numpy()
            np.testing.assert_allclose(product, given @ expected.dequantize().to_numpy().T, rtol=1e-3, atol=1e-3)
            sums = dlfp4.vecdot(part, part).to_device("cpu").to_numpy()
            np.testing.assert_allclose(sums, dlfp4.vecdot(expected, expected).to_numpy(), rtol=1e-5)
        if name.startswith(("nvfp4", "mx")):
            blocked = part.with_scale_layout("128x4")
            assert_equal_parts(blocked.with_scale_layout("linear").to_device("cpu"), expected)


# ---- Scale layouts of engines, and formats from one another


ENGINE_LAYOUTS = [
    *itertools.product(["nvfp4", "mxfp4", "mxfp8_e4m3"], ["n32k4", "deepgemm"]),
    ("fp8_1x128", "cublas_1x128"),
    ("fp8_128x128", "cublas_128x128"),
]


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize(("name", "layout"), ENGINE_LAYOUTS)
def test_scale_layouts_of_engines(name, layout, axis):
    x = np.random.default_rng(6).standard_normal((160, 384)).astype(np.float32)
    device, linear = dlfp4.asarray(x).to_device(CUDA), dlfp4.quantize(x, name, axis=axis)
    host = dlfp4.quantize(x, name, axis=axis, scale_layout=layout)
    ours = dlfp4.quantize(device, name, axis=axis, scale_layout=layout)
    assert_equal_parts(ours, host)
    assert_equal_parts(linear.to_device(CUDA).with_scale_layout(layout), host)
    assert_equal_parts(ours.with_scale_layout("linear"), linear)
    assert host_bytes(ours.dequantize()) == host_bytes(linear.dequantize())
    if axis == -1:
        sums = dlfp4.vecdot(ours, ours).to_device("cpu").to_numpy()
        np.testing.assert_allclose(sums, dlfp4.vecdot(linear, linear).to_numpy(), rtol=1e-5)


@pytest.mark.parametrize(("source", "target"), [("mxfp4", "mxfp8_e4m3"), ("mxfp4", "nvfp4"), ("mxfp4", "mxfp4_16")])
def test_formats_from_one_another(source, target):
    x = np.random.default_rng(7).standard_normal((160, 384)).astype(np.float32)
    host = dlfp4.quantize(x, source)
    ours = host.to_device(CUDA).to(target)
    assert ours.receipt == host.to(target).receipt
    assert_equal_parts(ours, host.to(target))


@pytest.mark.parametrize("source", dlfp4.formats())
def test_what_is_rounded(source):
    """Into every other format, from values that have everything: the bytes and the receipt of the host."""
    rng = np.random.default_rng(9)
    x = rng.standard_normal((160, 416)).astype(np.float32) * np.ldexp(np.float32(1), rng.integers(-12, 12, (160, 1)))
    x[3, :64], x[5, 7] = 0, 3e38
    host = dlfp4.quantize(x, source, pad=True)
    there = host.to_device(CUDA)
    for target in (*dlfp4.formats(), "mlx"):
        ours, expected = there.to(target), host.to(target)
        assert ours.device == there.device
        assert ours.receipt == expected.receipt, target
        assert_equal_parts(ours, expected)


@pytest.mark.parametrize("source", ["nvfp4", "fp8_e4m3", "fp8_128x128"])
def test_what_is_rounded_of_large_matrices(source):
    """More rows than are taken at a time on either side."""
    host = dlfp4.quantize(np.random.default_rng(10).standard_normal((8300, 8192), dtype=np.float32), source)
    for target in ("mxfp4", "fp8_1x128"):
        ours, expected = host.to_device(CUDA).to(target), host.to(target)
        assert ours.receipt == expected.receipt
        assert_equal_parts(ours, expected)


def test_a_recipe_of_what_is_rounded():
    host = dlfp4.quantize(np.random.default_rng(11).standard_normal((64, 96), dtype=np.float32), "nvfp4")
    assert_equal_parts(host.to_device(CUDA).to("mxfp4", recipe="nvidia"), host.to("mxfp4", recipe="nvidia"))
    assert_equal_parts(host.to_device(CUDA).to("modelopt", recipe="modelopt"), host.to("modelopt", recipe="modelopt"))


@pytest.mark.parametrize("name", ["nvfp4", "mxfp8_e4m3", "fp8_128x128"])
def test_concatenate_and_stack(name):
    x = np.random.default_rng(8).standard_normal((256, 384)).astype(np.float32)
    parts = [dlfp4.quantize(x * np.float32(size), name) for size in (1, 4)]
    there = [part.to_device(CUDA) for part in parts]
    for join in (dlfp4.concatenate, lambda each: dlfp4.concatenate(each, 1), dlfp4.stack):
        assert_equal_parts(join(there), join(parts))
        assert join(there).receipt == join(parts).receipt


def test_subnormal_numbers_where_pytorch_flushes_them(torch):
    """A scale of the whole tensor and alpha are given by the host."""
    x = dlfp4.asarray(np.full((16, 256), 1e-36, np.float32)).to_device("cuda:0")
    half = dlfp4.cast(dlfp4.asarray(np.full((16, 256), 1e15, np.float32)).to_device("cuda:0"), "bfloat16")
    w = dlfp4.quantize(dlfp4.asarray(np.full((128, 256), 1e15, np.float32)).to_device("cuda:0"), "mxfp4").prepare()

    def run():
        q = dlfp4.quantize(x, "nvfp4", global_scale=5e-39)
        parts = (q.data, q.scales, q.global_scale, dlfp4.matmul(half, w.mT, alpha=1e-40, backend="cuda"))
        return [host_bytes(part) for part in parts]

    expected = run()
    with flushed_subnormals(torch):
        flushed = run()
    assert flushed == expected
    assert any(expected[3])
