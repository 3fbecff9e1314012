"""4-bit integers as other software packs them into words: compressed-tensors, GPTQ, AWQ and MLX.

A row of :mod:`dlfp4.spellings` names one of the packings here, and the parts. Each reads them to a ScaledTensor, or
None where they are something else, and writes them again with the same bytes.

Sources: compressed-tensors 0.20 (``pack-quantized``), AutoGPTQ 0.7.1, AutoAWQ 0.2.9, mlx 0.32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

import dlfp4
from dlfp4 import ScaledTensor, Tensor
from dlfp4._core import _home_of
from dlfp4.show import summary

Array: TypeAlias = npt.NDArray[Any]
Found: TypeAlias = Mapping[str, Tensor]

LENGTHS = (32, 64, 128)  # of groups
FLOAT_SCALES = ("float32", "bfloat16", "float16")
MIDDLE = 8  # the zero point of symmetric codes
IN_WORD = 8  # codes of a word
BOTH = 0x88  # turns the codes of a byte from int4 to uint4, and back
MOST_CODE, MOST_CODE_OF_TWO = 15, 3  # of 4 bits and of 2
LEAST_STEPS, MOST_STEPS = 4.7, 44.0  # between 3 and 7.5, and between 15 and 127.5, as far from both by their ratio
SAMPLE = 1 << 20  # words that tell how many bits MLX's codes have


@dataclass(frozen=True)
class Packing:
    """How parts lie.

    Attributes
    ----------
    read : callable
        Makes a ScaledTensor of the parts by their suffixes, "data" and "scales" among them; None where they do not fit.
    write : callable
        Makes these parts of a matrix, or of a stack of them; ValueError where they do not hold it.
    """

    read: Callable[[Found], ScaledTensor | None]
    write: Callable[[ScaledTensor], dict[str, Tensor]]


# ---- Codes


def on_host(x: Tensor) -> Array:
    """A part as an array, shared where it lies on the host."""
    return x.to_device("cpu").to_numpy()


def as_floats(*parts: Tensor) -> list[Array]:
    """Scales and biases as arrays of float32, in which each is exact."""
    return [on_host(dlfp4.cast(part, "float32")) for part in parts]


def unpacked(octets: Array) -> Array:
    """The two codes of each byte, the low one first."""
    codes: Array = np.stack((octets & 15, octets >> 4), -1).reshape((*octets.shape[:-1], octets.shape[-1] * 2))
    return codes


def packed(codes: Array) -> Array:
    """Codes in pairs, each pair in a byte, the first code in the low bits."""
    octets: Array = codes[..., ::2] | codes[..., 1::2] << np.uint8(4)
    return octets


def bytes_of(words: Array) -> Array:
    """The bytes of words of 32 bits along the last axis."""
    octets: Array = np.ascontiguousarray(words).view(np.uint8)
    return octets


def words_of(octets: Array, dtype: str = "int32") -> Array:
    """Bytes as words of 32 bits along the last axis."""
    words: Array = np.ascontiguousarray(octets).view(dtype)
    return words


def turned(x: Array) -> Array:
    """The last two dimensions exchanged, in tiles: four times as fast as NumPy for bytes."""
    return dlfp4.asarray(x).mT.copy().to_numpy()


def make(element: str, octets: Any, scales: Tensor, **offsets: Any) -> ScaledTensor | None:
    """The tensor of codes in rows and a scale a group, and offsets, too; None where groups have another length."""
    length = octets.shape[-1] * 2
    fits = scales.dtype.name in FLOAT_SCALES and scales.ndim > 0 and scales.shape[:-1] == octets.shape[:-1]
    groups = scales.shape[-1] if fits else 0
    if not groups or any(part.shape != scales.shape for part in offsets.values()):
        return None
    group = length // groups
    if groups > 1 and (group not in LENGTHS or group * groups != length):
        return None
    group = group if group in LENGTHS else 0  # a line
    return ScaledTensor.from_parts(
        octets,
        scales,
        format=f"{element}_g{group}" if group else f"{element}_row",
        shape=(*octets.shape[:-1], length),
        **offsets,
    )


def octets_of(q: ScaledTensor) -> Array:
    """Codes as uint4, two a byte, in the tensor's leading dimensions."""
    octets = on_host(q.data.view("uint8"))
    if q.format.element.name == "int4":
        octets = octets ^ np.uint8(BOTH)
    return octets.reshape((*q.shape[:-1], octets.shape[-1]))


