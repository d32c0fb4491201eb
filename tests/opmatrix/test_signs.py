"""A family is told by the classes of published code, by the kind of positions and by tensors, where model_type says
another one or none; code that no family computes is refused, and never run."""

import json

import checkpoints
import numpy as np
import pytest
from test_families import BERT, CASES, RAGGED, made

from formats.core.errors import InputError
from opmatrix.algebra.oracles import dense
from opmatrix.files.checkpoint import open_model
from opmatrix.models import FAMILIES, build, tensors
from opmatrix.models.signs import tell_family

JINA = "jinaai/jina-bert-implementation--modeling_bert.JinaBert"
LATER = "jinaai/jina-bert-v2-qk-post-norm--modeling_bert.JinaBert"
GATED, NORMED = "encoder.layer.0.mlp.gated_layers.weight", "bert.encoder.layer.1.mlp.up_gated_layer.weight"
TOLD = {  # entries of a config, a tensor, the family that they tell; None where model_type does
    "jina, published": (
        dict(model_type="bert", architectures=["JinaBertForMaskedLM"], auto_map=dict(AutoModel=JINA + "Model")),
        GATED,
        "jina_bert",
    ),
    "jina, by its positions": (dict(model_type="bert", position_embedding_type="alibi"), GATED, "jina_bert"),
    "jina, by its class": (dict(model_type="bert", architectures=["JinaBertModel"]), GATED, "jina_bert"),
    "jina, normed": (dict(model_type="bert", auto_map=dict(AutoModel=LATER + "Model")), NORMED, "jina_bert_normed"),
    "jina, normed, code beside": (
        dict(model_type="bert", auto_map=dict(AutoModelForMaskedLM="modeling_bert.JinaBertForMaskedLM")),
        NORMED,
        "jina_bert_normed",
    ),
    "gte": (dict(model_type="new", auto_map=dict(AutoModel="Alibaba-NLP/new-impl--modeling.NewModel")), "", "new"),
    "gte, under another name": (
        dict(model_type="gte", auto_map=dict(AutoModel="modeling_hf_alibaba_nlp_gte.GteModel")),
        "",
        "gte",
    ),
    "nomic": (
        dict(model_type="nomic_bert", auto_map=dict(AutoModel="nomic-ai/nomic-bert-2048--modeling.NomicBertModel")),
        "",
        "nomic_bert",
    ),
    "pangu": (dict(auto_map=dict(AutoModelForCausalLM="modeling.PanguEmbeddedForCausalLM")), "", "PanguEmbedded"),
    "a bert": (dict(model_type="bert", architectures=["BertModel"]), "", None),
    "a class that is not known": (dict(model_type="bert", architectures=["Contriever"]), "", None),
    "gated units alone": (dict(model_type="bert", architectures=["BertModel"]), GATED, None),
    "a tokenizer of its own": (dict(model_type="bert", auto_map=dict(AutoTokenizer=["t.T", None])), "", None),
    "a map of numbers": (dict(model_type="bert", auto_map=dict(AutoModel=3)), "", None),
    "no map": (dict(model_type="bert", auto_map=[1], architectures=7), "", None),
}


@pytest.mark.parametrize("case", TOLD)
def test_files_tell_their_family(case):
    config, tensor, family = TOLD[case]
    assert tell_family(config, FAMILIES, lambda: [tensor, "pooler.dense.bias"]) == family


@pytest.mark.parametrize("kind", ["bert", "perceiver"])
def test_code_that_no_family_computes_is_named(tmp_path, kind):
    home = checkpoints.write(tmp_path, model_type=kind, auto_map={"AutoModel": "org/repo--modeling.OddModel"})
    with pytest.raises(
        InputError,
        match=r"config\.json: auto_map names 'org/repo--modeling\.OddModel', .* never run.* computes 'OddModel'",
    ) as error:
        open_model(home)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("family", ["jina_bert", "jina_bert_normed", "new"])
def test_published_files_are_the_family_that_they_tell(tmp_path, family):
    """A jina says that it is a bert."""
    config = next(config for name, config, _ in CASES.values() if name == family)
    at = made(config)
    wanted = dense(build(config | dict(model_type=family), at), RAGGED)
    word = "New" if family == "new" else "JinaBert"
    said = dict(model_type="new" if family == "new" else "bert", auto_map=dict(AutoModel=f"modeling.{word}Model"))
    (tmp_path / "config.json").write_text(json.dumps(config | said | dict(architectures=[f"{word}ForMaskedLM"])))
    prefix = "new." if family == "new" else "bert."
    checkpoints.safetensors(
        tmp_path / "model.safetensors", {prefix + name: data.array for name, data in at.found.items()}
    )
    checkpoint = open_model(tmp_path)
    assert np.array_equal(dense(checkpoint.operator(), RAGGED), wanted) and checkpoint.config["model_type"] == family


def test_a_bert_that_says_alibi_without_its_units_is_refused(tmp_path):
    home = checkpoints.write(tmp_path, position_embedding_type="alibi")
    with pytest.raises(InputError, match="position_embedding_type is 'alibi': it must be absolute"):
        open_model(home)


def test_every_published_name_of_a_setting_is_read():
    """NomicBert's configs by the names of its publication and by those that transformers saves."""
    published = next(config for case, (_, config, _) in CASES.items() if case == "nomic, published")
    saved = BERT | dict(
        rope_parameters=dict(rope_type="default", rope_theta=300.0), hidden_act="gelu", type_vocab_size=2, head_dim=8
    )
    at = made(saved)
    assert build(published | dict(model_type="nomic_bert"), at) is build(saved | dict(model_type="nomic_bert"), at)
    assert tensors(published | dict(model_type="nomic_bert")) == tensors(saved | dict(model_type="nomic_bert"))
