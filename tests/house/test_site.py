"""The site of the pages: every page is in its contents, and the reference has every public name."""

import re
import runpy

from children import ROOT

import opmatrix as om

DOCS = ROOT / "docs"
CONF = runpy.run_path(str(DOCS / "conf.py"))


def listed():
    """The pages that the contents name, patterns resolved."""
    blocks = re.findall(r"^```\{toctree\}\n(.*?)^```$", (DOCS / "index.md").read_text("utf-8"), re.M | re.S)
    lines = [line for block in blocks for line in block.splitlines() if line and not line.startswith(":")]
    return [page.relative_to(DOCS) for line in lines for page in sorted(DOCS.glob(f"{line}.md"))]


def test_every_page_is_in_the_contents_once():
    pages = sorted(page.relative_to(DOCS) for page in DOCS.rglob("*.md") if page.name != "index.md")
    assert sorted(listed()) == pages


def test_the_reference_has_every_public_name():
    names = [name for group in CONF["groups"]().values() for name in group]
    assert sorted(names) == dir(om)
    text = CONF["reference"]()
    assert all(f":: opmatrix.{name}\n" in text for name in names)
    assert ".. autoclass:: opmatrix.Program\n   :members:" in text and ".. autofunction:: opmatrix.prove" in text
