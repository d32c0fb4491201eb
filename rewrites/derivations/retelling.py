"""The steps that lead to a program, as text: of the one that a run chooses, and of others of its front when somebody
asks, from the model."""
from collections.abc import Mapping, MutableMapping, Sequence
from functools import partial
from os.path import exists, isabs
from pathlib import Path
from typing import Any, Protocol

from formats.core.errors import InputError
from formats.disk.files import shown
from opmatrix.display.progress import unheard
from opmatrix.files.checkpoint import open_model
from opmatrix.patterns import Batch
from opmatrix.program import Program
from rewrites.approximate.sites import sites
from rewrites.approximate.trials import changed
from rewrites.compiler.search import Structure
from rewrites.derivations.chain import derive_chain, nearly
from rewrites.derivations.derivation import Otherwise
from rewrites.derivations.finding import Underivable
from rewrites.evaluate.reported import Reported
from rewrites.law import Law
from rewrites.laws import EXACT_LAWS, without
from rewrites.lower.lower import TURNED
from rewrites.pareto.proposals import Choices
from rewrites.phases import Report
from rewrites.report.points import Point
from rewrites.run import Run
from rewrites.verify.differences import difference
from rewrites.verify.user_laws import UserDeclarations, load_laws
from rewrites.workload.resolve import adapter_of, calibrated, source
from rewrites.workload.workload import Workload

NO_FILES: Mapping[str, Path | None] = {}


class Searched(Protocol):
    """A run, or its result: what the steps to one of its programs are found from."""

    @property
    def workload(self) -> Workload: ...
    @property
    def choices(self) -> Choices | None: ...
    @property
    def laws(self) -> tuple[Law, ...]: ...


def tell_steps(point: Point, found: Searched) -> str:
    """The steps that lead to a program from the imported model. Raises VerificationError for one that does not hold."""
    if point.structure is None: return "none: nothing says what it was derived as"
    kept = None if point.variant or found.choices is None else found.choices.kept(point.structure)
    stored = otherwise(point.structure, point.program, found.workload.few, kept)
    before = [point.variant.removed.told()] if point.variant and point.variant.removed else []
    before += [f"approximation: {each}, alone, on calibration rows" for each in point.structure.detours.values()]
    return "\n".join([*before, derive(point.structure, found.laws, stored)])


def find_steps(program: Program, found: Reported, run: Run, exact: Structure, progress: Any = unheard) -> str:
    """The steps to a saved program whose directory holds none: it is searched for again, as the report says that it was
    found, and known by its hash."""
    if found.chosen == 0: return derive(exact, run.laws)    # the front begins with the exact program
    if found.front[found.chosen]["smaller"]:
        return "none: a program of a smaller model has them only where `opmatrix optimize` chooses it"
    run.explore(progress)
    run.approximate(found.error, progress)
    run.front(found.error, found.memory, progress)
    for point in run.points:
        if point.program.replace(**program.meta).hash == program.hash: return tell_steps(point, run)
    return ("none: a search finds other programs by now, as prices or versions are others: `opmatrix optimize` makes "
            "the program anew")


def derive(structure: Structure, laws: Sequence[Law], stored: dict[int, Otherwise] | None = None) -> str:
    """The steps from the imported model to a program. Raises VerificationError for one that does not hold."""
    try:
        return str(derive_chain(structure, laws, stored))
    except Underivable as error:
        return f"none was found: {error}"


def otherwise(structure: Structure, program: Program, held_out: Batch,
              kept: MutableMapping[Any, Any] | None = None) -> dict[int, Otherwise]:
    """What a program does not store as it is: by part, by class and layout, in words, with the change of the output
    that it alone brought about on calibration rows, and brings about on held-out ones. `kept` are constants of other
    programs of these border states."""
    own, emitter = structure.program({}, structure.exactly, kept)
    wanted, values = own.run(held_out), list[Any]()
    found = {number: nearly(extraction) for number, extraction in zip(structure.numbers, structure.extractions,
                                                                      strict=True)}
    for first, site in sorted(((site.readers(own)[0], site) for site in sites(own, structure, emitter)),
                              key=lambda pair: pair[0]):
        key = site.stored.weight, "columns" if site.stored.layout == TURNED else site.stored.layout
        if key not in found[site.part]: continue
        for _ in own.schedule.walk(held_out, values, first): pass
        [rows] = changed(own, site, [partial(program.constants.__getitem__, site.constant)], values, held_out)
        words, error, _ = found[site.part][key]
        found[site.part][key] = words, error, difference(rows, wanted)
    return found


def again(program: Program, found: Reported, model: str | None = None,
          given: Mapping[str, Path | None] = NO_FILES) -> Run:
    """The search that led to a program, on the model it came from and the user's files."""
    checkpoint = open_model(model or origin(program), adapter_of(program))
    declared = UserDeclarations() if (laws := given.get("laws")) is None else load_laws(laws)
    text, texts = (None if (file := given.get(name)) is None else str(file) for name in ("text", "texts"))
    workload = Workload.of(checkpoint, text, found.tokens, texts, found.mix)
    return Run(checkpoint.operator(program.pooled), workload, calibrated(lambda *_: None),
               without((*EXACT_LAWS, *declared.laws), found.without), Report(quiet=True), source(checkpoint),
               approximations=declared.approximations, number_type=found.number_type)


def origin(program: Program) -> str:
    """The checkpoint that a program says it was made of. Raises InputError where it says none, or none that is here."""
    place = program.meta.get("model") if program.meta.get("model") == "minilm" else program.meta.get("source")
    if not isinstance(place, str):
        raise InputError("the program does not say which model it was made of: give it: --model MODEL")
    if isabs(place) and not exists(place):
        raise InputError(f"{shown(place)}: the model that the program was made of is not there any more: say where it "
                         "is: --model MODEL")
    return place
