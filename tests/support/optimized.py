"""One whole run of `opmatrix optimize` on a small model, which many tests read and none changes."""

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import checkpoints
import pytest
import standin

from rewrites import run
from rewrites.cli import __main__ as cli
from rewrites.report import results

LINES = ["the bank of the river", "a river runs dry.", "the river?", "banks of rivers", "dry dry dry", "a bank runs"]


def small(directory, **changed):
    """A BERT of one layer, wide enough that storing it otherwise pays."""
    sizes = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
    return checkpoints.write(directory, **(sizes | changed))


class Optimized(NamedTuple):
    """The checkpoint, the lines that it was fitted to, what was saved, its report as it is read back, and the result
    itself."""

    model: Path
    lines: Path
    out: Path
    report: dict[str, Any]
    result: results.Result


def optimized(place):
    """As the command line does it, within an error of 0.2, on a machine that nobody measured."""
    model, lines, found, optimize = small(place / "model"), place / "lines.txt", [], run.optimize
    lines.write_text("\n".join(LINES * 5))

    def noted(*given, **options):
        found.append(optimize(*given, **options))
        return found[-1]

    arguments = [model, "--text", lines, "--error", "0.2", "--out", place / "out", "--json", place / "found.json"]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as end:
        patch.setattr(run, "calibrated", lambda progress, *batches: standin.machine())
        patch.setattr(run, "optimize", noted)
        patch.setattr(sys, "argv", ["opmatrix", "optimize", *map(str, arguments)])
        cli.main()
    assert not end.value.code
    return Optimized(model, lines, place / "out", json.loads((place / "found.json").read_text()), *found)
