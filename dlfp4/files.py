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
    """A file that becomes `path` when all is written, and leaves no trace when something fails.

    Where `path` is a link, what it points to is replaced; permissions stay as they were.
    """
    target = check_place(path)
    temporary = target.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            if target.exists():
                os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))  # before there is anything to read
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


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
