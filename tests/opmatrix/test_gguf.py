"""GGUF files: what is read of a small one, and a line for everything that is wrong with others, however they were cut
or changed."""

import struct
from functools import partial

import ggufs
import numpy as np
import plain
import pytest
from ggufs import WORDS, write

from formats.core.errors import InputError
from formats.disk.files import parse_json
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.oracles import dense
from opmatrix.files.checkpoint import Checkpoint, open_model
from opmatrix.files.directory.merges import RULES
from opmatrix.files.gguf import turned_share

BATCH = Batch([[3, 4, 5, 6, 7, 9, 30], [8]])


def permuted(array, heads):
    """Rows of queries and keys as GGUF has them: each beside its fellow of the second half of its head."""
    return array.reshape(heads, 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)


def ours(name):
    """A tensor's name in transformers' files."""
    parts = {
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
    }
    if not name.startswith("blk."):
        return {"token_embd.weight": "embed_tokens.weight", "output_norm.weight": "norm.weight"}[name]
    _, layer, part, end = name.split(".")
    return f"layers.{layer}.{parts[part]}.{end}"


def test_a_file_is_the_model_that_it_was_made_of(tmp_path):
    """Queries and keys turned, tied scores of the vocabulary; by plain numpy."""
    w = {ours(name): array.astype(np.float64) for name, array in ggufs.arrays().items()}
    turned = {
        f"blk.{l}.attn_{part}.weight": permuted(ggufs.arrays()[f"blk.{l}.attn_{part}.weight"], heads)
        for l in range(2)
        for part, heads in (("q", 4), ("k", 2))
    }
    checkpoint = open_model(write(tmp_path / "small.gguf", tensors=turned))
    assert (checkpoint.name, checkpoint.speaks, checkpoint.positions) == ("small", True, 16)
    config = dict(
        num_attention_heads=4,
        num_key_value_heads=2,
        rms_norm_eps=1e-5,
        hidden_size=32,
        rope_theta=300.0,
        num_hidden_layers=2,
    )
    hidden = np.concatenate([plain.llama(config, w, one.tokens) for one in BATCH])
    np.testing.assert_allclose(
        dense(checkpoint.operator(), BATCH), hidden @ w["embed_tokens.weight"].T, rtol=1e-10, atol=1e-11
    )


def test_a_directory_with_one_file_is_that_file(tmp_path):
    write(tmp_path / "small.gguf")
    assert Checkpoint.open(tmp_path).directory == tmp_path / "small.gguf"
    write(tmp_path / "other.gguf")
    with pytest.raises(InputError, match=r"config\.json: No such file"):
        Checkpoint.open(tmp_path)


def test_a_head_of_its_own_and_a_window(tmp_path):
    head = np.random.default_rng(9).normal(size=(WORDS, 32)).astype(np.float32)
    made = open_model(write(tmp_path / "own.gguf", {"llama.attention.sliding_window": 3}, {"output.weight": head}))
    assert made.config["model_type"] == "mistral" and not made.config["tie_word_embeddings"]
    assert np.array_equal(made.at("lm_head.weight").array, head)


@pytest.mark.parametrize(
    "said, turns",
    [
        ({}, 1),
        ({"type": "none", "factor": 4.0}, 1),
        ({"factor": 4.0}, 4),
        ({"type": "linear", "factor": 4.0}, 4),
        ({"factor": 0.0}, 1),
        ({"type": "linear"}, 1),
        ({"factor": 1.0}, 1),
        ({"type": "linear", "factor": 0.0}, 1),
    ],
)
def test_positions_are_scaled_as_the_file_or_its_silence_says(tmp_path, said, turns):
    """As llama.cpp's load_hparams: linear where there is a factor and no type; no factor, or 0, is none."""
    keys = {f"llama.rope.scaling.{name}": value for name, value in said.items()}
    found = dense(open_model(write(tmp_path / "scaled.gguf", keys)).operator(), BATCH)
    plainly = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": float(turns)} if turns > 1 else {}
    assert np.array_equal(found, dense(open_model(write(tmp_path / "plain.gguf", plainly)).operator(), BATCH))
    unscaled = dense(open_model(write(tmp_path / "unscaled.gguf")).operator(), BATCH)
    assert np.array_equal(found, unscaled) == (turns == 1)


