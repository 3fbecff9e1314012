"""Which room of src/ includes which: the arrows go one way, among rooms and among files."""

import posixpath
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "src"

# Each room, and those below it, which it may include. Within a room, what runs on a GPU may include what does not.
ROOMS = {
    "rules": set(),
    "host": {"rules"},
    "gpu": {"rules", "host"},
    "codecs": {"rules", "host", "gpu"},
    "blocks": {"rules", "host", "gpu", "codecs"},
    "products": {"rules", "host", "gpu", "codecs", "blocks"},
    "levels": {"rules", "host", "codecs", "blocks", "products"},
    "xla": {"rules", "gpu"},
    "api": {"rules", "host", "gpu"},
}


def room_of(file):
    return file.partition("/")[0]


def is_cuda(file):
    return room_of(file) == "gpu" or "/cuda/" in file


def includes(root):
    """Each file below `root` with those of them that it includes; a name is looked up as compilers do."""
    files = {path.relative_to(root).as_posix(): path for path in root.rglob("*.*")}
    graph = {}
    for file, path in files.items():
        named = re.findall(r'^\s*#\s*include\s*"([^"]+)"', path.read_text(), re.MULTILINE)
        beside = [posixpath.normpath(posixpath.join(posixpath.dirname(file), name)) for name in named]
        graph[file] = {name if name in files else other for name, other in zip(beside, named, strict=True)} & set(files)
    return graph


def faults(graph):
    """Includes from a lower room to a higher one, of CUDA's files by the host's, and a circle of files."""
    found = []
    for file, included in sorted(graph.items()):
        for other in sorted(included):
            if room_of(other) not in ROOMS[room_of(file)] | {room_of(file)}:
                found.append(f"{file} includes {other}, of a room that is not below its own")
            elif is_cuda(other) and not is_cuda(file):
                found.append(f"{file} runs on the host and includes {other}")
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found.append(f"files include each other: {' <- '.join(error.args[1])}")
    return found


def test_rooms_include_what_is_below_them():
    graph = includes(SOURCES)
    assert {room_of(file) for file in graph} == set(ROOMS)
    assert sum(map(len, graph.values())) > 100
    assert faults(graph) == []


PLANTED = {
    "upwards": ({"rules/a.h": "codecs/b.h", "codecs/b.h": None}, "rules/a.h includes codecs/b.h, of a room"),
    "beside": ({"host/a.h": "gpu/b.h", "gpu/b.h": None}, "host/a.h includes gpu/b.h, of a room"),
    "onto the GPU": ({"blocks/a.cpp": "cuda/b.h", "blocks/cuda/b.h": None}, "blocks/a.cpp runs on the host"),
    "a circle": ({"rules/a.h": "b.h", "rules/b.h": "rules/a.h"}, "files include each other"),
}


@pytest.mark.parametrize(("files", "fault"), PLANTED.values(), ids=PLANTED)
def test_planted_includes_are_found(tmp_path, files, fault):
    for file, included in files.items():
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#pragma once\n  # include "{included}"  // planted\n' if included else "")
    (found,) = faults(includes(tmp_path))
    assert found.startswith(fault)
