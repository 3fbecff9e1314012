"""Hostile and odd capsules: an exception of the right type with the capsule left alone, or the right values.

Every capsule is imported by a worker process: what would kill or hang the runner is reported as that case's failure.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

try:
    from ..support import capsules
except ImportError:  # the worker runs this file as a script
    import capsules

REFUSALS = ("BufferError", "TypeError", "ValueError")
F32, FP4, E2M3, E3M2 = (2, 32), (17, 4), (15, 6), (16, 6)


# ---- the worker: one capsule per request, as a line of JSON --------------------------------------------------------


def make(request):
    """The capsule of a request: `at` is the data's offset in `count` random bytes, None a NULL pointer; `address` is
    that of the data itself."""
    fields = {k: tuple(v) if isinstance(v, list) else v for k, v in request["fields"].items()}
    memory = capsules.random_bytes(fields.pop("count", 128))
    at = fields.pop("at", 0)
    if "name" in fields and fields["name"] is not None:
        fields["name"] = fields["name"].encode()
    data = fields.pop("address", None if at is None else memory.ctypes.data + at)
    return capsules.Made(memory, data=data, **fields)


def describe(tensor, memory):
    """Every attribute that reads no element; repr does."""
    from dlfp4.show import summary

    names = ("shape", "strides", "ndim", "size", "nbytes", "packed", "readonly")
    seen = {name: getattr(tensor, name) for name in names}
    seen |= {"dtype": np.dtype(tensor.dtype).name, "device": str(tensor.device), "summary": summary(tensor)}
    seen["length"] = len(tensor) if tensor.ndim else None
    seen["at"] = tensor.data_ptr - memory.ctypes.data
    seen["dlpack_device"] = [int(n) for n in tensor.__dlpack_device__()]
    return seen


def export(tensor):
    """Export and throw away; the outcome, since padded, strided or foreign data may be refused."""
    try:
        tensor.__dlpack__(max_version=(1, 3))
    except (BufferError, ValueError) as error:
        return type(error).__name__
    return "ok"


def attempt(request):
    import dlfp4

    made = make(request)
    device = made.struct_device if request["honest"] else (1, 0)
    source = capsules.Producer(made, device) if request["via"] == "producer" else made.capsule
    answer = {"outcome": "ok", "message": ""}
    try:
        tensor = dlfp4.from_dlpack(source)
        answer |= describe(tensor, made.memory)
        if request["read"]:
            answer["bytes"] = np.ascontiguousarray(tensor.to_numpy()).tobytes().hex()
        answer["export"] = export(tensor)
    except Exception as error:
        answer |= {"outcome": type(error).__name__, "message": str(error)}
    answer |= {"name": None if made.name is None else made.name.decode(), "deleted": made.deleted}
    tensor = source = None
    answer["released"] = made.deleted
    made.drop()
    return answer | {"finally": made.deleted, "stray": len(capsules.STRAY)}


def serve():
    for line in sys.stdin:
        print(json.dumps(attempt(json.loads(line))), flush=True)


class Worker:
    """Asks a child process; one that dies or hangs is an answer too, and the next question gets a new child."""

    def __init__(self):
        self.process = None

    def start(self):
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed with the worker)
        command = [sys.executable, "-X", "faulthandler", __file__]
        env = {**os.environ, "PYTHONPATH": str(Path(capsules.__file__).parent)}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True, env=env
        )

    def ask(self, fields, *, via="capsule", read=False, honest=True):
        if self.process is None:
            self.start()
        watchdog = threading.Timer(60, self.process.kill)
        watchdog.start()
        request = {"fields": fields, "via": via, "read": read, "honest": honest}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        watchdog.cancel()
        return json.loads(line) if line else self.obituary()

    def obituary(self):
        code = self.process.wait()
        self.errors.seek(0)
        report = self.errors.read()[-3000:]
        self.close()
        return {"outcome": f"the interpreter died with exit code {code}", "message": report}

    def close(self):
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait()
            self.process.stdout.close()
            self.errors.close()
            self.process = None


@pytest.fixture(scope="module")
def worker():
    worker = Worker()
    yield worker
    worker.close()


# ---- the table -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    id: str
    fields: dict
    outcome: tuple[str, ...] = ("BufferError",)
    says: tuple[str, ...] = ()  # patterns of the refusal's message
    versioned_only: bool = False
    read: bool = True
    logical: tuple = field(default=None)  # (shape, strides) of the Tensor, where not the capsule's own


def shaped(shape, dtype=F32, **fields):
    return {"shape": shape, "code": dtype[0], "bits": dtype[1], **fields}


def refused(id, fields, *says, **options):
    return Case(id, fields, says=says, **options)


def accepted(id, fields, **options):
    return Case(id, fields, outcome=("ok",), **options)


BIG, FAR = 2**62, 2**63 - 2**59
NULLS = [
    refused("null-data", shaped((4,), at=None), "(?i)null"),
    refused("null-data-with-offset", shaped((4,), at=None, byte_offset=64), "(?i)null"),
    refused("shape-null-1", shaped(None, ndim=1), "(?i)null"),
    refused("shape-null-3", shaped(None, ndim=3), "(?i)null"),
    accepted("strides-null", shaped((2, 3), strides=None), logical=((2, 3), (3, 1))),
    accepted("strides-null-fp4", shaped((3, 5), FP4, strides=None), logical=((3, 5), (5, 1))),
    accepted("deleter-null", shaped((4,), deleter=False)),
    accepted("scalar-null-shape-and-strides", shaped(None, ndim=0, strides=None), logical=((), ())),
    accepted("scalar", shaped(())),
    accepted("empty-null-data", shaped((0,), at=None)),
    accepted("empty-inside-null-data", shaped((3, 0, 2), at=None)),
]
SHAPES = [
    refused("negative", shaped((-1,)), "-1"),
    refused("negative-second", shaped((4, -2)), "-2"),
    refused("negative-twice", shaped((-2, -2)), "-2"),  # the product is a plausible 4
    refused("negative-beside-zero", shaped((0, -1)), "-1"),
    refused("negative-huge", shaped((-(2**63),))),
    Case("ndim-65", shaped((1,) * 64 + (4,)), outcome=("ok",), read=False),
    Case("ndim-65535", shaped((1,) * 65534 + (4,)), outcome=("ok",), read=False),
    refused("ndim-65536", shaped((1,) * 65535 + (4,)), "between 0 and 65535"),
    refused("ndim-million", shaped((4,), ndim=10**6), "1000000"),
    refused("ndim-million-nowhere", shaped(16, strides=16, ndim=10**6), "1000000"),
    refused("ndim-max-nowhere", shaped(16, strides=16, ndim=2**31 - 1), "2147483647"),
    refused("ndim-minus-one", shaped((4,), ndim=-1), "-1"),
    refused("ndim-min", shaped((4,), ndim=-(2**31))),
    refused("product-overflow", shaped((2**32, 2**32)), "4294967296|(?i:overflow)"),
    refused("product-overflow-fp4", shaped((2**32, 2**32), FP4)),
    refused("bytes-overflow", shaped((2**63 - 1,)), "9223372036854775807|(?i:overflow)"),
    accepted("broadcast-to-the-most-bytes", shaped((2**60 - 1,), (1, 8), strides=(0,)), read=False),
    refused("broadcast-to-more", shaped((2**60,), (1, 8), strides=(0,)), "more elements than memory can hold"),
    Case("empty-of-overflow", shaped((BIG, BIG, 0)), outcome=("ok",), read=False),
    accepted("empty-with-wild-strides", shaped((0, 3), strides=(-1, BIG))),
    accepted("empty-inside-wild-strides", shaped((2, 0, 2), strides=(BIG, -BIG, -(2**63)))),
    Case("empty-before-overflow", shaped((0, BIG, BIG)), outcome=("ok",), read=False),
]
STRIDES = [
    *(refused(f"stride{s:+d}", shaped((4,), strides=(s,))) for s in (BIG, -BIG, -(2**63), 2**63 - 1)),
    refused("extents-overflow-together", shaped((3, 3), strides=(2**60, 2**60))),
    refused("extents-overflow-fp4", shaped((3, 3), FP4, strides=(BIG, BIG))),
    accepted("stride-minus-one", shaped((4,), strides=(-1,), at=12)),
    accepted("stride-minus-two-rows", shaped((3, 2), strides=(-2, 1), at=16)),
    accepted("stride-zero", shaped((3, 4), strides=(0, 1))),
    accepted("stride-zero-all", shaped((3, 4), strides=(0, 0))),
    accepted("stride-77-of-one", shaped((1, 4, 1), strides=(77, 1, 77))),
    accepted("stride-min-of-one", shaped((1, 4), strides=(-(2**63), 1)), logical=((1, 4), None)),
    accepted("strided", shaped((2, 2), strides=(5, 2))),
    accepted("transposed", shaped((3, 2), strides=(1, 3))),
]
OFFSETS = [
    accepted("byte-offset", shaped((4,), byte_offset=8)),
    accepted("byte-offset-odd", shaped((4,), byte_offset=3)),
    accepted("misaligned-data", shaped((4,), at=1)),
    accepted("misaligned-both", shaped((2, 2), at=1, byte_offset=1)),
    refused("byte-offset-wraps", shaped((4,), byte_offset=2**64 - 4)),
    refused("byte-offset-negative", shaped((4,), byte_offset=2**63)),
    refused("byte-offset-of-the-last-address", shaped((4,), address=2**64 - 1, byte_offset=1)),
    refused("byte-offset-over-the-last-address", shaped((4,), address=2**64 - 1, byte_offset=64)),
    refused("the-last-address", shaped((4,), address=2**64 - 1)),
    refused("compact-over-the-end", shaped((4,), address=2**63 - 8), "outside the address space"),
    refused("compact-over-the-end-of-offsets", shaped((4,), device=(7, 0), byte_offset=2**63 - 8), "outside"),
    refused("an-offset-from-null", shaped((4,), address=256), "offset from NULL"),
]


def wrong_dtype(code, bits, lanes):
    # The message names code, bits and lanes, by number or (the code) by name.
    says = (rf"\b{bits}\b", rf"\b{lanes}\b") + ((rf"\b{code}\b",) if code > 17 else ())
    return refused(f"dtype-{code}-{bits}-{lanes}", shaped((4,), (code, bits), lanes=lanes), *says)


MISMATCHED = [
    (2, 31, 1), (2, 8, 1), (2, 0, 1), (0, 3, 1), (1, 24, 1), (4, 32, 1), (5, 32, 1), (6, 16, 1), (3, 64, 1),
    *((code, 4, 1) for code in range(7, 15)), (10, 16, 1), (15, 8, 1), (16, 4, 1), (17, 8, 1), (17, 6, 1),
    (2, 32, 0), (17, 4, 0), (10, 8, 0), (2, 32, 2), (1, 8, 4), (10, 8, 2), (15, 6, 2), (17, 4, 3), (17, 4, 65535),
    (200, 32, 1), (18, 8, 1), (255, 255, 65535),
]  # fmt: skip
TYPES = [
    *(wrong_dtype(*dtype) for dtype in MISMATCHED),
    *(accepted(name, shaped((2, 3), dtype)) for name, dtype in capsules.DTYPES.items()),
    accepted("fp4-lanes-2", shaped((2, 3), FP4, lanes=2), logical=((2, 6), (6, 1))),
    accepted("fp4-pairs-of-nothing", shaped((0, 3), FP4, lanes=2, strides=(1, 7)), logical=((0, 6), None)),
    accepted("fp4-one-pair", shaped((1, 1), FP4, lanes=2, strides=(1, 5)), logical=((2, 1), (1, 1))),
    refused("fp4-pairs-overflow", shaped((2**61,), FP4, lanes=2), "overflow when pairs are counted"),
    accepted("fp4-padded", shaped((2, 3), FP4, flags=4), versioned_only=True),
    accepted("fp6-e2m3-padded", shaped((2, 3), E2M3, flags=4), versioned_only=True),
    accepted("fp6-e3m2-padded", shaped((2, 3), E3M2, flags=4), versioned_only=True),
    accepted("padded-flag-on-float32", shaped((4,), flags=4), versioned_only=True),
    accepted("unknown-flags", shaped((4,), flags=1 << 5 | 1 << 40 | 1 << 63), versioned_only=True),
    accepted("read-only", shaped((4,), flags=1), versioned_only=True),
]
DEVICES = [
    accepted("cuda-marked-host-pointer", shaped((4,), device=(2, 0)), read=False),
    *(refused(f"device-index-{pair}", shaped((4,), device=pair), "device") for pair in ((1, -1), (2, -1))),
    refused("stride-below-zero", shaped((2,), strides=(-(2**58),)), "outside the address space"),
    accepted("a-handle", shaped((4,), device=(7, 0)), read=False),
    accepted("a-handle-of-much", shaped((2**58,), (1, 8), device=(7, 0)), read=False),
    accepted("much-behind-a-handle", shaped((2**57,), (1, 8), device=(7, 0), byte_offset=64), read=False),
    accepted("to-the-last-offset", shaped((2**59 - 8,), (1, 8), device=(7, 0), byte_offset=FAR), read=False),
    refused("over-the-last-offset", shaped((2**59 - 7,), (1, 8), device=(7, 0), byte_offset=FAR), "outside"),
    refused("far-over-the-last-offset", shaped((2**59,), (1, 8), device=(7, 0), byte_offset=FAR), "outside"),
    accepted("before-a-handle-that-is-offset", shaped((2,), strides=(-4,), device=(7, 0), byte_offset=16), read=False),
    refused("stride-before-a-handle", shaped((2,), strides=(-4,), device=(7, 0)), "outside the address space"),
    refused(
        "a-byte-before-a-handle", shaped((2,), strides=(-4,), device=(7, 0), byte_offset=15), "outside the address"
    ),
    refused(
        "half-a-byte-before-a-handle", shaped((2,), FP4, strides=(-1,), device=(7, 0)), "outside the address space"
    ),
    *(refused(f"device-{n}", shaped((4,), device=(n, 0)), rf"{n}\b") for n in (0, -1, 5, 6, 22, 99, 2**31 - 1)),
]
VERSIONS = [
    accepted("minor-99", shaped((4,), version=(1, 99)), versioned_only=True),
    accepted("minor-0", shaped((4,), version=(1, 0)), versioned_only=True),
]
NAMES = [
    Case(f"name-{name}", shaped((4,), name=name), outcome=("TypeError", "BufferError"))
    for name in (None, "", "foo", "dltensor_", "dltensor_versioned_", "used_dltensor", "used_dltensor_versioned")
]
TABLE = NULLS + SHAPES + STRIDES + OFFSETS + TYPES + DEVICES + VERSIONS + NAMES


VARIANTS = [
    pytest.param(case, versioned, id=f"{case.id}-{'versioned' if versioned else 'legacy'}")
    for case in TABLE
    for versioned in ((True,) if case.versioned_only else (True, False))
]


def expected_bytes(fields, shape, strides):
    """What `to_numpy` of the capsule must hold: the model's codes, each in its own bytes."""
    raw, bits, padded = (
        capsules.random_bytes(fields.get("count", 128)),
        fields["bits"],
        bool(fields.get("flags", 0) & 4),
    )
    start = 8 * ((fields.get("at") or 0) + fields.get("byte_offset", 0))
    strides = [0 if n == 1 else s for n, s in zip(shape, strides, strict=True)]
    codes = capsules.element_codes(raw, bits, shape, strides, padded=padded and bits < 8, start=start)
    return b"".join(code.to_bytes(max(bits // 8, 1), "little") for code in codes)


def low_bits(answer, bits):
    """The bytes read; the high bits of a padded element, which `to_numpy` shares with the producer, do not count."""
    data = bytes.fromhex(answer["bytes"])
    return bytes(byte & (1 << bits) - 1 for byte in data) if bits < 8 else data


def check_account(answer, fields):
    """The deleter once and only after the release; a refused capsule exactly as it came."""
    owed = 1 if fields.get("deleter", True) else 0
    first = fields.get("name", "dltensor_versioned" if fields["versioned"] else "dltensor")
    if answer["outcome"] == "ok":
        assert answer["name"] == "used_" + first
        assert (answer["deleted"], answer["released"], answer["finally"]) == (0, owed, owed)
    else:
        consumed = first is not None and first.startswith("used_")  # then its destructor owes nothing
        assert answer["name"] == first, "a refused capsule keeps its name"
        assert (answer["deleted"], answer["released"]) == (0, 0), "a refused capsule is its producer's to delete"
        assert answer["finally"] == (0 if consumed else owed)
    assert answer["stray"] == 0


def check_values(answer, case, fields):
    shape, strides = case.logical or (fields["shape"], fields.get("strides", capsules.compact(fields["shape"])))
    assert tuple(answer["shape"]) == shape
    if strides is not None:
        for n, ours, theirs in zip(shape, answer["strides"], strides, strict=True):
            assert n <= 1 or 0 in shape or ours == theirs  # of empty tensors they mean nothing
        assert low_bits(answer, fields["bits"]) == expected_bytes(fields, shape, strides)


@pytest.mark.parametrize("via", ["capsule", "producer"])
@pytest.mark.parametrize(("case", "versioned"), VARIANTS)
def test_row(worker, case, versioned, via):
    fields = {**case.fields, "versioned": versioned}
    read = case.read and "ok" in case.outcome
    answer = worker.ask(fields, via=via, read=read)
    assert answer["outcome"] in case.outcome, answer
    check_account(answer, fields)
    if answer["outcome"] == "ok" and read:
        check_values(answer, case, fields)
    for pattern in case.says:
        assert re.search(pattern, answer["message"]), answer["message"]


@pytest.mark.parametrize("via", ["capsule", "producer"])
@pytest.mark.parametrize("deleter", [True, False])
@pytest.mark.parametrize("major", [0, 2, 2**32 - 1])
def test_other_major_version(worker, major, deleter, via):
    """The deleter at once, and nothing else is read: every pointer of this one leads nowhere."""
    nowhere = shaped(16, strides=16, ndim=3, device=(99, 99), versioned=True)
    fields = {**nowhere, "version": (major, 0), "deleter": deleter, "flags": 2**64 - 1}
    answer = worker.ask(fields, via=via, honest=False)  # an unknown device would be refused before the capsule is made
    assert answer["outcome"] == "BufferError", answer
    assert re.search(rf"\b{major}\b", answer["message"]), answer["message"]
    assert answer["name"] == "used_dltensor_versioned"
    assert (answer["deleted"], answer["finally"], answer["stray"]) == (int(deleter), int(deleter), 0)


def test_host_pointer_marked_cuda(worker):
    answer = worker.ask(shaped((4,), device=(2, 0), versioned=True))
    assert (answer["outcome"], answer["device"], answer["dlpack_device"]) == ("ok", "cuda:0", [2, 0]), answer


def test_flags_are_kept(worker):
    for flags, readonly in ((0, False), (1, True), (5, True), (1 << 40, False)):
        answer = worker.ask(shaped((4,), FP4, flags=flags, versioned=True))
        assert (answer["readonly"], answer["packed"]) == (readonly, not flags & 4), answer


def test_rank_65_is_whole(worker):
    answer = worker.ask(shaped((1,) * 64 + (4,), versioned=True))
    assert (answer["outcome"], answer["ndim"], answer["size"]) == ("ok", 65, 4), answer
    assert tuple(answer["shape"]) == (1,) * 64 + (4,)


# What a rank beyond NumPy's meets: an operation on any rank gives the values, one on lines or new memory a message.
RANKS = """
import pickle
import numpy as np
import dlfp4

x = np.random.default_rng(5).normal(size=32).astype("float32")
for rank in (64, 65, 66, 200):
    shape = (1,) * (rank - 1) + (32,)
    t = dlfp4.asarray(x).reshape(shape)
    q = dlfp4.quantize(t, "mxfp4")
    parts = dlfp4.ScaledTensor.from_parts(q.data.view("uint8"), q.scales.view("uint8"), format="mxfp4", shape=shape)
    assert t.shape == q.shape == parts.shape == shape
    flat, weight = dlfp4.quantize(x, "mxfp4"), dlfp4.quantize(x.reshape(1, 32), "mxfp4")
    products = {
        "cast": (lambda: dlfp4.cast(t, "float8_e4m3fn").reshape((32,)), dlfp4.cast(x, "float8_e4m3fn")),
        "copy": (lambda: t.copy().reshape((32,)), x),
        "to_numpy": (lambda: t.to_numpy().reshape(32), x),
        "pickle": (lambda: pickle.loads(pickle.dumps(t)).reshape((32,)), x),
        "dequantize": (lambda: q.dequantize().reshape((32,)), flat.dequantize()),
        "dequantize parts": (lambda: parts.dequantize().reshape((32,)), flat.dequantize()),
        "vecdot": (lambda: dlfp4.vecdot(t, t).reshape(()), dlfp4.vecdot(x, x)),
        "vecdot parts": (lambda: dlfp4.vecdot(parts, x).reshape(()), dlfp4.vecdot(flat, x)),
        "matmul": (lambda: dlfp4.matmul(t, weight.mT).reshape((1,)), dlfp4.matmul(x, weight.mT)),
    }
    for name, (work, expected) in products.items():
        try:
            found = np.asarray(dlfp4.cast(work(), "float32"))
        except (BufferError, ValueError) as error:
            assert rank > 64 and "64" in str(error), (rank, name, error)
            print(rank, name, "refused")
        else:
            assert found.tobytes() == np.asarray(dlfp4.cast(expected, "float32")).tobytes(), (rank, name)
            print(rank, name, "ok")
"""


def test_operations_on_many_dimensions():
    found = capsules.run_python(RANKS).splitlines()
    assert len(found) == 4 * 9
    assert all(line.startswith("64 ") and line.endswith("ok") for line in found[:9])
    for line in found[9:]:
        anyone = line.split()[1] in ("cast", "copy", "pickle")
        assert line.endswith("ok" if anyone else "refused"), line


KERNEL_ON_HOST_POINTER = """
import capsules, dlfp4
made = capsules.Made(capsules.random_array((64,)), device=(2, 0))
tensor = dlfp4.from_dlpack(made.capsule)
calls = {
    "cast": lambda: dlfp4.cast(tensor, "float16"), "copy": tensor.copy, "to_numpy": tensor.to_numpy,
    "tolist": tensor.tolist, "item": tensor[0].item, "to_device": lambda: tensor.to_device("cpu"),
}
for name, call in calls.items():
    try:
        result = call()
    except (dlfp4.DriverError, BufferError) as error:
        print(name, type(error).__name__)
    else:
        print(name, "read host memory through a device pointer:", result)
"""


def test_kernel_on_a_host_pointer_marked_cuda():
    """Never a host read; the kernel itself says DriverError."""
    said = dict(line.split(" ", 1) for line in capsules.run_python(KERNEL_ON_HOST_POINTER).splitlines())
    assert said.pop("cast") == "DriverError"
    assert set(said) == {"copy", "to_numpy", "tolist", "item", "to_device"}
    assert set(said.values()) <= {"DriverError", "BufferError"}, said


# ---- read-only -----------------------------------------------------------------------------------------------------


def test_read_only_is_kept_and_honoured():
    import dlfp4

    made = capsules.Made(flags=capsules.READ_ONLY)
    before = made.memory.tobytes()
    tensor = dlfp4.from_dlpack(made.capsule)
    assert tensor.readonly
    assert not tensor.to_numpy().flags.writeable
    assert tensor[1:].readonly
    assert capsules.Managed(tensor.__dlpack__(max_version=(1, 3))).flags & capsules.READ_ONLY
    with pytest.raises((BufferError, ValueError), match=r"(?i)read.?only"):
        dlfp4.cast(np.full(4, 7, np.float16), "float32", out=tensor)
    assert made.memory.tobytes() == before


# ---- fuzz ----------------------------------------------------------------------------------------------------------

COUNT, MIDDLE = 8192, 2048  # four dimensions of 4 complex128 take 4096 bytes
HOSTILE = st.sampled_from([-1, -2, 2**31, 2**32, BIG, -BIG, 2**63 - 1, -(2**63), 10**9])


def seldom(plausible, hostile, chance=12):
    return st.integers(0, chance).flatmap(lambda n: hostile if n == chance else plausible)


@st.composite
def any_fields(draw):
    """Mostly plausible, now and then with one or more hostile fields."""
    dtype = st.sampled_from(list(capsules.DTYPES.values()))
    code, bits = draw(seldom(dtype, st.tuples(st.integers(0, 255), st.integers(0, 255)), 20))
    ndim = draw(st.integers(0, 4))
    shape = draw(st.tuples(*[seldom(st.integers(0, 4), HOSTILE, 30)] * ndim))
    strides = draw(st.none() | st.tuples(*[seldom(st.integers(-8, 8), HOSTILE, 30)] * ndim))
    fields = {"count": COUNT, "at": draw(seldom(st.just(MIDDLE) | st.integers(MIDDLE, MIDDLE + 9), st.none(), 30))}
    fields |= {"code": code, "bits": bits, "shape": shape, "strides": strides, "versioned": draw(st.booleans())}
    fields["lanes"] = draw(seldom(st.just(1), st.sampled_from([0, 2, 3, 65535])))
    fields["ndim"] = draw(seldom(st.just(ndim), st.integers(-3, 0) | st.sampled_from([70000, 2**31 - 1]), 30))
    fields["byte_offset"] = draw(seldom(st.integers(0, 9), st.sampled_from([2**64 - 4, 2**63, 2**64 - 1]), 30))
    fields["flags"] = draw(st.integers(0, 7) | st.just(0) | st.integers(0, 2**64 - 1))
    fields["version"] = draw(
        seldom(st.tuples(st.just(1), st.integers(0, 99)), st.tuples(st.integers(0, 3), st.just(0)))
    )
    fields["device"] = draw(seldom(st.just((1, 0)), st.tuples(st.integers(-1, 20), st.integers(-1, 3))))
    fields["deleter"] = draw(seldom(st.just(True), st.just(False)))
    return fields


def innocent(f):
    """A legal host capsule whose elements all lie in its memory: it must be imported, and read right."""
    fits = all(0 <= n <= 4 for n in f["shape"]) and all(abs(s) <= 8 for s in f["strides"] or ())
    legal = (f["code"], f["bits"]) in capsules.DTYPES.values() and f["lanes"] == 1 and f["ndim"] == len(f["shape"])
    there = f["at"] is not None and f["byte_offset"] < 10 and f["device"] == (1, 0)
    return fits and legal and there and (not f["versioned"] or f["version"][0] == 1)


@settings(max_examples=800, deadline=None, suppress_health_check=list(HealthCheck))
@given(fields=any_fields(), via=st.sampled_from(["capsule", "producer"]))
def test_fuzz(worker, fields, via):
    good = innocent(fields)
    answer = worker.ask(fields, via=via, read=good)
    if good:
        assert answer["outcome"] == "ok", answer
        strides = capsules.compact(fields["shape"]) if fields["strides"] is None else fields["strides"]
        flags = fields["flags"] if fields["versioned"] else 0
        assert low_bits(answer, fields["bits"]) == expected_bytes({**fields, "flags": flags}, fields["shape"], strides)
    assert answer["outcome"] in ("ok", *REFUSALS), answer
    if not (fields["versioned"] and fields["version"][0] != 1):
        check_account(answer, fields)


if __name__ == "__main__":
    serve()
