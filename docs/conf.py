"""The site of these pages: `pip install '.[docs]' && sphinx-build docs site` writes it to site/.

Pages are the Markdown files of docs/; the reference is made from the docstrings of what `import opmatrix` offers."""

import inspect
import re
from typing import Any

import opmatrix as om

project = "opmatrix"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = "opmatrix"
myst_heading_anchors = 4
exclude_patterns = ["measured", "**.ipynb_checkpoints"]
suppress_warnings = ["myst.xref_missing"]  # links to files outside of docs/, and to notebooks
autodoc_member_order = "bysource"
autodoc_typehints = "description"
GROUP = re.compile(r"^    (\w+)  +(\w+(?:, \w+)*)$", re.MULTILINE)


def groups() -> dict[str, list[str]]:
    """Return the public names by group, as the docstring of the package lists them."""
    return {title: names.split(", ") for title, names in GROUP.findall(om.__doc__ or "")}


def directive(name: str) -> str:
    """Return the directive that documents a public name: a class with its methods, a function, or any other value."""
    value = getattr(om, name)
    if inspect.isclass(value):
        return f".. autoclass:: opmatrix.{name}\n   :members:\n"
    if inspect.isfunction(value):
        return f".. autofunction:: opmatrix.{name}\n"
    return f".. py:data:: opmatrix.{name}\n"


def reference() -> str:
    """Return the reference as Markdown: a heading a group, a directive a name."""
    parts = []
    for title, names in groups().items():
        body = "\n".join(map(directive, names))
        parts.append(f"## {title}\n\n```{{eval-rst}}\n{body}```\n")
    return "\n".join(parts)


def fill(app: Any, name: str, source: list[str]) -> None:
    """Add the reference to its page when Sphinx reads it."""
    if name == "api":
        source[0] += "\n" + reference()


def as_rst(app: Any, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Turn a docstring into reStructuredText, in place: code in double backquotes, indented lines as literal blocks."""
    text: list[str] = []
    literal = False
    for line in lines:
        indented = line.startswith((" ", ">>>"))
        if indented and not literal:
            text += ["", "::", ""]
        elif literal and not indented and line:
            text += [""]
        literal = indented or (literal and not line)
        text.append(f"    {line}" if literal else re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", line).replace("*", r"\*"))
    lines[:] = text


def setup(app: Any) -> None:
    """Register both hooks; Sphinx calls this."""
    app.connect("source-read", fill)
    app.connect("autodoc-process-docstring", as_rst)