def test_as_many_columns_turn_as_the_file_says():
    for columns in range(2, 260):
        for turning in range(1, columns + 1):
            assert int(columns * turned_share(turning, columns)) == turning


def renamed(kind):
    """The keys of the small file for another architecture."""
    return (
        {"general.architecture": kind}
        | {name: None for name in ggufs.SAID if name.startswith("llama.")}
        | {name.replace("llama", kind): value for name, value in ggufs.SAID.items() if name.startswith("llama.")}
    )


NORMED = {f"blk.{l}.attn_{part}_norm.weight": np.linspace(0.5, 1.5, 8) for l in range(2) for part in "qk"}


@pytest.mark.parametrize("turning", [2, 4, 6])
def test_some_columns_of_a_head_turn(tmp_path, turning):
    """In files whose rows lie by halves; in a LLaMA's, whose rows lie in pairs, llama.cpp takes no such number."""
    made = open_model(write(tmp_path / "some.gguf", renamed("qwen3") | {"qwen3.rope.dimension_count": turning}, NORMED))
    said = dict(num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5, hidden_size=32, num_hidden_layers=2)
    w = {ours(name): array.astype(np.float64) for name, array in ggufs.arrays().items()}
    w |= {
        f"layers.{l}.self_attn.{part}_norm.weight": np.linspace(0.5, 1.5, 8, dtype=np.float32).astype(float)
        for l in range(2)
        for part in "qk"
    }
    turns = 300.0 ** (-np.arange(0, turning, 2) / turning)
    hidden = np.concatenate([plain.llama(said, w, one.tokens, frequencies=turns) for one in BATCH])
    scores = hidden @ w["embed_tokens.weight"].T
    np.testing.assert_allclose(dense(made.operator(), BATCH), scores, rtol=1e-10, atol=1e-11)


LEFT_OUT = {  # what the model would be computed without, by architecture
    "part of a head, whose rows lie in pairs": ("llama", {"rope.dimension_count": 4}, "dimension_count is 4: it must"),
    "no least square": ("llama", {"attention.layer_norm_rms_epsilon": None}, "layer_norm_rms_epsilon is missing"),
    "another norm's": ("qwen3", {"attention.layer_norm_epsilon": 1e-5}, "layer_norm_epsilon is 1e-05"),
    "a window of some layers": ("qwen3", {"attention.sliding_window": 3}, "sliding_window is 3"),
    "scores that are larger": ("qwen3", {"rope.scaling.attn_factor": 2.0}, "attn_factor is 2.0"),
    "an older factor": ("llama", {"rope.scale_linear": 4.0}, "scale_linear is 4.0"),
    "experts": ("qwen3", {"expert_used_count": 2}, "expert_used_count is 2"),
    "both sides": ("qwen3", {"attention.causal": False}, "attention.causal is False"),
    "a pooling": ("qwen3", {"pooling_type": 3}, "pooling_type is 3"),
    "parts elsewhere": ("qwen3", {"/split.count": 2}, "split.count is 2"),
}


@pytest.mark.parametrize("case", LEFT_OUT)
def test_what_a_model_would_be_computed_without_is_refused(tmp_path, case):
    kind, keys, words = LEFT_OUT[case]
    said = renamed(kind) | {f"{kind}.{name}".replace(f"{kind}./", ""): value for name, value in keys.items()}
    file = write(tmp_path / "some.gguf", said, NORMED if kind == "qwen3" else {})
    with pytest.raises(InputError, match=rf"^{file}: .*{words}") as caught:
        open_model(file).operator()
    assert "\n" not in str(caught.value)


HALVES = {1: lambda x: x.astype("<f2"), 30: lambda x: (x.view("<u4") >> 16).astype("<u2")}


@pytest.mark.parametrize("number", HALVES)
def test_halves_are_widened(tmp_path, number):
    name, whole = "blk.0.ffn_up.weight", ggufs.arrays()["blk.0.ffn_up.weight"]
    packed = HALVES[number](whole)
    made = open_model(write(tmp_path / "half.gguf", tensors={name: (number, whole.shape, packed.tobytes())}))
    wanted = packed.astype("<f4") if number == 1 else (packed.astype("<u4") << 16).view("<f4")
    assert np.array_equal(made.at("layers.0.mlp.up_proj.weight").array, wanted)


