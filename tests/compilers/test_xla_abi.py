"""Our declaration of XLA's FFI against the header that jaxlib ships: sizes, offsets, constants."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

INCLUDE = Path(__file__).resolve().parents[2] / "include"
OURS, THEIRS = "dlfp4/xla_ffi.h", "xla/ffi/api/c_api.h"

# What dlfp4 uses. Later minor versions lengthen structs behind these fields, and rename types, not these names.
FIELDS = {
    "XLA_FFI_Api_Version": ["struct_size", "extension_start", "major_version", "minor_version"],
    "XLA_FFI_Metadata": ["struct_size", "api_version", "traits", "state_type_id"],
    "XLA_FFI_Metadata_Extension": ["extension_base", "metadata"],
    "XLA_FFI_Error_Create_Args": ["struct_size", "extension_start", "message", "errc"],
    "XLA_FFI_Stream_Get_Args": ["struct_size", "extension_start", "ctx", "stream"],
    "XLA_FFI_DeviceMemory_Allocate_Args": ["struct_size", "extension_start", "ctx", "size", "alignment", "data"],
    "XLA_FFI_DeviceOrdinal_Get_Args": ["struct_size", "extension_start", "ctx", "device_ordinal"],
    "XLA_FFI_Api": [
        "struct_size",
        "extension_start",
        "api_version",
        "internal_api",
        "XLA_FFI_Error_Create",
        "XLA_FFI_Stream_Get",
        "XLA_FFI_DeviceMemory_Allocate",
        "XLA_FFI_DeviceOrdinal_Get",
    ],
    "XLA_FFI_Buffer": ["struct_size", "extension_start", "dtype", "data", "rank", "dims"],
    "XLA_FFI_ByteSpan": ["ptr", "len"],
    "XLA_FFI_Array": ["dtype", "size", "data"],
    "XLA_FFI_Args": ["struct_size", "extension_start", "size", "types", "args"],
    "XLA_FFI_Rets": ["struct_size", "extension_start", "size", "types", "rets"],
    "XLA_FFI_Attrs": ["struct_size", "extension_start", "size", "types", "names", "attrs"],
    "XLA_FFI_CallFrame": [
        "struct_size",
        "extension_start",
        "api",
        "ctx",
        "stage",
        "args",
        "rets",
        "attrs",
        "future",
    ],
}
CONSTANTS = [
    "XLA_FFI_API_MAJOR",
    "XLA_FFI_Extension_Metadata",
    "XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE",
    "XLA_FFI_Error_Code_INVALID_ARGUMENT",
    "XLA_FFI_Error_Code_RESOURCE_EXHAUSTED",
    "XLA_FFI_Error_Code_FAILED_PRECONDITION",
    "XLA_FFI_Error_Code_INTERNAL",
    "XLA_FFI_DataType_S64",
    "XLA_FFI_ArgType_BUFFER",
    "XLA_FFI_RetType_BUFFER",
    "XLA_FFI_AttrType_ARRAY",
    "XLA_FFI_ExecutionStage_INITIALIZE",
    "XLA_FFI_ExecutionStage_EXECUTE",
]
# Compiles only where the handler's and the functions' types are these.
SIGNATURES = """
static XLA_FFI_Error *handle(XLA_FFI_CallFrame *) { return nullptr; }
XLA_FFI_Handler *handler = handle;
static XLA_FFI_Error *create(XLA_FFI_Error_Create_Args *) { return nullptr; }
decltype(XLA_FFI_Api::XLA_FFI_Error_Create) f1 = create;
static XLA_FFI_Error *stream(XLA_FFI_Stream_Get_Args *) { return nullptr; }
decltype(XLA_FFI_Api::XLA_FFI_Stream_Get) f2 = stream;
static XLA_FFI_Error *allocate(XLA_FFI_DeviceMemory_Allocate_Args *) { return nullptr; }
decltype(XLA_FFI_Api::XLA_FFI_DeviceMemory_Allocate) f3 = allocate;
static XLA_FFI_Error *ordinal(XLA_FFI_DeviceOrdinal_Get_Args *) { return nullptr; }
decltype(XLA_FFI_Api::XLA_FFI_DeviceOrdinal_Get) f4 = ordinal;
"""


def program(header):
    """C++ that prints every offset, size and constant that dlfp4 relies on."""
    lines = [f'#include "{header}"', "#include <stdio.h>", "#include <stddef.h>", SIGNATURES, "int main() {"]
    for name, fields in FIELDS.items():
        for field in fields:
            size = f"sizeof((({name} *)nullptr)->{field})"
            lines.append(f'printf("{name}.{field} %zu %zu\\n", offsetof({name}, {field}), {size});')
    lines += [f'printf("{name} %d\\n", (int){name});' for name in CONSTANTS]
    return "\n".join([*lines, "}"])


def facts(folder, header, include):
    source, binary = folder / "facts.cpp", folder / "facts"
    source.write_text(program(header))
    command = ["g++", "-std=c++17", "-Wno-invalid-offsetof", f"-I{include}", str(source), "-o", str(binary)]
    subprocess.run(command, check=True, timeout=120)
    return subprocess.run([str(binary)], check=True, capture_output=True, text=True, timeout=60).stdout


def test_our_header_against_the_one_that_jaxlib_ships(tmp_path):
    if shutil.which("g++") is None:
        pytest.skip("no g++ to compile the headers with")
    jax = pytest.importorskip("jax")
    ours = facts(tmp_path, OURS, INCLUDE)
    assert ours.count("\n") == sum(map(len, FIELDS.values())) + len(CONSTANTS)
    assert ours == facts(tmp_path, THEIRS, jax.ffi.include_dir())


def test_every_declared_field_is_compared():
    text = (INCLUDE / OURS).read_text()
    structs = {name: body for body, name in re.findall(r"typedef struct \{(.*?)\} (XLA_FFI_\w+);", text, re.DOTALL)}
    assert len(structs) > 10
    for name, body in structs.items():
        fields = re.findall(r"(\w+)(?:\[\d\]|\)\(\w+ \*args\))?;", body)
        declared = [field for field in fields if not field.startswith("uncalled")]
        assert name == "XLA_FFI_TypeId" or declared == FIELDS[name]
