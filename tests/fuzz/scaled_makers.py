"""Random ScaledTensors, Arrow arrays with other contents, and calls of tvm-ffi's functions."""

import math

import makers
import ml_dtypes
import numpy as np
from reference import parts_of

import dlfp4

FORMATS = list(dlfp4.formats())
TARGETS = [
    *FORMATS, "modelopt", "compressed-tensors", "gpt-oss", "deepseek", "ggml", "mlx", "gptq", "awq", "torchao", "rocm",
]  # fmt: skip


def octets(rng, count):
    """Any bytes."""
    return np.frombuffer(rng.randbytes(count), np.uint8)


# ---- ScaledTensors


def pieces(rng, count=None):
    """Tensors that may be joined along an axis, of which one may be another; and the axis."""
    ndim, name, axis = rng.choice([2, 2, 3]), rng.choice(FORMATS), rng.choice([-1, -2])
    along = rng.randrange(-ndim, ndim)
    leading = [rng.choice([1, 2, 3]) for _ in range(ndim - 2)]
    shape = [*leading, rng.choice([1, 5, 16, 32, 64, 128]), rng.choice([1, 16, 32, 64, 128, 160])]
    likeness, made = rng.random(), []
    for _ in range(count or rng.randrange(1, 4)):
        if rng.random() < 0.3:
            shape[along] = rng.choice([1, 2, 3, 32, 64])
        if rng.random() < 0.05:
            shape[rng.randrange(ndim)] = rng.choice([0, 1, 3, 64])
        if rng.random() < 0.02:
            name, axis = rng.choice(FORMATS), rng.choice([-1, -2])
        made.append(scaled(rng, name, axis, shape, likeness < 0.5))
    return made, along


def scaled(rng, name, axis, shape, is_alike):
    """A tensor of any codes under scales that are mostly near to one another; `is_alike`: with common scales of all."""
    values = np.random.default_rng(rng.getrandbits(32)).standard_normal(shape) * 2.0 ** rng.randrange(-12, 12)
    format, options = dlfp4.formats()[name], {}
    if format.has_global_scale:
        options = options_of_unit(rng, axis == -1 and len(shape) == 3 and format.block == (1, 16), is_alike)
    q = dlfp4.quantize(values.astype(np.float32), name, axis=axis, pad=True, **options)
    if rng.random() < 0.5 and q.data.size == math.prod(q.shape):  # what completes lines is zero
        refill(rng, q.data)
    if rng.random() < 0.3 and q.scales.dtype.itemsize == 1 and not format.repeats_scales:
        refill(rng, q.scales, near=rng.random() < 0.7)
    if is_alike and q.scales.dtype.name == "float32":
        q.scales.to_numpy()[...] = 0.25
    return with_offsets(rng, q) if format.has_integers else q


def options_of_unit(rng, is_stack, is_alike):
    """Of the global scale."""
    if is_alike:
        return {"global_scale": 0.0078125}
    if is_stack and rng.random() < 0.4:
        return {"recipe": dlfp4.Recipe(global_scale_per=rng.choice(["row", "matrix"]))}
    return {"global_scale": rng.choice([1.0, 2.0**-6, 0.003, 3e-38, 1e30])} if rng.random() < 0.5 else {}


def refill(rng, part, near=False):
    """Other codes in a tensor's part: any, or such as differ little."""
    there = part.view("uint8").to_numpy()
    filled = octets(rng, there.size).reshape(there.shape)
    there[...] = filled % 16 + rng.choice([0, 50, 110, 230]) if near else filled


def with_offsets(rng, q):
    """Integers with other zero points, or biases."""
    kind = rng.choice(["", "", "int8", "uint8", "uint4", "biases"])
    if not kind:
        return q
    shape = q.scales.shape
    if kind == "biases":
        offsets = {"biases": np.random.default_rng(rng.getrandbits(32)).standard_normal(shape).astype(np.float32)}
    else:
        codes = octets(rng, q.scales.size).reshape(shape).copy()  # to be written to
        codes = (codes & 15).view(ml_dtypes.uint4) if kind == "uint4" else codes.view(kind)
        offsets = {"zero_points": codes}
    return dlfp4.ScaledTensor.from_parts(q.data, q.scales, format=q.format, axis=q.axis, shape=q.shape, **offsets)


# ---- Arrow


