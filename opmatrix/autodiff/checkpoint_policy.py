"""Checkpoint policies: a policy states which values forward saves for backward. It names units, the kinds of values
that are saved; values that it does not save are recomputed from saved ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, TypeAlias

from formats.core.errors import InputError, suggest_name
from opmatrix.autodiff.forward_lines import Forward, is_product

LAYER_IN, NORM_IN, WEIGHT_IN, ACTIVATION_IN, PRODUCT_IN, FACTOR_IN, SOFTMAX_OUT, DROPOUT_MASK = KEPT_UNITS = (
    "input",
    "norm in",
    "weight in",
    "activation in",
    "product in",
    "factor in",
    "softmax out",
    "dropout mask",
)


class Policy(NamedTuple):
    """The units that are saved; `between_tokens` is false where units with a number for each pair of tokens are not."""

    units: frozenset[str]
    between_tokens: bool = True

    def keeps(self, unit: str, forward: Forward, at: int) -> bool:
        """True if a line that is a unit is saved."""
        return unit in self.units and (self.between_tokens or not forward.between_tokens(at))


POLICIES: dict[str, Policy] = {
    "units": Policy(frozenset(KEPT_UNITS)),  # Korthikanti et al. 2022, section 4.1
    "selective": Policy(frozenset(KEPT_UNITS), False),  # section 5: scores, shares and masks are recomputed
    "full": Policy(frozenset({LAYER_IN})),
}  # saves the input of a layer alone
READS, LEAST = "reads", "least"  # saves every value that is read; saves the fewest bytes
NAMED_POLICIES = *POLICIES, READS, LEAST

Keep: TypeAlias = "str | Collection[str] | Policy"


def policy_of(keep: Keep) -> Policy | str:
    """Return a policy by its name, or the policy of the named units. Raises InputError for a policy or a unit that does
    not exist."""
    if isinstance(keep, Policy):
        return keep
    if isinstance(keep, str):
        if keep in POLICIES:
            return POLICIES[keep]
        if keep in NAMED_POLICIES:
            return keep
        raise InputError(
            f"keep {keep!r}: {suggest_name(keep, NAMED_POLICIES)}it is one of "
            f"{', '.join(NAMED_POLICIES)}, or a list of units: {', '.join(KEPT_UNITS)}"
        )
    if unknown := sorted({*keep} - {*KEPT_UNITS}):
        raise InputError(
            f"keep: {unknown[0]!r} is no unit: {suggest_name(unknown[0], KEPT_UNITS)}units are {', '.join(KEPT_UNITS)}"
        )
    return Policy(frozenset(keep))


def name_units(forward: Forward) -> dict[int, str]:
    """Return the lines that are units, each named by its reader."""
    units: dict[int, str] = {0: LAYER_IN}

    def name(at: int, unit: str) -> None:
        """Name a line, at the source of its numbers, as a unit, unless it is inside one or computed from positions
        alone. The first name stays."""
        at = forward.source(at)
        if at not in forward.inside and not forward.free(at):
            units.setdefault(at, unit)

    for at in forward.unit_inputs:
        name(at, NORM_IN)
    for at, value in enumerate(forward.values):
        line = value.line
        match line.op:
            case "act" if is_product(line):
                name(line.args[0], WEIGHT_IN)
            case "act" if line.args and line.more[0].entrywise and not line.more[0].linear and at not in forward.inside:
                name(line.args[0], ACTIVATION_IN)
            case "product" | "scan" | "delta_rule":
                for arg in line.args:
                    name(arg, PRODUCT_IN)
            case "shares":
                name(at, SOFTMAX_OUT)
            case "mul" if at not in forward.inside and not any(map(forward.free, line.args)):
                if any(forward.line(arg).level for arg in line.args):
                    continue
                for arg in line.args:
                    if not is_function(forward, arg):
                        name(arg, FACTOR_IN)
            case "keep_top":
                name(line.args[1], FACTOR_IN)
    return units


def is_function(forward: Forward, at: int) -> bool:
    """True if a line is a function of single numbers, which is recomputed from its input."""
    line = forward.line(at)
    return line.op == "act" and line.more[0].entrywise


def kept_lines(forward: Forward, policy: Policy, named: Mapping[int, str]) -> frozenset[int]:
    """Return the lines that a policy saves where backward reads them."""
    return frozenset(at for at, unit in named.items() if policy.keeps(unit, forward, at))
