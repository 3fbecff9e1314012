"""The documentation is built without a warning, its tutorials run as notebooks, and no link within it is dead."""

import importlib
import importlib.util
import inspect
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

DOCS = Path(__file__).parents[2] / "docs"
NEEDED = ("sphinx", "furo", "myst_nb", "torch", "jax", "pyarrow")
missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]

pytestmark = [
    pytest.mark.arithmetic,  # once is enough
    pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}"),
]


class Page(HTMLParser):
    """What an HTML file points to, and what can be pointed to in it."""

    def __init__(self, path):
        super().__init__()
        self.links, self.ids = set(), {""}
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.ids.add(found.get("id"))
        self.links |= {found[name] for name in ("href", "src") if name in found}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-P", "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    command += ["-d", folder / "doctrees", DOCS, folder / "html"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder / "html"


def test_no_link_is_dead(site):
    pages = {path: Page(path) for path in site.rglob("*.html")}
    assert {"index.html", "formats.html", "processes.html"} <= {path.name for path in pages}
    dead, followed = set(), 0
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            followed += 1
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file() or (target in pages and unquote(parts.fragment) not in pages[target].ids):
                dead.add(f"{path.relative_to(site)}: {link}")
    assert not dead
    assert followed > 1000


def documented():
    """The objects that the page of the API lists."""
    module = ""
    for kind, name in re.findall(r"^\.\. (\w+):: (\S+)", (DOCS / "api.rst").read_text(), re.MULTILINE):
        if kind in ("currentmodule", "module", "automodule"):
            module = name
        else:
            place, _, own = (name if name.startswith("dlfp4.") else f"{module}.{name}").rpartition(".")
            yield getattr(importlib.import_module(place), own)


@pytest.mark.parametrize("name", ["", ".torch", ".jax", ".checkpoints", ".analysis"])
def test_every_public_name_is_documented(name):
    module, found = importlib.import_module(f"dlfp4{name}"), list(documented())
    public = {name: getattr(module, name) for name in module.__all__ if name != "__version__"}
    missing = [name for name, value in public.items() if not any(value is each for each in found)]
    assert [name for name in missing if name not in ("analysis", "checkpoints")] == []


@pytest.mark.parametrize("name", ["", ".torch", ".jax", ".checkpoints", ".analysis"])
def test_every_public_function_says_what_it_takes_and_gives(name):
    module = importlib.import_module(f"dlfp4{name}")
    for public in module.__all__:
        function = getattr(module, public)
        if not callable(function) or isinstance(function, type):
            continue
        notes, arguments = inspect.getdoc(function), inspect.signature(function).parameters
        sections = set(re.findall(r"^(\w+)\n-+$", notes, re.MULTILINE))
        gives_nothing = public in ("save", "set_num_threads", "show_config", "autotune")
        assert not arguments or sections >= ({"Parameters"} if gives_nothing else {"Parameters", "Returns"}), public
        assert not [argument for argument in arguments if not re.search(rf"\b{argument}\b", notes)], public


def test_tutorials_show_what_they_give(site):
    names = [path.stem for path in (DOCS / "tutorials").glob("*.md")]
    assert names
    for name in names:
        page = site / "tutorials" / f"{name}.html"
        assert page.read_text().count('class="cell_output') >= 5
