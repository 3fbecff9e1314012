"""A disk that fails: each call to the system by which something is written fails in turn, whoever makes it."""

import ctypes
import errno
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import dlfp4
from dlfp4 import caches, checkpoints
from dlfp4.checkpoints import safetensors

from ..support.own_process import run_apart

ROOT = Path(__file__).parents[2]
COMPILER = shutil.which("cc")
SOURCE = ROOT / "tests/support/failing_disk.c"
CALLS = {
    "open64", "mkdir", "chmod", "fchmod", "write", "pwrite64", "fdatasync", "fsync", "linkat", "rename", "close"
}  # fmt: skip


def model_in(folder):
    """A model of two files and what lies beside them."""
    folder.mkdir()
    for number in (1, 2):
        x = np.random.default_rng(number).normal(size=(32, 64)).astype(np.float32)
        name = f"model-0000{number}-of-00002.safetensors"
        checkpoints.save(folder / name, {f"model.layers.{number}.mlp.up_proj.weight": x})
    weights = {
        f"model.layers.{number}.mlp.up_proj.weight": f"model-0000{number}-of-00002.safetensors" for number in (1, 2)
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weights}))
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}')
    (folder / "tokenizer.json").write_text("{}")
    return folder


def writers(model):
    """What writes, whoever may call it: its name, and a call that makes a target."""
    (shard,) = model.glob("*-00001-of-*")
    q = dlfp4.quantize(np.ones((32, 64), np.float32), "nvfp4")
    yield "save", lambda target: checkpoints.save(target / "x.safetensors", {"x": q, "y": q.data})
    yield "quantize_model", lambda target: checkpoints.quantize_model(model, target, "nvfp4", convention="modelopt")
    yield "quantize a file", lambda target: checkpoints.quantize_model(shard, target / "x.safetensors", "mxfp4")
    yield "convert_model", lambda target: checkpoints.convert_model(shard, target / "x.safetensors", "modelopt")
    yield "private", lambda target: caches.write_private(target / "kernels", b"content")
    yield "keep_text", lambda target: caches.keep_text(target / "cache" / "choices.json", b"content")
    if find_spec("gguf"):
        yield "gguf", lambda target: checkpoints.convert_model(shard, target / "x.gguf", "gguf")


def files_below(folder):
    """Their bytes by their paths, but the list of what is to be resumed."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != ".dlfp4.json"]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


# ---- In a process in which the library of SOURCE is preloaded


def load_disk(path):
    disk = ctypes.CDLL(path)
    disk.fail_at.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_int]
    disk.failed_call.restype = ctypes.c_char_p
    return disk


def error_of(call, target):
    """The OSError of a call, or None."""
    try:
        call(target)
    except OSError as error:
        return error
    return None


def has_told(error, target):
    """Whether it is the disk's, and names the file that was asked for, or its folder."""
    return error is not None and error.errno == errno.EIO and Path(error.filename).is_relative_to(target)


def check_failure(writer, call, target, made, had):
    """After a call that failed: what is there is whole, nothing else is left, and a second try makes all of it."""
    left = files_below(target)
    assert list(target.rglob(".dlfp4-*")) == []
    assert all(content in (made.get(name), had.get(name)) for name, content in left.items()), left.keys()
    assert left.keys() >= had.keys()
    call(target)
    assert files_below(target) == made


def fail_each_call(disk, folder, writer, call, is_old):
    """How often each function failed; `is_old`: over files that are there."""
    folder.mkdir()
    call(folder)
    made, failures = files_below(folder), Counter()
    had = dict.fromkeys(made, b"old") if is_old else {}
    for number in itertools.count():
        target = folder / str(number)
        target.mkdir()
        for name, content in had.items():
            (target / name).parent.mkdir(exist_ok=True)
            (target / name).write_bytes(content)
        disk.fail_at(os.fsencode(target), number, errno.EIO)
        error = error_of(call, target)
        failed = disk.failed_call().decode()
        disk.fail_at(b"", -1, 0)
        if not failed:
            assert error is None
            return failures
        # A cache that cannot be written is made anew; where no file without a name is to be had, one with a name is.
        is_overcome = writer == "keep_text" or (failed == "open64" and files_below(target) == made)
        assert is_overcome or has_told(error, target), (writer, failed, error)
        check_failure(writer, call, target, made, had)
        failures[failed] += 1
    raise AssertionError


def fail_all(library, folder, names_files):
    """All writers; what failed, how often, is printed."""
    if names_files == "True":  # as where files must have names
        os.O_TMPFILE = os.O_DIRECTORY | os.O_RDWR
    safetensors.Background.SYNC = 1  # the disk is made to begin at each write
    disk, folder, failures = load_disk(library), Path(os.path.realpath(folder)), Counter()
    for writer, call in writers(model_in(folder / "model")):
        for is_old in [False, True][: 1 if writer == "quantize_model" else 2]:  # which writes over nothing
            found = fail_each_call(disk, folder / f"{writer} {is_old}", writer, call, is_old)
            assert found["fsync"] >= 2, (writer, found)
            failures += found
    print(json.dumps(failures))


# ---- The test


@pytest.mark.skipif(not COMPILER, reason="no C compiler is on PATH")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="which calls there are is Linux's")
@pytest.mark.parametrize("names_files", [False, True], ids=["without names", "with names"])
def test_each_call_of_each_writer_fails_in_turn(tmp_path, names_files):
    """What is there then is whole, nothing else is left, the error names the file, and a second try makes all of it."""
    library = tmp_path / "failing_disk.so"
    subprocess.run([COMPILER, "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, SOURCE, "-ldl"], check=True)
    preloaded = " ".join([*os.environ.get("LD_PRELOAD", "").split(), str(library)])  # a sanitizer has to come first
    env = os.environ | {"LD_PRELOAD": preloaded}
    arguments = (library, tmp_path, names_files)
    done = run_apart("tests.project.test_failing_disk", "fail_all", *arguments, env=env)
    assert done.returncode == 0, done.stderr
    failures = json.loads(done.stdout)
    assert failures.keys() == CALLS - ({"linkat"} if names_files else set())
    assert sum(failures.values()) > 150
