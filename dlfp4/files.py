"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


def check_place(path: Path) -> None:
    """OSError where no file can appear: to be asked before much work is done for it, too."""
    for code, is_wrong in ((errno.EISDIR, path.is_dir()), (errno.ENOENT, not path.parent.is_dir())):
        if is_wrong:
            raise OSError(code, os.strerror(code), str(path))


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that becomes `path` when all is written, and leaves no trace when something fails."""
    check_place(path)
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def keep(path: Path, content: bytes) -> None:
    """Write to a cache; where nothing can be written, the next process does the work again."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(content)
