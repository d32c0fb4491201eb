"""The search and the whole run: every program is right, bounds and budgets hold, nothing depends on luck."""

import hashlib
import re
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from types import SimpleNamespace

import checkpoints
import numpy as np
import pytest
import standin
from optimized import LINES

from formats import FORMATS
from formats.core.errors import InputError
from formats.host.quiet import Watch
from formats.storage.block_layouts import LAYOUTS
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import counted, patterns
from opmatrix.algebra.data import Data
from opmatrix.algebra.oracles import dense
from opmatrix.files.checkpoint import open_model
from opmatrix.models import build
from opmatrix.runtime.measure import peak
from opmatrix.spectra import Limits, propose
from rewrites.extraction import Infeasible
from rewrites.laws import EXACT_LAWS, without
from rewrites.lowering.lower import plainly
from rewrites.lowering.price import Prices
from rewrites.lowering.representations import NUMBER_TYPES, Representable, forms
from rewrites.metrics.goals import goals
from rewrites.opened import Searched
from rewrites.report.choice import allowed, choose
from rewrites.report.results import as_json, printed
from rewrites.run import Verified, optimize, time_front
from rewrites.search.search import search
from rewrites.verify.differences import difference

MINILM = {
    "hidden_size": 384,
    "intermediate_size": 1536,
    "num_attention_heads": 12,
    "num_hidden_layers": 2,
    "vocab_size": 100,
}
BATCH = Batch([[3, 1, 4, 1], [5], [9, 2, 6]])
MACHINE = standin.machine()


def model(seed=0, change=lambda name, array: array, **config):
    """A random BERT as an operator."""
    config = checkpoints.CONFIG | config
    numbers = checkpoints.arrays(config, seed)
    return build(config, lambda name, *shape: Data(change(name, numbers[name]), name))


@lru_cache
def structures(**config):
    """Imported, fused and exact, for a workload of 16 tokens."""
    operator = model(**config)
    found = [
        search(operator, (), MACHINE, counted([16]), fusion=False),
        search(operator, (), MACHINE, counted([16])),
        search(operator, EXACT_LAWS, MACHINE, counted([16])),
    ]
    return operator, dict(zip(("imported", "fused", "exact"), found, strict=True))


def oracle(operator, batch=BATCH):
    return dense(operator, batch)


def right(program, operator, batch=BATCH):
    wanted = oracle(operator, batch)
    return difference(program.run(batch), wanted) < 2e-6 and difference(program.exact(batch), wanted) < 1e-6


# ---- the exact search


@pytest.mark.deep(every=2)
@pytest.mark.parametrize("config", [{}, MINILM], ids=["small", "minilm"])
def test_laws_and_fusion_only_help(config):
    operator, found = structures(**config)
    assert found["exact"].time <= found["fused"].time * (1 + 1e-9)
    assert found["fused"].time <= found["imported"].time * (1 + 1e-9)
    assert found["exact"].time < found["imported"].time
    for structure in found.values():
        assert structure.bound <= structure.time * (1 + 1e-9) and structure.time <= structure.greedy * (1 + 1e-9)
        assert 0 <= structure.gap < 1e-5 and not structure.cut
        assert right(structure.program({})[0], operator)


@pytest.mark.parametrize("config", [{}, MINILM], ids=["small", "minilm"])
def test_the_time_is_the_sum_of_the_chosen_nodes(config):
    for structure in structures(**config)[1].values():
        nodes = [node for extraction in structure.extractions for node in extraction.nodes]
        assert structure.time == pytest.approx(sum(node.time for node in nodes), rel=1e-9)
        program, _ = structure.program({})
        assert structure.memory == pytest.approx(program.stored_bytes, rel=0.02)


def test_borders_fit_one_another():
    _, found = structures()
    for structure in found.values():
        assert structure.path[0][0] == "full" and structure.path[-1][1] == "full"
        assert all(before[1] == after[0] for before, after in pairwise(structure.path))
    assert len(found["exact"].path) == len(found["exact"].parts) == len(found["exact"].extractions)


@pytest.mark.parametrize("state", ["full", "normed"])
def test_every_state_of_a_border_gives_a_right_program(state):
    operator, found = structures()
    parts = len(found["exact"].path)
    path = [("full" if n == 0 else state, "full" if n == parts - 1 else state) for n in range(parts)]
    chosen = search(operator, EXACT_LAWS, MACHINE, counted([16]), along=path)
    assert chosen.path == path and chosen.time >= found["exact"].time * (1 - 1e-9)
    assert right(chosen.program({})[0], operator)


