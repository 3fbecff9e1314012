"""Block scaling in plain NumPy: what quantize and dequantize must give, and where scales and weights lie.

Which formats there are is asked of the library, whose table is the one place that says so; all else is written from
their rules, without it. A tensor counts as a matrix of lines, its rows or its columns, along which blocks run.
Arithmetic is np.float32 in the order of the formulas: NumPy neither contracts nor flushes. Elements are rounded by the
search of reference.py, float8 scales by ml_dtypes.
"""

import math
from typing import NamedTuple

import ml_dtypes
import numpy as np

import dlfp4

from .reference import BITS, LOW, codec, codes_of, dtype_of, native_cast, of_codes, packed_bytes, raw_bytes

F = np.float32
LARGEST_FLOAT = np.finfo(F).max


class Format(NamedTuple):
    element: str
    scale: str
    block: tuple[int, int | None] | None  # lines, elements of a line (None: all of them); None: the whole tensor
    kind: str
    repeats: bool  # each line of a block has a scale of its own


# Differ from rows beside them in the length of blocks alone: test_formats.py suffices.
ALIKE = ("int4_g64", "int4_g128", "uint4_g32", "uint4_g64")
FP4, E4M3, E5M2 = "float4_e2m1fn", "float8_e4m3fn", "float8_e5m2"
FORMATS = {
    row.name: Format(row.element.name, row.scale.name, row.block, row.kind, row.repeats_scales)
    for row in dlfp4.formats().values()
    if row.name not in ALIKE
}
TWO_LEVEL, MX, FLOAT_SCALED = (
    [n for n, f in FORMATS.items() if f.kind == kind] for kind in ("two_level", "power", "largest")
)
INTEGERS = [name for name in FLOAT_SCALED if "int" in FORMATS[name].element]
FP8 = [name for name in FLOAT_SCALED if name not in INTEGERS]
MIDDLE = {"int4": 0, "uint4": 8}  # the zero points of symmetric codes
WHOLE = [name for name, format in FORMATS.items() if format.block is None]  # one scale a tensor
LINES = [name for name, format in FORMATS.items() if format.block and format.block[1] is None]  # one a line
BYTEWISE = [name for name, format in FORMATS.items() if BITS[format.element] == 8]
RULES = ["floor", "rceil", "ceil", "even"]

LARGEST = {name: float(ml_dtypes.finfo(name).max) for name in LOW}
EMAX = {name: math.frexp(largest)[1] - 1 for name, largest in LARGEST.items()}
MANTISSA = {name: ml_dtypes.finfo(name).nmant for name in LOW}

RECIPES = {
    "ocp": {"rule": "floor"},
    "nvidia": {"rule": "rceil"},
    "aiter": {"rule": "even"},
    "rocm": {"rule": "even"},
    "transformer-engine-rocm": {
        "rule": "even",
        "rounding": "nearest_away",
        "zero_scale": 127,
        "keeps_negative_zero": False,
    },
}


class Quantized(NamedTuple):
    """Codes and scales line by line: scales have a row a line, or a row a group of lines that share them."""

    format: str
    axis: int
    codes: np.ndarray  # uint8 (lines, stored length)
    scaled: np.ndarray  # float32, what was rounded to the codes
    scales: np.ndarray  # float32, or the codes of smaller types
    global_scale: np.float32 | None

    @property
    def transposed(self):
        """Bytes stay where they are, whatever the axis; what is packed lies line by line."""
        return self.axis == -2 and self.format in BYTEWISE

    def data(self):
        """Shape and bytes of the elements in memory."""
        codes = self.codes.T if self.transposed else self.codes
        return codes.shape, packed_bytes(codes, BITS[FORMATS[self.format].element])

    def stored_scales(self, layout="linear", fill=0):
        """The scales in memory."""
        if layout != "linear":
            return arrange(self.scales, layout, fill)
        return (self.scales.T if self.transposed else self.scales).copy(order="C")


# ---- quantize ------------------------------------------------------------------------------------------------------


