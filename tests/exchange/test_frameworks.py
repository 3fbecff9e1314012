"""What goes to and comes from each framework under `copy=`, alignment, strides and read-only memory."""

import array
import mmap
import re
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

import dlfp4
from dlfp4 import frameworks
from dlfp4._core import _wire_of
from dlfp4.frameworks import base
from dlfp4.frameworks.numpy import REGISTRABLE
from dlfp4.matrix import extend_sign

from ..support import capsules

FP4 = np.dtype(ml_dtypes.float4_e2m1fn)
needs_numpy_25 = pytest.mark.skipif(
    not hasattr(np.dtypes, "register_dlpack_dtype"), reason="only NumPy 2.5 learns other packages' types"
)


def aligned(shape, dtype, offset=0):
    """An array of random bytes that starts `offset` bytes behind a 64-byte border."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    block = np.random.default_rng(size).integers(0, 64, size + 128, np.uint8)
    start = -block.ctypes.data % 64 + offset
    return block[start : start + size].view(dtype).reshape(shape)


def frozen(values):
    values.flags.writeable = False
    return values


def fp4(shape):
    """A packed FP4 Tensor of random codes, and its values as NumPy has them."""
    codes = np.random.default_rng(len(shape)).integers(0, 16, shape, np.uint8)
    octets = dlfp4.asarray(base.pack_codes(codes.reshape(-1), 4), copy=True)
    return octets.view(FP4)[: codes.size].reshape(shape), codes.view(FP4)


def random_elements(name, shape):
    """Any codes of a type below 8 bits, as NumPy has them."""
    codes = np.random.default_rng(len(shape)).integers(0, 1 << base.SUBBYTE[name], shape, np.uint8)
    return np.asarray(extend_sign(codes, base.dtype_of(name)))


def same_bits(a, b):
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


# ---- The package


def test_tables_by_name_have_all_small_types():
    small = {name: wire for name, wire in capsules.DTYPES.items() if wire[1] <= 8 and name.startswith("float")}
    assert {*base.FP8, *(name for name in base.SUBBYTE if name.startswith("float"))} == set(small)
    assert all(base.SUBBYTE[name] == capsules.DTYPES[name][1] for name in capsules.SUBBYTE)
    assert {name: _wire_of(name) for name in REGISTRABLE} == {name: capsules.DTYPES[name] for name in REGISTRABLE}


def test_importing_dlfp4_imports_no_framework():
    others = [frameworks.framework(name).module for name in frameworks.NAMES if name != "numpy"]
    code = (
        "import sys, dlfp4.matrix, dlfp4.frameworks as f; [f.framework(n) for n in f.NAMES];"
        f"print([n for n in {others} if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_class_belongs_to_the_framework_of_its_bases():
    torch = pytest.importorskip("torch")

    class Mine(torch.nn.Parameter):
        pass

    assert frameworks.of_type(Mine).name == "torch"
    assert frameworks.of_type(np.ndarray).name == "numpy"
    assert frameworks.of_type(dict) is None


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int8", "bool"])
def test_mlx_takes_numbers_without_dimensions(dtype):
    pytest.importorskip("mlx.core")
    mlx = frameworks.load("mlx")
    values = np.ones((), base.dtype_of(dtype))
    array = mlx.from_tensor(dlfp4.asarray(values))
    assert same_bits(frameworks.framework("mlx").read(array), values)


@pytest.mark.parametrize("bits", [2, 4, 6])
def test_packed_codes_are_a_little_endian_stream(bits):
    codes = np.arange(24, dtype=np.uint8) % (1 << bits)
    packed = base.pack_codes(codes, bits)
    stream = sum(int(code) << bits * k for k, code in enumerate(codes))
    assert packed.tobytes() == stream.to_bytes(24 * bits // 8, "little")
    assert base.unpack_codes(packed, bits, 24).tolist() == codes.tolist()


def test_a_framework_that_is_not_installed_says_so():
    for module in ("no_such_framework", "no_such_framework.part", "dlfp4.no_such_part"):
        row = base.Framework(module, frozenset(), *[lambda *_: None] * 4)
        assert (row.installed(), row.missing()) == (False, "not installed")


def test_every_framework_has_the_name_of_its_file():
    rows = [frameworks.framework(name) for name in frameworks.NAMES]
    assert tuple(row.name for row in rows) == frameworks.NAMES
    assert len({row.package for row in rows}) == len(rows)


def test_a_version_is_told_by_the_module_or_by_its_package():
    told = base.Framework("numpy", frozenset(), *[lambda *_: None] * 4)
    untold = base.Framework("_pytest", frozenset(), *[lambda *_: None] * 4, file="pytest")
    assert not hasattr(sys.modules["_pytest"], "version")
    assert (told.version(), untold.version()) == (np.__version__, pytest.__version__)
    assert untold.release() == tuple(map(int, pytest.__version__.split(".")[:3]))


def test_types_come_with_a_version():
    release = base.Framework("numpy", frozenset(), *[lambda *_: None] * 4).release()
    later = (*release[:-1], release[-1] + 1)
    row = base.Framework("numpy", frozenset("abc"), *[lambda *_: None] * 4, since={"b": release, "c": later})
    assert [row.holds(name) for name in "abcd"] == [True, True, False, False]


@pytest.mark.parametrize("name", ["float32", "float8_e5m2", "float6_e3m2fn", "int2"])
def test_memory_is_read_as_its_strides_say(name):
    values = np.arange(128).reshape(4, 8, 4).astype(base.dtype_of(name))
    octets = base.pack_array(values) if name in base.SUBBYTE else np.frombuffer(values.tobytes(), np.uint8)
    numbers = np.arange(128, dtype=np.int64).reshape(values.shape)  # of the elements
    bits = base.SUBBYTE.get(name, 8 * values.itemsize)
    for part in (..., np.s_[0:0], np.s_[1, 2, 0], np.s_[1:, ::-1], np.s_[::-1, ::3], np.s_[:, None, 0, ::2]):
        chosen = numbers[part]
        start = octets.ctypes.data + int(chosen.flat[0] if chosen.size else 0) * bits // 8
        read = base.read_memory(start, chosen.shape, values.dtype, [step // 8 for step in chosen.strides])
        assert (read.shape, read.tolist()) == (chosen.shape, values[part].tolist())
    assert base.read_memory(octets.ctypes.data, (128,), values.dtype).tolist() == values.reshape(-1).tolist()


@pytest.mark.parametrize("name", frameworks.NAMES)
def test_a_framework_that_is_installed_can_be_used(name):
    """A broken one must not look like a missing one, whose tests skip."""
    if not frameworks.framework(name).installed():
        pytest.skip(f"{name}: not installed")
    code = f"import dlfp4.frameworks as f; row = f.framework({name!r}); print(row.missing(), row.version())"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert re.match(r"(None|no arrays on cpu) \d+\.\d+", done.stdout), done.stdout + done.stderr


# ---- NumPy


@pytest.mark.parametrize("dtype", ["bool", "int16", "float32", "complex128", "bfloat16", *base.FP8])
def test_to_numpy_shares_whole_bytes(dtype):
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    tensor = dlfp4.asarray(np.ones((4, 6), dtype))
    shared, copied = tensor.to_numpy(copy=False), tensor.to_numpy(copy=True)
    assert shared.dtype == dtype
    assert shared.ctypes.data == tensor.to_numpy().ctypes.data == tensor.data_ptr
    assert copied.ctypes.data != tensor.data_ptr
    assert same_bits(shared, copied)


def test_to_numpy_unpacks_into_a_fresh_array():
    tensor, values = fp4((3, 8))
    assert same_bits(tensor.to_numpy(), values)
    assert tensor.to_numpy().flags.writeable
    with pytest.raises(BufferError, match="copy=False"):
        tensor.to_numpy(copy=False)


def test_to_numpy_keeps_read_only():
    tensor = dlfp4.asarray(frozen(np.arange(4.0)))
    assert not tensor.to_numpy().flags.writeable
    assert tensor.to_numpy(copy=True).flags.writeable


@pytest.mark.parametrize("name", base.SUBBYTE)
def test_asarray_shares_padded_arrays(name):
    dtype = np.dtype(getattr(ml_dtypes, name))
    values = np.arange(12).reshape(3, 4).astype(np.float32).astype(dtype)
    tensor = dlfp4.asarray(values)
    assert (tensor.dtype, tensor.packed, tensor.shape, tensor.data_ptr) == (dtype, False, (3, 4), values.ctypes.data)
    back = tensor.to_numpy(copy=False)
    assert back.ctypes.data == values.ctypes.data
    assert same_bits(back, values)


RAW = bytes(range(24))


@pytest.mark.parametrize(
    "source", [RAW, bytearray(RAW), memoryview(RAW), array.array("B", RAW)], ids=lambda x: type(x).__name__
)
def test_raw_bytes_enter_through_view(source):
    octets = dlfp4.asarray(source)
    assert octets.readonly == memoryview(source).readonly
    assert octets.data_ptr == np.frombuffer(source, np.uint8).ctypes.data
    tensor = octets.view(FP4)
    assert (tensor.shape, tensor.packed, tensor.data_ptr) == ((48,), True, octets.data_ptr)
    assert tensor.view("uint8").to_numpy().tobytes() == RAW
    assert octets.view("float6_e2m3fn").shape == (32,)


def test_mapped_files_enter_without_a_copy(tmp_path):
    path = tmp_path / "weights.bin"
    path.write_bytes(RAW)
    mapped = np.memmap(path, np.uint8, mode="r")
    tensor = dlfp4.asarray(mapped).view("float8_e4m3fn")
    assert (tensor.readonly, tensor.data_ptr, tensor.shape) == (True, mapped.ctypes.data, (24,))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
        octets = dlfp4.asarray(whole)
        assert (octets.readonly, octets.to_numpy().tobytes()) == (True, RAW)
        del octets  # or the map could not be closed


@needs_numpy_25
@pytest.mark.parametrize("name", ["bfloat16", *base.FP8])
def test_numpy_learns_the_types_that_fill_bytes(name):
    values = aligned((4, 8), getattr(ml_dtypes, name))
    shared = np.from_dlpack(dlfp4.asarray(values))
    assert shared.ctypes.data == values.ctypes.data
    assert same_bits(shared, values)
    frameworks.load("numpy").register_dlpack_dtypes()  # twice does no harm


@needs_numpy_25
def test_numpy_then_takes_fp8_of_pytorch():
    torch = pytest.importorskip("torch")
    source = torch.arange(8).to(torch.float8_e4m3fn)
    taken = np.from_dlpack(source)
    assert (taken.dtype, taken.ctypes.data) == (ml_dtypes.float8_e4m3fn, source.data_ptr())


# ---- PyTorch


def test_to_torch_shares_or_copies_as_asked(torch):
    tensor = dlfp4.asarray(aligned((4, 6), np.float32, offset=4))
    assert tensor.to_torch().data_ptr() == tensor.to_torch(copy=False).data_ptr() == tensor.data_ptr
    copied = tensor.to_torch(copy=True)
    assert copied.data_ptr() != tensor.data_ptr
    assert same_bits(copied.numpy(), tensor.to_numpy())


def test_to_torch_copies_read_only_memory(torch):
    tensor = dlfp4.asarray(frozen(aligned((8,), np.float32)))
    assert tensor.to_torch().data_ptr() != tensor.data_ptr
    with pytest.raises(BufferError, match="read-only"):
        tensor.to_torch(copy=False)


@pytest.mark.parametrize("copy", [None, False])
def test_to_torch_refuses_negative_strides(torch, copy):
    tensor = dlfp4.asarray(np.arange(6.0))[::-1]
    with pytest.raises(BufferError, match=r"\.copy\(\)"):
        tensor.to_torch(copy=copy)
    assert tensor.to_torch(copy=True).tolist() == tensor.copy().to_torch().tolist() == [5, 4, 3, 2, 1, 0]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"device": (4, 0)}, "no OpenCL memory; copy it to the host"),
        ({"shape": (2**40, 2**40, 0), "strides": (1, 1, 1)}, r"63 bits; call .reshape\(\(0,\)\)"),
    ],
    ids=["OpenCL", "empty and beyond counting"],
)
def test_pytorch_never_gets_what_ends_its_process(torch, fields, reason):
    made = capsules.Made(np.arange(4, dtype=np.float32), **{"shape": (4,), **fields})
    tensor = dlfp4.from_dlpack(made.capsule)
    with pytest.raises(BufferError, match=reason):
        tensor.to_torch()
    with pytest.raises(BufferError, match=reason):
        torch.from_dlpack(tensor)
    del tensor
    assert made.deleted == 1


@pytest.mark.parametrize("device", [(2, 0), (10, 0), (12, 0), (7, 0)], ids=["cuda", "rocm", "ext_dev", "vulkan"])
def test_to_torch_refuses_devices_of_other_builds(torch, device):
    if torch.cuda.is_available():
        pytest.skip("this build of PyTorch knows such devices")
    made = capsules.Made(np.arange(4, dtype=np.float32), device=device)
    with pytest.raises(BufferError, match="PyTorch cannot take float32"):
        dlfp4.from_dlpack(made.capsule).to_torch()


def test_to_torch_counts_fp4_in_pairs(torch):
    tensor, values = fp4((4, 16))
    shared = tensor.to_torch(copy=False)
    assert (shared.dtype, shared.shape, shared.data_ptr()) == (torch.float4_e2m1fn_x2, (4, 8), tensor.data_ptr)
    assert same_bits(dlfp4.from_dlpack(tensor.to_torch(copy=True)).to_numpy(), values)
    rows = tensor[1:3, 4:8].to_torch()
    assert (rows.shape, rows.stride(), rows.data_ptr()) == ((2, 2), (8, 1), tensor.data_ptr + 8 + 2)


def test_to_torch_refuses_fp4_that_does_not_divide_into_pairs(torch):
    with pytest.raises(BufferError, match="pad that to an even extent"):
        fp4((5,))[0].to_torch()
    tensor, values = fp4((4, 16))
    with pytest.raises(BufferError, match=r"call \.copy\(\) first"):
        tensor[:, ::2].to_torch()
    assert same_bits(dlfp4.from_dlpack(tensor[:, ::2].copy().to_torch()).to_numpy(), values[:, ::2])


@pytest.mark.parametrize("name", ["float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float6_e2m3fn", "float6_e3m2fn"])
def test_to_torch_names_the_remedy_for_types_it_lacks(torch, name):
    tensor = dlfp4.asarray(np.zeros(48, np.uint8)).view(name)
    with pytest.raises(BufferError, match=rf"{name}.*view\(\"uint8\"\)"):
        tensor.to_torch()
    assert tensor.view("uint8").to_torch(copy=False).data_ptr() == tensor.data_ptr


def test_to_torch_tells_to_pack_padded_fp4(torch):
    with pytest.raises(BufferError, match=r"dlfp4\.pack"):
        dlfp4.asarray(np.zeros(4, FP4)).to_torch()


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_guards_name_the_types_that_can_carry_each_bit(torch):
    rows = {descriptor.__name__: names for descriptor, names, _ in frameworks.framework("torch").guards()}
    held = {name: getattr(torch, name, torch.float4_e2m1fn_x2) for name in frameworks.framework("torch").dtypes}
    floating = {name for name, dtype in held.items() if dtype.is_floating_point or dtype.is_complex}
    assert set(rows["requires_grad"]) == floating
    assert set(rows["is_conj"]) == {name for name, dtype in held.items() if dtype.is_complex}
    parts = [torch.zeros(4, dtype=dtype).conj().imag for dtype in (torch.complex32, torch.complex64, torch.complex128)]
    assert all(part.is_neg() for part in parts)
    assert {str(part.dtype).removeprefix("torch.") for part in parts} < set(rows["is_neg"])


# ---- JAX


@pytest.fixture
def jax():
    return pytest.importorskip("jax")


def test_to_jax_shares_aligned_memory(jax):
    tensor = dlfp4.asarray(aligned((4, 16), np.float32))
    assert tensor.to_jax().unsafe_buffer_pointer() == tensor.to_jax(copy=False).unsafe_buffer_pointer()
    assert tensor.to_jax().unsafe_buffer_pointer() == tensor.data_ptr
    assert tensor.T.to_jax(copy=False).unsafe_buffer_pointer() == tensor.data_ptr
    assert np.array_equal(tensor.T.to_jax(copy=False), tensor.to_numpy().T)


def test_to_jax_copy_is_fresh(jax):
    tensor = dlfp4.asarray(aligned((16,), np.float32))
    before, copied = tensor.to_numpy(copy=True), tensor.to_jax(copy=True)
    assert copied.unsafe_buffer_pointer() != tensor.data_ptr
    tensor.to_numpy()[:] = 0
    assert np.array_equal(copied, before)


@pytest.mark.parametrize(
    ("view", "reason"),
    [
        pytest.param(lambda: aligned((8,), np.float32, offset=16), "64-byte border", id="misaligned"),
        pytest.param(lambda: aligned((8, 8), np.float32)[:, ::2], "compact", id="strided"),
        pytest.param(lambda: aligned((8,), np.float32)[::-1], "border|compact", id="negative stride"),
        pytest.param(lambda: np.broadcast_to(aligned((8,), np.float32), (3, 8)), "compact|read-only", id="broadcast"),
    ],
)
def test_to_jax_copies_what_it_cannot_share(jax, view, reason):
    values = view()
    tensor = dlfp4.asarray(values)
    assert np.array_equal(tensor.to_jax(), values)
    with pytest.raises(BufferError, match=reason):
        tensor.to_jax(copy=False)


def test_to_jax_of_read_only_memory(jax):
    values = frozen(aligned((8,), np.float32))
    tensor = dlfp4.asarray(values)
    assert np.array_equal(tensor.to_jax(), values)
    if jax.__version_info__ >= (0, 12):
        assert tensor.to_jax(copy=False).unsafe_buffer_pointer() == tensor.data_ptr
    else:
        with pytest.raises(BufferError, match="read-only"):
            tensor.to_jax(copy=False)


@pytest.mark.parametrize("name", ["int64", "uint64", "float64", "complex128"])
def test_to_jax_never_narrows(jax, name):
    tensor = dlfp4.asarray(aligned((8,), name))
    with jax.enable_x64(False), pytest.raises(BufferError, match="jax_enable_x64"):
        tensor.to_jax()
    with jax.enable_x64(True):
        array = tensor.to_jax(copy=False)
        assert (array.dtype, array.unsafe_buffer_pointer()) == (tensor.dtype, tensor.data_ptr)


@pytest.mark.parametrize("shape", [(4, 16), (3, 5), (), (1,), (0, 4), (2, 3, 2)], ids=str)
def test_jax_fp4_both_ways(jax, shape):
    tensor, values = fp4(shape)
    taken = tensor.to_jax()
    assert (taken.dtype, taken.shape) == (FP4, shape)
    assert same_bits(np.asarray(taken), values)
    back = dlfp4.asarray(taken)
    assert (back.shape, back.dtype, back.packed) == (shape, FP4, True)
    assert same_bits(back.to_numpy(), values)
    with pytest.raises(BufferError, match="copy=False"):
        tensor.to_jax(copy=False)


def test_to_jax_where_jax_has_no_host(jax, monkeypatch):
    """As with JAX_PLATFORMS=cuda."""

    def devices(name):
        raise RuntimeError(f"Unknown backend {name}")

    monkeypatch.setattr(jax, "devices", devices)
    with pytest.raises(BufferError, match=r"JAX cannot take float4_e2m1fn .*: Unknown backend cpu"):
        dlfp4.cast(np.ones((4, 4), np.float32), "float4_e2m1fn").to_jax()


def test_to_jax_of_transposed_and_padded_fp4(jax):
    tensor, values = fp4((4, 6))
    assert same_bits(np.asarray(tensor.T.to_jax()), np.ascontiguousarray(values.T))
    assert same_bits(np.asarray(dlfp4.asarray(values).to_jax()), values)


@pytest.mark.parametrize("shape", [(4, 12), (3, 5), (), (0, 4)], ids=str)
@pytest.mark.parametrize("name", ["float6_e2m3fn", "float6_e3m2fn", "int4", "uint4", "int2", "uint2"])
def test_to_jax_copies_types_that_dlpack_does_not_carry_there(jax, name, shape):
    values = random_elements(name, shape)
    padded = dlfp4.asarray(values)
    for tensor in (padded, dlfp4.pack(padded), dlfp4.pack(padded).T):
        if name.startswith("float6") and jax.__version_info__ < (0, 11):
            with pytest.raises(BufferError, match=r"FP6 from 0.11 on; .*view\(\"uint8\"\)"):
                tensor.to_jax()
            continue
        taken = tensor.to_jax()
        assert (taken.shape, taken.dtype) == (tensor.shape, values.dtype)
        assert np.asarray(taken).tolist() == tensor.to_numpy().tolist()
        with pytest.raises(BufferError, match="copy=False"):
            tensor.to_jax(copy=False)


# ---- Others: what they cannot take as it lies is copied first; each in a process of its own, which it could end

ODD_MEMORY = """
import sys
import numpy as np
import dlfp4
from dlfp4 import frameworks

