"""Small random models of every family that transformers and sentence-transformers save and opmatrix opens, with a
tokenizer of the family's own kind, as they lie in directories."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROWS, POSITIONS = 330, 40
WORDS = "the a bank of river runs dry caf\u00e9 cafe ? . , ##s ##ing ##r un".split()
MARKS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SIZES = dict(
    vocab_size=ROWS,
    hidden_size=24,
    intermediate_size=20,
    num_hidden_layers=2,
    num_attention_heads=3,
    max_position_embeddings=POSITIONS,
)
DECODER = SIZES | dict(num_key_value_heads=1, bos_token_id=None, eos_token_id=None)
MODERN = dict(bos_token_id=0, eos_token_id=1, pad_token_id=2, cls_token_id=0, sep_token_id=1, local_attention=8)
APART = dict(relative_attention=True, position_biased_input=False, pos_att_type=["p2c", "c2p"], type_vocab_size=0)
GPT2 = dict(vocab_size=ROWS, n_embd=24, n_layer=2, n_head=3, n_positions=POSITIONS, bos_token_id=1, eos_token_id=1)
EXPERTS = DECODER | dict(moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2)
LESS_ONE = "Qwen3NextRMSNorm", "Qwen3_5RMSNorm", "Qwen3_5MoeRMSNorm"  # norms whose gain is 1 + w
DELTA_NETS = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=6, linear_value_head_dim=5)
DELTA_NETS |= dict(head_dim=8, full_attention_interval=2)


class SavedFamily(NamedTuple):
    """A model that transformers saves: the words its classes begin and end with, its config, its tokenizer. `older`:
    with the files of versions before 5; `embeds`: with those of sentence-transformers."""

    stem: str
    kind: str
    config: dict[str, Any]
    tokenizer: Callable[[], Any]
    older: bool = False
    embeds: bool = False


def bert_words() -> Any:
    import transformers

    words = {word: place for place, word in enumerate([*MARKS, *WORDS, *map(chr, range(ord("b"), ord("z") + 1))])}
    return transformers.BertTokenizer(vocab=words)


def byte_words(*special: str) -> dict[str, Any]:
    """Letters for all bytes, a few merges, and special words before them."""
    from tokenizers import pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("\u0120", "the"), ("\u0120", "r"), ("u", "n")]
    vocab = {word: place for place, word in enumerate([*special, *letters, *map("".join, merges)])}
    return {"vocab": vocab, "merges": merges}


def gpt2_words() -> Any:
    import transformers

    return transformers.GPT2Tokenizer(**byte_words("<|endoftext|>"))


def roberta_words() -> Any:
    import transformers

    return transformers.RobertaTokenizer(**byte_words("<s>", "<pad>", "</s>", "<unk>", "<mask>"))


def qwen_words() -> Any:
    import transformers

    return transformers.Qwen2Tokenizer(**byte_words("<|endoftext|>", "<|im_start|>"))


def plain_words() -> Any:
    """A tokenizer.json that the plain class reads as it is, a token before every text."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    made = Tokenizer(models.BPE(**byte_words("<s>", "</s>", "<unk>")))
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    made.add_special_tokens(["<s>", "</s>", "<unk>"])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", unk_token="<unk>", clean_up_tokenization_spaces=False
    )


def unigrams(first: list[str]) -> list[tuple[str, float]]:
    return [
        *((word, 0.0) for word in first),
        *((f"\u2581{word}", -3.0) for word in WORDS),
        *((chr(letter), -6.0) for letter in range(ord("a"), ord("z") + 1)),
        ("\u2581", -4.0),
    ]


def t5_words() -> Any:
    import transformers

    return transformers.T5Tokenizer(vocab=unigrams(["<pad>", "</s>", "<unk>"]))


def xlm_words() -> Any:
    import transformers

    return transformers.XLMRobertaTokenizer(vocab=unigrams(["<s>", "<pad>", "</s>", "<unk>", "<mask>"]))


def camembert_words() -> Any:
    import transformers

    return transformers.CamembertTokenizer(vocab=unigrams(["<s>", "<pad>", "</s>", "<unk>", "<mask>"]))


