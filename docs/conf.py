"""Sphinx: the API from docstrings, with the signatures of the stubs, since compiled functions keep none."""

import ast
from importlib import metadata
from pathlib import Path

import sphinx.application

project = "dlfp4"
release = version = metadata.version("dlfp4")
extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "myst_parser"]
myst_heading_anchors = 3
suppress_warnings = ["myst.xref_missing"]  # links of the README to files that are no pages
exclude_patterns = ["_build"]
html_theme = "alabaster"
html_theme_options = {"page_width": "1100px"}


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


SIGNATURES = read_signatures()
PAGES = {"DESIGN.md": "design.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changes.md"}


def sign(app, what, name, *_):
    """Give autodoc the stub's signature."""
    if what == "class":
        return "", None
    signature = SIGNATURES.get(name.removeprefix("dlfp4."))
    return (signature, None) if signature else None


def link_pages(app, relative_path, parent_docname, content):
    """Point links of an included file to the pages that include their targets."""
    for name, page in PAGES.items():
        content[0] = content[0].replace(f"]({name})", f"]({page})")


def setup(app: sphinx.application.Sphinx) -> None:
    """Connect the hooks."""
    app.connect("autodoc-process-signature", sign)
    app.connect("include-read", link_pages)
