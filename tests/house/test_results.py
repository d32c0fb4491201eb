"""What README.md and docs/results.md show was measured in one run, of this version, and is what docs/make_results.py
makes of it."""

import runpy
import tomllib

import pytest
from children import ROOT

MADE = runpy.run_path(str(ROOT / "docs" / "make_results.py"))
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]


@pytest.mark.parametrize("name", MADE["pages"]())
def test_a_page_shows_what_was_measured(name):
    """Else run `python docs/make_results.py`."""
    assert (ROOT / name).read_text("utf-8") == MADE["pages"]()[name]


def test_what_is_shown_was_measured_by_this_version():
    """Else run `python benchmarks/all.py --publish` on a quiet machine."""
    assert MADE["Measured"]().about["version"] == VERSION
    assert VERSION in MADE["machine"](MADE["Measured"]())


def test_every_part_is_on_a_page_and_every_block_is_a_part():
    pages = MADE["pages"]()
    shown = [name for page in MADE["PAGES"] for name in MADE["BLOCK"].findall(pages[page])]
    assert sorted(shown) == sorted(MADE["PARTS"])


def test_a_figure_that_is_not_there_is_an_empty_cell(tmp_path):
    (tmp_path / "models.csv").write_text(
        "engine,number_type,workload,median_s,error\nopmatrix,bf16,1x16,0.0123,0.002\n"
    )
    measured = MADE["Measured"](tmp_path)
    assert MADE["cell"](measured, "bf16", "1x16", True) == "12.3 (0.2 %)"
    assert not MADE["cell"](measured, "int8", "1x16", False)
