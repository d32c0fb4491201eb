"""Heads on top of rows, of every family: what only trained a model is left alone, what answers by it is refused where
an embedding is asked for, by its name, unless it is the family's classifier (test_scores.py); files that say how rows
become embeddings go before all."""

import json
import re

import checkpoints
import numpy as np
import pytest
from programs import bert_program
from test_families import BERT, CASES

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.oracles import dense
from opmatrix.files.checkpoint import open_model
from opmatrix.models import FAMILIES, build, layout, tensors
from rewrites.workload.resolve import source

BATCH = Batch([[3, 4, 5, 6, 7], [8]])
CONFIGS = {"bert": BERT} | {family: config for family, config, _ in reversed(CASES.values())}
POOLED = ["pooler.dense.weight"]  # stands with the model, behind its prefix
# as transformers 5.23.0 writes them: the architecture, and what stands on top
HARMLESS = {
    "bert": {
        "BertModel": POOLED,
        "BertForMaskedLM": ["cls.predictions.transform.dense.weight"],
        "BertForPreTraining": [*POOLED, "cls.predictions.bias", "cls.seq_relationship.weight"],
        "Contriever": POOLED,
    },
    "roberta": {"RobertaModel": POOLED, "RobertaForMaskedLM": ["lm_head.dense.weight", "lm_head.bias"]},
    "xlm-roberta": {"XLMRobertaModel": POOLED, "XLMRobertaForMaskedLM": ["lm_head.layer_norm.bias"]},
    "camembert": {"CamembertModel": POOLED, "CamembertForMaskedLM": ["lm_head.dense.weight", "lm_head.bias"]},
    "distilbert": {
        "DistilBertModel": [],
        "DistilBertForMaskedLM": ["vocab_transform.weight", "vocab_layer_norm.weight", "vocab_projector.bias"],
    },
    "electra": {
        "ElectraModel": [],
        "ElectraForPreTraining": ["discriminator_predictions.dense_prediction.weight"],
        "ElectraForMaskedLM": ["generator_predictions.dense.weight", "generator_lm_head.bias"],
    },
    "albert": {
        "AlbertModel": ["pooler.weight"],
        "AlbertForMaskedLM": ["predictions.dense.weight"],
        "AlbertForPreTraining": ["pooler.bias", "predictions.bias", "sop_classifier.classifier.weight"],
    },
    "mpnet": {"MPNetModel": POOLED, "MPNetForMaskedLM": ["lm_head.layer_norm.weight"]},
    "modernbert": {
        "ModernBertModel": [],
        "ModernBertForMaskedLM": ["head.dense.weight", "head.norm.weight", "decoder.bias"],
    },
    "deberta-v2": {
        "DebertaV2Model": [],
        "DebertaV2ForMaskedLM": ["cls.predictions.transform.dense.weight", "lm_predictions.lm_head.bias"],
    },
    "nomic_bert": {"NomicBertModel": [], "NomicBertForMaskedLM": ["cls.predictions.bias"]},
    "gte": {"GteModel": POOLED, "GteForMaskedLM": ["lm_head.dense.weight", "lm_head.decoder.bias"]},
    "new": {"NewModel": POOLED, "NewForMaskedLM": ["lm_head.dense.weight"]},
    "jina_bert": {"JinaBertModel": POOLED, "JinaBertForMaskedLM": ["cls.predictions.decoder.weight"]},
    "jina_bert_normed": {"JinaBertModel": POOLED},
    "gemma3_text": {"Gemma3TextModel": []},
    "gpt2": {"GPT2Model": []},
    "llama": {"LlamaModel": []},
    "mistral": {"MistralModel": []},
    "qwen2": {"Qwen2Model": []},
    "qwen3": {"Qwen3Model": []},
    "cohere": {"CohereModel": []},
    "cohere2": {"Cohere2Model": []},
    "gemma2": {"Gemma2Model": []},
    "granite": {"GraniteModel": []},
    "olmo2": {"Olmo2Model": []},
    "phi3": {"Phi3Model": []},
    "smollm3": {"SmolLM3Model": []},
    "bloom": {"BloomModel": []},
    "mamba": {"MambaModel": []},
    "mamba2": {"Mamba2Model": []},
    "qwen3_5_text": {"Qwen3_5TextModel": ["mtp.fc.weight"]},
    "t5": {"T5EncoderModel": [], "T5ForConditionalGeneration": ["decoder.final_layer_norm.weight"]},
}
ENCODERS = {
    "SequenceClassification": ["classifier.weight"],
    "TokenClassification": ["classifier.bias"],
    "QuestionAnswering": ["qa_outputs.weight"],
    "MultipleChoice": [*POOLED, "classifier.weight"],
}
DECODERS = {"SequenceClassification": ["score.weight"], "TokenClassification": ["score.weight", "score.bias"]}
STEMS = {
    "bert": "Bert",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
    "camembert": "Camembert",
    "distilbert": "DistilBert",
    "electra": "Electra",
    "albert": "Albert",
    "mpnet": "MPNet",
    "modernbert": "ModernBert",
    "deberta-v2": "DebertaV2",
    "nomic_bert": "NomicBert",
    "gte": "Gte",
    "new": "New",
    "jina_bert": "JinaBert",
    "jina_bert_normed": "JinaBert",
    "gemma3_text": "Gemma3Text",
    "gpt2": "GPT2",
    "llama": "Llama",
    "mistral": "Mistral",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "cohere": "Cohere",
    "cohere2": "Cohere2",
    "gemma2": "Gemma2",
    "granite": "Granite",
    "olmo2": "Olmo2",
    "phi3": "Phi3",
    "smollm3": "SmolLM3",
    "bloom": "Bloom",
    "mamba": "Mamba",
    "mamba2": "Mamba2",
    "qwen3_5_text": "Qwen3_5Text",
    "t5": "T5",
}
ANSWERING = {
    family: {
        f"{stem}For{task}": names
        for task, names in (DECODERS if layout(CONFIGS[family] | {"model_type": family}).table else ENCODERS).items()
    }
    for family, stem in STEMS.items()
}
ANSWERING["bert"] |= {"BertForNextSentencePrediction": ["cls.seq_relationship.weight"], "Someone": ["mlp.dense.weight"]}
ANSWERING["gpt2"] |= {"GPT2DoubleHeadsModel": ["lm_head.weight", "multiple_choice_head.summary.weight"]}
for _family in ANSWERING:
    if FAMILIES[_family].layout.classifier:
        del ANSWERING[_family][f"{STEMS[_family]}ForSequenceClassification"]
