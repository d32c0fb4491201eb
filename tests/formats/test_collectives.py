"""Collectives on nested links: bytes and messages as rings really send them, bounds, and groups that have no place."""

import doctest
from collections import Counter
from itertools import pairwise, product
from math import inf, prod

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from formats.core.errors import InputError
from formats.machine import collectives, links
from formats.machine.collectives import COLLECTIVES, collective_seconds, level_bytes, wire_bytes
from formats.machine.datasheets import load_bundled
from formats.machine.links import Link, levels_of

NODE = (Link("node", 8, 3e11, 1e-6), Link("network", inf, 25e9, 3e-6))
RACKS = (Link("node", 4, 8e11, 1e-6), Link("rack", 16, 2e11, 2e-6), Link("network", inf, 25e9, 5e-6))
FLAT = NODE[1:]
GROUPS = [(1,), (5,), (4, 3), (1, 4), (3, 1, 2), (2, 3, 4)]


def neighbours(group, level):
    """The rings of one level: ranks, by their place at each level, that differ there alone."""
    others = product(*(range(1 if at == level else ranks) for at, ranks in enumerate(group)))
    return [[(*each[:level], unit, *each[level + 1 :]) for unit in range(group[level])] for each in others]


def one(counted, group):
    """What every rank counted at each level, if all counted alike."""
    found = {tuple(counted[rank, level] for level in range(len(group))) for rank in product(*map(range, group))}
    assert len(found) == 1
    return found.pop()


def gather(group):
    """Bytes and messages that a rank sends at each level, gathering a byte of each from the outermost inward."""
    held = {rank: {rank} for rank in product(*map(range, group))}
    sent, messages = Counter(), Counter()
    for level in reversed(range(len(group))):
        for ring in neighbours(group, level):
            moving = {rank: {*held[rank]} for rank in ring}
            for _ in ring[1:]:
                for rank in ring:
                    sent[rank, level] += len(moving[rank])
                    messages[rank, level] += 1
                moving = {ring[at]: moving[ring[at - 1]] for at in range(len(ring))}
                for rank in ring:
                    held[rank] |= moving[rank]
    assert all(blocks == {*held} for blocks in held.values())
    return one(sent, group), one(messages, group)


def scatter(group):
    """Bytes and messages that a rank sends at each level, a byte for each rank, adding up from the nearest outward."""
    ranks = [*product(*map(range, group))]
    held = {rank: {block: {rank} for block in ranks} for rank in ranks}  # of each block, whose numbers are added up
    sent, messages = Counter(), Counter()
    for level in range(len(group)):
        for ring, step in product(neighbours(group, level), range(1, group[level])):
            moving = [
                {block: held[rank].pop(block) for block in [*held[rank]] if block[level] == (at - step) % len(ring)}
                for at, rank in enumerate(ring)
            ]
            for at, rank in enumerate(ring):
                sent[rank, level] += len(moving[at])
                messages[rank, level] += 1
                for block, added in moving[at - 1].items():
                    held[rank][block] |= added
    assert all(sums == {rank: {*ranks}} for rank, sums in held.items())
    return one(sent, group), one(messages, group)


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_rings_send_what_is_said(group):
    """Carried out, block by block: every rank ends with what it should have, and has sent so many bytes."""
    payload = prod(group)  # so that a block is one byte
    clock = tuple(Link(str(level), inf, 1.0, 1.0) for level in range(len(group)))
    for op, (sent, messages) in {"all_gather": gather(group), "reduce_scatter": scatter(group)}.items():
        assert level_bytes(op, payload, group) == pytest.approx(sent)
        assert collective_seconds(op, payload, group, clock).latency == pytest.approx(messages)
        assert level_bytes("all_reduce", payload, group) == pytest.approx([2 * each for each in sent])
    here = (0,) * len(group)
    peers = [
        max(level for level, unit in enumerate(rank) if unit) for rank in product(*map(range, group)) if rank != here
    ]
    shares = [peers.count(level) for level in range(len(group))]
    assert level_bytes("all_to_all", payload, group) == pytest.approx(shares)
    assert collective_seconds("all_to_all", payload, group, clock).latency == pytest.approx(shares), "a message each"


