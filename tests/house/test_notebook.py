"""Notebooks of docs/ are stored with their outputs, and run again from the first cell to the last, beside an installed
package: with the files of docs/, and nothing else of the repository."""

import shutil

import pytest
from children import ROOT

nbclient = pytest.importorskip("nbclient", reason="needs peers: nbclient")
nbformat = pytest.importorskip("nbformat", reason="needs peers: nbformat")
pytest.importorskip("ipykernel", reason="needs peers: ipykernel")
pytest.importorskip("matplotlib", reason="needs peers: matplotlib")

# of docs/, and how many pictures each has at least
FILES = {
    "algebra": 5,
    "compression": 4,
    "exploring": 1,
    "families": 0,
    "formats": 5,
    "graphs": 2,
    "partition": 1,
    "planner": 3,
    "scans": 2,
    "streaming": 1,
    "training": 3,
}


def cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def pictures(notebook):
    """For each cell, how many pictures it draws."""
    return [sum("image/png" in output.get("data", {}) for output in cell.outputs) for cell in cells(notebook)]


@pytest.fixture(scope="module", params=FILES)
def stored(request):
    file = ROOT / "docs" / f"{request.param}.ipynb"
    return file, nbformat.read(file, as_version=4), FILES[request.param]


def test_it_is_stored_as_it_ran(stored):
    file, notebook, _ = stored
    nbformat.validate(notebook)
    assert [cell.execution_count for cell in cells(notebook)] == list(range(1, len(cells(notebook)) + 1))
    assert not [output for cell in cells(notebook) for output in cell.outputs if output.output_type == "error"]
    assert str(ROOT) not in file.read_text("utf-8") and file.stat().st_size < 400_000


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """A folder with what lies beside the notebooks, where the packages are found elsewhere."""
    site, docs = tmp_path / "site", tmp_path / "docs"
    for each in (site, docs):
        each.mkdir()
    for package in ("formats", "opmatrix", "rewrites"):
        (site / package).symlink_to(ROOT / package)
    for file in (ROOT / "docs").glob("*.json"):
        shutil.copy(file, docs)
    monkeypatch.setenv("PYTHONPATH", str(site))
    return docs


def test_it_says_what_it_needs(tmp_path, monkeypatch):
    """In a folder without its file."""
    monkeypatch.chdir(tmp_path)
    notebook = nbformat.read(ROOT / "docs" / "compression.ipynb", as_version=4)
    with pytest.raises(FileNotFoundError, match=r"compression.json: start in the folder of this notebook"):
        exec(cells(notebook)[0].source, {})


@pytest.mark.deep(every=3)
def test_it_runs(stored, beside):
    _, notebook, drawn = stored
    again = nbformat.from_dict(notebook.copy())
    for cell in cells(again):
        cell.outputs, cell.execution_count = [], None
    place = {"metadata": {"path": beside}}
    nbclient.NotebookClient(again, timeout=300, kernel_name="python3", resources=place).execute()
    assert pictures(again) == pictures(notebook) and sum(pictures(again)) >= drawn
