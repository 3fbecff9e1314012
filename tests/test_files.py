"""Files that appear whole or not at all."""

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
