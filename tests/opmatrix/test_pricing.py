"""What is priced and measured is a value: the same whatever else is imported, and more once more is declared."""

import json
import subprocess
import sys

import pytest

from formats.machine.prices import FORMAT_CATALOGUE
from opmatrix.runtime.kernels import KERNELS
from opmatrix.runtime.pricing import catalogue

LISTED = """
import importlib, json, sys
for name in sys.argv[1:]: importlib.import_module(name)
from formats.machine.calibration import Grid, Numbers, others
from formats.machine.prices import FORMAT_CATALOGUE
from opmatrix.runtime.pricing import catalogue
everything, numbers = catalogue(), Numbers(1 << 20)
grid = Grid((64,), (1, 8), ((24,), (9, 4)), ((2, 32),))
print(json.dumps([[*FORMAT_CATALOGUE.prices], everything.common, everything.lazy,
                  [each.__qualname__ for each in everything.startup_cases],
                  [(kernel, sizes) for kernel, sizes, _ in others(everything, grid, numbers, everything.prices)]]))
"""


def listed(*first):
    done = subprocess.run([sys.executable, "-c", LISTED, *first], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.deep
def test_a_calibration_has_the_same_cases_whatever_is_imported():
    alone = listed()
    assert len(alone[1]) > 30 and alone[3] == ["begin_run"] and len(alone[4]) > 40
    assert alone[0] == [*FORMAT_CATALOGUE.prices] and alone[1:3] == [catalogue().common, catalogue().lazy]
    for first in (
        ["formats.storage.select"],
        ["opmatrix.runtime.kernels", "opmatrix.runtime.program"],
        ["rewrites.cli.commands", "rewrites.laws", "rewrites.run"],
    ):
        assert listed(*first) == alone, first


def test_what_is_declared_later_is_in_the_next_catalogue(monkeypatch):
    before, known = catalogue(), KERNELS["scale"]
    monkeypatch.setitem(KERNELS, "double", known)
    monkeypatch.setattr(known, "prices", {"double": known.prices["scale"]})
    assert "double" in catalogue() and "double" not in before and "scale" in before
    with pytest.raises(ValueError, match=r"no kernel 'double' has a price; there are linear\.dense"):
        before["double"]


def test_the_command_and_the_library_measure_the_whole_catalogue(monkeypatch, tmp_path):
    """What `opmatrix calibrate` and a first search hand over is the same."""
    from formats.machine import local
    from opmatrix.runtime.pricing import this_machine
    from rewrites.cli.machine import calibrate
    from rewrites.workload.phases import Report

    monkeypatch.setenv("OPMATRIX_CACHE", str(tmp_path))
    handed = []

    def measure(prices, progress, **options):
        handed.append((prices.common, prices.lazy, prices.startup_cases))
        raise InterruptedError

    for module in (local, calibrate):
        monkeypatch.setattr(module, "calibrate", measure)
    monkeypatch.setattr(calibrate.kernels, "warm", lambda progress: None)
    monkeypatch.setattr(calibrate.peaks, "measure_peaks", lambda progress: None)
    monkeypatch.setattr(calibrate.blas, "fastest", lambda progress: None)
    for entry in (this_machine, lambda: calibrate.calibrate_machine(Report())):
        with pytest.raises(InterruptedError):
            entry()
    assert handed[0] == handed[1] == (catalogue().common, catalogue().lazy, catalogue().startup_cases)
