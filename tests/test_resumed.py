"""A run with other constants from the first step on that reads them: to the bit the run of the program that has them."""
import numpy as np
import pytest
import searched
from searched import KINDS, RAGGED, structure
from test_families import RAGGED as TOKENS
from test_families import model

from formats import FORMATS
from opmatrix.program import Program

CASES = {"bert": (lambda: searched.model(), RAGGED), "llama": (lambda: model("llama")[1], TOKENS),
         "mistral": (lambda: model("mistral")[1], TOKENS), "qwen3": (lambda: model("qwen3")[1], TOKENS)}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", ["imported", "exact"])
def test_what_is_resumed_is_a_run(rng, case, kind):
    made, batch = CASES[case]
    program, _ = structure(made(), *KINDS[kind], batch=batch).program({})
    first = {name: i for i, step in reversed([*enumerate(program.steps)]) for name in step.operands.values()}
    values, read = [], sorted((at, name) for name, at in first.items() if hasattr(program.constants.get(name), "unpack"))
    walk = program.schedule.walk(batch, values)
    assert len(read) > 5
    for at, name in read:
        old = program.constants[name]
        new = FORMATS["dense"].pack((old.unpack() + rng.normal(size=old.shape)).astype(np.float32))
        while len(values) < at: next(walk)
        changed = Program(program.steps, {**program.constants, name: new}, program.output)
        wanted = changed.run(batch)
        assert np.array_equal(changed.schedule.resumed(values, batch), wanted)
        assert not np.array_equal(wanted, program.run(batch))