def of_groups(q: ScaledTensor, part: Tensor) -> Array:
    """What there is one a group of, in the tensor's leading dimensions."""
    return on_host(part).reshape((*q.shape[:-1], part.shape[-1]))


def zeros_of(q: ScaledTensor, who: str) -> Array:
    """Zero points of codes as uint4."""
    if q.biases is not None:
        raise ValueError(f"{who} stores zero points, and {summary(q)} has biases")
    shift = MIDDLE if q.format.element.name == "int4" else 0
    if q.zero_points is None:
        return np.full((*q.shape[:-1], q.scales.shape[-1]), shift, np.int16)
    return of_groups(q, q.zero_points).astype(np.int16) + np.int16(shift)


def in_four_bits(zeros: Array, who: str) -> Array:
    """Zero points as a convention can store them."""
    if zeros.min(initial=0) < 0 or zeros.max(initial=0) > 15:
        raise ValueError(f"{who} stores zero points from 0 to 15, and there are some beyond")
    return zeros.astype(np.uint8)


def scales_of(q: ScaledTensor) -> Array:
    """Scales in the tensor's leading dimensions."""
    if q.scales.dtype.name not in FLOAT_SCALES:
        raise ValueError(f"scales are stored as floats of 16 or 32 bits, and those of {summary(q)} as {q.scales.dtype}")
    return of_groups(q, q.scales)


def whole_words(q: ScaledTensor, axis: int, who: str) -> None:
    """ValueError unless codes along an axis fill words."""
    if q.shape[axis] % IN_WORD:
        raise ValueError(f"{who} packs {IN_WORD} codes to a word along axis {axis}, where {summary(q)} has others")


# ---- compressed-tensors: weight_packed, weight_scale, weight_shape, weight_zero_point


def read_compressed(parts: Found) -> ScaledTensor | None:
    """Symmetric tensors as int4, those with zero points, which are packed along N, as uint4."""
    data, shape = parts["data"], parts.get("_shape")
    if data.dtype.name != "int32" or data.ndim < 2 or shape is None or "_g_idx" in parts:
        return None
    if shape.dtype.name not in ("int64", "int32") or shape.size != data.ndim:
        return None
    octets = bytes_of(on_host(data))
    if tuple(on_host(shape).reshape(-1).tolist()) != (*octets.shape[:-1], octets.shape[-1] * 2):
        return None
    zeros = parts.get("_zero_point")
    if zeros is None:
        return make("int4", octets ^ np.uint8(BOTH), parts["scales"])
    if zeros.dtype.name != "int32" or zeros.ndim != data.ndim:
        return None
    rows = unpacked(bytes_of(turned(on_host(zeros))))[..., : data.shape[-2]]
    return make("uint4", octets, parts["scales"], zero_points=turned(rows))


def write_compressed(q: ScaledTensor) -> dict[str, Tensor]:
    """int4 without zero points is symmetric."""
    whole_words(q, -1, "compressed-tensors")
    parts = {
        "data": words_of(octets_of(q)),
        "scales": scales_of(q),
        "_shape": np.array(q.shape, np.int64),
    }
    if q.format.element.name == "uint4" or q.zero_points is not None or q.biases is not None:
        zeros = turned(in_four_bits(zeros_of(q, "compressed-tensors"), "compressed-tensors"))
        ragged = -zeros.shape[-1] % IN_WORD
        zeros = np.pad(zeros, [*[(0, 0)] * (zeros.ndim - 1), (0, ragged)])
        parts["_zero_point"] = turned(words_of(packed(zeros)))
    return {suffix: dlfp4.asarray(part) for suffix, part in parts.items()}


# ---- GPTQ: qweight (K/8, N), qzeros (G, N/8), scales (G, N), g_idx (K,)