def lines_of(x, axis):
    """The float32 matrix whose rows the blocks run along."""
    matrix = native_cast(np.asarray(x), "float32").reshape(math.prod(x.shape[:-1]), x.shape[-1])
    return matrix if axis == -1 else np.ascontiguousarray(matrix.T)


def tiles_of(lines, block, step=1):
    """(groups of lines, lines, blocks of a line, elements), the last of each completed with zeros, a line of one block
    to a multiple of `step`: 1 or 2."""
    if block is None:
        return lines.reshape(1, lines.shape[0], 1, lines.shape[1])
    if block[1] is None:
        lines = np.pad(lines, ((0, 0), (0, lines.shape[1] % step)))
        return lines.reshape(lines.shape[0], 1, min(lines.shape[1], 1), lines.shape[1])
    rows, columns = (-(-extent // step) for extent, step in zip(lines.shape, block, strict=True))
    whole = np.zeros((rows * block[0], columns * block[1]), F)
    whole[: lines.shape[0], : lines.shape[1]] = lines
    return whole.reshape(rows, block[0], columns, block[1])


def middles(name, shape):
    """The zero points that go with symmetric codes, as `from_parts` takes them."""
    zero = MIDDLE.get(FORMATS[name].element, 0)
    return {"zero_points": np.full(shape, zero, np.uint8)} if zero else {}


def quantize(
    x, name, axis=-1, *, global_scale=None, rule="floor", rounding="nearest_even", pow2=None, eps=0.0, zero_scale=0,
    keeps_negative_zero=True, scale_dtype="float32",
):  # fmt: skip
    """All of it, of an array of any float type and shape; incomplete blocks are completed with zeros."""
    format, lines = FORMATS[name], lines_of(x, axis)
    tiles = tiles_of(lines, format.block, 2 if name in INTEGERS else 1)
    magnitude = np.abs(tiles).max((1, 3), initial=0)  # a block's; NaN where there is one
    unit = None
    with np.errstate(all="ignore"):
        if format.kind == "two_level":
            encode, unit = two_level_unit(lines, format, global_scale)
            scales, multiplier = two_level(magnitude, format, encode)
        elif format.kind == "power":
            scales, multiplier = power(magnitude, format.element, rule, zero_scale)
        elif name in INTEGERS:
            scales, divisor = integers(magnitude, F(eps), scale_dtype)
            scaled = tiles / divisor[:, None, :, None]
        else:
            pow2 = name not in (*WHOLE, *LINES) if pow2 is None else pow2
            scales, multiplier = largest(magnitude, F(LARGEST[format.element]), F(eps), pow2, global_scale, scale_dtype)
        if name not in INTEGERS:
            scaled = tiles * multiplier[:, None, :, None] + F(-0.0 if keeps_negative_zero else 0.0)
    if format.kind != "largest":
        scaled = np.where(np.isfinite(magnitude)[:, None, :, None], scaled, F(0))
    length = lines.shape[1] if name in FP8 else tiles.shape[2] * tiles.shape[3]  # may end within a block
    scaled = scaled.reshape(-1 if tiles.size else len(lines), tiles.shape[2] * tiles.shape[3])[: len(lines), :length]
    scales = np.repeat(scales, format.block[0], 0)[: len(lines)] if format.repeats else scales
    if name in INTEGERS:
        codes = codes_of_integers(scaled, rounding, MIDDLE[format.element])
    else:
        codes = codec(format.element).round(scaled, rounding)
    return Quantized(name, axis, codes, scaled, scales.reshape(()) if format.block is None else scales, unit)


def finite(quotient):
    return np.minimum(quotient, LARGEST_FLOAT)


def two_level_unit(lines, format, given):
    """The scales of the whole tensor: encode, decode."""
    if given is not None:
        return finite(F(1) / F(given)), stored(F(given))
    largest = np.abs(lines).max(where=np.isfinite(lines), initial=0)
    reach = F(LARGEST[format.element] * LARGEST[format.scale])  # 2688 of NVFP4
    return (F(1), F(1)) if largest == 0 else (finite(reach / largest), stored(largest / reach))


def stored(decode):
    """A decode scale that undoes the largest encode scale there is, or a larger one."""
    return np.maximum(decode, F(1) / LARGEST_FLOAT)


def two_level(magnitude, format, encode):
    wanted = finite(magnitude * (encode * F(1 / LARGEST[format.element])))
    scale = np.minimum(wanted, F(LARGEST[format.scale])).astype(dtype_of(format.scale))
    multiplier = finite(F(1) / (scale.astype(F) * (F(1) / encode)))
    return np.where(np.isfinite(magnitude), codes_of(scale), codec(format.scale).nans[0]), multiplier


def exponent_of(magnitude, element, rule):
    """Exact: of a = mantissa * 2**exponent, with the mantissa in [1/2, 1)."""
    mantissa, exponent = np.frexp(magnitude.astype(np.float64))
    if rule == "floor":
        return exponent - 1 - EMAX[element]
    if rule == "ceil":
        return np.where(mantissa == 0.5, exponent - 1, exponent) - EMAX[element]
    if rule == "rceil":
        of_largest, exponent_of_largest = np.frexp(LARGEST[element])
        return exponent - exponent_of_largest + (mantissa > of_largest)
    rounded = (magnitude.view(np.uint32) + np.uint32(1 << (22 - MANTISSA[element]))) >> 23
    return rounded.astype(int) - 127 - EMAX[element]


def power(magnitude, element, rule, zero_scale):
    exponent = np.clip(exponent_of(np.where(np.isfinite(magnitude), magnitude, F(0)), element, rule), -127, 127)
    codes = np.where(magnitude == 0, zero_scale, np.where(np.isfinite(magnitude), exponent + 127, 0xFF))
    return codes.astype(np.uint8), np.ldexp(F(1), -exponent)


def integers(magnitude, eps, scale_dtype):
    """As compressed-tensors: a / 7.5, or the last place of 1; what is not finite makes NaN."""
    magnitude = np.where(magnitude < eps, eps, magnitude)
    kind = ml_dtypes.finfo(scale_dtype)
    scales = np.minimum((magnitude / F(7.5)).astype(scale_dtype), kind.max)
    scales = np.where(scales == 0, kind.eps, scales).astype(F)
    scales[~np.isfinite(magnitude)] = np.nan
    return scales, scales


ROUNDED = {
    "nearest_even": np.rint,
    "nearest_away": lambda x: np.trunc(x + np.copysign(0.5, x)),
    "nearest_zero": lambda x: np.copysign(np.ceil(np.abs(x) - 0.5), x),
    "toward_zero": np.trunc,
}


def codes_of_integers(scaled, rounding, middle):
    """The codes of floats rounded to int4; NaN is 0."""
    exact = np.clip(np.nan_to_num(scaled.astype(np.float64), posinf=9, neginf=-9), -9, 9)
    return (np.clip(ROUNDED[rounding](exact), -8, 7).astype(np.int8) + middle).astype(np.uint8) & 15


def largest(magnitude, largest_element, eps, pow2, given, scale_dtype):
    if given is not None:
        return np.full(magnitude.shape, stored(F(given))), np.full(magnitude.shape, finite(F(1) / F(given)))
    magnitude = np.where(magnitude < eps, eps, magnitude)
    encode = finite(largest_element / magnitude)
    encode = np.where((magnitude == 0) | ~np.isfinite(magnitude), F(1), encode)
    if pow2:
        encode = (encode.view(np.uint32) & np.uint32(0xFF800000)).view(F)
    if scale_dtype in ("float32", "float8_e8m0fnu"):
        return F(1) / encode, encode
    kind = ml_dtypes.finfo(scale_dtype)
    decode = np.clip(F(1) / encode, F(kind.smallest_subnormal), F(kind.max)).astype(scale_dtype).astype(F)
    return decode, finite(F(1) / decode)


# ---- dequantize ----------------------------------------------------------------------------------------------------


def dequantize(codes, scales, name, dtype="float32", global_scale=None):
    """The values line by line, of codes and scales as `Quantized` has them."""
    format = FORMATS[name]
    elements = native_cast(of_codes(codes, format.element), "float32")
    if name in INTEGERS:
        elements = elements - F(MIDDLE[format.element])
    scale = scales if format.scale == "float32" else native_cast(of_codes(scales, format.scale), "float32")
    with np.errstate(all="ignore"):
        scale = scale if global_scale is None else scale * F(global_scale)
        product = elements * spread(scale, codes.shape, name)
    nan = np.array(0x7FC00000, np.uint32).view(F)
    return native_cast(np.where(np.isnan(elements), elements, np.where(np.isnan(product), nan, product)), dtype)


def spread(scale, shape, name):
    """Each element's scale."""
    if FORMATS[name].block is None:
        return scale
    lines, length = FORMATS[name].block
    length = shape[1] if length is None else length
    rows = scale if FORMATS[name].repeats else np.repeat(scale, lines, 0)[: shape[0]]
    return np.repeat(rows, length, 1)[:, : shape[1]]


def values_of(q, shape, dtype="float32"):
    """A tensor of that shape from `quantize`."""
    lines = dequantize(q.codes, q.scales, q.format, dtype, q.global_scale)
    lines = lines[:, : shape[-1] if q.axis == -1 else math.prod(shape[:-1])]
    return np.ascontiguousarray(lines if q.axis == -1 else lines.T).reshape(shape)


# ---- layouts -------------------------------------------------------------------------------------------------------

TILES = {"linear": (1, 1), "128x4": (128, 4), "8x4": (8, 4), "aiter": (256, 8)}  # what is padded to


def padded_shape(shape, layout):
    return tuple(-(-extent // tile) * tile for extent, tile in zip(shape, TILES[layout], strict=True))


def offsets(shape, layout):
    """Where each scale of a matrix of that shape lies, counted in scales."""
    i, j = np.ogrid[: shape[0], : shape[1]]
    columns = padded_shape(shape, layout)[1]
    if layout == "linear":
        return i * columns + j
    if layout == "128x4":
        return ((i // 128) * (columns // 4) + j // 4) * 512 + (i % 32) * 16 + ((i % 128) // 32) * 4 + j % 4
    if layout == "8x4":
        return ((i // 8) * (columns // 4) + j // 4) * 32 + (i % 8) * 4 + j % 4
    in_tile = (j % 4) * 64 + (i % 16) * 4 + ((j % 8) // 4) * 2 + (i % 32) // 16
    return (i // 32) * 32 * columns + (j // 8) * 256 + in_tile


def arrange(scales, layout, fill=0):
    """A matrix of scales in a layout; the padding holds `fill`."""
    shape = padded_shape(scales.shape, layout)
    memory = np.full(math.prod(shape), fill, scales.dtype)
    memory[offsets(scales.shape, layout)] = scales
    return memory.reshape(shape)


def shuffled_weight(octets):
    """AITER's (16, 16) shuffle of a matrix of bytes."""
    i, j = np.ogrid[: octets.shape[0], : octets.shape[1]]
    memory = np.empty(octets.size, np.uint8)
    memory[(i // 16) * 16 * octets.shape[1] + (j // 16) * 256 + (i % 16) * 16 + j % 16] = octets
    return memory.reshape(octets.shape)


# ---- inputs --------------------------------------------------------------------------------------------------------


def _exponents(rng, shape):
    """A power of two for each 16 elements, over all of float32's range."""
    blocks = rng.integers(-149, 122, (*shape[:-1], -(-shape[-1] // 16)))
    return np.ldexp(1.0, np.repeat(blocks, 16, -1)[..., : shape[-1]])


def _with_special(rng, shape, *special):
    """Some values of a normal distribution replaced."""
    values = rng.normal(size=shape)
    return np.where(rng.random(shape) < 0.01, rng.choice(special, shape), values)


def _one_hot(rng, shape):
    """One element of each 97 is not zero, so that blocks have one or none; zeros have signs."""
    hot = np.arange(math.prod(shape)).reshape(shape) % 97 == 5
    return np.where(hot, rng.normal(size=shape), rng.choice([0.0, -0.0], shape))


INPUTS = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "uniform": lambda rng, shape: rng.uniform(-1, 1, shape),
    "cauchy": lambda rng, shape: rng.standard_cauchy(shape),
    "lognormal": lambda rng, shape: rng.lognormal(0, 4, shape) * rng.choice([-1, 1], shape),
    "scaled blocks": lambda rng, shape: rng.normal(size=shape) * _exponents(rng, shape),
    "few mantissas": lambda rng, shape: rng.integers(-16, 17, shape) * _exponents(rng, shape),  # ties
    "zeros": lambda rng, shape: rng.choice([0.0, -0.0], shape),
    "one-hot": _one_hot,
    "largest": lambda rng, shape: rng.choice([-1, 1], shape) * np.inf,  # clamped below
    "subnormal": lambda rng, shape: rng.integers(-4, 5, shape) * 2.0**-149 * rng.choice([1, 2**15, 2**20], shape),
    "NaN": lambda rng, shape: _with_special(rng, shape, np.nan, -np.nan),
    "infinite": lambda rng, shape: _with_special(rng, shape, np.inf, -np.inf, np.nan),
    "any bits": lambda rng, shape: rng.integers(0, 1 << 32, shape, dtype=np.uint64).astype(np.uint32).view(F),
}


def make(kind, shape, dtype="float32", seed=0):
    """An input; what float16 cannot hold is infinite in it, as in life, but for the largest values."""
    rng = np.random.default_rng([seed, *shape])
    values = native_cast(INPUTS[kind](rng, shape), "float64")
    if kind == "largest":
        values = np.clip(values, -float(ml_dtypes.finfo(dtype).max), float(ml_dtypes.finfo(dtype).max))
    return native_cast(native_cast(values, "float32"), dtype)


# ---- comparison ----------------------------------------------------------------------------------------------------


def assert_equal(q, expected, layout="linear", fill=0):
    """Every buffer of a ScaledTensor: type, shape and bytes."""
    kind = (expected.format, expected.axis, layout)
    assert (q.format, q.axis, q.scale_layout) == kind, f"{q}, not {kind}"
    scales = expected.stored_scales(layout, fill)
    assert_holds(q.scales, scales.shape, FORMATS[expected.format].scale, scales.tobytes(), f"scales of {kind}")
    assert_holds(q.data, expected.data()[0], FORMATS[expected.format].element, expected.data()[1], f"data of {kind}")
    zeros = MIDDLE.get(FORMATS[expected.format].element, 0)
    assert (q.zero_points is None, q.biases) == (not zeros, None), f"zero points of {kind}"
    if zeros:
        assert_holds(q.zero_points, scales.shape, "uint8", bytes([zeros]) * scales.size, kind)
    assert (q.global_scale is None) == (expected.global_scale is None), f"global scale of {kind}"
    if expected.global_scale is not None:
        assert_holds(q.global_scale, (), "float32", expected.global_scale.tobytes(), f"global scale of {kind}")


def assert_holds(tensor, shape, dtype, expected, what):
    """One buffer; the message has the first places that differ: index, what is there, what should be."""
    found, wanted = (tensor.shape, tensor.dtype.name), (shape, dtype)
    assert found == wanted, f"{what}: {found}, not {wanted}"
    unit = f"u{dtype_of(dtype).itemsize}"
    got, wanted = np.frombuffer(raw_bytes(tensor), unit), np.frombuffer(expected, unit)
    assert len(got) == len(wanted), f"{what}: {got.nbytes} bytes, not {wanted.nbytes}"
    wrong = np.flatnonzero(got != wanted)
    some = [(int(i), hex(got[i]), hex(wanted[i])) for i in wrong[:5]]
    assert not len(wrong), f"{what}: {len(wrong)} of {len(got)} differ: {some}"


def same(a, b):
    """Whether two ScaledTensors hold the same bytes."""
    parts = [
        [None if t is None else raw_bytes(t) for t in (q.data, q.scales, q.global_scale, q.zero_points, q.biases)]
        for q in (a, b)
    ]
    return parts[0] == parts[1]


def divides(shape, name, axis):
    """Whether a format takes a shape without padding."""
    block = FORMATS[name].block
    if name in FP8:
        return True
    lines = (math.prod(shape[:-1]), shape[-1])[:: -1 if axis == -2 else 1]
    return all(extent % (step or 2) == 0 for extent, step in zip(lines, block, strict=True))
