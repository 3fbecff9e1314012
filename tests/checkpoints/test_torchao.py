"""quantize gives torchao's bytes (torchao.prototype.mx_formats, on the host) wherever torchao's rule is ours, and
dequantize its values. Where its rule is another, `DIFFERENCES` says so: there, and only there, the bytes may differ,
and torchao's are those of the rule that the table names."""

import itertools
from types import SimpleNamespace
from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest

import dlfp4
from dlfp4 import checkpoints

from ..support import block_reference as reference
from ..support.block_reference import EMAX, FORMATS, FP4, INPUTS, LARGEST, RULES, make
from ..support.capsules import framework
from ..support.reference import BITS, codec, codes_of, native_cast, of_codes, raw_bytes, unpacked_codes

F = np.float32
FLOATS = ["float32", "bfloat16"]  # torchao takes no float16
MX = [name for name in reference.MX if FORMATS[name].block[0] == 1]  # torchao has no squares

# By format: a cause, the blocks or elements it concerns, and what torchao does there.
DIFFERENCES = {
    "mx": {
        "NaN": "a block with a NaN: both scales are NaN; our elements are 0, torchao's whatever comes of NaN",
        "infinity": "a block with an infinity: ours is NaN; torchao's scale is that of 2**128, or 0xFE (rceil)",
        "least scale": "byte 0x00: we multiply by 2**127; torchao by 2**126, or by 1 (rceil)",
        "log2": "rceil takes a float32 logarithm of a / max: that of a power of two, for quotients just above it",
    },
    "nvfp4": {
        "NaN": "as MX",
        "infinity": "ours is NaN; torchao's scale is the largest, 448",
        "least scale": "torchao's is at least 2**-6, the smallest normal e4m3; of zero blocks too",
        "order of the scale": "torchao divides, a / 6 / g, and we multiply, a * (G * (1/6)): other ties",
        "order of the multiplier": "torchao has (1 / g) / scale, ours is 1 / (scale * (1 / G)): ties again",
        "overflow": "1 / g is infinite, or g subnormal and inexact: we clamp to the largest float32",
    },
}


class Parts(NamedTuple):
    """Codes of scales and elements, a row a line."""

    scales: np.ndarray
    codes: np.ndarray


@pytest.fixture(scope="module")
def ao():
    """torchao's functions, with NumPy arrays on both sides."""
    torch = framework("torch")
    mx = framework("torchao.prototype.mx_formats.mx_tensor")
    nv = framework("torchao.prototype.mx_formats.nvfp4_tensor")
    utils = framework("torchao.prototype.mx_formats.utils")
    elements = {
        "float4_e2m1fn": torch.float4_e2m1fn_x2,
        "float6_e2m3fn": "fp6_e2m3",
        "float6_e3m2fn": "fp6_e3m2",
        "float8_e4m3fn": torch.float8_e4m3fn,
        "float8_e5m2": torch.float8_e5m2,
    }

    def tensor(x):
        if x.dtype == ml_dtypes.bfloat16:
            return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(x)

    def octets(tensor):
        return tensor.contiguous().view(torch.uint8).numpy()

    def parts(name, scales, data):
        codes = octets(data)
        packed = BITS[FORMATS[name].element] == 4
        return Parts(octets(scales), unpacked_codes(codes.tobytes(), 4, 2 * codes.size) if packed else codes)

    def to_mx(x, name, rule):
        row = FORMATS[name]
        scales, data = mx.to_mx(tensor(x), elements[row.element], row.block[1], mx.ScaleCalculationMode[rule.upper()])
        found = parts(name, scales, data)
        return Parts(found.scales, found.codes.reshape(x.shape))

    def to_nvfp4(x, unit):
        given = None if unit is None else torch.tensor(unit)
        found = parts("nvfp4", *nv.nvfp4_quantize(tensor(x), 16, given))
        return Parts(found.scales, found.codes.reshape(x.shape))

    return SimpleNamespace(
        torch=torch, mx=mx, nv=nv, utils=utils, elements=elements, tensor=tensor, octets=octets, to_mx=to_mx,
        to_nvfp4=to_nvfp4,
    )  # fmt: skip


