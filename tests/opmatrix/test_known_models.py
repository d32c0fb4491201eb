"""Well-known models by name: what their configurations say, how many parameters they lead to, and who is refused."""

import json
import re
from os.path import exists
from typing import NamedTuple

import pytest

from formats.core.errors import InputError
from opmatrix.algebra.data import Promised
from opmatrix.models import FAMILIES, activated, known, parameters, promised, tensors
from rewrites.cli.commands import app
from rewrites.search.planned import shapes

# counted on models that transformers made of published config files (tests/peers/test_known_shapes.py), BERT's pooler
# taken off
COUNTED = {
    "bert-base": 109_482_240 - 768 * 769,
    "bert-large": 335_141_888 - 1024 * 1025,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "gpt3-175b": 174_604_259_328,
    "llama-7b": 6_738_415_616,
    "llama-13b": 13_015_864_320,
    "llama-30b": 32_528_943_616,
    "llama-65b": 65_285_660_672,
    "llama2-7b": 6_738_415_616,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "qwen1.5-72b": 72_287_920_128,
    "mixtral-8x7b": 46_702_792_704,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "qwen3-30b-a3b": 30_532_122_624,
}


def count_pangu(layers, n):
    """Pangu-alpha by hand: a layer is 12 squares and 13 rows, two norms among them; tables of 40,000 tokens, of 1,024
    positions and of as many queries; a norm."""
    return layers * (12 * n**2 + 13 * n) + (40_000 + 2 * 1024 + 2) * n


def count_embedded(layers, n, f, kept, tables):
    """openPangu-Embedded by hand: queries and what is behind them, keys and values of `kept` columns, each with a bias;
    a gated unit, two norms; tables of 153,376 tokens; a norm."""
    mixing = 2 * n * (n + 1) + 2 * kept * (n + 1)
    return layers * (mixing + 3 * n * f + 2 * n) + tables * 153_376 * n + n


def count_pangu_pro(layers, n, f, kept, experts):
    """Pangu Pro MoE by hand: attention as in openPangu-Embedded; a router, a scale and a gated unit of `f` columns for
    each expert, and one of 4 f that is shared."""
    mixing, tables = 2 * n * (n + 1) + 2 * kept * (n + 1), 2 * 153_376 * n
    return layers * (mixing + 64 * (n + 1) + (experts + 4) * 3 * n * f + 2 * n) + tables + n


def count_pr_moe(layers, n, experts, sparse):
    """PR-MoE by hand: a GPT-2 of `layers` layers, in `sparse` of them a router, experts that are perceptrons, and two
    scores of which each is how much one branch counts."""
    perceptron = 8 * n**2 + 5 * n
    dense = layers * (4 * n**2 + 8 * n + perceptron) + (50_304 + 2048 + 2) * n
    return dense + experts * (perceptron + n) + sparse * 2 * (n + 1)


def count_gpt_oss(layers, experts, rows=201_088):
    """gpt-oss by hand: 64 heads of 64 columns, each with a sink, that share 8 of keys, with biases; a router, experts
    of three squares and as many rows; two norms; `rows` of tokens, and as many scores of them; a norm."""
    n = 2880
    mixing = (n + 1) * (4096 + 2 * 512) + 4096 * n + n + 64
    sparse = experts * (n + 1 + 3 * n * (n + 1))
    return layers * (mixing + sparse + 2 * n) + (rows + 201_088) * n + n


class DeepSeek(NamedTuple):
    """What latent attention and experts are counted by."""

    layers: int
    n: int  # hidden columns
    heads: int
    narrow: int  # columns that queries are compressed to; 0 for none
    dense: int  # columns of the gated unit of the first layers
    dense_layers: int
    f: int  # columns of an expert
    experts: int
    shared: int
    biased: int  # numbers that a router has for each expert, beside its row
    words: int

    def count(self):
        """By hand: queries of heads of 128 columns and 64 that turn, or by way of fewer columns and a norm; keys and
        values by 512 columns, a norm, and 64 that turn; gated units, or a router, experts and shared ones; two tables
        and norms."""
        n, wide = self.n, self.heads * 192
        queries = n * self.narrow + self.narrow + self.narrow * wide if self.narrow else n * wide
        keys = n * 576 + 512 + 512 * self.heads * 256
        mixing = queries + keys + self.heads * 128 * n + 2 * n
        sparse = (n + self.biased) * self.experts + (self.experts + self.shared) * self.expert
        units = self.dense_layers * 3 * n * self.dense + (self.layers - self.dense_layers) * sparse
        return self.layers * mixing + units + 2 * self.words * n + n

    @property
    def expert(self):
        return 3 * self.n * self.f

    def activated(self, k):
        """What one row reads: all but the experts that it is not routed to."""
        return self.count() - (self.layers - self.dense_layers) * (self.experts - k) * self.expert


