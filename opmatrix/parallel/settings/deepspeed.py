"""The settings of DeepSpeed: its JSON has batches, ZeRO, number types and tensor ranks; stages, context ranks and
recomputation are the program's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from formats.core.errors import InputError
from opmatrix.parallel.settings.run_layout import RunFacts, RunLayout
from opmatrix.parallel.settings.spellings import (
    Argument,
    ChoiceArguments,
    Contradiction,
    DeclaredArguments,
    LayoutFields,
    NumberArgument,
    ReadValues,
    SettingValues,
    StackSettings,
)

MICRO, ACCUMULATION, STEP_BATCH = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size"
AUTOMATIC = "auto"  # what the trainer of transformers fills in


def stated_number(values: ReadValues, name: str) -> int | None:
    """Return the number of an argument; None where it is not stated, or filled in later. Raises InputError for any
    other value."""
    value = values[name]
    if value in (None, AUTOMATIC):
        return None
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 10**9:
        return value
    raise InputError(f"{name} {value}: give a whole number from 1 on")


@dataclass(frozen=True)
class StepBatches:
    """Sequences of a step: of a micro-batch, times micro-batches of a rank, times data ranks."""

    names: ClassVar[tuple[str, ...]] = (MICRO, ACCUMULATION, STEP_BATCH)
    fields: ClassVar[tuple[str, ...]] = ("dp", "micro_batch", "batch")

    def read(self, values: ReadValues, layout: RunLayout, facts: RunFacts) -> LayoutFields:
        micro, steps, together = (stated_number(values, name) for name in (MICRO, ACCUMULATION, STEP_BATCH))
        if together is not None and micro and together % (micro * (steps or 1)):
            raise InputError(
                f"{STEP_BATCH} {together}: {MICRO} {micro} with {ACCUMULATION} {steps or 1} do not divide it"
            )
        ranks = max(facts.devices // (layout.tp or 1), 1)
        if together is None and micro is not None and values[ACCUMULATION] != AUTOMATIC:
            together = micro * (steps or 1) * ranks
        elif together is not None and micro is not None and steps is not None:
            ranks = together // (micro * steps)
        return {"dp": ranks if steps is not None else None, "micro_batch": micro, "batch": together}

    def write(self, layout: RunLayout, facts: RunFacts) -> SettingValues:
        written: dict[str, int | None] = {MICRO: layout.micro_batch, STEP_BATCH: layout.batch}
        if layout.batch and layout.micro_batch and layout.dp:
            written[ACCUMULATION] = layout.batch // (layout.micro_batch * layout.dp)
        return written


DEEPSPEED_DECLARED = DeclaredArguments(
    "DeepSpeed 0.16",
    "configuration",
    {
        MICRO: Argument("any"),
        ACCUMULATION: Argument("any"),
        STEP_BATCH: Argument("any"),
        "zero_optimization.stage": Argument("int", 0, (0, 1, 2, 3)),
        "bf16.enabled": Argument("any", False),
        "fp16.enabled": Argument("any", False),
        "tensor_parallel.autotp_size": Argument("int", 1),
    },
    (
        "optimizer",
        "scheduler",
        "zero_optimization.",
        "bf16.",
        "fp16.",
        "activation_checkpointing.",
        "gradient_clipping",
        "prescale_gradients",
        "sparse_attention.",
        "communication_data_type",
        "data_types.",
        "steps_per_print",
        "wall_clock_breakdown",
        "zero_allow_untested_optimizer",
        "flops_profiler.",
        "comms_logger.",
        "aio.",
        "tensor_parallel.",
        "pipeline.",
        "checkpoint.",
        "tensorboard.",
        "wandb.",
        "csv_monitor.",
        "dump_state",
        "data_efficiency.",
        "compression_training.",
        "elasticity.",
        "autotuning.",
    ),
)
OFFLOADED = "zero_optimization.offload_optimizer.device", "zero_optimization.offload_param.device"
DEEPSPEED_SETTINGS = StackSettings(
    "deepspeed",
    DEEPSPEED_DECLARED,
    (
        NumberArgument("tp", "tensor_parallel.autotp_size"),
        StepBatches(),
        NumberArgument("zero", "zero_optimization.stage", 0),
        ChoiceArguments(
            "precision",
            [
                ("bf16", {"bf16.enabled": True}),
                ("float16", {"fp16.enabled": True}),
                ("float32", {"bf16.enabled": False, "fp16.enabled": False}),
                (None, {"bf16.enabled": AUTOMATIC}),
                (None, {"fp16.enabled": AUTOMATIC}),
            ],
        ),
    ),
    ("json",),
    (
        Contradiction(
            "bf16.enabled, fp16.enabled: give one of them",
            lambda v: v["bf16.enabled"] is True and v["fp16.enabled"] is True,
        ),
    ),
    frozenset([*OFFLOADED, "zero_optimization.zero_hpz_partition_size", "zero_optimization.zero_quantized_weights"]),
)
