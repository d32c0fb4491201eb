"""What is printed where an encoding has few letters."""

import os
import subprocess
import sys

import pytest
from children import LIMIT, ROOT

from rewrites.cli.outputs import PLAIN_LETTERS, encodable

TABLE = "σ₁ µs\n──  ─\n▁█ … ± 2 → ∮"


@pytest.mark.parametrize(
    "encoding, wanted",
    [("utf-8", TABLE), ("ascii", "s1 us\n--  -\n_= . + 2 > \\u222e"), ("latin-1", "s1 us\n--  -\n_= . + 2 > \\u222e")],
)
def test_letters_that_an_encoding_lacks(encoding, wanted):
    """Plain ones as wide, so that tables stay tables; any other letter by its number."""
    assert encodable(TABLE, encoding) == wanted and encodable("plain: µ", "latin-1") == "plain: µ"
    assert all(letter > 127 > instead for letter, instead in PLAIN_LETTERS.items())


@pytest.mark.deep(every=2)
@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_a_command_on_such_a_terminal(encoding):
    ran = subprocess.run(
        [sys.executable, "-m", "rewrites.cli", "laws", "--kind", "exact"],
        cwd=ROOT,
        timeout=LIMIT,
        env=os.environ | {"PYTHONIOENCODING": encoding},
        capture_output=True,
    )
    assert ran.returncode == 0 and not ran.stderr and b"associate (exact)" in ran.stdout and ran.stdout.isascii()
