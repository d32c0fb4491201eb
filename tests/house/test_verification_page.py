"""docs/verification.md names planted faults and tests, and they are there."""

import ast
import re

from children import ROOT
from test_planted_kernels import ATTENDING, FAULTS, zeros

PAGE = (ROOT / "docs" / "verification.md").read_text("utf-8")
ROWS = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| ")][1:]


def functions(file):
    return {
        node.name for node in ast.walk(ast.parse((ROOT / file).read_text("utf-8"))) if isinstance(node, ast.FunctionDef)
    }


def test_every_fault_has_a_test_that_is_there():
    assert len(ROWS) > 12
    for row in ROWS:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row[2])
        assert named and len(named) == row[2].count("`tests/"), row
        for file, test in named:
            assert test.startswith("test_") and test in functions(file), f"{file} has no {test}"


def test_every_planted_kernel_is_on_the_page_and_none_that_is_not_planted():
    said = {name for row in ROWS for name in re.findall(r"`([^`]+)`", row[0])}
    assert said - {"need not be act", "opmatrix verify"} == {
        *ATTENDING,
        *(fault.__name__ for fault in (*FAULTS, zeros)),
    }


def test_every_command_is_there():
    named = re.findall(r"python (benchmarks/\w+\.py)", PAGE)
    assert named and all((ROOT / each).exists() for each in named)
