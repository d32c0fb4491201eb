"""Programs written as GGUF files (`opmatrix export --gguf`), read back by the package gguf, by transformers and by the
reader of this project; and programs that such a file cannot hold."""

import ggufs
import numpy as np
import pytest
import standin
from searched import KINDS, structure
from test_gguf_encoders import KINDS as ENCODER_KINDS
from test_gguf_encoders import arrays_of, model_of, turned, write
from test_gguf_files import written
from test_plain_exports import drawn, exact_program, relative, searched, smaller, used_by_products
from typer.testing import CliRunner

from formats import FORMATS
from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import counted, patterns
from opmatrix.algebra.oracles import dense
from opmatrix.exports.checkpoints.gguf_encoder import ENCODERS
from opmatrix.exports.checkpoints.gguf_file import ARCHITECTURES, export_gguf
from opmatrix.files.checkpoint import open_model
from opmatrix.files.gguf import TENSOR_TYPES
from opmatrix.files.quantised import STORED
from opmatrix.inference.pooling import Pooling
from opmatrix.models import FAMILIES
from rewrites.cli.commands import app
from rewrites.laws import EXACT_LAWS
from rewrites.lowering.representations import Representable
from rewrites.search.search import search
from rewrites.workload.resolve import source

gguf = pytest.importorskip("gguf", reason="needs peers: gguf")
torch = pytest.importorskip("torch", reason="needs peers: torch")
transformers = pytest.importorskip("transformers", reason="needs peers: transformers")

IDS = np.arange(2, 11)
ROTATED = {
    "linear": dict(rope_type="linear", factor=3.0, rope_theta=1e4),
    "yarn": dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, rope_theta=1e4),
    "llama3": dict(
        rope_type="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=16,
        rope_theta=1e4,
    ),
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """The text of a tokenizer of byte pairs, whose tokens fill no table."""
    return open_model(ggufs.write(tmp_path_factory.mktemp("words") / "words.gguf")).tokenizer_text


def program_of(model, tokenizer):
    return exact_program(model).replace(tokenizer=tokenizer)


def in_blocks(file, tokenizer):
    """The exact program of a file that keeps its blocks."""
    checkpoint = open_model(file)
    operator = checkpoint.operator()
    extents = counted([60], patterns(operator))
    program = search(operator, EXACT_LAWS, standin.machine(), extents, methods=Representable(in_blocks=True)).program(
        {}
    )[0]
    return program.replace(config={**checkpoint.config}, tokenizer=tokenizer)


def tensors(file):
    return {tensor.name: (tensor.tensor_type.name, tensor.data.tobytes()) for tensor in gguf.GGUFReader(file).tensors}


def stored_as(program, name, which=lambda at: True):
    """A program whose products have weights in a format, or those of some numbers."""
    weights = dict(program.constants)
    for at, weight in enumerate(sorted(used_by_products(program))):
        if which(at):
            weights[weight] = FORMATS[name].approximate(weights[weight].unpack())
    return type(program)(program.steps, weights, program.outputs, program.meta)


def logits(file):
    return dense(open_model(file).operator(), Batch([IDS]))


@pytest.mark.parametrize(
    "family, number, tied", [("Llama", "Q4_K", True), ("Qwen2", "Q5_1", False), ("Qwen3", "Q8_0", True)]
)
def test_a_file_in_blocks_comes_back_byte_for_byte(tmp_path, tokenizer, family, number, tied):
    more = dict(head_dim=64) if family == "Qwen3" else {}
    written(tmp_path / "it.gguf", family, number, tied, **more)
    program = in_blocks(tmp_path / "it.gguf", tokenizer)
    assert f"{number} x" in export_gguf(program, tmp_path / "again.gguf")
    assert tensors(tmp_path / "again.gguf") == tensors(tmp_path / "it.gguf")
    assert relative(logits(tmp_path / "again.gguf"), program.exact([IDS], rounded=False)) < 1e-6


