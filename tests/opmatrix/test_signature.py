"""What crosses the border of a program: several outputs, matrices that enter, spaces of a batch's own, and what files
say of them."""

import json
import tracemalloc

import numpy as np
import pytest
import standin
from scipy import sparse
from searched import RAGGED, Round, relative
from searched import model as bert

from formats import Dense
from formats.core.errors import InputError
from opmatrix.algebra import monoids
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import Extents, collect_needs, entries
from opmatrix.algebra.batch.signature import Port
from opmatrix.algebra.monoids import mean
from opmatrix.algebra.operators import gelu as activation
from opmatrix.algebra.operators import given, product, relation, row, weight
from opmatrix.algebra.oracles import dense, entrywise
from opmatrix.algebra.term import formula
from opmatrix.inference.pooling import Pooling
from opmatrix.runtime.program import Program, Step
from rewrites import optimize
from rewrites.laws import EXACT_LAWS
from rewrites.search.search import search
from rewrites.verify import unrounded, verify_outputs, verify_steps

EDGES = relation("edges", "V", "V")
FEATURES = given("features", 6, "V")


def layer(over, seed, width=6):
    """GraphSAGE (Hamilton et al. 2017): a node beside what its neighbours are together."""
    W = weight(np.random.default_rng(seed).normal(size=(2 * width, width)) / width**0.5)
    return formula(lambda x: row(x, product(given(EDGES), x, over=over)) @ W) @ activation


def graph(count=9, seed=0, width=6):
    rng = np.random.default_rng(seed)
    links = rng.normal(size=(count, count)) * (rng.random((count, count)) < 0.4) + np.eye(count)
    return Batch(relations={"edges": links}, inputs={"features": rng.normal(size=(count, width))})


MODEL = FEATURES @ layer(mean, 1) @ layer(monoids.max, 2)


def found(model, batch, laws=EXACT_LAWS):
    terms = [model] if not isinstance(model, dict) else [*model.values()]
    structure = search(model, laws, Round(), batch.extents(*collect_needs(*terms)))
    return (*structure.program({}), structure)


# ---- a space of the batch's own


def test_both_oracles_read_a_matrix_that_enters():
    batch = graph()
    exact = entrywise(MODEL, batch)[0].astype(float)
    assert exact.shape == (9, 6) and relative(exact, dense(MODEL, batch)) < 1e-12
    heads = given("keys", 3, "C", 2)
    keys = np.random.default_rng(0).normal(size=(4, 2, 3))
    batch = Batch(inputs={"keys": keys})
    assert np.array_equal(dense(heads, batch), keys.swapaxes(0, 1)) and np.array_equal(
        entrywise(heads, batch), keys.swapaxes(0, 1)
    )


@pytest.mark.parametrize("laws", [(), EXACT_LAWS], ids=["fused", "laws"])
def test_a_graph_runs_from_a_saved_directory(laws, tmp_path):
    """Nodes of a space of their own, rows by a matrix of the batch: found, run, saved, loaded; on other graphs of other
    sizes."""
    program, emitter, structure = found(MODEL, graph(), laws)
    assert {call.shape.space for call in program.schedule.calls} == {program.schedule.calls[0].shape.space}
    assert program.space == "V" and str(program.signature.outputs["output"]) == "output: V × 6 float32"
    program.save(tmp_path / "p")
    loaded = Program.load(tmp_path / "p")
    assert loaded.hash == program.hash and loaded.inputs == program.inputs and str(loaded) == str(program)
    for batch in (graph(), graph(40, 1), graph(1, 2)):
        assert relative(program.exact(batch, unrounded(structure, emitter)), dense(MODEL, batch)) < 1e-12
        assert relative(program.run(batch), dense(MODEL, batch)) < 1e-5
        assert np.array_equal(loaded.run(batch), program.run(batch)) and program.peak_bytes(batch) > 0
    verify_steps(program, [graph()])


