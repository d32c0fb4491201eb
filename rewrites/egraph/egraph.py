"""The e-graph: kinds and laws as egglog text, saturated in phases, read back in bulk with freeze()."""

import itertools
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import finalize

from opmatrix.algebra.shapes import ShapeError
from opmatrix.algebra.term import KINDS, Kind, Operator
from rewrites.egraph.template import Template, quoted
from rewrites.laws import facts
from rewrites.laws.law import JOIN, MARK, NORMALISE, RESTRUCTURE, SELECT, SIMPLIFY, Law, is_variable, list_summands
from rewrites.laws.spelling import spelled

if TYPE_CHECKING:
    from egglog.bindings import EGraph

SCHEDULE = (NORMALISE, SIMPLIFY, SELECT, RESTRUCTURE, SIMPLIFY, MARK, JOIN)
TEXT_OR_NAME = re.compile(r'"(?:\\.|[^"\\])*"|\$')  # in a template: a quoted text, or the sign of a name
OTHER_WAY = " backwards"  # suffix of the name of a law from right to left
GROWTH_LIMIT = 4  # most budgets that the next round may reach if it grows as
# the last one did
PHASE_ROUNDS = {SELECT: 200, JOIN: 2}  # rounds: one an operator; queries with keys, then both with
# values


def write_pattern(term: Operator) -> str:
    """Return a term over symbols as an egglog pattern: symbols and open attributes are its variables."""
    if term.kind.name == "symbol":
        return str(term.args[0])
    parts = [f"K_{term.kind.name}", *map(write_pattern, term.children), *map(attribute, term.attributes)]
    return f"({' '.join(parts)})"


def attribute(value: object) -> str:
    """Write an attribute of a pattern: a variable by its name, a sum of two by both, any other as a text."""
    if summands := list_summands(value):
        return "_plus_".join(summands)
    return str(value) if is_variable(value) else quoted(spelled(value))


def list_sums(sides: Iterable[Operator]) -> Iterator[str]:
    """Yield the fact that names each sum of attributes on these sides."""
    nodes = (node for side in sides for node in side.walk())
    for value in dict.fromkeys(value for node in nodes for value in node.attributes):
        if summands := list_summands(value):
            yield f"(= {attribute(value)} ({facts.LAG_SUM} {' '.join(summands)}))"


@cache
def pattern_variables(pattern: Operator) -> frozenset[str]:
    """Return the names of a pattern's variables, those of its attributes too."""
    names = [pattern.args[0]] if pattern.kind.name == "symbol" else filter(is_variable, pattern.attributes)
    return frozenset(map(str, names)).union(*map(pattern_variables, pattern.children))


class Direction(NamedTuple):
    """One way to read a law: where `before` matches, `after` is added as an equal. `name` is that of its rule."""

    name: str
    before: tuple[Operator, ...]
    after: tuple[Operator, ...]

    @property
    def unbound(self) -> list[str]:
        """The variables of `after` that no term of `before` has: a match would not bind them."""
        named = frozenset[str]().union(*map(pattern_variables, self.before))
        return sorted(frozenset[str]().union(*map(pattern_variables, self.after)) - named)


def list_directions(law: Law) -> list[Direction]:
    """Return both ways to read a law with `both`, else the one from left to right."""
    left, right = law.sides()
    forwards, backwards = Direction(law.name, left, right), Direction(law.name + OTHER_WAY, right, left)
    return [forwards, backwards] if law.both else [forwards]


def is_lone(side: Operator) -> bool:
    """True if a side is a variable alone, which also matches the results of its own law. Such a side is matched only in
    the imported nodes, so that the law terminates."""
    return side.kind.name == "symbol"


@cache
def directions(law: Law) -> tuple[Direction, ...]:
    """Return the ways to read a law in which a match binds every variable."""
    return tuple(direction for direction in list_directions(law) if not direction.unbound)


