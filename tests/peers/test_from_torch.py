"""Models of transformers and sentence-transformers from memory, against the directories that they save: every family,
tokenizers and pooling, programs to the bit, memory that is shared, and models that are refused."""

import gc
import sys
import tracemalloc
from importlib.util import find_spec

import checkpoints
import numpy as np
import pytest
import standin
from children import ROOT
from searched import structure

import opmatrix as om
from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from rewrites.laws import EXACT_LAWS
from rewrites.lowering.float32_range import list_arrays
from rewrites.metrics.check_table import FAILS
from rewrites.metrics.recheck import checks, of_directory
from rewrites.workload.resolve import IN_MEMORY, source

sys.path.append(str(ROOT / "benchmarks"))

import widths

torch = pytest.importorskip("torch", reason="needs peers: torch")
transformers = pytest.importorskip("transformers", reason="needs peers: transformers")

SMALL = dict(intermediate_size=48, moe_intermediate_size=24, shared_expert_intermediate_size=32)
FAMILIES = {name: family for name, family in widths.FAMILIES.items() if family.config}
SAVED = [(name, kind, "float32") for name, family in FAMILIES.items() for kind in family.saved]
SAVED += [(name, family.saved[0], number) for name, family in FAMILIES.items() for number in ("bfloat16", "float16")]
SIZES = {key: size for key, size in checkpoints.CONFIG.items() if key != "model_type"}
LLAMA = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, vocab_size=41)
LLAMA |= dict(num_key_value_heads=2, max_position_embeddings=64, bos_token_id=None, eos_token_id=None)
TOKENS = dict(pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]")
PLACES = "model", "source"  # entries of a program's meta that name its model


def drawn(kind, config, number="float32"):
    """A model of transformers with random numbers."""
    torch.manual_seed(0)
    model = getattr(transformers, kind)(config).eval()
    widths.draw(model.named_parameters())
    return model.to(getattr(torch, number))


def small_bert(kind="BertModel", **more):
    return drawn(kind, transformers.BertConfig(**SIZES | more))


def small_llama(**more):
    return drawn("LlamaForCausalLM", transformers.LlamaConfig(**LLAMA | more))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    checkpoints.write_tokenizer(file)
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(file), **TOKENS)


def without_places(meta):
    return {key: entry for key, entry in meta.items() if key not in PLACES}


def same_program(found, wanted):
    """Whether two programs have the same steps, arrays and meta, but for the names of their models."""
    arrays = dict(wanted.arrays())
    return (
        found.steps == wanted.steps
        and without_places(found.meta) == without_places(wanted.meta)
        and [name for name, _ in found.arrays()] == [*arrays]
        and all(np.array_equal(array, arrays[name]) for name, array in found.arrays())
    )


@pytest.mark.parametrize("family, kind, number", SAVED, ids=[f"{kind}, {number}" for _, kind, number in SAVED])
def test_every_family_is_read_as_from_its_files(tmp_path, family, kind, number):
    sizes = min(FAMILIES[family].sizes, key=lambda size: sum(count for count in size.values() if type(count) is int))
    sizes |= {key: size for key, size in SMALL.items() if key in sizes}
    case = widths.WidthsCase(family, sizes, 1 if "layer_types" in sizes else 2, kind, number)
    model = drawn(kind, getattr(transformers, FAMILIES[family].config)(**case.config()), number)
    model.save_pretrained(tmp_path)
    held, filed = om.from_torch(model), om.open_model(tmp_path)
    assert held.operator() == filed.operator()
    assert dict(held.config) == dict(filed.config)
    assert (held.speaks, held.architecture) == (filed.speaks, filed.architecture)


def test_numbers_in_float32_are_shared_and_others_widened():
    model = small_bert(vocab_size=80_000, hidden_size=288, intermediate_size=576)
    size = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
    held = [parameter.detach().numpy() for parameter in model.parameters()]
    operator = om.from_torch(model).operator()  # imports what the measured ones need, too
    large = [data.array for data in list_arrays(operator) if data.array.size > 1]
    assert large and all(any(np.shares_memory(array, own) for own in held) for array in large)
    del operator
    assert measure_peak(model) < 0.3 * size  # 16 MB of it are room for a file of JSON
    assert measure_peak(model.bfloat16()) < 1.4 * size  # widened once: as many bytes as before


