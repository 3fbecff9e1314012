"""Caches: only what this user wrote is read, and only as it was written."""

import os
import stat

import numpy as np
import pytest

import dlfp4
from dlfp4 import caches
from dlfp4.caches import keep, load

CONTENT = b"code that will run"


@pytest.fixture
def path(tmp_path):
    place = tmp_path / "cache" / "dlfp4" / "kernel"
    keep(place, CONTENT)
    return place


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_what_was_kept_is_loaded(path):
    assert load(path) == CONTENT
    keep(path, b"")
    assert load(path) == b""
    keep(path.with_name("next"), CONTENT)  # under the same key
    assert (load(path), load(path.with_name("next"))) == (b"", CONTENT)
    assert load(path.with_name("other")) is None


@pytest.mark.parametrize("umask", [0, 0o022, 0o077, 0o777])
def test_modes_do_not_depend_on_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        keep(tmp_path / "dlfp4" / "kernel", CONTENT)
    finally:
        os.umask(before)
    folder = tmp_path / "dlfp4"
    assert [mode_of(each) for each in (folder, folder / "kernel", folder / "key")] == [0o700, 0o600, 0o600]
    assert load(folder / "kernel") == CONTENT


def flipped(path, place):
    stored = bytearray(path.read_bytes())
    stored[place] ^= 1
    path.write_bytes(stored)


def renamed(path):
    path.rename(path.with_name("other"))
    path.with_name("other").rename(path)
    keep(path.with_name("next"), b"other code")
    path.with_name("next").replace(path)


def linked(path):
    elsewhere = path.parent.parent / "elsewhere"
    path.parent.rename(elsewhere)
    path.parent.symlink_to(elsewhere)


def another_key(path):
    (path.parent / "key").unlink()
    keep(path.with_name("next"), CONTENT)


DAMAGE = {
    "the first byte": lambda path: flipped(path, 0),
    "the content": lambda path: flipped(path, -1),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "empty": lambda path: path.write_bytes(b""),
    "no digest": lambda path: path.write_bytes(CONTENT),
    "another file's": renamed,
    "another key": another_key,
    "no key": lambda path: (path.parent / "key").unlink(),
    "readable by others": lambda path: path.chmod(0o644),
    "writable by others": lambda path: path.chmod(0o666),
    "a key that others read": lambda path: (path.parent / "key").chmod(0o640),
    "a folder that others write to": lambda path: path.parent.chmod(0o777),
    "a link in the place of the folder": linked,
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "a pipe for a key": lambda path: ((path.parent / "key").unlink(), os.mkfifo(path.parent / "key")),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_what_was_changed_counts_as_absent(path, damage):
    damage(path)
    assert load(path) is None


REPAIRED = [name for name in DAMAGE if "link" not in name and "pipe" not in name]


@pytest.mark.parametrize("damage", [DAMAGE[name] for name in REPAIRED], ids=REPAIRED)
def test_what_was_changed_is_replaced(path, damage):
    damage(path)
    keep(path, b"made anew")
    assert load(path) == b"made anew"
    assert (mode_of(path.parent), mode_of(path)) == (0o700, 0o600)


def test_a_key_that_was_cut_is_made_anew(path):
    """Short keys can be guessed."""
    key = path.parent / "key"
    key.write_bytes(key.read_bytes()[:1])
    keep(path, b"made anew")
    assert len(key.read_bytes()) == caches.DIGEST
    assert load(path) == b"made anew"


@pytest.mark.parametrize("damage", [linked, lambda path: os.chown(path.parent, 12345, -1)], ids=["link", "owner"])
def test_nothing_is_written_to_a_folder_of_others(path, damage):
    if damage is not linked and os.geteuid():
        pytest.skip("only root can give folders away")
    damage(path)
    before, mode = path.read_bytes(), mode_of(path.parent)
    keep(path, b"made anew")
    assert (path.read_bytes(), mode_of(path.parent)) == (before, mode)


@pytest.mark.parametrize("what", ["folder", "key", "file"])
def test_what_another_user_owns_counts_as_absent(path, monkeypatch, what):
    owned = {"folder": path.parent, "key": path.parent / "key", "file": path}[what]
    if os.geteuid() == 0:
        os.chown(owned, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert load(path) is None
    keep(path, b"made anew")
    assert load(path) == (b"made anew" if what != "folder" and os.geteuid() == 0 else None)


def test_caches_are_kept_where_that_can_be(tmp_path):
    keep(tmp_path / "folder" / "of" / "file", CONTENT)
    keep(tmp_path / "folder" / "of", b"a folder has the name")
    keep(tmp_path / "folder" / "of" / "file" / "below", b"a file is no folder")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder", "key", "key", "of"]
    assert load(tmp_path / "folder" / "of" / "file") == CONTENT


def test_choices_of_autotune_belong_to_the_user(tmp_path):
    path = tmp_path / "new" / "choices.json"
    w = dlfp4.quantize(np.eye(32, dtype="float32"), "mxfp4")
    before = os.umask(0)
    try:
        caches.keep_text(path, b"{}")
    finally:
        os.umask(before)
    assert (mode_of(path.parent), mode_of(path)) == (0o700, 0o600)
    path.chmod(0o666)
    with pytest.warns(RuntimeWarning, match="others may write to it"), dlfp4.autotune(path):
        dlfp4.matmul(np.ones((2, 32), "float32"), w.mT)
    assert path.read_bytes() == b"{}"
