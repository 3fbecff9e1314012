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

    def compile(self, architecture):
        self.made.append(f"{architecture}, number {len(self.made)}".encode())
        return self.made[-1]


@pytest.fixture
def compiler(monkeypatch, tmp_path):
    Compiler.made = []
    monkeypatch.setattr(nvrtc, "Nvrtc", Compiler)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Compiler


@pytest.fixture
def sources(monkeypatch, tmp_path):
    for name in ("products/cuda/image.cu", "rules/numerics.h", "codecs/scalar.cpp"):
        (tmp_path / "src" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "src" / name).write_text(f"// {name}")
    monkeypatch.setattr(nvrtc, "source_folder", lambda: tmp_path / "src")
    return tmp_path / "src"


def test_images_are_compiled_once(compiler, tmp_path):
    assert nvrtc.load_image("90") == nvrtc.load_image("90") == b"90, number 0"
    assert nvrtc.load_image("120") == b"120, number 1"
    assert nvrtc.load_image("90") == b"90, number 0"
    assert len(list((tmp_path / "cache" / "dlfp4").iterdir())) == len(compiler.made) == 2


def test_images_are_compiled_anew_for_what_they_depend_on(compiler, sources, monkeypatch):
    nvrtc.load_image("90")
    (sources / "codecs" / "scalar.cpp").write_text("// no part of an image")
    nvrtc.load_image("90")
    assert len(compiler.made) == 1
    (sources / "rules" / "numerics.h").write_text("// another rule")
    nvrtc.load_image("90")
    assert len(compiler.made) == 2
    monkeypatch.setattr(compiler, "version", lambda self: "13.1")
    nvrtc.load_image("90")
    assert len(compiler.made) == 3
    monkeypatch.setattr(nvrtc, "OPTIONS", ())
    nvrtc.load_image("90")
    assert len(compiler.made) == 4


def test_a_cache_that_cannot_be_written_costs_time_only(compiler, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder would be")
    assert [nvrtc.load_image("90") for _ in range(2)] == [b"90, number 0", b"90, number 1"]


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda", None)
    with pytest.raises(ImportError, match="pip install cuda-pathfinder"):
        nvrtc.load_image("90")
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    with pytest.raises(ImportError, match="install the extra cuda12 or cuda13"):
        nvrtc.load_image("90")


def test_a_missing_library_is_named(monkeypatch):
    class NotFoundError(Exception):
        pass

    def find(name):
        raise NotFoundError(name)

    pathfinder = SimpleNamespace(DynamicLibNotFoundError=NotFoundError, load_nvidia_dynamic_lib=find)
    monkeypatch.setitem(sys.modules, "cuda", SimpleNamespace(pathfinder=pathfinder))
    with pytest.raises(RuntimeError, match=r"NVRTC, .* was not found; install the CUDA toolkit, or nvidia-cuda-nvrtc"):
        nvrtc.load_image("90")
