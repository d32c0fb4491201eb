"""Whole programs where rows are routed: what they are compared with goes the same ways; a row that goes elsewhere is
one whose scores rounding does not tell apart, and is counted; any other is refused."""

from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
from searched import relative, structure

from formats import FORMATS
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.operators import heads as split
from opmatrix.algebra.operators import keep_top, share, tanh, total, weight
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.routes import noted, noting
from opmatrix.algebra.term import Data, formula
from opmatrix.runtime.program import OUTPUT, Program, Step
from rewrites.metrics.compared import compare, redraw
from rewrites.verify import VerificationError, unrounded, verify_approximate, verify_exact
from rewrites.verify.certificate import measure_rounding
from rewrites.verify.differences import Change
from rewrites.verify.lengths import errors_at
from rewrites.verify.routed import (
    Moved,
    Reference,
    ScoreMove,
    explain_flips,
    is_routed,
    pair_routes,
    run_beside,
    score_moves,
)
from rewrites.workload.stated import RoutedChange, Stated

EXPERTS, WIDTH, TOKENS = 8, 16, 600
BATCH = Batch([*np.random.default_rng(3).permutation(TOKENS)[:480].reshape(12, 40)])


def layer(rng, number):
    def some(name, *shape):
        return weight(Data((rng.normal(size=shape) / shape[-2] ** 0.5).astype(np.float32), f"{name}{number}"))

    router, up, down = some("router", WIDTH, EXPERTS), some("up", EXPERTS, WIDTH, 8), some("down", EXPERTS, 8, WIDTH)

    def of(x):
        p = x @ router @ share
        return x + ((x @ up @ tanh) @ down * (keep_top(p, p, 2) @ split(EXPERTS))) @ total

    return formula(of)


@cache
def model(near=0.0):
    """Two layers of experts behind a table; where `near`, rows of the table whose scores are so near to a tie."""
    rng = np.random.default_rng(0)
    table = rng.normal(size=(TOKENS, WIDTH)).astype(np.float32)
    layers = [layer(rng, number) for number in range(2)]
    if near:  # the second and the third score of half of the tokens
        router = next(
            node.args[0].array
            for node in layers[0].walk()
            if node.kind.name == "weight" and node.shape == (WIDTH, EXPERTS)
        ).astype(float)
        for row in table[::2]:
            order = np.argsort(-(row @ router))
            apart = router[:, order[1]] - router[:, order[2]]
            row -= (row @ apart - near * rng.uniform(-1, 1)) * apart / (apart @ apart)
    return weight(Data(table, "table")) @ layers[0] @ layers[1]


@cache
def programs(near=0.0):
    """The model; its imported and its exact program, and where the constants of that one come from."""
    operator = model(near)
    imported, _ = structure(operator, (), False, BATCH).program({"model": "imported"})
    found = structure(operator, batch=BATCH)
    program, emitter = found.program({"model": "routed"})
    return operator, imported, program, unrounded(found, emitter)


def with_constants(program, **new):
    constants = {name: new.get(name, each) for name, each in program.constants.items()}
    return Program(program.steps, constants, program.output, dict(program.meta))


def routers(program):
    """The constants that scores are computed by."""
    return [
        step.operands["weight"]
        for step in program.steps
        if step.kernel == "linear" and program.constants[step.operands["weight"]].shape == (WIDTH, EXPERTS)
    ]


def off_by(program, amount, name):
    """A program whose router is off by so much."""
    numbers = program.constants[name].unpack()
    moved = numbers + amount * np.random.default_rng(5).normal(size=numbers.shape)
    return with_constants(program, **{name: FORMATS["packed"].pack(moved.astype(np.float32))})


def test_a_noted_run_is_the_run():
    """To the bit, and what it takes is what its scores say."""
    _, imported, program, _ = programs()
    for each in (imported, program):
        rows, taken = noted(partial(each.run, BATCH))
        np.testing.assert_array_equal(rows, each.run(BATCH))
        assert len(taken) == 2 and all(route.taken.shape == (1, BATCH.rows, EXPERTS) for route in taken)
        assert all((route.taken.sum(-1) == 2).all() and not route.gaps().any() for route in taken)


def test_a_run_goes_the_ways_that_are_given():
    _, imported, program, _ = programs()
    _, taken = noted(partial(imported.run, BATCH))
    given = {at: np.roll(route.taken, 1, -1) for at, route in enumerate(taken)}
    rows, forced = noted(partial(program.run, BATCH), given)
    wanted, _ = noted(partial(dense, model(), BATCH), given)
    assert all(np.array_equal(route.taken, given[at]) for at, route in enumerate(forced))
    assert relative(rows, wanted) < 1e-6 < 1e-2 < relative(program.run(BATCH), wanted)


def test_an_exact_program_passes_and_says_how_many_rows_were_routed():
    operator, imported, program, constants = programs()
    said = verify_exact(program, operator, [BATCH], imported, constants)
    along = said["float32"]["relative"]
    assert said["routing"] == {"rows": 0, "of": 2 * BATCH.rows, "listed": [], "along": along}
    assert said["float32"]["relative"] < 1e-6 and is_routed([operator]) and not is_routed([weight(np.eye(3))])


