"""The stubs against the Cython sources: compiled functions keep no signature that stubtest could compare."""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "dlfp4"


def parameters(function):
    """Names, kinds and defaults, without types."""
    for node in ast.walk(function.args):
        if isinstance(node, ast.arg):
            node.annotation = None
    return ast.unparse(function.args)


def in_stub():
    """Qualified name and parameters of the public functions and methods, properties left out."""
    tree = ast.parse((PACKAGE / "_core.pyi").read_text())
    for node in tree.body:
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        for member in members:
            if isinstance(member, ast.FunctionDef) and not prefix.startswith("_") and not member.decorator_list:
                yield prefix + member.name, parameters(member)


def in_source():
    """The same, read off every `def` line of the Cython sources."""
    owner = ""
    for path in [PACKAGE / "_core.pyx", *sorted(PACKAGE.glob("core/*/*.pxi"))]:
        for indent, declared, name, arguments in re.findall(
            r"^( *)(?:cdef class (\w+)|def (\w+)\(([^)]*(?:\([^)]*\)[^)]*)*)\)):", path.read_text(), re.MULTILINE
        ):
            if declared:
                owner = declared
                continue
            if name == "__cinit__":
                name, arguments = "__new__", arguments.replace("self", "cls", 1)
            untyped = re.sub(r"\b(?:int|int64_t|str|bint|tuple|object|Tensor|ScaledTensor) (?=\w)", "", arguments)
            function = ast.parse(f"def {name}({untyped}): ...").body[0]
            yield (f"{owner}.{name}" if indent else name), parameters(function)


SOURCE = dict(in_source())


@pytest.mark.parametrize(("name", "stub"), [pytest.param(*row, id=row[0]) for row in in_stub()])
def test_stub_has_the_parameters_of_the_source(name, stub):
    # Special methods of extension types are slots: positional-only, whatever their `def` says.
    stub = stub.replace(", /", "") if name.split(".")[-1].startswith("__") else stub
    if name not in ("Tensor.__init__", "ScaledTensor.__init__"):  # the stubs forbid the call
        assert SOURCE[name] == stub
