"""Checkpoints in every way they come, and every way they are wrong: one line that names the file and the tensor."""

import json

import checkpoints
import numpy as np
import pytest

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.oracles import dense
from opmatrix.files.checkpoint import Checkpoint, open_model

NAME = "encoder.layer.1.attention.self.query.weight"
BATCH = Batch([np.array([2, 7, 19, 3]), np.array([2, 40, 3])])


def run(checkpoint):
    return dense(checkpoint.operator(), BATCH.selection("tokens", checkpoint.config["vocab_size"]), BATCH)


@pytest.mark.parametrize(
    "way",
    [{}, {"shards": 3}, {"prefix": "bert."}, {"old": True}, {"shards": 4, "prefix": "bert.", "old": True}],
    ids=str,
)
def test_every_way_to_store_gives_the_same_numbers(tmp_path, way):
    plain = Checkpoint.open(checkpoints.write(tmp_path / "plain"))
    other = Checkpoint.open(checkpoints.write(tmp_path / "other", **way))
    expected = checkpoints.arrays(checkpoints.CONFIG)
    for name, array in expected.items():
        assert np.array_equal(other.at(name, *array.shape).array, array) and other.at(name).array.dtype == np.float32
    assert np.array_equal(run(plain), run(other)) and run(plain).shape == (7, 24)


@pytest.mark.parametrize("number, bits", [("F16", 11), ("BF16", 7)])
def test_half_numbers_are_widened(tmp_path, number, bits):
    checkpoint = Checkpoint.open(checkpoints.write(tmp_path, number=number))
    for name, array in checkpoints.arrays(checkpoints.CONFIG).items():
        found = checkpoint.at(name).array
        assert found.dtype == np.float32 and not np.array_equal(found, array)
        np.testing.assert_allclose(found, array, rtol=2.0**-bits, atol=2.0**-24)


def test_bfloat16_bit_by_bit(tmp_path):
    exact = np.array([1.0, -2.5, 3.140625, 2.0**-126, -0.0, 2.0**127, 1e-40], np.float32)
    exact = (exact.view(np.uint32) & 0xFFFF0000).view(np.float32)
    checkpoint = Checkpoint.open(checkpoints.write(tmp_path, number="BF16", tensors={"some": exact}))
    assert np.array_equal(checkpoint.at("some", 7).array.view(np.uint32), exact.view(np.uint32))


def test_one_whole_file_goes_before_an_index(tmp_path):
    checkpoints.write(tmp_path, shards=2, seed=1)
    checkpoints.write(tmp_path, seed=2)
    whole = checkpoints.arrays(checkpoints.CONFIG, seed=2)[NAME]
    assert np.array_equal(Checkpoint.open(tmp_path).at(NAME).array, whole)


def test_tensors_of_a_head_that_trained_the_model_are_left_alone(tmp_path):
    extra = {
        "pooler.dense.weight": np.ones((24, 24), np.float32),
        "embeddings.position_ids": np.arange(20.0)[None],
        "cls.predictions.decoder.weight": np.ones((41, 24)),
        "cls.seq_relationship.bias": np.ones(2),
    }
    checkpoint = Checkpoint.open(checkpoints.write(tmp_path, tensors=extra, architectures=["BertForPreTraining"]))
    assert run(checkpoint).shape == (7, 24) and not checkpoint.head
    assert np.allclose(dense(checkpoint.operator(True), BATCH), checkpoint.pooling()(run(checkpoint), BATCH.starts))


def test_a_model_is_opened_by_its_directory(tmp_path):
    checkpoint = open_model(str(checkpoints.write(tmp_path / "small")))
    assert checkpoint.name == "small" and checkpoint.config["hidden_size"] == 24


def test_the_tokenizer_knows_the_positions(tmp_path):
    tokenizer = Checkpoint.open(checkpoints.write(tmp_path)).tokenizer()
    assert tokenizer.limit == 20 and len(tokenizer.encode(["the bank " * 9]).tokens) == 20
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(InputError, match=r"tokenizer\.json: No such file"):
        Checkpoint.open(tmp_path).tokenizer()


def cut(path, keep):
    path.write_bytes(path.read_bytes()[:keep])


def rewrite(path, **changed):
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


def drop(path, *keys):
    path.write_text(json.dumps({key: said for key, said in json.loads(path.read_text()).items() if key not in keys}))


