"""The settings of torchtitan: fields of its job, as TOML or as overrides of a command line. Tensor ranks always cut
norms. Layers count what stands before and behind them as one layer each, unless settings say otherwise."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from formats.core.errors import InputError
from opmatrix.parallel.settings.run_layout import RunFacts, RunLayout, spell
from opmatrix.parallel.settings.spellings import (
    ArgumentValue,
    ChoiceArguments,
    Contradiction,
    LayoutFields,
    NumberArgument,
    ReadValues,
    SettingValues,
    StackSettings,
    declared,
)
from opmatrix.parallel.settings.stage_layouts import weighted_layers

P, T = "parallelism.", "training."
REPLICATED, SHARDED, RESHARD = (
    f"{P}data_parallel_replicate_degree",
    f"{P}data_parallel_shard_degree",
    f"{P}fsdp_reshard_after_forward",
)


@dataclass(frozen=True)
class ShardedData:
    """Data ranks, and what they shard: nothing where they are replicas, gradients with weights that stay gathered after
    forward, or weights too. By default weights stay gathered where there are stages."""

    names: ClassVar[tuple[str, ...]] = (REPLICATED, SHARDED, RESHARD)
    fields: ClassVar[tuple[str, ...]] = ("dp", "zero")

    def read(self, values: ReadValues, layout: RunLayout, facts: RunFacts) -> LayoutFields:
        replicated, sharded = values[REPLICATED], values[SHARDED]
        together = replicated * (layout.tp or 1) * (layout.pp or 1) * (layout.cp or 1)
        if sharded == -1:
            sharded, rest = divmod(facts.devices, max(together, 1))
            if rest or replicated < 1:
                raise InputError(f"{SHARDED} -1: {facts.devices} devices do not divide by {together} other ranks")
        if sharded < 1 or replicated < 1:
            raise InputError(f"{REPLICATED} {replicated}, {SHARDED} {sharded}: give numbers from 1 on")
        stays = values[RESHARD] == "never" or (values[RESHARD] == "default" and (layout.pp or 1) > 1)
        together = sharded * (layout.cp or 1)
        return {"dp": replicated * sharded, "zero": 0 if together == 1 else 2 if stays else 3}

    def write(self, layout: RunLayout, facts: RunFacts) -> SettingValues:
        ranks, context = layout.dp or 1, layout.cp or 1
        if ranks * context == 1:
            return {REPLICATED: 1, SHARDED: 1}
        if layout.zero == 0:
            if context > 1:
                raise InputError(f"zero 0: torchtitan shards weights over cp {context} ranks: it has ZeRO 2 and 3")
            return {REPLICATED: ranks, SHARDED: 1}
        if layout.zero == 1:
            raise InputError("zero 1: torchtitan has ZeRO 2 (weights stay gathered) and 3")
        usual = 2 if (layout.pp or 1) > 1 else 3
        return {REPLICATED: 1, SHARDED: ranks, RESHARD: WAYS_OF_ZERO[layout.zero or usual, usual]}


WAYS_OF_ZERO = {(2, 2): "default", (3, 3): "default", (2, 3): "never", (3, 2): "always"}
LOCAL, GLOBAL, MICRO = f"{T}local_batch_size", f"{T}global_batch_size", f"{P}pipeline_parallel_microbatch_size"


@dataclass(frozen=True)
class LocalBatches:
    """Sequences of a step and of a micro-batch: with stages the sequences of a rank go through them in micro-batches,
    without them they are one."""

    names: ClassVar[tuple[str, ...]] = (LOCAL, GLOBAL, MICRO)
    fields: ClassVar[tuple[str, ...]] = ("micro_batch", "batch")

    def read(self, values: ReadValues, layout: RunLayout, facts: RunFacts) -> LayoutFields:
        local, ranks = values[LOCAL], layout.dp or 1
        batch = local * ranks if values[GLOBAL] == -1 else values[GLOBAL]
        if min(local, batch, values[MICRO]) < 1 or batch % (local * ranks):
            raise InputError(f"{GLOBAL} {batch}: {ranks} data ranks with {local} sequences each do not divide it")
        return {"batch": batch, "micro_batch": values[MICRO] if (layout.pp or 1) > 1 else local}

    def write(self, layout: RunLayout, facts: RunFacts) -> SettingValues:
        ranks, micro, batch = layout.dp or 1, layout.micro_batch or 1, layout.batch
        if batch is None:
            return {LOCAL: micro, MICRO: micro} if (layout.pp or 1) > 1 else {LOCAL: micro}
        if (layout.pp or 1) > 1:
            return {LOCAL: batch // ranks, MICRO: micro}
        return {LOCAL: micro} | ({GLOBAL: batch} if batch != micro * ranks else {})


SCHEDULE, STAGE_LAYERS = f"{P}pipeline_parallel_schedule", f"{P}pipeline_parallel_layers_per_stage"
FEWER = f"{P}pipeline_parallel_first_stage_less_layers", f"{P}pipeline_parallel_last_stage_less_layers"
PART_NAMES = f"{P}module_fqns_per_model_part"
SCHEDULES = {"1F1B": "1f1b", "Interleaved1F1B": "interleaved", "GPipe": "gpipe", "InterleavedZeroBubble": "zb-h1"}
NAMED_LAYER = re.compile(r"layers\.\d+")


@dataclass(frozen=True)
class ModelParts:
    """The schedule, chunks of a stage, and layers of each chunk: by weights of the ends, or by names."""

    names: ClassVar[tuple[str, ...]] = (SCHEDULE, STAGE_LAYERS, *FEWER, PART_NAMES)
    fields: ClassVar[tuple[str, ...]] = ("schedule", "virtual", "cut")

    def read(self, values: ReadValues, layout: RunLayout, facts: RunFacts) -> LayoutFields:
        stages = layout.pp or 1
        if stages == 1:
            return {"schedule": "1f1b", "virtual": 1}
        named = {name.lower(): ours for name, ours in SCHEDULES.items()}.get(str(values[SCHEDULE]).lower())
        if named is None:
            raise InputError(f"{SCHEDULE} {values[SCHEDULE]}: a plan has {', '.join(SCHEDULES)}")
        before, behind = (values[name] for name in FEWER)
        chunks = 2 if named == "interleaved" else 1
        if (parts := values[PART_NAMES]) is not None:
            cut = named_layers(parts)
            return {"schedule": named, "virtual": max(len(cut) // stages, 1), "cut": cut}
        if (most := values[STAGE_LAYERS]) is not None:
            count = ceil((facts.layers + before + behind) / max(most, 1))
            if most < 1 or count % stages:
                raise InputError(f"{STAGE_LAYERS} {most}: {count} chunks do not divide into {stages} stages")
            chunks = count // stages
        return {
            "schedule": named,
            "virtual": chunks,
            "cut": weighted_layers(facts.layers, stages * chunks, before, behind),
        }

    def write(self, layout: RunLayout, facts: RunFacts) -> SettingValues:
        stages, chunks = layout.pp or 1, layout.virtual or 1
        if stages == 1:
            return {}
        written: dict[str, ArgumentValue] = {SCHEDULE: spelled_schedule(layout)}
        cut = layout.layers_of(facts)
        for ends in ((1, 1), (0, 0), (1, 0), (0, 1)):
            try:
                alike = weighted_layers(facts.layers, stages * chunks, *ends) == cut
            except InputError:
                continue
            most = ceil((facts.layers + sum(ends)) / (stages * chunks))
            if alike and ceil((facts.layers + sum(ends)) / most) == stages * chunks:
                written |= dict(zip(FEWER, ends, strict=True))
                return written | ({STAGE_LAYERS: most} if chunks > 1 else {})
        return written | {PART_NAMES: module_names(cut)}


def spelled_schedule(layout: RunLayout) -> str:
    """Return torchtitan's name of a schedule. Raises InputError for one that it does not have."""
    usual = "interleaved" if (layout.virtual or 1) > 1 else "1f1b"
    for name, ours in SCHEDULES.items():
        if ours == (layout.schedule or usual):
            return name
    raise InputError(f"schedule {layout.schedule}: torchtitan has {', '.join(SCHEDULES.values())}")


