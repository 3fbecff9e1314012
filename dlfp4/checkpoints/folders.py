"""Work on all files of a model: a folder in, a folder out, a task a file.

The folder keeps a book of what is finished, so that a run that was ended can be continued. The configuration is written
last: until then no loader takes the folder for a model.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol, Self

import dlfp4
from dlfp4.checkpoints import models
from dlfp4.checkpoints.models import Files
from dlfp4.checkpoints.names import listed
from dlfp4.files import check_room, check_writable, naming, open_file, replacing

BOOK = ".dlfp4.json"
CONFIG = "config.json"
GGUF, JSON = ".gguf", ".json"  # how the names of files end that are read as GGUF, or as the index of a model
INDEX = f"model{models.INDEX}"
# Files of weights that are not the model's safetensors files: other copies of them, which would not be quantized.
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".onnx", ".onnx_data", ".h5", ".msgpack", ".npz")
INDICES = tuple(f"{suffix}.index.json" for suffix in WEIGHTS)  # which name such files
Report = Callable[[str, int, int], None]  # what is done, how many are, how many there are
Tick = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """What became of one tensor.

    Attributes
    ----------
    name : str
        Of the tensor.
    shape : tuple of int
        In elements.
    dtype : str
        Its element type, or the format that it had before.
    format : str
        That it has now; "" where it was kept.
    before, after : int
        Bytes.
    snr : float
        The ratio of signal to noise in dB, by a sample of 65536 elements; NaN where there is none.
    reason : str
        Why it was kept, or what there is to say about it.
    pow2 : bool
        Whether its scales are powers of two, which some loaders want to be told.
    symmetric : bool
        Whether all of its zero points are the middle of the codes, which some loaders want to be told; False where it
        is kept.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    format: str
    before: int
    after: int
    snr: float
    reason: str = ""
    pow2: bool = False
    symmetric: bool = False


@dataclass(frozen=True)
class Job:
    """One file to make: with the options that a kind of work adds, all that a worker has to know.

    Attributes
    ----------
    source, target : str
        Paths of safetensors files.
    names : tuple of str
        The tensors of the file, joined.
    """

    source: str
    target: str
    names: tuple[str, ...]

    def without_places(self) -> Self:
        """The same with the names of files alone: where they lie, and how that is spelled, does not matter."""
        return replace(self, source=Path(self.source).name, target=Path(self.target).name)


class Work(Protocol):
    """A function of a module that does a job, and calls `tick` with each name when that tensor is done."""

    def __call__(self, job: Any, tick: Tick = ...) -> list[Outcome]:
        """What became of the tensors of the file."""


def no_tick(name: str) -> None:
    """Report nothing."""


# ---- Before the work


def check_callers(executor: object, report: object) -> None:
    """TypeError for what cannot run the work, or be told of it."""
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise TypeError(f"executor is of type {type(executor).__name__}; expected a concurrent.futures.Executor")
    if report is not None and not callable(report):
        raise TypeError(f"report is of type {type(report).__name__}; expected a function of a name and two numbers")


def check_place(files: Files, target: Path, *, whole: bool) -> None:
    """OSError or ValueError where a folder cannot become a folder, or a file a file."""
    if whole:
        check_target(files, target)
    else:
        check_file(files.shards, target)


def check_target(files: Files, target: Path) -> None:
    """OSError or ValueError where no folder of a model can be made."""
    if target.exists() and not target.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "the model is a folder, and this is a file; name a folder", str(target))
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(target.parent))
    check_writable((target if target.exists() else target.parent) / BOOK)
    if os.path.realpath(target) == os.path.realpath(files.folder):
        raise ValueError(f"{target} holds the model itself; name another folder")
    outside = [str(path) for path in files.shards if ".." in place_of(files, path).parts]
    if outside:
        raise ValueError(
            f"{listed(outside)}: not in {files.folder}, where the first file lies, and a folder is made of one folder; "
            "put the files, or links to them, into one"
        )


def check_file(own: Sequence[Path], target: Path, *, gguf: bool = False) -> None:
    """OSError or ValueError where no file can be made of a model, whose own files are never written over, or one that
    could not be read again.
    """
    for path in own:
        if not path.exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        for each in (path, *models.siblings(path)) if target.exists() else ():
            if each.exists() and each.samefile(target):
                raise ValueError(f"{target} is the model itself, or a file of it; name another file")
    check_suffix(target, gguf=gguf)
    check_writable(target)


