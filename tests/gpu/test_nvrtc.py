"""Kernels that NVRTC compiles, without a GPU: what must be installed, and the cache. test_cuda_ops.py runs them."""

import sys
from types import SimpleNamespace

import pytest

from dlfp4 import nvrtc


class Compiler:
    """Stands for NVRTC; its images say what they were made of."""

    made: list[bytes]

    def version(self):
        return "13.0"

    def compile(self, source, architecture):
        self.made.append(f"{source.stem} for {architecture}, number {len(self.made)}".encode())
        return self.made[-1]


@pytest.fixture
def compiler(monkeypatch, tmp_path):
    Compiler.made = []
    monkeypatch.setattr(nvrtc, "Nvrtc", Compiler)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Compiler


SOURCES = {
    "codecs/cuda/codecs.cu": '#include "gpu/image.cuh"\n#include "convert.cuh"\n',
    "codecs/cuda/convert.cuh": '#include <stdint.h>\n#include "dlfp4/dlfp4.h"\n',
    "products/cuda/dots.cu": '#include "gpu/image.cuh"\n',
    "gpu/image.cuh": '#include "rules/numerics.h"\n',
    "rules/numerics.h": "",
    "codecs/convert.cpp": "",
}


@pytest.fixture
def sources(monkeypatch, tmp_path):
    for name, text in SOURCES.items():
        (tmp_path / "src" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "src" / name).write_text(text)
    monkeypatch.setattr(nvrtc, "source_folder", lambda: tmp_path / "src")
    return tmp_path / "src"


def test_images_are_compiled_once(compiler, tmp_path):
    assert nvrtc.load_image("dots", "90") == nvrtc.load_image("dots", "90") == b"dots for 90, number 0"
    assert nvrtc.load_image("dots", "120") == b"dots for 120, number 1"
    assert nvrtc.load_image("codecs", "120") == b"codecs for 120, number 2"
    assert nvrtc.load_image("dots", "90") == b"dots for 90, number 0"
    assert len(list((tmp_path / "cache" / "dlfp4").glob("*.cubin"))) == len(compiler.made) == 3


def test_images_that_were_changed_are_compiled_anew(compiler, tmp_path):
    nvrtc.load_image("dots", "90")
    (path,) = (tmp_path / "cache" / "dlfp4").glob("*.cubin")
    path.write_bytes(path.read_bytes()[:-1] + b"7")
    assert nvrtc.load_image("dots", "90") == nvrtc.load_image("dots", "90") == b"dots for 90, number 1"


def test_the_sources_of_every_image_are_there():
    """As far as they are read by name: those of the language's library are NVRTC's, or given to it."""
    for image in ("codecs", "blocks", "dots", "products", "grouped"):
        found = nvrtc.sources_of(image)
        for path, text in found.items():
            for name in nvrtc.INCLUDES.findall(text):
                assert any(str(other).endswith("/" + name.decode()) for other in found), f"{path}: {name}"
    assert {"numerics.h", "codes.cuh", "convert.cuh", "codecs.def", "options.h"} <= {
        path.name for path in nvrtc.sources_of("codecs")
    }


@pytest.mark.parametrize(
    ("changed", "images"),
    [
        ("codecs/cuda/convert.cuh", {"codecs"}),
        ("products/cuda/dots.cu", {"dots"}),
        ("rules/numerics.h", {"codecs", "dots"}),
        ("codecs/convert.cpp", set()),
    ],
)
def test_images_are_compiled_anew_for_what_they_include(compiler, sources, changed, images):
    for image in ("codecs", "dots"):
        nvrtc.load_image(image, "90")
    (sources / changed).write_text(SOURCES[changed] + "// changed")
    for image in ("codecs", "dots"):
        nvrtc.load_image(image, "90")
    assert {made.decode().partition(" ")[0] for made in compiler.made[2:]} == images


def test_images_are_compiled_anew_by_other_means(compiler, sources, monkeypatch):
    nvrtc.load_image("codecs", "90")
    monkeypatch.setattr(compiler, "version", lambda self: "13.1")
    nvrtc.load_image("codecs", "90")
    assert len(compiler.made) == 2
    monkeypatch.setattr(nvrtc, "OPTIONS", ())
    nvrtc.load_image("codecs", "90")
    assert len(compiler.made) == 3


def test_a_cache_that_cannot_be_written_costs_time_only(compiler, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder would be")
    assert [nvrtc.load_image("dots", "90")[-1:] for _ in range(2)] == [b"0", b"1"]


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda", None)
    with pytest.raises(ImportError, match="pip install cuda-pathfinder"):
        nvrtc.load_image("codecs", "90")
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    with pytest.raises(ImportError, match="install the extra cuda12 or cuda13"):
        nvrtc.load_image("codecs", "90")


def test_a_missing_library_is_named(monkeypatch):
    class NotFoundError(Exception):
        pass

    def find(name):
        raise NotFoundError(name)

    pathfinder = SimpleNamespace(DynamicLibNotFoundError=NotFoundError, load_nvidia_dynamic_lib=find)
    monkeypatch.setitem(sys.modules, "cuda", SimpleNamespace(pathfinder=pathfinder))
    with pytest.raises(RuntimeError, match=r"NVRTC, .* was not found; install the CUDA toolkit, or nvidia-cuda-nvrtc"):
        nvrtc.load_image("codecs", "90")
