"""LoRA adapters: the model is the one with B A · alpha / r added to its weights; laws keep a thin product beside a
weight that is stored narrower, and merge it where many rows are multiplied; what is none is refused in a line."""

import json
from pathlib import Path

import checkpoints
import ggufs
import numpy as np
import pytest
import standin
from test_cli import command, patched, refused  # noqa: F401
from test_q4_1 import blocks, widened

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.data import Data
from opmatrix.algebra.operators import tanh, weight
from opmatrix.algebra.oracles import dense
from opmatrix.files.adapter import Adapter, column_gains
from opmatrix.files.checkpoint import open_model
from opmatrix.models import tensors as shapes_of
from rewrites.laws import EXACT_LAWS
from rewrites.search.search import search
from rewrites.verify.differences import difference

RANK, ALPHA, TOKENS = 3, 8, [[3, 4, 5, 6, 7], [8], [9, 10, 11]]
QUERY = "encoder.layer.0.attention.self.query"
CONFIG = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "bias": "none", "target_modules": ["v_proj"]}


def thin(n, p, seed=0):
    """A (r, in) and B (out, r)."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(RANK, n)).astype("<f4"), rng.normal(size=(p, RANK)).astype("<f4")


def write(directory, pairs, more=None, **changed):
    """An adapter as PEFT saves it."""
    directory.mkdir()
    (directory / "adapter_config.json").write_text(json.dumps(CONFIG | changed))
    tensors = {
        f"base_model.model.{name}.lora_{part}.weight": array
        for name, both in pairs.items()
        for part, array in zip("AB", both, strict=True)
    }
    checkpoints.safetensors(directory / "adapter_model.safetensors", tensors | (more or {}))
    return directory


def added(name, array, pair, scale=ALPHA / RANK):
    return {name: (array + scale * pair[1].astype(np.float64) @ pair[0]).astype(np.float32)}


def gguf(home):
    """A LLaMA, the modules of its adapter, and the LLaMA with their products added."""
    down, value, arrays = thin(64, 32), thin(32, 16, 1), ggufs.arrays()
    merged = added("blk.1.ffn_down.weight", arrays["blk.1.ffn_down.weight"], down)
    merged |= added("blk.0.attn_v.weight", arrays["blk.0.attn_v.weight"], value)
    pairs = {"model.layers.1.mlp.down_proj": down, "model.layers.0.self_attn.v_proj": value}
    return ggufs.write(home / "plain.gguf"), pairs, ggufs.write(home / "merged.gguf", tensors=merged)


def bert(home):
    query, arrays = thin(24, 24), checkpoints.arrays(checkpoints.CONFIG)
    merged = added(f"{QUERY}.weight", arrays[f"{QUERY}.weight"], query)
    return checkpoints.write(home / "plain"), {QUERY: query}, checkpoints.write(home / "merged", tensors=merged)


@pytest.mark.parametrize("made", [gguf, bert])
def test_the_model_is_the_one_with_the_products_added(tmp_path, made):
    plain, pairs, merged = made(tmp_path)
    adapter, batch = write(tmp_path / "adapter", pairs), Batch(TOKENS)
    found = dense(open_model(plain, adapter).operator(), batch)
    assert difference(found, dense(open_model(merged).operator(), batch)) < 1e-6
    assert difference(found, dense(open_model(plain).operator(), batch)) > 0.05
    rooted = write(tmp_path / "rooted", pairs, use_rslora=True, lora_alpha=ALPHA / RANK**0.5)
    assert difference(dense(open_model(plain, rooted).operator(), batch), found) < 1e-12


LAST, VALUE = "model.layers.1.mlp.down_proj", "model.layers.0.self_attn.v_proj"


@pytest.mark.parametrize(
    "pattern, name",
    [
        ("down_proj", LAST),
        (r"layers\.1\.mlp\.down_proj", LAST),
        ("^model.layers.1.mlp.down_proj", LAST),
        (r".*\.1\..*", LAST),
        ("v_proj", VALUE),
        ("(q|v)_proj", VALUE),
        ("proj", None),
        ("model.layers.1", None),
    ],
)
def test_a_pattern_gives_modules_a_number_of_their_own(tmp_path, pattern, name):
    """As PEFT matches: all of a name, or its end behind a dot."""
    _, pairs, _ = gguf(tmp_path)
    found = Adapter.read(write(tmp_path / "alphas", pairs, alpha_pattern={pattern: 2}))
    assert {each: pair.scale for each, pair in found.pairs.items()} == {
        each: (2 if each == name else ALPHA) / RANK for each in pairs
    }
    if name is None:
        return
    wide = pairs | {name: (np.repeat(pairs[name][0], 2, 0), np.repeat(pairs[name][1], 2, 1))}
    found = Adapter.read(write(tmp_path / "ranks", wide, rank_pattern={pattern: 2 * RANK}))
    assert {each: pair.scale for each, pair in found.pairs.items()} == {
        each: ALPHA / (2 * RANK if each == name else RANK) for each in pairs
    }


@pytest.mark.parametrize("made", [gguf, bert])
def test_with_dora_each_output_has_a_length(tmp_path, made):
    """Against W + s B A, its rows made of these lengths by hand; a row of zeros stays one."""
    plain, pairs, merged = made(tmp_path)
    rng, batch = np.random.default_rng(0), Batch(TOKENS)
    lengths = {name: rng.uniform(0.5, 2, len(second)).astype("<f4") for name, (_, second) in pairs.items()}
    vectors = {f"base_model.model.{name}.lora_magnitude_vector": each for name, each in lengths.items()}
    adapter = write(tmp_path / "dora", pairs, vectors, use_dora=True)
    names = {LAST: "blk.1.ffn_down.weight", VALUE: "blk.0.attn_v.weight", QUERY: f"{QUERY}.weight"}
    arrays = ggufs.arrays() if made is gguf else checkpoints.arrays(checkpoints.CONFIG)
    scaled = {}
    for name, pair in pairs.items():
        summed = added("", arrays[names[name]], pair)[""].astype(np.float64)
        length = np.linalg.norm(summed, axis=1, keepdims=True)
        scaled[names[name]] = (summed * lengths[name][:, None] / length).astype(np.float32)
    write_model = ggufs.write if made is gguf else checkpoints.write
    whole = write_model(tmp_path / ("whole.gguf" if made is gguf else "whole"), tensors=scaled)
    found, wanted = (dense(open_model(*each).operator(), batch) for each in ((plain, adapter), (whole,)))
    assert difference(found, wanted) < 1e-6
    assert difference(dense(open_model(merged).operator(), batch), wanted) > 0.01
    assert not column_gains(np.zeros((3, 2)), np.ones(2)).any()


RECORDED = json.loads((Path(__file__).parents[1] / "data" / "peft.json").read_text())


def stored(home, **models):
    """Directories of what is given as (config, tensors); an adapter's files have names of their own."""
    for place, (config, tensors) in models.items():
        (home / place).mkdir(parents=True)
        stem = "adapter_" if place == "adapter" else ""
        (home / place / f"{stem}config.json").write_text(json.dumps(config))
        checkpoints.safetensors(home / place / f"{stem}model.safetensors", tensors)