def test_examples():
    assert levels_of(1, 8, NODE) == (8, 1) and levels_of(8, 4, NODE) == (1, 4) and levels_of(1, 16, NODE) == (8, 2)
    assert levels_of(2, 8, NODE) == (4, 2) and levels_of(16, 2, NODE) == (1, 2) and levels_of(1, 1, ()) == ()
    assert levels_of(1, 64, RACKS) == (4, 4, 4) and levels_of(2, 4, RACKS) == (2, 2, 1)
    assert wire_bytes("all_reduce", 800, 8) == 1400 and wire_bytes("all_to_all", 800, 8) == 700
    assert level_bytes("all_reduce", 800, (8, 2)) == (1400, 100), "a share of an eighth crosses, there and back"
    assert level_bytes("all_to_all", 1600, (8, 2)) == (700, 800), "half of the ranks are in the other node"
    assert level_bytes("broadcast", 800, (8, 2)) == (800, 800) and level_bytes("broadcast", 800, (1, 2)) == (0, 800)
    assert level_bytes("send", 800, (8, 2)) == (0, 800) and level_bytes("send", 800, (8, 1)) == (800, 0)
    taken = collective_seconds("all_reduce", 3e9, (8, 2), NODE)
    assert taken.levels == ("node", "network")
    assert taken.transfer == pytest.approx((2 * 3e9 * 7 / 8 / 3e11, 2 * 3e9 / 8 / 2 / 25e9))
    assert taken.latency == pytest.approx((14e-6, 6e-6)) and taken.seconds == pytest.approx(0.0325 + 20e-6)
    assert str(taken).splitlines()[0] == "node: 0.0175 s of transfer, 1.4e-05 s of latency"


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "all_to_all", "send"])
@given(n=st.sampled_from([1, 2, 4, 8]))
def test_in_a_mesh_a_group_uses_the_links_among_its_own(op, n):
    """Of n devices of 8 each has n - 1 of its 7 links; through a switch the whole."""
    switch = Link("node", 8, 7e9, 1e-6)
    mesh = switch._replace(meshed=True)
    through, among = (collective_seconds(op, 1e6, (n,), [link]).transfer[0] for link in (switch, mesh))
    assert among == pytest.approx(through * 7 / max(n - 1, 1))


@pytest.mark.parametrize("module", [links, collectives], ids=lambda module: module.__name__)
def test_docstrings_are_true(module):
    done = doctest.testmod(module)
    assert done.attempted and not done.failed


def test_scattering_inside_beats_a_flat_ring():
    """Each device of a node sends its own share: eight adapters instead of one."""
    nested = collective_seconds("all_reduce", 1e9, levels_of(1, 64, NODE), NODE).seconds
    flat = wire_bytes("all_reduce", 1e9, 64) / NODE[1].bandwidth
    assert flat > 5 * nested


@pytest.mark.parametrize("op", COLLECTIVES)
@given(payload=st.floats(0, 1e12), n=st.integers(1, 4096))
@settings(max_examples=25, deadline=None)
def test_one_level_is_the_flat_formula(op, payload, n):
    taken = collective_seconds(op, payload, (n,), FLAT)
    assert taken.transfer == pytest.approx((wire_bytes(op, payload, n) / FLAT[0].bandwidth,))
    assert level_bytes(op, payload, (1, n, 1))[1] == wire_bytes(op, payload, n), "levels without peers change nothing"
    assert (taken.seconds == 0) == (n == 1), "one rank sends nothing, and any message takes its latency"


@pytest.mark.parametrize("op", COLLECTIVES)
@given(payload=st.floats(1, 1e12), group=st.tuples(*[st.sampled_from([1, 2, 4])] * 2, st.integers(1, 50)))
@settings(max_examples=25, deadline=None)
def test_no_price_is_below_what_a_rank_must_send(op, payload, group):
    n, taken = prod(group), collective_seconds(op, payload, group, RACKS)
    assert taken.seconds >= payload * (n - 1) / n / RACKS[0].bandwidth * (1 - 1e-12)
    if op in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all"):
        assert sum(level_bytes(op, payload, group)) == pytest.approx(wire_bytes(op, payload, n)), "no byte more in all"