def measure_peak(model):
    """The most bytes of numpy's and of Python's while a model is opened and its operator is built."""
    gc.collect()
    tracemalloc.start()
    try:
        om.from_torch(model).operator()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_the_directory_of_small_files_goes_with_the_model():
    checkpoint = om.from_torch(small_bert())
    directory = checkpoint.directory
    assert {file.name for file in directory.iterdir()} == {"config.json"}
    del checkpoint
    gc.collect()
    assert not directory.parent.exists()


@pytest.mark.parametrize("make", [small_bert, small_llama, lambda: small_llama(tie_word_embeddings=True)])
def test_exact_programs_are_those_of_the_files_to_the_bit(tmp_path, make):
    model, batch = make(), Batch([range(2, 9), [5], range(30)] if make is not small_bert else [range(2, 9), [5]])
    model.save_pretrained(tmp_path)
    opened = om.open_model(model), om.open_model(tmp_path)
    held, filed = (structure(one.operator(), EXACT_LAWS, batch=batch).program({})[0] for one in opened)
    assert held.hash == filed.hash and same_program(held, filed)


EXACT = dict(error=0, machine=standin.machine(), rounds=1, leave_out=standin.EVERY_LAW)


@pytest.mark.parametrize("make", [small_bert, small_llama], ids=["bert", "llama"])
def test_a_model_is_optimized_as_its_files_are(tmp_path, laws_known, tokenizer, make):
    model = make()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    held = om.optimize(om.from_torch(model, tokenizer), tokens=8, **EXACT).points[0].program
    filed = om.optimize(str(tmp_path), tokens=8, **EXACT).points[0].program
    assert same_program(held, without_certificate(held, filed))
    assert held.meta["source"].startswith(IN_MEMORY) and held.meta["model"] == type(model).__name__


@pytest.mark.deep
def test_a_program_of_a_model_in_memory_says_what_checks_of_it_need(tmp_path, laws_known, tokenizer):
    model = small_bert()
    program = om.optimize(om.from_torch(model, tokenizer), tokens=8, **EXACT).points[0].program
    program.save(tmp_path / "program")
    alone = {check.what: check.allowed for check in of_directory(tmp_path / "program")}
    needed = alone["error against the model"]
    assert "--model DIR, with model.save_pretrained(DIR)" in needed and program.meta["source"] in needed
    beside = [*checks(program, om.open_model(model).operator(program.pooled))]
    assert beside and not [check for check in beside if check.verdict == FAILS]


def without_certificate(like, program):
    """The program with the certificate of another, whose figures are of its own run."""
    return program.replace(**program.meta | {"certificate": like.meta["certificate"]})


def test_a_changed_weight_is_another_model():
    model = small_bert()
    before = source(om.from_torch(model))["source"]
    assert source(om.from_torch(model))["source"] == before
    with torch.no_grad():
        model.encoder.layer[0].output.dense.bias[3] += 1
    assert source(om.from_torch(model))["source"] != before


# ---- sentence-transformers


@pytest.fixture
def sentence_model(tmp_path, tokenizer):
    """A SentenceTransformer of all modules, with prompts and a length of its own."""
    if not find_spec("sentence_transformers"):
        pytest.skip("needs peers: sentence-transformers")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

    small_bert().save_pretrained(tmp_path / "bert")
    tokenizer.save_pretrained(tmp_path / "bert")
    modules = [Transformer(str(tmp_path / "bert"), max_seq_length=12), Pooling(24, "cls"), Dense(24, 16), Normalize()]
    prompts = {"query": "the bank ", "text": ""}
    return SentenceTransformer(modules=modules, device="cpu", prompts=prompts, default_prompt_name="query")


def test_a_sentence_transformer_brings_all_that_its_files_say(tmp_path, sentence_model):
    parts = dict(sentence_model.named_modules())
    held = om.from_torch(sentence_model)
    sentence_model.save(str(tmp_path / "saved"))
    filed = om.open_model(tmp_path / "saved")
    assert held.operator(pooled=True) == filed.operator(pooled=True)
    assert without_places(source(held)) == without_places(source(filed))
    pooling = held.pooling()
    assert (pooling.max_seq_length, pooling.prompt, pooling.layers) == (12, "the bank ", ("2_Dense",))
    assert not [*held.directory.glob("model*.safetensors")]
    assert dict(sentence_model.named_modules()) == parts  # saved by a copy: it has its network yet


def test_a_sentence_transformer_is_optimized_and_embeds(sentence_model, laws_known):
    texts = ["the bank", "The River runs dry.", "rivers runs dry ? " * 3]
    program = om.optimize(sentence_model, tokens=8, **EXACT).points[0].program
    np.testing.assert_allclose(program.embed(texts), sentence_model.encode(texts), atol=1e-5)


