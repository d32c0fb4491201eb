"""The exact search: saturate each signature once, extract each pair of border states, join them by a shortest path."""

import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, isfinite

from formats.core.errors import InputError
from opmatrix.algebra.batch.signature import Port
from opmatrix.algebra.data import Data, Promised
from opmatrix.runtime.buffers.order import ordered
from opmatrix.runtime.codegen.infinite import infinite_inputs
from opmatrix.runtime.program import OUTPUT, Constant, Program
from opmatrix.runtime.weightless import Planned
from rewrites.egraph.borders import FULL
from rewrites.egraph.egraph import SCHEDULE
from rewrites.egraph.layers import Explorer, Model, Part, outputs, parts, spine, states
from rewrites.egraph.template import spell_values
from rewrites.extraction import Extraction, Infeasible, Problem, extract
from rewrites.laws.law import Law
from rewrites.lowering.kernel_matches import leaf
from rewrites.lowering.lower import TURNED, Content, Lowering, Method, Use
from rewrites.lowering.mixed import Mean, Sized, priced
from rewrites.lowering.price import Prices, TimeModel
from rewrites.lowering.representations import Methods, Representable, choices
from rewrites.lowering.sharing import (
    OtherUses,
    Rent,
    Shares,
    contents,
    find_shared,
    places,
    rented,
    restore_bytes,
    users,
)
from rewrites.search.emit import AS_ROWS, Buffer, ConstantKey, Emitter
from rewrites.search.fit import Fitter
from rewrites.search.incumbents import Incumbents
from rewrites.search.substitutions import BlockSubstitution

TIE = 1e-15  # seconds a byte: of equally fast programs the smaller one


