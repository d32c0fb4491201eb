"""Rows of measured steps of training, as a planner reads them: configuration, machine, strategy, sizes."""

import csv
import re
from typing import NamedTuple

from lib.command import InputError

from formats.machine.datasheets import datasheet
from opmatrix.parallel.cost.stacks import stack_of_source
from opmatrix.parallel.cost.strategies import Strategy
from opmatrix.parallel.search.step_rows import number_type, read_step_rows

SHAPE = "layers", "hidden", "heads", "vocab", "seq", "devices", "dp", "tp", "pp", "micro_batch", "global_batch"
NEEDED = "source", "model", *SHAPE
MACHINES = (
    ("Jean Zay, 8/node", "JeanZay-A100"),
    ("inter 800 Gb/s", "A100-800Gb"),
    ("A100-40", "A100-40"),
    ("A100", "A100"),
    ("A800", "A800"),
    ("V100", "V100"),
    ("H100-96GB", "GrandTeton-H100"),
    ("H100", "H100"),
    ("H200", "H200"),
    ("GB300", "GB300"),
    ("GB200", "GB200"),
    ("B200", "B200"),
    ("910C", "Ascend910C"),
    ("910B", "Ascend910B"),
)
KINDS = {
    "torchtitan": "reserved",  # its log prints the most that the allocator reserved
    "Korthikanti": "allocated",  # counted by the authors, not measured
}
EARLY = "megatron-2022"  # stacks of 2022 and before
EXPERTS = re.compile(r"^(\d+) top(\d+)$")  # experts of a layer, and those that a row is routed to
HEADS = {"Qwen3": 128, "GPT OSS": 64}  # columns of a head, where they are not the hidden ones by heads
DROPOUT = 0.1  # of GPTs; other families were trained without


class Measured(NamedTuple):
    """One row: what was run, as predicted it is asked for, and what was measured."""

    row: dict[str, str]
    config: dict
    machine: object
    strategy: Strategy
    batch: int
    seq: int
    seconds: float | None
    memory: float | None  # GB
    memory_kind: str  # what measured it; empty if the row does not say
    failed: bool
    early: bool  # of a stack of 2022 or before
    stack: str  # name of its stack

    @property
    def dropout(self):
        return DROPOUT if self.early else 0


def read_rows(file):
    """All rows of a table. Raises InputError for a column that is not there."""
    with file.open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    if missing := [name for name in NEEDED if rows and name not in rows[0]] or ([] if rows else ["rows"]):
        raise InputError(f"{file}: {missing[0]} is missing: give a table of measured steps")
    return rows


def read_steps(file):
    """The steps of a table of either kind: with a column of configurations, or with sizes in its columns."""
    with file.open(encoding="utf-8") as lines:
        columns = next(csv.reader(lines), [])
    if "config" in columns:
        return [of_step_row(row) for row in read_step_rows(file)]
    return [step for row in read_rows(file) if (step := read_measured(row)) is not None]


def of_step_row(step):
    """A step of a table of configurations."""
    row = {"source": step.source, "model": step.model, "devices": str(step.strategy.devices), "notes": step.notes}
    memory = step.memory and step.memory / 1e9
    return Measured(
        row,
        step.config,
        step.machine,
        step.strategy,
        step.batch,
        step.seq,
        step.seconds,
        memory,
        step.memory_kind,
        step.failed,
        False,
        step.stack.name,
    )


def read_measured(row):
    """A row as it is predicted, None for one that says too little, or whose experts are not plain ones."""
    if (row.get("experts") and not EXPERTS.match(row["experts"])) or not all(row[name] for name in NEEDED):
        return None
    machine = next((name for said, name in MACHINES if said in row["hardware"]), None)
    if machine is None:
        return None
    return Measured(
        row,
        configuration(row),
        datasheet(machine),
        strategy(row),
        int(row["global_batch"]),
        int(row["seq"]),
        number(row.get("iter_time_s")) or by_tokens(row),
        number(row.get("mem_gb_per_gpu")),
        next((kind for source, kind in KINDS.items() if source in row["source"]), ""),
        row.get("oom") == "yes",
        is_early(row),
        EARLY if is_early(row) else stack_of_source(row["source"], row["notes"]).name,
    )


def by_tokens(row):
    """Seconds of a step by tokens a second and device."""
    rate = number(row.get("tokens_per_s_per_gpu"))
    return int(row["global_batch"]) * int(row["seq"]) / (rate * int(row["devices"])) if rate else None


def number(said):
    try:
        return float(said)
    except (TypeError, ValueError):
        return None


def configuration(row):
    """GPTs with learned positions, MPT among them, whose positions cost nothing, either; else a LLaMA."""
    size = {name: int(row[name]) for name in ("layers", "hidden", "heads", "vocab", "seq")}
    mixture = EXPERTS.match(row.get("experts") or "")
    if mixture or not re.match(r"(GPT|BLOOM|MT-NLG|MPT)", row["model"]):
        columns = next((width for name, width in HEADS.items() if row["model"].startswith(name)), None)
        routed = mixture and dict(
            model_type="mixtral", num_local_experts=int(mixture[1]), num_experts_per_tok=int(mixture[2])
        )
        return (
            dict(
                model_type="llama",
                vocab_size=size["vocab"],
                hidden_size=size["hidden"],
                rms_norm_eps=1e-5,
                intermediate_size=int(row["ffn"]),
                num_hidden_layers=size["layers"],
                num_attention_heads=size["heads"],
                num_key_value_heads=int(row["kv_heads"] or size["heads"]),
                max_position_embeddings=4096,
                tie_word_embeddings=False,
            )
            | (routed or {})
            | ({"head_dim": columns} if columns else {})
        )
    return dict(
        model_type="gpt2",
        vocab_size=size["vocab"],
        n_embd=size["hidden"],
        n_positions=size["seq"],
        n_head=size["heads"],
        n_layer=size["layers"],
    )


def is_early(row):
    """Whether a GPT was trained by a stack of 2022 or before: with dropout, and scores of attention that are stored."""
    early = re.match(r"(GPT|BLOOM|MT-NLG)", row["model"]) and not row.get("experts")
    return bool(early) and "NeMo" not in row["source"]


def strategy(row):
    """The strategy of a row. Stacks of 2022 and before sum gradients behind the last backward pass and store scores of
    attention; later ones have the habits of their stack."""
    recompute = next((each for each in ("full", "selective") if row["recompute"].startswith(each)), "none")
    wide = 4 if "fp32 grad accumulation" in row["notes"] else 2
    early = is_early(row)
    stack = stack_of_source(row["source"], row["notes"])
    tensor = int(row["tp"])
    plain = Strategy(
        **{name: int(row[name]) for name in ("dp", "tp", "pp", "micro_batch")},
        cp=int(row["cp"] or 1),
        ep=int(row["ep"] or 1) if row["experts"] else 1,
        virtual=int(row["vpp"] or 1),
        zero=zero_of(row),
        sequence=row["seq_par"] == "yes" or (not early and stack.sequence and tensor > 1),
        recompute=recompute,
        context="ulysses" if early else "ring",
        schedule="interleaved" if int(row["vpp"] or 1) > 1 else "1f1b",
        flash=not early,
        overlap=not early,
        precision=number_type(row["precision"]),
        gradient_bytes=wide,
        accumulated=wide - 2,
        balanced="embeddings as own pipeline slots" in row["notes"],
    )
    return plain if early else stack.habits(plain)


def zero_of(row):
    stored = row["zero_or_fsdp"]
    return 3 if "FSDP" in stored else 1 if "ZeRO-1" in stored or "distributed optimizer" in stored else 0