def count_qwen3_next(n, experts, f):
    """Of 48 layers of n columns, every fourth one of gated attention: 16 heads of 256 and 2 of keys."""
    attention = n * (2 * 16 + 2 * 2) * 256 + 16 * 256 * n + 2 * 256
    keys, values = 16 * 128, 32 * 128
    net = n * (2 * keys + 2 * values + 2 * 32) + 4 * (2 * keys + values) + 2 * 32 + 128 + values * n
    unit = n * experts + (experts + 1) * 3 * n * f + n
    return 12 * attention + 36 * net + 48 * (unit + 2 * n) + 2 * 151_936 * n + n


def count_mamba(layers, n, words):
    """Of states of 16 numbers for each of 2 n columns, and steps of rank n / 16 (Gu and Dao 2023)."""
    inner, rank = 2 * n, n // 16
    layer = n * 2 * inner + 4 * inner + inner + inner * (rank + 2 * 16) + rank * inner + inner + 16 * inner + inner
    return layers * (layer + inner * n + n) + words * n + n


DEEPSEEK = {
    "deepseek-v2-lite": DeepSeek(27, 2048, 16, 0, 10_944, 1, 1408, 64, 2, 0, 102_400),
    "deepseek-v2": DeepSeek(60, 5120, 128, 1536, 12_288, 1, 1536, 160, 2, 0, 102_400),
    "deepseek-v3": DeepSeek(61, 7168, 128, 1536, 18_432, 3, 2048, 256, 1, 1, 129_280),
}
BY_HAND = {
    **{name: each.count() for name, each in DEEPSEEK.items()},
    "pangu-pro-moe-72b": count_pangu_pro(48, 5120, 1344, 1024, 64),
    "qwen3-next-80b-a3b": count_qwen3_next(2048, 512, 512),
    "mamba-130m": count_mamba(24, 768, 50_280),
    "mamba-2.8b": count_mamba(64, 2560, 50_280),
    "350m-pr-moe-32-64": count_pr_moe(24, 1024, 10 * 32 + 2 * 64, 12),
    "pangu-alpha-2.6b": count_pangu(32, 2560),
    "pangu-alpha-13b": count_pangu(40, 5120),
    "pangu-alpha-200b": count_pangu(64, 16384),
    "openpangu-embedded-1b": count_embedded(26, 1536, 6144, 768, 1),
    "openpangu-embedded-7b": count_embedded(34, 4096, 12800, 1024, 2),
    "gpt-oss-20b": count_gpt_oss(24, 32),
    "gpt-oss-120b": count_gpt_oss(36, 128),
}


# what one row reads of a model with experts, by hand: all but those that its routers leave out
ACTIVATED = {
    "mixtral-8x7b": COUNTED["mixtral-8x7b"] - 32 * 6 * 3 * 4096 * 14336,
    "qwen1.5-moe-a2.7b": COUNTED["qwen1.5-moe-a2.7b"] - 24 * 56 * 3 * 2048 * 1408,
    "qwen3-30b-a3b": COUNTED["qwen3-30b-a3b"] - 48 * 120 * 3 * 2048 * 768,
    "pangu-pro-moe-72b": BY_HAND["pangu-pro-moe-72b"] - 48 * 56 * 3 * 5120 * 1344,
    **{name: each.activated(8 if name == "deepseek-v3" else 6) for name, each in DEEPSEEK.items()},
    "qwen3-next-80b-a3b": BY_HAND["qwen3-next-80b-a3b"] - 48 * 502 * 3 * 2048 * 512,
    "gpt-oss-20b": BY_HAND["gpt-oss-20b"] - 24 * 28 * 3 * 2880 * 2881,
    "gpt-oss-120b": BY_HAND["gpt-oss-120b"] - 36 * 124 * 3 * 2880 * 2881,
    "350m-pr-moe-32-64": BY_HAND["350m-pr-moe-32-64"] - (10 * 31 + 2 * 63) * (8 * 1024**2 + 5 * 1024),
}

LAYERS = "num_hidden_layers", "n_layer", "num_layers"  # as families call them


def few_positions(config):
    """The model for short texts: tables that rotate are no parameters, and large."""
    return config | dict(max_position_embeddings=64) if "rope_theta" in config else config


@pytest.fixture(scope="module")
def counts():
    return {name: parameters(known.configuration(name)) for name in known.names()}


def test_parameters_are_those_of_the_published_code(counts):
    assert counts == COUNTED | BY_HAND


@pytest.mark.deep(every=3)
@pytest.mark.parametrize("name", ACTIVATED)
def test_a_row_reads_what_its_routers_choose(name):
    assert activated(known.configuration(name)) == ACTIVATED[name]


