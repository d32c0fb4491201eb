"""BERT and its kin as GGUF files: random models of transformers, written by the `gguf` package under llama.cpp's names,
beside the directories that transformers saves of them."""

import json
import sys

import encoders
import numpy as np
import pytest
from children import ROOT
from test_encoders import FIRST, LENGTHS, ODD, REAL, SMALL, WORDS, padded, randomise, relative
from test_hostile_texts import TEXTS, hostile_texts

sys.path.append(str(ROOT / "benchmarks"))

from lib import saved_models

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.oracles import dense
from opmatrix.files.checkpoint import open_model
from opmatrix.inference.text import LineReading

gguf = pytest.importorskip("gguf", reason="needs peers: gguf")
torch = pytest.importorskip("torch", reason="needs peers: torch")
transformers = pytest.importorskip("transformers", reason="needs peers: transformers")

Kinds, Pools = gguf.TokenType, gguf.PoolingType
KINDS = {"Bert": gguf.MODEL_ARCH.BERT, "NomicBert": gguf.MODEL_ARCH.NOMIC_BERT}
OTHERS = {  # names that transformers saves -> those of the published files, which the package knows
    "self_attn.q_proj": "attn.Wqkv",
    "self_attn.o_proj": "attn.out_proj",
    "mlp.up_proj": "mlp.fc11",
    "mlp.gate_proj": "mlp.fc12",
    "mlp.down_proj": "mlp.fc2",
}
SIZES = {"small": SMALL, "odd": ODD, "real": REAL}
BLOCKS = ODD | dict(hidden_size=64, num_attention_heads=4, intermediate_size=96)


@pytest.fixture(autouse=True)
def programs_here(tmp_path, monkeypatch):
    """Programs are searched for with the prices of a stand-in machine, as a calibration takes most of a minute."""
    encoders.keep_in(monkeypatch, tmp_path / "cache")


def model_of(stem, size):
    torch.manual_seed(len(stem))
    config = getattr(transformers, f"{stem}Config")(**size)
    config._attn_implementation = "eager"
    return randomise(getattr(transformers, f"{stem}Model")(config, add_pooling_layer=False).eval())


def phantom(piece):
    """A word piece as llama.cpp's converter spells it."""
    if piece.startswith("[") and piece.endswith("]"):
        return piece
    return piece[2:] if piece.startswith("##") else "\u2581" + piece


def write(file, model, arch, tensors, keys=None, number="F32"):
    """A file of tensors; `keys` are added to those of every encoder, None takes one away."""
    config, writer = model.config, gguf.GGUFWriter(file, gguf.MODEL_ARCH_NAMES[arch])
    said = dict(
        block_count=config.num_hidden_layers,
        context_length=config.max_position_embeddings,
        embedding_length=config.hidden_size,
        feed_forward_length=config.intermediate_size,
        head_count=config.num_attention_heads,
        layer_norm_eps=config.layer_norm_eps,
        causal_attention=False,
        pooling_type=Pools.MEAN,
    )
    for key, value in (said | (keys or {})).items():
        if value is not None:
            getattr(writer, f"add_{key}")(value)
    kind, widened = gguf.GGMLQuantizationType[number], {}
    for name, array in tensors.items():
        packs = array.ndim > 1 and number != "F32" and array.shape[1] % 32 == 0
        packed = gguf.quants.quantize(array, kind) if packs else array
        widened[name] = gguf.quants.dequantize(packed, kind) if packs else array
        writer.add_tensor(name, packed, raw_dtype=kind if packs else None)
    for finish in ("write_header_to_file", "write_kv_data_to_file", "write_tensors_to_file", "close"):
        getattr(writer, finish)()
    return widened


def arrays_of(model, arch, part=""):
    """The tensors of a model by the names of GGUF files, queries, keys and values of a NomicBert in one. `part`: the
    beginning of names in the whole model."""
    names, tensors = gguf.get_tensor_name_map(arch, 9), {}
    for name, weights in model.named_parameters(part.removesuffix(".")):
        stem, _, end = name.rpartition(".")
        for saved, published in OTHERS.items():
            stem = stem.replace(saved, published)
        if stem.endswith(("k_proj", "v_proj")):
            continue
        stem = stem.replace("post_attention_layernorm", "norm1").replace("post_mlp_layernorm", "norm2")
        stem = stem.replace("layers.", "encoder.layers.") if stem.startswith("layers.") else stem
        if stem.endswith("Wqkv"):
            layer = model.get_submodule(name.partition(".self_attn")[0])
            parts = (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj)
            weights = torch.cat([part.weight for part in parts])
        called = names.get_name(stem)
        assert called is not None, name
        tensors[f"{called}.{end}"] = weights.detach().numpy().copy()
    return tensors