def ours(x, name, **options):
    q = dlfp4.quantize(x, name, **options)
    codes = unpacked_codes(raw_bytes(q.data), BITS[FORMATS[name].element], x.size).reshape(x.shape)
    return q, Parts(codes_of(q.scales), codes)


def blocks_of(x, length):
    """float32 (lines, blocks, elements), and the magnitude of each block."""
    blocks = native_cast(x, "float32").reshape(x.shape[0], -1, length)
    return blocks, np.abs(blocks).max(-1)


def rounded(blocks, multiplier, element):
    """The codes of what torchao scaled so; NaN has none and is left out by who calls."""
    with np.errstate(all="ignore"):
        scaled = blocks * multiplier[..., None]
    return codec(element).round(np.where(np.isnan(scaled), F(0), scaled)).reshape(blocks.shape[0], -1)


def assert_codes(found, expected, where, what):
    wrong = np.argwhere((found != expected) & where)
    assert not len(wrong), f"{what}: {len(wrong)} of {where.sum()} differ, first at {tuple(wrong[0])}"


# ---- MX ------------------------------------------------------------------------------------------------------------


def near_powers(name):
    """Blocks whose largest magnitude, over the format's largest element, is a power of two or not far from it."""
    largest = LARGEST[FORMATS[name].element] * (1 + np.ldexp([0, 1, 2, 4, 8, 40, 300, 3000, -1, -40], -23))
    with np.errstate(over="ignore"):
        magnitudes = np.ldexp(largest[:, None], np.arange(-152, 128)[None]).astype(F).ravel()
    magnitudes = magnitudes[np.isfinite(magnitudes)]
    x = magnitudes[:, None] * make("uniform", (len(magnitudes), 32))
    x[:, 7] = magnitudes
    return x


def log2_tells(magnitude, element):
    """Whether the logarithm of a / max in float32 tells it from the power of two below: 1, -1 (it cannot), or 0 where
    that is between one and two roundings. 1 for powers of two, and for what the least scale holds."""
    mantissa, exponent = np.frexp(magnitude.astype(np.float64) / LARGEST[element])
    power = np.where(mantissa == 0.5, exponent, exponent - 1)
    distance = np.maximum(2 * mantissa - 1, 0)  # the quotient is 2**power * (1 + distance)
    last_place = np.spacing(np.where(power < 0, np.nextafter(-power.astype(F), F(0)), power.astype(F)))
    steps = np.log2(1 + distance) / last_place
    tells = np.where(steps < 0.4, -1, np.where(steps > 1.6, 1, 0))
    return np.where((distance == 0) | (power < -127), 1, tells)


def mx_multiplier(codes, rule):
    """What torchao multiplies a block by."""
    multiplier = np.ldexp(F(1), 127 - codes.astype(int))
    return np.where(codes == 0, F(1) if rule == "rceil" else F(2.0**126), multiplier)


def compare_mx(x, name, rule, theirs):
    """Assert all that the table says; returns the causes that made a difference."""
    element, length = FORMATS[name].element, FORMATS[name].block[1]
    _, found = ours(x, name, recipe=dlfp4.Recipe(scale_rule=rule))
    blocks, magnitude = blocks_of(x, length)
    nan, infinite = np.isnan(magnitude), np.isinf(magnitude)
    finite = np.isfinite(magnitude)
    log2 = log2_tells(np.where(finite, magnitude, F(0)), element) if rule == "rceil" else np.ones(magnitude.shape, int)

    # Scales.
    what = (name, rule, x.dtype.name)
    assert_codes(theirs.scales, found.scales, finite & (log2 == 1), what)
    assert_codes(theirs.scales, found.scales - np.uint8(1), finite & (log2 == -1), ("log2", *what))
    fewer = found.scales.astype(int) - theirs.scales
    assert set(np.unique(fewer[finite & (log2 == 0)])) <= {0, 1}
    of_infinity = np.full(magnitude.shape, 0xFE if rule == "rceil" else 255 - EMAX[element])
    assert_codes(theirs.scales, of_infinity, infinite, ("infinity", *what))
    assert (theirs.scales[nan] == 0xFF).all()
    assert (found.scales[~finite] == 0xFF).all()

    # Elements.
    causes = {
        "NaN": nan,
        "infinity": infinite,
        "least scale": finite & (theirs.scales == 0) & (magnitude > 0),
        "log2": finite & (log2 <= 0),
    }
    excused = np.repeat(np.any(list(causes.values()), 0), length, 1)
    assert_codes(theirs.codes, found.codes, ~excused, what)
    multiplier = mx_multiplier(np.where(nan, np.uint8(127), theirs.scales), rule)
    assert_codes(theirs.codes, rounded(blocks, multiplier, element), np.repeat(~nan, length, 1), ("by its rule", *what))
    differs = (theirs.scales != found.scales) | (theirs.codes != found.codes).reshape(blocks.shape).any(-1)
    return {cause for cause, where in causes.items() if (where & differs).any()}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", MX)