@pytest.mark.parametrize(
    "encoder, kind", [("CrossEncoder", "BertForSequenceClassification"), ("SparseEncoder", "BertForMaskedLM")]
)
def test_other_encoders_are_opened_as_their_files(tmp_path, tokenizer, encoder, kind):
    peers = pytest.importorskip("sentence_transformers", reason="needs peers: sentence-transformers")
    small_bert(kind, num_labels=1).save_pretrained(tmp_path / "bert")
    tokenizer.save_pretrained(tmp_path / "bert")
    model = getattr(peers, encoder)(str(tmp_path / "bert"), device="cpu")
    held = om.from_torch(model)
    model.save(str(tmp_path / "saved"))
    filed = om.open_model(tmp_path / "saved")
    assert held.operator(pooled=True) == filed.operator(pooled=True)
    assert held.scoring == filed.scoring


# ---- what is refused


class OwnBert(transformers.BertModel):
    """A class that no family is of."""


class OwnNorm(torch.nn.LayerNorm):
    """A part of a user's own."""


def hooked():
    model = small_bert()
    model.encoder.layer[1].register_forward_hook(lambda module, args, output: output)
    return model


def prepared():
    model = small_bert()
    model.embeddings.register_forward_pre_hook(lambda module, args: args)
    return model


def replaced():
    model = small_bert()
    model.encoder.layer[0].forward = model.encoder.layer[1].forward
    return model


def altered():
    model = small_bert()
    model.embeddings.LayerNorm = OwnNorm(24)
    return model


def quantised():
    from torch.ao.quantization import quantize_dynamic

    return quantize_dynamic(small_bert(), {torch.nn.Linear})


def meta():
    with torch.device("meta"):
        return transformers.BertModel(transformers.BertConfig(**SIZES))


def not_finite():
    model = small_bert()
    with torch.no_grad():
        model.embeddings.LayerNorm.bias[2] = float("nan")
    return model


def vision():
    return transformers.ViTModel(transformers.ViTConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2))


def complex_numbers():
    model = small_bert()
    model.register_buffer("beside", torch.zeros(2, dtype=torch.complex64))
    return model


REFUSED = {
    "a plain module": (lambda: torch.nn.Linear(3, 4), r"Linear: a module of torch\.nn.*, no model of transformers"),
    "a subclass": (lambda: OwnBert(transformers.BertConfig(**SIZES)), "OwnBert is a OwnBert of .*not known here"),
    "a part of another class": (altered, r"'embeddings\.LayerNorm' is a OwnNorm of .*not known here"),
    "a hook": (hooked, r"'encoder\.layer\.1' has the forward hook"),
    "a hook before": (prepared, "'embeddings' has the forward hook"),
    "a forward of its own": (replaced, r"'encoder\.layer\.0' has a forward of its own"),
    "quantised": (quantised, "is quantised: give the model in floating point"),
    "the meta device": (meta, "is on the meta device, which has no numbers"),
    "numbers that are not finite": (not_finite, r"BertModel in memory: tensor 'embeddings\.LayerNorm\.bias' has nan"),
    "another family": (vision, r"model_type is 'vit'"),
    "complex numbers": (complex_numbers, r"'beside' is of torch\.complex64"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", REFUSED)
def test_what_files_could_not_say_is_refused_in_a_line(case):
    make, words = REFUSED[case]
    with pytest.raises(InputError, match=words) as caught:
        om.from_torch(make()).operator()
    assert "\n" not in str(caught.value)


def test_hooks_by_which_transformers_records_are_no_refusal():
    model = small_bert()
    rows = model(torch.arange(5)[None], output_hidden_states=True).hidden_states
    assert len(rows) == 3 and om.from_torch(model).operator() == om.from_torch(small_bert()).operator()


def test_texts_need_a_tokenizer(tokenizer):
    with pytest.raises(InputError, match=r"brings no tokenizer: give om\.from_torch\(model, tokenizer\)"):
        om.optimize(small_bert())
    assert om.from_torch(small_bert(), tokenizer).tokenizer().encode("the bank").rows == 4


def test_a_full_disk_is_told(monkeypatch):
    def fail(*args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(transformers.BertConfig, "save_pretrained", fail)
    with pytest.raises(InputError, match=r"BertModel: its configuration cannot be written to .*No space left"):
        om.from_torch(small_bert())
