"""Shapes of a model within a budget of parameters: legal ones, each counted, the fastest found in spite of a bound."""

import pytest
from planned_models import MODEL

from formats.core.errors import InputError
from opmatrix.models import check, known, normalise_config, parameters
from opmatrix.parallel.questions.fewest_devices import fastest_on
from opmatrix.parallel.questions.model_shapes import (
    LAYER_COUNT,
    VARIED,
    ParameterBudget,
    least_seconds,
    plan_shapes,
    read_budget,
    read_varied,
    shapes_csv,
    shapes_json,
    shapes_text,
    shapes_within,
)
from opmatrix.parallel.search.plans import AskedPlan

BERT = dict(
    model_type="bert",
    vocab_size=512,
    hidden_size=96,
    intermediate_size=384,
    num_hidden_layers=4,
    num_attention_heads=4,
    max_position_embeddings=64,
    type_vocab_size=2,
    layer_norm_eps=1e-12,
    hidden_act="gelu",
)
LLAMA = MODEL | dict(num_hidden_layers=3, vocab_size=512)
MIXTURE = LLAMA | dict(model_type="mixtral", num_local_experts=8, num_experts_per_tok=2)
GPT2 = dict(model_type="gpt2", n_embd=128, n_head=8, n_layer=6, n_positions=128, vocab_size=256)
KEYS = {"hidden": "hidden_size", "heads": "num_attention_heads", LAYER_COUNT: "num_hidden_layers"}


@pytest.mark.deep(every=3)
@pytest.mark.parametrize("config", [LLAMA, MIXTURE, BERT, GPT2], ids=lambda config: config["model_type"])
@pytest.mark.parametrize("name", [*VARIED, LAYER_COUNT])
def test_shapes_are_legal_and_within_the_budget(config, name):
    """Each size alone, and with layers; the model itself is among them. All else stays as it was."""
    budget = ParameterBudget(parameters(config))
    if name == "experts" and config is not MIXTURE:
        with pytest.raises(InputError, match="--vary experts: the model has none"):
            shapes_within(config, [name], budget)
        return
    for names in dict.fromkeys([(name,), (name, LAYER_COUNT)]):
        shapes = shapes_within(config, names, budget)
        assert config in [shape.config for shape in shapes]
        texts = [str(sorted(shape.config.items())) for shape in shapes]
        assert len(texts) == len({*texts})
        for shape in shapes:
            check(shape.config)
            sizes, usual = normalise_config(shape.config), normalise_config(config)
            assert shape.count == parameters(shape.config) and budget.holds(shape.count)
            heads, keys = sizes["num_attention_heads"], sizes.get("num_key_value_heads") or sizes["num_attention_heads"]
            assert heads % keys == 0 and sizes["hidden_size"] % heads == 0
            for other in KEYS:
                assert other in names or sizes[KEYS[other]] == usual[KEYS[other]]
    assert len(shapes) > 1 or name == LAYER_COUNT


def test_the_fastest_shapes_are_found_in_spite_of_the_bound():
    """Each shape searched alone is no faster than its bound, and the first are the fastest of all."""
    question = AskedPlan(8, 512, infer=True).question(MIXTURE, 2, "H100")
    budget = ParameterBudget(parameters(MIXTURE), 0.04)
    alone = []
    for shape in shapes_within(MIXTURE, ["experts", LAYER_COUNT], budget):
        asked = AskedPlan(8, 512, infer=True).question(shape.config, 2, "H100")
        choice = fastest_on(asked)
        assert least_seconds(asked)[0] <= choice.seconds
        alone.append(choice.seconds)
    plan = plan_shapes(question, "layers,experts", budget, keep=1)
    assert [one.choice.seconds for one in plan.best] == [min(alone)] and plan.count == len(alone)
    assert plan.searched < plan.count and plan.usual.shape.config == MIXTURE
    figures, text = shapes_json(plan), shapes_text(plan)
    assert figures["budget"] == dict(count=budget.count, tolerance=0.04)
    assert figures["quality"] == "not predicted" and "the quality of a shape is not" in text and "as it is" in text
    assert figures["shapes"][0]["shape"] in text and len(shapes_csv(plan).splitlines()) == 2
    first = plan.best[0]
    assert first.utilisation < 1 and first.token_seconds == first.choice.seconds / (8 * 512)
    assert first.operations_a_parameter < 2 * 1.1  # two a weight that a token reads, and scores


def test_budgets_and_sizes_are_read_or_refused():
    assert read_budget("7e9") == ParameterBudget(7e9, 0.05)
    assert read_budget("7e9 ± 2%") == read_budget("7e9+-2%") == ParameterBudget(7e9, 0.02)
    for text in ("7b", "", "-7e9", "1.2.3", "7e9±200%", "7e9±2", "inf", "1e999", "0"):
        with pytest.raises(InputError, match=r"--parameters .*: give a number, such as 7e9"):
            read_budget(text)
    assert read_varied("layers, heads") == ["heads", "layers"]
    with pytest.raises(InputError, match=r"--vary head: did you mean heads.* there are hidden, heads, experts, layers"):
        read_varied("hidden,head")
    question = AskedPlan(8, 512).question(LLAMA, 2, "H100")
    with pytest.raises(InputError, match=r"--parameters 7e\+09: no shape of heads is within 5 % .* vary layers, too"):
        plan_shapes(question, "heads", read_budget("7e9"))
    tight = AskedPlan(8, 512, memory=1e8, infer=True).question(LLAMA, 2, "H100")
    with pytest.raises(InputError, match="--vary heads: none of 3 shapes fits 2 devices"):
        plan_shapes(tight, "heads")
    for name, seq in (("t5-base", 114), ("llava-1.5-7b", 1024), ("whisper-large-v2", 448)):
        both = AskedPlan(8, seq).question(known.configuration(name), 2, "H100")
        with pytest.raises(InputError, match=r"--vary layers: shapes are of one stack of layers, and .* is two"):
            plan_shapes(both, "layers", ParameterBudget(2e8))