framework = frameworks.framework(sys.argv[1])
if framework.missing():
    sys.exit(f"skip: {framework.missing()}")
if framework.name == "pyarrow" and int(framework.version().partition(".")[0]) < 26:
    sys.exit("skip: PyArrow imports DLPack from version 26 on")
block = dlfp4.empty((16, 16), "float32").to_numpy()
block[:] = np.arange(256).reshape(16, 16)
read_only = block[:4].view()
read_only.flags.writeable = False
cases = {
    "plain": block,
    "read-only": read_only,
    "strided": block[:, ::2],
    "negative": block[::-1],
    "misaligned": block.reshape(-1)[1:],
    "broadcast": np.broadcast_to(block[0], (4, 16)),
    "empty": block[:0],
    "empty and odd": block[:0, 1:][::-1],
    "new axis": block[None],
    "one of a row backwards": block[0, ::-1][15:],
}
shares = framework.pointer(framework.from_tensor(dlfp4.asarray(block), None)) == block.ctypes.data
for case, values in cases.items():
    native = framework.from_tensor(dlfp4.asarray(values), None)
    if case in ("new axis", "one of a row backwards"):  # strides that mean nothing
        assert (framework.pointer(native) == values.ctypes.data) == shares, case
    if case.startswith("empty") and shares:
        framework.from_tensor(dlfp4.asarray(values), False)
    assert np.array_equal(framework.read(native).reshape(values.shape), values), case
    fresh = framework.from_tensor(dlfp4.asarray(values), True)
    assert values.size == 0 or framework.pointer(fresh) != values.ctypes.data, case
