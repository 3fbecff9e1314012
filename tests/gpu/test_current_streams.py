"""On which stream an operation runs, by a driver that is compiled here and needs no GPU, with frameworks made up here:
one that is asked through its exchange table, as PyTorch is, and one through its file in dlfp4, as CuPy is."""

from pathlib import Path

import pytest

from ..support import capsules
from .test_loading import driver_folder, pytestmark, run  # noqa: F401 (pytest's fixture and marks)

# `table` and `cupy` hold the current stream of each; `of_table` and `of_cupy` make an array of each from our Tensor.
HEAD = (
    f"sys.path.append({str(Path(capsules.__file__).parent)!r})"
    + """
import ctypes, types
import numpy as np
import capsules

OURS = capsules.exchange_api(dlfp4.Tensor)
table, cupy_state = types.SimpleNamespace(stream=0), types.SimpleNamespace(stream=0)

def hand_out(x, out):
    return OURS.managed_tensor_from_py_object_no_sync(x.tensor, out)

def tell_stream(device_type, device_id, out):
    out[0] = table.stream
    return 0

API = capsules.DLPackExchangeAPI()
API.header.version.major, API.header.version.minor = 1, 3
API.managed_tensor_allocator = OURS.managed_tensor_allocator
API.managed_tensor_from_py_object_no_sync = capsules.FromPyObject(hand_out)
API.managed_tensor_to_py_object_no_sync = OURS.managed_tensor_to_py_object_no_sync
API.current_work_stream = capsules.WorkStream(tell_stream)

class Array:
    def __init__(self, tensor):
        self.tensor = tensor

class TableArray(Array):
    __dlpack_c_exchange_api__ = capsules._new(ctypes.addressof(API), b"dlpack_exchange_api", None)

class CupyArray(Array):
    __module__ = "cupy"
    asked = []

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, *, stream=None, **options):
        self.asked.append(stream)
        return self.tensor.__dlpack__(stream=-1, **options)

class Device:
    def __init__(self, index):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

sys.modules["cupy"] = types.SimpleNamespace(
    __version__="14.2.0",
    cuda=types.SimpleNamespace(Device=Device, get_current_stream=lambda: cupy_state.stream),
)

def empty(shape=(32, 64), dtype="float32"):
    return dlfp4.empty(shape, dtype, device="cuda:0")

of_table, of_cupy = TableArray(empty()), CupyArray(empty())
"""
)


def ran(folder, code):
    """The streams of the launches that a program makes after it says "now"."""
    printed = run(folder, HEAD + code, DLFP4_CUDA_IMAGE="nvrtc", STAND_IN_STREAMS="1")
    after = printed[printed.index("now") + 1 :]
    launches = [line.removeprefix("launch ") for line in after if line.startswith("launch")]
    return launches, [line for line in after if not line.startswith(("launch", "record", "wait", "0 sm", "compile"))]


OPERATIONS = {
    "cast": ("x", "dlfp4.cast(x, 'float16')"),
    "pack": ("dlfp4.cast(x, 'float4_e2m1fn', packed=False)", "dlfp4.pack(x)"),
    "unpack": ("dlfp4.cast(x, 'float4_e2m1fn')", "dlfp4.unpack(x)"),
    "quantize": ("x", "dlfp4.quantize(x, 'mxfp4')"),
    "quantize both ways": ("x", "dlfp4.quantize(x, 'mxfp8_e4m3', axis=(-1, -2))"),
    "dequantize": ("dlfp4.quantize(x, 'mxfp4')", "dlfp4.dequantize(x)"),
    "scale layout": ("dlfp4.quantize(x, 'mxfp4')", "x.with_scale_layout('128x4')"),
    "shuffle": ("x", "dlfp4.shuffle_weight(x)"),
    "vecdot": ("x", "dlfp4.vecdot(x, x)"),
    "copy": ("x.T", "x.copy()"),
}


