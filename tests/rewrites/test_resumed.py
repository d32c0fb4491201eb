"""A run with other constants from the first step on that reads them: to the bit the run of the program that has
them."""

from functools import partial

import numpy as np
import pytest
import searched
from searched import KINDS, RAGGED, structure
from test_families import RAGGED as TOKENS
from test_families import model

from formats import FORMATS
from opmatrix.runtime.program import Program
from rewrites.approximate import trials
from rewrites.approximate.sites import gathered_rows, sites, stored_for
from rewrites.lowering.lower import TURNED, Method
from rewrites.search.fit import Fitter

CASES = {
    "bert": (lambda: searched.model(), RAGGED),
    "llama": (lambda: model("llama")[1], TOKENS),
    "mistral": (lambda: model("mistral")[1], TOKENS),
    "qwen3": (lambda: model("qwen3")[1], TOKENS),
}


@pytest.mark.deep(every=8)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", ["imported", "exact"])
def test_what_is_resumed_is_a_run(rng, case, kind):
    made, batch = CASES[case]
    program, _ = structure(made(), *KINDS[kind], batch=batch).program({})
    first = {name: i for i, step in reversed([*enumerate(program.steps)]) for name in step.operands.values()}
    values, read = (
        [],
        sorted((at, name) for name, at in first.items() if hasattr(program.constants.get(name), "unpack")),
    )
    walk = program.schedule.walk(batch, values)
    assert len(read) > 5
    for at, name in read:
        old = program.constants[name]
        new = FORMATS["dense"].pack((old.unpack() + rng.normal(size=old.shape)).astype(np.float32))
        while len(values) < at:
            next(walk)
        changed = Program(program.steps, {**program.constants, name: new}, program.output)
        wanted = changed.run(batch)
        assert np.array_equal(changed.schedule.resumed(values, batch), wanted)
        assert not np.array_equal(wanted, program.run(batch))


@pytest.mark.deep(every=4)
@pytest.mark.parametrize("case", CASES)
def test_methods_that_are_tried_side_by_side_give_what_each_gives_alone(rng, monkeypatch, case):
    made, batch = CASES[case]
    found = structure(made(), *KINDS["exact"], batch=batch)
    program, emitter = found.program({})
    monkeypatch.setattr(trials, "TOGETHER", 2 * batch.rows)
    values, places = [], sorted(sites(program, found, emitter), key=lambda site: site.readers(program))
    assert len(places) > 5
    for site in places:
        for _ in program.schedule.walk(batch, values, site.readers(program)[0]):
            pass
        old = program.constants[site.constant].unpack()
        new = [FORMATS["dense"].pack((old + rng.normal(size=old.shape)).astype(np.float32)) for _ in range(3)]
        outputs = trials.try_weights(
            program, site, [partial(list.__getitem__, new, at) for at in range(3)], values, batch
        )
        for each, rows in zip(new, outputs, strict=True):
            wanted = Program(program.steps, {**program.constants, site.constant: each}, program.output).run(batch)
            np.testing.assert_allclose(rows, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.deep(every=12)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ["half", "bf16", "int8"])
def test_of_a_table_the_rows_that_are_chosen_are_stored_otherwise(case, name):
    """To the bit what storing all of it so gives, and no other rows are touched."""
    made, batch = CASES[case]
    found = structure(made(), *KINDS["exact"], batch=batch)
    program, emitter = found.program({})
    tables = [site for site in sites(program, found, emitter) if site.x is None]
    assert tables
    for site in tables:
        rows, numbers = gathered_rows(site, program, batch), site.numbers()
        some, whole = (stored_for(site, numbers, Fitter(), Method(name), *only) for only in ([rows], []))
        outputs = [
            Program(program.steps, {**program.constants, site.constant: each}, program.output).run(batch)
            for each in (some, whole, program.constants[site.constant])
        ]
        assert np.array_equal(*outputs[:2]) and not np.array_equal(*outputs[1:])
        kept = some.unpack().T if site.stored.layout == TURNED else some.unpack()
        left = np.setdiff1d(np.arange(len(numbers)), rows)
        assert np.array_equal(kept[left], numbers[left].astype(np.float32))


def test_fewer_sentences_serve_a_large_model(monkeypatch):
    made, batch = CASES["bert"]
    program, _ = structure(made(), *KINDS["exact"], batch=batch).program({})
    assert trials.sample(program, batch, 1) is batch
    monkeypatch.setattr(trials, "WORK", 1.0)
    monkeypatch.setattr(trials, "LEAST", 2)
    few = trials.sample(program, batch, 1)
    assert len(few) == 2 < len(batch) and np.array_equal(few.tokens, batch.tokens[: few.rows])
