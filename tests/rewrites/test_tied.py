"""A table of words that is gathered from and multiplied by: stored once where one layout serves both, priced, planned,
saved so."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_models import random_weights
from safetensors.numpy import load_file
from searched import Round

from formats import FORMATS, kernels
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import counted, patterns
from opmatrix.algebra.oracles import dense
from opmatrix.models import build
from opmatrix.runtime.program import Program, Step
from opmatrix.spectra import Limits
from rewrites.approximate.budgets import within
from rewrites.approximate.proposals import propose_methods
from rewrites.laws import EXACT_LAWS
from rewrites.lowering.lower import Use
from rewrites.lowering.representations import Representable
from rewrites.lowering.shared_tables import with_shared_tables
from rewrites.search.planned import planned
from rewrites.search.search import SearchSpace, search
from rewrites.verify.programs import unrounded, verify_exact

WORDS, WIDE = 3000, 24
CONFIG = dict(
    model_type="transformer",
    vocab_size=WORDS,
    max_position_embeddings=32,
    hidden_size=WIDE,
    intermediate_size=40,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=6,
    norm="layer",
    norm_eps=1e-5,
    pre_norm=True,
    hidden_act="silu",
    gated=True,
    bias=False,
    mask="sequence & causal",
    positions="rotary",
    head="tied",
)
BATCH = Batch([[1, 2, 3, WORDS - 1, 5, 6, 7, 8, 9], [7, 0, 64, 2999]])
TABLE = 4 * WIDE * 16 * -(-WORDS // 16)  # bytes of the panels of one table


class Stages(Round):
    """Stages of an epilogue ride for nothing, panels are multiplied by a little faster, and gathered from a little
    slower."""

    def __init__(self, gathering=0.0):
        self.gathering = gathering

    def seconds(self, kernel, **sizes):
        if kernel.startswith("gather."):
            return super().seconds(kernel, **sizes) + self.gathering
        if kernel in ("bias", "activation", "residual", "norm", "affine"):
            return 0.0
        return super().seconds(kernel, **sizes) * (0.9 if kernel == "linear.packed" else 1)


def model(**changed):
    config = CONFIG | changed
    return build(config, random_weights(config, np.random.default_rng(0)))


def extents(operator):
    return counted([9, 4], patterns(operator))


def tables(program):
    """The constants that rows are gathered from and that the head multiplies by."""
    head = next(step for step in reversed(program.steps) if step.kernel == "linear")
    return program.steps[0].operands["table0"], head.operands["weight"]


def plain_rows(program):
    """A copy of the table that rows are gathered from."""
    return np.array(*program.constants[program.steps[0].operands["table0"]].arrays().values())


def saved(program, place):
    """Bytes of the arrays of a file."""
    program.save(place)
    return sum(
        array.nbytes
        for name, array in load_file(place / "weights.safetensors").items()
        if not name.startswith("padding")
    )


# ---- the kernel


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(
        [("packed", {}), ("bf16", {}), ("int8", {}), ("int8", {"group": 64}), ("int4", {}), ("int4", {"group": 128})]
    ),
    st.integers(1, 150),
    st.integers(1, 150),
    st.integers(0, 2**32),
)
def test_columns_are_gathered_to_the_bit(form, n, words, seed):
    """What a format stores, and nothing that its kernel rounds besides."""
    (name, options), rng = form, np.random.default_rng(seed)
    stored = FORMATS[name].approximate(rng.normal(size=(n, words)).astype(np.float32), **options)
    ids, few = rng.integers(0, words, 70), rng.normal(size=(3, n)).astype(np.float16)
    rows = stored.unpack().T[ids]
    assert np.array_equal(kernels.gather(ids, kernels.Columns.of(stored), np.empty((70, n), np.float32)), rows)
    both = kernels.embed([(ids % 3, few), (ids, kernels.Columns.of(stored))], np.empty((70, n), np.float32))
    assert np.array_equal(both, rows + few[ids % 3])


def test_panels_that_do_not_fit_are_refused():
    stored = FORMATS["int8"].approximate(np.ones((24, 40), np.float32))
    columns, out = kernels.Columns.of(stored), np.empty((1, 24), np.float32)
    ids = np.zeros(1, int)
    for wrong, said in (
        (columns._replace(w=columns.w[1:]), "are not panels of 24 by 40"),
        (columns._replace(scale=None), "without scales"),
        (columns._replace(scale=columns.scale[:, 1:]), r"expected float32 of \(1, 40\)"),
        (columns._replace(shape=(23, 40)), "shape"),
        (columns._replace(w=columns.w.astype(np.int64)), "int64"),
    ):
        with pytest.raises(ValueError, match=said):
            kernels.gather(ids, wrong, out)
    with pytest.raises(IndexError, match="40 is outside 0 to 39"):
        kernels.gather(ids + 40, columns, out)


@pytest.mark.parametrize(
    "turned, form, said",
    [
        ("", "packed", "whose rows cannot be gathered"),
        ("0", "dense", "whose columns cannot be gathered"),
        ("1", "packed", "is not an ascending list of table numbers below 1"),
        ("0,0", "packed", "is not an ascending list of table numbers"),
        ("x" * 999, "packed", "turned: 'xxx"),
        (0, "packed", "turned is 0; it must be text"),
        ("0", "csr", "it must be Tables"),
    ],
)
def test_steps_that_gather_what_they_cannot_are_refused(turned, form, said):
    table = FORMATS[form].approximate(np.eye(24, dtype=np.float32))
    with pytest.raises(ValueError, match=said):
        Program([Step("embed", {"table0": "w"}, {"fields": "tokens", "turned": turned}, "h")], {"w": table}, "h")


# ---- exact programs


@pytest.mark.deep
@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_one_layout_is_stored_once_where_it_is_as_fast(positions, tmp_path):
    operator = model(positions=positions)
    found = search(operator, EXACT_LAWS, Stages(), extents(operator))
    program, emitter = found.program({})
    table, head = tables(program)
    assert table == head and program.steps[0].attributes["turned"] == "0" and program.constants[head].name == "packed"
    assert found.memory == program.stored_bytes == saved(program, tmp_path / "p") and found.gap < 1e-6
    assert found.memory == planned(CONFIG | dict(positions=positions), Stages(), [9, 4]).stored
    loaded, wanted = Program.load(tmp_path / "p"), dense(operator, BATCH)
    assert np.array_equal(loaded.run(BATCH), program.run(BATCH)) and loaded.hash == program.hash
    assert sum(each.nbytes for _, each in loaded.arrays()) == found.memory
    imported = search(operator, (), Stages(), extents(operator), fusion=False).program({})[0]
    verify_exact(program, operator, [BATCH], imported, unrounded(found, emitter), [wanted])


@pytest.mark.deep
def test_two_layouts_count_as_two(tmp_path):
    """Where gathering from panels takes longer than bytes are worth, and where the head has a table of its own."""
    for operator, machine in ((model(), Stages(1e-7)), (model(head="own"), Stages())):
        found = search(operator, EXACT_LAWS, machine, extents(operator))
        program, _ = found.program({})
        table, head = tables(program)
        assert table != head and "turned" not in program.steps[0].attributes
        assert found.memory == program.stored_bytes == saved(program, tmp_path / str(machine.gathering)) > 2 * TABLE


def test_a_table_is_read_from_the_head_where_that_takes_next_to_nothing_more():
    """The search stores both, as a row takes longer to gather from panels; numbers and rows are the same to the bit."""
    for positions in ("rotary", "learned"):
        operator, machine = model(positions=positions), Stages(1e-7)
        found = search(operator, EXACT_LAWS, machine, extents(operator))
        program, prices = found.program({})[0], found.lowerings[0].prices
        shared = with_shared_tables(program, prices, 1.0)
        table, head = tables(shared)
        assert table == head and shared.steps[0].attributes["turned"] == "0"
        assert program.stored_bytes - shared.stored_bytes == 4 * WIDE * WORDS
        assert np.array_equal(shared.run(BATCH), program.run(BATCH))
        assert with_shared_tables(program, prices, 8e-6) is program, "a row would take longer than that is worth"
        plain, rows = program.steps[0].operands["table0"], plain_rows(program)
        rows[WORDS - 1, 3] += 1
        other = program.over(program.steps, {**program.constants, plain: FORMATS["dense"].approximate(rows)})
        assert with_shared_tables(other, prices, 1.0) is other, "one number is another one"


def laid(own, gathered, multiplied):
    """Methods by which what stands elsewhere, too, is gathered from one format and multiplied by in another."""

    def methods(lowering, use):
        wanted = gathered if lowering.gathers(use) else multiplied
        return (
            [each for each in own(lowering, use) if each.format == wanted]
            if lowering.stands_elsewhere(use.weight)
            else own(lowering, use)
        )

    return methods


@pytest.mark.deep
def test_the_search_for_bytes_alone_takes_one_layout():
    """Of programs of equal time, all pairs of layouts tried, none has fewer tables; a bias more or less is a smaller
    part of what a program costs than solvers tell apart."""
    operator = model()
    found = search(operator, EXACT_LAWS, Stages(), extents(operator))
    own, least = Representable(), []
    for gathered, multiplied in product(("dense", "packed"), repeat=2):
        each = search(operator, EXACT_LAWS, Stages(), extents(operator), methods=laid(own, gathered, multiplied))
        least.append((each.time, each.memory))
    seconds, stored = min(least)
    assert found.time <= seconds * (1 + 1e-9) and found.memory < stored + TABLE / 100


# ---- within budgets


@pytest.fixture(scope="module")
def space():
    operator = model()
    return SearchSpace(operator, EXACT_LAWS, Stages(1e-7), extents(operator))


def test_memory_is_what_makes_one_layout_pay(space, tmp_path):
    two = within(space, Representable())
    one = within(space, Representable(), memory=two.memory - TABLE / 2)
    programs = [each.program({})[0] for each in (two, one)]
    assert [len({*tables(program)}) for program in programs] == [2, 1]
    for at, (each, program) in enumerate(zip((two, one), programs, strict=True)):
        assert each.memory == program.stored_bytes == saved(program, tmp_path / str(at))
    assert one.memory <= two.memory - TABLE / 2 and two.time < one.time <= two.time + 1.01e-7 and one.bound <= one.time
    assert one.gap < 2e-3


@pytest.mark.deep
def test_what_a_path_costs_has_the_bytes_that_its_parts_share(space):
    """Where bytes alone count, a program costs those that it stores."""
    found = within(space, Representable(), weights=(0, 1, 0))
    assert found.cost == pytest.approx(found.memory, rel=1e-12) and found.bound == pytest.approx(found.memory, rel=1e-3)


@pytest.mark.deep
def test_bounds_hold_for_every_pair_of_layouts(space):
    """No program of any layouts is below the bound that was proved within its bytes."""
    own, found = Representable(), []
    for gathered, multiplied in product(("dense", "packed"), repeat=2):
        found.append(
            search(space.model, EXACT_LAWS, space.machine, space.extents, methods=laid(own, gathered, multiplied))
        )
    for memory in {each.memory for each in found}:
        best = within(space, own, memory=memory)
        assert best.memory <= memory
        assert best.bound <= min(each.time for each in found if each.memory <= memory) * (1 + 1e-9)


def test_a_narrow_layout_serves_both_and_its_error_is_measured_for_each(tmp_path):
    operator = model(hidden_size=64)
    space = SearchSpace(operator, EXACT_LAWS, Stages(1e-7), extents(operator))
    structure = search(space.model, EXACT_LAWS, space.machine, space.extents)
    program, emitter = structure.program({})
    rng = np.random.default_rng(1)
    fit, probe = (Batch([rng.integers(0, WORDS, 12) for _ in range(4)]) for _ in range(2))
    choices = propose_methods(
        space, structure, program, emitter, Representable(), fit, probe, Limits(error=0.5, narrowest=8), measure="all"
    )
    narrow = choices.choose(0.5, 500_000)  # one table in half has 384,000 bytes, in bytes 204,544
    found = choices.program(narrow, {})
    own = choices.sources[found]
    table, head = tables(found)
    assert table == head and found.constants[head].name in ("int8", "bf16")
    errors = [
        node.label.error
        for lowering, extraction in zip(narrow.lowerings, narrow.extractions, strict=True)
        for node in extraction.nodes
        if isinstance(node.cls, Use) and lowering.stands_elsewhere(node.cls.weight)
    ]
    wanted = program.run(probe)

    def change(name, instead):
        """The squared relative change of the output by one constant alone."""
        changed = Program(program.steps, {**program.constants, name: instead}, program.output).run(probe)
        return (np.linalg.norm(changed - wanted) / np.linalg.norm(wanted)) ** 2

    stored, (gathered, multiplied) = found.constants[head], tables(program)
    each = change(gathered, FORMATS["dense"].pack(stored.unpack().T)), change(multiplied, stored)
    assert sorted(errors) == pytest.approx(sorted(each), rel=1e-6)
    assert narrow.memory == found.stored_bytes == saved(found, tmp_path / "p")
    off = found.run(probe) - program.run(probe)
    assert np.linalg.norm(off) / np.linalg.norm(program.run(probe)) < 0.5
    verify = found.exact(BATCH, unrounded(narrow, own), rounded=False)
    assert np.abs(verify - dense(space.model, BATCH)).max() < 1e-10