@pytest.mark.deep(every=6)
@pytest.mark.parametrize("seed", range(6))
def test_every_program_of_random_configs_is_right(seed):
    rng = np.random.default_rng(seed)
    heads = int(rng.integers(1, 7))
    config = {
        "num_attention_heads": heads,
        "hidden_size": heads * int(rng.integers(1, 9)),
        "intermediate_size": int(rng.integers(1, 40)),
        "num_hidden_layers": int(rng.integers(1, 5)),
        "vocab_size": int(rng.integers(10, 60)),
        "type_vocab_size": int(rng.integers(1, 4)),
        "layer_norm_eps": float(10.0 ** -rng.integers(1, 13)),
    }
    lengths = rng.integers(1, 12, int(rng.integers(1, 5)))
    batch = Batch([rng.integers(0, config["vocab_size"], length) for length in lengths])
    operator = model(seed, **config)
    extents = batch.extents(patterns(operator))
    for laws, fusion in (((), False), ((), True), (EXACT_LAWS, seed % 2 == 0)):
        program, _ = search(operator, laws, MACHINE, extents, fusion=fusion).program({})
        assert right(program, operator, batch), (config, len(laws), fusion)


def test_a_search_gives_the_same_again(graphs_anew):
    operator, found = structures(num_hidden_layers=1)
    again, _ = search(operator, EXACT_LAWS, MACHINE, counted([16])).program({})
    assert again.hash == found["exact"].program({})[0].hash


@pytest.mark.deep
def test_layers_of_equal_structure_are_explored_once(graphs_anew):
    few, many = (structures(num_hidden_layers=layers)[1]["exact"] for layers in (2, 3))
    assert few.nodes == many.nodes and many.time > few.time


def test_an_unknown_law_is_named():
    with pytest.raises(InputError, match="gravity"):
        without(EXACT_LAWS, ["gravity"])


# ---- representations that hold a weight exactly


@pytest.mark.deep
def test_layers_pruned_differently_are_stored_sparse_and_are_right():
    """They are different problems, unlike layers of equal structure."""
    rng = np.random.default_rng(5)

    def pruned(name, array):
        if array.ndim != 2 or "encoder" not in name:
            return array
        return array * (rng.random(array.shape) < (0.02 if "layer.0" in name else 0.2))

    operator = model(change=pruned, hidden_size=128, intermediate_size=512, num_attention_heads=4, num_hidden_layers=2)
    sparse, stored_dense = (
        search(operator, EXACT_LAWS, MACHINE, counted([64]), methods=how) for how in (None, plainly)
    )
    program, plain = sparse.program({})[0], stored_dense.program({})[0]
    kept = {constant.name for constant in program.constants.values() if hasattr(constant, "unpack")}
    assert kept & {"csr", "nm", "block"}
    assert sparse.time < stored_dense.time and sparse.memory < 0.5 * stored_dense.memory
    assert program.stored_bytes == pytest.approx(sparse.memory, rel=0.02)
    assert right(program, operator) and right(plain, operator)
    assert peak(program, BATCH) < 4 * 128 * 512  # never a dense weight


@pytest.mark.parametrize(
    "matrix, names",
    [
        (np.random.default_rng(0).normal(size=(64, 48)), set()),
        (np.zeros((64, 48)), {"half", "csr", "block", "nm", "vectorwise"}),
        (np.kron(np.eye(4, 3), np.random.default_rng(1).normal(size=(16, 16))), {"csr", "block"}),
        (
            np.where(np.arange(64)[:, None] % 4 == 1, np.random.default_rng(2).normal(size=(64, 48)), 0),
            {"csr", "block", "nm", "vectorwise"},
        ),
        (np.random.default_rng(3).normal(size=(64, 48)).astype(np.float16), {"half"}),
        (np.full((64, 48), 1e6), set()),
        (np.where(np.arange(50)[:, None] % 4 == 1, 1 / 3, np.zeros((50, 7))), {"csr"}),
    ],
)
def test_forms_are_exact_and_priced_by_their_true_sizes(matrix, names):
    found = list(forms(matrix))
    assert {method.format for method in found} == names
    for method in found:
        stored = FORMATS[method.format].approximate(matrix, **dict(method.parameters))
        assert np.array_equal(stored.unpack(), matrix.astype(np.float32))
        sizes = FORMATS[method.format].expected(*matrix.shape, **dict(method.parameters))
        assert int(FORMATS[method.format].bytes.subs(sizes)) == stored.nbytes


# ---- number types


def width(name):
    """Bits of the numbers that a format of this name multiplies by, as people say them."""
    known = {"half": 16, "bf16": 16, "q4_1": 16, "q8_0": 16, "int8": 8, "int4": 4}
    known |= {name: 8 if layout.exponents or layout.float8 else 16 for name, layout in LAYOUTS.items()}
    return next((bits for kind, bits in known.items() if name.endswith(kind)), 32)


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_says_how_narrow_its_numbers_are(name):
    assert FORMATS[name].narrowest() == width(name)


