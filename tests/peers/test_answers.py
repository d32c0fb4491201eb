"""Language models that score pairs by tokens of their answer (Qwen3-Reranker), against sentence-transformers and plain
transformers: scores, instructions, lengths; templates of chats against transformers' own rendering."""

import json
from importlib.util import find_spec

import encoders
import numpy as np
import pytest

import opmatrix as om
from formats.core.errors import InputError
from opmatrix.files.directory.pair_templates import parse_template
from opmatrix.inference.scores.text_pairs import pair_rows
from opmatrix.inference.text import LineReading
from rewrites.serving.prepared_requests import PREPARED_BY
from rewrites.serving.served_models import open_served
from rewrites.serving.serving_limits import ServingLimits

torch = pytest.importorskip("torch", reason="needs peers: torch")
transformers = pytest.importorskip("transformers", reason="needs peers: transformers")
if not find_spec("sentence_transformers"):  # to import it takes seconds: only its tests do
    pytest.skip("needs peers: sentence-transformers", allow_module_level=True)

CONTENT = 'messages | selectattr("role", "eq", "{}") | map(attribute="content") | first'
RERANKER = (
    "{%- set instruction = " + CONTENT.format("system") + ' | default("Find what answers the query") -%}\n'
    "{%- set query_text = " + CONTENT.format("query") + " -%}\n"
    "{%- set document_text = " + CONTENT.format("document") + " -%}\n"
    '<|im_start|>system\nJudge the document. The answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Instruct>: {{ instruction }}\n<Query>: {{ query_text }}\n"
    "<Document>: {{ document_text }}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n{{ '' }}"
)
TEMPLATES = [
    RERANKER,
    RERANKER.replace("-%}", "%}"),
    RERANKER.replace("{%-", "{%").replace("-%}", "%}"),
    "Q {{ " + CONTENT.format("query") + " }}\n  {# of the pair #}\n D {{- (" + CONTENT.format("document") + ") }}.\n\n",
    "{% set q = "
    + CONTENT.format("query").replace('"', "'")
    + " %}  {{ q }} 'it\\'s' {{ 'it\\'s \"so\"\\n' }}{{ q }}\n\n"
    "   {% set d = " + CONTENT.format("document") + ' %}\n{{ d }}   {{- "\\n" -}}   \n end',
]
PAIRS = [
    ("what is a bank", "a river runs dry"),
    ("", "a"),
    ("yes or no", ""),
    ("it's <|im_end|> \n odd", "été 漢字 🙂 no"),
    ("a query", "the bank of a river " * 40),
    ("the bank of a river " * 40, "a document"),
]
SIZES = dict(
    vocab_size=300,
    hidden_size=32,
    intermediate_size=40,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=256,
)


def trained_tokenizer():
    """Byte pairs of a few lines, with the marks of a chat."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    marks = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=marks, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(["yes", "no"] * 90 + ["the bank of a river", RERANKER] * 5, trainer)
    return tokenizer


def write(place, template=RERANKER, saved=True, tied=True, no=True, **more):
    """A random Qwen3 with a tokenizer, as transformers saves it, or as sentence-transformers saves a reranker."""
    from sentence_transformers import CrossEncoder
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.cross_encoder.modules import LogitScore

    torch.manual_seed(0)
    model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SIZES, tie_word_embeddings=tied))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(place / "plain")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=trained_tokenizer(),
        pad_token="<|endoftext|>",
        eos_token="<|im_end|>",
        model_max_length=200,
        padding_side="left",
    )
    tokenizer.chat_template = template
    tokenizer.save_pretrained(place / "plain")
    if not saved:
        return place / "plain"
    ids = tokenizer.convert_tokens_to_ids(["yes", "no"])
    transformer = Transformer(str(place / "plain"), transformer_task="text-generation")
    modules = [transformer, LogitScore(ids[0], ids[1] if no else None)]
    CrossEncoder(modules=modules, device="cpu", **more).save(str(place / "saved"), create_model_card=False)
    return place / "saved"


def both(home, tmp_path, monkeypatch, **more):
    """Our reranker and the peer's of a directory."""
    from sentence_transformers import CrossEncoder

    encoders.keep_in(monkeypatch, tmp_path / "cache")
    return om.CrossEncoder(str(home), **more), CrossEncoder(str(home), device="cpu", **more)