def test_mx(ao, name, rule):
    seen = set()
    for dtype in FLOATS:
        inputs = [make(kind, (32, 160), dtype) for kind in INPUTS]
        inputs.append(native_cast(near_powers(name), dtype))
        for x in inputs:
            seen |= compare_mx(x, name, rule, ao.to_mx(x, name, rule))
    assert seen == DIFFERENCES["mx"].keys() - ({"log2"} if rule != "rceil" else set())


@pytest.mark.parametrize("name", MX)
def test_mx_without_differences(ao, name):
    """All bytes of what networks hold: none of the causes."""
    for kind, rule, dtype in itertools.product(["normal", "uniform", "cauchy", "one-hot", "zeros"], RULES, FLOATS):
        x = make(kind, (64, 256), dtype, seed=1)
        theirs = ao.to_mx(x, name, rule)
        _, found = ours(x, name, recipe=dlfp4.Recipe(scale_rule=rule))
        assert theirs.scales.tolist() == found.scales.tolist()
        assert theirs.codes.tolist() == found.codes.tolist()


def test_columns(ao):
    """torchao quantizes the transpose, as we say columns to be."""
    x = make("normal", (96, 48))
    for name in MX:
        theirs = ao.to_mx(np.ascontiguousarray(x.T), name, "floor")
        q = dlfp4.quantize(x, name, axis=-2)
        codes = codes_of(q.data).T if BITS[FORMATS[name].element] == 8 else codes_of(dlfp4.unpack(q.data))
        scales = codes_of(q.scales).T if BITS[FORMATS[name].element] == 8 else codes_of(q.scales)
        assert theirs.codes.tolist() == codes.tolist()
        assert theirs.scales.tolist() == scales.tolist()


# ---- NVFP4 ---------------------------------------------------------------------------------------------------------


def near_midpoint(magnitude, element):
    """Whether an exact magnitude lies where a few roundings in float32 decide between two neighbours."""
    values = native_cast(of_codes(np.arange(0x7F if element == reference.E4M3 else 8), element), "float64")
    middle = (values[1:] + values[:-1]) / 2
    place = np.clip(np.searchsorted(middle, magnitude), 1, len(middle) - 1)
    near = np.minimum(np.abs(magnitude - middle[place - 1]), np.abs(magnitude - middle[place]))
    return near <= magnitude * 2.0**-21


def their_nvfp4(magnitude, unit):
    """torchao's scale codes, and what it multiplies a block by, in its order of operations."""
    with np.errstate(all="ignore"):
        quotient = magnitude / F(6)
        quotient = quotient if unit is None else quotient / unit
        scales = native_cast(np.clip(quotient, F(2.0**-6), F(448)), "float8_e4m3fn")
        multiplier = F(1) / scales.astype(F) if unit is None else (F(1) / unit) / scales.astype(F)
    return scales, multiplier


