"""How far programs are from the model and from its import. All of them run on one group of sentences after another:
no whole output is held, as a row of a language model is as wide as its vocabulary."""
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, reduce
from itertools import chain
from operator import add
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from formats.machine.threads import in_threads
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.routes import noted
from opmatrix.algebra.term import Operator
from opmatrix.batch import Batch
from opmatrix.program import Program
from rewrites.lower.float32_range import check_finite, check_range
from rewrites.verify.differences import Change
from rewrites.verify.routed import Flips, Reference, explain_flips
from rewrites.workload.stated import change_cosines

GROUP_ROWS = 256                                            # rows that the float64 oracle reads at a time
EMBEDDED = 2 ** 23                                          # numbers of embeddings whose cosines are compared


class Compared(NamedTuple):
    """The change of an output, and |Δcos| of every pair of embeddings that were compared."""
    change: Change
    cosines: NDArray[np.float64]


class Changes(NamedTuple):
    """What programs gave for a group: how far each is from the model, output by output; the change of each but the
    first from that one, the embeddings of all where there is room for them, and rows that go elsewhere than the model
    would send them."""
    offs: list[dict[str, Change]]
    changes: list[Change]
    vectors: list[NDArray[np.float32]]
    flips: list[Flips]


def compare(programs: Sequence[Program], model: Mapping[str, Operator], verify: Batch, state: Batch,
            exact: Sequence[bool] = ()) -> tuple[list[dict[str, float]], list[Compared], list[Flips]]:
    """How far each program is from the model in float64 on `verify`, relative, output by output; how far each but the
    first is from that one on `state`, sentence by sentence, and how the cosines of the first sentences change, of as
    many as EMBEDDED allows. One that is `exact` differs by rounding alone: of it `verify` says that, and `state` is run
    where there are others. What a program is beside goes the ways that its rows went; how many the model would have
    sent elsewhere is the last that is given. Raises VerificationError for a program that is `exact` where rounding does
    not explain one."""
    near = in_threads(plan_groups(programs, model, verify, True, exact))
    offs = [{name: Change.joined(look.offs[at][name] for look in near).relative for name in near[0].offs[at]}
            for at in range(len(programs))]
    flips = [reduce(add, (look.flips[at] for look in near)) for at in range(len(programs))]
    stated = compared_of(near)
    others = [at for at in range(1, len(programs)) if not (exact and exact[at])]
    if state is not verify and others:
        far = compared_of(run_groups([programs[at] for at in (0, *others)], state))
        for at, each in zip(others, far, strict=True): stated[at - 1] = each
    return offs, stated, flips


def compared_of(looks: Sequence[Changes]) -> list[Compared]:
    """The changes of each program but the first, over all groups."""
    before, *after = map(np.concatenate, zip(*(look.vectors for look in looks if look.vectors), strict=True))
    return [Compared(change, change_cosines(before, each))
            for change, each in zip(changes_of(looks), after, strict=True)]


def compare_given(programs: Sequence[Program], batch: Batch) -> list[float]:
    """How far each program but the first is from that one on the whole of a batch, relative."""
    return [change.relative for change in changes_of(run_groups(programs, batch))]


def run_groups(programs: Sequence[Program], batch: Batch) -> list[Changes]:
    return [look() for look in plan_groups(programs, {}, batch, True)]


def changes_of(looks: Sequence[Changes]) -> list[Change]:
    return [Change.joined(kept) for kept in zip(*(look.changes for look in looks), strict=True)]


def plan_groups(programs: Sequence[Program], model: Mapping[str, Operator], batch: Batch,
                stated: bool, exact: Sequence[bool] = ()) -> Iterator[Callable[[], Changes]]:
    """A call for each group of a batch."""
    rows = 0
    for group in batch.pieces(GROUP_ROWS):
        yield partial(compare_group, programs, model, group, rows if stated else None, exact)
        rows += len(programs[0].starts(group)) - 1


def compare_group(programs: Sequence[Program], model: Mapping[str, Operator], group: Batch,
                  before: int | None, exact: Sequence[bool] = ()) -> Changes:
    """What programs give for one group, before which so many rows were embedded; None: nothing is stated of it. Raises
    InputError where the model gives what is no number, VerificationError where an exact program sends rows elsewhere
    than rounding explains."""
    names = [[name for name in program.outputs if name in model] for program in programs]
    meant = {name: Reference(partial(dense, model[name], group)) for name in dict.fromkeys(chain(*names))}
    with np.errstate(all="ignore"): known = {name: each.own[0] for name, each in meant.items()}
    for name, rows in known.items(): check_finite(f"the model's {name}", rows)
    found, starts = Changes([], [], [], []), programs[0].starts(group)
    first: Reference | None = None
    for at, (program, own) in enumerate(zip(programs, names, strict=True)):
        given, taken = noted(partial(program.run_all, group))
        for name in own if first is None else (): check_range(f"the model's {name}", given[name], model[name], group)
        beside, flips = dict[str, Change](), Flips()
        for name in own:
            wanted, routes, parted = meant[name].beside(taken)
            if exact and exact[at]: parted = explain_flips(f"program {at}", model[name], group, routes, parted)
            beside[name], flips = Change.of(given[name], wanted), flips + parted
        found.offs.append(beside)
        found.flips.append(flips)
        if before is None: continue
        rows = next(iter(given.values()))
        if first is None: first = Reference(partial(program.run, group), (rows, taken))
        else: found.changes.append(Change.of(rows, first.beside(taken)[0], starts))
        if before * rows[0].size < EMBEDDED: found.vectors.append(programs[0].pooling(rows, starts))
    return found