def merged_by_numpy(arrays, adapter, pairs):
    """W + s B A for the tensor of each name, whatever other tensors hold."""
    scale, merged = adapter["lora_alpha"] / adapter["r"] ** (0.5 if adapter["use_rslora"] else 1), dict(arrays)
    for each in (each.removesuffix(".lora_A.weight") for each in pairs if ".lora_A." in each):
        product = scale * pairs[f"{each}.lora_B.weight"].astype(np.float64) @ pairs[f"{each}.lora_A.weight"]
        to = f"{each.removeprefix('base_model.model.')}.weight"
        to = to if to in arrays else to.removeprefix("transformer.")
        turned = adapter["fan_in_fan_out"] and not to.startswith("lm_head")  # a plain Linear
        merged[to] = (arrays[to] + (product.T if turned else product)).astype("<f4")
    return merged


@pytest.mark.parametrize("name", RECORDED)
def test_what_peft_saves_is_read(tmp_path, rng, name):
    """Names, shapes and configs as PEFT 0.21.2 and transformers 5.23.0 write them, with random numbers."""
    model, weights, adapter, tensors = RECORDED[name].values()
    arrays = {each: (rng.normal(size=shape) / 4 + (len(shape) == 1)).astype("<f4") for each, shape in weights.items()}
    pairs = {each: rng.normal(size=shape).astype("<f4") / 4 for each, shape in tensors.items()}
    stored(
        tmp_path,
        plain=(model, arrays),
        merged=(model, merged_by_numpy(arrays, adapter, pairs)),
        adapter=(adapter, pairs),
    )
    found, wanted, without = (
        dense(open_model(tmp_path / place, also).operator(), Batch(TOKENS))
        for place, also in (("plain", tmp_path / "adapter"), ("merged", None), ("plain", None))
    )
    assert difference(found, wanted) < 1e-6 and difference(without, wanted) > 0.01


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("seed", range(4))
def test_pairs_belong_to_names_whatever_weights_are_equal(tmp_path, name, seed):
    """Weights of one shape are drawn from two arrays, in which one is zero: queries are keys, layers are layers. Any
    matrices have pairs, some of them equal; the scores of a vocabulary too, whether the table of tokens is theirs or
    not."""
    rng = np.random.default_rng(seed)
    model, weights, adapter, _ = RECORDED[name].values()
    pool = lambda shape, gain=0: [(rng.normal(size=shape) / 4 + gain).astype("<f4"), np.full(shape, gain, "<f4")]
    pools = {tuple(shape): pool(shape, len(shape) == 1) for shape in weights.values()}
    arrays = {each: pools[tuple(shape)][int(rng.random() < 0.3)] for each, shape in weights.items()}
    untied = dict(arrays)
    if tied := next((each for each in arrays if each.endswith("wte.weight")), None):
        untied["lm_head.weight"] = arrays[tied]
    matrices = [
        each
        for each, array in untied.items()
        if array.ndim == 2 and not any(other in each for other in ("embed", "pooler", "wte", "wpe"))
    ]
    pairs, thin_pools = {}, {}
    for each in rng.permutation(matrices)[: rng.integers(1, len(matrices) + 1)]:
        out, n = untied[each].shape[:: -1 if adapter["fan_in_fan_out"] and "lm_head" not in each else 1]
        stem = f"base_model.model.{each.removesuffix('.weight')}"
        for part, shape in (("A", (adapter["r"], n)), ("B", (out, adapter["r"]))):
            pairs[f"{stem}.lora_{part}.weight"] = thin_pools.setdefault(shape, pool(shape)[0])
    stored(
        tmp_path,
        plain=(model, arrays),
        adapter=(adapter, pairs),
        merged=(model | {"tie_word_embeddings": False}, merged_by_numpy(untied, adapter, pairs)),
    )
    found, wanted = (
        dense(open_model(tmp_path / place, also).operator(), Batch(TOKENS))
        for place, also in (("plain", tmp_path / "adapter"), ("merged", None))
    )
    assert difference(found, wanted) < 1e-6


