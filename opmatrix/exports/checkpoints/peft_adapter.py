"""Low-rank corrections beside stored weights as a PEFT adapter: LoRA (Hu et al. 2022) whose scale is 1. Inverts
opmatrix/files/adapter.py."""

import json
from collections.abc import Mapping
from pathlib import Path

from opmatrix.exports.checkpoints.plain_class import LowRankCorrection
from opmatrix.files.adapter import CONFIG, FIRST, MATRICES, SECOND, STEM
from opmatrix.files.mapped import write_entries

ADAPTER = "adapter"  # the folder of a directory that holds its adapter
ALIGNED_HEADER = 8  # bytes that a header of safetensors is a multiple of


def write_adapter(folder: Path, corrections: Mapping[str, LowRankCorrection], speaks: bool) -> None:
    """Write corrections by the names of their modules, which a class with a head (`speaks`) has behind another name."""
    named = {f"model.{name}" if speaks else name: correction for name, correction in corrections.items()}
    folder.mkdir()
    ranks = {name: len(correction.first) for name, correction in named.items()}
    rank = max(ranks.values())
    other = {name: count for name, count in ranks.items() if count != rank}
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM" if speaks else "FEATURE_EXTRACTION",
        "r": rank,
        "lora_alpha": rank,
        "rank_pattern": other,
        "alpha_pattern": other,
        "target_modules": [*named],
        "bias": "none",
        "lora_dropout": 0.0,
        "fan_in_fan_out": False,
        "use_rslora": False,
        "use_dora": False,
        "inference_mode": True,
        "base_model_name_or_path": None,
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    arrays = {
        f"{STEM}{name}{end}": array
        for name, correction in named.items()
        for end, array in zip((FIRST, SECOND), correction, strict=True)
    }
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, array in arrays.items():
        begin, end = end, end + array.nbytes
        entries[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": (begin, end)}
    write_entries(folder / MATRICES, entries, (array.data for array in arrays.values()), ALIGNED_HEADER)


def describe_adapter(corrections: Mapping[str, LowRankCorrection]) -> list[str]:
    """Return a line on the adapter of a directory; none where it has none."""
    if not corrections:
        return []
    ranks = [len(correction.first) for correction in corrections.values()]
    return [f"{len(ranks)} low-rank corrections, of rank {max(ranks)} at most, in {ADAPTER}, as PEFT reads them"]