@pytest.mark.parametrize("number_type", NUMBER_TYPES)
def test_nothing_is_proposed_in_narrower_numbers(number_type):
    weight = np.random.default_rng(0).normal(size=(64, 128))
    found = propose(weight, limits=Limits(most=99, error=2.0, narrowest=NUMBER_TYPES[number_type]))
    names = {each.method for each in (*found, *found.rejected)}
    assert names == {
        name
        for name, form in FORMATS.items()
        if form.proposed and name != "dense" and width(name) >= NUMBER_TYPES[number_type]
    }


@pytest.mark.deep(every=3)
@pytest.mark.parametrize("number_type, expected", [("float32", False), ("bf16", True), ("int8", True)])
def test_a_half_model_is_stored_half_where_that_is_allowed(number_type, expected):
    operator = model(change=lambda name, array: array.astype(np.float16).astype(np.float32), num_hidden_layers=1)
    methods = Representable(NUMBER_TYPES[number_type])
    structure = search(operator, EXACT_LAWS, MACHINE, counted([16]), methods=methods)
    offered = {
        method.format for each in structure.lowerings for use in each.kernels[1] for method in methods(each, use)
    }
    assert ("half" in offered) == expected


# ---- the whole run


@pytest.fixture
def again(optimized, laws_known):
    """The same run with other options."""
    given = {"error": 0.2, "machine": MACHINE, "rounds": 1, "text": str(optimized.lines)}
    return lambda **options: optimize(str(optimized.model), **given | options)


@pytest.fixture
def result(optimized):
    return optimized.result


def test_no_point_of_the_front_is_dominated(result):
    costs = [(p.predicted_s, p.program.stored_bytes, p.predicted_error) for p in result.points]
    for i, one in enumerate(costs):
        for j, other in enumerate(costs):
            better = all(a < b * (1 - 2e-3) for a, b in zip(other, one, strict=True))
            assert i == j or not better, (result.points[i].name, result.points[j].name)
    assert len(costs) >= 2 and result.points[0].name == "exact"


def test_errors_are_those_on_rows_held_out(result, optimized):
    operator = open_model(optimized.model).operator(pooled=True)
    held_out = result.workload.verify
    sentences = np.split(held_out.tokens, held_out.starts[1:-1])
    wanted = np.concatenate([oracle(operator, Batch([sentence])) for sentence in sentences])
    for point in result.points:
        assert point.measured_error == pytest.approx(difference(point.program.run(held_out), wanted), rel=1e-6)
        assert point.verified and point.measured_error <= 1.3 * point.predicted_error
    assert result.points[0].measured_error < 1e-6


def test_every_point_says_what_it_stores(result):
    for point in result.points:
        formats = [constant.name for constant in point.program.constants.values() if hasattr(constant, "unpack")]
        assert point.methods == {name: formats.count(name) for name in point.methods}
        assert sum(point.methods.values()) == len([name for name in formats if name not in ("dense", "packed")])
        assert point.measured_bytes >= point.program.stored_bytes and point.measured_s > 0


def test_the_chosen_point_meets_the_error(result):
    assert result.best.measured_error <= 0.2 and result.best.verified


@pytest.mark.deep(every=2)
@pytest.mark.parametrize("number_type", ["float32", "bf16"])
def test_no_program_stores_narrower_numbers(again, number_type):
    found = again(error=0.5, number_type=number_type, leave_out=standin.EVERY_LAW)
    formats = {
        constant.name
        for point in found.points
        for constant in point.program.constants.values()
        if hasattr(constant, "unpack")
    }
    assert min(map(width, formats)) >= NUMBER_TYPES[number_type] and found.number_type == number_type
    assert len(found.points) >= 2  # there are approximations within it, all the same


def test_an_unknown_number_type_is_named(again):
    with pytest.raises(InputError, match=r"--number-type float16.*bf16"):
        again(number_type="float16")


def test_budgets_that_exclude_each_other_say_what_each_allows(again, result, monkeypatch):
    """Before anything is verified or measured: the smallest within the error, the least error within the memory."""
    monkeypatch.setattr("rewrites.run.verify_front", lambda *_: pytest.fail("verified a search that found nothing"))
    exact = result.points[0]
    smallest = min(point.predicted_bytes for point in result.points)
    between = (smallest + exact.predicted_bytes) / 2
    with pytest.raises(Infeasible, match=r"needs [\d.]+ MB, the least error within the memory is [\d.e-]+$") as caught:
        again(error=1e-6, memory=between, leave_out=standin.EVERY_LAW)
    needed, least = (
        float(found) for found in re.search(r"needs ([\d.]+) MB.* is ([\d.e-]+)$", str(caught.value)).groups()
    )
    assert between < 1e6 * needed <= 1.01 * exact.predicted_bytes and least > 1e-6
    with pytest.raises(Infeasible, match="no program fits the memory"):
        again(error=0.9, memory=1000.0, number_type="float32", leave_out=standin.EVERY_LAW)


