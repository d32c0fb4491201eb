"""Programs of ranks compared with one rank in float64. The error allowed to a partition is that of an exact program of
the whole model: rounding happens in other places and in another order, but there is no more of it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

import numpy as np

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import collect_needs
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.term import Operator
from opmatrix.parallel.ranks.virtual import Ran
from opmatrix.parallel.sharding.feeds import Feed
from rewrites.lowering.lower import plainly
from rewrites.lowering.price import TimeModel
from rewrites.ranks.driven_ranks import run_programs
from rewrites.ranks.searched_ranks import RankPrograms, StretchProgram
from rewrites.search.search import search
from rewrites.verify.failure import VerificationError
from rewrites.verify.programs import Errors, allowed_rounding, unrounded, verify_outputs, verify_steps


class RanksChecked(NamedTuple):
    """The result of the ranks; its error relative to one rank in float64, the error allowed, and that of the imported
    program of the whole model; the number of checked programs, and the largest share of its bound that a kernel's
    error takes."""

    ran: Ran
    relative: float
    allowed: float
    imported: float
    programs: int
    nearest: float


def check_ranks(programs: RankPrograms, model: Operator, machine: TimeModel, feed: Feed) -> RanksChecked:
    """Run the ranks on tokens and verify them. Each program, on the values of its rank and on constants before
    rounding, equals its terms when read in float64, and each of its kernels stays within its bound. The whole output
    is as near to the model in float64 as a program of the whole model must be (`allowed_rounding`). Raises
    VerificationError."""
    batch = Batch([*feed.ids("tokens")], [*feed.ids("kinds")])
    near, told = [0.0], set[Hashable]()

    def look(item: StretchProgram, batch: Batch) -> None:
        """Verify a program's outputs and steps on a batch, and note how near its steps come to their bounds."""
        verify_outputs(item.program, item.model.outputs, [batch], unrounded(item.structure, item.emitter))
        near.append(verify_steps(item.program, [batch], told)["nearest"])

    ran = run_programs(programs, feed, look)
    whole = search(model, (), machine, batch.extents(*collect_needs(model)), fusion=False, methods=plainly)
    wanted = dense(model, batch)
    mine, theirs = (
        Errors.of([rows], [wanted]).relative
        for rows in (ran.value.reshape(wanted.shape), whole.program({})[0].run(batch))
    )
    allowed = allowed_rounding(mine, theirs, model, [batch])
    if not mine <= allowed:
        raise VerificationError(
            3,
            "programs of ranks",
            "together they round more than a program of the model may",
            relative=mine,
            allowed=allowed,
            imported=theirs,
        )
    return RanksChecked(ran, mine, allowed, theirs, len(near) - 1, float(np.max(near)))