@pytest.mark.parametrize("at", range(len(TEMPLATES)))
def test_templates_are_rendered_as_transformers_does(at):
    from transformers.utils.chat_template_utils import render_jinja_template

    template = parse_template(TEMPLATES[at], "here")
    for query, document in PAIRS:
        messages = [{"role": "query", "content": query}, {"role": "document", "content": document}]
        for system in ("", "Judge it"):
            told = [{"role": "system", "content": system}] * bool(system) + messages
            [wanted], _ = render_jinja_template([told], chat_template=TEMPLATES[at])
            assert template.render(system, query, document) == wanted


@pytest.mark.parametrize("saved", [False, True], ids=["plain", "saved"])
def test_scores_are_those_of_the_peer(tmp_path, monkeypatch, saved):
    ours, theirs = both(write(tmp_path, saved=saved), tmp_path, monkeypatch)
    scores, wanted = ours.predict(PAIRS), theirs.predict(PAIRS)
    assert scores.shape == wanted.shape == (6,) and np.ptp(wanted) > 0.02
    np.testing.assert_allclose(scores, wanted, atol=1e-5)
    for raw in (ours.predict(PAIRS, activation_fn=torch.nn.Identity()), ours.program.run(batch_of(ours))[:, 0]):
        np.testing.assert_allclose(raw, theirs.predict(PAIRS, activation_fn=torch.nn.Identity()), atol=1e-4)
    documents = [document for _, document in PAIRS]
    ranked, expected = (model.rank("a bank", documents, top_k=4) for model in (ours, theirs))
    assert [entry["corpus_id"] for entry in ranked] == [entry["corpus_id"] for entry in expected]


def batch_of(reranker):
    """The pairs as the program reads them."""
    rows = pair_rows(reranker.tokenizer, PAIRS, LineReading(truncate=True), reranker.scoring.template)
    return om.Batch([ids for ids, _ in rows])


@pytest.mark.parametrize("tied, no", [(False, True), (True, False)])
def test_other_heads_are_those_of_the_peer(tmp_path, monkeypatch, tied, no):
    ours, theirs = both(write(tmp_path, tied=tied, no=no, activation_fn=torch.nn.Tanh()), tmp_path, monkeypatch)
    np.testing.assert_allclose(ours.predict(PAIRS), theirs.predict(PAIRS), atol=1e-5)


def test_instructions_and_lengths_are_those_of_the_peer(tmp_path, monkeypatch):
    prompts = {"web": "Find what a search wants", "code": "Find code"}
    home = write(tmp_path, prompts=prompts, default_prompt_name="web")
    ours, theirs = both(home, tmp_path, monkeypatch, max_length=120)
    assert ours.prompts == theirs.prompts and ours.max_seq_length == theirs.max_length == 120
    for form in ({}, {"prompt_name": "code"}, {"prompt": "Judge"}, {"prompt": ""}):
        np.testing.assert_allclose(ours.predict(PAIRS, **form), theirs.predict(PAIRS, **form), atol=1e-5)


def test_scores_are_the_shares_of_two_tokens_in_plain_transformers(tmp_path, monkeypatch):
    """As the model's card computes them: the softmax of two columns of the head behind the last token."""
    home = write(tmp_path, saved=False)
    encoders.keep_in(monkeypatch, tmp_path / "cache")
    ours = om.CrossEncoder(str(home))
    model = transformers.AutoModelForCausalLM.from_pretrained(home).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(home)
    yes, no = tokenizer.convert_tokens_to_ids(["yes", "no"])
    for (query, document), score in zip(PAIRS[:4], ours.predict(PAIRS[:4]), strict=True):
        messages = [{"role": "query", "content": query}, {"role": "document", "content": document}]
        row = tokenizer.apply_chat_template(messages, return_tensors="pt", return_dict=True)
        with torch.inference_mode():
            logits = model(**row).logits[0, -1, [no, yes]].double()
        assert score == pytest.approx(float(logits.softmax(0)[1]), abs=1e-5)


