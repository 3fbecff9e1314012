"""Which kernels and copies the devices get, on a driver that is compiled here and needs no GPU."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dlfp4.config

COMPILER = shutil.which("cc")
DRIVER = Path(__file__).parents[1] / "kernels" / "stand_in_driver.c"
BUILT = "sm_0"  # as the driver names an image that serves the first device alone

pytestmark = [
    pytest.mark.skipif(not COMPILER, reason="no C compiler is on PATH"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="libcuda.so.1 is Linux's"),
]


@pytest.fixture(scope="module")
def driver_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("driver")
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", folder / "libcuda.so.1", DRIVER], check=True)
    return folder


def run(folder, code, **env):
    """Run code where the driver is the stand-in and NVRTC only says what it is asked for; return the lines printed."""
    preamble = """
import os, sys, types
import dlfp4

def load_image(image, architecture):
    os.write(1, f"compile {image} {architecture}\\n".encode())  # at once, between the lines that the driver writes
    return b"sm_" + architecture.encode()

def cast(device):
    dlfp4.cast(dlfp4.empty((4, 32), "float32", device=f"cuda:{device}"), "float16")

sys.modules["dlfp4.nvrtc"] = types.SimpleNamespace(load_image=load_image)
"""
    inherited = {name: value for name, value in os.environ.items() if name != "DLFP4_CUDA_IMAGE"}
    env = {**inherited, "LD_LIBRARY_PATH": str(folder), **env}
    command = [sys.executable, "-P", "-c", preamble + code]
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout.splitlines()


EACH_DEVICE_TWICE = "for device in (0, 1, 0, 1): cast(device)"


@pytest.mark.skipif(not dlfp4.config.cuda_image(), reason="this build has no CUDA kernels")
def test_nvrtc_is_asked_for_the_device_that_the_build_does_not_serve(driver_folder):
    printed = run(driver_folder, EACH_DEVICE_TWICE)
    assert printed == [f"0 {BUILT}", "compile codecs 120", "1 sm_120", f"0 {BUILT}", "1 sm_120"]


def test_nvrtc_is_asked_for_every_device_where_that_is_wanted(driver_folder):
    printed = run(driver_folder, EACH_DEVICE_TWICE, DLFP4_CUDA_IMAGE="nvrtc")
    assert printed == ["compile codecs 90", "0 sm_90", "compile codecs 120", "1 sm_120", "0 sm_90", "1 sm_120"]


@pytest.mark.parametrize(
    ("operation", "image"),
    [
        ("dlfp4.cast(x, 'float16')", "codecs"),
        ("x.T.copy()", "codecs"),
        ("dlfp4.quantize(x, 'nvfp4')", "blocks"),
        ("dlfp4.shuffle_weight(x)", "blocks"),
        ("q.with_scale_layout('128x4')", "blocks"),
        ("q.dequantize()", "blocks"),
        ("dlfp4.vecdot(x, x)", "dots"),
        ("q.prepare()", "products"),
    ],
)
def test_an_image_is_asked_for_by_the_first_operation_that_needs_it(driver_folder, operation, image):
    code = f"""
cast(0)
x = dlfp4.empty((32, 32), "float32", device="cuda:1")
parts = (dlfp4.empty(shape, "uint8", device="cuda:1") for shape in ((32, 16), (32, 1)))
q = dlfp4.ScaledTensor.from_parts(*parts, format="mxfp4")
{operation}
"""
    printed = run(driver_folder, code, DLFP4_CUDA_IMAGE="nvrtc")
    assert printed[:4] == ["compile codecs 90", "0 sm_90", f"compile {image} 120", "1 sm_120"]
    assert set(printed[4:]) <= {"1 sm_120"}


def test_what_nvrtc_cannot_compile_is_asked_for_again(driver_folder):
    code = """
def fail(image, architecture):
    raise RuntimeError(architecture)

sys.modules["dlfp4.nvrtc"].load_image = fail
for device in (1, 1):
    try:
        cast(device)
    except RuntimeError as error:
        print("failed", error, flush=True)
sys.modules["dlfp4.nvrtc"].load_image = load_image
cast(1)
"""
    printed = run(driver_folder, code, DLFP4_CUDA_IMAGE="nvrtc")
    assert printed == ["failed 120", "failed 120", "compile codecs 120", "1 sm_120"]


def test_threads_launch_the_kernels_of_their_devices(driver_folder):
    code = """
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

barrier = Barrier(8)

def work(number):
    barrier.wait()
    for _ in range(50):
        cast(number % 2)