def test_one_weight_that_an_adapter_names_twice_is_refused(tmp_path):
    plain, pairs, _ = gguf(tmp_path)
    (name, pair), *_ = pairs.items()
    place = write(tmp_path / "twice", {name: pair, name.removeprefix("model."): pair})
    with pytest.raises(InputError, match="are one weight of the model"):
        open_model(plain, place).operator()


@pytest.mark.parametrize(
    "name, rows, forms",
    [(name, *each) for name in ("half", "q4_1") for each in ((1, ["dense", "dense", name]), (4096, ["dense"]))],
)
def test_a_thin_product_is_kept_beside_a_narrow_weight_for_one_row_and_merged_for_many(rng, name, rows, forms):
    """The weight is float16 as it comes, or blocks of a file, which its sum with the product is not; a number is read
    in half the time."""
    machine = standin.machine()
    arithmetic, read, *others = machine.coefficients[f"linear.{name}"]
    machine.coefficients[f"linear.{name}"] = [arithmetic, read / 2, *others]
    made = blocks(rng, 512, 16)
    W = rng.normal(size=(512, 512)).astype(np.float16).astype(np.float32)
    if name == "q4_1":
        W = Data(widened(made), "W", made).T
    A, B = (rng.normal(size=shape).astype(np.float32) for shape in ((512, 8), (8, 512)))
    model = weight(rng.normal(size=(11, 512)).astype(np.float32)) @ tanh @ (weight(W) + weight(A) @ weight(B))
    batch = Batch([rng.integers(0, 11, rows)])
    found = search(model, EXACT_LAWS, machine, batch.extents())
    program, _ = found.program({})
    products = [program.constants[step.operands["weight"]] for step in program.steps if step.kernel == "linear"]
    assert sorted("dense" if each.plain else each.name for each in products) == forms
    assert "beside" in found.fired
    few = Batch([batch.tokens[:9]])
    assert difference(program.run(few), dense(model, few)) < 1e-6


