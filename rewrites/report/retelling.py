"""The steps that lead to a program of a search, as text."""

from collections.abc import MutableMapping, Sequence
from functools import partial

from opmatrix.algebra.batch.batch import Batch
from opmatrix.runtime.program import Constant, Program
from rewrites.approximate.proposals import Choices
from rewrites.approximate.sites import sites
from rewrites.approximate.trials import FloatRows, try_weights
from rewrites.explain.derivations.chain import derive_chain, nearly
from rewrites.explain.derivations.derivation import Otherwise
from rewrites.explain.derivations.finding import Underivable
from rewrites.laws.law import Law
from rewrites.lowering.lower import TURNED
from rewrites.report.points import Point
from rewrites.search.emit import ConstantKey
from rewrites.search.search import Structure
from rewrites.verify.differences import difference


def tell_steps(point: Point, laws: Sequence[Law], choices: Choices | None, few: Batch) -> str:
    """Return the steps that lead from the imported model to a program, by the laws and methods of its search; the
    effect of methods is measured on `few` rows. Raises VerificationError for a step that does not hold."""
    if point.structure is None:
        return "none: its derivation was not recorded"
    constants = None if point.variant or choices is None else choices.kept(point.structure)
    stored = otherwise(point.structure, point.program, few, constants)
    before = [point.variant.removed.told()] if point.variant and point.variant.removed else []
    before += [
        f"approximation: {detour}, alone, on calibration rows" for detour in point.structure.substitutions.values()
    ]
    return "\n".join([*before, derive(point.structure, laws, stored)])


def derive(structure: Structure, laws: Sequence[Law], stored: dict[int, Otherwise] | None = None) -> str:
    """Return the steps from the imported model to a program. Raises VerificationError for a step that does not hold."""
    try:
        return str(derive_chain(structure, laws, stored))
    except Underivable as error:
        return f"none was found: {error}"


def otherwise(
    structure: Structure, program: Program, held_out: Batch, kept: MutableMapping[ConstantKey, Constant] | None = None
) -> dict[int, Otherwise]:
    """Return the weights that a program does not store as they are: by part, by class and layout, in words, with the
    change of the output that each alone causes on calibration rows and on held-out rows. `kept` are constants of other
    programs with these border states."""
    exact, emitter = structure.program({}, structure.exactly, kept)
    wanted, values = exact.run(held_out), list[FloatRows | None]()
    by_part = {
        number: nearly(extraction) for number, extraction in zip(structure.numbers, structure.extractions, strict=True)
    }
    for first, site in sorted(
        ((site.readers(exact)[0], site) for site in sites(exact, structure, emitter)), key=lambda pair: pair[0]
    ):
        key = site.stored.weight, "columns" if site.stored.layout == TURNED else site.stored.layout
        if key not in by_part[site.part]:
            continue
        for _ in exact.schedule.walk(held_out, values, first):
            pass
        [rows] = try_weights(exact, site, [partial(program.constants.__getitem__, site.constant)], values, held_out)
        words, error, _ = by_part[site.part][key]
        by_part[site.part][key] = words, error, difference(rows, wanted)
    return by_part