@cache
def rules(law: Law, trace: bool = False) -> tuple[str, ...]:
    """Return the law as egglog rules, one for each of its `directions`; `trace` records the law of each class that it
    added or merged."""
    return tuple(write_rules(law, trace))


def write_rules(law: Law, trace: bool) -> Iterator[str]:
    """Write the egglog rules of a law, one for each direction. Without `trace` the left side of a canonical law is not
    matched again; with it each class is noted as made by the law."""
    for name, before, after in directions(law):
        query = [f"(= e{i} {write_pattern(side)})" for i, side in enumerate(before)] + list(law.guards)
        query += [f"(imported {side.args[0]})" for side in before if is_lone(side)]
        query += list_sums(after)
        actions = [f"(union e{i} {write_pattern(side)})" for i, side in enumerate(after)]
        if trace:
            actions += [f'(made_by e{i} "{law.name}")' for i in range(len(after))]
        elif law.canonical:
            actions += [f"(subsume {write_pattern(side)})" for side in before if not is_lone(side)]
        yield f'(rule ({" ".join(query)}) ({" ".join(actions)}) :ruleset {law.phase} :name "{name}")'


def prelude(
    laws: Sequence[Law], trace: bool = False, later: Sequence[Law] = (), begun: Iterable[str] | None = None
) -> tuple[str, ...]:
    """Return sort, constructors, facts and laws, as commands. Facts are the ones that these laws, or the laws in
    `later`, require. If `begun` has the kinds of nodes of a graph at its start, rules that can never match in it are
    left out."""
    asked = {guard.strip("()").split()[0] for law in (*laws, *later) for guard in law.guards}
    among = None if begun is None else reach(begun, laws)
    bodies = [
        rule
        for law in laws
        for rule, (needs, _) in zip(rules(law, trace), ways(law), strict=True)
        if among is None or needs <= among
    ]
    rulesets = [f"(ruleset {name})" for name in dict.fromkeys(("facts", *SCHEDULE, *(law.phase for law in laws)))]
    return *declarations(), *rulesets, *facts.rules(asked, among), *bodies


def declarations() -> tuple[str, ...]:
    """Return the commands that declare the sort, a constructor for each kind, and facts."""
    sorts = " ".join(f"(K_{kind.name} {' '.join(arguments(kind))})" for kind in KINDS.values())
    return f"(datatype Op {sorts})", *facts.relations(), "(relation made_by (Op String))"


@cache
def ways(law: Law) -> tuple[tuple[frozenset[str], frozenset[str]], ...]:
    """Return, for each of a law's `directions`, the kinds of nodes that it matches, and those that it adds."""
    guarded = frozenset(facts.KIND.findall(" ".join(law.guards)))

    def kinds(side: tuple[Operator, ...]) -> frozenset[str]:
        """Return the kinds of the nodes of one side."""
        return frozenset(node.kind.name for root in side for node in root.walk()) - {"symbol"}

    return tuple((kinds(direction.before) | guarded, kinds(direction.after)) for direction in directions(law))


def reach(begun: Iterable[str], laws: Sequence[Law]) -> frozenset[str]:
    """Return the kinds of nodes that a graph may reach that starts with these."""
    reached, left = {*begun, *facts.MADE}, [way for law in laws for way in ways(law)]
    while able := [way for way in left if way[0] <= reached]:
        left = [way for way in left if way not in able]
        reached.update(*(added for _, added in able))
    return frozenset(reached)


def arguments(kind: Kind) -> list[str]:
    """Return the sorts of a kind's children and attributes."""
    return ["Op"] * kind.arity + ["String"] * (len(kind.signature.parameters) - kind.arity)


class ENode(NamedTuple):
    """One member of an e-class, over classes. Laws no longer match a subsumed node."""

    kind: str
    children: tuple[int, ...]
    attributes: tuple[str, ...]
    cls: int
    subsumed: bool


