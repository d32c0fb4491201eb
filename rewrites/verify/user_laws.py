"""Laws and approximations of a user's own Python file, tried before they take part. The file is run, as any module that
is imported is; nothing in it takes part before it was tried: a wrong law is refused with an example."""
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from formats import FORMATS
from formats.core.errors import InputError
from opmatrix.algebra.data import Data
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.shapes import brief
from opmatrix.algebra.term import Operator
from opmatrix.own.own_modules import list_things, run_file
from rewrites.compiler.approximation import Approximation
from rewrites.graph.egraph import SCHEDULE
from rewrites.law import EXACT, INPUT, ROWS, Law, apart, ragged
from rewrites.laws import EXACT_LAWS
from rewrites.laws.implementation import implementations
from rewrites.laws.kernel_law import Implementation
from rewrites.verify.graphs import check_seeded

DRAWS, SIDES_TOLERANCE = 8, 1e-9
TRIED = (12, 8)                                             # shape of the weight that an approximation is tried on


@dataclass(frozen=True)
class UserDeclarations:
    """What a file declares."""

    laws: tuple[Law, ...] = ()
    approximations: tuple[Approximation, ...] = ()


def load_laws(file: str | Path) -> UserDeclarations:
    """The laws and approximations that a file declares, each one tried. Raises InputError, which names the file, the
    line and the law."""
    file = Path(file)
    module = run_file(file)
    own = [found for found in vars(module).values()
           if isinstance(found, Law | Approximation) and found.body.__code__.co_filename == str(file.absolute())]
    once = sorted({id(each): each for each in own}.values(), key=lambda each: each.body.__code__.co_firstlineno)
    found = UserDeclarations(tuple(each for each in once if isinstance(each, Law)),
                             tuple(each for each in once if isinstance(each, Approximation)))
    if not own and next(list_things(module), None) is None:
        raise InputError(f"{file}: it declares no law: put @law(...) or @approximation(...) before a function (see "
                         "docs/add_a_law.md)")
    distinct(file, (*found.laws, *found.approximations))
    for law in found.laws:
        try_law(file, law, found.laws)
    for each in found.approximations:
        try_approximation(file, each)
    return found


def locate(file: Path, each: Law | Approximation) -> str:
    """Where something is declared, and what."""
    return (f"{file}:{each.body.__code__.co_firstlineno}: {'law' if isinstance(each, Law) else 'approximation'} "
            f"{each.name}")


def distinct(file: Path, declared: Sequence[Law | Approximation]) -> None:
    """No name is taken."""
    ours: list[Law | Implementation] = [*EXACT_LAWS, *implementations()]
    taken = {str(name): "opmatrix has one" for name in (*(each.name for each in ours), *FORMATS)}
    for each in declared:
        if each.name in taken:
            raise InputError(f"{locate(file, each)}: {taken[each.name]} of that name: give it another")
        taken[each.name] = "the file has another one"


def try_law(file: Path, law: Law, laws: Sequence[Law]) -> None:
    """A law is written over symbols, holds on random numbers, alone and in a graph."""
    where = locate(file, law)
    if law.kind != EXACT or law.phase not in SCHEDULE:
        phases = ", ".join(dict.fromkeys(SCHEDULE))
        raise InputError(f"{where}: kind {law.kind!r}, phase {law.phase!r}: a law is {EXACT!r}, in one of {phases}")
    try:
        sides = [term for side in law.sides() for term in side]
        example = failing(law)
        law.check(np.random.default_rng(0)) if example is None else None
    except AssertionError as error:
        raise InputError(f"{where}: {error}") from error
    except Exception as error:
        raise InputError(f"{where}: its sides do not fit: {error}") from error
    if example is not None:
        raise InputError(f"{where}: it is wrong: {example}")
    if numbers := [str(a) for term in sides for part in term.walk() for a in part.attributes if isinstance(a, Data)]:
        raise InputError(f"{where}: the number {numbers[0]} matches nothing in a graph, where numbers have names: make "
                         "it a variable, such as s: scalar")
    try:
        found, _ = check_seeded([law], (*EXACT_LAWS, *laws))
    except Exception as error:
        raise InputError(f"{where}: the graph refuses it: {brief(str(error), 200)}") from error
    if found:
        raise InputError(f"{where}: with the other laws it makes what is not equal: {found[0]}")


def failing(law: Law) -> str | None:
    """An example on which the two sides differ: the seed, what was drawn, the first number that differs."""
    for seed in range(DRAWS):
        rng = np.random.default_rng(seed)
        variables = law.drawn(rng)
        x, batch = rng.normal(size=(sum(ROWS), INPUT)), ragged()
        for a, b in zip(*law.of(variables), strict=True):
            with np.errstate(invalid="ignore"):
                left, right = dense(a, x, batch), dense(b, x, batch)
            if left.shape == right.shape and apart(left, right) <= SIDES_TOLERANCE:
                continue
            drawn = ", ".join(f"{name} = {short(value)}" for name, value in variables.items())
            if left.shape != right.shape:
                return f"with {drawn} the left is {left.shape}, the right {right.shape}"
            entry = tuple(int(i) for i in np.argwhere(~np.isclose(left, right, rtol=1e-9, atol=1e-9))[0])
            return (f"with {drawn} (seed {seed}), entry {entry} of the left is {left[entry]:.6g}, of the right "
                    f"{right[entry]:.6g}")
    return None


def short(value: object) -> str:
    return brief(str(value), 60) if isinstance(value, Operator) else getattr(value, "__name__", str(value))


def try_approximation(file: Path, each: Approximation) -> None:
    """It gives a matrix for every choice of its parameters, twice the same, and some format holds one of them."""
    weight = np.random.default_rng(0).normal(size=TRIED)
    try:
        held = [method for parameters in each.options() for method in each.methods(weight, parameters)]
        same = all(np.array_equal(a, b) for parameters in each.options()
                   for a, b in zip(each.fitted(weight, parameters), each.fitted(weight, parameters), strict=True))
    except Exception as error:
        raise InputError(f"{locate(file, each)}: {error}") from error
    if not same:
        raise InputError(f"{locate(file, each)}: it gives another matrix each time: draw from a generator with a fixed "
                         "seed")
    if not held:
        raise InputError(f"{locate(file, each)}: no format holds what it makes in less than dense does: it is to leave "
                         "at most half of the entries, round to float16, or give two thin factors")
