"""The first stages of a run: an opened model, and the programs that a search finds equal to it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any

from opmatrix.algebra.term import Operator
from opmatrix.display.progress import unheard
from opmatrix.runtime.program import Constant, Program
from rewrites.approximate.trials import LARGE
from rewrites.egraph.attempts import Attempts, describe_failure
from rewrites.egraph.layers import Model, Part, outputs, parts
from rewrites.extraction import Infeasible
from rewrites.laws import EXACT_LAWS
from rewrites.laws.law import Law
from rewrites.lowering.float32_range import list_arrays
from rewrites.lowering.lower import plainly
from rewrites.lowering.price import TimeModel
from rewrites.lowering.representations import NUMBER_TYPES, Representable
from rewrites.search.approximation import Approximation
from rewrites.search.emit import ConstantKey, Emitter
from rewrites.search.search import SearchSpace, Structure, cheapest
from rewrites.workload.phases import Tell
from rewrites.workload.workload import Workload


@dataclass(frozen=True)
class Opened:
    """A model, the workload that its programs are optimized for, the laws and the machine. `meta` is stored in programs
    and records where the model comes from, `number_type` is the narrowest that weights are stored in. With `in_blocks`
    weights that a file stores in blocks are stored in no other way."""

    model: Model
    workload: Workload
    machine: TimeModel
    laws: tuple[Law, ...]
    meta: dict[str, Any] = field(default_factory=dict)
    approximations: Sequence[Approximation] = ()
    number_type: str = "int8"
    in_blocks: bool = False
    attempts: Attempts = field(default_factory=Attempts, repr=False)  # candidates that are left out
    explored: dict[tuple[Law, ...], tuple[SearchSpace, Structure]] = field(default_factory=dict, repr=False)

    @cached_property
    def representable(self) -> Representable:
        """The storage methods of the exact search, in numbers no narrower than the requested type."""
        return Representable(NUMBER_TYPES[self.number_type], self.in_blocks, attempts=self.attempts)

    @cached_property
    def parts(self) -> list[dict[str, Part]]:
        """The parts of the model, by the state of the border before each: no law changes them."""
        return parts(self.model)

    @cached_property
    def outputs(self) -> dict[str, Operator]:
        """The outputs of the model, by name."""
        return outputs(self.model)

    @property
    def operator(self) -> Operator:
        """The first output, which a run returns."""
        return next(iter(self.outputs.values()))

    @cached_property
    def running(self) -> TimeModel | Sequence[TimeModel]:
        """The machine's model for the way in which the timed batch runs."""
        return self.running_as(True)

    def running_as(self, cached: bool) -> TimeModel | Sequence[TimeModel]:
        """Return the machine's model as in `running`; for a request, in sessions if `cached`, else for runs of whole
        texts."""
        return self.workload.running(self.machine, count_bytes(self.operator), cached)

    def explore(self, laws: Sequence[Law], fusion: bool = True) -> tuple[SearchSpace, Structure]:
        """Return the space that some laws reach, and its optimum; without laws weights are stored as they are.
        Canonical forms need one another: if a law of one is left out, the others keep both their sides. Without
        `fusion` no kernel is attention, so no session can run the program."""
        if fusion and (known := self.explored.get(tuple(laws))):
            return known

        def optimum(laws: Sequence[Law], time_limit: float) -> tuple[SearchSpace, Structure]:
            """Return the space that these laws reach, and its cheapest program."""
            extents, running = self.workload.extents(self.model, fusion), self.running_as(fusion)
            space = SearchSpace(self.model, laws, running, extents, fusion, found=self.parts)
            return space, cheapest(space, self.representable if laws else plainly, time_limit)

        try:
            return optimum(laws, 10.0)
        except Infeasible:
            return optimum([replace(law, canonical=False) for law in laws], 1.0)

    def list_usable(self, laws: Sequence[Law]) -> tuple[tuple[Law, ...], tuple[str, ...]]:
        """Return the laws by which this model can be searched, and a line with the cause for each of a user's laws that
        fails. The search by the usable ones is cached. Raises the errors of the search by the laws of opmatrix
        alone."""
        shipped = [law for law in laws if law in EXACT_LAWS]
        if len(shipped) == len(laws):
            return tuple(laws), ()
        if self.find_failure(laws) is None:
            return tuple(laws), ()
        self.explore(shipped)
        usable, lines = list(shipped), list[str]()
        for law in laws:
            if law in usable:
                continue
            tried = [other for other in laws if other in usable or other is law]
            if (failure := self.find_failure(tried)) is None:
                usable.append(law)
            else:
                lines.append(f"law {law.name}: it is left out: {describe_failure(failure)}")
        return tuple(law for law in laws if law in usable), tuple(lines)

    def find_failure(self, laws: Sequence[Law]) -> Exception | None:
        """Return the error of the search by these laws, or of building its program; None if both succeed."""
        try:
            space, structure = self.explore(laws)
            structure.program(self.meta)
        except Exception as error:
            return error
        self.explored[tuple(laws)] = space, structure
        return None

    def leave_out_failing(self) -> tuple["Opened", tuple[str, ...]]:
        """Return this model with the laws by which it can be searched, and a line for each that is left out."""
        usable, lines = self.list_usable(self.laws)
        if not lines:
            return self, ()
        usable_model = replace(self, laws=usable)
        vars(usable_model)["parts"] = self.parts  # cached there
        return usable_model, lines

    def changed(self, *, workload: Workload | None = None, machine: TimeModel | None = None) -> "Opened":
        """Return this model for another workload or on another machine, with the same parts."""
        opened = replace(self, workload=workload or self.workload, machine=machine or self.machine, explored={})
        vars(opened)["parts"] = self.parts  # cached there
        return opened

    def structure(self, laws: Sequence[Law], fusion: bool = True) -> Structure:
        """Return the optimum under some laws."""
        return self.explore(laws, fusion)[1]


@dataclass(frozen=True)
class Searched:
    """Three programs of an opened model, each with its structure: `imported`, a kernel for each operator; `fused`;
    `exact`, the optimum over all laws, in its space, with the emitter of its constants. `workload` is the model's,
    except that the errors of large programs are stated from the rows that the oracle reads."""

    opened: Opened
    workload: Workload
    space: SearchSpace
    structures: Mapping[str, Structure]
    programs: Mapping[str, Program]
    emitter: Emitter

    @property
    def exact(self) -> Program:
        """The exact program: the optimum over all laws."""
        return self.programs["exact"]

    @property
    def optimum(self) -> Structure:
        """The structure of the exact program."""
        return self.structures["exact"]


def search_exact(opened: Opened, progress: Tell = unheard) -> Searched:
    """Return the import with one kernel for each operator, with fused kernels, and the optimum over all laws."""
    progress("what laws reach")
    space, optimum = opened.explore(opened.laws)
    progress("the import")
    structures = {"imported": opened.structure((), fusion=False), "fused": opened.structure(()), "exact": optimum}
    programs, shared = dict[str, Program](), dict[ConstantKey, Constant]()
    for name, structure in structures.items():
        programs[name], emitter = structure.program(opened.meta, fitted=shared)
        shared = emitter.shared
    workload = opened.workload
    if programs["exact"].stored_bytes > LARGE:
        workload = replace(workload, state=workload.verify)
    return Searched(opened, workload, space, structures, programs, emitter)


def count_bytes(model: Operator) -> int:
    """Return the bytes of its arrays in float32, each once."""
    return sum(4 * prod(data.shape) for data in {id(data): data for data in list_arrays(model)}.values())
