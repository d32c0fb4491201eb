"""What virtual ranks compute, send, store and hold is what the formulas say, exactly, and what comes out is what one
rank gives: every strategy, pairs and triples of them, three families, random shapes, cuts that do not divide.
`benchmarks/partitions.py` draws as many as it is asked for."""

from itertools import combinations

import numpy as np
import pytest
from partitioned import ANY, BERT, GPT2, LLAMA, advised, compared, made, planned, random_arrays, random_case

from formats.core.errors import InputError
from opmatrix.algebra.data import Data
from opmatrix.models import build
from opmatrix.parallel.axes.axis_strategy import meet
from opmatrix.parallel.axes.known_axes import STRATEGIES
from opmatrix.parallel.sharding.mesh import Mesh

FAMILIES = dict(bert=BERT, gpt2=GPT2, llama=LLAMA)
NAMES = [name for name, each in STRATEGIES.items() if not each.by_hand]
CUTTING = [name for name in NAMES if not STRATEGIES[name].layers]
PAIRS = [pair for pair in combinations(NAMES, 2) if not meet(*map(STRATEGIES.get, pair))]
TRIPLES = [
    three
    for three in combinations(CUTTING, 3)
    if not any(meet(STRATEGIES[a], STRATEGIES[b]) for a, b in combinations(three, 2))
]
DRAWN, TRIED, CHUNK = 64, 16, 8  # random models and meshes; triples; of one test


def holds(found):
    assert found.agrees, found


def meshes_of(names, rng):
    """A mesh of 2 ranks an axis, or 3 where it is one of two, in an order that is drawn."""
    order = [*rng.permutation(names)]
    ranks = [int(rng.integers(2, 4)), 2] if len(order) == 2 else [2] * len(order)
    return {"xyz"[k]: (n, STRATEGIES[name]) for k, (name, n) in enumerate(zip(order, ranks, strict=True))}


def fitted(term, axes, *sizes):
    """A mesh as refusals advise, where its order or its ranks do not fit."""
    while True:
        try:
            planned(term, Mesh.of(**axes), *sizes)
        except InputError as refused:
            axes = advised(axes, str(refused))
        else:
            return Mesh.of(**axes)


def test_one_rank_is_the_model():
    for config in FAMILIES.values():
        holds(compared(made(config), Mesh.of()))


@pytest.mark.deep(every=6)
@pytest.mark.parametrize("name", NAMES)
def test_each_strategy(name):
    """Of as many ranks as divide neither heads, columns, rows, sequences nor layers, where groups of heads allow it."""
    for config in FAMILIES.values():
        layers = 3 if name == "pipeline" else 1
        term = made(config, **(dict(n_layer=layers) if config is GPT2 else dict(num_hidden_layers=layers)))
        few = name == "pipeline" or (config is LLAMA and STRATEGIES[name].weights)
        holds(compared(term, Mesh.of(x=(2 if few else 4, name)), 5, 11))


@pytest.mark.deep(every=4)
@pytest.mark.parametrize("name", ["tensor", "sequence-vocabulary", "ulysses", "ring", "keys", "vocabulary", "zero3"])
@pytest.mark.parametrize("ranks", [5, 8])
def test_many_ranks(name, ranks):
    """Of 11 heads, 13 columns of an inner layer, 15 tokens and 9 sequences."""
    term = made(ANY, num_attention_heads=11, num_key_value_heads=11, intermediate_size=13, num_hidden_layers=1)
    holds(compared(term, Mesh.of(x=(ranks, name)), 9, 15))


@pytest.mark.deep(every=4)
@pytest.mark.parametrize("ranks", [2, 3, 6])
@pytest.mark.parametrize("name", ["tensor", "sequence"])
def test_shared_key_heads(name, ranks):
    """Groups are cut between ranks, and where there are more ranks than groups, heads of keys are copied."""
    for shared in (1, 2, 3, 6):
        if ranks % shared and ranks > shared:
            continue
        holds(compared(made(LLAMA, num_key_value_heads=shared, num_hidden_layers=1), Mesh.of(x=(ranks, name)), 2, 7))


@pytest.mark.deep(every=13)
@pytest.mark.parametrize("part", range(0, len(PAIRS), CHUNK))
def test_pairs_of_strategies(part):
    for at in range(part, min(part + CHUNK, len(PAIRS))):
        config = [*FAMILIES.values()][at % 3]
        term = made(config, **(dict(n_layer=2) if config is GPT2 else dict(num_hidden_layers=2 - at % 2)))
        axes = meshes_of(PAIRS[at], np.random.default_rng(at))
        holds(compared(term, fitted(term, axes, 4, 7), 4, 7))


@pytest.mark.deep(every=2)
@pytest.mark.parametrize("part", range(0, TRIED, CHUNK))
def test_triples_of_strategies(part):
    for at in range(part, part + CHUNK):
        rng = np.random.default_rng(at)
        config = dict(num_hidden_layers=1, num_key_value_heads=int(rng.choice([1, 2, 6])), mask="sequence & causal")
        term = made(ANY, **config)
        axes = meshes_of(TRIPLES[rng.integers(len(TRIPLES))], rng)
        holds(compared(term, fitted(term, axes, 2, 7), 2, 7))


@pytest.mark.deep(every=8)
@pytest.mark.parametrize("part", range(0, DRAWN, CHUNK))
def test_random_shapes(part):
    for seed in range(part, part + CHUNK):
        case = random_case(seed)
        found = compared(build(case.config, random_arrays()), case.mesh, case.sequences, case.tokens)
        assert found.agrees, f"seed {seed}: {case}: {found}"


def test_layers_as_they_are_given():
    """Stages of a pipeline may have unequal numbers of layers."""
    term = made(LLAMA, num_hidden_layers=4)
    for stages in ((1, 3), (3, 1)):
        holds(compared(term, Mesh.of(p=(2, "pipeline"), t=(2, "tensor")), stages=stages))


def test_arrays_that_are_equal_in_one_layer():
    """They are stored once there, and not in other layers, of which they are two."""
    plain = random_arrays()

    def at(name, *shape):
        return Data.of(np.ones(shape)) if "0.norm" in name or "bias" in name else plain(name, *shape)

    holds(compared(build(ANY, at), Mesh.of(x=(2, "tensor"))))


def test_a_weight_that_equals_a_part_of_another():
    """Of another model, whose weights of queries, keys and values are one array."""
    joined, plain = made(GPT2, n_layer=1), random_arrays(1)
    plan = planned(joined, Mesh.of(x=(2, "tensor")))  # it holds the parts while the other model is made
    whole = next(each.args[0] for each in joined.walk() if each.kind.name == "const" and each.args[0].shape == (36,))

    def at(name, *shape):
        return Data.of(whole.array[:12]) if name == "layer.0.query.bias" else plain(name, *shape)

    holds(compared(build(ANY, at), plan.mesh))
