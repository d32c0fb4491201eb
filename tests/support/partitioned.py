"""Partitions that are run: what the virtual ranks count beside what the formulas say, and random models on random
meshes."""

import re
from math import prod
from typing import NamedTuple

import numpy as np
import sympy

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.batch_sizes import BatchSizes
from opmatrix.algebra.data import Data
from opmatrix.algebra.oracles import dense
from opmatrix.models import build
from opmatrix.parallel.axes.axis_strategy import meet
from opmatrix.parallel.axes.known_axes import STRATEGIES
from opmatrix.parallel.launch.rank_rates import RankRates
from opmatrix.parallel.ranks.virtual import run
from opmatrix.parallel.sharding.feeds import Feed
from opmatrix.parallel.sharding.mesh import Mesh
from opmatrix.parallel.sharding.partition import partition

VOCABULARY = 23
TABLES = "payload", "wire", "messages"
MASKS = "sequence", "sequence & causal", "sequence & window(2)", "sequence & causal & window(1)"
ADVICE = re.compile(r"mesh: (\w+) has \d+ ranks\b.*(?:divides is|at most) (\d+)|mesh: \d+ stages.*at most (\d+)")
ORDER = re.compile(r"shard in different orders: give (\w+) before (\w+)")

BERT = dict(
    model_type="bert",
    vocab_size=VOCABULARY,
    hidden_size=12,
    intermediate_size=18,
    max_position_embeddings=16,
    num_attention_heads=6,
    num_hidden_layers=2,
    type_vocab_size=2,
    layer_norm_eps=1e-12,
)
GPT2 = dict(model_type="gpt2", vocab_size=VOCABULARY, n_embd=12, n_positions=16, n_head=6, n_layer=2)
LLAMA = dict(
    model_type="llama",
    vocab_size=VOCABULARY,
    hidden_size=12,
    intermediate_size=18,
    rms_norm_eps=1e-5,
    max_position_embeddings=16,
    num_attention_heads=6,
    num_key_value_heads=2,
    num_hidden_layers=2,
)
ANY = dict(
    model_type="transformer",
    vocab_size=VOCABULARY,
    max_position_embeddings=16,
    hidden_size=12,
    intermediate_size=18,
    num_hidden_layers=2,
    num_attention_heads=6,
    num_key_value_heads=6,
    head_dim=2,
    norm="layer",
    norm_eps=1e-5,
    pre_norm=True,
    hidden_act="gelu",
    gated=False,
    bias=True,
    mask="sequence",
    positions="learned",
    head="none",
)


RATES = RankRates(2e10, 2e9, 3e-5, 2e-3, 1e9, 1.8, "somewhere")  # of ranks that share a machine


class Compared(NamedTuple):
    """How far the output is from one rank's, relative to its largest entry, and every number that is not as its formula
    says: what it is, the place of the rank, formula, count."""

    error: float
    differences: list[tuple[str, tuple[int, ...], object, object]]

    @property
    def agrees(self) -> bool:
        return self.error <= 1e-12 and not self.differences


def random_arrays(seed=0):
    """`at` of a model whose weights are drawn; gains and biases, too."""
    rng = np.random.default_rng(seed)
    return lambda name, *shape: Data(rng.normal(size=shape) * 0.4, name)


def made(config, **changed):
    """A model of a configuration, some of it changed, with random weights."""
    return build(config | changed, random_arrays())


def ids_of(sequences, tokens, seed=0):
    return np.random.default_rng(seed).integers(0, VOCABULARY, (sequences, tokens))


def planned(term, mesh, sequences=4, tokens=11, **told):
    return partition(term, mesh, BatchSizes(sequences, tokens), **told)


def compared(term, mesh, sequences=4, tokens=11, plan=None, **told):
    """Runs a model on a mesh and compares outputs, and each rank's counts with the formulas of a plan: its own, or
    another."""
    own, ids = planned(term, mesh, sequences, tokens, **told), ids_of(sequences, tokens)
    ran, wanted = run(own, Feed(ids)), dense(term, Batch(list(ids))).reshape(sequences, 1, tokens, -1)
    off = np.abs(ran.value - wanted).max() / np.abs(wanted).max()
    return Compared(float(off), differences(plan or own, ran.meters))


def differences(plan, meters):
    """Every number that a formula gives otherwise than it was counted."""
    found = []
    for place, meter in meters.items():
        stage = plan.stage(place)
        for what, formula, count in (
            ("flops", plan.flops(stage), meter.flops),
            ("stored", plan.state(stage, weights=1), meter.stored),
        ):
            if (said := value_at(plan, formula, place)) != count:
                found.append((what, place, said, count))
        if (said := plan.peak(place)) != meter.peak:
            found.append(("peak", place, said, meter.peak))
        if (said := gathered(plan, place)) != meter.gathered:
            found.append(("gathered", place, said, meter.gathered))
        for table in TABLES:
            said, count = crossed(plan, place, table), getattr(meter, table)
            if said != count:
                found.append((table, place, said, count))
    return found


def value_at(plan, formula, place):
    return int(plan.on(sympy.sympify(formula), place))