def config(**changed):
    return lambda directory: rewrite(directory / "config.json", **changed)


def weights(keep):
    return lambda directory: cut(directory / "model.safetensors", keep)


DAMAGE = {  # what is done to a good checkpoint, and what the line names
    "no config": (lambda d: (d / "config.json").unlink(), r"config\.json: No such file"),
    "config is not JSON": (lambda d: cut(d / "config.json", 30), r"config\.json: not JSON"),
    "config is empty": (lambda d: cut(d / "config.json", 0), r"config\.json: not JSON"),
    "config is not a string": (
        lambda d: (d / "config.json").write_bytes(b"\xff\xfe\xfa" * 9),
        r"config\.json: not JSON",
    ),
    "config is nested": (lambda d: (d / "config.json").write_text("[" * 100_000), r"config\.json: brackets are nested"),
    "config is a list": (lambda d: (d / "config.json").write_text("[1]"), r"config\.json: list, not a JSON object"),
    "no family": (config(model_type="perceiver"), r"config\.json: model_type is 'perceiver': it must be one of bert, "),
    "a family that is a list": (config(model_type=["bert"]), r"model_type is \['bert'\]"),
    "no family at all": (lambda d: (d / "config.json").write_text("{}"), r"config\.json: 'model_type' is missing"),
    "a size in words": (config(hidden_size="24"), "hidden_size is '24': it must be a whole number from 1 to"),
    "a size of nothing": (config(hidden_size=0), "hidden_size is 0"),
    "a size below nothing": (
        config(num_hidden_layers=-1),
        "num_hidden_layers is -1: it must be a whole number from 0 to 1000",
    ),
    "a size of too much": (config(vocab_size=2**31), "vocab_size is 2147483648"),
    "a size with a point": (config(vocab_size=41.0), r"vocab_size is 41\.0"),
    "a size that is null": (config(intermediate_size=None), "intermediate_size is null: it must be a whole"),
    "a size that is true": (config(type_vocab_size=True), "type_vocab_size is true"),
    "an eps in words": (
        config(layer_norm_eps="1e-12"),
        "layer_norm_eps is '1e-12': it must be a number from 1e-20 to 1",
    ),
    "an eps that is no number": (config(layer_norm_eps=float("nan")), r"config\.json: not JSON: NaN is not a finite"),
    "an eps of nothing": (config(layer_norm_eps=0), "layer_norm_eps is 0"),
    "an eps that float32 lacks": (config(layer_norm_eps=1e-300), "layer_norm_eps is 1e-300"),
    "a flag in words": (config(is_decoder="false"), "is_decoder is 'false': it must be true or false"),
    "a flag as a number": (config(is_decoder=0), "is_decoder is 0"),
    "another model's keys": (
        config(is_decoder=True, add_cross_attention=True),
        "add_cross_attention is true: it must be false or",
    ),
    "positions in pairs": (
        config(position_embedding_type="relative_key"),
        "position_embedding_type is 'relative_key': .* absolute",
    ),
    "an activation of its own": (config(hidden_act="swish9"), "hidden_act is 'swish9': it must be one of gelu, "),
    "an activation in a list": (config(hidden_act=["gelu"]), r"hidden_act is \['gelu'\]"),
    "heads taken out": (
        config(pruned_heads={"0": [1]}),
        "pruned_heads is {'0': .* it must be {} or left out: every layer",
    ),
    "quantised": (config(quantization_config={"bits": 4}), "quantization_config is .* left out: weights are read"),
    "pickled weights": (
        lambda d: (d / "model.safetensors").rename(d / "pytorch_model.bin"),
        r"model\.bin: .*save_pretrained",
    ),
    "no weights": (lambda d: (d / "model.safetensors").unlink(), "neither model.safetensors nor model.saf"),
    "no bytes": (weights(0), r"model\.safetensors: 0 bytes that are no whole"),
    "cut in the header": (weights(100), r"model\.safetensors: 100 bytes that are no whole"),
    "cut in a tensor": (weights(-5), r"model\.safetensors: \d+ bytes that are no whole"),
    "another format": (lambda d: (d / "model.safetensors").write_bytes(b"\x80\x02}q." * 50), "250 bytes that are no"),
    "a directory": (
        lambda d: [(d / "model.safetensors").unlink(), (d / "model.safetensors").mkdir()],
        "it is a directory",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named_in_one_line(tmp_path, damage):
    harm, words = DAMAGE[damage]
    harm(checkpoints.write(tmp_path))
    with pytest.raises(InputError, match=words) as caught:
        Checkpoint.open(tmp_path)
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


INDEX = "model.safetensors.index.json"
SECOND = "model-00002-of-00003.safetensors"
BROKEN = {
    "a shard is missing": (lambda d: (d / SECOND).unlink(), rf"{SECOND}: No such file .*names this shard"),
    "a shard is cut": (lambda d: cut(d / SECOND, -1), rf"{SECOND}: \d+ bytes that are no whole"),
    "the index is not JSON": (lambda d: cut(d / INDEX, 10), rf"{INDEX}: not JSON"),
    "the index has no map": (lambda d: rewrite(d / INDEX, weight_map=None), rf"{INDEX}: weight_map"),
    "a shard lies elsewhere": (lambda d: rewrite(d / INDEX, weight_map={NAME: f"../{SECOND}"}), rf"{INDEX}: weight"),
    "a tensor lies elsewhere": (lambda d: rewrite(d / INDEX, weight_map={"other": SECOND}), rf"{SECOND}: tensor 'o"),
}


@pytest.mark.parametrize("damage", BROKEN)
def test_damaged_shards_are_named_in_one_line(tmp_path, damage):
    harm, words = BROKEN[damage]
    harm(checkpoints.write(tmp_path, shards=3))
    with pytest.raises(InputError, match=words):
        Checkpoint.open(tmp_path)


def test_names_that_are_no_model(tmp_path):
    with pytest.raises(
        InputError, match=r"no-such-model: neither a model that opmatrix fetches \(minilm, smollm2\) nor"
    ):
        open_model("no-such-model")
    for name in "abcdefgh":
        (tmp_path / name).mkdir()
    said = r"absent/deeper: no such directory: config\.json and model\.safetensors were looked for, and \S+ holds "
    with pytest.raises(InputError, match=said + "a, b, c, d, e, f and 2 more: give"):
        Checkpoint.open(tmp_path / "absent" / "deeper")
    with pytest.raises(InputError, match=r"a/config\.json: No such file: a model needs it, and \S+a is empty: give"):
        Checkpoint.open(tmp_path / "a")
    (tmp_path / "a" / "read\x1b.me").write_text("")
    with pytest.raises(InputError, match=r"a holds 'read\\x1b\.me': give"):
        Checkpoint.open(tmp_path / "a")
    with pytest.raises(InputError, match=r"config\.json: neither a model"):
        open_model(checkpoints.write(tmp_path) / "config.json")


def changed(tmp_path, **config):
    """Good weights, and a config that says something else about them."""
    checkpoints.write(tmp_path)
    rewrite(tmp_path / "config.json", **config)
    return Checkpoint.open(tmp_path)


@pytest.mark.parametrize(
    "config, words",
    [
        ({"hidden_size": 30}, "'embeddings.word_embeddings.weight' is 41 × 24, .* leads to 41 × 30: check hidden_size"),
        ({"vocab_size": 50}, "'embeddings.word_embeddings.weight' is 41 × 24, .* to 50 × 24: check vocab_size"),
        ({"intermediate_size": 47}, "'encoder.layer.0.intermediate.dense.weight' is 40 × 24, .* intermediate_size"),
        ({"max_position_embeddings": 512}, "'embeddings.position_embeddings.weight' is 20 × 24, .* max_posi"),
        ({"num_hidden_layers": 3}, "tensor 'encoder.layer.2.* is missing from the weights: check .*config.json"),
        ({"num_hidden_layers": 1}, "weights hold 'encoder.layer.1.*', which .* leaves out: check its number of layers"),
        (
            {"num_attention_heads": 5},
            r"/config\.json: num_attention_heads is 5: it must be a divisor of hidden_size, 24",
        ),
    ],
)
def test_a_config_that_does_not_match_the_weights(tmp_path, config, words):
    with pytest.raises(InputError, match=words):
        changed(tmp_path, **config).operator()


def test_a_key_that_the_config_lacks_is_named(tmp_path):
    checkpoint = Checkpoint.open(checkpoints.write(tmp_path))
    del checkpoint.config["num_attention_heads"]
    with pytest.raises(InputError, match=r"config\.json: 'num_attention_heads' is missing"):
        checkpoint.operator()


def test_a_key_that_is_left_out_has_the_default_of_its_family(tmp_path):
    """The type_vocab_size and layer_norm_eps of a BERT; a default that does not fit is named as one."""
    whole = checkpoints.write(tmp_path / "whole")
    silent = checkpoints.write(tmp_path / "silent")
    drop(silent / "config.json", "type_vocab_size", "layer_norm_eps")
    assert np.array_equal(run(Checkpoint.open(silent)), run(Checkpoint.open(whole)))
    drop(silent / "config.json", "hidden_size")
    with pytest.raises(InputError, match="leads to 41 × 768: check hidden_size, left out"):
        Checkpoint.open(silent).operator()
    drop(whole / "config.json", "num_attention_heads")
    rewrite(whole / "config.json", hidden_size=23)
    with pytest.raises(InputError, match=r"config\.json: num_attention_heads, left out, is 12: it must be a divisor"):
        Checkpoint.open(whole).operator()


@pytest.mark.parametrize(
    "silent", ["hidden_act", "is_decoder", "position_embedding_type", "add_cross_attention", "pruned_heads"]
)
def test_null_is_the_default(tmp_path, silent):
    plain = Checkpoint.open(checkpoints.write(tmp_path / "plain"))
    checkpoints.write(tmp_path / "null")
    rewrite(tmp_path / "null" / "config.json", **{silent: None})
    assert np.array_equal(run(Checkpoint.open(tmp_path / "null")), run(plain))


@pytest.mark.parametrize(
    "name",
    [
        "encoder.layer.0.attention.self.distance_embedding.weight",
        "embeddings.extra.weight",
        "encoder.layer.1.crossattention.self.key.bias",
        "encoder.norm.weight",
    ],
)
@pytest.mark.parametrize("prefix", ["", "bert."])
def test_a_tensor_that_no_bert_has_is_named(tmp_path, name, prefix):
    checkpoint = Checkpoint.open(checkpoints.write(tmp_path, prefix=prefix, tensors={name: np.ones(3, np.float32)}))
    with pytest.raises(InputError, match=rf"model\.safetensors: tensor '{prefix}{name}' is no part of a plain bert"):
        checkpoint.operator()


@pytest.mark.parametrize("number", ["F32", "F16", "BF16", "F64"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_weights_that_are_no_numbers_are_named(tmp_path, bad, number):
    array = checkpoints.arrays(checkpoints.CONFIG)[NAME]
    array[3, 5:] = bad
    array[20, 0] = np.nan
    checkpoint = Checkpoint.open(checkpoints.write(tmp_path, number=number, tensors={NAME: array}))
    with pytest.raises(InputError, match=rf"'{NAME}' has {bad} at \[3, 5\]"):
        checkpoint.operator()


def test_a_number_type_that_is_not_read_is_named(tmp_path):
    checkpoint = Checkpoint.open(checkpoints.write(tmp_path, number="I32"))
    with pytest.raises(InputError, match="number type I32: convert it to one of F32, F16, BF16, F64"):
        checkpoint.at(NAME)


def test_doubles_are_rounded_once_and_those_beyond_float32_are_named(tmp_path):
    array = checkpoints.arrays(checkpoints.CONFIG)[NAME].astype(np.float64) * (1 + 1e-12)
    checkpoint = Checkpoint.open(checkpoints.write(tmp_path / "good", number="F64", tensors={NAME: array}))
    assert (
        np.array_equal(checkpoint.at(NAME).array, array.astype(np.float32))
        and checkpoint.at(NAME).array.dtype == np.float32
    )
    array[3, 5] = -1e39
    checkpoint = Checkpoint.open(checkpoints.write(tmp_path / "large", number="F64", tensors={NAME: array}))
    with pytest.raises(InputError, match=rf"'{NAME}' has -1e\+39 at \[3, 5\]: .* of float32, at most 3\.4e38"):
        checkpoint.operator()


def test_a_tensor_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"tensor 'lm_head\.weight' is missing"):
        Checkpoint.open(checkpoints.write(tmp_path)).at("lm_head.weight")


def test_a_file_cut_off_after_it_was_opened_is_named(tmp_path):
    checkpoint = Checkpoint.open(checkpoints.write(tmp_path))
    cut(tmp_path / "model.safetensors", -5)
    with pytest.raises(InputError, match=r"model\.safetensors: it ends within tensor"):
        for name in checkpoint.tensors:
            checkpoint.at(name)
