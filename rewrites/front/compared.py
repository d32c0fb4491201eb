"""How far programs are from the model and from its import. All of them run on one group of sentences after another:
no whole output is held, as a row of a language model is as wide as its vocabulary."""
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from formats.machine.threads import in_threads
from opmatrix.oracles import dense
from opmatrix.patterns import Batch
from opmatrix.program import Program
from opmatrix.term import Operator
from rewrites.front.differences import Change
from rewrites.front.stated import change_cosines

GROUP_ROWS = 256                                            # rows that the float64 oracle reads at a time
EMBEDDED = 2 ** 23                                          # numbers of embeddings whose cosines are compared


class Compared(NamedTuple):
    """The change of an output, and |Δcos| of every pair of embeddings that were compared."""
    change: Change
    cosines: NDArray[np.float64]


def from_model(programs: Sequence[Program], model: Mapping[str, Operator], batch: Batch) -> list[dict[str, float]]:
    """How far each program is from the model in float64, relative, output by output."""
    names = [[name for name in program.outputs if name in model] for program in programs]

    def compared(group: Batch) -> list[dict[str, Change]]:
        wanted = {name: dense(model[name], group) for name in dict.fromkeys(chain(*names))}
        given = (program.run_all(group) for program in programs)
        return [{name: Change.of(found[name], wanted[name]) for name in own}
                for own, found in zip(names, given, strict=True)]
    parts = in_threads([partial(compared, group) for group in batch.pieces(GROUP_ROWS)])
    return [{name: Change.joined(part[at][name] for part in parts).relative for name in own}
            for at, own in enumerate(names)]


def from_import(programs: Sequence[Program], imported: Program, batch: Batch) -> list[Compared]:
    """How far each program is from the imported one, sentence by sentence, and how the cosines of the first sentences
    change, of as many as EMBEDDED allows."""
    changes: list[list[Change]] = [[] for _ in programs]
    embedded: list[list[NDArray[np.float32]]] = [[] for _ in (imported, *programs)]
    room = EMBEDDED
    for group in batch.pieces(GROUP_ROWS):
        outputs, starts = [each.run(group) for each in (imported, *programs)], imported.starts(group)
        for found, kept in zip(outputs[1:], changes, strict=True): kept.append(Change.of(found, outputs[0], starts))
        vectors = [imported.pooling(rows, starts) for rows in outputs] if room > 0 else []
        for each, own in zip(vectors, embedded, strict=False): own.append(each)
        room -= vectors[0].size if vectors else 0
    before, *after = map(np.concatenate, embedded)
    return [Compared(Change.joined(kept), change_cosines(before, each))
            for kept, each in zip(changes, after, strict=True)]