@dataclass
class Graph:
    """A saturated graph in Python: nodes, class facts, named classes; seconds by phase; a line for each phase cut by
    the budget."""

    nodes: list[ENode] = field(default_factory=list)
    facts: dict[str, set[Any]] = field(default_factory=lambda: defaultdict(set))
    named: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    matches: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    cut: list[str] = field(default_factory=list)

    @property
    def fired(self) -> dict[str, int]:
        """Number of matches of each law, in both directions together; laws without a match are left out."""
        counts: dict[str, int] = defaultdict(int)
        for name, count in self.matches.items():
            if count:
                counts[name.removesuffix(OTHER_WAY)] += count
        return dict(counts)

    @cached_property
    def fixed(self) -> set[int]:
        """Classes that are the same row for every input and every row."""
        return self.facts["constant"] & self.facts["uniform"]

    @cached_property
    def members(self) -> dict[int, list[ENode]]:
        """The members of each class; subsumed ones are left out."""
        by_class: dict[int, list[ENode]] = defaultdict(list)
        for node in self.nodes:
            if not node.subsumed:
                by_class[node.cls].append(node)
        return dict(by_class)

    def terms(self, template: Template, make: "Make | None" = None) -> dict[int, Operator]:
        """Return one operator of every class: an imported one where there is one, else the first that can be built from
        its children. `make` returns a member's operator, or None."""
        values, make = template.values, make or fitting
        built = {self.named[name]: term for name, term in reversed(template.instance(values).items())}
        todo = [node for node in self.nodes if node.cls not in built]
        while todo:
            rest = []
            for node in todo:
                if node.cls in built:
                    continue
                if not all(child in built for child in node.children):
                    rest.append(node)
                elif (term := make(node, built, values)) is not None:
                    built[node.cls] = term
            if len(rest) == len(todo):
                break
            todo = rest
        return built


Make = Callable[[ENode, dict[int, Operator], dict[str, object]], Operator | None]


def build(node: ENode, terms: dict[int, Operator], values: dict[str, object]) -> Operator:
    """Return the operator that a node denotes over operators of its child classes."""
    return Operator(KINDS[node.kind], *(terms[c] for c in node.children), *(values[a] for a in node.attributes))


def fitting(node: ENode, terms: dict[int, Operator], values: dict[str, object]) -> Operator | None:
    """Return the operator of a node, or None where it does not fit: W @ heads(h) takes one head, though its class, h
    matrices, takes h."""
    try:
        return build(node, terms, values)
    except ShapeError:
        return None


class Engines(threading.local):
    """The engines of a thread, by number; they are dropped with it. `whose` is a different object for every thread: an
    object that holds an engine is cached under it. `kept` are the engines that its graphs share, by their whole
    prelude, each with the number of requests."""

    def __init__(self) -> None:
        self.by_number, self.whose = dict[int, "EGraph"](), object()
        self.kept: dict[tuple[str, ...], tuple[EgglogEngine, int]] = {}


KEPT_ENGINES = 3  # cached engines of a thread, up to 70 MB each: of no laws,
# for searches, and with trace
ENGINES, ENGINE_NUMBERS, NAMED_GRAPHS = Engines(), itertools.count(), itertools.count()
GONE = set[int]()  # the numbers of engines without a reference


class EgglogEngine:
    """An egglog engine, used and dropped only by the thread that made it, as the binding requires. Any thread may
    collect the last reference; that marks the number as gone, and the engine's own thread drops it at once, or when it
    makes the next one."""

    def __init__(self) -> None:
        from egglog.bindings import EGraph

        self.number = next(ENGINE_NUMBERS)
        finalize(self, leave, self.number).atexit = False
        leave()
        ENGINES.by_number[self.number] = EGraph()

    def __getattr__(self, name: str) -> Any:
        if (egraph := ENGINES.by_number.get(self.number)) is None:
            raise RuntimeError("an engine is used by a thread that did not make it")
        return getattr(egraph, name)


