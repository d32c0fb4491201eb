"""An import of a module's old name says where the module is now."""
import subprocess
import sys

import pytest
from children import ROOT
from measures import MODULES

import formats
import opmatrix as om
from formats.core.moved import current, directions, new_names

ROOMS = {name.rpartition(".")[0] for name in MODULES}        # of folders without an __init__.py, too
DIVIDED = "opmatrix.partitions"


def test_new_names_exist_and_old_ones_do_not():
    assert {name for name in new_names().values() if name not in MODULES and name not in ROOMS} == set()
    assert {name for name in new_names() if name in MODULES} == set()


def complaint(statement):
    """The last line of the error of a process that runs one statement."""
    done = subprocess.run([sys.executable, "-c", statement], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1, statement
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize("statement, name", [
    ("import formats.format", "formats.format"), ("import formats.masks", "formats.masks"),
    ("from opmatrix.batch import Batch", "opmatrix.batch"), ("import opmatrix.split.mesh", "opmatrix.split"),
    ("from opmatrix.partitions import plan", DIVIDED), ("from rewrites import law", "rewrites.law"),
    ("from rewrites.law import LAWS", "rewrites.law"), ("import rewrites.compiler.search", "rewrites.compiler")])
def test_an_old_import_says_the_new_name(statement, name):
    assert complaint(statement) == f"ModuleNotFoundError: {directions(name)}: import it from there"


def test_directions_of_a_room_name_what_is_elsewhere():
    assert directions("rewrites.law") == "rewrites.law is rewrites.laws.law since opmatrix 0.21"
    assert "opmatrix.split.moving is opmatrix.parallel.sharding.redistribute" in directions("opmatrix.split")
    assert "opmatrix.partitions.ranks is opmatrix.parallel.ranks.ranks" in directions(DIVIDED)
    assert "mesh" not in directions("opmatrix.split")


def test_a_module_that_never_was_is_missing_as_ever():
    assert complaint("import opmatrix.nothing") == "ModuleNotFoundError: No module named 'opmatrix.nothing'"
    assert current("opmatrix.nothing") == "opmatrix.nothing"


def test_the_front_door_has_its_modules_still():
    assert om.patterns.__name__ == "opmatrix.algebra.positions.patterns"
    assert om.batch.__name__ == "opmatrix.algebra.batch.batch"
    assert formats.masks.__name__ == "formats.storage.masks"
