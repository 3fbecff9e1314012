"""Random descriptions, arrays, files and arguments: honest ones, of which some fields are then changed."""

import json
import struct

import ml_dtypes
import numpy as np
from capsules import DTYPES, PADDED, READ_ONLY, element_codes
from reference import Guarded

import dlfp4

NAMES = list(DTYPES)
ROOM = 4096  # bytes of memory, between pages that cannot be touched
MEMORY = Guarded(ROOM)
MEMORY.inner[:] = np.random.default_rng(0).integers(256, size=len(MEMORY.inner), dtype=np.uint8)
EDGES = [0, 1, 2, 3, 7, 8, 31, 32, 33, 63, 64, 65, 255, 256, 2**16, 2**31 - 1, 2**31, 2**32, 2**61, 2**62, 2**63 - 1]


def number(rng):
    """An integer of 64 bits: small, or near what overflows."""
    found = rng.choice(EDGES) if rng.random() < 0.5 else rng.randrange(1 << rng.randrange(1, 64))
    found = min(found + rng.randrange(-1, 2), 2**63 - 1)
    return -found if rng.random() < 0.3 else found


def small_shape(rng, most=5):
    """Some dimensions of a few elements."""
    return tuple(rng.choice([0, 1, 1, 2, 3, 4, 5, 8]) for _ in range(rng.randrange(most)))


def shape_of_size(rng, size):
    """Factors of a size, or nearly."""
    shape = []
    while size > 1 and len(shape) < 5:
        factor = rng.choice([divisor for divisor in (2, 3, 4, 5, 8, size) if size % divisor == 0])
        shape.append(factor)
        size //= factor
    if rng.random() < 0.2:
        shape.insert(rng.randrange(len(shape) + 1), rng.choice([-1, 1, 0, 2, 2**40]))
    return tuple(shape)


def index(rng, ndim):
    """Of a view."""
    entries = []
    for _ in range(rng.randrange(ndim + 2)):
        ends = [rng.choice([None, 0, 1, 2, -1, -3, 7, 2**40]) for _ in range(2)]
        entries.append(rng.choice([slice(*ends, rng.choice([None, 1, 2, -1, 2**40])), rng.randrange(-4, 5), None, ...]))
    return tuple(entries)


