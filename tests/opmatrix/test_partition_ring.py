"""Keys that go round in a ring: what is computed and sent is what the definition says, block by block, counted here by
hand. A block of keys that no query of a rank sees is not computed, and goes on only as far as somebody sees it."""

import pytest
from partitioned import ANY, GPT2, compared, ids_of, made, planned, value_at

from formats.core.errors import InputError
from opmatrix.algebra.shapes import size
from opmatrix.parallel.ranks.virtual import run
from opmatrix.parallel.sharding.feeds import Feed
from opmatrix.parallel.sharding.mesh import Mesh

RANKS, SEQUENCES, HEADS, WIDTH = 4, 2, 6, 2
SEES = {
    "sequence": lambda q, k: True,
    "sequence & causal": lambda q, k: k <= q,
    "sequence & window(2)": lambda q, k: abs(q - k) <= 2,
    "sequence & causal & window(1)": lambda q, k: 0 <= q - k <= 1,
    "sequence & causal & window(5)": lambda q, k: 0 <= q - k <= 5,
}


def blocks_of(tokens):
    """The tokens of each rank, the first ranks one more where it does not divide."""
    sizes = [tokens // RANKS + (r < tokens % RANKS) for r in range(RANKS)]
    return [range(sum(sizes[:r]), sum(sizes[: r + 1])) for r in range(RANKS)]


def by_hand(sees, tokens, shared):
    """Operations of attention and numbers that each rank sends of a layer: from the definition."""
    blocks = blocks_of(tokens)
    flops, sent, messages = [0] * RANKS, [0] * RANKS, [0] * RANKS
    for j, keys in enumerate(blocks):
        seen_by = [any(sees(q, k) for q in queries for k in keys) for queries in blocks]
        for r in range(RANKS):
            if seen_by[r]:
                flops[r] += 2 * SEQUENCES * HEADS * len(blocks[r]) * len(keys) * (WIDTH + WIDTH)
        far = max((d for d in range(RANKS) if seen_by[(j + d) % RANKS]), default=0)
        for d in range(far):  # from its own rank to the last one that sees it
            sent[(j + d) % RANKS] += 2 * SEQUENCES * shared * len(keys) * WIDTH
            messages[(j + d) % RANKS] += 1
    return flops, sent, messages


def weights_flops(tokens, shared):
    """Operations of the weights of a layer on each rank, of a width of 12 and 18 within."""
    each = 2 * 12 * (2 * HEADS * WIDTH + 2 * shared * WIDTH + 2 * 18)
    return [SEQUENCES * len(block) * each for block in blocks_of(tokens)]


@pytest.mark.deep(every=5)
@pytest.mark.parametrize("shared", [6, 2])
@pytest.mark.parametrize("tokens", [12, 15])
@pytest.mark.parametrize("mask", SEES)
def test_blocks_that_are_seen(mask, tokens, shared):
    term = made(ANY, mask=mask, num_hidden_layers=1, num_key_value_heads=shared)
    plan = planned(term, Mesh.of(r=(RANKS, "ring")), SEQUENCES, tokens)
    meters = run(plan, Feed(ids_of(SEQUENCES, tokens))).meters
    flops, sent, messages = by_hand(SEES[mask], tokens, shared)
    rest = weights_flops(tokens, shared)
    [ring] = [each for _, each in plan.crossings()]
    for r in range(RANKS):
        meter = meters[r,]
        assert value_at(plan, plan.flops(), (r,)) == meter.flops == flops[r] + rest[r]
        assert value_at(plan, ring.payload, (r,)) == meter.payload["send", "r"] == sent[r]
        assert value_at(plan, ring.messages, (r,)) == meter.messages["send", "r"] == messages[r]
    assert compared(term, plan.mesh, SEQUENCES, tokens).agrees


def test_a_causal_ring_sends_half_and_computes_less():
    """The first rank hands on its own block alone, and the last sends nothing."""
    flops, sent, messages = by_hand(SEES["sequence & causal"], 12, 6)
    assert messages == [1, 2, 3, 0] and [each / flops[0] for each in flops] == [1, 2, 3, 4]
    assert sum(sent) == 6 * sent[0] and sum(by_hand(SEES["sequence"], 12, 6)[1]) == 12 * sent[0]


def test_a_narrow_window_sends_to_neighbours():
    """Each block to the next rank; where the one before sees it, too, nearly round, as rings go one way."""
    flops, _, messages = by_hand(SEES["sequence & causal & window(1)"], 12, 6)
    assert messages == [1, 1, 1, 0] and [each / flops[0] for each in flops] == [1, 2, 2, 2]
    assert by_hand(SEES["sequence & window(2)"], 12, 6)[2] == [3, 2, 2, 3]


def test_what_is_seen_needs_numbers():
    """Where ranks are a symbol, everybody must see all; where tokens are, a causal ring is known, a window is not."""
    with pytest.raises(InputError, match="give the ranks of r as a number"):
        [*planned(made(GPT2), Mesh.of(r=("n", "ring"))).crossings()]
    causal, narrow = (
        made(ANY, mask=mask, num_hidden_layers=1) for mask in ("sequence & causal", "sequence & window(5)")
    )
    plan = planned(causal, Mesh.of(r=(RANKS, "ring")), 2, size("s"))
    [(_, sent)] = plan.crossings()
    assert [value_at(plan, sent.messages, (r,)) for r in range(RANKS)] == [1, 2, 3, 0]
    with pytest.raises(InputError, match="depends on the number of tokens, s: give it as a number"):
        [*planned(narrow, Mesh.of(r=(RANKS, "ring")), 2, size("s")).crossings()]