def compare_nvfp4(x, found, theirs, unit):
    """Assert all that the table says; returns the causes that made a difference."""
    blocks, magnitude = blocks_of(x, 16)
    scales, multiplier = their_nvfp4(magnitude, unit)
    finite, factor = np.isfinite(magnitude), np.float64(1 if unit is None else unit)
    with np.errstate(all="ignore"):
        exact = np.where(finite, magnitude, 0) / (6 * factor)
        exact_elements = np.abs(blocks) / (factor * scales.astype(np.float64))[..., None]
        is_nan = np.isnan(blocks * multiplier[..., None]).reshape(x.shape)

    # By torchao's rule, all of them; no code of FP4 is that of a NaN.
    assert_codes(theirs.scales, codes_of(scales), np.ones(scales.shape, bool), "scales by torchao's rule")
    assert_codes(theirs.codes, rounded(blocks, multiplier, FP4), ~is_nan, "elements by torchao's rule")

    # By ours, where no cause is.
    causes = {
        "NaN": np.isnan(magnitude),
        "infinity": np.isinf(magnitude),
        "least scale": finite & (exact < 2.0**-6),
        "order of the scale": near_midpoint(exact, reference.E4M3),
        "overflow": np.full(magnitude.shape, factor < np.finfo(F).tiny),
    }
    like = ~np.any(list(causes.values()), 0)
    assert_codes(theirs.scales, found.scales, like, "scales")
    like = np.repeat(like, 16, 1)
    tie = near_midpoint(exact_elements, FP4).reshape(x.shape) & (unit is not None)
    assert_codes(theirs.codes, found.codes, like & ~tie, "elements")

    differs = (theirs.scales != found.scales) | (theirs.codes != found.codes).reshape(blocks.shape).any(-1)
    seen = {cause for cause, where in causes.items() if (where & differs).any()}
    return seen | ({"order of the multiplier"} if ((theirs.codes != found.codes) & like).any() else set())


def near_ties(unit):
    """A block for each normal scale code, whose elements are, but for float32's rounding, between two codes."""
    scales = of_codes(np.arange(8, 0x7F), reference.E4M3).astype(F)
    elements = np.resize(np.array([6, 0.25, -0.75, 1.25, -1.75, 2.5, -3.5, 5], F), 16)
    return np.outer(scales, elements) * F(unit or 1)


def nvfp4_inputs(unit):
    """All kinds; magnitudes that a scale of the tensor is made for, up to 448 * 6 of it; ties."""
    for dtype in FLOATS:
        for kind, seed in itertools.product(INPUTS, range(4)):
            yield make(kind, (32, 320), dtype, seed)
        for kind, seed in itertools.product(["normal", "uniform"], range(4)):
            yield native_cast(make(kind, (32, 320), "float32", seed) * F(1000) * F(unit or 1), dtype)
        yield native_cast(near_ties(unit), dtype)


def test_nvfp4(ao):
    """Without a scale of the tensor, which is 1 to us, and with a given one."""
    seen = set()
    for unit in (None, 1.0, 0.0123, 3e-7, 2.0**-140):
        for x in nvfp4_inputs(unit):
            _, found = ours(x, "nvfp4", global_scale=unit or 1.0)
            given = None if unit is None else F(unit)
            seen |= compare_nvfp4(x, found, ao.to_nvfp4(x, given), given)
    assert seen == DIFFERENCES["nvfp4"].keys()


def test_nvfp4_with_the_scale_of_the_tensor(ao):
    """Found by both, and the same; torchao has none for zeros."""
    seen = set()
    for x in nvfp4_inputs(None):
        q, found = ours(x, "nvfp4")
        values, unit = native_cast(x, "float32"), F(q.global_scale.item())
        largest = np.abs(values).max(where=np.isfinite(values), initial=0)
        theirs = ao.nv.per_tensor_amax_to_scale(ao.torch.tensor(largest)).item()
        assert unit == (max(theirs, F(1 / np.finfo(F).max)) if largest else 1)  # ours has a finite reciprocal
        seen |= compare_nvfp4(x, found, ao.to_nvfp4(x, unit), unit)
    assert seen == DIFFERENCES["nvfp4"].keys()