def whole(devices, machine):
    """Whether so many devices are whole units of every level, or a whole share of one."""
    return all(link.devices == inf or not (devices % link.devices and link.devices % devices) for link in machine)


@pytest.mark.deep(every=3)
@pytest.mark.parametrize("op", COLLECTIVES)
@given(payload=st.floats(1, 1e12), stride=st.sampled_from([1, 2, 4, 8, 16, 64]))
@settings(max_examples=25, deadline=None)
def test_more_takes_longer(op, payload, stride):
    """But in a mesh, in which more ranks have more links among them. Ranks so far apart share nodes evenly or not at
    all."""
    for machine in (NODE, RACKS, *(sheet.links for sheet in load_bundled().values())):
        if any(link.meshed for link in machine) or not whole(stride, machine):
            continue
        sizes = sorted(
            many << power for many in (1, 3, 9) for power in range(9) if whole(stride * many << power, machine)
        )
        assert len(sizes) >= 3 and sizes[-1] >= 128
        groups = [levels_of(stride, n, machine) for n in sizes]
        taken = [collective_seconds(op, payload, group, machine).seconds for group in groups]
        assert all(few <= many * (1 + 1e-12) for few, many in pairwise(taken))
        assert all(
            collective_seconds(op, payload * 1.5, group, machine).seconds >= seconds
            for group, seconds in zip(groups, taken, strict=True)
        )


@pytest.mark.parametrize("op", COLLECTIVES)
def test_symbols_go_through(op):
    """A price is an expression of the payload's symbols, which at numbers is the price of numbers."""
    T, n, V = sympy.symbols("T n V", positive=True)
    found = collective_seconds(op, 4 * T * n, (4, 2, 3), RACKS)
    said = found.seconds
    assert said.free_symbols == {T, n} and "T*n" in str(found)
    number = collective_seconds(op, 4 * 512 * 1024, (4, 2, 3), RACKS).seconds
    assert float(said.subs({T: 512, n: 1024})) == pytest.approx(number)
    assert float(wire_bytes(op, V, n).subs({V: 800, n: 8})) == wire_bytes(op, 800, 8)


@pytest.mark.parametrize(
    "asked, said",
    [
        (lambda: levels_of(1, 12, NODE), r"12 ranks, 1 apart, straddles units of 'node': the 12 devices .* its 8"),
        (lambda: levels_of(3, 2, NODE), "straddles"),
        (lambda: levels_of(3, 8, NODE), "straddles"),
        (lambda: levels_of(4, 3, NODE), "straddles"),
        (lambda: levels_of(1, 3, NODE), "straddles"),
        (lambda: levels_of(1, 3, NODE, mesh=9), "straddles"),
        (lambda: levels_of(1, 16, NODE[:1]), "larger than 'node' of 8 devices"),
        (lambda: levels_of(8, 2, NODE[:1]), "larger than 'node'"),
        (lambda: levels_of(1, 2, ()), "needs links"),
        (lambda: levels_of(0, 2, NODE), "at least 1"),
        (lambda: levels_of(1, 0, NODE), "at least 1"),
        (lambda: wire_bytes("all_sum", 1, 2), "no collective is called 'all_sum'; there are all_gather"),
        (lambda: wire_bytes("send", -1, 2), "send of -1 bytes"),
        (lambda: wire_bytes("send", 1, 0), "of 0 ranks"),
        (lambda: collective_seconds("send", 1, (2,), NODE), r"\(2,\) ranks by level on 2 links"),
        (lambda: collective_seconds("send", 1, (2, 0), NODE), "at least 1"),
        (lambda: collective_seconds("send", 1, (16, 1), NODE), "has 16 in a unit of 'node', which has 8 devices"),
    ],
)
def test_what_has_no_place_is_refused_in_a_line(asked, said):
    with pytest.raises(InputError, match=said) as error:
        asked()
    assert "\n" not in str(error.value)


def test_a_small_mesh_straddles_nothing():
    assert levels_of(1, 3, NODE, mesh=6) == (3, 1) and levels_of(3, 2, NODE, mesh=6) == (2, 1)
    assert levels_of(8, 6, NODE) == (1, 6), "the last level has room for any number"
