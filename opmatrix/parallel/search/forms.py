"""Forms of strategies: the choices by name, as sizes are the choices by number. A form is predicted for all sizes at
once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from opmatrix.parallel.axes.axis_strategy import meet
from opmatrix.parallel.axes.context_axis import CONTEXT, CONTEXTS
from opmatrix.parallel.axes.data_axis import STORING
from opmatrix.parallel.axes.known_axes import COPYING_AXES, DEVICE_AXES, ORDERS, TOKEN_AXES
from opmatrix.parallel.axes.parallel_axis import ModelLimits
from opmatrix.parallel.cost.stacks import SoftwareStack
from opmatrix.parallel.cost.strategies import BALANCED_PLACES, BLOCK_AGAIN, RECOMPUTES, RecomputeKind
from opmatrix.parallel.schedules.named import PLANNED, SCHEDULES, USUAL_SCHEDULE
from opmatrix.parallel.schedules.pipeline_schedule import any_sizes
from opmatrix.parallel.search.legal_sizes import SizeColumns

FormMask: TypeAlias = "NDArray[np.bool_]"


class StrategyForm(NamedTuple):
    """The choices of a strategy that do not depend on its sizes."""

    recompute: RecomputeKind = "none"  # the part of forward that backward recomputes
    zero: int = 0  # ZeRO: data ranks shard 1 optimiser, 2 + gradients,
    # 3 + weights
    schedule: str = USUAL_SCHEDULE.name  # pipeline schedule
    context: str = "ring"  # how attention meets sharded tokens
    sequence: bool = False  # norms are sharded over tp
    order: tuple[str, ...] = ORDERS[0]  # axes by the distance of their ranks, nearest first
    whole_experts: bool = False  # tp shards no expert: ep is laid over its ranks first
    balanced: bool = False  # the embedding table and the head count as a layer each


ZERO_STAGES = range(len(STORING))
CONTEXT_KINDS = [name for name, strategy in CONTEXTS.items() if strategy.planned_as]
STRATEGY_FORMS = tuple(
    StrategyForm(*choices)
    for choices in product(RECOMPUTES, ZERO_STAGES, PLANNED, CONTEXT_KINDS, (False, True), ORDERS)
)
FOLDED_ORDERS = [order for order in ORDERS if {*order[: len(COPYING_AXES) + 1]} == {"tp", *COPYING_AXES}]


def folded_forms(forms: Iterable[StrategyForm]) -> list[StrategyForm]:
    """Return forms that lay whole experts over tensor ranks, too."""
    return [form._replace(whole_experts=True) for form in forms if form.sequence and form.order in FOLDED_ORDERS]


def forms_scheduled(names: Iterable[str]) -> list[StrategyForm]:
    """Return the forms with schedules that a plan tries only where a stack has them, or they are asked for."""
    return [
        form._replace(schedule=name)
        for name in names
        for form in STRATEGY_FORMS
        if form.schedule == USUAL_SCHEDULE.name
    ]


def forms_in_blocks(forms: Iterable[StrategyForm]) -> list[StrategyForm]:
    """Return forms that compute some layers of each chunk again, where others compute all of them again."""
    return [form._replace(recompute=BLOCK_AGAIN) for form in forms if form.recompute == "full"]


def balanced_forms(forms: Iterable[StrategyForm]) -> list[StrategyForm]:
    """Return forms whose stages count the embedding table and the head as a layer each."""
    return [form._replace(balanced=True) for form in forms]


class FormChoices(NamedTuple):
    """The choices by name that forms may have."""

    schedules: tuple[str, ...] = tuple(PLANNED)
    contexts: tuple[str, ...] = tuple(CONTEXT_KINDS)
    zero: tuple[int, ...] = tuple(ZERO_STAGES)
    pipelined_zero: tuple[int, ...] = tuple(ZERO_STAGES)  # with several stages
    sequence: tuple[bool, ...] = (False, True)
    whole_experts: tuple[bool, ...] = (False, True)
    balanced: tuple[bool, ...] = (False, True)
    recomputes: tuple[RecomputeKind, ...] = RECOMPUTES

    def offers(self, form: StrategyForm) -> bool:
        """True if a form may apply. The usual schedule and context are also those of a single stage and of whole
        sequences."""
        return (
            form.schedule in (USUAL_SCHEDULE.name, *self.schedules)
            and form.context in (CONTEXT_KINDS[0], *self.contexts)
            and form.zero in self.zero
            and form.sequence in self.sequence
            and form.whole_experts in self.whole_experts
            and form.balanced in self.balanced
            and form.recompute in self.recomputes
        )


def choices_of_stack(stack: SoftwareStack) -> FormChoices:
    """Return the choices that a stack has."""
    return FormChoices(
        stack.schedules,
        stack.contexts,
        stack.zero,
        stack.pipelined_zero,
        (False, True) if stack.sequence else (False,),
        (False, True) if stack.folds_experts else (False,),
        (False, True) if stack.balances else (False,),
        stack.recomputes,
    )


class FormMasks:
    """A mask of the forms that apply to rows of sizes. A form applies only where its choices have an effect, so no
    strategy has two forms. `local`: processes shard over data ranks alone; `choices`: those that are offered;
    `batch`: the sequences of a step, whose micro-batches some schedules limit."""

    def __init__(
        self,
        forms: Sequence[StrategyForm],
        limits: ModelLimits,
        tokens: int,
        local: bool = False,
        choices: FormChoices | None = None,
        batch: int = 0,
    ) -> None:
        self.forms, self.limits, self.tokens, self.local, self.batch = forms, limits, tokens, local, batch
        self.choices = choices or FormChoices()

    def __call__(self, sizes: SizeColumns) -> FormMask:
        """Return the mask: a row for each form, a column for each row of sizes."""
        several, token_ranks = sizes.virtual > 1, sizes.ranks_of(TOKEN_AXES)
        staged = ~several & (sizes.pp > 1)
        names = dict.fromkeys([*PLANNED, *(form.schedule for form in self.forms)])
        scheduled = {
            name: several if SCHEDULES[name].chunked else staged & self.in_order(name, sizes) for name in names
        }
        usual = ~several  # also for a single stage
        scheduled[USUAL_SCHEDULE.name] = usual if USUAL_SCHEDULE.name in self.choices.schedules else usual & ~staged
        whole = np.ones(len(sizes), bool)
        cut = (sizes.tp > 1) & (self.tokens % (sizes.tp * token_ranks) == 0)
        met = {name: self.context_fits(name, sizes) for name in CONTEXT_KINDS}
        placed = {whole: self.experts_fit(whole, sizes) for whole in (False, True)}
        stored = (sizes.dp > 1) & (token_ranks == 1) if self.local else sizes.dp * token_ranks > 1
        laid = {order: laid_first(order, sizes) for order in ORDERS}
        divided = {balanced: self.stages_fit(balanced, sizes) for balanced in (False, True)}
        mask: FormMask = np.stack(
            [
                scheduled[form.schedule]
                & met[form.context]
                & laid[form.order]
                & placed[form.whole_experts]
                & divided[form.balanced]
                & (cut if form.sequence else whole)
                & (stored if form.zero else whole)
                & (whole if form.zero in self.choices.pipelined_zero else sizes.pp == 1)
                for form in self.forms
            ]
        )
        return mask

    def in_order(self, name: str, sizes: SizeColumns) -> FormMask:
        """Return the mask of the stages and micro-batches that a schedule has an order for."""
        mask: FormMask = np.ones(len(sizes), bool)
        if SCHEDULES[name].illegal is any_sizes:
            return mask
        counts = sizes.pp, self.batch // (sizes.dp * sizes.micro_batch)
        numbers, at = np.unique(np.stack(counts), axis=1, return_inverse=True)
        mask = np.array([not SCHEDULES[name].illegal(int(stages), int(count)) for stages, count in numbers.T])[
            at.ravel()
        ]
        return mask

    def stages_fit(self, balanced: bool, sizes: SizeColumns) -> FormMask:
        """Return the mask of a count of the places of stages: layers alone, or with `balanced` also table and head,
        which needs several stages. Several chunks of a stage must divide the places."""
        places = self.limits.layers + BALANCED_PLACES * balanced
        whole: FormMask = (sizes.virtual == 1) | (places % (sizes.pp * sizes.virtual) == 0)
        return whole & (sizes.pp > 1) & (places >= sizes.pp) if balanced else whole

    def experts_fit(self, whole: bool, sizes: SizeColumns) -> FormMask:
        """Return the mask of a placement of experts: over the ranks that share sequences and tokens, or with `whole`
        ones also over several tensor ranks."""
        over = sizes.ranks_of(COPYING_AXES) * (sizes.tp if whole else 1)
        mask: FormMask = over % sizes.ep == 0
        return mask & (sizes.tp > 1) if whole else mask

    def context_fits(self, name: str, sizes: SizeColumns) -> FormMask:
        """Return the mask of a strategy of the context axis: the usual one for any sizes, others where the axis has
        ranks, whole heads if they exchange these, and no other axis splits the same."""
        strategy = CONTEXTS[name]
        usual = name == CONTEXT_KINDS[0]
        mask: FormMask = np.ones(len(sizes), bool) if usual else sizes.cp > 1
        if name not in self.choices.contexts:
            mask = sizes.cp == 1  # the usual one is that of whole sequences, too
        if strategy.mixing == "heads":
            mask &= self.limits.heads % (sizes.tp * sizes.cp) == 0
        for axis in DEVICE_AXES:
            if axis is not CONTEXT and meet(axis.strategies[0], strategy):
                mask &= getattr(sizes, axis.name) == 1
        return mask


def laid_first(order: tuple[str, ...], sizes: SizeColumns) -> FormMask:
    """True, by row of sizes, if no earlier order lays out the axes of more than one rank in the same way."""
    several = {name: getattr(sizes, name) > 1 for name in order}
    fits = np.ones(len(sizes), bool)
    for other in ORDERS[: ORDERS.index(order)]:
        differs = np.zeros(len(sizes), bool)
        for left, right in pairs(order):
            if other.index(left) > other.index(right):
                differs |= several[left] & several[right]
        fits &= differs
    return fits


def pairs(order: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield each axis with each axis that is farther."""
    for at, left in enumerate(order):
        for right in order[at + 1 :]:
            yield left, right
