"""What explain says about a saved program: before and after, and each law left out, for the same workload."""

import json
import re
import shutil
from dataclasses import replace

import checkpoints
import pytest
import standin

from formats.core.errors import InputError
from opmatrix.files.saving import DERIVATION
from opmatrix.runtime.program import Program
from rewrites import run
from rewrites.cli import explained_program as explain
from rewrites.lowering.lower import KernelCall, Method, Use
from rewrites.metrics.reported import Reported
from rewrites.report import results, retelling
from rewrites.workload.phases import Report

LINES = ["the bank of the river", "a river runs dry.", "the river?", "banks of rivers"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A small model and the program that was made of it without one law, on given texts."""
    place = tmp_path_factory.mktemp("explained")
    model, text = checkpoints.write(place / "model", num_hidden_layers=1), place / "lines.txt"
    text.write_text("\n".join(LINES))
    with pytest.MonkeyPatch.context() as patch:
        standin.know_laws(patch)
        found = run.optimize(
            str(model), error=0.0, text=str(text), leave_out=["scale_scores"], machine=standin.machine(), rounds=2
        )
    results.save(found, place / "out")
    return place, found


@pytest.fixture(scope="module")
def told(saved):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(explain, "calibrated", lambda progress, *batches: standin.machine())
        return explain.explain(saved[0] / "out", Report(quiet=True), rounds=2, text=saved[0] / "lines.txt", full=True)


@pytest.mark.deep
def test_before_and_after_are_programs(saved, told):
    place, found = saved
    steps = [str(step.kernel) for step in found.imported.program.steps]
    before, after = told.index("before: "), told.index("after: exact")
    assert before < after
    shown = told[before:after].splitlines()
    assert [line.split(" = ")[1].split("(")[0] for line in shown if line.startswith("h")] == steps[
        : explain.SHOWN_STEPS
    ]
    assert f"{len(steps) + 2 - explain.SHOWN_STEPS - 2} more steps" in told[before:after]
    own = str(Program.load(place / "out")).splitlines()
    assert own[1] in told[after:] and own[2] in told[after:]


def test_every_law_that_saved_something_is_named(saved, told):
    rows = told[told.index("what each law saved") : told.index("\nfront\n")].splitlines()[3:]
    cells = [re.split(r"  +", row) for row in rows if row.strip()]
    named = {law for row in cells for law in row[0].removesuffix(", together").split(" + ")}
    predicted = [float(row[1]) for row in cells]
    assert named and named <= saved[1].structures["exact"].fired
    assert "scale_scores" not in named  # it was left out from the beginning
    assert all(saving > 0 for saving in predicted) and predicted == sorted(predicted, reverse=True)
    for row in cells:
        assert row[2] == "below noise" or float(row[2]) != 0
        assert len(re.fullmatch(r"(\S+) to (\S+)", row[3]).groups()) == 2


def test_what_is_within_its_spread_is_below_noise():
    """Microseconds of five rounds, measured three times."""

    def told(*repeats):
        base = [1.0, 2.0, 1.5, 1.0, 3.0]  # what both have in common disturbs nothing
        taken = [
            {"with": base, "without": [b + 1e-6 * each for b, each in zip(base, rounds, strict=True)]}
            for rounds in repeats
        ]
        return explain.tell_saving(taken, "without", "with")

    assert told([5, 6, 7, 6, 5], [6, 6, 5, 7, 900], [6, 5, 5, 7, 6]) == ["6.0", "5.0 to 6.5"]
    assert told([-8, -9, -7, -8, -8], [-8] * 5, [-7] * 5)[0] == "-8.0"  # a law that costs time is no noise
    assert told([-883, 10, 1847, 5, -20], [300, -200, 7, -3, 1], [5, 4, -90, 60, 0])[0] == "below noise"
    assert told([9] * 5, [9] * 5, [-1, -1, -1, 9, 9]) == ["below noise", "9.0 to 9.0"]  # what does not come again


def test_what_is_told_is_written_as_figures(saved, monkeypatch):
    """Seconds and bytes as numbers; each law with what leaving it out takes."""
    monkeypatch.setattr(explain, "calibrated", lambda progress, *batches: standin.machine())
    monkeypatch.setattr(
        explain,
        "group_fired",
        lambda opened, exact: [
            (("associate",), opened.structure([law for law in opened.laws if law.name != "associate"]))
        ],
    )
    said, found = explain.find_explanation(saved[0] / "out", Report(quiet=True), rounds=2, text=saved[0] / "lines.txt")
    found = json.loads(json.dumps(found))
    assert found["chosen"] == "exact" and found["measured_s"].keys() == {"imported", "fused", "exact"}
    [law] = found["saved"]
    assert law["laws"] == ["associate"] and f"{1e6 * law['predicted_s']:.1f}" in said and len(law["quartiles_s"]) == 2
    assert [each["output"] for each in found["steps"]] == [step.output for step in Program.load(saved[0] / "out").steps]
    assert [each["name"] for each in found["front"]] == [point.name for point in saved[1].points]


def test_what_fusion_and_laws_saved_is_told(told):
    for name in ("imported", "fused", "exact"):
        row = next(line for line in told.splitlines() if line.startswith(name))
        assert float(row.split()[1]) > 0 and row.endswith("%")
    assert "* exact" in told


def test_the_derivation_is_told(saved, told):
    _, found = saved
    exact = found.structures["exact"]
    said = told[told.index("derivation") : told.index("what each law saved")]
    assert "every one checked in float64" in said and f"part {len(exact.parts)} of {len(exact.parts)}" in said
    assert "scale_scores" not in said and "stack_columns at" in said
    for extraction in exact.extractions:
        for node in extraction.nodes:
            if isinstance(node.label, KernelCall):
                assert f" {node.label.implementation.name} at " in said


def test_approximations_are_steps_with_errors(saved):
    """A structure whose weights are stored by methods that have errors: what each states, and what held-out rows
    say."""
    _, found = saved
    exact, batch = found.structures["exact"], found.workload.verify

    def pruned(node):
        method = Method("csr", (("density", 0.5),), error=1e-6)
        return node._replace(label=method) if isinstance(node.cls, Use) and node.cls.layout == "rows" else node

    coarser = replace(
        exact, extractions=[replace(each, nodes=tuple(map(pruned, each.nodes))) for each in exact.extractions]
    )
    program, _ = coarser.program({})
    changes = retelling.otherwise(coarser, program, batch)
    assert [len(each) for each in changes.values()] == [0, 1, 0]  # embeddings, a layer, pooling
    ((words, error, held_out),) = changes[1].values()
    assert words == "csr[density=0.5]" and error == pytest.approx(1e-3) and 1e-2 < held_out < 1
    said = retelling.derive(coarser, found.laws, changes)
    assert (
        "csr[density=0.5] at" in said
        and f"error 0.001 on calibration rows, {held_out:.2g} on held-out ones, which is more" in said
    )
    assert "error 0.001 on calibration rows\n" in retelling.derive(coarser, found.laws)


def test_a_table_in_panels_is_told_beside_one_in_panels(saved):
    """Rows of an int8 table are gathered as columns, so what it is compared with lies as columns, too."""
    _, found = saved
    exact, batch = found.structures["exact"], found.workload.verify
    tables = tuple(
        node._replace(label=Method("int8", error=1e-6)) if isinstance(node.cls, Use) else node
        for node in exact.extractions[0].nodes
    )
    narrowed = replace(exact, extractions=[replace(exact.extractions[0], nodes=tables), *exact.extractions[1:]])
    program, _ = narrowed.program({})
    assert program.steps[0].attributes["turned"]
    changes = retelling.otherwise(narrowed, program, batch)
    assert changes[0] and all(words == "int8" and 1e-4 < held_out < 0.1 for words, _, held_out in changes[0].values())


def test_the_steps_of_the_chosen_program_are_kept_beside_it(saved, monkeypatch):
    place, found = saved
    kept = (place / "out" / DERIVATION).read_text()
    assert kept == retelling.derive(found.structures["exact"], found.laws)
    assert [*(place / "out").rglob(DERIVATION)] == [place / "out" / DERIVATION]
    monkeypatch.setattr(explain, "calibrated", lambda progress, *batches: standin.machine())
    monkeypatch.setattr(explain, "group_fired", lambda opened, exact: [])
    given = {"rounds": 1, "text": place / "lines.txt"}
    assert kept in explain.explain(place / "out", Report(quiet=True), full=True, **given)
    short = explain.explain(place / "out", Report(quiet=True), **given)
    assert "before: one kernel" not in short and "      = " not in short and short.endswith("out --full")
    assert {line for line in kept.splitlines() if line.startswith("part ")} <= {*short.splitlines()}
    assert len(short.splitlines()) < 70, "a screen or two"


@pytest.mark.deep
def test_the_steps_of_others_of_a_front_are_found_when_somebody_asks(optimized, monkeypatch):
    """From the model: the program is searched for again, and known by its hash."""
    result, places = optimized.result, [optimized.out / "front" / str(at) for at in range(len(optimized.result.points))]
    other = max((at for at in range(len(places)) if at != result.chosen), key=lambda at: len(result.points[at].methods))
    assert result.points[other].methods and not (places[other] / DERIVATION).exists()
    monkeypatch.setattr(explain, "calibrated", lambda progress, *batches: standin.machine())
    monkeypatch.setattr(explain, "group_fired", lambda opened, exact: [])
    told = explain.explain(places[other], Report(quiet=True), 1, full=True, text=optimized.lines)
    told_steps = retelling.tell_steps(result.points[other], result.laws, result.choices, result.workload.few)
    assert told_steps in told and "every one checked in float64" in told
    assert f"after: {result.points[other].name}\n" in told and f"* {result.points[other].name}" in told
    own, kept = explain.read_report(places[result.chosen])
    assert own.chosen == result.chosen and kept == optimized.out / DERIVATION and kept.exists()
    found, _ = explain.read_report(places[0])
    program = Program.load(places[0])
    again = explain.reopen(program, found, given={"text": optimized.lines})
    exact = result.structures["exact"]
    assert explain.find_steps(program, found, again, exact) == retelling.derive(exact, result.laws)
    # other prices, another front
    monkeypatch.setattr(explain, "propose_approximations", lambda searched, *_: run.Proposed(searched, None))
    monkeypatch.setattr(explain, "find_front", lambda *_: run.Frontier([], None, None))
    assert explain.find_steps(program, replace(found, chosen=other), again, exact).startswith(
        "none: a search now finds"
    )


def test_a_front_without_its_report_is_no_front(optimized, tmp_path):
    shutil.copytree(optimized.out / "front" / "1", tmp_path / "front" / "1")
    with pytest.raises(InputError, match=r"report\.json: No such file"):
        explain.read_report(tmp_path / "front" / "1")
    (tmp_path / "report.json").write_text(
        json.dumps(optimized.report | {"front": optimized.report["front"][:1], "chosen": 0})
    )
    with pytest.raises(InputError, match=r"1/report\.json: No such file"):
        explain.read_report(tmp_path / "front" / "1")


def test_the_front_is_shown_as_it_was_found(saved, told):
    _, found = saved
    for point in found.points:
        assert point.name in told[told.index("\nfront\n") :]


def test_the_search_is_for_the_same_workload(saved, monkeypatch):
    place, found = saved
    monkeypatch.setattr(explain, "calibrated", lambda progress, *batches: standin.machine())
    report = Reported.read(place / "out" / "report.json")
    opened = explain.reopen(Program.load(place / "out"), report, given={"text": place / "lines.txt"})
    assert (opened.workload.rows, opened.workload.timed.extents(), opened.workload.name) == (
        found.workload.rows,
        found.workload.timed.extents(),
        found.workload.name,
    )
    assert "scale_scores" not in {law.name for law in opened.laws}
    assert opened.structure(opened.laws).time == pytest.approx(found.structures["exact"].time, rel=1e-9)


@pytest.mark.parametrize("change", ["{", "[]", "{}", {"chosen": 99}, {"front": 3}, {"without": None}], ids=str)
def test_a_damaged_report_is_named(saved, change, tmp_path, monkeypatch):
    monkeypatch.setattr(explain, "calibrated", lambda progress, *batches: standin.machine())
    copy = tmp_path / "copy"
    shutil.copytree(saved[0] / "out", copy)
    whole = json.loads((copy / "report.json").read_text())
    (copy / "report.json").write_text(change if isinstance(change, str) else json.dumps(whole | change))
    with pytest.raises(InputError, match=r"report\.json"):
        explain.explain(copy, Report(quiet=True), text=saved[0] / "lines.txt")
    (copy / "report.json").unlink()
    with pytest.raises(InputError, match=r"report\.json: No such file"):
        explain.explain(copy, Report(quiet=True))


def test_a_model_that_is_gone_is_named(saved, tmp_path, monkeypatch):
    """In one line, which says what to do; of a name that is no path, what opening it says."""
    place, _ = saved
    shutil.move(place / "model", tmp_path / "elsewhere")
    try:
        with pytest.raises(InputError, match=r"model: the model .* does not exist, seen from .* --model MODEL"):
            explain.explain(place / "out", Report(quiet=True), text=place / "lines.txt")
    finally:
        shutil.move(tmp_path / "elsewhere", place / "model")

    def gone(name, adapter):
        raise InputError(f"{name}: gone")

    monkeypatch.setattr(explain, "open_model", gone)
    with pytest.raises(InputError, match="model: gone"):
        explain.explain(place / "out", Report(quiet=True), text=place / "lines.txt")