def leave(*numbers: int) -> None:
    """Mark the engines of these numbers as unused. This thread drops its own ones, also those that other threads have
    marked."""
    GONE.update(numbers)
    for number in [number for number in [*ENGINES.by_number] if number in GONE]:
        ENGINES.by_number.pop(number, None)
        GONE.discard(number)


def engine(
    laws: Sequence[Law], trace: bool = False, later: Sequence[Law] = (), begun: Iterable[str] | None = None
) -> EgglogEngine:
    """Return an egglog engine with these laws and no term yet. Graphs may share it, one after another, if their terms
    begin with the kinds in `begun`. `later` are laws that it gets afterwards."""
    new_engine = EgglogEngine()
    new_engine.run_program(*(command for text in prelude(laws, trace, later, begun) for command in parsed(text)))
    return new_engine


@cache
def parsed(text: str) -> tuple[Any, ...]:
    """Return the parsed commands of a text: the parsers of all engines are equal."""
    from egglog.bindings import EGraph

    return tuple(EGraph().parse_program(text))


def shared_engine(laws: Sequence[Law], trace: bool = False) -> EgglogEngine:
    """Return an engine of these laws that all graphs of this thread share, since loading the laws takes as long as many
    a graph. KEPT_ENGINES are cached: the last one and the most requested ones."""
    told, engines = prelude(laws, trace), ENGINES.kept
    chosen, uses = engines.pop(told) if told in engines else (engine(laws, trace), 0)
    while len(engines) >= KEPT_ENGINES:
        del engines[min(engines, key=lambda each: engines[each][1])]
    engines[told] = chosen, uses + 1
    return chosen


def discard(spoiled: EgglogEngine) -> None:
    """Remove an engine from the cache, after a graph was begun in it and not ended."""
    for told in [told for told, (known, _) in ENGINES.kept.items() if known is spoiled]:
        del ENGINES.kept[told]


def saturate(
    template: Template,
    laws: Sequence[Law],
    *,
    trace: bool = False,
    budget: int = 5000,
    rounds: int = 12,
    shared: EgglogEngine | None = None,
    alone: bool = False,
    schedule: Sequence[str] = SCHEDULE,
) -> Graph:
    """Return the graph of every program that the laws reach from the template, phase by phase. A phase that is not
    saturated after `rounds` is stopped; past `budget` nodes all phases are, and also before a round that would far
    exceed it. `Graph.cut` names the law that was growing. `shared` is an engine of these laws, by default this
    thread's. With `alone` the graph has an engine of its own. `schedule` are the phases that run, in turn."""
    graph, names = Graph(), {law.name + back for law in laws for back in ("", OTHER_WAY)}
    start = time.perf_counter()
    if alone:
        used = engine(laws, trace, begun={entry.kind for entry in template.entries})
    else:
        used = shared_engine(laws, trace) if shared is None else shared
    graph.seconds["rules"] = time.perf_counter() - start
    if alone:
        return fill_graph(used, graph, template, names, budget, rounds, schedule)
    try:
        used.run_program(*used.parse_program("(push)"))
        fill_graph(used, graph, template, names, budget, rounds, schedule)
        used.run_program(*used.parse_program("(pop)"))
        return graph
    except BaseException:
        discard(used)
        raise


