"""Laws and approximations of a user's own, functions or files of them, tried before they take part. A file is run, as
any module that is imported is; nothing in it takes part before it was tried. A wrong law is refused with an example; a
true one that the graph cannot use is left out, with a line that says why."""
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
TRIED = (12, 8)                                             # shape of the weight that an approximation is tried on


@dataclass(frozen=True)
class UserDeclarations:
    """The declarations of a file: true laws, those that cannot be used among them, for each of which `left_out` has a
    line."""

    laws: tuple[Law, ...] = ()
    approximations: tuple[Approximation, ...] = ()
    left_out: tuple[str, ...] = ()


def load_laws(file: str | Path) -> UserDeclarations:
    """The laws and approximations that a file declares, each one tried. Raises InputError, which names the file, the
    line and the law."""
    file = Path(file)
    module = run_file(file)
    own = [found for found in vars(module).values()
           if isinstance(found, Law | Approximation) and found.body.__code__.co_filename == str(file.absolute())]
    once = sorted({id(each): each for each in own}.values(), key=lambda each: each.body.__code__.co_firstlineno)
    laws = tuple(each for each in once if isinstance(each, Law))
    approximations = tuple(each for each in once if isinstance(each, Approximation))
    if not own and next(list_things(module), None) is None:
        raise InputError(f"{file}: it declares no law: put @law(...) or @approximation(...) before a function (see "
                         "docs/add_a_law.md)")
    distinct((*laws, *approximations))
    _, left_out = admit_laws(laws)
    for each in approximations:
        try_approximation(each)
    return UserDeclarations(laws, approximations, left_out)


def admit_laws(laws: Sequence[Law]) -> tuple[tuple[Law, ...], tuple[str, ...]]:
    """The laws that a graph can use, and a line for each true one that it cannot. Those that come with opmatrix are not
    tried. Raises InputError, which says where it stands, for a wrong law and for two of one name."""
    names = [law.name for law in laws]
    usable, lines = list[Law](), list[str]()
    for law in laws:
        if law not in EXACT_LAWS:
            if names.count(law.name) > 1: raise InputError(f"{locate(law)}: another has that name: give it another")
            if reason := try_law(law, tuple(each for each in laws if each not in EXACT_LAWS)):
                lines.append(f"{locate(law)}: it is left out: {reason}")
                continue
        usable.append(law)
    return tuple(usable), tuple(lines)


def locate(each: Law | Approximation) -> str:
    """The place of a declaration, and its name."""
    code = getattr(each.body, "__code__", None)
    place = f"{code.co_filename}:{code.co_firstlineno}: " if code else ""
    return f"{place}{'law' if isinstance(each, Law) else 'approximation'} {each.name}"


def distinct(declared: Sequence[Law | Approximation]) -> None:
    """No name is taken."""
    ours: list[Law | Implementation] = [*EXACT_LAWS, *implementations()]
    taken = {str(name): "opmatrix has one" for name in (*(each.name for each in ours), *FORMATS)}
    for each in declared:
        if each.name in taken:
            raise InputError(f"{locate(each)}: {taken[each.name]} of that name: give it another")
        taken[each.name] = "the file has another one"


@cache
def try_law(law: Law, laws: tuple[Law, ...]) -> str:
    """The reason why a true law cannot be used beside these others of a user; empty where it can. Raises InputError for
    one that is wrong: it is written over symbols, holds on random numbers, alone and in a graph, and its conditions are
    needed."""
    where = locate(law)
    if law.kind != EXACT or law.phase not in SCHEDULE:
        phases = ", ".join(dict.fromkeys(SCHEDULE))
        raise InputError(f"{where}: kind {law.kind!r}, phase {law.phase!r}: a law is {EXACT!r}, in one of {phases}")
    try:
        law.sides()
        if unasked := find_unasked(law): raise AssertionError(unasked)
        example = failing(law)
        law.check(np.random.default_rng(0)) if example is None else None
    except AssertionError as error:
        raise InputError(f"{where}: {error}") from error
    except Exception as error:
        raise InputError(f"{where}: its sides do not fit: {error}") from error
    if example is not None:
        raise InputError(f"{where}: it is wrong: {example}")
    if reason := find_obstacle(law): return reason
    if needless := list_needless(law):
        raise InputError(f"{where}: it holds without when={needless[0]!r}, too: leave that out")
    if sorts := find_mismatch(law): return describe_mismatch(sorts)
    others = tuple(each for each in laws if each is not law and not find_obstacle(each))
    try:
        found, _ = check_seeded([law], (*EXACT_LAWS, *others, law))
    except Exception as error:
        return f"the graph refuses it: {brief(str(error), 200)}"
    if not found: return ""
    if found[0].difference == np.inf: return f"with the other laws it makes what fits nowhere: {found[0]}"
    raise InputError(f"{where}: with the other laws it makes what is not equal: {found[0]}")


