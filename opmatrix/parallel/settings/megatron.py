"""The settings of Megatron-LM: names, defaults and choices are those of core 0.15.0, in stack_arguments.json."""

from __future__ import annotations

from dataclasses import dataclass
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
    Spelling,
    StackSettings,
    declared,
)
from opmatrix.parallel.settings.stage_layouts import read_layout_string, write_layout_string

VIRTUAL_STAGES, VIRTUAL_LAYERS = "num-virtual-stages-per-pipeline-rank", "num-layers-per-virtual-pipeline-stage"
LAYOUT_STRING = "pipeline-model-parallel-layout"
FIRST_STAGE, LAST_STAGE = "decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers"
COUNTED_ENDS = "account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split"


@dataclass(frozen=True)
class PipelineStages:
    """Chunks of a stage, and layers of each chunk: a layout string, or layers of the first and the last stage."""

    names: ClassVar[tuple[str, ...]] = (
        VIRTUAL_STAGES,
        VIRTUAL_LAYERS,
        LAYOUT_STRING,
        FIRST_STAGE,
        LAST_STAGE,
        *COUNTED_ENDS,
        "mtp-num-layers",  # heads of further tokens, which a plan reads off the model
    )
    fields: ClassVar[tuple[str, ...]] = ("virtual", "schedule", "cut")

    def read(self, values: ReadValues, layout: RunLayout, facts: RunFacts) -> LayoutFields:
        stages = layout.pp or 1
        if (text := values[LAYOUT_STRING]) is not None:
            cut = read_layout_string(text)
            if len(cut) % stages:
                raise InputError(f"{LAYOUT_STRING} {text}: {len(cut)} chunks do not divide into {stages} stages")
            return scheduled(len(cut) // stages) | {"cut": cut}
        chunks = self.chunks(values, stages, facts)
        return scheduled(chunks) | {"cut": self.layers(values, stages, chunks, facts)}

    def chunks(self, values: ReadValues, stages: int, facts: RunFacts) -> int:
        """Return the chunks of a stage, by their number or by the layers of one."""
        if (number := values[VIRTUAL_STAGES]) is not None:
            return positive(VIRTUAL_STAGES, number)
        if (layers := values[VIRTUAL_LAYERS]) is None:
            return 1
        places = facts.layers + sum(values[name] for name in COUNTED_ENDS)
        if places % (stages * positive(VIRTUAL_LAYERS, layers)):
            raise InputError(f"{VIRTUAL_LAYERS} {layers}: {stages} stages of {places} layers do not divide into chunks")
        return int(places // (stages * layers))

    def layers(self, values: ReadValues, stages: int, chunks: int, facts: RunFacts) -> tuple[int, ...] | None:
        """Return the layers of each chunk; None where they are as many each."""
        before, behind = (int(values[name]) for name in COUNTED_ENDS)
        first, last = values[FIRST_STAGE], values[LAST_STAGE]
        if first is None and last is None:
            if not before + behind or stages == 1:
                divided(facts.layers, stages * chunks, "layers")
                return None
            share = divided(facts.layers + before + behind, stages * chunks, "layers with embedding and loss")
            return (share - before, *[share] * (stages * chunks - 2), share - behind)
        ends = [number for number in (first, last) if number is not None]
        middle = stages - len(ends)
        if middle < 0 or (not middle and sum(ends) != facts.layers):
            raise InputError(
                f"{FIRST_STAGE}, {LAST_STAGE}: {spell(tuple(ends))} of {facts.layers} layers on {stages} stages"
            )
        share = divided(facts.layers - sum(ends), middle, f"layers without {spell(tuple(ends))}") if middle else 0
        by_stage = [share if first is None else first, *[share] * (stages - 2), share if last is None else last]
        shares = [divided(number, chunks, "layers of a stage") for number in by_stage[:stages]]
        return tuple(shares * chunks)

    def write(self, layout: RunLayout, facts: RunFacts) -> SettingValues:
        chunks, stages = layout.virtual or 1, layout.pp or 1
        check_scheduled(layout)
        cut = layout.layers_of(facts)
        if stages == 1:
            return {}
        if len({*cut}) == 1:
            return {VIRTUAL_STAGES: chunks} if chunks > 1 else {}
        first, *middle, last = cut
        if chunks == 1 and middle and len({*middle}) == 1:
            return {name: number for name, number in ((FIRST_STAGE, first), (LAST_STAGE, last)) if number != middle[0]}
        return {LAYOUT_STRING: write_layout_string(cut)}


def divided(number: int, parts: int, what: str) -> int:
    """Return an equal share. Raises InputError where the parts do not divide the number."""
    if number < 0 or number % parts:
        raise InputError(f"{number} {what}: {parts} chunks do not divide them")
    return number // parts


def positive(name: str, number: int) -> int:
    """Return a number that is at least one. Raises InputError for any other."""
    if number >= 1:
        return number
    raise InputError(f"{name} {number}: give a whole number from 1 on")


def scheduled(chunks: int) -> LayoutFields:
    """Return the chunks of a stage with the schedule that they imply."""
    return {"virtual": chunks, "schedule": "interleaved" if chunks > 1 else "1f1b"}


def check_scheduled(layout: RunLayout) -> None:
    """Raise InputError for a schedule that the number of chunks does not imply."""
    implied = scheduled(layout.virtual or 1)["schedule"]
    if layout.pp not in (None, 1) and layout.schedule not in (None, implied):
        raise InputError(
            f"schedule {layout.schedule}: this stack runs {implied} with {layout.virtual or 1} chunks a stage"
        )


GRANULARITY, METHOD, AGAIN_LAYERS = "recompute-granularity", "recompute-method", "recompute-num-layers"
SELECTIVE_FLAG = "recompute-activations"


@dataclass(frozen=True)
class RecomputedLayers:
    """Recomputation: selective, or of all of some or of all layers."""

    names: ClassVar[tuple[str, ...]] = (GRANULARITY, METHOD, AGAIN_LAYERS, SELECTIVE_FLAG, "recompute-modules")
    fields: ClassVar[tuple[str, ...]] = ("recompute", "again")

    def read(self, values: ReadValues, layout: RunLayout, facts: RunFacts) -> LayoutFields:
        if values[SELECTIVE_FLAG] or values[GRANULARITY] == "selective":
            return {"recompute": "selective"}
        if values[GRANULARITY] is None:
            return {"recompute": "none"}
        if values[METHOD] is None or values[AGAIN_LAYERS] is None:
            raise InputError(f"{GRANULARITY} full: it needs {METHOD} and {AGAIN_LAYERS}")
        if values[METHOD] == "uniform":
            return {"recompute": "full"}
        most = values[AGAIN_LAYERS]
        return {"recompute": "full", "again": tuple(min(max(most, 0), layers) for layers in layout.layers_of(facts))}

    def write(self, layout: RunLayout, facts: RunFacts) -> SettingValues:
        if layout.recompute == "full" and layout.again is not None:
            most = max(layout.again)
            if layout.again != tuple(min(most, layers) for layers in layout.layers_of(facts)):
                raise InputError(
                    f"layers computed again {spell(layout.again)}: this stack computes as many again on each stage"
                )
            return {GRANULARITY: "full", METHOD: "block", AGAIN_LAYERS: most}
        if layout.again is not None:
            raise InputError(f"{layout.recompute} again on layers {spell(layout.again)}: this stack has all or none")
        ways: dict[str, dict[str, ArgumentValue]] = {
            "full": {GRANULARITY: "full", METHOD: "uniform", AGAIN_LAYERS: 1},
            "selective": {GRANULARITY: "selective"},
            "core_attention": {GRANULARITY: "selective"},
        }
        return ways.get(layout.recompute or "none", {})


EXPERT_TENSOR = "expert-tensor-parallel-size"


@dataclass(frozen=True)
class ExpertTensorRanks:
    """Whole experts, where tensor ranks share none; else tensor ranks share each."""

    names: ClassVar[tuple[str, ...]] = (EXPERT_TENSOR,)
    fields: ClassVar[tuple[str, ...]] = ("whole_experts",)

    def read(self, values: ReadValues, layout: RunLayout, facts: RunFacts) -> LayoutFields:
        ranks, tensor = values[EXPERT_TENSOR], layout.tp or 1
        if ranks in (None, tensor):
            return {"whole_experts": False}
        if ranks == 1:
            return {"whole_experts": True}
        raise InputError(f"{EXPERT_TENSOR} {ranks}: a plan has 1 (whole experts) or the tensor ranks, {tensor}")

    def write(self, layout: RunLayout, facts: RunFacts) -> SettingValues:
        return {EXPERT_TENSOR: 1} if layout.whole_experts else {}


def types_of_numbers(*flags: tuple[str, str]) -> ChoiceArguments:
    """Return the spelling of number types: those of sixteen bits with their flags; eight bits beside bfloat16."""
    sixteen: dict[str, ArgumentValue] = {flag: False for _, flag in flags}
    wide = [(number, sixteen | {flag: True, "fp8-format": None}) for number, flag in flags]
    eight = [
        (number, sixteen | {"bf16": True, "fp8-format": form, "fp8-recipe": recipe})
        for number, recipe in (("mxfp8", "mxfp8"), ("fp8", "delayed"), ("fp8", "tensorwise"), ("fp8", "blockwise"))
        for form in ("hybrid", "e4m3")
    ]
    return ChoiceArguments("precision", [*eight, *wide, ("float32", sixteen | {"fp8-format": None})])


SIZE_ARGUMENTS: tuple[Spelling, ...] = (
    NumberArgument("tp", "tensor-model-parallel-size"),
    NumberArgument("pp", "pipeline-model-parallel-size"),
    NumberArgument("cp", "context-parallel-size"),
    NumberArgument("ep", "expert-model-parallel-size"),
    NumberArgument("micro_batch", "micro-batch-size"),
    NumberArgument("batch", "global-batch-size"),
    NumberArgument("seq", "seq-length"),
)
SHARDED_STATE = ChoiceArguments(
    "zero",
    [
        (1, {"use-distributed-optimizer": True, "use-torch-fsdp2": False}),
        (0, {"use-distributed-optimizer": False, "use-torch-fsdp2": False}),
        (3, {"use-torch-fsdp2": True}),
    ],
)
CUT_NORMS = ChoiceArguments("sequence", [(False, {"sequence-parallel": False}), (True, {"sequence-parallel": True})])
CONTEXT_WAYS = ChoiceArguments(
    "context",
    [
        ("ring", {"cp-comm-type": ["p2p"]}),
        ("ulysses", {"cp-comm-type": ["a2a"]}),
        ("ring", {"cp-comm-type": ["allgather"]}),
        ("ulysses", {"cp-comm-type": ["a2a+p2p"]}),
    ],
    "cp",
)
PRECISION_FLAGS = types_of_numbers(("bf16", "bf16"), ("float16", "fp16"))
CONTRADICTIONS = (
    Contradiction("bf16, fp16: give one of them", lambda v: v["bf16"] and v["fp16"]),
    Contradiction(
        f"{VIRTUAL_STAGES}, {VIRTUAL_LAYERS}, {LAYOUT_STRING}: give one of them",
        lambda v: sum(v[name] is not None for name in (VIRTUAL_STAGES, VIRTUAL_LAYERS, LAYOUT_STRING)) > 1,
    ),
    Contradiction(
        f"{LAYOUT_STRING}: it does not go with {FIRST_STAGE}, {LAST_STAGE} or {COUNTED_ENDS[0]}",
        lambda v: (
            v[LAYOUT_STRING] is not None
            and bool(v[FIRST_STAGE] or v[LAST_STAGE] or v[COUNTED_ENDS[0]] or v[COUNTED_ENDS[1]])
        ),
    ),
    Contradiction(
        f"{GRANULARITY} selective: it has no {METHOD}",
        lambda v: v[GRANULARITY] == "selective" and v[METHOD] is not None,
    ),
    Contradiction(
        f"{SELECTIVE_FLAG}, {GRANULARITY} full: give one of them",
        lambda v: bool(v[SELECTIVE_FLAG]) and v[GRANULARITY] == "full",
    ),
    Contradiction(
        "expert-model-parallel-size: with tensor ranks it needs sequence-parallel",
        lambda v: (
            (v["expert-model-parallel-size"] or 1) > 1
            and (v["tensor-model-parallel-size"] or 1) > 1
            and not v["sequence-parallel"]
        ),
    ),
)
UNPRICED = frozenset(
    [
        "distribute-saved-activations",
        "optimizer-cpu-offload",
        "num-distributed-optimizer-instances",
        "data-parallel-sharding-strategy",
        "use-megatron-fsdp",
        "grad-reduce-in-bf16",
        "no-gradient-accumulation-fusion",
        "overlap-moe-expert-parallel-comm",
        "hierarchical-context-parallel-sizes",
    ]
)
MEGATRON_SETTINGS = StackSettings(
    "megatron",
    declared("megatron"),
    (
        *SIZE_ARGUMENTS,
        PipelineStages(),
        RecomputedLayers(),
        SHARDED_STATE,
        CUT_NORMS,
        CONTEXT_WAYS,
        ExpertTensorRanks(),
        PRECISION_FLAGS,
    ),
    ("script",),
    CONTRADICTIONS,
    UNPRICED,
    layers="num-layers",
)
