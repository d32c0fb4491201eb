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
from rewrites.laws.law import JOIN, MARK, NORMALISE, RESTRUCTURE, SELECT, SIMPLIFY, Law, is_variable
from rewrites.laws.spelling import spelled

if TYPE_CHECKING:
    from egglog.bindings import EGraph

SCHEDULE = (NORMALISE, SIMPLIFY, SELECT, RESTRUCTURE, SIMPLIFY, MARK, JOIN)
TEXT_OR_NAME = re.compile(r'"(?:\\.|[^"\\])*"|\$')             # of a template: what is quoted, or the sign of a name
OTHER_WAY = " backwards"                                    # behind the name of a law from right to left
GROWTH_LIMIT = 4                                            # budgets that the next round may reach if it grows as the
                                                            # last
PHASE_ROUNDS = {SELECT: 200, JOIN: 2}                       # operator by operator; queries with keys, then both with
                                                            # values


def write_pattern(term: Operator) -> str:
    """A term over symbols as an egglog pattern: symbols and open attributes are its variables."""
    if term.kind.name == "symbol":
        return str(term.args[0])
    parts = [f"K_{term.kind.name}", *map(write_pattern, term.children), *map(attribute, term.attributes)]
    return f"({' '.join(parts)})"


def attribute(value: object) -> str:
    return str(value) if is_variable(value) else quoted(spelled(value))


@cache
def pattern_variables(pattern: Operator) -> frozenset[str]:
    """The names of a pattern's variables, those of its attributes too."""
    names = [pattern.args[0]] if pattern.kind.name == "symbol" else filter(is_variable, pattern.attributes)
    return frozenset(map(str, names)).union(*map(pattern_variables, pattern.children))


class Direction(NamedTuple):
    """One way to read a law: where `before` matches, `after` is put beside it. `name` is that of its rule."""

    name: str
    before: tuple[Operator, ...]
    after: tuple[Operator, ...]

    @property
    def unbound(self) -> list[str]:
        """The variables of `after` that no term of `before` has: a match would not tell what they are."""
        named = frozenset[str]().union(*map(pattern_variables, self.before))
        return sorted(frozenset[str]().union(*map(pattern_variables, self.after)) - named)


def list_directions(law: Law) -> list[Direction]:
    """Both ways to read a law that is declared so, else the one from left to right."""
    left, right = law.sides()
    forwards, backwards = Direction(law.name, left, right), Direction(law.name + OTHER_WAY, right, left)
    return [forwards, backwards] if law.both else [forwards]


def is_lone(side: Operator) -> bool:
    """Tell whether a side is a variable alone, which matches what its own law makes, too: such a side is matched in
    what a graph begins with, so that the law comes to an end."""
    return side.kind.name == "symbol"


@cache
def directions(law: Law) -> tuple[Direction, ...]:
    """The ways to read a law in which a match tells what every variable is."""
    return tuple(each for each in list_directions(law) if not each.unbound)


@cache
def rules(law: Law, trace: bool = False) -> tuple[str, ...]:
    """The law as egglog rules, one for each of its `directions`; `trace` records the law of each class that it made or
    merged."""
    return tuple(write_rules(law, trace))


def write_rules(law: Law, trace: bool) -> Iterator[str]:
    for name, before, after in directions(law):
        query = [f"(= e{i} {write_pattern(side)})" for i, side in enumerate(before)] + list(law.guards)
        query += [f"(imported {side.args[0]})" for side in before if is_lone(side)]
        actions = [f"(union e{i} {write_pattern(side)})" for i, side in enumerate(after)]
        if trace:
            actions += [f'(made_by e{i} "{law.name}")' for i in range(len(after))]
        elif law.canonical:
            actions += [f"(subsume {write_pattern(side)})" for side in before if not is_lone(side)]
        yield f'(rule ({" ".join(query)}) ({" ".join(actions)}) :ruleset {law.phase} :name "{name}")'


def prelude(laws: Sequence[Law], trace: bool = False, later: Sequence[Law] = (),
            begun: Iterable[str] | None = None) -> tuple[str, ...]:
    """Sort, constructors, facts and laws, as commands. Facts are those that laws ask for, or others `later`. Where it
    is known which kinds of nodes a graph is `begun` with, what can never match in it is left out."""
    asked = {guard.strip("()").split()[0] for law in (*laws, *later) for guard in law.guards}
    among = None if begun is None else reach(begun, laws)
    bodies = [rule for law in laws for rule, (needs, _) in zip(rules(law, trace), ways(law), strict=True)
              if among is None or needs <= among]
    rulesets = [f"(ruleset {name})" for name in dict.fromkeys(("facts", *SCHEDULE, *(law.phase for law in laws)))]
    return *declarations(), *rulesets, *facts.rules(asked, among), *bodies


def declarations() -> tuple[str, ...]:
    """What declares the sort, a constructor for each kind, and facts."""
    sorts = " ".join(f"(K_{kind.name} {' '.join(arguments(kind))})" for kind in KINDS.values())
    return f"(datatype Op {sorts})", *facts.relations(), "(relation made_by (Op String))"


