"""Files that appear whole or not at all."""

import contextlib
import errno
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import dlfp4
from dlfp4 import checkpoints, files
from dlfp4.files import check_writable, open_file, read_whole, replacing, sweep


def test_a_file_is_replaced_when_all_is_written(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with replacing(path) as file:
        file.write(b"new, ")
        assert path.read_bytes() == b"old"
        file.write(b"and longer")
    assert path.read_bytes() == b"new, and longer"
    assert list(tmp_path.iterdir()) == [path]


def test_what_fails_halfway_leaves_no_trace(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(TypeError, match="bytes-like"), replacing(path) as file:
        file.writelines([b"new", "no bytes"])
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture
def others(tmp_path):
    """What has a name and is no file, and the number of the error."""
    pipe, name = tmp_path / "pipe", tmp_path / "socket"
    os.mkfifo(pipe)
    with socket.socket(socket.AF_UNIX) as here:
        here.bind(str(name))
        yield {
            pipe: errno.EINVAL, name: errno.EINVAL, Path("/dev/full"): errno.EINVAL, Path("/dev/zero"): errno.EINVAL,
            tmp_path: errno.EISDIR,
        }  # fmt: skip


def calls_on(path):
    """What reads a file or writes one, whoever may call it."""
    metadata = {"format": "pt"}
    yield lambda: open_file(path)
    yield lambda: check_writable(path)
    yield lambda: replacing(path).__enter__()
    yield lambda: checkpoints.save(path, {"x": dlfp4.empty(3, "uint8")}, metadata)
    yield lambda: dlfp4.autotune(path).__enter__()
    if path.is_dir():
        return
    yield lambda: checkpoints.load(path)
    yield lambda: checkpoints.load([path])
    yield lambda: checkpoints.read_metadata(path)
    yield lambda: checkpoints.inspect(path)
    yield lambda: checkpoints.quantize_model(path, path.with_name("other.safetensors"), "nvfp4")
    yield lambda: checkpoints.convert_model(path, path.with_name("other.safetensors"), "modelopt")


def test_what_is_no_file_is_refused_at_once(others):
    """A pipe would be waited for, a device read for ever."""
    calls = 0
    for path, number in others.items():
        for call in calls_on(path):
            with pytest.raises(OSError) as caught:  # noqa: PT011 (the number tells)
                call()
            assert (caught.value.errno, caught.value.filename) == (number, str(path))
            calls += 1
    assert calls == 49


def test_a_pipe_that_takes_the_place_of_a_file(tmp_path):
    """Between the question what it is and the opening, which would wait for someone who writes."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"")
    code = f"""
import os
from dlfp4.files import open_file
there = os.stat({str(tmp_path / "file")!r})
os.stat = lambda path: there
try:
    open_file({str(tmp_path / "pipe")!r})
except OSError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-P", "-c", code], check=True, timeout=60, capture_output=True, text=True)
    assert "a device, pipe or socket" in done.stdout


def test_pipes_in_the_place_of_json_and_of_other_files(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    checkpoints.save(model / "model.safetensors", {"x": np.ones((64, 64), np.float32)})
    os.mkfifo(model / "tokenizer.json")
    checkpoints.quantize_model(model, tmp_path / "without", "nvfp4")
    assert not (tmp_path / "without" / "tokenizer.json").exists()
    for name in ("config.json", "model.safetensors.index.json"):
        os.mkfifo(model / name)
        with pytest.raises(OSError, match="a device, pipe or socket") as caught:
            checkpoints.quantize_model(model, tmp_path / f"for {name}", "nvfp4")
        assert caught.value.filename == str(model / name)
        (model / name).unlink()
    with pytest.raises(OSError, match="a device, pipe or socket"):
        checkpoints.load(Path("/dev/zero").parent / "../dev/zero")


def test_gguf_files_that_are_none(tmp_path):
    pytest.importorskip("gguf")
    pipe = tmp_path / "model.gguf"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="a device, pipe or socket"):
        checkpoints.convert_model(pipe, tmp_path / "model.safetensors", "dlfp4")
    with pytest.raises(OSError, match="a device, pipe or socket"):
        checkpoints.convert_model(saved(tmp_path), pipe, "gguf")


def saved(folder):
    checkpoints.save(folder / "x.safetensors", {"x": dlfp4.empty(3, "uint8")})
    return folder / "x.safetensors"


def test_files_that_are_too_long(tmp_path):
    (tmp_path / "file").write_bytes(b"four")
    assert read_whole(tmp_path / "file", 4) == b"four"
    with pytest.raises(ValueError, match="more than the 3 bytes"):
        read_whole(tmp_path / "file", 3)


def test_the_disk_is_asked_before_the_work(tmp_path, monkeypatch):
    """And the error says which file found no room."""
    monkeypatch.setattr(os, "statvfs", lambda folder: SimpleNamespace(f_bavail=3, f_bfree=3, f_frsize=100, f_blocks=9))
    path = tmp_path / "model.safetensors"
    checkpoints.save(path, {"x": dlfp4.empty(3, "uint8")})
    before = path.read_bytes()
    with pytest.raises(OSError, match=r"\d+ bytes are needed, 300 are free") as caught:
        checkpoints.save(path, {"x": dlfp4.empty(1000, "uint8")})
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(path))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    monkeypatch.setattr(os, "statvfs", lambda folder: SimpleNamespace(f_bavail=0, f_bfree=0, f_frsize=100, f_blocks=9))
    for call in (
        lambda: checkpoints.quantize_model(path, tmp_path / "new", "nvfp4"),
        lambda: checkpoints.convert_model(path, tmp_path / "new", "modelopt"),
        lambda: checkpoints.quantize_model([path], tmp_path / "folder", "nvfp4"),
    ):
        with pytest.raises(OSError, match="1 bytes are needed, 0 are free"):
            call()
    assert list(tmp_path.iterdir()) == [path]
    monkeypatch.setattr(os, "statvfs", lambda folder: SimpleNamespace(f_bavail=0, f_bfree=0, f_frsize=0, f_blocks=0))
    checkpoints.save(path, {"x": dlfp4.empty(1000, "uint8")})  # a file system that does not say


def test_a_model_needs_room_for_all_of_its_files(tmp_path, monkeypatch):
    """Though one alone would fit."""
    model, target = tmp_path / "model", tmp_path / "target"
    model.mkdir()
    for number in (1, 2):
        checkpoints.save(
            model / f"model-0000{number}-of-00002.safetensors", {f"w{number}.weight": dlfp4.empty((64, 640), "float32")}
        )
    free = SimpleNamespace(f_bavail=60_000, f_bfree=60_000, f_frsize=1, f_blocks=9)
    monkeypatch.setattr(os, "statvfs", lambda folder: free)
    with pytest.raises(OSError, match="84480 bytes are needed, 60000 are free") as caught:
        checkpoints.quantize_model(model, target, "mxfp8_e4m3", include=["*"])
    assert caught.value.filename == str(target)
    assert list(target.glob("*.safetensors")) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_folders_that_cannot_be_written(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError):
        check_writable(tmp_path / "file")
    tmp_path.chmod(0o700)


def test_errors_name_the_file_that_was_asked_for(tmp_path, monkeypatch):
    """Not the one beside it that cannot be begun or renamed."""
    path = tmp_path / "model.safetensors"

    def refuse(place, *given):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(place), None, *map(str, given))

    for name in ("open", "replace"):
        with monkeypatch.context() as patched:
            patched.setattr(os, "O_TMPFILE", os.O_DIRECTORY | os.O_RDWR, raising=False)  # as where it is not known
            patched.setattr(Path, name, refuse)
            with pytest.raises(PermissionError) as caught:
                checkpoints.save(path, {"x": dlfp4.asarray(b"new")})
        assert str(caught.value) == f"[Errno {errno.EACCES}] {os.strerror(errno.EACCES)}: {str(path)!r}"
    assert list(tmp_path.iterdir()) == []