def test_blocks_by_hand(tmp_path):
    """Q8_0, Q4_0, Q4_1: one block, number by number."""
    d, m = np.float16(0.37), np.float16(-1.25)
    q = np.arange(32) * 7 % 16
    packed = (q[:16] | q[16:] << 4).astype("u1").tobytes()
    scaled = lambda q: np.float32(d) * q.astype(np.float32)
    for number, wanted, block in [
        (8, scaled(q - 9), d.tobytes() + (q - 9).astype("i1").tobytes()),
        (2, scaled(q - 8), d.tobytes() + packed),
        (3, scaled(q) + np.float32(m), d.tobytes() + m.tobytes() + packed),
    ]:
        made = open_model(write(tmp_path / "block.gguf", tensors={"output_norm.weight": (number, (32,), block)}))
        assert np.array_equal(made.at("norm.weight").array, wanted)


# ---- the tokenizer


def test_the_tokenizer_merges_as_the_file_says(tmp_path):
    tokenizer = open_model(write(tmp_path / "small.gguf")).tokenizer()
    index = ggufs.TOKENS.index
    assert tokenizer.limit == 16
    # digits apart
    assert tokenizer.encode("the the12</s>").tokens.tolist() == [index("the"), index("Ġthe"), index("1"), index("2"), 1]
    plainer = open_model(
        write(tmp_path / "other.gguf", {"tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.add_bos_token": True})
    ).tokenizer()
    assert plainer.encode("the12").tokens.tolist() == [0, index("the"), index("12")]


@pytest.mark.parametrize("rule", [None, "default"])
def test_a_file_that_names_no_rule_cuts_words_as_llama_cpp_does(tmp_path, rule):
    """Runs of signs, words, three digits at a time."""
    tokenizer = open_model(write(tmp_path / "small.gguf", {"tokenizer.ggml.pre": rule})).tokenizer()
    cut = [tokenizer.tokenizer.pre_tokenizer.pre_tokenize_str(words) for words in ("a 12345$=b", "it's  x!\n\n")]
    assert [[word for word, _ in each] for each in cut] == [
        ["a", "Ġ", "123", "45", "$=", "b"],
        ["it", "'", "s", "Ġ", "Ġx", "!", "ĊĊ"],
    ]


def test_frequencies_are_divided_by_the_factors_of_a_file(tmp_path):
    """As LLaMA 3.1's files have them; and a file without such a tensor turns as before."""
    factors = np.array([1, 2, 8, 0.5], "<f4")
    checkpoint = open_model(write(tmp_path / "small.gguf", tensors={"rope_freqs.weight": factors}))
    w = {ours(name): array.astype(np.float64) for name, array in ggufs.arrays().items()}
    config = dict(num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5, hidden_size=32, num_hidden_layers=2)
    turns = 300.0 ** (-np.arange(0, 8, 2) / 8) / factors
    usual = {
        f"layers.{l}.self_attn.{part}_proj.weight": unpaired(w[f"layers.{l}.self_attn.{part}_proj.weight"], heads)
        for l in range(2)
        for part, heads in (("q", 4), ("k", 2))
    }
    hidden = [plain.llama(config | {"rope_theta": 300.0}, w | usual, one.tokens, frequencies=turns) for one in BATCH]
    scores = np.concatenate(hidden) @ w["embed_tokens.weight"].T
    np.testing.assert_allclose(dense(checkpoint.operator(), BATCH), scores, rtol=1e-10, atol=1e-11)


def unpaired(array, heads):
    """Rows of queries and keys as transformers has them: the inverse of `permuted`."""
    return array.reshape(heads, -1, 2, array.shape[1]).swapaxes(1, 2).reshape(array.shape)


def parted(folder, changes=None):
    """A model in three files; `changes` of the keys of the last one."""
    whole, names = ggufs.arrays(), [folder / f"it-{part:05d}-of-00003.gguf" for part in (1, 2, 3)]
    for at, file in enumerate(names):
        some = {name: array if i % 3 == at else None for i, (name, array) in enumerate(whole.items())}
        keys = {"split.count": 3, "split.no": at} | (changes or {} if at == 2 else {})
        write(file, keys, some)
    return names


