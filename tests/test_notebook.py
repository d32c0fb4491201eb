"""docs/algebra.ipynb is stored with its outputs, and runs again from the first cell to the last."""
from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient", reason="needs peers: nbclient")
nbformat = pytest.importorskip("nbformat", reason="needs peers: nbformat")
pytest.importorskip("ipykernel", reason="needs peers: ipykernel")
pytest.importorskip("matplotlib", reason="needs peers: matplotlib")

ROOT = Path(__file__).parents[1]
FILE = ROOT / "docs" / "algebra.ipynb"


def cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]

def pictures(notebook):
    """For each cell, how many pictures it draws."""
    return [sum("image/png" in output.get("data", {}) for output in cell.outputs) for cell in cells(notebook)]


@pytest.fixture(scope="module")
def stored():
    return nbformat.read(FILE, as_version=4)


def test_it_is_stored_as_it_ran(stored):
    nbformat.validate(stored)
    assert [cell.execution_count for cell in cells(stored)] == list(range(1, len(cells(stored)) + 1))
    assert not [output for cell in cells(stored) for output in cell.outputs if output.output_type == "error"]
    assert str(ROOT) not in FILE.read_text("utf-8") and FILE.stat().st_size < 400_000


def test_it_runs(stored, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    again = nbformat.from_dict(stored.copy())
    for cell in cells(again): cell.outputs, cell.execution_count = [], None
    place = {"metadata": {"path": tmp_path}}
    nbclient.NotebookClient(again, timeout=300, kernel_name="python3", resources=place).execute()
    assert pictures(again) == pictures(stored) and sum(pictures(again)) >= 5
