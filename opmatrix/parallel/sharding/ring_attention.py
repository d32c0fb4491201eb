"""Attention over rows that are sharded like their keys. Scores wait until the values come; then keys and values go
round in a ring, and each rank merges a carrier for every block that it sees (Liu et al. 2023)."""

from __future__ import annotations

from collections.abc import Sequence

from opmatrix.algebra.batch.batch_sizes import Dims
from opmatrix.algebra.batch.traced import Operation
from opmatrix.algebra.positions.patterns import Pattern
from opmatrix.parallel.sharding.axis_states import Cut, mergeable
from opmatrix.parallel.sharding.block_mask import seen_blocks
from opmatrix.parallel.sharding.carrying import Grain
from opmatrix.parallel.sharding.mesh import Axis
from opmatrix.parallel.sharding.placement import Placement, product_rules
from opmatrix.parallel.sharding.redistribute import Ground, RankStep, WaitingScores, heads_for_rows
from opmatrix.parallel.sharding.relating import attend_entries, begin_scores, compute_scores, score_rows


def deferred(
    split: Ground, held: Sequence[int | WaitingScores], line: Operation, dims: Dims, where: Pattern | None = None
) -> int | WaitingScores | None:
    """Return the step or the waiting scores of a line that reads waiting scores, or begins them; None for other lines.
    `held`: operands of the line. `where`: the pattern under which its result is read, if it is scores."""
    scores = next((operand for operand in held if isinstance(operand, WaitingScores)), None)
    if scores is None and line.op != "product":
        return None
    if scores is None:
        return begin_scores(split, held, where, dims) or begun(split, dims, held)
    if line.op == "act" and (line.more[0].entrywise and not line.more[0].args):
        return scores._replace(body=(*scores.body, ("act", line.more[0])))
    if line.op in ("mul", "add") and len(held) == 2:
        other = next(operand for operand in held if operand is not scores)
        if isinstance(other, int) and split.steps[other].dims.numbers == 1:
            return scores._replace(body=(*scores.body, (line.op, other)))
    if line.op == "product" and held[0] is scores and isinstance(held[1], int):
        return (ring if scores.relation is None else attend_entries)(split, line, dims, scores, held[1])
    return None


def begun(split: Ground, dims: Dims, held: Sequence[int | WaitingScores]) -> WaitingScores | None:
    """Return waiting scores of queries and keys that one axis shards alike, if its strategy is a ring; else None."""
    u, v = held
    assert isinstance(u, int) and isinstance(v, int)
    for k, axis in enumerate(split.mesh.axes):
        rows, cols = split.steps[u].placement.on(k), split.steps[v].placement.on(k)
        if (
            axis.strategy.mixing == "ring"
            and isinstance(rows, Cut)
            and isinstance(cols, Cut)
            and (rows.role, cols.role) == ("rows", "cols")
        ):
            return WaitingScores(k, u, v, (), dims)
    return None


def ring(split: Ground, line: Operation, dims: Dims, scores: WaitingScores, values: int) -> int | None:
    """Add the step in which keys and values go round. Returns None if values are not sharded like keys, or if the
    monoid cannot merge blocks in any order."""
    k = scores.axis
    cut = split.steps[scores.queries].placement.on(k)
    if split.steps[values].placement.on(k) != cut:
        return None
    if not (mergeable(line.more[0]) and line.more[0].commutative):
        return None  # each rank begins with its block
    args = [scores.queries, scores.keys, values]
    for j, axis in enumerate(split.mesh.axes):  # the other axes must hold all three alike
        if j == k:
            continue
        head = held_alike(split, j, axis, args)
        args = [split.want(a, j, head) for a in args]
    turned = Cut("cols", cut.units) if isinstance(cut, Cut) else cut
    args = [split.want(a, k, lies) for a, lies in zip(args, (cut, turned, cut), strict=True)]
    if isinstance(cut, Cut) and isinstance(split.mesh.axes[k].ranks, int):
        seen_blocks(line.more[1], cut.units, split.mesh.axes[k].ranks)  # raises if it cannot find them
    queries, keys, values = args
    sources = [unwound(split, keys), unwound(split, values)]
    placement = split.steps[queries].placement
    more = (k, scores.body, *line.more)
    taken = [other for _, other in scores.body if isinstance(other, int)]
    held = queries, keys, values, *(at for at, _ in sources), *taken
    return split.add(
        RankStep(
            "ring",
            held,
            more,
            dims,
            placement,
            Placement(),
            "ring of keys",
            where=line.more[1],
            rules=product_rules(placement, {k: "ring of keys"}),
        )
    )


def held_alike(split: Ground, j: int, axis: Axis, args: Sequence[int]) -> Cut | None:
    """Return the sharding of an axis for queries, keys and values alike: between heads, or sequences."""
    states = [split.steps[a].placement.on(j) for a in args]
    head = next((s for s in states if isinstance(s, Cut) and s.role in ("heads", "batch")), None)
    if head is not None or axis.strategy.mixing != "heads" or not any(states):
        return head
    before, _ = unwound(split, args[1])
    return heads_for_rows(split, axis, args[0], Grain(split.steps[before].dims.heads))


def unwound(split: Ground, at: int) -> tuple[int, tuple[int, ...]]:
    """Return the value behind transposes and repeats, which goes round in their place, and the steps from there on."""
    path: list[int] = []
    while split.steps[at].op in ("turn", "repeat"):
        path.append(at)
        at = split.steps[at].args[0]
    return at, tuple(reversed(path))


def computed(split: Ground, scores: WaitingScores) -> int:
    """Add scores that another operation reads: keys are gathered first; other axes shard heads and sequences of both
    alike."""
    if scores.relation is not None:
        return compute_scores(split, scores)
    queries, keys = scores.queries, split.want(scores.keys, scores.axis, None)
    for j, axis in enumerate(split.mesh.axes):
        if j == scores.axis:
            continue
        head = held_alike(split, j, axis, (queries, keys))
        if head is not None:
            queries = split.want(queries, j, head)
        keys = split.want(keys, j, head)
    return score_rows(split, (queries, keys), scores, split.steps[queries].placement)