@dataclass
class Structure:
    """One program for every part, with the states between them. `time` in seconds, `memory` in stored bytes. `cost` is
    the minimised sum, equal to the time without weights for budgets; every program costs at least `bound`."""

    lowerings: list[Lowering]
    extractions: list[Extraction]
    path: list[tuple[str, str]]
    parts: list[Part]
    time: float
    cost: float
    bound: float
    greedy: float
    seconds: dict[str, float] = field(default_factory=dict)
    nodes: int = 0
    classes: int = 0
    cut: list[str] = field(default_factory=list)
    fired: frozenset[str] = frozenset()
    names: tuple[str, ...] = (OUTPUT,)  # names of the outputs, in the model's order
    last: str = OUTPUT  # name of the output of the last part
    substitutions: Mapping[int, BlockSubstitution] = field(default_factory=dict)  # the chosen ones, by number
    numbers: Sequence[int] = ()  # parts and substitutions on the path; default all parts
    infinite: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # infinities that inputs may hold

    def __post_init__(self) -> None:
        self.numbers = self.numbers or range(len(self.path))

    @property
    def route(self) -> tuple[tuple[int, tuple[str, str]], ...]:
        """The parts and substitutions on the path, each with its border states."""
        return tuple(zip(self.numbers, self.path, strict=True))

    def lowering(self, number: int) -> Lowering:
        """Return the lowering of a part or a substitution on the path."""
        return self.lowerings[self.numbers.index(number)]

    def before(self, number: int) -> str:
        """Return the border state before a part."""
        return self.path[self.numbers.index(number)][0]

    @property
    def gap(self) -> float:
        """The proved gap: the share of the cost that lies above the bound."""
        return max(0.0, self.cost - self.bound) / self.cost if self.cost else 0.0  # rounding may leave less

    @property
    def proved(self) -> float | None:
        """The gap, if any was proved; else None."""
        return self.gap if isfinite(self.gap) else None

    @cached_property
    def memory(self) -> float:
        """Bytes of all stored constants: weights, and tables of positions, each once for all parts that read it."""
        stored: dict[Hashable, float] = {}
        for number, (lowering, extraction) in enumerate(zip(self.lowerings, self.extractions, strict=True)):
            for node in extraction.nodes:
                if node.memory:
                    stored[find_shared(lowering, node.cls) or (number, node.cls)] = node.memory
        return sum(stored.values())

    @cached_property
    def contents(self) -> list[dict[Use, Content | None]]:
        """The stored content that each use of each part reads."""
        return [contents(*pair) for pair in zip(self.lowerings, self.extractions, strict=True)]

    def exactly(self, number: int, use: Use, method: Method) -> Method:
        """Return a method that stores a weight exactly, in the same layout, instead of one with an error: several uses
        of one constant still share it."""
        if not method.error:
            return method
        content = self.contents[self.numbers.index(number)][use]
        every = [known for part in self.contents for known in part.values()]
        turned = self.lowering(number).held(use, method).layout == TURNED
        shared = content is not None and every.count(content) > 1
        return Method("packed") if turned or shared else self.plainly(number, use, method)

    def plainly(self, number: int, use: Use, method: Method) -> Method:
        """Return the plain method of a use in exact programs: panels for a product, rows for a table."""
        return Method() if self.lowering(number).gathers(use) else Method("packed")

    def uses(self) -> Iterator[tuple[int, Lowering, Use, object]]:
        """Yield every use of a weight, with the number and the graph of its part, and its method."""
        for number, lowering, extraction in zip(self.numbers, self.lowerings, self.extractions, strict=True):
            for node in extraction.nodes:
                if isinstance(node.cls, Use):
                    yield number, lowering, node.cls, node.label

    @property
    def error(self) -> float:
        """The sum of the squared errors of its methods."""
        return sum(extraction.error for extraction in self.extractions)

    def program(
        self,
        meta: Mapping[str, object],
        decide: Callable[[int, Use, Method], Method] = lambda number, use, method: method,
        fitted: MutableMapping[ConstantKey, Constant] | None = None,
        fitter: Fitter | None = None,
    ) -> tuple[Program, Emitter]:
        """Return the program, its steps in the order that needs the least memory, and the emitter, which has the
        sources of its constants."""
        emitter = Emitter({} if fitted is None else fitted, fitter or Fitter())
        handed: dict[int, Buffer] = {}
        result = Buffer({}, 1)  # replaced by the first part's value
        chosen = zip(self.route, self.lowerings, self.extractions, self.parts, strict=True)
        output_names: dict[str, str] = {}
        ports: dict[str, Port] = {}
        emitter.fit(zip(self.numbers, self.lowerings, (one.nodes for one in self.extractions), strict=True), decide)
        for (number, (_, after)), lowering, extraction, part in chosen:
            named = lowering.graph.named
            handed = {named[part.border]: result} if part.border is not None else {}
            handed |= {named[name]: input_buffer(port) for name, port in part.template.entered.items()}
            ports |= {port.name: port for port in part.template.entered.values()}
            emitter.emit(lowering, extraction.nodes, number, handed, decide)
            result = emitter.values[named[part.roots[after]]]
            if after == FULL and AS_ROWS in result.names:
                emitter.borders[number] = result.names[AS_ROWS]
            output_names |= {name: emitter.output(named[cls], name in ports) for name, cls in part.outputs.items()}
        return self.made(emitter, output_names | {self.last: emitter.rows(result)}, ports, meta), emitter

    def made(
        self, emitter: Emitter, found: dict[str, str], ports: dict[str, Port], meta: Mapping[str, object]
    ) -> Program:
        """Return the program of the emitted steps with these outputs. An output with the name of an input is the
        input's next value: state. Inputs that no step reads are left out."""
        outputs = {name: found[name] for name in self.names if name not in ports}
        if not outputs:
            raise InputError("a model of state alone: name an output, too")
        outputs = {name: emitter.own(value, ports) for name, value in outputs.items()}
        read = {name for step in emitter.steps for name in step.operands.values()}
        numbers = (value for part in self.parts for value in part.template.values.values())
        kind = Planned if any(isinstance(value, Promised) for value in numbers) else Program
        program = kind(
            emitter.steps,
            emitter.constants,
            outputs,
            meta,
            inputs=[
                replace(port, infinite=self.infinite.get(port.name, ())) for port in ports.values() if port.name in read
            ],
            state={name: value for name, value in found.items() if name in ports},
        )
        return ordered(program, self.lowerings[0].prices.extents)


