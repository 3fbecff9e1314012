"""libdlfp4 as C and C++ programs find it in the installed package, link it, and share it with the extension."""

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dlfp4
from dlfp4 import config
from dlfp4.__main__ import main

from ..support import c_api
from ..support.capsules import framework

ROOT = Path(__file__).resolve().parents[2]
HEADER = Path(dlfp4.get_include()) / "dlfp4" / "dlfp4.h"
INTERFACE = dlfp4.__version__.rpartition(".")[0]
LIBRARY = Path(dlfp4.get_library_dir()) / f"libdlfp4.so.{INTERFACE}"
PAGE = (ROOT / "docs" / "library.md").read_text()
same_on_every_python = pytest.mark.arithmetic  # and takes seconds
STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]


def needs(*programs):
    missing = [program for program in programs if not shutil.which(program)]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not on PATH")


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, **options)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}"
    return done.stdout


def shown(language):
    """The page's program in a language."""
    (program,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return program


def flags(capsys, *names):
    """What `python -m dlfp4 config` prints."""
    assert main(["config", *names]) == 0
    return capsys.readouterr().out.split()


@needs("nm")
def test_the_library_exports_its_header_and_what_the_extension_needs():
    versions = {}
    for line in run("nm", "-D", "--defined-only", LIBRARY).splitlines():
        kind, name = line.split()[-2:]
        name, _, version = name.partition("@@")
        if kind != "A":  # the names of versions
            versions.setdefault(version, set()).add(name)
    declared = declared_functions()
    assert "dlfp4_version" in declared
    of_tvm_ffi = {f"__tvm_ffi_{name}" for name in ("cast", "quantize", "dequantize", "matmul")}
    assert versions.pop(f"DLFP4_{INTERFACE}") == declared | of_tvm_ffi
    private = versions.pop(f"DLFP4_PRIVATE_{dlfp4.__version__}")
    assert not {name for name in private if not name.startswith(("dlfp4_cuda_", "dlfp4_host_", "dlfp4_xla_"))}
    assert not versions


@needs("nm")
def test_the_extension_has_no_kernels_of_its_own():
    defined = run("nm", "-D", "--defined-only", sys.modules["dlfp4._core"].__file__)
    assert [line.split()[-1] for line in defined.splitlines()] == ["PyInit__core"]


def test_who_loads_the_library_shares_its_state_with_the_package():
    library = ctypes.CDLL(str(LIBRARY))
    library.dlfp4_version.restype = ctypes.c_char_p
    assert library.dlfp4_version().decode() == dlfp4.__version__
    before = dlfp4.get_num_threads()
    try:
        library.dlfp4_set_num_threads(before + 1)
        assert dlfp4.get_num_threads() in (before + 1, 1)
    finally:
        dlfp4.set_num_threads(0)


TENSORS = """
import ctypes, sys
sys.path.insert(0, sys.argv[2])
from capsules import DTYPES, DLDataType, DLDevice, DLTensor

shape = (ctypes.c_int64 * 1)(1 << 22)
memory = [(ctypes.c_float * shape[0])(*[1.0] * 8), (ctypes.c_uint8 * shape[0])()]
types = [DLDataType(*DTYPES[name], 1) for name in ("float32", "float8_e4m3fn")]
x, out = (
    DLTensor(ctypes.addressof(part), DLDevice(1, 0), 1, type, shape, None, 0) for part, type in zip(memory, types)
)
"""

CLOSED_AND_OPENED = f"""{TENSORS}
import _ctypes, time
for _ in range(5):
    library = ctypes.CDLL(sys.argv[1])
    assert library.dlfp4_cast(ctypes.byref(x), ctypes.byref(out), None, 0, None) == 0
    assert bytes(memory[1][:9]) == bytes([0x38] * 8 + [0])
    assert library.dlfp4_get_num_threads() == int(sys.argv[3])
    _ctypes.dlclose(library._handle)
    time.sleep(0.02)  # in which threads of a library that is gone would crash
"""


@pytest.mark.parametrize(("asked", "used"), [("2", "2"), ("2147483648", "1")])
def test_the_library_may_be_closed(asked, used):
    """Its threads, which wait for more work, outlive that; and of more threads than an int counts there is one."""
    run(
        sys.executable, "-c", CLOSED_AND_OPENED, LIBRARY, ROOT / "tests" / "support", used,
        env={**os.environ, "OMP_NUM_THREADS": asked},
    )  # fmt: skip


FORKED_BEFORE_THE_FIRST_CALL = f"""{TENSORS}
import os, re, signal
library = ctypes.CDLL(sys.argv[1])
with open("/proc/self/maps") as maps:
    openmp = re.search(r"/\\S*libgomp\\S*", maps.read())
if openmp:
    ctypes.CDLL(openmp.group()).GOMP_parallel(ctypes.CDLL(None).free, None, 4, 0)  # a program's own loop
child = os.fork()
if child == 0:
    signal.alarm(30)
    library.dlfp4_set_num_threads(4)
    os._exit(library.dlfp4_cast(ctypes.byref(x), ctypes.byref(out), None, 0, None))
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="no /proc to find OpenMP in")
def test_a_fork_before_the_first_call():
    """The program has had OpenMP's threads, which its child has not."""
    run(sys.executable, "-c", FORKED_BEFORE_THE_FIRST_CALL, LIBRARY, ROOT / "tests" / "support")


def configure(folder, *options, project=""):
    run("cmake", "-S", ROOT / "tests" / "library" / project, "-B", folder, *options)


FOUND = f"-Ddlfp4_DIR={dlfp4.get_cmake_dir()}"


@same_on_every_python
@needs("cmake", "cc", "c++")
def test_cmake_finds_the_package(tmp_path):
    for project in ("", "in_c"):
        folder = tmp_path / f"built_{project}"
        configure(folder, FOUND, f"-DDLFP4_WANTED={INTERFACE}", project=project)
        run("cmake", "--build", folder)
        assert "100% tests passed" in run("ctest", "--test-dir", folder)


@same_on_every_python
@needs("cmake", "cc", "c++")
def test_examples_are_built_with_the_package(tmp_path):
    run("cmake", "-S", ROOT / "examples", "-B", tmp_path, FOUND, "-DCMAKE_DISABLE_FIND_PACKAGE_Torch=ON")
    run("cmake", "--build", tmp_path)
    for name, ratio in {"nvfp4": (18, 22), "uint4_g32": (18, 22), "fp8_row": (29, 33)}.items():
        printed = run(tmp_path / "quantize", name)
        assert printed.startswith(f"{name}: ")
        assert ratio[0] < float(re.search(r"([\d.]+) dB", printed)[1]) < ratio[1]
    rows = [line.split() for line in run(tmp_path / "multiply").splitlines()[1:]]
    assert [row[0] for row in rows] == ["nvfp4", "mxfp4", "int4_g32", "mxfp6_e2m3", "mxfp8_e4m3"]
    assert all(15 < float(row[2]) < 35 for row in rows)


@same_on_every_python
@needs("cmake", "cc", "c++")
def test_the_example_with_pytorch_is_built(tmp_path):
    torch = framework("torch")
    run("cmake", "-S", ROOT / "examples", "-B", tmp_path, FOUND, f"-DCMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path}")
    run("cmake", "--build", tmp_path, "--target", "torch_tensors")
    assert "73732 bytes instead of 524288, 20." in run(tmp_path / "torch_tensors")


def rust_program(folder, crate):
    """A program over the crate, which finds the library as docs/library.md says."""
    (folder / "src").mkdir(parents=True)
    package = '[package]\nname = "program"\nversion = "1.0.0"\nedition = "2021"\n'
    (folder / "Cargo.toml").write_text(f'{package}[dependencies]\ndlfp4 = {{ path = "{crate}" }}\n')
    (folder / "src" / "main.rs").write_text('fn main() {\n    println!("{}", dlfp4::version());\n}\n')
    (folder / "build.rs").write_text(shown("rust"))
    return folder


@same_on_every_python
@needs("cargo")
@pytest.mark.skipif("-fsanitize" in os.environ.get("CFLAGS", ""), reason="Rust's linker knows no sanitizer of C++")
def test_the_rust_crate(tmp_path):
    crate = shutil.copytree(ROOT / "bindings" / "rust", tmp_path / "crate")  # cargo writes a lock file beside it
    assert f'\nversion = "{dlfp4.__version__}"\n' in (crate / "Cargo.toml").read_text()
    env = {**os.environ, "CARGO_TARGET_DIR": str(tmp_path / "target"), "DLFP4_LIB_DIR": dlfp4.get_library_dir()}
    results = re.findall(r"test result: ok. (\d+) passed", run("cargo", "test", "--offline", cwd=crate, env=env))
    assert sum(map(int, results)) >= 8
    printed = run("cargo", "run", "--offline", "--example", "snr", cwd=crate, env=env).splitlines()
    assert all(15 < float(line.split()[2]) < 35 for line in printed[1:])
    assert len(printed) == 6
    run("cargo", "build", "--offline", cwd=rust_program(tmp_path / "program", crate), env=env)
    assert run(tmp_path / "target" / "debug" / "program").strip() == dlfp4.__version__
    lost = {**env, "PKG_CONFIG_PATH": "", "PKG_CONFIG_LIBDIR": "", "CARGO_TERM_COLOR": "never"}
    del lost["DLFP4_LIB_DIR"]
    done = subprocess.run(["cargo", "doc", "--offline"], cwd=crate, env=lost, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "libdlfp4 is not found" in done.stderr
    assert (tmp_path / "target" / "doc" / "dlfp4" / "index.html").exists()


OUT_OF = dict(re.findall(r"^\| (an? [^|]+) \| `([^`]+)`", PAGE, re.MULTILINE))
PRINTS_THE_VERSION = """
#include <dlfp4/dlfp4.h>
#include <stdio.h>
int main(void) { return puts(dlfp4_version()) < 0; }
"""


@same_on_every_python
@needs("sh", "cmake", "cc", "c++", "pkg-config")
@pytest.mark.parametrize("way", [way for way in OUT_OF if "with" in way])
def test_a_program_is_built_as_the_page_says(tmp_path, way):
    (tmp_path / "main.c").write_text(PRINTS_THE_VERSION)
    project = "cmake_minimum_required(VERSION 3.25)\nproject(program C)\nadd_executable(program main.c)\n"
    (tmp_path / "CMakeLists.txt").write_text(project + shown("cmake"))
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (tmp_path / "python").chmod(0o755)
    prefix = LIBRARY.parents[1]  # the package's folder has what an installed library has
    (where,) = re.findall(r"`PKG_CONFIG_PATH=(\S+)`", PAGE)
    env = {**os.environ, "PKG_CONFIG_PATH": where.replace("PREFIX", str(prefix))}
    env["PATH"] = f"{tmp_path}:{env['PATH']}"
    command = re.sub(r"\bPREFIX\b", str(prefix), OUT_OF[way])
    command = command.replace("cc main.c", f"cc {os.environ.get('CFLAGS', '')} main.c -o program")
    if "CMake" in way:
        command += " && cmake --build build && mv build/program ."
    elif "pkg-config" in way:
        command += " " + re.search(r"link with\s+`([^`]+)`", PAGE)[1]
    run("sh", "-ec", command, cwd=tmp_path, env=env)
    assert run(tmp_path / "program").strip() == dlfp4.__version__


PART_OF_A_PROGRAM = """
#include <dlfp4/dlfp4.h>
#include <stddef.h>
int cudaMallocAsync(void **memory, size_t bytes, void *stream);
int fail(void);
int multiply(DLTensor x, dlfp4_prepared prepared, DLTensor ends, DLTensor tokens, DLTensor gates, DLTensor out,
             void *workspace, void *stream) {
  dlfp4_status status;
"""


@needs("cc")
def test_the_c_code_of_the_page_compiles(tmp_path, capsys):
    source = tmp_path / "part.c"
    source.write_text(f"{PART_OF_A_PROGRAM}{shown('c')}return status; }}\n")
    run("cc", "-std=c99", *STRICT, *flags(capsys, "--cflags"), "-fsyntax-only", source)


def test_the_page_names_what_is_there():
    there = {word for path in HEADER.parent.iterdir() for word in re.findall(r"\bdlfp4_\w+", path.read_text())}
    there |= {"dlfp4_DIR", "dlfp4_static"}  # of CMake
    assert set(re.findall(r"\bdlfp4_\w+", PAGE)) <= there


def declared_functions():
    """What the header exports."""
    return set(re.findall(r"^DLFP4_API [^(;]*?\b(dlfp4_\w+)\(", HEADER.read_text(), re.MULTILINE))


def test_the_rust_crate_declares_the_whole_c_api():
    crate = ROOT / "bindings" / "rust"
    functions = re.findall(r"^    pub fn (dlfp4_\w+)\(", (crate / "src" / "ffi.rs").read_text(), re.MULTILINE)
    assert sorted(functions) == sorted(declared_functions())
    sizes = re.findall(r"size_of::<ffi::(\w+)>\(\), (\d+)", (crate / "tests" / "layouts.rs").read_text())
    assert len(sizes) == 9
    for name, size in sizes:
        assert ctypes.sizeof(getattr(c_api, name)) == int(size), name


def test_the_cpp_face_names_all_formats():
    names = re.findall(r"^DLFP4_CPP_FORMAT\((\w+)\)", HEADER.with_suffix(".hpp").read_text(), re.MULTILINE)
    assert sorted(names) == sorted(dlfp4.formats())


@needs("bash", "sed")
def test_a_release_has_no_relative_links(tmp_path):
    """The readme of a release is read away from the repository."""
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    command, *others = set(re.findall(r"^ +- run: (sed .*)$", text, re.MULTILINE))
    assert not others
    assert text.count(command) == 2  # the sdist's and the wheels'
    shutil.copy(ROOT / "README.md", tmp_path)
    env = {**os.environ, "GITHUB_REPOSITORY": "someone/dlfp4", "GITHUB_REF_NAME": "v1.2.3"}
    run("bash", "-ec", command, cwd=tmp_path, env=env)
    before, after = (re.findall(r"\]\(([^)]+)\)", (at / "README.md").read_text()) for at in (ROOT, tmp_path))
    base = "https://github.com/someone/dlfp4/blob/v1.2.3/"
    assert after == [link if link.startswith(("https:", "#")) else base + link for link in before]
    assert base + "docs/releasing.md#other-systems" in after


@same_on_every_python
@needs("c++")
@pytest.mark.parametrize("order", ["theirs first", "ours first"])
def test_our_headers_go_with_those_of_pytorch(tmp_path, capsys, order):
    include = Path(framework("torch").__file__).parent / "include"
    lines = ["#include <ATen/dlpack.h>", "#include <dlfp4/dlfp4.hpp>"]
    source = tmp_path / "both.cpp"
    source.write_text("\n".join(lines if order == "theirs first" else lines[::-1]) + "\n")
    run("c++", "-std=c++17", *STRICT, *flags(capsys, "--cflags"), f"-I{include}", "-fsyntax-only", source)


ANOTHER_LIBRARY = """
#include <dlfp4/dlfp4.hpp>
__attribute__((visibility("default"))) std::error_code fail() { return dlfp4::make_error_code(DLFP4_E_SHAPE); }
"""
ITS_USER = """
#include <dlfp4/dlfp4.hpp>
std::error_code fail();
int main() { return fail() == dlfp4::make_error_code(DLFP4_E_SHAPE) ? 0 : 1; }
"""


@same_on_every_python
@needs("c++")
def test_libraries_that_hide_their_symbols_know_each_others_errors(tmp_path, capsys):
    hidden = ["-std=c++17", "-fvisibility=hidden", "-fvisibility-inlines-hidden", *flags(capsys, "--cflags")]
    hidden += os.environ.get("CXXFLAGS", "").split()
    sources, libs = [tmp_path / "another.cpp", tmp_path / "user.cpp"], flags(capsys, "--libs")
    for source, text in zip(sources, (ANOTHER_LIBRARY, ITS_USER), strict=True):
        source.write_text(text)
    another, program = tmp_path / "libanother.so", tmp_path / "program"
    run("c++", *hidden, "-fPIC", "-shared", sources[0], "-o", another, *libs)
    run("c++", *hidden, sources[1], "-o", program, another, *libs)
    run(program)


def test_the_least_cmake_is_the_same_everywhere():
    lists = [ROOT / folder / "CMakeLists.txt" for folder in ("", "examples", "tests/library", "tests/library/in_c")]
    stated = [re.search(r"cmake_minimum_required\(VERSION ([\d.]+)\)", path.read_text())[1] for path in lists]
    stated += re.findall(r"CMake ([\d.]+) or newer", (ROOT / "docs" / "library.md").read_text())
    stated += re.findall(r'"cmake>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert len(stated) == len(lists) + 2
    assert len(set(stated)) == 1


@same_on_every_python
@needs("cmake", "cc", "c++")
@pytest.mark.parametrize("wanted", ["0.0", "0.0...<0.1", "0.2...0.9"])
def test_another_interface_is_refused(tmp_path, wanted):
    with pytest.raises(AssertionError, match=r"version found is not compatible|compatible\s+with requested version"):
        configure(tmp_path, FOUND, f"-DDLFP4_WANTED={wanted}")


@same_on_every_python
@needs("cmake", "cc", "c++")
def test_components_are_the_libraries(tmp_path):
    within = f"{INTERFACE}...<{INTERFACE.partition('.')[0]}.{int(INTERFACE.partition('.')[2]) + 1}"
    wanted = f"-DDLFP4_WANTED={within};COMPONENTS;dlfp4;dlpack;OPTIONAL_COMPONENTS;dlfp4_static"
    configure(tmp_path / "there", FOUND, wanted, project="in_c")
    with pytest.raises(AssertionError, match=r"There is no dlfp4::dlfp4_static in"):
        configure(tmp_path / "not_there", FOUND, "-DDLFP4_WANTED=COMPONENTS;dlfp4_static", project="in_c")


@same_on_every_python
@needs("cmake", "cc", "c++")
def test_a_project_that_takes_the_sources_gets_the_library_alone(tmp_path):
    options = f"-DDLFP4_SOURCE={ROOT}", "-DDLFP4_CUDA=OFF", f"-DCMAKE_INSTALL_PREFIX={tmp_path / 'installed'}"
    configure(tmp_path, *options)
    tests = re.findall(r"Test +#\d+: (\w+)", run("ctest", "--test-dir", tmp_path, "--show-only"))
    faces = ["face_in_17", "face_in_20", "face_without_exceptions"]
    assert tests == ["with_dlfp4", "with_dlfp4_static", *faces, "headers_alone"]
    run("cmake", "--install", tmp_path)
    assert not (tmp_path / "installed").exists()


@same_on_every_python
@needs("cmake", "cc", "c++")
def test_what_a_project_sets_changes_no_bits_of_the_kernels(tmp_path):
    options = "-DCMAKE_UNITY_BUILD=ON", "-DCMAKE_CXX_FLAGS=-ffast-math", "-DDLFP4_CUDA=OFF", "-GUnix Makefiles"
    configure(tmp_path, f"-DDLFP4_SOURCE={ROOT}", *options)
    kernels = tmp_path / "dlfp4" / "CMakeFiles" / "dlfp4_kernels.dir"
    (flags,) = re.findall(r"^CXX_FLAGS = (.*)$", (kernels / "flags.make").read_text(), re.MULTILINE)
    assert flags.index(" -fno-fast-math ") > flags.index("-ffast-math")
    assert flags.index(" -fno-fast-math ") < flags.index(" -fno-math-errno ")  # which the former turns on
    assert not (kernels / "Unity").exists()


@same_on_every_python
@needs("cc", "c++")
@pytest.mark.parametrize("standard", ["c99", "c11", "c++17", "c++20"])
def test_the_headers_compile_without_a_warning(tmp_path, capsys, standard):
    cxx = "++" in standard
    source = tmp_path / ("all.cpp" if cxx else "all.c")
    names = sorted(path.name for path in HEADER.parent.iterdir() if cxx or path.suffix == ".h")
    assert {"dlfp4.h", "dlpack.h", "options.h", "xla_ffi.h"} <= set(names)
    source.write_text("".join(f"#include <dlfp4/{name}>\n" for name in names))
    compiler = "c++" if cxx else "cc"
    run(compiler, f"-std={standard}", *STRICT, *flags(capsys, "--cflags"), "-c", source, "-o", tmp_path / "all.o")


@same_on_every_python
@needs("clang")
def test_comments_name_parameters_as_declarations_do(tmp_path, capsys):
    source = tmp_path / "all.c"
    source.write_text("#include <dlfp4/dlfp4.h>\n")
    run("clang", "-std=c99", "-Wdocumentation", "-Werror", *flags(capsys, "--cflags"), "-fsyntax-only", source)


@needs("cc")
def test_config_prints_what_compilers_take(tmp_path, capsys):
    program, source = tmp_path / "program", ROOT / "tests" / "library" / "consumer.c"
    cflags = [*os.environ.get("CFLAGS", "").split(), *flags(capsys, "--cflags")]
    run("cc", *cflags, source, "-o", program, *flags(capsys, "--libs"))
    run(program)


@needs("cc")
def test_config_quotes_folders_with_spaces(tmp_path, capsys, monkeypatch):
    place, source = tmp_path / "a $folder" / "dlfp4", ROOT / "tests" / "library" / "consumer.c"
    place.mkdir(parents=True)
    (place / "include").symlink_to(dlfp4.get_include())
    (place / "lib").symlink_to(dlfp4.get_library_dir())
    monkeypatch.setattr(config, "get_include", lambda: str(place / "include"))
    monkeypatch.setattr(config, "get_library_dir", lambda: str(place / "lib"))
    assert main(["config", "--cflags", "--libs"]) == 0
    printed = capsys.readouterr().out
    compiler = " ".join(["cc", *os.environ.get("CFLAGS", "").split()])
    run("sh", "-c", f'eval "{compiler} {source} -o {tmp_path}/program $1"', "sh", printed)
    run(tmp_path / "program")


@needs("pkg-config")
def test_pkg_config_knows_where_the_package_lies():
    env = {**os.environ, "PKG_CONFIG_PATH": str(LIBRARY.parent / "pkgconfig")}
    assert run("pkg-config", "--modversion", "dlfp4", env=env).strip() == dlfp4.__version__
    include, folder, library = run("pkg-config", "--cflags", "--libs", "dlfp4", env=env).split()
    assert (Path(include[2:]) / "dlfp4" / "dlfp4.h").is_file()
    assert Path(folder[2:]).resolve() == LIBRARY.parent.resolve()
    assert library == "-ldlfp4"


def test_config_prints_all_lines_unless_told_which(capsys):
    words = flags(capsys)
    assert words == [*flags(capsys, "--cflags"), *flags(capsys, "--libs"), *flags(capsys, "--cmakedir")]
    assert words[-1] == dlfp4.get_cmake_dir()