# ---- layout, values, sharing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 32), (128, 128), (129, 160), (300, 288), (3, 50, 96)], ids=str)
def test_blocked_scales(ao, shape):
    """Layout 128x4, its padding too."""
    x = make("normal", shape)
    tensor = ao.tensor(x)
    for name, rule in itertools.product(["mxfp4", "mxfp8_e4m3"], RULES):
        mode = ao.mx.ScaleCalculationMode[rule.upper()]
        scales, _ = ao.mx.to_mx(tensor, ao.elements[FORMATS[name].element], 32, mode)
        q = dlfp4.quantize(x, name, recipe=dlfp4.Recipe(scale_rule=rule), scale_layout="128x4")
        assert raw_bytes(q.scales) == ao.octets(ao.utils.to_blocked(scales.reshape(-1, scales.shape[-1]))).tobytes()
        if len(shape) == 2:  # torchao pads each matrix of a stack by itself
            scales, _ = ao.mx.to_mx(tensor, ao.elements[FORMATS[name].element], 32, mode, is_swizzled_scales=True)
            assert raw_bytes(q.scales) == ao.octets(scales).tobytes()
        linear = q.with_scale_layout("linear").scales
        back = ao.utils.from_blocked(q.scales.to_torch().flatten(), *linear.shape)
        assert raw_bytes(linear) == ao.octets(back).tobytes()


def test_blocked_scales_of_nvfp4(ao):
    for shape in ((16, 16), (200, 208)):
        x, unit = ao.tensor(make("normal", shape)), ao.torch.tensor(0.01)
        linear, blocked = (ao.nv.NVFP4Tensor.to_nvfp4(x, per_tensor_scale=unit, is_swizzled_scales=b) for b in (0, 1))
        q = dlfp4.ScaledTensor.from_parts(linear.qdata, linear.scale, unit, format="nvfp4")
        assert raw_bytes(q.with_scale_layout("128x4").scales) == ao.octets(blocked.scale).tobytes()