def test_rows_within_rounding_of_a_tie_are_counted():
    """In float32 some of them go elsewhere than in float64: beside its own routes the model is far, beside those that
    were taken as near as ever."""
    operator, imported, program, constants = programs(2e-7)
    found = run_beside(program, operator, [BATCH], exact=True)
    assert 0 < found.flips.rows < BATCH.rows and found.flips.listed
    assert all(0 < flip.gap <= flip.allowed < 1e-4 for flip in found.flips.listed)
    assert relative(found.found[0], found.wanted[0]) < 1e-6 < 1e-3 < relative(found.found[0], dense(operator, BATCH))
    said = verify_exact(program, operator, [BATCH], imported, constants)
    assert said["routing"]["rows"] == found.flips.rows and said["float32"]["relative"] < 1e-6
    assert measure_rounding(program, [BATCH]) < 1e-6
    [[near]] = errors_at([(program, True)], operator, [BATCH], [dense(operator, BATCH)])
    assert near["along"] < 1e-6 < 1e-3 < near["relative"], "as a user sees it, and as it rounds"


def test_held_out_errors_are_as_both_run_and_rounding_is_of_the_routes_that_were_taken():
    operator, imported, program, _ = programs(2e-7)
    (base, off), [(change, _, along)] = compare([imported, program], {OUTPUT: operator}, BATCH, BATCH, [True, True])
    assert base.along[OUTPUT] < 1e-6 and off.along[OUTPUT] < 1e-6 and along.relative < 1e-6
    assert base.flips.rows and off.flips.rows and off.flips.of == 2 * BATCH.rows
    wanted, rows = dense(operator, BATCH), program.run(BATCH)
    assert off.free[OUTPUT] == pytest.approx(relative(rows, wanted)) and off.free[OUTPUT] > 1e-3
    assert change.relative == pytest.approx(relative(rows, imported.run(BATCH)), rel=1e-6)


@pytest.mark.parametrize("at", [0, 1])
def test_a_router_that_is_off_by_a_thousandth_is_refused(at):
    operator, imported, program, constants = programs(2e-7)
    wrong = off_by(imported, 1e-3, routers(imported)[at])
    with pytest.raises(VerificationError, match="a row is routed elsewhere than its scores select") as caught:
        run_beside(wrong, operator, [BATCH], exact=True)
    values = caught.value.values
    assert values["router"] == at and values["gap"] > values["allowed"] and 0 <= values["row"] < BATCH.rows
    last = off_by(program, 1e-3, routers(program)[-1])
    with pytest.raises(VerificationError, match="elsewhere"):
        verify_exact(last, operator, [BATCH], imported, constants)
    with pytest.raises(VerificationError, match="elsewhere"):
        compare([imported, wrong], {OUTPUT: operator}, BATCH, BATCH, [True, True])


def test_a_router_of_fewer_experts_is_refused():
    """A structure that is not the model's, read in float64."""
    operator, imported, program, constants = programs()
    steps = [
        replace(step, attributes=step.attributes | {"k": 1})
        if step.attributes.get("k") == 2
        else Step(step.kernel, step.operands, {"term": step.attributes["term"].replace("[2]", "[1]")}, step.output)
        if "keep_top" in str(step.attributes.get("term"))
        else step
        for step in program.steps
    ]
    wrong = Program(steps, program.constants, program.output, dict(program.meta))
    assert wrong.hash != program.hash
    with pytest.raises(VerificationError):
        verify_exact(wrong, operator, [BATCH], imported, constants)


def test_an_approximate_program_is_stated_with_the_rows_that_it_sends_elsewhere():
    """As a user compares it with the model; beside it the error along its own routes, and how many rows those are."""
    operator, _, program, _ = programs()
    narrow = {name: FORMATS["int8"].approximate(program.constants[name].unpack()) for name in routers(program)}
    small = with_constants(program, **narrow)
    found = run_beside(small, operator, [BATCH], exact=False)
    error, along = relative(found.found[0], found.alone[0]), relative(found.found[0], found.wanted[0])
    assert error == pytest.approx(relative(small.run(BATCH), dense(operator, BATCH)))
    assert found.flips.rows and 1e-5 < along < error
    said = verify_approximate(small, operator, [BATCH], 1.01 * error)
    assert said["routing"]["rows"] == found.flips.rows and said["float32"]["relative"] == pytest.approx(error)
    assert said["routing"]["along"] == pytest.approx(along)
    with pytest.raises(VerificationError, match="its error is above the stated one"):
        verify_approximate(small, operator, [BATCH], 0.99 * error)


def test_routers_in_another_order_are_told_by_what_they_take():
    _, routes = noted(partial(dense, model(), BATCH))
    found = pair_routes(routes, routes[::-1])
    assert all(np.array_equal(found[at], route.taken) for at, route in enumerate(routes))
    assert pair_routes(routes, routes[:1]).keys() == {0} and pair_routes([], routes) == {}


