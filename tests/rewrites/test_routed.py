"""Whole programs where rows are routed: what they are compared with goes the same ways; a row that goes elsewhere is
one whose scores rounding does not tell apart, and is counted; any other is refused."""
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
from searched import relative, structure

from formats import FORMATS
from opmatrix.algebra.operators import heads as split
from opmatrix.algebra.operators import keep_top, share, tanh, total, weight
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.routes import noted
from opmatrix.algebra.term import Data, formula
from opmatrix.batch import Batch
from opmatrix.program import OUTPUT, Program, Step
from rewrites.evaluate.compared import compare
from rewrites.verify import VerificationError, unrounded, verify_approximate, verify_exact
from rewrites.verify.certificate import measure_rounding
from rewrites.verify.lengths import errors_at
from rewrites.verify.routed import Reference, explain_flips, is_routed, pair_routes, run_beside

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
    if near:                                                # the second and the third score of half of the tokens
        router = next(node.args[0].array for node in layers[0].walk() if node.kind.name == "weight"
                      and node.shape == (WIDTH, EXPERTS)).astype(float)
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
    return [step.operands["weight"] for step in program.steps
            if step.kernel == "linear" and program.constants[step.operands["weight"]].shape == (WIDTH, EXPERTS)]


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
    assert said["routing"] == {"rows": 0, "of": 2 * BATCH.rows, "listed": []}
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
    assert near["relative"] < 1e-6


def test_held_out_errors_are_of_the_routes_that_were_taken():
    operator, imported, program, _ = programs(2e-7)
    (base, off), [(change, _)], flips = compare([imported, program], {OUTPUT: operator}, BATCH, BATCH, [True, True])
    assert base[OUTPUT] < 1e-6 and off[OUTPUT] < 1e-6 and change.relative < 1e-6
    assert flips[0].rows and flips[1].rows and flips[1].of == 2 * BATCH.rows


@pytest.mark.parametrize("at", [0, 1])
def test_a_router_that_is_off_by_a_thousandth_is_refused(at):
    operator, imported, program, constants = programs(2e-7)
    wrong = off_by(imported, 1e-3, routers(imported)[at])
    with pytest.raises(VerificationError, match="a row goes elsewhere than its scores say") as caught:
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
    steps = [replace(step, attributes=step.attributes | {"k": 1}) if step.attributes.get("k") == 2 else
             Step(step.kernel, step.operands, {"term": step.attributes["term"].replace("[2]", "[1]")}, step.output)
             if "keep_top" in str(step.attributes.get("term")) else step for step in program.steps]
    wrong = Program(steps, program.constants, program.output, dict(program.meta))
    assert wrong.hash != program.hash
    with pytest.raises(VerificationError): verify_exact(wrong, operator, [BATCH], imported, constants)


def test_an_approximate_program_is_stated_along_its_own_routes():
    """What it stores may send rows elsewhere: they are counted, and the error is of what it computes there."""
    operator, _, program, _ = programs()
    narrow = {name: FORMATS["int8"].approximate(program.constants[name].unpack()) for name in routers(program)}
    small = with_constants(program, **narrow)
    found = run_beside(small, operator, [BATCH], exact=False)
    error = relative(found.found[0], found.wanted[0])
    assert found.flips.rows and 1e-5 < error < relative(small.run(BATCH), dense(operator, BATCH))
    said = verify_approximate(small, operator, [BATCH], 1.01 * error)
    assert said["routing"]["rows"] == found.flips.rows and said["float32"]["relative"] == pytest.approx(error)
    with pytest.raises(VerificationError, match="changes by more than was stated"):
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
