"""The report of a run: every number that is printed is one of its figures, what means save adds up, and a bound is of
what was asked."""

import copy
import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import searched
import standin

from formats.kernels.engine import replay
from opmatrix.algebra.batch.extents import collect_needs
from opmatrix.algebra.monoids import concat
from opmatrix.algebra.operators import attention, over, weight
from opmatrix.algebra.positions.patterns import causal
from rewrites.approximate.error_levels import OBJECTIVES, Front
from rewrites.egraph.layers import parts
from rewrites.explain.derivations.savings import find_used, group_laws, join_names, leave_out, saves, search_without
from rewrites.extraction import Infeasible
from rewrites.laws import EXACT_LAWS, without
from rewrites.lowering.price import Prices
from rewrites.lowering.representations import Representable, only_narrows
from rewrites.report import results
from rewrites.report.evaluated_terms import GUIDE, find_evaluated, tell_evaluated
from rewrites.report.gains import steps
from rewrites.workload.stated import MIN_SENTENCES

NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]\d+)?(?![\w])")
SAID = "int8", "float64", f"that needs {2 * MIN_SENTENCES} lines"  # words with digits, and a constant
WAYS = (
    ("{:.2f}", 1e3),
    ("{:.1f}", 1e6),
    ("{:.1f}", 1e-6),
    ("{:.3g}", 100),
    ("{:.2g}", 100),
    ("{:.2g}", 1),
    ("{:.0e}", 1),
    ("{:.1f}", 1),
    ("{}", 1),
)


@pytest.fixture
def ran(optimized):
    """A run on a small model, its figures as they are read back, and where it is saved."""
    return optimized.result, optimized.report, optimized.out


def leaves(found):
    """Every number and every word of JSON."""
    if isinstance(found, dict | list):
        for each in found.values() if isinstance(found, dict) else found:
            yield from leaves(each)
    elif not isinstance(found, bool) and found is not None:
        yield found


def untraced(text, found, target):
    """The numbers of a printed report that are no figure of the JSON, in any of the units that a report prints."""
    kept = [*leaves(found)]
    for word in sorted({*(each for each in kept if isinstance(each, str)), str(target), *SAID}, key=len, reverse=True):
        text = text.replace(word, "")
    figures = {way.format(each * scale) for each in kept if not isinstance(each, str) for way, scale in WAYS}
    return [number for number in NUMBER.findall(text) if number not in figures]


def test_every_number_of_the_report_is_a_figure_of_the_json(ran):
    _, found, target = ran
    text = results.printed(found, target)
    assert len(NUMBER.findall(text)) > 60 and untraced(text, found, target) == []
    quiet = found | {"busy": {"calibration": "", "timing": ""}}
    lines = results.printed(quiet, target).splitlines()
    assert len(lines) - len(found["front"]) <= 44  # a screen with six programs


def test_programs_have_the_numbers_of_their_directories(ran):
    _, found, target = ran
    lines = results.printed(found, target).splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("programs:")) + 3
    assert lines[first].split()[0] == "imported"
    for number, point in enumerate(found["front"]):
        words = lines[first + 1 + number].split()
        if number == found["chosen"]:
            assert words.pop(0) == "*"
        assert int(words[0]) == number and " ".join(words[1:]).startswith(point["name"])
        assert Path(point["program"]).name == f"{number}"


@pytest.mark.parametrize(
    "path",
    [
        ["bound", "seconds"],
        ["bound", "gap"],
        ["prediction", "median"],
        ["prediction", "worst"],
        ["error"],
        ["saved_s"],
        ["saved", 0, "seconds"],
        ["steps", 0, "measured_s"],
        ["steps", 1, "saved_s"],
        ["steps", 2, "quartiles_s", 0],
        ["baseline", "measured_s"],
        ["front", 0, "predicted_s"],
        ["front", 0, "measured_error"],
        ["phases", "search"],
        ["search", "gap"],
        ["verified", "rows"],
    ],
    ids=str,
)
def test_a_number_that_is_no_figure_is_seen(ran, path):
    """Another figure in each place, one that the JSON has nowhere."""
    _, found, target = ran
    other = copy.deepcopy(found)
    place = other
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = 98765 if isinstance(place[path[-1]], int) else 98.76543
    assert untraced(results.printed(other, target), found, target)


