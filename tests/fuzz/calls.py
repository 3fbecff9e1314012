"""Random calls of the operations, as the package itself takes them: arrays, Tensors, ScaledTensors and constants.

What frameworks have of the same operations is given the same call, and has to give the same bytes or the same refusal.
"""

import math
import pickle
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import scaled_makers
from capsules import DTYPES

import dlfp4

FORMATS = list(dlfp4.formats())
FLOATS = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
LOW = [name for name, (_, bits) in DTYPES.items() if name.startswith("float") and bits < 16]
BELOW_A_BYTE = [name for name, (_, bits) in DTYPES.items() if bits < 8 and name != "bool"]
REFUSALS = (BufferError, TypeError, ValueError, dlfp4.BackendError)
LAYOUTS = ["linear", "linear", "128x4", "8x4", "aiter", "n32k4", "deepgemm", "cublas_1x128", "cublas_128x128"]
ROUNDINGS = ["nearest_even", "nearest_away", "nearest_zero", "toward_zero", "stochastic"]
LINES = [0, 1, 1, 2, 3, 5, 16, 17, 32]
LENGTHS = [0, 1, 2, 6, 16, 32, 32, 48, 64, 64, 128, 128, 160, 256]


@dataclass
class Call:
    """A function by its name, the tensors that it takes, by theirs, and constants."""

    name: str
    tensors: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)

    def run(self, module, tensors, **more):
        """The same of tensors of a framework; those that are needed come first."""
        needed = [x for name, x in tensors.items() if name not in OPTIONAL]
        optional = {name: x for name, x in tensors.items() if name in OPTIONAL}
        return getattr(module, self.name)(*needed, **optional, **self.options, **more)

    def eager(self, **more):
        """What the package itself gives."""
        return self.run(dlfp4, self.tensors, **more)


PRODUCTS = ("matmul", "grouped_matmul", "vecdot", "dot")
OPTIONAL = ("global_scale", "indices", "weights")


def outcome(function):
    """A result and None, or None and the refusal."""
    try:
        return function(), None
    except REFUSALS as error:
        return None, error


def sometimes(rng, **choices):
    """Some of the options, each with one of its values."""
    return {name: rng.choice(values) for name, values in choices.items() if rng.random() < 0.25}


# ---- Operands


def shape_of(rng, ndim=None):
    """Lines of which some are ragged."""
    count = rng.choice([1, 2, 2, 2, 3, 4]) if ndim is None else ndim
    lines = [rng.choice([1, 2, 3]) for _ in range(max(0, count - 2))]
    return (*lines, rng.choice(LINES), rng.choice(LENGTHS))[-count:] if count else ()


def values(rng, shape, dtype="float32", is_finite=False):
    """Numbers, of which some may be special."""
    numbers = np.random.default_rng(rng.getrandbits(32))
    x = np.asarray(numbers.normal(size=shape) * 10.0 ** rng.choice([-3, 0, 0, 2]), np.float32)
    if x.size and not is_finite and rng.random() < 0.2:
        x.reshape(-1)[numbers.integers(x.size)] = rng.choice([np.nan, np.inf, -np.inf, -0.0, 1e-40, 3e38])
    with np.errstate(all="ignore"):
        return x.astype(FLOATS.get(dtype, dtype))


def floats(rng, shape, is_finite=False):
    """The same of a float type."""
    return values(rng, shape, rng.choice(list(FLOATS)), is_finite)


