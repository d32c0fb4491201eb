"""Weights that a GGUF file stores in blocks of Q4_1: kept as they are where that pays, to the bit."""

import ggufs
import numpy as np
import pytest
import standin

from formats import Q4_1, FormatError
from formats.storage.check import check_product
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import counted, patterns
from opmatrix.algebra.oracles import dense
from opmatrix.files.checkpoint import open_model
from opmatrix.runtime.program import Program
from rewrites.approximate.budgets import within
from rewrites.laws import EXACT_LAWS
from rewrites.lowering.lower import plainly
from rewrites.lowering.representations import Representable
from rewrites.search.search import SearchSpace, search

TYPE, GROUP = 3, 32
BATCH = Batch([[3, 4, 5, 6, 7, 9, 30], [8]])


def blocks(rng, outputs, groups):
    """Random blocks: of either sign of d, with all levels or one, d of 0 and the least that there is."""
    made = np.zeros((outputs, groups), [("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)])
    made["d"], made["m"] = rng.normal(size=(2, outputs, groups)) / 40
    made["q"] = rng.integers(0, 256, made["q"].shape)
    made["q"][0], made["d"][1], made["d"][2] = 0x77, 0, 6e-8
    return made


def widened(made):
    """(outputs, inputs), as ggml widens them, number by number."""
    low, high = made["q"] & 15, made["q"] >> 4
    q = np.concatenate([low, high], 2).astype(np.float32)
    d, m = (made[name].astype(np.float32)[..., None] for name in "dm")
    return (d * q + m).reshape(len(made), -1)


@pytest.mark.parametrize("outputs", (16, 64, 150))
def test_blocks_are_kept_to_the_bit(rng, outputs):
    made = blocks(rng, outputs, 5)
    stored = Q4_1.of_blocks(made)
    assert np.array_equal(stored.unpack(), widened(made).T) and stored.nbytes == 20 * 5 * -(-outputs // 16) * 16
    assert stored.filed_blocks().tobytes() == made.tobytes()
    for rows in (1, 2, 4, 7, 8, 9, 40):
        check_product(stored, rng.standard_normal((rows, 160), np.float32), rng)


@pytest.mark.parametrize("inputs", (1, 7, 33, 389))
def test_inputs_that_fill_no_word_nor_group_nor_block(rng, inputs):
    """Of the last word and group only what there is is multiplied: behind it lies NaN."""
    stored = Q4_1.approximate(rng.standard_normal((inputs, 70), np.float32))
    for rows in (1, 3, 8, 13):
        x = np.full((rows, inputs + 40), np.nan, np.float32)
        x[:, :inputs] = rng.standard_normal((rows, inputs))
        found = stored.matmul(x[:, :inputs])
        assert (abs(found - x[:, :inputs].astype(float) @ stored.wide()) <= stored.bound(x[:, :inputs])).all()


def test_any_levels_are_found_again(rng):
    """Which levels a group holds need not be known: d and m that mean its numbers are found."""
    for least, most in ((0, 15), (3, 12), (5, 6), (1, 15)):
        q = rng.integers(least, most + 1, (64, 10)).astype(np.float32)
        d, m = abs(rng.normal(size=(2, 1, 10))).astype(np.float16).astype(np.float32)
        W = (d * q - m).astype(np.float32)
        assert np.array_equal(Q4_1.pack(W).unpack(), W)
    with pytest.raises(FormatError, match="cannot hold this matrix"):
        Q4_1.pack(rng.standard_normal((64, 3)))
    with pytest.raises(FormatError, match="beyond 65504"):
        Q4_1.fit(np.full((4, 3), 1e5))


# ---- in programs


def space_of(folder, stem, layers=2, number=TYPE, make=blocks):
    """Of a model of so many layers, 2 or more, whose matrices of these names are blocks of a number type of GGUF."""
    rng = np.random.default_rng(5)
    made = {
        name: make(rng, shape[0], shape[1] // GROUP)
        for name, shape in ggufs.shapes().items()
        if name.startswith(stem) and len(shape) > 1
    }
    tensors = {name: (number, (len(each), GROUP * each.shape[1]), each.tobytes()) for name, each in made.items()}
    more = {
        f"blk.{l}.{name[6:]}": array
        for l in range(2, layers)
        for name, array in ggufs.arrays(l).items()
        if name.startswith("blk.1.")
    }
    model = open_model(ggufs.write(folder / "small.gguf", {"llama.block_count": layers}, more | tensors)).operator()
    return SearchSpace(model, EXACT_LAWS, standin.machine(), counted([7, 1], patterns(model)))


@pytest.fixture(scope="module")
def space(tmp_path_factory):
    return space_of(tmp_path_factory.mktemp("blocks"), "blk.")


def formats_of(program):
    return [each.name for each in program.constants.values() if hasattr(each, "unpack")]


def test_a_search_within_memory_keeps_blocks_as_they_are(space, tmp_path):
    """Those of joined weights, too. Scores are those of the float64 reading of what ggml widens to, as far as float32
    tells, and no further off than those of the imported program."""
    free = search(space.model, (), space.machine, space.extents, methods=plainly, fusion=False)
    tight = within(space, Representable(), memory=free.memory / 2)
    program, imported = (each.program({})[0] for each in (tight, free))
    assert {"q4_1"} <= {*formats_of(program)} and "q4_1" not in formats_of(imported)
    assert tight.memory == program.stored_bytes < free.memory / 2 and tight.error == 0
    wanted = dense(space.model, BATCH)
    off, plain = (np.linalg.norm(each.run(BATCH) - wanted) for each in (program, imported))
    assert off < 2 * plain < 4e-6 * np.linalg.norm(wanted)
    program.save(tmp_path / "p")
    assert np.array_equal(Program.load(tmp_path / "p").run(BATCH), program.run(BATCH))


def test_a_gain_is_folded_where_that_pays_or_the_blocks_are_kept(space):
    """Rows times a gain, then blocks; or the gain times the weight, which is none of the file's any more."""
    least = within(space, Representable(), weights=(0, 1, 0)).program({})[0]
    gains = [step for step in least.steps if "gain" in step.operands]
    assert len(gains) == 5 and formats_of(least).count("q4_1") == len(formats_of(least)) - 1


def test_layers_of_one_structure_that_are_stored_otherwise_are_two_problems(tmp_path):
    """Of four layers the second is blocks, the third float32; blocks are read for nearly nothing."""
    space = space_of(tmp_path, "blk.1.", 4)
    rates = space.machine.coefficients
    rates["linear.q4_1"] = [each / 100 for each in rates["linear.q4_1"]]
    program = search(space.model, EXACT_LAWS, space.machine, space.extents).program({})[0]
    stored = formats_of(program)
    assert 4 <= stored.count("q4_1") <= 7 and stored.count("packed") + stored.count("dense") >= 13
    assert np.linalg.norm(program.run(BATCH) - (wanted := dense(space.model, BATCH))) < 2e-6 * np.linalg.norm(wanted)


def test_number_types_leave_blocks_out(space):
    """d and m are float16."""
    found = within(space, Representable(32), weights=(0, 1, 0))
    assert "q4_1" not in formats_of(found.program({})[0])
