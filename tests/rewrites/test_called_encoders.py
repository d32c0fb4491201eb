"""Encoders by the calls of sentence-transformers: programs that are kept, prompts, shorter rows, rows in bytes and
bits, similarities, ranks; layers behind pooled rows; what is refused, in a line."""

import json
import subprocess
import sys

import checkpoints
import encoders
import numpy as np
import pytest
from children import ROOT

import opmatrix as om
from formats.core.errors import InputError
from opmatrix.files.checkpoint import open_model
from opmatrix.inference.pooling import normalise_rows
from rewrites.encoders import kept_programs, searched
from rewrites.encoders.embedding_forms import PRECISIONS, quantise

TEXTS = ["the bank of a river", "dry", "", "The River runs dry ? " * 9, "a bank runs"]
PROMPTS = {"query": "the bank: ", "document": "", "short": "a "}
SENTENCES, POOL = "config_sentence_transformers.json", "1_Pooling/config.json"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("encoders")


@pytest.fixture(scope="module", autouse=True)
def kept(place):
    """Programs are kept beside the checkpoints of this module, and searched for by a stand-in machine."""
    with pytest.MonkeyPatch.context() as patch:
        encoders.keep_in(patch, place / "cache")
        yield


@pytest.fixture(scope="module")
def embedder(place, kept):
    files = {SENTENCES: {"prompts": PROMPTS, "similarity_fn_name": "dot"}}
    return om.SentenceTransformer(str(checkpoints.pool(checkpoints.write(place / "embedder"), "mean", False, files)))


@pytest.fixture(scope="module")
def reranker(place, kept):
    return om.CrossEncoder(str(checkpoints.classify(place / "reranker", 1)))


@pytest.fixture(scope="module")
def classifier(place, kept):
    return om.CrossEncoder(str(checkpoints.classify(place / "classifier", 3)))


# ---- programs by their names


def test_a_program_is_searched_for_once_and_again_for_other_files(place, embedder, monkeypatch):
    name, searches = str(place / "embedder"), []
    monkeypatch.setattr(searched, "find_exact", lambda checkpoint: searches.append(1) or embedder.program)
    again = om.SentenceTransformer(name)
    assert not searches and again.program.hash == embedder.program.hash
    np.testing.assert_array_equal(again.encode(TEXTS), embedder.encode(TEXTS))
    (place / "embedder" / "other.txt").write_text("a file more")
    om.SentenceTransformer(name)
    assert searches == [1]
    (place / "embedder" / "other.txt").unlink()


def test_a_kept_program_that_cannot_be_read_is_searched_for_again(place, embedder, monkeypatch):
    checkpoint, searches = kept_programs.as_encoder(open_model(str(place / "embedder"))), []
    file = place / "cache" / "encoders" / kept_programs.digest_checkpoint(checkpoint) / "program.json"
    file.write_text("{" + file.read_text())
    monkeypatch.setattr(searched, "find_exact", lambda checkpoint: searches.append(1) or embedder.program)
    for _ in range(2):
        again = kept_programs.open_kept(str(place / "embedder"))
        assert searches == [1] and again.hash == embedder.program.hash


def test_a_saved_directory_is_a_name_too(place, embedder, reranker):
    embedder.program.save(place / "saved")
    np.testing.assert_array_equal(om.SentenceTransformer(str(place / "saved")).encode(TEXTS), embedder.encode(TEXTS))
    reranker.program.save(place / "scores")
    pairs = [(text, "a river") for text in TEXTS]
    np.testing.assert_array_equal(om.CrossEncoder(str(place / "scores")).predict(pairs), reranker.predict(pairs))