def check_suffix(target: Path, *, gguf: bool) -> None:
    """ValueError where a file would be taken for one of another kind: the ends of their names tell."""
    if gguf and not target.name.endswith(GGUF):
        raise ValueError(f"{target} would not be read as a GGUF file again, as its name does not end in {GGUF}")
    if not gguf and target.name.endswith((GGUF, JSON)):
        other = "a GGUF file" if target.name.endswith(GGUF) else "an index"
        raise ValueError(
            f"{target} would be a safetensors file, and its name is that of {other}; end it in {models.SUFFIX}"
        )


class Book:
    """Which files of a folder are finished, and what became of their tensors.

    Parameters
    ----------
    folder : Path
        Where the files are made. It is created.
    jobs : sequence of Job
        All files.

    Raises
    ------
    ValueError
        The folder holds files that other jobs made, or that nobody knows.
    """

    def __init__(self, folder: Path, jobs: Sequence[Job]) -> None:
        folder.mkdir(exist_ok=True)
        self.path = folder / BOOK
        self.digests = {job.target: digest(job) for job in jobs}
        self.entries: dict[str, Any] = self.read()
        self.write()

    def read(self) -> dict[str, Any]:
        """The entries of an earlier run of the same jobs."""
        others = [path.name for path in self.path.parent.iterdir() if not path.name.startswith(".")]
        if not self.path.exists():
            if others:
                raise ValueError(
                    f"{self.path.parent} has other files, {listed(sorted(others))}; name a new folder, or remove them"
                )
            return {}
        content = models.read_json(self.path)
        if content.get("jobs") != self.key():
            raise ValueError(
                f"{self.path.parent} was made from another model, by another dlfp4 or with other options; "
                "name a new folder, or remove it"
            )
        entries = content.get("files")
        return entries if isinstance(entries, dict) else {}

    def key(self) -> str:
        """What tells these jobs from all others."""
        return hashlib.sha256("".join(sorted(self.digests.values())).encode()).hexdigest()

    def write(self) -> None:
        """Keep the entries."""
        content = {"about": "what dlfp4 has finished here", "jobs": self.key(), "files": self.entries}
        write_json(self.path, content, indent=None)  # often, and of all tensors: json indents ten times slower

    def finished(self) -> dict[str, list[Outcome]]:
        """The outcomes of the files that are there as they were finished, by path."""
        try:
            return {
                target: [as_outcome(fields) for fields in entry["outcomes"]]
                for target in self.digests
                if (entry := self.entries.get(Path(target).name)) and entry["is"] == identity(target)
            }
        except (TypeError, KeyError) as error:
            raise ValueError(f"{self.path} is damaged ({error!r}); name a new folder, or remove this one") from error

    def enter(self, target: str, outcomes: Iterable[Outcome]) -> None:
        """Note that a file is finished."""
        self.entries[Path(target).name] = {"is": identity(target), "outcomes": [asdict(each) for each in outcomes]}
        self.write()


def as_outcome(fields: Mapping[str, Any]) -> Outcome:
    """An outcome from JSON."""
    return Outcome(**{**fields, "shape": tuple(fields["shape"])})


def digest(job: Job) -> str:
    """What tells a job from others: its options and its source."""
    return hashlib.sha256(f"{dlfp4.__version__} {identity(job.source)} {job.without_places()!r}".encode()).hexdigest()


def identity(path: str) -> list[int] | None:
    """Size and time of a file; None where there is none."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return [status.st_size, status.st_mtime_ns]


# ---- The work


def run(
    jobs: Sequence[Job], work: Work, *, executor: Executor | None = None, report: Report | None = None
) -> Iterator[tuple[str, list[Outcome]]]:
    """Do jobs, here or by an executor; yield the path of each file that is finished, and the outcomes."""
    if executor is None:
        numbers, total = itertools.count(1), sum(len(job.names) for job in jobs)

        def tick(name: str) -> None:
            if report:
                report(name, next(numbers), total)

        for job in jobs:
            yield job.target, work(job, tick)
        return
    futures = {executor.submit(work, job): job.target for job in jobs}
    try:
        for done, future in enumerate(as_completed(futures), 1):
            yield futures[future], future.result()
            if report:
                report(Path(futures[future]).name, done, len(jobs))
    finally:
        for future in futures:
            future.cancel()


def make(
    files: Files,
    target: Path,
    jobs: Sequence[Job],
    work: Work,
    *,
    executor: Executor | None = None,
    report: Report | None = None,
    without: Collection[str] = (),
    sizes: Mapping[str, int] | None = None,
) -> dict[str, list[Outcome]]:
    """Do what is left of the jobs for a folder, and carry over what else belongs to the model.

    Parameters
    ----------
    files : Files
        The model.
    target : Path
        The folder to make.
    jobs, work, executor, report
        See :func:`run`.
    without : collection of str
        Files of the model that do not belong to the new one.
    sizes : mapping of str to int, optional
        The bytes of each file to make, by its path, for which there has to be room.

    Returns
    -------
    dict of str to list of Outcome
        By the path of the file, in the order of the jobs.
    """
    book = Book(target, jobs)
    results = book.finished()
    rest = [job for job in jobs if job.target not in results]
    with naming(target):
        check_room(target, sum(sizes[job.target] for job in rest) if sizes else 0)
    for path, outcomes in run(rest, work, executor=executor, report=report):
        book.enter(path, outcomes)
        results[path] = outcomes
    carry_over(files, target, without)
    return {job.target: results[job.target] for job in jobs}


# ---- What belongs to a model beside its tensors


def others_of(files: Files) -> Iterator[Path]:
    """The files beside the model's tensors, their index and its configuration, relative to its folder."""
    return (path for path in beside(files) if (files.folder / path).is_file())