def every_pair(name):
    """Codes and scales in which each code meets each scale."""
    length = FORMATS[name].block[1]
    codes = np.resize(np.arange(1 << BITS[FORMATS[name].element], dtype=np.uint8), max(256, length))
    return np.tile(codes, (256, 1)), np.repeat(np.arange(256, dtype=np.uint8)[:, None], 256 // length, 1)


def assert_values(ours, theirs):
    """Bits; one NaN is as good as another."""
    ours, theirs = ours.to_numpy(), native_cast(theirs.float().numpy(), ours.dtype.name)
    same = (codes_of(ours) == codes_of(theirs)) | (np.isnan(ours) & np.isnan(theirs))
    assert same.all(), f"{(~same).sum()} differ, first at {np.argwhere(~same)[0]}"


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", MX)
def test_values_of_mx(ao, name, dtype):
    codes, scales = every_pair(name)
    element = of_codes(codes, FORMATS[name].element)
    q = dlfp4.ScaledTensor.from_parts(
        dlfp4.pack(element) if BITS[FORMATS[name].element] < 8 else element, scales, format=name
    )
    bits, length = BITS[FORMATS[name].element], FORMATS[name].block[1]
    theirs = ao.elements[FORMATS[name].element]
    data = ao.torch.from_numpy(codes[:, ::2] | codes[:, 1::2] << 4 if bits == 4 else codes)
    if bits == 8:
        data = data.view(theirs)
    unit = ao.torch.from_numpy(scales).view(ao.torch.float8_e8m0fnu)
    assert_values(q.dequantize(dtype), ao.mx.to_dtype(data, unit, theirs, length, getattr(ao.torch, dtype)))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("unit", [None, 1.0, 0.0123, 2.0**-130, 3e38])
def test_values_of_nvfp4(ao, unit, dtype):
    codes, scales = every_pair("nvfp4")
    data = ao.torch.from_numpy(codes[:, ::2] | codes[:, 1::2] << 4)
    scales = ao.torch.from_numpy(scales).view(ao.torch.float8_e4m3fn)
    given = None if unit is None else ao.torch.tensor(unit)
    theirs = ao.nv.NVFP4Tensor(data, scales, 16, ao.torch.float32, given)
    q = dlfp4.ScaledTensor.from_parts(data, scales, unit, format="nvfp4")
    assert_values(q.dequantize(dtype), theirs.dequantize(getattr(ao.torch, dtype)))


def test_its_tensors_are_ours_without_a_copy(ao):
    x = make("normal", (64, 128))
    for name in ("mxfp4", "mxfp8_e4m3", "mxfp8_e5m2"):
        theirs = ao.mx.MXTensor.to_mx(ao.tensor(x), ao.elements[FORMATS[name].element])
        q = dlfp4.ScaledTensor.from_parts(theirs.qdata, theirs.scale, format=name)
        assert (q.data.data_ptr, q.scales.data_ptr) == (theirs.qdata.data_ptr(), theirs.scale.data_ptr())
        assert_values(q.dequantize(), theirs.dequantize())
    parts = dlfp4.quantize(ao.tensor(x), "nvfp4").to_torch()
    theirs = ao.nv.NVFP4Tensor(parts.data.view(ao.torch.uint8), parts.scales, 16, ao.torch.float32, parts.global_scale)
    assert_values(dlfp4.quantize(x, "nvfp4").dequantize(), theirs.dequantize())


# ---- asarray and to_torchao ------------------------------------------------------------------------------------------


def their_tensor(ao, name, x, swizzled=False, unit=None):
    if name == "nvfp4":
        unit = None if unit is None else ao.torch.tensor(unit)
        return ao.nv.NVFP4Tensor.to_nvfp4(ao.tensor(x), per_tensor_scale=unit, is_swizzled_scales=swizzled)
    return ao.mx.MXTensor.to_mx(
        ao.tensor(x), ao.elements[FORMATS[name].element], FORMATS[name].block[1], is_swizzled_scales=swizzled
    )


ITS_FORMATS = ["nvfp4", *MX]


@pytest.mark.parametrize("swizzled", [False, True])
@pytest.mark.parametrize("name", ITS_FORMATS)
def test_asarray_takes_its_tensors(ao, name, swizzled):
    if (name, swizzled) == ("mxfp4_16", True):
        pytest.skip("torchao counts swizzled scales as of blocks of 32")
    x = make("normal", (200, 256))
    for unit in (None, 0.01) if name == "nvfp4" else (None,):
        theirs = their_tensor(ao, name, x, swizzled, unit)
        q = dlfp4.asarray(theirs)
        assert (q.shape, q.format, q.axis) == ((200, 256), name, -1)
        assert q.scale_layout == ("128x4" if swizzled else "linear")
        assert_values(q.dequantize(), theirs.dequantize())
        assert q.scales.data_ptr == theirs.scale.data_ptr()
        if "mxfp6" in name:  # which is packed here
            with pytest.raises(
                BufferError, match=f"^MXTensor keeps {q.format.element} one a byte; .*copy=False forbids"
            ):
                dlfp4.asarray(theirs, copy=False)
        else:
            assert q.data.data_ptr == dlfp4.asarray(theirs, copy=False).data.data_ptr == theirs.qdata.data_ptr()
        if unit is not None:
            assert q.global_scale.data_ptr == theirs.per_tensor_scale.data_ptr()
        copied = dlfp4.asarray(theirs, copy=True)
        assert copied.data.data_ptr != q.data.data_ptr
        assert copied.dequantize().tolist() == q.dequantize().tolist()


@pytest.mark.parametrize("name", ITS_FORMATS)
def test_its_transposes(ao, name):
    x = make("normal", (64, 96))
    theirs = their_tensor(ao, name, x).t()
    q = dlfp4.asarray(theirs)
    assert (q.shape, q.axis) == ((96, 64), -2)
    assert_values(q.dequantize(), theirs.dequantize())
    back = q.to_torchao("float32")
    assert tuple(back.shape) == (96, 64)
    assert_values(q.dequantize(), back.dequantize())


@pytest.mark.parametrize("layout", ["linear", "128x4"])
@pytest.mark.parametrize("name", ITS_FORMATS)
def test_to_torchao(ao, name, layout):
    x = make("normal", (256, 128))
    q = dlfp4.quantize(ao.tensor(x), name, scale_layout=layout)
    theirs = q.to_torchao(ao.torch.float32)
    assert (tuple(theirs.shape), theirs.dtype) == ((256, 128), ao.torch.float32)
    assert theirs.is_swizzled_scales == (layout == "128x4")
    assert_values(q.dequantize(), theirs.dequantize())
    assert theirs.scale.data_ptr() == q.scales.data_ptr
    if "mxfp6" not in name:
        assert theirs.qdata.data_ptr() == q.data.data_ptr
    again = dlfp4.asarray(theirs)
    assert again.format == name
    assert raw_bytes(again.data) == raw_bytes(q.data)
    assert raw_bytes(again.scales) == raw_bytes(q.scales)
    assert q.to_torchao().dtype == ao.torch.bfloat16


def test_stacks_to_and_from(ao):
    q = dlfp4.quantize(make("normal", (3, 128, 64)), "mxfp8_e4m3")
    theirs = q.to_torchao("float32")
    assert tuple(theirs.shape) == (3, 128, 64)
    assert_values(q.dequantize(), theirs.dequantize())
    assert dlfp4.asarray(theirs).shape == (3, 128, 64)


def test_torchao_multiplies_what_is_ours(ao):
    x, w = make("normal", (32, 128)), make("normal", (64, 128), seed=1)
    theirs = dlfp4.quantize(w, "mxfp8_e4m3").to_torchao("float32")
    ours = dlfp4.quantize(w, "mxfp8_e4m3")
    given = dlfp4.quantize(x, "mxfp8_e4m3").to_torchao("float32")
    product = ao.torch.mm(given, theirs.t()).float().numpy()
    expected = dlfp4.matmul(dlfp4.quantize(x, "mxfp8_e4m3"), ours.mT).to_numpy()
    np.testing.assert_allclose(product, expected, rtol=1e-2, atol=1e-2)


def test_what_torchao_has_not(ao):
    x = make("normal", (128, 128))
    for name in ("fp8_128x128", "fp8_e4m3", "nvfp4_16x16"):
        q = dlfp4.quantize(x, name)
        with pytest.raises(ValueError, match=r"q\.to\('torchao'\)"):
            q.to_torchao()
        assert q.to("torchao").to_torchao().shape == (128, 128)
    with pytest.raises(ValueError, match="whole blocks"):
        dlfp4.quantize(make("normal", (4, 40)), "mxfp4", pad=True).to_torchao()
    with pytest.raises(TypeError, match="dequantize"):
        dlfp4.asarray(their_tensor(ao, "mxfp4", x), dtype="float32")


def test_files_of_torchao(ao, tmp_path):
    """As its own writer names the parts; scales in either order."""
    support = pytest.importorskip("torchao.prototype.safetensors.safetensors_support")
    save_file = pytest.importorskip("safetensors.torch").save_file
    x = ao.torch.randn(48, 64, dtype=ao.torch.bfloat16)
    nvfp4, mx = ao.nv.NVFP4Tensor.to_nvfp4, ao.mx.MXTensor.to_mx
    made = {
        "a.weight": nvfp4(x, per_tensor_scale=ao.torch.tensor(0.01)),
        "b.weight": nvfp4(x, per_tensor_scale=ao.torch.tensor(0.01), is_swizzled_scales=True),
        "c.weight": nvfp4(x),
        "d.weight": mx(x, ao.torch.float4_e2m1fn_x2, 32),
        "e.weight": mx(x, ao.torch.float8_e4m3fn, 32),
        "f.weight": mx(x, ao.torch.float8_e5m2, 32, is_swizzled_scales=True),
    }
    quantization = pytest.importorskip("torchao.quantization")
    for name, grain in (("h.weight", quantization.PerRow()), ("i.weight", quantization.PerTensor())):
        made[name] = quantization.Float8Tensor.from_hp(x, granularity=grain)
    parts, metadata = support.flatten_tensor_state_dict(made | {"g.bias": x[0]})
    save_file(parts, tmp_path / "a.safetensors", metadata)
    loaded = checkpoints.load(tmp_path / "a.safetensors")
    assert loaded.keys() == {*made, "g.bias"}
    for name, theirs in made.items():
        expected = theirs.dequantize(ao.torch.float32).numpy()
        np.testing.assert_array_equal(loaded[name].dequantize().to_numpy(), expected)
    assert checkpoints.inspect(tmp_path).convention == "torchao"


@pytest.mark.parametrize("shape", [(64, 64), (2, 32, 64), (2, 2, 64)])
def test_a_global_scale_a_row_is_refused(ao, shape):
    q = dlfp4.quantize(make("normal", shape), "nvfp4", recipe=dlfp4.Recipe(global_scale_per="row"))
    with pytest.raises(ValueError, match="has a global scale per row, and torchao's tensors have one per matrix"):
        q.to_torchao()
    assert q.to(dlfp4.Recipe()).to_torchao().shape == shape