@pytest.fixture(scope="module")
def wide(tokenizer):
    """A LLaMA whose rows are whole blocks of every type."""
    return program_of(drawn("llama", hidden_size=256, intermediate_size=512, num_attention_heads=4), tokenizer)


@pytest.mark.deep(every=4)
@pytest.mark.parametrize("number", [name for name in TENSOR_TYPES.values() if STORED[name].kept])
def test_gguf_widens_blocks_to_the_numbers_of_the_program(tmp_path, wide, number):
    program = stored_as(wide, number.lower())
    export_gguf(program, tmp_path / "it.gguf")
    found = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "it.gguf").tensors}
    kinds = {name: tensor.tensor_type.name for name, tensor in found.items() if ".ffn_" in name or ".attn_" in name}
    assert {kind for name, kind in kinds.items() if "norm" not in name} == {number}
    [down] = [step for step in program.steps if step.kernel == "linear" and step.output == last_sum(program)]
    widened = gguf.quants.dequantize(found["blk.1.ffn_down.weight"].data, gguf.GGMLQuantizationType[number])
    assert np.array_equal(widened.T, program.constants[down.operands["weight"]].unpack())
    assert relative(logits(tmp_path / "it.gguf"), program.exact([IDS], rounded=False)) < 1e-6


def last_sum(program):
    """The last value that is added to the stream: that of the second layer's unit."""
    return [step.output for step in program.steps if "residual" in step.operands][-1]


def opened_by_transformers(file):
    """The model that transformers makes of a file, by its own reader's keys and tensors."""
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    entries = load_gguf_checkpoint(str(file))["config"]
    columns = gguf.GGUFReader(file).fields[f"{entries['model_type']}.attention.key_length"].contents()
    config = transformers.AutoConfig.for_model(**entries | dict(head_dim=columns))  # they read it of no Qwen3
    with torch.device("meta"):
        empty = transformers.AutoModelForCausalLM.from_config(config)
    state = load_gguf_checkpoint(str(file), return_tensors=True, model_to_load=empty)["tensors"]
    model = transformers.AutoModelForCausalLM.from_config(config)
    lost = model.load_state_dict({name: torch.tensor(array) for name, array in state.items()}, strict=False)
    assert not lost.unexpected_keys and {*lost.missing_keys} <= {"lm_head.weight"}
    if lost.missing_keys:
        model.lm_head.weight = model.model.embed_tokens.weight
    return model


@pytest.mark.deep(every=2)
@pytest.mark.parametrize("name", ["llama", "llama, tied", "qwen2, tied", "qwen3"])
def test_transformers_reads_a_file_as_the_program(tmp_path, tokenizer, name):
    model = drawn(name)
    program = program_of(model, tokenizer)
    export_gguf(program, tmp_path / "it.gguf")
    again = opened_by_transformers(tmp_path / "it.gguf").eval()
    with torch.no_grad():
        found = again(torch.from_numpy(IDS)[None]).logits[0].numpy()
    assert relative(found, program.run([IDS])) < 1e-5
    assert relative(logits(tmp_path / "it.gguf"), program.run([IDS])) < 1e-5


def test_a_window_travels_and_llama_cpp_has_none(tmp_path, tokenizer):
    program = program_of(drawn("mistral"), tokenizer)
    assert "llama.cpp knows no window of 7 in files of llama" in export_gguf(program, tmp_path / "it.gguf")
    assert relative(logits(tmp_path / "it.gguf"), program.run([IDS])) < 1e-5


def test_blocks_that_no_scale_multiplies_are_widened_and_that_is_said(tmp_path, tokenizer):
    """Laws moved the factor of scores, 1 over the root of 24 columns, into the product of queries."""
    sizes = dict(hidden_size=96, intermediate_size=64, num_attention_heads=4)
    program = stored_as(program_of(drawn("llama", **sizes), tokenizer), "q8_0")
    words = export_gguf(program, tmp_path / "it.gguf")
    assert "2 tensors in F32, the first layers.0.self_attn.q_proj.weight: q8_0 times 4.9, a factor of scores" in words
    assert relative(logits(tmp_path / "it.gguf"), program.exact([IDS], rounded=False)) < 1e-6