def fill_graph(
    used: EgglogEngine,
    graph: Graph,
    template: Template,
    names: Container[str],
    budget: int,
    rounds: int,
    schedule: Sequence[str],
) -> Graph:
    """Fill and return the graph of a template, built in an engine. `names` are the names of the rules of laws."""

    def run(program: str, phase: str) -> Any:
        """Run commands, and add their seconds to those of a phase."""
        start = time.perf_counter()
        outputs = used.run_program(*used.parse_program(program))
        graph.seconds[phase] += time.perf_counter() - start
        return outputs

    sign = f"${next(NAMED_GRAPHS)}_"  # a name of a popped graph is never used again
    run(TEXT_OR_NAME.sub(lambda found: sign if found[0] == "$" else found[0], template.text), "load")
    rows, wild = len(template.entries), False
    for phase in schedule:
        for number in range(limit := PHASE_ROUNDS.get(phase, rounds) * (rows <= budget and not wild)):
            run("(run-schedule (saturate (run facts)))", "facts")
            done, sizes = run(f"(run {phase} 1) (print-size)", phase)
            fired = {name: count for name, count in done.report.num_matches_per_rule.items() if name in names}
            for name, count in fired.items():
                graph.matches[name] += count
            if not done.report.updated:
                break
            before, rows = rows, sum(count for name, count in sizes.sizes if name.startswith("K_"))
            wild = rows * rows > GROWTH_LIMIT * budget * max(before, 1)  # a round cannot be stopped once it has begun
            if fired and (rows > budget or wild or (number == limit - 1 and phase not in PHASE_ROUNDS)):
                graph.cut.append(
                    f"{phase} at {rows} nodes after {number + 1} rounds: "
                    f"{max(fired, key=lambda name: fired[name])} was growing"
                )
                break
    run("(run-schedule (saturate (run facts)))", "facts")
    start = time.perf_counter()
    freeze(used, graph, sign)
    keep_imported(graph, template)
    graph.seconds["freeze"] = time.perf_counter() - start
    return graph


def freeze(shared: EgglogEngine, graph: Graph, sign: str = "$") -> None:
    """Read all rows at once. Classes are numbered from 0 in the order they occur; `sign` begins names."""
    numbers: dict[Hashable, int] = {}
    string = shared.value_to_string

    def read(value: Hashable, sort: str) -> Any:
        """Return the number of a class, or the text of an attribute."""
        return numbers.setdefault(value, len(numbers)) if sort == "Op" else string(value)

    for name, function in shared.freeze().functions.items():
        sorts = function.input_sorts
        for row in function.rows:
            inputs = tuple(read(value, sort) for value, sort in zip(row.inputs, sorts, strict=True))
            if function.is_let_binding:
                graph.named[f"${name.removeprefix(sign)}"] = read(row.output, "Op")
            elif name.startswith("K_"):
                arity = KINDS[name[2:]].arity
                cls = read(row.output, "Op")
                graph.nodes.append(ENode(name[2:], inputs[:arity], inputs[arity:], cls, row.subsumed))
            elif name != facts.LAG_SUM:  # a table of all lags, which tells nothing of the graph
                graph.facts[name].add(inputs[0] if len(inputs) == 1 else inputs)


def keep_imported(graph: Graph, template: Template) -> None:
    """Restore imported nodes that were subsumed, and rows of them that are picked early, as members. So the imported
    term itself is among the programs, and no choice of laws leaves a class without a program."""
    picks = {node.cls for node in graph.nodes if node.kind == "pick"}
    picked = {node.cls for node in graph.nodes if node.kind == "compose" and node.children[1] in picks}
    imported = imported_keys(graph, template)
    graph.nodes = [
        node._replace(subsumed=node.subsumed and node[:3] not in imported and node.cls not in picked)
        for node in graph.nodes
    ]


def imported_keys(graph: Graph, template: Template) -> set[tuple[str, tuple[int, ...], tuple[str, ...]]]:
    """Return kind, classes of the children and attributes of each imported node."""
    return {
        (entry.kind, tuple(graph.named[child] for child in entry.children), entry.attributes)
        for entry in template.entries
    }


def imported_part(graph: Graph, template: Template) -> Graph:
    """Return the imported nodes alone, with the classes and facts of the whole graph."""
    imported = imported_keys(graph, template)
    return Graph([node for node in graph.nodes if node[:3] in imported], graph.facts, graph.named)