@cache
def ways(law: Law) -> tuple[tuple[frozenset[str], frozenset[str]], ...]:
    """For each of a law's `directions` the kinds of nodes that it matches, and those that it makes."""
    guarded = frozenset(facts.KIND.findall(" ".join(law.guards)))
    def kinds(side: tuple[Operator, ...]) -> frozenset[str]:
        return frozenset(node.kind.name for root in side for node in root.walk()) - {"symbol"}
    return tuple((kinds(each.before) | guarded, kinds(each.after)) for each in directions(law))


def reach(begun: Iterable[str], laws: Sequence[Law]) -> frozenset[str]:
    """The kinds of nodes that a graph may have which begins with these."""
    reached, left = {*begun, *facts.MADE}, [way for law in laws for way in ways(law)]
    while able := [way for way in left if way[0] <= reached]:
        left = [way for way in left if way not in able]
        reached.update(*(made for _, made in able))
    return frozenset(reached)


def arguments(kind: Kind) -> list[str]:
    """The sorts of a kind's children and attributes."""
    return ["Op"] * kind.arity + ["String"] * (len(kind.signature.parameters) - kind.arity)


class ENode(NamedTuple):
    """One member of an e-class, over classes. Laws no longer look at what is subsumed."""

    kind: str
    children: tuple[int, ...]
    attributes: tuple[str, ...]
    cls: int
    subsumed: bool


@dataclass
class Graph:
    """A saturated graph in Python: nodes, class facts, named classes; seconds by phase; what was cut by a budget."""

    nodes: list[ENode] = field(default_factory=list)
    facts: dict[str, set[Any]] = field(default_factory=lambda: defaultdict(set))
    named: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    matches: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    cut: list[str] = field(default_factory=list)

    @property
    def fired(self) -> dict[str, int]:
        """How often each law matched, in both directions together; those that never did are left out."""
        found: dict[str, int] = defaultdict(int)
        for name, count in self.matches.items():
            if count: found[name.removesuffix(OTHER_WAY)] += count
        return dict(found)

    @cached_property
    def fixed(self) -> set[int]:
        """Classes that are the same row whatever the input and the row."""
        return self.facts["constant"] & self.facts["uniform"]

    @cached_property
    def members(self) -> dict[int, list[ENode]]:
        """Class to its members; subsumed ones are left out."""
        found: dict[int, list[ENode]] = defaultdict(list)
        for node in self.nodes:
            if not node.subsumed:
                found[node.cls].append(node)
        return dict(found)

    def terms(self, template: Template, make: "Make | None" = None) -> dict[int, Operator]:
        """One operator of every class: an imported one where there is one, else the first that can be made of its
        parts. `make` gives a member's operator, or none."""
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
    """The operator that a node denotes over operators of its child classes."""
    return Operator(KINDS[node.kind], *(terms[c] for c in node.children), *(values[a] for a in node.attributes))


def fitting(node: ENode, terms: dict[int, Operator], values: dict[str, object]) -> Operator | None:
    """The operator of a node, or none where it does not fit: W @ heads(h) takes one head, though its class, h
    matrices, takes h."""
    try:
        return build(node, terms, values)
    except ShapeError:
        return None


class Engines(threading.local):
    """The engines of a thread, by number; all go with it. `whose` is another for every thread: what holds an engine and
    is remembered, is remembered for it. `kept` are those that its graphs share, by all that they were told, each with
    how many have asked for it."""

    def __init__(self) -> None:
        self.by_number, self.whose = dict[int, "EGraph"](), object()
        self.kept: dict[tuple[str, ...], tuple[EgglogEngine, int]] = {}


KEPT_ENGINES = 3                                            # by a thread, of up to 70 MB: that of no laws, one for
                                                            # searches, one that traces
ENGINES, ENGINE_NUMBERS, NAMED_GRAPHS = Engines(), itertools.count(), itertools.count()
GONE = set[int]()                                           # the numbers of engines that nobody has any more


class EgglogEngine:
    """An egglog engine, used and dropped by the thread that made it alone, as the binding needs: whichever thread
    collects the last that has this says so, and its own thread drops it at once, or when it makes the next one."""

    def __init__(self) -> None:
        from egglog.bindings import EGraph
        self.number = next(ENGINE_NUMBERS)
        finalize(self, leave, self.number).atexit = False
        leave()
        ENGINES.by_number[self.number] = EGraph()

    def __getattr__(self, name: str) -> Any:
        if (made := ENGINES.by_number.get(self.number)) is None:
            raise RuntimeError("an engine is used by a thread that did not make it")
        return getattr(made, name)


def leave(*numbers: int) -> None:
    """Nobody has the engines of these numbers: this thread drops those that are its own, and all that others left."""
    GONE.update(numbers)
    for number in [number for number in [*ENGINES.by_number] if number in GONE]:
        ENGINES.by_number.pop(number, None)
        GONE.discard(number)