def failing(number, *, after=0, times=sys.maxsize, real=None):
    """A function of `os` that fails as a disk does, so often, once it was called so many times; else it does what the
    real one does, or nothing.
    """

    def fail(*given, **options):
        fail.calls += 1
        if after < fail.calls <= after + times:
            fail.failed += 1
            raise OSError(number, os.strerror(number))
        if real is not None:
            return real(*given, **options)
        return len(given[1]) if len(given) > 1 else None

    fail.calls = fail.failed = 0
    return fail


@pytest.mark.parametrize("name", ["pwrite", "fsync", "link", "fdopen", "fchmod"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_each_call_that_fails_leaves_the_old_file(tmp_path, monkeypatch, name, number):
    path = tmp_path / "model.safetensors"
    checkpoints.save(path, {"x": dlfp4.asarray(b"old")})
    before = path.read_bytes()
    monkeypatch.setattr(os, name, failing(number))
    if name == "fdopen":
        monkeypatch.setattr(Path, "open", failing(number))
    with pytest.raises(OSError) as caught:  # noqa: PT011 (the number tells)
        checkpoints.save(path, {"x": dlfp4.asarray(b"new, and longer")})
    assert (caught.value.errno, caught.value.filename) == (number, str(path))
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_the_folder_is_synced_after_the_name_changed(tmp_path, monkeypatch):
    synced, fsync = [], os.fsync

    def note(descriptor):
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        synced.append("folder" if is_folder else "file")
        assert (tmp_path / "file").exists() == is_folder
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    with replacing(tmp_path / "file") as file:
        file.write(b"x")
    assert synced == ["file", "folder"]


@pytest.mark.parametrize(("number", "fails"), [(errno.EINVAL, False), (errno.EIO, True)])
def test_folders_of_file_systems_that_cannot_sync_them(tmp_path, monkeypatch, number, fails):
    monkeypatch.setattr(os, "fsync", failing(number, after=1))  # that of the file
    with (
        pytest.raises(OSError, match=os.strerror(number)) if fails else contextlib.nullcontext(),
        replacing(tmp_path / "file") as file,
    ):
        file.write(b"x")
    assert (tmp_path / "file").read_bytes() == b"x"


@pytest.fixture(params=[True, False], ids=["without names", "with names"])
def unnamed(request, monkeypatch):
    """Whether the file system has files without names."""
    if not request.param:
        monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY | os.O_RDWR, raising=False)  # as where it is not known
    return request.param


KILLED = """
import os, sys
from pathlib import Path
from dlfp4 import files
if not {unnamed}:
    os.O_TMPFILE = os.O_DIRECTORY | os.O_RDWR
files.{end} = lambda *given: os.kill(os.getpid(), {signal})
with files.replacing(Path({path!r})) as file:
    file.write(b"new")
    {inside}
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("end", ["give_name", "sync_folder", "locked"])
def test_what_killed_processes_leave_is_swept(tmp_path, unnamed, number, end):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    code = KILLED.format(unnamed=unnamed, end=end, signal=int(number), path=str(path), inside="")
    done = subprocess.run([sys.executable, "-P", "-c", code], check=False, env=os.environ)
    assert done.returncode == -number
    assert path.read_bytes() == (b"new" if end == "sync_folder" else b"old")
    with replacing(path) as file:
        file.write(b"later")
    assert path.read_bytes() == b"later"
    assert list(tmp_path.iterdir()) == [path]


def test_what_others_write_is_not_swept(tmp_path, unnamed):
    with replacing(tmp_path / "first") as first:
        first.write(b"1")
        with replacing(tmp_path / "second") as second:
            second.write(b"2")
        assert len(list(tmp_path.iterdir())) == (1 if unnamed else 2)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"first": b"1", "second": b"2"}


def test_a_file_that_another_process_sweeps_before_it_is_locked(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY | os.O_RDWR, raising=False)
    lock, swept = files.locked, []

    def lock_late(file):
        if not swept:
            sweep(tmp_path)
            swept.append(file.name)
            assert not os.path.exists(file.name)
        return lock(file)

    monkeypatch.setattr(files, "locked", lock_late)
    with replacing(tmp_path / "file") as file:
        file.write(b"new")
    assert len(swept) == 1
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": b"new"}


def test_only_its_own_names_are_swept(tmp_path):
    for name in (".dlfp4.json", ".other.tmp", "dlfp4-1.tmp", ".dlfp4-1.tmp.txt"):
        (tmp_path / name).write_bytes(b"")
    os.mkfifo(tmp_path / ".dlfp4-1.tmp")
    sweep(tmp_path)
    assert len(list(tmp_path.iterdir())) == 5


def test_a_link_stays_one_and_permissions_stay(tmp_path):
    (tmp_path / "blobs").mkdir()
    blob, link = tmp_path / "blobs" / "abc", tmp_path / "model"
    blob.write_bytes(b"old")
    blob.chmod(0o640)
    link.symlink_to(blob)
    with replacing(link) as file:
        file.write(b"new")
    assert (link.is_symlink(), blob.read_bytes(), blob.stat().st_mode & 0o777) == (True, b"new", 0o640)
