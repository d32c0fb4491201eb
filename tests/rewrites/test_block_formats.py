"""Weights in blocks of GGUF files, of every layout in planes: kept as they are, multiplied, gathered and saved."""

import os

import ggufs
import numpy as np
import pytest
import standin
from test_q4_1 import BATCH, formats_of

from formats import FORMATS, FormatError, kernels
from formats.core.errors import InputError
from formats.storage.block_layouts import FILED, LAYOUTS
from formats.storage.check import check_product
from opmatrix.algebra.batch.extents import counted, patterns
from opmatrix.algebra.data import Data
from opmatrix.algebra.oracles import dense
from opmatrix.exports.checkpoints.stored_numbers import filed_numbers, scaled_blocks
from opmatrix.files.checkpoint import open_model
from opmatrix.files.filed_data import FiledData
from opmatrix.files.gguf import TENSOR_TYPES
from opmatrix.files.quantised import STORED
from opmatrix.runtime.program import Program
from rewrites.laws import EXACT_LAWS
from rewrites.lowering.representations import Representable
from rewrites.search.search import SearchSpace, search

NUMBERS = {name.lower(): number for number, name in TENSOR_TYPES.items()}
ROWS = 1, 2, 7, 8, 17, 300
WIDE = {
    "llama.embedding_length": 256,
    "llama.feed_forward_length": 512,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.rope.dimension_count": 64,
}


def blocks(rng, name, outputs, count):
    """Random blocks: of either sign of scales, one of them 0, one the least that there is."""
    kind = FILED[name].block
    made = rng.integers(0, 256, (outputs, count, kind.itemsize), np.uint8).view(kind)[..., 0]
    for scale in (name for name in ("d", "m") if name in kind.names and kind[name].kind == "f"):
        made[scale] = rng.normal(size=(outputs, count)) / 600
    least = 6e-8
    if kind["d"] == np.uint8:
        made["d"], least = rng.integers(110, 121, (outputs, count)), 1
    made["d"][0], made["d"][-1] = 0, least
    return made


def widened(name, made):
    """(outputs, inputs), as the reader of files widens them."""
    return STORED[name.upper()].widen(made.reshape(-1)).reshape(len(made), -1)