def beside(files: Files) -> Iterator[Path]:
    """The same, and what is no file: links to nothing or to folders, pipes, sockets."""
    known = {
        *(str(place_of(files, path)) for path in files.shards),
        CONFIG,
        files.index.name if files.index else INDEX,
    }
    for place, folders, names in os.walk(files.folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and not is_ours(Path(place, name)))
        links = [name for name in folders if Path(place, name).is_symlink()]  # into which os.walk does not go
        for name in sorted([*names, *links]):
            path = Path(place, name).relative_to(files.folder)
            if not name.startswith(".") and str(path) not in known:
                yield path


def place_of(files: Files, path: Path) -> Path:
    """Where a file of the model lies, relative to the model's folder: with ".." in front where that is elsewhere."""
    if path.is_relative_to(files.folder):
        place = path.relative_to(files.folder)
        if ".." not in place.parts:
            return place
    # The same folder may be spelled in several ways; the file itself may be a link to another folder.
    return Path(os.path.relpath(Path(os.path.realpath(path.parent), path.name), os.path.realpath(files.folder)))


def is_ours(folder: Path) -> bool:
    """Whether a folder in that of the model is one that was made from it."""
    return (folder / BOOK).exists()


def left_out(files: Files) -> list[str]:
    """Files of weights beside the model's own, which are not carried over."""
    return [str(path) for path in others_of(files) if path.name.endswith(WEIGHTS)]


def indices_left_out(files: Files) -> list[str]:
    """Indices of files that are not carried over."""
    return [str(path) for path in others_of(files) if path.name.endswith(INDICES)]


def no_files(files: Files) -> list[str]:
    """What lies beside the model and cannot be carried over."""
    return [str(path) for path in beside(files) if not (files.folder / path).is_file()]


def carry_over(files: Files, target: Path, without: Collection[str] = ()) -> None:
    """Copy the files that belong to the model, but no other weights, and no indices of them."""
    for path in others_of(files):
        if path.name.endswith(WEIGHTS + INDICES) or str(path) in without:
            continue
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        with open_file(files.folder / path) as source, replacing(target / path) as file:
            shutil.copyfileobj(source, file)


def write_index(files: Files, target: Path, sizes: Mapping[str, Mapping[str, int]]) -> None:
    """Write which file holds which tensor, where the model has several files or had an index.

    Parameters
    ----------
    files : Files
        The model that was read.
    target : Path
        The folder.
    sizes : mapping
        The bytes of each tensor by its name, by the path of the file.
    """
    if files.index is None and len(sizes) < 2:
        return
    metadata = models.read_json(files.index).get("metadata") if files.index else None
    total = sum(size for tensors in sizes.values() for size in tensors.values())
    places = {name: Path(path).name for path, tensors in sizes.items() for name in tensors}
    content = {
        "metadata": {**(metadata if isinstance(metadata, dict) else {}), "total_size": total},
        "weight_map": dict(sorted(places.items())),
    }
    write_json(target / (files.index.name if files.index else INDEX), content)


def read_config(files: Files) -> dict[str, Any] | None:
    """The model's ``config.json``; None where it has none."""
    path = files.folder / CONFIG
    return models.read_json(path) if path.exists() else None


def write_json(path: Path, content: Mapping[str, Any], *, indent: int | None = 2) -> None:
    """Write a file of JSON, whole or not at all."""
    text = json.dumps(content, indent=indent, ensure_ascii=False) + "\n"
    with replacing(path) as file:
        file.write(text.encode(errors="backslashreplace"))  # lone surrogates, which become JSON's own escapes
