"""All laws in groups, as text: for each law its statement, its guard, its source."""

from collections.abc import Sequence

from formats.core.errors import InputError, suggest_name
from rewrites.laws import EXACT_GROUPS
from rewrites.laws.epilogues import HEADS, STAGES
from rewrites.laws.implementation import IMPLEMENTATIONS
from rewrites.laws.kernel_law import Implementation
from rewrites.laws.law import Law
from rewrites.laws.proving import values
from rewrites.search.approximation import Approximation
from rewrites.verify.user_laws import UserDeclarations

LAW_GROUPS = {
    "exact": "exact laws",
    "value": "laws of values, which prove equations",
    "implementation": "implementation laws",
    "own": "your own",
}


def book(own: UserDeclarations, kind: str | None = None) -> str:
    """Return the text of every law of a kind, or of all kinds; the last line counts them. Raises InputError for an
    unknown kind."""
    if kind is not None and kind not in LAW_GROUPS:
        raise InputError(
            f"--kind {kind}: no such kind of law; {suggest_name(kind, LAW_GROUPS)}there are {', '.join(LAW_GROUPS)}"
        )
    shown = [group for group in list_groups(own) if kind in (None, group[0]) and group[2]]
    counts = [
        f"{sum(len(laws) for own_kind, _, laws in shown if own_kind == group)} {words}"
        for group, words in LAW_GROUPS.items()
        if any(own_kind == group for own_kind, _, _ in shown)
    ]
    left_out = ["left out\n" + "\n".join(own.left_out)] if own.left_out else []
    return "\n\n".join([*(section(*group) for group in shown), *left_out, ", ".join(counts) or "no law of that kind"])


def laws_as_json(own: UserDeclarations, kind: str | None = None) -> dict[str, object]:
    """Return every law of a kind, or of all kinds, as entries of JSON."""
    names = "name", "kind", "statement", "guard", "source"
    return {
        "laws": [
            {"group": group, **dict(zip(names, law.row(), strict=True))}
            for group, _, laws in list_groups(own)
            if kind in (None, group)
            for law in laws
        ]
    }


def list_groups(own: UserDeclarations) -> list[tuple[str, str, Sequence[Law | Approximation | Implementation]]]:
    """Return the kind, heading and laws of every group; the first sentence of a module is its heading."""
    exact = [("exact", heading(module.__doc__ or ""), laws) for module, laws in EXACT_GROUPS]
    return [
        *exact,
        ("value", heading(values.__doc__ or ""), values.VALUE_LAWS),
        (
            "implementation",
            "The kernel of the runtime that computes each term; parts that begin with _ may follow.",
            (*IMPLEMENTATIONS, *HEADS, *STAGES),
        ),
        ("own", "Declared in your file.", (*own.laws, *own.approximations)),
    ]


def heading(doc: str) -> str:
    """Return the first sentence of a docstring, on one line."""
    return " ".join(doc.split("\n\n")[0].split()).split(". ")[0].removesuffix(".") + "."


def section(kind: str, words: str, laws: Sequence[Law | Approximation | Implementation]) -> str:
    """Return a group under its heading."""
    return "\n".join([f"---- {kind}, {len(laws)}: {words}", *map(format_law, laws)])


def format_law(law: Law | Approximation | Implementation) -> str:
    """Return a law on a few lines."""
    name, kind, statement, guard, source = law.row()
    return "\n    ".join(
        [f"{name} ({kind})", statement, *([f"where {guard}"] if guard else []), *([source] if source else [])]
    )
