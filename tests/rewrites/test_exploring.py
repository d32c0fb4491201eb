"""What an exploration shows is what `optimize` does; laws, lengths and machines that are changed change it; why is a
chain that holds in numbers."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest
import standin
from searched import model

import opmatrix as om
from formats.core.errors import InputError
from rewrites.explain.derivations.chain import derive_chain
from rewrites.explain.exploring.exploration import explore
from rewrites.laws import EXACT_LAWS
from rewrites.laws.law import RESTRUCTURE, any_relation, law, matrix, n, p, value

OPERATOR = model()


@pytest.fixture(scope="module")
def machine():
    return standin.machine()


@pytest.fixture(scope="module")
def found(machine):
    return explore(OPERATOR, 16, machine=machine)


@pytest.fixture(scope="module")
def idle(machine):
    """Two operators one after the other, of which a law of one's own leaves one."""
    numbers = np.random.default_rng(0).normal(size=(9, 6))
    twice = om.weight(numbers) @ om.tanh @ om.relu @ om.relu
    return explore(twice @ om.weight(numbers.T), 8, machine=machine)


def test_it_is_what_optimize_finds(optimized):
    """Classes, prices, laws and program of the exact search of a run."""
    result = optimized.result
    shown, exact = explore(str(optimized.model), result.workload, machine=result.machine), result.structures["exact"]
    assert (shown.seconds, shown.structure.nodes, shown.structure.classes) == (exact.time, exact.nodes, exact.classes)
    assert shown.structure.fired == exact.fired and shown.structure.path == exact.path
    assert [step.described() if hasattr(step, "described") else str(step) for step in shown.best.steps] == [
        step.described() if hasattr(step, "described") else str(step) for step in result.points[0].program.steps
    ]
    assert str(shown.derivation) == str(derive_chain(exact, EXACT_LAWS))


def test_what_is_chosen_adds_up(found):
    """Kernels of all parts, with their products, and the start of a run are the price."""
    kernels = found.compare(found).kernels[0]
    start = found.searched[0].prices.start
    assert sum(each.seconds for each in kernels.values()) + start == pytest.approx(found.seconds)
    part = sum(each.seconds for each in found.classes if each.seconds is not None)
    assert part == pytest.approx(found.structure.extractions[found.looked_at].time)


def test_members_of_a_class(found):
    """The one that was chosen is marked; no kernel of one class is there twice as chosen, and all have prices."""
    for each in found.classes:
        members = found.members(each)
        kernels = [member for member in members if member.kernel]
        assert len(kernels) == each.kernels and all(member.seconds is not None for member in kernels)
        assert sum(member.chosen for member in kernels) == bool(each.chosen)
    assert f"c{found.view.result}" in str(found.members()) and found.members("c0")[0].cls == 0


@pytest.mark.deep
def test_a_law_that_is_left_out(found):
    """The program without it costs no less, and the change says what it did."""
    less = found.without("associate")
    change = found.compare(less)
    assert change.seconds == less.seconds - found.seconds > 0 and not change.equal
    assert "fires in this one alone: associate" in str(change) and "associate" not in less.fired
    assert found.compare(found.only(*(law.name for law in EXACT_LAWS))).equal


def test_nothing_but_the_import(found):
    """Steps lead from no law to what all laws reach."""
    now = found.imported
    assert not now.fired and now.seconds >= found.seconds
    for _ in range(7):
        now = now.step()
    assert now.seconds == pytest.approx(found.seconds) and now.fired == found.fired
    with pytest.raises(InputError, match="all phases have run: begin at"):
        now.step()


def test_one_law_alone(found):
    alone = found.imported.step("spread")
    assert [*alone.fired] == ["spread"] and "by spread" in alone.name


def test_why_holds_in_numbers(found):
    """The chain from the import to the program ends at the program, and each step is equal in float64."""
    why = found.why()
    assert why.equal and why.steps and why.check() < 1e-9 and why.derivation.end is found.view.program
    assert "spread" in str(why) and "<details>" in why._repr_html_()


def test_why_not(found):
    """Two classes are joined by no law; a law that does not fire lacks what its guard asks for."""
    other = next(each for each in found.classes if each.number != found.view.result)
    assert not found.why(found.view.result, other).equal and "no law joins them" in str(found.why(None, other))
    assert "it fires" in found.about("associate")
    quiet = next(law.name for law in EXACT_LAWS if law.name not in found.fired)
    assert "it does not fire" in found.about(quiet)


def test_an_operator_of_ones_own(idle):
    """A law says why it does not fire; one that is added pays."""
    assert "is not storable" in idle.about("associate")

    @law(source="max(max(u, 0), 0) = max(u, 0)", phase=RESTRUCTURE)
    def relu_twice(x: value[n]):
        return x @ om.relu @ om.relu, x @ om.relu

    more = idle.with_laws(relu_twice)
    assert more.fired["relu_twice"] and idle.compare(more).seconds < 0
    assert "relu_twice" in more.why().steps


def test_a_wrong_law_of_ones_own(idle):
    @law(source="wrong")
    def twice(x: value[n]):
        return x @ om.tanh, x @ om.tanh @ om.tanh

    with pytest.raises(InputError, match="law twice: it is wrong: with"):
        idle.with_laws(twice)


