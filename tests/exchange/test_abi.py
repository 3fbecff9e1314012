"""The DLPack 1.3 ABI: our header, the standard's as PyTorch ships it, the ctypes mirror, and the exchange table."""

import ctypes
import gc
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ..support import capsules
from ..support.capsules import framework, random_array

INCLUDE = Path(__file__).resolve().parents[2] / "include"

# ---- what the headers say ------------------------------------------------------------------------------------------

FIELDS = {
    "DLPackVersion": ["major", "minor"],
    "DLDevice": ["device_type", "device_id"],
    "DLDataType": ["code", "bits", "lanes"],
    "DLTensor": ["data", "device", "ndim", "dtype", "shape", "strides", "byte_offset"],
    "DLManagedTensor": ["dl_tensor", "manager_ctx", "deleter"],
    "DLManagedTensorVersioned": ["version", "manager_ctx", "deleter", "flags", "dl_tensor"],
    "DLPackExchangeAPIHeader": ["version", "prev_api"],
    "DLPackExchangeAPI": [
        "header",
        "managed_tensor_allocator",
        "managed_tensor_from_py_object_no_sync",
        "managed_tensor_to_py_object_no_sync",
        "dltensor_from_py_object_no_sync",
        "current_work_stream",
    ],
}
CONSTANTS = {
    "kDLCPU": 1, "kDLCUDA": 2, "kDLCUDAHost": 3, "kDLOpenCL": 4, "kDLVulkan": 7, "kDLMetal": 8, "kDLVPI": 9,
    "kDLROCM": 10, "kDLROCMHost": 11, "kDLExtDev": 12, "kDLCUDAManaged": 13, "kDLOneAPI": 14, "kDLWebGPU": 15,
    "kDLHexagon": 16, "kDLMAIA": 17, "kDLTrn": 18,
    "kDLInt": 0, "kDLUInt": 1, "kDLFloat": 2, "kDLOpaqueHandle": 3, "kDLBfloat": 4, "kDLComplex": 5, "kDLBool": 6,
    "kDLFloat8_e3m4": 7, "kDLFloat8_e4m3": 8, "kDLFloat8_e4m3b11fnuz": 9, "kDLFloat8_e4m3fn": 10,
    "kDLFloat8_e4m3fnuz": 11, "kDLFloat8_e5m2": 12, "kDLFloat8_e5m2fnuz": 13, "kDLFloat8_e8m0fnu": 14,
    "kDLFloat6_e2m3fn": 15, "kDLFloat6_e3m2fn": 16, "kDLFloat4_e2m1fn": 17,
    "DLPACK_FLAG_BITMASK_READ_ONLY": 1, "DLPACK_FLAG_BITMASK_IS_COPIED": 2,
    "DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED": 4, "DLPACK_MAJOR_VERSION": 1, "DLPACK_MINOR_VERSION": 3,
}  # fmt: skip

# What DLPack's main branch has beyond 1.3; headers of others may not.
NEWER = {"kDLTPU": 19, "kDLTPUHost": 20, "kDLAscend": 21, "kDLBcomplex": 18}

# Compiles only where the table's function types are the standard's, argument for argument.
SIGNATURES = """
typedef void Reporter(void *, const char *, const char *);
static int allocate(DLTensor *, DLManagedTensorVersioned **, void *, Reporter *) { return 0; }
static int from_object(void *, DLManagedTensorVersioned **) { return 0; }
static int to_object(DLManagedTensorVersioned *, void **) { return 0; }
static int borrow(void *, DLTensor *) { return 0; }
static int stream(DLDeviceType, int32_t, void **) { return 0; }
static void release(DLManagedTensor *) {}
static void release_versioned(DLManagedTensorVersioned *) {}
DLPackExchangeAPI table = {{{1, 3}, nullptr}, allocate, from_object, to_object, borrow, stream};
DLPackManagedTensorAllocator f1 = allocate;
DLPackManagedTensorFromPyObjectNoSync f2 = from_object;
DLPackManagedTensorToPyObjectNoSync f3 = to_object;
DLPackDLTensorFromPyObjectNoSync f4 = borrow;
DLPackCurrentWorkStream f5 = stream;
DLManagedTensor legacy = {{}, nullptr, release};
DLManagedTensorVersioned versioned = {{1, 3}, nullptr, release_versioned, 0, {}};
"""


