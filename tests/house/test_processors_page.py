"""docs/processors.md: every setting that it says is tested is one that tests switch off."""

import pytest
import test_threads
from children import ROOT

from formats.host.switches import SWITCHES, VARIABLE, switched_off

PAGE = (ROOT / "docs" / "processors.md").read_text()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| ")][
    1:
]
SETTINGS = [row[1].strip("`") for row in ROWS if row[1]]


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_of_the_page_is_one(setting, monkeypatch):
    monkeypatch.setenv(VARIABLE, setting)
    assert switched_off() and {*switched_off()} <= {*SWITCHES}


def test_what_the_page_says_is_tested_by_a_setting_is():
    tested = {f"-{off}" for off in test_threads.OFF} | {"-avx"}
    assert {*SETTINGS} == tested
