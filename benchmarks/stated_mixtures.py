"""The stated error of mixtures of experts on texts that nobody has seen, each program routed by its own scores.

    python benchmarks/stated_mixtures.py [--families mixtral,qwen2] [--fresh 300] [--error 0.02] [--seed 0] [--csv OUT]

Small random models of five families, and the trained one of tests/data, are optimised for texts of 1 to 600 tokens, or
as many as a model has positions for. Every approximate program of a front then runs on fresh texts as long, beside the
imported program, as a user compares them. Counted are the fresh texts that exceed what is stated of a single one, of
which 1 in 100 may; and how far all together are off, over what is stated."""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from lib import command
from lib.command import TESTS, Figure, Parser, concluded, count, listed, named, number, say, tabled, takes, whole

import numpy as np

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.data import Data
from opmatrix.algebra.term import Operator
from opmatrix.display.tables import table
from opmatrix.files.checkpoint import open_model
from opmatrix.models import build
from opmatrix.runtime.program import Program
from rewrites.report.results import Result
from rewrites.run import optimize
from rewrites.verify.differences import Change

COLUMNS = (
    "family",
    "program",
    "rows elsewhere",
    "along",
    "stated",
    "fresh, over stated",
    "stated worst",
    "fresh above",
    "largest ratio",
)
SENTENCES, PIECE = 48, 2048  # of a workload; rows that run together
LONGEST, WORDS = 600, 256  # tokens of a text; tokens of random models
ALLOWED, MOST = 0.01, 1.0  # share of fresh texts above; all together, over stated
LLAMA = dict(
    vocab_size=WORDS,
    hidden_size=48,
    intermediate_size=64,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=LONGEST,
    rms_norm_eps=1e-5,
    rope_theta=1e4,
)
QWEN = LLAMA | dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32)
CONFIGS = {
    "mixtral": LLAMA | dict(model_type="mixtral", num_local_experts=8, num_experts_per_tok=2),
    "qwen2": QWEN | dict(model_type="qwen2_moe", shared_expert_intermediate_size=32),
    "qwen3": QWEN | dict(model_type="qwen3_moe", head_dim=12, norm_topk_prob=True),
    "pangu": QWEN | dict(model_type="PanguProMoE", num_experts_per_tok=4, shared_expert_intermediate_size=32),
    "pr-moe": dict(
        model_type="pr_moe",
        vocab_size=WORDS,
        n_embd=48,
        n_layer=4,
        n_head=4,
        n_positions=LONGEST,
        num_experts=[4, 8],
        expert_interval=2,
        layer_norm_epsilon=1e-5,
    ),
}
TRAINED = "mixtral_bytes"


class Made(NamedTuple):
    """A model, and tokens that its texts are drawn from, at most so many for a text."""

    model: Operator
    tokens: np.ndarray
    longest: int


class Judged(NamedTuple):
    """A row of the table."""

    family: str
    program: str
    elsewhere: float
    along: float
    stated: float
    together: float
    worst: float
    above: float
    ratio: float


def main() -> int:
    parser = Parser(__doc__)
    parser.add_argument("--families", type=listed, default=[*CONFIGS, TRAINED])
    parser.add_argument("--fresh", type=count, default=300, help="texts")
    parser.add_argument("--error", type=number(float, 0, 1, "from 0 to 1"), default=0.02)
    parser.add_argument("--seed", type=whole, default=0)
    asked = parser.parse_args()
    named("families", asked.families, [*CONFIGS, TRAINED])
    takes(100 * len(asked.families))
    judged: list[Judged] = []
    for family in asked.families:
        made = trained() if family == TRAINED else random_model(family, asked.seed)
        draw = partial(texts, np.random.default_rng([asked.seed, 1]), made)
        result = optimize(made.model, workload=Batch(draw(SENTENCES)), error=asked.error, rounds=1)
        judged += judge(family, result, Batch(draw(asked.fresh)))
        say(family)
    print(table([[f"{cell:.3g}" if isinstance(cell, float) else cell for cell in row] for row in judged], [*COLUMNS]))
    tabled(asked.csv, [COLUMNS, *judged])
    above, times = max(row.above for row in judged), max(row.together for row in judged)
    concluded(
        asked,
        [
            Figure(
                f"fresh texts above the stated worst, of {asked.fresh}, in the worst program",
                100 * above,
                "%",
                most=100 * ALLOWED,
            ),
            Figure("all fresh texts together, over what is stated", times, "x", most=MOST),
        ],
    )
    return int(above > ALLOWED or times > MOST)


def trained() -> Made:
    """The model over bytes, and the text that it did not see."""
    tokens = np.frombuffer((TESTS / "data" / "held_out.txt").read_bytes(), np.uint8)
    return Made(open_model(str(TESTS / "data" / TRAINED)).operator(False), tokens.astype(np.int64), 128)


def random_model(family: str, seed: int) -> Made:
    """Matrices three times the size that training starts from, so that scores of routers are spread; gains 1 ± 0.3."""
    rng = np.random.default_rng([seed, 0])

    def at(name: str, *shape: int) -> Data:
        gain = name.endswith("router_scale") or ("bias" not in name and len(shape) == 1)
        is_table = len(shape) == 2 and name.split(".")[0] in ("embed_tokens", "wte", "wpe")
        scale = 0.3 if gain or "bias" in name else 1.0 if is_table else 3 * max(shape[-2:]) ** -0.5
        return Data((scale * rng.normal(size=shape) + gain).astype(np.float32), name)

    return Made(build(CONFIGS[family], at), rng.integers(0, WORDS, 1 << 18), LONGEST)


def texts(rng: np.random.Generator, made: Made, how_many: int) -> list[np.ndarray]:
    """Pieces of a model's tokens, their lengths spread evenly in octaves."""
    lengths = np.exp(rng.uniform(0, np.log(made.longest + 1), how_many)).astype(int)
    starts = rng.integers(0, len(made.tokens) - made.longest, how_many)
    return [made.tokens[start : start + length] for start, length in zip(starts, lengths, strict=True)]


def judge(family: str, result: Result, fresh: Batch) -> Iterator[Judged]:
    """A row for every approximate program."""
    wanted = outputs(result.imported.program, fresh)
    for point in result.points:
        if not point.methods or point.stated is None:
            continue
        change = Change.of(outputs(point.program, fresh), wanted, fresh.starts)
        routing, worst = point.checks["error"]["routing"], point.stated.sentence or np.inf
        yield Judged(
            family,
            point.name,
            routing["rows"] / routing["of"],
            routing["along"],
            point.stated.error,
            change.relative / point.stated.error,
            worst,
            float(np.mean(change.each > worst)),
            float(change.each.max()) / worst,
        )


def outputs(program: Program, batch: Batch) -> np.ndarray:
    """The rows of a program, some texts at a time."""
    return np.concatenate([program.run(piece) for piece in batch.pieces(PIECE)])


if __name__ == "__main__":
    command.run(main)
