"""Random BERTs as transformers saves them, optimised, beside transformers' own hidden states in float32.

    python benchmarks/berts.py [--models 30] [--first 0] [--csv OUT]

Sizes, heads, activations, number types, biases (zeros and gains of one as a library initialises them, or random),
shards, heads on top, with and without a pooler. Every fourth is searched within the default error, the others exactly.
`exact` is the relative change (Frobenius) of the exact program's output on sentences of several lengths, `chosen` that
of the program that `optimize` answers with; an exact program further off than 1e-5, or a chosen one further off than
twice what was asked for on other sentences, ends with status 1.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from lib import command
from lib.command import SUPPORT, Figure, Parser, concluded, count, tabled, takes, whole

import numpy as np

sys.path.insert(0, str(SUPPORT))

from checkpoints import write_tokenizer

from opmatrix.algebra.batch.batch import Batch
from rewrites.report.results import Result
from rewrites.run import optimize

COLUMNS = (
    "model",
    "saved as",
    "layers x width",
    "heads",
    "inner",
    "tokens",
    "activation",
    "eps",
    "number type",
    "numbers",
    "files",
    "exact",
    "chosen",
    "program",
    "seconds",
)
EXACT, DEFAULT = 1e-5, 0.02  # relative
SAVED = (
    "BertModel",
    "BertForMaskedLM",
    "BertForPreTraining",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BertForQuestionAnswering",
    "BertLMHeadModel",
)
NUMBERS = ("float32", "float16", "bfloat16")
FILLED = ("fresh", "zero biases", "random", "random")


class Case(NamedTuple):
    """One model: the class that saves it, its config, its number type, how its parameters are filled, its files."""

    saved: str
    config: dict[str, Any]
    number: str
    filled: str
    files: str


def case(number: int) -> Case:
    """The choices of one model; every list is walked through, what is left is drawn."""
    rng = np.random.default_rng(number)
    heads, saved = int(rng.integers(1, 9)), SAVED[number % len(SAVED)]
    acts = "gelu", "gelu_new", "relu", "silu", "tanh", "gelu_pytorch_tanh"
    config = dict(
        hidden_size=heads * int(rng.choice([1, 4, 6, 8, 12, 16, 32])),
        num_attention_heads=heads,
        num_hidden_layers=1 + number % 4,
        intermediate_size=int(rng.integers(5, 300)),
        hidden_act=acts[number % len(acts)],
        vocab_size=int(rng.integers(50, 1200)),
        type_vocab_size=1 + number % 2,
        max_position_embeddings=int(rng.integers(64, 140)),
        layer_norm_eps=float(rng.choice([1e-5, 1e-6, 1e-7, 1e-12])),
        is_decoder=saved == "BertLMHeadModel",
    )
    return Case(saved, config, NUMBERS[number % 3], FILLED[number // 2 % 4], "shards" if number % 5 == 3 else "one")


def write(made: Case, directory: Path, seed: int) -> None:
    """What transformers saves for a case, and a tokenizer."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.manual_seed(seed)
    model = getattr(transformers, made.saved)(transformers.BertConfig(**made.config))
    for name, parameter in model.named_parameters():
        gain = name.endswith("LayerNorm.weight")
        if made.filled == "fresh" or (made.filled == "zero biases" and parameter.ndim == 1 and not gain):
            continue
        scale = 0.1 if parameter.ndim == 1 else parameter.shape[-1] ** -0.5
        torch.nn.init.normal_(parameter, mean=float(gain), std=scale)
    model.to(getattr(torch, made.number))
    size = sum(parameter.nbytes for parameter in model.parameters())
    model.save_pretrained(directory, max_shard_size=size // 3 if made.files == "shards" else size + 1)
    write_tokenizer(directory / "tokenizer.json")


def sentences(made: Case, seed: int) -> list[np.ndarray]:
    """Rows of ids of several lengths, from one to as many as there are positions."""
    rng, longest = np.random.default_rng(seed), made.config["max_position_embeddings"]
    return [rng.integers(0, made.config["vocab_size"], length) for length in (1, 2, 3, 7, longest // 2, longest, 13)]


def hidden(directory: Path, rows: list[np.ndarray]) -> np.ndarray:
    """transformers' last hidden states in float32, one sentence after another."""
    import torch
    import transformers

    model = transformers.BertModel.from_pretrained(directory, dtype=torch.float32).eval()
    with torch.no_grad():
        return np.concatenate([model(torch.from_numpy(row)[None]).last_hidden_state[0].numpy() for row in rows])


def change(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def compared(number: int, directory: Path, error: float = 0.0) -> tuple[Case, Result, float, float]:
    """One model optimised: what it is, what was found, how far its exact and its chosen program are from
    transformers."""
    made = case(number)
    write(made, directory, number)
    result = optimize(str(directory), error=error, tokens=16, rounds=3, output="rows")
    rows = sentences(made, number)
    wanted = hidden(directory, rows)
    return made, result, *(change(point.program.run(Batch(rows)), wanted) for point in (result.points[0], result.best))


def row(number: int, made: Case, result: Result, exact: float, chosen: float, seconds: float) -> tuple[Any, ...]:
    c = made.config
    return (
        number,
        made.saved,
        f"{c['num_hidden_layers']} x {c['hidden_size']}",
        c["num_attention_heads"],
        c["intermediate_size"],
        c["vocab_size"],
        c["hidden_act"],
        f"{c['layer_norm_eps']:g}",
        made.number,
        made.filled,
        made.files,
        f"{exact:.1e}",
        f"{chosen:.1e}",
        result.best.name,
        f"{seconds:.1f}",
    )


def main() -> int:
    """Run, print the table as it grows, write the CSV."""
    parser = Parser(__doc__)
    parser.add_argument("--models", type=count, default=30)
    parser.add_argument("--first", type=whole, default=0)
    given = parser.parse_args()
    takes(7 * given.models)
    rows, wrong, off = [], 0, [0.0]
    print("  ".join(COLUMNS))
    for number in range(given.first, given.first + given.models):
        start, error = time.perf_counter(), DEFAULT if number % 4 == 3 else 0.0
        with TemporaryDirectory() as place:
            made, result, exact, chosen = compared(number, Path(place) / "model", error)
        off.append(exact)
        wrong += not (exact <= EXACT and chosen <= max(2 * error, EXACT))
        rows.append(row(number, made, result, exact, chosen, time.perf_counter() - start))
        print("  ".join(map(str, rows[-1])), flush=True)
    tabled(given.csv, [COLUMNS, *rows])
    concluded(
        given,
        [
            Figure(f"models of {len(rows)} that are too far off transformers", wrong, most=0),
            Figure("largest relative change of an exact program", max(off), most=EXACT),
        ],
    )
    return int(bool(wrong))


if __name__ == "__main__":
    command.run(main)
