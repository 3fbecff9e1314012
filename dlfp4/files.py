"""Files that appear whole or not at all, and where the package keeps its headers."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


def check_place(path: Path) -> Path:
    """Where the file will lie, links followed; OSError where none can appear: to be asked before much work, too."""
    target = Path(os.path.realpath(path))
    code = (
        errno.EISDIR if target.is_dir()
        else errno.ELOOP if target.is_symlink()
        else errno.ENOENT if not target.parent.is_dir()
        else 0
    )  # fmt: skip
    if code:
        raise OSError(code, os.strerror(code), str(path))
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "a device, pipe or socket, which no file can replace; give another name", str(path))
    return target


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that becomes `path` when all is written, and leaves no trace when something fails or kills the process.

    Where `path` is a link, what it points to is replaced; permissions stay as they were.
    """
    target = check_place(path)
    temporary = target.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        with open_beside(temporary) as file:
            if target.exists():
                os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))  # before there is anything to read
            yield file
            file.flush()
            os.fsync(file.fileno())
            give_name(file, temporary)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def give_name(file: BinaryIO, path: Path) -> None:
    """Give a file that :func:`open_beside` opened without a name its name."""
    if path.exists():
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:  # with the folder's descriptor: without one, Python calls link(), which does not follow the link in /proc
        os.link(f"/proc/self/fd/{file.fileno()}", path.name, dst_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(folder)


def open_beside(temporary: Path) -> BinaryIO:
    """A new file without a name, which vanishes with the process, where the file system has such; else `temporary`."""
    if os.path.isdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            return os.fdopen(os.open(temporary.parent, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666), "wb")
    return temporary.open("xb")


def keep(path: Path, content: bytes) -> None:
    """Write to a cache; where nothing can be written, the next process does the work again."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(content)


def get_include() -> str:
    """The folder to give a C or C++ compiler for ``#include <dlfp4/dlpack.h>`` and ``<dlfp4/dlfp4.h>``."""
    package = os.path.dirname(__file__)
    installed = os.path.join(package, "include")
    # An editable install leaves the headers where they are written, beside the package.
    return installed if os.path.isdir(installed) else os.path.join(os.path.dirname(package), "include")