@pytest.mark.parametrize(
    "batch, words",
    [
        (Batch(inputs={"features": np.ones((7, 6))}), "relation edges: V × V: the batch has no relation of this name"),
        (
            Batch([[1]], relations={"edges": np.eye(7)}),
            "input features: V × 6 float32: the batch has no input of this name: none at all",
        ),
        (
            Batch(inputs={"features": np.ones((7, 5))}, relations={"edges": np.eye(7)}),
            r"features: V × 6 float32: .* gives float64\[7, 5\]",
        ),
        (
            Batch(inputs={"features": np.full((7, 6), np.nan)}, relations={"edges": np.eye(7)}),
            "features: .* not a finite number",
        ),
        (
            Batch(inputs={"features": np.ones((7, 6))}, relations={"edges": np.eye(6)}),
            "space V: input features: V × 6 float32 has 7 rows of it in this batch, but relation edges: V × V has 6",
        ),
        (
            Batch(inputs={"features": np.ones((7, 6))}, relations={"edges": np.ones((7, 6))}),
            "space V: input features.* 7 .* edges: V × V has 6",
        ),
    ],
)
def test_a_matrix_or_relation_that_does_not_fit_is_said(batch, words):
    program = found(MODEL, graph())[0]
    for use in (program.run, program.exact, program.peak_bytes):
        with pytest.raises(ValueError, match=words):
            use(batch)


HUGE = float(np.finfo(np.float32).max)
MOST = 2.0**128 - 2.0**103  # from here on float32 has only infinity


@pytest.mark.parametrize("number", [1e300, -1e300, np.inf, -np.inf, np.nan, MOST, -MOST])
@pytest.mark.parametrize("at", [(0, 0), (6, 5), (3, 2)])
def test_a_number_that_float32_has_not_is_named(at, number):
    """In matrices of inputs, and in relations however they come."""
    x, edges = np.ones((7, 6)), np.eye(7)
    x[at] = number
    with pytest.raises(InputError, match=rf"input features: V × 6 float32: .* at \[{at[0]}, {at[1]}\]") as error:
        program = Program(
            [Step("scale", {"x": "features"}, {"factor": 2.0}, "y")], {}, "y", inputs=[Port("features", "V", 6)]
        )
        program.run(Batch(inputs={"features": x}))
    assert f"{number:g}, " in str(error.value) and "\n" not in str(error.value)
    edges[at] = number
    for relation_ in (edges, sparse.csr_matrix(edges), sparse.coo_matrix(edges)):
        with pytest.raises(InputError, match=rf"relation 'edges' has .* in row {at[0]}, column {at[1]}") as error:
            Batch(inputs={"features": np.ones((7, 6))}, relations={"edges": relation_})
        assert f"{number:g}, " in str(error.value)


@pytest.mark.parametrize("number", [HUGE, -HUGE, np.nextafter(MOST, 0), 2**62, 5e-324])
def test_the_largest_numbers_of_float32_are_taken(number):
    port = Port("x", "V", 1)
    assert np.isfinite(np.asarray(port.matrix(np.array([[number]]), "input"), np.float32)).all()
    assert Batch(inputs={"x": np.ones((1, 1))}, relations={"r": np.array([[number]])}).relations["r"].numbers == number


def test_a_matrix_that_enters_is_not_written_over():
    """A pass may write over its operand where nobody reads it later: never over what the caller gave."""
    program = Program([Step("scale", {"x": "x"}, {"factor": 2.0}, "y")], {}, "y", inputs=[Port("x", "V", 8)])
    x = np.ones((3, 8), np.float32)
    batch = Batch(inputs={"x": x})
    assert (program.run(batch) == 2).all() and (x == 1).all() and (program.run(batch) == 2).all()


def test_entries_of_relations_are_extents():
    batch = graph()
    extents = batch.extents(*collect_needs(MODEL))
    assert extents["V"] == 9 and extents[entries[EDGES]] == np.count_nonzero(batch.relations["edges"].dense())
    assert Extents({"V": 3, entries["edges: V × V"]: 5})[entries[EDGES]] == 5
    program = found(MODEL, batch)[0]
    few, many = (
        [sizes["T"] for name, sizes in program.cost(Extents({"V": 10, entries[EDGES]: count})) if name == "link"]
        for count in (10, 90)
    )
    assert few == [10, 10] and many == [50, 50], "what a relation joins is priced by its entries"


