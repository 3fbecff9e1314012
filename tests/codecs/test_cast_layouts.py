"""Where elements may lie: every length and alignment, any strides, packed rows that end within a byte; and the bytes
next to them, which belong to others."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dlfp4

from ..support.capsules import PADDED, Made, compact, element_codes
from ..support.levels import CODEC_LEVELS, run_at
from ..support.reference import (
    BITS,
    FLOATS_BELOW_8,
    SUBBYTE,
    codec,
    codes_of,
    dtype_of,
    expected_bytes,
    misaligned,
    native_cast,
    of_codes,
    packed_bytes,
    random_codes,
    raw_bytes,
    unpacked_codes,
)

pytestmark = pytest.mark.arithmetic

FP4 = "float4_e2m1fn"
SIDES = [
    (source, target)
    for low in (*FLOATS_BELOW_8, "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu")
    for wide in ("float32", "float16", "bfloat16", "float64")
    for source, target in ((wide, low), (low, wide))
] + [(FP4, "float8_e4m3fn"), ("float8_e5m2", "float6_e3m2fn"), ("float6_e2m3fn", FP4), ("float32", "bfloat16")]


def values_of(name, count, seed=0):
    """Random elements; of a wide type most of them near 1, so that they do not all saturate."""
    if BITS[name] <= 8:
        return random_codes(name, count, seed)
    near = np.random.default_rng([seed, count]).normal(0, 4, count)
    return native_cast(near, name)


def converted(values, target):
    """The codes to expect, of any finite values."""
    if BITS[target] <= 8:
        return codec(target).round(values)
    return codes_of(native_cast(values, target))


def tensor_over(memory, shape, name, packed, strides=None, **fields):
    flags = PADDED if BITS[name] < 8 and not packed else 0
    strides = compact(shape) if strides is None else strides
    if "int" in name:
        fields |= {"code": int(name.startswith("u")), "bits": BITS[name]}
    return dlfp4.from_dlpack(Made(memory, dtype=name, shape=shape, strides=strides, flags=flags, **fields).capsule)


def memory_of(values, name, packed):
    raw = expected_bytes(codes_of(values).ravel(), name, packed)
    return np.frombuffer(raw, np.uint8).copy() if raw else np.zeros(1, np.uint8)


def places(name):
    return [True, False] if BITS[name] < 8 else [False]


WAYS = [(s, p, t, q) for s, t in SIDES for p in places(s) for q in places(t)]


def way_id(way):
    source, packed, target, packs = way
    return f"{source}{'-packed' * packed}-{target}{'-packed' * packs}"


# ---- lengths and alignment -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS, ids=way_id)
def test_every_length(way):
    source, packed, target, packs = way
    values = values_of(source, 130)
    expected = converted(values, target)
    for count in range(131):
        tensor = tensor_over(memory_of(values[:count], source, packed), (count,), source, packed)
        result = dlfp4.cast(tensor, target, packed=packs)
        assert (result.shape, result.packed, result.dtype) == ((count,), packs, dtype_of(target))
        assert raw_bytes(result) == expected_bytes(expected[:count], target, packs), count


@pytest.mark.parametrize("way", WAYS, ids=way_id)
def test_every_alignment(way):
    """Both sides start `offset` bytes past a multiple of 64, the other side anywhere."""
    source, packed, target, packs = way
    values = values_of(source, 203)
    memory = memory_of(values, source, packed)
    wanted = expected_bytes(converted(values, target), target, packs)
    for offset in range(64):
        block = misaligned(len(memory), offset)
        block[:] = memory
        out = misaligned(len(wanted) + 2, (7 * offset + 63) % 64, 0x5A)
        result = tensor_over(out[1:-1], (203,), target, packs)
        dlfp4.cast(tensor_over(block, (203,), source, packed), target, out=result)
        assert out.tobytes() == b"\x5a" + wanted + b"\x5a", offset
        assert block.tobytes() == memory.tobytes()


@pytest.mark.parametrize("count", [4095, 4096, 4097, 65535, 131073, 200_001])
@pytest.mark.parametrize("target", [FP4, "float6_e2m3fn", "float8_e4m3fn"])
def test_long_runs(count, target):
    values = values_of("float32", count)
    expected = converted(values, target)
    result = dlfp4.cast(values, target)
    assert raw_bytes(result) == expected_bytes(expected, target, True)
    back = dlfp4.cast(result, "float32")
    assert raw_bytes(back) == native_cast(of_codes(expected, target), "float32").tobytes()


# ---- strides -------------------------------------------------------------------------------------------------------

VIEWS = {
    "transposed": lambda a: a.T,
    "reversed": lambda a: a[::-1, :, ::-1],
    "every second": lambda a: a[:, ::2, 1::2],
    "inner transposed": lambda a: a.swapaxes(1, 2),
    "rows apart": lambda a: a[:, :, 3:70],
    "broadcast": lambda a: np.broadcast_to(a[:, :1, :], (4, 6, 72)),
    "broadcast inner": lambda a: np.broadcast_to(a[:, :, :1], (4, 5, 70)),
    "one element": lambda a: a[1:2, 1:2, 1:2],
    "0-d": lambda a: a[1, 2, 3, ...],
    "empty": lambda a: a[:, :0, ::-1],
    "many dimensions": lambda a: a.reshape(2, 2, 5, 2, 3, 4, 3).transpose(6, 0, 5, 2, 4, 1, 3),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(("source", "target"), SIDES)
def test_strided_inputs(source, target, view):
    """NumPy's memory: padded where the type is below 8 bits."""
    values = VIEWS[view](values_of(source, 4 * 5 * 72).reshape(4, 5, 72))
    expected = converted(values, target).ravel()
    for packs in places(target):
        result = dlfp4.cast(values, target, packed=packs)
        assert result.shape == values.shape
        assert raw_bytes(result) == expected_bytes(expected, target, packs)


