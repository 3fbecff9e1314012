"""The library's functions by their names in tvm-ffi: the bytes of the package's, and errors of tvm-ffi."""

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import dlfp4
from dlfp4.frameworks.tvm_ffi import register_functions

from ..support import c_api
from ..support.capsules import framework
from ..support.reference import parts_of

tvm_ffi = framework("tvm_ffi")
RNG = np.random.default_rng(5)


@pytest.fixture
def functions():
    register_functions()
    register_functions()  # a second time changes nothing
    return {name: tvm_ffi.get_global_func(f"dlfp4.{name}") for name in ("cast", "quantize", "dequantize", "matmul")}


def values(*shape):
    return RNG.standard_normal(shape).astype("float32")


def there(x):
    return None if x is None else tvm_ffi.from_dlpack(x)


def parts(q):
    """A quantized tensor as arguments."""
    offsets = q.zero_points
    return q.format.name, q.axis, q.scale_layout, there(q.data), there(q.scales), there(q.global_scale), there(offsets)


def bytes_of(q):
    return [part.view("uint8").to_numpy().tobytes() if part.ndim else part.item() for part in parts_of(q)]


@pytest.mark.parametrize("name", ["nvfp4", "mxfp8_e4m3", "fp8_e4m3", "uint4_g32"])
@pytest.mark.parametrize("axis", [-1, -2])
def test_block_scaling(functions, name, axis):
    x = values(64, 128)
    expected, result = dlfp4.quantize(x, name, axis=axis), dlfp4.quantize(np.ones_like(x), name, axis=axis)
    for part in parts_of(result):  # of ones some parts would be those of x
        ctypes.memset(part.data_ptr, 1, part.nbytes)
    assert bytes_of(result) != bytes_of(expected)
    assert functions["quantize"](there(x), *parts(result)) is None
    assert bytes_of(result) == bytes_of(expected)
    out = np.zeros_like(x)
    functions["dequantize"](*parts(result), there(out))
    np.testing.assert_array_equal(out, expected.dequantize().to_numpy())


STREAMS = """
#include <dlfp4/dlfp4.h>
typedef struct { int32_t type, length; const void *pointer; } argument;
int __tvm_ffi_cast(void *self, const void *arguments, int32_t count, void *result);
int type, number; /* of the device whose stream was asked for last */
void *TVMFFIEnvGetStream(int32_t of_type, int32_t of_number) { return type = of_type, number = of_number, (void *)0; }
int main(void) {
  int64_t shape[] = {0};
  const DLDeviceType places[] = {kDLCUDA, kDLCUDAManaged, kDLCPU};
  for (int k = 0; k < 3; ++k) {
    DLTensor x = {0, {places[k], 5}, 1, {kDLFloat, 32, 1}, shape, 0, 0};
    const argument arguments[] = {{7, 0, &x}, {7, 0, &x}};
    argument result;
    type = number = 0;
    __tvm_ffi_cast(0, arguments, 2, &result);
    if (places[k] == kDLCPU ? type != 0 : type != kDLCUDA || number != 5) return k + 1;
  }
  return 0;
}
"""


@pytest.mark.skipif(not shutil.which("cc"), reason="cc not on PATH")
def test_the_stream_is_that_of_the_device(tmp_path):
    """Of managed memory, too. The program's own function is found where tvm-ffi's would be."""
    (tmp_path / "streams.c").write_text(STREAMS)
    folders = [f"-I{dlfp4.get_include()}", f"-L{dlfp4.get_library_dir()}", f"-Wl,-rpath,{dlfp4.get_library_dir()}"]
    command = ["cc", *os.environ.get("CFLAGS", "").split(), "-rdynamic", tmp_path / "streams.c", *folders, "-ldlfp4"]
    subprocess.run([*command, "-o", tmp_path / "streams"], check=True)
    assert subprocess.run([tmp_path / "streams"], check=False).returncode == 0


def test_cast_and_matmul(functions):
    x, w = values(4, 64), dlfp4.quantize(values(32, 64), "nvfp4")
    out = dlfp4.empty(x.shape, "float4_e2m1fn")
    functions["cast"](there(x), there(out))
    assert out.tolist() == dlfp4.cast(x, "float4_e2m1fn").tolist()
    product = np.zeros((4, 32), np.float32)
    functions["matmul"](there(x), *parts(w), there(product), 0.5)
    np.testing.assert_array_equal(product, dlfp4.matmul(x, w.mT, alpha=0.5).to_numpy())
    functions["matmul"](there(x), *parts(w), there(product), 1)
    np.testing.assert_array_equal(product, dlfp4.matmul(x, w.mT).to_numpy())


def test_the_library_is_a_module_of_tvm_ffi(tmp_path):
    (library,) = Path(dlfp4.get_library_dir()).glob("libdlfp4.so.*")
    (tmp_path / "libdlfp4.so").symlink_to(library)  # tvm-ffi chooses a loader by the name's end
    module = tvm_ffi.load_module(str(tmp_path / "libdlfp4.so"))
    x, out = values(3, 5), dlfp4.empty((3, 5), "float8_e4m3fn")
    module.cast(there(x), there(out))
    assert out.tolist() == dlfp4.cast(x, "float8_e4m3fn").tolist()


def test_errors_are_those_of_tvm_ffi(functions):
    x = values(4, 64)
    q = dlfp4.quantize(x, "mxfp4")
    good = parts(q)
    with pytest.raises(TypeError, match=r"dlfp4\.cast: 1 arguments; expected 2"):
        functions["cast"](there(x))
    with pytest.raises(TypeError, match=r"dlfp4\.cast: argument 1 is None; expected a tensor"):
        functions["cast"](there(x), None)
    with pytest.raises(TypeError, match=r"dlfp4\.dequantize: argument 0 is an integer; expected a string"):
        functions["dequantize"](4, *good[1:], there(x))
    with pytest.raises(TypeError, match="argument 1 is a string; expected a small integer"):
        functions["dequantize"](good[0], "-1", *good[2:], there(x))
    for name in ("fp5", "a name that is longer than that of any format of all"):
        with pytest.raises(ValueError, match="argument 0 is no name of a format"):
            functions["dequantize"](name, *good[1:], there(x))
    with pytest.raises(ValueError, match="no name of a layout of scales"):
        functions["dequantize"](*good[:2], "diagonal", *good[3:], there(x))
    with pytest.raises(ValueError, match=r"dlfp4\.dequantize: shapes differ"):
        functions["dequantize"](*good, there(values(4, 32)))
    with pytest.raises(TypeError, match="argument 9 is a string; expected a number"):
        functions["matmul"](there(x), *good, there(values(4, 4)), "1")
    with pytest.raises(ValueError, match=r"dlfp4\.matmul: shapes differ"):
        functions["matmul"](there(x), *good, there(values(4, 5)), 1.0)
    assert c_api.load().register_tvm_ffi() == c_api.OK
