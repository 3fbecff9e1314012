"""The CUDA kernels compiled at run time, where the images of the build do not fit the GPU or its driver.

NVRTC compiles the sources that an image was made of, which are installed with the package, and the result is kept in
the user's cache folder. Needs ``cuda-pathfinder``, which finds NVRTC, and ``platformdirs``: both come with the extras
``cuda12`` and ``cuda13``.
"""

import ctypes
import hashlib
import os
import re
from pathlib import Path

from dlfp4.caches import keep, load
from dlfp4.files import get_include

INCLUDES = re.compile(rb'^#include "([^"]+)"', re.MULTILINE)

# What compiles to the same results as the build: no contraction of a*b+c, no flush of subnormals.
OPTIONS = ("--std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "--device-as-default-execution-space")

# NVRTC has no C library: the types that the sources take from it. memcpy is built in.
HEADERS = {
    "stdint.h": """#pragma once
typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long long int64_t;
typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t;
typedef unsigned long long uint64_t; typedef unsigned long long uintptr_t;
""",
    "stddef.h": "#pragma once\n",  # size_t is built in
    "string.h": "#pragma once\n",
}


def source_folder() -> Path:
    """The folder of the kernels' sources: installed, or, in an editable install, where they are written."""
    package = Path(__file__).parent
    installed = package / "src"
    return installed if installed.is_dir() else package.parent / "src"


def source_of(image: str) -> Path:
    """The file that an image is compiled from."""
    return next(source_folder().glob(f"*/cuda/{image}.cu"))


def load_image(image: str, architecture: str) -> bytes:
    """Return an image of kernels for a GPU, from the cache or compiled.

    Parameters
    ----------
    image
        Its name: ``"codecs"``.
    architecture
        The compute capability without its point: ``"90"``.

    Returns
    -------
    bytes
        A cubin.

    Raises
    ------
    ImportError
        ``cuda-pathfinder`` or ``platformdirs`` is not installed.
    RuntimeError
        There is no NVRTC, or it cannot compile the sources; the message holds its log.
    """
    try:
        import platformdirs
    except ImportError as error:
        raise ImportError(
            "the image of CUDA kernels in this build does not serve this GPU or driver; to compile them at run time, "
            "install the extra cuda12 or cuda13 (platformdirs and cuda-pathfinder)"
        ) from error
    nvrtc = Nvrtc()
    path = Path(platformdirs.user_cache_path("dlfp4")) / f"kernels-{digest(image, architecture, nvrtc.version())}.cubin"
    found = load(path)
    if found is None:
        found = nvrtc.compile(source_of(image), architecture)
        keep(path, found)
    return found


def digest(image: str, architecture: str, version: str) -> str:
    """Name what an image depends on: its sources, the compiler, the GPU."""
    content = hashlib.sha256(repr((architecture, version, OPTIONS)).encode())
    for path, text in sorted(sources_of(image).items()):
        content.update(path.name.encode() + b"\0" + text)
    return content.hexdigest()[:32]


def sources_of(image: str) -> dict[Path, bytes]:
    """The texts of the file that an image is compiled from, and of all that it includes."""
    folders = source_folder(), Path(get_include())
    found: dict[Path, bytes] = {}
    left = [source_of(image)]
    while left:
        path = left.pop()
        if path not in found:
            found[path] = path.read_bytes()
            for name in INCLUDES.findall(found[path]):
                places = [folder / name.decode() for folder in (path.parent, *folders)]
                left += [place for place in places if place.is_file()][:1]
    return found


class Nvrtc:
    """NVRTC through ctypes."""

    def __init__(self) -> None:
        try:
            from cuda import pathfinder
        except ImportError as error:
            raise ImportError(
                "cuda-pathfinder, which finds NVRTC, is not installed; pip install cuda-pathfinder"
            ) from error
        try:
            self._library = ctypes.CDLL(pathfinder.load_nvidia_dynamic_lib("nvrtc").abs_path)
        except pathfinder.DynamicLibNotFoundError as error:
            raise RuntimeError(
                "NVRTC, which compiles CUDA kernels at run time, was not found; install the CUDA toolkit, or "
                "nvidia-cuda-nvrtc of the driver's major version"
            ) from error

    def version(self) -> str:
        """Return the compiler's version."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)), "nvrtcVersion")
        return f"{major.value}.{minor.value}"

    def compile(self, source: Path, architecture: str) -> bytes:
        """Compile an image's source for one GPU."""
        if architecture == "90":  # with the instructions that only this GPU has, and the matrix kernels need
            architecture = "90a"
        options = [*OPTIONS, f"--gpu-architecture=sm_{architecture}", f"-I{source_folder()}", f"-I{get_include()}"]
        program = ctypes.c_void_p()
        texts, names = (
            (ctypes.c_char_p * len(HEADERS))(*map(str.encode, each)) for each in (HEADERS.values(), HEADERS)
        )
        create = self._library.nvrtcCreateProgram
        status = create(ctypes.byref(program), source.read_bytes(), os.fsencode(source), len(HEADERS), texts, names)
        self._check(status, "nvrtcCreateProgram")
        try:
            arguments = (ctypes.c_char_p * len(options))(*map(os.fsencode, options))
            if self._library.nvrtcCompileProgram(program, len(options), arguments) != 0:
                log = self._read(program, "ProgramLog").decode(errors="replace")
                raise RuntimeError(f"NVRTC {self.version()} cannot compile the kernels for sm_{architecture}:\n{log}")
            return self._read(program, "CUBIN")
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _read(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)), f"nvrtcGet{what}Size")
        buffer = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._library, f"nvrtcGet{what}")(program, buffer), f"nvrtcGet{what}")
        return buffer.raw

    def _check(self, status: int, call: str) -> None:
        if status != 0:
            name = self._library.nvrtcGetErrorString
            name.restype = ctypes.c_char_p
            raise RuntimeError(f"{call}: {name(status).decode()} ({status})")