def gathered(plan, place):
    """The most numbers of weights that a rank has whole for one factor, where it does not store them so."""
    return max((value_at(plan, each, place) for each in plan.gathered(plan.stage(place))), default=0)


def crossed(plan, place, table):
    """What crosses of a rank by the formulas, by operation and axis."""
    found: dict[tuple[str, str], int] = {}
    for times, each in plan.crossings(plan.stage(place)):
        key = each.op, each.axis
        found[key] = found.get(key, 0) + times * value_at(plan, getattr(each, table), place)
    return found


class DrawnCase(NamedTuple):
    """A configuration, a mesh that it fits, and how large the batch is."""

    config: dict[str, object]
    mesh: Mesh
    sequences: int
    tokens: int
    advised: tuple[str, ...]  # refusals whose advice was taken

    def __str__(self):
        axes = ", ".join(f"{axis.name}={axis.ranks} {axis.strategy.name}" for axis in self.mesh)
        return f"{self.config}, {axes}, {self.sequences} x {self.tokens}"


def random_case(seed):
    """A model of any family of random sizes, a mesh of up to 8 ranks and 3 axes, a batch. Where a mesh is refused, what
    the refusal advises is done: so advice is tried, too."""
    rng = np.random.default_rng(seed)
    config, sequences, tokens = random_config(rng), int(rng.integers(1, 8)), int(rng.integers(3, 15))
    axes, said = random_axes(rng), []
    while True:
        mesh = Mesh.of(**axes)
        try:
            planned(build(config, random_arrays()), mesh, sequences, tokens)
        except InputError as refused:
            said.append(str(refused))
        else:
            return DrawnCase(config, mesh, sequences, tokens, tuple(said))
        axes = advised(axes, said[-1])


def random_config(rng):
    pick = lambda *among: among[rng.integers(len(among))]
    heads = int(rng.integers(1, 9))
    width, inner, layers = heads * 2 * int(rng.integers(1, 3)), int(rng.integers(2, 20)), int(rng.integers(1, 4))
    shared = int(pick(*(g for g in range(1, heads + 1) if heads % g == 0)))
    match pick("bert", "gpt2", "llama", "transformer", "transformer"):
        case "bert":
            return BERT | dict(
                hidden_size=width, intermediate_size=inner, num_attention_heads=heads, num_hidden_layers=layers
            )
        case "gpt2":
            return GPT2 | dict(n_embd=width, n_head=heads, n_layer=layers)
        case "llama":
            return LLAMA | dict(
                hidden_size=width,
                intermediate_size=inner,
                num_attention_heads=heads,
                num_key_value_heads=shared,
                num_hidden_layers=layers,
            )
    return ANY | dict(
        hidden_size=int(pick(width, rng.integers(2, 20))),
        intermediate_size=inner,
        num_attention_heads=heads,
        num_key_value_heads=shared,
        num_hidden_layers=layers,
        head_dim=int(pick(2, 4)),
        norm=pick("layer", "rms"),
        pre_norm=bool(rng.integers(2)),
        hidden_act=pick("gelu", "relu", "silu"),
        gated=bool(rng.integers(2)),
        bias=bool(rng.integers(2)),
        mask=pick(*MASKS),
        positions=pick("learned", "rotary"),
        head=pick("none", "tied", "own"),
    )


def random_axes(rng, among=lambda strategy: True):
    """Up to three axes of strategies that do not meet, 2 to 8 ranks in all, in any order."""
    axes, count = {}, int(rng.integers(1, 4))
    for name in rng.permutation([name for name, each in STRATEGIES.items() if not each.by_hand and among(each)]):
        strategy, left = STRATEGIES[name], 8 // prod((n for n, _ in axes.values()), start=1)
        if left < 2 or len(axes) == count:
            break
        if not any(meet(strategy, other) for _, other in axes.values()):
            room = left // 2 ** (count - len(axes) - 1)  # the axes to come have two ranks at least
            axes["abc"[len(axes)]] = int(rng.integers(2, room + 1)), strategy
    return axes


def advised(axes, refusal):
    """Axes as a refusal says that they can be. Raises AssertionError for a refusal that says nothing."""
    if found := ADVICE.search(refusal):
        name = found[1] or next(name for name, (_, strategy) in axes.items() if strategy.layers)
        ranks = int(found[2] or found[3])
        assert ranks < axes[name][0], f"{refusal}: it has these"
        return {each: (ranks, strategy) if each == name else (n, strategy) for each, (n, strategy) in axes.items()}
    if found := ORDER.search(refusal):
        names = [name for name in axes if name != found[1]]
        names.insert(names.index(found[2]), found[1])
        assert names != [*axes], f"{refusal}: it is given so"
        return {name: axes[name] for name in names}
    raise AssertionError(f"advises nothing: {refusal}")


def command_runner(command, monkeypatch, capsys):
    """Runs a command of the command line by its words, and gives status, output and errors."""
    import pytest

    from rewrites.cli import __main__ as cli

    def run(line):
        monkeypatch.setattr("sys.argv", ["opmatrix", command, *line.split()])
        with pytest.raises(SystemExit) as end:
            cli.main()
        told = capsys.readouterr()
        return end.value.code or 0, told.out, told.err

    return run