def read_gptq(parts: Found) -> ScaledTensor | None:
    """Of version 1, which stores zero points less 1 in four bits: 0 as 15. Columns in an order of their own are no
    blocks.
    """
    data, zeros, scales = parts["data"], parts.get(".qzeros"), parts["scales"]
    if zeros is None or not are_matrices(data, zeros, scales):
        return None
    groups, rows = scales.shape
    if data.shape[1] != rows or zeros.shape != (groups, rows // IN_WORD) or rows % IN_WORD:
        return None
    length = data.shape[0] * IN_WORD
    order = parts.get(".g_idx")
    if order is not None and not np.array_equal(on_host(order).reshape(-1), group_of_each(length, groups)):
        return None
    points = unpacked(bytes_of(on_host(zeros))) + np.uint8(1) & np.uint8(15)
    octets = bytes_of(turned(on_host(data)))
    return make("uint4", octets, dlfp4.asarray(turned(on_host(scales))), zero_points=turned(points))


def are_matrices(data: Tensor, zeros: Tensor, scales: Tensor) -> bool:
    """Whether codes and zero points are words of a matrix, which has scales."""
    return data.dtype.name == zeros.dtype.name == "int32" and data.ndim == zeros.ndim == scales.ndim == 2


def group_of_each(length: int, groups: int) -> Array:
    """The group of each column, where groups follow one another."""
    return np.arange(length, dtype=np.int32) // np.int32(max(1, length // max(1, groups)))


def write_gptq(q: ScaledTensor) -> dict[str, Tensor]:
    """Matrices alone."""
    check_matrix(q, "GPTQ")
    whole_words(q, -1, "GPTQ")
    whole_words(q, -2, "GPTQ")
    zeros = in_four_bits(zeros_of(q, "GPTQ"), "GPTQ") - np.uint8(1) & np.uint8(15)
    scales = turned(scales_of(q))
    parts = {
        "data": turned(words_of(octets_of(q))),
        ".qzeros": words_of(packed(turned(zeros))),
        "scales": scales,
        ".g_idx": group_of_each(q.shape[1], len(scales)),
    }
    return {suffix: dlfp4.asarray(part) for suffix, part in parts.items()}


def check_matrix(q: ScaledTensor, who: str) -> None:
    """ValueError for a stack."""
    if q.ndim != 2:
        raise ValueError(f"{who} stores matrices, and {summary(q)} has {q.ndim} dimensions: take each by itself")


# ---- AWQ: qweight (K, N/8), qzeros (G, N/8), scales (G, N)

ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # of the codes in a word


def read_awq(parts: Found) -> ScaledTensor | None:
    """Words have codes of neighbours along N, even ones first."""
    data, zeros, scales = parts["data"], parts.get(".qzeros"), parts["scales"]
    if zeros is None or not are_matrices(data, zeros, scales):
        return None
    groups, rows = scales.shape
    if data.shape[1] * IN_WORD != rows or zeros.shape != (groups, data.shape[1]) or data.shape[0] % 2:
        return None
    octets = packed(turned(from_awq(on_host(data))))
    points = turned(from_awq(on_host(zeros)))
    return make("uint4", octets, dlfp4.asarray(turned(on_host(scales))), zero_points=points)


def from_awq(words: Array) -> Array:
    """The codes of AWQ's words, in order."""
    stored = unpacked(bytes_of(words)).reshape((*words.shape, IN_WORD))
    codes: Array = stored[..., np.argsort(ORDER)].reshape((len(words), words.shape[1] * IN_WORD))
    return codes


def to_awq(codes: Array) -> Array:
    """Words of codes in AWQ's order."""
    stored = codes.reshape((len(codes), codes.shape[1] // IN_WORD, IN_WORD))[..., list(ORDER)]
    return words_of(packed(stored.reshape(codes.shape)))


def write_awq(q: ScaledTensor) -> dict[str, Tensor]:
    """Matrices alone."""
    check_matrix(q, "AWQ")
    whole_words(q, -2, "AWQ")
    zeros = in_four_bits(zeros_of(q, "AWQ"), "AWQ")
    parts = {
        "data": to_awq(turned(unpacked(octets_of(q)))),
        ".qzeros": to_awq(turned(zeros)),
        "scales": turned(scales_of(q)),
    }
    return {suffix: dlfp4.asarray(part) for suffix, part in parts.items()}


# ---- MLX: weight uint32 (N, K/8), scales and biases (N, K/g)


def read_mlx(parts: Found) -> ScaledTensor | None:
    """Affine codes of 4 bits."""
    data, biases = parts["data"], parts.get(".biases")
    if biases is None or data.dtype.name != "uint32" or data.ndim < 2 or biases.dtype != parts["scales"].dtype:
        return None
    octets = data.view("uint8")
    q = make("uint4", octets, parts["scales"], biases=biases)
    if q is None or q.format.scales_lines:
        return None
    steps = steps_to_zero(parts["scales"], biases)
    fits = are_zero_points(steps) or (are_of_four_bits(steps) and has_four_bits(octets, parts["scales"].shape[-1]))
    return q if fits else None


def steps_to_zero(scales: Tensor, biases: Tensor) -> Array:
    """How many scales lie between zero and the value of code 0, of groups in which this is a number. MLX has a group's
    largest magnitude on code 0, so that they tell how many codes there are.
    """
    worth, bias = (each.astype(np.float64) for each in as_floats(scales, biases))
    counts = np.isfinite(worth) & np.isfinite(bias) & ((worth != 0) | (bias != 0))
    with np.errstate(divide="ignore"):
        steps: Array = -bias[counts] / worth[counts]
    return steps


def are_zero_points(steps: Array) -> bool:
    """Whether all are zero points of 4 bits, and not all of 2: as we write them, or who had them. MLX itself makes
    quotients that are rounded.
    """
    whole = (steps == np.rint(steps)) & (steps >= 0) & (steps <= MOST_CODE)
    return bool(whole.all() and (not steps.size or steps.max() > MOST_CODE_OF_TWO))


def are_of_four_bits(steps: Array) -> bool:
    """Whether they are those of 4 bits for the most part: 7.5 to 15 where a group has both signs, and 1.5 to 3 of 2
    bits, 127.5 to 255 of 8.
    """
    sizes = np.abs(steps[steps != 0])
    return not sizes.size or LEAST_STEPS <= float(np.median(sizes)) <= MOST_STEPS


def is_symmetric(scales: Tensor, biases: Tensor) -> bool:
    """Whether biases put the middle of codes of 4 bits on zero."""
    worth, bias = as_floats(scales, biases)
    return bool(np.array_equal(bias, np.float32(-MIDDLE) * worth, equal_nan=True))


def has_four_bits(octets: Tensor, groups: int) -> bool:
    """Whether codes have 4 bits, which the shapes alone do not tell from 8 or 2: MLX puts the outermost element of each
    group on code 0, and in longer codes all zeros are seldom.
    """
    width = octets.shape[-1]
    rows = on_host(octets).reshape((-1, width))
    rows = rows[: max(1, SAMPLE // max(1, width))]
    if not rows.size:
        return True
    by_group = rows.reshape((len(rows), groups, -1))
    as_bytes = (by_group == 0).any(-1).all()
    as_nibbles = ((by_group & 15 == 0) | (by_group >> 4 == 0)).any(-1).all()
    return bool(as_nibbles and (not as_bytes or not rows.any()))


def write_mlx(q: ScaledTensor) -> dict[str, Tensor]:
    """Zero points become biases where those are exact: of symmetric tensors they are -8 times the scales."""
    whole_words(q, -1, "MLX")
    if q.format.scales_lines:
        raise ValueError(f"MLX stores groups of 32, 64 or 128, and {summary(q)} has a scale a line")
    scales = scales_of(q)
    biases = of_groups(q, q.biases) if q.biases is not None else biases_of(q, scales)
    if q.format.element.name == "int4" and q.biases is not None:
        raise ValueError(f"MLX's codes have no sign, and {summary(q)} has biases for codes with one")
    parts = {"data": words_of(octets_of(q), "uint32"), "scales": scales, ".biases": biases}
    return {suffix: dlfp4.asarray(part) for suffix, part in parts.items()}


def with_biases(q: ScaledTensor) -> ScaledTensor:
    """A tensor with biases instead of zero points: its values may be rounded otherwise, if scales are float32."""
    biases = dlfp4.asarray(biases_of(q, scales_of(q)).reshape(q.scales.shape)).to_device(_home_of(q))
    return ScaledTensor.from_parts(q.data, q.scales, format=q.format, axis=q.axis, shape=q.shape, biases=biases)


def biases_of(q: ScaledTensor, scales: Array) -> Array:
    """Minus the zero points times the scales."""
    exact = -zeros_of(q, "MLX").astype(np.float64) * scales.astype(np.float64)
    with np.errstate(over="ignore"):
        biases: Array = exact.astype(scales.dtype)
    if not np.array_equal(biases.astype(np.float64), exact, equal_nan=True):
        raise ValueError(
            f"MLX stores biases of {scales.dtype}, which does not hold all products of zero points and scales of "
            f"{summary(q)}"
        )
    return biases


PACKINGS: Mapping[str, Packing] = MappingProxyType(
    {
        "compressed-tensors": Packing(read_compressed, write_compressed),
        "gptq": Packing(read_gptq, write_gptq),
        "awq": Packing(read_awq, write_awq),
        "mlx": Packing(read_mlx, write_mlx),
    }
)