cases = lambda table: [(family, architecture) for family in table for architecture in table[family]]


def write(home, family, architecture, names, prefix=None):
    """A checkpoint of a family with more tensors on top, its own behind the prefix that files with a head have."""
    config = CONFIGS[family] | {"model_type": family, "architectures": [architecture] if architecture else None}
    rng, prefix = np.random.default_rng(0), (layout(config).prefix if names else "") if prefix is None else prefix
    numbers = {prefix + name: rng.normal(size=shape).astype("<f4") for name, shape in tensors(config).items()}
    on_top = {prefix * (name in POOLED) + name: np.ones((2, 24), "<f4") for name in names}
    home.mkdir()
    (home / "config.json").write_text(json.dumps(config))
    checkpoints.safetensors(home / "model.safetensors", numbers | on_top)
    return home


def change_config(home, **changed):
    """Gives keys of a config.json other values, None for none."""
    config = json.loads((home / "config.json").read_text()) | changed
    (home / "config.json").write_text(json.dumps({key: said for key, said in config.items() if said is not None}))


def vectors(home):
    return dense(open_model(home).operator(True), BATCH)


@pytest.mark.parametrize("family, architecture", cases(HARMLESS))
def test_what_only_trained_a_model_is_left_alone(tmp_path, family, architecture):
    found = vectors(write(tmp_path / "model", family, architecture, HARMLESS[family][architecture]))
    assert np.array_equal(found, vectors(write(tmp_path / "plain", family, None, [])))


@pytest.mark.deep(every=4)
@pytest.mark.parametrize("family, architecture", cases(ANSWERING))
def test_a_model_that_answers_by_a_head_is_not_embedded(tmp_path, family, architecture):
    """Its rows are those of the model, and of its files."""
    home = write(tmp_path / "model", family, architecture, names := ANSWERING[family][architecture])
    answering = [name for name in sorted(names) if not name.startswith(("lm_head", "pooler", "cls"))]
    named = f"{re.escape(str(home))}/model.safetensors: tensor {answering[0]!r} " if answering else "/config.json: "
    with pytest.raises(InputError, match=rf"{named}\(?{architecture}\)?: a head .* AutoModel") as error:
        vectors(home)
    assert "\n" not in str(error.value) and "--output rows" in str(error.value)
    rows = dense(open_model(home).operator(), BATCH)
    assert np.array_equal(rows, dense(open_model(write(tmp_path / "plain", family, None, [])).operator(), BATCH))


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_the_rows_of_a_file_with_a_word_of_its_own_before_names(tmp_path, family):
    """transformers saves LlamaForQuestionAnswering so, and its AutoModel finds no weight of it: it draws some."""
    home = write(
        tmp_path / "model",
        family,
        architecture := f"{STEMS[family]}ForQuestionAnswering",
        ["qa_outputs.weight"],
        "transformer.",
    )
    with pytest.raises(InputError, match=rf"'qa_outputs.weight' \({architecture}\): a head .*: take a row a token"):
        vectors(home)
    rows = dense(open_model(home).operator(), BATCH)
    assert np.array_equal(rows, dense(open_model(write(tmp_path / "plain", family, None, [])).operator(), BATCH))