def engine(laws: Sequence[Law], trace: bool = False, later: Sequence[Law] = (),
           begun: Iterable[str] | None = None) -> EgglogEngine:
    """An egglog engine that knows these laws and holds no term yet: graphs may share it, one after another, and those
    of terms of the kinds that are `begun` with. `later` are laws that it is told afterwards."""
    made = EgglogEngine()
    made.run_program(*(each for text in prelude(laws, trace, later, begun) for each in parsed(text)))
    return made


@cache
def parsed(text: str) -> tuple[Any, ...]:
    """What an engine is told by a text: any engine's parser says the same."""
    from egglog.bindings import EGraph
    return tuple(EGraph().parse_program(text))


def shared_engine(laws: Sequence[Law], trace: bool = False) -> EgglogEngine:
    """An engine of these laws that all graphs of this thread share: to tell one its laws takes as long as many a graph.
    It keeps KEPT_ENGINES, of which the last and those that were asked for most."""
    told, kept = prelude(laws, trace), ENGINES.kept
    made, uses = kept.pop(told) if told in kept else (engine(laws, trace), 0)
    while len(kept) >= KEPT_ENGINES: del kept[min(kept, key=lambda each: kept[each][1])]
    kept[told] = made, uses + 1
    return made


def discard(spoiled: EgglogEngine) -> None:
    """No graph gets an engine again in which one was begun and not ended."""
    for told in [told for told, (each, _) in ENGINES.kept.items() if each is spoiled]: del ENGINES.kept[told]


def saturate(template: Template, laws: Sequence[Law], *, trace: bool = False, budget: int = 5000, rounds: int = 12,
             shared: EgglogEngine | None = None, alone: bool = False, schedule: Sequence[str] = SCHEDULE) -> Graph:
    """Every program that the laws reach from the template, phase by phase. A phase that is not saturated after `rounds`
    is stopped; past `budget` nodes all are, and before a round that would go far beyond. `Graph.cut` says which law was
    growing. `shared` is an engine of these laws, by default this thread's; `alone`, it has one that nothing else
    uses. `schedule` are the phases that run, in turn."""
    graph, names = Graph(), {each.name + back for each in laws for back in ("", OTHER_WAY)}
    start = time.perf_counter()
    if alone: used = engine(laws, trace, begun={entry.kind for entry in template.entries})
    else: used = shared_engine(laws, trace) if shared is None else shared
    graph.seconds["rules"] = time.perf_counter() - start
    if alone: return fill_graph(used, graph, template, names, budget, rounds, schedule)
    try:
        used.run_program(*used.parse_program("(push)"))
        fill_graph(used, graph, template, names, budget, rounds, schedule)
        used.run_program(*used.parse_program("(pop)"))
        return graph
    except BaseException:
        discard(used)
        raise


def fill_graph(used: EgglogEngine, graph: Graph, template: Template, names: Container[str], budget: int,
               rounds: int, schedule: Sequence[str]) -> Graph:
    """The graph of a template, made in an engine. `names` are of rules that laws are."""

    def run(program: str, phase: str) -> Any:
        start = time.perf_counter()
        outputs = used.run_program(*used.parse_program(program))
        graph.seconds[phase] += time.perf_counter() - start
        return outputs

    sign = f"${next(NAMED_GRAPHS)}_"                        # no graph names what one that was popped has named
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
                graph.cut.append(f"{phase} at {rows} nodes after {number + 1} rounds: "
                                 f"{max(fired, key=lambda name: fired[name])} was growing")
                break
    run("(run-schedule (saturate (run facts)))", "facts")
    start = time.perf_counter()
    freeze(used, graph, sign)
    keep_imported(graph, template)
    graph.seconds["freeze"] = time.perf_counter() - start
    return graph


def freeze(shared: EgglogEngine, graph: Graph, sign: str = "$") -> None:
    """Reads all rows at once; classes are numbered from 0 in the order they are met; `sign` begins names."""
    numbers: dict[Hashable, int] = {}
    string = shared.value_to_string

    def read(value: Hashable, sort: str) -> Any:
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
            else:
                graph.facts[name].add(inputs[0] if len(inputs) == 1 else inputs)


def keep_imported(graph: Graph, template: Template) -> None:
    """What was imported stays a member whatever subsumed it, and so do its rows that are picked early, so the import
    itself is among the programs, and no choice of laws leaves a class without one."""
    picks = {node.cls for node in graph.nodes if node.kind == "pick"}
    picked = {node.cls for node in graph.nodes if node.kind == "compose" and node.children[1] in picks}
    imported = imported_keys(graph, template)
    graph.nodes = [node._replace(subsumed=node.subsumed and node[:3] not in imported and node.cls not in picked)
                   for node in graph.nodes]


def imported_keys(graph: Graph, template: Template) -> set[tuple[str, tuple[int, ...], tuple[str, ...]]]:
    """Kind, classes of the children and attributes of each imported node."""
    return {(entry.kind, tuple(graph.named[child] for child in entry.children), entry.attributes)
            for entry in template.entries}


def imported_part(graph: Graph, template: Template) -> Graph:
    """The imported nodes alone, with the classes and facts of the whole graph."""
    imported = imported_keys(graph, template)
    return Graph([node for node in graph.nodes if node[:3] in imported], graph.facts, graph.named)
