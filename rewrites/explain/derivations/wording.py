"""Derivations as text and as HTML that folds. Long terms are named by the variable of the law."""

from collections.abc import Sequence
from html import escape
from itertools import groupby

from opmatrix.algebra.batch.signature import Port
from opmatrix.algebra.data import Data
from opmatrix.algebra.shapes import Shape, ShapeError
from opmatrix.algebra.term import KINDS, NAMES, Operator
from rewrites.egraph.match import Binding
from rewrites.explain.derivations.derivation import Application, Derivation, instance
from rewrites.explain.derivations.trees import OPEN, READ, STORED, Forest, Path, Tree
from rewrites.laws.law import APPROXIMATE, Law
from rewrites.laws.spelling import describe_attribute

INFIX = {"add": (1, " + "), "mul": (2, " * "), "compose": (2, " @ ")}
NAMED = 12  # nodes of an operator that may have a name of its own
INLINE_LETTERS = 44  # letters of a term that is printed in full
DEPTH = 5
TRUST, ROUNDED = 1.3, 1e-6  # factor on the stated error; rounding of float32


class TreeWriter:
    """Trees of one forest in the notation of the algebra. `short` gives some trees a name. Unnamed arrays are
    numbered: W1 a matrix, b2 a row."""

    def __init__(self, forest: Forest, short: dict[Tree, str] | None = None) -> None:
        self.forest, self.values, self.short = forest, forest.lowering.template.values, short or {}
        arrays = [value for value in self.values.values() if isinstance(value, Data)]
        names = [value.label for value in arrays if value.name]
        bare = dict.fromkeys(base for value in arrays if not (base := value.base or value).name and base.shape != (1,))
        self.numbered = {data: f"{'W' if len(data.shape) > 1 else 'b'}{at}" for at, data in enumerate(bare, 1)}
        self.skip = count_common(min(names), max(names)) if len(names) > 1 else 0

    def text(self, tree: Tree, level: int = 0, depth: int = DEPTH) -> str:
        """Return the tree as text, with dots below `depth`."""
        if (name := self.short.get(tree) or self.word(tree)) is not None:
            return name
        if depth == 0:
            return "…"
        if tree.kind not in INFIX:
            return self.called(tree, depth)
        rank, sign = INFIX[tree.kind]
        first, second = tree.children
        both = self.text(first, rank, depth - 1) + sign + self.text(second, rank + 1, depth - 1)
        return f"({both})" if rank < level else both

    def called(self, tree: Tree, depth: int) -> str:
        """Return a node that is neither a sum nor a composition."""
        parts = [self.text(child, 0, depth - 1) for child in tree.children]
        others = [self.attribute(name) for name in tree.attributes]
        match tree.kind:
            case "turn":
                return f"{self.text(tree.children[0], 3, depth - 1)}.T"
            case "join":
                return f"heads({others[0]}).T"
            case "product":
                first, second = (self.text(child, 2 + at, depth - 1) for at, child in enumerate(tree.children))
                plain = tree.attributes == ("sum", "everyone")
                seen = "" if tree.attributes[1] == "everyone" else f", where={others[1]}"
                return f"({first} @ {second})" if plain else f"product({', '.join(parts)}, over={others[0]}{seen})"
            case "given" | "symbol":
                return others[0]
            case "over" if tree.children[0].kind == "ones":
                return others[0]
            case kind if kind == READ:
                return f"interpreted({', '.join(parts)})"
            case kind if kind == STORED:
                return f"{tree.attributes[0]}({parts[0]})"
        inside = [*parts, *others]
        return f"{tree.kind.removesuffix('()')}({', '.join(inside)})" if inside else tree.kind

    def word(self, tree: Tree) -> str | None:
        """Return the name of an array, or of an operator that has one; else None."""
        if tree.kind in ("weight", "const") and not tree.children:
            data = self.values[tree.attributes[0]]
            if (label := self.numbered.get(data.base or data)) is not None:
                return f"{label}.T" if data.base else label
            return str(data.label)[self.skip :] if data.name or (data.base and data.base.name) else str(data.label)
        return self.own_name(tree) if tree.size <= NAMED else None

    def own_name(self, tree: Tree) -> str | None:
        """Return the name that the vocabulary has for a tree; None if it has none, or one with arguments."""
        try:
            name = NAMES.get(self.term(tree))
        except (ShapeError, TypeError, KeyError):
            return None
        return None if name is None or len(name) > 1 else str(name[0])

    def term(self, tree: Tree) -> Operator:
        """Build the operator of a tree."""
        return Operator(
            KINDS[tree.kind], *map(self.term, tree.children), *(self.values[name] for name in tree.attributes)
        )

    def attribute(self, name: str) -> str:
        """Write an attribute: numbers by their names, any other in words."""
        value = self.values.get(name, name)
        return name if isinstance(value, Data | Shape | Port) else describe_attribute(value)