def find_obstacle(law: Law) -> str:
    """The reason why no graph can use a law, as its sides tell; empty where there is none."""
    if not (ways := directions(law)):
        unbound = list_directions(law)[0].unbound
        return (f"{', '.join(unbound)} stands on the right alone, and what matches the left does not tell what it is: "
                "exchange the sides")
    if all(a is b for way in ways for a, b in zip(way.before, way.after, strict=True)):
        return "both sides are one term"
    return ""


def failing(law: Law) -> str | None:
    """An example on which the two sides differ: the seed, what was drawn, the first number that differs. Raises
    TypeError where they fit in no trial."""
    misfit: TypeError | None = None
    for seed in range(DRAWS):
        rng = np.random.default_rng(seed)
        for variables in law.trials(rng) if seed == 0 else [law.drawn(rng)]:
            try: example = find_difference(law, variables, rng)
            except TypeError as error:
                if compare_sides(law, variables, rng) is None:          # of other rows: no graph matches it
                    misfit = misfit or error
                    continue
                example = f"its sides do not fit: {error}"
            if example:
                drawn = ", ".join(f"{name} = {short(value)}" for name, value in variables.items())
                return f"with {drawn} (seed {seed}) {example}"
    if misfit is not None and not [*law.differences(np.random.default_rng(0))]: raise misfit
    return None


def find_difference(law: Law, variables: Mapping[str, object], rng: np.random.Generator) -> str | None:
    """The first number at which both sides differ over these variables; None where they agree."""
    sides, batch = law.of(variables), ragged()
    x = rng.normal(size=(sum(ROWS), input_columns(sides)))
    for a, b in zip(*sides, strict=True):
        with np.errstate(invalid="ignore", over="ignore"):
            left, right = dense(a, x, batch), dense(b, x, batch)
        if left.shape == right.shape and apart(left, right) <= SIDES_TOLERANCE: continue
        if left.shape != right.shape: return f"the left is {left.shape}, the right {right.shape}"
        entry = tuple(int(i) for i in np.argwhere(~np.isclose(left, right, rtol=1e-9, atol=1e-9))[0])
        return f"entry {entry} of the left is {left[entry]:.6g}, of the right {right[entry]:.6g}"
    return None


def short(value: object) -> str:
    return brief(str(value), 60) if isinstance(value, Operator) else getattr(value, "__name__", str(value))


def try_approximation(each: Approximation) -> None:
    """It gives a matrix for every choice of its parameters, twice the same, and some format holds one of them."""
    weight = np.random.default_rng(0).normal(size=TRIED)
    try:
        held = [method for parameters in each.options() for method in each.methods(weight, parameters)]
        same = all(np.array_equal(a, b) for parameters in each.options()
                   for a, b in zip(each.fitted(weight, parameters), each.fitted(weight, parameters), strict=True))
    except Exception as error:
        raise InputError(f"{locate(each)}: {error}") from error
    if not same:
        raise InputError(f"{locate(each)}: it gives another matrix each time: draw from a generator with a fixed "
                         "seed")
    if not held:
        raise InputError(f"{locate(each)}: no format holds what it makes in less than dense does: it is to leave "
                         "at most half of the entries, round to float16, or give two thin factors")
