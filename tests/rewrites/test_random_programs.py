"""Hypothesis over random well-typed programs: whatever the laws, the extraction and the kernels make of one is it
still. OPMATRIX_EXAMPLES sets how many are tried; each run of thousands starts from a seed of its own."""

import os

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import given as forall
from random_programs import LIMIT, OTHERS, PLAIN, Choices, Grower, check, programs, ragged, size

from opmatrix.algebra.monoids import MONOIDS
from opmatrix.algebra.nodes import LASTING
from opmatrix.algebra.term import formula

EXAMPLES = int(os.environ.get("OPMATRIX_EXAMPLES", 0))
many = settings(
    max_examples=EXAMPLES or 12,
    derandomize=not EXAMPLES,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
# what rewriting alone makes
MADE = {"adjoint", "by_head", "left", "right", "behind", "joined", "blank", "below", "unit", "first_rows", "last_rows"}
UNKNOWN = {"symbol", "log"}  # has no numbers; has none below 0


@many
@forall(programs())
def test_every_form_of_a_program_is_it(example):
    check(example)


def grown(step, seed):
    """A program that ends with this step."""

    def made(x):
        grower = Grower(Choices(seed), np.random.default_rng(seed), x, step in PLAIN)
        grower.pool.append(grower.linear(grower.pool[0]))
        return getattr(grower, step)(grower.pool[-1])

    return formula(made)


STEPS = (*dict.fromkeys(PLAIN), *OTHERS)


@pytest.mark.deep
def test_every_kind_and_monoid_is_drawn():
    """A new one is missing here until the strategy knows it: entrywise kinds and monoids are drawn by themselves."""
    nodes = [node for step in STEPS for seed in range(80) for node in grown(step, seed).walk()]
    assert {*LASTING} - MADE - UNKNOWN - {node.kind.name for node in nodes} == set()
    drawn = {a.__name__ for node in nodes for a in node.attributes if isinstance(a, type)}
    assert {each.__name__ for each in MONOIDS} - drawn == set()


@pytest.mark.deep(every=19)
@pytest.mark.parametrize("step", STEPS)
def test_a_step_alone(step):
    rng = np.random.default_rng(0)
    assert check((grown(step, 0), ragged(rng, (3, 1, 2)), rng)) is not None


@settings(max_examples=50, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@forall(programs())
def test_programs_are_as_large_as_said(example):
    model, batch, _ = example
    assert size(model) <= LIMIT and batch.rows and model.out.cols <= 12