with ThreadPoolExecutor(8) as pool:
    list(pool.map(work, range(8)))
"""
    printed = run(driver_folder, code, DLFP4_CUDA_IMAGE="nvrtc")
    launched = [line for line in printed if not line.startswith("compile")]
    assert (launched.count("0 sm_90"), launched.count("1 sm_120"), len(launched)) == (200, 200, 400)


def test_streams_of_another_device_are_refused(driver_folder):
    code = """
for device in (0, 1):
    x = dlfp4.empty((4, 32), "float32", device=f"cuda:{device}")
    for stream in (1, 2, 16, 1016):
        try:
            dlfp4.cast(x, "float16", stream=stream)
        except ValueError as error:
            print(error, flush=True)
"""
    printed = run(driver_folder, code, DLFP4_CUDA_IMAGE="nvrtc")
    assert [line for line in printed if line.startswith("stream=")] == [
        "stream=1016: a stream of cuda:1, and the data lies on cuda:0; pass a stream of cuda:0",
        "stream=16: a stream of cuda:0, and the data lies on cuda:1; pass a stream of cuda:1",
    ]
    assert (printed.count("0 sm_90"), printed.count("1 sm_120")) == (3, 3)


def test_copies_between_devices_name_both(driver_folder):
    """The driver's general copy refuses memory of GPUs that cannot reach each other's."""
    code = """
import numpy as np

x = np.arange(1, 1025, dtype=np.float32)
first = dlfp4.asarray(x).to_device("cuda:0")
second = first.to_device("cuda:1")
back = second[24:].to_device("cuda:0")
print(second.to_device("cpu").to_numpy().tobytes() == x.tobytes(), back.tolist() == x[24:].tolist(), flush=True)
first.to_device("cuda:0")
"""
    printed = run(driver_folder, code)
    assert printed == ["copy 4096 from 0 to 1 on 0", "copy 4000 from 1 to 0 on 1", "True True"]


FAILURES = """
import ctypes
import numpy as np
import dlfp4.analysis

driver = ctypes.CDLL("libcuda.so.1")
driver.stand_in_failed.restype = ctypes.c_char_p
driver.stand_in_held.restype = ctypes.c_long
driver.stand_in_fail.argtypes = [ctypes.c_long, ctypes.c_int]
FATAL, OUT_OF_MEMORY, EXCHANGE = 719, 2, "cuThreadExchangeStreamCaptureMode"
# What these were to give back is lost; and in silence what could not be freed: in a context or order that is not known.
RETURNING = ("cuMemFreeAsync", "cuEventDestroy")
KEEPING = (*RETURNING, "cuStreamIsCapturing", "cuStreamWaitEvent", "cuCtxPushCurrent", EXCHANGE)

x = dlfp4.empty((32, 64), "float32", device="cuda:0")
values = np.zeros((32, 64), np.float32)
parts = (dlfp4.empty(shape, "uint8", device="cuda:0") for shape in ((32, 32), (32, 2)))
q = dlfp4.ScaledTensor.from_parts(*parts, format="mxfp4")

q.prepare()
w = q.prepare()
parts = (dlfp4.empty(shape, "uint8", device="cuda:0") for shape in ((64, 32), (64, 2)))
experts = dlfp4.ScaledTensor.from_parts(*parts, format="mxfp4", shape=(2, 32, 64))
stack, ends = experts.prepare(), dlfp4.empty(2, "int64", device="cuda:0")
rows, weights = dlfp4.empty(32, "int64", device="cuda:0"), dlfp4.empty(32, "float32", device="cuda:0")
half = dlfp4.empty((32, 64), "bfloat16", device="cuda:0")
bytes_of_rows = dlfp4.quantize(dlfp4.empty((32, 128), "float32", device="cuda:0"), "fp8_row")
bytes_of_experts = dlfp4.quantize(dlfp4.empty((2, 32, 128), "float32", device="cuda:0"), "fp8_row")
integers = dlfp4.quantize(x, "uint4_g32")

def on_streams():
    y = dlfp4.cast(x, "float16", stream=1)
    return dlfp4.cast(y, "float8_e4m3fn", stream=2)