def words_of(tokenizer, model):
    """The keys of a tokenizer by llama.cpp's names."""
    marks = set(tokenizer.all_special_tokens)
    placed = {at: word for word, at in tokenizer.get_vocab().items()}
    listed = [placed.get(at, f"[PAD{at}]") for at in range(model.config.vocab_size)]
    kinds = [Kinds.CONTROL if word in marks else Kinds.NORMAL for word in listed]
    pieces = tokenizer.backend_tokenizer.model.__class__.__name__ == "WordPiece"
    keys = dict(
        tokenizer_model="bert" if pieces else "t5",
        token_list=[*map(phantom, listed)] if pieces else listed,
        token_types=kinds,
        unk_token_id=tokenizer.unk_token_id,
    )
    if pieces:
        return keys | dict(sep_token_id=tokenizer.sep_token_id)
    words = dict(json.loads(tokenizer.backend_tokenizer.to_str())["model"]["vocab"])
    scores = [-1e4 if word in marks else float(words.get(word, -1e4)) for word in listed]
    ends = dict(bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id)
    return keys | ends | dict(token_scores=scores, add_space_prefix=True)


def turned(model, stem):
    return {} if stem == "Bert" else dict(rope_freq_base=model.config.rope_parameters["rope_theta"])


@pytest.mark.deep(every=3)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("stem", KINDS)
def test_rows_are_those_of_transformers(rng, tmp_path, stem, size):
    model, file = model_of(stem, SIZES[size]), tmp_path / "it.gguf"
    write(file, model, KINDS[stem], arrays_of(model, KINDS[stem]), turned(model, stem))
    batch = Batch([rng.integers(FIRST, WORDS, length) for length in LENGTHS])
    assert relative(dense(open_model(file).operator(), batch), padded(model.double(), batch)) < 1e-5


@pytest.mark.parametrize("number", ["F16", "Q8_0"])
@pytest.mark.parametrize("stem", KINDS)
def test_rows_are_those_of_the_numbers_that_a_file_holds(rng, tmp_path, stem, number):
    """To the bit those of a file of the same numbers in float32."""
    model, arch = model_of(stem, BLOCKS), KINDS[stem]
    packed, plain = tmp_path / "packed.gguf", tmp_path / "plain.gguf"
    widened = write(packed, model, arch, arrays_of(model, arch), turned(model, stem), number)
    write(plain, model, arch, widened, turned(model, stem))
    batch = Batch([rng.integers(FIRST, WORDS, length) for length in LENGTHS])
    rows = dense(open_model(packed).operator(), batch)
    assert np.array_equal(rows, dense(open_model(plain).operator(), batch))


POOLINGS = {Pools.MEAN: "mean", Pools.CLS: "cls", Pools.LAST: "lasttoken", Pools.NONE: "mean", None: "mean"}


@pytest.mark.parametrize("number", POOLINGS)
def test_poolings_are_those_that_a_file_declares(tmp_path, number):
    model, file = model_of("Bert", ODD), tmp_path / "it.gguf"
    write(file, model, KINDS["Bert"], arrays_of(model, KINDS["Bert"]), dict(pooling_type=number))
    pooling = open_model(file).pooling()
    assert (pooling.modes, pooling.normalise, pooling.max_seq_length) == ((POOLINGS[number],), True, 60)


@pytest.mark.parametrize("make", [saved_models.bert_words, saved_models.xlm_words])
def test_tokens_are_those_of_transformers(tmp_path, make):
    tokenizer = make().train_new_from_iterator(hostile_texts(0)[7:400], 4000)
    torch.manual_seed(0)
    config = transformers.BertConfig(**ODD | dict(vocab_size=len(tokenizer) + 3, max_position_embeddings=200_000))
    model, file = transformers.BertModel(config, add_pooling_layer=False), tmp_path / "it.gguf"
    write(file, model, KINDS["Bert"], arrays_of(model, KINDS["Bert"]), words_of(tokenizer, model))
    texts, ours = hostile_texts(1), open_model(file).tokenizer()
    wanted = tokenizer(texts)["input_ids"]
    rows = ours.rows(texts, reading := LineReading(skip_bad=True))
    read = [at for at in range(TEXTS) if at not in {*reading.skipped}]
    assert len(read) > 0.99 * TEXTS
    assert [rows[at] for at in read] == [wanted[at] for at in read]
    pair = tokenizer("the bank", "of a river")
    assert ours.tokenizer.encode("the bank", "of a river").ids == pair["input_ids"]


@pytest.mark.parametrize("capitals, words", [(True, ["Bank"]), (False, ["bank"])])
def test_capitals_are_kept_where_the_vocabulary_has_some(tmp_path, capitals, words):
    listed = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "bank", *["Bank"] * capitals]
    tokenizer = transformers.BertTokenizer(vocab={word: at for at, word in enumerate(listed)}, do_lower_case=False)
    model, file = model_of("Bert", ODD), tmp_path / "it.gguf"
    write(file, model, KINDS["Bert"], arrays_of(model, KINDS["Bert"]), words_of(tokenizer, model))
    assert open_model(file).tokenizer().tokenizer.encode("Bank", add_special_tokens=False).tokens == words


