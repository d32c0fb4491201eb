"""`om.explore`: a model with all that laws make equal to it, what each member costs, and what extraction chose. What is
shown is what `optimize` searches: the graphs, prices and program are those of its exact search."""
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from opmatrix.algebra.term import Operator
from opmatrix.display.tables import micro
from opmatrix.runtime.program import Program
from rewrites.egraph.egraph import SCHEDULE
from rewrites.egraph.layers import Model
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

AskedClass = int | str | EqualityClass | Member | None           # a class, or one of its members


@dataclass(frozen=True, repr=False, eq=False)
class Exploration:
    """A model under some laws; `schedule` are the phases and laws that ran, `number` the part that is looked at, of
    those alike the first. Whatever is changed is another exploration; nothing is computed before it is asked for."""

    opened: Opened
    laws: tuple[Law, ...]
    schedule: tuple[str, ...] = SCHEDULE
    number: int | None = None
    name: str = ""
    note: str = ""                                          # where prices are of no calibrated machine
    left_out: tuple[str, ...] = ()                          # a line for each law of a user's that cannot be used

    @cached_property
    def searched(self) -> tuple[SearchSpace, Structure]:
        """The space and its optimum, as `optimize` finds them."""
        with silence_stdout():
            if self.schedule == SCHEDULE: return self.opened.explore(self.laws)
            return search_stepped(self.opened, self.laws, self.schedule)

    @property
    def structure(self) -> Structure: return self.searched[1]

    # ---- what is looked at

    @cached_property
    def alike(self) -> tuple[tuple[int, ...], ...]:
        """Numbers of parts by signature: one graph and one border each."""
        found: dict[object, list[int]] = {}
        for number, pair in self.structure.route:
            found.setdefault((self.structure.parts[number].template.text, pair), []).append(number)
        return tuple(map(tuple, found.values()))

    @property
    def looked_at(self) -> int:
        """The part that is looked at: where none was named, of the signature that most parts have, of several such the
        dearest."""
        if self.number is not None: return self.number
        times = [each.time for each in self.structure.extractions]
        return max(self.alike, key=lambda numbers: (len(numbers), times[numbers[0]]))[0]

    @property
    def signatures(self) -> Listing[tuple[int, ...]]:
        """The parts by signature; `at(number)` looks at another one."""
        rows, times = [], [each.time for each in self.structure.extractions]
        for numbers in self.alike:
            graph = self.structure.lowering(numbers[0]).graph
            said = ", ".join(str(n) for n in numbers) if len(numbers) < 8 else f"{numbers[0]} … {numbers[-1]}"
            rows.append(("*" * (self.looked_at in numbers), said, str(len(graph.nodes)), str(len(graph.members)),
                         micro(sum(times[n] for n in numbers))))
        return Listing(f"{len(self.structure.path)} parts, {len(rows)} signatures; * is looked at",
                       ("", "parts", "nodes", "classes", "µs"), tuple(rows), self.alike)

    def at(self, number: int) -> "Exploration":
        """A look at another part. Raises InputError where there is none of this number."""
        return self.changed(number=check_part(number, len(self.structure.path)))

    @cached_property
    def view(self) -> LookedAt:
        """The part that is looked at."""
        space, structure = self.searched
        number, (before, after) = self.looked_at, structure.path[self.looked_at]
        with silence_stdout(): problem = space.problem(number, before, after, self.opened.representable)
        return LookedAt(structure.lowering(number), structure.extractions[number], problem.nodes,
                        structure.parts[number], after, space.laws)

    @property
    def classes(self) -> Listing[EqualityClass]:
        """The classes of the part, those of the program first, in the order in which it runs."""
        found = [*self.view.list_classes()]
        rows = tuple(("*" * bool(each.chosen), f"c{each.number}", each.text, str(each.terms), str(each.kernels),
                      each.chosen, "" if each.seconds is None else micro(each.seconds)) for each in found)
        head = f"part {self.looked_at}: {len(found)} classes; * are computed by the cheapest program"
        return Listing(head, ("", "class", "what", "terms", "kernels", "chosen", "µs"), rows, tuple(found),
                       "each is there by its number, .members(number)")

    def members(self, asked: AskedClass = None) -> Listing[Member]:
        """The members of a class, of the result where none is named: kernels with prices, then terms; * is chosen."""
        cls = self.view.resolve(asked)
        found = [*self.view.list_members(cls)]
        rows = tuple(each.row for each in found)
        return Listing(f"c{cls}: {self.view.say(cls)}", MEMBER_COLUMNS, rows, tuple(found),
                       "the values are all there, .members(c)[40:]")

    # ---- laws

    @property
    def fired(self) -> dict[str, int]:
        """How often each law matched in the part, the busiest first."""
        return dict(sorted(self.view.lowering.graph.fired.items(), key=lambda pair: -pair[1]))

    def without(self, *names: str) -> "Exploration":
        """What the other laws reach. Raises InputError for a law that there is not, with one that is near."""
        check_names(names, self.laws)
        return self.changed(laws=without(self.laws, names), name=f"{self.name} without {', '.join(names)}")

    def only(self, *names: str) -> "Exploration":
        """What these laws alone reach."""
        check_names(names, self.laws)
        return self.changed(laws=tuple(law for law in self.laws if law.name in names),
                            name=f"{self.name} only by {', '.join(names)}")

    def with_laws(self, *own: Law | str | Path) -> "Exploration":
        """What laws of one's own reach, too: functions under @law, or files of them. Each is tried first: raises
        InputError for a wrong one, with an example; `left_out` has a line for each that cannot be used."""
        found, left_out = own_laws(own, self.laws)
        laws, failed = self.opened.list_usable((*self.laws, *found))
        names = ", ".join(law.name for law in laws[len(self.laws):]) or "no other law"
        lines = (*self.left_out, *left_out, *failed)
        return self.changed(laws=laws, name=f"{self.name} with {names}", left_out=lines)

    @property
    def imported(self) -> "Exploration":
        """The model before any law; `step` goes on from here."""
        return self.changed(schedule=(), name=f"{self.name}, imported")

    def step(self, which: str | None = None) -> "Exploration":
        """One phase more, or a law alone, wherever it fits: by default the next phase."""
        schedule = next_phase(self.schedule, which, self.laws)
        return self.changed(schedule=schedule, name=f"{self.name.split(', ')[0]}, {say_steps(schedule)}")

    def about(self, law: str) -> str:
        """What a law says, and where it fires in this part, or why it does not."""
        known = {each.name: each for each in (*self.opened.laws, *self.laws)}
        check_names([law], [*known.values()])
        return tell_law(self.view, known[law])

    def why(self, a: AskedClass | Operator = None, b: AskedClass | Operator = None) -> Why:
        """The laws that lead from one member to another: from what was imported to what was chosen where neither is
        named; a class stands for its term in the program."""
        start = self.view.start if a is None else self.tree(a)
        return find_why(self.view, start, self.view.program if b is None and a is None else self.tree(b))

    def tree(self, asked: AskedClass | Operator) -> Tree:
        """A member as a tree: that of a class is the one that the program goes through, else what stands for it."""
        if isinstance(asked, Member): return self.view.tree_of(asked)
        cls = self.view.find_term(asked) if isinstance(asked, Operator) else self.view.resolve(asked)
        return self.view.taken(cls) or self.view.stand_for(cls)

    # ---- the program and its price

    @property
    def seconds(self) -> float:
        """What the cheapest program is predicted to take."""
        return self.structure.time

    def cost(self, machine: MachineName = None) -> ProgramPrice:
        """The price of the cheapest program, on another machine where one is named: for that, it is searched anew."""
        if machine is not None: return self.on(machine).cost()
        return ProgramPrice(self.structure.time, self.structure.memory, name_machine(self.opened.machine))

    def on(self, machine: MachineName) -> "Exploration":
        """The cheapest program of another machine: a data sheet by its name, a calibrated one."""
        found, note = resolve_machine(machine, self.opened.workload)
        opened, name = self.opened.changed(machine=found), f"{self.name} on {name_machine(found)}"
        return self.changed(opened=opened, note=note, name=name)

    def over(self, batch: AnyBatch) -> "Exploration":
        """The cheapest program of another batch: tokens, lengths such as "8x128", a Batch."""
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
        """What another exploration changes in the program and its price."""
        return ProgramChange((self.name, other.name), (self.cost(), other.cost()),
                             (share_by_kernel(self.structure), share_by_kernel(other.structure)),
                             (self.structure.fired, other.structure.fired))

    # ---- pictures

    def draw(self, asked: AskedClass = None, most: int = 40) -> GraphPicture:
        """The program of the part, class by class, with what else computes each; `asked` is opened. At most so many
        classes: what is left out is said."""
        return draw_graph(self.view, None if asked is None else self.view.resolve(asked), most, str(self))

    def _repr_html_(self) -> str: return self.draw()._repr_html_()

    def __str__(self) -> str:
        limits = [f"limit: {line}" for line in self.structure.cut]
        return "\n".join(filter(None, [f"{self.name}: {self.cost()}", self.note, *limits, *self.left_out]))

    def __repr__(self) -> str:
        return f"<Exploration {self.name}: print it for its price, .draw() for a picture>"

    def changed(self, **fields: object) -> "Exploration":
        """This one otherwise, its searches anew but where nothing of them is changed."""
        made: Exploration = replace(self, **fields)         # type: ignore[arg-type]
        if not fields.keys() - {"number", "name", "note", "left_out"} and "searched" in vars(self):
            vars(made)["searched"] = self.searched          # cached there
        return made


def explore(model: str | Model, batch: AnyBatch = None, *, machine: MachineName = None,
            laws: Sequence[Law] | None = None) -> Exploration:
    """A model, an operator, or several by name, explored. `batch` is a number of tokens (128), sentences x tokens such
    as "8x128", lengths, or a Batch; `machine` a name of a data sheet, or a calibrated machine: without one this
    machine, where it is calibrated, else a data sheet, which is said.

        >>> import numpy as np, opmatrix as om
        >>> x = om.weight(np.eye(8, 4)) @ om.relu @ om.relu
        >>> found = om.explore(x, 16, machine="A100")
        >>> [law for law in found.fired][:1]                                                    # doctest: +SKIP
        >>> print(found.classes, found.members(), found.draw())                                 # doctest: +SKIP"""
    opened, note, left_out, name = open_exploration(model, batch, machine, laws)
    return Exploration(opened, opened.laws, name=name, note=note, left_out=left_out)
