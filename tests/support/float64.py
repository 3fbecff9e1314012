"""Each format's operations against float64, of whatever rows the table of formats has: a program, and its parts.

A value is what ml_dtypes decodes it to, and sums are NumPy's; no rule is shared with the library or block_reference.py.
What is exact must be equal, and sums must keep matmul's error bound.
"""

import functools
import itertools
import json

import ml_dtypes
import numpy as np
from reference import native_cast

import dlfp4

FLOATS = ["float32", "bfloat16", "float16"]
FORMATS = dlfp4.formats()
SHAPES = [(48, 256), (33, 300), (300, 520)]  # the last of several tiles either way
TINY = 2.0**-120  # what sums of float32 may lose beside their bound


def values(shape, seed=0, dtype="float32"):
    """Of different magnitudes from block to block, some of them zero."""
    rng = np.random.default_rng([seed, *shape])
    blocks = np.ldexp(1.0, np.repeat(rng.integers(-6, 7, (shape[0], -(-shape[1] // 16))), 16, 1)[:, : shape[1]])
    return native_cast((rng.normal(size=shape) * blocks * (rng.random(shape) > 0.1)).astype(np.float32), dtype)


# ---- what a format says --------------------------------------------------------------------------------------------


def lines_of(format, axis, array):
    """The array line by line, as the blocks run; bytes along axis -2 lie across their lines."""
    return array.T if axis == -2 and format.element.itemsize * 8 == bits_of(format.element) else array


def bits_of(dtype):
    return (ml_dtypes.iinfo if has_integers(dtype) else ml_dtypes.finfo)(dtype).bits


def has_integers(dtype):
    return "int" in dtype.name


def largest_of(dtype):
    """What a block's largest magnitude becomes, over its scale: in the middle of the ends of int4."""
    return 7.5 if has_integers(dtype) else float(ml_dtypes.finfo(dtype).max)


def scale_of_each(format, scales, shape):
    """The scale of each element of lines of that shape, in float64 but for a product that float32 rounds."""
    if format.block is None:
        return np.broadcast_to(scales, shape)
    lines, length = format.block
    length = shape[1] if length is None else length
    rows = scales if format.repeats_scales else np.repeat(scales, lines, 0)
    return np.repeat(rows, length, 1)[: shape[0], : shape[1]]


def parts_of(q):
    """Elements and the scale of each, line by line, in float64."""
    parts = q.to_numpy()
    elements = lines_of(q.format, q.axis, parts.data).astype(np.float64)
    scales = lines_of(q.format, q.axis, parts.scales).astype(np.float32)
    if parts.global_scale is not None:
        scales = scales * parts.global_scale
    if q.zero_points is not None:
        elements = elements - scale_of_each(q.format, parts.zero_points.astype(np.float64), elements.shape)
    return elements, scale_of_each(q.format, scales.astype(np.float64), elements.shape)


def decoded(x):
    """An operand's values in float64."""
    if not isinstance(x, dlfp4.ScaledTensor):
        return np.asarray(x).astype(np.float64)
    elements, scales = parts_of(x)
    lines = elements * scales
    return lines[:, : x.shape[-1]] if x.axis == -1 else lines[:, : x.shape[-2]].T


# ---- quantize, dequantize ------------------------------------------------------------------------------------------


def largest_of_each(format, lines):
    """The largest magnitude of each element's block."""
    if format.block is None:
        return np.full(lines.shape, np.abs(lines).max())
    if format.block[1] is None:
        return np.repeat(np.abs(lines).max(1, keepdims=True), lines.shape[1], 1)
    step = format.block
    whole = np.zeros([-(-extent // size) * size for extent, size in zip(lines.shape, step, strict=True)])
    whole[: lines.shape[0], : lines.shape[1]] = np.abs(lines)
    tiles = whole.reshape(whole.shape[0] // step[0], step[0], whole.shape[1] // step[1], step[1])
    return np.broadcast_to(tiles.max((1, 3), keepdims=True), tiles.shape).reshape(whole.shape)


def power_below(x):
    """The power of two that is not above x > 0."""
    return np.ldexp(1.0, np.frexp(x)[1] - 1)


def wrong_scales(format, amax, scales, unit):
    """Whether a block's scale is not what its kind makes of the largest magnitude; none of a block of zeros."""
    largest = largest_of(format.element)
    some = amax > 0
    amax = np.where(some, amax, 1)
    if format.kind == "power":
        return some & (scales != power_below(amax) / power_below(largest))
    if has_integers(format.element):
        return some & (scales != (amax / largest).astype(np.float32))
    if format.kind == "largest":
        quotient = (largest / amax).astype(np.float32)  # as float32 divides: float64 has bits enough to round again
        encode = quotient if format.block is None or format.scales_lines else power_below(quotient)
        return some & (scales != (1 / encode).astype(np.float32))
    kind = ml_dtypes.finfo(format.scale)
    wanted = np.minimum(amax / largest / unit, float(kind.max))
    half = np.maximum(power_below(wanted) * float(kind.eps), float(kind.smallest_subnormal)) / 2
    return some & ~(abs(scales / unit - wanted) <= half * (1 + 2.0**-18))


def wrong_elements(format, lines, elements, scales):
    """Whether an element is not the one next to the value over its scale; where the scale is rounded, two may be."""
    ends = (-8, 7) if has_integers(format.element) else (-largest_of(format.element), largest_of(format.element))
    with np.errstate(divide="ignore", invalid="ignore"):
        exact = np.clip(np.where(scales > 0, lines / scales, 0), *ends)
    if has_integers(format.element):
        nearest = np.rint(exact)
    else:
        nearest = exact.astype(np.float32).astype(format.element).astype(np.float64)
    slack = abs(exact) * 2.0**-21
    return (scales > 0) & ~(abs(elements - exact) <= abs(nearest - exact) + slack)


def check_quantize(format):
    for dtype, axis, shape in itertools.product(FLOATS, (-1, -2), SHAPES):
        x = values(shape, 1, dtype)
        q = dlfp4.quantize(x, format, axis=axis, pad=True)
        lines = x.astype(np.float64) if axis == -1 else x.astype(np.float64).T
        elements, scales = parts_of(q)
        there = np.s_[: lines.shape[0], : lines.shape[1]]
        unit = float(q.global_scale) if format.has_global_scale else 1
        amax = largest_of_each(format, lines)[there]
        yield (dtype, axis, shape, "scales"), wrong_scales(format, amax, scales[there], unit)
        yield (dtype, axis, shape, "elements"), wrong_elements(format, lines, elements[there], scales[there])
        if format.has_global_scale:
            reach = float(ml_dtypes.finfo(format.element).max) * float(ml_dtypes.finfo(format.scale).max)
            yield (dtype, axis, shape, "unit"), not abs(unit - abs(lines).max() / reach) <= unit * 2.0**-24


def check_dequantize(format):
    for dtype, axis, shape in itertools.product(FLOATS, (-1, -2), SHAPES):
        q = dlfp4.quantize(values(shape, 2), format, axis=axis, pad=True)
        expected = native_cast(decoded(q).astype(np.float32), dtype)
        yield (dtype, axis, shape), q.dequantize(dtype).to_numpy() != expected


# ---- dot, matmul ---------------------------------------------------------------------------------------------------


def beyond_bound(got, a, b):
    """Whether a product of two float64 matrices is not within the bound."""
    exact, magnitude = a @ b, abs(a) @ abs(b)
    return ~(abs(got.to_numpy().astype(np.float64) - exact) <= (a.shape[-1] + 1) * 2.0**-24 * magnitude + TINY)


@functools.cache
def quantized(name, shape, seed, axis=-1):
    """One of a format, and its values in float64; along axis -2 of the transpose."""
    x = values(shape, seed) if axis == -1 else np.ascontiguousarray(values(shape, seed).T)
    q = dlfp4.quantize(x, name, axis=axis, pad=True)
    return q, decoded(q)


@functools.cache
def cast(name, shape, seed):
    """One of a float type, and its values in float64."""
    x = native_cast(values(shape, seed), name)
    return x, decoded(x)


def operands(shape, seed):
    """Of floats and of every format, by name: operand and values."""
    for name in (*FLOATS, "float8_e4m3fn"):
        yield name, *cast(name, shape, seed)
    for name in FORMATS:
        yield name, *quantized(name, shape, seed)


def check_dot(format):
    for shape in [(16, 1), (16, 15), (16, 48), (16, 256), (16, 1040)]:
        q, left = quantized(format.name, shape, 3)
        for name, x, right in operands(shape, 4):
            bound = (shape[1] + 1) * 2.0**-24 * (abs(left) * abs(right)).sum(-1) + TINY
            for a, b in ((q, x), (x, q)):
                got = dlfp4.vecdot(a, b).to_numpy().astype(np.float64)
                yield (name, shape), ~(abs(got - (left * right).sum(-1)) <= bound)


def check_matmul(format):
    n = 40  # more than the columns of a tile
    for m, k in [(1, 1100), (2, 48), (7, 300), (40, 300)]:
        w, right = quantized(format.name, (n, k), 5)
        across, right_across = quantized(format.name, (n, k), 6, axis=-2)
        for name, a, left in operands((m, k), 7):
            yield (name, m, k), beyond_bound(dlfp4.matmul(a, w.mT, out_dtype="float32"), left, right.T)
            yield (name, m, k, "across"), beyond_bound(dlfp4.matmul(a, across, out_dtype="float32"), left, right_across)
        if format.element.name == "float4_e2m1fn":
            a, left = cast("float32", (m, k), 8)
            got = dlfp4.matmul(a, w.mT, activation="int8").to_numpy().astype(np.float64)
            yield ("int8 activations", m, k), ~(abs(got - left @ right.T) <= rounding_to_int8(left, right.T))


def rounding_to_int8(a, w):
    """What rounding each 32 elements of a's rows to int8 may change of a product."""
    blocks = np.zeros((a.shape[0], -(-a.shape[1] // 32) * 32))
    blocks[:, : a.shape[1]] = abs(a)
    steps = np.repeat(blocks.reshape(a.shape[0], -1, 32).max(-1), 32, 1)[:, : a.shape[1]] / 254
    return steps * (1 + 2.0**-20) @ abs(w) + a.shape[1] * 2.0**-24 * (abs(a) @ abs(w))


CHECKS = {"quantize": check_quantize, "dequantize": check_dequantize, "dot": check_dot, "matmul": check_matmul}


def failures(check, format):
    """The cases of an operation that are wrong, and how many elements of each."""
    cases = [(case, int(np.sum(wrong))) for case, wrong in CHECKS[check](format)]
    assert cases
    return [(*map(str, case), count) for case, count in cases if count]


def run(check):
    """Print the level, and what is wrong of each format."""
    dlfp4.set_num_threads(1)
    print(dlfp4.cpu_isa())
    print(json.dumps({name: failures(check, format) for name, format in FORMATS.items()}))