REFUSED = {
    "a head that is missing": (dict(pooling_type=Pools.RANK), r"bert\.pooling_type is 4: a head that scores texts"),
    "no pooling of ours": (dict(pooling_type=7), r"bert\.pooling_type is 7: supported are 0 to 4"),
    "one side": (dict(causal_attention=True), r"bert\.attention\.causal is True: it must be False"),
    "groups": (dict(head_count_kv=1), r"bert\.attention\.head_count_kv is 1: it must be 5"),
    "rotations": (dict(rope_freq_base=1e4), r"bert\.rope\.freq_base is 10000\.0: the model would be computed without"),
    "no eps": (dict(layer_norm_eps=None), "'layer_norm_eps' is missing"),
    "no length": (dict(context_length=None), "'max_position_embeddings' is missing"),
    "a length in words": (dict(context_length=2**31), "max_position_embeddings is 2147483648"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_family_computes_is_refused(tmp_path, case):
    keys, words = REFUSED[case]
    model, file = model_of("Bert", ODD), tmp_path / "it.gguf"
    pooling = keys.get("pooling_type")
    if pooling == 7:
        keys = dict(pooling_type=type("Other", (), {"value": 7}))
    write(file, model, KINDS["Bert"], arrays_of(model, KINDS["Bert"]), keys)
    with pytest.raises(InputError, match=rf"^{file}: .*{words}") as caught:
        open_model(file).operator()
    assert "\n" not in str(caught.value)


def test_a_file_without_kinds_of_tokens_is_refused(tmp_path):
    model, file = model_of("Bert", ODD), tmp_path / "it.gguf"
    tensors = arrays_of(model, KINDS["Bert"])
    del tensors["token_types.weight"]
    write(file, model, KINDS["Bert"], tensors)
    with pytest.raises(InputError, match=r"tensor 'token_types.weight' is missing"):
        open_model(file)


def test_sentence_transformer_opens_a_file(tmp_path):
    """Embeddings equal those of the directory with the same pooling."""
    import opmatrix as om

    tokenizer = saved_models.bert_words()
    torch.manual_seed(0)
    config = transformers.BertConfig(**ODD | dict(vocab_size=len(tokenizer)))
    model, file = randomise(transformers.BertModel(config, add_pooling_layer=False)), tmp_path / "it.gguf"
    keys = words_of(tokenizer, model) | dict(pooling_type=Pools.CLS)
    write(file, model, KINDS["Bert"], arrays_of(model, KINDS["Bert"]), keys)
    texts = ["the bank of a river", "a bank", "runs dry"]
    batch = Batch([tokenizer(text)["input_ids"] for text in texts])
    rows = padded(model.eval().double(), batch)[batch.starts[:-1]]
    wanted = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    assert relative(om.SentenceTransformer(str(file)).encode(texts), wanted) < 1e-5


def reranker(file, labels=1, keys=None):
    """A random BERT that scores pairs, as a file, with its tokenizer; llama.cpp calls the head's products cls and
    cls.output."""
    tokenizer = saved_models.bert_words()
    torch.manual_seed(0)
    config = transformers.BertConfig(**ODD | dict(vocab_size=len(tokenizer), num_labels=labels))
    model = randomise(transformers.BertForSequenceClassification(config)).eval()
    tensors = arrays_of(model.bert.encoder, KINDS["Bert"], "encoder.") | arrays_of(
        model.bert.embeddings, KINDS["Bert"], "embeddings."
    )
    for part, linear in (("cls", model.bert.pooler.dense), ("cls.output", model.classifier)):
        tensors |= {f"{part}.{end}": getattr(linear, end).detach().numpy() for end in ("weight", "bias")}
    said = words_of(tokenizer, model) | dict(pooling_type=Pools.RANK) | (keys or {})
    write(file, model, KINDS["Bert"], tensors, said)
    return tokenizer, model


@pytest.mark.parametrize("labels", [1, 3])
def test_pairs_are_scored_as_transformers_scores_them(tmp_path, labels):
    import opmatrix as om

    file, pairs = tmp_path / "it.gguf", [("the bank", "of a river"), ("a bank", "runs dry"), ("a", "the")]
    named = [f"grade {at}" for at in range(labels)]
    tokenizer, model = reranker(file, labels, dict(classifier_output_labels=named) if labels > 1 else None)
    encoder = om.CrossEncoder(str(file))
    wanted = [model.double()(**tokenizer(*pair, return_tensors="pt")).logits[0].detach().numpy() for pair in pairs]
    scores = np.array(wanted) if labels > 1 else 1 / (1 + np.exp(-np.array(wanted)[:, 0]))
    assert encoder.num_labels == labels and encoder.scoring.labels == (tuple(named) if labels > 1 else ("LABEL_0",))
    assert relative(encoder.predict(pairs), scores) < 1e-5


def test_labels_that_do_not_fit_are_refused(tmp_path):
    reranker(tmp_path / "it.gguf", 3, dict(classifier_output_labels=["one", "two"]))
    with pytest.raises(InputError, match=r"bert\.classifier\.output_labels is \['one', 'two'\]: .* has 3 labels"):
        open_model(tmp_path / "it.gguf")
