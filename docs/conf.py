"""Sphinx: the API from docstrings, with the signatures of the stubs, since compiled functions keep none."""

import ast
import re
from importlib import metadata
from pathlib import Path

import sphinx.application

project = "dlfp4"
release = version = metadata.version("dlfp4")
extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "myst_nb"]
myst_heading_anchors = 3
nb_execution_mode = "force"  # tutorials show what they give
nb_execution_raise_on_error = True
nb_execution_timeout = 120
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"dlfp4 {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]


def read_signatures() -> dict[str, str]:
    """Qualified name: signature, of what `_core.pyi` declares."""
    found = {}
    tree = ast.parse((Path(__file__).parents[1] / "dlfp4" / "_core.pyi").read_text())
    for node in tree.body:
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        for member in members:
            if isinstance(member, ast.FunctionDef):
                for argument in ast.walk(member.args):
                    if isinstance(argument, ast.arg):
                        argument.annotation = None
                name = f"{node.name}.{member.name}" if member is not node else member.name
                found[name] = f"({ast.unparse(member.args).removeprefix('self, /, ').removeprefix('self, ')})"
    return {name: "()" if signature == "(self)" else signature for name, signature in found.items()}


DOCS = Path(__file__).parent
LINK = re.compile(r"\[(?P<text>[^]]+)\]\((?!https?:|#)(?P<target>[^)#]+)(?P<anchor>#[^)]*)?\)")
SIGNATURES = read_signatures()
PAGES = {
    "README.md": "index.md",
    "DESIGN.md": "design.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
    "SECURITY.md": "security.md",
}


def sign(app, what, name, *_):
    """Give autodoc the stub's signature."""
    if what == "class":
        return "", None
    signature = SIGNATURES.get(name.removeprefix("dlfp4."))
    return (signature, None) if signature else None


def link_pages(app, relative_path, parent_docname, content):
    """Point links of an included file to pages; those to files of the repository that are no pages become names."""

    def link(match):
        text, target, anchor = match["text"], match["target"], match["anchor"] or ""
        page = PAGES.get(target, target.removeprefix("docs/"))
        return f"[{text}]({page}{anchor})" if (DOCS / page).is_file() else f"`{target}`"

    content[0] = LINK.sub(link, content[0])


def setup(app: sphinx.application.Sphinx) -> None:
    """Connect the hooks."""
    app.connect("autodoc-process-signature", sign)
    app.connect("include-read", link_pages)
