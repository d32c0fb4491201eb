"""What the engines of benchmarks/models.py run: models, and sentences of real tokens in batches."""

import json
import os
import shutil
import uuid
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from formats.core.errors import InputError
from formats.disk.cache import cache_directory
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.oracles import dense
from opmatrix.files.checkpoint import Checkpoint, open_model
from opmatrix.inference.text import sentences
from rewrites.metrics.pairs import SentencePairs

DATA = Path(os.environ.get("OPMATRIX_DATA") or Path(__file__).parents[3] / "shared" / "data")
PAIRS = DATA / "sts" / "stsb-en-dev.csv"
TEXTS = "file", "padded", "sorted"  # the sentence pairs: as they are, for peers by file, for
# peers by length
FRESH = "fresh"  # batches of which no two have as many sentences and tokens
BATCH, REFERENCE = 32, 1024  # sentences of a batch; tokens that errors are measured on
TURN = 8  # fresh batches of a turn
BASE = {
    "model_type": "bert",
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
    "architectures": ["BertModel"],
}
MIXTURE = {
    "model_type": "mixtral",
    "vocab_size": 30522,
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 1792,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "architectures": ["MixtralModel"],
}
MODERN = {
    "model_type": "modernbert",
    "vocab_size": 50368,
    "hidden_size": 768,
    "num_hidden_layers": 22,
    "num_attention_heads": 12,
    "intermediate_size": 1152,
    "max_position_embeddings": 8192,
    "norm_eps": 1e-5,
    "local_attention": 128,
    "global_attn_every_n_layers": 3,
    "architectures": ["ModernBertModel"],
}
DRAWN = {"base": BASE, "modernbert": MODERN, "mixture": MIXTURE}


@dataclass(frozen=True)
class Workload:
    """Sentences (rows of token ids) and how peers get them in batches; `shape` is that of all batches, None where they
    differ."""

    name: str
    sentences: list
    batches: list
    shape: list | None = None

    @property
    def ragged(self):
        return self.name in TEXTS

    @property
    def fresh(self):
        return TURN if self.name == FRESH else 0


def made(name, checkpoint, pairs, count, rounds=1):
    """The workload of that name; InputError where there is none. `count` sentences of the pairs are used, fresh batches
    for `rounds`."""
    tokenizer = checkpoint.tokenizer()
    if name in TEXTS:
        rows = ids(tokenizer.encode(SentencePairs.read(pairs).texts[:count]))
        return by_length(rows) if name == "sorted" else Workload(name, rows, in_batches(range(len(rows))))
    limit = checkpoint.positions
    if name == FRESH:
        return fresh(*cut(tokenizer, 1, min(128, limit)), 1 + TURN * rounds)
    try:
        count, length = map(int, name.split("x"))
    except ValueError:
        count = length = 0
    if count < 1 or not 1 <= length <= limit:
        raise InputError(
            f"--workloads {name}: SENTENCESxTOKENS (of 1 to {limit} tokens) or one of {', '.join((*TEXTS, FRESH))}"
        )
    return Workload(name, cut(tokenizer, count, length), [list(range(count))], [count, length])


def by_length(rows):
    """Rows of token ids in batches, the shortest first."""
    return Workload("sorted", rows, in_batches(sorted(range(len(rows)), key=lambda i: len(rows[i]))))


def in_batches(order):
    return [[*order[at : at + BATCH]] for at in range(0, len(order), BATCH)]


def fresh(row, count):
    """So many batches of 1 to 8 sentences cut from a row of token ids; the sentences and longest one of a batch are
    those of no other, and so are its tokens. InputError where there are not so many."""
    rng, lengths = np.random.default_rng(0), {}  # tokens of a batch: its sentences' lengths
    for size in rng.permutation([(n, longest) for n in range(1, 9) for longest in range(3, len(row) + 1)]):
        found = [int(size[1]), *rng.integers(3, size[1] + 1, size[0] - 1).tolist()]
        if len(lengths) < count:
            lengths.setdefault(sum(found), found)
    if len(lengths) < count:
        raise InputError(
            f"--workloads {FRESH}: {len(lengths)} batches of different sizes, "
            f"{count} are needed: ask for fewer --rounds"
        )
    ends = np.cumsum([0, *map(len, lengths.values())]).tolist()
    return Workload(
        FRESH,
        [row[: length - 1] + row[-1:] for found in lengths.values() for length in found],
        [[*range(*pair)] for pair in pairwise(ends)],
    )


def shipped(checkpoint, count=64):
    """So many of the sentences that ship, as they are, in one batch."""
    rows = ids(checkpoint.tokenizer().encode(sentences()[:count]))
    return Workload("texts", rows, [list(range(len(rows)))])