def count_common(first: str, last: str) -> int:
    """Return the length of the common beginning of two names."""
    return next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))


def describe_sides(forest: Forest, step: Application, laws: dict[str, Law]) -> tuple[str, str, dict[str, str]]:
    """Return both sides of a step as text, and the values of the variables that replace long terms."""
    plain, trees = TreeWriter(forest), Binding()
    if step.law in laws:
        trees = instance(laws[step.law], step) or {}
    elif step.after.kind in forest.kernels and step.before.kind not in forest.kernels:
        names = [name for name, sort in forest.kernels[step.after.kind].variables.items() if sort.name not in OPEN]
        trees = dict(
            zip(
                names,
                (child.children[0] if child.kind == STORED else child for child in step.after.children),
                strict=True,
            )
        )
    texts = {name: (tree, plain.text(tree)) for name, tree in trees.items() if isinstance(tree, Tree)}
    long = {name: (tree, text) for name, (tree, text) in texts.items() if len(text) > INLINE_LETTERS or "…" in text}
    writer = TreeWriter(forest, {tree: name for name, (tree, _) in long.items()})
    return (
        writer.text(step.before, depth=12),
        writer.text(step.after, depth=12),
        {
            name: f"{text[:INLINE_LETTERS].rsplit(' ', 1)[0]} … ({tree.size} operators)"
            for name, (tree, text) in long.items()
        },
    )


def describe_place(program: Tree, step: Application) -> str:
    """Describe the place of a step in the program: the child at each level, from the result down; and the number of
    places."""
    paths = step.places or tuple(occurrences(program, step.before))
    runs = [(at, len(list(same))) for at, same in groupby(paths[0])]
    path = ".".join(f"{at}" if count == 1 else f"{at}x{count}" for at, count in runs) or "top"
    return path + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")


def occurrences(program: Tree, part: Tree) -> list[Path]:
    """Return one path, the shortest, for each parent of a part."""
    if program is part:
        return [()]
    reached: dict[Tree, Path] = {program: ()}
    paths, todo = [], [program]
    for tree in todo:
        for at, child in enumerate(tree.children):
            if child is part:
                paths.append((*reached[tree], at))
            elif child not in reached and child.size > part.size:
                reached[child] = (*reached[tree], at)
                todo.append(child)
    return paths


def describe_steps(derivation: Derivation, laws: Sequence[Law]) -> list[tuple[str, str, str, dict[str, str]]]:
    """Describe every step: its law and place, both sides, and the values of its variables."""
    declared, steps = {law.name: law for law in laws}, []
    for program, step in zip(derivation.programs(), derivation.steps, strict=False):
        before, after, where = describe_sides(derivation.forest, step, declared)
        name = f"{step.law} backwards" if step.backwards else step.law
        head = f"{name} at {describe_place(program, step)}" + describe_held_out(step)
        steps.append((head, before, after, where))
    return steps


def describe_held_out(step: Application) -> str:
    """Describe the error of an approximation, and if held-out rows keep it."""
    if step.kind != APPROXIMATE:
        return ""
    if step.held_out is None:
        return f": error {step.error:.2g} on calibration rows"
    remark = "" if step.held_out <= TRUST * step.error + ROUNDED else ", which is more than stated"
    return f": error {step.error:.2g} on calibration rows, {step.held_out:.2g} on held-out ones{remark}"


def spell_out(derivation: Derivation, laws: Sequence[Law], first: int = 0) -> str:
    """Return every step on a few lines; those before the `first` are left out."""
    lines = []
    for number, (head, before, after, where) in [*enumerate(describe_steps(derivation, laws), 1)][first:]:
        lines += [f"{number:4}  {head}", f"        {before}", f"      = {after}"]
        lines += [f"        where {name} = {what}" for name, what in where.items()]
    return "\n".join(lines)


def html(derivation: Derivation, laws: Sequence[Law]) -> str:
    """Return every step as HTML that folds."""
    steps = []
    for head, before, after, where in describe_steps(derivation, laws):
        names = "".join(f"<br><small>{escape(name)} = {escape(what)}</small>" for name, what in where.items())
        steps.append(
            f"<li><details><summary>{escape(head)}</summary><code>{escape(before)}</code><br>= "
            f"<code>{escape(after)}</code>{names}</details></li>"
        )
    return f"<ol>{''.join(steps)}</ol>"