def test_published_totals_are_near(counts):
    """Within half of their last digit, or a fortieth: papers round, and some leave tables of tokens out."""
    far = {}
    said = [(name, count, known.find_known(name).published) for name, count in counts.items()]
    read = [(name, count, words) for name, count in ACTIVATED.items() if (words := known.find_known(name).activated)]
    assert len(read) == 9 and BY_HAND["deepseek-v3"] == 671_026_419_200
    for name, count, published in said + read:
        config = known.configuration(name)
        digits, unit, rest = re.fullmatch(r"([\d.]+)([BM])( without (?:tables|rows) of tokens)?", published).groups()
        size = {"B": 1e9, "M": 1e6}[unit]
        if rest:
            tables = 1 if config["tie_word_embeddings"] or "rows" in rest else 2
            count -= tables * config["vocab_size"] * config["hidden_size"]
        last = size * 10 ** -len(digits.partition(".")[2])
        if abs(count - float(digits) * size) > max(last / 2, float(digits) * size / 40):
            far[name] = count, published
    assert not far


@pytest.mark.parametrize("name", known.names())
def test_a_configuration_is_one_of_its_family(name):
    """Every key is one that the family declares, so that none is passed over; JSON holds it; a model of promised
    weights comes out of it, here of two layers."""
    config = known.configuration(name)
    keys = FAMILIES[config["model_type"]].keys
    assert {*config} <= {"model_type", *(key.called or each for each, key in keys.items())}
    assert json.loads(json.dumps(config)) == config
    few = {key: 2 for key in LAYERS if key in config}
    model = promised(few_positions(config) | few | ({"num_experts": [3]} if "expert_interval" in config else {}))
    leaves = {data for node in model.walk() if node.kind.name == "weight" for data in node.args}
    assert leaves and all(isinstance(leaf, Promised) for leaf in leaves)
    assert known.find_known(name).source and known.find_known(name).outside


def test_all_positions_are_held():
    """The largest tables of those that rotate fit what a family allows; positions are no parameters."""
    config = known.configuration("llama3-405b") | dict(num_hidden_layers=1)
    assert tensors(config) == tensors(few_positions(config)) and config["max_position_embeddings"] == 131_072


def test_a_copy_is_given_in_any_case_of_letters():
    (config := known.configuration("LLaMA3-8B"))["rope_scaling"]["factor"] = 2
    assert known.configuration("llama3-8b")["rope_scaling"]["factor"] == 8 != config["rope_scaling"]["factor"]


def test_parameters_count_a_head_of_its_own_once():
    tied = known.configuration("openpangu-embedded-1b") | dict(num_hidden_layers=1, max_position_embeddings=64)
    table = 153_376 * 1536
    assert parameters(tied) + table == parameters(tied | dict(tie_word_embeddings=False))
    assert parameters(tied) == sum(n * (p or [1])[0] for n, *p in tensors(tied).values())


@pytest.mark.parametrize(
    "name, meant",
    [
        ("llama2-70", "did you mean llama2-70b?"),
        ("GPT3", "did you mean gpt2?"),
        ("qwen-1.5-72b", "did you mean qwen1.5-72b?"),
        ("zzz", "this name; there are"),
    ],
)
def test_a_name_that_there_is_not(name, meant):
    with pytest.raises(InputError) as error:
        known.configuration(name)
    assert str(error.value).startswith(f"{name}: there is no well-known model of this name; ") and meant in str(
        error.value
    )
    assert all(each in str(error.value) for each in known.names()) and "\n" not in str(error.value)


# ---- on the command line


def run(*words):
    app(["optimize", *words], standalone_mode=False)


@pytest.mark.deep
def test_a_name_stands_for_its_configuration(tmp_path, monkeypatch, capsys):
    """What is stored, four bytes for each parameter, is in the table: nothing was fetched or read."""
    monkeypatch.chdir(tmp_path)
    run("bert-base", "--machine", "A100", "--tokens", "16")
    table = capsys.readouterr().out
    assert "A100, one sentence of 16 tokens: lower bounds" in table
    assert f"{4 * COUNTED['bert-base'] / 1e6:.1f}" in re.search("imported +float32 .*", table)[0]
    with pytest.raises(InputError, match=r"^bert-base: a configuration has no weights to optimize: .*--machine NAME"):
        run("bert-base", "--quiet")


def test_what_is_there_goes_before_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert not exists("gpt2") and "wte" in str(shapes("gpt2"))
    (tmp_path / "gpt2").mkdir()
    (tmp_path / "llama-7b").write_text('{"model_type": "abacus"}')
    with pytest.raises(InputError, match=r"gpt2/config\.json"):
        run("gpt2", "--machine", "A100")
    with pytest.raises(InputError, match="llama-7b"):
        run("llama-7b", "--machine", "A100")
    with pytest.raises(InputError, match="model_type is 'abacus'"):
        shapes("llama-7b")


def test_names_near_one_are_said_on_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"^llama2-70: .*did you mean llama2-70b"):
        run("llama2-70", "--machine", "H100")
    with pytest.raises(InputError, match=r"^absent/place/x: neither a model that opmatrix fetches"):
        run("absent/place/x", "--machine", "H100")
