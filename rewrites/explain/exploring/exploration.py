"""`om.explore`: a model with everything that laws make equal to it, the price of each member, and the choice of
extraction. It shows the search of `optimize`: the graphs, prices and program are those of its exact search."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from opmatrix.algebra.term import Operator
from opmatrix.display.tables import micro
from opmatrix.runtime.program import Program
from rewrites.egraph.egraph import SCHEDULE
from rewrites.explain.derivations.chain import Chain, derive_chain
from rewrites.explain.derivations.trees import Tree
from rewrites.explain.exploring.changes import ProgramChange, ProgramPrice, share_by_kernel
from rewrites.explain.exploring.listings import Listing
from rewrites.explain.exploring.looked_at import MEMBER_COLUMNS, EqualityClass, LookedAt, Member
from rewrites.explain.exploring.openings import (
    AnyBatch,
    MachineName,
    check_names,
    check_part,
    open_exploration,
    own_laws,
    resolve_machine,
    resolve_workload,
)
from rewrites.explain.exploring.pictures import GraphPicture, draw_graph
from rewrites.explain.exploring.reasons import Why, find_why, tell_law
from rewrites.explain.exploring.steps import next_phase, say_steps, search_stepped
from rewrites.laws import without
from rewrites.laws.law import Law
from rewrites.lowering.price import name_machine
from rewrites.opened import Opened
from rewrites.search.search import SearchSpace, Structure
from rewrites.workload.phases import silence_stdout
from rewrites.workload.resolve import AnyModel

AskedClass = int | str | EqualityClass | Member | None  # a class, or one of its members


@dataclass(frozen=True, repr=False, eq=False)
class Exploration:
    """A model under some laws. `schedule` holds the phases and laws that ran; `number` is the part that is shown, the
    first of equal parts. A change returns another exploration; results are computed when they are first read."""

    opened: Opened
    laws: tuple[Law, ...]
    schedule: tuple[str, ...] = SCHEDULE
    number: int | None = None
    name: str = ""
    note: str = ""  # a remark, if prices are not of a calibrated machine
    left_out: tuple[str, ...] = ()  # a line for each user law that cannot be used

    @cached_property
    def searched(self) -> tuple[SearchSpace, Structure]:
        """The space and its optimum, as `optimize` finds them."""
        with silence_stdout():
            if self.schedule == SCHEDULE:
                return self.opened.explore(self.laws)
            return search_stepped(self.opened, self.laws, self.schedule)

    @property
    def structure(self) -> Structure:
        """The optimum of the search."""
        return self.searched[1]

    # ---- the part that is shown

    @cached_property
    def alike(self) -> tuple[tuple[int, ...], ...]:
        """Numbers of parts by signature: parts of a signature have one graph and one border."""
        by_signature: dict[object, list[int]] = {}
        for number, pair in self.structure.route:
            by_signature.setdefault((self.structure.parts[number].template.text, pair), []).append(number)
        return tuple(map(tuple, by_signature.values()))

    @property
    def looked_at(self) -> int:
        """The number of the part that is shown. By default it is of the signature that most parts have; of several
        such, the dearest."""
        if self.number is not None:
            return self.number
        times = [extraction.time for extraction in self.structure.extractions]
        return max(self.alike, key=lambda numbers: (len(numbers), times[numbers[0]]))[0]

    @property
    def signatures(self) -> Listing[tuple[int, ...]]:
        """The parts by signature; `at(number)` shows another one."""
        rows, times = [], [extraction.time for extraction in self.structure.extractions]
        for numbers in self.alike:
            graph = self.structure.lowering(numbers[0]).graph
            listed = ", ".join(str(n) for n in numbers) if len(numbers) < 8 else f"{numbers[0]} … {numbers[-1]}"
            rows.append(
                (
                    "*" * (self.looked_at in numbers),
                    listed,
                    str(len(graph.nodes)),
                    str(len(graph.members)),
                    micro(sum(times[n] for n in numbers)),
                )
            )
        return Listing(
            f"{len(self.structure.path)} parts, {len(rows)} signatures; * is looked at",
            ("", "parts", "nodes", "classes", "µs"),
            tuple(rows),
            self.alike,
        )

    def at(self, number: int) -> "Exploration":
        """Show another part. Raises InputError if there is no part of this number."""
        return self.changed(number=check_part(number, len(self.structure.path)))

    @cached_property
    def view(self) -> LookedAt:
        """The part that is shown."""
        space, structure = self.searched
        number, (before, after) = self.looked_at, structure.path[self.looked_at]
        with silence_stdout():
            problem = space.problem(number, before, after, self.opened.representable)
        return LookedAt(
            structure.lowering(number),
            structure.extractions[number],
            problem.nodes,
            structure.parts[number],
            after,
            space.laws,
        )

    @property
    def classes(self) -> Listing[EqualityClass]:
        """The classes of the part, those of the program first, in the order in which it runs."""
        listed = [*self.view.list_classes()]
        rows = tuple(
            (
                "*" * bool(cls.chosen),
                f"c{cls.number}",
                cls.text,
                str(cls.terms),
                str(cls.kernels),
                cls.chosen,
                "" if cls.seconds is None else micro(cls.seconds),
            )
            for cls in listed
        )
        head = f"part {self.looked_at}: {len(listed)} classes; * are computed by the cheapest program"
        return Listing(
            head,
            ("", "class", "what", "terms", "kernels", "chosen", "µs"),
            rows,
            tuple(listed),
            "each is there by its number, .members(number)",
        )

    def members(self, asked: AskedClass = None) -> Listing[Member]:
        """List the members of a class, by default of the result: kernels with prices, then terms; * is chosen."""
        cls = self.view.resolve(asked)
        listed = [*self.view.list_members(cls)]
        rows = tuple(member.row for member in listed)
        return Listing(
            f"c{cls}: {self.view.say(cls)}",
            MEMBER_COLUMNS,
            rows,
            tuple(listed),
            "the values are all there, .members(c)[40:]",
        )

    # ---- laws

    @property
    def fired(self) -> dict[str, int]:
        """The number of matches of each law in the part, the largest first."""
        return dict(sorted(self.view.lowering.graph.fired.items(), key=lambda pair: -pair[1]))

    def without(self, *names: str) -> "Exploration":
        """Explore without these laws. Raises InputError for a law that does not exist, with a similar name."""
        check_names(names, self.laws)
        return self.changed(laws=without(self.laws, names), name=f"{self.name} without {', '.join(names)}")

    def only(self, *names: str) -> "Exploration":
        """Explore with these laws alone."""
        check_names(names, self.laws)
        return self.changed(
            laws=tuple(law for law in self.laws if law.name in names), name=f"{self.name} only by {', '.join(names)}"
        )

    def with_laws(self, *own: Law | str | Path) -> "Exploration":
        """Explore with further laws of the user: functions under @law, or files of them. Each is tried first: raises
        InputError for a wrong one, with an example; `left_out` has a line for each that cannot be used."""
        usable, left_out = own_laws(own, self.laws)
        laws, failed = self.opened.list_usable((*self.laws, *usable))
        names = ", ".join(law.name for law in laws[len(self.laws) :]) or "no other law"
        lines = (*self.left_out, *left_out, *failed)
        return self.changed(laws=laws, name=f"{self.name} with {names}", left_out=lines)

    @property
    def imported(self) -> "Exploration":
        """The model before any law; `step` goes on from here."""
        return self.changed(schedule=(), name=f"{self.name}, imported")

    def step(self, which: str | None = None) -> "Exploration":
        """Run one more phase, by default the next one, or a single law wherever it fits."""
        schedule = next_phase(self.schedule, which, self.laws)
        return self.changed(schedule=schedule, name=f"{self.name.split(', ')[0]}, {say_steps(schedule)}")

    def about(self, law: str) -> str:
        """Describe a law, and where it fires in this part, or why it does not."""
        known = {other.name: other for other in (*self.opened.laws, *self.laws)}
        check_names([law], [*known.values()])
        return tell_law(self.view, known[law])

    def why(self, a: AskedClass | Operator = None, b: AskedClass | Operator = None) -> Why:
        """Return the laws that lead from one member to another; by default from the imported term to the chosen one. A
        class means its term in the program."""
        start = self.view.start if a is None else self.tree(a)
        return find_why(self.view, start, self.view.program if b is None and a is None else self.tree(b))

    def tree(self, asked: AskedClass | Operator) -> Tree:
        """Return a member as a tree; for a class, the member that the program uses, else its representative."""
        if isinstance(asked, Member):
            return self.view.tree_of(asked)
        cls = self.view.find_term(asked) if isinstance(asked, Operator) else self.view.resolve(asked)
        return self.view.taken(cls) or self.view.stand_for(cls)

    # ---- the program and its price

    @property
    def seconds(self) -> float:
        """The predicted seconds of the cheapest program."""
        return self.structure.time

    def cost(self, machine: MachineName = None) -> ProgramPrice:
        """Return the price of the cheapest program; with `machine`, that of a new search for that machine."""
        if machine is not None:
            return self.on(machine).cost()
        return ProgramPrice(self.structure.time, self.structure.memory, name_machine(self.opened.machine))

    def on(self, machine: MachineName) -> "Exploration":
        """Explore for another machine: a data sheet by its name, or a calibrated machine."""
        time_model, note = resolve_machine(machine, self.opened.workload)
        opened, name = self.opened.changed(machine=time_model), f"{self.name} on {name_machine(time_model)}"
        return self.changed(opened=opened, note=note, name=name)

    def over(self, batch: AnyBatch) -> "Exploration":
        """Explore for another batch: a number of tokens, lengths such as "8x128", a Batch."""
        workload = resolve_workload(self.opened, batch)
        return self.changed(opened=self.opened.changed(workload=workload), name=f"{self.name} over {workload.name}")

    @cached_property
    def best(self) -> Program:
        """The cheapest program."""
        return self.structure.program(self.opened.meta)[0]

    @cached_property
    def derivation(self) -> Chain:
        """The steps from the model to the program, part by part."""
        return derive_chain(self.structure, self.laws)

    def compare(self, other: "Exploration") -> ProgramChange:
        """Return the differences of another exploration in the program and its price."""
        return ProgramChange(
            (self.name, other.name),
            (self.cost(), other.cost()),
            (share_by_kernel(self.structure), share_by_kernel(other.structure)),
            (self.structure.fired, other.structure.fired),
        )

    # ---- pictures

    def draw(self, asked: AskedClass = None, most: int = 40) -> GraphPicture:
        """Draw the program of the part, class by class, with the other members of each; the class `asked` is opened.
        At most `most` classes are drawn; the picture names those left out."""
        return draw_graph(self.view, None if asked is None else self.view.resolve(asked), most, str(self))

    def _repr_html_(self) -> str:
        return self.draw()._repr_html_()

    def __str__(self) -> str:
        limits = [f"limit: {line}" for line in self.structure.cut]
        return "\n".join(filter(None, [f"{self.name}: {self.cost()}", self.note, *limits, *self.left_out]))

    def __repr__(self) -> str:
        return f"<Exploration {self.name}: print it for its price, .draw() for a picture>"

    def changed(self, **fields: object) -> "Exploration":
        """Return a copy with other fields. Its searches are repeated unless only the part or texts change."""
        other: Exploration = replace(self, **fields)  # type: ignore[arg-type]
        if not fields.keys() - {"number", "name", "note", "left_out"} and "searched" in vars(self):
            vars(other)["searched"] = self.searched  # the cached result
        return other


def explore(
    model: "AnyModel", batch: AnyBatch = None, *, machine: MachineName = None, laws: Sequence[Law] | None = None
) -> Exploration:
    """Explore a model, an operator, or several by name. `batch` is a number of tokens (128), sentences x tokens such
    as "8x128", lengths, or a Batch; `machine` a name of a data sheet, or a calibrated machine; by default this
    machine if it is calibrated, else a data sheet, which `note` names.

        >>> import numpy as np, opmatrix as om
        >>> x = om.weight(np.eye(8, 4)) @ om.relu @ om.relu
        >>> found = om.explore(x, 16, machine="A100")
        >>> [law for law in found.fired][:1]                                                    # doctest: +SKIP
        >>> print(found.classes, found.members(), found.draw())                                 # doctest: +SKIP"""
    opened, note, left_out, name = open_exploration(model, batch, machine, laws)
    return Exploration(opened, opened.laws, name=name, note=note, left_out=left_out)