def test_lengths_and_machines(idle, machine):
    longer = idle.over("8x16")
    assert longer.seconds > idle.seconds and longer.opened.parts is idle.opened.parts
    sheet = explore(idle.opened.model, 8, machine="A100")
    assert sheet.seconds == idle.cost("A100").seconds and "data sheet; nothing was run" in str(sheet)
    assert idle.on(machine).seconds == idle.seconds


def test_a_picture(found):
    """An SVG that any viewer reads, with a box for each class of the program, and no address but its own kind."""
    drawn = found.draw()
    root = ElementTree.fromstring(drawn.svg)
    boxes = [each for each in root if each.tag.endswith("}g")]
    assert len(boxes) == sum(bool(each.chosen) for each in found.classes)
    assert set(re.findall(r"https?://[^\"' ]+", drawn._repr_html_())) <= {"http://www.w3.org/2000/svg"}
    assert "left out" not in drawn.said and drawn._repr_html_().count("<details>") == len(boxes)


def test_a_picture_that_is_cut(found, tmp_path):
    """The dearest are drawn; what is left out, and how to see it, is said. A class can be opened."""
    drawn = found.draw(most=3)
    count = sum(bool(each.chosen) for each in found.classes)
    assert f"left out: {count - 3} classes that take" in drawn.said and f"draw(most={count})" in drawn.said
    assert len(found.draw(found.view.result, most=3).svg) > len(drawn.svg)
    assert drawn.save(tmp_path / "graph.svg").read_text() == drawn.svg
    with pytest.raises(InputError, match="give a name in"):
        drawn.save(tmp_path / "graph.png")


@pytest.mark.parametrize(
    "ask, said",
    [
        (lambda e: e.without("asociate"), "law 'asociate': .*did you mean associate?"),
        (lambda e: e.only(), "name a law"),
        (lambda e: e.step("nothing"), "no such phase or law"),
        (lambda e: e.about("joined"), "law 'joined'"),
        (lambda e: e.members("c99999"), "class 'c99999': this part has none"),
        (lambda e: e.at(99), "part 99: the model has parts 0 to"),
        (lambda e: e.over("8 by 128"), "batch '8 by 128'"),
        (lambda e: e.over("1x99999999999"), "batch 1x99999999999: explore takes at most 1,000,000 tokens"),
        (lambda e: e.over("9" * 5000), "at most 1,000,000 tokens"),
        (lambda e: e.over("99999x99999"), "at most 1,000,000"),
        (lambda e: e.over(10**12), "batch of too many tokens"),
        (lambda e: e.over([600_000, 600_000]), "of 2 sentences"),
        (lambda e: explore(OPERATOR, "1x99999999999"), "at most 1,000,000"),
        (lambda e: e.over([3, 0]), "lengths are whole numbers from 1 on"),
        (lambda e: e.on("A1000"), "machine 'A1000'"),
        (lambda e: e.with_laws("laws.txt"), "does not end in .py"),
        (lambda e: e.with_laws(EXACT_LAWS[0]), "of that name"),
        (lambda e: e.draw(most=0), "at least 1"),
        (lambda e: explore(OPERATOR, 0), "0 tokens"),
    ],
)
def test_bad_input(found, ask, said):
    with pytest.raises(InputError, match=said):
        ask(found)


def test_without_a_calibration(idle, monkeypatch, tmp_path):
    """Prices are a data sheet's, and that is said."""
    monkeypatch.setattr("rewrites.explain.exploring.openings.machine_file", lambda: tmp_path / "none.json")
    assert "not calibrated: prices are lower bounds of A100's data sheet" in str(explore(idle.opened.model, 4))


def test_a_law_of_ones_own_over_a_relation():
    """It is tried over relations of many entries a row, so one that holds of a single entry alone is refused; of parts
    that are there once, the dearest is looked at."""
    links, rng = om.relation("links", "V", "V"), np.random.default_rng(0)
    own, near = (om.weight(rng.normal(size=(64, 3))) for _ in range(2))
    layer = om.formula(lambda x: x @ own + om.product(om.given(links), x, over="mean") @ near)
    batch = om.Batch(relations={"links": rng.random((40, 40)) < 0.2}, inputs={"x": rng.normal(size=(40, 64))})
    known = explore(om.given("x", 64, "V") @ layer, batch, machine="A100")
    graph = known.without("narrow_first")
    assert graph.looked_at == 1 and len(graph.classes) > 3

    @law(source="(E x) W = E (x W)")
    def mine(x: value[n], W: matrix[n, p], r: any_relation):
        return om.product(om.given(r), x, over="mean") @ W, om.product(om.given(r), x @ W, over="mean")

    more = graph.with_laws(mine)
    assert more.why().steps == ("mine",) and graph.compare(more).seconds < 0 == known.compare(more).seconds
    np.testing.assert_allclose(more.best.run(batch), om.dense(om.given("x", 64, "V") @ layer, batch), atol=1e-4)

    @law(source="wrong")
    def widest_first(x: value[n], W: matrix[n, p], r: any_relation):
        return om.product(om.given(r), x, over="max") @ W, om.product(om.given(r), x @ W, over="max")

    with pytest.raises(InputError, match="law widest_first: it is wrong: with"):
        graph.with_laws(widest_first)