@pytest.mark.parametrize("name", LAYOUTS)
def test_blocks_are_kept_to_the_bit(rng, name):
    """In products of few rows and many, over whole panels and parts of one, at the bytes of the file but for outputs
    that fill up a vector; and as rows of a table."""
    for outputs, count in ((16, 3), (150, 2)):
        made = blocks(rng, name, outputs, count)
        stored, wanted = FORMATS[name].of_blocks(made), widened(name, made)
        assert np.array_equal(stored.unpack(), wanted.T)
        assert stored.nbytes == made.nbytes * -(-outputs // 16) * 16 // outputs
        assert stored.filed_blocks().tobytes() == made.tobytes()
        for rows in ROWS if outputs > 16 else (1, 8):
            check_product(stored, rng.standard_normal((rows, wanted.shape[1]), np.float32), rng)
        ids = rng.integers(0, outputs, 40)
        gathered = kernels.gather(ids, kernels.Columns.of(stored), np.empty((40, wanted.shape[1]), np.float32))
        assert np.array_equal(gathered, wanted[ids])


@pytest.mark.parametrize("name", LAYOUTS)
def test_blocks_leave_in_gguf_files_that_have_them(rng, name):
    """Groups of other files are written as numbers, and the export's note names them."""
    stored = FORMATS[name].of_blocks(blocks(rng, name, 16, 2))
    numbers = stored.unpack().T
    left = filed_numbers(stored, numbers)
    if name.upper() in TENSOR_TYPES.values():
        assert (left.number, left.called) == (name.upper(), "") and left.blocks is not None
    else:
        assert left.blocks is None and left.called == f"{name}, which no GGUF file has"
    assert np.array_equal(left.numbers, numbers)


def test_exponents_are_scaled_by_powers_of_two_alone(rng):
    """As those of scores, which files have none of; a zero stays one, and no exponent leaves its range."""
    made = blocks(rng, "mxfp4", 16, 2)
    made["d"] = rng.integers(100, 140, made.shape)
    made["d"][0] = 0
    wanted = widened("mxfp4", made)
    for factor in (8.0, 0.25):
        assert np.array_equal(widened("mxfp4", scaled_blocks(made, factor)), widened("mxfp4", made) * factor)
    assert [scaled_blocks(made, factor) for factor in (3.0, -8.0, 2.0**200, 2.0**-200)] == [None] * 4
    assert np.array_equal(widened("mxfp4", made), wanted)


@pytest.mark.parametrize("name", LAYOUTS)
def test_inputs_that_fill_no_word_nor_group_nor_block(rng, name):
    """Of the last word, group and block only what there is is multiplied: behind it lies NaN; rows begin anywhere."""
    for inputs in (1, 33, 391):
        stored = FORMATS[name].approximate(rng.standard_normal((inputs, 70), np.float32))
        for rows, at in ((1, 0), (3, 1), (8, 5), (13, 3)):
            x = np.full((rows, inputs + 40), np.nan, np.float32)
            x[:, at : at + inputs] = rng.standard_normal((rows, inputs))
            some = x[:, at : at + inputs]
            off = abs(stored.matmul(some) - some.astype(float) @ stored.wide())
            assert (off <= stored.bound(some)).all()


def test_a_long_weight_is_widened_block_by_block(rng):
    """More inputs than are widened at a time, many rows."""
    for name in ("q4_k", "q3_k", "q5_0"):
        stored = FORMATS[name].of_blocks(blocks(rng, name, 70, 1024 // LAYOUTS[name].inputs))
        check_product(stored, rng.standard_normal((40, 1024), np.float32), rng)


def test_fitted_matrices_are_near(rng):
    """No levels of a fitted matrix are far from its numbers, and scales beyond float16 are refused."""
    W = rng.standard_normal((512, 40), np.float32)
    worst = {"q2_k": 0.8, "q3_k": 0.2, "mxfp4": 0.12, "fp4_64": 0.13}
    for name in LAYOUTS:
        off = np.linalg.norm(FORMATS[name].fit(W) - W) / np.linalg.norm(W)
        assert off < worst.get(name, 0.11), (name, off)
    with pytest.raises(FormatError, match=r"W has a scale of 1.25e\+06, beyond 65504"):
        FORMATS["q4_0"].fit(np.full((32, 2), 1e7, np.float32))


def test_a_scale_among_bytes_is_finite(rng):
    """Bytes of scales and of levels of zero are one array: its scales are looked at as those of float16 are."""
    arrays = (stored := FORMATS["z4_32"].of_blocks(blocks(rng, "z4_32", 20, 2))).arrays()
    for place in (0, 19):  # of the first vector of outputs and of the second
        spoilt = arrays["scale"].copy()
        spoilt[place // 16 * 48 + 2 * (place % 16) :][:2] = np.float16([np.inf]).view(np.uint8)
        with pytest.raises(FormatError, match="z4_32: a scale is inf: the file is damaged"):
            FORMATS["z4_32"].from_arrays(stored.meta(), arrays | {"scale": spoilt})
        assert FORMATS["z4_32"].from_arrays(stored.meta(), arrays).shape == stored.shape


@pytest.mark.parametrize("name", ["q4_k", "q6_k"])
def test_what_is_damaged_is_refused(rng, name):
    arrays = (stored := FORMATS[name].of_blocks(blocks(rng, name, 20, 2))).arrays()
    spoilt = np.where(np.arange(len(arrays["scale"])) == 3, np.float16(np.inf), arrays["scale"])
    for changed, words in (
        ({"scale": spoilt}, "holds inf, which is not finite"),
        ({"w": arrays["w"][:-1]}, "w"),
        ({"parts": arrays["parts"].astype(np.uint8)}, "declared u4"),
    ):
        with pytest.raises(FormatError, match=words):
            FORMATS[name].from_arrays(stored.meta(), arrays | changed)
    columns, out = kernels.Columns.of(stored), np.empty((1, 512), np.float32)
    with pytest.raises(ValueError, match=r"parts is not uint32"):
        kernels.gather(np.zeros(1, int), columns._replace(parts=columns.parts[1:]), out)


# ---- in files and programs


def written(folder, name, spoil=None):
    """A LLaMA of 256 columns whose matrices are blocks of a type, its table among them."""
    rng, shapes = np.random.default_rng(3), ggufs.shapes()
    grown = {stem: tuple(8 * side for side in shape) for stem, shape in shapes.items()}
    grown["token_embd.weight"] = (ggufs.WORDS, 256)
    tensors = {stem: np.ones(shape, "<f4") for stem, shape in grown.items() if len(shape) == 1}
    for stem, shape in grown.items():
        if len(shape) == 1:
            continue
        rows, columns = shape
        made = blocks(rng, name, rows, columns // LAYOUTS[name].inputs)
        usual = columns**-0.5 / widened(name, made).std()
        for scale in {"d", "m"} & {*made.dtype.names}:
            made[scale] *= usual
        if spoil == stem:
            made["d"][5, 0] = np.inf
        tensors[stem] = (NUMBERS[name], (rows, columns), made.tobytes())
    return ggufs.write(folder / f"{name}.gguf", WIDE, tensors)


@pytest.mark.parametrize("name", ["q4_k", "q6_k", "iq4_nl"])
def test_a_program_holds_the_blocks_of_its_file(tmp_path, name):
    """All of them, the table and its head once; saved and opened again without the file, whose bytes they take."""
    file = written(tmp_path, name)
    model = open_model(file).operator()
    space = SearchSpace(model, EXACT_LAWS, standin.machine(), counted([7, 1], patterns(model)))
    program = search(model, EXACT_LAWS, space.machine, space.extents, methods=Representable(in_blocks=True)).program(
        {}
    )[0]
    assert {*formats_of(program)} == {name}
    wanted = dense(model, BATCH)
    assert np.linalg.norm(program.run(BATCH) - wanted) < 2e-6 * np.linalg.norm(wanted)
    program.save(tmp_path / "p")
    file.unlink()
    again = Program.load(tmp_path / "p")
    assert np.array_equal(again.run(BATCH), program.run(BATCH)) and {*formats_of(again)} == {name}


def test_numbers_are_read_when_they_are_asked_for(tmp_path):
    """A leaf in blocks equals the array of its numbers, and so does its transpose; it holds none of them."""
    held = open_model(written(tmp_path, "q4_k")).at("layers.0.mlp.up_proj.weight", 512, 256)
    plain = Data(np.array(held.array), "other")
    assert isinstance(held, FiledData) and held == plain and hash(held.T) == hash(plain.T) and held.T == plain.T
    places = np.array([3, 500]), np.array([0, 255])
    assert np.array_equal(held.take(places), plain.array[places])
    assert np.array_equal(held.T.take(places[::-1]), plain.array[places])
    assert held.widened() is None and held.is_finite and held.T.is_finite and held.T.shape == (256, 512)


def test_scales_that_are_not_finite_are_refused_when_a_file_is_opened(tmp_path):
    file = written(tmp_path, "q4_k", "blk.1.ffn_up.weight")
    with pytest.raises(InputError, match=r"tensor 'blk.1.ffn_up.weight' has (inf|nan) at \[5, 0\]") as caught:
        open_model(file).operator()
    assert "\n" not in str(caught.value)


def test_a_file_that_changed_meanwhile_is_a_line(tmp_path):
    """And one that is gone; neither stands in the way of other models."""
    file = written(tmp_path, "q4_k")
    held = open_model(file).at("layers.0.mlp.up_proj.weight", 512, 256)
    again = open_model(file).at("layers.0.mlp.up_proj.weight", 512, 256)
    assert held == again
    os.utime(file, ns=(0, 0))
    with pytest.raises(InputError, match=r"q4_k\.gguf: it has changed since the model was opened: open it again"):
        _ = held.array
    file.unlink()
    with pytest.raises(InputError, match=r"q4_k\.gguf: No such file or directory: it was there when"):
        _ = held.array
    written(tmp_path, "q4_k")
    assert open_model(file).at("layers.0.mlp.up_proj.weight", 512, 256).array.shape == (512, 256)