def test_optimize_takes_a_graph(savings_known):
    batch = graph(40)
    result = optimize(MODEL, workload=batch, machine=standin.machine(), rounds=3, error=0)
    best = result.best.program
    assert best.space == "V" and result.points[0].verified and result.points[0].stated_error < 1e-5
    assert relative(best.run(batch), dense(MODEL, batch)) < 1e-5
    with pytest.raises(InputError, match="which cannot be drawn"):
        optimize(MODEL, machine=standin.machine())


# ---- several outputs


def two():
    """Hidden states of one layer, and a pooled row, of one model."""
    rows = bert()
    return {"pooled": rows @ Pooling().operator(), "hidden": rows.children[0], "rows": rows}


@pytest.mark.deep(every=2)
@pytest.mark.parametrize("laws", [(), EXACT_LAWS], ids=["fused", "laws"])
def test_several_outputs_are_one_program(laws, tmp_path):
    """What they share is computed once: as many products as of one output alone."""
    model = two()
    program, emitter, structure = found(model, RAGGED, laws)
    single = found(model["pooled"], RAGGED, laws)[0]
    products = [sum(step.kernel == "linear" for step in each.steps) for each in (program, single)]
    assert products[0] <= products[1] + 1, "of a layer whose normed value is handed on, the full one is made beside it"
    program.save(tmp_path / "p")
    for each in (program, Program.load(tmp_path / "p")):
        outputs = each.run_all(RAGGED)
        assert [*outputs] == [*model] and np.array_equal(outputs["pooled"], each.run(RAGGED))
        assert [port.space for port in each.signature.outputs.values()] == ["S", "T", "T"]
        for name, term in model.items():
            assert relative(outputs[name], dense(term, RAGGED)) < 1e-5
    assert max(verify_outputs(program, model, [RAGGED], unrounded(structure, emitter)).values()) < 1e-12
    verify_steps(program, [RAGGED])


@pytest.mark.parametrize("count", [1, 2, 600])
@pytest.mark.parametrize("others", [0, 1, 3])
def test_outputs_that_are_one_value_are_one_array(count, others):
    """However many names a value has: memory, said and taken, is that of the values."""
    steps = [Step("scale", {"x": "x"}, {"factor": float(i)}, f"h{i}") for i in range(1 + others)]
    names = {f"same{i}": "h0" for i in range(count)} | {
        f"other{i}.{j}": f"h{i}" for i in range(1, 1 + others) for j in range(count)
    }
    once, many = (
        Program(steps, {}, each, inputs=[Port("x", "V", 1024)])
        for each in ({name: f"h{i}" for i, name in enumerate("abcd"[: 1 + others])}, names)
    )
    batch = Batch(inputs={"x": np.ones((200, 1024), np.float32)})
    assert once.peak_bytes(batch) == many.peak_bytes(batch)
    many.run_all(batch)
    tracemalloc.start()
    try:
        found = many.run_all(batch)
        assert tracemalloc.get_traced_memory()[1] < many.peak_bytes(batch) + 200 * 1024
    finally:
        tracemalloc.stop()
    assert [*found] == [*names] and len({id(each) for each in found.values()}) == 1 + others
    for name, value in names.items():
        assert (found[name] == float(value[1:])).all()


@pytest.mark.deep
def test_optimize_states_the_worst_output(laws_known):
    model = two()
    result = optimize(model, workload=RAGGED, machine=standin.machine(), rounds=3, error=0.05)
    for point in result.points:
        outputs = point.program.run_all(result.workload.verify)
        off = max(relative(outputs[name], dense(term, result.workload.verify)) for name, term in model.items())
        assert off <= point.measured_error * (1 + 1e-9) and point.measured_error <= point.stated_error


# ---- what a file says


@pytest.fixture
def saved(tmp_path):
    found({"out": MODEL, "first": MODEL.children[0]}, graph())[0].save(tmp_path / "p")
    return tmp_path / "p" / "program.json"


