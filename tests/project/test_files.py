"""Files that appear whole or not at all."""

import os

import pytest

from dlfp4.files import keep, replacing


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


def test_caches_are_kept_where_that_can_be(tmp_path):
    keep(tmp_path / "folder" / "of" / "file", b"content")
    assert (tmp_path / "folder" / "of" / "file").read_bytes() == b"content"
    keep(tmp_path / "folder" / "of", b"a folder has the name")
    keep(tmp_path / "folder" / "of" / "file" / "below", b"a file is no folder")
    assert [path.name for path in tmp_path.rglob("*")] == ["folder", "of", "file"]


def test_only_files_are_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="which no file can replace"), replacing(pipe) as file:
        file.write(b"x")
    assert pipe.is_fifo()


def test_a_link_stays_one_and_permissions_stay(tmp_path):
    (tmp_path / "blobs").mkdir()
    blob, link = tmp_path / "blobs" / "abc", tmp_path / "model"
    blob.write_bytes(b"old")
    blob.chmod(0o640)
    link.symlink_to(blob)
    with replacing(link) as file:
        file.write(b"new")
    assert (link.is_symlink(), blob.read_bytes(), blob.stat().st_mode & 0o777) == (True, b"new", 0o640)
