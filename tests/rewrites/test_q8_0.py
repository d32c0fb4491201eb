"""Weights that a GGUF file stores in blocks of Q8_0: kept as they are where that pays, to the bit; a tied table
once."""

import ggufs
import numpy as np
import pytest
import standin
from test_q4_1 import BATCH, blocks, formats_of, space_of

from formats import FORMATS, Q8_0, FormatError, Packed, kernels
from formats.storage.check import check_product
from opmatrix.algebra.batch.extents import counted, patterns
from opmatrix.algebra.oracles import dense
from opmatrix.files.checkpoint import open_model
from opmatrix.files.quantised import STORED
from opmatrix.runtime.program import Program
from rewrites.approximate.budgets import within
from rewrites.laws import EXACT_LAWS
from rewrites.lowering.representations import Representable
from rewrites.search.search import SearchSpace

TYPE, TABLE = 8, "token_embd.weight"


def made_bytes(rng, outputs, groups):
    """Random blocks: of either sign of d, with all bytes or one, d of 0 and the least that there is."""
    made = np.zeros((outputs, groups), Q8_0.filed)
    made["d"] = rng.normal(size=(outputs, groups)) / 600
    made["q"] = rng.integers(-128, 128, made["q"].shape)
    made["q"][0], made["d"][1], made["d"][2] = -128, 0, 6e-8
    return made


def widened_bytes(made):
    """(outputs, inputs), as ggml widens them, number by number."""
    return (made["d"].astype(np.float32)[..., None] * made["q"].astype(np.float32)).reshape(len(made), -1)


