"""Border forms: what is handed on and what is still to follow are the full value; a form is one function."""

from functools import reduce
from operator import matmul

import numpy as np
import pytest
from random_models import random_config, random_weights
from searched import Round, relative

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import patterns
from opmatrix.algebra.data import Data
from opmatrix.algebra.operators import (
    I,
    attention,
    const,
    gelu,
    given,
    heads,
    join,
    layernorm,
    product,
    relu,
    rmsnorm,
    shift,
    softmax,
    weight,
)
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.positions.patterns import causal, sequence
from opmatrix.algebra.term import formula, substitute
from opmatrix.models import build
from rewrites.egraph import borders as borders
from rewrites.egraph.borders import FORMS, FULL, form, gained, rms_normed, shifted, split_forms
from rewrites.egraph.layers import parts
from rewrites.laws import EXACT_LAWS
from rewrites.laws.flat import flat
from rewrites.laws.law import SAMPLE, drawn, n, value
from rewrites.search.search import search

WIDE, TOKENS = SAMPLE[n], given("tokens", 10)
BATCH = Batch([[3, 1, 4], [1], [5, 9]])
PENDING = [(form, full) for form in FORMS for full in form.pending]


def numbers(rng, *shape):
    return Data(rng.normal(size=shape))


def start(rng):
    return weight(numbers(rng, 10, WIDE)) @ gelu


def made(rng, function, **known):
    """What a declaration gives, of drawn operators where nothing else is known."""
    return function(
        **{name: known.get(name) or drawn(rng, sort, name) for name, sort in function.__annotations__.items()}
    )


@pytest.mark.parametrize("form, full", PENDING, ids=[f"{form.name}-{full.__name__}" for form, full in PENDING])
def test_a_value_taken_apart_and_put_together_is_itself(form, full):
    rng = np.random.default_rng(0)
    value = made(rng, form.body, x=start(rng), eps=const(0.25))
    whole = made(rng, full, y=value)
    term = flat(whole, TOKENS)
    [(name, handed, over)] = split_forms(term)
    [border] = (node for node in over.walk() if node.kind.name == "symbol")
    assert name == form.name and handed is flat(value, TOKENS)
    assert substitute(over, {border: handed}) is term
    assert relative(dense(term, np.zeros((BATCH.rows, 1)), BATCH), dense(whole, BATCH)) < 1e-12


@pytest.mark.parametrize(
    "term",
    [
        layernorm(0.25),
        rmsnorm(0.25),
        relu,
        I * const(np.arange(1.0, 7)),
        gelu + const(np.ones(6)),
        gelu @ (I * const(np.arange(1.0, 7))) + const(np.ones(6)),
    ],
    ids=str,
)
def test_what_is_of_no_form_is_handed_on_whole(term):
    """A norm without gain and shift is full already; a gain or a shift of what is no norm is not pending."""
    assert not [*split_forms(flat(start(np.random.default_rng(0)) @ term, TOKENS))]


@pytest.mark.parametrize("each", FORMS, ids=lambda form: form.name)
def test_a_shift_that_depends_on_the_position_is_not_pending(each):
    rng = np.random.default_rng(0)
    value = flat(each.body(start(rng), const(0.25)), TOKENS)
    assert [*split_forms(value + const(numbers(rng, WIDE)))]
    assert not [*split_forms(value + given("positions", 4) @ weight(numbers(rng, 4, WIDE)))]


# ---- models


def along(model, state):
    """The program that hands on this state between all layers, and how far it is from the model."""
    found = parts(model)
    first, *layers = [FULL] * 2 + [state] * (len(found) - 2)
    path = [*zip([first, *layers], [*layers, FULL], strict=True)]
    program, _ = search(model, EXACT_LAWS, Round(), BATCH.extents(patterns(model)), along=path).program({})
    return found, relative(program.run(BATCH), dense(model, BATCH))


def test_layers_that_end_in_an_rms_norm_hand_on_what_is_before_its_gain():
    rng = np.random.default_rng(3)
    config = random_config(rng) | dict(norm="rms", pre_norm=False, num_hidden_layers=3, mask="sequence", vocab_size=10)
    found, off = along(build(config, random_weights(config, rng)), rms_normed.name)
    assert [set(part) for part in found] == [{FULL}, {FULL}, *[{FULL, rms_normed.name}] * 2]
    assert off < 1e-5


def test_a_form_is_declared_in_one_place(monkeypatch):
    """A function more is a state more of every search, and programs along it are the model."""
    monkeypatch.setattr(borders, "FORMS", [*FORMS])

    @form(gained, shifted)
    def activated(x: value[n]):
        """What gelu gives, before a gain or a shift."""
        return x @ gelu

    rng = np.random.default_rng(4)
    mixing = weight(numbers(rng, WIDE, WIDE)) @ gelu + const(numbers(rng, WIDE))
    layer = attention(*(weight(numbers(rng, WIDE, WIDE)) for _ in range(3)), 2, sequence) @ mixing
    found, off = along(weight(numbers(rng, 10, WIDE)) @ layer @ layer @ layer, activated.name)
    assert [set(part) for part in found][2:] == [{FULL, activated.name}] * 2
    assert off < 1e-5


MIXED = formula(lambda v: product(product(v, v.T), v, over=softmax, where=causal))
BY_HEADS = {
    "mixed": lambda rng: MIXED,
    "weighted": lambda rng: weight(rng.normal(size=(3, 4, 4)) / 2),
    "late": lambda rng: shift(1) @ relu,
    "normed": lambda rng: rmsnorm(1e-5),
    "side by side": lambda rng: join(3) @ weight(rng.normal(size=(12, 12)) / 4) @ heads(3),
}


@pytest.mark.parametrize("seed", range(6))
def test_heads_are_handed_on_within_a_part(seed):
    """A border records columns alone: a value of several heads leaves a part side by side, if at all."""
    rng = np.random.default_rng(seed)
    drawn = [BY_HEADS[name](rng) for name in rng.choice([*BY_HEADS], 4)]
    model = reduce(matmul, [weight(rng.normal(size=(10, 12))) @ heads(3), *drawn, MIXED])
    found, _ = search(model, EXACT_LAWS, Round(), BATCH.extents(patterns(model))).program({})
    wanted = np.moveaxis(dense(model, BATCH), 0, 1).reshape(BATCH.rows, -1)
    assert relative(found.run(BATCH), wanted) < 1e-5