"""


@pytest.mark.parametrize("name", [n for n in frameworks.NAMES if n not in ("torch", "cupy")])
def test_odd_memory_arrives_with_its_values(name):
    done = subprocess.run([sys.executable, "-P", "-c", ODD_MEMORY, name], capture_output=True, text=True, check=False)
    if done.stderr.startswith("skip: "):
        pytest.skip(f"{name}: {done.stderr.strip()[6:]}")
    assert done.returncode == 0, done.stderr


@pytest.fixture
def of_framework():
    """Gives a framework's row, if it is installed."""

    def find(name):
        row = frameworks.framework(name)
        if row.missing():
            pytest.skip(f"{name}: {row.missing()}")
        return row

    return find


@pytest.mark.parametrize("shape", [(3, 5), (7,), (1,), (), (0, 4), (2, 3, 4)], ids=str)
@pytest.mark.parametrize(
    ("name", "row"),
    [
        (name, row)
        for name in ("onnxruntime", "max", "tvm_ffi", "cutlass")
        for row in (base.FP4, "float6_e2m3fn", "float6_e3m2fn", "int4", "uint2")
        if row in frameworks.framework(name).dtypes
    ],
)
def test_packed_elements_of_any_shape(of_framework, name, row, shape):
    framework = of_framework(name)
    if name == "onnxruntime" and framework.release() < (1, 32):
        pytest.skip("ONNX Runtime exchanges them from 1.32 on")
    values = random_elements(row, shape)
    taken = framework.read(framework.from_tensor(dlfp4.pack(values), None))
    assert (taken.shape, taken.dtype) == (shape, values.dtype)
    assert base.codes_of(taken).tolist() == base.codes_of(values).tolist()
    if framework.make is not None:
        given = dlfp4.asarray(framework.make(values, True, "cpu"))
        assert (given.shape, given.packed) == (shape, True)
        assert base.codes_of(given.to_numpy()).tolist() == base.codes_of(values).tolist()


