"""Profiles: every step that computes is timed inside the run, whatever runs it, and what is priced of a run is all
there."""

import json

import numpy as np
import pytest
import standin
from test_cli import command, patched, refused  # noqa: F401
from test_segments import BATCH, stepped

from formats.host.threads import limit
from formats.kernels.engine import replay
from opmatrix.algebra.batch.batch import Batch
from rewrites.cli.machine import profile

ONE = Batch([np.arange(40) % 20])


def computing(program):
    """The names of what is no view."""
    return [
        step.output for step, call in zip(program.steps, program.schedule.calls, strict=True) if not call.kernel.view
    ]


@pytest.mark.parametrize("batch", [BATCH, ONE], ids=["groups", "one"])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("between", [0, 2])
def test_every_step_that_computes_is_timed_once_a_round(rng, batch, workers, between):
    program = stepped(rng, between)
    with limit(workers):
        wanted = program.run(batch)
        taken = program.profile(batch, 3)
        assert np.array_equal(program.run(batch), wanted)
    assert [*taken.steps] == computing(program) and len(taken.runs) == 3
    assert all(len(each) == 3 and min(each) > 0 for each in taken.steps.values())
    rounds = zip(*taken.steps.values(), taken.runs, strict=True)
    if workers == 1:
        assert all(sum(steps) < whole for *steps, whole in rounds)


def test_a_machine_without_a_clock_is_told(rng, monkeypatch):
    monkeypatch.setattr(replay, "clock", lambda: 0)
    with pytest.raises(RuntimeError, match="no clock"):
        stepped(rng).profile(ONE)


def test_a_saved_program_is_profiled(command, optimized, monkeypatch, tmp_path):  # noqa: F811
    """What all its steps are predicted to take together is what the search predicts."""
    monkeypatch.setattr(profile, "calibrated", lambda progress, *batches: standin.machine())
    ran = command("profile", optimized.out, "--tokens", 8, "--rounds", 2, "--json", "steps.json")
    lines = [line.split() for line in ran.out.splitlines()]
    assert ran.status == 0 and lines[-1][:2] == ["a", "run"] and lines[-1][-1] == "100%"
    counts = [int(line[-4]) for line in lines[2:-2] if line[-1].endswith("%")]
    program = profile.Program.load(optimized.out)
    assert sum(counts) == len(computing(program))
    ahead = sum(standin.machine().seconds(kernel, **sizes) for kernel, sizes in program.cost(Batch([[1] * 8])))
    assert float(lines[-1][2]) == pytest.approx(1e3 * ahead, abs=0.006)
    *steps, beside, whole = json.loads((tmp_path / "steps.json").read_text())["steps"]
    assert [each["steps"] for each in steps] == counts and beside["steps"] == whole["steps"] == 0
    assert whole["predicted_s"] == pytest.approx(ahead) and all(each["measured_s"] > 0 for each in steps)


def test_what_cannot_be_drawn_is_refused(command, optimized, tmp_path):  # noqa: F811
    refused(command("profile", tmp_path / "absent"), tmp_path / "absent")
    assert "positions" in command("profile", optimized.out, "--tokens", 100000).err