@pytest.mark.parametrize("view", [name for name in VIEWS if "broadcast" not in name])
@pytest.mark.parametrize("target", [FP4, "float6_e3m2fn", "float8_e4m3fn", "float16"])
def test_strided_outputs(target, view):
    """Written where they belong, and nowhere else."""
    block = np.full(4 * 5 * 72 * dtype_of(target).itemsize, 0x15, np.uint8).view(dtype_of(target)).reshape(4, 5, 72)
    model = block.copy()
    out = VIEWS[view](block)
    assert np.shares_memory(out, block) or not out.size
    values = values_of("float32", max(out.size, 1))[: out.size].reshape(out.shape)
    VIEWS[view](model)[...] = of_codes(converted(values, target), target)
    result = dlfp4.cast(values, target, out=out)
    assert result.shape == out.shape
    assert block.tobytes() == model.tobytes()


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(FLOATS_BELOW_8),
    dims=st.lists(st.tuples(st.integers(0, 9), st.integers(-9, 9)), max_size=3),
    packs=st.booleans(),
)
def test_packed_inputs_of_any_strides(name, dims, packs):
    shape, strides = tuple(n for n, _ in dims), tuple(s for _, s in dims)
    memory = np.random.default_rng(3).integers(0, 256, 512, dtype=np.uint8)
    tensor = tensor_over(memory, shape, name, True, strides, data=memory.ctypes.data + 256)
    codes = np.array(element_codes(memory, BITS[name], shape, strides, start=2048), np.uint8)
    values = native_cast(of_codes(codes, name), "float32")
    assert raw_bytes(dlfp4.cast(tensor, "float32")) == values.tobytes()
    assert raw_bytes(dlfp4.cast(tensor, "float8_e5m2")) == native_cast(values, "float8_e5m2").tobytes()
    assert raw_bytes(dlfp4.cast(tensor, name, packed=packs)) == expected_bytes(codes, name, packs)