@pytest.mark.parametrize("framework", ["table", "cupy"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_our_tensors_run_where_their_framework_works_now(driver_folder, name, framework):  # noqa: F811
    """Not where it worked when they were made."""
    make, call = OPERATIONS[name]
    state = "table" if framework == "table" else "cupy_state"
    code = f"""
{state}.stream = 16
x = dlfp4.from_dlpack(of_{framework})
x = {make}
print("now", flush=True)
for {state}.stream in (16, 48):
    {call}
"""
    launches, _ = ran(driver_folder, code)
    half = len(launches) // 2
    assert launches == ["16"] * half + ["48"] * half
    assert half >= 1


RULES = {
    "a stream that is given": ("dlfp4.cast(own, 'float16', stream=96)", "96"),
    "the object of a framework": ("dlfp4.cast(of_cupy, 'float16')", "48"),
    "the framework of out, though our tensor is another's": (
        "dlfp4.cast(from_table, 'float16', out=dlfp4.from_dlpack(of_cupy).view('float16')[:, :64])",
        "16",
    ),
    "out as an object of a framework": (
        "dlfp4.cast(from_table.view('float16')[:, :64], 'float32', out=of_cupy)",
        "48",
    ),
    "an operand that is an object, before our own": ("dlfp4.vecdot(from_table, of_cupy)", "48"),
    "where our tensor came from, though the first came from nobody": ("dlfp4.vecdot(own, from_table)", "16"),
    "a global scale": ("dlfp4.quantize(own, 'nvfp4', global_scale=of_cupy_scale)", "48"),
    "what a result was made of": ("dlfp4.cast(dlfp4.cast(from_table, 'bfloat16'), 'float16')", "16"),
    "what nobody leads": ("dlfp4.cast(own, 'float16')", "1"),
}


@pytest.mark.parametrize("name", RULES)
def test_who_leads(driver_folder, name):  # noqa: F811
    call, stream = RULES[name]
    code = f"""
own, of_cupy_scale = empty(), CupyArray(empty(()))
table.stream = cupy_state.stream = 32
from_table = dlfp4.from_dlpack(of_table)
dlfp4.from_dlpack(of_cupy)
table.stream, cupy_state.stream = 16, 48
print("now", flush=True)
{call}
"""
    launches, _ = ran(driver_folder, code)
    assert launches[-1] == stream


def test_a_result_without_an_own_leader_has_the_one_of_its_call(driver_folder):  # noqa: F811
    code = """
own = empty()
table.stream = 16
result = dlfp4.vecdot(own, of_table)
print("now", flush=True)
table.stream = 48
dlfp4.cast(result, "float16")
"""
    assert ran(driver_folder, code)[0] == ["48"]


def test_work_waits_for_what_made_its_operands(driver_folder):  # noqa: F811
    code = """
table.stream = 16
x = dlfp4.from_dlpack(of_table)
print("now", flush=True)
table.stream = 48
dlfp4.cast(x, "float16")
"""
    printed = run(driver_folder, HEAD + code, DLFP4_CUDA_IMAGE="nvrtc", STAND_IN_STREAMS="1")
    after = [line for line in printed[printed.index("now") + 1 :] if not line.startswith("compile")]
    assert after[:3] == ["record 16", "wait 48", "launch 48"]


def test_arrays_are_asked_for_on_the_stream_of_their_framework(driver_folder):  # noqa: F811
    """Within a capture CuPy could not order another stream after its own."""
    code = """
cupy_state.stream = 48
x = dlfp4.from_dlpack(of_cupy)
print("now", flush=True)
print("asked", of_cupy.asked, flush=True)
"""
    assert ran(driver_folder, code)[1] == ["asked [48]"]


CAPTURED = {
    "a table": "table.stream = 512; dlfp4.from_dlpack(of_table)",
    "a file": "cupy_state.stream = 512",
}


@pytest.mark.parametrize("name", CAPTURED)
def test_work_that_would_miss_a_graph_is_an_error(driver_folder, name):  # noqa: F811
    """On the legacy stream, whether by default or by name; what is captured is still good."""
    code = f"""
own = empty()
{CAPTURED[name]}
print("now", flush=True)
for options in ({{}}, {{"stream": 1}}):
    try:
        dlfp4.cast(own, "float16", **options)
    except dlfp4.DriverError as error:
        print(error, flush=True)
dlfp4.cast(own, "float16", stream=512)
"""
    launches, told = ran(driver_folder, code)
    assert launches == ["512"]
    assert len(told) == 2
    assert all("the framework that captures stream 512; give stream=512" in line for line in told)
    assert all(line.endswith("(906)") for line in told)


def test_the_legacy_stream_serves_while_nothing_is_captured(driver_folder):  # noqa: F811
    code = """
own = empty()
table.stream, cupy_state.stream = 16, 48
dlfp4.from_dlpack(of_table)
print("now", flush=True)
dlfp4.cast(own, "float16")
"""
    assert ran(driver_folder, code)[0] == ["1"]


def test_threads_follow_their_own_streams(driver_folder):  # noqa: F811
    """Each thread has a current stream of its own, and shares the operands."""
    code = """
import threading
from concurrent.futures import ThreadPoolExecutor

class PerThread(threading.local):
    stream = 0

table = PerThread()
x = dlfp4.from_dlpack(of_table)
barrier = threading.Barrier(4)
print("now", flush=True)

def work(number):
    table.stream = 16 * (number + 1)
    barrier.wait()
    return [dlfp4.cast(x, "float16").__dlpack__(stream=-1) is None for _ in range(50)]

with ThreadPoolExecutor(4) as pool:
    list(pool.map(work, range(4)))
"""
    launches, _ = ran(driver_folder, code)
    assert {stream: launches.count(stream) for stream in set(launches)} == {"16": 50, "32": 50, "48": 50, "64": 50}
