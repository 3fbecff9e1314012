"""Which file of the package imports which: the arrows go one way."""

import ast
import re
import shutil
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

from ..support.capsules import run_python

PACKAGE = Path(__file__).parents[2] / "dlfp4"


def name_of(path):
    """The module of a file; a part of the extension counts as the extension."""
    if path.suffix in (".pyx", ".pxi"):
        return "dlfp4._core"
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = [path for path in PACKAGE.rglob("*.p*") if path.suffix in (".py", ".pyx", ".pxi")]
MODULES = {name_of(path) for path in FILES}


def module_of(package, name):
    """What `from package import name` imports: a module of its own, or the package's."""
    return f"{package}.{name}" if f"{package}.{name}" in MODULES else package


def imports_of_python(text):
    """Every import but those for type checkers; names given to `import_module` as they are written."""
    tree = ast.parse(text)
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (module_of(node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func):
            yield from (each.value for each in ast.walk(node) if isinstance(each, ast.Constant))


def imports_of_cython(text):
    """The same of Cython's sources, whose imports are a line each."""
    for package, names in re.findall(r"^from (dlfp4[\w.]*) import (.+?)(?:\s+#.*)?$", text, re.MULTILINE):
        yield from (module_of(package, name.split()[0]) for name in names.split(","))
    yield from re.findall(r'import_module\("([\w.]+)"\)', text)


def graph():
    """Each module of the package with those of the package that it imports; not with those that it loads when asked
    for, which use the package as its users do.
    """
    found = {name: set() for name in MODULES}
    for path in FILES:
        read = imports_of_python if path.suffix == ".py" else imports_of_cython
        found[name_of(path)].update(set(read(path.read_text())) & MODULES - {name_of(path)})
    return found


def test_no_file_imports_what_imports_it():
    TopologicalSorter(graph()).prepare()  # CycleError names the files


def test_the_core_stands_on_formats_and_frameworks():
    """The extension is above the files that it reads tables from, below all that describe, choose or store tensors."""
    assert graph()["dlfp4._core"] == {
        "dlfp4.extents", "dlfp4.formats", "dlfp4.frameworks", "dlfp4.nvrtc", "dlfp4.parsing", "dlfp4.show",
        "dlfp4.suggest",
    }  # fmt: skip


SUBINTERPRETER = """
import sys
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
try:
    interpreters.run_string(interpreters.create(), "import warnings; warnings.simplefilter('ignore'); import dlfp4")
except getattr(interpreters, "RunFailedError", ()):
    pass  # Python 3.12, which refuses it itself
try:
    import dlfp4
except ImportError as error:
    print(error)
else:
    print("imported", dlfp4.empty(3, "uint8").shape)
"""


def test_a_subinterpreter_that_imports_first():
    """On Python 3.11 it shuts the main interpreter out, which is told so; later Pythons refuse it themselves."""
    said = run_python(SUBINTERPRETER)
    assert "in another interpreter of this process first" in said or said == "imported (3,)\n"


def test_a_checkout_without_a_core(tmp_path):
    """Python that starts in a checkout finds its folder before an installed package, and says so."""
    shutil.copytree(PACKAGE, tmp_path / "dlfp4", ignore=shutil.ignore_patterns("*.so", "*.pyd"))
    command = [sys.executable, "-S", "-c", "import dlfp4"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    wanted = (
        f"ModuleNotFoundError: {tmp_path / 'dlfp4'} has no compiled core. Python was probably started inside a checkout"
    )
    assert wanted in done.stderr
    assert "start it in another folder, or as python -P" in done.stderr