@pytest.mark.parametrize("name", ["onnxruntime", "max", "cutlass"])
def test_padded_elements_are_not_taken_for_packed_ones(of_framework, name):
    framework = of_framework(name)
    with pytest.raises(BufferError, match=r"padded.*; call dlfp4\.pack"):
        framework.from_tensor(dlfp4.asarray(random_elements(base.FP4, (4, 16))), None)


def test_an_element_type_of_a_later_onnx_is_named(of_framework):
    class Later:
        def element_type(self):
            return 99

    with pytest.raises(TypeError, match="ONNX type 99"):
        of_framework("onnxruntime").read(Later())


CUTE_COPY = """
import sys
import numpy as np
from cutlass import cute
import dlfp4
from dlfp4 import frameworks

@cute.jit
def copy(source: cute.Tensor, target: cute.Tensor):
    target.store(source.load())

from_tensor = frameworks.framework("cutlass").from_tensor
values = dlfp4.cast(np.random.default_rng(4).normal(size=64).astype("float32"), sys.argv[1])
target = dlfp4.empty(values.shape, values.dtype)
target.view("uint8").to_numpy()[:] = 0
copy(from_tensor(values), from_tensor(target))
assert target.view("uint8").to_numpy().tolist() == values.view("uint8").to_numpy().tolist()
"""