OPERATIONS = {
    "empty": lambda: dlfp4.empty((4, 4), "float32", device="cuda:0"),
    "cast": lambda: dlfp4.cast(x, "float16"),
    "streams": on_streams,
    "copy": lambda: x.T.copy(),
    "to the device": lambda: dlfp4.asarray(values).to_device("cuda:0"),
    "to the host": lambda: x.to_device("cpu"),
    "to another device": lambda: x.to_device("cuda:1"),
    "quantize": lambda: dlfp4.quantize(x, "nvfp4"),
    "both axes": lambda: dlfp4.quantize(x, "mxfp4", axis=(-1, -2)),
    "dequantize": lambda: q.dequantize(),
    "layout": lambda: q.with_scale_layout("128x4"),
    "shuffle": lambda: dlfp4.shuffle_weight(x),
    "vecdot": lambda: dlfp4.vecdot(x, x),
    "dot": lambda: dlfp4.dot(x[0], x[0]),
    "prepare": lambda: q.prepare(),
    "restore": lambda: w.with_scale_layout("linear"),
    "bytes along columns": lambda: dlfp4.quantize(x, "fp8_row", axis=-2),
    "blocks along columns": lambda: dlfp4.quantize(x, "nvfp4", axis=-2, recipe=dlfp4.Recipe(global_scale_per="row")),
    "rotated": lambda: dlfp4.quantize(x, "mxfp4", hadamard=7),
    "by matrix": lambda: dlfp4.quantize(x.reshape(2, 16, 64), "nvfp4", recipe=dlfp4.Recipe(global_scale_per="matrix")),
    "zero points": lambda: integers.dequantize(),
    "unshuffle": lambda: dlfp4.unshuffle_weight(x),
    "matmul": lambda: dlfp4.matmul(half, w.mT, backend="cuda"),
    "matmul with an activation": lambda: dlfp4.matmul(half, w.mT, activation="mxfp8", backend="cuda"),
    "matmul of bytes": lambda: dlfp4.matmul(bytes_of_rows, bytes_of_rows.mT, backend="cuda_fp8"),
    "experts": lambda: dlfp4.grouped_matmul(half, stack.mT, ends),
    "weighted experts": lambda: dlfp4.grouped_matmul(half, stack.mT, ends, indices=rows, weights=weights),
    "experts of bytes": lambda: dlfp4.grouped_matmul(bytes_of_rows, bytes_of_experts.mT, ends),
    "concatenate": lambda: dlfp4.concatenate([q, q]),
    "stack": lambda: dlfp4.stack([q, q]),
    "to": lambda: q.to("mxfp8_e4m3"),
    "error": lambda: dlfp4.analysis.error(x, q),
}

def attempt(operation):
    try:
        result = operation()
    except (dlfp4.DriverError, dlfp4.BackendError, MemoryError) as error:
        return f"{type(error).__name__}: {error}"   # whose traceback would hold what the operation had made
    del result

def fail_each(name, operation, code):
    # Each call of the driver in turn, until the operation makes no more of them.
    counts, number = {"raised": 0, "served": 0}, 0
    while True:
        before = driver.stand_in_held()
        driver.stand_in_fail(number, code)
        error = attempt(operation)
        failed = driver.stand_in_failed().decode()
        assert failed == EXCHANGE or driver.stand_in_mode_is_global(), (name, failed)
        driver.stand_in_fail(-1, 0)
        if not failed:
            assert error is None, (name, number, error)
            return counts
        if error is not None:
            named = f"CUDA_ERROR_OF_THE_STAND_IN ({code})"
            assert named in error or error.startswith("MemoryError"), (name, failed, error)
        leaked = driver.stand_in_held() - before
        assert leaked == 0 or failed in (RETURNING if error else KEEPING), (name, failed, leaked, error)
        counts["raised" if error else "served"] += 1
        assert attempt(operation) is None, (name, failed)
        number += 1

for code in (FATAL, OUT_OF_MEMORY):
    for name, operation in OPERATIONS.items():
        print("counted", name, code, fail_each(name, operation, code), flush=True)
"""


def test_each_call_of_the_driver_fails_in_turn(driver_folder):
    """An error with the failure's name, or the result without that call; nothing leaks, and the next call works."""
    printed = run(driver_folder, FAILURES, DLFP4_CUDA_IMAGE="nvrtc")
    counted = [line for line in printed if line.startswith("counted")]
    assert len(counted) == 64
    assert all("'raised': 0" not in line for line in counted), counted


def with_support(driver_folder):
    """A folder that has the support of tests alone: the checkout's package has no extension in it."""
    copied = driver_folder / "support"
    shutil.copytree(Path(__file__).parents[1] / "support", copied / "tests" / "support", dirs_exist_ok=True)
    return str(copied)


