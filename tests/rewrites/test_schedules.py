"""Schedules by hand: stages apply laws and approximations, and what comes out is priced, verified and runs; what does
not apply says where and why."""

from pathlib import Path

import numpy as np
import pytest
import standin
from searched import RAGGED, model

from formats import Stacked
from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.operators import gelu, relu
from opmatrix.algebra.oracles import dense
from opmatrix.files.checkpoint import open_model
from rewrites.explain.derivations.schedules import schedule
from rewrites.explain.derivations.stages import (
    bf16,
    drop_key_bias,
    fold_norm,
    fold_scale,
    half,
    int8,
    join_qkv,
    keep,
    low_rank,
    move_value_bias,
    nearest,
    prune,
    prune_blocks,
    rewrite,
    tile,
)
from rewrites.laws import EXACT_LAWS
from rewrites.laws.law import SIMPLIFY, law, n, value
from rewrites.search.approximation import approximation
from rewrites.search.search import search
from rewrites.verify import VerificationError

MIXTRAL = Path(__file__).parents[1] / "data" / "mixtral_bytes"


@pytest.fixture(scope="module")
def start():
    return schedule(
        model(hidden_size=32, num_attention_heads=2, intermediate_size=64), RAGGED, machine=standin.machine()
    )


@pytest.fixture(scope="module")
def joined(start):
    return start | join_qkv


def off(program, start):
    return np.linalg.norm(program.run(RAGGED) - (wanted := dense(start.model, RAGGED))) / np.linalg.norm(wanted)


# ---- laws by hand


def test_without_a_stage_it_is_the_fused_import(start):
    fused = search(start.model, (), standin.machine(), RAGGED.extents())
    assert start.seconds == pytest.approx(fused.time) and off(start, start) < 1e-5
    assert start.bytes == start.program.stored_bytes + start.program.peak_bytes(RAGGED)


@pytest.mark.deep(every=4)
@pytest.mark.parametrize(
    "stage, laws",
    [
        (fold_scale, ["scale_scores"]),
        (drop_key_bias, ["split_keys", "shift_scores"]),
        (fold_norm, ["associate"]),
        (join_qkv, ["join_bias", "value_bias"]),
    ],
    ids=lambda each: getattr(each, "name", ""),
)
def test_a_composition_is_the_model_still(start, stage, laws):
    made = start | stage
    found = made.verify()
    assert found["program"]["float64"]["worst_row"] < 1e-10 and found["steps"] < 1e-12
    assert set(laws) <= {name for part in made.derivation.parts for name in part.laws()}
    assert made.program.hash != start.program.hash and off(made, start) < 1e-5
    assert f"{stage.name} " in str(made) and "imported" in str(made)


def test_joining_is_one_product_for_each_layer(start, joined):
    def products(program):
        return sum(step.kernel == "linear" for step in program.program.steps)

    assert products(start) - products(joined) == 2 * 2  # three become one, in two layers
    assert joined.seconds < start.seconds
    assert (start | fold_norm | join_qkv).program.hash != joined.program.hash


def test_what_laws_do_in_the_search_they_do_by_hand(joined):
    """The search finds nothing slower than what is reached by hand with the same laws."""
    best = search(joined.model, EXACT_LAWS, standin.machine(), RAGGED.extents())
    assert best.time <= joined.seconds * (1 + 1e-9)


def test_a_law_by_its_name_or_itself(start):
    first = next(each for each in EXACT_LAWS if each.name == "scale_scores")
    by_name, itself = start | "scale_scores", start | first
    assert itself.stages[0].laws == by_name.stages[0].laws == (first,)
    assert by_name.applications() == itself.applications() == 2  # once in each layer


def test_a_law_of_ones_own():
    @law(phase=SIMPLIFY, source="max(max(u, 0), 0) = max(u, 0)")
    def relu_twice(x: value[n]):
        """Nothing negative is left for the second."""
        return x @ relu @ relu, x @ relu

    from opmatrix import Data
    from opmatrix.algebra.operators import weight

    rng = np.random.default_rng(0)
    E, A = (weight(Data(rng.normal(size=shape), name)) for name, shape in (("E", (41, 8)), ("A", (8, 6))))
    made = schedule(E @ A @ relu @ relu, RAGGED, machine=standin.machine()) | relu_twice
    assert made.applications() == 1 and made.verify()["program"]["float64"]["worst_row"] < 1e-10


