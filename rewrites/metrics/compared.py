"""The errors of programs against the model and against its import. All programs run on one group of sentences after
another: their whole outputs are never held, as a row of a language model is as wide as its vocabulary."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, reduce
from itertools import chain, repeat, zip_longest
from math import ceil, prod
from operator import add
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from formats.host.threads import in_threads
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.oracles import dense, dense_each
from opmatrix.algebra.routes import Route, noted
from opmatrix.algebra.term import Operator
from opmatrix.runtime.program import Program
from rewrites.lowering.float32_range import check_finite, check_range
from rewrites.verify.differences import Change
from rewrites.verify.routed import Flips, Reference, explain_flips, is_routed, redrawn, score_moves
from rewrites.workload.stated import PLENTY, change_cosines

GROUP_ROWS = 256  # rows that the float64 oracle reads at a time
EMBEDDED = 2**23  # largest size of the embeddings whose cosines are compared
OUTPUT_BYTES = 2**27  # most bytes of the model's outputs that are held for all groups
KnownOutput = tuple[NDArray[np.floating], list[Route]]  # an output, and the routes of its rows


class Compared(NamedTuple):
    """The change of an output, as both programs run; |Δcos| of every pair of compared embeddings; and the change along
    the routes of the program, without rows that go elsewhere."""

    change: Change
    cosines: NDArray[np.float64]
    along: Change


class Off(NamedTuple):
    """Relative errors of a program against the model, output by output: `free` as both run, `along` the routes that
    the program took, which is its rounding alone; and the rows that the model sends elsewhere."""

    free: dict[str, float]
    along: dict[str, float]
    flips: Flips


class GroupOff(NamedTuple):
    """The changes of a program's outputs on a group of rows, as both run and along its routes, and the rows that go
    elsewhere."""

    free: dict[str, Change]
    along: dict[str, Change]
    flips: Flips


class Changes(NamedTuple):
    """The outputs of programs on a group of rows: each compared with the model; the change of each but the first from
    the first one, as both run and along its routes; and the embeddings of all, if there is room for them, and they are
    no scores."""

    beside: list[GroupOff]
    changes: list[Change]
    along: list[Change]
    vectors: list[NDArray[np.float32]]


def compare(
    programs: Sequence[Program], model: Mapping[str, Operator], verify: Batch, state: Batch, exact: Sequence[bool] = ()
) -> tuple[list[Off], list[Compared]]:
    """Compare each program with the model in float64 on `verify`. Compare each but the first with the first on
    `state`, sentence by sentence, as both run, and the cosines of the first sentences, as many as EMBEDDED allows. A
    program that is `exact` differs by rounding alone, which is measured on `verify`; `state` is run only if there are
    other programs. Raises VerificationError for an `exact` program if rounding does not explain a row that the model
    sends elsewhere."""
    known = read_groups(programs[0], model, verify)
    near = in_threads(plan_groups(programs, model, verify, exact, known))
    offs = [join_groups([look.beside[at] for look in near]) for at in range(len(programs))]
    stated = compared_of(near)
    others = [at for at in range(1, len(programs)) if not (exact and exact[at])]
    if state is not verify and others:
        far = compared_of(run_groups([programs[at] for at in (0, *others)], state))
        for at, compared in zip(others, far, strict=True):
            stated[at - 1] = compared
    return offs, stated


def compared_of(looks: Sequence[Changes]) -> list[Compared]:
    """Return the changes of each program but the first, over all groups."""
    before, *after = join_vectors(looks)
    changes, along = (
        list(map(Change.joined, zip(*groups, strict=True)))
        for groups in ([look.changes for look in looks], [look.along for look in looks])
    )
    return [
        Compared(change, change_cosines(before, vectors), beside)
        for change, vectors, beside in zip(changes, after, along, strict=True)
    ]


def join_vectors(looks: Sequence[Changes]) -> list[NDArray[np.float32]]:
    """Return the embeddings of each program over all groups; without a row for programs that give none."""
    embedded = [look.vectors for look in looks if look.vectors]
    if not embedded:
        return [np.zeros((0, 1), np.float32)] * len(looks[0].beside)
    return [np.concatenate(rows) for rows in zip(*embedded, strict=True)]


def compare_given(programs: Sequence[Program], batch: Batch) -> list[float]:
    """Return the relative change of each program but the first from the first, over a whole batch."""
    looks = run_groups(programs, batch)
    return [Change.joined(groups).relative for groups in zip(*(look.changes for look in looks), strict=True)]


def join_groups(groups: Sequence[GroupOff]) -> Off:
    """Join a program's errors on all groups."""

    def joined(changes: Sequence[dict[str, Change]]) -> dict[str, float]:
        """Join the changes of groups, and return the relative error of each output."""
        return {output: Change.joined(group[output] for group in changes).relative for output in changes[0]}

    return Off(
        joined([group.free for group in groups]),
        joined([group.along for group in groups]),
        reduce(add, (group.flips for group in groups)),
    )