@pytest.mark.parametrize("kind", ROTATED)
def test_rotations_travel(tmp_path, tokenizer, kind):
    model = drawn("llama", rope_parameters=ROTATED[kind])
    program = program_of(model, tokenizer)
    export_gguf(program, tmp_path / "it.gguf")
    with torch.no_grad():
        wanted = model(torch.from_numpy(IDS)[None]).logits[0].numpy()
    assert relative(logits(tmp_path / "it.gguf"), wanted) < 1e-5


@pytest.mark.parametrize("number, kind", [("bf16", "BF16"), ("half", "F16")])
def test_number_types_are_written_as_they_are(tmp_path, tokenizer, number, kind):
    program = stored_as(program_of(drawn("llama"), tokenizer), number)
    export_gguf(program, tmp_path / "it.gguf")
    kinds = {name: kind for name, (kind, _) in tensors(tmp_path / "it.gguf").items()}
    assert {kinds[f"blk.{layer}.ffn_down.weight"] for layer in (0, 1)} == {kind}
    assert kinds["blk.0.attn_norm.weight"] == kinds["output_norm.weight"] == "F32"
    assert relative(logits(tmp_path / "it.gguf"), program.exact([IDS], rounded=False)) < 1e-6


def test_rows_that_are_no_whole_blocks_are_widened_and_that_is_said(tmp_path, tokenizer):
    program = stored_as(
        program_of(drawn("llama"), tokenizer), "q8_0"
    )  # rows of 48, of 64 in the second product of a unit
    words = export_gguf(program, tmp_path / "it.gguf")
    assert "13 tensors in F32, the first layers.0.self_attn.q_proj.weight: q8_0 in rows of 48, which are no" in words
    kinds = {name: kind for name, (kind, _) in tensors(tmp_path / "it.gguf").items()}
    assert kinds["blk.0.attn_q.weight"] == "F32" and kinds["blk.0.ffn_down.weight"] == "Q8_0"
    assert relative(logits(tmp_path / "it.gguf"), program.exact([IDS], rounded=False)) < 1e-6


def test_a_program_that_gives_the_last_row_alone(tmp_path):
    """Its last layer attends once, and holds a weight for the last row and another for its norm."""
    checkpoint = open_model(ggufs.write(tmp_path / "small.gguf"))
    program, _ = structure(checkpoint.operator(True), *KINDS["exact"]).program(source(checkpoint))
    assert "attend_once" in {step.kernel for step in program.steps}
    export_gguf(program, tmp_path / "it.gguf")
    assert relative(logits(tmp_path / "it.gguf")[-1:], program.exact([IDS], rounded=False)) < 1e-6


@pytest.mark.parametrize("level", [dict(units=0.5), dict(heads=0.5)])
def test_fewer_units_and_heads(tmp_path, tokenizer, level):
    from rewrites.approximate.removing import Level

    program = smaller("llama", Level(**level)).replace(tokenizer=tokenizer)
    export_gguf(program, tmp_path / "it.gguf")
    assert relative(logits(tmp_path / "it.gguf"), program.run([IDS])) < 1e-5


def without_head(program):
    checkpointless = {name: value for name, value in program.meta.items() if name != "tokenizer"}
    return type(program)(program.steps, program.constants, program.outputs, checkpointless)


