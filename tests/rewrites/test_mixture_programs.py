"""Mixtures of experts as a search finds them: one kernel, the experts that rows name, what it is priced at."""

import numpy as np
import pytest
import sympy

from formats.core.sizes import T
from opmatrix import Batch, dense, formula, weight
from opmatrix.algebra.batch.extents import Extents, S
from opmatrix.algebra.operators import heads, keep_top, ones, reciprocal, share, silu, total
from opmatrix.runtime.declarations.costs import count_touched, times_experts
from opmatrix.runtime.pricing import datasheet
from rewrites.laws import EXACT_LAWS
from rewrites.search.search import search
from rewrites.verify import verify_steps

WORDS, N, F, E, K = 50, 24, 40, 6, 2
BATCH = Batch([range(1, 30), [6, 7], [8]])


def best_two(x):
    p = x @ share
    kept = keep_top(p, p, K)
    return kept * (kept @ ones @ reciprocal)


def best_of_groups(x):
    p = x @ share @ heads(3)
    return keep_top(p, p, 1) @ heads(3).T


def scaled(x):
    return best_two(x) * (x @ share)


def mixture(gate):
    """A table, then a layer of experts with a residual."""
    rng = np.random.default_rng(0)

    def drawn(*shape):
        return weight(rng.normal(size=shape) / 4)

    table, router, up, beside, down = drawn(WORDS, N), drawn(N, E), drawn(E, N, F), drawn(E, N, F), drawn(E, F, N)
    layer = formula(lambda x: x + (((x @ up @ silu) * (x @ beside)) @ down * (gate(x @ router) @ heads(E))) @ total)
    return table @ layer


@pytest.mark.parametrize("gate, most", [(best_two, 2), (best_of_groups, 3), (scaled, 2), (lambda x: x @ share, E)])
def test_a_mixture_is_one_kernel_of_the_experts_that_are_kept(gate, most):
    model = mixture(gate)
    program, _ = search(model, EXACT_LAWS, datasheet("A100"), BATCH.extents()).program({})
    [step] = [step for step in program.steps if step.kernel == "experts"]
    assert step.attributes["most"] == most and "residual" in step.operands
    verify_steps(program, [BATCH])
    found, wanted = program.run(BATCH), dense(model, BATCH)
    assert abs(found - wanted).max() < 1e-5 * abs(wanted).max()


def test_a_router_is_one_step():
    program, _ = search(mixture(best_two), EXACT_LAWS, datasheet("A100"), BATCH.extents()).program({})
    [step] = [step for step in program.steps if step.kernel == "gate"]
    assert step.attributes == {"k": K, "shares": 1, "unit": 1}


def test_the_imported_program_has_the_kernel_too():
    program, _ = search(mixture(best_two), (), datasheet("A100"), BATCH.extents(), fusion=False).program({})
    assert [step.attributes["most"] for step in program.steps if step.kernel == "experts"] == [K]


def test_experts_that_are_touched():
    """As many as are named of one row; of many rows all; a mean that drawing them comes near."""
    assert count_touched(8, 2, 1) == 2 and count_touched(8, 8, 5) == 8 and count_touched(64, 8, 1) == 8
    assert abs(count_touched(8, 2, 512) - 8) < 1e-9
    rng = np.random.default_rng(0)
    drawn = [len({*np.concatenate([rng.permutation(64)[:8] for _ in range(16)])}) for _ in range(200)]
    assert abs(np.mean(drawn) / count_touched(64, 8, 16) - 1) < 0.02


def test_a_price_is_a_formula():
    program, _ = search(mixture(best_two), EXACT_LAWS, datasheet("A100"), BATCH.extents()).program({})
    rows = sympy.Symbol("rows", positive=True)
    symbolic, plain = program.cost(Extents({T: rows, S: 1})), program.cost(Extents({T: 32, S: 1}))
    assert [name for name, _ in symbolic] == [name for name, _ in plain]
    for (_, formula_of), (_, number) in zip(symbolic, plain, strict=True):
        for size, value in number.items():
            assert abs(float(sympy.sympify(formula_of[size]).subs(rows, 32)) - value) < 1e-9 * abs(value)


def test_bytes_of_the_touched_come_from_where_all_of_them_fit():
    """On a data sheet: one matrix fits the second cache, those that 512 rows touch do not."""
    sheet, sizes = datasheet("A100"), {"n": 2048, "p": 1024}
    [(name, one)], [(_, many)] = (times_experts("dense", sizes, 64, 1, rows) for rows in (1, 2048))
    assert name == "linear.dense" and round(many["times"]) == 64 and one["times"] == 1
    rates = [
        each["times"] * (each["T"] * 3072 + 2048 * 1024) / sheet.roofline(name, **each)["memory"]
        for each in (one, many)
    ]  # numbers a second
    assert rates[0] > 2 * rates[1]