# ---- what each means saves


def test_what_means_save_adds_up(ran):
    found, kept, _ = ran
    rows = [step for step in kept["steps"] if step["program"]]
    assert [step["name"] for step in kept["steps"]] == [
        "imported",
        "+ fusion",
        "+ laws",
        "+ number types",
        "+ sparsity and rank",
    ]
    assert rows[0]["measured_s"] == found.imported.measured_s and rows[-1]["measured_s"] == found.best.measured_s
    assert kept["saved_s"] == found.imported.measured_s - found.best.measured_s
    assert sum(step["saved_s"] for step in rows[1:]) == pytest.approx(kept["saved_s"], abs=1e-12)
    assert all(step["quartiles_s"][0] <= step["measured_s"] <= step["quartiles_s"][1] for step in rows)
    said = results.gains(kept).splitlines()[2:]
    shown = [float(line.removesuffix("below noise").split()[-1]) for line in said[1:] if "nothing" not in line]
    assert sum(shown[:-1]) == pytest.approx(shown[-1], abs=0.005 * len(shown))


def test_a_means_that_nothing_has_says_so():
    rows = [
        ("imported", "imported", [9.0, 8.0, 10.0]),
        ("+ fusion", "fused", [5.0, 5.0, 6.0]),
        ("+ laws", "exact", [5.1, 4.8, 6.0]),
        ("+ number types", "", None),
        ("+ sparsity and rank", "csr x2", [3.0, 3.0, 3.0]),
    ]
    found = [*steps(rows)]
    assert [step.saved_s for step in found] == [None, 4.0, pytest.approx(-0.1), None, pytest.approx(2.1)]
    assert [step.below_noise for step in found] == [False, False, True, False, False]
    assert results.name_step(found[3]._asdict()) == "+ number types: nothing"


@pytest.mark.parametrize(
    "methods, only",
    [
        ({"bf16": 3, "int8": 1, "half": 2, "int4": 1}, True),
        ({}, True),
        ({"bf16": 3, "csr": 1}, False),
        ({"lowrank": 1}, False),
        ({"nm": 1}, False),
        ({"mine": 1}, False),
    ],
    ids=str,
)
def test_number_types_keep_every_weight(methods, only):
    assert only_narrows(methods) == only


# ---- laws that save nothing without one another


@pytest.fixture(scope="module")
def layer():
    """A layer opened for a search, its exact program, and what is found without laws of these names."""
    operator = searched.model(num_hidden_layers=1)
    extents = searched.RAGGED.extents(*collect_needs(operator))
    opened = SimpleNamespace(
        model=operator,
        laws=EXACT_LAWS,
        running=searched.Round(),
        parts=parts(operator),
        workload=SimpleNamespace(extents=lambda model: extents),
        representable=Representable(),
    )
    exact = searched.structure(operator)
    return operator, exact, lambda names: search_without(opened, names, exact)


@pytest.mark.deep(every=3)
@pytest.mark.parametrize("names", [["spread"], ["associate", "stack_columns"], ["scale_scores"]], ids=str)
def test_a_graph_that_a_law_never_changed_is_kept(layer, names):
    """To the program, from graphs that are all made anew and from those that are not."""
    operator, exact, lacking = layer
    anew, kept = searched.structure(operator, without(EXACT_LAWS, names), along=exact.path), lacking(names)
    assert (kept.time, kept.memory, kept.bound) == (anew.time, anew.memory, anew.bound)
    assert kept.program({})[0].hash == anew.program({})[0].hash
    same = [ours.graph is theirs.graph for ours, theirs in zip(kept.lowerings, exact.lowerings, strict=True)]
    assert same == [each.graph.fired.keys().isdisjoint(names) for each in exact.lowerings]