def test_memory_is_kept_to(again, result):
    sizes = sorted(point.program.stored_bytes + peak(point.program, result.workload.timed) for point in result.points)
    assert sizes[0] < sizes[-1]
    budget = (sizes[0] + sizes[-1]) / 2
    found = again(error=0.9, memory=budget, leave_out=standin.EVERY_LAW)
    assert found.best.measured_bytes <= budget
    assert found.best.program.stored_bytes + peak(found.best.program, found.workload.timed) <= budget


@pytest.mark.deep
def test_a_run_gives_the_same_programs_again(again, result, graphs_anew):
    found = again()
    assert [p.name for p in found.points] == [p.name for p in result.points]
    for one, other in zip(found.points, result.points, strict=True):
        assert one.predicted_s == other.predicted_s and one.measured_error == other.measured_error
        assert np.array_equal(one.program.run(BATCH), other.program.run(BATCH))


def test_a_busy_machine_is_said_with_what_it_means(result, monkeypatch, tmp_path):
    """In the report and in its figures, of the timing and of the calibration; on a quiet machine there is no such
    line."""
    monkeypatch.setattr(Watch, "seen", lambda self: f"{len(self.runs)} programs were disturbed")
    prices = Prices(MACHINE, result.workload.timed.extents())
    searched = Searched(
        None,
        result.workload,
        SimpleNamespace(prices=prices),
        result.structures,
        {"fused": result.imported.program},
        None,
    )
    timed = time_front(searched, Verified(result.points, [], result.imported, np.zeros(1)), 2, lambda *_: None)
    assert timed.busy == f"{len(result.points) + 2} programs were disturbed"
    assert all(len(point.rounds_s) == 2 and point.measured_s == sum(point.rounds_s) / 2 for point in timed.points)
    given = replace(result, busy=timed.busy)
    places = [tmp_path] * len(result.points)

    def told(found):
        return printed(as_json(found, places), tmp_path)

    assert f"busy machine: {timed.busy}: measured times are too long" in told(given)
    assert "busy machine" not in told(replace(result, busy=""))
    assert as_json(given, places)["busy"] == {"calibration": "", "timing": timed.busy}


# ---- quality


def test_pairs_are_read_before_anything_else():
    with pytest.raises(InputError, match=r"absent\.csv"):
        optimize("absent", pairs="absent.csv")


@pytest.mark.deep
def test_quality_decides_in_place_of_the_error(tmp_path, monkeypatch, laws_known):
    """Every point is judged by pairs of sentences; the answer keeps the exact program's correlation up to the drop."""
    checkpoints.write(tmp_path / "model")
    words = ["the bank", "a river", "dry.", "the river?", "runs of a bank", "banks", "the dry river runs", "of"]
    pairs = tmp_path / "pairs.csv"
    pairs.write_text(
        "".join(f"{a},{b},{(3 * i + 7 * j) % 11}\n" for i, a in enumerate(words) for j, b in enumerate(words))
    )
    (tmp_path / "lines.txt").write_text("\n".join(LINES * 5))
    given = dict(
        text=str(tmp_path / "lines.txt"), pairs=pairs, tokens=8, machine=MACHINE, rounds=1, leave_out=standin.EVERY_LAW
    )
    asked = []
    monkeypatch.setattr(
        "rewrites.run.allowed", lambda points, *budgets: asked.append(budgets) or allowed(points, *budgets)
    )
    found = optimize(str(tmp_path / "model"), drop=100.0, **given)
    exact = found.points[0]
    assert exact.name == "exact" and len(found.points) > 1 and all("spearman" in point.judged for point in found.points)
    assert [[*map(str, kept)] for kept, _ in asked] == [["error<=40%", "spearman>=-100"]] and found.best is choose(
        found.points
    )
    keep = [point for point in found.points if point.judged["spearman"] >= exact.judged["spearman"]]
    assert allowed(found.points, goals(drop=0.0, file=pairs), None) == keep and len(keep) < len(found.points)
    kept = [point.program.meta["certificate"]["verified"]["goals"][1] for point in found.points]
    assert [each["value"] for each in kept] == [
        point.judged["spearman"] - exact.judged["spearman"] for point in found.points
    ]
    assert all(each["of"]["sha256"] == hashlib.sha256(pairs.read_bytes()).hexdigest() for each in kept)
