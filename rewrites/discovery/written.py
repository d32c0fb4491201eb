"""Found laws as text: for people, and as a Python file of laws that `--laws` takes as it is."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from formats.core.errors import InputError
from formats.disk.files import read_text, replacing, shown, writable
from opmatrix.algebra import monoids
from opmatrix.algebra.positions.patterns import everyone
from opmatrix.algebra.term import Operator
from rewrites.discovery.rounds import FoundLaw
from rewrites.discovery.small_terms import LETTERS, flagged_name, variable
from rewrites.discovery.stated_laws import StatedEquation, count_operators
from rewrites.laws.law import Law, Name, Sort
from rewrites.verify.user_laws import load_laws

OPERATOR_SIGNS = {"add": "+", "mul": "*", "compose": "@"}
SPELT_AS = {"related": "given"}  # kinds that are written by a function of another name
LINE_COLUMNS = 120  # most columns of a line


def check_unused_place(path: Path) -> None:
    """Raise InputError for a file that exists, or that cannot be written."""
    if path.exists():
        raise InputError(f"{shown(path)}: it exists: name another file, laws are never written over")
    writable(path)


def write_laws(path: Path, laws: Sequence[FoundLaw], command: str, again: bool = False) -> None:
    """Write laws as a Python file. `command` is the command line that found them; `again`: over the same file."""
    if not again:
        check_unused_place(path)
    with replacing(path) as out:
        out.write(spell_file(laws, command).encode())


def spell_file(laws: Sequence[FoundLaw], command: str) -> str:
    """Return the text of a file of laws."""
    used = {name for one in laws for name in list_functions_of(one)}
    law_names = sorted({"law"} | {name for one in laws for sort in list_sorts(one) for name in name_parts(sort)})
    imports = [f"from rewrites.laws.law import {', '.join(law_names)}"]
    if used:
        imports.insert(0, f"from opmatrix.algebra.operators import {', '.join(sorted(used))}")
    head = f'"""Laws of `{command}`."""\n\n' + "\n".join(wrapped for line in imports for wrapped in wrap(line))
    return "\n\n\n".join([head, *map(spell_law, laws)]) + "\n"


def interrupted(command: str, done: int) -> str:
    """Return what a file says of the rounds of a command that ended."""
    return f"{command}`, interrupted behind {done} rounds; `--resume"


def read_interrupted(path: Path, command: str) -> tuple[int, list[StatedEquation]]:
    """Return the number of rounds that ended, and the equations of the laws so far, of a file that an interrupted
    command wrote. Raises InputError for a file of another command, or of one that ended."""
    declared = load_laws(path).laws
    start = re.escape(interrupted(command, 0)).replace("behind\\ 0\\ rounds", r"behind (\d+) rounds")
    if not (match := re.search(start, read_text(path))):
        raise InputError(
            f"{shown(path)}: no interrupted `{command}` wrote it: resume with the same kinds, size and seed"
        )
    return int(match[1]), [restate(law) for law in declared]


def restate(law: Law) -> StatedEquation:
    """Return the equation of a law that was read back."""
    (left,), (right,) = law.of({name: restate_variable(name, sort) for name, sort in law.variables.items()})
    headed = any(len(sort.sizes) > 1 and sort.name in ("value", "constant") for sort in law.variables.values())
    equation = StatedEquation(left, right, count_operators(left) + count_operators(right), headed)
    pool = equation.sorts
    for name, sort in law.variables.items():
        if str(sort) != str(pool[name]):
            equation = equation.widen(name, sort)
    return equation


def restate_variable(name: str, sort: Sort) -> object:
    """Return a variable of the pool by its name."""
    if name in LETTERS:
        return variable(name)
    return flagged_name(name) if sort.name in ("over", "where") else Name(name)


def wrap(line: str) -> Iterator[str]:
    """Yield an import on as many lines as it needs."""
    if len(line) <= LINE_COLUMNS:
        yield line
        return
    start, names = line.split(" import ")
    yield f"{start} import ("
    yield from (f"    {name}," for name in names.split(", "))
    yield ")"


def spell_law(entry: FoundLaw) -> str:
    """Return the text of one law: its decorator, sorts, standing and both sides."""
    equation = entry.equation
    declared = ["both=True"] if entry.law.both else []
    if entry.law.without:
        declared.append(f"without=({', '.join(map(spell_counterexample, entry.law.without))},)")
    arguments = ", ".join(f"{name}: {sort}" for name, sort in equation.sorts.items())
    return "\n".join(
        [
            f"@law({', '.join(declared)})",
            f"def {entry.law.name}({arguments}):",
            f'    """Equality of {equation.size} operators: {entry.standing}."""',
            f"    return {spell_side(equation.left)}, {spell_side(equation.right)}",
        ]
    )


def spell_counterexample(sorts: Mapping[str, Sort]) -> str:
    """Write wider sorts with which a law fails as Python."""
    return f"dict({', '.join(f'{name}={sort}' for name, sort in sorts.items())})"


def list_sorts(entry: FoundLaw) -> list[Sort]:
    """Return the sorts that a law is written with, those of its counterexamples too."""
    return [*entry.equation.sorts.values(), *(sort for other in entry.law.without for sort in other.values())]


def describe_found(entry: FoundLaw) -> str:
    """Return a law for people: name, statement, sorts, wider sorts with which it fails, standing."""
    arrow = "⇄" if entry.law.both else "→"
    sorts = ", ".join(f"{name}: {sort}" for name, sort in entry.equation.sorts.items())
    statement = f"{spell_side(entry.equation.left)} {arrow} {spell_side(entry.equation.right)}"
    fails = "; ".join(f"{name}: {sort}" for other in entry.law.without for name, sort in other.items())
    lines = [statement, f"where {sorts}", *([f"fails with {fails}"] if fails else []), entry.standing]
    return "\n    ".join([entry.law.name, *lines])


def name_parts(sort: Sort) -> list[str]:
    """Return the names of which a sort is written."""
    return [sort.name, *(str(size) for size in sort.sizes if not str(size).isdigit())]


def list_functions_of(entry: FoundLaw) -> Iterator[str]:
    """Yield the functions of the algebra that the sides of a law are written with."""
    nodes = [*entry.equation.left.walk(), *entry.equation.right.walk()]
    yield from {function_of(node) for node in nodes} - {""}


def function_of(node: Operator) -> str:
    """Return the function that writes a node; empty for a variable and for a sign."""
    kind = node.kind.name
    return "" if kind == "symbol" or kind in OPERATOR_SIGNS else SPELT_AS.get(kind, kind)


def spell_side(term: Operator) -> str:
    """Write a term as Python."""
    kind = term.kind.name
    if kind == "symbol":
        return str(term.args[0])
    if not term.children and not term.attributes:
        return kind
    if function_of(term):
        attributes = [] if monoids.sum in term.attributes else [one for one in term.attributes if one is not everyone]
        return f"{function_of(term)}({', '.join([*map(spell_side, term.children), *map(str, attributes)])})"
    left, right = term.children
    return f"{enclosed(left, kind, first=True)} {OPERATOR_SIGNS[kind]} {enclosed(right, kind)}"


def enclosed(term: Operator, outer: str, first: bool = False) -> str:
    """Write an operand, in brackets where its sign is another one or it stands on the right."""
    inner = term.kind.name
    loose = outer == "add" and inner in ("mul", "compose")
    bare = inner not in OPERATOR_SIGNS or loose or (first and inner == outer)
    return spell_side(term) if bare else f"({spell_side(term)})"
