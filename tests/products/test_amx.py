"""The level of tiles: where the kernel refuses them, and beside others that use them."""

import sys

import numpy as np
import pytest

import dlfp4

from ..support.capsules import run_python
from ..support.levels import available_levels, require

# Has Linux refuse arch_prctl(ARCH_REQ_XCOMP_PERM) from here on, by a filter of system calls as containers have them.
REFUSE_TILES = """
import ctypes, struct
ARCH_PRCTL, REQUEST = 158, 0x1023
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, ERRNO_EPERM = 0x7FFF0000, 0x00050001
program = b"".join(struct.pack("HBBI", *op) for op in (
    (LOAD, 0, 0, 0), (JUMP_IF_EQUAL, 0, 3, ARCH_PRCTL),
    (LOAD, 0, 0, 16), (JUMP_IF_EQUAL, 0, 1, REQUEST),
    (RETURN, 0, 0, ERRNO_EPERM), (RETURN, 0, 0, ALLOW),
))
memory = ctypes.create_string_buffer(program)
class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("program", ctypes.c_void_p)]
filter = Filter(6, ctypes.addressof(memory))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
if libc.prctl(22, 2, ctypes.byref(filter), 0, 0):  # PR_SET_SECCOMP
    print("no filters")
    raise SystemExit
"""

PRODUCT = """
import numpy as np, dlfp4
x, w = (np.random.default_rng(0).normal(size=(n, 128)).astype("float32") for n in (40, 64))
q = dlfp4.quantize(w, "nvfp4")
got, right = dlfp4.matmul(x, q.mT).to_numpy(), x.astype("f8") @ q.dequantize().to_numpy().astype("f8").T
assert np.allclose(got, right, rtol=1e-4, atol=1e-4)
print(dlfp4.cpu_isa())
"""

IMPORT_ERROR = """
try:
    import dlfp4
except ImportError as error:
    print(error)
"""


@pytest.fixture
def below():
    """The level below."""
    require("amx")
    return available_levels()[1]


def run_refused(code, **options):
    found = run_python(REFUSE_TILES + code, **options)
    if found == "no filters\n":
        pytest.skip("this machine allows no filters of system calls")
    return found


def test_where_the_kernel_refuses_tiles_the_level_below_serves(below):
    assert run_refused(PRODUCT) == f"{below}\n"
    assert run_python(PRODUCT) == "amx\n"


def test_forced_where_the_kernel_refuses_tiles(below):
    error = run_refused(IMPORT_ERROR, DLFP4_ISA="amx")
    assert error.startswith("DLFP4_ISA='amx'")
    assert f"have {below}, " in error


@pytest.mark.skipif(sys.platform != "linux", reason="other systems are not asked")
def test_beside_another_that_uses_tiles():
    """PyTorch leaves shapes of tiles of its own on the thread, and finds none of ours there."""
    require("amx")
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    x, w = (torch.from_numpy(rng.normal(size=(n, 512)).astype("float32")).to(torch.bfloat16) for n in (96, 160))
    q = dlfp4.quantize(w, "nvfp4")
    ours, theirs = dlfp4.matmul(x, q.mT).to_numpy(), torch.matmul(x, w.T)
    for _ in range(20):
        assert (torch.matmul(x, w.T) == theirs).all()
        assert dlfp4.matmul(x, q.mT).to_numpy().tobytes() == ours.tobytes()


@pytest.mark.parametrize("rows", [9, 16, 17, 47, 300])
def test_threads_change_no_bit(rows):
    """Tiles of several panels, and of one where threads would get too few of them."""
    rng = np.random.default_rng(rows)
    x, w = (rng.normal(size=(n, 1216)).astype("float32") for n in (rows, 777))
    for name in ("nvfp4", "fp8_1x128"):
        q = dlfp4.quantize(w, name)
        found = set()
        for threads in (1, 2, 3, 16):
            dlfp4.set_num_threads(threads)
            found.add(dlfp4.matmul(dlfp4.cast(x, "bfloat16"), q.mT, out_dtype="float32").to_numpy().tobytes())
        dlfp4.set_num_threads(0)
        assert len(found) == 1