def changed_storage(rng, storage):
    """The same array, or one of other values, or one whose bytes begin elsewhere."""
    import pyarrow as pa

    how = rng.random()
    if how < 0.2 or not len(storage):
        return storage
    if how < 0.4:
        name = rng.choice(["data", "scales", "global_scale"])
        part = moved_bytes(rng, storage.field(name))
        fields = [part if each.name == name else storage.field(each.name) for each in storage.type]
        return pa.StructArray.from_arrays(fields, fields=list(storage.type), mask=storage.is_null())
    rows = storage.to_pylist()
    for _ in range(rng.randrange(1, 4)):
        makers.change_json(rng, rows)
    for row in filter(None, rows):
        for part in row.values() if isinstance(row, dict) else ():
            if isinstance(part, dict) and isinstance(part.get("bytes"), bytes) and rng.random() < 0.1:
                part["bytes"] = makers.changed_bytes(rng, part["bytes"] or b"0", 1 << 20)
    return pa.array(rows, storage.type)


def moved_bytes(rng, part):
    """A part whose bytes begin and end at other places."""
    import pyarrow as pa

    octets = part.field("bytes")
    _, offsets, whole = octets.buffers()
    places = np.frombuffer(offsets, np.int64)[: len(octets) + 1].copy()
    places[rng.randrange(len(places))] = rng.choice([makers.number(rng), 0, 1, 16, 10**6])
    if rng.random() < 0.2:
        whole = None
    moved = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(octets), [None, pa.py_buffer(places), whole])
    fields = [moved if each.name == "bytes" else part.field(each.name) for each in part.type]
    return pa.StructArray.from_arrays(fields, fields=list(part.type))


# ---- tvm-ffi


def described(q):
    """A tensor as arguments: format, axis, layout, parts."""
    offsets = q.zero_points if q.zero_points is not None else q.biases
    return q.format.name, q.axis, q.scale_layout, q.data, q.scales, q.global_scale, offsets


def call_of_tvm_ffi(rng):
    """A function, its arguments as they should be, and which tensors then have the bytes of which."""
    name = rng.choice(["cast", "quantize", "dequantize", "matmul"])
    format = rng.choice(FORMATS)
    x = np.random.default_rng(rng.getrandbits(32)).standard_normal((rng.choice([1, 4, 128]), 128)).astype(np.float32)
    if name == "cast":
        dtype = rng.choice(["float16", "float4_e2m1fn", "float6_e3m2fn", "float8_e5m2", "float32", "bfloat16"])
        out = dlfp4.empty(x.shape, dtype)
        return name, (dlfp4.asarray(x), out), ([out], [dlfp4.cast(x, dtype)])
    q = dlfp4.quantize(x, format, axis=rng.choice([-1, -2]) if name == "dequantize" and len(x) == 128 else -1, pad=True)
    if name == "quantize":
        x = np.resize(x, q.shape)
        wanted = dlfp4.quantize(x, format, axis=q.axis, pad=True)
        return name, (dlfp4.asarray(x), *described(q)), (parts_of(q), parts_of(wanted))
    if name == "dequantize":
        out = dlfp4.empty(q.shape, rng.choice(["float32", "bfloat16", "float16"]))
        return name, (*described(q), out), ([out], [q.dequantize(out.dtype)])
    alpha, out = rng.choice([1.0, 0.5, -3]), dlfp4.empty((len(x), q.shape[0]), "float32")
    wanted = dlfp4.matmul(x, q.mT, alpha=alpha)
    return name, (dlfp4.asarray(x), *described(q), out, alpha), ([out], [wanted])


def argument_of_tvm_ffi(rng):
    """Anything that tvm-ffi hands on."""
    return rng.choice([
        None, True, 0, -1, -2, -3, 2**31, 2**62, 0.5, float("nan"), "", "nvfp4", "mxfp4", "linear", "128x4", "x" * 50,
        b"bytes", dlfp4.asarray(makers.X), dlfp4.empty(0, "float32"), dlfp4.empty((), "float32"),
        dlfp4.empty((4, 128), "float32").T, dlfp4.empty((4, 128), "float64"), dlfp4.empty((128, 128), "float4_e2m1fn"),
        dlfp4.empty((2, 3, 128), "bfloat16"), dlfp4.empty((128, 8), "uint8"), dlfp4.empty((128, 4), "float8_e8m0fnu"),
        dlfp4.empty((1,) * 20, "float32"), dlfp4.asarray(makers.X)[::2, ::-1], makers.number(rng),
    ])  # fmt: skip