@pytest.mark.deep
def test_laws_of_one_entry_save_only_together(layer):
    """Leaving out any of them costs what leaving out all does, and so what leaving out two does."""
    _, exact, lacking = layer
    left = {}
    for law in EXACT_LAWS:
        if law.name in exact.fired:
            try:
                left[law.name] = lacking([law.name])
            except Infeasible:
                continue  # other canonical forms rest on it
    entries = [names for names, each in group_laws(left.items(), exact.time, lacking) if saves(each, exact.time)]
    assert {"scale_scores", "shift_scores"} in map(set, entries) and max(map(len, entries)) > 3
    for names in entries:
        for pair in combinations(names[:3], 2):
            assert lacking(pair).time == pytest.approx(left[pair[0]].time, rel=1e-9)


def test_laws_that_save_as_much_apart_are_not_one():
    """Each of a and b saves 2 of its own, c and d save 2 only together, and e nothing."""

    def lacking(names):
        given = set(names)
        return SimpleNamespace(time=10.0 + 2 * len(given & {"a", "b"}) + 2 * bool(given & {"c", "d"}))

    found = group_laws([(name, lacking([name])) for name in "acebd"], 10.0, lacking)
    assert {names for names, _ in found} == {("e",), ("a",), ("b",), ("c", "d")}
    assert [join_names(names) for names in (("a",), ("c", "d"))] == ["a", "c + d, together"]


def test_laws_that_save_nothing_are_left_out_together():
    """In one search where no one of them saves anything; where one does, or cannot go, it is found; none is lost."""
    asked = []

    def lacking(names):
        asked.append(names)
        if "rest" in names:
            raise Infeasible("others rest on it")
        return SimpleNamespace(time=10.0 + 2 * ("c" in names) - ("hides" in names))

    for names, searches, wanted in (
        ("abd", 1, [10, 10, 10]),
        ("abcd", 5, [10, 10, 12, 10]),
        ("", 0, []),
        (["a", "b", "hides"], 5, [10, 10, 9]),
        (["a", "rest", "b"], 5, [10, 10]),
    ):
        asked.clear()
        found = dict(leave_out(names, 10.0, lacking))
        assert [each.time for each in found.values()] == wanted and len(asked) == searches
        assert [*found] == [name for name in names if name != "rest"]


def test_what_a_program_follows_from_is_searched_without_one_by_one(layer):
    """Every law that fired has its search, or its share of one; those that no step names share theirs."""
    _, exact, search_lacking = layer
    used = find_used(exact, EXACT_LAWS)
    assert {"associate", "stack_columns"} <= used & exact.fired and len(exact.fired - used) > 2
    spare = [law.name for law in EXACT_LAWS if law.name in exact.fired - used]
    asked = []

    def lacking(names):
        asked.append(names)
        return search_lacking(names)

    assert {each.time for _, each in leave_out(spare, exact.time, lacking)} == {exact.time} and asked == [spare]


# ---- what was proved


def test_the_bound_is_of_the_error_asked_for(ran):
    found, kept, _ = ran
    assert 0 < found.bound <= found.choices.choose(0.2).time * (1 + 1e-9) and kept["bound"]["seconds"] == found.bound
    inside = [point for point in found.points if point.structure.error <= 0.2**2]
    assert found.best in inside and all(found.bound <= point.predicted_s * (1 + 1e-9) for point in inside)
    assert kept["bound"]["gap"] == pytest.approx(1 - found.bound / found.best.predicted_s)


class Tightened(Front):
    """A program is twice as far off as its parts say."""

    def errors(self, program, most, structure):
        return program, 2 * program


def test_a_tightened_budget_has_another_bound():
    """The bound of what was asked for is that of the first search, whatever is found at last."""
    asked = []

    def choose(budget, memory, weights, prove):
        asked.append(budget)
        return SimpleNamespace(error=budget**2, bound=1 / budget, time=1 / budget, substitutions={}, uses=list)

    choices = SimpleNamespace(choose=choose, program=lambda structure, meta: structure.error**0.5)
    front = Tightened(choices, SimpleNamespace(peak_bytes=lambda batch: 0), (), None, {})
    assert front.within(0.2, None, OBJECTIVES[0], True).time > 5.0 and len(asked) > 1
    assert front.bound == pytest.approx(5.0) and not front.attempts.failed