@pytest.mark.parametrize(
    "spoil, words",
    [
        (lambda f: f["inputs"].update(features=["V", 6, 1, "float64"]), "'features'|features: number type 'float64'"),
        (
            lambda f: f["inputs"].update(features=["V", 6, 1, "bf16"]),
            "inputs: 'features' is bf16, which no program of ver",
        ),
        (
            lambda f: f.update(version=6, inputs={"features": ["V", 6, 1, "bf16"]}),
            "features: number type 'bf16': it may be float32$",
        ),
        (lambda f: f["inputs"].update(features=["V", 0, 1, "float32"]), "features: 1 heads of 0 columns"),
        (lambda f: f["inputs"].update(features=["V", 1 << 20, 2, "float32"]), "a row has 1 to"),
        (lambda f: f["inputs"].update(features=["V", True, 1, "float32"]), "not .space, columns"),
        (lambda f: f["inputs"].update(features=["V × V", 6, 1, "float32"]), "not .space, columns"),
        (lambda f: f["inputs"].update(features=["V", 8, 1, "float32"]), "step|columns"),
        (lambda f: f["inputs"].update(features=["T", 6, 1, "float32"]), "x rows"),
        (lambda f: f["inputs"].update({"a\nb": ["V", 6, 1, "float32"]}), "is no name"),
        (lambda f: f["inputs"].clear(), "which is neither the output of an earlier step"),
        (lambda f: f["outputs"].update(more="features"), "no step gives 'features'"),
        (lambda f: f["outputs"].update(more=3), "outputs: 'more' is 3, no value"),
        (lambda f: f["outputs"].clear(), "gives one, at least"),
        (lambda f: f["state"].update(features="h1"), "state must be rows of space C"),
        (lambda f: f.update(state=[]), "'state' is a list"),
        (lambda f: f.pop("inputs"), "'inputs' is missing"),
        (
            lambda f: f["signature"]["outputs"].update(out=["S", 6, 1, "float32"]),
            "signature: outputs: 'out' is .'S'.*but the steps have .'V'",
        ),
        (lambda f: f["signature"].update(relations=["edges: V × T"]), "signature: relations are .'edges: V × T'"),
        (lambda f: f.update(signature=7), "signature: it is 7"),
        (lambda f: f.update(version=3), "'output' is missing"),
        (lambda f: f.update(version=8), "'above' is missing"),
        (lambda f: f.update(version=9), "version is 9"),
    ],
)
def test_a_signature_that_is_not_the_steps_is_refused_in_a_line(spoil, words, saved):
    said = json.loads(saved.read_text())
    spoil(said)
    saved.write_text(json.dumps(said))
    with pytest.raises(InputError, match=words) as error:
        Program.load(saved.parent)
    assert "\n" not in str(error.value) and str(saved) in str(error.value)


def test_a_program_of_one_output_is_saved_as_before(tmp_path):
    """With its hash; what is said of its border beside it is checked where it is there, and may be missing, as
    before."""
    table = Dense.pack(np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32))
    program = Program([Step("embed", {"table0": "t"}, {"fields": "tokens"}, "h0")], {"t": table}, "h0")
    program.save(tmp_path / "p")
    file = tmp_path / "p" / "program.json"
    said = json.loads(file.read_text())
    assert (
        said["version"] == 3
        and said["output"] == "h0"
        and program.described().keys() == {"meta", "constants", "steps", "output"}
    )
    assert said["signature"] == {
        "inputs": {"tokens": ["T", 1, 1, "int64"]},
        "outputs": {"output": ["T", 4, 1, "float32"]},
        "relations": [],
        "state": {},
    }
    del said["signature"]
    file.write_text(json.dumps(said))
    assert Program.load(tmp_path / "p").hash == program.hash
    said["steps"].insert(0, ["state", {}, {"number": 0, "heads": 1, "cols": 4}, "cache"])
    file.write_text(json.dumps(said))
    with pytest.raises(InputError, match=r"its caches are steps, 'state': .*cached\(program\)"):
        Program.load(tmp_path / "p")
