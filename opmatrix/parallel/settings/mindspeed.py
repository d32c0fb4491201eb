"""The settings of MindSpeed-LLM: Megatron's arguments, and those of MindSpeed and of MindSpeed-LLM beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from formats.core.errors import InputError
from opmatrix.parallel.settings.megatron import (
    CONTRADICTIONS,
    CUT_NORMS,
    PRECISION_FLAGS,
    SHARDED_STATE,
    SIZE_ARGUMENTS,
    UNPRICED,
    VIRTUAL_LAYERS,
    RecomputedLayers,
    check_scheduled,
    divided,
    positive,
    scheduled,
)
from opmatrix.parallel.settings.run_layout import RunFacts, RunLayout, spell
from opmatrix.parallel.settings.spellings import (
    ChoiceArguments,
    Contradiction,
    DeclaredArguments,
    LayoutFields,
    ReadValues,
    SettingValues,
    StackSettings,
    declared,
)

LAYER_LIST, EMPTY_LAYERS, LAYERS = "num-layer-list", "noop-layers", "num-layers"


def numbers_of(name: str, text: str | None) -> tuple[int, ...]:
    """Return numbers with commas between them. Raises InputError for any other text."""
    words = [word.strip() for word in (text or "").split(",") if word.strip()]
    if all(word.isdigit() and len(word) < 10 for word in words):
        return tuple(map(int, words))
    raise InputError(f"{name} {text}: give whole numbers with commas between them")


@dataclass(frozen=True)
class ListedStages:
    """Chunks of a stage by their layers; layers of each stage as a list; layers that are empty."""

    names: ClassVar[tuple[str, ...]] = (VIRTUAL_LAYERS, LAYER_LIST, EMPTY_LAYERS, LAYERS)
    fields: ClassVar[tuple[str, ...]] = ("virtual", "schedule", "cut")

    def read(self, values: ReadValues, layout: RunLayout, facts: RunFacts) -> LayoutFields:
        stages = layout.pp or 1
        empty = numbers_of(EMPTY_LAYERS, values[EMPTY_LAYERS])
        if values[LAYERS] not in (None, facts.layers + len(empty)):
            raise InputError(f"{LAYERS} {values[LAYERS]}: the model has {facts.layers} layers, {len(empty)} are empty")
        places = facts.layers + len(empty)
        if values[LAYER_LIST] is not None:
            return scheduled(1) | {"cut": numbers_of(LAYER_LIST, values[LAYER_LIST])}
        chunks = 1
        if (layers := values[VIRTUAL_LAYERS]) is not None:
            chunks = divided(places, stages * positive(VIRTUAL_LAYERS, layers), f"layers by {layers}")
        share = divided(places, stages * chunks, "layers")
        cut = [share] * (stages * chunks)
        for layer in empty:
            if layer >= places:
                raise InputError(f"{EMPTY_LAYERS} {layer}: there are {places} layers")
            cut[layer // share] -= 1
        return scheduled(chunks) | {"cut": tuple(cut) if empty else None}

    def write(self, layout: RunLayout, facts: RunFacts) -> SettingValues:
        check_scheduled(layout)
        cut, chunks = layout.layers_of(facts), layout.virtual or 1
        whole: dict[str, object] = {LAYERS: facts.layers}
        if layout.pp in (None, 1) or (len({*cut}) == 1 and chunks == 1):
            return whole
        if len({*cut}) == 1:
            return whole | {VIRTUAL_LAYERS: cut[0]}
        return whole | ({LAYER_LIST: spell(cut)} if chunks == 1 else with_empty_layers(cut))


def with_empty_layers(cut: tuple[int, ...]) -> dict[str, object]:
    """Return the arguments of uneven chunks: as many layers each, of which the last ones of a chunk are empty."""
    share = max(cut)
    empty = [at * share + layer for at, layers in enumerate(cut) for layer in range(layers, share)]
    return {VIRTUAL_LAYERS: share, EMPTY_LAYERS: spell(tuple(empty)), LAYERS: share * len(cut)}


CONTEXT_ALGORITHM = ChoiceArguments(
    "context",
    [
        ("ulysses", {"context-parallel-algo": "ulysses_cp_algo"}),
        ("ring", {"context-parallel-algo": "megatron_cp_algo"}),
        ("ulysses", {"context-parallel-algo": "hybrid_cp_algo"}),
        ("ring", {"context-parallel-algo": "adaptive_cp_algo"}),
        ("ulysses", {"context-parallel-algo": "hybrid_adaptive_cp_algo"}),
    ],
    "cp",
)
EXPERTS_OVER_TENSOR = ChoiceArguments(
    "whole_experts", [(False, {"moe-tp-extend-ep": False}), (True, {"moe-tp-extend-ep": True})]
)
MINDSPEED_DECLARED = DeclaredArguments(
    declared("mindspeed-llm").version,
    declared("mindspeed-llm").commit,
    {**declared("megatron").arguments, **declared("mindspeed").arguments, **declared("mindspeed-llm").arguments},
)
MINDSPEED_SETTINGS = StackSettings(
    "mindspeed",
    MINDSPEED_DECLARED,
    (
        *SIZE_ARGUMENTS,
        ListedStages(),
        RecomputedLayers(),
        SHARDED_STATE,
        CUT_NORMS,
        CONTEXT_ALGORITHM,
        EXPERTS_OVER_TENSOR,
        PRECISION_FLAGS,
    ),
    ("script",),
    (
        *CONTRADICTIONS,
        Contradiction(
            f"{LAYER_LIST}, {VIRTUAL_LAYERS}: give one of them",
            lambda v: v[LAYER_LIST] is not None and v[VIRTUAL_LAYERS] is not None,
        ),
    ),
    UNPRICED
    | {
        "schedules-method",
        "moe-fb-overlap",
        "swap-optimizer",
        "swap-attention",
        "recompute-norm",
        "recompute-activation-function",
        "recompute-in-bubble",
        "recompute-in-advance",
        "adaptive-recompute-device-size",
        "adaptive-memory-optimization",
        "moe-zero-memory",
        "mla-zero-memory",
        "reuse-fp32-param",
        "num-nextn-predict-layers",
        "tp-2d",
        "ulysses-degree-in-cp",
    },
)