def test_a_model_in_several_files_is_opened_by_its_first(tmp_path):
    """Equal to the model in one file; by another of its files, or with one of another model, it is a line."""
    first, second, last = parted(tmp_path)
    whole = dense(open_model(write(tmp_path / "whole.gguf")).operator(), BATCH)
    assert np.array_equal(dense(open_model(first).operator(), BATCH), whole)
    for wrong, words in (
        (second, "split.count is 3: the tensors of one model are in several files: give the first, called NAME-00001"),
        (parted(tmp_path, {"split.no": 1})[0], "it-00003-of-00003.gguf: it is not part 3 of 3 of it-00001"),
    ):
        with pytest.raises(InputError, match=words) as caught:
            open_model(wrong)
        assert "\n" not in str(caught.value)
    last.unlink()
    with pytest.raises(InputError, match=r"it-00003-of-00003\.gguf"):
        open_model(first)


SCORED = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(12)), "\u2581"]
PIECES = [*"theo", "th", "he", "the", "\u2581the", "\u2581t", "\u2581th", "oo", "ot", "eo", "thoo", "\u2581o", "oth"]


def test_pieces_merge_by_their_scores(tmp_path):
    """As SentencePiece's BPE: the neighbours whose piece has the highest score first; bytes for what has no piece."""
    tokens = [*SCORED, *PIECES]
    tokens += [f"x{at}" for at in range(WORDS - len(tokens))]
    kinds = [2, 3, 3] + [6] * 12 + [1] * (WORDS - 15)
    said = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": None,
        "tokenizer.ggml.merges": None,
        "tokenizer.ggml.add_bos_token": None,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 1,
    }
    scores = [0.0] * 15 + [-float(at) for at in range(WORDS - 15)]
    file = write(tmp_path / "spm.gguf", said | {"tokenizer.ggml.scores": scores})
    tokenizer = open_model(file).tokenizer()
    pieces = lambda text: [tokens[at] for at in tokenizer.encode(text).tokens]
    assert pieces("the tho") == ["<s>", "\u2581the", "\u2581th", "o"]
    assert pieces("oothe\n") == ["<s>", "\u2581", "oo", "the", "<0x0A>"]
    assert pieces("q")[-1] == "<unk>"  # neither a piece nor bytes


