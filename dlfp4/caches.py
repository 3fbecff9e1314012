"""Files that the library keeps for itself: only what this user wrote is read, and only as it was written.

A cache decides which code runs. So its folder and files belong to the user alone (0700 and 0600, whatever the umask),
and a file begins with a digest of its name and content under a key that lies in the folder. What another user owns or
may write to, what was changed, renamed or cut, counts as absent: it is made anew and replaced.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import stat
from pathlib import Path

from dlfp4.files import open_file, replacing

KEY = "key"  # the file's name
DIGEST = 32  # bytes
PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600


def load(path: Path) -> bytes | None:
    """What :func:`keep` wrote; None where it is not there, or not as it was."""
    try:
        check_owner(os.lstat(path.parent), path.parent)
        key, stored = read_private(path.parent / KEY), read_private(path)
    except OSError:
        return None
    digest, content = stored[:DIGEST], stored[DIGEST:]
    return content if hmac.compare_digest(digest, digest_of(key, path.name, content)) else None


def keep(path: Path, content: bytes) -> None:
    """Write to a cache; where nothing can be written, the next process does the work again."""
    with contextlib.suppress(OSError):
        make_folder(path.parent)
        write_private(path, digest_of(key_of(path.parent), path.name, content) + content)


def key_of(folder: Path) -> bytes:
    """The key of a folder, which is made with the first file."""
    with contextlib.suppress(OSError):
        key = read_private(folder / KEY)
        if len(key) == DIGEST:
            return key
    key = secrets.token_bytes(DIGEST)
    write_private(folder / KEY, key)
    return key


def digest_of(key: bytes, name: str, content: bytes) -> bytes:
    """What only the holder of the key can make."""
    return hmac.digest(key, os.fsencode(name) + b"\0" + content, "sha256")


def make_folder(folder: Path) -> None:
    """A folder of the user's alone; PermissionError where it is another user's."""
    folder.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
    status = os.lstat(folder)
    if stat.S_ISLNK(status.st_mode) or status.st_uid != os.geteuid():
        raise PermissionError(f"{folder} is a link, or belongs to another user")
    folder.chmod(PRIVATE_FOLDER)


def write_private(path: Path, content: bytes) -> None:
    """Write a file of the user's alone."""
    with replacing(path, PRIVATE_FILE) as file:
        file.write(content)


def read_private(path: Path) -> bytes:
    """A file that this user owns and no other may write to or read; PermissionError where it is not so."""
    with open_file(path) as file:
        status = os.fstat(file.fileno())
        check_owner(status, path)
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise PermissionError(f"{path} can be read or written by others")
        return file.read()


def check_owner(status: os.stat_result, path: Path) -> None:
    """PermissionError where something belongs to another user than root, or others may write to it."""
    is_own = status.st_uid in (0, os.geteuid())
    if stat.S_ISLNK(status.st_mode) or not is_own or stat.S_IMODE(status.st_mode) & 0o022:
        raise PermissionError(f"{path} belongs to another user, or others may write to it")


# ---- Files of text, which can do no harm by what they say: they need no digest, and other users may read them


def load_text(path: Path) -> bytes:
    """A file of this user, or of root; PermissionError where others may write to it."""
    with open_file(path) as file:
        check_owner(os.fstat(file.fileno()), path)
        return file.read()


def keep_text(path: Path, content: bytes) -> OSError | None:
    """Write it; the error where that cannot be done."""
    try:
        if not path.parent.exists():
            make_folder(path.parent)
        write_private(path, content)
    except OSError as error:
        return error
    return None