@dataclass
class SearchSpace:
    """Every program of a model that laws reach, part by part and between any two border states, for a batch of these
    extents, or for several with their shares, on one machine or each on its own (mixed.py). All searches of the model
    share it. `found`: the model's parts, if already known. `like`: the space of a model of the same structure and other
    sizes, whose graphs are shared. `elsewhere`: the space of this model, with these laws and parts, on another machine,
    whose graphs and terms are shared."""

    model: Model
    laws: Sequence[Law]
    machine: TimeModel | Sequence[TimeModel]
    extents: Sized
    fusion: bool = True
    lowerings: dict[tuple[int, str], Lowering] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    found: Sequence[dict[str, Part]] = ()
    like: "SearchSpace | None" = None
    elsewhere: "SearchSpace | None" = None
    substitutions: Sequence[BlockSubstitution] = ()  # numbered behind the parts, for searches within budgets

    def __post_init__(self) -> None:
        start = time.perf_counter()
        self.found = (
            self.elsewhere.found
            if self.elsewhere
            else [
                {state: self.spell(part) for state, part in states.items()}
                for states in self.found or parts(self.model)
            ]
        )
        self.seconds["flatten"] = time.perf_counter() - start
        graphs = self.like or self.elsewhere
        self.explorer: Explorer = Explorer(self.laws) if graphs is None else graphs.explorer
        self.prices: Prices | Mean = priced(self.machine, self.extents) if self.like is None else self.like.prices
        self.first: dict[Hashable, Lowering] = {} if self.like is None else self.like.first

    @cached_property
    def tied(self) -> dict[Data, int]:
        """The leaves that the model has in several places, with the number of places."""
        return places(self.found)

    def behind(self, number: int) -> Mapping[str, Part]:
        """Return a part, or a substitution, by the state of the border before it."""
        index = number - len(self.found)
        return self.found[number] if index < 0 else {FULL: self.spell(self.substitutions[index].part)}

    def spell(self, part: Part) -> Part:
        """Return a part whose template names numbers as the laws do."""
        template = spell_values(part.template, self.laws)
        return part if template is part.template else replace(part, template=template)

    def span(self, number: int) -> tuple[int, int]:
        """Return the first and the last part that it covers."""
        index = number - len(self.found)
        return (number, number) if index < 0 else (self.substitutions[index].first, self.substitutions[index].last)

    def ways(self) -> Iterator[tuple[int, str, str]]:
        """Yield every part with its pairs of border states, then every substitution."""
        yield from states(self.found)
        yield from ((len(self.found) + index, FULL, FULL) for index in range(len(self.substitutions)))

    def shared(self, number: int) -> tuple[Data, ...]:
        """Return the leaves of a part that the model has in several places, in order."""
        if not self.tied:
            return ()
        every = {leaf(data): None for part in self.behind(number).values() for data in part.template.weights}
        return tuple(data for data in every if data in self.tied)

    def lowering(self, number: int, before: str) -> Lowering:
        """Return the lowered graph of a part behind a border state; parts of equal structure and sizes share their
        kernels."""
        if (number, before) not in self.lowerings:
            part = self.behind(number)[before]
            same, near = (part.template.text, part_sizes := sizes(part)), (part.template.text, ranked(part_sizes))
            twin = self.elsewhere.lowerings.get((number, before)) if self.elsewhere else None
            graph = self.explorer.graph(part)
            if twin is not None and twin.graph is not graph:
                twin = None
            lowered = Lowering(
                graph,
                part.template,
                self.prices,
                self.fusion,
                self.first.get(same),
                twin or self.first.get(near),
                frozenset(self.tied),
            )
            for key in (same, near):
                self.first.setdefault(key, lowered)
            self.lowerings[number, before] = lowered
        return self.lowerings[number, before]

    def lacking(self, names: Collection[str]) -> "SearchSpace":
        """Return this space without some laws, at the same prices. A graph in which none of them matched is reused."""
        laws = [law for law in self.laws if law.name not in names]
        phases = {*SCHEDULE, *(law.phase for law in laws)}
        schedule = tuple(phase for phase in self.explorer.schedule if phase in phases)
        space = SearchSpace(self.model, laws, self.machine, self.extents, self.fusion, found=self.found)
        space.explorer, space.prices = Explorer(laws, self.explorer.budget, schedule=schedule), self.prices
        for number, before, _ in states(self.found):
            same = self.lowering(number, before)
            if same.graph.fired.keys().isdisjoint(names):
                space.lowerings[number, before] = same
                space.explorer.graphs[same.template.text] = same.graph
        return space

    def problem(self, number: int, before: str, after: str, methods: Methods) -> Problem:
        """Return the programs of a part from one border state to another. The error of a substitution belongs to its
        input."""
        part, lowering = self.behind(number)[before], self.lowering(number, before)
        named = lowering.graph.named
        roots = [named[part.roots[after]], *(named[cls] for cls in part.outputs.values())]
        problem = lowering.problem(
            roots, [named[name] for name in (*([part.border] if part.border else []), *part.template.entered)], methods
        )
        if number < len(self.found):
            return problem
        border, *nodes = problem.nodes
        return problem._replace(
            nodes=[border._replace(error=self.substitutions[number - len(self.found)].error), *nodes]
        )

    def structure(
        self,
        route: Sequence[tuple[int, tuple[str, str]]],
        chosen: list[Extraction],
        bound: float,
        greedy: float,
        seconds: dict[str, float],
        cost: float | None = None,
    ) -> Structure:
        """Return one program for every part, or substitution, along a path of border states."""
        start = self.prices.start
        graphs, total = self.explorer.graphs.values(), start + sum(e.time for e in chosen)
        cost, bound = total if cost is None else start + cost, start + bound
        fired = frozenset(name for g in graphs for name in g.fired)
        count = len(self.found)
        return Structure(
            [self.lowering(n, before) for n, (before, _) in route],
            chosen,
            [pair for _, pair in route],
            [self.behind(n)[before] for n, (before, _) in route],
            total,
            cost,
            min(bound, cost),
            greedy,
            self.seconds | seconds | self.explorer.seconds(),
            sum(len(g.nodes) for g in graphs),
            sum(len(g.members) for g in graphs),
            self.limits(),
            fired,
            tuple(outputs(self.model)),
            spine(self.model),
            {n: self.substitutions[n - count] for n, _ in route if n >= count},
            [n for n, _ in route],
            infinite_inputs(outputs(self.model).values()),
        )

    def limits(self) -> list[str]:
        """Return a line for each limit that graphs met, and for each where more terms are equal than were read."""
        lowerings = self.lowerings.values()
        graphs = [*self.explorer.graphs.values(), *(lowering.graph for lowering in lowerings)]
        lines = [*(cut for graph in graphs for cut in graph.cut), *(lowering.limit for lowering in lowerings)]
        return [line for line in dict.fromkeys(lines) if line]