def test_a_saved_program_scores_without_laws(tmp_path, monkeypatch):
    home = write(tmp_path)
    encoders.keep_in(monkeypatch, tmp_path / "cache")
    ours = om.CrossEncoder(str(home))
    ours.program.save(tmp_path / "program")
    again = om.CrossEncoder(str(tmp_path / "program"))
    assert again.scoring == ours.scoring and again.scoring.template is not None
    np.testing.assert_array_equal(again.predict(PAIRS), ours.predict(PAIRS))
    with pytest.raises(InputError, match="this model reads pairs"):
        ours.program.score(["one text"])
    with pytest.raises(InputError, match=r"om\.CrossEncoder"):
        om.SentenceTransformer(str(home))


def test_only_two_columns_of_the_head_are_stored(tmp_path, monkeypatch):
    home = write(tmp_path, tied=False)
    encoders.keep_in(monkeypatch, tmp_path / "cache")
    shapes = [constant.shape for constant in om.CrossEncoder(str(home)).program.constants.values()]
    assert sum(shape[0] == 300 for shape in shapes if len(shape) == 2) == 1  # the table of tokens
    assert not any(shape[1] == 300 for shape in shapes if len(shape) == 2)


REFUSED = [
    ({"true_token_id": 300}, "true_token_id is 300, not an id below 300"),
    ({"true_token_id": None}, "true_token_id is None"),
    ({"other": 1}, "other is 1: it is not supported"),
]


@pytest.mark.parametrize("entries, words", REFUSED)
def test_entries_that_name_no_token_are_refused(tmp_path, monkeypatch, entries, words):
    home = write(tmp_path)
    file = home / "1_LogitScore" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | entries))
    encoders.keep_in(monkeypatch, tmp_path / "cache")
    with pytest.raises(InputError, match=words) as error:
        om.CrossEncoder(str(home))
    assert "\n" not in str(error.value)


def test_a_template_may_be_given(tmp_path, monkeypatch):
    generic = "{% for message in messages %}{{ message.content }}{% endfor %}"
    home = write(tmp_path, template=generic, saved=False)
    encoders.keep_in(monkeypatch, tmp_path / "cache")
    with pytest.raises(InputError, match="nothing else is supported, and nothing is run"):
        om.CrossEncoder(str(home))
    ours, theirs = both(home, tmp_path, monkeypatch, processor_kwargs={"chat_template": RERANKER})
    np.testing.assert_allclose(ours.predict(PAIRS), theirs.predict(PAIRS), atol=1e-5)
    with pytest.raises(InputError, match="chat_template 5: give a text"):
        om.CrossEncoder(str(home), processor_kwargs={"chat_template": 5})


def test_the_server_puts_pairs_into_the_template(tmp_path, monkeypatch):
    """To the bit the scores of the program, with the instruction that is its default."""
    home = write(tmp_path, prompts={"web": "Find what a search wants"}, default_prompt_name="web")
    encoders.keep_in(monkeypatch, tmp_path / "cache")
    om.CrossEncoder(str(home)).program.save(tmp_path / "kept")
    documents = [document for _, document in PAIRS]
    wanted = om.load(tmp_path / "kept").score([("a bank", text) for text in documents], truncate=True)[:, 0]
    for place in (home, tmp_path / "kept"):
        served = open_served([str(place)])
        body = json.dumps({"query": "a bank", "documents": documents}).encode()
        request = PREPARED_BY["/v1/rerank"](served, ServingLimits(seconds=60, truncate=True), body)
        reply = json.loads(request.write(request.lane.model.compute(request.rows, 0)))
        scores = {result["index"]: result["relevance_score"] for result in reply["results"]}
        assert [np.float32(scores[at]) for at in range(len(documents))] == [*wanted]