def test_casts_of_the_c_api_refuse_other_shapes_and_roundings(driver_folder):
    code = """
import ctypes
from tests.support import c_api

cast(0)   # loads the kernels
C = c_api.load()
x, other = (dlfp4.empty(shape, "float32", device="cuda:0") for shape in ((4, 32), (2, 32)))
half = dlfp4.empty((4, 32), "float16", device="cuda:0")
unknown = ctypes.byref(c_api.ConvertOptions(rounding=9, saturate=1))
print("statuses", C.cast(c_api.describe(x), c_api.describe(other), None, 0, None) == c_api.E_SHAPE,
      C.cast(c_api.describe(x), c_api.describe(half), unknown, 0, None) == c_api.E_OPTION, flush=True)
"""
    printed = run(driver_folder, code, DLFP4_CUDA_IMAGE="nvrtc", PYTHONPATH=with_support(driver_folder))
    assert printed[-1] == "statuses True True", printed
    assert printed.count("0 sm_90") == 1, printed


def test_what_kernels_do_not_take_is_told_why(driver_folder):
    """Rows of packed elements with gaps, and more elements than a launch has threads for."""
    code = """
from tests.support import capsules

def there(address, dtype, shape, **fields):
    made = capsules.Made(data=address, shape=shape, dtype=dtype, device=(2, 0), **fields)
    return dlfp4.from_dlpack(made.capsule)

cast(0)   # loads the kernels
for shape, strides in (((4, 3), (5, 1)), ((2**45,), (1,))):
    out = there(2**50, "float4_e2m1fn", shape, strides=strides)
    try:
        dlfp4.cast(there(2**55, "float32", shape), out.dtype, out=out)
    except BufferError as error:
        print("refused", "start on bytes" in str(error), "blocks of threads" in str(error), flush=True)
"""
    printed = run(driver_folder, code, DLFP4_CUDA_IMAGE="nvrtc", PYTHONPATH=with_support(driver_folder))
    assert printed[-2:] == ["refused True True"] * 2, printed


def test_the_c_api_refuses_weights_that_kernels_do_not_read(driver_folder):
    """On a device as on the host: zero points without use, and rows of FP4 that begin between bytes."""
    code = """
import ctypes
from tests.support import c_api

C = c_api.load()

def there(*shape, dtype="float32"):
    return dlfp4.empty(shape, dtype, device="cuda:0")

plain, prepared = dlfp4.quantize(there(256, 128), "mxfp4"), c_api.Prepared()
plain.prepare()   # loads the kernels
memory = there(C.prepared_bytes(C.find_format(b"mxfp4"), 256, 128), dtype="uint8")
wide = c_api.describe(plain.data, strides=(ctypes.c_int64 * 2)(129, 1))
zeros = c_api.describe(there(256, 4, dtype="uint8"))

def prepare(**changed):
    w = c_api.describe_scaled(plain)
    for name, part in changed.items():
        setattr(w, name, ctypes.pointer(part))
    return C.prepare(w, memory.data_ptr, ctypes.byref(prepared), None)

taken, without_use = prepare() == c_api.OK, prepare(zero_points=zeros) == c_api.E_OPTION
print("prepare", taken, prepare(data=wide) == c_api.E_SHAPE, without_use)
x, out = dlfp4.quantize(there(32, 128), "fp8_1x128"), there(32, 32)
w, zeros = c_api.describe_scaled(x), c_api.describe(there(32, 1, dtype="uint8"))
w.zero_points = ctypes.pointer(zeros)
call = c_api.describe_scaled(x), w, c_api.describe(out), None
print("matmul", C.matmul_workspace(*call) == -1, C.matmul(*call, None, None) == c_api.E_OPTION)
"""
    printed = run(driver_folder, code, DLFP4_CUDA_IMAGE="nvrtc", PYTHONPATH=with_support(driver_folder))
    said = [line for line in printed if line.startswith(("prepare", "matmul"))]
    assert said == ["prepare True True True", "matmul True True"]