def redraw(
    first: Program, programs: Mapping[Program, Mapping[str, NDArray[np.floating]]], batch: Batch
) -> dict[Program, Change]:
    """Compare routed programs, passed with their constants before rounding, with the first one on the sentences of a
    batch. Each time other rows are sent elsewhere (rewrites.verify.routed.Moved), until PLENTY sentences are compared.
    Empty if the batch has that many."""
    draws = ceil(PLENTY / len(batch))
    if draws == 1:
        return {}
    moves = {program: score_moves(program, constants, batch) for program, constants in programs.items()}

    def of_group(group: Batch) -> list[Change]:
        """Compare the programs with the first one on a group, with the scores of some rows moved."""
        wanted, starts = first.run(group), first.starts(group)
        return [redrawn(program, move, group, wanted, starts, draws) for program, move in moves.items()]

    groups = in_threads(partial(of_group, group) for group in batch.pieces(GROUP_ROWS))
    return {program: Change.joined(parts) for program, parts in zip(programs, zip(*groups, strict=True), strict=True)}


def run_groups(programs: Sequence[Program], batch: Batch) -> list[Changes]:
    """Run the programs on all groups of a batch, without the model."""
    return [look() for look in plan_groups(programs, {}, batch)]


def read_groups(program: Program, model: Mapping[str, Operator], batch: Batch) -> list[dict[str, KnownOutput]]:
    """Return the model's outputs for each group of a batch, read in two halves at once, each weight widened once for a
    half. Empty for groups that are read one by one: where rows are routed, or outputs take over OUTPUT_BYTES bytes."""
    groups = [*batch.pieces(GROUP_ROWS)]
    extents = program.extents(batch)
    numbers = sum(prod(program.schedule.calls[at].shape.at(extents)) for at in program.schedule.results)
    if is_routed(model.values()) or 8 * numbers > OUTPUT_BYTES:
        return [{} for _ in groups]
    halves = [half for half in (groups[::2], groups[1::2]) if half]

    def read(half: Sequence[Batch]) -> list[dict[str, KnownOutput]]:
        """Read the outputs for some of the groups."""
        with np.errstate(all="ignore"):
            arrays = [dense_each(term, half) for term in model.values()]
        by_group = zip(*arrays, strict=True)
        return [{name: (rows, []) for name, rows in zip(model, outputs, strict=True)} for outputs in by_group]

    first, *second = in_threads(partial(read, half) for half in halves)
    return [outputs for pair in zip_longest(first, *second) for outputs in pair if outputs is not None]


def plan_groups(
    programs: Sequence[Program],
    model: Mapping[str, Operator],
    batch: Batch,
    exact: Sequence[bool] = (),
    known: Sequence[dict[str, KnownOutput]] = (),
) -> Iterator[Callable[[], Changes]]:
    """Yield a call for each group of a batch. `known` are the model's outputs for each, by name, where they are."""
    rows = 0
    for group, outputs in zip(batch.pieces(GROUP_ROWS), chain(known, repeat({})), strict=False):
        yield partial(compare_group, programs, model, group, rows, exact, outputs)
        rows += len(programs[0].starts(group)) - 1


def compare_group(
    programs: Sequence[Program],
    model: Mapping[str, Operator],
    group: Batch,
    before: int,
    exact: Sequence[bool] = (),
    read: Mapping[str, KnownOutput] = MappingProxyType({}),
) -> Changes:
    """Compare the outputs of programs on one group; `before` is the number of rows embedded before it, `read` are
    outputs of the model that are known. Raises InputError if the model's output is NaN or infinite, VerificationError
    if an exact program sends rows elsewhere than rounding explains."""
    names = [[name for name in program.outputs if name in model] for program in programs]
    meant = {
        name: Reference(partial(dense, model[name], group), read.get(name)) for name in dict.fromkeys(chain(*names))
    }
    with np.errstate(all="ignore"):
        known = {name: reference.own[0] for name, reference in meant.items()}
    for name, rows in known.items():
        check_finite(f"the model's {name}", rows)
    looked, starts = Changes([], [], [], []), programs[0].starts(group)
    first: Reference | None = None
    for at, (program, outputs) in enumerate(zip(programs, names, strict=True)):
        result, taken = noted(partial(program.run_all, group))
        for name in outputs if first is None else ():
            check_range(f"the model's {name}", result[name], model[name], group)
        beside = GroupOff({}, {}, Flips())
        for name in outputs:
            wanted, routes, parted = meant[name].beside(taken)
            if exact and exact[at]:
                parted = explain_flips(f"program {at}", model[name], group, routes, parted)
            beside.free[name], beside.along[name] = (
                Change.of(result[name], expected) for expected in (known[name], wanted)
            )
            beside = beside._replace(flips=beside.flips + parted)
        looked.beside.append(beside)
        rows = next(iter(result.values()))
        if first is None:
            first = Reference(partial(program.run, group), (rows, taken))
        else:
            looked.changes.append(Change.of(rows, first.own[0], starts))
            looked.along.append(Change.of(rows, first.beside(taken)[0], starts))
        embeddings = embed_rows(programs[0], rows, starts) if before * rows[0].size < EMBEDDED else None
        if embeddings is not None:
            looked.vectors.append(embeddings)
    return looked


def embed_rows(program: Program, rows: NDArray[np.float32], starts: NDArray[np.int64]) -> NDArray[np.float32] | None:
    """Return the embeddings of the rows of a program; None where it scores texts, or does not compute the layers behind
    pooled rows."""
    behind = bool(program.pooling.layers or program.pooling.sparse)
    if program.pooled and behind:
        return rows
    if behind or (program.pooled and program.scoring is not None):
        return None
    return program.pooling(rows, starts)