VOCABULARIES = {
    "another model": ({"tokenizer.ggml.model": "rwkv"}, "tokenizer.ggml.model is 'rwkv': supported are gpt2"),
    "scores that are missing": ({"tokenizer.ggml.model": "llama"}, "tokenizer.ggml.scores is None: a number for each"),
    "no model": ({"tokenizer.ggml.model": None}, "tokenizer.ggml.model is None"),
    "other rules": (
        {"tokenizer.ggml.pre": "bloom"},
        "tokenizer.ggml.pre is 'bloom': supported are gpt-2, default, phi-2",
    ),
    "too few": ({"tokenizer.ggml.tokens": ggufs.TOKENS[:-1]}, "39 tokens, but the model has 40"),
    "twice": ({"tokenizer.ggml.tokens": ["a", *ggufs.TOKENS[1:]]}, "a token is in the vocabulary twice"),
    "no types": ({"tokenizer.ggml.token_type": None}, "tokenizer.ggml.token_type is None: a list is needed"),
    "few types": ({"tokenizer.ggml.token_type": [1]}, "1 types of 40 tokens"),
    "merges of numbers": ({"tokenizer.ggml.merges": [1, 2]}, r"tokenizer.ggml.merges is \[1, 2\]: a list is needed"),
    "a merge of nothing": ({"tokenizer.ggml.merges": ["x"]}, "its vocabulary is no tokenizer"),
    "a merge of strangers": ({"tokenizer.ggml.merges": ["é é"]}, "its vocabulary is no tokenizer"),
    "no first": (
        {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": 99},
        "tokenizer.ggml.bos_token_id is 99: texts have it, so it must be a whole number below 40",
    ),
    "no last": (
        {"tokenizer.ggml.add_eos_token": True, "tokenizer.ggml.eos_token_id": None},
        "tokenizer.ggml.eos_token_id is None",
    ),
    "first in words": ({"tokenizer.ggml.add_bos_token": "yes"}, "tokenizer.ggml.add_bos_token is 'yes': it must be"),
    "last as a number": ({"tokenizer.ggml.add_eos_token": 1}, "tokenizer.ggml.add_eos_token is 1: it must be true"),
    "another end": (
        {"tokenizer.ggml.add_sep_token": True},
        "tokenizer.ggml.add_sep_token is True: it would be ignored",
    ),
}


@pytest.mark.parametrize("last", [None, False, True])
@pytest.mark.parametrize("first", [None, False, True])
@pytest.mark.parametrize("rule", RULES)
def test_texts_begin_and_end_as_the_file_or_its_silence_says(tmp_path, rule, first, last):
    """As llama.cpp's llama_vocab::impl::load: of the rules that are read here, those of LLaMA 3 alone begin texts
    where nothing is said; nothing is ended."""
    said = {
        "tokenizer.ggml.pre": rule,
        "tokenizer.ggml.add_bos_token": first,
        "tokenizer.ggml.add_eos_token": last,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
    }
    tokens = open_model(write(tmp_path / "small.gguf", said)).tokenizer().encode("the").tokens.tolist()
    begins = RULES[rule].begins if first is None else first
    assert tokens == [0] * begins + [ggufs.TOKENS.index("the")] + [1] * bool(last)


@pytest.mark.parametrize("wrong", VOCABULARIES)
def test_a_vocabulary_that_does_not_fit_is_named(tmp_path, wrong):
    said, words = VOCABULARIES[wrong]
    file = write(tmp_path / "bad.gguf", said)
    with pytest.raises(InputError, match=rf"^{file}: {words}") as caught:
        open_model(file).tokenizer()
    assert "\n" not in str(caught.value)


# ---- what is wrong


def bytes_of(*parts):
    return lambda file: file.write_bytes(b"GGUF" + b"".join(parts))


def saying(name, value):
    return partial(write, said={name: value})


def placing(shape, number, place):
    return partial(write, entries={NORM: (shape, number, place)})


NORM = "output_norm.weight"
DAMAGE = {
    "wrong magic": (partial(write, magic=b"GGML"), "it begins with b'GGML'"),
    "old": (partial(write, version=1), "it is of version 1, not 2 or 3"),
    "the other way round": (partial(write, version=3 << 24), "it is of version 50331648"),
    "empty": (lambda f: f.write_bytes(b""), "0 bytes that are no whole GGUF file"),
    "a list without end": (
        bytes_of(struct.pack("<IQQ", 3, 1, 1), ggufs.text("a"), struct.pack("<IIQ", 9, 0, 2**60), bytes(99)),
        "1152921504606846976 values at byte",
    ),
    "keys without end": (bytes_of(struct.pack("<IQQ", 3, 1, 2**63)), "it has 9223372036854775808 keys"),
    "a text without end": (bytes_of(struct.pack("<IQQQ", 3, 1, 1, 2**62)), "a text of 4611686018427387904 bytes"),
    "no text": (bytes_of(struct.pack("<IQQQ", 3, 1, 1, 2), b"\xff\xfe", bytes(9)), "can't decode"),
    "an alignment of 3": (saying("general.alignment", 3), "its alignment is 3"),
    "an unread quantisation": (
        placing((32,), 19, 0),
        r"'output_norm.weight' has number type 19 \(IQ1_S\), which is not read: quantise the model to one of F32",
    ),
    "a type of no ggml": (placing((32,), 99, 0), r"has number type 99 \(which no ggml that is known here has\)"),
    "part of a block": (placing((31,), 8, 0), "has rows of 31, blocks 32"),
    "beyond the end": (placing((32,), 0, 2**40), "it ends within tensor 'output_norm.weight'"),
    "larger than memory": (placing((2**20, 2**30), 0, 0), r"'output_norm.weight' is \(1048576, 1073741824\)"),
    "no numbers": (placing((0,), 0, 0), r"'output_norm.weight' is \(0,\)"),
    "another model": (
        saying("general.architecture", "mamba"),
        "general.architecture is 'mamba': it must be one of llama, qwen2",
    ),
    "no architecture": (saying("general.architecture", None), "general.architecture is None"),
    "a key that nobody reads": (
        saying("llama.expert_shared_count", 8),
        "llama.expert_shared_count is 8: the model would be computed without",
    ),
    "a window of 0": (
        saying("llama.attention.sliding_window", 0),
        "sliding_window is 0: it must be a whole number from 1",
    ),
    "layers without end": (saying("llama.block_count", 2**31), "num_hidden_layers is 2147483648"),
    "heads of nothing": (saying("llama.attention.head_count", 0), "num_attention_heads is 0"),
    "a size in words": (saying("llama.embedding_length", "wide"), "hidden_size is the name wide: a number is needed"),
    "a size that is missing": (saying("llama.embedding_length", None), "'hidden_size' is missing"),
    "angles of other columns": (
        partial(write, tensors={"rope_freqs.weight": np.ones(3)}),
        "frequency_factors is 3: it must be as many numbers as pairs of columns turn, 4",
    ),
    "angles that do not turn": (
        partial(write, tensors={"rope_freqs.weight": np.zeros(4)}),
        r"frequency_factors is \[0.0, 0.0, 0.0, 0.0\]: it must be a list of positive numbers",
    ),
    "a layer too many": (saying("llama.block_count", 1), r"the weights hold 'layers\.1\..*', which .* leaves out"),
    "a layer too few": (saying("llama.block_count", 3), r"tensor 'layers\.2\..*' is missing"),
    "another width": (
        partial(write, said={"llama.embedding_length": 64, "llama.attention.key_length": 8}),
        "tensor 'token_embd.weight' is 40 × 32, but .* leads to 40 × 64",
    ),
    "turns of no columns": (
        saying("llama.rope.dimension_count", 0),
        "dimension_count is 0: it must be a whole number from 1 to 8",
    ),
    "turns of more columns": (saying("llama.rope.dimension_count", 10), "dimension_count is 10: it must be"),
    "turns of part of a column": (saying("llama.rope.dimension_count", 4.0), "dimension_count is 4.0: it must be"),
    "turns in words": (saying("llama.rope.dimension_count", "all"), "dimension_count is 'all': it must be"),
    "turns of an odd number": (saying("llama.rope.dimension_count", 7), "dimension_count is 7: it must be 8"),
    "values of their own": (saying("llama.attention.value_length", 4), "value_length is 4: it must be 8"),
    "a factor in words": (saying("llama.rope.scaling.factor", "4"), "factor is '4': it must be a number"),
    "a negative factor": (saying("llama.rope.scaling.factor", -2.0), "factor is -2.0: it must be a number"),
    "scaling of another kind": (saying("llama.rope.scaling.type", "longrope"), "rope_type is 'longrope': it must be"),
    "heads that share badly": (
        saying("llama.attention.head_count_kv", 3),
        "num_key_value_heads is 3: it must be a divisor",
    ),
    "not a finite numbers": (
        partial(write, tensors={NORM: np.full(32, np.nan)}),
        r"tensor 'output_norm.weight' has nan at \[0\]",
    ),
    "an infinite scale": (
        partial(write, tensors={NORM: (8, (32,), b"\0\x7c" + b"\1" * 32)}),
        r"tensor 'output_norm.weight' has inf at \[0\]",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named_in_one_line(tmp_path, damage):
    harm, words = DAMAGE[damage]
    harm(file := tmp_path / "bad.gguf")
    with pytest.raises(InputError, match=words) as caught:
        open_model(file).operator()
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_that_ends_anywhere_is_named(tmp_path):
    whole = write(tmp_path / "whole.gguf").read_bytes()
    for keep in [*range(0, 3000, 37), *range(3000, len(whole) - 32, 997)]:
        (file := tmp_path / "cut.gguf").write_bytes(whole[:keep])
        with pytest.raises(InputError, match=rf"^{file}: {keep} bytes that are no whole GGUF file"):
            open_model(file)


def test_changed_headers_are_a_line_or_a_model(tmp_path, rng):
    """Bytes of a header are replaced at random: what follows is a model, or an InputError of one line."""
    whole = write(tmp_path / "whole.gguf").read_bytes()
    end, refused = len(whole) - sum(array.nbytes for array in ggufs.arrays().values()), 0
    for _ in range(300):
        bytes_ = bytearray(whole)
        for at in rng.integers(0, end, rng.integers(1, 4)):
            bytes_[at] = rng.choice([0, 1, 127, 255, rng.integers(256)])
        (file := tmp_path / "changed.gguf").write_bytes(bytes_)
        try:
            made = open_model(file)
            made.operator()
            parse_json(made.tokenizer_text, "tokenizer")
        except InputError as error:
            refused += 1
            assert "\n" not in str(error) and str(file) in str(error)
    assert 50 < refused < 300
