"""An import of a module's old name gives the module, and a warning that says its new name."""

import re
import subprocess
import sys

import pytest
from children import ROOT
from measures import MODULES

import formats
import opmatrix as om
from formats.core.moved import current, new_names, old_rooms

ROOMS = {name.rpartition(".")[0] for name in MODULES}
SAME = """
import importlib, sys, warnings
from formats.core.moved import new_names, old_rooms
for old, new in new_names().items():
    if old in old_rooms(): continue
    try: before = importlib.import_module(new)
    except ModuleNotFoundError as error:
        assert error.name == "torch", error
        continue
    spec = before.__spec__
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert importlib.import_module(old) is before, old
    assert [str(each.message) for each in said if each.category is FutureWarning] == [
        f"{old} is {new} since opmatrix 0.21: import it from there"], old
    assert before.__name__ == new and before.__spec__ is spec, old
print("right")
"""


def test_new_names_exist_and_old_ones_do_not():
    assert {name for name in new_names().values() if name not in MODULES and name not in ROOMS} == set()
    assert {name for name in new_names() if name in MODULES} == set()


def run(code, *options):
    """What a process prints, with its errors."""
    done = subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, cwd=ROOT)
    return done.stdout + done.stderr


def test_every_old_name_is_the_module_itself():
    assert run(SAME).endswith("right\n")


@pytest.mark.parametrize(
    "statement, warned",
    [
        ("from rewrites.law import law", "rewrites.law is rewrites.laws.law"),
        ("from opmatrix.split import moving", "opmatrix.split.moving is opmatrix.parallel.sharding.redistribute"),
        ("import opmatrix.partitions.plan", "opmatrix.partitions.plan is opmatrix.parallel.sharding.partition"),
        ("import formats.machine.threads", "formats.machine.threads is formats.host.threads"),
    ],
)
def test_who_imports_an_old_name_is_told(statement, warned):
    assert f"FutureWarning: {warned} since opmatrix 0.21: import it from there" in run(statement)


def test_a_module_that_never_was_is_missing_as_ever():
    assert run("import opmatrix.nothing").endswith("ModuleNotFoundError: No module named 'opmatrix.nothing'\n")
    assert run("import opmatrix.split.nothing").endswith("No module named 'opmatrix.split.nothing'\n")
    assert current("opmatrix.nothing") == "opmatrix.nothing" and "opmatrix.split" in old_rooms()


def test_the_front_door_has_its_modules_still():
    assert om.patterns.__name__ == "opmatrix.algebra.positions.patterns"
    assert om.batch.__name__ == "opmatrix.algebra.batch.batch"
    assert formats.masks.__name__ == "formats.storage.masks"


def test_the_page_has_every_room_that_moved():
    """docs/architecture.md, by folders; moved.json has the modules."""
    table = (ROOT / "docs" / "architecture.md").read_text("utf-8").split("## Old rooms and new ones")[1]
    rows = set(re.findall(r"^\| `([\w/]+)/` \|", table.split("Files of 0.13")[0], re.M))
    modules = {name.rpartition(".")[0] for name in new_names() if name not in old_rooms()}
    assert rows == {room.replace(".", "/") for room in modules}