def search(
    model: Model,
    laws: Sequence[Law],
    machine: TimeModel | Sequence[TimeModel],
    extents: Sized,
    *,
    fusion: bool = True,
    methods: Methods | None = None,
    time_limit: float = 10.0,
    along: Sequence[tuple[str, str]] | None = None,
    found: Sequence[dict[str, Part]] = (),
) -> Structure:
    """Return the cheapest program of a model for a batch of these extents. `methods` are the representations that a
    weight may be stored in: by default every one that holds it exactly. With `along`, the cheapest program through
    these border states."""
    return cheapest(SearchSpace(model, laws, machine, extents, fusion, found=found), methods, time_limit, along)


def cheapest(
    space: SearchSpace,
    methods: Methods | None = None,
    time_limit: float = 10.0,
    along: Sequence[tuple[str, str]] | None = None,
) -> Structure:
    """Return the fastest exact program of a space: equal parts are solved once. Laws of the user's own never make it
    slower (incumbents.py)."""
    methods = Representable() if methods is None else methods
    solved: dict[Hashable, Extraction | None] = {}
    return Incumbents(space, lambda each: solve_space(each, methods, time_limit, along, solved)).settle()


def solve_space(
    space: SearchSpace,
    methods: Methods,
    time_limit: float,
    along: Sequence[tuple[str, str]] | None,
    solved: dict[Hashable, Extraction | None],
) -> Structure:
    """Return the fastest program over the lowerings of a space. `solved` are earlier extractions."""
    problems = (
        {}
        if not space.tied
        else {
            at: space.problem(*at, methods)
            for at in states(space.found)
            if space.shared(at[0]) and (along is None or along[at[0]] == at[1:])
        }
    )
    counted = users((at[0], space.lowering(*at[:2]), problem) for at, problem in problems.items())
    structure = solve_chain(space, methods, time_limit, along, Shares(counted), solved, problems)
    while space.tied:  # constants of other parts cost no bytes
        other = solve_chain(space, methods, time_limit, along, OtherUses(structure.contents), solved, problems)
        if other.time + TIE * other.memory >= structure.time + TIE * structure.memory:
            break
        structure = replace(other, bound=structure.bound, greedy=structure.greedy)
    return structure