def albert_words() -> Any:
    import transformers

    return transformers.AlbertTokenizer(vocab=unigrams(["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]))


def deberta_words() -> Any:
    import transformers

    return transformers.DebertaV2Tokenizer(vocab=unigrams(["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]))


def mpnet_words() -> Any:
    import transformers

    special = ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"]
    words = {word: place for place, word in enumerate([*special, *WORDS, *map(chr, range(ord("b"), ord("z") + 1))])}
    return transformers.MPNetTokenizer(vocab=words)


T5 = dict(vocab_size=ROWS, d_model=24, d_kv=8, d_ff=20, num_layers=2, num_heads=3)
DISTIL = dict(vocab_size=ROWS, dim=24, hidden_dim=20, n_layers=2, n_heads=3, max_position_embeddings=POSITIONS)
SAVED = {
    "bert": SavedFamily("Bert", "ForMaskedLM", SIZES, bert_words),
    "bert, older files": SavedFamily("Bert", "Model", SIZES, bert_words, older=True),
    "bert, embeds": SavedFamily("Bert", "Model", SIZES, bert_words, embeds=True),
    "bert, words of xlm-roberta": SavedFamily("Bert", "Model", SIZES, xlm_words, embeds=True),
    "distilbert": SavedFamily("DistilBert", "Model", DISTIL, bert_words),
    "roberta": SavedFamily(
        "Roberta", "ForMaskedLM", SIZES | dict(max_position_embeddings=POSITIONS + 2), roberta_words
    ),
    "roberta, embeds": SavedFamily(
        "Roberta", "Model", SIZES | dict(max_position_embeddings=POSITIONS + 2), roberta_words, older=True, embeds=True
    ),
    "xlm-roberta": SavedFamily(
        "XLMRoberta", "ForMaskedLM", SIZES | dict(max_position_embeddings=POSITIONS + 2, type_vocab_size=1), xlm_words
    ),
    "camembert": SavedFamily(
        "Camembert", "Model", SIZES | dict(max_position_embeddings=POSITIONS + 2), camembert_words, embeds=True
    ),
    "electra": SavedFamily("Electra", "ForPreTraining", SIZES | dict(embedding_size=10), bert_words),
    "albert": SavedFamily("Albert", "ForMaskedLM", SIZES | dict(embedding_size=10), albert_words),
    "mpnet": SavedFamily("MPNet", "Model", SIZES | dict(max_position_embeddings=POSITIONS + 2), mpnet_words),
    "deberta-v2": SavedFamily("DebertaV2", "Model", SIZES | APART, deberta_words),
    "modernbert": SavedFamily("ModernBert", "ForMaskedLM", SIZES | MODERN, plain_words),
    "nomic_bert": SavedFamily("NomicBert", "Model", SIZES, bert_words),
    "gte": SavedFamily("Gte", "Model", SIZES, xlm_words),
    "gemma3_text": SavedFamily(
        "Gemma3Text",
        "Model",
        DECODER | dict(head_dim=8, sliding_window=6, use_bidirectional_attention=True),
        plain_words,
    ),
    "t5": SavedFamily("T5", "EncoderModel", T5, t5_words),
    "gpt2": SavedFamily("GPT2", "LMHeadModel", GPT2, gpt2_words),
    "gpt2, older files": SavedFamily("GPT2", "LMHeadModel", GPT2, gpt2_words, older=True),
    "bloom": SavedFamily(
        "Bloom",
        "ForCausalLM",
        dict(vocab_size=ROWS, hidden_size=24, n_layer=2, n_head=3, bos_token_id=1, eos_token_id=1),
        plain_words,
    ),
    "mamba": SavedFamily(
        "Mamba", "ForCausalLM", dict(vocab_size=ROWS, hidden_size=24, state_size=5, num_hidden_layers=2), plain_words
    ),
    "mamba2": SavedFamily(
        "Mamba2",
        "ForCausalLM",
        dict(vocab_size=ROWS, hidden_size=24, state_size=5, num_heads=6, head_dim=8, n_groups=2, num_hidden_layers=2),
        plain_words,
    ),
    "qwen3_next": SavedFamily(
        "Qwen3Next", "ForCausalLM", EXPERTS | DELTA_NETS | dict(shared_expert_intermediate_size=12), plain_words
    ),
    "qwen3_5_text": SavedFamily("Qwen3_5Text", "Model", DECODER | DELTA_NETS, plain_words),
    "qwen3_5_moe_text": SavedFamily(
        "Qwen3_5MoeText", "Model", EXPERTS | DELTA_NETS | dict(shared_expert_intermediate_size=12), plain_words
    ),
    "llama": SavedFamily("Llama", "ForCausalLM", DECODER, plain_words),
    "llama, tied, older files": SavedFamily(
        "Llama",
        "ForCausalLM",
        DECODER | dict(tie_word_embeddings=True, attention_bias=True, head_dim=12),
        plain_words,
        older=True,
    ),
    "mistral": SavedFamily("Mistral", "ForCausalLM", DECODER | dict(sliding_window=5), plain_words),
    "mixtral": SavedFamily("Mixtral", "ForCausalLM", DECODER | dict(num_local_experts=4), plain_words),
    "qwen2": SavedFamily("Qwen2", "ForCausalLM", DECODER, qwen_words),
    "qwen3": SavedFamily("Qwen3", "ForCausalLM", DECODER | dict(head_dim=8), qwen_words),
    "cohere": SavedFamily("Cohere", "ForCausalLM", DECODER | dict(use_qk_norm=True), plain_words),
    "cohere2": SavedFamily("Cohere2", "ForCausalLM", DECODER | dict(sliding_window=5), plain_words),
    "gemma2": SavedFamily(
        "Gemma2", "ForCausalLM", DECODER | dict(head_dim=8, sliding_window=6, attn_logit_softcapping=2.0), plain_words
    ),
    "gpt-oss": SavedFamily(
        "GptOss",
        "ForCausalLM",
        DECODER | dict(head_dim=8, num_local_experts=4, num_experts_per_tok=2, sliding_window=5),
        plain_words,
    ),
    "smollm3": SavedFamily(
        "SmolLM3",
        "ForCausalLM",
        DECODER | dict(pad_token_id=0, bos_token_id=1, eos_token_id=2, no_rope_layer_interval=2),
        plain_words,
    ),
    "granite": SavedFamily("Granite", "ForCausalLM", DECODER | dict(pad_token_id=0, logits_scaling=8.0), plain_words),
    "olmo2": SavedFamily("Olmo2", "ForCausalLM", DECODER | dict(pad_token_id=0), plain_words),
    "phi3": SavedFamily("Phi3", "ForCausalLM", DECODER | dict(pad_token_id=0), plain_words),
    "qwen2-moe": SavedFamily("Qwen2Moe", "ForCausalLM", EXPERTS | dict(shared_expert_intermediate_size=16), qwen_words),
    "qwen3-moe": SavedFamily("Qwen3Moe", "ForCausalLM", EXPERTS | dict(head_dim=8), qwen_words),
}


def save(family: SavedFamily, place: Path, seed: int = 0) -> None:
    """The directory of a random model, weights three times the size that training starts from."""
    import torch
    import transformers

    torch.manual_seed(seed)
    model = getattr(transformers, family.stem + family.kind)(
        getattr(transformers, f"{family.stem}Config")(**family.config)
    ).eval()
    with torch.no_grad():
        for name, each in model.named_parameters():
            if name.endswith(".A_log"):
                each.add_(0.3 * torch.randn_like(each))  # rates that training starts from, or near them
            elif each.ndim == 1:
                each.copy_(name.endswith("weight") + 0.3 * torch.randn_like(each))
            else:
                each.copy_(torch.randn_like(each) * (1 if "embed" in name else 3 * each[0].numel() ** -0.5))
        for module in model.modules():
            if type(module).__name__ in LESS_ONE:
                module.weight.sub_(1)
    model.save_pretrained(place)
    family.tokenizer().save_pretrained(place)
    if family.older:
        write_older(place)
    if family.embeds:
        write_modules(place)


def write_older(place: Path) -> None:
    """Special tokens in a file of their own, as versions before 5 write them, and what else they said."""
    file = place / "tokenizer_config.json"
    config = json.loads(file.read_text())
    special = {key: value for key, value in config.items() if key.endswith("_token") and isinstance(value, str)}
    flags = dict(lstrip=False, normalized=False, rstrip=False, single_word=False)
    name = next(iter(special))
    special[name] = {"content": special[name], **flags}  # both spellings that there are
    (place / "special_tokens_map.json").write_text(json.dumps(special, indent=1))
    config.pop("backend", None)
    if config["tokenizer_class"] == "TokenizersBackend":
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
    file.write_text(json.dumps(config | {"clean_up_tokenization_spaces": False, "add_bos_token": True}, indent=1))


def write_modules(place: Path) -> None:
    """The files of sentence-transformers: the mean, of length one, of texts cut at 20 tokens."""
    folders = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    files = {
        "modules.json": [
            {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{name}"}
            for place, (name, path) in enumerate(folders.items())
        ],
        "1_Pooling/config.json": {
            "word_embedding_dimension": 24,
            "pooling_mode_cls_token": False,
            "pooling_mode_mean_tokens": True,
            "pooling_mode_max_tokens": False,
            "pooling_mode_mean_sqrt_len_tokens": False,
            "include_prompt": True,
        },
        "sentence_bert_config.json": {"max_seq_length": 20, "do_lower_case": False},
        "config_sentence_transformers.json": {
            "__version__": {"sentence_transformers": "3.0.0"},
            "prompts": {"query": "the bank: "},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
    }
    for name, content in files.items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(json.dumps(content, indent=1))
    (place / "2_Normalize").mkdir(exist_ok=True)