OUT_STRIDES = [  # each tells every element apart
    ((6, 8), (1, 6)), ((6, 8), (16, 1)), ((6, 8), (-8, 1)), ((6, 8), (8, -1)), ((5, 3), (1, 5)), ((3, 5), (5, 1)),
    ((3, 5), (7, 1)), ((2, 3, 4), (4, 8, 1)), ((7,), (3,)), ((7,), (-1,)), ((3, 70), (74, 1)), ((3, 67), (68, 1)),
    ((), ()),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "strides"), OUT_STRIDES, ids=str)
@pytest.mark.parametrize("name", FLOATS_BELOW_8)
def test_packed_outputs_of_any_strides(name, shape, strides):
    """Elements in between keep their bits, unless they are the spare ones of the last byte of a tensor without gaps."""
    bits, size = BITS[name], math.prod(shape)
    out = np.random.default_rng(4).integers(0, 256, 512, dtype=np.uint8)
    before = np.unpackbits(out, bitorder="little")
    values = values_of("float32", size).reshape(shape)
    tensor = tensor_over(out, shape, name, True, strides, data=out.ctypes.data + 240)
    dlfp4.cast(values, name, out=tensor)
    expected = converted(values, name).ravel()
    assert element_codes(out, bits, shape, strides, start=1920) == expected.tolist()
    touched = np.zeros(len(before), bool)
    for index in np.ndindex(*shape):
        first = 1920 + bits * sum(i * s for i, s in zip(index, strides, strict=True))
        touched[first : first + bits] = True
    spare = np.flatnonzero(touched)[-1] // 8 * 8 + 8
    dense = touched.sum() == np.flatnonzero(touched)[-1] - np.flatnonzero(touched)[0] + 1
    if dense:
        touched[np.flatnonzero(touched)[-1] : spare] = True
    after = np.unpackbits(out, bitorder="little")
    assert (after == before)[~touched].all()