@pytest.mark.parametrize("outputs", (3, 16, 64, 150))
def test_blocks_are_kept_to_the_bit(rng, outputs):
    """In products, of few rows and of many, and as rows of a table; products are those of panels of float32."""
    made = made_bytes(rng, outputs, 5)
    stored, wanted = Q8_0.of_blocks(made), widened_bytes(made)
    assert np.array_equal(stored.unpack(), wanted.T) and stored.nbytes == 34 * 5 * -(-outputs // 16) * 16
    assert stored.filed_blocks().tobytes() == made.tobytes()
    for rows in (1, 2, 4, 7, 8, 9, 40):
        check_product(stored, x := rng.standard_normal((rows, 160), np.float32), rng)
        assert np.array_equal(x @ stored, x @ Packed.pack(wanted.T))
    ids = rng.integers(0, outputs, 70)
    found = kernels.gather(ids, kernels.Columns.of(stored), np.empty((70, 160), np.float32))
    assert np.array_equal(found, wanted[ids])


@pytest.mark.parametrize("inputs", (1, 3, 33, 391))
def test_inputs_that_fill_no_word_nor_group_nor_block(rng, inputs):
    """Of the last word and group only what there is is multiplied: behind it lies NaN."""
    stored = Q8_0.approximate(rng.standard_normal((inputs, 70), np.float32))
    for rows in (1, 3, 8, 13):
        x = np.full((rows, inputs + 40), np.nan, np.float32)
        x[:, :inputs] = rng.standard_normal((rows, inputs))
        found = stored.matmul(x[:, :inputs])
        assert (abs(found - x[:, :inputs].astype(float) @ stored.wide()) <= stored.bound(x[:, :inputs])).all()
    found = kernels.gather(np.arange(70), kernels.Columns.of(stored), np.empty((70, inputs), np.float32))
    assert np.array_equal(found, stored.unpack().T)


def test_any_whole_multiples_are_found_again(rng):
    """Which bytes a group holds need not be known: a d that means its numbers is found. Others are rounded as ggml
    rounds them: to the nearest multiple of the largest / 127."""
    for least, most in ((-127, 127), (-128, 0), (-5, 90), (0, 1)):
        q = rng.integers(least, most + 1, (64, 10)).astype(np.float32)
        d = abs(rng.normal(size=(1, 10))).astype(np.float16).astype(np.float32)
        assert np.array_equal(Q8_0.pack(d * q).unpack(), d * q)
    W = rng.standard_normal((64, 3), np.float32)
    d = (abs(W.reshape(2, 32, 3)).max(1, keepdims=True) / np.float32(127)).astype(np.float16).astype(np.float32)
    assert np.array_equal(Q8_0.fit(W), (np.rint(W.reshape(2, 32, 3) / d) * d).reshape(64, 3))
    assert not Q8_0.fit(np.zeros((33, 4), np.float32)).any()
    with pytest.raises(FormatError, match="cannot hold this matrix"):
        Q8_0.pack(W)
    with pytest.raises(FormatError, match="beyond 8319008"):
        Q8_0.fit(np.full((4, 3), 1e7))


@pytest.mark.parametrize(
    "name, spoil, said",
    [
        ("scale", lambda a: np.where(np.arange(len(a)) == 3, np.float16(np.nan), a), "holds nan, which is not finite"),
        ("scale", lambda a: a.astype(np.float32), "declared f2"),
        ("w", lambda a: a[:-1], "w"),
        ("w", lambda a: a.astype(np.uint16), "declared u1"),
    ],
)
def test_what_is_damaged_in_a_file_is_refused(rng, name, spoil, said):
    arrays = (stored := Q8_0.of_blocks(made_bytes(rng, 20, 2))).arrays()
    with pytest.raises(FormatError, match=said):
        Q8_0.from_arrays(stored.meta(), arrays | {name: spoil(arrays[name])})
    assert np.array_equal(Q8_0.from_arrays(stored.meta(), arrays).unpack(), stored.unpack())


def test_scales_of_a_table_that_do_not_fit_are_refused(rng):
    columns, out = kernels.Columns.of(Q8_0.of_blocks(made_bytes(rng, 20, 2))), np.empty((1, 64), np.float32)
    for wrong in (columns.scale[1:], columns.scale.astype(np.float32), columns.scale.reshape(2, -1)):
        with pytest.raises(ValueError, match=r"expected float16 of \(64,\)"):
            kernels.gather(np.zeros(1, int), columns._replace(scale=wrong), out)


def test_files_keep_the_blocks_that_formats_hold():
    """Each kind of block that a leaf keeps is one format's that rounds nothing, and every such format has one."""
    kept = {number: each.block for number, each in STORED.items() if each.kept}
    assert {name.lower(): block for name, block in kept.items()} == {
        name: form.filed for name, form in FORMATS.items() if form.filed is not None and not form.rounds
    }


# ---- in programs


@pytest.fixture(scope="module")
def space(tmp_path_factory):
    """Of a model whose table, its head, is blocks of Q8_0, and all else float32."""
    return space_of(tmp_path_factory.mktemp("bytes"), TABLE, number=TYPE, make=made_bytes)


def test_a_tied_table_is_stored_once_in_its_own_blocks(space, tmp_path):
    """Rows are looked up where the head multiplies, by the numbers that ggml widens to."""
    found = within(space, Representable(), weights=(0, 1, 0))
    program, _ = found.program({})
    head = next(step for step in reversed(program.steps) if step.kernel == "linear").operands["weight"]
    table = next(step for step in program.steps if step.kernel == "embed")
    assert table.operands["table0"] == head and table.attributes["turned"] == "0"
    assert formats_of(program).count("q8_0") == 1 and program.constants[head].name == "q8_0"
    assert found.memory == program.stored_bytes and found.error == 0
    wanted = dense(space.model, BATCH)
    assert np.linalg.norm(program.run(BATCH) - wanted) < 2e-6 * np.linalg.norm(wanted)
    program.save(tmp_path / "p")
    assert np.array_equal(Program.load(tmp_path / "p").run(BATCH), program.run(BATCH))


def test_matrices_are_kept_in_the_blocks_of_their_file(tmp_path):
    """Joined ones, too."""
    space = space_of(tmp_path, "blk.", number=TYPE, make=made_bytes)
    least = within(space, Representable(), weights=(0, 1, 0)).program({})[0]
    assert formats_of(least).count("q8_0") == len(formats_of(least)) - 1 and "q8_0" in formats_of(least)
    assert np.linalg.norm(least.run(BATCH) - (wanted := dense(space.model, BATCH))) < 2e-6 * np.linalg.norm(wanted)


def test_blocks_of_two_kinds_are_no_one_weight(tmp_path):
    """Queries, keys and values are joined: where values are of another kind, each stays what its file stores."""
    rng = np.random.default_rng(3)
    kinds = {"attn_q": (TYPE, made_bytes), "attn_k": (TYPE, made_bytes), "attn_v": (3, blocks)}
    shapes = ggufs.shapes()
    tensors = {
        name: (number, shapes[name], make(rng, shapes[name][0], shapes[name][1] // 32).tobytes())
        for l in range(2)
        for part, (number, make) in kinds.items()
        for name in [f"blk.{l}.{part}.weight"]
    }
    model = open_model(ggufs.write(tmp_path / "mixed.gguf", {}, tensors)).operator()
    space = SearchSpace(model, EXACT_LAWS, standin.machine(), counted([7, 1], patterns(model)))
    least = within(space, Representable(), weights=(0, 1, 0)).program({})[0]
    assert formats_of(least).count("q4_1") == 2 and formats_of(least).count("q8_0") >= 2
    assert np.linalg.norm(least.run(BATCH) - (wanted := dense(model, BATCH))) < 2e-6 * np.linalg.norm(wanted)
