"""Files: only such are read, and they appear whole or not at all; and where the package keeps its headers."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import fnmatch
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

TEMPORARY = ".dlfp4-{}.tmp"  # the name of a file that is being written, on file systems where it must have one
OPEN = "/proc/self/fd"  # where Linux has names of open files, by their descriptors

# ---- Paths


def as_path(what: str, path: object) -> Path:
    """A path; TypeError where that argument is none, ValueError or FileNotFoundError for what nothing is called."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"{what} is of type {type(path).__name__}; expected a path of type str or os.PathLike")
    if path == "":
        raise FileNotFoundError(errno.ENOENT, f"{what} is an empty name; the current folder is '.'", "")
    if "\0" in str(path):
        raise ValueError(f"{what} is {path!r}; expected a name without NUL characters")
    return Path(path)


# ---- Reading


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """A file to read; OSError at once for a folder, a device, a pipe or a socket, which might never end."""
    check_kind(os.stat(path).st_mode, path)  # before it is opened, which a device may notice
    # Opened without waiting, whatever came there since: a pipe waits for someone who writes to it.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        check_kind(os.fstat(descriptor).st_mode, path)
    except OSError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def read_whole(path: str | os.PathLike[str], most: int) -> bytes:
    """The content of a file; ValueError where it has more bytes than that."""
    with open_file(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"{os.fspath(path)} has more than the {most} bytes that are allowed")
    return content


def check_kind(mode: int, path: str | os.PathLike[str]) -> None:
    """OSError unless it is the mode of a file."""
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "a device, pipe or socket; give the name of a file", os.fspath(path))


# ---- Where files can be written: asked before much work


def check_place(path: Path) -> Path:
    """Where the file will lie, links followed; OSError where none can appear."""
    target = Path(os.path.realpath(path))
    code = errno.ELOOP if target.is_symlink() else 0 if target.parent.is_dir() else errno.ENOENT
    if code:
        raise OSError(code, os.strerror(code), str(path))
    if target.exists():
        check_kind(target.stat().st_mode, path)
    return target


def check_writable(path: Path, size: int = 1) -> None:
    """OSError where no file of so many bytes can be written: one is begun, and vanishes."""
    target = check_place(path)
    with naming(path), begun_beside(target):
        check_room(target.parent, size)


def check_room(folder: Path, size: int) -> None:
    """OSError where a file system says that it has less room than so many bytes."""
    status = os.statvfs(folder)
    free = (status.f_bavail if os.geteuid() else status.f_bfree) * status.f_frsize
    if status.f_blocks and free < size:  # some do not say what they have
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {size} bytes are needed, {free} are free")


@contextlib.contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """An OSError of writing, such as that of a full disk, says which file it was, by the name that was asked for."""
    try:
        yield
    except OSError as error:
        if error.args and not error.errno:  # NumPy's, which says how many elements it wrote, and nothing else
            raise OSError(errno.EIO, f"it cannot be written: {error}", os.fspath(path)) from error
        if error.errno and (not error.filename or is_temporary(error.filename)):
            error.filename = os.fspath(path)
            del error.filename2  # of a renaming
        raise


def is_temporary(name: object) -> bool:
    """Whether it is a name of a file that is being written, which nobody asked for."""
    if not isinstance(name, str | os.PathLike):
        return False
    folder, last = os.path.split(name)
    return folder == OPEN or fnmatch.fnmatch(last, TEMPORARY.format("*"))


# ---- Writing


@contextlib.contextmanager
def replacing(path: Path, mode: int | None = None, size: int = 0) -> Iterator[BinaryIO]:
    """A file that becomes `path` when all is written, and leaves no trace when something fails or kills the process.

    Where `path` is a link, what it points to is replaced; permissions stay as they were, unless `mode` says them. There
    has to be room for `size` bytes before anything is written.
    """
    target = check_place(path)
    sweep(target.parent)
    with naming(path), begun_beside(target) as (file, temporary):
        check_room(target.parent, size)
        if mode is not None:
            os.fchmod(file.fileno(), mode)  # whatever the umask; before there is anything to read
        elif target.exists():
            os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
        yield file
        file.flush()
        os.fsync(file.fileno())
        give_name(file, temporary)
        temporary.replace(target)
        sync_folder(target.parent)  # until then a crash of the machine might bring the old file back


@contextlib.contextmanager
def begun_beside(target: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """A new file in the folder of another, and the name under which it may be found; it goes away at the end."""
    temporary = target.with_name(TEMPORARY.format(secrets.token_hex(8)))
    try:
        with open_beside(temporary) as file:
            yield file, temporary
    finally:
        temporary.unlink(missing_ok=True)


def open_beside(temporary: Path) -> BinaryIO:
    """A new file without a name, which vanishes with the process, where the file system has such; else `temporary`."""
    if os.path.isdir(OPEN):
        with contextlib.suppress(OSError):
            return locked(os.fdopen(os.open(temporary.parent, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666), "wb"))
    file = locked(temporary.open("xb"))
    while not os.fstat(file.fileno()).st_nlink:  # another process swept it before it was locked
        file.close()
        file = locked(temporary.open("xb"))
    return file


def locked(file: BinaryIO) -> BinaryIO:
    """The file, which others see to be in use until this process closes it or ends."""
    with contextlib.suppress(OSError):  # not every file system has locks
        fcntl.flock(file, fcntl.LOCK_EX)
    return file


def give_name(file: BinaryIO, path: Path) -> None:
    """Give a file that :func:`open_beside` opened without a name its name."""
    if path.exists():
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:  # with the folder's descriptor: without one, Python calls link(), which does not follow the link in /proc
        os.link(f"{OPEN}/{file.fileno()}", path.name, dst_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(folder)


def sync_folder(folder: Path) -> None:
    """Write a folder's names to the disk, where its file system can."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


def sweep(folder: Path) -> None:
    """Remove what processes left behind that were killed while their files had a name. Those that live hold a lock."""
    for path in folder.glob(TEMPORARY.format("*")):
        with contextlib.suppress(OSError), open_file(path) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


def get_include() -> str:
    """The folder to give a C or C++ compiler for ``#include <dlfp4/dlpack.h>`` and ``<dlfp4/dlfp4.h>``."""
    package = os.path.dirname(__file__)
    installed = os.path.join(package, "include")
    # An editable install leaves the headers where they are written, beside the package.
    return installed if os.path.isdir(installed) else os.path.join(os.path.dirname(package), "include")
