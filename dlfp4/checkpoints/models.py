"""The safetensors files of a model: one file, a folder, an index, or several files, read as one.

An index, ``model.safetensors.index.json``, says which file holds which tensor. What it says is compared with the files,
so that a tensor that is missing, doubled or renamed is named before it is missed.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from dlfp4 import Tensor
from dlfp4.checkpoints import safetensors
from dlfp4.checkpoints.conventions import MARKER
from dlfp4.checkpoints.names import first_of, listed
from dlfp4.files import as_path, read_whole
from dlfp4.parsing import MOST_BYTES, brief, parse_object, shown

ModelPath: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]"

SUFFIX = ".safetensors"
INDEX = ".safetensors.index.json"
NUMBERED = re.compile(r"(.*-)(\d+)-of-(\d+)\.safetensors")
SERIES = re.compile(r"(.*-)\d+(-of-\d+\..*)")  # of whatever kind; its groups are the same in all of a series
MOST_FILES = 100_000  # a larger number in a name counts something else


@dataclass(frozen=True)
class Shard:
    """One file of a model, mapped.

    Attributes
    ----------
    path : str
        The file's name, for messages; "" where the model came as bytes.
    tensors : dict of str to Tensor
        As they are stored.
    metadata : dict of str to str
        Of the file's header.
    """

    path: str
    tensors: dict[str, Tensor]
    metadata: dict[str, str]


@dataclass(frozen=True)
class Files:
    """Where a model lies.

    Attributes
    ----------
    folder : Path
        It holds the files, and what else belongs to the model.
    shards : tuple of Path
        The safetensors files.
    index : Path, optional
        It says which file holds which tensor.
    """

    folder: Path
    shards: tuple[Path, ...]
    index: Path | None = None


def find(path: ModelPath) -> Files:
    """Find the files of a model.

    Parameters
    ----------
    path : path-like, or sequence of them
        A safetensors file, an index, a folder, or several safetensors files. In a folder the index decides; without
        one, all safetensors files are the model.

    Raises
    ------
    ValueError
        A folder has no safetensors files or several indices; the index is damaged; files are missing.
    OSError
        There is nothing at `path`.
    """
    if not isinstance(path, str | os.PathLike):
        return of_several(as_paths(path))
    place = as_path("the model", path)
    if place.is_dir():
        return of_folder(place)
    if place.suffix == ".gguf":
        raise ValueError(f"{place} is a GGUF file, expected safetensors; python -m dlfp4 convert makes them of it")
    return of_index(place) if place.name.endswith(".json") else Files(place.parent, (place,))


def is_folder(path: ModelPath) -> bool:
    """Whether a model is more than one file that stands for itself."""
    return not isinstance(path, str | os.PathLike) or Path(path).is_dir() or os.fspath(path).endswith(".json")


def named(path: ModelPath) -> str:
    """What messages call a model."""
    return os.fspath(path) if isinstance(path, str | os.PathLike) else ", ".join(map(str, as_paths(path)))


def as_paths(paths: Any) -> list[Path]:
    """The paths of files given one by one; TypeError where it is none, or no list."""
    if not isinstance(paths, Sequence) or isinstance(paths, bytes):
        raise TypeError(
            f"the model is of type {type(paths).__name__}; expected the path of a file, of a folder or of an index, or "
            "the list of its files"
        )
    return [as_path(f"file {number} of the model", path) for number, path in enumerate(paths)]


def of_several(paths: list[Path]) -> Files:
    """Files given one by one."""
    if not paths:
        raise ValueError("no files: give the paths of the model's safetensors files")
    check_unique(paths)
    return Files(paths[0].parent, tuple(paths))


def check_unique(paths: Sequence[Path]) -> None:
    """ValueError where two files have the same name, as the files made of them lie in one folder."""
    double = {name for name, times in Counter(path.name for path in paths).items() if times > 1}
    if double:
        raise ValueError(
            f"{listed(map(str, paths))}: two files are called {listed(sorted(double))}; each must have its own name"
        )


def of_folder(folder: Path) -> Files:
    """The files of a folder: those of its index, else all."""
    indices = sorted(folder.glob(f"*{INDEX}"))
    if len(indices) > 1:
        raise ValueError(f"{folder} has several indices, {names_of(indices)}; give the path of one")
    if indices:
        return of_index(indices[0])
    shards = sorted(folder.glob(f"*{SUFFIX}"))
    if not shards:
        below = {str(path.parent) for path in folder.glob(f"*/*{SUFFIX}")}
        some = f", such as {listed(sorted(below))}" if below else ""
        raise ValueError(f"{folder} has no {SUFFIX} files; give a folder that holds a model{some}, or a file")
    check_numbers(shards)
    return Files(folder, tuple(shards))


def check_numbers(shards: Iterable[Path]) -> None:
    """ValueError where files are called such as ``model-00001-of-00003`` and one of the numbers is missing."""
    there = {path.name for path in shards}
    numbered = filter(None, map(NUMBERED.fullmatch, there))
    series = {(stem, len(number), count) for stem, number, count in (match.groups() for match in numbered)}
    missing: set[str] = set()
    for stem, width, count in series:
        if int(count) <= MOST_FILES and len(missing) <= MOST_FILES:
            every = (f"{stem}{k:0{width}}-of-{count}{SUFFIX}" for k in range(1, int(count) + 1))
            missing.update(name for name in every if name not in there)
    if missing:
        raise ValueError(
            f"{next(iter(shards)).parent} lacks {listed(sorted(missing))}, which the names of its other files imply"
        )


def of_index(index: Path) -> Files:
    """The files that an index names, in the order of their names."""
    names = sorted(set(read_index(index).values()))
    missing = [name for name in names if not os.path.isfile(index.parent / name)]  # False of too long ones
    if missing:
        raise ValueError(f"{index} names files that are not there: {listed(missing)}")
    paths = [index.parent / name for name in names]
    check_unique(paths)
    return Files(index.parent, tuple(paths), index)


def read_index(index: Path) -> dict[str, str]:
    """The file of each tensor, by its name."""
    content = read_json(index)
    places = content.get("weight_map")
    if not isinstance(places, dict):
        raise ValueError(f"{index} is not the index of a model: it has no object called weight_map")
    for name, file in places.items():
        if not isinstance(file, str) or not is_inside(file):
            raise ValueError(
                f"{index} says that {shown(name)} lies in {shown(file)}; expected the name of a file beside the index"
            )
    if not places:
        raise ValueError(f"{index} names no tensors")
    return {name: str(PurePosixPath(file)) for name, file in places.items()}  # "./a" is "a"


def siblings(path: Path) -> set[Path]:
    """The files beside one that are of the same model: those of its series of numbers, and those of an index that names
    it.
    """
    series, found = SERIES.fullmatch(path.name), {path}
    if series:
        others = filter(None, (SERIES.fullmatch(each.name) for each in path.parent.iterdir()))
        found.update(path.parent / other.string for other in others if other.groups() == series.groups())
    for index in path.parent.glob(f"*{INDEX}"):
        with contextlib.suppress(ValueError):  # a damaged index names nothing
            named = {index.parent / name for name in read_index(index).values()}
            found |= named if path in named else set()
    return found - {path}


def is_inside(name: str) -> bool:
    """Whether a name is that of a file in the same folder, or below it."""
    parts = PurePosixPath(name).parts
    return bool(parts) and not name.startswith("/") and ".." not in parts and "\0" not in name


def read_json(path: Path) -> dict[str, Any]:
    """A file that holds a JSON object; ValueError names the file where it does not."""
    return parse_object(read_whole(path, MOST_BYTES), str(path))


def read(path: ModelPath | bytes | bytearray | memoryview) -> list[Shard]:
    """Map the files of a model, or take the bytes of one file; ValueError where they do not belong together."""
    if isinstance(path, bytes | bytearray | memoryview):
        return [Shard("", *safetensors.read_bytes(path))]
    files = find(path)
    shards = [read_file(each) for each in files.shards]
    check_names(files, {shard.path: shard.tensors for shard in shards})
    return shards


def read_file(path: str | os.PathLike[str]) -> Shard:
    """Map one file."""
    return Shard(str(path), *safetensors.read(path))


def check_names(files: Files, found: Mapping[str, Iterable[str]]) -> None:
    """ValueError where two files hold tensors of one name, or the index and the files do not agree.

    Parameters
    ----------
    files : Files
        The model's.
    found : mapping of str to iterable of str
        The names of the tensors in each file, by the file's path.
    """
    places: dict[str, str] = {}
    for path, names in found.items():
        for name in names:
            if name in places and name != MARKER:  # which says of each file what it holds
                raise ValueError(
                    f"{brief(name)} is stored twice, in {places[name]} and in {path}; leave out the one that does "
                    f"not belong to the model"
                )
            places[name] = path
    if files.index is None:
        return
    expected = {name: str(files.folder / file) for name, file in read_index(files.index).items()}
    wrong = [
        f"{brief(name)} is missing in {path}" + (f", it lies in {places[name]}" if name in places else "")
        for name, path in expected.items()
        if places.get(name) != path
    ]
    unknown = [f"{brief(name)} of {path} is not in the index" for name, path in places.items() if name not in expected]
    if wrong or unknown:
        renamed = "; were they renamed?" if wrong and unknown else ""
        raise ValueError(
            f"{files.index} does not fit its files: {'; '.join(map(first_of, filter(None, (wrong, unknown))))}{renamed}"
            "; delete the index, or give the list of the files, to read what they hold"
        )


def names_of(paths: Iterable[Path]) -> str:
    """The names of files."""
    return listed(path.name for path in paths)
