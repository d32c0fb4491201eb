"""Families at small but honest sizes with random numbers, and what laws that discovery finds save in the search of
each: predicted, and measured."""

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from operator import matmul
from statistics import median, quantiles
from typing import Any, NamedTuple

from lib.search_laws import PAIRS, discover

import numpy as np
from scipy.sparse import csr_array

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.relations import relation
from opmatrix.algebra.data import Data
from opmatrix.algebra.monoids import mean
from opmatrix.algebra.operators import given, product, relu, weight
from opmatrix.algebra.term import Operator, formula
from opmatrix.models import build
from opmatrix.runtime.pricing import datasheet
from opmatrix.runtime.program import Program
from rewrites.discovery.priced_sides import SidePricer
from rewrites.discovery.rounds import FoundLaw
from rewrites.discovery.written import describe_found as describe_found
from rewrites.explain.exploring.changes import share_by_kernel
from rewrites.explain.exploring.exploration import Exploration, explore
from rewrites.explain.exploring.payoffs import Payoff, find_payoffs
from rewrites.laws.law import Law
from rewrites.lowering.phased import Generation
from rewrites.search.search import Structure
from rewrites.workload.workload import Workload, draw_workload

ROUNDS = (
    (("add",), 2),
    (("compose",), 2),
    (("product",), 2),
    *PAIRS,
    (("mul", "related"), 2),
    (("add", "related"), 3),
    (("compose", "pick"), 2),
    (("add", "compose", "pick"), 2),
)  # kinds and number of operators
MACHINES = "A100", "H100", "L4", "V100", "Ascend910B", "TPUv5e", "MI355X", "B200"
TOKENS, WIDE, HEADS, INNER, LAYERS = 128, 384, 6, 1536, 2
NODES, NEIGHBOURS, GRAPHS, GRAPH_WIDE = 4000, 10, 40, 128
BASIC = dict(
    vocab_size=500,
    hidden_size=WIDE,
    intermediate_size=INNER,
    num_hidden_layers=LAYERS,
    num_attention_heads=HEADS,
    max_position_embeddings=512,
)
ENCODER = BASIC | dict(model_type="bert", type_vocab_size=2, layer_norm_eps=1e-12, hidden_act="gelu")
DECODER = BASIC | dict(model_type="llama", num_key_value_heads=2, rms_norm_eps=1e-5, rope_theta=1e4, hidden_act="silu")
CONFIGS: dict[str, dict[str, Any]] = {
    "bert": ENCODER,
    "modernbert": BASIC
    | dict(
        model_type="modernbert",
        intermediate_size=576,
        local_attention=32,
        global_attn_every_n_layers=3,
        num_hidden_layers=3,
        norm_eps=1e-5,
        hidden_activation="gelu",
        global_rope_theta=160000.0,
        local_rope_theta=10000.0,
    ),
    "llama": DECODER,
    "llama-step": DECODER,
    "mixture": DECODER | dict(model_type="mixtral", intermediate_size=768, num_local_experts=8, num_experts_per_tok=2),
    "latent": DECODER
    | dict(
        model_type="deepseek_v2",
        num_key_value_heads=HEADS,
        kv_lora_rank=96,
        q_lora_rank=None,
        qk_nope_head_dim=64,
        qk_rope_head_dim=32,
        v_head_dim=64,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_shared_experts=1,
        moe_intermediate_size=192,
        first_k_dense_replace=1,
        topk_method="greedy",
        n_group=1,
        topk_group=1,
        routed_scaling_factor=1.0,
        norm_topk_prob=False,
    ),
    "fewer-units": ENCODER | dict(intermediate_size=INNER // 8),
}
COLUMNS = ("family", "law", "ms predicted", "saved", "stored MB", "saved", "s of search", "more", "nodes", "more")


class Family(NamedTuple):
    """An operator, and what it is run for."""

    model: Operator
    workload: Batch | Workload


def random_model(config: dict[str, Any]) -> Operator:
    """Return the model of a configuration with random numbers."""
    rng = np.random.default_rng(0)

    def draw(name: str, *shape: int) -> Data:
        """Draw an array; gains are near one."""
        gain = float("norm" in name.lower() and name.endswith("weight"))
        return Data(gain + rng.normal(size=shape) * (0.1 if len(shape) == 1 else shape[-1] ** -0.5), name)

    return build(config, draw)


def draw_matrix(rng: np.random.Generator, rows: int, columns: int) -> Operator:
    """Draw a matrix that keeps the size of rows."""
    return weight(Data(rng.normal(size=(rows, columns)) * rows**-0.5))


def read_graphs() -> Family:
    """Return a network that gives a row to each of several graphs: layers of a node beside the mean of its neighbours
    (Hamilton et al. 2017, GraphSAGE, algorithm 1, matrices for both), then the mean of the nodes of a graph."""
    rng = np.random.default_rng(0)
    edges, members = relation("edges", "V", "V"), relation("graphs", "G", "V")

    def layer() -> Operator:
        """Return a layer without its function."""
        A, B = draw_matrix(rng, GRAPH_WIDE, GRAPH_WIDE), draw_matrix(rng, GRAPH_WIDE, GRAPH_WIDE)
        return formula(lambda x: x @ A + product(given(edges), x, over=mean) @ B)

    nodes = reduce(matmul, [given("features", GRAPH_WIDE, "V"), layer(), relu, layer(), relu, layer()])
    model = product(given(members), nodes, over=mean) @ draw_matrix(rng, GRAPH_WIDE, 10)
    to = rng.integers(0, NODES, NODES * NEIGHBOURS)
    links = csr_array((np.ones(to.size), to, np.arange(0, to.size + 1, NEIGHBOURS)), (NODES, NODES))
    links.sum_duplicates()
    places = np.arange(0, NODES + 1, NODES // GRAPHS)
    belong = csr_array((np.ones(NODES), np.arange(NODES), places), (GRAPHS, NODES))
    features = rng.normal(size=(NODES, GRAPH_WIDE))
    return Family(model, Batch(relations={"edges": links, "graphs": belong}, inputs={"features": features}))


def low_rank() -> Family:
    """Return layers whose matrices are products of two thin ones, beside what they are added to."""
    rng, rank = np.random.default_rng(0), 32

    def layer() -> Operator:
        """Return a residual layer of low rank."""
        A, B = draw_matrix(rng, WIDE, rank), draw_matrix(rng, rank, WIDE)
        return formula(lambda x: x + x @ A @ B @ relu)

    table = draw_matrix(rng, BASIC["vocab_size"], WIDE)
    return Family(reduce(matmul, [table, *(layer() for _ in range(6))]), Batch([np.arange(TOKENS)]))


def open_config(name: str) -> Family:
    """Return a family of a configuration: a prompt, or the steps of an answer over caches."""
    model = random_model(CONFIGS[name])
    if name.endswith("step"):
        return Family(model, draw_workload(Generation(TOKENS, 64), model))
    return Family(model, Batch([np.arange(TOKENS) % BASIC["vocab_size"]]))


FAMILIES: dict[str, Callable[[], Family]] = {name: (lambda name=name: open_config(name)) for name in CONFIGS} | {
    "low-rank": low_rank,
    "graph": read_graphs,
}


# ---- laws


def find_laws(rounds: Sequence[tuple[tuple[str, ...], int]], tell: Callable[[str], object]) -> list[FoundLaw]:
    """Return the proved laws of these rounds, none of which follows from others."""
    discovery = discover(rounds, tell)
    discovery.drop_derived()
    return [one for one in discovery.laws if one.chain]


def list_paying(found: Sequence[FoundLaw], tell: Callable[[str], object]) -> list[FoundLaw]:
    """Return the laws whose sides differ in price on some machine at some size."""
    pricer, paying = SidePricer([datasheet(name) for name in MACHINES]), list[FoundLaw]()
    for one in found:
        if pricer.pays(one.law):
            paying.append(one)
        else:
            tell(f"{one.law.name}: both sides cost the same on {len(MACHINES)} machines")
    return paying


# ---- families


class Candidate(NamedTuple):
    """What a law saves in the search of a family, and both explorations."""

    family: str
    payoff: Payoff
    plain: Exploration
    other: Exploration


def search_family(name: str, laws: Sequence[Law]) -> Iterator[Candidate]:
    """Yield what laws save in a family, together and each alone."""
    family = FAMILIES[name]()
    for _ in range(2):  # the first search of a process also loads and compiles
        plain = explore(family.model, family.workload)
        plain.searched  # noqa: B018 - searches
    for payoff, other in find_payoffs(plain, laws):
        yield Candidate(name, payoff, plain, other)


def row_of(one: Candidate) -> tuple[str, ...]:
    """Return the row of the table of predictions."""
    first, then = one.plain.structure, one.payoff
    return (
        one.family,
        then.law,
        f"{1e3 * then.seconds[1]:.3f}",
        f"{100 * then.saved:.2f} %",
        f"{then.stored[1] / 1e6:.2f}",
        f"{100 * then.memory_saved:.2f} %",
        f"{sum(one.other.structure.seconds.values()):.2f}",
        f"{then.search_seconds:+.2f}",
        f"{one.other.structure.nodes}",
        f"{one.other.structure.nodes - first.nodes:+}",
    )


def rank(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return candidates that change a program, the largest predicted saving of time or memory first."""
    changed = [one for one in candidates if one.payoff.saved > 1e-6 or one.payoff.memory_saved > 1e-6]
    return sorted(changed, key=lambda one: -max(one.payoff.saved, one.payoff.memory_saved))


class Measured(NamedTuple):
    """Seconds of a program without and with a law, in rounds in turn: medians, and the share saved, with the quartiles
    of the ratio of each round."""

    without: float
    including: float
    saved: float
    low: float
    high: float

    @property
    def beyond_noise(self) -> bool:
        """True if three rounds in four are faster with the law."""
        return self.low > 0


def measure_candidate(one: Candidate, rounds: int) -> Measured:
    """Run both programs in turn."""
    programs: dict[str, Program] = {"without": one.plain.best, "with": one.other.best}
    taken = one.plain.opened.workload.measured(programs, rounds, lambda *_: None)
    shares = [1 - b / a for a, b in zip(taken["without"], taken["with"], strict=True)]
    low, middle, high = quantiles(shares, n=4)
    return Measured(median(taken["without"]), median(taken["with"]), middle, low, high)


# ---- what dominates


def share_kernels(structure: Structure) -> dict[str, float]:
    """Return the share of each kernel in the predicted seconds of a program, the largest first."""
    shares = share_by_kernel(structure)
    total = sum(one.seconds for one in shares.values())
    return {name: one.seconds / total for name, one in shares.items()} if total else {}