def compact_strides(shape):
    """Row-major."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.insert(0, step)
        step *= extent
    return tuple(strides)


# ---- Capsules


def fields_of_capsule(rng):
    """The arguments of `capsules.Made`, and what it takes to tell what they describe."""
    name = rng.choice(NAMES)
    shape = small_shape(rng)
    strides = rng.choice([None, compact_strides(shape), tuple(rng.randrange(-4, 9) for _ in shape)])
    made = {
        "memory": MEMORY.inner, "versioned": rng.random() < 0.7, "dtype": name, "shape": shape, "strides": strides,
        "deleter": rng.random() < 0.9, "byte_offset": rng.choice([0, 0, 0, 1, 8, 64]), "flags": 0,
        "data": MEMORY.inner.ctypes.data + rng.choice([0, 64, 512, 1024, 2048]),
    }  # fmt: skip
    if made["versioned"]:
        made["flags"] = rng.choice([0, 0, READ_ONLY, PADDED, PADDED | READ_ONLY, 1 << 40])
    for _ in range(rng.choice([0, 0, 1, 1, 2, 4])):
        change_field(rng, made)
    return {"made": made, "bits": made.get("bits", DTYPES[name][1])}


def change_field(rng, made):
    """Any value in one of the fields."""
    field = rng.choice(
        ["shape", "strides", "ndim", "data", "byte_offset", "device", "flags", "version", "type", "lanes"]
    )
    if field in ("shape", "strides") and made[field]:
        changed = list(made[field])
        changed[rng.randrange(len(changed))] = number(rng)
        made[field] = tuple(changed)
    elif field == "ndim":
        made["ndim"] = rng.choice([-1, -(2**31), 2**31 - 1, 10**6, 65536])
    elif field == "data":
        made["data"] = rng.choice([None, 1, 4095, 2**63, 2**64 - 1, 2**64 - 4096])
    elif field == "byte_offset":
        made["byte_offset"] = rng.choice([2**64 - 1, 2**63, 2**63 - 1, 2**64 - 4, 3, abs(number(rng))])
    elif field == "device":
        made["device"] = (rng.choice([*range(-1, 24), 2**31 - 1]), rng.choice([0, 0, 1, -1, 2**31 - 1]))
    elif field == "flags" and made["versioned"]:
        made["flags"] = rng.getrandbits(64)
    elif field == "version" and made["versioned"]:
        made["version"] = (rng.choice([0, 1, 2, 2**32 - 1]), rng.choice([0, 3, 99]))
    elif field == "type":
        made["code"], made["bits"] = (
            rng.choice([*range(20), 200, 255]),
            rng.choice([0, 1, 3, 4, 6, 8, 16, 32, 64, 128, 255]),
        )
    elif field == "lanes":
        made["lanes"] = rng.choice([0, 2, 3, 65535])


def lies_inside(fields):
    """Whether all elements lie in the memory; False of a description that the model does not know, too."""
    made = fields["made"]
    is_known = not made.keys() & {"code", "lanes", "ndim", "version"} and made.get("device", (1, 0)) == (1, 0)
    shape = made["shape"]
    if not is_known or made["data"] is None or any(extent < 0 for extent in shape):
        return False
    start = made["data"] - MEMORY.inner.ctypes.data + made["byte_offset"]
    step = 8 if made["flags"] & PADDED and fields["bits"] < 8 else fields["bits"]
    strides = made["strides"] if made["strides"] is not None else compact_strides(shape)
    if 0 in shape:
        return True
    reaches = [(extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)]
    low, high = sum(reach for reach in reaches if reach < 0), sum(reach for reach in reaches if reach > 0)
    return 8 * start + low * step >= 0 and 8 * start + (high + 1) * step <= 8 * len(MEMORY.inner)


def described_elements(fields):
    """Shape and codes, where all elements lie in the memory and are not too many."""
    made = fields["made"]
    if not lies_inside(fields) or 0 in made["shape"] or np.prod(made["shape"], dtype=object) > 4096:
        return None
    strides = made["strides"] if made["strides"] is not None else compact_strides(made["shape"])
    start = made["data"] - MEMORY.inner.ctypes.data + made["byte_offset"]
    is_padded = bool(made["flags"] & PADDED) and fields["bits"] < 8
    codes = element_codes(MEMORY.inner, fields["bits"], made["shape"], strides, padded=is_padded, start=8 * start)
    return made["shape"], codes


# ---- Arrays


def array(rng):
    """A view of the memory under a type of NumPy or ml_dtypes."""
    dtype = np.dtype(rng.choice([*(getattr(ml_dtypes, name, name) for name in NAMES), ">f4", "U3", "M8[s]", "V5"]))
    shape = small_shape(rng)
    strides = [rng.choice([1, 2, 3, 0, -1, -2]) * dtype.itemsize for _ in shape]
    if rng.random() < 0.1 and strides:
        strides[0] += 1
    low = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True) if stride < 0 and extent)
    high = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True) if stride > 0 and extent)
    first = rng.choice([0, 1, 8, 64]) - low
    whole = MEMORY.inner
    if first + high + dtype.itemsize > len(whole):
        shape, strides, first = (), [], 0
    view = np.ndarray(shape, dtype, whole, first, strides)
    view.flags.writeable = rng.random() < 0.5
    return view


# ---- Bytes


def changed_bytes(rng, content, within):
    """Some bytes of the first ones changed, cut or doubled."""
    content = bytearray(content)
    for _ in range(rng.randrange(1, 5)):
        place = rng.randrange(min(within, len(content)) or 1)
        how = rng.randrange(6)
        if how == 0:
            del content[place:]
        elif how == 1:
            del content[place : place + rng.randrange(1, 9)]
        elif how == 2:
            content[place:place] = content[place : place + rng.randrange(1, 20)]
        elif how == 3:
            content[place : place + 8] = struct.pack("<q", number(rng))
        else:
            content[place : place + 1] = bytes([rng.randrange(256)])
    return bytes(content)


def changed_file(rng, content):
    """A safetensors file with other bytes, or with another value somewhere in its header."""
    if rng.random() < 0.3:
        return changed_bytes(rng, content, len(content))
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    for _ in range(rng.randrange(1, 4)):
        change_json(rng, header)
    metadata = header.get("__metadata__")
    if isinstance(metadata, dict) and '"tensors"' in str(metadata.get("dlfp4")) and rng.random() < 0.5:
        described = json.loads(metadata["dlfp4"])
        change_json(rng, described)
        metadata["dlfp4"] = json.dumps(described)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content[8 + length :]


def change_json(rng, node):
    """Another value at a random place."""
    while True:
        keys = list(node) if isinstance(node, dict) else range(len(node))
        if not keys:
            return
        key = rng.choice(keys)
        if isinstance(node[key], (dict, list)) and node[key] and rng.random() < 0.8:
            node = node[key]
            continue
        if rng.random() < 0.2:
            del node[key]
        else:
            node[key] = json_value(rng)
        return


def json_value(rng):
    """Of any kind."""
    return rng.choice([
        number(rng), -1, 1.5, True, None, "", "F4", "U8", "F32", "nvfp4", "linear", "128x4", [], {}, [0, 0], [2, 2],
        [number(rng)] * rng.randrange(4), [1] * 100, "x" * 100, [[]], {"a": {}}, float("inf"),
    ])  # fmt: skip


# ---- Arguments

X = np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)
POOL = [
    None, True, False, 0, 1, -1, -2, 2**31, 2**63, -(2**63), 0.5, float("nan"), float("inf"), "", "nvfp4", "mxfp4",
    "cpu", "float32", "float4_e2m1fn", "fp4", "linear", "128x4", "nearest_even", "stochastic", "cuda:0", b"bytes", (),
    (4, 64), (2**40, 2**40), (-1,), [1.0, 2.0], [[1.0], []], {}, object(), len, X, X.T, X[0], X[:, ::2], X.astype("f8"),
    X[:0], X.astype("i4"), np.float32(3), np.arange(16), dlfp4.asarray(X), dlfp4.cast(X, "float4_e2m1fn"),
    dlfp4.empty(0, "bool"), dlfp4.quantize(X, "nvfp4"), dlfp4.quantize(X, "nvfp4").mT,
    dlfp4.quantize(X, "mxfp8_e4m3"), dlfp4.quantize(X, "int4_g32"), dlfp4.quantize(X, "fp8_row").mT,
    dlfp4.quantize(np.stack([X, X]), "mxfp4"), dlfp4.formats()["mxfp4"], dlfp4.Recipe(),
    dlfp4.TensorProto((4, 64), format="nvfp4"), np.dtype("float32"), ml_dtypes.bfloat16, slice(1, 3), ..., 1 << 100,
]  # fmt: skip
Q, W = dlfp4.quantize(X, "nvfp4"), dlfp4.quantize(X, "mxfp4")


def set_num_threads(*given):
    """It holds for the whole process: what other cases have is OpenMP's own number."""
    try:
        dlfp4.set_num_threads(*given)
        assert dlfp4.get_num_threads() > 0
    finally:
        dlfp4.set_num_threads(0)