REFUSED = {
    "int8": (lambda program: stored_as(program, "int8"), r"--gguf: w\d+ is stored as int8, which is not written there"),
    "low rank": (lambda program: stored_as(program, "lowrank", lambda at: at == 1), "is stored as lowrank"),
    "no tokenizer": (without_head, "--gguf: the program has no tokenizer"),
    "no configuration": (lambda program: program.replace(config=None), "--gguf: the program names no configuration"),
    "another activation": (
        lambda program: program.replace(config={**program.meta["config"], "hidden_act": "relu"}),
        "--gguf: the activation relu is none of silu, swish, for which",
    ),
    "another rotation": (
        lambda program: program.replace(
            config={**program.meta["config"], "rope_parameters": ROTATED["yarn"] | {"beta_fast": 8.0}}
        ),
        "--gguf: beta_fast of a rotation of type yarn has no key",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_file_cannot_hold_is_refused_and_nothing_is_written(tmp_path, tokenizer, case):
    change, words = REFUSED[case]
    with pytest.raises(InputError, match=words) as caught:
        export_gguf(change(program_of(drawn("llama"), tokenizer)), tmp_path / "it.gguf")
    assert "\n" not in str(caught.value) and [*tmp_path.iterdir()] == []


def test_every_other_family_is_refused_by_name(tmp_path, tokenizer):
    program = program_of(drawn("llama"), tokenizer)
    for family in FAMILIES.keys() - ARCHITECTURES.keys() - ENCODERS.keys():
        with pytest.raises(InputError, match=rf"--gguf: a program of {family}: only llama, .* are written"):
            export_gguf(program.replace(config={**program.meta["config"], "model_type": family}), tmp_path / "it.gguf")
    with pytest.raises(InputError, match="--gguf: the program gives rows, and a GGUF file of its family scores"):
        export_gguf(program_of(drawn("llama, hidden"), tokenizer), tmp_path / "it.gguf")
    assert [*tmp_path.iterdir()] == []


def test_the_command_writes_a_file_and_replaces_none(tmp_path, tokenizer):
    program_of(drawn("llama"), tokenizer).save(tmp_path / "program")
    target = tmp_path / "it.gguf"
    done = CliRunner().invoke(app, ["export", str(tmp_path / "program"), "--gguf", str(target)])
    assert done.exit_code == 0, done.output
    assert "2 layers of 4 heads of 12 and 64 hidden units" in done.output and open_model(target).operator()
    again = CliRunner().invoke(app, ["export", str(tmp_path / "program"), "--gguf", str(target)])
    assert again.exit_code and "it exists" in f"{again.output}{again.exception}"


# ---- encoders

LETTERS = "abcdefghijklmnopqrstuvwxyz"
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, "the", "bank", "##er", "##s", "'"]


def word_pieces(**more):
    """The text of BERT's tokenizer, of a few pieces."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    pieces = [*PIECES, *(f"##{letter}" for letter in LETTERS if f"##{letter}" not in PIECES)]
    built = Tokenizer(models.WordPiece({piece: at for at, piece in enumerate(pieces)}, unk_token="[UNK]", **more))
    built.normalizer, built.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    built.add_special_tokens(PIECES[:5])
    built.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return built.to_str()


def encoder(number="dense", **more):
    """A pooled program of a BERT, its products stored in a format."""
    kept = dict(vocab_size=len(PIECES) + 30) | more
    program = exact_program(drawn("bert", **kept), pooled=True).replace(tokenizer=word_pieces())
    return program if number == "dense" else stored_as(program, number)


@pytest.mark.parametrize("number", ["dense", "half", "q8_0"])
def test_a_bert_comes_back_with_its_words_and_vectors(tmp_path, number):
    sizes = dict(hidden_size=64, intermediate_size=96, num_attention_heads=4)
    program = encoder(number, **sizes)
    told = export_gguf(program, tmp_path / "it.gguf")
    assert "2 layers of 4 heads of 16 and 96 hidden units" in told and "off by" in told
    kinds = {name: kind for name, (kind, _) in tensors(tmp_path / "it.gguf").items()}
    assert kinds["blk.0.attn_q.weight"] == {"dense": "F32", "half": "F16", "q8_0": "Q8_0"}[number]
    assert kinds["position_embd.weight"] == kinds["token_types.weight"] == kinds["blk.1.attn_q.bias"] == "F32"
    read = open_model(tmp_path / "it.gguf")
    texts = ["the banks", "a banker's bank", "zebra"]
    batch = read.tokenizer().encode(texts)
    assert batch.tokens.tolist() == program.tokenizer.encode(texts).tokens.tolist()
    assert relative(dense(read.operator(True), batch), program.exact(batch, rounded=False)) < 1e-6
    pooling = read.pooling()
    assert (pooling.modes, pooling.normalise) == (("mean",), True)
    fields = gguf.GGUFReader(tmp_path / "it.gguf").fields
    assert fields["general.architecture"].contents() == "bert"
    words = fields["tokenizer.ggml.tokens"].contents()
    assert words[:5] == PIECES[:5] and "\u2581bank" in words and "er" in words


NOMIC = dict(vocab_size=len(PIECES) + 30, hidden_size=256, num_attention_heads=4, num_hidden_layers=2)


def nomic(room, number):
    """A file of a NomicBert in a number type, and its program."""
    model = model_of("NomicBert", NOMIC | dict(intermediate_size=96, max_position_embeddings=60))
    file, arch = room / "nomic.gguf", ENCODER_KINDS["NomicBert"]
    write(file, model, arch, arrays_of(model, arch), turned(model, "NomicBert"), number)
    read = open_model(file)
    program = searched(read.operator(True), {"config": {**read.config}, "pooling": read.pooling().described()})
    program = program.replace(tokenizer=word_pieces())
    return file, stored_as(program, "q8_0") if number == "Q8_0" else program


@pytest.mark.deep(every=3)
@pytest.mark.parametrize("number", ["Q8_0", "F16", "F32"])
def test_a_nomic_bert_comes_back_byte_for_byte(tmp_path, number):
    """Queries, keys and values in one tensor again; a table of kinds is in float32."""
    file, program = nomic(tmp_path, number)
    assert "2 layers of 4 heads of 64 and 96 hidden units" in export_gguf(program, tmp_path / "again.gguf")
    again, before = tensors(tmp_path / "again.gguf"), tensors(file)
    products = [name for name in before if name.endswith(".weight") and "norm" not in name and "blk" in name]
    same = products if number == "Q8_0" else before.keys() - {"token_types.weight"}
    assert again.keys() == before.keys() and {name for name in same if again[name] != before[name]} == set()
    assert before["blk.0.attn_qkv.weight"][0] == number and again["token_types.weight"][0] == "F32"
    fields = gguf.GGUFReader(tmp_path / "again.gguf").fields
    assert fields["general.architecture"].contents() == "nomic-bert"
    assert fields["nomic-bert.rope.freq_base"].contents() == 1000.0


def test_a_nomic_bert_that_no_file_holds_is_refused(tmp_path):
    _, program = nomic(tmp_path, "F32")
    config = program.meta["config"]
    rotation = dict(rope_theta=1000.0, rope_type="linear", factor=2.0)
    for change, complaint in (
        (dict(hidden_act="geglu"), "the activation geglu is not silu"),
        (dict(rope_scaling=rotation), "a rotation of type linear has no key"),
        (dict(partial_rotary_factor=0.5), "a rotation of 0.5 of a head has no key"),
    ):
        with pytest.raises(InputError, match=complaint):
            export_gguf(program.replace(config=config | change), tmp_path / "it.gguf")
    assert [file.name for file in tmp_path.iterdir()] == ["nomic.gguf"]


def test_encoders_that_no_file_holds_are_refused(tmp_path):
    program = encoder()
    for change, complaint in (
        (dict(tokenizer=None), "the program has no tokenizer"),
        (dict(tokenizer=word_pieces(max_input_chars_per_word=50)), "divides words of 50 letters"),
        (dict(pooling=Pooling(normalise=False).described()), "not of length 1"),
        (dict(pooling=Pooling(("max",)).described()), "pooling by max: GGUF files know mean"),
    ):
        with pytest.raises(InputError, match=complaint):
            export_gguf(program.replace(**change), tmp_path / "it.gguf")
    assert not [*tmp_path.iterdir()]