def test_a_saved_program_encodes_without_torch_and_without_laws(place, embedder):
    embedder.program.save(place / "alone")
    script = (
        f"import sys, opmatrix as om; om.SentenceTransformer({str(place / 'alone')!r}).encode(['a', 'dry']); "
        "print([name for name in ('torch', 'rewrites.laws.law', 'rewrites.opened', 'sympy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.stdout == "[]\n", done.stderr


def test_a_cache_that_cannot_be_written_is_told_of(place, embedder, caplog):
    (place / "file").write_text("")
    kept_programs.keep_program(embedder.program, place / "file" / "encoders" / "0")
    assert "program of an encoder: not kept" in caplog.text


# ---- embeddings


def plain(embedder, texts, prompt=""):
    """The embeddings of texts, each alone."""
    return np.stack([embedder.program.embed([prompt + text], truncate=True)[0] for text in texts])


def test_texts_have_the_same_bits_alone_and_in_any_batch(embedder):
    alone = plain(embedder, TEXTS)
    for batch_size in (1, 2, 32):
        np.testing.assert_array_equal(embedder.encode(TEXTS, batch_size=batch_size), alone)
    np.testing.assert_array_equal(embedder.encode(TEXTS[0]), alone[0])
    np.testing.assert_array_equal(embedder.encode(np.array(TEXTS)), alone)
    assert embedder.encode([]).shape == (0,)


@pytest.mark.parametrize("name", PROMPTS)
def test_a_prompt_comes_before_every_text(embedder, name):
    wanted = plain(embedder, TEXTS, PROMPTS[name])
    np.testing.assert_array_equal(embedder.encode(TEXTS, prompt_name=name), wanted)
    np.testing.assert_array_equal(embedder.encode(TEXTS, prompt=PROMPTS[name]), wanted)
    np.testing.assert_array_equal(embedder.program.embed(TEXTS, truncate=True, prompt=name), wanted)


def test_queries_and_documents_have_their_prompts(embedder, monkeypatch):
    np.testing.assert_array_equal(embedder.encode_query(TEXTS), plain(embedder, TEXTS, PROMPTS["query"]))
    np.testing.assert_array_equal(embedder.encode_document(TEXTS), plain(embedder, TEXTS))
    np.testing.assert_array_equal(embedder.encode_query(TEXTS, prompt="dry "), plain(embedder, TEXTS, "dry "))
    monkeypatch.setattr(embedder, "prompts", {"passage": "a "})
    np.testing.assert_array_equal(embedder.encode_document(TEXTS), plain(embedder, TEXTS, "a "))
    monkeypatch.setattr(embedder, "default_prompt_name", "passage")
    np.testing.assert_array_equal(embedder.encode(TEXTS), plain(embedder, TEXTS, "a "))


def test_rows_are_cut_then_of_length_one(embedder):
    whole = embedder.encode(TEXTS)
    short = embedder.encode(TEXTS, truncate_dim=5, normalize_embeddings=True)
    np.testing.assert_allclose(short, normalise_rows(whole[:, :5].astype(float)), atol=1e-7)
    with embedder.truncate_embeddings(3):
        assert embedder.encode(TEXTS).shape == (5, 3) and embedder.get_embedding_dimension() == 3
    assert embedder.get_sentence_embedding_dimension() == 24


def test_texts_are_truncated_to_the_length_that_is_set(embedder, monkeypatch):
    assert embedder.max_seq_length == 20
    monkeypatch.setattr(embedder, "max_seq_length", 5)
    np.testing.assert_array_equal(embedder.encode([TEXTS[3]]), plain(embedder, ["The River runs"]))


def test_numbers_in_bytes_are_steps_of_columns():
    vectors = np.array([[0, -1, -10], [255, -1, 500], [128, -1, 245]], np.float32)
    assert quantise(vectors, "uint8").tolist() == [[0, 0, 0], [255, 0, 255], [128, 0, 127]]
    assert quantise(vectors, "int8").tolist() == [[-128, -128, -128], [127, -128, 127], [0, -128, -1]]
    assert quantise(vectors, "ubinary").tolist() == [[0], [0b10100000], [0b10100000]]
    assert quantise(vectors, "binary").tolist() == [[-128], [32], [32]]
    assert {name: quantise(vectors, name).dtype.name for name in PRECISIONS} == {
        "float32": "float32",
        "int8": "int8",
        "uint8": "uint8",
        "binary": "int8",
        "ubinary": "uint8",
    }


BY_HAND = {
    "cosine": lambda a, b: a @ b / np.sqrt((a @ a) * (b @ b)),
    "dot": lambda a, b: a @ b,
    "euclidean": lambda a, b: -np.sqrt(((a - b) ** 2).sum()),
    "manhattan": lambda a, b: -abs(a - b).sum(),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_similarities_are_their_definitions(embedder, monkeypatch, name):
    monkeypatch.setattr(embedder, "similarity_fn_name", name)
    vectors = embedder.encode(TEXTS)
    wanted = np.array([[BY_HAND[name](a.astype(float), b.astype(float)) for b in vectors[:2]] for a in vectors])
    np.testing.assert_allclose(np.asarray(embedder.similarity(vectors, vectors[:2])), wanted, rtol=1e-5, atol=1e-5)
    paired = np.asarray(embedder.similarity_pairwise(vectors[:2], list(vectors[3:5])))
    np.testing.assert_allclose(paired, [BY_HAND[name](vectors[k], vectors[k + 3]) for k in (0, 1)], rtol=1e-4)


def test_the_similarity_is_the_declared_one(embedder):
    assert embedder.similarity_fn_name == "dot"
    vectors = embedder.encode(TEXTS)
    np.testing.assert_allclose(np.asarray(embedder.similarity(vectors, vectors[0])), vectors @ vectors[:1].T, atol=1e-5)


def test_a_checkpoint_without_files_about_embeddings_gives_means_as_they_are(place):
    bare = om.SentenceTransformer(str(checkpoints.write(place / "bare", seed=3)))
    rows = bare.program.pooling
    assert rows.modes == ("mean",) and not rows.normalise
    assert not np.allclose(np.linalg.norm(bare.encode(TEXTS), axis=1), 1)


# ---- layers behind pooled rows


def test_dense_layers_are_products_with_activations(place):
    home = checkpoints.pool(checkpoints.write(place / "dense"), ["cls", "max"], normalise=True)
    base = om.SentenceTransformer(str(checkpoints.pool(checkpoints.write(place / "pooled"), ["cls", "max"], False)))
    first = encoders.dense(home, 9, 48)
    second = encoders.dense(home, 5, 9, activation="torch.nn.modules.linear.Identity", bias=False, residual=True)
    x = base.encode(TEXTS).astype(float)
    x = np.tanh(x @ first["linear.weight"].T + first["linear.bias"])
    x = x @ second["linear.weight"].T + x @ second["residual.weight"].T
    found = om.SentenceTransformer(str(home))
    np.testing.assert_allclose(found.encode(TEXTS), normalise_rows(x), atol=1e-5)
    assert found.get_embedding_dimension() == 5


DENSE = "2_Dense7/config.json"
WRONG_DENSE = [
    ({DENSE: {"in_features": 23}}, r"tensor 'linear\.weight' is 7 × 24 but config\.json leads to 7 × 23"),
    ({DENSE: {"out_features": 0}}, "out_features is 0"),
    ({DENSE: {"activation_function": "os.system"}}, "'os.system': it is named, and never run"),
    ({DENSE: {"module_input_name": "token_embeddings"}}, "module_input_name is 'token_embeddings'"),
    ({DENSE: {"rank": 3}}, "rank is 3: it is not supported"),
    ({DENSE: {"use_residual": True}}, r"tensor 'residual\.weight' is missing"),
    ({POOL: {"include_prompt": False}}, "a layer behind rows that leave a prompt out"),
]


@pytest.mark.parametrize("files, words", WRONG_DENSE)
def test_a_dense_layer_that_is_not_known_is_refused_by_its_entry(tmp_path, files, words):
    home = checkpoints.pool(checkpoints.write(tmp_path / "model"))
    encoders.dense(home, 7, 24)
    for name, entries in files.items():
        (home / name).write_text(json.dumps(json.loads((home / name).read_text()) | entries))
    with pytest.raises(InputError, match=words) as error:
        om.SentenceTransformer(str(home))
    assert "\n" not in str(error.value)


def test_weights_of_a_layer_that_are_pickled_are_not_read(tmp_path):
    home = checkpoints.pool(checkpoints.write(tmp_path / "model"))
    encoders.dense(home, 7, 24)
    (home / "2_Dense7" / "model.safetensors").rename(home / "2_Dense7" / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"pytorch_model\.bin.*no pickle is read"):
        om.SentenceTransformer(str(home))


def test_rows_without_the_layers_behind_them_are_not_embedded(tmp_path):
    home = checkpoints.pool(checkpoints.write(tmp_path / "model"))
    encoders.dense(home, 7, 24)
    with pytest.raises(InputError, match="2_Dense7: it comes behind the pooled rows"):
        open_model(home).pooling()(np.ones((3, 24)), np.array([0, 3]))


def test_a_checkpoint_whose_weights_are_pickled_alone_is_not_read(tmp_path):
    home = checkpoints.write(tmp_path / "model")
    (home / "model.safetensors").rename(home / "pytorch_model.bin")
    with pytest.raises(InputError, match="reading it would run code from it") as error:
        om.SentenceTransformer(str(home))
    assert "\n" not in str(error.value)


# ---- prompts that are not pooled


@pytest.mark.parametrize("mode", ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"])
def test_a_prompt_that_is_not_pooled_is_left_out_of_rows_alone(place, mode):
    files = {POOL: {"include_prompt": False}, SENTENCES: {"prompts": PROMPTS}}
    home = place / f"unprompted {mode}"
    model = om.SentenceTransformer(str(checkpoints.pool(checkpoints.write(home), mode, False, files)))
    text = "dry river"
    rows = model.program.run(model.tokenizer.encode(PROMPTS["query"] + text))
    left = 4  # [CLS], the, bank, :
    weights = {"weightedmean": np.arange(left + 1, len(rows) + 1)[:, None]}
    by_hand = {
        "cls": lambda x: x[0],
        "lasttoken": lambda x: x[-1],
        "max": lambda x: x.max(0),
        "mean": lambda x: x.mean(0),
        "mean_sqrt_len_tokens": lambda x: x.sum(0) / len(x) ** 0.5,
        "weightedmean": lambda x: (x * weights[mode]).sum(0) / weights[mode].sum(),
    }
    np.testing.assert_allclose(model.encode_query(text), by_hand[mode](rows[left:]), atol=1e-6)
    np.testing.assert_allclose(model.encode_query([text, "a"])[0], model.encode_query(text), atol=0)
    with pytest.raises(InputError, match="and the prompt, which is not pooled here, has 21 of them"):
        model.encode(text, prompt="dry " * 20)
    skipped = model.program.embed([text, "\ud800"], prompt="query", skip_bad=True)
    assert np.isnan(skipped).any(1).tolist() == [False, True]


# ---- scores


def test_scores_of_pairs_and_of_one(reranker, classifier):
    pairs = [(text, "a river") for text in TEXTS]
    for model, shape in ((reranker, (5,)), (classifier, (5, 3))):
        whole = model.predict(pairs, batch_size=2)
        assert whole.shape == shape and model.predict([]).shape == (0,)
        np.testing.assert_array_equal(whole, model.program.score(pairs).reshape(shape))
        np.testing.assert_array_equal(model.predict(pairs[1]), whole[1])
        np.testing.assert_array_equal(model.predict([*pairs[1]]), whole[1])
        np.testing.assert_array_equal(model.predict(np.array(pairs)), whole)
    shares = classifier.predict(pairs, apply_softmax=True)
    exponentials = np.exp(classifier.predict(pairs))
    np.testing.assert_allclose(shares, exponentials / exponentials.sum(1, keepdims=True), rtol=1e-5)


def test_an_activation_of_the_call_goes_before_that_of_files(reranker):
    pairs = [("the bank", "a river"), ("dry", "a")]
    raw = reranker.predict(pairs, activation_fn=lambda scores: scores)
    np.testing.assert_allclose(reranker.predict(pairs), 1 / (1 + np.exp(-raw)), rtol=1e-6)


def test_documents_are_ranked_by_their_scores(reranker):
    documents = ["a river", "dry", "the bank", "a river"]
    scores = reranker.predict([("the bank", document) for document in documents])
    ranked = reranker.rank("the bank", documents, top_k=3, return_documents=True)
    order = sorted(range(4), key=lambda at: -scores[at])[:3]
    assert [entry["corpus_id"] for entry in ranked] == order
    assert [entry["text"] for entry in ranked] == [documents[at] for at in order]
    assert [entry["score"] for entry in ranked] == [float(scores[at]) for at in order]
    assert reranker.rank("the bank", []) == [] and "text" not in reranker.rank("a", documents)[0]


# ---- what is refused


REFUSED_HERE = [
    (dict(device="cuda"), "device='cuda': programs run on this machine's CPU"),
    (dict(backend="onnx"), "backend='onnx'"),
    (dict(modules=[1]), r"modules=\[1\]"),
    (dict(trust_remote_code=True), "no code of a checkpoint is ever run"),
    (dict(model_kwargs={"dtype": "float16"}), "model_kwargs="),
    (dict(token="secret"), "set HF_TOKEN"),
    (dict(default_prompt_name="none"), "no prompt of this name: there are query"),
]


@pytest.mark.parametrize("arguments, words", REFUSED_HERE)
def test_arguments_that_mean_nothing_here_are_refused(place, embedder, arguments, words):
    with pytest.raises(InputError, match=words) as error:
        om.SentenceTransformer(str(place / "embedder"), **arguments)
    assert "\n" not in str(error.value)


CALLS = [
    (lambda m: m.encode(TEXTS, pool={}), "pool={}"),
    (lambda m: m.encode(TEXTS, device=["cpu", "cpu"]), r"device=\['cpu', 'cpu'\]"),
    (lambda m: m.encode(TEXTS, depth=3), "depth=3: it is not an argument here"),
    (lambda m: m.encode(TEXTS, prompt_name="other"), "prompt_name 'other': .* there are query, document, short"),
    (lambda m: m.program.embed(TEXTS, prompt="other"), "prompt 'other': .* there are query, document, short"),
    (lambda m: m.encode(TEXTS, prompt=5), "prompt 5: give a text"),
    (lambda m: m.encode(TEXTS, truncate_dim=25), "truncate_dim 25: embeddings have 24 columns"),
    (lambda m: m.encode(TEXTS, truncate_dim=0), "truncate_dim 0"),
    (lambda m: m.encode(TEXTS, batch_size=0), "batch_size 0"),
    (lambda m: m.encode(TEXTS, precision="int4"), "precision 'int4': .*there are float32"),
    (lambda m: m.encode(TEXTS, output_value="tokens"), "output_value 'tokens': there are sentence_embedding, token_"),
    (lambda m: m.encode(TEXTS, output_value="token_embeddings", precision="int8"), "precision='int8': rows of tokens"),
    (lambda m: m.encode(TEXTS, output_value="token_embeddings", truncate_dim=5), "truncate_dim=5: rows of tokens"),
    (lambda m: m.encode(TEXTS, output_value="token_embeddings", convert_to_tensor=True), "different numbers of tokens"),
    (lambda m: m.encode([("a", "b")]), "text 0 is .*a pair is scored by om.CrossEncoder"),
    (lambda m: m.encode(7), "inputs 7: give a text"),
    (lambda m: m.encode(["a", None]), "text 1 is None"),
    (lambda m: m.encode(["a", "\ud800"]), "text 1.*no valid Unicode"),
    (lambda m: m.similarity(np.ones((2, 3)), np.ones((2, 4))), "embeddings of 3 and of 4 columns"),
    (lambda m: setattr(m, "max_seq_length", 2), "max_seq_length 2"),
]


@pytest.mark.parametrize("call, words", CALLS)
def test_calls_that_ask_for_something_else_are_refused_in_a_line(embedder, call, words):
    with pytest.raises(InputError, match=words) as error:
        call(embedder)
    assert "\n" not in str(error.value)


def test_a_saved_program_that_pools_gives_no_rows_of_tokens(place, embedder):
    embedder.program.save(place / "pooling")
    with pytest.raises(InputError, match=r"pooling: its program pools .*--output rows") as error:
        om.SentenceTransformer(str(place / "pooling")).encode(TEXTS, output_value="token_embeddings")
    assert "\n" not in str(error.value)


SCORED = [
    (lambda m: m.predict("the bank"), "inputs 'the bank': give a pair"),
    (lambda m: m.predict(["one", "two", "three"]), "pair 0 is .*give two texts"),
    (lambda m: m.predict([("a", "b"), "c"]), "pair 1 is 'c': give two texts"),
    (lambda m: m.predict([("a", "b")], pool=[]), r"pool=\[\]"),
    (lambda m: m.rank("a", "b"), "documents 'b': give a list"),
]


@pytest.mark.parametrize("call, words", SCORED)
def test_what_is_no_pair_is_refused_in_a_line(reranker, call, words):
    with pytest.raises(InputError, match=words):
        call(reranker)


def test_a_reranker_does_not_embed_and_an_embedder_does_not_rank(place, embedder, reranker, classifier):
    with pytest.raises(InputError, match=r"it scores texts and pairs of texts: om\.CrossEncoder"):
        om.SentenceTransformer(str(place / "reranker"))
    with pytest.raises(InputError, match=r"it embeds texts and has no head that scores them: om\.SentenceTransformer"):
        om.CrossEncoder(str(place / "embedder"))
    with pytest.raises(InputError, match="rank: the model has 3 labels"):
        classifier.rank("a", ["b"])
    with pytest.raises(InputError, match=r"num_labels 2: .* has 1"):
        om.CrossEncoder(str(place / "reranker"), num_labels=2)


@pytest.mark.parametrize("name", ["no/such/directory", 5, None])
def test_what_names_no_model_is_refused(name):
    with pytest.raises(InputError, match=r"model|directory"):
        om.SentenceTransformer(name)


def test_tensors_are_given_only_where_torch_is_imported(embedder, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    for arguments in (dict(convert_to_tensor=True), dict(convert_to_numpy=False)):
        with pytest.raises(InputError, match="torch is not imported here"):
            embedder.encode(TEXTS, **arguments)
    assert isinstance(embedder.similarity(np.ones(3), np.ones(3)), np.ndarray)