# ---- packing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape", [(), (0,), (1,), (2,), (3,), (5,), (3, 5), (3, 0), (2, 3, 7), (4, 33), (1001,)], ids=str
)
@pytest.mark.parametrize("name", SUBBYTE)
def test_pack_and_unpack(name, shape):
    count, bits = math.prod(shape), BITS[name]
    dirty = np.random.default_rng([9, count]).integers(0, 256, shape, dtype=np.uint8)
    codes = (dirty & ((1 << bits) - 1)).astype(np.uint8)
    packed = dlfp4.pack(tensor_over(np.atleast_1d(dirty) if count else np.zeros(1, np.uint8), shape, name, False))
    assert (packed.shape, packed.packed, packed.nbytes) == (shape, True, -(-count * bits // 8))
    assert raw_bytes(packed) == packed_bytes(codes, bits)
    assert raw_bytes(dlfp4.pack(packed)) == raw_bytes(packed)
    unpacked = dlfp4.unpack(packed)
    assert (unpacked.shape, unpacked.packed, unpacked.nbytes) == (shape, False, count)
    assert raw_bytes(unpacked) == codes.tobytes()
    assert unpacked_codes(raw_bytes(packed), bits, count).tobytes() == codes.tobytes()


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 9, 15, 65, 127])
@pytest.mark.parametrize("name", SUBBYTE)
def test_spare_bits_are_ignored_and_written_as_zero(name, count):
    bits = BITS[name]
    raw = np.full(-(-count * bits // 8), 0xFF, np.uint8)
    tensor = tensor_over(raw, (count,), name, True)
    ones = (1 << bits) - 1
    assert raw_bytes(dlfp4.unpack(tensor)) == bytes([ones]) * count
    clean = packed_bytes(np.full(count, ones, np.uint8), bits)
    assert raw_bytes(dlfp4.pack(tensor)) == clean
    out = np.full(len(raw) + 1, 0xFF, np.uint8)
    dlfp4.pack(tensor, out=tensor_over(out, (count,), name, True))
    assert out.tobytes() == clean + b"\xff"


ODD = {
    "reversed": lambda: values_of("float32", 7)[::-1],
    "transposed": lambda: values_of("float32", 15).reshape(3, 5).T,
    "rows apart": lambda: values_of("float32", 3 * 140).reshape(3, 140)[:, 3:70],
    "every second": lambda: values_of("float32", 2001)[::2],
    "broadcast": lambda: np.broadcast_to(values_of("float32", 9), (3, 9)),
}


@pytest.mark.parametrize("layout", ODD)
@pytest.mark.parametrize("name", FLOATS_BELOW_8)
def test_spare_bits_of_strided_inputs_are_zero(name, layout):
    """Element by element or row by row, into memory full of ones; the byte behind is another's."""
    values = ODD[layout]()
    wanted = packed_bytes(converted(values, name), BITS[name])
    assert values.size * BITS[name] % 8
    out = np.full(len(wanted) + 1, 0xFF, np.uint8)
    dlfp4.cast(values, name, out=tensor_over(out, values.shape, name, True))
    assert out.tobytes() == wanted + b"\xff"


@pytest.mark.parametrize("name", FLOATS_BELOW_8)
def test_rows_that_end_within_a_byte(name):
    """A compact tensor packs as a whole; its transpose and its rows read the same elements."""
    values = values_of("float32", 5 * 67).reshape(5, 67)
    codes = converted(values, name)
    packed = dlfp4.cast(values, name)
    assert (packed.strides, raw_bytes(packed)) == ((67, 1), packed_bytes(codes, BITS[name]))
    assert (
        raw_bytes(dlfp4.cast(packed.T, "float32")) == native_cast(of_codes(codes.T.copy(), name), "float32").tobytes()
    )
    assert raw_bytes(dlfp4.cast(packed[4], "float16")) == native_cast(of_codes(codes[4], name), "float16").tobytes()
    with pytest.raises(BufferError, match=r"(?i)copy"):
        dlfp4.cast(packed[1], "float32")


def test_byte_order_of_groups():
    """Two FP4 a byte, four FP6 in three, element 0 in the low bits."""
    fp4 = dlfp4.pack(of_codes([1, 2, 3], FP4))
    assert raw_bytes(fp4) == bytes([0x21, 0x03])
    e = [0b110101, 0b011011, 0b101110, 0b010011]
    groups = [e[0] | e[1] << 6, e[1] >> 2 | e[2] << 4, e[2] >> 4 | e[3] << 2]
    assert raw_bytes(dlfp4.pack(of_codes(e, "float6_e2m3fn"))) == bytes(byte & 255 for byte in groups)
    assert raw_bytes(dlfp4.pack(of_codes([1, 2, 3, 0, 1], "uint2"))) == bytes([0b00111001, 1])


# ---- guard pages ---------------------------------------------------------------------------------------------------

GUARDED = """
import numpy as np
import dlfp4
import reference
from capsules import Made
from reference import BITS, FLOATS, SUBBYTE, Guarded

def places(name):
    return (True, False) if BITS[name] < 8 else (False,)

def size_of(count, name, packed):
    return -(-count * BITS[name] // 8) if packed else count * -(-BITS[name] // 8)

def tensor(memory, count, name, packed):
    if not packed:
        return memory.view(reference.dtype_of(name))
    wire = {"code": int(name[0] == "u"), "bits": BITS[name]} if "int" in name else {}
    return dlfp4.from_dlpack(Made(memory, dtype=name, shape=(count,), strides=(1,), **wire).capsule)

A, B = Guarded(8 * 1100), Guarded(8 * 1100)
A.inner[:] = np.random.default_rng(5).integers(0, 256, len(A.inner), dtype=np.uint8)
ENDS = [(False, True), (True, False)]
COUNTS = [1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 66, 67, 127, 128, 130, 1027]

def run(call, source, packed, target, packs, counts=COUNTS):
    for count in counts:
        for left, right in ENDS:
            x = tensor(A.flush(size_of(count, source, packed), left), count, source, packed)
            call(x, out=tensor(B.flush(size_of(count, target, packs), right), count, target, packs))

dlfp4.set_num_threads(1)
done = 0
for source in FLOATS:
    for target in FLOATS:
        for packed in places(source):
            for packs in places(target):
                run(lambda x, out: dlfp4.cast(x, target, out=out), source, packed, target, packs)
                for options in ({"rounding": "toward_zero"}, {"rounding": "stochastic", "seed": 1}):
                    run(lambda x, out: dlfp4.cast(x, target, out=out, saturate=False, **options),
                        source, packed, target, packs, (7, 65))
                done += 1
for name in SUBBYTE:
    for operation, packs in ((dlfp4.pack, True), (dlfp4.unpack, False)):
        for packed in (True, False):
            run(operation, name, packed, name, packs, range(1, 131))
            done += 1
for rows, columns, name in ((130, 65, "float8_e4m3fn"), (64, 40, "float32"), (70, 20, "bfloat16")):
    for left, right in ENDS:
        size = size_of(rows * columns, name, False)
        x = A.flush(size, left).view(reference.dtype_of(name)).reshape(rows, columns)
        out = B.flush(size, right).view(x.dtype).reshape(columns, rows)
        dlfp4.cast(x.T, name, out=out)
        assert out.tobytes() == x.T.tobytes()
print(done)
"""


@pytest.mark.parametrize("level", CODEC_LEVELS)
def test_no_byte_past_either_end(level):
    assert int(run_at(level, GUARDED)) == 18 * 18 + len(SUBBYTE) * 4


TURNED_SIZE = 130 * 2400  # enough for several threads
TURNS = {
    "columns": lambda x: x.reshape(130, -1).T,
    "stack": lambda x: x.reshape(3, 26, -1).transpose(0, 2, 1),
    "short rows": lambda x: x.reshape(10, 13, -1).T,
    "outer neighbours": lambda x: x.reshape(20, 40, -1)[:, :30].transpose(2, 0, 1),
    "reversed dimensions": lambda x: x.reshape(20, 26, -1).T,
    "backwards": lambda x: x.reshape(130, -1)[::-1].T,
    "part": lambda x: x.reshape(130, -1)[1:, 3:2100].T[:, 1:],
    "repeated": lambda x: np.broadcast_to(x[:2400][:, None], (2400, 200)),
}
TURNED = [
    ("float32", "float32"), ("float32", "float8_e4m3fn"), ("bfloat16", "float32"), ("float16", "float4_e2m1fn"),
    ("float8_e5m2", "bfloat16"), ("float64", "float6_e2m3fn"), ("complex128", "complex128"), ("uint8", "uint8"),
]  # fmt: skip


@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize(("source", "target"), TURNED)
def test_rows_whose_elements_lie_apart(source, target, turn, threads):
    """Tiles of rows that are neighbours in memory: by the same bytes as from memory in order, on any threads."""
    bits = np.random.default_rng(3).integers(0, 256, TURNED_SIZE * 16, np.uint8)
    x = TURNS[turn](bits.view(dtype_of(source))[:TURNED_SIZE])
    for options in ({}, {"rounding": "stochastic", "seed": 9}):
        if source == target and options:
            continue
        expected = raw_bytes(dlfp4.cast(np.ascontiguousarray(x), target, **options))
        for count in (1, 3):
            threads(count)
            assert raw_bytes(dlfp4.cast(x, target, **options)) == expected, count


def test_long_packed_rows_that_start_within_a_byte():
    raw = np.random.default_rng(0).integers(0, 256, 128, np.uint8)
    tensor = dlfp4.from_dlpack(Made(raw, code=17, bits=4, shape=(3, 65), strides=(67, 1)).capsule)
    codes = np.stack([raw & 15, raw >> 4], axis=1).reshape(-1)
    expected = np.stack([codes[i * 67 : i * 67 + 65] for i in range(3)])
    assert dlfp4.unpack(tensor).view("uint8").tolist() == expected.tolist()
    assert dlfp4.cast(tensor, "float32").tolist() == expected.view("float4_e2m1fn").astype(np.float32).tolist()