def solve_chain(
    space: SearchSpace,
    methods: Methods,
    time_limit: float,
    along: Sequence[tuple[str, str]] | None,
    rent: Rent,
    solved: dict[Hashable, Extraction | None],
    problems: Mapping[tuple[int, str, str], Problem],
) -> Structure:
    """Return the cheapest chain of parts where each pays the share of its shared constants that `rent` sets. `solved`
    are earlier extractions, `problems` are those of parts that share."""
    best: list[dict[tuple[str, str], Extraction]] = [{} for _ in space.found]
    taken = 0.0
    for number, before, after in states(space.found):
        if along is not None and along[number] != (before, after):
            continue
        part, lowering = space.found[number][before], space.lowering(number, before)
        shared = space.shared(number)
        key = (
            part.template.text,
            id(lowering.graph),
            after,
            sizes(part),
            choices(lowering, methods),
            shared and (shared, type(rent), rent.key(number)),
        )
        start = time.perf_counter()
        if key not in solved:
            problem = problems[number, before, after] if shared else space.problem(number, before, after, methods)
            answer = solve(rented(problem, number, lowering, rent) if shared else problem, lowering, time_limit)
            solved[key] = restore_bytes(answer, problem) if shared and answer else answer
        taken += time.perf_counter() - start
        if (extraction := solved[key]) is not None:
            best[number][before, after] = extraction
    route = shortest([{pair: e.cost for pair, e in stage.items()} for stage in best])
    chosen = [best[number][pair] for number, pair in route]
    bound = lowest([{pair: e.bound for pair, e in stage.items()} for stage in best])
    return space.structure(route, chosen, bound, sum(e.greedy for e in chosen), {"extract": taken})


def input_buffer(port: Port) -> Buffer:
    """Return an input as a buffer."""
    return Buffer({AS_ROWS if port.heads == 1 else port.heads: port.name}, port.heads)


def sizes(part: Part) -> tuple[Hashable, ...]:
    """Return the inputs of a price beside the signature: the sizes of a part's values."""
    return tuple(
        value.shape if isinstance(value, Data) else tuple(value.described()) if isinstance(value, Port) else value
        for value in part.template.values.values()
    )


def ranked(sizes: Hashable, seen: dict[Hashable, int] | None = None) -> Hashable:
    """Return sizes, each replaced by the rank of its first appearance, so equal results have the same equalities; 1
    stays apart."""
    seen = {1: -1} if seen is None else seen
    if isinstance(sizes, tuple):
        return tuple(ranked(size, seen) for size in sizes)
    return seen.setdefault(sizes, len(seen)) if isinstance(sizes, int) else sizes


def solve(problem: Problem, lowering: Lowering, time_limit: float) -> Extraction | None:
    """Return the cheapest program of a part between two states; None where no program leads from one to the other."""
    try:
        return extract(problem, weights=(1, TIE, 0), families=lowering.leaves, time_limit=time_limit)
    except Infeasible:
        return None


def shortest(
    stages: Sequence[Mapping[tuple[str, str], float]], spans: Sequence[tuple[int, int]] = ()
) -> list[tuple[int, tuple[str, str]]]:
    """Return the cheapest chain through all parts, from and to the full state: numbers of stages, each with its states
    before and after. `stages` are costs by these states; `spans` are the parts that each covers, by default its own."""
    spans = spans or [(number, number) for number in range(len(stages))]
    parts = 1 + max(last for _, last in spans)
    reached: list[dict[str, tuple[float, list[tuple[int, tuple[str, str]]]]]] = [{} for _ in range(parts + 1)]
    reached[0][FULL] = 0.0, []
    for number in sorted(range(len(stages)), key=lambda number: spans[number]):
        first, last = spans[number]
        for pair, cost in stages[number].items():
            before, path = reached[first].get(pair[0], (inf, []))
            if before + cost < reached[last + 1].get(pair[1], (inf, []))[0]:
                reached[last + 1][pair[1]] = before + cost, [*path, (number, pair)]
    empty = next((part for part, after in enumerate(reached[1:]) if not after), None)
    if empty is not None:
        raise Infeasible(f"part {empty} of the model has no program: no kernel computes one of its operators")
    return reached[parts][FULL][1]


def lowest(stages: Sequence[Mapping[tuple[str, str], float]], spans: Sequence[tuple[int, int]] = ()) -> float:
    """Return the cost of the cheapest chain through all parts."""
    return sum(stages[number][pair] for number, pair in shortest(stages, spans))
