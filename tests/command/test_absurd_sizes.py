"""Sizes that nobody has, of those that tests/support/absurd_sizes.py draws: a line, and no fault."""

import json

import pytest
from absurd_sizes import COMMANDS, CONFIG, outcome


@pytest.mark.parametrize(
    "command, options",
    [
        ("optimize", [f"--tokens={2**63}"]),
        ("launch", [f"--tokens={10**30}"]),
        ("launch", [f"--batch={2**31}"]),
        ("launch", [f"--batch={2**31 - 1}", f"--tokens={2**31 - 1}"]),
        ("plan", [f"--batch={10**30}"]),
    ],
)
def test_a_size_that_nobody_has_is_a_line(tmp_path, command, options):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert outcome([command, *COMMANDS[command], *options], tmp_path) == ""