def test_what_is_no_adapter_of_the_model_is_named(tmp_path):
    plain, pairs, _ = gguf(tmp_path)
    name, wide = "model.layers.1.mlp.down_proj", thin(99, 32)
    cases = [
        ({}, {}, {}, "it holds no tensor"),
        (pairs, {"r": 4}, {}, "they must be 4 x in"),
        (pairs, {"r": 0}, {}, "r is 0"),
        (pairs, {"lora_alpha": 1e200}, {}, "lora_alpha is 1e+200"),
        (pairs, {"peft_type": "IA3"}, {}, "peft_type is 'IA3'"),
        (pairs, {"use_dora": True}, {}, "lora_magnitude_vector is None, with use_dora True"),
        (pairs, {"use_rslora": 1}, {}, "use_rslora is 1: it must be true or false"),
        (pairs, {"use_dora": "yes"}, {}, "use_dora is 'yes'"),
        (pairs, {"rank_pattern": {"down_proj": 4}}, {}, "they must be 4 x in"),
        (pairs, {"rank_pattern": {"down_proj": True}}, {}, "rank_pattern: down_proj is True"),
        (pairs, {"rank_pattern": [3]}, {}, "rank_pattern is [3]"),
        (pairs, {"alpha_pattern": {"down_proj": "8"}}, {}, "alpha_pattern: down_proj is '8'"),
        (pairs, {"alpha_pattern": {"(a+)+": 8}}, {}, "'(a+)+' is refused (too involved)"),
        (pairs, {"alpha_pattern": {"a" * 999: 8}}, {}, "is refused (too involved)"),
        (pairs, {"alpha_pattern": {"[a": 8}}, {}, "'[a' is refused (unterminated character set"),
        (
            pairs,
            {},
            {f"base_model.model.{name}.lora_magnitude_vector": np.ones(32, "<f4")},
            "lora_magnitude_vector is (32,), with use_dora False",
        ),
        (pairs, {"alora_invocation_tokens": [3, 4]}, {}, "alora_invocation_tokens is [3, 4]"),
        (pairs, {"use_later": True}, {}, "use_later is True"),
        (pairs, {"init_lora_weights": "pissa"}, {}, "init_lora_weights is 'pissa'"),
        (pairs, {}, {"base_model.model.lm_head.weight": wide[0]}, "'base_model.model.lm_head.weight' is not one of"),
        ({name: wide}, {}, {}, "is for a weight of 99 x 32, the model has 64 x 32"),
        ({"model.layers.7.mlp.down_proj": pairs[name]}, {}, {}, "the model has none of that name"),
        ({name: (pairs[name][0], pairs[name][1].T.copy())}, {}, {}, "they must be 3 x in and out x 3"),
    ]
    for at, (own, changed, more, words) in enumerate(cases):
        place = write(tmp_path / f"{at}", own, more, **changed)
        with pytest.raises(InputError) as error:
            open_model(plain, place).operator()
        assert words in str(error.value) and str(place) in str(error.value) and "\n" not in str(error.value)
    (place / "adapter_model.safetensors").write_bytes(b"\xff" * 40)
    with pytest.raises(InputError, match="no whole safetensors file"):
        open_model(plain, place)


def test_the_command_names_a_directory_that_holds_no_adapter(command, tmp_path):  # noqa: F811
    plain = ggufs.write(tmp_path / "plain.gguf")
    refused(command("optimize", plain, "--adapter", tmp_path / "absent"), "absent", "adapter")


def test_a_pair_that_a_table_by_distance_is_made_of_is_refused(tmp_path):
    """Queries and keys of DeBERTa v3 are products of its embeddings of distances, too; its values are not."""
    config = dict(model_type="deberta-v2", vocab_size=50, hidden_size=24, intermediate_size=20, num_hidden_layers=1)
    config |= dict(num_attention_heads=3, max_position_embeddings=20, type_vocab_size=0, layer_norm_eps=1e-7)
    config |= dict(relative_attention=True, pos_att_type=["c2p", "p2c"], share_att_key=True)
    (home := tmp_path / "model").mkdir()
    (home / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes_of(config).items()}
    checkpoints.safetensors(home / "model.safetensors", arrays)
    inner = "encoder.layer.0.attention.self"
    value = write(tmp_path / "value", {f"{inner}.value_proj": thin(24, 24)})
    assert np.isfinite(dense(open_model(home, value).operator(), Batch(TOKENS))).all()
    query = write(tmp_path / "query", {f"{inner}.query_proj": thin(24, 24)})
    with pytest.raises(InputError, match=r"query: it changes what 'encoder.* by distance' is made of, .*: merge"):
        open_model(home, query).operator()