def test_a_wrong_law_is_refused_and_named_when_it_is_verified(start, monkeypatch):
    @law(phase=SIMPLIFY, source="nowhere")
    def lose(x: value[n]):
        """Wrong."""
        return x @ gelu, x @ relu

    with pytest.raises(InputError, match="law lose: it is wrong: with x = "):
        start | lose
    monkeypatch.setattr("rewrites.explain.derivations.by_hand.admit_laws", lambda laws: (laws, ()))
    made = start | lose
    with pytest.raises(VerificationError, match="level 1: lose"):
        made.verify()


# ---- approximations by hand

STORES = [
    (prune(0.5), "csr"),
    (prune_blocks(0.5), "block"),
    (keep(2, 4), "nm"),
    (low_rank(8), "lowrank"),
    (half(), "half"),
    (bf16(), "bf16"),
    (int8(), "int8"),
]


@pytest.mark.deep(every=7)
@pytest.mark.parametrize("stage, form", STORES, ids=[form for _, form in STORES])
def test_an_approximation_states_its_error_and_keeps_it(joined, stage, form):
    made = joined | stage
    weights = [c for c in made.program.constants.values() if getattr(c, "name", "") == form]
    assert len(weights) == made.applications() == 8  # q k v, output, up, down, in each of two layers
    assert 0 < made.error < 1 and made.bytes < joined.bytes
    found = made.verify()
    assert found["program"]["float32"]["relative"] <= found["program"]["stated"]
    assert off(made, made) == pytest.approx(made.error, rel=1e-3)
    steps = [step for part in made.derivation.parts for step in part.steps if step.kind == "approximate"]
    assert len(steps) == 8 and all(form in step.law and 0 < step.error < 1 for step in steps)


def test_stacks_of_experts_are_stored_expert_by_expert():
    """In the format that is named, or in none: a line says why."""
    operator = open_model(MIXTRAL).operator()
    start = schedule(operator, Batch([np.arange(1, 6)]), machine=standin.machine())
    made = start | int8()
    stacks = [stored for stored in made.program.constants.values() if isinstance(stored, Stacked)]
    assert len(stacks) == open_model(MIXTRAL).config["num_hidden_layers"]  # other sides of experts are one matrix
    assert {stack.name for stack in stacks} == {"int8"} and made.bytes < start.bytes / 2
    with pytest.raises(InputError, match=r"prune\(0.5\): .*experts.*: csr: its arrays differ in size from matrix to"):
        start | prune(0.5)


def test_only_the_weights_that_are_named(joined):
    made = joined | prune(0.5, "intermediate") | half("attention_output", "query")
    formats = [getattr(c, "name", "") for c in made.program.constants.values()]
    assert formats.count("csr") == 2 and formats.count("half") == 4
    lines = [line.split()[0] for line in str(made).splitlines()[2:]]
    assert lines == ["imported", "join_qkv", "prune(0.5)", "half()"]
    assert made.seconds != joined.seconds and made.error > joined.error == 0.0


def test_a_harsher_stage_is_worse(joined):
    errors = [(joined | prune(density)).error for density in (0.9, 0.5, 0.1)]
    assert errors == sorted(errors)


def test_an_approximation_of_ones_own(joined):
    @approximation(density=(0.5,))
    def largest(W, density):
        """Keeps the largest entries."""
        return np.where(abs(W) >= np.quantile(abs(W), 1 - density), W, 0)

    made = joined | nearest(largest, "intermediate") | nearest(largest, "query", density=0.25)
    stored = [
        c for c in made.program.constants.values() if getattr(c, "name", "dense") not in ("dense", "packed", "half")
    ]
    assert len(stored) == 4 and sorted({round(np.count_nonzero(c.unpack()) / c.unpack().size, 2) for c in stored}) == [
        0.25,
        0.5,
    ]
    assert "largest(density=0.25)" in str(made) and made.verify()["program"]["float32"]["relative"] < 1

    @approximation()
    def same(W):
        """Nothing is saved."""
        return W + 1

    with pytest.raises(InputError, match=r"same\(\): encoder_layer_0.*no format stores"):
        joined | nearest(same)


