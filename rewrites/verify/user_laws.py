"""Laws and approximations of a user, functions or files of functions, which are tried before they are used. A file is
run, as any imported module is; its declarations are used only after they passed. A wrong law is refused with an
example; a true law that the graph cannot use is left out, with a line that states the reason."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from formats import FORMATS
from formats.core.errors import InputError
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.shapes import brief
from opmatrix.algebra.term import Operator
from opmatrix.runtime.codegen.custom_modules import list_things, run_file
from rewrites.egraph.egraph import SCHEDULE, directions, list_directions
from rewrites.egraph.law_matches import compare_sides, describe_mismatch, find_mismatch, find_unasked, list_needless
from rewrites.laws import EXACT_LAWS
from rewrites.laws.implementation import implementations
from rewrites.laws.kernel_law import Implementation
from rewrites.laws.law import EXACT, ROWS, Law, apart, input_columns, ragged
from rewrites.search.approximation import Approximation
from rewrites.verify.graphs import check_seeded

DRAWS, SIDES_TOLERANCE = 8, 1e-9
TRIED = (12, 8)  # shape of the weight on which an approximation is tried


@dataclass(frozen=True)
class UserDeclarations:
    """The declarations of a file: its true laws, those included that the graph cannot use; `left_out` has a line for
    each of the latter."""

    laws: tuple[Law, ...] = ()
    approximations: tuple[Approximation, ...] = ()
    left_out: tuple[str, ...] = ()


def load_laws(file: str | Path) -> UserDeclarations:
    """Return the laws and approximations that a file declares, after each one was tried. Raises InputError, which
    names the file, the line and the law."""
    file = Path(file)
    module = run_file(file)
    declarations = [
        value
        for value in vars(module).values()
        if isinstance(value, Law | Approximation) and value.body.__code__.co_filename == str(file.absolute())
    ]
    once = sorted(
        {id(value): value for value in declarations}.values(), key=lambda each: each.body.__code__.co_firstlineno
    )
    laws = tuple(declaration for declaration in once if isinstance(declaration, Law))
    approximations = tuple(declaration for declaration in once if isinstance(declaration, Approximation))
    if not declarations and next(list_things(module), None) is None:
        raise InputError(
            f"{file}: it declares no law: put @law(...) or @approximation(...) before a function (see "
            "docs/add_a_law.md)"
        )
    distinct((*laws, *approximations))
    _, left_out = admit_laws(laws)
    for approximation in approximations:
        try_approximation(approximation)
    return UserDeclarations(laws, approximations, left_out)


def admit_laws(laws: Sequence[Law]) -> tuple[tuple[Law, ...], tuple[str, ...]]:
    """Return the laws that a graph can use, and a line for each true law that it cannot. Laws that come with opmatrix
    are not tried. Raises InputError, which names the place of the law, for a wrong law and for two laws of one name."""
    names = [law.name for law in laws]
    usable, lines = list[Law](), list[str]()
    for law in laws:
        if law not in EXACT_LAWS:
            if names.count(law.name) > 1:
                raise InputError(f"{locate(law)}: another law has this name: rename it")
            if reason := try_law(law, tuple(other for other in laws if other not in EXACT_LAWS)):
                lines.append(f"{locate(law)}: it is left out: {reason}")
                continue
        usable.append(law)
    return tuple(usable), tuple(lines)


def locate(each: Law | Approximation) -> str:
    """Return the place of a declaration, and its name."""
    code = getattr(each.body, "__code__", None)
    place = f"{code.co_filename}:{code.co_firstlineno}: " if code else ""
    return f"{place}{'law' if isinstance(each, Law) else 'approximation'} {each.name}"


def distinct(declared: Sequence[Law | Approximation]) -> None:
    """Raise InputError if a declaration has the name of another one, of a law of opmatrix or of a format."""
    ours: list[Law | Implementation] = [*EXACT_LAWS, *implementations()]
    taken = {str(name): "opmatrix has one" for name in (*(law.name for law in ours), *FORMATS)}
    for declaration in declared:
        if declaration.name in taken:
            raise InputError(f"{locate(declaration)}: {taken[declaration.name]} of that name: rename it")
        taken[declaration.name] = "the file has another one"


@cache
def try_law(law: Law, laws: tuple[Law, ...]) -> str:
    """Return the reason why a true law cannot be used beside the user's other laws; empty if it can. Raises InputError
    for a wrong law. A right one is written over symbols, holds on random numbers, alone and in a graph, and needs its
    conditions."""
    where = locate(law)
    if law.kind != EXACT or law.phase not in SCHEDULE:
        phases = ", ".join(dict.fromkeys(SCHEDULE))
        raise InputError(f"{where}: kind {law.kind!r}, phase {law.phase!r}: a law is {EXACT!r}, in one of {phases}")
    try:
        law.sides()
        if unasked := find_unasked(law):
            raise AssertionError(unasked)
        example = failing(law)
        law.check(np.random.default_rng(0)) if example is None else None
    except AssertionError as error:
        raise InputError(f"{where}: {error}") from error
    except Exception as error:
        raise InputError(f"{where}: its sides do not fit: {error}") from error
    if example is not None:
        raise InputError(f"{where}: it is wrong: {example}")
    if reason := find_obstacle(law):
        return reason
    if needless := list_needless(law):
        raise InputError(f"{where}: it holds without when={needless[0]!r}, too: leave that out")
    if sorts := find_mismatch(law):
        return describe_mismatch(sorts)
    others = tuple(other for other in laws if other is not law and not find_obstacle(other))
    try:
        wrong, _ = check_seeded([law], (*EXACT_LAWS, *others, law))
    except Exception as error:
        return f"the graph refuses it: {brief(str(error), 200)}"
    if not wrong:
        return ""
    if wrong[0].difference == np.inf:
        return f"with the other laws it makes terms that do not fit: {wrong[0]}"
    raise InputError(f"{where}: with the other laws it equates terms that are not equal: {wrong[0]}")


def find_obstacle(law: Law) -> str:
    """Return the reason, read from its sides, why no graph can use a law; empty if a graph can."""
    if not (ways := directions(law)):
        unbound = list_directions(law)[0].unbound
        return (
            f"{', '.join(unbound)} occurs on the right side only, so a match of the left does not determine it: "
            "exchange the sides"
        )
    if all(a is b for way in ways for a, b in zip(way.before, way.after, strict=True)):
        return "both sides are one term"
    return ""


def failing(law: Law) -> str | None:
    """Return an example on which the two sides differ: the seed, the drawn variables, the first number that differs;
    None if there is none. Raises TypeError if the sides fit in no trial."""
    misfit: TypeError | None = None
    for seed in range(DRAWS):
        rng = np.random.default_rng(seed)
        for variables in law.trials(rng) if seed == 0 else [law.drawn(rng)]:
            try:
                example = find_difference(law, variables, rng)
            except TypeError as error:
                if compare_sides(law, variables, rng) is None:  # rows differ: no graph matches it
                    misfit = misfit or error
                    continue
                example = f"its sides do not fit: {error}"
            if example:
                drawn = ", ".join(f"{name} = {short(value)}" for name, value in variables.items())
                return f"with {drawn} (seed {seed}) {example}"
    if misfit is not None and not [*law.differences(np.random.default_rng(0))]:
        raise misfit
    return None


def find_difference(law: Law, variables: Mapping[str, object], rng: np.random.Generator) -> str | None:
    """Describe the first number at which both sides differ over these variables; None if they agree."""
    sides, batch = law.of(variables), ragged()
    x = rng.normal(size=(sum(ROWS), input_columns(sides)))
    for a, b in zip(*sides, strict=True):
        with np.errstate(invalid="ignore", over="ignore"):
            left, right = dense(a, x, batch), dense(b, x, batch)
        if left.shape == right.shape and apart(left, right) <= SIDES_TOLERANCE:
            continue
        if left.shape != right.shape:
            return f"the left is {left.shape}, the right {right.shape}"
        entry = tuple(int(i) for i in np.argwhere(~np.isclose(left, right, rtol=1e-9, atol=1e-9))[0])
        return f"entry {entry} of the left is {left[entry]:.6g}, of the right {right[entry]:.6g}"
    return None


def short(value: object) -> str:
    """Write a value briefly: an operator in 60 letters, a function by its name."""
    return brief(str(value), 60) if isinstance(value, Operator) else getattr(value, "__name__", str(value))


def try_approximation(each: Approximation) -> None:
    """Try an approximation: for every choice of its parameters it returns a matrix, the same one twice, and some
    format can store one of the matrices. Raises InputError otherwise."""
    weight = np.random.default_rng(0).normal(size=TRIED)
    try:
        held = [method for parameters in each.options() for method in each.methods(weight, parameters)]
        same = all(
            np.array_equal(a, b)
            for parameters in each.options()
            for a, b in zip(each.fitted(weight, parameters), each.fitted(weight, parameters), strict=True)
        )
    except Exception as error:
        raise InputError(f"{locate(each)}: {error}") from error
    if not same:
        raise InputError(
            f"{locate(each)}: it returns another matrix each time: draw from a generator with a fixed seed"
        )
    if not held:
        raise InputError(
            f"{locate(each)}: no format stores its result in fewer bytes than dense: it must keep "
            "at most half of the entries, round to float16, or give two thin factors"
        )
