"""Extents: what a batch gives, what is priced with them, and what is refused."""

from math import ceil

import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from random_models import random_config, random_weights
from searched import RAGGED, Round, model, structure

from formats.kernels.attentions import attending
from opmatrix.algebra import shapes
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import WHOLE, Extents, Missing, T, counted, pairs, patterns
from opmatrix.algebra.operators import I, product, turn
from opmatrix.algebra.positions.patterns import causal, parse, sequence, window
from opmatrix.models.transformer import transformer
from opmatrix.runtime.pricing import catalogue
from rewrites.lowering.price import Prices

LENGTHS = st.lists(st.integers(1, 400), min_size=1, max_size=6)
WITHIN = st.builds(
    lambda parts: sequence & parts[0] & parts[1] if parts else sequence,
    st.one_of(st.just(()), st.tuples(st.sampled_from([causal, sequence]), st.builds(window, st.integers(0, 500)))),
)


def by_units(pattern, length):
    """The scores that attention computes, found by looking at every one: for each unit of queries, as the kernel cuts
    them, all keys between the first and the last that somebody sees."""
    [batch] = [Batch([np.zeros(length, int)])]
    units = ceil(length / attending.QUERIES)
    side = 16 * ceil(ceil(length / units) / 16)
    seen = pattern.sees(batch.token(np.arange(length)[:, None]), batch.token(np.arange(length)[None]))
    found = 0
    for low in range(0, length, side):
        keys = np.flatnonzero(np.broadcast_to(seen, (length, length))[low : low + side].any(0))
        if len(keys):
            found += min(side, length - low) * int(keys[-1] + 1 - keys[0])
    return found


@settings(max_examples=60, deadline=None)
@given(LENGTHS, WITHIN)
def test_scores_are_counted_as_attention_computes_them(lengths, pattern):
    extents = Batch([np.zeros(length, int) for length in lengths]).extents([pattern])
    assert extents[T] == sum(lengths) and extents[WHOLE] == sum(length**2 for length in lengths)
    assert extents[pairs[pattern]] == sum(by_units(pattern, length) for length in lengths)
    assert extents == counted(lengths, [pattern]) and hash(extents) == hash(counted(lengths[::-1], [pattern]))


def test_a_narrow_pattern_of_a_long_sentence_is_counted_without_its_scores():
    """Closed form: a million tokens, of which everybody sees 129."""
    extents = counted([10**6], [sequence & window(64)])
    assert 1 < extents[pairs["sequence & window(64)"]] / (10**6 * 129) < 1.4


def test_entries_are_known_by_name():
    extents = Extents({shapes.T: 5, "S": 2, pairs["sequence & causal"]: 25})
    assert extents["T"] == extents[T] == extents[shapes.T] == 5 and extents["S"] == 2
    assert extents[pairs[sequence & causal]] == 25 and pairs[sequence] not in extents and len(extents) == 3
    assert extents == Extents({T: np.int64(5), "S": sympy.Integer(2), pairs[sequence & causal]: 25})
    assert repr(extents) == "Extents({T: 5, S: 2, pairs[sequence & causal]: 25})"


@pytest.mark.parametrize(
    "key, value, error, words",
    [
        (T, -1, ValueError, "T is -1: it must be a whole number"),
        (T, 2.5, ValueError, r"T is 2\.5: it must be"),
        (WHOLE, sympy.Rational(1, 2), ValueError, r"pairs\[sequence\] is 1/2: it must be"),
        (T, "4", TypeError, "T is '4': it must be"),
        (T, True, TypeError, "T is True"),
        (T, None, TypeError, "T is None"),
        (T, -shapes.T, ValueError, "T is -T"),
        (T + 1, 3, TypeError, r"T \+ 1 is not an entry: give a live size"),
        (7, 3, TypeError, "7 is not an entry"),
        ("a b", 3, TypeError, "'a b' is not an entry"),
    ],
)
def test_what_is_no_extent_is_refused(key, value, error, words):
    with pytest.raises(error, match=words):
        Extents({key: value})


def test_what_lacks_is_named():
    program, _ = structure(model()).program({})
    with pytest.raises(ValueError, match=r"extents: there is no pairs\[sequence\], only T: give \{pairs\[sequence\]"):
        program.cost(Extents({T: 5}))
    with pytest.raises(Missing, match="there is no T, only nothing"):
        Prices(Round(), Extents({})).linear("dense", 4, 4)
    for take in (program.cost, program.peak_bytes):
        with pytest.raises(
            TypeError, match=r"\(23, 315\) does not have .* Extents\(\{T: 23, pairs\[sequence\]: 315\}\)"
        ):
            take((23, 315))
    with pytest.raises(ValueError, match="'gaussian' of 'gaussian' is no pattern"):
        pairs["gaussian"]


@pytest.mark.deep
@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.integers(1, 60), min_size=1, max_size=4))
def test_symbols_make_a_formula(seed, lengths):
    """What is priced with symbols, with numbers in their place, is what is priced with the numbers."""
    rng = np.random.default_rng(seed)
    config = random_config(rng)
    operator = transformer(config, random_weights(config, rng))
    program, _ = structure(operator).program({})
    numbers = program.extents([rng.integers(0, config["vocab_size"], length) for length in lengths])
    symbols = {key: sympy.Symbol(f"n{at}", positive=True) for at, key in enumerate(numbers)}
    formula, plain = (
        sympy.Add(
            *(
                feature.subs({size: sizes[str(size)] for size in feature.free_symbols})
                for kernel, sizes in program.cost(extents)
                for feature in catalogue()[kernel].terms
            )
        )
        for extents in (Extents(symbols), numbers)
    )
    assert formula.free_symbols and formula.subs({symbols[key]: numbers[key] for key in numbers}) == plain


@pytest.mark.deep
def test_causal_attention_costs_less_than_full():
    config = random_config(np.random.default_rng(3)) | dict(mask="sequence & causal", max_position_embeddings=512)
    costs = {}
    for mask in ("sequence", "sequence & causal", "sequence & window(64)"):
        operator = transformer(config | dict(mask=mask), random_weights(config, np.random.default_rng(0)))
        batch = Batch([np.zeros(512, int)])
        found = structure(operator, batch=batch)
        program, _ = found.program({})
        costs[mask] = [sizes["S2"] for kernel, sizes in program.cost(batch) if kernel == "attention"]
        assert patterns(operator) == program.patterns == (parse(mask),)
    assert costs["sequence"][0] == 512**2
    assert 0.5 < costs["sequence & causal"][0] / 512**2 < 0.56
    assert 0.3 < costs["sequence & window(64)"][0] / 512**2 < 0.34


def test_patterns_of_a_term_are_those_of_its_products():
    assert (
        patterns(product(turn(I), I, where=causal)) == (causal,)
        and not patterns(product(turn(I), I))
        and not patterns(I)
    )
    assert set(patterns(model())) == {sequence} and RAGGED.extents(patterns(model())) == RAGGED.extents()
