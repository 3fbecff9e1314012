"""The programs on the README's and the documentation's pages, page by page, as a reader runs them."""

import functools
import importlib.util
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dlfp4 import checkpoints

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs").glob("tutorials/*.md"))]
# All but what tells of the past.
ALL_PAGES = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")} - {ROOT / "CHANGELOG.md"})
BLOCK = re.compile(
    r"^(?:<!-- needs (?P<needs>\w+) -->\n)?```(?:\{code-cell\} )?(?P<kind>python|sh)\n(?P<code>.*?)^```", re.M | re.S
)
# What imports it, apart from what a page says it needs, is skipped without it.
OPTIONAL = ("torch", "jax", "pyarrow", "matplotlib")

pytestmark = pytest.mark.arithmetic  # they show the same on every Python


def programs(page):
    """The blocks of a page that can run here, each with the kind of program that it is."""
    for block in BLOCK.finditer(page.read_text()):
        if block["needs"] is None or importlib.util.find_spec(block["needs"]):
            yield block["kind"], block["code"]


def as_python(kind, code):
    """What a block does, in Python: of a shell's commands those of dlfp4."""
    if kind == "python":
        return code
    commands = [line for line in code.splitlines() if line.startswith("python -m dlfp4 ")]
    calls = [f"assert main({shlex.split(command)[3:]!r}) == 0\n" for command in commands]
    return "from dlfp4.__main__ import main\n" * bool(calls) + "".join(calls)


def make_model(folder):
    """What a reader of the page on checkpoints has."""
    weight = np.random.default_rng(0).normal(size=(64, 128)).astype(np.float32)
    checkpoints.save(folder / "model.safetensors", {"up.weight": weight}, {"format": "pt"})
    model = folder / "MODEL_DIR"
    model.mkdir()
    checkpoints.save(model / "model.safetensors", {"model.layers.0.mlp.up_proj.weight": weight}, {"format": "pt"})
    (model / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_programs(page, tmp_path):
    program = "\n".join(as_python(*block) for block in programs(page))
    for name in OPTIONAL:
        if re.search(rf"^(import|from) .*\b{name}\b", program, re.MULTILINE):
            pytest.importorskip(name)
    make_model(tmp_path)
    (tmp_path / "page.py").write_text(program)
    # In a folder of its own: processes that it starts import what lies where they start.
    command = [sys.executable, "-P", "page.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: str(page.relative_to(ROOT)))
def test_listings_need_no_scrolling(page):
    """A listing of the site is 100 characters wide."""
    listings = re.findall(r"^```(?:\{code-cell\} )?\w+\n(.*?)^```", page.read_text(), re.M | re.S)
    assert [line for listing in listings for line in listing.splitlines() if len(line) > 100] == []


@functools.cache
def names_of_sources():
    """The macros, options and variables of dlfp4's own, as the sources spell them."""
    kinds = ("CMakeLists.txt", "include/**/*.h", "src/**/*.cpp", "dlfp4/**/*.py", "bindings/rust/*.rs")
    paths = [path for kind in kinds for path in ROOT.glob(kind)]
    return {name for path in paths for name in re.findall(r"\bDLFP4_[A-Z_]+\b", path.read_text())}


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_pages_name_is_there(page):
    """Files of the checkout, or of its headers; sessions of nox; options and variables."""
    text = page.read_text()
    folders = "|".join(re.escape(path.name) for path in ROOT.iterdir() if path.is_dir())
    of_folders = re.compile(rf"(?<![\w./-])(?:{folders})/[\w./*<>-]*[\w/*>]")
    paths = {path for code in re.findall(r"`([^`\n]+)`", text) for path in of_folders.findall(code)}
    patterns = {re.sub(r"<\w+>|NAME", "*", path).rstrip("/") for path in paths if not path.startswith("dlfp4/lib/")}
    assert [each for each in patterns if not any(list(at.glob(each)) for at in (ROOT, ROOT / "include"))] == []
    sessions = set(re.findall(r"^def (\w+)\(session", (ROOT / "noxfile.py").read_text(), re.MULTILINE))
    asked = [re.split(r" --| +#|`", line)[0] for line in re.findall(r"nox -s (.*)", text)]
    assert {re.split(r"[-(]", name.strip("'"))[0] for line in asked for name in line.split()} <= sessions
    assert set(re.findall(r"\bDLFP4_[A-Z_]*[A-Z]\b", text)) <= names_of_sources()


def test_what_is_to_be_installed_is_on_pypi():
    """dlfp4 itself is not, until it is released."""
    sources = [*ALL_PAGES, *(ROOT / "dlfp4").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]
    for path in set(sources) - {ROOT / "docs" / "releasing.md"}:
        assert not re.search(r"pip install ['\"]?dlfp4", path.read_text()), path


def test_pages_agree_on_what_was_released():
    """The changelog has a section for each release, and the page on releasing says where there is none."""
    released = re.findall(r"^## \[\d", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    says_none = "no release has been made" in (ROOT / "docs" / "releasing.md").read_text()
    assert bool(released) != says_none