def test_a_report_says_where_nothing_was_proved(ran):
    _, found, _ = ran
    said = results.tell_bounds(found | {"bound": {"seconds": None, "gap": None}})
    assert "none was proved" in said and "could be saved" in results.tell_bounds(found)
    beyond = results.tell_bounds(found | {"bound": {"seconds": 1.0, "gap": -0.1}})
    assert "could be saved" not in beyond and "add to more" in beyond


@pytest.mark.parametrize(
    "gap, words",
    [
        (0.0, "to be faster than `exact`"),
        (1.6e-7, "to be faster than `exact`"),
        (0.034, "to be faster than `exact` by more than 3.4 %"),
    ],
)
def test_what_is_proved_names_what_about(ran, gap, words):
    """In digits that say something, and never below nothing."""
    _, found, target = ran
    for bound in (gap, -1.6e-7):
        search = found["search"] | {"gap": gap, "cut": []}
        said = results.printed(found | {"search": search, "bound": {"seconds": 1.0, "gap": bound}}, target)
        assert f"no program equal to the model that these laws reach is predicted {words}\n" in said
        bounded = said[said.index("bound ") : said.index("prices ")]
        assert f"{'at most 3.4 %' if bound == 0.034 else 'nothing'} could be saved" in bounded and "e-" not in bounded


@pytest.mark.parametrize("cost, bound, gap", [(1.0, 1.0, 0), (1.0, 1.0 + 1e-9, 0), (1.0, 0.9, 0.1), (0.0, 0.0, 0)])
def test_a_gap_is_never_below_nothing(cost, bound, gap):
    """Sums of the same seconds differ by rounding."""
    made = replace(searched.found()[1]["exact"][0], cost=cost, bound=bound)
    assert made.gap == pytest.approx(gap, rel=1e-12, abs=0.0)


# ---- what is evaluated as terms


@pytest.fixture(scope="module")
def uncovered():
    """A program with a step that reads a term: no kernel has this pattern, and none keeps all numbers."""

    def program(operator):
        return searched.structure(operator).program({})[0]

    attending = searched.model() @ attention(*(np.eye(24) for _ in range(3)), 2, causal)
    return {
        "no": program(searched.model()),
        "composed": program(attending),
        "kind": program(searched.model() @ over(weight(np.ones((24, 1))), concat)),
    }


@pytest.mark.deep(every=6)
@pytest.mark.parametrize("clock", [True, False], ids=["measured", "predicted"])
@pytest.mark.parametrize("kind", ["no", "composed", "kind"])
def test_steps_that_read_terms_are_counted_and_told(uncovered, clock, kind, monkeypatch):
    program, batch = uncovered[kind], searched.RAGGED
    if not clock:
        monkeypatch.setattr(replay, "clock", lambda: 0)
    prices = Prices(standin.machine(), program.extents(batch))
    found = find_evaluated(program, batch, 2, prices)
    steps = [step for step in program.steps if step.kernel == "interpret"]
    if kind == "no":
        assert found is None and not steps and tell_evaluated(found) == ""
        return
    assert (found["steps"], found["of"], found["measured"]) == (len(steps), len(program.steps), clock)
    kinds = ["over(concat)", "weight"] if kind == "kind" else []
    assert 0 < found["share"] < 1 and found["kinds"] == kinds
    said = tell_evaluated(found)
    assert f"of {len(program.steps)}," in said and ("as measured" if clock else "as predicted") in said
    assert ("no kernel computes over(concat), weight" if kind == "kind" else "not so composed") in said
    assert GUIDE in said and (Path(__file__).parents[2] / GUIDE).exists()


def test_the_error_of_predictions_is_that_of_this_run():
    def point(name, predicted, measured):
        return SimpleNamespace(name=name, predicted_s=predicted, measured_s=measured)

    found = results.prediction(
        SimpleNamespace(
            imported=point("imported", 3.0, 4.0), fused=point("fused", 3.0, 2.0), points=[point("exact", 1.1, 1.0)]
        )
    )
    assert found == {"programs": 3, "median": 0.25, "worst": 0.5, "worst_program": "fused"}