def test_every_family_that_others_save_is_here():
    """Of those with experts nothing is known to be harmless: any head of theirs is refused as one that is not known."""
    experts = {"mixtral", "qwen2_moe", "qwen3_moe", "PanguProMoE", "pr_moe", "deepseek_v2", "deepseek_v3"}
    experts |= {"qwen3_next", "qwen3_5_moe_text", "gpt_oss"}
    assert STEMS.keys() == HARMLESS.keys() == FAMILIES.keys() - {"gpt_pangu", "PanguEmbedded", "transformer"} - experts


TYING = sorted(
    family for family, config in CONFIGS.items() if family in STEMS and layout(config | {"model_type": family}).head
)
BESIDE = {"another": lambda table: table[::-1] + 1, "the table": lambda table: table, "none": None}


@pytest.mark.parametrize("tied", [True, False, None])
@pytest.mark.parametrize("beside", BESIDE)
@pytest.mark.parametrize("family", TYING)
def test_a_head_that_files_hold_goes_before_a_flag_that_ties_it(tmp_path, family, beside, tied):
    """As in transformers from version 5 on; earlier ones overwrote such a head by the table of tokens."""
    suffix = "LMHeadModel" if family == "gpt2" else "ForCausalLM"
    home, names = (
        write(tmp_path / "model", family, f"{STEMS[family]}{suffix}", []),
        layout(CONFIGS[family] | {"model_type": family}),
    )
    change_config(home, tie_word_embeddings=tied)
    table = open_model(home).find(names.table).read()
    if BESIDE[beside] is None:
        wanted = table
    else:
        wanted = BESIDE[beside](table).astype("<f4")
        numbers = {name: each.read() for name, each in open_model(home).tensors.items()}
        checkpoints.safetensors(home / "model.safetensors", numbers | {names.head: wanted})
    checkpoint, says = open_model(home), open_model(home).said["tie_word_embeddings"]
    if beside == "none" and not says:
        with pytest.raises(
            InputError,
            match=r"config\.json: tie_word_embeddings is false or left out, but .* holds no "
            r"tensor 'lm_head\.weight'",
        ):
            checkpoint.operator()
        return
    rows = dense(build(checkpoint.config, checkpoint.at), BATCH)
    said = checkpoint.said
    scores = rows @ wanted.T / said.get("logits_scaling", 1) * said.get("logit_scale", 1)
    if cap := said.get("final_logit_softcapping"):
        scores = cap * np.tanh(scores / cap)
    np.testing.assert_allclose(dense(checkpoint.operator(), BATCH), scores, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("first", ["shared.weight", "encoder.embed_tokens.weight"])
def test_the_encoder_reads_its_own_copy_of_the_table_where_files_hold_one(tmp_path, first):
    home = write(tmp_path / "model", "t5", "T5EncoderModel", [])
    numbers = {name: each.read() for name, each in open_model(home).tensors.items()}
    plain, table = vectors(home), numbers.pop("shared.weight")
    checkpoints.safetensors(home / "model.safetensors", numbers | {first: table})
    assert np.array_equal(vectors(home), plain)
    both = numbers | {"shared.weight": table + 1, "encoder.embed_tokens.weight": table}
    checkpoints.safetensors(home / "model.safetensors", both)
    assert np.array_equal(vectors(home), plain)


def test_files_that_say_how_rows_become_embeddings_go_before_a_head(tmp_path):
    home = checkpoints.pool(
        checkpoints.write(
            tmp_path,
            tensors={"classifier.weight": np.ones((2, 24), "<f4")},
            architectures=["BertForSequenceClassification"],
        )
    )
    assert vectors(home).shape == (2, 24) and not open_model(home).head


def test_a_program_of_its_rows_embeds_no_text(tmp_path):
    home = checkpoints.write(tmp_path, tensors={"classifier.weight": np.ones((2, 24), "<f4")})
    program = bert_program(checkpoints.CONFIG, checkpoints.arrays(checkpoints.CONFIG))
    program.meta = source(open_model(home))
    texts = ["the bank of the river", "a"]
    with pytest.raises(InputError, match=r"tensor 'classifier\.weight': the model returns the scores of a head"):
        program.embed(texts)
    assert program.run(program.tokenizer.encode(texts)).shape[1] == 24