def ids(batch):
    """The sentences of a batch as lists of token ids."""
    return [part.tolist() for part in np.split(batch.tokens, batch.starts[1:-1])]


def cut(tokenizer, count, length):
    """So many sentences of so many tokens, cut out of the text that ships, each between the tokens that begin and end
    one, as far as it has room for them."""
    rows = ids(tokenizer.encode(sentences()))
    inner = [token for row in rows for token in row[1:-1]]
    ends = rows[0][:1], rows[0][-1:] if length > 1 else []
    return [
        [*ends[0], *np.resize(np.roll(inner, -at * length), max(length - 2, 0)).tolist(), *ends[1]]
        for at in range(count)
    ]


def calibration(checkpoint):
    """What quantisation is calibrated on: the even sentences that ship, as they are and joined to 128 tokens."""
    tokenizer = checkpoint.tokenizer()
    limit = min(128, checkpoint.positions)
    short = [row[:limit] for row in ids(tokenizer.encode(sentences()[0::2]))]
    return short + cut(tokenizer, 16, limit)


def text(workload, checkpoint):
    """What a program is to be found for: the sentences of the batch with the median number of tokens, a line each."""
    tokenizer, size = checkpoint.tokenizer().tokenizer, lambda batch: sum(len(workload.sentences[i]) for i in batch)
    batch = sorted(workload.batches, key=size)[len(workload.batches) // 2]
    return "".join(" ".join(tokenizer.decode(workload.sentences[i]).split()) + "\n" for i in batch)


def reference(checkpoint, workload):
    """Hidden states in float64, by the model's own declarations, of the first sentences of about 1024 tokens: how many
    sentences, and one row a token."""
    count = 1 + int(np.searchsorted(np.cumsum([len(row) for row in workload.sentences]), REFERENCE))
    batch = Batch(workload.sentences[:count])
    return len(batch), dense(checkpoint.operator(), batch.selection("tokens", checkpoint.config["vocab_size"]), batch)


def model(name):
    """A checkpoint by name: minilm, base (BERT-base's sizes, random weights), modernbert
    (ModernBERT-base's), mixture (4 layers of 8 experts of
    512 x 1792, random weights), smollm2, or a directory. What a GGUF file holds is written as transformers reads it,
    for peers: float32, and without a head."""
    found = None if name in DRAWN else open_model(name)
    if found is not None and found.keys is None:
        return found
    called = name if found is None else f"{found.name}-widened"
    if not (home := cache_directory() / called).exists():
        write(home, *(drawn(DRAWN[name]) if found is None else widened(found)))
    return Checkpoint.open(home, name)


def drawn(config):
    """Weights of these sizes, normal with deviation 0.02 (Devlin et al. 2018), gains around one; the config, and
    minilm's tokenizer."""
    from opmatrix.models import tensors

    rng = np.random.default_rng(0)
    weights = {
        name + ".weight" * (len(shape) == 3): (  # a stack in a tensor of its own
            0.02 * rng.standard_normal(shape, np.float32) + name.lower().endswith("norm.weight")
        ).astype(np.float32)
        for name, shape in tensors(config).items()
    }
    return weights, config, open_model("minilm").tokenizer_text


def widened(checkpoint):
    """The weights of a decoder without its head, widened to float32; their config, and its tokenizer."""
    weights = {
        name: np.ascontiguousarray(checkpoint.at(name).array)
        for name in checkpoint.tensors
        if name != checkpoint.layout.head
    }
    architectures = [name.replace("ForCausalLM", "Model") for name in checkpoint.config["architectures"]]
    return weights, {**checkpoint.config, "architectures": architectures}, checkpoint.tokenizer_text


def write(home, weights, config, tokenizer):
    """A checkpoint's directory, whole or not at all."""
    from safetensors.numpy import save_file

    fresh = home.with_name(f"{home.name}.{uuid.uuid4().hex[:8]}")
    fresh.mkdir(parents=True)
    try:
        save_file(weights, fresh / "model.safetensors", {"format": "pt"})
        (fresh / "config.json").write_text(json.dumps(config, indent=1))
        (fresh / "tokenizer.json").write_text(tokenizer, "utf-8")
        os.replace(fresh, home)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def spearman(vectors, scores):
    """100 times the rank correlation of the cosines of pairs (rows 0 and 1, 2 and 3, …) with their scores."""
    from scipy.stats import spearmanr

    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return 100 * spearmanr((unit[0::2] * unit[1::2]).sum(1), scores).statistic