def program(header, constants):
    """C++ that prints every size, offset and constant, after whichever header it is given."""
    lines = [f"#include <{header}>", "#include <stdio.h>", "#include <stddef.h>", SIGNATURES, "int main() {"]
    for name, fields in FIELDS.items():
        lines.append(f'printf("sizeof {name} %zu %zu\\n", sizeof({name}), alignof({name}));')
        for field in fields:
            size = f"sizeof((({name} *)nullptr)->{field})"
            lines.append(f'printf("{name}.{field} %zu %zu\\n", offsetof({name}, {field}), {size});')
    for name in constants:
        lines.append(f'printf("{name} %lld\\n", (long long)({name}));')
    lines.append('printf("enums %zu %zu\\n", sizeof(DLDeviceType), sizeof(DLDataTypeCode)); return 0; }')
    return "\n".join(lines)


def compiler(*names):
    for name in filter(None, names):
        if shutil.which(name):
            return name
    pytest.skip(f"no compiler among {', '.join(filter(None, names))}")


def cxx():
    return compiler(os.environ.get("CXX"), "c++", "g++", "clang++")


def printed(folder, header, include, constants=CONSTANTS):
    source, binary = folder / "probe.cpp", folder / "probe"
    source.write_text(program(header, constants))
    command = [cxx(), "-std=c++17", "-O0", f"-I{include}", str(source), "-o", str(binary)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return subprocess.run([str(binary)], capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    return printed(tmp_path_factory.mktemp("ours"), "dlfp4/dlpack.h", INCLUDE)


def test_our_header_is_the_standards(ours, tmp_path):
    torch = framework("torch")
    include = Path(torch.__file__).parent / "include"
    if not (include / "ATen" / "dlpack.h").exists():
        pytest.skip(f"PyTorch {torch.__version__} comes without ATen/dlpack.h")
    theirs = printed(tmp_path, "ATen/dlpack.h", include)
    assert ours == theirs
    assert len(ours) == sum(map(len, FIELDS.values())) + len(FIELDS) + len(CONSTANTS) + 1


def test_our_constants_are_the_standards(ours):
    said = dict(line.split() for line in ours if line.startswith(("kDL", "DLPACK_")))
    assert {name: int(value) for name, value in said.items()} == CONSTANTS


def test_our_header_has_what_the_standards_main_branch_has(tmp_path):
    lines = printed(tmp_path, "dlfp4/dlpack.h", INCLUDE, NEWER)
    assert {f"{name} {value}" for name, value in NEWER.items()} <= set(lines)


def test_the_ctypes_mirror_agrees(ours):
    """The tests' own structs, so that the other tests' reading of capsules can be trusted."""
    mirror = []
    for name, fields in FIELDS.items():
        struct = getattr(capsules, name)
        assert [field[0] for field in struct._fields_] == fields
        mirror.append(f"sizeof {name} {ctypes.sizeof(struct)} {ctypes.alignment(struct)}")
        mirror += [f"{name}.{f} {getattr(struct, f).offset} {getattr(struct, f).size}" for f in fields]
    assert mirror == ours[: len(mirror)]


@pytest.mark.parametrize(("language", "standard"), [("c", "c11"), ("c", "c17"), ("c++", "c++17"), ("c++", "c++20")])
def test_our_header_compiles_alone_without_a_warning(language, standard, tmp_path):
    source = tmp_path / ("alone.c" if language == "c" else "alone.cpp")
    source.write_text("#include <dlfp4/dlpack.h>\n#include <dlfp4/dlpack.h>\nint main(void) { return 0; }\n")
    tool = cxx() if language == "c++" else compiler(os.environ.get("CC"), "cc", "gcc", "clang")
    command = [tool, f"-std={standard}", "-Wall", "-Wextra", "-Werror", f"-I{INCLUDE}", "-fsyntax-only", str(source)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr


def test_get_include_leads_to_the_same_header():
    import dlfp4

    installed = Path(dlfp4.get_include()) / "dlfp4" / "dlpack.h"
    assert installed.read_text() == (INCLUDE / "dlfp4" / "dlpack.h").read_text()


# ---- the exchange table of our Tensor ------------------------------------------------------------------------------


@pytest.fixture(name="table")
def exchange_table():
    import dlfp4

    return capsules.exchange_api(dlfp4.Tensor)


def read_managed(address):
    return capsules.DLManagedTensorVersioned.from_address(address.value)


def release(address):
    capsules.Deleter(read_managed(address).deleter)(address)


def exported(table, tensor):
    address = ctypes.c_void_p()
    assert table.managed_tensor_from_py_object_no_sync(tensor, ctypes.byref(address)) == 0
    return address


def test_table_header_and_functions(table):
    assert (table.header.version.major, table.header.version.minor) == (1, 3)
    assert table.header.prev_api is None
    for name, kind in capsules.DLPackExchangeAPI._fields_[1:]:
        assert ctypes.cast(getattr(table, name), ctypes.c_void_p).value, name
        assert issubclass(kind, ctypes._CFuncPtr)


def test_table_is_on_the_type_and_static(table):
    import dlfp4

    tensor = dlfp4.asarray(random_array((4,)))
    for holder in (type(tensor), tensor):
        assert ctypes.addressof(capsules.exchange_api(holder)) == ctypes.addressof(table)
    assert capsules.capsule_name(dlfp4.Tensor.__dlpack_c_exchange_api__) == b"dlpack_exchange_api"


@pytest.mark.parametrize("layout", ["rows", "view", "scalar", "empty", "packed", "padded", "read-only"])
def test_table_exports_what_dlpack_exports(table, layout):
    import dlfp4

    array = random_array((4, 6))
    tensor = {
        "rows": lambda: dlfp4.asarray(array),
        "view": lambda: dlfp4.asarray(array)[1:, ::2].T,
        "scalar": lambda: dlfp4.asarray(array)[0, 0],
        "empty": lambda: dlfp4.asarray(array)[:0],
        "packed": lambda: dlfp4.asarray(array.view(np.uint8)).view("float4_e2m1fn"),
        "padded": lambda: dlfp4.asarray(array.view("float4_e2m1fn")),
        "read-only": lambda: dlfp4.asarray(bytes(array)),
    }[layout]()
    expected = capsules.Managed(tensor.__dlpack__(max_version=(1, 3)))
    address = exported(table, tensor)
    struct = read_managed(address)
    assert (struct.version.major, struct.version.minor, struct.flags) == (1, 3, expected.flags)
    check_same(struct.dl_tensor, expected)
    release(address)
    borrowed = capsules.DLTensor()
    if layout in ("read-only", "padded"):
        with pytest.raises(BufferError, match="ask for a managed tensor"):
            table.dltensor_from_py_object_no_sync(tensor, ctypes.byref(borrowed))
    else:
        assert table.dltensor_from_py_object_no_sync(tensor, ctypes.byref(borrowed)) == 0
        check_same(borrowed, expected)


def check_same(seen, expected):
    assert (seen.data, seen.byte_offset, seen.ndim) == (expected.data, 0, len(expected.shape))
    assert tuple(seen.shape[: seen.ndim]) == expected.shape
    assert tuple(seen.strides[: seen.ndim]) == expected.strides
    assert (seen.dtype.code, seen.dtype.bits, seen.dtype.lanes) == expected.dtype
    assert (seen.device.device_type, seen.device.device_id) == expected.device


def test_table_export_owns_its_memory(table):
    import dlfp4

    made = capsules.Made()
    tensor = dlfp4.from_dlpack(made.capsule)
    address = exported(table, tensor)
    del tensor
    gc.collect()
    assert made.deleted == 0
    release(address)
    assert made.deleted == 1


@pytest.mark.parametrize("flags", [0, capsules.READ_ONLY])
def test_table_import_steals(table, flags):
    import dlfp4

    made = capsules.Made(flags=flags)
    capsules.rename(made.capsule, b"used_dltensor_versioned")  # a bare struct: the capsule plays no further part
    out = ctypes.c_void_p()
    assert table.managed_tensor_to_py_object_no_sync(ctypes.addressof(made.struct), ctypes.byref(out)) == 0
    tensor = capsules.take_object(out)
    assert isinstance(tensor, dlfp4.Tensor)
    assert (tensor.readonly, tensor.to_numpy().tobytes()) == (bool(flags), made.memory.tobytes())
    assert sys.getrefcount(tensor) == 2
    del tensor
    assert made.deleted == 1


HOSTILE = [{"data": None}, {"ndim": -1}, {"shape": None, "ndim": 1}, {"shape": (-1,)}, {"code": 200}, {"lanes": 0},
           {"device": (99, 0)}, {"strides": (2**62,)}, {"version": (2, 0)}]  # fmt: skip


@pytest.mark.parametrize("fields", HOSTILE, ids=str)
def test_table_import_of_hostile_structs(table, fields):
    """A failed import has deleted the struct, which it was given."""
    made = capsules.Made(**fields)
    out = ctypes.c_void_p()
    with pytest.raises(BufferError):
        table.managed_tensor_to_py_object_no_sync(ctypes.addressof(made.struct), ctypes.byref(out))
    assert made.deleted == 1


def test_table_refuses_foreign_objects(table):
    """The caller promises the exact type, but a wrong one costs an exception, not the process."""
    code = (
        "import ctypes, capsules, dlfp4\n"
        "table = capsules.exchange_api(dlfp4.Tensor)\n"
        "out, view = ctypes.c_void_p(), capsules.DLTensor()\n"
        "for thing in (None, 3, object(), [1]):\n"
        "    for call, result in ((table.managed_tensor_from_py_object_no_sync, out),\n"
        "                         (table.dltensor_from_py_object_no_sync, view)):\n"
        "        try:\n"
        "            call(thing, ctypes.byref(result))\n"
        "        except (TypeError, BufferError):\n"
        "            print('refused')\n"
    )
    assert capsules.run_python(code) == "refused\n" * 8


PROTOTYPES = [("float32", (2, 32), 1, 24), ("float4_e2m1fn", (17, 4), 1, 3), ("float4_e2m1fn", (17, 4), 2, 6),
              ("float6_e2m3fn", (15, 6), 1, 5), ("float8_e4m3fn", (10, 8), 1, 6)]  # fmt: skip


def allocate(table, fields):
    """By a prototype that says nothing of memory: none, and leftovers where a place in it would be said."""
    prototype = capsules.Made(random_array((2, 3)), **fields)
    told, out = [], ctypes.c_void_p()
    set_error = capsules.SetError(lambda context, kind, message: told.append((context, kind, message)))
    tensor = prototype.struct.dl_tensor
    tensor.data, tensor.byte_offset = None, 2**63
    status = table.managed_tensor_allocator(ctypes.byref(tensor), ctypes.byref(out), 77, set_error)
    return status, out, told


@pytest.mark.parametrize(("name", "dtype", "lanes", "nbytes"), PROTOTYPES)
def test_table_allocates(table, name, dtype, lanes, nbytes):
    import dlfp4

    status, address, told = allocate(table, {"code": dtype[0], "bits": dtype[1], "lanes": lanes})
    assert (status, told) == (0, [])
    seen = read_managed(address).dl_tensor
    assert tuple(seen.shape[:2]) == (2, 3)
    assert (seen.dtype.code, seen.dtype.bits, seen.dtype.lanes) == (*dtype, lanes)
    assert seen.data % 64 == 0
    ctypes.memset(seen.data, 0xA5, nbytes)
    out = ctypes.c_void_p()
    table.managed_tensor_to_py_object_no_sync(address, ctypes.byref(out))
    tensor = capsules.take_object(out)
    assert (np.dtype(tensor.dtype).name, tensor.nbytes) == (name, nbytes)
    assert isinstance(tensor, dlfp4.Tensor)


@pytest.mark.parametrize("fields", [{"code": 200}, {"device": (4, 0)}, {"shape": (2**40, 2**40)}], ids=str)
def test_table_reports_a_failed_allocation_once(table, fields):
    status, address, told = allocate(table, fields)
    assert (status, address.value, len(told)) == (-1, None, 1)
    context, kind, message = told[0]
    assert context == 77
    assert kind.decode().endswith("Error")
    assert message


def test_table_has_no_stream_on_the_cpu(table):
    stream = ctypes.c_void_p(77)
    assert table.current_work_stream(1, 0, ctypes.byref(stream)) == 0
    assert stream.value is None


def test_torch_reads_our_table():
    """Where torch.from_dlpack uses the table or not: same memory, and it is released."""
    import dlfp4

    torch = framework("torch")
    made = capsules.Made()
    tensor = torch.from_dlpack(dlfp4.from_dlpack(made.capsule))
    assert tensor.data_ptr() == made.memory.ctypes.data
    assert tensor.numpy().tobytes() == made.memory.tobytes()
    del tensor
    gc.collect()
    assert made.deleted == 1