# Calls as they should be, of which some arguments are then replaced.
CALLS = [
    (dlfp4.asarray, (X,), {"dtype": "bfloat16"}), (dlfp4.cast, (X, "float4_e2m1fn"), {"rounding": "nearest_even"}),
    (dlfp4.concatenate, ([W, W],), {"axis": 0}), (dlfp4.stack, ([W, W],), {}),
    (dlfp4.dequantize, (Q,), {"out": None}),
    (dlfp4.dot, (X[0], X[0]), {"out": None}), (dlfp4.vecdot, (X, X), {"axis": -1}),
    (dlfp4.empty, ((4, 64), "int4"), {}),
    (dlfp4.from_dlpack, (X,), {"device": "cpu", "copy": None}), (dlfp4.matmul, (X, Q.mT), {"alpha": 1.0, "out": None}),
    (dlfp4.pack, (dlfp4.unpack(Q.data),), {}), (dlfp4.unpack, (Q.data,), {}),
    (dlfp4.quantize, (X, "mxfp4"), {"axis": -1, "recipe": None, "scale_layout": "linear", "out": None}),
    (dlfp4.shuffle_weight, (np.zeros((16, 32), "u1"),), {"layout": "aiter"}), (dlfp4.Recipe, (), {"eps": 0.0}),
    (dlfp4.ScaledTensor.from_parts, (Q.data, Q.scales, 1.0), {"format": "nvfp4", "axis": -1, "shape": None}),
    (dlfp4.TensorProto, ((4, 64),), {"format": "nvfp4", "device": "cpu", "pad": True}),
    (dlfp4.grouped_matmul, (X, dlfp4.quantize(np.stack([X, X]), "mxfp4").mT, np.array([2, 4])), {"out": None}),
    (dlfp4.unshuffle_weight, (np.zeros((16, 32), "u1"),), {"layout": "aiter"}), (W.to, ("mxfp8_e4m3",), {}),
    (dlfp4.analysis.error, (X, W), {"bins": 64}), (dlfp4.checkpoints.to_ggml, (W,), {}),
    (dlfp4.checkpoints.from_ggml, (np.zeros(34, "u1"), "mxfp4", (1, 64)), {}),
    (dlfp4.checkpoints.split_parts, ({"w": Q}, "modelopt"), {}),
    (dlfp4.checkpoints.join_parts, (dlfp4.checkpoints.split_parts({"w": Q}, "modelopt"),), {"metadata": None}),
    (dlfp4.analysis.compare, (X, ["nvfp4", "mxfp4"]), {"axis": -1}), (dlfp4.analysis.signal_to_noise, (X, Q), {}),
    (dlfp4.analysis.calibrate, ([X], "mse"), {"format": "nvfp4"}), (dlfp4.backends, (X, Q.mT), {}),
    (set_num_threads, (2,), {}),
]  # fmt: skip
METHODS = {
    kind: [name for name, each in vars(kind).items() if callable(each) and not name.startswith("_")]
    for kind in (dlfp4.Tensor, dlfp4.ScaledTensor)
}
OWNERS = [each for each in POOL if isinstance(each, tuple(METHODS))]


def value(rng):
    """Anything."""
    return rng.choice(POOL) if rng.random() < 0.8 else rng.choice([number(rng), small_shape(rng), (number(rng),) * 3])


def call(rng):
    """A function, its arguments, and those by name."""
    if rng.random() < 0.4:
        owner = rng.choice(OWNERS)
        function, given, named = getattr(owner, rng.choice(METHODS[type(owner)])), (), {}
        given = [value(rng) for _ in range(rng.randrange(3))]
    else:
        function, given, named = rng.choice(CALLS)
        given, named = list(given), dict(named)
        for _ in range(rng.choice([0, 1, 1, 2])):
            place = rng.choice([*range(len(given)), *named])
            (named if place in named else given)[place] = value(rng)
    return function, given, named