def test_what_is_not_routed_is_read_once():
    """The model's rows are those that are at hand."""
    plain = weight(Data(np.random.default_rng(0).normal(size=(TOKENS, 4)), "table"))
    program, _ = structure(plain, (), False, BATCH).program({})
    mine = [np.zeros((BATCH.rows, 4))]
    assert run_beside(program, plain, [BATCH], mine, exact=True).wanted[0] is mine[0]


def test_a_row_is_named():
    """With its gap, where another reading sends it to a far one."""
    operator = model()
    _, routes = noted(partial(dense, operator, BATCH))
    taken = [route._replace(taken=route.taken.copy()) for route in routes]
    taken[1].taken[0, 17] = np.roll(taken[1].taken[0, 17], 3)
    _, forced, flips = Reference(partial(dense, operator, BATCH)).beside(taken)
    assert flips.rows == 1
    with pytest.raises(VerificationError, match=r"row 17, router 1, gap .*allowed .*rows 1"):
        explain_flips("a reading", operator, BATCH, forced, flips)


# ---- errors of texts that nobody has seen


def narrowed(program, form="bf16"):
    """A program with its experts' and routers' matrices in a narrow format."""
    return with_constants(
        program, **{name: FORMATS[form].approximate(program.constants[name].unpack()) for name in routers(program)}
    )


def drawn_texts(seed, count):
    rng = np.random.default_rng(seed)
    return Batch([rng.integers(0, TOKENS, n) for n in np.exp(rng.uniform(0, np.log(61), count)).astype(int)])


def test_moved_scores_send_as_many_rows_elsewhere_as_the_program_does():
    """Other rows each time: twenty draws of a few texts are as twenty times as many texts."""
    _, imported, program, constants = programs()
    small, some, many = narrowed(program), drawn_texts(1, 40), drawn_texts(2, 600)
    sizes = score_moves(small, constants, some)
    assert len(sizes) == 2 and all(each.size > 0 and each.times >= 1 for each in sizes)

    def share(one, other):
        parted = [a.parted(b) for a, b in zip(one, other, strict=True)]
        return sum(each.sum() for each in parted) / sum(map(len, parted))

    known, found = (noted(partial(each.run, many))[1] for each in (imported, small))
    true = share(
        [found[at] for at in range(2)],
        [found[at]._replace(taken=taken) for at, taken in sorted(pair_routes(found, known).items())],
    )
    own, draws = noted(partial(small.run, some))[1], []
    for seed in range(20):
        with noting(Moved(sizes, np.random.default_rng(seed))) as moved:
            small.run(some)
        draws.append(share(own, moved.found))
    assert true / 2 < np.mean(draws) < 2 * true


def test_a_row_that_is_sent_elsewhere_counts_in_what_runs():
    """To the output, and not to what is noted alone."""
    _, _, program, _ = programs()
    with noting(Moved([ScoreMove(10.0, 1.0)] * 2, np.random.default_rng(0))):
        moved = program.run(BATCH)
    elsewhere = relative(moved, program.run(BATCH))
    assert elsewhere > 1e-2 and Moved([], np.random.default_rng(0)).steers


@pytest.mark.parametrize("seed", range(3))
def test_a_statement_of_few_texts_holds_for_texts_that_nobody_has_seen(seed):
    """Rows that go elsewhere are too rare for forty texts to show all that they do; along routes none would show."""
    _, imported, program, constants = programs()
    small, some, fresh = narrowed(program), drawn_texts(10 + seed, 40), drawn_texts(20 + seed, 300)
    change = Change.of(small.run(some), imported.run(some), some.starts)
    (rows, taken), first = noted(partial(small.run, some)), Reference(partial(imported.run, some))
    along = Change.of(rows, first.beside(taken)[0], some.starts)
    again = redraw(imported, {small: constants}, some)[small]
    stated = Stated.of(change, np.zeros(0), routed=RoutedChange(along, again))
    found = Change.of(small.run(fresh), imported.run(fresh), fresh.starts)
    assert found.relative <= stated.error and np.mean(found.each > stated.sentence) <= 0.01
    forced = Stated.of(along, np.zeros(0))
    assert found.relative > forced.error or np.mean(found.each > forced.sentence) > 0.01


def test_a_smooth_part_is_judged_by_its_tail_and_a_rare_one_by_what_is_drawn():
    """One text of forty is far off, as a row of it goes elsewhere: its tail alone would say nothing or all."""
    rng = np.random.default_rng(0)
    size, smooth = np.ones(40), np.square(0.01 * np.exp(0.2 * rng.standard_normal(40)))
    seen = smooth.copy()
    seen[3] = 0.09
    again = np.tile(smooth, 12)
    again[rng.integers(0, 480, 5)] = 0.16
    routed = RoutedChange(Change(smooth, size), Change(again, np.ones(480)))
    assert routed.worst(Change(seen, size)) == pytest.approx(0.4)
    assert (
        routed.worst(Change(seen[:9], size[:9])) == pytest.approx(0.4)
        and RoutedChange(Change(smooth[:9], size[:9]), Change(again, np.ones(480))).worst(Change(seen, size)) is None
    )