# ---- tiles


@pytest.mark.deep(every=3)
@pytest.mark.parametrize("keys", [1, 3, 64])
def test_attention_over_tiles_of_keys(joined, keys):
    made = joined | tile(keys)
    steps = [step for step in made.program.steps if step.kernel == "attention"]
    assert [step.attributes["tile"] for step in steps] == [keys] * 2 and made.applications() == 2
    assert off(made, joined) < 1e-5 and made.verify()["program"]["float64"]["worst_row"] < 1e-10
    assert made.split_holds() < 1e-12 and f"tile({keys}) at" in str(made.derivation)
    run, other = made.run(RAGGED), joined.run(RAGGED)
    assert (keys == 64) == np.array_equal(run, other)  # a sentence has 15 tokens: other tiles round otherwise


@pytest.mark.deep
def test_tiles_and_approximations(joined):
    made = joined | tile(4) | prune(0.5)
    assert made.program.hash != (joined | prune(0.5)).program.hash and made.verify()["steps"] < 1e-9
    assert [line.split()[0] for line in str(made).splitlines()[2:]] == ["imported", "join_qkv", "tile(4)", "prune(0.5)"]


# ---- what is refused

REFUSED = [
    (
        lambda p: p | join_qkv,
        "join_qkv: it applies nowhere: part 1 has x_ @ A + a, x_ @ B at 0",
        "not joinable_bias(A, B)",
    ),
    (lambda p: p | fold_scale, "fold_scale: it applies nowhere: part 1 has no"),
    (lambda p: p | "absorb", "no law 'absorb'; there are absorb_keys"),
    (
        lambda p: p | prune(0.5) | fold_norm,
        "fold_norm after prune(0.5): laws come first",
        "put fold_norm before prune(0.5)",
    ),
    (lambda p: p | prune(0.5) | half(), "half(): encoder_layer_0", "is stored as csr[density=0.5] already"),
    (
        lambda p: p | half("gate"),
        "half(): no weight is called gate: there are encoder_layer_0_attention_self_query_weight.T",
    ),
    (lambda p: p | low_rank(33), "low_rank(33): encoder_layer_0", "rank = 33 is not between 1 and 32"),
    (lambda p: p | keep(2, 7), "keep(2, 7): encoder_layer_0", "32 inputs are not a multiple of m = 7"),
    (lambda p: p | prune(1.5), "prune(1.5)", "density"),
    (lambda p: p | tile(0), "tile(0): from 1 to 4096 keys"),
    (lambda p: p | tile(8) | tile(4), "tile(4): attention has tile(8) already"),
    (lambda p: p | tile(8) | fold_norm, "fold_norm after tile(8): laws come first"),
    (lambda p: p | 3, "3 is not a stage"),
]


@pytest.mark.deep(every=9)
@pytest.mark.parametrize(
    "build, words", [(build, words) for build, *words in REFUSED], ids=[words[0][:20] for _, *words in REFUSED]
)
def test_what_does_not_apply_says_where_and_why(joined, build, words):
    with pytest.raises(InputError) as refusal:
        build(joined)
    for word in words:
        assert word in str(refusal.value), str(refusal.value)


def test_a_program_that_no_kernel_computes_waits_for_more_laws(start):
    """A norm that divides behind the next product: no kernel centres what is left. A bias of heads behind the attention
    is a pass, and is moved on."""
    alone = start | rewrite("late", "late_scale")
    with pytest.raises(InputError, match=r"no kernel computes .* of part 1, the result of the laws so far"):
        _ = alone.program
    assert "no kernel yet" in str(alone)
    after = start | rewrite("split", "split_shift") | move_value_bias | drop_key_bias
    assert off(after, start) < 1e-5 and "no kernel yet" not in str(after)


def test_an_operator_needs_a_batch(start):
    with pytest.raises(InputError, match="give a batch"):
        schedule(start.model, machine=standin.machine())
