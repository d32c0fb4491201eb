"""Sequences of several lengths: the mean time by shares of steps, the memory of the longest, one layout for all."""

from dataclasses import replace

import numpy as np
import pytest

import opmatrix as om
from formats.core.errors import InputError
from formats.machine.datasheets import datasheet
from opmatrix.parallel.questions.fewest_devices import fastest_on
from opmatrix.parallel.questions.layouts import find_layout, read_layout
from opmatrix.parallel.search.length_mix import mix_lengths, read_lengths
from opmatrix.parallel.search.plan_text import plan_json
from opmatrix.parallel.search.strategy_search import PlanQuestion, compile_forms

MODEL = dict(
    model_type="llama",
    vocab_size=32000,
    hidden_size=1024,
    intermediate_size=2816,
    num_hidden_layers=8,
    num_attention_heads=8,
    num_key_value_heads=8,
    max_position_embeddings=4096,
    rms_norm_eps=1e-5,
    tie_word_embeddings=False,
)
SHARES = {512: 0.5, 1536: 0.3, 4096: 0.2}
PLAIN = (("recompute", "none"), ("zero", 1), ("schedule", "1f1b"))
MIXED = PlanQuestion(MODEL, datasheet("H100"), 8, 16, 4096, 80e9, fixed=PLAIN, lengths=mix_lengths(SHARES))


def alone(tokens):
    return replace(MIXED, seq=tokens, lengths=None)


def test_columns_are_the_mean_of_each_length():
    """Time is the mean of what each length takes alone, part by part; memory is the most that any takes."""
    sizes = MIXED.sizes
    programs = compile_forms(MIXED, MIXED.forms)
    values = programs.values_at(sizes, MIXED.batch)
    for row in np.random.default_rng(5).permutation(len(sizes))[:12]:
        for form in range(0, len(MIXED.forms), 3):
            each = {tokens: alone(tokens).predicted(MIXED.forms[form], sizes.row(row)) for tokens in SHARES}
            seconds = sum(share * each[tokens].step_seconds for tokens, share in SHARES.items())
            assert values[programs.times[form], row] == pytest.approx(seconds, rel=1e-12)
            assert values[programs.peaks[form], row] == max(step.driver for step in each.values())


def test_one_layout_is_legal_for_all():
    """Ranks that share tokens divide each length; the choice is no faster than the best of each length alone."""
    for tokens in SHARES:
        assert not (tokens % MIXED.sizes.cp).any() and (MIXED.sizes.cp <= tokens // 2).all()
    best = fastest_on(MIXED).seconds
    assert best >= sum(share * fastest_on(alone(tokens)).seconds for tokens, share in SHARES.items()) - 1e-12
    with pytest.raises(InputError, match=r"cp 3|are 3 ranks"):
        find_layout(MIXED, read_layout("cp 3", "--only"))


def test_a_mix_of_one_length_is_that_length():
    one, plain = replace(MIXED, lengths=mix_lengths({4096: 1.0})), alone(4096)
    assert fastest_on(one).seconds == pytest.approx(fastest_on(plain).seconds, rel=1e-12)
    assert str(mix_lengths({4096: 1.0})) == "4096"


def test_a_plan_prints_each_length():
    plan = om.plan(MODEL, 4, "H100", batch=8, seq={512: 0.75, 2048: 0.25}, keep=2)
    told, first = plan_json(plan), plan.best[0]
    rows = told["lengths"]
    assert [row["tokens"] for row in rows] == [512, 2048] and told["tokens"] == 2048
    assert sum(row["share"] * row["seconds of the first"] for row in rows) == pytest.approx(first.seconds, rel=1e-12)
    assert plan.tokens_a_second(first) == pytest.approx(8 * (0.75 * 512 + 0.25 * 2048) / (4 * first.seconds))
    assert 0 < plan.utilisation(first) < 1
    assert "8 sequences of 512 (75 %), 2048 (25 %) tokens" in str(plan) and "s a step of  512 tokens" in str(plan)
    assert sum(map(float, first.grouped().values())) == pytest.approx(first.seconds, rel=1e-12)


@pytest.mark.parametrize("text, lengths", [("8192", 8192), ("8:0.5, 4:0.5", {8: 0.5, 4: 0.5}), ("8:1", {8: 1.0})])
def test_lengths_are_read(text, lengths):
    assert read_lengths(text) == lengths


@pytest.mark.parametrize(
    "text, words",
    [
        ("8192:0.7,32768:0.4", r"the shares 0.7 \+ 0.4 add up to 1.1"),
        ("8192:0.7", "add up to 0.7"),
        ("8:1.5,16:-0.5", "--seq 16:-0.5: a share of steps is more than 0"),
        ("8:nan,16:1", "--seq 8:nan"),
        ("8:1,16:0", "--seq 16:0"),
        ("8:0.5,8:0.5", "8 tokens have two shares"),
        ("8:0.5,16", "16 has no share"),
        ("8:x", "'x' is no share"),
        ("-8", "'-8' is no number of tokens"),
        ("0", "'0' is no number of tokens"),
        ("", "'' is no number of tokens"),
        ("8:0.5,:0.5", "'' is no number of tokens"),
        (",".join(f"{n}:0.05" for n in range(1, 21)), "20 lengths: give from 1 to 16"),
    ],
)
def test_lengths_that_are_none_are_refused(text, words):
    with pytest.raises(InputError, match=words) as error:
        mix_lengths(read_lengths(text))
    assert "\n" not in str(error.value)


def test_more_tokens_than_positions_are_refused():
    with pytest.raises(InputError, match="--seq 2048: the model has 1024 positions"):
        om.plan("gpt2", 4, "A100", batch=8, seq={512: 0.5, 2048: 0.5})
