"""Training stacks: the strategies that each runs, and the habits that change its time and memory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from formats.core.errors import InputError, suggest_name
from opmatrix.parallel.cost.strategies import BLOCK_AGAIN, RECOMPUTES, RecomputeKind, Strategy

ALL_ZERO = 0, 1, 2, 3
MEGATRON_RECOMPUTES: tuple[RecomputeKind, ...] = (*RECOMPUTES, BLOCK_AGAIN)
MEGATRON_SCHEDULES = "1f1b", "interleaved"


@dataclass(frozen=True)
class SoftwareStack:
    """A stack: the choices by name that it has, and its habits."""

    name: str
    version: str  # version whose documentation and defaults these are
    title: str
    schedules: tuple[str, ...]  # pipeline schedules
    contexts: tuple[str, ...]  # how attention meets tokens sharded over cp
    zero: tuple[int, ...]  # ZeRO stages
    pipelined_zero: tuple[int, ...]  # those that work with several stages
    recomputes: tuple[RecomputeKind, ...] = RECOMPUTES  # parts of forward that backward recomputes
    beside: tuple[str, ...] = ()  # axes whose collectives run beside products
    overlap: bool = True  # gradients are summed beside backward
    gradient_bytes: float = 2  # bytes of a gradient that is summed
    accumulated: float = 0  # bytes of accumulated gradients beside them
    fused_sums: bool = False  # products of gradients add to the sum themselves
    sequence: bool = True  # norms are cut over tensor ranks
    folds_experts: bool = False  # experts are laid over tensor ranks
    balances: bool = False  # stages may count the embedding table and the head as a layer each
    selective: RecomputeKind = "selective"  # what its selective recomputation computes again
    relays: bool = False  # rows are sent to each node of their experts once
    sent_in_eight: bool = False  # beside products of eight bits rows go to experts in eight
    sending_cores: float = 0  # cores of a device that send, and compute nothing
    launched: bool = False  # as `opmatrix launch` runs it

    def run(self, strategy: Strategy) -> Strategy:
        """Return a strategy with the habits of the stack. What it recomputes by "selective" depends on the stack, where
        scores are never stored."""
        again = self.selective if strategy.recompute == "selective" and strategy.flash else strategy.recompute
        return replace(
            strategy,
            recompute=again,
            beside=self.beside,
            overlap=self.overlap,
            gradient_bytes=self.gradient_bytes,
            accumulated=self.accumulated,
            fused_sums=self.fused_sums,
            relays=self.relays,
            sent_in_eight=self.sent_in_eight,
            sending_cores=self.sending_cores,
            launched=self.launched,
        )

    def habits(self, strategy: Strategy) -> Strategy:
        """Return a strategy of numbers with the habits of the stack, and experts where it places them."""
        whole = self.folds_experts and strategy.sequence and strategy.ep != 1
        return replace(self.run(strategy), whole_experts=bool(whole))


MEGATRON = SoftwareStack(
    "megatron",
    "core 0.12",
    "Megatron-LM and NeMo",
    MEGATRON_SCHEDULES,
    ("ring", "ulysses"),
    (0, 1),
    (0, 1),
    MEGATRON_RECOMPUTES,
    beside=("tp", "cp", "pp"),
    gradient_bytes=4,
    fused_sums=True,
    folds_experts=True,
    balances=True,
    selective="core_attention",
)
STACKS: Mapping[str, SoftwareStack] = {
    stack.name: stack
    for stack in (
        MEGATRON,
        replace(
            MEGATRON, name="nemo", title="NeMo and Megatron Bridge", version="24.09", gradient_bytes=2, accumulated=2
        ),
        SoftwareStack(
            "megatron-plain",
            "core 0.8",
            "Megatron-LM without overlap of tensor ranks",
            MEGATRON_SCHEDULES,
            ("ring",),
            (0, 1),
            (0, 1),
            MEGATRON_RECOMPUTES,
            overlap=False,
            gradient_bytes=4,
            fused_sums=True,
            selective="core_attention",
        ),
        SoftwareStack(
            "torchtitan",
            "0.2",
            "torchtitan",
            ("1f1b", "interleaved", "gpipe", "zb-h1"),
            ("ring",),
            (0, 2, 3),
            (0, 2, 3),
            gradient_bytes=4,
            balances=True,
        ),
        SoftwareStack(
            "deepspeed", "0.16", "DeepSpeed", ("1f1b",), ("ulysses",), ALL_ZERO, (0, 1), gradient_bytes=2, accumulated=2
        ),
        SoftwareStack(
            "mindspeed",
            "2.0",
            "MindSpeed-LLM",
            MEGATRON_SCHEDULES,
            ("ring", "ulysses"),
            (0, 1),
            (0, 1),
            MEGATRON_RECOMPUTES,
            gradient_bytes=4,
            folds_experts=True,
            selective="core_attention",
        ),
        SoftwareStack(
            "mindformers",
            "1.5",
            "MindFormers",
            ("1f1b", "interleaved"),
            ("ring", "ulysses"),
            (0, 1),
            (0, 1),
            gradient_bytes=4,
        ),
        SoftwareStack(  # DeepSeek-AI 2024, DeepSeek-V3: sections 3.2 and 3.3; sums of gradients as in its DeepGEMM
            "hai-llm",
            "of DeepSeek-V3",
            "HAI-LLM",
            ("1f1b", "dualpipe"),
            ("ring",),
            (0, 1),
            (0, 1),
            gradient_bytes=4,
            fused_sums=True,
            sequence=False,
            balances=True,
            relays=True,
            sent_in_eight=True,
            sending_cores=20,
        ),
        SoftwareStack(
            "launch",
            "this version",
            "opmatrix launch",
            ("1f1b", "interleaved", "gpipe"),
            ("ring", "ulysses"),
            ALL_ZERO,
            ALL_ZERO,
            overlap=False,
            sequence=False,
            launched=True,
        ),
    )
}


def stack_named(name: str) -> SoftwareStack:
    """Return a stack by name. Raises InputError, which lists the known names."""
    if name not in STACKS:
        raise InputError(f"stack {name!r}: {suggest_name(name, STACKS)}it is one of {', '.join(STACKS)}")
    return STACKS[name]


ASYNCHRONOUS = re.compile(r"async ?TP", re.IGNORECASE)
PLAIN_SOURCES = re.compile(r"no overlap|FlagPerf", re.IGNORECASE)
PUBLISHED = (
    (re.compile(r"NeMo|NVIDIA|Megatron-Bridge", re.IGNORECASE), "nemo"),
    (re.compile(r"torchtitan|MPT", re.IGNORECASE), "torchtitan"),
    (re.compile(r"MindSpeed", re.IGNORECASE), "mindspeed"),
    (re.compile(r"MindFormers|MindSpore", re.IGNORECASE), "mindformers"),
    (re.compile(r"DeepSpeed|InternEvo|Colossal", re.IGNORECASE), "deepspeed"),
)


def stack_of_source(source: str, notes: str) -> SoftwareStack:
    """Return the stack of a published table, by the words of its source and notes; Megatron where they name none."""
    if PLAIN_SOURCES.search(f"{source} {notes}"):
        return STACKS["megatron-plain"]
    stack = STACKS[next((name for words, name in PUBLISHED if words.search(source)), MEGATRON.name)]
    return replace(stack, beside=("tp",)) if ASYNCHRONOUS.search(notes) else stack