@pytest.mark.parametrize("name", ["float4_e2m1fn", "float8_e5m2"])
def test_cute_computes_on_what_it_took(of_framework, tmp_path, name):
    """Of types below 8 bits CuTe assumes an alignment of 0 bytes by itself, and divides by it."""
    of_framework("cutlass")
    script = tmp_path / "cute_copy.py"  # it reads the source of what it compiles
    script.write_text(CUTE_COPY)
    done = subprocess.run([sys.executable, "-P", script, name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr}"


def test_cuda_core_keeps_read_only(of_framework):
    framework = of_framework("cuda_core")
    values = frozen(aligned((4, 6), np.float32))
    view = framework.from_tensor(dlfp4.asarray(values), False)
    assert (view.readonly, view.ptr) == (True, values.ctypes.data)
    assert dlfp4.from_dlpack(view).readonly


def test_bfloat16_that_cuda_core_hands_none_out_of(of_framework):
    framework = of_framework("cuda_core")
    values = aligned((4, 6), ml_dtypes.bfloat16)
    view = framework.from_tensor(dlfp4.asarray(values), None)
    with pytest.raises(BufferError, match=r"hands none out; .* x\.exporting_obj"):
        dlfp4.asarray(view)
    again = dlfp4.asarray(view.exporting_obj)
    assert again.data_ptr == values.ctypes.data
    assert same_bits(again.to_numpy(), values)


def test_warp_has_up_to_four_dimensions(of_framework):
    framework = of_framework("warp")
    values = aligned((1, 2, 1, 3), np.float32)
    assert same_bits(framework.read(framework.from_tensor(dlfp4.asarray(values), False)), values)
    with pytest.raises(BufferError, match="maximum number of dimensions is 4"):
        framework.from_tensor(dlfp4.asarray(values[None]), None)


# ---- CuPy


@pytest.mark.gpu
def test_to_cupy_shares_device_memory():
    import cupy

    tensor = dlfp4.asarray(aligned((4, 6), np.float32)).to_device("cuda:0")
    assert tensor.to_cupy().data.ptr == tensor.to_cupy(copy=False).data.ptr == tensor.data_ptr
    copied = tensor.to_cupy(copy=True)
    assert copied.data.ptr != tensor.data_ptr
    assert same_bits(cupy.asnumpy(copied), tensor.to_numpy())


@pytest.mark.gpu
def test_to_cupy_moves_host_memory():
    tensor = dlfp4.asarray(aligned((4, 6), np.float32))
    assert same_bits(tensor.to_cupy().get(), tensor.to_numpy())
    with pytest.raises(BufferError, match="copy=False"):
        tensor.to_cupy(copy=False)


@pytest.mark.gpu
def test_to_cupy_hands_over_the_bytes_of_small_types():
    tensor, _ = fp4((4, 16))
    octets = tensor.to_device("cuda:0").to_cupy(copy=False)
    assert (octets.dtype, octets.shape) == (np.uint8, (4, 8))
    assert octets.get().tobytes() == tensor.view("uint8").to_numpy().tobytes()


@pytest.mark.parametrize("name", ["float32", "float8_e4m3fn", "float6_e2m3fn", "float4_e2m1fn"])
def test_tvm_ffi_functions_take_our_tensor_and_give_it_back(name):
    tvm_ffi = pytest.importorskip("tvm_ffi")
    seen = []
    identity = tvm_ffi.convert(lambda x: seen.append((x.shape, str(x.dtype))) or x)
    tensor = dlfp4.cast(np.linspace(-6, 6, 24, dtype="float32").reshape(4, 6), name)
    back = identity(tensor)
    assert seen == [((4, 6), name)]
    assert type(back) is dlfp4.Tensor
    assert (back.data_ptr, back.dtype, back.packed) == (tensor.data_ptr, tensor.dtype, tensor.packed)
    assert back.to_numpy().tobytes() == tensor.to_numpy().tobytes()


def test_one_row_backwards_is_shared(torch):
    """The stride of a dimension of one element means nothing."""
    array = aligned((1, 16), "float32")[::-1]
    assert array.strides[0] < 0
    tensor = dlfp4.asarray(array)
    assert tensor.strides == (16, 1)
    assert tensor.to_torch(copy=False).data_ptr() == tensor.data_ptr


NOT_OF_PYTORCH = {
    "FP6": lambda: dlfp4.empty((4, 64), "float6_e2m3fn"),
    "float8_e3m4": lambda: dlfp4.empty((4, 64), "float8_e3m4"),
    "padded FP4": lambda: dlfp4.empty((4, 64), "float4_e2m1fn", packed=False),
    "int4": lambda: dlfp4.empty((4, 64), "int4"),
}


@pytest.mark.parametrize("name", NOT_OF_PYTORCH)
def test_who_refuses_elements_without_a_type(name):
    """The other library itself, by its own exception; dlfp4 where it would misread what it has a type for."""
    torch = capsules.framework("torch")
    with pytest.raises(BufferError) as refused:
        torch.from_dlpack(NOT_OF_PYTORCH[name]())
    assert not isinstance(refused.value, dlfp4.RefusedError)
    with pytest.raises(dlfp4.RefusedError, match="in pairs"):
        torch.from_dlpack(dlfp4.empty((63,), "float4_e2m1fn"))


def test_numpy_and_jax_refuse_elements_without_a_type():
    jax = pytest.importorskip("jax")
    with pytest.raises((RuntimeError, BufferError)):  # newer versions raise the second
        np.from_dlpack(dlfp4.empty((4, 64), "float6_e2m3fn"))
    with pytest.raises(jax.errors.JaxRuntimeError):
        jax.dlpack.from_dlpack(dlfp4.empty((4, 64), "float6_e2m3fn"))