PRODUCTS = """
import ctypes
from tests.support import c_api

C = c_api.load()

def there(*shape, dtype="float32"):
    return dlfp4.empty(shape, dtype, device="cuda:0")

def routing(**parts):
    described = {name: ctypes.pointer(c_api.describe(part)) for name, part in parts.items()}
    result = c_api.Routing(gathers="indices" in described, **described)
    result.kept = described
    return result

def both(name, ours, theirs):
    # What the driver is asked to launch by the package, and by the C API, which finds its images loaded.
    print(name, flush=True)
    ours()
    print(name, "of the C API:", theirs(), flush=True)

def workspace(bytes):
    return there(max(1, bytes), dtype="uint8")

w = dlfp4.quantize(there(4096, 384), "fp8_1x128")
for rows in (16, 1040):
    x, out = dlfp4.quantize(there(rows, 384), "fp8_1x128"), there(rows, 4096)
    call = c_api.describe_scaled(x), c_api.describe_scaled(w), c_api.describe(out), None
    both(f"matmul {rows}", lambda: dlfp4.matmul(x, w.mT, out=out), lambda: C.matmul(*call, None, 7))

stack, ends = dlfp4.quantize(there(2, 128, 384), "fp8_1x128"), there(2, dtype="int32")
indices, weights = there(1040, dtype="int64"), there(1040)
for named in ({}, {"indices": indices}, {"indices": indices, "weights": weights}):
    x, out = dlfp4.quantize(there(1040, 384), "fp8_1x128"), there(1040, 128)
    rows = routing(ends=ends, **named)
    call = c_api.describe_scaled(x), c_api.describe_scaled(stack), rows, c_api.describe(out), None
    memory = workspace(C.grouped_matmul_workspace(*call))
    both(f"experts {len(named)}", lambda: dlfp4.grouped_matmul(x, stack.mT, ends, out=out, **named),
         lambda: C.grouped_matmul(*call, memory.data_ptr, 7))

prepared, x, out = c_api.Prepared(), there(40, 384, dtype="bfloat16"), there(40, 128)
plain = dlfp4.quantize(there(2, 128, 384), "mxfp4")
w = plain.prepare()
assert w.scale_layout == "prepared"
memory = workspace(C.prepared_bytes(C.find_format(b"mxfp4"), 256, 384))
described = c_api.describe_scaled(plain)
both("prepare", lambda: plain.prepare(), lambda: C.prepare(described, memory.data_ptr, ctypes.byref(prepared), 7))
call = c_api.describe(x), ctypes.byref(prepared), routing(ends=ends), c_api.describe(out)
assert C.grouped_matmul_prepared_workspace(*call) == 0
both("experts prepared", lambda: dlfp4.grouped_matmul(x, w.mT, ends, out=out),
     lambda: C.grouped_matmul_prepared(*call, 1, None, 7))
"""


def test_a_device_without_kernels_of_a_product_is_told_so(driver_folder):
    code = """
import ctypes
from tests.support import c_api

C = c_api.load()
x = dlfp4.quantize(dlfp4.empty((32, 256), "float32", device="cuda:1"), "fp8_row")
out = dlfp4.empty((32, 32), "float32", device="cuda:1")
call = c_api.describe_scaled(x), c_api.describe_scaled(x), c_api.describe(out), None, None, None
print("status", C.matmul(*call) == c_api.E_CUDA_KERNELS, flush=True)   # no image
dlfp4.quantize(dlfp4.empty((32, 256), "float32", device="cuda:1"), "mxfp4").prepare()
print("status", C.matmul(*call) == c_api.E_CUDA_KERNELS, flush=True)   # one that has none for compute capability 12.0
print("words", C.status_string(c_api.E_CUDA_KERNELS).decode(), flush=True)
"""
    printed = run(driver_folder, code, DLFP4_CUDA_IMAGE="nvrtc", PYTHONPATH=with_support(driver_folder))
    assert printed.count("status True") == 2, printed
    assert "compile products 120" in printed
    assert printed[-1].startswith("words no kernels for the CUDA device")


def test_products_of_the_c_api_launch_what_the_package_does(driver_folder):
    """As many kernels, on the stream that the call names."""
    env = {"DLFP4_CUDA_IMAGE": "nvrtc", "STAND_IN_STREAMS": "1", "PYTHONPATH": with_support(driver_folder)}
    printed = [line for line in run(driver_folder, PRODUCTS, **env) if not line.startswith(("compile", "0 sm_"))]
    cases = {
        "matmul 16": 1, "matmul 1040": 1, "experts 0": 2, "experts 1": 2, "experts 2": 3, "prepare": 2,
        "experts prepared": 1,
    }  # fmt: skip
    for name, launches in cases.items():
        first = printed.index(name) + 1
        last = next(k for k, line in enumerate(printed) if line.startswith(f"{name} of the C API:"))
        assert printed[first:last].count("launch 1") == launches, (name, printed)
        before = last - launches
        assert printed[last] == f"{name} of the C API: 0", printed
        assert printed[before:last] == ["launch 7"] * launches, (name, printed)
