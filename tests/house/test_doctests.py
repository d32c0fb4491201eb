"""Every example in a docstring gives what it shows."""

import doctest
from importlib import import_module

import pytest
from measures import MODULES

import opmatrix as om

SHOWING = [module for module, path in MODULES.items() if ">>> " in path.read_text("utf-8")]


@pytest.mark.parametrize("module", SHOWING)
def test_examples_give_what_they_show(module):
    done = doctest.testmod(import_module(module), extraglobs={"om": om})
    assert not done.failed


def test_examples_are_found():
    assert {"formats.machine.collectives", "opmatrix", "opmatrix.parallel.search.uneven_cuts"} <= {*SHOWING}