def named_layers(parts: object) -> tuple[int, ...]:
    """Return the layers of each part by names of modules. Raises InputError for what is no list of lists of names."""
    if not isinstance(parts, list) or not all(isinstance(part, list) for part in parts):
        raise InputError(f"{PART_NAMES}: give a list of names for each part")
    return tuple(sum(bool(NAMED_LAYER.fullmatch(str(name))) for name in part) for part in parts)


def module_names(cut: tuple[int, ...]) -> list[list[str]]:
    """Return the names of the modules of each part."""
    parts, at = [], 0
    for layers in cut:
        parts.append([f"layers.{number}" for number in range(at, at + layers)])
        at += layers
    return [["tok_embeddings", *parts[0]], *parts[1:-1], [*parts[-1], "norm", "output"]]


MODE, OPTION = "activation_checkpoint.mode", "activation_checkpoint.selective_ac_option"


@dataclass(frozen=True)
class Checkpointing:
    """Recomputation: none, of operations that are cheap, of each n-th layer, or of all layers."""

    names: ClassVar[tuple[str, ...]] = (MODE, OPTION)
    fields: ClassVar[tuple[str, ...]] = ("recompute", "again")

    def read(self, values: ReadValues, layout: RunLayout, facts: RunFacts) -> LayoutFields:
        mode, option = values[MODE], values[OPTION]
        if mode == "memory_budget":
            raise InputError(f"{MODE} {mode}: a plan has none, selective and full")
        if mode != "selective" or option == "op":
            return {"recompute": mode}
        if not option.isdigit() or int(option[:9]) < 1:
            raise InputError(f"{OPTION} {option}: give op, or each how many layers")
        return {"recompute": "full", "again": tuple(layers // int(option[:9]) for layers in layout.layers_of(facts))}

    def write(self, layout: RunLayout, facts: RunFacts) -> SettingValues:
        if layout.again is None:
            return {MODE: layout.recompute or "none", **({OPTION: "op"} if layout.recompute == "selective" else {})}
        layers = layout.layers_of(facts)
        for step in range(2, max(layers) + 1):
            if layout.recompute == "full" and layout.again == tuple(number // step for number in layers):
                return {MODE: "selective", OPTION: str(step)}
        raise InputError(f"{layout.recompute} again on layers {spell(layout.again)}: torchtitan has each n-th layer")


@dataclass(frozen=True)
class CutNorms:
    """Norms, which tensor ranks always cut."""

    names: ClassVar[tuple[str, ...]] = ()
    fields: ClassVar[tuple[str, ...]] = ("sequence",)

    def read(self, values: ReadValues, layout: RunLayout, facts: RunFacts) -> LayoutFields:
        return {"sequence": (layout.tp or 1) > 1}

    def write(self, layout: RunLayout, facts: RunFacts) -> SettingValues:
        if layout.sequence is False and (layout.tp or 1) > 1:
            raise InputError(f"norms: torchtitan cuts them over tp {layout.tp} ranks: give norms cut")
        return {}


CONVERTERS = "model.converters"
EIGHT_BIT_CONVERTERS = {"mxfp8": ("quantize.linear.mx", "mx"), "fp8": ("quantize.linear.float8", "float8")}
PARAMETERS = f"{T}mixed_precision_param"


@dataclass(frozen=True)
class Converters:
    """The number type of products: that of parameters, or eight bits by a converter of the model."""

    names: ClassVar[tuple[str, ...]] = (CONVERTERS, PARAMETERS)
    fields: ClassVar[tuple[str, ...]] = ("precision",)

    def read(self, values: ReadValues, layout: RunLayout, facts: RunFacts) -> LayoutFields:
        listed = values[CONVERTERS] or []
        for number, names in EIGHT_BIT_CONVERTERS.items():
            if {*names} & {*map(str, listed)}:
                return {"precision": number}
        return {"precision": "bf16" if values[PARAMETERS] == "bfloat16" else "float32"}

    def write(self, layout: RunLayout, facts: RunFacts) -> SettingValues:
        number = layout.precision or "bf16"
        if number in EIGHT_BIT_CONVERTERS:
            return {CONVERTERS: [EIGHT_BIT_CONVERTERS[number][0]]}
        types = {"bf16": "bfloat16", "float32": "float32"}
        if number not in types:
            raise InputError(f"precision {number}: torchtitan has bf16, float32, fp8 and mxfp8")
        return {PARAMETERS: types[number]}


EXPERT_TENSOR = f"{P}expert_tensor_parallel_degree"
TORCHTITAN_SETTINGS = StackSettings(
    "torchtitan",
    declared("torchtitan"),
    (
        NumberArgument("tp", f"{P}tensor_parallel_degree"),
        NumberArgument("pp", f"{P}pipeline_parallel_degree"),
        NumberArgument("cp", f"{P}context_parallel_degree"),
        NumberArgument("ep", f"{P}expert_parallel_degree"),
        NumberArgument("seq", f"{T}seq_len"),
        ShardedData(),
        LocalBatches(),
        ModelParts(),
        Checkpointing(),
        CutNorms(),
        ChoiceArguments(
            "context",
            [("ring", {f"{P}context_parallel_rotate_method": way}) for way in ("allgather", "alltoall")],
            "cp",
        ),
        Converters(),
    ),
    ("toml", "script"),
    (
        Contradiction(
            f"{PART_NAMES}, {STAGE_LAYERS}: give one of them",
            lambda v: v[PART_NAMES] is not None and v[STAGE_LAYERS] is not None,
        ),
    ),
    frozenset(
        [
            f"{T}enable_cpu_offload",
            f"{P}enable_async_tensor_parallel",
            f"{P}pipeline_parallel_schedule_csv",
            EXPERT_TENSOR,
            "quantize.grouped_mm.float8.fqns",
        ]
    ),
)
