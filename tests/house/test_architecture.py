"""docs/architecture/: a page a room, short, that names what exists."""

import re

import pytest
from children import ROOT
from rooms import ROOMS

FOLDER = ROOT / "docs" / "architecture"
PAGES = {page.stem: page.read_text("utf-8") for page in sorted(FOLDER.glob("*.md"))}
INDEX = (ROOT / "docs" / "architecture.md").read_text("utf-8")
LOOSE = {"opened", "run"}  # files, not folders: told on pages of other rooms
PARALLEL = sorted(path.parent.name for path in (ROOT / "opmatrix/parallel").glob("*/__init__.py"))
NAMES = {
    *(f"{package}_{room}" for package, rooms in ROOMS.items() for room in rooms if room not in {*LOOSE, "parallel"}),
    *(f"parallel_{room}" for room in PARALLEL),
}
PATH = re.compile(r"`((?:formats|opmatrix|rewrites|tests|benchmarks|docs)/[\w./]*[\w/])`")


def test_every_room_has_a_page_that_is_linked():
    assert PAGES.keys() == NAMES
    assert set(re.findall(r"\]\(architecture/(\w+)\.md\)", INDEX)) == NAMES


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_read_once(name):
    text = PAGES[name]
    package, _, room = name.partition("_")
    place = f"opmatrix/parallel/{room}" if package == "parallel" else f"{package}/{room}"
    assert text.startswith(f"# {place}") and (ROOT / place).is_dir()
    assert len(text.split()) <= 600 and max(map(len, text.splitlines())) <= 160


@pytest.mark.parametrize("name", PAGES)
def test_what_a_page_names_exists(name):
    assert not [path for path in PATH.findall(PAGES[name]) if not (ROOT / path).exists()]


def test_a_path_that_is_gone_is_seen():
    assert PATH.findall("`opmatrix/split/moving.py` and `formats/core/`") == [
        "opmatrix/split/moving.py",
        "formats/core/",
    ]
