"""Well-known models by name have the tensors of transformers' own code, made of their configurations without memory."""

import pytest
from plain_experts import fused

from opmatrix.models import known, layout, tensors

torch = pytest.importorskip("torch", reason="needs peers: torch")
transformers = pytest.importorskip("transformers", reason="needs peers: transformers")

THEIRS = [name for name in known.names() if known.configuration(name)["model_type"] in transformers.CONFIG_MAPPING]


def made(kind, config):
    said = {key: value for key, value in config.items() if key != "model_type"}
    with torch.device("meta"):
        return kind.from_config(transformers.AutoConfig.for_model(config["model_type"], **said))


@pytest.mark.parametrize("name", THEIRS)
def test_tensors_are_theirs(name):
    """By name and shape; a pooler is theirs alone, and gates and ups of experts are one tensor there."""
    config = known.configuration(name)
    theirs = {
        each: tuple(tensor.shape)
        for each, tensor in made(transformers.AutoModel, config).state_dict().items()
        if not each.startswith("pooler.")
    }
    assert fused(tensors(config), turned=config["model_type"] == "gpt_oss") == theirs


@pytest.mark.parametrize("name", [name for name in THEIRS if layout(known.configuration(name)).head])
def test_a_head_is_tied_where_theirs_is(name):
    config = known.configuration(name)
    model = made(transformers.AutoModelForCausalLM, config)
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert tied == config.get("tie_word_embeddings", True)


def test_most_are_theirs():
    assert len(THEIRS) == 28
