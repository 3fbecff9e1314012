"""What this build of dlfp4 is and what machine it runs on."""

import os
import platform
import shlex
import sys
from importlib import metadata

from dlfp4 import _core, frameworks
from dlfp4._core import __version__, cpu_isa, cuda_available, cuda_image, get_num_threads
from dlfp4.files import get_include


def show_config() -> None:
    """Print versions, the instruction set of the kernels, threads, CUDA, folders, and the frameworks that are there."""
    threads = get_num_threads()
    rows = {
        "dlfp4": __version__,
        "python": f"{sys.version.split()[0]} on {platform.system()} {platform.machine()}",
        "numpy, ml_dtypes": f"{metadata.version('numpy')}, {metadata.version('ml_dtypes')}",
        "kernels": f"{cpu_isa()}, {threads} thread{'s' * (threads != 1)}",
        "CUDA driver": "found, with a device" if cuda_available() else "no driver or no device",
        "CUDA kernels": cuda_image() or "none in this build",
        "headers": get_include(),
        "libdlfp4": get_library_dir(),
        "frameworks": ", ".join(name for name in frameworks.NAMES if frameworks.framework(name).installed()),
    }
    for name, value in rows.items():
        print(f"{name:18}{value}")


def get_library_dir() -> str:
    """The folder of ``libdlfp4.so``, the library that this package itself runs on, for linkers and loaders."""
    return os.path.join(os.path.dirname(_core.__file__), "lib")


def get_cmake_dir() -> str:
    """The folder to give CMake as ``dlfp4_DIR`` for ``find_package(dlfp4)``."""
    return os.path.join(get_library_dir(), "cmake", "dlfp4")


def build_flags() -> dict[str, str]:
    """What ``python -m dlfp4 config`` prints, by option: arguments for compilers, linkers and CMake.

    With those for linkers a program also finds the library where the package lies when it runs. What a shell would
    split or expand is quoted, as pkg-config does it, for ``eval``.
    """
    folder = get_library_dir()
    return {
        "cflags": shlex.quote(f"-I{get_include()}"),
        "libs": shlex.join([f"-L{folder}", "-ldlfp4", f"-Wl,-rpath,{folder}"]),
        "cmakedir": get_cmake_dir(),
    }