def codes(rng, shape, name, packed=True):
    """Any bits of an element type."""
    bits = DTYPES[name][1]
    octets = np.frombuffer(rng.randbytes(math.prod(shape) * max(1, bits // 8)), np.uint8)
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    single = (octets & (1 << bits) - 1 if bits < 8 else octets).view(dtype).reshape(shape)
    return dlfp4.pack(single) if bits < 8 and packed else dlfp4.asarray(single)


def quantized(rng, shape, name=None, axis=None):
    """A tensor of any format, codes and scales, in any layout; of which it may be a part."""
    name = rng.choice(FORMATS) if name is None else name
    axis = rng.choice([-1, -1, -2]) if axis is None else axis
    if rng.random() < 0.5:
        q = scaled_makers.scaled(rng, name, axis, shape, rng.random() < 0.5)
    else:
        q = dlfp4.quantize(values(rng, shape), name, axis=axis, pad=True, **options_of(rng, name))
    if rng.random() < 0.15:
        try:
            return q.with_scale_layout(rng.choice(LAYOUTS))
        except ValueError:
            return q
    return q


def options_of(rng, name):
    """Of quantizing to a format, most of which fit."""
    kind = dlfp4.formats()[name].kind
    if rng.random() < 0.1:
        return {"hadamard": rng.choice([3, (1, -1) * 8])}
    if rng.random() < 0.3:
        of_kind = {
            "two_level": {"global_scale_per": rng.choice(["row", "matrix"])},
            "power": {"scale_rule": rng.choice(["rceil", "ceil", "even"])},
            "largest": {"scale_dtype": rng.choice(["bfloat16", "float16", "float32"])},
        }
        recipe = dlfp4.Recipe(**of_kind[kind])
        return {} if name == "nvfp4_16x16" and recipe.global_scale_per == "row" else {"recipe": recipe}
    return {}


# ---- Calls


def cast(rng):
    name = rng.choice([*FLOATS, *FLOATS, "float64", *LOW, *LOW, "int8"])
    shape, is_packed = shape_of(rng, rng.choice([0, 1, 2, 3, None])), rng.random() < 0.5
    x = values(rng, shape, name) if name in (*FLOATS, "float64") else codes(rng, shape, name, is_packed)
    options = sometimes(rng, rounding=[*ROUNDINGS, "up"], saturate=[True, False], packed=[True, False])
    dtype = rng.choice([*FLOATS, "float64", *LOW, *LOW, "int8"])
    if "int8" in (name, dtype):  # which is refused, as options that do not go together are
        options = {"packed": options.get("packed", True)}
    if options.get("rounding") == "stochastic" or (rng.random() < 0.03 and "int8" not in (name, dtype)):
        options["seed"] = rng.choice([0, 7, 2**64 - 1])
    return Call("cast", {"x": x}, {"dtype": dtype, **options})


def pack(rng):
    return Call("pack", {"x": codes(rng, shape_of(rng), rng.choice(BELOW_A_BYTE), packed=False)})


def unpack(rng):
    return Call("unpack", {"x": codes(rng, shape_of(rng), rng.choice(BELOW_A_BYTE))})


def quantize(rng):
    name = rng.choice(FORMATS)
    x = values(rng, shape_of(rng), rng.choice([*FLOATS, *FLOATS, "float64"]))
    options = sometimes(
        rng,
        axis=[-1, -2, -2, (-1, -2), (-2, -1), (-1,), 0],
        rounding=ROUNDINGS,
        scale_layout=LAYOUTS,
        hadamard=[0, 3, (1, -1) * 8, (1, 2)],
        recipe=[*recipes(rng)],
    )
    if options.get("rounding") == "stochastic":
        options["seed"] = rng.choice([0, 7, 2**64 - 1])
    tensors = {"x": x}
    if rng.random() < (0.3 if dlfp4.formats()[name].has_global_scale else 0.05):
        tensors["global_scale"] = global_scale(rng, x.shape)
    return Call("quantize", tensors, {"format": name, "pad": rng.random() < 0.6, **options})


def recipes(rng):
    yield from ("ocp", "nvidia", "flashinfer", "modelopt", "compressed-tensors", "deepseek", "ggml", "mlx")
    yield dlfp4.Recipe(global_scale_per=rng.choice(["row", "matrix"]))
    yield dlfp4.Recipe(global_scale_per=rng.choice(["row", "matrix"]))
    yield dlfp4.Recipe(scale_dtype=rng.choice(["bfloat16", "float16", "float8_e8m0fnu"]))
    yield dlfp4.Recipe(four_over_six="mean_squared")
    yield dlfp4.Recipe(eps=rng.choice([1e-4, 1.0]))


def global_scale(rng, shape):
    """One, or one of each line or matrix, or too many."""
    matrices, lines = math.prod(shape[:-2]), math.prod(shape[:-1])
    size = rng.choice([(), (), (1,), (lines,), (lines,), (matrices,), (3,), shape[-1:]])
    x = np.asarray(np.exp(np.random.default_rng(rng.getrandbits(32)).normal(size=size)), np.float32)
    if x.size and rng.random() < 0.05:
        x.reshape(-1)[-1] = rng.choice([0, -1, np.nan, np.inf])
    return x


def dequantize(rng):
    dtypes = [*FLOATS, *FLOATS, "float64", "float8_e4m3fn"]
    return Call("dequantize", {"q": quantized(rng, shape_of(rng))}, sometimes(rng, dtype=dtypes))


def operand(rng, shape, name=None, axis=None):
    """Of a product: floats, codes or quantized."""
    how = rng.random()
    if how < 0.4:
        return floats(rng, shape)
    return quantized(rng, shape, name, axis) if how < 0.8 and shape else codes(rng, shape, rng.choice(LOW))


def dot(rng):
    shape = (rng.choice(LENGTHS),)
    return Call("dot", {"a": operand(rng, shape), "b": operand(rng, rng.choice([shape, shape, shape, (64,), (2, 32)]))})


def vecdot(rng):
    shape = shape_of(rng)
    other = rng.choice([shape, shape, shape[1:] or shape, (1, *shape[1:]), shape_of(rng)])
    format = rng.choice(FORMATS)
    a, b = operand(rng, shape, format), operand(rng, other, format)
    return Call("vecdot", {"a": a, "b": b if rng.random() < 0.8 else a}, sometimes(rng, axis=[-1, -2, 0, 1, 5]))


def options_of_product(rng):
    """What products share."""
    options = sometimes(rng, alpha=[0.5, -1.0, 0.0, -0.0, 3], out_dtype=[*FLOATS, *FLOATS, "float64"])
    if rng.random() < 0.15:
        options["activation"] = rng.choice(["int8", "fp8_1x128", "mxfp8", "fp8_row", "fp4"])
    return options


def matmul(rng):
    k, n = rng.choice(LENGTHS), rng.choice([0, 1, 2, 17, 32, 64])
    rows = (*shape_of(rng)[:-1], k)
    w = transpose(operand(rng, (n, k if rng.random() < 0.95 else 64), axis=rng.choice([-1, -1, -1, -2])))
    return Call("matmul", {"a": operand(rng, rows, axis=rng.choice([-1, -1, -1, -2])), "b": w}, options_of_product(rng))


def transpose(w):
    """The last two dimensions exchanged; of arrays and of what lies packed, in new memory."""
    if isinstance(w, dlfp4.ScaledTensor):
        return w.mT
    if isinstance(w, dlfp4.Tensor) and w.packed and DTYPES[w.dtype.name][1] < 8:
        return dlfp4.pack(np.ascontiguousarray(dlfp4.unpack(w).to_numpy().swapaxes(-1, -2)))
    return np.ascontiguousarray(np.asarray(w if isinstance(w, np.ndarray) else w.to_numpy()).swapaxes(-1, -2))


def grouped_matmul(rng):
    experts, rows, k = rng.choice([0, 1, 2, 2, 4]), rng.choice([0, 1, 2, 9, 20]), rng.choice(LENGTHS)
    n = rng.choice([0, 1, 2, 16, 33])
    depth = k if rng.random() < 0.95 else 64
    w = stack(rng, (experts, n, depth))
    tensors = {"x": operand(rng, (rows, k), axis=-1), "w": w}
    options, routed = options_of_product(rng), rows
    gathers = rng.random() < 0.5
    if gathers:
        routed = rng.choice([0, 1, rows, 2 * rows, 7])
    numbers = sorted(rng.randrange(routed + 1) for _ in range(experts))
    if rng.random() < 0.03 and experts:
        numbers[rng.randrange(experts)] = rng.choice([-1, routed + 1, 2**31 - 1])
    tensors["offsets"] = np.array(numbers, np.int64).astype(rng.choice(["int32", "int64"]))
    if rng.random() < 0.02 and depth == k:
        tensors["offsets"] = tensors["offsets"].astype(rng.choice(["int16", "float32"]))
    if gathers or rng.random() < 0.03:
        adds = rng.random() < 0.5
        count = rows
        if adds and rng.random() < 0.5:
            count = options["tokens"] = rng.choice([0, 1, 5, rows])
            routed = rows if rng.random() < 0.9 else routed
            tensors["offsets"] = np.minimum(tensors["offsets"], rows)
        end = int(tensors["offsets"][-1]) if experts else 0
        places = [rng.randrange(max(1, count)) for _ in range(routed)]
        places = [each if number < end or rng.random() < 0.5 else 99 for number, each in enumerate(places)]
        tensors["indices"] = np.array(places, rng.choice(["int32", "int64"]))
        if adds:
            tensors["weights"] = values(rng, (routed,), is_finite=True)
    return Call("grouped_matmul", tensors, options)


def stack(rng, shape):
    """Weights (E, K, N) of experts."""
    if rng.random() < 0.3:
        return transpose(floats(rng, shape))
    if 0 in shape:
        return dlfp4.quantize(values(rng, shape), rng.choice(FORMATS), pad=True).mT
    return quantized(rng, shape, axis=-1 if rng.random() < 0.95 else -2).mT


CALLS = (cast, pack, unpack, quantize, quantize, dequantize, dot, vecdot, matmul, matmul, grouped_matmul)


def call_of(rng):
    """A call whose operands there are; some have options that do not go together."""
    while True:
        try:
            return rng.choice(CALLS)(rng)
        except REFUSALS:  # of what makes the operands
            continue


# ---- Calls like one


def variants_of(rng, call, names, size):
    """So many calls that differ in the values of some tensors, the first of which is as it was."""
    others = [
        Call(call.name, call.tensors | {name: variant(rng, call.tensors[name]) for name in names}, call.options)
        for _ in range(size - 1)
    ]
    return [call, *others]


def is_transpose(q):
    """Whether a matrix is the transpose of the one that lies there."""
    return q.ndim == 2 and q.axis == -2 and q.data.strides[0] == 1


def variant(rng, x):
    """A tensor of other values."""
    if isinstance(x, dlfp4.ScaledTensor):
        if is_transpose(x):
            return variant(rng, x.mT).mT
        other = pickle.loads(pickle.dumps(x))
        if other.data.size == math.prod(other.shape):  # what completes lines is zero
            scaled_makers.refill(rng, other.data)
        return other
    if isinstance(x, dlfp4.Tensor):
        return codes(rng, x.shape, x.dtype.name, x.packed)
    return x if x.dtype.kind == "i" else np.asarray(x * rng.choice([0.5, 2]), x.dtype)


# ---- Values


def decoded(x):
    """What an operand stands for, in float64."""
    if isinstance(x, dlfp4.ScaledTensor):
        x = x.dequantize()
    elif isinstance(x, dlfp4.Tensor) and x.dtype.name.startswith(("float", "bfloat")):
        x = dlfp4.cast(x, "float32")
    return np.array(x.to_numpy() if isinstance(x, dlfp4.Tensor) else x, np.float64)


def limits_of(dtype):
    """The precision and the range of a float type."""
    return ml_dtypes.finfo(dtype)


def with_one_nan(x):
    """Results of products, whose NaNs have the sign that the order of a sum gives them."""
    if x.dtype.name not in FLOATS or not np.isnan(x).any():
        return x
    return np.where(np.isnan(x), np.asarray(np.nan, x.dtype), x)


def is_near(call, found, expected):
    """Whether a matrix product is one in another order of sums."""
    expected = expected.to_numpy()
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    with np.errstate(all="ignore"):
        a, b = (np.abs(decoded(x)) for x in call.tensors.values())
        sizes = abs(call.options.get("alpha", 1.0)) * (a @ b)
        if not (sizes < 1e4).all() or not np.isfinite(expected.astype(np.float64)).all():
            return True
        near = max(16, a.shape[-1]) * 2.0**-23 * sizes + float(limits_of(found.dtype).eps) * np.abs(expected) + 1e-6
        return bool((np.abs(found.astype(np.float64) - expected.astype(np.float64)) <= near).all())
