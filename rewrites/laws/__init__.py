"""The laws of the search and of pruning, a file for each kind of algebra (attention, choosing, joining, largest, ring,
shifts, spaces); facts of classes (facts); implementation laws, from terms to kernels (kernel_law, implementation,
epilogues). Rulesets are tuples, joined by +."""

from collections.abc import Sequence

from formats.core.errors import InputError, suggest_name
from rewrites.laws import attention, choosing, joining, largest, ring, shifts, spaces
from rewrites.laws.law import Law

EXACT_GROUPS = (
    (ring, ring.RING_LAWS),
    (attention, attention.ATTENTION_LAWS),
    (joining, joining.JOINING_LAWS),
    (spaces, spaces.SPACE_LAWS),
    (shifts, shifts.SHIFT_LAWS),
    (largest, largest.ROUTING_LAWS),
)  # each with its module
EXACT_LAWS = tuple(law for _, laws in EXACT_GROUPS for law in laws)
SHIPPED = frozenset(law.name for law in EXACT_LAWS)  # names of shipped laws: any other law is a user's
CHOOSING_LAWS = choosing.CHOOSING_LAWS  # laws of chosen columns; no search uses them


def without(laws: Sequence[Law], names: Sequence[str]) -> tuple[Law, ...]:
    """Return the laws except those named. Raises InputError for an unknown name."""
    known = {law.name for law in laws}
    if unknown := [name for name in names if name not in known]:
        raise InputError(
            f"--without {unknown[0]}: no such law; {suggest_name(unknown[0], known)}there are "
            f"{', '.join(sorted(known))}"
        )
    return tuple(law for law in laws if law.name not in names)
