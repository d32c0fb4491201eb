"""The settings of MindFormers: its YAML has ranks by axis, layers that a stage has more or less than an even share, and
how many layers of each stage are computed again, in full or selectively."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from formats.core.errors import InputError
from opmatrix.parallel.settings.megatron import check_scheduled, scheduled
from opmatrix.parallel.settings.run_layout import RunFacts, RunLayout
from opmatrix.parallel.settings.spellings import (
    Argument,
    ArgumentValue,
    ChoiceArguments,
    Contradiction,
    DeclaredArguments,
    LayoutFields,
    NumberArgument,
    ReadValues,
    SettingValues,
    StackSettings,
)

P, R, M = "parallel_config.", "recompute_config.", "model.model_config."
RANK_BATCH, MICRO_BATCHES = "runner_config.batch_size", f"{P}micro_batch_num"
ACCUMULATED, COPIES = "runner_config.gradient_accumulation_steps", "micro_batch_interleave_num"


@dataclass(frozen=True)
class StepSequences:
    """Sequences of a step: of a rank, times data ranks, times micro-batches of stages, or times steps that are
    accumulated where there are no stages."""

    names: ClassVar[tuple[str, ...]] = (RANK_BATCH, MICRO_BATCHES, ACCUMULATED, COPIES)
    fields: ClassVar[tuple[str, ...]] = ("micro_batch", "batch")

    def read(self, values: ReadValues, layout: RunLayout, facts: RunFacts) -> LayoutFields:
        times = MICRO_BATCHES if (layout.pp or 1) > 1 else ACCUMULATED
        numbers = values[RANK_BATCH], layout.dp or 1, values[times] or 1, values[COPIES]
        if min(numbers) < 1:
            raise InputError(f"{RANK_BATCH}, {times}, {COPIES}: give numbers from 1 on")
        return {"micro_batch": values[RANK_BATCH], "batch": prod(numbers)}

    def write(self, layout: RunLayout, facts: RunFacts) -> SettingValues:
        micro, ranks = layout.micro_batch or 1, layout.dp or 1
        times = MICRO_BATCHES if (layout.pp or 1) > 1 else ACCUMULATED
        count = {} if layout.batch is None else {times: layout.batch // (micro * ranks)}
        return {RANK_BATCH: micro, **count}


VIRTUAL, STAGE_OFFSET, FURTHER = f"{M}pp_interleave_num", f"{M}offset", f"{M}mtp_depth"
INTERLEAVED, ORDER = "parallel.pipeline_config.pipeline_interleave", "parallel.pipeline_config.pipeline_scheduler"


@dataclass(frozen=True)
class OffsetStages:
    """Chunks of a stage, and the layers that each chunk has more than an even share. Layers of heads of further tokens
    are behind all others; a plan has none."""

    names: ClassVar[tuple[str, ...]] = (VIRTUAL, STAGE_OFFSET, FURTHER, INTERLEAVED, ORDER)
    fields: ClassVar[tuple[str, ...]] = ("virtual", "schedule", "cut")

    def read(self, values: ReadValues, layout: RunLayout, facts: RunFacts) -> LayoutFields:
        stages, chunks = layout.pp or 1, values[VIRTUAL] or 1
        if chunks < 1 or stages < 1:
            raise InputError(f"{VIRTUAL} {chunks}: give a whole number from 1 on")
        if values[ORDER] not in (None, "1f1b"):
            raise InputError(f"{ORDER} {values[ORDER]}: a plan has 1f1b, also with chunks")
        more = by_chunk(STAGE_OFFSET, values[STAGE_OFFSET] or 0, chunks, stages)
        if more is None:
            return scheduled(chunks) | {"cut": None}
        share = (facts.layers + values[FURTHER]) // (stages * chunks)
        *others, last = (share + n for n in more)
        return scheduled(chunks) | {"cut": (*others, last - values[FURTHER])}

    def write(self, layout: RunLayout, facts: RunFacts) -> SettingValues:
        check_scheduled(layout)
        stages, chunks = layout.pp or 1, layout.virtual or 1
        cut = layout.layers_of(facts)
        share = facts.layers // len(cut)
        more = [layers - share for layers in cut]
        several: dict[str, ArgumentValue] = {} if chunks == 1 else {VIRTUAL: chunks, INTERLEAVED: True, ORDER: "1f1b"}
        return several | ({STAGE_OFFSET: in_rows(more, chunks, stages)} if any(more) else {})


def by_chunk(name: str, value: ArgumentValue, chunks: int, stages: int) -> tuple[int, ...] | None:
    """Return a number for each chunk, from a list by stage, or a list of these for each chunk of a stage; None for 0.
    Raises InputError for any other."""
    if value in (0, False):
        return None
    rows = value if isinstance(value, list) and value and isinstance(value[0], list) else [value]
    if len(rows) == 1 and chunks > 1:
        raise InputError(f"{name}: {chunks} chunks a stage need as many lists")
    for row in rows:
        if not isinstance(row, list) or len(row) != stages or not all(type(n) is int for n in row):
            raise InputError(f"{name} {str(value)[:60]}: give {stages} whole numbers, one a stage")
    if len(rows) != chunks:
        raise InputError(f"{name} {str(value)[:60]}: give {chunks} lists, one for each chunk of a stage")
    return tuple(n for row in rows for n in row)


def in_rows(numbers: list[int], chunks: int, stages: int) -> list[ArgumentValue]:
    """Return numbers of chunks as MindFormers lists them."""
    rows = [numbers[at * stages : (at + 1) * stages] for at in range(chunks)]
    return rows[0] if chunks == 1 else rows


FULLY, SELECTED = f"{R}recompute", f"{R}select_recompute"


@dataclass(frozen=True)
class RecomputedStages:
    """Layers of each stage that are computed again: in full, or selectively."""

    names: ClassVar[tuple[str, ...]] = (FULLY, SELECTED)
    fields: ClassVar[tuple[str, ...]] = ("recompute", "again")

    def read(self, values: ReadValues, layout: RunLayout, facts: RunFacts) -> LayoutFields:
        for name, kind in ((FULLY, "full"), (SELECTED, "selective")):
            value = values[name]
            if value is True:
                return {"recompute": kind}
            again = by_chunk(name, value or 0, layout.virtual or 1, layout.pp or 1)
            if again is not None and any(again):
                return {"recompute": kind, "again": again}
        return selected_operations(values, layout)

    def write(self, layout: RunLayout, facts: RunFacts) -> SettingValues:
        if layout.recompute in (None, "none"):
            return {}
        name = FULLY if layout.recompute == "full" else SELECTED
        if layout.again is None:
            return {name: True}
        return {name: in_rows([*layout.again], layout.virtual or 1, layout.pp or 1)}


def selected_operations(values: ReadValues, layout: RunLayout) -> LayoutFields:
    """Return what is computed again where operations are selected by name: on all layers, or by stage as the first of
    them says."""
    parts = [value for name, value in values.stated.items() if name.startswith(f"{SELECTED}.")]
    if True in parts:
        return {"recompute": "selective"}
    lists = [by_chunk(SELECTED, value or 0, layout.virtual or 1, layout.pp or 1) for value in parts]
    again = next((numbers for numbers in lists if numbers is not None and any(numbers)), None)
    return {"recompute": "none"} if again is None else {"recompute": "selective", "again": again}


MINDFORMERS_DECLARED = DeclaredArguments(
    "MindFormers 1.5.0",
    "06e1af77d14e0b34bc1a4071bbae40de946bea26",
    {
        f"{P}data_parallel": Argument("int", 1),
        f"{P}model_parallel": Argument("int", 1),
        f"{P}pipeline_stage": Argument("int", 1),
        f"{P}context_parallel": Argument("int", 1),
        f"{P}expert_parallel": Argument("int", 1),
        f"{P}use_seq_parallel": Argument("bool", False),
        f"{P}context_parallel_algo": Argument("str", "colossalai_cp", ("colossalai_cp", "ulysses_cp", "hybrid_cp")),
        "parallel.enable_parallel_optimizer": Argument("bool", False),
        RANK_BATCH: Argument("int", 1),
        MICRO_BATCHES: Argument("int", 1),
        ACCUMULATED: Argument("int", 1),
        COPIES: Argument("int", 1),
        VIRTUAL: Argument("int", 1),
        STAGE_OFFSET: Argument("any", 0),
        FURTHER: Argument("int", 0),
        INTERLEAVED: Argument("bool", False),
        ORDER: Argument("str"),
        FULLY: Argument("any", False),
        SELECTED: Argument("any", False),
        f"{M}seq_length": Argument("int"),
        f"{M}num_layers": Argument("int"),
        f"{M}num_hidden_layers": Argument("int"),
        f"{M}compute_dtype": Argument("str", "float16", ("float16", "bfloat16", "float32")),
    },
    (
        M,
        "model.",
        "trainer.",
        "runner_config.",
        "optimizer",
        "lr_schedule",
        "train_dataset",
        "eval_",
        "do_eval",
        "callbacks",
        "context.",
        "metric",
        "runner_wrapper",
        "processor",
        "profile",
        "init_start_profile",
        "auto_t",
        "autotune_per_step",
        "filepath_prefix",
        "layer_",
        "lr_scale",
        "remote_save_url",
        "moe_config.",
        "swap_config.",
        "parallel.",
        "seed",
        "output_dir",
        "load_c",
        "src_strategy_path_or_dir",
        "only_save_strategy",
        "resume_training",
        "run_mode",
        "use_",
        f"{P}gradient_aggregation_group",
        f"{P}vocab_emb_dp",
        f"{P}optimizer_shard",
        f"{P}seq_split_num",
        f"{P}ulysses_degree_in_cp",
        f"{P}mem_coeff",
        f"{SELECTED}.",
        f"{R}parallel_optimizer_comm_recompute",
        f"{R}select_comm_recompute",
        f"{R}mp_comm_recompute",
        f"{R}recompute_slice_activation",
    ),
)
MINDFORMERS_SETTINGS = StackSettings(
    "mindformers",
    MINDFORMERS_DECLARED,
    (
        NumberArgument("dp", f"{P}data_parallel"),
        NumberArgument("tp", f"{P}model_parallel"),
        NumberArgument("pp", f"{P}pipeline_stage"),
        NumberArgument("cp", f"{P}context_parallel"),
        NumberArgument("ep", f"{P}expert_parallel"),
        NumberArgument("seq", f"{M}seq_length"),
        StepSequences(),
        OffsetStages(),
        RecomputedStages(),
        ChoiceArguments("sequence", [(way, {f"{P}use_seq_parallel": way}) for way in (False, True)]),
        ChoiceArguments("zero", [(stage, {"parallel.enable_parallel_optimizer": bool(stage)}) for stage in (0, 1)]),
        ChoiceArguments(
            "context",
            [
                (kind, {f"{P}context_parallel_algo": name})
                for kind, name in (("ring", "colossalai_cp"), ("ulysses", "ulysses_cp"), ("ulysses", "hybrid_cp"))
            ],
            "cp",
        ),
        ChoiceArguments(
            "precision",
            [
                (ours, {f"{M}compute_dtype": name})
                for ours, name in (("bf16", "bfloat16"), ("float16", "float16"), ("float32", "float32"))
            ],
        ),
    ),
    ("yaml",),
    (
        Contradiction(
            f"{M}num_layers, {M}num_hidden_layers: they differ",
            lambda v: (
                None not in (v[f"{M}num_layers"], v[f"{M}num_hidden_layers"])
                and v[f"{M}num_layers"] != v[f"{M}num_hidden_layers"]
            ),
        ),
    ),
    frozenset(["swap_config.swap", f"{P}seq_split_num", COPIES, f"{R}select_comm_recompute"]),
    layers=f"{M}num_layers",
)
